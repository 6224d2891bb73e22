/* Fault points: a small table guarded by a mutex, read from the environment at the first pass. Tests only. */
#include "fault.h"

#ifdef VC_FAULTS
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault_file.h"

#define MAX_POINTS 16

typedef struct point {
    char name[48];
    unsigned long at, passes, arg;
    bool onwards;
    cs_fault_t action;
} point_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static point_t points[MAX_POINTS];
static unsigned n_points;
static bool loaded;
static cs_fault_passes_t *counted;

static bool parse_action(const char *text, cs_fault_t *action_p)
{
    static const struct {
        const char *name;
        cs_fault_t action;
    } actions[] = {{"kill", CS_FAULT_KILL},       {"eio", CS_FAULT_EIO},           {"enospc", CS_FAULT_ENOSPC},
                   {"short", CS_FAULT_SHORT},     {"flip", CS_FAULT_FLIP},         {"erofs", CS_FAULT_EROFS},
                   {"torn", CS_FAULT_TORN},       {"lostsync", CS_FAULT_LOSTSYNC}, {"hold", CS_FAULT_HOLD},
                   {"reorder", CS_FAULT_REORDER}, {"crash", CS_FAULT_CRASH}};
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++) {
        if (strcmp(text, actions[i].name) == 0) {
            *action_p = actions[i].action;
            return true;
        }
    }
    return false;
}

static bool parse_point(const char *text, size_t len, point_t *point)
{
    char part[96];
    if (len >= sizeof(part))
        return false;
    memcpy(part, text, len);
    part[len] = '\0';
    char *count = strchr(part, ':');
    char *action = count ? strchr(count + 1, ':') : NULL;
    if (!action || count == part || (size_t)(count - part) >= sizeof(point->name))
        return false;
    *count++ = '\0';
    *action++ = '\0';
    char *arg = strchr(action, '=');
    if (arg)
        *arg++ = '\0';
    memset(point, 0, sizeof(*point));
    memcpy(point->name, part, strlen(part) + 1);
    char *end;
    point->at = strtoul(count, &end, 10);
    if (*end == '+') {
        point->onwards = true;
        end++;
    }
    if (end == count || *end != '\0' || point->at == 0 || !parse_action(action, &point->action))
        return false;
    if (!arg)
        return true;
    point->arg = strtoul(arg, &end, 10);
    return end != arg && *end == '\0';
}

static vc_status_t arm_locked(const char *spec)
{
    point_t parsed[MAX_POINTS];
    unsigned n = 0;
    while (spec && *spec) {
        size_t len = strcspn(spec, ",");
        if (n == MAX_POINTS || !parse_point(spec, len, &parsed[n]))
            return VC_ERR_INVALID;
        n++;
        spec += len + (spec[len] == ',');
    }
    bool may_undo = false;
    for (unsigned i = 0; i < n; i++) {
        cs_fault_t action = parsed[i].action;
        may_undo = may_undo || action == CS_FAULT_TORN || action == CS_FAULT_LOSTSYNC || action == CS_FAULT_CRASH;
    }
    memcpy(points, parsed, n * sizeof(parsed[0]));
    n_points = n;
    loaded = true;
    cs_fault_remember_writes(may_undo);
    return VC_OK;
}

vc_status_t cs_fault_arm(const char *spec)
{
    pthread_mutex_lock(&lock);
    vc_status_t status = arm_locked(spec);
    pthread_mutex_unlock(&lock);
    return status;
}

void cs_fault_count(cs_fault_passes_t *passes)
{
    pthread_mutex_lock(&lock);
    counted = passes;
    pthread_mutex_unlock(&lock);
}

static void count_pass_locked(const char *name)
{
    unsigned i = 0;
    while (i < counted->n && strcmp(counted->points[i].name, name) != 0)
        i++;
    if (i == CS_FAULT_POINTS_MAX)
        return;
    if (i == counted->n) {
        snprintf(counted->points[i].name, sizeof(counted->points[i].name), "%s", name);
        counted->points[i].passes = 0;
        counted->n++;
    }
    counted->points[i].passes++;
}

/* No exit path of the process runs: neither handlers nor flushes of buffers. */
static void end_here(cs_fault_t action, unsigned long arg)
{
    if (action == CS_FAULT_CRASH)
        cs_fault_undo_unsynced(arg);
    if (action == CS_FAULT_CRASH || action == CS_FAULT_KILL)
        raise(SIGKILL);
}

cs_fault_t cs_fault_hit(const char *name)
{
    unsigned long arg;
    return cs_fault_hit_arg(name, &arg);
}

cs_fault_t cs_fault_hit_arg(const char *name, unsigned long *arg_p)
{
    cs_fault_t action = CS_FAULT_NONE;
    *arg_p = 0;
    pthread_mutex_lock(&lock);
    if (!loaded && arm_locked(getenv("VERICACHE_FAULT")) != VC_OK) {
        fprintf(stderr, "VERICACHE_FAULT is malformed: %s\n", getenv("VERICACHE_FAULT"));
        abort();
    }
    if (counted)
        count_pass_locked(name);
    for (unsigned i = 0; i < n_points; i++) {
        if (strcmp(points[i].name, name) != 0)
            continue;
        points[i].passes++;
        if (points[i].passes == points[i].at || (points[i].onwards && points[i].passes > points[i].at)) {
            action = points[i].action;
            *arg_p = points[i].arg;
        }
    }
    pthread_mutex_unlock(&lock);
    end_here(action, *arg_p);
    return action;
}
#else
typedef int cs_fault_unused_t; /* ISO C wants a declaration */
#endif

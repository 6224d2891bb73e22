/* vericache-relay: the relay as a program. Prints its address when it listens; SIGUSR1 writes the counters, SIGTERM and
 * SIGINT write them and end it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "relay.h"
#include "vc/config.h"

static relay_t *relay;
static volatile sig_atomic_t stop_flag, print_flag;
static const char *stats_file;

static void on_signal(int number)
{
    if (number == SIGUSR1)
        print_flag = 1;
    else
        stop_flag = 1;
    relay_wake(relay);
}

static void print_stats(FILE *out)
{
    const relay_stats_t s = relay_stats(relay);
    fprintf(
        out,
        "{\"connections\":%llu,\"refused\":%llu,\"failed\":%llu,\"bytes_to_target\":%llu,\"bytes_to_client\":%llu}\n",
        (unsigned long long)s.connections, (unsigned long long)s.refused, (unsigned long long)s.failed,
        (unsigned long long)s.bytes_to_target, (unsigned long long)s.bytes_to_client);
    fflush(out);
}

/* Aside, then renamed: a reader sees one whole line. */
static void write_stats(void)
{
    char aside[4096];
    if (stats_file[0] == '\0') {
        print_stats(stdout);
        return;
    }
    const int n = snprintf(aside, sizeof(aside), "%s.part", stats_file);
    FILE *f = n > 0 && (size_t)n < sizeof(aside) ? fopen(aside, "w") : NULL;
    if (f != NULL)
        print_stats(f);
    if (f == NULL || fclose(f) != 0 || rename(aside, stats_file) != 0)
        fprintf(stderr, "vericache-relay: cannot write '%s': %s\n", stats_file, strerror(errno));
}

static bool on_wake(void *arg)
{
    (void)arg;
    if (print_flag || stop_flag) {
        print_flag = 0;
        write_stats();
    }
    return !stop_flag;
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int fail(vc_status_t status, const vc_err_t *err)
{
    fprintf(stderr, "vericache-relay: %s\n", err->msg);
    return vc_status_exit_code(status);
}

static int run(const relay_opts_t *o)
{
    vc_err_t err = {0};
    vc_status_t status = relay_create(o, &relay, &err);
    if (status != VC_OK)
        return fail(status, &err);
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaction(signals[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    printf("listening port=%u\n", relay_port(relay));
    fflush(stdout);
    status = relay_run(relay, on_wake, NULL, &err);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        signal(signals[i], SIG_IGN); /* the handler needs the relay */
    relay_destroy(relay);
    return status == VC_OK ? 0 : fail(status, &err);
}

int main(int argc, char **argv)
{
    relay_opts_t o;
    double delay_ms = 0;
    uint64_t rate = 0, buffer = 0, max_connections = 0;
    const vc_opt_t table[] = {
        {.name = "listen",
         .type = VC_OPT_STRING,
         .value = &o.listen,
         .deflt = "127.0.0.1:0",
         .help = "HOST:PORT to accept on; port 0 picks one, which is printed"},
        {.name = "target", .type = VC_OPT_STRING, .value = &o.target, .help = "HOST:PORT to connect to"},
        {.name = "delay-ms", .type = VC_OPT_DOUBLE, .value = &delay_ms, .max = 60000, .help = "one-way delay"},
        {.name = "rate", .type = VC_OPT_RATE, .value = &rate, .help = "per direction, shared; 0: unlimited"},
        {.name = "buffer",
         .type = VC_OPT_BYTES,
         .value = &buffer,
         .deflt = "4MiB",
         .min = 4096,
         .max = 1e9,
         .help = "per connection and direction; at least rate x delay"},
        {.name = "max-connections",
         .type = VC_OPT_U64,
         .value = &max_connections,
         .deflt = "4096",
         .min = 1,
         .max = 100000,
         .help = "more are refused"},
        {.name = "stats-file", .type = VC_OPT_STRING, .value = &stats_file, .help = "counters go here, not to stdout"},
        {0},
    };
    vc_config_t *config;
    vc_err_t err = {0};
    relay_opts_default(&o);
    vc_status_t status = vc_config_parse(table, argc, argv, NULL, &config, &err);
    if (status != VC_OK)
        return fail(status, &err);
    int rc = 0;
    if (vc_config_wants_help(config)) {
        printf("usage: vericache-relay --target HOST:PORT [options]\n\n");
        vc_config_print_help(table, stdout);
    } else if (vc_config_wants_version(config)) {
        printf("vericache-relay %s\n", VC_VERSION);
    } else if (vc_config_wants_print(config)) {
        vc_config_print_values(table, config, stdout);
    } else if (vc_config_n_args(config) != 0 || o.target[0] == '\0') {
        status = vc_err_set(&err, VC_ERR_INVALID, "--target HOST:PORT is needed, and nothing but options");
        rc = fail(status, &err);
    } else {
        o.delay_us = (uint64_t)(delay_ms * 1000);
        o.rate_bits_per_s = rate;
        o.buffer_bytes = (size_t)buffer;
        o.max_connections = (uint32_t)max_connections;
        raise_descriptor_limit();
        rc = run(&o);
    }
    vc_config_free(config);
    return rc;
}

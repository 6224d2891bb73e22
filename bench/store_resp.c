/* See store_resp.h. Values go from and to the caller's memory without a copy of ours, but for what came with a header.
 */
#include "store_resp.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "harness.h"
#include "vc/mem.h"

int resp_connect(resp_t *r, int port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1;
    r->at = r->end = 0;
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (r->fd >= 0 && connect(r->fd, (struct sockaddr *)&addr, sizeof(addr)) == 0) {
        setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        return 1;
    }
    if (r->fd >= 0)
        close(r->fd);
    return 0;
}

void resp_close(resp_t *r) { close(r->fd); }

static void send_all(resp_t *r, struct iovec *iov, int n)
{
    while (n > 0) {
        ssize_t sent = writev(r->fd, iov, n);
        if (sent < 0)
            bench_fail("redis: the connection broke while sending");
        while (n > 0 && (size_t)sent >= iov->iov_len) {
            sent -= (ssize_t)iov->iov_len;
            iov++;
            n--;
        }
        if (n > 0) {
            iov->iov_base = (uint8_t *)iov->iov_base + sent;
            iov->iov_len -= (size_t)sent;
        }
    }
}

void resp_set(resp_t *r, const char *key, const void *value, uint32_t bytes)
{
    char head[160];
    int n = snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%u\r\n", strlen(key), key, bytes);
    char tail[] = "\r\n";
    struct iovec iov[3] = {{head, (size_t)n}, {(void *)(uintptr_t)value, bytes}, {tail, 2}};
    send_all(r, iov, 3);
}

void resp_get(resp_t *r, const char *key)
{
    char text[160];
    int n = snprintf(text, sizeof(text), "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(key), key);
    struct iovec iov = {text, (size_t)n};
    send_all(r, &iov, 1);
}

void resp_command(resp_t *r, const char *word)
{
    char text[160];
    int n = snprintf(text, sizeof(text), "*1\r\n$%zu\r\n%s\r\n", strlen(word), word);
    struct iovec iov = {text, (size_t)n};
    send_all(r, &iov, 1);
}

static uint8_t next_byte(resp_t *r)
{
    if (r->at == r->end) {
        ssize_t n = recv(r->fd, r->in, sizeof(r->in), 0);
        if (n <= 0)
            bench_fail("redis: the connection broke while receiving");
        r->at = 0;
        r->end = (uint32_t)n;
    }
    return r->in[r->at++];
}

static void read_line(resp_t *r, char *line, size_t cap)
{
    size_t n = 0;
    for (uint8_t b; (b = next_byte(r)) != '\n';)
        if (b != '\r' && n + 1 < cap)
            line[n++] = (char)b;
    line[n] = '\0';
}

void resp_expect_simple(resp_t *r)
{
    char line[256];
    read_line(r, line, sizeof(line));
    if (line[0] != '+')
        bench_fail("redis says: %s", line);
}

void resp_expect_value(resp_t *r, void *value, uint32_t bytes)
{
    char line[256];
    read_line(r, line, sizeof(line));
    if (line[0] != '$' || strtoul(line + 1, NULL, 10) != bytes)
        bench_fail("redis says: %s", line);
    uint32_t have = VC_MIN(r->end - r->at, bytes);
    memcpy(value, r->in + r->at, have);
    r->at += have;
    if (have < bytes && recv(r->fd, (uint8_t *)value + have, bytes - have, MSG_WAITALL) != (ssize_t)(bytes - have))
        bench_fail("redis: the connection broke inside a value");
    if (next_byte(r) != '\r' || next_byte(r) != '\n')
        bench_fail("redis: a value does not end where it should");
}

/*
 * Two programs that send a message back and forth. The other program can also be ping_pong.rs or ping_pong.py.
 *
 * usage: ping_pong SOCKET listen ADDRESS:PORT
 *        ping_pong SOCKET connect ADDRESS:PORT [COUNT]
 *
 * cc -o ping_pong ping_pong.c $(pkg-config --cflags --libs ddpd)
 */
#include <ddpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 64
#define TIMEOUT_MS 10000

static ddpd_session *session;
static ddpd_region *memory;
static ddpd_cq *completions;
static ddpd_qp *qp;

/* Ends the program with the library's message if a call failed. */
static int check(int result, const char *action)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", action, ddpd_last_error());
        exit(1);
    }
    return result;
}

static void post_receive(void)
{
    struct ddpd_sge sge = {(uintptr_t)ddpd_region_address(memory), ROOM, ddpd_region_stag(memory)};
    struct ddpd_receive receive = {.sges = &sge, .sge_count = 1};
    check(ddpd_post_receive(qp, &receive), "posting a receive");
}

static void post_send(const void *bytes, uint32_t length)
{
    struct ddpd_sge sge = {(uintptr_t)bytes, length, 0};
    struct ddpd_send send = {.opcode = DDPD_SEND, .flags = DDPD_INLINE, .sges = &sge, .sge_count = 1};
    check(ddpd_post_send(qp, &send), "posting a message");
}

/* Waits for a message and returns its length, or -1 when the connection has ended. */
static int message(void)
{
    struct ddpd_completion completion;
    if (!check(ddpd_cq_next(completions, TIMEOUT_MS, &completion), "waiting")) {
        fprintf(stderr, "no message came\n");
        exit(1);
    }
    if (completion.status == DDPD_FLUSHED)
        return -1;
    if (completion.status != DDPD_SUCCESS) {
        fprintf(stderr, "the message failed: status %u\n", completion.status);
        exit(1);
    }
    return (int)completion.byte_len;
}

static void answer(ddpd_listener *listener)
{
    ddpd_request *request;
    int count = 0, length;
    check(ddpd_listener_next(listener, -1, &request), "waiting for a connection");
    post_receive(); /* before the peer can send */
    check(ddpd_accept(request, qp, NULL, NULL), "accepting");
    while ((length = message()) >= 0) {
        char copy[ROOM];
        memcpy(copy, ddpd_region_address(memory), (size_t)length);
        post_receive();
        post_send(copy, (uint32_t)length);
        count++;
    }
    printf("%d messages answered\n", count);
}

static void ask(const char *address, int count)
{
    post_receive();
    check(ddpd_connect(qp, address, NULL, NULL), "connecting");
    for (int i = 0; i < count; i++) {
        post_send("ping", 4);
        if (message() != 4 || memcmp(ddpd_region_address(memory), "ping", 4) != 0) {
            fprintf(stderr, "another message came back\n");
            exit(1);
        }
        if (i + 1 < count)
            post_receive();
    }
    check(ddpd_disconnect(qp, TIMEOUT_MS), "disconnecting");
    printf("%d messages and answers\n", count);
}

int main(int argc, char **argv)
{
    ddpd_domain *domain;
    ddpd_channel *channel;
    int is_listener = argc >= 4 && strcmp(argv[2], "listen") == 0;

    if (argc < 4 || (!is_listener && strcmp(argv[2], "connect") != 0)) {
        fprintf(stderr, "usage: ping_pong SOCKET listen|connect ADDRESS:PORT [COUNT]\n");
        return 2;
    }
    check(ddpd_open(argv[1], &session), "opening a session");
    check(ddpd_domain_create(session, &domain), "creating a protection domain");
    check(ddpd_region_alloc(domain, ROOM, DDPD_LOCAL_WRITE, &memory), "allocating memory");
    check(ddpd_channel_create(session, &channel), "creating a channel");
    check(ddpd_cq_create(session, 16, channel, &completions), "creating a completion queue");
    check(ddpd_qp_create(domain, completions, completions, 4, 4, 0, &qp), "creating a queue pair");
    if (is_listener) {
        ddpd_listener *listener;
        char address[64];
        check(ddpd_listen(session, argv[3], DDPD_TCP, 1, &listener), "listening");
        check(ddpd_listener_address(listener, address, sizeof address), "reading the address");
        printf("listening at %s\n", address);
        fflush(stdout);
        answer(listener);
        ddpd_listener_destroy(listener);
    } else {
        ask(argv[3], argc > 4 ? atoi(argv[4]) : 1000);
    }
    ddpd_qp_destroy(qp);
    ddpd_cq_destroy(completions);
    ddpd_channel_destroy(channel);
    ddpd_region_destroy(memory);
    ddpd_domain_destroy(domain);
    ddpd_close(session);
    return 0;
}

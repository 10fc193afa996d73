/*
 * Random operations on 8 queue pairs between two programs, with a comparison of all memory of both.
 *
 * usage: verbs-mix server ADDRESS PORT
 *        verbs-mix client ADDRESS PORT SEED SECONDS
 *
 * The client performs all operations, and has a model of the memory of both sides. Steps of a round, each on all queue
 * pairs at once:
 *
 *   1. It posts up to 8 Writes, Writes with Immediate and Sends, with up to 6 SGEs or inline, and waits for their
 *      completions and for the server's answer to each message.
 *   2. It posts up to 8 Reads, Fetch-and-Adds and Compare-and-Swaps, with up to 6 SGEs, and waits for their
 *      completions.
 *   3. It compares its own memory with the model, and in every 16th round the server's memory, which it reads as a
 *      whole.
 *
 * The bytes between and around all ranges are guard zones: they are compared, too. Operations of one step never overlap,
 * because iWARP does not order their placement. The server posts each receive with several SGEs.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PAIRS = 8,
    OPERATIONS = 8,             /* of a step */
    SGES = 6,
    LANE = 32 << 10,            /* bytes in which an operation of a step takes place */
    AREA = OPERATIONS * LANE,   /* for Writes, Reads and atomics */
    SLOTS = 8,                  /* receives */
    SLOT = 4096,
    BYTES = AREA + SLOTS * SLOT, /* of a region */
    MESSAGE = 2048,             /* longest message, and all SGEs of a receive, bytes */
    INLINE = 64,
};

struct from_client { uint64_t seed; uint32_t pair; };
struct from_server { uint64_t address; uint32_t rkey; };
struct answer { uint32_t immediate, length; };

struct pair {
    struct rdma_cm_id *id;
    uint8_t *memory;
    struct ibv_mr *region;
    /* client only */
    uint8_t *own_model, *peer_model, *all;
    struct ibv_mr *all_region;
    struct answer *answers;
    struct ibv_mr *answer_region;
    struct from_server peer;
    uint32_t sent;              /* messages */
    uint32_t answered;
    struct answer expected[SLOTS];
    int pending;                /* operations that have not completed */
};

static struct pair pairs[PAIRS];
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_comp_channel *channel;
static uint64_t seed, operations, compared;
static unsigned long rounds;

/* Ends the program if a completion has an error. */
static void check(const struct ibv_wc *wc);

#define CHECK(condition) do { if (!(condition)) { \
    fprintf(stderr, "verbs-mix: line %d: %s (seed %llu, round %lu)\n", __LINE__, #condition, \
            (unsigned long long)seed, rounds); exit(1); } } while (0)

static void check(const struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_SUCCESS) {
        fprintf(stderr, "verbs-mix: seed %llu, round %lu: wr_id %llu, opcode %d: %s\n", (unsigned long long)seed, rounds,
                (unsigned long long)wc->wr_id, wc->opcode, ibv_wc_status_str(wc->status));
        exit(1);
    }
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1d;
}

static uint32_t below(uint64_t *state, uint32_t limit) { return (next(state) >> 33) % limit; }

static void fill(uint64_t *state, uint8_t *bytes, size_t len)
{
    for (size_t at = 0; at < len; at++)
        bytes[at] = next(state) >> 56;
}

static uint64_t state_of(uint32_t pair, uint32_t what) { return (seed + 1) * 0x9e3779b97f4a7c15 + pair * 1000 + what; }

static struct ibv_mr *reg(void *memory, size_t len)
{
    struct ibv_mr *region = ibv_reg_mr(pd, memory, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(region);
    return region;
}

/* Splits a range of `within` bytes at `start` into up to 6 pieces of `len` bytes in all, with guard zones between them. */
static int pieces(uint64_t *state, uint32_t start, uint32_t within, uint32_t len, uint32_t offsets[SGES], uint32_t lens[SGES])
{
    int count = 1 + below(state, SGES), used = 0;
    uint32_t gaps = (within - len) / (count + 1), at = start;
    for (int i = 0; i < count && len; i++) {
        uint32_t part = i == count - 1 ? len : 1 + below(state, len);
        at += below(state, gaps + 1);
        offsets[used] = at;
        lens[used++] = part;
        at += part;
        len -= part;
    }
    return used;
}

static int sges(struct pair *pair, int count, uint32_t *offsets, uint32_t *lens, struct ibv_sge *to)
{
    for (int i = 0; i < count; i++)
        to[i] = (struct ibv_sge){ (uintptr_t)pair->memory + offsets[i], lens[i], pair->region->lkey };
    return count;
}

/* The pieces of a slot, the same for each receive: as long in all as the longest message. */
static int slot_pieces(uint32_t pair, uint32_t slot, uint32_t *offsets, uint32_t *lens)
{
    uint64_t state = state_of(pair, 100 + slot);
    next(&state);
    return pieces(&state, AREA + slot * SLOT, SLOT, MESSAGE, offsets, lens);
}

static void create_qp(struct rdma_cm_id *id)
{
    if (!pd) {
        CHECK(pd = ibv_alloc_pd(id->verbs));
        CHECK(channel = ibv_create_comp_channel(id->verbs));
        CHECK(send_cq = ibv_create_cq(id->verbs, PAIRS * 4 * OPERATIONS, NULL, NULL, 0));
        CHECK(recv_cq = ibv_create_cq(id->verbs, PAIRS * 2 * SLOTS, NULL, channel, 0));
    }
    struct ibv_qp_init_attr attr = {
        .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
        .cap = { 4 * OPERATIONS, 2 * SLOTS, SGES, SGES, INLINE },
    };
    CHECK(!rdma_create_qp(id, pd, &attr));
}

static void post_receive(struct pair *pair, uint64_t wr_id, struct ibv_sge *list, int count)
{
    struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = list, .num_sge = count }, *bad;
    CHECK(!ibv_post_recv(pair->id->qp, &wr, &bad));
}

static struct sockaddr_in address(const char *ip, const char *port)
{
    struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
    CHECK(inet_pton(AF_INET, ip, &found.sin_addr) == 1);
    return found;
}

/* The server */

static void post_slot(uint32_t number, uint32_t slot)
{
    uint32_t offsets[SGES], lens[SGES];
    struct ibv_sge list[SGES];
    int count = slot_pieces(number, slot, offsets, lens);
    post_receive(&pairs[number], number * SLOTS + slot, list, sges(&pairs[number], count, offsets, lens, list));
}

static unsigned long unacknowledged;

static void poll_answers(void)
{
    struct ibv_wc wc;
    while (ibv_poll_cq(send_cq, 1, &wc) == 1) {
        check(&wc);
        unacknowledged--;
    }
}

static void answer(struct pair *pair, struct answer answer)
{
    poll_answers();
    struct ibv_sge sge = { (uintptr_t)&answer, sizeof answer, 0 };
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
    }, *bad;
    CHECK(!ibv_post_send(pair->id->qp, &wr, &bad));
    unacknowledged++;
}

static int serve(const char *ip, const char *port)
{
    struct sockaddr_in local = address(ip, port);
    struct rdma_cm_id *listener;
    CHECK(!rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
    CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&local));
    CHECK(!rdma_listen(listener, PAIRS));
    for (int i = 0; i < PAIRS; i++) {
        struct rdma_cm_id *id;
        CHECK(!rdma_get_request(listener, &id));
        struct from_client from;
        memcpy(&from, id->event->param.conn.private_data, sizeof from);
        seed = from.seed;
        CHECK(from.pair < PAIRS);
        struct pair *pair = &pairs[from.pair];
        pair->id = id;
        create_qp(id);
        CHECK(pair->memory = malloc(BYTES));
        pair->region = reg(pair->memory, BYTES);
        uint64_t state = state_of(from.pair, 1);
        fill(&state, pair->memory, BYTES);
        for (int slot = 0; slot < SLOTS; slot++)
            post_slot(from.pair, slot);
        struct from_server to = { (uintptr_t)pair->memory, pair->region->rkey };
        struct rdma_conn_param param = {
            .private_data = &to, .private_data_len = sizeof to, .responder_resources = 8, .initiator_depth = 8,
        };
        CHECK(!rdma_accept(id, &param));
    }
    for (int ended = 0; ended < PAIRS;) {
        struct ibv_cq *queue;
        void *context;
        struct ibv_wc wc;
        CHECK(!ibv_req_notify_cq(recv_cq, 0));
        int any = 0;
        while (ended < PAIRS && ibv_poll_cq(recv_cq, 1, &wc) == 1) {
            any = 1;
            if (wc.status == IBV_WC_WR_FLUSH_ERR)
                continue; /* a receive of a pair that has ended */
            check(&wc);
            int has_immediate = !!(wc.wc_flags & IBV_WC_WITH_IMM);
            int is_end = !has_immediate && wc.byte_len == 0;
            uint32_t number = wc.wr_id / SLOTS;
            post_slot(number, wc.wr_id % SLOTS);
            answer(&pairs[number], (struct answer){ has_immediate ? ntohl(wc.imm_data) : 0, has_immediate ? 0 : wc.byte_len });
            ended += is_end;
        }
        if (!any) {
            CHECK(!ibv_get_cq_event(channel, &queue, &context));
            ibv_ack_cq_events(queue, 1);
        }
    }
    while (unacknowledged)
        poll_answers();
    for (int i = 0; i < PAIRS; i++)
        rdma_disconnect(pairs[i].id);
    puts("verbs-mix: served");
    return 0;
}

/* The client */

static int is_ending;

static void poll_all(void)
{
    struct ibv_wc wc[16];
    int count = ibv_poll_cq(send_cq, 16, wc);
    CHECK(count >= 0);
    for (int i = 0; i < count; i++) {
        check(&wc[i]);
        pairs[wc[i].wr_id].pending = 0; /* the last operation of a step is signalled */
    }
    count = ibv_poll_cq(recv_cq, 16, wc);
    CHECK(count >= 0);
    for (int i = 0; i < count; i++) {
        if (is_ending && wc[i].status == IBV_WC_WR_FLUSH_ERR)
            continue; /* a receive without a message */
        check(&wc[i]);
        CHECK(wc[i].byte_len == sizeof(struct answer));
        struct pair *pair = &pairs[wc[i].wr_id / SLOTS];
        uint32_t slot = pair->answered++ % SLOTS;
        CHECK(wc[i].wr_id % SLOTS == slot);
        CHECK(!memcmp(&pair->answers[slot], &pair->expected[slot], sizeof(struct answer)));
        struct ibv_sge sge = { (uintptr_t)&pair->answers[slot], sizeof(struct answer), pair->answer_region->lkey };
        if (!is_ending)
            post_receive(pair, wc[i].wr_id, &sge, 1);
    }
}

static void wait_for_all(void)
{
    for (int i = 0; i < PAIRS; i++)
        while (pairs[i].pending || pairs[i].answered != pairs[i].sent)
            poll_all();
}

static void post(struct pair *pair, struct ibv_send_wr *wr, int is_last)
{
    struct ibv_send_wr *bad;
    wr->wr_id = pair - pairs;
    if (is_last)
        wr->send_flags |= IBV_SEND_SIGNALED;
    CHECK(!ibv_post_send(pair->id->qp, wr, &bad));
    pair->pending = 1;
    operations++;
}

/* Expects an answer to a message. */
static void expect(struct pair *pair, uint32_t immediate, uint32_t length)
{
    pair->expected[pair->sent++ % SLOTS] = (struct answer){ immediate, length };
}

static void update(uint64_t *state, struct pair *pair)
{
    int count = 1 + below(state, OPERATIONS);
    for (int i = 0; i < count; i++) {
        uint32_t offsets[SGES], lens[SGES], kind = below(state, 8), len;
        struct ibv_sge list[SGES];
        struct ibv_send_wr wr = { .sg_list = list };
        int is_message = kind >= 4 && kind < 7, is_inline = below(state, 4) == 0;
        len = is_inline ? 1 + below(state, INLINE) : 1 + below(state, is_message ? MESSAGE : LANE / 2);
        wr.num_sge = sges(pair, pieces(state, 0, BYTES, len, offsets, lens), offsets, lens, list);
        if (is_inline)
            wr.send_flags |= IBV_SEND_INLINE;
        uint8_t bytes[LANE], *at = bytes;
        for (int j = 0; j < wr.num_sge; j++, at += lens[j - 1])
            memcpy(at, pair->own_model + offsets[j], lens[j]);
        if (is_message) {
            uint32_t slot = pair->sent % SLOTS;
            int parts = slot_pieces(pair - pairs, slot, offsets, lens);
            at = bytes;
            for (int j = 0; j < parts; j++) {
                uint32_t left = len - (at - bytes), part = lens[j] < left ? lens[j] : left;
                memcpy(pair->peer_model + offsets[j], at, part);
                at += part;
            }
            wr.opcode = IBV_WR_SEND;
            expect(pair, 0, len);
        } else {
            uint32_t to = i * LANE + below(state, LANE - len);
            memcpy(pair->peer_model + to, bytes, len);
            wr.opcode = kind == 7 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
            wr.wr.rdma.remote_addr = pair->peer.address + to;
            wr.wr.rdma.rkey = pair->peer.rkey;
            if (kind == 7) {
                uint32_t immediate = 1 + below(state, 1 << 30);
                wr.imm_data = htonl(immediate);
                expect(pair, immediate, 0);
            }
        }
        post(pair, &wr, i == count - 1);
    }
}

static void fetch(uint64_t *state, struct pair *pair)
{
    int count = 1 + below(state, OPERATIONS);
    for (int i = 0; i < count; i++) {
        uint32_t offsets[SGES], lens[SGES], kind = below(state, 6);
        struct ibv_sge list[SGES];
        struct ibv_send_wr wr = { .sg_list = list };
        if (kind < 4) {
            uint32_t len = 1 + below(state, LANE / 2), from = below(state, AREA - len);
            wr.num_sge = sges(pair, pieces(state, i * LANE, LANE, len, offsets, lens), offsets, lens, list);
            for (int j = 0, done = 0; j < wr.num_sge; done += lens[j++])
                memcpy(pair->own_model + offsets[j], pair->peer_model + from + done, lens[j]);
            wr.opcode = IBV_WR_RDMA_READ;
            wr.wr.rdma.remote_addr = pair->peer.address + from;
            wr.wr.rdma.rkey = pair->peer.rkey;
        } else {
            /* Words in the slots: a Read of the same step does not overlap them. Atomics of one word are in order. */
            uint32_t at = AREA + 8 * below(state, SLOTS * SLOT / 8), to = i * LANE + 8 * below(state, LANE / 8);
            uint64_t old, new;
            memcpy(&old, pair->peer_model + at, 8);
            offsets[0] = to, lens[0] = 8;
            wr.num_sge = sges(pair, 1, offsets, lens, list);
            wr.opcode = kind == 4 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
            wr.wr.atomic.remote_addr = pair->peer.address + at;
            wr.wr.atomic.rkey = pair->peer.rkey;
            wr.wr.atomic.compare_add = kind == 4 ? next(state) : below(state, 2) ? old : ~old;
            wr.wr.atomic.swap = next(state);
            new = kind == 4 ? old + wr.wr.atomic.compare_add
                            : wr.wr.atomic.compare_add == old ? wr.wr.atomic.swap : old;
            memcpy(pair->own_model + to, &old, 8);
            memcpy(pair->peer_model + at, &new, 8);
        }
        post(pair, &wr, i == count - 1);
    }
}

static void compare(struct pair *pair, const char *whose, const uint8_t *bytes, const uint8_t *model)
{
    compared += BYTES;
    for (size_t at = 0; at < BYTES; at++)
        if (bytes[at] != model[at]) {
            fprintf(stderr, "verbs-mix: seed %llu, round %lu, pair %d: byte %zu of the %s memory is %02x, not %02x\n",
                    (unsigned long long)seed, rounds, (int)(pair - pairs), at, whose, bytes[at], model[at]);
            exit(1);
        }
}

static void compare_peers(void)
{
    for (int i = 0; i < PAIRS; i++) {
        struct ibv_sge sge = { (uintptr_t)pairs[i].all, BYTES, pairs[i].all_region->lkey };
        struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };
        wr.wr.rdma.remote_addr = pairs[i].peer.address;
        wr.wr.rdma.rkey = pairs[i].peer.rkey;
        post(&pairs[i], &wr, 1);
    }
    wait_for_all();
    for (int i = 0; i < PAIRS; i++)
        compare(&pairs[i], "server's", pairs[i].all, pairs[i].peer_model);
}

static void connect_pair(uint32_t number, struct sockaddr_in *to)
{
    static uint8_t in_data_segment[2][BYTES];
    struct pair *pair = &pairs[number];
    CHECK(!rdma_create_id(NULL, &pair->id, NULL, RDMA_PS_TCP));
    CHECK(!rdma_resolve_addr(pair->id, NULL, (struct sockaddr *)to, 5000));
    CHECK(!rdma_resolve_route(pair->id, 5000));
    create_qp(pair->id);
    /* The memory of two pairs is static data. That of the others is on the heap and begins within a page. */
    pair->memory = number < 2 ? in_data_segment[number] : (uint8_t *)malloc(BYTES + 8 * number) + 8 * number;
    CHECK(pair->own_model = malloc(BYTES));
    CHECK(pair->peer_model = malloc(BYTES));
    CHECK(pair->all = malloc(BYTES));
    CHECK(pair->answers = calloc(SLOTS, sizeof(struct answer)));
    uint64_t own = state_of(number, 2), peer = state_of(number, 1);
    fill(&own, pair->memory, BYTES);
    memcpy(pair->own_model, pair->memory, BYTES);
    fill(&peer, pair->peer_model, BYTES);
    pair->region = reg(pair->memory, BYTES);
    pair->all_region = reg(pair->all, BYTES);
    pair->answer_region = reg(pair->answers, SLOTS * sizeof(struct answer));
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct ibv_sge sge = { (uintptr_t)&pair->answers[slot], sizeof(struct answer), pair->answer_region->lkey };
        post_receive(pair, number * SLOTS + slot, &sge, 1);
    }
    struct from_client from = { seed, number };
    struct rdma_conn_param param = {
        .private_data = &from, .private_data_len = sizeof from, .responder_resources = 8, .initiator_depth = 8,
    };
    CHECK(!rdma_connect(pair->id, &param));
    CHECK(pair->id->event->param.conn.private_data_len >= sizeof pair->peer);
    memcpy(&pair->peer, pair->id->event->param.conn.private_data, sizeof pair->peer);
}

static int run(const char *ip, const char *port, long seconds)
{
    struct sockaddr_in to = address(ip, port);
    for (int i = 0; i < PAIRS; i++)
        connect_pair(i, &to);
    uint64_t state = state_of(0, 3);
    time_t end = time(NULL) + seconds;
    while (rounds == 0 || time(NULL) < end) {
        rounds++;
        for (int i = 0; i < PAIRS; i++)
            update(&state, &pairs[i]);
        wait_for_all();
        for (int i = 0; i < PAIRS; i++)
            fetch(&state, &pairs[i]);
        wait_for_all();
        for (int i = 0; i < PAIRS; i++) {
            compare(&pairs[i], "client's", pairs[i].memory, pairs[i].own_model);
            uint32_t len = below(&state, LANE), at = below(&state, BYTES - len);
            fill(&state, pairs[i].memory + at, len);
            memcpy(pairs[i].own_model + at, pairs[i].memory + at, len);
        }
        if (rounds % 16 == 0)
            compare_peers();
    }
    compare_peers();
    is_ending = 1;
    for (int i = 0; i < PAIRS; i++) {
        struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
        expect(&pairs[i], 0, 0);
        post(&pairs[i], &wr, 1);
    }
    wait_for_all();
    for (int i = 0; i < PAIRS; i++)
        rdma_disconnect(pairs[i].id);
    printf("verbs-mix: seed %llu: %lu rounds, %llu operations, %llu bytes compared, all equal\n", (unsigned long long)seed,
           rounds, (unsigned long long)operations, (unsigned long long)compared);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "server"))
        return serve(argv[2], argv[3]);
    if (argc == 6 && !strcmp(argv[1], "client")) {
        seed = strtoull(argv[4], NULL, 10);
        return run(argv[2], argv[3], atol(argv[5]));
    }
    fputs("usage: verbs-mix server ADDRESS PORT | client ADDRESS PORT SEED SECONDS\n", stderr);
    return 2;
}

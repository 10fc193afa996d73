/*
 * The guest's verbs program, for operations that scripts/interop siw needs and the standard tools lack.
 *
 *   siwverbs client ADDRESS PORT [KEY=N]... OP...     one connection, its operations in order
 *   siwverbs many ADDRESS PORT [KEY=N]... COUNT       COUNT concurrent connections; each writes and reads a slot
 *   siwverbs cycle ADDRESS PORT [KEY=N]... COUNT      connects and disconnects COUNT times
 *   siwverbs encap PORT                               enables ESP in UDP (RFC 3948) at PORT until SIGTERM
 *   siwverbs serve PORT [KEY=N]... [fill=FILE] [dump=FILE] [count=N] [echo=1] [reject=TEXT]
 *
 * Keys: ird and ord of the connection, recv (number of posted receives), len (bytes of each receive).
 *
 * Operations of a client. One that fails ends the program with status 1.
 *   region:NAME       selects an advertised region for the next operations (default: the first)
 *   write:FILE        writes the file to the region's start, in Writes of unequal lengths
 *   read:FILE         reads the region's first bytes, in Reads of unequal lengths, and compares them with the file
 *   echo:N            sends N bytes and compares the Send that comes back with them
 *   send:N            one Send of N bytes
 *   sendse:N          the same with a solicited event
 *   trysend:N         as send, but may fail
 *   trysendinv:N      the same, and invalidates the region's STag
 *   recv:FILE         compares the peer's next Send with the file
 *   put:N, get:N      one Write or Read of N bytes at the region's start; may fail
 *   gets:N            N concurrent Reads; may fail
 *   badput, badget    put and get with an unknown STag
 *   pastput, pastget  put and get whose second half is past the region's end
 *   ended:MS          waits until the peer ends the connection, at most MS milliseconds
 *   open:MS           fails if the peer ends the connection within MS milliseconds
 *
 * The server advertises its buffer as region "inbox" in the layout of docs/protocol.md. It first fills the buffer with
 * the bytes of fill=FILE, and after each connection writes it to dump=FILE. With reject=TEXT it rejects each connection
 * with TEXT as private data. It ends after COUNT connections, or between two on SIGTERM. A client that is rejected
 * prints the private data and ends with status 1.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BUFFER (4u << 20)
#define SLOT 4096u
#define NAME 64
#define MAX_RECV 64
#define TIMEOUT 20000
#define RING 128

struct region { char name[NAME + 1]; uint32_t stag; uint64_t base, len; };

struct conn {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id, *requests[8];
	int nrequests;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *recv_mr;
	char *buffer, *recv;
	size_t size;
	struct region regions[16], *region;
	int nregions, ended, received;
	uint32_t received_len[MAX_RECV];
	uint64_t posted;
};

static int ird = 4, ord = 4, nrecv = 4, recv_len = 4096, count, echo;
static const char *fill, *dump, *reject;
static volatile sig_atomic_t told_to_end;

static void fail(const char *what)
{
	printf("FAILED: %s (%s)\n", what, errno ? strerror(errno) : "no error number");
	exit(1);
}

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void *zeroed(size_t size)
{
	void *p = aligned_alloc(4096, (size + 4095) / 4096 * 4096);

	if (!p) fail("memory");
	return memset(p, 0, size);
}

/* Connection manager events */

static enum rdma_cm_event_type next_event(struct conn *c, int ms, void *private, int *private_len)
{
	struct pollfd p = { .fd = c->channel->fd, .events = POLLIN };
	enum rdma_cm_event_type type;
	struct rdma_cm_event *e;

	if (poll(&p, 1, ms) < 1) return (enum rdma_cm_event_type)-1;
	if (rdma_get_cm_event(c->channel, &e)) fail("rdma_get_cm_event");
	type = e->event;
	/* Another peer may request a connection while this one is served. */
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST && c->nrequests < 8) c->requests[c->nrequests++] = e->id;
	if (private) {
		*private_len = e->param.conn.private_data_len;
		memcpy(private, e->param.conn.private_data, *private_len);
	}
	if (type == RDMA_CM_EVENT_DISCONNECTED) c->ended = 1;
	if (type == RDMA_CM_EVENT_REJECTED || type == RDMA_CM_EVENT_CONNECT_ERROR || type == RDMA_CM_EVENT_UNREACHABLE)
		printf("%s, status %d, %.*s\n", rdma_event_str(type), e->status,
		       (int)e->param.conn.private_data_len, (const char *)e->param.conn.private_data);
	rdma_ack_cm_event(e);
	return type;
}

static void expect_event(struct conn *c, enum rdma_cm_event_type wanted, void *private, int *private_len)
{
	enum rdma_cm_event_type seen = next_event(c, TIMEOUT, private, private_len);

	if (seen != wanted) {
		printf("expected %s, seen %s\n", rdma_event_str(wanted), (int)seen < 0 ? "nothing" : rdma_event_str(seen));
		fail("connection");
	}
}

/* Work requests and completions */

static void post_recv(struct conn *c, uint64_t n)
{
	struct ibv_sge s = { (uintptr_t)c->recv + n * recv_len, recv_len, c->recv_mr->lkey };
	struct ibv_recv_wr w = { .wr_id = n, .sg_list = &s, .num_sge = 1 }, *bad;

	if ((errno = ibv_post_recv(c->id->qp, &w, &bad))) fail("ibv_post_recv");
}

static void make_qp(struct conn *c, size_t size)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = RING, .max_recv_wr = MAX_RECV, .max_send_sge = 1, .max_recv_sge = 1 } };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	c->size = size;
	c->buffer = zeroed(size);
	c->recv = zeroed((size_t)nrecv * recv_len + 1);
	c->pd = ibv_alloc_pd(c->id->verbs);
	c->cq = ibv_create_cq(c->id->verbs, 256, NULL, NULL, 0);
	if (!c->pd) fail("protection domain");
	if (!c->cq) fail("completion queue");
	c->mr = ibv_reg_mr(c->pd, c->buffer, size, access);
	c->recv_mr = ibv_reg_mr(c->pd, c->recv, (size_t)nrecv * recv_len + 1, IBV_ACCESS_LOCAL_WRITE);
	if (!c->mr || !c->recv_mr) fail("memory region");
	a.send_cq = a.recv_cq = c->cq;
	if (rdma_create_qp(c->id, c->pd, &a)) fail("rdma_create_qp");
	for (int i = 0; i < nrecv; i++) post_recv(c, i);
}

static void free_qp(struct conn *c)
{
	rdma_destroy_qp(c->id);
	ibv_dereg_mr(c->mr);
	ibv_dereg_mr(c->recv_mr);
	ibv_destroy_cq(c->cq);
	ibv_dealloc_pd(c->pd);
	free(c->buffer);
	free(c->recv);
	rdma_destroy_id(c->id);
}

/*
 * Polls until `outstanding' send requests and, since the start, `receives' receives are complete. Returns the first
 * error status, or -1 after `ms'.
 */
static int drain(struct conn *c, int outstanding, int receives, int ms)
{
	long deadline = now_ms() + ms;
	int status = 0;

	while (outstanding > 0 || c->received < receives) {
		struct ibv_wc w;
		int n = ibv_poll_cq(c->cq, 1, &w);

		if (n < 0) fail("ibv_poll_cq");
		if (n == 0) {
			if (now_ms() > deadline) return -1;
			usleep(100);
			continue;
		}
		if (w.wr_id < MAX_RECV) {
			if (w.status == IBV_WC_SUCCESS) c->received_len[w.wr_id] = w.byte_len;
			if (w.status == IBV_WC_SUCCESS) c->received++;
			else return w.status;
			continue;
		}
		outstanding--;
		if (w.status && !status) status = w.status;
	}
	return status;
}

static int try_post(struct conn *c, enum ibv_wr_opcode op, uint64_t at, uint32_t n, uint64_t to, uint32_t key, int flags)
{
	struct ibv_sge g = { (uintptr_t)c->buffer + at, n, c->mr->lkey };
	struct ibv_send_wr w = { .wr_id = MAX_RECV + c->posted++, .opcode = op, .sg_list = &g, .num_sge = 1,
				 .send_flags = flags }, *bad;

	if (op == IBV_WR_SEND_WITH_INV) {
		w.invalidate_rkey = key;
	} else {
		w.wr.rdma.remote_addr = to;
		w.wr.rdma.rkey = key;
	}
	return ibv_post_send(c->id->qp, &w, &bad);
}

static void post(struct conn *c, enum ibv_wr_opcode op, uint64_t at, uint32_t n, uint64_t to, uint32_t key, int flags)
{
	if ((errno = try_post(c, op, at, n, to, key, flags))) fail("ibv_post_send");
}

static void done(struct conn *c, int outstanding, const char *what)
{
	int status = drain(c, outstanding, 0, TIMEOUT);

	if (status) {
		printf("%s: %s\n", what, status < 0 ? "no completion" : ibv_wc_status_str(status));
		errno = 0;
		fail("completion");
	}
}

/* The client */

static void learn_regions(struct conn *c, const unsigned char *p, int len)
{
	int n, at = 8;

	if (len < 8 || memcmp(p, "DDPA\1", 5)) return;
	for (n = p[6] << 8 | p[7]; n > 0 && at + 24 <= len && c->nregions < 16; n--) {
		struct region *r = &c->regions[c->nregions++];
		uint32_t stag;
		uint64_t v;

		memcpy(&stag, p + at, 4);
		r->stag = ntohl(stag);
		memcpy(&v, p + at + 8, 8);
		r->base = be64toh(v);
		memcpy(&v, p + at + 16, 8);
		r->len = be64toh(v);
		if (p[at + 5] > NAME || at + 24 + p[at + 5] > len) fail("advertisement");
		memcpy(r->name, p + at + 24, p[at + 5]);
		at += 24 + p[at + 5];
	}
	c->region = c->regions;
}

static void open_conn(struct conn *c, const char *host, int port, size_t size)
{
	struct rdma_conn_param param = { .responder_resources = ird, .initiator_depth = ord };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	unsigned char private[256];
	int len = 0;

	memset(c, 0, sizeof(*c));
	inet_pton(AF_INET, host, &a.sin_addr);
	c->channel = rdma_create_event_channel();
	if (!c->channel || rdma_create_id(c->channel, &c->id, NULL, RDMA_PS_TCP)) fail("rdma_create_id");
	if (rdma_resolve_addr(c->id, NULL, (void *)&a, 5000)) fail("rdma_resolve_addr");
	expect_event(c, RDMA_CM_EVENT_ADDR_RESOLVED, NULL, NULL);
	if (rdma_resolve_route(c->id, 5000)) fail("rdma_resolve_route");
	expect_event(c, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL, NULL);
	make_qp(c, size);
	if (rdma_connect(c->id, &param)) fail("rdma_connect");
	expect_event(c, RDMA_CM_EVENT_ESTABLISHED, private, &len);
	learn_regions(c, private, len);
}

static void close_conn(struct conn *c)
{
	rdma_disconnect(c->id);
	while (!c->ended)
		if ((int)next_event(c, TIMEOUT, NULL, NULL) < 0) fail("the peer does not close");
	free_qp(c);
	rdma_destroy_event_channel(c->channel);
}

static struct region *region_of(struct conn *c)
{
	if (!c->region || !c->nregions) fail("the peer advertises no region");
	return c->region;
}

static size_t read_file(const char *path, char *into, size_t size)
{
	FILE *f = fopen(path, "rb");
	size_t n;

	if (!f) fail(path);
	n = fread(into, 1, size, f);
	fclose(f);
	return n;
}

/* Lengths of every alignment, around the payload of a segment, and of long messages. */
static size_t piece(size_t n)
{
	static const size_t lengths[] = { 1, 2, 3, 5, 1423, 1424, 1425, 1427, 1428, 1429, 8, 4095, 4096, 4097,
					  65535, 65536, 65537, 262144, 1048576 };

	return lengths[n % (sizeof(lengths) / sizeof(*lengths))];
}

static void move_file(struct conn *c, const char *path, int write)
{
	struct region *r = region_of(c);
	char *file = zeroed(BUFFER);
	size_t total = read_file(path, file, BUFFER), at = 0, n = 0;

	if (total > r->len) fail("the file is longer than the region");
	if (write) memcpy(c->buffer, file, total);
	else memset(c->buffer, 0x5a, BUFFER);
	for (; at < total; n++) {
		size_t len = piece(n) < total - at ? piece(n) : total - at;

		post(c, write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, at, len, r->base + at, r->stag, 0);
		done(c, 1, write ? "Write" : "Read");
		at += len;
	}
	if (!write && memcmp(c->buffer, file, total)) fail("the region differs from the file");
	printf("%s %zu bytes in %zu messages\n", write ? "wrote" : "read and compared", total, n);
	free(file);
}

static void echo_once(struct conn *c, size_t n)
{
	int slot = c->received % nrecv;

	for (size_t i = 0; i < n; i++) c->buffer[i] = (char)(i * 7 + n + c->received);
	post(c, IBV_WR_SEND, 0, n, 0, 0, 0);
	if (drain(c, 1, c->received + 1, TIMEOUT)) fail("no echo");
	if (c->received_len[slot] != n || memcmp(c->recv + (size_t)slot * recv_len, c->buffer, n)) fail("the echo differs");
	post_recv(c, slot);
}

static void receive_file(struct conn *c, const char *path)
{
	char *file = zeroed(BUFFER);
	size_t total = read_file(path, file, BUFFER);
	int slot = c->received % nrecv;

	if (drain(c, 0, c->received + 1, TIMEOUT)) fail("no Send from the peer");
	if (c->received_len[slot] != total || memcmp(c->recv + (size_t)slot * recv_len, file, total)) fail("the Send differs");
	post_recv(c, slot);
	free(file);
}

static int ends_within(struct conn *c, int ms)
{
	long deadline = now_ms() + ms;

	while (!c->ended && now_ms() < deadline) next_event(c, 10, NULL, NULL);
	return c->ended;
}

static void await_end(struct conn *c, int ms)
{
	if (!ends_within(c, ms)) fail("the peer does not end the connection");
	printf("the peer has ended the connection\n");
}

static void one_op(struct conn *c, char *op)
{
	char *arg = strchr(op, ':');
	long n = arg ? atol(arg + 1) : 64;
	int past, bad;

	if (arg) *arg++ = 0;
#define IS(name) (!strcmp(op, name))
	if (IS("region")) {
		for (c->region = c->regions; c->region < c->regions + c->nregions; c->region++)
			if (!strcmp(c->region->name, arg)) return;
		fail("the peer does not advertise this region");
	}
	if (IS("write") || IS("read")) return move_file(c, arg, IS("write"));
	if (IS("echo")) return echo_once(c, n);
	if (IS("recv")) return receive_file(c, arg);
	if (IS("ended")) return await_end(c, n);
	if (IS("open")) {
		next_event(c, n, NULL, NULL);
		if (c->ended) fail("the peer has ended the connection");
		return;
	}
	past = IS("pastput") || IS("pastget");
	bad = IS("badput") || IS("badget");
	if (IS("send") || IS("sendse")) {
		post(c, IBV_WR_SEND, 0, n, 0, 0, IS("sendse") ? IBV_SEND_SOLICITED : 0);
		return done(c, 1, "Send");
	}
	/* A Send that the peer must refuse completes before the refusal or is flushed. */
	if (IS("trysend") || IS("trysendinv")) {
		int inv = IS("trysendinv");

		post(c, inv ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND, 0, n, 0, inv ? region_of(c)->stag : 0, 0);
		drain(c, 1, 0, TIMEOUT);
		return;
	}
	if (IS("gets")) {
		for (int i = 0; i < n; i++)
			post(c, IBV_WR_RDMA_READ, (size_t)i * SLOT, SLOT, region_of(c)->base, c->region->stag, 0);
		drain(c, n, 0, TIMEOUT);
		return;
	}
	if (IS("put") || IS("get") || past || bad) {
		struct region *r = region_of(c);
		int get = IS("get") || IS("pastget") || IS("badget");
		uint64_t to = past ? r->base + r->len - n / 2 : r->base;

		post(c, get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 0, n, to, bad ? r->stag ^ 0x5a5a5a00 : r->stag, 0);
		/* A Write is complete once TCP has accepted it; an invalid Read is flushed when the peer ends the connection. */
		drain(c, 1, 0, TIMEOUT);
		return;
	}
	printf("%s: ", op);
	errno = EINVAL;
	fail("no such operation");
}

/* Resource limits of a process allow few connections, so each process has eight. */
#define EACH 8

static void some_connections(const char *host, int port, int first, int n, int *connected)
{
	struct conn conns[EACH];
	unsigned char pattern;

	for (int i = 0; i < n; i++) open_conn(&conns[i], host, port, 2 * SLOT);
	__sync_fetch_and_add(connected, n);
	while (__sync_fetch_and_add(connected, 0) < count) usleep(1000);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < n; i++) {
			struct region *r = region_of(&conns[i]);
			uint64_t to = r->base + (uint64_t)(first + i) * SLOT;

			memset(conns[i].buffer, 1 + first + i + round * 40, SLOT);
			post(&conns[i], IBV_WR_RDMA_WRITE, 0, SLOT, to, r->stag, 0);
			post(&conns[i], IBV_WR_RDMA_READ, SLOT, SLOT, to, r->stag, 0);
		}
		for (int i = 0; i < n; i++) {
			done(&conns[i], 2, "Write and Read");
			pattern = 1 + first + i + round * 40;
			for (unsigned at = 0; at < SLOT; at++)
				if ((unsigned char)conns[i].buffer[SLOT + at] != pattern) fail("a slot differs");
		}
	}
	for (int i = 0; i < n; i++) close_conn(&conns[i]);
}

static void many(const char *host, int port)
{
	int *connected = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status, bad = 0;

	if (connected == MAP_FAILED) fail("mmap");
	for (int first = 0; first < count; first += EACH)
		if (fork() == 0) {
			some_connections(host, port, first, count - first < EACH ? count - first : EACH, connected);
			exit(0);
		}
	while (wait(&status) > 0) bad |= status;
	if (bad) fail("a process of the connections failed");
	printf("%d connections wrote and read their slots\n", *connected);
}

static void cycle(const char *host, int port)
{
	struct conn c;

	for (int i = 0; i < count; i++) {
		open_conn(&c, host, port, SLOT);
		if (i % 10 == 0 && c.nregions) {
			post(&c, IBV_WR_RDMA_WRITE, 0, 64, c.region->base, c.region->stag, 0);
			done(&c, 1, "Write");
		}
		close_conn(&c);
	}
	printf("connected and disconnected %d times\n", count);
}

/* The server */

static int advertise(struct conn *c, unsigned char *p)
{
	uint32_t stag = htonl(c->mr->rkey);
	uint64_t base = htobe64((uintptr_t)c->buffer), len = htobe64(c->size);

	memcpy(p, "DDPA\1\0\0\1", 8);
	memcpy(p + 8, &stag, 4);
	memcpy(p + 12, "\3\5\0\0", 4); /* writes and reads; 5 bytes of name */
	memcpy(p + 16, &base, 8);
	memcpy(p + 24, &len, 8);
	memcpy(p + 32, "inbox", 5);
	return 37;
}

/*
 * Sends the slot's message back. If the peer closes immediately after the answer, siw may complete the Send with a
 * local QP operation error although TCP has sent all of it (docs/interop.md). The peer checks its arrival; here an
 * error is a failure only if the connection continues. Returns whether siw completes the Send without an error.
 */
static int echo_back(struct conn *c, int slot, uint32_t n)
{
	int status;

	memcpy(c->buffer, c->recv + (size_t)slot * recv_len, n);
	if ((errno = try_post(c, IBV_WR_SEND, 0, n, 0, 0, 0))) status = IBV_WC_WR_FLUSH_ERR;
	else status = drain(c, 1, 0, TIMEOUT);
	if (!status) return 1;
	printf("echo: %s\n", status < 0 ? "no completion" : ibv_wc_status_str(status));
	errno = 0;
	if (!ends_within(c, TIMEOUT)) fail("echo, and the connection continues");
	return 0;
}

/* Returns the number of Sends that siw completes with an error. */
static int serve_one(struct conn *c)
{
	struct rdma_conn_param param = { .responder_resources = ird, .initiator_depth = ord };
	unsigned char private[64];
	int echoed = 0, failed = 0;

	if (reject) {
		if (rdma_reject(c->id, reject, strlen(reject))) fail("rdma_reject");
		rdma_destroy_id(c->id);
		printf("rejected\n");
		return 0;
	}
	make_qp(c, BUFFER);
	if (fill) read_file(fill, c->buffer, BUFFER);
	param.private_data = private;
	param.private_data_len = advertise(c, private);
	if (rdma_accept(c->id, &param)) fail("rdma_accept");
	while (!c->ended) {
		next_event(c, 5, NULL, NULL);
		if (drain(c, 0, echoed + 1, 0)) continue;
		for (; echoed < c->received && !c->ended; echoed++) {
			int slot = echoed % nrecv;
			uint32_t n = c->received_len[slot];

			printf("received a Send of %u bytes\n", n);
			if (echo && !echo_back(c, slot, n)) failed++;
			else post_recv(c, slot);
		}
	}
	if (dump) {
		FILE *f = fopen(dump, "wb");
		if (!f || fwrite(c->buffer, 1, c->size, f) != c->size || fclose(f)) fail(dump);
	}
	rdma_disconnect(c->id);
	free_qp(c);
	printf("served\n");
	return failed;
}

static void tell_to_end(int signal)
{
	(void)signal;
	told_to_end = 1;
}

static void serve(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct rdma_cm_id *listener;
	int served = 0, failed = 0;
	struct conn c;

	memset(&c, 0, sizeof(c));
	signal(SIGTERM, tell_to_end);
	c.channel = rdma_create_event_channel();
	if (!c.channel || rdma_create_id(c.channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (void *)&a) || rdma_listen(listener, 4))
		fail("listen");
	printf("listening\n");
	for (; count == 0 || served < count; served++) {
		struct conn next;

		while (c.nrequests == 0 && !told_to_end) next_event(&c, 100, NULL, NULL);
		if (c.nrequests == 0) break;
		c.id = c.requests[0];
		failed += serve_one(&c);
		next = (struct conn){ .channel = c.channel, .nrequests = c.nrequests - 1 };
		memcpy(next.requests, c.requests + 1, next.nrequests * sizeof(*c.requests));
		c = next;
	}
	printf("%d connections, %d Sends reported as failed by siw\n", served, failed);
}

static int key(char *word)
{
	static const struct { const char *name; int *value; } keys[] = {
		{ "ird=", &ird }, { "ord=", &ord }, { "recv=", &nrecv }, { "len=", &recv_len }, { "count=", &count },
		{ "echo=", &echo } };

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (!strncmp(word, keys[i].name, strlen(keys[i].name)))
			return *keys[i].value = atoi(word + strlen(keys[i].name)), 1;
	if (!strncmp(word, "fill=", 5)) return fill = word + 5, 1;
	if (!strncmp(word, "dump=", 5)) return dump = word + 5, 1;
	if (!strncmp(word, "reject=", 7)) return reject = word + 7, 1;
	return 0;
}

/* The kernel decapsulates ESP in UDP only at ports of sockets with UDP_ENCAP, which IKE daemons set. */
static int encap(int port)
{
	int kind = UDP_ENCAP_ESPINUDP, one = 1;
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct { int family; struct sockaddr *at; socklen_t len; } all[] = {
		{ AF_INET, (struct sockaddr *)&v4, sizeof v4 }, { AF_INET6, (struct sockaddr *)&v6, sizeof v6 },
	};

	for (int i = 0; i < 2; i++) {
		int fd = socket(all[i].family, SOCK_DGRAM, 0);
		/* A guest may have no IPv6. */
		if (fd < 0 && i) break;
		if (i) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
		if (fd < 0 || bind(fd, all[i].at, all[i].len) || setsockopt(fd, IPPROTO_UDP, UDP_ENCAP, &kind, sizeof kind))
			return perror("encap"), 1;
	}
	printf("listening\n");
	for (;;) pause();
}

int main(int argc, char **argv)
{
	char *rest[argc];
	int n = 0;
	struct conn c;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++)
		if (!key(argv[i])) rest[n++] = argv[i];
	if (nrecv > MAX_RECV) nrecv = MAX_RECV;
	if (n == 2 && !strcmp(rest[0], "serve")) return serve(atoi(rest[1])), 0;
	if (n == 2 && !strcmp(rest[0], "encap")) return encap(atoi(rest[1]));
	if (n < 4) return fprintf(stderr, "siwverbs client|many|cycle ADDRESS PORT ... | serve PORT ...\n"), 2;
	if (strcmp(rest[0], "client")) {
		count = atoi(rest[3]);
		return !strcmp(rest[0], "many") ? many(rest[1], atoi(rest[2])) : cycle(rest[1], atoi(rest[2])), 0;
	}
	open_conn(&c, rest[1], atoi(rest[2]), BUFFER);
	for (int i = 3; i < n; i++) {
		one_op(&c, rest[i]);
		printf("%s: done\n", rest[i]);
	}
	close_conn(&c);
	return 0;
}

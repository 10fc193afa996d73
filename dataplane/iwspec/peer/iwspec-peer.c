/*
 * The program on the tested device for iwspec --service peer. It uses any RDMA device of its host that speaks iWARP.
 *
 *   iwspec-peer serve PORT              accepts connections, MAX_CONNS at a time
 *   iwspec-peer connect ADDRESS PORT    opens one connection after another
 *
 *   cc -O2 -o iwspec-peer iwspec-peer.c -lrdmacm -libverbs -lpthread
 *
 * Each connection has RECEIVES posted receives of RECEIVE bytes, answers each Send with a Send of the same bytes, and posts the
 * receive again. It registers the regions of the table below for itself, so that the peer can invalidate an STag. The regions
 * keep their bytes from one connection to the next.
 *
 * The private data are the advertisement of docs/protocol.md §2, followed by RECEIVE and RECEIVES (32 bits each, big endian).
 * The client first sends an RDMA Write of no bytes, because a responder must not send before the initiator's first FPDU.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECEIVES 8
#define RECEIVE 4096u
#define DEPTH 16
#define MAX_CONNS 16
#define RESOLVE_MS 5000
/* Pause of a client between two attempts, microseconds. */
#define PAUSE 20000

enum { MAY_WRITE = 1, MAY_READ = 2, MAY_ATOMIC = 4 };

static struct region {
	const char *name;
	uint8_t access;
	uint32_t size;
	char *bytes;
} regions[] = {
	{ "box", MAY_WRITE | MAY_READ, 65536, NULL },
	{ "source", MAY_READ, 16384, NULL },
	{ "inbox", MAY_WRITE, 16384, NULL },
	{ "own", MAY_WRITE | MAY_READ, 4096, NULL },
	{ "counter", MAY_WRITE | MAY_READ | MAY_ATOMIC, 4096, NULL },
};
#define REGIONS (sizeof(regions) / sizeof(*regions))

struct conn {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *completions;
	struct ibv_cq *cq;
	struct ibv_mr *mrs[REGIONS], *buffer_mr;
	/* Buffers of RECEIVES receives, then of RECEIVES answers. */
	char *buffer;
	int ended;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int conns;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Reports an error of one connection. The program continues. */
static int bad(const char *what)
{
	perror(what);
	return -1;
}

static char *pages(size_t size)
{
	char *p = aligned_alloc(4096, size);

	if (!p) die("memory");
	return memset(p, 0, size);
}

static int has_atomics(struct ibv_context *device)
{
	struct ibv_device_attr a;

	return !ibv_query_device(device, &a) && a.atomic_cap != IBV_ATOMIC_NONE;
}

static int register_all(struct conn *c)
{
	for (size_t i = 0; i < REGIONS; i++) {
		struct region *r = &regions[i];
		int access = IBV_ACCESS_LOCAL_WRITE;

		if (r->access & MAY_ATOMIC && !has_atomics(c->id->verbs)) continue;
		if (r->access & MAY_WRITE) access |= IBV_ACCESS_REMOTE_WRITE;
		if (r->access & MAY_READ) access |= IBV_ACCESS_REMOTE_READ;
		if (r->access & MAY_ATOMIC) access |= IBV_ACCESS_REMOTE_ATOMIC;
		if (!(c->mrs[i] = ibv_reg_mr(c->pd, r->bytes, r->size, access))) return bad("ibv_reg_mr");
	}
	c->buffer = pages(2 * RECEIVES * RECEIVE);
	c->buffer_mr = ibv_reg_mr(c->pd, c->buffer, 2 * RECEIVES * RECEIVE, IBV_ACCESS_LOCAL_WRITE);
	return c->buffer_mr ? 0 : bad("ibv_reg_mr");
}

static int post_receive(struct conn *c, uint64_t n)
{
	struct ibv_sge s = { (uintptr_t)c->buffer + n * RECEIVE, RECEIVE, c->buffer_mr->lkey };
	struct ibv_recv_wr w = { .wr_id = n, .sg_list = &s, .num_sge = 1 }, *failed;

	return ibv_post_recv(c->id->qp, &w, &failed);
}

static int post_send(struct conn *c, uint64_t n, uint32_t length)
{
	struct ibv_sge s = { (uintptr_t)c->buffer + (RECEIVES + n) * RECEIVE, length, c->buffer_mr->lkey };
	struct ibv_send_wr w = { .wr_id = RECEIVES + n, .opcode = IBV_WR_SEND, .sg_list = &s, .num_sge = 1,
				 .send_flags = IBV_SEND_SIGNALED }, *failed;

	return ibv_post_send(c->id->qp, &w, &failed);
}

/* Posts an RDMA Write of no bytes. */
static int greet(struct conn *c)
{
	struct ibv_send_wr w = { .wr_id = 2 * RECEIVES, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *failed;

	return ibv_post_send(c->id->qp, &w, &failed);
}

/* Creates the queue pair with its memory and receives. After a failure, `close_conn` frees the objects created so far. */
static int open_conn(struct conn *c)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 2 * RECEIVES, .max_recv_wr = RECEIVES,
		.max_send_sge = 1, .max_recv_sge = 1 } };

	if (!(c->pd = ibv_alloc_pd(c->id->verbs))) return bad("ibv_alloc_pd");
	if (!(c->completions = ibv_create_comp_channel(c->id->verbs))) return bad("ibv_create_comp_channel");
	if (!(c->cq = ibv_create_cq(c->id->verbs, 4 * RECEIVES, NULL, c->completions, 0))) return bad("ibv_create_cq");
	if (register_all(c)) return -1;
	a.send_cq = a.recv_cq = c->cq;
	if (rdma_create_qp(c->id, c->pd, &a)) return bad("rdma_create_qp");
	for (uint64_t i = 0; i < RECEIVES; i++)
		if (post_receive(c, i)) return bad("ibv_post_recv");
	return ibv_req_notify_cq(c->cq, 0) ? bad("ibv_req_notify_cq") : 0;
}

static void close_conn(struct conn *c)
{
	if (c->id && c->id->qp) rdma_destroy_qp(c->id);
	for (size_t i = 0; i < REGIONS; i++)
		/* Also deregisters a region whose STag is invalidated. */
		if (c->mrs[i]) ibv_dereg_mr(c->mrs[i]);
	if (c->buffer_mr) ibv_dereg_mr(c->buffer_mr);
	if (c->cq) ibv_destroy_cq(c->cq);
	if (c->completions) ibv_destroy_comp_channel(c->completions);
	if (c->pd) ibv_dealloc_pd(c->pd);
	if (c->id) rdma_destroy_id(c->id);
	if (c->channel) rdma_destroy_event_channel(c->channel);
	free(c->buffer);
}

static void put(char **at, uint64_t value, int bytes)
{
	while (bytes-- > 0) *(*at)++ = (char)(value >> (8 * bytes));
}

/* Writes the private data to `data`. Returns their length. */
static int advertise(struct conn *c, char *data)
{
	char *at = data;
	int count = 0;

	for (size_t i = 0; i < REGIONS; i++) count += c->mrs[i] != NULL;
	memcpy(at, "DDPA\1\2", 6);
	at += 6;
	put(&at, count, 2);
	for (size_t i = 0; i < REGIONS; i++) {
		struct region *r = &regions[i];
		size_t n = strlen(r->name);

		if (!c->mrs[i]) continue;
		put(&at, c->mrs[i]->rkey, 4);
		put(&at, r->access, 1);
		put(&at, n, 1);
		put(&at, 0, 2);
		put(&at, (uintptr_t)r->bytes, 8);
		put(&at, r->size, 8);
		memcpy(at, r->name, n);
		at += n;
	}
	put(&at, RECEIVE, 4);
	put(&at, RECEIVES, 4);
	return at - data;
}

/* Handles all completions: answers Sends and posts their receives again. */
static int complete(struct conn *c)
{
	struct ibv_wc w;
	int n;

	while ((n = ibv_poll_cq(c->cq, 1, &w)) > 0) {
		if (w.status) return -1;
		if (w.wr_id >= RECEIVES) continue;
		memcpy(c->buffer + (RECEIVES + w.wr_id) * RECEIVE, c->buffer + w.wr_id * RECEIVE, w.byte_len);
		/* Posts the receive before the answer, after which the peer may send again. */
		if (post_receive(c, w.wr_id) || post_send(c, w.wr_id, w.byte_len)) return -1;
	}
	return n;
}

/* Waits for the next event of the connection manager. */
static int next_event(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
	struct rdma_cm_event *e;
	int type;

	if (rdma_get_cm_event(channel, &e)) return -1;
	type = e->event;
	if (id) *id = e->id;
	rdma_ack_cm_event(e);
	return type;
}

/* Serves the connection until the peer ends it. */
static void serve_conn(struct conn *c)
{
	struct pollfd fds[] = { { .fd = c->channel->fd, .events = POLLIN }, { .fd = c->completions->fd, .events = POLLIN } };
	int type;

	while (!c->ended && poll(fds, 2, -1) > 0) {
		if (fds[1].revents) {
			struct ibv_cq *cq;
			void *context;

			if (ibv_get_cq_event(c->completions, &cq, &context)) break;
			ibv_ack_cq_events(cq, 1);
			if (ibv_req_notify_cq(cq, 0)) break;
			/* Ignores errors: an error of the stream causes a disconnect event, which ends the loop. */
			complete(c);
		}
		if (!fds[0].revents) continue;
		type = next_event(c->channel, NULL);
		c->ended = type != RDMA_CM_EVENT_ESTABLISHED;
	}
	rdma_disconnect(c->id);
}

static void *accepted(void *argument)
{
	struct rdma_conn_param param = { .responder_resources = DEPTH, .initiator_depth = DEPTH };
	struct conn c = { .id = argument };
	char data[256];

	c.channel = rdma_create_event_channel();
	if (c.channel && !rdma_migrate_id(c.id, c.channel) && !open_conn(&c)) {
		param.private_data = data;
		param.private_data_len = advertise(&c, data);
		if (!rdma_accept(c.id, &param)) serve_conn(&c);
	}
	close_conn(&c);
	pthread_mutex_lock(&lock);
	conns--;
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* Returns true, and counts the connection, if there is room for it. */
static int admit(void)
{
	int room;

	pthread_mutex_lock(&lock);
	room = conns < MAX_CONNS;
	conns += room;
	pthread_mutex_unlock(&lock);
	return room;
}

static void serve(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener, *id;

	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP)) die("rdma_create_id");
	if (rdma_bind_addr(listener, (void *)&a) || rdma_listen(listener, MAX_CONNS)) die("rdma_listen");
	printf("listening\n");
	for (;;) {
		pthread_t thread;

		if (next_event(channel, &id) != RDMA_CM_EVENT_CONNECT_REQUEST) continue;
		if (!admit()) {
			rdma_reject(id, NULL, 0);
			rdma_destroy_id(id);
		} else if (pthread_create(&thread, NULL, accepted, id)) {
			die("pthread_create");
		} else {
			pthread_detach(thread);
		}
	}
}

/* Opens one connection and serves it. */
static int connect_once(struct conn *c, struct sockaddr_in *to)
{
	struct rdma_conn_param param = { .responder_resources = DEPTH, .initiator_depth = DEPTH };
	char data[256];

	if (!(c->channel = rdma_create_event_channel())) return bad("rdma_create_event_channel");
	if (rdma_create_id(c->channel, &c->id, NULL, RDMA_PS_TCP)) return bad("rdma_create_id");
	if (rdma_resolve_addr(c->id, NULL, (void *)to, RESOLVE_MS)) return -1;
	if (next_event(c->channel, NULL) != RDMA_CM_EVENT_ADDR_RESOLVED) return -1;
	if (rdma_resolve_route(c->id, RESOLVE_MS)) return -1;
	if (next_event(c->channel, NULL) != RDMA_CM_EVENT_ROUTE_RESOLVED) return -1;
	if (open_conn(c)) return -1;
	param.private_data = data;
	param.private_data_len = advertise(c, data);
	if (rdma_connect(c->id, &param)) return -1;
	if (next_event(c->channel, NULL) != RDMA_CM_EVENT_ESTABLISHED) return -1;
	if (greet(c)) return -1;
	serve_conn(c);
	return 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < REGIONS; i++) regions[i].bytes = pages(regions[i].size);
	if (argc == 3 && !strcmp(argv[1], "serve")) serve(atoi(argv[2]));
	if (argc != 4 || strcmp(argv[1], "connect") || inet_pton(AF_INET, argv[2], &to.sin_addr) != 1)
		return fprintf(stderr, "iwspec-peer serve PORT | connect ADDRESS PORT\n"), 2;
	to.sin_port = htons(atoi(argv[3]));
	for (;;) {
		struct conn c = { 0 };

		connect_once(&c, &to);
		close_conn(&c);
		usleep(PAUSE);
	}
}

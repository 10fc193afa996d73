/*
 * A peer for DDP over SCTP (RFC 5043) on another SCTP stack: Linux's or usrsctp. For scripts/interop sctp.
 *
 *   sctp-peer [KEY=VALUE]... connect ADDRESS PORT OP...   opens an association and runs the operations in order
 *   sctp-peer [KEY=VALUE]... serve ADDRESS PORT           accepts sessions, with region "inbox" as private data
 *
 * Keys: indication=N or none (1), streams=N (16), encapsulation=PORT (RFC 6951), from=ADDRESS and port=N (local address
 * and port of a client), size=N (length of the inbox, 4 MiB), segment=N (length of the largest message sent; a message
 * longer than a packet is fragmented), message=N (length of a tagged message, 20000), rdmap=1 (RDMAP, RFC 5040),
 * echo=1, fill=FILE (contents of the inbox), trust=1 (also accepts a peer without the indication);
 * only for a server: count=N (number of associations, 1), dump=FILE (writes the inbox after each association),
 * reject=TEXT, text=TEXT (replaces the advertisement), after=N then=shutdown, abort or vanish (once N bytes are
 * placed).
 *
 * Operations; a failed one ends the program with status 1. S is a stream:
 *   open:S[:TEXT]    opens a session                 refused:S:reject  refused:S:terminate  refused:S:end
 *   write:FILE:REGION   writes the file, with its messages alternating over all open sessions
 *   read:S:FILE:REGION  (RDMAP) reads the region's first bytes, which must be the file
 *   echo:S:N         sends an untagged message of N bytes and waits for its echo
 *   send:S:N         sends an untagged message of N bytes
 *   close:S          sends a Terminate and waits for the peer's     closed:S   waits for the peer's Terminate first
 *   pastwrite:S:REGION  writes beyond the region; expects the last message (DDP) or a Terminate (RDMAP)
 *   raw:S:PPID:HEX   sends a message unchanged          ordered:S:PPID:HEX   the same, ordered
 *   shutdown abort   ends the association               vanish   ends the program without notifying the peer
 *   ended:HOW        waits for the peer's end: shut, aborted, lost   open?    fails if the association has ended
 */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT 60000

static struct llp_options options = { .indication = 1, .streams = 16 };
static size_t inbox_length = 4u << 20, message_length = 20000, segment_length;
static uint64_t after;
static int count = 1, echo, rdmap, trust;
static const char *dump, *fill, *reject, *text, *then = "";

static uint8_t *file_of(const char *path, size_t *length)
{
	FILE *f = fopen(path, "rb");
	uint8_t *data;

	if (!f || fseek(f, 0, SEEK_END)) fail("%s", path);
	*length = ftell(f);
	rewind(f);
	data = malloc(*length + 1);
	if (!data || fread(data, 1, *length, f) != *length) fail("%s", path);
	fclose(f);
	return data;
}

static void write_dump(const struct peer *p)
{
	char part[4096];
	FILE *f;

	if (!dump) return;
	snprintf(part, sizeof part, "%s.part", dump);
	f = fopen(part, "wb");
	if (!f || fwrite(p->inbox, 1, p->inbox_length, f) != p->inbox_length || fclose(f) || rename(part, dump)) fail("%s", dump);
}

static struct peer *new_peer(struct llp *llp)
{
	struct peer *p = peer_make(llp, options.streams, inbox_length);

	p->echo = echo;
	p->rdmap = rdmap;
	p->reject = reject;
	p->text = text;
	p->segment = segment_length;
	if (fill) {
		size_t length;
		uint8_t *data = file_of(fill, &length);

		memcpy(p->inbox, data, length < inbox_length ? length : inbox_length);
		free(data);
	}
	return p;
}

/* Handles events until the condition holds. Fails after a time-out, or if the association ends. */
#define until(p, condition, what) do { \
	long give_up = now_ms() + TIMEOUT; \
	while (!(condition)) { \
		if ((p)->end) fail("%s: the association has ended", what); \
		if (now_ms() > give_up) fail("%s: nothing came", what); \
		peer_turn(p, 100); \
	} \
} while (0)

/* --- operations of a client --- */

static struct region *region_of(struct session *s, const char *name)
{
	for (int i = 0; i < s->regions_length; i++)
		if (!strcmp(s->regions[i].name, name)) return &s->regions[i];
	fail("no region %s is advertised", name);
}

static void op_open(struct peer *p, int stream, const char *private)
{
	struct session *s;

	if (p->streams > llp_streams(p->llp)) p->streams = llp_streams(p->llp);
	session_initiate(p, stream, private, strlen(private));
	s = session_of(p, stream);
	until(p, s->state != ASKED, "open");
	if (s->state != OPEN) fail("the session was refused");
}

static void op_refused(struct peer *p, int stream, const char *how)
{
	long give_up = now_ms() + TIMEOUT;
	struct session *s = session_of(p, stream);

	session_initiate(p, stream, "", 0);
	while (s->state == ASKED && !p->end && now_ms() < give_up) peer_turn(p, 100);
	if (!strcmp(how, "reject") && s->state != REJECTED) fail("no Reject");
	if (!strcmp(how, "terminate") && !s->peer_ended) fail("no Terminate");
	if (!strcmp(how, "end") && !p->end) fail("the association did not end");
	if (s->state == OPEN) fail("the session was accepted");
}

static void op_write(struct peer *p, const char *path, const char *name)
{
	int streams[STREAMS_MAX], n = 0, turn = 0;
	size_t length, at = 0;
	uint8_t *data = file_of(path, &length);

	for (int i = 0; i < p->streams; i++)
		if (p->sessions[i] && p->sessions[i]->state == OPEN) streams[n++] = i;
	if (!n) fail("no session is open");
	while (at < length) {
		int stream = streams[turn++ % n];
		struct region *r = region_of(session_of(p, stream), name);
		size_t part = length - at < message_length ? length - at : message_length;

		if (r->length < length) fail("the region is too short");
		send_tagged(p, stream, OP_WRITE, r->stag, r->base + at, data + at, part);
		flush(p);
		if (p->end) fail("write: the association has ended");
		at += part;
	}
	printf("wrote %zu bytes over %d streams\n", length, n);
	free(data);
}

static void op_read(struct peer *p, int stream, const char *path, const char *name)
{
	struct session *s = session_of(p, stream);
	struct region *r = region_of(s, name);
	size_t length, at = 0;
	uint8_t *data = file_of(path, &length), request[28];

	if (length > p->inbox_length) fail("the inbox is too small");
	while (at < length) {
		size_t part = length - at < message_length * 4 ? length - at : message_length * 4;
		uint64_t done = s->responses_done;

		put32(request, SINK_STAG);
		put64(request + 4, at);
		put32(request + 12, part);
		put32(request + 16, r->stag);
		put64(request + 20, r->base + at);
		send_untagged(p, stream, OP_READ_REQUEST, 1, request, sizeof request);
		until(p, s->responses_done > done, "read");
		at += part;
	}
	if (memcmp(data, p->inbox, length)) fail("read: other bytes");
	printf("read %zu bytes\n", length);
	free(data);
}

static void op_echo(struct peer *p, int stream, size_t length, int comes_back)
{
	struct session *s = session_of(p, stream);
	static uint8_t data[UNTAGGED_MAX];
	unsigned before = s->answers;

	if (length > sizeof data) fail("%zu bytes are too many", length);
	for (size_t i = 0; i < length; i++) data[i] = i * 7 + i / 251 + stream;
	send_untagged(p, stream, OP_SEND, 0, data, length);
	flush(p);
	if (!comes_back) return;
	until(p, s->answers > before, "echo");
	if (s->answer_length != length || memcmp(s->answer, data, length)) fail("echo: other bytes");
	printf("%zu bytes came back\n", length);
}

static void op_close(struct peer *p, int stream)
{
	struct session *s = session_of(p, stream);
	long give_up = now_ms() + 5000;

	session_terminate(p, stream);
	flush(p);
	while (!s->peer_ended && !p->end && now_ms() < give_up) peer_turn(p, 100);
	s->state = ENDED;
	printf("stream %d: closed %s\n", stream, s->peer_ended ? "by both" : "by us");
}

static void op_pastwrite(struct peer *p, int stream, const char *name)
{
	struct session *s = session_of(p, stream);
	struct region *r = region_of(s, name);

	send_tagged(p, stream, OP_WRITE, r->stag, r->base + r->length - 1, (const uint8_t *)"xy", 2);
	flush(p);
	until(p, s->last_message_length, "pastwrite");
	until(p, s->peer_ended, "pastwrite");
}

static void op_raw(struct peer *p, int stream, int ppid, const char *hex, int unordered)
{
	uint8_t data[1024];
	size_t n = 0;

	for (unsigned v; n < sizeof data && sscanf(hex, "%2x", &v) == 1; hex += 2) data[n++] = v;
	if (unordered) send_raw(p, stream, ppid, data, n);
	else if (llp_send(p->llp, stream, ppid, 0, data, n) != 1) fail("ordered");
}

static void op_ended(struct peer *p, const char *how)
{
	static const struct { const char *name; enum llp_kind kind; } kinds[] = { { "shut", LLP_SHUT }, { "aborted", LLP_ABORTED }, { "lost", LLP_LOST } };
	long give_up = now_ms() + TIMEOUT;

	while (!p->end && now_ms() < give_up) peer_turn(p, 100);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(how, kinds[i].name) && p->end == kinds[i].kind) return;
	fail("the association is not %s", how);
}

static void op_end(struct peer *p, const char *how)
{
	if (!strcmp(how, "vanish")) {
		printf("vanishes\n");
		fflush(stdout);
		llp_vanish(p->llp);
	}
	if (!strcmp(how, "abort")) {
		llp_close(p->llp, 1);
		p->llp = NULL;
		p->end = LLP_ABORTED;
		return;
	}
	flush(p);
	llp_shutdown(p->llp);
	op_ended(p, "shut");
}

static void operation(struct peer *p, char *word)
{
	char *part[4] = { "", "", "", "" }, whole[256];
	int n = 0;

	snprintf(whole, sizeof whole, "%s", word);
	for (char *at = word; n < 4; n++) {
		part[n] = at;
		at = n < 3 ? strchr(at, ':') : NULL;
		if (!at) break;
		*at++ = 0;
	}
	if (!strcmp(part[0], "open")) op_open(p, atoi(part[1]), part[2]);
	else if (!strcmp(part[0], "refused")) op_refused(p, atoi(part[1]), part[2]);
	else if (!strcmp(part[0], "write")) op_write(p, part[1], part[2]);
	else if (!strcmp(part[0], "read")) op_read(p, atoi(part[1]), part[2], part[3]);
	else if (!strcmp(part[0], "echo")) op_echo(p, atoi(part[1]), atol(part[2]), 1);
	else if (!strcmp(part[0], "send")) op_echo(p, atoi(part[1]), atol(part[2]), 0);
	else if (!strcmp(part[0], "close")) op_close(p, atoi(part[1]));
	else if (!strcmp(part[0], "closed")) until(p, session_of(p, atoi(part[1]))->peer_ended, "closed");
	else if (!strcmp(part[0], "pastwrite")) op_pastwrite(p, atoi(part[1]), part[2]);
	else if (!strcmp(part[0], "raw")) op_raw(p, atoi(part[1]), atoi(part[2]), part[3], 1);
	else if (!strcmp(part[0], "ordered")) op_raw(p, atoi(part[1]), atoi(part[2]), part[3], 0);
	else if (!strcmp(part[0], "ended")) op_ended(p, part[1]);
	else if (!strcmp(part[0], "open?")) {
		while (peer_turn(p, 300)) ;
		if (p->end) fail("the association has ended");
	} else if (!strcmp(part[0], "shutdown") || !strcmp(part[0], "abort") || !strcmp(part[0], "vanish")) op_end(p, part[0]);
	else fail("unknown operation %s", whole);
	printf("%s: done\n", whole);
	fflush(stdout);
}

static int client(int n, char **words)
{
	struct peer *p = new_peer(llp_connect(&options));
	int bad;

	/* RFC 5043 §11.1: a peer without the adaptation indication is refused. */
	while (!p->end && p->indication < 0 && peer_turn(p, 2000)) ;
	if (!p->end && p->indication != 1 && !trust) fail("the peer has not announced DDP");
	for (int i = 0; i < n; i++) operation(p, words[i]);
	if (p->llp) llp_close(p->llp, 0);
	bad = p->wrong;
	peer_free(p);
	llp_stop();
	if (bad) fail("%d wrong things", bad);
	return 0;
}

/* --- a server --- */

static void serve_one(struct llp *listener, int number, int *bad)
{
	struct peer *p = new_peer(llp_accept(listener));
	int acted = 0;

	p->serving = 1;
	while (!p->end) {
		peer_turn(p, 200);
		if (!after || acted || p->placed < after) continue;
		acted = 1;
		if (!strcmp(then, "shutdown")) llp_shutdown(p->llp);
		else op_end(p, then);
	}
	if (p->indication != 1) {
		printf("the peer has not announced DDP\n");
		*bad += 1;
	}
	write_dump(p);
	printf("association %d: %u sessions, %u ended by the peer, %llu bytes placed\n", number, p->opened, p->ended,
	       (unsigned long long)p->placed);
	fflush(stdout);
	*bad += p->wrong;
	if (p->llp) llp_close(p->llp, 0);
	peer_free(p);
}

static int server(void)
{
	struct llp *listener = llp_listen(&options);
	int bad = 0;

	printf("listening\n");
	fflush(stdout);
	for (int i = 0; i < count; i++) serve_one(listener, i, &bad);
	llp_close(listener, 0);
	llp_stop();
	if (bad) fail("%d wrong things", bad);
	return 0;
}

static void key(const char *word, const char *value)
{
	size_t n = value - word - 1;
#define KEY(name) (n == sizeof name - 1 && !strncmp(word, name, n))
	if (KEY("indication")) options.indication = !strcmp(value, "none") ? -1 : atol(value);
	else if (KEY("streams")) options.streams = atoi(value);
	else if (KEY("encapsulation")) options.encapsulation = atoi(value);
	else if (KEY("from")) options.from = value;
	else if (KEY("port")) options.local_port = atoi(value);
	else if (KEY("size")) inbox_length = atol(value);
	else if (KEY("segment")) segment_length = atol(value);
	else if (KEY("message")) message_length = atol(value);
	else if (KEY("rdmap")) rdmap = atoi(value);
	else if (KEY("trust")) trust = atoi(value);
	else if (KEY("echo")) echo = atoi(value);
	else if (KEY("fill")) fill = value;
	else if (KEY("dump")) dump = value;
	else if (KEY("count")) count = atoi(value);
	else if (KEY("reject")) reject = value;
	else if (KEY("text")) text = value;
	else if (KEY("after")) after = atol(value);
	else if (KEY("then")) then = value;
	else fail("unknown key %s", word);
#undef KEY
}

int main(int argc, char **argv)
{
	int i = 1;

	for (const char *equals; i < argc && (equals = strchr(argv[i], '=')); i++) key(argv[i], equals + 1);
	if (argc - i < 3) fail("usage: sctp-peer [KEY=VALUE]... connect|serve ADDRESS PORT [OP]...");
	options.address = argv[i + 1];
	options.port = atoi(argv[i + 2]);
	llp_start(&options);
	if (!strcmp(argv[i], "serve")) return server();
	return client(argc - i - 3, argv + i + 3);
}

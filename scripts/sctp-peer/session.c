/* Implements session.h. */
#include "session.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAGGED_HEADER 14u
#define UNTAGGED_HEADER 18u

void put16(uint8_t *p, unsigned v) { p[0] = v >> 8; p[1] = v; }
void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16); put16(p + 2, v); }
void put64(uint8_t *p, uint64_t v) { put32(p, v >> 32); put32(p + 4, v); }
static unsigned get16(const uint8_t *p) { return p[0] << 8 | p[1]; }
uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }
uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static void *room(size_t size)
{
	void *p = calloc(1, size ? size : 1);

	if (!p) fail("memory");
	return p;
}

static void __attribute__((format(printf, 2, 3))) wrong(struct peer *p, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	printf("WRONG: ");
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	p->wrong++;
}

struct peer *peer_make(struct llp *llp, int streams, size_t inbox_length)
{
	struct peer *p = room(sizeof *p);

	p->llp = llp;
	p->streams = streams < STREAMS_MAX ? streams : STREAMS_MAX;
	p->inbox_length = inbox_length;
	p->inbox = room(inbox_length);
	p->indication = -1;
	p->last = &p->first;
	return p;
}

void peer_free(struct peer *p)
{
	for (int i = 0; i < STREAMS_MAX; i++) {
		if (!p->sessions[i]) continue;
		for (int k = 0; k < HELD; k++) free(p->sessions[i]->held[k].data);
		free(p->sessions[i]);
	}
	for (struct waiting *w = p->first, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	free(p->inbox);
	free(p);
}

/* Resets the state for the stream's next session, which begins with DDP-SSN 0 (RFC 5043 §6.1). */
static void begin(struct session *s)
{
	for (int k = 0; k < HELD; k++) free(s->held[k].data);
	memset(s, 0, sizeof *s);
	s->msn_tx[0] = s->msn_tx[1] = s->msn_tx[2] = 1;
}

struct session *session_of(struct peer *p, int stream)
{
	if (stream < 0 || stream >= p->streams) fail("stream %d does not exist", stream);
	if (!p->sessions[stream]) begin(p->sessions[stream] = room(sizeof **p->sessions));
	return p->sessions[stream];
}

/* --- sending --- */

static void queue(struct peer *p, int stream, uint32_t ppid, const void *data, size_t length)
{
	struct waiting *w = room(sizeof *w + length);

	w->stream = stream;
	w->ppid = ppid;
	w->length = length;
	memcpy(w->data, data, length);
	*p->last = w;
	p->last = &w->next;
}

/* Sends waiting messages. Returns 1 if none is left. */
static int send_waiting(struct peer *p)
{
	while (p->first) {
		struct waiting *w = p->first;
		int sent;

		/* RFC 5043 §6.6: no segment may overtake the Accept. */
		if (w->ppid == PPID_SEGMENT && p->sessions[w->stream] && !p->sessions[w->stream]->may_send && !p->end) return 0;
		sent = p->end ? -1 : llp_send(p->llp, w->stream, w->ppid, 1, w->data, w->length);
		if (!sent) return 0;
		p->first = w->next;
		if (!p->first) p->last = &p->first;
		free(w);
	}
	return 1;
}

void flush(struct peer *p)
{
	long until = now_ms() + 120000;

	while (!send_waiting(p)) {
		if (now_ms() > until) fail("the peer accepts no more data");
		peer_turn(p, 2);
	}
}

void send_raw(struct peer *p, int stream, uint32_t ppid, const void *data, size_t length)
{
	queue(p, stream, ppid, data, length);
	flush(p);
}

static void submit(struct peer *p, int stream, uint32_t ppid, const void *data, size_t length)
{
	uint8_t chunk[2 + MESSAGE_MAX];

	put16(chunk, session_of(p, stream)->ssn_tx++);
	memcpy(chunk + 2, data, length);
	queue(p, stream, ppid, chunk, length + 2);
}

void session_control(struct peer *p, int stream, int function, const void *private, size_t length)
{
	uint8_t message[2 + PRIVATE_MAX];

	put16(message, function);
	memcpy(message + 2, private, length);
	submit(p, stream, PPID_CONTROL, message, length + 2);
}

void session_initiate(struct peer *p, int stream, const void *private, size_t length)
{
	struct session *s = session_of(p, stream);

	if (s->state == ASKED || s->state == OPEN) fail("stream %d has a session", stream);
	begin(s);
	s->active = 1;
	s->state = ASKED;
	session_control(p, stream, INITIATE, private, length);
	flush(p);
}

void session_terminate(struct peer *p, int stream)
{
	struct session *s = session_of(p, stream);

	if (s->we_ended) return;
	s->we_ended = 1;
	session_control(p, stream, TERMINATE, "", 0);
	if (s->peer_ended) s->state = ENDED;
}

static size_t message_size(struct peer *p)
{
	size_t most = p->segment ? p->segment : llp_message_size(p->llp);

	return most < MESSAGE_MAX ? most : MESSAGE_MAX;
}

void send_tagged(struct peer *p, int stream, int opcode, uint32_t stag, uint64_t to, const uint8_t *data, size_t length)
{
	size_t most = message_size(p) - 2 - TAGGED_HEADER;
	uint8_t segment[MESSAGE_MAX];

	do {
		size_t n = length < most ? length : most;

		segment[0] = 0x80 | (n == length ? 0x40 : 0) | 1;
		segment[1] = p->rdmap ? 0x40 | opcode : 0;
		put32(segment + 2, stag);
		put64(segment + 6, to);
		memcpy(segment + TAGGED_HEADER, data, n);
		submit(p, stream, PPID_SEGMENT, segment, TAGGED_HEADER + n);
		data += n, to += n, length -= n;
	} while (length);
}

void send_untagged(struct peer *p, int stream, int opcode, int queue_number, const uint8_t *data, size_t length)
{
	size_t most = message_size(p) - 2 - UNTAGGED_HEADER;
	struct session *s = session_of(p, stream);
	uint8_t segment[MESSAGE_MAX];
	uint32_t msn = s->msn_tx[queue_number]++, offset = 0;

	do {
		size_t n = length < most ? length : most;

		segment[0] = (n == length ? 0x40 : 0) | 1;
		segment[1] = p->rdmap ? 0x40 | opcode : 0;
		put32(segment + 2, 0);
		put32(segment + 6, queue_number);
		put32(segment + 10, msn);
		put32(segment + 14, offset);
		memcpy(segment + UNTAGGED_HEADER, data, n);
		submit(p, stream, PPID_SEGMENT, segment, UNTAGGED_HEADER + n);
		data += n, offset += n, length -= n;
	} while (length);
}

/* --- private data --- */

static size_t advertisement(const struct peer *p, uint8_t *out)
{
	static const char name[] = "inbox";
	size_t n = sizeof name - 1;

	memcpy(out, "DDPA\1\0\0\1", 8);
	put32(out + 8, INBOX_STAG);
	out[12] = 3;
	out[13] = n;
	put16(out + 14, 0);
	put64(out + 16, INBOX_BASE);
	put64(out + 24, p->inbox_length);
	memcpy(out + 32, name, n);
	return 32 + n;
}

static void print_private(const struct session *s)
{
	printf("%zu bytes of private data", s->private_length);
	for (int i = 0; i < s->regions_length; i++) printf(", region %s", s->regions[i].name);
	if (!s->regions_length && s->private_length) {
		printf(": ");
		for (size_t i = 0; i < s->private_length && i < 60; i++) putchar(isprint(s->private[i]) ? s->private[i] : '.');
	}
	printf("\n");
}

static void keep_private(struct peer *p, int stream, const char *what, const uint8_t *data, size_t length)
{
	struct session *s = session_of(p, stream);
	size_t at = 8;

	if (length > PRIVATE_MAX) {
		wrong(p, "%zu bytes of private data", length);
		length = PRIVATE_MAX;
	}
	memcpy(s->private, data, length);
	s->private_length = length;
	s->regions_length = 0;
	if (length >= 8 && !memcmp(data, "DDPA\1", 5)) {
		for (unsigned left = get16(data + 6); left && s->regions_length < REGIONS_MAX; left--) {
			struct region *r = &s->regions[s->regions_length++];

			if (at + 24 > length || at + 24 + data[at + 5] > length || data[at + 5] > 64) {
				wrong(p, "an advertisement that ends within an entry");
				break;
			}
			*r = (struct region){ .stag = get32(data + at), .base = get64(data + at + 8), .length = get64(data + at + 16) };
			memcpy(r->name, data + at + 24, data[at + 5]);
			at += 24 + data[at + 5];
		}
	}
	printf("stream %d: %s, ", stream, what);
	print_private(s);
}

/* --- receiving, in the order of DDP-SSNs --- */

static void asked(struct peer *p, int stream, int function, const uint8_t *data, size_t length)
{
	struct session *s = session_of(p, stream);
	int enhanced = function == ENHANCED_INITIATE;
	uint8_t private[PRIVATE_MAX];
	size_t n = 0;

	keep_private(p, stream, enhanced ? "Enhanced Initiate" : "Initiate", data, length);
	if (enhanced) {
		/* RFC 6581 §9: the responder's IRD is the initiator's ORD, its ORD the initiator's IRD. */
		if (length < 4) return wrong(p, "Enhanced Initiate without IRD and ORD");
		memcpy(private, data + 2, 2);
		memcpy(private + 2, data, 2);
		n = 4;
	}
	if (p->reject) {
		memcpy(private + n, p->reject, strlen(p->reject));
		session_control(p, stream, enhanced ? ENHANCED_REJECT : REJECT, private, n + strlen(p->reject));
		s->state = REJECTED;
		return;
	}
	if (p->text) {
		memcpy(private + n, p->text, strlen(p->text));
		n += strlen(p->text);
	} else {
		n += advertisement(p, private + n);
	}
	session_control(p, stream, enhanced ? ENHANCED_ACCEPT : ACCEPT, private, n);
	s->state = OPEN;
	p->opened++;
}

static void control(struct peer *p, int stream, const uint8_t *data, size_t length)
{
	struct session *s = session_of(p, stream);
	unsigned function = get16(data);

	data += 2, length -= 2;
	switch (function) {
	case INITIATE:
	case ENHANCED_INITIATE:
		if (s->state != IDLE || !p->serving) return wrong(p, "Initiate in state %d", s->state);
		return asked(p, stream, function, data, length);
	case ACCEPT:
	case ENHANCED_ACCEPT:
		if (s->state != ASKED) return wrong(p, "Accept in state %d", s->state);
		if (function == ENHANCED_ACCEPT) return wrong(p, "Enhanced Accept of an ordinary Initiate");
		s->state = OPEN;
		s->may_send = 1;
		p->opened++;
		return keep_private(p, stream, "Accept", data, length);
	case REJECT:
	case ENHANCED_REJECT:
		if (s->state != ASKED) return wrong(p, "Reject in state %d", s->state);
		s->state = REJECTED;
		return keep_private(p, stream, "Reject", data, length);
	case TERMINATE:
		if (length) wrong(p, "Terminate with private data");
		if (s->peer_ended || s->state == IDLE) return wrong(p, "Terminate in state %d", s->state);
		printf("stream %d: Terminate\n", stream);
		s->peer_ended = 1;
		p->ended++;
		if (s->state == OPEN) session_terminate(p, stream);
		s->state = ENDED;
		return;
	default:
		wrong(p, "function code %u", function);
	}
}

static void tagged(struct peer *p, int stream, const uint8_t *data, size_t length)
{
	struct session *s = session_of(p, stream);
	uint32_t stag = get32(data + 2);
	uint64_t to = get64(data + 6), base = stag == SINK_STAG ? 0 : INBOX_BASE;
	size_t n = length - TAGGED_HEADER;

	if (stag != INBOX_STAG && stag != SINK_STAG) {
		if (n) wrong(p, "STag %08x", stag);
		return;
	}
	if (to < base || to - base > p->inbox_length || n > p->inbox_length - (to - base)) return wrong(p, "TO %llx", (unsigned long long)to);
	memcpy(p->inbox + (to - base), data + TAGGED_HEADER, n);
	s->placed += n;
	p->placed += n;
	if (p->rdmap && (data[1] & 15) == OP_READ_RESPONSE && data[0] & 0x40) s->responses_done++;
}

/* Answers a Read Request (RFC 5040 §4.4). */
static void read_request(struct peer *p, int stream, const uint8_t *data, size_t length)
{
	uint64_t to = length == 28 ? get64(data + 20) - INBOX_BASE : 0;
	uint32_t size = length == 28 ? get32(data + 12) : 0;

	if (length != 28 || (size && (get32(data + 16) != INBOX_STAG || to > p->inbox_length || size > p->inbox_length - to)))
		return wrong(p, "Read Request");
	send_tagged(p, stream, OP_READ_RESPONSE, get32(data), get64(data + 4), p->inbox + to, size);
}

static void untagged(struct peer *p, int stream, const uint8_t *data, size_t length)
{
	struct session *s = session_of(p, stream);
	uint32_t queue_number = get32(data + 6), offset = get32(data + 14);
	size_t n = length - UNTAGGED_HEADER;

	if (queue_number == 1 && p->rdmap) return read_request(p, stream, data + UNTAGGED_HEADER, n);
	if (queue_number == 2) {
		s->last_message_length = n < sizeof s->last_message ? n : sizeof s->last_message;
		memcpy(s->last_message, data + UNTAGGED_HEADER, s->last_message_length);
		printf("stream %d: last message", stream);
		for (size_t i = 0; i < s->last_message_length && i < 4; i++) printf(" %02x", s->last_message[i]);
		printf("\n");
		return;
	}
	if (queue_number || offset != s->untagged_length || n > UNTAGGED_MAX - offset) return wrong(p, "QN %u MO %u", queue_number, offset);
	memcpy(s->untagged + offset, data + UNTAGGED_HEADER, n);
	s->untagged_length += n;
	if (!(data[0] & 0x40)) return;
	memcpy(s->answer, s->untagged, s->untagged_length);
	s->answer_length = s->untagged_length;
	s->answers++;
	s->untagged_length = 0;
	if (p->echo) send_untagged(p, stream, OP_SEND, 0, s->answer, s->answer_length);
}

static void segment(struct peer *p, int stream, const uint8_t *data, size_t length)
{
	struct session *s = session_of(p, stream);

	if (s->state != OPEN || s->peer_ended) {
		/* After a local reject or end, late segments are not an error. */
		if (s->state == IDLE || s->peer_ended) wrong(p, "a segment in state %d", s->state);
		return;
	}
	if (length < (data[0] & 0x80 ? TAGGED_HEADER : UNTAGGED_HEADER) || (data[0] & 3) != 1) return wrong(p, "a DDP header");
	if (data[0] & 0x80) tagged(p, stream, data, length);
	else untagged(p, stream, data, length);
}

static void arrived(struct peer *p, const struct llp_event *e)
{
	struct session *s;
	struct held *h;

	if (!e->unordered) wrong(p, "an ordered message");
	if (e->length < 4 || (e->ppid != PPID_SEGMENT && e->ppid != PPID_CONTROL)) return wrong(p, "PPID %u, %zu bytes", e->ppid, e->length);
	if (e->stream >= p->streams) return wrong(p, "stream %u", e->stream);
	s = session_of(p, e->stream);
	/* An Initiate with DDP-SSN 0 begins the next session on this stream. */
	if (s->state >= REJECTED && e->ppid == PPID_CONTROL && !get16(e->data) &&
	    (get16(e->data + 2) == INITIATE || get16(e->data + 2) == ENHANCED_INITIATE)) begin(s);
	h = &s->held[get16(e->data) % HELD];
	if (h->data || (uint16_t)(get16(e->data) - s->ssn_rx) >= HELD) return wrong(p, "DDP-SSN %u, awaited %u", get16(e->data), s->ssn_rx);
	h->data = room(e->length);
	memcpy(h->data, e->data, e->length);
	h->length = e->length;
	h->ppid = e->ppid;
	while ((h = &s->held[s->ssn_rx % HELD])->data) {
		struct held now = *h;

		h->data = NULL;
		s->ssn_rx++;
		if (now.ppid == PPID_CONTROL) control(p, e->stream, now.data + 2, now.length - 2);
		else segment(p, e->stream, now.data + 2, now.length - 2);
		free(now.data);
	}
}

static const char *const ends[] = { [LLP_SHUT] = "shut down", [LLP_ABORTED] = "aborted", [LLP_LOST] = "lost" };

int peer_turn(struct peer *p, int ms)
{
	struct llp_event e = llp_event(p->llp, p->first && ms > 2 ? 2 : ms);

	switch (e.kind) {
	case LLP_NOTHING:
		break;
	case LLP_MESSAGE:
		arrived(p, &e);
		break;
	case LLP_UP:
		printf("the association is up\n");
		break;
	case LLP_INDICATION:
		p->indication = e.value;
		printf("adaptation indication %u\n", e.value);
		break;
	case LLP_DRY:
		for (int i = 0; i < p->streams; i++)
			if (p->sessions[i] && p->sessions[i]->state == OPEN) p->sessions[i]->may_send = 1;
		break;
	case LLP_SHUTTING:
		p->shutting = 1;
		printf("SHUTDOWN from the peer\n");
		break;
	case LLP_RESTARTED:
		/* The restart has ended all sessions. */
		for (int i = 0; i < p->streams; i++)
			if (p->sessions[i]) begin(p->sessions[i]);
		printf("the peer has restarted\n");
		break;
	case LLP_SHUT:
	case LLP_ABORTED:
	case LLP_LOST:
		p->end = e.kind;
		printf("the association is %s\n", ends[e.kind]);
		break;
	}
	fflush(stdout);
	send_waiting(p);
	return e.kind != LLP_NOTHING;
}

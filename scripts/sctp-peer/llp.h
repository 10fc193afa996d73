/*
 * Transport of sctp-peer: one SCTP association over Linux's sockets or over usrsctp. Local errors end the program.
 * Actions of the peer are events.
 */
#ifndef LLP_H
#define LLP_H

#include <stddef.h>
#include <stdint.h>

#define MESSAGE_MAX (256u << 10)

struct llp_options {
	const char *address;		/* local address of a server, peer's address of a client */
	const char *from;		/* local address of a client, or NULL */
	int port, local_port;		/* local_port 0: any */
	long indication;		/* adaptation code point to send; -1: none */
	int streams;			/* number of streams in each direction */
	int encapsulation;		/* UDP port of both ends (RFC 6951); 0: plain SCTP */
};

struct llp;

enum llp_kind {
	LLP_NOTHING,	/* no event within the time */
	LLP_MESSAGE,	/* a user message */
	LLP_UP,		/* the association is established */
	LLP_INDICATION,	/* the peer's adaptation code point, in value */
	LLP_DRY,	/* all sent data is acknowledged */
	LLP_SHUTTING,	/* SHUTDOWN received: the peer sends no more data */
	LLP_SHUT,	/* end by a graceful shutdown */
	LLP_ABORTED,	/* end by an ABORT */
	LLP_LOST,	/* end by a time-out, or the peer is unreachable */
	LLP_RESTARTED,	/* the peer has restarted the association */
};

struct llp_event {
	enum llp_kind kind;
	uint32_t value;
	uint16_t stream;
	uint32_t ppid;
	int unordered;
	size_t length;
	const uint8_t *data;	/* valid until the next llp_event() */
};

void llp_start(const struct llp_options *o);
struct llp *llp_connect(const struct llp_options *o);
struct llp *llp_listen(const struct llp_options *o);
struct llp *llp_accept(struct llp *listener);
/* Returns the length of the largest user message that fits a packet, bytes. */
size_t llp_message_size(struct llp *l);
int llp_streams(struct llp *l);
/* Sends a message. Returns 1 if it is queued, 0 if the send buffer is full, -1 if the association has ended. */
int llp_send(struct llp *l, uint16_t stream, uint32_t ppid, int unordered, const void *data, size_t length);
/* Waits for the next event, at most ms milliseconds. */
struct llp_event llp_event(struct llp *l, int ms);
void llp_shutdown(struct llp *l);
/* Closes the association, with an ABORT if `abort`. */
void llp_close(struct llp *l, int abort);
/* Ends the program without notifying the peer. */
void llp_vanish(struct llp *l);
/* Ends the SCTP library after it has sent all queued data. */
void llp_stop(void);

void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
long now_ms(void);

#endif

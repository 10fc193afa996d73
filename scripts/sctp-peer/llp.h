/*
 * The thin layer under sctp-peer: one SCTP association over Linux's sockets or over usrsctp. All calls that can
 * fail for a reason of the host end the program; what the peer does is an event.
 */
#ifndef LLP_H
#define LLP_H

#include <stddef.h>
#include <stdint.h>

#define MESSAGE_MAX (256u << 10)

struct llp_options {
	const char *address;		/* ours in a server, the peer's in a client */
	const char *from;		/* a client's own address, or NULL */
	int port, local_port;		/* local_port 0: any */
	long indication;		/* adaptation code point; -1: none is sent */
	int streams;			/* both ways */
	int encapsulation;		/* UDP port of both ends (RFC 6951); 0: plain SCTP */
};

struct llp;

enum llp_kind {
	LLP_NOTHING,	/* nothing came in time */
	LLP_MESSAGE,	/* a user message */
	LLP_UP,		/* the association stands */
	LLP_INDICATION,	/* the peer's adaptation code point, in value */
	LLP_DRY,	/* all that was sent is acknowledged */
	LLP_SHUTTING,	/* the peer sends no more data: SHUTDOWN has come */
	LLP_SHUT,	/* the end, without loss */
	LLP_ABORTED,	/* the end, by ABORT */
	LLP_LOST,	/* the end, by silence or because the peer could not be reached */
	LLP_RESTARTED,	/* the peer has begun anew */
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
/* Largest user message that one packet carries. */
size_t llp_message_size(struct llp *l);
int llp_streams(struct llp *l);
/* 1: taken; 0: the send buffer is full; -1: there is no association any more. */
int llp_send(struct llp *l, uint16_t stream, uint32_t ppid, int unordered, const void *data, size_t length);
/* Waits for what comes next, at most ms. */
struct llp_event llp_event(struct llp *l, int ms);
void llp_shutdown(struct llp *l);
/* Closes, with an ABORT if wanted. */
void llp_close(struct llp *l, int abort);
/* Ends the program so that the peer does not learn of it. */
void llp_vanish(struct llp *l);
/* Ends the library under it; what is still to be sent goes out. */
void llp_stop(void);

void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
long now_ms(void);

#endif

/*
 * RFC 5043 sessions and DDP segments over one association, in a simple implementation: segments are placed in the order
 * of their DDP-SSNs. Violations of the RFC by the peer are printed as "WRONG" and counted.
 */
#ifndef SESSION_H
#define SESSION_H

#include "llp.h"

#define STREAMS_MAX 64
#define PRIVATE_MAX 512
#define UNTAGGED_MAX (64u << 10)
#define REGIONS_MAX 16

enum { INITIATE = 1, ACCEPT, REJECT, TERMINATE, ENHANCED_INITIATE, ENHANCED_ACCEPT, ENHANCED_REJECT };
enum { PPID_SEGMENT = 16, PPID_CONTROL = 17 };

struct region { char name[65]; uint32_t stag; uint64_t base, length; };

enum session_state { IDLE, ASKED, OPEN, REJECTED, ENDED };

struct held { uint8_t *data; size_t length; uint32_t ppid; };
#define HELD 2048

struct session {
	enum session_state state;
	int active;
	int we_ended, peer_ended;	/* a Terminate was sent, was received */
	int may_send;			/* the peer has received our Initiate or Accept */
	uint16_t ssn_tx, ssn_rx;
	uint32_t msn_tx[3];
	struct held held[HELD];
	uint8_t private[PRIVATE_MAX];
	size_t private_length;
	uint8_t untagged[UNTAGGED_MAX];	/* incomplete message of queue 0 */
	size_t untagged_length;
	uint8_t answer[UNTAGGED_MAX];	/* last complete message of queue 0 */
	size_t answer_length;
	unsigned answers;
	uint64_t placed, responses_done;
	uint8_t last_message[64];	/* message of queue 2 */
	size_t last_message_length;
	struct region regions[REGIONS_MAX];
	int regions_length;
};

/* Message that waits for space in the send buffer. */
struct waiting { struct waiting *next; uint16_t stream; uint32_t ppid; size_t length; uint8_t data[]; };

struct peer {
	struct llp *llp;
	struct session *sessions[STREAMS_MAX];
	int streams;
	/* configuration */
	int serving, echo, rdmap;
	const char *reject, *text;
	size_t segment;			/* length of the largest sent user message; 0: as fits a packet */
	uint8_t *inbox;
	size_t inbox_length;
	/* received from the peer */
	enum llp_kind end;		/* LLP_NOTHING while the association exists */
	int shutting;
	long indication;		/* adaptation code point; -1: none received */
	int wrong;
	uint64_t placed;
	unsigned opened, ended;
	struct waiting *first, **last;
};

struct peer *peer_make(struct llp *llp, int streams, size_t inbox_length);
void peer_free(struct peer *p);
/* Handles at most one event within ms milliseconds, and sends waiting messages. Returns 0 without an event. */
int peer_turn(struct peer *p, int ms);
struct session *session_of(struct peer *p, int stream);
void session_control(struct peer *p, int stream, int function, const void *private, size_t length);
void session_initiate(struct peer *p, int stream, const void *private, size_t length);
void session_terminate(struct peer *p, int stream);
/* Sends a tagged message. Bare DDP ignores the opcode. */
void send_tagged(struct peer *p, int stream, int opcode, uint32_t stag, uint64_t to, const uint8_t *data, size_t length);
void send_untagged(struct peer *p, int stream, int opcode, int queue, const uint8_t *data, size_t length);
/* Sends a message unchanged; waits for space in the send buffer. */
void send_raw(struct peer *p, int stream, uint32_t ppid, const void *data, size_t length);
void flush(struct peer *p);

void put16(uint8_t *p, unsigned v);
void put32(uint8_t *p, uint32_t v);
void put64(uint8_t *p, uint64_t v);
uint32_t get32(const uint8_t *p);
uint64_t get64(const uint8_t *p);

#define INBOX_STAG 0x0d0c0b01u
#define INBOX_BASE 0x0000700000001000ull
#define SINK_STAG 0x0d0c0b02u
enum { OP_WRITE = 0, OP_READ_REQUEST = 1, OP_READ_RESPONSE = 2, OP_SEND = 3 };

#endif

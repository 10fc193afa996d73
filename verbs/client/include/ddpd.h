/*
 * Native library for local programs of ddpd: C interface, libddpd.so.0.
 *
 * A program opens a session with an appliance, allocates memory that the appliance may access, connects queue pairs
 * (QPs) to peers, posts operations and polls completions.
 *
 * Functions of type int return 0 or a positive number, or a negative errno. ddpd_last_error() returns the message of
 * the calling thread's last error. For a handle that is NULL, the functions that return a number of an object return
 * UINT32_MAX, and those that return an address, a length or an STag return 0. Addresses are texts: "10.0.0.2:4000",
 * "[2001:db8::2]:4000". Time-outs are milliseconds; a negative time-out means no limit.
 *
 * All functions are thread-safe, except that no other thread may use a CQ during ddpd_cq_next. A handle must not be
 * closed while another thread uses it. Handles can be closed in any order: an object is removed once its handle is
 * closed and no other object uses it. To close NULL has no effect.
 *
 * Errors of all calls: -ECONNRESET the session has ended, -EPROTO the appliance broke the protocol, -EPERM in a forked
 * child, -EINVAL an invalid argument, or a call that the state of the object does not allow, -ETIMEDOUT, -ENOMEM no
 * room in the arena, -EIO a queue is broken or the library has a defect. Refusals of the appliance: -EINVAL an invalid
 * value, -ENOENT no such object, -EBUSY in use, -EDQUOT a limit is reached, -ENOMEM no memory, -EACCES not allowed,
 * -EHOSTUNREACH no route, -ESHUTDOWN the appliance is draining, -EPROTONOSUPPORT no common version.
 */
#ifndef DDPD_H
#define DDPD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddpd_session ddpd_session;
typedef struct ddpd_domain ddpd_domain;
typedef struct ddpd_region ddpd_region;
typedef struct ddpd_window ddpd_window;
typedef struct ddpd_channel ddpd_channel;
typedef struct ddpd_cq ddpd_cq;
typedef struct ddpd_srq ddpd_srq;
typedef struct ddpd_qp ddpd_qp;
typedef struct ddpd_listener ddpd_listener;
typedef struct ddpd_request ddpd_request;

/* Message of this thread's last error, valid until the thread's next call of the library. */
const char *ddpd_last_error(void);

/* ---- Session ---- */

/* Maximums of this session. */
struct ddpd_limits {
    uint64_t memory_bytes; /* of all regions, queues and incomplete posts together */
    uint64_t arena_bytes;  /* address space for regions, each in whole pages */
    uint32_t queue_pairs;
    uint32_t completion_queues;
    uint32_t memory_regions; /* regions and windows together */
    uint32_t posts;       /* incomplete posts per send queue, and per receive queue */
    uint32_t completions; /* entries of a CQ for each worker */
    uint16_t ird;
    uint16_t ord;
};

/* Opens a session at this socket. NULL: the path in DDPD_PROGRAMS_SOCKET, else /run/ddpd/programs.sock. Also -ENOENT
 * and -ECONNREFUSED: no appliance; -EACCES: no right to open the socket. */
int ddpd_open(const char *socket, ddpd_session **session);
void ddpd_close(ddpd_session *session);
int ddpd_get_limits(const ddpd_session *session, struct ddpd_limits *limits);

/* ---- Memory ---- */

enum ddpd_access {
    DDPD_LOCAL_WRITE = 1,   /* sink of Receives, Reads and atomics of this side; required by DDPD_REMOTE_WRITE and DDPD_REMOTE_ATOMIC */
    DDPD_REMOTE_WRITE = 2,
    DDPD_REMOTE_READ = 4,
    DDPD_REMOTE_ATOMIC = 8,
    DDPD_ZERO_BASED = 16 /* of windows: the TO of the first byte is 0 instead of its address */
};

int ddpd_domain_create(const ddpd_session *session, ddpd_domain **domain);
void ddpd_domain_destroy(ddpd_domain *domain);

/*
 * Allocates and registers zeroed memory, valid until the region is destroyed. The address is the TO for peers. Peers
 * and workers may access the memory at any time: the bytes that an operation stores are valid once its completion was
 * polled. The source bytes of a post must not change before its completion, except those of a QP with copy_sources.
 */
int ddpd_region_alloc(const ddpd_domain *domain, size_t length, uint32_t access, ddpd_region **region);
/*
 * Registers memory that the program has allocated: heap, stack, static data, a private mapping. The library replaces
 * its pages by shared pages at the same addresses. The shared pages stay in place when the region is destroyed. A
 * real-time signal stops all other threads while pages are copied. No other thread may unmap the memory during the
 * call. -EINVAL: the memory is a shared mapping (MAP_SHARED); -EFAULT: it is not mapped or not readable, or not
 * writable although DDPD_LOCAL_WRITE is set; -EBUSY: it is registered with another session, or a thread cannot be
 * stopped.
 */
int ddpd_register(const ddpd_domain *domain, void *address, size_t length, uint32_t access, ddpd_region **region);
void ddpd_region_destroy(ddpd_region *region);
void *ddpd_region_address(const ddpd_region *region);
size_t ddpd_region_length(const ddpd_region *region);
uint32_t ddpd_region_stag(const ddpd_region *region); /* lkey, and rkey for peers */

/*
 * A memory window: an STag by which peers get rights to a part of a region, from ddpd_post_bind until its invalidation.
 * The lower 8 bits of the STag are a key that the program chooses for each binding. Type 1: the peers of all QPs of the
 * domain may use the window until the next binding; a binding of length 0 only ends the previous one. Type 2: only the
 * peer of the QP that binds the window may use it, until DDPD_LOCAL_INVALIDATE, a Send with Invalidate of the peer, or
 * the end of the connection. A region with bound windows stays registered. The destruction of the window ends the
 * binding.
 */
int ddpd_window_alloc(const ddpd_domain *domain, uint32_t type, ddpd_window **window);
void ddpd_window_destroy(ddpd_window *window);
uint32_t ddpd_window_stag(const ddpd_window *window, uint8_t key); /* rkey for peers, not an lkey */

/* ---- Completions ---- */

enum ddpd_opcode {
    DDPD_SEND = 1,
    DDPD_SEND_INVALIDATE = 2,
    DDPD_WRITE = 3,
    DDPD_READ = 4,
    DDPD_LOCAL_INVALIDATE = 5, /* of a window of type 2 that is bound to the QP */
    DDPD_BIND_WINDOW = 6, /* only in completions: of ddpd_post_bind */
    DDPD_COMPARE_SWAP = 7, /* of 8 bytes in the byte order of the peer's host, likewise DDPD_FETCH_ADD */
    DDPD_FETCH_ADD = 8,
    DDPD_IMMEDIATE = 9,
    DDPD_RECEIVE = 128 /* only in completions */
};

/* As enum ibv_wc_status. */
enum ddpd_status {
    DDPD_SUCCESS = 0,
    DDPD_LOCAL_LENGTH = 1,
    DDPD_LOCAL_QP_OPERATION = 2,
    DDPD_LOCAL_PROTECTION = 4,
    DDPD_FLUSHED = 5,
    DDPD_WINDOW_BIND = 6,
    DDPD_BAD_RESPONSE = 7,
    DDPD_LOCAL_ACCESS = 8,
    DDPD_REMOTE_INVALID_REQUEST = 9,
    DDPD_REMOTE_ACCESS = 10,
    DDPD_REMOTE_OPERATION = 11,
    DDPD_FATAL = 19,
    DDPD_GENERAL = 21
};

enum ddpd_completion_flags {
    DDPD_WAS_SOLICITED = 1,
    DDPD_HAS_INVALIDATED = 2, /* `invalidated` is an STag of this side */
    DDPD_HAS_IMMEDIATE = 4    /* `immediate` has data */
};

struct ddpd_completion {
    uint64_t wr_id;
    uint32_t status;   /* enum ddpd_status */
    uint32_t opcode;   /* enum ddpd_opcode */
    uint32_t byte_len; /* bytes received, read or returned by an atomic. With Immediate Data: length of the RDMA Write
                          before it, or 0 if a Send or Immediate Data is between them. Undefined with an error */
    uint32_t qp_number;
    uint32_t flags;    /* enum ddpd_completion_flags */
    uint32_t invalidated;
    uint8_t immediate[8];
};

/* A channel: a descriptor that is readable after a notification, and after the end of the session. */
int ddpd_channel_create(const ddpd_session *session, ddpd_channel **channel);
void ddpd_channel_destroy(ddpd_channel *channel);
/* The descriptor belongs to the channel. */
int ddpd_channel_fd(const ddpd_channel *channel);
/* Waits for notifications and consumes them. Returns 1, or 0 after the time-out. */
int ddpd_channel_wait(const ddpd_channel *channel, int timeout_ms);

/* A CQ has room for at least `entries` completions of each worker, 1 to `completions` of the limits. A CQ that
 * overflows fails with all of its QPs. To exclude this, `entries` must be at least the number of its QPs' incomplete
 * posts, including unsignalled ones, plus the number of unpolled completions. Without a channel (NULL) ddpd_cq_arm and
 * ddpd_cq_next fail. */
int ddpd_cq_create(const ddpd_session *session, uint32_t entries, const ddpd_channel *channel, ddpd_cq **cq);
void ddpd_cq_destroy(ddpd_cq *cq);
uint32_t ddpd_cq_number(const ddpd_cq *cq);
/* Takes at most `most` completions and returns their number. -EIO: the CQ is broken. -ECONNRESET: the CQ is empty and
 * the session has ended; the first polls after the end may still return 0. */
int ddpd_cq_poll(const ddpd_cq *cq, struct ddpd_completion *completions, uint32_t most);
/* Requests one notification for the next completion, or, if `solicited` is not 0, for the next solicited or failed
 * one. A completion that arrived earlier causes none: poll until the CQ is empty before you wait. */
int ddpd_cq_arm(const ddpd_cq *cq, int solicited);
/* Polls, arms and waits. Returns 1, or 0 after the time-out. The CQ must be the only one of its channel. */
int ddpd_cq_next(const ddpd_cq *cq, int timeout_ms, struct ddpd_completion *completion);

/* ---- Queue pairs ---- */

struct ddpd_sge {
    uint64_t address;
    uint32_t length;
    uint32_t lkey;
};

enum ddpd_send_flags {
    DDPD_SIGNALLED = 1,
    DDPD_SOLICITED = 2,
    DDPD_FENCE = 4, /* waits for earlier Reads and atomics */
    DDPD_INLINE = 8 /* at most 256 bytes are copied from any memory; lkeys are ignored */
};

/* Fields that the operation does not use must be zero. */
struct ddpd_send {
    uint64_t wr_id;
    uint32_t opcode; /* enum ddpd_opcode */
    uint32_t flags;  /* enum ddpd_send_flags */
    const struct ddpd_sge *sges; /* at most 6; atomics: one of 8 bytes for the former value */
    uint32_t sge_count;
    uint32_t rkey;           /* STag of the peer */
    uint64_t remote_address; /* TO */
    uint64_t compare_add;
    uint64_t swap;
    uint8_t immediate[8];
    uint32_t invalidate; /* STag of the peer, or of this side with DDPD_LOCAL_INVALIDATE */
    uint32_t reserved;
};

struct ddpd_receive {
    uint64_t wr_id;
    const struct ddpd_sge *sges; /* at most 6; NULL for messages without bytes */
    uint32_t sge_count;
    uint32_t reserved;
};

/* Fields: see ddpd_window_alloc. */
struct ddpd_bind {
    uint64_t wr_id;
    uint32_t flags;  /* DDPD_SIGNALLED, DDPD_FENCE */
    uint32_t access; /* DDPD_REMOTE_WRITE, DDPD_REMOTE_READ, DDPD_REMOTE_ATOMIC; DDPD_ZERO_BASED */
    uint32_t window; /* ddpd_window_stag with the key of the binding */
    uint32_t region; /* STag of the region */
    uint64_t address; /* of the first byte, within the region */
    uint64_t length;  /* 0: the end of the binding of a window of type 1 */
};

/* A QP has one connection. max_sends and max_receives: 1 to `posts` of the limits. copy_sources: 1 if the program
 * changes bytes of posts before their completion, so that the appliance keeps copies; else 0. The destruction resets an
 * open connection. */
int ddpd_qp_create(const ddpd_domain *domain, const ddpd_cq *send_completions, const ddpd_cq *receive_completions,
                   uint32_t max_sends, uint32_t max_receives, int copy_sources, ddpd_qp **qp);
/*
 * A shared receive queue (SRQ): receives for the messages of several QPs, in the order in which messages arrive. The
 * memory of the receives must belong to `domain`. A receive completes on the CQ of the message's QP. A message that
 * finds no receive ends its connection. max_receives of the QP limits the receives that the QP has taken, and the
 * messages that may arrive out of order.
 */
int ddpd_srq_create(const ddpd_domain *domain, uint32_t max_receives, ddpd_srq **srq);
void ddpd_srq_destroy(ddpd_srq *srq);
uint32_t ddpd_srq_number(const ddpd_srq *srq);
/* -EAGAIN: the queue is full. */
int ddpd_srq_post_receive(const ddpd_srq *srq, const struct ddpd_receive *receive);
/* Requests one DDPD_SRQ_LOW when fewer than `limit` receives remain, possibly at once. A call replaces the earlier
 * request; a `limit` of 0 only ends it. */
int ddpd_srq_set_limit(const ddpd_srq *srq, uint32_t limit);
/* As ddpd_qp_create, with the receives of an SRQ. ddpd_post_receive is then refused. */
int ddpd_qp_create_shared(const ddpd_domain *domain, const ddpd_cq *send_completions, const ddpd_cq *receive_completions,
                          uint32_t max_sends, uint32_t max_receives, int copy_sources, const ddpd_srq *srq, ddpd_qp **qp);
void ddpd_qp_destroy(ddpd_qp *qp);
uint32_t ddpd_qp_number(const ddpd_qp *qp);
/* -EAGAIN: the queue is full. -EPIPE: the connection has ended or could not be established, or the QP has failed. A
 * post that races with the end of the connection may be accepted and never complete: after the event of the end, do
 * not wait for its completion. */
int ddpd_post_send(const ddpd_qp *qp, const struct ddpd_send *send);
int ddpd_post_receive(const ddpd_qp *qp, const struct ddpd_receive *receive);
/* Binds a window. If the window cannot be bound, the completion has the status DDPD_WINDOW_BIND, and the QP ends. */
int ddpd_post_bind(const ddpd_qp *qp, const struct ddpd_bind *bind);

/* ---- Connections ---- */

enum ddpd_transport { DDPD_TCP = 0, DDPD_SCTP = 1 };

/* Kinds of peers, by their deviations from the specifications. */
enum ddpd_peer {
    DDPD_PEER_STANDARD = 0,
    DDPD_PEER_SIW = 1,   /* Linux's soft iWARP. A connect takes 50 ms longer: siw may lose data right after its reply */
    DDPD_PEER_CXGB4 = 2, /* Chelsio's adapters */
    DDPD_PEER_IRDMA = 3, /* Intel's adapters */
    DDPD_PEER_SMB_DIRECT = 4
};

/* Options of a connect or an accept. An accept ignores local_address, transport, peer and peer_to_peer. NULL: TCP, a
 * standard peer, depths of 16, ten seconds. The fields of a structure have no defaults: with `ord` 0 no Read or atomic
 * can be posted. */
struct ddpd_connect_options {
    const char *local_address; /* without a port; NULL: the appliance chooses */
    const void *private_data;
    uint32_t private_data_len; /* at most 508; for siw and cxgb4 252 */
    uint32_t timeout_ms;       /* at least 1 */
    uint32_t transport;        /* enum ddpd_transport */
    uint16_t ird;              /* Reads and atomics of the peer in flight, at most `ird` of the limits */
    uint16_t ord;              /* Reads and atomics of this side in flight, at most `ord` of the limits */
    uint32_t peer;             /* enum ddpd_peer */
    uint32_t peer_to_peer;     /* 1: the peer may send first, after a message that the appliance sends (RFC 6581 §9); else 0 */
};

/* Addresses, depths and private data of a connection. For a connection request: the peer's depths, 0 if it sent none,
 * and its private data. For an established connection: the depths in effect, and the private data of the peer's answer,
 * which is empty after an accept. */
struct ddpd_connection {
    char local[64];
    char remote[64];
    uint16_t ird;
    uint16_t ord;
    uint16_t worker;
    uint16_t private_data_len;
    uint8_t private_data[508];
};

/* Connects and waits. -ECONNREFUSED: the peer's program has rejected the connection, or no listener has the address and
 * port; only the event after ddpd_start_connect has the private data of a rejection. -EHOSTUNREACH: the peer does not
 * answer or cannot be reached. -ECONNABORTED: the connect failed for another reason. `connection` may be NULL. */
int ddpd_connect(const ddpd_qp *qp, const char *remote, const struct ddpd_connect_options *options,
                 struct ddpd_connection *connection);
/* Does not wait: an event follows. */
int ddpd_start_connect(const ddpd_qp *qp, const char *remote, const struct ddpd_connect_options *options);
/* Closes the connection gracefully and waits for its end. Incomplete posts may be flushed: wait for their completions
 * before this call. */
int ddpd_disconnect(const ddpd_qp *qp, int timeout_ms);
int ddpd_start_disconnect(const ddpd_qp *qp);

/* Port 0: the appliance chooses. At most `backlog` requests, at least 1, wait for an answer. */
int ddpd_listen(const ddpd_session *session, const char *local, uint32_t transport, uint32_t backlog,
                ddpd_listener **listener);
void ddpd_listener_destroy(ddpd_listener *listener);
uint32_t ddpd_listener_number(const ddpd_listener *listener);
/* Stores the address with its port and a NUL; 64 bytes are enough. -EINVAL: `size` is too small. */
int ddpd_listener_address(const ddpd_listener *listener, char *to, size_t size);
/* Waits for a connection request. Returns 1, or 0 after the time-out. */
int ddpd_listener_next(const ddpd_listener *listener, int timeout_ms, ddpd_request **request);

int ddpd_request_info(const ddpd_request *request, struct ddpd_connection *info);
/* ddpd_accept, ddpd_start_accept and ddpd_reject close the request, also when they fail. */
int ddpd_accept(ddpd_request *request, const ddpd_qp *qp, const struct ddpd_connect_options *options,
                struct ddpd_connection *connection);
int ddpd_start_accept(ddpd_request *request, const ddpd_qp *qp, const struct ddpd_connect_options *options);
int ddpd_reject(ddpd_request *request, const void *private_data, uint32_t private_data_len);

/* ---- Events ---- */

enum ddpd_event_kind {
    DDPD_INCOMING = 1,       /* number: listener; request: to be accepted or rejected; connection: its addresses and data */
    DDPD_ESTABLISHED = 2,    /* number: QP; connection */
    DDPD_REJECTED = 3,       /* number: QP; connection: private data */
    DDPD_CONNECT_FAILED = 4, /* number: QP; flag: 1 if the peer does not answer or cannot be reached; message */
    DDPD_DISCONNECTED = 5,   /* number: QP; flag: 1 if closed gracefully; message */
    DDPD_QP_FAILED = 6,      /* number: QP; message */
    DDPD_CQ_FAILED = 7,      /* number: CQ; message */
    DDPD_SRQ_LOW = 8,        /* number: SRQ */
    DDPD_SRQ_FAILED = 9      /* number: SRQ; message */
};

struct ddpd_event {
    uint32_t kind; /* enum ddpd_event_kind */
    uint32_t number;
    uint32_t flag;
    uint32_t reserved;
    ddpd_request *request;
    struct ddpd_connection connection;
    char message[256];
};

/* A descriptor that is readable while there are events, and after the session's end. It belongs to the session. */
int ddpd_session_fd(const ddpd_session *session);
/* Takes the next event of any object. Returns 1, or 0 after the time-out. Events that blocking calls wait for are not
 * returned. */
int ddpd_next_event(const ddpd_session *session, int timeout_ms, struct ddpd_event *event);

#ifdef __cplusplus
}
#endif

#endif

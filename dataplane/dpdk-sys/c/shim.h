/*
 * The DPDK interface of the Rust code. DPDK's own structures are not exposed: their layout and member names
 * change from release to release. The shim is compiled against the installed headers. It fills and reads DPDK's
 * structures, and passes flat structures of its own.
 *
 * Fields of packet buffers that the data path accesses are exported as byte offsets, so that reading a field costs a
 * load and not a call.
 *
 * Functions return 0 or a count on success, a negative errno otherwise.
 */
#ifndef DDPD_SHIM_H
#define DDPD_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;
struct rte_ring;

/* Properties and capabilities of a device. */
struct ddpd_port_info {
	char driver[64];
	int numa_socket;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint32_t max_rx_packet;     /* bytes, CRC included */
	uint32_t min_rx_buffer;     /* bytes */
	uint16_t max_mtu;
	uint16_t reta_size;         /* entries, 0: no table */
	uint8_t hash_key_size;      /* bytes, 0: no key */
	uint16_t rx_desc_max;
	uint16_t tx_desc_max;
	uint64_t rss_functions;     /* RTE_ETH_RSS_* */
	uint64_t rx_offloads;       /* DDPD_RX_* */
	uint64_t tx_offloads;       /* DDPD_TX_* */
	uint16_t tx_segments_max;   /* buffers per sent packet, UINT16_MAX: any number */
};

/* Configuration of a device. */
struct ddpd_port_conf {
	uint16_t rx_queues;
	uint16_t tx_queues;
	uint16_t rx_descriptors;    /* adjusted to the device's limits */
	uint16_t tx_descriptors;
	uint16_t mtu;               /* 0: 1500 */
	uint8_t queue_interrupts;
	uint8_t private_files;      /* files that the driver creates are accessible to this user only */
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	const uint8_t *rss_key;     /* NULL: no RSS */
	uint8_t rss_key_len;
	uint64_t rss_functions;
};

/* Flags of ddpd_mbuf_set_tx_cut(). */
enum ddpd_cut {
	DDPD_CUT_IPV6 = 1,
	/* A virtio frontend segments the packet, so the headers follow virtio. */
	DDPD_CUT_VIRTIO = 2,
};

/* Counters of a device since it was opened. */
struct ddpd_port_stats {
	uint64_t rx_packets;
	uint64_t tx_packets;
	uint64_t rx_bytes;
	uint64_t tx_bytes;
	uint64_t rx_missed;         /* no free descriptor or no room: the host was too slow */
	uint64_t rx_errors;
	uint64_t tx_errors;
	uint64_t rx_no_buffer;      /* the pool was empty */
};

struct ddpd_link {
	uint32_t mbit_per_s;        /* 0: unknown */
	uint8_t up;
};

/* A network interface of Linux. */
struct ddpd_interface {
	uint32_t mtu;
	uint32_t index;
	uint8_t up;
	uint8_t running;
	uint8_t mac[6];
};

int ddpd_interface_get(const char *name, struct ddpd_interface *out);
/* Returns a packet socket bound to an interface and a protocol number (host byte order), or a negative errno. */
int ddpd_packet_socket(const char *name, uint16_t protocol);
/* Writes the name of the interface with this index: 16 bytes, the terminating zero included. */
int ddpd_interface_name(uint32_t index, char *name);
/* Returns the index of the interface that a packet socket is bound to (-1: removed), or a negative errno. */
int ddpd_packet_socket_index(int fd);
/* Returns the address family of a socket, or a negative errno. */
int ddpd_socket_family(int fd);

/*
 * Redirects DPDK's log to `emit`, which receives a line or a part of one and its level (RTE_LOG_*, 1 is the most
 * severe), from any thread. Call it before rte_eal_init.
 */
int ddpd_log_capture(void (*emit)(const char *text, size_t len, int level));
void ddpd_log_level(uint32_t level);
/* Redirects the logs of libbpf and libxdp. Call it after the AF_XDP driver has loaded them. */
void ddpd_log_capture_xdp(void);

int ddpd_errno(void);
/*
 * Excludes DPDK's memory, which holds packets of peers, from core dumps, including memory that is mapped later. Call
 * it once, after rte_eal_init.
 */
int ddpd_leave_out_of_core_dumps(void);
int ddpd_lcore_id(void);        /* -1: this thread is not registered */

/*
 * Creates a multi-producer pool of zeroed, and so pre-faulted, buffers. `room`: bytes of a buffer, headroom included;
 * 0: each buffer and its headers take exactly one page of 4096 bytes.
 */
struct rte_mempool *ddpd_pool_create(const char *name, uint32_t buffers, uint32_t cache, uint16_t room,
				     int socket);

struct rte_mbuf *ddpd_mbuf_alloc(struct rte_mempool *pool);
int ddpd_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **bufs, unsigned count);
/* Allocates a buffer from the pool of `m`. */
struct rte_mbuf *ddpd_mbuf_alloc_like(const struct rte_mbuf *m);
void ddpd_mbuf_free(struct rte_mbuf *m);
int ddpd_mbuf_linearize(struct rte_mbuf *m);
/* Transport protocol whose checksum is offloaded; the flags of a buffer hold one. */
enum ddpd_l4 {
	DDPD_L4_NONE,
	DDPD_L4_TCP,
	DDPD_L4_SCTP,
};
void ddpd_mbuf_set_tx_checksums(struct rte_mbuf *m, int ipv6, int ip_checksum, enum ddpd_l4 l4,
				uint16_t l2_len, uint16_t l3_len);
/* Returns the transport protocol whose checksum is offloaded. */
enum ddpd_l4 ddpd_mbuf_tx_l4(const struct rte_mbuf *m);
/* Sets the verdict on the transport checksum as a driver does: a result of ddpd_mbuf_rx_l4_checksum(). For tests. */
void ddpd_mbuf_set_rx_l4_checksum(struct rte_mbuf *m, int verdict);
/*
 * Joins `head` and the payloads of `count` frames to one packet. `head` contains only headers, of `headers` bytes.
 * Each frame is one buffer that begins with as many header bytes, which are left out. Freeing `head` frees all frames.
 */
void ddpd_mbuf_join(struct rte_mbuf *head, struct rte_mbuf **frames, uint16_t count, uint16_t headers);
/* Undoes ddpd_mbuf_join() and frees `head`. */
void ddpd_mbuf_part(struct rte_mbuf *head, struct rte_mbuf **frames, uint16_t count, uint16_t headers);
/* Requests segmentation (TSO) into segments of `segment` bytes of payload, with all checksums. `how`: DDPD_CUT_*. */
void ddpd_mbuf_set_tx_cut(struct rte_mbuf *m, int how, uint16_t l2_len, uint16_t l3_len, uint16_t l4_len,
			  uint16_t segment);
/* Returns 1 if the device can send the packet (rte_eth_tx_prepare). */
int ddpd_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf *m);
/* Writes the RSS hash; returns 1 if the device computed it. */
int ddpd_mbuf_rss_hash(const struct rte_mbuf *m, uint32_t *hash);
/* Returns the device's verdict on the checksum of TCP, UDP or SCTP: 0 unknown, 1 good, 2 bad. */
int ddpd_mbuf_rx_l4_checksum(const struct rte_mbuf *m);

/* Calls munmap(2) directly and sets errno. */
int ddpd_munmap(void *start, size_t bytes);
/* Returns the address of the function that drivers call as munmap. */
void *ddpd_munmap_of_drivers(void);

int ddpd_port_info(uint16_t port, struct ddpd_port_info *out);
int ddpd_port_configure(uint16_t port, struct ddpd_port_conf *conf, struct rte_mempool *pool,
			int socket);
int ddpd_port_reta(uint16_t port, const uint16_t *table, uint16_t entries);
/*
 * Creates a flow rule by which a started device distributes SCTP packets over IPv4, or IPv6, to queues as RSS does,
 * hashing only the destination address and both ports. `queues`: the redirection table.
 */
int ddpd_port_sctp_rule(uint16_t port, int ipv6, const uint8_t *key, uint32_t key_len,
			const uint16_t *queues, uint32_t count);
/* Destroys all rules of a started device. */
int ddpd_port_flush_rules(uint16_t port);
/* Returns DPDK's software Toeplitz hash of `count` words in host byte order. The key has `count` + 1 words. */
uint32_t ddpd_softrss(uint32_t *words, uint32_t count, const uint8_t *key);
int ddpd_port_stats(uint16_t port, struct ddpd_port_stats *out);
int ddpd_port_link(uint16_t port, struct ddpd_link *out);
int ddpd_port_mac(uint16_t port, uint8_t mac[6]);
int ddpd_port_set_mtu(uint16_t port, uint16_t mtu);
int ddpd_port_by_name(const char *name, uint16_t *port);
int ddpd_port_remove(uint16_t port);
/* Returns the descriptor that a queue's interrupt makes readable, or a negative number if the driver has none. */
int ddpd_port_rx_fd(uint16_t port, uint16_t queue);
/* Adds a queue's interrupt to an epoll descriptor, or removes it. */
int ddpd_port_rx_epoll(uint16_t port, uint16_t queue, int epfd, int add);
/* Acknowledges the interrupts that an epoll descriptor reports, according to their type. Never blocks. */
void ddpd_epoll_clear(int epfd);

/*
 * Callbacks for events of a vhost-user port's frontends, called in DPDK's vhost thread. `changed`: a frontend
 * connected or disconnected. A disconnected frontend stays valid until the callback returns. `queues`: a queue was
 * enabled or disabled, or its descriptor was replaced. This callback must not block.
 */
struct ddpd_vhost_watch {
	void (*changed)(void *arg);
	void (*queues)(void *arg);
	void *arg;
};
/* Requires a started port. `watch` must stay valid, at its address, until ddpd_vhost_unwatch() succeeds. */
int ddpd_vhost_watch(uint16_t port, const struct ddpd_vhost_watch *watch);
/*
 * Returns -EAGAIN while a callback runs. Call it before the port is removed: DPDK would keep the callbacks for the
 * next port with the same number.
 */
int ddpd_vhost_unwatch(uint16_t port, const struct ddpd_vhost_watch *watch);
/* Returns the frontend that is connected to a started port, or -1. */
int ddpd_vhost_frontend(uint16_t port);
/* Returns the negotiated features, bits of VIRTIO_NET_F_*; 0 if the frontend is disconnected. */
uint64_t ddpd_vhost_features(int frontend);
/* Returns the number of descriptors of the ring that a queue sends to, or 0. */
uint16_t ddpd_vhost_ring_size(int frontend, uint16_t queue);
/* Returns the file descriptor that the frontend writes to after sending, or -1. */
int ddpd_vhost_kick_fd(int frontend, uint16_t queue);
/* Enables (1) or disables (0) the frontend's writes to the kick descriptor of a queue. */
void ddpd_vhost_notify(int frontend, uint16_t queue, int on);
/* Returns the number of descriptors that the frontend has filled and the queue has not received yet. */
uint32_t ddpd_vhost_waiting(int frontend, uint16_t queue);

uint16_t ddpd_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count);
uint16_t ddpd_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count);

/* Creates an ethdev over rings, which receives from rx[] and sends to tx[]. Returns its port number. */
int ddpd_port_from_rings(const char *name, struct rte_ring **rx, struct rte_ring **tx,
			 unsigned count, int socket);
struct rte_ring *ddpd_ring_create(const char *name, unsigned size, int socket);
void ddpd_ring_free_with_mbufs(struct rte_ring *ring);

#endif

/*
 * The whole of what Rust sees of DPDK. DPDK's own structures never cross: their layout and the names
 * of their members change from release to release, so each is filled or read here, by the compiler
 * that has the installed headers, and what crosses is a flat structure of ours.
 *
 * The fields of a packet buffer that the data path touches are given as byte offsets, so that
 * reading one costs a load and not a call.
 *
 * Functions return 0 or a count when they succeed, a negative errno otherwise.
 */
#ifndef DDPD_SHIM_H
#define DDPD_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;
struct rte_ring;

/* What a device says of itself. */
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
	uint16_t tx_segments_max;   /* buffers of a packet to be sent, UINT16_MAX: any number */
};

/* How a device is to be set up. */
struct ddpd_port_conf {
	uint16_t rx_queues;
	uint16_t tx_queues;
	uint16_t rx_descriptors;    /* adjusted to what the device takes */
	uint16_t tx_descriptors;
	uint16_t mtu;               /* 0: 1500 */
	uint8_t queue_interrupts;
	uint8_t private_files;      /* what the driver makes in the file system is for this user only */
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	const uint8_t *rss_key;     /* NULL: no RSS */
	uint8_t rss_key_len;
	uint64_t rss_functions;
};

/* How a large packet is to be cut, see ddpd_mbuf_set_tx_cut(). */
enum ddpd_cut {
	DDPD_CUT_IPV6 = 1,
	/* By a frontend of virtio: the headers are as it wants them. */
	DDPD_CUT_VIRTIO = 2,
};

/* Counters of a device since it was opened. */
struct ddpd_port_stats {
	uint64_t rx_packets;
	uint64_t tx_packets;
	uint64_t rx_bytes;
	uint64_t tx_bytes;
	uint64_t rx_missed;         /* no descriptor or no room: the host was too slow */
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
/* A packet socket bound to an interface and a protocol number (host byte order), or a negative errno. */
int ddpd_packet_socket(const char *name, uint16_t protocol);
/* The name of the interface with this index: 16 bytes, the terminating zero included. */
int ddpd_interface_name(uint32_t index, char *name);
/* The index of the interface that a packet socket is bound to (-1: its interface is gone), or a negative errno. */
int ddpd_packet_socket_index(int fd);
/* The address family of a socket, or a negative errno. */
int ddpd_socket_family(int fd);

/*
 * Routes DPDK's log, from before rte_eal_init on: `emit` gets a line or a part of one and its level
 * (RTE_LOG_*, 1 is worst), from any thread.
 */
int ddpd_log_capture(void (*emit)(const char *text, size_t len, int level));
void ddpd_log_level(uint32_t level);
/* The same for libbpf and libxdp, once the AF_XDP driver has loaded them. */
void ddpd_log_capture_xdp(void);

int ddpd_errno(void);
/* Leaves DPDK's memory out of core dumps: packets of peers. Also what is mapped later. Once, after rte_eal_init. */
int ddpd_leave_out_of_core_dumps(void);
int ddpd_lcore_id(void);        /* -1: this thread is not registered */
/* 1: the heap is in hugepages. */
int ddpd_has_hugepages(void);

/*
 * A multi-producer pool of zeroed, and so pre-faulted, buffers. `room` counts the headroom; 0 makes each
 * buffer with all its headers exactly one page of 4096 bytes.
 */
struct rte_mempool *ddpd_pool_create(const char *name, uint32_t buffers, uint32_t cache, uint16_t room,
				     int socket);

struct rte_mbuf *ddpd_mbuf_alloc(struct rte_mempool *pool);
int ddpd_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **bufs, unsigned count);
/* A fresh buffer of the same pool. */
struct rte_mbuf *ddpd_mbuf_alloc_like(const struct rte_mbuf *m);
void ddpd_mbuf_free(struct rte_mbuf *m);
int ddpd_mbuf_linearize(struct rte_mbuf *m);
/* Of which protocol above IP a checksum is filled in; the flags of a buffer have room for one. */
enum ddpd_l4 {
	DDPD_L4_NONE,
	DDPD_L4_TCP,
	DDPD_L4_SCTP,
};
void ddpd_mbuf_set_tx_checksums(struct rte_mbuf *m, int ipv6, int ip_checksum, enum ddpd_l4 l4,
				uint16_t l2_len, uint16_t l3_len);
/* The protocol of which a checksum is to be filled in. */
enum ddpd_l4 ddpd_mbuf_tx_l4(const struct rte_mbuf *m);
/* As a driver gives the verdict on the checksum above IP, 0 to 2 as below: for tests. */
void ddpd_mbuf_set_rx_l4_checksum(struct rte_mbuf *m, int verdict);
/*
 * Makes one packet of `head`, which has `headers` bytes of headers and nothing else, and of what `count` frames of one
 * buffer each have behind as many. Freeing `head` frees all of them.
 */
void ddpd_mbuf_join(struct rte_mbuf *head, struct rte_mbuf **frames, uint16_t count, uint16_t headers);
/* Makes the frames what they were, and frees `head`. */
void ddpd_mbuf_part(struct rte_mbuf *head, struct rte_mbuf **frames, uint16_t count, uint16_t headers);
/* The device is to cut the packet into segments of `segment` bytes of payload, with all checksums (DDPD_CUT_*). */
void ddpd_mbuf_set_tx_cut(struct rte_mbuf *m, int how, uint16_t l2_len, uint16_t l3_len, uint16_t l4_len,
			  uint16_t segment);
/* 1: the device's verdict on the packet is that it can be sent. */
int ddpd_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf *m);
/* 1: the device computed `hash`. */
int ddpd_mbuf_rss_hash(const struct rte_mbuf *m, uint32_t *hash);
/* 0 unknown, 1 good, 2 bad */
int ddpd_mbuf_rx_ip_checksum(const struct rte_mbuf *m);
/* Of TCP, UDP and SCTP. */
int ddpd_mbuf_rx_l4_checksum(const struct rte_mbuf *m);

/* The system call itself, with errno. */
int ddpd_munmap(void *start, size_t bytes);
/* What drivers call as munmap. */
void *ddpd_munmap_of_drivers(void);

int ddpd_port_info(uint16_t port, struct ddpd_port_info *out);
int ddpd_port_configure(uint16_t port, struct ddpd_port_conf *conf, struct rte_mempool *pool,
			int socket);
int ddpd_port_reta(uint16_t port, const uint16_t *table, uint16_t entries);
/*
 * Asks for a rule by which a started device brings SCTP packets over IPv4, or IPv6, to queues as RSS does, by destination
 * address and both ports alone. `queues`: the redirection table.
 */
int ddpd_port_sctp_rule(uint16_t port, int ipv6, const uint8_t *key, uint32_t key_len,
			const uint16_t *queues, uint32_t count);
/* Destroys all rules of a started device. */
int ddpd_port_flush_rules(uint16_t port);
/* Toeplitz's hash as DPDK computes it in software, of words in the CPU's order. The key has a word more than they. */
uint32_t ddpd_softrss(uint32_t *words, uint32_t count, const uint8_t *key);
int ddpd_port_stats(uint16_t port, struct ddpd_port_stats *out);
int ddpd_port_link(uint16_t port, struct ddpd_link *out);
int ddpd_port_mac(uint16_t port, uint8_t mac[6]);
int ddpd_port_set_mtu(uint16_t port, uint16_t mtu);
int ddpd_port_by_name(const char *name, uint16_t *port);
int ddpd_port_remove(uint16_t port);
/* The descriptor that a queue's interrupt makes readable, if its driver has one. */
int ddpd_port_rx_fd(uint16_t port, uint16_t queue);
/* Puts a queue's interrupt into an epoll descriptor, or takes it out. */
int ddpd_port_rx_epoll(uint16_t port, uint16_t queue, int epfd, int add);
/* Takes note of the interrupts that an epoll descriptor with them reports, as their kind demands. Never waits. */
void ddpd_epoll_clear(int epfd);

/*
 * What happens to a vhost-user port's frontends. Both are called in DPDK's vhost thread. `changed`: one has come or gone; until it returns, the one that left is still valid. `queues`: a queue was
 * enabled, disabled or given another descriptor; it must not wait.
 */
struct ddpd_vhost_watch {
	void (*changed)(void *arg);
	void (*queues)(void *arg);
	void *arg;
};
/* The port is started, and `watch` stays where it is until ddpd_vhost_unwatch() succeeds. */
int ddpd_vhost_watch(uint16_t port, const struct ddpd_vhost_watch *watch);
/* -EAGAIN while a call is under way. DPDK keeps calls of a port that is removed for the next one of its number. */
int ddpd_vhost_unwatch(uint16_t port, const struct ddpd_vhost_watch *watch);
/* The frontend that is connected to a started port, or -1. */
int ddpd_vhost_frontend(uint16_t port);
/* What the frontend agreed to: bits of VIRTIO_NET_F_*; 0 when it is gone. */
uint64_t ddpd_vhost_features(int frontend);
/* Descriptors of the ring that a queue sends to, or 0. */
uint16_t ddpd_vhost_ring_size(int frontend, uint16_t queue);
/* The descriptor that the frontend writes to when it has sent, or -1. */
int ddpd_vhost_kick_fd(int frontend, uint16_t queue);
/* Whether the frontend is to write to it. */
void ddpd_vhost_notify(int frontend, uint16_t queue, int on);
/* Descriptors that the frontend has filled and that were not taken. */
uint32_t ddpd_vhost_waiting(int frontend, uint16_t queue);

uint16_t ddpd_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count);
uint16_t ddpd_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count);

/* An ethdev over rings: receives from rx[], sends to tx[]. Returns its port number. */
int ddpd_port_from_rings(const char *name, struct rte_ring **rx, struct rte_ring **tx,
			 unsigned count, int socket);
struct rte_ring *ddpd_ring_create(const char *name, unsigned size, int socket);
void ddpd_ring_free_with_mbufs(struct rte_ring *ring);
unsigned ddpd_ring_count(const struct rte_ring *ring);

#endif

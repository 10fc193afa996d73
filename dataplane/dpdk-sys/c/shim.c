/* See shim.h. Built against DPDK 22.11 up to 25.11. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_eth_vhost.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_thash.h>
#include <rte_vhost.h>

#include "shim.h"

static int negative(int rc)
{
	return rc < 0 ? rc : -rc;
}

/* Maximum number of queues of a port over rings: the limit of DPDK's ring driver. */
#define RING_QUEUES 16

/*
 * Ring to which each queue of a port over rings sends; NULL for all other ports. Written only before the first use of
 * the port and after its close.
 */
static struct rte_ring *sends_to[RTE_MAX_ETHPORTS][RING_QUEUES];

/* ---- host ---- */

static int ask_interface(int fd, const char *name, struct ddpd_interface *out)
{
	struct ifreq request;

	memset(&request, 0, sizeof(request));
	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	if (ioctl(fd, SIOCGIFMTU, &request) < 0)
		return -errno;
	out->mtu = (uint32_t)request.ifr_mtu;
	if (ioctl(fd, SIOCGIFFLAGS, &request) < 0)
		return -errno;
	out->up = (request.ifr_flags & IFF_UP) != 0;
	out->running = (request.ifr_flags & IFF_RUNNING) != 0;
	if (ioctl(fd, SIOCGIFHWADDR, &request) < 0)
		return -errno;
	memcpy(out->mac, request.ifr_hwaddr.sa_data, sizeof(out->mac));
	if (ioctl(fd, SIOCGIFINDEX, &request) < 0)
		return -errno;
	out->index = (uint32_t)request.ifr_ifindex;
	return 0;
}

int ddpd_interface_get(const char *name, struct ddpd_interface *out)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int rc;

	if (fd < 0)
		return -errno;
	rc = ask_interface(fd, name, out);
	close(fd);
	return rc;
}

static int bind_packet(int fd, const char *name, uint16_t protocol)
{
	struct sockaddr_ll address;
	struct ifreq request;

	memset(&request, 0, sizeof(request));
	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	if (ioctl(fd, SIOCGIFINDEX, &request) < 0)
		return -errno;
	memset(&address, 0, sizeof(address));
	address.sll_family = AF_PACKET;
	address.sll_protocol = htons(protocol);
	address.sll_ifindex = request.ifr_ifindex;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	return 0;
}

int ddpd_packet_socket(const char *name, uint16_t protocol)
{
	/* Protocol 0: without frames before bind(2), the socket never receives frames of another interface. */
	int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int rc;

	if (fd < 0)
		return -errno;
	rc = bind_packet(fd, name, protocol);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	return fd;
}

int ddpd_interface_name(uint32_t index, char *name)
{
	return if_indextoname(index, name) == NULL ? -errno : 0;
}

int ddpd_packet_socket_index(int fd)
{
	struct sockaddr_ll address;
	socklen_t len = sizeof(address);

	memset(&address, 0, sizeof(address));
	if (getsockname(fd, (struct sockaddr *)&address, &len) < 0)
		return -errno;
	return address.sll_ifindex;
}

int ddpd_socket_family(int fd)
{
	int family = 0;
	socklen_t len = sizeof(family);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len) < 0)
		return -errno;
	return family;
}

/* ---- log ---- */

static void (*log_emit)(const char *text, size_t len, int level);

static ssize_t log_write(void *cookie, const char *text, size_t len)
{
	(void)cookie;
	log_emit(text, len, rte_log_cur_msg_loglevel());
	return (ssize_t)len;
}

int ddpd_log_capture(void (*emit)(const char *text, size_t len, int level))
{
	cookie_io_functions_t io = { .write = log_write };
	FILE *stream;

	log_emit = emit;
	stream = fopencookie(NULL, "w", io);
	if (stream == NULL)
		return -errno;
	setvbuf(stream, NULL, _IOLBF, BUFSIZ);
	return negative(rte_openlog_stream(stream));
}

void ddpd_log_level(uint32_t level)
{
	rte_log_set_global_level(level);
}

static int xdp_print(int level, const char *format, va_list args)
{
	/* LIBBPF_WARN, LIBBPF_INFO, LIBBPF_DEBUG; libxdp has the same levels. */
	static const int levels[] = { RTE_LOG_WARNING, RTE_LOG_INFO, RTE_LOG_DEBUG };
	char text[512];
	int len = vsnprintf(text, sizeof(text), format, args);

	if (len > 0)
		log_emit(text, RTE_MIN((size_t)len, sizeof(text) - 1), levels[RTE_MIN(level, 2)]);
	return len;
}

static void capture_library(const char *library, const char *setter)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
	void *(*set_print)(int (*)(int, const char *, va_list));

	if (handle == NULL)
		return;
	*(void **)&set_print = dlsym(handle, setter);
	if (set_print != NULL)
		set_print(xdp_print);
	dlclose(handle);
}

void ddpd_log_capture_xdp(void)
{
	capture_library("libbpf.so.1", "libbpf_set_print");
	capture_library("libxdp.so.1", "libxdp_set_print");
}

/* ---- environment ---- */

static int leave_out(const struct rte_memseg_list *list, void *unused)
{
	(void)unused;
	if (list->base_va == NULL || list->len == 0)
		return 0;
	return madvise(list->base_va, list->len, MADV_DONTDUMP) == 0 ? 0 : -errno;
}

/* Memory that DPDK maps later lacks MADV_DONTDUMP. */
static void leave_out_new(enum rte_mem_event event, const void *start, size_t bytes, void *unused)
{
	(void)unused;
	if (event == RTE_MEM_EVENT_ALLOC)
		(void)madvise((void *)(uintptr_t)start, bytes, MADV_DONTDUMP);
}

int ddpd_leave_out_of_core_dumps(void)
{
	/* Without hugepages DPDK has no memory events: all memory is mapped at the start. */
	(void)rte_mem_event_callback_register("ddpd-core-dumps", leave_out_new, NULL);
	return rte_memseg_list_walk(leave_out, NULL);
}

int ddpd_errno(void)
{
	return rte_errno;
}

int ddpd_lcore_id(void)
{
	unsigned id = rte_lcore_id();

	return id == LCORE_ID_ANY ? -1 : (int)id;
}

/* ---- packet buffers ---- */

static void zero_room(struct rte_mempool *pool, void *arg, void *object, unsigned index)
{
	struct rte_mbuf *m = object;

	(void)pool;
	(void)arg;
	(void)index;
	memset(m->buf_addr, 0, m->buf_len);
}

/*
 * Creates a pool as rte_pktmbuf_pool_create does, with buffers of one page each. That function does not accept the
 * needed mempool flag.
 */
static struct rte_mempool *page_pool(const char *name, uint32_t buffers, uint32_t cache, int socket)
{
	const unsigned flags = RTE_MEMPOOL_F_NO_SPREAD;
	struct rte_pktmbuf_pool_private private = { 0 };
	struct rte_mempool_objsz size;
	struct rte_mempool *pool;
	uint32_t element;

	rte_mempool_calc_obj_size(RTE_CACHE_LINE_SIZE, flags, &size);
	element = 4096 - size.header_size - size.trailer_size;
	private.mbuf_data_room_size = element - sizeof(struct rte_mbuf);
	pool = rte_mempool_create_empty(name, buffers, element, cache, sizeof(private), socket, flags);
	if (pool == NULL)
		return NULL;
	rte_errno = -rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	if (rte_errno == 0) {
		int populated;

		rte_pktmbuf_pool_init(pool, &private);
		populated = rte_mempool_populate_default(pool);
		if (populated >= 0) {
			rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
			return pool;
		}
		rte_errno = -populated;
	}
	rte_mempool_free(pool);
	return NULL;
}

/*
 * Selects the stack mempool (LIFO): the buffer freed last is allocated first, so that few buffers circulate and stay
 * in the CPU's caches. DPDK's default is a ring (FIFO). If the platform or the user has chosen other mempool
 * operations, these are used. page_pool() for AF_XDP uses the default.
 *
 * The stack takes a spinlock for each refill or flush of a thread's cache. While the holder of the lock is preempted,
 * other threads spin.
 */
static struct rte_mempool *stack_pool(const char *name, uint32_t buffers, uint32_t cache, uint16_t room,
				      int socket)
{
	if (strcmp(rte_mbuf_best_mempool_ops(), RTE_MBUF_DEFAULT_MEMPOOL_OPS) == 0) {
		struct rte_mempool *pool = rte_pktmbuf_pool_create_by_ops(name, buffers, cache, 0, room,
									  socket, "stack");

		/* The stack driver is a separate library, which may be missing. */
		if (pool != NULL || rte_errno == ENOMEM)
			return pool;
	}
	return rte_pktmbuf_pool_create(name, buffers, cache, 0, room, socket);
}

struct rte_mempool *ddpd_pool_create(const char *name, uint32_t buffers, uint32_t cache, uint16_t room,
				     int socket)
{
	/* Both kinds of pool are multi-producer: any thread may free into them. */
	struct rte_mempool *pool = room == 0 ? page_pool(name, buffers, cache, socket) :
		stack_pool(name, buffers, cache, room, socket);

	if (pool != NULL)
		rte_mempool_obj_iter(pool, zero_room, NULL);
	return pool;
}

struct rte_mbuf *ddpd_mbuf_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

int ddpd_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **bufs, unsigned count)
{
	/*
	 * Replaces rte_pktmbuf_alloc_bulk. The freeing core used the mbuf headers last, so each of them is a cache miss
	 * here. rte_pktmbuf_alloc_bulk takes the misses one after the other; this function prefetches all headers first.
	 */
	int rc = rte_mempool_get_bulk(pool, (void **)bufs, count);

	if (rc != 0)
		return negative(rc);
	for (unsigned i = 0; i < count; i++) {
		__builtin_prefetch(bufs[i], 1);
		__builtin_prefetch((char *)bufs[i] + RTE_CACHE_LINE_MIN_SIZE, 1);
	}
	for (unsigned i = 0; i < count; i++)
		rte_pktmbuf_reset(bufs[i]);
	return 0;
}

struct rte_mbuf *ddpd_mbuf_alloc_like(const struct rte_mbuf *m)
{
	return rte_pktmbuf_alloc(m->pool);
}

void ddpd_mbuf_free(struct rte_mbuf *m)
{
	rte_pktmbuf_free(m);
}

int ddpd_mbuf_linearize(struct rte_mbuf *m)
{
	return rte_pktmbuf_linearize(m);
}

void ddpd_mbuf_set_tx_checksums(struct rte_mbuf *m, int ipv6, int ip_checksum, enum ddpd_l4 l4,
				uint16_t l2_len, uint16_t l3_len)
{
	uint64_t flags = ipv6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4;

	if (ip_checksum && !ipv6)
		flags |= RTE_MBUF_F_TX_IP_CKSUM;
	if (l4 == DDPD_L4_TCP)
		flags |= RTE_MBUF_F_TX_TCP_CKSUM;
	else if (l4 == DDPD_L4_SCTP)
		flags |= RTE_MBUF_F_TX_SCTP_CKSUM;
	m->ol_flags = (m->ol_flags & ~RTE_MBUF_F_TX_OFFLOAD_MASK) | flags;
	m->l2_len = l2_len;
	m->l3_len = l3_len;
}

void ddpd_mbuf_join(struct rte_mbuf *head, struct rte_mbuf **frames, uint16_t count, uint16_t headers)
{
	struct rte_mbuf *last = head;

	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *m = frames[i];

		m->data_off += headers;
		m->data_len -= headers;
		head->pkt_len += m->data_len;
		last->next = m;
		last = m;
	}
	head->nb_segs = count + 1;
}

void ddpd_mbuf_part(struct rte_mbuf *head, struct rte_mbuf **frames, uint16_t count, uint16_t headers)
{
	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *m = frames[i];

		m->next = NULL;
		m->data_off -= headers;
		m->data_len += headers;
	}
	head->next = NULL;
	head->nb_segs = 1;
	rte_pktmbuf_free(head);
}

void ddpd_mbuf_set_tx_cut(struct rte_mbuf *m, int how, uint16_t l2_len, uint16_t l3_len, uint16_t l4_len,
			  uint16_t segment)
{
	uint64_t flags = RTE_MBUF_F_TX_TCP_SEG;

	flags |= how & DDPD_CUT_IPV6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4;
	m->outer_l2_len = 0;
	m->outer_l3_len = 0;
	if (how & DDPD_CUT_VIRTIO) {
		/*
		 * Virtio requires the length in the pseudo-header's sum (virtio 1.2 section 5.1.6.2), and Linux relies on the
		 * length when it forwards the packet. DPDK's vhost library replaces our sum by one without the length,
		 * unless the first buffer is shorter than the headers. An outer header of one byte, which the library
		 * does not use otherwise, makes the headers longer than our first buffer.
		 */
		flags |= RTE_MBUF_F_TX_OUTER_IPV4;
		m->outer_l3_len = 1;
	} else {
		flags |= RTE_MBUF_F_TX_TCP_CKSUM;
		if (!(how & DDPD_CUT_IPV6))
			flags |= RTE_MBUF_F_TX_IP_CKSUM;
	}
	m->ol_flags = (m->ol_flags & ~RTE_MBUF_F_TX_OFFLOAD_MASK) | flags;
	m->l2_len = l2_len;
	m->l3_len = l3_len;
	m->l4_len = l4_len;
	m->tso_segsz = segment;
}

enum ddpd_l4 ddpd_mbuf_tx_l4(const struct rte_mbuf *m)
{
	switch (m->ol_flags & RTE_MBUF_F_TX_L4_MASK) {
	case RTE_MBUF_F_TX_TCP_CKSUM:
		return DDPD_L4_TCP;
	case RTE_MBUF_F_TX_SCTP_CKSUM:
		return DDPD_L4_SCTP;
	default:
		return DDPD_L4_NONE;
	}
}

void ddpd_mbuf_set_rx_l4_checksum(struct rte_mbuf *m, int verdict)
{
	static const uint64_t flags[] = {
		RTE_MBUF_F_RX_L4_CKSUM_UNKNOWN,
		RTE_MBUF_F_RX_L4_CKSUM_GOOD,
		RTE_MBUF_F_RX_L4_CKSUM_BAD,
	};

	m->ol_flags = (m->ol_flags & ~RTE_MBUF_F_RX_L4_CKSUM_MASK) | flags[verdict % 3];
}

int ddpd_mbuf_rss_hash(const struct rte_mbuf *m, uint32_t *hash)
{
	*hash = m->hash.rss;
	return (m->ol_flags & RTE_MBUF_F_RX_RSS_HASH) != 0;
}

int ddpd_mbuf_rx_l4_checksum(const struct rte_mbuf *m)
{
	switch (m->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) {
	case RTE_MBUF_F_RX_L4_CKSUM_GOOD:
		return 1;
	case RTE_MBUF_F_RX_L4_CKSUM_BAD:
		return 2;
	default:
		return 0;
	}
}

/* ---- memory ---- */

int ddpd_munmap(void *start, size_t bytes)
{
	return (int)syscall(SYS_munmap, start, bytes);
}

void *ddpd_munmap_of_drivers(void)
{
	return dlsym(RTLD_DEFAULT, "munmap");
}

/* ---- ports ---- */

int ddpd_port_info(uint16_t port, struct ddpd_port_info *out)
{
	struct rte_eth_dev_info info;
	int rc = rte_eth_dev_info_get(port, &info);

	if (rc != 0)
		return negative(rc);
	memset(out, 0, sizeof(*out));
	if (info.driver_name != NULL)
		snprintf(out->driver, sizeof(out->driver), "%s", info.driver_name);
	out->numa_socket = rte_eth_dev_socket_id(port);
	out->max_rx_queues = info.max_rx_queues;
	out->max_tx_queues = info.max_tx_queues;
	out->max_rx_packet = info.max_rx_pktlen;
	out->min_rx_buffer = info.min_rx_bufsize;
	out->max_mtu = info.max_mtu;
	out->reta_size = info.reta_size;
	out->hash_key_size = info.hash_key_size;
	out->rx_desc_max = info.rx_desc_lim.nb_max;
	out->tx_desc_max = info.tx_desc_lim.nb_max;
	out->rss_functions = info.flow_type_rss_offloads;
	out->rx_offloads = info.rx_offload_capa;
	out->tx_offloads = info.tx_offload_capa;
	/* Drivers without a limit leave the field at 0. */
	out->tx_segments_max = info.tx_desc_lim.nb_seg_max != 0 ? info.tx_desc_lim.nb_seg_max : UINT16_MAX;
	return 0;
}

int ddpd_port_configure(uint16_t port, struct ddpd_port_conf *want, struct rte_mempool *pool,
			int socket)
{
	struct rte_eth_conf conf = { 0 };
	mode_t mask = 0;
	uint16_t q;
	int rc;

	conf.rxmode.offloads = want->rx_offloads;
	conf.txmode.offloads = want->tx_offloads;
	conf.rxmode.mtu = want->mtu != 0 ? want->mtu : RTE_ETHER_MTU;
	conf.intr_conf.rxq = want->queue_interrupts;
	if (want->rss_key != NULL) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_key = (uint8_t *)(uintptr_t)want->rss_key;
		conf.rx_adv_conf.rss_conf.rss_key_len = want->rss_key_len;
		conf.rx_adv_conf.rss_conf.rss_hf = want->rss_functions;
	}
	/* net_vhost creates its socket here. The umask also restricts files that other threads create meanwhile. */
	if (want->private_files)
		mask = umask(S_IXUSR | S_IRWXG | S_IRWXO);
	rc = rte_eth_dev_configure(port, want->rx_queues, want->tx_queues, &conf);
	if (want->private_files)
		umask(mask);
	if (rc != 0)
		return negative(rc);
	rc = rte_eth_dev_adjust_nb_rx_tx_desc(port, &want->rx_descriptors,
					      &want->tx_descriptors);
	if (rc != 0)
		return negative(rc);
	for (q = 0; q < want->rx_queues; q++) {
		rc = rte_eth_rx_queue_setup(port, q, want->rx_descriptors, socket, NULL, pool);
		if (rc != 0)
			return negative(rc);
	}
	for (q = 0; q < want->tx_queues; q++) {
		rc = rte_eth_tx_queue_setup(port, q, want->tx_descriptors, socket, NULL);
		if (rc != 0)
			return negative(rc);
	}
	return 0;
}

int ddpd_port_set_mtu(uint16_t port, uint16_t mtu)
{
	return negative(rte_eth_dev_set_mtu(port, mtu));
}

int ddpd_port_reta(uint16_t port, const uint16_t *table, uint16_t entries)
{
	struct rte_eth_rss_reta_entry64 reta[(RTE_ETH_RSS_RETA_SIZE_512 + RTE_ETH_RETA_GROUP_SIZE - 1) /
					     RTE_ETH_RETA_GROUP_SIZE];
	uint16_t i;

	if (entries > RTE_ETH_RSS_RETA_SIZE_512)
		return -EINVAL;
	memset(reta, 0, sizeof(reta));
	for (i = 0; i < entries; i++) {
		reta[i / RTE_ETH_RETA_GROUP_SIZE].mask |= UINT64_C(1) << (i % RTE_ETH_RETA_GROUP_SIZE);
		reta[i / RTE_ETH_RETA_GROUP_SIZE].reta[i % RTE_ETH_RETA_GROUP_SIZE] = table[i];
	}
	return negative(rte_eth_dev_rss_reta_update(port, reta, entries));
}

static int sctp_rule(uint16_t port, int ipv6, const struct rte_flow_action_rss *rss)
{
	const struct rte_flow_attr attr = { .ingress = 1 };
	const struct rte_flow_item pattern[] = {
		{ .type = RTE_FLOW_ITEM_TYPE_ETH },
		{ .type = ipv6 ? RTE_FLOW_ITEM_TYPE_IPV6 : RTE_FLOW_ITEM_TYPE_IPV4 },
		{ .type = RTE_FLOW_ITEM_TYPE_SCTP },
		{ .type = RTE_FLOW_ITEM_TYPE_END },
	};
	const struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_RSS, .conf = rss },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_error error = { 0 };
	int rc = rte_flow_validate(port, &attr, pattern, actions, &error);

	if (rc != 0)
		return negative(rc);
	rte_errno = EINVAL;
	if (rte_flow_create(port, &attr, pattern, actions, &error) == NULL)
		return negative(rte_errno);
	return 0;
}

int ddpd_port_sctp_rule(uint16_t port, int ipv6, const uint8_t *key, uint32_t key_len,
			const uint16_t *queues, uint32_t count)
{
	const uint64_t ip = ipv6 ? RTE_ETH_RSS_IPV6 : RTE_ETH_RSS_IPV4;
	const uint64_t sctp = ipv6 ? RTE_ETH_RSS_NONFRAG_IPV6_SCTP : RTE_ETH_RSS_NONFRAG_IPV4_SCTP;
	/*
	 * Two sets of RSS types for the same fields. The first, without an SCTP type, is tried first, because i40e's SCTP type
	 * includes the verification tag. Most drivers refuse the first set.
	 */
	const uint64_t types[] = {
		ip | RTE_ETH_RSS_PORT | RTE_ETH_RSS_L3_DST_ONLY,
		sctp | RTE_ETH_RSS_L3_DST_ONLY,
	};
	int rc = -EINVAL;

	for (unsigned i = 0; i < RTE_DIM(types); i++) {
		/* Some drivers require key and queues in the rule. Others refuse these, and use the port's key and queues. */
		const struct rte_flow_action_rss whole = {
			.types = types[i],
			.key_len = key_len,
			.key = key,
			.queue_num = count,
			.queue = queues,
		};
		const struct rte_flow_action_rss of_port = { .types = types[i] };

		rc = sctp_rule(port, ipv6, &whole);
		if (rc != 0)
			rc = sctp_rule(port, ipv6, &of_port);
		if (rc == 0)
			break;
	}
	return rc;
}

int ddpd_port_flush_rules(uint16_t port)
{
	struct rte_flow_error error = { 0 };

	return negative(rte_flow_flush(port, &error));
}

uint32_t ddpd_softrss(uint32_t *words, uint32_t count, const uint8_t *key)
{
	return rte_softrss(words, count, key);
}

int ddpd_port_stats(uint16_t port, struct ddpd_port_stats *out)
{
	struct rte_eth_stats s;
	int rc = rte_eth_stats_get(port, &s);

	if (rc != 0)
		return negative(rc);
	out->rx_packets = s.ipackets;
	out->tx_packets = s.opackets;
	out->rx_bytes = s.ibytes;
	out->tx_bytes = s.obytes;
	out->rx_missed = s.imissed;
	out->rx_errors = s.ierrors;
	out->tx_errors = s.oerrors;
	out->rx_no_buffer = s.rx_nombuf;
	return 0;
}

int ddpd_port_link(uint16_t port, struct ddpd_link *out)
{
	struct rte_eth_link link;
	int rc;

	memset(&link, 0, sizeof(link));
	rc = rte_eth_link_get_nowait(port, &link);
	if (rc != 0)
		return negative(rc);
	out->up = link.link_status == RTE_ETH_LINK_UP;
	out->mbit_per_s = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
	return 0;
}

int ddpd_port_mac(uint16_t port, uint8_t mac[6])
{
	struct rte_ether_addr addr;
	int rc = rte_eth_macaddr_get(port, &addr);

	if (rc == 0)
		memcpy(mac, addr.addr_bytes, 6);
	return negative(rc);
}

int ddpd_port_by_name(const char *name, uint16_t *port)
{
	return negative(rte_eth_dev_get_port_by_name(name, port));
}

int ddpd_port_remove(uint16_t port)
{
	struct rte_eth_dev_info info;
	int rc = rte_eth_dev_info_get(port, &info);

	if (rc != 0)
		return negative(rc);
	rc = rte_eth_dev_close(port);
	if (rc != 0)
		return negative(rc);
	memset(sends_to[port], 0, sizeof(sends_to[port]));
	return negative(rte_dev_remove(info.device));
}

int ddpd_port_rx_fd(uint16_t port, uint16_t queue)
{
	return rte_eth_dev_rx_intr_ctl_q_get_fd(port, queue);
}

int ddpd_port_rx_epoll(uint16_t port, uint16_t queue, int epfd, int add)
{
	return negative(rte_eth_dev_rx_intr_ctl_q(port, queue, epfd,
						  add ? RTE_INTR_EVENT_ADD : RTE_INTR_EVENT_DEL, NULL));
}

void ddpd_epoll_clear(int epfd)
{
	struct rte_epoll_event event;

	rte_epoll_wait(epfd, &event, 1, 0);
}

/*
 * Prefetches the cache lines that a ring's sender will access and the receiver used last: the consumer's index and the
 * next entry. The line with the producer's index is not prefetched, because the receiver polls that line.
 */
static void prefetch_entry(const struct rte_ring *ring)
{
	void *const *entries = (void *const *)&ring[1];

	__builtin_prefetch((const void *)&ring->cons);
	__builtin_prefetch(&entries[ring->prod.head & ring->mask], 1);
}

uint16_t ddpd_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count)
{
	uint16_t n = rte_eth_rx_burst(port, queue, bufs, count);

	/* A single received frame is often answered by a single frame. */
	if (n == 1 && sends_to[port][queue % RING_QUEUES] != NULL)
		prefetch_entry(sends_to[port][queue % RING_QUEUES]);
	return n;
}

uint16_t ddpd_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, bufs, count);
}

int ddpd_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf *m)
{
	return rte_eth_tx_prepare(port, queue, &m, 1) == 1;
}

/* ---- rings ---- */

int ddpd_port_from_rings(const char *name, struct rte_ring **rx, struct rte_ring **tx,
			 unsigned count, int socket)
{
	int port = rte_eth_from_rings(name, rx, count, tx, count, (unsigned)socket);

	if (port < 0)
		return negative(rte_errno);
	for (unsigned i = 0; i < count && i < RING_QUEUES; i++)
		sends_to[port][i] = tx[i];
	return port;
}

struct rte_ring *ddpd_ring_create(const char *name, unsigned size, int socket)
{
	return rte_ring_create(name, size, socket, RING_F_SP_ENQ | RING_F_SC_DEQ);
}

void ddpd_ring_free_with_mbufs(struct rte_ring *ring)
{
	void *m;

	while (rte_ring_dequeue(ring, &m) == 0)
		rte_pktmbuf_free(m);
	rte_ring_free(ring);
}

/* ---- vhost-user ---- */

/* The second ring of a queue pair carries the frontend's sent frames. */
static uint16_t sending_ring(uint16_t queue)
{
	return queue * 2 + 1;
}

static int vhost_changed(uint16_t port, enum rte_eth_event_type type, void *arg, void *ret)
{
	const struct ddpd_vhost_watch *watch = arg;

	(void)port;
	(void)type;
	(void)ret;
	watch->changed(watch->arg);
	return 0;
}

static int vhost_queues(uint16_t port, enum rte_eth_event_type type, void *arg, void *ret)
{
	const struct ddpd_vhost_watch *watch = arg;

	(void)port;
	(void)type;
	(void)ret;
	watch->queues(watch->arg);
	return 0;
}

int ddpd_vhost_watch(uint16_t port, const struct ddpd_vhost_watch *watch)
{
	void *arg = (void *)(uintptr_t)watch;
	int rc = rte_eth_dev_callback_register(port, RTE_ETH_EVENT_QUEUE_STATE, vhost_queues, arg);

	/* The vhost library logs an error for each malformed descriptor of a guest, which could fill the log. */
	rte_log_set_level_pattern("lib.vhost.data", RTE_LOG_CRIT);
	if (rc == 0)
		rc = rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_LSC, vhost_changed, arg);
	if (rc != 0)
		return negative(rc);
	return 0;
}

int ddpd_vhost_unwatch(uint16_t port, const struct ddpd_vhost_watch *watch)
{
	void *arg = (void *)(uintptr_t)watch;
	int rc = rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_QUEUE_STATE, vhost_queues, arg);

	if (rc == 0)
		rc = rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_LSC, vhost_changed, arg);
	if (rc != 0)
		return negative(rc);
	return 0;
}

int ddpd_vhost_frontend(uint16_t port)
{
	return rte_eth_vhost_get_vid_from_port_id(port);
}

uint64_t ddpd_vhost_features(int frontend)
{
	uint64_t features = 0;

	return rte_vhost_get_negotiated_features(frontend, &features) == 0 ? features : 0;
}

uint16_t ddpd_vhost_ring_size(int frontend, uint16_t queue)
{
	struct rte_vhost_vring ring;

	/* The first ring of a pair carries the frames that the frontend receives. */
	if (rte_vhost_get_vhost_vring(frontend, queue * 2, &ring) != 0)
		return 0;
	return ring.size;
}

int ddpd_vhost_kick_fd(int frontend, uint16_t queue)
{
	struct rte_vhost_vring ring;

	if (rte_vhost_get_vhost_vring(frontend, sending_ring(queue), &ring) != 0)
		return -1;
	return ring.kickfd;
}

void ddpd_vhost_notify(int frontend, uint16_t queue, int on)
{
	rte_vhost_enable_guest_notification(frontend, sending_ring(queue), on);
	/* A later check for waiting frames must not be ordered before this write is visible to the frontend. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

uint32_t ddpd_vhost_waiting(int frontend, uint16_t queue)
{
	return rte_vhost_rx_queue_count(frontend, sending_ring(queue));
}

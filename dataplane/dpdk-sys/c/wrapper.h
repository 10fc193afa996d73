/*
 * Input of bindgen: the shim, the few DPDK functions that are called directly, and the offsets and flags of
 * the installed headers. build.rs holds the allowlist.
 */
#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

#include "shim.h"

enum ddpd_offsets {
	DDPD_MBUF_SIZE = sizeof(struct rte_mbuf),
	DDPD_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	DDPD_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	DDPD_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	DDPD_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	DDPD_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	DDPD_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	DDPD_HEADROOM = RTE_PKTMBUF_HEADROOM,
};

/* Release of the installed headers. */
enum ddpd_release {
	DDPD_HEADERS_YEAR = RTE_VER_YEAR,
	DDPD_HEADERS_MONTH = RTE_VER_MONTH,
};

enum ddpd_flags {
	DDPD_RX_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM,
	DDPD_RX_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM,
	DDPD_RX_SCTP_CKSUM = RTE_ETH_RX_OFFLOAD_SCTP_CKSUM,
	DDPD_RX_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH,
	DDPD_TX_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM,
	DDPD_TX_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM,
	DDPD_TX_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO,
	DDPD_TX_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS,
	DDPD_TX_SCTP_CKSUM = RTE_ETH_TX_OFFLOAD_SCTP_CKSUM,
	DDPD_RSS_IPV4 = RTE_ETH_RSS_IPV4,
	DDPD_RSS_IPV6 = RTE_ETH_RSS_IPV6,
	DDPD_RSS_TCP4 = RTE_ETH_RSS_NONFRAG_IPV4_TCP,
	DDPD_RSS_TCP6 = RTE_ETH_RSS_NONFRAG_IPV6_TCP,
	DDPD_RSS_SCTP4 = RTE_ETH_RSS_NONFRAG_IPV4_SCTP,
	DDPD_RSS_SCTP6 = RTE_ETH_RSS_NONFRAG_IPV6_SCTP,
	DDPD_RSS_PORT = RTE_ETH_RSS_PORT,
};

/* Items and actions of flow rules, for tests that replace a driver. */
enum ddpd_rule {
	DDPD_ITEM_END = RTE_FLOW_ITEM_TYPE_END,
	DDPD_ITEM_ETH = RTE_FLOW_ITEM_TYPE_ETH,
	DDPD_ITEM_IPV4 = RTE_FLOW_ITEM_TYPE_IPV4,
	DDPD_ITEM_IPV6 = RTE_FLOW_ITEM_TYPE_IPV6,
	DDPD_ITEM_SCTP = RTE_FLOW_ITEM_TYPE_SCTP,
	DDPD_ACTION_END = RTE_FLOW_ACTION_TYPE_END,
	DDPD_ACTION_RSS = RTE_FLOW_ACTION_TYPE_RSS,
};

/* Features of virtio-net (virtio 1.2 section 5.1.3), bit numbers. */
enum ddpd_virtio_net {
	DDPD_VIRTIO_GUEST_CSUM = 1,
	DDPD_VIRTIO_GUEST_TSO4 = 7,
	DDPD_VIRTIO_GUEST_TSO6 = 8,
	DDPD_VIRTIO_MRG_RXBUF = 15,
};

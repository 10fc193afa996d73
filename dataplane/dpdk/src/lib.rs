//! Safe wrappers of DPDK: environment, packet buffers, pools, devices and their queues.
//!
//! Each value owns its resource and releases it when dropped. A return code of C becomes a typed
//! error at one place ([`Error`]). Queues are `Send` and not `Sync`: one thread at a time uses one, as
//! DPDK asks. Threads are the caller's; those that touch packet buffers often register themselves
//! ([`Eal::register_thread`]) so that pools give them a cache.
//!
//! Not here: what a port of the appliance is, and how one is described (`dataplane::port`); DPDK's own
//! threads, multi-process, timers and flow rules.

mod device;
mod eal;
mod error;
mod gate;
mod handle;
mod host;
mod interrupts;
mod large;
mod log;
mod mbuf;
mod mempool;
mod pool;
pub mod prefetch;
mod queue;
mod recipe;
mod remake;
mod ring;
mod rings;
mod rx_interrupt;
mod softrss;
mod types;
mod unmapping;
mod vhost;

pub use device::{Device, Started};
pub use eal::{Eal, EalConfig, ThreadRegistration, next_id, version};
pub use error::{EalError, Error, StartError};
pub use host::{
    CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, Interface, has_capability, interface,
    interface_name, packet_socket,
};
pub use large::Sent;
pub use log::LogLevel;
pub use mbuf::{HEADROOM, Mbuf, RxChecksum, TxChecksums, TxL4};
pub use mempool::{Mempool, MempoolConfig, Room};
pub use port_kind::policy::Hugepages;
pub use queue::{RxQueue, TxQueue};
pub use ring::ring_pair;
pub use softrss::softrss;
pub use types::{
    DeviceConfig, DeviceInfo, DeviceStats, IdleFd, LARGE_HEADERS, LargePacket, LinkState, Rss,
    RxOffloads, SctpRules, Segmentation, TxOffloads,
};

//! Safe wrappers of DPDK: environment, packet buffers, pools, devices and their queues.
//!
//! Each value owns its resource and releases it on drop. C return codes become typed errors ([`Error`]). Queues are
//! `Send` and not `Sync`, because DPDK allows only one thread at a time to use a queue. The caller creates the threads.
//! Threads that often use packet buffers should register ([`Eal::register_thread`]), so that each pool has a buffer
//! cache for them.
//!
//! Not included: ports of the appliance and their configuration (`dataplane::port`); DPDK's own threads, multi-process
//! support, timers, and flow rules except for SCTP.

mod coalescer;
mod device;
mod eal;
mod error;
mod gate;
mod handle;
mod host;
mod interrupts;
mod log;
mod mbuf;
mod mempool;
mod munmap;
mod pool;
pub mod prefetch;
mod queue;
mod recipe;
mod recreate;
mod ring;
mod rings;
mod rx_interrupt;
mod softrss;
mod types;
mod vhost;

pub use coalescer::BurstResult;
pub use device::{Device, StartedDevice};
pub use eal::{Eal, EalConfig, ThreadRegistration, next_id, version};
pub use error::{EalError, Error, StartError};
pub use host::{
    CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, Interface, has_capability, interface,
    interface_name, packet_socket,
};
pub use log::LogLevel;
pub use mbuf::{HEADROOM, Mbuf, RxChecksum, TxChecksums, TxL4};
pub use mempool::{DataRoom, Mempool, MempoolConfig};
pub use port_kind::policy::Hugepages;
pub use queue::{RxQueue, TxQueue};
pub use ring::ring_pair;
pub use softrss::softrss;
pub use types::{
    DeviceConfig, DeviceInfo, DeviceStats, IdleFd, LARGE_HEADERS, LargePacket, LinkState, Rss,
    RxOffloads, SctpRules, Segmentation, TxOffloads,
};

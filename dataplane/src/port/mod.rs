//! Ports: the devices that receive and send frames, behind one interface. Used by `io`, which the workers call.
//!
//! [`PortFactory::open`] turns a [`PortConfig`] into a [`Port`] and several [`PortQueue`]s. The control thread owns
//! the [`Port`]. Each worker owns one [`PortQueue`]. [`PortInfo`] lists the functions that the device offloads
//! (checksums, RSS, segmentation). The layers above perform the other functions in software.
//!
//! ```text
//!  control thread           worker 0          worker 1
//!  Port ── link, counters   PortQueue 0       PortQueue 1
//!     └────────────────── one device of DPDK ──────┘
//! ```
//!
//! A port does not interpret the contents of frames, except to merge TCP segments ([`large_packet`]). Lengths are in
//! bytes. An MTU is the maximum length of an IP packet. A frame has 14 bytes more, or 18 with a VLAN tag.

mod claim;
mod device;
mod error;
mod kind;
pub mod large_packet;
mod queue;
mod queue_capture;
mod ring;
mod rss;
mod shared;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dpdk::{
    Device, DeviceInfo, Eal, LinkState, Mempool, MempoolConfig, RxQueue, StartError, StartedDevice,
};

pub use device::{DeviceFault, DeviceView};
pub use dpdk::{DeviceStats, Mbuf, RxChecksum, TxChecksums, TxL4};
pub use error::PortError;
use port_kind::MEMIF_MAX_BUFFERS;
pub use port_kind::{
    ChecksumMode, FRAME_OVERHEAD, MAX_MTU, MIN_MTU, MemifRole, PortKind, SegmentationMode,
};
pub use queue::{BURST, PortQueue, RxBatch, Segmenter};
pub use rss::RssTable;
pub use shared::QueueCounters;

use claim::Claim;
use device::Binding;
use ring::{RingEnd, RingLink};
use shared::SharedQueueState;

/// Parameters of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Name of the port in errors and reports.
    pub name: String,
    /// Kind of the port, with its driver's parameters.
    pub kind: PortKind,
    /// MTU: largest IP packet in bytes, from [`MIN_MTU`] to [`PortKind::max_mtu`].
    pub mtu: u16,
    /// Computation and verification of checksums: by the device as far as possible, by the worker, or none for TCP.
    pub checksum: ChecksumMode,
    /// TCP segmentation: by the device or a vhost-user frontend if it supports this, or by the worker.
    pub segmentation: SegmentationMode,
    /// Link-layer address. `None`: the device's address, or a random locally administered address if the device has
    /// none. TAP and vhost-user ports then always have a random address.
    pub mac: Option<[u8; 6]>,
    /// Number of RX queues, and of TX queues: one of each for each worker that uses the port, 1 to 16.
    pub queues: u16,
    /// Receive descriptors per queue, a power of two from 64 to 16384.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue, a power of two from 64 to 16384.
    pub tx_descriptors: u16,
    /// Number of packet buffers of the port. `None`: twice the number that full rings, worker caches and queues hold,
    /// plus the frames that an impairment may hold, at most 16384.
    pub buffers: Option<u32>,
    /// NUMA node of the buffers; `None` is the device's node.
    pub numa: Option<u32>,
    /// Impairment of received frames (loss, reordering, …). Only for `Ring`.
    pub impair: Option<link::Config>,
    /// True if workers of the port may sleep when idle. A PCI device is then set up with receive interrupts, if
    /// it has any.
    pub may_sleep: bool,
    /// True if another port may also receive the frames of this port's Linux interface. Only for `AfPacket`, for tools
    /// that run on the same host as an appliance.
    pub shares_interface: bool,
}

/// Site that computes or verifies one kind of checksum on an open port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumSite {
    /// The device. Packet buffers contain its result for received frames. If the result is [`RxChecksum::Unknown`], the
    /// worker verifies the frame.
    Device,
    /// The worker.
    Software,
    /// Neither: the checksum is not computed and not verified.
    Skipped,
}

/// Sites that compute and verify the checksums on an open port. The worker always handles ICMP checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// IPv4 header, received. Never `Skipped`.
    pub rx_ip: ChecksumSite,
    /// TCP, received.
    pub rx_tcp: ChecksumSite,
    /// SCTP, received, not encapsulated in UDP. Never `Skipped`.
    pub rx_sctp: ChecksumSite,
    /// IPv4 header, sent. Never `Skipped`.
    pub tx_ip: ChecksumSite,
    /// TCP, sent.
    pub tx_tcp: ChecksumSite,
    /// SCTP, sent, not encapsulated in UDP. Never `Skipped`.
    pub tx_sctp: ChecksumSite,
}

impl Checksums {
    /// The worker computes and verifies all checksums.
    const SOFTWARE: Checksums = Checksums {
        rx_ip: ChecksumSite::Software,
        rx_tcp: ChecksumSite::Software,
        rx_sctp: ChecksumSite::Software,
        tx_ip: ChecksumSite::Software,
        tx_tcp: ChecksumSite::Software,
        tx_sctp: ChecksumSite::Software,
    };
}

/// Properties of an open port, constant while it is open.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Name of the port.
    pub name: String,
    /// Kind of the port, with its driver's parameters.
    pub kind: PortKind,
    /// Name of the DPDK driver.
    pub driver: String,
    /// Link-layer address at the time of opening. [`Port::mac`] returns the current address.
    pub mac: [u8; 6],
    /// MTU: largest IP packet in bytes.
    pub mtu: u16,
    /// Number of RX queues, and of TX queues: one of each for each worker that uses the port.
    pub queues: u16,
    /// Sites that compute and verify the checksums.
    pub checksums: Checksums,
    /// Device or frontend that segments large packets, if either does.
    pub segmenter: Option<Segmenter>,
    /// Map from RSS hash to queue.
    pub rss: RssTable,
    /// Number of packet buffers of the port.
    pub buffers: u32,
    /// Messages for the operator, one sentence each, mainly about requested properties that the device lacks.
    pub statements: Vec<String>,
}

/// The factory of all ports of the process. Clones share its state.
#[derive(Clone, Debug)]
pub struct PortFactory {
    eal: Eal,
    /// Unopened second ends of ring pairs, by link name. The first end of each pair is open.
    unjoined: Arc<Mutex<HashMap<String, UnjoinedEnd>>>,
    /// Sockets of memif servers in this process.
    memif_sockets: Arc<Mutex<BTreeSet<PathBuf>>>,
}

/// The second end of a ring pair, created with the first and not opened yet.
#[derive(Debug)]
struct UnjoinedEnd {
    device: Device,
    queues: u16,
    link: Arc<RingLink>,
}

/// The control thread's part of an open port. The device closes when the port and all its queues are dropped.
#[derive(Debug)]
pub struct Port {
    info: Arc<PortInfo>,
    device: StartedDevice,
    pool: Mempool,
    queues: Vec<PortQueue>,
    shared: Vec<Arc<SharedQueueState>>,
    ring: Option<RingEnd>,
    binding: Binding,
    /// True if the port claims its Linux interface for exclusive use. The port renews the claim when it is bound to the
    /// interface again.
    has_claim: bool,
    /// The current claim. `None` if the port claims no interface, or if a renewal has failed.
    claim: Mutex<Option<Claim>>,
}

impl PortFactory {
    /// Creates the factory for ports of this EAL.
    pub fn new(eal: Eal) -> PortFactory {
        PortFactory { eal, unjoined: Arc::default(), memif_sockets: Arc::default() }
    }

    /// Returns the EAL in which the ports are opened.
    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    /// Opens a port: creates the device, its pool and its queues, and starts the device. Blocks for up to a second if
    /// an AF_XDP socket is unavailable: the kernel releases the queues of a closed socket or a killed process with a
    /// delay.
    pub fn open(&self, config: &PortConfig) -> Result<Port, PortError> {
        for _ in 0..20 {
            match self.try_open(config) {
                Err(PortError::Xdp { .. }) => std::thread::sleep(Duration::from_millis(50)),
                done => return done,
            }
        }
        self.try_open(config)
    }

    /// Makes one attempt of [`open`](Self::open).
    fn try_open(&self, config: &PortConfig) -> Result<Port, PortError> {
        config.check()?;
        let mut served = self.memif_sockets.lock().unwrap_or_else(PoisonError::into_inner);
        kind::check_host(config, &served)?;
        let mut statements = Vec::new();
        let claim = claim::claim(config)?;
        let (device, ring) = self.create_device(config)?;
        let dpdk_failed = |error| kind::port_error(config, error);
        let device_info = device.info().map_err(dpdk_failed)?;
        config.check_device(&device_info)?;
        let checksums = choose_checksums(config, &device_info, &mut statements);
        let segmenter = choose_segmenter(config, checksums, &device_info, &mut statements);
        let (rss, mut table) = rss::choose_rss(config, &device_info, &mut statements);
        let mac = choose_mac(config, &device);
        let set_up = kind::device_config(config, checksums, segmenter, rss);
        let pool = MempoolConfig {
            buffers: config.pool_buffers(),
            data_room: kind::data_room(config),
            numa: config.numa.or(device_info.numa),
        };
        let (device, rx, tx) = device.start(&set_up, pool).map_err(|error| match error {
            StartError::Device(error) => kind::port_error(config, error),
            StartError::Pool(error) => PortError::NoMemory {
                port: config.name.clone(),
                mib: (config.pool_bytes() >> 20) + 1,
                error,
            },
        })?;
        let pool = device.pool().clone();
        rss::apply_rules(&mut table, device.sctp_rules(), &mut statements);
        if let PortKind::Memif { socket, role: MemifRole::Server, .. } = &config.kind {
            served.insert(socket.clone());
        }
        kind::add_statements(config, &mut statements);
        if config.may_sleep
            && matches!(config.kind, PortKind::Pci { .. })
            && !rx.iter().all(RxQueue::has_interrupt)
        {
            statements.push(kind::NO_INTERRUPT.to_owned());
        }
        let info = Arc::new(PortInfo {
            name: config.name.clone(),
            kind: config.kind.clone(),
            driver: device_info.driver,
            mac,
            mtu: config.mtu,
            queues: config.queues,
            checksums,
            segmenter,
            rss: table,
            buffers: pool.config().buffers,
            statements,
        });
        let queues: Vec<PortQueue> = rx
            .into_iter()
            .zip(tx)
            .map(|(rx, tx)| {
                let bells = ring.as_ref().map(|ring| ring.ring_wakes(rx.index()));
                PortQueue::new(info.clone(), rx, tx, pool.clone(), config.impair.as_ref(), bells)
            })
            .collect();
        if let Some(ring) = &ring {
            ring.set_open(true);
        }
        let shared = queues.iter().map(|queue| queue.shared().clone()).collect();
        let binding = Binding::new(&config.kind, mac, config.mac.is_some());
        Ok(Port {
            info,
            device,
            pool,
            queues,
            shared,
            ring,
            binding,
            has_claim: claim.is_some(),
            claim: Mutex::new(claim),
        })
    }

    /// Returns the names of the ring links with only one open end, sorted.
    pub fn unjoined_links(&self) -> Vec<String> {
        let waiting = self.unjoined.lock().unwrap_or_else(PoisonError::into_inner);
        let mut links: Vec<String> = waiting.keys().cloned().collect();
        links.sort();
        links
    }

    /// Creates the device of a port; for a ring port, also the port's end of the link.
    fn create_device(&self, config: &PortConfig) -> Result<(Device, Option<RingEnd>), PortError> {
        let failed = |error| kind::port_error(config, error);
        match &config.kind {
            PortKind::Ring { link } => {
                let (device, end) = self.ring_end(config, link)?;
                Ok((device, Some(end)))
            }
            PortKind::Pci { address, .. } => {
                Ok((Device::pci(&self.eal, address).map_err(failed)?, None))
            }
            _ => {
                let (name, args) = kind::virtual_device(config);
                Ok((Device::virtual_device(&self.eal, &name, &args).map_err(failed)?, None))
            }
        }
    }

    /// Returns an end of a ring link: the second end if the first is open, otherwise the first end of a new pair.
    fn ring_end(&self, config: &PortConfig, link: &str) -> Result<(Device, RingEnd), PortError> {
        let mut waiting = self.unjoined.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = waiting.get(link) {
            if end.queues != config.queues {
                return Err(PortError::RingQueues {
                    port: config.name.clone(),
                    link: link.to_owned(),
                    queues: config.queues,
                    other: end.queues,
                });
            }
            let end = waiting.remove(link).expect("present, as checked under this lock");
            return Ok((end.device, RingEnd::new(end.link, 1)));
        }
        let slots = u32::from(config.tx_descriptors);
        let (own, other) = dpdk::ring_pair(&self.eal, config.queues, slots)
            .map_err(|error| kind::port_error(config, error))?;
        let state = RingLink::new(config.queues)
            .map_err(|error| PortError::Descriptor { port: config.name.clone(), error })?;
        let state = Arc::new(state);
        let end = UnjoinedEnd { device: other, queues: config.queues, link: state.clone() };
        waiting.insert(link.to_owned(), end);
        Ok((own, RingEnd::new(state, 0)))
    }
}

impl Port {
    /// Returns the port's properties.
    pub fn info(&self) -> &Arc<PortInfo> {
        &self.info
    }

    /// Takes the queues, in order, for the workers. A second call returns an empty list.
    pub fn take_queues(&mut self) -> Vec<PortQueue> {
        std::mem::take(&mut self.queues)
    }

    /// Returns the current link state. A memif or vhost-user port is up while a peer is connected. A ring is up while
    /// both ends are open. For a Linux interface, see [`view`](Self::view).
    pub fn link(&self) -> LinkState {
        self.view().link
    }

    /// Returns the link of a device that is not a Linux interface.
    fn device_link(&self) -> LinkState {
        match &self.ring {
            Some(ring) => LinkState { up: ring.is_joined(), mbit_per_s: None },
            None => self.device.link(),
        }
    }

    /// Returns the device's own counters, if the driver supports them. The queues' counters are separate
    /// ([`queue_counters`](Self::queue_counters)).
    pub fn device_stats(&self) -> Result<DeviceStats, dpdk::Error> {
        self.device.stats()
    }

    /// Returns the counters of each queue and of the impairment of its received frames, as of the worker's last
    /// [`PortQueue::flush`].
    pub fn queue_counters(&self) -> Vec<(QueueCounters, Option<link::Counters>)> {
        self.shared.iter().map(|queue| queue.load_counters()).collect()
    }

    /// Returns the approximate number of free packet buffers.
    pub fn free_buffers(&self) -> u32 {
        self.pool.available()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring {
            ring.set_open(false);
        }
    }
}

impl PortConfig {
    /// Returns the defaults: 1024 descriptors, one queue, MTU 1500, checksums by the device.
    pub fn new(name: impl Into<String>, kind: PortKind) -> PortConfig {
        PortConfig {
            name: name.into(),
            segmentation: kind.default_segmentation(),
            kind,
            mtu: 1500,
            checksum: ChecksumMode::Offload,
            mac: None,
            queues: 1,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            buffers: None,
            numa: None,
            impair: None,
            may_sleep: true,
            shares_interface: false,
        }
    }

    /// Returns the memory of the port's packet buffers, in bytes. [`dpdk::EalConfig::memory_mib`] must cover the sum
    /// over all ports.
    pub fn pool_bytes(&self) -> u64 {
        // Headers of the packet buffer and of the mempool element, rounded up to cache lines, with padding for memory
        // channels.
        const PER_BUFFER: u64 = 320;
        u64::from(self.pool_buffers())
            * (PER_BUFFER + dpdk::HEADROOM as u64 + u64::from(kind::data_room(self).bytes()))
    }

    /// Returns the bytes of shared memory that the port allocates for both ends of a memif link, in addition to its
    /// packet buffers.
    pub fn shared_bytes(&self) -> u64 {
        let buffers = self.kind.shared_buffers(self.queues, self.tx_descriptors);
        u64::from(buffers) * u64::from(kind::data_room(self).bytes())
    }

    fn pool_buffers(&self) -> u32 {
        self.buffers.unwrap_or_else(|| {
            let rings = u32::from(self.rx_descriptors) + u32::from(self.tx_descriptors);
            let in_hand =
                Mempool::CACHE + (PortQueue::PENDING + PortQueue::ALLOC_BATCH + BURST) as u32;
            let impaired =
                self.impair.as_ref().map_or(0, |link| link.max_frames.min(16_384) as u32);
            2 * u32::from(self.queues) * (rings + in_hand) + impaired
        })
    }

    /// Checks the configuration alone, without access to the machine.
    fn check(&self) -> Result<(), PortError> {
        let port = || self.name.clone();
        let max = self.kind.max_mtu();
        if !(MIN_MTU..=max).contains(&self.mtu) {
            return Err(PortError::Mtu {
                port: port(),
                mtu: self.mtu,
                min: MIN_MTU,
                max,
                why: self.kind.name(),
            });
        }
        if !(1..=16).contains(&self.queues) {
            return Err(PortError::Queues { port: port(), queues: self.queues, max: 16 });
        }
        for descriptors in [self.rx_descriptors, self.tx_descriptors] {
            if !descriptors.is_power_of_two() || !(64..=16_384).contains(&descriptors) {
                return Err(PortError::Descriptors { port: port(), descriptors });
            }
        }
        let shared = self.kind.shared_buffers(self.queues, self.tx_descriptors);
        if shared > MEMIF_MAX_BUFFERS {
            return Err(PortError::MemifBuffers { port: port(), shared, max: MEMIF_MAX_BUFFERS });
        }
        if self.impair.is_some() && !matches!(self.kind, PortKind::Ring { .. }) {
            return Err(PortError::Impair { port: port() });
        }
        Ok(())
    }

    /// Checks the configuration against the device's capabilities.
    fn check_device(&self, device: &DeviceInfo) -> Result<(), PortError> {
        let max = device.max_rx_queues.min(device.max_tx_queues);
        if self.queues > max {
            return Err(PortError::Queues { port: self.name.clone(), queues: self.queues, max });
        }
        // Only the drivers of PCI and TAP ports report all limits. For the other kinds, `check` has applied the limit
        // of the kind.
        let max = match self.kind {
            PortKind::Pci { .. } => device.max_mtu,
            // `max_rx_packet` includes the Ethernet header, a VLAN tag and the frame check sequence. The TAP driver of
            // DPDK 22.11 refuses jumbo frames.
            PortKind::Tap { .. } => device
                .max_rx_packet
                .saturating_sub(FRAME_OVERHEAD as u32 + 4)
                .min(self.kind.max_mtu().into()) as u16,
            _ => return Ok(()),
        };
        if self.mtu > max {
            return Err(PortError::Mtu {
                port: self.name.clone(),
                mtu: self.mtu,
                min: MIN_MTU,
                max,
                why: "this device with the installed DPDK",
            });
        }
        Ok(())
    }
}

/// Returns the address of a port: the configured one, the device's, or a random one.
fn choose_mac(config: &PortConfig, device: &Device) -> [u8; 6] {
    match (config.mac, &config.kind) {
        (Some(mac), _) => mac,
        // The driver gives the kernel's interface and the port the same address, but the kernel and the appliance need
        // different addresses.
        (None, PortKind::Tap { .. }) => random_mac(),
        // The driver gives the ports of all processes the same addresses.
        (None, PortKind::VhostUser { .. }) => random_mac(),
        (None, _) => device.mac().ok().filter(is_host_mac).unwrap_or_else(random_mac),
    }
}

/// Returns the sites that compute and verify the checksums. Adds a statement for each protocol whose checksums a PCI
/// device cannot offload in both directions.
fn choose_checksums(
    config: &PortConfig,
    device: &DeviceInfo,
    statements: &mut Vec<String>,
) -> Checksums {
    use ChecksumSite::{Device, Skipped, Software};
    // net_vhost reports the features that the current frontend has negotiated. The next frontend may not support them.
    let is_constant = !matches!(config.kind, PortKind::VhostUser { .. });
    let site = |can| if can && is_constant { Device } else { Software };
    match config.checksum {
        ChecksumMode::Software => Checksums::SOFTWARE,
        ChecksumMode::Trusted => {
            Checksums { rx_tcp: Skipped, tx_tcp: Skipped, ..Checksums::SOFTWARE }
        }
        ChecksumMode::Offload => {
            if matches!(config.kind, PortKind::Pci { .. }) {
                for (protocol, rx, tx) in [
                    ("TCP", device.rx.tcp_checksum, device.tx.tcp_checksum),
                    ("SCTP", device.rx.sctp_checksum, device.tx.sctp_checksum),
                ] {
                    let direction = match (rx, tx) {
                        (true, true) => continue,
                        (false, true) => " for received packets",
                        (true, false) => " for sent packets",
                        (false, false) => "",
                    };
                    statements.push(format!(
                        "the device has no {protocol} checksum offload{direction}; the workers do it"
                    ));
                }
            }
            Checksums {
                rx_ip: site(device.rx.ip_checksum),
                rx_tcp: site(device.rx.tcp_checksum),
                rx_sctp: site(device.rx.sctp_checksum),
                tx_ip: site(device.tx.ip_checksum),
                tx_tcp: site(device.tx.tcp_checksum),
                tx_sctp: site(device.tx.sctp_checksum),
            }
        }
    }
}

/// Returns the device or frontend that segments large packets, if either does. Segmentation requires `checksum =
/// "offload"`, because the worker does not compute checksums of the segments.
fn choose_segmenter(
    config: &PortConfig,
    checksums: Checksums,
    device: &DeviceInfo,
    statements: &mut Vec<String>,
) -> Option<Segmenter> {
    let wanted = config.segmentation == SegmentationMode::Offload
        && config.checksum == ChecksumMode::Offload;
    match config.kind {
        // No features are negotiated yet when the port opens, and the driver does not report the frontend's features.
        // Each queue reads them when a frontend connects.
        PortKind::VhostUser { .. } => {
            (wanted && device.tx.multi_segments).then_some(Segmenter::Frontend)
        }
        // The TAP driver segments in software (librte_gso), which serves as a reference in tests.
        PortKind::Pci { .. } | PortKind::Tap { .. } if wanted => {
            let sums = [checksums.tx_ip, checksums.tx_tcp] == [ChecksumSite::Device; 2];
            let is_able = sums && device.tx.tcp_segmentation && device.tx.multi_segments;
            if !is_able {
                statements.push(
                    "the device has no TCP segmentation offload: segments are sent separately"
                        .to_owned(),
                );
            }
            is_able.then_some(Segmenter::Device)
        }
        PortKind::Pci { .. }
        | PortKind::AfXdp { .. }
        | PortKind::AfPacket { .. }
        | PortKind::Tap { .. }
        | PortKind::Memif { .. }
        | PortKind::Ring { .. }
        | PortKind::Pcap { .. } => None,
    }
}

/// Returns true if a host may have this MAC address: neither zero nor a group address.
fn is_host_mac(mac: &[u8; 6]) -> bool {
    *mac != [0; 6] && mac[0] & 1 == 0
}

fn random_mac() -> [u8; 6] {
    let [mut first, rest @ ..] = RandomState::new().hash_one("mac").to_be_bytes();
    first = (first & !1) | 2;
    [first, rest[0], rest[1], rest[2], rest[3], rest[4]]
}

#[cfg(test)]
mod tests {
    use dpdk::{RxOffloads, TxOffloads};

    use super::*;

    /// Returns a device with all offloads.
    pub(super) fn device() -> DeviceInfo {
        DeviceInfo {
            driver: "net_any".into(),
            numa: None,
            max_tx_segments: 8,
            max_rx_queues: 16,
            max_tx_queues: 16,
            max_rx_packet: 9618,
            max_mtu: 9600,
            min_rx_buffer: 1024,
            reta_size: 128,
            hash_key_len: 40,
            rss_tcp: true,
            rx: RxOffloads {
                ip_checksum: true,
                tcp_checksum: true,
                sctp_checksum: true,
                rss_hash: true,
            },
            tx: TxOffloads {
                ip_checksum: true,
                tcp_checksum: true,
                sctp_checksum: true,
                multi_segments: true,
                tcp_segmentation: true,
            },
        }
    }

    pub(super) fn pci() -> PortConfig {
        let address = "0000:01:00.0".to_owned();
        PortConfig::new("lan", PortKind::Pci { address, devargs: String::new() })
    }

    /// Returns the sites that verify and that compute SCTP checksums, and the statements.
    fn sctp(config: &PortConfig, device: &DeviceInfo) -> (ChecksumSite, ChecksumSite, Vec<String>) {
        let mut statements = Vec::new();
        let sums = choose_checksums(config, device, &mut statements);
        (sums.rx_sctp, sums.tx_sctp, statements)
    }

    // The choice is independent for each direction and protocol. On a vhost-user port the frontend decides the
    // features, so the worker computes all checksums.
    #[test]
    fn device_computes_supported_checksums() {
        use ChecksumSite::{Device, Software};
        let port = pci();
        assert_eq!(sctp(&port, &device()), (Device, Device, vec![]));
        let mut half = device();
        half.tx.sctp_checksum = false;
        let statement = |direction: &str| {
            vec![format!("the device has no SCTP checksum offload{direction}; the workers do it")]
        };
        let expected = (Device, Software, statement(" for sent packets"));
        assert_eq!(sctp(&port, &half), expected);
        let mut none = half.clone();
        none.rx.sctp_checksum = false;
        assert_eq!(sctp(&port, &none), (Software, Software, statement("")));
        for checksum in [ChecksumMode::Software, ChecksumMode::Trusted] {
            let port = PortConfig { checksum, ..port.clone() };
            assert_eq!(sctp(&port, &device()), (Software, Software, vec![]));
        }
        let vhost = PortConfig::new("vm", PortKind::VhostUser { socket: "/run/v".into() });
        assert_eq!(sctp(&vhost, &device()), (Software, Software, vec![]));
        let sums = choose_checksums(&port, &half, &mut vec![]);
        let set_up = kind::device_config(&port, sums, None, None);
        assert!(set_up.rx.sctp_checksum && !set_up.tx.sctp_checksum && set_up.tx.tcp_checksum);
    }
}

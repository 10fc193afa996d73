//! Ports: the devices that receive and send frames, behind one interface.
//!
//! [`Ports::open`] turns a [`PortConfig`] into a [`Port`], which the control thread keeps, and one
//! [`PortQueue`] per worker, which the worker owns. [`PortInfo`] lists the offloads of the
//! device (checksums, RSS); the layers above do the rest in software.
//!
//! ```text
//!  control thread           worker 0          worker 1
//!  Port ── link, counters   PortQueue 0       PortQueue 1
//!     └────────────────── one device of DPDK ──────┘
//! ```
//!
//! Left out: the contents of frames. Lengths are bytes; an MTU is that of an IP packet, and a frame has 14
//! bytes more, or 18 with a VLAN tag.

mod claim;
mod device;
mod error;
mod kind;
pub mod large;
mod queue;
mod ring;
mod rss;
mod shared;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dpdk::{
    Device, DeviceInfo, Eal, LinkState, Mempool, MempoolConfig, RxQueue, StartError, Started,
};

pub use device::{DeviceFault, DeviceView};
pub use dpdk::{DeviceStats, Mbuf, RxChecksum, TxChecksums, TxL4};
pub use error::PortError;
use port_kind::MEMIF_MAX_BUFFERS;
pub use port_kind::{
    ChecksumMode, FRAME_OVERHEAD, MAX_MTU, MIN_MTU, MemifRole, PortKind, SegmentationMode,
};
pub use queue::{BURST, Cuts, PortQueue, RxBatch};
pub use rss::RssTable;
pub use shared::QueueCounters;

use claim::Claim;
use device::Binding;
use ring::{RingEnds, RingSide};
use shared::SharedQueueState;

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Its name, for people and in errors.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// Largest IP packet in bytes, [`MIN_MTU`] to [`MAX_MTU`] and what the kind carries.
    pub mtu: u16,
    /// Who computes checksums.
    pub checksum: ChecksumMode,
    /// Who cuts data into segments.
    pub segmentation: SegmentationMode,
    /// Hardware address; by default the device's, or a random local one where it has none.
    pub mac: Option<[u8; 6]>,
    /// Queue pairs, one per worker that uses the port; 1 to 16.
    pub queues: u16,
    /// Receive descriptors per queue, a power of two.
    pub rx_descriptors: u16,
    /// Send descriptors per queue, a power of two.
    pub tx_descriptors: u16,
    /// Packet buffers of the port; `None` is enough for full rings and as much again.
    pub buffers: Option<u32>,
    /// NUMA node of the buffers; `None` is the device's.
    pub numa: Option<u32>,
    /// What frames suffer that this port receives. Only `Ring`.
    pub impair: Option<link::Config>,
    /// A worker that uses it sleeps when it is idle: a PCI device is set up with receive interrupts, if it has any.
    pub may_sleep: bool,
    /// Another port may receive the frames of its Linux interface too. Only `AfPacket`; for tools beside an appliance.
    pub shares_interface: bool,
}

/// Who does one kind of checksum on an open port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumBy {
    /// The device. On receipt the packet buffer says what it found; where that is
    /// [`RxChecksum::Unknown`], the worker does it.
    Device,
    /// The worker.
    Software,
    /// Nobody.
    Nobody,
}

/// Who does which checksum on an open port. ICMP checksums are always the worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// IPv4 header, received. Never `Nobody`.
    pub rx_ip: ChecksumBy,
    /// TCP, received.
    pub rx_tcp: ChecksumBy,
    /// SCTP, received and not in UDP. Never `Nobody`.
    pub rx_sctp: ChecksumBy,
    /// IPv4 header, sent. Never `Nobody`.
    pub tx_ip: ChecksumBy,
    /// TCP, sent.
    pub tx_tcp: ChecksumBy,
    /// SCTP, sent and not in UDP. Never `Nobody`.
    pub tx_sctp: ChecksumBy,
}

impl Checksums {
    /// All of them by the worker.
    const SOFTWARE: Checksums = Checksums {
        rx_ip: ChecksumBy::Software,
        rx_tcp: ChecksumBy::Software,
        rx_sctp: ChecksumBy::Software,
        tx_ip: ChecksumBy::Software,
        tx_tcp: ChecksumBy::Software,
        tx_sctp: ChecksumBy::Software,
    };
}

/// What an open port is; does not change.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// The driver's name.
    pub driver: String,
    /// Its hardware address when it was opened; [`Port::mac`] has the present one.
    pub mac: [u8; 6],
    /// Its MTU in bytes.
    pub mtu: u16,
    /// Its queue pairs.
    pub queues: u16,
    /// Who does checksums.
    pub checksums: Checksums,
    /// Who cuts large packets into segments, if anybody does.
    pub cuts: Option<Cuts>,
    /// Which queue a flow belongs to.
    pub rss: RssTable,
    /// Packet buffers of the port.
    pub buffers: u32,
    /// What was asked for and could not be had, or deserves to be known: one sentence each.
    pub statements: Vec<String>,
}

/// All ports of the process are opened through one of these; clones are the same.
#[derive(Clone, Debug)]
pub struct Ports {
    eal: Eal,
    /// Ends of ring pairs whose other end is open, by link name.
    waiting: Arc<Mutex<HashMap<String, WaitingEnd>>>,
    /// Sockets that memif ports of this process serve.
    served: Arc<Mutex<BTreeSet<PathBuf>>>,
}

#[derive(Debug)]
struct WaitingEnd {
    device: Device,
    queues: u16,
    ends: Arc<RingEnds>,
}

/// An open port, as the control thread sees it. The device closes when this and all queues are gone.
#[derive(Debug)]
pub struct Port {
    info: Arc<PortInfo>,
    device: Started,
    pool: Mempool,
    queues: Vec<PortQueue>,
    shared: Vec<Arc<SharedQueueState>>,
    ring: Option<RingSide>,
    binding: Binding,
    /// True if the port claims its interface.
    claims: bool,
    /// Bound to the interface's index, so a port that is bound again has a new one.
    claim: Mutex<Option<Claim>>,
}

impl Ports {
    /// Ports of the environment.
    pub fn new(eal: Eal) -> Ports {
        Ports { eal, waiting: Arc::default(), served: Arc::default() }
    }

    /// The environment.
    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    /// Opens a port: makes or takes the device, its pool and its queues, and starts it. Blocks, up to a
    /// second if an AF_XDP socket is not to be had: the kernel releases the queues of a closed one, or of a
    /// killed process, some time later.
    pub fn open(&self, config: &PortConfig) -> Result<Port, PortError> {
        for _ in 0..20 {
            match self.try_open(config) {
                Err(PortError::Xdp { .. }) => std::thread::sleep(Duration::from_millis(50)),
                done => return done,
            }
        }
        self.try_open(config)
    }

    fn try_open(&self, config: &PortConfig) -> Result<Port, PortError> {
        config.check()?;
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        kind::check_host(config, &served)?;
        let mut statements = Vec::new();
        let claim = claim::claim(config)?;
        let (device, ring) = self.device(config)?;
        let dpdk_failed = |error| kind::explain(config, error);
        let device_info = device.info().map_err(dpdk_failed)?;
        config.check_device(&device_info)?;
        let checksums = checksums(config, &device_info, &mut statements);
        let cuts = cuts(config, checksums, &device_info, &mut statements);
        let (rss, mut table) = rss::choose(config, &device_info, &mut statements);
        let mac = match (config.mac, &config.kind) {
            (Some(mac), _) => mac,
            // The driver gives the kernel's interface and the port one address; two hosts need two.
            (None, PortKind::Tap { .. }) => random_mac(),
            // The driver gives those of all processes the same ones.
            (None, PortKind::VhostUser { .. }) => random_mac(),
            (None, _) => device.mac().ok().filter(usable).unwrap_or_else(random_mac),
        };
        let set_up = kind::device_config(config, checksums, cuts, rss);
        let pool = MempoolConfig {
            buffers: config.pool_buffers(),
            room: kind::room(config),
            numa: config.numa.or(device_info.numa),
        };
        let (device, rx, tx) = device.start(&set_up, pool).map_err(|error| match error {
            StartError::Device(error) => kind::explain(config, error),
            StartError::Pool(error) => PortError::NoMemory {
                port: config.name.clone(),
                mib: (config.pool_bytes() >> 20) + 1,
                error,
            },
        })?;
        let pool = device.pool().clone();
        rss::answered(&mut table, device.sctp_rules(), &mut statements);
        if let PortKind::Memif { socket, role: MemifRole::Server, .. } = &config.kind {
            served.insert(socket.clone());
        }
        kind::observe(config, &mut statements);
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
            cuts,
            rss: table,
            buffers: pool.config().buffers,
            statements,
        });
        let queues: Vec<PortQueue> = rx
            .into_iter()
            .zip(tx)
            .map(|(rx, tx)| {
                let bells = ring.as_ref().map(|ring| ring.bells(rx.index()));
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
            claims: claim.is_some(),
            claim: Mutex::new(claim),
        })
    }

    /// Links of ring ports of which only one end is open.
    pub fn unjoined(&self) -> Vec<String> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut links: Vec<String> = waiting.keys().cloned().collect();
        links.sort();
        links
    }

    fn device(&self, config: &PortConfig) -> Result<(Device, Option<RingSide>), PortError> {
        let failed = |error| kind::explain(config, error);
        match &config.kind {
            PortKind::Ring { link } => {
                let (device, side) = self.ring_end(config, link)?;
                Ok((device, Some(side)))
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

    fn ring_end(&self, config: &PortConfig, link: &str) -> Result<(Device, RingSide), PortError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = waiting.get(link) {
            if end.queues != config.queues {
                return Err(PortError::RingQueues {
                    port: config.name.clone(),
                    link: link.to_owned(),
                    queues: config.queues,
                    other: end.queues,
                });
            }
            let end = waiting.remove(link).expect("it was there, under the lock");
            return Ok((end.device, RingSide::new(end.ends, 1)));
        }
        let slots = u32::from(config.tx_descriptors);
        let (mine, other) = dpdk::ring_pair(&self.eal, config.queues, slots)
            .map_err(|error| kind::explain(config, error))?;
        let ends = RingEnds::new(config.queues)
            .map_err(|error| PortError::Descriptor { port: config.name.clone(), error })?;
        let ends = Arc::new(ends);
        let end = WaitingEnd { device: other, queues: config.queues, ends: ends.clone() };
        waiting.insert(link.to_owned(), end);
        Ok((mine, RingSide::new(ends, 0)))
    }
}

impl Port {
    /// What it is.
    pub fn info(&self) -> &Arc<PortInfo> {
        &self.info
    }

    /// The queues, in order, to be given to the workers; nothing the second time.
    pub fn take_queues(&mut self) -> Vec<PortQueue> {
        std::mem::take(&mut self.queues)
    }

    /// The link's state now. A memif or vhost-user port is up while a peer is connected, a ring while both ends are open.
    /// See [`look`](Self::look).
    pub fn link(&self) -> LinkState {
        self.look().link
    }

    /// The link of a device that is not an interface of Linux.
    fn device_link(&self) -> LinkState {
        match &self.ring {
            Some(ring) => LinkState { up: ring.is_joined(), mbit_per_s: None },
            None => self.device.link(),
        }
    }

    /// The device's own counters, as far as its driver keeps them; those of the queues are beside them.
    pub fn device_stats(&self) -> Result<DeviceStats, dpdk::Error> {
        self.device.stats()
    }

    /// What each queue, and the impairment of what it receives, did until its worker's last turn.
    pub fn queue_counters(&self) -> Vec<(QueueCounters, Option<link::Counters>)> {
        self.shared.iter().map(|queue| queue.load_counters()).collect()
    }

    /// Packet buffers of the port that are free now, roughly.
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
    /// A port with usual descriptors, one queue, MTU 1500 and the device's checksums.
    pub fn new(name: impl Into<String>, kind: PortKind) -> PortConfig {
        PortConfig {
            name: name.into(),
            segmentation: kind.usual_segmentation(),
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

    /// Bytes that the port's packet buffers take; [`dpdk::EalConfig::memory_mib`] must hold those of all
    /// ports.
    pub fn pool_bytes(&self) -> u64 {
        // A buffer's header and the pool's, rounded up to whole cache lines and spread over channels.
        const PER_BUFFER: u64 = 320;
        u64::from(self.pool_buffers())
            * (PER_BUFFER + dpdk::HEADROOM as u64 + u64::from(kind::room(self).bytes()))
    }

    /// Bytes of the buffers that the port makes for both sides, besides its packet buffers.
    pub fn shared_bytes(&self) -> u64 {
        let buffers = self.kind.shared_buffers(self.queues, self.tx_descriptors);
        u64::from(buffers) * u64::from(kind::room(self).bytes())
    }

    fn pool_buffers(&self) -> u32 {
        self.buffers.unwrap_or_else(|| {
            let rings = u32::from(self.rx_descriptors) + u32::from(self.tx_descriptors);
            let in_hand = Mempool::CACHE + (PortQueue::PENDING + PortQueue::FRESH + BURST) as u32;
            let impaired =
                self.impair.as_ref().map_or(0, |link| link.max_frames.min(16_384) as u32);
            2 * u32::from(self.queues) * (rings + in_hand) + impaired
        })
    }

    /// What can be checked without looking at the machine.
    fn check(&self) -> Result<(), PortError> {
        let port = || self.name.clone();
        let max = self.kind.max_mtu();
        if !(MIN_MTU..=max).contains(&self.mtu) {
            return Err(PortError::Mtu {
                port: port(),
                mtu: self.mtu,
                min: MIN_MTU,
                max,
                why: self.kind.word(),
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

    /// What the device must be asked.
    fn check_device(&self, device: &DeviceInfo) -> Result<(), PortError> {
        let max = device.max_rx_queues.min(device.max_tx_queues);
        if self.queues > max {
            return Err(PortError::Queues { port: self.name.clone(), queues: self.queues, max });
        }
        // The others say too little of themselves; what they carry was looked at before.
        let max = match self.kind {
            PortKind::Pci { .. } => device.max_mtu,
            // Frames with header, tag and checksum; the driver of 22.11 refuses jumbo frames.
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

fn checksums(config: &PortConfig, device: &DeviceInfo, statements: &mut Vec<String>) -> Checksums {
    use ChecksumBy::{Device, Nobody, Software};
    // What net_vhost offers is what a frontend agreed to, and the next one may not.
    let lasts = !matches!(config.kind, PortKind::VhostUser { .. });
    let by = |can| if can && lasts { Device } else { Software };
    match config.checksum {
        ChecksumMode::Software => Checksums::SOFTWARE,
        ChecksumMode::Trusted => {
            Checksums { rx_tcp: Nobody, tx_tcp: Nobody, ..Checksums::SOFTWARE }
        }
        ChecksumMode::Offload => {
            let has = [
                ("TCP", device.rx.tcp_checksum && device.tx.tcp_checksum),
                ("SCTP", device.rx.sctp_checksum && device.tx.sctp_checksum),
            ];
            for (protocol, _) in has.iter().filter(|(_, has)| !has) {
                if matches!(config.kind, PortKind::Pci { .. }) {
                    statements.push(format!(
                        "the device has no {protocol} checksum offload; the workers do it"
                    ));
                }
            }
            Checksums {
                rx_ip: by(device.rx.ip_checksum),
                rx_tcp: by(device.rx.tcp_checksum),
                rx_sctp: by(device.rx.sctp_checksum),
                tx_ip: by(device.tx.ip_checksum),
                tx_tcp: by(device.tx.tcp_checksum),
                tx_sctp: by(device.tx.sctp_checksum),
            }
        }
    }
}

/// Who cuts large packets. Both ways need what `checksum = "offload"` is: checksums that are not the workers'.
fn cuts(
    config: &PortConfig,
    checksums: Checksums,
    device: &DeviceInfo,
    statements: &mut Vec<String>,
) -> Option<Cuts> {
    let wanted = config.segmentation == SegmentationMode::Offload
        && config.checksum == ChecksumMode::Offload;
    match config.kind {
        // What the frontend agrees to is not known yet, and the driver does not tell.
        PortKind::VhostUser { .. } => {
            (wanted && device.tx.multi_segments).then_some(Cuts::Frontend)
        }
        // tap's is software of DPDK (librte_gso): for tests, which have it as an oracle.
        PortKind::Pci { .. } | PortKind::Tap { .. } if wanted => {
            let sums = [checksums.tx_ip, checksums.tx_tcp] == [ChecksumBy::Device; 2];
            let can = sums && device.tx.tcp_segmentation && device.tx.multi_segments;
            if !can {
                statements.push(
                    "the device has no TCP segmentation offload: segments are sent one by one"
                        .to_owned(),
                );
            }
            can.then_some(Cuts::Device)
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

/// True for an address that can stand for a host: not zero, not a group.
fn usable(mac: &[u8; 6]) -> bool {
    *mac != [0; 6] && mac[0] & 1 == 0
}

/// A random locally administered address.
fn random_mac() -> [u8; 6] {
    let [mut first, rest @ ..] = RandomState::new().hash_one("mac").to_be_bytes();
    first = (first & !1) | 2;
    [first, rest[0], rest[1], rest[2], rest[3], rest[4]]
}

#[cfg(test)]
mod tests {
    use dpdk::{RxOffloads, TxOffloads};

    use super::*;

    /// A device with all offloads.
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

    /// Who does SCTP's checksum on receipt and on sending, and the statements.
    fn sctp(config: &PortConfig, device: &DeviceInfo) -> (ChecksumBy, ChecksumBy, Vec<String>) {
        let mut statements = Vec::new();
        let sums = checksums(config, device, &mut statements);
        (sums.rx_sctp, sums.tx_sctp, statements)
    }

    // Each direction and protocol by itself, and never a device whose peer decides what it has.
    #[test]
    fn a_device_computes_the_checksums_that_it_knows() {
        use ChecksumBy::{Device, Software};
        let port = pci();
        assert_eq!(sctp(&port, &device()), (Device, Device, vec![]));
        let mut half = device();
        half.tx.sctp_checksum = false;
        let why = "the device has no SCTP checksum offload; the workers do it".to_owned();
        assert_eq!(sctp(&port, &half), (Device, Software, vec![why]));
        for checksum in [ChecksumMode::Software, ChecksumMode::Trusted] {
            let port = PortConfig { checksum, ..port.clone() };
            assert_eq!(sctp(&port, &device()), (Software, Software, vec![]));
        }
        let vhost = PortConfig::new("vm", PortKind::VhostUser { socket: "/run/v".into() });
        assert_eq!(sctp(&vhost, &device()), (Software, Software, vec![]));
        let set_up = kind::device_config(&port, checksums(&port, &half, &mut vec![]), None, None);
        assert!(set_up.rx.sctp_checksum && !set_up.tx.sctp_checksum && set_up.tx.tcp_checksum);
    }
}

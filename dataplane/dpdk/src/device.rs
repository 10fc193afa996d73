//! A device: found or made, set up, started, asked, removed.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use dpdk_sys as sys;

use crate::eal::Eal;
use crate::error::{Error, StartError, check};
use crate::host;
use crate::interrupts;
use crate::log;
use crate::mempool::{Mempool, MempoolConfig};
use crate::queue::{RxQueue, TxQueue};
use crate::reconnect::{self, Gate};
use crate::ring::Rings;

/// A device that is not started yet.
pub struct Device {
    handle: Handle,
    /// Sockets of the process from before the device was made, by family.
    sockets_before: [BTreeMap<RawFd, u64>; 2],
}

/// Which descriptor tells that a queue has received something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IdleFd {
    /// None is known.
    #[default]
    None,
    /// The packet socket that the driver opened for the queue.
    PacketSocket,
    /// The AF_XDP socket that the driver opened for the queue.
    XdpSocket,
    /// What the driver gives as the queue's interrupt.
    QueueInterrupt,
}

const AF_PACKET: c_int = 17;
const AF_XDP: c_int = 44;

/// A device of DPDK, closed and removed on drop. Queues share it.
pub(crate) struct Handle {
    port: u16,
    name: String,
    started: bool,
    eal: Eal,
    /// What the driver allocates from; set when the device is started.
    pool: Option<Mempool>,
    /// What a ring device sends to and receives from.
    rings: Option<Arc<Rings>>,
    /// AF_XDP sockets that the driver opened: descriptor and inode.
    xdp_sockets: Vec<(RawFd, u64)>,
    /// Of a device that reconnects; it knows whether the device is started.
    gate: Option<Gate>,
    /// The driver works in the interrupt thread, and wants to be started, stopped and removed there.
    by_interrupts: bool,
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's name, as in `net_af_packet`.
    pub driver: String,
    /// NUMA node, if it has one.
    pub numa: Option<u32>,
    /// Most receive queues.
    pub max_rx_queues: u16,
    /// Most send queues.
    pub max_tx_queues: u16,
    /// Longest frame that it says it receives, in octets; many virtual devices say too little.
    pub max_rx_packet: u32,
    /// Largest MTU in octets.
    pub max_mtu: u16,
    /// Smallest room of a receive buffer in octets.
    pub min_rx_buffer: u32,
    /// Entries of the RSS redirection table, 0 without one.
    pub reta_size: u16,
    /// Octets of the RSS key, 0 without one.
    pub hash_key_len: u8,
    /// It can hash TCP over IPv4 and IPv6 by addresses and ports.
    pub rss_tcp: bool,
    /// Receive offloads it has.
    pub rx: RxOffloads,
    /// Send offloads it has.
    pub tx: TxOffloads,
}

/// Offloads for received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RxOffloads {
    /// Verifies the IPv4 header checksum.
    pub ip_checksum: bool,
    /// Verifies the TCP checksum.
    pub tcp_checksum: bool,
    /// Gives the RSS hash with the frame.
    pub rss_hash: bool,
}

/// Offloads for sent frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TxOffloads {
    /// Fills in the IPv4 header checksum.
    pub ip_checksum: bool,
    /// Fills in the TCP checksum.
    pub tcp_checksum: bool,
}

/// Receive-side scaling: which hash and which queue.
#[derive(Clone, Debug)]
pub struct Rss {
    /// As long as [`DeviceInfo::hash_key_len`].
    pub key: Vec<u8>,
    /// Queue by the low bits of the hash, [`DeviceInfo::reta_size`] entries.
    pub table: Vec<u16>,
}

/// How a device is set up.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Queue pairs.
    pub queues: u16,
    /// Receive descriptors per queue, rounded to what the device takes.
    pub rx_descriptors: u16,
    /// Send descriptors per queue, rounded to what the device takes.
    pub tx_descriptors: u16,
    /// MTU in octets.
    pub mtu: u16,
    /// Tell the driver the MTU. Some virtual devices set the kernel's interface to it, others have none.
    pub set_mtu: bool,
    /// Receive offloads to turn on; only what the device has.
    pub rx: RxOffloads,
    /// Send offloads to turn on; only what the device has.
    pub tx: TxOffloads,
    /// Spread flows over the queues.
    pub rss: Option<Rss>,
    /// Receive frames for all addresses.
    pub promiscuous: bool,
    /// Receive all multicast frames (neighbour discovery needs some).
    pub all_multicast: bool,
    /// What an idle worker can wait on.
    pub idle: IdleFd,
    /// Start even if nobody is at the other end, and try again while the link is down (memif clients).
    pub reconnect: bool,
}

/// Counters of a device since it was opened, as far as its driver keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Octets received.
    pub rx_octets: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Octets sent.
    pub tx_octets: u64,
    /// Frames that came while no descriptor was free.
    pub rx_missed: u64,
    /// Frames received damaged.
    pub rx_errors: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
    /// Times that the pool was empty.
    pub rx_no_buffer: u64,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// There is somebody at the other end, as far as the driver knows.
    pub up: bool,
    /// Mbit/s, if known.
    pub mbit_per_s: Option<u32>,
}

impl Device {
    /// Makes a virtual device. `name` begins with its driver's (`net_tap0`), `args` are the driver's.
    pub fn virtual_device(eal: &Eal, name: &str, args: &str) -> Result<Device, Error> {
        Device::hotplug(eal, "vdev", name, args)
    }

    /// Takes over a PCI device that [`EalConfig::pci`](crate::EalConfig::pci) named.
    pub fn pci(eal: &Eal, address: &str) -> Result<Device, Error> {
        let lock = eal.lock_devices();
        // The bus was scanned and probed when the environment started.
        if let Ok(port) = port_by_name(address) {
            return Ok(Device::from_port(eal, port, address, None));
        }
        drop(lock);
        Device::hotplug(eal, "pci", address, "")
    }

    fn hotplug(eal: &Eal, bus: &str, name: &str, args: &str) -> Result<Device, Error> {
        let lock = eal.lock_devices();
        log::forget_recent();
        let sockets_before = [host::sockets(AF_PACKET), host::sockets(AF_XDP)];
        let what = || format!("device {name} ({args}) cannot be made");
        let c = |text: &str| CString::new(text).map_err(|_| Error::new(what(), 22));
        let (c_bus, c_name, c_args) = (c(bus)?, c(name)?, c(args)?);
        // SAFETY: three NUL-terminated strings, which DPDK copies; the lock keeps others out.
        let code =
            unsafe { sys::rte_eal_hotplug_add(c_bus.as_ptr(), c_name.as_ptr(), c_args.as_ptr()) };
        check(what(), code)?;
        let port = port_by_name(name)?;
        drop(lock);
        Ok(Device { sockets_before, ..Device::from_port(eal, port, name, None) })
    }

    pub(crate) fn from_port(eal: &Eal, port: u16, name: &str, rings: Option<Arc<Rings>>) -> Device {
        let eal = eal.clone();
        let name = name.to_owned();
        let by_interrupts = name.starts_with("net_memif");
        let handle = Handle {
            port,
            name,
            started: false,
            eal,
            pool: None,
            rings,
            xdp_sockets: Vec::new(),
            gate: None,
            by_interrupts,
        };
        Device { handle, sockets_before: Default::default() }
    }

    /// What it says of itself.
    pub fn info(&self) -> Result<DeviceInfo, Error> {
        self.handle.info()
    }

    /// Its MAC address.
    pub fn mac(&self) -> Result<[u8; 6], Error> {
        let mut mac = [0; 6];
        // SAFETY: the port is ours and valid; the function fills six octets.
        let code = unsafe { sys::ddpd_port_mac(self.handle.port, mac.as_mut_ptr()) };
        check(format!("the MAC address of {} cannot be read", self.handle.name), code)?;
        Ok(mac)
    }

    /// Makes its pool, sets it up and starts it. Returns what can be asked of it later, and its queues.
    pub fn start(
        mut self,
        config: &DeviceConfig,
        pool: MempoolConfig,
    ) -> Result<(Started, Vec<RxQueue>, Vec<TxQueue>), StartError> {
        let eal = self.handle.eal.clone();
        let pool = Mempool::new(&eal, pool).map_err(StartError::Pool)?;
        let lock = eal.lock_devices();
        log::forget_recent();
        self.handle.pool = Some(pool.clone());
        if let Err(error) = self.set_up(config, &pool) {
            drop(lock);
            drop(self);
            // SAFETY: nobody but this device's driver ever had the pool, and the device is gone. What the
            // driver took and did not give back (AF_XDP's does not) is in nobody's hands.
            unsafe { pool.free_with_all_buffers() };
            return Err(StartError::Device(error));
        }
        let fds = self.idle_fds(config);
        drop(lock);
        let handle = Arc::new(self.handle);
        if config.reconnect {
            // SAFETY: the handle stays in its `Arc`, and stops it when dropped.
            unsafe { reconnect::start(&handle) }.map_err(StartError::Device)?;
        }
        let rx = (0..config.queues)
            .zip(fds)
            // SAFETY: the driver opened the descriptor for this device and closes it when it stops.
            .map(|(q, fd)| unsafe { RxQueue::new(handle.clone(), q, fd) })
            .collect();
        let tx = (0..config.queues).map(|q| TxQueue::new(handle.clone(), q)).collect();
        Ok((Started { handle, pool }, rx, tx))
    }

    fn set_up(&mut self, config: &DeviceConfig, pool: &Mempool) -> Result<(), Error> {
        let port = self.handle.port;
        let name = self.handle.name.clone();
        let configured = self.configure(config, pool);
        self.handle.xdp_sockets = new_sockets(AF_XDP, &self.sockets_before[1]);
        configured?;
        if config.reconnect {
            let gate = Gate::new();
            self.handle.where_it_works(|| gate.restart(port));
            self.handle.gate = Some(gate);
        } else {
            // SAFETY: the port is ours, set up, and has no user yet.
            let code = self.handle.where_it_works(|| unsafe { sys::rte_eth_dev_start(port) });
            check(format!("device {name} does not start"), code)?;
            self.handle.started = true;
        }
        if let Some(rss) = &config.rss {
            // SAFETY: as many entries as are said.
            let code =
                unsafe { sys::ddpd_port_reta(port, rss.table.as_ptr(), rss.table.len() as u16) };
            check(format!("device {name} refuses the RSS table"), code)?;
        }
        // Drivers without these filters receive everything anyway and say "not supported".
        if config.promiscuous {
            // SAFETY: the port is ours.
            unsafe { sys::rte_eth_promiscuous_enable(port) };
        }
        if config.all_multicast {
            // SAFETY: the port is ours.
            unsafe { sys::rte_eth_allmulticast_enable(port) };
        }
        Ok(())
    }

    fn configure(&self, config: &DeviceConfig, pool: &Mempool) -> Result<(), Error> {
        let Handle { port, name, .. } = &self.handle;
        let functions =
            sys::DDPD_RSS_IPV4 | sys::DDPD_RSS_IPV6 | sys::DDPD_RSS_TCP4 | sys::DDPD_RSS_TCP6;
        let offered = self.handle.raw_info()?.rss_functions;
        let key = config.rss.as_ref().map(|rss| &rss.key);
        let mut conf = sys::ddpd_port_conf {
            rx_queues: config.queues,
            tx_queues: config.queues,
            rx_descriptors: config.rx_descriptors,
            tx_descriptors: config.tx_descriptors,
            mtu: if config.set_mtu { config.mtu } else { 0 },
            rx_offloads: config.rx.bits(),
            tx_offloads: config.tx.bits(),
            queue_interrupts: u8::from(config.idle == IdleFd::QueueInterrupt),
            rss_key: key.map_or(std::ptr::null(), |key| key.as_ptr()),
            rss_key_len: key.map_or(0, |key| key.len() as u8),
            rss_functions: u64::from(functions) & offered,
        };
        let numa = pool.config().numa.map_or(-1, |node| node as c_int);
        // SAFETY: the port is ours and not started; the structure and its key outlive the call; the pool
        // is kept by the handle for as long as the device.
        let code = unsafe { sys::ddpd_port_configure(*port, &mut conf, pool.raw(), numa) };
        check(format!("device {name} refuses its set-up"), code)?;
        if config.set_mtu {
            // SAFETY: the port is ours.
            let code = unsafe { sys::ddpd_port_set_mtu(*port, config.mtu) };
            // Not every driver has the call; the size was in the set-up already.
            if code != 0 && code != -ENOTSUP {
                return Err(Error::new(format!("device {name} refuses MTU {}", config.mtu), code));
            }
        }
        Ok(())
    }

    /// A descriptor per queue, or `None` where it is not certain which it is.
    fn idle_fds(&self, config: &DeviceConfig) -> Vec<Option<RawFd>> {
        let queues = config.queues;
        let mut new = match config.idle {
            IdleFd::None => return vec![None; queues as usize],
            IdleFd::QueueInterrupt => {
                return (0..queues)
                    // SAFETY: the port is ours and the queue is set up.
                    .map(|q| unsafe { sys::ddpd_port_rx_fd(self.handle.port, q) })
                    .map(|fd| Some(fd).filter(|&fd| fd >= 0))
                    .collect();
            }
            IdleFd::PacketSocket => new_sockets(AF_PACKET, &self.sockets_before[0]),
            IdleFd::XdpSocket => self.handle.xdp_sockets.clone(),
        };
        if new.len() != queues as usize {
            return vec![None; queues as usize];
        }
        // The driver opens them in the queues' order, and inodes are given out upwards.
        new.sort_unstable_by_key(|&(_, inode)| inode);
        new.into_iter().map(|(fd, _)| Some(fd)).collect()
    }
}

const ENOTSUP: c_int = 95;

/// A started device, to be asked. It stays open while this or one of its queues lives.
#[derive(Clone)]
pub struct Started {
    handle: Arc<Handle>,
    pool: Mempool,
}

impl Started {
    /// The pool that its driver allocates from, and that frames to be sent may come from.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Its name with DPDK.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// The link's state now.
    pub fn link(&self) -> LinkState {
        self.handle.link()
    }

    /// Its counters now.
    pub fn stats(&self) -> Result<DeviceStats, Error> {
        let mut stats = sys::ddpd_port_stats::default();
        // SAFETY: the port is ours and valid; the structure is filled.
        let code = unsafe { sys::ddpd_port_stats(self.handle.port, &mut stats) };
        check(format!("the counters of {} cannot be read", self.handle.name), code)?;
        Ok(DeviceStats {
            rx_frames: stats.rx_packets,
            rx_octets: stats.rx_octets,
            tx_frames: stats.tx_packets,
            tx_octets: stats.tx_octets,
            rx_missed: stats.rx_missed,
            rx_errors: stats.rx_errors,
            tx_errors: stats.tx_errors,
            rx_no_buffer: stats.rx_no_buffer,
        })
    }
}

impl Handle {
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs a change of the device's state where its driver can bear it.
    fn where_it_works<T: Send>(&self, change: impl FnOnce() -> T + Send) -> T {
        if self.by_interrupts { interrupts::run(change) } else { change() }
    }

    /// Polls a queue, unless the device is stopped at the moment.
    pub(crate) fn poll(&self, burst: impl FnOnce() -> u16) -> usize {
        match &self.gate {
            None => burst().into(),
            Some(gate) => gate.pass(burst).unwrap_or(0).into(),
        }
    }

    fn link(&self) -> LinkState {
        let mut link = sys::ddpd_link::default();
        // SAFETY: the port is ours and valid; the structure is filled.
        let code = unsafe { sys::ddpd_port_link(self.port, &mut link) };
        LinkState {
            up: code == 0 && link.up != 0,
            mbit_per_s: Some(link.mbit_per_s).filter(|&mbit| code == 0 && mbit != 0),
        }
    }

    /// Starts anew a device whose link is down. When devices are being made it is for the next time.
    pub(crate) fn reconnect(&self) {
        let Some(gate) = &self.gate else { return };
        if self.link().up {
            gate.is_up();
        } else if let Some(_lock) = self.eal.try_lock_devices() {
            gate.restart(self.port);
        }
    }

    fn raw_info(&self) -> Result<sys::ddpd_port_info, Error> {
        let mut info = sys::ddpd_port_info::default();
        // SAFETY: the port is ours and valid; the structure is filled.
        let code = unsafe { sys::ddpd_port_info(self.port, &mut info) };
        check(format!("device {} does not say what it is", self.name), code)?;
        Ok(info)
    }

    /// The AF_XDP driver of 22.11 forgets its sockets when it is removed: the interface's queue would stay
    /// taken for as long as this process lives.
    fn close_xdp_sockets(&self) {
        let open = host::sockets(AF_XDP);
        for (fd, inode) in &self.xdp_sockets {
            if open.get(fd) == Some(inode) {
                // SAFETY: it is the very socket that the driver opened for this device, and the device is
                // gone, so nobody uses or closes it any more.
                drop(unsafe { OwnedFd::from_raw_fd(*fd) });
            }
        }
    }

    fn info(&self) -> Result<DeviceInfo, Error> {
        let raw = self.raw_info()?;
        // SAFETY: the shim writes a NUL-terminated string into the array.
        let driver = unsafe { CStr::from_ptr(raw.driver.as_ptr()) };
        let rss = u64::from(sys::DDPD_RSS_TCP4 | sys::DDPD_RSS_TCP6);
        let has = |set: u64, flag: sys::ddpd_flags| set & u64::from(flag) != 0;
        Ok(DeviceInfo {
            driver: driver.to_string_lossy().into_owned(),
            numa: u32::try_from(raw.numa_socket).ok(),
            max_rx_queues: raw.max_rx_queues,
            max_tx_queues: raw.max_tx_queues,
            max_rx_packet: raw.max_rx_packet,
            max_mtu: raw.max_mtu,
            min_rx_buffer: raw.min_rx_buffer,
            reta_size: raw.reta_size,
            hash_key_len: raw.hash_key_size,
            rss_tcp: raw.rss_functions & rss == rss,
            rx: RxOffloads {
                ip_checksum: has(raw.rx_offloads, sys::DDPD_RX_IPV4_CKSUM),
                tcp_checksum: has(raw.rx_offloads, sys::DDPD_RX_TCP_CKSUM),
                rss_hash: has(raw.rx_offloads, sys::DDPD_RX_RSS_HASH),
            },
            tx: TxOffloads {
                ip_checksum: has(raw.tx_offloads, sys::DDPD_TX_IPV4_CKSUM),
                tcp_checksum: has(raw.tx_offloads, sys::DDPD_TX_TCP_CKSUM),
            },
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.gate.is_some() {
            reconnect::stop(self);
        }
        let _lock = self.eal.lock_devices();
        let started = self.gate.as_ref().map_or(self.started, Gate::is_started);
        let port = self.port;
        // SAFETY: the last user is gone: queues share this handle. The port is ours and valid.
        self.where_it_works(|| unsafe {
            if started {
                sys::rte_eth_dev_stop(port);
            }
            sys::ddpd_port_remove(port);
        });
        self.rings = None;
        if !self.xdp_sockets.is_empty() {
            self.close_xdp_sockets();
        }
    }
}

/// Sockets of a family that were opened since `before`: descriptor and inode.
fn new_sockets(family: c_int, before: &BTreeMap<RawFd, u64>) -> Vec<(RawFd, u64)> {
    let mut now = host::sockets(family);
    now.retain(|fd, inode| before.get(fd) != Some(inode));
    now.into_iter().collect()
}

impl RxOffloads {
    fn bits(self) -> u64 {
        bit(self.ip_checksum, sys::DDPD_RX_IPV4_CKSUM)
            | bit(self.tcp_checksum, sys::DDPD_RX_TCP_CKSUM)
            | bit(self.rss_hash, sys::DDPD_RX_RSS_HASH)
    }
}

impl TxOffloads {
    fn bits(self) -> u64 {
        bit(self.ip_checksum, sys::DDPD_TX_IPV4_CKSUM)
            | bit(self.tcp_checksum, sys::DDPD_TX_TCP_CKSUM)
    }
}

fn bit(on: bool, flag: sys::ddpd_flags) -> u64 {
    if on { u64::from(flag) } else { 0 }
}

fn port_by_name(name: &str) -> Result<u16, Error> {
    let what = || format!("device {name} has no port");
    let c_name = CString::new(name).map_err(|_| Error::new(what(), 22))?;
    let mut port = 0;
    // SAFETY: a NUL-terminated string; the function fills the number.
    check(what(), unsafe { sys::ddpd_port_by_name(c_name.as_ptr(), &mut port) })?;
    Ok(port)
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.handle.name)
    }
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Started({})", self.handle.name)
    }
}

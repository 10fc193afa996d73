//! Life cycle of a device: lookup or creation, set-up, start, queries, removal. Frames pass through its queues
//! ([`crate::RxQueue`], [`crate::TxQueue`]).

use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::eal::Eal;
use crate::error::{Error, StartError, check};
use crate::handle::{AF_PACKET, AF_XDP, Handle, new_sockets};
use crate::host;
use crate::log;
use crate::mempool::{Mempool, MempoolConfig};
use crate::queue::{RxQueue, TxQueue};
use crate::recipe::Recipe;
use crate::rings::Rings;
use crate::types::{
    DeviceConfig, DeviceInfo, DeviceStats, IdleFd, LinkState, SctpRules, Segmentation,
};

/// A device that is not started yet.
pub struct Device {
    handle: Handle,
    /// The driver's arguments of a virtual device; empty for others.
    args: String,
    /// `AF_PACKET` and `AF_XDP` sockets that this process had before the device was created: inode by descriptor.
    sockets_before: [BTreeMap<RawFd, u64>; 2],
}

impl Device {
    /// Creates a virtual device. `name` begins with the driver's name (`net_tap0`); `args` are the driver's
    /// arguments.
    pub fn virtual_device(eal: &Eal, name: &str, args: &str) -> Result<Device, Error> {
        Device::hotplug(eal, "vdev", name, args)
    }

    /// Opens a PCI device that [`EalConfig::pci`](crate::EalConfig::pci) names.
    pub fn pci(eal: &Eal, address: &str) -> Result<Device, Error> {
        let lock = eal.lock_devices();
        // The environment probed the PCI bus at its start, so the device usually exists already.
        if let Ok(port) = port_by_name(address) {
            return Ok(Device::from_port(eal, port, address, None));
        }
        drop(lock);
        Device::hotplug(eal, "pci", address, "")
    }

    fn hotplug(eal: &Eal, bus: &str, name: &str, args: &str) -> Result<Device, Error> {
        let lock = eal.lock_devices();
        let sockets_before = [host::sockets(AF_PACKET), host::sockets(AF_XDP)];
        let port = hotplug_add(bus, name, args)?;
        drop(lock);
        let args = args.to_owned();
        Ok(Device { sockets_before, args, ..Device::from_port(eal, port, name, None) })
    }

    pub(crate) fn from_port(eal: &Eal, port: u16, name: &str, rings: Option<Arc<Rings>>) -> Device {
        let handle = Handle::new(eal, port, name, rings);
        Device { handle, args: String::new(), sockets_before: Default::default() }
    }

    /// Returns the device's capabilities.
    pub fn info(&self) -> Result<DeviceInfo, Error> {
        self.handle.info()
    }

    /// Returns the device's MAC address.
    pub fn mac(&self) -> Result<[u8; 6], Error> {
        let mut mac = [0; 6];
        // SAFETY: the port is ours and valid; the function writes six bytes.
        let code = unsafe { sys::ddpd_port_mac(self.handle.port(), mac.as_mut_ptr()) };
        check(format!("the MAC address of {} cannot be read", self.handle.name()), code)?;
        Ok(mac)
    }

    /// Creates the device's buffer pool, sets the device up and starts it. Returns the started device and its queues.
    pub fn start(
        mut self,
        config: &DeviceConfig,
        pool: MempoolConfig,
    ) -> Result<(StartedDevice, Vec<RxQueue>, Vec<TxQueue>), StartError> {
        let eal = self.handle.eal().clone();
        let pool = Mempool::new(&eal, pool).map_err(StartError::Pool)?;
        let lock = eal.lock_devices();
        log::clear_recent();
        self.handle.set_pool(pool.clone());
        if config.idle == IdleFd::PacketSocket {
            self.handle.set_recipe(Recipe::new(self.args.clone(), config.clone()));
        }
        let set_up = self.set_up(config, &pool);
        if let Err(error) = set_up {
            drop(lock);
            drop(self);
            // SAFETY: only the driver of this device used the pool, and the device is removed. Buffers that the driver
            // did not return (the AF_XDP driver keeps some) are no longer used.
            unsafe { pool.free_with_all_buffers() };
            return Err(StartError::Device(error));
        }
        let interrupts = matches!(set_up, Ok(IdleFd::RxInterrupt));
        let fds = self.idle_fds(config);
        let fds = match self.handle.recipe() {
            Some(recipe) => recipe.copy(fds),
            None => fds,
        };
        let cuts = self.segmentation(config);
        drop(lock);
        let handle = Arc::new(self.handle);
        if config.reconnect {
            handle.watch().map_err(StartError::Device)?;
        }
        let rx = (0..config.queues)
            .zip(fds)
            // SAFETY: the driver opened the descriptor for this device and closes the descriptor when the device
            // stops, or the descriptor is the copy that the handle keeps.
            .map(|(q, fd)| unsafe { RxQueue::new(handle.clone(), q, fd) })
            .map(|rx| if interrupts { rx.with_interrupt() } else { rx })
            .collect();
        let tx = (0..config.queues).map(|q| TxQueue::new(handle.clone(), q, cuts)).collect();
        Ok((StartedDevice { handle, pool }, rx, tx))
    }

    /// Sets the device up and starts it. Returns the kind of descriptor on which an idle worker can wait.
    fn set_up(&mut self, config: &DeviceConfig, pool: &Mempool) -> Result<IdleFd, Error> {
        let port = self.handle.port();
        let name = self.handle.name().to_owned();
        let mut idle = config.idle;
        let mut started = self.configure_and_start(config, pool);
        if started.is_err() && idle == IdleFd::RxInterrupt {
            // Drivers without receive interrupts refuse them in the set-up or at the start.
            idle = IdleFd::None;
            started = self.configure_and_start(&DeviceConfig { idle, ..config.clone() }, pool);
        }
        started?;
        if config.idle == IdleFd::VhostKick {
            self.handle.watch_frontends(config.queues)?;
        }
        if let Some(rss) = &config.rss {
            // SAFETY: the port is ours and started; the table has the passed number of entries.
            let code =
                unsafe { sys::ddpd_port_reta(port, rss.table.as_ptr(), rss.table.len() as u16) };
            check(format!("device {name} refuses the RSS table"), code)?;
            if rss.sctp_rules {
                self.handle.request_sctp_rules(rss);
            }
        }
        enable_multicast(port, config);
        Ok(idle)
    }

    fn configure_and_start(&mut self, config: &DeviceConfig, pool: &Mempool) -> Result<(), Error> {
        let configured = configure(&self.handle, config, pool);
        self.handle.adopt_xdp_sockets(new_sockets(AF_XDP, &self.sockets_before[1]));
        configured?;
        self.handle.start(config.reconnect)
    }

    /// Returns the segmentation that the device itself performs.
    fn segmentation(&self, config: &DeviceConfig) -> Segmentation {
        if !(config.tx.tcp_segmentation && config.tx.multi_segments) {
            return Segmentation::NONE;
        }
        let most = self.handle.raw_info().map_or(0, |info| info.tx_segments_max);
        // One segment holds the headers. A packet uses at most a quarter of the ring, because a packet as large as the
        // ring could never be sent.
        let segments = most.saturating_sub(1).min(config.tx_descriptors / 4);
        // librte_gso, which the TAP driver uses, does not support IPv6.
        let ipv6 = !self.handle.name().starts_with("net_tap");
        Segmentation { ipv4: true, ipv6, segments, virtio: false }
    }

    /// Returns the descriptor on which an idle worker waits, per queue. `None` if the queue has no descriptor yet, or
    /// if it is uncertain which descriptor is the queue's.
    fn idle_fds(&self, config: &DeviceConfig) -> Vec<Option<RawFd>> {
        let queues = config.queues;
        let new = match config.idle {
            // `Vhost` has the descriptors of a vhost-user port, because they change with each frontend. `RxQueue` sets
            // up a receive interrupt itself.
            IdleFd::None | IdleFd::VhostKick | IdleFd::RxInterrupt => {
                return vec![None; queues as usize];
            }
            IdleFd::QueueInterrupt => {
                return (0..queues)
                    // SAFETY: the port is ours, and the queue is set up.
                    .map(|q| unsafe { sys::ddpd_port_rx_fd(self.handle.port(), q) })
                    .map(|fd| Some(fd).filter(|&fd| fd >= 0))
                    .collect();
            }
            IdleFd::PacketSocket => new_sockets(AF_PACKET, &self.sockets_before[0]),
            IdleFd::XdpSocket => self.handle.xdp_sockets().to_vec(),
        };
        sockets_by_queue(new, queues)
    }
}

/// Assigns the sockets that a driver has opened to its queues. `None` for all queues unless there is exactly one socket
/// per queue.
pub(crate) fn sockets_by_queue(mut new: Vec<(RawFd, u64)>, queues: u16) -> Vec<Option<RawFd>> {
    if new.len() != usize::from(queues) {
        return vec![None; usize::from(queues)];
    }
    // The driver opens the sockets in the order of the queues, and the kernel assigns ascending inode numbers.
    new.sort_unstable_by_key(|&(_, inode)| inode);
    new.into_iter().map(|(fd, _)| Some(fd)).collect()
}

/// Creates a device and returns its port number. The caller holds the device lock.
pub(crate) fn hotplug_add(bus: &str, name: &str, args: &str) -> Result<u16, Error> {
    log::clear_recent();
    let failure = || format!("device {name} ({}) cannot be created", log::redact_secrets(args));
    let c = |text: &str| CString::new(text).map_err(|_| Error::new(failure(), 22));
    let (c_bus, c_name, c_args) = (c(bus)?, c(name)?, c(args)?);
    // SAFETY: three NUL-terminated strings, which DPDK copies. The device lock excludes concurrent calls.
    let code =
        unsafe { sys::rte_eal_hotplug_add(c_bus.as_ptr(), c_name.as_ptr(), c_args.as_ptr()) };
    check(failure(), code)?;
    port_by_name(name)
}

/// Enables reception of multicast frames, or of all frames, as configured.
pub(crate) fn enable_multicast(port: u16, config: &DeviceConfig) {
    // Drivers without these filters receive all frames anyway, and return "not supported".
    // SAFETY: the port is ours and valid.
    let groups = config.all_multicast && unsafe { sys::rte_eth_allmulticast_enable(port) } == 0;
    // The af_packet and af_xdp drivers have no all-multicast mode. Promiscuous mode replaces it: without multicast
    // frames, the port would miss neighbour solicitations (RFC 4861 §4.3).
    if config.promiscuous || config.all_multicast && !groups {
        // SAFETY: the port is ours and valid.
        unsafe { sys::rte_eth_promiscuous_enable(port) };
    }
}

/// Configures a device that is not started: queues, offloads, RSS key and MTU.
pub(crate) fn configure(
    handle: &Handle,
    config: &DeviceConfig,
    pool: &Mempool,
) -> Result<(), Error> {
    let (port, name) = (handle.port(), handle.name());
    // The hash includes SCTP: without an SCTP flow rule, packets are at least spread, so that one worker does not
    // receive all of them.
    let functions = sys::DDPD_RSS_IPV4
        | sys::DDPD_RSS_IPV6
        | sys::DDPD_RSS_TCP4
        | sys::DDPD_RSS_TCP6
        | sys::DDPD_RSS_SCTP4
        | sys::DDPD_RSS_SCTP6;
    let offered = handle.raw_info()?.rss_functions;
    let key = config.rss.as_ref().map(|rss| &rss.key);
    let mut conf = sys::ddpd_port_conf {
        rx_queues: config.queues,
        tx_queues: config.queues,
        rx_descriptors: config.rx_descriptors,
        tx_descriptors: config.tx_descriptors,
        mtu: if config.set_mtu { config.mtu } else { 0 },
        rx_offloads: config.rx.bits(),
        tx_offloads: config.tx.bits(),
        queue_interrupts: u8::from(matches!(
            config.idle,
            IdleFd::QueueInterrupt | IdleFd::RxInterrupt
        )),
        private_files: u8::from(config.private_files),
        rss_key: key.map_or(std::ptr::null(), |key| key.as_ptr()),
        rss_key_len: key.map_or(0, |key| key.len() as u8),
        rss_functions: u64::from(functions) & offered,
    };
    let numa = pool.config().numa.map_or(-1, |node| node as c_int);
    // SAFETY: the port is ours and not started. The structure and its key outlive the call. The handle keeps the pool
    // alive as long as the device exists.
    let code = unsafe { sys::ddpd_port_configure(port, &mut conf, pool.raw(), numa) };
    check(format!("device {name} refuses its set-up"), code)?;
    if config.set_mtu {
        // SAFETY: the port is ours and configured.
        let code = unsafe { sys::ddpd_port_set_mtu(port, config.mtu) };
        // Some drivers do not support the call. They received the MTU with the configuration above.
        if code != 0 && code != -ENOTSUP {
            return Err(Error::new(format!("device {name} refuses MTU {}", config.mtu), code));
        }
    }
    Ok(())
}

const ENOTSUP: c_int = 95;

/// A started device, which stays open as long as this value, a clone, or one of its queues exists.
#[derive(Clone)]
pub struct StartedDevice {
    pub(crate) handle: Arc<Handle>,
    pool: Mempool,
}

impl StartedDevice {
    /// Returns the pool from which the driver allocates buffers. Sent frames may also be allocated from it.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Returns DPDK's name of the device.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Returns which of the [requested](crate::Rss::sctp_rules) SCTP rules the device accepted.
    pub fn sctp_rules(&self) -> SctpRules {
        self.handle.sctp_rules()
    }

    /// Returns the current state of the link.
    pub fn link(&self) -> LinkState {
        self.handle.link()
    }

    /// Returns the current counters of the device.
    pub fn stats(&self) -> Result<DeviceStats, Error> {
        let mut stats = sys::ddpd_port_stats::default();
        // SAFETY: the port is ours and valid; the function writes only the structure.
        let code = unsafe { sys::ddpd_port_stats(self.handle.port(), &mut stats) };
        check(format!("the counters of {} cannot be read", self.handle.name()), code)?;
        Ok(DeviceStats {
            rx_frames: stats.rx_packets,
            rx_bytes: stats.rx_bytes,
            tx_frames: stats.tx_packets,
            tx_bytes: stats.tx_bytes,
            rx_missed: stats.rx_missed,
            rx_errors: stats.rx_errors,
            tx_errors: stats.tx_errors,
            rx_no_buffer: stats.rx_no_buffer,
        })
    }
}

fn port_by_name(name: &str) -> Result<u16, Error> {
    let failure = || format!("device {name} has no port");
    let c_name = CString::new(name).map_err(|_| Error::new(failure(), 22))?;
    let mut port = 0;
    // SAFETY: a NUL-terminated string; the function writes only the number.
    check(failure(), unsafe { sys::ddpd_port_by_name(c_name.as_ptr(), &mut port) })?;
    Ok(port)
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.handle.name())
    }
}

impl fmt::Debug for StartedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Started({})", self.handle.name())
    }
}

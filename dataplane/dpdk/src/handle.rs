//! An open DPDK device, shared by [`StartedDevice`](crate::StartedDevice) and its queues. Closed and removed on drop.
//!
//! A memif client must reconnect, but its driver does not. An alarm in the environment's interrupt thread therefore
//! checks the link every quarter of a second. The driver detects a lost peer in the same thread, so the check and the
//! detection never run at the same time.
//!
//! An `af_packet` device may be recreated while its queues are in use: see [`crate::recreate`].

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use dpdk_sys as sys;

use crate::eal::Eal;
use crate::error::{Error, check};
use crate::gate::Gate;
use crate::host;
use crate::interrupts;
use crate::mempool::Mempool;
use crate::munmap;
use crate::recipe::Recipe;
use crate::rings::Rings;
use crate::types::{DeviceInfo, LinkState, Rss, RxOffloads, SctpRules, Segmentation, TxOffloads};
use crate::vhost::Vhost;

pub(crate) const AF_PACKET: c_int = 17;
pub(crate) const AF_XDP: c_int = 44;

const ENOTSUP: c_int = 95;

/// Port number of a device that does not exist, because its recreation has failed or is in progress.
pub(crate) const NO_PORT: u16 = u16::MAX;

/// Interval in microseconds between the link checks of a device that reconnects.
const INTERVAL_US: u64 = 250_000;

/// A DPDK device, closed and removed on drop. Its queues share the handle.
pub(crate) struct Handle {
    /// DPDK's port number of the device, which changes when the device is recreated. [`NO_PORT`] while the device does
    /// not exist. Does not change while a burst function runs inside [`Gate::pass`].
    port: AtomicU16,
    name: String,
    started: bool,
    eal: Eal,
    /// Pool from which the driver allocates buffers. Set when the device is started.
    pool: Option<Mempool>,
    /// Rings of a ring device, to which the device sends and from which the device receives.
    rings: Option<Arc<Rings>>,
    /// AF_XDP sockets that the driver opened: descriptor and inode.
    xdp_sockets: Vec<(RawFd, u64)>,
    guard: Guard,
    /// SCTP rules that the device accepted, destroyed before the device stops.
    sctp_rules: SctpRules,
    /// True if the driver (memif) works in the interrupt thread. The device must then be started, stopped and removed
    /// there.
    on_interrupt_thread: bool,
    /// Arguments and set-up for recreation; `None` if the device cannot be recreated.
    recipe: Option<Recipe>,
}

/// Mechanism that prevents workers from polling queues while the driver changes the device's state.
enum Guard {
    /// Polls are always allowed. For a device that is not a vhost-user port, cannot be recreated, and whose driver does
    /// not work in the interrupt thread.
    Open,
    /// For a device whose driver works in the interrupt thread, or that can be recreated. The gate records whether the
    /// device is started.
    Gate(Arc<Gate>),
    /// For a vhost-user port. Tracks the connected frontend.
    Vhost(Box<Vhost>),
}

impl Handle {
    /// Creates the handle of a port that is not set up yet. `rings` are the rings of a ring device.
    pub(crate) fn new(eal: &Eal, port: u16, name: &str, rings: Option<Arc<Rings>>) -> Handle {
        Handle {
            port: AtomicU16::new(port),
            name: name.to_owned(),
            started: false,
            eal: eal.clone(),
            pool: None,
            rings,
            xdp_sockets: Vec::new(),
            guard: Guard::Open,
            sctp_rules: SctpRules::default(),
            on_interrupt_thread: name.starts_with("net_memif"),
            recipe: None,
        }
    }

    /// Stores the recipe of a device that can be recreated. Called before the device is started.
    pub(crate) fn set_recipe(&mut self, recipe: Recipe) {
        self.recipe = Some(recipe);
    }

    pub(crate) fn recipe(&self) -> Option<&Recipe> {
        self.recipe.as_ref()
    }

    pub(crate) fn eal(&self) -> &Eal {
        &self.eal
    }

    /// Keeps the pool alive as long as the device is open. The driver allocates buffers from this pool.
    pub(crate) fn set_pool(&mut self, pool: Mempool) {
        self.pool = Some(pool);
    }

    /// Takes ownership of sockets that the driver opened. Release 22.11 of the driver does not close these sockets.
    pub(crate) fn adopt_xdp_sockets(&mut self, sockets: Vec<(RawFd, u64)>) {
        self.xdp_sockets = sockets;
    }

    /// Requests SCTP flow rules ([`Rss::sctp_rules`]) from the started device.
    pub(crate) fn request_sctp_rules(&mut self, rss: &Rss) {
        let (key, table) = (&rss.key, &rss.table);
        let ask = |ipv6: bool| {
            // SAFETY: the port is ours. Key and table have the passed lengths, and drivers copy them.
            let code = unsafe {
                sys::ddpd_port_sctp_rule(
                    self.port(),
                    c_int::from(ipv6),
                    key.as_ptr(),
                    key.len() as u32,
                    table.as_ptr(),
                    table.len() as u32,
                )
            };
            code == 0
        };
        self.sctp_rules = SctpRules { v4: ask(false), v6: ask(true) };
    }

    pub(crate) fn sctp_rules(&self) -> SctpRules {
        self.sctp_rules
    }

    /// Starts to track the frontend of a started vhost-user port.
    pub(crate) fn watch_frontends(&mut self, queues: u16) -> Result<(), Error> {
        let failure = || format!("the frontends of device {} cannot be tracked", self.name);
        let vhost = Vhost::new(self.port(), queues).map_err(|code| Error::new(failure(), code))?;
        // SAFETY: the port is started; `drop` ends the watch before it removes the port.
        let code = unsafe { vhost.watch() };
        self.guard = Guard::Vhost(vhost);
        check(failure(), code).map(|_| ())
    }

    pub(crate) fn vhost(&self) -> Option<&Vhost> {
        match &self.guard {
            Guard::Vhost(vhost) => Some(vhost),
            Guard::Open | Guard::Gate(_) => None,
        }
    }

    pub(crate) fn gate(&self) -> Option<&Arc<Gate>> {
        match &self.guard {
            Guard::Gate(gate) => Some(gate),
            Guard::Open | Guard::Vhost(_) => None,
        }
    }

    pub(crate) fn xdp_sockets(&self) -> &[(RawFd, u64)] {
        &self.xdp_sockets
    }

    /// Starts the device. A device that reconnects may have no peer yet: the link checks of [`Handle::watch`] then
    /// repeat the start.
    pub(crate) fn start(&mut self, reconnect: bool) -> Result<(), Error> {
        let port = self.port();
        if self.on_interrupt_thread && !munmap::is_guarded() {
            let failure = format!(
                "device {}: its driver does not find this program's munmap, which guards shared memory; link the \
                 program so that it exports it",
                self.name
            );
            return Err(Error::new(failure, ENOTSUP));
        }
        if reconnect {
            let gate = Gate::new();
            self.on_driver_thread(|| munmap::without_waiting(|| gate.handle_link_down(port)));
            self.set_gate(gate);
            return Ok(());
        }
        self.start_driver()?;
        self.started = true;
        if self.on_interrupt_thread {
            self.set_gate(Gate::open());
        } else if self.recipe.is_some() {
            self.guard = Guard::Gate(Arc::new(Gate::open()));
        }
        Ok(())
    }

    /// Starts the driver of a device that is set up and not in use.
    pub(crate) fn start_driver(&self) -> Result<(), Error> {
        let port = self.port();
        // SAFETY: the port is ours and set up, and has no user yet.
        let code = self.on_driver_thread(|| unsafe { sys::rte_eth_dev_start(port) });
        check(format!("device {} does not start", self.name), code).map(|_| ())
    }

    fn set_gate(&mut self, gate: Gate) {
        let gate = Arc::new(gate);
        munmap::register(&gate);
        self.guard = Guard::Gate(gate);
    }

    /// Starts the link checks of a device that reconnects. The alarm is cancelled when the device is dropped.
    pub(crate) fn watch(self: &Arc<Self>) -> Result<(), Error> {
        // SAFETY: the handle does not move within its `Arc`, and cancels the alarm when it is dropped.
        let code = unsafe {
            sys::rte_eal_alarm_set(INTERVAL_US, Some(on_alarm), self.as_callback_argument())
        };
        check(format!("no timer for device {}", self.name), code).map(|_| ())
    }

    fn as_callback_argument(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    #[inline]
    pub(crate) fn port(&self) -> u16 {
        // The lock of the gate orders this load with changes of the number.
        self.port.load(Ordering::Relaxed)
    }

    /// Sets the port number after removal or recreation of the device. The gate must be closed.
    pub(crate) fn set_port(&self, port: u16) {
        self.port.store(port, Ordering::Relaxed);
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs a change of the device's state on the thread that its driver requires.
    fn on_driver_thread<T: Send>(&self, change: impl FnOnce() -> T + Send) -> T {
        if self.on_interrupt_thread { interrupts::run(change) } else { change() }
    }

    /// Polls a queue, unless the device is stopped or has no frontend. The argument of `burst` is DPDK's port number.
    #[inline]
    pub(crate) fn poll(&self, queue: u16, burst: impl FnOnce(u16) -> u16) -> usize {
        let burst = || burst(self.port());
        match &self.guard {
            Guard::Open => burst().into(),
            Guard::Gate(gate) => gate.pass(burst).unwrap_or(0).into(),
            Guard::Vhost(vhost) => vhost.pass(queue, burst).unwrap_or(0).into(),
        }
    }

    /// Polls a queue as [`poll`](Self::poll) does. The second argument of `burst` is the segmentation to use: on a
    /// vhost-user port the frontend's, otherwise `device`.
    pub(crate) fn poll_with_segmentation(
        &self,
        queue: u16,
        device: Segmentation,
        burst: impl FnOnce(u16, Segmentation),
    ) {
        let burst = |how| burst(self.port(), how);
        match &self.guard {
            Guard::Open => burst(device),
            Guard::Gate(gate) => gate.pass(|| burst(device)).unwrap_or(()),
            Guard::Vhost(vhost) => vhost.pass_with_segmentation(queue, burst).unwrap_or(()),
        }
    }

    pub(crate) fn link(&self) -> LinkState {
        let mut link = sys::ddpd_link::default();
        // SAFETY: the port is ours and valid; the function writes only the structure.
        let code = unsafe { sys::ddpd_port_link(self.port(), &mut link) };
        LinkState {
            up: code == 0 && link.up != 0,
            mbit_per_s: Some(link.mbit_per_s).filter(|&mbit| code == 0 && mbit != 0),
        }
    }

    /// Checks the link, and restarts the device if the link is down. While another device is created or removed, the
    /// restart is left to the next alarm.
    fn reconnect(&self) {
        let Some(gate) = self.gate() else { return };
        if self.link().up {
            gate.note_link_up();
        } else if let Some(_lock) = self.eal.try_lock_devices() {
            munmap::without_waiting(|| gate.handle_link_down(self.port()));
        }
    }

    pub(crate) fn raw_info(&self) -> Result<sys::ddpd_port_info, Error> {
        let mut info = sys::ddpd_port_info::default();
        // SAFETY: the port is ours and valid; the function writes only the structure.
        let code = unsafe { sys::ddpd_port_info(self.port(), &mut info) };
        check(format!("the capabilities of device {} cannot be read", self.name), code)?;
        Ok(info)
    }

    /// Closes the sockets of the AF_XDP driver. Release 22.11 leaks them when the device is removed. The queues of the
    /// interface would then stay in use until this process ends.
    fn close_xdp_sockets(&self) {
        let open = host::sockets(AF_XDP);
        for (fd, inode) in &self.xdp_sockets {
            if open.get(fd) == Some(inode) {
                // SAFETY: descriptor and inode identify the socket that the driver opened for this device. The device
                // is removed, so no other code uses or closes the socket.
                drop(unsafe { OwnedFd::from_raw_fd(*fd) });
            }
        }
    }

    pub(crate) fn info(&self) -> Result<DeviceInfo, Error> {
        let raw = self.raw_info()?;
        // SAFETY: the shim writes a NUL-terminated string into the array.
        let driver = unsafe { CStr::from_ptr(raw.driver.as_ptr()) };
        let rss = u64::from(sys::DDPD_RSS_TCP4 | sys::DDPD_RSS_TCP6);
        let has_flag = |set: u64, flag: sys::ddpd_flags| set & u64::from(flag) != 0;
        Ok(DeviceInfo {
            driver: driver.to_string_lossy().into_owned(),
            numa: u32::try_from(raw.numa_socket).ok(),
            max_tx_segments: raw.tx_segments_max,
            max_rx_queues: raw.max_rx_queues,
            max_tx_queues: raw.max_tx_queues,
            max_rx_packet: raw.max_rx_packet,
            max_mtu: raw.max_mtu,
            min_rx_buffer: raw.min_rx_buffer,
            reta_size: raw.reta_size,
            hash_key_len: raw.hash_key_size,
            rss_tcp: raw.rss_functions & rss == rss,
            rx: RxOffloads {
                ip_checksum: has_flag(raw.rx_offloads, sys::DDPD_RX_IPV4_CKSUM),
                tcp_checksum: has_flag(raw.rx_offloads, sys::DDPD_RX_TCP_CKSUM),
                sctp_checksum: has_flag(raw.rx_offloads, sys::DDPD_RX_SCTP_CKSUM),
                rss_hash: has_flag(raw.rx_offloads, sys::DDPD_RX_RSS_HASH),
            },
            tx: TxOffloads {
                ip_checksum: has_flag(raw.tx_offloads, sys::DDPD_TX_IPV4_CKSUM),
                tcp_checksum: has_flag(raw.tx_offloads, sys::DDPD_TX_TCP_CKSUM),
                sctp_checksum: has_flag(raw.tx_offloads, sys::DDPD_TX_SCTP_CKSUM),
                multi_segments: has_flag(raw.tx_offloads, sys::DDPD_TX_MULTI_SEGS),
                tcp_segmentation: has_flag(raw.tx_offloads, sys::DDPD_TX_TCP_TSO),
            },
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let gate = self.gate().cloned();
        if gate.is_some() {
            // SAFETY: the argument is the one with which `watch` and `on_alarm` set the alarm. The call cancels the
            // alarm and waits for a running callback, unless the callback runs on this thread.
            unsafe { sys::rte_eal_alarm_cancel(Some(on_alarm), self.as_callback_argument()) };
        }
        let _lock = self.eal.lock_devices();
        let started = gate.as_ref().map_or(self.started, |gate| gate.is_started());
        // All queues are dropped, so no worker has to be notified.
        if let Guard::Vhost(vhost) = std::mem::replace(&mut self.guard, Guard::Open)
            && !vhost.unwatch()
        {
            // `unwatch` failed: DPDK may still use the value in a callback, so the value is leaked.
            let _: &mut Vhost = Box::leak(vhost);
        }
        let port = self.port();
        let has_rules = self.sctp_rules != SctpRules::default();
        // SAFETY: queues share this handle, so the last user of the port is gone. The port is ours, and valid unless
        // `NO_PORT`.
        self.on_driver_thread(|| unsafe {
            if has_rules {
                sys::ddpd_port_flush_rules(port);
            }
            if started {
                sys::rte_eth_dev_stop(port);
            }
            if port != NO_PORT {
                sys::ddpd_port_remove(port);
            }
        });
        if let Some(gate) = &gate {
            munmap::unregister(gate);
        }
        self.rings = None;
        if !self.xdp_sockets.is_empty() {
            self.close_xdp_sockets();
        }
    }
}

/// Alarm callback of a device that reconnects: checks the link and sets the next alarm.
unsafe extern "C" fn on_alarm(argument: *mut c_void) {
    // SAFETY: the argument is the handle that `watch` passed. A handle cancels its alarm before it is freed.
    let handle = unsafe { &*argument.cast::<Handle>() };
    handle.reconnect();
    // SAFETY: as in `watch`. If the call fails, the link is not checked any more.
    unsafe { sys::rte_eal_alarm_set(INTERVAL_US, Some(on_alarm), argument) };
}

/// Returns the sockets of an address family opened since `before`: descriptor and inode.
pub(crate) fn new_sockets(family: c_int, before: &BTreeMap<RawFd, u64>) -> Vec<(RawFd, u64)> {
    let mut now = host::sockets(family);
    now.retain(|fd, inode| before.get(fd) != Some(inode));
    now.into_iter().collect()
}

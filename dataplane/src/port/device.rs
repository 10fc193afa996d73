//! The Linux interface under a port. While the port is open, the host's administrator, a container runtime or a
//! reloaded driver may delete, recreate or rename the interface, or change its address, MTU and state.
//!
//! [`Port::view`] compares the interface of the configured name with the interface that the port is bound to. After the
//! interface was recreated, an `af_packet` port can be [bound again](Port::rebind). An `af_xdp` or `tap` port stays
//! down until the process restarts, because its driver does not return all of its buffers and queues.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dpdk::LinkState;

use super::{Port, PortError, PortKind, claim};

/// A difference between a port and its Linux interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceFault {
    /// The network namespace has no interface of the configured name.
    Missing,
    /// The interface was deleted and recreated. The port is not bound to the new interface.
    Replaced,
    /// The interface was renamed to this name. The port still works.
    Renamed(String),
    /// The interface is administratively down.
    Down,
    /// The interface's MTU in bytes, which is smaller than the port's.
    Mtu(u32),
}

impl DeviceFault {
    /// Returns true if the port neither receives nor sends until it is bound again.
    pub fn is_fatal(&self) -> bool {
        match self {
            DeviceFault::Missing | DeviceFault::Replaced => true,
            DeviceFault::Renamed(_) | DeviceFault::Down | DeviceFault::Mtu(_) => false,
        }
    }
}

/// State of a port's link and Linux interface, as returned by [`Port::view`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceView {
    /// State of the link. The link is down while the interface has a fatal fault.
    pub link: LinkState,
    /// The most serious fault of the interface; `None` without a fault.
    pub fault: Option<DeviceFault>,
    /// Link-layer address that the port should have: the configured address, otherwise the interface's. A TAP port
    /// keeps its own address.
    pub mac: [u8; 6],
}

/// State of a port's binding to its interface.
#[derive(Debug)]
pub(super) struct Binding {
    /// Linux's index of the interface that the port is bound to; 0 without an interface.
    index: AtomicU32,
    /// True if the interface was missing at some time since the port was bound.
    was_missing: AtomicBool,
    /// The port's link-layer address in the low 48 bits.
    mac: AtomicU64,
    /// True if the port's link-layer address follows the address of its interface; false for a configured address and
    /// for TAP ports.
    follows_mac: bool,
}

impl Binding {
    pub(super) fn new(kind: &PortKind, mac: [u8; 6], is_configured: bool) -> Binding {
        let interface = interface_name(kind).and_then(dpdk::interface);
        let binding = Binding {
            index: AtomicU32::new(interface.map_or(0, |interface| interface.index)),
            was_missing: AtomicBool::new(false),
            mac: AtomicU64::new(0),
            // The address of a TAP interface belongs to the kernel's end of the link, not to the port's.
            follows_mac: !is_configured && !matches!(kind, PortKind::Tap { .. }),
        };
        binding.set_mac(mac);
        binding
    }

    fn mac(&self) -> [u8; 6] {
        let [_, _, mac @ ..] = self.mac.load(Ordering::Relaxed).to_be_bytes();
        mac
    }

    fn set_mac(&self, [a, b, c, d, e, f]: [u8; 6]) {
        self.mac.store(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Ordering::Relaxed);
    }
}

/// Returns the name of the Linux interface under a port of this kind; `None` if the kind has none.
fn interface_name(kind: &PortKind) -> Option<&str> {
    match kind {
        PortKind::AfPacket { device }
        | PortKind::AfXdp { device, .. }
        | PortKind::Tap { device } => Some(device),
        PortKind::Pci { .. }
        | PortKind::Memif { .. }
        | PortKind::VhostUser { .. }
        | PortKind::Ring { .. }
        | PortKind::Pcap { .. } => None,
    }
}

impl Port {
    /// Returns the current state of link and interface, and publishes the state of the link to the queues. While the
    /// link is down, the queues drop the frames that the device does not accept.
    pub fn view(&self) -> DeviceView {
        let view = match interface_name(&self.info.kind) {
            Some(name) => self.view_interface(name),
            None => DeviceView { link: self.device_link(), fault: None, mac: self.mac() },
        };
        self.shared.iter().for_each(|queue| queue.set_device_link(view.link.up));
        view
    }

    fn view_interface(&self, name: &str) -> DeviceView {
        let index = self.binding.index.load(Ordering::Relaxed);
        let is_bound = self.device.is_bound_to(index);
        let view = |up, fault| DeviceView {
            link: LinkState { up, mbit_per_s: None },
            fault,
            mac: self.mac(),
        };
        let Some(interface) = dpdk::interface(name) else {
            if let Some(other) = dpdk::interface_name(index).filter(|_| is_bound) {
                let up = dpdk::interface(&other).is_some_and(|interface| interface.running);
                return view(up, Some(DeviceFault::Renamed(other)));
            }
            self.binding.was_missing.store(true, Ordering::Relaxed);
            return view(false, Some(DeviceFault::Missing));
        };
        if interface.index != index || !is_bound || self.binding.was_missing.load(Ordering::Relaxed)
        {
            return view(false, Some(DeviceFault::Replaced));
        }
        let fault = if !interface.up {
            Some(DeviceFault::Down)
        } else if interface.mtu < u32::from(self.info.mtu) {
            Some(DeviceFault::Mtu(interface.mtu))
        } else {
            None
        };
        let up = match self.info.kind {
            PortKind::Tap { .. } => self.device.link().up,
            // The drivers of `af_packet` and `af_xdp` always report the link as up.
            _ => interface.running,
        };
        let follows = self.binding.follows_mac && super::is_host_mac(&interface.mac);
        let mac = if follows { interface.mac } else { self.mac() };
        DeviceView { mac, ..view(up, fault) }
    }

    /// Returns the port's link-layer address.
    pub fn mac(&self) -> [u8; 6] {
        self.binding.mac()
    }

    /// Sets the port's link-layer address. The caller notifies the workers by
    /// [`Command::PortChanged`](crate::Command::PortChanged).
    pub fn set_mac(&self, mac: [u8; 6]) {
        self.binding.set_mac(mac);
    }

    /// Returns true if the port's driver supports [`rebind`](Self::rebind).
    pub fn can_rebind(&self) -> bool {
        self.device.can_recreate()
    }

    /// Binds an `af_packet` port to the interface that has the configured name now. Queues stay valid; frames that wait
    /// in the sockets are lost. The call blocks for some milliseconds.
    ///
    /// # Errors
    /// The interface does not exist, is claimed by another port, or cannot be opened. The port is then down, and the
    /// call may be repeated.
    pub fn rebind(&self) -> Result<(), PortError> {
        let port = || self.info.name.clone();
        let name = interface_name(&self.info.kind).unwrap_or_default();
        let Some(interface) = dpdk::interface(name) else {
            return Err(PortError::NoInterface { port: port(), interface: name.to_owned() });
        };
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_claim {
            *claim = None; // the port's own claim must not be found as another port's
            *claim = Some(claim::claim_interface(&self.info.name, name)?);
        }
        self.device.recreate().map_err(|error| PortError::Device { port: port(), error })?;
        self.binding.index.store(interface.index, Ordering::Relaxed);
        self.binding.was_missing.store(false, Ordering::Relaxed);
        Ok(())
    }
}

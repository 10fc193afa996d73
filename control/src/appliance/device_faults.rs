//! Sentences for operators about faults of ports' Linux interfaces: fault, effect and remedy.

use dataplane::port::DeviceFault;

use config::{PortKind, PortSection};

/// Properties of a port that decide whether it can be bound again after its Linux interface was recreated.
#[derive(Clone, Copy)]
pub(super) struct Rebinding {
    /// True if the port's driver can bind the interface again.
    pub(super) is_supported: bool,
    /// True if the host's kernel uses the port through a TAP, which has the link-layer address of the old interface.
    pub(super) is_shared: bool,
}

/// Returns a phrase for a port that cannot be bound again after its interface was recreated, such as "a port of kind
/// tap". Returns `None` if the port is bound again automatically.
pub(super) fn unrebindable_kind(section: &PortSection, rebinding: Rebinding) -> Option<String> {
    match (rebinding.is_supported, rebinding.is_shared) {
        (true, false) => None,
        (true, true) => Some("a port that is shared with the host".to_owned()),
        (false, _) => Some(format!("a port of kind {}", section.kind.name())),
    }
}

/// Returns the remedy for a port whose link is down.
pub(super) fn remedy(section: &PortSection) -> String {
    let place = section.kind.location();
    match section.kind {
        PortKind::Pci { .. } => {
            format!("check the cable of {place} and the device at its other end, then try again")
        }
        PortKind::AfXdp { .. } | PortKind::AfPacket { .. } | PortKind::Tap { .. } => {
            format!("run `ip link set {place} up`, and check what {place} is connected to")
        }
        PortKind::Memif { .. } | PortKind::VhostUser { .. } => {
            format!("start the process at the other end of {place}, then try again")
        }
        PortKind::Ring { .. } | PortKind::Pcap { .. } => {
            "ddpctl ports shows the port: try again when its link is up".to_owned()
        }
    }
}

/// Returns the sentence about a fault of a port's interface. `unrebindable`: the result of [`unrebindable_kind`].
pub(super) fn fault_sentence(
    section: &PortSection,
    fault: &DeviceFault,
    unrebindable: Option<&str>,
) -> String {
    let (port, device) = (&section.name, section.kind.location());
    let kind = unrebindable.unwrap_or_default();
    let is_tap = matches!(section.kind, PortKind::Tap { .. });
    match fault {
        DeviceFault::Missing if unrebindable.is_none() => format!(
            "port {port}: there is no interface {device} any more: the port is down, and is bound again when the interface \
             is back"
        ),
        DeviceFault::Missing if is_tap => format!(
            "port {port}: the interface {device} was deleted: the port is down; restart ddpd, which makes it again"
        ),
        DeviceFault::Missing => format!(
            "port {port}: there is no interface {device} any more, and {kind} cannot be bound again: the port \
             is down; make the interface and restart ddpd"
        ),
        DeviceFault::Replaced if unrebindable.is_none() => format!(
            "port {port}: the interface {device} was made again, and the port cannot be bound to it: the port is down; ddpd \
             tries again each second"
        ),
        // The remedy begins with the deletion, because a restart of ddpd fails while another interface has the TAP's
        // name.
        DeviceFault::Replaced if is_tap => format!(
            "port {port}: the interface {device} was deleted, and another one has its name: the port is down; delete that one \
             and restart ddpd, which makes its own"
        ),
        DeviceFault::Replaced => format!(
            "port {port}: the interface {device} was made again, and {kind} cannot be bound again: the port \
             is down; restart ddpd"
        ),
        DeviceFault::Renamed(name) => format!(
            "port {port}: the interface {device} is called {name} now: the port works until ddpd restarts; rename it back, \
             or write the new name in the configuration"
        ),
        DeviceFault::Down => {
            format!("port {port}: the interface {device} is down: run `ip link set {device} up`")
        }
        DeviceFault::Mtu(mtu) => format!(
            "port {port}: the interface {device} has MTU {mtu}, less than the port's {own}: longer packets are lost; run `ip \
             link set {device} mtu {own}`, or set the port's mtu to {mtu} and restart",
            own = section.mtu
        ),
    }
}

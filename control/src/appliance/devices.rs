//! Interfaces of Linux under ports, as operators read of them: the fault, what it means and what to do.

use dataplane::port::DeviceFault;

use crate::config::{PortKind, PortSection};

/// One sentence on a fault of a port's interface. `can_rebind`: the port is bound again by itself.
pub(super) fn sentence(section: &PortSection, fault: &DeviceFault, can_rebind: bool) -> String {
    let (port, device, kind) = (&section.name, section.kind.place(), section.kind.word());
    let is_tap = matches!(section.kind, PortKind::Tap { .. });
    match fault {
        DeviceFault::Missing if can_rebind => format!(
            "port {port}: there is no interface {device} any more: the port is down, and is bound again when the interface \
             is back"
        ),
        DeviceFault::Missing if is_tap => format!(
            "port {port}: the interface {device} was deleted: the port is down; restart ddpd, which makes it again"
        ),
        DeviceFault::Missing => format!(
            "port {port}: there is no interface {device} any more, and a port of kind {kind} cannot be bound again: the port \
             is down; make the interface and restart ddpd"
        ),
        DeviceFault::Replaced if can_rebind => format!(
            "port {port}: the interface {device} was made again, and the port cannot be bound to it: the port is down; ddpd \
             tries again each second"
        ),
        DeviceFault::Replaced => format!(
            "port {port}: the interface {device} was made again, and a port of kind {kind} cannot be bound again: the port \
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

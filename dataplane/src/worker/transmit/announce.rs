//! Announcements of interfaces: at the start of a worker, when a link comes up, when a port's device is recreated, and
//! when its MAC address changes. Neighbours thus learn the address at once (RFC 5227 §2.3, RFC 4861 §7.2.6).

use base::Instant;

use crate::api::{PortId, WorkerId};
use crate::io::PortIo;
use crate::net::neighbour::Mac;
use crate::net::path::Path;
use crate::worker::{Core, PortSlot};

impl<Io: PortIo> Core<Io> {
    /// Announces the addresses of all interfaces on whose port this worker has the first queue.
    pub(in crate::worker) fn announce_all(&mut self, now: Instant) {
        for at in 0..self.env.network.interfaces().len() {
            self.announce(at, now);
        }
    }

    /// Handles a port whose link came up, whose device was recreated, or whose MAC address changed. Updates the MAC
    /// address of the port's interfaces and announces these interfaces.
    #[cold]
    pub(in crate::worker) fn port_changed(&mut self, PortId(port): PortId, mac: Mac, now: Instant) {
        let is_new = |interface: &crate::net::interface::Interface| interface.mac != mac;
        for at in 0..self.env.network.interfaces().len() {
            let interface = self.env.network.interface(at);
            if interface.port != usize::from(port) {
                continue;
            }
            if is_new(interface) {
                self.env.network.set_mac(at, mac);
                self.readdress(at, mac);
            }
            // The port may be connected to another link now, with other neighbours.
            self.env.network.verify_neighbours(at, now);
            self.announce(at, now);
        }
    }

    /// Announces an interface, if this worker has the first queue of the interface's port.
    fn announce(&mut self, interface_index: usize, now: Instant) {
        let port = self.env.network.interface(interface_index).port;
        let first =
            |slot: &PortSlot<Io>| slot.facts.workers.first() == Some(&WorkerId(self.env.index));
        if self.env.ports.get(port).is_some_and(first) {
            self.env.network.announce(interface_index, now);
        }
    }

    /// Sets the source MAC address of an interface's streams and associations.
    fn readdress(&mut self, interface_index: usize, mac: Mac) {
        let readdress = |path: &mut Path| {
            if path.interface() == interface_index {
                path.set_source_mac(mac);
            }
        };
        for slot in self.streams.slots() {
            if let Some(carrier) = self.streams.carrier_mut(slot) {
                readdress(carrier.path_mut());
            }
        }
        for slot in self.associations.slots() {
            if let Some(association) = self.associations.get_mut(slot) {
                readdress(association.carrier.path_mut().as_mut());
            }
        }
    }
}

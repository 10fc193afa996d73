//! Look-up of listeners by name, region and endpoint.
//!
//! No two listeners have the same endpoint. A region that a listener divides into slots is listed by no other listener.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use config::ListenerSection;
use dataplane::ListenerId;

use crate::appliance::objects::Objects;

/// The listeners that are not removed, each with its first number. A listener can get further numbers at the workers;
/// the first number identifies it.
#[derive(Default)]
pub(super) struct ListenerIndex {
    names: Objects<String, ListenerId>,
    /// For each region, the names of the listeners that list it in `regions`.
    by_region: HashMap<String, BTreeSet<String>>,
    /// Names of the listeners by endpoint.
    by_endpoint: BTreeMap<Endpoint, String>,
}

/// Port, transport and interface, and the address unless the listener has all addresses of the interface.
type Endpoint = (u16, &'static str, String, Option<IpAddr>);

impl ListenerIndex {
    pub(super) fn insert(&mut self, section: &ListenerSection, id: ListenerId) {
        let name = &section.name;
        self.names.insert(name.clone(), id);
        for region in &section.regions {
            self.by_region.entry(region.clone()).or_default().insert(name.clone());
        }
        self.by_endpoint.insert(endpoint(section), name.clone());
    }

    /// Removes a listener. Returns its first number. `None` for an unknown name.
    pub(super) fn remove(&mut self, section: &ListenerSection) -> Option<ListenerId> {
        let id = self.names.remove(&section.name)?;
        for region in &section.regions {
            if let Some(names) = self.by_region.get_mut(region) {
                names.remove(&section.name);
                if names.is_empty() {
                    self.by_region.remove(region);
                }
            }
        }
        self.by_endpoint.remove(&endpoint(section));
        Some(id)
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<ListenerId> {
        self.names.get(name).copied()
    }

    /// Returns all listeners, ordered by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, ListenerId)> {
        self.names.iter().map(|(name, &id)| (name, id))
    }

    /// Returns the listeners whose names are greater than `after`, ordered by name.
    pub(super) fn after(&self, after: Option<&str>) -> impl Iterator<Item = ListenerId> {
        self.names.after(after).map(|(_, &id)| id)
    }

    /// Returns the names of the listeners that list a region, sorted.
    pub(super) fn of_region(&self, region: &str) -> impl Iterator<Item = &String> {
        self.by_region.get(region).into_iter().flatten()
    }

    /// Returns the name of a listener whose endpoint equals or overlaps that of `section`. `None` if there is none.
    pub(super) fn at_endpoint_of(&self, section: &ListenerSection) -> Option<&str> {
        let (port, transport, interface, address) = endpoint(section);
        let any_address = (port, transport, interface, None);
        if let Some(name) = self.by_endpoint.get(&any_address) {
            return Some(name);
        }
        match address {
            Some(_) => self.by_endpoint.get(&endpoint(section)).map(String::as_str),
            // `None` sorts before all addresses. The first entry from `any_address` on therefore has this port,
            // transport and interface, if any listener has them.
            None => {
                let (found, name) = self.by_endpoint.range(&any_address..).next()?;
                let same = (found.0, found.1, &found.2) == (port, transport, &any_address.2);
                same.then_some(name)
            }
        }
    }

    /// Returns the name of a listener with this port and transport, on any interface and address. `None` if there is
    /// none.
    pub(super) fn at_port(&self, port: u16, transport: &'static str) -> Option<&str> {
        let least = (port, transport, String::new(), None);
        let (found, name) = self.by_endpoint.range(least..).next()?;
        ((found.0, found.1) == (port, transport)).then_some(name)
    }
}

fn endpoint(section: &ListenerSection) -> Endpoint {
    (section.port, section.transport.as_str(), section.interface.clone(), section.address)
}

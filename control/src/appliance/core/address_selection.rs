//! The interfaces that reach a peer's addresses, and the order in which an active open tries the addresses.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};

use api::{ApiError, ConnectSpec};
use base::address;
use config::{InterfaceSection, PortKind};
use dataplane::InterfaceId;
use dataplane::net::interface::source_address;
use ipnet::IpNet;

use crate::appliance::addresses::{Addresses, Candidate};
use crate::appliance::env::Context;
use crate::appliance::links::Links;

/// Refuses a request with too many addresses, with port 0, or without any address that another host can have.
pub(super) fn check_addresses(spec: &ConnectSpec) -> Result<(), ApiError> {
    let number = spec.addresses().count();
    if number > ConnectSpec::MAX_ADDRESSES {
        let most = ConnectSpec::MAX_ADDRESSES;
        let sentence = format!("the peer has {number} addresses: at most {most} are taken");
        return Err(ApiError::bad_request(sentence));
    }
    if spec.addresses().any(|remote| remote.port() == 0) {
        return Err(ApiError::bad_request("the peer's port is 0: it is 1 to 65535"));
    }
    match spec.addresses().map(|remote| check(remote.ip())).find(|checked| checked.is_ok()) {
        Some(_) => Ok(()),
        None => check(spec.remote.ip()),
    }
}

fn check(remote: IpAddr) -> Result<(), ApiError> {
    address::check_host(remote)
        .map_err(|error| ApiError::bad_request(format!("{remote} is {error}")))
}

/// Returns the reachable addresses: first those on a link of an interface, then those behind a router. Within each
/// group the order of the request is kept.
///
/// # Errors
/// No address is reachable, or there is no interface of the requested name.
pub(super) fn order_addresses(
    facts: &Context,
    links: &Links,
    spec: &ConnectSpec,
) -> Result<Addresses, ApiError> {
    let named = spec.interface.as_deref().map(|name| find_interface(facts, name)).transpose()?;
    let (mut found, mut failures, mut last) = (Vec::new(), Vec::new(), None);
    for remote in spec.addresses() {
        match find_route(facts, links, named, remote) {
            Ok(reached) => found.push(reached),
            Err(error) => {
                failures.push(format!("{remote} was not tried: {}", error.message));
                last = Some(error);
            }
        }
    }
    found.sort_by_key(|(on_link, _)| !on_link);
    let addresses = Addresses::new(found.iter().map(|(_, one)| *one).collect(), failures);
    match last {
        Some(error) if found.is_empty() => Err(addresses.conclude(error)),
        _ => Ok(addresses),
    }
}

fn find_interface(facts: &Context, name: &str) -> Result<InterfaceId, ApiError> {
    facts.interface_named(name).ok_or_else(|| {
        let names = interface_names(facts.config.interfaces.iter());
        ApiError::bad_request(format!("there is no interface `{name}`: the interfaces are {names}"))
    })
}

fn interface_names<'a>(interfaces: impl Iterator<Item = &'a InterfaceSection>) -> String {
    let names: Vec<&str> = interfaces.map(|interface| interface.name.as_str()).collect();
    names.join(", ")
}

/// Returns the interface that reaches an address, and true if the address is on the interface's link. `named`: the only
/// interface that may be used, if any.
fn find_route(
    facts: &Context,
    links: &Links,
    named: Option<InterfaceId>,
    remote: SocketAddr,
) -> Result<(bool, Candidate), ApiError> {
    let ip = remote.ip();
    check(ip)?;
    let all =
        facts.config.interfaces.iter().zip(0..).map(|(section, at)| (section, InterfaceId(at)));
    let possible = all.filter(|(_, interface)| named.is_none_or(|named| named == *interface));
    let reached: Vec<(&InterfaceSection, InterfaceId, Route)> =
        possible.filter_map(|(section, id)| Some((section, id, route_to(section, ip)?))).collect();
    if is_link_local(ip) && reached.len() > 1 {
        let names = interface_names(reached.iter().map(|(section, ..)| *section));
        let first = &reached[0].0.name;
        return Err(ApiError::bad_request(format!(
            "{ip} is a link-local address, and several interfaces have IPv6: name one of {names} as its zone, such as \
             [{ip}%25{first}]"
        )));
    }
    // The longest prefix is preferred; among equal prefixes, the first interface.
    let best = reached.iter().max_by_key(|(_, at, reach)| (reach.prefix_len, Reverse(at.0)));
    let owner = reached.iter().find(|(section, ..)| has_address(section, ip));
    // An address of this appliance is reached through its own interface. A `ring` is the exception: both ends may have
    // addresses in this appliance, and an address of one end is reached from the other end, over the ring.
    let best = match (best, owner) {
        (Some(best), Some(owner)) if !is_on_ring(facts, best.0) => Some(owner),
        (best, _) => best,
    };
    let Some(&(section, interface, reach)) = best else {
        return Err(ApiError::bad_request(match named {
            Some(InterfaceId(at)) => {
                let name = &facts.config.interfaces[usize::from(at)].name;
                format!("interface `{name}` has no route to {ip}")
            }
            None => format!("no interface has a route to {ip}"),
        }));
    };
    check_peer(section, ip)?;
    // Packets to an address of this interface are not sent through its port, so the link need not be up.
    match links.refusal(facts, interface).filter(|_| !has_address(section, ip)) {
        Some(refusal) => Err(refusal),
        None => Ok((reach.on_link, Candidate { remote, interface })),
    }
}

/// Returns the local address with which a worker connects to `remote` through an interface: `remote` itself if it is
/// an address of the interface, else the address whose prefix contains the next hop, else the first of the same family.
/// `None` without such an address. Link-local addresses that a worker derives are not considered.
pub(super) fn source_for(interface: &InterfaceSection, remote: IpAddr) -> Option<IpAddr> {
    if has_address(interface, remote) {
        return Some(remote);
    }
    let nets = &interface.addresses;
    let routes = interface.routes.iter().filter(|route| route.to.contains(&remote));
    let hop = match nets.iter().any(|net| net.contains(&remote)) {
        true => remote,
        false => routes.max_by_key(|route| route.to.prefix_len()).map_or(remote, |route| route.via),
    };
    source_address(nets, hop, remote)
}

/// Route of an interface to an address. `prefix_len`: bits. `on_link`: true if the address is on the interface's link,
/// not behind a router.
#[derive(Clone, Copy)]
struct Route {
    prefix_len: u8,
    on_link: bool,
}

fn route_to(interface: &InterfaceSection, remote: IpAddr) -> Option<Route> {
    let nets = &interface.addresses;
    if is_link_local(remote) {
        // Every interface with IPv6 has a link-local address (RFC 4291 §2.8).
        let has_v6 = nets.iter().any(|net| net.addr().is_ipv6());
        return has_v6.then_some(Route { prefix_len: 64, on_link: true });
    }
    let longest = |nets: &mut dyn Iterator<Item = &IpNet>| {
        nets.filter(|net| net.contains(&remote)).map(IpNet::prefix_len).max()
    };
    let direct = longest(&mut nets.iter());
    let routed = longest(&mut interface.routes.iter().map(|route| &route.to));
    let prefix_len = direct.max(routed)?;
    Some(Route { prefix_len, on_link: direct.is_some() })
}

fn has_address(interface: &InterfaceSection, ip: IpAddr) -> bool {
    interface.addresses.iter().any(|net| net.addr() == ip)
}

/// Returns true if the interface's port is one end of a `ring`.
fn is_on_ring(facts: &Context, interface: &InterfaceSection) -> bool {
    let port = facts.config.ports.iter().find(|port| port.name == interface.port);
    port.is_some_and(|port| matches!(port.kind, PortKind::Ring { .. }))
}

/// Refuses the broadcast address of one of the interface's networks.
fn check_peer(interface: &InterfaceSection, remote: IpAddr) -> Result<(), ApiError> {
    let name = &interface.name;
    for net in &interface.addresses {
        let has_broadcast = net.addr().is_ipv4() && net.prefix_len() < 31;
        if has_broadcast && net.broadcast() == remote {
            let net = net.trunc();
            return Err(ApiError::bad_request(format!(
                "{remote} is the broadcast address of {net}, interface `{name}`"
            )));
        }
    }
    Ok(())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

//! `[[interface]]`.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::errors::Places;
use super::peers::peers;
use super::reader::Section;
use super::tables;
use super::types::*;
use super::values::*;

/// Smallest MTU that IPv6 works with (RFC 8200 §5).
const IPV6_MIN_MTU: u16 = 1280;
/// Bytes of a device's name at most, Linux's IFNAMSIZ without the zero.
const MOST_OF_DEVICE: usize = 15;

/// Reads an interface. `ports`: the readable ports, for the default and the bound of the MTU.
pub(super) fn interface(
    mut section: Section<'_, '_>,
    ports: &[PortSection],
) -> (Option<InterfaceSection>, Places) {
    let name = section.required("name", "give the interface a name, such as name = \"lan\"", name);
    let port = section.required("port", "name the [[port]] that it is on", string);
    let vlan = section.optional("vlan", tables::interface::vlan());
    let addresses = section.list("addresses", interface_address);
    if !section.has("addresses") || section.is_empty_list("addresses") {
        section.fail("addresses", "is missing: list at least one, such as [\"192.0.2.1/24\"]");
    }
    let routes = routes(&mut section, &addresses);
    let port_mtu = port.as_ref().and_then(|port| ports.iter().find(|p| p.name == *port));
    let port_mtu = port_mtu.map(|port| port.mtu);
    let mtu = section.or("mtu", port_mtu.unwrap_or(1500), tables::interface::mtu());
    let dscp = section.optional("dscp", tables::interface::dscp());
    let ttl = section.optional("ttl", tables::interface::ttl());
    let local_ports =
        section.or("local_ports", LocalPorts::default(), tables::interface::local_ports());
    let peers = peers(&mut section);
    let host = host(&mut section, name.as_deref(), port.as_deref(), ports);
    check_mtu(&section, mtu, port_mtu, &addresses);
    let interface = name.zip(port).map(|(name, port)| InterfaceSection {
        name,
        port,
        vlan,
        addresses,
        routes,
        mtu,
        ip: IpFields { dscp, ttl },
        local_ports,
        host,
        peers,
    });
    (interface, section.finish())
}

/// Returns the name of the TAP, if the port is shared with the host.
fn host(
    section: &mut Section<'_, '_>,
    name: Option<&str>,
    port: Option<&str>,
    ports: &[PortSection],
) -> Option<String> {
    let kind = section.or("host", Host::Off, tables::interface::host());
    let given = section.optional("host_name", tables::interface::host_name());
    if kind == Host::Off {
        if section.has("host_name") {
            section.fail("host_name", "names the TAP of host = \"tap\": write that too");
        }
        return None;
    }
    if !section.has("local_ports") {
        let sentence = "is \"tap\", so that the host's kernel opens connections too: give streams local_ports, such as \
                        \"20000-29999\", which the kernel then leaves alone";
        section.fail("host", sentence);
    }
    let port = ports.iter().find(|section| Some(section.name.as_str()) == port);
    if let Some(port) = port {
        let word = port.kind.word();
        if matches!(port.kind, PortKind::Ring { .. } | PortKind::Pcap { .. }) {
            let sentence = format!("is \"tap\", but no host is behind a port of kind \"{word}\"");
            section.fail("host", sentence);
        }
        if port.checksum == ChecksumMode::Trusted {
            let sentence = "is \"tap\", but the port's checksum is \"trusted\", and the kernel looks at them: write \
                            \"offload\" there";
            section.fail("host", sentence);
        }
    }
    let default = || name.map(|name| format!("tap-{name}"));
    let tap = given.or_else(default)?;
    if tap.len() > MOST_OF_DEVICE {
        let sentence = format!(
            "is \"tap\", and the TAP would be called {tap}, more than {MOST_OF_DEVICE} bytes: give it a host_name"
        );
        section.fail("host", sentence);
    }
    Some(tap)
}

fn check_mtu(section: &Section<'_, '_>, mtu: u16, port: Option<u16>, addresses: &[IpNet]) {
    if let Some(port) = port.filter(|&port| mtu > port) {
        section.fail(
            "mtu",
            format!("is {mtu}, but its port has {port}: raise the port's or lower it"),
        );
    }
    let v6 = addresses.iter().find(|net| net.addr().is_ipv6());
    if let Some(v6) = v6.filter(|_| mtu < IPV6_MIN_MTU) {
        section.fail(
            if section.has("mtu") { "mtu" } else { "addresses" },
            format!(
                "mtu is {mtu}, but IPv6 needs {IPV6_MIN_MTU} or more: raise the mtu of interface and \
                 port, or remove {}",
                v6.addr()
            ),
        );
    }
}

fn routes(section: &mut Section<'_, '_>, addresses: &[IpNet]) -> Vec<Route> {
    let mut routes = Vec::new();
    let gateways = match section.is_string("gateway") {
        true => section.optional("gateway", host_ip).into_iter().collect(),
        false => section.list("gateway", host_ip),
    };
    for via in gateways {
        let to = match via {
            IpAddr::V4(_) => Ipv4Net::default().into(),
            IpAddr::V6(_) => Ipv6Net::default().into(),
        };
        add_route(section, "gateway", addresses, &mut routes, Route { to, via });
    }
    for mut table in section.tables("routes") {
        let to =
            table.required("to", "write the destination, such as \"198.51.100.0/24\"", network);
        let via = table.required("via", "write the router's address", host_ip);
        if let (Some(to), Some(via)) = (to, via) {
            if to.addr().is_ipv4() == via.is_ipv4() {
                add_route(&table, "via", addresses, &mut routes, Route { to, via });
            } else {
                table.fail("via", format!("is {via}, of another family than {to}: use the same"));
            }
        }
        table.finish();
    }
    routes
}

fn add_route(
    section: &Section<'_, '_>,
    key: &str,
    addresses: &[IpNet],
    routes: &mut Vec<Route>,
    route: Route,
) {
    let link_local = matches!(route.via, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let via = route.via;
    if !link_local && !addresses.is_empty() && !addresses.iter().any(|net| net.contains(&via)) {
        section
            .fail(key, format!("is {via}, which is in no network of `addresses`: correct either"));
    } else if addresses.iter().any(|net| net.addr() == via) {
        section.fail(key, format!("is {via}, this interface's own address: name the router"));
    } else if routes.iter().any(|other| other.to == route.to) {
        section.fail(key, format!("is a second route to {}: remove one", route.to));
    } else {
        routes.push(route);
    }
}

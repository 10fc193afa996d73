//! Reads `[[interface]]`: addresses, routes, and the TAP of an interface shared with the host's kernel.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::errors::SectionSpan;
use super::peers::read_peers;
use super::reader::Section;
use super::tables;
use super::types::*;
use super::values::*;

/// Minimum MTU of IPv6 (RFC 8200 §5).
const IPV6_MIN_MTU: u16 = 1280;
/// Maximum length of a device's name, bytes: Linux's IFNAMSIZ without the NUL.
const MAX_DEVICE_NAME: usize = 15;

/// Reads an interface. `ports`: the readable ports, for the default and the maximum of the MTU.
pub(super) fn read_interface(
    mut section: Section<'_, '_>,
    ports: &[PortSection],
) -> (Option<InterfaceSection>, SectionSpan) {
    let name =
        section.required("name", "give the interface a name, such as name = \"lan\"", parse_name);
    let port = section.required("port", "name the [[port]] that it is on", parse_string);
    let vlan = section.optional("vlan", tables::interface::vlan());
    let addresses = section.list("addresses", parse_interface_address);
    if !section.contains("addresses") || section.is_empty_list("addresses") {
        section.report("addresses", "is missing: list at least one, such as [\"192.0.2.1/24\"]");
    }
    let routes = read_routes(&mut section, &addresses);
    let port_mtu = port.as_ref().and_then(|port| ports.iter().find(|p| p.name == *port));
    let port_mtu = port_mtu.map(|port| port.mtu);
    let mtu = section.or_default("mtu", port_mtu.unwrap_or(1500), tables::interface::mtu());
    let dscp = section.optional("dscp", tables::interface::dscp());
    let ttl = section.optional("ttl", tables::interface::ttl());
    let local_ports =
        section.or_default("local_ports", LocalPorts::default(), tables::interface::local_ports());
    let peers = read_peers(&mut section);
    let host = read_host(&mut section, name.as_deref(), port.as_deref(), ports);
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

/// Returns the name of the TAP if the interface is shared with the host.
fn read_host(
    section: &mut Section<'_, '_>,
    name: Option<&str>,
    port: Option<&str>,
    ports: &[PortSection],
) -> Option<String> {
    let kind = section.or_default("host", Host::Off, tables::interface::host());
    let given = section.optional("host_name", tables::interface::host_name());
    if kind == Host::Off {
        if section.contains("host_name") {
            section.report("host_name", "names the TAP of host = \"tap\": write that too");
        }
        return None;
    }
    if !section.contains("local_ports") {
        let sentence = "is \"tap\", so that the host's kernel opens connections too: give streams local_ports, such as \
                        \"20000-29999\", which the kernel then leaves alone";
        section.report("host", sentence);
    }
    let port = ports.iter().find(|section| Some(section.name.as_str()) == port);
    if let Some(port) = port {
        let word = port.kind.name();
        if matches!(port.kind, PortKind::Ring { .. } | PortKind::Pcap { .. }) {
            let sentence = format!("is \"tap\", but no host is behind a port of kind \"{word}\"");
            section.report("host", sentence);
        }
        if port.checksum == ChecksumMode::Trusted {
            let sentence = "is \"tap\", but the port's checksum is \"trusted\", and the host's kernel verifies \
                            checksums: write \"offload\" for the port";
            section.report("host", sentence);
        }
    }
    let default = || name.map(|name| format!("tap-{name}"));
    let tap = given.or_else(default)?;
    if tap.len() > MAX_DEVICE_NAME {
        let sentence = format!(
            "is \"tap\", and the TAP would be called {tap}, more than {MAX_DEVICE_NAME} bytes: give it a host_name"
        );
        section.report("host", sentence);
    }
    Some(tap)
}

/// Reports an MTU that exceeds the port's, or that is too small for an IPv6 address of the interface.
fn check_mtu(section: &Section<'_, '_>, mtu: u16, port: Option<u16>, addresses: &[IpNet]) {
    if let Some(port) = port.filter(|&port| mtu > port) {
        section.report(
            "mtu",
            format!("is {mtu}, but its port has {port}: raise the port's mtu, or lower this one"),
        );
    }
    let v6 = addresses.iter().find(|net| net.addr().is_ipv6());
    if let Some(v6) = v6.filter(|_| mtu < IPV6_MIN_MTU) {
        section.report(
            if section.contains("mtu") { "mtu" } else { "addresses" },
            format!(
                "mtu is {mtu}, but IPv6 needs {IPV6_MIN_MTU} or more: raise the mtu of interface and \
                 port, or remove {}",
                v6.addr()
            ),
        );
    }
}

fn read_routes(section: &mut Section<'_, '_>, addresses: &[IpNet]) -> Vec<Route> {
    let mut routes = Vec::new();
    let gateways = match section.is_string("gateway") {
        true => section.optional("gateway", parse_host_ip).into_iter().collect(),
        false => section.list("gateway", parse_host_ip),
    };
    for via in gateways {
        let to = match via {
            IpAddr::V4(_) => Ipv4Net::default().into(),
            IpAddr::V6(_) => Ipv6Net::default().into(),
        };
        add_route(section, "gateway", addresses, &mut routes, Route { to, via });
    }
    for mut table in section.tables("routes") {
        let to = table.required(
            "to",
            "write the destination, such as \"198.51.100.0/24\"",
            parse_network,
        );
        let via = table.required("via", "write the router's address", parse_host_ip);
        if let (Some(to), Some(via)) = (to, via) {
            if to.addr().is_ipv4() == via.is_ipv4() {
                add_route(&table, "via", addresses, &mut routes, Route { to, via });
            } else {
                table.report("via", format!("is {via}, of another family than {to}: use the same"));
            }
        }
        table.finish();
    }
    routes
}

/// Adds a route, or reports under `key` that its router is not a neighbour of the interface, or that a route to the
/// same destination exists.
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
        section.report(
            key,
            format!("is {via}, which is in no network of `addresses`: correct one of the two"),
        );
    } else if addresses.iter().any(|net| net.addr() == via) {
        section.report(key, format!("is {via}, this interface's own address: name the router"));
    } else if routes.iter().any(|other| other.to == route.to) {
        section.report(key, format!("is a second route to {}: remove one", route.to));
    } else {
        routes.push(route);
    }
}

//! Checks between the sections of one file: references, duplicates, and sums against limits.
//!
//! Every conflict is reported, not only the first. `across_files` compares the files of a process, and `environment`
//! compares a file with the machine.

use std::fmt;
use std::net::IpAddr;

use ddp::advert;

use super::errors::{ErrorSink, SectionSpan};
use super::sctp::SctpSection;
use super::tuning::{Limits, MpaReceiveSection};
use super::types::*;
use super::values::show_size;
use crate::transport::Transport;

/// The sections of a file that could be read, before the checks between sections. The lists of names include sections
/// with errors, so that references to these sections are considered valid.
pub(super) struct Sections {
    pub(super) ports: Vec<(PortSection, SectionSpan)>,
    pub(super) port_names: Vec<String>,
    pub(super) interfaces: Vec<(InterfaceSection, SectionSpan)>,
    pub(super) interface_names: Vec<String>,
    pub(super) regions: Vec<(RegionSection, SectionSpan)>,
    pub(super) region_names: Vec<String>,
    pub(super) listeners: Vec<(ListenerSection, SectionSpan)>,
    pub(super) limits: (Limits, SectionSpan),
    pub(super) mpa: (MpaReceiveSection, SectionSpan),
    pub(super) sctp: (SctpSection, SectionSpan),
    /// True if IPsec is on: the file has policies, or the kernel's policies are used.
    pub(super) ipsec: bool,
}

/// Minimum part of the region for one stream of an `rping` or `perftest` listener, bytes.
const MIN_SLOT: u64 = 4096;

/// Reports all conflicts between the sections of one file.
pub(super) fn check_file(sections: &Sections, sink: &ErrorSink) {
    check_unique_names(sections, sink);
    check_ports(sections, sink);
    check_interfaces(sections, sink);
    check_regions(sections, sink);
    check_listeners(sections, sink);
    check_longest_fpdu(sections, sink);
    check_required_protection(sections, sink);
}

/// Reports listeners that require IPsec while no policy exists: they would accept no stream.
fn check_required_protection(sections: &Sections, sink: &ErrorSink) {
    let all = sections.listeners.iter();
    for (_, places) in all.filter(|(l, _)| l.require.is_some() && !sections.ipsec) {
        sink.report_key(
            places,
            "require",
            "asks for IPsec, but there is no [[ipsec.policy]], and [ipsec] keys is not \"kernel\": every stream would be \
             refused",
        );
    }
}

/// Reports a `max_fpdu` below the largest MTU: an FPDU may fill a segment.
fn check_longest_fpdu(sections: &Sections, sink: &ErrorSink) {
    let (mpa, places) = &sections.mpa;
    let longest = sections.interfaces.iter().max_by_key(|(interface, _)| interface.mtu);
    let Some((interface, _)) = longest else { return };
    if mpa.max_fpdu < u32::from(interface.mtu) {
        let (max, mtu, name) = (mpa.max_fpdu, interface.mtu, &interface.name);
        sink.report_key(
            places,
            "max_fpdu",
            format!("is {max}, less than the MTU of interface \"{name}\" ({mtu}): raise it"),
        );
    }
}

fn check_unique_names(sections: &Sections, sink: &ErrorSink) {
    fn check<'a>(
        sink: &ErrorSink,
        kind: &str,
        names: impl Iterator<Item = (&'a str, &'a SectionSpan)>,
    ) {
        let mut seen: Vec<&str> = Vec::new();
        for (name, places) in names {
            if seen.contains(&name) {
                sink.report_key(
                    places,
                    "name",
                    format!("\"{name}\" is the name of an earlier {kind} too: choose another"),
                );
            }
            seen.push(name);
        }
    }
    check(sink, "port", sections.ports.iter().map(|(x, p)| (x.name.as_str(), p)));
    check(sink, "interface", sections.interfaces.iter().map(|(x, p)| (x.name.as_str(), p)));
    check(sink, "region", sections.regions.iter().map(|(x, p)| (x.name.as_str(), p)));
    check(sink, "listener", sections.listeners.iter().map(|(x, p)| (x.name.as_str(), p)));
}

fn check_ports(sections: &Sections, sink: &ErrorSink) {
    for (index, (port, places)) in sections.ports.iter().enumerate() {
        let mut earlier = sections.ports[..index].iter().map(|(port, _)| port);
        if let Some(other) = earlier.find(|other| other.kind.same_device(&port.kind)) {
            let device = port.kind.device();
            sink.report_key(
                places,
                port.kind.device_key(),
                format!("{device} belongs to port \"{}\" already: name another", other.name),
            );
        }
    }
}

fn check_interfaces(sections: &Sections, sink: &ErrorSink) {
    for (index, (interface, places)) in sections.interfaces.iter().enumerate() {
        if !sections.port_names.contains(&interface.port) {
            sink.report_key(
                places,
                "port",
                dangling_reference(&interface.port, "port", &sections.port_names),
            );
        }
        for (other, _) in &sections.interfaces[..index] {
            if other.port == interface.port && other.vlan == interface.vlan {
                let key = if interface.vlan.is_some() { "vlan" } else { "port" };
                sink.report_key(
                    places,
                    key,
                    format!(
                        "interface \"{}\" is on the same port and VLAN: add the addresses there, or \
                         write another vlan",
                        other.name
                    ),
                );
            }
        }
        for (at, net) in interface.addresses.iter().enumerate() {
            let earlier = sections.interfaces[..index].iter().flat_map(|(i, _)| &i.addresses);
            let mut earlier = earlier.chain(&interface.addresses[..at]);
            if earlier.any(|other| other.addr() == net.addr()) {
                let address = net.addr();
                sink.report_key(
                    places,
                    "addresses",
                    format!("{address} is there twice: remove one"),
                );
            }
        }
    }
}

fn check_regions(sections: &Sections, sink: &ErrorSink) {
    let limits = &sections.limits;
    if sections.regions.len() > limits.0.regions as usize {
        let (number, limit) = (sections.regions.len(), limits.0.regions);
        sink.report_key(
            &limits.1,
            "regions",
            format!("is {limit}, but the file has {number} regions: raise it or remove some"),
        );
    }
    check_region_sizes(sections, sink);
    for (index, (region, places)) in sections.regions.iter().enumerate() {
        for (other, _) in &sections.regions[..index] {
            let key = match (&region.backing, &other.backing) {
                (Backing::File { path: a, .. }, Backing::File { path: b, .. }) if a == b => "path",
                (Backing::SharedMemory { object: a }, Backing::SharedMemory { object: b })
                    if a == b =>
                {
                    "object"
                }
                _ => continue,
            };
            let name = &other.name;
            sink.report_key(
                places,
                key,
                format!("belongs to region \"{name}\" already: name another"),
            );
        }
    }
}

/// Reports regions whose total size exceeds a limit. The error is located at the `size` of the largest region.
fn check_region_sizes(sections: &Sections, sink: &ErrorSink) {
    let limits = &sections.limits.0;
    let all = || sections.regions.iter().map(|(region, places)| (region, places));
    // Regions in reserved hugepages do not count towards limits.memory.
    let charged = || all().filter(|(region, _)| region.backing != Backing::Hugepages);
    let report = |total: RegionTotal<'_>, limit: u64, key: &str| {
        if total.bytes > limit {
            let limit = show_size(limit);
            let message =
                format!("{total}, more than {key} ({limit}): make it smaller, or raise {key}");
            sink.report_key(total.places, "size", message);
        }
    };
    if let Some(total) = RegionTotal::of(all()) {
        report(total, limits.region_memory, "limits.region_memory");
    }
    if let (Some(total), Some(ceiling)) = (RegionTotal::of(charged()), limits.memory) {
        report(total, ceiling, "limits.memory");
    }
}

/// The total size of several regions, and the largest of them. Displayed as the beginning of a sentence.
pub(super) struct RegionTotal<'a> {
    /// Sum of the sizes, bytes.
    pub(super) bytes: u64,
    /// Position of the largest region in the file.
    pub(super) places: &'a SectionSpan,
    largest: &'a RegionSection,
    count: usize,
}

impl<'a> RegionTotal<'a> {
    /// Returns the total of the regions that have a size; `None` if no region has one.
    pub(super) fn of(
        regions: impl Iterator<Item = (&'a RegionSection, &'a SectionSpan)>,
    ) -> Option<Self> {
        let sized: Vec<_> = regions.filter(|(region, _)| region.size.is_some()).collect();
        let bytes = sized.iter().filter_map(|(r, _)| r.size).fold(0u64, u64::saturating_add);
        let &(largest, places) = sized.iter().max_by_key(|(region, _)| region.size)?;
        Some(RegionTotal { bytes, places, largest, count: sized.len() })
    }
}

impl fmt::Display for RegionTotal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = show_size(self.largest.size.unwrap_or(0));
        write!(f, "region \"{}\" has {own}", self.largest.name)?;
        match self.count {
            1 => Ok(()),
            count => write!(f, ", and all {count} regions {}", show_size(self.bytes)),
        }
    }
}

fn check_listeners(sections: &Sections, sink: &ErrorSink) {
    for (index, (listener, places)) in sections.listeners.iter().enumerate() {
        let interfaces = &sections.interface_names;
        if !interfaces.contains(&listener.interface) {
            let message = dangling_reference(&listener.interface, "interface", interfaces);
            sink.report_key(places, "interface", message);
        }
        for message in listener_regions(listener, &sections.region_names) {
            sink.report_key(places, "regions", message);
        }
        check_slots(listener, places, sections, sink);
        let regions = sections.regions.iter().map(|(region, _)| region);
        for message in regions.filter_map(|region| unsaved_writes(listener, region)) {
            sink.report_key(places, "regions", message);
        }
        check_listener_address(listener, places, sections, sink);
        for (other, _) in &sections.listeners[..index] {
            if overlaps(listener, other) {
                let (port, name) = (listener.port, &other.name);
                sink.report_key(
                    places,
                    "port",
                    format!(
                        "{port} is taken by listener \"{name}\" on the same address: use another"
                    ),
                );
            }
        }
        check_listener_sums(listener, places, &sections.limits.0, sink);
    }
}

/// Returns the errors in a listener's list of regions. Also used for listeners that the API adds.
pub(super) fn listener_regions(listener: &ListenerSection, regions: &[String]) -> Vec<String> {
    let mut messages = Vec::new();
    for (index, region) in listener.regions.iter().enumerate() {
        if !regions.contains(region) {
            messages.push(dangling_reference(region, "region", regions));
        }
        if listener.regions[..index].contains(region) {
            messages.push(format!("names \"{region}\" twice: remove one"));
        }
    }
    let rdmap = listener.ulp.rdmap();
    if let Some(rdmap) = rdmap.filter(|rdmap| rdmap.service.has_slots()) {
        if listener.regions.len() != 1 {
            let service = rdmap.service.as_str();
            messages.push(format!(
                "must name one region: the streams of service \"{service}\" have a slot of it each"
            ));
        }
        return messages;
    }
    let needed = advert::encoded_len(listener.regions.iter().map(String::as_str));
    let limit = usize::from(listener.mpa.private_data_limit);
    let frames =
        listener.transport == Transport::Sctp || listener.mpa.revision_1 || listener.mpa.revision_2;
    if !listener.regions.is_empty() && frames && needed > limit {
        messages.push(format!(
            "need {needed} bytes of private data, but `private_data_limit` is {limit}: list fewer \
             regions or give them shorter names{}",
            if limit < advert::MAX_PRIVATE_DATA { ", or raise it" } else { "" }
        ));
    }
    messages
}

/// Checks the region of a service that gives each stream a slot: the region serves only this listener, and its slots
/// have the minimum size.
fn check_slots(
    listener: &ListenerSection,
    places: &SectionSpan,
    sections: &Sections,
    sink: &ErrorSink,
) {
    if !listener.has_slots() {
        return;
    }
    for name in &listener.regions {
        let mut others = sections.listeners.iter().map(|(other, _)| other);
        let other =
            others.find(|other| other.name != listener.name && other.regions.contains(name));
        if let Some(other) = other {
            let message = format!(
                "\"{name}\" is named by listener \"{}\" too: the slots of its streams need a region of \
                 their own",
                other.name
            );
            sink.report_key(places, "regions", message);
        }
        let region = sections.regions.iter().map(|(region, _)| region).find(|r| r.name == *name);
        let (size, streams) = (region.and_then(|r| r.size), u64::from(listener.limits.streams));
        if let Some(size) = size.filter(|size| size / streams < MIN_SLOT) {
            let message = format!(
                "\"{name}\" has {} for {streams} streams: give each {} or more, or lower limits.streams",
                show_size(size),
                show_size(MIN_SLOT)
            );
            sink.report_key(places, "regions", message);
        }
    }
}

/// Returns the reason why a region with a file cannot belong to the listener. Only the service `region` reports the
/// peers' Writes; with another RDMAP service the Writes would not reach the file. `None` if the region can belong to
/// the listener.
pub fn unsaved_writes(listener: &ListenerSection, region: &RegionSection) -> Option<String> {
    let service = listener.ulp.rdmap()?.service;
    let Backing::File { path, .. } = &region.backing else { return None };
    let writes = service != ServiceKind::Region && (region.remote_write || service.has_slots());
    let named = listener.regions.contains(&region.name);
    (writes && named).then(|| {
        format!(
            "\"{}\" has the file {}, which never gets what peers of service \"{}\" write: use service \"region\", or a region \
             without a file",
            region.name,
            path.display(),
            service.as_str()
        )
    })
}

fn check_listener_address(
    listener: &ListenerSection,
    places: &SectionSpan,
    sections: &Sections,
    sink: &ErrorSink,
) {
    let interface = sections.interfaces.iter().find(|(i, _)| i.name == listener.interface);
    let (Some((interface, _)), Some(address)) = (interface, listener.address) else { return };
    if !interface.addresses.iter().any(|net| net.addr() == address) {
        let name = &interface.name;
        sink.report_key(
            places,
            "address",
            format!(
                "{address} is not an address of interface \"{name}\": use one, or remove the key"
            ),
        );
    }
}

fn overlaps(a: &ListenerSection, b: &ListenerSection) -> bool {
    let same = |a: Option<IpAddr>, b: Option<IpAddr>| a.is_none() || b.is_none() || a == b;
    let place = |l: &ListenerSection| (l.transport, l.port);
    a.interface == b.interface && place(a) == place(b) && same(a.address, b.address)
}

fn check_listener_sums(
    listener: &ListenerSection,
    places: &SectionSpan,
    limits: &Limits,
    sink: &ErrorSink,
) {
    if listener.limits.streams > limits.streams {
        let (streams, limit) = (listener.limits.streams, limits.streams);
        sink.report_key(
            places,
            "limits",
            format!(
                "streams is {streams}, more than limits.streams ({limit}): lower it or raise that"
            ),
        );
    }
    let buffers = listener.queues.iter().fold(0u64, |sum, queue| {
        sum.saturating_add(u64::from(queue.buffers) * u64::from(queue.buffer_size))
    });
    if buffers > limits.buffers_per_worker {
        sink.report_key(
            places,
            "queue",
            format!(
                "one stream's buffers need {}, more than limits.buffers_per_worker ({}): post fewer or \
                 smaller ones, or raise that",
                show_size(buffers),
                show_size(limits.buffers_per_worker)
            ),
        );
    }
}

fn dangling_reference(name: &str, kind: &str, names: &[String]) -> String {
    if names.is_empty() {
        return format!("\"{name}\" does not exist: add a [[{kind}]] with this name");
    }
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    format!(
        "\"{name}\" does not exist: add a [[{kind}]] with this name, or use {}",
        names.join(", ")
    )
}

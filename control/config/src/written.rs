//! A configuration in the form of its file: all keys with a value, section by section.
//!
//! The inverse of reading: the rendered tables read as the same [`Config`]. Defaults are included.
//! Keys without a value, and keys that have no meaning beside others, are left out.

use ipnet::IpNet;
use port_kind::PortKind;
use serde_json::{Value, json};

use super::access;
use super::impair::{BurstLoss, Impairment};
use super::values::show_size;
use super::written_keys::{Keys, time, time_or_off};
use super::{
    Config, Delivery, Fsync, Idle, InterfaceSection, ListenerSection, PortSection, RegionSection,
    Route, Ulp, WorkerSection,
};
use crate::transport::Transport;
use crate::{Backing, ChecksumMode, SegmentationMode};

/// Replacement of a hidden secret.
const HIDDEN: &str = "\u{2026}";

/// One table of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// `tcp`, `listener.limits`; empty for the keys of the whole file.
    pub section: &'static str,
    /// Identity among the tables of its section, from the outermost: the `name` of a port, an
    /// interface, a region or a listener, and below it a route's `to` or a queue's `qn`.
    pub of: Vec<String>,
    /// Keys and values of the table.
    pub keys: Keys,
}

/// Form of secrets in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// In clear, for a file.
    Written,
    /// Replaced by a mark.
    Hidden,
}

impl Config {
    /// Returns all tables, in the order of a file.
    pub fn written(&self, secrets: Secrets) -> Vec<Table> {
        let one = |section, keys| Table { section, of: Vec::new(), keys };
        let mut tables = vec![
            one("", vec![("name", json!(self.name))]),
            one("memory", self.memory.written()),
            one("workers", workers(&self.workers)),
        ];
        self.ports.iter().for_each(|section| port(section, secrets, &mut tables));
        self.interfaces.iter().for_each(|section| interface(section, &mut tables));
        tables.extend(self.regions.iter().map(region));
        self.listeners.iter().for_each(|section| listener(section, &mut tables));
        self.ipsec.written(&mut tables);
        tables.extend([
            one("tcp", self.tcp.written()),
            one("mpa", self.mpa.written()),
            one("sctp", self.sctp.written()),
            one("limits", self.limits.written()),
            one("files", self.files.written()),
            one("management", self.management.written()),
            one("management.listen", self.management.listen.written()),
            one("management.access", self.management.access.written()),
            one("management.audit", self.management.audit.written()),
            one("management.sandbox", self.management.sandbox.written()),
        ]);
        tables
    }

    /// Returns the table of one region.
    pub(super) fn tables_of_region(section: &RegionSection) -> Table {
        region(section)
    }

    /// Returns the tables of one listener.
    pub(super) fn tables_of_listener(section: &ListenerSection) -> Vec<Table> {
        let mut tables = Vec::new();
        listener(section, &mut tables);
        tables
    }
}

fn size(bytes: u64) -> Value {
    match show_size(bytes) {
        shown if shown.ends_with("bytes") => json!(bytes),
        shown => json!(shown),
    }
}

/// Formats a number; as a string beyond 2^63 - 1, where TOML's numbers end.
fn number(value: u64) -> Value {
    if i64::try_from(value).is_ok() { json!(value) } else { json!(value.to_string()) }
}

/// Adds the keys that have a value.
fn some<const N: usize>(keys: &mut Keys, more: [(&'static str, Option<Value>); N]) {
    keys.extend(more.into_iter().filter_map(|(key, value)| Some((key, value?))));
}

fn workers(workers: &[WorkerSection]) -> Keys {
    let idle = workers.first().map_or(Idle::ADAPTIVE, |worker| worker.idle);
    let cores: Vec<u16> = workers.iter().filter_map(|worker| worker.core).collect();
    let which = match cores.is_empty() {
        true => ("count", json!(workers.len())),
        false => ("cores", json!(cores)),
    };
    vec![("idle", json!(idle.word())), which]
}

fn port(section: &PortSection, secrets: Secrets, tables: &mut Vec<Table>) {
    let of = vec![section.name.clone()];
    let mut keys = vec![("name", json!(section.name)), ("kind", json!(section.kind.word()))];
    device(&section.kind, secrets, &mut keys);
    let mac = section.mac.map(|mac| json!(mac.map(|byte| format!("{byte:02x}")).join(":")));
    let checksum = ChecksumMode::WORDS.iter().find(|(_, mode)| *mode == section.checksum);
    some(&mut keys, [("mac", mac), ("checksum", checksum.map(|(word, _)| json!(word)))]);
    let segmentation =
        SegmentationMode::WORDS.iter().find(|(_, mode)| *mode == section.segmentation);
    some(&mut keys, [("segmentation", segmentation.map(|(word, _)| json!(word)))]);
    keys.extend([
        ("mtu", json!(section.mtu)),
        ("link_down_timeout", time_or_off(section.link_down_timeout)),
        ("workers", json!(section.workers)),
        ("rx_descriptors", json!(section.rx_descriptors)),
        ("tx_descriptors", json!(section.tx_descriptors)),
    ]);
    tables.push(Table { section: "port", of: of.clone(), keys });
    if let Some(impair) = &section.impair {
        impairment(impair, of, tables);
    }
}

fn device(kind: &PortKind, secrets: Secrets, keys: &mut Keys) {
    match kind {
        PortKind::Pci { address, devargs } => {
            keys.push(("address", json!(address)));
            some(keys, [("devargs", (!devargs.is_empty()).then(|| json!(devargs)))]);
        }
        PortKind::AfXdp { device, first_queue, force_copy } => keys.extend([
            ("device", json!(device)),
            ("first_queue", json!(first_queue)),
            ("force_copy", json!(force_copy)),
        ]),
        PortKind::AfPacket { device } | PortKind::Tap { device } => {
            keys.push(("device", json!(device)));
        }
        PortKind::Memif { socket, role, id, secret } => {
            keys.extend([
                ("socket", json!(socket)),
                ("role", json!(role.word())),
                ("id", json!(id)),
            ]);
            let shown = secret.as_ref().map(|secret| match secrets {
                Secrets::Written => json!(secret.expose()),
                Secrets::Hidden => json!(HIDDEN),
            });
            some(keys, [("secret", shown)]);
        }
        PortKind::VhostUser { socket } => keys.push(("socket", json!(socket))),
        PortKind::Ring { link } => keys.push(("link", json!(link))),
        PortKind::Pcap { rx_file, tx_file } => {
            keys.push(("rx_file", json!(rx_file)));
            some(keys, [("tx_file", tx_file.as_ref().map(|file| json!(file)))]);
        }
    }
}

fn impairment(impair: &Impairment, of: Vec<String>, tables: &mut Vec<Table>) {
    tables.push(Table { section: "port.impair", of: of.clone(), keys: impair.written() });
    if let Some(BurstLoss { enter, leave, loss }) = impair.burst_loss {
        let keys = vec![("enter", json!(enter)), ("leave", json!(leave)), ("loss", json!(loss))];
        tables.push(Table { section: "port.impair.burst_loss", of, keys });
    }
}

fn interface(section: &InterfaceSection, tables: &mut Vec<Table>) {
    let of = vec![section.name.clone()];
    let mut keys = vec![("name", json!(section.name)), ("port", json!(section.port))];
    let (gateways, routes): (Vec<&Route>, Vec<&Route>) =
        section.routes.iter().partition(|route| route.to.prefix_len() == 0);
    let gateways: Vec<_> = gateways.iter().map(|route| route.via).collect();
    let addresses = section.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    let addresses = json!(addresses);
    some(
        &mut keys,
        [
            ("vlan", section.vlan.map(|tag| json!(tag))),
            ("addresses", Some(addresses)),
            ("gateway", (!gateways.is_empty()).then(|| json!(gateways))),
            ("mtu", Some(json!(section.mtu))),
            ("dscp", section.ip.dscp.map(|dscp| json!(dscp))),
            ("ttl", section.ip.ttl.map(|ttl| json!(ttl))),
            ("local_ports", Some(json!(section.local_ports.to_string()))),
            ("host", section.host.as_ref().map(|_| json!("tap"))),
            ("host_name", section.host.as_ref().map(|name| json!(name))),
            ("allow", prefixes(&section.peers.allow)),
            ("deny", prefixes(&section.peers.deny)),
        ],
    );
    tables.push(Table { section: "interface", of: of.clone(), keys });
    for route in routes {
        let of = [of.as_slice(), &[route.to.to_string()]].concat();
        let keys = vec![("to", json!(route.to.to_string())), ("via", json!(route.via))];
        tables.push(Table { section: "interface.routes", of, keys });
    }
}

fn region(section: &RegionSection) -> Table {
    let mut keys = vec![("name", json!(section.name)), ("backing", json!(section.backing.word()))];
    match &section.backing {
        Backing::Anonymous | Backing::Hugepages => {}
        Backing::SharedMemory { object } => keys.push(("object", json!(object))),
        Backing::File { path, fsync } => {
            let fsync = match fsync {
                Fsync::Never => json!("never"),
                Fsync::Message => json!("message"),
                Fsync::Close => json!("close"),
                Fsync::Interval(interval) => time(*interval),
            };
            keys.extend([("path", json!(path)), ("fsync", fsync)]);
        }
    }
    let access = access::word_of(section.access());
    let exclusive = section.remote_read && section.remote_write && !section.shared;
    some(
        &mut keys,
        [
            ("size", section.size.map(size)),
            ("base_to", Some(number(section.base_to))),
            ("access", Some(json!(access))),
            ("shared", Some(json!(section.shared))),
            ("clear_between_peers", exclusive.then(|| json!(section.clear_between_peers))),
        ],
    );
    Table { section: "region", of: vec![section.name.clone()], keys }
}

fn listener(section: &ListenerSection, tables: &mut Vec<Table>) {
    let of = vec![section.name.clone()];
    let tcp = section.transport == Transport::Tcp;
    let mpa = &section.mpa;
    let mut keys = vec![("name", json!(section.name)), ("interface", json!(section.interface))];
    some(&mut keys, [("address", section.address.map(|address| json!(address)))]);
    keys.extend([
        ("port", json!(section.port)),
        ("transport", json!(section.transport)),
        ("ulp", json!(section.ulp.word())),
    ]);
    if let Ulp::Rdmap(rdmap) = &section.ulp {
        let perftest = rdmap.service == super::ServiceKind::Perftest;
        some(
            &mut keys,
            [
                ("service", Some(json!(rdmap.service.word()))),
                ("ird", Some(json!(rdmap.ird))),
                ("ord", Some(json!(rdmap.ord))),
                ("peer", tcp.then(|| json!(rdmap.peer.name()))),
                ("message_size", perftest.then(|| size(rdmap.message_size.into()))),
            ],
        );
    }
    let revisions = [mpa.revision_0, mpa.revision_1, mpa.revision_2];
    let revisions: Vec<usize> = (0..3).filter(|&at| revisions[at]).collect();
    some(
        &mut keys,
        [
            ("revisions", tcp.then(|| json!(revisions))),
            ("markers", tcp.then(|| json!(mpa.markers))),
            ("crc", tcp.then(|| json!(mpa.crc))),
            ("private_data_limit", Some(json!(mpa.private_data_limit))),
            ("dscp", section.ip.dscp.map(|dscp| json!(dscp))),
            ("ttl", section.ip.ttl.map(|ttl| json!(ttl))),
            ("allow", prefixes(&section.peers.allow)),
            ("deny", prefixes(&section.peers.deny)),
            ("require", required(section.require).map(|word| json!(word))),
            ("regions", Some(json!(section.regions))),
        ],
    );
    tables.push(Table { section: "listener", of: of.clone(), keys });
    let limits = &section.limits;
    let keys = vec![
        ("streams", json!(limits.streams)),
        ("streams_per_peer", json!(limits.streams_per_peer)),
        ("pending", json!(limits.pending)),
        ("startup_timeout", time(limits.startup_timeout)),
        ("idle_timeout", time_or_off(limits.idle_timeout)),
    ];
    tables.push(Table { section: "listener.limits", of: of.clone(), keys });
    // If the service determines the destination of messages, the file cannot set it.
    let says = section.ulp.rdmap().and_then(|rdmap| rdmap.service.delivery()).is_some();
    for queue in &section.queues {
        let path = match &queue.deliver_to {
            Delivery::File { path } => Some(json!(path)),
            Delivery::Events | Delivery::Echo | Delivery::Discard => None,
        };
        let mut keys = vec![
            ("qn", json!(queue.qn)),
            ("buffers", json!(queue.buffers)),
            ("buffer_size", size(queue.buffer_size.into())),
        ];
        some(
            &mut keys,
            [("deliver_to", (!says).then(|| json!(queue.deliver_to.word()))), ("path", path)],
        );
        let of = [of.as_slice(), &[queue.qn.to_string()]].concat();
        tables.push(Table { section: "listener.queue", of, keys });
    }
}

/// Returns a list of prefixes, if it is not empty.
fn prefixes(list: &[IpNet]) -> Option<Value> {
    let shown: Vec<_> = list.iter().map(ToString::to_string).collect();
    (!shown.is_empty()).then(|| json!(shown))
}

/// Returns the word for the IPsec requirement of a listener, if it has one.
fn required(bits: Option<u16>) -> Option<&'static str> {
    let known = super::tables::REQUIRED.iter().find(|(_, known)| *known == bits);
    known.filter(|_| bits.is_some()).map(|(word, _)| *word)
}

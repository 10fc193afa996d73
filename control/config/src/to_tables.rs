//! Converts a configuration to the tables of its file: section by section, all keys with their values.
//!
//! Reading the rendered tables gives the same [`Config`]. Defaults are included. Keys without a value, and keys that do
//! not apply because of other keys, are omitted.

use ipnet::IpNet;
use port_kind::PortKind;
use serde_json::{Value, json};

use super::access;
use super::impair::{BurstLoss, Impairment};
use super::key_values::{KeyValues, time_or_off_value, time_value};
use super::values::show_size;
use super::{
    Config, Delivery, Fsync, Idle, InterfaceSection, ListenerSection, PortSection, RegionSection,
    Route, Ulp, WorkerSection,
};
use crate::transport::Transport;
use crate::{Backing, ChecksumMode, SegmentationMode};

/// Text in place of a hidden secret.
const HIDDEN: &str = "\u{2026}";

/// One table of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenTable {
    /// Section name, such as `tcp` or `listener.limits`; empty for top-level keys.
    pub section: &'static str,
    /// Identity of the table in its section, from the outermost list: `name` of a port, an interface, a region, a
    /// listener, an IPsec policy or an SA, then `to` of a route or `qn` of a queue. Empty for a table that is in no
    /// list.
    pub identity: Vec<String>,
    /// Keys and values of the table.
    pub keys: KeyValues,
}

/// Form of secrets in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// Unchanged, for a file.
    InClear,
    /// Replaced by `…`.
    Hidden,
}

impl Config {
    /// Returns all tables, in the order in which a file contains them.
    pub fn to_tables(&self, secrets: Secrets) -> Vec<WrittenTable> {
        let one = |section, keys| WrittenTable { section, identity: Vec::new(), keys };
        let mut tables = vec![
            one("", vec![("name", json!(self.name))]),
            one("memory", self.memory.written()),
            one("workers", worker_keys(&self.workers)),
        ];
        self.ports.iter().for_each(|section| push_port(section, secrets, &mut tables));
        self.interfaces.iter().for_each(|section| push_interface(section, &mut tables));
        tables.extend(self.regions.iter().map(region_table));
        self.listeners.iter().for_each(|section| push_listener(section, &mut tables));
        self.ipsec.to_tables(&mut tables);
        tables.extend([
            one("tcp", self.tcp.written()),
            one("mpa", self.mpa.written()),
            one("sctp", self.sctp.written()),
            one("limits", self.limits.written()),
        ]);
        tables.extend(self.programs.iter().map(|programs| one("programs", programs.written())));
        tables.extend([
            one("files", self.files.written()),
            one("management", self.management.written()),
            one("management.listen", self.management.listen.written()),
            one("management.access", self.management.access.written()),
            one("management.audit", self.management.audit.written()),
            one("management.sandbox", self.management.sandbox.written()),
        ]);
        tables
    }

    pub(super) fn tables_of_region(section: &RegionSection) -> WrittenTable {
        region_table(section)
    }

    /// Returns the table of a listener and the tables of its limits and queues.
    pub(super) fn listener_tables(section: &ListenerSection) -> Vec<WrittenTable> {
        let mut tables = Vec::new();
        push_listener(section, &mut tables);
        tables
    }
}

fn size_value(bytes: u64) -> Value {
    match show_size(bytes) {
        shown if shown.ends_with("bytes") => json!(bytes),
        shown => json!(shown),
    }
}

/// Formats a number. Numbers beyond TOML's maximum, 2^63 - 1, become a string.
fn number_value(value: u64) -> Value {
    if i64::try_from(value).is_ok() { json!(value) } else { json!(value.to_string()) }
}

/// Adds the keys whose value is present.
fn push_present<const N: usize>(keys: &mut KeyValues, more: [(&'static str, Option<Value>); N]) {
    keys.extend(more.into_iter().filter_map(|(key, value)| Some((key, value?))));
}

fn worker_keys(workers: &[WorkerSection]) -> KeyValues {
    let idle = workers.first().map_or(Idle::ADAPTIVE, |worker| worker.idle);
    let cores: Vec<u16> = workers.iter().filter_map(|worker| worker.core).collect();
    let which = match cores.is_empty() {
        true => ("count", json!(workers.len())),
        false => ("cores", json!(cores)),
    };
    vec![("idle", json!(idle.name())), which]
}

fn push_port(section: &PortSection, secrets: Secrets, tables: &mut Vec<WrittenTable>) {
    let of = vec![section.name.clone()];
    let mut keys = vec![("name", json!(section.name)), ("kind", json!(section.kind.name()))];
    push_device(&section.kind, secrets, &mut keys);
    let mac = section.mac.map(|mac| json!(mac.map(|byte| format!("{byte:02x}")).join(":")));
    let checksum = ChecksumMode::NAMES.iter().find(|(_, mode)| *mode == section.checksum);
    push_present(&mut keys, [("mac", mac), ("checksum", checksum.map(|(word, _)| json!(word)))]);
    let segmentation =
        SegmentationMode::NAMES.iter().find(|(_, mode)| *mode == section.segmentation);
    push_present(&mut keys, [("segmentation", segmentation.map(|(word, _)| json!(word)))]);
    keys.extend([
        ("mtu", json!(section.mtu)),
        ("link_down_timeout", time_or_off_value(section.link_down_timeout)),
        ("workers", json!(section.workers)),
        ("rx_descriptors", json!(section.rx_descriptors)),
        ("tx_descriptors", json!(section.tx_descriptors)),
    ]);
    tables.push(WrittenTable { section: "port", identity: of.clone(), keys });
    if let Some(impair) = &section.impair {
        push_impairment(impair, of, tables);
    }
}

fn push_device(kind: &PortKind, secrets: Secrets, keys: &mut KeyValues) {
    match kind {
        PortKind::Pci { address, devargs } => {
            keys.push(("address", json!(address)));
            push_present(keys, [("devargs", (!devargs.is_empty()).then(|| json!(devargs)))]);
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
                ("role", json!(role.name())),
                ("id", json!(id)),
            ]);
            let shown = secret.as_ref().map(|secret| match secrets {
                Secrets::InClear => json!(secret.expose()),
                Secrets::Hidden => json!(HIDDEN),
            });
            push_present(keys, [("secret", shown)]);
        }
        PortKind::VhostUser { socket } => keys.push(("socket", json!(socket))),
        PortKind::Ring { link } => keys.push(("link", json!(link))),
        PortKind::Pcap { rx_file, tx_file } => {
            keys.push(("rx_file", json!(rx_file)));
            push_present(keys, [("tx_file", tx_file.as_ref().map(|file| json!(file)))]);
        }
    }
}

fn push_impairment(impair: &Impairment, of: Vec<String>, tables: &mut Vec<WrittenTable>) {
    tables.push(WrittenTable {
        section: "port.impair",
        identity: of.clone(),
        keys: impair.written(),
    });
    if let Some(BurstLoss { enter, leave, loss }) = impair.burst_loss {
        let keys = vec![("enter", json!(enter)), ("leave", json!(leave)), ("loss", json!(loss))];
        tables.push(WrittenTable { section: "port.impair.burst_loss", identity: of, keys });
    }
}

fn push_interface(section: &InterfaceSection, tables: &mut Vec<WrittenTable>) {
    let of = vec![section.name.clone()];
    let mut keys = vec![("name", json!(section.name)), ("port", json!(section.port))];
    let (gateways, routes): (Vec<&Route>, Vec<&Route>) =
        section.routes.iter().partition(|route| route.to.prefix_len() == 0);
    let gateways: Vec<_> = gateways.iter().map(|route| route.via).collect();
    let addresses = section.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    let addresses = json!(addresses);
    push_present(
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
            ("allow", prefix_list(&section.peers.allow)),
            ("deny", prefix_list(&section.peers.deny)),
        ],
    );
    tables.push(WrittenTable { section: "interface", identity: of.clone(), keys });
    for route in routes {
        let of = [of.as_slice(), &[route.to.to_string()]].concat();
        let keys = vec![("to", json!(route.to.to_string())), ("via", json!(route.via))];
        tables.push(WrittenTable { section: "interface.routes", identity: of, keys });
    }
}

fn region_table(section: &RegionSection) -> WrittenTable {
    let mut keys =
        vec![("name", json!(section.name)), ("backing", json!(section.backing.as_str()))];
    match &section.backing {
        Backing::Anonymous | Backing::Hugepages => {}
        Backing::SharedMemory { object } => keys.push(("object", json!(object))),
        Backing::File { path, fsync } => {
            let fsync = match fsync {
                Fsync::Never => json!("never"),
                Fsync::Message => json!("message"),
                Fsync::Close => json!("close"),
                Fsync::Interval(interval) => time_value(*interval),
            };
            keys.extend([("path", json!(path)), ("fsync", fsync)]);
        }
    }
    let access = access::nearest_word(section.access());
    let exclusive = section.remote_read && section.remote_write && !section.shared;
    push_present(
        &mut keys,
        [
            ("size", section.size.map(size_value)),
            ("base_to", Some(number_value(section.base_to))),
            ("access", Some(json!(access))),
            ("shared", Some(json!(section.shared))),
            ("clear_between_peers", exclusive.then(|| json!(section.clear_between_peers))),
        ],
    );
    WrittenTable { section: "region", identity: vec![section.name.clone()], keys }
}

fn push_listener(section: &ListenerSection, tables: &mut Vec<WrittenTable>) {
    let of = vec![section.name.clone()];
    let tcp = section.transport == Transport::Tcp;
    let mpa = &section.mpa;
    let mut keys = vec![("name", json!(section.name)), ("interface", json!(section.interface))];
    push_present(&mut keys, [("address", section.address.map(|address| json!(address)))]);
    keys.extend([
        ("port", json!(section.port)),
        ("transport", json!(section.transport)),
        ("ulp", json!(section.ulp.as_str())),
    ]);
    if let Ulp::Rdmap(rdmap) = &section.ulp {
        let perftest = rdmap.service == super::ServiceKind::Perftest;
        push_present(
            &mut keys,
            [
                ("service", Some(json!(rdmap.service.as_str()))),
                ("ird", Some(json!(rdmap.ird))),
                ("ord", Some(json!(rdmap.ord))),
                ("peer", tcp.then(|| json!(rdmap.peer.name()))),
                ("message_size", perftest.then(|| size_value(rdmap.message_size.into()))),
            ],
        );
    }
    let revisions = [mpa.revision_0, mpa.revision_1, mpa.revision_2];
    let revisions: Vec<usize> = (0..3).filter(|&at| revisions[at]).collect();
    push_present(
        &mut keys,
        [
            ("revisions", tcp.then(|| json!(revisions))),
            ("markers", tcp.then(|| json!(mpa.markers))),
            ("crc", tcp.then(|| json!(mpa.crc))),
            ("private_data_limit", Some(json!(mpa.private_data_limit))),
            ("dscp", section.ip.dscp.map(|dscp| json!(dscp))),
            ("ttl", section.ip.ttl.map(|ttl| json!(ttl))),
            ("allow", prefix_list(&section.peers.allow)),
            ("deny", prefix_list(&section.peers.deny)),
            ("require", protection_name(section.require).map(|word| json!(word))),
            ("regions", Some(json!(section.regions))),
        ],
    );
    tables.push(WrittenTable { section: "listener", identity: of.clone(), keys });
    let limits = &section.limits;
    let keys = vec![
        ("streams", json!(limits.streams)),
        ("streams_per_peer", json!(limits.streams_per_peer)),
        ("pending", json!(limits.pending)),
        ("startup_timeout", time_value(limits.startup_timeout)),
        ("idle_timeout", time_or_off_value(limits.idle_timeout)),
    ];
    tables.push(WrittenTable { section: "listener.limits", identity: of.clone(), keys });
    // A file must not contain `deliver_to` if the service determines the destination of messages.
    let says = section.ulp.rdmap().and_then(|rdmap| rdmap.service.default_delivery()).is_some();
    for queue in &section.queues {
        let path = match &queue.deliver_to {
            Delivery::File { path } => Some(json!(path)),
            Delivery::Events | Delivery::Echo | Delivery::Discard => None,
        };
        let mut keys = vec![
            ("qn", json!(queue.qn)),
            ("buffers", json!(queue.buffers)),
            ("buffer_size", size_value(queue.buffer_size.into())),
        ];
        push_present(
            &mut keys,
            [("deliver_to", (!says).then(|| json!(queue.deliver_to.as_str()))), ("path", path)],
        );
        let of = [of.as_slice(), &[queue.qn.to_string()]].concat();
        tables.push(WrittenTable { section: "listener.queue", identity: of, keys });
    }
}

/// Returns a list of prefixes; `None` if it is empty.
fn prefix_list(list: &[IpNet]) -> Option<Value> {
    let shown: Vec<_> = list.iter().map(ToString::to_string).collect();
    (!shown.is_empty()).then(|| json!(shown))
}

/// Returns the word for a listener's IPsec requirement; `None` if it has none.
fn protection_name(bits: Option<u16>) -> Option<&'static str> {
    let known = super::tables::REQUIRED.iter().find(|(_, known)| *known == bits);
    known.filter(|_| bits.is_some()).map(|(word, _)| *word)
}

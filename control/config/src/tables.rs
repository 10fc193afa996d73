//! The keys of sections that are read by a function, because the presence, the default or the meaning of a key depends
//! on another key. The readers take the rules from here.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ddp::advert::MAX_PRIVATE_DATA;
use ipnet::IpNet;
use port_kind::{ChecksumMode, MAX_MTU, MIN_MTU, PortKind, SegmentationMode};
use tcp_lite::mpa::Peer;

use super::keys::keys;
use super::rule::{Rule, Shape};
use super::types::*;
use super::values::{
    self, boolean_rule, duration_or_off_rule, duration_rule, integer_rule, list_rule,
    one_or_more_rule, rule_of_parser, word_rule,
};
use crate::transport::Transport;

const NAME: Shape = Shape::Name;
const REFERENCE: Shape = Shape::Text("the name of a section");
const PATH: Shape = Shape::Text("a path");
const ADDRESS: Shape = Shape::Text("an IP address");
const NETWORK: Shape = Shape::Text("an address with its prefix length, such as 192.0.2.1/24");
const PEERS: Shape = Shape::Text("a prefix, host bits zero, such as 192.0.2.0/24");
const DAY: Duration = Duration::from_secs(86_400);

fn one_second() -> Duration {
    Duration::from_secs(1)
}

/// Rule for one of several words, which the reader itself distinguishes.
fn words_rule(words: &[&'static str]) -> Rule<String> {
    rule_of_parser(Shape::Words(words.to_vec()), values::parse_string)
}

/// Top-level keys of the file.
pub(super) mod root {
    use super::*;
    keys! { keys_of in "", reload: false {
        /// Name of the appliance in logs, metrics and the API.
        name: String = rule_of_parser(NAME, values::parse_name), "the file's name without extension";
    }}
}

/// `[[port]]`: keys of all kinds.
pub(super) mod port {
    use super::*;
    keys! { keys_of in "port", reload: false {
        /// Unique name.
        name: String = rule_of_parser(NAME, values::parse_name), "";
        /// What the port is.
        kind: String = words_rule(&PortKind::NAMES), "";
        /// Largest IP packet, bytes: up to 65,280 for `ring`, `memif` and `vhost-user`, 3498 for `af_xdp`, 9000 for the others. The
        /// port's buffers have this room each.
        mtu: u16 = integer_rule(MIN_MTU, MAX_MTU), "1500";
        /// Who computes checksums: the device where it can, the worker, or nobody computes those of TCP (on ports
        /// that do not leave the host).
        checksum: ChecksumMode = word_rule(&ChecksumMode::NAMES), "\"offload\"";
        /// Who cuts TCP data into segments: the worker, or with `checksum = "offload"` a device with TSO (`pci`) or the
        /// virtual machine (`vhost-user`), where it can.
        segmentation: SegmentationMode = word_rule(&SegmentationMode::NAMES),
            "\"offload\" for kind \"vhost-user\", else \"software\"";
        /// Streams of the port are aborted when its link has been down for this long.
        link_down_timeout: Option<Duration> = duration_or_off_rule(Duration::ZERO, DAY),
            "\"off\"; \"0s\" for kinds \"memif\" and \"vhost-user\"";
        /// The workers that have a queue on it, by index.
        workers: Vec<u16> = list_rule(Shape::Integer { min: 0, max: 127 }), "all; the first for kind \"pcap\"";
        /// Receive descriptors per queue.
        rx_descriptors: u16 = values::power_of_two_rule(64, 16_384), "1024";
        /// Transmit descriptors per queue.
        tx_descriptors: u16 = values::power_of_two_rule(64, 16_384), "1024";
    }}
}

/// `[[interface]]`.
pub(super) mod interface {
    use super::*;
    keys! { keys_of in "interface", reload: false {
        /// Unique name.
        name: String = rule_of_parser(NAME, values::parse_name), "";
        /// The port that it is on.
        port: String = rule_of_parser(REFERENCE, values::parse_string), "";
        /// 802.1Q tag.
        vlan: u16 = integer_rule(1u16, 4094), "untagged";
        /// Addresses with their prefix, at least one.
        addresses: Vec<IpNet> = list_rule(NETWORK), "";
        /// Routers for all that is in no other network; one address, or a list with one per family.
        gateway: Vec<IpAddr> = one_or_more_rule(ADDRESS), "";
        /// Largest IP packet, bytes: the port's or less, 1280 or more if there is an IPv6 address.
        mtu: u16 = integer_rule(MIN_MTU, MAX_MTU), "the port's";
        /// Differentiated services codepoint of TCP and SCTP packets. The two bits of ECN beside it are not set by it.
        dscp: u8 = integer_rule(0u8, MAX_DSCP), "0";
        /// Time to live, or hop limit, of TCP and SCTP packets.
        ttl: u8 = integer_rule(1u8, u8::MAX), "64";
        /// From which of its ports streams and associations are opened, TCP and SCTP: the first and the last, at least 64. With
        /// n workers one in n of them can be used by each.
        local_ports: LocalPorts = values::local_ports_rule(), "\"32768-60999\"";
        /// `"tap"`: the port is shared with the host's kernel, which gets what is not ours by a TAP with the addresses.
        host: Host = word_rule(&Host::NAMES), "\"off\"";
        /// What the TAP is called: 1 to 15 bytes.
        host_name: String = rule_of_parser(Shape::Text("the name of a network interface"), values::parse_device), "\"tap-\" and the interface's name";
    }}
}

/// Keys of `[[interface]]` that a reload applies.
pub(super) mod interface_peers {
    use super::*;
    keys! { keys_of in "interface", reload: true {
        /// Peers that may connect to its listeners, as prefixes, at most 1024. Without entries, all that `deny` does not have. Packets of
        /// others that would begin a stream are dropped without an answer. A listener's own lists must admit them too.
        allow: Vec<IpNet> = list_rule(PEERS), "[]";
        /// Peers that may not, as prefixes, at most 1024. It wins over `allow`.
        deny: Vec<IpNet> = list_rule(PEERS), "[]";
    }}
}

/// `[[interface.routes]]`.
pub(super) mod route {
    use super::*;
    keys! { keys_of in "interface.routes", reload: false {
        /// Destinations, host bits zero.
        to: IpNet = rule_of_parser(NETWORK, values::parse_network), "";
        /// The router, in one of the interface's networks.
        via: IpAddr = rule_of_parser(ADDRESS, values::parse_host_ip), "";
    }}
}

/// `[[region]]`. A reload adds and removes regions; changes of a region require a restart.
pub(super) mod region {
    use super::*;
    keys! { keys_of in "region", reload: true {
        /// Unique name.
        name: String = rule_of_parser(NAME, values::parse_name), "";
        /// Where the bytes lie.
        backing: String = words_rule(&["anonymous", "hugepages", "shared-memory", "file"]),
            "\"file\" with `path`, else \"anonymous\"";
        /// For `shared-memory`: the object that local programs open.
        object: String = rule_of_parser(NAME, values::parse_name), "";
        /// For `file`: the file; made if it is not there.
        path: PathBuf = rule_of_parser(PATH, values::parse_path), "";
        /// For `file`: when it is forced to the disk: never, after each message, at a stream's end, or at an interval.
        fsync: String = rule_of_parser(Shape::Text("never, message, close or a time"), values::parse_string), "\"close\"";
        /// Size in bytes; may be left out for a file that exists.
        size: u64 = values::size_rule(1, 1 << 46), "the file's length";
        /// Tagged offset of the first byte.
        base_to: u64 = rule_of_parser(Shape::Number("from 0 to 2^64 - 1"), values::u64_or_string), "0";
        /// What peers may do: `r`, `w`, `rw`, `rwa` (with atomics), `none`, or a list of `remote-read`, `remote-write`
        /// and `atomic`.
        access: Vec<String> = one_or_more_rule(Shape::Text("a word")), "";
        /// Several streams at a time may reach it.
        shared: bool = boolean_rule(), "false";
        /// What one stream wrote is cleared before another can read it.
        clear_between_peers: bool = boolean_rule(), "true where peers read and write and `shared` is false";
    }}
}

/// `[[listener]]`.
pub(super) mod listener {
    use super::*;
    keys! { keys_of in "listener", reload: true {
        /// Unique name.
        name: String = rule_of_parser(NAME, values::parse_name), "";
        /// The interface that it is on.
        interface: String = rule_of_parser(REFERENCE, values::parse_string), "";
        /// One of the interface's addresses.
        address: IpAddr = rule_of_parser(ADDRESS, values::parse_host_ip), "all of them";
        /// TCP or SCTP port.
        port: u16 = integer_rule(1u16, u16::MAX), "";
        /// What carries its streams.
        transport: Transport = word_rule(&Transport::WORDS), "\"tcp\"";
        /// Differentiated services codepoint of its streams.
        dscp: u8 = integer_rule(0u8, MAX_DSCP), "the interface's";
        /// Time to live, or hop limit, of its streams' packets.
        ttl: u8 = integer_rule(1u8, u8::MAX), "the interface's";
        /// Peers that may connect, as prefixes, at most 1024. Without entries, all that `deny` does not have. Packets of others that
        /// would begin a stream are dropped without an answer. The interface's lists must admit them too.
        allow: Vec<IpNet> = list_rule(PEERS), "[]";
        /// Peers that may not, as prefixes, at most 1024. It wins over `allow`.
        deny: Vec<IpNet> = list_rule(PEERS), "[]";
        /// What IPsec must do for its streams: protect them (`ipsec`), encrypt them with keys of 128 bits at least, or of 256. Others
        /// are refused.
        require: Option<u16> = word_rule(&REQUIRED), "\"none\"";
        /// The protocol above DDP.
        ulp: &'static str = word_rule(&[("ddp", "ddp"), ("rdmap", "rdmap")]), "\"ddp\"";
        /// For `rdmap`: what the listener does for its peers.
        service: ServiceKind = word_rule(&ServiceKind::WORDS), "\"region\"";
        /// For `rdmap`: Reads and atomics of a peer that await their response at one time.
        ird: u16 = integer_rule(0, MAX_DEPTH), "32";
        /// For `rdmap`: the same of ours.
        ord: u16 = integer_rule(0, MAX_DEPTH), "32";
        /// For `rdmap` over TCP: the kind of peer.
        peer: Peer = word_rule(&Peer::ALL.map(|peer| (peer.name(), peer))), "\"standard\"";
        /// For `perftest`: bytes of the first Write of the write latency test, which names no size.
        message_size: u32 = values::size32_rule(1, 16 << 20), "\"4 KiB\"";
        /// Revisions of MPA that are accepted.
        revisions: Vec<u8> = list_rule(Shape::Integer { min: 0, max: 2 }), "[0, 1]; [1, 2] for `rdmap`";
        /// We ask the peer for markers.
        markers: bool = boolean_rule(), "true; false for `rdmap`";
        /// We ask for CRCs; they are on if either side asks.
        crc: bool = boolean_rule(), "true";
        /// Most private data we send, bytes.
        private_data_limit: u16 = integer_rule(0, u16::try_from(MAX_PRIVATE_DATA).unwrap_or(u16::MAX)), "the most that the kind of peer accepts";
        /// Regions that are advertised to its streams' peers, which may reach them.
        regions: Vec<String> = list_rule(REFERENCE), "[]";
    }}
}

/// `[listener.limits]`.
pub(super) mod listener_limits {
    use super::*;
    keys! { keys_of in "listener.limits", reload: true {
        /// Streams at a time.
        streams: u32 = integer_rule(1, 1_000_000), "64";
        /// Of them from one peer: an IPv4 address or a /64 of IPv6.
        streams_per_peer: u32 = integer_rule(1, 1_000_000), "`streams`";
        /// Of them with TCP or MPA start-up not complete.
        pending: u32 = integer_rule(1, 1_000_000), "`streams`, at most 64";
        /// MPA start-up must be complete after this time (RFC 5044 §7.1).
        startup_timeout: Duration = duration_rule(one_second() / 10, 300 * one_second()), "\"5s\"";
        /// A stream on which nothing arrives for this long is closed.
        idle_timeout: Option<Duration> = duration_or_off_rule(one_second(), 30 * DAY), "\"off\"";
    }}
}

/// `[[listener.queue]]`.
pub(super) mod queue {
    use super::*;
    keys! { keys_of in "listener.queue", reload: true {
        /// Queue number.
        qn: u32 = integer_rule(0, u32::MAX), "";
        /// Buffers posted per stream.
        buffers: u32 = integer_rule(1u32, 65_536), "16";
        /// Bytes per buffer: the longest message.
        buffer_size: u32 = values::size32_rule(1, 16 << 20), "\"64 KiB\"";
        /// Where the messages go; not where the service says it.
        deliver_to: String = words_rule(&["events", "file", "echo", "discard"]), "";
        /// For `file`: the file that messages are appended to, each after its length.
        path: PathBuf = rule_of_parser(PATH, values::parse_path), "";
    }}
}

/// Words for the IPsec that a listener requires, with the minimum key size for encryption, bits. 0: integrity only.
pub(super) const REQUIRED: [(&str, Option<u16>); 4] =
    [("none", None), ("ipsec", Some(0)), ("ipsec-128", Some(128)), ("ipsec-256", Some(256))];

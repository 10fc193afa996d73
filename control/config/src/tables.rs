//! Keys of the sections with a hand-written reader. `section!` cannot read them, because the presence, default or
//! meaning of a key depends on another key. This module defines the rules that the readers use.

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

/// Returns a rule whose descriptor lists the permitted words. It parses any string; the reader checks the word.
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

/// Keys of `[[port]]` that apply to all kinds of ports.
pub(super) mod port {
    use super::*;
    keys! { keys_of in "port", reload: false {
        /// Unique name.
        name: String = rule_of_parser(NAME, values::parse_name), "";
        /// Kind of the port: a PCI device with a DPDK driver (`pci`), a Linux interface (`af_xdp`, `af_packet`), a new
        /// TAP (`tap`), shared memory with another process (`memif`) or a virtual machine (`vhost-user`), a link inside
        /// this process (`ring`), or capture files (`pcap`).
        kind: String = words_rule(&PortKind::NAMES), "";
        /// Largest IP packet, bytes. At most 65,280 for `ring`, `memif` and `vhost-user`, 3498 for `af_xdp`, 9000 for
        /// the others. Each packet buffer of the port has room for a packet of this size.
        mtu: u16 = integer_rule(MIN_MTU, MAX_MTU), "1500";
        /// Computation and verification of checksums. `offload`: by the device if it supports this, else by the worker.
        /// `software`: by the worker. `trusted`: as `software`, but TCP checksums are neither computed nor verified;
        /// only for ports whose frames do not leave the host.
        checksum: ChecksumMode = word_rule(&ChecksumMode::NAMES), "\"offload\"";
        /// Segmentation of TCP data. `software`: by the worker. `offload`: by a device with TSO (`pci`) or by the
        /// virtual machine (`vhost-user`) if it supports this and `checksum` is `offload`, else by the worker.
        segmentation: SegmentationMode = word_rule(&SegmentationMode::NAMES),
            "\"offload\" for kind \"vhost-user\", else \"software\"";
        /// Time after which the port's streams are aborted while its link is down.
        link_down_timeout: Option<Duration> = duration_or_off_rule(Duration::ZERO, DAY),
            "\"off\"; \"0s\" for kinds \"memif\" and \"vhost-user\"";
        /// Indices of the workers that have a queue on the port.
        workers: Vec<u16> = list_rule(Shape::Integer { min: 0, max: 127 }), "all; the first for kind \"pcap\"";
        /// Receive descriptors per queue.
        rx_descriptors: u16 = values::power_of_two_rule(64, 16_384), "1024";
        /// Transmit descriptors per queue.
        tx_descriptors: u16 = values::power_of_two_rule(64, 16_384), "1024";
    }}
}

/// Keys of `[[interface]]`.
pub(super) mod interface {
    use super::*;
    keys! { keys_of in "interface", reload: false {
        /// Unique name.
        name: String = rule_of_parser(NAME, values::parse_name), "";
        /// Name of the interface's port.
        port: String = rule_of_parser(REFERENCE, values::parse_string), "";
        /// 802.1Q VLAN identifier.
        vlan: u16 = integer_rule(1u16, 4094), "untagged";
        /// Local addresses with prefix length, at least one.
        addresses: Vec<IpNet> = list_rule(NETWORK), "";
        /// Default router: one address, or a list with one per address family.
        gateway: Vec<IpAddr> = one_or_more_rule(ADDRESS), "";
        /// Largest IP packet, bytes. At most the port's `mtu`, at least 1280 with an IPv6 address.
        mtu: u16 = integer_rule(MIN_MTU, MAX_MTU), "the port's";
        /// Differentiated services codepoint (DSCP) of TCP and SCTP packets. The two ECN bits are not part of it.
        dscp: u8 = integer_rule(0u8, MAX_DSCP), "0";
        /// IPv4 TTL and IPv6 hop limit of TCP and SCTP packets.
        ttl: u8 = integer_rule(1u8, u8::MAX), "64";
        /// Range of local ports for outgoing TCP streams and SCTP associations: first and last, at least 64 ports. With
        /// n workers, each can use about one port in n.
        local_ports: LocalPorts = values::local_ports_rule(), "\"32768-60999\"";
        /// `"tap"` shares the port with the host's kernel: frames that are not for the appliance go to a TAP, which has
        /// the interface's addresses.
        host: Host = word_rule(&Host::NAMES), "\"off\"";
        /// Name of the TAP, 1 to 15 bytes.
        host_name: String = rule_of_parser(Shape::Text("the name of a network interface"), values::parse_device), "\"tap-\" and the interface's name";
    }}
}

/// Keys of `[[interface]]` that a reload applies.
pub(super) mod interface_peers {
    use super::*;
    keys! { keys_of in "interface", reload: true {
        /// Prefixes of the peers that may connect to the interface's listeners, at most 1024. Empty: all peers that
        /// `deny` does not contain. A packet that would open a stream from another peer is dropped without an answer.
        /// The listener's lists must also admit the peer.
        allow: Vec<IpNet> = list_rule(PEERS), "[]";
        /// Prefixes of the peers that may not connect, at most 1024. Overrides `allow`.
        deny: Vec<IpNet> = list_rule(PEERS), "[]";
    }}
}

/// Keys of `[[interface.routes]]`.
pub(super) mod route {
    use super::*;
    keys! { keys_of in "interface.routes", reload: false {
        /// Destination prefix, host bits zero.
        to: IpNet = rule_of_parser(NETWORK, values::parse_network), "";
        /// Address of the router: in one of the interface's prefixes, or IPv6 link-local.
        via: IpAddr = rule_of_parser(ADDRESS, values::parse_host_ip), "";
    }}
}

/// Keys of `[[region]]`. A reload adds and removes regions; changes of a region require a restart.
pub(super) mod region {
    use super::*;
    keys! { keys_of in "region", reload: true {
        /// Unique name.
        name: String = rule_of_parser(NAME, values::parse_name), "";
        /// Storage of the region's bytes: ordinary memory (`anonymous`), hugepages, a shared-memory object that local
        /// programs map, or memory that is written to a file.
        backing: String = words_rule(&["anonymous", "hugepages", "shared-memory", "file"]),
            "\"file\" with `path`, else \"anonymous\"";
        /// For `shared-memory`: name of the object that local programs open.
        object: String = rule_of_parser(NAME, values::parse_name), "";
        /// For `file`: path of the file, which is created if missing.
        path: PathBuf = rule_of_parser(PATH, values::parse_path), "";
        /// For `file`: time of the syncs to the disk. `message`: after each message. `close`: when a stream that wrote
        /// to the region ends. A time, 10 ms to 1 day: at least at this interval, while there are changes.
        fsync: String = rule_of_parser(Shape::Text("never, message, close or a time"), values::parse_string), "\"close\"";
        /// Size, bytes. Optional for a file that exists.
        size: u64 = values::size_rule(1, 1 << 46), "the file's length";
        /// Tagged offset of the first byte. A multiple of 8 if atomics are allowed.
        base_to: u64 = rule_of_parser(Shape::Number("from 0 to 2^64 - 1"), values::u64_or_string), "0";
        /// Rights of peers: `r`, `w`, `rw`, `rwa` (with atomics), `none`, or a list of `remote-read`, `remote-write`
        /// and `atomic`.
        access: Vec<String> = one_or_more_rule(Shape::Text("a word")), "";
        /// True if several streams may use the region at a time. Otherwise a region open to remote writes serves one
        /// stream at a time.
        shared: bool = boolean_rule(), "false";
        /// True to clear the data of one stream before another stream can read it. Requires that `shared` is false and
        /// that peers may read and write.
        clear_between_peers: bool = boolean_rule(), "true where peers read and write and `shared` is false";
    }}
}

/// Keys of `[[listener]]`.
pub(super) mod listener {
    use super::*;
    keys! { keys_of in "listener", reload: true {
        /// Unique name.
        name: String = rule_of_parser(NAME, values::parse_name), "";
        /// Name of the listener's interface.
        interface: String = rule_of_parser(REFERENCE, values::parse_string), "";
        /// Local address, one of the interface's.
        address: IpAddr = rule_of_parser(ADDRESS, values::parse_host_ip), "all of them";
        /// Local TCP or SCTP port.
        port: u16 = integer_rule(1u16, u16::MAX), "";
        /// Transport of the listener's streams.
        transport: Transport = word_rule(&Transport::WORDS), "\"tcp\"";
        /// Differentiated services codepoint (DSCP) of the streams' packets.
        dscp: u8 = integer_rule(0u8, MAX_DSCP), "the interface's";
        /// IPv4 TTL and IPv6 hop limit of the streams' packets.
        ttl: u8 = integer_rule(1u8, u8::MAX), "the interface's";
        /// Prefixes of the peers that may connect, at most 1024. Empty: all peers that `deny` does not contain. A
        /// packet that would open a stream from another peer is dropped without an answer. The interface's lists must
        /// also admit the peer.
        allow: Vec<IpNet> = list_rule(PEERS), "[]";
        /// Prefixes of the peers that may not connect, at most 1024. Overrides `allow`.
        deny: Vec<IpNet> = list_rule(PEERS), "[]";
        /// IPsec protection required of streams: any (`ipsec`), or encryption with keys of at least 128 or 256 bits.
        /// Streams with weaker protection are refused.
        require: Option<u16> = word_rule(&REQUIRED), "\"none\"";
        /// Protocol above DDP.
        ulp: &'static str = word_rule(&[("ddp", "ddp"), ("rdmap", "rdmap")]), "\"ddp\"";
        /// For `rdmap`: service for the peers. `region`: access to `regions`. `echo`: returns Sends. `sink`: discards
        /// Sends. `rping`: server of rping. `perftest`: servers of perftest with `-R`.
        service: ServiceKind = word_rule(&ServiceKind::WORDS), "\"region\"";
        /// For `rdmap`: maximum number of the peer's outstanding RDMA Reads and atomics, per stream.
        ird: u16 = integer_rule(0, MAX_DEPTH), "32";
        /// For `rdmap`: maximum number of our outstanding RDMA Reads and atomics, per stream.
        ord: u16 = integer_rule(0, MAX_DEPTH), "32";
        /// For `rdmap` over TCP: kind of peer, which selects the adaptations to its deviations from the specifications.
        peer: Peer = word_rule(&Peer::ALL.map(|peer| (peer.name(), peer))), "\"standard\"";
        /// For `perftest`: bytes of the first Write of the write latency test, which its client does not announce.
        message_size: u32 = values::size32_rule(1, 16 << 20), "\"4 KiB\"";
        /// MPA revisions to accept; 2 only for `rdmap`.
        revisions: Vec<u8> = list_rule(Shape::Integer { min: 0, max: 2 }), "[0, 1]; [1, 2] for `rdmap`";
        /// True to request markers from the peer.
        markers: bool = boolean_rule(), "true; false for `rdmap`";
        /// True to request CRCs. They are used if either side requests them.
        crc: bool = boolean_rule(), "true";
        /// Maximum private data to send, bytes.
        private_data_limit: u16 = integer_rule(0, u16::try_from(MAX_PRIVATE_DATA).unwrap_or(u16::MAX)), "the most that the kind of peer accepts";
        /// Names of the regions that are advertised to the streams' peers and accessible to them.
        regions: Vec<String> = list_rule(REFERENCE), "[]";
    }}
}

/// Keys of `[listener.limits]`.
pub(super) mod listener_limits {
    use super::*;
    keys! { keys_of in "listener.limits", reload: true {
        /// Maximum number of streams of the listener.
        streams: u32 = integer_rule(1, 1_000_000), "64";
        /// Maximum number of these streams from one peer: an IPv4 address or a /64 of IPv6.
        streams_per_peer: u32 = integer_rule(1, 1_000_000), "`streams`";
        /// Maximum number of these streams whose TCP or MPA start-up is not complete.
        pending: u32 = integer_rule(1, 1_000_000), "`streams`, at most 64";
        /// Time limit of the MPA start-up (RFC 5044 §7.1).
        startup_timeout: Duration = duration_rule(one_second() / 10, 300 * one_second()), "\"5s\"";
        /// Silence of the peer after which a stream is closed.
        idle_timeout: Option<Duration> = duration_or_off_rule(one_second(), 30 * DAY), "\"off\"";
    }}
}

/// Keys of `[[listener.queue]]`.
pub(super) mod queue {
    use super::*;
    keys! { keys_of in "listener.queue", reload: true {
        /// Queue number.
        qn: u32 = integer_rule(0, u32::MAX), "";
        /// Number of buffers posted per stream.
        buffers: u32 = integer_rule(1u32, 65_536), "16";
        /// Bytes per buffer: the longest message.
        buffer_size: u32 = values::size32_rule(1, 16 << 20), "\"64 KiB\"";
        /// Destination of the messages: the event log, a file, back to the sender, or nowhere. Required unless the
        /// `service` determines it.
        deliver_to: String = words_rule(&["events", "file", "echo", "discard"]), "";
        /// For `file`: path of the file to which messages are appended, each preceded by its length.
        path: PathBuf = rule_of_parser(PATH, values::parse_path), "";
    }}
}

/// Words for the IPsec that a listener requires, with the minimum key size for encryption, bits. 0: integrity only.
pub(super) const REQUIRED: [(&str, Option<u16>); 4] =
    [("none", None), ("ipsec", Some(0)), ("ipsec-128", Some(128)), ("ipsec-256", Some(256))];

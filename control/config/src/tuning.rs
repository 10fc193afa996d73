//! `[tcp]`, `[mpa]`, `[limits]` and `[management]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::address;

use super::errors::Places;
use super::keys::{Key, keys, section};
use super::management::{AccessSection, AuditSection, read_access, read_audit};
use super::reader::Section;
use super::rule::{Rule, Shape};
use super::sandbox::{SandboxSection, read_sandbox};
use super::types::*;
use super::values::*;
use super::written_keys::{self, Keys, time, time_or_off};

const HOUR: Duration = Duration::from_secs(3600);
const TIB: u64 = 1 << 40;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

section! {
    /// `[tcp]`: TCP's parameters, for all streams.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TcpSection in "tcp" {
        /// Congestion control.
        congestion: Congestion = one_of(Congestion::NAMED), or Congestion::Cubic;
        /// First retransmission time-out (RFC 6298 §2.1).
        initial_rto: Duration = duration(ms(1), ms(60_000)), or ms(1000);
        /// Least retransmission time-out.
        min_rto: Duration = duration(ms(1), ms(60_000)), or ms(200);
        /// A stream whose data stay unacknowledged for this long is aborted (RFC 9293 §3.8.3).
        user_timeout: Duration = duration(ms(100), 24 * HOUR), or ms(120_000);
        /// Time in TIME-WAIT.
        time_wait: Duration = duration(ms(0), ms(240_000)), or ms(10_000);
        /// Longest delay of an acknowledgement, at most 500 ms (RFC 9293 §3.8.6.3).
        delayed_ack: Duration = duration(ms(0), ms(500)), or ms(20);
        /// Receive window of a new stream, bytes.
        receive_window: u32 = size32(16 << 10, 1 << 30), or 4 << 20;
        /// The receive window grows by itself up to this size, bytes, while the peer uses more than half of it in a round
        /// trip: at least `receive_window`. Without markers it is no larger than `limits.held_per_stream`.
        receive_window_limit: u32 = size32(16 << 10, 1 << 30), or 128 << 20;
        /// Most unacknowledged bytes, in at most one segment for each 512 of them, or 32768.
        send_window: u32 = size32(16 << 10, 1 << 30), or 128 << 20;
        /// Selective acknowledgements (RFC 2018).
        sack: bool = boolean(), or true;
        /// Find the path's MTU by probes where routers do not report it (RFC 4821).
        path_mtu_probing: bool = boolean(), or true;
        /// Reports of a smaller MTU of an IPv4 path are not believed.
        min_path_mtu: u16 = int(68, 1280), or 576;
        /// After this time a size that a path did not carry is tried again (RFC 1191 §6.3).
        path_mtu_raise: Duration = duration(ms(300_000), 24 * HOUR), or ms(600_000);
        /// Timestamps (RFC 7323).
        timestamps: bool = boolean(), or true;
        /// Bursts are spread over the round trip where that is long enough.
        pacing: bool = boolean(), or true;
        /// Overdue acknowledgements are asked for (RFC 8985 §7).
        tail_loss_probe: bool = boolean(), or true;
        /// Explicit congestion notification (RFC 3168).
        ecn: bool = boolean(), or true;
        /// A stream whose peer keeps its window closed for this long while data waits is aborted (RFC 6429 §4).
        zero_window_timeout: Option<Duration> =
            duration_or_off(ms(1000), 24 * HOUR), or Some(ms(600_000));
        /// SYN cookies (RFC 4987): when there is no room to remember a SYN, always, or never.
        syn_cookies: SynCookieMode = one_of(&SynCookieMode::WORDS), or SynCookieMode::Auto;
    } by_hand {
        /// Keepalive; `None` for off (RFC 9293 §3.8.4).
        keepalive: Option<Keepalive> =
            read_keepalive, keepalive_keys, write_keepalive;
    }
}

keys! { keepalive_keys in "tcp", reload: false {
    /// Silence before the first keepalive probe (RFC 9293 §3.8.4).
    keepalive: Option<Duration> = duration_or_off(ms(1000), 24 * HOUR), "\"off\"";
    /// Time between keepalive probes.
    keepalive_interval: Duration = duration(ms(100), HOUR), "\"10s\"";
    /// Unanswered keepalive probes after which the stream is aborted.
    keepalive_probes: u8 = int(1, 100), "5";
}}

pub(super) fn tcp(mut section: Section<'_, '_>) -> TcpSection {
    let mut tcp = TcpSection::read(&mut section);
    tcp.receive_window_limit =
        window_limit(&mut section, tcp.receive_window, tcp.receive_window_limit);
    if tcp.min_rto > tcp.initial_rto {
        section.fail("min_rto", "is longer than `initial_rto`: lower it, or raise `initial_rto`");
    }
    if tcp.congestion.exact_ecn() && !tcp.ecn {
        section.fail("congestion", "works only with ECN: set `ecn = true`, or choose another one");
    }
    section.finish();
    tcp
}

/// Returns the limit of a receive window that begins with `window` bytes.
pub(super) fn window_limit(section: &mut Section<'_, '_>, window: u32, limit: u32) -> u32 {
    if limit < window && section.has("receive_window_limit") {
        section.fail(
            "receive_window_limit",
            "is less than `receive_window`: raise it, or lower the other",
        );
    }
    limit.max(window)
}

fn read_keepalive(section: &mut Section<'_, '_>) -> Option<Keepalive> {
    let idle = section.or("keepalive", None, keepalive());
    let rest = ["keepalive_interval", "keepalive_probes"];
    let Some(idle) = idle else {
        if section.has("keepalive") {
            section.allow(&rest);
        } else {
            section.only_for(&rest, "without `keepalive`");
        }
        return None;
    };
    Some(Keepalive {
        idle,
        interval: section.or("keepalive_interval", ms(10_000), keepalive_interval()),
        probes: section.or("keepalive_probes", 5, keepalive_probes()),
    })
}

section! {
    /// `[mpa]`: how FPDUs are received.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MpaReceiveSection in "mpa" {
        /// What an FPDU with a wrong CRC does when it is next in order: the stream ends with MPA's error 2, or the
        /// segment counts as lost while none of the FPDU was acknowledged (RFC 5044 §8).
        on_bad_crc: OnBadCrc = one_of(&OnBadCrc::WORDS), or OnBadCrc::Error;
        /// Longest FPDU, bytes with markers, at least the longest MTU. A stream may always hold one of it.
        max_fpdu: u32 = size32(1 << 10, 128 << 10), or 64 << 10;
        /// Retransmissions that are waited for with `on_bad_crc = "retransmit"`.
        bad_crc_tries: u8 = int(1, 100), or 5;
    }
}

pub(super) fn mpa(mut section: Section<'_, '_>) -> (MpaReceiveSection, Places) {
    let mpa = MpaReceiveSection::read(&mut section);
    if mpa.on_bad_crc == OnBadCrc::Error && !section.has("on_bad_crc") {
        section.only_for(&["bad_crc_tries"], "without `on_bad_crc = \"retransmit\"`");
    }
    (mpa, section.finish())
}

section! {
    /// `[limits]`: bounds of the whole appliance.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Limits in "limits" {
        /// Bytes that regions, staged files, workers' buffers and streams may take together; without it, or where the machine has
        /// less, 75 % of RAM or of the control group's limit, less packet pools without hugepages, in equal parts for
        /// the appliances of a process. Regions in reserved hugepages do not count. The buffers of all workers get half
        /// of it at most.
        [reload] memory: Option<u64> = size(1 << 20, 64 * TIB).or_absent(), or None;
        /// Streams at a time, over all listeners and connects.
        [reload] streams: u32 = int(1, 10_000_000), or 4096;
        /// Accepted streams of one peer (an IPv4 address or a /64 of IPv6), per worker and over all listeners; without it
        /// there is no bound.
        streams_per_peer: Option<u32> = int(1, 10_000_000).or_absent(), or None;
        /// Regions at a time.
        [reload] regions: u32 = int(1, 1_000_000), or 1024;
        /// Silence after which the peer of a stream that has an exclusive region is probed, by TCP's keepalive or SCTP's
        /// heartbeat, unless `tcp.keepalive` or `sctp.heartbeat` is sooner. A peer that has crashed frees its regions.
        exclusive_keepalive: Option<Duration> =
            duration_or_off(ms(1000), 24 * HOUR), or Some(ms(60_000));
        /// Bytes of all regions together.
        [reload] region_memory: u64 = size(4096, 64 * TIB), or 16 << 30;
        /// Bytes that one stream may hold beyond a gap because they could not be placed. Without markers the receive
        /// window is no larger.
        held_per_stream: u64 = size(64 << 10, TIB), or 4 << 20;
        /// The same for all streams of one worker, with the fragments of messages that SCTP keeps. One peer's fragments get
        /// half of it at most.
        held_per_worker: u64 = size(64 << 10, TIB), or 64 << 20;
        /// Memory in which a worker's streams keep what they have sent until it is acknowledged, because its source may
        /// change. One segment more of each stream may be kept.
        kept_per_worker: u64 = size(64 << 10, TIB), or 64 << 20;
        /// Bytes by which the receive windows of one worker's streams may grow together. No stream gets more of it than it
        /// leaves to the others.
        windows_per_worker: u64 = size(64 << 10, TIB), or 1 << 30;
        /// Bytes of untagged receive buffers of one worker.
        buffers_per_worker: u64 = size(4096, TIB), or 64 << 20;
        /// Entries of one interface's neighbour cache.
        neighbours: u32 = int(8, 1_000_000), or 1024;
        /// Events that are kept for readers: so many errors, so many failed attempts of peers, so many deliveries, and so
        /// many others.
        events: u32 = int(16, 10_000_000), or 4096;
        /// Bytes of untagged messages that are kept with them.
        event_memory: u64 = size(4096, TIB), or 16 << 20;
        /// Longest body of an API request, bytes.
        api_body: u64 = size(4096, 1 << 30), or 4 << 20;
    }
}

pub(super) fn limits(mut section: Section<'_, '_>) -> (Limits, Places) {
    let limits = Limits::read(&mut section);
    if limits.held_per_stream > limits.held_per_worker {
        section.fail(
            "held_per_stream",
            "is more than `held_per_worker`: lower it, or raise the other",
        );
    }
    let streams = limits.streams;
    if let Some(above) = limits.streams_per_peer.filter(|&n| n > streams) {
        section.fail(
            "streams_per_peer",
            format!("is {above}, more than `streams` ({streams}): lower it"),
        );
    }
    (limits, section.finish())
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
    /// Entries of systemd's journal.
    Journald,
}

impl LogFormat {
    const WORDS: [(&'static str, LogFormat); 3] =
        [("text", LogFormat::Text), ("json", LogFormat::Json), ("journald", LogFormat::Journald)];

    /// Returns the word of the format in the configuration.
    pub fn word(self) -> &'static str {
        LogFormat::WORDS[self as usize].0
    }
}

section! {
    /// `[management]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ManagementSection in "management" {
        /// The API's socket, mode 0600, or 0660 where `[management.access]` has members.
        socket: PathBuf = socket_path(), or super::DEFAULT_SOCKET.into();
        /// On SIGTERM, time for streams to end before they are aborted.
        drain_timeout: Duration = duration(ms(0), HOUR), or ms(10_000);
        /// `ddpctl bench` may load peers from here.
        bench: bool = boolean(), or false;
        /// DPDK's own telemetry answers on its socket in the runtime directory of DPDK (`dpdk-telemetry.py -f ddpd`).
        dpdk_telemetry: bool = boolean(), or false;
        /// The flight recorder: what happens to each stream is kept, for `ddpctl why`. A stream to which nothing happens takes no memory of its worker for it, one with retransmissions, time-outs or errors at most 416 bytes, and 80 a minute after the last of them (over SCTP with `heartbeat`).
        recorder: bool = boolean(), or true;
        /// Streams that did not end in order of which the recorder keeps what happened; the oldest goes first.
        [reload] recorder_streams: u32 = int(0, 65_536), or 256;
        /// Bytes that their records may take together.
        [reload] recorder_size: u64 = size(64 << 10, 1 << 30), or 1 << 20;
        /// Log filter in `tracing`'s syntax, such as `info` or `info,control=debug`.
        [reload] log: String = log_filter(), or "info".to_owned();
        /// How lines are written to standard error: as text, as one JSON object each, or to systemd's journal with fields.
        log_format: LogFormat = one_of(&LogFormat::WORDS), or LogFormat::Text;
    } by_hand {
        /// Where observers are served.
        listen: ListenSection = read_listen, ListenSection::keys, written_keys::in_own_table;
        /// Who may do what by the API.
        access: AccessSection = read_access, AccessSection::keys, written_keys::in_own_table;
        /// Where changes by the API are recorded.
        audit: AuditSection = read_audit, AuditSection::keys, written_keys::in_own_table;
        /// What the process denies itself.
        sandbox: SandboxSection = read_sandbox, SandboxSection::keys, written_keys::in_own_table;
    }
}

section! {
    /// `[management.listen]`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ListenSection in "management.listen" {
        /// Address and TCP port of the kernel's for `/metrics`, `/livez` and `/readyz`, which are open to all who reach it; none unless it is given.
        address: Option<SocketAddr> = socket_address().or_absent(), or None;
    }
}

fn read_listen(management: &mut Section<'_, '_>) -> ListenSection {
    let mut section = management.table("listen");
    let listen = ListenSection::read(&mut section);
    section.finish();
    listen
}

fn socket_address() -> Rule<SocketAddr> {
    Rule::new(
        Shape::Text("an address and a port"),
        |address| format!("\"{address}\""),
        |value| {
            let text = string(value)?;
            address::parse_socket(&text).map_err(|error| {
                not_read(&text, error, "an address and a port such as \"127.0.0.1:9471\"")
            })
        },
    )
}

fn log_filter() -> Rule<String> {
    Rule::new(
        Shape::Text("a log filter"),
        |filter: &String| quoted(filter),
        |value| {
            let filter = string(value)?;
            match filter.parse::<tracing_subscriber::EnvFilter>() {
                Ok(_) => Ok(filter),
                Err(_) => Err(format!(
                    "is \"{}\", but must be a log filter such as \"info\" or \"info,control=debug\"",
                    filter.escape_debug()
                )),
            }
        },
    )
}

pub(super) fn management(mut section: Section<'_, '_>) -> (ManagementSection, Places) {
    (ManagementSection::read(&mut section), section.finish())
}

/// Returns the keys of these sections.
pub(super) fn descriptors() -> Vec<Key> {
    let (tcp, mpa) = (TcpSection::keys(), MpaReceiveSection::keys());
    [tcp, mpa, Limits::keys(), ManagementSection::keys()].concat()
}

fn write_keepalive(keepalive: &Option<Keepalive>, keys: &mut Keys) {
    keys.push(("keepalive", time_or_off(keepalive.map(|keepalive| keepalive.idle))));
    if let Some(keepalive) = keepalive {
        keys.push(("keepalive_interval", time(keepalive.interval)));
        keys.push(("keepalive_probes", keepalive.probes.into()));
    }
}

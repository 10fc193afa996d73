//! `[tcp]`, `[mpa]`, `[limits]` and `[management]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::address;

use super::errors::SectionSpan;
use super::key_values::{self, KeyValues, time_or_off_value, time_value};
use super::keys::{Key, keys, section};
use super::management::{AccessSection, AuditSection, read_access, read_audit};
use super::reader::Section;
use super::rule::{Rule, Shape};
use super::sandbox::{SandboxSection, read_sandbox};
use super::types::*;
use super::values::*;

const HOUR: Duration = Duration::from_secs(3600);
const TIB: u64 = 1 << 40;

fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

section! {
    /// `[tcp]`: TCP's parameters, for all streams.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TcpSection in "tcp" {
        /// Congestion control.
        congestion: Congestion = word_rule(Congestion::NAMED), or Congestion::Cubic;
        /// First retransmission time-out (RFC 6298 §2.1).
        initial_rto: Duration = duration_rule(millis(1), millis(60_000)), or millis(1000);
        /// Least retransmission time-out.
        min_rto: Duration = duration_rule(millis(1), millis(60_000)), or millis(200);
        /// A stream whose data stay unacknowledged for this long is aborted (RFC 9293 §3.8.3).
        user_timeout: Duration = duration_rule(millis(100), 24 * HOUR), or millis(120_000);
        /// Time in TIME-WAIT.
        time_wait: Duration = duration_rule(millis(0), millis(240_000)), or millis(10_000);
        /// Longest delay of an acknowledgement, at most 500 ms (RFC 9293 §3.8.6.3).
        delayed_ack: Duration = duration_rule(millis(0), millis(500)), or millis(20);
        /// Receive window of a new stream, bytes.
        receive_window: u32 = size32_rule(16 << 10, 1 << 30), or 4 << 20;
        /// The receive window grows by itself up to this size, bytes, while the peer uses more than half of it in a round
        /// trip: at least `receive_window`. Without markers it is no larger than `limits.held_per_stream`.
        receive_window_limit: u32 = size32_rule(16 << 10, 1 << 30), or 128 << 20;
        /// Most unacknowledged bytes, in at most one segment for each 512 of them, or 32768.
        send_window: u32 = size32_rule(16 << 10, 1 << 30), or 128 << 20;
        /// Selective acknowledgements (RFC 2018).
        sack: bool = boolean_rule(), or true;
        /// Find the path's MTU by probes where routers do not report it (RFC 4821).
        path_mtu_probing: bool = boolean_rule(), or true;
        /// Reports of a smaller MTU of an IPv4 path are not believed.
        min_path_mtu: u16 = integer_rule(68, 1280), or 576;
        /// After this time a size that a path did not carry is tried again (RFC 1191 §6.3).
        path_mtu_raise: Duration = duration_rule(millis(300_000), 24 * HOUR), or millis(600_000);
        /// Timestamps (RFC 7323).
        timestamps: bool = boolean_rule(), or true;
        /// Bursts are spread over the round trip where that is long enough.
        pacing: bool = boolean_rule(), or true;
        /// Overdue acknowledgements are asked for (RFC 8985 §7).
        tail_loss_probe: bool = boolean_rule(), or true;
        /// Explicit congestion notification (RFC 3168).
        ecn: bool = boolean_rule(), or true;
        /// A stream whose peer keeps its window closed for this long while data waits is aborted (RFC 6429 §4).
        zero_window_timeout: Option<Duration> =
            duration_or_off_rule(millis(1000), 24 * HOUR), or Some(millis(600_000));
        /// SYN cookies (RFC 4987): when there is no room to remember a SYN, always, or never.
        syn_cookies: SynCookieMode = word_rule(&SynCookieMode::NAMES), or SynCookieMode::Auto;
    } by_hand {
        /// Keepalive; `None` for off (RFC 9293 §3.8.4).
        keepalive: Option<Keepalive> =
            read_keepalive, keepalive_keys, write_keepalive;
    }
}

keys! { keepalive_keys in "tcp", reload: false {
    /// Silence before the first keepalive probe (RFC 9293 §3.8.4).
    keepalive: Option<Duration> = duration_or_off_rule(millis(1000), 24 * HOUR), "\"off\"";
    /// Time between keepalive probes.
    keepalive_interval: Duration = duration_rule(millis(100), HOUR), "\"10s\"";
    /// Unanswered keepalive probes after which the stream is aborted.
    keepalive_probes: u8 = integer_rule(1, 100), "5";
}}

pub(super) fn read_tcp(mut section: Section<'_, '_>) -> TcpSection {
    let mut tcp = TcpSection::read(&mut section);
    tcp.receive_window_limit =
        window_limit(&mut section, tcp.receive_window, tcp.receive_window_limit);
    if tcp.min_rto > tcp.initial_rto {
        section.report("min_rto", "is longer than `initial_rto`: lower it, or raise `initial_rto`");
    }
    if tcp.congestion.exact_ecn() && !tcp.ecn {
        section
            .report("congestion", "works only with ECN: set `ecn = true`, or choose another one");
    }
    section.finish();
    tcp
}

/// Returns the limit to which a receive window of `window` bytes may grow. Reports a configured limit below `window`.
pub(super) fn window_limit(section: &mut Section<'_, '_>, window: u32, limit: u32) -> u32 {
    if limit < window && section.contains("receive_window_limit") {
        section.report(
            "receive_window_limit",
            "is less than `receive_window`: raise it, or lower the other",
        );
    }
    limit.max(window)
}

fn read_keepalive(section: &mut Section<'_, '_>) -> Option<Keepalive> {
    let idle = section.or_default("keepalive", None, keepalive());
    let rest = ["keepalive_interval", "keepalive_probes"];
    let Some(idle) = idle else {
        if section.contains("keepalive") {
            section.mark_known(&rest);
        } else {
            section.refuse_keys(&rest, "without `keepalive`");
        }
        return None;
    };
    Some(Keepalive {
        idle,
        interval: section.or_default("keepalive_interval", millis(10_000), keepalive_interval()),
        probes: section.or_default("keepalive_probes", 5, keepalive_probes()),
    })
}

section! {
    /// `[mpa]`: how FPDUs are received.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MpaReceiveSection in "mpa" {
        /// What an FPDU with a wrong CRC does when it is next in order: the stream ends with MPA's error 2, or the
        /// segment counts as lost while none of the FPDU was acknowledged (RFC 5044 §8).
        on_bad_crc: BadCrcPolicy = word_rule(&BadCrcPolicy::NAMES), or BadCrcPolicy::Error;
        /// Longest FPDU, bytes with markers, at least the longest MTU. A stream may always hold one of it.
        max_fpdu: u32 = size32_rule(1 << 10, 128 << 10), or 64 << 10;
        /// Retransmissions that are waited for with `on_bad_crc = "retransmit"`.
        bad_crc_tries: u8 = integer_rule(1, 100), or 5;
    }
}

pub(super) fn read_mpa(mut section: Section<'_, '_>) -> (MpaReceiveSection, SectionSpan) {
    let mpa = MpaReceiveSection::read(&mut section);
    if mpa.on_bad_crc == BadCrcPolicy::Error && !section.contains("on_bad_crc") {
        section.refuse_keys(&["bad_crc_tries"], "without `on_bad_crc = \"retransmit\"`");
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
        [reload] memory: Option<u64> = size_rule(1 << 20, 64 * TIB).optional(), or None;
        /// Streams at a time, over all listeners and connects.
        [reload] streams: u32 = integer_rule(1, 10_000_000), or 4096;
        /// Accepted streams of one peer (an IPv4 address or a /64 of IPv6), per worker and over all listeners; without it
        /// there is no bound.
        streams_per_peer: Option<u32> = integer_rule(1, 10_000_000).optional(), or None;
        /// Regions at a time.
        [reload] regions: u32 = integer_rule(1, 1_000_000), or 1024;
        /// Silence after which the peer of a stream that has an exclusive region is probed, by TCP's keepalive or SCTP's
        /// heartbeat, unless `tcp.keepalive` or `sctp.heartbeat` is sooner. A peer that has crashed frees its regions.
        exclusive_keepalive: Option<Duration> =
            duration_or_off_rule(millis(1000), 24 * HOUR), or Some(millis(60_000));
        /// Bytes of all regions together.
        [reload] region_memory: u64 = size_rule(4096, 64 * TIB), or 16 << 30;
        /// Bytes that one stream may hold beyond a gap because they could not be placed. Without markers the receive
        /// window is no larger.
        held_per_stream: u64 = size_rule(64 << 10, TIB), or 4 << 20;
        /// The same for all streams of one worker, with the fragments of messages that SCTP keeps. One peer's fragments get
        /// half of it at most.
        held_per_worker: u64 = size_rule(64 << 10, TIB), or 64 << 20;
        /// Memory in which a worker's streams keep what they have sent until it is acknowledged, because its source may
        /// change. One segment more of each stream may be kept.
        kept_per_worker: u64 = size_rule(64 << 10, TIB), or 64 << 20;
        /// Bytes by which the receive windows of one worker's streams may grow together. No stream gets more of it than it
        /// leaves to the others.
        windows_per_worker: u64 = size_rule(64 << 10, TIB), or 1 << 30;
        /// Bytes of untagged receive buffers of one worker.
        buffers_per_worker: u64 = size_rule(4096, TIB), or 64 << 20;
        /// Entries of one interface's neighbour cache.
        neighbours: u32 = integer_rule(8, 1_000_000), or 1024;
        /// Events that are kept for readers: so many errors, so many failed attempts of peers, so many deliveries, and so
        /// many others.
        events: u32 = integer_rule(16, 10_000_000), or 4096;
        /// Bytes of untagged messages that are kept with them.
        event_memory: u64 = size_rule(4096, TIB), or 16 << 20;
        /// Longest body of an API request, bytes.
        api_body: u64 = size_rule(4096, 1 << 30), or 4 << 20;
    }
}

pub(super) fn read_limits(mut section: Section<'_, '_>) -> (Limits, SectionSpan) {
    let limits = Limits::read(&mut section);
    if limits.held_per_stream > limits.held_per_worker {
        section.report(
            "held_per_stream",
            "is more than `held_per_worker`: lower it, or raise the other",
        );
    }
    let streams = limits.streams;
    if let Some(above) = limits.streams_per_peer.filter(|&n| n > streams) {
        section.report(
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
    pub fn as_str(self) -> &'static str {
        LogFormat::WORDS[self as usize].0
    }
}

section! {
    /// `[management]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ManagementSection in "management" {
        /// The API's socket, mode 0600, or 0660 where `[management.access]` has members.
        socket: PathBuf = socket_path_rule(), or super::DEFAULT_SOCKET.into();
        /// On SIGTERM, time for streams to end before they are aborted.
        drain_timeout: Duration = duration_rule(millis(0), HOUR), or millis(10_000);
        /// `ddpctl bench` may load peers from here.
        bench: bool = boolean_rule(), or false;
        /// DPDK's own telemetry answers on its socket in the runtime directory of DPDK (`dpdk-telemetry.py -f ddpd`).
        dpdk_telemetry: bool = boolean_rule(), or false;
        /// The flight recorder: what happens to each stream is kept, for `ddpctl why`. A stream to which nothing happens takes no memory of its worker for it, one with retransmissions, time-outs or errors at most 416 bytes, and 80 a minute after the last of them (over SCTP with `heartbeat`).
        recorder: bool = boolean_rule(), or true;
        /// Streams that did not end in order of which the recorder keeps what happened; the oldest goes first.
        [reload] recorder_streams: u32 = integer_rule(0, 65_536), or 256;
        /// Bytes that their records may take together.
        [reload] recorder_size: u64 = size_rule(64 << 10, 1 << 30), or 1 << 20;
        /// Log filter in `tracing`'s syntax, such as `info` or `info,control=debug`.
        [reload] log: String = log_filter_rule(), or "info".to_owned();
        /// How lines are written to standard error: as text, as one JSON object each, or to systemd's journal with fields.
        log_format: LogFormat = word_rule(&LogFormat::WORDS), or LogFormat::Text;
    } by_hand {
        /// Where observers are served.
        listen: ListenSection = read_listen, ListenSection::keys, key_values::skip;
        /// Who may do what by the API.
        access: AccessSection = read_access, AccessSection::keys, key_values::skip;
        /// Where changes by the API are recorded.
        audit: AuditSection = read_audit, AuditSection::keys, key_values::skip;
        /// What the process denies itself.
        sandbox: SandboxSection = read_sandbox, SandboxSection::keys, key_values::skip;
    }
}

section! {
    /// `[management.listen]`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ListenSection in "management.listen" {
        /// Address and TCP port of the kernel's for `/metrics`, `/livez` and `/readyz`, which are open to all who reach it; none unless it is given.
        address: Option<SocketAddr> = socket_address_rule().optional(), or None;
    }
}

fn read_listen(management: &mut Section<'_, '_>) -> ListenSection {
    let mut section = management.table("listen");
    let listen = ListenSection::read(&mut section);
    section.finish();
    listen
}

fn socket_address_rule() -> Rule<SocketAddr> {
    Rule::new(
        Shape::Text("an address and a port"),
        |address| format!("\"{address}\""),
        |value| {
            let text = parse_string(value)?;
            address::parse_socket(&text).map_err(|error| {
                address_error(&text, error, "an address and a port such as \"127.0.0.1:9471\"")
            })
        },
    )
}

fn log_filter_rule() -> Rule<String> {
    Rule::new(
        Shape::Text("a log filter"),
        |filter: &String| quoted(filter),
        |value| {
            let filter = parse_string(value)?;
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

pub(super) fn read_management(mut section: Section<'_, '_>) -> (ManagementSection, SectionSpan) {
    (ManagementSection::read(&mut section), section.finish())
}

/// Returns the keys of `[tcp]`, `[mpa]`, `[limits]` and `[management]`.
pub(super) fn tuning_keys() -> Vec<Key> {
    let (tcp, mpa) = (TcpSection::keys(), MpaReceiveSection::keys());
    [tcp, mpa, Limits::keys(), ManagementSection::keys()].concat()
}

fn write_keepalive(keepalive: &Option<Keepalive>, keys: &mut KeyValues) {
    keys.push(("keepalive", time_or_off_value(keepalive.map(|keepalive| keepalive.idle))));
    if let Some(keepalive) = keepalive {
        keys.push(("keepalive_interval", time_value(keepalive.interval)));
        keys.push(("keepalive_probes", keepalive.probes.into()));
    }
}

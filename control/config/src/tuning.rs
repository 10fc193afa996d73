//! Reads `[tcp]`, `[mpa]`, `[limits]` and `[management]`.

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
        /// Congestion control algorithm.
        congestion: Congestion = word_rule(Congestion::NAMED), or Congestion::Cubic;
        /// Initial retransmission time-out (RFC 6298 §2.1).
        initial_rto: Duration = duration_rule(millis(1), millis(60_000)), or millis(1000);
        /// Minimum retransmission time-out.
        min_rto: Duration = duration_rule(millis(1), millis(60_000)), or millis(200);
        /// Time without acknowledgement of sent data after which the stream is aborted (RFC 9293 §3.8.3).
        user_timeout: Duration = duration_rule(millis(100), 24 * HOUR), or millis(120_000);
        /// Duration of TIME-WAIT.
        time_wait: Duration = duration_rule(millis(0), millis(240_000)), or millis(10_000);
        /// Maximum delay of an acknowledgement (RFC 9293 §3.8.6.3). Zero turns delaying off.
        delayed_ack: Duration = duration_rule(millis(0), millis(500)), or millis(20);
        /// Initial receive window, bytes.
        receive_window: u32 = size32_rule(16 << 10, 1 << 30), or 4 << 20;
        /// Maximum receive window, bytes, at least `receive_window`. The window grows up to it while the peer uses more
        /// than half of the window per round trip. Without markers, `limits.held_per_stream` also bounds it.
        receive_window_limit: u32 = size32_rule(16 << 10, 1 << 30), or 128 << 20;
        /// Send window, bytes: maximum of the unacknowledged data and of the congestion window. At most one segment per
        /// 512 bytes of the window is unacknowledged, or 32,768 segments if that is more.
        send_window: u32 = size32_rule(16 << 10, 1 << 30), or 128 << 20;
        /// Selective acknowledgements (RFC 2018).
        sack: bool = boolean_rule(), or true;
        /// Probing of the path MTU (RFC 4821): detects black holes where routers send no reports, and raises a reduced
        /// MTU again.
        path_mtu_probing: bool = boolean_rule(), or true;
        /// Minimum MTU accepted from an ICMP report about an IPv4 path, bytes. Smaller reports are ignored.
        min_path_mtu: u16 = integer_rule(68, 1280), or 576;
        /// Time after a reduction of the path MTU before larger sizes are tried again (RFC 1191 §6.3).
        path_mtu_raise: Duration = duration_rule(millis(300_000), 24 * HOUR), or millis(600_000);
        /// Timestamps (RFC 7323).
        timestamps: bool = boolean_rule(), or true;
        /// Pacing: spreads the congestion window over the round trip, on paths with a long enough RTT.
        pacing: bool = boolean_rule(), or true;
        /// Tail loss probes when acknowledgements are overdue (RFC 8985 §7).
        tail_loss_probe: bool = boolean_rule(), or true;
        /// Explicit congestion notification (RFC 3168).
        ecn: bool = boolean_rule(), or true;
        /// Time for which the peer may keep its window closed while data waits, before the stream is aborted (RFC 6429
        /// §4).
        zero_window_timeout: Option<Duration> =
            duration_or_off_rule(millis(1000), 24 * HOUR), or Some(millis(600_000));
        /// Use of SYN cookies (RFC 4987). `auto`: for a SYN that a limit on half-open streams would refuse. `always`:
        /// for every SYN. `never`: a SYN that a limit refuses is dropped.
        syn_cookies: SynCookieMode = word_rule(&SynCookieMode::NAMES), or SynCookieMode::Auto;
    } by_hand {
        /// Parameters of keepalive (RFC 9293 §3.8.4); `None` if it is off.
        keepalive: Option<Keepalive> =
            read_keepalive, keepalive_keys, write_keepalive;
    }
}

keys! { keepalive_keys in "tcp", reload: false {
    /// Idle time before the first keepalive probe (RFC 9293 §3.8.4).
    keepalive: Option<Duration> = duration_or_off_rule(millis(1000), 24 * HOUR), "\"off\"";
    /// Interval between keepalive probes.
    keepalive_interval: Duration = duration_rule(millis(100), HOUR), "\"10s\"";
    /// Number of unanswered keepalive probes after which the stream is aborted.
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
    /// `[mpa]`: parameters of the reception of FPDUs, for all streams.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MpaReceiveSection in "mpa" {
        /// Reaction to a wrong CRC in the next FPDU in order. `error`: ends the stream with MPA error 2. `retransmit`:
        /// drops the segment as if it were lost, if no byte of the FPDU was acknowledged (RFC 5044 §8).
        on_bad_crc: BadCrcPolicy = word_rule(&BadCrcPolicy::NAMES), or BadCrcPolicy::Error;
        /// Largest FPDU to receive, bytes with markers, at least the largest MTU. A stream can always hold one FPDU of
        /// this size.
        max_fpdu: u32 = size32_rule(1 << 10, 128 << 10), or 64 << 10;
        /// Maximum number of retransmissions of one FPDU because of wrong CRCs, with `on_bad_crc = "retransmit"`. A
        /// further wrong CRC is an error.
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
        /// Memory ceiling of the appliance, bytes. It includes regions, data of jobs, the workers' buffers, and per
        /// worker 4 KiB for each of `limits.streams` streams. Regions in reserved hugepages do not count. Without the
        /// key, or if the machine has less memory, the ceiling is 75 % of the appliance's share: the smaller of the RAM
        /// and the control group's limit, less packet pools outside of hugepages, divided by the number of appliances
        /// in the process. If buffers and streams exceed half of the ceiling, the bounds of the buffers
        /// (`buffers_per_worker`, `held_per_worker`, `kept_per_worker`) are lowered in proportion. Together they keep
        /// at least an eighth of the ceiling.
        [reload] memory: Option<u64> = size_rule(1 << 20, 64 * TIB).optional(), or None;
        /// Maximum number of streams, over all listeners and connects.
        [reload] streams: u32 = integer_rule(1, 10_000_000), or 4096;
        /// Maximum number of accepted streams of one peer (an IPv4 address or a /64 of IPv6), per worker and over all
        /// listeners. Without the key there is no limit.
        streams_per_peer: Option<u32> = integer_rule(1, 10_000_000).optional(), or None;
        /// Maximum number of regions. Regions and jobs may also use at most three quarters of the memory mappings that
        /// `vm.max_map_count` allows the process. A region uses one mapping; in shared memory, two. Up to 64 locked
        /// regions of similar size, each at most 16 KiB, share a mapping, except in shared memory or hugepages.
        [reload] regions: u32 = integer_rule(1, 1_000_000), or 1024;
        /// Idle time after which the peer of a stream with an exclusive region is probed, by TCP keepalive or SCTP
        /// heartbeat, unless `tcp.keepalive` or `sctp.heartbeat` is shorter. The probes detect a crashed peer, so that
        /// its regions are freed.
        exclusive_keepalive: Option<Duration> =
            duration_or_off_rule(millis(1000), 24 * HOUR), or Some(millis(60_000));
        /// Maximum total size of all regions, bytes.
        [reload] region_memory: u64 = size_rule(4096, 64 * TIB), or 16 << 30;
        /// Maximum bytes that one stream holds beyond a gap because they could not be placed. Without markers, the
        /// limit also bounds the receive window.
        held_per_stream: u64 = size_rule(64 << 10, TIB), or 4 << 20;
        /// Maximum bytes that all streams of one worker hold beyond gaps, incomplete SCTP messages included. Fragments
        /// of one peer use at most half of this limit.
        held_per_worker: u64 = size_rule(64 << 10, TIB), or 64 << 20;
        /// Maximum memory for copies of sent data per worker, bytes. Data whose source may change before its
        /// acknowledgement is copied when it is sent. A copy is kept until the data is acknowledged. A stream without
        /// copies may always send one segment, even if the limit is exceeded.
        kept_per_worker: u64 = size_rule(64 << 10, TIB), or 64 << 20;
        /// Maximum total growth of all receive windows of one worker, bytes. An increase is granted only if the
        /// total growth of the window is then at most the unused rest of this limit.
        windows_per_worker: u64 = size_rule(64 << 10, TIB), or 1 << 30;
        /// Maximum memory for untagged receive buffers per worker, bytes.
        buffers_per_worker: u64 = size_rule(4096, TIB), or 64 << 20;
        /// Maximum number of neighbour cache entries per interface.
        neighbours: u32 = integer_rule(8, 1_000_000), or 1024;
        /// Number of events kept in each of five classes: changes by the operator, errors and warnings, failed attempts
        /// of peers, deliveries, and all other events.
        events: u32 = integer_rule(16, 10_000_000), or 4096;
        /// Maximum message data kept in the event log, bytes.
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

/// Format of the log, and its destination.
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

    /// Returns the format's name in the configuration: `text`, `json` or `journald`.
    pub fn as_str(self) -> &'static str {
        LogFormat::WORDS[self as usize].0
    }
}

section! {
    /// `[management]`: the API, the log and the flight recorder.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ManagementSection in "management" {
        /// Path of the API's socket. Its mode is 0600, or 0660 if `[management.access]` has members.
        socket: PathBuf = socket_path_rule(), or super::DEFAULT_SOCKET.into();
        /// Time for streams to end after SIGTERM or SIGINT, before they are aborted.
        drain_timeout: Duration = duration_rule(millis(0), HOUR), or millis(10_000);
        /// True to allow `ddpctl bench`, which loads peers from this appliance.
        bench: bool = boolean_rule(), or false;
        /// True to enable DPDK's telemetry socket, in DPDK's runtime directory (`dpdk-telemetry.py -f ddpd`).
        dpdk_telemetry: bool = boolean_rule(), or false;
        /// Flight recorder: keeps the events of each stream for `ddpctl why`. A stream without retransmissions,
        /// time-outs and errors needs no memory at its worker. With such events it needs at most 416 bytes, and 80
        /// bytes one minute after the last event (over SCTP only with `heartbeat`).
        recorder: bool = boolean_rule(), or true;
        /// Number of ended streams whose records are kept: streams that did not close gracefully. The oldest are
        /// dropped first.
        [reload] recorder_streams: u32 = integer_rule(0, 65_536), or 256;
        /// Maximum memory for the records of ended streams, bytes.
        [reload] recorder_size: u64 = size_rule(64 << 10, 1 << 30), or 1 << 20;
        /// Log filter in the syntax of `tracing`, such as `info` or `info,control=debug`.
        [reload] log: String = log_filter_rule(), or "info".to_owned();
        /// Format of the log: text or one JSON object per line on standard error, or entries of systemd's journal with
        /// fields.
        log_format: LogFormat = word_rule(&LogFormat::WORDS), or LogFormat::Text;
    } by_hand {
        /// HTTP endpoint for monitoring.
        listen: ListenSection = read_listen, ListenSection::keys, key_values::skip;
        /// Roles of the API's callers.
        access: AccessSection = read_access, AccessSection::keys, key_values::skip;
        /// Audit of API calls.
        audit: AuditSection = read_audit, AuditSection::keys, key_values::skip;
        /// Restrictions of the process.
        sandbox: SandboxSection = read_sandbox, SandboxSection::keys, key_values::skip;
    }
}

section! {
    /// `[management.listen]`: the HTTP endpoint for monitoring.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ListenSection in "management.listen" {
        /// Address and port of the kernel's TCP on which `/metrics`, `/livez` and `/readyz` are served, without access
        /// control. Without the key, they are not served.
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

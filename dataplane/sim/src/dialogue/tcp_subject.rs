//! TCP alone under test (`set stack tcp`). Delivered bytes are compared with the script's inbound stream. Bytes to send
//! come from the script's outbound stream.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use tcp_lite::seam::{SegmentSource, SpanOutcome, SpanSink};
use tcp_lite::tcp::{self, Config, Connection, FourTuple, Keepalive, SeqNumber};

use super::run::{Batch, Settings};
use super::segments::{LOCAL_PORT, PEER_PORT, Subject};
use ::dialogue::script::{Args, ScriptError, number, switch};
use ::dialogue::streams::Streams;

/// A bare TCP connection and the upper layer of the test.
pub(super) struct TcpSubject {
    config: Arc<Config>,
    mss: u16,
    v6: bool,
    connection: Option<Connection>,
    user: TcpUser,
    /// Result of the last ICMP report.
    last_icmp: tcp::TooBigOutcome,
}

/// Returns the addresses and ports of a dialogue, over IPv6 if `v6`, otherwise over IPv4.
pub(super) fn tuple(v6: bool) -> FourTuple {
    let ip = |last: u8| match v6 {
        true => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into(),
        false => IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)),
    };
    let address = |last, port| SocketAddr::new(ip(last), port);
    FourTuple { local: address(1, LOCAL_PORT), remote: address(2, PEER_PORT) }
}

/// Returns `config` with ECN disabled, the default of dialogues.
pub(super) fn without_ecn(mut config: Config) -> Config {
    config.extensions.ecn = false;
    config
}

/// Applies a TCP setting. Returns false if `key` is not a TCP setting.
pub(super) fn tcp_setting(config: &mut Config, key: &str, value: &str) -> Result<bool, String> {
    let seconds = || -> Result<Duration, String> {
        let n: f64 = value.parse().map_err(|_| format!("`{value}` is not a number of seconds"))?;
        Duration::try_from_secs_f64(n).map_err(|e| e.to_string())
    };
    match key {
        "initial-rto" => config.rto.initial = seconds()?,
        "min-rto" => config.rto.min = seconds()?,
        "max-rto" => config.rto.max = seconds()?,
        "retransmission-limit" => config.limits.retransmission = seconds()?,
        "syn-limit" => config.limits.syn = seconds()?,
        "time-wait" => config.limits.time_wait = seconds()?,
        "fin-wait-2" => config.limits.fin_wait_2 = seconds()?,
        "push-segments" => config.push_segments = switch(value)?,
        "ack-pushed" => config.acks.pushed = switch(value)?,
        "delayed-ack" => config.acks.delay = seconds()?,
        "initial-window" => config.initial_window = number(value)? as u32,
        "syn-ack-retries" => config.limits.syn_ack_retries = number(value)? as u32,
        "zero-window-limit" => config.limits.zero_window = Some(seconds()?),
        "receive-window" => config.receive_window = number(value)? as u32,
        "max-ranges" => config.max_ranges = number(value)? as usize,
        "path-mtu-probing" => config.path_mtu.probing = switch(value)?,
        "path-mtu-raise" => config.path_mtu.raise = seconds()?,
        "min-path-mtu" => config.path_mtu.min = number(value)? as u16,
        "min-mss" => config.min_mss = number(value)? as u16,
        "challenge-acks" => config.challenge_acks_per_second = number(value)? as u32,
        "window-scale" => config.extensions.window_scale = switch(value)?,
        "sack" => config.extensions.sack = switch(value)?,
        "timestamps" => config.extensions.timestamps = switch(value)?,
        "ecn" => config.extensions.ecn = switch(value)?,
        "tail-loss-probe" => config.tail_loss_probe = switch(value)?,
        "pacing" => config.pacing = switch(value)?,
        "congestion" => {
            let named = tcp::CongestionControl::from_name(value);
            config.congestion = named.ok_or_else(|| format!("`{value}` is not a controller"))?;
        }
        "keepalive" => {
            let mut n = value.split_whitespace().map(number);
            let mut next = || n.next().unwrap_or(Err("IDLE INTERVAL PROBES".into()));
            config.keepalive = Some(Keepalive {
                idle: Duration::from_secs(next()?),
                interval: Duration::from_secs(next()?),
                probes: next()? as u8,
            });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

impl Subject for TcpSubject {
    fn new(settings: &Settings, streams: &Streams) -> Result<Self, ScriptError> {
        let mut config = without_ecn(Config::default());
        let mut mss = 1460;
        let mut v6 = false;
        settings.apply(|key, value| {
            if key == "mss" {
                mss = number(value)? as u16;
            } else if key == "ip" {
                v6 = value == "6";
            } else if !tcp_setting(&mut config, key, value)? {
                return Err(format!("`{key}` is not a setting of plain TCP"));
            }
            Ok(())
        })?;
        let up = TcpUser {
            inbound: streams.inbound().to_vec(),
            outbound: streams.outbound().to_vec(),
            free_space: u64::MAX,
            ..TcpUser::default()
        };
        Ok(TcpSubject {
            config: Arc::new(config),
            mss,
            v6,
            connection: None,
            user: up,
            last_icmp: tcp::TooBigOutcome::NotSmaller,
        })
    }

    fn connect(&mut self, now: Instant, iss: SeqNumber) -> Result<(), String> {
        let config = Arc::clone(&self.config);
        self.connection = Some(Connection::connect(config, tuple(self.v6), iss, self.mss, now));
        Ok(())
    }

    fn accept(&mut self, now: Instant, iss: SeqNumber, syn: &tcp::Segment<'_>) {
        let config = Arc::clone(&self.config);
        self.connection = Some(Connection::accept(config, tuple(self.v6), iss, self.mss, syn, now));
        self.user.restart();
    }

    fn is_open(&self) -> bool {
        self.connection.as_ref().is_some_and(|c| c.state() != tcp::State::Closed)
    }

    fn reopens(&self, seg: &tcp::Segment<'_>) -> bool {
        self.connection.as_ref().is_some_and(|c| c.may_reopen(seg))
    }

    fn input(&mut self, now: Instant, seg: &tcp::Segment<'_>) -> Result<(), String> {
        let connection = self.connection.as_mut().ok_or("no connection")?;
        connection.input(now, seg, &mut self.user).map_err(|reason| reason.name().to_owned())
    }

    fn transmit(&mut self, now: Instant, tx: &mut Batch) {
        if let Some(connection) = &mut self.connection {
            connection.poll_transmit(now, &mut self.user, tx);
        }
    }

    fn timeout(&self) -> Option<Instant> {
        self.connection.as_ref().and_then(Connection::poll_timeout)
    }

    fn handle_timeout(&mut self, now: Instant) {
        if let Some(connection) = &mut self.connection {
            connection.handle_timeout(now, &mut self.user);
        }
    }

    fn execute(&mut self, now: Instant, args: &Args, streams: &Streams) -> Result<(), String> {
        let connection = self.connection.as_mut().ok_or("there is no connection")?;
        match args.positional(0) {
            Some("write") => {
                // All bytes up to the end of the piece may be sent now.
                let name = args.positional(1).ok_or("do write PIECE")?;
                let end = streams.position(&format!("{name}.end"))? - 1;
                self.user.written = self.user.written.max(end as usize);
            }
            Some("room") => self.user.free_space = args.number("bytes", u64::MAX)?,
            Some("close") => connection.close(),
            Some("abort") => connection.abort(now),
            Some("mtu") => connection.set_path_mss(now, args.number("mss", 0)? as u16),
            Some("too-big") => {
                let (mtu, seq) = too_big(args, streams, connection.iss())?;
                self.last_icmp = connection.on_packet_too_big(now, mtu, seq);
            }
            other => {
                return Err(format!(
                    "`{other:?}` is not one of write room close abort mtu too-big"
                ));
            }
        }
        Ok(())
    }

    fn next_event(&mut self) -> Option<String> {
        self.connection.as_mut()?.poll_event().map(|event| format!("{event:?}"))
    }

    fn check(&self, key: &str, value: &str, streams: &Streams) -> Result<(), String> {
        let connection = self.connection.as_ref().ok_or("there is no connection")?;
        let got = match key {
            "state" => connection.state().name().to_owned(),
            "emss" => connection.emss().to_string(),
            "icmp" => format!("{:?}", self.last_icmp),
            "path-mtu-probes" => connection.stats().path_mtu.probes.to_string(),
            "black-holes" => connection.stats().path_mtu.black_holes.to_string(),
            "cwnd" => connection.info().cwnd.to_string(),
            "ecn" => connection.info().ecn.to_string(),
            "alpha" => match connection.marked_fraction() {
                Some(alpha) => format!("{alpha:.4}"),
                None => "none".to_owned(),
            },
            "flight" => connection.info().flight.to_string(),
            "ssthresh" => connection.info().ssthresh.to_string(),
            "lost" => connection.stats().loss.segments_lost.to_string(),
            "recoveries" => connection.stats().loss.fast_recoveries.to_string(),
            "probes" => connection.stats().loss.tail_loss_probes.to_string(),
            "repaired" => connection.stats().loss.tail_losses_repaired.to_string(),
            "d-sacks" => connection.stats().loss.d_sacks_in.to_string(),
            "undone" => {
                let stats = connection.stats();
                let by = (
                    stats.loss.undone_by_frto,
                    stats.loss.undone_by_timestamp,
                    stats.loss.undone_by_d_sack,
                );
                match by {
                    (0, 0, 0) => "no",
                    (1, 0, 0) => "frto",
                    (0, 1, 0) => "timestamp",
                    (0, 0, 1) => "d-sack",
                    _ => "often",
                }
                .to_owned()
            }
            "retransmitted" => connection.stats().loss.segments_retransmitted.to_string(),
            "timeouts" => connection.stats().loss.timeouts.to_string(),
            "received" => {
                let position = streams.position(value)? as u64;
                return check_equal(key, self.user.in_order + 1, position);
            }
            "acknowledged" => {
                let position = streams.position(value)? as u64;
                return check_equal(key, self.user.acknowledged + 1, position);
            }
            other => return Err(format!("`{other}` cannot be checked")),
        };
        if got == value { Ok(()) } else { Err(format!("{key} is {got}, expected {value}")) }
    }

    fn fault(&self) -> Option<String> {
        self.user.fault.clone()
    }
}

/// Parses `do too-big mtu=N seq=POSITION`: a router's ICMP report about the segment that begins at this position.
pub(super) fn too_big(
    args: &Args,
    streams: &Streams,
    iss: SeqNumber,
) -> Result<(u16, SeqNumber), String> {
    let seq = args.get("seq").ok_or("do too-big mtu= seq=")?;
    let seq = iss.0.wrapping_add(streams.position(seq)?);
    Ok((args.number("mtu", 0)? as u16, SeqNumber(seq)))
}

fn check_equal(key: &str, got: u64, expected: u64) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{key} is {got}, expected {expected}")) }
}

/// Upper layer of the connection. It compares delivered bytes with the stream and checks the positions in TCP's calls.
#[derive(Default)]
struct TcpUser {
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    /// Number of bytes of `outbound` that may be sent.
    written: usize,
    /// Number of bytes of `outbound` passed to TCP.
    filled: usize,
    acknowledged: u64,
    in_order: u64,
    /// Accepted ranges of `inbound`, keyed by their start.
    accepted_ranges: BTreeMap<u64, u64>,
    free_space: u64,
    emss: usize,
    fault: Option<String>,
}

impl TcpUser {
    fn restart(&mut self) {
        self.written = 0;
        self.filled = 0;
        self.acknowledged = 0;
        self.in_order = 0;
        self.accepted_ranges.clear();
        self.free_space = u64::MAX;
    }

    fn record_fault(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }
}

impl SpanSink for TcpUser {
    fn receive_span(
        &mut self,
        _now: Instant,
        offset: u64,
        bytes: &[u8],
        in_order: bool,
    ) -> SpanOutcome {
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if self.inbound.get(start..end) != Some(bytes) {
            self.record_fault(format!("the delivered bytes {start}..{end} differ from the stream"));
        }
        if self.accepted_ranges.iter().any(|(&from, &to)| from < end as u64 && offset < to) {
            self.record_fault(format!("bytes {start}..{end} were delivered twice"));
        }
        if in_order != (offset == self.in_order) {
            self.record_fault(format!(
                "span at {offset} in order: {in_order}, so far {}",
                self.in_order
            ));
        }
        self.accepted_ranges.insert(offset, end as u64);
        SpanOutcome::All
    }

    fn advance_in_order(&mut self, _now: Instant, offset: u64) {
        let reached = self
            .accepted_ranges
            .iter()
            .fold(0, |at, (&from, &to)| if from <= at { at.max(to) } else { at });
        if offset != reached {
            self.record_fault(format!("in order until {offset}, but taken until {reached}"));
        }
        self.in_order = offset;
    }

    fn room(&self) -> u64 {
        self.free_space
    }
}

impl SegmentSource for TcpUser {
    fn has_data(&self) -> bool {
        self.filled < self.written
    }

    fn fill(&mut self, offset: u64, emss: usize, _in_flight: bool, out: &mut [u8]) -> usize {
        if offset != self.filled as u64 || emss != self.emss {
            self.record_fault(format!("fill({offset}, {emss}, {} bytes)", out.len()));
        }
        let n = out.len().min(self.written - self.filled);
        out[..n].copy_from_slice(&self.outbound[self.filled..self.filled + n]);
        self.filled += n;
        n
    }

    fn fill_probe(&mut self, offset: u64, emss: usize, out: &mut [u8]) -> usize {
        if emss != self.emss || out.len() <= emss {
            self.record_fault(format!("probe({offset}, {emss}, {} bytes)", out.len()));
        }
        if self.written - self.filled < out.len() {
            return 0;
        }
        let len = out.len();
        self.fill(offset, emss, true, out).min(len)
    }

    fn refill(&mut self, offset: u64, out: &mut [u8]) {
        let (start, end) = (offset as usize, offset as usize + out.len());
        if end > self.filled || offset < self.acknowledged {
            self.record_fault(format!("refill of {start}..{end}"));
            return;
        }
        out.copy_from_slice(&self.outbound[start..end]);
    }

    fn on_acknowledged(&mut self, offset: u64) {
        if offset < self.acknowledged || offset > self.filled as u64 {
            self.record_fault(format!("acknowledged until {offset}"));
        }
        self.acknowledged = offset;
    }

    fn on_emss_changed(&mut self, emss: usize) {
        self.emss = emss;
    }
}

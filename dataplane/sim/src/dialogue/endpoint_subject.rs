//! A whole TCP endpoint under test (`set stack mpa`): TCP, MPA and DDP with one region.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::rdmap::{self, WorkRequest};
use ddp::{
    Access, BufferPool, Cookie, Message, PdId, Qn, QueueConfig, RegionMemory, Source, Stag,
    StagEntry, StagTable, StreamConfig, StreamId, TaggedOffset, VecMemory, VersionPolicy,
};
use tcp_lite::endpoint::{Context, Endpoint, EndpointConfig, Event, OpenRequest, UlpConfig};
use tcp_lite::mpa::{BadCrcPolicy, HoldBudget, Peer, Revision, Revisions, RtrSet};
use tcp_lite::tcp::{self, SeqNumber};

use super::run::{Batch, Settings};
use super::segments::Subject;
use super::tcp_subject::{tcp_setting, too_big, tuple, without_ecn};
use ::dialogue::script::{Args, ScriptError, number, switch};
use ::dialogue::streams::{Streams, parse_bytes, pattern, pattern_bytes};

const PD: PdId = PdId(1);
/// Limit of untagged buffers in use, bytes.
const POOL: u64 = 1 << 20;

/// An endpoint and the worker's state that it borrows.
pub(super) struct EndpointSubject {
    setup: StreamSetup,
    config: Arc<EndpointConfig>,
    endpoint: Option<Endpoint<VecMemory>>,
    stags: StagTable<VecMemory>,
    buffers: BufferPool,
    hold: HoldBudget,
    memory: VecMemory,
    /// Result of the last ICMP report.
    last_icmp: tcp::TooBigOutcome,
    /// Events of the endpoint that no `event` line has consumed yet.
    events: VecDeque<String>,
}

/// Settings of the endpoint under test, parsed from `set` lines.
struct StreamSetup {
    mss: u16,
    hold: u64,
    stag: u32,
    base_to: u64,
    len: usize,
    access: Access,
    private_data: Vec<u8>,
    stream: StreamConfig,
    /// Configuration of RDMAP; `None`: bare DDP.
    rdmap: Option<rdmap::Config>,
    endpoint: EndpointConfig,
    /// True if the user closes only by `do close`, not when the peer closes.
    keep_open: bool,
}

impl Default for StreamSetup {
    fn default() -> Self {
        StreamSetup {
            mss: 1460,
            hold: 1 << 20,
            stag: 16,
            base_to: 0,
            len: 64 * 1024,
            access: Access::REMOTE_WRITE,
            private_data: Vec::new(),
            stream: StreamConfig::default(),
            rdmap: None,
            endpoint: EndpointConfig {
                tcp: Arc::new(without_ecn(tcp::Config::default())),
                ..EndpointConfig::default()
            },
            keep_open: false,
        }
    }
}

impl StreamSetup {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let tcp = Arc::make_mut(&mut self.endpoint.tcp);
        if tcp_setting(tcp, key, value)? {
            return Ok(());
        }
        let seconds = || -> Result<Duration, String> {
            let n: f64 =
                value.parse().map_err(|_| format!("`{value}` is not a number of seconds"))?;
            Duration::try_from_secs_f64(n).map_err(|e| e.to_string())
        };
        let mpa = &mut self.endpoint.mpa;
        match key {
            "mss" => self.mss = number(value)? as u16,
            "hold" => self.hold = number(value)?,
            "markers" => mpa.markers = switch(value)?,
            "crc" => mpa.crc = switch(value)?,
            "initiate" => mpa.initiate = revision(value)?,
            "revisions" => {
                let all: Vec<Revision> =
                    value.split_whitespace().map(revision).collect::<Result<_, _>>()?;
                mpa.revisions = Revisions {
                    draft: all.contains(&Revision::Draft),
                    zero: all.contains(&Revision::Zero),
                    one: all.contains(&Revision::One),
                    two: all.contains(&Revision::Two),
                };
            }
            "peer" => mpa.peer = Peer::from_name(value).ok_or("no such peer")?,
            "peer-to-peer" => mpa.enhanced.peer_to_peer = switch(value)?,
            "required-ord" => mpa.enhanced.required_ord = number(value)? as u16,
            "rtr" => {
                let has = |name| value.split_whitespace().any(|word| word == name);
                let (send, write, read) = (has("send"), has("write"), has("read"));
                mpa.enhanced.rtr = RtrSet { send, write, read };
            }
            "ulp" => {
                let depths = value.strip_prefix("rdmap ").ok_or("ulp rdmap IRD ORD")?;
                let mut n = depths.split_whitespace().map(number);
                let mut next = || n.next().unwrap_or(Err("ulp rdmap IRD ORD".into()));
                let (ird, ord) = (next()? as u16, next()? as u16);
                self.rdmap = Some(rdmap::Config { ird, ord, ..rdmap::Config::default() });
            }
            "startup-timeout" => mpa.startup_timeout = seconds()?,
            "max-fpdu" => mpa.max_fpdu = number(value)? as u32,
            "bad-crc-tries" => mpa.bad_crc_tries = number(value)? as u8,
            "hold-limit" => mpa.hold_limit = number(value)? as u32,
            "on-bad-crc" if value == "error" => mpa.on_bad_crc = BadCrcPolicy::Error,
            "on-bad-crc" if value == "retransmit" => mpa.on_bad_crc = BadCrcPolicy::Retransmit,
            "teardown-timeout" => self.endpoint.policy.teardown_timeout = seconds()?,
            "half-closed-timeout" => {
                self.endpoint.policy.half_closed_timeout = Some(seconds()?);
            }
            "idle-timeout" => self.endpoint.policy.idle_timeout = Some(seconds()?),
            "on-peer-close" if value == "keep" => {
                self.keep_open = true;
            }
            "last-message" => self.endpoint.policy.last_message = switch(value)?,
            "private-data" => self.private_data = parse_bytes(value)?,
            "ddp-version" if value == "0" => self.stream.version = VersionPolicy::V0,
            "region" => {
                let mut n = value.split_whitespace().map(number);
                let mut next = || n.next().unwrap_or(Err("region STAG BASE LEN".into()));
                (self.stag, self.base_to) = (next()? as u32, next()?);
                self.len = next()? as usize;
            }
            "access" if value == "none" => self.access = Access::NONE,
            "queue" => {
                let mut n = value.split_whitespace().map(number);
                let mut next = || n.next().unwrap_or(Err("queue QN BUFFERS SIZE".into()));
                self.stream.queues.push(QueueConfig {
                    qn: Qn(next()? as u32),
                    buffers: next()? as u32,
                    buffer_size: next()? as u32,
                });
            }
            other => return Err(format!("`{other}` is not a setting, or cannot be `{value}`")),
        }
        Ok(())
    }
}

impl StreamSetup {
    fn ulp(&self) -> UlpConfig {
        match &self.rdmap {
            Some(config) => config.clone().into(),
            None => self.stream.clone().into(),
        }
    }
}

fn revision(text: &str) -> Result<Revision, String> {
    match text {
        "startkey" => Ok(Revision::Draft),
        "0" => Ok(Revision::Zero),
        "1" => Ok(Revision::One),
        "2" => Ok(Revision::Two),
        other => Err(format!("`{other}` is not one of startkey, 0, 1, 2")),
    }
}

impl EndpointSubject {
    fn with<T>(
        &mut self,
        f: impl FnOnce(&mut Endpoint<VecMemory>, &mut Context<'_, VecMemory>) -> T,
    ) -> Result<T, String> {
        let EndpointSubject { endpoint, stags, buffers, hold, .. } = self;
        let endpoint = endpoint.as_mut().ok_or("there is no endpoint")?;
        Ok(f(endpoint, &mut Context { stags, buffers, hold }))
    }

    /// Moves the endpoint's events to `events`. If the peer has closed, closes too, as the user does (RFC 5041 §6.2.1).
    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::poll_event) {
            let peer_closed = matches!(
                event,
                Event::Ddp(ddp::Event::PeerClosed { .. })
                    | Event::Rdmap(rdmap::Event::PeerClosed { .. })
            );
            if let Some(endpoint) = &mut self.endpoint
                && peer_closed
                && !self.setup.keep_open
            {
                endpoint.shutdown(now);
            }
            self.events.push_back(format!("{event:?}"));
        }
    }

    fn post(&mut self, args: &Args) -> Result<(), String> {
        let to = args.number("to", 0)?;
        let len = args.number("len", 0)? as usize;
        let source = Source::Bytes(Arc::from(pattern_bytes(to, len)));
        let message = match args.positional(1) {
            Some("tagged") => Message::Tagged {
                stag: Stag(args.number("stag", 0)? as u32),
                to: TaggedOffset(to),
                rsvd_ulp: args.number("rsvd", 0)? as u8,
                source,
                cookie: Cookie::user(args.number("cookie", 0)?),
            },
            Some("untagged") => Message::Untagged {
                qn: Qn(args.number("qn", 0)? as u32),
                rsvd_ulp: [0; 5],
                source,
                cookie: Cookie::user(args.number("cookie", 0)?),
            },
            other => return Err(format!("do post tagged|untagged, not {other:?}")),
        };
        self.with(|endpoint, _| endpoint.post(message))?.map_err(|e| e.to_string())
    }

    fn post_rdmap(&mut self, args: &Args) -> Result<(), String> {
        let (to, cookie) = (args.number("to", 0)?, args.number("cookie", 0)?);
        let len = args.number("len", 0)? as usize;
        let source = Source::Bytes(Arc::from(pattern_bytes(to, len)));
        let request = match args.positional(1) {
            Some("send") => {
                let (solicited, invalidate) = (false, None);
                WorkRequest::Send { source, solicited, invalidate, cookie: Cookie::user(cookie) }
            }
            Some("write") => {
                let stag = Stag(args.number("stag", 0)? as u32);
                WorkRequest::Write {
                    stag,
                    to: TaggedOffset(to),
                    source,
                    cookie: Cookie::user(cookie),
                }
            }
            other => return Err(format!("do post send|write, not {other:?}")),
        };
        self.with(|endpoint, _| endpoint.post_rdmap(request))?.map_err(|e| e.to_string())
    }

    /// Checks the bytes of the region in the TO range `FROM..TO`: the pattern if `placed`, otherwise zeros.
    fn check_region(&self, range: &str, placed: bool) -> Result<(), String> {
        let (from, to) = range.split_once("..").ok_or("FROM..TO")?;
        let (from, to) = (number(from)?, number(to)?);
        let memory = self.memory.to_vec();
        for at in from..to {
            let offset = at
                .checked_sub(self.setup.base_to)
                .ok_or("before the start of the region")? as usize;
            let got = *memory.get(offset).ok_or("beyond the end of the region")?;
            let expected = if placed { pattern(at) } else { 0 };
            if got != expected {
                return Err(format!("the byte at TO {at} is {got:#04x}, not {expected:#04x}"));
            }
        }
        Ok(())
    }
}

impl Subject for EndpointSubject {
    fn new(settings: &Settings, _streams: &Streams) -> Result<Self, ScriptError> {
        let mut setup = StreamSetup::default();
        settings.apply(|key, value| setup.set(key, value))?;
        let memory = VecMemory::new(setup.len);
        let mut stags = StagTable::new();
        let entry = StagEntry {
            stag: Stag(setup.stag),
            pd: PD,
            stream: None,
            base_to: TaggedOffset(setup.base_to),
            len: memory.len(),
            access: setup.access,
            memory: memory.clone(),
            memory_offset: 0,
        };
        stags.insert(entry).map_err(|e| ScriptError { line: 1, message: e.to_string() })?;
        Ok(EndpointSubject {
            config: Arc::new(setup.endpoint.clone()),
            endpoint: None,
            stags,
            buffers: BufferPool::new(POOL),
            hold: HoldBudget::new(setup.hold),
            memory,
            setup,
            last_icmp: tcp::TooBigOutcome::NotSmaller,
            events: VecDeque::new(),
        })
    }

    fn connect(&mut self, now: Instant, iss: SeqNumber) -> Result<(), String> {
        let open = OpenRequest {
            pd: PD,
            ulp: self.setup.ulp(),
            private_data: self.setup.private_data.clone(),
        };
        let (config, mss) = (Arc::clone(&self.config), self.setup.mss);
        let endpoint = Endpoint::connect(config, StreamId(1), tuple(false), iss, mss, now, open);
        self.endpoint = Some(endpoint.map_err(|e| e.to_string())?);
        Ok(())
    }

    fn accept(&mut self, now: Instant, iss: SeqNumber, syn: &tcp::Segment<'_>) {
        let (config, mss) = (Arc::clone(&self.config), self.setup.mss);
        self.endpoint =
            Some(Endpoint::accept(config, StreamId(1), tuple(false), iss, mss, syn, now));
    }

    fn is_open(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|e| e.connection().state() != tcp::State::Closed)
    }

    fn reopens(&self, seg: &tcp::Segment<'_>) -> bool {
        self.endpoint.as_ref().is_some_and(|e| e.connection().may_reopen(seg))
    }

    fn input(&mut self, now: Instant, seg: &tcp::Segment<'_>) -> Result<(), String> {
        let result = self.with(|endpoint, cx| endpoint.input(now, seg, cx))?;
        self.take_events(now);
        result.map_err(|reason| reason.name().to_owned())
    }

    fn transmit(&mut self, now: Instant, tx: &mut Batch) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.poll_transmit(now, tx);
        }
    }

    fn timeout(&self) -> Option<Instant> {
        self.endpoint.as_ref().filter(|e| !e.is_done()).and_then(Endpoint::poll_timeout)
    }

    fn handle_timeout(&mut self, now: Instant) {
        // The call fails only without an endpoint, which then has no timers either.
        let _ = self.with(|endpoint, cx| endpoint.handle_timeout(now, cx));
        self.take_events(now);
    }

    fn execute(&mut self, now: Instant, args: &Args, streams: &Streams) -> Result<(), String> {
        let private_data = match args.get("pd") {
            Some(text) => parse_bytes(text)?,
            None => self.setup.private_data.clone(),
        };
        match args.positional(0) {
            Some("accept") => {
                let ulp = self.setup.ulp();
                self.with(|e, cx| e.mpa_accept(now, PD, &private_data, ulp, cx))?
                    .map_err(|e| e.to_string())
            }
            Some("reject") => {
                self.with(|e, _| e.mpa_reject(now, &private_data))?.map_err(|e| e.to_string())
            }
            Some("post") if self.setup.rdmap.is_some() => self.post_rdmap(args),
            Some("post") => self.post(args),
            Some("fail") => self.with(|e, cx| e.fail(now, cx)),
            Some("buffers") => {
                let (qn, n) = (args.number("qn", 0)? as u32, args.number("n", 1)? as u32);
                self.with(|e, _| e.post_buffers(Qn(qn), n))?.map_err(|e| e.to_string())
            }
            Some("deregister") => {
                let stag = Stag(args.number("stag", u64::from(self.setup.stag))? as u32);
                self.stags.remove(stag).map(drop).ok_or_else(|| "no such STag".into())
            }
            Some("close") => self.with(|e, _| e.shutdown(now)),
            Some("abort") => self.with(|e, cx| e.abort(now, cx)),
            Some("mtu") => {
                let mss = args.number("mss", 0)? as u16;
                self.with(|e, _| e.set_path_mss(now, mss))
            }
            Some("too-big") => {
                let iss = self.with(|e, _| e.connection().iss())?;
                let (mtu, seq) = too_big(args, streams, iss)?;
                self.last_icmp = self.with(|e, _| e.on_packet_too_big(now, mtu, seq))?;
                Ok(())
            }
            other => Err(format!("`{other:?}` is not a verb")),
        }
    }

    fn next_event(&mut self) -> Option<String> {
        let later = || self.endpoint.as_mut()?.poll_event().map(|event| format!("{event:?}"));
        self.events.pop_front().or_else(later)
    }

    fn check(&self, key: &str, value: &str, _streams: &Streams) -> Result<(), String> {
        match key {
            "placed" => return self.check_region(value, true),
            "untouched" => return self.check_region(value, false),
            _ => {}
        }
        let endpoint = self.endpoint.as_ref().ok_or("there is no endpoint")?;
        let stats = endpoint.stats();
        let (rx, tx) = (stats.mpa_rx, stats.mpa_tx);
        let got = match key {
            "state" => endpoint.state().name().to_owned(),
            "tcp" => endpoint.connection().state().name().to_owned(),
            "emss" => endpoint.connection().emss().to_string(),
            "icmp" => format!("{:?}", self.last_icmp),
            "path-mtu-probes" => stats.tcp.path_mtu.probes.to_string(),
            "path-mtu-probes-lost" => stats.tcp.path_mtu.probes_lost.to_string(),
            "black-holes" => stats.tcp.path_mtu.black_holes.to_string(),
            "timeouts" => stats.tcp.loss.timeouts.to_string(),
            "mulpdu" => endpoint.params().map_or(0, |p| p.mulpdu).to_string(),
            "done" => if endpoint.is_done() { "yes" } else { "no" }.to_owned(),
            "in-order" => rx.placed_in_order.to_string(),
            "out-of-order" => rx.placed_out_of_order.to_string(),
            "held" => rx.held.to_string(),
            "unlocatable" => rx.unlocatable.to_string(),
            "held-max" => rx.held_max.to_string(),
            "refused" => rx.refused.to_string(),
            "misaligned" => rx.alignment_lost.to_string(),
            "bad-crc-dropped" => rx.bad_crc_dropped.to_string(),
            "discarded" => rx.discarded.to_string(),
            "kept" => tx.kept.to_string(),
            "packed" => tx.packed.to_string(),
            "cut" => tx.cut.to_string(),
            "hold-used" => self.hold.used().to_string(),
            "buffers-used" => self.buffers.in_use().to_string(),
            other => return Err(format!("`{other}` cannot be checked")),
        };
        if got == value { Ok(()) } else { Err(format!("{key} is {got}, expected {value}")) }
    }

    fn fault(&self) -> Option<String> {
        None
    }
}

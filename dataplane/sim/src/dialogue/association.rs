//! A whole SCTP endpoint under test (`set stack sctp`): association, sessions and DDP with one region.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::{
    Access, BufferPool, Cookie, HoldBudget, Message, PdId, Qn, QueueConfig, RegionMemory, Source,
    Stag, StagEntry, StagTable, StreamConfig, StreamId, TaggedOffset, UlpConfig, VecMemory, rdmap,
};
use sctp_lite::endpoint::{
    Context, Endpoint, EndpointConfig, Event, OpenRequest, SessionEvent, SessionId,
};
use sctp_lite::sctp::{self, Ends, Listener, ListenerResult as Outcome, Secrets};
use wire::sctp::Packet;

use super::run::{Batch, DialogueProtocol, Settings, play_with};
use super::segments::{LOCAL_PORT, PEER_PORT};
use ::dialogue::chunks::Conversation;
use ::dialogue::received_packet::ReceivedPacket;
use ::dialogue::script::{Action, Args, Script, ScriptError, number, switch};
use ::dialogue::streams::{parse_bytes, pattern, pattern_bytes};

const PD: PdId = PdId(1);
/// Limit of untagged buffers in use, bytes.
const POOL: u64 = 1 << 20;
/// Length of an IPv4 packet at MTU 1500 without its header, bytes.
const PACKET: usize = 1480;

/// Settings of the endpoint under test, parsed from `set` lines.
struct AssociationSetup {
    sctp: sctp::Config,
    endpoint: EndpointConfig,
    packet: usize,
    stag: u32,
    base_to: u64,
    len: usize,
    private_data: Vec<u8>,
    stream: StreamConfig,
    /// Configuration of RDMAP; `None`: bare DDP.
    rdmap: Option<rdmap::Config>,
    /// True if the user closes a session only by `do close-session`, not when the peer closes it.
    keep_open: bool,
}

impl Default for AssociationSetup {
    fn default() -> Self {
        AssociationSetup {
            sctp: sctp::Config::default(),
            endpoint: EndpointConfig::default(),
            packet: PACKET,
            stag: 16,
            base_to: 0,
            len: 65_536,
            private_data: Vec::new(),
            stream: StreamConfig {
                queues: vec![QueueConfig::error_queue()],
                ..StreamConfig::default()
            },
            rdmap: None,
            keep_open: false,
        }
    }
}

impl AssociationSetup {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let seconds = || -> Result<Duration, String> {
            let n: f64 =
                value.parse().map_err(|_| format!("`{value}` is not a number of seconds"))?;
            Duration::try_from_secs_f64(n).map_err(|e| e.to_string())
        };
        let mut numbers = value.split_whitespace().map(number);
        let mut next = || numbers.next().unwrap_or(Err(format!("`{value}` has too few numbers")));
        match key {
            "streams" => self.sctp.streams = next()? as u16,
            "max-init-retransmits" => self.sctp.max_init_retransmits = next()? as u32,
            "max-retransmits" => self.sctp.max_retransmits = next()? as u32,
            "path-mtu-probing" => self.sctp.path_mtu_probing = switch(value)?,
            "path-mtu-raise" => self.sctp.path_mtu_raise = seconds()?,
            "min-path-mtu" => self.sctp.min_path_mtu = next()? as u16,
            "heartbeat-interval" => self.sctp.heartbeat_interval = Some(seconds()?),
            "sack-delay" => Arc::make_mut(&mut self.sctp.receive).sack_delay = seconds()?,
            "min-rto" => Arc::make_mut(&mut self.sctp.send).min_rto = seconds()?,
            "tail-loss-probe" => {
                Arc::make_mut(&mut self.sctp.send).tail_loss_probe = switch(value)?
            }
            "packet" => self.packet = next()? as usize,
            "answer-timeout" => self.endpoint.session.answer_timeout = seconds()?,
            "max-pending" => self.endpoint.session.max_pending = next()? as u16,
            "max-sessions" => self.endpoint.session.max_sessions = next()? as u16,
            "max-segment" => self.endpoint.session.max_segment = next()? as usize,
            "teardown-timeout" => self.endpoint.policy.teardown_timeout = seconds()?,
            "idle-timeout" => self.endpoint.policy.idle_timeout = Some(seconds()?),
            "linger" => self.endpoint.linger = seconds()?,
            "on-peer-close" if value == "keep" => self.keep_open = true,
            "last-message" => self.endpoint.policy.last_message = switch(value)?,
            "private-data" => self.private_data = parse_bytes(value)?,
            "region" => {
                (self.stag, self.base_to) = (next()? as u32, next()?);
                self.len = next()? as usize;
            }
            "queue" => self.stream.queues.push(QueueConfig {
                qn: Qn(next()? as u32),
                buffers: next()? as u32,
                buffer_size: next()? as u32,
            }),
            "ulp" => {
                let depths = value.strip_prefix("rdmap ").ok_or("ulp rdmap IRD ORD")?;
                let mut depths = depths.split_whitespace().map(number);
                let mut next = || depths.next().unwrap_or(Err("ulp rdmap IRD ORD".into()));
                let (ird, ord) = (next()? as u16, next()? as u16);
                self.rdmap = Some(rdmap::Config { ird, ord, ..rdmap::Config::default() });
            }
            other => return Err(format!("`{other}` is not a setting, or cannot be `{value}`")),
        }
        Ok(())
    }

    fn ulp(&self) -> UlpConfig {
        match &self.rdmap {
            Some(config) => config.clone().into(),
            None => self.stream.clone().into(),
        }
    }
}

/// An endpoint, the worker's state that it borrows, and the script's side of the association.
struct Association {
    setup: AssociationSetup,
    conversation: Conversation,
    active: bool,
    sctp: Arc<sctp::Config>,
    config: Arc<EndpointConfig>,
    secrets: Arc<Secrets>,
    ends: Ends,
    endpoint: Option<Endpoint<VecMemory>>,
    stags: StagTable<VecMemory>,
    buffers: BufferPool,
    hold: HoldBudget,
    memory: VecMemory,
    /// Session of `do` lines without `sid=`: the last one that the peer requested or the script opened.
    session: Option<SessionId>,
    events: VecDeque<String>,
    delivered: [u64; 2],
    last_drop: String,
    now: Instant,
}

/// Plays `script`.
///
/// # Errors
/// The first line from which the stack deviates, and the packets so far.
pub(super) fn play(script: &Script) -> Result<(), ScriptError> {
    let mut setup = AssociationSetup::default();
    let (mut active, mut tag, mut tsn) = (false, 0x5045_4552, 7_000);
    let mut rest = Vec::new();
    for s in &script.settings {
        let wrong = |what| ScriptError { line: s.line, message: what };
        match s.key.as_str() {
            "role" => active = s.value == "active",
            "peer-tag" => tag = number(&s.value).map_err(wrong)? as u32,
            "peer-tsn" => tsn = number(&s.value).map_err(wrong)? as u32,
            "stack" => {}
            key => rest.push((s.line, key.to_owned(), s.value.clone())),
        }
    }
    Settings(rest).apply(|key, value| setup.set(key, value))?;
    let conversation = Conversation::new(PEER_PORT, LOCAL_PORT, tag, tsn);
    let association = Association::new(setup, conversation, active)
        .map_err(|what| ScriptError { line: 1, message: what })?;
    play_with(script, association)
}

impl Association {
    fn new(
        setup: AssociationSetup,
        conversation: Conversation,
        active: bool,
    ) -> Result<Self, String> {
        let memory = VecMemory::new(setup.len);
        let mut stags = StagTable::new();
        let entry = StagEntry {
            stag: Stag(setup.stag),
            pd: PD,
            stream: None,
            base_to: TaggedOffset(setup.base_to),
            len: memory.len(),
            access: Access::REMOTE_WRITE,
            memory: memory.clone(),
            memory_offset: 0,
        };
        stags.insert(entry).map_err(|e| e.to_string())?;
        let address = |n, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), port);
        Ok(Association {
            sctp: Arc::new(setup.sctp.clone()),
            config: Arc::new(setup.endpoint.clone()),
            secrets: Arc::new(Secrets::new([0x51; 16])),
            ends: Ends { local: address(1, LOCAL_PORT), remote: address(2, PEER_PORT) },
            endpoint: None,
            stags,
            buffers: BufferPool::new(POOL),
            hold: HoldBudget::new(POOL),
            memory,
            session: None,
            events: VecDeque::new(),
            delivered: [0; 2],
            last_drop: "none".into(),
            now: Instant::ZERO,
            setup,
            conversation,
            active,
        })
    }

    fn is_open(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|e| !e.is_done() && e.state() != sctp::State::Closed)
    }

    fn with<T>(
        &mut self,
        f: impl FnOnce(&mut Endpoint<VecMemory>, &mut Context<'_, VecMemory>) -> T,
    ) -> Result<T, String> {
        let Association { endpoint, stags, buffers, hold, .. } = self;
        let endpoint = endpoint.as_mut().ok_or("there is no association")?;
        Ok(f(endpoint, &mut Context { stags, buffers, hold }))
    }

    /// Passes a packet to the endpoint or the listener, as a worker of the daemon does.
    fn input(&mut self, bytes: &[u8], tx: &mut Batch) {
        let drop = |this: &mut Self, reason: sctp::DropReason| {
            this.last_drop = reason.name().to_owned();
        };
        let Ok(packet) = Packet::new(bytes) else {
            return drop(self, sctp::DropReason::BadHeader);
        };
        if !packet.checksum_ok() {
            return drop(self, sctp::DropReason::BadChecksum);
        }
        let now = self.now;
        if !self.is_open() {
            let listener = Listener::new(self.sctp.clone(), self.secrets.clone());
            let outcome = if self.active {
                Outcome::Dropped(sctp::handle_out_of_the_blue(&self.ends, &packet, tx))
            } else {
                listener.input(now, &self.ends, &packet, tx)
            };
            match outcome {
                Outcome::Answered => return,
                Outcome::Dropped(reason) => return drop(self, reason),
                Outcome::Accept(cookie) => {
                    self.endpoint = Some(Endpoint::accept(
                        self.sctp.clone(),
                        self.config.clone(),
                        self.secrets.clone(),
                        self.ends,
                        self.setup.packet,
                        &cookie,
                        now,
                    ));
                }
            }
        }
        if let Ok(Err(reason)) = self.with(|endpoint, cx| endpoint.input(now, &packet, cx).result) {
            drop(self, reason);
        }
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::poll_event) {
            match &event {
                Event::Session(session, SessionEvent::Request { .. }) => {
                    self.session = Some(*session);
                }
                // The user closes the session after the peer has closed it (RFC 5041 §6.2.1).
                Event::Session(session, SessionEvent::Ddp(ddp::Event::PeerClosed { .. }))
                    if !self.setup.keep_open =>
                {
                    if let Some(endpoint) = &mut self.endpoint {
                        endpoint.shutdown_session(self.now, *session);
                    }
                }
                Event::Session(_, SessionEvent::Ddp(ddp::Event::TaggedDelivered { .. })) => {
                    self.delivered[0] += 1;
                }
                Event::Session(_, SessionEvent::Ddp(ddp::Event::UntaggedDelivered { .. })) => {
                    self.delivered[1] += 1;
                }
                _ => {}
            }
            self.events.push_back(format!("{event:?}"));
        }
    }

    fn open(&self) -> OpenRequest {
        let private_data = self.setup.private_data.clone();
        OpenRequest { pd: PD, ulp: self.setup.ulp(), private_data }
    }

    fn connect(&mut self) -> Result<(), String> {
        if !self.active {
            return Err("`do connect` needs `set role active`".into());
        }
        let opened = Endpoint::connect(
            self.sctp.clone(),
            self.config.clone(),
            self.secrets.clone(),
            self.ends,
            self.setup.packet,
            self.now,
            StreamId(1),
            self.open(),
        );
        let (endpoint, session) = opened.map_err(|e| e.to_string())?;
        (self.endpoint, self.session) = (Some(endpoint), Some(session));
        Ok(())
    }

    fn post(&mut self, session: SessionId, args: &Args) -> Result<(), String> {
        let to = args.number("to", 0)?;
        let source = Source::Bytes(Arc::from(pattern_bytes(to, args.number("len", 0)? as usize)));
        let cookie = args.number("cookie", 0)?;
        let message = match args.positional(1) {
            Some("tagged") => {
                let stag = Stag(args.number("stag", 16)? as u32);
                Message::Tagged {
                    stag,
                    to: TaggedOffset(to),
                    rsvd_ulp: 0,
                    source,
                    cookie: Cookie::user(cookie),
                }
            }
            Some("untagged") => {
                let qn = Qn(args.number("qn", 0)? as u32);
                Message::Untagged { qn, rsvd_ulp: [0; 5], source, cookie: Cookie::user(cookie) }
            }
            other => return Err(format!("do post tagged|untagged, not {other:?}")),
        };
        self.with(|endpoint, _| endpoint.post(session, message))?.map_err(|e| e.to_string())
    }

    /// Checks the bytes of the region in the TO range `FROM..TO`: the pattern if `placed`, otherwise zeros.
    fn check_region(&self, range: &str, placed: bool) -> Result<(), String> {
        let (from, to) = range.split_once("..").ok_or("FROM..TO")?;
        let memory = self.memory.to_vec();
        for at in number(from)?..number(to)? {
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

impl DialogueProtocol for Association {
    type Sent = ReceivedPacket;

    fn send(&mut self, now: Instant, action: &Action, tx: &mut Batch) -> Result<String, String> {
        let Action::SendPacket(line) = action else { return Err("no packet".into()) };
        self.now = now;
        self.last_drop = "none".into();
        let bytes = self.conversation.build_packet(line)?;
        let words =
            ::dialogue::chunks::summarize(&bytes).unwrap_or_else(|| format!("{bytes:02x?}"));
        self.input(&bytes, tx);
        Ok(words)
    }

    fn decode(&self, bytes: &[u8], _ect: bool) -> Result<ReceivedPacket, String> {
        if bytes.len() > self.setup.packet {
            return Err(format!("a packet of {} bytes", bytes.len()));
        }
        ReceivedPacket::parse(bytes)
    }

    fn show(&self, sent: &ReceivedPacket) -> String {
        self.conversation.show(sent)
    }

    fn compare(&mut self, action: &Action, sent: &ReceivedPacket) -> Result<(), String> {
        let Action::ExpectPacket(line) = action else { return Err("no packet".into()) };
        self.conversation.compare(line, sent)
    }

    fn transmit(&mut self, now: Instant, tx: &mut Batch) {
        self.now = now;
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.poll_transmit(now, tx);
        }
        self.take_events();
    }

    fn timeout(&self) -> Option<Instant> {
        self.endpoint.as_ref().filter(|e| !e.is_done()).and_then(Endpoint::poll_timeout)
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        // Fails only if there is no association, and then there is no timer to handle.
        let _ = self.with(|endpoint, cx| endpoint.handle_timeout(now, cx));
        self.take_events();
    }

    fn execute(&mut self, now: Instant, args: &Args) -> Result<(), String> {
        self.now = now;
        let private_data = match args.get("pd") {
            Some(text) => parse_bytes(text)?,
            None => self.setup.private_data.clone(),
        };
        let session = match args.get("sid") {
            Some(text) => {
                let stream = number(text)? as u16;
                let endpoint = self.endpoint.as_ref().ok_or("there is no association")?;
                endpoint.sessions().find(|session| session.stream == stream)
            }
            None => self.session,
        };
        let named = session.ok_or("there is no session");
        let done = match args.positional(0) {
            Some("connect") => self.connect(),
            Some("open") => {
                let open = self.open();
                let opened = self.with(|e, _| e.open_session(now, StreamId(9), open))?;
                opened.map(|session| self.session = Some(session)).map_err(|e| e.to_string())
            }
            Some("accept") => {
                let (session, ulp) = (named?, self.setup.ulp());
                let id = StreamId(1 + u64::from(session.stream));
                self.with(|e, cx| e.accept_session(now, session, id, PD, &private_data, ulp, cx))?
                    .map_err(|e| e.to_string())
            }
            Some("reject") => {
                let session = named?;
                self.with(|e, _| e.reject_session(now, session, &private_data))?
                    .map_err(|e| e.to_string())
            }
            Some("post") => {
                let session = named?;
                self.post(session, args)
            }
            Some("close-session") => {
                let session = named?;
                self.with(|e, _| e.shutdown_session(now, session))
            }
            Some("close") => self.with(|e, _| e.shutdown(now)),
            Some("abort") => {
                let now = self.now;
                self.with(|e, cx| e.abort(now, cx))
            }
            Some("deregister") => {
                let stag = Stag(args.number("stag", u64::from(self.setup.stag))? as u32);
                self.stags.remove(stag).map(drop).ok_or_else(|| "no such STag".into())
            }
            Some("mtu") => {
                let packet = args.number("packet", 0)? as usize;
                self.with(|e, _| e.set_path_mtu(now, packet))
            }
            Some("too-big") => {
                let packet = args.number("packet", 0)? as usize;
                self.with(|e, _| e.on_packet_too_big(now, packet)).map(drop)
            }
            other => Err(format!("`{other:?}` is not a verb")),
        };
        // The only effect of a call, such as a close, may be a timer that is due now.
        if self.timeout().is_some_and(|at| at <= now) {
            self.handle_timeout(now);
        }
        self.take_events();
        done
    }

    fn next_event(&mut self) -> Option<String> {
        self.events.pop_front()
    }

    fn check(&self, key: &str, value: &str) -> Result<(), String> {
        let endpoint = self.endpoint.as_ref();
        let path = |count: fn(&sctp::Stats) -> u64| {
            endpoint.map_or(0, |e| count(e.association().stats())).to_string()
        };
        let got = match key {
            "placed" => return self.check_region(value, true),
            "untouched" => return self.check_region(value, false),
            "drop" => self.last_drop.clone(),
            "open" => if self.is_open() { "yes" } else { "no" }.to_owned(),
            "state" => endpoint.map_or("closed", |endpoint| endpoint.state().name()).to_owned(),
            "streams" => endpoint.map_or(0, |e| e.association().streams()).to_string(),
            "session" => {
                let state = endpoint.zip(self.session).and_then(|(e, s)| e.session_state(s));
                state.map_or("closed", |state| state.name()).to_owned()
            }
            "packet" => endpoint.map_or(0, |e| e.association().path_len()).to_string(),
            "path-mtu-probes" => path(|stats| stats.path_mtu_probes),
            "path-mtu-probes-lost" => path(|stats| stats.path_mtu_probes_lost),
            "black-holes" => path(|stats| stats.path_mtu_black_holes),
            "delivered" => self.delivered[0].to_string(),
            "untagged-delivered" => self.delivered[1].to_string(),
            "buffers-used" => self.buffers.in_use().to_string(),
            other => return Err(format!("`{other}` cannot be checked")),
        };
        if got == value { Ok(()) } else { Err(format!("{key} is {got}, expected {value}")) }
    }

    fn fault(&self) -> Option<String> {
        None
    }
}

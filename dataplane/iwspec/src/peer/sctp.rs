//! The reference peer over SCTP in UDP: associations on one UDP socket, and the sessions on their streams (RFC 5043).

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sctp_lite::sctp::{Association, Ends, Listener, ListenerResult, Secrets};
use wire::sctp::Packet;

use super::connection::{Connection, DEPTH, End};
use super::memory::{Bytes, initial_memory};
use super::numbers::llp;
use super::{Config, Peer, start};
use crate::device::Service;
use crate::message::{Kind, Message};
use crate::sctp::order::Inbound;
use crate::sctp::{CONTROL, Chunk, Core, DDP, PACKET, SEGMENT, config, control, packet};
use crate::value::{Arguments, Variables};

/// Interval of timer checks.
const TICK: Duration = Duration::from_millis(10);
/// Number of stream pairs that the peer grants.
const STREAMS: u16 = 8;
/// Maximum number of concurrent associations.
const MAX_ASSOCIATIONS: usize = 256;
/// Maximum length of private data (RFC 5043 §5.2.3), bytes.
const MAX_PRIVATE_DATA: usize = 512;

/// Starts a responder of SCTP in UDP at `address`. The responder accepts associations at every SCTP port.
///
/// # Errors
/// The address cannot be bound.
pub fn serve(config: Config, address: SocketAddr) -> std::io::Result<Peer> {
    let socket = UdpSocket::bind(address)?;
    socket.set_read_timeout(Some(TICK))?;
    let address = socket.local_addr()?;
    Ok(start(address, move |stopped| run(&config, &socket, address, &stopped)))
}

/// Starts an initiator of SCTP in UDP that repeatedly opens associations to the SCTP port `port` at the UDP address
/// `address`, each with a session on stream 0.
pub fn initiate(config: Config, address: SocketAddr, port: u16) -> Peer {
    start(address, move |stopped| {
        let memory = Mutex::new(initial_memory());
        while !stopped.load(Ordering::Relaxed) {
            // Without a socket, retries after a pause.
            if associate(&config, address, port, &stopped, &memory).is_none() {
                std::thread::sleep(TICK);
            }
        }
    })
}

/// Opens an association with a session, and serves it until it ends. Returns `None` if there is no socket.
fn associate(
    settings: &Config,
    address: SocketAddr,
    port: u16,
    stopped: &AtomicBool,
    memory: &Mutex<Bytes>,
) -> Option<()> {
    let any: SocketAddr = if address.is_ipv6() { ([0; 16], 0).into() } else { ([0; 4], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(address).ok()?;
    socket.set_read_timeout(Some(TICK)).ok()?;
    let mut random = [0; 18];
    getrandom::fill(&mut random).ok()?;
    let mut key = [0; 16];
    key.copy_from_slice(&random[2..]);
    let own_port = u16::from_be_bytes([random[0], random[1]]) | 0x8000;
    let local = SocketAddr::new(socket.local_addr().ok()?.ip(), own_port);
    let ends = Ends { local, remote: SocketAddr::new(address.ip(), port) };
    let begin = Instant::now();
    let association = Association::connect(
        config(STREAMS),
        Arc::new(Secrets::new(key)),
        ends,
        PACKET,
        crate::sctp::protocol_time(begin),
    );
    let core = Core::new(association, begin);
    let mut association = Associated { settings, stopped, memory, core, sessions: BTreeMap::new() };
    let mut buffer = vec![0; 65536];
    while !stopped.load(Ordering::Relaxed) && association.core.ended.is_none() {
        if association.core.up && association.sessions.is_empty() {
            association.request();
        }
        association.output(&socket, address);
        if let Ok(length) = socket.recv(&mut buffer) {
            let mut bytes = buffer[..length].to_vec();
            if !settings.flaws.makes("sctp-adaptation") {
                packet::set_adaptation(&mut bytes, Some(DDP));
            }
            association.input(&bytes);
        }
    }
    association.core.abort();
    association.output(&socket, address);
    Some(())
}

fn run(settings: &Config, socket: &UdpSocket, address: SocketAddr, stopped: &AtomicBool) {
    let memory = Mutex::new(initial_memory());
    let mut key = [0; 16];
    if getrandom::fill(&mut key).is_err() {
        return;
    }
    let host = Host { settings, stopped, memory: &memory, secrets: Arc::new(Secrets::new(key)) };
    let mut associations: HashMap<(SocketAddr, u16), Associated<'_>> = HashMap::new();
    let mut buffer = vec![0; 65536];
    let mut looked = Instant::now();
    while !stopped.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let mut bytes = buffer[..length].to_vec();
            if !settings.flaws.makes("sctp-adaptation") {
                packet::set_adaptation(&mut bytes, Some(DDP));
            }
            let Ok(packet) = Packet::new(&bytes) else { continue };
            let ports = packet.ports();
            let ends = Ends {
                local: SocketAddr::new(address.ip(), ports.destination),
                remote: SocketAddr::new(from.ip(), ports.source),
            };
            let at = (from, ports.source);
            if let Some(association) = associations.get_mut(&at) {
                association.input(&bytes);
                association.output(socket, from);
            } else if associations.len() < MAX_ASSOCIATIONS {
                let (packets, accepted) = host.listen(&packet, ends);
                packets.iter().for_each(|p| host.send(socket, from, p));
                if let Some(mut association) = accepted {
                    association.input(&bytes);
                    association.output(socket, from);
                    associations.insert(at, association);
                }
            }
        }
        if looked.elapsed() >= TICK {
            looked = Instant::now();
            for ((from, _), association) in &mut associations {
                association.output(socket, *from);
            }
            associations.retain(|_, a| !a.core.is_done());
        }
    }
}

/// State shared by all associations, and the secrets of the listener.
struct Host<'a> {
    settings: &'a Config,
    stopped: &'a AtomicBool,
    memory: &'a Mutex<Bytes>,
    secrets: Arc<Secrets>,
}

impl<'a> Host<'a> {
    fn listen(&self, packet: &Packet<'_>, ends: Ends) -> (Vec<Vec<u8>>, Option<Associated<'a>>) {
        let begin = Instant::now();
        let now = crate::sctp::protocol_time(begin);
        let mut batch = crate::sctp::Batch::default();
        let listener = Listener::new(config(STREAMS), Arc::clone(&self.secrets));
        if !packet.checksum_ok() {
            return (vec![], None);
        }
        let accepted = match listener.input(now, &ends, packet, &mut batch) {
            ListenerResult::Accept(cookie) => {
                let secrets = Arc::clone(&self.secrets);
                let association =
                    Association::accept(config(STREAMS), secrets, ends, PACKET, &cookie, now);
                Some(Associated {
                    settings: self.settings,
                    stopped: self.stopped,
                    memory: self.memory,
                    core: Core::new(association, begin),
                    sessions: BTreeMap::new(),
                })
            }
            ListenerResult::Answered | ListenerResult::Dropped(_) => None,
        };
        (batch.packets, accepted)
    }

    /// Sends a packet of the listener, such as an INIT ACK.
    fn send(&self, socket: &UdpSocket, to: SocketAddr, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        change_greeting(self.settings, &mut bytes);
        // A failed send counts as a lost packet.
        let _ = socket.send_to(&bytes, to);
    }
}

/// Applies the flaws of an INIT or INIT ACK.
fn change_greeting(settings: &Config, bytes: &mut Vec<u8>) {
    let flaws = &settings.flaws;
    if flaws.behaves("no-adaptation") {
        packet::set_adaptation(bytes, None);
    }
    if flaws.behaves("other-adaptation") {
        packet::set_adaptation(bytes, Some(2));
    }
    if flaws.behaves("uneven-streams") {
        packet::set_streams(bytes, STREAMS, STREAMS + 1);
    }
}

/// An association, and the sessions on its streams.
struct Associated<'a> {
    settings: &'a Config,
    stopped: &'a AtomicBool,
    memory: &'a Mutex<Bytes>,
    core: Core,
    sessions: BTreeMap<u16, PeerSession<'a>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    /// The peer has sent an Initiate and waits for the answer.
    Requested,
    Open,
    Ended,
}

/// A session: one DDP stream.
struct PeerSession<'a> {
    state: State,
    inbound: Inbound,
    /// DDP-SSN of the peer's next message.
    outbound: u16,
    connection: Connection<'a>,
}

impl<'a> Associated<'a> {
    fn input(&mut self, bytes: &[u8]) {
        self.core.input(bytes);
        while let Some(chunk) = self.core.upper.take() {
            self.arrive(chunk);
        }
        for (stream, session) in &mut self.sessions {
            session.connection.release();
            session.send_segments(*stream, self.settings, &mut self.core);
        }
        if self.core.peer_shuts_down && self.settings.flaws.behaves("abort-on-shutdown") {
            self.core.abort();
        }
    }

    fn output(&mut self, socket: &UdpSocket, to: SocketAddr) {
        loop {
            let packets = self.core.output();
            if packets.is_empty() {
                return;
            }
            for mut packet in packets {
                change_greeting(self.settings, &mut packet);
                // A failed send counts as a lost packet, which SCTP retransmits.
                let _ = socket.send_to(&packet, to);
            }
        }
    }

    /// Opens a session on stream 0.
    fn request(&mut self) {
        let mut session = PeerSession {
            state: State::Requested,
            inbound: Inbound::default(),
            outbound: u16::from(self.settings.flaws.behaves("ssn-from-1")),
            connection: Connection::over_sctp(self.settings, self.stopped, self.memory),
        };
        if self.settings.flaws.behaves("segment-first") {
            session.connection.send(Kind::Write, "stag=0 to=0 len=0");
            session.send_segments(0, self.settings, &mut self.core);
        }
        let mut text = String::new();
        if self.settings.revision == 2 {
            text = format!("enhanced=on ird={DEPTH} ord={DEPTH} flags={}", self.settings.ready);
        }
        text += &session.connection.advertisement();
        session.control(Kind::Initiate, &text, 0, self.settings, &mut self.core);
        self.sessions.insert(0, session);
    }

    /// Processes a received message, and all held messages that can then be delivered in order.
    fn arrive(&mut self, chunk: Chunk) {
        let stream = chunk.stream;
        let (settings, stopped, memory) = (self.settings, self.stopped, self.memory);
        let new = || PeerSession {
            state: State::Idle,
            inbound: Inbound::default(),
            outbound: u16::from(settings.flaws.behaves("ssn-from-1")),
            connection: Connection::over_sctp(settings, stopped, memory),
        };
        let mut session = self.sessions.remove(&stream).unwrap_or_else(new);
        // RFC 5043 §6.1: DDP-SSNs begin at 0 in each session.
        if session.state == State::Ended && begins_session(&chunk) {
            let before = std::mem::replace(&mut session, new());
            if settings.flaws.behaves("keep-ssn") {
                session.outbound = before.outbound;
            }
            if settings.flaws.behaves("keep-msn") {
                session.connection = before.connection;
            }
        }
        let mut ready = vec![];
        if settings.flaws.behaves("ignore-ssn") {
            ready.push((chunk, true));
        } else {
            session.inbound.arrive(chunk, &mut ready);
        }
        for (chunk, _) in ready.iter().filter(|(_, in_order)| *in_order) {
            if session.message(chunk, settings, &mut self.core) == Err(End::Error) {
                self.fail(stream, &mut session);
            }
        }
        self.sessions.insert(stream, session);
    }

    /// Ends a session after an error: sends its last segments, then the Terminate.
    fn fail(&mut self, stream: u16, session: &mut PeerSession<'a>) {
        session.send_segments(stream, self.settings, &mut self.core);
        session.state = State::Ended;
        // Drops the queued answers to earlier requests of the same burst.
        session.connection.held.clear();
        let flaws = &self.settings.flaws;
        if flaws.behaves("reset") {
            self.core.abort();
        }
        if !flaws.behaves("no-close") {
            session.control(Kind::End, "", stream, self.settings, &mut self.core);
        }
        if flaws.behaves("end-all") {
            for (other, session) in &mut self.sessions {
                session.state = State::Ended;
                session.control(Kind::End, "", *other, self.settings, &mut self.core);
            }
        }
    }
}

/// Returns true for a plain or enhanced Initiate with DDP-SSN 0.
fn begins_session(chunk: &Chunk) -> bool {
    chunk.ppid == CONTROL
        && chunk.ssn() == Some(0)
        && control::decode(chunk).is_some_and(|m| m.kind == Kind::Initiate)
}

impl PeerSession<'_> {
    /// Processes a message that is in DDP-SSN order.
    fn message(&mut self, chunk: &Chunk, settings: &Config, core: &mut Core) -> Result<(), End> {
        let flaws = &settings.flaws;
        let control = if chunk.ppid == CONTROL { control::decode(chunk) } else { None };
        match self.state {
            State::Ended => return Ok(()),
            State::Idle => {
                if let Some(m) = control.filter(|m| m.kind == Kind::Initiate) {
                    return self.initiate(&m, chunk, settings, core);
                }
                // RFC 5043 §6.1: a legal sequence begins with an Initiate.
                if flaws.makes("sctp-session") {
                    return Err(End::Error);
                }
                self.state = State::Open;
                return self.connection.take_segment(chunk.data.get(2..).unwrap_or(&[]));
            }
            State::Requested => return self.answered(control.as_ref(), chunk, settings),
            State::Open => {}
        }
        let c = &mut self.connection;
        c.current.clear();
        c.check("sctp-unordered", !chunk.unordered, llp::CATASTROPHIC)?;
        c.check("sctp-ppid", !matches!(chunk.ppid, SEGMENT | CONTROL), llp::CATASTROPHIC)?;
        if chunk.ppid != CONTROL {
            return c.take_segment(chunk.data.get(2..).unwrap_or(&[]));
        }
        let kind = control.map_or(Kind::Control, |m| m.kind);
        c.check("sctp-function", kind == Kind::Control, llp::CATASTROPHIC)?;
        if kind == Kind::Control {
            return Ok(());
        }
        if kind == Kind::End {
            if !flaws.behaves("answer-after-end") {
                self.state = State::Ended;
            }
            self.connection.release();
            self.send_segments(chunk.stream, settings, core);
            self.control(Kind::End, "", chunk.stream, settings, core);
            return Ok(());
        }
        c.check("sctp-sequence", true, llp::CATASTROPHIC)
    }

    /// Processes the answer to the peer's Initiate.
    fn answered(
        &mut self,
        answer: Option<&Message>,
        chunk: &Chunk,
        settings: &Config,
    ) -> Result<(), End> {
        let flaws = &settings.flaws;
        let kind = answer.map_or(Kind::Chunk, |m| m.kind);
        if kind == Kind::Reject && flaws.makes("sctp-reject") || kind == Kind::End {
            self.state = State::Ended;
            return Ok(());
        }
        let too_long = chunk.data.len() - 4 > MAX_PRIVATE_DATA;
        if !matches!(kind, Kind::Accept | Kind::Reject) && flaws.makes("sctp-answer")
            || kind == Kind::Accept && too_long && flaws.makes("private-data-length")
            || chunk.data.len() - 4 > 256 && flaws.behaves("short-private-data")
        {
            return Err(End::Error);
        }
        let enhanced = settings.revision == 2;
        // RFC 6581 §7: plain and enhanced messages are not mixed in a session.
        if kind == Kind::Accept
            && enhanced
            && answer.and_then(|m| m.field("enhanced")) != Some(1)
            && flaws.makes("reply-enhanced")
        {
            return Err(End::Error);
        }
        self.state = State::Open;
        self.connection.first_fpdu = true;
        if kind == Kind::Accept && enhanced {
            self.connection.negotiated(chunk.data.get(4..).unwrap_or(&[]))?;
        }
        if !flaws.behaves("ignore-replies") && settings.service == Service::Peer {
            self.connection.send(Kind::Write, "stag=0 to=0 len=0");
        }
        if kind == Kind::Chunk {
            return self.connection.take_segment(chunk.data.get(2..).unwrap_or(&[]));
        }
        Ok(())
    }

    /// Processes an Initiate, and accepts the session unless the Initiate is invalid.
    fn initiate(
        &mut self,
        m: &Message,
        chunk: &Chunk,
        settings: &Config,
        core: &mut Core,
    ) -> Result<(), End> {
        let flaws = &settings.flaws;
        if chunk.data.len() - 4 > MAX_PRIVATE_DATA && flaws.makes("private-data-length")
            || !chunk.unordered && flaws.makes("sctp-unordered")
            || flaws.behaves("short-private-data") && chunk.data.len() - 4 > 256
        {
            return Err(End::Error);
        }
        let enhanced = m.field("enhanced") == Some(1);
        let (ird, ord) = (m.field("ird"), m.field("ord"));
        if enhanced && ird.is_none() && flaws.makes("enhanced-data") {
            return Err(End::Error);
        }
        let mut text = String::new();
        if enhanced {
            let (ird, ord) = (ird.unwrap_or(0), ord.unwrap_or(0));
            text = format!("enhanced=on ird={ord} ord={ird} ");
        }
        text += &self.connection.advertisement();
        self.state = State::Open;
        self.connection.first_fpdu = true;
        self.control(Kind::Accept, &text, chunk.stream, settings, core);
        Ok(())
    }

    /// Sends a session control message, with the flaws for its kind.
    fn control(&mut self, kind: Kind, text: &str, stream: u16, settings: &Config, core: &mut Core) {
        let Ok(arguments) = Arguments::parse(text.split_whitespace()) else { return };
        let Some(arguments) = settings.flaws.apply(kind, arguments) else { return };
        if let Ok(body) = control::encode(kind, &arguments, &Variables::new()) {
            self.send(stream, CONTROL, &body, settings, core);
        }
    }

    fn send_segments(&mut self, stream: u16, settings: &Config, core: &mut Core) {
        for segment in std::mem::take(&mut self.connection.segments) {
            self.send(stream, SEGMENT, &segment, settings, core);
        }
    }

    fn send(&mut self, stream: u16, ppid: u32, body: &[u8], settings: &Config, core: &mut Core) {
        let flaws = &settings.flaws;
        let mut data = self.outbound.to_be_bytes().to_vec();
        let skipped = u16::from(ppid == SEGMENT && flaws.behaves("skip-ssn"));
        self.outbound = self.outbound.wrapping_add(1 + skipped);
        data.extend(body);
        let chunk = Chunk {
            stream: stream + u16::from(flaws.behaves("other-stream")),
            ppid: if flaws.behaves("other-ppid") { 0 } else { ppid },
            unordered: !flaws.behaves("ordered"),
            whole: true,
            data,
        };
        // Cannot fail: all messages of the peer are shorter than a packet.
        let _ = core.upper.send(chunk);
    }
}

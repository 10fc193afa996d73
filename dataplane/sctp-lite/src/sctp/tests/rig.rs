//! Test rig of one association, whose peer is the test, and a notation for packets:
//!
//! ```text
//!   P: SACK(0) DATA(1)   tag, then chunks; P: the peer's tag, L: this end's, 0: none, others in hexadecimal
//! ```
//!
//! TSNs are relative; the first TSN of each side is 1. `T` marks the T bit. Causes are given by code.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use base::Instant;
use wire::sctp::{
    Chunk, DataHeader, InitHeader, Packet, PacketBuilder, Parameter, Ports, Tag, Tsn,
};

use crate::sctp::{Association, Config, DropReason, Ends, Event, InputResult, Secrets, State};
use crate::seam::{
    MessageOutcome, MessageRef, MessageSink, MessageSource, ReceivedMessage, TxBatch,
    WrittenMessage,
};

pub(super) const PEER_TAG: Tag = Tag(0x9999_9999);
pub(super) const PEER_TSN: Tsn = Tsn(u32::MAX - 1);
pub(super) const PACKET: usize = 1480;

/// All states with an association.
pub(super) const STATES: [State; 7] = [
    State::CookieWait,
    State::CookieEchoed,
    State::Established,
    State::ShutdownPending,
    State::ShutdownSent,
    State::ShutdownReceived,
    State::ShutdownAckSent,
];

pub(super) fn ends() -> Ends {
    let local = SocketAddr::from(([10, 0, 0, 1], 9899));
    Ends { local, remote: ([10, 0, 0, 2], 4000).into() }
}

pub(super) fn secrets() -> Arc<Secrets> {
    Arc::new(Secrets::new([7; 16]))
}

/// Returns the bytes of a test message: its number (`tag`), then bytes derived from the number.
pub(super) fn bytes(tag: u64, len: usize) -> Vec<u8> {
    let first = tag.to_be_bytes();
    (0..len).map(|i| first.get(i).copied().unwrap_or((tag as usize * 31 + i) as u8)).collect()
}

/// Upper layer of the tests: source and sink.
#[derive(Debug)]
pub(super) struct Upper {
    pub(super) received: Vec<(u16, Vec<u8>)>,
    /// Number and length of each message to send; its stream is the number modulo four.
    pub(super) queue: VecDeque<(u64, usize)>,
    pub(super) acknowledged: Vec<u64>,
    pub(super) accepts: bool,
    /// Every `refuse_every`th message is refused; zero: none.
    pub(super) refuse_every: usize,
    offered: usize,
    pub(super) room: u32,
    /// True if requests for a larger window are granted.
    pub(super) grows_window: bool,
    pub(super) window_requests: Vec<(u64, u64)>,
}

impl Upper {
    pub(super) fn new() -> Upper {
        Upper {
            received: Vec::new(),
            queue: VecDeque::new(),
            acknowledged: Vec::new(),
            accepts: true,
            refuse_every: 0,
            offered: 0,
            room: u32::MAX,
            grows_window: true,
            window_requests: Vec::new(),
        }
    }
}

impl MessageSink for Upper {
    fn deliver(&mut self, _now: Instant, message: ReceivedMessage<'_>) -> MessageOutcome {
        self.offered += 1;
        if !self.accepts
            || (self.refuse_every > 0 && self.offered.is_multiple_of(self.refuse_every))
        {
            return MessageOutcome::Refused;
        }
        self.received.push((message.stream, message.pieces.concat()));
        MessageOutcome::Accepted
    }

    fn grow_window(&mut self, grown: u64, increase: u64) -> bool {
        self.window_requests.push((grown, increase));
        self.grows_window
    }

    fn free_space(&self) -> u32 {
        self.room
    }
}

impl MessageSource for Upper {
    fn has_data(&self) -> bool {
        !self.queue.is_empty()
    }

    fn next(&mut self, max_len: usize, out: &mut [u8]) -> Option<WrittenMessage> {
        let &(tag, len) = self.queue.front()?;
        assert!(len <= max_len);
        out.get_mut(..len)?.copy_from_slice(&bytes(tag, len));
        self.queue.pop_front();
        let message = MessageRef { stream: (tag % 4) as u16, len: len as u16, tag };
        Some(WrittenMessage { message, ppid: 16, immediate: false, crc: None, next_len: None })
    }

    fn rewrite(&mut self, message: MessageRef, out: &mut [u8]) {
        out.copy_from_slice(&bytes(message.tag, usize::from(message.len)));
    }

    fn on_acknowledged(&mut self, message: MessageRef) {
        self.acknowledged.push(message.tag);
    }

    fn on_max_len_changed(&mut self, _most: usize) {}
}

/// A batch that keeps the packets sent; full at `room` packets.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) packets: Vec<Vec<u8>>,
    buffer: Vec<u8>,
    pub(super) room: usize,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch { packets: Vec::new(), buffer: Vec::new(), room: 1000 }
    }
}

impl TxBatch for Batch {
    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() >= self.room {
            return None;
        }
        self.buffer = vec![0xee; len];
        Some(&mut self.buffer)
    }

    fn commit(&mut self, len: usize) {
        self.packets.push(self.buffer[..len].to_vec());
    }
}

/// Returns the bytes of a packet from the peer.
pub(super) fn packet(tag: Tag, write: impl FnOnce(&mut PacketBuilder<'_>)) -> Vec<u8> {
    let ports = ends().ports();
    let ports = Ports { source: ports.destination, destination: ports.source };
    let mut out = vec![0; 4096];
    let mut builder = PacketBuilder::new(&mut out, ports, tag);
    write(&mut builder);
    let len = builder.finish();
    out.truncate(len);
    out
}

/// Returns the header of the peer's INIT or INIT ACK.
pub(super) fn peer_header() -> InitHeader {
    InitHeader {
        tag: PEER_TAG,
        a_rwnd: 65_536,
        outbound_streams: 10,
        inbound_streams: 10,
        initial_tsn: PEER_TSN,
    }
}

/// Returns the header of the peer's `n`th DATA chunk, from 1 on.
pub(super) fn data(n: u32) -> DataHeader {
    let tsn = PEER_TSN.add(n - 1);
    DataHeader { tsn, ppid: 16, unordered: true, begin: true, end: true, ..DataHeader::default() }
}

pub(super) fn push_data(packet: &mut PacketBuilder<'_>, header: &DataHeader, bytes: &[u8]) {
    packet.data_buffer()[..bytes.len()].copy_from_slice(bytes);
    packet.push_data(header, bytes.len()).expect("room");
}

/// One association and its upper layer.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) now: Instant,
    pub(super) association: Association,
    pub(super) upper: Upper,
}

impl Rig {
    /// Returns an association with its INIT due.
    pub(super) fn active(config: Config) -> Rig {
        let now = Instant::from_millis(1000);
        let association = Association::connect(Arc::new(config), secrets(), ends(), PACKET, now);
        Rig { now, association, upper: Upper::new() }
    }

    /// Returns an association in COOKIE-ECHOED, with its COOKIE ECHO sent.
    pub(super) fn cookie_echoed() -> Rig {
        let mut rig = Rig::active(Config::default());
        assert_eq!(rig.sent_packets(), ["0: INIT"]);
        assert_eq!(rig.init_ack(), Ok(()));
        assert_eq!(rig.sent_packets(), ["P: COOKIE-ECHO"]);
        assert_eq!(rig.state(), State::CookieEchoed);
        rig
    }

    /// Returns an actively opened association in ESTABLISHED, with the default configuration.
    pub(super) fn established() -> Rig {
        Rig::with(Config::default())
    }

    pub(super) fn with(config: Config) -> Rig {
        let mut rig = Rig::active(config);
        rig.sent_packets();
        rig.init_ack().expect("acceptable");
        rig.sent_packets();
        rig.input(|b| b.cookie_ack().expect("room")).expect("acceptable");
        assert_eq!(rig.event(), Some(Event::Up { streams: 10 }));
        assert_eq!(rig.sent_packets(), [""; 0]);
        rig
    }

    /// Returns an association in `state`.
    pub(super) fn in_state(state: State) -> Rig {
        match state {
            State::CookieWait => {
                let mut rig = Rig::active(Config::default());
                rig.sent_packets();
                return rig;
            }
            State::CookieEchoed => return Rig::cookie_echoed(),
            _ => {}
        }
        let mut rig = Rig::established();
        match state {
            State::ShutdownPending => {
                rig.upper.queue.push_back((1, 100));
                rig.association.shutdown(rig.now);
                rig.sent_packets();
            }
            State::ShutdownSent => {
                rig.association.shutdown(rig.now);
                assert_eq!(rig.sent_packets(), ["P: SHUTDOWN(0)"]);
            }
            State::ShutdownReceived => {
                rig.upper.queue.push_back((1, 100));
                rig.sent_packets();
                let cumulative = rig.association.identity.local_tsn.sub(1);
                rig.input(|b| b.shutdown(cumulative).expect("room")).expect("acceptable");
                rig.event();
            }
            State::ShutdownAckSent => {
                let cumulative = rig.association.identity.local_tsn.sub(1);
                rig.input(|b| b.shutdown(cumulative).expect("room")).expect("acceptable");
                rig.event();
                assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
            }
            State::Closed => {
                rig.association.abort(rig.now, b"");
                rig.event();
                assert_eq!(rig.sent_packets(), ["P: ABORT(12)"]);
            }
            _ => {}
        }
        assert_eq!(rig.state(), state);
        rig
    }

    pub(super) fn state(&self) -> State {
        self.association.state()
    }

    pub(super) fn event(&mut self) -> Option<Event> {
        self.association.poll_event()
    }

    /// Passes a valid INIT ACK of the peer to the association.
    pub(super) fn init_ack(&mut self) -> Result<(), DropReason> {
        self.input_init_ack(
            &peer_header(),
            &[Parameter::StateCookie(b"cookie"), Parameter::Adaptation(1)],
        )
    }

    pub(super) fn input_init_ack(
        &mut self,
        header: &InitHeader,
        parameters: &[Parameter<'_>],
    ) -> Result<(), DropReason> {
        self.input(|b| b.init_ack(header, parameters).expect("room"))
    }

    /// Passes a packet with this end's tag to the association.
    pub(super) fn input(
        &mut self,
        write: impl FnOnce(&mut PacketBuilder<'_>),
    ) -> Result<(), DropReason> {
        self.input_tagged(self.association.local_tag(), write)
    }

    pub(super) fn input_tagged(
        &mut self,
        tag: Tag,
        write: impl FnOnce(&mut PacketBuilder<'_>),
    ) -> Result<(), DropReason> {
        self.input_bytes(&packet(tag, write))
    }

    pub(super) fn input_bytes(&mut self, bytes: &[u8]) -> Result<(), DropReason> {
        self.accept_bytes(bytes).result
    }

    pub(super) fn accept_bytes(&mut self, bytes: &[u8]) -> InputResult {
        let packet = Packet::new(bytes).expect("a common header");
        self.association.input(self.now, &packet, &mut self.upper)
    }

    /// Polls for packets with a full batch.
    pub(super) fn without_room(&mut self) {
        let mut batch = Batch { room: 0, ..Batch::new() };
        self.association.poll_transmit(self.now, &mut self.upper, &mut batch);
    }

    /// Advances the time with full batches until no timer runs. Returns the elapsed time.
    pub(super) fn wait_without_room(&mut self) -> Duration {
        let from = self.now;
        self.without_room();
        while let Some(at) = self.association.poll_timeout() {
            self.now = self.now.max(at);
            self.association.handle_timeout(self.now);
            self.without_room();
            assert!(
                self.now - from < Duration::from_secs(3600),
                "a timer still runs after an hour"
            );
        }
        self.now - from
    }

    /// Returns the packets due now.
    pub(super) fn packets(&mut self) -> Vec<Vec<u8>> {
        let before = self.association.stats().packets_out;
        let mut batch = Batch::new();
        self.association.poll_transmit(self.now, &mut self.upper, &mut batch);
        assert!(batch.packets.len() < 1000, "the number of due packets is bounded");
        let counted = self.association.stats().packets_out - before;
        assert_eq!(counted, batch.packets.len() as u64, "every packet is counted");
        batch.packets
    }

    pub(super) fn sent_packets(&mut self) -> Vec<String> {
        let packets = self.packets();
        packets.iter().map(|packet| self.describe(packet)).collect()
    }

    /// Advances the time by `time`. Returns the packets sent, each with the seconds since the call.
    pub(super) fn wait(&mut self, time: Duration) -> Vec<(u64, String)> {
        let (from, until) = (self.now, self.now + time);
        let mut sent = Vec::new();
        while let Some(at) = self.association.poll_timeout().filter(|at| *at <= until) {
            assert!(at >= self.now || sent.len() < 1000, "a time-out in the past that repeats");
            self.now = self.now.max(at);
            self.association.handle_timeout(self.now);
            let seconds = self.now.saturating_since(from).as_secs();
            sent.extend(self.sent_packets().into_iter().map(|words| (seconds, words)));
        }
        self.now = until;
        sent
    }

    /// Returns a packet in this module's notation.
    pub(super) fn describe(&self, bytes: &[u8]) -> String {
        let packet = Packet::new(bytes).expect("a common header");
        assert!(packet.checksum_ok());
        assert_eq!(bytes.len() % 4, 0);
        let tag = match packet.tag() {
            Tag::NONE => "0".into(),
            PEER_TAG => "P".into(),
            tag if tag == self.association.local_tag() => "L".into(),
            tag => format!("{:x}", tag.0),
        };
        let chunks = packet.chunks().map(|raw| {
            let chunk = Chunk::parse(raw.expect("whole")).expect("well formed");
            self.describe_chunk(&chunk)
        });
        format!("{tag}: {}", chunks.collect::<Vec<_>>().join(" "))
    }

    fn describe_chunk(&self, chunk: &Chunk<'_>) -> String {
        // The TSN before the initial TSN is 0.
        let theirs = |tsn: Tsn| tsn.distance_from(PEER_TSN.sub(1)) as i32;
        let ours = |tsn: Tsn| tsn.distance_from(self.association.identity.local_tsn.sub(1)) as i32;
        let causes = |causes: &wire::sctp::Causes<'_>| -> String {
            let codes =
                causes.into_iter().map(|cause| cause.expect("well formed").code().to_string());
            codes.collect::<Vec<_>>().join(",")
        };
        let t = |reflected: &bool| if *reflected { " T" } else { "" };
        match chunk {
            Chunk::Data(data) => format!("DATA({})", ours(data.header.tsn)),
            Chunk::Init(_) => "INIT".into(),
            Chunk::InitAck(_) => "INIT-ACK".into(),
            Chunk::Sack(sack) => format!("SACK({})", theirs(sack.header.cumulative)),
            Chunk::Heartbeat(_) => "HEARTBEAT".into(),
            Chunk::HeartbeatAck(_) => "HEARTBEAT-ACK".into(),
            Chunk::Abort { reflected, causes: c } => {
                format!("ABORT({}){}", causes(c), t(reflected))
            }
            Chunk::Shutdown { cumulative } => format!("SHUTDOWN({})", theirs(*cumulative)),
            Chunk::ShutdownAck => "SHUTDOWN-ACK".into(),
            Chunk::Error(c) => format!("ERROR({})", causes(c)),
            Chunk::CookieEcho(_) => "COOKIE-ECHO".into(),
            Chunk::CookieAck => "COOKIE-ACK".into(),
            Chunk::ShutdownComplete { reflected } => format!("SHUTDOWN-COMPLETE{}", t(reflected)),
            Chunk::Pad => "PAD".into(),
            Chunk::Unknown(unknown) => format!("UNKNOWN({})", unknown.bytes[0]),
        }
    }
}

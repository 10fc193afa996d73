//! Fuzz target for an endpoint over SCTP (RFC 5043): an established association that accepts all session requests. The
//! peer's messages are arbitrary, and their TSNs may arrive out of order.
//!
//! Input: one byte of configuration (bit 0: linger of 1000 s; bit 1: last message enabled; bit 2: RDMAP, otherwise bare
//! DDP), then records
//!
//! ```text
//!   flags (1) bits 0, 1: 0 a message with the skipped TSN, if there is one, otherwise with the next TSN
//!                        1 a message with the TSN after the next TSN, which is skipped
//!                        2 a packet with the record's bytes as its chunks
//!                        3 an advance of the time by 10 ms for each byte of the record
//!             bit 2: the message is 1 session control, 0 a DDP segment    bits 3 to 5: its stream
//!             bit 6: before that, all TSNs sent by the endpoint are acknowledged
//!             bit 7: before that, a message is posted to each session
//!   length (1)
//!   bytes (length)
//! ```

use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::{
    Access, BufferPool, Cookie, EndpointPolicy, HoldBudget, Message, PdId, Qn, QueueConfig, Source,
    Stag, StagEntry, StagTable, StreamConfig, StreamId, TaggedOffset, VecMemory, rdmap,
};
use sctp_lite::endpoint::{
    Context, Endpoint, EndpointConfig, Event, SessionEvent, SessionId, UlpConfig,
};
use sctp_lite::sctp::{Config, Secrets};
use wire::sctp::{Chunk, DataHeader, GapBlock, Packet, PacketBuilder, SackHeader, Tsn};

use crate::sctp::{Batch, PEER_TSN, cookie, ends};

/// Region that the peer may read and write. Its contents are not checked.
const OPEN: Stag = Stag(0x700);
/// Region without access rights. Its contents must not change.
const SECRET: Stag = Stag(0xa00);
const LEN: usize = 256;
const PD: PdId = PdId(1);
/// Upper bound of the length of the peer's messages, in bytes.
const MESSAGE: usize = 256;

pub(crate) fn sctp_endpoint(data: &[u8]) {
    let Some((&flags, mut records)) = data.split_first() else { return };
    let mut end = End::new(flags);
    while let Some((&[flags, len], rest)) = records.split_first_chunk::<2>() {
        let (bytes, next) = rest.split_at(usize::from(len).min(rest.len()));
        records = next;
        end.input_record(flags, bytes);
    }
    end.finish();
}

struct End {
    endpoint: Endpoint<VecMemory>,
    ulp: UlpConfig,
    stags: StagTable<VecMemory>,
    pool: BufferPool,
    hold: HoldBudget,
    secret: VecMemory,
    now: Instant,
    /// Next new TSN of the peer.
    next_tsn: Tsn,
    /// Earlier TSN that the peer has not sent yet.
    skipped_tsn: Option<Tsn>,
    /// Highest TSN that the endpoint has sent.
    sent_tsn: Option<Tsn>,
    sessions: Vec<SessionId>,
    /// By SCTP stream: true from the report of a session request to the report of the session's end.
    open_streams: [bool; 8],
}

fn secret_bytes() -> Vec<u8> {
    (0..LEN as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

impl End {
    fn new(flags: u8) -> Self {
        let now = Instant::from_millis(1);
        let (config, secrets) = (Arc::new(Config::default()), Arc::new(Secrets::new([1; 16])));
        let (cookie, echo) = cookie(now, &config, &secrets);
        let endpoint_config = EndpointConfig {
            linger: Duration::from_secs(u64::from(flags & 1) * 1000),
            policy: EndpointPolicy { last_message: flags & 2 != 0, ..EndpointPolicy::default() },
            ..EndpointConfig::default()
        };
        let endpoint_config = Arc::new(endpoint_config);
        let endpoint =
            Endpoint::accept(config, endpoint_config, secrets, ends(), 1480, &cookie, now);
        let queue = QueueConfig { qn: Qn(0), buffers: 4, buffer_size: 64 };
        let ulp = match flags & 4 {
            0 => StreamConfig {
                queues: vec![queue, QueueConfig::error_queue()],
                ..StreamConfig::default()
            }
            .into(),
            _ => rdmap::Config::default().into(),
        };
        let secret = VecMemory::from_vec(secret_bytes());
        let mut stags = StagTable::new();
        let entry = StagEntry {
            stag: OPEN,
            pd: PD,
            stream: None,
            base_to: TaggedOffset(0),
            len: LEN as u64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            memory: VecMemory::new(LEN),
            memory_offset: 0,
        };
        let closed = StagEntry {
            stag: SECRET,
            access: Access::NONE,
            memory: secret.clone(),
            ..entry.clone()
        };
        stags.insert(entry).expect("an empty table");
        stags.insert(closed).expect("another STag");
        let mut end = End {
            endpoint,
            ulp,
            stags,
            pool: BufferPool::new(1 << 16),
            hold: HoldBudget::new(1 << 16),
            secret,
            now,
            next_tsn: PEER_TSN,
            skipped_tsn: None,
            sent_tsn: None,
            sessions: Vec::new(),
            open_streams: [false; 8],
        };
        end.input(&echo);
        end
    }

    fn input_record(&mut self, flags: u8, bytes: &[u8]) {
        if flags & 0x40 != 0 {
            self.acknowledge();
        }
        if flags & 0x80 != 0 {
            self.post(bytes);
        }
        match flags & 3 {
            0 => {
                let tsn = self.skipped_tsn.take().unwrap_or_else(|| self.take_tsn());
                self.input_message(flags, tsn, bytes);
            }
            1 => {
                let skipped = self.take_tsn();
                self.skipped_tsn.get_or_insert(skipped);
                let tsn = self.take_tsn();
                self.input_message(flags, tsn, bytes);
            }
            2 => self.input(&crate::sctp::packet(self.endpoint.local_tag(), bytes)),
            _ => {
                self.now += Duration::from_millis(10 * bytes.len() as u64);
                self.poll();
            }
        }
    }

    fn take_tsn(&mut self) -> Tsn {
        let tsn = self.next_tsn;
        self.next_tsn = tsn.add(1);
        tsn
    }

    fn input_message(&mut self, flags: u8, tsn: Tsn, bytes: &[u8]) {
        let header = DataHeader {
            tsn,
            stream: u16::from(flags >> 3 & 7),
            ppid: if flags & 4 == 0 { 16 } else { 17 },
            unordered: true,
            begin: true,
            end: true,
            ..DataHeader::default()
        };
        let len = bytes.len().max(1);
        self.input_chunk(|packet| {
            packet.data_buffer()[..len].fill(0);
            packet.data_buffer()[..bytes.len()].copy_from_slice(bytes);
            packet.push_data(&header, len).expect("room");
        });
    }

    fn acknowledge(&mut self) {
        let Some(cumulative) = self.sent_tsn else { return };
        let header = SackHeader { cumulative, a_rwnd: 65_536 };
        let gaps: [GapBlock; 0] = [];
        self.input_chunk(|packet| packet.sack(header, &gaps, &[]).expect("room"));
    }

    fn input_chunk(&mut self, write: impl FnOnce(&mut PacketBuilder<'_>)) {
        let mut out = [0; MESSAGE + 64];
        let tag = self.endpoint.local_tag();
        let mut packet = PacketBuilder::new(&mut out, ends().ports().reversed(), tag);
        write(&mut packet);
        let len = packet.finish();
        self.input(&out[..len]);
    }

    fn post(&mut self, bytes: &[u8]) {
        for session in self.sessions.clone() {
            let source = Source::Bytes(Arc::from(bytes));
            let (stag, to) = (Stag(1), TaggedOffset(0));
            let message =
                Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(1) };
            // The post may be refused, for example because the session closes or its ULP is RDMAP.
            let _ = self.endpoint.post(session, message);
        }
    }

    fn input(&mut self, bytes: &[u8]) {
        let packet = Packet::new(bytes).expect("a common header");
        let cx = &mut Context { stags: &self.stags, buffers: &mut self.pool, hold: &mut self.hold };
        // The input is arbitrary, so any drop reason is allowed.
        let _ = self.endpoint.input(self.now, &packet, cx);
        self.poll();
    }

    /// Runs timers, transmission and events, as a worker does after a burst.
    fn poll(&mut self) {
        if self.endpoint.poll_timeout().is_some_and(|at| at <= self.now) {
            let cx =
                &mut Context { stags: &self.stags, buffers: &mut self.pool, hold: &mut self.hold };
            self.endpoint.handle_timeout(self.now, cx);
        }
        self.poll_events();
        let mut batch = Batch::default();
        self.endpoint.poll_transmit(self.now, &mut batch);
        for bytes in batch.packets() {
            let packet = Packet::new(bytes).expect("a common header");
            assert!(packet.checksum_ok());
            for raw in packet.chunks() {
                let chunk = Chunk::parse(raw.expect("whole")).expect("well formed");
                if let Chunk::Data(data) = chunk {
                    assert!(data.header.unordered && matches!(data.header.ppid, 16 | 17));
                    let last = self.sent_tsn.get_or_insert(data.header.tsn);
                    if data.header.tsn.after(*last) {
                        *last = data.header.tsn;
                    }
                }
            }
        }
        self.poll_events();
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            let Event::Session(session, event) = event else { continue };
            let open = self.open_streams.get_mut(usize::from(session.stream));
            match event {
                SessionEvent::Request { .. } => {
                    if let Some(open) = open {
                        assert!(!*open, "a second request in one session");
                        *open = true;
                    }
                    let (id, ulp) = (StreamId(u64::from(session.stream)), self.ulp.clone());
                    let cx = &mut Context {
                        stags: &self.stags,
                        buffers: &mut self.pool,
                        hold: &mut self.hold,
                    };
                    let accepted =
                        self.endpoint.accept_session(self.now, session, id, PD, b"", ulp, cx);
                    if accepted.is_ok() {
                        self.sessions.push(session);
                    }
                }
                SessionEvent::Closed { .. } => {
                    if let Some(open) = open {
                        *open = false;
                    }
                    self.sessions.retain(|other| *other != session);
                }
                SessionEvent::Ddp(_) | SessionEvent::Rdmap(_) | SessionEvent::Idle => {
                    assert!(
                        self.sessions.contains(&session),
                        "{event:?} of a session that has ended"
                    );
                }
                SessionEvent::Established { .. } => {}
            }
        }
    }

    fn finish(&mut self) {
        assert_eq!(self.secret.to_vec(), secret_bytes());
        let cx = &mut Context { stags: &self.stags, buffers: &mut self.pool, hold: &mut self.hold };
        self.endpoint.abort(self.now, cx);
        self.poll();
        assert!(self.endpoint.is_done());
        assert_eq!((self.pool.in_use(), self.hold.used()), (0, 0));
    }
}

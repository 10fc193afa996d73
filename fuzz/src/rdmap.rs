//! Fuzz target for RDMAP: headers, and a stream that receives arbitrary segments in arbitrary order.
//!
//! The input of the stream is one byte of configuration, then records:
//!
//! ```text
//!   flags (1) bit 0: the ULPDU of this record is delivered after that of the next record
//!             bit 1: post a Read; bit 2: post an atomic; bit 3: pull and acknowledge all pending messages
//!   length (1)
//!   ULPDU, that many bytes
//! ```

use ddp::llp::{OrderKey, Ulpdu, UlpduSink as _, UlpduSource as _};
use ddp::memory::RegionMemory as _;
use ddp::rdmap::{AtomicOp, Config, Event, Receive, ReceiveMode, Stream, Terminate, WorkRequest};
use ddp::{
    Access, BufferPool, Context, Cookie, PdId, Span, SpanList, Stag, StagEntry, StagTable,
    StreamId, TaggedOffset, VecMemory, VersionPolicy,
};
use wire::rdmap::{AtomicRequestRepr, AtomicResponseRepr, Control, Opcode, ReadRequestRepr};

/// Region with the access rights read, write and atomic.
const OPEN: Stag = Stag(0x700);
/// Region bound to the stream, so that the peer may invalidate the STag.
const OWN: Stag = Stag(0x800);
/// Sink of the Reads that the stream posts, without remote access rights.
const SINK: Stag = Stag(0x900);
/// Region without remote access rights: the stream must never read or write it.
const SECRET: Stag = Stag(0xa00);
/// Length of each region, bytes.
const LEN: usize = 256;
/// Length of each posted Read, bytes.
const READ: u32 = 16;
/// Number of posted receives.
const RECEIVES: u64 = 4;
/// Distance between the memory of consecutive receives, bytes.
const RECEIVE_STRIDE: u64 = 64;
/// Offset and length of each span of a receive, bytes.
const RECEIVE_SPANS: [(u64, u32); 2] = [(8, 20), (32, 12)];

pub(crate) fn rdmap(data: &[u8]) {
    check_headers(data);
    let Some((&flags, records)) = data.split_first() else { return };
    let mut end = End::new(flags);
    end.run(records);
    end.check();
}

/// Checks parsed headers: a header type without reserved bits is written with the same bytes. Any other header is equal
/// after it is written and parsed again.
fn check_headers(data: &[u8]) {
    if let Ok(repr) = ReadRequestRepr::parse(data) {
        assert_eq!(repr.emit(), data[..28]);
    }
    if let Ok(repr) = AtomicRequestRepr::parse(data) {
        assert_eq!(AtomicRequestRepr::parse(&repr.emit()), Ok(repr));
    }
    if let Ok(repr) = AtomicResponseRepr::parse(data) {
        assert_eq!(repr.emit(), data[..12]);
    }
    for repr in [Terminate::parse(data), Terminate::parse_siw(data)].into_iter().flatten() {
        // A Terminate is written in the RFC's layout. After that, parsing and writing must not change it.
        let parsed = Terminate::parse(&repr.emit());
        let Ok(parsed) = parsed else { panic!("a written Terminate cannot be parsed: {parsed:?}") };
        assert_eq!(Terminate::parse(&parsed.emit()), Ok(parsed));
    }
}

/// Returns the contents of [`SECRET`], which no input contains by chance.
fn secret_bytes() -> Vec<u8> {
    (0..LEN as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

struct End {
    stream: Stream<VecMemory>,
    stags: StagTable<VecMemory>,
    pool: BufferPool,
    sink: VecMemory,
    secret: VecMemory,
    /// Memory of the posted receives.
    received: VecMemory,
    /// Number of posted receives.
    receives_posted: u64,
    /// Number of receives that have ended.
    receives_ended: u64,
    reads: u64,
    terminated: bool,
}

impl End {
    fn new(flags: u8) -> Self {
        let id = StreamId(1);
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC;
        let (sink, secret) = (VecMemory::new(LEN), VecMemory::from_vec(secret_bytes()));
        let mut stags = StagTable::new();
        for (stag, stream, access, memory) in [
            (OPEN, None, all, VecMemory::new(LEN)),
            (OWN, Some(id), all, VecMemory::new(LEN)),
            (SINK, None, Access::NONE, sink.clone()),
            (SECRET, Some(id), Access::NONE, secret.clone()),
        ] {
            let (pd, base_to, len) = (PdId(1), TaggedOffset(0), LEN as u64);
            let memory_offset = 0;
            stags
                .insert(StagEntry { stag, pd, stream, base_to, len, access, memory, memory_offset })
                .unwrap_or_else(|error| panic!("a new table: {error}"));
        }
        let config = Config {
            ird: 3,
            ord: 3,
            recv_buffers: 4,
            recv_size: 128,
            max_operations: 8,
            max_responses: 4,
            atomics: flags & 1 == 0,
            immediate: flags & 2 == 0,
            rtr_send: flags & 4 != 0,
            siw: flags & 16 != 0,
            version: if flags & 8 != 0 { VersionPolicy::AdoptFirst } else { VersionPolicy::V1 },
            max_ooo_records: 16,
            hold_confirmations: flags & 32 != 0,
            receives: match flags & 64 {
                0 => ReceiveMode::Pooled,
                _ => ReceiveMode::Posted { max_receives: RECEIVES as u32 },
            },
            copy_sources: false,
        };
        let posted = config.receives != ReceiveMode::Pooled;
        let mut end = End {
            stream: Stream::new(id, PdId(1), config),
            stags,
            pool: BufferPool::new(1 << 14),
            sink,
            secret,
            received: VecMemory::new(LEN),
            receives_posted: 0,
            receives_ended: 0,
            reads: 0,
            terminated: false,
        };
        (0..RECEIVES).filter(|_| posted).for_each(|_| end.post_receive());
        end
    }

    /// Posts the next receive. Refused once the stream has ended.
    fn post_receive(&mut self) {
        let start = self.receives_posted % RECEIVES * RECEIVE_STRIDE;
        let spans = RECEIVE_SPANS.map(|(at, len)| Span {
            memory: self.received.clone(),
            offset: start + at,
            len,
        });
        let spans = SpanList::new(spans).unwrap_or_else(|error| panic!("{error}"));
        let receive = Receive { cookie: self.receives_posted, spans };
        self.receives_posted += u64::from(self.stream.post_receive(receive).is_ok());
    }

    /// Checks that receives end in the order of posting.
    fn end_receive(&mut self, cookie: u64) {
        assert_eq!(cookie, self.receives_ended);
        self.receives_ended += 1;
    }

    fn run(&mut self, mut records: &[u8]) {
        let mut key = 0;
        let mut delayed: Option<(u64, Vec<u8>)> = None;
        while let Some((&[flags, len], rest)) = records.split_first_chunk::<2>() {
            let (ulpdu, rest) = rest.split_at(usize::from(len).min(rest.len()));
            records = rest;
            if flags & 1 != 0 && delayed.is_none() {
                delayed = Some((key, ulpdu.to_vec()));
            } else {
                self.input(key, ulpdu);
                if let Some((key, ulpdu)) = delayed.take() {
                    self.input(key, &ulpdu);
                }
            }
            key += 1;
            self.post(flags);
            if flags & 8 != 0 {
                self.pull_segments();
            }
            self.poll_events();
        }
        self.pull_segments();
        self.poll_events();
    }

    fn input(&mut self, key: u64, ulpdu: &[u8]) {
        let cx = Context { stags: &self.stags, buffers: &mut self.pool };
        let pieces = [ulpdu];
        // A refused ULPDU counts as lost and this target does not retransmit it.
        let _disposition = self.stream.sink(cx).ulpdu(OrderKey(key), Ulpdu::new(&pieces));
        assert!(self.stream.requests_held() <= 3);
    }

    fn post(&mut self, flags: u8) {
        let (source_stag, source_to) = (Stag(1), TaggedOffset(0));
        let sink_to = TaggedOffset(self.reads * u64::from(READ));
        let has_room = self.reads < 4;
        let read = WorkRequest::Read {
            sink_stag: SINK,
            sink_to,
            source_stag,
            source_to,
            len: READ,
            cookie: Cookie::user(1),
        };
        if flags & 2 != 0 && has_room && self.stream.post(read).is_ok() {
            self.reads += 1;
        }
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let atomic =
            WorkRequest::Atomic { op, stag: source_stag, to: source_to, cookie: Cookie::user(2) };
        if flags & 4 != 0 {
            // A post may be refused: queue full, stream closed, or no atomics.
            let _posted = self.stream.post(atomic);
        }
    }

    /// Pulls and acknowledges all pending messages. Checks that no message follows a Terminate or contains bytes of
    /// [`SECRET`].
    fn pull_segments(&mut self) {
        while let Some(out) = self.stream.next(128) {
            assert!(!self.terminated, "a message after the Terminate");
            assert!(out.len() <= 128);
            let opcode = Control(out.header.rsvd_ulp()).opcode();
            let mut payload = vec![0; out.payload_len];
            self.stream.read_payload(out.token, 0, &mut payload);
            let hidden = secret_bytes();
            let leaks = payload.windows(8).any(|seen| hidden.windows(8).any(|bytes| bytes == seen));
            assert!(!leaks, "bytes of a region without rights were sent");
            self.terminated = opcode == Some(Opcode::Terminate);
            if self.terminated {
                assert!(Terminate::parse(&payload).is_ok());
            }
            self.stream.on_acknowledged(out.token, out.payload_len);
        }
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.stream.poll_event() {
            match event {
                Event::Received { .. } | Event::Immediate { .. } => {
                    self.stream.post_buffers(1).unwrap_or_else(|error| panic!("{error}"));
                }
                Event::ReceivedInto { cookie, .. } | Event::ImmediateInto { cookie, .. } => {
                    self.end_receive(cookie);
                    self.post_receive();
                }
                Event::ReceiveFlushed { cookie } => self.end_receive(cookie),
                Event::Error(error) => drop(error.to_string()),
                _ => {}
            }
        }
    }

    fn check(mut self) {
        let mut bytes = vec![0; LEN];
        self.secret.read(0, &mut bytes);
        assert!(bytes == secret_bytes(), "a region without rights was written");
        self.sink.read(0, &mut bytes);
        let read_len = (self.reads * u64::from(READ)) as usize;
        assert!(
            bytes[read_len..].iter().all(|byte| *byte == 0),
            "bytes beyond the requested Reads were written"
        );
        self.stream.release(&mut self.pool);
        assert_eq!(self.pool.in_use(), 0);
        self.poll_events();
        assert_eq!(self.receives_ended, self.receives_posted);
        assert!(!self.stream.uses_memory(&self.received));
        self.received.read(0, &mut bytes);
        let in_receive = |at: u64| {
            RECEIVE_SPANS.iter().any(|(start, len)| (*start..start + u64::from(*len)).contains(&at))
        };
        let mut guards = (0..LEN as u64).filter(|at| !in_receive(at % RECEIVE_STRIDE));
        assert!(guards.all(|at| bytes[at as usize] == 0), "written outside of the receives");
    }
}

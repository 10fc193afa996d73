//! Fuzz targets for MPA: start-up frames in pieces, and a stream of FPDUs that arrives out of order.

use ddp::memory::RegionMemory as _;
use ddp::{
    Access, BufferPool, Context, Event, PdId, Qn, QueueConfig, Stag, StagEntry, StagTable, Stream,
    StreamConfig, StreamId, TaggedOffset, VecMemory, VersionPolicy,
};
use tcp_lite::mpa::{
    Config, Depths, HoldBudget, Params, Peer, Progress, Receiver, Revision, Startup, StartupError,
};
use tcp_lite::seam::SpanOutcome;

/// IRD and ORD of the end under test.
const LOCAL_DEPTHS: Depths = Depths { ird: 4, ord: 4 };

/// Passes the bytes to an initiator or a responder in pieces of 1 to 8 bytes. The input chooses the length. The outcome
/// must equal that of the same bytes in one piece.
pub(crate) fn mpa_startup(data: &[u8]) {
    let Some((&flags, bytes)) = data.split_first() else { return };
    let peer = if flags & 0x80 == 0 { Peer::Standard } else { Peer::SmbDirect };
    let config = Config { markers: flags & 1 != 0, crc: flags & 2 != 0, peer, ..Config::default() };
    let make = || {
        if flags & 4 == 0 {
            return Startup::responder(&config);
        }
        let initiate = [Revision::Draft, Revision::Zero, Revision::One, Revision::Two];
        let config = Config { initiate: initiate[usize::from(flags >> 3) % 4], ..config.clone() };
        Startup::initiator(&config, LOCAL_DEPTHS, b"")
            .unwrap_or_else(|error| panic!("empty private data: {error}"))
    };
    let unsplit = run_startup(make(), bytes, usize::MAX);
    let pieces = run_startup(make(), bytes, usize::from(flags >> 5) + 1);
    assert_eq!(unsplit, pieces);
}

/// Returns the number of start-up bytes (0 after an error) and the outcome; `None` if the start-up is incomplete.
fn run_startup(mut startup: Startup, bytes: &[u8], piece: usize) -> Option<(usize, String)> {
    let mut used = 0;
    for chunk in bytes.chunks(piece.min(bytes.len().max(1))) {
        match startup.input(chunk) {
            // Only a first piece that is long enough identifies another protocol. Both errors count as one outcome.
            Err(StartupError::Foreign(_) | StartupError::BadKey { at: 0 }) => {
                return Some((0, "not MPA".into()));
            }
            Err(error) => return Some((0, error.to_string())),
            Ok((n, progress)) => {
                used += n;
                if let Some(progress) = progress {
                    if matches!(progress, Progress::Request(_)) {
                        startup.accept(LOCAL_DEPTHS, b"ok").ok();
                    }
                    return Some((used, format!("{progress:?} {:02x?}", startup.output())));
                }
            }
        }
    }
    None
}

/// Passes the bytes twice to a stream in Full Operation without CRCs. The first run passes them in order and in one
/// piece. The second run passes them in pieces, partly out of order, and repeats refused pieces. Both runs must report
/// the same events and leave the same memory.
///
/// The second run may find an error before its FPDU is complete and before earlier FPDUs have arrived. Messages of
/// these earlier FPDUs are then not delivered. Therefore, after an error, the events must be a prefix of the first
/// run's.
pub(crate) fn mpa_stream(data: &[u8]) {
    let Some((&[flags, seed], bytes)) = data.split_first_chunk::<2>() else { return };
    let in_order = Sink::new(flags).run(bytes, &[(0, bytes.len())]);
    let shuffled = Sink::new(flags).run(bytes, &shuffled_pieces(bytes.len(), seed));
    assert_eq!(in_order.failed, shuffled.failed);
    if in_order.failed {
        assert!(in_order.events.starts_with(&shuffled.events), "{:?}", shuffled.events);
    } else {
        assert_eq!(in_order.events, shuffled.events);
        assert_eq!(in_order.memory, shuffled.memory);
    }
}

/// Cuts `len` bytes into pieces of 1 to 700 bytes and reorders some of them. Returns the offset and length of each
/// piece.
fn shuffled_pieces(len: usize, seed: u8) -> Vec<(usize, usize)> {
    let mut state = u64::from(seed) | 0x9e37_79b9_0000_0100;
    let mut random = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    let mut cuts = Vec::new();
    let mut at = 0;
    while at < len {
        let n = (1 + random(700)).min(len - at);
        cuts.push((at, n));
        at += n;
    }
    for i in 0..cuts.len() {
        let j = i + random((cuts.len() - i).min(8));
        cuts.swap(i, j);
    }
    cuts
}

#[derive(PartialEq, Eq)]
struct Outcome {
    events: Vec<Event>,
    failed: bool,
    memory: Vec<u8>,
}

struct Sink {
    receiver: Receiver,
    stream: Stream<VecMemory>,
    stags: StagTable<VecMemory>,
    buffers: BufferPool,
    budget: HoldBudget,
    memory: VecMemory,
}

impl Sink {
    fn new(flags: u8) -> Self {
        let revision = if flags & 2 == 0 { Revision::One } else { Revision::Draft };
        let params = Params {
            revision,
            markers_tx: false,
            markers_rx: flags & 1 != 0,
            crc: false,
            agreed: None,
        };
        let memory = VecMemory::new(4096);
        let mut stags = StagTable::new();
        let entry = StagEntry {
            stag: Stag(7),
            pd: PdId(1),
            stream: None,
            base_to: TaggedOffset(0),
            len: memory.len(),
            access: Access::REMOTE_WRITE,
            memory: memory.clone(),
            memory_offset: 0,
        };
        stags.insert(entry).unwrap_or_else(|error| panic!("a new table: {error}"));
        let queue = QueueConfig { qn: Qn(0), buffers: 4, buffer_size: 2048 };
        let config = StreamConfig {
            queues: vec![queue, QueueConfig::error_queue()],
            version: if flags & 4 == 0 { VersionPolicy::AdoptFirst } else { VersionPolicy::V1 },
            ..StreamConfig::default()
        };
        Sink {
            receiver: Receiver::new(&Config::default(), &params, 20),
            stream: Stream::new(StreamId(1), PdId(1), config),
            stags,
            buffers: BufferPool::new(1 << 20),
            budget: HoldBudget::new(1 << 20),
            memory,
        }
    }

    /// Passes the pieces of `bytes`, given by offset and length, to the stream. Repeats refused pieces until all are
    /// taken.
    fn run(mut self, bytes: &[u8], pieces: &[(usize, usize)]) -> Outcome {
        let mut waiting: Vec<(usize, usize)> = pieces.to_vec();
        let mut rounds = 0;
        while !waiting.is_empty() {
            let mut refused = Vec::new();
            for (at, len) in waiting {
                self.input_piece(bytes, at, len, &mut refused);
            }
            waiting = refused;
            rounds += 1;
            assert!(rounds <= pieces.len() + 1, "bytes in order must be taken");
        }
        let mut outcome =
            Outcome { events: Vec::new(), failed: false, memory: self.memory.to_vec() };
        let closed = self.receiver.on_peer_closed(&mut self.budget);
        outcome.failed = closed.is_some() || self.receiver.error().is_some();
        assert_eq!(self.budget.used(), 0, "bytes held after the end");
        while let Some(event) = self.stream.poll_event() {
            match event {
                Event::Error(_) | Event::Failed(_) => outcome.failed = true,
                event => outcome.events.push(event),
            }
        }
        outcome
    }

    fn input_piece(
        &mut self,
        bytes: &[u8],
        at: usize,
        len: usize,
        refused: &mut Vec<(usize, usize)>,
    ) {
        let base = 20;
        let cx = Context { stags: &self.stags, buffers: &mut self.buffers };
        let span = &bytes[at..at + len];
        let mut sink = self.stream.sink(cx);
        match self.receiver.take_span((at + base) as u64, span, None, &mut sink, &mut self.budget) {
            SpanOutcome::All => {}
            SpanOutcome::Part(range) => {
                let (from, to) = (range.start as usize - base, range.end as usize - base);
                assert!(
                    range.is_empty() || (at <= from && to <= at + len),
                    "taken outside the span"
                );
                if range.is_empty() {
                    refused.push((at, len));
                } else {
                    refused
                        .extend([(at, from - at), (to, at + len - to)].iter().filter(|p| p.1 > 0));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_corpus_streams_deliver_their_messages() {
        for name in ["good-4", "good-5"] {
            let path = format!("{}/corpus/mpa_stream/{name}", env!("CARGO_MANIFEST_DIR"));
            let data = std::fs::read(path).expect("the corpus is there");
            let bytes = &data[2..];
            let outcome = Sink::new(data[0]).run(bytes, &shuffled_pieces(bytes.len(), data[1]));
            assert!(!outcome.failed, "{name}");
            assert_eq!(outcome.events.len(), 5, "{name}");
            assert_eq!(outcome.memory[1200..1500], [b'b'; 300], "{name}");
        }
    }
}

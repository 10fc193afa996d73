//! A minimal LLP that meets RFC 5041 §3. Its units have a number and a CRC, and each is retransmitted until it is
//! acknowledged. This LLP serves as the example of an LLP that uses the interface and passes the suite.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Fault, Pair, Side};
use crate::llp::{Disposition, OrderKey, Ulpdu, UlpduSink, UlpduSource, UlpduToken};
use crate::rdmap::{self, WorkRequest};
use crate::testing::STAG;
use crate::*;

/// Maximum number of units in flight.
const WINDOW: usize = 8;
/// Maximum number of retransmission rounds without an acknowledgement. After these rounds the connection counts as
/// lost.
const MAX_IDLE_ROUNDS: usize = 20;
const QUEUE: QueueConfig = QueueConfig { qn: MESSAGE_QUEUE, buffers: 32, buffer_size: 4096 };
const REGION: u64 = 256 * 1024;

/// Value of `KIND`, the ULP of a pair: bare DDP.
const DDP: u8 = 0;
/// Value of `KIND`: RDMAP with pooled receive buffers.
const RDMAP: u8 = 1;
/// Value of `KIND`: RDMAP with posted receives, each of two spans.
const RECEIVES: u8 = 2;

#[derive(Clone)]
enum Unit {
    Data { key: u64, bytes: Vec<u8>, crc: u32 },
    Fin { key: u64 },
    Ack { key: u64 },
}

struct End {
    stream: Ulp<VecMemory>,
    stags: StagTable<VecMemory>,
    pool: BufferPool,
    memory: VecMemory,
    mulpdu: usize,
    faults: VecDeque<Fault>,
    events: Vec<Event>,
    next_key: u64,
    /// ULPDUs in flight by key: token, payload bytes, true if acknowledged. An acknowledged ULPDU stays until all
    /// earlier ULPDUs are also acknowledged.
    in_flight: BTreeMap<u64, (UlpduToken, usize, bool)>,
    fin: Option<(u64, bool)>,
    /// All ULPDUs with keys below this key have arrived.
    arrived: u64,
    out_of_order: BTreeSet<u64>,
    failing: bool,
    peer_fin: bool,
    up: bool,
    idle_rounds: usize,
    /// Memory of the posted receives. `receives`: number of receives posted so far.
    received: VecMemory,
    receives: u64,
}

/// Two ends in memory. `KIND` is their ULP: `DDP`, `RDMAP`, or `RECEIVES` (RDMAP with posted receives).
pub(super) struct MemoryPair<const KIND: u8> {
    ends: [End; 2],
    network: VecDeque<(Side, Unit)>,
    delayed: Vec<(Side, Unit)>,
    cut: bool,
}

/// Computes the CRC bit by bit, which is fast enough for a test.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

impl End {
    fn new(id: u64, kind: u8) -> End {
        let memory = VecMemory::new(REGION as usize);
        let mut stags = StagTable::new();
        let entry = StagEntry {
            stag: STAG,
            pd: PdId(1),
            stream: None,
            base_to: TaggedOffset(0),
            len: REGION,
            access: Access::REMOTE_WRITE,
            memory: memory.clone(),
            memory_offset: 0,
        };
        stags.insert(entry).unwrap();
        let config = if kind != DDP {
            let (recv_buffers, recv_size) = (QUEUE.buffers, QUEUE.buffer_size);
            let receives = match kind {
                RECEIVES => rdmap::ReceiveMode::Posted { max_receives: QUEUE.buffers },
                _ => rdmap::ReceiveMode::Pooled,
            };
            let config =
                rdmap::Config { recv_buffers, recv_size, receives, ..rdmap::Config::default() };
            UlpConfig::Rdmap(config)
        } else {
            let queues = vec![QUEUE, QueueConfig::error_queue()];
            UlpConfig::Ddp(StreamConfig { queues, ..StreamConfig::default() })
        };
        let mut end = End {
            stream: Ulp::new(StreamId(id), PdId(1), config),
            stags,
            pool: BufferPool::new(1 << 20),
            memory,
            mulpdu: 1460,
            faults: VecDeque::new(),
            events: Vec::new(),
            next_key: 0,
            in_flight: BTreeMap::new(),
            fin: None,
            arrived: 0,
            out_of_order: BTreeSet::new(),
            failing: false,
            peer_fin: false,
            up: true,
            idle_rounds: 0,
            received: VecMemory::new((QUEUE.buffers * QUEUE.buffer_size) as usize),
            receives: 0,
        };
        (0..QUEUE.buffers).filter(|_| kind == RECEIVES).for_each(|_| end.post_receive());
        end
    }

    /// Posts the next receive. Has no effect after the end of the stream.
    fn post_receive(&mut self) {
        let cookie = self.receives;
        let at = cookie % u64::from(QUEUE.buffers) * u64::from(QUEUE.buffer_size);
        let first = (cookie * 7 % u64::from(QUEUE.buffer_size)) as u32;
        let span = |offset, len| Span { memory: self.received.clone(), offset, len };
        let rest = span(at + u64::from(first), QUEUE.buffer_size - first);
        let spans = SpanList::new([span(at, first), rest]).unwrap();
        self.receives += 1;
        let posted = self.stream.post_receive(rdmap::Receive { cookie, spans });
        assert!(matches!(posted, Ok(()) | Err(PostError::Closed)), "{posted:?}");
    }

    /// Returns the `len` bytes of the message in the receive `cookie`.
    fn received_bytes(&self, cookie: u64, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let at = cookie % u64::from(QUEUE.buffers) * u64::from(QUEUE.buffer_size);
        self.received.read(at, &mut bytes);
        bytes
    }

    /// Returns new data units, as many as the window allows, and the FIN once all data is sent.
    fn send(&mut self) -> Vec<Unit> {
        let mut units = Vec::new();
        while self.up && self.in_flight.len() < WINDOW {
            let Some(out) = self.stream.next(self.mulpdu) else { break };
            let key = self.next_key;
            self.next_key += 1;
            self.in_flight.insert(key, (out.token, out.payload_len, false));
            units.push(self.frame(key));
        }
        let all_out = self.stream.is_closed() && !self.stream.has_unsent();
        if self.up && all_out && self.fin.is_none() {
            self.fin = Some((self.next_key, false));
            units.push(Unit::Fin { key: self.next_key });
        }
        units
    }

    /// Returns the unacknowledged units for retransmission.
    fn retransmit(&self) -> Vec<Unit> {
        let data = self.in_flight.iter().filter(|(_, (_, _, acked))| !acked);
        let mut units: Vec<Unit> = data.map(|(key, _)| self.frame(*key)).collect();
        if let Some((key, false)) = self.fin {
            units.push(Unit::Fin { key });
        }
        units
    }

    fn frame(&self, key: u64) -> Unit {
        let (token, payload_len, _) = self.in_flight[&key];
        let out = self.stream.reframe(token, payload_len);
        let mut bytes = out.header.bytes().to_vec();
        bytes.resize(out.len(), 0);
        self.stream.read_payload(token, 0, &mut bytes[out.header.len()..]);
        Unit::Data { key, crc: crc32c(&bytes), bytes }
    }

    /// Receives a unit. Returns the acknowledgement to send, if any.
    fn receive(&mut self, unit: Unit) -> Option<Unit> {
        match unit {
            // RFC 5041 §3 (6): a unit with a wrong CRC is dropped.
            Unit::Data { bytes, crc, .. } if crc32c(&bytes) != crc => None,
            Unit::Data { key, bytes, .. } => self.on_data(key, &bytes),
            Unit::Fin { key } => {
                if key == self.arrived && !self.peer_fin {
                    self.peer_fin = true;
                    self.stream.on_peer_closed();
                }
                self.peer_fin.then_some(Unit::Ack { key })
            }
            Unit::Ack { key } => {
                self.on_ack(key);
                None
            }
        }
    }

    fn on_data(&mut self, key: u64, bytes: &[u8]) -> Option<Unit> {
        // RFC 5041 §3 (11): a duplicate is acknowledged and not passed on.
        if key < self.arrived || self.out_of_order.contains(&key) {
            return Some(Unit::Ack { key });
        }
        // RFC 5041 §3 (8): after an error no data is passed on.
        if !self.failing {
            let cx = Context { stags: &self.stags, buffers: &mut self.pool };
            let pieces = [bytes];
            let ulpdu = Ulpdu::new(&pieces);
            if self.stream.sink(cx).ulpdu(OrderKey(key), ulpdu) == Disposition::Refused {
                return None;
            }
        }
        self.out_of_order.insert(key);
        while self.out_of_order.remove(&self.arrived) {
            self.arrived += 1;
        }
        let cx = Context { stags: &self.stags, buffers: &mut self.pool };
        self.stream.sink(cx).order_complete(OrderKey(self.arrived));
        Some(Unit::Ack { key })
    }

    fn on_ack(&mut self, key: u64) {
        self.idle_rounds = 0;
        if let Some((fin, acked)) = &mut self.fin
            && *fin == key
        {
            *acked = true;
        }
        if let Some(unit) = self.in_flight.get_mut(&key) {
            unit.2 = true;
        }
        while let Some(first) = self.in_flight.first_entry().filter(|entry| entry.get().2) {
            let (token, payload_len, _) = first.remove();
            self.stream.on_acknowledged(token, payload_len);
        }
    }

    /// Acts as the ULP: polls events, reposts buffers, and posts the last message after an error. Shuts the end down
    /// when both directions are closed.
    fn run_ulp(&mut self) {
        while let Some(event) = self.stream.poll_event() {
            let event = match event {
                UlpEvent::Ddp(event) => Some(event),
                UlpEvent::Rdmap(rdmap::Event::ReceivedInto { cookie, len, .. }) => {
                    let data = self.received_bytes(cookie, len);
                    self.post_receive();
                    self.events.push(delivered(data));
                    continue;
                }
                UlpEvent::Rdmap(event) => as_ddp(event),
            };
            match &event {
                Some(Event::UntaggedDelivered { qn, .. }) => match &mut self.stream {
                    Ulp::Ddp(stream) => stream.post_buffers(*qn, 1).unwrap(),
                    Ulp::Rdmap(stream) => stream.post_buffers(1).unwrap(),
                },
                Some(Event::Error(_)) => {
                    self.failing = true;
                    self.stream.post_error();
                }
                _ => {}
            }
            self.events.extend(event);
        }
        // RFC 5041 §3 (10): the connection ends with its only stream.
        if self.peer_fin && self.fin.is_some_and(|(_, acked)| acked) {
            self.shut_down();
        }
    }

    fn shut_down(&mut self) {
        self.up = false;
        self.stream.release(&mut self.pool);
        assert_eq!(self.pool.in_use(), 0);
    }
}

impl<const KIND: u8> MemoryPair<KIND> {
    fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    fn transmit(&mut self, from: Side, unit: Unit) {
        let to = from.other();
        let fault = match unit {
            Unit::Data { .. } => self.end(from).faults.pop_front().unwrap_or(Fault::None),
            _ => Fault::None,
        };
        match fault {
            _ if self.cut => {}
            Fault::Lose => {}
            Fault::None => self.network.push_back((to, unit)),
            Fault::Delay => self.delayed.push((to, unit)),
            Fault::Duplicate => self.network.extend([(to, unit.clone()), (to, unit)]),
            Fault::Corrupt => {
                if let Unit::Data { key, mut bytes, crc } = unit {
                    let last = bytes.len() - 1;
                    bytes[last] ^= 0x10;
                    self.network.push_back((to, Unit::Data { key, bytes, crc }));
                }
            }
        }
    }

    fn deliver(&mut self) {
        while let Some((to, unit)) = self.network.pop_front() {
            let ack = self.end(to).receive(unit);
            self.end(to).run_ulp();
            if let Some(ack) = ack {
                self.transmit(to, ack);
            }
        }
    }

    fn pump(&mut self) -> bool {
        for side in [Side::A, Side::B] {
            for unit in self.end(side).send() {
                self.transmit(side, unit);
            }
        }
        let delayed = core::mem::take(&mut self.delayed);
        self.network.extend(delayed);
        let progressed = !self.network.is_empty();
        self.deliver();
        progressed
    }
}

impl<const KIND: u8> Pair for MemoryPair<KIND> {
    const PLACES_OUT_OF_ORDER: bool = true;

    fn new() -> Self {
        let ends = [End::new(1, KIND), End::new(2, KIND)];
        MemoryPair { ends, network: VecDeque::new(), delayed: Vec::new(), cut: false }
    }

    fn stag(&self) -> Stag {
        STAG
    }

    fn region(&self, side: Side) -> Vec<u8> {
        self.ends[side as usize].memory.to_vec()
    }

    fn post(&mut self, side: Side, message: Message<VecMemory>) -> Result<(), PostError> {
        match &mut self.end(side).stream {
            Ulp::Ddp(stream) => stream.post(message),
            Ulp::Rdmap(stream) => stream.post(as_rdmap(message)),
        }
    }

    fn close(&mut self, side: Side) {
        self.end(side).stream.close();
    }

    fn plan(&mut self, from: Side, fault: Fault) {
        self.end(from).faults.push_back(fault);
    }

    fn cut(&mut self) {
        self.cut = true;
    }

    fn mulpdu(&self, side: Side) -> usize {
        self.ends[side as usize].mulpdu
    }

    fn limit_mulpdu(&mut self, side: Side, mulpdu: usize) {
        let end = self.end(side);
        end.mulpdu = end.mulpdu.min(mulpdu);
    }

    fn start(&mut self) {
        for side in [Side::A, Side::B] {
            for unit in self.end(side).send() {
                self.transmit(side, unit);
            }
        }
    }

    fn run(&mut self) {
        loop {
            while self.pump() {}
            let mut progressed = false;
            for side in [Side::A, Side::B] {
                let units =
                    if self.end(side).up { self.end(side).retransmit() } else { Vec::new() };
                if units.is_empty() {
                    continue;
                }
                progressed = true;
                self.end(side).idle_rounds += 1;
                if self.end(side).idle_rounds > MAX_IDLE_ROUNDS {
                    // RFC 5041 §3 (3): the transfer failed, and the failure is reported.
                    self.end(side).stream.fail(Failure::LlpLost);
                    self.end(side).run_ulp();
                    self.end(side).shut_down();
                }
                units.into_iter().for_each(|unit| self.transmit(side, unit));
            }
            if !progressed {
                return;
            }
        }
    }

    fn events(&mut self, side: Side) -> Vec<Event> {
        self.end(side).run_ulp();
        core::mem::take(&mut self.end(side).events)
    }

    fn counters(&self, side: Side) -> Counters {
        *self.ends[side as usize].stream.counters()
    }

    fn is_up(&self, side: Side) -> bool {
        self.ends[side as usize].up
    }
}

/// Translates the suite's messages to RDMAP's Writes and Sends.
fn as_rdmap(message: Message<VecMemory>) -> WorkRequest<VecMemory> {
    match message {
        Message::Tagged { stag, to, source, cookie, .. } => {
            WorkRequest::Write { stag, to, source, cookie }
        }
        Message::Untagged { source, cookie, .. } => WorkRequest::send(source, cookie),
    }
}

/// Translates RDMAP's events to the DDP events that the suite checks. Returns `None` for a Terminate and for a flushed
/// receive, which have no counterpart in DDP.
fn as_ddp(event: rdmap::Event) -> Option<Event> {
    Some(match event {
        rdmap::Event::Received { data, .. } => delivered(data),
        rdmap::Event::WriteDelivered { stag, to, len } => {
            Event::TaggedDelivered { stag, to, len, rsvd_ulp: 0 }
        }
        rdmap::Event::Completed { cookie, .. } => Event::Sent { cookie, messages: 1 },
        rdmap::Event::Flushed { cookie } => Event::Flushed { cookie },
        rdmap::Event::PeerClosed { incomplete } => Event::PeerClosed { incomplete },
        rdmap::Event::Failed(why) => Event::Failed(why),
        rdmap::Event::Error(rdmap::Error::Ddp(error)) => Event::Error(error),
        rdmap::Event::Terminated { .. } | rdmap::Event::ReceiveFlushed { .. } => return None,
        other => panic!("event that the suite does not cause: {other:?}"),
    })
}

fn delivered(data: Vec<u8>) -> Event {
    let (qn, msn, rsvd_ulp) = (MESSAGE_QUEUE, Msn::FIRST, [0; 5]);
    Event::UntaggedDelivered { qn, msn, data, rsvd_ulp }
}

/// Runs each function of the suite over DDP, and over RDMAP with pooled buffers and with posted receives.
macro_rules! suite {
    ($($ddp:ident, $rdmap:ident: $function:ident;)*) => {$(
        #[test]
        fn $ddp() {
            super::$function::<MemoryPair<DDP>>();
        }

        #[test]
        fn $rdmap() {
            super::$function::<MemoryPair<RDMAP>>();
            super::$function::<MemoryPair<RECEIVES>>();
        }
    )*};
}

suite! {
    memory_llp_exposes_mulpdu, rdmap_obeys_mulpdu: mulpdu_and_its_changes_are_exposed;
    memory_llp_keeps_segments_when_mulpdu_changes, rdmap_keeps_segments_when_mulpdu_changes:
        segments_survive_a_change_of_mulpdu;
    memory_llp_is_reliable_or_reports_failure, rdmap_is_reliable_or_reports_failure:
        transfer_is_reliable_or_reported;
    memory_llp_preserves_boundaries, rdmap_preserves_boundaries: boundaries_are_preserved;
    memory_llp_reports_submission_order, rdmap_obeys_submission_order: segments_out_of_order_carry_their_order;
    memory_llp_drops_corrupt_segments, rdmap_places_no_corrupt_segment: corrupt_segments_are_not_placed;
    memory_llp_provides_lengths, rdmap_delivers_every_length: lengths_are_provided;
    memory_llp_carries_no_data_after_an_error, rdmap_carries_no_data_after_an_error:
        failed_stream_carries_no_more_data;
    memory_llp_indicates_graceful_teardown, rdmap_indicates_graceful_teardown:
        graceful_teardown_is_indicated;
    memory_llp_ends_with_its_stream, rdmap_ends_with_its_stream: the_connection_ends_with_its_streams;
    memory_llp_delivers_no_duplicate, rdmap_delivers_no_duplicate: duplicates_are_not_passed;
}

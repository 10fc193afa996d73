//! Two endpoints connected over TCP without worker, port or clock, for micro-benchmarks and instruction counts.
//! Segments are passed by value, in order.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::{
    Access, BufferPool, Cookie, MESSAGE_QUEUE, Message, PdId, QueueConfig, Source, Stag, StagEntry,
    StagTable, StreamConfig, StreamId, TaggedOffset, VecMemory,
};
use tcp_lite::endpoint::{Context, Endpoint, EndpointConfig, Event, OpenRequest, UlpConfig};
use tcp_lite::mpa::HoldBudget;
use tcp_lite::seam::TxBatch;
use tcp_lite::tcp::{self, FourTuple, Segment, SeqNumber};

const REGION_STAG: Stag = Stag(0x1000);
/// Protection domain of both endpoints.
pub(crate) const PD: PdId = PdId(1);
/// Length of each endpoint's region, bytes.
pub const REGION_LEN: usize = 4 << 20;
/// Maximum number of segments per poll of an endpoint.
const MAX_BATCH: usize = 64;

/// Segments written by an endpoint, with their reusable buffers.
#[derive(Debug, Default)]
pub struct SegmentBatch {
    /// Complete segments.
    pub segments: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    open: Option<Vec<u8>>,
}

/// Features of both endpoints.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions {
    /// True for MPA markers in both directions.
    pub markers: bool,
    /// True if the flight recorder is on.
    pub recorder: bool,
}

impl SegmentBatch {
    /// Removes all segments and keeps their buffers for reuse.
    pub fn clear(&mut self) {
        self.spare.append(&mut self.segments);
    }

    pub(crate) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.segments.len() == MAX_BATCH {
            return None;
        }
        let mut room = self.open.take().or_else(|| self.spare.pop()).unwrap_or_default();
        room.resize(len, 0);
        Some(self.open.insert(room))
    }

    pub(crate) fn finish_segment(&mut self, len: usize) {
        if let Some(mut segment) = self.open.take() {
            segment.truncate(len);
            self.segments.push(segment);
        }
    }
}

impl TxBatch for SegmentBatch {
    fn reserve_segment(&mut self, len: usize) -> Option<&mut [u8]> {
        self.reserve(len)
    }

    fn set_ecn_capable(&mut self) {}

    fn commit(&mut self, len: usize) {
        self.finish_segment(len);
    }
}

/// Returns a table with one region that the peer may write.
pub(crate) fn region_table(memory: &VecMemory) -> StagTable<VecMemory> {
    let mut stags = StagTable::new();
    let entry = StagEntry {
        stag: REGION_STAG,
        pd: PD,
        stream: None,
        base_to: TaggedOffset(0),
        len: REGION_LEN as u64,
        access: Access::REMOTE_WRITE,
        memory: memory.clone(),
        memory_offset: 0,
    };
    stags.insert(entry).expect("an empty table has room for a region");
    stags
}

/// Returns a write of `len` bytes, from the start of `memory` to the start of the peer's region.
pub(crate) fn write_message(memory: &VecMemory, len: u32) -> Message<VecMemory> {
    let source = Source::Region { memory: memory.clone(), offset: 0, len };
    Message::Tagged {
        stag: REGION_STAG,
        to: TaggedOffset(0),
        rsvd_ulp: 0,
        source,
        cookie: Cookie::user(0),
    }
}

/// One endpoint of a pair with its memory.
pub struct PairEnd {
    endpoint: Option<Endpoint<VecMemory>>,
    stags: StagTable<VecMemory>,
    buffers: BufferPool,
    hold: HoldBudget,
    memory: VecMemory,
    ulp: UlpConfig,
    /// True if the endpoint echoes received messages.
    echo: bool,
}

impl PairEnd {
    fn new(ulp: UlpConfig) -> PairEnd {
        let memory = VecMemory::new(REGION_LEN);
        let stags = region_table(&memory);
        let (buffers, hold) = (BufferPool::new(1 << 20), HoldBudget::new(16 << 20));
        PairEnd { endpoint: None, stags, buffers, hold, memory, ulp, echo: false }
    }

    /// Passes a received segment to the endpoint.
    pub fn handle_segment(&mut self, now: Instant, bytes: &[u8]) {
        let segment = Segment::parse(bytes).expect("a segment of the other end");
        let cx =
            &mut Context { stags: &self.stags, buffers: &mut self.buffers, hold: &mut self.hold };
        if let Some(endpoint) = &mut self.endpoint {
            // An error means that the segment was dropped, such as an old acknowledgement.
            let _ = endpoint.input(now, &segment, cx);
        }
    }

    /// Handles an expired timer and writes the pending segments into `batch`.
    pub fn output(&mut self, now: Instant, batch: &mut SegmentBatch) {
        let cx =
            &mut Context { stags: &self.stags, buffers: &mut self.buffers, hold: &mut self.hold };
        if let Some(endpoint) = &mut self.endpoint {
            if endpoint.poll_timeout().is_some_and(|at| at <= now) {
                endpoint.handle_timeout(now, cx);
            }
            endpoint.poll_transmit(now, batch);
        }
    }

    /// Returns the time of the next timer. `None` if no timer is set.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.endpoint.as_ref().and_then(Endpoint::poll_timeout)
    }

    fn post_message(&mut self, bytes: Arc<[u8]>) {
        let source = Source::Bytes(bytes);
        let message = Message::Untagged {
            qn: MESSAGE_QUEUE,
            rsvd_ulp: [0; 5],
            source,
            cookie: Cookie::user(0),
        };
        let endpoint = self.endpoint.as_mut().expect("the endpoint is connected");
        endpoint.post(message).expect("there is room for a message");
    }

    fn drain_events(&mut self, now: Instant) -> u32 {
        let mut delivered = 0;
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::poll_event) {
            match event {
                Event::MpaRequest { .. } => {
                    let cx = &mut Context {
                        stags: &self.stags,
                        buffers: &mut self.buffers,
                        hold: &mut self.hold,
                    };
                    let endpoint =
                        self.endpoint.as_mut().expect("the endpoint has reported an event");
                    let ulp = self.ulp.clone();
                    endpoint
                        .mpa_accept(now, PD, &[], ulp, cx)
                        .expect("the peer has sent an MPA Request");
                }
                Event::Ddp(ddp::Event::TaggedDelivered { .. }) => delivered += 1,
                Event::Ddp(ddp::Event::UntaggedDelivered { data, .. }) => {
                    delivered += 1;
                    if self.echo {
                        self.post_message(data.as_slice().into());
                    }
                    self.buffers.recycle(data);
                    let endpoint =
                        self.endpoint.as_mut().expect("the endpoint has reported an event");
                    endpoint.post_buffers(MESSAGE_QUEUE, 1).expect("the endpoint has the queue");
                }
                Event::Closed { reason } => panic!("the stream ended: {reason}"),
                _ => {}
            }
        }
        delivered
    }
}

/// Two established endpoints with virtual time.
pub struct EndpointPair {
    /// Virtual time.
    pub now: Instant,
    /// Endpoint that posts writes.
    pub sender: PairEnd,
    /// Endpoint whose region is written.
    pub receiver: PairEnd,
    outbound: SegmentBatch,
    inbound: SegmentBatch,
    /// Held so that [`drop_endpoints`](Self::drop_endpoints) does not count its memory as an endpoint's.
    _config: Arc<EndpointConfig>,
}

impl EndpointPair {
    /// Returns two endpoints after the handshake, with open congestion windows.
    pub fn new(mss: u16, markers: bool) -> EndpointPair {
        EndpointPair::open_congestion_window(mss, markers, StreamConfig::default())
    }

    /// Creates a pair as [`new`](Self::new) does, for many small messages. Up to 4096 posts may be in flight, tagged
    /// messages cause no events, and the receiver echoes untagged messages.
    pub fn for_messages(mss: u16) -> EndpointPair {
        let messages = QueueConfig { qn: MESSAGE_QUEUE, buffers: 64, buffer_size: 4096 };
        let queues = vec![QueueConfig::error_queue(), messages];
        let config = StreamConfig { queues, max_posts: 4096, ..StreamConfig::default() };
        let mut pairing = EndpointPair::open_congestion_window(
            mss,
            false,
            StreamConfig { tagged_events: false, ..config },
        );
        pairing.receiver.echo = true;
        pairing
    }

    fn open_congestion_window(mss: u16, markers: bool, config: StreamConfig) -> EndpointPair {
        let mut pairing = EndpointPair::established(mss, markers, config.into());
        for _ in 0..8 {
            pairing.write(256 << 10);
            while pairing.exchange_bursts() {}
        }
        pairing
    }

    /// Returns two endpoints right after the handshake, with the queues of `ulp`.
    pub fn established(mss: u16, markers: bool, ulp: UlpConfig) -> EndpointPair {
        EndpointPair::established_with(mss, PairOptions { markers, recorder: true }, ulp)
    }

    /// Creates a pair as [`established`](Self::established) does, with or without the flight recorder.
    pub fn established_with(mss: u16, options: PairOptions, ulp: UlpConfig) -> EndpointPair {
        let PairOptions { markers, recorder } = options;
        let mut config = EndpointConfig::default();
        config.mpa.markers = markers;
        // An endpoint sends a whole burst at once, without pacing.
        let (pacing, initial_window) = (false, 1 << 18);
        let tcp = tcp::Config { pacing, initial_window, recorder, ..tcp::Config::default() };
        config.tcp = Arc::new(tcp);
        let config = Arc::new(config);
        let now = Instant::from_millis(1000);
        let address = |n| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), 4791);
        let tuple = |a, b| FourTuple { local: address(a), remote: address(b) };
        let (mut sender, mut receiver) = (PairEnd::new(ulp.clone()), PairEnd::new(ulp.clone()));
        let open = OpenRequest { pd: PD, ulp, private_data: Vec::new() };
        let (id, iss) = (StreamId(1), SeqNumber(1000));
        let connecting = Endpoint::connect(config.clone(), id, tuple(1, 2), iss, mss, now, open);
        sender.endpoint = Some(connecting.expect("empty private data fits"));
        let mut syn = SegmentBatch::default();
        sender.output(now, &mut syn);
        let segment = Segment::parse(&syn.segments[0]).expect("a SYN");
        let (id, iss) = (StreamId(2), SeqNumber(9000));
        let tuple = tuple(2, 1);
        let accepted = Endpoint::accept(config.clone(), id, tuple, iss, mss, &segment, now);
        receiver.endpoint = Some(accepted);
        let (there, back) = (SegmentBatch::default(), SegmentBatch::default());
        let mut pairing =
            EndpointPair { now, sender, receiver, outbound: there, inbound: back, _config: config };
        // Completes the TCP handshake and the MPA start-up.
        for _ in 0..4 {
            pairing.exchange_bursts();
        }
        pairing
    }

    /// Exchanges all pending segments, advances the time by `time` and lets both endpoints free unused memory.
    pub fn shrink(&mut self, time: Duration) {
        while self.exchange_bursts() {}
        self.now += time;
        for half in [&mut self.sender, &mut self.receiver] {
            if let Some(endpoint) = &mut half.endpoint {
                endpoint.shrink(self.now);
            }
        }
    }

    /// Returns, for each endpoint, the number of events in its flight recorder and of events omitted for lack of space.
    pub fn recorder_counts(&self) -> [(usize, u64); 2] {
        [&self.sender, &self.receiver].map(|half| {
            let endpoint = half.endpoint.as_ref().expect("the endpoint is connected");
            let (records, left_out) = endpoint.connection().records();
            (records.len(), left_out)
        })
    }

    /// Drops both endpoints. Returns the decrease of `heap` for each.
    pub fn drop_endpoints(&mut self, heap: impl Fn() -> u64) -> [u64; 2] {
        [&mut self.sender, &mut self.receiver].map(|half| {
            let before = heap();
            half.endpoint = None;
            before - heap()
        })
    }

    /// Posts a write of `len` bytes.
    pub fn write(&mut self, len: u32) {
        let message = write_message(&self.sender.memory, len);
        let endpoint = self.sender.endpoint.as_mut().expect("the endpoint is connected");
        endpoint.post(message).expect("there is room for a message");
    }

    /// Posts `n` writes of `len` bytes to consecutive offsets, from memory that does not change during transmission.
    pub fn write_consecutive(&mut self, n: u32, len: u32) {
        let memory = self.sender.memory.clone().into_stable();
        let endpoint = self.sender.endpoint.as_mut().expect("the endpoint is connected");
        for at in 0..n {
            let offset = u64::from(at) * u64::from(len);
            let source = Source::Region { memory: &memory, offset, len };
            let (stag, to) = (REGION_STAG, TaggedOffset(offset));
            let message =
                Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(0) };
            endpoint.post_borrowed(message).expect("there is room for a message");
        }
    }

    /// Sends a message and its echo, with piggybacked acknowledgements. Returns the number of delivered echoes.
    pub fn exchange_echo(&mut self, bytes: &Arc<[u8]>) -> u32 {
        self.sender.post_message(bytes.clone());
        self.send_burst();
        self.deliver_burst();
        self.transmit_reply();
        self.deliver_reply()
    }

    /// Exchanges one burst in each direction and advances the time by 10 µs. If nothing was sent and a timer expires
    /// within 150 ms, the time advances to 10 µs after this timer. Returns false if nothing was sent and no such timer
    /// is set.
    pub fn exchange_bursts(&mut self) -> bool {
        self.send_burst();
        self.deliver_burst();
        self.exchange_reply();
        let quiet = self.outbound.segments.is_empty() && self.inbound.segments.is_empty();
        let next =
            [self.sender.poll_timeout(), self.receiver.poll_timeout()].into_iter().flatten().min();
        // Timers of pacing and of delayed ACKs expire within 150 ms. Later timers belong to loss recovery.
        let soon = next.filter(|&at| quiet && at - self.now < Duration::from_millis(150));
        self.now = soon.unwrap_or(self.now).max(self.now) + Duration::from_micros(10);
        !quiet || soon.is_some()
    }

    /// Writes the sender's segments into [`last_burst`](Self::last_burst).
    pub fn send_burst(&mut self) {
        self.outbound.clear();
        self.sender.output(self.now, &mut self.outbound);
    }

    /// Returns the sender's last burst.
    pub fn last_burst(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.outbound.segments
    }

    /// Passes the burst to the receiver. Returns the number of delivered messages.
    pub fn deliver_burst(&mut self) -> u32 {
        for segment in &self.outbound.segments {
            self.receiver.handle_segment(self.now, segment);
        }
        self.receiver.drain_events(self.now)
    }

    /// Writes the receiver's reply.
    pub fn transmit_reply(&mut self) {
        self.inbound.clear();
        self.receiver.output(self.now, &mut self.inbound);
    }

    /// Passes the reply to the sender. Returns the number of delivered messages.
    pub fn deliver_reply(&mut self) -> u32 {
        for segment in &self.inbound.segments {
            self.sender.handle_segment(self.now, segment);
        }
        self.sender.drain_events(self.now)
    }

    /// Writes the receiver's reply and passes it to the sender.
    pub fn exchange_reply(&mut self) {
        self.transmit_reply();
        self.deliver_reply();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoed_message_takes_two_segments() {
        let mut pairing = EndpointPair::for_messages(1448);
        let bytes: Arc<[u8]> = vec![7; 64].into();
        for _ in 0..10 {
            assert_eq!(pairing.exchange_echo(&bytes), 1);
            assert_eq!((pairing.outbound.segments.len(), pairing.inbound.segments.len()), (1, 1));
            pairing.now += Duration::from_micros(2);
        }
    }

    #[test]
    fn writes_are_placed_and_acknowledged() {
        for markers in [false, true] {
            let mut pairing = EndpointPair::new(1448, markers);
            pairing.write(100_000);
            let mut segments = 0;
            let mut delivered = 0;
            for _ in 0..100 {
                pairing.send_burst();
                segments += pairing.last_burst().len();
                delivered += pairing.deliver_burst();
                pairing.exchange_reply();
                pairing.now += Duration::from_micros(100);
            }
            assert_eq!(delivered, 1);
            assert!((69..90).contains(&segments), "{segments} segments");
        }
    }
}

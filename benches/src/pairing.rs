//! Two endpoints over TCP without worker, port or clock, for micro-benchmarks and instruction
//! counts. Segments are passed by value, in order.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::{
    Access, BufferPool, Cookie, MESSAGE_QUEUE, Message, PdId, QueueConfig, Source, Stag, StagEntry,
    StagTable, StreamConfig, StreamId, TaggedOffset, VecMemory,
};
use tcp_lite::endpoint::{Context, Endpoint, EndpointConfig, Event, Open, UlpConfig};
use tcp_lite::mpa::HoldBudget;
use tcp_lite::seam::TxBatch;
use tcp_lite::tcp::{self, FourTuple, Segment, SeqNumber};

const REGION: Stag = Stag(0x1000);
/// Protection domain of both endpoints.
pub(crate) const PD: PdId = PdId(1);
/// Bytes of each endpoint's region.
pub const REGION_LEN: usize = 4 << 20;
/// Bound of the segments from one poll.
const BATCH: usize = 64;

/// Buffers of written segments.
#[derive(Debug, Default)]
pub struct Batch {
    /// Complete segments.
    pub segments: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    open: Option<Vec<u8>>,
}

impl Batch {
    /// Removes all segments; their buffers are reused.
    pub fn clear(&mut self) {
        self.spare.append(&mut self.segments);
    }

    pub(crate) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.segments.len() == BATCH {
            return None;
        }
        let mut room = self.open.take().or_else(|| self.spare.pop()).unwrap_or_default();
        room.resize(len, 0);
        Some(self.open.insert(room))
    }

    pub(crate) fn complete(&mut self, len: usize) {
        if let Some(mut segment) = self.open.take() {
            segment.truncate(len);
            self.segments.push(segment);
        }
    }
}

impl TxBatch for Batch {
    fn segment(&mut self, len: usize) -> Option<&mut [u8]> {
        self.room(len)
    }

    fn ecn_capable(&mut self) {}

    fn commit(&mut self, len: usize) {
        self.complete(len);
    }
}

/// Returns a table with one region that the peer may write.
pub(crate) fn region(memory: &VecMemory) -> StagTable<VecMemory> {
    let mut stags = StagTable::new();
    let entry = StagEntry {
        stag: REGION,
        pd: PD,
        stream: None,
        base_to: TaggedOffset(0),
        len: REGION_LEN as u64,
        access: Access::REMOTE_WRITE,
        memory: memory.clone(),
        memory_offset: 0,
    };
    stags.insert(entry).expect("an empty table takes a region");
    stags
}

/// Returns a write of the first `len` bytes to the peer's region.
pub(crate) fn write(memory: &VecMemory, len: u32) -> Message<VecMemory> {
    let source = Source::Region { memory: memory.clone(), offset: 0, len };
    Message::Tagged {
        stag: REGION,
        to: TaggedOffset(0),
        rsvd_ulp: 0,
        source,
        cookie: Cookie::of(0),
    }
}

/// One endpoint with its memory.
pub struct Half {
    endpoint: Option<Endpoint<VecMemory>>,
    stags: StagTable<VecMemory>,
    buffers: BufferPool,
    hold: HoldBudget,
    memory: VecMemory,
    ulp: UlpConfig,
    /// True if the endpoint echoes received messages.
    echoes: bool,
}

impl Half {
    fn new(ulp: UlpConfig) -> Half {
        let memory = VecMemory::new(REGION_LEN);
        let stags = region(&memory);
        let (buffers, hold) = (BufferPool::new(1 << 20), HoldBudget::new(16 << 20));
        Half { endpoint: None, stags, buffers, hold, memory, ulp, echoes: false }
    }

    /// Passes a segment to the endpoint.
    pub fn input(&mut self, now: Instant, bytes: &[u8]) {
        let segment = Segment::parse(bytes).expect("a segment of ours");
        let cx =
            &mut Context { stags: &self.stags, buffers: &mut self.buffers, hold: &mut self.hold };
        if let Some(endpoint) = &mut self.endpoint {
            // Old acknowledgements are dropped, which is correct.
            let _ = endpoint.input(now, &segment, cx);
        }
    }

    /// Handles expired timers and writes the pending segments into `batch`.
    pub fn output(&mut self, now: Instant, batch: &mut Batch) {
        let cx =
            &mut Context { stags: &self.stags, buffers: &mut self.buffers, hold: &mut self.hold };
        if let Some(endpoint) = &mut self.endpoint {
            if endpoint.poll_timeout().is_some_and(|at| at <= now) {
                endpoint.handle_timeout(now, cx);
            }
            endpoint.poll_transmit(now, batch);
        }
    }

    /// Returns the time of the next timer.
    pub fn timeout(&self) -> Option<Instant> {
        self.endpoint.as_ref().and_then(Endpoint::poll_timeout)
    }

    fn post_message(&mut self, bytes: Arc<[u8]>) {
        let source = Source::Bytes(bytes);
        let message = Message::Untagged {
            qn: MESSAGE_QUEUE,
            rsvd_ulp: [0; 5],
            source,
            cookie: Cookie::of(0),
        };
        let endpoint = self.endpoint.as_mut().expect("it is connected");
        endpoint.post(message).expect("there is room for a message");
    }

    fn events(&mut self, now: Instant) -> u32 {
        let mut delivered = 0;
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::poll_event) {
            match event {
                Event::MpaRequest { .. } => {
                    let cx = &mut Context {
                        stags: &self.stags,
                        buffers: &mut self.buffers,
                        hold: &mut self.hold,
                    };
                    let endpoint = self.endpoint.as_mut().expect("it has just spoken");
                    let ulp = self.ulp.clone();
                    endpoint.mpa_accept(now, PD, &[], ulp, cx).expect("it asked");
                }
                Event::Ddp(ddp::Event::TaggedDelivered { .. }) => delivered += 1,
                Event::Ddp(ddp::Event::UntaggedDelivered { data, .. }) => {
                    delivered += 1;
                    if self.echoes {
                        self.post_message(data.as_slice().into());
                    }
                    self.buffers.recycle(data);
                    let endpoint = self.endpoint.as_mut().expect("it has just spoken");
                    endpoint.post_buffers(MESSAGE_QUEUE, 1).expect("it has the queue");
                }
                Event::Closed { reason } => panic!("the stream ended: {reason}"),
                _ => {}
            }
        }
        delivered
    }
}

/// Two established endpoints.
pub struct Pairing {
    /// Virtual time.
    pub now: Instant,
    /// Endpoint that posts writes.
    pub sender: Half,
    /// Endpoint whose region is written.
    pub receiver: Half,
    there: Batch,
    back: Batch,
    /// Kept, so that its memory is not freed with an endpoint and counted as the endpoint's.
    _config: Arc<EndpointConfig>,
}

impl Pairing {
    /// Returns two endpoints after the handshake, with open congestion windows.
    pub fn new(mss: u16, markers: bool) -> Pairing {
        Pairing::open(mss, markers, StreamConfig::default())
    }

    /// Like [`new`](Self::new), for many small messages: up to 4096 posts are in flight, tagged
    /// messages cause no events, and the receiver echoes untagged messages.
    pub fn for_messages(mss: u16) -> Pairing {
        let messages = QueueConfig { qn: MESSAGE_QUEUE, buffers: 64, buffer_size: 4096 };
        let queues = vec![QueueConfig::error_queue(), messages];
        let config = StreamConfig { queues, max_posts: 4096, ..StreamConfig::default() };
        let mut pairing =
            Pairing::open(mss, false, StreamConfig { tagged_events: false, ..config });
        pairing.receiver.echoes = true;
        pairing
    }

    fn open(mss: u16, markers: bool, config: StreamConfig) -> Pairing {
        let mut pairing = Pairing::established(mss, markers, config.into());
        for _ in 0..8 {
            pairing.write(256 << 10);
            while pairing.exchange() {}
        }
        pairing
    }

    /// Returns two endpoints right after the handshake, with the queues of `ulp`.
    pub fn established(mss: u16, markers: bool, ulp: UlpConfig) -> Pairing {
        Pairing::established_with(mss, markers, ulp, true)
    }

    /// Like [`established`](Self::established), with or without the flight recorder.
    pub fn established_with(mss: u16, markers: bool, ulp: UlpConfig, recorder: bool) -> Pairing {
        let mut config = EndpointConfig::default();
        config.mpa.markers = markers;
        // A whole burst is sent at once, independent of the clock.
        let (pacing, initial_window) = (false, 1 << 18);
        let tcp = tcp::Config { pacing, initial_window, recorder, ..tcp::Config::default() };
        config.tcp = Arc::new(tcp);
        let config = Arc::new(config);
        let now = Instant::from_millis(1000);
        let address = |n| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), 4791);
        let tuple = |a, b| FourTuple { local: address(a), remote: address(b) };
        let (mut sender, mut receiver) = (Half::new(ulp.clone()), Half::new(ulp.clone()));
        let open = Open { pd: PD, ulp, private_data: Vec::new() };
        let (id, iss) = (StreamId(1), SeqNumber(1000));
        let asked = Endpoint::connect(config.clone(), id, tuple(1, 2), iss, mss, now, open);
        sender.endpoint = Some(asked.expect("no private data fits"));
        let mut syn = Batch::default();
        sender.output(now, &mut syn);
        let segment = Segment::parse(&syn.segments[0]).expect("a SYN");
        let (id, iss) = (StreamId(2), SeqNumber(9000));
        let tuple = tuple(2, 1);
        let accepted = Endpoint::accept(config.clone(), id, tuple, iss, mss, &segment, now);
        receiver.endpoint = Some(accepted);
        let (there, back) = (Batch::default(), Batch::default());
        let mut pairing = Pairing { now, sender, receiver, there, back, _config: config };
        // The first writes open the congestion window.
        for _ in 0..4 {
            pairing.exchange();
        }
        pairing
    }

    /// Advances the time and lets both endpoints free unused memory.
    pub fn shrink(&mut self, time: Duration) {
        while self.exchange() {}
        self.now += time;
        for half in [&mut self.sender, &mut self.receiver] {
            if let Some(endpoint) = &mut half.endpoint {
                endpoint.shrink(self.now);
            }
        }
    }

    /// Returns, for each endpoint, the events in its flight recorder and the events left out for
    /// lack of room.
    pub fn recorded(&self) -> [(usize, u64); 2] {
        [&self.sender, &self.receiver].map(|half| {
            let endpoint = half.endpoint.as_ref().expect("it is connected");
            let (records, left_out) = endpoint.connection().records();
            (records.len(), left_out)
        })
    }

    /// Drops both endpoints and returns the amount by which `heap` falls with each.
    pub fn take_apart(&mut self, heap: impl Fn() -> u64) -> [u64; 2] {
        [&mut self.sender, &mut self.receiver].map(|half| {
            let before = heap();
            half.endpoint = None;
            before - heap()
        })
    }

    /// Posts a write of `len` bytes.
    pub fn write(&mut self, len: u32) {
        let message = write(&self.sender.memory, len);
        let endpoint = self.sender.endpoint.as_mut().expect("it is connected");
        endpoint.post(message).expect("there is room for a message");
    }

    /// Posts `n` writes of `len` bytes to consecutive places, from memory that does not change
    /// during transmission.
    pub fn write_many(&mut self, n: u32, len: u32) {
        let memory = self.sender.memory.clone().into_stable();
        let endpoint = self.sender.endpoint.as_mut().expect("it is connected");
        for at in 0..n {
            let offset = u64::from(at) * u64::from(len);
            let source = Source::Region { memory: &memory, offset, len };
            let (stag, to) = (REGION, TaggedOffset(offset));
            let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::of(0) };
            endpoint.post_lent(message).expect("there is room for a message");
        }
    }

    /// Sends a message and its echo, with piggybacked acknowledgements. Returns the number of
    /// delivered echoes.
    pub fn echo(&mut self, bytes: &Arc<[u8]>) -> u32 {
        self.sender.post_message(bytes.clone());
        self.send();
        self.deliver();
        self.answer();
        self.take_answer()
    }

    /// Exchanges one burst each way; returns false if neither endpoint had anything to send.
    pub fn exchange(&mut self) -> bool {
        self.send();
        self.deliver();
        self.acknowledge();
        let quiet = self.there.segments.is_empty() && self.back.segments.is_empty();
        let next = [self.sender.timeout(), self.receiver.timeout()].into_iter().flatten().min();
        // Pacing and delayed ACKs are due soon; later timers are for loss.
        let soon = next.filter(|&at| quiet && at - self.now < Duration::from_millis(150));
        self.now = soon.unwrap_or(self.now).max(self.now) + Duration::from_micros(10);
        !quiet || soon.is_some()
    }

    /// Writes the sender's burst into [`burst`](Self::burst).
    pub fn send(&mut self) {
        self.there.clear();
        self.sender.output(self.now, &mut self.there);
    }

    /// Returns the sender's last burst.
    pub fn burst(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.there.segments
    }

    /// Passes the burst to the receiver; returns the number of delivered messages.
    pub fn deliver(&mut self) -> u32 {
        for segment in &self.there.segments {
            self.receiver.input(self.now, segment);
        }
        self.receiver.events(self.now)
    }

    /// Writes the receiver's answer.
    pub fn answer(&mut self) {
        self.back.clear();
        self.receiver.output(self.now, &mut self.back);
    }

    /// Passes the answer to the sender; returns the number of delivered messages.
    pub fn take_answer(&mut self) -> u32 {
        for segment in &self.back.segments {
            self.sender.input(self.now, segment);
        }
        self.sender.events(self.now)
    }

    /// Writes the receiver's answer and passes it to the sender.
    pub fn acknowledge(&mut self) {
        self.answer();
        self.take_answer();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_in_two_segments() {
        let mut pairing = Pairing::for_messages(1448);
        let bytes: Arc<[u8]> = vec![7; 64].into();
        for _ in 0..10 {
            assert_eq!(pairing.echo(&bytes), 1);
            assert_eq!((pairing.there.segments.len(), pairing.back.segments.len()), (1, 1));
            pairing.now += Duration::from_micros(2);
        }
    }

    #[test]
    fn what_is_written_arrives_and_is_acknowledged() {
        for markers in [false, true] {
            let mut pairing = Pairing::new(1448, markers);
            pairing.write(100_000);
            let mut segments = 0;
            let mut delivered = 0;
            for _ in 0..100 {
                pairing.send();
                segments += pairing.burst().len();
                delivered += pairing.deliver();
                pairing.acknowledge();
                pairing.now += Duration::from_micros(100);
            }
            assert_eq!(delivered, 1);
            assert!((69..90).contains(&segments), "{segments} segments");
        }
    }
}

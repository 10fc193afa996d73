//! Tests of the eleven requirements of RFC 5041 §3 on a lower layer: one function per requirement, called for
//! every LLP.
//!
//! An LLP's crate implements [`Pair`] over a simulated faulty path in virtual time, and calls each function from a
//! test. The functions examine only state that DDP exposes: events, counters, regions.

use std::sync::Arc;

use crate::{
    Cookie, Counters, ErrorCode, Event, Failure, MESSAGE_QUEUE, Message, PostError, Source, Stag,
    TaggedOffset, VecMemory,
};

#[cfg(test)]
mod memory_llp;

/// One end of a [`Pair`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The end that sends in most tests.
    A,
    /// The end that receives.
    B,
}

impl Side {
    /// Returns the other end.
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// Fault of the path for one unit that carries data (a segment, a chunk).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The unit arrives as sent.
    None,
    /// The unit is lost; its retransmission arrives.
    Lose,
    /// The unit arrives after units that were sent later.
    Delay,
    /// The unit arrives twice.
    Duplicate,
    /// The unit arrives with a changed payload byte, which only a strong digest detects.
    Corrupt,
}

/// Two DDP streams over an LLP.
pub trait Pair: Sized {
    /// True if the LLP passes segments beyond a gap to DDP, which places them.
    const PLACES_OUT_OF_ORDER: bool;

    /// Returns a pair whose ends may both send. Each end has a region of at least 256 KiB of zeros that the other end
    /// may write, from TO 0 on. Each end has a message queue of at least 32 buffers of at least 4096 bytes, which are
    /// posted again after use. If one end closes, the other stays open until the test calls [`close`](Self::close) on
    /// it.
    fn new() -> Self;
    /// Returns the STag of both regions.
    fn stag(&self) -> Stag;
    /// Returns the bytes of the region at an end.
    fn region(&self, side: Side) -> Vec<u8>;
    /// Posts a message.
    fn post(&mut self, side: Side, message: Message<VecMemory>) -> Result<(), PostError>;
    /// Closes an end gracefully, on behalf of its ULP.
    fn close(&mut self, side: Side);
    /// Plans a fault for the next data unit of `from` that has no planned fault yet.
    fn plan(&mut self, from: Side, fault: Fault);
    /// Cuts the path: no unit arrives at either end from now on.
    fn cut(&mut self);
    /// Returns the MULPDU that the LLP reports to the end's DDP.
    fn mulpdu(&self, side: Side) -> usize;
    /// Changes the path from `side` so that the MULPDU of this end is at most `mulpdu`.
    fn limit_mulpdu(&mut self, side: Side, mulpdu: usize);
    /// Makes the LLP of each end send all that it may send now. Some units are still in flight afterwards.
    fn start(&mut self);
    /// Runs until the LLP has nothing to send or retransmit. Does not wait for the time-out of a half-closed
    /// connection. After [`cut`](Self::cut), runs until the LLP has failed.
    fn run(&mut self);
    /// Returns the events that DDP has reported to that end's ULP since the last call.
    fn events(&mut self, side: Side) -> Vec<Event>;
    /// Returns DDP's counters of that end.
    fn counters(&self, side: Side) -> Counters;
    /// Returns true while the LLP's connection exists at that end.
    fn is_up(&self, side: Side) -> bool;
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    // Never zero, so that the bytes differ from the regions' initial zeros.
    (0..len).map(|i| ((i * 7 + i / 251 + seed * 13) % 255) as u8 + 1).collect()
}

fn write(stag: Stag, to: usize, data: &[u8], cookie: u64) -> Message<VecMemory> {
    let source = Source::Bytes(Arc::from(data));
    Message::Tagged {
        stag,
        to: TaggedOffset(to as u64),
        rsvd_ulp: 0,
        source,
        cookie: Cookie::user(cookie),
    }
}

fn send(data: &[u8], cookie: u64) -> Message<VecMemory> {
    let source = Source::Bytes(Arc::from(data));
    Message::Untagged { qn: MESSAGE_QUEUE, rsvd_ulp: [0; 5], source, cookie: Cookie::user(cookie) }
}

fn delivered_payloads(events: &[Event]) -> Vec<Vec<u8>> {
    let payload = |event: &Event| match event {
        Event::UntaggedDelivered { data, .. } => Some(data.clone()),
        _ => None,
    };
    events.iter().filter_map(payload).collect()
}

fn sent_cookies(events: &[Event]) -> Vec<Cookie> {
    let sent_cookie = |event: &Event| match event {
        Event::Sent { cookie, messages } => core::iter::repeat_n(*cookie, *messages as usize),
        _ => core::iter::repeat_n(Cookie::user(0), 0),
    };
    events.iter().flat_map(sent_cookie).collect()
}

/// A pair, with its segment counters at the start of the test.
struct Run<P> {
    pair: P,
    sent: u64,
    received: u64,
}

impl<P: Pair> Run<P> {
    fn new() -> Self {
        let mut pair = P::new();
        pair.run();
        drop((pair.events(Side::A), pair.events(Side::B)));
        let sent = pair.counters(Side::A).segments_sent;
        let received = pair.counters(Side::B).segments_received;
        Run { pair, sent, received }
    }

    fn post(&mut self, message: Message<VecMemory>) {
        self.pair.post(Side::A, message).expect("room for a post");
    }

    fn plan(&mut self, faults: &[Fault]) {
        faults.iter().for_each(|fault| self.pair.plan(Side::A, *fault));
    }

    /// Returns the number of segments that A's DDP handed to its LLP, and of segments that B's DDP received.
    fn segments(&self) -> (u64, u64) {
        let sent = self.pair.counters(Side::A).segments_sent - self.sent;
        (sent, self.pair.counters(Side::B).segments_received - self.received)
    }

    /// Asserts that every segment arrived once and unsplit.
    fn assert_segments_arrived_as_sent(&self) {
        let (sent, received) = self.segments();
        assert_eq!(received, sent);
        assert_eq!(self.pair.counters(Side::B).segments_ignored, 0);
    }

    fn region_begins_with(&self, data: &[u8]) {
        assert!(self.pair.region(Side::B)[..data.len()] == *data, "the region is not as sent");
    }
}

/// RFC 5041 §3 (1): the LLP exposes MULPDU and its changes, and DDP adapts its segments.
pub fn mulpdu_and_its_changes_are_exposed<P: Pair>() {
    let mut run = Run::<P>::new();
    let data = bytes(1, 20_000);
    let min_segments = |mulpdu: usize| data.len().div_ceil(mulpdu - 14) as u64;
    let before = run.pair.mulpdu(Side::A);
    assert!(before >= 128);
    run.post(write(run.pair.stag(), 0, &data, 1));
    run.pair.run();
    let (first, _) = run.segments();
    assert!(first >= min_segments(before));
    run.pair.limit_mulpdu(Side::A, 600);
    assert!(run.pair.mulpdu(Side::A) <= 600);
    run.post(write(run.pair.stag(), 20_000, &data, 2));
    run.pair.run();
    let (both, _) = run.segments();
    assert!(both - first >= min_segments(600));
    run.assert_segments_arrived_as_sent();
    run.region_begins_with(&[&data[..], &data[..]].concat());
}

/// RFC 5041 §3 (2): a segment handed to the LLP is not segmented again when MULPDU changes.
pub fn segments_survive_a_change_of_mulpdu<P: Pair>() {
    let mut run = Run::<P>::new();
    let data = bytes(2, 60_000);
    run.plan(&[Fault::Lose, Fault::None, Fault::Lose, Fault::Lose]);
    run.post(write(run.pair.stag(), 0, &data, 1));
    run.pair.start();
    let (before, _) = run.segments();
    assert!(before > 0, "the LLP has accepted some segments");
    run.pair.limit_mulpdu(Side::A, 600);
    run.pair.run();
    run.region_begins_with(&data);
    run.assert_segments_arrived_as_sent();
    assert_eq!(sent_cookies(&run.pair.events(Side::A)), [Cookie::user(1)]);
}

/// RFC 5041 §3 (3): segments accepted by the LLP arrive, or its failure is reported.
pub fn transfer_is_reliable_or_reported<P: Pair>() {
    let mut run = Run::<P>::new();
    run.plan(&[Fault::Lose, Fault::Lose, Fault::None, Fault::Lose]);
    let messages: Vec<_> = (0..10).map(|i| bytes(i, 3000)).collect();
    messages.iter().enumerate().for_each(|(i, m)| run.post(send(m, i as u64)));
    run.pair.run();
    assert_eq!(delivered_payloads(&run.pair.events(Side::B)), messages);
    assert_eq!(
        sent_cookies(&run.pair.events(Side::A)),
        (0..10).map(Cookie::user).collect::<Vec<_>>()
    );
    run.pair.cut();
    run.post(send(&messages[0], 99));
    run.pair.run();
    let events = run.pair.events(Side::A);
    assert_eq!(
        events,
        [Event::Flushed { cookie: Cookie::user(99) }, Event::Failed(Failure::LlpLost)]
    );
    assert_eq!(run.pair.events(Side::B).len(), 0);
    assert!(!run.pair.is_up(Side::A));
}

/// RFC 5041 §3 (4): segment and message boundaries are preserved.
pub fn boundaries_are_preserved<P: Pair>() {
    let mut run = Run::<P>::new();
    run.plan(&[Fault::None, Fault::Lose, Fault::Delay]);
    let sizes = [0, 1, 2, 3, 4, 5, 127, 128, 1000, 4000, 0, 4096, 7];
    let mut region = Vec::new();
    let mut expected = Vec::new();
    for (i, size) in sizes.into_iter().enumerate() {
        let (data, cookie, stag) = (bytes(i, size), i as u64, run.pair.stag());
        let to = region.len();
        run.post(send(&data, cookie));
        run.post(write(stag, to, &data, cookie));
        region.extend_from_slice(&data);
        let to = TaggedOffset(to as u64);
        expected.push((data, Event::TaggedDelivered { stag, to, len: size as u64, rsvd_ulp: 0 }));
    }
    run.pair.run();
    let events = run.pair.events(Side::B);
    assert_eq!(events.len(), 2 * expected.len());
    for (pair, (data, tagged)) in events.chunks(2).zip(&expected) {
        assert_eq!(delivered_payloads(pair), core::slice::from_ref(data));
        assert_eq!(pair[1], *tagged);
    }
    run.region_begins_with(&region);
    run.assert_segments_arrived_as_sent();
}

/// RFC 5041 §3 (5): segments may arrive out of order, and then carry the sender's order.
pub fn segments_out_of_order_carry_their_order<P: Pair>() {
    let mut run = Run::<P>::new();
    run.plan(&[Fault::Delay, Fault::None, Fault::Lose, Fault::None, Fault::Delay]);
    let data = bytes(5, 40_000);
    for (i, chunk) in data.chunks(2000).enumerate() {
        run.post(write(run.pair.stag(), i * 2000, chunk, i as u64));
    }
    let before = run.pair.counters(Side::B);
    run.pair.run();
    let events = run.pair.events(Side::B);
    let tos: Vec<u64> = events
        .iter()
        .map(|event| match event {
            Event::TaggedDelivered { to, len: 2000, .. } => to.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tos, (0..20).map(|i| i * 2000).collect::<Vec<_>>());
    run.region_begins_with(&data);
    let after = run.pair.counters(Side::B);
    let ahead = after.placed_out_of_order_bytes - before.placed_out_of_order_bytes;
    let in_order = after.placed_in_order_bytes - before.placed_in_order_bytes;
    assert_eq!(ahead + in_order, 40_000, "each byte is placed once");
    assert_eq!(ahead > 0, P::PLACES_OUT_OF_ORDER);
}

/// RFC 5041 §3 (6): a digest covers the segment. Data that was changed in flight is not placed.
pub fn corrupt_segments_are_not_placed<P: Pair>() {
    let mut run = Run::<P>::new();
    run.plan(&[Fault::None, Fault::Corrupt]);
    let data = bytes(6, 12_000);
    for (i, chunk) in data.chunks(3000).enumerate() {
        run.post(write(run.pair.stag(), i * 3000, chunk, i as u64));
    }
    run.pair.run();
    let region = run.pair.region(Side::B);
    let wrong = region.iter().zip(&data).filter(|(seen, sent)| **seen != 0 && seen != sent).count();
    assert_eq!(wrong, 0, "bytes that were never sent are in the region");
    assert!(region[data.len()..].iter().all(|byte| *byte == 0));
    // The LLP may either recover or end the stream.
    let whole = run
        .pair
        .events(Side::B)
        .iter()
        .filter(|event| matches!(event, Event::TaggedDelivered { len: 3000, .. }))
        .count();
    assert!(region[..whole * 3000] == data[..whole * 3000]);
    if whole < 4 {
        run.pair.close(Side::A);
        run.pair.run();
        assert!(!run.pair.is_up(Side::B), "neither recovered nor ended");
    }
}

/// RFC 5041 §3 (7): the length of each segment is provided.
pub fn lengths_are_provided<P: Pair>() {
    let mut run = Run::<P>::new();
    let messages: Vec<_> = (0..64).map(|len| bytes(len, len)).collect();
    for batch in messages.chunks(16) {
        batch.iter().for_each(|message| run.post(send(message, 0)));
        run.pair.run();
    }
    assert_eq!(delivered_payloads(&run.pair.events(Side::B)), messages);
    assert_eq!(run.segments(), (64, 64));
}

/// Makes A post three Writes. The second Write names an STag that B does not have.
fn run_to_error<P: Pair>() -> Run<P> {
    let mut run = Run::<P>::new();
    let stag = run.pair.stag();
    run.post(write(stag, 0, b"good", 1));
    run.post(write(Stag(!stag.0), 4, b"bad", 2));
    run.post(write(stag, 4, b"never", 3));
    run.pair.run();
    run.region_begins_with(b"good\0\0\0\0\0");
    run
}

/// RFC 5041 §3 (8): after an error of DDP the stream carries no more data.
pub fn failed_stream_carries_no_more_data<P: Pair>() {
    let mut run = run_to_error::<P>();
    let events = run.pair.events(Side::B);
    assert!(matches!(events[0], Event::TaggedDelivered { len: 4, .. }));
    assert!(matches!(&events[1], Event::Error(error) if error.code == ErrorCode::InvalidStag));
    // Only the completion of B's own last message and the end of the stream may follow.
    let of_b = |event: &Event| matches!(event, Event::Sent { .. } | Event::Failed(_));
    assert!(events[2..].iter().all(of_b), "{events:?}");
    assert_eq!(run.pair.post(Side::B, send(b"x", 4)), Err(PostError::Closed));
    // No data that A sends now is placed, whether A has been notified of the error or not.
    let stag = run.pair.stag();
    let _posted = run.pair.post(Side::A, write(stag, 4, b"late", 5));
    run.pair.run();
    run.region_begins_with(b"good\0\0\0\0\0");
}

/// RFC 5041 §3 (9): the graceful end of each direction is indicated.
pub fn graceful_teardown_is_indicated<P: Pair>() {
    let run = run_graceful_close::<P>();
    drop(run);
}

fn run_graceful_close<P: Pair>() -> Run<P> {
    let mut run = Run::<P>::new();
    run.post(send(&bytes(9, 4000), 1));
    run.pair.close(Side::A);
    assert_eq!(run.pair.post(Side::A, send(b"x", 2)), Err(PostError::Closed));
    run.pair.run();
    let events = run.pair.events(Side::B);
    assert_eq!(delivered_payloads(&events), [bytes(9, 4000)]);
    assert_eq!(events[1..], [Event::PeerClosed { incomplete: false }]);
    // The stream is half closed, so B may still send.
    run.pair.post(Side::B, send(b"answer", 3)).expect("half open");
    run.pair.run();
    run.pair.close(Side::B);
    run.pair.run();
    assert_eq!(sent_cookies(&run.pair.events(Side::B)), [Cookie::user(3)]);
    let events = run.pair.events(Side::A);
    assert_eq!(events[0], Event::Sent { cookie: Cookie::user(1), messages: 1 });
    assert_eq!(delivered_payloads(&events), [b"answer"]);
    assert_eq!(events[2..], [Event::PeerClosed { incomplete: false }]);
    run
}

/// RFC 5041 §3 (10): the connection ends when its only stream ends, gracefully or by an error.
pub fn the_connection_ends_with_its_streams<P: Pair>() {
    let run = run_graceful_close::<P>();
    assert!(!run.pair.is_up(Side::A) && !run.pair.is_up(Side::B));
    let mut run = run_to_error::<P>();
    run.pair.close(Side::A);
    run.pair.run();
    assert!(!run.pair.is_up(Side::A) && !run.pair.is_up(Side::B));
}

/// RFC 5041 §3 (11): no segment is passed to DDP twice.
pub fn duplicates_are_not_passed<P: Pair>() {
    let mut run = Run::<P>::new();
    run.plan(&[Fault::Duplicate; 6]);
    run.plan(&[Fault::Lose, Fault::Duplicate, Fault::Delay, Fault::Duplicate]);
    let messages: Vec<_> = (0..12).map(|i| bytes(i, 2500)).collect();
    messages.iter().enumerate().for_each(|(i, m)| run.post(send(m, i as u64)));
    run.pair.run();
    assert_eq!(delivered_payloads(&run.pair.events(Side::B)), messages);
    run.assert_segments_arrived_as_sent();
}

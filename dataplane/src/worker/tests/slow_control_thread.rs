//! A worker whose control thread reads no events for a while: the receive windows that it offers close, and no data are
//! lost.

use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, RegionMemory, Stag, StreamId};

use super::test_host::*;
use crate::api::{Counters, EndpointConfig, Event, SctpConfig};
use crate::wake::Wake;
use crate::worker::link::event_queue::{Credit, EventQueue};

const PORT: u16 = 4791;
const SOURCE: Stag = Stag(8);
const SINK: Stag = Stag(100);
/// Number of entries of the event ring.
const RING: usize = 64;
/// Receive window in bytes.
const WINDOW: u32 = 64 << 10;
/// Length of a message in bytes. A window holds 32 messages.
const LEN: usize = 2000;
const MESSAGES: usize = 200;

fn tcp() -> EndpointConfig {
    let tcp = tcp_lite::tcp::Config { receive_window: WINDOW, ..Default::default() };
    let endpoint = tcp_lite::endpoint::EndpointConfig { tcp: Arc::new(tcp), ..Default::default() };
    endpoint.into()
}

fn sctp() -> EndpointConfig {
    let receive = sctp_lite::sctp::receive::ReceiveConfig { window: WINDOW, ..Default::default() };
    let sctp = sctp_lite::sctp::Config { receive: Arc::new(receive), ..Default::default() };
    SctpConfig { sctp: Arc::new(sctp), endpoint: Arc::default(), udp: None }.into()
}

/// Losses counted by the sender, and data that the receiver refused.
#[derive(PartialEq, Eq, Debug, Default)]
struct LossCounts {
    timeouts: u64,
    lost: u64,
    black_holes: u64,
    /// Number of refused bytes (TCP) or DATA chunks (SCTP), without probes of the closed window.
    refused: u64,
    /// True if the sender has probed a closed window.
    probed: bool,
}

fn loss_counts(net: &Net) -> LossCounts {
    let [from, to] = [0, 1].map(|n| &net.hosts[n].cores[0]);
    if let (Some(from), Some(to)) = (from.streams().next(), to.streams().next()) {
        let (from, to) = (from.stats().tcp, to.stats().tcp);
        return LossCounts {
            timeouts: from.loss.timeouts,
            lost: from.loss.segments_lost,
            black_holes: from.path_mtu.black_holes,
            refused: to.recv.bytes_refused.saturating_sub(from.window_probes),
            probed: from.window_probes > 0,
        };
    }
    let [from, to] = [from, to]
        .map(|core| core.associations.get(0).expect("one association").endpoint().association());
    let sent = from.sender().stats();
    LossCounts {
        timeouts: sent.timeouts,
        lost: sent.lost,
        black_holes: from.stats().path_mtu_black_holes,
        refused: to.receiver().stats().refused.saturating_sub(sent.window_probes),
        probed: sent.window_probes > 0,
    }
}

fn delivered_count(net: &Net) -> usize {
    let is_delivery = |e: &&(usize, Event)| matches!(e.1, Event::TaggedDelivered { .. });
    net.hosts[1].events.iter().filter(is_delivery).count()
}

// RFC 9293 §3.8.6, RFC 9260 §6.2: data within the offered window are accepted, and the window closes as it is used. A
// window update is sent when there is room again, so that the peer need not wait for its next probe.
#[test]
fn window_closes_while_events_are_unread_and_reopens() {
    for endpoint in [tcp, sctp] {
        let mut plan = Plan::new(2);
        plan.limits.events = RING;
        let mut net = Net::new(&[Plan::new(1), plan]);
        net.hosts[1].listen_as(PORT, 100, 100, endpoint());
        let source = net.hosts[0].region(SOURCE.0, LEN, Access::NONE);
        source.write(0, &pattern(LEN));
        let sink = net.hosts[1].region(SINK.0, LEN, Access::REMOTE_WRITE);
        net.run_until_idle();
        let (stream, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), endpoint());
        net.run_until_idle();

        net.hosts[1].takes_events = false;
        for _ in 0..MESSAGES {
            net.hosts[0].write(stream, (SOURCE, &source), SINK, LEN as u32);
        }
        net.advance(Duration::from_secs(30));
        let failed = |e: &Event| matches!(e, Event::PostFailed { .. }).then_some(());
        assert_eq!(net.hosts[0].take_event(failed), None);
        assert_eq!(loss_counts(&net), LossCounts { probed: true, ..LossCounts::default() });
        assert_eq!(net.hosts[1].count("streams_waiting"), 1);

        net.hosts[1].takes_events = true;
        let began = net.now;
        net.run_until("the rest", |net| (delivered_count(net) == MESSAGES).then_some(()));
        let duration = net.now.saturating_since(began);
        assert!(
            duration < Duration::from_millis(500),
            "the peer receives a window update: {duration:?}"
        );
        assert!(read_memory(&sink) == pattern(LEN));
        assert_eq!(loss_counts(&net), LossCounts { probed: true, ..LossCounts::default() });
    }
}

#[test]
fn held_events_of_paused_endpoints_are_bounded_in_sum() {
    let max_held = 32 * RING as u32;
    let (ring, mut control) = rtrb::RingBuffer::new(RING);
    let mut events = EventQueue::new(ring, Arc::new(Wake::new().unwrap()));
    let wait = |events: &mut EventQueue, streams: core::ops::Range<u64>, pending: usize| -> u32 {
        let pause = |n| {
            let mut credit = Credit::NONE;
            let keeps =
                events.add_waiting(StreamId(n), &mut credit, pending).expect("not waiting yet");
            assert_eq!(
                events.add_waiting(StreamId(n), &mut credit, pending),
                None,
                "already waiting"
            );
            assert!(keeps <= RING as u32);
            keeps
        };
        streams.map(pause).sum()
    };
    let mut take = |events: &mut EventQueue| {
        events.push(Event::Stopped, &Counters::default());
        control.pop().unwrap();
        events.begin_turn(&Counters::default());
        events.take_waiting().expect("some wait").len()
    };
    let first = wait(&mut events, 0..1000, 0);
    assert!(first <= max_held && first > max_held / 2, "{first}");
    // The resumed endpoints may still hold their events, so newly paused endpoints share only the remaining capacity.
    assert_eq!(take(&mut events), 1000);
    let more = wait(&mut events, 1000..2000, 0);
    assert!(first + more <= max_held, "{more}");
    // The share of a newly paused endpoint is computed from the remaining capacity, not from the maximum.
    assert_eq!(take(&mut events), 1000);
    wait(&mut events, 0..1000, 2);
    assert_eq!(wait(&mut events, 1000..1001, 0), 0);
    assert_eq!(take(&mut events), 1001);
    assert_eq!(wait(&mut events, 2000..2001, 0), 0);
    assert_eq!(take(&mut events), 1);
    assert_eq!(wait(&mut events, 3000..3001, 0), RING as u32);
}

// RFC 9260 §6.1 A, RFC 9293 §3.8.6.1: the control thread reads no events for much longer than the user time-out, and no
// stream ends. Packets with refused data are acknowledged, and the data are retransmitted when the window opens.
#[test]
fn control_thread_later_than_user_timeout_ends_no_stream() {
    let user_timeout = Duration::from_secs(5);
    let tcp = || -> EndpointConfig {
        let tcp = tcp_lite::tcp::Config {
            limits: tcp_lite::tcp::Limits { retransmission: user_timeout, ..Default::default() },
            ..Default::default()
        };
        tcp_lite::endpoint::EndpointConfig { tcp: Arc::new(tcp), ..Default::default() }.into()
    };
    let sctp = || -> EndpointConfig {
        let sctp = sctp_lite::sctp::Config { max_retransmits: 3, ..Default::default() };
        SctpConfig { sctp: Arc::new(sctp), endpoint: Arc::default(), udp: None }.into()
    };
    for endpoint in [tcp(), sctp()] {
        let mut plan = Plan::new(2);
        plan.limits.events = RING;
        let mut net = Net::new(&[Plan::new(1), plan]);
        net.hosts[1].listen_as(PORT, 100, 100, endpoint.clone());
        let source = net.hosts[0].region(SOURCE.0, LEN, Access::NONE);
        source.write(0, &pattern(LEN));
        let sink = net.hosts[1].region(SINK.0, LEN, Access::REMOTE_WRITE);
        net.run_until_idle();
        let (stream, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), endpoint);
        net.run_until_idle();
        net.hosts[1].takes_events = false;
        // The messages cause more events than may be queued. The receive window has room for all of them.
        for _ in 0..MESSAGES {
            net.hosts[0].write(stream, (SOURCE, &source), SINK, LEN as u32);
        }
        net.advance(20 * user_timeout);
        assert_eq!(net.hosts[1].count("streams_waiting"), 1);
        let refused = loss_counts(&net);
        assert!(refused.probed, "{refused:?}");
        net.hosts[1].takes_events = true;
        net.run_until("the rest", |net| (delivered_count(net) == MESSAGES).then_some(()));
        assert!(read_memory(&sink) == pattern(LEN));
        let ends = |e: &Event| matches!(e, Event::Closed { .. } | Event::PostFailed { .. });
        assert_eq!(
            [0, 1].map(|n| net.hosts[n].take_event(|e| ends(e).then_some(()))),
            [None, None]
        );
    }
}

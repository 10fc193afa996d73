//! Successive packets of an association are looked up once, with the same result as separate look-ups.

use std::time::Duration;

use ddp::{Access, RegionMemory, Stag, StreamId};
use proptest::prelude::*;
use wire::crc32c;

use super::sctp::{PORT, config};
use super::test_host::*;
use crate::api::EndpointConfig;
use crate::memory::Memory;
use crate::net::demux::L4Check;
use crate::worker::arrival::{ArrivalKind, Arrivals, Forwarding, Packet, Received};

const SOURCE: Stag = Stag(1);
const SINK: Stag = Stag(2);
const LEN: usize = 8000;
/// Number of entries of the event ring: few, so that sessions are paused.
const EVENTS: usize = 64;

/// Messages that the peers post, changes of packets in flight, and whether the control thread reads events.
#[derive(Clone, Debug)]
struct Burst {
    /// Index of the stream, true for a write (false for a message), and length in bytes.
    posts: Vec<(usize, bool, usize)>,
    changes: Vec<(Change, prop::sample::Index)>,
    takes_events: bool,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Damage,
    Swap,
    Repeat,
    Lose,
    /// Replaces the verification tag by a wrong tag.
    Tag,
}

/// A host with two peers. Two streams of the first peer share an association; the second peer has one stream.
struct ThreeHosts {
    net: Net,
    streams: [(usize, StreamId); 3],
    /// Source region of each stream.
    sources: [Memory; 3],
    sink: Memory,
}

impl ThreeHosts {
    fn new() -> ThreeHosts {
        let mut plan = Plan::new(2);
        plan.limits.events = EVENTS;
        let mut net = Net::new(&[Plan::new(1), plan, Plan::new(3)]);
        net.hosts[1].listen_as(PORT, 200, 200, config());
        net.run_until_idle();
        let shared = EndpointConfig::from(config());
        let streams = [0, 0, 2].map(|from| {
            let (stream, _) = net.open_as(from, 0, 1, (v4(2), PORT).into(), shared.clone());
            (from, stream)
        });
        let [one, other] = [0, 2].map(|peer| {
            let source = net.hosts[peer].region(SOURCE.0, LEN, Access::NONE);
            source.write(0, &pattern(LEN));
            source
        });
        let sources = [one.clone(), one, other];
        let sink = net.hosts[1].region(SINK.0, LEN, Access::REMOTE_WRITE);
        net.run_until_idle();
        assert_eq!(net.hosts[1].count("associations"), 2);
        ThreeHosts { net, streams, sources, sink }
    }

    /// Takes the packets that the peers send now, five of each peer alternately.
    fn take_peer_packets(&mut self) -> Vec<TestFrame> {
        let now = self.net.now;
        let [mut one, mut other] = [0, 2].map(|peer| {
            self.net.hosts[peer].cores[0].turn(now);
            self.net.hosts[peer].take_sent().into_iter()
        });
        let mut frames = Vec::new();
        while one.len() + other.len() > 0 {
            frames.extend(one.by_ref().take(5).chain(other.by_ref().take(5)));
        }
        frames
    }

    /// Delivers a burst to the second host and returns the resulting state. Its packets are handled in runs or, if
    /// `alone`, each is parsed completely, looked up separately and followed by a report of its events.
    fn deliver_burst(&mut self, burst: &Burst, alone: bool) -> String {
        let now = self.net.now;
        for &(stream, write, len) in &burst.posts {
            let source = &self.sources[stream];
            let (peer, stream) = self.streams[stream];
            if write {
                self.net.hosts[peer].write(stream, (SOURCE, source), SINK, len as u32);
            } else {
                self.net.hosts[peer].send(stream, &vec![7; len]);
            }
        }
        let mut frames = self.take_peer_packets();
        for (change, at) in &burst.changes {
            let len = frames.len();
            let Some(at) = (len > 1).then(|| at.index(len - 1)) else { continue };
            match change {
                Change::Damage => *frames[at].0.last_mut().expect("a packet") ^= 1,
                Change::Swap => frames.swap(at, at + 1),
                Change::Repeat => frames.insert(at, frames[at].clone()),
                Change::Lose => drop(frames.remove(at)),
                Change::Tag => retag(&mut frames[at].0),
            }
        }
        let host = &mut self.net.hosts[1];
        let core = &mut host.cores[0];
        core.begin_burst(false);
        for stage in frames.chunks(if alone { 1 } else { 8 }) {
            let (mut arrivals, mut unmatched) = (Arrivals::new(), Arrivals::new());
            for frame in stage {
                let received = Received::in_clear(Packet::Frame(frame.clone()));
                core.classify(0, received, now, Forwarding::Allowed, &mut arrivals);
            }
            core.look_up_and_input(&mut arrivals, &[], &mut unmatched, now);
            unmatched.iter().for_each(|arrival| core.input_unmatched_arrival(arrival, now));
            if alone {
                for at in core.associations.slots() {
                    core.report_association(at, now);
                }
            }
        }
        let mut seen = self.state();
        self.net.hosts[1].cores[0].turn(now);
        let host = &mut self.net.hosts[1];
        if burst.takes_events {
            while let Some(event) = host.handles[0].poll() {
                seen += &format!("{event:?} ");
            }
        }
        let answers = host.take_sent();
        seen += &format!(
            "{:?} {}",
            answers.iter().map(|frame| &frame.0).collect::<Vec<_>>(),
            self.state()
        );
        for frame in answers {
            for peer in [0, 2] {
                self.net.hosts[peer].deliver(frame.clone());
            }
        }
        self.net.now += Duration::from_micros(50);
        seen
    }

    /// Returns associations, counters and placed bytes as text, for comparison.
    fn state(&self) -> String {
        let core = &self.net.hosts[1].cores[0];
        let associations: Vec<_> = core
            .associations
            .iter()
            .map(|(at, association)| {
                let endpoint = association.endpoint();
                let pending = endpoint.sessions().map(|id| endpoint.pending_events(id));
                format!("{at} {:?} {:?}", association.stats(), pending.collect::<Vec<_>>())
            })
            .collect();
        let mut counts = Vec::new();
        let counters = self.net.hosts[1].handles[0].counters();
        counters.for_each(|counter, value| counts.push((counter.name, value)));
        let drops: Vec<_> = counters.drops.iter().collect();
        let placed = crc32c::update(0, &read_memory(&self.sink));
        format!("{associations:?} {counts:?} {drops:?} {placed}")
    }
}

/// Changes the verification tag of an SCTP packet in IPv4, and corrects its checksum.
fn retag(frame: &mut [u8]) {
    let packet = &mut frame[34..];
    packet[4] ^= 1;
    let checksum = wire::sctp::checksum(packet);
    packet[8..12].copy_from_slice(&checksum);
}

fn any_burst() -> impl Strategy<Value = Burst> {
    let posts = prop::collection::vec((0usize..3, any::<bool>(), 1..LEN / 2), 0..12);
    let change = prop_oneof![
        Just(Change::Damage),
        Just(Change::Swap),
        Just(Change::Repeat),
        Just(Change::Lose),
        Just(Change::Tag),
    ];
    let changes = prop::collection::vec((change, any::<prop::sample::Index>()), 0..4);
    (posts, changes, prop::bool::weighted(0.7)).prop_map(|(posts, changes, listens)| Burst {
        posts,
        changes,
        takes_events: listens,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn packet_runs_and_single_packets_give_equal_state(bursts in prop::collection::vec(any_burst(), 1..12)) {
        let (mut runs, mut alone) = (ThreeHosts::new(), ThreeHosts::new());
        for burst in &bursts {
            prop_assert_eq!(runs.deliver_burst(burst, false), alone.deliver_burst(burst, true));
        }
    }
}

/// A session that uses up its event credit within a run of packets is paused at once: events of the later packets stay
/// in the endpoint.
#[test]
fn session_without_credit_pauses_within_a_packet_run() {
    let posts = || (0..120).map(|_| (0, false, 1200)).collect();
    let burst = || Burst { posts: posts(), changes: Vec::new(), takes_events: false };
    let (mut runs, mut alone) = (ThreeHosts::new(), ThreeHosts::new());
    for _ in 0..12 {
        assert_eq!(runs.deliver_burst(&burst(), false), alone.deliver_burst(&burst(), true));
    }
    let core = &runs.net.hosts[1].cores[0];
    let paused = core.associations.iter().any(|(_, association)| {
        let endpoint = association.endpoint();
        endpoint.sessions().any(|id| endpoint.pending_events(id) > 0)
    });
    assert!(paused);
}

/// A frame whose headers match the preceding packet's is assigned to the same association by header prediction. SCTP in
/// UDP is always parsed completely.
#[test]
fn packets_with_equal_headers_are_predicted() {
    let mut three = ThreeHosts::new();
    for _ in 0..4 {
        let (peer, stream) = three.streams[0];
        three.net.hosts[peer].send(stream, &[7; 1200]);
    }
    let frames = three.take_peer_packets();
    assert!(frames.len() >= 4);
    let core = &mut three.net.hosts[1].cores[0];
    let mut arrivals = Arrivals::new();
    for frame in frames.iter().take(4) {
        let received = Received::in_clear(Packet::Frame(frame.clone()));
        core.classify(0, received, three.net.now, Forwarding::Allowed, &mut arrivals);
    }
    for (at, arrival) in arrivals.iter().enumerate() {
        assert_eq!(arrival.same_flow, at > 0);
        assert_eq!((arrival.flow, arrival.hash), (arrivals[0].flow, arrivals[0].hash));
        assert_eq!(arrival.span, 34..frames[at].0.len());
        assert!(matches!(arrival.kind, ArrivalKind::Packet { udp: None, check: L4Check::Unknown }));
    }
}

//! Two associations over a path that loses, duplicates and reorders packets, in virtual time.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use base::Instant;
use wire::sctp::Packet;

use super::rig::{Batch, PACKET, Upper, bytes, ends};
use crate::sctp::{
    Association, CloseReason, Config, Ends, Event, InputResult, Listener, ListenerResult, Secrets,
    State, handle_out_of_the_blue,
};

/// One-way delay, and maximum additional random delay, nanoseconds.
const DELAY: u64 = 10_000_000;
const JITTER: u64 = 8_000_000;

/// Random number generator xorshift64*, deterministic per seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

#[derive(Debug)]
struct Host {
    listener: Listener,
    config: Arc<Config>,
    secrets: Arc<Secrets>,
    ends: Ends,
    association: Option<Association>,
    up: Upper,
    events: Vec<Event>,
}

impl Host {
    fn new(config: Config, secret: u8, ends: Ends) -> Host {
        let (config, secrets) = (Arc::new(config), Arc::new(Secrets::new([secret; 16])));
        let listener = Listener::new(Arc::clone(&config), Arc::clone(&secrets));
        Host {
            listener,
            config,
            secrets,
            ends,
            association: None,
            up: Upper::new(),
            events: Vec::new(),
        }
    }

    fn connect(&mut self, now: Instant) {
        let (config, secrets) = (Arc::clone(&self.config), Arc::clone(&self.secrets));
        self.association = Some(Association::connect(config, secrets, self.ends, PACKET, now));
    }

    fn input(&mut self, now: Instant, bytes: &[u8]) -> Vec<Vec<u8>> {
        let packet = Packet::new(bytes).expect("a common header");
        assert!(packet.checksum_ok());
        let mut batch = Batch::new();
        match &mut self.association {
            Some(association) => {
                // The drop reason is not checked here: the state of the other end shows the effect.
                let _ = association.input(now, &packet, &mut self.up);
            }
            None => match self.listener.input(now, &self.ends, &packet, &mut batch) {
                ListenerResult::Accept(cookie) => {
                    let (config, secrets) = (Arc::clone(&self.config), Arc::clone(&self.secrets));
                    let mut association =
                        Association::accept(config, secrets, self.ends, PACKET, &cookie, now);
                    let taken = association.input(now, &packet, &mut self.up);
                    assert_eq!(
                        taken,
                        InputResult { verified: true, reply_pending: false, result: Ok(()) }
                    );
                    self.association = Some(association);
                }
                ListenerResult::Answered | ListenerResult::Dropped(_) => {}
            },
        }
        batch.packets.extend(self.poll(now));
        batch.packets
    }

    fn poll(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let Some(association) = &mut self.association else { return Vec::new() };
        let mut batch = Batch::new();
        association.poll_transmit(now, &mut self.up, &mut batch);
        while let Some(event) = association.poll_event() {
            self.events.push(event);
        }
        if association.is_done() {
            self.association = None;
        }
        batch.packets
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.association.as_ref().and_then(Association::poll_timeout)
    }

    fn state(&self) -> State {
        self.association.as_ref().map_or(State::Closed, Association::state)
    }
}

/// Faults of the path: loss and duplication per 1000 packets, and reordering by jitter.
#[derive(Clone, Copy, Debug)]
struct Faults {
    loss_permille: u64,
    duplicate_permille: u64,
    reorder: bool,
}

#[derive(Debug)]
struct Net {
    now: Instant,
    hosts: [Host; 2],
    /// Packets in flight, keyed by arrival time and number. Values: index of the receiving host, and bytes.
    in_flight: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    count: u64,
    random: Random,
    faults: Faults,
}

impl Net {
    fn new(seed: u64, faults: Faults, config: &Config) -> Net {
        let ends = ends();
        let other = Ends { local: ends.remote, remote: ends.local };
        let hosts = [Host::new(config.clone(), 1, ends), Host::new(config.clone(), 2, other)];
        let now = Instant::from_millis(1);
        let random = Random(seed | 1);
        Net { now, hosts, in_flight: BTreeMap::new(), count: 0, random, faults }
    }

    fn send(&mut self, from: usize, packets: Vec<Vec<u8>>) {
        for bytes in packets {
            let copies = match self.random.below(1000) {
                n if n < self.faults.loss_permille => 0,
                n if n < self.faults.loss_permille + self.faults.duplicate_permille => 2,
                _ => 1,
            };
            for _ in 0..copies {
                let jitter = if self.faults.reorder { self.random.below(JITTER) } else { 0 };
                let at = self.now + Duration::from_nanos(DELAY + jitter);
                self.count += 1;
                self.in_flight.insert((at, self.count), (1 - from, bytes.clone()));
            }
        }
    }

    fn poll_host(&mut self, host: usize) {
        let packets = self.hosts[host].poll(self.now);
        self.send(host, packets);
    }

    /// Processes the next arrival or timer. Returns false if none is due by `until`.
    fn step(&mut self, until: Instant) -> bool {
        let arrival = self.in_flight.first_key_value().map(|((at, _), _)| *at);
        let timers = [0, 1].map(|host| self.hosts[host].poll_timeout());
        let next = timers.into_iter().flatten().chain(arrival).min();
        let Some(at) = next.filter(|at| *at <= until) else { return false };
        self.now = self.now.max(at);
        if arrival == Some(at) {
            let (_, (host, bytes)) = self.in_flight.pop_first().expect("a packet in flight");
            let packets = self.hosts[host].input(self.now, &bytes);
            self.send(host, packets);
            return true;
        }
        for host in [0, 1] {
            if self.hosts[host].poll_timeout().is_some_and(|at| at <= self.now) {
                if let Some(association) = &mut self.hosts[host].association {
                    association.handle_timeout(self.now);
                }
                self.poll_host(host);
            }
        }
        true
    }

    fn run_until(&mut self, condition: &str, done: impl Fn(&Net) -> bool) {
        let until = self.now + Duration::from_secs(600);
        for _ in 0..5_000_000 {
            if done(self) {
                return;
            }
            if !self.step(until) {
                break;
            }
        }
        let states = [0, 1].map(|host| self.hosts[host].state());
        panic!("{condition} not reached by {:?}: {states:?}", self.now);
    }

    fn states_are(&self, state: State) -> bool {
        self.hosts.iter().all(|host| host.state() == state)
    }
}

const CLEAN: Faults = Faults { loss_permille: 0, duplicate_permille: 0, reorder: false };
const FAULTY: Faults = Faults { loss_permille: 200, duplicate_permille: 100, reorder: true };

/// Returns a configuration with limits of retransmission that suffice on a path that loses every fifth packet.
fn config() -> Config {
    Config { max_init_retransmits: 30, max_retransmits: 30, ..Config::default() }
}

// RFC 9260 §5.1, §9.2: setup and shutdown complete despite loss, duplication and reordering.
#[test]
fn lossy_path_completes_setup_and_shutdown() {
    for seed in 1..=200 {
        let faults = if seed == 1 { CLEAN } else { FAULTY };
        let mut net = Net::new(seed, faults, &config());
        net.hosts[0].connect(net.now);
        net.poll_host(0);
        net.run_until("both ESTABLISHED", |net| net.states_are(State::Established));
        assert_eq!(net.hosts[0].events, [Event::Up { streams: 256 }]);
        assert_eq!(net.hosts[1].events, [Event::Up { streams: 256 }]);
        let closer = (seed % 2) as usize;
        let now = net.now;
        net.hosts[closer].association.as_mut().expect("up").shutdown(now);
        if seed % 3 == 0 {
            net.hosts[1 - closer].association.as_mut().expect("up").shutdown(now);
            net.poll_host(1 - closer);
        }
        net.poll_host(closer);
        net.run_until("both CLOSED", |net| net.states_are(State::Closed));
        for host in &net.hosts {
            // If the last reply is lost, an ABORT or a time-out ends the association that waits for this reply.
            assert!(matches!(host.events.last(), Some(Event::Closed(_))), "{:?}", host.events);
        }
        assert_eq!(net.hosts[closer].events.last(), Some(&Event::Closed(CloseReason::Shutdown)));
    }
}

// RFC 9260 §5.2.1, §5.2.4: both ends open at nearly the same time.
#[test]
fn crossing_opens_result_in_one_association() {
    for seed in 1..=200 {
        let faults = if seed == 1 { CLEAN } else { FAULTY };
        let mut net = Net::new(seed, faults, &config());
        net.hosts[0].connect(net.now);
        net.poll_host(0);
        net.now += Duration::from_nanos(net.random.below(2 * DELAY));
        net.hosts[1].connect(net.now);
        net.poll_host(1);
        net.run_until("one association", |net| {
            let [a, b] = &net.hosts;
            let (Some(a), Some(b)) = (&a.association, &b.association) else { return false };
            net.states_are(State::Established)
                && a.local_tag() == b.peer_tag()
                && b.local_tag() == a.peer_tag()
        });
        for host in &net.hosts {
            assert_eq!(host.events, [Event::Up { streams: 256 }], "seed {seed}");
        }
    }
}

// RFC 9260 §5.2.4.1, §8.4: one side loses all state and opens a new association, which the other side treats as a
// restart.
#[test]
fn crashed_peer_reopens_by_restart() {
    for seed in 1..=100 {
        let faults = if seed == 1 { CLEAN } else { FAULTY };
        let mut net = Net::new(seed, faults, &config());
        net.hosts[0].connect(net.now);
        net.poll_host(0);
        net.run_until("both ESTABLISHED", |net| net.states_are(State::Established));
        // The crash also drops packets in flight. An old packet would end the association, as RFC 9260 specifies.
        net.in_flight.clear();
        net.hosts[0].events.clear();
        net.now += Duration::from_secs(1);
        net.hosts[0].connect(net.now);
        net.poll_host(0);
        net.run_until("a restart", |net| {
            let [a, b] = &net.hosts;
            let (Some(a), Some(b)) = (&a.association, &b.association) else { return false };
            net.states_are(State::Established) && a.local_tag() == b.peer_tag()
        });
        assert_eq!(net.hosts[0].events, [Event::Up { streams: 256 }]);
        let restarts = net.hosts[1].events.iter().filter(|e| matches!(e, Event::Restarted { .. }));
        assert_eq!(restarts.count(), 1, "seed {seed}: {:?}", net.hosts[1].events);
    }
}

/// Queues messages of many lengths, numbered from zero.
fn load(up: &mut Upper, count: u64) {
    up.queue.extend((0..count).map(|n| (n, 8 + (n * 7919 % 1400) as usize)));
}

/// Checks that all queued messages have arrived once and unchanged, in any order, and that acknowledgements were
/// reported to the source in order.
fn verify(receiver: &Upper, source: &Upper, count: u64) {
    let number = |message: &(u16, Vec<u8>)| {
        u64::from_be_bytes(message.1[..8].try_into().expect("eight bytes"))
    };
    let mut got: Vec<_> = receiver.received.iter().collect();
    got.sort_by_key(|message| number(message));
    assert_eq!(got.len() as u64, count);
    for (n, message) in (0..count).zip(got) {
        let expected = ((n % 4) as u16, bytes(n, 8 + (n * 7919 % 1400) as usize));
        assert_eq!(*message, expected, "message {n}");
    }
    assert!(source.acknowledged.iter().copied().eq(0..count));
}

// RFC 9260 §6: the path loses every twentieth packet, duplicates some and reorders most. A shutdown begins while
// messages are in flight.
#[test]
fn lossy_path_delivers_ten_thousand_messages_each_way() {
    let faults = Faults { loss_permille: 50, duplicate_permille: 20, reorder: true };
    for seed in [3, 5] {
        let mut net = Net::new(seed, faults, &config());
        for host in &mut net.hosts {
            load(&mut host.up, 10_000);
        }
        net.hosts[0].connect(net.now);
        net.poll_host(0);
        net.run_until("both ESTABLISHED", |net| net.states_are(State::Established));
        let now = net.now;
        net.hosts[1].association.as_mut().expect("up").shutdown(now);
        net.poll_host(1);
        net.run_until("both CLOSED", |net| net.states_are(State::Closed));
        let [a, b] = &net.hosts;
        verify(&a.up, &b.up, 10_000);
        verify(&b.up, &a.up, 10_000);
        assert!(a.events.contains(&Event::PeerShutdown));
        for host in [a, b] {
            assert_eq!(host.events.last(), Some(&Event::Closed(CloseReason::Shutdown)));
        }
    }
}

// The upper layer refuses every seventh message offered. Each is retransmitted until it is accepted.
#[test]
fn refused_messages_are_retransmitted_until_accepted() {
    let faults = Faults { loss_permille: 10, duplicate_permille: 10, reorder: true };
    let mut net = Net::new(9, faults, &config());
    load(&mut net.hosts[0].up, 500);
    net.hosts[1].up.refuse_every = 7;
    net.hosts[0].connect(net.now);
    net.poll_host(0);
    net.run_until("all acknowledged", |net| net.hosts[0].up.acknowledged.len() == 500);
    verify(&net.hosts[1].up, &net.hosts[0].up, 500);
}

// RFC 9260 §8.4: a peer without state answers the first packet with an ABORT.
#[test]
fn heartbeat_to_crashed_peer_elicits_abort() {
    let mut net = Net::new(1, CLEAN, &config());
    net.hosts[0].connect(net.now);
    net.poll_host(0);
    net.run_until("both ESTABLISHED", |net| net.states_are(State::Established));
    net.hosts[0].association = None;
    net.run_until("the end", |net| net.states_are(State::Closed));
    let reason = CloseReason::PeerAborted { cause: None, reason: Box::default() };
    assert_eq!(net.hosts[1].events.last(), Some(&Event::Closed(reason)));
    // The ABORT elicits no reply.
    let mut batch = Batch::new();
    let abort = super::rig::packet(wire::sctp::Tag(1), |b| b.abort(true, &[]).expect("room"));
    handle_out_of_the_blue(&ends(), &Packet::new(&abort).expect("a packet"), &mut batch);
    assert!(batch.packets.is_empty());
}

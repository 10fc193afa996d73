//! Whole transfers between two connections in virtual time, over a channel that loses, reorders and duplicates
//! segments. Every byte is passed to the upper layer once, and both ends close.

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::script::{config_with, tuple};
use super::upper::{Batch, Take, Upper};
use crate::tcp::output::switch;
use crate::tcp::{
    CloseReason, Config, CongestionControl, Connection, Event, Extensions, Flags, FourTuple,
    Limits, Segment, SeqNumber, State,
};
use base::Instant;

/// Pseudo-random generator (xorshift64*), so that a seed reproduces a run.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn per_mille(&mut self, n: u64) -> bool {
        self.next() >> 33 & 0x3ff < n * 1024 / 1000
    }
}

/// Faults of the channel, per thousand segments, and its one-way delay.
#[derive(Clone, Debug)]
struct Faults {
    loss: u64,
    duplication: u64,
    reordering: u64,
    delay: Duration,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    /// Arrival time and number of the transmission, reversed so that the heap returns the earliest first.
    arrives_at: std::cmp::Reverse<(Instant, u64)>,
    destination: usize,
    bytes: Vec<u8>,
}

struct Endpoint {
    conn: Option<Connection>,
    up: Upper,
    events: Vec<Event>,
    close_sent: bool,
}

struct Pair {
    ends: [Endpoint; 2],
    heap: BinaryHeap<InFlight>,
    random: Random,
    faults: Faults,
    now: Instant,
    sent: u64,
    configs: [Arc<Config>; 2],
    mss: [u16; 2],
    /// End of the stall. During the stall, the second end's upper layer has limited free space
    /// (`room`) and accepts only a part of the data (`take`).
    stalled_until: Instant,
    drop_first_fins: u32,
    /// Maximum number of segments per poll.
    batch: usize,
    /// Probability of a CE mark, per thousand segments.
    marks: u64,
    /// True if each end closes only after all its data is acknowledged.
    closes_late: bool,
    /// Records of all polls; `None` if not recorded.
    trace: Option<Vec<PollRecord>>,
}

/// Record of a poll: time, end (0 or 1), segments sent, indices of the ECN-capable segments, and the connection's state
/// afterwards.
type PollRecord = (Instant, usize, Vec<Vec<u8>>, Vec<usize>, String);

impl Pair {
    fn run(&mut self, limit: Instant) {
        let (config, iss) = (self.configs[0].clone(), SeqNumber(u32::MAX - 5000));
        let first = Connection::connect(config, tuple(), iss, self.mss[0], self.now);
        self.ends[0].conn = Some(first);
        self.poll(0);
        let mut steps = 0;
        while self.step() {
            steps += 1;
            let (first, second) = (&self.ends[0].conn, &self.ends[1].conn);
            assert!(self.now < limit, "no end by {:?}: {first:?} {second:?}", self.now);
            assert!(steps < 1_000_000, "too many segments: {first:?} {second:?}");
        }
    }

    /// Processes the next event: end of the stall, arrival or timer. Returns false if there is none.
    fn step(&mut self) -> bool {
        let timeout = |end: &Endpoint| end.conn.as_ref().and_then(Connection::poll_timeout);
        let timers = [timeout(&self.ends[0]), timeout(&self.ends[1])];
        let arrival = self.heap.peek().map(|f| f.arrives_at.0.0);
        let stall = Some(self.stalled_until).filter(|at| *at > self.now);
        let Some(next) = timers.into_iter().flatten().chain(arrival).chain(stall).min() else {
            return false;
        };
        self.now = self.now.max(next);
        if stall == Some(next) {
            self.ends[1].up.room = u64::MAX;
            self.ends[1].up.take = Take::All;
            self.poll(1);
        } else if arrival == Some(next) {
            let frame = self.heap.pop().expect("peeked");
            self.arrive(frame.destination, &frame.bytes);
            self.poll(frame.destination);
        } else {
            for i in [0, 1] {
                let end = &mut self.ends[i];
                if let Some(conn) = &mut end.conn {
                    conn.handle_timeout(self.now, &mut end.up);
                }
                self.poll(i);
            }
        }
        true
    }

    fn arrive(&mut self, to: usize, bytes: &[u8]) {
        let mut seg = Segment::parse(bytes).expect("we send well-formed segments");
        seg.ce = self.marks > 0 && self.random.per_mille(self.marks);
        let end = &mut self.ends[to];
        match &mut end.conn {
            Some(conn) => {
                let _ = conn.input(self.now, &seg, &mut end.up); // dropped segments are expected
            }
            None if seg.flags.has(Flags::SYN) && !seg.flags.has(Flags::ACK) => {
                let FourTuple { local, remote } = tuple();
                let tuple = FourTuple { local: remote, remote: local };
                let iss = SeqNumber(77);
                let config = self.configs[1].clone();
                end.conn =
                    Some(Connection::accept(config, tuple, iss, self.mss[1], &seg, self.now));
            }
            None => {}
        }
    }

    fn poll(&mut self, i: usize) {
        let end = &mut self.ends[i];
        let Some(conn) = &mut end.conn else { return };
        let mut batch = Batch::new(self.batch);
        conn.poll_transmit(self.now, &mut end.up, &mut batch);
        while let Some(event) = conn.poll_event() {
            end.events.push(event);
        }
        // Each end closes as soon as it is connected, and its FIN follows all data. With `closes_late` it closes after
        // all data is acknowledged.
        let is_due = !self.closes_late || end.up.acked == end.up.len;
        if conn.state().is_synchronized() && !end.close_sent && is_due {
            end.close_sent = true;
            conn.close();
            conn.poll_transmit(self.now, &mut end.up, &mut batch);
        }
        if let Some(trace) = &mut self.trace {
            let state = format!("{conn:?}");
            let (segments, capable) = (batch.segments.clone(), batch.capable.clone());
            trace.push((self.now, i, segments, capable, state));
        }
        let full = batch.segments.len() == self.batch;
        for bytes in batch.segments {
            self.transmit(1 - i, bytes);
        }
        if full {
            self.poll(i);
        }
    }

    fn transmit(&mut self, to: usize, bytes: Vec<u8>) {
        self.sent += 1;
        let fin = Segment::parse(&bytes).is_ok_and(|s| s.flags.has(Flags::FIN));
        if fin && self.drop_first_fins > 0 {
            self.drop_first_fins -= 1;
            return;
        }
        let copies = 1 + u32::from(self.random.per_mille(self.faults.duplication));
        for _ in 0..copies {
            if self.random.per_mille(self.faults.loss) {
                continue;
            }
            let mut at = self.now + self.faults.delay;
            if self.random.per_mille(self.faults.reordering) {
                at += self.faults.delay * (self.random.next() % 8) as u32 / 4;
            }
            let at = std::cmp::Reverse((at, self.sent));
            self.heap.push(InFlight { arrives_at: at, destination: to, bytes: bytes.clone() });
        }
    }

    /// Checks that both ends received all data and closed normally.
    fn check(&self) -> Result<(), TestCaseError> {
        for (i, end) in self.ends.iter().enumerate() {
            let conn = end.conn.as_ref().expect("connected");
            prop_assert_eq!(conn.state(), State::Closed);
            let done = [Event::Connected, Event::RemoteClosed, Event::Closed(CloseReason::Normal)];
            prop_assert_eq!(&end.events, &done, "end {}", i);
            prop_assert_eq!(end.up.in_order, self.ends[1 - i].up.len, "received by {}", i);
            prop_assert_eq!(end.up.acked, end.up.len, "acknowledged to {}", i);
            prop_assert_eq!(conn.stats().recv.bytes, end.up.in_order);
            prop_assert_eq!(conn.stats().bytes_acknowledged, end.up.len + 1);
        }
        Ok(())
    }
}

fn pair(seed: u64, configs: [Config; 2], mss: [u16; 2], lens: [u64; 2], faults: Faults) -> Pair {
    let end = |len| Endpoint {
        conn: None,
        up: Upper { len, ..Upper::default() },
        events: Vec::new(),
        close_sent: false,
    };
    Pair {
        ends: lens.map(end),
        heap: BinaryHeap::new(),
        random: Random(seed | 1),
        faults,
        now: Instant::ZERO,
        sent: 0,
        configs: configs.map(Arc::new),
        mss,
        stalled_until: Instant::ZERO,
        drop_first_fins: 0,
        batch: 32,
        marks: 0,
        closes_late: false,
        trace: None,
    }
}

fn any_config() -> impl Strategy<Value = Config> {
    let window = prop_oneof![Just(600u32), Just(4_000), Just(60_000), Just(1 << 20)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (window, flags, 1usize..20).prop_map(
        |(receive_window, (sack, stamps, scale, cubic), ranges)| Config {
            receive_window,
            extensions: Extensions {
                sack,
                timestamps: stamps,
                window_scale: scale,
                ..Extensions::default()
            },
            congestion: if cubic { CongestionControl::Cubic } else { CongestionControl::NewReno },
            max_ranges: ranges,
            min_mss: 20, // below each MSS of `any_mss`
            limits: Limits {
                retransmission: Duration::from_secs(3600),
                syn: Duration::from_secs(3600),
                fin_wait_2: Duration::from_secs(3600),
                time_wait: Duration::from_secs(7200), // longer than any series of lost FINs
                ..Limits::default()
            },
            ..Config::default()
        },
    )
}

fn any_faults() -> impl Strategy<Value = Faults> {
    let rates = (0u64..250, 0u64..150, 0u64..300);
    let delay = prop_oneof![Just(50u64), Just(1_000), Just(20_000), Just(150_000)];
    (rates, delay).prop_map(|((loss, duplication, reordering), micros)| Faults {
        loss,
        duplication,
        reordering,
        delay: Duration::from_micros(micros),
    })
}

/// Generates the MSS of an interface, bytes. With timestamps, 33 leaves 21 bytes of payload.
fn any_mss() -> impl Strategy<Value = u16> {
    prop_oneof![Just(33u16), Just(88), Just(536), Just(1460), Just(8960)]
}

/// Generates a record size in bytes. With zero, each segment is filled to the effective MSS.
fn any_record() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), 20usize..3000]
}

const FOREVER: Instant = Instant::from_millis(48 * 3600 * 1000);

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    // RFC 9293 §3.8: transfers complete for any network faults, options and windows.
    #[test]
    fn faulty_channel_delivers_every_byte_once(
        seed: u64,
        configs in [any_config(), any_config()],
        mss in [any_mss(), any_mss()],
        lens in [0u64..60_000, 0u64..60_000],
        records in [any_record(), any_record()],
        faults in any_faults(),
    ) {
        let mut pair = pair(seed, configs, mss, lens, faults);
        pair.ends[0].up.record = records[0];
        pair.ends[1].up.record = records[1];
        pair.run(FOREVER);
        pair.check()?;
    }

    // RFC 9293 §3.8.6.1: window probes continue even if probes and answers are lost.
    #[test]
    fn long_closed_window_is_probed_until_it_opens(
        seed: u64,
        configs in [any_config(), any_config()],
        lens in [1u64..60_000, 0u64..5_000],
        stall_ms in 1u64..200_000,
        faults in any_faults(),
        whole: bool,
    ) {
        let mut pair = pair(seed, configs, [1460, 1460], lens, faults);
        pair.stalled_until = Instant::from_millis(stall_ms);
        pair.ends[1].up.room = 0;
        pair.ends[1].up.take = if whole { Take::Part(0..0) } else { Take::Part(0..lens[0] / 2) };
        pair.run(FOREVER);
        pair.check()?;
    }

    #[test]
    fn lost_fins_are_retransmitted_until_both_close(
        seed: u64,
        configs in [any_config(), any_config()],
        lens in [0u64..3_000, 0u64..3_000],
        drop_first_fins in 1u32..6,
        faults in any_faults(),
    ) {
        let mut pair = pair(seed, configs, [1460, 1460], lens, faults);
        pair.drop_first_fins = drop_first_fins;
        pair.run(FOREVER);
        pair.check()?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    // A run sends several segments with one set of checks. Segments, their times and the state after each poll are the
    // same with and without runs, for any behaviour of the network and of both ends.
    #[test]
    fn runs_send_the_same_segments_as_single_sends(
        seed: u64,
        configs in [any_config(), any_config()],
        changes in [any_change(), any_change()],
        mss in [any_mss(), any_mss()],
        lens in [0u64..100_000, 0u64..20_000],
        records in [any_record(), any_record()],
        faults in any_faults(),
        is_lossy: bool,
        (marks, batch, stall_ms) in (0u64..200, 1usize..70, prop_oneof![Just(0u64), 1u64..500]),
    ) {
        let faults = if is_lossy { faults } else { Faults { loss: 0, reordering: 0, ..faults } };
        let trace = || {
            let [first, second] = configs.clone();
            let configs = [config_with(first, |c| change(c, changes[0])), config_with(second, |c| change(c, changes[1]))];
            let mut pair = pair(seed, configs, mss, lens, faults.clone());
            (pair.ends[0].up.record, pair.ends[1].up.record) = (records[0], records[1]);
            (pair.marks, pair.batch, pair.closes_late) = (marks, batch, true);
            if stall_ms > 0 {
                pair.stalled_until = Instant::from_millis(stall_ms);
                pair.ends[1].up.room = lens[0] / 2;
            }
            pair.trace = Some(Vec::new());
            pair.run(FOREVER);
            pair.trace.unwrap()
        };
        let with_runs = trace();
        let without = switch::without_runs(trace);
        for (a, b) in with_runs.iter().zip(&without) {
            prop_assert_eq!(a, b);
        }
        prop_assert_eq!(with_runs.len(), without.len());
    }
}

/// Settings that [`any_config`] does not vary. Flags: pacing, PSH on each segment, ECN, DCTCP, path MTU probes, limited
/// send window. Numbers: initial window in segments, send window in bytes.
type Change = ([bool; 6], u32, u64);

fn any_change() -> impl Strategy<Value = Change> {
    (any::<[bool; 6]>(), 1u32..40, 3_000u64..300_000)
}

fn change(config: &mut Config, (flags, initial_window, send_window): Change) {
    let [pacing, push, ecn, dctcp, probing, small] = flags;
    (config.pacing, config.push_segments, config.initial_window) = (pacing, push, initial_window);
    config.extensions.ecn = ecn;
    config.path_mtu.probing = probing;
    if ecn && dctcp {
        config.congestion = CongestionControl::Dctcp;
    }
    if small {
        config.send_window = send_window;
    }
}

/// Transfers 8 MiB. Returns the virtual time that this took, and the sender.
fn transfer(config: Config, faults: Faults) -> (Duration, Connection) {
    let config = config_with(config, |c| c.limits.time_wait = Duration::from_millis(1));
    let mut pair = pair(7, [config.clone(), config], [1460, 1460], [8 << 20, 0], faults);
    pair.run(FOREVER);
    pair.check().unwrap();
    (pair.now.saturating_since(Instant::ZERO), pair.ends[0].conn.take().unwrap())
}

// RFC 6675, RFC 5681: with 1 % loss, less than 5 % (1/20) of the segments are retransmitted, and
// there are more than three fast recoveries per time-out.
#[test]
fn fast_recovery_repairs_one_percent_loss() {
    for sack in [true, false] {
        for congestion in [CongestionControl::Cubic, CongestionControl::NewReno] {
            let faults =
                Faults { loss: 10, duplication: 0, reordering: 0, delay: Duration::from_millis(5) };
            let config = config_with(Config { congestion, ..Config::default() }, |c| {
                c.extensions.sack = sack
            });
            let (time, conn) = transfer(config, faults);
            let stats = conn.stats();
            assert!(
                time < Duration::from_secs(8),
                "sack {sack} {congestion:?}: {time:?} {stats:?}"
            );
            assert!(stats.loss.segments_retransmitted < 8 * 1024 * 1024 / 1448 / 20, "{stats:?}");
            assert!(stats.loss.fast_recoveries > 3 * stats.loss.timeouts, "{stats:?}");
        }
    }
}

// RFC 5681 §3.1: slow start opens the window fast enough for 8 MiB in 250 ms at a round trip of 10 ms.
#[test]
fn lossless_transfer_has_no_retransmissions() {
    let faults = Faults { loss: 0, duplication: 0, reordering: 0, delay: Duration::from_millis(5) };
    let (time, conn) = transfer(Config::default(), faults);
    assert_eq!(conn.stats().loss.segments_retransmitted, 0);
    assert!(time < Duration::from_millis(250), "{time:?}");
}

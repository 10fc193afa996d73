//! Header prediction: fast path and slow path are equivalent, and predicted segments take the fast path.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::script::{OUR_ISS, PEER_ISS, config, tuple};
use super::upper::{Batch, Take, Upper};
use crate::tcp::{
    Config, CongestionControl, Connection, Extensions, Flags, Options, Segment, SeqNumber,
    Timestamps, TooBigOutcome,
};
use base::Instant;

/// A segment of the peer, relative to the state of the connection. [`PREDICTED`] takes the fast path.
#[derive(Clone, Debug)]
struct Peer {
    /// Offset from RCV.NXT.
    seq: i32,
    /// Offset from SND.UNA; in [`Step::Answer`], from SND.NXT.
    ack: i32,
    len: usize,
    flags: u8,
    window: u16,
    /// Offset of TSval from TS.Recent; `None` for a segment without timestamps.
    val: Option<i32>,
    sack: bool,
    ce: bool,
}

const WINDOW: u16 = 20_000;
const PREDICTED: Peer = Peer {
    seq: 0,
    ack: 0,
    len: 1000,
    flags: Flags::ACK.0,
    window: WINDOW,
    val: Some(0),
    sack: false,
    ce: false,
};

#[derive(Clone, Debug)]
enum Step {
    Segment(Peer),
    Answer(Peer),
    Wait(u64),
    Write(u64),
    Take(Take),
    Room(u64),
    Close,
}

/// A passively opened connection with its upper layer.
struct Endpoint {
    conn: Connection,
    up: Upper,
    /// Segments sent in the last poll.
    sent: Vec<Vec<u8>>,
}

impl Endpoint {
    fn new(config: &Arc<Config>) -> Endpoint {
        let flags = Flags::SYN.with(if config.extensions.ecn {
            Flags::ECE.with(Flags::CWR)
        } else {
            Flags::default()
        });
        let options = Options {
            mss: Some(1012),
            sack_permitted: true,
            window_scale: Some(0),
            timestamps: Some(Timestamps { val: 100, ecr: 0 }),
            ..Options::default()
        };
        let (seq, iss) = (SeqNumber(PEER_ISS), SeqNumber(OUR_ISS));
        let syn = Segment { seq, flags, window: WINDOW, options, ..Segment::default() };
        let conn = Connection::accept(config.clone(), tuple(), iss, 1012, &syn, Instant::ZERO);
        let mut end = Endpoint { conn, up: Upper::default(), sent: Vec::new() };
        end.poll(Instant::ZERO);
        let (seq, ack) = (SeqNumber(PEER_ISS.wrapping_add(1)), SeqNumber(OUR_ISS.wrapping_add(1)));
        let established = Segment { seq, ack, flags: Flags::ACK, ..syn };
        end.conn.input(Instant::ZERO, &established, &mut end.up).unwrap();
        end.poll(Instant::ZERO);
        end
    }

    fn poll(&mut self, now: Instant) {
        let mut batch = Batch::new(64);
        self.conn.poll_transmit(now, &mut self.up, &mut batch);
        self.sent = batch.segments;
        while self.conn.poll_event().is_some() {}
    }

    /// Processes a segment of the peer whose `ack` is relative to SND.NXT: 0 acknowledges everything in flight.
    fn answer(&mut self, now: Instant, peer: &Peer, may_predict: bool) -> bool {
        let flight = self.conn.info().flight as i32;
        self.segment(now, &Peer { ack: flight + peer.ack, ..*peer }, may_predict)
    }

    /// Processes the segment `peer`, on the fast path only if `may_predict`. Returns true if the fast path was taken.
    fn segment(&mut self, now: Instant, peer: &Peer, may_predict: bool) -> bool {
        let seq = self.conn.recv.nxt.wire().0.wrapping_add_signed(peer.seq);
        let first = seq.wrapping_sub(PEER_ISS).wrapping_sub(1);
        let byte = |i: u32| Upper::byte(u64::from(first.wrapping_add(i)));
        let payload: Vec<u8> = (0..peer.len as u32).map(byte).collect();
        let recent = self.conn.recv.ts_recent();
        let block = (SeqNumber(OUR_ISS.wrapping_add(500)), SeqNumber(OUR_ISS.wrapping_add(900)));
        let seg = Segment {
            src_port: 5000,
            dst_port: 4000,
            seq: SeqNumber(seq),
            ack: SeqNumber(self.conn.send.una.wire().0.wrapping_add_signed(peer.ack)),
            flags: Flags(peer.flags),
            window: peer.window,
            options: Options {
                timestamps: peer
                    .val
                    .map(|val| Timestamps { val: recent.wrapping_add_signed(val), ecr: 0 }),
                sack: peer.sack.then_some(block).into_iter().collect(),
                ..Options::default()
            },
            payload: &payload,
            ce: peer.ce,
            text_crc: None,
        };
        let established = self.conn.state() == super::super::State::Established;
        let short = may_predict && established && self.conn.is_predicted(now, &seg);
        // The tests compare the resulting states, not the drop reason.
        let _ = self.conn.input_on_path(short, now, &seg, &mut self.up);
        short
    }

    fn step(&mut self, now: &mut Instant, step: &Step, may_predict: bool) {
        match step {
            Step::Segment(peer) => drop(self.segment(*now, peer, may_predict)),
            Step::Answer(peer) => drop(self.answer(*now, peer, may_predict)),
            Step::Wait(ms) => {
                *now += Duration::from_millis(*ms);
                if self.conn.poll_timeout().is_some_and(|at| at <= *now) {
                    self.conn.handle_timeout(*now, &mut self.up);
                }
            }
            Step::Write(n) => self.up.len += n,
            Step::Take(take) => self.up.take = take.clone(),
            Step::Room(room) => self.up.room = *room,
            Step::Close => self.conn.close(),
        }
    }
}

fn shared_config(extensions: Extensions, pushed: bool, delay: u64) -> Arc<Config> {
    let mut config = Config { extensions, ..config() };
    config.acks.pushed = pushed;
    config.acks.delay = Duration::from_millis(delay);
    Arc::new(config)
}

const EXTENSIONS: Extensions =
    Extensions { sack: true, timestamps: true, ecn: false, window_scale: true };

/// Generates segments: most for the fast path, some with other fields.
fn any_peer() -> impl Strategy<Value = Peer> {
    let mostly =
        |usual: i32, range: core::ops::Range<i32>| prop_oneof![9 => Just(usual), 1 => range];
    let flags = prop_oneof![
        12 => Just(Flags::ACK.0),
        4 => Just(Flags::ACK.0 | Flags::PSH.0),
        1 => any::<u8>().prop_map(|flags| flags & !(Flags::RST.0 | Flags::SYN.0)),
    ];
    let rare = || prop::bool::weighted(0.05);
    (
        (mostly(0, -2500..4000), mostly(0, -10..3000), 0usize..2500, flags),
        prop_oneof![9 => Just(WINDOW), 1 => any::<u16>()],
        (proptest::option::weighted(0.95, mostly(0, -3..5)), rare(), rare()),
    )
        .prop_map(|((seq, ack, len, flags), window, (val, sack, ce))| Peer {
            seq,
            ack,
            len,
            flags,
            window,
            val,
            sack,
            ce,
        })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => any_peer().prop_map(Step::Segment),
        10 => any_peer().prop_map(Step::Answer),
        2 => (0u64..60).prop_map(Step::Wait),
        6 => (1u64..1200).prop_map(Step::Write),
        1 => (1u64..3000).prop_map(Step::Write),
        1 => (0u64..30_000, 0u64..3000).prop_map(|(a, n)| Step::Take(Take::Part(a..a + n))),
        3 => Just(Step::Take(Take::All)),
        1 => (0u64..20_000).prop_map(Step::Room),
        1 => Just(Step::Room(u64::MAX)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    // For any segments and calls, both paths give the same state, sent segments, timers and data passed to the upper
    // layer.
    #[test]
    fn fast_path_and_slow_path_reach_the_same_state(
        (sack, timestamps, ecn, pushed) in any::<(bool, bool, bool, bool)>(),
        delay in prop_oneof![Just(0u64), Just(40)],
        (_, congestion) in prop::sample::select(CongestionControl::NAMED),
        probes: bool,
        steps in prop::collection::vec((any_step(), any::<bool>()), 1..120),
        close: bool,
    ) {
        let extensions = Extensions { sack, timestamps, ecn, window_scale: true };
        let mut config = Arc::unwrap_or_clone(shared_config(extensions, pushed, delay));
        (config.congestion, config.tail_loss_probe) = (congestion, probes);
        let config = Arc::new(config);
        let (mut short, mut long) = (Endpoint::new(&config), Endpoint::new(&config));
        let (mut now, mut then) = (Instant::ZERO, Instant::ZERO);
        let last = close.then_some((Step::Close, true));
        for (step, poll) in steps.iter().chain(&last) {
            short.step(&mut now, step, true);
            long.step(&mut then, step, false);
            if *poll {
                short.poll(now);
                long.poll(then);
                prop_assert_eq!(&short.sent, &long.sent);
            }
            prop_assert_eq!(format!("{:?}", short.conn), format!("{:?}", long.conn));
            prop_assert_eq!(format!("{:?}", short.up), format!("{:?}", long.up));
        }
    }
}

/// Returns true if `peer`, after two predicted segments and `prepare`, takes the fast path.
fn takes_fast_path(peer: &Peer, prepare: impl FnOnce(&mut Endpoint)) -> bool {
    let mut end = Endpoint::new(&shared_config(EXTENSIONS, false, 40));
    for _ in 0..2 {
        assert!(end.segment(Instant::ZERO, &PREDICTED, true), "{:?}", end.conn);
    }
    prepare(&mut end);
    end.segment(Instant::ZERO, peer, true)
}

#[test]
fn predicted_data_segment_takes_fast_path() {
    let push = Flags::ACK.0 | Flags::PSH.0;
    for peer in [
        PREDICTED,
        Peer { flags: push, ..PREDICTED },
        Peer { val: Some(1), ..PREDICTED },
        Peer { len: 1, ..PREDICTED },
    ] {
        assert!(takes_fast_path(&peer, |_| {}), "{peer:?}");
    }
    assert!(takes_fast_path(&PREDICTED, |end| end.poll(Instant::ZERO)));
    // After a gap is filled, the next segment takes the fast path again.
    let fill = |end: &mut Endpoint| {
        assert!(!end.segment(Instant::ZERO, &Peer { seq: 1000, ..PREDICTED }, true));
        assert!(!end.segment(Instant::ZERO, &PREDICTED, true));
        end.poll(Instant::ZERO);
    };
    assert!(takes_fast_path(&PREDICTED, fill));
}

#[test]
fn unpredicted_data_segment_takes_slow_path() {
    let flag = |flag: Flags| Peer { flags: Flags::ACK.with(flag).0, ..PREDICTED };
    for peer in [
        Peer { seq: 1, ..PREDICTED },
        Peer { seq: -1, ..PREDICTED },
        Peer { ack: 1, ..PREDICTED },
        Peer { ack: -1, ..PREDICTED },
        Peer { len: 0, ..PREDICTED },
        Peer { len: 10_000, ..PREDICTED },
        Peer { window: WINDOW - 1, ..PREDICTED },
        Peer { val: None, ..PREDICTED },
        Peer { val: Some(-1), ..PREDICTED },
        Peer { sack: true, ..PREDICTED },
        Peer { ce: true, ..PREDICTED },
        Peer { flags: 0, ..PREDICTED },
        flag(Flags::FIN),
        flag(Flags::SYN),
        flag(Flags::RST),
        flag(Flags::URG),
        flag(Flags::ECE),
        flag(Flags::CWR),
    ] {
        assert!(!takes_fast_path(&peer, |_| {}), "{peer:?}");
    }
    // The slow path is taken while data is missing, and while our data is in flight.
    let gap = |end: &mut Endpoint| {
        end.segment(Instant::ZERO, &Peer { seq: 1000, ..PREDICTED }, true);
    };
    assert!(!takes_fast_path(&PREDICTED, gap));
    let write = |end: &mut Endpoint| {
        end.up.len = 100;
        end.poll(Instant::ZERO);
        assert_eq!(end.conn.info().flight, 100);
    };
    assert!(!takes_fast_path(&PREDICTED, write));
}

/// Returns true if `peer`, an answer to a single segment, takes the fast path. `prepare` runs before that segment is
/// sent.
fn answer_takes_fast_path(peer: &Peer, prepare: impl FnOnce(&mut Endpoint)) -> bool {
    let mut end = Endpoint::new(&shared_config(EXTENSIONS, false, 40));
    prepare(&mut end);
    end.up.len += 100;
    end.poll(Instant::from_millis(1));
    assert!(end.conn.info().flight >= 100);
    end.answer(Instant::from_millis(2), peer, true)
}

#[test]
fn ack_of_single_segment_takes_fast_path() {
    let push = Flags::ACK.0 | Flags::PSH.0;
    for peer in [
        PREDICTED,
        Peer { flags: push, ..PREDICTED },
        Peer { window: WINDOW - 1, ..PREDICTED },
        Peer { len: 1, ..PREDICTED },
    ] {
        assert!(answer_takes_fast_path(&peer, |_| {}), "{peer:?}");
    }
    // The second of two exchanges of request and reply also takes the fast path.
    let before = |end: &mut Endpoint| {
        end.up.len += 100;
        end.poll(Instant::ZERO);
        assert!(end.answer(Instant::ZERO, &PREDICTED, true));
    };
    assert!(answer_takes_fast_path(&PREDICTED, before));
}

#[test]
fn unpredicted_ack_of_single_segment_takes_slow_path() {
    let flag = |flag: Flags| Peer { flags: Flags::ACK.with(flag).0, ..PREDICTED };
    for peer in [
        Peer { seq: 1, ..PREDICTED },
        Peer { ack: 1, ..PREDICTED },
        Peer { ack: -1, ..PREDICTED },
        Peer { ack: -100, ..PREDICTED },
        Peer { len: 0, ..PREDICTED },
        Peer { window: 0, ..PREDICTED },
        Peer { val: None, ..PREDICTED },
        Peer { sack: true, ..PREDICTED },
        Peer { ce: true, ..PREDICTED },
        flag(Flags::FIN),
        flag(Flags::ECE),
    ] {
        assert!(!answer_takes_fast_path(&peer, |_| {}), "{peer:?}");
    }
    // The slow path is taken with two segments in flight, and with a retransmitted segment in flight.
    let write = |end: &mut Endpoint| {
        end.up.len += 100;
        end.poll(Instant::ZERO);
    };
    assert!(!answer_takes_fast_path(&PREDICTED, write));
    let mut end = Endpoint::new(&shared_config(EXTENSIONS, false, 40));
    write(&mut end);
    let mut now = Instant::ZERO;
    end.step(&mut now, &Step::Wait(5000), true);
    end.poll(now);
    assert!(!end.sent.is_empty() && !end.answer(now, &PREDICTED, true));
}

// RFC 5927 §7.2: the acknowledgement of the reported segment discards the report.
#[test]
fn ack_with_pending_path_mtu_report_takes_slow_path() {
    let mut end = Endpoint::new(&shared_config(EXTENSIONS, false, 40));
    let mut answered = |reported: bool| {
        end.up.len += 900;
        end.poll(Instant::ZERO);
        if reported {
            let seq = end.conn.send.una.wire();
            assert_eq!(end.conn.on_packet_too_big(Instant::ZERO, 700, seq), TooBigOutcome::Stored);
        }
        end.answer(Instant::ZERO, &PREDICTED, true)
    };
    assert_eq!([false, true, false].map(&mut answered), [true, false, true]);
}

#[test]
fn ack_for_sampling_controller_takes_slow_path() {
    // RFC 8257 §3.3: DCTCP counts all acknowledged bytes, marked or not.
    let ecn = Extensions { ecn: true, ..EXTENSIONS };
    let mut config = Arc::unwrap_or_clone(shared_config(ecn, false, 40));
    let answers = |config: &Config| {
        let mut end = Endpoint::new(&Arc::new(config.clone()));
        end.up.len += 100;
        end.poll(Instant::ZERO);
        end.answer(Instant::ZERO, &PREDICTED, true)
    };
    assert!(answers(&config));
    config.congestion = CongestionControl::Dctcp;
    assert!(!answers(&config));
}

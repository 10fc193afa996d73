//! Arbitrary input: no panic, no byte accepted by the upper layer twice, and all bounds hold. The upper layer of the
//! tests, `Upper`, asserts the contract of the traits in `seam`.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::script::{OUR_ISS, PEER_ISS, config, tuple};
use super::spurious::recovering;
use super::upper::{Batch, Take, Upper};
use crate::tcp::{
    Config, Connection, Extensions, Flags, Keepalive, Options, Segment, SeqNumber, State,
    Timestamps,
};
use base::Instant;

#[derive(Clone, Debug)]
enum Step {
    Segment { flags: u8, seq: u32, ack: u32, len: usize, window: u16, options: HostileOptions },
    Wait(u64),
    Write(u64),
    Room(u64),
    Take(Take),
    Mtu(u16),
    Batch(usize),
    Close,
    Abort,
}

#[derive(Clone, Debug)]
struct HostileOptions {
    mss: Option<u16>,
    scale: Option<u8>,
    sack_permitted: bool,
    stamps: Option<(u32, u32)>,
    sack: Vec<(u32, u32)>,
}

/// Generates sequence numbers: most near `base`, some arbitrary.
fn near_seq(base: u32) -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => (0u32..6000).prop_map(move |n| base.wrapping_add(n)),
        1 => (0u32..3000).prop_map(move |n| base.wrapping_sub(n)),
        1 => any::<u32>(),
    ]
}

fn any_options() -> impl Strategy<Value = HostileOptions> {
    let stamps = proptest::option::weighted(0.8, (0u32..50, any::<u32>()));
    let sack = prop::collection::vec((near_seq(OUR_ISS), near_seq(OUR_ISS)), 0..4);
    (any::<Option<u16>>(), any::<Option<u8>>(), any::<bool>(), stamps, sack).prop_map(
        |(mss, scale, sack_permitted, stamps, sack)| HostileOptions {
            mss,
            scale,
            sack_permitted,
            stamps,
            sack,
        },
    )
}

fn any_segment() -> impl Strategy<Value = Step> {
    let flags = prop_oneof![
        8 => Just(Flags::ACK.0),
        2 => Just(Flags::ACK.0 | Flags::FIN.0),
        2 => Just(Flags::ACK.0 | Flags::SYN.0),
        1 => Just(Flags::SYN.0),
        3 => any::<u8>().prop_map(|f| f & !Flags::RST.0),
        1 => any::<u8>(),
    ];
    let window = prop_oneof![Just(0u16), 0u16..100, any::<u16>()];
    (flags, near_seq(PEER_ISS), near_seq(OUR_ISS), 0usize..3000, window, any_options()).prop_map(
        |(flags, seq, ack, len, window, options)| Step::Segment {
            flags,
            seq,
            ack,
            len,
            window,
            options,
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_segment(),
        2 => (0u64..400_000).prop_map(Step::Wait),
        2 => (1u64..6000).prop_map(Step::Write),
        1 => (0u64..5000).prop_map(Step::Room),
        1 => (0u64..4000, 0u64..4000).prop_map(|(a, n)| Step::Take(Take::Part(a..a + n))),
        1 => Just(Step::Take(Take::All)),
        1 => any::<u16>().prop_map(Step::Mtu),
        1 => (0usize..4).prop_map(Step::Batch),
        1 => Just(Step::Batch(64)),
        1 => Just(Step::Close),
    ]
}

struct Victim {
    conn: Connection,
    up: Upper,
    now: Instant,
    batch: usize,
    sent: u64,
}

impl Victim {
    fn step(&mut self, step: Step) {
        match step {
            Step::Segment { flags, seq, ack, len, window, options } => {
                self.segment(flags, seq, ack, len, window, &options);
            }
            Step::Wait(ms) => self.wait(Duration::from_millis(ms)),
            Step::Write(n) => self.up.len += n,
            Step::Room(n) => self.up.room = n,
            Step::Take(take) => self.up.take = take,
            Step::Mtu(mss) => self.conn.set_path_mss(self.now, mss),
            Step::Batch(n) => self.batch = n,
            Step::Close => self.conn.close(),
            Step::Abort => self.conn.abort(self.now),
        }
        self.poll();
    }

    fn segment(
        &mut self,
        flags: u8,
        seq: u32,
        ack: u32,
        len: usize,
        window: u16,
        o: &HostileOptions,
    ) {
        let syn = u32::from(Flags(flags).has(Flags::SYN));
        let first = seq.wrapping_sub(PEER_ISS).wrapping_sub(1).wrapping_add(syn);
        let payload: Vec<u8> =
            (0..len as u32).map(|i| Upper::byte(u64::from(first.wrapping_add(i)))).collect();
        let seg = Segment {
            src_port: 5000,
            dst_port: 4000,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: Flags(flags),
            window,
            options: Options {
                mss: o.mss,
                window_scale: o.scale,
                sack_permitted: o.sack_permitted,
                timestamps: o.stamps.map(|(val, ecr)| Timestamps { val, ecr }),
                sack: o.sack.iter().map(|(l, r)| (SeqNumber(*l), SeqNumber(*r))).collect(),
            },
            payload: &payload,
            ce: len.is_multiple_of(3),
            text_crc: None,
        };
        let before = self.conn.state();
        let result = self.conn.input(self.now, &seg, &mut self.up);
        assert!(result.is_ok() || before != State::SynSent || self.conn.state() == before);
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        let mut expirations = 0;
        while let Some(at) = self.conn.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.conn.handle_timeout(self.now, &mut self.up);
            self.poll();
            expirations += 1;
            assert!(expirations < 10_000, "timers expire without end: {:?}", self.conn);
        }
        self.now = until;
    }

    fn poll(&mut self) {
        let mut batch = Batch::new(self.batch);
        self.conn.poll_transmit(self.now, &mut self.up, &mut batch);
        for bytes in &batch.segments {
            let seg = Segment::parse(bytes).expect("well-formed");
            assert!(seg.payload.len() <= self.conn.emss());
            assert!(seg.payload.is_empty() || seg.options.sack.is_empty());
        }
        self.sent += batch.segments.len() as u64;
        while self.conn.poll_event().is_some() {}
        let info = self.conn.info();
        assert!(info.ranges <= 8 && info.receive_window <= 65_535 << 7, "{info:?}");
    }
}

fn any_config() -> impl Strategy<Value = Config> {
    (any::<[bool; 4]>(), 500u32..20_000).prop_map(|([sack, timestamps, scale, keep], window)| {
        Config {
            extensions: Extensions { sack, timestamps, window_scale: scale, ..config().extensions },
            receive_window: window,
            max_ranges: 4,
            keepalive: keep.then(Keepalive::default),
            ..config()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    // RFC 9293 §3.10.7: arbitrary segments and calls, in any state.
    #[test]
    fn random_segments_keep_invariants(
        config in any_config(),
        active: bool,
        handshake in prop::bool::weighted(0.8),
        steps in prop::collection::vec(any_step(), 1..60),
        abort: bool,
    ) {
        let (config, iss) = (Arc::new(config), SeqNumber(OUR_ISS));
        let options = Options {
            sack_permitted: true,
            window_scale: Some(2),
            timestamps: Some(Timestamps { val: 1, ecr: 0 }),
            ..Options::default()
        };
        let seq = SeqNumber(PEER_ISS);
        let syn = Segment { seq, flags: Flags::SYN, window: 4000, options, ..Segment::default() };
        let conn = if active {
            Connection::connect(config, tuple(), iss, 1460, Instant::ZERO)
        } else {
            Connection::accept(config, tuple(), iss, 1460, &syn, Instant::ZERO)
        };
        let now = Instant::ZERO;
        let mut victim = Victim { conn, up: Upper::default(), now, batch: 64, sent: 0 };
        victim.poll();
        if handshake {
            let flags = if active { Flags::SYN.with(Flags::ACK) } else { Flags::ACK };
            let seq = SeqNumber(PEER_ISS.wrapping_add(u32::from(!active)));
            let ack = SeqNumber(OUR_ISS.wrapping_add(1));
            let seg = Segment { flags, seq, ack, ..syn.clone() };
            victim.conn.input(now, &seg, &mut victim.up).unwrap();
            victim.poll();
        }
        let count = steps.len() as u64;
        for step in steps {
            victim.step(step);
        }
        prop_assert!(victim.sent < 200 * count + 2000, "{} sent", victim.sent);
        // Without further input the connection becomes idle or ends.
        victim.batch = 64;
        victim.poll();
        if abort {
            victim.step(Step::Abort);
            prop_assert_eq!(victim.conn.state(), State::Closed);
            prop_assert_eq!(victim.conn.poll_timeout(), None);
        } else {
            victim.wait(Duration::from_secs(24 * 3600));
            let state = victim.conn.state();
            let rest = [State::Closed, State::Established, State::CloseWait];
            prop_assert!(rest.contains(&state), "{:?}", victim.conn);
            prop_assert!(victim.conn.info().flight == 0 || state == State::Closed, "{:?}", victim.conn);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    // RFC 3708 §3, §5: a segment was lost and retransmitted. D-SACKs that the peer forges, before and after the arrival
    // of the retransmission, do not undo the reduction of cwnd. Not tested: a forged D-SACK of the lost segment that
    // precedes the arrival of its retransmission. Such a D-SACK cannot be detected.
    #[test]
    fn forged_d_sacks_do_not_undo_cwnd_reduction(
        before in prop::collection::vec((1001u32..4000, 1u32..3000), 0..20),
        after in prop::collection::vec((1u32..10_000, 1u32..10_000), 1..40),
        exact: bool,
    ) {
        let mut script = recovering();
        let reduced = script.conn.info().cwnd;
        for (start, len) in before {
            let end = (start + len).min(4001);
            script.run(&format!("1.11 < . 1:1(0) ack 1 win 20000 <sack {start}:{end} 1001:4001>"));
        }
        if exact {
            script.run("1.20 < . 1:1(0) ack 10001 win 20000 <sack 1:1001>");
        } else {
            script.run("1.20 < . 1:1(0) ack 10001 win 20000");
        }
        for (start, len) in after.into_iter().chain([(1, 1000), (1, 4000), (1, 10_000)]) {
            let end = (start + len).min(10_001);
            script.run(&format!("1.21 < . 1:1(0) ack 10001 win 20000 <sack {start}:{end}>"));
        }
        let (info, stats) = (script.conn.info(), script.conn.stats());
        prop_assert_eq!((stats.loss.fast_recoveries, stats.loss.undone_by_d_sack), (1, 0));
        prop_assert_eq!(info.ssthresh, 7000);
        prop_assert!(info.cwnd <= reduced.max(7000), "{} of {}", info.cwnd, reduced);
    }
}

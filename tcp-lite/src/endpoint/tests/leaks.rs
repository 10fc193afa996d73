//! At every end of a stream the worker gets back its resources: bytes held beyond gaps, and buffers of
//! unfinished messages.

use super::net::{Fate, Net, Side, has_payload};
use super::peers::*;
use super::streams::{bytes, dice};
use crate::endpoint::*;
use crate::mpa::{self, OnBadCrc};
use core::time::Duration;
use ddp::{Cookie, EndpointPolicy, Message, Stag, TaggedOffset};
use proptest::prelude::*;

/// How a stream ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The side closes gracefully.
    Close(Side),
    /// The side resets the connection.
    Abort(Side),
    /// The path damages a segment and keeps its checksum valid.
    Damage,
    /// The sender writes to an invalid address.
    Error,
    /// The path loses everything: TCP or the idle time-out ends the stream.
    Dead,
}

fn ends() -> impl Strategy<Value = End> {
    prop_oneof![
        Just(End::Close(Side::A)),
        Just(End::Close(Side::B)),
        Just(End::Abort(Side::A)),
        Just(End::Abort(Side::B)),
        Just(End::Damage),
        Just(End::Error),
        Just(End::Dead),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    end: End,
    seed: u64,
    /// Microseconds from the first message to the end.
    after: u64,
    markers: bool,
    retransmit: bool,
    hold_limit: u32,
    idle_timeout: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let hold_limit = prop_oneof![Just(0u32), Just(3000), Just(1 << 20)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (ends(), any::<u64>(), 0u64..30_000, hold_limit, flags).prop_map(
        |(end, seed, after, hold_limit, (markers, retransmit, idle_timeout))| Case {
            end,
            seed,
            after,
            markers,
            retransmit,
            hold_limit,
            idle_timeout,
        },
    )
}

/// Builds a path that loses, cuts and delays segments, and damages one or stops at the planned time.
fn over(case: &Case) -> Net<Node, Node> {
    let on_bad_crc = if case.retransmit { OnBadCrc::Retransmit } else { OnBadCrc::Error };
    let (markers, hold_limit) = (case.markers, case.hold_limit);
    let mpa = mpa::Config { markers, hold_limit, on_bad_crc, ..Default::default() };
    let idle_timeout = case.idle_timeout.then(|| Duration::from_secs(30));
    let policy = EndpointPolicy { idle_timeout, ..EndpointPolicy::default() };
    let config = EndpointConfig { policy, ..with_mpa(mpa) };
    let mut roll = dice(case.seed);
    let (end, damaged) = (case.end, 20 + roll(40) as usize);
    established(config.clone(), config).with_fate(move |side, n, segment| {
        let (what, long) = (roll(100), segment.len() as u64);
        match what {
            _ if end == End::Damage && side == Side::A && n >= damaged && has_payload(segment) => {
                Fate::Corrupt
            }
            _ if end == End::Dead && n >= damaged => Fate::Drop,
            0..8 => Fate::Drop,
            8..30 => Fate::Delay(Duration::from_micros(roll(3000))),
            30..60 => Fate::Split((0..3).map(|_| roll(long) as usize).collect()),
            _ => Fate::Pass,
        }
    })
}

fn agree(node: &Node) {
    let stats = node.stats();
    assert_eq!(node.hold.used(), stats.mpa_rx.held, "{:?}", node.state());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The budget always equals the bytes that the stream holds; every end releases all of them.
    #[test]
    fn every_end_gives_back_what_was_lent(case in cases()) {
        let mut net = over(&case);
        for i in 0..12u32 {
            net.a.write(u64::from(i) * 9000, &bytes(i, 9000), u64::from(i));
            net.a.send(&bytes(i, 12_000), 100 + u64::from(i));
            net.b.send(&bytes(i, 5000), 200 + u64::from(i));
        }
        for _ in 0..8 {
            net.run_for(Duration::from_micros(case.after / 8));
            agree(&net.a);
            agree(&net.b);
        }
        let now = net.now;
        match case.end {
            End::Close(Side::A) => net.a.ep().shutdown(now),
            End::Close(Side::B) => net.b.ep().shutdown(now),
            End::Abort(Side::A) => net.a.with(|ep, cx| ep.abort(now, cx)),
            End::Abort(Side::B) => net.b.with(|ep, cx| ep.abort(now, cx)),
            End::Error => {
                let source = ddp::Source::Bytes([7; 100][..].into());
                let (stag, to) = (Stag(0xbad), TaggedOffset(0));
                let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::of(999) };
                // The stream may have ended before.
                let _posted = net.a.ep().post(message);
            }
            End::Damage | End::Dead => {}
        }
        net.run();
        let now = net.now;
        for node in [&mut net.a, &mut net.b] {
            agree(node);
            if !node.ep().is_done() {
                // The end is not notified; the operator aborts it.
                node.with(|ep, cx| ep.abort(now, cx));
            }
            prop_assert_eq!((node.hold.used(), node.buffers.in_use()), (0, 0));
        }
    }
}

//! However a stream ends, it releases the worker's resources: bytes held beyond gaps, and buffers of incomplete
//! messages.

use super::net::{Fate, Net, Side, has_payload};
use super::peers::*;
use super::streams::{bytes, seeded_random};
use crate::endpoint::*;
use crate::mpa::{self, BadCrcPolicy};
use core::time::Duration;
use ddp::{Cookie, EndpointPolicy, Message, Stag, TaggedOffset};
use proptest::prelude::*;

/// Cause of a stream's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndCause {
    /// The side closes gracefully.
    Close(Side),
    /// The side resets the connection.
    Abort(Side),
    /// The path damages data segments of side A. The TCP checksums of these segments stay valid.
    Damage,
    /// The sender writes to an invalid STag.
    Error,
    /// The path loses all segments: TCP or the idle time-out ends the stream.
    Dead,
}

fn ends() -> impl Strategy<Value = EndCause> {
    prop_oneof![
        Just(EndCause::Close(Side::A)),
        Just(EndCause::Close(Side::B)),
        Just(EndCause::Abort(Side::A)),
        Just(EndCause::Abort(Side::B)),
        Just(EndCause::Damage),
        Just(EndCause::Error),
        Just(EndCause::Dead),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    end: EndCause,
    seed: u64,
    /// Time from the first message to the cause of the end, microseconds.
    end_delay_us: u64,
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
            end_delay_us: after,
            markers,
            retransmit,
            hold_limit,
            idle_timeout,
        },
    )
}

/// Returns two nodes and a path that loses, cuts and delays segments. `Damage` and `Dead` begin at a random segment.
fn faulty_net(case: &Case) -> Net<Node, Node> {
    let on_bad_crc = if case.retransmit { BadCrcPolicy::Retransmit } else { BadCrcPolicy::Error };
    let (markers, hold_limit) = (case.markers, case.hold_limit);
    let mpa = mpa::Config { markers, hold_limit, on_bad_crc, ..Default::default() };
    let idle_timeout = case.idle_timeout.then(|| Duration::from_secs(30));
    let policy = EndpointPolicy { idle_timeout, ..EndpointPolicy::default() };
    let config = EndpointConfig { policy, ..with_mpa(mpa) };
    let mut roll = seeded_random(case.seed);
    let (end, damaged) = (case.end, 20 + roll(40) as usize);
    established(config.clone(), config).with_fate(move |side, n, segment| {
        let (what, long) = (roll(100), segment.len() as u64);
        match what {
            _ if end == EndCause::Damage
                && side == Side::A
                && n >= damaged
                && has_payload(segment) =>
            {
                Fate::Corrupt
            }
            _ if end == EndCause::Dead && n >= damaged => Fate::Drop,
            0..8 => Fate::Drop,
            8..30 => Fate::Delay(Duration::from_micros(roll(3000))),
            30..60 => Fate::Split((0..3).map(|_| roll(long) as usize).collect()),
            _ => Fate::Pass,
        }
    })
}

fn assert_budget_matches(node: &Node) {
    let stats = node.stats();
    assert_eq!(node.hold.used(), stats.mpa_rx.held, "{:?}", node.state());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// At all times the used hold budget equals the bytes that the stream holds. After the stream's end both are zero.
    #[test]
    fn every_stream_end_releases_hold_budget(case in cases()) {
        let mut net = faulty_net(&case);
        for i in 0..12u32 {
            net.a.write(u64::from(i) * 9000, &bytes(i, 9000), u64::from(i));
            net.a.send(&bytes(i, 12_000), 100 + u64::from(i));
            net.b.send(&bytes(i, 5000), 200 + u64::from(i));
        }
        for _ in 0..8 {
            net.run_for(Duration::from_micros(case.end_delay_us / 8));
            assert_budget_matches(&net.a);
            assert_budget_matches(&net.b);
        }
        let now = net.now;
        match case.end {
            EndCause::Close(Side::A) => net.a.ep().shutdown(now),
            EndCause::Close(Side::B) => net.b.ep().shutdown(now),
            EndCause::Abort(Side::A) => net.a.with_endpoint(|ep, cx| ep.abort(now, cx)),
            EndCause::Abort(Side::B) => net.b.with_endpoint(|ep, cx| ep.abort(now, cx)),
            EndCause::Error => {
                let source = ddp::Source::Bytes([7; 100][..].into());
                let (stag, to) = (Stag(0xbad), TaggedOffset(0));
                let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(999) };
                // The post is refused if the stream has already ended.
                let _posted = net.a.ep().post(message);
            }
            EndCause::Damage | EndCause::Dead => {}
        }
        net.run();
        let now = net.now;
        for node in [&mut net.a, &mut net.b] {
            assert_budget_matches(node);
            if !node.ep().is_done() {
                // This end has not noticed the stream's end. Aborts the stream, as an operator would.
                node.with_endpoint(|ep, cx| ep.abort(now, cx));
            }
            prop_assert_eq!((node.hold.used(), node.buffers.in_use()), (0, 0));
        }
    }
}

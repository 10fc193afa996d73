//! First packets from peers on the `deny` list of a listener. The target must drop each packet without creating state
//! and without an answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use load::frames::{Profile, build};

use super::{Attack, frames, guarded, sctp};
use crate::attack_context::AttackContext;
use crate::guarded_target::{DENIED_NET, DENIED_PORT, DENIED_SCTP_PORT, SCTP_UDP_PORT};
use crate::raw_sctp::RawSctp;
use crate::testbed;
use crate::verdict::Expectation;

// `net_overload` is also expected: in a full burst the target examines only a few frames that match no stream.
const REFUSED: &[&str] = &["drop:net_peer_refused", "drop:net_overload"];

/// Frames must be dropped before any state is created: `streams_refused` must not grow, and the target must not answer.
const RULE: Expectation = Expectation {
    explained_by: REFUSED,
    min_share: 0.9,
    max_growth: &[("control:streams_refused", 0)],
    amplification: 0.0,
};

const fn denied(
    name: &'static str,
    source: &'static str,
    round: fn(&mut AttackContext<'_>) -> Result<()>,
) -> Attack {
    guarded(Attack { rule: RULE, ..frames(name, source, round, REFUSED) })
}

pub(super) const ATTACKS: &[Attack] = &[
    denied("denied-syn", "RFC 4987 §3.1", flood_denied_syns),
    denied("denied-cookie-of-a-syn", "RFC 4987 §3.6", flood_denied_cookie_acks),
    denied("denied-init", "RFC 9260 §12.2.4.1", flood_denied_inits),
    denied("denied-cookie-echo", "RFC 9260 §12.2.4.1", flood_denied_cookie_echoes),
    denied("denied-init-in-udp", "RFC 6951 §5.4, 9260 §12.2.4.1", flood_denied_udp_inits),
];

/// Frames per round.
const ROUND: usize = 256;

fn flood_denied_syns(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::SynFlood, DENIED_NET, DENIED_PORT, ROUND)?;
    check_no_answer(context);
    Ok(())
}

fn flood_denied_cookie_acks(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::AckFlood, DENIED_NET, DENIED_PORT, ROUND)?;
    check_no_answer(context);
    Ok(())
}

fn flood_denied_inits(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::InitFlood, DENIED_NET, DENIED_SCTP_PORT, ROUND)?;
    check_no_answer(context);
    Ok(())
}

fn random_denied_source(context: &mut AttackContext<'_>) -> SocketAddr {
    let address = Ipv4Addr::new(198, 20, context.random.u8(..), context.random.u8(1..255));
    (address, context.random.u16(1024..)).into()
}

fn flood_denied_cookie_echoes(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let from = random_denied_source(context);
        let to = testbed::target_address(DENIED_SCTP_PORT);
        let tag = context.random.u32(1..);
        sctp::send_packet(context, from, to, tag, |b| b.cookie_echo(&[n as u8; 64]))?;
    }
    check_no_answer(context);
    Ok(())
}

fn flood_denied_udp_inits(context: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let (from, to) = (random_denied_source(context), testbed::target_address(DENIED_SCTP_PORT));
        let peer = RawSctp {
            local: from,
            remote: to,
            own_tag: context.random.u32(1..),
            peer_tag: 0,
            tsn: 1,
            last_tsn: 0,
        };
        let ends = context.station.frame_ends(from.ip(), to.ip());
        let frame = build::udp_frame(&ends, from.port(), SCTP_UDP_PORT, &peer.build_init()?)?;
        context.send_hostile(&frame)?;
    }
    check_no_answer(context);
    Ok(())
}

/// Reports a violation if the target sends any packet to [`DENIED_NET`] within 20 ms.
fn check_no_answer(context: &mut AttackContext<'_>) {
    let is_denied = |to: IpAddr| matches!(to, IpAddr::V4(to) if to.octets()[..2] == [198, 20]);
    let answer = context.station.wait_answer(Duration::from_millis(20), |answer| {
        is_denied(answer.destination).then_some((answer.destination, answer.protocol))
    });
    if let Some((to, protocol)) = answer {
        context.report_violation(format!(
            "the refused peer {to} got an answer of IP protocol {}",
            protocol.0
        ));
    }
}

//! First packets of peers that a listener's `deny` lists. The target must drop each packet without creating state and
//! without an answer.

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

// Overload is expected, too: of a full burst the target examines only a few unmatched frames.
const REFUSED: &[&str] = &["drop:net_peer_refused", "drop:net_overload"];

/// Frames must be dropped before any state is created: no refused streams, no answer.
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
    denied("denied-init", "RFC 5062 §2", flood_denied_inits),
    denied("denied-cookie-echo", "RFC 5062 §2", flood_denied_cookie_echoes),
    denied("denied-init-in-udp", "RFC 6951 §5.3, 5062 §2", flood_denied_udp_inits),
];

/// Frames per round.
const ROUND: usize = 256;

fn flood_denied_syns(field: &mut AttackContext<'_>) -> Result<()> {
    field.flood(Profile::SynFlood, DENIED_NET, DENIED_PORT, ROUND)?;
    check_no_answer(field);
    Ok(())
}

fn flood_denied_cookie_acks(field: &mut AttackContext<'_>) -> Result<()> {
    field.flood(Profile::AckFlood, DENIED_NET, DENIED_PORT, ROUND)?;
    check_no_answer(field);
    Ok(())
}

fn flood_denied_inits(field: &mut AttackContext<'_>) -> Result<()> {
    field.flood(Profile::InitFlood, DENIED_NET, DENIED_SCTP_PORT, ROUND)?;
    check_no_answer(field);
    Ok(())
}

fn random_denied_source(field: &mut AttackContext<'_>) -> SocketAddr {
    let address = Ipv4Addr::new(198, 20, field.random.u8(..), field.random.u8(1..255));
    (address, field.random.u16(1024..)).into()
}

fn flood_denied_cookie_echoes(field: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let from = random_denied_source(field);
        let to = testbed::target_address(DENIED_SCTP_PORT);
        let tag = field.random.u32(1..);
        sctp::send_packet(field, from, to, tag, |b| b.cookie_echo(&[n as u8; 64]))?;
    }
    check_no_answer(field);
    Ok(())
}

fn flood_denied_udp_inits(field: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let (from, to) = (random_denied_source(field), testbed::target_address(DENIED_SCTP_PORT));
        let peer = RawSctp {
            local: from,
            remote: to,
            own_tag: field.random.u32(1..),
            peer_tag: 0,
            tsn: 1,
            last_tsn: 0,
        };
        let ends = field.station.frame_ends(from.ip(), to.ip());
        let frame = build::udp_frame(&ends, from.port(), SCTP_UDP_PORT, &peer.build_init()?)?;
        field.send_hostile(&frame)?;
    }
    check_no_answer(field);
    Ok(())
}

/// Reports a violation if the target sends any packet to [`DENIED_NET`] within 20 ms.
fn check_no_answer(field: &mut AttackContext<'_>) {
    let is_denied = |to: IpAddr| matches!(to, IpAddr::V4(to) if to.octets()[..2] == [198, 20]);
    let answer = field.station.wait_answer(Duration::from_millis(20), |answer| {
        is_denied(answer.destination).then_some((answer.destination, answer.protocol))
    });
    if let Some((to, protocol)) = answer {
        field.report_violation(format!(
            "the refused peer {to} got an answer of IP protocol {}",
            protocol.0
        ));
    }
}

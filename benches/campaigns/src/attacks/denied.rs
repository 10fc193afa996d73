//! First packets of peers that a listener's `deny` names. Any packet must be dropped without state
//! and without answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use load::frames::{Profile, build};

use super::{Attack, frames, guarded, sctp};
use crate::bed;
use crate::field::Field;
use crate::guarded::{DENIED, DENIED_NET, DENIED_SCTP, SCTP_UDP};
use crate::raw_sctp::RawSctp;
use crate::verdict::Rule;

// Only a few unmatched frames of a full burst are examined.
const REFUSED: &[&str] = &["drop:net_peer_refused", "drop:net_overload"];

/// Refused before any state is made.
const RULE: Rule = Rule {
    explained_by: REFUSED,
    share: 0.9,
    most: &[("control:streams_refused", 0)],
    amplification: 0.0,
};

const fn denied(
    name: &'static str,
    source: &'static str,
    round: fn(&mut Field<'_>) -> Result<()>,
) -> Attack {
    guarded(Attack { rule: RULE, ..frames(name, source, round, REFUSED) })
}

pub(super) const ATTACKS: &[Attack] = &[
    denied("denied-syn", "RFC 4987 §3.1", syn),
    denied("denied-cookie-of-a-syn", "RFC 4987 §3.6", cookie),
    denied("denied-init", "RFC 5062 §2", init),
    denied("denied-cookie-echo", "RFC 5062 §2", cookie_echo),
    denied("denied-init-in-udp", "RFC 6951 §5.3, 5062 §2", init_in_udp),
];

/// Frames of a round.
const ROUND: usize = 256;

fn syn(field: &mut Field<'_>) -> Result<()> {
    field.flood(Profile::SynFlood, DENIED_NET, DENIED, ROUND)?;
    unanswered(field);
    Ok(())
}

fn cookie(field: &mut Field<'_>) -> Result<()> {
    field.flood(Profile::AckFlood, DENIED_NET, DENIED, ROUND)?;
    unanswered(field);
    Ok(())
}

fn init(field: &mut Field<'_>) -> Result<()> {
    field.flood(Profile::InitFlood, DENIED_NET, DENIED_SCTP, ROUND)?;
    unanswered(field);
    Ok(())
}

fn somebody(field: &mut Field<'_>) -> SocketAddr {
    let address = Ipv4Addr::new(198, 20, field.random.u8(..), field.random.u8(1..255));
    (address, field.random.u16(1024..)).into()
}

fn cookie_echo(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let ends = (somebody(field), bed::target(DENIED_SCTP));
        let tag = field.random.u32(1..);
        sctp::packet(field, ends, tag, |b| b.cookie_echo(&[n as u8; 64]))?;
    }
    unanswered(field);
    Ok(())
}

fn init_in_udp(field: &mut Field<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let (from, to) = (somebody(field), bed::target(DENIED_SCTP));
        let peer = RawSctp {
            local: from,
            remote: to,
            own_tag: field.random.u32(1..),
            tag: 0,
            tsn: 1,
            received: 0,
        };
        let ends = field.station.ends(from.ip(), to.ip());
        let frame = build::udp_frame(&ends, from.port(), SCTP_UDP, &peer.init()?)?;
        field.hostile(&frame)?;
    }
    unanswered(field);
    Ok(())
}

/// Checks that a refused peer gets no answer.
fn unanswered(field: &mut Field<'_>) {
    let is_denied = |to: IpAddr| matches!(to, IpAddr::V4(to) if to.octets()[..2] == [198, 20]);
    let answer = field.station.wait(Duration::from_millis(20), |answer| {
        is_denied(answer.to).then_some((answer.to, answer.protocol))
    });
    if let Some((to, protocol)) = answer {
        field.find(format!("the refused peer {to} got an answer of IP protocol {}", protocol.0));
    }
}

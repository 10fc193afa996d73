//! Against TCP: RFC 4953, 5961, 4987, 9293 and 6191.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use etherparse::{TcpHeader, TcpOptionElement};
use load::frames::{Profile, build};
use load::watch::Position;

use super::{Attack, dialogue, frames};
use crate::bed::{self, PREY};
use crate::field::Field;
use crate::raw_tcp::{PATIENCE, RawTcp};
use crate::ulp;

const SYN: &[&str] = &[
    "cookies_sent",
    "segments",
    "drop:net_overload",
    "drop:net_tx_full",
    "drop:net_backlog",
    "drop:net_peer_limit",
    "drop:net_peer_streams",
    "drop:net_rate_limited",
    "drop:tcp_unexpected_syn",
];
// The good peer's timestamps advance between observation and segment.
const BAD_ACK: &[&str] = &["drop:tcp_bad_ack", "drop:tcp_old_timestamp", "drop:tcp_out_of_window"];
const OUTSIDE: &[&str] = &["drop:tcp_out_of_window", "drop:tcp_old_timestamp"];
const NOBODY: &[&str] = &["drop:net_no_stream", "drop:net_no_listener", "drop:net_overload"];

pub(super) const ATTACKS: &[Attack] = &[
    frames("rst-in-window", "RFC 5961 §3, 4953 §2.2", rst, &["drop:tcp_blind_reset"]),
    frames("rst-outside", "RFC 4953 §2.2", rst_outside, &["drop:tcp_out_of_window"]),
    frames("syn-in-window", "RFC 5961 §4, 4953 §2.1", syn, &["drop:tcp_*"]),
    frames("data-bad-ack", "RFC 5961 §5, 4953 §2.3", data, BAD_ACK),
    frames("data-outside", "RFC 4953 §2.3", data_outside, OUTSIDE),
    frames("data-no-timestamp", "RFC 7323 §3.2", no_timestamp, &["drop:tcp_no_timestamp"]),
    frames("data-old-timestamp", "RFC 7323 §5.3", old_timestamp, &["drop:tcp_old_timestamp"]),
    frames("ack-of-unsent", "RFC 5961 §5", unsent, BAD_ACK),
    frames("fin-injected", "RFC 4953 §2.3", fin, BAD_ACK),
    frames("syn-flood", "RFC 4987 §2", syn_flood, SYN),
    frames("syn-flood-one", "RFC 4987 §2", syn_flood_one, SYN),
    frames("syn-flood-64", "RFC 4987 §2", syn_flood_64, SYN),
    frames("rst-flood", "RFC 9293 §3.10.7.1", |f| nobodys(f, Profile::RstFlood), NOBODY),
    frames("ack-flood", "RFC 9293 §3.10.7.1", |f| nobodys(f, Profile::AckFlood), NOBODY),
    frames("land", "RFC 6274 §3.13", land, &["drop:net_bad_source"]),
    dialogue(
        "half-open-syn",
        "RFC 9293 §3.10.7.4",
        half_open,
        &["drop:tcp_*", "drop:net_*", "cookies_sent"],
    ),
    dialogue("time-wait-reuse", "RFC 6191", time_wait, &["segments"]),
    dialogue(
        "streams-of-a-64",
        "RFC 5042 §6.5",
        streams_of_64,
        &["segments", "drop:net_peer_streams"],
    ),
];

/// Frames of a round.
const ROUND: usize = 512;

/// Sends a segment in the good peer's name, with its timestamps.
fn forge(
    field: &mut Field<'_>,
    (seq, ack): (u32, u32),
    stamps: Option<(u32, u32)>,
    change: impl FnOnce(&mut TcpHeader),
    payload: &[u8],
) -> Result<()> {
    let (peer, target) = (field.flow.destination, field.flow.source);
    let mut header = TcpHeader::new(peer.port(), target.port(), seq, 2000);
    header.acknowledgment_number = ack;
    change(&mut header);
    if let Some((value, echo)) = stamps {
        let stamp = TcpOptionElement::Timestamp(value, echo);
        header.set_options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, stamp])?;
    }
    let frame = build::tcp_frame(&field.station.ends(peer.ip(), target.ip()), header, payload)?;
    field.hostile(&frame)
}

/// Returns a sequence number in the window, too far from its left edge for the good peer's data to
/// reach it meanwhile.
fn inside(field: &mut Field<'_>, at: &Position) -> u32 {
    at.acknowledged.wrapping_add(field.random.u32(1_500_000..3_000_000))
}

/// Returns a sequence number outside of any window.
fn outside(field: &mut Field<'_>, at: &Position) -> u32 {
    at.acknowledged.wrapping_add(field.random.u32(0x2000_0000..0x6000_0000))
}

/// Returns an acknowledgement number out of range.
fn far(field: &mut Field<'_>, at: &Position) -> u32 {
    at.next.wrapping_add(field.random.u32(0x4000_0000..0x7000_0000))
}

/// Returns the peer's timestamps as the target has them.
fn stamps(at: &Position) -> Option<(u32, u32)> {
    at.timestamps.map(|(value, echo)| (echo, value))
}

fn round(
    field: &mut Field<'_>,
    mut one: impl FnMut(&mut Field<'_>, &Position) -> Result<()>,
) -> Result<()> {
    for _ in 0..ROUND {
        let at = field.victim()?;
        one(field, &at)?;
    }
    Ok(())
}

fn rst(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let seq = inside(field, at);
        forge(field, (seq, 0), None, |header| header.rst = true, &[])
    })
}

fn rst_outside(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let seq = outside(field, at);
        forge(field, (seq, at.next), None, |h| (h.rst, h.ack) = (true, true), &[])
    })
}

fn syn(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let seq = inside(field, at);
        forge(field, (seq, 0), stamps(at), |header| header.syn = true, &[])
    })
}

fn data(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let numbers = (inside(field, at), far(field, at));
        forge(field, numbers, stamps(at), |header| header.ack = true, &[0x5a; 900])
    })
}

fn data_outside(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let numbers = (outside(field, at), at.next);
        forge(field, numbers, stamps(at), |header| header.ack = true, &[0x5a; 900])
    })
}

fn no_timestamp(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let numbers = (inside(field, at), at.next);
        forge(field, numbers, None, |header| header.ack = true, &[0x5a; 900])
    })
}

fn old_timestamp(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let numbers = (inside(field, at), at.next);
        let old = stamps(at).map(|(value, echo)| (value.wrapping_sub(0x1000_0000), echo));
        forge(field, numbers, old, |header| header.ack = true, &[0x5a; 900])
    })
}

fn unsent(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let ack = at.next.wrapping_add(field.random.u32(1 << 24..1 << 28));
        forge(field, (at.acknowledged, ack), stamps(at), |header| header.ack = true, &[])
    })
}

fn fin(field: &mut Field<'_>) -> Result<()> {
    round(field, |field, at| {
        let numbers = (inside(field, at), far(field, at));
        forge(field, numbers, stamps(at), |h| (h.fin, h.ack) = (true, true), &[])
    })
}

fn syn_flood(field: &mut Field<'_>) -> Result<()> {
    field.flood(Profile::SynFlood, "198.18.0.0/15", PREY, ROUND)
}

fn syn_flood_one(field: &mut Field<'_>) -> Result<()> {
    field.flood(Profile::SynFlood, "198.18.0.1/32", PREY, ROUND)
}

fn syn_flood_64(field: &mut Field<'_>) -> Result<()> {
    field.flood(Profile::SynFlood, "fd98::/64", PREY, ROUND)
}

fn nobodys(field: &mut Field<'_>, profile: Profile) -> Result<()> {
    field.flood(profile, "198.18.0.0/15", PREY, ROUND)
}

/// Sends SYNs from the target's own address and port.
fn land(field: &mut Field<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let mut header = TcpHeader::new(PREY, PREY, field.random.u32(..), 1000);
        header.syn = true;
        let us = IpAddr::from(bed::TARGET_V4);
        let frame = build::tcp_frame(&field.station.ends(us, us), header, &[])?;
        field.hostile(&frame)?;
    }
    Ok(())
}

/// Sends SYNs outside the window between a client's SYN and its ACK. The half-open connection must
/// survive.
fn half_open(field: &mut Field<'_>) -> Result<()> {
    for _ in 0..8 {
        let mut client = RawTcp::new(field, [10, 77, 0, 70].into(), bed::target(PREY));
        client.syn(field)?;
        for far in [0x8000_0000, 0xfff0_0000, 0x2000_0000] {
            let seq = client.seq.wrapping_add(far);
            let syn = client.frame(
                field,
                |header| {
                    (header.syn, header.ack) = (true, false);
                    header.sequence_number = seq;
                },
                &[],
            )?;
            field.hostile(&syn)?;
        }
        field.rest(Duration::from_millis(20));
        client.send(field, |_| {}, &ulp::request(1, false, true))?;
        match client.next(field, PATIENCE) {
            Some(segment) if !segment.rst && !segment.payload.is_empty() => {}
            other => {
                let what = other.map_or("nothing", |s| if s.rst { "a reset" } else { "no reply" });
                field.find(format!("SYNs outside the window, then {what} for the MPA Request"));
            }
        }
        client.reset(field)?;
    }
    Ok(())
}

/// Reuses the ports after the target's TIME-WAIT has begun: its sequence numbers and timestamps
/// must continue.
fn time_wait(field: &mut Field<'_>) -> Result<()> {
    // A random origin would be below the previous one in half of the cases.
    for _ in 0..10 {
        let mut client = RawTcp::new(field, [10, 77, 0, 71].into(), bed::target(PREY));
        client.open(field)?;
        client.send(field, |_| {}, &ulp::request(1, false, true))?;
        if client.next(field, PATIENCE).is_none_or(|segment| segment.rst) {
            field.find("no MPA Reply");
            continue;
        }
        // An unknown STag: the target sends its last message and closes first.
        client.send(field, |_| {}, &ulp::fpdu(&ulp::tagged(0xdead_0001, 0, true, b"x")))?;
        field.attempts += 1;
        let mut closed = false;
        while let Some(segment) = client.next(field, PATIENCE) {
            client.send(field, |_| {}, &[])?;
            closed = segment.fin;
            if closed || segment.rst {
                break;
            }
        }
        if !closed {
            field.find("the target does not close after an error");
            continue;
        }
        client.send(field, |header| header.fin = true, &[])?;
        field.rest(Duration::from_millis(30));
        let (echo, ack) = (client.echo, client.ack);
        let mut again = RawTcp { seq: client.seq.wrapping_add(100_000), ack: 0, ..client };
        again.clock += 10;
        match again.syn(field) {
            Ok(_) => {
                if (again.echo.wrapping_sub(echo) as i32) < 0 {
                    field.find(format!("TSval goes back from {echo} to {}", again.echo));
                }
                if (again.ack.wrapping_sub(ack) as i32) <= 0 {
                    field.find(format!("sequence numbers go back from {ack} to {}", again.ack));
                }
                again.reset(field)?;
            }
            Err(error) => field.find(format!("in TIME-WAIT, {error:#}")),
        }
    }
    Ok(())
}

/// Opens streams from many addresses of one /64, which together have the share of one peer.
fn streams_of_64(field: &mut Field<'_>) -> Result<()> {
    const PER_PEER: usize = 24;
    let remote = SocketAddr::new(bed::TARGET_V6.into(), PREY);
    let mut open = Vec::new();
    for n in 0..2 * PER_PEER as u16 {
        let from = Ipv6Addr::new(0xfd97, 0, 0, 1, n, field.random.u16(..), 0, 9);
        let mut client = RawTcp::new(field, from.into(), remote);
        field.attempts += 1;
        if client.open(field).is_err() {
            continue;
        }
        client.send(field, |_| {}, &ulp::request(1, false, true))?;
        let reply = client.next(field, Duration::from_millis(300));
        if reply.is_some_and(|s| !s.rst && s.payload.get(16).is_some_and(|flags| flags & 0x20 == 0))
        {
            open.push(client);
        }
    }
    if open.len() > PER_PEER {
        field.find(format!("one /64 has {} streams, its share is {PER_PEER}", open.len()));
    }
    if open.is_empty() {
        field.find("a peer has no stream at all");
    }
    for mut client in open {
        client.reset(field)?;
    }
    Ok(())
}

//! Attacks on TCP: RFC 4953, RFC 5961, RFC 4987, RFC 9293 and RFC 6191.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use etherparse::{TcpHeader, TcpOptionElement};
use load::frames::{Profile, build};
use load::stream_watch::StreamPosition;

use super::{Attack, dialogue, frames};
use crate::attack_context::AttackContext;
use crate::raw_tcp::{ANSWER_TIMEOUT, RawTcp};
use crate::segments;
use crate::testbed::{self, VICTIM_PORT};

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
// `tcp_old_timestamp` is also expected: the good peer's timestamps advance between the observation and the forged
// segment.
const BAD_ACK: &[&str] = &["drop:tcp_bad_ack", "drop:tcp_old_timestamp", "drop:tcp_out_of_window"];
const OUT_OF_WINDOW: &[&str] = &["drop:tcp_out_of_window", "drop:tcp_old_timestamp"];
const UNMATCHED: &[&str] = &["drop:net_no_stream", "drop:net_no_listener", "drop:net_overload"];

pub(super) const ATTACKS: &[Attack] = &[
    frames("rst-in-window", "RFC 5961 §3, 4953 §2.3", forge_rst, &["drop:tcp_blind_reset"]),
    frames("rst-outside", "RFC 5961 §3", forge_rst_outside_window, &["drop:tcp_out_of_window"]),
    frames("syn-in-window", "RFC 5961 §4", forge_syn, &["drop:tcp_*"]),
    frames("data-bad-ack", "RFC 5961 §5", forge_data, BAD_ACK),
    frames("data-outside", "RFC 9293 §3.10.7.4", forge_data_outside_window, OUT_OF_WINDOW),
    frames(
        "data-no-timestamp",
        "RFC 7323 §3.2",
        forge_without_timestamp,
        &["drop:tcp_no_timestamp"],
    ),
    frames("data-old-timestamp", "RFC 7323 §5.3", forge_old_timestamp, &["drop:tcp_old_timestamp"]),
    frames("ack-of-unsent", "RFC 5961 §5", forge_ack_of_unsent_data, BAD_ACK),
    frames("fin-injected", "RFC 5961 §5", forge_fin, BAD_ACK),
    frames("syn-flood", "RFC 4987 §2", syn_flood, SYN),
    frames("syn-flood-one", "RFC 4987 §2", syn_flood_of_one_source, SYN),
    frames("syn-flood-64", "RFC 4987 §2", syn_flood_of_one_prefix, SYN),
    frames("rst-flood", "RFC 9293 §3.10.7.1", |f| flood_unmatched(f, Profile::RstFlood), UNMATCHED),
    frames("ack-flood", "RFC 9293 §3.10.7.1", |f| flood_unmatched(f, Profile::AckFlood), UNMATCHED),
    frames("land", "RFC 9293 §3.9.2.3", land, &["drop:net_bad_source"]),
    dialogue(
        "half-open-syn",
        "RFC 9293 §3.10.7.4",
        half_open,
        &["drop:tcp_*", "drop:net_*", "cookies_sent"],
    ),
    dialogue("time-wait-reuse", "RFC 6191", time_wait, &["segments"]),
    dialogue(
        "streams-of-a-64",
        "RFC 5042 §6.4.1",
        streams_of_64,
        &["segments", "drop:net_peer_streams"],
    ),
];

/// Frames per round.
const ROUND: usize = 512;

/// Sends a hostile segment from the good peer's address and port. `stamps` is TSval and TSecr.
fn send_forged_segment(
    context: &mut AttackContext<'_>,
    seq: u32,
    ack: u32,
    stamps: Option<(u32, u32)>,
    change: impl FnOnce(&mut TcpHeader),
    payload: &[u8],
) -> Result<()> {
    let (peer, target) = (context.flow.destination, context.flow.source);
    let mut header = TcpHeader::new(peer.port(), target.port(), seq, 2000);
    header.acknowledgment_number = ack;
    change(&mut header);
    if let Some((value, echo)) = stamps {
        let stamp = TcpOptionElement::Timestamp(value, echo);
        header.set_options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, stamp])?;
    }
    let frame =
        build::tcp_frame(&context.station.frame_ends(peer.ip(), target.ip()), header, payload)?;
    context.send_hostile(&frame)
}

/// Returns a sequence number in the window, 1.5 to 3 MB beyond RCV.NXT. The good peer's data does not reach it before
/// the forged segment arrives.
fn seq_in_window(context: &mut AttackContext<'_>, at: &StreamPosition) -> u32 {
    at.rcv_nxt.wrapping_add(context.random.u32(1_500_000..3_000_000))
}

/// Returns a sequence number 0.5 to 1.5 GiB beyond RCV.NXT, outside the target's receive window.
fn seq_outside_window(context: &mut AttackContext<'_>, at: &StreamPosition) -> u32 {
    at.rcv_nxt.wrapping_add(context.random.u32(0x2000_0000..0x6000_0000))
}

/// Returns an acknowledgement number 1 to 1.75 GiB above SND.NXT.
fn ack_out_of_range(context: &mut AttackContext<'_>, at: &StreamPosition) -> u32 {
    at.snd_nxt.wrapping_add(context.random.u32(0x4000_0000..0x7000_0000))
}

/// Returns TSval and TSecr that the target accepts from the peer: the target's own TSecr and TSval. `None` for a stream
/// without timestamps.
fn forged_timestamps(at: &StreamPosition) -> Option<(u32, u32)> {
    at.timestamps.map(|(value, echo)| (echo, value))
}

/// Calls `one` [`ROUND`] times, each time with the current position of the good stream.
fn round(
    context: &mut AttackContext<'_>,
    mut one: impl FnMut(&mut AttackContext<'_>, &StreamPosition) -> Result<()>,
) -> Result<()> {
    for _ in 0..ROUND {
        let at = context.victim_position()?;
        one(context, &at)?;
    }
    Ok(())
}

fn forge_rst(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let seq = seq_in_window(context, at);
        send_forged_segment(context, seq, 0, None, |header| header.rst = true, &[])
    })
}

fn forge_rst_outside_window(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let seq = seq_outside_window(context, at);
        send_forged_segment(context, seq, at.snd_nxt, None, |h| (h.rst, h.ack) = (true, true), &[])
    })
}

fn forge_syn(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let seq = seq_in_window(context, at);
        send_forged_segment(context, seq, 0, forged_timestamps(at), |header| header.syn = true, &[])
    })
}

fn forge_data(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let (seq, ack) = (seq_in_window(context, at), ack_out_of_range(context, at));
        send_forged_segment(
            context,
            seq,
            ack,
            forged_timestamps(at),
            |header| header.ack = true,
            &[0x5a; 900],
        )
    })
}

fn forge_data_outside_window(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let (seq, ack) = (seq_outside_window(context, at), at.snd_nxt);
        send_forged_segment(
            context,
            seq,
            ack,
            forged_timestamps(at),
            |header| header.ack = true,
            &[0x5a; 900],
        )
    })
}

fn forge_without_timestamp(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let (seq, ack) = (seq_in_window(context, at), at.snd_nxt);
        send_forged_segment(context, seq, ack, None, |header| header.ack = true, &[0x5a; 900])
    })
}

fn forge_old_timestamp(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let (seq, ack) = (seq_in_window(context, at), at.snd_nxt);
        let old =
            forged_timestamps(at).map(|(value, echo)| (value.wrapping_sub(0x1000_0000), echo));
        send_forged_segment(context, seq, ack, old, |header| header.ack = true, &[0x5a; 900])
    })
}

fn forge_ack_of_unsent_data(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let ack = at.snd_nxt.wrapping_add(context.random.u32(1 << 24..1 << 28));
        send_forged_segment(
            context,
            at.rcv_nxt,
            ack,
            forged_timestamps(at),
            |header| header.ack = true,
            &[],
        )
    })
}

fn forge_fin(context: &mut AttackContext<'_>) -> Result<()> {
    round(context, |context, at| {
        let (seq, ack) = (seq_in_window(context, at), ack_out_of_range(context, at));
        send_forged_segment(
            context,
            seq,
            ack,
            forged_timestamps(at),
            |h| (h.fin, h.ack) = (true, true),
            &[],
        )
    })
}

fn syn_flood(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::SynFlood, "198.18.0.0/15", VICTIM_PORT, ROUND)
}

fn syn_flood_of_one_source(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::SynFlood, "198.18.0.1/32", VICTIM_PORT, ROUND)
}

fn syn_flood_of_one_prefix(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::SynFlood, "fd98::/64", VICTIM_PORT, ROUND)
}

fn flood_unmatched(context: &mut AttackContext<'_>, profile: Profile) -> Result<()> {
    context.flood(profile, "198.18.0.0/15", VICTIM_PORT, ROUND)
}

/// Sends SYNs whose source is the target's own address and port.
fn land(context: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let mut header = TcpHeader::new(VICTIM_PORT, VICTIM_PORT, context.random.u32(..), 1000);
        header.syn = true;
        let us = IpAddr::from(testbed::TARGET_V4);
        let frame = build::tcp_frame(&context.station.frame_ends(us, us), header, &[])?;
        context.send_hostile(&frame)?;
    }
    Ok(())
}

/// Sends SYNs outside the window between the target's SYN-ACK and the client's MPA Request. The connection must stay
/// open.
fn half_open(context: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..8 {
        let mut client =
            RawTcp::new(context, [10, 77, 0, 70].into(), testbed::target_address(VICTIM_PORT));
        client.send_syn(context)?;
        for far in [0x8000_0000, 0xfff0_0000, 0x2000_0000] {
            let seq = client.snd_nxt.wrapping_add(far);
            let syn = client.build_frame(
                context,
                |header| {
                    (header.syn, header.ack) = (true, false);
                    header.sequence_number = seq;
                },
                &[],
            )?;
            context.send_hostile(&syn)?;
        }
        context.settle(Duration::from_millis(20));
        client.send(context, |_| {}, &segments::mpa_request(1))?;
        match client.next_segment(context, ANSWER_TIMEOUT) {
            Some(segment) if !segment.rst && !segment.payload.is_empty() => {}
            other => {
                let what = other.map_or("nothing", |s| if s.rst { "a reset" } else { "no reply" });
                context.report_violation(format!(
                    "SYNs outside the window, then {what} for the MPA Request"
                ));
            }
        }
        client.send_reset(context)?;
    }
    Ok(())
}

/// Reopens a connection whose target side is in TIME-WAIT. The target's sequence numbers and timestamps must not go
/// back (RFC 6191).
fn time_wait(context: &mut AttackContext<'_>) -> Result<()> {
    // Repeated ten times: a target that chose random initial sequence numbers would pass each time with probability
    // 1/2.
    for _ in 0..10 {
        let mut client =
            RawTcp::new(context, [10, 77, 0, 71].into(), testbed::target_address(VICTIM_PORT));
        client.open(context)?;
        client.send(context, |_| {}, &segments::mpa_request(1))?;
        if client.next_segment(context, ANSWER_TIMEOUT).is_none_or(|segment| segment.rst) {
            context.report_violation("no MPA Reply");
            continue;
        }
        // The STag is unknown, so the target sends a Terminate and closes first.
        client.send(
            context,
            |_| {},
            &segments::fpdu(&segments::tagged_segment(0xdead_0001, 0, true, b"x")),
        )?;
        context.attempts += 1;
        let mut closed = false;
        while let Some(segment) = client.next_segment(context, ANSWER_TIMEOUT) {
            client.send(context, |_| {}, &[])?;
            closed = segment.fin;
            if closed || segment.rst {
                break;
            }
        }
        if !closed {
            context.report_violation("the target does not close after an error");
            continue;
        }
        client.send(context, |header| header.fin = true, &[])?;
        context.settle(Duration::from_millis(30));
        let (echo, ack) = (client.ts_recent, client.rcv_nxt);
        let mut again =
            RawTcp { snd_nxt: client.snd_nxt.wrapping_add(100_000), rcv_nxt: 0, ..client };
        again.ts_val += 10;
        match again.send_syn(context) {
            Ok(_) => {
                if (again.ts_recent.wrapping_sub(echo) as i32) < 0 {
                    context.report_violation(format!(
                        "TSval goes back from {echo} to {}",
                        again.ts_recent
                    ));
                }
                if (again.rcv_nxt.wrapping_sub(ack) as i32) <= 0 {
                    context.report_violation(format!(
                        "sequence numbers go back from {ack} to {}",
                        again.rcv_nxt
                    ));
                }
                again.send_reset(context)?;
            }
            Err(error) => context.report_violation(format!("in TIME-WAIT, {error:#}")),
        }
    }
    Ok(())
}

/// Opens streams from many addresses of one /64. Together they may have at most 24 streams, the limit of one peer.
fn streams_of_64(context: &mut AttackContext<'_>) -> Result<()> {
    const PER_PEER: usize = 24;
    let remote = SocketAddr::new(testbed::TARGET_V6.into(), VICTIM_PORT);
    let mut open = Vec::new();
    for n in 0..2 * PER_PEER as u16 {
        let from = Ipv6Addr::new(0xfd97, 0, 0, 1, n, context.random.u16(..), 0, 9);
        let mut client = RawTcp::new(context, from.into(), remote);
        context.attempts += 1;
        if client.open(context).is_err() {
            continue;
        }
        client.send(context, |_| {}, &segments::mpa_request(1))?;
        let reply = client.next_segment(context, Duration::from_millis(300));
        if reply.is_some_and(|s| !s.rst && s.payload.get(16).is_some_and(|flags| flags & 0x20 == 0))
        {
            open.push(client);
        }
    }
    if open.len() > PER_PEER {
        context.report_violation(format!(
            "one /64 has {} streams, its share is {PER_PEER}",
            open.len()
        ));
    }
    if open.is_empty() {
        context.report_violation("a peer has no stream");
    }
    for mut client in open {
        client.send_reset(context)?;
    }
    Ok(())
}

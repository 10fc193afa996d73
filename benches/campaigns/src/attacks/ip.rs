//! Attacks by IPv6 fragments (RFC 6274 §4.1, RFC 8200 §4.5) and by malformed IP headers. IPv4 fragments cannot be
//! tested: the kernel reassembles IPv4 in front of an `af_packet` port (PACKET_FANOUT_FLAG_DEFRAG, which DPDK
//! requests).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use etherparse::IpNumber;
use load::frames::Profile;
use load::frames::build::FragmentFields;

use super::{Attack, frames};
use crate::attack_context::AttackContext;
use crate::testbed::{self, VICTIM_PORT};

const FRAGMENT_COUNTERS: &[&str] = &["fragments", "drop:net_fragment*"];

pub(super) const ATTACKS: &[Attack] = &[
    frames(
        "fragments-unfinished",
        "RFC 6274 §4.1.1",
        flood_unfinished_fragments,
        FRAGMENT_COUNTERS,
    ),
    frames(
        "fragments-one-source",
        "RFC 6274 §4.1.1",
        flood_unfinished_fragments_of_one_source,
        FRAGMENT_COUNTERS,
    ),
    frames(
        "fragments-of-a-64",
        "RFC 6274 §4.1.1",
        flood_fragments_of_one_prefix,
        &["drop:net_fragment_limit"],
    ),
    frames(
        "fragments-duplicate",
        "RFC 6274 §4.1.1",
        repeat_fragments,
        &["drop:net_fragment_duplicate"],
    ),
    frames(
        "fragments-overlap",
        "RFC 5722 §4, 1858 §4",
        send_overlapping_fragments,
        FRAGMENT_COUNTERS,
    ),
    frames(
        "fragments-tiny",
        "RFC 1858 §3",
        send_tiny_fragments,
        &["drop:net_fragment_tiny", "drop:net_fragment_limit"],
    ),
    frames(
        "fragments-too-long",
        "RFC 6274 §4.1.1",
        send_oversized_datagrams,
        &["drop:net_fragment*"],
    ),
    frames("fragments-of-8-bytes", "RFC 6274 §4.1.1", send_too_many_fragments, FRAGMENT_COUNTERS),
    frames(
        "ip-options-and-headers",
        "RFC 8200 §4, 6274 §3",
        send_malformed_headers,
        &["drop:net_*"],
    ),
];

/// Fragments per round.
const ROUND: usize = 512;

fn flood_unfinished_fragments(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::FragmentFlood, "fd98::/32", VICTIM_PORT, ROUND)
}

fn flood_unfinished_fragments_of_one_source(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::FragmentFlood, "fd98::1/128", VICTIM_PORT, ROUND)
}

/// Sends one fragment of a TCP segment.
fn send_fragment(
    context: &mut AttackContext<'_>,
    from: IpAddr,
    id: u32,
    offset: u16,
    more: bool,
    payload: &[u8],
) -> Result<()> {
    let to = if from.is_ipv4() { testbed::TARGET_V4.into() } else { testbed::TARGET_V6.into() };
    context.attempts += 1;
    let fragment = FragmentFields { id, offset, more };
    context.station.send_ip(from, to, IpNumber::TCP, Some(&fragment), payload)
}

/// Returns a random IPv6 source address.
fn random_source(context: &mut AttackContext<'_>) -> IpAddr {
    let (net, host) = (context.random.u16(..), context.random.u16(1..));
    Ipv6Addr::new(0xfd98, 0, 1, net, 0, 0, 0, host).into()
}

/// Sends each fragment from another address of one /64. All addresses of a /64 must share the limit of one peer.
fn flood_fragments_of_one_prefix(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let from = Ipv6Addr::new(0xfd96, 0, 0, 1, context.random.u16(..), 0, 0, 1 + n as u16);
        let id = context.random.u32(..);
        send_fragment(context, from.into(), id, 0, true, &[9; 64])?;
    }
    Ok(())
}

/// Sends 20 non-adjacent middle fragments of one packet, then [`ROUND`] duplicates of them.
fn repeat_fragments(context: &mut AttackContext<'_>) -> Result<()> {
    let from = random_source(context);
    let id = context.random.u32(..);
    for n in 0..20 {
        send_fragment(context, from, id, 8 * (2 * n + 1), true, &[9; 64])?;
    }
    for n in 0..ROUND as u16 {
        send_fragment(context, from, id, 8 * (2 * (n % 20) + 1), true, &[9; 64])?;
    }
    Ok(())
}

fn send_overlapping_fragments(context: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..ROUND / 4 {
        let (from, id) = (random_source(context), context.random.u32(..));
        send_fragment(context, from, id, 0, true, &[1; 64])?;
        send_fragment(context, from, id, 4, true, &[2; 64])?;
        send_fragment(context, from, id, 8, true, &[3; 8])?;
        send_fragment(context, from, id, 4, false, &[4; 61])?;
    }
    Ok(())
}

/// Sends first fragments that end inside the TCP header, and later fragments that begin inside it.
fn send_tiny_fragments(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (from, id) = (random_source(context), context.random.u32(..));
        if n % 2 == 0 {
            send_fragment(context, from, id, 0, true, &[1; 8])?;
        } else {
            send_fragment(context, from, id, 1, true, &[1; 64])?;
        }
    }
    Ok(())
}

/// Sends final fragments that end beyond 65,535 bytes, and non-final fragments whose length is not a multiple of 8.
fn send_oversized_datagrams(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (from, id) = (random_source(context), context.random.u32(..));
        if n % 2 == 0 {
            send_fragment(context, from, id, 0x1fff, false, &[1; 1000])?;
        } else {
            send_fragment(context, from, id, 64, true, &[1; 61])?;
        }
    }
    Ok(())
}

/// Sends one packet in more fragments than the target keeps.
fn send_too_many_fragments(context: &mut AttackContext<'_>) -> Result<()> {
    let (from, id) = (random_source(context), context.random.u32(..));
    for n in 0..ROUND as u16 {
        send_fragment(context, from, id, 3 + 2 * n, true, &[n as u8; 8])?;
    }
    Ok(())
}

/// Sends IPv4 headers with wrong fields, and IPv6 packets with chains of up to 20 destination options headers.
fn send_malformed_headers(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let from: IpAddr =
            if n % 2 == 0 { Ipv4Addr::new(198, 18, 0, 9).into() } else { "fd95::1".parse()? };
        let to = if from.is_ipv4() { testbed::TARGET_V4.into() } else { testbed::TARGET_V6.into() };
        let ends = context.station.frame_ends(from, to);
        // Over IPv6: a chain of destination options headers (RFC 8200 §4.6). The Next Header field of the last one
        // announces one more, which is missing. Over IPv4, the protocol is 253 and the same bytes are only filler.
        let mut body = [60, 0, 1, 4, 0, 0, 0, 0].repeat(20);
        let protocol = if from.is_ipv4() { 253 } else { 60 };
        body.truncate(8 * (1 + n % 20));
        let mut packet =
            load::frames::build::packet(from, to, IpNumber(protocol), 64, None, &body)?;
        if from.is_ipv4() {
            match n % 8 {
                // In this order: total length beyond the frame, IHL below 5, wrong version, wrong checksum.
                0 => packet[2] = 0xff,
                2 => packet[0] = 0x44,
                4 => packet[0] = 0x65,
                _ => packet[10] ^= 0x55,
            }
        }
        let frame = load::frames::build::frame(&ends, &packet)?;
        context.send_hostile(&frame)?;
    }
    Ok(())
}

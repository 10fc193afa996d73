//! ICMP attacks on TCP (RFC 5927), floods of ICMP, and floods of ARP and neighbour discovery.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use etherparse::{Icmpv6Header, Icmpv6Type, IpNumber, TcpHeader};
use load::frames::{Profile, build};

use super::{Attack, frames};
use crate::attack_context::AttackContext;
use crate::testbed::{self, VICTIM_PORT};
use crate::verdict::Expectation;

const REFUSED: &[&str] = &["drop:net_icmp*", "icmp_errors", "drop:net_rate_limited"];
const PING: &[&str] = &["echo_replies", "drop:net_rate_limited"];

pub(super) const ATTACKS: &[Attack] = &[
    frames("icmp-hard-errors", "RFC 5927 §5", send_hard_errors, REFUSED),
    frames("icmp-hard-next", "RFC 5927 §5", send_hard_errors_with_next_seq, REFUSED),
    frames("icmp-soft-errors", "RFC 5461 §2", send_soft_errors, REFUSED),
    frames("icmp-source-quench", "RFC 6633 §3, 5927 §6", send_source_quench, &["drop:net_icmp*"]),
    pmtu_attack("icmp-pmtu-lies", "RFC 5927 §7", send_false_pmtu),
    pmtu_attack("icmpv6-pmtu-lies", "RFC 8201 §6, 5927 §7", send_false_pmtu_v6),
    frames("icmp-redirect", "RFC 1122 §3.2.2.2", send_redirects, &["drop:net_icmp*"]),
    frames(
        "icmpv6-router",
        "RFC 4861 §11",
        send_router_advertisements,
        &["drop:net_*", "neighbour_claims"],
    ),
    frames("icmp-flood", "RFC 4732 §2.1.3", flood, &["drop:net_*", "echo_replies", "icmp_errors"]),
    frames("echo-broadcast", "RFC 2644", send_broadcast_echoes, &["drop:net_*"]),
    frames("echo-flood", "RFC 4732 §2.1.3", echo, PING),
    frames("arp-flood", "RFC 4732 §2.5", arp, &["neighbour_claims", "drop:net_*"]),
    frames("nd-flood", "RFC 3756 §4.3", nd, &["neighbour_claims", "drop:net_*"]),
];

/// Builds an attack with false path MTU reports. The target must not change its path MTU, because the path still
/// carries larger segments.
const fn pmtu_attack(
    name: &'static str,
    source: &'static str,
    round: fn(&mut AttackContext<'_>) -> Result<()>,
) -> Attack {
    let attack = frames(name, source, round, REFUSED);
    Attack { rule: Expectation { max_growth: &[("path_mtu_updates", 0)], ..attack.rule }, ..attack }
}

/// Messages per round.
const ROUND: usize = 256;

/// Returns the quotation of an ICMP error about a packet from the target on the good stream: its IPv4 header and the
/// first 8 bytes of its payload.
fn quote(context: &AttackContext<'_>, seq: u32, protocol: IpNumber) -> Result<Vec<u8>> {
    let (target, peer) = (context.flow.source, context.flow.destination);
    let mut header = TcpHeader::new(target.port(), peer.port(), seq, 1000);
    header.ack = true;
    let ends = context.station.frame_ends(target.ip(), peer.ip());
    let segment = build::tcp_segment(&ends, header, &[0; 64])?;
    let mut quoted = build::packet(ends.source, ends.destination, protocol, 64, None, &segment)?;
    quoted.truncate(28);
    Ok(quoted)
}

/// Sends an ICMP message to the target.
fn icmp(
    context: &mut AttackContext<'_>,
    kind: u8,
    code: u8,
    rest: [u8; 4],
    quoted: &[u8],
) -> Result<()> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest);
    message.extend(quoted);
    let sum = dataplane::checksum::sum(&message);
    message[2..4].copy_from_slice(&(!sum).to_be_bytes());
    context.attempts += 1;
    let router = [10, 77, 0, 254].into();
    context.station.send_ip(router, testbed::TARGET_V4.into(), IpNumber::ICMP, None, &message)
}

/// Sends `Destination Unreachable` messages that quote a TCP header of the good stream. The quoted sequence number is
/// SND.NXT, or random if `guess` is true.
fn unreachable(context: &mut AttackContext<'_>, codes: &[u8], guess: bool) -> Result<()> {
    for n in 0..ROUND {
        let at = context.victim_position()?;
        let seq = if guess { context.random.u32(..) } else { at.snd_nxt };
        let quoted = quote(context, seq, IpNumber::TCP)?;
        icmp(context, 3, codes[n % codes.len()], [0; 4], &quoted)?;
    }
    Ok(())
}

fn send_hard_errors(context: &mut AttackContext<'_>) -> Result<()> {
    unreachable(context, &[2, 3], true)
}

fn send_hard_errors_with_next_seq(context: &mut AttackContext<'_>) -> Result<()> {
    unreachable(context, &[2, 3], false)
}

fn send_soft_errors(context: &mut AttackContext<'_>) -> Result<()> {
    unreachable(context, &[0, 1, 5, 9, 10, 13], false)
}

fn send_source_quench(context: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let at = context.victim_position()?;
        let quoted = quote(context, at.snd_nxt, IpNumber::TCP)?;
        icmp(context, 4, 0, [0; 4], &quoted)?;
    }
    Ok(())
}

fn send_false_pmtu(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let at = context.victim_position()?;
        let seq = if n % 2 == 0 { context.random.u32(..) } else { at.snd_nxt };
        let mtu: u16 = [0, 68, 296, 552, 576, 1400, 1500, 65_535][n / 2 % 8];
        let quoted = quote(context, seq, IpNumber::TCP)?;
        let [high, low] = mtu.to_be_bytes();
        icmp(context, 3, 4, [0, 0, high, low], &quoted)?;
    }
    Ok(())
}

fn send_redirects(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let at = context.victim_position()?;
        let quoted = quote(context, at.snd_nxt, IpNumber::TCP)?;
        icmp(context, 5, (n % 4) as u8, [10, 77, 0, 66], &quoted)?;
    }
    Ok(())
}

/// Sends an ICMPv6 message to the target.
fn icmp_v6(
    context: &mut AttackContext<'_>,
    kind: Icmpv6Type,
    from: &str,
    body: &[u8],
) -> Result<()> {
    let from: IpAddr = from.parse()?;
    let (IpAddr::V6(source), target) = (from, testbed::TARGET_V6) else { anyhow::bail!("IPv6") };
    let header = Icmpv6Header::with_checksum(kind, source.octets(), target.octets(), body)?;
    let bytes = [&header.to_bytes()[..], body].concat();
    let ends = context.station.frame_ends(from, target.into());
    let hops = if matches!(kind, Icmpv6Type::PacketTooBig { .. }) { 64 } else { 255 };
    let packet =
        build::packet(ends.source, ends.destination, IpNumber::IPV6_ICMP, hops, None, &bytes)?;
    context.send_hostile(&build::frame(&ends, &packet)?)
}

fn send_false_pmtu_v6(context: &mut AttackContext<'_>) -> Result<()> {
    let peer: IpAddr = "fd77::3".parse()?;
    let target = SocketAddr::new(testbed::TARGET_V6.into(), testbed::VERBS_PORT);
    for n in 0..ROUND {
        let header =
            TcpHeader::new(target.port(), context.random.u16(1024..), context.random.u32(..), 1);
        let ends = context.station.frame_ends(target.ip(), peer);
        let segment = build::tcp_segment(&ends, header, &[0; 64])?;
        let quoted =
            build::packet(ends.source, ends.destination, IpNumber::TCP, 64, None, &segment)?;
        let mtu = [0, 68, 1279, 1280, 1400, 1500, 9000, u32::MAX][n % 8];
        icmp_v6(context, Icmpv6Type::PacketTooBig { mtu }, "fd77::fe", &quoted)?;
    }
    Ok(())
}

/// Sends router advertisements and redirects. The appliance must ignore them: its routes are configured.
fn send_router_advertisements(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (kind, body) = if n % 2 == 0 {
            // RFC 4861 §4.2: hop limit 64, lifetime 1800 s, and an MTU option of 1280.
            (134, [&[64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], &[5, 1, 0, 0, 0, 0, 5, 0]].concat())
        } else {
            let [to, about] =
                ["fe80::66", "fd77::3"].map(|text| text.parse::<std::net::Ipv6Addr>());
            (137, [&[0; 4][..], &to?.octets(), &about?.octets()].concat())
        };
        let bytes5to8 = body.first_chunk::<4>().copied().context("a body")?;
        let kind = Icmpv6Type::Unknown { type_u8: kind, code_u8: 0, bytes5to8 };
        icmp_v6(context, kind, "fe80::fe", &body[4..])?;
    }
    Ok(())
}

/// Sends echo requests from the good peer to the broadcast address.
fn send_broadcast_echoes(context: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let mut message = vec![8, 0, 0, 0, 0, 1, 0, 1];
        message.resize(64, 7);
        let sum = dataplane::checksum::sum(&message);
        message[2..4].copy_from_slice(&(!sum).to_be_bytes());
        let (from, broadcast) = (context.flow.destination.ip(), [10, 77, 0, 255].into());
        context.attempts += 1;
        context.station.send_ip(from, broadcast, IpNumber::ICMP, None, &message)?;
    }
    Ok(())
}

fn echo(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let body = context.random.u8(..);
        icmp(context, 8, 0, [0, 1, 0, n as u8], &[body; 1000])?;
    }
    Ok(())
}

fn flood(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::IcmpFlood, "198.18.0.0/15", VICTIM_PORT, ROUND)
}

fn arp(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::ArpFlood, "10.77.0.64/26", VICTIM_PORT, ROUND)
}

fn nd(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::NdFlood, "fd77::66:0/112", VICTIM_PORT, ROUND)
}

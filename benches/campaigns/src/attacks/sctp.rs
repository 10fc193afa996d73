//! Off-path attacks on SCTP, and floods: RFC 9260 §12, RFC 5062.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use etherparse::IpNumber;
use load::frames::Profile;
use wire::sctp::{
    DataHeader, InitHeader, PacketBuilder, Parameter, Ports, SackHeader, Tag, Tsn, chunk_type, ddp,
};

use super::{Attack, frames};
use crate::attack_context::AttackContext;
use crate::raw_sctp::RawSctp;
use crate::testbed::{self, VICTIM_SCTP_PORT};
use crate::verdict::Expectation;

const INIT: &[&str] =
    &["sctp_cookies_sent", "drop:net_rate_limited", "drop:net_overload", "drop:sctp_*"];
// An INIT from the good peer's address and port matches the good association. The association answers and counts the
// INIT in `sctp_packets`.
const INIT_PACKET_COUNTERS: &[&str] =
    &["sctp_packets", "sctp_cookies_sent", "drop:net_*", "drop:sctp_*"];
// `net_overload` is also expected: in a full burst the target examines only a few packets that match no association.
const CHECKSUM: &[&str] = &["drop:sctp_bad_checksum", "drop:net_overload"];
const TAGS: &[&str] = &["drop:sctp_bad_tag", "drop:sctp_out_of_the_blue"];
const OUT_OF_THE_BLUE: &[&str] = &["drop:sctp_out_of_the_blue", "drop:net_overload", "drop:sctp_*"];
const COOKIE: &[&str] = &["sctp_cookies_failed", "drop:sctp_*", "drop:net_overload"];

/// Rule for INITs from many spoofed hosts. The target sends one INIT ACK to each host, 2.7 times as long as the INIT.
/// INIT ACKs to one host are rate-limited.
const INIT_RULE: Expectation =
    Expectation { explained_by: INIT, min_share: 0.9, max_growth: &[], amplification: 3.0 };

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        rule: INIT_RULE,
        ..frames("init-reflection", "RFC 5062 §9, 9260 §12.2.4.1", flood_inits, INIT)
    },
    frames("init-reflection-one", "RFC 5062 §9, 9260 §12.2.4.1", flood_inits_of_one_source, INIT),
    frames("init-blind", "RFC 9260 §5.2.2", send_blind_inits, INIT_PACKET_COUNTERS),
    Attack {
        rule: INIT_RULE,
        ..frames(
            "init-with-addresses",
            "RFC 5062 §2, §6, 9260 §12.2.4",
            send_inits_with_addresses,
            INIT,
        )
    },
    Attack {
        rule: INIT_RULE,
        ..frames("init-unknown-parameters", "RFC 5062 §9", send_inits_with_unknown_parameters, INIT)
    },
    frames("init-bundled", "RFC 9260 §6.10", send_bundled_inits, OUT_OF_THE_BLUE),
    frames("abort-blind", "RFC 9260 §12.2.4.2", send_blind_aborts, TAGS),
    frames("data-sack-shutdown-blind", "RFC 9260 §8.5", send_blind_chunks, TAGS),
    frames("cookie-forged", "RFC 9260 §5.1.5", send_forged_cookies, COOKIE),
    frames("cookie-restart-spoofed", "RFC 9260 §5.2.4, 5062 §4", spoof_restart, COOKIE),
    frames("out-of-the-blue", "RFC 9260 §8.4", send_out_of_the_blue, OUT_OF_THE_BLUE),
    frames("sctp-checksum", "RFC 9260 §6.8", send_bad_checksums, CHECKSUM),
    frames(
        "sctp-chunk-lengths",
        "RFC 9260 §6.10",
        send_bad_chunk_lengths,
        &["drop:sctp_*", "drop:net_*"],
    ),
];

/// Packets per round.
const ROUND: usize = 256;

fn flood_inits(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::InitFlood, "198.18.0.0/15", VICTIM_SCTP_PORT, ROUND)
}

fn flood_inits_of_one_source(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(Profile::InitFlood, "198.18.0.1/32", VICTIM_SCTP_PORT, ROUND)
}

type BuildResult = std::result::Result<(), wire::sctp::PacketFull>;

/// Sends a hostile packet from `from` to `to` with verification tag `tag` and the chunks that `build` appends.
pub(super) fn send_packet(
    context: &mut AttackContext<'_>,
    from: SocketAddr,
    to: SocketAddr,
    tag: u32,
    build: impl FnOnce(&mut PacketBuilder<'_>) -> BuildResult,
) -> Result<()> {
    let mut room = [0; 1440];
    let ports = Ports { source: from.port(), destination: to.port() };
    let mut builder = PacketBuilder::new(&mut room, ports, Tag(tag));
    build(&mut builder)?;
    let len = builder.finish();
    context.attempts += 1;
    context.station.send_ip(from.ip(), to.ip(), IpNumber::SCTP, None, &room[..len])
}

/// Returns the addresses of the good association: the peer's end, then the target's.
fn association_addresses(context: &mut AttackContext<'_>) -> Result<(SocketAddr, SocketAddr)> {
    context.station.receive();
    let (peer, target, _) = context.station.association.context("no packet of the association")?;
    Ok((peer, target))
}

/// Returns a random source address and the attacked listener's address.
fn random_addresses(context: &mut AttackContext<'_>) -> (SocketAddr, SocketAddr) {
    let from = Ipv4Addr::new(198, 18, context.random.u8(..), context.random.u8(1..255));
    ((from, context.random.u16(1024..)).into(), testbed::target_address(VICTIM_SCTP_PORT))
}

pub(super) fn init_header(context: &mut AttackContext<'_>) -> InitHeader {
    InitHeader {
        tag: Tag(context.random.u32(1..)),
        a_rwnd: 100_000,
        outbound_streams: 10,
        inbound_streams: 10,
        initial_tsn: Tsn(context.random.u32(..)),
    }
}

pub(super) const ADAPTATION: Parameter<'static> = Parameter::Adaptation(ddp::ADAPTATION_DDP);

fn send_blind_inits(context: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let ((from, to), header) = (association_addresses(context)?, init_header(context));
        send_packet(context, from, to, 0, |b| b.init(&header, &[ADAPTATION]))?;
    }
    Ok(())
}

/// Sends INITs from random hosts. The address list of each INIT contains the good peer's address, and in every second
/// INIT also 255.255.255.255.
fn send_inits_with_addresses(context: &mut AttackContext<'_>) -> Result<()> {
    let peer = testbed::PEER_V4.octets();
    for n in 0..ROUND {
        let ((from, to), header) = (random_addresses(context), init_header(context));
        let list = [ADAPTATION, Parameter::Ipv4(peer), Parameter::Ipv4([255; 4])];
        send_packet(context, from, to, 0, |b| b.init(&header, &list[..2 + n % 2]))?;
    }
    Ok(())
}

/// Sends INITs with 10 to 265 unknown parameters that request a report. A full report would amplify the attacker's
/// traffic.
fn send_inits_with_unknown_parameters(context: &mut AttackContext<'_>) -> Result<()> {
    // RFC 9260 §3.2.1: the two highest bits of the type mean "skip and report".
    let unknown = [0xc1, 0x11, 0, 4];
    let list = [Parameter::Unknown { bytes: &unknown, skip: true, report: true }; 300];
    for n in 0..ROUND {
        let ((from, to), header) = (random_addresses(context), init_header(context));
        let mut with = vec![ADAPTATION];
        with.extend_from_slice(&list[..10 + n % 290]);
        send_packet(context, from, to, 0, |b| b.init(&header, &with))?;
    }
    Ok(())
}

/// Sends INITs bundled with other chunks, which RFC 9260 §6.10 forbids.
fn send_bundled_inits(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let ((from, to), header) = (random_addresses(context), init_header(context));
        send_packet(context, from, to, 0, |b| {
            if n % 2 == 0 {
                b.heartbeat(&[1; 8])?;
            }
            b.init(&header, &[ADAPTATION])?;
            b.init(&header, &[ADAPTATION])
        })?;
    }
    Ok(())
}

/// Returns a random tag; it equals the association's with probability 2^-32.
fn random_tag(context: &mut AttackContext<'_>) -> u32 {
    context.random.u32(..)
}

fn send_blind_aborts(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let ((from, to), tag) = (association_addresses(context)?, random_tag(context));
        // With the T bit set, the tag must be that of the opposite direction (RFC 9260 §8.5.1 B).
        send_packet(context, from, to, if n % 8 == 0 { 0 } else { tag }, |b| {
            b.abort(n % 2 == 0, &[])
        })?;
    }
    Ok(())
}

fn send_blind_chunks(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let ((from, to), tag, tsn) =
            (association_addresses(context)?, random_tag(context), Tsn(context.random.u32(..)));
        send_packet(context, from, to, tag, |b| match n % 7 {
            0 => {
                let header = DataHeader {
                    tsn,
                    ppid: ddp::PPID_SEGMENT,
                    unordered: true,
                    begin: true,
                    end: true,
                    ..DataHeader::default()
                };
                b.data_buffer()[..64].fill(0x5a);
                b.push_data(&header, 64)
            }
            1 => b.sack(SackHeader { cumulative: tsn, a_rwnd: 0 }, &[], &[]),
            2 => b.shutdown(tsn),
            3 => b.shutdown_ack(),
            4 => b.shutdown_complete(false),
            5 => b.heartbeat(&[7; 32]),
            _ => b.error(&[]),
        })?;
    }
    Ok(())
}

/// Sends invalid cookies, spoofed from the good peer and from other hosts.
fn send_forged_cookies(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (from, to) =
            if n % 2 == 0 { association_addresses(context)? } else { random_addresses(context) };
        let (tag, byte) = (random_tag(context), context.random.u8(..));
        send_packet(context, from, to, tag, |b| b.cookie_echo(&[byte; 64][..8 * (1 + n % 8)]))?;
    }
    Ok(())
}

/// Sends a valid cookie, issued to the attacker, from the good peer's address. Accepting it would restart the
/// association.
fn spoof_restart(context: &mut AttackContext<'_>) -> Result<()> {
    let (peer, target) = association_addresses(context)?;
    let mut own = RawSctp::new(context, [10, 77, 0, 80].into(), target);
    let cookie = match own.request_cookie(context) {
        Ok(cookie) => cookie,
        // The rate limit of INIT ACKs may be exhausted.
        Err(_) => return send_forged_cookies(context),
    };
    for n in 0..32 {
        // The source is the peer's address with the peer's port or the attacker's.
        let from =
            SocketAddr::new(peer.ip(), if n % 2 == 0 { peer.port() } else { own.local.port() });
        let tag = if n % 4 < 2 { own.peer_tag } else { own.own_tag };
        send_packet(context, from, target, tag, |b| b.cookie_echo(&cookie))?;
    }
    Ok(())
}

fn send_out_of_the_blue(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let ((from, to), tag, tsn) =
            (random_addresses(context), random_tag(context), Tsn(context.random.u32(..)));
        send_packet(context, from, to, tag, |b| match n % 6 {
            0 => b.shutdown_ack(),
            1 => b.cookie_ack(),
            2 => b.sack(SackHeader { cumulative: tsn, a_rwnd: 1 }, &[], &[]),
            3 => b.abort(false, &[]),
            4 => b.shutdown_complete(true),
            _ => b.heartbeat(&[7; 400]),
        })?;
    }
    Ok(())
}

fn send_bad_checksums(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (from, to) =
            if n % 2 == 0 { association_addresses(context)? } else { random_addresses(context) };
        let own = RawSctp {
            local: from,
            remote: to,
            own_tag: random_tag(context),
            peer_tag: random_tag(context),
            tsn: 1,
            last_tsn: 0,
        };
        let mut bytes = if n % 4 < 2 {
            own.build_init()?
        } else {
            own.build_packet(own.peer_tag, |b| b.abort(false, &[]))?
        };
        bytes[8 + n % 4] ^= 1 << context.random.u32(..8);
        context.attempts += 1;
        context.station.send_ip(from.ip(), to.ip(), IpNumber::SCTP, None, &bytes)?;
    }
    Ok(())
}

/// Sends chunks whose length exceeds the packet or is shorter than a chunk header, interleaved with chunks of valid
/// length.
fn send_bad_chunk_lengths(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (from, to) =
            if n % 2 == 0 { association_addresses(context)? } else { random_addresses(context) };
        let mut bytes = Vec::new();
        bytes.extend(from.port().to_be_bytes());
        bytes.extend(to.port().to_be_bytes());
        bytes.extend(random_tag(context).to_be_bytes());
        bytes.extend([0; 4]);
        let kind = [chunk_type::INIT, chunk_type::DATA, chunk_type::SACK, 0xff, 0x7f][n % 5];
        let len: u16 = [0, 3, 4, 0xffff, 17][n / 5 % 5];
        bytes.extend([kind, 0]);
        bytes.extend(len.to_be_bytes());
        bytes.resize(12 + 4 * (1 + n % 9), 0);
        let sum = wire::sctp::checksum(&bytes);
        bytes[8..12].copy_from_slice(&sum);
        context.attempts += 1;
        context.station.send_ip(from.ip(), to.ip(), IpNumber::SCTP, None, &bytes)?;
    }
    Ok(())
}

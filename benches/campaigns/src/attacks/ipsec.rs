//! Against policies of IPsec and listeners that require protection: RFC 4301 §5.2, RFC 4303 §3.4, RFC 3948 §2.2. The target
//! shares its port with the host's kernel, which would find packets behind headers that the policies do not read.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etherparse::{IpNumber, TcpHeader};
use load::frames::build;

use super::{Attack, dialogue, frames, guarded};
use crate::bed::{self, PREY};
use crate::field::Field;
use crate::guarded::{DAMAGED, REPLAYED, REQUIRED, REQUIRED_REGION, STRONG, WEAK};
use crate::protected::{Opener, Sealer, echo};
use crate::raw_tcp::{PATIENCE, RawTcp, as_syn};
use crate::ulp;
use crate::verdict::Rule;

const UNPROTECTED: &[&str] = &["drop:net_ipsec_unprotected"];
// DPDK's af_packet writes any outermost tag that the kernel has taken out as 802.1Q: some arrive as one that is read.
const TAGGED: &[&str] =
    &["drop:net_ipsec_unclassified", "drop:net_ipsec_unprotected", "drop:net_vlan"];
const OF_PORT_4500: &[&str] = &["drop:net_ipsec_unprotected", "drop:net_esp_unknown_spi"];
const WEAKER: &[&str] = &["drop:net_ipsec_wrong_protection", "drop:net_ipsec_unprotected"];
// Only a few unmatched frames of a full burst are examined.
const REQUIRED_MORE: &[&str] = &["drop:net_not_protected", "drop:net_overload"];

/// Dropped frames: no answer, and no delivery to the host's kernel, which gets a few frames of good
/// peers (MLD reports).
const DROPPED: Rule = Rule {
    explained_by: UNPROTECTED,
    share: 0.9,
    most: &[("host_frames", 16), ("echo_replies", 0)],
    amplification: 0.0,
};

pub(super) const ATTACKS: &[Attack] = &[
    guarded(Attack {
        rule: DROPPED,
        ..frames("clear-under-policy", "RFC 4301 §5.2", clear, UNPROTECTED)
    }),
    guarded(Attack {
        rule: Rule { explained_by: TAGGED, ..DROPPED },
        ..frames("clear-behind-tags", "RFC 4301 §5.2", behind_tags, TAGGED)
    }),
    guarded(Attack {
        rule: Rule { explained_by: OF_PORT_4500, ..DROPPED },
        ..frames("clear-of-port-4500", "RFC 3948 §2.2, 4301 §5.2", of_port_4500, OF_PORT_4500)
    }),
    guarded(frames(
        "esp-unknown-spi",
        "RFC 4303 §3.4.2",
        unknown_spi,
        &["drop:net_esp_unknown_spi"],
    )),
    guarded(frames("esp-damaged", "RFC 4303 §3.4.4", damaged, &["drop:net_esp_integrity"])),
    guarded(dialogue("esp-replayed", "RFC 4303 §3.4.3", replayed, &["drop:net_esp_replay"])),
    guarded(frames("require-syn-in-clear", "RFC 4301 §5.2", required, REQUIRED_MORE)),
    guarded(frames("require-syn-unencrypted", "RFC 4301 §5.2", unencrypted, REQUIRED_MORE)),
    guarded(dialogue("require-goes-on-weaker", "RFC 4301 §5.2", weaker, WEAKER)),
];

/// Frames of a round.
const ROUND: usize = 252;

/// Returns a random peer that policies protect.
fn peer(field: &mut Field<'_>) -> IpAddr {
    Ipv4Addr::new(198, 19, field.random.u8(..), field.random.u8(1..255)).into()
}

/// Returns, in rotation, an echo request, a datagram to a port of the host, and a SYN to a
/// listener, in clear.
fn packet(field: &mut Field<'_>, n: usize) -> Result<Vec<u8>> {
    let from = peer(field);
    let ends = field.station.ends(from, bed::TARGET_V4.into());
    match n % 3 {
        0 => echo(field, from, n as u16),
        1 => build::udp_frame(&ends, 9001, 9000, b"in clear"),
        _ => {
            let mut header = TcpHeader::new(9001, PREY, field.random.u32(..), 64_000);
            header.syn = true;
            build::tcp_frame(&ends, header, &[])
        }
    }
}

fn clear(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let frame = packet(field, n)?;
        field.hostile(&frame)?;
    }
    Ok(())
}

/// Bytes in front of the EtherType, or instead of it: tags that Linux removes, and headers in which it finds IP.
const IN_FRONT: [&[u8]; 10] = [
    &[0x81, 0, 0, 0],
    &[0x81, 0, 0xe0, 0],
    &[0x88, 0xa8, 0, 0],
    &[0x81, 0, 0, 0, 0x81, 0, 0, 0],
    &[0x88, 0xa8, 0, 0, 0x81, 0, 0, 0],
    &[0x81, 0, 0, 0, 0x88, 0xa8, 0, 0],
    &[0x91, 0, 0, 0],
    &[0x89, 0x2f, 0, 40, 0, 1],
    &[0x88, 0xe5, 0, 0, 0, 0, 0, 1],
    &[0, 40, 0xaa, 0xaa, 3, 0, 0, 0],
];
const INSTEAD: [&[u8]; 4] = [
    &[0x88, 0x64, 0x11, 0, 0, 1, 0, 34, 0, 0x21],
    &[0x88, 0x47, 0, 0, 0x11, 64],
    &[0x88, 0x48, 0, 0, 0x11, 64],
    &[0x65, 0x58],
];

fn behind_tags(field: &mut Field<'_>) -> Result<()> {
    // Offset of the EtherType.
    const AT: usize = 12;
    for n in 0..ROUND {
        let mut frame = packet(field, n)?;
        let which = n / 3 % (IN_FRONT.len() + INSTEAD.len());
        match IN_FRONT.get(which) {
            Some(headers) => drop(frame.splice(AT..AT, headers.iter().copied())),
            None => {
                let headers = INSTEAD[which - IN_FRONT.len()];
                frame.splice(AT..AT + 2, headers.iter().copied());
            }
        }
        field.hostile(&frame)?;
    }
    Ok(())
}

/// Sends UDP data that is not IKE: as long as ESP in UDP, or too short for it.
fn of_port_4500(field: &mut Field<'_>) -> Result<()> {
    for n in 0..ROUND {
        let peer = peer(field);
        let ends = field.station.ends(peer, bed::TARGET_V4.into());
        let (from, to, len) =
            [(4500, 4500, 64), (4500, 9000, 64), (9000, 4500, 64), (9000, 4500, 3)][n % 4];
        let mut payload = load::frames::build::random_bytes(len, &mut field.random);
        payload[0] |= 1;
        let frame = build::udp_frame(&ends, from, to, &payload)?;
        field.hostile(&frame)?;
    }
    Ok(())
}

fn unknown_spi(field: &mut Field<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let from = peer(field);
        let mut payload = build::random_bytes(80, &mut field.random);
        payload[0] |= 0x80;
        field.attempts += 1;
        let esp = IpNumber::ENCAPSULATING_SECURITY_PAYLOAD;
        field.station.ip((from, bed::TARGET_V4.into()), esp, None, &payload)?;
    }
    Ok(())
}

/// Sends sealed packets with one bit flipped, in the sequence number's low bytes, the payload or
/// the ICV.
fn damaged(field: &mut Field<'_>) -> Result<()> {
    const SPI_END: usize = build::ETHERNET_LEN + 20 + 4;
    let mut sealer = Sealer::new(DAMAGED)?;
    for n in 0..ROUND {
        let from = peer(field);
        let mut frame = sealer.frame(&echo(field, from, n as u16)?)?;
        // Low bytes of the sequence number, and all behind it.
        let at = field.random.usize(SPI_END + 2..frame.len());
        frame[at] ^= 1 << field.random.u8(..8);
        field.hostile(&frame)?;
    }
    Ok(())
}

/// Sends valid packets repeatedly; each must be opened once only.
fn replayed(field: &mut Field<'_>) -> Result<()> {
    const PACKETS: u32 = 64;
    let mut sealer = Sealer::new(REPLAYED)?;
    let mut sealed = Vec::new();
    for n in 0..PACKETS {
        let from = Ipv4Addr::new(198, 19, 1, n as u8).into();
        sealed.push(sealer.frame(&echo(field, from, n as u16)?)?);
    }
    for frame in &sealed {
        field.station.send(frame)?;
    }
    let first = answers(field);
    for _ in 0..8 {
        field.random.shuffle(&mut sealed);
        for frame in &sealed {
            field.hostile(frame)?;
        }
    }
    let again = answers(field);
    if first == 0 || again > 0 {
        field
            .find(format!("{first} of {PACKETS} packets were answered, and {again} of them again"));
    }
    Ok(())
}

/// Returns the number of ESP packets from the target in a tenth of a second.
fn answers(field: &mut Field<'_>) -> u32 {
    let mut count = 0;
    let _: Option<()> = field.station.wait(Duration::from_millis(100), |answer| {
        let esp = answer.protocol == IpNumber::ENCAPSULATING_SECURITY_PAYLOAD;
        count += u32::from(esp);
        None
    });
    count
}

/// Sends SYNs of peers that no policy protects.
fn required(field: &mut Field<'_>) -> Result<()> {
    field.flood(load::frames::Profile::SynFlood, "198.18.0.0/16", REQUIRED, ROUND)
}

/// Sends SYNs of peers whose SA has integrity only.
fn unencrypted(field: &mut Field<'_>) -> Result<()> {
    let mut sealer = Sealer::new(WEAK)?;
    // Sequence numbers continue over rounds.
    sealer.resume(field.attempts);
    for _ in 0..ROUND {
        let from = Ipv4Addr::new(198, 21, field.random.u8(..), field.random.u8(1..255)).into();
        let ends = field.station.ends(from, bed::TARGET_V4.into());
        let mut header = TcpHeader::new(9001, REQUIRED, field.random.u32(..), 64_000);
        header.syn = true;
        let frame = sealer.frame(&build::tcp_frame(&ends, header, &[])?)?;
        field.hostile(&frame)?;
    }
    Ok(())
}

/// Continues a stream of the strong SA by a weaker one, and in clear. The target must place no byte
/// of it until the same segment arrives by the strong SA.
fn weaker(field: &mut Field<'_>) -> Result<()> {
    let (mut strong, mut weak, mut back) =
        (Sealer::new(STRONG)?, Sealer::new(WEAK)?, Opener::new()?);
    // Beyond all sequence numbers of earlier attacks.
    weak.resume(1 << 24);
    let from = Ipv4Addr::new(198, 19, 2, 2).into();
    let mut client = RawTcp::new(field, from, bed::target(REQUIRED));
    let syn = client.next_frame(field, as_syn, &[])?;
    strong.send(field, &syn)?;
    let answer = back.next(field, &mut client).context("no answer to a SYN under the strong SA")?;
    anyhow::ensure!(answer.syn && !answer.rst, "a SYN was answered by {answer:?}");
    let request = client.next_frame(field, |_| {}, &ulp::request(1, false, true))?;
    strong.send(field, &request)?;
    let reply = back.next(field, &mut client).context("no MPA Reply under the strong SA")?;
    anyhow::ensure!(!reply.rst, "a reset instead of an MPA Reply");

    let (stag, to) = bed::stag(&field.target.client, REQUIRED_REGION)?;
    let payload = [0xa5; 64];
    let fpdu = ulp::fpdu(&ulp::tagged(stag, to, true, &payload));
    let segment = client.next_frame(field, |_| {}, &fpdu)?;
    for _ in 0..64 {
        let weakly = weak.frame(&segment)?;
        field.hostile(&weakly)?;
        field.hostile(&segment)?;
    }
    field.rest(Duration::from_millis(100));
    if placed(field)? != [0; 64] {
        field.find("a segment by a weaker SA or in clear was placed");
    }
    strong.send(field, &segment)?;
    let until = Instant::now() + PATIENCE;
    while placed(field)? != payload {
        if Instant::now() > until {
            field.find("the segment is not placed by the strong SA either: it proves nothing");
            break;
        }
        field.rest(Duration::from_millis(10));
    }
    let reset = client.next_frame(field, |header| header.rst = true, &[])?;
    strong.send(field, &reset)
}

fn placed(field: &Field<'_>) -> Result<Vec<u8>> {
    let path = format!("/v1/regions/{REQUIRED_REGION}/data?offset=0&length=64");
    Ok(field.target.client.bytes(&path)?)
}

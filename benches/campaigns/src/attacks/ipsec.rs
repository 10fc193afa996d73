//! Attacks on IPsec policies and on listeners that require protection: RFC 4301 §5.2, RFC 4303 §3.4, RFC 3948 §2.2. The
//! target shares its port with the host's kernel. A frame whose headers the policies cannot classify must not reach the
//! kernel, which might parse the packet after these headers.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etherparse::{IpNumber, TcpHeader};
use load::frames::build;

use super::{Attack, dialogue, frames, guarded};
use crate::attack_context::AttackContext;
use crate::esp::{Opener, Sealer, echo};
use crate::guarded_target::{
    DAMAGED_SA, REPLAYED_SA, REQUIRED_PORT, REQUIRED_REGION, STRONG_SA, WEAK_SA,
};
use crate::raw_tcp::{ANSWER_TIMEOUT, RawTcp, make_syn};
use crate::segments;
use crate::testbed::{self, VICTIM_PORT};
use crate::verdict::Expectation;

const UNPROTECTED: &[&str] = &["drop:net_ipsec_unprotected"];
// DPDK's af_packet driver reinserts a VLAN tag that the kernel stripped, always with TPID 0x8100. Frames whose
// outermost tag was 802.1ad thus arrive as 802.1Q, and may count as `net_vlan`.
const TAGGED_COUNTERS: &[&str] =
    &["drop:net_ipsec_unclassified", "drop:net_ipsec_unprotected", "drop:net_vlan"];
const PORT_4500_COUNTERS: &[&str] = &["drop:net_ipsec_unprotected", "drop:net_esp_unknown_spi"];
const WEAKER_COUNTERS: &[&str] = &["drop:net_ipsec_wrong_protection", "drop:net_ipsec_unprotected"];
// `net_overload` is also expected: in a full burst the target examines only a few frames that match no stream.
const NOT_PROTECTED_COUNTERS: &[&str] = &["drop:net_not_protected", "drop:net_overload"];

/// Frames must be dropped: no answer, and no delivery to the host's kernel. The 16 permitted `host_frames` are MLD
/// reports of the good peers.
const NO_ANSWER_RULE: Expectation = Expectation {
    explained_by: UNPROTECTED,
    min_share: 0.9,
    max_growth: &[("host_frames", 16), ("echo_replies", 0)],
    amplification: 0.0,
};

pub(super) const ATTACKS: &[Attack] = &[
    guarded(Attack {
        rule: NO_ANSWER_RULE,
        ..frames("clear-under-policy", "RFC 4301 §5.2", send_in_clear, UNPROTECTED)
    }),
    guarded(Attack {
        rule: Expectation { explained_by: TAGGED_COUNTERS, ..NO_ANSWER_RULE },
        ..frames("clear-behind-tags", "RFC 4301 §5.2", send_tagged_frames, TAGGED_COUNTERS)
    }),
    guarded(Attack {
        rule: Expectation { explained_by: PORT_4500_COUNTERS, ..NO_ANSWER_RULE },
        ..frames(
            "clear-of-port-4500",
            "RFC 3948 §2.2, 4301 §5.2",
            send_invalid_nat_t,
            PORT_4500_COUNTERS,
        )
    }),
    guarded(frames(
        "esp-unknown-spi",
        "RFC 4303 §3.4.2",
        send_unknown_spi,
        &["drop:net_esp_unknown_spi"],
    )),
    guarded(frames(
        "esp-damaged",
        "RFC 4303 §3.4.4",
        send_damaged_esp,
        &["drop:net_esp_integrity"],
    )),
    guarded(dialogue("esp-replayed", "RFC 4303 §3.4.3", replay_esp, &["drop:net_esp_replay"])),
    guarded(frames(
        "require-syn-in-clear",
        "RFC 4301 §5.2",
        send_syns_without_policy,
        NOT_PROTECTED_COUNTERS,
    )),
    guarded(frames(
        "require-syn-unencrypted",
        "RFC 4301 §5.2",
        send_unencrypted_syns,
        NOT_PROTECTED_COUNTERS,
    )),
    guarded(dialogue(
        "require-goes-on-weaker",
        "RFC 4301 §5.2",
        continue_with_weaker_sa,
        WEAKER_COUNTERS,
    )),
];

/// Frames per round.
const ROUND: usize = 252;

/// Returns a random address of the net that a policy protects, 198.19.0.0/16.
fn random_protected_peer(context: &mut AttackContext<'_>) -> IpAddr {
    Ipv4Addr::new(198, 19, context.random.u8(..), context.random.u8(1..255)).into()
}

/// Returns, by `n % 3`, an unencrypted echo request, UDP datagram to a port of the host, or SYN to a listener.
fn clear_packet(context: &mut AttackContext<'_>, n: usize) -> Result<Vec<u8>> {
    let from = random_protected_peer(context);
    let ends = context.station.frame_ends(from, testbed::TARGET_V4.into());
    match n % 3 {
        0 => echo(context, from, n as u16),
        1 => build::udp_frame(&ends, 9001, 9000, b"in clear"),
        _ => {
            let mut header = TcpHeader::new(9001, VICTIM_PORT, context.random.u32(..), 64_000);
            header.syn = true;
            build::tcp_frame(&ends, header, &[])
        }
    }
}

fn send_in_clear(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let frame = clear_packet(context, n)?;
        context.send_hostile(&frame)?;
    }
    Ok(())
}

/// Bytes inserted before the EtherType: VLAN tags, and other headers after which Linux may find an IP packet.
const TAG_PREFIXES: [&[u8]; 10] = [
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
const ETHERTYPE_REPLACEMENTS: [&[u8]; 4] = [
    &[0x88, 0x64, 0x11, 0, 0, 1, 0, 34, 0, 0x21],
    &[0x88, 0x47, 0, 0, 0x11, 64],
    &[0x88, 0x48, 0, 0, 0x11, 64],
    &[0x65, 0x58],
];

fn send_tagged_frames(context: &mut AttackContext<'_>) -> Result<()> {
    const ETHERTYPE_OFFSET: usize = 12;
    for n in 0..ROUND {
        let mut frame = clear_packet(context, n)?;
        let which = n / 3 % (TAG_PREFIXES.len() + ETHERTYPE_REPLACEMENTS.len());
        match TAG_PREFIXES.get(which) {
            Some(headers) => {
                drop(frame.splice(ETHERTYPE_OFFSET..ETHERTYPE_OFFSET, headers.iter().copied()))
            }
            None => {
                let headers = ETHERTYPE_REPLACEMENTS[which - TAG_PREFIXES.len()];
                frame.splice(ETHERTYPE_OFFSET..ETHERTYPE_OFFSET + 2, headers.iter().copied());
            }
        }
        context.send_hostile(&frame)?;
    }
    Ok(())
}

/// Sends UDP datagrams from or to port 4500 that are not IKE: long enough for ESP in UDP, or too short.
fn send_invalid_nat_t(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..ROUND {
        let peer = random_protected_peer(context);
        let ends = context.station.frame_ends(peer, testbed::TARGET_V4.into());
        let (from, to, len) =
            [(4500, 4500, 64), (4500, 9000, 64), (9000, 4500, 64), (9000, 4500, 3)][n % 4];
        let mut payload = load::frames::build::random_bytes(len, &mut context.random);
        payload[0] |= 1;
        let frame = build::udp_frame(&ends, from, to, &payload)?;
        context.send_hostile(&frame)?;
    }
    Ok(())
}

fn send_unknown_spi(context: &mut AttackContext<'_>) -> Result<()> {
    for _ in 0..ROUND {
        let from = random_protected_peer(context);
        let mut payload = build::random_bytes(80, &mut context.random);
        payload[0] |= 0x80;
        context.attempts += 1;
        let esp = IpNumber::ENCAPSULATING_SECURITY_PAYLOAD;
        context.station.send_ip(from, testbed::TARGET_V4.into(), esp, None, &payload)?;
    }
    Ok(())
}

/// Sends encrypted packets with one bit flipped: in the two low bytes of the sequence number, the payload or the ICV.
fn send_damaged_esp(context: &mut AttackContext<'_>) -> Result<()> {
    const SPI_END: usize = build::ETHERNET_LEN + 20 + 4;
    let mut sealer = Sealer::new(DAMAGED_SA)?;
    for n in 0..ROUND {
        let from = random_protected_peer(context);
        let mut frame = sealer.seal_frame(&echo(context, from, n as u16)?)?;
        // From the two low bytes of the sequence number to the end of the frame.
        let at = context.random.usize(SPI_END + 2..frame.len());
        frame[at] ^= 1 << context.random.u8(..8);
        context.send_hostile(&frame)?;
    }
    Ok(())
}

/// Sends 64 valid packets, then each of them eight more times. The target must accept each packet only once.
fn replay_esp(context: &mut AttackContext<'_>) -> Result<()> {
    const PACKETS: u32 = 64;
    let mut sealer = Sealer::new(REPLAYED_SA)?;
    let mut sealed = Vec::new();
    for n in 0..PACKETS {
        let from = Ipv4Addr::new(198, 19, 1, n as u8).into();
        sealed.push(sealer.seal_frame(&echo(context, from, n as u16)?)?);
    }
    for frame in &sealed {
        context.station.send_frame(frame)?;
    }
    let first = count_answers(context);
    for _ in 0..8 {
        context.random.shuffle(&mut sealed);
        for frame in &sealed {
            context.send_hostile(frame)?;
        }
    }
    let again = count_answers(context);
    if first == 0 || again > 0 {
        context.report_violation(format!(
            "{first} of {PACKETS} packets were answered, and {again} of them again"
        ));
    }
    Ok(())
}

/// Returns the number of ESP packets from the target within 100 ms.
fn count_answers(context: &mut AttackContext<'_>) -> u32 {
    let mut count = 0;
    let _: Option<()> = context.station.wait_answer(Duration::from_millis(100), |answer| {
        let esp = answer.protocol == IpNumber::ENCAPSULATING_SECURITY_PAYLOAD;
        count += u32::from(esp);
        None
    });
    count
}

/// Sends SYNs from peers that no policy protects.
fn send_syns_without_policy(context: &mut AttackContext<'_>) -> Result<()> {
    context.flood(load::frames::Profile::SynFlood, "198.18.0.0/16", REQUIRED_PORT, ROUND)
}

/// Sends SYNs from peers whose SA has integrity only.
fn send_unencrypted_syns(context: &mut AttackContext<'_>) -> Result<()> {
    let mut sealer = Sealer::new(WEAK_SA)?;
    // Continues the sequence numbers of the previous rounds. A new sealer starts at 1, and the anti-replay check would
    // drop its packets.
    sealer.resume(context.attempts);
    for _ in 0..ROUND {
        let from = Ipv4Addr::new(198, 21, context.random.u8(..), context.random.u8(1..255)).into();
        let ends = context.station.frame_ends(from, testbed::TARGET_V4.into());
        let mut header = TcpHeader::new(9001, REQUIRED_PORT, context.random.u32(..), 64_000);
        header.syn = true;
        let frame = sealer.seal_frame(&build::tcp_frame(&ends, header, &[])?)?;
        context.send_hostile(&frame)?;
    }
    Ok(())
}

/// Continues a stream of the strong SA with a segment under a weaker SA, and with the same segment in clear. The target
/// must not place the segment until it arrives under the strong SA.
fn continue_with_weaker_sa(context: &mut AttackContext<'_>) -> Result<()> {
    let (mut strong, mut weak, mut back) =
        (Sealer::new(STRONG_SA)?, Sealer::new(WEAK_SA)?, Opener::new()?);
    // Continues above the sequence numbers of earlier attacks, so that the anti-replay check accepts the packets.
    weak.resume(1 << 24);
    let from = Ipv4Addr::new(198, 19, 2, 2).into();
    let mut client = RawTcp::new(context, from, testbed::target_address(REQUIRED_PORT));
    let syn = client.build_next_frame(context, make_syn, &[])?;
    strong.seal_and_send(context, &syn)?;
    let answer = back
        .next_segment(context, &mut client)
        .context("no answer to a SYN under the strong SA")?;
    anyhow::ensure!(answer.syn && !answer.rst, "a SYN was answered by {answer:?}");
    let request = client.build_next_frame(context, |_| {}, &segments::mpa_request(1))?;
    strong.seal_and_send(context, &request)?;
    let reply =
        back.next_segment(context, &mut client).context("no MPA Reply under the strong SA")?;
    anyhow::ensure!(!reply.rst, "a reset instead of an MPA Reply");

    let (stag, to) = testbed::region_stag(&context.target.client, REQUIRED_REGION)?;
    let payload = [0xa5; 64];
    let fpdu = segments::fpdu(&segments::tagged_segment(stag, to, true, &payload));
    let segment = client.build_next_frame(context, |_| {}, &fpdu)?;
    for _ in 0..64 {
        let weakly = weak.seal_frame(&segment)?;
        context.send_hostile(&weakly)?;
        context.send_hostile(&segment)?;
    }
    context.settle(Duration::from_millis(100));
    if region_contents(context)? != [0; 64] {
        context.report_violation("a segment by a weaker SA or in clear was placed");
    }
    strong.seal_and_send(context, &segment)?;
    let until = Instant::now() + ANSWER_TIMEOUT;
    while region_contents(context)? != payload {
        if Instant::now() > until {
            context.report_violation(
                "the segment is not placed by the strong SA either: the attack proves nothing",
            );
            break;
        }
        context.settle(Duration::from_millis(10));
    }
    let reset = client.build_next_frame(context, |header| header.rst = true, &[])?;
    strong.seal_and_send(context, &reset)
}

fn region_contents(context: &AttackContext<'_>) -> Result<Vec<u8>> {
    let path = format!("/v1/regions/{REQUIRED_REGION}/data?offset=0&length=64");
    Ok(context.target.client.bytes(&path)?)
}

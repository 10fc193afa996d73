//! Attacks on the start-up and the framing of MPA: RFC 5044, RFC 5042 §5.2 and §6.4.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Attack, dialogue};
use crate::attack_context::AttackContext;
use crate::segments;
use crate::socket::{Attacker, StreamEnd};
use crate::testbed::{VICTIM_MARKERS_PORT, VICTIM_PORT, VICTIM_VERBS_PORT};

const REFUSED: &[&str] =
    &["control:streams_refused", "error:*", "control:stream_errors", "segments"];

pub(super) const ATTACKS: &[Attack] = &[
    dialogue("mpa-silent", "RFC 5042 §6.4.2, 5044 §7.1.2", open_silent_connections, REFUSED),
    dialogue("mpa-slow", "RFC 5042 §6.4.2, 5044 §7.1.2", send_request_slowly, REFUSED),
    dialogue("mpa-requests", "RFC 5044 §7.1", send_malformed_requests, REFUSED),
    dialogue("mpa-crc-damage", "RFC 5042 §5.2, 5044 §8", flip_fpdu_bits, &["error:*"]),
    dialogue("mpa-marker-damage", "RFC 5044 §8", send_wrong_markers, &["error:*"]),
    dialogue("mpa-lengths", "RFC 5044 §4", send_short_ulpdus, &["error:*"]),
    dialogue("mpa-cut-short", "RFC 5042 §5.2", truncate_fpdu, REFUSED),
];

/// Opens connections and sends no bytes. The target must close each after its start-up time-out of 1 s.
fn open_silent_connections(context: &mut AttackContext<'_>) -> Result<()> {
    let mut all = Vec::new();
    for _ in 0..40 {
        context.attempts += 1;
        if let Ok(attacker) = Attacker::connect(VICTIM_PORT) {
            all.push(attacker);
        }
    }
    let until = Instant::now() + Duration::from_secs(3);
    for mut attacker in all {
        if attacker.await_end_within(until.saturating_duration_since(Instant::now()))?
            == StreamEnd::Open
        {
            context.report_violation(
                "a connection without a request is open after 3 s; its time-out is 1 s",
            );
        }
    }
    Ok(())
}

/// Sends an MPA Request byte by byte, for longer than the start-up time-out of 1 s.
fn send_request_slowly(context: &mut AttackContext<'_>) -> Result<()> {
    let mut attacker = Attacker::connect(VICTIM_PORT)?;
    let request = segments::mpa_request(1);
    let began = Instant::now();
    for byte in request {
        context.attempts += 1;
        attacker.send(&[byte])?;
        context.settle(Duration::from_millis(75));
    }
    if attacker.read_reply()?.is_some_and(|reply| reply[16] & 0x20 == 0) {
        context.report_violation(format!("a request of {:?} was accepted", began.elapsed()));
    }
    Ok(())
}

/// Sends malformed requests, which must be refused.
fn send_malformed_requests(context: &mut AttackContext<'_>) -> Result<()> {
    let mut wrong_key = segments::mpa_request(1);
    wrong_key[0] ^= 1;
    let mut reply_key = segments::mpa_request(1);
    reply_key[..16].copy_from_slice(&wire::mpa::REPLY_KEY);
    let mut too_long = segments::mpa_request_with(1, &[7; 513]);
    too_long.extend([7; 600]);
    let cases = [
        ("a wrong key", wrong_key),
        ("a reply for a request", reply_key),
        ("revision 3", segments::mpa_request(3)),
        ("revision 255", segments::mpa_request(255)),
        ("513 bytes of private data", too_long),
        ("garbage", vec![0xff; 2000]),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: target\r\n\r\n".to_vec()),
        ("TLS", [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[9; 500]].concat()),
    ];
    for (what, bytes) in cases {
        context.attempts += 1;
        let mut attacker = Attacker::connect(VICTIM_PORT)?;
        attacker.send(&bytes)?;
        if let Some(reply) = attacker.read_reply()?
            && reply.get(16).is_none_or(|flags| flags & 0x20 == 0)
        {
            context.report_violation(format!("{what} was accepted"));
        }
    }
    // A request of revision 2 without the IRD and ORD fields that its S flag announces.
    context.attempts += 1;
    let mut attacker = Attacker::connect(VICTIM_VERBS_PORT)?;
    let mut request = segments::mpa_request(2);
    request[16] |= 0x10;
    attacker.send(&request)?;
    if let Some(reply) = attacker.read_reply()?
        && reply[16] & 0x20 == 0
    {
        context.report_violation("S without IRD and ORD was accepted");
    }
    Ok(())
}

/// Sends eight FPDUs on eight streams, each with one bit flipped at another position. The CRC check must fail.
fn flip_fpdu_bits(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 0..8 {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_PORT)?;
        // The target, as responder, must not send an FPDU, not even a Terminate, before it has received a valid
        // FPDU (RFC 5044 §7.1.2). The first FPDU is therefore valid. It has no payload, so its STag is not checked.
        attacker.send_segment(&segments::tagged_segment(1, 2, true, &[]))?;
        let mut fpdu = segments::fpdu(&segments::tagged_segment(1, 2, true, &[7; 100]));
        // The ULPDU length is left unchanged: wrong lengths are a separate attack.
        let at = 2 + (fpdu.len() - 2) * n / 8;
        fpdu[at] ^= 1 << n;
        attacker.send(&fpdu)?;
        let end = attacker.await_end()?;
        if end != StreamEnd::Error((0x20, 2)) {
            context.report_violation(format!("a wrong CRC: {end:x?}"));
        }
    }
    Ok(())
}

/// Sends markers with wrong FPDU pointers to a listener that requests markers.
fn send_wrong_markers(context: &mut AttackContext<'_>) -> Result<()> {
    for pointer in [4u16, 8, 0x3ff, 0xffff] {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_MARKERS_PORT)?;
        // The first marker precedes the first FPDU, and its pointer is 0. The FPDU's CRC covers the marker.
        let begin =
            [&[0; 4][..], &segments::fpdu(&segments::tagged_segment(1, 2, true, &[]))].concat();
        attacker.send(&with_recomputed_crc(begin))?;
        // The second marker is 512 bytes after the first, within this FPDU, which begins at byte 24 of the stream.
        let fpdu = segments::fpdu(&segments::tagged_segment(1, 2, true, &[7; 700]));
        let [high, low] = pointer.to_be_bytes();
        let bytes = [&fpdu[..488], &[0, 0, high, low], &fpdu[488..]].concat();
        attacker.send(&with_recomputed_crc(bytes))?;
        let end = attacker.await_end()?;
        if !matches!(end, StreamEnd::Error((0x20, 2 | 3))) {
            context.report_violation(format!("a marker that points to {pointer}: {end:x?}"));
        }
    }
    Ok(())
}

/// Returns the FPDU with a correct CRC in its last four bytes.
fn with_recomputed_crc(mut fpdu: Vec<u8>) -> Vec<u8> {
    fpdu.truncate(fpdu.len() - 4);
    let sum = wire::crc32c::field(&fpdu);
    fpdu.extend(sum);
    fpdu
}

/// Sends ULPDUs that are too short for a DDP header.
fn send_short_ulpdus(context: &mut AttackContext<'_>) -> Result<()> {
    for len in [0usize, 1, 2, 13] {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_PORT)?;
        let segment = segments::tagged_segment(1, 2, true, &[]);
        attacker.send_segment(&segment[..len])?;
        let end = attacker.await_end()?;
        if !matches!(end, StreamEnd::Error(_)) {
            context.report_violation(format!("a ULPDU of {len} bytes: {end:x?}"));
        }
    }
    Ok(())
}

/// Sends the first 1/8 to 7/8 of an FPDU and closes the connection.
fn truncate_fpdu(context: &mut AttackContext<'_>) -> Result<()> {
    for n in 1..8 {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_PORT)?;
        let fpdu = segments::fpdu(&segments::tagged_segment(1, 2, true, &[7; 1000]));
        attacker.send(&fpdu[..fpdu.len() * n / 8])?;
    }
    Ok(())
}

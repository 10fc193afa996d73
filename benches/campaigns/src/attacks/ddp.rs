//! Attacks on DDP and RDMAP by a connected peer: RFC 5041, RFC 5040 and RFC 7306, and the attacks of RFC 5042 §5 and
//! §6.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use wire::rdmap::{AtomicOp, AtomicRequestRepr, Opcode};

use super::{Attack, dialogue};
use crate::attack_context::AttackContext;
use crate::segments::{self, UntaggedPosition};
use crate::socket::{Attacker, ErrorCase, StreamEnd, run_cases};
use crate::testbed::{
    self, IRD, REGION_LEN, UNTAGGED_BUFFERS, VICTIM_PORT, VICTIM_SINK_PORT, VICTIM_VERBS_PORT,
};

const ERRORS: &[&str] = &["error:*"];

pub(super) const ATTACKS: &[Attack] = &[
    dialogue("stag-guessing", "RFC 5042 §5.1.1, §6.1.1", guess_stags, ERRORS),
    dialogue(
        "stag-of-another-stream",
        "RFC 5042 §6.1.1, 5041 §8.2",
        access_foreign_regions,
        ERRORS,
    ),
    dialogue("write-outside", "RFC 5042 §6.2.1, 5041 §7.1", write_outside_region, ERRORS),
    dialogue("write-to-readonly", "RFC 5041 §7.1, §8.3.1", write_to_readonly_region, ERRORS),
    dialogue("read-of-writeonly", "RFC 5042 §6.3.5, 5040 §7.2", read_writeonly_region, ERRORS),
    dialogue("read-queue-overrun", "RFC 5042 §6.4.3.3, 5040 §6.1", overrun_read_queue, ERRORS),
    dialogue("read-slow-reader", "RFC 5042 §6.4.3", slow_reader, &["segments"]),
    dialogue("queue-overrun", "RFC 5042 §6.4.3, 5041 §7.1", overrun_untagged_queue, ERRORS),
    dialogue("untagged-fields", "RFC 5041 §7.1", send_invalid_untagged_fields, ERRORS),
    dialogue("rdmap-opcodes", "RFC 5040 §7.2, 7306 §8.2", send_undefined_opcodes, ERRORS),
    dialogue(
        "invalidate-of-others",
        "RFC 5042 §6.4.5, 5040 §8.1.1",
        invalidate_foreign_stags,
        ERRORS,
    ),
    dialogue("atomics-without-right", "RFC 7306 §8.2, §9", send_atomics_without_right, ERRORS),
    dialogue("response-unasked", "RFC 5040 §5.2.2, §7.2", send_unsolicited_responses, ERRORS),
    dialogue("terminate-then-more", "RFC 5040 §5.4, §4.8", write_after_terminate, &["segments"]),
];

/// Returns STag and base TO of a region from the API; a real attacker would have to guess them.
fn stag(context: &AttackContext<'_>, region: &str) -> Result<(u32, u64)> {
    testbed::region_stag(&context.target.client, region)
}

/// Sends Writes to STag 0, to random STags, and to STags that exceed an existing STag by a power of two (1 to 1024).
fn guess_stags(context: &mut AttackContext<'_>) -> Result<()> {
    let (known, to) = stag(context, "prey")?;
    for n in 0..24u32 {
        let guess = match n {
            0 => 0,
            1..12 => known.wrapping_add(1 << (n - 1)),
            _ => context.random.u32(..),
        };
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_PORT)?;
        attacker.send_segment(&segments::tagged_segment(guess, to, true, &[0x66; 64]))?;
        match attacker.await_end()? {
            StreamEnd::Error((0x11, 0..=2)) => {}
            end => context.report_violation(format!("STag {guess:#x}: {end:x?}")),
        }
    }
    Ok(())
}

/// Writes to and reads from regions of other listeners, including those of the good peers.
fn access_foreign_regions(context: &mut AttackContext<'_>) -> Result<()> {
    for region in ["tcp", "verbs", "sctp", "nobodys", "secret"] {
        let (stag, to) = stag(context, region)?;
        let segments = vec![segments::tagged_segment(stag, to, true, &[0x66; 64])];
        run_cases(context, VICTIM_PORT, &[ErrorCase { name: region, segments, error: (0x11, 2) }])?;
        let segments = vec![segments::write_segment(stag, to, true, &[0x66; 64])];
        run_cases(
            context,
            VICTIM_VERBS_PORT,
            &[ErrorCase { name: region, segments, error: (0x11, 2) }],
        )?;
        let segments = vec![segments::read_request(1, stag, to, 64)];
        run_cases(
            context,
            VICTIM_VERBS_PORT,
            &[ErrorCase { name: region, segments, error: (0x01, 3) }],
        )?;
    }
    Ok(())
}

fn write_outside_region(context: &mut AttackContext<'_>) -> Result<()> {
    let (stag, base) = stag(context, "prey")?;
    let size = REGION_LEN as u64;
    let tos = [
        ("behind the end", base + size, (0x11, 1)),
        ("across the end", base + size - 1, (0x11, 1)),
        ("far behind", base + (1 << 40), (0x11, 1)),
        ("a TO that wraps", u64::MAX - 3, (0x11, 3)),
    ];
    for (what, to, error) in tos {
        let segments = vec![segments::tagged_segment(stag, to, true, &[0x66; 64])];
        run_cases(context, VICTIM_PORT, &[ErrorCase { name: what, segments, error }])?;
    }
    if base > 0 {
        let segments = vec![segments::tagged_segment(stag, base - 1, true, &[0x66; 64])];
        run_cases(
            context,
            VICTIM_PORT,
            &[ErrorCase { name: "before the start", segments, error: (0x11, 1) }],
        )?;
    }
    // The first message begins inside the region and continues beyond its end. The second changes its STag between
    // segments.
    let inside = segments::tagged_segment(stag, base, false, &[0x65; 64]);
    let beyond = segments::tagged_segment(stag, base + size, true, &[0x66; 64]);
    let other = segments::tagged_segment(stag ^ 1, base, true, &[0x66; 64]);
    run_cases(
        context,
        VICTIM_PORT,
        &[
            ErrorCase {
                name: "leaves the region",
                segments: vec![inside.clone(), beyond],
                error: (0x11, 1),
            },
            ErrorCase { name: "changes its STag", segments: vec![inside, other], error: (0x11, 0) },
        ],
    )
}

fn write_to_readonly_region(context: &mut AttackContext<'_>) -> Result<()> {
    let (stag, to) = stag(context, "readonly")?;
    let segments = vec![segments::tagged_segment(stag, to, true, &[0x66; 64])];
    run_cases(context, VICTIM_PORT, &[ErrorCase { name: "bare", segments, error: (0x11, 0) }])?;
    let segments = vec![segments::write_segment(stag, to, true, &[0x66; 64])];
    run_cases(
        context,
        VICTIM_VERBS_PORT,
        &[ErrorCase { name: "RDMAP", segments, error: (0x11, 0) }],
    )
}

fn read_writeonly_region(context: &mut AttackContext<'_>) -> Result<()> {
    let (writeonly, to) = stag(context, "writeonly")?;
    let (both, base) = stag(context, "prey-v")?;
    let size = REGION_LEN as u64;
    let one = |what, segment, error| ErrorCase { name: what, segments: vec![segment], error };
    run_cases(
        context,
        VICTIM_VERBS_PORT,
        &[
            one(
                "a Read of a write-only region",
                segments::read_request(1, writeonly, to, 64),
                (0x01, 2),
            ),
            one(
                "a Read of an unknown STag",
                segments::read_request(1, both ^ 0x55, base, 64),
                (0x01, 0),
            ),
            one(
                "a Read beyond the end",
                segments::read_request(1, both, base + size - 1, 64),
                (0x01, 1),
            ),
            one("a Read of 4 GiB", segments::read_request(1, both, base, u32::MAX), (0x01, 1)),
            one("a Read that wraps", segments::read_request(1, both, u64::MAX - 3, 64), (0x01, 4)),
            one("a Read Request in MSN 2", segments::read_request(2, both, base, 64), (0x12, 3)),
        ],
    )
}

/// Sends 4 × IRD Read Requests at once, without receiving the responses.
fn overrun_read_queue(context: &mut AttackContext<'_>) -> Result<()> {
    let (stag, base) = stag(context, "prey-v")?;
    for _ in 0..3 {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_VERBS_PORT)?;
        let burst: Vec<u8> = (0..4 * u32::from(IRD))
            .flat_map(|n| {
                segments::fpdu(&segments::read_request(1 + n, stag, base, REGION_LEN as u32))
            })
            .collect();
        attacker.send(&burst)?;
        // RFC 5041 §7.2: untagged buffer error, no buffer available.
        match attacker.await_end()? {
            StreamEnd::Error((0x12, 2)) => {}
            end => context.report_violation(format!("four times IRD: {end:x?}")),
        }
    }
    Ok(())
}

/// Sends Reads and does not receive the responses. The target must bound the memory for responses and free it with the
/// stream.
fn slow_reader(context: &mut AttackContext<'_>) -> Result<()> {
    let (stag, base) = stag(context, "prey-v")?;
    let mut all = Vec::new();
    for _ in 0..16 {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_VERBS_PORT)?;
        for n in 0..u32::from(IRD) {
            attacker.send_segment(&segments::read_request(1 + n, stag, base, REGION_LEN as u32))?;
        }
        all.push(attacker);
    }
    context.settle(Duration::from_millis(500));
    Ok(())
}

/// Sends untagged messages that exceed their buffer, have a gap, or overlap.
fn overrun_untagged_queue(context: &mut AttackContext<'_>) -> Result<()> {
    let (_, size) = UNTAGGED_BUFFERS;
    let first = |payload: &[u8], last| {
        segments::untagged_segment(UntaggedPosition { qn: 0, msn: 1, mo: 0 }, last, payload)
    };
    let long = |mo| {
        vec![segments::untagged_segment(UntaggedPosition { qn: 0, msn: 1, mo }, true, &[7; 64])]
    };
    let two = |mo| {
        vec![
            first(&[7; 16], false),
            segments::untagged_segment(UntaggedPosition { qn: 0, msn: 1, mo }, true, &[7; 8]),
        ]
    };
    run_cases(
        context,
        VICTIM_PORT,
        &[
            ErrorCase {
                name: "longer than its buffer",
                segments: long(size - 1),
                error: (0x12, 5),
            },
            ErrorCase { name: "beyond its buffer", segments: long(u32::MAX), error: (0x12, 4) },
            ErrorCase { name: "a hole", segments: two(32), error: (0x12, 4) },
            ErrorCase { name: "an overlap", segments: two(8), error: (0x12, 4) },
        ],
    )
}

fn send_invalid_untagged_fields(context: &mut AttackContext<'_>) -> Result<()> {
    let at = UntaggedPosition { qn: 0, msn: 1, mo: 0 };
    let one = |what, at: UntaggedPosition, error| ErrorCase {
        name: what,
        segments: vec![segments::untagged_segment(at, true, b"x")],
        error,
    };
    let mut version = segments::untagged_segment(at, true, b"x");
    version[0] ^= 0x03;
    let again = vec![
        segments::untagged_segment(at, true, b"x"),
        segments::untagged_segment(at, true, b"x"),
    ];
    run_cases(
        context,
        VICTIM_PORT,
        &[
            one("queue 1", UntaggedPosition { qn: 1, ..at }, (0x12, 1)),
            one("queue 3", UntaggedPosition { qn: 3, ..at }, (0x12, 1)),
            one("queue 4294967295", UntaggedPosition { qn: u32::MAX, ..at }, (0x12, 1)),
            one("MSN 0", UntaggedPosition { msn: 0, ..at }, (0x12, 3)),
            one("MSN 2", UntaggedPosition { msn: 2, ..at }, (0x12, 3)),
            one("MSN far off", UntaggedPosition { msn: 0x8000_0000, ..at }, (0x12, 3)),
            ErrorCase { name: "the same MSN again", segments: again, error: (0x12, 3) },
            ErrorCase { name: "another DDP version", segments: vec![version], error: (0x12, 6) },
        ],
    )
}

/// Sends undefined opcodes, and an undefined RDMAP version.
fn send_undefined_opcodes(context: &mut AttackContext<'_>) -> Result<()> {
    let at = UntaggedPosition { qn: 0, msn: 1, mo: 0 };
    for opcode in [0x40u8 | 12, 0x40 | 15] {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_SINK_PORT)?;
        attacker.send_segment(&segments::untagged_segment_with(
            [opcode, 0, 0, 0, 0],
            at,
            true,
            b"x",
        ))?;
        match attacker.await_end()? {
            // RFC 5040 §4.8: remote operation error, unexpected opcode.
            StreamEnd::Error((0x02, 6)) => {}
            end => context.report_violation(format!("opcode {}: {end:x?}", opcode & 15)),
        }
    }
    let segments = vec![segments::untagged_segment_with([0x83, 0, 0, 0, 0], at, true, b"x")];
    run_cases(
        context,
        VICTIM_SINK_PORT,
        &[ErrorCase { name: "RDMAP version 2", segments, error: (0x02, 5) }],
    )
}

/// Sends invalidations of a shared region, of another listener's region and of an unknown STag.
fn invalidate_foreign_stags(context: &mut AttackContext<'_>) -> Result<()> {
    let (shared, base) = stag(context, "prey-v")?;
    let (secret, to) = stag(context, "secret")?;
    for (what, stag) in
        [("a shared region", shared), ("another listener's", secret), ("an unknown STag", 77)]
    {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_SINK_PORT)?;
        attacker.send_segment(&segments::rdmap_message(
            Opcode::SendInvalidate,
            Some(stag),
            1,
            b"x",
        ))?;
        let end = attacker.await_end()?;
        if !matches!(end, StreamEnd::Error(_)) {
            context.report_violation(format!("Send with Invalidate of {what}: {end:x?}"));
        }
    }
    // The STags must still be valid. A Read with an invalid STag would be error 0/1/00 (RFC 5040 §4.8).
    let beyond = base + REGION_LEN as u64;
    let one = |what, segment, error| ErrorCase { name: what, segments: vec![segment], error };
    run_cases(
        context,
        VICTIM_VERBS_PORT,
        &[
            one(
                "a Read beyond the end, after the invalidation",
                segments::read_request(1, shared, beyond, 64),
                (0x01, 1),
            ),
            one(
                "a Read of another listener's region, after the invalidation",
                segments::read_request(1, secret, to, 64),
                (0x01, 3),
            ),
        ],
    )
}

/// Sends atomics to a region that permits reads and writes but no atomics.
fn send_atomics_without_right(context: &mut AttackContext<'_>) -> Result<()> {
    let (stag, base) = stag(context, "prey-v")?;
    for to in [base, base + 4, base + REGION_LEN as u64] {
        context.attempts += 1;
        let request = AtomicRequestRepr {
            id: 7,
            stag: wire::Stag(stag),
            to: wire::TaggedOffset(to),
            op: AtomicOp::swap(0x6666_6666),
        };
        let mut attacker = Attacker::start(VICTIM_VERBS_PORT)?;
        attacker.send_segment(&segments::rdmap_message(
            Opcode::AtomicRequest,
            None,
            1,
            &request.emit(),
        ))?;
        let end = attacker.await_end()?;
        if !matches!(end, StreamEnd::Error(_)) {
            context.report_violation(format!("an atomic at {to}: {end:x?}"));
        }
    }
    Ok(())
}

/// Sends unsolicited Read Responses and Atomic Responses.
fn send_unsolicited_responses(context: &mut AttackContext<'_>) -> Result<()> {
    let (stag, base) = stag(context, "prey-v")?;
    let response = segments::tagged_segment_with(0x42, stag, base, true, &[0x66; 64]);
    let atomic = segments::rdmap_message(Opcode::AtomicResponse, None, 1, &[0; 12]);
    for (what, segment) in [("Read Response", response), ("Atomic Response", atomic)] {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_VERBS_PORT)?;
        attacker.send_segment(&segment)?;
        let end = attacker.await_end()?;
        if !matches!(end, StreamEnd::Error(_)) {
            context.report_violation(format!("unsolicited {what}: {end:x?}"));
        }
    }
    Ok(())
}

/// Sends a Terminate, in some cases with reserved bits set, then a Write. The Write must not be placed.
fn write_after_terminate(context: &mut AttackContext<'_>) -> Result<()> {
    let (stag, base) = stag(context, "prey-v")?;
    let path = format!("/v1/regions/prey-v/data?offset={}&length=64", REGION_LEN - 64);
    let before = context.target.client.bytes(&path).context("the region")?;
    let bodies: [&[u8]; 4] = [&[0x20, 2, 1, 0], &[0x21, 1, 0, 0], &[0, 0, 0x1f, 0xff], &[0xff; 4]];
    for body in bodies {
        context.attempts += 1;
        let mut attacker = Attacker::start(VICTIM_VERBS_PORT)?;
        attacker.send_segment(&segments::rdmap_message(Opcode::Terminate, None, 1, body))?;
        attacker.send_segment(&segments::write_segment(
            stag,
            base + REGION_LEN as u64 - 64,
            true,
            &[0x66; 64],
        ))?;
        let began = Instant::now();
        if attacker.await_end()? == StreamEnd::Open {
            context.report_violation(format!("open {:?} after a Terminate", began.elapsed()));
        }
    }
    if context.target.client.bytes(&path)? != before {
        context.report_violation("a Write behind a Terminate was placed");
    }
    Ok(())
}

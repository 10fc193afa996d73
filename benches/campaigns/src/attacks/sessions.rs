//! Attacks by a peer over its own SCTP associations: RFC 5043, RFC 9260 §6, RFC 5042 §6.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Result;
use wire::sctp::ddp::{self, Function};
use wire::sctp::{DataHeader, Tsn};

use super::{Attack, dialogue};
use crate::attack_context::AttackContext;
use crate::raw_sctp::{RawSctp, control_function};
use crate::segments::{self, UntaggedPosition};
use crate::testbed::{self, VICTIM_SCTP_PORT, VICTIM_VERBS_SCTP_PORT};

const SCTP_COUNTERS: &[&str] = &["sctp_packets", "drop:sctp_*"];

pub(super) const ATTACKS: &[Attack] = &[
    dialogue("sctp-fragments-held", "RFC 5042 §6.4.3", send_unfinished_messages, SCTP_COUNTERS),
    dialogue("sctp-data-beyond-window", "RFC 9260 §6.2", send_data_beyond_window, SCTP_COUNTERS),
    dialogue("sctp-heartbeats", "RFC 9260 §8.3", send_many_heartbeats, SCTP_COUNTERS),
    dialogue("session-order", "RFC 5043 §6", send_controls_out_of_order, SCTP_COUNTERS),
    dialogue("session-streams", "RFC 5043 §4", initiate_all_sessions, SCTP_COUNTERS),
    dialogue("associations-idle", "RFC 5042 §6.4.2", open_idle_associations, SCTP_COUNTERS),
    dialogue("many-ranges", "RFC 5041 §5.2", send_many_ranges, &["sctp_packets"]),
    dialogue("session-stag", "RFC 5042 §6.1.1", write_to_foreign_regions, &["error:*"]),
    dialogue("terminate-reserved-bits", "RFC 5040 §4.8", send_malformed_terminates, SCTP_COUNTERS),
];

/// Opens an association from address 10.77.0.`last`, in at most 20 attempts.
fn open_association(context: &mut AttackContext<'_>, last: u8, port: u16) -> Result<RawSctp> {
    let from: IpAddr = Ipv4Addr::new(10, 77, 0, last).into();
    for _ in 0..20 {
        let mut association = RawSctp::new(context, from, testbed::target_address(port));
        if association.open(context).is_ok() {
            return Ok(association);
        }
        // INIT ACKs are rate-limited: retry later.
        context.settle(Duration::from_millis(50));
    }
    anyhow::bail!("no association from {from}")
}

/// Sends first and middle fragments of messages, never a last fragment, on many associations.
fn send_unfinished_messages(context: &mut AttackContext<'_>) -> Result<()> {
    let mut all = Vec::new();
    for n in 0..20 {
        let association = open_association(context, 100 + n % 10, VICTIM_SCTP_PORT);
        let Ok(mut association) = association else { continue };
        // Each association sends 960,000 bytes, almost the whole window of 1 MiB; 20 associations send 19.2 MB. A
        // message has 50 fragments at most, and none has a last fragment.
        for piece in 0..800 {
            context.attempts += 1;
            let begin = piece % 50 == 0;
            association.tsn = association.tsn.wrapping_add(u32::from(begin && piece > 0));
            let header =
                DataHeader { ppid: ddp::PPID_SEGMENT, begin, end: false, ..DataHeader::default() };
            association.send_data(context, header, &[7; 1200])?;
        }
        all.push(association);
    }
    if all.is_empty() {
        context.report_violation("no association was opened");
    }
    context.settle(Duration::from_millis(300));
    for association in all {
        association.send_abort(context)?;
    }
    Ok(())
}

/// Sends DATA far beyond the window, old DATA, and DATA within the window with gaps.
fn send_data_beyond_window(context: &mut AttackContext<'_>) -> Result<()> {
    let mut association = open_association(context, 110, VICTIM_SCTP_PORT)?;
    let first = association.tsn;
    for n in 0..300u32 {
        context.attempts += 1;
        // Offsets from `first + n`: far beyond the window, 65,536 before, 3 after (twice), and 100,000 after.
        association.tsn = first
            .wrapping_add([0x7000_0000, 0xffff_0000, 3, 3, 100_000][n as usize % 5])
            .wrapping_add(n);
        association.send_message(context, 0, ddp::PPID_SEGMENT, &[7; 32])?;
    }
    context.settle(Duration::from_millis(100));
    association.send_abort(context)
}

/// Sends packets of 30 HEARTBEATs each. The attack's `Expectation::amplification` limits the bytes of all answers.
fn send_many_heartbeats(context: &mut AttackContext<'_>) -> Result<()> {
    let association = open_association(context, 111, VICTIM_SCTP_PORT)?;
    for _ in 0..200 {
        context.attempts += 1;
        let packet = association.build_packet(association.peer_tag, |b| {
            for _ in 0..30 {
                b.heartbeat(&[7; 32])?;
            }
            Ok(())
        })?;
        association.send(context, &packet)?;
    }
    association.send_abort(context)
}

/// Sends session control messages in invalid orders. RFC 5043 leaves the reaction to the target, but the target must
/// accept a session afterwards.
fn send_controls_out_of_order(context: &mut AttackContext<'_>) -> Result<()> {
    use Function::{
        Accept, EnhancedAccept, EnhancedInitiate, EnhancedReject, Initiate, Reject, Terminate,
    };
    let cases: [&[Function]; 10] = [
        &[Terminate],
        &[Accept],
        &[Reject],
        &[Initiate, Initiate],
        &[Initiate, Accept],
        &[Initiate, Terminate, Terminate],
        &[Initiate, Terminate, Initiate],
        &[EnhancedAccept, Initiate],
        &[EnhancedReject],
        &[EnhancedInitiate, Initiate],
    ];
    for case in cases {
        let mut association = open_association(context, 112, VICTIM_SCTP_PORT)?;
        for (ssn, function) in case.iter().enumerate() {
            context.attempts += 1;
            association.send_control(context, 0, ssn as u16, *function)?;
        }
        association.send_segment(
            context,
            0,
            case.len() as u16,
            &segments::tagged_segment(1, 2, true, b"x"),
        )?;
        context.settle(Duration::from_millis(20));
        association.send_abort(context)?;
    }
    let mut association = open_association(context, 112, VICTIM_SCTP_PORT)?;
    if !association.open_session(context, 0)? {
        context.report_violation("no session after the invalid control messages");
    }
    association.send_abort(context)
}

/// Initiates sessions on 60 streams of an association. The target must accept at least one, and at most 24, the limit
/// of one peer.
fn initiate_all_sessions(context: &mut AttackContext<'_>) -> Result<()> {
    let mut association = open_association(context, 113, VICTIM_SCTP_PORT)?;
    let mut accepted = 0;
    for stream in 0..60 {
        context.attempts += 1;
        association.send_control(context, stream, 0, Function::Initiate)?;
        let answer = association.wait_message(context, Duration::from_millis(500), |message| {
            control_function(message, stream)
        });
        accepted += usize::from(answer == Some(Function::Accept.code()));
    }
    if !(1..=24).contains(&accepted) {
        context.report_violation(format!("{accepted} sessions accepted where a peer may have 24"));
    }
    association.send_abort(context)
}

/// Opens 60 associations without a session. Another peer must still get a session.
fn open_idle_associations(context: &mut AttackContext<'_>) -> Result<()> {
    let mut all = Vec::new();
    for _ in 0..60 {
        context.attempts += 1;
        let mut association = RawSctp::new(
            context,
            [10, 77, 0, 114].into(),
            testbed::target_address(VICTIM_SCTP_PORT),
        );
        if association.open(context).is_ok() {
            all.push(association);
        }
    }
    let mut late = open_association(context, 115, VICTIM_SCTP_PORT)?;
    if !late.open_session(context, 0)? {
        context.report_violation("another peer gets no session during idle associations");
    }
    late.send_abort(context)?;
    for association in all {
        association.send_abort(context)?;
    }
    Ok(())
}

/// Sends a message so that the received part consists of up to 100 separate ranges. Beyond 64 ranges the target
/// reserves memory in the worker's pool. All segments are valid, so the target must accept the message.
fn send_many_ranges(context: &mut AttackContext<'_>) -> Result<()> {
    let mut association = open_association(context, 116, VICTIM_SCTP_PORT)?;
    if !association.open_session(context, 0)? {
        context.report_violation("no session");
    }
    // Sends the 100 odd-numbered of 200 segments first, then the even-numbered. The DDP-SSN follows the order of the
    // message.
    let (_, buffer) = testbed::UNTAGGED_BUFFERS;
    let len = buffer / 200;
    let order = (0..200).filter(|n| n % 2 == 1).chain((0..200).filter(|n| n % 2 == 0));
    let first = association.tsn;
    for n in order {
        context.attempts += 1;
        let at = UntaggedPosition { qn: 0, msn: 1, mo: n * len };
        // TSNs also follow the order of the message, so the segments not yet sent look lost.
        association.tsn = first.wrapping_add(n);
        let payload = vec![n as u8; len as usize];
        association.send_segment(
            context,
            0,
            1 + n as u16,
            &segments::untagged_segment(at, n == 199, &payload),
        )?;
    }
    association.tsn = first.wrapping_add(200);
    let ended = association.wait_message(context, Duration::from_millis(300), |message| {
        if message.ppid == ddp::PPID_SEGMENT {
            return Some(segments::terminate_error(message.payload.get(2..)?, true));
        }
        None
    });
    if let Some(error) = ended {
        context.report_violation(format!(
            "a message of 100 separate ranges ended the session with {error:x?}"
        ));
    }
    association.send_abort(context)
}

/// Writes to an unknown STag, to a region of another listener, beyond the end of a region, and with a TO that wraps.
fn write_to_foreign_regions(context: &mut AttackContext<'_>) -> Result<()> {
    let (own_stag, base) = testbed::region_stag(&context.target.client, "prey-s")?;
    let (secret, to) = testbed::region_stag(&context.target.client, "secret")?;
    let size = testbed::REGION_LEN as u64;
    let cases = [
        ("an unknown STag", 0xdead_beef, 0, (0x11, 0)),
        ("another listener's STag", secret, to, (0x11, 2)),
        ("beyond the region", own_stag, base + size - 1, (0x11, 1)),
        ("a TO that wraps", own_stag, u64::MAX - 1, (0x11, 3)),
    ];
    for (what, stag, to, expected) in cases {
        let mut association = open_association(context, 117, VICTIM_SCTP_PORT)?;
        if !association.open_session(context, 0)? {
            context.report_violation("no session");
        }
        context.attempts += 1;
        association.send_segment(
            context,
            0,
            1,
            &segments::tagged_segment(stag, to, true, &[0x66; 64]),
        )?;
        let error = association.wait_message(context, Duration::from_secs(1), |message| {
            if message.ppid != ddp::PPID_SEGMENT {
                return None;
            }
            segments::terminate_error(message.payload.get(2..)?, true)
        });
        if error != Some(expected) {
            context.report_violation(format!("{what}: {error:x?} instead of {expected:x?}"));
        }
        association.send_abort(context)?;
    }
    Ok(())
}

/// Sends short and long Terminates, some with reserved bits set. Each Terminate is followed by DATA without the U bit.
fn send_malformed_terminates(context: &mut AttackContext<'_>) -> Result<()> {
    // RFC 5040 §4.8: layer and error type, error code, then 16 bits: M, D and R are the three highest, the others
    // are reserved.
    let bodies: [&[u8]; 6] = [
        // LLP errors, with a reserved bit and without.
        &[0x20, 0x02, 0x01, 0x00],
        &[0x21, 0x01, 0x00, 0x00],
        // All reserved bits, then all bits.
        &[0x00, 0x00, 0x1f, 0xff],
        &[0xff; 4],
        // Shorter than the Terminate Control field.
        &[0x01],
        // A DDP error with M, D and R, a segment length of 65535, and only the first bytes of the headers.
        &[0x11, 0x01, 0xe0, 0x00, 0xff, 0xff, 0x81, 0x40, 0, 0, 0, 1],
    ];
    for body in bodies {
        let mut association = open_association(context, 118, VICTIM_VERBS_SCTP_PORT)?;
        if !association.open_session(context, 0)? {
            context.report_violation("no session");
        }
        context.attempts += 1;
        let message = segments::rdmap_message(wire::rdmap::Opcode::Terminate, None, 1, body);
        association.send_segment(context, 0, 1, &message)?;
        // DATA without the U (unordered) bit, which DDP over SCTP requires.
        let header = DataHeader {
            tsn: Tsn(association.tsn),
            begin: true,
            end: true,
            ..DataHeader::default()
        };
        let packet = association.build_packet(association.peer_tag, |b| {
            b.data_buffer()[..8].fill(1);
            b.push_data(&header, 8)
        })?;
        association.send(context, &packet)?;
        context.settle(Duration::from_millis(20));
        association.send_abort(context)?;
    }
    Ok(())
}

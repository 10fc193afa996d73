//! A hostile peer over SCTP with its own associations: RFC 5043, RFC 9260 §6, RFC 5042 §6.

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
    dialogue("sctp-fragments-held", "RFC 5042 §6.5.2", send_unfinished_messages, SCTP_COUNTERS),
    dialogue("sctp-data-beyond-window", "RFC 9260 §6.2", send_data_beyond_window, SCTP_COUNTERS),
    dialogue("sctp-heartbeats", "RFC 9260 §8.3", send_many_heartbeats, SCTP_COUNTERS),
    dialogue("session-order", "RFC 5043 §6", send_controls_out_of_order, SCTP_COUNTERS),
    dialogue("session-streams", "RFC 5043 §4", initiate_all_sessions, SCTP_COUNTERS),
    dialogue("associations-idle", "RFC 5042 §6.5.1", open_idle_associations, SCTP_COUNTERS),
    dialogue("many-ranges", "RFC 5041 §5.2", send_many_ranges, &["sctp_packets"]),
    dialogue("session-stag", "RFC 5042 §6.2", write_to_foreign_regions, &["error:*"]),
    dialogue("terminate-reserved-bits", "RFC 5040 §4.8", send_malformed_terminates, SCTP_COUNTERS),
];

/// Opens an association from address 10.77.0.`last`.
fn open_association(field: &mut AttackContext<'_>, last: u8, port: u16) -> Result<RawSctp> {
    let from: IpAddr = Ipv4Addr::new(10, 77, 0, last).into();
    for _ in 0..20 {
        let mut own = RawSctp::new(field, from, testbed::target_address(port));
        if own.open(field).is_ok() {
            return Ok(own);
        }
        // INIT ACKs are rate-limited: retry later.
        field.settle(Duration::from_millis(50));
    }
    anyhow::bail!("no association from {from}")
}

/// Sends first and middle fragments of messages, never a last one, on many associations.
fn send_unfinished_messages(field: &mut AttackContext<'_>) -> Result<()> {
    let mut all = Vec::new();
    for n in 0..20 {
        let own = open_association(field, 100 + n % 10, VICTIM_SCTP_PORT);
        let Ok(mut own) = own else { continue };
        // Each association sends almost the whole window of 1 MiB, together 19 MiB. No message is too long, and none
        // has a last fragment.
        for piece in 0..800 {
            field.attempts += 1;
            let begin = piece % 50 == 0;
            own.tsn = own.tsn.wrapping_add(u32::from(begin && piece > 0));
            let header =
                DataHeader { ppid: ddp::PPID_SEGMENT, begin, end: false, ..DataHeader::default() };
            own.send_data(field, header, &[7; 1200])?;
        }
        all.push(own);
    }
    if all.is_empty() {
        field.report_violation("no association at all");
    }
    field.settle(Duration::from_millis(300));
    for own in all {
        own.send_abort(field)?;
    }
    Ok(())
}

/// Sends DATA far beyond the window, old DATA and duplicates.
fn send_data_beyond_window(field: &mut AttackContext<'_>) -> Result<()> {
    let mut own = open_association(field, 110, VICTIM_SCTP_PORT)?;
    let first = own.tsn;
    for n in 0..300u32 {
        field.attempts += 1;
        own.tsn = first
            .wrapping_add([0x7000_0000, 0xffff_0000, 3, 3, 100_000][n as usize % 5])
            .wrapping_add(n);
        own.send_message(field, 0, ddp::PPID_SEGMENT, &[7; 32])?;
    }
    field.settle(Duration::from_millis(100));
    own.send_abort(field)
}

/// Sends packets with as many HEARTBEATs as fit. No answer may be longer than its packet.
fn send_many_heartbeats(field: &mut AttackContext<'_>) -> Result<()> {
    let own = open_association(field, 111, VICTIM_SCTP_PORT)?;
    for _ in 0..200 {
        field.attempts += 1;
        let packet = own.build_packet(own.peer_tag, |b| {
            for _ in 0..30 {
                b.heartbeat(&[7; 32])?;
            }
            Ok(())
        })?;
        own.send(field, &packet)?;
    }
    own.send_abort(field)
}

/// Sends session control messages in invalid orders. The reaction is up to the target, but it must accept a session
/// afterwards.
fn send_controls_out_of_order(field: &mut AttackContext<'_>) -> Result<()> {
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
        let mut own = open_association(field, 112, VICTIM_SCTP_PORT)?;
        for (ssn, function) in case.iter().enumerate() {
            field.attempts += 1;
            own.send_control(field, 0, ssn as u16, *function)?;
        }
        // A segment follows the messages.
        own.send_segment(field, 0, case.len() as u16, &segments::tagged_segment(1, 2, true, b"x"))?;
        field.settle(Duration::from_millis(20));
        own.send_abort(field)?;
    }
    let mut own = open_association(field, 112, VICTIM_SCTP_PORT)?;
    if !own.open_session(field, 0)? {
        field.report_violation("no session after the disorder");
    }
    own.send_abort(field)
}

/// Initiates sessions on 60 streams of an association. The target may accept at most a peer's share, 24.
fn initiate_all_sessions(field: &mut AttackContext<'_>) -> Result<()> {
    let mut own = open_association(field, 113, VICTIM_SCTP_PORT)?;
    let mut accepted = 0;
    for stream in 0..60 {
        field.attempts += 1;
        own.send_control(field, stream, 0, Function::Initiate)?;
        let answer = own.wait_message(field, Duration::from_millis(500), |message| {
            control_function(message, stream)
        });
        accepted += usize::from(answer == Some(Function::Accept.code()));
    }
    if !(1..=24).contains(&accepted) {
        field.report_violation(format!("{accepted} sessions accepted where a peer may have 24"));
    }
    own.send_abort(field)
}

/// Opens 60 associations without a session. Another peer must still get a session.
fn open_idle_associations(field: &mut AttackContext<'_>) -> Result<()> {
    let mut all = Vec::new();
    for _ in 0..60 {
        field.attempts += 1;
        let mut own =
            RawSctp::new(field, [10, 77, 0, 114].into(), testbed::target_address(VICTIM_SCTP_PORT));
        if own.open(field).is_ok() {
            all.push(own);
        }
    }
    let mut late = open_association(field, 115, VICTIM_SCTP_PORT)?;
    if !late.open_session(field, 0)? {
        field.report_violation("another peer gets no session beside idle associations");
    }
    late.send_abort(field)?;
    for own in all {
        own.send_abort(field)?;
    }
    Ok(())
}

/// Sends a message in 100 separate ranges, more than 64. All are valid, so the target must accept the message.
fn send_many_ranges(field: &mut AttackContext<'_>) -> Result<()> {
    let mut own = open_association(field, 116, VICTIM_SCTP_PORT)?;
    if !own.open_session(field, 0)? {
        field.report_violation("no session");
    }
    // The odd 100 of 200 segments first, then the even ones. DDP-SSN follows the order of the message.
    let (_, buffer) = testbed::UNTAGGED_BUFFERS;
    let len = buffer / 200;
    let order = (0..200).filter(|n| n % 2 == 1).chain((0..200).filter(|n| n % 2 == 0));
    let first = own.tsn;
    for n in order {
        field.attempts += 1;
        let at = UntaggedPosition { qn: 0, msn: 1, mo: n * len };
        // TSNs follow the order of the message, too: segments that are not sent yet look lost.
        own.tsn = first.wrapping_add(n);
        let payload = vec![n as u8; len as usize];
        own.send_segment(
            field,
            0,
            1 + n as u16,
            &segments::untagged_segment(at, n == 199, &payload),
        )?;
    }
    own.tsn = first.wrapping_add(200);
    let ended = own.wait_message(field, Duration::from_millis(300), |message| {
        if message.ppid == ddp::PPID_SEGMENT {
            return Some(segments::terminate_error(message.payload.get(2..)?, true));
        }
        None
    });
    if let Some(error) = ended {
        field.report_violation(format!(
            "a message of 100 separate ranges ended the session with {error:x?}"
        ));
    }
    own.send_abort(field)
}

/// Writes to regions of other listeners, and beyond the end of regions.
fn write_to_foreign_regions(field: &mut AttackContext<'_>) -> Result<()> {
    let (own_stag, base) = testbed::region_stag(&field.target.client, "prey-s")?;
    let (secret, to) = testbed::region_stag(&field.target.client, "secret")?;
    let size = testbed::REGION_LEN as u64;
    let cases = [
        ("an unknown STag", 0xdead_beef, 0, (0x11, 0)),
        ("another listener's STag", secret, to, (0x11, 2)),
        ("beyond the region", own_stag, base + size - 1, (0x11, 1)),
        ("a TO that wraps", own_stag, u64::MAX - 1, (0x11, 3)),
    ];
    for (what, stag, to, expected) in cases {
        let mut own = open_association(field, 117, VICTIM_SCTP_PORT)?;
        if !own.open_session(field, 0)? {
            field.report_violation("no session");
        }
        field.attempts += 1;
        own.send_segment(field, 0, 1, &segments::tagged_segment(stag, to, true, &[0x66; 64]))?;
        let error = own.wait_message(field, Duration::from_secs(1), |message| {
            if message.ppid != ddp::PPID_SEGMENT {
                return None;
            }
            segments::terminate_error(message.payload.get(2..)?, true)
        });
        if error != Some(expected) {
            field.report_violation(format!("{what}: {error:x?} instead of {expected:x?}"));
        }
        own.send_abort(field)?;
    }
    Ok(())
}

/// Sends short and long Terminates, some with reserved bits set, each followed by DATA that is wrongly marked as
/// ordered.
fn send_malformed_terminates(field: &mut AttackContext<'_>) -> Result<()> {
    let bodies: [&[u8]; 6] = [
        &[0x20, 0x02, 0x01, 0x00],
        &[0x21, 0x01, 0x00, 0x00],
        &[0x00, 0x00, 0x1f, 0xff],
        &[0xff; 4],
        &[0x01],
        &[0x11, 0x01, 0xe0, 0x00, 0xff, 0xff, 0x81, 0x40, 0, 0, 0, 1],
    ];
    for body in bodies {
        let mut own = open_association(field, 118, VICTIM_VERBS_SCTP_PORT)?;
        own.send_control(field, 0, 0, Function::Initiate)?;
        let _ =
            own.wait_message(field, Duration::from_secs(1), |message| control_function(message, 0));
        field.attempts += 1;
        let message = segments::rdmap_message(wire::rdmap::Opcode::Terminate, None, 1, body);
        own.send_segment(field, 0, 1, &message)?;
        // DATA without the U bit, which DDP requires.
        let header =
            DataHeader { tsn: Tsn(own.tsn), begin: true, end: true, ..DataHeader::default() };
        let packet = own.build_packet(own.peer_tag, |b| {
            b.data_buffer()[..8].fill(1);
            b.push_data(&header, 8)
        })?;
        own.send(field, &packet)?;
        field.settle(Duration::from_millis(20));
        own.send_abort(field)?;
    }
    Ok(())
}

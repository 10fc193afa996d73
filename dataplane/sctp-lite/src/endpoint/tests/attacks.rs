//! Hostile peers: DDP-SSNs, floods of sessions, lengths of private data.

use super::host::*;
use crate::endpoint::*;
use crate::seam::MessageOutcome;
use crate::session::SessionError;
use wire::sctp::ddp::{Function, PPID_CONTROL};

/// RFC 5043 §10: a gap in the DDP-SSNs uses no memory. Messages received beyond the gap use memory, up to a limit.
#[test]
fn ssn_gaps_cost_memory_for_received_messages_only() {
    let (mut host, session) = Host::established_passive();
    let mut refused = 0;
    for n in 1..=3000_u16 {
        // Every second DDP-SSN, so that each is a separate range.
        refused += u32::from(host.receive_write(0, n * 2, 0, b"x") == MessageOutcome::Refused);
    }
    let stats = host.upper.slot(session).expect("a live session").stats();
    assert_eq!((stats.session.segments, refused), (1024, 3000 - 1024));
    assert_eq!(stats.session.refused, u64::from(refused));
    // The messages are refused without an error, as they are at DDP's limit on out-of-order records.
    assert_eq!(host.upper.stats.illegal, 0);
    assert_eq!(host.reason(session), None);
    // The message that fills the first gap is always accepted.
    assert_eq!(host.receive_write(0, 1, 0, b"x"), MessageOutcome::Accepted);
    let stats = host.upper.slot(session).expect("a live session").stats();
    assert_eq!(stats.ddp.tagged_delivered, 2);
}

/// DDP limits the records of messages beyond a gap. Refused messages are not acknowledged, so the peer retransmits
/// them.
#[test]
fn messages_beyond_the_record_limit_are_refused() {
    let config = ddp::StreamConfig { max_ooo_records: 4, ..stream_config() };
    let mut host = Host::with_config(EndpointConfig::default(), false, config.into());
    host.receive(0, 0, Function::Initiate, b"");
    let session = host.session(0);
    let taken: Vec<MessageOutcome> = (2..8).map(|n| host.receive_write(0, n, 0, b"x")).collect();
    assert_eq!(
        taken,
        [
            MessageOutcome::Accepted,
            MessageOutcome::Accepted,
            MessageOutcome::Accepted,
            MessageOutcome::Accepted,
            MessageOutcome::Refused,
            MessageOutcome::Refused
        ]
    );
    assert_eq!(host.receive_write(0, 1, 0, b"x"), MessageOutcome::Accepted);
    assert_eq!(host.receive_write(0, 6, 0, b"x"), MessageOutcome::Accepted);
    assert_eq!(host.receive_write(0, 7, 0, b"x"), MessageOutcome::Accepted);
    assert_eq!(host.ddp_events(session).len(), 7);
}

/// Repeated Initiates on all streams occupy at most one slot per pair of streams.
#[test]
fn initiate_flood_is_bounded() {
    let mut config = EndpointConfig::default();
    (config.session.max_sessions, config.session.max_pending) = (4, 2);
    let mut host = Host::with_config(config, false, stream_config().into());
    host.policy = Policy::Wait;
    for _ in 0..5 {
        for stream in 0..PAIRS + 3 {
            host.receive(stream, 0, Function::Initiate, &[1; 512]);
        }
        host.send_messages();
        host.acknowledge_all();
    }
    assert!(host.upper.live_count() <= 2);
    assert_eq!(host.upper.stats.unpaired_messages, 15);
    // A second Initiate on a session that waits for its decision is illegal. Excess sessions are answered with a
    // Terminate.
    assert!(host.upper.stats.requests <= 10 && host.upper.stats.illegal >= 2);
    assert!(host.upper.stats.turned_away >= 10, "{:?}", host.upper.stats);
    assert!(host.upper.occupied_slots() <= usize::from(PAIRS));
}

/// RFC 5043 §5.2.3: private data has 0 to 512 bytes in both directions.
#[test]
fn private_data_above_512_bytes_is_refused() {
    for len in [0, 1, 511, 512, 513, 1000] {
        let data = vec![7; len];
        let mut host = Host::new(false);
        assert_eq!(host.receive(0, 0, Function::Initiate, &data), MessageOutcome::Accepted);
        assert_eq!(host.sessions().len(), usize::from(len <= 512), "{len}");
        assert_eq!(host.upper.stats.illegal, u64::from(len > 512));

        let mut host = Host::new(true);
        let session = host.open(b"");
        host.send_messages();
        host.acknowledge_all();
        host.receive(0, 0, Function::Accept, &data);
        assert_eq!(host.is_established(session), len <= 512);

        // The limit also applies to private data of this end.
        let mut host = Host::new(true);
        let open = OpenRequest { pd: PD, ulp: stream_config().into(), private_data: data.clone() };
        let opened = host.upper.open(host.now, StreamId(1), open);
        assert_eq!(opened.is_ok(), len <= 512, "{opened:?}");
        host.receive(5, 0, Function::Initiate, b"");
        host.policy = Policy::Wait;
        host.receive(6, 0, Function::Initiate, b"");
        let rejected = host.upper.reject(host.now, host.session(6), &data);
        assert_eq!(rejected.is_ok(), len <= 512, "{rejected:?}");
    }
}

/// A message may arrive in pieces of any size: empty, one byte, or the whole message.
#[test]
fn messages_in_any_pieces_are_processed() {
    let mut host = Host::new(false);
    let initiate: &[&[u8]] = &[&[0], &[], &[0, 0], &[1, b'h'], b"i"];
    assert_eq!(host.receive_raw(0, PPID_CONTROL, true, initiate), MessageOutcome::Accepted);
    let session = host.session(0);
    let request = SessionEvent::Request { private_data: b"hi".to_vec(), enhanced: None };
    assert_eq!(host.events_of(session)[0], request);
    let bytes = segment(1, 9, b"pieces");
    let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(host.receive_raw(0, 16, true, &pieces), MessageOutcome::Accepted);
    assert_eq!(host.memory.to_vec()[9..15], *b"pieces");
    assert_eq!(host.receive_raw(0, 16, true, &[]), MessageOutcome::Accepted);
    // Sends the Accept, then the Terminate.
    for _ in 0..2 {
        host.send_messages();
        host.acknowledge_all();
    }
    let error = SessionError::Short { seen: 0 };
    assert_eq!(host.reason(session), Some(CloseReason::Lower(SctpReason::Session(error))));
}

#[test]
fn session_fault_leaves_other_sessions_unaffected() {
    let (mut host, first) = Host::established_passive();
    host.receive(1, 0, Function::Initiate, b"");
    let second = host.session(1);
    host.receive_raw(0, 99, false, &[b"nonsense"]);
    host.send_messages();
    host.acknowledge_all();
    assert_eq!(
        host.reason(first),
        Some(CloseReason::Lower(SctpReason::Session(SessionError::Ordered)))
    );
    assert_eq!(host.receive_write(1, 1, 0, b"good"), MessageOutcome::Accepted);
    assert_eq!(host.memory.to_vec()[..4], *b"good");
    assert_eq!(host.reason(second), None);
}

//! Tests of a stream's lifecycle: the state after each call, and the reported reason.

use core::fmt;

use arrayvec::ArrayVec;
use base::ErrorNumbers;

use super::*;
use crate::error::{DdpError, Field, Mismatch};
use crate::rdmap;
use crate::ulp::UlpConfig;
use crate::{BufferPool, Origin, PdId, StreamId, VecMemory};

/// The only reason of the lower layer in these tests.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the wire is cut")
    }
}

impl LowerReason for Lost {
    const CARRIER: &'static str = "wire";
    const LINGER_TEXT: &'static str = "cut by this end";

    fn numbers(&self) -> Option<ErrorNumbers> {
        Some(ErrorNumbers::new(2, 0, 1))
    }

    fn origin(&self) -> Origin {
        Origin::Network
    }

    fn name(&self) -> &'static str {
        "lost"
    }
}

type TestLifecycle = Lifecycle<Lost>;

const TIMEOUT: Duration = Duration::from_secs(5);

const ALL: [State; 8] = [
    State::Connecting,
    State::Startup,
    State::Deciding,
    State::Readying,
    State::Established,
    State::Closing,
    State::Failing,
    State::Closed,
];

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn states(step: impl Fn(&mut TestLifecycle)) -> [State; 8] {
    ALL.map(|state| {
        let mut life = TestLifecycle::new(state);
        step(&mut life);
        life.state()
    })
}

#[test]
fn shutdown_begins_once_and_only_when_established() {
    use State::*;
    let after = states(|life| {
        let _ = life.shutdown(CloseReason::LocalShutdown);
    });
    assert_eq!(after, [Failing, Failing, Failing, Closing, Closing, Closing, Failing, Closed]);
    let outcome = |state| TestLifecycle::new(state).shutdown(CloseReason::LocalShutdown);
    let (ends, begins, none) =
        (ShutdownOutcome::StartupEnded, ShutdownOutcome::Begun, ShutdownOutcome::NoChange);
    assert_eq!(ALL.map(outcome), [ends, ends, ends, begins, begins, none, none, none]);
}

#[test]
fn on_connected_acts_in_connecting_only() {
    use State::*;
    let after = states(|life| {
        let _ = life.on_connected(at(1));
    });
    assert_eq!(after[0], Startup);
    assert_eq!(after[1..], ALL[1..]);
}

#[test]
fn deadline_outcome_depends_on_state_and_progress() {
    let expired = |state, progress| {
        let mut life = TestLifecycle::new(state);
        life.set_first_reason(CloseReason::LocalShutdown);
        life.set_teardown_deadline(at(1), TIMEOUT, 10);
        assert_eq!(life.deadline(), Some(at(6)));
        let expired = life.on_deadline(progress);
        assert_eq!((life.deadline(), life.state()), (None, state));
        expired
    };
    let with_progress = ALL.map(|state| expired(state, 11));
    let (startup, readying, none) =
        (DeadlineOutcome::Startup, DeadlineOutcome::Readying, DeadlineOutcome::NoChange);
    let (progress, teardown) = (DeadlineOutcome::Progress, DeadlineOutcome::Teardown);
    assert_eq!(with_progress, [none, startup, startup, readying, none, progress, progress, none]);
    let without_progress = ALL.map(|state| expired(state, 10));
    assert_eq!(
        without_progress,
        [none, startup, startup, readying, none, teardown, teardown, none]
    );
}

/// RFC 5041 §6.2.1: a half-closed stream waits for its ULP, but only for a limited time without progress.
#[test]
fn half_closed_stream_waits_for_its_ulp() {
    let half_closed = |timeout, progress| {
        let mut life = TestLifecycle::new(State::Established);
        life.on_peer_closed();
        life.set_ulp_deadline(at(1), timeout, 10);
        (life.deadline(), life.on_deadline(progress))
    };
    assert_eq!(half_closed(Some(TIMEOUT), 10), (Some(at(6)), DeadlineOutcome::Ulp));
    assert_eq!(half_closed(Some(TIMEOUT), 11), (Some(at(6)), DeadlineOutcome::Progress));
    assert_eq!(half_closed(None, 10).0, None);
    // During a teardown, `set_ulp_deadline` has no effect.
    let mut life = TestLifecycle::new(State::Closing);
    life.set_ulp_deadline(at(1), Some(TIMEOUT), 10);
    assert_eq!(life.deadline(), None);
}

#[test]
fn first_close_reason_is_kept_unless_an_error_follows() {
    let mut life = TestLifecycle::new(State::Established);
    assert!(!life.is_peer_closed());
    life.on_peer_closed();
    assert!(life.is_peer_closed());
    assert_eq!(life.shutdown(CloseReason::Idle), ShutdownOutcome::Begun);
    assert_eq!(life.reason(), Some(&CloseReason::PeerShutdown));
    life.set_first_reason(CloseReason::LocalAbort);
    life.fail(CloseReason::LocalAbort);
    assert_eq!(life.reason(), Some(&CloseReason::PeerShutdown));
    life.fail_by_error(Lost.into());
    assert_eq!((life.reason(), life.state()), (Some(&CloseReason::Lower(Lost)), State::Failing));
    life.close::<VecMemory>(None, &mut BufferPool::new(0));
    assert_eq!((life.close_reason(), life.state()), (CloseReason::Lower(Lost), State::Closed));
    life.release();
    assert_eq!(life.close_reason(), CloseReason::LocalAbort);
}

/// RFC 5041 §7.1, RFC 5040 §6.2.1: the peer receives the error if this end may still send, otherwise nothing.
#[test]
fn abortive_end_sends_error_only_if_permitted() {
    let of_llp = FinalError::Llp { error_type: 0, code: 2 };
    for (error, may_send, sends) in [
        (of_llp, true, true),
        (of_llp, false, false),
        (FinalError::Ulp, false, false),
        (FinalError::None, true, false),
    ] {
        for config in
            [UlpConfig::Ddp(crate::testing::config()), UlpConfig::Rdmap(rdmap::Config::default())]
        {
            let mut stream = Ulp::<VecMemory>::new(StreamId(1), PdId(0), config);
            error.post(&mut stream, may_send);
            assert_eq!(stream.has_unsent(), sends, "{error:?} {may_send} {:?}", stream.kind());
            assert!(stream.is_closed(), "{error:?} {may_send} {:?}", stream.kind());
        }
    }
}

#[test]
fn close_reasons_read_as_sentences() {
    let text = |reason: CloseReason<Lost>| (reason.name(), reason.to_string());
    let row = |name, words: &str| (name, words.to_owned());
    assert_eq!(text(Lost.into()), row("lost", "the wire is cut"));
    assert_eq!(
        text(CloseReason::ConnectRefused),
        row("connect_refused", "wire refused by the peer")
    );
    assert_eq!(text(CloseReason::PeerLingers), row("peer_lingers", "cut by this end"));
    let lost = CloseReason::DdpFailed(Failure::LlpLost);
    assert_eq!(text(lost), row("ddp_failed", "DDP stream lost its wire"));
    let lower = CloseReason::from(Lost);
    assert_eq!(
        (lower.numbers(), lower.origin()),
        (Some(ErrorNumbers::new(2, 0, 1)), Origin::Network)
    );
}

/// Checks name, numbers, origin, gracefulness and text of each reason.
#[test]
fn each_close_reason_has_name_numbers_and_origin() {
    use CloseReason::*;
    let ddp = DdpError {
        code: crate::error::ErrorCode::BaseOrBounds,
        mismatch: Mismatch::unexpected(Field::MessageLength, 9),
        key: crate::llp::OrderKey(0),
        header: ArrayVec::new(),
        segment_len: 0,
    };
    let of_rdmap = |code| rdmap::RdmapError {
        code,
        mismatch: Mismatch::unexpected(Field::MessageLength, 9),
        header: ArrayVec::new(),
        segment_len: 0,
        read_request: None,
    };
    let opcode = of_rdmap(rdmap::ErrorCode::UnexpectedOpcode);
    let local = of_rdmap(rdmap::ErrorCode::LocalCatastrophic);
    let terminate = Box::new(rdmap::Terminate::new(1, 2, 3));
    let (us, peer, net) = (Origin::Local, Origin::Peer, Origin::Network);
    type Row = (CloseReason<Lost>, &'static str, Option<ErrorNumbers>, Origin, bool, &'static str);
    let rows: [Row; 20] = [
        (LocalShutdown, "local_shutdown", None, us, true, "closed by this end"),
        (PeerShutdown, "peer_shutdown", None, peer, true, "closed by the peer"),
        (LocalAbort, "local_abort", None, us, false, "aborted by this end"),
        (Idle, "idle", None, us, false, "silent too long"),
        (PeerLingers, "peer_lingers", None, peer, false, "cut by this end"),
        (NotProtected, "not_protected", None, us, false, "no longer protects"),
        (UlpTimeout, "ulp_timeout", None, us, false, "service did not finish"),
        (ConnectRefused, "connect_refused", None, peer, false, "wire refused by the peer"),
        (
            RejectedByPeer { private_data: vec![], enhanced: None },
            "rejected_by_peer",
            None,
            peer,
            false,
            "rejected by the peer",
        ),
        (RejectedHere, "rejected_here", None, us, false, "rejected by this end"),
        (
            Ddp(ddp),
            "ddp_error",
            Some(ErrorNumbers::new(1, 1, 1)),
            peer,
            false,
            "message length is 9",
        ),
        (
            Rdmap(opcode),
            "rdmap_error",
            Some(ErrorNumbers::new(0, 2, 6)),
            peer,
            false,
            "unexpected opcode (message length is 9)",
        ),
        (
            Rdmap(local),
            "rdmap_error",
            Some(ErrorNumbers::new(0, 0, 0)),
            us,
            false,
            "local catastrophic error",
        ),
        (
            Llp { error_type: 3, code: 0xab },
            "llp_error",
            Some(ErrorNumbers::new(2, 3, 0xab)),
            us,
            false,
            "LLP error 3/ab",
        ),
        (InvalidTerminate { len: 3 }, "invalid_terminate", None, peer, false, "has 3 bytes"),
        (
            Terminated(terminate),
            "terminated_by_peer",
            Some(ErrorNumbers::new(1, 2, 3)),
            peer,
            false,
            "terminated by the peer: 1/2/03",
        ),
        (DdpFailed(Failure::Aborted), "ddp_failed", None, us, false, "aborted by this end"),
        (DdpFailed(Failure::LlpLost), "ddp_failed", None, net, false, "lost its wire"),
        (
            DdpFailed(Failure::DataAfterClose),
            "ddp_failed",
            None,
            peer,
            false,
            "after the end of the stream",
        ),
        (Lower(Lost), "lost", Some(ErrorNumbers::new(2, 0, 1)), net, false, "the wire is cut"),
    ];
    for (reason, name, numbers, origin, graceful, words) in rows {
        assert_eq!((reason.name(), reason.numbers(), reason.origin()), (name, numbers, origin));
        assert_eq!(reason.is_graceful(), graceful, "{name}");
        let text = reason.to_string();
        assert!(text.contains(words), "{name}: {text}");
    }
}

/// Each stream contains a lifecycle, so its size matters.
#[test]
fn lifecycle_size_is_bounded() {
    assert!(size_of::<TestLifecycle>() <= 16);
}

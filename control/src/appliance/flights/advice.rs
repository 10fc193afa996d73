//! Advice to the operator about the end of a stream, and the relevant configuration key.

use dataplane::AwaitedEvent;
use ddp::LAYER_DDP;

use super::flight::{End, EntryKind, Flight};

/// Sentence for a stream that was aborted without a recorded reason.
const ABORTED_SENTENCE: &str = "aborted by this end";

const LINGERS_SENTENCE: &str = "This end had closed its direction, and the peer did not close its own in time: look at the peer's program.";

/// A sentence of advice, and the relevant configuration key, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) key: Option<&'static str>,
    pub(super) sentence: &'static str,
}

const fn key(key: &'static str, sentence: &'static str) -> Option<Advice> {
    Some(Advice { key: Some(key), sentence })
}

const fn plain(sentence: &'static str) -> Option<Advice> {
    Some(Advice { key: None, sentence })
}

/// Returns advice about a DDP error in the record, else about the end. `None` if there is no advice.
pub(super) fn advice(end: &End, flight: &Flight) -> Option<Advice> {
    let by_error = flight.entries().iter().find_map(|entry| match &entry.kind {
        EntryKind::Error { layer: "ddp", code, .. } => ddp_error_advice(*code),
        EntryKind::Terminate { numbers, .. } if numbers.layer == LAYER_DDP => {
            ddp_error_advice((numbers.error_type, numbers.code))
        }
        _ => None,
    });
    by_error
        .or_else(|| timeout_advice(end.reason, flight))
        .or_else(|| reason_advice(end.reason, &end.sentence))
}

/// Returns the advice about a time-out, if the worker's recording shows its cause.
fn timeout_advice(reason: &str, flight: &Flight) -> Option<Advice> {
    match (reason, flight.recording.as_deref()?.awaited()?) {
        ("tcp_timeout", AwaitedEvent::Window) => key(
            "[tcp] zero_window_timeout",
            "The peer kept its receive window closed for [tcp] zero_window_timeout: its program does not read what arrives.",
        ),
        ("tcp_timeout", AwaitedEvent::Fin) => plain(LINGERS_SENTENCE),
        ("tcp_timeout", AwaitedEvent::ProbeAnswer) => key(
            "[tcp] keepalive",
            "The peer answered no probe of the idle stream ([tcp] keepalive; [limits] exclusive_keepalive where a region \
             serves one stream): its host is gone, or the path is cut.",
        ),
        ("sctp_timeout", AwaitedEvent::ProbeAnswer) => key(
            "[sctp] heartbeat",
            "The peer answered no HEARTBEAT ([sctp] heartbeat, [sctp] max_retransmits): its host is gone, or the path is cut.",
        ),
        _ => None,
    }
}

/// Returns the advice about a DDP error (RFC 5041 §7.2). `None` if there is no advice for the code.
fn ddp_error_advice(code: (u8, u8)) -> Option<Advice> {
    match code {
        (1, 0) => key(
            "[[region]]",
            "The STag names no region that the peer may use: it was removed, or the peer keeps an STag of a stream before. \
             ddpctl regions list shows the regions; the peer must take the STag out of the advertisement.",
        ),
        (1, 1) => key(
            "[[region]] size",
            "The peer wrote outside the region's bounds: it must stay within the base and the length of the advertisement, \
             or the region be larger.",
        ),
        (1, 2) => key(
            "[[listener]] regions",
            "The STag belongs to another stream: a region that is not `shared` serves one stream at a time.",
        ),
        (2, 1) => key(
            "[[listener.queue]]",
            "The peer used a queue that the listener does not have: add it, or have the peer use queue 0.",
        ),
        (2, 2) => key(
            "[[listener.queue]] buffers",
            "The peer sent more messages than there were buffers: give the queue more, or have the peer wait for answers.",
        ),
        (2, 5) => key(
            "[[listener.queue]] buffer_size",
            "A message is longer than the buffers of its queue: make them larger, or have the peer send less at a time.",
        ),
        _ => None,
    }
}

/// Returns the advice about the reason of an end. `sentence`: the description of the end. `None` if there is no advice
/// for the reason.
fn reason_advice(reason: &str, sentence: &str) -> Option<Advice> {
    match reason {
        "tcp_timeout" => key(
            "[tcp] user_timeout",
            "The peer acknowledged nothing for [tcp] user_timeout: its host is gone, or the path is cut.",
        ),
        "sctp_timeout" => key(
            "[sctp] max_retransmits",
            "The peer acknowledged nothing for [sctp] max_retransmits time-outs: its host is gone, or the path is cut.",
        ),
        "idle" => key(
            "[[listener]] idle_timeout",
            "The peer was silent for the listener's idle_timeout: raise it, or turn it off, if silence is as it should be.",
        ),
        "not_protected" => key(
            "[[listener]] require",
            "IPsec did not protect the stream as its listener requires, or as when it was opened from here, for 60 s: \
             ddpctl ipsec policies and ddpctl ipsec sas show what protects the peer's packets now.",
        ),
        "peer_lingers" => plain(LINGERS_SENTENCE),
        "peer_reset" | "peer_abort" => plain(
            "The peer's host reset the connection: its program was killed, or closed with data unread, or a firewall did it. \
             The peer's log may say which.",
        ),
        "peer_restart" => plain("The peer's host began the association anew: it was restarted."),
        "terminated_by_peer" => plain(
            "The peer's message says what it refused: look there for its reason, and here for what was sent to it.",
        ),
        "mpa_error" => key(
            "[mpa] on_bad_crc",
            "What arrived is no valid FPDU: memory or a middlebox on the path corrupts it, or the two ends disagree on markers or CRC.",
        ),
        "ulp_timeout" => plain(
            "The peer had closed its direction, and this end had not sent all answers, or not stored all messages, in time: \
             look for slow files, and for a peer that takes no answers.",
        ),
        // Any other sentence of an abort already contains the reason.
        "local_abort" if sentence == ABORTED_SENTENCE => plain(
            "The cause is not recorded. A region that is removed by force, a listener that no longer admits the peer, a reload \
             and the end of ddpd abort streams: `ddpctl events` has them at that time.",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasons for which there is no advice.
    const PLAIN: [&str; 4] =
        ["local_shutdown", "peer_shutdown", "rejected_by_peer", "rejected_here"];

    #[test]
    fn each_close_reason_has_advice_with_its_key() {
        for (reason, key, sentence) in [
            (
                "tcp_timeout",
                "[tcp] user_timeout",
                "The peer acknowledged nothing for [tcp] user_timeout: its host is gone, or the path is cut.",
            ),
            (
                "sctp_timeout",
                "[sctp] max_retransmits",
                "The peer acknowledged nothing for [sctp] max_retransmits time-outs: its host is gone, or the path is cut.",
            ),
            (
                "idle",
                "[[listener]] idle_timeout",
                "The peer was silent for the listener's idle_timeout: raise it, or turn it off, if silence is as it should be.",
            ),
            (
                "not_protected",
                "[[listener]] require",
                "IPsec did not protect the stream as its listener requires, or as when it was opened from here, for 60 s: \
                 ddpctl ipsec policies and ddpctl ipsec sas show what protects the peer's packets now.",
            ),
            (
                "peer_lingers",
                "",
                "This end had closed its direction, and the peer did not close its own in time: look at the peer's program.",
            ),
            (
                "peer_reset",
                "",
                "The peer's host reset the connection: its program was killed, or closed with data unread, or a firewall did \
                 it. The peer's log may say which.",
            ),
            (
                "peer_abort",
                "",
                "The peer's host reset the connection: its program was killed, or closed with data unread, or a firewall did \
                 it. The peer's log may say which.",
            ),
            ("peer_restart", "", "The peer's host began the association anew: it was restarted."),
            (
                "terminated_by_peer",
                "",
                "The peer's message says what it refused: look there for its reason, and here for what was sent to it.",
            ),
            (
                "mpa_error",
                "[mpa] on_bad_crc",
                "What arrived is no valid FPDU: memory or a middlebox on the path corrupts it, or the two ends disagree on \
                 markers or CRC.",
            ),
            (
                "ulp_timeout",
                "",
                "The peer had closed its direction, and this end had not sent all answers, or not stored all messages, in \
                 time: look for slow files, and for a peer that takes no answers.",
            ),
        ] {
            let advice = reason_advice(reason, "a sentence").unwrap();
            assert_eq!((advice.key.unwrap_or(""), advice.sentence), (key, sentence), "{reason}");
        }
        for reason in PLAIN {
            assert_eq!(reason_advice(reason, "a sentence"), None, "{reason}");
        }
    }

    // The advice must not refer to a reason that the sentence lacks.
    #[test]
    fn abort_without_reason_advises_that_cause_is_unrecorded() {
        let reason = dataplane::CloseReason::Tcp(tcp_lite::endpoint::CloseReason::LocalAbort);
        assert_eq!((reason.name(), &*reason.to_string()), ("local_abort", ABORTED_SENTENCE));
        assert!(
            reason_advice("local_abort", ABORTED_SENTENCE)
                .unwrap()
                .sentence
                .starts_with("The cause is not")
        );
        assert_eq!(reason_advice("local_abort", "the link of port `p` is down"), None);
    }
}

//! F-RTO (RFC 5682) detects a spurious retransmission time-out. The first acknowledgement after the time-out
//! triggers new data instead of more retransmissions; the next acknowledgement decides.

/// Maximum number of new segments sent to test a time-out (RFC 5682 §2.1 step 2b).
pub const NEW_SEGMENTS: u8 = 2;

/// State of F-RTO's test of one time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frto {
    /// No test is in progress.
    Off,
    /// Step 1: the timer expired, and SND.UNA has not advanced since.
    Retransmitted,
    /// Step 2b: new data was sent or may be sent; retransmissions wait.
    NewData,
}

/// Facts about an acknowledgement that follows a time-out.
#[derive(Clone, Copy, Debug)]
pub struct AckEvidence {
    /// True if SND.UNA advanced.
    pub advanced: bool,
    /// True if everything sent before the time-out is acknowledged.
    pub complete: bool,
    /// True if this acknowledgement newly reports a segment that was sent before the time-out and not retransmitted.
    pub original: bool,
    /// True for a duplicate acknowledgement, and for an acknowledgement that SACKs new data.
    pub duplicate: bool,
    /// True if new data waits and the peer's window has room for it.
    pub can_send_new: bool,
    /// True if the peer uses SACK.
    pub sack: bool,
}

/// F-RTO's verdict on an acknowledgement, and the reaction to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Undecided, or no test is in progress: no reaction.
    Wait,
    /// Send at most [`NEW_SEGMENTS`] segments of new data instead of retransmissions; a later acknowledgement decides.
    SendNew,
    /// The time-out was spurious: undo the reduction of the congestion window.
    Spurious,
    /// The time-out was not spurious: continue with retransmissions.
    Genuine,
}

/// Returns the verdict by RFC 5682 §3.1 with SACK, and by §2.1 without SACK. In the latter case, the caller sets
/// `original` only if the acknowledgement covers no retransmitted segment.
pub fn judge(state: Frto, seen: AckEvidence) -> Verdict {
    match state {
        Frto::Off => Verdict::Wait,
        // RFC 5682 §2.1 and §3.1, step 3b.
        _ if seen.original => Verdict::Spurious,
        _ if seen.complete => Verdict::Genuine,
        // RFC 5682 §2.1 and §3.1, step 2b.
        Frto::Retransmitted if seen.advanced && seen.can_send_new => Verdict::SendNew,
        Frto::Retransmitted if seen.advanced => Verdict::Genuine,
        // RFC 5682 §2.1 step 2a. With SACK, duplicates before the acknowledgement of the retransmission are ignored
        // (§3.1 step 2).
        Frto::Retransmitted if seen.duplicate && !seen.sack => Verdict::Genuine,
        Frto::Retransmitted => Verdict::Wait,
        // RFC 5682 §2.1 and §3.1, step 3a.
        Frto::NewData if seen.duplicate => Verdict::Genuine,
        Frto::NewData => Verdict::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_EVIDENCE: AckEvidence = AckEvidence {
        advanced: false,
        complete: false,
        original: false,
        duplicate: false,
        can_send_new: true,
        sack: true,
    };

    // RFC 5682 §2.1 and §3.1: the steps without and with SACK.
    #[test]
    fn f_rto_verdict_follows_rfc_5682_steps() {
        use Frto::*;
        let advanced = AckEvidence { advanced: true, ..NO_EVIDENCE };
        assert_eq!(judge(Off, AckEvidence { original: true, ..advanced }), Verdict::Wait);
        assert_eq!(judge(Retransmitted, advanced), Verdict::SendNew);
        let no_data = AckEvidence { can_send_new: false, ..advanced };
        assert_eq!(judge(Retransmitted, no_data), Verdict::Genuine);
        assert_eq!(
            judge(Retransmitted, AckEvidence { complete: true, ..advanced }),
            Verdict::Genuine
        );
        let duplicate = AckEvidence { duplicate: true, ..NO_EVIDENCE };
        assert_eq!(judge(Retransmitted, duplicate), Verdict::Wait);
        assert_eq!(
            judge(Retransmitted, AckEvidence { sack: false, ..duplicate }),
            Verdict::Genuine
        );
        assert_eq!(
            judge(NewData, AckEvidence { duplicate: true, ..NO_EVIDENCE }),
            Verdict::Genuine
        );
        for state in [Retransmitted, NewData] {
            assert_eq!(judge(state, AckEvidence { original: true, ..advanced }), Verdict::Spurious);
        }
    }
}

//! F-RTO (RFC 5682): was a retransmission time-out spurious? The first acknowledgement after it is
//! answered with new data instead of more retransmissions; the next one decides.

/// New segments sent to find out (RFC 5682 §2.1 step 2b).
pub const NEW_SEGMENTS: u8 = 2;

/// Where the question stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frto {
    /// Not asked, or answered.
    Off,
    /// Step 1: the oldest segment was sent again.
    Retransmitted,
    /// Step 2b: new data was sent, or may be; retransmissions wait.
    NewData,
}

/// What an acknowledgement showed after a time-out.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// It moved SND.UNA.
    pub advanced: bool,
    /// It acknowledged everything sent before the time-out.
    pub complete: bool,
    /// Something that was sent before the time-out and never again has just arrived.
    pub original: bool,
    /// It is a duplicate, or SACKs something new.
    pub duplicate: bool,
    /// New data can be sent now.
    pub can_send_new: bool,
    /// The peer uses SACK.
    pub sack: bool,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing is known yet.
    Wait,
    /// Send new data, up to two segments, and wait.
    SendNew,
    /// Nothing was lost: undo.
    Spurious,
    /// Something was: recover as usual.
    Genuine,
}

/// RFC 5682 §3.1 with SACK; without, the caller counts as `original` only what no retransmission can have
/// made acknowledgeable, and it is §2.1.
pub fn judge(state: Frto, seen: Seen) -> Verdict {
    match state {
        Frto::Off => Verdict::Wait,
        // §3.1 step 3b, §2.1 step 3b.
        _ if seen.original => Verdict::Spurious,
        _ if seen.complete => Verdict::Genuine,
        // §2.1 step 2b, §3.1 step 2b.
        Frto::Retransmitted if seen.advanced && seen.can_send_new => Verdict::SendNew,
        Frto::Retransmitted if seen.advanced => Verdict::Genuine,
        // §2.1 step 2a. With SACK duplicates before the acknowledgement of the retransmission are waited
        // out (§3.1 step 2).
        Frto::Retransmitted if seen.duplicate && !seen.sack => Verdict::Genuine,
        Frto::Retransmitted => Verdict::Wait,
        // §2.1 step 3a, §3.1 step 3a.
        Frto::NewData if seen.duplicate => Verdict::Genuine,
        Frto::NewData => Verdict::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Seen = Seen {
        advanced: false,
        complete: false,
        original: false,
        duplicate: false,
        can_send_new: true,
        sack: true,
    };

    // RFC 5682 §3.1.
    #[test]
    fn steps_of_the_algorithm() {
        use Frto::*;
        let advanced = Seen { advanced: true, ..NOTHING };
        assert_eq!(judge(Off, Seen { original: true, ..advanced }), Verdict::Wait);
        assert_eq!(judge(Retransmitted, advanced), Verdict::SendNew);
        let no_data = Seen { can_send_new: false, ..advanced };
        assert_eq!(judge(Retransmitted, no_data), Verdict::Genuine);
        assert_eq!(judge(Retransmitted, Seen { complete: true, ..advanced }), Verdict::Genuine);
        let duplicate = Seen { duplicate: true, ..NOTHING };
        assert_eq!(judge(Retransmitted, duplicate), Verdict::Wait);
        assert_eq!(judge(Retransmitted, Seen { sack: false, ..duplicate }), Verdict::Genuine);
        assert_eq!(judge(NewData, Seen { duplicate: true, ..NOTHING }), Verdict::Genuine);
        for state in [Retransmitted, NewData] {
            assert_eq!(judge(state, Seen { original: true, ..advanced }), Verdict::Spurious);
        }
    }
}

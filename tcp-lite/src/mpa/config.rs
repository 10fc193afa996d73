//! What an operator chooses about MPA, and what two ends agree on.

use super::peer::Peer;
use core::time::Duration;
use ddp::enhanced::{Agreed, Enhanced};

/// The forms of the Startup Phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Revision {
    /// Revision 0 of the first draft: Start Keys of 16 bytes; no private data, no reject; DDP
    /// version 0.
    Draft,
    /// Request and reply frames with Rev 0 (RFC 5044 appendix C).
    Zero,
    /// Request and reply frames with Rev 1 (RFC 5044).
    One,
    /// Request and reply frames with Rev 2 (RFC 6581): an initiator's carry the enhanced data, a
    /// responder's do if the request did.
    Two,
}

impl Revision {
    /// The Rev field.
    pub fn number(self) -> u8 {
        match self {
            Revision::Draft | Revision::Zero => 0,
            Revision::One => 1,
            Revision::Two => 2,
        }
    }

    /// True for both forms of revision 0, whose FPDUPTR may count from a marker before the header.
    pub fn is_zero(self) -> bool {
        self.number() == 0
    }
}

/// A set of [`Revision`]s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revisions {
    /// [`Revision::Draft`].
    pub draft: bool,
    /// [`Revision::Zero`].
    pub zero: bool,
    /// [`Revision::One`].
    pub one: bool,
    /// [`Revision::Two`].
    pub two: bool,
}

impl Revisions {
    /// All of them.
    pub const ALL: Revisions = Revisions { draft: true, zero: true, one: true, two: true };
    /// None of them.
    pub const NONE: Revisions = Revisions { draft: false, zero: false, one: false, two: false };

    /// True when `revision` is one of them.
    pub fn contains(self, revision: Revision) -> bool {
        match revision {
            Revision::Draft => self.draft,
            Revision::Zero => self.zero,
            Revision::One => self.one,
            Revision::Two => self.two,
        }
    }
}

/// What to do with an FPDU that is next in order and has a wrong CRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnBadCrc {
    /// MPA error 2: the stream ends.
    Error,
    /// Drop the segment as if it had never arrived, so that the peer sends it again (RFC 5044 §8
    /// allows it), at most [`Config::bad_crc_tries`] times. An FPDU of which bytes were acknowledged is
    /// an error at once: they do not come again.
    Retransmit,
}

impl OnBadCrc {
    /// All of them with their words in configurations.
    pub const WORDS: [(&'static str, OnBadCrc); 2] =
        [("error", OnBadCrc::Error), ("retransmit", OnBadCrc::Retransmit)];
}

/// Configuration of MPA for the streams of one listener or of one active open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Revisions that a responder accepts, and that an initiator accepts in the reply.
    pub revisions: Revisions,
    /// Revision with which an initiator opens.
    pub initiate: Revision,
    /// Whether this end asks for markers in what it receives (bit M).
    pub markers: bool,
    /// Whether this end asks for CRCs (bit C). Off takes effect only if the peer's is off too
    /// (RFC 5044 §4.4).
    pub crc: bool,
    /// How long the start-up may take, from the TCP connection to the last start-up frame.
    pub startup_timeout: Duration,
    /// Largest FPDU to receive, in bytes with markers; one of it can always be held. From 1024 on.
    pub max_fpdu: u32,
    /// Bytes that the stream may hold ahead of a gap. Without markers the receive window grows no
    /// further than this.
    pub hold_limit: u32,
    /// What to do about a wrong CRC in order.
    pub on_bad_crc: OnBadCrc,
    /// How often an FPDU with a wrong CRC in order is asked for again before it is an error, with
    /// [`OnBadCrc::Retransmit`]. Also bounds what is spent on FPDUs ahead of a gap whose CRCs are wrong
    /// again and again: this many times `max_fpdu` bytes, counted as at least once.
    pub bad_crc_tries: u8,
    /// What revision 2 negotiates besides the read depths.
    pub enhanced: Enhanced,
    /// Who the peers are, as far as they need to be treated apart.
    pub peer: Peer,
    /// Whether an open with revision 2 that the peer answers by closing the connection is tried once
    /// more with revision 1, on a new connection (RFC 6581 §10). For the owner of the endpoint to act on.
    pub retry_rev1: bool,
}

impl Config {
    /// Bit M of what this end sends: not to peers that have no markers.
    pub fn asks_for_markers(&self) -> bool {
        self.markers && self.peer.has_markers()
    }
}

impl Default for Config {
    /// All revisions, opening with revision 1 and without a retry; markers and CRC on; 10 s; FPDUs up to 64 KiB;
    /// 4 MiB held ahead of a gap, as much as TCP's default window; a wrong CRC is an error.
    fn default() -> Self {
        Config {
            revisions: Revisions::ALL,
            initiate: Revision::One,
            markers: true,
            crc: true, // RFC 5044 §4.4: the default is to use CRCs
            startup_timeout: Duration::from_secs(10),
            max_fpdu: 64 * 1024,
            hold_limit: 4 << 20,
            on_bad_crc: OnBadCrc::Error,
            bad_crc_tries: 5,
            enhanced: Enhanced::default(),
            peer: Peer::Standard,
            retry_rev1: false,
        }
    }
}

/// What the two ends have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// The revision of the reply.
    pub revision: Revision,
    /// Markers in what this end sends: the peer's M.
    pub markers_tx: bool,
    /// Markers in what this end receives: this end's M.
    pub markers_rx: bool,
    /// CRCs are generated and checked, in both directions.
    pub crc: bool,
    /// Read depths and ready-to-receive message, if they were negotiated.
    pub agreed: Option<Agreed>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_have_their_numbers_and_are_chosen_one_by_one() {
        let all = [Revision::Draft, Revision::Zero, Revision::One, Revision::Two];
        assert_eq!(all.map(Revision::number), [0, 0, 1, 2]);
        assert_eq!(all.map(Revision::is_zero), [true, true, false, false]);
        for one in all {
            let only = Revisions {
                draft: one == Revision::Draft,
                zero: one == Revision::Zero,
                one: one == Revision::One,
                two: one == Revision::Two,
            };
            assert_eq!(
                all.map(|revision| only.contains(revision)),
                all.map(|revision| revision == one)
            );
        }
        assert!(all.into_iter().all(|revision| Revisions::ALL.contains(revision)));
        assert!(!all.into_iter().any(|revision| Revisions::NONE.contains(revision)));
    }

    #[test]
    fn markers_are_asked_of_peers_that_have_them() {
        let asks = |markers, peer| Config { markers, peer, ..Config::default() }.asks_for_markers();
        assert!(
            asks(true, Peer::Standard) && !asks(true, Peer::Siw) && !asks(false, Peer::Standard)
        );
    }
}

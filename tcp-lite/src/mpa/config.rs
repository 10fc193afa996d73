//! Configuration of MPA, and the parameters that two ends negotiate.

use super::peer::Peer;
use core::time::Duration;
use ddp::enhanced::{Agreement, Enhanced};

/// Form of the Startup Phase: frame format and revision.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Revision {
    /// Revision 0 of the first draft: Start Keys of 16 bytes; no private data, no reject; DDP version 0.
    Draft,
    /// Request and reply frames with Rev 0 (RFC 5044 appendix C).
    Zero,
    /// Request and reply frames with Rev 1 (RFC 5044).
    One,
    /// Request and reply frames with Rev 2 (RFC 6581). This end's requests carry enhanced data. A reply carries
    /// enhanced data if the request does.
    Two,
}

impl Revision {
    /// Returns the value of the Rev field.
    pub fn number(self) -> u8 {
        match self {
            Revision::Draft | Revision::Zero => 0,
            Revision::One => 1,
            Revision::Two => 2,
        }
    }

    /// Returns true for both forms of revision 0. In these forms, the receiver accepts two values of a marker's
    /// FPDUPTR, because the first draft permits two readings. FPDUPTR counts the bytes to the marker either from the
    /// FPDU's length field or from another marker directly before that field.
    pub fn is_zero(self) -> bool {
        self.number() == 0
    }
}

/// A set of [`Revision`]s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revisions {
    /// True if the set contains [`Revision::Draft`].
    pub draft: bool,
    /// True if the set contains [`Revision::Zero`].
    pub zero: bool,
    /// True if the set contains [`Revision::One`].
    pub one: bool,
    /// True if the set contains [`Revision::Two`].
    pub two: bool,
}

impl Revisions {
    /// The set of all revisions.
    pub const ALL: Revisions = Revisions { draft: true, zero: true, one: true, two: true };
    /// The empty set.
    pub const NONE: Revisions = Revisions { draft: false, zero: false, one: false, two: false };

    /// Returns true if the set contains `revision`.
    pub fn contains(self, revision: Revision) -> bool {
        match revision {
            Revision::Draft => self.draft,
            Revision::Zero => self.zero,
            Revision::One => self.one,
            Revision::Two => self.two,
        }
    }
}

/// Reaction to a wrong CRC in the next FPDU in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadCrcPolicy {
    /// Ends the stream with MPA error 2.
    Error,
    /// Drops the segment as if it were lost, so that the peer retransmits it (allowed by RFC 5044 §8). Drops an FPDU at
    /// most [`Config::bad_crc_tries`] times. If TCP has acknowledged bytes of the FPDU, the peer does not retransmit
    /// them, and the stream ends at once.
    Retransmit,
}

impl BadCrcPolicy {
    /// All values with their names in configurations.
    pub const NAMES: [(&'static str, BadCrcPolicy); 2] =
        [("error", BadCrcPolicy::Error), ("retransmit", BadCrcPolicy::Retransmit)];
}

/// Configuration of MPA for the streams of a listener or of an active open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Revisions that a responder accepts in a request, and an initiator in a reply.
    pub revisions: Revisions,
    /// Revision of an initiator's request.
    pub initiate: Revision,
    /// True if this end requests markers in received FPDUs (bit M).
    pub markers: bool,
    /// True if this end requests CRCs (bit C). False takes effect only if the peer's bit is clear, too (RFC 5044 §4.4).
    pub crc: bool,
    /// Time-out of the start-up, from the establishment of the TCP connection to the last start-up frame. For a
    /// responder in the peer-to-peer model, the time-out includes the ready-to-receive message.
    pub startup_timeout: Duration,
    /// Largest FPDU to receive, in bytes with markers, at least 1024. There is always room to hold the next
    /// FPDU in order.
    pub max_fpdu: u32,
    /// Maximum bytes held beyond a gap, per stream. Without markers this value also limits the receive window.
    pub hold_limit: u32,
    /// Reaction to a wrong CRC in the next FPDU in order.
    pub on_bad_crc: BadCrcPolicy,
    /// With [`BadCrcPolicy::Retransmit`]: maximum number of times that the next FPDU in order is dropped because of a
    /// wrong CRC or a length above `max_fpdu`. A further fault of that FPDU ends the stream. With either policy, also
    /// bounds the verification of FPDUs beyond a gap that are invalid or that DDP refuses: to this number (at least 1)
    /// times `max_fpdu` bytes.
    pub bad_crc_tries: u8,
    /// Parameters that revision 2 negotiates besides the read depths.
    pub enhanced: Enhanced,
    /// Kind of peer. Selects the deviations from the specifications that this end allows for.
    pub peer: Peer,
    /// True if a revision 2 request that the peer answers by closing is retried once with revision 1, on a new
    /// connection (RFC 6581 §10). The endpoint's owner performs the retry.
    pub retry_rev1: bool,
}

impl Config {
    /// Returns bit M of this end's start-up frame: false for peers that reject markers, otherwise `markers`.
    pub fn requests_markers(&self) -> bool {
        self.markers && self.peer.has_markers()
    }
}

impl Default for Config {
    /// Returns these defaults: all revisions accepted, revision 1 requested, no retry. Markers and CRC on; start-up
    /// time-out 10 s; FPDUs up to 64 KiB; 4 MiB held beyond a gap, as much as TCP's default window. A wrong CRC is an
    /// error.
    fn default() -> Self {
        Config {
            revisions: Revisions::ALL,
            initiate: Revision::One,
            markers: true,
            crc: true, // RFC 5044 §4.4: the default is to use CRCs
            startup_timeout: Duration::from_secs(10),
            max_fpdu: 64 * 1024,
            hold_limit: 4 << 20,
            on_bad_crc: BadCrcPolicy::Error,
            bad_crc_tries: 5,
            enhanced: Enhanced::default(),
            peer: Peer::Standard,
            retry_rev1: false,
        }
    }
}

/// Negotiated parameters of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Form and revision of the reply.
    pub revision: Revision,
    /// True if this end sends markers (the peer's bit M).
    pub markers_tx: bool,
    /// True if this end receives markers (its own bit M).
    pub markers_rx: bool,
    /// True if CRCs are generated and checked, in both directions.
    pub crc: bool,
    /// Read depths and ready-to-receive message, if negotiated.
    pub agreed: Option<Agreement>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_have_their_numbers_and_are_selected_independently() {
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
    fn markers_are_requested_if_peer_supports_them() {
        let asks = |markers, peer| Config { markers, peer, ..Config::default() }.requests_markers();
        assert!(
            asks(true, Peer::Standard) && !asks(true, Peer::Siw) && !asks(false, Peer::Standard)
        );
    }
}

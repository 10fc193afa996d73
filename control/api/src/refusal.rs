//! Reasons for refusing a stream, as carried in the private data of the reject: UTF-8 text, a word
//! and a sentence (`docs/protocol.md` §1).
//!
//! ```text
//!   listener_full: the listener has 64 streams, the most that limits.streams allows
//!   ^ word         ^ sentence
//! ```
//!
//! A peer's text with control characters is not displayed. Other text is cut to [`MAX_LEN`] bytes.

use std::fmt;

use config::Transport;

use crate::UlpChoice;

/// Maximum length of the private data of a reject, bytes. Every kind of peer accepts this length, together with the 4
/// bytes of enhanced connection data (RFC 6581 §6).
pub const MAX_LEN: usize = 200;

base::explained! {
    /// Kinds of refusal. A peer's refusal with an unknown word is displayed unchanged. The `remedy` is for the operator
    /// of the refusing end.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum RefusalKind {
        /// The listener has reached its maximum number of streams.
        #[explain("listener_full",
            cause = "More peers than `streams` in `[listener.limits]`, or streams of peers that have disappeared and \
                     not timed out yet.",
            remedy = "Raise `streams` in `[listener.limits]`, or close streams: `ddpctl streams`.")]
        ListenerFull,
        /// The peer has reached its maximum number of streams with the listener.
        #[explain("peer_full",
            cause = "One address has `streams_per_peer` streams of the listener: a leak in its program, or a NAT.",
            remedy = "Raise `streams_per_peer` in `[listener.limits]`, or close streams of this peer: `ddpctl \
                      streams`.")]
        PeerFull,
        /// The appliance has reached its maximum number of streams.
        #[explain("appliance_full",
            cause = "All listeners together have reached `streams` of `[limits]`.",
            remedy = "Raise `streams` in `[limits]`, or close streams: `ddpctl streams`.")]
        ApplianceFull,
        /// Other streams use the part of a region that the stream needs.
        #[explain("region_taken",
            cause = "Each stream of the listener has a part of its region, and all parts are in use or still being \
                     cleared.",
            remedy = "Close a stream that has a part of the region, or lower `streams` in `[listener.limits]`.")]
        RegionTaken,
        /// The appliance accepts no new streams.
        #[explain("draining",
            cause = "`ddpctl drain`, or the appliance stops.",
            remedy = "`ddpctl undrain` accepts new streams again, unless the appliance stops.")]
        Draining,
        /// The peer speaks bare DDP and the listener RDMAP, or the reverse.
        #[explain("wrong_ulp",
            cause = "The peer's scheme or program does not fit `ulp` of the listener.",
            remedy = "Have the peer use the listener's `ulp` (with ddpctl `tcp://` for bare DDP, `rdmap://` for \
                      RDMAP), or change `ulp` of the listener.")]
        WrongUlp,
        /// The listener was removed while the peer connected.
        #[explain("listener_removed",
            cause = "`ddpctl listeners remove` or a reload, at the moment of the connection.",
            remedy = "Add the listener again.")]
        ListenerRemoved,
        /// Memory for the stream is exhausted.
        #[explain("no_memory",
            cause = "Memory for the stream's buffers or its part of a region would exceed `memory` of `[limits]`, or \
                     the machine has no more.",
            remedy = "See the event `warning`, and the memory of the machine.")]
        NoMemory,
    }
}

impl RefusalKind {
    /// Returns the word used in private data, events and counters.
    pub fn as_str(self) -> &'static str {
        self.name()
    }

    /// Returns the remedy for the operator of the refusing end.
    pub fn local_hint(self) -> &'static str {
        self.explanation().remedy
    }

    /// Returns the remedy for the operator of the refused end.
    pub fn peer_hint(self, refused: RefusedStream) -> &'static str {
        match self {
            RefusalKind::ListenerFull | RefusalKind::ApplianceFull => {
                "try again when streams have ended; the peer's operator can raise its limits.streams"
            }
            RefusalKind::PeerFull => {
                "close other streams from this address; the peer's operator can raise limits.streams_per_peer"
            }
            RefusalKind::RegionTaken => "try again when the stream that has the region has ended",
            RefusalKind::Draining => {
                "use another appliance, or try again when the peer takes streams again: it drains, or stops"
            }
            RefusalKind::WrongUlp => refused.wrong_ulp_hint(),
            RefusalKind::ListenerRemoved => "ask the peer's operator for the port to use",
            RefusalKind::NoMemory => "ask the peer's operator for memory",
        }
    }
}

/// Properties of the refused stream that determine the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedStream {
    /// A stream of the appliance.
    Appliance {
        /// Protocol above DDP.
        ulp: UlpChoice,
        /// Transport below DDP.
        transport: Transport,
    },
    /// A stream over kernel sockets: bare DDP over TCP.
    Kernel,
}

impl RefusedStream {
    /// Returns the remedy for a stream whose ULP differs from the listener's. Commands that need RDMAP cannot use a
    /// listener with bare DDP, whatever the scheme of the URL.
    fn wrong_ulp_hint(self) -> &'static str {
        match self {
            RefusedStream::Appliance { ulp: UlpChoice::Ddp, transport: Transport::Tcp } => {
                "the listener has ulp = \"rdmap\": write rdmap:// instead of tcp://"
            }
            RefusedStream::Appliance { ulp: UlpChoice::Ddp, transport: Transport::Sctp } => {
                "the listener has ulp = \"rdmap\": write rdmap+sctp:// instead of sctp://"
            }
            RefusedStream::Appliance { ulp: UlpChoice::Rdmap, transport: Transport::Tcp } => {
                "the listener has ulp = \"ddp\": put, send, connect and bench write reach it with tcp://; get, ping, atomics \
                 and bench read need a listener with ulp = \"rdmap\", on another port"
            }
            RefusedStream::Appliance { ulp: UlpChoice::Rdmap, transport: Transport::Sctp } => {
                "the listener has ulp = \"ddp\": put, send, connect and bench write reach it with sctp://; get, ping, \
                 atomics and bench read need a listener with ulp = \"rdmap\", on another port"
            }
            RefusedStream::Kernel => {
                "the listener has ulp = \"rdmap\", and --kernel has bare DDP only: use a listener with ulp = \"ddp\", or \
                 leave out --kernel and write rdmap://"
            }
        }
    }
}

/// The reason why a stream is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Kind of the refusal; `None` if the text does not begin with a known word.
    pub kind: Option<RefusalKind>,
    /// Reason in one sentence; the whole text if the kind is unknown.
    pub sentence: String,
}

impl Refusal {
    /// Creates a refusal of a known kind.
    pub fn new(kind: RefusalKind, sentence: impl Into<String>) -> Self {
        Refusal { kind: Some(kind), sentence: sentence.into() }
    }

    /// Encodes the refusal as private data, at most [`MAX_LEN`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        truncate(&self.to_string()).as_bytes().to_vec()
    }

    /// Decodes the private data of a peer's reject. Returns `None` if the data are empty, are not UTF-8 or contain a
    /// control character.
    pub fn decode(private_data: &[u8]) -> Option<Refusal> {
        // Some peers pad private data with zeros.
        let end = private_data.iter().rposition(|byte| *byte != 0)? + 1;
        let text = std::str::from_utf8(&private_data[..end]).ok()?;
        if text.chars().any(char::is_control) {
            return None;
        }
        let text = truncate(text);
        let known = text.split_once(": ").and_then(|(word, sentence)| {
            let kind = RefusalKind::ALL.into_iter().find(|kind| kind.as_str() == word)?;
            Some(Refusal::new(kind, sentence))
        });
        Some(known.unwrap_or_else(|| Refusal { kind: None, sentence: text.to_owned() }))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kind) = self.kind {
            write!(f, "{}: ", kind.as_str())?;
        }
        f.write_str(&self.sentence)
    }
}

/// Returns at most [`MAX_LEN`] bytes of a text, cut at a character boundary.
fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LEN)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: RefusedStream =
        RefusedStream::Appliance { ulp: UlpChoice::Ddp, transport: Transport::Tcp };

    /// No hint recommends the scheme that was refused.
    #[test]
    fn wrong_ulp_hint_names_another_scheme_or_listener() {
        let hint = |ulp, transport| {
            RefusalKind::WrongUlp.peer_hint(RefusedStream::Appliance { ulp, transport })
        };
        let bare = hint(UlpChoice::Ddp, Transport::Tcp);
        assert!(bare.contains("write rdmap:// instead of tcp://"), "{bare}");
        let bare = hint(UlpChoice::Ddp, Transport::Sctp);
        assert!(bare.contains("write rdmap+sctp:// instead of sctp://"), "{bare}");
        for (transport, scheme) in [(Transport::Tcp, "tcp://"), (Transport::Sctp, "sctp://")] {
            let rdmap = hint(UlpChoice::Rdmap, transport);
            assert!(rdmap.contains(&format!("reach it with {scheme};")), "{rdmap}");
            assert!(rdmap.contains("get, ping") && !rdmap.contains("rdmap://"), "{rdmap}");
        }
        let kernel = RefusalKind::WrongUlp.peer_hint(RefusedStream::Kernel);
        assert!(kernel.contains("leave out --kernel") && !kernel.contains("tcp://"), "{kernel}");
    }

    #[test]
    fn refusal_round_trips_through_private_data() {
        for kind in RefusalKind::ALL {
            let refusal = Refusal::new(kind, "the listener has 4 streams");
            assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
            assert!(!kind.local_hint().is_empty() && !kind.peer_hint(BARE).is_empty());
        }
        let full = Refusal::new(RefusalKind::ListenerFull, "it has 4").encode();
        assert_eq!(full, b"listener_full: it has 4");
    }

    #[test]
    fn encoded_refusal_fits_shortest_reject() {
        let long = Refusal::new(RefusalKind::NoMemory, "ä".repeat(300)).encode();
        assert_eq!(long.len(), MAX_LEN - 1, "cut at a character boundary");
        assert!(std::str::from_utf8(&long).is_ok());
    }

    #[test]
    fn foreign_private_data_is_shown_if_text() {
        let decode = |bytes: &[u8]| Refusal::decode(bytes).map(|refusal| refusal.to_string());
        assert_eq!(decode(b"too many clients\0\0\0").as_deref(), Some("too many clients"));
        assert_eq!(decode(b"unheard_of: why").as_deref(), Some("unheard_of: why"));
        assert_eq!(decode(&[b'x'; 512]), Some("x".repeat(MAX_LEN)));
        for bytes in [&b""[..], b"\0\0", b"\x1b[2J", b"a\nb", &[0xff, 0xfe], "\u{9b}2J".as_bytes()]
        {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
    }
}

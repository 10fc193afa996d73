//! What `ulp = "rdmap"` adds to a `[[listener]]`: its service, the depths of Reads, and the kind of peer.

use tcp_lite::mpa::Peer;

use super::reader::Section;
use super::types::{Delivery, QueueSection};
use super::values::*;

/// What speaks above DDP on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ulp {
    /// Nothing: bare DDP.
    Ddp,
    /// RDMAP (RFC 5040), for verbs programs.
    Rdmap(RdmapSection),
}

impl Ulp {
    /// The word that stands for it in the file and in the API.
    pub fn word(&self) -> &'static str {
        match self {
            Ulp::Ddp => "ddp",
            Ulp::Rdmap(_) => "rdmap",
        }
    }

    /// What RDMAP adds.
    pub fn rdmap(&self) -> Option<&RdmapSection> {
        match self {
            Ulp::Ddp => None,
            Ulp::Rdmap(section) => Some(section),
        }
    }
}

/// RDMAP as a listener speaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmapSection {
    /// What the listener does for its peers.
    pub service: ServiceKind,
    /// Reads and atomics of a peer that await their response at one time, 0 to 1024.
    pub ird: u16,
    /// The same of ours, 0 to 1024.
    pub ord: u16,
    /// The kind of peer.
    pub peer: Peer,
    /// Octets of the first Write of perftest's write latency test, which names no size.
    pub message_size: u32,
}

/// What a listener does for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// Advertises its regions; peers write, read and do atomics.
    Region,
    /// Sends every Send back.
    Echo,
    /// Throws Sends away.
    Sink,
    /// The server of librdmacm's rping.
    Rping,
    /// The servers of perftest with `-R`.
    Perftest,
}

impl ServiceKind {
    /// All of them with their words.
    pub const WORDS: [(&'static str, ServiceKind); 5] = [
        ("region", ServiceKind::Region),
        ("echo", ServiceKind::Echo),
        ("sink", ServiceKind::Sink),
        ("rping", ServiceKind::Rping),
        ("perftest", ServiceKind::Perftest),
    ];

    /// The word that stands for it in the file and in the API.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kind)| *kind == self).map_or("region", |(word, _)| word)
    }

    /// Each stream has a piece of the listener's one region for itself, which is not advertised.
    pub fn has_slots(self) -> bool {
        matches!(self, ServiceKind::Rping | ServiceKind::Perftest)
    }

    /// The receive buffers where the file names none.
    fn default_queue(self) -> Option<QueueSection> {
        let (buffers, buffer_size) = match self {
            ServiceKind::Region => return None,
            ServiceKind::Echo | ServiceKind::Sink => (64, 64 << 10),
            ServiceKind::Rping => (8, 64),
            // As many as the clients of ib_send_bw believe the server has.
            ServiceKind::Perftest => (512, 64 << 10),
        };
        let deliver_to = self.delivery().unwrap_or(Delivery::Discard);
        Some(QueueSection { qn: 0, buffers, buffer_size, deliver_to })
    }

    /// Where Sends go, unless the file says it.
    pub(super) fn delivery(self) -> Option<Delivery> {
        match self {
            ServiceKind::Region => None,
            ServiceKind::Echo => Some(Delivery::Echo),
            ServiceKind::Sink | ServiceKind::Rping | ServiceKind::Perftest => {
                Some(Delivery::Discard)
            }
        }
    }
}

/// Most Reads either way: each takes a record, and a peer's also a buffer.
pub const MAX_DEPTH: u16 = 1024;

/// Reads `ulp` and what belongs to it.
pub(super) fn ulp(section: &mut Section<'_, '_>) -> Ulp {
    let word = section.or("ulp", "ddp", one_of(&[("ddp", "ddp"), ("rdmap", "rdmap")]));
    if word == "ddp" {
        let keys = ["service", "ird", "ord", "peer", "message_size"];
        section.only_for(&keys, "for ulp \"ddp\"");
        return Ulp::Ddp;
    }
    let service = section.or("service", ServiceKind::Region, one_of(&ServiceKind::WORDS));
    if service != ServiceKind::Perftest {
        let reason = format!("for service \"{}\"", service.word());
        section.only_for(&["message_size"], &reason);
    }
    Ulp::Rdmap(RdmapSection {
        service,
        ird: section.or("ird", 32, int(0, MAX_DEPTH)),
        ord: section.or("ord", 32, int(0, MAX_DEPTH)),
        peer: section.or(
            "peer",
            Peer::Standard,
            one_of(&Peer::ALL.map(|peer| (peer.name(), peer))),
        ),
        message_size: section.or("message_size", 4096, size32(1, 16 << 20)),
    })
}

/// What the parts of an RDMAP listener say against each other; adds the default receive buffers.
pub(super) fn complete(
    section: &Section<'_, '_>,
    rdmap: &RdmapSection,
    markers: bool,
    private_data_limit: u16,
    queues: &mut Vec<QueueSection>,
) {
    if queues.iter().any(|queue| queue.qn != 0) {
        section.fail(
            "queue",
            "has another number than 0: Sends have no other queue with ulp \"rdmap\"",
        );
    }
    if queues.is_empty() {
        queues.extend(rdmap.service.default_queue());
    }
    if markers && !rdmap.peer.has_markers() {
        section.fail("markers", "is true, but peer \"siw\" knows no markers: write false");
    }
    let limit = rdmap.peer.private_data_limit();
    if usize::from(private_data_limit) > limit {
        let peer = rdmap.peer.name();
        let message =
            format!("is {private_data_limit}, but peer \"{peer}\" takes {limit}: lower it");
        section.fail("private_data_limit", message);
    }
}

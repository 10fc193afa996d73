//! Reads the keys that `ulp = "rdmap"` adds to a `[[listener]]`.

use tcp_lite::mpa::Peer;

use super::reader::Section;
use super::tables::listener;
use super::types::*;

/// Reads `ulp` and the keys that RDMAP adds.
pub(super) fn read_ulp(section: &mut Section<'_, '_>) -> Ulp {
    let word = section.or_default("ulp", "ddp", listener::ulp());
    if word == "ddp" {
        let keys = ["service", "ird", "ord", "peer", "message_size"];
        section.refuse_keys(&keys, "for ulp \"ddp\"");
        return Ulp::Ddp;
    }
    let service = section.or_default("service", ServiceKind::Region, listener::service());
    if service != ServiceKind::Perftest {
        let reason = format!("for service \"{}\"", service.as_str());
        section.refuse_keys(&["message_size"], &reason);
    }
    Ulp::Rdmap(RdmapSection {
        service,
        ird: section.or_default("ird", 32, listener::ird()),
        ord: section.or_default("ord", 32, listener::ord()),
        peer: section.or_default("peer", Peer::Standard, listener::peer()),
        message_size: section.or_default("message_size", 4096, listener::message_size()),
    })
}

/// Reports conflicts between the keys of an RDMAP listener. Adds the default receive buffers.
pub(super) fn check_rdmap_keys(
    section: &Section<'_, '_>,
    rdmap: &RdmapSection,
    markers: bool,
    private_data_limit: u16,
    queues: &mut Vec<QueueSection>,
) {
    if queues.iter().any(|queue| queue.qn != 0) {
        section.report(
            "queue",
            "has another number than 0: Sends have no other queue with ulp \"rdmap\"",
        );
    }
    if queues.is_empty() {
        queues.extend(rdmap.service.default_queue());
    }
    if markers && !rdmap.peer.has_markers() {
        section
            .report("markers", "is true, but peer \"siw\" does not support markers: write false");
    }
    let limit = rdmap.peer.private_data_limit();
    if usize::from(private_data_limit) > limit {
        let peer = rdmap.peer.name();
        let message = format!(
            "is {private_data_limit}, but peer \"{peer}\" accepts at most {limit}: lower it"
        );
        section.report("private_data_limit", message);
    }
}

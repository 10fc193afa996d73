//! From what layers count and know to the API's objects. Names are stable.

use dataplane::{
    AssociationStats, CloseReason, CounterKind, Counters as WorkerCounters,
    StreamInfo as WorkerStream, StreamParams, StreamStats,
};
use ddp::ErrorCode;
use ddp::last_message::LastMessage;
use ddp::rdmap;
use tcp_lite::endpoint::EndpointStats;
use wire::rdmap::terminate::LAYER_RDMAP;

use super::listeners::Listener;
use super::regions::Region;
use super::sctp_counters::{of_association, of_session};
use super::streams::Stream;
use crate::advert::Advertised;
use crate::api::{
    AssociationInfo, Counters, ListenerInfo, MpaInfo, PeerRegion, QueueInfo, RegionInfo, StreamId,
    StreamInfo,
};
use crate::config::{Backing, Config, Delivery, access_word};
use crate::transport::Transport;

/// What streams did in all: sums, and of maxima the largest.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    counters: Counters,
    errors: Counters,
}

impl Totals {
    /// Adds a stream that has ended.
    pub(super) fn add(&mut self, stats: &StreamStats, reason: &CloseReason) {
        self.add_live(stats);
        if let Some(numbers) = reason.numbers() {
            *self.errors.entry(error_name(reason.transport(), numbers)).or_default() += 1;
        }
    }

    /// Adds what a stream that goes on did so far.
    pub(super) fn add_live(&mut self, stats: &StreamStats) {
        match stats {
            StreamStats::Tcp(stats) => merge(&mut self.counters, &tcp_counters(stats)),
            StreamStats::Sctp(stats, _) => merge(&mut self.counters, &of_session(stats)),
        }
    }

    /// Adds what an association did, ended or not.
    pub(super) fn add_association(&mut self, stats: &AssociationStats) {
        merge(&mut self.counters, &of_association(stats));
    }

    /// Adds other totals.
    pub(super) fn merge(&mut self, other: &Totals) {
        merge(&mut self.counters, &other.counters);
        for (name, value) in &other.errors {
            *self.errors.entry(name.clone()).or_default() += value;
        }
    }

    /// The sums, without what only holds now.
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Ends of streams by the error that ended them.
    pub(super) fn errors(&self) -> &Counters {
        &self.errors
    }
}

fn merge(into: &mut Counters, from: &Counters) {
    for (name, value) in from {
        let sum = into.entry(name.clone()).or_default();
        *sum = if name.ends_with("_max") { (*sum).max(*value) } else { *sum + value };
    }
}

/// `ddp_1_02` for RFC 5041 §7.2's 1/02, `rdmap_1_09` for RFC 5040 §4.8's 1/09, `mpa_2` for RFC 5044 §8's code 2,
/// `session_5` for RFC 6581 §8's code 5 over SCTP.
fn error_name(transport: dataplane::Transport, (layer, error_type, code): (u8, u8, u8)) -> String {
    match layer {
        ddp::LAYER_DDP => format!("ddp_{error_type}_{code:02}"),
        LAYER_RDMAP => format!("rdmap_{error_type}_{code:02x}"),
        _ if transport == dataplane::Transport::Sctp => format!("session_{code}"),
        _ => format!("mpa_{code}"),
    }
}

/// All counters of one stream; over SCTP its association's, too. `bytes` are octets.
pub(super) fn stream_counters(stats: &StreamStats) -> Counters {
    match stats {
        StreamStats::Tcp(stats) => tcp_counters(stats),
        StreamStats::Sctp(session, association) => {
            let mut counters = of_session(session);
            counters.extend(of_association(association));
            counters
        }
    }
}

fn tcp_counters(stats: &EndpointStats) -> Counters {
    let EndpointStats { tcp, mpa_rx, mpa_tx, ddp, rdmap } = stats;
    let mut counters = Counters::new();
    let mut put = |name: &str, value: u64| {
        counters.insert(name.to_owned(), value);
    };
    put("tcp_segments_in", tcp.segments_in);
    put("tcp_segments_out", tcp.segments_out);
    put("tcp_bytes_in", tcp.octets_in);
    put("tcp_bytes_out_of_order", tcp.octets_out_of_order);
    put("tcp_bytes_duplicate", tcp.octets_duplicate);
    put("tcp_bytes_refused", tcp.octets_refused);
    put("tcp_bytes_out", tcp.octets_out);
    put("tcp_bytes_acknowledged", tcp.octets_acknowledged);
    put("retransmitted_segments", tcp.segments_retransmitted);
    put("retransmitted_bytes", tcp.octets_retransmitted);
    put("tcp_acks_out", tcp.acks_out);
    put("tcp_duplicate_acks_in", tcp.duplicate_acks_in);
    put("tcp_fast_recoveries", tcp.fast_recoveries);
    put("tcp_timeouts", tcp.timeouts);
    put("tcp_segments_lost", tcp.segments_lost);
    put("tcp_tail_loss_probes", tcp.tail_loss_probes);
    put("tcp_tail_losses_repaired", tcp.tail_losses_repaired);
    put("tcp_undone_by_frto", tcp.undone_by_frto);
    put("tcp_undone_by_timestamp", tcp.undone_by_timestamp);
    put("tcp_undone_by_d_sack", tcp.undone_by_d_sack);
    put("tcp_d_sacks_in", tcp.d_sacks_in);
    put("tcp_d_sacks_ignored", tcp.d_sacks_ignored);
    put("tcp_d_sacks_out", tcp.d_sacks_out);
    put("tcp_paced_waits", tcp.paced_waits);
    put("tcp_window_probes", tcp.window_probes);
    put("tcp_keepalive_probes", tcp.keepalive_probes);
    put("tcp_challenge_acks", tcp.challenge_acks);
    put("tcp_ecn_marks_in", tcp.ecn_marks_in);
    put("tcp_ecn_reductions", tcp.ecn_reductions);
    put("tcp_path_mtu_reductions", tcp.path_mtu_reductions);
    put("tcp_path_mtu_raises", tcp.path_mtu_raises);
    put("tcp_path_mtu_probes", tcp.path_mtu_probes);
    put("tcp_path_mtu_probes_lost", tcp.path_mtu_probes_lost);
    put("tcp_path_mtu_black_holes", tcp.path_mtu_black_holes);
    put("mpa_fpdus_in", mpa_rx.fpdus);
    put("held_bytes_max", mpa_rx.held_max);
    put("unlocatable_bytes_max", mpa_rx.unlocatable_max);
    put("mpa_bytes_refused", mpa_rx.refused);
    put("mpa_bad_crc_dropped", mpa_rx.bad_crc_dropped);
    put("mpa_alignment_lost", mpa_rx.alignment_lost);
    put("mpa_bytes_discarded", mpa_rx.discarded);
    put("mpa_fpdus_out", mpa_tx.fpdus);
    put("mpa_segments_packed", mpa_tx.packed);
    put("mpa_segments_cut", mpa_tx.cut);
    put("mpa_bytes_kept_max", mpa_tx.kept_max);
    put_ulp(&mut counters, ddp, rdmap);
    counters
}

/// What DDP and RDMAP counted.
pub(super) fn put_ulp(counters: &mut Counters, ddp: &ddp::Counters, rdmap: &rdmap::Counters) {
    let mut put = |name: &str, value: u64| {
        counters.insert(name.to_owned(), value);
    };
    put("placed_in_order_bytes", ddp.placed_in_order_octets);
    put("placed_out_of_order_bytes", ddp.placed_out_of_order_octets);
    put("ddp_segments_in", ddp.segments_received);
    put("ddp_segments_refused", ddp.segments_refused);
    put("ddp_segments_ignored", ddp.segments_ignored);
    put("ddp_out_of_order_records_max", ddp.ooo_records_max);
    put("ddp_tagged_delivered", ddp.tagged_delivered);
    put("ddp_untagged_delivered", ddp.untagged_delivered);
    put("delivered_bytes", ddp.delivered_octets);
    put("ddp_segments_out", ddp.segments_sent);
    put("sent_bytes", ddp.sent_octets);
    put("ddp_messages_sent", ddp.messages_sent);
    put("ddp_messages_flushed", ddp.messages_flushed);
    for (code, count) in ErrorCode::ALL.into_iter().zip(ddp.errors) {
        if count > 0 {
            let numbers = (ddp::LAYER_DDP, code.error_type(), code.code());
            put(
                &format!("error_{}", error_name(dataplane::Transport::Tcp, numbers)),
                u64::from(count),
            );
        }
    }
    put("rdmap_sends_in", rdmap.sends_received);
    put("rdmap_immediates_in", rdmap.immediates_received);
    put("rdmap_writes_in", rdmap.writes_received);
    put("rdmap_written_bytes", rdmap.written_octets);
    put("rdmap_reads_in", rdmap.reads_received);
    put("rdmap_reads_served", rdmap.reads_served);
    put("rdmap_read_bytes_served", rdmap.read_octets_served);
    put("rdmap_atomics_served", rdmap.atomics_served);
    put("rdmap_invalidations", rdmap.invalidations);
    put("rdmap_completed", rdmap.completed);
    put("rdmap_flushed", rdmap.flushed);
    put("rdmap_read_bytes", rdmap.read_octets);
    put("rdmap_ord_waits", rdmap.ord_waits);
    put("rdmap_requests_max", rdmap.requests_max);
    put("rdmap_terminates_out", rdmap.terminates_sent);
    put("rdmap_terminates_in", rdmap.terminates_received);
    for (code, count) in rdmap::ErrorCode::ALL.into_iter().zip(rdmap.errors) {
        if count > 0 {
            let numbers = (LAYER_RDMAP, code.error_type(), code.code());
            put(&format!("error_{}", error_name(dataplane::Transport::Tcp, numbers)), count);
        }
    }
}

/// The same of a stream that lives, with what goes up and down.
fn live_counters(stats: &StreamStats) -> Counters {
    let mut counters = stream_counters(stats);
    let held = held(stats);
    counters.insert("held_bytes".into(), held.held);
    counters.insert("unlocatable_bytes".into(), held.unlocatable);
    counters
}

/// Octets that a stream holds now.
pub(super) struct Held {
    /// Beyond a gap.
    pub held: u64,
    /// Of these, such that could not be located.
    pub unlocatable: u64,
    /// Of what was sent, for retransmissions.
    pub kept: u64,
}

/// What a stream holds; over SCTP everything is placed when it arrives.
pub(super) fn held(stats: &StreamStats) -> Held {
    match stats {
        StreamStats::Tcp(stats) => Held {
            held: stats.mpa_rx.held,
            unlocatable: stats.mpa_rx.unlocatable,
            kept: stats.mpa_tx.kept,
        },
        StreamStats::Sctp(stats, _) => {
            Held { held: 0, unlocatable: 0, kept: stats.session.tx.kept }
        }
    }
}

/// What streams refused or threw away, by reason.
pub(super) fn stream_drops(totals: &Totals) -> Counters {
    const DROPS: [&str; 7] = [
        "tcp_bytes_duplicate",
        "tcp_bytes_refused",
        "mpa_bytes_refused",
        "mpa_bad_crc_dropped",
        "mpa_bytes_discarded",
        "ddp_segments_refused",
        "ddp_segments_ignored",
    ];
    let value = |name: &str| totals.counters.get(name).copied().unwrap_or(0);
    DROPS.iter().map(|name| ((*name).to_owned(), value(name))).collect()
}

/// A worker's counters, without its drops.
/// A worker's values of one kind.
pub(super) fn worker_values(counters: &WorkerCounters, wanted: CounterKind) -> Counters {
    let mut out = Counters::new();
    counters.for_each(|name, kind, _, value| {
        if kind == wanted {
            out.insert(name.to_owned(), value);
        }
    });
    out
}

/// A stream: what the control thread and, where it has been asked, what the worker knows.
pub(super) fn stream(
    id: ddp::StreamId,
    known: &Stream,
    found: Option<&WorkerStream>,
    listener: Option<String>,
    now: std::time::Instant,
) -> StreamInfo {
    let mut counters = found.map(|found| live_counters(&found.stats)).unwrap_or_default();
    if !known.rdmap {
        counters.retain(|name, _| !name.starts_with("rdmap_"));
    }
    StreamInfo {
        id: StreamId(id.0),
        worker: u32::from(id.worker()),
        listener,
        local: known.local.to_string(),
        remote: known.remote.to_string(),
        state: found.map_or(known.state.name(), |found| found.state).to_owned(),
        transport: transport(known.params.as_ref(), found),
        association: found.and_then(|found| found.association).map(|id| StreamId(id.0)),
        mulpdu: known.params.as_ref().map(|params| params.mulpdu() as u32),
        mpa: known.params.as_ref().and_then(mpa),
        regions: known.regions.clone(),
        peer_regions: known.peer_regions.iter().map(peer_region).collect(),
        age_seconds: now.duration_since(known.since).as_secs_f64(),
        counters,
    }
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn association(info: &dataplane::AssociationInfo) -> AssociationInfo {
    AssociationInfo {
        id: StreamId(info.association.0),
        worker: u32::from(info.association.worker()),
        local: info.local.to_string(),
        remote: info.remote.to_string(),
        udp: info.udp.map(|(local, remote)| [local, remote]),
        state: info.state.into(),
        sessions: info.sessions,
        streams: info.streams,
        path_mtu: info.path_mtu,
        round_trip_us: info.round_trip.map(micros),
        rto_us: micros(info.rto),
        cwnd: info.cwnd,
        in_flight: info.in_flight,
        peer_window: info.peer_window,
        unanswered: info.unanswered,
        counters: of_association(&info.stats),
    }
}

fn transport(params: Option<&StreamParams>, found: Option<&WorkerStream>) -> Transport {
    let is_sctp = matches!(params, Some(StreamParams::Sctp(_)))
        || found.is_some_and(|found| found.transport == dataplane::Transport::Sctp);
    if is_sctp { Transport::Sctp } else { Transport::Tcp }
}

fn mpa(params: &StreamParams) -> Option<MpaInfo> {
    let StreamParams::Tcp(params) = params else { return None };
    Some(MpaInfo {
        revision: params.revision.number(),
        markers_tx: params.markers_tx,
        markers_rx: params.markers_rx,
        crc: params.crc,
        mulpdu: params.mulpdu as u32,
    })
}

fn peer_region(region: &Advertised) -> PeerRegion {
    PeerRegion {
        name: region.name.clone(),
        stag: stag(region.stag),
        base_to: region.base_to.to_string(),
        size: region.len,
        access: access(region.remote_read, region.remote_write, region.remote_atomic),
    }
}

/// A region with the listeners that name it.
pub(super) fn region(region: &Region, listeners: Vec<String>) -> RegionInfo {
    let section = &region.section;
    let (backing, path) = match &section.backing {
        Backing::Anonymous => ("anonymous", None),
        Backing::Hugepages => ("hugepages", None),
        Backing::SharedMemory { object } => ("shared-memory", Some(object.clone())),
        Backing::File { path, .. } => ("file", Some(path.display().to_string())),
    };
    RegionInfo {
        name: section.name.clone(),
        size: region.len,
        backing: backing.into(),
        path,
        stag: stag(region.stag.0),
        base_to: section.base_to.to_string(),
        access: section.access_word().into(),
        shared: section.shared,
        bound_to: region.bound.filter(|s| *s != super::core::NOBODY).map(|s| StreamId(s.0)),
        locked: region.memory.is_locked(),
        listeners,
        placed: region.placed,
        messages: region.messages,
        configured: region.configured,
    }
}

/// A listener.
pub(super) fn listener(listener: &Listener, config: &Config) -> ListenerInfo {
    let section = &listener.section;
    let interface = config.interfaces.iter().find(|i| i.name == section.interface);
    let all = interface.map(|i| i.addresses.as_slice()).unwrap_or_default();
    let addresses = match section.address {
        Some(address) => vec![address],
        None => all.iter().map(|prefix| prefix.address).collect(),
    };
    let socket = |address| std::net::SocketAddr::new(address, section.port).to_string();
    let mpa = &section.mpa;
    let spoken = [(0, mpa.revision_0), (1, mpa.revision_1), (2, mpa.revision_2)];
    ListenerInfo {
        name: section.name.clone(),
        interface: section.interface.clone(),
        addresses: addresses.into_iter().map(socket).collect(),
        transport: section.transport,
        ulp: section.ulp.word().into(),
        service: section.ulp.rdmap().map(|rdmap| rdmap.service.word().into()),
        sessions: listener.serving.as_ref().map_or(0, |s| s.service.sessions() as u64),
        revisions: spoken.into_iter().filter(|(_, on)| *on).map(|(number, _)| number).collect(),
        markers: section.mpa.markers,
        crc: section.mpa.crc,
        regions: section.regions.clone(),
        queues: section.queues.iter().map(queue).collect(),
        streams: listener.ledger.streams(),
        max_streams: section.limits.streams,
        accepted: listener.accepted,
        refused: listener.refused,
        configured: listener.configured,
    }
}

fn queue(queue: &crate::config::QueueSection) -> QueueInfo {
    let deliver_to = match &queue.deliver_to {
        Delivery::Events => "events",
        Delivery::File { .. } => "file",
        Delivery::Echo => "echo",
        Delivery::Discard => "discard",
    };
    QueueInfo {
        qn: queue.qn,
        buffers: queue.buffers,
        buffer_size: queue.buffer_size,
        deliver_to: deliver_to.into(),
    }
}

/// Code and sentence of bare DDP's last message.
pub(super) fn last_message(octets: &[u8]) -> (String, String) {
    match LastMessage::parse(octets) {
        Ok(message) => {
            let code = format!("{}/{:02}", message.error_type, message.code);
            let what = match message.ddp_error() {
                Some(error) => error.to_string(),
                None => format!("layer {}, error {code}", message.layer),
            };
            (code, format!("the peer ends the stream: {what}"))
        }
        Err(error) => (String::new(), format!("the peer's last message cannot be read: {error}")),
    }
}

fn stag(stag: u32) -> String {
    format!("{stag:#010x}")
}

fn access(read: bool, write: bool, atomic: bool) -> String {
    access_word(read, write, atomic).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_sums_and_keep_maxima() {
        let mut stats = EndpointStats::default();
        stats.tcp.octets_retransmitted = 10;
        stats.mpa_rx.held_max = 7;
        let mut totals = Totals::default();
        totals.add(&StreamStats::Tcp(stats), &tcp_lite::endpoint::CloseReason::PeerReset.into());
        stats.mpa_rx.held_max = 5;
        totals.add_live(&StreamStats::Tcp(stats));
        let mut sum = Totals::default();
        sum.merge(&totals);
        assert_eq!(sum.counters()["retransmitted_bytes"], 20);
        assert_eq!(sum.counters()["held_bytes_max"], 7);
        assert_eq!(sum.errors()["mpa_1"], 1);
    }

    #[test]
    fn error_names_are_layer_and_code() {
        use dataplane::Transport::{Sctp, Tcp};
        assert_eq!(error_name(Tcp, (1, 2, 4)), "ddp_2_04");
        assert_eq!(error_name(Tcp, (0, 1, 9)), "rdmap_1_09");
        assert_eq!(error_name(Tcp, (2, 0, 3)), "mpa_3");
        assert_eq!(error_name(Sctp, (2, 0, 3)), "session_3");
    }

    #[test]
    fn every_drop_is_a_stream_counter() {
        let counters = stream_counters(&StreamStats::default());
        let totals = Totals::default();
        assert!(stream_drops(&totals).keys().all(|name| counters.contains_key(name)));
    }

    /// Every figure about placement that a stream has reaches its operator.
    #[test]
    fn a_living_stream_shows_where_its_octets_are() {
        let mut stats = EndpointStats::default();
        let rx = &mut stats.mpa_rx;
        (rx.held, rx.held_max, rx.unlocatable, rx.unlocatable_max) = (1, 2, 3, 4);
        (rx.refused, rx.alignment_lost, rx.bad_crc_dropped) = (5, 6, 7);
        (stats.ddp.placed_in_order_octets, stats.ddp.placed_out_of_order_octets) = (8, 9);
        let counters = live_counters(&StreamStats::Tcp(stats));
        let shown = [
            "held_bytes",
            "held_bytes_max",
            "unlocatable_bytes",
            "unlocatable_bytes_max",
            "mpa_bytes_refused",
            "mpa_alignment_lost",
            "mpa_bad_crc_dropped",
            "placed_in_order_bytes",
            "placed_out_of_order_bytes",
        ];
        assert_eq!(shown.map(|name| counters[name]), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        // A total of what goes up and down says nothing.
        assert!(!stream_counters(&StreamStats::Tcp(stats)).contains_key("held_bytes"));
    }

    /// Every figure of RDMAP reaches its operator too.
    #[test]
    fn what_a_stream_did_with_rdmap_is_shown() {
        let mut errors = [0; rdmap::ErrorCode::ALL.len()];
        errors[rdmap::ErrorCode::CannotInvalidate.index()] = 17;
        let stats = EndpointStats {
            rdmap: rdmap::Counters {
                sends_received: 1,
                immediates_received: 2,
                writes_received: 3,
                written_octets: 4,
                reads_received: 5,
                reads_served: 6,
                read_octets_served: 7,
                atomics_served: 8,
                invalidations: 9,
                completed: 10,
                flushed: 11,
                read_octets: 12,
                ord_waits: 13,
                requests_max: 14,
                terminates_sent: 15,
                terminates_received: 16,
                errors,
            },
            ..EndpointStats::default()
        };
        let counters = stream_counters(&StreamStats::Tcp(stats));
        let shown = counters.iter().filter(|(name, _)| name.starts_with("rdmap_"));
        let mut values: Vec<u64> = shown.map(|(_, &value)| value).collect();
        values.sort_unstable();
        assert_eq!(values, (1..=16).collect::<Vec<_>>());
        assert_eq!(counters["rdmap_read_bytes_served"], 7);
        assert_eq!(counters["error_rdmap_1_09"], 17);
    }

    #[test]
    fn a_last_message_reads_as_a_sentence() {
        let (code, reason) = last_message(&[1, 0x11, 2, 0, 0, 0, 0, 0]);
        assert_eq!(code, "1/02");
        assert!(reason.contains("STag not associated with the stream"), "{reason}");
        assert!(last_message(&[9]).1.contains("cannot be read"));
    }
}

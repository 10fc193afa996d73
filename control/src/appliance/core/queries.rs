//! Answers to queries: status, ports, workers, streams and counters.
//!
//! Status and workers are answered at once, from the control thread's state and the workers' shared counters. The
//! answers about ports, streams and the counters of streams follow when all workers have answered. `core::scrapes`
//! merges concurrent queries of the counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::explain::NoteKind;
use api::{
    ApiError, Counters, HistogramInfo, PortStats, Reply, Responder, SandboxInfo, Stats, Status,
    StreamInfo, WorkerInfo, WorkerStats,
};
use base::histogram::Counts;
use dataplane::{Command, DropCount, NeighbourInfo, StreamSelection};
use ddp::StreamId;

use super::Core;
use crate::appliance::counters::{self, Totals};
use crate::appliance::env::{Phase, api_id};
use crate::appliance::pending::{Continuation, StreamList, StreamsQuery};
use crate::appliance::ports::PortView;
use crate::appliance::streams::{LiveCounts, association};

/// Names of the stream totals that [`Stats::control`] always contains.
const STREAM_TOTALS: [&str; 9] = [
    "retransmitted_bytes",
    "retransmitted_segments",
    "placed_in_order_bytes",
    "placed_out_of_order_bytes",
    "held_bytes_max",
    "unlocatable_bytes_max",
    "mpa_alignment_lost",
    "delivered_bytes",
    "sent_bytes",
];

impl Core {
    pub(in crate::appliance) fn status(&self, now: Instant) -> Status {
        let state = match self.env.phase {
            Phase::Running if self.env.drained_by_operator => "draining",
            Phase::Running => "running",
            Phase::Draining { .. } | Phase::Stopping { .. } => "draining",
        };
        let (kinds, notes): (Vec<NoteKind>, Vec<String>) = self.notes(now).into_iter().unzip();
        Status {
            name: self.env.context.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            dpdk_version: self.env.context.dpdk_version.clone(),
            config: self.env.context.config.file.clone(),
            pid: std::process::id(),
            state: state.into(),
            uptime_seconds: now.duration_since(self.env.context.started).as_secs_f64(),
            hugepages: self.env.context.hugepages,
            workers: self.env.workers() as u32,
            ports: self.env.context.config.ports.len() as u32,
            regions: self.regions.len() as u32,
            listeners: self.listeners.len() as u32,
            streams: self.streams.established_count() as u32,
            streams_left: (state == "draining").then(|| self.streams.remaining() as u32),
            memory: self.env.budget.info(),
            notes,
            note_kinds: kinds.into_iter().map(|kind| kind.name().to_owned()).collect(),
            unusable: self.links.fault_sentences(),
            sandbox: sandbox_info(),
        }
    }

    /// Returns the current notes with their kinds: the operator's drain, faults, stalled streams.
    fn notes(&self, now: Instant) -> Vec<(NoteKind, String)> {
        let draining = self.drain_note().map(|note| (NoteKind::Draining, note));
        let stalled = self.streams.notes(now).into_iter().map(|note| (NoteKind::Stalled, note));
        draining.into_iter().chain(self.env.notes.current(now)).chain(stalled).collect()
    }

    pub(super) fn worker_infos(&self) -> Vec<WorkerInfo> {
        let sections =
            self.env.context.config.workers.iter().zip(&self.env.context.counters).enumerate();
        sections
            .map(|(id, (section, counters))| WorkerInfo {
                id: id as u32,
                core: section.core,
                idle: section.idle.name().into(),
                streams: counters.streams.streams.get() as u32,
                busy: self.utilization.busy_share(id),
                counters: counters::worker_values(counters).0,
            })
            .collect()
    }

    /// Lists the ports, each with the neighbours that its workers have resolved.
    pub(super) fn list_ports(&mut self, answer: Responder) {
        let then = Continuation::Neighbours { found: Vec::new(), answer };
        self.env.broadcast(then, |ticket| Command::ListNeighbours { ticket });
    }

    pub(super) fn on_neighbours(&self, found: &[NeighbourInfo], answer: Responder) {
        let ports = self
            .env
            .context
            .ports
            .iter()
            .map(|port| port.info(&self.env.context.config, found))
            .collect();
        answer.send(Ok(Reply::Ports(ports)));
    }

    /// Requests lists of live streams or associations from the workers.
    pub(super) fn list_streams(&mut self, query: StreamsQuery) {
        let which = match &query {
            StreamsQuery::List(ids, _) => StreamSelection::Streams(Arc::clone(ids)),
            StreamsQuery::Stats | StreamsQuery::Bench(_) => StreamSelection::All,
            StreamsQuery::One(id, _) => StreamSelection::Stream(*id),
            StreamsQuery::Associations(_) => StreamSelection::Associations,
            StreamsQuery::Association(id, _) => StreamSelection::Association(*id),
        };
        let then = Continuation::Streams { query, found: StreamList::default() };
        self.env
            .broadcast(then, |ticket| Command::ListStreams { selection: which.clone(), ticket });
    }

    /// Requests stream totals from the workers. At most one count is in progress, however many clients request it.
    pub(super) fn count_streams(&mut self, answer: Responder) {
        if self.scrapes.add(answer) {
            self.begin_count();
        }
    }

    fn begin_count(&mut self) {
        self.streams.begin_counting();
        self.list_streams(StreamsQuery::Stats);
    }

    fn on_counted(&mut self) {
        let (totals, present) = self.streams.finish_counting();
        let stats = self.stats(&totals, &present);
        let (answers, again) = self.scrapes.finish();
        for answer in answers {
            answer.send(Ok(Reply::Stats(stats.clone())));
        }
        if again {
            self.begin_count();
        }
    }

    pub(super) fn on_streams_listed(
        &mut self,
        query: StreamsQuery,
        found: StreamList,
        now: Instant,
    ) {
        match query {
            StreamsQuery::List(ids, answer) => {
                let infos = ids.iter().filter_map(|&id| self.stream_info(id, &found, now));
                answer.send(Ok(Reply::Streams(infos.collect())));
            }
            StreamsQuery::One(id, answer) => {
                let shown = api_id(id);
                let info = self.stream_info(id, &found, now);
                let missing = || ApiError::not_found(format!("there is no stream {shown}"));
                answer.send(info.map(Reply::Stream).ok_or_else(missing));
            }
            StreamsQuery::Associations(answer) => {
                let mut infos: Vec<_> = found.associations.iter().map(association).collect();
                infos.sort_unstable_by_key(|info| info.id.0);
                answer.send(Ok(Reply::Associations(infos)));
            }
            StreamsQuery::Association(id, answer) => {
                let info = found.associations.iter().find(|info| info.association == id);
                let shown = api_id(id);
                let missing = || ApiError::not_found(format!("there is no association {shown}"));
                let info = info.map(|info| Reply::Association(association(info)));
                answer.send(info.ok_or_else(missing));
            }
            StreamsQuery::Stats => self.on_counted(),
            StreamsQuery::Bench(id) => self.with_jobs(now, |jobs, _, out| {
                jobs.on_bench_progress(id, &found.streams, now, out);
            }),
        }
    }

    fn stream_info(&self, id: StreamId, found: &StreamList, now: Instant) -> Option<StreamInfo> {
        let listener = self.streams.listener_of(id).and_then(|l| self.listeners.name_of(l));
        self.streams.info(id, found, listener.map(str::to_owned), now)
    }

    fn stats(&self, per_worker: &[Totals], present: &LiveCounts) -> Stats {
        let ports: Vec<PortStats> = self.env.context.ports.iter().map(PortView::stats).collect();
        let mut all = Totals::default();
        per_worker.iter().for_each(|totals| all.merge(totals));
        let (mut control, all) = (self.control_counters(), all.counters());
        control.extend(all.into_iter().filter(|(name, _)| STREAM_TOTALS.contains(&&**name)));
        counters::put_losses(&mut control, &ports);
        Stats {
            workers: self.worker_stats(per_worker),
            ports,
            control,
            listeners: self.listener_counters(),
            regions: self.region_counters(),
            dpdk_version: self.env.context.dpdk_version.clone(),
            gauges: self.gauges(present),
            handshakes: self.env.handshakes.infos(),
            api_refused: self.env.context.access_tally.refused(),
            histograms: self.histograms(),
        }
    }

    fn worker_stats(&self, totals: &[Totals]) -> Vec<WorkerStats> {
        let workers = self.env.context.counters.iter().zip(totals).enumerate();
        workers
            .map(|(worker, (counters, totals))| {
                let mut all = totals.counters();
                let (growing, gauges) = counters::worker_values(counters);
                all.extend(growing);
                let drops = counters.drops.iter();
                let drops = drops
                    .map(|DropCount { layer, reason, count }| {
                        (format!("{layer}_{reason}").into(), count)
                    })
                    .collect();
                let errors = totals.errors().clone();
                let ends = totals.ends().clone();
                WorkerStats { worker: worker as u32, counters: all, gauges, drops, errors, ends }
            })
            .collect()
    }

    fn histograms(&self) -> Vec<HistogramInfo> {
        let (mut handshakes, mut bursts) = (Counts::default(), Counts::default());
        for counters in &self.env.context.counters {
            handshakes.add(&counters.handshake_nanoseconds.counts());
            bursts.add(&counters.burst_frames.counts());
        }
        let (echoes, reads) = (self.jobs.echoes(), self.jobs.reads());
        vec![
            HistogramInfo::seconds(
                "handshake",
                "Time from a stream's first packet or open command until messages can flow",
                &handshakes,
            ),
            HistogramInfo::seconds(
                "echo",
                "Time from the post of a message to the echo, for requests that await one",
                &echoes,
            ),
            HistogramInfo::seconds(
                "read",
                "Time from the post of an RDMA Read to its completion, for gets",
                &reads,
            ),
            HistogramInfo::frames("burst", "Frames per receive burst of a port", &bursts),
        ]
    }

    fn listener_counters(&self) -> BTreeMap<String, Counters> {
        let infos = self.listeners.infos(&self.env.context);
        let named = infos.into_iter().map(|info| {
            let mut counters = Counters::new();
            counters::put_listener(&mut counters, &info);
            (info.name, counters)
        });
        named.collect()
    }

    fn region_counters(&self) -> BTreeMap<String, Counters> {
        let infos = self.regions.infos(self.env.now, |_| Vec::new());
        let named = infos.into_iter().map(|info| {
            let mut counters = Counters::new();
            counters::put_region(&mut counters, &info);
            (info.name, counters)
        });
        named.collect()
    }

    fn control_counters(&self) -> Counters {
        let (tally, shm) = (&self.env.tally, self.env.shm.counters());
        let mut counters = Counters::new();
        let management = &self.env.context.access_tally;
        counters::put_control(&mut counters, tally, shm, self.env.log.last_seq(), management);
        counters
    }

    fn gauges(&self, present: &LiveCounts) -> Counters {
        let now = counters::ObjectCounts {
            sandbox: crate::sandbox::state(),
            streams: self.streams.established_count(),
            draining: self.env.check_not_draining().is_err(),
            associations: present.associations,
            regions: self.regions.len(),
            region_memory: self.regions.memory(),
            listeners: self.listeners.len(),
            jobs: self.jobs.running(),
            memory: self.env.budget.info(),
            held: present.held,
            programs: self.programs.counts(),
        };
        let mut gauges = Counters::new();
        counters::put_gauges(&mut gauges, &now);
        gauges
    }
}

fn sandbox_info() -> SandboxInfo {
    let state = crate::sandbox::state();
    SandboxInfo {
        privileges_dropped: state.entered,
        capabilities: state.capabilities,
        landlock: state.landlock,
        seccomp: state.seccomp,
        confined_workers: state.workers,
    }
}

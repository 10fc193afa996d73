//! Totals of ended and live streams and associations. Streams may begin and end while the workers list the live
//! streams; each stream is counted once.

use std::collections::HashSet;

use dataplane::{AssociationStats, CloseReason, StreamStats};
use ddp::StreamId;

use crate::appliance::counters::{HeldBytes, Sums, Totals, held_bytes};
use crate::appliance::pending::StreamList;

/// Counter totals of ended streams and associations and, while a count is in progress, of live streams and
/// associations.
#[derive(Debug)]
pub(super) struct StreamCounts {
    /// Totals of ended streams and associations, per worker.
    ended: Vec<Totals>,
    /// Totals of the count in progress; `None` if there is none.
    live: Option<LiveTotals>,
}

/// Totals of live streams and associations, as listed by the workers.
#[derive(Debug)]
struct LiveTotals {
    /// Totals of all listed streams and associations, per worker.
    sums: Vec<Sums>,
    /// Totals of listed streams and associations that have ended since, per worker. `ended` also contains them, so
    /// `finish` subtracts them.
    double_counted: Vec<Sums>,
    /// Listed streams and associations, each of which is in `sums`.
    listed: HashSet<StreamId>,
    live_counts: LiveCounts,
}

/// Number of live associations, and bytes held by live streams.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::appliance) struct LiveCounts {
    pub associations: usize,
    /// Bytes held for out-of-order data and for retransmission.
    pub held: HeldBytes,
}

impl StreamCounts {
    pub(super) fn new(workers: usize) -> StreamCounts {
        StreamCounts { ended: vec![Totals::default(); workers], live: None }
    }

    /// Starts a count. Discards a count in progress.
    pub(super) fn begin(&mut self) {
        let empty = || vec![Sums::default(); self.ended.len()];
        let (sums, double_counted) = (empty(), empty());
        let (listed, live_counts) = (HashSet::new(), LiveCounts::default());
        self.live = Some(LiveTotals { sums, double_counted, listed, live_counts });
    }

    /// Adds live streams and associations that a worker has listed. A stream for which `is_known` is false was counted
    /// when it ended; its worker keeps it only for late segments.
    pub(super) fn add_listed(&mut self, part: &StreamList, is_known: impl Fn(StreamId) -> bool) {
        let Some(live) = &mut self.live else { return };
        for info in part.streams.values() {
            live.live_counts.held.add(&held_bytes(&info.stats));
            if is_known(info.stream)
                && let Some(sums) = live.sums.get_mut(usize::from(info.stream.worker()))
            {
                sums.add_stream(&info.stats);
                live.listed.insert(info.stream);
            }
        }
        for info in &part.associations {
            live.live_counts.associations += 1;
            if let Some(sums) = live.sums.get_mut(usize::from(info.association.worker())) {
                sums.add_association(&info.stats);
                live.listed.insert(info.association);
            }
        }
    }

    /// Adds a stream that has ended to the totals.
    pub(super) fn on_closed(&mut self, id: StreamId, reason: &CloseReason, stats: &StreamStats) {
        if let Some(totals) = self.ended.get_mut(usize::from(id.worker())) {
            totals.add(stats, reason);
        }
        if let Some(double_counted) = self.double_counted_mut(id) {
            double_counted.add_stream(stats);
        }
    }

    /// Adds an association that has ended to the totals.
    pub(super) fn on_association_closed(&mut self, id: StreamId, stats: &AssociationStats) {
        if let Some(totals) = self.ended.get_mut(usize::from(id.worker())) {
            totals.add_association(stats);
        }
        if let Some(double_counted) = self.double_counted_mut(id) {
            double_counted.add_association(stats);
        }
    }

    /// Returns the `double_counted` totals of the worker if the current count has listed this stream or association.
    fn double_counted_mut(&mut self, id: StreamId) -> Option<&mut Sums> {
        let live = self.live.as_mut().filter(|live| live.listed.contains(&id))?;
        live.double_counted.get_mut(usize::from(id.worker()))
    }

    /// Ends the count. Returns the totals per worker, and the gauges of live streams and associations.
    pub(super) fn finish(&mut self) -> (Vec<Totals>, LiveCounts) {
        let mut totals = self.ended.clone();
        let Some(LiveTotals { sums, double_counted, live_counts, .. }) = self.live.take() else {
            return (totals, LiveCounts::default());
        };
        for (totals, (sums, double_counted)) in
            totals.iter_mut().zip(sums.iter().zip(&double_counted))
        {
            totals.sums_mut().merge(sums);
            totals.sums_mut().subtract(double_counted);
        }
        (totals, live_counts)
    }
}

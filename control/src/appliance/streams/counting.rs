//! What streams and associations did in all: those that have ended, and those that the workers list. Listing goes on
//! while streams come and end; each is counted once.

use std::collections::HashSet;

use dataplane::{AssociationStats, CloseReason, StreamStats};
use ddp::StreamId;

use crate::appliance::counters::{Held, Sums, Totals, held};
use crate::appliance::pending::Found;

/// Counts of streams and associations.
#[derive(Debug)]
pub(super) struct Counting {
    /// Of those that have ended, per worker.
    ended: Vec<Totals>,
    /// Of those that have been listed.
    live: Option<Live>,
}

/// What a list brings.
#[derive(Debug)]
struct Live {
    /// Per worker.
    sums: Vec<Sums>,
    /// Listed, and counted among the ended since.
    twice: Vec<Sums>,
    listed: HashSet<StreamId>,
    present: Present,
}

/// What streams and associations there are now.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::appliance) struct Present {
    /// Associations.
    pub associations: usize,
    /// What streams hold.
    pub held: Held,
}

impl Counting {
    pub(super) fn new(workers: usize) -> Counting {
        Counting { ended: vec![Totals::default(); workers], live: None }
    }

    /// The workers begin to list.
    pub(super) fn begin(&mut self) {
        let none = || vec![Sums::default(); self.ended.len()];
        let (sums, twice) = (none(), none());
        let (listed, present) = (HashSet::new(), Present::default());
        self.live = Some(Live { sums, twice, listed, present });
    }

    /// A part of the list. A stream that is not `known` waits for its last segments, and was counted when it ended.
    pub(super) fn add_listed(&mut self, part: &Found, known: impl Fn(StreamId) -> bool) {
        let Some(live) = &mut self.live else { return };
        for info in part.streams.values() {
            live.present.held.add(&held(&info.stats));
            if known(info.stream)
                && let Some(sums) = live.sums.get_mut(usize::from(info.stream.worker()))
            {
                sums.add_stream(&info.stats);
                live.listed.insert(info.stream);
            }
        }
        for info in &part.associations {
            live.present.associations += 1;
            if let Some(sums) = live.sums.get_mut(usize::from(info.association.worker())) {
                sums.add_association(&info.stats);
                live.listed.insert(info.association);
            }
        }
    }

    /// A stream has ended.
    pub(super) fn on_closed(&mut self, id: StreamId, reason: &CloseReason, stats: &StreamStats) {
        if let Some(totals) = self.ended.get_mut(usize::from(id.worker())) {
            totals.add(stats, reason);
        }
        if let Some(twice) = self.twice(id) {
            twice.add_stream(stats);
        }
    }

    /// An association has ended.
    pub(super) fn on_association_closed(&mut self, id: StreamId, stats: &AssociationStats) {
        if let Some(totals) = self.ended.get_mut(usize::from(id.worker())) {
            totals.add_association(stats);
        }
        if let Some(twice) = self.twice(id) {
            twice.add_association(stats);
        }
    }

    /// Where the end of what has been listed before is noted.
    fn twice(&mut self, id: StreamId) -> Option<&mut Sums> {
        let live = self.live.as_mut().filter(|live| live.listed.contains(&id))?;
        live.twice.get_mut(usize::from(id.worker()))
    }

    /// The workers have listed all: totals per worker.
    pub(super) fn finish(&mut self) -> (Vec<Totals>, Present) {
        let mut totals = self.ended.clone();
        let Some(Live { sums, twice, present, .. }) = self.live.take() else {
            return (totals, Present::default());
        };
        for (totals, (sums, twice)) in totals.iter_mut().zip(sums.iter().zip(&twice)) {
            totals.sums_mut().merge(sums);
            totals.sums_mut().subtract(twice);
        }
        (totals, present)
    }
}

//! State of a queue, in relaxed atomics, shared by its worker and the control thread. The worker stores the counters of
//! the queue and of its impairment at each flush. The control thread stores whether the device's link is down.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counters of one queue, in frames unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Received frames dropped because they consist of several buffers and do not fit into one.
    pub rx_too_long: u64,
    /// Frames that the device accepted.
    pub tx_frames: u64,
    /// Bytes of the frames that the device accepted.
    pub tx_bytes: u64,
    /// Frames dropped because the queue was full, or because the link was down and the device did not accept them.
    pub tx_dropped: u64,
    /// Allocations that failed because no packet buffer was free.
    pub no_buffer: u64,
    /// Large packets, each of several frames, that the device or the frontend segments. Their frames are also counted
    /// in `tx_frames`.
    pub tx_large: u64,
}

/// Shared state of one queue. Each counter is loaded separately, so some may be newer than others.
#[derive(Debug)]
pub(super) struct SharedQueueState {
    queue: [AtomicU64; QUEUE_COUNTERS],
    impairment: Option<[AtomicU64; LINK_COUNTERS]>,
    device_link_down: AtomicBool,
}

/// Number of fields of [`QueueCounters`].
const QUEUE_COUNTERS: usize = 8;
/// Number of fields of [`link::Counters`].
const LINK_COUNTERS: usize = 14;

impl SharedQueueState {
    /// Creates the state with zero counters and the link up. If `impaired`, the state has counters of an impairment.
    pub(super) fn new(impaired: bool) -> SharedQueueState {
        SharedQueueState {
            queue: std::array::from_fn(|_| AtomicU64::new(0)),
            impairment: impaired.then(|| std::array::from_fn(|_| AtomicU64::new(0))),
            device_link_down: AtomicBool::new(false),
        }
    }

    /// Publishes the counters. Called by the worker.
    pub(super) fn store_counters(
        &self,
        queue: &QueueCounters,
        impairment: Option<&link::Counters>,
    ) {
        let store = |cells: &[AtomicU64], values: &[u64]| {
            for (cell, value) in cells.iter().zip(values) {
                cell.store(*value, Ordering::Relaxed);
            }
        };
        store(&self.queue, &queue_values(queue));
        if let (Some(cells), Some(impairment)) = (&self.impairment, impairment) {
            store(cells, &link_values(impairment));
        }
    }

    /// Stores the state of the device's link. Called by the control thread.
    pub(super) fn set_device_link(&self, up: bool) {
        self.device_link_down.store(!up, Ordering::Relaxed);
    }

    /// Returns true if the control thread last saw the device's link down.
    pub(super) fn device_link_is_down(&self) -> bool {
        self.device_link_down.load(Ordering::Relaxed)
    }

    /// Returns the last stored counters of the queue and of its impairment.
    pub(super) fn load_counters(&self) -> (QueueCounters, Option<link::Counters>) {
        let queue = self.queue.each_ref().map(|cell| cell.load(Ordering::Relaxed));
        let impairment = self.impairment.as_ref().map(|cells| {
            link_counters_from(cells.each_ref().map(|cell| cell.load(Ordering::Relaxed)))
        });
        (queue_counters_from(queue), impairment)
    }
}

fn queue_values(c: &QueueCounters) -> [u64; QUEUE_COUNTERS] {
    let &QueueCounters {
        rx_frames,
        rx_bytes,
        rx_too_long,
        tx_frames,
        tx_bytes,
        tx_dropped,
        no_buffer,
        tx_large,
    } = c;
    [rx_frames, rx_bytes, rx_too_long, tx_frames, tx_bytes, tx_dropped, no_buffer, tx_large]
}

fn queue_counters_from(values: [u64; QUEUE_COUNTERS]) -> QueueCounters {
    let [rx_frames, rx_bytes, rx_too_long, tx_frames, tx_bytes, tx_dropped, no_buffer, tx_large] =
        values;
    QueueCounters {
        rx_frames,
        rx_bytes,
        rx_too_long,
        tx_frames,
        tx_bytes,
        tx_dropped,
        no_buffer,
        tx_large,
    }
}

// A new counter must be added to `*_values` and `*_counters_from` at the same position. The compiler reports a missing
// field.

fn link_values(c: &link::Counters) -> [u64; LINK_COUNTERS] {
    let &link::Counters {
        offered,
        offered_bytes,
        delivered,
        delivered_bytes,
        lost,
        black_holed,
        tail_dropped,
        overflowed,
        reordered,
        duplicated,
        duplicates_refused,
        corrupted,
        frames_max,
        marked,
    } = c;
    [
        offered,
        offered_bytes,
        delivered,
        delivered_bytes,
        lost,
        black_holed,
        tail_dropped,
        overflowed,
        reordered,
        duplicated,
        duplicates_refused,
        corrupted,
        frames_max,
        marked,
    ]
}

fn link_counters_from(values: [u64; LINK_COUNTERS]) -> link::Counters {
    let [
        offered,
        offered_bytes,
        delivered,
        delivered_bytes,
        lost,
        black_holed,
        tail_dropped,
        overflowed,
        reordered,
        duplicated,
        duplicates_refused,
        corrupted,
        frames_max,
        marked,
    ] = values;
    link::Counters {
        offered,
        offered_bytes,
        delivered,
        delivered_bytes,
        lost,
        black_holed,
        tail_dropped,
        overflowed,
        reordered,
        duplicated,
        duplicates_refused,
        corrupted,
        frames_max,
        marked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_counters_round_trip() {
        let queue = queue_counters_from(std::array::from_fn(|i| i as u64 + 1));
        let link = link_counters_from(std::array::from_fn(|i| i as u64 + 100));
        assert_eq!((queue.rx_frames, queue.no_buffer), (1, 7));
        assert_eq!(queue.tx_large, 8);
        assert_eq!((link.offered, link.lost, link.frames_max), (100, 104, 112));
        let shared = SharedQueueState::new(true);
        shared.store_counters(&queue, Some(&link));
        assert_eq!(shared.load_counters(), (queue, Some(link)));
        let plain = SharedQueueState::new(false);
        plain.store_counters(&queue, None);
        assert_eq!(plain.load_counters(), (queue, None));
    }
}

//! What a queue counts, where other threads can read it: written by the worker that owns the queue, with
//! relaxed stores, once per turn of its loop. The other way goes what the control thread saw of the link.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What one queue did, in frames unless the name says bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Received.
    pub rx_frames: u64,
    /// Bytes of those.
    pub rx_bytes: u64,
    /// Received in several buffers that do not fit into one, and dropped.
    pub rx_too_long: u64,
    /// Accepted by the device for sending.
    pub tx_frames: u64,
    /// Bytes of those.
    pub tx_bytes: u64,
    /// Dropped because the device did not take frames, and the queue in front of it was full or the link
    /// down.
    pub tx_dropped: u64,
    /// Times that no packet buffer was free.
    pub no_buffer: u64,
}

/// The published copy of one queue's counters. Numbers of one moment may be of two turns.
#[derive(Debug)]
pub(super) struct Published {
    queue: [AtomicU64; QUEUE],
    link: Option<[AtomicU64; LINK]>,
    link_down: AtomicBool,
}

const QUEUE: usize = 7;
const LINK: usize = 14;

impl Published {
    /// All zero; with an impairment if the queue has one.
    pub(super) fn new(impaired: bool) -> Published {
        Published {
            queue: std::array::from_fn(|_| AtomicU64::new(0)),
            link: impaired.then(|| std::array::from_fn(|_| AtomicU64::new(0))),
            link_down: AtomicBool::new(false),
        }
    }

    /// Stores what the queue has counted by now.
    pub(super) fn store(&self, queue: &QueueCounters, link: Option<&link::Counters>) {
        let store = |cells: &[AtomicU64], values: &[u64]| {
            for (cell, value) in cells.iter().zip(values) {
                cell.store(*value, Ordering::Relaxed);
            }
        };
        store(&self.queue, &queue_values(queue));
        if let (Some(cells), Some(link)) = (&self.link, link) {
            store(cells, &link_values(link));
        }
    }

    /// Tells the queue how the link was found.
    pub(super) fn set_link(&self, up: bool) {
        self.link_down.store(!up, Ordering::Relaxed);
    }

    /// True when the link was found down last time.
    pub(super) fn link_is_down(&self) -> bool {
        self.link_down.load(Ordering::Relaxed)
    }

    /// What was stored last.
    pub(super) fn load(&self) -> (QueueCounters, Option<link::Counters>) {
        let queue = self.queue.each_ref().map(|cell| cell.load(Ordering::Relaxed));
        let link = self.link.as_ref().map(|link| {
            let values = link.each_ref().map(|cell| cell.load(Ordering::Relaxed));
            link_from(values)
        });
        (queue_from(queue), link)
    }
}

fn queue_values(c: &QueueCounters) -> [u64; QUEUE] {
    let &QueueCounters {
        rx_frames,
        rx_bytes,
        rx_too_long,
        tx_frames,
        tx_bytes,
        tx_dropped,
        no_buffer,
    } = c;
    [rx_frames, rx_bytes, rx_too_long, tx_frames, tx_bytes, tx_dropped, no_buffer]
}

fn queue_from(values: [u64; QUEUE]) -> QueueCounters {
    let [rx_frames, rx_bytes, rx_too_long, tx_frames, tx_bytes, tx_dropped, no_buffer] = values;
    QueueCounters { rx_frames, rx_bytes, rx_too_long, tx_frames, tx_bytes, tx_dropped, no_buffer }
}

fn link_values(c: &link::Counters) -> [u64; LINK] {
    [
        c.offered,
        c.offered_bytes,
        c.delivered,
        c.delivered_bytes,
        c.lost,
        c.black_holed,
        c.tail_dropped,
        c.overflowed,
        c.reordered,
        c.duplicated,
        c.duplicates_refused,
        c.corrupted,
        c.frames_max,
        c.marked,
    ]
}

fn link_from(v: [u64; LINK]) -> link::Counters {
    link::Counters {
        offered: v[0],
        offered_bytes: v[1],
        delivered: v[2],
        delivered_bytes: v[3],
        lost: v[4],
        black_holed: v[5],
        tail_dropped: v[6],
        overflowed: v[7],
        reordered: v[8],
        duplicated: v[9],
        duplicates_refused: v[10],
        corrupted: v[11],
        frames_max: v[12],
        marked: v[13],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_comes_back_in_its_place() {
        let queue = queue_from(std::array::from_fn(|i| i as u64 + 1));
        let link = link_from(std::array::from_fn(|i| i as u64 + 100));
        assert_eq!((queue.rx_frames, queue.no_buffer), (1, 7));
        assert_eq!((link.offered, link.lost, link.frames_max), (100, 104, 112));
        let published = Published::new(true);
        published.store(&queue, Some(&link));
        assert_eq!(published.load(), (queue, Some(link)));
        let plain = Published::new(false);
        plain.store(&queue, None);
        assert_eq!(plain.load(), (queue, None));
    }
}

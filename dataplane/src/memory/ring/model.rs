//! Model of the completion ring. loom tries the interleavings of the two ends, and the values that the memory model
//! permits a load to return. The production functions run on loom's atomics. The producer publishes three records into
//! a ring of two slots, so the ring wraps once. Of each slot, only the sequence word, offset and length are modelled. A
//! counter stands for the region's bytes.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;

use super::*;

const CAPACITY: u64 = 2;
const RECORDS: u64 = 3;

/// The memory ordering that a run weakens. The tests check that the model detects each weakening that matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Weakening {
    Unchanged,
    /// Stores at this byte offset are relaxed; if `None`, all stores of sequence words and of the head.
    Stores(Option<usize>),
    /// Loads at this byte offset are relaxed; if `None`, all loads of sequence words and of the head.
    Loads(Option<usize>),
    /// The release fence is left out.
    ReleaseFence,
    /// The acquire fence is left out.
    AcquireFence,
}

struct Ring {
    words: BTreeMap<usize, AtomicU64>,
    /// Number of writes to the region so far, in place of its bytes.
    region: AtomicU64,
    weakening: Weakening,
}

impl Ring {
    fn new(weakening: Weakening) -> Ring {
        let fields = [SLOT_SEQUENCE, SLOT_OFFSET, SLOT_LEN];
        let slots = (0..CAPACITY).flat_map(|n| fields.map(|field| slot(n, CAPACITY) + field));
        let words = slots.chain([HEAD_AT]).map(|at| (at, AtomicU64::new(0))).collect();
        Ring { words, region: AtomicU64::new(0), weakening }
    }
}

impl WordAccess for Ring {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        let weaker =
            matches!(self.weakening, Weakening::Loads(only) if only.is_none_or(|only| only == at));
        let order = if weaker { Ordering::Relaxed } else { order };
        // All records have the same value in fields that are not modelled.
        self.words.get(&at).map_or(1 << 32, |word| word.load(order))
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        let weaker =
            matches!(self.weakening, Weakening::Stores(only) if only.is_none_or(|only| only == at));
        let order = if weaker { Ordering::Relaxed } else { order };
        if let Some(word) = self.words.get(&at) {
            word.store(value, order);
        }
    }

    fn fence(&self, order: Ordering) {
        let left_out = match order {
            Ordering::Release => Weakening::ReleaseFence,
            _ => Weakening::AcquireFence,
        };
        if self.weakening != left_out {
            loom::sync::atomic::fence(order);
        }
    }
}

/// A consumer that asserts that each record is intact and that its bytes in the region are visible.
#[derive(Default)]
struct Reader {
    next: u64,
    lost: u64,
    seen: u64,
}

impl Reader {
    fn poll(&mut self, ring: &Ring) {
        let Some((number, record)) = poll(ring, CAPACITY, &mut self.next, &mut self.lost) else {
            return;
        };
        self.seen += 1;
        assert_eq!(number + 1, self.seen + self.lost, "a record is lost and not counted");
        let parts = (record.offset, record.len);
        assert_eq!(parts, (number + 10, number + 20), "record {number} mixes two records");
        let region = ring.region.load(Ordering::Relaxed);
        assert!(region > number, "the bytes of record {number} are not visible");
    }
}

fn check(weakening: Weakening) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Arc::new(Ring::new(weakening));
        let producer = loom::thread::spawn({
            let ring = ring.clone();
            move || {
                for number in 0..RECORDS {
                    ring.region.store(number + 1, Ordering::Relaxed);
                    let (offset, len) = (number + 10, number + 20);
                    let record = Completion {
                        kind: Kind::Data,
                        rsvd_ulp: 0,
                        stag: 0,
                        offset,
                        len,
                        stream: 0,
                        unix_nanos: 0,
                    };
                    publish(&*ring, CAPACITY, number, &record);
                }
            }
        });
        let mut reader = Reader::default();
        reader.poll(&ring);
        reader.poll(&ring);
        producer.join().unwrap();
        (0..RECORDS).for_each(|_| reader.poll(&ring));
        assert_eq!(reader.seen + reader.lost, RECORDS);
    });
}

#[test]
fn modelled_record_is_visible_and_intact_or_lost() {
    check(Weakening::Unchanged);
    // The order of the sequence word suffices: stores or loads of the head may be relaxed.
    check(Weakening::Stores(Some(HEAD_AT)));
    check(Weakening::Loads(Some(HEAD_AT)));
}

#[test]
fn ring_model_detects_each_weakened_ordering() {
    for weaker in [
        Weakening::Stores(None),
        Weakening::Loads(None),
        Weakening::ReleaseFence,
        Weakening::AcquireFence,
    ] {
        let found = catch_unwind(AssertUnwindSafe(|| check(weaker))).is_err();
        assert!(found, "the model does not detect {weaker:?}");
    }
}

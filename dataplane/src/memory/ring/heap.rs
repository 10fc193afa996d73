//! Tests the two ends of a ring on two threads, in ordinary memory. Miri does not support memfds, so Miri runs this
//! test instead of the tests in `ring.rs`.

use std::sync::atomic::AtomicU64;

use super::*;

const CAPACITY: u64 = 4;
const RECORDS: u64 = 60;

struct HeapRing(Vec<AtomicU64>);

impl WordAccess for HeapRing {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.0[at / 8].load(order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.0[at / 8].store(value, order);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

#[test]
fn heap_ring_record_is_intact_or_lost() {
    let words = (SLOTS_AT + CAPACITY as usize * SLOT) / 8;
    let heap = HeapRing((0..words).map(|_| AtomicU64::new(0)).collect());
    let record = |n: u64| Completion {
        kind: Kind::Data,
        rsvd_ulp: n as u8,
        stag: n as u32,
        offset: n * 3,
        len: n * 5,
        stream: n * 7,
        unix_nanos: n * 11,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..RECORDS).for_each(|n| publish(&heap, CAPACITY, n, &record(n))));
        let (mut next, mut lost, mut seen) = (0, 0, 0);
        while seen + lost < RECORDS {
            match poll(&heap, CAPACITY, &mut next, &mut lost) {
                Some((n, got)) => {
                    assert_eq!(got, record(n));
                    seen += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(seen + lost, RECORDS);
    });
}

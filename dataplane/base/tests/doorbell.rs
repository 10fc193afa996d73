//! Tries all interleavings of a consumer that prepares to sleep with producers that add entries to its ring. If the
//! consumer does not see an entry before it sleeps, a producer must wake it. Counters model the ring and the descriptor
//! on which the consumer sleeps. The descriptor's counter has acquire and release ordering, which the kernel's lock
//! provides.

#![cfg(loom)]

use base::Doorbell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

#[derive(Default)]
struct Shared {
    bell: Doorbell,
    ring: AtomicUsize,
    rung: AtomicUsize,
}

impl Shared {
    fn produce(&self) {
        self.ring.fetch_add(1, Ordering::Release);
        if self.bell.must_ring() {
            self.rung.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Arms the doorbell, then polls the ring once more, as before a sleep. Returns the number of entries in the ring.
    fn arm_and_poll(&self) -> usize {
        self.bell.arm();
        self.ring.load(Ordering::Acquire)
    }
}

#[test]
fn item_missed_by_last_poll_rings_doorbell() {
    for producers in 1..=2 {
        loom::model(move || {
            let shared = Arc::new(Shared::default());
            let produce = || {
                let shared = shared.clone();
                thread::spawn(move || shared.produce())
            };
            let threads: Vec<_> = (0..producers).map(|_| produce()).collect();
            let seen = shared.arm_and_poll();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let rung = shared.rung.load(Ordering::Acquire);
            assert!(seen == producers || rung >= 1, "{seen} of {producers} seen, {rung} rung");
        });
    }
}

#[test]
fn rearmed_consumer_is_rung_again() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let producer = shared.clone();
        let thread = thread::spawn(move || {
            producer.produce();
            producer.produce();
        });
        // The second sleep has the same guarantees as the first, whether the consumer was woken or not.
        shared.arm_and_poll();
        shared.bell.disarm();
        let before = shared.rung.load(Ordering::Acquire);
        let seen = shared.arm_and_poll();
        thread.join().unwrap();
        let rung = shared.rung.load(Ordering::Acquire) - before;
        assert!(seen == 2 || rung >= 1, "{seen} of 2 seen, {rung} rung");
    });
}

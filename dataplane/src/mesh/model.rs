//! Model of a ring between two threads, as used for a worker's mesh, commands and events. loom tries all interleavings
//! with at most three preemptions. The ring follows the algorithm of `rtrb` 0.4 with loom's atomics: each end caches
//! the other's index. The termination of a worker follows `WorkerHandle::poll` and `Exit`. The wake-up of a sleeping
//! reader is not included.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CAPACITY: usize = 2;
const MESSAGES: usize = 3;
/// Content of a slot that is unused or whose message was taken.
const EMPTY: usize = 0;

/// Defect of the modelled ring: a relaxed memory ordering, or an omitted step. The tests show that the model detects
/// each defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Weakening {
    Unchanged,
    TailStore,
    TailLoad,
    HeadStore,
    HeadLoad,
    EndStore,
    EndLoad,
    /// The second read of the ring, after the reader has seen that the worker has ended.
    SecondLook,
}

struct Shared {
    head: AtomicUsize,
    tail: AtomicUsize,
    slots: [AtomicUsize; CAPACITY],
    ended: AtomicBool,
    weakening: Weakening,
}

impl Shared {
    fn order(&self, weakening: Weakening, order: Ordering) -> Ordering {
        if self.weakening == weakening { Ordering::Relaxed } else { order }
    }
}

/// The worker's end of its event ring.
struct Writer {
    shared: Arc<Shared>,
    tail: usize,
    seen_head: usize,
}

impl Writer {
    fn push(&mut self, message: usize) -> bool {
        let shared = &self.shared;
        if self.tail - self.seen_head == CAPACITY {
            self.seen_head = shared.head.load(shared.order(Weakening::HeadLoad, Ordering::Acquire));
            if self.tail - self.seen_head == CAPACITY {
                return false;
            }
        }
        let slot = &shared.slots[self.tail % CAPACITY];
        assert_eq!(
            slot.load(Ordering::Relaxed),
            EMPTY,
            "a slot with an unread message is overwritten"
        );
        slot.store(message, Ordering::Relaxed);
        self.tail += 1;
        shared.tail.store(self.tail, shared.order(Weakening::TailStore, Ordering::Release));
        true
    }

    fn end(self) {
        let order = self.shared.order(Weakening::EndStore, Ordering::Release);
        self.shared.ended.store(true, order);
    }
}

/// The control thread's end of the event ring.
struct Reader {
    shared: Arc<Shared>,
    head: usize,
    seen_tail: Cell<usize>,
    seen: usize,
    finished: bool,
}

impl Reader {
    fn pop(&mut self) -> Option<usize> {
        let shared = &self.shared;
        if self.head == self.seen_tail.get() {
            let tail = shared.tail.load(shared.order(Weakening::TailLoad, Ordering::Acquire));
            self.seen_tail.set(tail);
            if self.head == tail {
                return None;
            }
        }
        let slot = &shared.slots[self.head % CAPACITY];
        let message = slot.load(Ordering::Relaxed);
        slot.store(EMPTY, Ordering::Relaxed);
        self.head += 1;
        shared.head.store(self.head, shared.order(Weakening::HeadStore, Ordering::Release));
        Some(message)
    }

    /// Polls as `WorkerHandle::poll` does: all pushed messages are returned before the end is reported.
    fn poll(&mut self) {
        if self.finished {
            return;
        }
        if let Some(message) = self.pop() {
            return self.check_message(message);
        }
        if !self.shared.ended.load(self.shared.order(Weakening::EndLoad, Ordering::Acquire)) {
            return;
        }
        if self.shared.weakening != Weakening::SecondLook
            && let Some(message) = self.pop()
        {
            return self.check_message(message);
        }
        self.finished = true;
    }

    fn check_message(&mut self, message: usize) {
        self.seen += 1;
        assert_eq!(message, self.seen, "the message is out of order or torn");
    }
}

fn check(weakening: Weakening) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Arc::new(Shared {
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            slots: std::array::from_fn(|_| AtomicUsize::new(EMPTY)),
            ended: AtomicBool::new(false),
            weakening,
        });
        let mut reader = Reader {
            shared: shared.clone(),
            head: 0,
            seen_tail: Cell::new(0),
            seen: 0,
            finished: false,
        };
        let worker = loom::thread::spawn(move || {
            let mut writer = Writer { shared, tail: 0, seen_head: 0 };
            // If the ring is full, the next attempt sends the same message.
            let mut pushed = 0;
            for _ in 0..MESSAGES {
                pushed += usize::from(writer.push(pushed + 1));
            }
            writer.end();
            pushed
        });
        (0..MESSAGES).for_each(|_| reader.poll());
        let seen_at_end = reader.finished.then_some(reader.seen);
        let pushed = worker.join().unwrap();
        assert!(
            seen_at_end.is_none_or(|seen| seen == pushed),
            "the end is reported before the last message"
        );
        (0..=MESSAGES + 1).for_each(|_| reader.poll());
        assert_eq!((reader.seen, reader.finished), (pushed, true));
    });
}

#[test]
fn messages_arrive_intact_once_in_order_before_end() {
    check(Weakening::Unchanged);
}

#[test]
fn mesh_model_detects_each_weakened_ordering() {
    for weaker in [
        Weakening::TailStore,
        Weakening::TailLoad,
        Weakening::HeadStore,
        Weakening::HeadLoad,
        Weakening::EndStore,
        Weakening::EndLoad,
        Weakening::SecondLook,
    ] {
        let found = catch_unwind(AssertUnwindSafe(|| check(weaker))).is_err();
        assert!(found, "the model does not detect {weaker:?}");
    }
}

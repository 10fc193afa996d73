//! Rings, completion queues and doorbells in one thread: compared with a reference model, and with arbitrary words as
//! memory.

#![cfg(not(loom))]

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_layout::completion::{self, CompletionError, Request};
use verbs_layout::doorbell::{self, DoorbellError, Ringer, Scanner};
use verbs_layout::ring::{self, RingError};
use verbs_layout::work::{Carried, Completed, Completion, Opcode, Status};
use verbs_layout::{CapacityError, MAX_UNITS, Unit, Word};

fn memory(words: usize) -> Vec<Word> {
    (0..words).map(|_| Word::new(0)).collect()
}

/// Returns a descriptor of `count` units, whose words contain `n`.
fn descriptor(count: u8, n: u64) -> Vec<Unit> {
    let mut units = vec![[n; 8]; count.into()];
    units[0][0] = n << 8 | u64::from(count);
    units
}

fn completion(wr_id: u64) -> Completion {
    Completion {
        wr_id,
        status: Status::Success,
        completed: Completed::Sent(Opcode::Write),
        byte_len: 3,
        qp_number: 4,
    }
}

fn received(solicited: bool) -> Completion {
    let completed = Completed::Received { solicited, carried: Carried::Nothing };
    Completion { completed, ..completion(1) }
}

/// Pops until the ring is empty or an error occurs. Returns the number of units popped, and the error. Each pop but the
/// last takes at least one unit, so `capacity + 1` pops suffice.
fn drain(consumer: &mut ring::Consumer<'_>, capacity: usize) -> (u64, Result<(), RingError>) {
    let mut popped = 0;
    for _ in 0..=capacity {
        match consumer.pop() {
            Ok(Some(units)) => {
                assert_eq!(usize::from(units[0][0] as u8), units.len());
                popped += units.len() as u64;
            }
            Ok(None) => return (popped, Ok(())),
            Err(error) => return (popped, Err(error)),
        }
    }
    panic!("{popped} units of a ring of {capacity}")
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u8),
    Publish,
    Pop,
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..=MAX_UNITS as u8).prop_map(Step::Push),
        2 => Just(Step::Publish),
        4 => Just(Step::Pop),
        2 => Just(Step::Release),
    ];
    vec(step, 0..200)
}

proptest! {
    #[test]
    fn ring_behaves_as_a_bounded_queue(bits in 1..6u32, steps in steps()) {
        let capacity = 1 << bits;
        let memory = memory(ring::words(capacity));
        let mut producer = ring::Producer::new(&memory, capacity).expect("a ring");
        let mut consumer = ring::Consumer::new(&memory, capacity).expect("a ring");
        let (mut pushed, mut published) = (VecDeque::new(), VecDeque::new());
        let (mut used, mut popped) = (0, 0);
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(count) => {
                    let units = descriptor(count, n as u64);
                    let fits = used + units.len() <= capacity;
                    let expected = if fits { Ok(()) } else { Err(RingError::Full) };
                    prop_assert_eq!(producer.push(&units), expected);
                    if fits {
                        used += units.len();
                        pushed.push_back(units);
                    }
                }
                Step::Publish => {
                    producer.publish();
                    published.append(&mut pushed);
                }
                Step::Pop => {
                    let units = consumer.pop().expect("a descriptor or none");
                    let expected = published.pop_front();
                    prop_assert_eq!(units.as_ref().map(|units| &units[..]), expected.as_deref());
                    popped += units.map_or(0, |units| units.len());
                }
                Step::Release => {
                    consumer.release();
                    used -= popped;
                    popped = 0;
                }
            }
            prop_assert_eq!(producer.free(), Ok((capacity - used) as u64));
            let units: usize = published.iter().map(Vec::len).sum();
            prop_assert_eq!(consumer.available(), Ok(units as u64));
        }
    }

    /// The worker's side of a ring whose producer index and units are arbitrary.
    #[test]
    fn hostile_ring_gives_descriptors_within_bounds_or_errors(
        bits in 1..5u32,
        index in prop_oneof![0..40u64, any::<u64>(), u64::MAX - 40..=u64::MAX],
        words in vec(prop_oneof![0..8u64, any::<u64>()], 128),
        later in prop_oneof![0..80u64, any::<u64>()],
    ) {
        let capacity = 1 << bits;
        let memory = memory(ring::words(capacity));
        for (to, word) in memory[ring::HEADER_WORDS..].iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        let mut consumer = ring::Consumer::new(&memory, capacity).expect("a ring");
        let (mut popped, mut published) = (0, 0);
        for index in [index, later] {
            memory[0].store(index, Ordering::Relaxed);
            // The consumer loads the index only when no known unit is left.
            let reads = popped == published;
            let (units, end) = drain(&mut consumer, capacity);
            if reads && !(published..=capacity as u64).contains(&index) {
                prop_assert_eq!((units, end), (0, Err(RingError::LyingIndex)));
                continue;
            }
            published = if reads { index } else { published };
            popped += units;
            match end {
                Ok(()) => prop_assert_eq!(popped, published),
                Err(RingError::UnitCount(n)) => {
                    prop_assert!(n == 0 || usize::from(n) > MAX_UNITS);
                }
                Err(RingError::Truncated { units, available }) => {
                    prop_assert_eq!(popped + u64::from(available), published);
                    prop_assert!(available < units && usize::from(units) <= MAX_UNITS);
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }

    #[test]
    fn index_of_consumer_is_checked_by_producer(index: u64, pushed in 0..4usize) {
        let memory = memory(ring::words(4));
        let mut producer = ring::Producer::new(&memory, 4).expect("a ring");
        (0..pushed).for_each(|n| producer.push(&descriptor(1, n as u64)).expect("room"));
        producer.publish();
        producer.push(&descriptor(1, 9)).expect("room");
        for index in [index % 8, index] {
            memory[16].store(index, Ordering::Relaxed);
            // The consumer cannot release units that were not published.
            let free = producer.free();
            match index <= pushed as u64 {
                true => prop_assert_eq!(free, Ok(3 - pushed as u64 + index)),
                false => prop_assert_eq!(free, Err(RingError::LyingIndex)),
            }
            if free.is_ok() {
                break;
            }
        }
    }

    #[test]
    fn completions_arrive_once_in_order(bits in 1..4u32, bursts in vec(0..12u64, 0..30)) {
        let capacity = 1 << bits;
        let memory = memory(completion::words(capacity));
        let mut producer = completion::Producer::new(&memory, capacity).expect("a queue");
        let mut consumer = completion::Consumer::new(&memory, capacity).expect("a queue");
        let mut next = 0;
        for burst in bursts {
            let fits = burst.min(capacity as u64);
            for n in 0..fits {
                prop_assert_eq!(producer.push(&completion(next + n)), Ok(()));
            }
            if burst > fits {
                prop_assert_eq!(producer.push(&completion(0)), Err(CompletionError::Full));
            }
            for n in 0..fits {
                prop_assert_eq!(consumer.poll(), Ok(Some(completion(next + n))));
            }
            prop_assert_eq!(consumer.poll(), Ok(None));
            next += fits;
            consumer.release();
        }
    }

    /// The worker's side of a completion queue whose program overwrites all words with arbitrary values.
    #[test]
    fn hostile_program_gets_an_error_of_its_completion_queue(
        indices in vec(prop_oneof![0..12u64, any::<u64>()], 1..20),
        arm: u64,
    ) {
        let memory = memory(completion::words(4));
        let mut producer = completion::Producer::new(&memory, 4).expect("a queue");
        let (mut written, mut last) = (0, 0);
        for index in indices {
            memory.iter().for_each(|word| word.store(index, Ordering::Relaxed));
            memory[1].store(arm, Ordering::Relaxed);
            let full = written - last == 4;
            let expected = match index {
                _ if !full => Ok(()),
                index if index < last || index > written => Err(CompletionError::LyingIndex),
                index if index == last => Err(CompletionError::Full),
                _ => Ok(()),
            };
            prop_assert_eq!(producer.push(&completion(1)), expected);
            if expected.is_ok() {
                written += 1;
                last = if full { index } else { last };
            }
            let due = arm & 3 == 1 && written > arm >> 2;
            prop_assert_eq!(producer.must_signal(), due);
            prop_assert!(!due || memory[1].load(Ordering::Relaxed) == 0);
        }
    }

    /// With arbitrary words as memory, a consumer takes at most one lap of completions: 4, the capacity.
    #[test]
    fn consumer_takes_at_most_one_lap_of_arbitrary_words(
        words in vec(prop_oneof![0..3u64, Just(1 << 8), any::<u64>()], 48),
    ) {
        let memory: Vec<Word> = words.into_iter().map(Word::new).collect();
        let mut consumer = completion::Consumer::new(&memory, 4).expect("a queue");
        let taken = (0..9).take_while(|_| matches!(consumer.poll(), Ok(Some(_)))).count();
        prop_assert!(taken <= 4, "a second lap");
    }

    #[test]
    fn doorbells_return_each_queue_once_within_budget(
        queues in vec(prop_oneof![0..200u32, 0..doorbell::QUEUES], 0..300),
        budget in 1..50u32,
    ) {
        let memory = memory(doorbell::WORDS);
        let ringer = Ringer::new(&memory).expect("doorbells");
        let mut scanner = Scanner::new(&memory).expect("doorbells");
        queues.iter().for_each(|&queue| assert_eq!(ringer.ring(queue), Ok(false)));
        let rung: BTreeSet<u32> = queues.into_iter().collect();
        let mut seen = Vec::new();
        // Each pass uses up its budget or is the last. The cost is 1 for each queue, each bitmap word and each of the 8
        // summary words.
        for _ in 0..2 * (rung.len() as u32 + 8) / budget + 2 {
            let mut left = budget;
            seen.extend(std::iter::from_fn(|| scanner.next_queue(&mut left)));
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, rung.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(scanner.next_queue(&mut { budget }), None);
        prop_assert!(scanner.prepare_sleep());
    }

    #[test]
    fn arbitrary_doorbells_cost_bounded_work(
        words in vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], doorbell::WORDS),
        budget in 0..1000u32,
    ) {
        let memory: Vec<Word> = words.into_iter().map(Word::new).collect();
        let mut scanner = Scanner::new(&memory).expect("doorbells");
        let mut left = budget;
        let seen: Vec<u32> = std::iter::from_fn(|| scanner.next_queue(&mut left)).collect();
        prop_assert!(seen.len() <= budget as usize);
        prop_assert!(seen.iter().all(|&queue| queue < doorbell::QUEUES));
    }
}

#[test]
fn published_descriptor_that_is_too_long_or_empty_is_refused() {
    for (count, expected) in [
        (0, RingError::UnitCount(0)),
        (6, RingError::UnitCount(6)),
        (255, RingError::UnitCount(255)),
        (3, RingError::Truncated { units: 3, available: 2 }),
    ] {
        let memory = memory(ring::words(8));
        let mut consumer = ring::Consumer::new(&memory, 8).expect("a ring");
        memory[32].store(count, Ordering::Relaxed);
        memory[0].store(2, Ordering::Relaxed);
        assert_eq!(consumer.pop(), Err(expected));
        assert_eq!(consumer.pop(), Err(expected), "the error persists");
    }
}

#[test]
fn shared_ring_counts_what_remains_and_refuses_violations() {
    let memory = memory(ring::words(4));
    let mut producer = ring::Producer::new(&memory, 4).unwrap();
    let consumer = ring::SharedConsumer::new(&memory, 4).unwrap();
    for round in 0..10 {
        assert_eq!((consumer.pop(), consumer.remaining()), (Ok(None), 0));
        producer.push(&descriptor(2, round)).unwrap();
        producer.push(&descriptor(1, round)).unwrap();
        producer.publish_counted(2);
        assert_eq!(consumer.remaining(), 2);
        for (count, remaining) in [(2, 1), (1, 0)] {
            let taken = consumer.pop().unwrap().unwrap();
            assert_eq!(taken[..], descriptor(count, round));
            assert_eq!(consumer.remaining(), remaining);
        }
        assert_eq!(producer.free(), Ok(4), "released at once");
    }
    // 30 units were taken.
    for (index, first, error) in [
        (35, 1, RingError::LyingIndex),
        (29, 1, RingError::LyingIndex),
        (u64::MAX, 1, RingError::LyingIndex),
        (31, 2, RingError::Truncated { units: 2, available: 1 }),
        (31, 0, RingError::UnitCount(0)),
        (34, 6, RingError::UnitCount(6)),
    ] {
        memory[ring::HEADER_WORDS + 2 * 8].store(first, Ordering::Relaxed);
        memory[0].store(index, Ordering::Release);
        assert_eq!(consumer.pop(), Err(error), "index {index}");
        assert_eq!(consumer.pop(), Err(error), "the state does not change");
    }
}

#[test]
fn threads_take_each_shared_descriptor_once() {
    const TOTAL: u64 = 2000;
    let memory = memory(ring::words(8));
    let mut producer = ring::Producer::new(&memory, 8).unwrap();
    let consumer = ring::SharedConsumer::new(&memory, 8).unwrap();
    let taken = std::sync::atomic::AtomicU64::new(0);
    let take = || {
        let mut seen = Vec::new();
        while taken.load(Ordering::Relaxed) < TOTAL {
            let Some(units) = consumer.pop().unwrap() else {
                std::thread::yield_now();
                continue;
            };
            let n = units[0][1];
            assert_eq!(units[..], descriptor(1 + (n % 2) as u8, n), "a whole descriptor");
            seen.push(n);
            taken.fetch_add(1, Ordering::Relaxed);
        }
        seen
    };
    let mut all = std::thread::scope(|scope| {
        let takers = [(); 3].map(|()| scope.spawn(take));
        for n in 0..TOTAL {
            let units = descriptor(1 + (n % 2) as u8, n);
            while producer.push(&units) == Err(RingError::Full) {
                std::thread::yield_now();
            }
            producer.publish_counted(1);
        }
        let seen = takers.map(|taker| taker.join().unwrap());
        assert!(seen.iter().all(|seen| seen.is_sorted()), "in the order of posting");
        seen.concat()
    });
    all.sort_unstable();
    assert_eq!(all, (0..TOTAL).collect::<Vec<_>>());
}

#[test]
fn producer_index_that_goes_back_is_refused() {
    let memory = memory(ring::words(4));
    let mut consumer = ring::Consumer::new(&memory, 4).expect("a ring");
    memory[0].store(3, Ordering::Relaxed);
    assert_eq!(consumer.available(), Ok(3));
    memory[0].store(2, Ordering::Relaxed);
    assert_eq!(consumer.available(), Err(RingError::LyingIndex));
    memory[0].store(5, Ordering::Relaxed);
    assert_eq!(consumer.available(), Err(RingError::LyingIndex));
    memory[0].store(4, Ordering::Relaxed);
    assert_eq!(consumer.available(), Ok(4));
}

#[test]
fn impossible_memory_is_refused() {
    for capacity in [0, 1, 3, 2 * ring::MAX_CAPACITY] {
        let refused = ring::Producer::new(&[], capacity).err();
        assert!(matches!(refused, Some(CapacityError::Capacity { .. })), "{capacity}");
        let refused = completion::Consumer::new(&[], capacity + completion::MAX_CAPACITY + 1).err();
        assert!(matches!(refused, Some(CapacityError::Capacity { .. })), "{capacity}");
    }
    let memory = memory(ring::words(4) + 1);
    let refused = ring::Consumer::new(&memory, 4).err();
    assert_eq!(refused, Some(CapacityError::Length { words: 65, needed: 64 }));
    assert_eq!(Ringer::new(&memory).err(), Some(DoorbellError::Length(65)));
}

#[test]
fn queue_number_beyond_the_bitmap_is_refused() {
    let memory = memory(doorbell::WORDS);
    let ringer = Ringer::new(&memory).expect("doorbells");
    assert_eq!(ringer.ring(doorbell::QUEUES), Err(DoorbellError::Queue(doorbell::QUEUES)));
    assert_eq!(ringer.ring(doorbell::QUEUES - 1), Ok(false));
    let mut scanner = Scanner::new(&memory).expect("doorbells");
    assert_eq!(scanner.next_queue(&mut 3), Some(doorbell::QUEUES - 1));
}

#[test]
fn one_ring_wakes_a_sleeping_worker() {
    let memory = memory(doorbell::WORDS);
    let ringer = Ringer::new(&memory).expect("doorbells");
    let mut scanner = Scanner::new(&memory).expect("doorbells");
    assert!(scanner.prepare_sleep());
    assert_eq!([ringer.ring(7), ringer.ring(8)], [Ok(true), Ok(false)]);
    scanner.wake();
    assert!(!scanner.prepare_sleep(), "two queues wait");
    let mut budget = 10;
    let queues: Vec<u32> = std::iter::from_fn(|| scanner.next_queue(&mut budget)).collect();
    assert_eq!(queues, [7, 8]);
    assert!(scanner.prepare_sleep());
}

#[test]
fn rest_of_a_turn_keeps_the_worker_awake() {
    let memory = memory(doorbell::WORDS);
    let ringer = Ringer::new(&memory).expect("doorbells");
    let mut scanner = Scanner::new(&memory).expect("doorbells");
    [3, 4, 70].iter().for_each(|&queue| assert_eq!(ringer.ring(queue), Ok(false)));
    // The budget of 3 is for a summary word, a bitmap word and a queue.
    assert_eq!(scanner.next_queue(&mut 3), Some(3));
    assert!(!scanner.prepare_sleep());
    assert_eq!(scanner.next_queue(&mut 1), Some(4));
    assert!(!scanner.prepare_sleep());
    assert_eq!(scanner.next_queue(&mut 1), None, "the bitmap word uses up the budget");
    assert!(!scanner.prepare_sleep());
    assert_eq!(scanner.next_queue(&mut 1), Some(70));
    assert!(scanner.prepare_sleep());
}

#[test]
fn queue_that_rings_again_waits_for_its_turn() {
    let memory = memory(doorbell::WORDS);
    let ringer = Ringer::new(&memory).expect("doorbells");
    let mut scanner = Scanner::new(&memory).expect("doorbells");
    [0, 1, 5000].iter().for_each(|&queue| assert_eq!(ringer.ring(queue), Ok(false)));
    let order: Vec<_> = (0..4)
        .filter_map(|_| {
            ringer.ring(0).expect("a queue");
            scanner.next_queue(&mut 9)
        })
        .collect();
    assert_eq!(order, [5000, 0, 1, 0]);
}

#[test]
fn request_is_served_once_by_the_completion_it_waits_for() {
    let memory = memory(completion::words(8));
    let mut producer = completion::Producer::new(&memory, 8).expect("a queue");
    let mut consumer = completion::Consumer::new(&memory, 8).expect("a queue");
    let mut push = |completion: Completion| {
        producer.push(&completion).expect("room");
        producer.must_signal()
    };
    assert!(!push(completion(1)), "no request");
    consumer.poll().expect("a completion");
    consumer.arm(Request::Next);
    assert_eq!([push(completion(2)), push(completion(3))], [true, false]);
    consumer.arm(Request::Solicited);
    assert_eq!([push(completion(4)), push(received(false))], [false, false]);
    assert_eq!([push(received(true)), push(received(true))], [true, false]);
}

#[test]
fn request_is_pending_until_the_worker_serves_it() {
    let memory = memory(completion::words(8));
    let mut producer = completion::Producer::new(&memory, 8).expect("a queue");
    let mut consumer = completion::Consumer::new(&memory, 8).expect("a queue");
    assert!(!consumer.is_armed());
    consumer.arm(Request::Next);
    assert!(consumer.is_armed());
    producer.push(&completion(1)).expect("room");
    assert!(producer.must_signal());
    assert!(!consumer.is_armed());
}

#[test]
fn request_is_withdrawn_if_an_entry_that_satisfies_it_was_written_before() {
    let memory = memory(completion::words(4));
    let mut producer = completion::Producer::new(&memory, 4).expect("a queue");
    let mut consumer = completion::Consumer::new(&memory, 4).expect("a queue");
    for lap in 0..6 {
        consumer.arm(Request::Next);
        assert!(!consumer.withdraw_satisfied(), "the queue is empty");
        producer.push(&completion(lap)).expect("room");
        assert!(producer.must_signal());
        assert!(!consumer.withdraw_satisfied(), "the worker has served the request");
        assert_eq!(consumer.poll(), Ok(Some(completion(lap))));
        consumer.release();
    }
    producer.push(&completion(7)).expect("room");
    producer.push(&completion(8)).expect("room");
    consumer.arm(Request::Solicited);
    assert!(!consumer.withdraw_satisfied(), "neither is solicited");
    producer.push(&received(true)).expect("room");
    assert!(!consumer.withdraw_satisfied(), "written after the request, which the worker serves");
    consumer.arm(Request::Solicited);
    assert!(consumer.withdraw_satisfied());
    assert!(!consumer.is_armed() && !consumer.withdraw_satisfied(), "once for a request");
    assert!(!producer.must_signal(), "there is no request");
    for n in [7, 8] {
        consumer.arm(Request::Next);
        assert!(consumer.withdraw_satisfied());
        consumer.arm(Request::Next);
        assert_eq!(consumer.poll(), Ok(Some(completion(n))));
    }
    consumer.arm(Request::Next);
    assert_eq!(consumer.poll(), Ok(Some(received(true))));
    assert!(!consumer.withdraw_satisfied(), "the program has read all entries");
}

#[test]
fn impossible_generation_is_refused_by_program() {
    let memory = memory(completion::words(2));
    let mut producer = completion::Producer::new(&memory, 2).expect("a queue");
    let mut consumer = completion::Consumer::new(&memory, 2).expect("a queue");
    let generation = &memory[completion::HEADER_WORDS + 7];
    for (lap, impossible) in [(1, [2, 3, u64::MAX]), (2, [0, 3, u64::MAX])] {
        for impossible in impossible {
            let valid = generation.swap(impossible, Ordering::Relaxed);
            assert_eq!(consumer.poll(), Err(CompletionError::Generation(impossible)));
            generation.store(valid, Ordering::Relaxed);
        }
        assert_eq!(consumer.poll(), Ok(None));
        for n in [lap, lap + 1] {
            producer.push(&completion(n)).expect("room");
            assert_eq!(consumer.poll(), Ok(Some(completion(n))));
        }
        consumer.release();
    }
}

#[test]
fn error_serves_a_solicited_request() {
    let memory = memory(completion::words(8));
    let mut producer = completion::Producer::new(&memory, 8).expect("a queue");
    let mut consumer = completion::Consumer::new(&memory, 8).expect("a queue");
    consumer.arm(Request::Solicited);
    producer.push(&Completion { status: Status::Flushed, ..completion(1) }).expect("room");
    assert!(producer.must_signal());
}

#[test]
fn request_for_the_next_completion_is_not_weakened() {
    let memory = memory(completion::words(8));
    let mut producer = completion::Producer::new(&memory, 8).expect("a queue");
    let mut consumer = completion::Consumer::new(&memory, 8).expect("a queue");
    consumer.arm(Request::Next);
    consumer.arm(Request::Solicited);
    producer.push(&completion(1)).expect("room");
    assert!(producer.must_signal());
}

#[test]
fn completion_not_polled_before_the_request_causes_a_signal_with_the_next() {
    let memory = memory(completion::words(8));
    let mut producer = completion::Producer::new(&memory, 8).expect("a queue");
    let mut consumer = completion::Consumer::new(&memory, 8).expect("a queue");
    producer.push(&received(true)).expect("room");
    consumer.arm(Request::Solicited);
    producer.push(&completion(2)).expect("room");
    assert!(producer.must_signal(), "the solicited one is behind the consumer's index");
}

//! Interleavings of program and worker, explored by loom. Each load returns every value that the memory model permits.
//! In the models with a hostile side, that side stores a wrong index or wrong bits at any time.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p verbs-layout --test model`.

#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use verbs_layout::completion::{self, CompletionError, Request};
use verbs_layout::doorbell::{self, Ringer, Scanner};
use verbs_layout::ring::{self, RingError};
use verbs_layout::work::{Carried, Completed, Completion, Status};
use verbs_layout::{Unit, Word};

const CAPACITY: usize = 2;

fn memory(words: usize) -> Arc<Vec<Word>> {
    Arc::new((0..words).map(|_| Word::new(0)).collect())
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Returns a descriptor of one unit whose words all depend on `n`.
fn unit(n: u64) -> Unit {
    let mut unit = [n; 8];
    unit[0] = n << 8 | 1;
    unit
}

fn completion(wr_id: u64, solicited: bool) -> Completion {
    Completion {
        wr_id,
        status: Status::Success,
        completed: Completed::Received { solicited, carried: Carried::Nothing },
        byte_len: wr_id as u32,
        qp_number: wr_id as u32,
    }
}

#[test]
fn descriptors_arrive_whole_and_in_order() {
    check(|| {
        let memory = memory(ring::words(CAPACITY));
        let program = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut producer = ring::Producer::new(&memory, CAPACITY).unwrap();
                producer.push(&[unit(1), unit(2)]).unwrap();
                producer.publish();
                // The third descriptor overwrites the first, if the first is released.
                let third = producer.push(&[unit(3)]).is_ok();
                producer.publish();
                third
            }
        });
        let mut consumer = ring::Consumer::new(&memory, CAPACITY).unwrap();
        let mut seen = 0;
        let mut poll = || {
            while let Some(units) = consumer.pop().unwrap() {
                seen += 1;
                assert_eq!(units[..], [unit(seen)]);
                consumer.release();
            }
            seen
        };
        poll();
        let third = program.join().unwrap();
        assert_eq!(poll(), if third { 3 } else { 2 });
    });
}

#[test]
fn shared_descriptors_are_taken_once_by_one_of_two_workers() {
    check(|| {
        let memory: &'static [Word] = Box::leak(Box::new(
            (0..ring::words(CAPACITY)).map(|_| Word::new(0)).collect::<Vec<_>>(),
        ));
        let program = thread::spawn(move || {
            let mut producer = ring::Producer::new(memory, CAPACITY).unwrap();
            producer.push(&[unit(1), unit(2)]).unwrap();
            producer.publish_counted(2);
            // The third descriptor overwrites the first, if the first is released.
            let third = producer.push(&[unit(3)]).is_ok();
            producer.publish_counted(third.into());
            third
        });
        let consumer = Arc::new(ring::SharedConsumer::new(memory, CAPACITY).unwrap());
        let poll = |consumer: &ring::SharedConsumer<'_>, seen: &mut Vec<u64>| {
            while let Some(units) = consumer.pop().unwrap() {
                let number = units[0][1];
                assert_eq!(units[..], [unit(number)], "a whole descriptor");
                seen.push(number);
            }
        };
        let other = thread::spawn({
            let consumer = consumer.clone();
            move || {
                let mut seen = Vec::new();
                poll(&consumer, &mut seen);
                seen
            }
        });
        let mut seen = Vec::new();
        poll(&consumer, &mut seen);
        let mut all = other.join().unwrap();
        let third = program.join().unwrap();
        poll(&consumer, &mut seen);
        assert!(seen.is_sorted() && all.is_sorted(), "in the order of posting");
        all.extend(seen);
        all.sort_unstable();
        assert_eq!(all, if third { vec![1, 2, 3] } else { vec![1, 2] });
        assert_eq!(consumer.remaining(), 0);
    });
}

#[test]
fn hostile_producer_index_keeps_shared_consumers_in_bounds() {
    for index in [1, CAPACITY as u64, CAPACITY as u64 + 1, u64::MAX] {
        check(move || {
            let memory: &'static [Word] = Box::leak(Box::new(
                (0..ring::words(CAPACITY)).map(|_| Word::new(0)).collect::<Vec<_>>(),
            ));
            let program = thread::spawn(move || {
                memory[0].store(index, Ordering::Relaxed);
                memory[ring::HEADER_WORDS].store(1, Ordering::Relaxed);
                memory[0].store(0, Ordering::Relaxed);
            });
            let consumer = Arc::new(ring::SharedConsumer::new(memory, CAPACITY).unwrap());
            let poll = move |consumer: &ring::SharedConsumer<'_>| match consumer.pop() {
                Ok(None) => {}
                Ok(Some(units)) => assert_eq!(units.len(), 1),
                Err(RingError::UnitCount(0)) => assert!(index <= CAPACITY as u64),
                Err(error) => assert_eq!(error, RingError::LyingIndex),
            };
            let other = thread::spawn({
                let consumer = consumer.clone();
                move || poll(&consumer)
            });
            poll(&consumer);
            other.join().unwrap();
            program.join().unwrap();
        });
    }
}

#[test]
fn hostile_producer_index_keeps_consumer_in_bounds() {
    for index in [1, CAPACITY as u64, CAPACITY as u64 + 1, u64::MAX] {
        check(move || {
            let memory = memory(ring::words(CAPACITY));
            let program = thread::spawn({
                let memory = memory.clone();
                move || {
                    memory[0].store(index, Ordering::Relaxed);
                    memory[ring::HEADER_WORDS].store(1, Ordering::Relaxed);
                    memory[0].store(0, Ordering::Relaxed);
                }
            });
            let mut consumer = ring::Consumer::new(&memory, CAPACITY).unwrap();
            for _ in 0..2 {
                match consumer.pop() {
                    Ok(None) => {}
                    Ok(Some(units)) => assert_eq!(units.len(), 1),
                    Err(RingError::UnitCount(0)) => assert!(index <= CAPACITY as u64),
                    Err(error) => assert_eq!(error, RingError::LyingIndex),
                }
                consumer.release();
            }
            program.join().unwrap();
        });
    }
}

#[test]
fn hostile_consumer_index_keeps_producer_in_bounds() {
    for index in [1, CAPACITY as u64, CAPACITY as u64 + 1, u64::MAX] {
        check(move || {
            let memory = memory(ring::words(CAPACITY));
            let worker = thread::spawn({
                let memory = memory.clone();
                move || memory[16].store(index, Ordering::Relaxed)
            });
            let mut producer = ring::Producer::new(&memory, CAPACITY).unwrap();
            producer.push(&[unit(1), unit(2)]).unwrap();
            producer.publish();
            match producer.push(&[unit(3)]) {
                Ok(()) => assert!(index <= CAPACITY as u64),
                Err(RingError::Full) => {}
                Err(error) => {
                    assert_eq!(error, RingError::LyingIndex);
                    assert!(index > CAPACITY as u64);
                }
            }
            worker.join().unwrap();
        });
    }
}

#[test]
fn completions_arrive_whole_and_in_order() {
    check(|| {
        let memory = memory(completion::words(CAPACITY));
        let worker = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut producer = completion::Producer::new(&memory, CAPACITY).unwrap();
                let pushed = (1..=3).map(|n| producer.push(&completion(n, false)));
                pushed.take_while(Result::is_ok).count() as u64
            }
        });
        let mut consumer = completion::Consumer::new(&memory, CAPACITY).unwrap();
        let mut seen = 0;
        let mut poll = || {
            while let Some(completed) = consumer.poll().unwrap() {
                seen += 1;
                assert_eq!(completed, completion(seen, false));
                consumer.release();
            }
            seen
        };
        poll();
        let pushed = worker.join().unwrap();
        assert!(pushed >= CAPACITY as u64);
        assert_eq!(poll(), pushed);
    });
}

/// Acts as the worker: pushes one completion per element of `solicited`, and counts the signals that are due.
fn push_and_signal(memory: &[Word], solicited: &[bool], signals: &AtomicU64) {
    let mut producer = completion::Producer::new(memory, CAPACITY).unwrap();
    for (n, &solicited) in solicited.iter().enumerate() {
        producer.push(&completion(n as u64, solicited)).unwrap();
        if producer.must_signal() {
            signals.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Polls until the queue is empty. Returns the number of completions, and true if one of them was solicited.
fn poll_all(consumer: &mut completion::Consumer<'_>) -> (u64, bool) {
    let (mut count, mut solicited) = (0, false);
    while let Some(completion) = consumer.poll().unwrap() {
        count += 1;
        solicited |= completion.is_solicited();
    }
    (count, solicited)
}

#[test]
fn program_that_arms_sees_completion_or_is_signalled() {
    for (request, kinds) in [
        (Request::Next, [false, false]),
        (Request::Solicited, [true, false]),
        (Request::Solicited, [false, true]),
    ] {
        check(move || {
            let memory = memory(completion::words(CAPACITY));
            let signals = Arc::new(AtomicU64::new(0));
            let worker = thread::spawn({
                let (memory, signals) = (memory.clone(), signals.clone());
                move || push_and_signal(&memory, &kinds, &signals)
            });
            let mut consumer = completion::Consumer::new(&memory, CAPACITY).unwrap();
            let before = poll_all(&mut consumer);
            consumer.arm(request);
            let after = poll_all(&mut consumer);
            worker.join().unwrap();
            let seen = before.0 + after.0;
            let waits = match request {
                Request::Next => seen < 2,
                Request::Solicited => !(before.1 || after.1),
            };
            let signalled = signals.load(Ordering::Acquire) > 0;
            assert!(!waits || signalled, "{before:?}, {after:?} seen, then sleeps for ever");
        });
    }
}

#[test]
fn program_that_arms_twice_sees_completion_or_is_signalled() {
    check(|| {
        let memory = memory(completion::words(CAPACITY));
        let signals = Arc::new(AtomicU64::new(0));
        let worker = thread::spawn({
            let (memory, signals) = (memory.clone(), signals.clone());
            move || push_and_signal(&memory, &[false, false], &signals)
        });
        let mut consumer = completion::Consumer::new(&memory, CAPACITY).unwrap();
        consumer.arm(Request::Next);
        let first = poll_all(&mut consumer).0;
        // The program has received all signals up to here; only later signals count.
        let received = signals.load(Ordering::Acquire);
        consumer.arm(Request::Next);
        let second = poll_all(&mut consumer).0;
        worker.join().unwrap();
        let signalled = signals.load(Ordering::Acquire) > received;
        assert!(
            first + second == 2 || signalled,
            "{first} and {second} seen, then sleeps for ever"
        );
    });
}

#[test]
fn hostile_program_gets_errors_of_its_completion_queue() {
    for index in [0, 1, CAPACITY as u64, CAPACITY as u64 + 1, u64::MAX] {
        check(move || {
            let memory = memory(completion::words(CAPACITY));
            let program = thread::spawn({
                let memory = memory.clone();
                move || {
                    memory[0].store(index, Ordering::Relaxed);
                    memory[1].store(index, Ordering::Relaxed);
                }
            });
            let mut producer = completion::Producer::new(&memory, CAPACITY).unwrap();
            for n in 1..=CAPACITY as u64 + 1 {
                match producer.push(&completion(n, true)) {
                    Ok(()) => assert!(n <= CAPACITY as u64 || index <= CAPACITY as u64),
                    Err(CompletionError::Full) => assert!(n > CAPACITY as u64),
                    Err(error) => assert_eq!(error, CompletionError::LyingIndex),
                }
                producer.must_signal();
            }
            program.join().unwrap();
        });
    }
}

/// Visits the queues that `scanner` returns. `rings` has the number of descriptors published in each of two queues. The
/// worker copies the number of each queue that it visits to `seen`.
fn scan(scanner: &mut Scanner<'_>, rings: &[AtomicU64; 2], seen: &mut [u64; 2]) {
    let mut budget = 16;
    while let Some(queue) = scanner.next_queue(&mut budget) {
        // A relaxed load suffices, because the doorbell bits have release and acquire order.
        seen[queue as usize] = rings[queue as usize].load(Ordering::Relaxed);
    }
}

#[test]
fn worker_that_sleeps_sees_doorbell_or_is_woken() {
    for queues in [[0, 0], [0, 1]] {
        check(move || {
            let memory = memory(doorbell::WORDS);
            let rings = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let wakes = Arc::new(AtomicU64::new(0));
            let programs = queues.map(|queue| {
                let (memory, rings, wakes) = (memory.clone(), rings.clone(), wakes.clone());
                thread::spawn(move || {
                    rings[queue as usize].fetch_add(1, Ordering::Relaxed);
                    if Ringer::new(&memory).unwrap().ring(queue).unwrap() {
                        wakes.fetch_add(1, Ordering::AcqRel);
                    }
                })
            });
            let mut scanner = Scanner::new(&memory).unwrap();
            let sleeps = scanner.prepare_sleep();
            let mut seen = [0; 2];
            if !sleeps {
                scan(&mut scanner, &rings, &mut seen);
            }
            programs.into_iter().for_each(|program| program.join().unwrap());
            let woken = wakes.load(Ordering::Acquire) > 0;
            assert!(!sleeps || woken, "a doorbell was rung and the worker sleeps for ever");
            // All descriptors are visible after a last scan.
            scan(&mut scanner, &rings, &mut seen);
            assert_eq!(seen[0] + seen[1], 2);
        });
    }
}

#[test]
fn worker_that_sleeps_again_is_woken_again() {
    check(|| {
        let memory = memory(doorbell::WORDS);
        let rings = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let wakes = Arc::new(AtomicU64::new(0));
        let program = thread::spawn({
            let (memory, rings, wakes) = (memory.clone(), rings.clone(), wakes.clone());
            move || {
                let ringer = Ringer::new(&memory).unwrap();
                for _ in 0..2 {
                    rings[0].fetch_add(1, Ordering::Relaxed);
                    if ringer.ring(0).unwrap() {
                        wakes.fetch_add(1, Ordering::AcqRel);
                    }
                }
            }
        });
        let mut scanner = Scanner::new(&memory).unwrap();
        scanner.prepare_sleep();
        scanner.wake();
        let received = wakes.load(Ordering::Acquire);
        let mut seen = [0; 2];
        scan(&mut scanner, &rings, &mut seen);
        let sleeps = scanner.prepare_sleep();
        program.join().unwrap();
        let woken = wakes.load(Ordering::Acquire) > received;
        let before = seen[0];
        scan(&mut scanner, &rings, &mut seen);
        assert_eq!(seen[0], 2);
        assert!(!sleeps || woken || before == 2, "{before} of 2 seen, then sleeps for ever");
    });
}

#[test]
fn hostile_bits_cost_bounded_work() {
    check(|| {
        let memory = memory(doorbell::WORDS);
        let program = thread::spawn({
            let memory = memory.clone();
            move || {
                memory[16].store(u64::MAX, Ordering::Relaxed);
                memory[32].store(u64::MAX, Ordering::Relaxed);
            }
        });
        let mut scanner = Scanner::new(&memory).unwrap();
        let mut budget = 4;
        let mut seen = 0;
        while let Some(queue) = scanner.next_queue(&mut budget) {
            assert!(queue < 64);
            seen += 1;
        }
        assert!(seen <= 2, "{seen} queues, a word and a summary word of a budget of 4");
        program.join().unwrap();
    });
}

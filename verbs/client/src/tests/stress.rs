//! Stress tests with real threads and a fixed number of steps.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use rustix::net::{SendFlags, SocketType};
use verbs_layout::session::HEADER_WORDS;
use verbs_layout::{Word, completion};
use verbs_session::message::Call;

use super::hostile::{CAPACITY, honest, reply, scripted};
use super::world::{Appliance, sockets};
use super::{LONG, Side, connect, create_pair};
use crate::{Completion, CompletionQueue, Error, NO_COMPLETION, SendWork, Status, post};

const THREADS: u64 = 4;
const POSTS: u64 = 500;

/// Repeats `post` while the ring is full. The appliance's worker takes descriptors meanwhile, which frees room.
fn post_when_free(mut post: impl FnMut() -> Result<(), Error>) {
    loop {
        match post() {
            Err(Error::Full) => std::thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}

#[test]
fn posts_of_four_threads_all_complete_in_the_order_of_each_thread() {
    let appliance = Appliance::start();
    let mut sides = [0, 1].map(|_| Side::new(appliance.session(), 16));
    for side in &mut sides {
        // The CQ needs room for all completions of the test, because the threads post without waiting for polls.
        let entries = (2 * THREADS * POSTS) as u32;
        side.completions =
            side.session.create_completion_queue(entries, Some(&side.channel)).unwrap();
        side.pair = create_pair(&side.domain, &side.completions, 16);
    }
    let [client, server] = &sides;
    connect(&client.pair, &server.pair, &server.session);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for n in 0..POSTS {
                    let receive = post::receive(0, &[]).unwrap();
                    post_when_free(|| server.pair.post_receive(&receive));
                    let work = post::send(post::inline(&[]).unwrap());
                    let work = SendWork { wr_id: thread << 32 | n, ..work };
                    post_when_free(|| client.pair.post_send(&work));
                }
            });
        }
        let mut next = HashMap::new();
        for _ in 0..THREADS * POSTS {
            let completion = client.completions.next(LONG).unwrap().expect("a completion");
            assert_eq!(completion.status, Status::Success);
            let expected = next.entry(completion.wr_id >> 32).or_insert(0);
            assert_eq!(completion.wr_id & 0xffff_ffff, *expected);
            *expected += 1;
        }
        for _ in 0..THREADS * POSTS {
            assert_eq!(server.completions.next(LONG).unwrap().unwrap().status, Status::Success);
        }
    });
}

/// Two programs send in turn, each only after it has received a message. A lost wake-up of a worker or a program would
/// stop the exchange.
#[test]
fn ping_pong_by_notifications_loses_no_wake_up() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 4), Side::new(appliance.session(), 4));
    connect(&client.pair, &server.pair, &server.session);
    let rounds = 3000;
    let ping = |side: &Side, first: bool| {
        let receive = post::receive(1, &[]).unwrap();
        let work = SendWork { signalled: false, ..post::send(post::inline(b"").unwrap()) };
        side.pair.post_receive(&receive).unwrap();
        for round in 0..rounds {
            if first || round > 0 {
                side.pair.post_send(&work).unwrap();
            }
            let completion = side.completions.next(LONG).unwrap().expect("no wake-up is lost");
            assert_eq!((completion.wr_id, completion.status), (1, Status::Success));
            if round + 1 < rounds {
                side.pair.post_receive(&receive).unwrap();
            }
        }
        if !first {
            side.pair.post_send(&work).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| ping(&server, false));
        ping(&client, true);
    });
    assert!(appliance.with(|world| world.sleeps) > 0, "the worker never slept");
}

#[test]
fn sessions_open_and_close_from_several_threads() {
    let appliance = Appliance::start();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..10 {
                    let (client, server) =
                        (Side::new(appliance.session(), 4), Side::new(appliance.session(), 4));
                    connect(&client.pair, &server.pair, &server.session);
                }
            });
        }
    });
}

/// Returns a CQ of a scripted appliance, the appliance's end of its channel, and the memory of the first worker's
/// queue.
fn scripted_queue() -> (CompletionQueue, OwnedFd, &'static [Word]) {
    let (areas, made) = channel();
    let (channels, ends) = channel();
    let session = scripted(move |socket, request| {
        let (answer, mut fds) = honest(&request.call, &areas);
        if let Call::CreateChannel = request.call {
            let (ours, theirs) = sockets(SocketType::STREAM);
            channels.send(ours).unwrap();
            fds = vec![theirs];
        }
        reply(socket, request.id, Ok(answer), &fds);
    });
    let channel = session.create_channel().unwrap();
    let queue = session.create_completion_queue(CAPACITY, Some(&channel)).unwrap();
    let first = HEADER_WORDS..HEADER_WORDS + completion::words(CAPACITY as usize);
    (queue, ends.recv().unwrap(), &made.recv().unwrap().words()[first])
}

#[test]
fn completion_before_the_request_for_a_notification_is_returned() {
    let (queue, signal, words) = scripted_queue();
    let mut producer = completion::Producer::new(words, CAPACITY as usize).unwrap();
    let mut pushed = 0;
    let next = queue.next_or(LONG, || {
        pushed += 1;
        producer.push(&NO_COMPLETION).unwrap();
        assert!(!producer.must_signal(), "no request yet");
    });
    assert_eq!((next.unwrap(), pushed), (Some(NO_COMPLETION), 1));
    drop(signal);
}

/// A worker thread pushes each completion at about the time at which the program arms the CQ.
#[test]
fn completions_at_the_time_of_requests_wake_the_program() {
    let (queue, signal, words) = scripted_queue();
    let (rounds, round) = (20_000u64, AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = completion::Producer::new(words, CAPACITY as usize).unwrap();
            for wr_id in 1..=rounds {
                while round.load(Ordering::Acquire) < wr_id {
                    std::hint::spin_loop();
                }
                (0..wr_id % 97).for_each(|_| std::hint::spin_loop());
                producer.push(&Completion { wr_id, ..NO_COMPLETION }).unwrap();
                if producer.must_signal() {
                    rustix::net::send(&signal, &[1], SendFlags::NOSIGNAL).unwrap();
                }
            }
        });
        for wr_id in 1..=rounds {
            round.store(wr_id, Ordering::Release);
            let completion = queue.next(LONG).unwrap().expect("no wake-up is lost");
            assert_eq!(completion.wr_id, wr_id);
        }
    });
}

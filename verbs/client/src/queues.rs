//! Send and receive queue of a queue pair, with the doorbells of its worker.
//!
//! Posts go to the rings from the beginning. The worker is known when the connection is established: both doorbells are
//! rung once then, and at each post from then on. A post and [`PairQueues::establish`] take the same lock, so that one
//! of them rings for each descriptor.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::net::SendFlags;
use verbs_layout::Units;

use crate::error::Error;
use crate::lock::lock;
use crate::mapping::{DoorbellRinger, RingProducer};

/// Doorbells of one worker, and the socket that wakes it.
#[derive(Debug)]
pub(crate) struct WorkerBells {
    pub(crate) doorbells: DoorbellRinger,
    pub(crate) wake: OwnedFd,
}

impl WorkerBells {
    /// Announces descriptors in a queue, and wakes the worker if it sleeps.
    fn ring(&self, queue: u32) {
        // A number in range, checked when the QP was created.
        if self.doorbells.ring(queue) == Ok(true) {
            // A full buffer is readable, and a worker that has ended its side needs no wake-up.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.wake, &[1], flags);
        }
    }
}

/// The rings of a queue pair.
#[derive(Debug)]
pub(crate) struct PairQueues {
    sends: Mutex<Queue>,
    receives: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    ring: RingProducer,
    doorbell: u32,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// No worker visits the queue yet.
    New,
    /// This worker visits the queue.
    Established(Arc<WorkerBells>),
    /// No worker visits the queue any more.
    Ended(Error),
}

/// The queue of a post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Send,
    Receive,
}

impl PairQueues {
    pub(crate) fn new(number: u32, sends: RingProducer, receives: RingProducer) -> PairQueues {
        let queue = |ring, doorbell| Mutex::new(Queue { ring, doorbell, state: State::New });
        PairQueues { sends: queue(sends, 2 * number), receives: queue(receives, 2 * number + 1) }
    }

    /// Posts descriptors in order, all under one lock and with one doorbell. Returns the number of those posted, and
    /// the error of the next one.
    pub(crate) fn post(
        &self,
        direction: Direction,
        descriptors: impl Iterator<Item = Units>,
    ) -> (usize, Result<(), Error>) {
        let mut queue = lock(self.queue(direction));
        let queue = &mut *queue;
        if let State::Ended(error) = &queue.state {
            return (0, Err(error.clone()));
        }
        let mut posted = 0;
        let mut result = Ok(());
        for units in descriptors {
            if let Err(error) = queue.ring.push(&units) {
                result = Err(error.into());
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            queue.ring.publish();
            if let State::Established(bells) = &queue.state {
                bells.ring(queue.doorbell);
            }
        }
        (posted, result)
    }

    /// Connects the queues with their worker, which may have missed earlier posts.
    pub(crate) fn establish(&self, bells: &Arc<WorkerBells>) {
        for direction in [Direction::Receive, Direction::Send] {
            let mut queue = lock(self.queue(direction));
            if let State::New = queue.state {
                queue.state = State::Established(bells.clone());
                bells.ring(queue.doorbell);
            }
        }
    }

    /// Refuses all further posts with this error. The first one remains.
    pub(crate) fn end(&self, error: &Error) {
        for direction in [Direction::Receive, Direction::Send] {
            let mut queue = lock(self.queue(direction));
            if !matches!(queue.state, State::Ended(_)) {
                queue.state = State::Ended(error.clone());
            }
        }
    }

    fn queue(&self, direction: Direction) -> &Mutex<Queue> {
        match direction {
            Direction::Send => &self.sends,
            Direction::Receive => &self.receives,
        }
    }
}

//! Send and receive queue of a queue pair, with the doorbells of its worker.
//!
//! Descriptors can be written to the rings before the connection is established, but the worker is known only
//! afterwards. [`PairQueues::establish`] then rings both doorbells once for earlier posts, and each later post rings
//! the doorbell of its queue. A post and `establish` hold the queue's lock, so exactly one of them rings for each
//! descriptor.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::net::SendFlags;
use verbs_layout::Units;

use crate::error::Error;
use crate::lock::lock;
use crate::mapping::{DoorbellRinger, RingProducer};

/// The session's doorbells at one worker, and the socket that wakes the worker.
#[derive(Debug)]
pub(crate) struct WorkerBells {
    pub(crate) doorbells: DoorbellRinger,
    pub(crate) wake: OwnedFd,
}

impl WorkerBells {
    /// Announces descriptors in a queue, and wakes the worker if it sleeps.
    fn ring(&self, queue: u32) {
        // An error is impossible: the creation of the QP has checked that its queue numbers are in range.
        if self.doorbells.ring(queue) == Ok(true) {
            // Errors are ignored: a full socket buffer already wakes the worker, and a worker that has closed its side
            // needs no wake-up.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.wake, &[1], flags);
        }
    }
}

/// Send and receive queue of a queue pair, each with its own lock.
#[derive(Debug)]
pub(crate) struct PairQueues {
    sends: Mutex<Queue>,
    receives: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    /// `None`: the QP has a shared receive queue instead.
    ring: Option<RingProducer>,
    doorbell: u32,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// The connection is not established: no worker serves the queue yet.
    New,
    /// The connection is established: this worker serves the queue.
    Established(Arc<WorkerBells>),
    /// The connection or the session has ended: posts fail with this error.
    Ended(Error),
}

/// The queue of a post: send or receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Send,
    Receive,
}

impl PairQueues {
    pub(crate) fn new(
        number: u32,
        sends: RingProducer,
        receives: Option<RingProducer>,
    ) -> PairQueues {
        let queue = |ring, doorbell| Mutex::new(Queue { ring, doorbell, state: State::New });
        PairQueues {
            sends: queue(Some(sends), 2 * number),
            receives: queue(receives, 2 * number + 1),
        }
    }

    /// Posts descriptors in order, all under one lock and with one doorbell. Stops at the first error. Returns the
    /// number of posted descriptors, and that error.
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
        let Some(ring) = &mut queue.ring else {
            return (0, Err(Error::State("the queue pair has a shared receive queue")));
        };
        let mut posted = 0;
        let mut result = Ok(());
        for units in descriptors {
            if let Err(error) = ring.push(&units) {
                result = Err(error.into());
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            ring.publish();
            if let State::Established(bells) = &queue.state {
                bells.ring(queue.doorbell);
            }
        }
        (posted, result)
    }

    /// Assigns both queues to their worker and rings their doorbells once, because earlier posts rang none. Ended
    /// queues remain ended.
    pub(crate) fn establish(&self, bells: &Arc<WorkerBells>) {
        for direction in [Direction::Receive, Direction::Send] {
            let mut queue = lock(self.queue(direction));
            if let State::New = queue.state {
                queue.state = State::Established(bells.clone());
                bells.ring(queue.doorbell);
            }
        }
    }

    /// Makes all later posts fail with `error`. Queues that have ended already keep their first error.
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

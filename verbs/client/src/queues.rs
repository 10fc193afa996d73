//! Send and receive queue of a queue pair, with the doorbells of its worker.
//!
//! Descriptors can be written to the rings before the connection is established, but the worker is known only
//! afterwards. [`PairQueues::establish`] then rings both doorbells once for earlier posts, and each later post rings
//! the doorbell of its queue. A post and `establish` hold the queue's lock, so exactly one of them rings for each
//! descriptor.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::net::SendFlags;
use verbs_layout::ring::RingError;

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
            // Errors are ignored: a full socket buffer already wakes the worker, and a worker that has closed its
            // socket needs no wake-up.
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
    /// True if posts after the end of the connection are flushed instead of refused.
    flushes: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// The connection is not established: no worker serves the queue yet.
    New,
    /// The connection is established: this worker serves the queue.
    Established(Arc<WorkerBells>),
    /// The connection or the session has ended.
    Ended {
        /// Error of later posts.
        error: Error,
        /// Workers that may flush later posts: all of them if the connection was not established, and none after the
        /// end of the session. A worker that does not serve the queue ignores its doorbell.
        workers: Vec<Arc<WorkerBells>>,
    },
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
        let queue = |ring, doorbell| {
            Mutex::new(Queue { ring, doorbell, state: State::New, flushes: false })
        };
        PairQueues {
            sends: queue(Some(sends), 2 * number),
            receives: queue(receives, 2 * number + 1),
        }
    }

    /// Posts operations or receives in order, all under one lock and with one doorbell. `push` writes the descriptor of
    /// one of them to the ring. Stops at the first error. Returns the number of posts that succeeded, and the error.
    #[inline]
    pub(crate) fn post<W>(
        &self,
        direction: Direction,
        works: &[W],
        push: impl Fn(&mut RingProducer, &W) -> Result<(), RingError>,
    ) -> (usize, Result<(), Error>) {
        let mut posted = 0;
        let result = self.post_with(direction, |ring| {
            for work in works {
                push(ring, work)?;
                posted += 1;
            }
            Ok(())
        });
        (posted, result.and_then(|result| result))
    }

    /// Calls `body` with the ring, under its lock. Publishes the descriptors that `body` has written, with one
    /// doorbell.
    ///
    /// # Errors
    /// The connection has ended, or there is no ring. `body` is then not called.
    #[inline]
    pub(crate) fn post_with<R>(
        &self,
        direction: Direction,
        body: impl FnOnce(&mut RingProducer) -> R,
    ) -> Result<R, Error> {
        let mut queue = lock(self.queue(direction));
        let queue = &mut *queue;
        let workers = match &queue.state {
            State::New => &[],
            State::Established(worker) => std::slice::from_ref(worker),
            State::Ended { workers, .. } if queue.flushes && !workers.is_empty() => workers,
            State::Ended { error, .. } => return Err(error.clone()),
        };
        let Some(ring) = &mut queue.ring else {
            return Err(Error::State("the queue pair has a shared receive queue"));
        };
        let result = body(ring);
        if ring.publish() {
            workers.iter().for_each(|worker| worker.ring(queue.doorbell));
        }
        Ok(result)
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

    /// Ends both queues, because the QP has ended. Later posts fail with `error`, or are flushed by the worker of the
    /// connection. Without a connection the worker of the QP is unknown here: the doorbells are rung at all `workers`.
    /// Queues that have ended already keep their first error.
    pub(crate) fn end(&self, error: &Error, workers: &[Arc<WorkerBells>]) {
        for direction in [Direction::Receive, Direction::Send] {
            let mut queue = lock(self.queue(direction));
            let workers = match &queue.state {
                State::New => {
                    workers.iter().for_each(|worker| worker.ring(queue.doorbell));
                    workers.to_vec()
                }
                State::Established(worker) => vec![worker.clone()],
                State::Ended { .. } => continue,
            };
            queue.state = State::Ended { error: error.clone(), workers };
        }
    }

    /// Ends both queues, because the QP was removed, or the session has ended. All later posts fail: with `error`, or
    /// with the first error of queues that have ended already.
    pub(crate) fn close(&self, error: &Error) {
        for direction in [Direction::Receive, Direction::Send] {
            let mut queue = lock(self.queue(direction));
            match &mut queue.state {
                State::Ended { workers, .. } => workers.clear(),
                state => *state = State::Ended { error: error.clone(), workers: Vec::new() },
            }
        }
    }

    /// Enables posts after the end of the connection: the worker flushes them.
    pub(crate) fn flush_after_end(&self) {
        for direction in [Direction::Receive, Direction::Send] {
            lock(self.queue(direction)).flushes = true;
        }
    }

    fn queue(&self, direction: Direction) -> &Mutex<Queue> {
        match direction {
            Direction::Send => &self.sends,
            Direction::Receive => &self.receives,
        }
    }
}

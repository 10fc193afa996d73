//! Completion queues.
//!
//! A CQ has one queue in shared memory for each worker, and a poll visits them in turn. Completions of one QP are in
//! order, because one worker serves the QP. Completions of different QPs are not ordered.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use verbs_layout::completion::{self, CompletionError, Request};
use verbs_layout::work::{Carried, Completed, Completion, Status};
use verbs_session::message::{Answer, Call};

use crate::channel::CompletionChannel;
use crate::error::Error;
use crate::inbox::Key;
use crate::lock::lock;
use crate::mapping::{Area, CompletionConsumer, MappingError};
use crate::session::Session;

/// Maximum events of a CQ that the program has not taken. A further event is a protocol violation.
const MAX_EVENTS: usize = 2;

/// Initial value for the array passed to [`CompletionQueue::poll`]. Belongs to no operation.
pub const NO_COMPLETION: Completion = Completion {
    wr_id: 0,
    status: Status::General,
    completed: Completed::Received { solicited: false, carried: Carried::Nothing },
    byte_len: 0,
    qp_number: 0,
};

/// A completion queue (CQ). Clones refer to the same CQ, which is removed when the last clone and all of its QPs are
/// dropped. All methods can be called by several threads, except [`next`](Self::next).
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Session,
    number: u32,
    capacity: u32,
    rings: Mutex<Rings>,
    /// Channel for notifications, if any. This clone keeps it until the CQ is removed.
    channel: Option<CompletionChannel>,
}

/// Queues of the CQ in shared memory, one per worker.
#[derive(Debug)]
struct Rings {
    queues: Box<[CompletionConsumer]>,
    /// Index in `queues` of the queue that is polled next.
    next: usize,
    failed: Option<CompletionError>,
    /// Completions of removed QPs that polls are to drop, at most one entry per QP number.
    discards: Vec<Discard>,
    /// True from a request for a notification until [`CompletionQueue::take_notified`] reports the notification or
    /// [`CompletionQueue::withdraw_satisfied`] withdraws the request.
    armed: bool,
}

/// Completions of a removed QP that are still in the queues.
#[derive(Debug)]
struct Discard {
    pair: u32,
    /// For each queue, the index after the last completion of the QP.
    ends: Box<[u64]>,
}

impl Session {
    /// Creates a CQ with room for at least `entries` completions of each worker. A CQ that overflows fails with all of
    /// its QPs. To exclude this, `entries` must be at least the number of its QPs' incomplete posts, including
    /// unsignalled ones, plus the number of unpolled completions.
    ///
    /// # Errors
    /// The channel belongs to another session, the appliance refuses the CQ, or the session has ended.
    pub fn create_completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, Error> {
        let link = self.link();
        if channel.is_some_and(|channel| !std::ptr::eq(channel.session().link(), link)) {
            return Err(Error::Argument("the channel belongs to another session"));
        }
        let number = channel.map(CompletionChannel::number);
        let answer = link.call(Call::CreateCompletionQueue { entries, channel: number })?;
        let (Answer::CompletionQueue { queue, capacity, offsets }, descriptors) = answer else {
            return Err(link.violation("the answer does not match the call"));
        };
        let [area] = &descriptors[..] else {
            return Err(link.violation("a CQ has one descriptor"));
        };
        if offsets.len() != link.workers.len() || capacity < entries {
            return Err(link.violation("the CQ is smaller than requested"));
        }
        if !disjoint(&offsets, capacity) {
            return Err(link.violation("queues of a CQ overlap"));
        }
        let map = || -> Result<Box<[CompletionConsumer]>, MappingError> {
            let area = Area::map(area.as_fd())?;
            offsets.iter().map(|&offset| area.completion_queue(offset, capacity)).collect()
        };
        let queues = map().map_err(|error| link.violation(&error.to_string()))?;
        if !link.inbox.open(Key::Queue(queue), MAX_EVENTS) {
            return Err(link.violation("the number of a CQ is in use"));
        }
        Ok(CompletionQueue(Arc::new(Inner {
            session: self.clone(),
            number: queue,
            capacity,
            rings: Mutex::new(Rings {
                queues,
                next: 0,
                failed: None,
                discards: Vec::new(),
                armed: false,
            }),
            channel: channel.cloned(),
        })))
    }
}

impl CompletionQueue {
    /// Takes the next completion, or returns `None` if the CQ is empty.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    pub fn poll_one(&self) -> Result<Option<Completion>, Error> {
        let mut taken = None;
        self.poll_each(1, |completion| taken = Some(completion))?;
        Ok(taken)
    }

    /// Takes at most `to.len()` completions, stores them in `to` from index 0, and returns their number. An array for
    /// `to` can be initialised with [`NO_COMPLETION`].
    ///
    /// # Errors
    /// No completion was taken, and the session has ended or a worker corrupted the CQ.
    pub fn poll(&self, to: &mut [Completion]) -> Result<usize, Error> {
        let most = to.len();
        let mut places = to.iter_mut();
        self.poll_each(most, |completion| {
            if let Some(place) = places.next() {
                *place = completion;
            }
        })
    }

    /// Calls `take` with at most `most` completions and returns their number. Visits the queues of all workers in turn.
    /// `take` must not use the CQ.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    #[inline]
    pub fn poll_each(&self, most: usize, mut take: impl FnMut(Completion)) -> Result<usize, Error> {
        self.poll_counted(most, |completion| {
            take(completion);
            true
        })
    }

    /// Polls like [`poll_each`](Self::poll_each), but counts only the completions for which `take` returns true. Those
    /// for which it returns false are removed from the CQ without being counted.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    #[inline]
    pub fn poll_counted(
        &self,
        most: usize,
        mut take: impl FnMut(Completion) -> bool,
    ) -> Result<usize, Error> {
        let mut guard = lock(&self.0.rings);
        let rings = &mut *guard;
        let has_discards = !rings.discards.is_empty();
        let mut taken = 0;
        // Each worker's queue is visited at most once, until it is empty or `most` completions are taken.
        for _ in 0..rings.queues.len() {
            if taken == most || rings.failed.is_some() {
                break;
            }
            let queue = &mut rings.queues[rings.next];
            while taken < most {
                match queue.poll() {
                    Ok(Some(completion)) => {
                        let is_dropped = has_discards
                            && is_discarded(&rings.discards, rings.next, queue, &completion);
                        taken += usize::from(!is_dropped && take(completion));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        rings.failed = Some(error);
                        break;
                    }
                }
            }
            queue.release();
            rings.next = if rings.next + 1 == rings.queues.len() { 0 } else { rings.next + 1 };
        }
        if has_discards {
            rings.forget_discards();
        }
        if taken > 0 || most == 0 {
            return Ok(taken);
        }
        if rings.failed.is_some() || self.0.session.link().is_ended() {
            return Err(self.failure(rings.failed));
        }
        Ok(0)
    }

    /// Makes polls drop those completions of a removed QP that are in the CQ at this call. The order of the others does
    /// not change. The appliance may use the number again: later completions of that number are not dropped.
    pub fn discard(&self, pair: u32) {
        let mut rings = lock(&self.0.rings);
        rings.discards.retain(|discard| discard.pair != pair);
        let ends = rings.queues.iter().map(|queue| queue.end_of_pair(pair)).collect();
        rings.discards.push(Discard { pair, ends });
        rings.forget_discards();
    }

    /// Returns the error of a CQ that is corrupt, or whose session has ended.
    #[cold]
    fn failure(&self, failed: Option<CompletionError>) -> Error {
        failed.map_or_else(|| self.0.session.link().disconnected(), Error::CompletionQueue)
    }

    /// Requests one notification on the channel of the CQ. A completion that arrived before the request causes none, so
    /// the program must poll until the CQ is empty before it waits. [`next`](Self::next) arms, polls and waits.
    ///
    /// # Errors
    /// The CQ has no channel.
    pub fn arm(&self, request: Request) -> Result<(), Error> {
        if self.0.channel.is_none() {
            return Err(Error::State("the completion queue has no channel"));
        }
        let mut rings = lock(&self.0.rings);
        rings.queues.iter_mut().for_each(|queue| queue.arm(request));
        rings.armed = true;
        Ok(())
    }

    /// Returns true, once after each [`arm`](Self::arm), if a worker has sent the requested notification. A program
    /// with several CQs on one channel calls it to find the CQs that caused a notification.
    pub fn take_notified(&self) -> bool {
        let mut rings = lock(&self.0.rings);
        let is_notified = rings.armed && !rings.queues.iter().all(CompletionConsumer::is_armed);
        rings.armed &= !is_notified;
        is_notified
    }

    /// Withdraws the requested notification, and returns true, if the CQ has a completion that satisfies the request
    /// and arrived before it. A program that does not poll until the CQ is empty calls this before it waits for the
    /// notification.
    pub fn withdraw_satisfied(&self) -> bool {
        let mut rings = lock(&self.0.rings);
        let rings = &mut *rings;
        let is_withdrawn =
            rings.armed && rings.queues.iter_mut().any(CompletionConsumer::withdraw_satisfied);
        rings.armed &= !is_withdrawn;
        is_withdrawn
    }

    /// Takes the next completion. If the CQ is empty, waits on its channel; returns `None` after `timeout`. The CQ must
    /// be the only CQ of its channel, and only one thread at a time may use the CQ.
    ///
    /// # Errors
    /// The CQ has no channel, the session has ended, or a worker corrupted the CQ.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Completion>, Error> {
        self.next_or(timeout, || ())
    }

    /// Takes the next completion like [`next`](Self::next). Calls `empty` between a poll without a completion and the
    /// request for a notification, so that tests can add a completion there.
    pub(crate) fn next_or(
        &self,
        timeout: Option<Duration>,
        mut empty: impl FnMut(),
    ) -> Result<Option<Completion>, Error> {
        let channel = self.0.channel.as_ref();
        let channel = channel.ok_or(Error::State("the completion queue has no channel"))?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(completion) = self.poll_one()? {
                return Ok(Some(completion));
            }
            empty();
            self.arm(Request::Next)?;
            if let Some(completion) = self.poll_one()? {
                return Ok(Some(completion));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !channel.wait(left)? {
                return Ok(None);
            }
        }
    }

    /// Returns the number of the CQ, as in [`Event::CompletionQueueFailed`](crate::Event::CompletionQueueFailed).
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the number of entries per worker, a power of two.
    pub fn capacity(&self) -> u32 {
        self.0.capacity
    }

    /// Returns the channel for notifications of the CQ, if it was created with one.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel.as_ref()
    }

    pub(crate) fn session(&self) -> &Session {
        &self.0.session
    }
}

impl Rings {
    /// Removes the discards whose completions are all polled.
    #[cold]
    fn forget_discards(&mut self) {
        let Rings { queues, discards, .. } = self;
        discards.retain(|discard| {
            queues.iter().zip(&discard.ends).any(|(queue, end)| queue.position() < *end)
        });
    }
}

/// Returns true if the completion, which was just taken from the queue `at`, is to be dropped.
#[cold]
fn is_discarded(
    discards: &[Discard],
    at: usize,
    queue: &CompletionConsumer,
    completion: &Completion,
) -> bool {
    let is_of = |discard: &Discard| {
        discard.pair == completion.qp_number && queue.position() <= discard.ends[at]
    };
    discards.iter().any(is_of)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let link = self.session.link();
        if link.is_forked() {
            return;
        }
        // Closes the mailbox before the call, because the appliance may reuse the CQ's number at once. The QPs of the
        // CQ are already removed. Errors after the session's end are ignored: the appliance has then removed the CQ.
        link.inbox.close(Key::Queue(self.number));
        let _ = link.call_done(Call::RemoveCompletionQueue { queue: self.number });
    }
}

/// Returns true if queues of `capacity` entries at these byte offsets do not overlap.
fn disjoint(offsets: &[u64], capacity: u32) -> bool {
    // Limits the capacity so that `bytes` cannot overflow. `Area::completion_queue` later refuses a larger capacity.
    let capacity = (capacity as usize).min(completion::MAX_CAPACITY);
    let bytes = completion::words(capacity) as u64 * 8;
    let mut sorted = offsets.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[1] - pair[0] >= bytes)
}

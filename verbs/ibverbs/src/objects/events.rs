//! Asynchronous events of a context: a bounded queue with an eventfd, on which programs poll and set `O_NONBLOCK`.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::ReadWriteFlags;

use crate::bindings::{IBV_EVENT_DEVICE_FATAL, ibv_async_event__bindgen_ty_1, ibv_event_type};
use crate::errno::Result;
use verbs_client::lock::lock;

/// An object with asynchronous events.
pub(crate) trait EventSource: Send + Sync {
    /// Returns the object as the element of an event.
    fn element(&self) -> ibv_async_event__bindgen_ty_1;

    /// Returns the events that the program has taken.
    fn taken_events(&self) -> &Unacknowledged;
}

/// Object of an event; `None`: the device.
pub(crate) type Source = Option<Weak<dyn EventSource>>;

/// Events of a context. An event that is already queued is not queued again, so the number of objects limits the length
/// of the queue.
pub(crate) struct Events {
    /// Counts the queued events, as a semaphore.
    ready: OwnedFd,
    queue: Mutex<VecDeque<(ibv_event_type, Source)>>,
}

impl Events {
    pub(crate) fn new() -> Result<Events> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE);
        let ready = ready.map_err(rustix::io::Errno::raw_os_error)?;
        Ok(Events { ready, queue: Mutex::default() })
    }

    /// Queues an event unless it is queued already.
    pub(crate) fn push(&self, kind: ibv_event_type, source: Source) {
        let mut queue = lock(&self.queue);
        if queue.iter().any(|(queued, at)| *queued == kind && is_same(at, &source)) {
            return;
        }
        queue.push_back((kind, source));
        // The counter cannot overflow: it is at most the length of the queue.
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    /// Queues the event of a lost device.
    pub(crate) fn device_fatal(&self) {
        self.push(IBV_EVENT_DEVICE_FATAL, None);
    }

    /// Takes the oldest event. Waits for one, unless the program has set `O_NONBLOCK`.
    ///
    /// # Errors
    /// `EAGAIN` without an event, `EINTR` after a signal.
    pub(crate) fn take(&self) -> Result<(ibv_event_type, Source)> {
        loop {
            rustix::io::read(&self.ready, &mut [0; 8]).map_err(rustix::io::Errno::raw_os_error)?;
            if let Some(event) = lock(&self.queue).pop_front() {
                return Ok(event);
            }
        }
    }

    /// Removes the events of an object that is destroyed. The caller ensures that no thread can queue a further one.
    pub(crate) fn remove(&self, source: &Source) {
        let mut queue = lock(&self.queue);
        let before = queue.len();
        queue.retain(|(_, queued)| !is_same(queued, source));
        for _ in queue.len()..before {
            // Fails if a thread in `take` has already decremented the counter for the event: that thread then waits
            // again.
            let mut bytes = [0; 8];
            let mut to = [IoSliceMut::new(&mut bytes)];
            let current = u64::MAX;
            let _ = rustix::io::preadv2(&self.ready, &mut to, current, ReadWriteFlags::NOWAIT);
        }
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// Returns true if `a` and `b` are the same object.
fn is_same(a: &Source, b: &Source) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.as_ptr().addr() == b.as_ptr().addr(),
        _ => false,
    }
}

/// Events of an object that the program has taken and not acknowledged. Destroying the object waits for them, as the
/// manual pages of `ibv_destroy_qp`, `ibv_destroy_cq` and `ibv_destroy_srq` say.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    taken: Mutex<Taken>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    count: u32,
    /// True once the object is being destroyed: no further event can be taken.
    is_closed: bool,
}

impl Unacknowledged {
    /// Counts an event that the program takes. Returns false if the object is being destroyed: the program must not get
    /// its pointer then.
    #[must_use]
    pub fn take(&self) -> bool {
        let mut taken = lock(&self.taken);
        taken.count += u32::from(!taken.is_closed);
        !taken.is_closed
    }

    /// Acknowledges `count` events, at most those that were taken.
    pub fn acknowledge(&self, count: u32) {
        let mut taken = lock(&self.taken);
        taken.count = taken.count.saturating_sub(count);
        self.changed.notify_all();
    }

    /// Waits until all taken events are acknowledged.
    pub fn wait(&self) {
        self.wait_for(lock(&self.taken));
    }

    /// Ends the taking of events, and waits until all taken events are acknowledged.
    pub fn close(&self) {
        let mut taken = lock(&self.taken);
        taken.is_closed = true;
        self.wait_for(taken);
    }

    fn wait_for(&self, mut taken: MutexGuard<'_, Taken>) {
        while taken.count > 0 {
            taken = self.changed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_of_an_object_that_is_being_destroyed_is_not_taken() {
        let events = Unacknowledged::default();
        assert!(events.take() && events.take());
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| events.close());
            while events.take() {
                events.acknowledge(1);
                std::thread::yield_now();
            }
            assert!(!closing.is_finished(), "two events are not acknowledged");
            events.acknowledge(2);
        });
        assert!(!events.take());
        events.wait();
    }
}

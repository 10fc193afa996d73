//! Event channels: a queue of events with an eventfd, on which programs poll and set `O_NONBLOCK`.
//!
//! The eventfd is readable if and only if the queue has events. Calls wait on a futex, not by a poll and a read of the
//! eventfd: the read would block if another thread takes the event first, and `SA_RESTART` has no effect on a poll.
//!
//! The queue is bounded by the ids of the channel: an id has at most one event for each step of its connection, and a
//! listener at most as many connection requests as its backlog.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ibverbs::boundary::Shared;
use ibverbs::errno::{EAGAIN, Result};
use ibverbs::registry::{Object, Users};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::futex;

use crate::bindings::rdma_event_channel;
use crate::id::Id;
use crate::id::event::{Event, NewEvent};
use verbs_client::lock::lock;

/// An event channel.
#[derive(Debug)]
#[repr(C)]
pub struct Channel {
    c: Shared<rdma_event_channel>,
    users: Users,
    ready: OwnedFd,
    queue: Mutex<Queue>,
    /// Number of queued events so far, wrapping. Waiting threads use it as a futex.
    changes: AtomicU32,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<NewEvent>,
    /// True while the eventfd is readable.
    is_readable: bool,
}

ibverbs::object!(Channel, rdma_event_channel);

impl Channel {
    /// Creates a channel. Its descriptor blocks until the program sets `O_NONBLOCK`.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn create() -> Result<Arc<Channel>> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC).map_err(Errno::raw_os_error)?;
        let c = Shared::new(rdma_event_channel { fd: ready.as_raw_fd() });
        let (users, queue, changes) = (Users::default(), Mutex::default(), AtomicU32::new(0));
        Ok(Channel { c, users, ready, queue, changes }.register())
    }

    /// Destroys a channel. Ids of the channel keep its descriptor open. A thread that waits for an event continues to
    /// wait, as on a closed descriptor: many programs exit with such a thread, and would report an error.
    ///
    /// # Errors
    /// `EINVAL`: there is no such channel.
    pub fn destroy(pointer: *mut rdma_event_channel) -> Result<()> {
        Channel::unregister(pointer).map(drop)
    }

    /// Queues an event.
    pub(crate) fn push(&self, event: NewEvent) {
        let mut queue = lock(&self.queue);
        queue.events.push_back(event);
        self.update(&mut queue);
        self.changes.fetch_add(1, Ordering::AcqRel);
        // An error is impossible: the address is valid. Wakes all threads: a single one might return because of a
        // signal and leave the event.
        let _ = futex::wake(&self.changes, futex::Flags::PRIVATE, u32::MAX >> 1);
    }

    /// Takes the oldest event. Waits for one, unless the program has set `O_NONBLOCK`.
    ///
    /// # Errors
    /// `EAGAIN` without an event, `EINTR` after a signal.
    pub fn take(&self) -> Result<Arc<Event>> {
        loop {
            let seen = self.changes.load(Ordering::Acquire);
            let mut queue = lock(&self.queue);
            if let Some(event) = queue.events.pop_front() {
                self.update(&mut queue);
                return Ok(event.deliver());
            }
            drop(queue);
            let flags = rustix::fs::fcntl_getfl(&self.ready).map_err(Errno::raw_os_error)?;
            if flags.contains(OFlags::NONBLOCK) {
                return Err(EAGAIN);
            }
            match futex::wait(&self.changes, futex::Flags::PRIVATE, seen, None) {
                // `EAGAIN`: an event arrived between the check and the wait.
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.raw_os_error()),
            }
        }
    }

    /// Removes and returns the events of an id.
    pub(crate) fn remove(&self, id: &Id) -> Vec<NewEvent> {
        let mut queue = lock(&self.queue);
        let (removed, kept) =
            queue.events.drain(..).partition(|event: &NewEvent| std::ptr::eq(&**event.owner(), id));
        queue.events = kept;
        self.update(&mut queue);
        Vec::from(removed)
    }

    /// Returns true if the queue has an event of an id.
    pub(crate) fn has_event(&self, id: &Id) -> bool {
        lock(&self.queue).events.iter().any(|event| std::ptr::eq(&**event.owner(), id))
    }

    /// Returns the number of connection requests of a listener in the queue.
    pub(crate) fn requests(&self, id: &Id) -> usize {
        let queue = lock(&self.queue);
        let is_request =
            |event: &&NewEvent| event.child().is_some() && std::ptr::eq(&**event.owner(), id);
        queue.events.iter().filter(is_request).count()
    }

    /// Makes the eventfd readable if and only if there are events.
    fn update(&self, queue: &mut Queue) {
        let is_readable = !queue.events.is_empty();
        if is_readable == queue.is_readable {
            return;
        }
        queue.is_readable = is_readable;
        // Neither call blocks: under the lock of the queue, the counter is 1 if `is_readable` was true, and else 0.
        let _ = match is_readable {
            true => rustix::io::write(&self.ready, &1u64.to_ne_bytes()),
            false => rustix::io::read(&self.ready, &mut [0; 8]),
        };
    }
}

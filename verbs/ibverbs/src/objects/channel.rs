//! Completion channels.
//!
//! A notification of the appliance does not name its CQ. The channel therefore keeps a list of its CQs and checks for
//! which of them a worker has sent a notification.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, Weak};

use rustix::io::Errno;

use crate::bindings::{ibv_comp_channel, ibv_cq};
use crate::boundary::{Shared, fields};
use crate::errno::{EIO, OrErrno, Result};
use crate::object;
use crate::objects::context::Context;
use crate::registry::{Object, Use, Users};
use verbs_client::lock::lock;

/// A CQ of a channel.
pub(crate) trait Notified: Send + Sync {
    /// Returns true, once for each request, if a worker has sent the requested notification.
    fn take_notified(&self) -> bool;

    /// Withdraws the request for a notification, and returns true, if an earlier completion in the CQ satisfies it.
    fn withdraw_satisfied(&self) -> bool;

    /// Counts an event that the program takes. Returns the pointer and the context of the CQ; `None` if the CQ is being
    /// destroyed.
    fn notify(&self) -> Option<Notification>;
}

/// Pointer and context of a CQ, for the program.
pub(crate) type Notification = (*mut ibv_cq, *mut c_void);

/// A completion channel.
#[repr(C)]
pub struct CompletionChannel {
    c: Shared<ibv_comp_channel>,
    native: verbs_client::CompletionChannel,
    context: Use<Context>,
    users: Users,
    queues: Mutex<Queues>,
}

/// CQs of a channel.
#[derive(Default)]
struct Queues {
    all: Vec<Weak<dyn Notified>>,
    /// Index in `all` of the CQ that is checked first.
    next: usize,
    /// Address of the CQ whose event was requested last.
    armed: usize,
}

object!(CompletionChannel, ibv_comp_channel);

impl CompletionChannel {
    /// Creates a channel. Its descriptor blocks until the program sets `O_NONBLOCK`.
    ///
    /// # Errors
    /// The appliance refuses the channel, or the session has ended.
    pub fn create(context: &Arc<Context>) -> Result<Arc<CompletionChannel>> {
        let native = context.session().create_channel().or_errno()?;
        let flags = rustix::fs::fcntl_getfl(&native);
        let flags = flags.map(|flags| flags - rustix::fs::OFlags::NONBLOCK);
        let set = flags.and_then(|flags| rustix::fs::fcntl_setfl(&native, flags));
        set.map_err(Errno::raw_os_error)?;
        let fd = native.as_fd().as_raw_fd();
        let c = ibv_comp_channel { context: context.as_ptr(), fd, refcnt: 0 };
        Ok(CompletionChannel {
            c: Shared::new(c),
            native,
            context: Use::new(context),
            users: Users::default(),
            queues: Mutex::default(),
        }
        .register())
    }

    /// Destroys a channel.
    ///
    /// # Errors
    /// `EINVAL`: there is no such channel. `EBUSY`: CQs use it.
    pub fn destroy(pointer: *mut ibv_comp_channel) -> Result<()> {
        CompletionChannel::unregister(pointer).map(drop)
    }

    /// Returns the context.
    pub fn context(&self) -> &Arc<Context> {
        self.context.object()
    }

    /// Returns the native channel.
    pub fn native(&self) -> &verbs_client::CompletionChannel {
        &self.native
    }

    /// Takes an event and counts it at its CQ. Waits for one, unless the program has set `O_NONBLOCK`. A CQ with a
    /// completion that arrived before the request for the event has an event at once, as with RDMA devices: perftest
    /// requests an event before it has polled all completions.
    ///
    /// # Errors
    /// `EAGAIN` without an event, `EINTR` after a signal, `EIO` after the end of the session.
    pub(crate) fn take(&self) -> Result<Notification> {
        loop {
            if let Some(notification) = self.find(|queue| queue.withdraw_satisfied()) {
                return Ok(notification);
            }
            match rustix::io::read(&self.native, &mut [0; 1]) {
                Ok(1..) => {}
                Ok(0) => return Err(EIO),
                Err(error) => return Err(error.raw_os_error()),
            }
            // `None`: all CQs of the channel were destroyed after the event.
            if let Some(notification) = self.notified() {
                return Ok(notification);
            }
        }
    }

    pub(crate) fn add(&self, queue: Weak<dyn Notified>) {
        let mut queues = lock(&self.queues);
        queues.all.push(queue);
        self.c.write(fields::refcnt, self.c.read(fields::refcnt) + 1);
    }

    /// Removes the CQ at this address.
    pub(crate) fn remove(&self, queue: usize) {
        let mut queues = lock(&self.queues);
        queues.all.retain(|other| other.as_ptr().addr() != queue);
        self.c.write(fields::refcnt, self.c.read(fields::refcnt) - 1);
    }

    /// Records the request for an event of the CQ at this address.
    pub(crate) fn arm(&self, queue: usize) {
        lock(&self.queues).armed = queue;
    }

    /// Counts an event at the next CQ that a worker has notified. A worker may send two notifications for one request:
    /// the second one is reported for the CQ with the latest request. `None` if all CQs are being destroyed.
    fn notified(&self) -> Option<Notification> {
        if let Some(notification) = self.find(|queue| queue.take_notified()) {
            return Some(notification);
        }
        let queues = lock(&self.queues);
        let latest = queues.all.iter().find(|queue| queue.as_ptr().addr() == queues.armed);
        let mut others = latest.into_iter().chain(&queues.all).filter_map(Weak::upgrade);
        others.find_map(|queue| queue.notify())
    }

    /// Counts an event at the next CQ for which `has_event` returns true. Visits the CQs in turn.
    fn find(&self, has_event: impl Fn(&dyn Notified) -> bool) -> Option<Notification> {
        let mut queues = lock(&self.queues);
        let count = queues.all.len();
        for at in (queues.next..count).chain(0..queues.next.min(count)) {
            if let Some(queue) = queues.all[at].upgrade()
                && has_event(&*queue)
                && let Some(notification) = queue.notify()
            {
                queues.next = at + 1;
                return Some(notification);
            }
        }
        None
    }
}

impl std::fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionChannel").field("native", &self.native).finish_non_exhaustive()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.native.as_fd()
    }
}

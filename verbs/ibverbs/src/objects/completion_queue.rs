//! Completion queues: the native CQ with its C structure, polls, and events.

use std::ffi::c_void;
use std::sync::Arc;

use verbs_client::{Completed, Completion, Opcode, Request, Status};

use crate::bindings::{IBV_EVENT_CQ_ERR, ibv_async_event__bindgen_ty_1, ibv_cq, ibv_cq_ex, ibv_wc};
use crate::boundary::{Shared, fields};
use crate::errno::{EINVAL, OrErrno, Result};
use crate::gate::Gate;
use crate::object;
use crate::objects::channel::{CompletionChannel, Notification, Notified};
use crate::objects::context::Context;
use crate::objects::counts::Counts;
use crate::objects::empty_polls::EmptyPolls;
use crate::objects::events::{EventSource, Source, Unacknowledged};
use crate::objects::instance::Target;
use crate::registry::{Object, Use, Users, sole};
use verbs_client::lock::lock;

/// A completion queue (CQ), ordinary or extended.
#[derive(Debug)]
#[repr(C)]
pub struct CompletionQueue {
    c: Shared<ibv_cq_ex>,
    native: verbs_client::CompletionQueue,
    context: Use<Context>,
    channel: Option<Use<CompletionChannel>>,
    users: Users,
    counts: Counts,
    empty_polls: EmptyPolls,
    pub(crate) notifications: Unacknowledged,
    pub(crate) async_events: Unacknowledged,
    /// Held from `ibv_start_poll` to `ibv_end_poll`.
    pub(crate) gate: Gate,
    /// The completion that the extended poller has taken. `gate` guards it.
    pub(crate) current: Shared<ibv_wc>,
}

object!(CompletionQueue, ibv_cq_ex);

impl CompletionQueue {
    /// Creates a CQ with room for `entries` completions.
    ///
    /// # Errors
    /// `EINVAL`: `entries` is 0 or above the limit. The appliance refuses the CQ, or the session has ended.
    pub fn create(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<CompletionChannel>>,
        cq_context: *mut c_void,
    ) -> Result<Arc<CompletionQueue>> {
        let limit = context.session().limits().completions;
        if entries == 0 || entries > limit || i32::try_from(entries).is_err() {
            return Err(EINVAL);
        }
        if channel.is_some_and(|channel| !Arc::ptr_eq(channel.context(), context)) {
            return Err(EINVAL);
        }
        // The native CQ has room for twice as many entries: programs size a CQ for signalled requests only, but at the
        // end of a QP unsignalled requests also have completions, as flushed.
        let room = entries.saturating_mul(2).max(64).min(limit);
        let native = channel.map(|channel| channel.native());
        let native = context.session().create_completion_queue(room, native).or_errno()?;
        let c = ibv_cq_ex {
            context: context.as_ptr(),
            channel: channel.map_or(std::ptr::null_mut(), |channel| channel.as_ptr()),
            cq_context,
            handle: native.number(),
            cqe: entries as i32,
            ..ibv_cq_ex::default()
        };
        let number = native.number();
        let queue = CompletionQueue {
            c: Shared::new(c),
            native,
            context: Use::new(context),
            channel: channel.map(Use::new),
            users: Users::default(),
            counts: context.instance().counts().clone(),
            empty_polls: EmptyPolls::default(),
            notifications: Unacknowledged::default(),
            async_events: Unacknowledged::default(),
            gate: Gate::default(),
            current: Shared::default(),
        }
        .register();
        let target = Arc::downgrade(&queue);
        lock(&context.instance().objects).completion_queues.insert(number, target.clone());
        if let Some(channel) = channel {
            channel.add(target);
        }
        Ok(queue)
    }

    /// Destroys a CQ. Waits until the program has acknowledged its events. A forked child does not wait: the threads
    /// that use the CQ exist only in the parent.
    ///
    /// # Errors
    /// `EINVAL`: there is no such CQ. `EBUSY`: QPs use it.
    pub fn destroy(pointer: *mut ibv_cq) -> Result<()> {
        let queue = CompletionQueue::retire(pointer.cast())?;
        let context = queue.context().clone();
        let is_forked = context.instance().is_forked();
        if let Some(channel) = &queue.channel {
            channel.remove(Arc::as_ptr(&queue).addr());
        }
        if is_forked {
            queue.unlist();
            return Ok(());
        }
        queue.notifications.close();
        queue.async_events.close();
        queue.unlist();
        lock(&context.instance().objects).completion_queues.remove(&queue.native.number());
        let source = queue.source();
        // Waits for the dispatcher, or a thread that waits at the channel, which may still handle an event of the CQ.
        let queue = sole(queue);
        context.events().remove(&source);
        // The lock is held during the removal: otherwise the dispatcher could pass an event of this CQ to a new one
        // with the same number.
        let _objects = lock(&context.instance().objects);
        drop(queue);
        Ok(())
    }

    /// Returns the CQ of a pointer.
    ///
    /// # Errors
    /// `EINVAL`: there is no such CQ.
    pub fn find(pointer: *mut ibv_cq) -> Result<Arc<CompletionQueue>> {
        CompletionQueue::from_ptr(pointer.cast())
    }

    /// Returns the pointer of the program.
    pub fn pointer(&self) -> *mut ibv_cq {
        self.c.get().cast()
    }

    /// Returns the context.
    pub fn context(&self) -> &Arc<Context> {
        self.context.object()
    }

    /// Returns the channel.
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref().map(Use::object)
    }

    /// Returns the native CQ.
    pub fn native(&self) -> &verbs_client::CompletionQueue {
        &self.native
    }

    fn source(self: &Arc<Self>) -> Source {
        Some(Arc::<Self>::downgrade(self))
    }

    pub(crate) fn set_entries(&self, entries: i32) {
        self.c.write(fields::cqe, entries);
    }

    pub(crate) fn c(&self) -> &Shared<ibv_cq_ex> {
        &self.c
    }

    /// Takes at most `most` completions, and calls `take` with each. Returns their number.
    ///
    /// # Errors
    /// The session has ended, or the CQ has failed.
    #[inline]
    pub fn poll(&self, most: usize, mut take: impl FnMut(&Completion)) -> Result<usize> {
        let polled = self.native.poll_counted(most, |completion| {
            if let Completed::Sent(_) = completion.completed {
                self.counts.add_polled(completion.qp_number);
            }
            if completion.status != Status::Success && self.is_second(&completion) {
                return false;
            }
            take(&completion);
            true
        });
        let taken = polled.or_errno()?;
        if taken == 0 {
            self.empty_polls.add();
        } else {
            self.empty_polls.reset();
        }
        Ok(taken)
    }

    /// Requests an event on the channel for the next completion, or the next solicited one.
    pub(crate) fn arm(&self, request: Request) {
        if let Some(channel) = &self.channel {
            channel.arm(std::ptr::from_ref(self).addr());
            // An error is impossible: the native CQ has the native channel.
            let _ = self.native.arm(request);
        }
    }

    /// Returns true for the second completion of a failed RDMA Write with Immediate, which is posted as a Write and
    /// Immediate Data. After a failed request all later ones fail. So if any request of the QP has failed before this
    /// Immediate Data, the Write directly before it has failed, and has a completion already.
    #[cold]
    fn is_second(&self, completion: &Completion) -> bool {
        let Completed::Sent(opcode) = completion.completed else { return false };
        let has_failed = self.counts.record_failure(completion.qp_number);
        has_failed && opcode == Opcode::Immediate
    }
}

impl Notified for CompletionQueue {
    fn take_notified(&self) -> bool {
        self.native.take_notified()
    }

    fn withdraw_satisfied(&self) -> bool {
        self.native.withdraw_satisfied()
    }

    fn notify(&self) -> Option<Notification> {
        let is_counted = self.notifications.take();
        is_counted.then(|| (self.pointer(), self.c.read(fields::cq_context)))
    }
}

impl Target<String> for CompletionQueue {
    fn handle(self: Arc<Self>, _message: String) {
        self.context().events().push(IBV_EVENT_CQ_ERR, self.source());
    }
}

impl EventSource for CompletionQueue {
    fn element(&self) -> ibv_async_event__bindgen_ty_1 {
        ibv_async_event__bindgen_ty_1 { cq: self.pointer() }
    }

    fn taken_events(&self) -> &Unacknowledged {
        &self.async_events
    }
}

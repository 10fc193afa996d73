//! Shared receive queues: the native SRQ with its C structure, its limit and its asynchronous events.

use std::sync::{Arc, Mutex};

use verbs_client::SharedReceivesEvent;

use crate::bindings::*;
use crate::boundary::Shared;
use crate::errno::{EINVAL, OrErrno, Result};
use crate::object;
use crate::objects::context::Context;
use crate::objects::device::MAX_SGES;
use crate::objects::domain::Domain;
use crate::objects::events::{EventSource, Source, Unacknowledged};
use crate::objects::instance::Target;
use crate::registry::{Object, Use, Users, sole};
use verbs_client::lock::lock;

/// A shared receive queue (SRQ).
#[derive(Debug)]
#[repr(C)]
pub struct SharedReceiveQueue {
    c: Shared<ibv_srq>,
    native: verbs_client::SharedReceiveQueue,
    domain: Use<Domain>,
    users: Users,
    /// Number of receives, and the requested limit.
    attributes: Mutex<ibv_srq_attr>,
    pub(crate) events: Unacknowledged,
}

object!(SharedReceiveQueue, ibv_srq);

impl SharedReceiveQueue {
    /// Creates an SRQ. `attributes` receives its actual capabilities.
    ///
    /// # Errors
    /// `EINVAL`: no receives, or more receives or SGEs than the device supports. The appliance refuses the SRQ, or the
    /// session has ended.
    pub fn create(
        domain: &Arc<Domain>,
        attributes: &mut ibv_srq_init_attr,
    ) -> Result<Arc<SharedReceiveQueue>> {
        let context = domain.context();
        let wanted = &mut attributes.attr;
        if wanted.max_wr == 0
            || wanted.max_wr > context.session().limits().posts
            || wanted.max_sge > MAX_SGES
        {
            return Err(EINVAL);
        }
        let native = domain.native().create_shared_receive_queue(wanted.max_wr).or_errno()?;
        wanted.max_sge = MAX_SGES;
        let c = ibv_srq {
            context: context.as_ptr(),
            srq_context: attributes.srq_context,
            pd: domain.pointer(),
            handle: native.number(),
            ..ibv_srq::default()
        };
        let number = native.number();
        let queue = SharedReceiveQueue {
            c: Shared::new(c),
            native,
            domain: Use::new(domain),
            users: Users::default(),
            attributes: Mutex::new(ibv_srq_attr { srq_limit: 0, ..attributes.attr }),
            events: Unacknowledged::default(),
        }
        .register();
        let target = Arc::downgrade(&queue);
        lock(&context.instance().objects).shared_receives.insert(number, target);
        Ok(queue)
    }

    /// Destroys an SRQ. Waits until the program has acknowledged its events. A forked child does not wait: the threads
    /// that use the SRQ exist only in the parent.
    ///
    /// # Errors
    /// `EINVAL`: there is no such SRQ. `EBUSY`: QPs use it.
    pub fn destroy(pointer: *mut ibv_srq) -> Result<()> {
        let queue = SharedReceiveQueue::retire(pointer)?;
        let context = queue.context().clone();
        if context.instance().is_forked() {
            queue.unlist();
            return Ok(());
        }
        queue.events.close();
        queue.unlist();
        lock(&context.instance().objects).shared_receives.remove(&queue.native.number());
        let source = queue.source();
        // Waits for the dispatcher, which may still handle an event of the SRQ.
        let queue = sole(queue);
        context.events().remove(&source);
        // The lock is held during the removal: otherwise the dispatcher could pass an event of this SRQ to a new one
        // with the same number.
        let _objects = lock(&context.instance().objects);
        drop(queue);
        Ok(())
    }

    /// Requests an event when fewer than `limit` receives remain; 0 ends the request.
    ///
    /// # Errors
    /// `EINVAL`: `limit` is above the number of receives of the SRQ. The session has ended.
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        let mut attributes = lock(&self.attributes);
        if limit > attributes.max_wr {
            return Err(EINVAL);
        }
        self.native.set_limit(limit).or_errno()?;
        attributes.srq_limit = limit;
        Ok(())
    }

    /// Returns the number of receives, and the requested limit.
    pub fn attributes(&self) -> ibv_srq_attr {
        *lock(&self.attributes)
    }

    fn source(self: &Arc<Self>) -> Source {
        Some(Arc::<Self>::downgrade(self))
    }

    /// Returns the context.
    pub fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Returns the native SRQ.
    pub fn native(&self) -> &verbs_client::SharedReceiveQueue {
        &self.native
    }

    /// Returns the address of the C structure.
    pub fn pointer(&self) -> *mut ibv_srq {
        self.c.get()
    }
}

impl Target<SharedReceivesEvent> for SharedReceiveQueue {
    fn handle(self: Arc<Self>, event: SharedReceivesEvent) {
        let kind = match event {
            SharedReceivesEvent::Low => {
                // The event ends the program's request.
                lock(&self.attributes).srq_limit = 0;
                IBV_EVENT_SRQ_LIMIT_REACHED
            }
            SharedReceivesEvent::Failed { .. } => IBV_EVENT_SRQ_ERR,
        };
        self.context().events().push(kind, self.source());
    }
}

impl EventSource for SharedReceiveQueue {
    fn element(&self) -> ibv_async_event__bindgen_ty_1 {
        ibv_async_event__bindgen_ty_1 { srq: self.pointer() }
    }

    fn taken_events(&self) -> &Unacknowledged {
        &self.events
    }
}

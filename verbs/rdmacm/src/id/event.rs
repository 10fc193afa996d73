//! Events of ids (`rdma_cm_event`), before and after the program takes them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ibverbs::boundary::Shared;
use ibverbs::errno::Result;
use ibverbs::registry::{Object, Users};
use verbs_client::Depths;

use crate::bindings::{
    RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_event, rdma_cm_event_type, rdma_conn_param,
};
use crate::id::Id;

/// Maximum number of bytes of private data in `rdma_conn_param`: its length field has 8 bits.
const MAX_PRIVATE_DATA: usize = u8::MAX as usize;

/// An event that the program has not taken.
#[derive(Debug)]
pub(crate) struct NewEvent {
    kind: rdma_cm_event_type,
    status: c_int,
    /// The id of the event. For a connection request, the listener.
    owner: Arc<Id>,
    /// The id of a connection request.
    child: Option<Arc<Id>>,
    depths: Option<Depths>,
    private_data: Vec<u8>,
}

/// An event that the program has taken and not acknowledged.
#[derive(Debug)]
#[repr(C)]
pub struct Event {
    c: Shared<rdma_cm_event>,
    users: Users,
    new: NewEvent,
}

ibverbs::object!(Event, rdma_cm_event);

impl NewEvent {
    /// Returns an event of an id with a status: 0 or a negative error number.
    pub(crate) fn new(owner: &Arc<Id>, kind: rdma_cm_event_type, status: c_int) -> NewEvent {
        let owner = owner.clone();
        NewEvent { kind, status, owner, child: None, depths: None, private_data: Vec::new() }
    }

    /// Returns a connection request for a listener. `child` is its id.
    pub(crate) fn request(listener: &Arc<Id>, child: Arc<Id>) -> NewEvent {
        let child = Some(child);
        NewEvent { child, ..NewEvent::new(listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0) }
    }

    /// Sets the IRD and ORD that the receiver of the event may use, and the peer's private data.
    pub(crate) fn with(mut self, depths: Option<Depths>, mut private_data: Vec<u8>) -> NewEvent {
        private_data.truncate(MAX_PRIVATE_DATA);
        (self.depths, self.private_data) = (depths, private_data);
        self
    }

    pub(crate) fn owner(&self) -> &Arc<Id> {
        &self.owner
    }

    /// Returns the id of a connection request; `None` for other events.
    pub(crate) fn child(&self) -> Option<&Arc<Id>> {
        self.child.as_ref()
    }

    /// Returns the id of a connection request; `None` for other events.
    pub(crate) fn into_child(self) -> Option<Arc<Id>> {
        self.child
    }

    /// Changes the event into one that the program has taken. The owner counts it as unacknowledged.
    pub(crate) fn deliver(self) -> Arc<Event> {
        let NewEvent { kind, status, owner, child, depths, private_data } = &self;
        // `take` succeeds: the channel is locked, and the destruction of the owner removes queued events before it
        // closes `unacknowledged`.
        let _ = owner.unacknowledged().take();
        let depths = depths.unwrap_or(Depths { ird: 0, ord: 0 });
        let data = match private_data.is_empty() {
            true => std::ptr::null(),
            false => private_data.as_ptr().cast::<c_void>(),
        };
        let mut c = rdma_cm_event {
            id: child.as_ref().unwrap_or(owner).as_ptr(),
            event: *kind,
            status: *status,
            ..rdma_cm_event::default()
        };
        if child.is_some() {
            c.listen_id = owner.as_ptr();
        }
        c.param.conn = rdma_conn_param {
            private_data: data,
            private_data_len: private_data.len() as u8,
            responder_resources: narrow(depths.ird),
            initiator_depth: narrow(depths.ord),
            ..rdma_conn_param::default()
        };
        Event { c: Shared::new(c), users: Users::default(), new: self }.register()
    }
}

impl Event {
    /// Acknowledges an event, which frees it.
    ///
    /// # Errors
    /// `EINVAL`: there is no such event.
    pub fn acknowledge(pointer: *mut rdma_cm_event) -> Result<()> {
        let event = Event::unregister(pointer)?;
        event.new.owner.unacknowledged().acknowledge(1);
        Ok(())
    }

    /// Returns the kind.
    pub fn kind(&self) -> rdma_cm_event_type {
        self.new.kind
    }

    /// Returns 0, or a negative error number.
    pub fn status(&self) -> c_int {
        self.new.status
    }

    /// Returns the id of a connection request; `None` for other events.
    pub fn child(&self) -> Option<&Arc<Id>> {
        self.new.child.as_ref()
    }
}

/// Returns a depth, limited to the 8 bits of `rdma_conn_param`.
fn narrow(depth: u16) -> u8 {
    depth.min(u8::MAX.into()) as u8
}

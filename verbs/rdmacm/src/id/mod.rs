//! `rdma_cm_id`: an endpoint, its state and its events.

mod bind;
pub mod channel;
pub(crate) mod connect;
mod environment;
pub mod event;
mod listen;
mod queues;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use ibverbs::bindings::{IBV_QPT_RC, ibv_qp_init_attr};
use ibverbs::boundary::Shared;
use ibverbs::context::Context;
use ibverbs::dispatcher::{ConnectionEvents, SessionEvents, set_connection_events};
use ibverbs::domain::Domain;
use ibverbs::errno::{ECONNREFUSED, EINVAL, ENODEV, EPROTONOSUPPORT, Result};
use ibverbs::events::Unacknowledged;
use ibverbs::instance::Instance;
use ibverbs::queue_pair::QueuePair;
use ibverbs::registry::{Object, Users};
use ibverbs::report;
use verbs_client::{ConnectionRequest, Depths, Listener, PairEvent};

use crate::bindings::{
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_REJECTED, RDMA_PS_TCP, rdma_cm_event_type, rdma_cm_id, rdma_port_space,
};
use crate::boundary::fields;
use crate::id::channel::Channel;
use crate::id::event::{Event, NewEvent};
use verbs_client::lock::lock;

/// Receiver of the session's events.
struct Handler;

impl SessionEvents for Handler {
    fn incoming(&self, request: ConnectionRequest) {
        // If no id listens, or the id does not keep the request, the drop of the request rejects it.
        if let Some(id) = listen::find(&request) {
            id.incoming(request);
        }
    }

    fn ended(&self, instance: &Arc<Instance>) {
        Id::registry().all().iter().for_each(|id| id.remove(instance));
        listen::forget_all(instance);
    }
}

impl ConnectionEvents for Handler {
    fn pair(&self, pair: &Arc<QueuePair>, event: PairEvent) {
        connect::on_event(pair, event);
    }
}

/// Starts to receive the session's events.
fn receive_events() {
    set_connection_events(&Handler);
}

/// An endpoint of a connection, or a listener.
#[derive(Debug)]
#[repr(C)]
pub struct Id {
    c: Shared<rdma_cm_id>,
    users: Users,
    state: Mutex<State>,
    unacknowledged: Unacknowledged,
}

/// State of an id.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) channel: Arc<Channel>,
    /// True if calls wait for their outcome, and the channel belongs to this id alone.
    pub(crate) is_synchronous: bool,
    /// Context of the device to which the id is bound.
    pub(crate) context: Option<Arc<Context>>,
    /// Several ids may be bound to the address and port (`RDMA_OPTION_ID_REUSEADDR`).
    pub(crate) reuses_address: bool,
    /// `::` does not include IPv4 (`RDMA_OPTION_ID_AFONLY`).
    pub(crate) is_one_family: bool,
    /// Native listeners: one, or one for each address. The id of a connection request shares those of the listening id
    /// until the request is answered.
    pub(crate) listeners: Vec<Listener>,
    /// Maximum number of connection requests whose events the program has not taken.
    pub(crate) backlog: usize,
    /// Connection requests that arrived before the id listens.
    pub(crate) early: Vec<ConnectionRequest>,
    /// The unanswered connection request for which this id was created.
    pub(crate) request: Option<ConnectionRequest>,
    /// QP of the connection.
    pub(crate) pair: Weak<QueuePair>,
    /// Depths that the peer requests. Defaults of `rdma_accept`.
    pub(crate) requested: Option<Depths>,
    /// PD and attributes of the QPs that `rdma_get_request` creates.
    pub(crate) child_queues: Option<Template>,
    /// Private data of `rdma_addrinfo`, sent in front of the private data of `rdma_connect`.
    pub(crate) private_data: Vec<u8>,
}

impl State {
    /// Returns the session of the id's device, or the current one.
    pub(crate) fn instance(&self) -> Result<Arc<Instance>> {
        match &self.context {
            Some(context) => Ok(context.instance().clone()),
            None => Instance::current(),
        }
    }
}

/// PD and attributes of the QPs of connection requests, from `rdma_create_ep`.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) domain: Option<Arc<Domain>>,
    pub(crate) attributes: Arc<Shared<ibv_qp_init_attr>>,
}

/// Progress of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Created.
    Idle,
    /// Has a local address.
    Bound,
    /// Accepts connection requests.
    Listening,
    /// Has the address of the peer.
    AddressResolved,
    /// May connect.
    RouteResolved,
    /// Waits for the outcome of a connect.
    Connecting,
    /// Has a connection request that is not answered.
    Requested,
    /// Waits for the outcome of an accept.
    Accepting,
    Connected,
    /// The connection has ended, or was not established.
    Ended,
    /// The session has ended.
    Removed,
    Destroyed,
}

ibverbs::object!(Id, rdma_cm_id);

impl Id {
    /// Creates an id. Without a channel its calls are synchronous.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the port space is not `RDMA_PS_TCP`. The process has no free file descriptor.
    pub fn create(
        channel: Option<Arc<Channel>>,
        context: *mut c_void,
        port_space: rdma_port_space,
    ) -> Result<Arc<Id>> {
        if port_space != RDMA_PS_TCP {
            report::once(
                "port space",
                format_args!(
                    "connections have the port space TCP; iWARP has no datagrams, and thus no port space UDP or IPoIB"
                ),
            );
            return Err(EPROTONOSUPPORT);
        }
        let is_synchronous = channel.is_none();
        let channel = channel.map_or_else(Channel::create, Ok)?;
        let c = rdma_cm_id {
            channel: channel.as_ptr(),
            context,
            ps: port_space,
            qp_type: IBV_QPT_RC,
            ..rdma_cm_id::default()
        };
        let state = State {
            phase: Phase::Idle,
            channel,
            is_synchronous,
            context: None,
            reuses_address: false,
            is_one_family: false,
            listeners: Vec::new(),
            backlog: 0,
            early: Vec::new(),
            request: None,
            pair: Weak::new(),
            requested: None,
            child_queues: None,
            private_data: Vec::new(),
        };
        let (c, state) = (Shared::new(c), Mutex::new(state));
        let (users, unacknowledged) = (Users::default(), Unacknowledged::default());
        Ok(Id { c, users, state, unacknowledged }.register())
    }

    /// Destroys an id: ends its connection, rejects its connection request, and drops its events. Waits until the
    /// program has acknowledged the events that it has taken.
    ///
    /// # Errors
    /// `EINVAL`: there is no such id.
    pub fn destroy(pointer: *mut rdma_cm_id) -> Result<()> {
        let id = Id::unregister(pointer)?;
        id.acknowledge_own();
        id.end();
        id.unacknowledged.wait();
        Ok(())
    }

    /// Ends a connection request that the program has not taken.
    pub(crate) fn discard(&self) {
        // An error means that the program has destroyed the id.
        if Id::unregister(self.as_ptr()).is_ok() {
            self.end();
        }
    }

    fn end(&self) {
        let mut state = self.lock();
        let phase = std::mem::replace(&mut state.phase, Phase::Destroyed);
        let events = state.channel.remove(self);
        let (request, listeners) = (state.request.take(), std::mem::take(&mut state.listeners));
        let early = std::mem::take(&mut state.early);
        let pair = std::mem::take(&mut state.pair).upgrade();
        if state.is_synchronous {
            // An error means that the program has destroyed the channel of its id.
            let _ = Channel::destroy(state.channel.as_ptr());
        }
        drop(state);
        if let Some(pair) = pair {
            drop(pair.set_owner(None));
            connect::abandon(&pair, phase);
        }
        listen::forget(&listeners, self);
        // Rejects the requests, and only then drops their listener, which would reset them.
        drop((request, early));
        drop(listeners);
        events.into_iter().filter_map(NewEvent::into_child).for_each(|child| child.discard());
    }

    pub(crate) fn c(&self) -> &Shared<rdma_cm_id> {
        &self.c
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn unacknowledged(&self) -> &Unacknowledged {
        &self.unacknowledged
    }

    /// Moves the id, its events and the ids of its queued connection requests to another channel. Without a channel
    /// their calls become synchronous. Waits until the program has acknowledged the events that it has taken.
    ///
    /// # Errors
    /// The process has no free file descriptor. The id and the requests then remain at their channel.
    pub fn migrate(&self, channel: Option<Arc<Channel>>) -> Result<()> {
        let is_synchronous = channel.is_none();
        self.acknowledge_own();
        self.unacknowledged.wait();
        let mut state = self.lock();
        let events = state.channel.remove(self);
        let requests: Vec<_> = events.iter().filter_map(NewEvent::child).cloned().collect();
        let channels = match channels(channel, 1 + requests.len()) {
            Ok(channels) => channels,
            Err(error) => {
                events.into_iter().for_each(|event| state.channel.push(event));
                return Err(error);
            }
        };
        // The requests move before their events are queued: until then, the program does not have the ids of the
        // requests.
        for (request, channel) in requests.iter().zip(&channels[1..]) {
            request.set_channel(&mut request.lock(), channel.clone(), is_synchronous);
        }
        let own = channels[0].clone();
        events.into_iter().for_each(|event| own.push(event));
        self.set_channel(&mut state, own, is_synchronous);
        Ok(())
    }

    fn set_channel(&self, state: &mut State, channel: Arc<Channel>, is_synchronous: bool) {
        if state.is_synchronous {
            // An error means that the program has destroyed the channel of its id.
            let _ = Channel::destroy(state.channel.as_ptr());
        }
        self.c.write(fields::channel, channel.as_ptr());
        (state.channel, state.is_synchronous) = (channel, is_synchronous);
    }

    /// Waits for the outcome of an operation if calls are synchronous. The event stays at the id until the next call.
    ///
    /// # Errors
    /// The error of the event, or those of [`Channel::take`].
    pub(crate) fn complete(&self) -> Result<()> {
        let channel = {
            let state = self.lock();
            if !state.is_synchronous {
                return Ok(());
            }
            state.channel.clone()
        };
        self.acknowledge_own();
        let event = channel.take()?;
        self.c.write(fields::event, event.as_ptr());
        match (event.kind(), event.status()) {
            (_, 0) if event.kind() != RDMA_CM_EVENT_DEVICE_REMOVAL => Ok(()),
            (_, 0) => Err(ENODEV),
            (RDMA_CM_EVENT_REJECTED, _) => Err(ECONNREFUSED),
            (_, status) => Err(-status),
        }
    }

    /// Acknowledges the event that a synchronous call has left at the id.
    pub(crate) fn acknowledge_own(&self) {
        let event = self.c.read(fields::event);
        if !event.is_null() {
            self.c.write(fields::event, std::ptr::null_mut());
            // An error means that the program has acknowledged the event itself.
            let _ = Event::acknowledge(event);
        }
    }

    /// Returns the context of the device.
    ///
    /// # Errors
    /// `EINVAL`: the id is not bound to a device.
    pub(crate) fn context(&self) -> Result<Arc<Context>> {
        self.lock().context.clone().ok_or(EINVAL)
    }

    /// Binds the id to a device and its default PD.
    pub(crate) fn bind_device(&self, state: &mut State, context: &Arc<Context>) -> Result<()> {
        let domain = queues::default_domain(context)?;
        self.c.write(fields::verbs, context.as_ptr());
        self.c.write(fields::port_num, 1);
        self.c.write(fields::pd, domain.pointer());
        state.context = Some(context.clone());
        Ok(())
    }

    /// Handles the end of a session.
    pub(crate) fn remove(self: &Arc<Self>, instance: &Arc<Instance>) {
        let mut state = self.lock();
        let is_of = |context: &Arc<Context>| Arc::ptr_eq(context.instance(), instance);
        let is_concerned = match &state.context {
            Some(context) => is_of(context),
            None => !state.listeners.is_empty() && listen::is_of(&state.listeners, instance),
        };
        if !is_concerned {
            return;
        }
        let phase = std::mem::replace(&mut state.phase, Phase::Removed);
        match phase {
            Phase::Connecting | Phase::Accepting => {
                self.push(&state, RDMA_CM_EVENT_CONNECT_ERROR, -ENODEV);
            }
            Phase::Connected => self.push(&state, RDMA_CM_EVENT_DISCONNECTED, 0),
            Phase::Destroyed | Phase::Removed => {
                state.phase = phase;
                return;
            }
            _ => {}
        }
        self.push(&state, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
    }

    /// Queues an event without data.
    pub(crate) fn push(self: &Arc<Self>, state: &State, kind: rdma_cm_event_type, status: c_int) {
        state.channel.push(NewEvent::new(self, kind, status));
    }
}

/// Returns channels for `count` ids: `given` for all, or a new one for each.
fn channels(given: Option<Arc<Channel>>, count: usize) -> Result<Vec<Arc<Channel>>> {
    if let Some(given) = given {
        return Ok(vec![given; count]);
    }
    let mut new: Vec<Arc<Channel>> = Vec::new();
    for _ in 0..count {
        match Channel::create() {
            Ok(channel) => new.push(channel),
            Err(error) => {
                for channel in new {
                    let _ = Channel::destroy(channel.as_ptr());
                }
                return Err(error);
            }
        }
    }
    Ok(new)
}

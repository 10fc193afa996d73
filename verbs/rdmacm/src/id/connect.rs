//! Connections: connect, accept, reject, disconnect, and the events of their QPs.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ibverbs::bindings::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, ibv_qp_state};
use ibverbs::errno::{ECONNREFUSED, ECONNRESET, EINVAL, ETIMEDOUT, OrErrno, Result, errno};
use ibverbs::queue_pair::{Owner as PairOwner, QueuePair};
use verbs_client::{
    AcceptOptions, ConnectOptions, Connection, Depths, Error, PairEvent, RefusalKind, StartUp,
};

use crate::bindings::{
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES,
};
use crate::boundary::fields;
use crate::id::environment::{peer_kind, transport};
use crate::id::event::NewEvent;
use crate::id::{Id, Phase, State};

/// Time-out of a connect, which includes the time that the peer's program takes to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Parameters of `rdma_connect` and `rdma_accept`: a copy of `rdma_conn_param`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) private_data: Vec<u8>,
    /// IRD.
    pub(crate) responder_resources: u8,
    /// ORD.
    pub(crate) initiator_depth: u8,
    /// QP of the connection if none was created for the id.
    pub(crate) qp_num: u32,
}

/// Owner of a QP: the id that receives its events. The destruction of the QP drops the owner.
struct Owner(Weak<Id>);

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(id) = self.0.upgrade() {
            id.on_pair_destroyed();
        }
    }
}

impl Id {
    /// Connects to the resolved peer. An event reports the outcome.
    ///
    /// # Errors
    /// `EINVAL`: the route is not resolved, or there is no QP, or the depths exceed those of the device. Errors of the
    /// appliance. In synchronous mode the error of the outcome.
    pub(crate) fn connect(self: &Arc<Self>, parameters: Option<Parameters>) -> Result<()> {
        let previous;
        {
            let mut state = self.lock();
            let remote = self.destination().ok_or(EINVAL)?;
            let local = self.source().map(|local| local.ip());
            let context = state.context.clone().ok_or(EINVAL)?;
            if state.phase != Phase::RouteResolved {
                return Err(EINVAL);
            }
            let limits = context.session().limits().depths;
            let depths = depths(parameters.as_ref(), limits, limits)?;
            let mut private_data = state.private_data.clone();
            private_data.extend(parameters.iter().flat_map(|given| &given.private_data));
            let pair = self.pair_of(&state, parameters.as_ref())?;
            let options = ConnectOptions {
                local,
                transport: transport()?,
                start_up: StartUp { peer: peer_kind()?, peer_to_peer: true },
                depths,
                private_data,
                timeout: CONNECT_TIMEOUT,
            };
            super::receive_events();
            previous = self.own(&mut state, &pair);
            pair.native().start_connect(remote, &options).or_errno()?;
            state.phase = Phase::Connecting;
        }
        drop(previous);
        self.complete()
    }

    /// Accepts the connection request of the id. An event reports the outcome.
    ///
    /// # Errors
    /// `EINVAL`: the id has no unanswered request, or there is no QP, or the depths exceed those of the device.
    /// `ECONNRESET`: the peer has withdrawn the request. Other errors are those of the appliance and, in synchronous
    /// mode, that of the outcome.
    pub(crate) fn accept(self: &Arc<Self>, parameters: Option<Parameters>) -> Result<()> {
        let previous;
        let listeners = {
            let mut state = self.lock();
            let context = state.context.clone().ok_or(EINVAL)?;
            if state.phase != Phase::Requested {
                return Err(EINVAL);
            }
            let limits = context.session().limits().depths;
            let requested = state.requested.unwrap_or(limits);
            let depths = depths(parameters.as_ref(), limits, requested)?;
            let pair = self.pair_of(&state, parameters.as_ref())?;
            let private_data = parameters.map_or_else(Vec::new, |given| given.private_data);
            let options = AcceptOptions { depths, private_data, ..AcceptOptions::default() };
            previous = self.own(&mut state, &pair);
            let request = state.request.take().ok_or(EINVAL)?;
            let is_ended = request.is_ended();
            // The call consumes the request even if it fails: the drop of the request rejects it then.
            let accepted = request.start_accept(pair.native(), &options);
            state.phase = if accepted.is_ok() { Phase::Accepting } else { Phase::Ended };
            let listeners = std::mem::take(&mut state.listeners);
            accepted.map_err(|error| match error {
                Error::Refused(refusal) if refusal.kind == RefusalKind::NotFound => ECONNRESET,
                _ if is_ended => ECONNRESET,
                error => errno(&error),
            })?;
            listeners
        };
        drop((previous, listeners));
        self.complete()
    }

    /// Rejects the connection request of the id. The peer receives the private data.
    ///
    /// # Errors
    /// `EINVAL`: the id has no unanswered request. Errors of the appliance.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        let (request, listeners) = {
            let mut state = self.lock();
            if state.phase != Phase::Requested {
                return Err(EINVAL);
            }
            state.phase = Phase::Ended;
            (state.request.take(), std::mem::take(&mut state.listeners))
        };
        let request = request.ok_or(EINVAL)?;
        let is_ended = request.is_ended();
        let rejected = match request.reject(private_data) {
            // A peer that has withdrawn its request needs no answer.
            Err(Error::Refused(refusal)) if refusal.kind == RefusalKind::NotFound => Ok(()),
            Err(_) if is_ended => Ok(()),
            result => result.or_errno(),
        };
        drop(listeners);
        rejected
    }

    /// Closes the connection gracefully. An event reports its end. Has no effect if the connection has ended.
    ///
    /// # Errors
    /// `EINVAL`: the id is not connected. Errors of the appliance. In synchronous mode also the errors of the wait for
    /// the event.
    pub(crate) fn disconnect(self: &Arc<Self>) -> Result<()> {
        {
            let state = self.lock();
            match state.phase {
                Phase::Connected => {}
                // The program has taken the event of the end already: there is none to wait for.
                Phase::Ended if !state.channel.has_event(self) => return Ok(()),
                Phase::Ended => {}
                _ => return Err(EINVAL),
            }
            if let Some(pair) = state.pair.upgrade()
                && state.phase == Phase::Connected
            {
                pair.native().start_disconnect().or_errno()?;
                pair.set_state(IBV_QPS_ERR);
            }
        }
        self.complete()
    }

    /// Returns the QP of the id. If it has none, returns the QP with the number `qp_num` of the parameters.
    fn pair_of(&self, state: &State, parameters: Option<&Parameters>) -> Result<Arc<QueuePair>> {
        let pointer = self.c().read(fields::qp);
        if !pointer.is_null() {
            return QueuePair::find(pointer);
        }
        let context = state.context.as_ref().ok_or(EINVAL)?;
        let number = parameters.ok_or(EINVAL)?.qp_num;
        QueuePair::by_number(context.instance(), number).ok_or(EINVAL)
    }

    /// Makes the id the receiver of the QP's events. Returns earlier receivers, which the caller drops after it has
    /// released the lock of `state`: the drop of a receiver locks its id.
    #[must_use]
    pub(crate) fn own(
        self: &Arc<Self>,
        state: &mut State,
        pair: &Arc<QueuePair>,
    ) -> [Option<PairOwner>; 2] {
        let id = Arc::downgrade(self);
        state.pair = Arc::downgrade(pair);
        if pair.state() == IBV_QPS_RESET {
            pair.set_state(IBV_QPS_INIT);
        }
        let current = pair.owner();
        let owner = current.as_ref().and_then(|owner| owner.downcast_ref::<Owner>());
        if owner.is_some_and(|owner| owner.0.ptr_eq(&id)) {
            return [current, None];
        }
        let previous = pair.set_owner(Some(Arc::new(Owner(id))));
        [current, previous]
    }

    /// Handles the destruction of the QP, after which the appliance resets the connection without an event.
    fn on_pair_destroyed(self: &Arc<Self>) {
        let mut state = self.lock();
        match state.phase {
            Phase::Connected => {
                state.phase = Phase::Ended;
                self.push(&state, RDMA_CM_EVENT_DISCONNECTED, 0);
            }
            Phase::Connecting | Phase::Accepting => {
                state.phase = Phase::Ended;
                // A synchronous call waits for the outcome.
                self.push(&state, RDMA_CM_EVENT_CONNECT_ERROR, -ECONNRESET);
            }
            _ => {}
        }
    }

    fn on_pair_event(self: &Arc<Self>, event: PairEvent) {
        let mut state = self.lock();
        let is_pending = matches!(state.phase, Phase::Connecting | Phase::Accepting);
        let event = match event {
            PairEvent::Established(connection) if is_pending => {
                state.phase = Phase::Connected;
                let Connection { local, remote, depths, private_data, .. } = connection;
                self.set_addresses(local, remote);
                NewEvent::new(self, RDMA_CM_EVENT_ESTABLISHED, 0).with(Some(depths), private_data)
            }
            PairEvent::Rejected { private_data } if is_pending => {
                state.phase = Phase::Ended;
                let event = NewEvent::new(self, RDMA_CM_EVENT_REJECTED, -ECONNREFUSED);
                event.with(None, private_data)
            }
            PairEvent::ConnectFailed { unreachable, refused, .. } if is_pending => {
                state.phase = Phase::Ended;
                let (kind, status) = match (unreachable, refused) {
                    (true, _) => (RDMA_CM_EVENT_UNREACHABLE, ETIMEDOUT),
                    (_, true) => (RDMA_CM_EVENT_REJECTED, ECONNREFUSED),
                    _ => (RDMA_CM_EVENT_CONNECT_ERROR, ECONNRESET),
                };
                NewEvent::new(self, kind, -status)
            }
            PairEvent::Disconnected { .. } if is_pending => {
                state.phase = Phase::Ended;
                NewEvent::new(self, RDMA_CM_EVENT_CONNECT_ERROR, -ECONNRESET)
            }
            PairEvent::Disconnected { .. } if state.phase == Phase::Connected => {
                state.phase = Phase::Ended;
                NewEvent::new(self, RDMA_CM_EVENT_DISCONNECTED, 0)
            }
            // `Disconnected` follows the failure of a QP. Other events arrive too late to change the state of the id.
            _ => return,
        };
        state.channel.push(event);
    }
}

/// Passes an event of a QP to its id.
pub(crate) fn on_event(pair: &Arc<QueuePair>, event: PairEvent) {
    let owner = pair.owner();
    let owner = owner.as_ref().and_then(|owner| owner.downcast_ref::<Owner>());
    if let Some(id) = owner.and_then(|owner| owner.0.upgrade()) {
        id.on_pair_event(event);
    }
}

/// Ends the connection of an id that is destroyed before its QP.
pub(crate) fn abandon(pair: &QueuePair, phase: Phase) {
    if matches!(phase, Phase::Connecting | Phase::Accepting | Phase::Connected) {
        pair.set_state(IBV_QPS_ERR);
        // An error means that the session has ended.
        let _ = pair.native().end();
    }
}

/// Returns an error if `rdma_init_qp_attr` has no attributes for the state: it is not INIT, RTR or RTS.
pub(crate) fn is_state_of_connection(state: ibv_qp_state) -> Result<()> {
    use ibverbs::bindings::{IBV_QPS_RTR, IBV_QPS_RTS};
    match state {
        IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS => Ok(()),
        _ => Err(EINVAL),
    }
}

/// Returns the IRD and ORD to offer: those of the parameters. Without parameters, and for `RDMA_MAX_RESP_RES` or
/// `RDMA_MAX_INIT_DEPTH`, returns `default`, limited to `limits`.
fn depths(parameters: Option<&Parameters>, limits: Depths, default: Depths) -> Result<Depths> {
    let choose = |given: Option<u8>, largest: u32, limit: u16, default: u16| match given {
        Some(given) if u32::from(given) != largest && u16::from(given) > limit => Err(EINVAL),
        Some(given) if u32::from(given) != largest => Ok(given.into()),
        _ => Ok(default.min(limit)),
    };
    let ird = parameters.map(|given| given.responder_resources);
    let ord = parameters.map(|given| given.initiator_depth);
    Ok(Depths {
        ird: choose(ird, RDMA_MAX_RESP_RES, limits.ird, default.ird)?,
        ord: choose(ord, RDMA_MAX_INIT_DEPTH, limits.ord, default.ord)?,
    })
}

#[cfg(test)]
mod tests {
    use ibverbs::registry::Object;

    use super::*;
    use crate::bindings::RDMA_PS_TCP;

    #[test]
    fn destruction_of_the_pair_ends_a_synchronous_call() {
        for (phase, expected) in [
            (Phase::Connecting, Err(ECONNRESET)),
            (Phase::Accepting, Err(ECONNRESET)),
            (Phase::Connected, Ok(())),
        ] {
            let id = Id::create(None, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
            id.lock().phase = phase;
            id.on_pair_destroyed();
            // The channel has the event, so the call does not wait.
            assert!(id.lock().channel.has_event(&id));
            assert_eq!(id.complete(), expected);
            assert_eq!(id.lock().phase, Phase::Ended);
            let pointer = id.as_ptr();
            drop(id);
            Id::destroy(pointer).unwrap();
        }
    }

    const LIMITS: Depths = Depths { ird: 32, ord: 16 };

    fn given(responder_resources: u8, initiator_depth: u8) -> Option<Parameters> {
        Some(Parameters { responder_resources, initiator_depth, ..Parameters::default() })
    }

    #[test]
    fn depths_are_those_of_the_parameters_or_the_default_within_the_limits() {
        let default = Depths { ird: 4, ord: 100 };
        let chosen = |given: Option<Parameters>| depths(given.as_ref(), LIMITS, default);
        assert_eq!(chosen(given(1, 0)), Ok(Depths { ird: 1, ord: 0 }));
        assert_eq!(chosen(None), Ok(Depths { ird: 4, ord: 16 }));
        assert_eq!(chosen(given(255, 255)), Ok(Depths { ird: 4, ord: 16 }));
        assert_eq!(chosen(given(33, 0)), Err(EINVAL));
        assert_eq!(chosen(given(0, 17)), Err(EINVAL));
    }
}

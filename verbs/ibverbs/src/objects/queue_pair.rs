//! Queue pairs.
//!
//! The native queue pair exists from the creation on. The appliance has no states RESET, INIT and RTR: this library
//! keeps them. The connection manager connects the native queue pair. The dispatcher sets RTS when the connection is
//! established, and ERR when it ends or fails.

use std::any::Any;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock};

use verbs_client::{Depths, PairEvent, QueuePairConfig};

use crate::bindings::*;
use crate::boundary::{Shared, fields};
use crate::errno::{EINVAL, EOPNOTSUPP, OrErrno, Result};
use crate::gate::Gate;
use crate::object;
use crate::objects::batch::Batch;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::context::Context;
use crate::objects::counts::Counts;
use crate::objects::device::{MAX_INLINE, MAX_SGES};
use crate::objects::domain::Domain;
use crate::objects::events::{EventSource, Source, Unacknowledged};
use crate::objects::instance::{Instance, SessionEvents, Target};
use crate::objects::shared_receives::SharedReceiveQueue;
use crate::registry::{Object, Use, Users, sole};
use crate::report;
use verbs_client::lock::lock;

/// Receiver of the events of sessions and of QPs.
pub trait ConnectionEvents: SessionEvents {
    /// The connection of a QP has changed. The state of the QP is already updated.
    fn pair(&self, pair: &Arc<QueuePair>, event: PairEvent);
}

static HANDLER: OnceLock<&dyn ConnectionEvents> = OnceLock::new();

/// Sets the receiver of the events of QPs. Only the first call has an effect.
pub(crate) fn set_pair_events(handler: &'static dyn ConnectionEvents) {
    // An error means that the handler is set already.
    let _ = HANDLER.set(handler);
}

/// Owner of a QP in the connection manager.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// A queue pair (QP) of type RC.
#[repr(C)]
pub struct QueuePair {
    c: Shared<ibv_qp_ex>,
    native: verbs_client::QueuePair,
    counts: Counts,
    /// Maximum number of signalled requests whose completions the program has not polled.
    max_sends: u32,
    /// True if every send request generates a completion (`sq_sig_all`).
    pub(crate) signals_all: bool,
    domain: Use<Domain>,
    send_queue: Use<CompletionQueue>,
    receive_queue: Use<CompletionQueue>,
    shared_receives: Option<Use<SharedReceiveQueue>>,
    users: Users,
    attributes: Mutex<Attributes>,
    pub(crate) events: Unacknowledged,
    owner: Mutex<Option<Owner>>,
    /// Held from `ibv_wr_start` to `ibv_wr_complete`.
    pub(crate) gate: Gate,
    pub(crate) batch: Mutex<Batch>,
}

#[derive(Clone, Copy, Debug)]
struct Attributes {
    cap: ibv_qp_cap,
    access: u32,
    depths: Depths,
    /// True from the establishment of the connection to its end.
    is_connected: bool,
    /// True once the end of the QP is reported to a program with an SRQ.
    is_end_reported: bool,
}

object!(QueuePair, ibv_qp_ex);

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl QueuePair {
    /// Creates a QP in the state RESET. `attributes` receives the actual capabilities. The PD in it is ignored.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the type is not RC. `EINVAL`: an object does not exist or belongs to another context, or the
    /// capabilities exceed those of the device. The appliance refuses the QP, or the session has ended.
    pub fn create(
        domain: &Arc<Domain>,
        attributes: &mut ibv_qp_init_attr_ex,
    ) -> Result<Arc<QueuePair>> {
        if attributes.qp_type != IBV_QPT_RC {
            report::once(
                "qp type",
                format_args!(
                    "queue pairs have the type RC; iWARP has no UD, UC, XRC or raw packets"
                ),
            );
            return Err(EOPNOTSUPP);
        }
        let context = domain.context();
        let send_queue = CompletionQueue::find(attributes.send_cq)?;
        let receive_queue = CompletionQueue::find(attributes.recv_cq)?;
        let shared = SharedReceiveQueue::from_nullable(attributes.srq)?;
        let is_same = |other: &Arc<Context>| Arc::ptr_eq(other, context);
        if !is_same(send_queue.context())
            || !is_same(receive_queue.context())
            || shared.as_ref().is_some_and(|shared| !is_same(shared.context()))
        {
            return Err(EINVAL);
        }
        let cap = &mut attributes.cap;
        let limit = context.session().limits().posts;
        if cap.max_send_wr > limit
            || cap.max_recv_wr > limit
            || cap.max_send_sge > MAX_SGES
            || cap.max_recv_sge > MAX_SGES
            || cap.max_inline_data > MAX_INLINE
        {
            return Err(EINVAL);
        }
        // With an SRQ, `max_recv_wr` is not used: one connection may take all receives of the SRQ.
        let max_receives = match &shared {
            Some(shared) => shared.attributes().max_wr,
            None => cap.max_recv_wr.max(1),
        };
        // The lock prevents the reuse of a QP number whose earlier completions are not removed yet.
        let mut objects = lock(&context.instance().objects);
        let native = domain
            .native()
            .create_queue_pair(&QueuePairConfig {
                send_completions: send_queue.native(),
                receive_completions: receive_queue.native(),
                max_sends: cap.max_send_wr.max(1),
                max_receives,
                copy_sources: false,
                shared_receives: shared.as_ref().map(|shared| shared.native()),
            })
            .or_errno()?;
        native.flush_after_end();
        cap.max_send_sge = MAX_SGES;
        cap.max_recv_sge = if shared.is_some() { 0 } else { MAX_SGES };
        cap.max_inline_data = MAX_INLINE;
        let cap = *cap;
        let number = native.number();
        let mut c = context.pair_functions();
        c.qp_base = ibv_qp {
            context: context.as_ptr(),
            qp_context: attributes.qp_context,
            pd: domain.pointer(),
            send_cq: send_queue.pointer(),
            recv_cq: receive_queue.pointer(),
            srq: attributes.srq,
            handle: number,
            qp_num: number,
            state: IBV_QPS_RESET,
            qp_type: IBV_QPT_RC,
            ..ibv_qp::default()
        };
        let depths = Depths { ird: 0, ord: 0 };
        let counts = context.instance().counts().clone();
        counts.reset(number);
        let pair = QueuePair {
            c: Shared::new(c),
            native,
            counts,
            max_sends: cap.max_send_wr.max(1),
            signals_all: attributes.sq_sig_all != 0,
            domain: Use::new(domain),
            send_queue: Use::new(&send_queue),
            receive_queue: Use::new(&receive_queue),
            shared_receives: shared.as_ref().map(Use::new),
            users: Users::default(),
            attributes: Mutex::new(Attributes {
                cap,
                access: 0,
                depths,
                is_connected: false,
                is_end_reported: false,
            }),
            events: Unacknowledged::default(),
            owner: Mutex::default(),
            gate: Gate::default(),
            batch: Mutex::default(),
        }
        .register();
        let target = Arc::downgrade(&pair);
        objects.pairs.insert(number, target);
        Ok(pair)
    }

    /// Destroys a QP, resets its connection and removes its completions: their `wr_id` may refer to freed memory of the
    /// program. Waits until the program has acknowledged its events. A forked child does not wait: the threads that use
    /// the QP exist only in the parent.
    ///
    /// # Errors
    /// `EINVAL`: there is no such QP.
    pub fn destroy(pointer: *mut ibv_qp) -> Result<()> {
        let pair = QueuePair::retire(pointer.cast())?;
        let context = pair.context().clone();
        if context.instance().is_forked() {
            pair.unlist();
            return Ok(());
        }
        pair.events.close();
        pair.unlist();
        // Drops the owner without the lock, because its drop takes other locks.
        let owner = lock(&pair.owner).take();
        drop(owner);
        let number = pair.number();
        let queues = [pair.send_queue.object().clone(), pair.receive_queue.object().clone()];
        lock(&context.instance().objects).pairs.remove(&number);
        let source = pair.source();
        // Waits for the dispatcher, which may still handle an event of the QP: until it is done, the program could not
        // destroy the CQs, SRQ and PD, which the QP uses.
        let pair = sole(pair);
        context.events().remove(&source);
        // The lock is held until the completions are removed: otherwise the dispatcher could pass an event of this QP
        // to a new one with the same number, and completions of the new one could be removed.
        let _objects = lock(&context.instance().objects);
        drop(pair);
        queues.iter().for_each(|queue| queue.native().discard(number));
        Ok(())
    }

    /// Returns the QP of a pointer.
    ///
    /// # Errors
    /// `EINVAL`: there is no such QP.
    pub fn find(pointer: *mut ibv_qp) -> Result<Arc<QueuePair>> {
        QueuePair::from_ptr(pointer.cast())
    }

    /// Returns the QP of a number.
    pub fn by_number(instance: &Arc<Instance>, number: u32) -> Option<Arc<QueuePair>> {
        let matches = |pair: &Arc<QueuePair>| {
            pair.number() == number && Arc::ptr_eq(pair.context().instance(), instance)
        };
        QueuePair::registry().all().into_iter().find(matches)
    }

    /// Returns the pointer of the program.
    pub fn pointer(&self) -> *mut ibv_qp {
        self.c.get().cast()
    }

    /// Returns the number, as in completions.
    pub fn number(&self) -> u32 {
        self.native.number()
    }

    /// Returns the context.
    pub fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Returns the PD.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.object()
    }

    /// Returns the CQ of the send queue.
    pub fn send_queue(&self) -> &Arc<CompletionQueue> {
        self.send_queue.object()
    }

    /// Returns the CQ of the receive queue.
    pub fn receive_queue(&self) -> &Arc<CompletionQueue> {
        self.receive_queue.object()
    }

    /// Returns the SRQ.
    pub fn shared_receives(&self) -> Option<&Arc<SharedReceiveQueue>> {
        self.shared_receives.as_ref().map(Use::object)
    }

    /// Returns the native QP.
    #[inline]
    pub fn native(&self) -> &verbs_client::QueuePair {
        &self.native
    }

    /// Returns true if the program may post this number of signalled requests. In the state ERR there is always room:
    /// the requests are flushed.
    #[inline]
    pub(crate) fn has_room(&self, requests: u32) -> bool {
        self.counts.have_room(self.native.number(), requests, self.max_sends)
            || self.state() == IBV_QPS_ERR
    }

    /// Counts signalled requests that were posted. Called under the lock of the send queue.
    #[inline]
    pub(crate) fn count_posted(&self, requests: u32) {
        self.counts.add_posted(self.native.number(), requests);
    }

    pub(crate) fn c(&self) -> &Shared<ibv_qp_ex> {
        &self.c
    }

    /// Returns the state.
    #[inline]
    pub fn state(&self) -> ibv_qp_state {
        self.c.read(fields::state)
    }

    /// Sets the state.
    pub fn set_state(&self, state: ibv_qp_state) {
        self.c.write(fields::state, state);
    }

    /// Sets the IRD and ORD that a query returns.
    pub fn set_depths(&self, depths: Depths) {
        lock(&self.attributes).depths = depths;
    }

    /// Sets the owner in the connection manager, which [`destroy`](Self::destroy) drops. Returns the previous one.
    pub fn set_owner(&self, owner: Option<Owner>) -> Option<Owner> {
        std::mem::replace(&mut *lock(&self.owner), owner)
    }

    /// Returns the owner in the connection manager.
    pub fn owner(&self) -> Option<Owner> {
        lock(&self.owner).clone()
    }

    fn source(self: &Arc<Self>) -> Source {
        Some(Arc::<Self>::downgrade(self))
    }

    /// Applies an event to the state.
    fn apply(self: &Arc<Self>, event: &PairEvent) {
        match event {
            PairEvent::Established(connection) => {
                let mut attributes = lock(&self.attributes);
                attributes.depths = connection.depths;
                attributes.is_connected = true;
                if self.state() != IBV_QPS_ERR {
                    self.set_state(IBV_QPS_RTS);
                }
            }
            PairEvent::Rejected { .. } | PairEvent::ConnectFailed { .. } => {
                self.set_state(IBV_QPS_ERR);
                self.report_end();
            }
            PairEvent::Disconnected { .. } => {
                lock(&self.attributes).is_connected = false;
                self.set_state(IBV_QPS_ERR);
                self.report_end();
            }
            // The end is reported when the connection has ended: until then messages may take receives of the SRQ.
            PairEvent::Failed { .. } => self.set_state(IBV_QPS_ERR),
        }
    }

    /// Reports, once, that the QP takes no more receives of its SRQ.
    fn report_end(self: &Arc<Self>) {
        if self.shared_receives.is_some()
            && !std::mem::replace(&mut lock(&self.attributes).is_end_reported, true)
        {
            self.context().events().push(IBV_EVENT_QP_LAST_WQE_REACHED, self.source());
        }
    }

    /// Changes the state and other attributes.
    ///
    /// # Errors
    /// `EINVAL`: the transition does not exist. `EOPNOTSUPP`: the program connects the QP without the connection
    /// manager, or resets a QP that had a connection.
    pub fn modify(self: &Arc<Self>, attr: &ibv_qp_attr, mask: u32) -> Result<()> {
        if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != self.state() {
            return Err(EINVAL);
        }
        if mask & IBV_QP_STATE != 0 {
            self.change_state(attr.qp_state, mask)?;
        }
        let mut attributes = lock(&self.attributes);
        if mask & IBV_QP_ACCESS_FLAGS != 0 {
            attributes.access = attr.qp_access_flags;
        }
        if !attributes.is_connected {
            if mask & IBV_QP_MAX_QP_RD_ATOMIC != 0 {
                attributes.depths.ord = attr.max_rd_atomic.into();
            }
            if mask & IBV_QP_MAX_DEST_RD_ATOMIC != 0 {
                attributes.depths.ird = attr.max_dest_rd_atomic.into();
            }
        }
        Ok(())
    }

    fn change_state(self: &Arc<Self>, to: ibv_qp_state, mask: u32) -> Result<()> {
        let by_number = IBV_QP_DEST_QPN | IBV_QP_AV | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN;
        let from = self.state();
        match (from, to) {
            (IBV_QPS_ERR, IBV_QPS_ERR) => {}
            (_, IBV_QPS_ERR) => {
                // Set first, so that a connection that is established meanwhile does not change the state.
                self.set_state(IBV_QPS_ERR);
                // An error means that the session has ended.
                if let Ok(false) = self.native.end() {
                    self.report_end();
                }
                return Ok(());
            }
            (_, IBV_QPS_RTR | IBV_QPS_RTS) if mask & by_number != 0 => {
                report::once(
                    "no connection manager",
                    format_args!(
                        "iWARP connects queue pairs through librdmacm only, not by their numbers; \
                         for perftest, use the option -R"
                    ),
                );
                return Err(EOPNOTSUPP);
            }
            // The connection manager has set RTS already. Programs that create the QP themselves still request INIT,
            // RTR and RTS: nothing changes.
            (IBV_QPS_RTS, IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS) => return Ok(()),
            (IBV_QPS_RESET, IBV_QPS_RESET | IBV_QPS_INIT)
            | (IBV_QPS_INIT, IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS)
            | (IBV_QPS_RTR, IBV_QPS_RESET | IBV_QPS_RTS) => {}
            // A native QP serves one connection.
            (_, IBV_QPS_RESET) => return Err(EOPNOTSUPP),
            _ => return Err(EINVAL),
        }
        self.set_state(to);
        Ok(())
    }

    /// Returns the attributes.
    pub fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let attributes = *lock(&self.attributes);
        let state = self.state();
        let depth = |depth: u16| depth.min(u8::MAX.into()) as u8;
        let attr = ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: self.context().device().mtu(),
            path_mig_state: IBV_MIG_MIGRATED,
            qp_access_flags: attributes.access,
            cap: attributes.cap,
            max_rd_atomic: depth(attributes.depths.ord),
            max_dest_rd_atomic: depth(attributes.depths.ird),
            port_num: 1,
            ..ibv_qp_attr::default()
        };
        let init = ibv_qp_init_attr {
            qp_context: self.c.read(fields::qp_context),
            send_cq: self.send_queue.pointer(),
            recv_cq: self.receive_queue.pointer(),
            srq: self.shared_receives().map_or(std::ptr::null_mut(), |queue| queue.pointer()),
            cap: attributes.cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: c_int::from(self.signals_all),
        };
        (attr, init)
    }
}

impl Target<PairEvent> for QueuePair {
    fn handle(self: Arc<Self>, event: PairEvent) {
        self.apply(&event);
        if let PairEvent::Failed { .. } = event {
            self.context().events().push(IBV_EVENT_QP_FATAL, self.source());
        }
        if let Some(handler) = HANDLER.get() {
            handler.pair(&self, event);
        }
    }
}

impl EventSource for QueuePair {
    fn element(&self) -> ibv_async_event__bindgen_ty_1 {
        ibv_async_event__bindgen_ty_1 { qp: self.pointer() }
    }

    fn taken_events(&self) -> &Unacknowledged {
        &self.events
    }
}

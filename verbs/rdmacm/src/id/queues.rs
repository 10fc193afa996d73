//! Objects of ids: default PDs, CQs, QPs and SRQs.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use ibverbs::bindings::{
    IBV_QP_INIT_ATTR_PD, IBV_QPS_INIT, IBV_QPT_RC, ibv_comp_channel, ibv_cq, ibv_pd,
    ibv_qp_init_attr_ex, ibv_srq_init_attr,
};
use ibverbs::channel::CompletionChannel;
use ibverbs::completion_queue::CompletionQueue;
use ibverbs::context::Context;
use ibverbs::domain::Domain;
use ibverbs::errno::{EINVAL, Result};
use ibverbs::queue_pair::QueuePair;
use ibverbs::registry::Object;
use ibverbs::shared_receives::SharedReceiveQueue;

use crate::bindings::rdma_cm_id;
use crate::boundary::fields;
use crate::id::Id;
use verbs_client::lock::lock;

/// Default PDs, one for each context. They are never deallocated.
static DOMAINS: Mutex<Vec<Arc<Domain>>> = Mutex::new(Vec::new());

/// Returns the default PD of a context.
pub(crate) fn default_domain(context: &Arc<Context>) -> Result<Arc<Domain>> {
    let mut domains = lock(&DOMAINS);
    if let Some(domain) = domains.iter().find(|domain| Arc::ptr_eq(domain.context(), context)) {
        return Ok(domain.clone());
    }
    let domain = Domain::create(context)?;
    domains.push(domain.clone());
    Ok(domain)
}

/// A CQ with its channel, created for an id.
struct OwnQueue {
    channel: Arc<CompletionChannel>,
    queue: Arc<CompletionQueue>,
}

impl OwnQueue {
    fn create(context: &Arc<Context>, id: &Id, entries: u32) -> Result<OwnQueue> {
        let channel = CompletionChannel::create(context)?;
        let id: *mut rdma_cm_id = id.as_ptr();
        let queue =
            CompletionQueue::create(context, entries.max(1), Some(&channel), id.cast::<c_void>());
        match queue {
            Ok(queue) => Ok(OwnQueue { channel, queue }),
            Err(error) => {
                destroy_queue(std::ptr::null_mut(), channel.as_ptr());
                Err(error)
            }
        }
    }

    fn destroy(self) {
        let (queue, channel) = (self.queue.pointer(), self.channel.as_ptr());
        drop(self);
        destroy_queue(queue, channel);
    }
}

/// Destroys a CQ and its channel, if any. Ignores errors: the program may have destroyed an object itself, or still use
/// it.
fn destroy_queue(queue: *mut ibv_cq, channel: *mut ibv_comp_channel) {
    if !queue.is_null() {
        let _ = CompletionQueue::destroy(queue);
    }
    if !channel.is_null() {
        let _ = CompletionChannel::destroy(channel);
    }
}

impl Id {
    /// Creates the QP of the id. Objects that the attributes lack are added to them: the PD and the SRQ of the id, and
    /// new CQs with channels.
    ///
    /// # Errors
    /// `EINVAL`: the id has a QP or no device, or an object belongs to another device. The errors of a QP's creation.
    pub(crate) fn create_pair(
        self: &Arc<Self>,
        attributes: &mut ibv_qp_init_attr_ex,
    ) -> Result<()> {
        let c = self.c();
        if !c.read(fields::qp).is_null() {
            return Err(EINVAL);
        }
        let context = self.context()?;
        // The default is RC, the type of the id: programs that call `rdma_create_ep` may leave the type at 0.
        if attributes.qp_type == 0 {
            attributes.qp_type = IBV_QPT_RC;
        }
        let has_domain = attributes.comp_mask & IBV_QP_INIT_ATTR_PD != 0;
        let domain = match has_domain && !attributes.pd.is_null() {
            true => Domain::from_ptr(attributes.pd)?,
            false => Domain::from_ptr(c.read(fields::pd))?,
        };
        if !Arc::ptr_eq(domain.context(), &context) {
            return Err(EINVAL);
        }
        if attributes.srq.is_null() {
            attributes.srq = c.read(fields::srq);
        }
        // With an SRQ, the receive CQ has room for all receives of the SRQ.
        let shared = SharedReceiveQueue::from_nullable(attributes.srq)?;
        let receives =
            shared.map_or(attributes.cap.max_recv_wr, |shared| shared.attributes().max_wr);
        let send = self.own_queue(&context, attributes.send_cq, attributes.cap.max_send_wr)?;
        let receive = self.own_queue(&context, attributes.recv_cq, receives);
        let (send, receive) = match receive {
            Ok(receive) => (send, receive),
            Err(error) => {
                send.into_iter().for_each(OwnQueue::destroy);
                return Err(error);
            }
        };
        if let Some(own) = &send {
            attributes.send_cq = own.queue.pointer();
        }
        if let Some(own) = &receive {
            attributes.recv_cq = own.queue.pointer();
        }
        attributes.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attributes.pd = domain.pointer();
        let pair = match QueuePair::create(&domain, attributes) {
            Ok(pair) => pair,
            Err(error) => {
                send.into_iter().chain(receive).for_each(OwnQueue::destroy);
                return Err(error);
            }
        };
        if let Some(OwnQueue { channel, queue }) = send {
            c.write(fields::send_cq_channel, channel.as_ptr());
            c.write(fields::send_cq, queue.pointer());
        }
        if let Some(OwnQueue { channel, queue }) = receive {
            c.write(fields::recv_cq_channel, channel.as_ptr());
            c.write(fields::recv_cq, queue.pointer());
        }
        pair.set_state(IBV_QPS_INIT);
        c.write(fields::pd, domain.pointer());
        c.write(fields::qp, pair.pointer());
        Ok(())
    }

    /// Creates a CQ for the id. Returns `None` if the program has given a CQ.
    fn own_queue(
        &self,
        context: &Arc<Context>,
        given: *mut ibv_cq,
        entries: u32,
    ) -> Result<Option<OwnQueue>> {
        match given.is_null() {
            true => OwnQueue::create(context, self, entries).map(Some),
            false => Ok(None),
        }
    }

    /// Destroys the QP of the id, and the CQs that were created for it.
    pub(crate) fn destroy_pair(&self) {
        let c = self.c();
        let pair = c.read(fields::qp);
        if !pair.is_null() {
            c.write(fields::qp, std::ptr::null_mut());
            // An error means that the program has destroyed the QP itself.
            let _ = QueuePair::destroy(pair);
        }
        destroy_queue(c.read(fields::send_cq), c.read(fields::send_cq_channel));
        destroy_queue(c.read(fields::recv_cq), c.read(fields::recv_cq_channel));
        c.write(fields::send_cq, std::ptr::null_mut());
        c.write(fields::recv_cq, std::ptr::null_mut());
        c.write(fields::send_cq_channel, std::ptr::null_mut());
        c.write(fields::recv_cq_channel, std::ptr::null_mut());
    }

    /// Creates the SRQ of the id in `domain`, or for NULL in the PD of the id.
    ///
    /// # Errors
    /// `EINVAL`: the id has an SRQ or no device, or the PD belongs to another device. The errors of an SRQ's creation.
    pub(crate) fn create_shared_receives(
        &self,
        domain: *mut ibv_pd,
        attributes: &mut ibv_srq_init_attr,
    ) -> Result<()> {
        let c = self.c();
        let context = self.context()?;
        let domain = if domain.is_null() { c.read(fields::pd) } else { domain };
        let domain = Domain::from_ptr(domain)?;
        if !c.read(fields::srq).is_null() || !Arc::ptr_eq(domain.context(), &context) {
            return Err(EINVAL);
        }
        let shared = SharedReceiveQueue::create(&domain, attributes)?;
        c.write(fields::pd, domain.pointer());
        c.write(fields::srq, shared.pointer());
        Ok(())
    }

    /// Destroys the SRQ of the id. Keeps an SRQ that QPs still use.
    pub(crate) fn destroy_shared_receives(&self) {
        let shared = self.c().read(fields::srq);
        if !shared.is_null() && SharedReceiveQueue::destroy(shared).is_ok() {
            self.c().write(fields::srq, std::ptr::null_mut());
        }
    }
}

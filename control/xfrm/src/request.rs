//! Requests to the kernel as XFRM messages: default policies, dumps of policies and SAs, acquires, expiries, and the
//! sequence numbers and use of SAs.

use ipsec::policy::Flow;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::policy::{DefaultMessage, DelGetMessage};
use netlink_packet_xfrm::state::GetDumpMessage;
use netlink_packet_xfrm::{
    AcquireMessage, Address, AsyncEventId, ExpireMessage, Id, Lifetime, NewAsyncEventMessage,
    Replay, ReplayEsn, Selector, UserAcquire, UserExpire, UserPolicyType, UserSaId, XfrmAttrs,
    XfrmMessage,
};

use crate::policy::{KernelPolicy, SaRequirements};
use crate::sa::{ReplayState, Sa, Usage};

/// A message to the kernel.
pub(crate) struct Request {
    pub(crate) message: XfrmMessage,
    /// Flags of the netlink header in addition to `NLM_F_REQUEST` and `NLM_F_ACK`.
    pub(crate) flags: u16,
}

/// Requests the default policies: the treatment of packets that match no policy (since Linux 5.15).
pub(crate) fn get_defaults() -> Request {
    let message = XfrmMessage::GetPolicyDefault(DefaultMessage::default());
    Request { message, flags: 0 }
}

/// Requests all policies.
pub(crate) fn dump_policies() -> Request {
    let message = XfrmMessage::GetPolicy(DelGetMessage::default());
    Request { message, flags: NLM_F_DUMP }
}

/// Requests all SAs. The message has no fixed part: the kernel expects attributes directly after the netlink header.
pub(crate) fn dump_sas() -> Request {
    let message = XfrmMessage::GetDumpSa(GetDumpMessage::default());
    Request { message, flags: NLM_F_DUMP }
}

/// Returns an acquire message, which makes the daemons negotiate an SA. Like the acquires of the kernel itself
/// (net/xfrm/xfrm_state.c `xfrm_init_tempstate`) it contains the policy and a selector that matches only this flow.
pub(crate) fn acquire(
    policy: &KernelPolicy,
    wants: &SaRequirements,
    flow: &Flow,
) -> AcquireMessage {
    let ends = &wants.endpoints;
    let mut selector = Selector { proto: flow.protocol, ..Selector::default() };
    let bits = if flow.local.is_ipv4() { 32 } else { 128 };
    selector.source_prefix(&flow.local, bits);
    selector.destination_prefix(&flow.remote, bits);
    if let Some((local, remote)) = flow.ports {
        (selector.sport, selector.sport_mask) = (local, u16::MAX);
        (selector.dport, selector.dport_mask) = (remote, u16::MAX);
    }
    let mut nlas = vec![XfrmAttrs::PolicyType(UserPolicyType {
        ptype: XFRM_POLICY_TYPE_MAIN,
        ..UserPolicyType::default()
    })];
    let mut acquire = UserAcquire {
        saddr: Address::from_ip(&ends.local),
        selector,
        policy: policy.info,
        ..UserAcquire::default()
    };
    if let Some(template) = policy.templates.first() {
        // A transport mode template has no addresses; the SA has the addresses of the flow.
        let mut template = *template;
        template.source(&ends.local);
        template.destination(&ends.remote);
        acquire.id = Id { spi: 0, ..template.id };
        (acquire.aalgos, acquire.ealgos) = (template.aalgos, template.ealgos);
        acquire.calgos = template.calgos;
        nlas.push(XfrmAttrs::Template(vec![template]));
    }
    AcquireMessage { acquire, nlas }
}

/// Reports the expiry of an SA. The kernel notifies the daemons and, on a hard expiry, deletes the SA. `hard`: true for
/// the hard expiry.
pub(crate) fn expire(sa: &Sa, hard: bool) -> Request {
    let expire = UserExpire { state: sa.info, hard: hard.into() };
    Request { message: XfrmMessage::Expire(ExpireMessage { expire }), flags: 0 }
}

/// Sequence numbers of an SA, reported to the kernel.
#[derive(Clone, Copy)]
pub(crate) struct SequenceNumbers {
    /// Last number that may have been sent.
    pub(crate) sent: u64,
    /// Highest received number.
    pub(crate) received: u64,
}

/// Sets the sequence numbers of an SA (net/xfrm/xfrm_user.c `xfrm_new_ae`), and with `used` its bytes and packets. With
/// `used` the kernel overwrites the whole current lifetime, so the message repeats the times of the lifetime.
pub(crate) fn update_state(sa: &Sa, numbers: SequenceNumbers, used: Option<Usage>) -> Request {
    let info = &sa.info;
    let sa_id = UserSaId {
        daddr: info.id.daddr,
        spi: info.id.spi,
        family: info.family,
        proto: info.id.proto,
    };
    let id = AsyncEventId { sa_id, saddr: info.saddr, flags: 0, reqid: info.reqid };
    let mut nlas = vec![replay_attribute(&sa.replay, numbers)];
    nlas.extend(used.map(|Usage { bytes, packets }| {
        let lifetime = &info.lifetime_cur;
        let (add_time, use_time) = (lifetime.add_time, lifetime.use_time);
        XfrmAttrs::LifetimeBytes(Lifetime { bytes, packets, add_time, use_time })
    }));
    let message = XfrmMessage::NewAsyncEvent(NewAsyncEventMessage { id, nlas });
    Request { message, flags: NLM_F_REPLACE }
}

/// Returns the replay state to report. Its bitmap marks all numbers up to the highest as received; the actual window
/// remains in the data plane.
fn replay_attribute(
    kernel_state: &ReplayState,
    SequenceNumbers { sent, received }: SequenceNumbers,
) -> XfrmAttrs {
    let window = if received > 0 { u32::MAX } else { 0 };
    match kernel_state {
        ReplayState::Legacy(_) => XfrmAttrs::ReplayState(Replay {
            oseq: sent as u32,
            seq: received as u32,
            bitmap: window,
        }),
        // The kernel refuses a bitmap whose length differs from the length of its own bitmap.
        ReplayState::Esn(state) => XfrmAttrs::ReplayStateEsn(ReplayEsn {
            bmp_len: state.bmp_len,
            oseq: sent as u32,
            seq: received as u32,
            oseq_hi: (sent >> 32) as u32,
            seq_hi: (received >> 32) as u32,
            replay_window: state.replay_window,
            bmp: vec![window; state.bmp.len()],
        }),
    }
}

/// Returns the bytes of a request. With `acknowledged` the kernel also answers if the request succeeds.
pub(crate) fn serialize(request: Request, sequence: u32, acknowledged: bool) -> Vec<u8> {
    let Request { message, flags } = request;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags | if acknowledged { NLM_F_ACK } else { 0 };
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

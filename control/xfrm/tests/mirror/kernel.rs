//! A model of the kernel's side of NETLINK_XFRM, and builders of its messages.

use std::collections::VecDeque;
use std::net::IpAddr;

use ipsec::guard::Protection;
use ipsec::policy::{Policy, Unmatched};
use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_DUMP, NLM_F_MULTIPART, NLM_F_REPLACE, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, Parseable as _,
};
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::policy::{DefaultMessage, DelGetMessage, ModifyMessage as PolicyMessage};
use netlink_packet_xfrm::state::{
    DelGetMessage as SaDelGetMessage, FlushMessage as SaFlush, ModifyMessage as SaMessage,
};
use netlink_packet_xfrm::*;
use xfrm::{Event, Mirror, MirrorConfig, ProtectionInfo};

const ENOENT: i32 = 2;
pub(crate) const ESRCH: i32 = 3;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOMEM: i32 = 12;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Value of each byte of [`key`].
pub(crate) const KEY: u8 = 0xa5;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns a datagram with one netlink message.
pub(crate) fn datagram(message: XfrmMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    (header.flags, header.sequence_number) = (flags, sequence);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Returns a message of type NLMSG_ERROR or NLMSG_DONE, whose body is an `i32`.
pub(crate) fn numeric_message(kind: u16, flags: u16, sequence: u32, value: i32) -> Vec<u8> {
    let bytes = value.to_ne_bytes().to_vec();
    datagram(XfrmMessage::Other((kind, bytes)), flags, sequence)
}

/// Returns a policy with priority 100 that lets packets pass.
pub(crate) fn policy(direction: u8, source: &str, destination: &str) -> PolicyMessage {
    let split = |net: &str| {
        let (address, prefix) = net.split_once('/').unwrap();
        (ip(address), prefix.parse().unwrap())
    };
    let mut message = PolicyMessage::default();
    let info = &mut message.user_policy_info;
    let ((from, from_bits), (to, to_bits)) = (split(source), split(destination));
    info.selector.source_prefix(&from, from_bits);
    info.selector.destination_prefix(&to, to_bits);
    (info.direction, info.priority) = (direction, 100);
    message
}

/// Returns the template of an ESP SA between two addresses.
pub(crate) fn template(source: &str, destination: &str, reqid: u32, mode: u8) -> UserTemplate {
    let mut template = UserTemplate { reqid, mode, ..UserTemplate::default() };
    template.source(&ip(source));
    template.destination(&ip(destination));
    template.id.proto = IPPROTO_ESP;
    template
}

/// Adds a template to a policy, which then requires protection.
pub(crate) fn protect(mut message: PolicyMessage, template: UserTemplate) -> PolicyMessage {
    message.nlas.push(XfrmAttrs::Template(vec![template]));
    message
}

/// Returns the outbound and the inbound policy of a tunnel from 192.0.2.1 (our end) to 192.0.2.2. The networks are
/// 10.`net`.0.0/16 (ours) and 10.200.0.0/16.
pub(crate) fn tunnel(net: u8, reqid: u32) -> [PolicyMessage; 2] {
    let (ours, theirs) = (format!("10.{net}.0.0/16"), "10.200.0.0/16");
    let out = template("192.0.2.1", "192.0.2.2", reqid, XFRM_MODE_TUNNEL);
    let back = template("192.0.2.2", "192.0.2.1", reqid, XFRM_MODE_TUNNEL);
    [
        protect(policy(XFRM_POLICY_OUT, &ours, theirs), out),
        protect(policy(XFRM_POLICY_IN, theirs, &ours), back),
    ]
}

fn name<const N: usize>(text: &str) -> [u8; N] {
    let mut name = [0; N];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

/// Returns the attribute of an AEAD algorithm. `text`: the kernel's name of the algorithm.
pub(crate) fn aead(text: &str, key: Vec<u8>, icv_bits: u32) -> XfrmAttrs {
    XfrmAttrs::EncryptionAlgAead(AlgAead {
        alg_name: name(text),
        alg_key_len: key.len() as u32 * 8,
        alg_icv_len: icv_bits,
        alg_key: key,
    })
}

/// Returns the attribute of an encryption algorithm with a key of `bytes` bytes.
pub(crate) fn encryption(text: &str, bytes: usize) -> XfrmAttrs {
    let key = vec![KEY; bytes];
    XfrmAttrs::EncryptionAlg(Alg {
        alg_name: name(text),
        alg_key_len: bytes as u32 * 8,
        alg_key: key,
    })
}

/// Returns both attributes that the kernel sends for an authentication algorithm, with the ICV length in `bits`.
pub(crate) fn authentication(text: &str, bytes: usize, bits: u32) -> [XfrmAttrs; 2] {
    let (alg_key, alg_key_len) = (vec![KEY; bytes], bytes as u32 * 8);
    [
        XfrmAttrs::AuthenticationAlg(Alg {
            alg_name: name(text),
            alg_key_len,
            alg_key: alg_key.clone(),
        }),
        XfrmAttrs::AuthenticationAlgTrunc(AlgAuth {
            alg_name: name(text),
            alg_key_len,
            alg_trunc_len: bits,
            alg_key,
        }),
    ]
}

/// Returns a tunnel mode SA without algorithm, keys and sequence numbers.
pub(crate) fn bare_sa(source: &str, destination: &str, spi: u32, reqid: u32) -> SaMessage {
    let mut message = SaMessage::default();
    let info = &mut message.user_sa_info;
    info.source(&ip(source));
    info.destination(&ip(destination));
    (info.id.spi, info.id.proto, info.reqid) = (spi, IPPROTO_ESP, reqid);
    (info.mode, info.replay_window) = (XFRM_MODE_TUNNEL, 32);
    info.lifetime_cur.add_time = 1000;
    message
}

/// Returns an SA with 128-bit AES-GCM that has sent no packet.
pub(crate) fn sa(source: &str, destination: &str, spi: u32, reqid: u32) -> SaMessage {
    let mut message = bare_sa(source, destination, spi, reqid);
    message.nlas.push(aead("rfc4106(gcm(aes))", vec![KEY; 20], 128));
    message.nlas.push(XfrmAttrs::ReplayState(Replay::default()));
    message
}

/// Returns an SA from us to the peer of [`tunnel`].
pub(crate) fn outbound(spi: u32, reqid: u32) -> SaMessage {
    sa("192.0.2.1", "192.0.2.2", spi, reqid)
}

/// Returns an SA from the peer of [`tunnel`] to us.
pub(crate) fn inbound(spi: u32, reqid: u32) -> SaMessage {
    sa("192.0.2.2", "192.0.2.1", spi, reqid)
}

/// Adds ESN with these sent and received sequence numbers and a window of `window` packets.
pub(crate) fn with_esn(mut message: SaMessage, oseq: u64, seq: u64, window: u32) -> SaMessage {
    message.user_sa_info.flags |= XFRM_STATE_ESN;
    message.nlas.retain(|nla| !matches!(nla, XfrmAttrs::ReplayState(_)));
    let words = window.div_ceil(32);
    message.nlas.push(XfrmAttrs::ReplayStateEsn(ReplayEsn {
        bmp_len: words,
        oseq: oseq as u32,
        oseq_hi: (oseq >> 32) as u32,
        seq: seq as u32,
        seq_hi: (seq >> 32) as u32,
        replay_window: window,
        bmp: vec![0; words as usize],
    }));
    message
}

/// Sets the sent and received sequence numbers of an SA without ESN.
pub(crate) fn with_replay(mut message: SaMessage, oseq: u32, seq: u32) -> SaMessage {
    message.nlas.retain(|nla| !matches!(nla, XfrmAttrs::ReplayState(_)));
    message.nlas.push(XfrmAttrs::ReplayState(Replay { oseq, seq, bitmap: 0 }));
    message
}

/// Adds an attribute to an SA.
pub(crate) fn with(mut message: SaMessage, nla: XfrmAttrs) -> SaMessage {
    message.nlas.push(nla);
    message
}

/// Returns `XFRMA_SA_DIR`, which netlink-packet-xfrm lacks: 1 is in, 2 is out.
pub(crate) fn sa_direction(direction: u8) -> XfrmAttrs {
    XfrmAttrs::Other(DefaultNla::new(33, vec![direction]))
}

fn sa_id(message: &SaMessage) -> UserSaId {
    let info = &message.user_sa_info;
    let Id { daddr, spi, proto } = info.id;
    UserSaId { daddr, spi, proto, family: info.family }
}

/// A request of the mirror.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ModelRequest {
    Defaults,
    DumpPolicies,
    DumpSas,
    Other(Box<XfrmMessage>),
}

/// Entries, each with a number that is never reused.
type Entries<T> = VecDeque<(u64, T)>;

/// Policies and SAs, the newest first, and the datagrams that wait in the mirror's socket.
#[derive(Default)]
pub(crate) struct ModelKernel {
    pub(crate) policies: Entries<PolicyMessage>,
    pub(crate) sas: Entries<SaMessage>,
    pub(crate) defaults: UserPolicyDefault,
    /// True for a kernel older than Linux 5.15, which lacks default policies.
    pub(crate) old: bool,
    /// Error number with which XFRM_MSG_NEWAE fails; 0 for success.
    pub(crate) refuse_async_events: i32,
    /// Error number with which dumps fail; 0 for success.
    pub(crate) refuse_dumps: i32,
    /// Maximum number of dumped entries per datagram.
    pub(crate) chunk: usize,
    pub(crate) socket: VecDeque<Vec<u8>>,
    pub(crate) requests: Vec<ModelRequest>,
    /// Last number assigned to an entry.
    pub(crate) last_number: u64,
    /// Dump in progress.
    pub(crate) dump: Option<Dump>,
}

/// A dump in progress.
pub(crate) struct Dump {
    /// Netlink sequence number of the request.
    sequence: u32,
    /// True for policies, false for SAs.
    of_policies: bool,
    /// Numbers of the entries that are not yet listed.
    rest: VecDeque<u64>,
}

impl ModelKernel {
    pub(crate) fn new() -> ModelKernel {
        ModelKernel { chunk: usize::MAX, ..ModelKernel::default() }
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Sends a monitor message, which is not part of a dump. Its sequence number is arbitrary.
    pub(crate) fn send(&mut self, message: XfrmMessage) {
        self.socket.push_back(datagram(message, 0, 1));
    }

    pub(crate) fn set_policy(&mut self, mut message: PolicyMessage) {
        let id = self.number();
        let same = |other: &PolicyMessage| {
            let (a, b) = (&other.user_policy_info, &message.user_policy_info);
            a.selector == b.selector && a.direction == b.direction
        };
        let before = self.policies.iter().position(|(_, other)| same(other));
        let info = &mut message.user_policy_info;
        match before.and_then(|at| self.policies.remove(at)) {
            Some((_, old)) => info.index = old.user_policy_info.index,
            None if info.index == 0 => info.index = id as u32 * 8 + u32::from(info.direction),
            None => {}
        }
        self.policies.push_front((id, message.clone()));
        let sent = match before {
            Some(_) => XfrmMessage::UpdatePolicy(message),
            None => XfrmMessage::AddPolicy(message),
        };
        self.send(sent);
    }

    pub(crate) fn delete_policy(&mut self, at: usize) {
        let Some((_, old)) = self.policies.remove(at) else { return };
        let mut message = DelGetMessage::default();
        message.user_policy_id.direction = old.user_policy_info.direction;
        message.user_policy_id.selector = old.user_policy_info.selector;
        message.nlas = vec![XfrmAttrs::PolicyInfo(old.user_policy_info)];
        message.nlas.extend(old.nlas);
        self.send(XfrmMessage::DeletePolicy(message));
    }

    pub(crate) fn flush_policies(&mut self) {
        self.policies.clear();
        self.send(XfrmMessage::FlushPolicy(Default::default()));
    }

    pub(crate) fn add_sa(&mut self, message: SaMessage) {
        let id = self.number();
        self.sas.push_front((id, message.clone()));
        self.send(XfrmMessage::AddSa(message));
    }

    pub(crate) fn delete_sa(&mut self, at: usize) {
        let Some((_, old)) = self.sas.remove(at) else { return };
        let user_sa_id = sa_id(&old);
        let mut nlas = vec![XfrmAttrs::SaInfo(old.user_sa_info)];
        nlas.extend(old.nlas);
        self.send(XfrmMessage::DeleteSa(SaDelGetMessage { user_sa_id, nlas }));
    }

    pub(crate) fn flush_sas(&mut self) {
        self.sas.clear();
        self.send(XfrmMessage::FlushSa(SaFlush { protocol: 0 }));
    }

    /// Handles a request of the mirror.
    pub(crate) fn handle_request(&mut self, bytes: &[u8]) {
        let buffer = NetlinkBuffer::new_checked(bytes).unwrap();
        assert_eq!(buffer.length() as usize, bytes.len());
        let (sequence, flags) = (buffer.sequence_number(), buffer.flags());
        match buffer.message_type() {
            XFRM_MSG_GETDEFAULT => {
                self.requests.push(ModelRequest::Defaults);
                let answer = match self.old {
                    true => numeric_message(NLMSG_ERROR, 0, sequence, -EINVAL),
                    false => {
                        let user_policy = self.defaults;
                        let message = DefaultMessage { user_policy };
                        datagram(XfrmMessage::GetPolicyDefault(message), 0, sequence)
                    }
                };
                self.socket.push_back(answer);
            }
            kind @ (XFRM_MSG_GETPOLICY | XFRM_MSG_GETSA) => {
                assert_eq!(flags & NLM_F_DUMP, NLM_F_DUMP);
                if kind == XFRM_MSG_GETSA {
                    assert!(buffer.payload().is_empty(), "attributes follow the header");
                }
                self.begin_dump(sequence, kind == XFRM_MSG_GETPOLICY);
            }
            _ => {
                let message = NetlinkMessage::<XfrmMessage>::deserialize(bytes).unwrap();
                let NetlinkPayload::InnerMessage(message) = message.payload else { panic!() };
                let code = self.apply(&message, flags);
                if code != 0 || flags & NLM_F_ACK != 0 {
                    self.socket.push_back(numeric_message(NLMSG_ERROR, 0, sequence, -code));
                }
                self.requests.push(ModelRequest::Other(Box::new(message)));
            }
        }
    }

    /// Begins a dump and sends its first datagram, or refuses the dump.
    fn begin_dump(&mut self, sequence: u32, of_policies: bool) {
        assert!(self.dump.is_none(), "one dump at a time");
        self.requests.push(match of_policies {
            true => ModelRequest::DumpPolicies,
            false => ModelRequest::DumpSas,
        });
        if self.refuse_dumps != 0 {
            let answer = numeric_message(NLMSG_ERROR, 0, sequence, -self.refuse_dumps);
            return self.socket.push_back(answer);
        }
        let rest = match of_policies {
            true => self.policies.iter().map(|(id, _)| *id).collect(),
            false => self.sas.iter().map(|(id, _)| *id).collect(),
        };
        self.dump = Some(Dump { sequence, of_policies, rest });
        self.list_entries();
    }

    /// Sends the next datagram of the dump.
    pub(crate) fn list_entries(&mut self) {
        let Some(Dump { sequence, of_policies, mut rest }) = self.dump.take() else { return };
        let flags = NLM_F_MULTIPART;
        let mut answer = Vec::new();
        let mut listed = 0;
        while listed < self.chunk
            && let Some(id) = rest.pop_front()
        {
            // Entries deleted or replaced since the dump began are not listed.
            let message = match of_policies {
                true => self.policies.iter().find(|(other, _)| *other == id).map(|(_, message)| {
                    datagram(XfrmMessage::AddPolicy(message.clone()), flags, sequence)
                }),
                false => self.sas.iter().find(|(other, _)| *other == id).map(|(_, message)| {
                    datagram(XfrmMessage::AddSa(message.clone()), flags, sequence)
                }),
            };
            listed += 1;
            answer.extend(message.into_iter().flatten());
        }
        if rest.is_empty() {
            answer.extend(numeric_message(NLMSG_DONE, flags, sequence, 0));
        } else {
            self.dump = Some(Dump { sequence, of_policies, rest });
        }
        self.socket.push_back(answer);
    }

    pub(crate) fn is_listing(&self) -> bool {
        self.dump.is_some()
    }

    fn apply(&mut self, message: &XfrmMessage, flags: u16) -> i32 {
        match message {
            XfrmMessage::NewAsyncEvent(event) => {
                assert_ne!(flags & NLM_F_REPLACE, 0);
                if self.refuse_async_events != 0 {
                    return self.refuse_async_events;
                }
                let found = self.sas.iter_mut().find(|(_, sa)| sa_id(sa) == event.id.sa_id);
                let Some((_, sa)) = found else { return ESRCH };
                for nla in &event.nlas {
                    if let XfrmAttrs::LifetimeBytes(lifetime) = nla {
                        sa.user_sa_info.lifetime_cur = *lifetime;
                    }
                    let same = |old: &&mut XfrmAttrs| {
                        std::mem::discriminant(*old) == std::mem::discriminant(nla)
                    };
                    if let Some(old) = sa.nlas.iter_mut().find(same) {
                        if let (XfrmAttrs::ReplayStateEsn(a), XfrmAttrs::ReplayStateEsn(b)) =
                            (&*old, nla)
                            && a.bmp_len != b.bmp_len
                        {
                            return EINVAL;
                        }
                        *old = nla.clone();
                    }
                }
                0
            }
            XfrmMessage::Expire(expire) => {
                let state = &expire.expire.state;
                let same = |(_, sa): &(u64, SaMessage)| sa.user_sa_info.id == state.id;
                let Some(at) = self.sas.iter().position(same) else { return ENOENT };
                if expire.expire.hard != 0 {
                    self.sas.remove(at);
                }
                self.send(XfrmMessage::Expire(expire.clone()));
                0
            }
            _ => 0,
        }
    }

    /// Replaces the mirror's socket by a new one.
    pub(crate) fn reopen(&mut self) {
        self.socket.clear();
        self.dump = None;
    }

    /// Exchanges messages until neither the kernel nor the mirror has any. Returns the events.
    pub(crate) fn run(&mut self, mirror: &mut Mirror) -> Vec<Event> {
        loop {
            while let Some(request) = mirror.poll_transmit() {
                self.handle_request(&request);
            }
            match self.socket.pop_front() {
                Some(datagram) => mirror.input(&datagram),
                None if self.is_listing() => self.list_entries(),
                None => break,
            }
        }
        std::iter::from_fn(|| mirror.poll_event()).collect()
    }

    /// Returns the mirror's requests since the last call.
    pub(crate) fn take_requests(&mut self) -> Vec<ModelRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Returns the last sequence number that the kernel has recorded as sent on an SA.
    pub(crate) fn oseq(&self, spi: u32) -> u64 {
        let (_, sa) = self.sas.iter().find(|(_, sa)| sa.user_sa_info.id.spi == spi).unwrap();
        let found = sa.nlas.iter().find_map(|nla| match nla {
            XfrmAttrs::ReplayState(replay) => Some(u64::from(replay.oseq)),
            XfrmAttrs::ReplayStateEsn(replay) => {
                Some(u64::from(replay.oseq_hi) << 32 | u64::from(replay.oseq))
            }
            _ => None,
        });
        found.unwrap()
    }
}

pub(crate) const CONFIG: MirrorConfig = MirrorConfig { min_window: 1024, chunk: 1000 };

/// Returns a kernel with these entries, a synced mirror of it, and the events.
pub(crate) fn synced_mirror(
    policies: impl IntoIterator<Item = PolicyMessage>,
    sas: impl IntoIterator<Item = SaMessage>,
) -> (ModelKernel, Mirror, Vec<Event>) {
    let mut kernel = ModelKernel::new();
    policies.into_iter().for_each(|policy| kernel.set_policy(policy));
    sas.into_iter().for_each(|sa| kernel.add_sa(sa));
    kernel.socket.clear();
    let mut mirror = Mirror::new(CONFIG);
    mirror.request_dump();
    let events = kernel.run(&mut mirror);
    assert!(mirror.is_synced());
    (kernel, mirror, events)
}

/// Parts of [`Event::Policies`].
pub(crate) type List = (Vec<Policy<Protection>>, Unmatched, Vec<ProtectionInfo>);

/// Returns the last list in these events.
pub(crate) fn list(events: &[Event]) -> List {
    let found = events.iter().rev().find_map(|event| match event {
        Event::Policies { list, unselected, protections } => {
            Some((list.clone(), *unselected, protections.clone()))
        }
        _ => None,
    });
    found.expect("a list of policies")
}

/// Returns the reasons of refusals in these events.
pub(crate) fn refusals(events: &[Event]) -> Vec<String> {
    let reason = |event: &Event| match event {
        Event::Refused { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    events.iter().filter_map(reason).collect()
}

/// A message that the model serializes parses back to an equal message.
#[test]
fn model_messages_round_trip_through_netlink_library() {
    let message = with_esn(outbound(256, 1), 5, 6, 64);
    let bytes = datagram(XfrmMessage::AddSa(message.clone()), 0, 1);
    let buffer = NetlinkBuffer::new_checked(&bytes[..]).unwrap();
    assert_eq!(SaMessage::parse(buffer.payload()).unwrap(), message);
}

//! Parses a datagram of the kernel into messages.
//!
//! The types of netlink-packet-xfrm parse fixed parts and attributes. The message types of that crate are not used
//! for parsing: they index the bytes without a length check, and if an attribute is malformed they free the keys of
//! earlier attributes without wiping them. Only attributes that the mirror uses are parsed.

use netlink_packet_core::{NLM_F_DUMP_INTR, NLM_F_MULTIPART};
use netlink_packet_core::{NetlinkBuffer, NlaBuffer, NlasIterator, Parseable as _};
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::{
    EncapTmpl, Mark, Replay, ReplayEsn, UserExpire, UserPolicyDefault, UserPolicyExpire,
    UserPolicyId, UserPolicyInfo, UserSaId, UserSaInfo, UserTemplate, XfrmAttrs,
};
use netlink_packet_xfrm::{
    XFRM_USER_EXPIRE_LEN, XFRM_USER_POLICY_EXPIRE_LEN, XFRM_USER_POLICY_ID_LEN,
    XFRM_USER_POLICY_INFO_LEN, XFRM_USER_SA_ID_LEN, XFRM_USER_SA_INFO_LEN,
};
use zeroize::Zeroizing;

/// Message types of netlink itself (include/uapi/linux/netlink.h).
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
/// Attribute with the direction of an SA, a `u8`: 1 is in, 2 is out. netlink-packet-xfrm lacks it.
const XFRMA_SA_DIR: u16 = 33;

const ALIGNMENT: usize = 4;

/// A netlink message from the kernel.
pub(crate) struct Message {
    /// Sequence number of the answered request; in a monitor message, of the request that caused the change.
    pub(crate) sequence: u32,
    /// True for a message of a dump.
    pub(crate) is_dump: bool,
    /// True if policies or SAs changed during the dump (`NLM_F_DUMP_INTR`), so that the dump may be incomplete.
    pub(crate) interrupted: bool,
    pub(crate) body: Body,
}

/// Content of a message.
pub(crate) enum Body {
    /// A policy exists.
    Policy(Box<UserPolicyInfo>, Attributes),
    /// A policy was deleted.
    PolicyDeleted(UserPolicyId, Attributes),
    /// A policy has expired.
    PolicyExpired(Box<UserPolicyExpire>, Attributes),
    /// All policies of the type in the attributes were deleted.
    PoliciesFlushed(Attributes),
    /// Treatment of packets that match no policy.
    Defaults(UserPolicyDefault),
    /// An SA exists. With `update` the message repeats the daemon's request, not the kernel's state: its sequence
    /// numbers may be lower than the kernel's.
    Sa { info: Box<UserSaInfo>, update: bool, attributes: Attributes },
    /// An SA was deleted.
    SaDeleted(UserSaId, Attributes),
    /// A soft or hard lifetime of an SA has ended.
    SaExpired(Box<UserExpire>, Attributes),
    /// All SAs of this protocol were deleted; 0 and 255 mean all protocols.
    SasFlushed(u8),
    /// Addresses of policies and SAs were changed (MIGRATE).
    Migrated,
    /// The answer to one of the mirror's requests: 0, or a negative error number.
    Acknowledged(i32),
    /// A dump is complete: 0, or a negative error number.
    Done(i32),
    /// Messages were lost.
    Overrun,
    /// A message that the mirror does not use.
    Other,
}

/// A message that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Message type; `None` if the datagram ends within the header.
    pub(crate) kind: Option<u16>,
}

/// Iterates over the messages of a datagram. Ends after a truncated message.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Message, Malformed>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Ok(buffer) = NetlinkBuffer::new_checked(rest) else {
            rest = &[];
            return Some(Err(Malformed { kind: None }));
        };
        let (kind, flags) = (buffer.message_type(), buffer.flags());
        let sequence = buffer.sequence_number();
        let message = parse_body(kind, buffer.payload()).map(|body| Message {
            sequence,
            is_dump: flags & NLM_F_MULTIPART != 0,
            interrupted: flags & NLM_F_DUMP_INTR != 0,
            body,
        });
        let len = buffer.length() as usize;
        rest = rest.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(message.ok_or(Malformed { kind: Some(kind) }))
    })
}

fn parse_body(kind: u16, bytes: &[u8]) -> Option<Body> {
    /// Parses the fixed part, the first `$len` bytes, as `$of`, and the rest as attributes.
    macro_rules! split {
        ($of:ty, $len:expr) => {{
            let (fixed, rest) = bytes.split_at_checked($len)?;
            (<$of>::parse(fixed).ok()?, Attributes::read(rest)?)
        }};
    }
    Some(match kind {
        XFRM_MSG_NEWPOLICY | XFRM_MSG_UPDPOLICY => {
            let (info, attributes) = split!(UserPolicyInfo, XFRM_USER_POLICY_INFO_LEN);
            Body::Policy(Box::new(info), attributes)
        }
        XFRM_MSG_DELPOLICY => {
            let (id, attributes) = split!(UserPolicyId, XFRM_USER_POLICY_ID_LEN);
            Body::PolicyDeleted(id, attributes)
        }
        XFRM_MSG_POLEXPIRE => {
            let (expire, attributes) = split!(UserPolicyExpire, XFRM_USER_POLICY_EXPIRE_LEN);
            Body::PolicyExpired(Box::new(expire), attributes)
        }
        XFRM_MSG_FLUSHPOLICY => Body::PoliciesFlushed(Attributes::read(bytes)?),
        XFRM_MSG_GETDEFAULT => Body::Defaults(UserPolicyDefault::parse(bytes).ok()?),
        XFRM_MSG_NEWSA | XFRM_MSG_UPDSA => {
            let (info, attributes) = split!(UserSaInfo, XFRM_USER_SA_INFO_LEN);
            let update = kind == XFRM_MSG_UPDSA;
            Body::Sa { info: Box::new(info), update, attributes }
        }
        XFRM_MSG_DELSA => {
            let (id, attributes) = split!(UserSaId, XFRM_USER_SA_ID_LEN);
            Body::SaDeleted(id, attributes)
        }
        XFRM_MSG_EXPIRE => {
            let (expire, attributes) = split!(UserExpire, XFRM_USER_EXPIRE_LEN);
            Body::SaExpired(Box::new(expire), attributes)
        }
        XFRM_MSG_FLUSHSA => Body::SasFlushed(*bytes.first()?),
        XFRM_MSG_MIGRATE => Body::Migrated,
        NLMSG_ERROR => Body::Acknowledged(parse_error_code(bytes)?),
        // Old kernels send NLMSG_DONE without an error code.
        NLMSG_DONE => Body::Done(parse_error_code(bytes).unwrap_or(0)),
        NLMSG_OVERRUN => Body::Overrun,
        _ => Body::Other,
    })
}

fn parse_error_code(bytes: &[u8]) -> Option<i32> {
    bytes.first_chunk().map(|code| i32::from_ne_bytes(*code))
}

/// An algorithm with its key.
pub(crate) struct Algo {
    /// The kernel's name, as in /proc/crypto.
    pub(crate) name: String,
    /// Length of the ICV in bits; 0 for a cipher.
    pub(crate) icv_bits: u32,
    pub(crate) key: Zeroizing<Vec<u8>>,
}

impl Algo {
    /// Returns an algorithm whose name and key have no trailing padding. `None` if the key is shorter than its declared
    /// length; the key is wiped also in this case.
    fn new(name: &[u8], icv_bits: u32, key_bits: u32, key: Vec<u8>) -> Option<Algo> {
        let mut key = Zeroizing::new(key);
        let bytes = (key_bits as usize).div_ceil(8);
        if key.len() < bytes {
            return None;
        }
        key.truncate(bytes);
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Some(Algo { name: String::from_utf8_lossy(&name[..end]).into_owned(), icv_bits, key })
    }
}

/// The attributes of a policy or SA that the mirror uses.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) aead: Option<Algo>,
    pub(crate) encryption: Option<Algo>,
    pub(crate) authentication: Option<Algo>,
    pub(crate) encapsulation: Option<EncapTmpl>,
    pub(crate) templates: Vec<UserTemplate>,
    pub(crate) policy: Option<Box<UserPolicyInfo>>,
    /// Type of the policy: 0 is "main".
    pub(crate) policy_type: u8,
    pub(crate) mark: Mark,
    pub(crate) if_id: u32,
    pub(crate) replay: Option<Replay>,
    pub(crate) replay_esn: Option<ReplayEsn>,
    pub(crate) extra_flags: u32,
    /// Length to which packets are padded (TFC), bytes.
    pub(crate) padding: u32,
    /// Direction of the SA: 1 is in, 2 is out.
    pub(crate) direction: Option<u8>,
    /// True if the SA is offloaded to a network device (`XFRMA_OFFLOAD_DEV`).
    pub(crate) offloaded: bool,
    /// True if the policy or SA has a security label.
    pub(crate) labelled: bool,
}

impl Attributes {
    fn read(bytes: &[u8]) -> Option<Attributes> {
        let mut all = Attributes::default();
        for attribute in NlasIterator::new(bytes) {
            all.read_attribute(&attribute.ok()?)?;
        }
        Some(all)
    }

    /// Parses one attribute. XFRMA_ALG_AUTH is skipped: the kernel sends the same key also in XFRMA_ALG_AUTH_TRUNC.
    /// `None` if the attribute is malformed.
    fn read_attribute(&mut self, attribute: &NlaBuffer<&[u8]>) -> Option<()> {
        let kind = attribute.kind();
        match kind {
            XFRMA_OFFLOAD_DEV => self.offloaded = true,
            XFRMA_SEC_CTX => self.labelled = true,
            XFRMA_SA_DIR => self.direction = Some(*attribute.value().first()?),
            XFRMA_ALG_AEAD | XFRMA_ALG_CRYPT | XFRMA_ALG_AUTH_TRUNC | XFRMA_ENCAP | XFRMA_TMPL
            | XFRMA_POLICY | XFRMA_POLICY_TYPE | XFRMA_MARK | XFRMA_IF_ID | XFRMA_REPLAY_VAL
            | XFRMA_REPLAY_ESN_VAL | XFRMA_SA_EXTRA_FLAGS | XFRMA_TFCPAD => {
                self.set_attribute(XfrmAttrs::parse(attribute).ok()?)?
            }
            _ => {}
        }
        Some(())
    }

    fn set_attribute(&mut self, attribute: XfrmAttrs) -> Option<()> {
        match attribute {
            XfrmAttrs::EncryptionAlgAead(a) => {
                let algo = Algo::new(&a.alg_name, a.alg_icv_len, a.alg_key_len, a.alg_key);
                self.aead = Some(algo?);
            }
            XfrmAttrs::EncryptionAlg(a) => {
                self.encryption = Some(Algo::new(&a.alg_name, 0, a.alg_key_len, a.alg_key)?);
            }
            XfrmAttrs::AuthenticationAlgTrunc(a) => {
                let algo = Algo::new(&a.alg_name, a.alg_trunc_len, a.alg_key_len, a.alg_key);
                self.authentication = Some(algo?);
            }
            XfrmAttrs::EncapsulationTemplate(encapsulation) => {
                self.encapsulation = Some(encapsulation);
            }
            XfrmAttrs::Template(templates) => self.templates = templates,
            XfrmAttrs::PolicyInfo(info) => self.policy = Some(Box::new(info)),
            XfrmAttrs::PolicyType(kind) => self.policy_type = kind.ptype,
            XfrmAttrs::Mark(mark) => self.mark = mark,
            XfrmAttrs::IfId(id) => self.if_id = id,
            XfrmAttrs::ReplayState(replay) => self.replay = Some(replay),
            XfrmAttrs::ReplayStateEsn(replay) if replay.bmp.len() == replay.bmp_len as usize => {
                self.replay_esn = Some(replay);
            }
            XfrmAttrs::ReplayStateEsn(_) => return None,
            XfrmAttrs::ExtraFlags(flags) => self.extra_flags = flags,
            XfrmAttrs::TfcPadding(bytes) => self.padding = bytes,
            _ => {}
        }
        Some(())
    }
}

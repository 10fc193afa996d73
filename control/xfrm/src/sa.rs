//! One SA of the kernel, and its parameters for the data plane.
//!
//! An SA with an unsupported property or algorithm is refused: it has a reason instead of parameters and keys.

use std::fmt::{self, Display};
use std::net::IpAddr;

use ipsec::policy::Direction;
use ipsec::replay::{WINDOW_MAX, WINDOW_MIN};
use ipsec::sa::{Encapsulation, Fragments, Lifetime, Mode, Parameters, Tunnel};
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::{Address, LifetimeConfig, Replay, ReplayEsn, UserSaInfo};

use crate::algorithm::{self, Suite};
use crate::message::Attributes;
use crate::policy::{SaEndpoints, parse_address};

/// Time to live of outer packets, Linux's default.
const TTL: u8 = 64;
/// Values of `XFRMA_SA_DIR`.
const DIRECTION_IN: u8 = 1;
const DIRECTION_OUT: u8 = 2;

/// Identity of an SA in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SaKey {
    pub(crate) family: u16,
    pub(crate) destination: [u8; 16],
    pub(crate) spi: u32,
    pub(crate) protocol: u8,
    mark: (u32, u32),
}

impl SaKey {
    pub(crate) fn new(
        family: u16,
        destination: &Address,
        spi: u32,
        protocol: u8,
        attributes: &Attributes,
    ) -> SaKey {
        let mark = (attributes.mark.value, attributes.mark.mask);
        SaKey { family, destination: destination.addr, spi, protocol, mark }
    }
}

/// Sequence numbers in the kernel's form: `Legacy` has 32-bit numbers and a 32-bit bitmap, `Esn` has 64-bit numbers and
/// a bitmap of any size. The kernel also uses `Esn` for large windows without ESN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplayState {
    Legacy(Replay),
    Esn(ReplayEsn),
}

/// Negotiated parameters, except algorithm and keys. They do not change while an SA is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SaProperties {
    pub(crate) reqid: u32,
    pub(crate) spi: u32,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// True for tunnel mode, false for transport mode.
    pub(crate) tunnel: bool,
    /// True for extended (64-bit) sequence numbers.
    pub(crate) esn: bool,
    /// True unless the SA has `XFRM_STATE_NOECN`.
    ecn: bool,
    /// DSCP of outer packets: 0 with `XFRM_SA_XFLAG_DONT_ENCAP_DSCP`, else `None` (the DSCP of the inner packet).
    dscp: Option<u8>,
    fragments: Fragments,
    /// Source and destination UDP port of the SA's packets.
    encapsulation: Option<(u16, u16)>,
    lifetime: LifetimeConfig,
    /// The kernel's anti-replay window, in packets.
    window: u32,
    pub(crate) direction: Option<Direction>,
}

/// Content of a message about an SA.
pub(crate) struct Sa {
    pub(crate) info: UserSaInfo,
    /// Algorithms, as the kernel names them.
    pub(crate) algorithm: String,
    /// Parameters and keys, or the reason why the SA is refused.
    pub(crate) translation: Result<(SaProperties, Suite), String>,
    pub(crate) replay: ReplayState,
}

impl Sa {
    /// Translates the content of a message about an SA. Returns `None` for an SA that is still being negotiated.
    pub(crate) fn translate(info: UserSaInfo, mut attributes: Attributes) -> Option<Sa> {
        if info.id.spi == 0
            || (info.id.proto == IPPROTO_ESP && algorithm::has_no_algorithm(&attributes))
        {
            return None;
        }
        let algorithm = algorithm::algorithm_name(&attributes);
        let reading = translate_properties(&info, &attributes)
            .and_then(|facts| algorithm::read_suite(&mut attributes).map(|suite| (facts, suite)));
        let Attributes { replay, replay_esn, .. } = attributes;
        let replay = match replay_esn {
            Some(replay) => ReplayState::Esn(replay),
            None => ReplayState::Legacy(replay.unwrap_or_default()),
        };
        Some(Sa { info, algorithm, translation: reading, replay })
    }

    /// Returns true if all properties except keys, algorithm and use are equal. Refused SAs are compared by the reason.
    pub(crate) fn has_same_properties(&self, other: &Sa) -> bool {
        match (&self.translation, &other.translation) {
            (Ok((facts, _)), Ok((others, _))) => facts == others,
            (Err(reason), Err(other)) => reason == other,
            _ => false,
        }
    }

    /// Returns true if algorithm and keys are equal: both SAs then share one sequence number space.
    pub(crate) fn has_same_keys(&self, other: &Sa) -> bool {
        match (&self.translation, &other.translation) {
            (Ok((_, suite)), Ok((_, others))) => suite == others,
            // The mirror keeps no keys of a refused SA, so two refused SAs are considered equal.
            (a, b) => a.is_err() == b.is_err(),
        }
    }

    /// Restores from `before` the values that XFRM_MSG_UPDSA does not change in the kernel, even if the message
    /// contains them: keys, sequence numbers and use (net/xfrm/xfrm_state.c `xfrm_state_update`). The keys are swapped
    /// with the keys of `before`. Returns false, without swapping the keys, if either SA is refused.
    pub(crate) fn keep_unchanged_values(&mut self, before: &mut Sa) -> bool {
        self.info.lifetime_cur = before.info.lifetime_cur;
        self.replay = before.replay.clone();
        match (&mut self.translation, &mut before.translation) {
            (Ok((_, suite)), Ok((_, kept))) => {
                std::mem::swap(suite, kept);
                true
            }
            _ => false,
        }
    }

    /// Returns the last sequence number that the kernel has recorded as sent.
    pub(crate) fn sent_sequence(&self) -> u64 {
        match &self.replay {
            ReplayState::Legacy(replay) => u64::from(replay.oseq),
            ReplayState::Esn(replay) => join_sequence(self.is_esn(), replay.oseq_hi, replay.oseq),
        }
    }

    /// Returns the highest received sequence number that the kernel has recorded.
    pub(crate) fn received_sequence(&self) -> u64 {
        match &self.replay {
            ReplayState::Legacy(replay) => u64::from(replay.seq),
            ReplayState::Esn(replay) => join_sequence(self.is_esn(), replay.seq_hi, replay.seq),
        }
    }

    fn is_esn(&self) -> bool {
        self.info.flags & XFRM_STATE_ESN != 0
    }

    pub(crate) fn source(&self) -> Option<IpAddr> {
        parse_address(self.info.family, &self.info.saddr)
    }

    pub(crate) fn destination(&self) -> Option<IpAddr> {
        parse_address(self.info.family, &self.info.id.daddr)
    }
}

impl Display for Sa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |ip: Option<IpAddr>| ip.map_or_else(|| "?".to_owned(), |ip| ip.to_string());
        let protocol = match self.info.id.proto {
            IPPROTO_ESP => "esp".to_owned(),
            IPPROTO_AH => "ah".to_owned(),
            IPPROTO_COMP => "ipcomp".to_owned(),
            other => format!("protocol {other}"),
        };
        let (source, destination) = (end(self.source()), end(self.destination()));
        write!(f, "{protocol} SPI {:#010x} {source} - {destination}", self.info.id.spi)
    }
}

/// Joins the halves of a sequence number. Without ESN the high half is not part of the number.
fn join_sequence(esn: bool, high: u32, low: u32) -> u64 {
    if esn { u64::from(high) << 32 | u64::from(low) } else { u64::from(low) }
}

fn translate_properties(
    info: &UserSaInfo,
    attributes: &Attributes,
) -> Result<SaProperties, String> {
    if info.id.proto != IPPROTO_ESP {
        return Err("only ESP is supported".into());
    }
    if info.id.spi <= 255 {
        return Err("SPIs up to 255 are reserved (RFC 4303 §2.1)".into());
    }
    let (Some(source), Some(destination)) =
        (parse_address(info.family, &info.saddr), parse_address(info.family, &info.id.daddr))
    else {
        return Err("its addresses are neither of IPv4 nor of IPv6".into());
    };
    let tunnel = match info.mode {
        XFRM_MODE_TRANSPORT => false,
        XFRM_MODE_TUNNEL => true,
        XFRM_MODE_BEET => return Err("mode BEET is not supported".into()),
        other => return Err(format!("mode {other} is not supported, only transport and tunnel")),
    };
    unsupported_property(info, attributes).map_or(Ok(()), Err)?;
    let esn = info.flags & XFRM_STATE_ESN != 0;
    let window = match &attributes.replay_esn {
        Some(replay) => replay.replay_window,
        None if esn => return Err("it has ESN, but no state of it".into()),
        None if attributes.replay.is_none() => return Err("it has no sequence numbers".into()),
        None => u32::from(info.replay_window),
    };
    let encapsulation = match attributes.encapsulation {
        None => None,
        Some(udp) if udp.encap_type == UDP_ENCAP_ESPINUDP => {
            Some((udp.encap_sport, udp.encap_dport))
        }
        Some(other) => {
            return Err(format!("encapsulation of type {} is not supported", other.encap_type));
        }
    };
    let no_dscp = attributes.extra_flags & XFRM_SA_XFLAG_DONT_ENCAP_DSCP != 0;
    Ok(SaProperties {
        reqid: info.reqid,
        spi: info.id.spi,
        source,
        destination,
        tunnel,
        esn,
        ecn: info.flags & XFRM_STATE_NOECN == 0,
        dscp: no_dscp.then_some(0),
        fragments: match info.flags & XFRM_STATE_NOPMTUDISC {
            0 => Fragments::Copy,
            _ => Fragments::Allowed,
        },
        encapsulation,
        lifetime: info.lifetime_cfg,
        window,
        direction: match attributes.direction {
            Some(DIRECTION_IN) => Some(Direction::In),
            Some(DIRECTION_OUT) => Some(Direction::Out),
            _ => None,
        },
    })
}

/// Returns the reason to refuse an SA with an unsupported property; `None` if there is none.
///
/// Five flags are ignored: XFRM_STATE_DECAP_DSCP (the inner DSCP stays as the peer sent it, RFC 4301 §5.1.2),
/// XFRM_STATE_ALIGN4 (AH only), XFRM_STATE_AF_UNSPEC (an SA never restricts the inner address family), XFRM_STATE_ICMP
/// (ICMP errors are protected like other packets) and XFRM_SA_XFLAG_OSEQ_MAY_WRAP (our numbers never wrap, RFC 4303
/// §3.3.3).
fn unsupported_property(info: &UserSaInfo, attributes: &Attributes) -> Option<String> {
    let LifetimeConfig { soft_use_expires_seconds, hard_use_expires_seconds, .. } =
        info.lifetime_cfg;
    let selector = &info.selector;
    Some(match () {
        () if attributes.mark.value != 0 => {
            format!("mark {:#x}: our packets have none", attributes.mark.value)
        }
        () if attributes.if_id != 0 => format!("it is of XFRM interface {}", attributes.if_id),
        () if selector.ifindex != 0 => {
            format!("it is of the kernel's device {}", selector.ifindex)
        }
        () if attributes.offloaded => "a network card does it (hardware offload)".into(),
        () if attributes.labelled => "security labels are not supported".into(),
        () if attributes.padding != 0 => "TFC padding is not supported".into(),
        () if soft_use_expires_seconds != 0 || hard_use_expires_seconds != 0 => {
            "lifetimes that begin with the first use are not supported".into()
        }
        () if selector.proto != 0 || selector.sport_mask != 0 || selector.dport_mask != 0 => {
            "its own selector has a protocol or ports: only its policy's may".into()
        }
        () if info.flags & XFRM_STATE_WILDRECV != 0 => {
            "it receives from any address (flag wildrecv)".into()
        }
        () => return None,
    })
}

/// Bytes and packets that an SA has processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}

impl SaProperties {
    /// Returns the SA's endpoints as local and remote for `direction`, with its mode and reqid.
    pub(crate) fn endpoints(&self, direction: Direction) -> SaEndpoints {
        let (local, remote) = match direction {
            Direction::Out => (self.source, self.destination),
            Direction::In => (self.destination, self.source),
        };
        SaEndpoints { reqid: self.reqid, tunnel: self.tunnel, local, remote }
    }

    /// Returns the last sequence number that the SA may use: 2^64 - 1 with ESN, else 2^32 - 1.
    pub(crate) fn last_sequence(&self) -> u64 {
        if self.esn { u64::MAX } else { u64::from(u32::MAX) }
    }

    /// Returns the anti-replay window in packets: the kernel's or `least`, whichever is larger, within `WINDOW_MIN` to
    /// `WINDOW_MAX`.
    pub(crate) fn replay_window(&self, least: u16) -> u16 {
        let most = u32::from(WINDOW_MAX);
        let window = self.window.max(u32::from(least)).clamp(u32::from(WINDOW_MIN), most);
        window as u16
    }

    /// Returns the parameters for the data plane. The lifetimes are the kernel's limits minus `used`.
    pub(crate) fn parameters(
        &self,
        suite: &Suite,
        direction: Direction,
        used: Usage,
    ) -> Parameters {
        let SaEndpoints { local, remote, .. } = self.endpoints(direction);
        let tunnel = Tunnel {
            source: local,
            destination: remote,
            ttl: TTL,
            dscp: self.dscp,
            ecn: self.ecn,
            fragments: self.fragments,
        };
        let udp = |(source, destination)| match direction {
            Direction::Out => Encapsulation { source, destination },
            Direction::In => Encapsulation { source: destination, destination: source },
        };
        let left = |limit: u64, used: u64| (limit != XFRM_INF).then(|| limit.saturating_sub(used));
        let lifetime = |bytes, packets| Lifetime {
            bytes: left(bytes, used.bytes),
            packets: left(packets, used.packets),
            // The kernel's timers enforce lifetimes in seconds.
            until: None,
        };
        let of = &self.lifetime;
        Parameters {
            spi: self.spi,
            algorithm: suite.algorithm,
            keys: suite.secret.keys(),
            mode: if self.tunnel { Mode::Tunnel(tunnel) } else { Mode::Transport },
            esn: self.esn,
            encapsulation: self.encapsulation.map(udp),
            soft: lifetime(of.soft_byte_limit, of.soft_packet_limit),
            hard: lifetime(of.hard_byte_limit, of.hard_packet_limit),
        }
    }
}

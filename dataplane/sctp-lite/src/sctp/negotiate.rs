//! Checks of an INIT or INIT ACK, as pure functions (RFC 9260 §3.3.2, §3.3.3, §5.1.1, §5.1.2; RFC 5043 §7.1,
//! §8).

use core::time::Duration;
use smallvec::SmallVec;
use wire::sctp::{Cause, Init, InitHeader, Parameter, Tag, padded};

use super::config::Config;
use super::cookie::NegotiatedTerms;
use super::drop_reason::DropReason;

/// Minimum a_rwnd, bytes (RFC 9260 §3.3.2).
const MIN_RWND: u32 = 1500;

/// Maximum bytes of reported unknown parameters, headers of the reports included. A parameter that does not fit is
/// omitted; later parameters may fit.
pub(super) const MAX_REPORT: usize = 256;

/// Types of the parameters that a Missing Mandatory Parameter cause can report: state cookie and adaptation indication.
const COOKIE_TYPE: [u8; 2] = wire::sctp::parameter_type::STATE_COOKIE.to_be_bytes();
const ADAPTATION_TYPE: [u8; 2] = wire::sctp::parameter_type::ADAPTATION.to_be_bytes();

/// Reason why the peer's INIT or INIT ACK cannot be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InitError<'a> {
    /// An Initiate Tag of zero.
    NoTag,
    /// An a_rwnd below 1500 bytes.
    SmallWindow,
    /// Zero streams in one direction.
    NoStreams,
    /// A Host Name Address parameter; contains the whole parameter.
    HostName(&'a [u8]),
    /// A parameter whose length is wrong.
    BadParameter,
    /// No cookie in an INIT ACK.
    NoCookie,
    /// No adaptation indication, or not the required one.
    Adaptation(Option<u32>),
}

impl<'a> InitError<'a> {
    /// Returns the cause for an ABORT.
    pub(super) fn cause(&self) -> Cause<'a> {
        match self {
            InitError::NoTag | InitError::SmallWindow | InitError::NoStreams => {
                Cause::InvalidMandatoryParameter
            }
            InitError::HostName(name) => Cause::UnresolvableAddress(name),
            InitError::BadParameter => Cause::ProtocolViolation(b"parameter length"),
            InitError::NoCookie => Cause::MissingParameters(&COOKIE_TYPE),
            InitError::Adaptation(None) => Cause::MissingParameters(&ADAPTATION_TYPE),
            InitError::Adaptation(Some(_)) => Cause::ProtocolViolation(b"adaptation indication"),
        }
    }

    /// Returns the drop reason for the counters.
    pub(super) fn drop_reason(&self) -> DropReason {
        match self {
            InitError::Adaptation(_) => DropReason::OtherAdaptation,
            _ => DropReason::BadInit,
        }
    }
}

/// Values of the optional parameters of an INIT or INIT ACK.
#[derive(Clone, Debug, Default)]
pub(super) struct InitParameters<'a> {
    /// The state cookie of an INIT ACK.
    pub(super) cookie: Option<&'a [u8]>,
    /// Extension of the cookie's lifetime that the peer requests.
    pub(super) cookie_extension: Duration,
    /// Unknown parameters to report, with their headers.
    pub(super) unknown: SmallVec<[&'a [u8]; 4]>,
}

/// Checks an INIT. Returns the values of its parameters.
pub(super) fn check_init<'a>(
    config: &Config,
    init: &Init<'a>,
) -> Result<InitParameters<'a>, InitError<'a>> {
    check_header(&init.header)?;
    check_parameters(config, init)
}

/// Checks an INIT ACK. Returns the values of its parameters, and its cookie.
pub(super) fn check_init_ack<'a>(
    config: &Config,
    init: &Init<'a>,
) -> Result<(InitParameters<'a>, &'a [u8]), InitError<'a>> {
    check_header(&init.header)?;
    let offer = check_parameters(config, init)?;
    let cookie = offer.cookie.ok_or(InitError::NoCookie)?;
    Ok((offer, cookie))
}

fn check_header<'a>(header: &InitHeader) -> Result<(), InitError<'a>> {
    if header.tag == Tag::NONE {
        return Err(InitError::NoTag);
    }
    if header.a_rwnd < MIN_RWND {
        return Err(InitError::SmallWindow);
    }
    if header.outbound_streams == 0 || header.inbound_streams == 0 {
        return Err(InitError::NoStreams);
    }
    Ok(())
}

fn check_parameters<'a>(
    config: &Config,
    init: &Init<'a>,
) -> Result<InitParameters<'a>, InitError<'a>> {
    let mut offer = InitParameters::default();
    let mut adaptation = None;
    for parameter in init.parameters() {
        match parameter.map_err(|_| InitError::BadParameter)? {
            // RFC 9260 §3.3.2.1.4: a host name is deprecated and refused.
            Parameter::HostName(name) => return Err(InitError::HostName(name)),
            Parameter::StateCookie(cookie) => offer.cookie = Some(cookie),
            Parameter::Adaptation(indication) => adaptation = Some(indication),
            Parameter::CookiePreservative(millis) => {
                offer.cookie_extension = Duration::from_millis(u64::from(millis));
            }
            // RFC 9260 §3.2.1, table 3: the type's upper two bits select skipping and reporting of the parameter.
            Parameter::Unknown { bytes, skip, report } => {
                // Each parameter is reported inside another parameter or cause, with a header of 4 bytes.
                let len = |bytes: &[u8]| padded(4 + bytes.len());
                let so_far: usize = offer.unknown.iter().map(|unknown| len(unknown)).sum();
                if report && so_far + len(bytes) <= MAX_REPORT {
                    offer.unknown.push(bytes);
                }
                if !skip {
                    break;
                }
            }
            // Listed addresses are ignored: only the source address of the peer's packets is used. The remaining
            // parameters do not affect the negotiation.
            Parameter::Ipv4(_)
            | Parameter::Ipv6(_)
            | Parameter::SupportedAddressTypes(_)
            | Parameter::EcnCapable
            | Parameter::SupportedExtensions(_)
            | Parameter::HeartbeatInfo(_)
            | Parameter::Unrecognized(_) => {}
        }
    }
    // RFC 5043 §7.1, §11.1: both ends need the same adaptation.
    if adaptation != Some(config.adaptation) {
        return Err(InitError::Adaptation(adaptation));
    }
    Ok(offer)
}

/// Returns the number of stream pairs: the minimum of `ours` and both of the peer's numbers. RFC 9260 §5.1.1: each
/// direction has the lesser of the requested and the allowed number. RFC 5043 §8: both directions have the same number.
pub(super) fn streams(ours: u16, peer: &InitHeader) -> u16 {
    ours.min(peer.outbound_streams).min(peer.inbound_streams)
}

/// Returns the terms that follow from the headers of INIT and INIT ACK: `ours` is sent by this end, `peer` by the peer.
pub(super) fn terms(ours: &InitHeader, peer: &InitHeader) -> NegotiatedTerms {
    NegotiatedTerms {
        local_tag: ours.tag,
        peer_tag: peer.tag,
        local_tsn: ours.initial_tsn,
        peer_tsn: peer.initial_tsn,
        peer_rwnd: peer.a_rwnd,
        streams: streams(ours.outbound_streams, peer),
    }
}

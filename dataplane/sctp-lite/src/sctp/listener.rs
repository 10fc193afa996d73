//! Packets without an association (RFC 9260 §5.1, §8.4): INITs, answered without keeping state; returned cookies; and
//! out-of-the-blue packets.
//!
//! A packet causes at most one reply. Two ends cannot loop: an INIT ACK causes an ABORT, and ABORT, SHUTDOWN COMPLETE,
//! COOKIE ACK and reports of stale cookies are dropped silently. The caller limits the rate of replies to an address.

use std::sync::Arc;

use base::Instant;
use smallvec::SmallVec;
use wire::sctp::{
    CHUNK_HEADER_LEN, COMMON_HEADER_LEN, Cause, Chunk, INIT_FIXED_LEN, Init, InitHeader, Packet,
    Parameter, Tag, Tsn, chunk_type,
};

use super::config::Config;
use super::cookie::{self, Cookie, NegotiatedTerms};
use super::drop_reason::DropReason;
use super::negotiate::{self, InitParameters, MAX_REPORT};
use super::secrets::{Ends, Purpose, Secrets, TieTags};
use super::single_chunk::{ANSWER_LEN, SendOutcome, SingleChunkPacket, send_packet};
use crate::seam::TxBatch;

/// Result of processing a packet without an association.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenerResult {
    /// An INIT was answered, without keeping state.
    Answered,
    /// The packet contains a valid cookie. The caller creates an [`Association`](super::Association) with
    /// [`accept`](super::Association::accept), then passes this packet to its `input`.
    Accept(Cookie),
    /// The packet was not used. A reply may have been sent.
    Dropped(DropReason),
}

/// The passive side before an association exists.
#[derive(Clone, Debug)]
pub struct Listener {
    config: Arc<Config>,
    secrets: Arc<Secrets>,
}

impl Listener {
    /// Creates a listener for associations with this configuration.
    pub fn new(config: Arc<Config>, secrets: Arc<Secrets>) -> Listener {
        Listener { config, secrets }
    }

    /// Processes a packet to the listener's port that belongs to no association. The caller has verified its checksum
    /// and that both addresses are unicast. Replies if required and `tx` has room.
    pub fn input(
        &self,
        now: Instant,
        ends: &Ends,
        packet: &Packet<'_>,
        tx: &mut impl TxBatch,
    ) -> ListenerResult {
        match first_chunk(packet) {
            Ok(Chunk::Init(init)) if is_init_alone(packet) => {
                match self.on_init(now, ends, &init, tx) {
                    Ok(()) => ListenerResult::Answered,
                    Err(reason) => ListenerResult::Dropped(reason),
                }
            }
            Ok(Chunk::CookieEcho(bytes)) => self.on_cookie_echo(now, ends, packet.tag(), bytes, tx),
            _ => ListenerResult::Dropped(handle_out_of_the_blue(ends, packet, tx)),
        }
    }

    /// Answers an INIT (RFC 9260 §5.1 B).
    fn on_init(
        &self,
        now: Instant,
        ends: &Ends,
        init: &Init<'_>,
        tx: &mut impl TxBatch,
    ) -> Result<(), DropReason> {
        let peer = &init.header;
        let offer = check_init(&self.config, ends, init, tx)?;
        // RFC 9260 §5.3.1: each INIT is answered with a new tag and TSN. Only an equal INIT at the same time yields the
        // same values.
        let subject = (ends, peer.tag.0, peer.initial_tsn.0, now.as_nanos());
        let (tag, initial_tsn) = self.secrets.draw_tag(Purpose::Identity, subject);
        // RFC 5043 §8: the numbers of streams in both directions are equal.
        let streams = negotiate::streams(self.config.streams, peer);
        let header = InitHeader {
            tag,
            a_rwnd: self.config.receive.window,
            outbound_streams: streams,
            inbound_streams: streams,
            initial_tsn: Tsn(initial_tsn),
        };
        let answer = InitAck::new(&self.config, &header, peer, &offer, TieTags::NONE);
        match answer.send(&self.secrets, &self.config, ends, now, tx) {
            SendOutcome::Sent => Ok(()),
            SendOutcome::NoRoom => Err(DropReason::NoRoom),
            SendOutcome::TooLong => Err(DropReason::BadInit),
        }
    }

    /// Checks a returned cookie, and reports an expired cookie to the peer (RFC 9260 §5.1.5).
    fn on_cookie_echo(
        &self,
        now: Instant,
        ends: &Ends,
        tag: Tag,
        bytes: &[u8],
        tx: &mut impl TxBatch,
    ) -> ListenerResult {
        let Some(cookie) = cookie::check(&self.secrets, ends, now, tag, bytes) else {
            return ListenerResult::Dropped(DropReason::BadCookie);
        };
        // A cookie with tie tags was issued for a restart of an association that has ended meanwhile. Its terms are
        // still valid.
        match cookie.staleness_micros() {
            None => ListenerResult::Accept(cookie),
            Some(by) => {
                // §5.1.5 step 4: the report of a stale cookie contains its staleness.
                let error =
                    SingleChunkPacket::error(cookie.terms.peer_tag, &Cause::StaleCookie(by));
                // The packet counts as dropped, whether or not the batch has room for the reply.
                let _ = error.send(ends, tx);
                ListenerResult::Dropped(DropReason::StaleCookie)
            }
        }
    }
}

/// Drops a packet that belongs to no association, and replies as RFC 9260 §8.4 requires. Called for a port without a
/// listener, and for a packet that a listener does not use.
///
/// The caller has checked that both addresses are unicast, the checksum is correct, and the tag is not the local tag of
/// an association. A packet with such a tag may come from another address of a multihomed peer, and an ABORT would end
/// the peer's association.
pub fn handle_out_of_the_blue(
    ends: &Ends,
    packet: &Packet<'_>,
    tx: &mut impl TxBatch,
) -> DropReason {
    let mut kinds = [false; 16];
    let mut stale_cookie = false;
    for raw in packet.chunks() {
        // A packet with a malformed chunk is not answered.
        let Ok(raw) = raw else { return DropReason::BadChunk };
        kinds[usize::from(raw.kind).min(15)] = true;
        if let Ok(Chunk::Error(causes)) = Chunk::parse(raw) {
            let is_stale = |cause| matches!(cause, Ok(Cause::StaleCookie(_)));
            stale_cookie |= causes.into_iter().any(is_stale);
        }
    }
    let has = |kind: u8| kinds[usize::from(kind)];
    let ports = packet.ports();
    if ports.source == 0 || ports.destination == 0 || packet.chunks().is_empty() {
        return DropReason::BadHeader;
    }
    // The following checks are in the order of RFC 9260 §8.4.
    if has(chunk_type::ABORT) {
        return DropReason::OutOfTheBlue;
    }
    if has(chunk_type::INIT) {
        // §8.4 rule 3; §8.5.1 A: an INIT is invalid and not answered if its packet has a nonzero tag or another chunk.
        if let Ok(Chunk::Init(init)) = first_chunk(packet)
            && is_init_alone(packet)
            && init.header.tag != Tag::NONE
        {
            let _ = send_packet(ends, init.header.tag, tx, |packet| packet.abort(false, &[]));
        }
        return DropReason::OutOfTheBlue;
    }
    // §8.5.1 A: only an INIT has a tag of zero.
    if packet.tag() == Tag::NONE {
        return DropReason::BadTag;
    }
    let first_is_cookie = matches!(first_chunk(packet), Ok(Chunk::CookieEcho(_)));
    if has(chunk_type::SHUTDOWN_ACK) && !first_is_cookie {
        let _ = send_packet(ends, packet.tag(), tx, |packet| packet.shutdown_complete(true));
        return DropReason::OutOfTheBlue;
    }
    let silent = has(chunk_type::SHUTDOWN_COMPLETE) || has(chunk_type::COOKIE_ACK) || stale_cookie;
    if !silent {
        let _ = send_packet(ends, packet.tag(), tx, |packet| packet.abort(true, &[]));
    }
    DropReason::OutOfTheBlue
}

fn first_chunk<'a>(packet: &Packet<'a>) -> Result<Chunk<'a>, DropReason> {
    let raw = packet.chunks().next().ok_or(DropReason::BadHeader)?;
    raw.and_then(Chunk::parse).map_err(|_| DropReason::BadChunk)
}

/// Returns true if a packet that begins with an INIT is valid: the tag is zero, the INIT is the only chunk (RFC 9260
/// §8.5.1 A, §3), and both ports are nonzero.
pub(super) fn is_init_alone(packet: &Packet<'_>) -> bool {
    let ports = packet.ports();
    packet.tag() == Tag::NONE
        && packet.chunks().count() == 1
        && ports.source != 0
        && ports.destination != 0
}

/// Checks an INIT, and replies to an unacceptable INIT with an ABORT (RFC 9260 §5.1).
fn check_init<'a>(
    config: &Config,
    ends: &Ends,
    init: &Init<'a>,
    tx: &mut impl TxBatch,
) -> Result<InitParameters<'a>, DropReason> {
    negotiate::check_init(config, init).map_err(|why| {
        // RFC 9260 §3.3.2: an Initiate Tag of zero cannot be answered.
        if init.header.tag != Tag::NONE {
            let _ = SingleChunkPacket::abort(init.header.tag, false, &why.cause()).send(ends, tx);
        }
        why.drop_reason()
    })
}

// An INIT ACK that reports [`MAX_REPORT`] bytes of unknown parameters fits [`ANSWER_LEN`].
const _: () = assert!(
    COMMON_HEADER_LEN
        + INIT_FIXED_LEN
        + CHUNK_HEADER_LEN
        + (4 + cookie::COOKIE_LEN)
        + ADAPTATION_LEN
        + MAX_REPORT
        <= ANSWER_LEN
);

/// Length of an adaptation layer indication parameter, bytes.
const ADAPTATION_LEN: usize = 8;

/// An INIT ACK to send. Its cookie is issued at the time of transmission.
#[derive(Clone, Debug)]
pub(super) struct InitAck {
    header: InitHeader,
    terms: NegotiatedTerms,
    ties: TieTags,
    cookie_life: core::time::Duration,
    /// Unknown parameters to report, concatenated. `ends` contains the offset at which each
    /// parameter ends.
    unknown: SmallVec<[u8; 16]>,
    ends: SmallVec<[u16; 4]>,
}

impl InitAck {
    /// Creates the INIT ACK with header `ours` for the INIT with header `peer`.
    pub(super) fn new(
        config: &Config,
        ours: &InitHeader,
        peer: &InitHeader,
        offer: &InitParameters<'_>,
        ties: TieTags,
    ) -> InitAck {
        let mut unknown = SmallVec::new();
        let mut ends = SmallVec::new();
        for parameter in &offer.unknown {
            unknown.extend_from_slice(parameter);
            ends.push(unknown.len() as u16);
        }
        // RFC 9260 §3.3.2.1.3: the requested extension is granted up to the configured limit.
        let life = config.cookie_life + offer.cookie_extension.min(config.cookie_extension);
        InitAck {
            header: *ours,
            terms: negotiate::terms(ours, peer),
            ties,
            cookie_life: life,
            unknown,
            ends,
        }
    }

    /// Sends the INIT ACK, which always fits a packet because the reported parameters are bounded.
    pub(super) fn send(
        &self,
        secrets: &Secrets,
        config: &Config,
        ends: &Ends,
        now: Instant,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        let cookie = cookie::issue(secrets, ends, now, self.cookie_life, &self.terms, self.ties);
        let mut parameters: SmallVec<[Parameter<'_>; 8]> = SmallVec::new();
        // RFC 9260 §5.1 B, §3.3.3.1.1; RFC 5043 §11.1: an INIT ACK contains a state cookie and the adaptation
        // indication.
        parameters.push(Parameter::StateCookie(&cookie));
        parameters.push(Parameter::Adaptation(config.adaptation));
        let mut start = 0;
        for end in &self.ends {
            let end = usize::from(*end);
            // RFC 9260 §3.2.2: each unknown parameter is reported in a separate parameter.
            parameters.push(Parameter::Unrecognized(&self.unknown[start..end]));
            start = end;
        }
        let tag = self.terms.peer_tag;
        send_packet(ends, tag, tx, |packet| packet.init_ack(&self.header, &parameters))
    }
}

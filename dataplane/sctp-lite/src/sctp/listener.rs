//! Packets of no association (RFC 9260 §5.1, §8.4): INITs, answered without state; returned cookies; and
//! out-of-the-blue packets.
//!
//! Every packet gets at most one answer, and an answer is never answered again: ABORT, SHUTDOWN COMPLETE,
//! COOKIE ACK and stale cookies are dropped in silence. The caller limits
//! the rate of answers to an address.

use std::sync::Arc;

use base::Instant;
use smallvec::SmallVec;
use wire::sctp::{
    CHUNK_HEADER_LEN, COMMON_HEADER_LEN, Cause, Chunk, INIT_FIXED_LEN, Init, InitHeader, Packet,
    Parameter, Tag, Tsn, chunk_type,
};

use super::config::Config;
use super::cookie::{self, Cookie, Terms};
use super::drop_reason::DropReason;
use super::lone::{ANSWER_LEN, LoneChunk, Outcome, answer};
use super::negotiate::{self, MAX_REPORT, Offer};
use super::secrets::{Ends, Purpose, Secrets, TieTags};
use crate::seam::TxBatch;

/// What became of a packet without an association.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// An INIT that was answered; nothing is kept.
    Answered,
    /// A cookie that is good: make an [`Association`](super::Association) of it by
    /// [`accept`](super::Association::accept), and give it this very packet.
    Accept(Cookie),
    /// Not used. It may have been answered all the same.
    Dropped(DropReason),
}

/// The passive side before there is an association.
#[derive(Clone, Debug)]
pub struct Listener {
    config: Arc<Config>,
    secrets: Arc<Secrets>,
}

impl Listener {
    /// Of associations with this configuration.
    pub fn new(config: Arc<Config>, secrets: Arc<Secrets>) -> Listener {
        Listener { config, secrets }
    }

    /// A packet to the listener's port of no association, checksum verified and both addresses unicast.
    /// Answers it where it is to be answered and `tx` has room.
    pub fn input(
        &self,
        now: Instant,
        ends: &Ends,
        packet: &Packet<'_>,
        tx: &mut impl TxBatch,
    ) -> Arrived {
        match first(packet) {
            Ok(Chunk::Init(init)) if is_init_alone(packet) => match self.init(now, ends, &init, tx)
            {
                Ok(()) => Arrived::Answered,
                Err(reason) => Arrived::Dropped(reason),
            },
            Ok(Chunk::CookieEcho(bytes)) => self.cookie(now, ends, packet.tag(), bytes, tx),
            _ => Arrived::Dropped(out_of_the_blue(ends, packet, tx)),
        }
    }

    /// RFC 9260 §5.1 B.
    fn init(
        &self,
        now: Instant,
        ends: &Ends,
        init: &Init<'_>,
        tx: &mut impl TxBatch,
    ) -> Result<(), DropReason> {
        let peer = &init.header;
        let offer = judge_init(&self.config, ends, init, tx)?;
        // RFC 9260 §5.3.1: new for each INIT, unless it is the same one at the same time.
        let what = (ends, peer.tag.0, peer.initial_tsn.0, now.as_nanos());
        let (tag, initial_tsn) = self.secrets.tag(Purpose::Identity, what);
        // RFC 5043 §8: as many streams one way as the other.
        let streams = negotiate::streams(self.config.streams, peer);
        let ours = InitHeader {
            tag,
            a_rwnd: self.config.receive.window,
            outbound_streams: streams,
            inbound_streams: streams,
            initial_tsn: Tsn(initial_tsn),
        };
        let answer = InitAck::new(&self.config, &ours, peer, &offer, TieTags::NONE);
        match answer.send(&self.secrets, &self.config, ends, now, tx) {
            Outcome::Sent => Ok(()),
            Outcome::NoRoom => Err(DropReason::NoRoom),
            Outcome::TooLong => Err(DropReason::BadInit),
        }
    }

    /// RFC 9260 §5.1.5.
    fn cookie(
        &self,
        now: Instant,
        ends: &Ends,
        tag: Tag,
        bytes: &[u8],
        tx: &mut impl TxBatch,
    ) -> Arrived {
        let Some(cookie) = cookie::check(&self.secrets, ends, now, tag, bytes) else {
            return Arrived::Dropped(DropReason::BadCookie);
        };
        // A cookie with tie tags restarts an association that is gone by now; its terms are the same.
        match cookie.staleness() {
            None => Arrived::Accept(cookie),
            Some(by) => {
                // §5.1.5 step 4.
                let error = LoneChunk::error(cookie.terms.peer_tag, &Cause::StaleCookie(by));
                // What is dropped is counted as such, whether its answer finds room or not.
                let _ = error.send(ends, tx);
                Arrived::Dropped(DropReason::StaleCookie)
            }
        }
    }
}

/// A packet to a port without a listener, or not for a listener, of no association: drops it, with the
/// answer that RFC 9260 §8.4 wants. The caller has made sure that its addresses are unicast, its checksum is
/// good, and that its verification tag is not the local one of an association: a peer with several addresses
/// may send from another one, and would take the answer for an ABORT of its association.
pub fn out_of_the_blue(ends: &Ends, packet: &Packet<'_>, tx: &mut impl TxBatch) -> DropReason {
    let mut kinds = [false; 16];
    let mut stale_cookie = false;
    for raw in packet.chunks() {
        // What cannot be delimited is no packet to be answered.
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
    // In the order of RFC 9260 §8.4.
    if has(chunk_type::ABORT) {
        return DropReason::OutOfTheBlue;
    }
    if has(chunk_type::INIT) {
        // §8.4 rule 3; §8.5.1 A: with another tag, or not alone, it is no INIT.
        if let Ok(Chunk::Init(init)) = first(packet)
            && is_init_alone(packet)
            && init.header.tag != Tag::NONE
        {
            let _ = answer(ends, init.header.tag, tx, |packet| packet.abort(false, &[]));
        }
        return DropReason::OutOfTheBlue;
    }
    // §8.5.1 A: a tag of zero belongs to an INIT.
    if packet.tag() == Tag::NONE {
        return DropReason::BadTag;
    }
    let first_is_cookie = matches!(first(packet), Ok(Chunk::CookieEcho(_)));
    if has(chunk_type::SHUTDOWN_ACK) && !first_is_cookie {
        let _ = answer(ends, packet.tag(), tx, |packet| packet.shutdown_complete(true));
        return DropReason::OutOfTheBlue;
    }
    let silent = has(chunk_type::SHUTDOWN_COMPLETE) || has(chunk_type::COOKIE_ACK) || stale_cookie;
    if !silent {
        let _ = answer(ends, packet.tag(), tx, |packet| packet.abort(true, &[]));
    }
    DropReason::OutOfTheBlue
}

/// The first chunk of a packet.
fn first<'a>(packet: &Packet<'a>) -> Result<Chunk<'a>, DropReason> {
    let raw = packet.chunks().next().ok_or(DropReason::BadHeader)?;
    raw.and_then(Chunk::parse).map_err(|_| DropReason::BadChunk)
}

/// RFC 9260 §8.5.1 A, §3: an INIT has a tag of zero and its packet for itself.
pub(super) fn is_init_alone(packet: &Packet<'_>) -> bool {
    let ports = packet.ports();
    packet.tag() == Tag::NONE
        && packet.chunks().count() == 1
        && ports.source != 0
        && ports.destination != 0
}

/// Judges an INIT and refuses it by an ABORT where it is not acceptable (RFC 9260 §5.1).
fn judge_init<'a>(
    config: &Config,
    ends: &Ends,
    init: &Init<'a>,
    tx: &mut impl TxBatch,
) -> Result<Offer<'a>, DropReason> {
    negotiate::judge_init(config, init).map_err(|why| {
        // RFC 9260 §3.3.2: a tag of zero is not answered; it could not be.
        if init.header.tag != Tag::NONE {
            let _ = LoneChunk::abort(init.header.tag, false, &why.cause()).send(ends, tx);
        }
        why.reason()
    })
}

// An INIT ACK fits the packet of an answer, whatever it reports.
const _: () = assert!(
    COMMON_HEADER_LEN
        + INIT_FIXED_LEN
        + CHUNK_HEADER_LEN
        + (4 + cookie::COOKIE_LEN)
        + ADAPTATION_LEN
        + MAX_REPORT
        <= ANSWER_LEN
);

/// Bytes of an adaptation layer indication.
const ADAPTATION_LEN: usize = 8;

/// An INIT ACK to be written.
#[derive(Clone, Debug)]
pub(super) struct InitAck {
    ours: InitHeader,
    terms: Terms,
    ties: TieTags,
    life: core::time::Duration,
    /// Unknown parameters to report, one after the other, and where each ends.
    unknown: SmallVec<[u8; 16]>,
    ends: SmallVec<[u16; 4]>,
}

impl InitAck {
    /// The answer of `ours` to `peer`.
    pub(super) fn new(
        config: &Config,
        ours: &InitHeader,
        peer: &InitHeader,
        offer: &Offer<'_>,
        ties: TieTags,
    ) -> InitAck {
        let mut unknown = SmallVec::new();
        let mut ends = SmallVec::new();
        for parameter in &offer.unknown {
            unknown.extend_from_slice(parameter);
            ends.push(unknown.len() as u16);
        }
        // RFC 9260 §3.3.2.1.3: a longer life is a request.
        let life = config.cookie_life + offer.longer.min(config.cookie_extension);
        InitAck { ours: *ours, terms: negotiate::terms(ours, peer), ties, life, unknown, ends }
    }

    /// Writes it. It fits: what it reports is bounded.
    pub(super) fn send(
        &self,
        secrets: &Secrets,
        config: &Config,
        ends: &Ends,
        now: Instant,
        tx: &mut impl TxBatch,
    ) -> Outcome {
        let cookie = cookie::issue(secrets, ends, (now, self.life), &self.terms, self.ties);
        let mut parameters: SmallVec<[Parameter<'_>; 8]> = SmallVec::new();
        // RFC 9260 §5.1 B, §3.3.3.1.1; RFC 5043 §11.1.
        parameters.push(Parameter::StateCookie(&cookie));
        parameters.push(Parameter::Adaptation(config.adaptation));
        let mut start = 0;
        for end in &self.ends {
            let end = usize::from(*end);
            // RFC 9260 §3.2.2.
            parameters.push(Parameter::Unrecognized(&self.unknown[start..end]));
            start = end;
        }
        let tag = self.terms.peer_tag;
        answer(ends, tag, tx, |packet| packet.init_ack(&self.ours, &parameters))
    }
}

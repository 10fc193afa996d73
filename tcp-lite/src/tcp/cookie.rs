//! SYN cookies (RFC 4987 §3.6): a SYN is answered without storing state. The SYN-ACK carries the state, and the peer's
//! acknowledgement returns it.
//!
//! ```text
//!  our initial sequence number   | period 2 | MSS 3 | keyed hash 27                           |
//!  our timestamp, if offered     | clock 26                     | ECN 1 | SACK 1 | peer's scale 4 |
//! ```
//!
//! The hash covers addresses and ports of both ends, the peer's initial sequence number, and the index of the MSS in
//! the table. Its key is derived from the secret and the number of the period (64 s). A cookie is valid in its own
//! period and the next. An attacker that does not see the SYN-ACK needs 2^26 tries on average.
//!
//! Not preserved: data on the SYN and, without timestamps, window scaling, SACK and ECN.

use base::Instant;
use siphasher::sip::SipHasher13;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use transport::seq::SeqNumber;

use super::config::{Config, MIN_MSS};
use super::connection::Connection;
use super::isn::{FourTuple, InitialNumbers, IsnGenerator};
use super::receiver::Receiver;
use super::segment::{Flags, Options, Segment, Timestamps};
use crate::seam::TxBatch;

/// Length of a period, in seconds.
const PERIOD_SECS: u64 = 64;
/// Number of periods for which a cookie is valid: the period in which it was issued, and the next.
const VALID_PERIODS: u64 = 2;

const HASH_BITS: u32 = 27;
const HASH_MASK: u32 = (1 << HASH_BITS) - 1;
const MSS_SHIFT: u32 = HASH_BITS;
const PERIOD_SHIFT: u32 = 30;

/// Values of the peer's MSS that a cookie can encode, bytes. The peer's MSS is rounded down to one of them; values
/// below [`MIN_MSS`] are raised to it.
const MSS_TABLE: [u16; 8] = [MIN_MSS, 536, 1220, 1380, 1440, 1460, 8940, 65_220];
const _: () = assert!(MSS_TABLE.len() == 1 << (PERIOD_SHIFT - MSS_SHIFT));

const SCALE_MASK: u32 = 0xf;
/// Scale bits of a SYN without window scaling. Valid shifts are at most 14.
const NO_SCALE: u32 = 0xf;
const SACK_BIT: u32 = 1 << 4;
const ECN_BIT: u32 = 1 << 5;
const OPTIONS_MASK: u32 = 0x3f;

/// Generator and verifier of SYN cookies.
#[derive(Clone)]
pub struct SynCookies {
    secret: [u8; 16],
    /// Source of timestamp offsets. An offset depends on the four-tuple only, so it is equal with and without a cookie.
    isn_generator: IsnGenerator,
    /// Cached keys of the last even and the last odd period used, each with the period's number.
    keys: [Cell<Option<(u64, SipHasher13)>>; 2],
}

impl core::fmt::Debug for SynCookies {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SynCookies") // the key is secret
    }
}

/// A valid cookie: both initial sequence numbers, and the options of the SYN that the cookie preserves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cookie {
    start: InitialNumbers,
    irs: SeqNumber,
    mss: u16,
    window_scale: Option<u8>,
    sack: bool,
    ecn: bool,
    /// The peer's TSval, if both sides use timestamps.
    stamp: Option<u32>,
}

/// Sizes offered in a SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub struct SynAckOffer {
    /// MSS option of the SYN-ACK, bytes; the `mss` of [`Connection::accept`].
    pub mss: u16,
    /// Free space of the upper layer, bytes: upper bound of the offered window.
    pub room: u64,
}

impl SynCookies {
    /// Creates the generator. `secret` comes from a good random source and is shared by all workers that may receive
    /// the acknowledgement. `secret` must differ from the key of `starts`, the generator of the ISNs of connections
    /// opened without a cookie.
    pub fn new(secret: [u8; 16], starts: IsnGenerator) -> Self {
        SynCookies { secret, isn_generator: starts, keys: Default::default() }
    }

    /// Answers `syn`, a segment with SYN and neither ACK nor RST, with a SYN-ACK. Returns false if the batch is full.
    /// The SYN-ACK is never retransmitted, and never longer than a SYN with all options, so an attack with forged
    /// SYNs is not amplified.
    pub fn answer(
        &self,
        config: &Config,
        tuple: &FourTuple,
        offer: SynAckOffer,
        syn: &Segment<'_>,
        now: Instant,
        tx: &mut impl TxBatch,
    ) -> bool {
        let peer_mss = syn.options.mss.unwrap_or_else(|| tuple.default_mss());
        let place = MSS_TABLE.iter().rposition(|&m| m <= peer_mss).unwrap_or(0) as u32;
        let period = period_at(now);
        let iss = SeqNumber(self.cookie_seq(tuple, syn.seq, period, place));
        // Options that the cookie cannot preserve are not accepted (RFC 7323 §2.2, RFC 2018 §2).
        let stamps = syn.options.timestamps.filter(|_| config.extensions.timestamps);
        let kept = PreservedOptions::from_syn(config, syn);
        let reply = Segment {
            src_port: tuple.local.port(),
            dst_port: tuple.remote.port(),
            seq: iss,
            ack: syn.seq.add(1),
            flags: match stamps.is_some() && kept.ecn {
                true => Flags::SYN.with(Flags::ACK).with(Flags::ECE),
                false => Flags::SYN.with(Flags::ACK),
            },
            window: syn_ack_window(config, offer.room),
            options: Options {
                mss: Some(offer.mss),
                window_scale: stamps.and(kept.window_scale).map(|_| config.window_shift()),
                sack_permitted: stamps.is_some() && kept.sack,
                timestamps: stamps.map(|s| Timestamps {
                    val: kept.encode(timestamp_clock(self.isn_generator.ts_offset(tuple), now)),
                    ecr: s.val,
                }),
                ..Options::default()
            },
            ..Segment::default()
        };
        let Some(out) = tx.reserve_segment(reply.wire_len()) else { return false };
        let len = reply.emit(out);
        if config.congestion.exact_ecn() && reply.flags.has(Flags::ECE) {
            tx.set_ecn_capable(); // RFC 8257 §3.6
        }
        tx.commit(len);
        true
    }

    /// Checks the cookie in `seg`, a segment with ACK and neither SYN nor RST. Returns `None` if the cookie is invalid.
    pub fn check(
        &self,
        config: &Config,
        tuple: &FourTuple,
        seg: &Segment<'_>,
        now: Instant,
    ) -> Option<Cookie> {
        let iss = seg.ack.add(u32::MAX);
        let irs = seg.seq.add(u32::MAX);
        let place = iss.0 >> MSS_SHIFT & (MSS_TABLE.len() as u32 - 1);
        let current = period_at(now);
        let mut periods = (0..VALID_PERIODS).filter_map(|age| current.checked_sub(age));
        periods.find(|&period| self.cookie_seq(tuple, irs, period, place) == iss.0)?;
        let stamps = seg.options.timestamps.filter(|_| config.extensions.timestamps);
        let mut start = InitialNumbers::from(iss);
        let kept = match stamps {
            Some(Timestamps { ecr, .. }) => {
                // The echoed timestamp must be a timestamp that we sent: not from the future, and not older than a
                // cookie's lifetime.
                start.ts_offset = self.isn_generator.ts_offset(tuple);
                let age = timestamp_clock(start.ts_offset, now).wrapping_sub(ecr);
                if u64::from(age) > (VALID_PERIODS * PERIOD_SECS + 1) * 1000 {
                    return None;
                }
                PreservedOptions::decode(ecr)
            }
            None => PreservedOptions::default(),
        };
        Some(Cookie {
            start,
            irs,
            mss: MSS_TABLE[place as usize],
            window_scale: kept.window_scale,
            sack: kept.sack,
            ecn: kept.ecn,
            stamp: stamps.map(|s| s.val),
        })
    }

    fn cookie_seq(&self, tuple: &FourTuple, irs: SeqNumber, period: u64, place: u32) -> u32 {
        let (ends, len) = tuple.hash_input();
        let mut bytes = [0; 8 + 36];
        bytes[..4].copy_from_slice(&irs.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&place.to_be_bytes());
        bytes[8..].copy_from_slice(&ends);
        let hash = self.period_key(period).hash(&bytes[..8 + len]) as u32 & HASH_MASK;
        (period as u32) << PERIOD_SHIFT | place << MSS_SHIFT | hash
    }

    /// Returns the key of a period, from the cache if possible.
    fn period_key(&self, period: u64) -> SipHasher13 {
        let cached = &self.keys[period as usize & 1];
        if let Some((cached_period, key)) = cached.get()
            && cached_period == period
        {
            return key;
        }
        let secret = SipHasher13::new_with_key(&self.secret);
        let half = |n: u8| {
            let mut hasher = secret;
            (period, n).hash(&mut hasher);
            hasher.finish()
        };
        let key = SipHasher13::new_with_keys(half(0), half(1));
        cached.set(Some((period, key)));
        key
    }
}

impl Connection {
    /// Opens a passive connection from a cookie. The connection is then in the state that [`accept`](Self::accept) of
    /// the SYN and transmission of the SYN-ACK would have produced. The caller passes the segment with the cookie to
    /// [`input`](Self::input) next, which makes the connection ESTABLISHED. `offer` must be the offer passed to
    /// [`SynCookies::answer`].
    pub fn accept_cookie(
        config: Arc<Config>,
        tuple: FourTuple,
        offer: SynAckOffer,
        cookie: &Cookie,
        now: Instant,
    ) -> Connection {
        let ecn = if cookie.ecn { Flags::ECE.with(Flags::CWR) } else { Flags::default() };
        let syn = Segment {
            seq: cookie.irs,
            flags: Flags::SYN.with(ecn),
            options: Options {
                mss: Some(cookie.mss),
                window_scale: cookie.window_scale,
                sack_permitted: cookie.sack,
                timestamps: cookie.stamp.map(|val| Timestamps { val, ecr: 0 }),
                ..Options::default()
            },
            ..Segment::default()
        };
        let window = syn_ack_window(&config, offer.room);
        let mut conn = Connection::accept(config, tuple, cookie.start, offer.mss, &syn, now);
        conn.mark_syn_ack_sent(window);
        conn
    }
}

/// Returns the number of the period that contains `now`.
fn period_at(now: Instant) -> u64 {
    now.as_millis() / 1000 / PERIOD_SECS
}

/// Returns the window field of the SYN-ACK.
fn syn_ack_window(config: &Config, room: u64) -> u16 {
    Receiver::syn_window(u64::from(config.receive_window), room)
}

/// Returns the TSval for `now`: milliseconds plus `offset`, modulo 2^32.
fn timestamp_clock(offset: u32, now: Instant) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

/// Options of the SYN that are preserved in the low six bits of our timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct PreservedOptions {
    window_scale: Option<u8>,
    sack: bool,
    ecn: bool,
}

impl PreservedOptions {
    fn from_syn(config: &Config, syn: &Segment<'_>) -> PreservedOptions {
        let scale = syn.options.window_scale.filter(|_| config.extensions.window_scale);
        PreservedOptions {
            window_scale: scale.map(|s| s.min(14)), // RFC 7323 §2.3
            sack: config.extensions.sack && syn.options.sack_permitted,
            ecn: config.extensions.ecn && syn.flags.has(Flags::ECE.with(Flags::CWR)),
        }
    }

    /// Returns the latest timestamp, not after `clock`, whose low bits are these options.
    fn encode(self, clock: u32) -> u32 {
        let scale = self.window_scale.map_or(NO_SCALE, u32::from);
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        let bits = scale | flag(self.sack, SACK_BIT) | flag(self.ecn, ECN_BIT);
        let stamp = clock & !OPTIONS_MASK | bits;
        if bits > clock & OPTIONS_MASK { stamp.wrapping_sub(OPTIONS_MASK + 1) } else { stamp }
    }

    fn decode(stamp: u32) -> PreservedOptions {
        let scale = stamp & SCALE_MASK;
        PreservedOptions {
            window_scale: (scale != NO_SCALE).then_some(scale as u8),
            sack: stamp & SACK_BIT != 0,
            ecn: stamp & ECN_BIT != 0,
        }
    }
}

#[cfg(test)]
mod tests;

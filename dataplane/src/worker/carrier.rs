//! What carries streams: an endpoint, of a TCP connection or an SCTP association, with the path of its packets, its
//! place in the schedule, and what the worker knows of its progress. A connection carries one stream, an association
//! as many as it has sessions; nothing here knows what they carry.

use std::net::{IpAddr, SocketAddr};

use base::{Instant, MaybeInstant};
use ipsec::strength::Strength;

use super::keep::{KeepBudget, Kept};
use super::network::Network;
use super::schedule::{CarrierKind, NextHop, Schedule, Scheduled};
use crate::api::{Counters, Stall};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::net::fragment::Identifications;
use crate::net::path::{Path, TxChecksum};
use crate::net::path_mtu::Peer;

/// Segments of a burst after which a carrier acknowledges at once. A window that came in one burst and is answered
/// once would wait for a time-out if that one answer is lost.
const ANSWER: u8 = 8;

/// How often a carrier's progress confirms its next hop to the neighbour cache: a second, in [`ticks`].
const CONFIRM: u32 = (1_000_000_000_u64 >> TICK) as u32;

/// A tick is two to the power of this, in nanoseconds: about a millisecond.
const TICK: u32 = 20;

/// Time in four bytes. It begins anew after 52 days: only differences count.
fn ticks(now: Instant) -> u32 {
    (now.as_nanos() >> TICK) as u32
}

/// The next hop of a carrier, in one byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hop {
    /// No error was reported.
    Untried,
    /// While the carrier was being opened, one soft ICMP error was reported. With the next one, for another packet of the
    /// handshake, it is given up. RFC 1122 §4.2.3.9 would have it wait: see RFC 5461 §4.1.
    SoftError,
    /// Its place in the neighbour cache is kept for the carrier.
    Pinned,
}

/// A change of whether a carrier makes progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    Stalled(Stall),
    Resumed,
}

/// What a carrier needs of an endpoint.
pub(super) trait CarrierEndpoint {
    /// The headers in front of its packets.
    type Path: AsRef<Path> + AsMut<Path>;
    /// What it is an endpoint of.
    const KIND: CarrierKind;
    /// Its timers wait while its next hop does not answer.
    const TIMERS_WAIT: bool;

    /// Our port and the peer's.
    fn ports(&self) -> (u16, u16);

    /// When it has something to do.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Bytes that it keeps of what it has sent.
    fn kept(&self) -> u64;

    /// Bytes that the peer has acknowledged.
    fn bytes_acknowledged(&self) -> u64;

    /// Its packets may not arrive: RFC 9293 §3.8.3 R1.
    fn path_suspect(&self) -> bool;

    /// Its packets time out.
    fn is_timing_out(&self) -> bool;

    /// It has ended.
    fn is_closed(&self) -> bool;

    /// It makes no progress.
    fn stall(&self, now: Instant) -> Option<Stall>;

    /// Bytes of a packet without its fixed headers that its path is thought to carry.
    fn path_len(&self) -> usize;

    /// What its path is known to carry, and not only guessed: as `path_len`, and as MTU.
    fn known_path(&self, path: &Self::Path) -> Option<(usize, u16)>;

    /// Its path carries no more than `mtu`. Returns whether that is less than was thought.
    fn limit_path(&mut self, path: &Self::Path, mtu: u16, now: Instant) -> bool;

    /// Writes packets along `path`.
    fn transmit<Io: PortIo>(
        &mut self,
        path: &Self::Path,
        out: Transmit<'_, Io>,
        now: Instant,
    ) -> Transmitted;
}

/// What a carrier borrows to transmit.
pub(super) struct Transmit<'a, Io: PortIo> {
    pub(super) io: &'a mut Io,
    pub(super) checksum: TxChecksum,
    pub(super) counters: &'a Counters,
    /// For packets that are sent in fragments.
    pub(super) identifications: &'a mut Identifications,
    /// Packets that it may send.
    pub(super) quota: usize,
    /// Bytes that it may keep of what it sends.
    pub(super) keep_limit: u64,
    /// Many streams share the port.
    pub(super) shared: bool,
    /// The last packet is offered to the device at once: nothing else is to be sent.
    pub(super) offers: bool,
    /// Protection by IPsec that the packets require.
    pub(super) least: Strength,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transmitted {
    /// Some packet was sent.
    pub(super) any: bool,
    /// Why another one was refused, if one was: there may be more to send.
    pub(super) refused: Option<Refusal>,
}

/// Why a packet was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The quota is used up.
    Quota,
    /// The transmit ring is full.
    RingFull,
    /// There is no packet buffer.
    NoBuffer,
}

/// An endpoint with its path and its place in the schedule.
pub(super) struct Carrier<E: CarrierEndpoint> {
    endpoint: E,
    path: E::Path,
    scheduled: Scheduled,
    /// Packets since it was last polled for its own.
    unanswered: u8,
    hop: Hop,
    /// Protection by IPsec that each of its packets requires, in both directions.
    least: Strength,
    /// When its progress last confirmed its next hop, in [`ticks`].
    confirmed: u32,
    /// What the other carriers know of its path: as [`CarrierEndpoint::path_len`].
    path_len: u16,
    /// Bytes kept of what it has sent, as the worker's budget has it.
    kept: Kept,
    /// For when its timer is set in the wheel; the true deadline may be later, never earlier.
    timer: MaybeInstant,
    /// When the worker tries again to reach the next hop, or gives up to send a last packet.
    retry_at: MaybeInstant,
}

impl<E: CarrierEndpoint> Carrier<E> {
    /// Along `path`.
    pub(super) fn new(endpoint: E, path: E::Path, now: Instant) -> Self {
        let path_len = clamp(endpoint.path_len());
        Carrier {
            endpoint,
            path,
            scheduled: Scheduled::default(),
            unanswered: 0,
            hop: Hop::Untried,
            least: Strength::CLEAR,
            confirmed: ticks(now),
            path_len,
            kept: Kept::NOTHING,
            timer: MaybeInstant::NONE,
            retry_at: MaybeInstant::NONE,
        }
    }

    /// The endpoint.
    #[inline]
    pub(super) fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// The endpoint, to use it.
    #[inline]
    pub(super) fn endpoint_mut(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// Protection by IPsec that each of its packets requires.
    #[inline]
    pub(super) fn least(&self) -> Strength {
        self.least
    }

    /// Requires at least this protection from now on, as long as the carrier is open. A requirement is never lowered.
    pub(super) fn require(&mut self, least: Strength) {
        self.least = self.least.max(least);
    }

    /// Requires nothing any more.
    #[cfg(test)]
    pub(super) fn require_nothing(&mut self) {
        self.least = Strength::CLEAR;
    }

    /// The headers in front of its packets.
    #[inline]
    pub(super) fn path(&self) -> &E::Path {
        &self.path
    }

    /// The same, to change them.
    pub(super) fn path_mut(&mut self) -> &mut E::Path {
        &mut self.path
    }

    /// Endpoint and path at once.
    pub(super) fn parts(&mut self) -> (&mut E, &E::Path) {
        (&mut self.endpoint, &self.path)
    }

    fn ip_path(&self) -> &Path {
        self.path.as_ref()
    }

    /// Its flow.
    #[inline]
    pub(super) fn flow(&self) -> FlowKey {
        let (local, remote) = self.ip_path().addresses();
        let (local_port, remote_port) = self.endpoint.ports();
        FlowKey {
            interface: self.ip_path().interface() as u16,
            local: SocketAddr::new(local, local_port),
            remote: SocketAddr::new(remote, remote_port),
        }
    }

    /// The peer's address.
    #[inline]
    pub(super) fn peer(&self) -> IpAddr {
        self.ip_path().addresses().1
    }

    /// The peer, as path MTUs are remembered.
    fn path_peer(&self) -> Peer {
        (self.ip_path().interface(), self.peer())
    }

    fn next_hop(&self) -> NextHop {
        (self.ip_path().interface(), self.ip_path().next_hop())
    }

    /// Queues it to be served in this turn, if it is not queued yet.
    #[inline]
    pub(super) fn make_ready(&mut self, slot: u32, schedule: &mut Schedule) {
        schedule.make_ready(slot, &mut self.scheduled);
    }

    /// Queues it until there is room in the transmit ring of its port.
    pub(super) fn block(&mut self, slot: u32, schedule: &mut Schedule) {
        let port = self.ip_path().port();
        schedule.block(slot, &mut self.scheduled, port);
    }

    /// It waits for the link-layer address of its next hop.
    pub(super) fn wait(&mut self, slot: u32, schedule: &mut Schedule) {
        let next_hop = self.next_hop();
        schedule.wait(slot, &mut self.scheduled, next_hop);
    }

    /// Its place in the schedule.
    #[inline]
    pub(super) fn scheduled(&mut self) -> &mut Scheduled {
        &mut self.scheduled
    }

    /// True while it waits for the link-layer address of its next hop.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.scheduled.is_waiting()
    }

    /// True while it is queued for room in the transmit ring.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.scheduled.is_blocked()
    }

    /// Sets its timer, at the latest for `deadline`.
    #[inline]
    pub(super) fn set_timer(
        &mut self,
        slot: u32,
        schedule: &mut Schedule,
        deadline: Option<Instant>,
    ) {
        let retry = self.retry_at.get();
        // What cannot be sent now would be due again and again.
        let waits = self.is_waiting() || (E::TIMERS_WAIT && retry.is_some());
        let endpoint = if waits { None } else { self.endpoint.poll_timeout() };
        if let Some(at) = endpoint.into_iter().chain(retry).chain(deadline).min() {
            schedule.set_timer(slot, &mut self.timer, at);
        }
    }

    /// Its timer has fired. Returns whether the time to try again has come.
    #[inline]
    pub(super) fn timer_fired(&mut self, now: Instant) -> bool {
        self.timer = MaybeInstant::NONE;
        let retries = self.retry_at.get().is_some_and(|at| at <= now);
        if retries {
            self.retry_at = MaybeInstant::NONE;
        }
        retries
    }

    /// The worker is to serve it again.
    pub(super) fn is_to_retry(&self) -> bool {
        self.retry_at.get().is_some()
    }

    /// The worker serves it again at `at`, or earlier.
    pub(super) fn retry_at(&mut self, at: Instant) {
        let at = self.retry_at.get().map_or(at, |set| set.min(at));
        self.retry_at = Some(at).into();
    }

    /// Bytes that the peer has acknowledged.
    #[inline]
    pub(super) fn bytes_acknowledged(&self) -> u64 {
        self.endpoint.bytes_acknowledged()
    }

    /// A packet has come, before which the peer had acknowledged so many bytes. Returns whether it is time to answer.
    #[inline]
    pub(super) fn packet_taken(
        &mut self,
        acknowledged: u64,
        network: &mut Network,
        now: Instant,
    ) -> bool {
        let progress = self.endpoint.bytes_acknowledged() != acknowledged;
        if progress && ticks(now).wrapping_sub(self.confirmed) >= CONFIRM {
            // RFC 4861 §7.3.1: what we send arrives.
            self.confirmed = ticks(now);
            network.confirm(self.ip_path(), now);
        }
        self.unanswered = self.unanswered.saturating_add(1);
        // One that waits for its next hop answers nothing, whatever comes.
        self.unanswered >= ANSWER && !self.is_waiting()
    }

    /// It is polled for packets, which answer what has come.
    #[inline]
    pub(super) fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// There is no way to the peer, to which it is being opened. Returns whether to give up.
    pub(super) fn soft_error(&mut self) -> bool {
        let is_second = self.hop == Hop::SoftError;
        if self.hop == Hop::Untried {
            self.hop = Hop::SoftError;
        }
        is_second
    }

    /// Writes its packets, up to a quota and within the budget for what it keeps of them.
    #[inline]
    pub(super) fn transmit<Io: PortIo>(
        &mut self,
        mut out: Transmit<'_, Io>,
        keep: &mut KeepBudget,
        now: Instant,
    ) -> Transmitted {
        let peer = self.peer();
        let kept = keep.count(peer, self.kept, self.endpoint.kept());
        out.keep_limit = keep.limit(peer, kept);
        let transmitted = self.endpoint.transmit(&self.path, out, now);
        self.kept = keep.count(peer, kept, self.endpoint.kept());
        transmitted
    }

    /// Sets the link-layer address of the next hop.
    #[inline]
    pub(super) fn set_mac(&mut self, mac: crate::net::neighbour::Mac) {
        self.path.as_mut().set_mac(mac);
    }

    /// Keeps its next hop in the neighbour cache.
    pub(super) fn pin(&mut self, network: &mut Network) {
        if self.hop != Hop::Pinned && network.pin(self.ip_path()) {
            self.hop = Hop::Pinned;
        }
    }

    /// Its path carries less, or again more, than it was known to: new carriers use that. Not a guess: a peer that is
    /// away for a while looks like a black hole.
    #[inline]
    pub(super) fn share_path_mtu(&mut self, network: &mut Network, now: Instant) {
        if let Some((len, mtu)) = self.endpoint.known_path(&self.path)
            && clamp(len) != self.path_len
        {
            self.path_len = clamp(len);
            network.learn_path_mtu(self.path_peer(), mtu, now);
        }
    }

    /// Its timers were handled: if it times out, perhaps another one knows what the path carries.
    pub(super) fn timed_out(&mut self, network: &mut Network, now: Instant) {
        if self.endpoint.is_timing_out()
            && let Some(mtu) = network.path_mtu(self.path_peer(), now)
            && self.endpoint.limit_path(&self.path, mtu, now)
        {
            self.path_len = clamp(self.endpoint.path_len());
        }
    }

    /// Its timers were handled: a change of whether it makes progress, where it was `stalled` or not.
    #[inline]
    pub(super) fn progress(&self, stalled: bool, now: Instant) -> Option<Progress> {
        match self.endpoint.stall(now) {
            Some(stall) if !stalled => Some(Progress::Stalled(stall)),
            None if stalled && !self.endpoint.is_closed() => Some(Progress::Resumed),
            _ => None,
        }
    }

    /// RFC 9293 §3.8.3 R1: perhaps the neighbour has moved.
    #[inline]
    pub(super) fn check_neighbour(&self, network: &mut Network, now: Instant) {
        if self.endpoint.path_suspect() {
            network.doubt(self.ip_path(), now);
        }
    }

    /// Takes it out of everything that it is in.
    pub(super) fn release(
        &mut self,
        slot: u32,
        schedule: &mut Schedule,
        network: &mut Network,
        keep: &mut KeepBudget,
    ) {
        self.kept = keep.count(self.peer(), self.kept, 0);
        if core::mem::replace(&mut self.hop, Hop::Untried) == Hop::Pinned {
            network.unpin(self.ip_path());
        }
        let scheduled = core::mem::take(&mut self.scheduled);
        schedule.remove(slot, scheduled, self.ip_path().port(), self.next_hop());
    }
}

fn clamp(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

//! Carriers of streams. A carrier is the endpoint of a TCP connection or an SCTP association, with the path of its
//! packets, its membership in the schedule's queues and its progress. A connection carries one stream. An association
//! carries one stream per session. This module leaves out the streams' payload and ULP ([`conn`](super::conn)).

use std::net::{IpAddr, SocketAddr};

use base::{Instant, MaybeInstant};
use ipsec::strength::Strength;

use super::keep_budget::{KeepBudget, KeptBytes};
use super::schedule::{CarrierKind, NextHop, QueueMembership, Schedule};
use crate::api::{Counters, Stall};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::net::fragment::IdentificationGenerator;
use crate::net::path::{Path, TxChecksum};
use crate::net::path_mtu::Peer;
use crate::worker::network::Network;

/// Maximum number of received packets that one acknowledgement covers. After this number of packets, the endpoint is
/// polled at once for packets to send, which acknowledge the received packets. If a single acknowledgement covered a
/// whole window, its loss would cost the peer a time-out.
const ACK_THRESHOLD: u8 = 8;

/// Minimum interval between two confirmations of the next hop by a carrier's progress: one second, in [`ticks`].
const CONFIRM_INTERVAL: u32 = (1_000_000_000_u64 >> TICK_SHIFT) as u32;

/// Binary logarithm of a tick in nanoseconds: a tick takes about a millisecond.
const TICK_SHIFT: u32 = 20;

/// Returns the time in ticks. The result wraps after 52 days, so only differences are meaningful.
fn ticks(now: Instant) -> u32 {
    (now.as_nanos() >> TICK_SHIFT) as u32
}

/// State of a carrier's next hop, in one byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextHopState {
    /// The neighbour cache entry is not pinned, and no soft error was reported.
    Unpinned,
    /// One soft ICMP error was reported while the carrier was being opened. The second error, about another packet of
    /// the handshake, fails the connect. RFC 1122 §4.2.3.9 forbids an abort after the first error; see RFC 5461 §4.1.
    SoftError,
    /// The carrier has pinned its next hop's entry in the neighbour cache.
    Pinned,
}

/// Transition of a carrier between progress and stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum ProgressChange {
    Stalled(Stall),
    Resumed,
}

/// The endpoint of a TCP connection or of an SCTP association, as a [`Carrier`] uses it.
pub(in crate::worker) trait CarrierEndpoint {
    /// Header template of the endpoint's packets.
    type Path: AsRef<Path> + AsMut<Path>;
    /// Kind of the carrier: TCP connection or SCTP association.
    const KIND: CarrierKind;
    /// True if the endpoint's timers are suspended while the next hop does not answer.
    const SUSPENDS_TIMERS: bool;

    /// Returns the local and the remote port.
    fn ports(&self) -> (u16, u16);

    /// Returns the time at which the endpoint's earliest timer fires.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns the memory for copies of sent data, in bytes.
    fn kept(&self) -> u64;

    /// Returns the number of bytes that the peer has acknowledged so far.
    fn bytes_acknowledged(&self) -> u64;

    /// Returns true if packets may not reach the peer: the retransmissions have reached threshold R1 (RFC 9293 §3.8.3).
    fn path_suspect(&self) -> bool;

    /// Returns true from a retransmission time-out until the peer's next acknowledgement.
    fn is_timing_out(&self) -> bool;

    fn is_closed(&self) -> bool;

    /// Returns the number of time-outs and the duration of the present stall; `None` while the endpoint makes progress.
    fn stall(&self, now: Instant) -> Option<Stall>;

    /// Returns the estimated capacity of the path in bytes: for TCP the MSS, for SCTP the length of the largest SCTP
    /// packet.
    fn path_len(&self) -> usize;

    /// Returns the capacity of the path in the unit of [`path_len`](Self::path_len), and as MTU in bytes. Returns
    /// `None` while the capacity is only estimated.
    fn confirmed_path(&self, path: &Self::Path) -> Option<(usize, u16)>;

    /// Limits the endpoint to IP packets of `mtu` bytes. Returns true if that lowers the estimated capacity.
    fn limit_path(&mut self, path: &Self::Path, mtu: u16, now: Instant) -> bool;

    /// Transmits packets along `path`, within the limits of `out`.
    fn transmit<Io: PortIo>(
        &mut self,
        path: &Self::Path,
        out: TransmitContext<'_, Io>,
        now: Instant,
    ) -> TransmitOutcome;
}

/// Resources and limits of one call of [`CarrierEndpoint::transmit`].
pub(in crate::worker) struct TransmitContext<'a, Io: PortIo> {
    pub(in crate::worker) io: &'a mut Io,
    pub(in crate::worker) checksum: TxChecksum,
    pub(in crate::worker) counters: &'a Counters,
    /// IP identifications for packets that are sent in fragments.
    pub(in crate::worker) identifications: &'a mut IdentificationGenerator,
    /// Maximum number of packets to send.
    pub(in crate::worker) quota: usize,
    /// Maximum memory for copies of sent data, in bytes.
    pub(in crate::worker) keep_limit: u64,
    /// True if many carriers share the worker's ports.
    pub(in crate::worker) shared: bool,
    /// True if the endpoint passes its last packet to the device at once, because no other carrier is ready.
    pub(in crate::worker) offer_last: bool,
    /// Minimum IPsec protection of the packets.
    pub(in crate::worker) min_strength: Strength,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct TransmitOutcome {
    /// True if at least one packet was sent.
    pub(in crate::worker) has_sent: bool,
    /// Reason why a further packet was refused; the endpoint may then have more to send. `None` if no packet was
    /// refused.
    pub(in crate::worker) refusal: Option<Refusal>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Refusal {
    /// [`TransmitContext::quota`] packets were sent.
    Quota,
    /// The port's transmit ring, or on a loopback path the loopback queue, is full.
    RingFull,
    /// The port's buffer pool is empty.
    NoBuffer,
}

/// An endpoint, its path and its membership in the schedule's queues.
pub(in crate::worker) struct Carrier<E: CarrierEndpoint> {
    endpoint: E,
    path: E::Path,
    membership: QueueMembership,
    /// Number of packets received since the endpoint was last polled for packets to send.
    unacknowledged_packets: u8,
    next_hop_state: NextHopState,
    /// Minimum IPsec protection of sent and received packets.
    min_strength: Strength,
    /// Time at which progress last confirmed the next hop, in [`ticks`].
    confirmed_at: u32,
    /// Path capacity last shared with or adopted from the worker's other carriers, in the unit of
    /// [`CarrierEndpoint::path_len`].
    path_len: u16,
    /// Memory for copies of sent data, as last counted in the worker's budget.
    kept: KeptBytes,
    /// Time set in the timer wheel: the carrier's true deadline or an earlier time.
    timer: MaybeInstant,
    /// Time at which the worker tries to resolve the next hop again, or drops the endpoint's last packet because the
    /// transmit ring has remained full.
    retry_at: MaybeInstant,
}

impl<E: CarrierEndpoint> Carrier<E> {
    /// Creates a carrier with path `path` that requires no protection by IPsec.
    pub(in crate::worker) fn new(endpoint: E, path: E::Path, now: Instant) -> Self {
        let path_len = clamp(endpoint.path_len());
        Carrier {
            endpoint,
            path,
            membership: QueueMembership::default(),
            unacknowledged_packets: 0,
            next_hop_state: NextHopState::Unpinned,
            min_strength: Strength::CLEAR,
            confirmed_at: ticks(now),
            path_len,
            kept: KeptBytes::ZERO,
            timer: MaybeInstant::NONE,
            retry_at: MaybeInstant::NONE,
        }
    }

    #[inline]
    pub(in crate::worker) fn endpoint(&self) -> &E {
        &self.endpoint
    }

    #[inline]
    pub(in crate::worker) fn endpoint_mut(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// Returns the minimum IPsec protection of sent and received packets.
    #[inline]
    pub(in crate::worker) fn min_strength(&self) -> Strength {
        self.min_strength
    }

    /// Raises the minimum IPsec protection for the rest of the carrier's lifetime. A lower value has no effect.
    pub(in crate::worker) fn require_strength(&mut self, min_strength: Strength) {
        self.min_strength = self.min_strength.max(min_strength);
    }

    #[cfg(test)]
    pub(in crate::worker) fn clear_requirement(&mut self) {
        self.min_strength = Strength::CLEAR;
    }

    /// Returns the path: the header template of the carrier's packets.
    #[inline]
    pub(in crate::worker) fn path(&self) -> &E::Path {
        &self.path
    }

    pub(in crate::worker) fn path_mut(&mut self) -> &mut E::Path {
        &mut self.path
    }

    /// Borrows the endpoint mutably, together with the path.
    pub(in crate::worker) fn endpoint_and_path(&mut self) -> (&mut E, &E::Path) {
        (&mut self.endpoint, &self.path)
    }

    fn ip_path(&self) -> &Path {
        self.path.as_ref()
    }

    /// Returns the flow: interface, local and remote address and port.
    #[inline]
    pub(in crate::worker) fn flow(&self) -> FlowKey {
        let (local, remote) = self.ip_path().addresses();
        let (local_port, remote_port) = self.endpoint.ports();
        FlowKey {
            interface: self.ip_path().interface() as u16,
            local: SocketAddr::new(local, local_port),
            remote: SocketAddr::new(remote, remote_port),
        }
    }

    /// Returns true if the carrier's [`flow`](Self::flow) equals `flow`. Faster than a comparison of the keys.
    #[inline]
    pub(in crate::worker) fn has_flow(&self, flow: &FlowKey) -> bool {
        let path = self.ip_path();
        path.interface() == usize::from(flow.interface)
            && self.endpoint.ports() == (flow.local.port(), flow.remote.port())
            && path.has_addresses(flow.local.ip(), flow.remote.ip())
    }

    #[inline]
    pub(in crate::worker) fn peer(&self) -> IpAddr {
        self.ip_path().addresses().1
    }

    /// Returns the peer's key in the path MTU cache.
    fn path_peer(&self) -> Peer {
        (self.ip_path().interface(), self.peer())
    }

    fn next_hop(&self) -> NextHop {
        (self.ip_path().interface(), self.ip_path().next_hop())
    }

    /// Queues the carrier to be served by the next pass, unless it is already queued.
    #[inline]
    pub(in crate::worker) fn make_ready(&mut self, slot: u32, schedule: &mut Schedule) {
        schedule.make_ready(slot, &mut self.membership);
    }

    /// Queues the carrier as blocked at its port, unless it already is.
    pub(in crate::worker) fn block(&mut self, slot: u32, schedule: &mut Schedule) {
        schedule.block(slot, &mut self.membership, self.path.as_ref());
    }

    /// Queues the carrier until the link-layer address of its next hop is resolved.
    pub(in crate::worker) fn suspend(&mut self, slot: u32, schedule: &mut Schedule) {
        let next_hop = self.next_hop();
        schedule.suspend(slot, &mut self.membership, next_hop);
    }

    /// Returns the carrier's membership in the schedule's queues, mutably.
    #[inline]
    pub(in crate::worker) fn membership_mut(&mut self) -> &mut QueueMembership {
        &mut self.membership
    }

    /// Returns true while the carrier waits for the link-layer address of its next hop.
    #[inline]
    pub(in crate::worker) fn is_waiting(&self) -> bool {
        self.membership.is_waiting()
    }

    /// Returns true while the carrier is queued as blocked.
    #[inline]
    pub(in crate::worker) fn is_blocked(&self) -> bool {
        self.membership.is_blocked()
    }

    /// Sets the timer to the earliest of the endpoint's timer, the retry time and `deadline`.
    #[inline]
    pub(in crate::worker) fn set_timer(
        &mut self,
        slot: u32,
        schedule: &mut Schedule,
        deadline: Option<Instant>,
    ) {
        let retry = self.retry_at.get();
        // Retransmissions cannot be sent while the next hop is not resolved. An expired retransmission timer would fire
        // again at once, so the endpoint's timers are ignored.
        let waits = self.is_waiting() || (E::SUSPENDS_TIMERS && retry.is_some());
        let endpoint = if waits { None } else { self.endpoint.poll_timeout() };
        if let Some(at) = endpoint.into_iter().chain(retry).chain(deadline).min() {
            schedule.set_timer(slot, &mut self.timer, at);
        }
    }

    /// Records that the timer has fired. Returns true if a planned retry is due.
    #[inline]
    pub(in crate::worker) fn clear_fired_timer(&mut self, now: Instant) -> bool {
        self.timer = MaybeInstant::NONE;
        let retries = self.retry_at.get().is_some_and(|at| at <= now);
        if retries {
            self.retry_at = MaybeInstant::NONE;
        }
        retries
    }

    /// Returns true if a retry is planned: a new attempt to resolve the next hop, or the drop of a last packet.
    pub(in crate::worker) fn has_planned_retry(&self) -> bool {
        self.retry_at.get().is_some()
    }

    /// Plans a retry at `at`. An earlier planned retry is kept.
    pub(in crate::worker) fn plan_retry(&mut self, at: Instant) {
        let at = self.retry_at.get().map_or(at, |set| set.min(at));
        self.retry_at = Some(at).into();
    }

    /// Returns the number of bytes that the peer has acknowledged so far.
    #[inline]
    pub(in crate::worker) fn bytes_acknowledged(&self) -> u64 {
        self.endpoint.bytes_acknowledged()
    }

    /// Records a received packet. `acknowledged` is [`bytes_acknowledged`](Self::bytes_acknowledged) from before the
    /// packet. Returns true if an acknowledgement is due at once.
    #[inline]
    pub(in crate::worker) fn record_packet(
        &mut self,
        acknowledged: u64,
        network: &mut Network,
        now: Instant,
    ) -> bool {
        let progress = self.endpoint.bytes_acknowledged() != acknowledged;
        if progress && ticks(now).wrapping_sub(self.confirmed_at) >= CONFIRM_INTERVAL {
            // RFC 4861 §7.3.1: forward progress confirms reachability.
            self.confirmed_at = ticks(now);
            network.confirm(self.ip_path(), now);
        }
        self.unacknowledged_packets = self.unacknowledged_packets.saturating_add(1);
        // A carrier that waits for its next hop cannot send an acknowledgement.
        self.unacknowledged_packets >= ACK_THRESHOLD && !self.is_waiting()
    }

    /// Records that the endpoint was polled for packets to send. These packets acknowledge all received data.
    #[inline]
    pub(in crate::worker) fn clear_unacknowledged(&mut self) {
        self.unacknowledged_packets = 0;
    }

    /// Records a soft ICMP error while the carrier is being opened. Returns true for the second error, which fails the
    /// connect.
    pub(in crate::worker) fn record_soft_error(&mut self) -> bool {
        let is_second = self.next_hop_state == NextHopState::SoftError;
        if self.next_hop_state == NextHopState::Unpinned {
            self.next_hop_state = NextHopState::SoftError;
        }
        is_second
    }

    /// Transmits the endpoint's packets, up to the quota and within the worker's budget for copies of sent data.
    #[inline]
    pub(in crate::worker) fn transmit<Io: PortIo>(
        &mut self,
        mut out: TransmitContext<'_, Io>,
        keep: &mut KeepBudget,
        now: Instant,
    ) -> TransmitOutcome {
        let peer = self.peer();
        let kept = keep.update(peer, self.kept, self.endpoint.kept());
        out.keep_limit = keep.limit(peer, kept);
        let transmitted = self.endpoint.transmit(&self.path, out, now);
        self.kept = keep.update(peer, kept, self.endpoint.kept());
        transmitted
    }

    /// Sets the link-layer address of the next hop.
    #[inline]
    pub(in crate::worker) fn set_mac(&mut self, mac: crate::net::neighbour::Mac) {
        self.path.as_mut().set_mac(mac);
    }

    /// Pins the next hop's entry in the neighbour cache, if there is one, so that it is not evicted.
    pub(in crate::worker) fn pin(&mut self, network: &mut Network) {
        if self.next_hop_state != NextHopState::Pinned && network.pin(self.ip_path()) {
            self.next_hop_state = NextHopState::Pinned;
        }
    }

    /// Shares a changed path MTU, smaller or larger, with new carriers. Only confirmed values are shared, because a
    /// peer that is down for a while looks like a path MTU black hole.
    #[inline]
    pub(in crate::worker) fn share_path_mtu(&mut self, network: &mut Network, now: Instant) {
        if let Some((len, mtu)) = self.endpoint.confirmed_path(&self.path)
            && clamp(len) != self.path_len
        {
            self.path_len = clamp(len);
            network.learn_path_mtu(self.path_peer(), mtu, now);
        }
    }

    /// Adopts, after a time-out, the path MTU that another carrier has discovered. Called after the endpoint has
    /// handled its timers.
    pub(in crate::worker) fn adopt_path_mtu(&mut self, network: &mut Network, now: Instant) {
        if self.endpoint.is_timing_out()
            && let Some(mtu) = network.path_mtu(self.path_peer(), now)
            && self.endpoint.limit_path(&self.path, mtu, now)
        {
            self.path_len = clamp(self.endpoint.path_len());
        }
    }

    /// Returns the transition between progress and stall, if there was one. `stalled` is the state reported last.
    /// Called after the endpoint has handled its timers.
    #[inline]
    pub(in crate::worker) fn progress_change(
        &self,
        stalled: bool,
        now: Instant,
    ) -> Option<ProgressChange> {
        match self.endpoint.stall(now) {
            Some(stall) if !stalled => Some(ProgressChange::Stalled(stall)),
            None if stalled && !self.endpoint.is_closed() => Some(ProgressChange::Resumed),
            _ => None,
        }
    }

    /// Requests a probe of the next hop if packets may not reach the peer: the neighbour may have moved (RFC 9293
    /// §3.8.3 R1).
    #[inline]
    pub(in crate::worker) fn check_neighbour(&self, network: &mut Network, now: Instant) {
        if self.endpoint.path_suspect() {
            network.verify_next_hop(self.ip_path(), now);
        }
    }

    /// Removes the carrier from the schedule, unpins its next hop and releases its share of the budget for copies of
    /// sent data.
    pub(in crate::worker) fn release(
        &mut self,
        slot: u32,
        schedule: &mut Schedule,
        network: &mut Network,
        keep: &mut KeepBudget,
    ) {
        self.kept = keep.update(self.peer(), self.kept, 0);
        if core::mem::replace(&mut self.next_hop_state, NextHopState::Unpinned)
            == NextHopState::Pinned
        {
            network.unpin(self.ip_path());
        }
        let scheduled = core::mem::take(&mut self.membership);
        schedule.remove(slot, scheduled, self.ip_path());
    }
}

fn clamp(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

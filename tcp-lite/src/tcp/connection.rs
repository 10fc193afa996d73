//! The connection and its public interface: opens, closes, events, queries. The module `input` processes received
//! segments, `output` transmits, and `timeouts` handles timers. The state changes only by legal transitions
//! ([`State`]), and each event is reported at most once.

use core::time::Duration;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;
use transport::limits::LimitInfo;
use transport::seq::{ExtSeq, SeqNumber};
use transport::stall::Stall;

use super::config::Config;
use super::ecn::Ecn;
use super::isn::{FourTuple, InitialNumbers, default_mss};
use super::path_mtu::PathMtu;
use super::receiver::Receiver;
use super::segment::{DataHeader, Flags, Options, Segment, Timestamps};
use super::sender::Sender;
use super::state::{State, Transition};
use super::stats::{Counters, Info, Stats};
use super::syn::Syn;
use super::timers::{Timer, Timers};

/// R1: number of unanswered time-outs after which the path is suspect (RFC 9293 §3.8.3 SHLD-10).
const R1: u32 = 3;

/// Reason why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloseReason {
    /// Both sides closed and all data was acknowledged.
    Normal,
    /// The peer reset the connection (RFC 9293 §3.10.7.4, second check), or sent a new SYN before the connection was
    /// established.
    Reset,
    /// The peer refused our SYN with a reset.
    Refused,
    /// No answer to retransmissions, probes or keepalives, silence in FIN-WAIT-2, or a peer window closed for
    /// [`Limits::zero_window`](super::Limits::zero_window).
    Timeout,
    /// This end aborted the connection, or closed it before it was established.
    Aborted,
}

/// Events for the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The connection has entered ESTABLISHED. The effective MSS is known.
    Connected,
    /// The peer's FIN was received in order: the peer sends no more data.
    RemoteClosed,
    /// The connection has ended. With [`CloseReason::Normal`] the state may still be TIME-WAIT. The owner keeps the
    /// connection until its state is CLOSED.
    Closed(CloseReason),
}

/// A TCP connection. See the [module](super) for the order of calls.
#[derive(Debug)]
pub struct Connection {
    pub(super) state: State,
    pub(super) syn: Syn,
    /// True if both ends use timestamps.
    pub(super) timestamps: bool,
    /// True if both ends scale their windows.
    pub(super) window_scaling: bool,
    pub(super) ecn: Ecn,
    /// True after a passive open, false after an active open.
    pub(super) passive: bool,
    pub(super) send: Sender,
    /// Valid once the peer's SYN has been received.
    pub(super) recv: Receiver,
    pub(super) timers: Timers,
    pub(super) stats: Counters,
    /// Arrival time of the last segment that was not dropped.
    pub(super) last_received: Instant,
    pub(super) keepalive: KeepaliveProbes,
    /// Offset of the timestamp clock: see [`InitialNumbers::ts_offset`].
    ts_offset: u32,
    pub(super) path: PathMtu,
    events: ArrayVec<Event, 3>,
    pub(super) config: Arc<Config>,
    local_port: u16,
    remote_port: u16,
    /// True over IPv6.
    pub(super) v6: bool,
}

base::prefetch!(Connection: send, timers, stats);

/// Keepalive probes (RFC 9293 §3.8.4).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepaliveProbes {
    /// True if a probe is due.
    pub(super) due: bool,
    /// Number of consecutive unanswered probes, saturating.
    pub(super) unanswered: u8,
}

impl Connection {
    /// Creates a connection in SYN-SENT (active open). `start`: the numbers that an
    /// [`IsnGenerator`](super::IsnGenerator) returned. `mss` is the MSS of this interface: its MTU less the IP and the
    /// fixed TCP header (RFC 9293 §3.7.1).
    pub fn connect(
        config: Arc<Config>,
        tuple: FourTuple,
        start: impl Into<InitialNumbers>,
        mss: u16,
        now: Instant,
    ) -> Connection {
        let start = start.into();
        let mut send = Sender::new(start.iss, mss, &config, now);
        send.nxt = send.iss().plus(1);
        Connection {
            state: State::SynSent,
            syn: Syn::new(mss),
            timestamps: false,
            window_scaling: false,
            ecn: Ecn::for_active_open(&config),
            passive: false,
            recv: Receiver::new(SeqNumber(0), &config, mss, 0, now),
            send,
            timers: Timers::new(),
            stats: Counters::default(),
            last_received: now,
            keepalive: KeepaliveProbes::default(),
            ts_offset: start.ts_offset,
            path: PathMtu::new(mss, tuple.remote.is_ipv6(), config.path_mtu.min),
            events: ArrayVec::new(),
            config,
            local_port: tuple.local.port(),
            remote_port: tuple.remote.port(),
            v6: tuple.remote.is_ipv6(),
        }
    }

    /// Creates a connection in SYN-RECEIVED (passive open, RFC 9293 §3.10.7.2). `syn` is a segment with SYN and neither
    /// ACK nor RST. For `start` and `mss` see [`connect`](Self::connect). Data on the SYN is ignored; the peer
    /// retransmits it.
    pub fn accept(
        config: Arc<Config>,
        tuple: FourTuple,
        start: impl Into<InitialNumbers>,
        mss: u16,
        syn: &Segment<'_>,
        now: Instant,
    ) -> Connection {
        let mut conn = Self::connect(config, tuple, start, mss, now);
        conn.passive = true;
        conn.stats.segments_in = 1;
        conn.negotiate(syn, now);
        conn.state = State::SynReceived;
        conn
    }

    /// Processes the peer's SYN: stores its sequence number and window, and the options that both ends support.
    pub(super) fn negotiate(&mut self, syn: &Segment<'_>, now: Instant) {
        let config = &self.config;
        let options = &syn.options;
        // RFC 7323 §2.3: a larger shift is reduced to 14. §2.2: both sides scale or neither.
        let scale =
            options.window_scale.filter(|_| config.extensions.window_scale).map(|s| s.min(14));
        self.window_scaling = scale.is_some();
        self.send.window_shift = scale.unwrap_or(0);
        let shift = if scale.is_some() { config.window_shift() } else { 0 };
        self.send.sack = config.extensions.sack && options.sack_permitted; // RFC 2018 §2
        self.timestamps = config.extensions.timestamps && options.timestamps.is_some(); // RFC 7323 §3.2
        self.ecn.negotiate(syn, config.extensions.ecn);
        // RFC 9293 §3.7.1 MUST-15: without an MSS option the default MSS applies.
        let peer_mss = options.mss.unwrap_or_else(|| default_mss(self.v6)).max(config.min_mss);
        self.send.size.negotiate(peer_mss, self.timestamps);
        self.path.limit_to(peer_mss);
        let options_len = if self.timestamps { super::segment::TIMESTAMPS_LEN } else { 0 };
        let rmss = self.syn.mss.saturating_sub(options_len as u16).max(1);
        self.recv = Receiver::new(syn.seq, config, rmss, shift, now);
        self.recv.d_sacks = self.send.sack;
        if let Some(stamps) = options.timestamps.filter(|_| self.timestamps) {
            self.recv.set_ts_recent(stamps.val, now);
        }
        // RFC 7323 §2.2: the window of a SYN is never scaled.
        let window = u64::from(syn.window);
        self.send.window.set(self.recv.irs(), self.send.una, window);
    }

    /// Records that a SYN-ACK with this window was sent before this connection was created, as with SYN cookies.
    pub(super) fn mark_syn_ack_sent(&mut self, window: u16) {
        self.syn.due = false;
        self.syn.unmeasured = true;
        self.syn.window = window;
        self.recv.on_window_offered(window);
    }

    /// Returns the earliest expiry of a timer, at which [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_expiry()
    }

    /// Returns the next event without removing it.
    pub fn peek_event(&self) -> Option<Event> {
        self.events.first().copied()
    }

    /// Removes and returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_at(0)
    }

    /// Closes the send direction: a FIN follows the data that the source has. Data is received until the peer also
    /// closes (RFC 9293 §3.10.4). In SYN-SENT the connection ends at once.
    pub fn close(&mut self) {
        match self.state {
            State::SynSent => self.delete(CloseReason::Aborted),
            _ => self.send.fin_queued = true,
        }
    }

    /// Aborts the connection (RFC 9293 §3.10.5). The next [`poll_transmit`](Self::poll_transmit) sends the reset, if
    /// the state requires one.
    pub fn abort(&mut self, now: Instant) {
        use State::*;
        if matches!(self.state, SynReceived | Established | FinWait1 | FinWait2 | CloseWait) {
            self.record_and_reset(now);
        }
        self.delete(CloseReason::Aborted);
    }

    /// Aborts with a reset even in CLOSING, LAST-ACK and TIME-WAIT, in which RFC 9293 §3.10.5 sends none. Without the
    /// reset the peer would regard its data and FIN as delivered.
    #[cold]
    pub fn abort_with_reset(&mut self, now: Instant) {
        if !matches!(self.state, State::Closed | State::SynSent) {
            self.record_and_reset(now);
        }
        self.delete(CloseReason::Aborted);
    }

    /// Schedules a reset with sequence number `seq`, which the next [`poll_transmit`](Self::poll_transmit) sends.
    #[cold]
    pub(super) fn schedule_reset(&mut self, seq: SeqNumber) {
        self.stats.alloc_cold().reset = Some(seq);
    }

    /// Returns true if the byte at `seq` was sent and is not acknowledged. An ICMP message is acceptable only if it
    /// quotes such a byte (RFC 5927 §4.1).
    pub fn is_in_flight(&self, seq: SeqNumber) -> bool {
        let seq = self.send.una.nearest(seq);
        self.send.una <= seq && seq < self.send.nxt
    }

    /// Returns the initial send sequence number (ISS).
    pub fn iss(&self) -> SeqNumber {
        self.send.iss().wire()
    }

    /// Returns SND.NXT. The ISS of a new incarnation of the connection must be above it (RFC 9293 §3.6.1).
    pub fn snd_nxt(&self) -> SeqNumber {
        self.send.nxt.wire()
    }

    /// Returns the connection's state (RFC 9293 §3.3.2).
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the local and the remote port.
    pub fn ports(&self) -> (u16, u16) {
        (self.local_port, self.remote_port)
    }

    /// Returns the effective maximum segment size: payload bytes of a data segment, options deducted (RFC
    /// 9293 §3.7.1). Valid once connected.
    pub fn emss(&self) -> usize {
        self.send.emss()
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats.stats();
        stats.recv.bytes = self.recv.bytes_taken();
        stats.bytes_out = self.send.bytes_sent();
        stats.bytes_acknowledged = self.bytes_acknowledged();
        stats
    }

    /// Returns the number of bytes that the peer has acknowledged. An acknowledged FIN counts as one byte.
    pub fn bytes_acknowledged(&self) -> u64 {
        self.send.una.since(self.send.iss().plus(1))
    }

    /// Returns the smoothed round-trip time, `None` before the first measurement.
    pub fn srtt(&self) -> Option<std::time::Duration> {
        self.send.recovery.rtt().srtt().map(Into::into)
    }

    /// Returns a snapshot of state, round-trip times, windows and negotiated options.
    pub fn info(&self) -> Info {
        let rtt = self.send.recovery.rtt();
        Info {
            state: self.state,
            emss: self.send.emss(),
            srtt: rtt.srtt().map(Into::into),
            rttvar: rtt.rttvar().into(),
            min_rtt: self.send.recovery.min_rtt().map(Into::into),
            rto: rtt.rto(&self.config).into(),
            pacing_rate: self.send.pace(&self.config, false).map(|pace| pace.rate),
            cwnd: self.send.recovery.cc().cwnd(),
            ssthresh: self.send.recovery.cc().ssthresh(),
            send_window: self.send.window.size().into(),
            flight: self.send.flight(),
            in_flight: self.send.pipe(),
            receive_window: self.recv.edge.since(self.recv.nxt),
            ranges: self.recv.ranges(),
            sack: self.send.sack,
            timestamps: self.timestamps,
            ecn: self.ecn.sends_ect(),
            send_window_shift: self.window_scaling.then_some(self.send.window_shift),
            receive_window_shift: self.recv.shift,
        }
    }

    /// Returns the sender's current limit, the time under each limit, and the delivery rate.
    pub fn limits(&self, now: Instant) -> LimitInfo {
        self.stats.limits.info(now)
    }

    /// Returns the number of bytes by which the receive window has grown.
    pub fn window_growth(&self) -> u64 {
        self.recv.growth(&self.config)
    }

    /// Returns the fraction of sent bytes with congestion marks, 0 to 1 (RFC 8257 §3.3). `None` if the congestion
    /// controller does not estimate it.
    pub fn marked_fraction(&self) -> Option<f64> {
        self.send.recovery.cc().marked_fraction()
    }

    /// Returns the arrival time of the last segment that was not dropped.
    pub fn idle_since(&self) -> Instant {
        self.last_received
    }

    /// Returns true while a retransmission after a time-out is unacknowledged, or while a window probe is unanswered.
    pub fn is_timing_out(&self) -> bool {
        self.unanswered_timeouts() > 0
    }

    /// Returns the number of consecutive unanswered window probes if the peer's window is closed. Otherwise returns the
    /// number of consecutive retransmission time-outs.
    pub(super) fn unanswered_timeouts(&self) -> u32 {
        match self.send.window.is_closed() && self.state.is_synchronized() {
            true => self.send.probes.unanswered(),
            false => self.send.recovery.consecutive_timeouts(),
        }
    }

    /// Returns the duration and time-outs of a stall if the connection makes no progress. Valid after
    /// [`handle_timeout`](Self::handle_timeout).
    pub fn stall(&self, now: Instant) -> Option<Stall> {
        let timeouts = self.unanswered_timeouts();
        if timeouts == 0 || !self.state.is_synchronized() {
            return None;
        }
        let silent = now.saturating_since(self.send.progress_at);
        let next = silent + Duration::from(self.send.recovery.rtt().rto(&self.config));
        Stall::detect(timeouts, next >= self.config.limits.retransmission, silent)
    }

    /// Returns true after `R1` unanswered time-outs: the neighbour entry or the route may be wrong (RFC 9293 §3.8.3
    /// MUST-20 (b)).
    pub fn is_path_suspect(&self) -> bool {
        self.unanswered_timeouts() >= R1
    }

    /// Returns true in TIME-WAIT if `seg` is a SYN that may reopen the connection. The owner then replaces this
    /// connection by a new [`accept`](Self::accept) (RFC 9293 §3.6.1 MAY-2, RFC 6191 §2).
    #[inline]
    pub fn may_reopen(&self, seg: &Segment<'_>) -> bool {
        self.state == State::TimeWait && self.allows_reopen(seg)
    }

    fn allows_reopen(&self, seg: &Segment<'_>) -> bool {
        let syn = seg.flags.has(Flags::SYN) && !seg.flags.intersects(Flags::ACK.with(Flags::RST));
        let later_seq = seg.seq.after(self.recv.nxt.wire());
        let later = match seg.options.timestamps.filter(|_| self.timestamps) {
            Some(stamps) => {
                let (val, recent) = (SeqNumber(stamps.val), SeqNumber(self.recv.ts_recent()));
                val.after(recent) || (val == recent && later_seq)
            }
            None => later_seq,
        };
        syn && later
    }

    /// Frees the memory that is needed only while data is in flight or missing. The owner calls this method for idle
    /// connections. Protocol behaviour is unchanged.
    pub fn shrink(&mut self, now: Instant) {
        self.recv.shrink();
        self.timers.shrink();
        self.stats.shrink(now);
        let silent = matches!(self.state, State::TimeWait | State::Closed);
        if silent
            || now.nanos_since(self.send.last_sent) > self.send.recovery.rtt().rto(&self.config)
        {
            self.send.shrink();
        }
    }

    /// Returns true if [`shrink`](Self::shrink) has nothing to free, except old records of the flight recorder.
    pub fn is_shrunk(&self) -> bool {
        self.send.outstanding.is_blank()
            && self.recv.is_shrunk()
            && self.timers.next_expiry().is_none()
    }

    // --- shared by the other modules ----------------------------------------------------------------

    /// Makes a state transition and returns true. An illegal transition changes nothing and returns false.
    pub(super) fn transition(&mut self, by: Transition) -> bool {
        let next = self.state.next(by);
        debug_assert!(next.is_some(), "{} by {by:?}", self.state);
        if let Some(state) = next {
            self.state = state;
        }
        next.is_some()
    }

    /// Adds an event. The queue cannot be full, because each kind occurs at most once.
    pub(super) fn push_event(&mut self, event: Event) {
        if self.events.try_push(event).is_err() {
            debug_assert!(false, "event {event:?} pushed too often");
        }
    }

    /// Enters CLOSED. Adds [`Event::Closed`], unless the entry into TIME-WAIT has already reported the end.
    pub(super) fn delete(&mut self, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        let reported = self.state == State::TimeWait;
        self.transition(Transition::Delete);
        self.cancel_pending();
        if !reported {
            self.push_event(Event::Closed(reason));
        }
    }

    /// Stops all timers and cancels all pending segments except a reset.
    pub(super) fn cancel_pending(&mut self) {
        self.timers.stop_all();
        self.syn.due = false;
        self.keepalive.due = false;
        self.recv.ack_now = false;
        self.recv.owed_dup_acks = 0;
    }

    /// Enters ESTABLISHED, adds [`Event::Connected`], and starts the keepalive timer if configured.
    pub(super) fn enter_established(&mut self, now: Instant) {
        self.transition(Transition::SynAcked);
        self.syn.due = false;
        self.timers.stop(Timer::Retransmit);
        self.send.on_established(&self.config, self.syn.lost);
        self.send.progress_at = now;
        self.push_event(Event::Connected);
        if let Some(keepalive) = self.config.keepalive {
            self.timers.set(Timer::Keepalive, now + keepalive.idle);
        }
    }

    /// Returns the current TSval, in milliseconds (RFC 7323 §5.4).
    pub(super) fn ts_now(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.ts_offset)
    }

    /// Returns TSval and TSecr of a segment sent now; `None` unless both ends use timestamps.
    fn current_timestamps(&self, now: Instant) -> Option<Timestamps> {
        self.timestamps.then(|| Timestamps {
            val: self.ts_now(now),
            ecr: self.recv.ts_recent(), // RFC 7323 §4.3 (3)
        })
    }

    /// Returns the header fields that all data segments sent now share. Their flags are `flags`, ACK and the ECN flags.
    #[inline(always)]
    pub(super) fn data_header(&self, now: Instant, flags: Flags, window: u16) -> DataHeader {
        let flags = flags.with(Flags::ACK).with(self.ecn.ack_flags());
        let (src_port, dst_port) = self.ports();
        DataHeader::new(
            src_port,
            dst_port,
            self.recv.nxt.wire(),
            flags,
            window,
            self.current_timestamps(now),
        )
    }

    /// Returns a segment without payload, with the current acknowledgement number and timestamps. Adds ACK and the ECN
    /// flags to `flags`.
    pub(super) fn empty_segment(
        &self,
        now: Instant,
        seq: ExtSeq,
        flags: Flags,
        window: u16,
    ) -> Segment<'static> {
        let timestamps = self.current_timestamps(now);
        Segment {
            src_port: self.local_port,
            dst_port: self.remote_port,
            seq: seq.wire(),
            ack: self.recv.nxt.wire(),
            flags: flags.with(Flags::ACK).with(self.ecn.ack_flags()),
            window,
            options: Options { timestamps, ..Options::default() },
            payload: &[],
            ce: false,
            text_crc: None,
        }
    }
}

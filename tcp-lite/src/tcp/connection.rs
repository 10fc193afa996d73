//! The connection: what its owner sees of it. What segments do to it is in `input`, what it sends in
//! `output`, what time does in `timeouts`.

use core::time::Duration;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;
use transport::limits::LimitInfo;
use transport::seq::{ExtSeq, SeqNumber};
use transport::stall::Stall;

use super::config::Config;
use super::ecn::Ecn;
use super::isn::{FourTuple, Start, default_mss};
use super::path_mtu::PathMtu;
use super::receiver::Receiver;
use super::segment::{DataHeader, Flags, Options, Segment, Timestamps};
use super::sender::Sender;
use super::state::{State, Transition};
use super::stats::{Counts, Info, Stats};
use super::syn::Syn;
use super::timers::{Timer, Timers};

/// Retransmissions after which the path is suspect, R1 (RFC 9293 §3.8.3 SHLD-10).
const R1: u32 = 3;

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloseReason {
    /// Both sides closed and everything was acknowledged.
    Normal,
    /// The peer reset it (RFC 9293 §3.10.7.4, second check), or opened anew before it was established.
    Reset,
    /// The peer refused our SYN with a reset.
    Refused,
    /// No answer to retransmissions, probes or keepalives, or silence in FIN-WAIT-2.
    Timeout,
    /// We aborted it, or closed it before it was established.
    Aborted,
}

/// What the owner has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// ESTABLISHED; the effective MSS is known.
    Connected,
    /// The peer's FIN has come in order: it sends nothing more.
    RemoteClosed,
    /// Nothing more will come or go. With [`CloseReason::Normal`] the state may still be TIME-WAIT: keep
    /// the connection until it is CLOSED.
    Closed(CloseReason),
}

/// A TCP connection. See the [module](super) for the order of calls.
#[derive(Debug)]
pub struct Connection {
    pub(super) state: State,
    pub(super) syn: Syn,
    /// Both sides use timestamps.
    pub(super) timestamps: bool,
    /// Both sides scale their windows.
    pub(super) scales: bool,
    pub(super) ecn: Ecn,
    /// Opened by the peer.
    pub(super) passive: bool,
    pub(super) send: Sender,
    /// Meaningful once the peer's SYN has come.
    pub(super) recv: Receiver,
    pub(super) timers: Timers,
    pub(super) stats: Counts,
    pub(super) last_received: Instant,
    pub(super) keepalive: KeepaliveProbes,
    /// See [`Start::clock`].
    clock: u32,
    pub(super) path: PathMtu,
    events: ArrayVec<Event, 3>,
    pub(super) config: Arc<Config>,
    local_port: u16,
    remote_port: u16,
    pub(super) v6: bool,
}

base::prefetch!(Connection: send, timers, stats);

/// Keepalive probes (RFC 9293 §3.8.4).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepaliveProbes {
    /// One is to be sent.
    pub(super) due: bool,
    /// In a row without an answer, saturating.
    pub(super) unanswered: u8,
}

impl Connection {
    /// Active open: SYN-SENT. `start` comes from an [`IsnGenerator`](super::IsnGenerator); `mss` is what a
    /// segment on this interface can carry, its MTU less the IP and the fixed TCP header (RFC 9293 §3.7.1).
    pub fn connect(
        config: Arc<Config>,
        tuple: FourTuple,
        start: impl Into<Start>,
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
            scales: false,
            ecn: Ecn::offering(config.extensions.ecn, config.congestion.exact_ecn()),
            passive: false,
            recv: Receiver::new(SeqNumber(0), &config, mss, 0, now),
            send,
            timers: Timers::new(),
            stats: Counts::default(),
            last_received: now,
            keepalive: KeepaliveProbes::default(),
            clock: start.clock,
            path: PathMtu::new(mss, tuple.remote.is_ipv6(), config.path_mtu.min),
            events: ArrayVec::new(),
            config,
            local_port: tuple.local.port(),
            remote_port: tuple.remote.port(),
            v6: tuple.remote.is_ipv6(),
        }
    }

    /// Passive open by `syn`, a segment with SYN and neither ACK nor RST: SYN-RECEIVED (RFC 9293
    /// §3.10.7.2). `start` and `mss` as for [`connect`](Self::connect). Text on the SYN is not taken, the
    /// peer sends it again.
    pub fn accept(
        config: Arc<Config>,
        tuple: FourTuple,
        start: impl Into<Start>,
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

    /// Takes the peer's SYN: its number, and what both sides agree on.
    pub(super) fn negotiate(&mut self, syn: &Segment<'_>, now: Instant) {
        let config = &self.config;
        let options = &syn.options;
        // RFC 7323 §2.3: a larger shift is taken for 14. §2.2: both or none.
        let scale =
            options.window_scale.filter(|_| config.extensions.window_scale).map(|s| s.min(14));
        self.scales = scale.is_some();
        self.send.window_shift = scale.unwrap_or(0);
        let shift = if scale.is_some() { config.window_shift() } else { 0 };
        self.send.sack = config.extensions.sack && options.sack_permitted; // RFC 2018 §2
        self.timestamps = config.extensions.timestamps && options.timestamps.is_some(); // RFC 7323 §3.2
        self.ecn.negotiate(syn, config.extensions.ecn);
        // RFC 9293 §3.7.1 MUST-15
        let peer_mss = options.mss.unwrap_or_else(|| default_mss(self.v6)).max(config.min_mss);
        self.send.size.settle(peer_mss, self.timestamps);
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

    /// SYN and ACK with this window were sent before there was a connection.
    pub(super) fn syn_answered_without_state(&mut self, window: u16) {
        self.syn.due = false;
        self.syn.unmeasured = true;
        self.syn.window = window;
        self.recv.offered(window);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Events for [`poll_event`](Self::poll_event).
    pub fn next_event(&self) -> Option<Event> {
        self.events.first().copied()
    }

    /// The next thing to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_at(0)
    }

    /// No more data after what the source has now: a FIN follows it. Data still arrives until the peer
    /// closes too (RFC 9293 §3.10.4). Before the connection is established by our SYN, that ends it.
    pub fn close(&mut self) {
        match self.state {
            State::SynSent => self.delete(CloseReason::Aborted),
            _ => self.send.fin_queued = true,
        }
    }

    /// Ends the connection at once with a reset, which the next
    /// [`poll_transmit`](Self::poll_transmit) sends (RFC 9293 §3.10.5).
    pub fn abort(&mut self, now: Instant) {
        use State::*;
        if matches!(self.state, SynReceived | Established | FinWait1 | FinWait2 | CloseWait) {
            self.reset(now);
        }
        self.delete(CloseReason::Aborted);
    }

    /// As [`abort`](Self::abort), with a reset also in CLOSING, LAST-ACK and TIME-WAIT, where RFC 9293 §3.10.5 sends none: what
    /// the peer has sent, its FIN too, is not to be acknowledged.
    #[cold]
    pub fn abort_with_reset(&mut self, now: Instant) {
        if !matches!(self.state, State::Closed | State::SynSent) {
            self.reset(now);
        }
        self.delete(CloseReason::Aborted);
    }

    /// A reset with this sequence number is sent next.
    #[cold]
    pub(super) fn reset_from(&mut self, seq: SeqNumber) {
        self.stats.rare().reset = Some(seq);
    }

    /// True when bytes from `seq` on have been sent and not acknowledged: an ICMP message about such a
    /// segment may be accepted (RFC 5927 §4.1).
    pub fn is_in_flight(&self, seq: SeqNumber) -> bool {
        let seq = self.send.una.near(seq);
        self.send.una <= seq && seq < self.send.nxt
    }

    /// ISS.
    pub fn iss(&self) -> SeqNumber {
        self.send.iss().wire()
    }

    /// SND.NXT: a new incarnation of the connection begins beyond it (RFC 9293 §3.6.1).
    pub fn snd_nxt(&self) -> SeqNumber {
        self.send.nxt.wire()
    }

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// Our port and the peer's.
    pub fn ports(&self) -> (u16, u16) {
        (self.local_port, self.remote_port)
    }

    /// Effective maximum segment size: payload bytes of a data segment, options deducted (RFC 9293
    /// §3.7.1). Meaningful once connected.
    pub fn emss(&self) -> usize {
        self.send.emss()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats.stats();
        stats.recv.bytes = self.recv.bytes();
        stats.bytes_out = self.send.bytes();
        stats.bytes_acknowledged = self.bytes_acknowledged();
        stats
    }

    /// Bytes that the peer has acknowledged, the FIN counted.
    pub fn bytes_acknowledged(&self) -> u64 {
        self.send.una.since(self.send.iss().plus(1))
    }

    /// Smoothed round-trip time, once measured.
    pub fn round_trip(&self) -> Option<std::time::Duration> {
        self.send.recovery.rtt().srtt().map(Into::into)
    }

    /// Present condition.
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
            ecn: self.ecn.sends(),
            send_window_shift: self.scales.then_some(self.send.window_shift),
            receive_window_shift: self.recv.shift,
        }
    }

    /// What limits the sender, and since when.
    pub fn limits(&self, now: Instant) -> LimitInfo {
        self.stats.limits.info(now)
    }

    /// Bytes by which the receive window has grown.
    pub fn window_growth(&self) -> u64 {
        self.recv.grown(&self.config)
    }

    /// The fraction of what is sent that meets congestion, where the congestion controller keeps an estimate of
    /// it (RFC 8257 §3.3).
    pub fn marked_fraction(&self) -> Option<f64> {
        self.send.recovery.cc().marked_fraction()
    }

    /// When the last segment of the peer that was not dropped arrived.
    pub fn idle_since(&self) -> Instant {
        self.last_received
    }

    /// True while what was retransmitted after a time-out is not acknowledged, or a probe of a closed window not answered.
    pub fn is_timing_out(&self) -> bool {
        self.unanswered() > 0
    }

    /// Time-outs in a row without an answer: of retransmissions, or of probes while the peer's window is closed.
    pub(super) fn unanswered(&self) -> u32 {
        match self.send.window.is_closed() && self.state.is_synchronized() {
            true => self.send.probes.unanswered(),
            false => self.send.recovery.timeouts_in_a_row(),
        }
    }

    /// The connection makes no progress. To be called when its timers were handled.
    pub fn stall(&self, now: Instant) -> Option<Stall> {
        let timeouts = self.unanswered();
        if timeouts == 0 || !self.state.is_synchronized() {
            return None;
        }
        let silent = now.saturating_since(self.send.progress_at);
        let next = silent + Duration::from(self.send.recovery.rtt().rto(&self.config));
        Stall::of(timeouts, next >= self.config.limits.retransmission, silent)
    }

    /// True after several retransmissions without an answer: the neighbour entry or the route may be
    /// wrong (R1 of RFC 9293 §3.8.3, MUST-20 (b)).
    pub fn path_suspect(&self) -> bool {
        self.unanswered() >= R1
    }

    /// In TIME-WAIT, true when `seg` is a SYN that may open the connection anew: replace this connection
    /// by a new [`accept`](Self::accept) (RFC 9293 §3.6.1 MAY-2, RFC 6191 §2).
    #[inline]
    pub fn may_reopen(&self, seg: &Segment<'_>) -> bool {
        self.state == State::TimeWait && self.is_reopened_by(seg)
    }

    fn is_reopened_by(&self, seg: &Segment<'_>) -> bool {
        let syn = seg.flags.has(Flags::SYN) && !seg.flags.any(Flags::ACK.with(Flags::RST));
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

    /// To be called on an idle connection: frees the memory that it needs only while something is in flight or
    /// missing. Its behaviour does not change.
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

    /// True when it has none of the memory that [`shrink`](Self::shrink) frees.
    pub fn is_at_rest(&self) -> bool {
        self.send.out.is_blank() && self.recv.is_at_rest() && self.timers.next().is_none()
    }

    // --- shared by the other files ------------------------------------------------------------------

    /// Makes a transition and returns true; an illegal one changes nothing and returns false.
    pub(super) fn go(&mut self, by: Transition) -> bool {
        let next = self.state.next(by);
        debug_assert!(next.is_some(), "{} by {by:?}", self.state);
        if let Some(state) = next {
            self.state = state;
        }
        next.is_some()
    }

    /// At most one of each kind ever happens, so there is room.
    pub(super) fn push_event(&mut self, event: Event) {
        if self.events.try_push(event).is_err() {
            debug_assert!(false, "event {event:?} pushed too often");
        }
    }

    /// CLOSED, with an event unless there was one before (on entering TIME-WAIT).
    pub(super) fn delete(&mut self, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        let reported = self.state == State::TimeWait;
        self.go(Transition::Delete);
        self.stop();
        if !reported {
            self.push_event(Event::Closed(reason));
        }
    }

    /// Nothing is due any more but a reset.
    pub(super) fn stop(&mut self) {
        self.timers.stop_all();
        self.syn.due = false;
        self.keepalive.due = false;
        self.recv.ack_now = false;
        self.recv.owed = 0;
    }

    /// ESTABLISHED.
    pub(super) fn connected(&mut self, now: Instant) {
        self.go(Transition::SynAcked);
        self.syn.due = false;
        self.timers.stop(Timer::Retransmit);
        self.send.established(&self.config, self.syn.lost);
        self.send.progress_at = now;
        self.push_event(Event::Connected);
        if let Some(keepalive) = self.config.keepalive {
            self.timers.set(Timer::Keepalive, now + keepalive.idle);
        }
    }

    /// TSval now: milliseconds (RFC 7323 §5.4).
    pub(super) fn ts_now(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.clock)
    }

    /// TSval and TSecr of a segment sent now, if they are used.
    fn stamps(&self, now: Instant) -> Option<Timestamps> {
        self.timestamps.then(|| Timestamps {
            val: self.ts_now(now),
            ecr: self.recv.ts_recent(), // RFC 7323 §4.3 (3)
        })
    }

    /// The header of segments with data that are sent now.
    #[inline(always)]
    pub(super) fn data_header(&self, now: Instant, flags: Flags, window: u16) -> DataHeader {
        let flags = flags.with(Flags::ACK).with(self.ecn.ack_flags());
        DataHeader::new(self.ports(), self.recv.nxt.wire(), flags, window, self.stamps(now))
    }

    /// A segment of this connection with its acknowledgement, without payload. `seq` and `window` are the
    /// caller's to choose.
    pub(super) fn header(
        &self,
        now: Instant,
        seq: ExtSeq,
        flags: Flags,
        window: u16,
    ) -> Segment<'static> {
        let timestamps = self.stamps(now);
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

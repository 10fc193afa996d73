//! Ends of a stream: graceful close, half-close, error, abort (RFC 5041 §6.2). An orderly close reports success to the
//! peer (docs/protocol.md §6). After an error, an error message therefore precedes the FIN, or a reset replaces the
//! FIN.

use super::upper::{FullOperation, Stage};
use super::{CloseReason, Context, Endpoint, State, TcpReason};
use crate::mpa::{MpaError, StartupError};
use crate::tcp;
use base::Instant;
use ddp::RegionMemory;
use ddp::lifecycle::{DeadlineOutcome, FinalError, ShutdownOutcome};
use transport::recorder::{Kind, Record};

impl<M: RegionMemory> Endpoint<M> {
    /// Handles an error that MPA or DDP reports. MPA and DDP report an error once all data before the
    /// error has arrived.
    pub(super) fn check_errors(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        if !self.lifecycle.is_receiving() {
            return;
        }
        let Some(full) = self.upper.full() else { return };
        if let Some(why) = CloseReason::from_stream(&full.stream) {
            // RFC 5040 §6.2.1: the peer's Terminate is followed by a graceful close, without a Terminate in return.
            self.fail_with(why, FinalError::Ulp, now, cx);
        } else if let Some(error) = full.receiver.error() {
            self.fail_mpa(error, now, cx);
        } else if let Some(why) = full.stream.failure() {
            self.abort_for(CloseReason::DdpFailed(why), now, cx);
        }
    }

    /// Handles the peer's FIN, received in order.
    pub(super) fn on_peer_closed(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        match self.lifecycle.state() {
            State::Connecting | State::Startup | State::Deciding | State::Readying => {
                self.abort_for(TcpReason::Startup(StartupError::Closed).into(), now, cx);
            }
            State::Established | State::Closing => {
                self.lifecycle.on_peer_closed();
                let Some(full) = self.upper.full_mut() else { return };
                self.lifecycle.pending.peer_close = full.receiver.is_blocked();
                if self.lifecycle.pending.peer_close {
                    // MPA still holds data before the FIN, because DDP has refused the data.
                    return;
                }
                // RFC 5044 §8, code 1: the peer closed inside an FPDU.
                if let Some(error) = full.receiver.on_peer_closed(cx.hold) {
                    self.fail_mpa(error, now, cx);
                    return;
                }
                full.stream.on_peer_closed();
                let closing = self.lifecycle.state() == State::Closing;
                if closing && self.lifecycle.is_unconfirmed(&full.stream) {
                    return self.fail_ulp(now, cx);
                }
                // RFC 5041 §6.2.1: the ULP may still send, then closes.
                self.wait_for_ulp(now);
            }
            State::Failing if self.lifecycle.pending.reset => {
                self.abort_for(self.lifecycle.close_reason(), now, cx);
            }
            State::Failing | State::Closed => {}
        }
    }

    /// Handles the end of the TCP connection.
    pub(super) fn on_tcp_closed(&mut self, tcp: tcp::CloseReason, cx: &mut Context<'_, M>) {
        if self.lifecycle.state() == State::Closed {
            return;
        }
        let tcp_reason = TcpReason::from_tcp(tcp, self.lifecycle.is_peer_closed());
        let began_gracefully = self.lifecycle.reason().is_some_and(CloseReason::is_graceful);
        if began_gracefully && !tcp_reason.is_graceful() {
            self.lifecycle.replace_reason(tcp_reason);
        } else {
            self.lifecycle.set_first_reason(tcp_reason);
        }
        match self.upper.full_mut() {
            Some(full) => {
                self.lifecycle.close(Some(&mut full.stream), cx.buffers);
                full.receiver.discard(cx.hold);
            }
            None => {
                self.lifecycle.close::<M>(None, cx.buffers);
                self.upper.stage = Stage::Discarding;
            }
        }
        cx.hold.windows_mut().release(self.conn.window_growth());
        self.lifecycle.pending.report = true;
    }

    /// Starts a graceful close.
    pub(super) fn shutdown_for(&mut self, reason: CloseReason, now: Instant) {
        match self.lifecycle.shutdown(reason) {
            ShutdownOutcome::StartupEnded => {
                self.upper.stage = Stage::Discarding;
                self.close_tcp(now);
            }
            ShutdownOutcome::Begun => {
                if let Some(full) = self.upper.full() {
                    self.lifecycle.record_local_close(&full.stream);
                }
                self.wait_for_peer(now);
                self.close_when_sendable();
            }
            ShutdownOutcome::NoChange => {}
        }
    }

    /// Closes TCP's send direction; the FIN follows the queued data. Defers the close in three cases:
    /// - The ULP holds a Read of the peer, which must be answered first.
    /// - This end is a responder with unsent data and may not send yet (RFC 5044 §7.1.2 (4)).
    /// - A Read of this end awaits its response. Many peers close both directions when they
    ///   receive a FIN, and would not send the response.
    ///
    /// The last two cases apply only while the peer's direction is open.
    pub(super) fn close_when_sendable(&mut self) {
        let peer_open = !self.lifecycle.is_peer_closed();
        let waits = |full: &FullOperation<M>| {
            let waits = || !full.may_send() && full.stream.has_unsent();
            full.stream.holds_reads() || peer_open && (full.stream.awaits_response() || waits())
        };
        self.lifecycle.pending.close = self.upper.full().is_some_and(waits);
        if !self.lifecycle.pending.close {
            self.conn.close();
        }
    }

    /// Ends the stream with a reset.
    pub(super) fn abort_for(&mut self, reason: CloseReason, now: Instant, cx: &mut Context<'_, M>) {
        if self.lifecycle.state() == State::Closed {
            return;
        }
        self.lifecycle.set_first_reason(reason);
        // The next `poll_transmit` sends the reset. TCP's queued events are obsolete.
        match self.lifecycle.pending.reset {
            true => self.conn.abort_with_reset(now),
            false => self.conn.abort(now),
        }
        while self.conn.poll_event().is_some() {}
        self.on_tcp_closed(tcp::CloseReason::Aborted, cx);
    }

    /// Discards further received data and closes: the FIN follows the queued data.
    pub(super) fn discard_and_close(&mut self, reason: CloseReason, now: Instant) {
        self.lifecycle.fail(reason);
        self.close_tcp(now);
    }

    /// Closes TCP's send direction and starts the time-out for the peer's close.
    fn close_tcp(&mut self, now: Instant) {
        self.conn.close();
        self.wait_for_peer(now);
    }

    /// Handles the expiry of the lifecycle's deadline.
    pub(super) fn on_deadline(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        // Progress extends the deadline, except after an error.
        let progress = match self.lifecycle.state() {
            // The ULP has not polled all events yet, so it cannot close.
            State::Established if self.pending_events() > 0 => u64::MAX,
            // The ULP itself limits the time for which it holds a Read.
            State::Closing if self.upper.full().is_some_and(|f| f.stream.holds_reads()) => u64::MAX,
            State::Closing | State::Established => self.bytes_moved(),
            _ => 0,
        };
        match self.lifecycle.on_deadline(progress) {
            DeadlineOutcome::Startup | DeadlineOutcome::Readying => {
                self.abort_for(TcpReason::Startup(StartupError::Timeout).into(), now, cx);
            }
            DeadlineOutcome::Progress if self.lifecycle.state() == State::Established => {
                self.wait_for_ulp(now)
            }
            DeadlineOutcome::Progress => self.wait_for_peer(now),
            DeadlineOutcome::Ulp => self.abort_for(CloseReason::UlpTimeout, now, cx),
            DeadlineOutcome::Teardown => {
                if self.lifecycle.reason() == Some(&CloseReason::LocalShutdown) {
                    self.lifecycle.replace_reason(CloseReason::PeerLingers);
                }
                self.abort_for(CloseReason::PeerLingers, now, cx);
            }
            DeadlineOutcome::NoChange => {}
        }
    }

    /// Fails the stream because of a well-formed but unsuitable reply (RFC 6581 §9), or a local error.
    pub(super) fn fail_startup(
        &mut self,
        error: StartupError,
        now: Instant,
        cx: &mut Context<'_, M>,
    ) {
        self.fail_with(TcpReason::Startup(error).into(), mpa_error(error.code()), now, cx);
    }

    fn fail_mpa(&mut self, error: MpaError, now: Instant, cx: &mut Context<'_, M>) {
        self.fail_with(TcpReason::Mpa(error).into(), mpa_error(error.code()), now, cx);
    }

    /// Fails the stream: sends the last message or the Terminate, then the FIN (RFC 5041 §7.1, RFC 5040 §6.2.1).
    ///
    /// No error is sent after our FIN, by a responder before the peer's first FPDU, or if the policy disables it. A
    /// reset then replaces error and FIN, because an orderly close would report a successful transfer to the peer
    /// (docs/protocol.md §6). Unacknowledged data is retransmitted before the reset.
    pub(super) fn fail_with(
        &mut self,
        reason: CloseReason,
        final_error: FinalError,
        now: Instant,
        cx: &mut Context<'_, M>,
    ) {
        // No last message can be sent after our FIN.
        let open = matches!(self.conn.state(), tcp::State::Established | tcp::State::CloseWait);
        let wanted = self.config.policy.last_message && open;
        let by_peer = matches!(reason, CloseReason::Terminated(_));
        let kind = if by_peer { Kind::TerminateReceived } else { Kind::ErrorFound };
        // A malformed Terminate of the peer has no error numbers and is not answered.
        let local = self.upper.full().filter(|_| final_error == FinalError::Local);
        let numbers =
            local.map_or(reason.numbers(), |full| Some(full.stream.local_error_numbers()));
        if let Some(numbers) = numbers {
            self.conn.record(Record::from_error(now, kind, 0, numbers));
        }
        let (mut is_reported, mut in_flight) = (by_peer, false);
        if let Some(full) = self.upper.full_mut() {
            // RFC 5044 §8: after an error no FPDU is passed to DDP.
            full.receiver.discard(cx.hold);
            let may_send = wanted && full.may_send();
            is_reported |= may_send;
            if let Some(numbers) = numbers.filter(|_| may_send && !by_peer) {
                self.conn.record(Record::from_error(now, Kind::TerminateSent, 0, numbers));
            }
            final_error.post(&mut full.stream, may_send);
            in_flight = full.stream.outstanding() > 0;
        }
        self.lifecycle.fail_by_error(reason);
        self.lifecycle.pending.reset = !is_reported;
        match is_reported || in_flight {
            true => self.close_tcp(now),
            false => self.abort_for(self.lifecycle.close_reason(), now, cx),
        }
    }

    /// Starts the time-out for the ULP's close after the peer's close.
    fn wait_for_ulp(&mut self, now: Instant) {
        let progress = self.bytes_moved();
        self.lifecycle.set_ulp_deadline(now, self.config.policy.half_closed_timeout, progress);
    }

    fn wait_for_peer(&mut self, now: Instant) {
        let progress = self.bytes_moved();
        self.lifecycle.set_teardown_deadline(now, self.config.policy.teardown_timeout, progress);
    }

    /// Returns the progress of TCP: bytes received, plus bytes that the peer has acknowledged.
    fn bytes_moved(&self) -> u64 {
        let stats = self.conn.stats();
        stats.recv.bytes + stats.bytes_acknowledged
    }
}

/// Returns the final error for an MPA error code (RFC 5044 §8).
fn mpa_error(code: u8) -> FinalError {
    FinalError::Llp { error_type: MpaError::ETYPE, code }
}

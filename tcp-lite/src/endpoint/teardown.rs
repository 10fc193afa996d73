//! Ends of a stream: graceful close, half-close, error, abort (RFC 5041 §6.2).

use super::upper::{Full, Stage};
use super::{CloseReason, Context, Endpoint, State, TcpReason};
use crate::mpa::{MpaError, StartupError};
use crate::tcp;
use base::Instant;
use ddp::RegionMemory;
use ddp::lifecycle::{Expired, FinalError, Shutdown};
use transport::recorder::{Kind, Record};

impl<M: RegionMemory> Endpoint<M> {
    /// Handles errors that MPA or DDP found in order.
    pub(super) fn look_at_errors(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        if !self.life.is_receiving() {
            return;
        }
        let Some(full) = self.upper.full() else { return };
        if let Some(why) = CloseReason::of_stream(&full.stream) {
            // RFC 5040 §6.2.1: after the peer's Terminate a graceful close, without an answer to it.
            self.fail_with(why, FinalError::Found, now, cx);
        } else if let Some(error) = full.receiver.error() {
            self.fail_by_mpa(error, now, cx);
        } else if let Some(why) = full.stream.failure() {
            self.abort_for(CloseReason::DdpFailed(why), now, cx);
        }
    }

    /// Handles the peer's FIN, received in order.
    pub(super) fn remote_closed(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        match self.life.state() {
            State::Connecting | State::Startup | State::Deciding | State::Readying => {
                self.abort_for(TcpReason::Startup(StartupError::Closed).into(), now, cx);
            }
            State::Established | State::Closing => {
                self.life.on_peer_closed();
                let Some(full) = self.upper.full_mut() else { return };
                self.life.due.peer_close = full.receiver.is_blocked();
                if self.life.due.peer_close {
                    // Data before the FIN has not been handed up completely.
                    return;
                }
                // RFC 5044 §8 code 1
                if let Some(error) = full.receiver.closed(cx.hold) {
                    self.fail_by_mpa(error, now, cx);
                    return;
                }
                full.stream.peer_closed();
                let closing = self.life.state() == State::Closing;
                if closing && self.life.is_unconfirmed(&full.stream) {
                    return self.fail_ulp(now, cx);
                }
                // RFC 5041 §6.2.1: the ULP may still send, then closes.
                self.wait_for_ulp(now);
            }
            State::Failing if self.life.due.reset => {
                self.abort_for(self.life.close_reason(), now, cx);
            }
            State::Failing | State::Closed => {}
        }
    }

    /// Handles the end of the TCP connection.
    pub(super) fn finish(&mut self, tcp: tcp::CloseReason, cx: &mut Context<'_, M>) {
        if self.life.state() == State::Closed {
            return;
        }
        let of_tcp = TcpReason::of_tcp(tcp, self.life.is_peer_closed());
        let began_gracefully = self.life.reason().is_some_and(CloseReason::is_graceful);
        if began_gracefully && !of_tcp.is_graceful() {
            self.life.replace_reason(of_tcp);
        } else {
            self.life.set_first_reason(of_tcp);
        }
        match self.upper.full_mut() {
            Some(full) => {
                self.life.close(Some(&mut full.stream), cx.buffers);
                full.receiver.discard(cx.hold);
            }
            None => {
                self.life.close::<M>(None, cx.buffers);
                self.upper.stage = Stage::Over;
            }
        }
        cx.hold.windows_mut().release(self.conn.window_growth());
        self.life.due.report = true;
    }

    /// Starts a graceful close.
    pub(super) fn shutdown_for(&mut self, why: CloseReason, now: Instant) {
        match self.life.shutdown(why) {
            Shutdown::StartupEnds => {
                self.upper.stage = Stage::Over;
                self.close_tcp(now);
            }
            Shutdown::Begins => {
                if let Some(full) = self.upper.full() {
                    self.life.confirmed(&full.stream);
                }
                self.wait_for_peer(now);
                self.close_when_sendable();
            }
            Shutdown::NoChange => {}
        }
    }

    /// Closes TCP's send direction; the FIN follows the queued data. The close is deferred in three cases. A
    /// held Read is answered first. A responder with unsent data waits until it may send (RFC 5044 §7.1.2
    /// (4)). A stream that awaits a Read response waits for it, because many peers close both directions on a
    /// FIN. The last two apply only while the peer's direction is open.
    pub(super) fn close_when_sendable(&mut self) {
        let peer_open = !self.life.is_peer_closed();
        let waits = |full: &Full<M>| {
            let waits = || !full.may_send() && full.stream.has_unsent();
            full.stream.holds_reads() || peer_open && (full.stream.awaits_response() || waits())
        };
        self.life.due.close = self.upper.full().is_some_and(waits);
        if !self.life.due.close {
            self.conn.close();
        }
    }

    /// Ends the stream with a reset.
    pub(super) fn abort_for(&mut self, why: CloseReason, now: Instant, cx: &mut Context<'_, M>) {
        if self.life.state() == State::Closed {
            return;
        }
        self.life.set_first_reason(why);
        // The next poll_transmit sends TCP's reset; its queued events are obsolete.
        match self.life.due.reset {
            true => self.conn.abort_with_reset(now),
            false => self.conn.abort(now),
        }
        while self.conn.poll_event().is_some() {}
        self.finish(tcp::CloseReason::Aborted, cx);
    }

    /// Discards further received data and closes: the FIN follows queued data.
    pub(super) fn discard_and_close(&mut self, why: CloseReason, now: Instant) {
        self.life.fail(why);
        self.close_tcp(now);
    }

    /// Closes TCP's send direction and starts the time-out for the peer's close.
    fn close_tcp(&mut self, now: Instant) {
        self.conn.close();
        self.wait_for_peer(now);
    }

    /// Handles the expired lifecycle deadline.
    pub(super) fn deadline_passed(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        // After an error, received data does not extend the deadline.
        let progress = match self.life.state() {
            // The ULP has not taken all data before the peer's close.
            State::Established if self.pending_events() > 0 => u64::MAX,
            // The ULP bounds the time for which it holds a Read.
            State::Closing if self.upper.full().is_some_and(|f| f.stream.holds_reads()) => u64::MAX,
            State::Closing | State::Established => self.moved(),
            _ => 0,
        };
        match self.life.on_deadline(progress) {
            Expired::Startup | Expired::Readying => {
                self.abort_for(TcpReason::Startup(StartupError::Timeout).into(), now, cx);
            }
            Expired::Progress if self.life.state() == State::Established => self.wait_for_ulp(now),
            Expired::Progress => self.wait_for_peer(now),
            Expired::Ulp => self.abort_for(CloseReason::UlpTimeout, now, cx),
            Expired::Teardown => {
                if self.life.reason() == Some(&CloseReason::LocalShutdown) {
                    self.life.replace_reason(CloseReason::PeerLingers);
                }
                self.abort_for(CloseReason::PeerLingers, now, cx);
            }
            Expired::NoChange => {}
        }
    }

    /// Fails the stream because of an unsuitable but well-formed reply (RFC 6581 §9).
    pub(super) fn fail_by_startup(
        &mut self,
        error: StartupError,
        now: Instant,
        cx: &mut Context<'_, M>,
    ) {
        self.fail_with(TcpReason::Startup(error).into(), mpa_error(error.code()), now, cx);
    }

    fn fail_by_mpa(&mut self, error: MpaError, now: Instant, cx: &mut Context<'_, M>) {
        self.fail_with(TcpReason::Mpa(error).into(), mpa_error(error.code()), now, cx);
    }

    /// Fails the stream: sends the last message or the Terminate, then the FIN (RFC 5041 §7.1, RFC 5040
    /// §6.2.1). No error can be sent before the first FPDU, after our FIN, or if the policy turns it off.
    /// Then a reset replaces both, because the peer would take an orderly close for a successful transfer
    /// (docs/protocol.md §6). Unacknowledged data is retransmitted before the reset.
    pub(super) fn fail_with(
        &mut self,
        why: CloseReason,
        final_error: FinalError,
        now: Instant,
        cx: &mut Context<'_, M>,
    ) {
        // After our FIN no last message can be sent.
        let open = matches!(self.conn.state(), tcp::State::Established | tcp::State::CloseWait);
        let wanted = self.config.policy.last_message && open;
        let by_peer = matches!(why, CloseReason::Terminated(_));
        let kind = if by_peer { Kind::TerminateReceived } else { Kind::ErrorFound };
        // A malformed Terminate has no numbers and no answer.
        let local = self.upper.full().filter(|_| final_error == FinalError::Local);
        let numbers = local.map_or(why.numbers(), |full| Some(full.stream.local_error_numbers()));
        if let Some(numbers) = numbers {
            self.conn.record(Record::of_error(now, kind, 0, numbers));
        }
        let (mut is_reported, mut in_flight) = (by_peer, false);
        if let Some(full) = self.upper.full_mut() {
            // RFC 5044 §8: no FPDU is handed up after an error.
            full.receiver.discard(cx.hold);
            let may_send = wanted && full.may_send();
            is_reported |= may_send;
            if let Some(numbers) = numbers.filter(|_| may_send && !by_peer) {
                self.conn.record(Record::of_error(now, Kind::TerminateSent, 0, numbers));
            }
            final_error.post(&mut full.stream, may_send);
            in_flight = full.stream.outstanding() > 0;
        }
        self.life.fail_by_error(why);
        self.life.due.reset = !is_reported;
        match is_reported || in_flight {
            true => self.close_tcp(now),
            false => self.abort_for(self.life.close_reason(), now, cx),
        }
    }

    /// Starts the time-out for the ULP's close, after the peer's close.
    fn wait_for_ulp(&mut self, now: Instant) {
        let progress = self.moved();
        self.life.wait_for_ulp(now, self.config.policy.half_closed_timeout, progress);
    }

    fn wait_for_peer(&mut self, now: Instant) {
        let progress = self.moved();
        self.life.wait_for_peer(now, self.config.policy.teardown_timeout, progress);
    }

    /// Returns the bytes that TCP has moved in both directions.
    fn moved(&self) -> u64 {
        let stats = self.conn.stats();
        stats.recv.bytes + stats.bytes_acknowledged
    }
}

/// Returns the final error with an MPA error code (RFC 5044 §8).
fn mpa_error(code: u8) -> FinalError {
    FinalError::Llp { error_type: MpaError::ETYPE, code }
}

//! How a stream ends: gracefully, half closed, after an error, abortively (RFC 5041 §6.2).

use super::upper::{Full, Stage};
use super::{CloseReason, Context, Endpoint, State, TcpReason};
use crate::mpa::{MpaError, StartupError};
use crate::tcp;
use base::Instant;
use ddp::RegionMemory;
use ddp::lifecycle::{Expired, FinalError, Shutdown};
use transport::recorder::{Kind, Record};

impl<M: RegionMemory> Endpoint<M> {
    /// Errors that the order has reached, found by MPA or by DDP.
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

    /// The peer's FIN came in order.
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
                    // Not all that came before the FIN has been handed up.
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
                // RFC 5041 §6.2.1: the ULP may still answer, and closes.
                self.wait_for_ulp(now);
            }
            State::Failing if self.life.due.reset => {
                self.abort_for(self.life.close_reason(), now, cx);
            }
            State::Failing | State::Closed => {}
        }
    }

    /// TCP is over.
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

    /// Closes gracefully.
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

    /// Gives TCP the close: its FIN follows what the source has. A responder with something to send
    /// waits until it may (RFC 5044 §7.1.2 (4)), if that can still happen; so does who awaits the response
    /// to a Read, because many peers close both ways when they are closed to. A Read that the ULP holds is answered first.
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
        // TCP has nothing more to say; the next poll_transmit sends its reset.
        match self.life.due.reset {
            true => self.conn.abort_with_reset(now),
            false => self.conn.abort(now),
        }
        while self.conn.poll_event().is_some() {}
        self.finish(tcp::CloseReason::Aborted, cx);
    }

    /// Takes nothing more, and closes: the FIN follows what still has to be sent.
    pub(super) fn discard_and_close(&mut self, why: CloseReason, now: Instant) {
        self.life.fail(why);
        self.close_tcp(now);
    }

    /// The FIN follows what still has to be sent; the peer has so long to close, too.
    fn close_tcp(&mut self, now: Instant) {
        self.conn.close();
        self.wait_for_peer(now);
    }

    /// The deadline has passed.
    pub(super) fn deadline_passed(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        // After an error the wait is not longer because the peer goes on sending.
        let progress = match self.life.state() {
            // The ULP has not taken all that came before the peer's close.
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

    /// The reply was good and is unacceptable (RFC 6581 §9).
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

    /// An error: the last message or the Terminate, then the FIN (RFC 5041 §7.1, RFC 5040 §6.2.1). Where the peer cannot be
    /// sent its error, before the first FPDU or behind our FIN, a reset replaces both: the peer would take an orderly close
    /// for a transfer that succeeded (docs/protocol.md §6). What is unacknowledged then is retransmitted before.
    pub(super) fn fail_with(
        &mut self,
        why: CloseReason,
        final_error: FinalError,
        now: Instant,
        cx: &mut Context<'_, M>,
    ) {
        // After our FIN there is no place for it.
        let open = matches!(self.conn.state(), tcp::State::Established | tcp::State::CloseWait);
        let wanted = self.config.policy.last_message && open;
        let by_peer = matches!(why, CloseReason::Terminated(_));
        let kind = if by_peer { Kind::TerminateReceived } else { Kind::ErrorFound };
        // A Terminate that cannot be read has no numbers, and no answer.
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

    /// Half closed by the peer: the ULP has so long to close, too.
    fn wait_for_ulp(&mut self, now: Instant) {
        let progress = self.moved();
        self.life.wait_for_ulp(now, self.config.policy.half_closed_timeout, progress);
    }

    fn wait_for_peer(&mut self, now: Instant) {
        let progress = self.moved();
        self.life.wait_for_peer(now, self.config.policy.teardown_timeout, progress);
    }

    /// Bytes that TCP has moved either way.
    fn moved(&self) -> u64 {
        let stats = self.conn.stats();
        stats.recv.bytes + stats.bytes_acknowledged
    }
}

/// An error of MPA with this code (RFC 5044 §8).
fn mpa_error(code: u8) -> FinalError {
    FinalError::Llp { error_type: MpaError::ETYPE, code }
}

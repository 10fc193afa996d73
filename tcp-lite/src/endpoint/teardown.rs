//! How a stream ends: gracefully, half closed, after an error, abortively (RFC 5041 §6.2).

use super::upper::{Full, Stage};
use super::{CloseReason, Context, Endpoint, OnPeerClose, State};
use crate::mpa::{MpaError, StartupError};
use crate::tcp;
use base::Instant;
use ddp::{Failure, RegionMemory};

/// What a stream says at its end.
enum LastWord {
    /// What the ULP's protocol found wrong, if anything.
    Found,
    /// An error of MPA with this code.
    Mpa(u8),
}

impl<M: RegionMemory> Endpoint<M> {
    /// Errors that the order has reached, found by MPA or by DDP.
    pub(super) fn look_at_errors(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        if !matches!(self.state, State::Readying | State::Established | State::Closing) {
            return;
        }
        let Some(full) = self.upper.full() else { return };
        if let Some(error) = full.stream.error() {
            self.fail_with(CloseReason::of_ulp(error), LastWord::Found, now, cx);
        } else if let Some(said) = full.stream.terminated_by_peer() {
            // RFC 5040 §6.2.1: closed gracefully; nothing is said to it.
            let why = CloseReason::Terminated(Box::new(said.clone()));
            self.fail_with(why, LastWord::Found, now, cx);
        } else if let Some(error) = full.receiver.error() {
            self.fail_by_mpa(error, now, cx);
        } else if let Some(why) = full.stream.failure() {
            self.abort_for(CloseReason::DdpFailed(why), cx);
        }
    }

    /// The peer's FIN came in order.
    pub(super) fn remote_closed(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        match self.state {
            State::Connecting | State::Startup | State::Deciding | State::Readying => {
                self.abort_for(CloseReason::Startup(StartupError::Closed), cx);
            }
            State::Established | State::Closing => {
                self.peer_closed = true;
                let Some(full) = self.upper.full_mut() else { return };
                self.fin_waits = full.receiver.is_blocked();
                if self.fin_waits {
                    // Not all that came before the FIN has been handed up.
                    return;
                }
                // RFC 5044 §8 code 1
                if let Some(error) = full.receiver.closed(cx.hold) {
                    self.fail_by_mpa(error, now, cx);
                    return;
                }
                full.stream.peer_closed();
                if self.config.on_peer_close == OnPeerClose::Finish {
                    self.shutdown_for(CloseReason::PeerShutdown, now);
                }
            }
            State::Failing | State::Closed => {}
        }
    }

    /// TCP is over.
    pub(super) fn finish(&mut self, tcp: tcp::CloseReason, cx: &mut Context<'_, M>) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.rare.deadline = None;
        let peer_first = self.peer_closed;
        self.because(CloseReason::of_tcp(tcp, peer_first));
        if tcp != tcp::CloseReason::Normal
            && let Some(reason) = &mut self.rare.reason
            && reason.is_graceful()
        {
            // It had begun gracefully and did not end so.
            **reason = CloseReason::of_tcp(tcp, peer_first);
        }
        let graceful = self.rare.reason.as_ref().is_some_and(|reason| reason.is_graceful());
        let aborted = self.rare.reason.as_deref() == Some(&CloseReason::LocalAbort);
        if let Some(full) = self.upper.full_mut() {
            if !graceful || full.stream.outstanding() > 0 {
                full.stream.fail(if aborted { Failure::Aborted } else { Failure::LlpLost });
            }
            full.receiver.discard(cx.hold);
            full.stream.release(cx.buffers);
        } else {
            self.upper.stage = Stage::Over;
        }
        self.report = true;
    }

    /// Closes gracefully.
    pub(super) fn shutdown_for(&mut self, why: CloseReason, now: Instant) {
        match self.state {
            State::Connecting | State::Startup | State::Deciding => {
                self.upper.stage = Stage::Over;
                self.discard_and_close(why, now);
            }
            State::Readying | State::Established => {
                self.because(if self.peer_closed { CloseReason::PeerShutdown } else { why });
                self.state = State::Closing;
                self.be_patient(now);
                self.close_when_sendable();
            }
            State::Closing | State::Failing | State::Closed => {}
        }
    }

    /// Gives TCP the close: its FIN follows what the source has. A responder with something to send
    /// waits until it may (RFC 5044 §7.1.2 (4)), if that can still happen; so does who awaits the response
    /// to a Read, because many peers close both ways when they are closed to.
    pub(super) fn close_when_sendable(&mut self) {
        let waits = |full: &Full<M>| {
            full.stream.awaits_response() || (!full.may_send() && full.stream.has_unsent())
        };
        self.close_waits = !self.peer_closed && self.upper.full().is_some_and(waits);
        if !self.close_waits {
            self.conn.close();
        }
    }

    /// Ends the stream with a reset.
    pub(super) fn abort_for(&mut self, why: CloseReason, cx: &mut Context<'_, M>) {
        if self.state == State::Closed {
            return;
        }
        self.because(why);
        // TCP has nothing more to say; the next poll_transmit sends its reset.
        self.conn.abort();
        while self.conn.poll_event().is_some() {}
        self.finish(tcp::CloseReason::Aborted, cx);
    }

    /// Takes nothing more, and closes: the FIN follows what still has to be sent.
    pub(super) fn discard_and_close(&mut self, why: CloseReason, now: Instant) {
        self.because(why);
        self.state = State::Failing;
        self.conn.close();
        self.be_patient(now);
    }

    /// The deadline has passed.
    pub(super) fn out_of_patience(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        match self.state {
            State::Startup | State::Deciding | State::Readying => {
                self.abort_for(CloseReason::Startup(StartupError::Timeout), cx);
            }
            State::Closing if self.moved() > self.rare.progress => self.be_patient(now),
            State::Closing => {
                if self.rare.reason.as_deref() == Some(&CloseReason::LocalShutdown) {
                    self.rare.reason = Some(Box::new(CloseReason::PeerLingers));
                }
                self.abort_for(CloseReason::PeerLingers, cx);
            }
            State::Failing => self.abort_for(CloseReason::PeerLingers, cx),
            State::Connecting | State::Established | State::Closed => {}
        }
    }

    /// The reply was good and cannot be lived with (RFC 6581 §9).
    pub(super) fn fail_by_startup(
        &mut self,
        error: StartupError,
        now: Instant,
        cx: &mut Context<'_, M>,
    ) {
        let word = LastWord::Mpa(error.code());
        self.fail_with(CloseReason::Startup(error), word, now, cx);
    }

    fn fail_by_mpa(&mut self, error: MpaError, now: Instant, cx: &mut Context<'_, M>) {
        let word = LastWord::Mpa(error.code());
        self.fail_with(CloseReason::Mpa(error), word, now, cx);
    }

    /// An error: the one last message or the Terminate, then the FIN (RFC 5041 §7.1, RFC 5040 §6.2.1).
    fn fail_with(
        &mut self,
        why: CloseReason,
        word: LastWord,
        now: Instant,
        cx: &mut Context<'_, M>,
    ) {
        // A graceful close that was under way is none any more.
        self.rare.reason = None;
        // After our FIN there is no place for it.
        let open = matches!(self.conn.state(), tcp::State::Established | tcp::State::CloseWait);
        let wanted = self.config.last_message && open;
        if let Some(full) = self.upper.full_mut() {
            // RFC 5044 §8: no FPDU is handed up after an error.
            full.receiver.discard(cx.hold);
            match word {
                LastWord::Found if wanted && full.may_send() => full.stream.post_error(),
                LastWord::Mpa(code) if wanted && full.may_send() => {
                    full.stream.post_llp_error(MpaError::ETYPE, code);
                }
                // TCP may have to send again what is out, so that stays until the end.
                _ => full.stream.close_now(),
            }
        }
        self.discard_and_close(why, now);
    }

    /// The first cause stays.
    fn because(&mut self, why: CloseReason) {
        self.rare.reason.get_or_insert_with(|| Box::new(why));
    }

    fn be_patient(&mut self, now: Instant) {
        self.rare.progress = self.moved();
        self.rare.deadline = Some(now + self.config.teardown_timeout);
    }

    fn moved(&self) -> u64 {
        let stats = self.conn.stats();
        stats.octets_in + stats.octets_acknowledged
    }
}

//! Plays a dialogue with another host, sans-IO. The first call of [`Player::handle_timeout`] starts the dialogue. After
//! this call and after each [`Player::input`], the owner drains [`Player::poll_transmit`] and checks
//! [`Player::outcome`]. At the time of [`Player::poll_timeout`] the owner calls `handle_timeout` again.
//!
//! The player decides when a step is due. A [`DialogueCodec`] encodes and compares packets, and decides which packets
//! are permitted although no line expects them: [`segments`] for TCP, [`chunks`] for SCTP. During a `quiet` line, no
//! unexpected packet is permitted.

pub mod chunks;
pub mod segments;

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};

use base::Instant;
use dialogue::script::{Action, Script, ScriptError, StepTime};

use crate::raw::station::TransportPacket;

/// Maximum delay of an acknowledgement (RFC 9293 §3.8.6.3 MUST-40, RFC 9260 §6.2).
const LONGEST_DELAYED_ACK: Duration = Duration::from_millis(500);
/// STag that scripts use by default.
const SCRIPT_STAG: &str = "16";

/// Permitted difference between the time of a line and the arrival of its packet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Relative part, percent of the time since the previous line.
    pub percent: u32,
    /// Absolute part, added to the relative part.
    pub floor: Duration,
    /// Longest wait for a line with time `*`.
    pub max_wait: Duration,
}

impl Default for Tolerance {
    /// Returns 20 % + 20 ms, and ten seconds for `*`.
    fn default() -> Self {
        Tolerance {
            percent: 20,
            floor: Duration::from_millis(20),
            max_wait: Duration::from_secs(10),
        }
    }
}

impl std::str::FromStr for Tolerance {
    type Err = String;

    /// Parses `20%+20ms`, or only one of the two parts. A missing part is zero.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut tolerance = Tolerance { percent: 0, floor: Duration::ZERO, ..Tolerance::default() };
        for part in text.split('+') {
            let wrong = |_| format!("`{part}` is neither N% nor Nms: write 20%+20ms");
            match (part.strip_suffix('%'), part.strip_suffix("ms")) {
                (Some(n), _) => tolerance.percent = n.parse().map_err(wrong)?,
                (_, Some(n)) => tolerance.floor = Duration::from_millis(n.parse().map_err(wrong)?),
                (None, None) => return Err(format!("`{part}`: write 20%+20ms")),
            }
        }
        Ok(tolerance)
    }
}

/// Summary of a dialogue in which the host matched all lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlaySummary {
    /// Number of skipped `event` and `check` lines.
    pub skipped_lines: usize,
    /// Number of the host's acknowledgements that no line expects.
    pub extra_acks: usize,
    /// Number of the host's retransmissions that no line expects.
    pub retransmissions: usize,
}

/// Packets that a host may send although no line expects them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtraPacket {
    /// An acknowledgement with new information.
    Acknowledgement,
    /// A retransmission of data, SYN or FIN; over SCTP, of DATA.
    Retransmission,
}

/// Protocol state of both sides of a dialogue. Encodes, decodes and compares packets.
pub trait DialogueCodec: Debug {
    /// A decoded packet of the host.
    type Packet: Debug;

    /// Decodes a packet; `None` if it belongs to another dialogue.
    ///
    /// # Errors
    /// The packet is damaged.
    fn decode(&mut self, carried: TransportPacket) -> Result<Option<Self::Packet>, String>;

    /// Completes the lines of `script` with values of the host that the script leaves open.
    fn learn(&mut self, script: &mut Script, packet: &Self::Packet);

    /// Builds the packet of a `<` line. Returns the packet and its text for the transcript.
    ///
    /// # Errors
    /// Describes the invalid part of the line.
    fn build_packet(&mut self, line: &Action) -> Result<(TransportPacket, String), String>;

    /// Compares a packet with a `>` line. Returns the rest of the line if the packet matches only the first part of the
    /// line.
    ///
    /// # Errors
    /// Describes the first difference.
    fn compare(&mut self, line: &Action, got: &Self::Packet) -> Result<Option<Action>, String>;

    /// Records the sequence and acknowledgement numbers of a packet that was expected or permitted.
    fn on_matched(&mut self, got: &Self::Packet);

    /// Classifies a packet that no line expects; `None` if the host must not send it.
    fn classify_extra(&self, got: &Self::Packet) -> Option<ExtraPacket>;

    /// Returns true if a `>` line is a pure acknowledgement, which the host may delay.
    fn may_be_delayed(&self, line: &Action) -> bool;

    /// Formats a packet for the transcript.
    fn show(&self, got: &Self::Packet) -> String;

    /// Returns the packet that ends the host's connection after the dialogue; `None` without a connection.
    fn abort_packet(&mut self) -> Option<TransportPacket>;
}

/// A dialogue in progress.
#[derive(Debug)]
pub struct Player<P: DialogueCodec> {
    script: Script,
    codec: P,
    tolerance: Tolerance,
    /// Index of the due step.
    next: usize,
    /// Rest of the due `>` line, if a packet has matched its first part.
    remaining_line: Option<Action>,
    started_at: Option<Instant>,
    /// Time of the previous step.
    last_step_at: Instant,
    /// Time at which the next step is due, or its time range ends.
    wake: Option<Instant>,
    /// Received packets that were not compared with a line yet, with their arrival times.
    arrived: VecDeque<(Instant, P::Packet)>,
    outgoing: VecDeque<TransportPacket>,
    summary: PlaySummary,
    outcome: Option<Result<PlaySummary, ScriptError>>,
    transcript: String,
}

/// Result of executing a step.
enum Progress {
    Done,
    /// The packet matched only the first part of its line.
    Partial,
    /// The step waits until this time or for a packet.
    Until(Instant),
}

impl<P: DialogueCodec> Player<P> {
    /// Creates a player that has not started.
    pub fn new(script: Script, partner: P, tolerance: Tolerance) -> Player<P> {
        Player {
            script,
            codec: partner,
            tolerance,
            next: 0,
            remaining_line: None,
            started_at: None,
            last_step_at: Instant::ZERO,
            wake: None,
            arrived: VecDeque::new(),
            outgoing: VecDeque::new(),
            summary: PlaySummary { skipped_lines: 0, extra_acks: 0, retransmissions: 0 },
            outcome: None,
            transcript: String::new(),
        }
    }

    /// Returns the next packet for the host.
    pub fn poll_transmit(&mut self) -> Option<TransportPacket> {
        self.outgoing.pop_front()
    }

    /// Returns the time at which to call [`Self::handle_timeout`], unless a packet arrives earlier; `None` once the
    /// outcome is known.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wake.filter(|_| self.outcome.is_none())
    }

    /// Returns the result; `None` while the dialogue is in progress.
    pub fn outcome(&self) -> Option<&Result<PlaySummary, ScriptError>> {
        self.outcome.as_ref()
    }

    /// Returns the text of all packets so far.
    pub fn transcript(&self) -> &str {
        &self.transcript
    }

    /// Returns the packet that ends the host's connection after the dialogue; `None` without a connection.
    pub fn abort_packet(&mut self) -> Option<TransportPacket> {
        self.codec.abort_packet()
    }

    /// Processes a packet of the host. Packets of other dialogues are ignored.
    ///
    /// # Errors
    /// The packet is damaged.
    pub fn input(&mut self, now: Instant, carried: TransportPacket) -> Result<(), String> {
        if self.outcome.is_some() {
            return Ok(());
        }
        let Some(packet) = self.codec.decode(carried)? else { return Ok(()) };
        self.codec.learn(&mut self.script, &packet);
        let since = now.saturating_since(self.started_at.unwrap_or(now));
        let _ = writeln!(self.transcript, "{since:?} > {}", self.codec.show(&packet));
        self.arrived.push_back((now, packet));
        self.handle_timeout(now);
        Ok(())
    }

    /// Executes the due steps: sends packets, and checks deadlines.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.started_at.get_or_insert_with(|| {
            self.last_step_at = now;
            now
        });
        while self.outcome.is_none() {
            let line = self.script.steps.get(self.next).map_or(0, |step| step.line);
            match self.step(now) {
                Ok(Some(Progress::Done)) => {
                    self.next += 1;
                    self.remaining_line = None;
                }
                Ok(Some(Progress::Partial)) => {}
                Ok(Some(Progress::Until(time))) => {
                    self.wake = Some(time);
                    return;
                }
                Ok(None) => self.outcome = Some(Ok(self.summary)),
                Err(what) => {
                    let what = format!("{what}\npackets so far:\n{}", self.transcript);
                    self.outcome = Some(Err(ScriptError { line, message: what }));
                }
            }
        }
    }

    /// Executes the next step. Returns `None` at the end of the script.
    fn step(&mut self, now: Instant) -> Result<Option<Progress>, String> {
        let Some(step) = self.script.steps.get(self.next).cloned() else {
            // An unexpected packet within the absolute tolerance after the last line still fails the dialogue.
            let end = self.last_step_at + self.tolerance.floor;
            if now < end {
                return Ok(Some(Progress::Until(end)));
            }
            self.skip_extra();
            return self.check_none_unexpected().map(|()| None);
        };
        let began = self.started_at.unwrap_or(now);
        let at = match step.time {
            StepTime::Absolute(t) => Some(began + t),
            StepTime::Relative(t) => Some(self.last_step_at + t),
            StepTime::Any => None,
        };
        if matches!(step.action, Action::Expect(_) | Action::ExpectPacket(_)) {
            let line = self.remaining_line.clone().unwrap_or(step.action);
            return self.expect(now, &line, at).map(Some);
        }
        // The player neither controls the host (`do`) nor sees its state (`event`, `check`): these lines take no time.
        if matches!(step.action, Action::Do(_) | Action::Event(_) | Action::Check(_)) {
            self.summary.skipped_lines += usize::from(!matches!(step.action, Action::Do(_)));
            return Ok(Some(Progress::Done));
        }
        let at = at.unwrap_or(now);
        if now < at {
            return Ok(Some(Progress::Until(at)));
        }
        match &step.action {
            line @ (Action::Send(_) | Action::SendPacket(_)) => {
                self.skip_extra();
                self.check_none_unexpected()?;
                self.send(now, line)?;
            }
            Action::Quiet => self.check_none_unexpected()?,
            Action::Expect(_) | Action::ExpectPacket(_) => {}
            Action::Do(_) | Action::Event(_) | Action::Check(_) => {}
        }
        self.last_step_at = now;
        Ok(Some(Progress::Done))
    }

    fn send(&mut self, now: Instant, line: &Action) -> Result<(), String> {
        let (carried, words) = self.codec.build_packet(line)?;
        let since = now.saturating_since(self.started_at.unwrap_or(now));
        let _ = writeln!(self.transcript, "{since:?} < {words}");
        self.outgoing.push_back(carried);
        Ok(())
    }

    fn expect(
        &mut self,
        now: Instant,
        line: &Action,
        at: Option<Instant>,
    ) -> Result<Progress, String> {
        let (low, high) = self.time_range(line, at);
        while let Some((time, got)) = self.arrived.pop_front() {
            let difference = match self.codec.compare(line, &got) {
                Ok(rest) => {
                    if time < low || time > high {
                        let since = |t: Instant| t.saturating_since(self.started_at.unwrap_or(t));
                        return Err(format!(
                            "sent at {:?}, expected from {:?} to {:?}",
                            since(time),
                            since(low),
                            since(high)
                        ));
                    }
                    self.codec.on_matched(&got);
                    self.last_step_at = time;
                    self.remaining_line = rest;
                    let met = self.remaining_line.is_none();
                    return Ok(if met { Progress::Done } else { Progress::Partial });
                }
                Err(difference) => difference,
            };
            if !self.count_extra(&got) {
                return Err(difference);
            }
            self.codec.on_matched(&got);
        }
        if now >= high {
            return Err("the host sends nothing that this line expects".into());
        }
        Ok(Progress::Until(high))
    }

    /// Returns the earliest and the latest time at which the packet of a line may arrive.
    fn time_range(&self, line: &Action, at: Option<Instant>) -> (Instant, Instant) {
        let Some(at) = at else {
            return (self.last_step_at, self.last_step_at + self.tolerance.max_wait);
        };
        let wait = at.saturating_since(self.last_step_at);
        let slack = wait * self.tolerance.percent / 100 + self.tolerance.floor;
        let bare = self.codec.may_be_delayed(line);
        let expected = self.last_step_at + wait;
        if bare && wait > Duration::ZERO && wait <= LONGEST_DELAYED_ACK {
            return (
                self.last_step_at,
                self.last_step_at + LONGEST_DELAYED_ACK + self.tolerance.floor,
            );
        }
        (self.last_step_at + wait.saturating_sub(slack), expected + slack)
    }

    /// Returns true if the host may send this packet although no line expects it. Counts a permitted packet in the
    /// summary.
    fn count_extra(&mut self, got: &P::Packet) -> bool {
        let more = self.codec.classify_extra(got);
        self.summary.extra_acks += usize::from(more == Some(ExtraPacket::Acknowledgement));
        self.summary.retransmissions += usize::from(more == Some(ExtraPacket::Retransmission));
        more.is_some()
    }

    /// Removes received packets that the host may send although no line expects them, up to the first other packet.
    fn skip_extra(&mut self) {
        while let Some((_, got)) = self.arrived.pop_front() {
            if !self.count_extra(&got) {
                return self.arrived.push_front((self.last_step_at, got));
            }
            self.codec.on_matched(&got);
        }
    }

    fn check_none_unexpected(&self) -> Result<(), String> {
        match self.arrived.front() {
            None => Ok(()),
            Some((_, got)) => Err(format!("unexpected: {}", self.codec.show(got))),
        }
    }
}

/// Returns STag and base TO of the first region in an advertisement (`docs/protocol.md`, section 2).
fn first_region(private_data: &[u8]) -> Option<(u32, u64)> {
    let entry = private_data.strip_prefix(b"DDPA\x01")?.get(3..)?;
    let stag = u32::from_be_bytes(entry.get(..4)?.try_into().ok()?);
    let base = u64::from_be_bytes(entry.get(8..16)?.try_into().ok()?);
    Some((stag, base))
}

#[cfg(test)]
mod tests;

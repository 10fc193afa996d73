//! A dialogue going on with another host. Sans-IO: call [`Player::handle_timeout`] once to begin; after
//! it and after every [`Player::input`] take all of [`Player::poll_transmit`], look at
//! [`Player::outcome`], and come back when [`Player::poll_timeout`] says.
//!
//! When something happens is here; what it is, and what a host may do besides, is the business of a
//! [`Partner`]: [`segments`] for TCP, [`chunks`] for SCTP. A `quiet` line allows nothing besides.

pub mod chunks;
pub mod segments;

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};

use base::Instant;
use sim::dialogue::script::{Action, At, Script, ScriptError};

use crate::frames::Carried;

/// Longest delay of an acknowledgement (RFC 9293 §3.8.6.3 MUST-40, RFC 9260 §6.2).
const LONGEST_DELAYED_ACK: Duration = Duration::from_millis(500);
/// The STag that scripts use where they do not say another.
const SCRIPT_STAG: &str = "16";

/// How exactly times must be met.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Of the time since the line before, in percent.
    pub percent: u32,
    /// And in any case.
    pub floor: Duration,
    /// How long `*` waits.
    pub patience: Duration,
}

impl Default for Tolerance {
    /// 20 % + 20 ms; ten seconds of patience.
    fn default() -> Self {
        Tolerance {
            percent: 20,
            floor: Duration::from_millis(20),
            patience: Duration::from_secs(10),
        }
    }
}

impl std::str::FromStr for Tolerance {
    type Err = String;

    /// `20%+20ms`, or one of both.
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

/// What was played to its end and came true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Played {
    /// `event` and `check` lines that were skipped.
    pub unseen: usize,
    /// Acknowledgements of the host beyond those in the script.
    pub more_acks: usize,
    /// What the host sent again beyond the script.
    pub again: usize,
}

/// What a host may send against the script's letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// An acknowledgement with news.
    Acknowledgement,
    /// Something again.
    Again,
}

/// Both sides' packets and numbers, for one protocol.
pub trait Partner: Debug {
    /// A packet of the host.
    type Packet: Debug;

    /// What has come, if it belongs to this dialogue.
    ///
    /// # Errors
    /// It is damaged.
    fn take(&mut self, carried: Carried) -> Result<Option<Self::Packet>, String>;

    /// Looks for what the script leaves open and the rest of it needs.
    fn learn(&mut self, script: &mut Script, packet: &Self::Packet);

    /// What a `<` line sends, and that in words.
    ///
    /// # Errors
    /// What in the line is not understood.
    fn written(&mut self, line: &Action) -> Result<(Carried, String), String>;

    /// Whether this is what a `>` line expects, or the first part of it: then the rest.
    ///
    /// # Errors
    /// What differs.
    fn compare(&mut self, line: &Action, got: &Self::Packet) -> Result<Option<Action>, String>;

    /// Counts a packet that was as it may be.
    fn took(&mut self, got: &Self::Packet);

    /// What this is, if a host may send it though no line asks for it.
    fn more(&self, got: &Self::Packet) -> Option<More>;

    /// True when a `>` line is an acknowledgement and nothing else, for which a host has time.
    fn may_be_delayed(&self, line: &Action) -> bool;

    /// In words.
    fn show(&self, got: &Self::Packet) -> String;

    /// What ends the host's side after the dialogue, if there is one.
    fn farewell(&mut self) -> Option<Carried>;
}

/// One dialogue going on.
#[derive(Debug)]
pub struct Player<P: Partner> {
    script: Script,
    partner: P,
    tolerance: Tolerance,
    /// Index of the step that is due.
    next: usize,
    /// The rest of the expectation that is due, where the host has met a part of it.
    rest: Option<Action>,
    began: Option<Instant>,
    /// Time of the step before.
    last: Instant,
    wake: Option<Instant>,
    arrived: VecDeque<(Instant, P::Packet)>,
    out: VecDeque<Carried>,
    played: Played,
    outcome: Option<Result<Played, ScriptError>>,
    transcript: String,
}

/// What became of a step.
enum Progress {
    Done,
    /// A part of what is expected has come.
    Again,
    /// Not before this time, or a packet.
    Until(Instant),
}

impl<P: Partner> Player<P> {
    /// A dialogue that has not begun.
    pub fn new(script: Script, partner: P, tolerance: Tolerance) -> Player<P> {
        Player {
            script,
            partner,
            tolerance,
            next: 0,
            rest: None,
            began: None,
            last: Instant::ZERO,
            wake: None,
            arrived: VecDeque::new(),
            out: VecDeque::new(),
            played: Played { unseen: 0, more_acks: 0, again: 0 },
            outcome: None,
            transcript: String::new(),
        }
    }

    /// The next packet for the host.
    pub fn poll_transmit(&mut self) -> Option<Carried> {
        self.out.pop_front()
    }

    /// When to call [`Self::handle_timeout`] unless a packet comes before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wake.filter(|_| self.outcome.is_none())
    }

    /// The end, once it has come.
    pub fn outcome(&self) -> Option<&Result<Played, ScriptError>> {
        self.outcome.as_ref()
    }

    /// All packets so far, for people.
    pub fn transcript(&self) -> &str {
        &self.transcript
    }

    /// What ends the host's side after the dialogue, if there is one.
    pub fn farewell(&mut self) -> Option<Carried> {
        self.partner.farewell()
    }

    /// A packet of the host has come. Those of other dialogues are left alone.
    ///
    /// # Errors
    /// It is damaged.
    pub fn input(&mut self, now: Instant, carried: Carried) -> Result<(), String> {
        if self.outcome.is_some() {
            return Ok(());
        }
        let Some(packet) = self.partner.take(carried)? else { return Ok(()) };
        self.partner.learn(&mut self.script, &packet);
        let since = now.saturating_since(self.began.unwrap_or(now));
        let _ = writeln!(self.transcript, "{since:?} > {}", self.partner.show(&packet));
        self.arrived.push_back((now, packet));
        self.handle_timeout(now);
        Ok(())
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.began.get_or_insert_with(|| {
            self.last = now;
            now
        });
        while self.outcome.is_none() {
            let line = self.script.steps.get(self.next).map_or(0, |step| step.line);
            match self.step(now) {
                Ok(Some(Progress::Done)) => {
                    self.next += 1;
                    self.rest = None;
                }
                Ok(Some(Progress::Again)) => {}
                Ok(Some(Progress::Until(time))) => {
                    self.wake = Some(time);
                    return;
                }
                Ok(None) => self.outcome = Some(Ok(self.played)),
                Err(what) => {
                    let what = format!("{what}\npackets so far:\n{}", self.transcript);
                    self.outcome = Some(Err(ScriptError { line, what }));
                }
            }
        }
    }

    /// `None`: the script is over.
    fn step(&mut self, now: Instant) -> Result<Option<Progress>, String> {
        let Some(step) = self.script.steps.get(self.next).cloned() else {
            // What comes right behind the end is still unexpected.
            let end = self.last + self.tolerance.floor;
            if now < end {
                return Ok(Some(Progress::Until(end)));
            }
            self.pass_over_more();
            return self.nothing_unexpected().map(|()| None);
        };
        let began = self.began.unwrap_or(now);
        let at = match step.at {
            At::Absolute(t) => Some(began + t),
            At::After(t) => Some(self.last + t),
            At::Any => None,
        };
        if matches!(step.action, Action::Expect(_) | Action::ExpectPacket(_)) {
            let line = self.rest.clone().unwrap_or(step.action);
            return self.expect(now, &line, at).map(Some);
        }
        // The host does by itself what the script wants, and its facts cannot be seen: that takes no time.
        if matches!(step.action, Action::Do(_) | Action::Event(_) | Action::Check(_)) {
            self.played.unseen += usize::from(!matches!(step.action, Action::Do(_)));
            return Ok(Some(Progress::Done));
        }
        let at = at.unwrap_or(now);
        if now < at {
            return Ok(Some(Progress::Until(at)));
        }
        match &step.action {
            line @ (Action::Send(_) | Action::SendPacket(_)) => {
                self.pass_over_more();
                self.nothing_unexpected()?;
                self.send(now, line)?;
            }
            Action::Quiet => self.nothing_unexpected()?,
            Action::Expect(_) | Action::ExpectPacket(_) => {}
            Action::Do(_) | Action::Event(_) | Action::Check(_) => {}
        }
        self.last = now;
        Ok(Some(Progress::Done))
    }

    fn send(&mut self, now: Instant, line: &Action) -> Result<(), String> {
        let (carried, words) = self.partner.written(line)?;
        let since = now.saturating_since(self.began.unwrap_or(now));
        let _ = writeln!(self.transcript, "{since:?} < {words}");
        self.out.push_back(carried);
        Ok(())
    }

    fn expect(
        &mut self,
        now: Instant,
        line: &Action,
        at: Option<Instant>,
    ) -> Result<Progress, String> {
        let (low, high) = self.span(line, at);
        while let Some((time, got)) = self.arrived.pop_front() {
            let difference = match self.partner.compare(line, &got) {
                Ok(rest) => {
                    if time < low || time > high {
                        let since = |t: Instant| t.saturating_since(self.began.unwrap_or(t));
                        return Err(format!(
                            "sent at {:?}, expected from {:?} to {:?}",
                            since(time),
                            since(low),
                            since(high)
                        ));
                    }
                    self.partner.took(&got);
                    self.last = time;
                    self.rest = rest;
                    let met = self.rest.is_none();
                    return Ok(if met { Progress::Done } else { Progress::Again });
                }
                Err(difference) => difference,
            };
            if !self.is_more(&got) {
                return Err(difference);
            }
            self.partner.took(&got);
        }
        if now >= high {
            return Err("the host sends nothing that this line expects".into());
        }
        Ok(Progress::Until(high))
    }

    /// From when to when a packet may come.
    fn span(&self, line: &Action, at: Option<Instant>) -> (Instant, Instant) {
        let Some(at) = at else { return (self.last, self.last + self.tolerance.patience) };
        let wait = at.saturating_since(self.last);
        let slack = wait * self.tolerance.percent / 100 + self.tolerance.floor;
        let bare = self.partner.may_be_delayed(line);
        let expected = self.last + wait;
        if bare && wait > Duration::ZERO && wait <= LONGEST_DELAYED_ACK {
            return (self.last, self.last + LONGEST_DELAYED_ACK + self.tolerance.floor);
        }
        (self.last + wait.saturating_sub(slack), expected + slack)
    }

    /// True for what no line asks for and a host may send all the same; it is counted.
    fn is_more(&mut self, got: &P::Packet) -> bool {
        let more = self.partner.more(got);
        self.played.more_acks += usize::from(more == Some(More::Acknowledgement));
        self.played.again += usize::from(more == Some(More::Again));
        more.is_some()
    }

    fn pass_over_more(&mut self) {
        while let Some((_, got)) = self.arrived.pop_front() {
            if !self.is_more(&got) {
                return self.arrived.push_front((self.last, got));
            }
            self.partner.took(&got);
        }
    }

    fn nothing_unexpected(&self) -> Result<(), String> {
        match self.arrived.front() {
            None => Ok(()),
            Some((_, got)) => Err(format!("unexpected: {}", self.partner.show(got))),
        }
    }
}

/// STag and base TO of the first region in an advertisement (`docs/protocol.md`, section 2).
fn advertised(private_data: &[u8]) -> Option<(u32, u64)> {
    let entry = private_data.strip_prefix(b"DDPA\x01")?.get(3..)?;
    let stag = u32::from_be_bytes(entry.get(..4)?.try_into().ok()?);
    let base = u64::from_be_bytes(entry.get(8..16)?.try_into().ok()?);
    Some((stag, base))
}

#[cfg(test)]
mod tests;

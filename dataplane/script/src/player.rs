//! A dialogue going on with another host. Sans-IO: call [`Player::handle_timeout`] once to begin; after
//! it and after every [`Player::input`] take all of [`Player::poll_transmit`], look at
//! [`Player::outcome`], and come back when [`Player::poll_timeout`] says.
//!
//! What is learnt of the host on the way: its initial sequence number from its SYN; the private data of an
//! MPA Reply that the script leaves open, and with it how far the stream behind moves; STag and base TO if
//! that is an advertisement of `docs/protocol.md`, which then stand for the script's STag 16 and TO 0.
//!
//! A host may, against the script's letter, and it is no failure:
//! - acknowledge more often than the script says, or only open its window;
//! - delay an acknowledgement that the script has delayed, by less or by up to half a second (RFC 9293
//!   §3.8.6.3 MUST-40);
//! - send a FIN behind its last data instead of with them;
//! - choose its window and window scale;
//! - send again, at its own times, what the script leaves unacknowledged.
//!
//! A `quiet` line allows none of these.

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::Write as _;

use sim::dialogue::exchange::{Exchange, Rigour};
use sim::dialogue::script::{Action, At, Direction, Script, ScriptError, SegmentLine};
use sim::dialogue::streams::Streams;
use sim::packet::Ecn;
use sim::segment::{Flags, Segment};
use wire::Instant;

/// RFC 9293 §3.8.6.3 MUST-40.
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
    /// `event` and `check` lines, at which nobody looked.
    pub unseen: usize,
    /// Acknowledgements of the host beyond those in the script.
    pub more_acks: usize,
    /// Segments that the host sent again beyond those in the script.
    pub again: usize,
}

/// One dialogue going on.
#[derive(Debug)]
pub struct Player {
    script: Script,
    exchange: Exchange,
    tolerance: Tolerance,
    /// Index of the step that is due.
    next: usize,
    /// The rest of the expectation that is due, where the host has met a part of it.
    rest: Option<SegmentLine>,
    began: Option<Instant>,
    /// Time of the step before.
    last: Instant,
    wake: Option<Instant>,
    arrived: VecDeque<(Instant, Segment)>,
    out: VecDeque<Segment>,
    /// The host's initial sequence number is known.
    synchronized: bool,
    /// Relative number that the host acknowledged last, and the window that it gave with it.
    acknowledged: (u32, u16),
    played: Played,
    outcome: Option<Result<Played, ScriptError>>,
    transcript: String,
}

/// What became of a step.
enum Progress {
    Done,
    /// A part of what is expected has come.
    Again,
    /// Not before this time, or a segment.
    Until(Instant),
}

impl Player {
    /// A dialogue with the initial sequence number `peer_iss` of the tester, if the script does not choose
    /// it, from port `ports.0` to port `ports.1` of the host.
    ///
    /// # Errors
    /// What in the script is not understood.
    pub fn new(
        script: Script,
        peer_iss: u32,
        ports: (u16, u16),
        tolerance: Tolerance,
    ) -> Result<Player, ScriptError> {
        let streams = Streams::build(&script)?;
        let own = script.settings.iter().find(|s| s.key == "peer-iss");
        let peer_iss = match own {
            Some(s) => sim::dialogue::script::number(&s.value)
                .map_err(|what| ScriptError { line: s.line, what })? as u32,
            None => peer_iss,
        };
        Ok(Player {
            exchange: Exchange::new(
                streams,
                (peer_iss ^ 0x5555_5555, peer_iss),
                ports,
                Rigour::OwnChoice,
            ),
            script,
            tolerance,
            next: 0,
            rest: None,
            began: None,
            last: Instant::ZERO,
            wake: None,
            arrived: VecDeque::new(),
            out: VecDeque::new(),
            synchronized: false,
            acknowledged: (0, 0),
            played: Played { unseen: 0, more_acks: 0, again: 0 },
            outcome: None,
            transcript: String::new(),
        })
    }

    /// The next segment for the host.
    pub fn poll_transmit(&mut self) -> Option<Segment> {
        self.out.pop_front()
    }

    /// When to call [`Self::handle_timeout`] unless a segment comes before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wake.filter(|_| self.outcome.is_none())
    }

    /// The end, once it has come.
    pub fn outcome(&self) -> Option<&Result<Played, ScriptError>> {
        self.outcome.as_ref()
    }

    /// All segments so far, for people.
    pub fn transcript(&self) -> &str {
        &self.transcript
    }

    /// What ends the host's connection after the dialogue, if there is one.
    pub fn farewell(&self) -> Option<Segment> {
        let (ack, _) = self.acknowledged;
        self.synchronized.then(|| Segment {
            src_port: self.exchange.ports.0,
            dst_port: self.exchange.ports.1,
            // RFC 5961 §3.2: exactly the number that the host waits for.
            seq: self.exchange.peer_iss.wrapping_add(ack),
            flags: Flags::RST,
            ..Segment::default()
        })
    }

    /// A segment of the host has come. Those of other connections are left alone.
    pub fn input(&mut self, now: Instant, segment: Segment) {
        let (own, host) = self.exchange.ports;
        if (segment.dst_port, segment.src_port) != (own, host) || self.outcome.is_some() {
            return;
        }
        if segment.flags.has(Flags::SYN) && !self.synchronized {
            self.synchronized = true;
            self.exchange.iss = segment.seq;
        }
        self.learn_reply(&segment);
        let since = now.saturating_since(self.began.unwrap_or(now));
        let _ = writeln!(self.transcript, "{since:?} > {}", self.exchange.show(&segment, false));
        self.arrived.push_back((now, segment));
        self.handle_timeout(now);
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
                    let what = format!("{what}\nsegments so far:\n{}", self.transcript);
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
        if let Action::Expect(line) = &step.action {
            let line = self.rest.clone().unwrap_or_else(|| line.clone());
            return self.expect(now, &line, at).map(Some);
        }
        // The host does by itself what it is told, and nobody sees what it says of itself: that takes no time.
        if matches!(step.action, Action::Do(_) | Action::Event(_) | Action::Check(_)) {
            self.played.unseen += usize::from(!matches!(step.action, Action::Do(_)));
            return Ok(Some(Progress::Done));
        }
        let at = at.unwrap_or(now);
        if now < at {
            return Ok(Some(Progress::Until(at)));
        }
        match &step.action {
            Action::Send(line) => {
                self.pass_over_more();
                self.nothing_unexpected()?;
                self.send(now, line)?;
            }
            Action::Quiet => self.nothing_unexpected()?,
            Action::SendPacket(_) | Action::ExpectPacket(_) => {
                return Err("is about SCTP, which the tester does not speak yet".into());
            }
            Action::Do(_) | Action::Event(_) | Action::Check(_) | Action::Expect(_) => {}
        }
        self.last = now;
        Ok(Some(Progress::Done))
    }

    fn send(&mut self, now: Instant, line: &SegmentLine) -> Result<(), String> {
        let mut segment = self.exchange.written(line)?;
        if line.args.has("ce") {
            segment.ecn = Ecn::Ce;
        }
        self.exchange.peer_sent(&segment);
        let since = now.saturating_since(self.began.unwrap_or(now));
        let _ = writeln!(self.transcript, "{since:?} < {}", self.exchange.show(&segment, true));
        self.out.push_back(segment);
        Ok(())
    }

    fn expect(
        &mut self,
        now: Instant,
        line: &SegmentLine,
        at: Option<Instant>,
    ) -> Result<Progress, String> {
        let (low, high) = self.span(line, at);
        while let Some((time, got)) = self.arrived.pop_front() {
            let difference = match self.compare(line, &got) {
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
                    self.took(&got);
                    self.last = time;
                    self.rest = rest;
                    let met = self.rest.is_none();
                    return Ok(if met { Progress::Done } else { Progress::Again });
                }
                Err(difference) => difference,
            };
            if !self.may_be_more(&got) {
                return Err(difference);
            }
            self.took(&got);
        }
        if now >= high {
            return Err("the host sends nothing that this line expects".into());
        }
        Ok(Progress::Until(high))
    }

    /// From when to when a segment may come.
    fn span(&self, line: &SegmentLine, at: Option<Instant>) -> (Instant, Instant) {
        let Some(at) = at else { return (self.last, self.last + self.tolerance.patience) };
        let wait = at.saturating_since(self.last);
        let slack = wait * self.tolerance.percent / 100 + self.tolerance.floor;
        let bare = line.flags == Flags::ACK && line.data.is_empty() && !line.args.has("len");
        let expected = self.last + wait;
        if bare && wait > Duration::ZERO && wait <= LONGEST_DELAYED_ACK {
            return (self.last, self.last + LONGEST_DELAYED_ACK + self.tolerance.floor);
        }
        (self.last + wait.saturating_sub(slack), expected + slack)
    }

    /// Compares; where only the FIN of the line is missing, says what is still to come.
    fn compare(&self, line: &SegmentLine, got: &Segment) -> Result<Option<SegmentLine>, String> {
        let apart = line.flags.has(Flags::FIN)
            && !line.data.is_empty()
            && !got.flags.has(Flags::FIN)
            && !got.payload.is_empty();
        let mut first = line.clone();
        if apart {
            first.flags = line.flags.without(Flags::FIN).without(Flags::PSH);
        }
        self.exchange.compare(&first, got)?;
        let capable = got.ecn != Ecn::NotEct;
        if line.args.has(if capable { "no-ect" } else { "ect" }) {
            return Err(format!("ECN-capable: {capable}"));
        }
        Ok(apart.then(|| {
            let mut fin = line.clone();
            fin.data.clear();
            fin.args.remove("seq");
            fin.flags = line.flags.without(Flags::PSH);
            fin
        }))
    }

    fn took(&mut self, got: &Segment) {
        self.exchange.sent(got);
        if got.flags.has(Flags::ACK) && !got.flags.has(Flags::RST) {
            self.acknowledged = (got.ack.wrapping_sub(self.exchange.peer_iss), got.window);
        }
    }

    /// True for what no line asks for and a host may send all the same; it is counted.
    fn may_be_more(&mut self, got: &Segment) -> bool {
        let (acknowledged, window) = self.acknowledged;
        let ack = got.ack.wrapping_sub(self.exchange.peer_iss);
        let seq = got.seq.wrapping_sub(self.exchange.iss);
        let next = self.exchange.out_next;
        let news = (acknowledged < ack && ack <= self.exchange.received.contiguous())
            || (ack == acknowledged && got.window > window);
        let bare = got.flags == Flags::ACK && got.payload.is_empty() && seq == next;
        let again = !got.flags.has(Flags::RST)
            && got.sequence_len() > 0
            && seq.wrapping_add(got.sequence_len()) <= next;
        self.played.more_acks += usize::from(self.synchronized && bare && news);
        self.played.again += usize::from(self.synchronized && again);
        self.synchronized && ((bare && news) || again)
    }

    fn pass_over_more(&mut self) {
        while let Some((_, got)) = self.arrived.pop_front() {
            if !self.may_be_more(&got) {
                return self.arrived.push_front((self.last, got));
            }
            self.took(&got);
        }
    }

    fn nothing_unexpected(&self) -> Result<(), String> {
        match self.arrived.front() {
            None => Ok(()),
            Some((_, got)) => Err(format!("unexpected: {}", self.exchange.show(got, false))),
        }
    }

    /// Takes the private data of an MPA Reply for those of the script's, which says nothing of them.
    fn learn_reply(&mut self, got: &Segment) {
        let open = self.script.pieces.iter().position(|piece| {
            piece.direction == Direction::Out && piece.kind == "reply" && !piece.args.has("pd")
        });
        let Some(index) = open else { return };
        let name = &self.script.pieces[index].name;
        let here = got.seq.wrapping_sub(self.exchange.iss);
        if self.exchange.streams.position(name) != Ok(here) {
            return;
        }
        let Some(private_data) = private_data(&got.payload) else { return };
        let digits: String = private_data.iter().map(|octet| format!("{octet:02x}")).collect();
        let mut script = self.script.clone();
        script.pieces[index].args.set("pd", &format!("hex:{digits}"));
        if let Some((stag, base)) = advertised(private_data) {
            aim(&mut script, stag, base);
        }
        if let Ok(streams) = Streams::build(&script) {
            self.script = script;
            self.exchange.streams = streams;
        }
    }
}

/// The private data of an MPA frame (RFC 5044 §7.1.1) that is all in `octets`.
fn private_data(octets: &[u8]) -> Option<&[u8]> {
    let len = u16::from_be_bytes(octets.get(18..20)?.try_into().ok()?);
    octets.get(20..20 + usize::from(len)).filter(|data| !data.is_empty())
}

/// STag and base TO of the first region in an advertisement (`docs/protocol.md`, section 2).
fn advertised(private_data: &[u8]) -> Option<(u32, u64)> {
    let entry = private_data.strip_prefix(b"DDPA\x01")?.get(3..)?;
    let stag = u32::from_be_bytes(entry.get(..4)?.try_into().ok()?);
    let base = u64::from_be_bytes(entry.get(8..16)?.try_into().ok()?);
    Some((stag, base))
}

/// Makes the script's tagged segments for STag 16 go to another region, also where a Terminate quotes one.
fn aim(script: &mut Script, stag: u32, base: u64) {
    for piece in &mut script.pieces {
        if piece.direction == Direction::In
            && piece.kind == "tagged"
            && piece.args.get("stag") == Some(SCRIPT_STAG)
        {
            let to = piece.args.number("to", 0).unwrap_or(0);
            piece.args.set("stag", &stag.to_string());
            piece.args.set("to", &base.wrapping_add(to).to_string());
        }
        if piece.direction == Direction::Out
            && let Some(hex) = piece.args.get("hex")
            && let Some(hex) = quoted(hex, stag, base)
        {
            piece.args.set("hex", &hex);
        }
    }
}

/// A Terminate in hexadecimal with its quoted tagged header (8 octets in front of it) aimed elsewhere.
fn quoted(hex: &str, stag: u32, base: u64) -> Option<String> {
    let (head, rest) = (hex.get(..20)?, hex.get(28..)?);
    let is_tagged = matches!(hex.get(16..17)?, "8" | "c");
    if !is_tagged || u32::from_str_radix(hex.get(20..28)?, 16) != Ok(16) {
        return None;
    }
    let to = u64::from_str_radix(rest.get(..16)?, 16).ok()?.wrapping_add(base);
    Some(format!("{head}{stag:08x}{to:016x}{}", rest.get(16..)?))
}

#[cfg(test)]
mod tests;

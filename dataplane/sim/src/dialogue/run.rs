//! Plays a dialogue: the script is the peer, virtual time is the script's.
//!
//! Every segment that the stack sends must be expected by a line, at its time; every line must come
//! true. Whatever the stack does between two lines (timers) happens at its own time in between.

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::Write as _;

use tcp_lite::seam::TxBatch;
use tcp_lite::tcp;
use wire::Instant;

use super::exchange::{Exchange, Ranges, Rigour};
use super::script::{Action, Args, At, Script, ScriptError, SegmentLine, Step, number};
use super::streams::Streams;
use crate::segment::Segment;

/// Port of the stack under test.
pub(super) const LOCAL_PORT: u16 = 7174;
/// Port of the peer.
pub(super) const PEER_PORT: u16 = 40_000;
/// Times may differ by this much from what a line says.
const TOLERANCE: Duration = Duration::from_millis(1);
/// `*` waits this long at most.
const PATIENCE: Duration = Duration::from_secs(1000);
/// Calls of one verb in a row after which the stack is taken to be spinning.
const SPIN: usize = 100_000;

/// What the runner needs of a stack under test.
pub(super) trait Subject: Sized {
    /// A stack as the script's settings say, not yet connected.
    fn new(settings: &Settings, streams: &Streams) -> Result<Self, ScriptError>;
    /// Active open.
    fn connect(&mut self, now: Instant, iss: tcp::SeqNumber) -> Result<(), String>;
    /// Passive open by a SYN.
    fn accept(&mut self, now: Instant, iss: tcp::SeqNumber, syn: &tcp::Segment<'_>);
    /// True while segments belong to a connection.
    fn is_open(&self) -> bool;
    /// True when `seg` may open the connection in TIME-WAIT anew.
    fn reopens(&self, seg: &tcp::Segment<'_>) -> bool;
    /// A segment arrives; the error names the reason why it was dropped.
    fn input(&mut self, now: Instant, seg: &tcp::Segment<'_>) -> Result<(), String>;
    /// Writes what is due.
    fn transmit(&mut self, now: Instant, tx: &mut Batch);
    /// Next timer.
    fn timeout(&self) -> Option<Instant>;
    /// A timer has come.
    fn handle_timeout(&mut self, now: Instant);
    /// A `do` line.
    fn act(&mut self, now: Instant, args: &Args, streams: &Streams) -> Result<(), String>;
    /// The next event as text.
    fn event(&mut self) -> Option<String>;
    /// A `check` line.
    fn check(&self, key: &str, value: &str, streams: &Streams) -> Result<(), String>;
    /// Anything wrong that no line asks about.
    fn fault(&self) -> Option<String>;
}

/// The settings of a script that belong to the stack, each to be asked for once.
#[derive(Debug)]
pub(super) struct Settings(Vec<(usize, String, String)>);

impl Settings {
    /// Calls `apply(key, value)` for each.
    pub(super) fn apply(
        &self,
        mut apply: impl FnMut(&str, &str) -> Result<(), String>,
    ) -> Result<(), ScriptError> {
        for (line, key, value) in &self.0 {
            apply(key, value).map_err(|what| ScriptError { line: *line, what })?;
        }
        Ok(())
    }
}

/// A batch that keeps whole segments.
#[derive(Debug)]
pub struct Batch {
    room: Vec<u8>,
    segments: Vec<Vec<u8>>,
    /// The segment being written is ECN-capable.
    capable: bool,
    /// Which of `segments` are.
    ect: Vec<bool>,
    bound: usize,
}

impl Default for Batch {
    /// Without a bound.
    fn default() -> Self {
        Self::bounded(usize::MAX)
    }
}

impl Batch {
    /// Takes at most `bound` segments at a time.
    pub fn bounded(bound: usize) -> Self {
        Batch { room: Vec::new(), segments: Vec::new(), capable: false, ect: Vec::new(), bound }
    }

    /// The segments committed since the last call, each with whether it is to be sent as ECN-capable.
    pub fn take_with_ect(&mut self) -> Vec<(Vec<u8>, bool)> {
        let ect = std::mem::take(&mut self.ect);
        std::mem::take(&mut self.segments).into_iter().zip(ect).collect()
    }
}

impl TxBatch for Batch {
    fn segment(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.segments.len() >= self.bound {
            return None;
        }
        self.room.clear();
        // Octets that the stack leaves as they are show up.
        self.room.resize(len, 0xA5);
        self.capable = false;
        Some(&mut self.room)
    }

    fn ecn_capable(&mut self) {
        self.capable = true;
    }

    fn commit(&mut self, len: usize) {
        self.segments.push(self.room[..len].to_vec());
        self.ect.push(self.capable);
    }
}

/// Plays `script`.
///
/// # Errors
/// The first line that does not come true, with the segments so far.
pub(super) fn play<S: Subject>(script: &Script) -> Result<(), ScriptError> {
    let streams = Streams::build(script)?;
    let mut numbers = [1_000_000, 5_000_000];
    let mut active = false;
    let mut rest = Vec::new();
    for s in &script.settings {
        let wrong = |what| ScriptError { line: s.line, what };
        match s.key.as_str() {
            "iss" => numbers[0] = number(&s.value).map_err(wrong)? as u32,
            "peer-iss" => numbers[1] = number(&s.value).map_err(wrong)? as u32,
            "role" => active = s.value == "active",
            "stack" => {}
            key if key.starts_with("in.") || key.starts_with("out.") => {}
            key => rest.push((s.line, key.to_owned(), s.value.clone())),
        }
    }
    let mut run = Run {
        subject: S::new(&Settings(rest), &streams)?,
        exchange: Exchange::new(
            streams,
            (numbers[0], numbers[1]),
            (PEER_PORT, LOCAL_PORT),
            Rigour::Exact,
        ),
        active,
        now: Instant::ZERO,
        sent: VecDeque::new(),
        last_drop: String::from("none"),
        transcript: String::new(),
    };
    for step in &script.steps {
        run.step(step).map_err(|what| run.failure(step.line, &what))?;
    }
    let last = script.steps.last().map_or(1, |s| s.line);
    run.nothing_unexpected().map_err(|what| run.failure(last, &what))
}

struct Run<S> {
    subject: S,
    exchange: Exchange,
    active: bool,
    now: Instant,
    /// Sent by the stack and not yet expected by a line, with whether it is ECN-capable.
    sent: VecDeque<(Instant, Segment, bool)>,
    last_drop: String,
    transcript: String,
}

impl<S: Subject> Run<S> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let expects = matches!(step.action, Action::Expect(_));
        let at = match step.at {
            At::Absolute(t) => Some(Instant::ZERO + t),
            At::After(t) => Some(self.now + t),
            At::Any if expects => None,
            At::Any => return Err("only an expected segment may come at any time".into()),
        };
        if let Some(at) = at {
            if at < self.now {
                return Err(format!("this is in the past: it is {:?}", self.now));
            }
            if !expects {
                self.advance(at)?;
            }
        }
        match &step.action {
            Action::Expect(line) => self.expect(line, at)?,
            Action::Quiet => self.nothing_unexpected()?,
            Action::Send(line) => {
                self.nothing_unexpected()?;
                self.send(line)?;
            }
            Action::Do(args) => {
                self.nothing_unexpected()?;
                self.act(args)?;
            }
            Action::Event(words) => self.event(words)?,
            Action::Check(args) => self.check(args)?,
        }
        self.subject.fault().map_or(Ok(()), Err)
    }

    fn act(&mut self, args: &Args) -> Result<(), String> {
        if args.word(0) == Some("connect") {
            if !self.active {
                return Err("`do connect` needs `set role active`".into());
            }
            self.subject.connect(self.now, tcp::SeqNumber(self.exchange.iss))?;
        } else {
            self.subject.act(self.now, args, &self.exchange.streams)?;
        }
        self.transmit()
    }

    fn send(&mut self, line: &SegmentLine) -> Result<(), String> {
        let segment = self.exchange.written(line)?;
        let relative = segment.seq.wrapping_sub(self.exchange.peer_iss);
        let _ =
            writeln!(self.transcript, "{:?} < {}", self.now, self.exchange.show(&segment, true));
        let octets = segment.emit();
        let mut seg = match tcp::Segment::parse(&octets) {
            Ok(seg) => seg,
            Err(reason) => {
                self.last_drop = reason.name().to_owned();
                return Ok(());
            }
        };
        seg.ce = line.args.has("ce");
        let syn_only =
            seg.flags.has(tcp::Flags::SYN) && !seg.flags.any(tcp::Flags::ACK.with(tcp::Flags::RST));
        self.last_drop = String::from("none");
        if self.subject.is_open() && !self.subject.reopens(&seg) {
            self.exchange.peer_sent(&segment);
            if let Err(reason) = self.subject.input(self.now, &seg) {
                self.last_drop = reason;
            }
        } else if syn_only && !self.active {
            self.exchange.received = Ranges::default();
            self.exchange.received.add(relative, relative.wrapping_add(1));
            self.exchange.out_next = 0;
            self.subject.accept(self.now, tcp::SeqNumber(self.exchange.iss), &seg);
        } else {
            let mut tx = Batch::default();
            tcp::reset_for(&seg, &mut tx);
            self.collect(&mut tx)?;
        }
        self.transmit()
    }

    fn expect(&mut self, line: &SegmentLine, at: Option<Instant>) -> Result<(), String> {
        match at {
            Some(at) if self.sent.is_empty() => {
                self.advance(at)?;
                self.wait_for_segment(at + TOLERANCE)?;
            }
            Some(_) => {}
            None => self.wait_for_segment(self.now + PATIENCE)?,
        }
        let Some((sent, got, ect)) = self.sent.pop_front() else {
            return Err("the stack sends nothing".into());
        };
        if let Some(at) = at
            && (sent + TOLERANCE < at || at + TOLERANCE < sent)
        {
            return Err(format!("sent at {sent:?}, expected at {at:?}"));
        }
        self.exchange.compare(line, &got)?;
        if line.args.has(if ect { "no-ect" } else { "ect" }) {
            return Err(format!("ECN-capable: {ect}"));
        }
        self.exchange.sent(&got);
        Ok(())
    }

    fn event(&mut self, words: &[String]) -> Result<(), String> {
        let mut seen = Vec::new();
        while let Some(event) = self.subject.event() {
            if words.iter().all(|word| event.contains(word.as_str())) {
                return Ok(());
            }
            seen.push(event);
        }
        Err(format!("no event with {words:?}; there was {seen:?}"))
    }

    fn check(&mut self, args: &Args) -> Result<(), String> {
        args.pairs().try_for_each(|(key, value)| match key {
            "drop" if value == self.last_drop => Ok(()),
            "drop" => Err(format!("drop is {}, expected {value}", self.last_drop)),
            "open" if value == if self.subject.is_open() { "yes" } else { "no" } => Ok(()),
            "open" => Err(format!("open is not {value}")),
            _ => self.subject.check(key, value, &self.exchange.streams),
        })
    }

    /// Lets time pass; timers run at their own time.
    fn advance(&mut self, to: Instant) -> Result<(), String> {
        for _ in 0..SPIN {
            match self.subject.timeout().filter(|&t| t <= to) {
                Some(t) => {
                    self.now = self.now.max(t);
                    self.subject.handle_timeout(self.now);
                    self.transmit()?;
                }
                None => {
                    self.now = to;
                    return Ok(());
                }
            }
        }
        Err("the stack's timer never moves on".into())
    }

    fn wait_for_segment(&mut self, limit: Instant) -> Result<(), String> {
        while self.sent.is_empty() {
            match self.subject.timeout().filter(|&t| t <= limit) {
                Some(t) => self.advance(t.max(self.now))?,
                None => break,
            }
        }
        Ok(())
    }

    fn transmit(&mut self) -> Result<(), String> {
        let mut tx = Batch::default();
        for _ in 0..SPIN {
            self.subject.transmit(self.now, &mut tx);
            if !self.collect(&mut tx)? {
                return Ok(());
            }
        }
        Err("poll_transmit never stops".into())
    }

    fn collect(&mut self, tx: &mut Batch) -> Result<bool, String> {
        let segments = tx.take_with_ect();
        let any = !segments.is_empty();
        for (octets, ect) in segments {
            let segment = Segment::parse(&octets).ok_or("the stack sent something malformed")?;
            let _ = writeln!(
                self.transcript,
                "{:?} > {}",
                self.now,
                self.exchange.show(&segment, false)
            );
            self.sent.push_back((self.now, segment, ect));
        }
        Ok(any)
    }

    fn nothing_unexpected(&self) -> Result<(), String> {
        match self.sent.front() {
            None => Ok(()),
            Some((at, segment, _)) => {
                Err(format!("unexpected: {at:?} > {}", self.exchange.show(segment, false)))
            }
        }
    }

    fn failure(&self, line: usize, what: &str) -> ScriptError {
        ScriptError { line, what: format!("{what}\nsegments so far:\n{}", self.transcript) }
    }
}

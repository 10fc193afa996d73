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

use super::script::{Action, Args, At, Script, ScriptError, SegmentLine, Step, number};
use super::streams::Streams;
use crate::segment::{Flags, Segment};

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
        streams,
        active,
        iss: numbers[0],
        peer_iss: numbers[1],
        now: Instant::ZERO,
        sent: VecDeque::new(),
        received: Ranges::default(),
        out_next: 0,
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
    streams: Streams,
    active: bool,
    iss: u32,
    peer_iss: u32,
    now: Instant,
    /// Sent by the stack and not yet expected by a line, with whether it is ECN-capable.
    sent: VecDeque<(Instant, Segment, bool)>,
    /// Relative sequence numbers that the peer has used.
    received: Ranges,
    /// Relative sequence number after the last that the stack used.
    out_next: u32,
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
            self.subject.connect(self.now, tcp::SeqNumber(self.iss))?;
        } else {
            self.subject.act(self.now, args, &self.streams)?;
        }
        self.transmit()
    }

    fn send(&mut self, line: &SegmentLine) -> Result<(), String> {
        let segment = self.written(line)?;
        let relative = segment.seq.wrapping_sub(self.peer_iss);
        let _ = writeln!(self.transcript, "{:?} < {}", self.now, self.show(&segment, true));
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
            self.received.add(relative, relative.wrapping_add(segment.sequence_len()));
            if let Err(reason) = self.subject.input(self.now, &seg) {
                self.last_drop = reason;
            }
        } else if syn_only && !self.active {
            self.received = Ranges::default();
            self.received.add(relative, relative.wrapping_add(1));
            self.out_next = 0;
            self.subject.accept(self.now, tcp::SeqNumber(self.iss), &seg);
        } else {
            let mut tx = Batch::default();
            tcp::reset_for(&seg, &mut tx);
            self.collect(&mut tx)?;
        }
        self.transmit()
    }

    fn written(&self, line: &SegmentLine) -> Result<Segment, String> {
        line.args.only(&[
            "seq", "ack", "win", "urg", "mss", "ws", "sackok", "ts", "sack", "opt", "len", "ce",
        ])?;
        let (at, payload) = self.streams.slices(&line.data)?;
        let seq = match line.args.get("seq") {
            Some(text) => self.number(text, self.peer_iss)?,
            None if !line.data.is_empty() => self.peer_iss.wrapping_add(at),
            None if line.flags.has(Flags::SYN) => self.peer_iss,
            None => self.peer_iss.wrapping_add(self.received.contiguous()),
        };
        let ack = match line.args.get("ack") {
            Some(text) => self.number(text, self.iss)?,
            None if line.flags.has(Flags::ACK) => self.iss.wrapping_add(self.out_next),
            None => 0,
        };
        let mut segment = Segment {
            src_port: PEER_PORT,
            dst_port: LOCAL_PORT,
            seq,
            ack,
            flags: line.flags,
            window: line.args.number("win", 65_535)? as u16,
            urgent: line.args.number("urg", 0)? as u16,
            payload,
            ..Segment::default()
        };
        let options = &mut segment.options;
        options.mss = line.args.get("mss").map(number).transpose()?.map(|n| n as u16);
        options.window_scale = line.args.get("ws").map(number).transpose()?.map(|n| n as u8);
        options.sack_permitted = line.args.has("sackok");
        if let Some(text) = line.args.get("ts") {
            let (value, echo) = text.split_once('/').ok_or("ts=VALUE/ECHO")?;
            options.timestamps = Some((number(value)? as u32, number(echo)? as u32));
        }
        if let Some(text) = line.args.get("sack") {
            options.sack = self.blocks(text, self.iss)?;
        }
        if let Some(text) = line.args.get("opt") {
            options.raw = super::streams::octets(&format!("hex:{text}"))?;
        }
        Ok(segment)
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
        self.compare(line, &got)?;
        if line.args.has(if ect { "no-ect" } else { "ect" }) {
            return Err(format!("ECN-capable: {ect}"));
        }
        let relative = got.seq.wrapping_sub(self.iss);
        let end = relative.wrapping_add(got.sequence_len());
        if !got.flags.has(Flags::RST) && (end.wrapping_sub(self.out_next) as i32) > 0 {
            self.out_next = end;
        }
        Ok(())
    }

    fn compare(&self, line: &SegmentLine, got: &Segment) -> Result<(), String> {
        line.args.only(&[
            "seq",
            "ack",
            "win",
            "mss",
            "ws",
            "sackok",
            "no-sackok",
            "ts",
            "no-ts",
            "sack",
            "no-sack",
            "no-mss",
            "no-ws",
            "len",
            "ect",
            "no-ect",
        ])?;
        let differs = |what: &str, got: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug| {
            Err(format!("{what} is {got:?}, expected {expected:?}"))
        };
        // PSH has no meaning for this stack's peers; it is compared only where a line says it.
        let mask = |f: Flags| if line.flags.has(Flags::PSH) { f } else { f.without(Flags::PSH) };
        if mask(got.flags) != mask(line.flags) {
            return differs("flags", &got.flags, &line.flags);
        }
        let (at, payload) = self.streams.slices(&line.data)?;
        let seq = match line.args.get("seq") {
            Some(text) => self.number(text, self.iss)?,
            None if !line.data.is_empty() => self.iss.wrapping_add(at),
            None if line.flags.has(Flags::SYN) => self.iss,
            None => self.iss.wrapping_add(self.out_next),
        };
        if got.seq != seq {
            let relative = |n: u32| n.wrapping_sub(self.iss) as i32;
            return differs("seq", &relative(got.seq), &relative(seq));
        }
        if line.flags.has(Flags::ACK) {
            let ack = match line.args.get("ack") {
                Some(text) => self.number(text, self.peer_iss)?,
                None => self.peer_iss.wrapping_add(self.received.contiguous()),
            };
            if got.ack != ack {
                let relative = |n: u32| n.wrapping_sub(self.peer_iss) as i32;
                return differs("ack", &relative(got.ack), &relative(ack));
            }
        }
        match line.args.get("len") {
            Some(text) if got.payload.len() as u64 != number(text)? => {
                return differs("len", &got.payload.len(), &text);
            }
            Some(_) => {}
            None if got.payload != payload => {
                let first = got.payload.iter().zip(&payload).position(|(a, b)| a != b);
                return Err(format!(
                    "payload of {} octets, expected {}; first difference at {first:?}",
                    got.payload.len(),
                    payload.len()
                ));
            }
            None => {}
        }
        if let Some(text) = line.args.get("win")
            && u64::from(got.window) != number(text)?
        {
            return differs("win", &got.window, &text);
        }
        self.compare_options(&line.args, got)
    }

    fn compare_options(&self, args: &Args, got: &Segment) -> Result<(), String> {
        let options = &got.options;
        let wanted = |key: &str| args.get(key).map(number).transpose();
        if let Some(mss) = wanted("mss")?
            && options.mss.map(u64::from) != Some(mss)
        {
            return Err(format!("mss is {:?}, expected {mss}", options.mss));
        }
        if let Some(ws) = wanted("ws")?
            && options.window_scale.map(u64::from) != Some(ws)
        {
            return Err(format!("ws is {:?}, expected {ws}", options.window_scale));
        }
        let present = [
            ("mss", options.mss.is_some()),
            ("ws", options.window_scale.is_some()),
            ("sackok", options.sack_permitted),
            ("ts", options.timestamps.is_some()),
            ("sack", !options.sack.is_empty()),
        ];
        for (name, there) in present {
            if args.has(name) && !there {
                return Err(format!("there is no {name} option"));
            }
            if args.has(&format!("no-{name}")) && there {
                return Err(format!("there is a {name} option: {options:?}"));
            }
        }
        if let (Some(text), Some((value, echo))) = (args.get("ts"), options.timestamps) {
            let (v, e) = text.split_once('/').ok_or("ts=VALUE/ECHO")?;
            for (text, got) in [(v, value), (e, echo)] {
                if text != "*" && number(text)? != u64::from(got) {
                    return Err(format!("ts is {value}/{echo}, expected {v}/{e}"));
                }
            }
        }
        if let Some(text) = args.get("sack") {
            let blocks = self.blocks(text, self.peer_iss)?;
            if options.sack != blocks {
                let relative = |b: &[(u32, u32)]| {
                    let r = |n: u32| n.wrapping_sub(self.peer_iss);
                    b.iter().map(|&(l, x)| format!("{}..{}", r(l), r(x))).collect::<Vec<_>>()
                };
                let (got, wanted) = (relative(&options.sack), relative(&blocks));
                return Err(format!("sack is {got:?}, expected {wanted:?}"));
            }
        }
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
            _ => self.subject.check(key, value, &self.streams),
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
            let _ = writeln!(self.transcript, "{:?} > {}", self.now, self.show(&segment, false));
            self.sent.push_back((self.now, segment, ect));
        }
        Ok(any)
    }

    fn nothing_unexpected(&self) -> Result<(), String> {
        match self.sent.front() {
            None => Ok(()),
            Some((at, segment, _)) => {
                Err(format!("unexpected: {at:?} > {}", self.show(segment, false)))
            }
        }
    }

    fn number(&self, text: &str, base: u32) -> Result<u32, String> {
        match text.strip_prefix("abs:") {
            Some(absolute) => Ok(number(absolute)? as u32),
            None => Ok(base.wrapping_add(self.streams.position(text)?)),
        }
    }

    fn blocks(&self, text: &str, base: u32) -> Result<Vec<(u32, u32)>, String> {
        text.split(',')
            .map(|block| {
                let (left, right) = block.split_once("..").ok_or("sack=LEFT..RIGHT,...")?;
                Ok((self.number(left, base)?, self.number(right, base)?))
            })
            .collect()
    }

    fn show(&self, segment: &Segment, from_peer: bool) -> String {
        let (mine, other) =
            if from_peer { (self.peer_iss, self.iss) } else { (self.iss, self.peer_iss) };
        let mut shown = segment.clone();
        shown.seq = segment.seq.wrapping_sub(mine);
        shown.ack = segment.ack.wrapping_sub(other);
        for (left, right) in &mut shown.options.sack {
            *left = left.wrapping_sub(other);
            *right = right.wrapping_sub(other);
        }
        let pieces =
            if from_peer { String::new() } else { self.streams.describe(shown.seq, segment) };
        let head: String = segment.payload.iter().take(32).map(|o| format!("{o:02x}")).collect();
        format!("{shown:?} {pieces} {head}")
    }

    fn failure(&self, line: usize, what: &str) -> ScriptError {
        ScriptError { line, what: format!("{what}\nsegments so far:\n{}", self.transcript) }
    }
}

/// Sets of relative sequence numbers that one side has used.
#[derive(Debug, Default)]
struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    fn add(&mut self, from: u32, to: u32) {
        self.0.push((from, to));
        self.0.sort_unstable();
    }

    /// The number up to which everything is there.
    fn contiguous(&self) -> u32 {
        self.0.iter().fold(0, |end, &(from, to)| if from <= end { end.max(to) } else { end })
    }
}

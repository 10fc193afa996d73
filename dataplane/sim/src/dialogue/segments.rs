//! Dialogues over TCP. The stack under test is a [`Subject`]; lines are segments of the two byte streams.

use base::Instant;
use tcp_lite::tcp;

use super::run::{Batch, DialogueProtocol, Settings, play_with};
use crate::segment::Segment;
use ::dialogue::exchange::{Exchange, Ranges, Strictness};
use ::dialogue::script::{Action, Args, Script, ScriptError, number};
use ::dialogue::streams::Streams;

/// Port of the stack under test.
pub(super) const LOCAL_PORT: u16 = 7174;
/// Port of the peer.
pub(super) const PEER_PORT: u16 = 40_000;

/// A TCP stack under test, with the calls that a dialogue makes.
pub(super) trait Subject: Sized {
    /// Creates an unconnected stack with the settings of the script.
    fn new(settings: &Settings, streams: &Streams) -> Result<Self, ScriptError>;
    /// Opens the connection actively.
    fn connect(&mut self, now: Instant, iss: tcp::SeqNumber) -> Result<(), String>;
    /// Opens the connection passively, in response to `syn`.
    fn accept(&mut self, now: Instant, iss: tcp::SeqNumber, syn: &tcp::Segment<'_>);
    /// Returns true if a connection exists and is not in CLOSED.
    fn is_open(&self) -> bool;
    /// Returns true if `seg` may reopen a connection in TIME-WAIT.
    fn reopens(&self, seg: &tcp::Segment<'_>) -> bool;
    /// Processes a received segment. The error is the name of the drop reason.
    fn input(&mut self, now: Instant, seg: &tcp::Segment<'_>) -> Result<(), String>;
    /// Writes the due segments to `tx`.
    fn transmit(&mut self, now: Instant, tx: &mut Batch);
    /// Returns the expiry of the next timer.
    fn timeout(&self) -> Option<Instant>;
    /// Handles expired timers.
    fn handle_timeout(&mut self, now: Instant);
    /// Executes a `do` line.
    fn execute(&mut self, now: Instant, args: &Args, streams: &Streams) -> Result<(), String>;
    /// Returns the next event as text.
    fn next_event(&mut self) -> Option<String>;
    /// Checks one key and value of a `check` line.
    fn check(&self, key: &str, value: &str, streams: &Streams) -> Result<(), String>;
    /// Describes a violated invariant; `None` if all hold. Called after each line.
    fn fault(&self) -> Option<String>;
}

/// Plays `script`.
///
/// # Errors
/// The first line from which the stack deviates, and the segments so far.
pub(super) fn play<S: Subject>(script: &Script) -> Result<(), ScriptError> {
    let streams = Streams::build(script)?;
    let mut numbers = [1_000_000, 5_000_000];
    let mut active = false;
    let mut rest = Vec::new();
    for s in &script.settings {
        let wrong = |what| ScriptError { line: s.line, message: what };
        match s.key.as_str() {
            "iss" => numbers[0] = number(&s.value).map_err(wrong)? as u32,
            "peer-iss" => numbers[1] = number(&s.value).map_err(wrong)? as u32,
            "role" => active = s.value == "active",
            "stack" => {}
            key if key.starts_with("in.") || key.starts_with("out.") => {}
            key => rest.push((s.line, key.to_owned(), s.value.clone())),
        }
    }
    let party = TcpProtocol {
        subject: S::new(&Settings(rest), &streams)?,
        exchange: Exchange::new(
            streams,
            numbers[0],
            numbers[1],
            (PEER_PORT, LOCAL_PORT),
            Strictness::Exact,
        ),
        active,
        last_drop: String::from("none"),
    };
    play_with(script, party)
}

struct TcpProtocol<S> {
    subject: S,
    exchange: Exchange,
    active: bool,
    last_drop: String,
}

impl<S: Subject> DialogueProtocol for TcpProtocol<S> {
    /// A segment, and true if it was sent as ECN-capable.
    type Sent = (Segment, bool);

    fn send(&mut self, now: Instant, action: &Action, tx: &mut Batch) -> Result<String, String> {
        let Action::Send(line) = action else { return Err("no segment".into()) };
        let segment = self.exchange.build_segment(line)?;
        let relative = segment.seq.wrapping_sub(self.exchange.peer_iss);
        let words = self.exchange.show(&segment, true);
        let bytes = segment.emit();
        let mut seg = match tcp::Segment::parse(&bytes) {
            Ok(seg) => seg,
            Err(reason) => {
                self.last_drop = reason.name().to_owned();
                return Ok(words);
            }
        };
        seg.ce = line.args.has("ce");
        let syn_only = seg.flags.has(tcp::Flags::SYN)
            && !seg.flags.intersects(tcp::Flags::ACK.with(tcp::Flags::RST));
        self.last_drop = String::from("none");
        if self.subject.is_open() && !self.subject.reopens(&seg) {
            self.exchange.on_peer_segment(&segment);
            if let Err(reason) = self.subject.input(now, &seg) {
                self.last_drop = reason;
            }
        } else if syn_only && !self.active {
            self.exchange.received = Ranges::default();
            self.exchange.received.add(relative, relative.wrapping_add(1));
            self.exchange.out_next = 0;
            self.subject.accept(now, tcp::SeqNumber(self.exchange.iss), &seg);
        } else {
            tcp::reset_for(&seg, tx);
        }
        Ok(words)
    }

    fn decode(&self, bytes: &[u8], ect: bool) -> Result<Self::Sent, String> {
        let segment = Segment::parse(bytes).ok_or("the stack sent a malformed segment")?;
        Ok((segment, ect))
    }

    fn show(&self, (segment, _): &Self::Sent) -> String {
        self.exchange.show(segment, false)
    }

    fn compare(&mut self, action: &Action, (got, ect): &Self::Sent) -> Result<(), String> {
        let Action::Expect(line) = action else { return Err("no segment".into()) };
        self.exchange.compare(line, got)?;
        if line.args.has(if *ect { "no-ect" } else { "ect" }) {
            return Err(format!("ECN-capable: {ect}"));
        }
        self.exchange.on_segment(got);
        Ok(())
    }

    fn transmit(&mut self, now: Instant, tx: &mut Batch) {
        self.subject.transmit(now, tx);
    }

    fn timeout(&self) -> Option<Instant> {
        self.subject.timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.subject.handle_timeout(now);
    }

    fn execute(&mut self, now: Instant, args: &Args) -> Result<(), String> {
        if args.positional(0) != Some("connect") {
            return self.subject.execute(now, args, &self.exchange.streams);
        }
        if !self.active {
            return Err("`do connect` needs `set role active`".into());
        }
        self.subject.connect(now, tcp::SeqNumber(self.exchange.iss))
    }

    fn next_event(&mut self) -> Option<String> {
        self.subject.next_event()
    }

    fn check(&self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "drop" if value == self.last_drop => Ok(()),
            "drop" => Err(format!("drop is {}, expected {value}", self.last_drop)),
            "open" if value == if self.subject.is_open() { "yes" } else { "no" } => Ok(()),
            "open" => Err(format!("open is not {value}")),
            _ => self.subject.check(key, value, &self.exchange.streams),
        }
    }

    fn fault(&self) -> Option<String> {
        self.subject.fault()
    }
}

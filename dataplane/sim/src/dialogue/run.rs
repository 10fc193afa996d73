//! Plays a dialogue: the script is the peer and defines virtual time.
//!
//! A [`DialogueProtocol`] encodes and compares TCP segments or SCTP packets. Every segment that the stack sends must be
//! expected by a line, at the time of this line. Every line must be matched. Timers of the stack between two lines run
//! at their own time.

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::Write as _;

use base::Instant;
use tcp_lite::seam::TxBatch;

use ::dialogue::script::{Action, Args, Script, ScriptError, Step, StepTime};

/// Maximum difference between the time of a segment and the time of its line.
const TOLERANCE: Duration = Duration::from_millis(1);
/// Longest wait for a line with time `*`.
const MAX_WAIT: Duration = Duration::from_secs(1000);
/// Number of consecutive calls without progress after which the stack counts as spinning.
const MAX_CALLS: usize = 100_000;

/// Settings of a script for the stack under test: line number, key, value.
#[derive(Debug)]
pub(super) struct Settings(pub(super) Vec<(usize, String, String)>);

impl Settings {
    /// Calls `apply(key, value)` for each setting.
    pub(super) fn apply(
        &self,
        mut apply: impl FnMut(&str, &str) -> Result<(), String>,
    ) -> Result<(), ScriptError> {
        for (line, key, value) in &self.0 {
            apply(key, value).map_err(|what| ScriptError { line: *line, message: what })?;
        }
        Ok(())
    }
}

/// A transmit batch that keeps the segments or packets for later inspection.
#[derive(Debug)]
pub struct Batch {
    buffer: Vec<u8>,
    segments: Vec<Vec<u8>>,
    /// True if the segment being written is ECN-capable.
    ecn_capable: bool,
    /// ECN capability of each entry of `segments`.
    ect: Vec<bool>,
    max_segments: usize,
}

impl Default for Batch {
    /// Returns an unbounded batch.
    fn default() -> Self {
        Self::bounded(usize::MAX)
    }
}

impl Batch {
    /// Returns a batch with room for `bound` segments.
    pub fn bounded(bound: usize) -> Self {
        Batch {
            buffer: Vec::new(),
            segments: Vec::new(),
            ecn_capable: false,
            ect: Vec::new(),
            max_segments: bound,
        }
    }

    /// Returns the segments committed since the last call, each with `true` if it is to be sent as ECN-capable.
    pub fn take_with_ect(&mut self) -> Vec<(Vec<u8>, bool)> {
        let ect = std::mem::take(&mut self.ect);
        std::mem::take(&mut self.segments).into_iter().zip(ect).collect()
    }
}

impl TxBatch for Batch {
    fn reserve_segment(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.segments.len() >= self.max_segments {
            return None;
        }
        self.buffer.clear();
        // The fill byte reveals bytes that the stack does not write.
        self.buffer.resize(len, 0xA5);
        self.ecn_capable = false;
        Some(&mut self.buffer)
    }

    fn set_ecn_capable(&mut self) {
        self.ecn_capable = true;
    }

    fn commit(&mut self, len: usize) {
        self.segments.push(self.buffer[..len].to_vec());
        self.ect.push(self.ecn_capable);
    }
}

impl sctp_lite::seam::TxBatch for Batch {
    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
        TxBatch::reserve_segment(self, len)
    }

    fn commit(&mut self, len: usize) {
        TxBatch::commit(self, len);
    }
}

/// Protocol of a dialogue: the stack under test, and the codec between lines and bytes.
pub(super) trait DialogueProtocol {
    /// A decoded segment or packet of the stack.
    type Sent;
    /// Executes a `<` line, and returns its packet as text. Immediate replies go to `tx`.
    fn send(&mut self, now: Instant, action: &Action, tx: &mut Batch) -> Result<String, String>;
    /// Decodes a segment or packet of the stack.
    fn decode(&self, bytes: &[u8], ect: bool) -> Result<Self::Sent, String>;
    /// Formats a segment or packet for the transcript.
    fn show(&self, sent: &Self::Sent) -> String;
    /// Compares a segment or packet with a `>` line.
    fn compare(&mut self, action: &Action, sent: &Self::Sent) -> Result<(), String>;
    /// Writes the due segments or packets to `tx`.
    fn transmit(&mut self, now: Instant, tx: &mut Batch);
    /// Returns the expiry of the next timer.
    fn timeout(&self) -> Option<Instant>;
    /// Handles expired timers.
    fn handle_timeout(&mut self, now: Instant);
    /// Executes a `do` line.
    fn execute(&mut self, now: Instant, args: &Args) -> Result<(), String>;
    /// Returns the next event as text.
    fn next_event(&mut self) -> Option<String>;
    /// Checks one key and value of a `check` line.
    fn check(&self, key: &str, value: &str) -> Result<(), String>;
    /// Describes a violated invariant; `None` if all hold. Called after each line.
    fn fault(&self) -> Option<String>;
}

/// Plays `script` with this protocol.
///
/// # Errors
/// The first line from which the stack deviates, and the transcript so far.
pub(super) fn play_with<P: DialogueProtocol>(
    script: &Script,
    protocol: P,
) -> Result<(), ScriptError> {
    let mut run =
        Run { protocol, now: Instant::ZERO, sent: VecDeque::new(), transcript: String::new() };
    for step in &script.steps {
        run.step(step).map_err(|what| run.failure(step.line, &what))?;
    }
    let last = script.steps.last().map_or(1, |s| s.line);
    run.check_none_unexpected().map_err(|what| run.failure(last, &what))
}

struct Run<P: DialogueProtocol> {
    protocol: P,
    now: Instant,
    /// Segments or packets that the stack has sent and no line has matched yet, with their times.
    sent: VecDeque<(Instant, P::Sent)>,
    transcript: String,
}

impl<P: DialogueProtocol> Run<P> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let expects = matches!(step.action, Action::Expect(_) | Action::ExpectPacket(_));
        let at = match step.time {
            StepTime::Absolute(t) => Some(Instant::ZERO + t),
            StepTime::Relative(t) => Some(self.now + t),
            StepTime::Any if expects => None,
            StepTime::Any => return Err("only an expected segment may have the time `*`".into()),
        };
        if let Some(at) = at {
            if at < self.now {
                return Err(format!(
                    "the time of this line is in the past: it is {:?} now",
                    self.now
                ));
            }
            if !expects {
                self.advance(at)?;
            }
        }
        match &step.action {
            Action::Expect(_) | Action::ExpectPacket(_) => self.expect(&step.action, at)?,
            Action::Quiet => self.check_none_unexpected()?,
            Action::Send(_) | Action::SendPacket(_) => {
                self.check_none_unexpected()?;
                self.send(&step.action)?;
            }
            Action::Do(args) => {
                self.check_none_unexpected()?;
                self.protocol.execute(self.now, args)?;
                self.transmit()?;
            }
            Action::Event(words) => self.expect_event(words)?,
            Action::Check(args) => {
                args.pairs().try_for_each(|(key, value)| self.protocol.check(key, value))?;
            }
        }
        self.protocol.fault().map_or(Ok(()), Err)
    }

    fn send(&mut self, action: &Action) -> Result<(), String> {
        let mut tx = Batch::default();
        let words = self.protocol.send(self.now, action, &mut tx)?;
        let _ = writeln!(self.transcript, "{:?} < {words}", self.now);
        self.collect(&mut tx)?;
        self.transmit()
    }

    fn expect(&mut self, action: &Action, at: Option<Instant>) -> Result<(), String> {
        match at {
            Some(at) if self.sent.is_empty() => {
                self.advance(at)?;
                self.wait_for_segment(at + TOLERANCE)?;
            }
            Some(_) => {}
            None => self.wait_for_segment(self.now + MAX_WAIT)?,
        }
        let Some((sent, got)) = self.sent.pop_front() else {
            return Err("the stack sends nothing".into());
        };
        if let Some(at) = at
            && (sent + TOLERANCE < at || at + TOLERANCE < sent)
        {
            return Err(format!("sent at {sent:?}, expected at {at:?}"));
        }
        self.protocol.compare(action, &got)
    }

    fn expect_event(&mut self, words: &[String]) -> Result<(), String> {
        let mut seen = Vec::new();
        while let Some(event) = self.protocol.next_event() {
            if words.iter().all(|word| event.contains(word.as_str())) {
                return Ok(());
            }
            seen.push(event);
        }
        Err(format!("no event with {words:?}; there was {seen:?}"))
    }

    /// Advances the time to `to`; timers run at their own time.
    fn advance(&mut self, to: Instant) -> Result<(), String> {
        for _ in 0..MAX_CALLS {
            match self.protocol.timeout().filter(|&t| t <= to) {
                Some(t) => {
                    self.now = self.now.max(t);
                    self.protocol.handle_timeout(self.now);
                    self.transmit()?;
                }
                None => {
                    self.now = to;
                    return Ok(());
                }
            }
        }
        Err("the stack's timer never advances".into())
    }

    fn wait_for_segment(&mut self, limit: Instant) -> Result<(), String> {
        while self.sent.is_empty() {
            match self.protocol.timeout().filter(|&t| t <= limit) {
                Some(t) => self.advance(t.max(self.now))?,
                None => break,
            }
        }
        Ok(())
    }

    fn transmit(&mut self) -> Result<(), String> {
        let mut tx = Batch::default();
        for _ in 0..MAX_CALLS {
            self.protocol.transmit(self.now, &mut tx);
            if !self.collect(&mut tx)? {
                return Ok(());
            }
        }
        Err("poll_transmit never stops".into())
    }

    fn collect(&mut self, tx: &mut Batch) -> Result<bool, String> {
        let segments = tx.take_with_ect();
        let any = !segments.is_empty();
        for (bytes, ect) in segments {
            let sent = self.protocol.decode(&bytes, ect)?;
            let _ = writeln!(self.transcript, "{:?} > {}", self.now, self.protocol.show(&sent));
            self.sent.push_back((self.now, sent));
        }
        Ok(any)
    }

    fn check_none_unexpected(&self) -> Result<(), String> {
        match self.sent.front() {
            None => Ok(()),
            Some((at, sent)) => Err(format!("unexpected: {at:?} > {}", self.protocol.show(sent))),
        }
    }

    fn failure(&self, line: usize, error: &str) -> ScriptError {
        ScriptError { line, message: format!("{error}\nsegments so far:\n{}", self.transcript) }
    }
}

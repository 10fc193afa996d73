//! Sequence numbers of both sides in a dialogue. Builds the segment of a `<` line, and compares a segment with a `>`
//! line. Shared by all players of dialogues; each player handles times itself.

use crate::script::{Args, SegmentLine, number};
use crate::segment::{Flags, Segment};
use crate::streams::Streams;

/// Strictness of the comparison between a segment and its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strictness {
    /// All fields of the line must match: the stack is this project's, configured by the script.
    Exact,
    /// Another host's stack, which chooses its own window and window scale. The comparison distinguishes only zero and
    /// non-zero windows.
    IgnoreWindow,
}

/// State of a dialogue: the streams and sequence numbers of both sides.
#[derive(Debug)]
pub struct Exchange {
    /// Byte streams of both sides.
    pub streams: Streams,
    /// Initial sequence number of the side under test.
    pub iss: u32,
    /// Initial sequence number of the peer, which the script plays.
    pub peer_iss: u32,
    /// Relative sequence numbers of the segments that the peer has sent.
    pub received: Ranges,
    /// End of the sequence space that the side under test has sent, as a relative sequence number.
    pub out_next: u32,
    /// Ports of the peer and of the side under test.
    pub ports: (u16, u16),
    /// Strictness of the comparison with `>` lines.
    pub strictness: Strictness,
}

impl Exchange {
    /// Creates the state before the first segment.
    pub fn new(
        streams: Streams,
        iss: u32,
        peer_iss: u32,
        ports: (u16, u16),
        rigour: Strictness,
    ) -> Exchange {
        Exchange {
            streams,
            iss,
            peer_iss,
            received: Ranges::default(),
            out_next: 0,
            ports,
            strictness: rigour,
        }
    }

    /// Records the sequence numbers of a segment of the peer.
    pub fn on_peer_segment(&mut self, segment: &Segment) {
        let relative = segment.seq.wrapping_sub(self.peer_iss);
        self.received.add(relative, relative.wrapping_add(segment.sequence_len()));
    }

    /// Records the sequence numbers of a segment of the side under test.
    pub fn on_segment(&mut self, segment: &Segment) {
        let relative = segment.seq.wrapping_sub(self.iss);
        let end = relative.wrapping_add(segment.sequence_len());
        if !segment.flags.has(Flags::RST) && (end.wrapping_sub(self.out_next) as i32) > 0 {
            self.out_next = end;
        }
    }

    /// Builds the segment of a `<` line.
    ///
    /// # Errors
    /// The invalid part of the line.
    pub fn build_segment(&self, line: &SegmentLine) -> Result<Segment, String> {
        line.args.check_known_keys(&[
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
            src_port: self.ports.0,
            dst_port: self.ports.1,
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
            options.raw = crate::streams::parse_bytes(&format!("hex:{text}"))?;
        }
        Ok(segment)
    }

    /// Compares `got` with a `>` line.
    ///
    /// # Errors
    /// The first difference, or the invalid part of the line.
    pub fn compare(&self, line: &SegmentLine, got: &Segment) -> Result<(), String> {
        line.args.check_known_keys(&[
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
        // PSH is only a hint to the receiver, so it is compared only if the line sets it.
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
                    "payload of {} bytes, expected {}; first difference at {first:?}",
                    got.payload.len(),
                    payload.len()
                ));
            }
            None => {}
        }
        if let Some(text) = line.args.get("win") {
            let wanted = number(text)?;
            let same = match self.strictness {
                Strictness::Exact => u64::from(got.window) == wanted,
                Strictness::IgnoreWindow => (got.window == 0) == (wanted == 0),
            };
            if !same {
                return differs("win", &got.window, &text);
            }
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
            && self.strictness == Strictness::Exact
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

    /// Formats `segment` with relative sequence numbers and, unless it is the peer's, the names of its pieces.
    pub fn show(&self, segment: &Segment, from_peer: bool) -> String {
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
}

/// Ranges of relative sequence numbers that one side has used.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// Adds `from..to`.
    pub fn add(&mut self, from: u32, to: u32) {
        self.0.push((from, to));
        self.0.sort_unstable();
    }

    /// Returns the end of the contiguous range that starts at 0.
    pub fn contiguous(&self) -> u32 {
        self.0.iter().fold(0, |end, &(from, to)| if from <= end { end.max(to) } else { end })
    }
}

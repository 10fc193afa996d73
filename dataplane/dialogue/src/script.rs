//! The text of a dialogue, parsed into checked values. `dialogues/README.md` describes the format.

use core::fmt;
use core::time::Duration;

use crate::segment::Flags;

/// A parsed dialogue.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// Behaviour under test, in one line.
    pub title: String,
    /// `set` lines, which configure the stack under test, and `framing` lines, which configure the encoding of the
    /// streams.
    pub settings: Vec<Setting>,
    /// Pieces of the two streams, in the order of the file.
    pub pieces: Vec<Piece>,
    /// Timed lines, in the order of the file.
    pub steps: Vec<Step>,
}

/// A `set` or `framing` line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Line number in the file, from 1.
    pub line: usize,
    /// Key of a `set` line; `in.` or `out.` and the option for a `framing` line.
    pub key: String,
    /// Value as written in the line.
    pub value: String,
}

/// Direction of a stream, seen from the stack under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Peer to stack under test.
    In,
    /// Stack under test to peer.
    Out,
}

/// A named run of bytes of one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Line number in the file, from 1.
    pub line: usize,
    /// Stream that contains the piece.
    pub direction: Direction,
    /// Name by which slices refer to the piece.
    pub name: String,
    /// Kind of content: `tagged`, `request`, `hex`, ...
    pub kind: String,
    /// Arguments that describe the content.
    pub args: Args,
}

/// Words and `key=value` pairs of a line, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Args(Vec<(String, Option<String>)>);

/// A timed line of a dialogue.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// Line number in the file, from 1.
    pub line: usize,
    /// Time at which the action takes place or is expected.
    pub time: StepTime,
    /// Action of the peer or the local user, or expected behaviour of the stack.
    pub action: Action,
}

/// Time at which a [`Step`] takes place or is expected: absolute, relative to the previous step, or any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepTime {
    /// Time since the start of the dialogue.
    Absolute(Duration),
    /// Time since the previous step.
    Relative(Duration),
    /// Any time; only for `>` lines.
    Any,
}

/// Action of the peer or the local user, or expected behaviour of the stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// `<`: the peer sends a segment.
    Send(SegmentLine),
    /// `<`: the peer sends an SCTP packet.
    SendPacket(PacketLine),
    /// `>`: the stack under test sends a segment.
    Expect(SegmentLine),
    /// `>`: the stack under test sends an SCTP packet.
    ExpectPacket(PacketLine),
    /// `do`: the local user calls the stack.
    Do(Args),
    /// `event`: the stack reports an event whose text contains every word.
    Event(Vec<String>),
    /// `check`: properties of the stack have these values now.
    Check(Args),
    /// `quiet`: the stack has sent nothing up to now.
    Quiet,
}

/// Content of a `<` or `>` line with a TCP segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentLine {
    /// TCP flags, written as letters of `SFRPAUEC`.
    pub flags: Flags,
    /// `data=` as written: pieces or slices of them joined by `+`.
    pub data: Vec<Slice>,
    /// All other arguments of the segment.
    pub args: Args,
}

/// Content of a `<` or `>` line with an SCTP packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PacketLine {
    /// Fields of the packet outside its chunks.
    pub args: Args,
    /// Chunks in the order of the line.
    pub chunks: Vec<ChunkLine>,
}

/// A chunk in the line of an SCTP packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChunkLine {
    /// Chunk type: `INIT`, `DATA`, ...
    pub kind: String,
    /// Arguments of the chunk, such as `tsn=`.
    pub args: Args,
}

/// A piece, or a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slice {
    /// Name of the [`Piece`].
    pub name: String,
    /// Offset of the first byte in the piece.
    pub from: usize,
    /// Offset after the last byte; `None`: the end of the piece.
    pub to: Option<usize>,
}

/// An error in a script, found by the parser or the player.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScriptError {
    /// Line number in the file, from 1.
    pub line: usize,
    /// The error as a sentence, without the line number.
    pub message: String,
}

impl Script {
    /// Parses the text of a dialogue.
    ///
    /// # Errors
    /// The first line that does not follow the format.
    pub fn parse(text: &str) -> Result<Script, ScriptError> {
        let mut script = Script::default();
        for (n, raw) in text.lines().enumerate() {
            let line = n + 1;
            let content = raw.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            script.line(line, content).map_err(|what| ScriptError { line, message: what })?;
        }
        if script.title.is_empty() {
            return Err(ScriptError { line: 1, message: "the script has no `title`".into() });
        }
        Ok(script)
    }

    fn line(&mut self, line: usize, content: &str) -> Result<(), String> {
        let (head, rest) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
        let rest = rest.trim();
        match head {
            "title" => self.title = rest.to_owned(),
            "set" => {
                let (key, value) = rest.split_once(char::is_whitespace).ok_or("set KEY VALUE")?;
                self.setting(line, key, value.trim());
            }
            "framing" => {
                let mut words = rest.split_whitespace();
                let direction = words
                    .next()
                    .ok_or("framing in|out markers=on|off crc=on|off draft-pointers=on|off")?;
                for word in words {
                    let (key, value) = word.split_once('=').ok_or("framing takes key=value")?;
                    self.setting(line, &format!("{direction}.{key}"), value);
                }
            }
            "in" | "out" => {
                let direction = if head == "in" { Direction::In } else { Direction::Out };
                let piece = Piece::parse(line, direction, rest)?;
                if self.pieces.iter().any(|p| p.name == piece.name) {
                    return Err(format!("the name `{}` is taken", piece.name));
                }
                self.pieces.push(piece);
            }
            time => {
                let at = StepTime::parse(time)?;
                let sctp = self.settings.iter().any(|s| s.key == "stack" && s.value == "sctp");
                let action = Action::parse(rest, sctp)?;
                self.steps.push(Step { line, time: at, action });
            }
        }
        Ok(())
    }

    fn setting(&mut self, line: usize, key: &str, value: &str) {
        self.settings.push(Setting { line, key: key.to_owned(), value: value.to_owned() });
    }
}

impl Piece {
    fn parse(line: usize, direction: Direction, text: &str) -> Result<Piece, String> {
        let (name, what) = text.split_once('=').ok_or("expected NAME = KIND ...")?;
        let (kind, args) = what.trim().split_once(char::is_whitespace).unwrap_or((what.trim(), ""));
        let name = name.trim().to_owned();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("`{name}` is no name for a piece"));
        }
        let args = Args::parse(args);
        Ok(Piece { line, direction, name, kind: kind.to_owned(), args })
    }
}

impl StepTime {
    fn parse(text: &str) -> Result<StepTime, String> {
        if text == "*" {
            return Ok(StepTime::Any);
        }
        if text == "." {
            return Ok(StepTime::Relative(Duration::ZERO));
        }
        let (relative, number) = match text.strip_prefix('+') {
            Some(number) => (true, number),
            None => (false, text),
        };
        let seconds: f64 = number
            .parse()
            .map_err(|_| format!("`{text}` is neither a directive nor a time in seconds"))?;
        let time = Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?;
        Ok(if relative { StepTime::Relative(time) } else { StepTime::Absolute(time) })
    }
}

impl Action {
    fn parse(text: &str, sctp: bool) -> Result<Action, String> {
        let (verb, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        Ok(match verb {
            "<" if sctp => Action::SendPacket(PacketLine::parse(rest)),
            ">" if sctp => Action::ExpectPacket(PacketLine::parse(rest)),
            "<" => Action::Send(SegmentLine::parse(rest)?),
            ">" => Action::Expect(SegmentLine::parse(rest)?),
            "do" => Action::Do(Args::parse(rest)),
            "event" => Action::Event(rest.split_whitespace().map(str::to_owned).collect()),
            "check" => Action::Check(Args::parse(rest)),
            "quiet" => Action::Quiet,
            other => return Err(format!("`{other}` is none of < > do event check quiet")),
        })
    }
}

impl SegmentLine {
    fn parse(text: &str) -> Result<SegmentLine, String> {
        let (flags, rest) =
            text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        let flags = Flags::from_letters(flags).ok_or_else(|| format!("`{flags}` are no flags"))?;
        let mut args = Args::parse(rest);
        let data = match args.take("data") {
            None => Vec::new(),
            Some(list) => list.split('+').map(Slice::parse).collect::<Result<_, _>>()?,
        };
        Ok(SegmentLine { flags, data, args })
    }
}

impl PacketLine {
    fn parse(text: &str) -> PacketLine {
        let mut packet = PacketLine::default();
        for part in text.split('|').map(str::trim) {
            let (kind, rest) = part.split_once(char::is_whitespace).unwrap_or((part, ""));
            let args = Args::parse(rest);
            match kind {
                "packet" => packet.args = args,
                kind => packet.chunks.push(ChunkLine { kind: kind.to_owned(), args }),
            }
        }
        packet
    }
}

impl Slice {
    fn parse(text: &str) -> Result<Slice, String> {
        let Some((name, range)) = text.split_once('[') else {
            return Ok(Slice { name: text.to_owned(), from: 0, to: None });
        };
        let (from, to) = range
            .strip_suffix(']')
            .and_then(|r| r.split_once(".."))
            .ok_or_else(|| format!("`{text}`: a slice is NAME[FROM..TO]"))?;
        let number = |s: &str| s.parse::<usize>().map_err(|_| format!("`{s}` in `{text}`"));
        let from = if from.is_empty() { 0 } else { number(from)? };
        let to = if to.is_empty() { None } else { Some(number(to)?) };
        Ok(Slice { name: name.to_owned(), from, to })
    }
}

impl Args {
    fn parse(text: &str) -> Args {
        Args(
            text.split_whitespace()
                .map(|word| match word.split_once('=') {
                    Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                    None => (word.to_owned(), None),
                })
                .collect(),
        )
    }

    /// Returns the value of the first `key=`; `None` if there is none.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).and_then(|(_, v)| v.as_deref())
    }

    /// Returns true if the word `key` is present, with or without a value.
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    /// Returns the `n`th word without a value, from 0.
    pub fn positional(&self, n: usize) -> Option<&str> {
        self.0.iter().filter(|(_, v)| v.is_none()).nth(n).map(|(k, _)| k.as_str())
    }

    /// Returns the `key=value` pairs, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(k, v)| Some((k.as_str(), v.as_deref()?)))
    }

    /// Returns the number after `key=`, decimal or `0x` hexadecimal; `default` if the key is missing.
    ///
    /// # Errors
    /// The value is not a number.
    pub fn number(&self, key: &str, default: u64) -> Result<u64, String> {
        self.get(key).map_or(Ok(default), number)
    }

    /// Returns true for `on` after `key=`, false for `off`; `default` if the key is missing.
    ///
    /// # Errors
    /// The value is neither `on` nor `off`.
    pub fn switch(&self, key: &str, default: bool) -> Result<bool, String> {
        self.get(key).map_or(Ok(default), switch)
    }

    /// Checks that all keys are in `known`, so that a typing error is not ignored.
    ///
    /// # Errors
    /// The first unknown key.
    pub fn check_known_keys(&self, known: &[&str]) -> Result<(), String> {
        match self.0.iter().find(|(k, _)| !known.contains(&k.as_str())) {
            Some((key, _)) => Err(format!("`{key}` is none of {}", known.join(", "))),
            None => Ok(()),
        }
    }

    /// Sets the value of `key=`; adds the key if it is missing.
    pub fn set(&mut self, key: &str, value: &str) {
        match self.0.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = Some(value.to_owned()),
            None => self.0.push((key.to_owned(), Some(value.to_owned()))),
        }
    }

    /// Removes `key` and its value, if present.
    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(k, _)| k != key);
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(k, v)| k == key && v.is_some())?;
        self.0.remove(at).1
    }
}

impl fmt::Display for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (key, value)) in self.0.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            match value {
                Some(value) => write!(f, "{space}{key}={value}")?,
                None => write!(f, "{space}{key}")?,
            }
        }
        Ok(())
    }
}

/// Parses a decimal or `0x` hexadecimal number.
///
/// # Errors
/// `text` is not a number.
pub fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is not a number"))
}

/// Parses `on` or `off`.
///
/// # Errors
/// `text` is neither `on` nor `off`.
pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("`{other}` is neither on nor off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_parses_all_line_kinds() {
        let script = Script::parse(
            "# a comment\n\
             title A greeting\n\
             set role passive\n\
             framing in markers=on crc=off\n\
             in req = request rev=1 pd=hex:00ff\n\
             0.5 < S seq=0 win=1000 mss=1460\n\
             * > SA ack=1\n\
             +0.25 < PA data=req[0..4]+req[4..]   # cut\n\
             . do accept\n\
             . event Established\n\
             . quiet\n",
        )
        .expect("good script");
        assert_eq!(script.title, "A greeting");
        assert_eq!(script.settings.len(), 3);
        assert_eq!(script.settings[1].key, "in.markers");
        assert_eq!(script.pieces[0].args.get("pd"), Some("hex:00ff"));
        assert_eq!(script.steps.len(), 6);
        assert_eq!(script.steps[0].time, StepTime::Absolute(Duration::from_millis(500)));
        assert_eq!(script.steps[1].time, StepTime::Any);
        let Action::Send(cut) = &script.steps[2].action else { panic!("not a segment") };
        assert_eq!(cut.data[1], Slice { name: "req".into(), from: 4, to: None });
    }

    #[test]
    fn bad_lines_are_refused_with_their_number() {
        for (text, line) in [
            ("0 < S\n", 1),
            ("title x\nfoo bar\n", 2),
            ("title x\n0 < XYZ\n", 2),
            ("title x\n0 shout\n", 2),
            ("title x\n0 < A data=a[1-2]\n", 2),
            ("title x\nin a = hex 00\nin a = hex 00\n", 3),
            ("title x\nset y\n", 2),
        ] {
            let error = Script::parse(text).expect_err(text);
            assert_eq!(error.line, line, "{text}: {error}");
        }
    }

    #[test]
    fn unknown_keys_are_named() {
        let args = Args::parse("a=1 b");
        assert!(args.check_known_keys(&["a", "b"]).is_ok());
        assert!(args.check_known_keys(&["a"]).expect_err("b is unknown").contains("`b`"));
        assert_eq!(args.number("a", 0), Ok(1));
        assert!(Args::parse("a=x").number("a", 0).is_err());
    }
}

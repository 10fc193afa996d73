//! Cases and their text format. A file is a list of cases; `docs/iwspec.md` describes the lines.

use std::time::Duration;

use crate::message::{self, Kind};
use crate::value::{Arguments, Operator};

/// Names of the capabilities, and their meanings.
pub const CAPABILITIES: &[(&str, &str)] = &[
    ("write", "memory that peers may write"),
    ("read", "memory that peers may read"),
    ("both", "memory that peers may read and write"),
    ("source", "memory that peers may read and not write"),
    ("inbox", "memory that peers may write and not read"),
    ("exact", "the lengths of memory are known exactly, not only a lower limit"),
    ("shared", "memory keeps its bytes from one connection to the next"),
    ("atomic", "memory on which peers may do atomic operations"),
    ("send", "the device accepts Sends and stays silent"),
    ("echo", "the device answers each Send, or each message of queue 0, with the same bytes"),
    ("own", "memory whose STag a Send with Invalidate invalidates"),
    ("receive", "receives of known length ($receive.len) and number ($receive.count)"),
    ("asks", "the device sends a Read Request and waits for the Response ($asks.stag: its sink)"),
    ("alive", "the device answers RDMA Reads of no bytes"),
    (BARE, "DDP without RDMAP"),
    (SEGMENTS, "the test builds the TCP segments itself, and sees the device's segments: --raw"),
];

/// Capability of devices whose ULP uses DDP without RDMAP.
pub const BARE: &str = "bare";
/// Capability that only the raw port has: the test builds each TCP segment itself.
pub const SEGMENTS: &str = "segments";

/// Strength of a requirement, by the words of its specification.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
pub enum Level {
    /// MUST, MUST NOT, REQUIRED, SHALL.
    #[serde(rename = "MUST")]
    Must,
    /// A requirement in ordinary words ("must", "is") or in a figure.
    #[serde(rename = "must")]
    Plain,
    /// SHOULD, SHOULD NOT, RECOMMENDED.
    #[serde(rename = "SHOULD")]
    Should,
    /// MAY, OPTIONAL. The device must accept a tester that uses the permission.
    #[serde(rename = "MAY")]
    May,
}

impl Level {
    /// Returns the word of the specification.
    pub fn name(self) -> &'static str {
        match self {
            Level::Must => "MUST",
            Level::Plain => "must",
            Level::Should => "SHOULD",
            Level::May => "MAY",
        }
    }

    fn parse(word: &str) -> Option<Level> {
        [Level::Must, Level::Plain, Level::Should, Level::May]
            .into_iter()
            .find(|l| l.name() == word)
    }
}

/// Role of the device in the MPA start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The device accepts connections.
    Responder,
    /// The device opens connections.
    Initiator,
}

impl Role {
    /// Returns the role's name in case files.
    pub fn name(self) -> &'static str {
        match self {
            Role::Responder => "responder",
            Role::Initiator => "initiator",
        }
    }
}

/// Lower layer of DDP to test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// MPA over TCP (RFC 5044)
    Tcp,
    /// SCTP in UDP (RFC 5043, RFC 6951)
    Sctp,
}

impl Transport {
    /// Returns the transport's name in case files.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Sctp => "sctp",
        }
    }

    /// Returns the transport that the case `id` requires: TCP for `mpa/…`, SCTP for `sctp/…`; `None` for layers that
    /// run over both.
    fn of(id: &str) -> Option<Transport> {
        match id.split('/').next() {
            Some("mpa") => Some(Transport::Tcp),
            Some("sctp") => Some(Transport::Sctp),
            _ => None,
        }
    }
}

/// A memory or message service of the device that a case requires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Need {
    /// Name of the capability, as in [`CAPABILITIES`].
    pub capability: String,
    /// Bytes of memory that the case uses; 0 for capabilities without memory.
    pub bytes: u64,
}

/// A line of a case, parsed into an action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Line in the file, counted from 1.
    pub line: usize,
    /// Text of the line, for reports.
    pub text: String,
    /// Action of the line.
    pub action: Action,
}

/// Action of the tester, or a check, in one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Opens the TCP connection or the SCTP association.
    Open(Arguments),
    /// Opens the connection, performs a correct start-up, and prepares the needed capabilities.
    Start(Arguments),
    /// Ends the case as not applicable unless these conditions on facts hold.
    Require(Arguments),
    /// Fails the case unless these conditions on facts hold.
    Verify(Arguments),
    /// Appends a frame to the output.
    Send(Kind, Arguments),
    /// Sends the output in one write.
    Flush,
    /// Sizes in bytes of the writes of the next flush. The last size repeats.
    Cut(Vec<usize>),
    /// Order of the segments of the next flush, on the raw port.
    Order(Order),
    /// Sends the segments that a previous `order` line has held back.
    Release,
    /// Sends the bytes of the last flush again, in segments of these sizes.
    Repeat(Vec<usize>),
    /// Drops the next segments of the device that have payload.
    Lose(usize),
    /// Limits the MTU of the path from the device to the tester, bytes.
    Path(u16),
    /// Flushes, and waits.
    Wait(Duration),
    /// Receives the next message, which must match an alternative.
    Expect(Vec<Expected>),
    /// Checks that the device answers an RDMA Read of no bytes.
    Alive,
    /// Half-closes the connection: sends FIN, or a Terminate of the session over SCTP.
    Finish,
    /// Shuts the SCTP association down.
    Shutdown,
    /// Resets the connection (RST), or aborts the SCTP association.
    Reset,
}

impl Action {
    /// Returns true for steps that require a raw port.
    fn is_raw(&self) -> bool {
        match self {
            Action::Order(_)
            | Action::Release
            | Action::Repeat(_)
            | Action::Lose(_)
            | Action::Path(_) => true,
            Action::Start(arguments) => arguments.get("timestamps").is_some(),
            Action::Expect(alternatives) => {
                alternatives.iter().any(|e| e.conditions.get("aligned").is_some())
            }
            _ => false,
        }
    }
}

/// Order of segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// The segments with these indices, from 0, in this order. The other segments are held until `release`.
    Indices(Vec<usize>),
    /// All segments, the last first.
    Reverse,
}

/// One alternative of an `expect` line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    /// Kind of the message or event.
    pub kind: Kind,
    /// Conditions on the fields; all must hold.
    pub conditions: Arguments,
}

/// A test case: a requirement, and the steps that test it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// Identifier such as `mpa/7.1.1-4`.
    pub id: String,
    /// File without extension, such as `mpa/startup`.
    pub group: String,
    /// Strength of the requirement.
    pub level: Level,
    /// Specification and section, such as `RFC 5044 §7.1.1`.
    pub section: String,
    /// The requirement in one or two sentences.
    pub text: String,
    /// Role of the device; `None`: either.
    pub role: Option<Role>,
    /// Required transport; `None`: either.
    pub transport: Option<Transport>,
    /// Capabilities of the device that the case requires.
    pub needs: Vec<Need>,
    /// Flaws of `iwspec-flawed`, each of which the case must detect.
    pub flaws: Vec<String>,
    /// Steps in the order of the file.
    pub steps: Vec<Step>,
}

/// A requirement that a peer cannot observe on the wire.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Unseen {
    /// Identifier such as `mpa/7.1.1-4`.
    pub id: String,
    /// Strength of the requirement.
    pub level: Level,
    /// Specification and section, such as `RFC 5044 §7.1.1`.
    pub section: String,
    /// The requirement in one or two sentences.
    pub text: String,
    /// Reason why no peer can observe it.
    pub because: String,
}

/// Content of a case file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct File {
    /// Cases in the order of the file.
    pub cases: Vec<Case>,
    /// Requirements that no case tests.
    pub unseen: Vec<Unseen>,
}

#[derive(Default)]
struct Block {
    line: usize,
    unseen: bool,
    id: String,
    level: Option<Level>,
    section: String,
    text: Vec<String>,
    because: Vec<String>,
    role: Option<Role>,
    transport: Option<Transport>,
    needs: Vec<Need>,
    flaws: Vec<String>,
    steps: Vec<Step>,
}

/// Parses a file of cases. `group` names the file in messages.
///
/// # Errors
/// One sentence with the file and line number of the first invalid line.
pub fn parse(group: &str, text: &str) -> Result<File, String> {
    let mut file = File::default();
    let mut block: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let at = |what: String| format!("{group}:{line_number}: {what}");
        if matches!(word, "case" | "unseen") {
            if let Some(block) = block.take() {
                block.finish(group, &mut file)?;
            }
            block = Some(heading(word, rest, line_number).map_err(at)?);
            continue;
        }
        let Some(block) = &mut block else {
            return Err(at("a line before the first `case`".into()));
        };
        block.add(word, rest.trim(), line, line_number).map_err(at)?;
    }
    if let Some(block) = block {
        block.finish(group, &mut file)?;
    }
    Ok(file)
}

fn heading(word: &str, rest: &str, line: usize) -> Result<Block, String> {
    let (id, level) = rest.trim().split_once(' ').ok_or("`case ID LEVEL` is missing its level")?;
    let level = Level::parse(level.trim())
        .ok_or(format!("`{level}` is none of MUST, must, SHOULD, MAY"))?;
    if !id.contains('/') {
        return Err(format!("`{id}` is not LAYER/SECTION-NUMBER"));
    }
    Ok(Block {
        line,
        unseen: word == "unseen",
        id: id.into(),
        transport: Transport::of(id),
        level: Some(level),
        ..Block::default()
    })
}

impl Block {
    fn add(&mut self, word: &str, rest: &str, line: &str, number: usize) -> Result<(), String> {
        match word {
            "section" => self.section = rest.into(),
            "text" => self.text.push(rest.into()),
            "because" if self.unseen => self.because.push(rest.into()),
            _ if self.unseen => return Err(format!("`{word}` has no place in `unseen`")),
            "device" => self.role = Some(role(rest)?),
            "transport" => self.transport = Some(transport(rest)?),
            "needs" => self.needs = needs(rest)?,
            "flaw" => self.flaws.push(rest.into()),
            _ => {
                let action = action(word, rest)?;
                self.steps.push(Step { line: number, text: line.into(), action });
            }
        }
        Ok(())
    }

    fn finish(self, group: &str, file: &mut File) -> Result<(), String> {
        let at = |what: &str| format!("{group}:{}: {} {what}", self.line, self.id);
        let level = self.level.ok_or_else(|| at("has no level"))?;
        if self.section.is_empty() || self.text.is_empty() {
            return Err(at("has no `section` or no `text`"));
        }
        if self.unseen {
            if self.because.is_empty() {
                return Err(at("has no `because`"));
            }
            file.unseen.push(Unseen {
                id: self.id,
                level,
                section: self.section,
                text: self.text.join(" "),
                because: self.because.join(" "),
            });
            return Ok(());
        }
        // With the kernel's TCP, the kernel determines the segments, so these steps need the raw port.
        if self.steps.iter().any(|s| s.action.is_raw())
            && !self.needs.iter().any(|n| n.capability == SEGMENTS)
        {
            return Err(at("needs `segments`"));
        }
        if !self
            .steps
            .iter()
            .any(|s| matches!(s.action, Action::Expect(_) | Action::Alive | Action::Verify(_)))
        {
            return Err(at("expects nothing"));
        }
        file.cases.push(Case {
            id: self.id,
            group: group.into(),
            level,
            section: self.section,
            text: self.text.join(" "),
            role: self.role,
            transport: self.transport,
            needs: self.needs,
            flaws: self.flaws,
            steps: self.steps,
        });
        Ok(())
    }
}

fn role(word: &str) -> Result<Role, String> {
    match word {
        "responder" => Ok(Role::Responder),
        "initiator" => Ok(Role::Initiator),
        other => Err(format!("`{other}` is neither responder nor initiator")),
    }
}

fn transport(word: &str) -> Result<Transport, String> {
    match word {
        "tcp" => Ok(Transport::Tcp),
        "sctp" => Ok(Transport::Sctp),
        other => Err(format!("`{other}` is neither tcp nor sctp")),
    }
}

fn needs(words: &str) -> Result<Vec<Need>, String> {
    let need = |word: &str| {
        let (capability, bytes) = word.split_once(':').unwrap_or((word, "0"));
        if !CAPABILITIES.iter().any(|(name, _)| *name == capability) {
            return Err(format!("`{capability}` is not a capability"));
        }
        let bytes = bytes.parse().map_err(|_| format!("`{bytes}` is not a number of bytes"))?;
        Ok(Need { capability: capability.into(), bytes })
    };
    words.split_whitespace().map(need).collect()
}

fn action(word: &str, rest: &str) -> Result<Action, String> {
    let arguments = || Arguments::parse(rest.split_whitespace());
    let alone = |action| {
        if rest.is_empty() { Ok(action) } else { Err(format!("`{word}` has no arguments")) }
    };
    match word {
        "open" => {
            let arguments = arguments()?;
            arguments.check(&["adaptation", "streams"])?;
            Ok(Action::Open(arguments))
        }
        "shutdown" => alone(Action::Shutdown),
        "flush" => alone(Action::Flush),
        "alive" => alone(Action::Alive),
        "finish" => alone(Action::Finish),
        "reset" => alone(Action::Reset),
        "start" => {
            let arguments = arguments()?;
            arguments.check(&[
                "rev",
                "markers",
                "crc",
                "ird",
                "ord",
                "enhanced",
                "flags",
                "draft",
                "mss",
                "timestamps",
                "streams",
            ])?;
            Ok(Action::Start(arguments))
        }
        "require" => Ok(Action::Require(arguments()?)),
        "verify" => Ok(Action::Verify(arguments()?)),
        "send" => {
            let (kind, arguments) = kind_and_arguments(rest)?;
            let keys =
                message::sent_keys(kind).ok_or(format!("`{}` cannot be sent", kind.name()))?;
            arguments.check(&[keys, message::SENT_OVER_SCTP].concat())?;
            if arguments.0.iter().any(|a| a.operator != Operator::Equal) {
                return Err("a sent field has a value, not a condition".into());
            }
            Ok(Action::Send(kind, arguments))
        }
        "expect" => {
            let alternative = |text: &str| {
                let (kind, conditions) = kind_and_arguments(text)?;
                conditions
                    .check(&[message::received_keys(kind), message::RECEIVED_OVER_SCTP].concat())?;
                Ok(Expected { kind, conditions })
            };
            rest.split('|').map(alternative).collect::<Result<_, String>>().map(Action::Expect)
        }
        "cut" => sizes(rest).map(Action::Cut),
        "order" if rest == "reverse" => Ok(Action::Order(Order::Reverse)),
        "order" => {
            let numbers = sizes(rest)?;
            Ok(Action::Order(Order::Indices(numbers.into_iter().map(|n| n - 1).collect())))
        }
        "release" => alone(Action::Release),
        "repeat" => sizes(rest).map(Action::Repeat),
        "lose" => size(rest).map(Action::Lose),
        "path" => match size(rest).map(u16::try_from) {
            Ok(Ok(mtu)) => Ok(Action::Path(mtu)),
            _ => Err(format!("`{rest}` is not an MTU of 1 to 65535")),
        },
        "wait" => match rest.parse::<f64>() {
            Ok(seconds) if (0.0..=10.0).contains(&seconds) => {
                Ok(Action::Wait(Duration::from_secs_f64(seconds)))
            }
            _ => Err(format!("`{rest}` is not a time of 0 to 10 seconds")),
        },
        other => Err(format!("`{other}` is not a step")),
    }
}

/// Parses numbers above 0, separated by commas.
fn sizes(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(size).collect()
}

fn size(word: &str) -> Result<usize, String> {
    match word.trim().parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("`{word}` is not a number above 0")),
    }
}

fn kind_and_arguments(text: &str) -> Result<(Kind, Arguments), String> {
    let mut words = text.split_whitespace();
    let word = words.next().ok_or("the kind of message is missing")?;
    let kind = Kind::parse(word).ok_or(format!("`{word}` is not a kind of message"))?;
    Ok((kind, Arguments::parse(words)?))
}

impl Case {
    /// Returns the case as text, in the format of its file.
    pub fn show(&self) -> String {
        let mut out = format!(
            "case {} {}\nsection {}\ntext {}\n",
            self.id,
            self.level.name(),
            self.section,
            self.text
        );
        if let Some(role) = self.role {
            out += &format!("device {}\n", role.name());
        }
        if let Some(transport) = self.transport.filter(|_| Transport::of(&self.id).is_none()) {
            out += &format!("transport {}\n", transport.name());
        }
        if !self.needs.is_empty() {
            let word = |n: &Need| match n.bytes {
                0 => n.capability.clone(),
                bytes => format!("{}:{bytes}", n.capability),
            };
            out +=
                &format!("needs {}\n", self.needs.iter().map(word).collect::<Vec<_>>().join(" "));
        }
        for flaw in &self.flaws {
            out += &format!("flaw {flaw}\n");
        }
        for step in &self.steps {
            out += &step.text;
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "# comment\ncase mpa/1-1 MUST\nsection RFC 5044 §1\ntext One.\ntext Two.\ndevice responder\n\
        needs write:64 alive\nflaw ignore crc\nopen\ncut 1,2\nsend request rev=9\nexpect close | reply rev=1\n";

    #[test]
    fn shown_case_is_parsed_again() {
        let file = parse("mpa/x", GOOD).expect("good");
        let case = &file.cases[0];
        assert_eq!(case.text, "One. Two.");
        assert_eq!(case.role, Some(Role::Responder));
        assert_eq!(case.needs[0], Need { capability: "write".into(), bytes: 64 });
        let again = parse("mpa/x", &case.show()).expect("shown").cases.remove(0);
        assert_eq!(again.show(), case.show());
        let actions = |c: &Case| c.steps.iter().map(|s| s.action.clone()).collect::<Vec<_>>();
        assert_eq!(actions(&again), actions(case));
    }

    #[test]
    fn wrong_lines_are_reported_with_their_number() {
        let wrong = |line: &str| {
            parse("g", &format!("case a/1 MUST\nsection s\ntext t\nexpect close\n{line}\n"))
                .expect_err(line)
        };
        assert!(wrong("sned request").starts_with("g:5: "));
        for line in [
            "send request x=1",
            "send fin",
            "expect reply x=1",
            "cut 0",
            "wait 11",
            "open now",
            "device x",
            "order 0",
            "repeat x",
            "lose",
        ] {
            wrong(line);
        }
        assert!(parse("g", "open\n").is_err());
        assert!(
            parse("g", "case a/1 MUST\nsection s\ntext t\nopen\n")
                .expect_err("no expect")
                .contains("expects")
        );
        assert!(
            parse("g", "unseen a/1 MUST\nsection s\ntext t\n")
                .expect_err("no reason")
                .contains("because")
        );
        for step in
            ["order 2,1", "release", "repeat 5", "lose 1", "path 600", "start timestamps=on"]
        {
            let text = format!("case a/1 MUST\nsection s\ntext t\n{step}\nexpect close\n");
            assert!(parse("g", &text).expect_err(step).contains("needs `segments`"));
            let text = text.replace("text t", "text t\nneeds segments");
            assert!(parse("g", &text).is_ok(), "{step}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in "[a-z/0-9 =\\n$:,|.]{0,200}") {
            let _ = parse("g", &text);
            let _ = parse("g", &format!("case a/1 MUST\nsection s\ntext t\n{text}"));
        }
    }
}

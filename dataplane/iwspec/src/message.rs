//! Kinds of messages and events, the keys of each kind in case files, and received messages.

use crate::value::{Argument, Arguments, Variables, number, payload};

/// Kind of a frame, message or event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// MPA Request frame (RFC 5044 §7.1.1).
    Request,
    /// MPA Reply frame (RFC 5044 §7.1.1).
    Reply,
    /// Start Key of the first draft (draft-culley-iwarp-mpa-03 §8.1.1).
    StartKey,
    /// RDMA Write (RFC 5040 §4.3).
    Write,
    /// RDMA Read Request (RFC 5040 §4.4).
    Read,
    /// RDMA Read Response (RFC 5040 §4.5).
    Response,
    /// Send, with or without Invalidate and Solicited Event (RFC 5040 §4.6, §4.7).
    Send,
    /// Immediate Data (RFC 7306 §6).
    Immediate,
    /// Atomic Request (RFC 7306 §5).
    Atomic,
    /// Atomic Response (RFC 7306 §5).
    AtomicResponse,
    /// RDMAP Terminate (RFC 5040 §4.8).
    Terminate,
    /// Tagged DDP segment with any control bytes.
    Tagged,
    /// Untagged DDP segment with any control bytes.
    Untagged,
    /// FPDU around any bytes; over SCTP a DDP segment of any bytes.
    Fpdu,
    /// Unframed bytes of the stream.
    Bytes,
    /// DDP Stream Session Initiate (RFC 5043 §5.2.3).
    Initiate,
    /// DDP Stream Session Accept (RFC 5043 §5.2.3).
    Accept,
    /// DDP Stream Session Reject (RFC 5043 §5.2.3).
    Reject,
    /// DDP Stream Session Terminate (RFC 5043 §5.2.3).
    End,
    /// Session control message with any function code.
    Control,
    /// User message of SCTP with any bytes.
    Chunk,
    /// The SCTP association was shut down.
    Shutdown,
    /// The device has closed its half of the connection.
    Fin,
    /// The device has reset the connection.
    Reset,
    /// FIN, RST, SHUTDOWN, or the Terminate of a session.
    Close,
    /// The device sends nothing within the time limit.
    Quiet,
}

const NAMES: [(&str, Kind); 26] = [
    ("request", Kind::Request),
    ("reply", Kind::Reply),
    ("startkey", Kind::StartKey),
    ("write", Kind::Write),
    ("read", Kind::Read),
    ("response", Kind::Response),
    ("send", Kind::Send),
    ("immediate", Kind::Immediate),
    ("atomic", Kind::Atomic),
    ("atomic-response", Kind::AtomicResponse),
    ("terminate", Kind::Terminate),
    ("tagged", Kind::Tagged),
    ("untagged", Kind::Untagged),
    ("fpdu", Kind::Fpdu),
    ("bytes", Kind::Bytes),
    ("initiate", Kind::Initiate),
    ("accept", Kind::Accept),
    ("reject", Kind::Reject),
    ("end", Kind::End),
    ("control", Kind::Control),
    ("chunk", Kind::Chunk),
    ("shutdown", Kind::Shutdown),
    ("fin", Kind::Fin),
    ("reset", Kind::Reset),
    ("close", Kind::Close),
    ("quiet", Kind::Quiet),
];

impl Kind {
    /// Returns the name that case files use for this kind.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Returns the kind with this name in case files; `None` if there is none.
    pub fn parse(word: &str) -> Option<Kind> {
        NAMES.iter().find(|(name, _)| *name == word).map(|&(_, kind)| kind)
    }

    /// Returns true for session control messages of RFC 5043.
    pub fn is_control(self) -> bool {
        matches!(self, Kind::Initiate | Kind::Accept | Kind::Reject | Kind::End | Kind::Control)
    }

    /// Returns true if a message of kind `received` satisfies an expectation of kind `self`.
    pub fn matches(self, received: Kind) -> bool {
        let tagged = matches!(received, Kind::Write | Kind::Response | Kind::Tagged);
        let event = matches!(received, Kind::Fin | Kind::Reset | Kind::Shutdown);
        let control = received.is_control();
        let start = matches!(received, Kind::Request | Kind::Reply | Kind::StartKey | Kind::Bytes);
        match self {
            // Over SCTP, the Terminate of the session replaces the FIN.
            Kind::Close => event || received == Kind::End,
            Kind::Fin => matches!(received, Kind::Fin | Kind::End),
            Kind::Control => control,
            Kind::Tagged => tagged,
            Kind::Untagged => {
                !tagged
                    && !event
                    && !start
                    && !control
                    && !matches!(received, Kind::Fpdu | Kind::Chunk)
            }
            Kind::Fpdu => !event && !start && !control && received != Kind::Chunk,
            kind => kind == received,
        }
    }
}

/// Keys of messages sent over SCTP, in addition to the keys of their kind.
pub const SENT_OVER_SCTP: &[&str] = &["stream", "ssn", "ordered", "ppid"];
/// Fields of messages received over SCTP, in addition to the fields of their kind.
pub const RECEIVED_OVER_SCTP: &[&str] =
    &["stream", "ssn", "ppid", "unordered", "whole", "sequence"];

/// Returns the keys of a sent frame; `None` if the kind cannot be sent.
pub fn sent_keys(kind: Kind) -> Option<&'static [&'static str]> {
    Some(match kind {
        Kind::Request | Kind::Reply => &[
            "key", "rev", "markers", "crc", "reject", "reserved", "enhanced", "ird", "ord",
            "flags", "data", "len", "pdlen", "keep",
        ],
        Kind::StartKey => &["rev", "markers", "crc", "reserved"],
        Kind::Write | Kind::Response | Kind::Tagged => &[
            "stag",
            "to",
            "len",
            "data",
            "ver",
            "ddp-reserved",
            "last",
            "rv",
            "rdmap-reserved",
            "op",
            "flaw",
            "keep",
            "bad",
        ],
        Kind::Send | Kind::Immediate | Kind::Untagged => &[
            "inv",
            "qn",
            "msn",
            "mo",
            "len",
            "data",
            "ver",
            "ddp-reserved",
            "last",
            "rv",
            "rdmap-reserved",
            "op",
            "flaw",
            "keep",
            "bad",
        ],
        Kind::Read => &[
            "sink",
            "sink-to",
            "len",
            "stag",
            "to",
            "inv",
            "qn",
            "msn",
            "mo",
            "ver",
            "ddp-reserved",
            "last",
            "rv",
            "rdmap-reserved",
            "op",
            "flaw",
            "keep",
            "bad",
        ],
        Kind::Atomic => &[
            "aop",
            "id",
            "stag",
            "to",
            "add",
            "add-mask",
            "compare",
            "compare-mask",
            "inv",
            "qn",
            "msn",
            "mo",
            "ver",
            "ddp-reserved",
            "last",
            "rv",
            "rdmap-reserved",
            "op",
            "flaw",
            "keep",
            "bad",
        ],
        Kind::AtomicResponse => &[
            "id",
            "value",
            "inv",
            "qn",
            "msn",
            "mo",
            "ver",
            "ddp-reserved",
            "last",
            "rv",
            "rdmap-reserved",
            "op",
            "flaw",
            "keep",
            "bad",
        ],
        Kind::Terminate => &[
            "layer",
            "type",
            "code",
            "m",
            "d",
            "r",
            "reserved",
            "quoted",
            "inv",
            "qn",
            "msn",
            "mo",
            "ver",
            "ddp-reserved",
            "last",
            "rv",
            "rdmap-reserved",
            "op",
            "flaw",
            "keep",
            "bad",
        ],
        Kind::Fpdu => &["data", "len", "flaw", "keep", "bad"],
        Kind::Bytes | Kind::Chunk => &["data", "len"],
        Kind::Initiate | Kind::Accept | Kind::Reject | Kind::End | Kind::Control => {
            &["function", "enhanced", "ird", "ord", "flags", "data", "len"]
        }
        Kind::Fin | Kind::Reset | Kind::Close | Kind::Quiet | Kind::Shutdown => return None,
    })
}

/// Returns the fields of a received message. `within` is the time to wait in seconds, `data` the payload.
pub fn received_keys(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Request | Kind::Reply => &[
            "within", "data", "rev", "markers", "crc", "reject", "reserved", "enhanced", "ird",
            "ord", "flags", "pdlen", "key",
        ],
        Kind::StartKey => &["within", "rev", "markers", "crc", "reserved"],
        Kind::Fin | Kind::Reset | Kind::Close | Kind::Shutdown => &["within"],
        Kind::Initiate | Kind::Accept | Kind::Reject | Kind::End | Kind::Control => {
            &["within", "data", "len", "function", "enhanced", "ird", "ord", "flags"]
        }
        Kind::Quiet => &["for"],
        Kind::Bytes | Kind::Chunk => &["within", "len", "data"],
        _ => &[
            "within",
            "data",
            "len",
            "segments",
            "crc",
            "crc-field",
            "markers",
            "marker-count",
            "marker-reserved",
            "pad",
            "aligned",
            "largest",
            "ver",
            "ddp-reserved",
            "rv",
            "rdmap-reserved",
            "op",
            "stag",
            "to",
            "inv",
            "qn",
            "msn",
            "mo",
            "sink",
            "sink-to",
            "size",
            "layer",
            "type",
            "code",
            "m",
            "d",
            "r",
            "reserved",
            "length",
            "ddp",
            "rdma",
            "extra",
            "aop",
            "id",
            "value",
            "add",
            "compare",
            "order",
        ],
    }
}

/// A received frame, message or event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Kind of the message or event.
    pub kind: Kind,
    /// Names and values of the fields.
    pub fields: Vec<(&'static str, u64)>,
    /// Payload, or private data.
    pub data: Vec<u8>,
    /// All bytes with framing; empty for an event.
    pub raw: Vec<u8>,
}

impl Message {
    /// Returns an event without fields.
    pub fn event(kind: Kind) -> Message {
        Message { kind, fields: vec![], data: vec![], raw: vec![] }
    }

    /// Returns the value of a field; `None` if the message does not have the field.
    pub fn field(&self, name: &str) -> Option<u64> {
        self.fields.iter().find(|(field, _)| *field == name).map(|&(_, value)| value)
    }

    /// Returns a one-line description for reports: kind, fields and the first 32 bytes of the payload.
    pub fn describe(&self) -> String {
        let mut out = self.kind.name().to_string();
        for (name, value) in &self.fields {
            out += &match *value {
                value if value < 1000 => format!(" {name}={value}"),
                value => format!(" {name}={value:#x}"),
            };
        }
        if !self.data.is_empty() {
            let shown: String = self.data.iter().take(32).map(|b| format!("{b:02x}")).collect();
            out += &format!(" data={shown}{}", if self.data.len() > 32 { "..." } else { "" });
        }
        out
    }

    /// Returns the first condition that does not hold, as text. `None` if all hold.
    ///
    /// # Errors
    /// A condition cannot be computed, for example because of an unknown variable.
    pub fn mismatch(
        &self,
        conditions: &Arguments,
        variables: &Variables,
    ) -> Result<Option<String>, String> {
        for condition in conditions.0.iter().filter(|c| !matches!(c.key.as_str(), "within" | "for"))
        {
            if let Some(what) = self.differs(condition, variables)? {
                return Ok(Some(what));
            }
        }
        // A frame with a wrong CRC, wrong markers or segments out of order matches only if the case has a condition on
        // that field.
        for name in ["crc", "markers", "order"] {
            let damaged = self.field("segments").is_some() && self.field(name) == Some(0);
            if damaged && conditions.get(name).is_none() {
                return Ok(Some(format!("{name}=good, received {name}=bad")));
            }
        }
        for name in ["unordered", "whole", "sequence"] {
            if self.field(name) == Some(0) && conditions.get(name).is_none() {
                return Ok(Some(format!("{name}=good, received {name}=bad")));
            }
        }
        Ok(None)
    }

    fn differs(
        &self,
        condition: &Argument,
        variables: &Variables,
    ) -> Result<Option<String>, String> {
        if condition.key == "data" {
            let expected = payload(
                &condition.value,
                self.data.len(),
                self.field("to").unwrap_or(0),
                variables,
            )?;
            let same = expected == self.data;
            let wrong = match condition.operator {
                crate::value::Operator::Unequal => same,
                _ => !same,
            };
            return Ok(wrong.then(|| {
                match expected.iter().zip(&self.data).position(|(a, b)| a != b) {
                    Some(at) => format!(
                        "data={}, byte {at} is {:02x} instead of {:02x}",
                        condition.value, self.data[at], expected[at]
                    ),
                    None => format!("data={}, received {} bytes", condition.value, self.data.len()),
                }
            }));
        }
        let expected = number(&condition.value, variables)?;
        let Some(received) = self.field(&condition.key) else {
            return Ok(Some(format!(
                "{}={}, the message has no such field",
                condition.key, condition.value
            )));
        };
        let symbol = condition.operator.symbol();
        let holds = condition.operator.holds(received, expected);
        let (key, value) = (&condition.key, &condition.value);
        Ok((!holds).then(|| format!("{key}{symbol}{value}, received {key}={received:#x}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_fields_and_data() {
        let m = Message {
            kind: Kind::Response,
            fields: vec![("segments", 1), ("crc", 1), ("markers", 0), ("to", 8), ("len", 4)],
            data: crate::value::pattern(8, 4),
            raw: vec![],
        };
        let none = Variables::new();
        let check = |words: &[&str]| {
            m.mismatch(&Arguments::parse(words.iter().copied()).expect("good"), &none)
                .expect("computed")
        };
        assert_eq!(check(&["len=4", "markers=bad", "data=pattern", "len<=4"]), None);
        assert!(check(&["len=5", "markers=bad"]).is_some());
        assert!(check(&["data=pattern:9", "markers=bad"]).is_some());
        assert!(check(&["data!=pattern", "markers=bad"]).is_some());
        assert!(check(&["msn=1", "markers=bad"]).is_some());
        assert_eq!(check(&["len=4"]).expect("bad markers"), "markers=good, received markers=bad");
    }

    #[test]
    fn every_kind_has_one_name() {
        for (name, kind) in NAMES {
            assert_eq!((Kind::parse(name), kind.name()), (Some(kind), name));
        }
        assert!(
            Kind::Close.matches(Kind::Fin)
                && Kind::Fpdu.matches(Kind::Send)
                && !Kind::Fpdu.matches(Kind::Fin)
        );
        assert!(Kind::Untagged.matches(Kind::Terminate) && !Kind::Untagged.matches(Kind::Write));
    }
}

//! Flaws of the deliberately wrong peer, as text in the `flaw` lines of cases.
//!
//! | flaw | the peer |
//! |---|---|
//! | `ignore CHECK` | omits this check of received frames |
//! | `report CHECK L/T/C` | reports the error of this check with layer L, type T and code C (hexadecimal) |
//! | `change KIND KEY=VALUE ...` | sends frames of this kind with other fields (`fpdu`: all FPDUs) |
//! | `drop KIND` | does not send frames of this kind |
//! | `behave WORD` | has this deviation of [`BEHAVIOURS`] |

use crate::message::{Kind, sent_keys};
use crate::value::{Argument, Arguments};

/// Checks of received frames that the peer makes, in the order of the layers.
pub const CHECKS: &[&str] = &[
    "key",
    "revision",
    "private-data-length",
    "reserved-is-ignored",
    "request-reject-is-ignored",
    "enhanced-data",
    "reply-rejected",
    "reply-revision",
    "reply-enhanced",
    "ird",
    "ready",
    "crc",
    "marker",
    "fin-in-fpdu",
    "tagged-short",
    "untagged-short",
    "tagged-version",
    "untagged-version",
    "stag",
    "bounds",
    "wrap",
    "queue",
    "msn",
    "buffer",
    "mo",
    "too-long",
    "zero-length-is-unchecked",
    "ddp-reserved-is-ignored",
    "rdmap-version",
    "opcode",
    "rdmap-reserved-is-ignored",
    "invalidate-is-ignored",
    "read-stag",
    "read-bounds",
    "read-wrap",
    "read-access",
    "read-length",
    "invalidate",
    "response",
    "terminate",
    "atomic-length",
    "atomic-reserved-is-ignored",
    "atomic-code",
    "atomic-stag",
    "atomic-access",
    "atomic-bounds",
    "atomic-alignment",
    "immediate-length",
    "marker-low-bits-are-ignored",
    "sctp-adaptation",
    "sctp-session",
    "sctp-answer",
    "sctp-reject",
    "sctp-sequence",
    "sctp-function",
    "sctp-ppid",
    "sctp-unordered",
];

/// Deviations that are not checks or frames: word, and effect.
pub const BEHAVIOURS: &[(&str, &str)] = &[
    ("early-reply", "answers a start frame that is not complete"),
    ("misread-markers", "takes received markers for data"),
    ("short-region", "rejects the last byte of a region"),
    ("reject-long", "rejects private data of more than 256 bytes"),
    ("whole-frames", "ignores a start frame that is not within one read"),
    ("big-fpdus", "makes FPDUs that do not fit into a TCP segment"),
    ("tiny-fpdus", "makes FPDUs with ULPDUs of 64 bytes"),
    (
        "ready-to-ulp",
        "hands a Send of no bytes that only says ready to the ULP, which ends the stream",
    ),
    ("no-markers", "sends no markers although they were asked for"),
    ("markers-unasked", "sends markers although none were asked for"),
    ("crc-unasked", "uses CRCs although neither side asked for them"),
    ("first-fpdu", "sends an FPDU before it has received one"),
    ("early-fpdu", "first draft: sends an FPDU with its Start Key"),
    ("rfc-pointers", "first draft: counts FPDUPTR from the ULPDU_Length field, as RFC 5044 does"),
    ("no-close", "keeps the connection open after an error or the peer's FIN"),
    ("reset", "ends connections by RST"),
    ("ignore-requests", "does not answer a start frame, and keeps the connection open"),
    ("wait-for-segment", "loses bytes of a segment behind its first FPDU"),
    ("whole-fpdus", "loses an FPDU that is not within one read"),
    ("misplace", "places data one byte too high"),
    ("place-before-check", "places the part of a segment that is within bounds"),
    ("lose-writes", "does not place the data of Writes"),
    ("clear-on-zero", "clears memory at the TO of a segment without bytes"),
    ("reorder", "answers two requests of one burst in reverse order"),
    ("after-terminate", "sends a Send after its Terminate"),
    ("answer-after-error", "answers requests behind a wrong segment"),
    ("ignore-replies", "does not go on behind a Reply, and keeps the connection open"),
    ("deliver-partial", "answers an FPDU that is not complete"),
    ("answer-writes", "answers a Write by a Send"),
    ("answer-terminate", "answers a Terminate by a Terminate"),
    ("terminate-early", "sends a Terminate before it has received a valid FPDU"),
    ("increasing-only", "rejects untagged segments in another order than that of their MO"),
    ("deliver-segments", "takes each untagged segment for a message"),
    ("check-rsvdulp", "bare DDP: rejects segments with a RsvdULP field that is not 0"),
    ("one-counter", "counts the messages of all untagged queues together"),
    ("lose-later-segments", "does not place the segments of a Write behind the first"),
    ("atomic-without-masks", "ignores the masks of atomic operations"),
    ("always-swap", "swaps also if the comparison fails"),
    ("keep-invalidated", "keeps STags valid that a Send invalidates"),
    ("continue-after-terminate", "continues after a received Terminate"),
    ("split-fpdus", "raw port: ends segments within FPDUs"),
    ("retransmit-elsewhere", "raw port: retransmits with other boundaries of segments"),
    ("options-are-free", "raw port: makes FPDUs as if segments had no timestamps"),
    ("first-emss", "raw port: makes FPDUs for the path MTU that the connection began with"),
    ("ignore-holes", "raw port: takes a segment behind a hole for the next bytes"),
    ("take-repeats", "raw port: takes bytes that arrive again for new ones"),
    ("no-adaptation", "SCTP: sends an INIT or INIT ACK without an adaptation indication"),
    ("other-adaptation", "SCTP: sends an INIT or INIT ACK with another adaptation indication"),
    ("uneven-streams", "SCTP: asks for more inbound streams than outbound ones"),
    ("short-private-data", "SCTP: accepts no session with more than 256 bytes of private data"),
    ("ordered", "SCTP: clears the U flag"),
    ("other-ppid", "SCTP: sends messages with PPID 0"),
    ("other-stream", "SCTP: answers on the next stream"),
    ("ssn-from-1", "SCTP: begins DDP-SSNs at 1"),
    ("segment-first", "SCTP: sends a segment in front of its Initiate"),
    ("skip-ssn", "SCTP: leaves out a DDP-SSN after each segment"),
    ("ignore-ssn", "SCTP: takes messages in the order of their arrival"),
    ("keep-ssn", "SCTP: continues the DDP-SSNs of the stream's last session"),
    ("keep-msn", "SCTP: continues the MSNs of the stream's last session"),
    ("answer-after-end", "SCTP: answers segments behind the session's Terminate"),
    ("end-all", "SCTP: ends all sessions after an error in one"),
    ("abort-on-shutdown", "SCTP: aborts an association that is being shut down"),
];

/// Flaws of a peer; empty for a correct peer.
#[derive(Clone, Debug, Default)]
pub struct Flaws(Vec<Flaw>);

#[derive(Clone, Debug)]
enum Flaw {
    Ignore(String),
    Report(String, (u8, u8, u8)),
    Change(Kind, Arguments),
    Drop(Kind),
    Behave(String),
}

impl Flaws {
    /// Parses flaws, one per line or separated by `;`.
    ///
    /// # Errors
    /// A line has an unknown verb, check, kind or behaviour.
    pub fn parse(text: &str) -> Result<Flaws, String> {
        text.split(['\n', ';'])
            .filter(|l| !l.trim().is_empty())
            .map(parse)
            .collect::<Result<_, _>>()
            .map(Flaws)
    }

    /// Returns true if the peer is correct.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the peer performs this check.
    pub fn makes(&self, check: &str) -> bool {
        !self.0.iter().any(|f| matches!(f, Flaw::Ignore(c) if c == check))
    }

    /// Returns the error that the peer reports for a check: the error of a `report` flaw, otherwise `right`.
    pub fn error(&self, check: &str, right: (u8, u8, u8)) -> (u8, u8, u8) {
        let wrong = |f: &Flaw| match f {
            Flaw::Report(c, error) if c == check => Some(*error),
            _ => None,
        };
        self.0.iter().find_map(wrong).unwrap_or(right)
    }

    /// Returns true if the peer has the deviation `word` of [`BEHAVIOURS`].
    pub fn behaves(&self, word: &str) -> bool {
        self.0.iter().any(|f| matches!(f, Flaw::Behave(w) if w == word))
    }

    /// Applies the changes to the arguments of a frame. Returns `None` if the frame is not sent.
    pub fn apply(&self, kind: Kind, mut arguments: Arguments) -> Option<Arguments> {
        for flaw in &self.0 {
            match flaw {
                Flaw::Drop(k) if *k == kind => return None,
                Flaw::Change(k, changes) if *k == kind || (*k == Kind::Fpdu && is_fpdu(kind)) => {
                    let known = sent_keys(kind).unwrap_or(&[]);
                    for change in changes.0.iter().filter(|c| known.contains(&c.key.as_str())) {
                        set(&mut arguments, change);
                    }
                }
                _ => {}
            }
        }
        Some(arguments)
    }
}

fn is_fpdu(kind: Kind) -> bool {
    !kind.is_control()
        && !matches!(kind, Kind::Request | Kind::Reply | Kind::StartKey | Kind::Bytes | Kind::Chunk)
}

fn set(arguments: &mut Arguments, change: &Argument) {
    arguments.0.retain(|a| a.key != change.key);
    arguments.0.push(change.clone());
}

fn parse(line: &str) -> Result<Flaw, String> {
    let mut words = line.split_whitespace();
    let (verb, object) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let check = || match CHECKS.contains(&object) {
        true => Ok(object.to_string()),
        false => Err(format!("`{object}` is not a check")),
    };
    let kind = || Kind::parse(object).ok_or(format!("`{object}` is not a kind of message"));
    let flaw = match verb {
        "ignore" => Flaw::Ignore(check()?),
        "report" => Flaw::Report(check()?, error(words.next().unwrap_or(""))?),
        "drop" => Flaw::Drop(kind()?),
        "change" => {
            let arguments = Arguments::parse(words.by_ref())?;
            let known = sent_keys(kind()?).ok_or(format!("`{object}` is not sent"))?;
            // A change for all FPDUs may use the keys of any segment.
            if kind()? != Kind::Fpdu {
                arguments.check(known)?;
            }
            Flaw::Change(kind()?, arguments)
        }
        "behave" if BEHAVIOURS.iter().any(|(word, _)| *word == object) => {
            Flaw::Behave(object.into())
        }
        "behave" => return Err(format!("`{object}` is not a behaviour")),
        other => return Err(format!("`{other}` is none of ignore, report, change, drop, behave")),
    };
    match words.next() {
        Some(word) => Err(format!("`{word}` is too much")),
        None => Ok(flaw),
    }
}

fn error(text: &str) -> Result<(u8, u8, u8), String> {
    let parts: Vec<_> = text.split('/').map(|p| u8::from_str_radix(p, 16)).collect();
    match parts[..] {
        [Ok(layer), Ok(etype), Ok(code)] => Ok((layer, etype, code)),
        _ => Err(format!("`{text}` is not LAYER/TYPE/CODE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaws_change_checks_and_frames() {
        let f = Flaws::parse(
            "ignore crc\nreport stag 1/2/0a\nchange reply rev=0\ndrop send\nbehave reset",
        )
        .expect("good");
        assert!(!f.makes("crc") && f.makes("stag"));
        assert_eq!(f.error("stag", (1, 1, 0)), (1, 2, 10));
        assert!(f.behaves("reset"));
        let reply = f
            .apply(Kind::Reply, Arguments::parse(["rev=1", "crc=on"]).expect("good"))
            .expect("sent");
        assert_eq!((reply.get("rev"), reply.get("crc")), (Some("0"), Some("on")));
        assert!(f.apply(Kind::Send, Arguments::default()).is_none());
    }

    #[test]
    fn unknown_words_are_errors() {
        for wrong in [
            "ignore x",
            "report crc 1",
            "change x y=1",
            "change reply x=1",
            "behave x",
            "x",
            "drop send now",
        ] {
            assert!(Flaws::parse(wrong).is_err(), "{wrong}");
        }
    }
}

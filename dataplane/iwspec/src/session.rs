//! One connection of a case: encoded output, decoded input, and facts about the device.

mod sctp;

use std::time::{Duration, Instant};

use oracle::Stream;
use oracle::framing::Deframer;

use crate::case::{Expected, Order, Role};
use crate::decode::Decoder;
use crate::device::Setup;
use crate::encode::{self, Frame, Numbers};
use crate::link::{Link, Received, Side, What};
use crate::message::{Kind, Message};
use crate::value::{Arguments, Variables};

/// Reason why a case of later specifications does not apply to a device of the first draft.
pub(crate) const DRAFT: &str = "the device speaks MPA of the first draft";

/// Reason why a case ends before its last step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The device does not behave as required.
    Fail(Failure),
    /// No verdict is possible, with the reason.
    Inconclusive(String),
    /// The case does not apply to the device, with the reason.
    NotApplicable(String),
}

/// A failed expectation.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Failure {
    /// Expected behaviour, as text of the report.
    pub expected: String,
    /// Received message or event, as text of the report.
    pub received: String,
    /// Bytes of the received message.
    #[serde(skip)]
    pub bytes: Vec<u8>,
    /// True if the failure is a time-out, which depends on the speed of the tester's and the device's host.
    pub timed_out: bool,
}

/// A connection of a case, and the facts learnt on it.
#[derive(Debug)]
pub struct Session<'a> {
    setup: &'a Setup,
    /// Connection to the device, with its transcript.
    pub link: Link,
    /// Second connection of the service, such as the control connection of perftest.
    pub companion: Option<Box<Session<'a>>>,
    /// Facts about the device, by name.
    pub variables: Variables,
    output: Stream,
    /// Number of bytes of `output` that were sent.
    sent: usize,
    /// Sizes of the writes of the next flush, bytes; the last size repeats.
    cut: Vec<usize>,
    /// Order of the segments of the next flush, on the raw port.
    order: Option<Order>,
    /// Segments that `order` holds back, with their positions in the stream.
    held: Vec<(u64, Vec<u8>)>,
    /// Position and bytes of the last flush.
    last: (u64, Vec<u8>),
    decoder: Decoder,
    numbers: Numbers,
    /// ULPDU that a Terminate should quote: the last segment, or the segment marked by `bad=on`.
    bad: Vec<u8>,
    bad_is_marked: bool,
    /// End of the time for the whole case.
    limit: Instant,
    /// True if the case needs the exact bounds of the device's memory.
    exact: bool,
    /// True if the device waits for the tester's ready-to-receive message (RFC 6581 §9.2).
    owes_ready: bool,
    /// Streams of the SCTP association.
    sctp: sctp::Streams,
}

impl<'a> Session<'a> {
    /// Returns a session without connection.
    pub fn new(setup: &'a Setup) -> Session<'a> {
        let mut session = Session {
            setup,
            link: Link::default(),
            companion: None,
            variables: Variables::new(),
            output: Stream::new(false, true),
            sent: 0,
            cut: vec![],
            order: None,
            held: vec![],
            last: (0, vec![]),
            decoder: Decoder::default(),
            numbers: Numbers::default(),
            bad: vec![],
            bad_is_marked: false,
            limit: Instant::now() + setup.timing.case * setup.timing.scale,
            exact: false,
            owes_ready: false,
            sctp: sctp::Streams::default(),
        };
        session.set("peer.first", u64::from(setup.sends_first()));
        session
    }

    /// Returns the role of the device.
    pub fn role(&self) -> Role {
        self.setup.role()
    }

    /// Returns the parameters of the test.
    pub fn setup(&self) -> &'a Setup {
        self.setup
    }

    /// Sets whether the case needs the exact bounds of the device's memory.
    pub fn set_exact(&mut self, exact: bool) {
        self.exact = exact;
    }

    /// Sets the fact `name`, a variable that later steps may use.
    pub fn set(&mut self, name: &str, value: u64) {
        self.variables.insert(name.into(), value);
    }

    /// Returns the part of the device's memory that this case may use: offset and length, bytes.
    pub fn lane(&self, length: u64) -> (u64, u64) {
        let (index, count) = self.setup.lane;
        if self.exact || count < 2 {
            return (0, length);
        }
        let part = length / count / 8 * 8;
        (index * part, part)
    }

    /// Opens the connection, which replaces any previous one.
    ///
    /// # Errors
    /// [`Stop::Inconclusive`]: there is no connection.
    pub fn open(&mut self) -> Result<(), Stop> {
        self.open_with(&Arguments::default())
    }

    /// Opens the connection; over SCTP with the adaptation indication and streams of `arguments`.
    ///
    /// # Errors
    /// [`Stop::Inconclusive`]: there is no connection, or an argument cannot be computed.
    pub fn open_with(&mut self, arguments: &Arguments) -> Result<(), Stop> {
        if self.is_over_sctp() {
            return self.open_association(arguments);
        }
        if self.role() == Role::Initiator {
            // An initiator with one connection at a time opens the next one only after the previous one has closed.
            self.link.close();
        }
        self.output = Stream::new(false, true);
        self.sent = 0;
        self.held.clear();
        self.decoder = Decoder::default();
        self.numbers = Numbers::default();
        self.owes_ready = false;
        let deadline = self.deadline(self.setup.timing.connect);
        self.link.open(&self.setup.target, deadline).map_err(Stop::Inconclusive)?;
        if self.role() == Role::Responder {
            // siw closes its listener if a connection ends before siw has accepted it. The pause gives siw time to
            // accept.
            std::thread::sleep(self.setup.timing.settle);
        }
        Ok(())
    }

    fn deadline(&self, time: Duration) -> Instant {
        (Instant::now() + time * self.setup.timing.scale).min(self.limit)
    }

    /// Returns the number of the argument `key`, or `default` if it is missing.
    ///
    /// # Errors
    /// [`Stop::Inconclusive`]: the argument cannot be computed.
    pub fn number(&self, arguments: &Arguments, key: &str, default: u64) -> Result<u64, Stop> {
        arguments.number(key, default, &self.variables).map_err(Stop::Inconclusive)
    }

    /// Appends a frame to the output. `words` are its arguments as text.
    ///
    /// # Errors
    /// [`Stop::Inconclusive`] if `words` cannot be parsed, and the errors of [`Self::send`].
    pub fn send_text(&mut self, kind: Kind, words: &str) -> Result<(), Stop> {
        let arguments = Arguments::parse(words.split_whitespace()).map_err(Stop::Inconclusive)?;
        self.send(kind, &arguments)
    }

    /// Appends a frame to the output.
    ///
    /// # Errors
    /// [`Stop::NotApplicable`]: the frame cannot be built, for example because it needs an unknown fact, or it is
    /// longer than an SCTP packet. [`Stop::Inconclusive`]: an argument that the session itself evaluates, such as
    /// `markers` or `ppid`, cannot be computed.
    pub fn send(&mut self, kind: Kind, arguments: &Arguments) -> Result<(), Stop> {
        if self.is_over_sctp() {
            return self.send_message(kind, arguments);
        }
        for (queue, msn) in (0..).zip(self.numbers.next()) {
            self.set(&format!("msn.{queue}"), u64::from(msn));
        }
        let frame =
            encode::frame(kind, arguments, &self.variables, &mut self.numbers).map_err(|e| {
                Stop::NotApplicable(format!("this frame cannot be built for the device: {e}"))
            })?;
        self.note(kind, arguments);
        if let Frame::Fpdu(ulpdu, _) = &frame {
            self.owes_ready = false;
            self.note_bad(ulpdu, arguments);
        }
        frame.append(&mut self.output);
        match kind {
            Kind::Request | Kind::Reply | Kind::StartKey => self.own_frame(kind, arguments),
            _ => Ok(()),
        }
    }

    /// Adds the sent frame to the transcript.
    fn note(&mut self, kind: Kind, arguments: &Arguments) {
        let words: Vec<String> =
            arguments.0.iter().map(|a| format!("{}={}", a.key, a.value)).collect();
        let text = format!("{} {}", kind.name(), words.join(" "));
        self.link.transcript.add(Side::Tester, What::Note(text));
    }

    /// Records the segment that a Terminate should quote.
    fn note_bad(&mut self, ulpdu: &[u8], arguments: &Arguments) {
        let marked = arguments.get("bad").is_some();
        if marked || !self.bad_is_marked {
            self.bad = ulpdu.to_vec();
            self.bad_is_marked = marked;
        }
    }

    /// Half-closes the connection; over SCTP, ends the session.
    ///
    /// # Errors
    /// Over SCTP, the errors of [`Self::send_text`]; none over TCP.
    pub fn finish(&mut self) -> Result<(), Stop> {
        if self.is_over_sctp() {
            self.send_text(Kind::End, "")?;
        }
        self.owes_ready = false;
        self.flush();
        self.link.finish();
        Ok(())
    }

    /// Ends the case. A device that waits for the ready-to-receive message receives it first: siw triggers a kernel
    /// `BUG` (iwcm.c) if a connection ends without this message.
    pub fn end(&mut self) {
        if self.owes_ready {
            let offered = |name: &str| self.variables.get(name) == Some(&1);
            let (kind, words) = match (offered("peer.c"), offered("peer.d")) {
                (true, _) => (Kind::Write, "stag=1 to=0 len=0"),
                (false, true) => (Kind::Read, "sink=1 sink-to=0 stag=1 to=0 len=0"),
                (false, false) => (Kind::Send, "len=0"),
            };
            // The verdict is already known, so an error has no effect.
            let _ = self.send_text(kind, words);
        }
        self.flush();
    }

    /// Records the markers and CRC that the tester's start frame requests. Enters Full Operation if the frame completes
    /// the start-up.
    fn own_frame(&mut self, kind: Kind, arguments: &Arguments) -> Result<(), Stop> {
        let (markers, crc) =
            (self.number(arguments, "markers", 0)?, self.number(arguments, "crc", 1)?);
        self.set("own.markers", markers);
        self.set("own.crc", crc);
        self.output.draft_pointers = kind == Kind::StartKey;
        if kind == Kind::Reply || self.role() == Role::Initiator {
            self.operate();
        }
        Ok(())
    }

    /// Enters Full Operation (RFC 5044 §7.1.1). CRCs are in use if either start frame requests them. Each end sends
    /// markers if the other end requests them.
    fn operate(&mut self) {
        let fact = |name: &str| self.variables.get(name).copied().unwrap_or(0) != 0;
        let crc = fact("own.crc") || fact("peer.crc");
        let (own, peer) = (fact("own.markers"), fact("peer.markers"));
        self.set("crc", u64::from(crc));
        self.output.crc = crc;
        self.output.markers = peer;
        let deframer = Deframer::new(own).with_draft_pointers(self.output.draft_pointers);
        self.decoder.operate(deframer, crc);
    }

    /// Sets the sizes of the next writes, bytes.
    pub fn cut(&mut self, sizes: &[usize]) {
        self.cut = sizes.to_vec();
    }

    /// Sets the order of the next segments.
    pub fn order(&mut self, order: &Order) {
        self.order = Some(order.clone());
    }

    /// Sends the output in one write, or in writes of the sizes set by `cut`.
    pub fn flush(&mut self) {
        if self.is_over_sctp() {
            return self.link.transmit();
        }
        let bytes = self.output.bytes()[self.sent..].to_vec();
        self.sent = self.output.len();
        let cut = std::mem::take(&mut self.cut);
        if self.link.raw().is_some() {
            return self.flush_segments(bytes, &cut);
        }
        let deadline = self.deadline(self.setup.timing.step);
        for (index, piece) in pieces(&bytes, &cut).into_iter().enumerate() {
            if index > 0 {
                // Gives the kernel time to send the previous piece as a separate segment.
                std::thread::sleep(Duration::from_micros(200));
            }
            self.link.send(piece, deadline);
        }
    }

    /// Sends the output in segments of the sizes in `cut` and in the order of `order`. Segments that `order` omits are
    /// held.
    fn flush_segments(&mut self, bytes: Vec<u8>, cut: &[usize]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.link.reserve(bytes.len());
        let segments = positions(start, &bytes, cut);
        let indices: Vec<usize> = match self.order.take() {
            None => (0..segments.len()).collect(),
            Some(Order::Reverse) => (0..segments.len()).rev().collect(),
            Some(Order::Indices(indices)) => indices,
        };
        for (position, piece) in indices.iter().filter_map(|&index| segments.get(index)) {
            self.link.send_segment(*position, piece);
        }
        let is_held = |(index, _): &(usize, _)| !indices.contains(index);
        let held = segments.into_iter().enumerate().filter(is_held).map(|(_, segment)| segment);
        self.held.extend(held);
        self.last = (start, bytes);
    }

    /// Sends the held segments.
    pub fn release(&mut self) {
        self.flush();
        for (position, piece) in std::mem::take(&mut self.held) {
            self.link.send_segment(position, &piece);
        }
    }

    /// Sends the bytes of the last flush again, those of held segments included, in segments of other sizes.
    pub fn repeat(&mut self, sizes: &[usize]) {
        self.flush();
        let (start, bytes) = self.last.clone();
        for (position, piece) in positions(start, &bytes, sizes) {
            self.link.send_segment(position, &piece);
        }
        self.held.clear();
    }

    /// Receives the next message or event within `within`, or within the default time. Returns `None` on time-out.
    ///
    /// # Errors
    /// [`Stop::Fail`]: the device's stream cannot be decoded. [`Stop::Inconclusive`]: the raw port has failed.
    pub fn receive(&mut self, within: Option<Duration>) -> Result<Option<Message>, Stop> {
        self.flush();
        let deadline = self.deadline(within.unwrap_or(self.setup.timing.step));
        if self.is_over_sctp() {
            return self.receive_message(deadline);
        }
        loop {
            let decoded = self.decoder.decode().map_err(|e| {
                let expected = "messages that end".into();
                Stop::Fail(Failure { expected, received: e, bytes: vec![], timed_out: false })
            })?;
            if let Some(mut message) = decoded {
                self.arrived(&mut message);
                return Ok(Some(message));
            }
            match self.link.receive(deadline) {
                Received::Bytes(bytes) => self.decoder.push(&bytes),
                Received::Segment(bytes) => self.decoder.push_segment(&bytes),
                Received::Failed(why) => return Err(Stop::Inconclusive(why)),
                Received::Fin => return Ok(Some(Message::event(Kind::Fin))),
                Received::Reset => return Ok(Some(Message::event(Kind::Reset))),
                Received::Nothing => return Ok(None),
                // These occur only over SCTP.
                Received::Chunk(_) | Received::Shutdown => {}
            }
        }
    }

    /// Sets the facts that a received message contains, and adds the message to the transcript.
    fn arrived(&mut self, message: &mut Message) {
        match message.kind {
            Kind::Accept | Kind::Initiate => self.peer_facts(message),
            Kind::Request | Kind::Reply | Kind::StartKey => {
                self.peer_facts(message);
                if self.role() == Role::Responder {
                    self.operate();
                    self.owes_ready = message.field("flags").unwrap_or(0) & 8 != 0;
                }
            }
            Kind::Terminate => self.quotation(message),
            _ => {}
        }
        self.link.transcript.add(Side::Device, What::Note(message.describe()));
    }

    /// Sets the facts `peer.*` from the device's start frame.
    fn peer_facts(&mut self, message: &Message) {
        for name in ["markers", "crc", "rev", "ird", "ord", "enhanced", "flags", "reserved"] {
            self.set(&format!("peer.{name}"), message.field(name).unwrap_or(0));
        }
        let flags = message.field("flags").unwrap_or(0);
        for (name, bit) in [("a", 3), ("b", 2), ("c", 1), ("d", 0)] {
            self.set(&format!("peer.{name}"), flags >> bit & 1);
        }
        if flags & 8 != 0 && self.role() == Role::Initiator {
            // RFC 6581 §9.2: the ready-to-receive message.
            self.set("peer.first", 1);
        }
        // RFC 6581 §9.2: an option without the peer-to-peer flag A is wrong, and so is A without an option.
        self.set("peer.wrong", u64::from((1..=8).contains(&flags)));
    }

    /// Compares the headers that a Terminate quotes with the segment that caused it.
    fn quotation(&self, message: &mut Message) {
        let headers = message.data.get(6..).unwrap_or(&[]);
        let header = match self.bad.first() {
            Some(control) if control & 0x80 != 0 => 14,
            _ => 18,
        }
        .min(self.bad.len());
        let ddp = !self.bad.is_empty() && headers.starts_with(&self.bad[..header]);
        let rest = if ddp { &headers[header..] } else { headers };
        let request = self.bad.get(header..(header + 28).min(self.bad.len())).unwrap_or(&[]);
        let rdma = ddp && !request.is_empty() && rest.starts_with(request);
        let rest = if rdma { &rest[request.len()..] } else { rest };
        message.fields.extend([
            ("ddp", u64::from(ddp)),
            ("rdma", u64::from(rdma)),
            ("extra", rest.len() as u64),
        ]);
    }

    /// Returns the length of the segment that a Terminate should quote, bytes.
    pub fn bad_length(&self) -> u64 {
        self.bad.len() as u64
    }

    /// Receives the next message, and compares it with the alternatives.
    ///
    /// # Errors
    /// [`Stop::Fail`]: no message arrives in time, no alternative matches, or the device's stream cannot be decoded.
    /// [`Stop::NotApplicable`]: a condition of an alternative cannot be computed, or the device speaks only the first
    /// draft. [`Stop::Inconclusive`]: the raw port has failed.
    pub fn expect(&mut self, alternatives: &[Expected]) -> Result<Message, Stop> {
        self.set("bad.length", self.bad_length());
        if let Some(quiet) = alternatives.iter().find(|e| e.kind == Kind::Quiet) {
            return self.expect_quiet(quiet, alternatives);
        }
        let seconds =
            |e: &Expected| e.conditions.get("within").and_then(|text| text.parse::<f64>().ok());
        let within = alternatives
            .iter()
            .filter_map(seconds)
            .fold(None, |a: Option<f64>, b| Some(a.map_or(b, |a| a.max(b))));
        let mut within = within.map(Duration::from_secs_f64);
        let stays_closed = self.has_ended()
            && alternatives.iter().any(|e| matches!(e.kind, Kind::Close | Kind::Fin));
        if stays_closed {
            within = Some(sctp::AFTER_END);
        }
        let message = self.receive(within)?;
        if message.is_none() && stays_closed {
            return Ok(Message::event(Kind::Fin));
        }
        let Some(message) = message else {
            return Err(Stop::Fail(Failure {
                expected: describe(alternatives),
                received: self.silence(),
                bytes: self.decoder.rest().to_vec(),
                timed_out: true,
            }));
        };
        self.compare(message, alternatives)
    }

    fn silence(&self) -> String {
        match self.decoder.rest().len() {
            0 => "nothing".into(),
            n => format!("{n} bytes that are not a complete frame"),
        }
    }

    fn compare(&self, message: Message, alternatives: &[Expected]) -> Result<Message, Stop> {
        let mut differences = vec![];
        for e in alternatives.iter().filter(|e| e.kind.matches(message.kind)) {
            match message.mismatch(&e.conditions, &self.variables) {
                Ok(None) => return Ok(message),
                Ok(Some(difference)) => differences.push(difference),
                Err(e) => {
                    return Err(Stop::NotApplicable(format!(
                        "the expectation cannot be computed: {e}"
                    )));
                }
            }
        }
        if message.kind == Kind::StartKey && alternatives.iter().any(|e| e.kind == Kind::Request) {
            return Err(Stop::NotApplicable(DRAFT.into()));
        }
        let mut received = message.describe();
        if !differences.is_empty() {
            received = format!("{received} (expected {})", differences.join("; or "));
        }
        Err(Stop::Fail(Failure {
            expected: describe(alternatives),
            received,
            bytes: message.raw,
            timed_out: false,
        }))
    }

    fn expect_quiet(
        &mut self,
        quiet: &Expected,
        alternatives: &[Expected],
    ) -> Result<Message, Stop> {
        let time =
            quiet.conditions.get("for").and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.3);
        match self.receive(Some(Duration::from_secs_f64(time)))? {
            None if self.decoder.rest().is_empty() => Ok(Message::event(Kind::Quiet)),
            None => Err(Stop::Fail(Failure {
                expected: describe(alternatives),
                received: self.silence(),
                bytes: self.decoder.rest().to_vec(),
                timed_out: false,
            })),
            Some(message) => self.compare(message, alternatives),
        }
    }
}

/// Splits `bytes` into pieces of the given sizes; the last size repeats.
fn pieces<'b>(bytes: &'b [u8], sizes: &[usize]) -> Vec<&'b [u8]> {
    let mut sizes = sizes.iter().copied();
    let mut size = bytes.len();
    let mut rest = bytes;
    let mut out = vec![];
    while !rest.is_empty() {
        size = sizes.next().unwrap_or(size);
        let (piece, tail) = rest.split_at(size.clamp(1, rest.len()));
        out.push(piece);
        rest = tail;
    }
    out
}

/// Splits `bytes` at `start` of the stream into segments with their positions.
fn positions(start: u64, bytes: &[u8], sizes: &[usize]) -> Vec<(u64, Vec<u8>)> {
    let mut position = start;
    let mut segments = vec![];
    for piece in pieces(bytes, sizes) {
        segments.push((position, piece.to_vec()));
        position += piece.len() as u64;
    }
    segments
}

/// Returns the alternatives as text.
pub fn describe(alternatives: &[Expected]) -> String {
    let one = |e: &Expected| {
        let words =
            e.conditions.0.iter().map(|a| format!(" {}{}{}", a.key, a.operator.symbol(), a.value));
        format!("{}{}", e.kind.name(), words.collect::<String>())
    };
    alternatives.iter().map(one).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_size_repeats() {
        assert_eq!(pieces(b"abcdef", &[1, 2]), [&b"a"[..], b"bc", b"de", b"f"]);
        assert_eq!(pieces(b"abc", &[]), [b"abc"]);
        assert!(pieces(b"", &[1]).is_empty());
    }
}

//! One connection of the reference peer: start-up, FPDUs in both directions, and the end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oracle::StartFrame;
use oracle::framing::{Deframer, start_frame};
use oracle::segment::Terminate;

use super::Config;
use super::memory::{BUFFER, Bytes, Queues, REGIONS};
use super::numbers::{TerminateError, llp};
use crate::device::Service;
use crate::encode::{self, Frame, Numbers};
use crate::message::Kind;
use crate::service::advertisement;
use crate::stream::{Input, Stream};
use crate::value::{Arguments, Variables};

/// Limit for the start-up (RFC 5044 §7.1.2 (10)).
const STARTUP: Duration = Duration::from_secs(3);
/// Maximum time for sending the pending output to the tester, which may read slowly.
const WRITE: Duration = Duration::from_secs(30);
/// Segment length of a peer that does not align FPDUs with segments, bytes. The last segment may be shorter.
const SPLIT: usize = 100;
/// IRD and ORD that the initiator requests.
pub(super) const DEPTH: u16 = 4;
/// Maximum length of private data (RFC 5044 §7.1.1), bytes.
const MAX_PRIVATE_DATA: usize = 512;

/// Reason why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The tester has closed or reset the connection, or the connection has failed.
    Closed,
    /// The tester violated a protocol, a time limit has passed, or the peer was stopped. The peer closes the
    /// connection.
    Error,
}

/// State of a connection or SCTP session of the peer.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    /// TCP connection; `None` over SCTP.
    pub(super) stream: Option<Stream>,
    /// Segments to send over SCTP.
    pub(super) segments: Vec<Vec<u8>>,
    pub(super) config: &'a Config,
    pub(super) stopped: &'a AtomicBool,
    pub(super) input: Vec<u8>,
    /// EMSS when the connection was opened, bytes.
    pub(super) first_emss: usize,
    output: oracle::Stream,
    /// Number of bytes of `output` that were sent.
    sent: usize,
    /// Lengths of the unsent frames, bytes. On the raw port, each frame becomes one segment.
    frames: Vec<usize>,
    numbers: Numbers,
    pub(super) deframer: Deframer,
    /// True after the first draft's start-up: DV is 0, and FPDUPTR counts from the first byte of an FPDU.
    pub(super) draft: bool,
    /// True if the CRCs of received FPDUs are verified.
    pub(super) crc: bool,
    /// True if the peer may send FPDUs: it is the initiator, or the tester's first FPDU has arrived.
    pub(super) first_fpdu: bool,
    /// True while the ready-to-receive message is outstanding (RFC 6581 §9.2).
    pub(super) ready: bool,
    pub(super) queues: Queues,
    pub(super) memory: &'a Mutex<Bytes>,
    /// Segment that is being processed, which a Terminate quotes; empty if the error is not in a segment.
    pub(super) current: Vec<u8>,
    /// Queued answers: kind, and the arguments of one frame per line.
    pub(super) held: Vec<(Kind, String)>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        stream: Option<Stream>,
        config: &'a Config,
        stopped: &'a AtomicBool,
        memory: &'a Mutex<Bytes>,
    ) -> Connection<'a> {
        Connection {
            first_emss: stream.as_ref().map_or(0, Stream::emss),
            stream,
            segments: vec![],
            config,
            stopped,
            input: vec![],
            output: oracle::Stream::new(false, true),
            sent: 0,
            frames: vec![],
            numbers: Numbers::default(),
            deframer: Deframer::default(),
            draft: false,
            crc: true,
            first_fpdu: false,
            ready: false,
            queues: Queues::default(),
            memory,
            current: vec![],
            held: vec![],
        }
    }

    /// Returns the connection state of a session over SCTP.
    pub(super) fn over_sctp(
        config: &'a Config,
        stopped: &'a AtomicBool,
        memory: &'a Mutex<Bytes>,
    ) -> Connection<'a> {
        Connection::new(None, config, stopped, memory)
    }

    /// Processes a segment received over SCTP, without MPA.
    pub(super) fn take_segment(&mut self, ulpdu: &[u8]) -> Result<(), End> {
        self.current = ulpdu.to_vec();
        self.segment()
    }

    pub(super) fn startup_responder(&mut self) -> Result<(), End> {
        let limit = Instant::now() + STARTUP;
        while self.input.len() < 16 && !self.starts_wrong(b"MPA ident frame") {
            self.read(limit)?;
            if self.input.len() < 16 && self.behaves("whole-frames") {
                self.input.clear();
            }
            if self.starts_wrong(&StartFrame::REQUEST)
                && self.starts_wrong(b"MPA ident frame")
                && self.makes("key")
            {
                return Err(End::Error);
            }
        }
        if self.input.starts_with(b"MPA ident frame") && self.input.len() >= 16 {
            return self.startup_key(true);
        }
        if self.behaves("early-reply") {
            self.input.resize(20, 0);
        }
        let request = self.start_frame(limit)?;
        if request.key != StartFrame::REQUEST && self.makes("key")
            || request.revision > 2 && self.makes("revision")
            || request.reserved & 0xf != 0 && !self.makes("reserved-is-ignored")
            || request.reject && !self.makes("request-reject-is-ignored")
        {
            return Err(End::Error);
        }
        if self.behaves("ignore-requests") {
            return self.idle();
        }
        if self.behaves("reject-long") && request.private_data.len() > 256 {
            self.send(Kind::Reply, "reject=on");
            self.flush()?;
            return Err(End::Error);
        }
        let enhanced = request.revision == 2 && request.reserved & 0x10 != 0;
        let mut frame = format!(
            "rev={} markers={} crc={}",
            request.revision,
            u8::from(self.config.markers),
            u8::from(self.config.crc || request.crc)
        );
        if enhanced {
            let data = &request.private_data;
            if data.len() < 4 && self.makes("enhanced-data") {
                self.send(Kind::Reply, &format!("{frame} enhanced=on reject=on"));
                self.flush()?;
                return Err(End::Error);
            }
            let word =
                |at: usize| data.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
            let (ird, ord) = (word(0) & 0x3fff, word(2) & 0x3fff);
            frame += &format!(
                " enhanced=on ird={ord} ord={ird} flags={}",
                reply_flags(word(0) >> 14, word(2) >> 14)
            );
            self.ready = word(0) >> 15 == 1;
        }
        frame += &self.advertisement();
        self.send(Kind::Reply, &frame);
        self.operate_with(request.markers, request.crc || self.config.crc);
        if self.behaves("first-fpdu") {
            self.send(Kind::Send, "len=16");
        }
        self.flush()
    }

    /// Returns the private data of the service, as an argument of a start frame.
    pub(super) fn advertisement(&self) -> String {
        if !matches!(self.config.service, Service::Region | Service::Peer | Service::Ddp) {
            return String::new();
        }
        let regions: Vec<_> =
            REGIONS.iter().map(|r| (r.stag, r.access, r.base, r.length as u64, r.name)).collect();
        let mut data = advertisement::build(&regions);
        if self.config.service == Service::Peer {
            data.extend((BUFFER as u32).to_be_bytes());
            data.extend(1u32.to_be_bytes());
        }
        let digits: String = data.iter().map(|b| format!("{b:02x}")).collect();
        format!(" data=hex:{digits}")
    }

    fn startup_key(&mut self, answer: bool) -> Result<(), End> {
        let key: Vec<u8> = self.input.drain(..16).collect();
        if key[15] & 7 != 0 && self.makes("revision") {
            return Err(End::Error);
        }
        if answer {
            let markers = u8::from(self.config.markers);
            self.send(
                Kind::StartKey,
                &format!("rev=0 markers={markers} crc={}", u8::from(self.config.crc)),
            );
        }
        self.draft = true;
        self.operate_with(key[15] & 0x80 != 0, key[15] & 0x40 != 0 || self.config.crc);
        if self.behaves("first-fpdu") {
            self.send(Kind::Send, "len=16");
        }
        self.flush()
    }

    /// Performs the start-up of the first draft as initiator, which sends its Start Key first.
    fn initiate_draft(&mut self) -> Result<(), End> {
        let (markers, crc) = (u8::from(self.config.markers), u8::from(self.config.crc));
        self.send(Kind::StartKey, &format!("rev=0 markers={markers} crc={crc}"));
        if self.behaves("early-fpdu") {
            self.send(Kind::Send, "len=16");
        }
        self.flush()?;
        let limit = Instant::now() + STARTUP;
        while self.input.len() < 16 {
            self.read(limit)?;
            if self.input.len() < 16 && self.behaves("whole-frames") {
                self.input.clear();
            }
            if self.starts_wrong(b"MPA ident frame") && self.makes("key") {
                return Err(End::Error);
            }
        }
        self.startup_key(false)
    }

    pub(super) fn startup_initiator(&mut self) -> Result<(), End> {
        let revision = self.config.revision;
        if revision == 0 {
            return self.initiate_draft();
        }
        let mut frame = format!(
            "rev={revision} markers={} crc={}",
            u8::from(self.config.markers),
            u8::from(self.config.crc)
        );
        if revision == 2 {
            frame += &format!(" enhanced=on ird={DEPTH} ord={DEPTH} flags={}", self.config.ready);
        }
        frame += &self.advertisement();
        self.send(Kind::Request, &frame);
        self.flush()?;
        let limit = Instant::now() + STARTUP;
        let reply = self.start_frame(limit)?;
        if reply.key != StartFrame::REPLY && self.makes("key")
            || (reply.revision != revision) && self.makes("reply-revision")
            || reply.reject && self.makes("reply-rejected")
            || reply.reserved & 0xf != 0 && !self.makes("reserved-is-ignored")
        {
            return Err(End::Error);
        }
        if revision == 2 && reply.reserved & 0x10 == 0 && self.makes("reply-enhanced") {
            return Err(End::Error);
        }
        if self.behaves("ignore-replies") {
            return self.idle();
        }
        self.operate_with(reply.markers, reply.crc || self.config.crc);
        self.first_fpdu = true;
        if revision == 2 {
            self.negotiated(&reply.private_data)?;
        }
        Ok(())
    }

    /// Checks the responder's ORD and flags, and sends the ready-to-receive message (RFC 6581 §9).
    pub(super) fn negotiated(&mut self, data: &[u8]) -> Result<(), End> {
        let word = |at: usize| data.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
        let ord = word(2) & 0x3fff;
        self.check("ird", ord > DEPTH && ord != 0x3fff, llp::INSUFFICIENT_IRD)?;
        let ours = u16::from(self.config.ready);
        if ours & 8 == 0 {
            return Ok(());
        }
        let common = ours & (word(0) >> 14 << 2 | word(2) >> 14) & 7;
        self.check("ready", common == 0, llp::NO_MATCHING_RTR)?;
        match common {
            c if c & 2 != 0 => self.send(Kind::Write, "stag=1 to=0 len=0"),
            c if c & 1 != 0 => self.send(Kind::Read, "stag=1 to=0 len=0 sink=0"),
            _ => self.send(Kind::Send, "len=0"),
        }
        self.flush()
    }

    /// Returns true if a byte received so far differs from `expected`.
    fn starts_wrong(&self, expected: &[u8]) -> bool {
        let n = self.input.len().min(expected.len());
        self.input[..n] != expected[..n]
    }

    fn start_frame(&mut self, limit: Instant) -> Result<StartFrame, End> {
        loop {
            if let Some(length) = self.input.get(18..20) {
                let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
                if length > MAX_PRIVATE_DATA && self.makes("private-data-length") {
                    return Err(End::Error);
                }
                if self.behaves("early-reply") {
                    self.input.resize(20 + length, 0);
                }
            }
            if let Some((frame, length)) = start_frame(&self.input) {
                self.input.drain(..length);
                return Ok(frame);
            }
            self.read(limit)?;
        }
    }

    fn operate_with(&mut self, their_markers: bool, crc: bool) {
        self.output.markers =
            (their_markers || self.behaves("markers-unasked")) && !self.behaves("no-markers");
        self.crc = crc || self.behaves("crc-unasked");
        self.output.crc = self.crc;
        let draft_pointers = self.draft && !self.behaves("rfc-pointers");
        self.output.draft_pointers = draft_pointers;
        let markers = self.config.markers && !self.behaves("misread-markers");
        self.deframer = Deframer::new(markers).with_draft_pointers(draft_pointers);
    }

    pub(super) fn read(&mut self, limit: Instant) -> Result<(), End> {
        loop {
            if self.stopped.load(Ordering::Relaxed) || Instant::now() >= limit {
                return Err(End::Error);
            }
            let Some(stream) = &mut self.stream else { return Err(End::Closed) };
            match stream.receive(Instant::now() + Duration::from_millis(50)) {
                Input::Bytes(bytes) | Input::Segment(bytes) => {
                    self.input.extend(bytes);
                    return Ok(());
                }
                Input::Nothing => {}
                Input::Fin | Input::Reset | Input::Failed(_) => return Err(End::Closed),
            }
        }
    }

    pub(super) fn makes(&self, check: &str) -> bool {
        debug_assert!(super::flaws::CHECKS.contains(&check), "{check}");
        self.config.flaws.makes(check)
    }

    pub(super) fn behaves(&self, word: &str) -> bool {
        debug_assert!(super::flaws::BEHAVIOURS.iter().any(|(w, _)| *w == word), "{word}");
        self.config.flaws.behaves(word)
    }

    /// If `wrong`, sends a Terminate with `error`, and returns [`End::Error`]. A responder sends no Terminate before
    /// the first FPDU. Flaws can disable the check or change the reaction.
    pub(super) fn check(
        &mut self,
        check: &str,
        wrong: bool,
        error: TerminateError,
    ) -> Result<(), End> {
        if !wrong || !self.makes(check) {
            return Ok(());
        }
        let (layer, etype, code) = self.config.flaws.error(check, error);
        // Bare DDP has no message for errors.
        if (self.first_fpdu || self.behaves("terminate-early")) && !self.is_bare() {
            self.terminate(layer, etype, code);
        }
        self.flush()?;
        if self.behaves("answer-after-error") {
            return Ok(());
        }
        Err(End::Error)
    }

    /// Sends a Terminate with the bits M, D and R, and the headers that these bits announce (RFC 5040 §4.8).
    fn terminate(&mut self, layer: u8, etype: u8, code: u8) {
        let header = if self.current.first().is_some_and(|c| c & 0x80 != 0) { 14 } else { 18 };
        let quote = layer < 2 && (layer, etype) != (0, 0) && self.current.len() >= header;
        let read = quote
            && (layer, etype) == (0, 1)
            && self.current.len() >= header + 28
            && self.current[1] & 0xf == 1;
        let mut quoted = vec![];
        if quote {
            quoted.extend((self.current.len() as u16).to_be_bytes());
            quoted.extend(&self.current[..header + if read { 28 } else { 0 }]);
        }
        let digits: String = quoted.iter().map(|b| format!("{b:02x}")).collect();
        let t = Terminate {
            layer,
            etype,
            code,
            m: quote,
            d: quote,
            r: read,
            reserved: 0,
            quoted: vec![],
        };
        let flags = format!("m={} d={} r={}", u8::from(t.m), u8::from(t.d), u8::from(t.r));
        self.send(
            Kind::Terminate,
            &format!("layer={layer} type={etype} code={code} {flags} quoted={digits}"),
        );
        if self.behaves("after-terminate") {
            self.send(Kind::Send, "len=16");
        }
    }

    /// Builds a frame from its arguments in `text`, applies the flaws for `kind`, and appends the frame to the output.
    pub(super) fn send(&mut self, kind: Kind, text: &str) {
        let version = self.draft.then_some("ver=0");
        let words = text.split_whitespace().chain(version);
        let Ok(arguments) = Arguments::parse(words) else { return };
        let Some(arguments) = self.config.flaws.apply(kind, arguments) else { return };
        if let Ok(frame) = encode::frame(kind, &arguments, &Variables::new(), &mut self.numbers) {
            match (frame, &self.stream) {
                (Frame::Fpdu(ulpdu, _), None) => self.segments.push(ulpdu),
                (frame, _) => {
                    let before = self.output.len();
                    frame.append(&mut self.output);
                    self.frames.push(self.output.len() - before);
                }
            }
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), End> {
        let splits = self.behaves("split-fpdus");
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let mut rest = &self.output.bytes()[self.sent..];
        let frames = std::mem::take(&mut self.frames);
        let segments = match stream {
            Stream::Kernel(_) => vec![rest.len()],
            Stream::Raw(_) if splits => vec![SPLIT; rest.len().div_ceil(SPLIT)],
            Stream::Raw(_) => frames,
        };
        let deadline = Instant::now() + WRITE;
        for length in segments {
            let (segment, tail) = rest.split_at(length.min(rest.len()));
            stream.send(segment, deadline).map_err(|_| End::Closed)?;
            rest = tail;
        }
        self.sent = self.output.len();
        Ok(())
    }

    fn idle(&mut self) -> Result<(), End> {
        loop {
            self.read(Instant::now() + Duration::from_secs(60))?;
        }
    }
}

/// Returns the flags of a Reply (RFC 6581 §9.2): the flags of the Request, or all flags if the Request sets A alone; 0
/// if the Request does not set A. `ab` and `cd` each contain two flags of the Request.
fn reply_flags(ab: u16, cd: u16) -> u16 {
    match (ab << 2 | cd) & 0xf {
        flags if flags & 8 == 0 => 0,
        8 => 15,
        flags => flags,
    }
}

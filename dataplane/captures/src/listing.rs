//! Lists the iWARP messages of captured frames with the reference codec. A message belongs to the frame that completes
//! it in stream order. Streams whose start-up is not captured are omitted.

use std::collections::{BTreeMap, HashMap};

use dialogue::segment::Flags;
use oracle::StartFrame;
use oracle::framing::{self, Deframer};

use crate::message::{Fields, Upper};
use crate::packet::{self, Content, Data, Endpoint};

/// A message and the number of its frame, counted from 1.
pub type Message = (usize, Fields);

const START_KEY: &[u8] = b"MPA ident frame";

type Direction = (Endpoint, Endpoint);

/// One direction of a TCP connection.
#[derive(Debug, Default)]
struct Half {
    /// Sequence number of the next byte in order.
    next: u32,
    /// Segments beyond a gap, by their distance from the initial sequence number.
    early: BTreeMap<u32, Vec<u8>>,
    initial: u32,
    /// Bytes in order that are not decoded yet.
    bytes: Vec<u8>,
    start: Option<Start>,
    deframer: Option<Deframer>,
    upper: Option<Upper>,
}

/// Fields of a start-up frame that determine how FPDUs are decoded.
#[derive(Clone, Copy, Debug)]
struct Start {
    markers: bool,
    crc: bool,
    reject: bool,
    draft: bool,
}

/// Returns the messages of the frames, in their order.
pub fn list(frames: &[Vec<u8>]) -> Vec<Message> {
    let mut halves = HashMap::<Direction, Half>::new();
    let mut sctp = Associations::default();
    let mut messages = Vec::new();
    for (number, frame) in (1..).zip(frames) {
        let Some(packet) = packet::parse(frame) else { continue };
        let direction = (packet.source, packet.destination);
        match packet.content {
            Content::Tcp(segment) if segment.flags.has(Flags::SYN) => {
                let next = segment.seq.wrapping_add(1);
                halves.insert(direction, Half { next, initial: next, ..Half::default() });
            }
            Content::Tcp(segment) => {
                let Some(mut half) = halves.remove(&direction) else { continue };
                half.receive(segment.seq, &segment.payload);
                let reverse = halves.get(&(packet.destination, packet.source));
                while let Some(fields) = half.next_message(reverse) {
                    messages.push((number, fields));
                }
                halves.insert(direction, half);
            }
            Content::Sctp(chunks) => {
                let fields = chunks.iter().filter_map(|chunk| sctp.receive(direction, chunk));
                messages.extend(fields.map(|fields| (number, fields)));
            }
        }
    }
    messages
}

impl Half {
    fn receive(&mut self, seq: u32, payload: &[u8]) {
        let distance = seq.wrapping_sub(self.initial);
        if !payload.is_empty() && distance < 1 << 31 {
            self.early.entry(distance).or_default().splice(.., payload.iter().copied());
        }
        while let Some((&distance, _)) = self.early.first_key_value() {
            let position = self.next.wrapping_sub(self.initial);
            if distance > position {
                return;
            }
            let segment = self.early.remove(&distance).unwrap_or_default();
            let fresh = segment.get((position - distance) as usize..).unwrap_or_default();
            self.bytes.extend(fresh);
            self.next = self.next.wrapping_add(fresh.len() as u32);
        }
    }

    /// Decodes the next message of this direction, if it is complete.
    fn next_message(&mut self, reverse: Option<&Half>) -> Option<Fields> {
        let Some(start) = self.start else { return self.start_frame() };
        let reverse = reverse?;
        let peer = reverse.start?;
        if start.reject || peer.reject {
            return None;
        }
        // RFC 5044 §7.1.1: M requests markers in the stream to the frame's sender. C applies to both directions.
        let deframer = self.deframer.get_or_insert_with(|| Deframer::new(peer.markers));
        let fpdu = deframer.next(&self.bytes)?;
        self.bytes.drain(..fpdu.raw.len());
        let upper = reverse.upper.or(self.upper);
        Some(Fields::fpdu(&fpdu, start.crc || peer.crc, upper, start.draft))
    }

    fn start_frame(&mut self) -> Option<Fields> {
        if let Some(rest) = self.bytes.strip_prefix(START_KEY) {
            let flags = *rest.first()?;
            let (markers, crc) = (flags & 0x80 != 0, flags & 0x40 != 0);
            self.start = Some(Start { markers, crc, reject: false, draft: true });
            self.bytes.drain(..START_KEY.len() + 1);
            return Some(Fields::start_key(flags));
        }
        let (frame, length) = framing::start_frame(&self.bytes)?;
        if frame.key != StartFrame::REQUEST && frame.key != StartFrame::REPLY {
            return None;
        }
        self.start = Some(Start {
            markers: frame.markers,
            crc: frame.crc,
            reject: frame.reject && frame.key == StartFrame::REPLY,
            draft: false,
        });
        self.upper = stated_upper(&frame.private_data);
        self.bytes.drain(..length);
        Some(Fields::start_frame(&frame))
    }
}

/// Returns the protocol that private data advertises (docs/protocol.md, section 2).
fn stated_upper(private_data: &[u8]) -> Option<Upper> {
    let advertisement =
        [0, 4].iter().find_map(|&skip| private_data.get(skip..)?.strip_prefix(b"DDPA"))?;
    match advertisement.get(1)? & 3 {
        1 => Some(Upper::Bare),
        2 => Some(Upper::Rdmap),
        _ => None,
    }
}

/// Fragments and protocols of SCTP streams.
#[derive(Debug, Default)]
struct Associations {
    fragments: HashMap<Direction, BTreeMap<u32, (u8, Vec<u8>)>>,
    uppers: HashMap<(Direction, u16), Upper>,
}

impl Associations {
    /// Returns the message that `chunk` completes.
    fn receive(&mut self, direction: Direction, chunk: &Data) -> Option<Fields> {
        let fragments = self.fragments.entry(direction).or_default();
        fragments.insert(chunk.tsn, (chunk.flags, chunk.data.to_vec()));
        // RFC 9260 §6.9: fragments of a message have consecutive TSNs; B marks the first, E the last.
        let mut first = chunk.tsn;
        while fragments.get(&first)?.0 & 2 == 0 {
            first = first.wrapping_sub(1);
        }
        let (mut message, mut tsn) = (Vec::new(), first);
        loop {
            let (flags, data) = fragments.get(&tsn)?;
            message.extend(data);
            if flags & 1 != 0 {
                break;
            }
            tsn = tsn.wrapping_add(1);
        }
        fragments.retain(|number, _| number.wrapping_sub(first) > tsn.wrapping_sub(first));
        // RFC 5043 §4: the session uses the streams of both directions with this number.
        let reverse = (direction.1, direction.0);
        let session = |direction| (direction, chunk.stream);
        if chunk.ppid == 17
            && let Some(upper) = stated_upper(message.get(4..).unwrap_or_default())
        {
            self.uppers.insert(session(direction), upper);
            self.uppers.insert(session(reverse), upper);
        }
        Fields::sctp(chunk.ppid, &message, self.uppers.get(&session(direction)).copied())
    }
}

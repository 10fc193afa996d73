//! A TCP connection that carries MPA, from the SYN to the FINs.

use dialogue::segment::Flags;
use oracle::{Flaw, StartFrame, Stream};

use crate::packet::{self, Endpoint};

const SYN: Flags = Flags::SYN;
const ACK: Flags = Flags::ACK;
const FIN: Flags = Flags::FIN;

/// ULPDUs to send, each with its flaw.
pub(super) type Ulpdus = Vec<(Vec<u8>, Flaw)>;

/// Start-up form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Start Key of the first draft.
    Key,
    /// Request and reply of this revision.
    Revision(u8),
}

/// Segmentation of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cut {
    /// One FPDU per segment.
    Aligned,
    /// Whole FPDUs, as many as fit into a segment of this many bytes.
    Packed(usize),
    /// Segments of this many bytes, the start-up frames included.
    Every(usize),
}

/// Parameters of a generated connection.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) form: Form,
    /// True if the FPDUs of a side have markers. Index 0 is the initiator.
    pub(super) markers: [bool; 2],
    pub(super) crc: bool,
    pub(super) reject: bool,
    pub(super) private_data: Vec<u8>,
    /// True if FPDUPTR counts from the marker at the start of an FPDU, as the first draft permits.
    pub(super) draft_pointers: bool,
    /// Initial sequence number of the initiator.
    pub(super) isn: u32,
    /// Port of the initiator.
    pub(super) port: u16,
}

impl Setup {
    pub(super) fn new(port: u16) -> Setup {
        Setup {
            form: Form::Revision(2),
            markers: [false, false],
            crc: true,
            reject: false,
            private_data: Vec::new(),
            draft_pointers: false,
            isn: 1000,
            port,
        }
    }
}

/// A connection under construction.
#[derive(Debug)]
pub(super) struct Connection {
    setup: Setup,
    ends: [Endpoint; 2],
    next: [u32; 2],
    frames: Vec<Vec<u8>>,
}

impl Connection {
    pub(super) fn new(setup: Setup) -> Connection {
        let ends = [
            Endpoint { address: [10, 0, 0, 1], port: setup.port },
            Endpoint { address: [10, 0, 0, 2], port: 7471 },
        ];
        let next = [setup.isn, 0x8000_0000];
        Connection { setup, ends, next, frames: Vec::new() }
    }

    /// Returns the frames of the connection. The initiator sends `ulpdus[0]`, then the responder `ulpdus[1]`.
    pub(super) fn play(mut self, ulpdus: &[Ulpdus; 2], cut: Cut) -> Vec<Vec<u8>> {
        self.send(0, SYN, &[]);
        self.send(1, SYN.with(ACK), &[]);
        self.send(0, ACK, &[]);
        for side in [0, 1] {
            let frame = self.start_frame(side);
            let size = if let Cut::Every(size) = cut { size } else { frame.len() };
            for part in frame.chunks(size) {
                self.send(side, ACK, part);
            }
        }
        for side in [0, 1] {
            for segment in self.segments(side, &ulpdus[side], cut) {
                self.send(side, ACK, &segment);
            }
        }
        self.send(0, FIN.with(ACK), &[]);
        self.send(1, FIN.with(ACK), &[]);
        self.frames
    }

    fn send(&mut self, side: usize, flags: Flags, payload: &[u8]) {
        let peer = 1 - side;
        let ack = if flags.has(ACK) { self.next[peer] } else { 0 };
        let (from, to, seq) = (self.ends[side], self.ends[peer], self.next[side]);
        self.frames.push(packet::tcp(from, to, flags, seq, ack, payload));
        let control = u32::from(flags.has(SYN) || flags.has(FIN));
        self.next[side] = seq.wrapping_add(payload.len() as u32 + control);
    }

    fn start_frame(&self, side: usize) -> Vec<u8> {
        // The M flag requests markers from the peer.
        let (markers, crc) = (self.setup.markers[1 - side], self.setup.crc && side == 0);
        let Form::Revision(revision) = self.setup.form else {
            let flags = u8::from(markers) << 7 | u8::from(crc) << 6;
            return [&b"MPA ident frame"[..], &[flags]].concat();
        };
        let mut private_data = Vec::new();
        if revision >= 2 {
            private_data = [[0x80, 5, 0xc0, 7], [0x40, 9, 0x3f, 0xff]][side].to_vec();
        }
        private_data.extend(&self.setup.private_data);
        StartFrame {
            key: [StartFrame::REQUEST, StartFrame::REPLY][side],
            markers,
            crc,
            reject: self.setup.reject && side == 1,
            reserved: if revision >= 2 { 0x10 } else { 0 },
            revision,
            claimed_length: None,
            private_data,
        }
        .bytes()
    }

    fn segments(&self, side: usize, ulpdus: &Ulpdus, cut: Cut) -> Vec<Vec<u8>> {
        let mut stream = Stream::default();
        (stream.markers, stream.crc) = (self.setup.markers[side], self.setup.crc);
        let mut segments: Vec<Vec<u8>> = Vec::new();
        for (ulpdu, flaw) in ulpdus {
            let before = stream.len();
            stream.fpdu(ulpdu, *flaw);
            let mut fpdu = stream.bytes()[before..].to_vec();
            if self.setup.draft_pointers && before.is_multiple_of(512) {
                count_from_first_marker(&mut fpdu);
            }
            match (cut, segments.last_mut()) {
                (Cut::Packed(size), Some(last)) if last.len() + fpdu.len() <= size => {
                    last.extend(fpdu)
                }
                _ => segments.push(fpdu),
            }
        }
        match cut {
            Cut::Every(size) => stream.bytes().chunks(size).map(<[u8]>::to_vec).collect(),
            Cut::Aligned | Cut::Packed(_) => segments,
        }
    }
}

/// Adds the length of the marker at the start of `fpdu` to the FPDUPTR of each later marker.
fn count_from_first_marker(fpdu: &mut [u8]) {
    for at in (512..fpdu.len()).step_by(512) {
        let pointer = u16::from_be_bytes([fpdu[at + 2], fpdu[at + 3]]) + 4;
        fpdu[at + 2..at + 4].copy_from_slice(&pointer.to_be_bytes());
    }
    let (covered, field) = fpdu.split_at_mut(fpdu.len() - 4);
    field.copy_from_slice(&oracle::crc32c(covered).to_le_bytes());
}

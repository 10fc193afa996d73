//! SCTP associations with DDP stream sessions (RFC 5043 §6).

use super::messages;
use crate::packet::{self, Data, Endpoint};

/// An association under construction, without handshake: the listing does not need one to decode the chunks.
struct Association {
    ends: [Endpoint; 2],
    tsn: [u32; 2],
    frames: Vec<Vec<u8>>,
}

/// Payload protocol identifiers (RFC 5043 §5.2).
const SEGMENT: u32 = 16;
const CONTROL: u32 = 17;

impl Association {
    fn new(port: u16) -> Association {
        Association {
            ends: [
                Endpoint { address: [10, 0, 0, 1], port },
                Endpoint { address: [10, 0, 0, 2], port: 7472 },
            ],
            tsn: [0xffff_fff0, 100],
            frames: Vec::new(),
        }
    }

    /// Sends `list`. If `fragment` is `usize::MAX`, all messages are in one packet. Otherwise each fragment of at most
    /// `fragment` bytes is in its own packet.
    fn send(&mut self, side: usize, stream: u16, fragment: usize, list: &[(u32, Vec<u8>)]) {
        let mut chunks = Vec::new();
        for (ppid, message) in list {
            let parts: Vec<&[u8]> = message.chunks(fragment).collect();
            for (at, data) in parts.iter().enumerate() {
                let flags = 4 | u8::from(at == 0) << 1 | u8::from(at + 1 == parts.len());
                chunks.push(Data {
                    flags,
                    tsn: self.tsn[side],
                    stream,
                    ppid: *ppid,
                    data: data.to_vec(),
                });
                self.tsn[side] = self.tsn[side].wrapping_add(1);
            }
        }
        let (from, to) = (self.ends[side], self.ends[1 - side]);
        if fragment < usize::MAX {
            // Each fragment is sent in a separate packet.
            for chunk in &chunks {
                self.frames.push(packet::sctp(
                    from,
                    to,
                    0x1000 + side as u32,
                    std::slice::from_ref(chunk),
                ));
            }
        } else {
            self.frames.push(packet::sctp(from, to, 0x1000 + side as u32, &chunks));
        }
    }
}

fn control(ssn: u16, function: u16, private_data: &[u8]) -> (u32, Vec<u8>) {
    (CONTROL, [&ssn.to_be_bytes()[..], &function.to_be_bytes(), private_data].concat())
}

fn segment(ssn: u16, ulpdu: &[u8]) -> (u32, Vec<u8>) {
    (SEGMENT, [&ssn.to_be_bytes()[..], ulpdu].concat())
}

/// Returns sessions of RDMAP and of bare DDP, enhanced, rejected, with bundled and fragmented messages.
pub(super) fn sessions() -> Vec<Vec<u8>> {
    let whole = usize::MAX;
    let mut a = Association::new(49000);
    a.send(0, 0, whole, &[control(0, 1, b"")]);
    a.send(1, 0, whole, &[control(0, 2, b"private")]);
    let all = messages::rdmap_segments();
    for (at, pair) in all.chunks(2).enumerate() {
        let ssn = 1 + 2 * at as u16;
        let bundle: Vec<_> = (ssn..).zip(pair).map(|(ssn, ulpdu)| segment(ssn, ulpdu)).collect();
        a.send(0, 0, whole, &bundle);
    }
    let long = oracle::tagged(1, true, 0x40, 5, 6, &[0x5a; 3000]);
    a.send(0, 0, 1400, &[segment(100, &long)]);
    for (ssn, terminate) in (1..).zip(messages::terminates()) {
        a.send(1, 0, whole, &[segment(ssn, &terminate)]);
    }
    a.send(1, 0, whole, &[control(101, 4, b"")]);

    // A second session, on another stream, advertises bare DDP.
    a.send(0, 1, whole, &[control(0, 1, &messages::advertisement(1))]);
    a.send(1, 1, whole, &[control(0, 2, &messages::advertisement(1))]);
    let bare = oracle::untagged(1, true, [0x43, 1, 2, 3, 4], 0, 1, 0, b"message");
    a.send(0, 1, whole, &[segment(1, &bare)]);
    a.send(0, 0, whole, &[segment(102, &bare)]);

    for (stream, (request, reply)) in (2..).zip([(5, 6), (5, 7), (1, 3), (8, 0xffff)]) {
        let depths = if request == 5 { &[0x80, 5, 0xc0, 7, 1, 2, 3][..] } else { &[] };
        a.send(0, stream, whole, &[control(0, request, depths)]);
        a.send(
            1,
            stream,
            whole,
            &[control(0, reply, if reply == 6 { depths } else { &[0, 1, 0, 2] })],
        );
    }
    a.frames
}

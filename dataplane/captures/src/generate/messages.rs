//! DDP segments of generated captures: RDMAP messages, Terminates, bare DDP.

use oracle::Flaw;
use oracle::segment::{ReadRequest, TAGGED_HEADER, Terminate, UNTAGGED_HEADER};

use super::connection::{Connection, Cut, Form, Setup, Ulpdus};
use crate::errors::ERRORS;

/// Returns the RDMAP control field of an opcode, version 1.
const fn rdmap(opcode: u8) -> u8 {
    0x40 | opcode
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + len) as u8).collect()
}

/// Returns RDMA Writes with payloads of the given lengths.
pub(super) fn sweep(lengths: &[usize]) -> Ulpdus {
    let write = |(at, &len): (usize, &usize)| {
        let last = at % 3 != 0;
        oracle::tagged(1, last, rdmap(0), 0x1234_5600, 0xffff_0000_0000 + at as u64, &payload(len))
    };
    lengths.iter().enumerate().map(write).map(|ulpdu| (ulpdu, Flaw::None)).collect()
}

/// Returns a message of each opcode except Terminate, and messages with undefined or wrong values.
pub(super) fn rdmap_segments() -> Vec<Vec<u8>> {
    let read = ReadRequest {
        sink_stag: 0x0102_0304,
        sink_to: u64::MAX - 1,
        size: 0x8000_0001,
        source_stag: 0xf1f2_f3f4,
        source_to: 0x1122_3344_5566_7788,
    };
    let untagged = |opcode: u8, stag: u32, qn, msn, mo, body: &[u8]| {
        let [a, b, c, d] = stag.to_be_bytes();
        oracle::untagged(1, true, [rdmap(opcode), a, b, c, d], qn, msn, mo, body)
    };
    let mut all = vec![
        untagged(1, 0, 1, 1, 0, &read.bytes()),
        oracle::tagged(1, true, rdmap(2), 7, u64::MAX, &payload(33)),
        untagged(3, 0, 0, 1, 0, &payload(5)),
        untagged(3, 0, 0, 1, 5, &payload(6)),
        untagged(3, 0, 0, 2, 0, &[]),
        untagged(4, 0xdead_beef, 0, 3, 0, &payload(9)),
        untagged(5, 0, 0, 4, 0, &payload(10)),
        untagged(6, 0xffff_ffff, 0, 0xffff_ffff, 0, &payload(11)),
        untagged(8, 0, 0, 5, 0, &[1, 2, 3, 4, 5, 6, 7, 8]),
        untagged(9, 0, 0, 6, 0, &[0xff; 8]),
        untagged(11, 0, 3, 1, 0, &[0xaa, 0xbb, 0xcc, 0xdd, 8, 7, 6, 5, 4, 3, 2, 1]),
        // Segments with an undefined opcode, other versions and reserved bits, or a wrong queue.
        untagged(14, 0, 0, 7, 0, &payload(4)),
        oracle::untagged(3, false, [0xf3, 0, 0, 0, 0], 9, 8, 7, &payload(3)),
        oracle::tagged(0, false, 0x70, 1, 2, &payload(2)),
    ];
    for opcode in [0, 2, 9] {
        let mut body = vec![0x10, 0x20, 0x30, 0x40 | opcode];
        body.extend((0x51..0x51 + 48).collect::<Vec<u8>>());
        all.push(untagged(10, 0, 1, 2 + u32::from(opcode), 0, &body));
    }
    all
}

/// Returns [`rdmap_segments`] without flaws.
pub(super) fn rdmap_ulpdus() -> Ulpdus {
    rdmap_segments().into_iter().map(|ulpdu| (ulpdu, Flaw::None)).collect()
}

fn terminate_segment(body: &[u8]) -> Vec<u8> {
    oracle::untagged(1, true, [rdmap(7), 0, 0, 0, 0], 2, 1, 0, body)
}

/// Returns Terminates: every error, every combination of quoted headers, undefined errors, and siw's layout.
pub(super) fn terminates() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let quotes = quoted_headers();
    let undefined = [(3, 4, 0x77, ""), (0, 1, 0x55, ""), (1, 3, 9, ""), (15, 15, 0xff, "")];
    for (at, &(layer, etype, code, _)) in ERRORS.iter().chain(&undefined).enumerate() {
        let (m, d, r, quoted) = quotes[at % quotes.len()].clone();
        let reserved = if at % 2 == 0 { 0 } else { 0x1ff8 };
        let body = Terminate { layer, etype, code, m, d, r, reserved, quoted }.bytes();
        all.push(terminate_segment(&body));
    }
    for (m, d, r, quoted) in quotes {
        let (layer, etype, code, reserved) = (1, 1, 1, 0);
        let body =
            Terminate { layer, etype, code, m, d, r, reserved, quoted: quoted.clone() }.bytes();
        all.push(terminate_segment(&body));
        // Linux siw's layout: nibbles swapped, M, D and R in bits 0 to 2.
        let flags = u8::from(m) | u8::from(d) << 1 | u8::from(r) << 2;
        all.push(terminate_segment(&[&[0x21, 2, flags, 0], &quoted[..]].concat()));
    }
    all.push(terminate_segment(&[0x02, 4, 0, 0]));
    all
}

/// Returns combinations of quoted headers: M, D, R, and the bytes after the control word.
fn quoted_headers() -> Vec<(bool, bool, bool, Vec<u8>)> {
    let tagged = oracle::tagged(1, true, rdmap(0), 0x0a0b_0c0d, 0x0102_0304_0506_0708, &[]);
    let untagged = oracle::untagged(1, true, [rdmap(1), 0, 0, 0, 0], 1, 5, 0, &[]);
    let read = ReadRequest { sink_stag: 1, sink_to: 2, size: 3, source_stag: 4, source_to: 5 };
    let length = [0x05, 0xdc];
    vec![
        (false, false, false, vec![]),
        (true, false, false, length.to_vec()),
        (true, true, false, [&length[..], &tagged].concat()),
        (true, true, false, [&length[..], &untagged].concat()),
        (true, true, true, [&length[..], &untagged, &read.bytes()].concat()),
        (false, true, false, [&[0, 0], &tagged[..]].concat()),
        (false, false, true, read.bytes()),
    ]
}

/// Returns an advertisement (docs/protocol.md, section 2) with two regions.
pub(super) fn advertisement(flags: u8) -> Vec<u8> {
    let mut bytes = b"DDPA\x01".to_vec();
    bytes.push(flags);
    bytes.extend([0, 2]);
    for (stag, access, name) in [(0x0102_0304u32, 1u8, "in"), (0xfffe_0100, 7, "memory.0")] {
        bytes.extend(stag.to_be_bytes());
        bytes.extend([access, name.len() as u8, 0, 0]);
        bytes.extend(0x1122_3344_5566_7788u64.to_be_bytes());
        bytes.extend(4096u64.to_be_bytes());
        bytes.extend(name.as_bytes());
    }
    bytes
}

/// Returns a last message (docs/protocol.md, section 5).
fn last_message(layer_and_type: u8, code: u8, header: &[u8]) -> Vec<u8> {
    let mut body = vec![1, layer_and_type, code, header.len() as u8, 0, 0, 0x05, 0xdc];
    body.extend(header);
    oracle::untagged(1, true, [0; 5], 2, 1, 0, &body)
}

/// Returns the frames of three bare DDP connections. The first has no advertisement; the dissector recognises bare DDP
/// by zeros in RsvdULP.
pub(super) fn bare_ddp() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let tagged = oracle::tagged(1, true, 0, 0x0102_0304, 0x1122_3344_5566_7788, b"hello");
    let none =
        |ulpdus: Vec<Vec<u8>>| ulpdus.into_iter().map(|u| (u, Flaw::None)).collect::<Ulpdus>();
    for (port, private_data) in [(48000, Vec::new()), (48001, advertisement(1))] {
        let stated = !private_data.is_empty();
        // The dissector reads RsvdULP other than zero as RDMAP's control field unless the advertisement states bare
        // DDP.
        let rsvd = if stated { [0x43, 1, 2, 3, 4] } else { [0; 5] };
        let message = oracle::untagged(1, true, rsvd, 0, 1, 0, b"message");
        let quoted = if stated { &message[..UNTAGGED_HEADER] } else { &tagged[..TAGGED_HEADER] };
        let sends = [
            none(vec![tagged.clone(), message.clone()]),
            none(vec![
                oracle::untagged(1, false, rsvd, 5, 1, 0, b"part"),
                last_message(0x11, 1, quoted),
            ]),
        ];
        let form = Form::Revision(1);
        let setup = Setup { form, private_data, markers: [true, true], ..Setup::new(port) };
        frames.extend(Connection::new(setup).play(&sends, Cut::Aligned));
    }
    let setup = Setup { private_data: advertisement(2), ..Setup::new(48002) };
    let sends = [vec![], none(vec![tagged, last_message(0x20, 2, &[])])];
    frames.extend(Connection::new(setup).play(&sends, Cut::Aligned));
    frames
}

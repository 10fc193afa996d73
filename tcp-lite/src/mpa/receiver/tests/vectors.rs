//! The annotated FPDUs of RFC 5044 figures 5 and 6 and of the draft's.

use super::*;
use crate::mpa::testing::slow_crc;

/// The ULPDU of the figures: DDP control field, MSN, 24 zeros.
pub(crate) fn figure_ulpdu(control: [u8; 2], msn: u8) -> Vec<u8> {
    let mut ulpdu = vec![0; 42];
    ulpdu[..2].copy_from_slice(&control);
    ulpdu[13] = msn;
    ulpdu
}

/// Figure 5: the first FPDU of a stream, which begins with a marker.
pub(crate) fn figure_5(control: [u8; 2], crc: [u8; 4]) -> Vec<u8> {
    let mut octets = vec![0, 0, 0, 0, 0x00, 0x2a];
    octets.extend(figure_ulpdu(control, 1));
    octets.extend(crc);
    assert_eq!(octets.len(), 0x34);
    octets
}

/// Figure 6: the second FPDU, at 0x1ec, with a marker at 0x200.
pub(crate) fn figure_6(control: [u8; 2], crc: [u8; 4]) -> Vec<u8> {
    let ulpdu = figure_ulpdu(control, 2);
    let mut octets = vec![0x00, 0x2a];
    octets.extend(&ulpdu[..18]);
    octets.extend([0, 0, 0, 0x14]);
    octets.extend(&ulpdu[18..]);
    octets.extend(crc);
    assert_eq!(octets.len(), 0x220 - 0x1ec);
    octets
}

pub(crate) const RFC: ([u8; 2], [u8; 4], [u8; 4]) =
    ([0x41, 0x43], [0x52, 0x23, 0x99, 0x83], [0x84, 0x92, 0x58, 0x98]);
pub(crate) const DRAFT: ([u8; 2], [u8; 4], [u8; 4]) =
    ([0x40, 0x03], [0x4c, 0x86, 0xb3, 0x84], [0xa1, 0x9c, 0xd1, 0x03]);

/// The octets of the figures are accepted; and the tests' own CRC agrees with them.
#[test]
fn figures_are_decoded() {
    for (control, five, six) in [RFC, DRAFT] {
        let first = figure_5(control, five);
        assert_eq!(slow_crc(&first[..0x30]).to_le_bytes(), five);
        let mut stream = Stream::new(true, true);
        stream.fpdu(&figure_ulpdu(control, 1));
        assert_eq!(stream.octets, first);
        let mut bench = Bench::new(&stream, &Config::default());
        bench.arrive(0..first.len());
        assert_eq!(bench.handed_up(&stream), [0]);

        // "the first FPDU (which is not shown here) had a length of 492 octets"
        let mut stream = Stream::new(true, true);
        stream.fpdu(&ulpdu(0, 482));
        assert_eq!(stream.octets.len(), 492);
        stream.fpdu(&figure_ulpdu(control, 2));
        assert_eq!(stream.octets[492..], figure_6(control, six));
        // Out of order, found by its marker (RFC 5044 §6 (2)).
        let mut bench = Bench::new(&stream, &Config::default());
        bench.arrive(492..stream.octets.len());
        assert_eq!(bench.handed_up(&stream), [1]);
        bench.arrive(0..492);
        assert_eq!(bench.handed_up(&stream), [0, 1]);
    }
}

//! The annotated FPDUs in figures 5 and 6 of RFC 5044 and of MPA's first draft.

use super::*;
use crate::mpa::testing::{DRAFT, RFC, bitwise_crc, figure_5, figure_6, figure_ulpdu};

/// The receiver accepts the bytes of the figures, and the tests' bitwise CRC equals the CRC of figure 5.
#[test]
fn rfc_5044_figures_are_decoded() {
    for (control, five, six) in [RFC, DRAFT] {
        let first = figure_5(control, five);
        assert_eq!(bitwise_crc(&first[..0x30]).to_le_bytes(), five);
        let mut stream = Stream::new(true, true);
        stream.fpdu(&figure_ulpdu(control, 1));
        assert_eq!(stream.bytes, first);
        let mut bench = Bench::new(&stream, &Config::default());
        bench.arrive(0..first.len());
        assert_eq!(bench.handed_up(&stream), [0]);

        // "the first FPDU (which is not shown here) had a length of 492 bytes"
        let mut stream = Stream::new(true, true);
        stream.fpdu(&ulpdu(0, 482));
        assert_eq!(stream.bytes.len(), 492);
        stream.fpdu(&figure_ulpdu(control, 2));
        assert_eq!(stream.bytes[492..], figure_6(control, six));
        // The second FPDU arrives first and is located by its marker (RFC 5044 §6 (2)).
        let mut bench = Bench::new(&stream, &Config::default());
        bench.arrive(492..stream.bytes.len());
        assert_eq!(bench.handed_up(&stream), [1]);
        bench.arrive(0..492);
        assert_eq!(bench.handed_up(&stream), [0, 1]);
    }
}

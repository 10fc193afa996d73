//! Test support: FPDU streams built as RFC 5044 describes, independently of the code under test, and a sink that checks
//! MPA's obligations to DDP as its LLP.

use super::config::{Config, Params, Revision};
use ddp::llp::{Disposition, OrderKey, Ulpdu, UlpduSink};
use std::collections::{BTreeMap, HashSet};

/// Computes CRC32c bit by bit (RFC 5044 §4.4).
pub(crate) fn bitwise_crc(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// The bytes of one direction in Full Operation.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) markers: bool,
    pub(crate) crc: bool,
    /// True if FPDUPTR counts from a marker directly before the length field, a possible reading of the first draft.
    pub(crate) from_marker: bool,
    pub(crate) bytes: Vec<u8>,
    /// Offset of the first byte of each FPDU, and its ULPDU.
    pub(crate) fpdus: Vec<(usize, Vec<u8>)>,
}

impl Stream {
    pub(crate) fn new(markers: bool, crc: bool) -> Self {
        Stream { markers, crc, from_marker: false, bytes: Vec::new(), fpdus: Vec::new() }
    }

    /// Appends an FPDU with this ULPDU.
    pub(crate) fn fpdu(&mut self, ulpdu: &[u8]) -> &mut Self {
        let start = self.bytes.len();
        let mut header = None;
        let mut body = (ulpdu.len() as u16).to_be_bytes().to_vec();
        body.extend_from_slice(ulpdu);
        while !body.len().is_multiple_of(4) {
            body.push(0);
        }
        for byte in body {
            self.marker_if_due(start, &mut header);
            header.get_or_insert(self.bytes.len());
            self.bytes.push(byte);
        }
        self.marker_if_due(start, &mut header);
        let crc = if self.crc { bitwise_crc(&self.bytes[start..]) } else { 0 };
        self.bytes.extend_from_slice(&crc.to_le_bytes());
        self.fpdus.push((start, ulpdu.to_vec()));
        self
    }

    fn marker_if_due(&mut self, start: usize, header: &mut Option<usize>) {
        let at = self.bytes.len();
        if !self.markers || !at.is_multiple_of(512) {
            return;
        }
        let pointer = match header {
            None => 0,
            Some(header) if self.from_marker && *header != start => at - start,
            Some(header) => at - *header,
        };
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&(pointer as u16).to_be_bytes());
    }

    /// Returns the offset of each FPDU, and the end of the last FPDU.
    pub(crate) fn boundaries(&self) -> Vec<usize> {
        self.fpdus.iter().map(|(at, _)| *at).chain([self.bytes.len()]).collect()
    }

    pub(crate) fn params(&self) -> Params {
        let revision = if self.from_marker { Revision::Zero } else { Revision::One };
        let markers = self.markers;
        let (markers_tx, markers_rx) = (markers, markers);
        Params { revision, markers_tx, markers_rx, crc: self.crc, agreed: None }
    }
}

/// Returns a ULPDU of `len` bytes, which depend on `seed`.
pub(crate) fn ulpdu(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(131) ^ i.wrapping_mul(7) ^ (i >> 8)) as u8).collect()
}

/// Returns a configuration with a hold limit of 16 MiB, which no test reaches.
pub(crate) fn large_hold_config() -> Config {
    Config { hold_limit: 1 << 24, ..Config::default() }
}

/// A sink that collects ULPDUs and asserts the rules of [`UlpduSink`].
#[derive(Debug, Default)]
pub(crate) struct Collector {
    pub(crate) received: BTreeMap<u64, Vec<u8>>,
    pub(crate) complete: u64,
    /// Keys of FPDUs to refuse, once each.
    pub(crate) refuse: HashSet<u64>,
    pub(crate) refused: u64,
}

impl UlpduSink for Collector {
    fn ulpdu(&mut self, key: OrderKey, ulpdu: Ulpdu<'_>) -> Disposition {
        assert!(key.0 >= self.complete, "a key below the last order_complete");
        if self.refuse.remove(&key.0) {
            self.refused += 1;
            return Disposition::Refused;
        }
        let mut bytes = vec![0; ulpdu.len()];
        assert_eq!(ulpdu.copy_prefix(&mut bytes), ulpdu.len());
        assert_eq!(self.received.insert(key.0, bytes), None, "the same key twice");
        Disposition::Placed(ulpdu.len())
    }

    fn order_complete(&mut self, before: OrderKey) {
        assert!(before.0 >= self.complete, "order_complete went backwards");
        self.complete = before.0;
    }
}

/// Returns the ULPDU of RFC 5044's figures 5 and 6: DDP control field, MSN and zeros.
pub(crate) fn figure_ulpdu(control: [u8; 2], msn: u8) -> Vec<u8> {
    let mut ulpdu = vec![0; 42];
    ulpdu[..2].copy_from_slice(&control);
    ulpdu[13] = msn;
    ulpdu
}

/// Returns figure 5: the first FPDU of a stream, which begins with a marker.
pub(crate) fn figure_5(control: [u8; 2], crc: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 0x00, 0x2a];
    bytes.extend(figure_ulpdu(control, 1));
    bytes.extend(crc);
    assert_eq!(bytes.len(), 0x34);
    bytes
}

/// Returns figure 6: the second FPDU, at 0x1ec, with a marker at 0x200.
pub(crate) fn figure_6(control: [u8; 2], crc: [u8; 4]) -> Vec<u8> {
    let ulpdu = figure_ulpdu(control, 2);
    let mut bytes = vec![0x00, 0x2a];
    bytes.extend(&ulpdu[..18]);
    bytes.extend([0, 0, 0, 0x14]);
    bytes.extend(&ulpdu[18..]);
    bytes.extend(crc);
    assert_eq!(bytes.len(), 0x220 - 0x1ec);
    bytes
}

/// RFC 5044's values: DDP control field, CRC of figure 5, CRC of figure 6.
pub(crate) const RFC: ([u8; 2], [u8; 4], [u8; 4]) =
    ([0x41, 0x43], [0x52, 0x23, 0x99, 0x83], [0x84, 0x92, 0x58, 0x98]);
/// The first draft's values of the same fields.
pub(crate) const DRAFT: ([u8; 2], [u8; 4], [u8; 4]) =
    ([0x40, 0x03], [0x4c, 0x86, 0xb3, 0x84], [0xa1, 0x9c, 0xd1, 0x03]);

/// Parses hexadecimal text.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    let digits = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

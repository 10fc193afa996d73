//! Bytes captured from Linux's siw: FPDUs of revision 2 with CRC, and of revision 1 without. siw has no markers.

use super::*;
use crate::mpa::testing::hex;

/// An RDMA Write of 64 bytes, a Read Request, and the last segment of a Send (pad of 3).
const WITH_CRC: [&str; 3] = [
    "004ec140e946ef0000007f070dfba0006162636465666768696a6b6c6d6e6f707172737475767778797a616263646566\
     6768696a6b6c6d6e6f707172737475767778797a6162636465666768696a6b6ca9a352c0",
    "002e414100000000000000010000000100000000cb3d6a0000007f5fe1f2600000000040e946ef0000007f070dfba000\
     4a70a4df",
    "00ab414300000000000000000000000100000b206f707172737475767778797a6162636465666768696a6b6c6d6e6f70\
     7172737475767778797a6162636465666768696a6b6c6d6e6f707172737475767778797a6162636465666768696a6b6c\
     6d6e6f707172737475767778797a6162636465666768696a6b6c6d6e6f707172737475767778797a6162636465666768\
     696a6b6c6d6e6f707172737475767778797a6162636465666768696a6b0000000f625317",
];

/// A Read Response without CRC: the CRC field is zero.
const WITHOUT_CRC: &str = "004ec14261cfde0000007f096a0520006162636465666768696a6b6c6d6e6f707172737475767778797a616263646566\
     6768696a6b6c6d6e6f707172737475767778797a6162636465666768696a6b6c00000000";

/// Returns the ULPDU of an FPDU without markers.
fn inner(fpdu: &[u8]) -> Vec<u8> {
    let len = usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]]));
    fpdu[2..2 + len].to_vec()
}

#[test]
fn captured_siw_fpdus_are_decoded() {
    let captured: Vec<Vec<u8>> = WITH_CRC.iter().map(|text| hex(text)).collect();
    let mut stream = Stream::new(false, true);
    for fpdu in &captured {
        stream.fpdu(&inner(fpdu));
    }
    assert_eq!(stream.bytes, captured.concat(), "the test encoder writes the same bytes");
    let mut bench = Bench::new(&stream, &Config::default());
    // siw's zero-copy path sends the CRC in a separate segment.
    let b = stream.boundaries();
    bench.arrive(0..b[1]).arrive(b[1]..b[2] - 4).arrive(b[2] - 4..b[2]).arrive(b[2]..b[3]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
    assert_eq!(bench.stats().alignment_lost, 1);
}

#[test]
fn captured_siw_fpdus_without_crc_are_decoded() {
    let captured = hex(WITHOUT_CRC);
    let mut stream = Stream::new(false, false);
    stream.fpdu(&inner(&captured));
    assert_eq!(stream.bytes, captured);
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(0..captured.len());
    assert_eq!(bench.handed_up(&stream), [0]);
}

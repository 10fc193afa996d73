//! TCP segments as values that own their bytes. The simulated network carries, splits and merges them; dialogues
//! describe them.
//!
//! Segments have no IP header. The pseudo-header of the checksum has fixed addresses, so that damage on the path is
//! detected as on a real path.

use core::fmt;

use smoltcp::wire::{IpAddress, Ipv4Address, TcpOption, TcpPacket, TcpSeqNumber};

/// Length of a TCP header without options, bytes.
const HEADER: usize = 20;

/// Source and destination address in the pseudo-header of the checksum. No packet carries them.
const ADDRESSES: (IpAddress, IpAddress) = (
    IpAddress::Ipv4(Ipv4Address::new(192, 0, 2, 1)),
    IpAddress::Ipv4(Ipv4Address::new(192, 0, 2, 2)),
);

/// ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct,
    /// ECN-capable transport: ECT(0) or ECT(1), which are equivalent.
    Ect,
    /// Congestion experienced.
    Ce,
}

/// Control bits of a segment (RFC 9293 §3.1), with the values that they have in byte 13 of the header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push function.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is significant.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo.
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced.
    pub const CWR: Flags = Flags(0x80);

    const LETTERS: [(char, Flags); 8] = [
        ('S', Flags::SYN),
        ('F', Flags::FIN),
        ('R', Flags::RST),
        ('P', Flags::PSH),
        ('A', Flags::ACK),
        ('U', Flags::URG),
        ('E', Flags::ECE),
        ('C', Flags::CWR),
    ];

    /// Returns the flags whose letters are in `text` (`SFRPAUEC`, `-` for none); `None` for any other letter.
    pub fn from_letters(text: &str) -> Option<Flags> {
        if text == "-" {
            return Some(Flags::default());
        }
        text.chars().try_fold(Flags::default(), |all, c| {
            Self::LETTERS.iter().find(|(l, _)| *l == c).map(|(_, f)| Flags(all.0 | f.0))
        })
    }

    /// Returns true if all flags of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags without `other`.
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Returns the flags with `other` added.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set: String =
            Self::LETTERS.iter().filter(|(_, x)| self.has(*x)).map(|(l, _)| l).collect();
        f.write_str(if set.is_empty() { "-" } else { &set })
    }
}

/// TCP options that the simulation supports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Maximum segment size, bytes.
    pub mss: Option<u16>,
    /// Window scale: shift count (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// True for the SACK-permitted option (RFC 2018 §2).
    pub sack_permitted: bool,
    /// Timestamp value and timestamp echo reply (RFC 7323 §3).
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks (RFC 2018 §3): left edge, and right edge exclusive.
    pub sack: Vec<(u32, u32)>,
    /// Bytes appended unchanged after the other options, for unknown or malformed options. Parsing leaves this
    /// field empty.
    pub raw: Vec<u8>,
}

impl Options {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(mss) = self.mss {
            out.extend([2, 4]);
            out.extend(mss.to_be_bytes());
        }
        if self.sack_permitted {
            out.extend([4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            out.extend([8, 10]);
            out.extend(value.to_be_bytes());
            out.extend(echo.to_be_bytes());
        }
        if let Some(scale) = self.window_scale {
            out.extend([3, 3, scale]);
        }
        if !self.sack.is_empty() {
            out.extend([5, 2 + 8 * self.sack.len() as u8]);
            for (left, right) in &self.sack {
                out.extend(left.to_be_bytes());
                out.extend(right.to_be_bytes());
            }
        }
        out.extend(&self.raw);
        // Pads with NOPs instead of an end-of-list option, after which a parser ignores all options.
        out.resize(out.len().next_multiple_of(4), 1);
        out
    }

    fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        while let Ok((rest, option)) = TcpOption::parse(bytes) {
            let consumed = bytes.len() - rest.len();
            match option {
                TcpOption::EndOfList => break,
                TcpOption::MaxSegmentSize(mss) => options.mss = Some(mss),
                TcpOption::WindowScale(scale) => options.window_scale = Some(scale),
                TcpOption::SackPermitted => options.sack_permitted = true,
                TcpOption::TimeStamp { tsval, tsecr } => options.timestamps = Some((tsval, tsecr)),
                // smoltcp keeps at most three SACK blocks, but a segment without timestamps may have four.
                TcpOption::SackRange(_) => options.sack = sack_blocks(&bytes[2..consumed]),
                TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
            }
            bytes = rest;
        }
        options
    }
}

fn sack_blocks(bytes: &[u8]) -> Vec<(u32, u32)> {
    let word = |o: &[u8]| o.iter().fold(0u32, |w, &b| w << 8 | u32::from(b));
    bytes.chunks_exact(8).map(|b| (word(&b[..4]), word(&b[4..]))).collect()
}

/// A TCP segment, decoded, with a copy of its payload.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Segment {
    /// Source port of the sender.
    pub src_port: u16,
    /// Destination port at the receiver.
    pub dst_port: u16,
    /// Sequence number of the SYN, or else of the first payload byte.
    pub seq: u32,
    /// Acknowledgement number: next sequence number that the sender expects.
    pub ack: u32,
    /// Control bits, such as SYN and ACK.
    pub flags: Flags,
    /// Window field, unscaled as on the wire.
    pub window: u16,
    /// Urgent pointer: offset from `seq`.
    pub urgent: u16,
    /// TCP options, padded to a multiple of four bytes when encoded.
    pub options: Options,
    /// Payload bytes after the header.
    pub payload: Vec<u8>,
    /// ECN field of the IP header; not part of the segment's bytes.
    pub ecn: Ecn,
}

impl Segment {
    /// Returns the segment's bytes with a correct checksum.
    pub fn emit(&self) -> Vec<u8> {
        let options = self.options.bytes();
        let header = HEADER + options.len();
        let mut out = vec![0; header + self.payload.len()];
        let mut packet = TcpPacket::new_unchecked(&mut out);
        packet.set_src_port(self.src_port);
        packet.set_dst_port(self.dst_port);
        packet.set_seq_number(TcpSeqNumber(self.seq as i32));
        packet.set_ack_number(TcpSeqNumber(self.ack as i32));
        packet.clear_flags();
        packet.set_header_len(header as u8);
        packet.set_window_len(self.window);
        packet.set_urgent_at(self.urgent);
        packet.options_mut().copy_from_slice(&options);
        packet.payload_mut().copy_from_slice(&self.payload);
        out[13] = self.flags.0;
        fill_checksum(&mut out);
        out
    }

    /// Parses `bytes`; `None` if the segment is truncated or its lengths disagree.
    pub fn parse(bytes: &[u8]) -> Option<Segment> {
        let packet = TcpPacket::new_checked(bytes).ok()?;
        Some(Segment {
            src_port: packet.src_port(),
            dst_port: packet.dst_port(),
            seq: packet.seq_number().0 as u32,
            ack: packet.ack_number().0 as u32,
            flags: Flags(bytes[13]),
            window: packet.window_len(),
            urgent: packet.urgent_at(),
            options: Options::parse(packet.options()),
            payload: packet.payload().to_vec(),
            ecn: Ecn::NotEct,
        })
    }

    /// Returns the number of sequence numbers that the segment occupies (RFC 9293 §3.4).
    pub fn sequence_len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.flags.has(Flags::SYN))
            + u32::from(self.flags.has(Flags::FIN))
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} seq={} ack={} win={}", self.flags, self.seq, self.ack, self.window)?;
        write!(f, " len={}", self.payload.len())?;
        if self.options != Options::default() {
            write!(f, " {:?}", self.options)?;
        }
        if self.ecn != Ecn::NotEct {
            write!(f, " {:?}", self.ecn)?;
        }
        Ok(())
    }
}

/// Writes a correct checksum into the segment `bytes`.
pub fn fill_checksum(bytes: &mut [u8]) {
    TcpPacket::new_unchecked(bytes).fill_checksum(&ADDRESSES.0, &ADDRESSES.1);
}

/// Returns true if `bytes` is a complete TCP segment with consistent lengths.
pub fn is_well_formed(bytes: &[u8]) -> bool {
    TcpPacket::new_checked(bytes).is_ok()
}

/// Returns true if the segment in `bytes` has a correct checksum.
pub fn verify_checksum(bytes: &[u8]) -> bool {
    TcpPacket::new_checked(bytes)
        .is_ok_and(|packet| packet.verify_checksum(&ADDRESSES.0, &ADDRESSES.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_round_trips() {
        let segment = Segment {
            src_port: 1,
            dst_port: 2,
            seq: u32::MAX,
            ack: 7,
            flags: Flags::from_letters("SPA").expect("letters"),
            window: 1000,
            urgent: 0,
            options: Options {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some((1, 2)),
                ..Options::default()
            },
            payload: b"hello".to_vec(),
            ecn: Ecn::NotEct,
        };
        let mut bytes = segment.emit();
        assert!(verify_checksum(&bytes));
        assert_eq!(Segment::parse(&bytes), Some(segment));
        bytes[22] ^= 0x10;
        assert!(!verify_checksum(&bytes));
    }

    #[test]
    fn four_sack_blocks_round_trip() {
        let options =
            Options { sack: (0..4).map(|i| (i * 10, i * 10 + 5)).collect(), ..Options::default() };
        let segment = Segment { flags: Flags::ACK, options, ..Segment::default() };
        assert_eq!(Segment::parse(&segment.emit()), Some(segment));
    }
}

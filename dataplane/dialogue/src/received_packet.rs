//! Parser for the SCTP packets of the stack in a dialogue, written from the text of RFC 9260 §3.

/// Length of the common header, bytes.
pub(crate) const COMMON_HEADER_LEN: usize = 12;

/// A chunk of the stack under test, not parsed further.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) value: Vec<u8>,
}

/// A packet of the stack under test, split into chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedPacket {
    /// Source and destination port.
    pub ports: (u16, u16),
    pub(crate) tag: u32,
    pub(crate) chunks: Vec<Chunk>,
}

impl ReceivedPacket {
    /// Parses a packet and checks its CRC32c.
    ///
    /// # Errors
    /// The first malformed field. Any error is a bug of the stack under test.
    pub fn parse(bytes: &[u8]) -> Result<ReceivedPacket, String> {
        if bytes.len() < COMMON_HEADER_LEN {
            return Err(format!("{} bytes are not an SCTP packet", bytes.len()));
        }
        let mut zeroed = bytes.to_vec();
        zeroed[8..12].fill(0);
        // RFC 9260 appendix A: the CRC is transmitted with the least significant byte first.
        if oracle::crc32c(&zeroed).to_le_bytes() != bytes[8..12] {
            return Err("the checksum is wrong".into());
        }
        let mut chunks = Vec::new();
        let mut rest = &bytes[COMMON_HEADER_LEN..];
        while !rest.is_empty() {
            if rest.len() < 4 {
                return Err("a chunk without a header".into());
            }
            let length = usize::from(be16(&rest[2..]));
            let padded = length.next_multiple_of(4);
            if length < 4 || padded > rest.len() {
                return Err(format!("a chunk of {length} bytes in {}", rest.len()));
            }
            if rest[length..padded].iter().any(|&o| o != 0) {
                return Err("padding that is not zero".into());
            }
            chunks.push(Chunk { kind: rest[0], flags: rest[1], value: rest[4..length].to_vec() });
            rest = &rest[padded..];
        }
        if chunks.is_empty() {
            return Err("a packet without chunks".into());
        }
        let ports = (be16(bytes), be16(&bytes[2..]));
        Ok(ReceivedPacket { ports, tag: be32(&bytes[4..]), chunks })
    }

    /// Returns TSN and user data of each DATA chunk.
    pub fn data(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let data = self.chunks.iter().filter(|chunk| chunk.kind == 0);
        data.filter_map(|chunk| Some((be32(chunk.value.get(..4)?), chunk.value.get(12..)?)))
    }

    /// Returns the Cumulative TSN Ack of each SACK.
    pub fn sacks(&self) -> impl Iterator<Item = u32> {
        let sacks = self.chunks.iter().filter(|chunk| chunk.kind == 3);
        sacks.filter_map(|chunk| chunk.value.get(..4).map(be32))
    }

    /// Returns true if all chunks are DATA or SACK.
    pub fn is_data_and_sacks(&self) -> bool {
        self.chunks.iter().all(|chunk| matches!(chunk.kind, 0 | 3))
    }
}

pub(crate) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

//! The two messages of the attach socket. Numbers are little-endian. Each field of the reply follows its offset in
//! bytes.
//!
//! ```text
//!  request:  name '\n'
//!  reply:    0 "DDPM" | 4 status u32 | 8 region bytes u64 | 16 base TO u64 | 24 STag u32 | 28 access u32
//!            32 slots of the ring u64 | 40 zero u64 | 48 (refusals only) a sentence, to end-of-file
//! ```

/// Maximum length of a request, bytes, including the line end.
pub const MAX_REQUEST: usize = ddp::advert::MAX_NAME + 1;
/// Length of a reply without a sentence, bytes.
pub const REPLY_LEN: usize = 48;

const MAGIC: [u8; 4] = *b"DDPM";
const ACCESS_WRITE: u32 = 1;
const ACCESS_READ: u32 = 2;

/// Result of an attach request: the status field of the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Status {
    /// Attached; the reply carries three descriptors.
    Attached = 0,
    /// No object has that name.
    NoSuchObject = 1,
    /// The request has no line end within [`MAX_REQUEST`] bytes.
    BadRequest = 2,
}

/// Description of the region, sent to the attached program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachReply {
    /// Region size, bytes.
    pub region_len: u64,
    /// Tagged offset of the first byte.
    pub base_to: u64,
    /// The region's STag.
    pub stag: u32,
    /// True if peers may write.
    pub remote_write: bool,
    /// True if peers may read.
    pub remote_read: bool,
}

impl AttachReply {
    /// Encodes the reply for an object whose ring has `capacity` slots.
    pub fn encode(&self, capacity: u64) -> [u8; REPLY_LEN] {
        let mut reply = refusal(Status::Attached);
        let access = if self.remote_write { ACCESS_WRITE } else { 0 }
            | if self.remote_read { ACCESS_READ } else { 0 };
        reply[8..16].copy_from_slice(&self.region_len.to_le_bytes());
        reply[16..24].copy_from_slice(&self.base_to.to_le_bytes());
        reply[24..28].copy_from_slice(&self.stag.to_le_bytes());
        reply[28..32].copy_from_slice(&access.to_le_bytes());
        reply[32..40].copy_from_slice(&capacity.to_le_bytes());
        reply
    }
}

/// Encodes a reply that contains only `status`.
pub(super) fn refusal(status: Status) -> [u8; REPLY_LEN] {
    let mut reply = [0; REPLY_LEN];
    reply[..4].copy_from_slice(&MAGIC);
    reply[4..8].copy_from_slice(&(status as u32).to_le_bytes());
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attach_reply_layout_is_fixed() {
        let attached = AttachReply {
            region_len: 0x0102_0304_0506_0708,
            base_to: 0x1112_1314_1516_1718,
            stag: 0x2122_2324,
            remote_write: true,
            remote_read: true,
        };
        let expected = [
            &b"DDPM"[..],
            &[0, 0, 0, 0],
            &[8, 7, 6, 5, 4, 3, 2, 1],
            &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
            &[0x24, 0x23, 0x22, 0x21, 3, 0, 0, 0],
            &[0, 4, 0, 0, 0, 0, 0, 0],
            &[0; 8],
        ]
        .concat();
        assert_eq!(attached.encode(1024).as_slice(), expected);
        let none = AttachReply { remote_write: false, remote_read: true, ..attached };
        assert_eq!(none.encode(1)[28..32], [2, 0, 0, 0]);
        assert_eq!(refusal(Status::BadRequest)[4..8], [2, 0, 0, 0]);
    }
}

//! Memory and queues of the reference peer.

/// Maximum length of a Send, bytes.
pub(super) const BUFFER: usize = 4096;

/// A memory region that the peer advertises.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) stag: u32,
    /// Bits of [`access`](super::numbers::access): 1 is remote Write, 2 is remote Read, 4 is atomic operations.
    pub(super) access: u8,
    /// TO of the first byte.
    pub(super) base: u64,
    /// Length, bytes.
    pub(super) length: usize,
    pub(super) name: &'static str,
}

/// Regions of the peer. The first is also rping's buffer.
pub(super) const REGIONS: [Region; 4] = [
    Region { stag: 0x1001_0200, access: 7, base: 0x7f00_0000_1000, length: 16384, name: "box" },
    Region { stag: 0x2002_0300, access: 2, base: 0x1000, length: 4096, name: "source" },
    Region { stag: 0x3003_0400, access: 1, base: 0x2000, length: 4096, name: "inbox" },
    Region { stag: 0x4004_0500, access: 3, base: 0x3000, length: 4096, name: "own" },
];

/// Contents of the regions, in the order of [`REGIONS`].
pub(super) type Bytes = Vec<Vec<u8>>;

/// Returns the initial contents of the regions.
pub(super) fn initial_memory() -> Bytes {
    REGIONS.iter().map(|r| crate::value::pattern(r.base, r.length)).collect()
}

/// An untagged message whose segments may arrive in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Partial {
    pub(super) data: Vec<u8>,
    /// Number of payload bytes received so far.
    pub(super) bytes: usize,
}

impl Partial {
    /// Copies the payload of a segment to its MO, `from`.
    pub(super) fn place(&mut self, from: usize, payload: &[u8]) {
        let end = from + payload.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[from..end].copy_from_slice(payload);
        self.bytes += payload.len();
    }
}

/// State of the DDP queues of a connection, of its operations in progress, and of its STags.
#[derive(Debug)]
pub(super) struct Queues {
    /// Next MSN of each queue.
    pub(super) msn: [u32; 4],
    /// Incomplete message of each queue.
    pub(super) partial: [Partial; 4],
    /// True after a tagged segment that is not the last segment of its message.
    pub(super) within_write: bool,
    /// Outstanding Read Request of the peer: sink STag, next TO in the sink, and remaining bytes.
    pub(super) reading: Option<(u32, u64, u32)>,
    /// Number of Sends that the rping or perftest service has received.
    pub(super) rounds: u32,
    /// STags that the tester has invalidated.
    pub(super) invalidated: Vec<u32>,
}

impl Default for Queues {
    fn default() -> Queues {
        Queues {
            msn: [1; 4],
            partial: Default::default(),
            within_write: false,
            reading: None,
            rounds: 0,
            invalidated: vec![],
        }
    }
}

//! Pending error causes for the next ERROR chunk, of bounded total length.

use wire::sctp::{CHUNK_HEADER_LEN, COMMON_HEADER_LEN, Cause};

use super::config::MIN_PACKET;
use super::single_chunk::MAX_ECHO;

/// Maximum total length of pending causes, bytes; further causes are dropped. Within this bound, the ERROR chunk fits
/// the smallest packet together with a COOKIE ACK.
const MAX_CAUSES: usize = 512;
const _: () = assert!(COMMON_HEADER_LEN + 2 * CHUNK_HEADER_LEN + MAX_CAUSES <= MIN_PACKET);

/// Error causes in wire format, in order of occurrence.
#[derive(Clone, Debug, Default)]
pub(super) struct Causes(Vec<u8>);

impl Causes {
    /// Adds a cause, with at most [`MAX_ECHO`] of the peer's bytes. Returns false if there is no room.
    #[must_use]
    pub(super) fn push(&mut self, cause: &Cause<'_>) -> bool {
        let cause = cause.truncate_info(MAX_ECHO);
        let (at, len) = (self.0.len(), cause.padded_len());
        if at + len > MAX_CAUSES {
            return false;
        }
        self.0.resize(at + len, 0);
        cause.emit(&mut self.0[at..]);
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of the ERROR chunk: the causes in wire format.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_error_causes_are_bounded() {
        let mut causes = Causes::default();
        // One cause of any length fits, because it is truncated.
        assert!(causes.push(&Cause::UnrecognizedChunk(&[0xfe; 5000])));
        let taken = (0..100).filter(|_| causes.push(&Cause::InvalidStream(7))).count();
        assert!((1..100).contains(&taken));
        assert!(!causes.is_empty() && causes.bytes().len() <= MAX_CAUSES);
        causes.clear();
        assert!(causes.is_empty());
    }
}

//! Error causes that wait for an ERROR chunk, within a bound.

use wire::sctp::{CHUNK_HEADER_LEN, COMMON_HEADER_LEN, Cause};

use super::config::MIN_PACKET;
use super::lone::MAX_ECHO;

/// Bytes of causes that wait, at most; what does not fit is not reported. They fit the smallest packet behind a
/// COOKIE ACK.
const MAX_CAUSES: usize = 512;
const _: () = assert!(COMMON_HEADER_LEN + 2 * CHUNK_HEADER_LEN + MAX_CAUSES <= MIN_PACKET);

/// Causes, one after the other as they go out.
#[derive(Clone, Debug, Default)]
pub(super) struct Causes(Vec<u8>);

impl Causes {
    /// Adds a cause, what it repeats of the peer's bytes cut; false when there is no room for it.
    #[must_use]
    pub(super) fn push(&mut self, cause: &Cause<'_>) -> bool {
        let cause = cause.cut(MAX_ECHO);
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

    /// The value of an ERROR chunk.
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
    fn what_waits_is_bounded() {
        let mut causes = Causes::default();
        // However long: it is cut.
        assert!(causes.push(&Cause::UnrecognizedChunk(&[0xfe; 5000])));
        let taken = (0..100).filter(|_| causes.push(&Cause::InvalidStream(7))).count();
        assert!((1..100).contains(&taken));
        assert!(!causes.is_empty() && causes.bytes().len() <= MAX_CAUSES);
        causes.clear();
        assert!(causes.is_empty());
    }
}

//! Error causes that wait for an ERROR chunk, within a bound.

use wire::sctp::Cause;

/// Octets of causes that wait, at most; what does not fit is not reported.
const MAX_CAUSES: usize = 512;

/// Causes, one after the other as they go out.
#[derive(Clone, Debug, Default)]
pub(super) struct Causes(Vec<u8>);

impl Causes {
    /// Adds a cause, if there is room for it.
    pub(super) fn push(&mut self, cause: &Cause<'_>) {
        let (at, len) = (self.0.len(), cause.padded_len());
        if at + len <= MAX_CAUSES {
            self.0.resize(at + len, 0);
            cause.emit(&mut self.0[at..]);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of an ERROR chunk.
    pub(super) fn octets(&self) -> &[u8] {
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
        for _ in 0..100 {
            causes.push(&Cause::UnrecognizedChunk(&[0xfe; 200]));
            causes.push(&Cause::InvalidStream(7));
        }
        assert!(!causes.is_empty() && causes.octets().len() <= MAX_CAUSES);
        causes.clear();
        assert!(causes.is_empty());
    }
}

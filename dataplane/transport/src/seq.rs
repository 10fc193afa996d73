//! Sequence numbers: 32 bits on the wire, 64 bits in a connection's state.
//!
//! A connection keeps every sequence number extended to 64 bits, so that no number wraps and stream offsets result from
//! subtraction. A number from the wire is extended to the 64-bit number nearest to RCV.NXT or SND.UNA.

use core::fmt;

/// A sequence number as on the wire; arithmetic is modulo 2^32 (RFC 9293 §3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// Returns `self + n` modulo 2^32.
    #[must_use]
    pub const fn add(self, n: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_add(n))
    }

    /// Returns true if `self` comes before `other` by less than half of the sequence space.
    pub const fn before(self, other: SeqNumber) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns true if `self` comes after `other` by less than half of the sequence space.
    pub const fn after(self, other: SeqNumber) -> bool {
        other.before(self)
    }
}

impl fmt::Debug for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A 64-bit sequence number whose upper half counts the wraps of the 32-bit space. Extended numbers do not wrap, so
/// they compare with `<`. The count of wraps starts at 1, so that numbers below the initial sequence number can be
/// represented.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ExtSeq(u64);

impl ExtSeq {
    /// Zero, below all numbers that a connection uses.
    pub const NONE: ExtSeq = ExtSeq(0);

    /// Returns the extended form of an initial sequence number.
    pub const fn initial(isn: SeqNumber) -> ExtSeq {
        ExtSeq((1 << 32) + isn.0 as u64)
    }

    /// Returns the extended number nearest to `self` whose wire form is `seq`.
    pub const fn nearest(self, seq: SeqNumber) -> ExtSeq {
        let distance = seq.0.wrapping_sub(self.0 as u32) as i32;
        ExtSeq(self.0.wrapping_add_signed(distance as i64))
    }

    /// Returns the number as on the wire.
    pub const fn wire(self) -> SeqNumber {
        SeqNumber(self.0 as u32)
    }

    /// Returns `self + n`.
    pub const fn plus(self, n: u64) -> ExtSeq {
        ExtSeq(self.0 + n)
    }

    /// Returns `self - n`, at least [`NONE`](Self::NONE).
    pub const fn minus(self, n: u64) -> ExtSeq {
        ExtSeq(self.0.saturating_sub(n))
    }

    /// Returns the distance from `earlier` to `self`; zero if `earlier` is above `self`.
    pub const fn since(self, earlier: ExtSeq) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for ExtSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}:{}", self.0 >> 32, self.0 as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // RFC 9293 §3.4: comparisons are modulo 2^32.
    #[test]
    fn sequence_order_wraps_modulo_2_32() {
        let last = SeqNumber(u32::MAX);
        let first = SeqNumber(0);
        assert!(last.before(first) && first.after(last));
        assert!(!first.before(first) && !first.after(first));
        assert_eq!(last.add(1), first);
    }

    proptest! {
        #[test]
        fn extension_keeps_the_wire_number_and_is_nearest(isn: u32, run in 0u64..1 << 40, seq: u32) {
            let at = ExtSeq::initial(SeqNumber(isn)).plus(run);
            let ext = at.nearest(SeqNumber(seq));
            prop_assert_eq!(ext.wire(), SeqNumber(seq));
            prop_assert!(ext.since(at) <= 1 << 31 && at.since(ext) <= 1 << 31);
            prop_assert_eq!(SeqNumber(seq).before(at.wire()), ext < at && at.since(ext) <= 1 << 31);
        }
    }
}

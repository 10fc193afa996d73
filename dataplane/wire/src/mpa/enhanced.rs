//! The 32 bits at the start of a start-up frame's private data when S is set (RFC 6581 §9):
//!
//! ```text
//!   0 1 2             15  0 1 2             15
//!  |A|B|      IRD       |C|D|      ORD       |
//! ```
//!
//! A selects the peer-to-peer model. B, C and D offer or select the ready-to-receive message: a zero-length Send (B),
//! RDMA Write (C) or RDMA Read (D). B, C and D are used only if A is set.

use crate::be;

/// Bytes of the enhanced data.
pub const ENHANCED_LEN: usize = 4;
/// Value of IRD or ORD if the ULP negotiates the limit itself (RFC 6581 §9.1).
pub const NO_LIMIT: u16 = 0x3fff;
/// Largest value of IRD or ORD that is a number of Read Requests.
pub const MAX_DEPTH: u16 = NO_LIMIT - 1;

mod field {
    pub(super) const IRD: usize = 0;
    pub(super) const ORD: usize = 2;
    /// A in the first half, C in the second.
    pub(super) const HIGH: u16 = 0x8000;
    /// B in the first half, D in the second.
    pub(super) const LOW: u16 = 0x4000;
    pub(super) const DEPTH: u16 = 0x3fff;

    const _: () = assert!(HIGH ^ LOW ^ DEPTH == 0xffff);
    const _: () = assert!(ORD + 2 == super::ENHANCED_LEN);
}

/// A set of ready-to-receive messages, each without payload (RFC 6581 §9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RtrSet {
    /// B: a Send.
    pub send: bool,
    /// C: an RDMA Write.
    pub write: bool,
    /// D: an RDMA Read.
    pub read: bool,
}

impl RtrSet {
    /// All three messages.
    pub const ALL: RtrSet = RtrSet { send: true, write: true, read: true };

    /// Returns the set of messages that both sets contain.
    pub const fn intersection(self, other: RtrSet) -> RtrSet {
        RtrSet {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Returns true for the empty set.
    pub const fn is_empty(self) -> bool {
        !(self.send || self.write || self.read)
    }
}

/// Values of the enhanced data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnhancedRepr {
    /// IRD: maximum outstanding Read Requests that the sender of this data accepts, 0 to [`MAX_DEPTH`], or
    /// [`NO_LIMIT`].
    pub ird: u16,
    /// ORD: maximum outstanding Read Requests that the sender of this data issues, 0 to [`MAX_DEPTH`], or [`NO_LIMIT`].
    pub ord: u16,
    /// B, C and D, if A selects the peer-to-peer model; `None` for the client-server model.
    pub rtr: Option<RtrSet>,
}

impl EnhancedRepr {
    /// Parses the four bytes. B, C and D are ignored unless A is set.
    pub fn parse(bytes: &[u8; ENHANCED_LEN]) -> EnhancedRepr {
        let (first, second) = (be::u16(bytes, field::IRD), be::u16(bytes, field::ORD));
        let set = RtrSet {
            send: first & field::LOW != 0,
            write: second & field::HIGH != 0,
            read: second & field::LOW != 0,
        };
        EnhancedRepr {
            ird: first & field::DEPTH,
            ord: second & field::DEPTH,
            // RFC 6581 §9.2: B, C and D are ignored when A is 0.
            rtr: (first & field::HIGH != 0).then_some(set),
        }
    }

    /// Returns the four bytes. An IRD or ORD above [`NO_LIMIT`] is written as [`NO_LIMIT`].
    pub fn emit(&self) -> [u8; ENHANCED_LEN] {
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        // RFC 6581 §9.2: B, C and D are 0 when A is 0.
        let set = self.rtr.unwrap_or_default();
        let first = self.ird.min(NO_LIMIT)
            | flag(self.rtr.is_some(), field::HIGH)
            | flag(set.send, field::LOW);
        let second =
            self.ord.min(NO_LIMIT) | flag(set.write, field::HIGH) | flag(set.read, field::LOW);
        let mut bytes = [0; ENHANCED_LEN];
        be::put(&mut bytes, field::IRD, &first.to_be_bytes());
        be::put(&mut bytes, field::ORD, &second.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// RFC 6581 §9: every field round-trips.
        #[test]
        fn enhanced_data_round_trips(
            ird in 0u16..=NO_LIMIT,
            ord in 0u16..=NO_LIMIT,
            flags in prop::option::of(any::<(bool, bool, bool)>()),
        ) {
            let rtr = flags.map(|(send, write, read)| RtrSet { send, write, read });
            let repr = EnhancedRepr { ird, ord, rtr };
            prop_assert_eq!(EnhancedRepr::parse(&repr.emit()), repr);
        }

        /// RFC 6581 §9.2: without A the other flags are ignored, and not sent.
        #[test]
        fn enhanced_flags_without_a_are_ignored(bytes: [u8; 4]) {
            let mut bytes = bytes;
            bytes[0] &= 0x7f;
            let repr = EnhancedRepr::parse(&bytes);
            prop_assert_eq!(repr.rtr, None);
            let sent = repr.emit();
            prop_assert_eq!([sent[0] & 0xc0, sent[2] & 0xc0], [0, 0]);
        }
    }

    /// Enhanced data of Linux siw: a request for peer-to-peer mode that offers Write and Read, and the reply, which
    /// selects Write.
    #[test]
    fn enhanced_data_of_siw_parses() {
        let (write, read) = (true, true);
        let request =
            EnhancedRepr { ird: 4, ord: 4, rtr: Some(RtrSet { send: false, write, read }) };
        assert_eq!(request.emit(), [0x80, 0x04, 0xc0, 0x04]);
        let reply = EnhancedRepr::parse(&[0x80, 0x04, 0x80, 0x04]);
        assert_eq!(reply.rtr, Some(RtrSet { write, ..RtrSet::default() }));
        let most = EnhancedRepr { ird: 0xffff, ord: NO_LIMIT, rtr: Some(RtrSet::ALL) };
        assert_eq!(most.emit(), [0xff; 4]);
    }

    #[test]
    fn rtr_set_without_types_is_empty() {
        let one = |n| RtrSet { send: n == 0, write: n == 1, read: n == 2 };
        assert_eq!([0, 1, 2, 3].map(|n| one(n).is_empty()), [false, false, false, true]);
    }
}

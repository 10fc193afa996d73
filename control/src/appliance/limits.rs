//! Limits on streams: per listener, and per peer of a listener.
//!
//! A stream is counted from the time the control thread receives its request until its worker reports its end. A stream
//! beyond a limit is refused; `ddpctl events` shows the reason.

use std::collections::HashMap;
use std::net::IpAddr;

use ddp::PeerId;

/// Limits of one listener, each at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum number of streams of the listener.
    pub streams: u32,
    /// Maximum number of streams of one peer at the listener. A peer is an IPv4 address or an IPv6 /64 prefix.
    pub streams_per_peer: u32,
}

/// Reason to refuse a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The listener has its maximum number of streams.
    #[error("the listener has reached its limit of {0} streams")]
    Listener(u32),
    /// The peer has its maximum number of streams.
    #[error("the peer has reached its limit of {0} streams")]
    Peer(u32),
}

/// Numbers of a listener's streams, in total and per peer.
#[derive(Debug, Default)]
pub struct Ledger {
    streams: u32,
    peers: HashMap<PeerId, u32>,
}

impl Ledger {
    /// Counts a stream of `peer`, unless it exceeds a limit.
    pub fn admit(&mut self, peer: IpAddr, limits: &Limits) -> Result<(), Refusal> {
        if self.streams >= limits.streams {
            return Err(Refusal::Listener(limits.streams));
        }
        if self.peer_streams(peer) >= limits.streams_per_peer {
            return Err(Refusal::Peer(limits.streams_per_peer));
        }
        self.streams += 1;
        *self.peers.entry(PeerId::from_address(peer)).or_default() += 1;
        Ok(())
    }

    /// Stops counting a stream of `peer`.
    pub fn release(&mut self, peer: IpAddr) {
        let peer = PeerId::from_address(peer);
        let Some(count) = self.peers.get_mut(&peer) else {
            debug_assert!(false, "released a stream that was not admitted");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.peers.remove(&peer);
        }
        self.streams -= 1;
    }

    /// Returns the number of the listener's streams.
    pub fn streams(&self) -> u32 {
        self.streams
    }

    /// Returns the number of streams of one peer: an IPv4 address or an IPv6 /64 prefix.
    pub fn peer_streams(&self, peer: IpAddr) -> u32 {
        self.peers.get(&PeerId::from_address(peer)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { streams: 3, streams_per_peer: 2 };

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    #[test]
    fn streams_per_peer_and_listener_are_bounded() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.admit(peer(1), &LIMITS), Ok(()));
        assert_eq!(ledger.admit(peer(1), &LIMITS), Ok(()));
        assert_eq!(ledger.admit(peer(1), &LIMITS), Err(Refusal::Peer(2)));
        assert_eq!(ledger.admit(peer(2), &LIMITS), Ok(()));
        assert_eq!(ledger.admit(peer(3), &LIMITS), Err(Refusal::Listener(3)));
        assert_eq!((ledger.streams(), ledger.peer_streams(peer(3))), (3, 0));
    }

    #[test]
    fn closed_stream_frees_its_admission() {
        let mut ledger = Ledger::default();
        for _ in 0..10 {
            assert_eq!(ledger.admit(peer(1), &LIMITS), Ok(()));
            ledger.release(peer(1));
        }
        assert_eq!((ledger.streams(), ledger.peer_streams(peer(1))), (0, 0));
    }

    #[test]
    fn a_mapped_address_is_the_same_peer() {
        let mut ledger = Ledger::default();
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(ledger.admit(mapped, &LIMITS), Ok(()));
        assert_eq!(ledger.peer_streams(peer(1)), 1);
    }

    // A host may use all addresses of its /64 prefix.
    #[test]
    fn ipv6_addresses_of_one_prefix_are_one_peer() {
        let mut ledger = Ledger::default();
        let of = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(ledger.admit(of("2001:db8::1"), &LIMITS), Ok(()));
        assert_eq!(ledger.admit(of("2001:db8::2"), &LIMITS), Ok(()));
        assert_eq!(ledger.admit(of("2001:db8::3"), &LIMITS), Err(Refusal::Peer(2)));
        assert_eq!(ledger.admit(of("2001:db8:0:1::3"), &LIMITS), Ok(()));
        ledger.release(of("2001:db8::2"));
        ledger.release(of("2001:db8::1"));
        ledger.release(of("2001:db8:0:1::3"));
        assert_eq!((ledger.streams(), ledger.peers.len()), (0, 0));
    }

    #[test]
    fn lowered_limits_refuse_new_streams_and_leave_the_others() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.admit(peer(1), &LIMITS), Ok(()));
        assert_eq!(ledger.admit(peer(2), &LIMITS), Ok(()));
        let lowered = Limits { streams: 1, streams_per_peer: 1 };
        assert_eq!(ledger.admit(peer(3), &lowered), Err(Refusal::Listener(1)));
        ledger.release(peer(1));
        assert_eq!(ledger.admit(peer(3), &lowered), Err(Refusal::Listener(1)));
        ledger.release(peer(2));
        assert_eq!(ledger.admit(peer(3), &lowered), Ok(()));
    }
}

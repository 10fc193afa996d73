//! Attacks on ESP by an attacker on the path who sees every frame, and has no key. Meanwhile streams over TCP and SCTP
//! of both families continue, byte for byte; each frame is counted with its outcome ([`Net::turn`]). Each opened frame
//! is one that the peer sealed, opened once.
//!
//! | attack | frames sent |
//! |---|---|
//! | [`Attack::Replay`], [`Attack::Pieces`] | earlier frames, whole or in fragments |
//! | [`Attack::Cut`], [`Attack::Flip`], [`Attack::Overwrite`], [`Attack::Splice`] | changed frames |
//! | [`Attack::Jump`] | a later sequence number, which would move the anti-replay window |
//! | [`Attack::Garbage`], [`Attack::UnknownSpi`] | random ESP of a known SA, and of none |
//! | [`Attack::OtherSpi`], [`Attack::Reflect`] | valid ESP of another SA, or of the other direction |
//! | [`Attack::Rewrap`] | ESP in UDP for an SA without, and the reverse |
//! | [`Attack::Clear`] | frames of the same streams in clear: segments, resets, chunks |
//! | [`Attack::Marker`] | NAT keepalives, IKE |

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ddp::{Access, RegionMemory as _, Stag, StreamId};
use ipsec::crypto::Algorithm;
use link::Rng;

use super::ipsec::*;
use super::sctp::{PORT as SCTP_PORT, config as sctp};
use super::wire_pair::*;
use crate::api::{Command, Event};

const ETHERNET: usize = 14;
const ESP: u8 = 50;
const UDP: u8 = 17;
/// Frames of the attack to each host in a turn.
const RATE: usize = 12;
/// Frames of each direction that the attacker stores.
const MEMORY: usize = 600;
const TURN: Duration = Duration::from_micros(50);
const LEN: usize = 60_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attack {
    Replay,
    Cut,
    Flip,
    Overwrite,
    Splice,
    Jump,
    Garbage,
    UnknownSpi,
    OtherSpi,
    Reflect,
    Rewrap,
    Pieces,
    Clear,
    Marker,
}

impl Attack {
    const ALL: [Attack; 14] = [
        Attack::Replay,
        Attack::Cut,
        Attack::Flip,
        Attack::Overwrite,
        Attack::Splice,
        Attack::Jump,
        Attack::Garbage,
        Attack::UnknownSpi,
        Attack::OtherSpi,
        Attack::Reflect,
        Attack::Rewrap,
        Attack::Pieces,
        Attack::Clear,
        Attack::Marker,
    ];
}

/// Recorded frames, by sending host.
type Seen = Rc<RefCell<[Vec<Vec<u8>>; 2]>>;

struct Attacker {
    rng: Rng,
    /// Sealed frames.
    seen: Seen,
    /// Frames of the same streams on a network without IPsec.
    clear: [Vec<Vec<u8>>; 2],
    sent: [u64; Attack::ALL.len()],
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12] == 0x86
}

/// Returns the offset of the IP payload.
fn body(frame: &[u8]) -> usize {
    ETHERNET + if is_v6(frame) { 40 } else { 20 }
}

/// Returns the offset of the protocol field.
fn protocol_at(frame: &[u8]) -> usize {
    ETHERNET + if is_v6(frame) { 6 } else { 9 }
}

/// Returns the offset of ESP.
fn esp(frame: &[u8]) -> usize {
    body(frame) + if frame[protocol_at(frame)] == UDP { 8 } else { 0 }
}

/// Sets the IP header's length to that of the frame.
fn relength(frame: &mut [u8]) {
    if is_v6(frame) {
        let len = (frame.len() - body(frame)) as u16;
        frame[18..20].copy_from_slice(&len.to_be_bytes());
    } else {
        let len = (frame.len() - ETHERNET) as u16;
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        ipsec::ip::write_checksum(&mut frame[ETHERNET..ETHERNET + 20]);
    }
}

fn is_sealed(frame: &[u8]) -> bool {
    let at = protocol_at(frame);
    let udp =
        frame[at] == UDP && frame.len() > body(frame) + 12 && frame[esp(frame)..][..4] != [0; 4];
    [[8, 0], [0x86, 0xdd]].contains(&[frame[12], frame[13]]) && (frame[at] == ESP || udp)
}

impl Attacker {
    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.rng.next_u64() as u8).collect()
    }

    /// Returns a recorded sealed frame of this host.
    fn of(&mut self, host: usize) -> Option<Vec<u8>> {
        let known = self.seen.borrow()[host].len();
        let at = if known == 0 { return None } else { self.below(known) };
        Some(self.seen.borrow()[host][at].clone())
    }

    /// Returns the frames of an attack on this host.
    fn forge(&mut self, attack: Attack, to: usize) -> Option<Vec<Vec<u8>>> {
        let mut frame = self.of(1 - to)?;
        let esp = esp(&frame);
        match attack {
            Attack::Replay => {}
            Attack::Cut => {
                let len = ETHERNET + 1 + self.below(frame.len() - ETHERNET - 1);
                frame.truncate(len);
                if len > body(&frame) && self.below(2) == 0 {
                    relength(&mut frame);
                }
            }
            Attack::Flip => self.flip(&mut frame),
            Attack::Overwrite => {
                let at = esp + self.below(frame.len() - esp);
                let n = 1 + self.below(frame.len() - at);
                let noise = self.bytes(n);
                frame[at..at + n].copy_from_slice(&noise);
            }
            Attack::Splice => {
                let other = self.of(1 - to)?;
                let at = ETHERNET + self.below(frame.len().min(other.len()) - ETHERNET);
                frame.truncate(at);
                frame.extend(&other[at..]);
                if self.below(2) == 0 && frame.len() > body(&frame) {
                    relength(&mut frame);
                }
            }
            Attack::Jump => {
                let ahead = 1 << self.below(32);
                let low = u32::from_be_bytes(*frame[esp + 4..].first_chunk()?);
                let later = low.wrapping_add(ahead).to_be_bytes();
                frame[esp + 4..esp + 8].copy_from_slice(&later);
            }
            Attack::Garbage => {
                let len = self.below(1400);
                frame.truncate(esp + 4);
                frame.extend(self.bytes(len));
                relength(&mut frame);
            }
            Attack::UnknownSpi => {
                let unknown = self.bytes(4);
                frame[esp..esp + 4].copy_from_slice(&unknown);
            }
            Attack::OtherSpi => {
                let other = self.of(self.below_two())?;
                let at = self::esp(&other);
                frame[esp..esp + 4].copy_from_slice(&other[at..at + 4]);
            }
            Attack::Reflect => {
                frame = self.of(to)?;
                let mac = frame[..12].to_vec();
                frame[..6].copy_from_slice(&mac[6..]);
                frame[6..12].copy_from_slice(&mac[..6]);
                if self.below(4) > 0 {
                    swap_addresses(&mut frame);
                }
            }
            Attack::Rewrap => rewrap(&mut frame),
            Attack::Pieces => return self.pieces(&frame),
            Attack::Clear => {
                let at = self.below(self.clear[1 - to].len());
                frame = self.clear[1 - to][at].clone();
            }
            Attack::Marker => {
                frame.truncate(body(&frame));
                let at = protocol_at(&frame);
                frame[at] = UDP;
                let data = match self.below(3) {
                    0 => vec![0xff],
                    1 => [vec![0; 4], self.bytes(60)].concat(),
                    _ => self.bytes(3),
                };
                frame.extend([0x11, 0x94, 0x11, 0x94, 0, 8 + data.len() as u8, 0, 0]);
                frame.extend(data);
                relength(&mut frame);
            }
        }
        Some(vec![frame])
    }

    fn below_two(&self) -> usize {
        self.sent.iter().sum::<u64>() as usize % 2
    }

    fn flip(&mut self, frame: &mut [u8]) {
        for _ in 0..1 + self.below(3) {
            let bit = 8 * ETHERNET + self.below(8 * (frame.len() - ETHERNET));
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        if !is_v6(frame) && self.below(2) == 0 {
            // A router before the victim would drop a wrong header checksum.
            ipsec::ip::write_checksum(&mut frame[ETHERNET..ETHERNET + 20]);
        }
    }

    /// Cuts an IPv4 frame into fragments, of which one may be missing or changed.
    fn pieces(&mut self, frame: &[u8]) -> Option<Vec<Vec<u8>>> {
        let whole = frame.len() - body(frame);
        if is_v6(frame) || whole < 100 {
            return None;
        }
        let (cut, id) = (8 * (1 + self.below(whole / 8 - 1)), self.rng.next_u64() as u16);
        let piece = |range: std::ops::Range<usize>| {
            super::paths::fragment(frame, id, range.clone(), range.end < whole).0
        };
        let mut pieces = vec![piece(0..cut), piece(cut..whole)];
        match self.below(4) {
            0 => drop(pieces.pop()),
            1 => drop(pieces.remove(0)),
            2 => {
                let at = 34 + self.below(pieces[1].len() - 34);
                pieces[1][at] ^= 1 << self.below(8);
            }
            _ => {}
        }
        Some(pieces)
    }

    /// Attacks both hosts.
    fn attack(&mut self, net: &mut Net) {
        for to in 0..2 {
            for _ in 0..RATE {
                let kind = self.below(Attack::ALL.len());
                for frame in self.forge(Attack::ALL[kind], to).unwrap_or_default() {
                    self.sent[kind] += 1;
                    net.hosts[to].cores[0].port_mut(0).rx.push_back(TestFrame::new(frame));
                }
            }
        }
    }
}

fn swap_addresses(frame: &mut [u8]) {
    let (at, len) = if is_v6(frame) { (22, 16) } else { (26, 4) };
    let (source, destination) = frame[at..at + 2 * len].split_at_mut(len);
    source.swap_with_slice(destination);
}

/// Adds a UDP header, or removes it.
fn rewrap(frame: &mut Vec<u8>) {
    let (at, body) = (protocol_at(frame), body(frame));
    if frame[at] == ESP {
        frame[at] = UDP;
        let len = (8 + frame.len() - body) as u16;
        let mut udp = vec![0x11, 0x94, 0x11, 0x94];
        udp.extend(len.to_be_bytes());
        udp.extend([0, 0]);
        frame.splice(body..body, udp);
    } else {
        frame[at] = ESP;
        frame.drain(body..body + 8);
    }
    relength(frame);
}

/// Records sealed frames, at most [`MEMORY`] of each host; the attacker withholds one in `withholds`.
fn watch_all(net: &mut Net, withholds: Option<u64>) -> Seen {
    let seen = Seen::default();
    let (keep, mut rng) = (seen.clone(), Rng::new(9));
    net.loses = Box::new(move |from, frame| {
        if !is_sealed(frame) {
            return false;
        }
        let mut seen = keep.borrow_mut();
        if seen[from].len() == MEMORY {
            seen[from].swap_remove(rng.below(MEMORY as u64) as usize);
        }
        seen[from].push(frame.to_vec());
        withholds.is_some_and(|n| rng.below(n) == 0)
    });
    seen
}

/// Opens streams over TCP and SCTP, of both families.
fn streams(net: &mut Net) -> Vec<StreamId> {
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    kinds.map(|(over_sctp, v6)| open(net, over_sctp, v6)).into()
}

/// Records the frames of the streams in clear, by host.
fn in_clear() -> [Vec<Vec<u8>>; 2] {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    net.hosts[1].listen_as(SCTP_PORT, 100, 100, sctp());
    net.settle();
    let all = Rc::new(RefCell::new([Vec::new(), Vec::new()]));
    let keep = all.clone();
    net.loses = Box::new(move |from, frame| {
        let upper = protocol(frame).is_some_and(|(_, protocol)| [6, 132].contains(&protocol));
        if upper {
            keep.borrow_mut()[from].push(frame.to_vec());
        }
        false
    });
    for (stag, stream) in (10..).step_by(2).zip(streams(&mut net)) {
        write(&mut net, stream, stag, 20_000);
        net.hosts[0].command(0, |_| Command::Close { stream, abort: true });
        net.settle();
    }
    let all = all.borrow().clone();
    assert!(all.iter().all(|frames| frames.len() > 20));
    all
}

/// Writes over all streams in turn while the attacker sends; returns the hosts and the attacker.
fn under_attack(suite: Suite, seed: u64, withholds: Option<u64>, writes: u32) -> (Net, Attacker) {
    let mut net = net(suite, |_| {});
    let streams = streams(&mut net);
    for (stag, stream) in (10..).step_by(2).zip(&streams) {
        write(&mut net, *stream, stag, 3000);
    }
    let seen = watch_all(&mut net, withholds);
    let mut attacker =
        Attacker { rng: Rng::new(seed), seen, clear: in_clear(), sent: Default::default() };
    let untouched = net.hosts[1].region(9999, LEN, Access::REMOTE_WRITE);
    for n in 0..writes {
        let stag = 100 + 2 * n;
        let from = net.hosts[0].region(stag, LEN, Access::NONE);
        let to = net.hosts[1].region(stag + 1, LEN, Access::REMOTE_WRITE);
        from.write(0, &pattern(LEN));
        let stream = streams[n as usize % streams.len()];
        let ticket = net.hosts[0].write(stream, (Stag(stag), &from), Stag(stag + 1), LEN as u32);
        let is_sent = |event: &Event| match event {
            Event::Sent { ticket: t, .. } => (*t == ticket).then_some(()),
            Event::PostFailed { reason, .. } => panic!("{reason}"),
            _ => None,
        };
        let mut turns = 0;
        while net.hosts[0].take(is_sent).is_none() {
            attacker.attack(&mut net);
            net.turn();
            net.now += TURN;
            turns += 1;
            assert!(turns < 100_000, "the write {n} never arrives");
        }
        assert!(bytes_of(&to) == pattern(LEN), "{suite:?}, seed {seed}, write {n}: other bytes");
    }
    net.loses = Box::new(|_, _| false);
    net.settle();
    assert!(bytes_of(&untouched) == [0; LEN], "{suite:?}, seed {seed}: placed elsewhere");
    (net, attacker)
}

const SUITES: [Suite; 5] = [
    PLAIN,
    Suite { udp: true, ..PLAIN },
    Suite { tunnel: true, algorithm: Algorithm::ChaCha20Poly1305, ..PLAIN },
    Suite { algorithm: Algorithm::AesCbc128HmacSha256, ..PLAIN },
    Suite { algorithm: Algorithm::AesGmac256, tunnel: true, udp: true },
];

#[test]
fn nothing_of_an_attacker_is_opened_and_streams_go_on() {
    for (seed, suite) in (1..).zip(SUITES) {
        let (net, attacker) = under_attack(suite, seed, None, 60);
        assert!(attacker.sent.iter().sum::<u64>() > 5000, "{:?}", attacker.sent);
        assert!(attacker.sent.iter().all(|&sent| sent > 50), "{:?}", attacker.sent);
        for (host, peer) in [(0, 1), (1, 0)] {
            let count = |name| net.hosts[host].count(name);
            // Opened frames equal the peer's sealed ones.
            assert_eq!(count("ipsec_opened"), net.hosts[peer].count("ipsec_sealed"), "{suite:?}");
            for reason in [
                "esp_replay",
                "esp_integrity",
                "esp_unknown_spi",
                "esp_malformed",
                "ipsec_unprotected",
            ] {
                assert!(count(reason) > 20, "{suite:?}: {} {reason}", count(reason));
            }
            assert_eq!(count("esp_expired") + count("esp_dummy"), 0);
        }
    }
}

/// A withheld frame may be opened from a copy with a changed IP header, and counts as received then: the stream
/// repairs it.
#[test]
fn what_an_attacker_withholds_and_changes_is_sent_again() {
    for (seed, suite) in (100..).zip(SUITES) {
        let (net, _) = under_attack(suite, seed, Some(40), 40);
        for (host, peer) in [(0, 1), (1, 0)] {
            let (opened, sealed) =
                (net.hosts[host].count("ipsec_opened"), net.hosts[peer].count("ipsec_sealed"));
            assert!(opened <= sealed && opened > sealed / 2, "{suite:?}: {opened} of {sealed}");
        }
    }
}

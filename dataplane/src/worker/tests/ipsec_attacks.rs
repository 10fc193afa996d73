//! Attacks on ESP by an attacker on the path who sees every frame and has no key. Meanwhile streams over TCP and SCTP
//! of both address families transfer data without a changed byte, and each frame is counted with its outcome
//! ([`Net::turn`]). Each opened frame was sealed by the peer, and is opened only once.
//!
//! | attack | frames sent |
//! |---|---|
//! | [`Attack::Replay`], [`Attack::Fragment`] | earlier frames, whole or in fragments |
//! | [`Attack::Truncate`], [`Attack::Flip`], [`Attack::Overwrite`], [`Attack::Splice`] | changed frames |
//! | [`Attack::Jump`] | a later sequence number, to move the anti-replay window |
//! | [`Attack::Garbage`], [`Attack::UnknownSpi`] | random ESP with the SPI of an SA, or with an unknown SPI |
//! | [`Attack::OtherSpi`], [`Attack::Reflect`] | valid ESP with the SPI of another SA, or sent back |
//! | [`Attack::Rewrap`] | ESP in UDP for an SA without UDP, and the reverse |
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
use super::test_host::*;
use crate::api::{Command, Event};

const ETHERNET_HEADER_LEN: usize = 14;
const ESP: u8 = 50;
const UDP: u8 = 17;
/// Maximum attacks on each host per turn.
const RATE: usize = 12;
/// Maximum recorded frames of each host.
const MAX_RECORDED: usize = 600;
const TURN: Duration = Duration::from_micros(50);
const LEN: usize = 60_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attack {
    Replay,
    Truncate,
    Flip,
    Overwrite,
    Splice,
    Jump,
    Garbage,
    UnknownSpi,
    OtherSpi,
    Reflect,
    Rewrap,
    Fragment,
    Clear,
    Marker,
}

impl Attack {
    const ALL: [Attack; 14] = [
        Attack::Replay,
        Attack::Truncate,
        Attack::Flip,
        Attack::Overwrite,
        Attack::Splice,
        Attack::Jump,
        Attack::Garbage,
        Attack::UnknownSpi,
        Attack::OtherSpi,
        Attack::Reflect,
        Attack::Rewrap,
        Attack::Fragment,
        Attack::Clear,
        Attack::Marker,
    ];
}

/// Recorded frames, by the index of the sending host.
type RecordedFrames = Rc<RefCell<[Vec<Vec<u8>>; 2]>>;

struct Attacker {
    rng: Rng,
    /// Sealed frames of both hosts.
    recorded: RecordedFrames,
    /// Frames of the same streams in clear, from a network without IPsec.
    clear: [Vec<Vec<u8>>; 2],
    sent: [u64; Attack::ALL.len()],
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12] == 0x86
}

/// Returns the offset of the IP payload in a frame.
fn payload_offset(frame: &[u8]) -> usize {
    ETHERNET_HEADER_LEN + if is_v6(frame) { 40 } else { 20 }
}

/// Returns the offset of the protocol field in a frame.
fn protocol_offset(frame: &[u8]) -> usize {
    ETHERNET_HEADER_LEN + if is_v6(frame) { 6 } else { 9 }
}

/// Returns the offset of the ESP header in a frame.
fn esp_offset(frame: &[u8]) -> usize {
    payload_offset(frame) + if frame[protocol_offset(frame)] == UDP { 8 } else { 0 }
}

/// Sets the length field of the IP header from the length of the frame.
fn update_ip_length(frame: &mut [u8]) {
    if is_v6(frame) {
        let len = (frame.len() - payload_offset(frame)) as u16;
        frame[18..20].copy_from_slice(&len.to_be_bytes());
    } else {
        let len = (frame.len() - ETHERNET_HEADER_LEN) as u16;
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        ipsec::ip::write_checksum(&mut frame[ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + 20]);
    }
}

fn is_sealed(frame: &[u8]) -> bool {
    let at = protocol_offset(frame);
    let udp = frame[at] == UDP
        && frame.len() > payload_offset(frame) + 12
        && frame[esp_offset(frame)..][..4] != [0; 4];
    [[8, 0], [0x86, 0xdd]].contains(&[frame[12], frame[13]]) && (frame[at] == ESP || udp)
}

impl Attacker {
    fn random_below(&mut self, n: usize) -> usize {
        self.rng.next_below(n as u64) as usize
    }

    fn random_bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.rng.next_u64() as u8).collect()
    }

    /// Returns a recorded sealed frame that this host has sent.
    fn recorded_frame(&mut self, host: usize) -> Option<Vec<u8>> {
        let known = self.recorded.borrow()[host].len();
        let at = if known == 0 { return None } else { self.random_below(known) };
        Some(self.recorded.borrow()[host][at].clone())
    }

    /// Returns the frames of one attack on host `to`, or `None` if no frame of the other host is recorded.
    fn forge(&mut self, attack: Attack, to: usize) -> Option<Vec<Vec<u8>>> {
        let mut frame = self.recorded_frame(1 - to)?;
        let esp = esp_offset(&frame);
        match attack {
            Attack::Replay => {}
            Attack::Truncate => {
                let len = ETHERNET_HEADER_LEN
                    + 1
                    + self.random_below(frame.len() - ETHERNET_HEADER_LEN - 1);
                frame.truncate(len);
                if len > payload_offset(&frame) && self.random_below(2) == 0 {
                    update_ip_length(&mut frame);
                }
            }
            Attack::Flip => self.flip(&mut frame),
            Attack::Overwrite => {
                let at = esp + self.random_below(frame.len() - esp);
                let n = 1 + self.random_below(frame.len() - at);
                let noise = self.random_bytes(n);
                frame[at..at + n].copy_from_slice(&noise);
            }
            Attack::Splice => {
                let other = self.recorded_frame(1 - to)?;
                let at = ETHERNET_HEADER_LEN
                    + self.random_below(frame.len().min(other.len()) - ETHERNET_HEADER_LEN);
                frame.truncate(at);
                frame.extend(&other[at..]);
                if self.random_below(2) == 0 && frame.len() > payload_offset(&frame) {
                    update_ip_length(&mut frame);
                }
            }
            Attack::Jump => {
                let ahead = 1 << self.random_below(32);
                let low = u32::from_be_bytes(*frame[esp + 4..].first_chunk()?);
                let later = low.wrapping_add(ahead).to_be_bytes();
                frame[esp + 4..esp + 8].copy_from_slice(&later);
            }
            Attack::Garbage => {
                let len = self.random_below(1400);
                frame.truncate(esp + 4);
                frame.extend(self.random_bytes(len));
                update_ip_length(&mut frame);
            }
            Attack::UnknownSpi => {
                let unknown = self.random_bytes(4);
                frame[esp..esp + 4].copy_from_slice(&unknown);
            }
            Attack::OtherSpi => {
                let other = self.recorded_frame(self.alternate_host())?;
                let at = self::esp_offset(&other);
                frame[esp..esp + 4].copy_from_slice(&other[at..at + 4]);
            }
            Attack::Reflect => {
                frame = self.recorded_frame(to)?;
                let mac = frame[..12].to_vec();
                frame[..6].copy_from_slice(&mac[6..]);
                frame[6..12].copy_from_slice(&mac[..6]);
                if self.random_below(4) > 0 {
                    swap_addresses(&mut frame);
                }
            }
            Attack::Rewrap => rewrap(&mut frame),
            Attack::Fragment => return self.cut_fragments(&frame),
            Attack::Clear => {
                let at = self.random_below(self.clear[1 - to].len());
                frame = self.clear[1 - to][at].clone();
            }
            Attack::Marker => {
                frame.truncate(payload_offset(&frame));
                let at = protocol_offset(&frame);
                frame[at] = UDP;
                let data = match self.random_below(3) {
                    0 => vec![0xff],
                    1 => [vec![0; 4], self.random_bytes(60)].concat(),
                    _ => self.random_bytes(3),
                };
                frame.extend([0x11, 0x94, 0x11, 0x94, 0, 8 + data.len() as u8, 0, 0]);
                frame.extend(data);
                update_ip_length(&mut frame);
            }
        }
        Some(vec![frame])
    }

    fn alternate_host(&self) -> usize {
        self.sent.iter().sum::<u64>() as usize % 2
    }

    fn flip(&mut self, frame: &mut [u8]) {
        for _ in 0..1 + self.random_below(3) {
            let bit = 8 * ETHERNET_HEADER_LEN
                + self.random_below(8 * (frame.len() - ETHERNET_HEADER_LEN));
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        if !is_v6(frame) && self.random_below(2) == 0 {
            // Without a correct header checksum, a router in front of the victim would drop the frame.
            ipsec::ip::write_checksum(&mut frame[ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + 20]);
        }
    }

    /// Cuts an IPv4 frame into fragments. One of them may be missing or changed.
    fn cut_fragments(&mut self, frame: &[u8]) -> Option<Vec<Vec<u8>>> {
        let whole = frame.len() - payload_offset(frame);
        if is_v6(frame) || whole < 100 {
            return None;
        }
        let (cut, id) = (8 * (1 + self.random_below(whole / 8 - 1)), self.rng.next_u64() as u16);
        let piece = |range: std::ops::Range<usize>| {
            super::paths::fragment(frame, id, range.clone(), range.end < whole).0
        };
        let mut pieces = vec![piece(0..cut), piece(cut..whole)];
        match self.random_below(4) {
            0 => drop(pieces.pop()),
            1 => drop(pieces.remove(0)),
            2 => {
                let at = 34 + self.random_below(pieces[1].len() - 34);
                pieces[1][at] ^= 1 << self.random_below(8);
            }
            _ => {}
        }
        Some(pieces)
    }

    /// Attacks both hosts [`RATE`] times.
    fn attack(&mut self, net: &mut Net) {
        for to in 0..2 {
            for _ in 0..RATE {
                let kind = self.random_below(Attack::ALL.len());
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

/// Inserts a UDP header in front of ESP, or removes it.
fn rewrap(frame: &mut Vec<u8>) {
    let (at, body) = (protocol_offset(frame), payload_offset(frame));
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
    update_ip_length(frame);
}

/// Records at most [`MAX_RECORDED`] sealed frames of each host. The attacker drops one in `withholds` frames, or none.
fn record_sealed_frames(net: &mut Net, withholds: Option<u64>) -> RecordedFrames {
    let seen = RecordedFrames::default();
    let (recorder, mut rng) = (seen.clone(), Rng::new(9));
    net.is_lost = Box::new(move |from, frame| {
        if !is_sealed(frame) {
            return false;
        }
        let mut seen = recorder.borrow_mut();
        if seen[from].len() == MAX_RECORDED {
            seen[from].swap_remove(rng.next_below(MAX_RECORDED as u64) as usize);
        }
        seen[from].push(frame.to_vec());
        withholds.is_some_and(|n| rng.next_below(n) == 0)
    });
    seen
}

/// Opens streams over TCP and SCTP, of both address families.
fn open_streams(net: &mut Net) -> Vec<StreamId> {
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    kinds.map(|(over_sctp, v6)| open(net, over_sctp, v6)).into()
}

/// Records the frames of streams over TCP and SCTP without IPsec, by sending host.
fn record_clear_frames() -> [Vec<Vec<u8>>; 2] {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    net.hosts[1].listen_as(SCTP_PORT, 100, 100, sctp());
    net.run_until_idle();
    let all = Rc::new(RefCell::new([Vec::new(), Vec::new()]));
    let recorder = all.clone();
    net.is_lost = Box::new(move |from, frame| {
        let upper = protocol(frame).is_some_and(|(_, protocol)| [6, 132].contains(&protocol));
        if upper {
            recorder.borrow_mut()[from].push(frame.to_vec());
        }
        false
    });
    for (stag, stream) in (10..).step_by(2).zip(open_streams(&mut net)) {
        write(&mut net, stream, stag, 20_000);
        net.hosts[0].command(0, |_| Command::Close { stream, abort: true });
        net.run_until_idle();
    }
    let all = all.borrow().clone();
    assert!(all.iter().all(|frames| frames.len() > 20));
    all
}

/// Performs `writes` writes over the streams in rotation while the attacker sends. Returns the hosts and the attacker.
fn run_under_attack(
    suite: Suite,
    seed: u64,
    withholds: Option<u64>,
    writes: u32,
) -> (Net, Attacker) {
    let mut net = net(suite, |_| {});
    let streams = open_streams(&mut net);
    for (stag, stream) in (10..).step_by(2).zip(&streams) {
        write(&mut net, *stream, stag, 3000);
    }
    let seen = record_sealed_frames(&mut net, withholds);
    let mut attacker = Attacker {
        rng: Rng::new(seed),
        recorded: seen,
        clear: record_clear_frames(),
        sent: Default::default(),
    };
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
        while net.hosts[0].take_event(is_sent).is_none() {
            attacker.attack(&mut net);
            net.turn();
            net.now += TURN;
            turns += 1;
            assert!(turns < 100_000, "the write {n} never arrives");
        }
        assert!(read_memory(&to) == pattern(LEN), "{suite:?}, seed {seed}, write {n}: other bytes");
    }
    net.is_lost = Box::new(|_, _| false);
    net.run_until_idle();
    assert!(read_memory(&untouched) == [0; LEN], "{suite:?}, seed {seed}: placed elsewhere");
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
fn attacker_frames_are_never_opened_and_streams_continue() {
    for (seed, suite) in (1..).zip(SUITES) {
        let (net, attacker) = run_under_attack(suite, seed, None, 60);
        assert!(attacker.sent.iter().sum::<u64>() > 5000, "{:?}", attacker.sent);
        assert!(attacker.sent.iter().all(|&sent| sent > 50), "{:?}", attacker.sent);
        for (host, peer) in [(0, 1), (1, 0)] {
            let count = |name| net.hosts[host].count(name);
            // The peer has sealed as many frames as were opened, so no frame of the attacker was opened.
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

/// The attacker withholds frames, which TCP and SCTP retransmit. A copy of a withheld frame with a changed IP header
/// may still be opened, and then counts as received.
#[test]
fn frames_withheld_by_an_attacker_are_retransmitted() {
    for (seed, suite) in (100..).zip(SUITES) {
        let (net, _) = run_under_attack(suite, seed, Some(40), 40);
        for (host, peer) in [(0, 1), (1, 0)] {
            let (opened, sealed) =
                (net.hosts[host].count("ipsec_opened"), net.hosts[peer].count("ipsec_sealed"));
            assert!(opened <= sealed && opened > sealed / 2, "{suite:?}: {opened} of {sealed}");
        }
    }
}

//! Attacks on a worker with an established stream, each compared with the same run without the attack. The stream keeps
//! at least nine tenths of its goodput in virtual time, and the worker's state stays within its limits.
//!
//! The victim is host 2. A client, host 1, writes 4 MiB to the victim over a path with 1 ms delay each way, with a
//! receive window of 128 KiB: about 5 frames per step of 100 µs. The attack adds at most [`RATE`] frames per step. The
//! victim receives bursts of at most 32 frames.
//!
//! | attack | attacker | test |
//! |---|---|---|
//! | blind resets, SYNs, data | off-path, knows ports and window | [`blind`] |
//! | challenge ACKs exhausted | off-path, knows the window | `blind::exhausted_challenge_acks_do_not_limit_other_streams` |
//! | acknowledgements of data never sent | off-path, knows the window | `blind::blind_optimistic_acks_are_dropped` |
//! | SYN flood: half-open streams, cookies | any host, forged addresses | [`floods`] |
//! | half-open and idle streams | a peer, its own address | `floods::handshakes_without_mpa_request_are_bounded_per_peer` |
//! | streams in TIME-WAIT | a peer, its own address | `floods::rejected_streams_recycle_time_wait_slots` |
//! | too many streams of one peer | a peer, its own address | `floods::repeated_opens_stop_at_the_peer_stream_limit` |
//! | ARP | on the link | `floods::arp_flood_keeps_neighbour_entry_and_bounds_answers` |
//! | neighbour discovery | on the link | `floods::neighbour_solicitation_flood_gets_bounded_answers` |
//! | forged ICMP | off-path, knows ports | `floods::forged_icmp_flood_changes_no_path_mtu_or_stream` |
//! | fragments | any host, forged addresses | `floods::fragment_flood_stays_within_reassembly_bounds` |
//! | optimistic and split acknowledgements | a peer with a stream | [`misbehaving_peers`] |
//! | SACK storm, small MSS, tiny and zero windows | a peer with a stream | [`misbehaving_peers`] |

mod blind;
pub(super) mod floods;
mod misbehaving_peers;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::{Access, RegionMemory, Stag, StreamId};
use smoltcp::wire::IpProtocol;
use tcp_lite::endpoint::EndpointConfig;
use tcp_lite::tcp::{self, Segment};

use super::test_host::*;
use crate::api::{Event, Limits};
use crate::checksum;
use crate::net::path::{self, IpHeader};
use crate::net::protocol::TCP;

const PORT: u16 = 4791;
const SINK: Stag = Stag(0x1234);
const SOURCE: Stag = Stag(0x77);
const LEN: usize = 4 << 20;
const STEP: Duration = Duration::from_micros(100);
const DELAY: Duration = Duration::from_millis(1);
/// Maximum frames of the attack per step.
const RATE: usize = 10;
/// Maximum steps of the client's write. A longer write fails the test.
const MAX_STEPS: usize = 20_000;
const CLIENT: usize = 0;
const VICTIM: usize = 1;
/// The third host: an attacker with its own address. In attacks with forged addresses, it is an innocent second client.
const ATTACKER: usize = 2;

/// Header fields of the client's last segment, from which attacks forge segments. A real off-path attacker has to guess
/// them.
#[derive(Clone, Copy, Debug, Default)]
struct LastSegment {
    port: u16,
    seq: u32,
    ack: u32,
    stamps: Option<tcp::Timestamps>,
}

/// Function that receives the sender's index and a frame, and returns the frames to send in place of that frame.
type Mangler = Box<dyn FnMut(usize, TestFrame) -> Vec<TestFrame>>;

/// The hosts, the path between them and the clock.
struct Scene {
    net: Net,
    /// Frames in flight: time of arrival, sender's index, frame.
    in_flight: VecDeque<(Instant, usize, TestFrame)>,
    mangle: Mangler,
    stream: StreamId,
    last_segment: LastSegment,
    forger: Host,
    steps: u64,
}

impl Scene {
    fn new(limits: Limits) -> Scene {
        Scene::with_victim(limits, v4(2))
    }

    /// Creates the hosts, and opens the client's stream to this address of the victim.
    fn with_victim(limits: Limits, victim: IpAddr) -> Scene {
        let plan = Plan { limits, ..Plan::new(2) };
        let mut net = Net::new(&[Plan::new(1), plan, Plan::new(3)]);
        let tcp = Arc::new(tcp::Config { receive_window: 128 << 10, ..tcp::Config::default() });
        let endpoint = EndpointConfig { tcp, ..EndpointConfig::default() };
        net.hosts[VICTIM].listen_as(PORT, 100, 1000, endpoint);
        net.hosts[VICTIM].region(SINK.0, LEN, Access::REMOTE_WRITE);
        let (stream, _) = net.open(CLIENT, 0, VICTIM, (victim, PORT).into());
        net.run_until_idle();
        let forger = Host::new(&Plan::new(66));
        let mangle: Mangler = Box::new(|_, frame| vec![frame]);
        let (air, seen) = (VecDeque::new(), LastSegment::default());
        Scene { net, in_flight: air, mangle, stream, last_segment: seen, forger, steps: 0 }
    }

    /// Returns the duration of the client's write while `attack` runs.
    fn transfer(&mut self, mut attack: impl FnMut(&mut Scene) -> Vec<TestFrame>) -> Duration {
        let source = self.net.hosts[CLIENT].region(SOURCE.0, LEN, Access::NONE);
        source.write(0, &pattern(LEN));
        self.net.hosts[CLIENT].write(self.stream, (SOURCE, &source), SINK, LEN as u32);
        let begin = self.net.now;
        for _ in 0..MAX_STEPS {
            let frames = attack(self);
            assert!(frames.len() <= RATE, "an attack of {} frames", frames.len());
            for frame in frames {
                self.net.hosts[VICTIM].deliver(frame);
            }
            self.step();
            let delivered = |e: &Event| matches!(e, Event::TaggedDelivered { .. }).then_some(());
            if self.net.hosts[VICTIM].take_event(delivered).is_some() {
                return self.net.now - begin;
            }
        }
        panic!("the write never completes");
    }

    fn step(&mut self) {
        self.steps += 1;
        self.net.now += STEP;
        let now = self.net.now;
        while self.in_flight.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, from, frame)) = self.in_flight.pop_front() else { break };
            for (to, host) in self.net.hosts.iter_mut().enumerate() {
                // Acts as a switch: the last byte of a MAC address is the number of the host.
                let named = frame.0[0] & 1 != 0 || usize::from(frame.0[5]) == to + 1;
                if to != from && named {
                    host.deliver(frame.clone());
                }
            }
        }
        for from in 0..self.net.hosts.len() {
            let mut sent = Vec::new();
            let host = &mut self.net.hosts[from];
            host.cores[0].turn(now);
            host.assert_all_accounted();
            while let Some(event) = host.handles[0].poll() {
                host.events.push((0, event));
            }
            for frame in host.take_sent() {
                if from == CLIENT {
                    self.record_segment(&frame);
                }
                let mangled = (self.mangle)(from, frame);
                sent.extend(mangled.into_iter().map(|frame| (now + DELAY, from, frame)));
            }
            // The attacking host sends at most [`RATE`] frames per step, like the attacks with forged frames.
            sent.truncate(if from == ATTACKER { RATE } else { usize::MAX });
            self.in_flight.extend(sent);
        }
    }

    fn record_segment(&mut self, frame: &TestFrame) {
        if let Some((at, _)) = tcp_offsets(&frame.0)
            && let Ok(segment) = Segment::parse(&frame.0[at..])
        {
            let (seq, ack) = (segment.seq.0, segment.ack.0);
            let (port, stamps) = (segment.src_port, segment.options.timestamps);
            self.last_segment = LastSegment { port, seq, ack, stamps };
        }
    }

    fn count(&self, name: &str) -> u64 {
        self.net.hosts[VICTIM].count(name)
    }

    /// Builds a segment to the victim with a forged source address.
    fn forge(&self, from: IpAddr, segment: &Segment<'_>) -> TestFrame {
        self.packet(from, IpProtocol::Tcp, segment.wire_len(), |p| {
            segment.emit(p);
            let sum = checksum::segment(from, v4(2), TCP, p);
            p[16..18].copy_from_slice(&sum.to_be_bytes());
        })
    }

    /// Builds a packet to the victim with a forged source address.
    fn packet(
        &self,
        from: IpAddr,
        protocol: IpProtocol,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> TestFrame {
        let interface = self.forger.cores[0].env.network.interface(0);
        let mut out = Vec::new();
        let mac = [2, 0, 0, 0, 0, 2];
        let header = IpHeader { source: from, destination: v4(2), protocol, hop_limit: 64 };
        path::write_ip_frame(&mut out, interface, mac, header, len, fill);
        TestFrame::new(out)
    }

    /// Returns a pseudo-random number for frame `n` of the current step.
    fn noise(&self, n: usize) -> u32 {
        let seed = self.steps.wrapping_mul(31).wrapping_add(n as u64);
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

/// Returns the offsets of the TCP segment and of the IP header of an untagged IPv4 frame. Returns `None` for other
/// frames.
fn tcp_offsets(frame: &[u8]) -> Option<(usize, usize)> {
    (frame.len() >= 54 && frame[12..14] == [8, 0] && frame[23] == 6).then_some((34, 14))
}

/// No attack: only the client's stream runs.
fn no_attack(_: &mut Scene) -> Vec<TestFrame> {
    Vec::new()
}

/// Runs the client's write without and with an attack. Returns the scene with the attack and the duration of its write.
fn run_under_attack(
    make: impl Fn() -> Scene,
    attack: impl FnMut(&mut Scene) -> Vec<TestFrame>,
) -> (Scene, Duration) {
    let alone = make().transfer(no_attack);
    let mut scene = make();
    let attacked = scene.transfer(attack);
    // At most 10/9 of the time, which is nine tenths of the goodput.
    assert!(attacked * 9 <= alone * 10, "{attacked:?} instead of {alone:?}");
    (scene, attacked)
}

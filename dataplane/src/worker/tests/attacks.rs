//! Attacks, compared with the same run without: an established stream keeps at least nine tenths of its goodput in
//! virtual time, and the worker's state stays within its bounds.
//!
//! The victim is host 2. A client, host 1, writes 4 MiB to it over a path of 1 ms each way, through a window of 128
//! KiB: about 5 frames in each step of 100 µs. The attack adds up to [`RATE`] frames per step; the victim takes
//! bursts of at most 32.
//!
//! | attack | who | test |
//! |---|---|---|
//! | blind resets, SYNs, text | off-path, with ports and window | [`blind`] |
//! | challenge acknowledgements used up | the same | `blind::challenges_are_used_up` |
//! | acknowledgements of data never sent | the same | `blind::optimistic_acknowledgements_in_the_clients_name` |
//! | SYN flood, half-open and cookies | any host, forged addresses | [`floods`] |
//! | half-open and idle streams | a peer, its own address | `floods::handshakes_that_lead_nowhere` |
//! | streams in TIME-WAIT | a peer, its own address | `floods::streams_that_end_at_once` |
//! | one peer opens too many streams | a peer, its own address | `floods::one_peer_opens_stream_after_stream` |
//! | ARP and neighbour discovery | on the link | `floods::arp_requests_and_replies`, `floods::neighbour_discovery` |
//! | forged ICMP | off-path, with ports | `floods::forged_icmp` |
//! | fragments | any host, forged addresses | `floods::fragments` |
//! | optimistic and split acknowledgements | a peer with a stream | [`peers`] |
//! | SACK storm, tiny MSS, silly and closed windows | the same | [`peers`] |

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
use crate::net::path;
use crate::net::protocol::TCP;

const PORT: u16 = 4791;
const SINK: Stag = Stag(0x1234);
const SOURCE: Stag = Stag(0x77);
const LEN: usize = 4 << 20;
const STEP: Duration = Duration::from_micros(100);
const DELAY: Duration = Duration::from_millis(1);
/// Frames of the attack in each step.
const RATE: usize = 10;
/// Steps after which the stream counts as dead.
const MAX_STEPS: usize = 20_000;
const CLIENT: usize = 0;
const VICTIM: usize = 1;
const ATTACKER: usize = 2;

/// Header fields of the client's last segment, unknown to an off-path attacker.
#[derive(Clone, Copy, Debug, Default)]
struct LastSegment {
    port: u16,
    seq: u32,
    ack: u32,
    stamps: Option<tcp::Timestamps>,
}

/// Returns the frames sent instead of one, given the sender's index and the frame.
type Mangler = Box<dyn FnMut(usize, TestFrame) -> Vec<TestFrame>>;

/// The hosts, the path between them and the clock.
struct Scene {
    net: Net,
    /// Frames in flight: arrival time, sender, frame.
    in_flight: VecDeque<(Instant, usize, TestFrame)>,
    mangle: Mangler,
    stream: StreamId,
    last_segment: LastSegment,
    forger: Host,
    /// Steps so far.
    steps: u64,
}

impl Scene {
    fn new(limits: Limits) -> Scene {
        Scene::with_victim(limits, v4(2))
    }

    /// Opens the client's stream to this address of the victim.
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

    /// Measures the time of the client's write while `attack` runs.
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
        panic!("the write never arrives");
    }

    fn step(&mut self) {
        self.steps += 1;
        self.net.now += STEP;
        let now = self.net.now;
        while self.in_flight.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, from, frame)) = self.in_flight.pop_front() else { break };
            for (to, host) in self.net.hosts.iter_mut().enumerate() {
                // Switching: the last byte of a link-layer address is the host's number.
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
            // The attacker's line is no faster than that of the other attackers.
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

    /// Builds a segment to the victim from a forged address.
    fn forge(&self, from: IpAddr, segment: &Segment<'_>) -> TestFrame {
        self.packet(from, IpProtocol::Tcp, segment.wire_len(), |p| {
            segment.emit(p);
            let sum = checksum::segment(from, v4(2), TCP, p);
            p[16..18].copy_from_slice(&sum.to_be_bytes());
        })
    }

    /// Builds a packet to the victim from a forged address.
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
        path::write_ip_frame(&mut out, interface, mac, (from, v4(2)), (protocol, 64), len, fill);
        TestFrame::new(out)
    }

    /// Returns a number that differs from step to step and frame to frame.
    fn noise(&self, n: usize) -> u32 {
        let seed = self.steps.wrapping_mul(31).wrapping_add(n as u64);
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

/// Returns the offsets of the TCP segment and of the IP header of an untagged IPv4 frame.
fn tcp_offsets(frame: &[u8]) -> Option<(usize, usize)> {
    (frame.len() >= 54 && frame[12..14] == [8, 0] && frame[23] == 6).then_some((34, 14))
}

/// No attack: the client's stream alone.
fn no_attack(_: &mut Scene) -> Vec<TestFrame> {
    Vec::new()
}

/// Runs the client's write without and with an attack; returns the second scene and its time.
fn run_under_attack(
    make: impl Fn() -> Scene,
    attack: impl FnMut(&mut Scene) -> Vec<TestFrame>,
) -> (Scene, Duration) {
    let alone = make().transfer(no_attack);
    let mut scene = make();
    let attacked = scene.transfer(attack);
    // At most 10/9 of the time: nine tenths of the goodput.
    assert!(attacked * 9 <= alone * 10, "{attacked:?} instead of {alone:?}");
    (scene, attacked)
}

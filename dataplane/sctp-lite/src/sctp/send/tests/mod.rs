//! Tests of the send half alone, packet by packet, and with a receive half over a lossy path.

mod acks;
mod hostile;
mod limits;
mod loss;
mod path;
mod recorder;
mod source;
mod transfer;
mod window;

use core::time::Duration;

use wire::sctp::{Chunk, Packet, PacketBuilder, Ports, SackHeader, Tag};

use self::source::Source;
use super::*;
use wire::sctp::GapBlock;

const FIRST: u32 = u32::MAX - 10;
const MS: Duration = Duration::from_millis(1);
const PORTS: Ports = Ports { source: 1, destination: 2 };
/// Length of SCTP packets over IPv4 at an MTU of 1500, bytes.
const PACKET: usize = 1480;
const ROOM: u32 = 1 << 20;

/// A DATA chunk of a sent packet.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sent {
    /// TSN relative to the initial TSN; the first is 0.
    n: u32,
    stream: u16,
    immediate: bool,
    bytes: Vec<u8>,
}

/// A sender, its source, and virtual time.
struct Side {
    sender: Sender,
    source: Source,
    now: Instant,
}

/// Returns the `n`th TSN, counted from 0.
fn tsn(n: u32) -> Tsn {
    Tsn(FIRST).add(n)
}

fn config() -> SendConfig {
    SendConfig { pacing: false, max_burst: 100, ..SendConfig::default() }
}

fn side_with(config: SendConfig, a_rwnd: u32) -> Side {
    let now = Instant::from_millis(10_000);
    let sender = Sender::new(&Arc::new(config), Tsn(FIRST), a_rwnd, PACKET, now);
    Side { sender, source: Source::default(), now }
}

fn side() -> Side {
    side_with(config(), ROOM)
}

/// Returns a sender with `packets` messages of maximum length in flight.
fn in_flight(packets: usize) -> Side {
    let mut side = side_with(SendConfig { initial_window: Some(100), ..config() }, ROOM);
    side.source.push(packets, usize::MAX);
    assert_eq!(side.send().len(), packets);
    side
}

impl Side {
    /// Returns the chunks of the next packet.
    fn packet(&mut self) -> Option<Vec<Sent>> {
        let plan = self.sender.plan_packet(self.now, &mut self.source)?;
        let mut out = vec![0; self.sender.packet_len()];
        let mut packet = PacketBuilder::new(&mut out, PORTS, Tag(7));
        let chunks = self.sender.write(self.now, plan, &mut packet, &mut self.source);
        if chunks == 0 {
            return None;
        }
        let len = packet.finish();
        let sent = read(&out[..len]);
        assert_eq!(sent.len(), chunks);
        Some(sent)
    }

    /// Sends all packets permitted now.
    fn send(&mut self) -> Vec<Vec<Sent>> {
        let packets: Vec<_> = core::iter::from_fn(|| self.packet()).take(10_000).collect();
        self.sender.end_round(self.now, &mut self.source);
        packets
    }

    /// Returns the numbers of the chunks sent now.
    fn numbers(&mut self) -> Vec<u32> {
        self.send().into_iter().flatten().map(|sent| sent.n).collect()
    }

    fn try_sack(
        &mut self,
        next: u32,
        a_rwnd: u32,
        blocks: &[(u16, u16)],
        duplicates: &[u32],
    ) -> Result<AckEffect, BadSack> {
        let mut out = [0; 4000];
        let mut packet = PacketBuilder::new(&mut out, PORTS, Tag(7));
        let header = SackHeader { cumulative: tsn(next).sub(1), a_rwnd };
        let gaps = blocks.iter().map(|(start, end)| GapBlock { start: *start, end: *end });
        let gaps = gaps.collect::<Vec<_>>();
        let duplicates: Vec<_> = duplicates.iter().map(|n| tsn(*n)).collect();
        packet.sack(header, &gaps, &duplicates).unwrap();
        let len = packet.finish();
        let raw = Packet::new(&out[..len]).unwrap().chunks().next().unwrap().unwrap();
        let Ok(Chunk::Sack(sack)) = Chunk::parse(raw) else { panic!("no SACK") };
        self.sender.on_sack(self.now, &sack, &mut self.source)
    }

    /// Processes a SACK of all TSNs before `next`, with Gap Ack Blocks.
    fn sack(&mut self, next: u32, blocks: &[(u16, u16)]) -> AckEffect {
        self.try_sack(next, ROOM, blocks, &[]).unwrap()
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// Advances the time to the next timer, and processes its expiry.
    fn expire(&mut self) -> ExpiredTimer {
        self.now = self.sender.poll_timeout().expect("a timer runs");
        self.sender.handle_timeout(self.now)
    }
}

/// Parses the DATA chunks of a packet, and checks properties common to all packets.
fn read(bytes: &[u8]) -> Vec<Sent> {
    let packet = Packet::new(bytes).unwrap();
    assert!(packet.checksum_ok());
    let mut sent: Vec<Sent> = Vec::new();
    for raw in packet.chunks() {
        let Ok(Chunk::Data(data)) = Chunk::parse(raw.unwrap()) else { panic!("no DATA") };
        let header = data.header;
        // RFC 5043 §4: unordered and unfragmented.
        assert!(header.unordered && header.begin && header.end);
        assert!(!data.payload.is_empty(), "RFC 9260 §6.2");
        let n = header.tsn.distance_from(Tsn(FIRST));
        assert!(sent.last().is_none_or(|last| last.n < n), "RFC 9260 §6.10: in increasing order");
        let bytes = data.payload.to_vec();
        sent.push(Sent { n, stream: header.stream, immediate: header.immediate, bytes });
    }
    sent
}

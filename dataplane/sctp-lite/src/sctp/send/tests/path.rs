//! Two ends, each with a send and a receive half, over a link that loses, delays and reorders packets, in virtual time.

use std::collections::BTreeSet;

use link::FaultyLink;
use wire::sctp::{Chunk, Packet};

use super::*;
use crate::sctp::receive::{Arrival, ReceiveConfig, Receiver};
use crate::seam::{MessageOutcome, MessageSink, ReceivedMessage};

/// Bytes of IP and Ethernet headers added to a packet.
const FRAMING: usize = 20 + 14;

/// A sink that accepts messages, and checks their bytes against [`source::write`].
#[derive(Default)]
pub(super) struct Sink {
    /// Messages that arrived out of order.
    out_of_order: BTreeSet<u64>,
    /// Number of the first message that has not arrived.
    pub(super) complete: u64,
    pub(super) bytes: u64,
    pub(super) room: Option<u32>,
}

impl MessageSink for Sink {
    fn deliver(&mut self, _: Instant, message: ReceivedMessage<'_>) -> MessageOutcome {
        assert!(message.unordered && message.ppid == 16);
        let bytes = message.pieces.concat();
        let tag = u64::from_be_bytes(bytes[..8].try_into().expect("at least 8"));
        let mut want = vec![0; bytes.len()];
        source::write(tag, &mut want);
        assert_eq!(bytes, want);
        assert_eq!(u64::from(message.stream), tag % 5);
        assert!(tag >= self.complete && self.out_of_order.insert(tag), "{tag} arrived twice");
        while self.out_of_order.remove(&self.complete) {
            self.complete += 1;
        }
        self.bytes += bytes.len() as u64;
        MessageOutcome::Accepted
    }

    fn free_space(&self) -> u32 {
        self.room.unwrap_or(u32::MAX)
    }
}

/// One end of the link.
pub(super) struct End {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) source: Source,
    pub(super) sink: Sink,
    link: FaultyLink<Vec<u8>>,
}

impl End {
    fn new(send: &SendConfig, receive: &ReceiveConfig, link: link::Config, packet: usize) -> End {
        let receive = Arc::new(receive.clone());
        let sender =
            Sender::new(&Arc::new(send.clone()), Tsn(FIRST), receive.window, packet, Instant::ZERO);
        End {
            sender,
            receiver: Receiver::new(&receive, Tsn(FIRST), 5),
            source: Source::default(),
            sink: Sink::default(),
            link: FaultyLink::new(link),
        }
    }

    /// Sends all packets permitted now, with SACKs bundled as in an association.
    fn poll(&mut self, now: Instant) {
        loop {
            let plan = self.sender.plan_packet(now, &mut self.source);
            let room = self.sink.free_space();
            let sack = self.receiver.sack_due(room);
            if plan.is_none() && !sack {
                break;
            }
            let mut out = vec![0; self.sender.packet_len()];
            let mut packet = PacketBuilder::new(&mut out, PORTS, Tag(7));
            if sack || self.receiver.is_unacknowledged() {
                self.receiver.write_sack(room, &mut packet).expect("an empty packet");
            }
            if let Some(plan) = plan {
                self.sender.write(now, plan, &mut packet, &mut self.source);
            }
            if packet.is_empty() {
                break;
            }
            let len = packet.finish();
            out.truncate(len);
            out.resize(len + FRAMING, 0);
            self.link.push(now, out);
        }
        self.sender.end_round(now, &mut self.source);
    }

    fn input(&mut self, now: Instant, bytes: &[u8]) {
        let packet = Packet::new(bytes).expect("ours");
        let mut data = false;
        for raw in packet.chunks() {
            match Chunk::parse(raw.expect("ours")) {
                Ok(Chunk::Data(chunk)) => {
                    data = true;
                    let arrival = self.receiver.on_data(now, &chunk, &mut self.sink);
                    assert!(!matches!(arrival, Arrival::Abort(_) | Arrival::InvalidStream));
                }
                Ok(Chunk::Sack(sack)) => {
                    self.sender.on_sack(now, &sack, &mut self.source).expect("an honest peer");
                }
                other => panic!("{other:?}"),
            }
        }
        if data {
            self.receiver.end_packet(now);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.sender.poll_timeout(), self.receiver.poll_timeout()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.receiver.handle_timeout(now);
        self.sender.handle_timeout(now);
    }

    fn is_done(&self) -> bool {
        self.sender.is_idle() && self.source.waiting() == 0
    }
}

/// The two ends, and virtual time.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    pub(super) now: Instant,
    /// Time at which all data of each end was acknowledged.
    pub(super) done: [Option<Instant>; 2],
}

impl Pair {
    /// Creates a pair. `links` carry the packets of the first and of the second end.
    pub(super) fn new(
        send: &SendConfig,
        receive: &ReceiveConfig,
        links: [link::Config; 2],
        packet: usize,
    ) -> Pair {
        let ends = links.map(|link| End::new(send, receive, link, packet));
        Pair { ends, now: Instant::ZERO, done: [None; 2] }
    }

    /// Runs until all data has arrived and is acknowledged.
    pub(super) fn run(&mut self) {
        for end in &mut self.ends {
            end.poll(self.now);
        }
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 20_000_000, "the transfer does not end");
        }
        for (i, end) in self.ends.iter().enumerate() {
            assert!(end.is_done(), "end {i} stalls: {:?}", end.sender);
            assert_eq!(self.ends[1 - i].sink.complete, end.source.acknowledged);
            assert_eq!(end.sender.pipe(), 0);
        }
    }

    fn step(&mut self) -> bool {
        let timers = self.ends.iter().filter_map(End::poll_timeout);
        let arrivals = self.ends.iter().filter_map(|end| end.link.next_delivery());
        let Some(next) = timers.chain(arrivals).min() else { return false };
        self.now = self.now.max(next);
        for i in [0, 1] {
            let mut bytes = self.ends[i].link.pop(self.now);
            let mut burst = 0;
            while let Some(packet) = bytes {
                self.ends[1 - i].input(self.now, &packet[..packet.len() - FRAMING]);
                burst += 1;
                bytes = if burst < 32 { self.ends[i].link.pop(self.now) } else { None };
            }
        }
        for (end, done) in self.ends.iter_mut().zip(&mut self.done) {
            if end.poll_timeout().is_some_and(|at| at <= self.now) {
                end.handle_timeout(self.now);
            }
            end.poll(self.now);
            if end.is_done() {
                done.get_or_insert(self.now);
            }
        }
        true
    }
}

//! Two SCTP endpoints with one DDP session, connected without worker, port or clock. [`endpoint_pair`] is the TCP
//! counterpart.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::{BufferPool, HoldBudget, StagTable, StreamConfig, StreamId, VecMemory};
use sctp_lite::endpoint::{
    Context, Endpoint, EndpointConfig, Event, OpenRequest, SessionEvent, SessionId, UlpConfig,
};
use sctp_lite::sctp::{Config, Ends, Listener, ListenerResult, Secrets, send::SendConfig};
use sctp_lite::seam::TxBatch;
use wire::sctp::Packet;

use crate::endpoint_pair::{self, PD, REGION_LEN, SegmentBatch};

impl TxBatch for SegmentBatch {
    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
        self.reserve(len)
    }

    fn commit(&mut self, len: usize) {
        self.finish_segment(len);
    }
}

/// One endpoint of a pair with its region, STag table and buffers.
pub struct SctpPairEnd {
    endpoint: Option<Endpoint<VecMemory>>,
    session: Option<SessionId>,
    addresses: Ends,
    stags: StagTable<VecMemory>,
    buffers: BufferPool,
    hold: HoldBudget,
    memory: VecMemory,
    secrets: Arc<Secrets>,
}

impl SctpPairEnd {
    fn new(local: u8, remote: u8) -> SctpPairEnd {
        let address = |n| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), 4791);
        let memory = VecMemory::new(REGION_LEN);
        SctpPairEnd {
            endpoint: None,
            session: None,
            addresses: Ends { local: address(local), remote: address(remote) },
            stags: endpoint_pair::region_table(&memory),
            buffers: BufferPool::new(1 << 20),
            hold: HoldBudget::new(1 << 20),
            memory,
            secrets: Arc::new(Secrets::new([local; 16])),
        }
    }

    /// Passes a received packet to the endpoint.
    pub fn handle_packet(&mut self, now: Instant, bytes: &[u8]) {
        let packet = Packet::new(bytes).expect("a packet of the other end");
        assert!(packet.checksum_ok(), "the checksum of a sent packet is wrong");
        let cx =
            &mut Context { stags: &self.stags, buffers: &mut self.buffers, hold: &mut self.hold };
        if let Some(endpoint) = &mut self.endpoint {
            // An error means that the packet was dropped, such as an old acknowledgement.
            let _ = endpoint.input(now, &packet, cx);
        }
    }

    /// Handles an expired timer and writes the pending packets into `batch`.
    pub fn output(&mut self, now: Instant, batch: &mut SegmentBatch) {
        let cx =
            &mut Context { stags: &self.stags, buffers: &mut self.buffers, hold: &mut self.hold };
        if let Some(endpoint) = &mut self.endpoint {
            if endpoint.poll_timeout().is_some_and(|at| at <= now) {
                endpoint.handle_timeout(now, cx);
            }
            endpoint.poll_transmit(now, batch);
        }
    }

    /// Returns the time at which the next timer expires; `None` if no timer is set.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.endpoint.as_ref().and_then(Endpoint::poll_timeout)
    }

    fn drain_events(&mut self, now: Instant) -> u32 {
        let mut delivered = 0;
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::poll_event) {
            match event {
                Event::Session(session, SessionEvent::Request { .. }) => {
                    let cx = &mut Context {
                        stags: &self.stags,
                        buffers: &mut self.buffers,
                        hold: &mut self.hold,
                    };
                    let endpoint =
                        self.endpoint.as_mut().expect("the endpoint has reported an event");
                    let accepted = endpoint.accept_session(
                        now,
                        session,
                        StreamId(2),
                        PD,
                        &[],
                        ulp_config(),
                        cx,
                    );
                    accepted.expect("the peer has sent an Initiate");
                    self.session = Some(session);
                }
                Event::Session(_, SessionEvent::Ddp(ddp::Event::TaggedDelivered { .. })) => {
                    delivered += 1;
                }
                Event::Session(_, SessionEvent::Closed { reason, .. }) => {
                    panic!("the session ended: {reason}")
                }
                _ => {}
            }
        }
        delivered
    }
}

fn ulp_config() -> UlpConfig {
    StreamConfig { max_posts: 4096, ..StreamConfig::default() }.into()
}

/// Two SCTP endpoints with an established DDP session.
pub struct SctpPair {
    /// Virtual time of both endpoints.
    pub now: Instant,
    /// Endpoint that posts writes.
    pub sender: SctpPairEnd,
    /// Endpoint whose region is written.
    pub receiver: SctpPairEnd,
    outbound: SegmentBatch,
    inbound: SegmentBatch,
}

impl SctpPair {
    /// Returns a pair with an established session and packets of at most `packet_len` bytes. Warm-up writes have opened
    /// the congestion window.
    pub fn new(packet_len: usize) -> SctpPair {
        // Without pacing, one call sends all packets that the windows allow.
        let send = SendConfig {
            pacing: false,
            max_burst: 1 << 16,
            initial_window: Some(1 << 10),
            ..SendConfig::default()
        };
        let sctp = Arc::new(Config { send: Arc::new(send), ..Config::default() });
        let config = Arc::new(EndpointConfig::default());
        let now = Instant::from_millis(1000);
        let (mut sender, mut receiver) = (SctpPairEnd::new(1, 2), SctpPairEnd::new(2, 1));
        let open = OpenRequest { pd: PD, ulp: ulp_config(), private_data: Vec::new() };
        let (ends, secrets) = (sender.addresses, sender.secrets.clone());
        let connecting = Endpoint::connect(
            sctp.clone(),
            config.clone(),
            secrets,
            ends,
            packet_len,
            now,
            StreamId(1),
            open,
        );
        let (endpoint, session) = connecting.expect("empty private data fits");
        (sender.endpoint, sender.session) = (Some(endpoint), Some(session));
        let (mut there, mut back) = (SegmentBatch::default(), SegmentBatch::default());
        let listener = Listener::new(sctp.clone(), receiver.secrets.clone());
        sender.output(now, &mut there);
        let init = Packet::new(&there.segments[0]).expect("an INIT");
        listener.input(now, &receiver.addresses, &init, &mut back);
        sender.handle_packet(now, &back.segments[0]);
        there.clear();
        back.clear();
        sender.output(now, &mut there);
        let echo = Packet::new(&there.segments[0]).expect("a COOKIE ECHO");
        let ListenerResult::Accept(cookie) =
            listener.input(now, &receiver.addresses, &echo, &mut back)
        else {
            panic!("the listener refuses its own cookie")
        };
        let (ends, secrets) = (receiver.addresses, receiver.secrets.clone());
        let accepted = Endpoint::accept(sctp, config, secrets, ends, packet_len, &cookie, now);
        receiver.endpoint = Some(accepted);
        let mut pairing = SctpPair { now, sender, receiver, outbound: there, inbound: back };
        pairing.deliver_burst();
        pairing.exchange_reply();
        // Exchanges the DDP session's Initiate and Accept (RFC 5043).
        while pairing.exchange_bursts() {}
        for _ in 0..8 {
            pairing.write(256 << 10);
            while pairing.exchange_bursts() {}
        }
        pairing
    }

    /// Posts an RDMA write of `len` bytes at the sender.
    pub fn write(&mut self, len: u32) {
        let message = endpoint_pair::write_message(&self.sender.memory, len);
        let session = self.sender.session.expect("the session is open");
        let endpoint = self.sender.endpoint.as_mut().expect("the endpoint is connected");
        endpoint.post(session, message).expect("there is room for a message");
    }

    /// Exchanges one burst in each direction and advances the time by 10 µs. If nothing was sent and a timer expires
    /// within 150 ms, the time advances to 10 µs after this timer. Returns false if nothing was sent and no such timer
    /// is set.
    pub fn exchange_bursts(&mut self) -> bool {
        self.send_burst();
        self.deliver_burst();
        self.exchange_reply();
        let quiet = self.outbound.segments.is_empty() && self.inbound.segments.is_empty();
        let next =
            [self.sender.poll_timeout(), self.receiver.poll_timeout()].into_iter().flatten().min();
        // Timers of delayed SACKs expire within 150 ms. Later timers belong to loss recovery.
        let soon =
            next.filter(|&at| quiet && at.saturating_since(self.now) < Duration::from_millis(150));
        self.now = soon.unwrap_or(self.now).max(self.now) + Duration::from_micros(10);
        !quiet || soon.is_some()
    }

    /// Replaces [`last_burst`](Self::last_burst) with the packets that the sender transmits now.
    pub fn send_burst(&mut self) {
        self.outbound.clear();
        self.sender.output(self.now, &mut self.outbound);
    }

    /// Returns the packets of the sender's last burst. A caller may remove packets to simulate loss.
    pub fn last_burst(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.outbound.segments
    }

    /// Passes the sender's last burst to the receiver. Returns the number of messages that the receiver delivered.
    pub fn deliver_burst(&mut self) -> u32 {
        for packet in &self.outbound.segments {
            self.receiver.handle_packet(self.now, packet);
        }
        self.receiver.drain_events(self.now)
    }

    /// Passes the packets that the receiver transmits now to the sender.
    pub fn exchange_reply(&mut self) {
        self.inbound.clear();
        self.receiver.output(self.now, &mut self.inbound);
        for packet in &self.inbound.segments {
            self.sender.handle_packet(self.now, packet);
        }
        self.sender.drain_events(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sctp_writes_are_placed_and_acknowledged() {
        let mut pairing = SctpPair::new(1480);
        pairing.write(100_000);
        let (mut packets, mut delivered) = (0, 0);
        for _ in 0..100 {
            pairing.send_burst();
            packets += pairing.last_burst().len();
            delivered += pairing.deliver_burst();
            pairing.exchange_reply();
            pairing.now += Duration::from_micros(100);
        }
        assert_eq!(delivered, 1);
        assert!((70..90).contains(&packets), "{packets} packets");
    }
}

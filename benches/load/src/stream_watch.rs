//! Sequence numbers of the good peers' TCP streams, read from observed frames. Attacks and profiles use them to forge
//! frames into the streams.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use etherparse::{NetSlice, SlicedPacket, TcpOptionElement, TransportSlice};

/// Maximum number of recorded streams; further streams are ignored.
const MAX_STREAMS: usize = 1024;

/// The two ends of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Address and port of the observed sender.
    pub source: SocketAddr,
    /// Address and port of the receiver.
    pub destination: SocketAddr,
}

/// Sequence state of a stream after its last observed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    /// SND.NXT of the observed sender.
    pub snd_nxt: u32,
    /// RCV.NXT of the observed sender: its last acknowledgement number.
    pub rcv_nxt: u32,
    /// TSval and TSecr (RFC 7323); `None` for a stream without timestamps.
    pub timestamps: Option<(u32, u32)>,
}

/// Sequence states of the recorded streams, by flow.
#[derive(Debug, Default)]
pub struct StreamWatch(HashMap<Flow, StreamPosition>);

impl StreamWatch {
    /// Records the sequence state from an observed frame.
    pub fn observe(&mut self, frame: &[u8]) {
        let Ok(packet) = SlicedPacket::from_ethernet(frame) else { return };
        let (source, destination): (IpAddr, IpAddr) = match &packet.net {
            Some(NetSlice::Ipv4(ip)) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            Some(NetSlice::Ipv6(ip)) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            _ => return,
        };
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { return };
        let flow = Flow {
            source: (source, tcp.source_port()).into(),
            destination: (destination, tcp.destination_port()).into(),
        };
        if tcp.rst() || tcp.fin() {
            self.0.remove(&flow);
            return;
        }
        if !self.0.contains_key(&flow) && self.0.len() >= MAX_STREAMS {
            return;
        }
        let len = tcp.payload().len() as u32 + u32::from(tcp.syn());
        let next = tcp.sequence_number().wrapping_add(len);
        let timestamps = tcp.options_iterator().find_map(|option| match option {
            Ok(TcpOptionElement::Timestamp(value, echo)) => Some((value, echo)),
            _ => None,
        });
        let acknowledged = tcp.acknowledgment_number();
        self.0.insert(flow, StreamPosition { snd_nxt: next, rcv_nxt: acknowledged, timestamps });
    }

    /// Returns the sequence state of a stream; `None` if it is not recorded.
    pub fn position(&self, flow: &Flow) -> Option<StreamPosition> {
        self.0.get(flow).copied()
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn segment(sequence: u32, payload: &[u8], reset: bool) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 80, 0, 2], [10, 80, 0, 1], 64)
            .tcp(40_000, 7471, sequence, 100)
            .ack(77)
            .options(&[TcpOptionElement::Timestamp(5, 6)])
            .unwrap();
        let mut bytes = Vec::new();
        let builder = if reset { builder.rst() } else { builder };
        builder.write(&mut bytes, payload).unwrap();
        bytes
    }

    #[test]
    fn last_segment_gives_stream_position() {
        let mut watch = StreamWatch::default();
        let flow = Flow {
            source: "10.80.0.2:40000".parse().unwrap(),
            destination: "10.80.0.1:7471".parse().unwrap(),
        };
        assert_eq!(watch.position(&flow), None);
        watch.observe(&segment(u32::MAX, b"abc", false));
        assert_eq!(
            watch.position(&flow),
            Some(StreamPosition { snd_nxt: 2, rcv_nxt: 77, timestamps: Some((5, 6)) })
        );
        watch.observe(b"no frame");
        watch.observe(&segment(2, b"", true));
        assert_eq!(watch.position(&flow), None);
    }
}

//! Configuration of both ends, from the input's first two bytes.

use std::sync::Arc;

use ddp::rdmap;
use ddp::{EndpointPolicy, Qn, QueueConfig, StreamConfig, UlpConfig};
use sim::oracle::StartFrame;
use tcp_lite::endpoint::EndpointConfig;
use tcp_lite::mpa::{self, BadCrcPolicy, Revision};
use tcp_lite::tcp::{self, Options, Segment, SeqNumber, Timestamps};

use super::{HOLD, LOCAL, MSS, REMOTE};

/// First two bytes of the input.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    /// Bit 0: the endpoint is the initiator; 1: RDMAP; 2, 3: MPA revision; 4: markers; 5: no CRC; 6: a bad CRC drops
    /// the segment, so that the peer retransmits it; 7: no last message.
    pub(super) stream_flags: u8,
    /// Bit 0: no timestamps; 1: no SACK; 2: ECN; 3: sequence numbers wrap; 4: the start-up frame is part of the input;
    /// 5: the peer's MSS is 536; 6: pacing; 7: the MPA request is rejected.
    pub(super) tcp_flags: u8,
}

impl Setup {
    pub(super) fn is_initiator(self) -> bool {
        self.stream_flags & 1 != 0
    }

    fn revision(self) -> Revision {
        let all = [Revision::One, Revision::Two, Revision::Zero, Revision::Draft];
        all[usize::from(self.stream_flags >> 2) % 4]
    }

    pub(super) fn markers(self) -> bool {
        self.stream_flags & 0x10 != 0
    }

    pub(super) fn crc(self) -> bool {
        self.stream_flags & 0x20 == 0
    }

    pub(super) fn tcp_flag(self, bit: u8) -> bool {
        self.tcp_flags & 1 << bit != 0
    }

    pub(super) fn endpoint(self) -> EndpointConfig {
        let mut tcp = tcp::Config::default();
        tcp.extensions.timestamps = !self.tcp_flag(0);
        tcp.extensions.sack = !self.tcp_flag(1);
        tcp.extensions.ecn = self.tcp_flag(2);
        tcp.pacing = self.tcp_flag(6);
        tcp.max_ranges = 8;
        tcp.receive_window = 16 * 1024;
        let mpa = mpa::Config {
            revisions: mpa::Revisions::ALL,
            initiate: self.revision(),
            markers: self.markers(),
            crc: self.crc(),
            hold_limit: HOLD as u32 / 2,
            on_bad_crc: if self.stream_flags & 0x40 != 0 {
                BadCrcPolicy::Retransmit
            } else {
                BadCrcPolicy::Error
            },
            ..mpa::Config::default()
        };
        let policy =
            EndpointPolicy { last_message: self.stream_flags & 0x80 == 0, ..Default::default() };
        EndpointConfig { tcp: Arc::new(tcp), mpa, policy }
    }

    pub(super) fn ulp(self) -> UlpConfig {
        if self.stream_flags & 2 != 0 {
            let (recv_buffers, recv_size) = (4, 128);
            let depths = rdmap::Config { ird: 3, ord: 3, ..rdmap::Config::default() };
            return rdmap::Config { recv_buffers, recv_size, max_operations: 8, ..depths }.into();
        }
        let queue = |qn| QueueConfig { qn: Qn(qn), buffers: 4, buffer_size: 128 };
        let queues = vec![queue(0), queue(1), QueueConfig::error_queue()];
        StreamConfig { queues, max_ooo_records: 16, ..StreamConfig::default() }.into()
    }

    /// Returns the start-up frame of a conforming peer: a reply if the endpoint is the initiator, otherwise a request.
    pub(super) fn start_frame(self) -> Vec<u8> {
        let revision = self.revision();
        let private_data = match revision {
            Revision::Two => vec![0, 3, 0, 3],
            _ => Vec::new(),
        };
        StartFrame {
            key: if self.is_initiator() { StartFrame::REPLY } else { StartFrame::REQUEST },
            markers: false,
            crc: self.crc(),
            reject: false,
            // Flag S: the private data begins with enhanced data (RFC 6581 §6).
            reserved: if revision == Revision::Two { 0x10 } else { 0 },
            revision: revision.number(),
            claimed_length: None,
            private_data,
        }
        .bytes()
    }
}

/// Returns the peer's SYN or SYN-ACK. The caller sets the flags.
pub(super) fn syn(setup: Setup, iss: SeqNumber) -> Segment<'static> {
    let timestamps = (!setup.tcp_flag(0)).then_some(Timestamps { val: 1, ecr: 0 });
    Segment {
        src_port: REMOTE,
        dst_port: LOCAL,
        seq: iss,
        window: u16::MAX,
        options: Options {
            mss: Some(if setup.tcp_flag(5) { 536 } else { MSS }),
            window_scale: Some(2),
            sack_permitted: !setup.tcp_flag(1),
            timestamps,
            ..Options::default()
        },
        ..Segment::default()
    }
}

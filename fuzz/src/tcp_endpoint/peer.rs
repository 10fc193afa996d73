//! Segments that the peer sends to the endpoint under test.

use tcp_lite::tcp::{Flags, Segment, Timestamps};

use super::{End, Fields, LOCAL, MSS, REMOTE};

impl End {
    /// Passes a segment of the peer to the endpoint, with at most `len` bytes from offset `from` of the peer's stream.
    /// `ack` is relative to the end of the endpoint's data and FIN. A `window` of 0 selects a window field of 65,535,
    /// any other n selects 16 (n - 1). `rest` contains the options.
    pub(super) fn input_segment(
        &mut self,
        flags: Flags,
        from: i64,
        len: usize,
        ack: i64,
        window: u32,
        mut rest: Fields<'_>,
    ) {
        let options = rest.byte();
        let bytes = self.stream.bytes();
        let start = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
        let end = (start + len.min(usize::from(MSS))).min(bytes.len());
        let payload = bytes[start..end].to_vec();
        let seq = if from < bytes.len() as i64 { from } else { start as i64 };
        let received_len = self.received.len() as i64 + i64::from(self.fin);
        let mut segment = Segment {
            src_port: REMOTE,
            dst_port: LOCAL,
            seq: self.peer_iss.add(1).add(seq as u32),
            ack: self.iss.add(1).add((received_len + ack) as u32),
            flags,
            window: if window == 0 { u16::MAX } else { (window - 1) as u16 * 16 },
            payload: &payload,
            ce: options & 0x08 != 0,
            ..Segment::default()
        };
        let val = self.now.as_nanos() / 1_000_000;
        segment.options.timestamps = match options & 3 {
            2 => None,
            _ if self.setup.tcp_flag(0) => None,
            1 => Some(Timestamps { val: (val as u32).wrapping_sub(1000), ecr: self.stamp }),
            3 => Some(Timestamps { val: val as u32, ecr: self.stamp.wrapping_add(0x7000_0000) }),
            _ => Some(Timestamps { val: val as u32, ecr: self.stamp }),
        };
        if options & 4 != 0 {
            let left =
                self.iss.add(1).add((received_len + i64::from(rest.short().cast_signed())) as u32);
            segment.options.sack.push((left, left.add(u32::from(rest.short()))));
        }
        if options & 0x10 != 0 {
            segment.options.mss = Some(rest.short());
        }
        if from >= 0 && start == from as usize {
            self.most_sent = self.most_sent.max(end + usize::from(flags.has(Flags::FIN)));
            self.sent_to = self.sent_to.max(end);
        }
        if flags.intersects(Flags::SYN.with(Flags::FIN)) {
            self.most_sent = self.most_sent.max(end + 2);
        }
        self.input(segment);
    }
}

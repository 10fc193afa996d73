//! Window computations as pure functions: acceptance of segments, the window to advertise, and silly window avoidance
//! of the sender.

use transport::seq::ExtSeq;

/// Result of the first check of RFC 9293 §3.10.7.4 (table 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acceptance {
    /// A part of the segment is in the window, or the segment is empty and acceptable.
    Acceptable,
    /// Our window is closed, and the segment has data and starts at RCV.NXT. The data is dropped, but the
    /// acknowledgement is processed.
    AckOnly,
    /// Empty segment at the right edge of an open window: accepted unless it is a reset.
    AtEdge,
    /// Outside the window. Answered with an acknowledgement, unless it is a reset.
    Unacceptable,
}

/// Checks a segment of `len` bytes of sequence space at `seq` against the window `rcv_nxt..right_edge`.
pub(crate) fn acceptance(seq: ExtSeq, len: u32, rcv_nxt: ExtSeq, right_edge: ExtSeq) -> Acceptance {
    let inside = |at: ExtSeq| rcv_nxt <= at && at < right_edge;
    let ok = match (len, rcv_nxt == right_edge) {
        (0, true) => seq == rcv_nxt,
        // The table requires SEG.SEQ < RCV.NXT + RCV.WND. A peer that has filled the window sends its ACKs at the right
        // edge. After a loss, two such peers would otherwise drop each other's ACKs for ever.
        (0, false) if seq == right_edge => return Acceptance::AtEdge,
        (0, false) => inside(seq),
        (_, true) if seq == rcv_nxt => return Acceptance::AckOnly,
        (_, true) => false,
        // A segment longer than the window may extend beyond both edges.
        (len, false) => {
            let last = seq.plus(u64::from(len) - 1);
            inside(seq) || inside(last) || (seq < rcv_nxt && last >= right_edge)
        }
    };
    if ok { Acceptance::Acceptable } else { Acceptance::Unacceptable }
}

/// State from which the receiver computes the window to advertise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    pub(crate) rcv_nxt: ExtSeq,
    /// Right edge as last advertised.
    pub(crate) right_edge: ExtSeq,
    /// Bytes to offer, if possible: the lesser of the receiver's target and the upper layer's free space.
    pub(crate) target: u64,
    /// Smallest advance of the right edge, bytes: min(RMSS, half the target).
    pub(crate) step: u64,
    /// Window scale shift, at most 14.
    pub(crate) shift: u8,
}

impl ReceiveWindow {
    /// Returns the right edge to advertise. The edge never moves left (RFC 9293 §3.8.6 SHLD-14). It advances by at
    /// least `step` (§3.8.6.2.2 MUST-39), or by less than one unit of the window scale for rounding.
    pub(crate) fn next_edge(&self) -> ExtSeq {
        let most = u64::from(u16::MAX) << self.shift;
        let wanted = (self.target.min(most) >> self.shift) << self.shift;
        let candidate = self.rcv_nxt.plus(wanted);
        if candidate.since(self.right_edge) >= self.step.max(1) {
            return candidate;
        }
        // The edge is unchanged. A window that is not a multiple of 2^`shift` is rounded up, so that the edge does not
        // move left.
        let unit = 1u64 << self.shift;
        let units = self.right_edge.since(self.rcv_nxt).div_ceil(unit);
        self.rcv_nxt.plus((units * unit).min(most))
    }

    /// Returns the window field for an edge that [`next_edge`](Self::next_edge) returned.
    pub(crate) fn window_field(&self, edge: ExtSeq) -> u16 {
        let units = edge.since(self.rcv_nxt) >> self.shift;
        u16::try_from(units).unwrap_or(u16::MAX)
    }

    /// Returns true if the right edge can advance far enough for a window update: by two segments or half the target,
    /// whichever is less. If the window has no room for one segment, `step` is enough. `rmss`: bytes of a segment.
    /// `target`: the receiver's target, not limited by the upper layer's free space, bytes.
    pub(crate) fn is_update_due(&self, rmss: u64, target: u64) -> bool {
        let gain = self.next_edge().since(self.right_edge);
        let open = self.right_edge.since(self.rcv_nxt);
        gain >= (2 * rmss).min(target / 2).max(1) || (open < rmss && gain >= self.step.max(1))
    }
}

/// Result of the sender's silly window avoidance (RFC 9293 §3.8.6.2.1 MUST-38).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendRoom {
    /// Data may be cut to this many bytes. Rule 1: a full segment fits. Rule 3: nothing is in flight, and the window is
    /// at least half the largest offered window. Rule 4: the override time-out has expired.
    Use(usize),
    /// Data may be sent only if all of it fits this many bytes (rule 2); the source may decline.
    IfWhole(usize),
    /// The usable window is zero.
    Closed,
}

/// Returns the room for a segment of at most `emss` bytes in a window of `usable` bytes. `override_due`: the override
/// time-out has expired.
pub(crate) fn send_room(
    usable: u64,
    emss: usize,
    max_window: u64,
    flight: u64,
    override_due: bool,
) -> SendRoom {
    if usable >= emss as u64 {
        return SendRoom::Use(emss);
    }
    match usable as usize {
        0 => SendRoom::Closed,
        room if override_due || (flight == 0 && usable >= max_window.div_ceil(2)) => {
            SendRoom::Use(room)
        }
        room => SendRoom::IfWhole(room),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use transport::seq::SeqNumber;

    fn at(n: i64) -> ExtSeq {
        let base = ExtSeq::initial(SeqNumber(5));
        if n < 0 { base.minus(n.unsigned_abs()) } else { base.plus(n as u64) }
    }

    // RFC 9293 §3.10.7.4, table 6: all four cases and their boundary values, with a window of 10 bytes or zero. Unlike
    // in the table, an empty segment at the right edge is accepted.
    #[test]
    fn acceptance_follows_rfc_9293_table_6() {
        use Acceptance::*;
        for (seq, len, window, expected) in [
            (0, 0, 0, Acceptable),
            (-1, 0, 0, Unacceptable),
            (1, 0, 0, Unacceptable),
            (0, 0, 10, Acceptable),
            (9, 0, 10, Acceptable),
            (10, 0, 10, AtEdge),
            (11, 0, 10, Unacceptable),
            (-1, 0, 10, Unacceptable),
            (0, 1, 0, AckOnly),
            (1, 1, 0, Unacceptable),
            (-1, 1, 0, Unacceptable),
            (0, 5, 10, Acceptable),
            (9, 5, 10, Acceptable),
            (10, 5, 10, Unacceptable),
            (-5, 5, 10, Unacceptable),
            (-5, 6, 10, Acceptable),
            (-5, 30, 10, Acceptable),
        ] {
            let got = acceptance(at(seq), len, at(0), at(window));
            assert_eq!(got, expected, "seq {seq} len {len} window {window}");
        }
    }

    // RFC 9293 §3.8.6.2.1, rules (1) to (4).
    #[test]
    fn sender_avoids_silly_windows() {
        assert_eq!(send_room(5000, 1448, 5000, 0, false), SendRoom::Use(1448));
        assert_eq!(send_room(1448, 1448, 65535, 9999, false), SendRoom::Use(1448));
        assert_eq!(send_room(700, 1448, 65535, 2000, false), SendRoom::IfWhole(700));
        assert_eq!(send_room(700, 1448, 65535, 0, false), SendRoom::IfWhole(700));
        assert_eq!(send_room(700, 1448, 1400, 0, false), SendRoom::Use(700));
        assert_eq!(send_room(700, 1448, 1400, 1, false), SendRoom::IfWhole(700));
        assert_eq!(send_room(700, 1448, 65535, 0, true), SendRoom::Use(700));
        assert_eq!(send_room(0, 1448, 65535, 0, false), SendRoom::Closed);
    }

    proptest! {
        // RFC 9293 §3.8.6 SHLD-14 holds for any free space of the upper layer, and the window field encodes the right
        // edge exactly.
        #[test]
        fn the_right_edge_never_moves_left(
            shift in 0u8..=14,
            steps in prop::collection::vec((0u64..200_000, 0u64..1 << 31), 1..50),
        ) {
            let mut w = ReceiveWindow {
                rcv_nxt: at(0),
                right_edge: at(0),
                target: 0,
                step: 1460,
                shift,
            };
            for (arrived, room) in steps {
                let open = w.right_edge.since(w.rcv_nxt);
                w.rcv_nxt = w.rcv_nxt.plus(arrived.min(open));
                w.target = room;
                let edge = w.next_edge();
                prop_assert!(edge >= w.right_edge);
                prop_assert_eq!(w.rcv_nxt.plus(u64::from(w.window_field(edge)) << shift), edge);
                w.right_edge = edge;
            }
        }

        // RFC 9293 §3.8.6.2.2 MUST-39: the edge moves by at least one step or, for rounding, by less than one unit.
        #[test]
        fn the_right_edge_moves_in_steps(open in 0u64..60_000, room in 0u64..70_000) {
            let w = ReceiveWindow {
                rcv_nxt: at(0),
                right_edge: at(open as i64),
                target: room,
                step: 1460,
                shift: 2,
            };
            let gain = w.next_edge().since(w.right_edge);
            prop_assert!(!(4..1460).contains(&gain));
            prop_assert_eq!(gain >= 1460, (room & !3) >= open + 1460);
        }
    }
}

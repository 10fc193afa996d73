//! Processing of the peer's SACKs (RFC 9260 §6.2.1, §6.7). A SACK updates the scoreboard first, then loss recovery and
//! the congestion window. A SACK that contradicts the sent data changes only counters.

use base::Instant;
use transport::delivery::Delivery;
use transport::loss_recovery::{Ack, DsackOrigin};
use transport::ranges::Range;
use transport::recorder::Kind;
use transport::seq::{ExtSeq, SeqNumber};
use wire::sctp::{GapBlock, Sack, Tsn, chunk_type};

use super::recovery::SackInfo;
use super::{Sender, single_tsn};
use crate::seam::MessageSource;

/// Maximum duplicate TSNs processed per SACK.
const MAX_DUPLICATES: usize = 32;

/// Number of consecutive SACKs that withdraw an earlier report, after which the peer counts as reneging.
const RENEGING_SACKS: u8 = 3;

/// Effect of a SACK or a SHUTDOWN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckEffect {
    /// Data was newly acknowledged or SACKed. The owner clears its error counter (RFC 9260 §8.1).
    Progress,
    /// No data was newly acknowledged or SACKed.
    NoProgress,
    /// The acknowledgement is older than an acknowledgement received before, and was ignored.
    Stale,
}

/// Reason why a SACK is impossible for the data sent. The SACK was ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadSack {
    /// The SACK acknowledges a TSN that was never sent.
    #[error("acknowledges a TSN that was never sent")]
    Unsent,
    /// A Gap Ack Block ends before it starts, or includes the cumulative TSN or the TSN after it.
    #[error("has an impossible Gap Ack Block")]
    Block,
}

/// Totals of the Gap Ack Blocks of one SACK.
#[derive(Clone, Copy, Default)]
struct Blocks {
    newly_sacked: bool,
    /// Number of TSNs in the blocks; `None` if the blocks are not sorted, overlap or are adjacent.
    covered: Option<u64>,
    /// TSN after the highest block.
    top: ExtSeq,
}

impl Sender {
    /// Processes a SACK. A SACK with a lower cumulative TSN than an earlier SACK has no effect (RFC 9260 §6.2.1 D i).
    ///
    /// # Errors
    /// The SACK acknowledges a TSN that was never sent, or a block is invalid. Only counters are changed.
    pub fn on_sack(
        &mut self,
        now: Instant,
        sack: &Sack<'_>,
        source: &mut impl MessageSource,
    ) -> Result<AckEffect, BadSack> {
        self.stats.sacks += 1;
        let una = self.check_sack(sack.header.cumulative, sack.gaps())?;
        if una < self.board.una {
            self.stats.old_sacks += 1; // RFC 9260 §6.2.1 D i
            return Ok(AckEffect::Stale);
        }
        let mut info = self.new_info(now, una, source.has_data());
        self.apply_sack(&mut info, sack, source);
        self.process_ack(&mut info);
        Ok(ack_effect(info.ack.advanced || info.sack_news))
    }

    /// Processes the cumulative TSN of a SHUTDOWN (RFC 9260 §9.2). Unlike a SACK without Gap Ack Blocks, a SHUTDOWN
    /// does not withdraw earlier reports.
    pub fn on_shutdown(
        &mut self,
        now: Instant,
        cumulative: Tsn,
        source: &mut impl MessageSource,
    ) -> Result<AckEffect, BadSack> {
        let una = self.check_sack(cumulative, core::iter::empty())?;
        if una < self.board.una {
            return Ok(AckEffect::Stale);
        }
        let mut info = self.new_info(now, una, false);
        self.advance(&mut info.ack, source);
        self.recovery.on_delivery(now, &info.ack.delivery);
        self.process_ack(&mut info);
        Ok(ack_effect(info.ack.advanced))
    }

    /// Returns the TSN after the cumulative TSN. Fails if the SACK acknowledges a TSN that was never sent, or a block
    /// is invalid.
    fn check_sack(
        &mut self,
        cumulative: Tsn,
        mut gaps: impl Iterator<Item = GapBlock>,
    ) -> Result<ExtSeq, BadSack> {
        let una = self.board.una.nearest(SeqNumber(cumulative.0)).plus(1);
        let sent = self.board.nxt().since(una);
        let error = if una > self.board.nxt() {
            Some(BadSack::Unsent)
        } else {
            gaps.find_map(|gap| match gap {
                // RFC 9260 §3.3.4: the TSN after the cumulative TSN is missing, so a block starts at offset 2 or later.
                GapBlock { start, end } if start < 2 || end < start => Some(BadSack::Block),
                GapBlock { end, .. } if u64::from(end) > sent => Some(BadSack::Unsent),
                _ => None,
            })
        };
        match error {
            Some(wrong) => {
                self.stats.bad_sacks += 1;
                Err(wrong)
            }
            None => Ok(una),
        }
    }

    #[inline]
    fn new_info(&self, now: Instant, una: ExtSeq, has_data: bool) -> SackInfo {
        let ack = Ack {
            advanced: una > self.board.una,
            flight_before: self.board.pipe(),
            ..Ack::new(now, una, self.recovery.new_delivery(now, None), true)
        };
        let flight = self.board.nxt().since(self.board.una);
        SackInfo { ack, has_data, sack_news: false, flight }
    }

    /// Updates the scoreboard from a SACK.
    fn apply_sack(
        &mut self,
        info: &mut SackInfo,
        sack: &Sack<'_>,
        source: &mut impl MessageSource,
    ) {
        let ack = &mut info.ack;
        let (now, una) = (ack.now, ack.ack);
        self.peer_state.sack_received = true;
        self.peer_state.probes_unanswered = 0;
        if self.probes_window() {
            self.peer_state.progress_at = now;
        }
        self.advance(ack, source);
        let blocks = self.apply_blocks(una, sack.gaps(), &mut ack.delivery);
        info.sack_news = blocks.newly_sacked;
        self.watch_reneging(una, sack, blocks, &mut ack.delivery);
        self.recovery.on_delivery(now, &ack.delivery);
        let duplicated = self.on_duplicates(sack.duplicates());
        (ack.resent_twice, ack.probe_twice) = (duplicated.resent, duplicated.probe);
        ack.bare_duplicate = sack.gaps().len() == 0 && !ack.advanced && info.flight > 0;
        self.set_window(now, sack);
    }

    /// Advances the Cumulative TSN Ack Point, and frees the records below it (RFC 9260 §6.7).
    fn advance(&mut self, ack: &mut Ack, source: &mut impl MessageSource) {
        if ack.advanced {
            let acknowledged = &mut self.stats.bytes_acknowledged;
            self.board.acknowledge(ack.ack, &mut ack.delivery, |message| {
                *acknowledged += u64::from(message.len);
                source.on_acknowledged(message);
            });
            self.recovery.on_progress();
            self.peer_state.probes_unanswered = 0;
            self.peer_state.progress_at = ack.now;
        }
        ack.delivery.highest = ack.delivery.highest.max(self.board.una);
    }

    fn apply_blocks(
        &mut self,
        una: ExtSeq,
        gaps: impl Iterator<Item = GapBlock>,
        delivery: &mut Delivery,
    ) -> Blocks {
        let mut blocks = Blocks { covered: Some(0), top: una, ..Blocks::default() };
        for GapBlock { start, end } in gaps {
            let block =
                Range { start: una.plus(u64::from(start) - 1), end: una.plus(u64::from(end)) };
            blocks.newly_sacked |= self.board.sack(block, delivery);
            let sorted = block.start > blocks.top;
            blocks.covered = blocks.covered.filter(|_| sorted).map(|n| n + block.len());
            blocks.top = blocks.top.max(block.end);
        }
        blocks
    }

    /// Detects reneging (RFC 9260 §6.2.1 D iii): a SACK omits TSNs that an earlier SACK reported. Only TSNs below the
    /// highest block count, because higher blocks may be omitted for lack of room. A single such SACK may also be an
    /// earlier SACK that arrives late. After [`RENEGING_SACKS`] in a row, only the reports of the last SACK are used.
    fn watch_reneging(
        &mut self,
        una: ExtSeq,
        sack: &Sack<'_>,
        blocks: Blocks,
        delivery: &mut Delivery,
    ) {
        let withdrawn = blocks.covered.is_some_and(|n| n < self.board.sacked_below(blocks.top));
        self.reneging = if withdrawn { self.reneging + 1 } else { 0 };
        if self.reneging >= RENEGING_SACKS {
            self.reneging = 0;
            self.stats.reneged += 1;
            self.board.clear_sacks();
            let mut known = *delivery;
            self.apply_blocks(una, sack.gaps(), &mut known);
        }
    }

    /// Processes the Duplicate TSNs of a SACK, which correspond to TCP's D-SACK (RFC 2883): they report chunks that
    /// arrived twice. Only retransmitted TSNs count (RFC 3708 §3 A).
    fn on_duplicates(&mut self, tsns: impl Iterator<Item = Tsn>) -> DsackOrigin {
        let mut found = DsackOrigin::default();
        for tsn in tsns.take(MAX_DUPLICATES) {
            let tsn = self.board.una.nearest(SeqNumber(tsn.0));
            self.stats.duplicates_reported += 1;
            let arrived = self.board.has_arrived(tsn);
            let (una, nxt) = (self.board.una, self.board.nxt());
            let effect = self.recovery.on_d_sack(&self.state, single_tsn(tsn), arrived, una, nxt);
            self.stats.duplicates_ignored += u64::from(effect.is_unexplained());
            found.resent |= effect.resent;
            found.probe |= effect.probe;
        }
        found
    }

    /// Sets the peer's window (RFC 9260 §6.2.1 D ii).
    #[inline]
    fn set_window(&mut self, now: Instant, sack: &Sack<'_>) {
        let (before, a_rwnd) = (self.a_rwnd, sack.header.a_rwnd);
        self.a_rwnd = u64::from(a_rwnd);
        if (before == 0) != (a_rwnd == 0) {
            self.on_window_change(now, sack);
        }
    }

    /// Processes the closing or opening of the peer's window.
    #[cold]
    fn on_window_change(&mut self, now: Instant, sack: &Sack<'_>) {
        let opened = sack.header.a_rwnd > 0;
        let kind = if opened { Kind::WindowOpened } else { Kind::WindowClosed };
        self.note_answer(now, kind, chunk_type::SACK, sack.header.cumulative);
        if !opened {
            return;
        }
        self.probe_due = false;
        if core::mem::take(&mut self.probing) {
            // The peer refused the chunks in flight while its window was closed. They are retransmitted now.
            self.recovery.rtt_mut().reset_backoff();
            self.board.mark_all_lost();
        }
    }
}

fn ack_effect(made: bool) -> AckEffect {
    if made { AckEffect::Progress } else { AckEffect::NoProgress }
}

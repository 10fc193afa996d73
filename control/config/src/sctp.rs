//! Reads `[sctp]`.

use std::time::Duration;

use super::errors::SectionSpan;
use super::keys::section;
use super::reader::Section;
use super::tuning::window_limit;
use super::types::Congestion;
use super::values::*;

const HOUR: Duration = Duration::from_secs(3600);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

section! {
    /// `[sctp]`: SCTP's parameters, for all associations.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SctpSection in "sctp" {
        /// Congestion control algorithm.
        congestion: Congestion = word_rule(Congestion::NAMED), or Congestion::Cubic;
        /// Initial retransmission time-out (RFC 9260 §16, RTO.Initial).
        initial_rto: Duration = duration_rule(ms(1), ms(60_000)), or ms(1000);
        /// Minimum retransmission time-out (RTO.Min).
        min_rto: Duration = duration_rule(ms(1), ms(60_000)), or ms(200);
        /// Maximum retransmission time-out (RTO.Max; RFC 9260 §6.3.1 C7).
        max_rto: Duration = duration_rule(ms(60_000), ms(600_000)), or ms(60_000);
        /// Retransmissions of INIT or COOKIE ECHO before the association fails (Max.Init.Retransmits).
        max_init_retransmits: u32 = integer_rule(0, 100), or 8;
        /// Consecutive retransmissions and unanswered heartbeats before the association fails
        /// (Association.Max.Retrans).
        max_retransmits: u32 = integer_rule(1, 100), or 10;
        /// Idle time between heartbeats, in addition to the RTO (HB.interval).
        heartbeat: Option<Duration> = duration_or_off_rule(ms(100), 24 * HOUR), or Some(ms(30_000));
        /// Maximum delay of a SACK (RFC 9260 §6.2).
        sack_delay: Duration = duration_rule(ms(0), ms(500)), or ms(20);
        /// Lifetime of a state cookie (Valid.Cookie.Life).
        cookie_life: Duration = duration_rule(ms(1000), ms(600_000)), or ms(60_000);
        /// Number of stream pairs per association: the maximum number of simultaneous sessions.
        streams: u16 = integer_rule(1, u16::MAX), or 256;
        /// Initial receive window (a_rwnd), bytes.
        receive_window: u32 = size32_rule(16 << 10, 1 << 30), or 4 << 20;
        /// Maximum receive window, bytes, at least `receive_window`. The window grows up to it while the peer uses more
        /// than half of the window per round trip.
        receive_window_limit: u32 = size32_rule(16 << 10, 1 << 30), or 128 << 20;
        /// Send window, bytes: maximum of the unacknowledged data and of the congestion window. The data are in at most
        /// 65,535 messages (RFC 9260 §3.3.4).
        send_window: u32 = size32_rule(16 << 10, 1 << 30), or 128 << 20;
        /// Pacing: spreads the congestion window over the round trip, on paths with a long enough RTT.
        pacing: bool = boolean_rule(), or true;
        /// Tail loss probes when acknowledgements are overdue (RFC 8985 §7).
        tail_loss_probe: bool = boolean_rule(), or true;
        /// Probing of the path MTU (RFC 8899): detects black holes where routers send no reports, and raises a reduced
        /// size again.
        path_mtu_probing: bool = boolean_rule(), or true;
        /// Minimum path MTU accepted from an ICMP report for IPv4, bytes. A smaller report counts as this value.
        min_path_mtu: u16 = integer_rule(68, 1280), or 576;
        /// Time before packet sizes that the path did not carry are probed again (RFC 8899 §5.1.1).
        path_mtu_raise: Duration = duration_rule(ms(300_000), 24 * HOUR), or ms(600_000);
        /// Time for which an association without sessions stays open for the next session.
        linger: Duration = duration_rule(ms(0), HOUR), or ms(0);
        /// Local UDP port for SCTP in UDP, in addition to SCTP over IP (RFC 6951).
        udp_encapsulation: Option<u16> = port_or_off_rule(), or None;
    }
}

pub(super) fn read_sctp(mut section: Section<'_, '_>) -> (SctpSection, SectionSpan) {
    let mut sctp = SctpSection::read(&mut section);
    sctp.receive_window_limit =
        window_limit(&mut section, sctp.receive_window, sctp.receive_window_limit);
    if sctp.min_rto > sctp.initial_rto {
        section.report("min_rto", "is longer than `initial_rto`: lower it, or raise `initial_rto`");
    }
    if sctp.congestion.exact_ecn() {
        section.report(
            "congestion",
            "works only with ECN, which is not there over SCTP: choose another one",
        );
    }
    (sctp, section.finish())
}

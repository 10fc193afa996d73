//! `[sctp]`.

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
        /// Congestion control.
        congestion: Congestion = word_rule(Congestion::NAMED), or Congestion::Cubic;
        /// First retransmission time-out (RFC 9260 §16, RTO.Initial).
        initial_rto: Duration = duration_rule(ms(1), ms(60_000)), or ms(1000);
        /// Least one (RTO.Min).
        min_rto: Duration = duration_rule(ms(1), ms(60_000)), or ms(200);
        /// Longest one (RTO.Max; RFC 9260 §6.3.1 C7).
        max_rto: Duration = duration_rule(ms(60_000), ms(600_000)), or ms(60_000);
        /// Retransmissions of INIT or COOKIE ECHO before an open fails (Max.Init.Retransmits).
        max_init_retransmits: u32 = integer_rule(0, 100), or 8;
        /// Retransmissions in a row before an association is given up (Association.Max.Retrans).
        max_retransmits: u32 = integer_rule(1, 100), or 10;
        /// Time between heartbeats of an idle association (HB.interval).
        heartbeat: Option<Duration> = duration_or_off_rule(ms(100), 24 * HOUR), or Some(ms(30_000));
        /// Longest delay of a SACK (RFC 9260 §6.2).
        sack_delay: Duration = duration_rule(ms(0), ms(500)), or ms(20);
        /// How long a cookie is good (Valid.Cookie.Life).
        cookie_life: Duration = duration_rule(ms(1000), ms(600_000)), or ms(60_000);
        /// Pairs of streams of an association: so many sessions at one time.
        streams: u16 = integer_rule(1, u16::MAX), or 256;
        /// The a_rwnd that is advertised at first, bytes.
        receive_window: u32 = size32_rule(16 << 10, 1 << 30), or 4 << 20;
        /// It grows by itself up to this size, bytes, while the peer uses more than half of it in a round trip: at least
        /// `receive_window`.
        receive_window_limit: u32 = size32_rule(16 << 10, 1 << 30), or 128 << 20;
        /// Send window, bytes: what is sent and not acknowledged, in at most 65535 messages (RFC 9260 §3.3.4), and the
        /// congestion window.
        send_window: u32 = size32_rule(16 << 10, 1 << 30), or 128 << 20;
        /// Bursts are spread over the round trip where that is long enough.
        pacing: bool = boolean_rule(), or true;
        /// Overdue acknowledgements are asked for (RFC 8985 §7).
        tail_loss_probe: bool = boolean_rule(), or true;
        /// Black holes are noticed and smaller packets made larger again (RFC 8899).
        path_mtu_probing: bool = boolean_rule(), or true;
        /// IPv4 paths are not believed to carry less, bytes.
        min_path_mtu: u16 = integer_rule(68, 1280), or 576;
        /// When a larger path MTU is tried again.
        path_mtu_raise: Duration = duration_rule(ms(300_000), 24 * HOUR), or ms(600_000);
        /// How long an association outlives its last session, for the next one.
        linger: Duration = duration_rule(ms(0), HOUR), or ms(0);
        /// The UDP port at which SCTP is expected in UDP, too (RFC 6951).
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

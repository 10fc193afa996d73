//! `[sctp]`.

use std::time::Duration;

use super::errors::Places;
use super::reader::Section;
use super::types::Congestion;
use super::values::*;

/// `[sctp]`: SCTP's parameters, for all associations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SctpSection {
    /// Congestion control.
    pub congestion: Congestion,
    /// First retransmission time-out (RFC 9260 §16, RTO.Initial).
    pub initial_rto: Duration,
    /// Least one (RTO.Min).
    pub min_rto: Duration,
    /// Longest one (RTO.Max), 60 s or more.
    pub max_rto: Duration,
    /// Retransmissions of INIT or COOKIE ECHO before an open fails (Max.Init.Retransmits).
    pub max_init_retransmits: u32,
    /// Retransmissions in a row before an association is given up (Association.Max.Retrans).
    pub max_retransmits: u32,
    /// Time between heartbeats of an idle association (HB.interval); `None` for none.
    pub heartbeat: Option<Duration>,
    /// Longest delay of a SACK, at most 500 ms (RFC 9260 §6.2).
    pub sack_delay: Duration,
    /// How long a cookie is good (Valid.Cookie.Life).
    pub cookie_life: Duration,
    /// Pairs of streams of an association: so many sessions at one time.
    pub streams: u16,
    /// The a_rwnd that is advertised, octets, 16 KiB to 1 GiB.
    pub receive_window: u32,
    /// Send window, bytes, 16 KiB to 1 GiB: what is sent and not acknowledged, and the congestion window.
    pub send_window: u32,
    /// Bursts are spread over the round trip where that is long enough.
    pub pacing: bool,
    /// Overdue acknowledgements are asked for (RFC 8985 §7).
    pub tail_loss_probe: bool,
    /// Black holes are noticed and smaller packets made larger again (RFC 8899).
    pub path_mtu_probing: bool,
    /// IPv4 paths are not believed to carry less, octets.
    pub min_path_mtu: u16,
    /// When a larger path MTU is tried again, 5 minutes or more.
    pub path_mtu_raise: Duration,
    /// How long an association outlives its last session, for the next one.
    pub linger: Duration,
    /// The UDP port at which SCTP is expected in UDP, too (RFC 6951); `None` for not at all.
    pub udp_encapsulation: Option<u16>,
}

const HOUR: Duration = Duration::from_secs(3600);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(super) fn sctp(mut section: Section<'_, '_>) -> (SctpSection, Places) {
    let window = size32(16 << 10, 1 << 30);
    let sctp = SctpSection {
        congestion: section.or("congestion", Congestion::Cubic, one_of(Congestion::NAMED)),
        initial_rto: section.or("initial_rto", ms(1000), duration(ms(1), ms(60_000))),
        min_rto: section.or("min_rto", ms(200), duration(ms(1), ms(60_000))),
        // RFC 9260 §6.3.1 C7
        max_rto: section.or("max_rto", ms(60_000), duration(ms(60_000), ms(600_000))),
        max_init_retransmits: section.or("max_init_retransmits", 8, int(0, 100)),
        max_retransmits: section.or("max_retransmits", 10, int(1, 100)),
        heartbeat: section.or("heartbeat", Some(ms(30_000)), duration_or_off(ms(100), 24 * HOUR)),
        // RFC 9260 §6.2: 500 ms at most.
        sack_delay: section.or("sack_delay", ms(20), duration(ms(0), ms(500))),
        cookie_life: section.or("cookie_life", ms(60_000), duration(ms(1000), ms(600_000))),
        streams: section.or("streams", 256, int(1, u16::MAX)),
        receive_window: section.or("receive_window", 4 << 20, &window),
        send_window: section.or("send_window", 4 << 20, &window),
        pacing: section.or("pacing", true, boolean),
        tail_loss_probe: section.or("tail_loss_probe", true, boolean),
        path_mtu_probing: section.or("path_mtu_probing", true, boolean),
        min_path_mtu: section.or("min_path_mtu", 576, int(68, 1280)),
        path_mtu_raise: section.or("path_mtu_raise", ms(600_000), duration(ms(300_000), 24 * HOUR)),
        linger: section.or("linger", ms(0), duration(ms(0), HOUR)),
        udp_encapsulation: section.optional("udp_encapsulation", port_or_off).flatten(),
    };
    if sctp.min_rto > sctp.initial_rto {
        section.fail("min_rto", "is longer than `initial_rto`: lower it, or raise `initial_rto`");
    }
    if sctp.congestion.exact_ecn() {
        section.fail(
            "congestion",
            "works only with ECN, which is not there over SCTP: choose another one",
        );
    }
    (sctp, section.finish())
}

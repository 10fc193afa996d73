//! Load profiles: the frames of each profile, and the counters that must account for them.

use serde::{Deserialize, Serialize};

use crate::frames::Profile as FrameKind;

/// Expected outcome of the live stream into which a profile forges frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimOutcome {
    /// The profile has no live stream.
    None,
    /// The stream stays open.
    Survives,
    /// The stream ends, and the reason in its event contains this text.
    Closes(&'static str),
}

/// A load profile: frames, and their expected outcome.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Kind of the frames. The command file in `scripts/load.d` has the same name.
    pub frames: FrameKind,
    /// Description, for display.
    pub description: &'static str,
    /// True if the profile is also run from a single source.
    pub one_source: bool,
    /// Expected outcome of the live stream.
    pub victim: VictimOutcome,
    /// Expected counters, by the names of [`Account::became`](crate::account::Account::became). They must account for
    /// at least 95 % of the frames. Empty for profiles with a live stream: there only the stream's outcome is checked.
    pub expected_counters: &'static [&'static str],
}

/// All profiles, in the order in which a run executes them.
pub const PROFILES: &[Profile] = &[
    profile_of_many_sources(
        FrameKind::Line64,
        "UDP and TCP to closed ports, 64 bytes",
        LINE_COUNTERS,
    ),
    profile_of_many_sources(
        FrameKind::LineImix,
        "UDP and TCP to closed ports, 64, 594 and 1518 bytes, 7 : 4 : 1",
        LINE_COUNTERS,
    ),
    profile_of_many_sources(
        FrameKind::Line1518,
        "UDP and TCP to closed ports, 1518 bytes",
        LINE_COUNTERS,
    ),
    profile_of_one_and_many_sources(FrameKind::SynFlood, "SYNs to a listener", SYN_COUNTERS),
    profile_of_one_and_many_sources(
        FrameKind::UnknownFlow,
        "data segments of no stream",
        UNMATCHED_COUNTERS,
    ),
    profile_of_stream(
        FrameKind::InWindow,
        "segments with a stream's addresses and any sequence number",
        VictimOutcome::Survives,
    ),
    profile_of_stream(
        FrameKind::InWindowChecksum,
        "a stream's next bytes, wrong TCP checksum",
        VictimOutcome::Survives,
    ),
    profile_of_stream(
        FrameKind::InWindowCrc,
        "a stream's next FPDU, wrong CRC",
        VictimOutcome::Closes("crc"),
    ),
    profile_of_stream(
        FrameKind::InWindowMarker,
        "a stream's next FPDU, wrong marker",
        VictimOutcome::Closes("marker"),
    ),
    profile_of_one_and_many_sources(
        FrameKind::AckFlood,
        "acknowledgements of no stream",
        UNMATCHED_COUNTERS,
    ),
    profile_of_one_and_many_sources(FrameKind::RstFlood, "resets of no stream", UNMATCHED_COUNTERS),
    profile_of_one_and_many_sources(FrameKind::FinFlood, "FINs of no stream", UNMATCHED_COUNTERS),
    profile_of_one_and_many_sources(
        FrameKind::IcmpFlood,
        "echo requests, and errors about unknown flows",
        ICMP_COUNTERS,
    ),
    profile_of_one_and_many_sources(
        FrameKind::ArpFlood,
        "ARP requests, and unsolicited replies",
        NEIGHBOUR_COUNTERS,
    ),
    profile_of_one_and_many_sources(
        FrameKind::NdFlood,
        "neighbour solicitations, and unsolicited advertisements",
        NEIGHBOUR_COUNTERS,
    ),
    profile_of_one_and_many_sources(
        FrameKind::FragmentFlood,
        "first and middle fragments of incomplete packets",
        FRAGMENT_COUNTERS,
    ),
    profile_of_one_and_many_sources(
        FrameKind::InitFlood,
        "SCTP INITs to a listener",
        INIT_COUNTERS,
    ),
    profile_of_many_sources(
        FrameKind::PcapReplay,
        "the traffic of a client on soft iWARP, repeated as new flows",
        REPLAY_COUNTERS,
    ),
];

const LINE_COUNTERS: &[&str] =
    &["drop:net_ip_protocol", "drop:net_no_stream", "drop:net_no_listener"];
const SYN_COUNTERS: &[&str] = &[
    "cookies_sent",
    "segments",
    "drop:net_overload",
    "drop:net_tx_full",
    "drop:net_backlog",
    "drop:net_peer_limit",
    "drop:net_peer_streams",
    // A repeated SYN of a half-open connection.
    "drop:tcp_unexpected_syn",
];
const UNMATCHED_COUNTERS: &[&str] = &["drop:net_no_stream", "drop:net_overload"];
const ICMP_COUNTERS: &[&str] = &[
    "echo_replies",
    "icmp_errors",
    "drop:net_rate_limited",
    "drop:net_icmp",
    "drop:net_icmp_ignored",
    "drop:net_icmp_size",
    "drop:net_icmp_no_news",
    "drop:net_icmp_not_in_flight",
    "drop:net_icmp_no_stream",
    "drop:net_icmp_not_believed",
    "drop:net_icmp_rate_limited",
];
const NEIGHBOUR_COUNTERS: &[&str] = &[
    "neighbour_claims",
    "drop:net_neighbour_ignored",
    "drop:net_neighbour_table_full",
    "drop:net_rate_limited",
];
const FRAGMENT_COUNTERS: &[&str] = &[
    "fragments",
    // Fragments of UDP datagrams.
    "drop:net_fragment",
    "drop:net_fragment_limit",
    "drop:net_fragment_duplicate",
    "drop:net_fragment_overlap",
    "drop:net_overload",
];
// `net_rate_limited`: above the rate limit of INIT ACKs. `sctp_no_room`: the transmit ring is full.
const INIT_COUNTERS: &[&str] =
    &["sctp_cookies_sent", "drop:sctp_no_room", "drop:net_rate_limited", "drop:net_overload"];
const REPLAY_COUNTERS: &[&str] = &[
    "segments",
    "cookies_sent",
    "drop:net_no_stream",
    "drop:net_no_listener",
    "drop:net_overload",
    "drop:net_tx_full",
    // Segments of connections that the replayed SYNs opened.
    "drop:tcp_bad_ack",
    "drop:tcp_out_of_window",
    "drop:tcp_unexpected_syn",
];

/// Returns a profile that is run twice: from many sources, and from a single one.
const fn profile_of_one_and_many_sources(
    frames: FrameKind,
    what: &'static str,
    counters: &'static [&'static str],
) -> Profile {
    Profile {
        frames,
        description: what,
        one_source: true,
        victim: VictimOutcome::None,
        expected_counters: counters,
    }
}

/// Returns a profile that is run from many sources only.
const fn profile_of_many_sources(
    frames: FrameKind,
    what: &'static str,
    counters: &'static [&'static str],
) -> Profile {
    Profile { one_source: false, ..profile_of_one_and_many_sources(frames, what, counters) }
}

/// Returns a profile whose frames are forged into a live stream.
const fn profile_of_stream(
    frames: FrameKind,
    what: &'static str,
    victim: VictimOutcome,
) -> Profile {
    Profile { frames, description: what, one_source: false, victim, expected_counters: &[] }
}

/// A load profile with one source or many sources.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Profile that the case runs.
    pub profile: &'static Profile,
    /// True if all frames come from one address.
    pub one_source: bool,
}

/// Identifier of a case in results.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CaseName {
    /// Name of the profile.
    pub profile: String,
    /// True if all frames come from one address.
    pub one_source: bool,
}

impl Case {
    /// Returns the case's identifier.
    pub fn name(&self) -> CaseName {
        CaseName { profile: self.profile.frames.name(), one_source: self.one_source }
    }
}

/// Returns the cases of the named profiles, or of all. An unknown name is an error that lists the known names.
pub fn cases(names: &[String]) -> anyhow::Result<Vec<Case>> {
    let known: Vec<String> = PROFILES.iter().map(|profile| profile.frames.name()).collect();
    for name in names {
        anyhow::ensure!(
            known.contains(name),
            "there is no profile {name}; there are {}",
            known.join(", ")
        );
    }
    let chosen = |profile: &&Profile| names.is_empty() || names.contains(&profile.frames.name());
    Ok(PROFILES
        .iter()
        .filter(chosen)
        .flat_map(|profile| {
            let both: &[bool] = if profile.one_source { &[false, true] } else { &[false] };
            both.iter().map(move |&one_source| Case { profile, one_source })
        })
        .collect())
}

/// Returns selected cases with many sources, one for each path through the appliance.
pub fn short_cases() -> Vec<Case> {
    const SHORT: [FrameKind; 5] = [
        FrameKind::Line64,
        FrameKind::SynFlood,
        FrameKind::InWindowCrc,
        FrameKind::FragmentFlood,
        FrameKind::InitFlood,
    ];
    let chosen = PROFILES.iter().filter(|profile| SHORT.contains(&profile.frames));
    chosen.map(|profile| Case { profile, one_source: false }).collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_frame_profile_has_a_case_and_unknown_name_is_refused() {
        let all = cases(&[]).unwrap();
        for &frames in FrameKind::value_variants() {
            assert!(all.iter().any(|case| case.profile.frames == frames), "{frames:?}");
        }
        assert_eq!(cases(&["syn-flood".into()]).unwrap().len(), 2);
        let error = cases(&["syn".into()]).unwrap_err().to_string();
        assert!(error.contains("no profile syn; there are line-64, "), "{error}");
    }

    #[test]
    fn a_profile_with_a_stream_has_a_victim() {
        for profile in PROFILES {
            assert_eq!(profile.frames.needs_stream(), profile.victim != VictimOutcome::None);
        }
    }
}

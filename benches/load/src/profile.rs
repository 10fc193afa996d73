//! The profiles: their frames and the counters under which those must end.

use serde::{Deserialize, Serialize};

use crate::frames::Profile as F;

/// Live stream into which a profile forges frames, with its expected outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// No stream.
    None,
    /// The stream survives.
    Stays,
    /// The stream ends with this MPA error code in its event.
    Ends(&'static str),
}

/// A profile.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Kind of its frames, whose name is also its file in `scripts/load.d`.
    pub frames: F,
    /// Description, for display.
    pub what: &'static str,
    /// True if the profile is also run from a single source.
    pub one_source: bool,
    /// The stream of the frames.
    pub victim: Victim,
    /// Expected counters: most of the frames must end under these, by the names of
    /// [`Account::became`](crate::account::Account::became).
    pub ends: &'static [&'static str],
}

/// All profiles, in the order of a run.
pub const PROFILES: &[Profile] = &[
    varied(F::Line64, "UDP and TCP to ports of nobody, 64 bytes", LINE),
    varied(F::LineImix, "the same of 64, 594 and 1518 bytes, 7 : 4 : 1", LINE),
    varied(F::Line1518, "the same of 1518 bytes", LINE),
    plain(F::SynFlood, "SYNs to a listener", SYN),
    plain(F::UnknownFlow, "data segments of no stream", NOBODY),
    victim(F::InWindow, "a stream's addresses, any sequence number", Victim::Stays),
    victim(F::InWindowChecksum, "a stream's next bytes, wrong TCP checksum", Victim::Stays),
    victim(F::InWindowCrc, "a stream's next FPDU, wrong CRC", Victim::Ends("crc")),
    victim(F::InWindowMarker, "a stream's next FPDU, wrong marker", Victim::Ends("marker")),
    plain(F::AckFlood, "acknowledgements of no stream", NOBODY),
    plain(F::RstFlood, "resets of no stream", NOBODY),
    plain(F::FinFlood, "FINs of no stream", NOBODY),
    plain(F::IcmpFlood, "echo requests, and errors about flows that are not there", ICMP),
    plain(F::ArpFlood, "ARP requests, and replies that nobody asked for", NEIGHBOURS),
    plain(F::NdFlood, "the same of neighbour discovery", NEIGHBOURS),
    plain(F::FragmentFlood, "first and middle fragments of which the rest never comes", FRAGMENTS),
    plain(F::InitFlood, "SCTP INITs to a listener", INITS),
    varied(F::PcapReplay, "what a client on soft iWARP sent, as ever new flows", REPLAY),
];

const LINE: &[&str] = &["drop:net_ip_protocol", "drop:net_no_stream", "drop:net_no_listener"];
const SYN: &[&str] = &[
    "cookies_sent",
    "segments",
    "drop:net_overload",
    "drop:net_tx_full",
    "drop:net_backlog",
    "drop:net_peer_limit",
    "drop:net_peer_streams",
    // Repeated SYN for a half-open connection.
    "drop:tcp_unexpected_syn",
];
const NOBODY: &[&str] = &["drop:net_no_stream", "drop:net_overload"];
const ICMP: &[&str] = &[
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
const NEIGHBOURS: &[&str] = &[
    "neighbour_claims",
    "drop:net_neighbour_ignored",
    "drop:net_neighbour_table_full",
    "drop:net_rate_limited",
];
const FRAGMENTS: &[&str] = &[
    "fragments",
    // UDP fragments.
    "drop:net_fragment",
    "drop:net_fragment_limit",
    "drop:net_fragment_duplicate",
    "drop:net_fragment_overlap",
    "drop:net_overload",
];
// `net_rate_limited`: above the rate limit of INIT ACKs. `sctp_no_room`: the transmit ring is full.
const INITS: &[&str] =
    &["sctp_cookies_sent", "drop:sctp_no_room", "drop:net_rate_limited", "drop:net_overload"];
const REPLAY: &[&str] = &[
    "segments",
    "cookies_sent",
    "drop:net_no_stream",
    "drop:net_no_listener",
    "drop:net_overload",
    "drop:net_tx_full",
    // Segments for connections that the SYNs began.
    "drop:tcp_bad_ack",
    "drop:tcp_out_of_window",
    "drop:tcp_unexpected_syn",
];

const fn plain(frames: F, what: &'static str, ends: &'static [&'static str]) -> Profile {
    Profile { frames, what, one_source: true, victim: Victim::None, ends }
}

/// Returns a profile that is run from many sources only.
const fn varied(frames: F, what: &'static str, ends: &'static [&'static str]) -> Profile {
    Profile { one_source: false, ..plain(frames, what, ends) }
}

const fn victim(frames: F, what: &'static str, victim: Victim) -> Profile {
    Profile { frames, what, one_source: false, victim, ends: &[] }
}

/// A profile with one source or many.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The profile.
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

/// Returns the cases of the named profiles, or of all. An unknown name is an error that lists the
/// known ones.
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

/// Returns a selection from many sources: one case for each path through the appliance.
pub fn short() -> Vec<Case> {
    const SHORT: [F; 5] = [F::Line64, F::SynFlood, F::InWindowCrc, F::FragmentFlood, F::InitFlood];
    let chosen = PROFILES.iter().filter(|profile| SHORT.contains(&profile.frames));
    chosen.map(|profile| Case { profile, one_source: false }).collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_profile_of_frames_is_run_and_an_unknown_name_is_refused() {
        let all = cases(&[]).unwrap();
        for &frames in F::value_variants() {
            assert!(all.iter().any(|case| case.profile.frames == frames), "{frames:?}");
        }
        assert_eq!(cases(&["syn-flood".into()]).unwrap().len(), 2);
        let error = cases(&["syn".into()]).unwrap_err().to_string();
        assert!(error.contains("no profile syn; there are line-64, "), "{error}");
    }

    #[test]
    fn a_profile_with_a_stream_has_a_victim() {
        for profile in PROFILES {
            assert_eq!(profile.frames.needs_stream(), profile.victim != Victim::None);
        }
    }
}

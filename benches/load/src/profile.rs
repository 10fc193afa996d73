//! The profiles: what is sent, and what is expected to become of it.

use serde::{Deserialize, Serialize};

/// A stream that frames are made to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// None.
    None,
    /// A stream that stays.
    Stays,
    /// A stream that ends with this error code of MPA, as its event says.
    Ends(&'static str),
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Its name, and its file's in `scripts/load.d`.
    pub name: &'static str,
    /// In words.
    pub what: &'static str,
    /// It is also sent from a single source.
    pub one_source: bool,
    /// The stream that the frames belong to.
    pub victim: Victim,
    /// Counters under which most of its frames must end, as [`Account::became`](crate::account::Account::became) names
    /// them.
    pub ends: &'static [&'static str],
}

/// All of them.
pub const PROFILES: &[Profile] = &[
    Profile { one_source: false, ..plain("line-64", "UDP and TCP of nobody, 64 bytes", LINE) },
    Profile { one_source: false, ..plain("line-imix", "the same, 64, 570 and 1518 bytes by 7, 4 and 1", LINE) },
    Profile { one_source: false, ..plain("line-1518", "the same, 1518 bytes", LINE) },
    plain("syn-flood", "SYNs to a listener", &["cookies_sent", "segments", "drop:backlog", "drop:peer_limit", "drop:busy"]),
    plain("unknown-flow", "data segments of no stream", &["drop:no_stream", "drop:busy"]),
    victim("in-window", "a stream's addresses, any sequence number", Victim::Stays),
    victim("in-window-checksum", "a stream's next bytes, wrong TCP checksum", Victim::Stays),
    victim("in-window-crc", "a stream's next FPDU, wrong CRC", Victim::Ends("crc")),
    victim("in-window-marker", "a stream's next FPDU, wrong marker", Victim::Ends("marker")),
    plain("ack-flood", "acknowledgements of no stream", &["drop:no_stream", "drop:busy"]),
    plain("rst-flood", "resets of no stream", &["drop:no_stream", "drop:busy"]),
    plain("fin-flood", "FINs of no stream", &["drop:no_stream", "drop:busy"]),
    plain("icmp-flood", "echo requests, and errors about flows that are not", ICMP),
    plain("arp-flood", "ARP requests and replies", NEIGHBOURS),
    plain("nd-flood", "neighbour solicitations and advertisements", NEIGHBOURS),
    plain("fragment-flood", "first and later fragments of packets that never end", FRAGMENTS),
    plain("init-flood", "SCTP INITs to a listener", &["sctp_cookies_sent", "drop:rate_limited", "drop:busy"]),
    Profile { one_source: false, ..plain("pcap-replay", "what a client on soft iWARP once sent", REPLAY) },
];

const LINE: &[&str] = &["drop:ip_protocol", "drop:no_stream", "drop:not_our_address", "drop:busy"];
const ICMP: &[&str] =
    &["echo_replies", "drop:rate_limited", "drop:icmp_no_stream", "drop:icmp_not_believed", "drop:icmp_rate_limited", "icmp_errors"];
const NEIGHBOURS: &[&str] =
    &["neighbour_claims", "drop:neighbour_ignored", "drop:neighbour_table_full", "drop:address_conflict", "drop:rate_limited"];
const FRAGMENTS: &[&str] = &["fragments", "drop:fragment_limit", "drop:fragment_duplicate", "drop:fragment_overlap", "drop:fragment_bad"];
const REPLAY: &[&str] = &["segments", "cookies_sent", "drop:no_stream", "drop:out_of_window", "drop:no_listener"];
const WINDOW: &[&str] = &[];

const fn plain(name: &'static str, what: &'static str, ends: &'static [&'static str]) -> Profile {
    Profile { name, what, one_source: true, victim: Victim::None, ends }
}

const fn victim(name: &'static str, what: &'static str, victim: Victim) -> Profile {
    Profile { name, what, one_source: false, victim, ends: WINDOW }
}

/// A profile and its sources.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Which.
    pub profile: &'static Profile,
    /// All frames come from one address.
    pub one_source: bool,
}

/// What a case is called in results: its profile, and how many sources it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CaseName {
    /// The profile's name.
    pub profile: String,
    /// All frames come from one address.
    pub one_source: bool,
}

impl Case {
    /// Its name.
    pub fn name(&self) -> CaseName {
        CaseName { profile: self.profile.name.into(), one_source: self.one_source }
    }
}

/// The cases of the profiles named, or of all; an unknown name is an error that lists them.
pub fn cases(names: &[String]) -> anyhow::Result<Vec<Case>> {
    for name in names {
        let known: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
        anyhow::ensure!(
            known.contains(&name.as_str()),
            "there is no profile {name}; there are {}",
            known.join(", ")
        );
    }
    let chosen = |profile: &&Profile| names.is_empty() || names.iter().any(|name| name == profile.name);
    Ok(PROFILES
        .iter()
        .filter(chosen)
        .flat_map(|profile| {
            let both: &[bool] = if profile.one_source { &[false, true] } else { &[false] };
            both.iter().map(move |&one_source| Case { profile, one_source })
        })
        .collect())
}

//! Reads `allow` and `deny` of `[[interface]]` and `[[listener]]`.

use ipnet::IpNet;

use super::reader::Section;
use super::types::{MAX_PEERS, PeerSection};
use super::values::parse_network;

/// Reads `allow` and `deny` of a section.
pub(super) fn read_peers(section: &mut Section<'_, '_>) -> PeerSection {
    PeerSection { allow: read_prefixes(section, "allow"), deny: read_prefixes(section, "deny") }
}

fn read_prefixes(section: &mut Section<'_, '_>, key: &'static str) -> Vec<IpNet> {
    let prefixes = section.list(key, parse_network);
    if prefixes.len() > MAX_PEERS {
        let (number, most) = (prefixes.len(), MAX_PEERS);
        section
            .report(key, format!("has {number} entries, more than {most}: use shorter prefixes"));
    }
    let mut sorted = prefixes.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        section.report(key, format!("has {} twice: remove one", twice[0]));
    }
    prefixes
}

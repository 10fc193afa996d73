//! `allow` and `deny` of `[[interface]]` and `[[listener]]`.

use ipnet::IpNet;

use super::reader::Section;
use super::types::{MAX_PEERS, PeerSection};
use super::values::network;

/// Reads both lists of a section.
pub(super) fn peers(section: &mut Section<'_, '_>) -> PeerSection {
    PeerSection { allow: list(section, "allow"), deny: list(section, "deny") }
}

fn list(section: &mut Section<'_, '_>, key: &'static str) -> Vec<IpNet> {
    let prefixes = section.list(key, |value: &toml::de::DeValue<'_>| {
        let net = network(value)?;
        check_mapped(net)?;
        Ok(net)
    });
    if prefixes.len() > MAX_PEERS {
        let (number, most) = (prefixes.len(), MAX_PEERS);
        section.fail(key, format!("has {number} entries, more than {most}: use shorter prefixes"));
    }
    let mut sorted = prefixes.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        section.fail(key, format!("has {} twice: remove one", twice[0]));
    }
    prefixes
}

/// No packet has an IPv4-mapped source: such an entry is meant for IPv4 (RFC 4291 §2.5.5.2).
fn check_mapped(net: IpNet) -> Result<(), String> {
    let IpNet::V6(v6) = net else { return Ok(()) };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(v4), Some(len)) => Err(format!("is {net}, an IPv4-mapped prefix: write {v4}/{len}")),
        _ => Ok(()),
    }
}

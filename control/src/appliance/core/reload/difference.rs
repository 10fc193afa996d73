//! Compares the running configuration with a new configuration, for a reload.

use config::{self, Config, InterfaceSection, ListenerSection, PeerSection, RegionSection};

/// Differences between two configurations: changes that a reload applies, and changes that need a restart.
#[derive(Debug, Default, PartialEq)]
pub(in crate::appliance) struct Difference {
    pub regions_added: Vec<RegionSection>,
    pub regions_removed: Vec<String>,
    pub listeners_added: Vec<ListenerSection>,
    pub listeners_removed: Vec<String>,
    pub listeners_changed: Vec<ListenerSection>,
    /// True if the value of a key that a reload applies differs, in `[limits]` or another section.
    pub limits_changed: bool,
    /// Sections and keys that need a restart, one sentence each.
    pub needs_restart: Vec<String>,
}

/// Returns the differences between `old`, the running configuration, and `new`, the file.
pub(in crate::appliance) fn difference(old: &Config, new: &Config) -> Difference {
    let mut found = Difference::default();
    for region in &new.regions {
        match old.regions.iter().find(|r| r.name == region.name) {
            None => found.regions_added.push(region.clone()),
            Some(was) if was != region => found.needs_restart.push(format!(
                "region `{}` is defined differently: remove it, reload, and add it again, or restart",
                region.name
            )),
            Some(_) => {}
        }
    }
    let is_removed = |name: &String| !new.regions.iter().any(|r| r.name == *name);
    found.regions_removed = old.regions.iter().map(|r| r.name.clone()).filter(is_removed).collect();
    for listener in &new.listeners {
        match old.listeners.iter().find(|l| l.name == listener.name) {
            None => found.listeners_added.push(listener.clone()),
            Some(was) if was != listener => found.listeners_changed.push(listener.clone()),
            Some(_) => {}
        }
    }
    let is_removed = |name: &String| !new.listeners.iter().any(|l| l.name == *name);
    found.listeners_removed =
        old.listeners.iter().map(|l| l.name.clone()).filter(is_removed).collect();
    found.limits_changed = !old.differences(new, true).is_empty();
    found.needs_restart.extend(needs_restart(old, new));
    found
}

/// Returns one sentence for each section or key that differs and needs a restart.
fn needs_restart(old: &Config, new: &Config) -> Vec<String> {
    let by_key = old.differences(new, false);
    let differs = |section: &str| by_key.iter().any(|(name, _)| *name == section);
    let sections = [
        ("name".to_owned(), old.name != new.name),
        (section_label("memory"), differs("memory")),
        ("[workers]".to_owned(), old.workers != new.workers),
        ("[[port]]".to_owned(), old.ports != new.ports),
        ("[[interface]] other than allow and deny".to_owned(), interfaces_differ(old, new)),
        (section_label("tcp"), differs("tcp")),
        (section_label("mpa"), differs("mpa")),
        (section_label("sctp"), differs("sctp")),
        ("[ipsec]".to_owned(), old.ipsec != new.ipsec),
        (section_label("limits"), differs("limits")),
        (section_label("programs"), differs("programs")),
        (section_label("files"), differs("files")),
        (section_label("management"), differs("management")),
    ];
    let changed = sections.into_iter().filter(|(_, changed)| *changed);
    changed.map(|(name, _)| format!("{name} has changed: in force after a restart")).collect()
}

/// Returns true if interfaces differ in keys other than `allow` and `deny`.
fn interfaces_differ(old: &Config, new: &Config) -> bool {
    let without_peers = |interface: &InterfaceSection| InterfaceSection {
        peers: PeerSection::default(),
        ..interface.clone()
    };
    !old.interfaces.iter().map(without_peers).eq(new.interfaces.iter().map(without_peers))
}

/// Returns a label for the part of a section that needs a restart: the section's name, without the keys that a reload
/// applies. Example: `[limits] other than streams, regions and region_memory`.
fn section_label(section: &str) -> String {
    let keys = config::keys();
    let applied = keys.iter().filter(|key| key.section == section && key.reload);
    let names: Vec<&str> = applied.map(|key| key.name).collect();
    match names.as_slice() {
        [] => format!("[{section}]"),
        [one] => format!("[{section}] other than {one}"),
        [first @ .., last] => {
            format!("[{section}] other than {} and {last}", first.join(", "))
        }
    }
}

//! Regions as `[[region]]` sections, for the running configuration and reloads.

use config::RegionSection;
use ddp::PdId;

use super::Regions;
use super::region::Region;
use crate::appliance::env::Origin;

/// A live region as configured.
pub(in crate::appliance) struct DeclaredRegion<'a> {
    pub(in crate::appliance) section: &'a RegionSection,
    pub(in crate::appliance) origin: Origin,
    /// True if peers have the full access of the section.
    pub(in crate::appliance) has_full_access: bool,
}

impl Regions {
    /// Returns all live regions.
    pub(in crate::appliance) fn declared(&self) -> impl Iterator<Item = DeclaredRegion<'_>> {
        let live = self.regions.values().filter(|region| region.is_live());
        live.map(|region| DeclaredRegion {
            section: &region.section,
            origin: region.origin,
            has_full_access: region.access == Region::max_access(&region.section),
        })
    }

    /// Returns the section with the current access of peers.
    pub(in crate::appliance) fn running_section(&self, section: &RegionSection) -> RegionSection {
        let Some(region) = self.regions.get(&section.name) else { return section.clone() };
        let access = region.access;
        let (write, read) = (access.remote_write(), access.remote_read());
        RegionSection {
            remote_write: write,
            remote_read: read,
            remote_atomic: access.atomic(),
            // The key applies only if peers may both write and read.
            clear_between_peers: section.clear_between_peers && write && read,
            ..section.clone()
        }
    }

    /// Returns the protection domain of a live region. `None` for other names.
    pub(in crate::appliance) fn pd_of(&self, name: &str) -> Option<PdId> {
        self.regions.get(name).filter(|region| region.is_live()).map(|region| region.pd)
    }
}

//! Regions as sections of the configuration.

use config::RegionSection;
use ddp::PdId;

use super::Regions;
use super::region::Region;
use crate::appliance::env::Origin;

impl Regions {
    /// Returns the sections of all live regions, with their origin, and true if peers have the section's full access.
    pub(in crate::appliance) fn declared(
        &self,
    ) -> impl Iterator<Item = (&RegionSection, Origin, bool)> {
        let live = self.regions.values().filter(|region| region.is_live());
        live.map(|region| {
            let whole = region.access == Region::max_access(&region.section);
            (&region.section, region.origin, whole)
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

    /// Returns the protection domain of a live region.
    pub(in crate::appliance) fn pd_of(&self, name: &str) -> Option<PdId> {
        self.regions.get(name).filter(|region| region.is_live()).map(|region| region.pd)
    }
}

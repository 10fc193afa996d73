//! Regions as a configuration has them.

use ddp::PdId;

use super::Regions;
use super::region::Region;
use crate::appliance::env::Origin;
use config::RegionSection;

impl Regions {
    /// Sections, who declared them, and whether peers have all the rights that they name.
    pub(in crate::appliance) fn declared(
        &self,
    ) -> impl Iterator<Item = (&RegionSection, Origin, bool)> {
        let live = self.regions.values().filter(|region| region.is_live());
        live.map(|region| {
            let whole = region.access == Region::registered(&region.section);
            (&region.section, region.origin, whole)
        })
    }

    /// A section with the rights that peers have now.
    pub(in crate::appliance) fn as_it_runs(&self, section: &RegionSection) -> RegionSection {
        let Some(region) = self.regions.get(&section.name) else { return section.clone() };
        let access = region.access;
        let (write, read) = (access.remote_write(), access.remote_read());
        RegionSection {
            remote_write: write,
            remote_read: read,
            remote_atomic: access.atomic(),
            // It means something only where peers write and read.
            clear_between_peers: section.clear_between_peers && write && read,
            ..section.clone()
        }
    }

    /// The domain of a region, if there is one.
    pub(in crate::appliance) fn pd_of(&self, name: &str) -> Option<PdId> {
        self.regions.get(name).filter(|region| region.is_live()).map(|region| region.pd)
    }
}

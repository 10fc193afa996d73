//! Descriptions of regions for the API: one, all, a page.

use std::time::Instant;

use api::{ApiError, NamePage, RegionInfo};

use super::region::preparing_info;
use super::{Preparing, Regions};
use crate::appliance::env::{Env, Origin};

impl Regions {
    /// Describes a region for the API. `listeners` returns the names of the listeners that list it.
    pub(in crate::appliance) fn info(
        &self,
        name: &str,
        now: Instant,
        listeners: impl Fn(&str) -> Vec<String>,
    ) -> Result<RegionInfo, ApiError> {
        let region = self.regions.get(name);
        let region =
            region.ok_or_else(|| ApiError::not_found(format!("there is no region `{name}`")))?;
        Ok(region.info(now, listeners(name)))
    }

    /// Describes all regions, like [`info`](Self::info).
    pub(in crate::appliance) fn infos(
        &self,
        now: Instant,
        listeners: impl Fn(&str) -> Vec<String>,
    ) -> Vec<RegionInfo> {
        self.regions.iter().map(|(name, region)| region.info(now, listeners(name))).collect()
    }

    /// Describes a page of the regions, like [`info`](Self::info).
    pub(in crate::appliance) fn page(
        &self,
        page: &NamePage,
        now: Instant,
        listeners: impl Fn(&str) -> Vec<String>,
    ) -> Vec<RegionInfo> {
        let regions = self.regions.after(page.after.as_deref()).take(page.limit);
        regions.map(|(name, region)| region.info(now, listeners(name))).collect()
    }

    /// Describes the regions of `AddRegion` requests whose memory is still being created, with the progress. Includes
    /// only names for which `is_listed` returns true.
    pub(in crate::appliance) fn preparing(
        &self,
        env: &Env,
        is_listed: impl Fn(&str) -> bool,
    ) -> Vec<RegionInfo> {
        let info = |(&number, preparing): (&u64, &Preparing)| {
            preparing_info(env, number, &preparing.section, Origin::Api)
        };
        let listed = |(_, preparing): &(&u64, &Preparing)| is_listed(&preparing.section.name);
        self.loading.iter().filter(listed).map(info).collect()
    }
}

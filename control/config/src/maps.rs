//! Memory mappings: the kernel's limit for a process, and the part of it that regions and jobs may use.
//!
//! At the limit (`vm.max_map_count`) every allocation of the process may fail. Regions and jobs use at most three
//! quarters of the limit. The rest is for libraries, threads, heap and DPDK, which maps each hugepage separately.

use super::document::Document;
use super::errors::ConfigError;
use super::machine::{Findings, Machine, MachineFinding};
use super::types::{Backing, RegionSection};

/// Maximum size of a small region, bytes. Small regions of about the same size share a mapping.
pub const SMALL_REGION: u64 = 16 << 10;

/// Maximum number of small regions that share a mapping.
pub const REGIONS_PER_MAP: u64 = 64;

/// Number of mappings of a region in shared memory: one for its object, and one for its completion ring.
pub const SHARED_REGION_MAPS: u64 = 2;

/// The kernel's default of `vm.max_map_count`, used if the value cannot be read.
const DEFAULT_MAX_MAP_COUNT: u64 = 65_530;

/// The kernel's limit of mappings of a process, `vm.max_map_count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapLimit(pub u64);

impl MapLimit {
    /// Reads the limit of this machine.
    pub fn read() -> MapLimit {
        MapLimit::read_from(&Machine { root: "/".into() })
    }

    fn read_from(machine: &Machine) -> MapLimit {
        let text = machine.read("proc/sys/vm/max_map_count");
        let number = text.and_then(|text| text.trim().parse().ok());
        MapLimit(number.unwrap_or(DEFAULT_MAX_MAP_COUNT))
    }

    /// Returns the maximum number of mappings of regions and jobs.
    pub fn bound(self) -> u64 {
        self.0 - self.0 / 4
    }

    /// Returns the end of an error message: the bound, its source, and the remedy for `needed` mappings.
    fn shortage(self, needed: u64) -> String {
        let MapLimit(limit) = self;
        let enough = needed.saturating_mul(4).div_ceil(3);
        format!(
            "{} are allowed, three quarters of vm.max_map_count ({limit}): sysctl -w vm.max_map_count={enough}",
            self.bound()
        )
    }

    /// Returns a note if `regions` regions may need more mappings than the bound. `regions` is the value of
    /// `limits.regions`. The note continues a sentence that begins with this key.
    pub fn region_limit_note(self, regions: u32) -> Option<String> {
        let needed = u64::from(regions) * SHARED_REGION_MAPS;
        (needed > self.bound()).then(|| {
            format!(
                "is {regions}, which may take {needed} memory mappings (two per region in shared memory, one per other \
                 region of more than 16 KiB), but {}; or lower it",
                self.shortage(needed)
            )
        })
    }
}

/// Returns the maximum number of mappings of a region. A small region needs no separate mapping if it shares one with
/// other small regions.
pub fn region_maps(region: &RegionSection) -> u64 {
    match region.backing {
        Backing::SharedMemory { .. } => SHARED_REGION_MAPS,
        _ => 1,
    }
}

/// Returns the minimum number of mappings for all these regions.
fn total_maps(regions: &[RegionSection]) -> u64 {
    let is_small = |region: &&RegionSection| {
        let private = matches!(region.backing, Backing::Anonymous | Backing::File { .. });
        private && region.size.is_none_or(|size| size <= SMALL_REGION)
    };
    let (small, other): (Vec<_>, Vec<_>) = regions.iter().partition(is_small);
    (small.len() as u64).div_ceil(REGIONS_PER_MAP) + other.into_iter().map(region_maps).sum::<u64>()
}

/// Reports regions that need more mappings than allowed. Adds a note if `limits.regions` permits too many regions for
/// the allowed mappings.
pub(super) fn check_maps(machine: &Machine, document: &Document, findings: &mut Findings<'_>) {
    let (limit, config) = (MapLimit::read_from(machine), &document.config);
    let needed = total_maps(&config.regions);
    if needed > limit.bound() {
        let message = format!(
            "the regions take at least {needed} memory mappings, but {}",
            limit.shortage(needed)
        );
        return findings.error(&document.root, "region", message);
    }
    if let Some(message) = limit.region_limit_note(config.limits.regions) {
        let line = config.source.line("limits", &[], "regions").unwrap_or(0);
        let (file, key) = (config.file.clone(), "limits.regions".to_owned());
        findings.list.push(MachineFinding::Note(ConfigError { file, line, key, message }));
    }
}

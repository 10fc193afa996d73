//! Numbers of protections, which policies and SAs have in common.

use std::collections::{HashMap, HashSet};

use ipsec::guard::Protection;
use ipsec::policy::Direction;

use crate::event::ProtectionInfo;
use crate::policy::{SaEndpoints, SaRequirements};

/// A protection that policies require.
#[derive(Clone, Debug)]
struct RequiredProtection {
    protection: Protection,
    /// SPIs required by the policies of each direction; 0 is any. During a rekey the policies of a CHILD_SA
    /// require the old SPI and the new one.
    spis: [Vec<u32>; 2],
}

/// Protections of the current list of policies.
#[derive(Debug, Default)]
pub(crate) struct Protections {
    required: HashMap<SaEndpoints, RequiredProtection>,
}

impl Protections {
    /// Assigns numbers to all wanted protections. Existing ones keep theirs. A new one receives the lowest free
    /// number, preferably one that was not in use just before.
    pub(crate) fn assign_numbers(&mut self, wanted: &[SaEndpoints]) {
        let before = std::mem::take(&mut self.required);
        let keep = |ends: &SaEndpoints| before.get(ends).map(|asked| asked.protection.0);
        let mut taken: HashSet<u16> = wanted.iter().filter_map(keep).collect();
        let recent: HashSet<u16> = before.values().map(|asked| asked.protection.0).collect();
        for ends in wanted {
            if self.required.contains_key(ends) {
                continue;
            }
            // At most `ipsec::policy::MOST` policies are kept, so that numbers cannot run out.
            let fresh = (0..ipsec::policy::MAX_POLICIES as u16)
                .find(|n| !taken.contains(n) && !recent.contains(n));
            let free = || (0..u16::MAX).find(|n| !taken.contains(n));
            let Some(number) = keep(ends).or(fresh).or_else(free) else { continue };
            taken.insert(number);
            self.required.insert(
                *ends,
                RequiredProtection {
                    protection: Protection(number),
                    spis: [Vec::new(), Vec::new()],
                },
            );
        }
    }

    /// Returns the number of a policy's protection, and records its SPI.
    ///
    /// # Errors
    /// No number is left.
    pub(crate) fn require(
        &mut self,
        wants: &SaRequirements,
        direction: Direction,
    ) -> Result<Protection, String> {
        let Some(required) = self.required.get_mut(&wants.endpoints) else {
            return Err("there are too many protections".into());
        };
        let spis = &mut required.spis[direction as usize];
        if !spis.contains(&wants.spi) {
            spis.push(wants.spi);
        }
        Ok(required.protection)
    }

    /// Returns the protection of SAs with these ends, for any SPI.
    pub(crate) fn for_endpoints(&self, ends: &SaEndpoints) -> Option<Protection> {
        self.required.get(ends).map(|asked| asked.protection)
    }

    /// True if the policies require exactly the SA with this SPI.
    pub(crate) fn requires_spi(&self, ends: &SaEndpoints, direction: Direction, spi: u32) -> bool {
        self.required.get(ends).is_some_and(|asked| asked.spis[direction as usize] == [spi])
    }

    /// Returns the protection that an SA with this SPI serves.
    pub(crate) fn for_sa(
        &self,
        ends: &SaEndpoints,
        direction: Direction,
        spi: u32,
    ) -> Option<Protection> {
        let required = self.required.get(ends)?;
        let spis = &required.spis[direction as usize];
        let fits = spis.is_empty() || spis.iter().any(|&asked| asked == 0 || asked == spi);
        fits.then_some(required.protection)
    }

    /// Returns the protections, by number.
    pub(crate) fn list(&self) -> Vec<ProtectionInfo> {
        let info = |(ends, asked): (&SaEndpoints, &RequiredProtection)| {
            let &SaEndpoints { reqid, tunnel, local, remote } = ends;
            ProtectionInfo { protection: asked.protection, reqid, tunnel, local, remote }
        };
        let mut list: Vec<_> = self.required.iter().map(info).collect();
        list.sort_by_key(|info| info.protection);
        list
    }
}

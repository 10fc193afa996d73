//! Numbers of protections, which link policies to SAs. A protection is a pair of endpoints, a mode and a reqid.

use std::collections::{HashMap, HashSet};

use ipsec::guard::Protection;
use ipsec::policy::Direction;

use crate::event::ProtectionInfo;
use crate::policy::{SaEndpoints, SaRequirements};

/// A protection that policies require.
#[derive(Clone, Debug)]
struct RequiredProtection {
    protection: Protection,
    /// SPIs that the policies of each direction require; 0 is any. During a rekey the policies of one CHILD_SA require
    /// both the old and the new SPI.
    spis: [Vec<u32>; 2],
}

/// Protections of the current list of policies.
#[derive(Debug, Default)]
pub(crate) struct Protections {
    required: HashMap<SaEndpoints, RequiredProtection>,
}

impl Protections {
    /// Assigns numbers to all required protections. Existing protections keep their numbers. A new protection gets the
    /// lowest free number, preferably a number that no protection had before this call.
    pub(crate) fn assign_numbers(&mut self, wanted: &[SaEndpoints]) {
        let before = std::mem::take(&mut self.required);
        let keep = |ends: &SaEndpoints| before.get(ends).map(|entry| entry.protection.0);
        let mut taken: HashSet<u16> = wanted.iter().filter_map(keep).collect();
        let recent: HashSet<u16> = before.values().map(|entry| entry.protection.0).collect();
        for ends in wanted {
            if self.required.contains_key(ends) {
                continue;
            }
            // The list has at most `ipsec::policy::MAX_POLICIES` policies, so numbers cannot run out.
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

    /// Returns the number of a policy's protection, and records the SPI that the policy requires.
    ///
    /// # Errors
    /// The protection has no number.
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

    /// Returns the protection of SAs with these endpoints, for any SPI. `None` if no policy requires such SAs.
    pub(crate) fn for_endpoints(&self, ends: &SaEndpoints) -> Option<Protection> {
        self.required.get(ends).map(|entry| entry.protection)
    }

    /// Returns true if the policies of this direction require this SPI and no other.
    pub(crate) fn requires_spi(&self, ends: &SaEndpoints, direction: Direction, spi: u32) -> bool {
        self.required.get(ends).is_some_and(|entry| entry.spis[direction as usize] == [spi])
    }

    /// Returns the protection that an SA with these endpoints and this SPI serves. `None` if no policy requires SAs
    /// with these endpoints, or if all policies of this direction require other SPIs.
    pub(crate) fn for_sa(
        &self,
        ends: &SaEndpoints,
        direction: Direction,
        spi: u32,
    ) -> Option<Protection> {
        let required = self.required.get(ends)?;
        let spis = &required.spis[direction as usize];
        let fits = spis.is_empty() || spis.iter().any(|&required| required == 0 || required == spi);
        fits.then_some(required.protection)
    }

    /// Returns the protections, ordered by number.
    pub(crate) fn list(&self) -> Vec<ProtectionInfo> {
        let info = |(ends, entry): (&SaEndpoints, &RequiredProtection)| {
            let &SaEndpoints { reqid, tunnel, local, remote } = ends;
            ProtectionInfo { protection: entry.protection, reqid, tunnel, local, remote }
        };
        let mut list: Vec<_> = self.required.iter().map(info).collect();
        list.sort_by_key(|info| info.protection);
        list
    }
}

//! Resources of an appliance: memory, buffers, descriptors, tables. After a soak none may exceed its initial value by
//! more than its allowance.

use std::collections::BTreeMap;

use anyhow::Result;
use load::testbed::Appliance;
use serde::Serialize;

/// Allowed growth of memory, bytes: the allocator does not return all freed pages.
const MEMORY_GROWTH: u64 = 24 << 20;
/// Packet buffers that may be in mempool caches and descriptor rings, where they do not count as free.
const CACHED_BUFFERS: u64 = 600;
/// Maximum number of neighbour or path MTU entries, one per host of the test bed. The entries remain after the soak.
const HOST_ENTRIES: u64 = 8;

/// Counts of local programs since the start, which the appliance lists among its gauges. They only grow, so they are
/// not compared.
const PROGRAM_COUNTS: [&str; 4] =
    ["sessions_opened", "sessions_ended", "sessions_refused", "session_queues_failed"];

/// Resources that are compared before and after a soak.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Resources {
    /// Resident set size, bytes.
    pub(crate) memory: u64,
    /// Free packet buffers.
    pub(crate) buffers_free: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// Names of the regions, sorted.
    pub(crate) regions: Vec<String>,
    /// Names of the listeners, sorted.
    pub(crate) listeners: Vec<String>,
    /// Gauges of the workers (sums, as `worker NAME`) and of the appliance. Maxima (`NAME_max`) are omitted.
    pub(crate) gauges: BTreeMap<String, u64>,
}

impl Resources {
    pub(crate) fn collect(appliance: &Appliance) -> Result<Resources> {
        let stats = appliance.stats()?;
        let mut gauges: BTreeMap<String, u64> = BTreeMap::new();
        for worker in &stats.workers {
            for (name, n) in &worker.gauges {
                *gauges.entry(format!("worker {name}")).or_default() += n;
            }
        }
        for (name, n) in &stats.gauges {
            gauges.insert(name.to_string(), *n);
        }
        gauges.retain(|name, _| !name.ends_with("_max") && !PROGRAM_COUNTS.contains(&&**name));
        let free = |name: &str| -> u64 {
            stats.ports.iter().filter_map(|port| port.counters.get(name)).sum()
        };
        let process = format!("/proc/{}", appliance.pid());
        Ok(Resources {
            memory: appliance.memory()?,
            buffers_free: free("buffers_free"),
            descriptors: std::fs::read_dir(format!("{process}/fd"))?.count() as u64,
            threads: std::fs::read_dir(format!("{process}/task"))?.count() as u64,
            regions: object_names(appliance, "/v1/regions")?,
            listeners: object_names(appliance, "/v1/listeners")?,
            gauges,
        })
    }

    /// Returns the resources that exceed their value in `before` by more than their allowance, and the object lists
    /// that differ. Empty if nothing leaked.
    pub(crate) fn excess_over(&self, before: &Resources) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut more = |what: &str, now: u64, then: u64, by: u64| {
            if now > then + by {
                wrong.push(format!("{what}: {now}, before {then}"));
            }
        };
        more("bytes of memory", self.memory, before.memory, MEMORY_GROWTH);
        more("buffers not free", before.buffers_free, self.buffers_free, CACHED_BUFFERS);
        more("descriptors", self.descriptors, before.descriptors, 0);
        more("threads", self.threads, before.threads, 0);
        for (name, now) in &self.gauges {
            let then = before.gauges.get(name).copied().unwrap_or(0);
            let by = match name.as_str() {
                "worker neighbours" | "worker path_mtus" => HOST_ENTRIES.saturating_sub(then),
                _ => 0,
            };
            more(name, *now, then, by);
        }
        for (what, now, then) in [
            ("regions", &self.regions, &before.regions),
            ("listeners", &self.listeners, &before.listeners),
        ] {
            if now != then {
                wrong.push(format!("{what}: {}, before {}", now.join(" "), then.join(" ")));
            }
        }
        wrong
    }
}

fn object_names(appliance: &Appliance, path: &str) -> Result<Vec<String>> {
    let all: Vec<serde_json::Value> = appliance.client.get(path)?;
    let mut names: Vec<String> =
        all.iter().filter_map(|one| one["name"].as_str()).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initial_resources() -> Resources {
        Resources {
            memory: 100 << 20,
            buffers_free: 4000,
            descriptors: 20,
            threads: 5,
            regions: vec!["a".into(), "b".into()],
            listeners: vec!["l".into()],
            gauges: [("streams".to_owned(), 1), ("worker neighbours".to_owned(), 3)].into(),
        }
    }

    /// Returns the only violation after `spoil` changes the resources.
    fn only(spoil: impl FnOnce(&mut Resources)) -> String {
        let mut after = initial_resources();
        spoil(&mut after);
        let mut wrong = after.excess_over(&initial_resources());
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        wrong.remove(0)
    }

    #[test]
    fn each_leaked_resource_is_reported() {
        assert_eq!(initial_resources().excess_over(&initial_resources()), Vec::<String>::new());
        assert!(only(|left| left.memory += MEMORY_GROWTH + 1).contains("memory"));
        assert!(only(|left| left.buffers_free -= CACHED_BUFFERS + 1).contains("buffers"));
        assert!(only(|left| left.descriptors += 1).contains("descriptors: 21"));
        assert!(only(|left| left.threads += 1).contains("threads"));
        assert!(only(|left| left.regions.push("c".into())).contains("regions: a b c"));
        // Missing names are also violations.
        assert!(only(|left| left.listeners.clear()).contains("listeners"));
        assert!(only(|left| *left.gauges.get_mut("streams").unwrap() += 1).contains("streams: 2"));
        assert!(
            only(|left| left.gauges.insert("held_bytes".into(), 1).map_or((), drop))
                .contains("held")
        );
        assert!(
            only(|left| left.gauges.insert("worker neighbours".into(), 9).map_or((), drop))
                .contains("neigh")
        );
    }

    #[test]
    fn fewer_resources_are_no_leak() {
        let mut after = initial_resources();
        (after.memory, after.descriptors, after.buffers_free) = (1, 1, 5000);
        after.gauges.insert("worker neighbours".into(), 8);
        assert_eq!(after.excess_over(&initial_resources()), Vec::<String>::new());
    }
}

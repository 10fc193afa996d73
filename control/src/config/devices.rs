//! `[memory]` and `[workers]`.

use super::errors::Places;
use super::reader::Section;
use super::types::*;
use super::values::*;

/// Most workers; a stream's number has 16 bits for its worker, far more than machines have cores.
const MAX_WORKERS: u16 = 128;

pub(super) fn memory(mut section: Section<'_, '_>) -> (MemorySection, Places) {
    let policies = [
        ("auto", HugepagePolicy::Auto),
        ("require", HugepagePolicy::Require),
        ("never", HugepagePolicy::Never),
    ];
    let memory = MemorySection {
        hugepages: section.or("hugepages", HugepagePolicy::Auto, one_of(&policies)),
        size: section.optional("size", size(16 << 20, 1 << 40)),
        numa_node: section.optional("numa_node", int(0u8, 31)),
        eal_args: section.list("eal_args", string),
    };
    (memory, section.finish())
}

pub(super) fn workers(mut section: Section<'_, '_>) -> (Vec<WorkerSection>, Places) {
    let idles = [("poll", Idle::Poll), ("adaptive", Idle::Adaptive)];
    let idle = section.or("idle", Idle::Adaptive, one_of(&idles));
    let count = section.optional("count", int(1, MAX_WORKERS));
    let cores = section.list("cores", int(0u16, 1023));
    if count.is_some() && section.has("cores") {
        section.fail("count", "and `cores` exclude each other: remove one of them");
    }
    if section.is_empty_list("cores") {
        section.fail("cores", "names no core: list at least one, or write count = 1");
    }
    if cores.len() > usize::from(MAX_WORKERS) {
        section.fail("cores", format!("lists more than {MAX_WORKERS} cores: remove some"));
    }
    for (index, core) in cores.iter().enumerate() {
        if cores[..index].contains(core) {
            section.fail("cores", format!("lists core {core} twice: remove one"));
        }
    }
    let workers = if cores.is_empty() {
        vec![WorkerSection { core: None, idle }; usize::from(count.unwrap_or(1))]
    } else {
        cores.iter().map(|&core| WorkerSection { core: Some(core), idle }).collect()
    };
    (workers, section.finish())
}

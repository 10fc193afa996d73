//! `[memory]` and `[workers]`.

use super::errors::SectionSpan;
use super::key_values;
use super::keys::{Key, keys, section};
use super::reader::Section;
use super::rule::Shape;
use super::types::*;
use super::values::*;

/// Maximum number of workers. A stream's number has 16 bits for its worker.
const MAX_WORKERS: u16 = 128;

section! {
    /// `[memory]`: the EAL. With several files in one process all of them must say the same.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MemorySection in "memory" {
        /// Hugepages for DPDK's pools: where there are any, or refuse to start without, or never.
        hugepages: Hugepages = word_rule(&Hugepages::NAMES), or Hugepages::Auto;
        /// Memory for pools, bytes; without it the EAL grows as needed (or has 512 MiB without hugepages).
        size: Option<u64> = size_rule(16 << 20, 1 << 40).optional(), or None;
        /// NUMA node of the pools; without it the device's.
        numa_node: Option<u8> = integer_rule(0u8, 31).optional(), or None;
    } by_hand {
        /// More EAL arguments, handed on as they are.
        eal_args: Vec<String> = read_eal_args, memory_lists, key_values::eal_args;
    }
}

keys! { memory_lists in "memory", reload: false {
    /// More EAL arguments, handed on as they are.
    eal_args: Vec<String> = list_rule(Shape::Text("an argument")), "";
}}

fn read_eal_args(section: &mut Section<'_, '_>) -> Vec<String> {
    section.list("eal_args", parse_string)
}

pub(super) fn read_memory(mut section: Section<'_, '_>) -> (MemorySection, SectionSpan) {
    (MemorySection::read(&mut section), section.finish())
}

keys! { worker_keys in "workers", reload: false {
    /// What a worker does when there is nothing to do: poll for ever, or poll for a while and then sleep.
    idle: Idle = word_rule(&Idle::NAMES), "\"adaptive\"";
    /// Workers that are not pinned; not with `cores`.
    count: u16 = integer_rule(1, MAX_WORKERS), "1";
    /// Cores that have a pinned worker each.
    cores: Vec<u16> = list_rule(Shape::Integer { min: 0, max: 1023 }), "";
}}

pub(super) fn read_workers(mut section: Section<'_, '_>) -> (Vec<WorkerSection>, SectionSpan) {
    let idle = section.or_default("idle", Idle::ADAPTIVE, idle());
    let count = section.optional("count", count());
    let cores = section.list("cores", integer_rule(0u16, 1023));
    if count.is_some() && section.contains("cores") {
        section.report("count", "and `cores` exclude each other: remove one of them");
    }
    if section.is_empty_list("cores") {
        section.report("cores", "names no core: list at least one, or write count = 1");
    }
    if cores.len() > usize::from(MAX_WORKERS) {
        section.report("cores", format!("lists more than {MAX_WORKERS} cores: remove some"));
    }
    for (index, core) in cores.iter().enumerate() {
        if cores[..index].contains(core) {
            section.report("cores", format!("lists core {core} twice: remove one"));
        }
    }
    let workers = if cores.is_empty() {
        vec![WorkerSection { core: None, idle }; usize::from(count.unwrap_or(1))]
    } else {
        cores.iter().map(|&core| WorkerSection { core: Some(core), idle }).collect()
    };
    (workers, section.finish())
}

/// Returns the keys of `[memory]` and `[workers]`.
pub(super) fn device_keys() -> Vec<Key> {
    [MemorySection::keys(), worker_keys()].concat()
}

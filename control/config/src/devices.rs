//! Reads `[memory]` and `[workers]`.

use super::errors::SectionSpan;
use super::key_values;
use super::keys::{Key, keys, section};
use super::reader::Section;
use super::rule::Shape;
use super::types::*;
use super::values::*;

/// Maximum number of workers. At most 65,536 would be possible, because a stream's number has 16 bits for its worker.
const MAX_WORKERS: u16 = 128;

section! {
    /// `[memory]`: parameters of the EAL. All files of one process must have the same values.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MemorySection in "memory" {
        /// Hugepages for DPDK's memory. `auto`: used if enough are free. `require`: the start fails if too few are
        /// free. `never`: ordinary memory is used.
        hugepages: Hugepages = word_rule(&Hugepages::NAMES), or Hugepages::Auto;
        /// Memory for packet pools and rings, bytes; by default the ports' requirement. Without hugepages this is the
        /// limit. With hugepages the EAL allocates more as needed; `hugepages = "auto"` uses hugepages only if this
        /// much is free.
        size: Option<u64> = size_rule(16 << 20, 1 << 40).optional(), or None;
        /// NUMA node of the packet pools; by default the node of the device.
        numa_node: Option<u8> = integer_rule(0u8, 31).optional(), or None;
    } by_hand {
        /// Additional EAL arguments, passed unchanged.
        eal_args: Vec<String> = read_eal_args, memory_lists, key_values::eal_args;
    }
}

keys! { memory_lists in "memory", reload: false {
    /// Additional EAL arguments, passed unchanged.
    eal_args: Vec<String> = list_rule(Shape::Text("an argument")), "";
}}

fn read_eal_args(section: &mut Section<'_, '_>) -> Vec<String> {
    section.list("eal_args", parse_string)
}

pub(super) fn read_memory(mut section: Section<'_, '_>) -> (MemorySection, SectionSpan) {
    (MemorySection::read(&mut section), section.finish())
}

keys! { worker_keys in "workers", reload: false {
    /// Behaviour of an idle worker. `poll`: polls forever and uses a whole core. `adaptive`: polls for a while, then
    /// sleeps until a port, a command or a timer wakes it.
    idle: Idle = word_rule(&Idle::NAMES), "\"adaptive\"";
    /// Number of workers that are not pinned to a core. Excludes `cores`.
    count: u16 = integer_rule(1, MAX_WORKERS), "1";
    /// Cores with a pinned worker each. Excludes `count`.
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

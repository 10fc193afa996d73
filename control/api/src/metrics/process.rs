//! Prometheus's conventional metrics of a process, read from /proc.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Registers the metrics. Values that /proc lacks are left out.
pub(super) fn register(registry: &mut Registry) {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else { return };
    let Some(stat) = ProcessStat::parse(&text) else { return };
    let per_second = clock_ticks_per_second() as f64;
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(stat.cpu_ticks as f64 / per_second);
    registry.register_with_unit(
        "process_cpu",
        "Time of all processors, in user and in system mode",
        Unit::Seconds,
        cpu,
    );
    let mut gauge = |name: &str, help: &str, unit: Option<Unit>, value: f64| {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, gauge),
            None => registry.register(name, help, gauge),
        }
    };
    let resident = stat.resident_pages as f64 * page_size() as f64;
    gauge("process_resident_memory", "Resident memory", Some(Unit::Bytes), resident);
    gauge("process_virtual_memory", "Virtual memory", Some(Unit::Bytes), stat.virtual_bytes as f64);
    gauge("process_threads", "Threads", None, stat.threads as f64);
    let system = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    if let Some(boot) = boot_seconds(&system) {
        let start = boot as f64 + stat.start_ticks as f64 / per_second;
        gauge("process_start_time", "Start, since 1970", Some(Unit::Seconds), start);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        gauge("process_open_fds", "Open file descriptors", None, open.count() as f64);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        gauge("process_max_fds", "Most file descriptors", None, most as f64);
    }
}

/// Fields of `/proc/self/stat` (proc_pid_stat(5)).
#[derive(PartialEq, Eq, Debug)]
struct ProcessStat {
    /// CPU time in user and system mode, clock ticks.
    cpu_ticks: u64,
    threads: u64,
    /// Time of the start since boot, clock ticks.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessStat {
    fn parse(text: &str) -> Option<ProcessStat> {
        // Field 2, the command's name in parentheses, may contain any character.
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(ProcessStat {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Returns the time of boot in seconds since 1970, from the text of `/proc/stat` (proc_stat(5)).
fn boot_seconds(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_parentheses_in_name_is_parsed() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194560 9 8 7 6 250 50 0 0 20 0 12 0 987 65536 33 18446744073709551615\n";
        let stat = ProcessStat {
            cpu_ticks: 300,
            threads: 12,
            start_ticks: 987,
            virtual_bytes: 65536,
            resident_pages: 33,
        };
        assert_eq!(ProcessStat::parse(text), Some(stat));
        assert_eq!(ProcessStat::parse("42 (a) S 1"), None);
        assert_eq!(boot_seconds("cpu  1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000));
        assert_eq!(boot_seconds("cpu  1 2\n"), None);
    }
}

//! The metrics of a process that Prometheus defines by convention (`process_...`), read from /proc.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

/// Registers the metrics of this process. Values that cannot be read from /proc are omitted.
pub(super) fn register(registry: &mut Registry) {
    let Ok(process) = procfs::process::Process::myself() else { return };
    let Ok(stat) = process.stat() else { return };
    let per_second = procfs::ticks_per_second() as f64;
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by((stat.utime + stat.stime) as f64 / per_second);
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
    let resident = stat.rss as f64 * procfs::page_size() as f64;
    gauge("process_resident_memory", "Resident memory", Some(Unit::Bytes), resident);
    gauge("process_virtual_memory", "Virtual memory", Some(Unit::Bytes), stat.vsize as f64);
    gauge("process_threads", "Threads", None, stat.num_threads as f64);
    if let Ok(boot) = procfs::boot_time_secs() {
        let start = boot as f64 + stat.starttime as f64 / per_second;
        gauge("process_start_time", "Start, since 1970", Some(Unit::Seconds), start);
    }
    if let Ok(open) = process.fd_count() {
        gauge("process_open_fds", "Open file descriptors", None, open as f64);
    }
    if let Ok(limits) = process.limits()
        && let procfs::process::LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        gauge("process_max_fds", "Most file descriptors", None, most as f64);
    }
}

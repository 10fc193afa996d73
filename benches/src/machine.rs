//! Description of the machine that runs the benchmark, for readers of the results.

use std::collections::BTreeMap;
use std::process::Command;

/// Returns the machine's properties by name: CPU, kernel, memory, hugepages, versions, date and load.
pub fn describe() -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut say = |name: &str, value: String| {
        facts.insert(name.to_owned(), value);
    };
    let cpu = proc_field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    say("CPU", format!("{cpu}, {cores} cores"));
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    say("kernel", format!("Linux {}", read("/proc/sys/kernel/osrelease")));
    say("DPDK", dpdk::version().to_owned());
    let total = proc_field("/proc/meminfo", "MemTotal").unwrap_or_default();
    say("memory", total);
    let huge = proc_field("/proc/meminfo", "HugePages_Total").unwrap_or_else(|| "0".into());
    let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = thp.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    say("hugepages", format!("{huge} reserved, transparent: {chosen}"));
    say("rustc", command_output("rustc", &["--version"]));
    say("date", command_output("date", &["-u", "+%F"]));
    say("commit", command_output("git", &["describe", "--always", "--dirty"]));
    let load = read("/proc/loadavg");
    say("load average", load.split_whitespace().take(3).collect::<Vec<_>>().join(" "));
    facts
}

fn proc_field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns a program's standard output, or "unknown" if the program is missing or fails.
pub fn command_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

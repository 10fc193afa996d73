//! Free hugepages per NUMA node, compared with the demand of pools and regions.

use config::{Backing, Config, Hugepages, show_size};

use super::finding::{Check, Finding, Severity};
use super::host::{Host, Unknown};
use super::subject::Subject;
use crate::appliance::start::eal_config;

const HUGEPAGES: Check = Check(
    "hugepages",
    "Packet buffers in ordinary pages cost a TLB miss each, and a PCI device cannot be relied on to reach them.",
);

/// Hugepages of one size on one node.
struct Pages {
    /// Sysfs directory of the counts.
    directory: String,
    /// Size of one page, bytes.
    size: u64,
    free: u64,
    total: u64,
}

/// Number of a node (`None` if the kernel has no NUMA support) and its hugepages.
type NodePages = (Option<u16>, Vec<Pages>);

/// Page size of regions, bytes.
const REGION_PAGE: u64 = 2 << 20;

pub(super) fn check(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let nodes = match nodes(host) {
        Ok(nodes) => nodes,
        Err(why) => return found.push(HUGEPAGES.unknown(why)),
    };
    let shown: Vec<String> = nodes.iter().map(describe_node).collect();
    let shown = shown.join("; ");
    let sum = |fits: &dyn Fn(&Pages) -> bool, number: Option<u16>| {
        let here = nodes.iter().filter(|(node, _)| number.is_none() || *node == number);
        let pages = here.flat_map(|(_, pages)| pages).filter(|pages| fits(pages));
        pages.fold(0u64, |sum, pages| sum.saturating_add(pages.free.saturating_mul(pages.size)))
    };
    let Some(first) = subject.configs.first() else {
        return found.push(match sum(&|_| true, None) {
            0 => {
                add_command(HUGEPAGES.note(format!("none is free: {shown}")), &nodes, None, 1 << 30)
            }
            free => HUGEPAGES.ok(format!("{} are free: {shown}", show_size(free))),
        });
    };
    let regions = subject.configs.iter().flat_map(|config| &config.regions);
    let regions = regions.filter(|region| region.backing == Backing::Hugepages);
    let regions = regions.filter_map(|region| region.size).fold(0u64, u64::saturating_add);
    let memory = &first.memory;
    let pools = match pool_bytes(&subject.configs) {
        _ if memory.hugepages == Hugepages::Never => 0,
        Ok(pools) => pools,
        Err(why) => return found.push(HUGEPAGES.unknown(why)),
    };
    let needed = pools.saturating_add(regions);
    let node = memory.numa_node.map(u16::from);
    let (free, on_node) = (sum(&|_| true, None), sum(&|_| true, node));
    let region_free = sum(&|pages| pages.size == REGION_PAGE, None);
    let seen = format!(
        "{} wanted ({} for packet buffers, {} for regions): {shown}",
        show_size(needed),
        show_size(pools),
        show_size(regions)
    );
    let severity = match memory.hugepages {
        _ if regions > region_free => Severity::Error,
        Hugepages::Require if free < needed => Severity::Error,
        _ if free < needed && !subject.pci_addresses().is_empty() => Severity::Warning,
        _ if free < needed => Severity::Note,
        _ if on_node < pools => Severity::Warning,
        _ => return found.push(HUGEPAGES.ok(seen)),
    };
    let here = if node.is_some() { on_node } else { free };
    let missing = needed.saturating_sub(here).max(regions.saturating_sub(region_free));
    found.push(add_command(HUGEPAGES.finding(severity, seen), &nodes, node, missing));
}

/// Returns the bytes of all packet pools. The appliances of a process share one EAL.
fn pool_bytes(configs: &[Config]) -> Result<u64, Unknown> {
    let configs: Vec<&Config> = configs.iter().collect();
    Ok(u64::from(eal_config(&configs)?.memory_mib) << 20)
}

/// Adds the command that reserves enough 2 MiB pages for `missing` further bytes, on `node` or else on the first node.
fn add_command(finding: Finding, nodes: &[NodePages], node: Option<u16>, missing: u64) -> Finding {
    let finding = finding.remedy(
        "reserve pages of 2 MiB, at boot (hugepages= on the kernel's command line) if memory is fragmented by now",
    );
    let mut fitting = nodes.iter().filter(|(number, _)| node.is_none() || *number == node);
    let pages = fitting.find_map(|(_, pages)| pages.iter().find(|p| p.size == REGION_PAGE));
    match pages {
        Some(pages) => {
            let number = pages.total.saturating_add(missing.div_ceil(REGION_PAGE));
            finding.command(format!("echo {number} > {}/nr_hugepages", pages.directory))
        }
        None => finding,
    }
}

fn describe_node((node, pages): &NodePages) -> String {
    let sizes = pages
        .iter()
        .map(|p| format!("{} of {} pages of {} free", p.free, p.total, show_size(p.size)));
    let sizes: Vec<String> = sizes.collect();
    let sizes = if sizes.is_empty() { "no page size".into() } else { sizes.join(", ") };
    match node {
        Some(node) => format!("node {node}: {sizes}"),
        None => sizes,
    }
}

fn nodes(host: &Host) -> Result<Vec<NodePages>, Unknown> {
    if !host.exists("/sys/devices/system/node/online") {
        return Ok(vec![(None, pages(host, "/sys/kernel/mm/hugepages")?)]);
    }
    let online = host.cpus("/sys/devices/system/node/online")?;
    let node_pages = |node: u16| {
        let directory = format!("/sys/devices/system/node/node{node}/hugepages");
        Ok((Some(node), pages(host, &directory)?))
    };
    online.into_iter().map(node_pages).collect()
}

fn pages(host: &Host, directory: &str) -> Result<Vec<Pages>, Unknown> {
    let mut all = Vec::new();
    for name in host.names(directory)? {
        let kib = name.strip_prefix("hugepages-").and_then(|name| name.strip_suffix("kB"));
        let size = kib.and_then(|kib| kib.parse::<u64>().ok()?.checked_mul(1024));
        let size = size.ok_or_else(|| format!("{directory} has {name}, of no size"))?;
        let directory = format!("{directory}/{name}");
        let free = host.number(&format!("{directory}/free_hugepages"))?;
        let total = host.number(&format!("{directory}/nr_hugepages"))?;
        all.push(Pages { directory, size, free, total });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::{PCI, RING, Tree, only_finding, subject};

    /// Builds a host whose nodes have these numbers of free 2 MiB pages.
    fn tree(free: &[u64]) -> Tree {
        let tree = Tree::new(&[]);
        tree.file("sys/devices/system/node/online", &format!("0-{}\n", free.len() - 1));
        for (node, free) in free.iter().enumerate() {
            let directory =
                format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
            tree.file(&format!("{directory}/free_hugepages"), &format!("{free}\n"));
            tree.file(&format!("{directory}/nr_hugepages"), &format!("{free}\n"));
        }
        tree
    }

    #[test]
    fn too_few_hugepages_for_ports_are_a_finding() {
        let ring = subject("count = 1", RING, "");
        let none = tree(&[0]).run(&ring, check);
        assert_eq!(only_finding(&none).0, Severity::Note);
        assert!(none[0].seen.contains("node 0: 0 of 0 pages of 2 MiB free"), "{none:?}");
        let command = none[0].command.as_ref().unwrap();
        assert!(command.ends_with(
            " > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
        ));
        assert_eq!(
            only_finding(&tree(&[0]).run(&subject("count = 1", PCI, ""), check)).0,
            Severity::Warning
        );
        let require = subject("count = 1", RING, "[memory]\nhugepages = \"require\"");
        assert_eq!(only_finding(&tree(&[0]).run(&require, check)).0, Severity::Error);
        assert_eq!(only_finding(&tree(&[4096]).run(&require, check)).0, Severity::Ok);
        let never = subject("count = 1", RING, "[memory]\nhugepages = \"never\"");
        assert_eq!(only_finding(&tree(&[0]).run(&never, check)).0, Severity::Ok);
    }

    #[test]
    fn hugepages_of_another_node_do_not_count() {
        let subject = subject("count = 1", PCI, "[memory]\nnuma_node = 1");
        let found = tree(&[4096, 0]).run(&subject, check);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert!(found[0].command.as_ref().unwrap().contains("/node1/"));
        assert_eq!(only_finding(&tree(&[0, 4096]).run(&subject, check)).0, Severity::Ok);
    }

    #[test]
    fn regions_in_hugepages_add_to_the_need() {
        let region = "[memory]\nhugepages = \"never\"\n[[region]]\nname = \"r\"\nsize = \"64 MiB\"\naccess = \"w\"\n\
                      backing = \"hugepages\"";
        let subject = subject("count = 1", RING, region);
        assert_eq!(only_finding(&tree(&[31]).run(&subject, check)).0, Severity::Error);
        assert_eq!(only_finding(&tree(&[32]).run(&subject, check)).0, Severity::Ok);
    }

    #[test]
    fn hugepages_without_configuration_are_ok_or_a_note() {
        assert_eq!(only_finding(&tree(&[0]).run(&Subject::default(), check)).0, Severity::Note);
        assert_eq!(only_finding(&tree(&[8]).run(&Subject::default(), check)).0, Severity::Ok);
        let bad = tree(&[8]);
        bad.file("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "-");
        assert_eq!(only_finding(&bad.run(&Subject::default(), check)).0, Severity::Unknown);
        assert_eq!(
            only_finding(&Tree::new(&[]).run(&Subject::default(), check)).0,
            Severity::Unknown
        );
    }
}

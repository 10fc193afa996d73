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
    /// Sysfs directory of the page counts.
    directory: String,
    /// Size of one page, bytes.
    size: u64,
    /// Number of free pages.
    free: u64,
    /// Number of pages, free or in use.
    total: u64,
}

/// Number of a node (`None` if the kernel has no NUMA support) and its hugepages.
type NodePages = (Option<u16>, Vec<Pages>);

/// Size of the hugepages that back regions, bytes.
const REGION_PAGE: u64 = 2 << 20;

/// Demand for hugepages, bytes.
#[derive(Clone, Copy)]
struct Demand {
    /// Packet pools of all appliances; 0 with `hugepages = "never"`.
    pools: u64,
    /// Regions with `backing = "hugepages"`.
    regions: u64,
}

/// Free hugepages, bytes.
#[derive(Clone, Copy)]
struct Free {
    /// Pages of all sizes on all nodes.
    total: u64,
    /// Pages of all sizes on the node of `numa_node`; equal to `total` without this key.
    on_node: u64,
    /// Pages of [`REGION_PAGE`] bytes on all nodes.
    for_regions: u64,
}

/// Compares the demand of the configurations with the free hugepages. [`severity`] has the rules. Without a
/// configuration, reports whether any hugepage is free.
pub(super) fn check(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let finding = nodes(host).and_then(|nodes| match subject.configs.first() {
        Some(first) => compare(&nodes, subject, first),
        None => Ok(report_free(&nodes)),
    });
    found.push(finding.unwrap_or_else(|error| HUGEPAGES.unknown(error)));
}

/// Returns the finding if there is no configuration.
fn report_free(nodes: &[NodePages]) -> Finding {
    let shown = describe_nodes(nodes);
    match free_bytes(nodes, None, None) {
        0 => add_command(HUGEPAGES.note(format!("none is free: {shown}")), nodes, None, 1 << 30),
        free => HUGEPAGES.ok(format!("{} are free: {shown}", show_size(free))),
    }
}

/// Returns the finding for the configurations of `subject`. `first` has the process's memory settings.
fn compare(nodes: &[NodePages], subject: &Subject, first: &Config) -> Result<Finding, Unknown> {
    let memory = &first.memory;
    let demand = Demand {
        pools: match memory.hugepages {
            Hugepages::Never => 0,
            Hugepages::Auto | Hugepages::Require => pool_bytes(&subject.configs)?,
        },
        regions: region_bytes(&subject.configs),
    };
    let node = memory.numa_node.map(u16::from);
    let free = Free {
        total: free_bytes(nodes, None, None),
        on_node: free_bytes(nodes, node, None),
        for_regions: free_bytes(nodes, None, Some(REGION_PAGE)),
    };
    let seen = format!(
        "{} wanted ({} for packet buffers, {} for regions): {}",
        show_size(demand.total()),
        show_size(demand.pools),
        show_size(demand.regions),
        describe_nodes(nodes)
    );
    let has_pci_port = !subject.pci_addresses().is_empty();
    let severity = severity(demand, free, memory.hugepages, has_pci_port);
    if severity == Severity::Ok {
        return Ok(HUGEPAGES.ok(seen));
    }
    let missing_on_node = demand.total().saturating_sub(free.on_node);
    let missing_for_regions = demand.regions.saturating_sub(free.for_regions);
    let missing = missing_on_node.max(missing_for_regions);
    Ok(add_command(HUGEPAGES.finding(severity, seen), nodes, node, missing))
}

/// Returns the severity of a shortage:
///
/// - an error if the regions exceed the free pages of 2 MiB, or with `hugepages = "require"` if the total demand
///   exceeds all free pages;
/// - else, if the total demand exceeds all free pages: a warning if a port is a PCI device, else a note;
/// - else a warning if the free pages on the node of `numa_node` are too few for the packet pools.
fn severity(demand: Demand, free: Free, hugepages: Hugepages, has_pci_port: bool) -> Severity {
    let total_exceeded = free.total < demand.total();
    if demand.regions > free.for_regions || (hugepages == Hugepages::Require && total_exceeded) {
        Severity::Error
    } else if total_exceeded {
        if has_pci_port { Severity::Warning } else { Severity::Note }
    } else if free.on_node < demand.pools {
        Severity::Warning
    } else {
        Severity::Ok
    }
}

impl Demand {
    fn total(self) -> u64 {
        self.pools.saturating_add(self.regions)
    }
}

/// Returns the memory that DPDK requests for all appliances of the process, mostly packet pools, bytes.
fn pool_bytes(configs: &[Config]) -> Result<u64, Unknown> {
    let configs: Vec<&Config> = configs.iter().collect();
    Ok(u64::from(eal_config(&configs)?.memory_mib) << 20)
}

fn region_bytes(configs: &[Config]) -> u64 {
    let regions = configs.iter().flat_map(|config| &config.regions);
    let regions = regions.filter(|region| region.backing == Backing::Hugepages);
    regions.filter_map(|region| region.size).fold(0, u64::saturating_add)
}

/// Returns the bytes in free hugepages, of all nodes and sizes unless `node` or `page_size` (bytes) is given.
fn free_bytes(nodes: &[NodePages], node: Option<u16>, page_size: Option<u64>) -> u64 {
    let nodes = nodes.iter().filter(|(number, _)| node.is_none() || *number == node);
    let pages = nodes.flat_map(|(_, pages)| pages);
    let pages = pages.filter(|pages| page_size.is_none_or(|size| pages.size == size));
    pages.fold(0, |sum, pages| sum.saturating_add(pages.free.saturating_mul(pages.size)))
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

fn describe_nodes(nodes: &[NodePages]) -> String {
    let nodes: Vec<String> = nodes.iter().map(describe_node).collect();
    nodes.join("; ")
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
        let size =
            size.ok_or_else(|| format!("cannot parse the page size of {directory}/{name}"))?;
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

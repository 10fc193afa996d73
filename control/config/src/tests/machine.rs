//! Tests of the checks of the machine, with a directory in place of the machine's root.

use std::fs;
use std::path::Path;

use super::super::*;

struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.file("sys/devices/system/cpu/online", "0-1,4\n");
        machine.file("proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
        machine.file("proc/self/limits", "Max locked memory         65536     65536     bytes\n");
        machine
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns the findings for a file with these sections, without the file's name.
    fn finds(&self, sections: &str) -> Vec<String> {
        let socket = self.root().join("api.sock");
        let text = format!(
            "{sections}\n[[interface]]\nname = \"lan\"\nport = \"p\"\naddresses = [\"10.0.0.1/24\"]\n\
             [management]\nsocket = \"{}\"\n",
            socket.display()
        );
        let document = Document::parse(Path::new("t.toml"), &text).unwrap();
        let found = document.check_machine_at(self.root(), &|_, _| Ok(None));
        found
            .into_iter()
            .map(|finding| match finding {
                MachineFinding::Error(error) => error.to_string(),
                MachineFinding::Note(note) => format!("note: {note}"),
            })
            .map(|line| line.replace("t.toml:", ""))
            .filter(|line| line != NO_HUGEPAGES)
            .collect()
    }
}

const NO_HUGEPAGES: &str = "note: 1: memory.hugepages: no hugepage is free, ordinary pages will be \
                            used: reserve some: echo 512 > /proc/sys/vm/nr_hugepages for speed";

const RING: &str = "[[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\n";
const ALL_CAPABILITIES: &str = "CapEff:\t000001ffffffffff\n";

#[test]
fn ring_port_needs_no_privilege() {
    let machine = Machine::new();
    assert_eq!(machine.finds(RING), [""; 0]);
}

#[test]
fn missing_hugepages_are_reported() {
    let machine = Machine::new();
    let required = format!("[memory]\nhugepages = \"require\"\n{RING}");
    assert_eq!(
        machine.finds(&required),
        ["2: memory.hugepages: \"require\", but no hugepage is free: reserve some: echo 512 > \
         /proc/sys/vm/nr_hugepages, or write \"auto\""]
    );
    let region =
        "[[region]]\nname = \"r\"\nsize = \"4 MiB\"\naccess = \"w\"\nbacking = \"hugepages\"\n";
    machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1\n");
    machine.file("proc/self/status", ALL_CAPABILITIES);
    assert_eq!(machine.finds(&required), [""; 0]);
    assert_eq!(
        machine.finds(&format!("{RING}{region}")),
        [
            "9: region.backing: is \"hugepages\" with 4 MiB, but 2 MiB are free: reserve some: echo 512 > \
         /proc/sys/vm/nr_hugepages, or write \"anonymous\""
        ]
    );
    machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "2\n");
    assert_eq!(machine.finds(&format!("{RING}{region}")), [""; 0]);
    // As in `ddpd doctor`, the regions share the free hugepages, and only hugepages of 2 MiB count.
    let other = region.replace("\"r\"", "\"s\"");
    machine.file("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1\n");
    assert_eq!(
        machine.finds(&format!("{RING}{region}{other}")),
        [
            "14: region.backing: is \"hugepages\" with 4 MiB, but 0 bytes are free: reserve some: echo 512 > \
         /proc/sys/vm/nr_hugepages, or write \"anonymous\""
        ]
    );
}

#[test]
fn missing_cores_are_reported() {
    let machine = Machine::new();
    assert_eq!(
        machine.finds(&format!("[workers]\ncores = [4, 2]\n{RING}")),
        ["2: workers.cores: core 2 does not exist here: use 0, 1, 4, or write count = 1"]
    );
}

#[test]
fn missing_linux_interfaces_and_capabilities_are_reported() {
    let machine = Machine::new();
    let port = "[[port]]\nname = \"p\"\nkind = \"af_packet\"\ndevice = \"eth7\"\nmtu = 9000\n";
    let capability = "3: port.kind: is \"af_packet\", which needs CAP_NET_RAW: run ddpd as root or give \
                      it this capability";
    let wanted = "note: 3: port.kind: is \"af_packet\", which wants CAP_NET_ADMIN to make the interface \
                  promiscuous";
    assert_eq!(
        machine.finds(port),
        [
            "4: port.device: \"eth7\" does not exist here: see ip link for the names",
            capability,
            wanted
        ]
    );
    machine.file("sys/class/net/eth7/mtu", "1500\n");
    assert_eq!(
        machine.finds(port),
        [
            "5: port.mtu: is 9000, but eth7 has 1500: ip link set eth7 mtu 9000, or lower it",
            capability,
            wanted,
        ]
    );
    machine.file("sys/class/net/eth7/mtu", "9000\n");
    machine.file("proc/self/status", "CapEff:\t2000\n");
    assert_eq!(machine.finds(port), [wanted]);
    machine.file("proc/self/status", ALL_CAPABILITIES);
    assert_eq!(machine.finds(port), [""; 0]);
}

#[test]
fn xdp_and_tap_requirements_are_reported() {
    let machine = Machine::new();
    machine.file("sys/class/net/eth7/mtu", "1500\n");
    assert_eq!(
        machine.finds("[[port]]\nname = \"p\"\nkind = \"af_xdp\"\ndevice = \"eth7\"\n"),
        [
            "3: port.kind: is \"af_xdp\", which needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF: run ddpd as \
          root or give it these capabilities",
            "note: 3: port.kind: is \"af_xdp\", which wants CAP_SYS_ADMIN for libxdp, which opens programs and maps \
             by number: with libxdp 1.3 the port does not open without it",
        ]
    );
    assert_eq!(
        machine.finds("[[port]]\nname = \"p\"\nkind = \"tap\"\ndevice = \"eth7\"\n"),
        [
            "3: port.kind: is \"tap\", but there is no /dev/net/tun: modprobe tun",
            "4: port.device: \"eth7\" exists already: choose another name, or ip link del eth7",
            "3: port.kind: is \"tap\", which needs CAP_NET_ADMIN: run ddpd as root or give it this \
         capability",
        ]
    );
}

#[test]
fn missing_capture_files_are_reported() {
    let machine = Machine::new();
    let at = |name: &str| machine.root().join(name).display().to_string();
    let port = |input: &str, output: &str| {
        let keys = format!("rx_file = \"{}\"\ntx_file = \"{}\"", at(input), at(output));
        machine.finds(&format!("[[port]]\nname = \"p\"\nkind = \"pcap\"\n{keys}\n"))
    };
    machine.file("in.pcap", "\n\r\r\n");
    machine.file("notes.txt", "what came on Monday and on Tuesday");
    assert_eq!(port("in.pcap", "out.pcap"), [""; 0]);
    assert_eq!(
        port("absent.pcap", "none/out.pcap"),
        [
            format!(
                "4: port.rx_file: {} cannot be used: it cannot be read: No such file or directory (os error 2)",
                at("absent.pcap")
            ),
            format!("5: port.tx_file: its directory {0} does not exist: mkdir -p {0}", at("none")),
        ]
    );
    assert_eq!(
        port("notes.txt", "in.pcap"),
        [
            format!(
                "4: port.rx_file: {} cannot be used: it is neither pcap nor pcapng: write one with tcpdump -w",
                at("notes.txt")
            ),
            format!("note: 5: port.tx_file: {} will be overwritten", at("in.pcap")),
        ]
    );
}

#[test]
fn unbound_pci_devices_are_reported() {
    let machine = Machine::new();
    let port = "[[port]]\nname = \"p\"\nkind = \"pci\"\naddress = \"0000:03:00.0\"\n";
    assert_eq!(
        machine.finds(port),
        ["4: port.address: no PCI device 0000:03:00.0 here: see lspci -D for the addresses"]
    );
    let device = machine.root().join("sys/bus/pci/devices/0000:03:00.0");
    fs::create_dir_all(&device).unwrap();
    std::os::unix::fs::symlink("../../drivers/ixgbe", device.join("driver")).unwrap();
    assert_eq!(
        machine.finds(port),
        [
            "4: port.address: 0000:03:00.0 is bound to ixgbe, which DPDK cannot use: dpdk-devbind.py -b \
         vfio-pci 0000:03:00.0"
        ]
    );
    fs::remove_file(device.join("driver")).unwrap();
    std::os::unix::fs::symlink("../../drivers/vfio-pci", device.join("driver")).unwrap();
    assert_eq!(machine.finds(port), [""; 0]);
}

#[test]
fn missing_files_and_low_memlock_are_reported() {
    let machine = Machine::new();
    let region = |path: &str, size: &str| {
        format!("{RING}[[region]]\nname = \"r\"\naccess = \"w\"\npath = \"{path}\"\n{size}\n")
    };
    let missing = machine.root().join("none/f");
    let shown = missing.parent().unwrap().display();
    assert_eq!(
        machine.finds(&region(missing.to_str().unwrap(), "size = 1")),
        [format!("8: region.path: its directory {shown} does not exist: mkdir -p {shown}")]
    );
    let new = machine.root().join("f");
    assert_eq!(
        machine.finds(&region(new.to_str().unwrap(), "")),
        ["5: region.size: is missing and the file does not exist: write a size"]
    );
    let directory = machine.root().join("sys");
    assert_eq!(
        machine.finds(&region(directory.to_str().unwrap(), "size = 1")),
        [format!("8: region.path: {} is no ordinary file: name one", directory.display())]
    );
    assert_eq!(
        machine.finds(&region(new.to_str().unwrap(), "size = \"1 MiB\"")),
        [
            "note: 5: region: the regions have 1 MiB, but 64 KiB may be locked: they may be paged out, \
         raise ulimit -l"
        ]
    );
}

#[test]
fn files_outside_directories_are_reported() {
    let machine = Machine::new();
    let (below, outside) = (machine.root().join("sys"), machine.root().join("f"));
    let (below, outside) = (below.display(), outside.display());
    let text = format!(
        "{RING}[files]\npaths = [\"{below}\"]\n[[region]]\nname = \"r\"\naccess = \"w\"\n\
         size = 1\npath = \"{outside}\"\n"
    );
    let found = machine.finds(&text);
    let refused = format!(
        "region.path: \"{outside}\" is outside: ddpd may open only files below {below} (files.paths)"
    );
    assert!(found.iter().any(|finding| finding.ends_with(&refused)), "{found:?}");
    assert!(found.iter().all(|finding| !finding.starts_with("0:")), "{found:?}");
}

#[test]
fn unusable_management_socket_is_reported() {
    let machine = Machine::new();
    let socket = machine.root().join("api.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let shown = socket.display();
    assert_eq!(
        machine.finds(RING),
        [format!(
            "note: 11: management.socket: an appliance answers at {shown} already: stop it first, or choose \
         another path"
        )]
    );
    drop(listener);
    assert_eq!(machine.finds(RING), [""; 0], "a stale socket is replaced");
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    assert_eq!(
        machine.finds(RING),
        [format!(
            "11: management.socket: {shown} exists and is no socket: remove it or choose another path"
        )]
    );
}

/// The finding is a note, as in `ddpd doctor`: region files are sparse, so the appliance can still start.
#[test]
fn a_disk_without_room_for_its_regions_is_a_note() {
    let machine = Machine::new();
    machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "2\n");
    machine.file("proc/self/status", ALL_CAPABILITIES);
    let dir = tempfile::tempdir().unwrap();
    let region = |size: &str| {
        let path = dir.path().join("file").display().to_string();
        format!(
            "{RING}[[region]]\nname = \"r\"\nsize = \"{size}\"\naccess = \"w\"\npath = \"{path}\"\n[limits]\nregion_memory = \"4 TiB\"\n"
        )
    };
    let found = |size: &str| machine.finds(&region(size)).join("\n");
    assert!(!found("64 KiB").contains("regions may take"), "{}", found("64 KiB"));
    let note = found("1 TiB");
    assert!(
        note.contains("region.path: ") && note.contains("regions may take 1 TiB more"),
        "{note}"
    );
}

#[test]
fn regions_beyond_the_memory_of_the_machine_are_reported_at_the_largest() {
    let machine = Machine::new();
    machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "2\n");
    machine.file("proc/self/status", ALL_CAPABILITIES);
    machine.file("proc/meminfo", "MemTotal:        1048576 kB\n");
    let region = |name: &str, size: &str| {
        format!("[[region]]\nname = \"{name}\"\nsize = \"{size}\"\naccess = \"w\"\n")
    };
    assert_eq!(
        machine.finds(&format!("{RING}{}", region("big", "8 GiB"))),
        ["7: region.size: region \"big\" has 8 GiB, but RAM is 1 GiB: make it smaller"]
    );
    let two = [region("a", "256 MiB"), region("b", "896 MiB")].concat();
    assert_eq!(
        machine.finds(&format!("{RING}{two}")),
        [
            "11: region.size: region \"b\" has 896 MiB, and all 2 regions 1152 MiB, but RAM is 1 GiB: make it smaller"
        ]
    );
}

/// Up to 64 small regions share a mapping. A larger region needs one mapping, a region in shared memory two.
#[test]
fn mappings_beyond_max_map_count_are_reported_with_remedy() {
    let machine = Machine::new();
    machine.file("proc/self/status", ALL_CAPABILITIES);
    machine.file("proc/sys/vm/max_map_count", "12\n");
    let regions = |number, key: &str| {
        let one = |n| format!("[[region]]\nname = \"r{n}\"\naccess = \"w\"\n{key}\n");
        (0..number).map(one).collect::<String>()
    };
    let limit = |number: u32, regions: String| {
        machine.finds(&format!("{RING}{regions}[limits]\nregions = {number}\n")).join("\n")
    };
    assert_eq!(limit(4, regions(4, "size = \"16 KiB\"")), "");
    let large = "size = \"17 KiB\"";
    assert!(!limit(9, regions(9, large)).contains("the regions take"));
    assert_eq!(
        limit(10, regions(10, large)),
        "5: region: the regions take at least 10 memory mappings, but 9 are allowed, three quarters of vm.max_map_count \
         (12): sysctl -w vm.max_map_count=14"
    );
    let shared = |number| {
        let one = |n| {
            format!(
                "[[region]]\nname = \"s{n}\"\naccess = \"w\"\nsize = 1\nbacking = \"shared-memory\"\nobject = \"o{n}\"\n"
            )
        };
        (0..number).map(one).collect::<String>()
    };
    assert_eq!(limit(4, shared(4)), "");
    assert!(limit(5, shared(5)).contains("the regions take at least 10 memory mappings"));
    let small = limit(600, regions(9 * 64, "size = 4096"));
    assert!(small.starts_with("note: ") && !small.contains("the regions take"), "{small}");
    assert!(limit(600, regions(9 * 64 + 1, "size = 4096")).contains("at least 10 memory"));
}

#[test]
fn limit_of_regions_above_max_map_count_is_noted() {
    let machine = Machine::new();
    let text = format!("{RING}[limits]\nregions = 1000000\n");
    assert_eq!(
        machine.finds(&text),
        [
            "note: 6: limits.regions: is 1000000, which may take 2000000 memory mappings (two per region in shared memory, one \
          per other region of more than 16 KiB), but 49148 are allowed, three quarters of vm.max_map_count (65530): sysctl -w \
          vm.max_map_count=2666667; or lower it"
        ]
    );
    machine.file("proc/sys/vm/max_map_count", "2666667\n");
    assert_eq!(machine.finds(&text), [""; 0]);
}

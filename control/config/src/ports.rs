//! Reads `[[port]]`: the keys of each kind of port. Checks the requirements of the kind on the machine.

use std::fs;
use std::path::Path;
use std::time::Duration;

use port_kind::{MEMIF_MAX_BUFFERS, pcap as capture};
use toml::de::DeValue;

use super::errors::SectionSpan;
use super::impair;
use super::machine::{Findings, Machine, check_parent_writable};
use super::reader::Section;
use super::rule::ParseValue;
use super::tables;
use super::types::*;
use super::values::*;
use crate::privilege;

/// Keys of `[[port]]` that apply to some kinds only.
pub(super) mod key {
    use std::path::PathBuf;

    use port_kind::MemifRole;

    use crate::keys::keys;
    use crate::rule::Shape;
    use crate::values::{self, boolean_rule, integer_rule, rule_of_parser, word_rule};

    keys! { keys_of in "port", reload: false {
        /// For `pci`: PCI address of the device, as `lspci -D` prints it.
        address: String = rule_of_parser(Shape::Text("a PCI address"), values::parse_pci_address), "";
        /// For `pci`: arguments of the device's driver, passed unchanged.
        devargs: String = rule_of_parser(Shape::Text("arguments"), values::parse_string), "";
        /// For `af_xdp`, `af_packet` and `tap`: name of the Linux interface. A TAP is created.
        device: String = rule_of_parser(Shape::Text("the name of a network interface"), values::parse_device), "";
        /// For `af_xdp`: first queue of the device to use.
        first_queue: u16 = integer_rule(0, 1023), "0";
        /// For `af_xdp`: copy mode even if the driver supports zero-copy.
        force_copy: bool = boolean_rule(), "false";
        /// For `memif`: path of the socket that both sides use. For `vhost-user`: path of the socket that the port
        /// creates, with mode 0600.
        socket: PathBuf = values::socket_path_rule(), "";
        /// For `memif`: role of this side.
        role: MemifRole = word_rule(&MemifRole::NAMES), "";
        /// For `memif`: number of the interface, the same on both sides.
        id: u32 = integer_rule(0u32, u32::MAX), "0";
        /// For `memif`: secret, the same on both sides.
        secret: String = rule_of_parser(Shape::Text("at most 24 bytes without comma"), values::parse_string), "";
        /// For `ring`: name of the link, the same at both ports of the link. Both are in this process.
        link: String = rule_of_parser(Shape::Text("a name"), values::parse_name), "";
        /// For `pcap`: capture file from which frames are read.
        rx_file: PathBuf = rule_of_parser(Shape::Text("a path"), values::parse_path), "";
        /// For `pcap`: capture file to which frames are written. Without the key, frames are dropped.
        tx_file: PathBuf = rule_of_parser(Shape::Text("a path"), values::parse_path), "";
        /// Hardware address of the port; not for `af_xdp` and `af_packet`.
        mac: [u8; 6] = rule_of_parser(Shape::Text("a unicast hardware address"), values::parse_mac),
            "the device's, or a random local one";
    }}
}

/// Returns the names of the keys that apply to some kinds only.
fn kind_specific_keys() -> Vec<&'static str> {
    key::keys_of().into_iter().map(|key| key.name).chain(["impair"]).collect()
}

pub(super) fn read_port(
    mut section: Section<'_, '_>,
    workers: usize,
) -> (Option<PortSection>, SectionSpan) {
    let name = section.required("name", "give the port a name, such as name = \"p0\"", parse_name);
    let kind = read_port_kind(&mut section);
    let mtu = section.or_default("mtu", 1500, tables::port::mtu());
    if let Some(kind) = &kind {
        check_mtu(&section, kind, mtu);
    }
    let checksum = read_checksum(&mut section, kind.as_ref());
    let usual = kind.as_ref().map_or(SegmentationMode::Software, PortKind::default_segmentation);
    let segmentation = section.or_default("segmentation", usual, tables::port::segmentation());
    if segmentation != usual
        && !matches!(kind, Some(PortKind::Pci { .. } | PortKind::VhostUser { .. }))
    {
        section.report(
            "segmentation",
            "is \"offload\", which only the kinds \"pci\" and \"vhost-user\" have: leave it out",
        );
    }
    let mac = match kind {
        Some(PortKind::AfXdp { .. } | PortKind::AfPacket { .. }) => None,
        _ => section.optional("mac", parse_mac),
    };
    let impair = match kind {
        Some(PortKind::Ring { .. }) | None if section.contains("impair") => {
            Some(impair::read_impairment(section.table("impair")))
        }
        _ => None,
    };
    // A memif or vhost-user port loses its link when the process or virtual machine at the other end exits, which ends
    // the peer's streams. After a cable is plugged in again, TCP can continue, so other ports leave the decision to
    // TCP's timers.
    let default_timeout = matches!(kind, Some(PortKind::Memif { .. } | PortKind::VhostUser { .. }))
        .then_some(Duration::ZERO);
    let link_down_timeout =
        section.or_default("link_down_timeout", default_timeout, tables::port::link_down_timeout());
    let port_workers = read_port_workers(&mut section, workers, kind.as_ref());
    let rx_descriptors = section.or_default("rx_descriptors", 1024, tables::port::rx_descriptors());
    let tx_descriptors = section.or_default("tx_descriptors", 1024, tables::port::tx_descriptors());
    if let Some(kind) = &kind {
        check_shared(&section, kind.shared_buffers(port_workers.len() as u16, tx_descriptors));
        let word = kind.name();
        let used = kind_keys(kind);
        let rest: Vec<&str> =
            kind_specific_keys().into_iter().filter(|key| !used.contains(key)).collect();
        section.refuse_keys(&rest, &format!("for kind \"{word}\""));
    } else {
        section.mark_known(&kind_specific_keys());
    }
    let port = name.zip(kind).map(|(name, kind)| PortSection {
        name,
        kind,
        mtu,
        checksum,
        segmentation,
        mac,
        workers: port_workers,
        rx_descriptors,
        tx_descriptors,
        link_down_timeout,
        impair,
    });
    (port, section.finish())
}

fn kind_keys(kind: &PortKind) -> &'static [&'static str] {
    match kind {
        PortKind::Pci { .. } => &["address", "devargs", "mac"],
        PortKind::AfXdp { .. } => &["device", "first_queue", "force_copy"],
        PortKind::AfPacket { .. } => &["device"],
        PortKind::Tap { .. } => &["device", "mac"],
        PortKind::Memif { .. } => &["socket", "role", "id", "secret", "mac"],
        PortKind::VhostUser { .. } => &["socket", "mac"],
        PortKind::Ring { .. } => &["link", "impair", "mac"],
        PortKind::Pcap { .. } => &["rx_file", "tx_file", "mac"],
    }
}

fn read_port_kind(section: &mut Section<'_, '_>) -> Option<PortKind> {
    let words = PortKind::NAMES.map(|word| (word, word));
    let remedy = PortKind::NAMES.map(|word| format!("\"{word}\"")).join(", ");
    let word = section.required("kind", &format!("write one of {remedy}"), word_rule(&words))?;
    let linux = "name the Linux interface, such as device = \"eth1\"";
    Some(match word {
        "pci" => PortKind::Pci {
            address: section.required(
                "address",
                "write the device's PCI address, such as \"0000:03:00.0\" (see lspci -D)",
                parse_pci_address,
            )?,
            devargs: section.or_default("devargs", String::new(), parse_string),
        },
        "af_xdp" => PortKind::AfXdp {
            device: section.required("device", linux, parse_device)?,
            first_queue: section.or_default("first_queue", 0, key::first_queue()),
            force_copy: section.or_default("force_copy", false, key::force_copy()),
        },
        "af_packet" => {
            PortKind::AfPacket { device: section.required("device", linux, parse_device)? }
        }
        "tap" => PortKind::Tap {
            device: section.required(
                "device",
                "choose a name, such as device = \"ddp0\"",
                parse_device,
            )?,
        },
        "memif" => read_memif(section)?,
        "vhost-user" => PortKind::VhostUser {
            socket: section.required(
                "socket",
                "write the path at which the frontend, such as QEMU, connects",
                key::socket(),
            )?,
        },
        "pcap" => read_pcap(section)?,
        "ring" => PortKind::Ring {
            link: section.required(
                "link",
                "name the link; the port at its other end names the same one",
                parse_name,
            )?,
        },
        other => unreachable!("kind \"{other}\" is in PortKind::WORDS and has no keys here"),
    })
}

fn read_memif(section: &mut Section<'_, '_>) -> Option<PortKind> {
    let socket = section.required("socket", "write the path both sides use", key::socket());
    let role = section.required(
        "role",
        "write \"server\" on one side and \"client\" on the other",
        key::role(),
    );
    let id = section.or_default("id", 0, key::id());
    let secret = section.optional("secret", |value: &DeValue<'_>| {
        // The error message must not contain the secret.
        let unfit = |_| String::from("must be a string in quotes that is not empty");
        let secret = parse_string(value).map_err(unfit)?;
        if secret.len() > 24 || secret.contains(',') {
            return Err("must have at most 24 bytes and no comma: choose another".into());
        }
        Ok(port_kind::Secret::from(secret))
    });
    Some(PortKind::Memif { socket: socket?, role: role?, id, secret })
}

fn read_pcap(section: &mut Section<'_, '_>) -> Option<PortKind> {
    let file = |value: &DeValue<'_>| {
        let path = parse_path(value)?;
        match path.to_string_lossy().contains([',', '=', '[', ']', '"', '\'', ' ']) {
            true => {
                Err("has a character that DPDK reserves: use none of , = [ ] \" ' and space".into())
            }
            false => Ok(path),
        }
    };
    let rx_file = section.required("rx_file", "name the capture file to read frames from", file);
    let tx_file = section.optional("tx_file", file);
    if rx_file.is_some() && rx_file == tx_file {
        section.report(
            "tx_file",
            "is `rx_file` too, and would be emptied before it is read: name another",
        );
    }
    Some(PortKind::Pcap { rx_file: rx_file?, tx_file })
}

fn check_mtu(section: &Section<'_, '_>, kind: &PortKind, mtu: u16) {
    let (word, max) = (kind.name(), kind.max_mtu());
    if mtu <= max {
        return;
    }
    let text = match kind {
        PortKind::AfXdp { .. } => format!(
            "is {mtu}, but an af_xdp port carries at most {max} (one page per frame): lower it, or use kind = \
             \"af_packet\""
        ),
        _ => format!(
            "is {mtu}, but a port of kind \"{word}\" carries at most {max}: lower it; only ring, memif and \
             vhost-user carry more"
        ),
    };
    section.report("mtu", text);
}

/// Checks the number of buffers of a memif, which DPDK's driver stores in 16 bits.
fn check_shared(section: &Section<'_, '_>, shared: u32) {
    if shared > MEMIF_MAX_BUFFERS {
        section.report(
            "tx_descriptors",
            format!(
                "makes {shared} buffers with these `workers`, but a memif shares at most {MEMIF_MAX_BUFFERS}: lower it, \
                 or name fewer workers"
            ),
        );
    }
}

fn read_checksum(section: &mut Section<'_, '_>, kind: Option<&PortKind>) -> ChecksumMode {
    let checksum = section.or_default("checksum", ChecksumMode::Offload, tables::port::checksum());
    if checksum == ChecksumMode::Trusted && kind.is_some_and(PortKind::leaves_host) {
        section.report(
            "checksum",
            "cannot be \"trusted\" on a port that leaves the host: write \"offload\" or \"software\"",
        );
    }
    checksum
}

fn read_port_workers(
    section: &mut Section<'_, '_>,
    workers: usize,
    kind: Option<&PortKind>,
) -> Vec<usize> {
    let single = kind.filter(|kind| kind.has_one_queue());
    let highest = u16::try_from(workers.saturating_sub(1)).unwrap_or(u16::MAX);
    let mut list: Vec<usize> = section
        .list("workers", |value: &DeValue<'_>| {
            integer_rule(0u16, u16::MAX).parse(value).and_then(|index| match index <= highest {
                true => Ok(usize::from(index)),
                false => Err(format!(
                    "names worker {index}, but the workers are 0 to {highest}: add a core to \
                     [workers] or name another"
                )),
            })
        })
        .into_iter()
        .collect();
    if !section.contains("workers") {
        return (0..if single.is_some() { 1 } else { workers }).collect();
    }
    let given = list.len();
    list.sort_unstable();
    list.dedup();
    if list.len() != given {
        section.report("workers", "names a worker twice: remove one");
    }
    if section.is_empty_list("workers") {
        section
            .report("workers", "is empty: name at least one worker, or remove it for all of them");
    }
    if let Some(kind) = single.filter(|_| list.len() > 1) {
        let word = kind.name();
        section
            .report("workers", format!("names several, but a {word} port has one queue: name one"));
    }
    list
}

/// Reports the requirements of a port that the machine does not meet.
pub(super) fn check_machine(
    machine: &Machine,
    port: &PortSection,
    places: &SectionSpan,
    findings: &mut Findings<'_>,
) {
    match &port.kind {
        PortKind::Pci { address, .. } => check_pci(machine, address, places, findings),
        PortKind::AfXdp { device, .. } | PortKind::AfPacket { device } => {
            check_linux_device(machine, device, port.mtu, places, findings);
        }
        PortKind::Tap { device } => check_tap(machine, device, places, findings),
        PortKind::Memif { socket, .. } | PortKind::VhostUser { socket } => {
            check_parent_writable(socket, "socket", places, findings);
        }
        PortKind::Ring { .. } => {}
        PortKind::Pcap { rx_file, tx_file } => {
            check_capture_files(rx_file, tx_file.as_deref(), places, findings);
        }
    }
    check_capabilities(machine, &port.kind, places, findings);
}

/// Reports the capabilities that the port requires and the process lacks.
fn check_capabilities(
    machine: &Machine,
    kind: &PortKind,
    places: &SectionSpan,
    findings: &mut Findings<'_>,
) {
    let has = machine.capabilities();
    let needs = privilege::port_needs(&machine.root, kind);
    let word = kind.name();
    if needs.iter().any(|need| need.required && !need.is_met(has)) {
        let names: Vec<&str> =
            needs.iter().filter(|need| need.required).map(|need| need.capability.name()).collect();
        let (list, these) = match names.as_slice() {
            [one] => ((*one).to_owned(), "this capability"),
            [first @ .., last] => {
                (format!("{} and {last}", first.join(", ")), "these capabilities")
            }
            [] => return,
        };
        let message =
            format!("is \"{word}\", which needs {list}: run ddpd as root or give it {these}");
        findings.error(places, "kind", message);
    }
    for need in needs.iter().filter(|need| !need.required && !need.is_met(has)) {
        let (name, why) = (need.capability.name(), need.purpose);
        let message = format!("is \"{word}\", which wants {name} {why}");
        findings.note(places, "kind", message);
    }
}

fn check_linux_device(
    machine: &Machine,
    device: &str,
    mtu: u16,
    places: &SectionSpan,
    findings: &mut Findings<'_>,
) {
    if !machine.exists(&format!("sys/class/net/{device}")) {
        findings.error(
            places,
            "device",
            format!("\"{device}\" does not exist here: see ip link for the names"),
        );
        return;
    }
    let has = machine.read(&format!("sys/class/net/{device}/mtu"));
    let has = has.and_then(|mtu| mtu.trim().parse::<u32>().ok());
    if let Some(has) = has.filter(|&has| u32::from(mtu) > has) {
        findings.error(
            places,
            "mtu",
            format!(
                "is {mtu}, but {device} has {has}: ip link set {device} mtu {mtu}, or lower it"
            ),
        );
    }
}

fn check_tap(machine: &Machine, device: &str, places: &SectionSpan, findings: &mut Findings<'_>) {
    if !machine.exists("dev/net/tun") {
        findings.error(places, "kind", "is \"tap\", but there is no /dev/net/tun: modprobe tun");
    }
    if machine.exists(&format!("sys/class/net/{device}")) {
        findings.error(
            places,
            "device",
            format!("\"{device}\" exists already: choose another name, or ip link del {device}"),
        );
    }
}

fn check_pci(machine: &Machine, address: &str, places: &SectionSpan, findings: &mut Findings<'_>) {
    let device = format!("sys/bus/pci/devices/{address}");
    if !machine.exists(&device) {
        findings.error(
            places,
            "address",
            format!("no PCI device {address} here: see lspci -D for the addresses"),
        );
        return;
    }
    let driver = fs::read_link(machine.root.join(&device).join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    match driver.as_deref() {
        Some("vfio-pci" | "uio_pci_generic" | "igb_uio" | "mlx4_core" | "mlx5_core" | "mana") => {}
        other => findings.error(
            places,
            "address",
            format!(
                "{address} is bound to {}, which DPDK cannot use: dpdk-devbind.py -b vfio-pci \
                 {address}",
                other.unwrap_or("no driver")
            ),
        ),
    }
}

fn check_capture_files(
    input: &Path,
    output: Option<&Path>,
    places: &SectionSpan,
    findings: &mut Findings<'_>,
) {
    let refused = |path: &Path, why: String| format!("{} cannot be used: {why}", path.display());
    if let Err(why) = capture::check_input(input) {
        findings.error(places, "rx_file", refused(input, why));
    }
    let Some(output) = output else { return };
    if !output.exists() {
        check_parent_writable(output, "tx_file", places, findings);
    } else if let Err(why) = capture::check_output(output) {
        findings.error(places, "tx_file", refused(output, why));
    } else {
        findings.note(places, "tx_file", format!("{} will be overwritten", output.display()));
    }
}

//! Differences between the kinds of ports: requirements on the host, limits, driver arguments, errors. The
//! configuration words and the MTU limits are in `port_kind`.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use dpdk::{DataRoom, DeviceConfig, IdleFd, Interface, Rss, RxOffloads, TxOffloads};

use port_kind::{AF_XDP_MAX_MTU, MemifRole, PortKind, pcap};

use super::{ChecksumSite, Checksums, FRAME_OVERHEAD, PortConfig, PortError, Segmenter};

/// Message for the operator: the worker of a PCI device without receive interrupts sleeps at most 50 µs at a time.
pub(super) const NO_INTERRUPT: &str = "the device has no receive interrupts with this driver: an idle worker polls longer \
     before it sleeps, and polls again every 50 us";

/// Bytes in front of each frame in the ring of a packet socket: header and alignment, rounded up.
const PACKET_RING_HEADER: usize = 112;

/// Bytes of a page. The block size of a packet socket's ring is a multiple of this.
const PAGE: usize = 4096;

const _: () = assert!(port_kind::MAX_DATA_ROOM + dpdk::HEADROOM <= u16::MAX as usize);

/// Returns the data room of the port's packet buffers: enough for one frame of the MTU, and at least the driver's
/// minimum.
pub(super) fn data_room(config: &PortConfig) -> DataRoom {
    match config.kind {
        // The driver refuses a buffer smaller than a frame slot of its ring.
        PortKind::AfPacket { .. } => DataRoom::Bytes(packet_frame(config.mtu) as u16),
        PortKind::AfXdp { .. } => DataRoom::Page,
        _ => DataRoom::Bytes(port_kind::data_room(config.mtu)),
    }
}

/// Returns the length in bytes of one frame slot in the ring of a packet socket.
fn packet_frame(mtu: u16) -> usize {
    let need = usize::from(mtu) + FRAME_OVERHEAD + PACKET_RING_HEADER;
    if need <= PAGE { need.next_power_of_two().max(2048) } else { need.next_multiple_of(1024) }
}

/// Returns the length in bytes of one block of a packet socket's ring: whole pages that contain whole frame slots.
fn packet_block(frame: usize) -> usize {
    (1..).map(|n| n * frame).find(|bytes| bytes.is_multiple_of(PAGE)).expect("1 KiB divides frames")
}

/// Checks requirements on the host whose violation the driver would report without a reason. `own_sockets` are the
/// memif sockets of this process, which several ports may share.
pub(super) fn check_host(
    config: &PortConfig,
    own_sockets: &BTreeSet<PathBuf>,
) -> Result<(), PortError> {
    match &config.kind {
        PortKind::AfPacket { device } => {
            let interface = interface(config, device)?;
            require_capability(config, "a packet socket", "CAP_NET_RAW", dpdk::CAP_NET_RAW)?;
            check_mtu(config, device, interface.mtu)
        }
        PortKind::AfXdp { device, .. } => {
            let interface = interface(config, device)?;
            require_capability(config, "an AF_XDP socket", "CAP_NET_RAW", dpdk::CAP_NET_RAW)?;
            require_capability(
                config,
                "loading an XDP program",
                "CAP_NET_ADMIN",
                dpdk::CAP_NET_ADMIN,
            )?;
            require_capability(
                config,
                "loading an XDP program",
                "CAP_SYS_ADMIN or CAP_BPF",
                dpdk::CAP_BPF,
            )?;
            if interface.mtu > u32::from(AF_XDP_MAX_MTU) {
                return Err(PortError::InterfaceMtuForXdp {
                    port: config.name.clone(),
                    interface: device.clone(),
                    interface_mtu: interface.mtu,
                    max: AF_XDP_MAX_MTU,
                });
            }
            check_mtu(config, device, interface.mtu)
        }
        PortKind::Tap { device } => {
            check_value(config, "device", device, 15)?;
            require_capability(
                config,
                "making a tap interface",
                "CAP_NET_ADMIN",
                dpdk::CAP_NET_ADMIN,
            )?;
            if dpdk::interface(device).is_some() {
                let interface = device.clone();
                return Err(PortError::InterfaceExists { port: config.name.clone(), interface });
            }
            Ok(())
        }
        PortKind::Memif { socket, role, secret, .. } => {
            let text = absolute_path(socket);
            check_value(config, "socket", &text.to_string_lossy(), 107)?;
            let checked = secret.as_ref().map(|s| check_secret(config, s.expose()));
            checked.unwrap_or(Ok(()))?;
            check_socket(config, socket, *role == MemifRole::Server, own_sockets)
        }
        PortKind::VhostUser { socket } => {
            let text = absolute_path(socket);
            check_value(config, "socket", &text.to_string_lossy(), 107)?;
            check_socket(config, socket, true, &BTreeSet::new())
        }
        PortKind::Pcap { rx_file, tx_file } => {
            check_file(config, "rx_file", rx_file, pcap::check_input)?;
            tx_file
                .as_ref()
                .map_or(Ok(()), |file| check_file(config, "tx_file", file, pcap::check_output))
        }
        PortKind::Pci { .. } | PortKind::Ring { .. } => Ok(()),
    }
}

fn check_file(
    config: &PortConfig,
    key: &'static str,
    file: &Path,
    check: fn(&Path) -> Result<(), String>,
) -> Result<(), PortError> {
    let value = file.to_string_lossy();
    check_value(config, key, &value, 4095)?;
    let (port, value) = (config.name.clone(), value.into_owned());
    check(file).map_err(|why| PortError::Value { port, key, value, why })
}

fn interface(config: &PortConfig, device: &str) -> Result<Interface, PortError> {
    check_value(config, "device", device, 15)?;
    dpdk::interface(device).ok_or_else(|| PortError::NoInterface {
        port: config.name.clone(),
        interface: device.to_owned(),
    })
}

fn require_capability(
    config: &PortConfig,
    what: &'static str,
    capability: &'static str,
    number: u32,
) -> Result<(), PortError> {
    // CAP_SYS_ADMIN includes the right to load BPF programs. Linux 5.8 added CAP_BPF for this right.
    let is_permitted = dpdk::has_capability(number)
        || (number == dpdk::CAP_BPF && dpdk::has_capability(dpdk::CAP_SYS_ADMIN));
    if is_permitted {
        return Ok(());
    }
    Err(PortError::NoPermission { port: config.name.clone(), what, capability })
}

fn check_mtu(config: &PortConfig, device: &str, interface_mtu: u32) -> Result<(), PortError> {
    if u32::from(config.mtu) <= interface_mtu {
        return Ok(());
    }
    Err(PortError::InterfaceMtu {
        port: config.name.clone(),
        mtu: config.mtu,
        interface: device.to_owned(),
        interface_mtu,
    })
}

/// Checks that a driver's argument list can contain a value: some characters are special. `max_len` is the maximum
/// length of the value in bytes.
fn check_value(
    config: &PortConfig,
    key: &'static str,
    value: &str,
    max_len: usize,
) -> Result<(), PortError> {
    let port = config.name.clone();
    let refuse =
        |why: &str| PortError::Value { port, key, value: value.to_owned(), why: why.to_owned() };
    invalid_reason(value, max_len).map_or(Ok(()), |why| Err(refuse(why)))
}

/// Checks a memif secret as [`check_value`] does. The error does not contain the secret.
fn check_secret(config: &PortConfig, secret: &str) -> Result<(), PortError> {
    let port = config.name.clone();
    invalid_reason(secret, 24).map_or(Ok(()), |why| Err(PortError::Secret { port, why }))
}

/// Returns the reason why a value cannot be in a driver's argument list.
fn invalid_reason(value: &str, max_len: usize) -> Option<&'static str> {
    if value.is_empty() {
        Some("it is empty")
    } else if value.len() > max_len {
        Some("it is too long")
    } else if value.contains(|c: char| ",=[]\"' ".contains(c) || c.is_control()) {
        Some(
            "commas, equals signs, brackets, quotes, spaces and control characters are not allowed in it",
        )
    } else {
        None
    }
}

fn check_socket(
    config: &PortConfig,
    socket: &Path,
    serves: bool,
    ours: &BTreeSet<PathBuf>,
) -> Result<(), PortError> {
    let path = absolute_path(socket);
    let directory = path.parent().unwrap_or(&path);
    let refuse = |why: String| PortError::Socket {
        port: config.name.clone(),
        socket: socket.to_owned(),
        why,
    };
    let meta = std::fs::metadata(directory).map_err(|error| refuse(error.to_string()))?;
    if !meta.is_dir() {
        return Err(refuse("it is not a directory".to_owned()));
    }
    // A dangling symbolic link counts as an existing file: it also prevents a socket at this path.
    if !serves || ours.contains(socket) || std::fs::symlink_metadata(socket).is_err() {
        return Ok(());
    }
    // A socket with a server must stay: a connection to it succeeds, or fails because the socket types differ. The
    // socket file of a killed process refuses connections, and is removed.
    match UnixStream::connect(socket) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused && is_socket(socket) => {
            std::fs::remove_file(socket).map_err(|error| refuse(error.to_string()))
        }
        _ => Err(PortError::Busy {
            port: config.name.clone(),
            what: format!("socket {}", socket.display()),
            remedy: "stop the process that serves it, or use another path",
        }),
    }
}

/// Returns the absolute path of a socket. The drivers do not resolve relative paths.
fn absolute_path(socket: &Path) -> PathBuf {
    std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned())
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// Returns the DPDK name and arguments of the virtual device for a port. The kind must be neither `Pci` nor `Ring`.
pub(super) fn virtual_device(config: &PortConfig) -> (String, String) {
    let queues = config.queues;
    // DPDK's device names must be unique and have at most 63 bytes.
    let id = dpdk::next_id();
    match &config.kind {
        PortKind::AfPacket { device } => {
            let frame = packet_frame(config.mtu);
            let block = packet_block(frame);
            // The ring consists of whole blocks.
            let per_block = block / frame;
            let count = usize::from(config.rx_descriptors).next_multiple_of(per_block);
            (
                format!("net_af_packet{id}"),
                format!(
                    "iface={device},qpairs={queues},framesz={frame},blocksz={block},framecnt={count}"
                ),
            )
        }
        PortKind::AfXdp { device, first_queue, force_copy } => (
            format!("net_af_xdp{id}"),
            // busy_budget=0 turns preferred busy polling off, because a socket's descriptor must wake an idle worker.
            format!(
                "iface={device},start_queue={first_queue},queue_count={queues},busy_budget=0,force_copy={}",
                u8::from(*force_copy)
            ),
        ),
        PortKind::Tap { device } => (format!("net_tap{id}"), format!("iface={device}")),
        PortKind::Memif { socket, role, id: pair, secret } => {
            let role = role.name();
            let mut args = format!(
                "role={role},id={pair},socket={},socket-abstract=no,bsize={},rsize={}",
                absolute_path(socket).display(),
                data_room(config).bytes(),
                // The memif client decides the size of the rings in both directions, at most 2^14.
                config.tx_descriptors.ilog2().min(14),
            );
            if let Some(secret) = secret {
                args.push_str(&format!(",secret={}", secret.expose()));
            }
            (format!("net_memif{id}"), args)
        }
        PortKind::VhostUser { socket } => (
            format!("net_vhost{id}"),
            format!("iface={},queues={queues}", absolute_path(socket).display()),
        ),
        PortKind::Pcap { rx_file, tx_file } => {
            let mut args = format!("rx_pcap={}", rx_file.display());
            if let Some(file) = tx_file {
                args.push_str(&format!(",tx_pcap={}", file.display()));
            }
            (format!("net_pcap{id}"), args)
        }
        PortKind::Pci { .. } | PortKind::Ring { .. } => unreachable!("not a virtual device"),
    }
}

/// Returns the DPDK configuration of the port's device. `cuts` is the device or frontend that segments large packets,
/// if any. `rss` is the device's RSS, if the device distributes frames over queues.
pub(super) fn device_config(
    config: &PortConfig,
    checksums: Checksums,
    cuts: Option<Segmenter>,
    rss: Option<Rss>,
) -> DeviceConfig {
    let on = |by| by == ChecksumSite::Device;
    DeviceConfig {
        queues: config.queues,
        rx_descriptors: config.rx_descriptors,
        tx_descriptors: config.tx_descriptors,
        mtu: config.mtu,
        // The packet and AF_XDP drivers would change the MTU of the kernel's interface, which belongs to the host.
        set_mtu: matches!(config.kind, PortKind::Pci { .. } | PortKind::Tap { .. }),
        rx: RxOffloads {
            ip_checksum: on(checksums.rx_ip),
            tcp_checksum: on(checksums.rx_tcp),
            sctp_checksum: on(checksums.rx_sctp),
            rss_hash: rss.is_some(),
        },
        tx: TxOffloads {
            ip_checksum: on(checksums.tx_ip),
            tcp_checksum: on(checksums.tx_tcp),
            sctp_checksum: on(checksums.tx_sctp),
            multi_segments: cuts.is_some(),
            tcp_segmentation: cuts == Some(Segmenter::Device),
        },
        rss,
        // With a configured MAC address, the port must receive frames for an address that is not the interface's own.
        promiscuous: config.mac.is_some(),
        all_multicast: true,
        reconnect: matches!(config.kind, PortKind::Memif { role: MemifRole::Client, .. }),
        private_files: matches!(config.kind, PortKind::VhostUser { .. }),
        idle: match config.kind {
            PortKind::AfPacket { .. } => IdleFd::PacketSocket,
            PortKind::AfXdp { .. } => IdleFd::XdpSocket,
            PortKind::Tap { .. } => IdleFd::QueueInterrupt,
            PortKind::VhostUser { .. } => IdleFd::VhostKick,
            PortKind::Pci { .. } if config.may_sleep => IdleFd::RxInterrupt,
            // Ring ports are woken by `RingWakes`, without a descriptor of DPDK. The memif driver has no descriptor.
            PortKind::Pci { .. }
            | PortKind::Memif { .. }
            | PortKind::Ring { .. }
            | PortKind::Pcap { .. } => IdleFd::None,
        },
    }
}

/// Adds messages for the operator about the open port to `statements`. They report an interface that is down, or the
/// number of virtio queue pairs that a vhost-user frontend must enable.
pub(super) fn add_statements(config: &PortConfig, statements: &mut Vec<String>) {
    if let PortKind::AfPacket { device } | PortKind::AfXdp { device, .. } = &config.kind
        && dpdk::interface(device).is_some_and(|interface| !interface.up)
    {
        statements.push(format!("interface {device} is down: run `ip link set {device} up`"));
    }
    if let PortKind::VhostUser { .. } = &config.kind
        && config.queues > 1
    {
        statements.push(format!(
            "the frontend must enable {} queue pairs, one per worker: frames sent on other queue pairs are dropped",
            config.queues
        ));
    }
}

/// Converts the error of a DPDK call to the error for this kind of port.
pub(super) fn port_error(config: &PortConfig, error: dpdk::Error) -> PortError {
    let port = config.name.clone();
    match &config.kind {
        PortKind::Pci { address, .. } => PortError::Pci { port, address: address.clone(), error },
        // The AF_XDP driver returns EINVAL for every failure.
        PortKind::AfXdp { device, .. } => PortError::Xdp { port, interface: device.clone(), error },
        _ => PortError::Device { port, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Neither the error about a bad secret nor the debug form of a port contains the secret.
    #[test]
    fn port_errors_omit_secret() {
        let secret = "s3cr3t, of course";
        let kind = PortKind::Memif {
            socket: "/run/m".into(),
            role: MemifRole::Client,
            id: 0,
            secret: Some(secret.to_owned().into()),
        };
        assert!(!format!("{kind:?}").contains("s3cr3t"), "{kind:?}");
        let config = PortConfig::new("lan", kind);
        let error = check_secret(&config, secret).expect_err("a comma");
        assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error}");
        assert_eq!(error.key(), "secret");
    }

    #[test]
    fn relative_socket_resolves_to_current_directory() {
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(absolute_path(Path::new("memif.sock")), here.join("memif.sock"));
        assert_eq!(absolute_path(Path::new("./run/memif.sock")), here.join("run/memif.sock"));
        assert_eq!(absolute_path(Path::new("/run/memif.sock")), Path::new("/run/memif.sock"));
    }
}

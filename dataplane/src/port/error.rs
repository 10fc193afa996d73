//! Reasons why a port cannot be opened: one sentence each, for the operator.

use std::path::PathBuf;

/// Reason why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// An event descriptor that wakes a sleeping worker of a ring port could not be created.
    #[error("port {port:?}: an event descriptor cannot be created: {error}")]
    Descriptor {
        /// Name of the port.
        port: String,
        /// The system's error.
        error: rustix::io::Errno,
    },
    /// The kind or the device does not support the MTU.
    #[error("port {port:?}: MTU {mtu} is not possible: {why} carries {min} to {max} bytes")]
    Mtu {
        /// Name of the port.
        port: String,
        /// The requested MTU in bytes.
        mtu: u16,
        /// Smallest possible MTU in bytes.
        min: u16,
        /// Largest possible MTU in bytes.
        max: u16,
        /// The port's kind or device, which sets the limits.
        why: &'static str,
    },
    /// The Linux interface under the port has a smaller MTU.
    #[error(
        "port {port:?}: MTU {mtu} is more than the {interface_mtu} of interface {interface}; lower the port's or run `ip link set {interface} mtu {mtu}`"
    )]
    InterfaceMtu {
        /// Name of the port.
        port: String,
        /// The requested MTU in bytes.
        mtu: u16,
        /// Linux's name of the interface.
        interface: String,
        /// MTU of the interface in bytes.
        interface_mtu: u32,
    },
    /// The Linux interface's MTU is larger than AF_XDP supports.
    #[error(
        "port {port:?}: interface {interface} has MTU {interface_mtu}, and AF_XDP carries at most {max}; run `ip link set {interface} mtu {max}` or less, or use kind = \"af_packet\""
    )]
    InterfaceMtuForXdp {
        /// Name of the port.
        port: String,
        /// Linux's name of the interface.
        interface: String,
        /// MTU of the interface in bytes.
        interface_mtu: u32,
        /// Largest possible MTU in bytes.
        max: u16,
    },
    /// The number of queues is 0 or above the maximum.
    #[error(
        "port {port:?}: {queues} queues are not possible: the port has 1 to {max}; let fewer workers use it"
    )]
    Queues {
        /// Name of the port.
        port: String,
        /// The requested number of queues.
        queues: u16,
        /// Maximum number of queues.
        max: u16,
    },
    /// The two ends of a ring have different numbers of queues.
    #[error(
        "port {port:?}: it has {queues} queues and the other end of link {link:?} has {other}; give both ends the same number of workers"
    )]
    RingQueues {
        /// Name of the port.
        port: String,
        /// Name of the link that connects the two ports.
        link: String,
        /// Number of queues of this end.
        queues: u16,
        /// Number of queues of the other end.
        other: u16,
    },
    /// The number of descriptors is not a power of two from 64 to 16384.
    #[error(
        "port {port:?}: {descriptors} descriptors are not possible: the number must be a power of two from 64 to 16384"
    )]
    Descriptors {
        /// Name of the port.
        port: String,
        /// The requested number of descriptors.
        descriptors: u16,
    },
    /// The rings of a memif would share more buffers than its driver supports.
    #[error(
        "port {port:?}: {shared} buffers are not possible: a memif shares at most {max}; use fewer tx_descriptors, or let fewer \
         workers use it"
    )]
    MemifBuffers {
        /// Name of the port.
        port: String,
        /// Number of buffers of all queues in both directions.
        shared: u32,
        /// Maximum number of buffers.
        max: u32,
    },
    /// An impairment is configured for a port other than a ring.
    #[error("port {port:?}: only a port of kind \"ring\" can be impaired; remove its impair table")]
    Impair {
        /// Name of the port.
        port: String,
    },
    /// The Linux interface does not exist.
    #[error(
        "port {port:?}: there is no network interface {interface} here; `ip link` lists the interfaces"
    )]
    NoInterface {
        /// Name of the port.
        port: String,
        /// Linux's name of the interface.
        interface: String,
    },
    /// The TAP interface exists already.
    #[error(
        "port {port:?}: there is an interface {interface} already; choose another name for the tap"
    )]
    InterfaceExists {
        /// Name of the port.
        port: String,
        /// Linux's name of the interface.
        interface: String,
    },
    /// Another port, of this or another process, already receives the interface's frames.
    #[error(
        "port {port:?}: interface {interface} is used by {holder}; stop it or choose another interface"
    )]
    InterfaceTaken {
        /// Name of the port.
        port: String,
        /// Linux's name of the interface.
        interface: String,
        /// The process or user that holds the interface.
        holder: String,
    },
    /// A configuration value is invalid. Linux rejects the name, a driver's argument list cannot contain the value, or
    /// the file is unusable.
    #[error("port {port:?}: {value:?} cannot be used as its {key}: {why}")]
    Value {
        /// Name of the port.
        port: String,
        /// The configuration key of the value.
        key: &'static str,
        /// The rejected value.
        value: String,
        /// Reason, as text.
        why: String,
    },
    /// A driver's argument list cannot contain the secret. The message does not show the secret.
    #[error("port {port:?}: its secret cannot be used: {why}")]
    Secret {
        /// Name of the port.
        port: String,
        /// Reason, as text.
        why: &'static str,
    },
    /// The process lacks a privilege.
    #[error(
        "port {port:?}: {what} needs {capability}; run as root, or grant it with AmbientCapabilities= or setcap"
    )]
    NoPermission {
        /// Name of the port.
        port: String,
        /// The action that requires the privilege.
        what: &'static str,
        /// The missing capability, as in capabilities(7).
        capability: &'static str,
    },
    /// An AF_XDP socket could not be created on the interface.
    #[error(
        "port {port:?}: no AF_XDP socket can be opened on interface {interface}: another socket or XDP program holds its queues (`ip link show {interface}` names the program), or its driver has fewer queues: {error}"
    )]
    Xdp {
        /// Name of the port.
        port: String,
        /// Linux's name of the interface.
        interface: String,
        /// DPDK's error.
        error: dpdk::Error,
    },
    /// Another process or port uses the device, socket or interface.
    #[error("port {port:?}: {what} is in use; {remedy}")]
    Busy {
        /// Name of the port.
        port: String,
        /// The device, socket or interface.
        what: String,
        /// The remedy, as a clause of the message.
        remedy: &'static str,
    },
    /// The directory of a memif's or vhost-user port's socket cannot be used.
    #[error("port {port:?}: the directory of socket {} cannot be used: {why}", socket.display())]
    Socket {
        /// Name of the port.
        port: String,
        /// Path of the socket.
        socket: PathBuf,
        /// Reason, as text.
        why: String,
    },
    /// The memory is too small for the packet buffers.
    #[error(
        "port {port:?}: {mib} MiB of packet buffers do not fit into DPDK's memory; increase it (memory.size, or hugepages), or configure fewer descriptors for the port: {error}"
    )]
    NoMemory {
        /// Name of the port.
        port: String,
        /// MiB of packet buffers needed.
        mib: u64,
        /// DPDK's error.
        error: dpdk::Error,
    },
    /// The PCI device does not exist, or its driver is not usable by DPDK.
    #[error(
        "port {port:?}: PCI device {address} cannot be used: it must exist and be bound to vfio-pci (`dpdk-devbind.py -b vfio-pci {address}`), or have a driver that DPDK shares (mlx5): {error}"
    )]
    Pci {
        /// Name of the port.
        port: String,
        /// PCI address of the device.
        address: String,
        /// DPDK's error.
        error: dpdk::Error,
    },
    /// A DPDK call failed for a reason that no other variant covers.
    #[error("port {port:?}: {error}")]
    Device {
        /// Name of the port.
        port: String,
        /// DPDK's error.
        error: dpdk::Error,
    },
}

impl PortError {
    /// Returns the key in the port's configuration table that the operator should check.
    pub fn key(&self) -> &'static str {
        match self {
            PortError::Mtu { .. }
            | PortError::InterfaceMtu { .. }
            | PortError::InterfaceMtuForXdp { .. } => "mtu",
            PortError::Queues { .. } | PortError::RingQueues { .. } => "workers",
            PortError::Descriptors { .. } | PortError::NoMemory { .. } => "rx_descriptors",
            PortError::MemifBuffers { .. } => "tx_descriptors",
            PortError::Impair { .. } => "impair",
            PortError::NoInterface { .. }
            | PortError::InterfaceExists { .. }
            | PortError::InterfaceTaken { .. }
            | PortError::Xdp { .. } => "device",
            PortError::Value { key, .. } => key,
            PortError::Secret { .. } => "secret",
            PortError::Socket { .. } => "socket",
            PortError::Pci { .. } => "address",
            PortError::NoPermission { .. }
            | PortError::Descriptor { .. }
            | PortError::Busy { .. }
            | PortError::Device { .. } => "kind",
        }
    }
}

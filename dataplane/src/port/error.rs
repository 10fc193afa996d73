//! Reasons why a port cannot be opened: one sentence each, for the operator.

use std::path::PathBuf;

/// Reason why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// An event descriptor that wakes a sleeping worker of a ring port could not be created.
    #[error("port {port:?}: an event descriptor cannot be made: {error}")]
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
        /// The kind or device that sets the limit.
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
        "port {port:?}: {queues} queues are out of reach: it has 1 to {max}; let fewer workers use it"
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
        "port {port:?}: it has {queues} queues and the other end of link {link:?} has {other}; give both ends as many workers"
    )]
    RingQueues {
        /// Name of the port.
        port: String,
        /// Name of the ring pair.
        link: String,
        /// Queues of this end.
        queues: u16,
        /// Queues of the other end.
        other: u16,
    },
    /// The number of descriptors is not a power of two in the allowed range.
    #[error(
        "port {port:?}: {descriptors} descriptors are impossible: a power of two from 64 to 16384 is needed"
    )]
    Descriptors {
        /// Name of the port.
        port: String,
        /// The requested number of descriptors.
        descriptors: u16,
    },
    /// A memif shares more buffers than its driver can count.
    #[error(
        "port {port:?}: {shared} buffers are out of reach: a memif shares at most {max}; use fewer tx_descriptors, or let fewer \
         workers use it"
    )]
    MemifBuffers {
        /// Name of the port.
        port: String,
        /// Buffers of all queues and both directions.
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
        "port {port:?}: there is no network interface {interface} here; `ip link` lists those that are"
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
        "port {port:?}: interface {interface} is used by {holder}; stop that one or choose another interface"
    )]
    InterfaceTaken {
        /// Name of the port.
        port: String,
        /// Linux's name of the interface.
        interface: String,
        /// The process or user that holds the interface.
        holder: String,
    },
    /// A value is invalid: a name that Linux rejects, one that a driver's argument list cannot contain, or an
    /// unusable file.
    #[error("port {port:?}: {value:?} cannot be used as its {key}: {why}")]
    Value {
        /// Name of the port.
        port: String,
        /// The configuration key.
        key: &'static str,
        /// The rejected value.
        value: String,
        /// Reason, as text.
        why: String,
    },
    /// A driver's argument list cannot contain the secret. The message hides its value.
    #[error("port {port:?}: its secret cannot be used: {why}")]
    Secret {
        /// Name of the port.
        port: String,
        /// Reason, as text.
        why: &'static str,
    },
    /// A privilege is missing.
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
        "port {port:?}: there is no AF_XDP socket to be had on interface {interface}: another socket or XDP program holds its queues (`ip link show {interface}` names the program), or its driver has not so many of them: {error}"
    )]
    Xdp {
        /// Name of the port.
        port: String,
        /// Linux's name of the interface.
        interface: String,
        /// DPDK's error.
        error: dpdk::Error,
    },
    /// Another process or port uses the resource.
    #[error("port {port:?}: {what} is in use; {remedy}")]
    Busy {
        /// Name of the port.
        port: String,
        /// The device, socket or interface.
        what: String,
        /// Remedy, one clause.
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
        "port {port:?}: {mib} MiB of packet buffers do not fit into DPDK's memory; give it more (memory.size, or hugepages), or the port fewer descriptors: {error}"
    )]
    NoMemory {
        /// Name of the port.
        port: String,
        /// MiB needed.
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
    /// Another DPDK call failed.
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

//! Why a port does not open: one sentence each, for the operator.

use std::path::PathBuf;

/// Why a port does not open.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A ring's descriptor for a worker that sleeps could not be made.
    #[error("port {port:?}: an event descriptor cannot be made: {error}")]
    Descriptor {
        /// The port.
        port: String,
        /// The system's answer.
        error: rustix::io::Errno,
    },
    /// The kind or the device does not carry the MTU.
    #[error("port {port:?}: MTU {mtu} is not possible: {why} carries {min} to {max} bytes")]
    Mtu {
        /// The port.
        port: String,
        /// Asked for.
        mtu: u16,
        /// Smallest.
        min: u16,
        /// Largest.
        max: u16,
        /// What sets the limit.
        why: &'static str,
    },
    /// The Linux interface under the port has a smaller MTU.
    #[error(
        "port {port:?}: MTU {mtu} is more than the {interface_mtu} of interface {interface}; lower the port's or run `ip link set {interface} mtu {mtu}`"
    )]
    InterfaceMtu {
        /// The port.
        port: String,
        /// Asked for.
        mtu: u16,
        /// Linux's name.
        interface: String,
        /// What it has.
        interface_mtu: u32,
    },
    /// The Linux interface has a larger MTU than AF_XDP carries.
    #[error(
        "port {port:?}: interface {interface} has MTU {interface_mtu}, and AF_XDP carries at most {max}; run `ip link set {interface} mtu {max}` or less, or use kind = \"af_packet\""
    )]
    InterfaceMtuForXdp {
        /// The port.
        port: String,
        /// Linux's name.
        interface: String,
        /// What it has.
        interface_mtu: u32,
        /// Most that is possible.
        max: u16,
    },
    /// More queues than there are, or none.
    #[error(
        "port {port:?}: {queues} queues are out of reach: it has 1 to {max}; let fewer workers use it"
    )]
    Queues {
        /// The port.
        port: String,
        /// Asked for.
        queues: u16,
        /// Most.
        max: u16,
    },
    /// Both ends of a ring need as many queues.
    #[error(
        "port {port:?}: it has {queues} queues and the other end of link {link:?} has {other}; give both ends as many workers"
    )]
    RingQueues {
        /// The port.
        port: String,
        /// The pair.
        link: String,
        /// This end's.
        queues: u16,
        /// The other end's.
        other: u16,
    },
    /// A ring size that is none.
    #[error(
        "port {port:?}: {descriptors} descriptors are impossible: a power of two from 64 to 16384 is needed"
    )]
    Descriptors {
        /// The port.
        port: String,
        /// Asked for.
        descriptors: u16,
    },
    /// A memif shares more buffers than its driver can count.
    #[error(
        "port {port:?}: {shared} buffers are out of reach: a memif shares at most {max}; use fewer tx_descriptors, or let fewer \
         workers use it"
    )]
    MemifBuffers {
        /// The port.
        port: String,
        /// Of all queues and both directions.
        shared: u32,
        /// Most.
        max: u32,
    },
    /// Only ring ports can be impaired.
    #[error("port {port:?}: only a port of kind \"ring\" can be impaired; remove its impair table")]
    Impair {
        /// The port.
        port: String,
    },
    /// There is no such interface.
    #[error(
        "port {port:?}: there is no network interface {interface} here; `ip link` lists those that are"
    )]
    NoInterface {
        /// The port.
        port: String,
        /// Linux's name.
        interface: String,
    },
    /// There is such an interface already.
    #[error(
        "port {port:?}: there is an interface {interface} already; choose another name for the tap"
    )]
    InterfaceExists {
        /// The port.
        port: String,
        /// Linux's name.
        interface: String,
    },
    /// Another port, here or in another process, receives its frames.
    #[error(
        "port {port:?}: interface {interface} is used by {holder}; stop that one or choose another interface"
    )]
    InterfaceTaken {
        /// The port.
        port: String,
        /// Linux's name.
        interface: String,
        /// Who has it.
        holder: String,
    },
    /// A name that Linux does not take, one that cannot be handed on, or a file that cannot be used.
    #[error("port {port:?}: {value:?} cannot be used as its {key}: {why}")]
    Value {
        /// The port.
        port: String,
        /// The configuration key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// A secret that cannot be handed on; its value is not told.
    #[error("port {port:?}: its secret cannot be used: {why}")]
    Secret {
        /// The port.
        port: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A privilege is missing.
    #[error(
        "port {port:?}: {what} needs {capability}; run as root, or grant it with AmbientCapabilities= or setcap"
    )]
    NoPermission {
        /// The port.
        port: String,
        /// What was to be done.
        what: &'static str,
        /// Which privilege, as in capabilities(7).
        capability: &'static str,
    },
    /// No AF_XDP socket on the interface.
    #[error(
        "port {port:?}: there is no AF_XDP socket to be had on interface {interface}: another socket or XDP program holds its queues (`ip link show {interface}` names the program), or its driver has not so many of them: {error}"
    )]
    Xdp {
        /// The port.
        port: String,
        /// Linux's name.
        interface: String,
        /// What DPDK says.
        error: dpdk::Error,
    },
    /// Somebody else has it.
    #[error("port {port:?}: {what} is in use; {remedy}")]
    Busy {
        /// The port.
        port: String,
        /// The device, socket or interface.
        what: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The directory of a memif's or vhost-user port's socket.
    #[error("port {port:?}: the directory of socket {} cannot be used: {why}", socket.display())]
    Socket {
        /// The port.
        port: String,
        /// The socket.
        socket: PathBuf,
        /// Why.
        why: String,
    },
    /// Not enough memory for the packet buffers.
    #[error(
        "port {port:?}: {mib} MiB of packet buffers do not fit into DPDK's memory; give it more (memory.size, or hugepages), or the port fewer descriptors: {error}"
    )]
    NoMemory {
        /// The port.
        port: String,
        /// Needed.
        mib: u64,
        /// What DPDK says.
        error: dpdk::Error,
    },
    /// The PCI device is not there or not ours.
    #[error(
        "port {port:?}: PCI device {address} cannot be used: it must exist and be bound to vfio-pci (`dpdk-devbind.py -b vfio-pci {address}`), or have a driver that DPDK shares (mlx5): {error}"
    )]
    Pci {
        /// The port.
        port: String,
        /// Its address.
        address: String,
        /// What DPDK says.
        error: dpdk::Error,
    },
    /// Anything else.
    #[error("port {port:?}: {error}")]
    Device {
        /// The port.
        port: String,
        /// What DPDK says.
        error: dpdk::Error,
    },
}

impl PortError {
    /// The key of the port's table that the operator should look at.
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

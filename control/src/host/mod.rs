//! Interfaces whose port is shared with the host's kernel (`host = "tap"`).
//!
//! ```text
//!   wire ── port ── worker ── rings ── pump (a thread) ── TAP ── the host's kernel
//! ```
//!
//! The interface's addresses are assigned to the TAP, which has the port's link-layer address. If the kernel also
//! received frames from the port's device, kernel and data plane would both answer peers. Therefore an nftables table
//! drops frames received on the device. The port's packet socket still receives these frames, the kernel's protocols do
//! not. A socket of this process owns the table: table and TAP disappear with the process.
//!
//! With IPsec, frames on the TAP are plaintext in both directions: the data plane protects them. The data plane's
//! ephemeral ports are reserved in the kernel, so that the kernel does not open connections from them.

mod filter;
mod netlink;
mod pump;
mod reserved_ports;
mod tap;

use std::thread::JoinHandle;

use config::{Config, InterfaceSection, PortKind};
use dataplane::host::HostEnd;

use crate::sandbox::Sandbox;

pub use self::tap::find_misplaced_address;

/// Returns true if the peer of an interface, such as a veth, is in another network namespace. Interface numbers do not
/// show this, because they are per namespace.
///
/// # Errors
/// The kernel cannot be queried. The error is one sentence.
pub(crate) fn has_peer_in_other_netns(device: &str) -> Result<bool, String> {
    let mut socket = netlink::Socket::open(netlink::Protocol::Route)
        .map_err(|error| format!("no netlink socket: {error}"))?;
    socket.has_peer_in_other_netns(device).map_err(|error| {
        format!("netlink does not tell where the other end of {device} is: {error}")
    })
}

/// A shared interface before its workers run: its TAP, and the kernel settings that are in force while it exists.
#[derive(Debug)]
pub(crate) struct SharedInterface {
    /// Index of the interface in the configuration.
    interface: usize,
    /// Name of the interface, for the log.
    name: String,
    tap: tap::Tap,
    /// Dropped last: the filter must remain until the TAP is deleted.
    kernel_settings: KernelSettings,
}

/// Kernel settings that are reverted on drop.
#[derive(Debug)]
struct KernelSettings {
    _filter: Option<filter::Filter>,
    _reserved: Option<reserved_ports::ReservedPorts>,
}

/// Creates the TAPs of a configuration. `macs` are the link-layer addresses of its ports. Must be called before the
/// process drops capabilities and restricts its system calls.
///
/// # Errors
/// The kernel refuses a request, or an address of an interface is already assigned to another device of the host. The
/// error is one sentence.
pub(crate) fn create_taps(
    config: &Config,
    macs: &[[u8; 6]],
) -> Result<Vec<SharedInterface>, String> {
    let (mut all, mut devices): (Vec<SharedInterface>, Vec<&str>) = (Vec::new(), Vec::new());
    for (interface, section) in config.interfaces.iter().enumerate() {
        let Some(name) = &section.host else { continue };
        let port = config.ports.iter().position(|port| port.name == section.port);
        let (Some(port), Some(mac)) = (port, port.and_then(|port| macs.get(port))) else {
            continue;
        };
        let host_error = |what: String| format!("interface {}: host: {what}", section.name);
        // The kernel also receives frames from this device. Several VLANs may share it; one filter per device is
        // enough.
        let device = match &config.ports[port].kind {
            PortKind::AfPacket { device } if !devices.contains(&device.as_str()) => {
                Some(device.as_str())
            }
            _ => None,
        };
        devices.extend(device);
        let shared = create_tap(interface, section, name, device, *mac).map_err(host_error)?;
        if config.ipsec.is_enabled() {
            tap::exempt_from_ipsec(name).map_err(host_error)?;
        }
        all.push(shared);
    }
    Ok(all)
}

fn create_tap(
    interface: usize,
    section: &InterfaceSection,
    name: &str,
    device: Option<&str>,
    mac: [u8; 6],
) -> Result<SharedInterface, String> {
    // Refused before the TAP exists: the kernel would answer for an address of the interface on another device.
    if let Some(sentence) = find_misplaced_address(section, name)? {
        return Err(sentence);
    }
    let filter = device.map(filter::Filter::install).transpose()?;
    let reserved = reserved_ports::ReservedPorts::reserve(section.local_ports);
    let tap = tap::Tap::create(name, mac, section)?;
    let held = KernelSettings { _filter: filter, _reserved: reserved };
    tracing::info!("interface {}: shared with the host's kernel by {name}", section.name);
    Ok(SharedInterface { interface, name: section.name.clone(), tap, kernel_settings: held })
}

/// The pump threads of an appliance's shared interfaces.
#[derive(Debug, Default)]
pub(crate) struct HostPumps {
    threads: Vec<JoinHandle<()>>,
    _kernel_settings: Vec<KernelSettings>,
}

impl HostPumps {
    /// Starts one thread per shared interface. `ends` are the host's ends of the rings to the workers.
    ///
    /// # Errors
    /// A thread cannot be started. The error is one sentence.
    pub(crate) fn start(
        shared: Vec<SharedInterface>,
        ends: Vec<HostEnd>,
        sandbox: &Sandbox,
    ) -> Result<HostPumps, String> {
        let mut hosts = HostPumps::default();
        let mut ends: Vec<Option<HostEnd>> = ends.into_iter().map(Some).collect();
        for SharedInterface { interface, name, tap, kernel_settings: held } in shared {
            let is_of_interface = |end: &&mut Option<HostEnd>| {
                end.as_ref().is_some_and(|end| usize::from(end.interface.0) == interface)
            };
            let Some(end) = ends.iter_mut().find(is_of_interface).and_then(Option::take) else {
                continue;
            };
            let sandbox = sandbox.clone();
            let thread = std::thread::Builder::new().name("host".into()).spawn(move || {
                sandbox.filter_worker(&[]);
                pump::run(&name, &tap, end);
            });
            hosts.threads.push(thread.map_err(|error| format!("cannot start a thread: {error}"))?);
            hosts._kernel_settings.push(held);
        }
        Ok(hosts)
    }

    /// Waits for the threads, which end after the workers. Returns false if a thread panicked.
    pub(crate) fn join(self) -> bool {
        let ends: Vec<bool> =
            self.threads.into_iter().map(|thread| thread.join().is_ok()).collect();
        ends.into_iter().all(|sound| sound)
    }
}

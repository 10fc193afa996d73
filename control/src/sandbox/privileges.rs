//! Drops the capabilities that the configuration does not need from the calling thread. Threads that the calling
//! thread starts inherit the remaining capabilities.

use std::path::Path;

use rustix::thread::{CapabilitySet, CapabilitySets};

use config::Config;
use config::privilege::{Capabilities, locked_memory_limit, port_needs, process_needs};

/// Drops from all capability sets the capabilities that no appliance needs. Returns the kept capabilities.
///
/// # Errors
/// The capabilities or `/proc/self/limits` cannot be read, or the kernel refuses the change. The error is one sentence.
pub(super) fn drop_unneeded(configs: &[Config]) -> Result<Capabilities, String> {
    let failed = |what, error| format!("capabilities cannot be {what}: {error}");
    let own = rustix::thread::capabilities(None).map_err(|error| failed("read", error))?;
    let limits = std::fs::read_to_string("/proc/self/limits")
        .map_err(|error| format!("/proc/self/limits cannot be read: {error}"))?;
    let limit = locked_memory_limit(&limits)?;
    let kept =
        needed_capabilities(Path::new("/"), configs, limit, Capabilities(own.permitted.bits()));
    shrink_bounding_set(kept);
    let set = CapabilitySet::from_bits_retain(kept.0);
    // A capability that leaves the permitted or inheritable set also leaves the ambient set.
    let sets =
        CapabilitySets { effective: set, permitted: set, inheritable: own.inheritable & set };
    rustix::thread::set_capabilities(None, sets).map_err(|error| failed("dropped", error))?;
    Ok(kept)
}

/// Returns the capabilities of `own` that the ports or the process need.
fn needed_capabilities(
    root: &Path,
    configs: &[Config],
    limit: Option<u64>,
    own: Capabilities,
) -> Capabilities {
    let mut kept = Capabilities::default();
    for config in configs {
        let ports = config.ports.iter().flat_map(|port| port_needs(root, &port.kind)).copied();
        for need in ports.chain(process_needs(config, limit)) {
            for capability in [Some(need.capability), need.alternative].into_iter().flatten() {
                // The alternative is kept only if the capability itself is missing.
                if own.has(capability) {
                    kept = kept.with(capability);
                    break;
                }
            }
        }
    }
    kept
}

/// Removes all but the kept capabilities from the bounding set. Without `CAP_SETPCAP` the bounding set is unchanged.
/// The remaining capabilities are harmless there, because the process executes no program and has no_new_privs.
fn shrink_bounding_set(kept: Capabilities) {
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.0 & one.bits() == 0
            && let Err(error) = rustix::thread::remove_capability_from_bounding_set(one)
        {
            // EINVAL: the number is beyond the kernel's last capability. EPERM: `CAP_SETPCAP` is missing.
            tracing::debug!("sandbox: the rest of the bounding set is kept: {error}");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Document;

    fn config(port: &str, more: &str) -> Config {
        let text = format!(
            "[[port]]\nname = \"p\"\n{port}\n[[interface]]\nname = \"i\"\nport = \"p\"\naddresses = \
             [\"192.0.2.1/24\"]\n{more}"
        );
        Document::parse(Path::new("t.toml"), &text).unwrap().config
    }

    #[test]
    fn only_held_and_needed_capabilities_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let kept = |config: &Config, limit, own| {
            needed_capabilities(root.path(), std::slice::from_ref(config), limit, Capabilities(own))
                .names()
        };
        let all = (1 << 41) - 1;
        let ring = config("kind = \"ring\"\nlink = \"l\"", "");
        assert_eq!(kept(&ring, None, all), [""; 0]);
        assert_eq!(kept(&ring, Some(65536), all), ["CAP_IPC_LOCK"]);
        let packet = config("kind = \"af_packet\"\ndevice = \"eth0\"", "");
        assert_eq!(kept(&packet, None, all), ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
        assert_eq!(kept(&packet, None, 1 << 13), ["CAP_NET_RAW"]);
        let xdp = config("kind = \"af_xdp\"\ndevice = \"eth0\"", "");
        let with_admin = ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN"];
        assert_eq!(kept(&xdp, None, all & !(1 << 39)), with_admin);
        let with_both = ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "CAP_BPF"];
        assert_eq!(kept(&xdp, None, all), with_both);
    }
}

//! Frame counts of the veth pair between the two namespaces. The counts include frames that the kernel dropped because
//! a queue or the appliance's receive ring was full. The appliance does not count those frames.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

/// The veth pair from this program's namespace to the target's.
#[derive(Clone, Debug)]
pub(crate) struct Cable {
    namespace: String,
    target_device: String,
    statistics: PathBuf,
}

impl Cable {
    /// Returns the cable from `device` in this namespace to `target_device` in `namespace`.
    pub(crate) fn new(device: &str, namespace: &str, target_device: &str) -> Cable {
        Cable {
            namespace: namespace.to_owned(),
            target_device: target_device.to_owned(),
            statistics: PathBuf::from(format!("/sys/class/net/{device}/statistics")),
        }
    }

    /// Returns the frames dropped on transmit at this end and the frames received at the other end, both since the
    /// devices were created.
    pub(crate) fn frame_counts(&self) -> Result<(u64, u64)> {
        let dropped = std::fs::read_to_string(self.statistics.join("tx_dropped"))?;
        let output = Command::new("ip")
            .args(["-n", &self.namespace, "-j", "-s", "link", "show", "dev", &self.target_device])
            .output()?;
        let links: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let arrived = links[0]["stats64"]["rx"]["packets"].as_u64();
        Ok((dropped.trim().parse()?, arrived.context("no statistics of the target's device")?))
    }
}

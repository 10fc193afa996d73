//! `--sysfs`: a mount namespace in which /sys/class/infiniband has a directory for each device.
//!
//! ```text
//! /sys/class                           tmpfs; the other directories are bind mounts of the original ones
//!   infiniband/DEVICE/device/net/IF    DEVICE and IF: name of the appliance's interface
//! ```
//!
//! The tmpfs is needed because sysfs has no directory `infiniband` without the kernel's RDMA modules, and no program
//! can create directories in sysfs.

use std::path::Path;
use std::process::Command;

use crate::exit::{Exit, Failure};

/// Script that mounts the directories, then executes the program. Arguments: number of devices, devices, program.
const SCRIPT: &str = r#"
set -e
count=$1 base=$(mktemp -d "${TMPDIR:-/tmp}/ddpd-sysfs.XXXXXX")
shift
mount -t tmpfs -o mode=0755 tmpfs "$base"
mkdir "$base/class" "$base/class/infiniband"
for entry in /sys/class/*; do
    name=${entry##*/}
    [ -d "$entry" ] && [ "$name" != infiniband ] || continue
    mkdir "$base/class/$name"
    mount --bind "$entry" "$base/class/$name"
done
while [ "$count" -gt 0 ]; do
    mkdir -p "$base/class/infiniband/$1/device/net/$1"
    printf '4: RNIC\n' >"$base/class/infiniband/$1/node_type"
    count=$((count - 1))
    shift
done
mount --rbind "$base/class" /sys/class
umount --lazy "$base"
rmdir "$base"
exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"
"#;

/// Returns the command that executes `program` in the namespace. The caller appends the program's arguments.
///
/// # Errors
/// The name of a device cannot be the name of a directory.
pub(super) fn command(
    devices: impl Iterator<Item = String>,
    program: &Path,
) -> Result<Command, Failure> {
    let devices: Vec<String> = devices.collect();
    if let Some(name) = devices.iter().find(|name| !is_file_name(name)) {
        let message = format!("the appliance has a device {name:?}, which cannot be in sysfs");
        return Err(Failure::new(Exit::Failed, message));
    }
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-current-user",
        "--keep-caps",
        "--mount",
        "--",
        "sh",
        "-c",
        SCRIPT,
    ]);
    command.args(["ddpctl run", &devices.len().to_string()]).args(devices).arg(program);
    Ok(command)
}

fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_to_other_directories_are_refused() {
        for name in ["", ".", "..", "../../tmp", "a/b", "a\0b"] {
            let failure = command([name.to_owned()].into_iter(), Path::new("true")).unwrap_err();
            assert!(failure.message.contains("cannot be in sysfs"), "{}", failure.message);
        }
        assert!(command(["lab1".to_owned()].into_iter(), Path::new("true")).is_ok());
    }
}

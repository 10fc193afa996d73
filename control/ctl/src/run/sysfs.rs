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
pub(super) fn command(devices: impl Iterator<Item = String>, program: &Path) -> Command {
    let devices: Vec<String> = devices.collect();
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
    command
}

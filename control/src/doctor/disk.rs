//! Free space on the disks of file regions.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use config::{Backing, show_size};

use super::finding::{Check, Finding, quote};
use super::host::{Host, Unknown};
use super::subject::Subject;

const DISK: Check =
    Check("disk", "What peers write to a file region is lost where its file cannot grow.");

pub(super) fn space(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let mut needed: BTreeMap<&Path, u64> = BTreeMap::new();
    for region in subject.configs.iter().flat_map(|config| &config.regions) {
        let Backing::File { path, .. } = &region.backing else { continue };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // Blocks that the file already has need no further space.
        let has =
            std::fs::metadata(host.path(path)).map_or(0, |file| file.blocks().saturating_mul(512));
        let more = region.size.unwrap_or(0).saturating_sub(has);
        let sum = needed.entry(directory).or_default();
        *sum = sum.saturating_add(more);
    }
    for (directory, wanted) in needed {
        let shown = directory.display();
        if !host.path(directory).is_dir() {
            let command = format!("mkdir -p {}", quote(&shown.to_string()));
            let seen = format!("there is no directory {shown}");
            found.push(DISK.error(seen).remedy("make it, for the user of ddpd").command(command));
            continue;
        }
        found.push(match free(host, directory) {
            Err(why) => DISK.unknown(why),
            Ok(free) => {
                let seen = format!(
                    "{shown}: {} free, regions may take {} more",
                    show_size(free),
                    show_size(wanted)
                );
                match free >= wanted {
                    true => DISK.ok(seen),
                    false => DISK.error(seen).remedy(
                        "make room there, or choose another path or a smaller size for the regions",
                    ),
                }
            }
        });
    }
}

/// Returns the free bytes available to users other than root.
fn free(host: &Host, directory: &Path) -> Result<u64, Unknown> {
    let space = rustix::fs::statvfs(host.path(directory)).map_err(|error| {
        format!("{}: the file system does not tell: {error}", directory.display())
    })?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::doctor::testing::{RING, Tree, only_finding, subject};

    #[test]
    fn a_region_that_does_not_fit_on_its_disk_is_an_error() {
        let region =
            "[[region]]\nname = \"r\"\npath = \"/srv/r.bin\"\nsize = \"4 KiB\"\naccess = \"w\"";
        let mut subject = subject("count = 1", RING, region);
        let found = Tree::new(&[]).run(&subject, space);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].command.as_deref(), Some("mkdir -p /srv"));
        let tree = Tree::new(&[("srv/other", "")]);
        assert_eq!(only_finding(&tree.run(&subject, space)).0, Severity::Ok);
        subject.configs[0].regions[0].size = Some(1 << 62);
        let found = tree.run(&subject, space);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert!(found[0].seen.starts_with("/srv: "), "{found:?}");
        assert_eq!(tree.run(&super::super::testing::subject("count = 1", RING, ""), space), []);
    }
}

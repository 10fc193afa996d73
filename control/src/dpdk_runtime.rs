//! DPDK's runtime directory, which contains the telemetry socket. The default for unprivileged users is `/tmp/dpdk`, a
//! name that any user of the host can create first. Therefore [`create`] checks the owner and the mode of the
//! directory.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Returns the path that DPDK chooses for its runtime directory.
pub(crate) fn directory() -> PathBuf {
    runtime_directory(rustix::process::geteuid().is_root(), |name| std::env::var_os(name))
}

/// Returns DPDK's choice for a process of root or of another user. `variable` returns an environment variable.
fn runtime_directory(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let base = match variable("RUNTIME_DIRECTORY") {
        Some(base) => base,
        None if is_root => "/var/run".into(),
        None => variable("XDG_RUNTIME_DIR").unwrap_or_else(|| "/tmp".into()),
    };
    Path::new(&base).join("dpdk")
}

/// Creates the directory with mode 0700, unless it exists.
///
/// # Errors The directory cannot be created or read, or it must not be trusted ([`distrust_reason`]). The error is one
/// sentence.
pub(crate) fn create(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    let failed = |error| format!("management.dpdk_telemetry: {shown}: {error}");
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let found = std::fs::symlink_metadata(directory).map_err(failed)?;
    match distrust_reason(&found, rustix::process::geteuid().as_raw()) {
        None => Ok(()),
        Some(why) => Err(format!(
            "management.dpdk_telemetry: {shown}, where DPDK makes its socket, {why}: remove it, or set XDG_RUNTIME_DIR to a \
             directory of this user"
        )),
    }
}

/// Returns the reason why user `own` must not trust a path: it is not a directory, it belongs to a user other than
/// `own` and root, or other users can write to it. `None` if it can be trusted.
fn distrust_reason(found: &std::fs::Metadata, own: u32) -> Option<String> {
    if !found.is_dir() {
        Some("is not a directory".into())
    } else if found.uid() != own && found.uid() != 0 {
        Some(format!("belongs to user {}", found.uid()))
    } else if found.mode() & 0o022 != 0 {
        Some("can be written by other users".into())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn runtime_directory_matches_dpdks_choice() {
        let chosen = |is_root, set: &[(&str, &str)]| {
            let variable = |name: &str| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
            };
            runtime_directory(is_root, variable).display().to_string()
        };
        let both = [("RUNTIME_DIRECTORY", "/run/ddpd"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(chosen(true, &both), "/run/ddpd/dpdk");
        assert_eq!(chosen(true, &both[1..]), "/var/run/dpdk");
        assert_eq!(chosen(false, &both[1..]), "/run/user/7/dpdk");
        assert_eq!(chosen(false, &[]), "/tmp/dpdk");
    }

    #[test]
    fn a_directory_that_another_user_controls_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("dpdk");
        create(&own).unwrap();
        assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
        create(&own).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let found = std::fs::metadata(&own).unwrap();
        let foreign = distrust_reason(&found, uid + 1);
        assert_eq!(foreign, (uid != 0).then(|| format!("belongs to user {uid}")));
        for mode in [0o720, 0o702, 0o777] {
            std::fs::set_permissions(&own, Permissions::from_mode(mode)).unwrap();
            assert!(create(&own).unwrap_err().contains("can be written by other users"));
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert!(create(&link).unwrap_err().contains("is not a directory"));
        assert!(create(&dir.path().join("none/dpdk")).unwrap_err().contains("none/dpdk"));
    }
}

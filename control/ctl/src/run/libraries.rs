//! The directory of the verbs libraries, and the check that the dynamic loader will use them for a program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exit::{Exit, Failure};

/// Environment variable that names the directory of the libraries, and overrides [`DIRECTORIES`].
const DIRECTORY_VARIABLE: &str = "DDPD_VERBS_LIBRARY";
/// The libraries, by SONAME.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// Directories of the libraries, relative to the directory of `ddpctl`: in the packages, and in the project's build
/// (release, debug).
const DIRECTORIES: [&str; 3] = ["../lib/ddpd-verbs", "../verbs-library", "../verbs-library-debug"];
/// Prefix of the symbol version that connects libibverbs with the drivers of one release of rdma-core.
const PRIVATE_VERSION: &str = "IBVERBS_PRIVATE_";

/// Environment variable with directories of the dynamic loader.
const LOADER_VARIABLE: &str = "LD_LIBRARY_PATH";

/// Removes directories of verbs libraries from the environment of a command, which may load libibverbs itself.
pub(super) fn remove_from_environment(command: &mut Command) {
    if let Some(old) = env::var_os(LOADER_VARIABLE) {
        command.env(LOADER_VARIABLE, without_libraries(&old));
    }
}

fn without_libraries(path: &OsStr) -> OsString {
    let has_libraries =
        |directory: &Path| LIBRARIES.iter().all(|name| directory.join(name).is_file());
    let kept = env::split_paths(path).filter(|directory| !has_libraries(directory));
    // An error is impossible: the parts of a path contain no separator.
    env::join_paths(kept).unwrap_or_default()
}

/// The directory of the verbs libraries.
#[derive(Debug)]
pub(super) struct Libraries {
    directory: PathBuf,
}

impl Libraries {
    /// Finds the directory of the libraries: the value of `DDPD_VERBS_LIBRARY`, else the packages' directory, else the
    /// directory of the project's build.
    pub(super) fn find() -> Result<Libraries, Failure> {
        if let Some(named) = env::var_os(DIRECTORY_VARIABLE).filter(|path| !path.is_empty()) {
            return Libraries::at(Path::new(&named)).ok_or_else(|| {
                let path = Path::new(&named).display();
                let message =
                    format!("{DIRECTORY_VARIABLE}={path} has no {}", LIBRARIES.join(" and "));
                Failure::new(Exit::Failed, message)
            });
        }
        let program = env::current_exe()?;
        let own = program.parent().unwrap_or(Path::new("/usr/bin"));
        let found = DIRECTORIES.iter().find_map(|directory| Libraries::at(&own.join(directory)));
        if let Some(libraries) = &found {
            libraries.check_owner(&program)?;
        }
        found.ok_or_else(|| {
            let message = "the verbs libraries are not installed";
            let hint = format!(
                "install the package libddpd-verbs, or run scripts/verbs-library; {DIRECTORY_VARIABLE} names \
                 another directory"
            );
            Failure::new(Exit::Failed, message).with_hint(Some(hint))
        })
    }

    /// Returns the libraries of a directory, or of its subdirectory `lib`; `None` if neither contains all of them.
    fn at(directory: &Path) -> Option<Libraries> {
        let has_all =
            |directory: &Path| LIBRARIES.iter().all(|name| directory.join(name).is_file());
        [directory.to_owned(), directory.join("lib")]
            .into_iter()
            .find(|directory| has_all(directory))
            .and_then(|directory| directory.canonicalize().ok())
            .map(|directory| Libraries { directory })
    }

    /// Refuses libraries that a user other than root, this user or the owner of `program` can replace, for example
    /// libraries next to a `ddpctl` in /tmp.
    fn check_owner(&self, program: &Path) -> Result<(), Failure> {
        let mut trusted = vec![0, rustix::process::geteuid().as_raw()];
        trusted.extend(program.metadata().map(|file| file.uid()));
        let files = LIBRARIES.iter().map(|name| self.directory.join(name));
        for path in std::iter::once(self.directory.clone()).chain(files) {
            let file = path.metadata()?;
            if !trusted.contains(&file.uid()) || file.permissions().mode() & 0o022 != 0 {
                let message = format!("another user can replace {}", path.display());
                let hint = format!(
                    "remove it, or restrict its owner and mode, or name a directory by {DIRECTORY_VARIABLE}"
                );
                return Err(Failure::new(Exit::Failed, message).with_hint(Some(hint)));
            }
        }
        Ok(())
    }

    /// Prepends the directory to `LD_LIBRARY_PATH` of `command`.
    pub(super) fn set_environment(&self, command: &mut Command) {
        let mut path = self.directory.clone().into_os_string();
        if let Some(old) = env::var_os(LOADER_VARIABLE).filter(|old| !old.is_empty()) {
            path.push(":");
            path.push(old);
        }
        command.env(LOADER_VARIABLE, path);
    }

    /// Checks that the program can be loaded with the libraries. Runs ldd, which lets the dynamic loader resolve the
    /// libraries without running the program. Scripts and statically linked programs pass.
    pub(super) fn check(&self, program: &Path) -> Result<(), Failure> {
        let mode = program.metadata().map(|metadata| metadata.permissions().mode()).unwrap_or(0);
        if mode & 0o6000 != 0 {
            let message = format!(
                "{} is set-user-ID or set-group-ID, and the dynamic loader then ignores LD_LIBRARY_PATH",
                program.display()
            );
            let hint = "run a copy without these bits".to_owned();
            return Err(Failure::new(Exit::Failed, message).with_hint(Some(hint)));
        }
        let mut command = Command::new("ldd");
        command.arg(program);
        self.set_environment(&mut command);
        // Without ldd the check is skipped: the dynamic loader reports a missing version when the program starts.
        let Ok(output) = command.output() else { return Ok(()) };
        let text = [output.stdout, output.stderr].concat();
        judge(&String::from_utf8_lossy(&text), program, &self.directory)
    }
}

/// Returns an error if the output of ldd shows a missing private version of libibverbs, or a verbs library that is not
/// in `directory`.
fn judge(ldd: &str, program: &Path, directory: &Path) -> Result<(), Failure> {
    let program = program.display();
    for line in ldd.lines() {
        if let Some((_, rest)) = line.split_once("version `")
            && let Some((version, user)) = rest.split_once("' not found (required by ")
            && version.starts_with(PRIVATE_VERSION)
        {
            let user = user.trim_end_matches(')');
            let message = format!(
                "{program} uses {user}, which needs {version} of libibverbs: the libraries in {} are built for another \
                 release of rdma-core",
                directory.display()
            );
            let hint = "build them on this system with scripts/verbs-library, or install the libddpd-verbs that is \
                        built for it"
                .to_owned();
            return Err(Failure::new(Exit::Failed, message).with_hint(Some(hint)));
        }
        if let Some((name, path)) = line.trim().split_once(" => ")
            && LIBRARIES.contains(&name)
            && let Some(path) = path.split(" (").next().filter(|path| path.starts_with('/'))
            && !Path::new(path).starts_with(directory)
        {
            let message = format!("{program} has an RPATH, by which it loads {path}");
            let hint =
                "remove the RPATH (patchelf --remove-rpath) from a copy of the program".to_owned();
            return Err(Failure::new(Exit::Failed, message).with_hint(Some(hint)));
        }
    }
    Ok(())
}

/// Finds the file of a program like a shell: a name with `/` is a path, any other is searched in `PATH`.
pub(super) fn find_program(program: &OsStr) -> Result<PathBuf, Failure> {
    let named = Path::new(program);
    let is_executable = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if named.components().count() > 1 || program.as_encoded_bytes().contains(&b'/') {
        return match is_executable(named) {
            true => Ok(named.to_owned()),
            false if named.exists() => {
                Err(Failure::new(Exit::Usage, format!("{} is not executable", named.display())))
            }
            false => Err(Failure::new(Exit::Usage, format!("{} does not exist", named.display()))),
        };
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    env::split_paths(&path)
        .map(|directory| directory.join(named))
        .find(|path| is_executable(path))
        .ok_or_else(|| {
            Failure::new(
                Exit::Usage,
                format!("{} is not in PATH: is its package installed?", named.display()),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(ldd: &str) -> Option<String> {
        let (program, directory) =
            (Path::new("/usr/bin/ib_write_bw"), Path::new("/usr/lib/ddpd-verbs"));
        judge(ldd, program, directory).err().map(|failure| failure.message)
    }

    #[test]
    fn program_with_the_libraries_passes() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibibverbs.so.1 => /usr/lib/ddpd-verbs/libibverbs.so.1 (0x00007f)\n";
        assert_eq!(verdict(ldd), None);
        assert_eq!(verdict("\tnot a dynamic executable\n"), None);
    }

    #[test]
    fn other_private_version_names_the_library_that_needs_it() {
        let ldd = "/usr/bin/ib_write_bw: /usr/lib/ddpd-verbs/libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found \
                   (required by /lib/x86_64-linux-gnu/libmlx5.so.1)\n";
        let message = verdict(ldd).unwrap();
        assert!(message.contains("libmlx5.so.1, which needs IBVERBS_PRIVATE_59 of"), "{message}");
    }

    #[test]
    fn library_found_by_an_rpath_is_named() {
        let message =
            verdict("\tlibibverbs.so.1 => /opt/mpi/lib/libibverbs.so.1 (0x00007f)\n").unwrap();
        assert!(
            message.ends_with("has an RPATH, by which it loads /opt/mpi/lib/libibverbs.so.1"),
            "{message}"
        );
    }

    #[test]
    fn libraries_that_others_can_replace_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        for name in LIBRARIES {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let libraries = Libraries::at(directory.path()).unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let program = Path::new("/proc/self/exe");
        assert!(libraries.check_owner(program).is_ok());
        let library = directory.path().join(LIBRARIES[1]);
        for path in [directory.path(), &library] {
            mode(path, 0o777);
            let failure = libraries.check_owner(program).unwrap_err();
            assert!(failure.message.starts_with("another user can replace"), "{}", failure.message);
            mode(path, 0o755);
        }
        assert!(libraries.check_owner(program).is_ok());
    }

    #[test]
    fn directories_with_verbs_libraries_are_removed_from_a_path() {
        let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in LIBRARIES {
            std::fs::write(with.path().join(name), "").unwrap();
        }
        let path = env::join_paths([with.path(), without.path(), with.path()]).unwrap();
        assert_eq!(without_libraries(&path), without.path());
        assert_eq!(without_libraries(OsStr::new("")), "");
    }

    #[test]
    fn program_is_found_in_path_or_named() {
        assert!(find_program(OsStr::new("sh")).unwrap().is_absolute());
        let failure = find_program(OsStr::new("no-such-program")).unwrap_err();
        assert_eq!(failure.message, "no-such-program is not in PATH: is its package installed?");
        let failure = find_program(OsStr::new("/etc/passwd")).unwrap_err();
        assert_eq!(failure.message, "/etc/passwd is not executable");
    }
}

//! Opens files below the directories of `[files] paths` only.
//!
//! Without that key, the allowed directories are the appliance's own directory ([`own_directory`]) and the directories
//! of the files named in the configuration. These files themselves are also allowed.
//!
//! Each component of a path below the directory is opened separately (`openat(2)`, `O_NOFOLLOW`), and `..` is refused.
//! No symbolic link can lead out of the directory, even while directories are renamed. `openat2(2)` is not used,
//! because it takes the file mode from a structure in memory, where a seccomp filter cannot refuse set-user-ID bits.
//! The directories themselves are the operator's and may be symbolic links.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

pub use self::parent::{ParentDirectory, WriteError};

/// Directory of the appliance's own files, which the packages create.
const STATE_DIRECTORY: &str = "/var/lib/ddpd";

/// Shared directories. A configured file in one of them is allowed, but not other files in the directory.
const SHARED_DIRECTORIES: [&str; 2] = ["/", "/dev"];

/// Purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenPurpose {
    /// Source of a transfer: a file of any kind. The caller checks the kind.
    Read,
    /// File of a region: read and written; created with mode 0600 if missing.
    ReadWrite,
    /// File of a queue: appended to; created with mode 0600 if missing.
    Append,
    /// Destination of a get: created or truncated.
    Replace,
}

/// Reason why a file is not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is not below an allowed directory.
    #[error("{0}")]
    Outside(String),
    /// The path is allowed, but opening it failed.
    #[error("{0}")]
    Failed(String),
}

/// The directories below which files may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    paths: Vec<PathBuf>,
    /// Files that may be opened outside of the directories.
    named_files: Vec<PathBuf>,
    /// True if `[files] paths` is set.
    is_configured: bool,
}

/// Replacement of [`own_directory`] in tests.
static OWN_DIRECTORY_OVERRIDE: OnceLock<PathBuf> = OnceLock::new();

/// Makes [`own_directory`] return the system's temporary directory, for tests.
#[doc(hidden)]
pub fn use_temporary_directory() {
    OWN_DIRECTORY_OVERRIDE.get_or_init(std::env::temp_dir);
}

/// Returns the directory of the appliance's own files: the service manager's (the first of systemd's
/// `StateDirectory=`), else [`STATE_DIRECTORY`].
pub fn own_directory() -> PathBuf {
    if let Some(directory) = OWN_DIRECTORY_OVERRIDE.get() {
        return directory.clone();
    }
    let given = std::env::var_os("STATE_DIRECTORY").unwrap_or_default();
    first_path(&given).unwrap_or_else(|| STATE_DIRECTORY.into())
}

/// Returns the first of several colon-separated paths, if it is absolute.
fn first_path(paths: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(paths).next().filter(|path| path.is_absolute())
}

/// A path, split into an allowed directory and the rest.
struct SplitPath {
    directory: PathBuf,
    relative: PathBuf,
}

impl Directories {
    /// Returns the directories of `[files] paths`.
    pub fn from_key(paths: &[PathBuf]) -> Directories {
        let paths = paths.iter().map(|path| absolute(path)).collect();
        Directories { paths, named_files: Vec::new(), is_configured: true }
    }

    /// Returns the default directories, for a configuration without `[files] paths`. `named`: the files named in the
    /// configuration.
    pub fn default_for<'a>(named: impl Iterator<Item = &'a Path>) -> Directories {
        let named: Vec<PathBuf> = named.map(absolute).collect();
        let mut paths = vec![own_directory()];
        for directory in named.iter().filter_map(|path| path.parent()) {
            let real = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
            let is_open = paths.iter().any(|path| path == directory);
            if !is_open && !SHARED_DIRECTORIES.map(PathBuf::from).contains(&real) {
                paths.push(directory.to_owned());
            }
        }
        Directories { paths, named_files: named, is_configured: false }
    }

    /// Returns a set that allows all files: its only directory is `/`.
    pub fn root() -> Directories {
        Directories::from_key(&["/".into()])
    }

    /// Checks whether the path is allowed, without creating a file. The path of a missing file is allowed.
    ///
    /// # Errors
    /// The path is outside of the directories, by its name or through a symbolic link.
    pub fn admit(&self, path: &Path) -> Result<(), PathError> {
        let way = self.split(path)?;
        match self.resolve(path, &way, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Err(refused @ PathError::Outside(_)) => Err(refused),
            // A later attempt to open the file reports the error.
            Ok(_) | Err(PathError::Failed(_)) => Ok(()),
        }
    }

    /// Opens the parent directory of a file. The file need not exist.
    ///
    /// # Errors
    /// The path is not allowed, or opening failed. The error is one sentence that names the path.
    pub fn parent(&self, path: &Path) -> Result<ParentDirectory, PathError> {
        let SplitPath { directory, relative: rest } = self.split(path)?;
        let name =
            rest.file_name().ok_or_else(|| self.outside_error(path, "is not a path"))?.to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match rest.parent().filter(|between| !between.as_os_str().is_empty()) {
            None => openat(rustix::fs::CWD, &directory, flags, Mode::empty())
                .map_err(|error| open_failed(path, &error.into())),
            Some(between) => {
                let way = SplitPath { directory, relative: between.to_owned() };
                self.resolve(path, &way, flags, Mode::empty())
            }
        };
        Ok(ParentDirectory::new(
            opened.map_err(|refused| explain_missing_parent(path, refused))?,
            name,
        ))
    }

    /// Opens a file. Never waits for the other end of a pipe.
    ///
    /// # Errors
    /// The path is not allowed, or opening failed. The error is one sentence that names the path.
    pub fn open(&self, path: &Path, usage: OpenPurpose) -> Result<File, PathError> {
        let (flags, mode) = match usage {
            OpenPurpose::Read => (OFlags::RDONLY, 0),
            OpenPurpose::ReadWrite => (OFlags::RDWR | OFlags::CREATE, 0o600),
            OpenPurpose::Append => (OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, 0o600),
            OpenPurpose::Replace => (OFlags::WRONLY | OFlags::TRUNC | OFlags::CREATE, 0o666),
        };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let way = self.split(path)?;
        let opened = self.resolve(path, &way, flags, mode.into());
        let opened = opened.map_err(|refused| match usage {
            OpenPurpose::Read => refused,
            _ => explain_missing_parent(path, refused),
        });
        let file = File::from(opened?);
        let metadata = file.metadata().map_err(|error| open_failed(path, &error))?;
        // A character device named in the configuration is allowed, such as /dev/null to discard messages.
        let device = usage == OpenPurpose::Append
            && metadata.file_type().is_char_device()
            && self.named_files.contains(&absolute(path));
        if usage != OpenPurpose::Read && !metadata.is_file() && !device {
            let message = format!("{} is not an ordinary file", path.display());
            return Err(PathError::Failed(message));
        }
        Ok(file)
    }

    /// Splits a path at the innermost allowed directory that contains it. Allowed directories may contain one another.
    fn split(&self, path: &Path) -> Result<SplitPath, PathError> {
        let whole = absolute(path);
        let names_a_file = !path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let named = self.named_files.iter().filter(|named| **named == whole);
        let directories = named.filter_map(|named| named.parent());
        let directories = directories.chain(self.paths.iter().map(PathBuf::as_path));
        let ways = directories.filter_map(|directory| split_at(directory, &whole));
        let found = ways.max_by_key(|way| way.directory.components().count());
        found.filter(|_| names_a_file).ok_or_else(|| self.outside_error(path, "is outside"))
    }

    fn resolve(
        &self,
        path: &Path,
        way: &SplitPath,
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, PathError> {
        let why = |error: Errno| self.open_error(path, error);
        let mut at = openat(rustix::fs::CWD, &way.directory, DIRECTORY_FLAGS, Mode::empty())
            .map_err(|error| open_failed(path, &error.into()))?;
        let mut parts = way.relative.components();
        let last = parts.next_back();
        for part in parts {
            at = open_nofollow(&at, component_name(part), DIRECTORY_FLAGS, Mode::empty())
                .map_err(why)?;
        }
        let name = last.ok_or_else(|| self.outside_error(path, "is not a path"))?;
        open_nofollow(&at, component_name(name), flags, mode).map_err(why)
    }

    fn open_error(&self, path: &Path, error: Errno) -> PathError {
        match error {
            Errno::LOOP => self.outside_error(path, "is or passes a symbolic link"),
            error => open_failed(path, &error.into()),
        }
    }

    fn outside_error(&self, path: &Path, why: &str) -> PathError {
        let shown: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let allowed = match (shown.is_empty(), self.is_configured) {
            (true, _) => "files.paths is empty".to_owned(),
            (false, true) => {
                format!("ddpd may open only files below {} (files.paths)", shown.join(" or "))
            }
            (false, false) => {
                format!(
                    "ddpd may open only files below {} (files.paths is not set)",
                    shown.join(" or ")
                )
            }
        };
        let path = path.to_string_lossy();
        PathError::Outside(format!("\"{}\" {why}: {allowed}", path.escape_debug()))
    }
}

const DIRECTORY_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Returns the name of a normal component. For any other component, returns an empty name, with which the system call
/// fails. [`split_at`] has already refused `..`.
fn component_name(part: Component<'_>) -> &OsStr {
    match part {
        Component::Normal(name) => name,
        _ => OsStr::new(""),
    }
}

/// Opens one name in a directory. A symbolic link causes [`Errno::LOOP`] with any flags.
fn open_nofollow(at: impl AsFd, name: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let opened = openat(&at, name, flags | OFlags::NOFOLLOW, mode);
    let may_be_link = match &opened {
        // With O_PATH the link itself was opened.
        Ok(_) => flags.contains(OFlags::PATH) && !flags.contains(OFlags::DIRECTORY),
        Err(error) => *error == Errno::NOTDIR,
    };
    if may_be_link {
        let stat = match &opened {
            Ok(opened) => rustix::fs::fstat(opened),
            Err(_) => statat(&at, name, AtFlags::SYMLINK_NOFOLLOW),
        };
        if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            return Err(Errno::LOOP);
        }
    }
    opened
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Splits a path at a directory. The directory is the operator's and may contain `..`. The rest must name a file and
/// must not contain `..`. Otherwise returns `None`.
fn split_at(directory: &Path, whole: &Path) -> Option<SplitPath> {
    let rest = whole.strip_prefix(directory).ok()?;
    let goes_up = rest.components().any(|part| part == Component::ParentDir);
    let names_one = !rest.as_os_str().is_empty() && !goes_up;
    names_one.then(|| SplitPath { directory: directory.to_owned(), relative: rest.to_owned() })
}

/// Returns the error for a file that cannot be created, with the remedy if its directory does not exist.
fn explain_missing_parent(path: &Path, refused: PathError) -> PathError {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let (PathError::Failed(_), Some(parent)) = (&refused, parent) else { return refused };
    match std::fs::metadata(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (path, parent) = (path.display(), parent.display());
            let why = format!("its directory {parent} does not exist: mkdir -p {parent}");
            PathError::Failed(format!("cannot open {path}: {why}"))
        }
        _ => refused,
    }
}

fn open_failed(path: &Path, error: &io::Error) -> PathError {
    PathError::Failed(format!("cannot open {}: {error}", path.display()))
}

mod parent;
#[cfg(test)]
mod tests;

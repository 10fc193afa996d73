//! Opening files below the directories of `[files] paths`, and no others.
//!
//! The kernel resolves each path itself, from the directory on (`openat2(2)`, `RESOLVE_BENEATH` and
//! `RESOLVE_NO_SYMLINKS`): neither `..` nor a symbolic link leads out, also when somebody renames directories meanwhile.
//! There is no other way where the kernel does not have the call. The directories themselves are the operator's: they
//! may be symbolic links. Without a list, files may lie anywhere.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// What files are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To be sent: an ordinary file, or a pipe.
    Read,
    /// A region's: read and written, made if it is not there, for its owner alone.
    ReadWrite,
    /// A queue's: written at its end, made if it is not there, for its owner alone.
    Append,
    /// What was got: made, or emptied.
    Replace,
}

/// Why a file is not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It does not lie below the directories.
    #[error("{0}")]
    Outside(String),
    /// It may, but cannot be opened.
    #[error("{0}")]
    Failed(String),
}

/// The directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directories {
    /// None: anywhere.
    paths: Option<Vec<PathBuf>>,
    /// `ddpctl` makes its pipes here.
    pipes: Option<PathBuf>,
}

impl Directories {
    /// Those of `[files] paths`, and that of the API's socket for pipes.
    pub fn new(paths: Option<&[PathBuf]>, socket: &Path) -> Directories {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let paths = paths.map(|paths| paths.iter().map(absolute).collect());
        // `ddpctl` resolves the socket's path in the same way.
        let pipes = socket.parent().and_then(|directory| std::fs::canonicalize(directory).ok());
        Directories { paths, pipes }
    }

    /// Whether the path may be named; nothing is made, and what is not there may be.
    ///
    /// # Errors
    /// It does not lie below the directories, by its name or by a symbolic link.
    pub fn admit(&self, path: &Path, usage: Use) -> Result<(), Refused> {
        match self.resolve(path, usage, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Err(refused @ Refused::Outside(_)) => Err(refused),
            // Opening it will say it.
            Ok(_) | Err(Refused::Failed(_)) => Ok(()),
        }
    }

    /// Opens it. Never waits for the other end of a pipe.
    ///
    /// # Errors
    /// One sentence that names the path.
    pub fn open(&self, path: &Path, usage: Use) -> Result<File, Refused> {
        let (flags, mode) = match usage {
            Use::Read => (OFlags::RDONLY, 0),
            Use::ReadWrite => (OFlags::RDWR | OFlags::CREATE, 0o600),
            Use::Append => (OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, 0o600),
            Use::Replace => (OFlags::WRONLY | OFlags::TRUNC | OFlags::CREATE, 0o666),
        };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = File::from(self.resolve(path, usage, flags, mode.into())?);
        let metadata = file.metadata().map_err(|error| failed(path, &error))?;
        if usage == Use::Read && metadata.is_file() && self.is_for_pipes(path) {
            return Err(self.outside(path, "is no pipe and does not lie below them"));
        }
        let is_ordinary = metadata.is_file() || self.paths.is_none();
        if usage != Use::Read && !is_ordinary {
            let message = format!("{} is not an ordinary file", path.display());
            return Err(Refused::Failed(message));
        }
        Ok(file)
    }

    /// It is allowed only because it lies beside the socket.
    fn is_for_pipes(&self, path: &Path) -> bool {
        let Some(paths) = &self.paths else { return false };
        let beside = self.pipes.is_some() && self.pipes.as_deref() == path.parent();
        beside && !paths.iter().any(|directory| path.starts_with(directory))
    }

    fn resolve(
        &self,
        path: &Path,
        usage: Use,
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, Refused> {
        let Some(paths) = &self.paths else {
            return openat(rustix::fs::CWD, path, flags, mode)
                .map_err(|error| failed(path, &error.into()));
        };
        let Ok(whole) = std::path::absolute(path) else {
            return Err(self.outside(path, "is no path"));
        };
        let names_a_file = !path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let goes_up = path.components().any(|part| part == Component::ParentDir);
        let pipe = usage == Use::Read && self.pipes.as_deref() == whole.parent();
        let directories = paths.iter().chain(self.pipes.as_ref().filter(|_| pipe));
        let below = directories.filter_map(|directory| {
            let rest = whole.strip_prefix(directory).ok()?;
            (!rest.as_os_str().is_empty()).then_some((directory, rest))
        });
        // The innermost: an outer one may be there for others.
        let found = below.max_by_key(|(directory, _)| directory.components().count());
        let Some((directory, rest)) = found.filter(|_| names_a_file && !goes_up) else {
            return Err(self.outside(path, "does not lie below them"));
        };
        let as_directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(rustix::fs::CWD, directory, as_directory, Mode::empty());
        let opened = opened.map_err(|error| failed(directory, &error.into()))?;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(opened, rest, flags, mode, beneath).map_err(|error| self.why(path, error))
    }

    fn why(&self, path: &Path, error: Errno) -> Refused {
        match error {
            Errno::LOOP => self.outside(path, "is or passes a symbolic link"),
            Errno::XDEV => self.outside(path, "leads out of them"),
            Errno::NOSYS => Refused::Failed(format!(
                "cannot open {}: this kernel has no openat2(2), without which files.paths cannot be kept: Linux 5.6 or \
                 later is needed",
                path.display()
            )),
            error => failed(path, &error.into()),
        }
    }

    fn outside(&self, path: &Path, why: &str) -> Refused {
        let paths = self.paths.as_deref().unwrap_or_default();
        let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let allowed = match shown.is_empty() {
            true => "files.paths is empty".to_owned(),
            false => format!("files must lie below {} (files.paths)", shown.join(" or ")),
        };
        let path = path.to_string_lossy();
        Refused::Outside(format!("\"{}\" {why}: {allowed}", path.escape_debug()))
    }
}

fn failed(path: &Path, error: &io::Error) -> Refused {
    Refused::Failed(format!("cannot open {}: {error}", path.display()))
}

#[cfg(test)]
mod tests;

//! A file addressed by its open parent directory. It is created, replaced and removed there, even if the directory is
//! renamed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, fsync, linkat, openat,
    renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// Maximum number of names tried for a temporary file.
const MAX_TRIES: u32 = 100;

/// Mode bits that open(2) can set. Set-user-ID and similar bits are not included: the sandbox refuses them.
const PERMISSIONS: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);

/// An open directory, and the name of a file in it.
#[derive(Debug)]
pub struct ParentDirectory {
    directory: OwnedFd,
    name: OsString,
}

/// Reason why a file is not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file exists and must not be replaced.
    #[error("is there already")]
    Exists,
    /// The name exists and is not an ordinary file.
    #[error("is no ordinary file: name another")]
    NotAFile,
    /// The umask or the sandbox prevents the new file from having the existing file's mode.
    #[error(
        "has mode {mode:04o}, which the umask and the sandbox do not let ddpd give to a new file: remove it first"
    )]
    Mode {
        /// Permission bits of the existing file.
        mode: u32,
    },
    /// A system call failed.
    #[error("cannot be written: {0}")]
    Failed(#[from] io::Error),
}

impl From<Errno> for WriteError {
    fn from(error: Errno) -> WriteError {
        WriteError::Failed(error.into())
    }
}

impl ParentDirectory {
    pub(super) fn new(directory: OwnedFd, name: OsString) -> ParentDirectory {
        ParentDirectory { directory, name }
    }

    /// Opens the directory of a file that the operator named on the command line. Symbolic links are resolved first.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn open(path: &Path) -> io::Result<ParentDirectory> {
        let path = match std::fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(path)?,
            found => found?,
        };
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(ParentDirectory {
            directory: openat(CWD, directory, flags, Mode::empty())?,
            name: name.into(),
        })
    }

    /// Returns true if the name exists.
    ///
    /// # Errors
    /// The metadata of the name cannot be read.
    pub fn exists(&self) -> io::Result<bool> {
        Ok(self.stat()?.is_some())
    }

    /// Removes the file if it is ordinary and has no bytes.
    ///
    /// # Errors
    /// The metadata of the file cannot be read, or the file cannot be removed.
    pub fn remove_if_empty(&self) -> io::Result<()> {
        match self.stat()? {
            Some(stat) if is_file(&stat) && stat.st_size == 0 => {
                Ok(unlinkat(&self.directory, &self.name, AtFlags::empty())?)
            }
            _ => Ok(()),
        }
    }

    /// Writes the file atomically: the bytes are on the disk before the file gets its name. A new file has mode 0600; a
    /// replaced file keeps its mode.
    ///
    /// # Errors
    /// The file exists and `overwrite` is false, the name is not an ordinary file, the mode cannot be kept, or a system
    /// call fails. After a failed sync of the directory the new content may be in place.
    pub fn write(&self, bytes: &[u8], overwrite: bool) -> Result<(), WriteError> {
        let mode = match self.stat()? {
            Some(_) if !overwrite => return Err(WriteError::Exists),
            Some(stat) if is_file(&stat) => Mode::from_raw_mode(stat.st_mode & 0o7777),
            Some(_) => return Err(WriteError::NotAFile),
            None => Mode::RUSR | Mode::WUSR,
        };
        let (mut file, temporary) = self.create_temporary(mode)?;
        let written = write_and_sync(&mut file, bytes, mode);
        let written = written.and_then(|()| self.rename_into_place(&temporary, overwrite));
        if written.is_err() {
            // Only the first error is reported; an error of the removal is ignored.
            let _ = unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        written?;
        Ok(fsync(&self.directory)?)
    }

    fn stat(&self) -> io::Result<Option<Stat>> {
        match statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a temporary file with the mode, as far as the umask permits.
    fn create_temporary(&self, mode: Mode) -> io::Result<(File, String)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let process = std::process::id();
        for n in 0..MAX_TRIES {
            let name = format!(".ddpd-{process}-{n}");
            match openat(&self.directory, &name, flags, mode & PERMISSIONS) {
                Ok(file) => return Ok((file.into(), name)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    fn rename_into_place(&self, temporary: &str, overwrite: bool) -> Result<(), WriteError> {
        let (at, name) = (&self.directory, &self.name);
        let given = match overwrite {
            true => renameat(at, temporary, at, name),
            false => match renameat_with(at, temporary, at, name, RenameFlags::NOREPLACE) {
                // The file system does not support renameat2(2) with RENAME_NOREPLACE.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    linkat(at, temporary, at, name, AtFlags::empty())
                        .and_then(|()| unlinkat(at, temporary, AtFlags::empty()))
                }
                given => given,
            },
        };
        match given {
            Err(Errno::EXIST) => Err(WriteError::Exists),
            given => Ok(given?),
        }
    }
}

fn write_and_sync(file: &mut File, bytes: &[u8], mode: Mode) -> Result<(), WriteError> {
    file.write_all(bytes)?;
    if Mode::from_raw_mode(fstat(&*file)?.st_mode & 0o7777) != mode {
        fchmod(&*file, mode).map_err(|error| match error {
            Errno::PERM => WriteError::Mode { mode: mode.as_raw_mode() },
            error => error.into(),
        })?;
    }
    Ok(file.sync_all()?)
}

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

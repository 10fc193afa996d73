//! The file that a name leads to. Files are moved, removed and replaced during writing (rotation of
//! logs). Bytes in a file that lost its name are lost to all readers.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::directories::{Directories, OpenPurpose};

/// An open file and its name.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub(super) path: PathBuf,
    pub(super) file: Arc<File>,
    pub(super) usage: OpenPurpose,
}

impl OpenFile {
    /// Opens the file again, or makes it, where its name leads to another one or to none. True when that was done.
    /// `unsynced`: the one that was open is synced first.
    ///
    /// # Errors
    /// The file cannot be opened, and must not be written.
    pub(super) fn reopen_if_moved(
        &mut self,
        files: &Directories,
        unsynced: bool,
    ) -> io::Result<bool> {
        if !is_replaced(&self.file, &self.path)? {
            return Ok(false);
        }
        if unsynced {
            // The old file may have another name now.
            self.sync(false)?;
        }
        let opened = files.open(&self.path, self.usage);
        self.file = Arc::new(opened.map_err(|refused| io::Error::other(refused.to_string()))?);
        Ok(true)
    }
}

impl OpenFile {
    /// Makes the bytes durable, and the name of a `new` file. Devices keep nothing.
    pub(super) fn sync(&self, new: bool) -> io::Result<()> {
        if !self.file.metadata()?.is_file() {
            return Ok(());
        }
        self.file.sync_data()?;
        // A directory that cannot be opened was made durable by another process, or not at all.
        let directory = self.path.parent().filter(|_| new).and_then(|path| File::open(path).ok());
        directory.map_or(Ok(()), |directory| match directory.sync_all() {
            // Some file systems do not sync directories.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        })
    }
}

/// Returns true if the name leads to another file than this one. A name that cannot be resolved
/// counts as unchanged.
fn is_replaced(file: &File, path: &Path) -> io::Result<bool> {
    let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path) {
        Ok(there) => Ok(identity(&there) != identity(&file.metadata()?)),
        Err(error) => Ok(error.kind() == io::ErrorKind::NotFound),
    }
}

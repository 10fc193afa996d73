//! Opens a file again when its name refers to another file. Files may be moved, removed or replaced while they are
//! written (log rotation). Bytes written to a file without a name are lost to all readers.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::directories::{Directories, OpenPurpose};

/// An open file and the name under which it was opened.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub(super) path: PathBuf,
    pub(super) file: Arc<File>,
    pub(super) usage: OpenPurpose,
}

impl OpenFile {
    /// Opens the file again, or creates it, if its name refers to another file or to no file. Returns true if the
    /// file was opened again. With `unsynced`, the previous file is synced first.
    ///
    /// # Errors
    /// The previous file cannot be synced, or the new file cannot be opened. The caller must then not write to the
    /// previous file.
    pub(super) fn reopen_if_moved(
        &mut self,
        files: &Directories,
        unsynced: bool,
    ) -> io::Result<bool> {
        if !is_replaced(&self.file, &self.path)? {
            return Ok(false);
        }
        if unsynced {
            // The previous file may still be read under another name, so its bytes are made durable.
            self.sync(false)?;
        }
        let opened = files.open(&self.path, self.usage);
        self.file = Arc::new(opened.map_err(|refused| io::Error::other(refused.to_string()))?);
        Ok(true)
    }
}

impl OpenFile {
    /// Makes the file's data durable, and also its name if it is `new`. Only regular files are synced.
    pub(super) fn sync(&self, new: bool) -> io::Result<()> {
        if !self.file.metadata()?.is_file() {
            return Ok(());
        }
        self.file.sync_data()?;
        // A directory that cannot be opened is not synced.
        let directory = self.path.parent().filter(|_| new).and_then(|path| File::open(path).ok());
        directory.map_or(Ok(()), |directory| match directory.sync_all() {
            // Some file systems cannot sync directories.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        })
    }
}

/// Returns true if the name refers to another file, or to no file. A name that cannot be resolved for other reasons is
/// considered unchanged.
fn is_replaced(file: &File, path: &Path) -> io::Result<bool> {
    let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path) {
        Ok(there) => Ok(identity(&there) != identity(&file.metadata()?)),
        Err(error) => Ok(error.kind() == io::ErrorKind::NotFound),
    }
}

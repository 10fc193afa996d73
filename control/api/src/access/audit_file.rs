//! A log file of bounded length, and its predecessors: FILE, FILE.1 (the newest), ... FILE.keep.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The open file. After an error the next line tries again.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    max_size: u64,
    keep: u32,
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    len: u64,
    /// The last line was written in part.
    ends_torn: bool,
}

impl AuditFile {
    /// Opens the file, or makes it with mode 0640.
    ///
    /// # Errors
    /// An error of `open(2)`; the path is a link or not an ordinary file.
    pub(super) fn open(path: &Path, max_size: u64, keep: u32) -> io::Result<AuditFile> {
        let mut file = AuditFile { path: path.to_owned(), max_size, keep, open: None };
        file.open_current()?;
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line, which ends with a newline. A line beyond the file's length begins another file.
    ///
    /// # Errors
    /// The line is not in the file, or only in part.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let max_size = self.max_size;
        let open = self.open_current()?;
        if open.len > 0 && open.len + line.len() as u64 > max_size {
            self.rotate()?;
        }
        self.open_current()?.append(line)
    }

    /// Returns the open file, and opens another one if the path was moved or removed.
    fn open_current(&mut self) -> io::Result<&mut OpenFile> {
        let there = std::fs::symlink_metadata(&self.path).ok();
        let same = |open: &OpenFile| there.as_ref().is_some_and(|m| file_id(m) == open.identity);
        let open = match self.open.take().filter(same) {
            Some(open) => open,
            None => open_append(&self.path)?,
        };
        Ok(self.open.insert(open))
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (0..self.keep).rev() {
            match std::fs::rename(self.numbered_path(number), self.numbered_path(number + 1)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.open = None;
        Ok(())
    }

    fn numbered_path(&self, number: u32) -> PathBuf {
        if number == 0 {
            return self.path.clone();
        }
        let mut path = self.path.as_os_str().to_owned();
        path.push(format!(".{number}"));
        path.into()
    }
}

fn file_id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn open_append(path: &Path) -> io::Result<OpenFile> {
    // NONBLOCK: a FIFO without a reader fails instead of waiting for one.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640).custom_flags(flags.bits().cast_signed());
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    let len = metadata.len();
    // The last line of a killed process may lack its end. Unknown counts as torn: an empty line
    // does no harm.
    let torn = len > 0 && !ends_with_newline(path).unwrap_or(false);
    Ok(OpenFile { file, identity: file_id(&metadata), len, ends_torn: torn })
}

fn ends_with_newline(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let file = File::open(path)?;
    let mut last = [0];
    file.read_exact_at(&mut last, file.metadata()?.len().saturating_sub(1))?;
    Ok(last == [b'\n'])
}

impl OpenFile {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let line = if self.ends_torn { [b"\n", line].concat() } else { line.to_vec() };
        // A single call, so that the line is not mixed with another process's.
        let written = self.file.write(&line)?;
        self.len += written as u64;
        self.ends_torn = written < line.len() && (written > 0 || self.ends_torn);
        match written < line.len() {
            true => Err(io::Error::new(ErrorKind::WriteZero, "only a part was written")),
            false => Ok(()),
        }
    }
}

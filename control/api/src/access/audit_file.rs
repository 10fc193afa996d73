//! A file that is rotated by size. Lines are appended to FILE. FILE.1 is the newest rotated file and FILE.N, with N =
//! `keep`, the oldest.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A file of the audit. After an error, the next line opens the path again.
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
    /// Device and inode number of the open file. The path has other numbers if the file was moved or replaced.
    identity: (u64, u64),
    len: u64,
    /// True if the last line in the file is incomplete. The next line is then written after a newline.
    ends_torn: bool,
}

impl AuditFile {
    /// Opens the file, and creates it with mode 0640 if it is missing.
    ///
    /// # Errors
    /// An error of `open(2)`, or the path is a symbolic link or not an ordinary file.
    pub(super) fn open(path: &Path, max_size: u64, keep: u32) -> io::Result<AuditFile> {
        let mut file = AuditFile { path: path.to_owned(), max_size, keep, open: None };
        file.open_current()?;
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `line`, which includes its newline. If the line would make the file longer than `max_size`, the file is
    /// rotated first.
    ///
    /// # Errors
    /// The line, or a part of it, could not be written.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let max_size = self.max_size;
        let open = self.open_current()?;
        if open.len > 0 && open.len + line.len() as u64 > max_size {
            self.rotate()?;
        }
        self.open_current()?.append(line)
    }

    /// Returns the open file. Reopens the path if the open file was moved or removed.
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
    // With O_NONBLOCK, open(2) of a FIFO without a reader fails instead of waiting.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640).custom_flags(flags.bits().cast_signed());
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    let len = metadata.len();
    // A process that was killed may have left an incomplete line. If the end of the file cannot be read, the last line
    // is considered incomplete, because an additional empty line does no harm.
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
        // A single write(2) with O_APPEND does not mix the line with lines of another process.
        let written = self.file.write(&line)?;
        self.len += written as u64;
        self.ends_torn = written < line.len() && (written > 0 || self.ends_torn);
        match written < line.len() {
            true => Err(io::Error::new(ErrorKind::WriteZero, "only a part was written")),
            false => Ok(()),
        }
    }
}

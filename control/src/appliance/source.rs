//! Sources of a put: a regular file (sparse or not), a pipe, or the client's input. A source is read in pieces.
//!
//! The loader thread reads a regular file at offsets. The job fails if the file becomes shorter while it is read, or if
//! bytes follow after the last piece. A file whose metadata state a wrong length, as in `/proc` and `/sys`, is read
//! like a pipe. A pipe or the client's input is read in order, each piece by a separate thread, because a read may
//! block indefinitely. That thread ends with the job.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;

use dataplane::memory::Memory;
use ddp::RegionMemory as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use api::Input;
use config::directories::{Directories, OpenPurpose};
use config::file_end;

/// Maximum length of a piece, bytes. Each piece is sent as one message.
pub const PIECE: u64 = 1 << 20;
/// Maximum number of pieces in the memory of one put.
pub const SLOTS: u64 = 32;
/// Bytes copied at once.
const COPY_CHUNK: usize = 1 << 18;
/// Interval at which a pipe's thread checks that its job still exists.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Idle time of a pipe after which the bytes read so far are sent.
const LINGER_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// An open source of a put.
#[derive(Debug)]
pub struct SourceFile {
    kind: SourceKind,
    /// Name of the source in error messages.
    name: String,
    /// Length at the time of opening, bytes; `None` if the source is read to its end.
    size: Option<u64>,
}

#[derive(Debug)]
enum SourceKind {
    File(File),
    Input(Input),
}

/// A request to read one piece.
#[derive(Clone, Debug)]
pub struct Fill {
    /// Source of the bytes.
    pub source: Arc<SourceFile>,
    /// Destination of the bytes.
    pub memory: Memory,
    /// Offset of the destination in the memory, bytes.
    pub memory_offset: u64,
    /// Offset of the piece in the file, bytes; ignored for a pipe.
    pub file_offset: u64,
    /// Maximum number of bytes; for a file exactly this many are read.
    pub len: u64,
}

impl SourceFile {
    /// Opens a source. Does not wait for the other end of a pipe.
    ///
    /// # Errors
    /// Returns one sentence with the path and the reason.
    pub fn open(files: &Directories, path: &Path) -> Result<SourceFile, String> {
        let failed = |error| format!("cannot open {}: {error}", path.display());
        let file = files.open(path, OpenPurpose::Read).map_err(|refused| refused.to_string())?;
        let metadata = file.metadata().map_err(failed)?;
        let size = match metadata.file_type() {
            // A wrong length, as in /proc and /sys, is ignored: the file is read to its end.
            kind if kind.is_file() => {
                let len = metadata.len();
                file_end::ends_at(&file, len).unwrap_or(false).then_some(len)
            }
            kind if kind.is_fifo() => None,
            _ => return Err(format!("{} is not an ordinary file or a pipe", path.display())),
        };
        Ok(SourceFile { kind: SourceKind::File(file), name: path.display().to_string(), size })
    }

    /// Returns a put's input from the client as a source.
    pub fn input(input: Input) -> SourceFile {
        SourceFile { kind: SourceKind::Input(input), name: "the input".into(), size: None }
    }

    /// Returns the name for error messages: the path of a file or pipe, or "the input".
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length at the time of opening, bytes. `None` for sources that are read to their end: a pipe, the
    /// client's input, or a file with a wrong length.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Returns true for sources that are read in order to their end. Reading them may block.
    pub fn is_pipe(&self) -> bool {
        self.size.is_none()
    }

    fn file(&self) -> &File {
        match &self.kind {
            SourceKind::File(file) => file,
            SourceKind::Input(input) => input.file(),
        }
    }

    /// Checks that the source ended normally.
    ///
    /// # Errors
    /// A client's input ended before all of it was sent.
    fn check_end(&self) -> Result<(), String> {
        match &self.kind {
            SourceKind::Input(input) if !input.is_complete() => {
                Err(format!("{} ended early: its client closed the connection", self.name))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the size of the memory, bytes, into which a put reads a source of `len` bytes: the whole source if it is
/// short, else a ring of pieces. `len` is `None` if unknown, as for a pipe.
pub fn window_len(len: Option<u64>) -> u64 {
    len.map_or(SLOTS * PIECE, |len| len.min(SLOTS * PIECE)).max(1)
}

impl Fill {
    /// Reads the piece into memory. Returns the number of bytes; 0 is the end of a pipe.
    ///
    /// # Errors
    /// Returns one sentence with the name of the source.
    pub fn read(&self) -> Result<u64, String> {
        let mut buffer = vec![0; self.len.min(COPY_CHUNK as u64) as usize];
        if self.source.is_pipe() {
            self.read_pipe(&mut buffer)
        } else {
            self.read_file(&mut buffer)
        }
    }

    fn read_file(&self, buffer: &mut [u8]) -> Result<u64, String> {
        let mut read_len = 0;
        while read_len < self.len {
            let n = (self.len - read_len).min(buffer.len() as u64);
            let part = &mut buffer[..n as usize];
            self.source.file().read_exact_at(part, self.file_offset + read_len).map_err(
                |error| {
                    let path = &self.source.name;
                    match error.kind() {
                        std::io::ErrorKind::UnexpectedEof => {
                            format!("{path} became shorter while it was sent")
                        }
                        _ => format!("{path}: {error}"),
                    }
                },
            )?;
            self.memory.write(self.memory_offset + read_len, part);
            read_len += n;
        }
        let end = self.file_offset + read_len;
        if self.source.size == Some(end)
            && !file_end::ends_at(self.source.file(), end).unwrap_or(true)
        {
            return Err(format!("{} {}", self.source.name, file_end::GREW_MESSAGE));
        }
        Ok(read_len)
    }

    fn read_pipe(&self, buffer: &mut [u8]) -> Result<u64, String> {
        let failed = |error: Errno| format!("{}: {error}", self.source.name);
        let mut read_len = 0;
        while read_len < self.len {
            let wait = if read_len == 0 { &CHECK_INTERVAL } else { &LINGER_TIME };
            let mut fds = [PollFd::new(self.source.file(), PollFlags::IN)];
            match poll(&mut fds, Some(wait)) {
                // A read from a pipe without a writer returns end-of-file, so the pipe is polled until it has a writer.
                Ok(0) if read_len > 0 => break,
                Ok(0) if Arc::strong_count(&self.source) == 1 => return Err("given up".into()),
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(failed(error)),
            }
            let n = (self.len - read_len).min(buffer.len() as u64);
            match rustix::io::read(self.source.file(), &mut buffer[..n as usize]) {
                Ok(0) => {
                    self.source.check_end()?;
                    break;
                }
                Ok(n) => {
                    self.memory.write(self.memory_offset + read_len, &buffer[..n]);
                    read_len += n as u64;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(read_len)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use dataplane::memory::{Backing, MemoryConfig};

    use super::*;

    fn memory(len: u64) -> Memory {
        let backing = Backing::Anonymous;
        Memory::new(&MemoryConfig { backing, len, remote_write: false, lock: false }).unwrap()
    }

    fn fill(source: &Arc<SourceFile>, from: u64, len: u64) -> Fill {
        Fill {
            source: Arc::clone(source),
            memory: memory(len),
            memory_offset: 0,
            file_offset: from,
            len,
        }
    }

    fn bytes(fill: &Fill, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill.memory.read(0, &mut bytes);
        bytes
    }

    #[test]
    fn a_sparse_file_is_read_at_its_offsets_with_zeros_between() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"end", (1 << 40) - 3).unwrap();
        let source = Arc::new(SourceFile::open(&Directories::root(), &path).unwrap());
        assert_eq!((source.size(), source.is_pipe()), (Some(1 << 40), false));
        let last = fill(&source, (1 << 40) - 5, 5);
        assert_eq!(last.read(), Ok(5));
        assert_eq!(bytes(&last, 5), b"\0\0end");
        file.set_len(10).unwrap();
        assert!(last.read().unwrap_err().ends_with("became shorter while it was sent"));
    }

    #[test]
    fn file_that_grew_fails_at_its_last_piece() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let source = Arc::new(SourceFile::open(&Directories::root(), &path).unwrap());
        let (first, last) = (fill(&source, 0, 6), fill(&source, 6, 4));
        assert_eq!((first.read(), last.read()), (Ok(6), Ok(4)));
        File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        assert_eq!(first.read(), Ok(6));
        assert_eq!(last.read(), Err(format!("{} {}", path.display(), file_end::GREW_MESSAGE)));
    }

    #[test]
    fn file_with_wrong_metadata_length_is_read_to_eof() {
        let path = Path::new("/proc/version");
        assert_eq!(std::fs::metadata(path).unwrap().len(), 0);
        let source = Arc::new(SourceFile::open(&Directories::root(), path).unwrap());
        assert_eq!((source.size(), source.is_pipe()), (None, true));
        let piece = fill(&source, 0, 1 << 16);
        let len = piece.read().unwrap();
        assert!(bytes(&piece, len as usize).starts_with(b"Linux"), "{len} bytes");
        assert_eq!(piece.read(), Ok(0));
    }

    #[test]
    fn pipe_waits_for_writer_and_is_read_to_eof() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let source = Arc::new(SourceFile::open(&Directories::root(), &path).unwrap());
        assert_eq!(source.size(), None);
        let piece = fill(&source, 0, 6);
        let reader = std::thread::spawn(move || (piece.read(), bytes(&piece, 6)));
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(b"sample more").unwrap();
        assert_eq!(reader.join().unwrap(), (Ok(6), b"sample".to_vec()));
        drop(writer);
        let piece = fill(&source, 0, 100);
        assert_eq!((piece.read(), bytes(&piece, 5)), (Ok(5), b" more".to_vec()));
        assert_eq!(piece.read(), Ok(0));
    }

    #[test]
    fn abandoned_pipe_ends_its_thread() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let source = Arc::new(SourceFile::open(&Directories::root(), &path).unwrap());
        let piece = fill(&source, 0, 6);
        drop(source);
        assert_eq!(piece.read(), Err("given up".into()));
    }

    #[test]
    fn source_that_is_neither_file_nor_pipe_is_refused() {
        for path in ["/dev/zero", "/dev"] {
            let refused = SourceFile::open(&Directories::root(), Path::new(path)).unwrap_err();
            assert!(refused.ends_with("is not an ordinary file or a pipe"), "{refused}");
        }
    }
}

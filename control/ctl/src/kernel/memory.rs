//! Memory of a region for kernel sockets: a vector or a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ddp::{AtomicError, RegionMemory, VecMemory};

use config::file_end;

/// Size of a read from a file, bytes; following reads are served from this buffer.
const READ_AHEAD: usize = 1 << 20;

/// Memory of a region for kernel sockets: memory of the process, or a file.
#[derive(Clone, Debug)]
pub enum KernelMemory {
    /// Memory of the process.
    Bytes(VecMemory),
    /// A file, read and written on demand.
    File(Arc<FileMemory>),
}

/// A file as a region. Its first I/O error is stored, because the copy functions return no error.
#[derive(Debug)]
pub struct FileMemory {
    file: File,
    len: u64,
    read_ahead: Mutex<ReadAhead>,
    error: Mutex<Option<io::Error>>,
}

#[derive(Debug, Default)]
struct ReadAhead {
    offset: u64,
    bytes: Vec<u8>,
}

impl KernelMemory {
    /// Returns a region of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        KernelMemory::Bytes(VecMemory::new(len))
    }

    /// Returns a region with these bytes. The bytes do not change while they are sent.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        KernelMemory::Bytes(VecMemory::from_vec(bytes).into_stable())
    }

    /// Opens a file for reading, as the source of a transfer.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self::file(file, len))
    }

    /// Opens the file if its length is unknown: a pipe, a device, or a file whose length differs from its metadata, as
    /// in `/proc` and `/sys`. Returns `None` for other files and for directories.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn open_pipe(path: &Path) -> io::Result<Option<Box<dyn io::Read>>> {
        let metadata = std::fs::metadata(path)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            return Ok(None);
        }
        let file = File::open(path)?;
        let is_known = kind.is_file() && file_end::ends_at(&file, metadata.len()).unwrap_or(false);
        Ok((!is_known).then(|| Box::new(file) as Box<dyn io::Read>))
    }

    /// Opens a file for reading and writing, creates it if necessary, and sets its length to `len` bytes.
    ///
    /// # Errors
    /// The file cannot be opened or created, or its length cannot be set.
    pub fn create(path: &Path, len: u64) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(len)?;
        Ok(Self::file(file, len))
    }

    fn file(file: File, len: u64) -> Self {
        let ahead = Mutex::new(ReadAhead::default());
        KernelMemory::File(Arc::new(FileMemory {
            file,
            len,
            read_ahead: ahead,
            error: Mutex::new(None),
        }))
    }

    /// Returns and clears the stored I/O error of the file: the first one since the previous call. `None` if there was
    /// none.
    pub fn take_error(&self) -> Option<io::Error> {
        match self {
            KernelMemory::Bytes(_) => None,
            KernelMemory::File(file) => {
                file.error.lock().unwrap_or_else(PoisonError::into_inner).take()
            }
        }
    }
}

impl RegionMemory for KernelMemory {
    fn len(&self) -> u64 {
        match self {
            KernelMemory::Bytes(bytes) => bytes.len(),
            KernelMemory::File(file) => file.len,
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        match self {
            KernelMemory::Bytes(memory) => memory.write(offset, bytes),
            KernelMemory::File(file) => file.write(offset, bytes),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) {
        match self {
            KernelMemory::Bytes(memory) => memory.read(offset, out),
            KernelMemory::File(file) => file.read(offset, out),
        }
    }

    fn fetch_update_u64(
        &self,
        offset: u64,
        update: impl Fn(u64) -> u64,
    ) -> Result<u64, AtomicError> {
        match self {
            KernelMemory::Bytes(memory) => memory.fetch_update_u64(offset, update),
            KernelMemory::File(_) => Err(AtomicError::Unsupported),
        }
    }

    fn is_stable(&self) -> bool {
        match self {
            KernelMemory::Bytes(memory) => memory.is_stable(),
            // Bytes are not read again once the kernel has accepted them, so later changes have no effect.
            KernelMemory::File(_) => true,
        }
    }
}

impl FileMemory {
    fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.len, "write outside the region");
        if let Err(error) = self.file.write_all_at(bytes, offset) {
            self.keep_first_error(error);
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) {
        assert!(offset + out.len() as u64 <= self.len, "read outside the region");
        let mut ahead = self.read_ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            if !ahead.contains(at)
                && let Err(error) = ahead.load(&self.file, at)
            {
                out[done..].fill(0);
                self.keep_first_error(error);
                return;
            }
            let skip = (at - ahead.offset) as usize;
            let n = (ahead.bytes.len() - skip).min(out.len() - done);
            out[done..done + n].copy_from_slice(&ahead.bytes[skip..skip + n]);
            done += n;
        }
        let is_last = offset + done as u64 == self.len;
        if is_last && !file_end::ends_at(&self.file, self.len).unwrap_or(true) {
            self.keep_first_error(io::Error::other(file_end::GREW_MESSAGE));
        }
    }

    fn keep_first_error(&self, error: io::Error) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

impl ReadAhead {
    fn contains(&self, at: u64) -> bool {
        at >= self.offset && at < self.offset + self.bytes.len() as u64
    }

    fn load(&mut self, file: &File, at: u64) -> io::Result<()> {
        self.bytes.resize(READ_AHEAD, 0);
        self.offset = at;
        let n = loop {
            match file.read_at(&mut self.bytes, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.bytes.truncate(*n.as_ref().unwrap_or(&0));
        match n {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_backed_region_reads_and_writes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("region");
        let memory = KernelMemory::create(&path, 3 << 20).expect("created");
        let bytes: Vec<u8> = (0..2_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        memory.write(1000, &bytes);
        drop(memory);
        let memory = KernelMemory::open(&path).expect("opened");
        assert_eq!(memory.len(), 3 << 20);
        let mut out = vec![0; bytes.len()];
        for (n, part) in out.chunks_mut(1441).enumerate() {
            memory.read(1000 + 1441 * n as u64, part);
        }
        assert_eq!(out, bytes);
        assert!(memory.take_error().is_none());
    }

    #[test]
    fn shortened_file_is_detected() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("region");
        let memory = KernelMemory::create(&path, 5000).expect("created");
        File::options().write(true).open(&path).and_then(|f| f.set_len(10)).expect("cut");
        let mut out = [1; 100];
        memory.read(0, &mut out);
        let error = memory.take_error().expect("an error");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(memory.take_error().is_none());
    }

    #[test]
    fn grown_file_is_detected_at_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("region");
        std::fs::write(&path, [7; 5000]).expect("written");
        let memory = KernelMemory::open(&path).expect("opened");
        let mut out = [1; 100];
        memory.read(4900, &mut out);
        assert!(memory.take_error().is_none());
        File::options().write(true).open(&path).and_then(|f| f.set_len(5001)).expect("longer");
        memory.read(4800, &mut out);
        assert!(memory.take_error().is_none());
        memory.read(4900, &mut out);
        assert_eq!(memory.take_error().expect("an error").to_string(), file_end::GREW_MESSAGE);
    }

    #[test]
    fn file_without_length_is_read_as_pipe() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        std::fs::write(&path, b"").expect("written");
        let is_pipe = |path: &Path| KernelMemory::open_pipe(path).expect("opened").is_some();
        assert!(!is_pipe(&path) && !is_pipe(dir.path()));
        assert!(is_pipe(Path::new("/proc/self/status")) && is_pipe(Path::new("/dev/null")));
    }
}

//! Sequence numbers of an SA, recorded in a file. An upper bound of the numbers is written to the file before they are
//! used. No number is used twice, however the program ends (RFC 4106 §2). If the file was moved or removed, it is
//! recreated with its bound, so that the next start does not reuse numbers.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Number of sequence numbers per reservation, enough for more than a second of packets. A restart skips the unused
/// part of a reservation. Receivers tolerate this: they advance their window across a gap of less than 2^31 (RFC 4303
/// appendix A2).
const RESERVATION: u64 = 1 << 24;

/// Length of the file, bytes. It is written with one call.
const FILE_LEN: usize = 32;

/// The sequence file of one SA.
#[derive(Debug)]
pub(super) struct Sequence {
    path: PathBuf,
    file: File,
    spi: u32,
    /// Upper bound of the numbers that may be in use.
    reserved: u64,
}

impl Sequence {
    /// Opens or creates the file and locks it against other SAs and processes.
    ///
    /// # Errors
    /// Returns one sentence with the file and the reason.
    pub(super) fn open(path: &Path, spi: u32) -> Result<Sequence, String> {
        let shown = path.display();
        let cannot = |error: std::io::Error| format!("{shown} cannot be used: {error}");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(cannot)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("{shown} is in use by another SA or another process"))?;
        let len = file.metadata().map_err(cannot)?.len();
        let mut bytes = [0; FILE_LEN];
        let reserved = match len {
            0 => 0,
            _ => {
                file.read_exact_at(&mut bytes, 0).map_err(cannot)?;
                let (known, reserved) = parse(&bytes).filter(|_| len == FILE_LEN as u64).ok_or_else(|| {
                    format!("{shown} does not say which sequence numbers were used: give the SA another key and remove it")
                })?;
                if known != spi {
                    return Err(format!(
                        "{shown} is that of the SA with SPI {known:#x}, not {spi:#x}"
                    ));
                }
                reserved
            }
        };
        sync_directory(path).map_err(cannot)?;
        Ok(Sequence { path: path.to_owned(), file, spi, reserved })
    }

    /// Reserves further numbers. Returns the first reserved number and the count.
    ///
    /// # Errors
    /// Returns one sentence. In this case no further number may be used.
    pub(super) fn reserve(&mut self) -> Result<(u64, u64), String> {
        let shown = self.path.display().to_string();
        let next = self.reserved.checked_add(RESERVATION).ok_or_else(|| {
            format!("{shown}: all sequence numbers were used; give the SA another key")
        })?;
        self.recreate_if_removed()
            .map_err(|error| format!("{shown} was moved or removed: {error}"))?;
        let text = encode(self.spi, next);
        let written = self.file.write_all_at(&text, 0).and_then(|()| self.file.sync_data());
        written.map_err(|error| format!("{shown} cannot be written: {error}"))?;
        let first = self.reserved + 1;
        self.reserved = next;
        Ok((first, RESERVATION))
    }
}

impl Sequence {
    /// Recreates the file if it was moved or removed.
    ///
    /// # Errors
    /// The file cannot be created, or another file has its name. The other file is not overwritten.
    fn recreate_if_removed(&mut self) -> std::io::Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(there) => {
                let open_metadata = self.file.metadata()?;
                let same = (there.dev(), there.ino()) == (open_metadata.dev(), open_metadata.ino());
                same.then_some(()).ok_or_else(|| std::io::Error::other("another file has its name"))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(true).create_new(true).mode(0o600);
                let file = options.open(&self.path)?;
                flock(&file, FlockOperation::NonBlockingLockExclusive)?;
                file.write_all_at(&encode(self.spi, self.reserved), 0)?;
                file.sync_data()?;
                self.file = file;
                sync_directory(&self.path)
            }
            Err(error) => Err(error),
        }
    }
}

/// Syncs the directory, so that the name of a new file survives a power failure.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    match path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn encode(spi: u32, reserved: u64) -> [u8; FILE_LEN] {
    let mut out = [b' '; FILE_LEN];
    let text = format!("{spi:08x} {reserved:016x}");
    out[..text.len()].copy_from_slice(text.as_bytes());
    out[FILE_LEN - 1] = b'\n';
    out
}

fn parse(bytes: &[u8; FILE_LEN]) -> Option<(u32, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (spi, reserved) = text.trim_end().split_once(' ')?;
    Some((u32::from_str_radix(spi, 16).ok()?, u64::from_str_radix(reserved, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_sequence_file_is_recreated_with_reserved_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sequence");
        let mut sequence = Sequence::open(&path, 7).unwrap();
        assert_eq!(sequence.reserve(), Ok((1, RESERVATION)));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(sequence.reserve(), Ok((RESERVATION + 1, RESERVATION)));
        drop(sequence);
        assert_eq!(
            Sequence::open(&path, 7).unwrap().reserve(),
            Ok((2 * RESERVATION + 1, RESERVATION))
        );
    }

    #[test]
    fn foreign_sequence_file_is_kept_and_reservation_fails() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("sequence"), dir.path().join("moved"));
        let mut sequence = Sequence::open(&path, 7).unwrap();
        std::fs::rename(&path, moved).unwrap();
        std::fs::write(&path, "other").unwrap();
        let refused = sequence.reserve().unwrap_err();
        assert!(refused.ends_with("was moved or removed: another file has its name"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
    }
}

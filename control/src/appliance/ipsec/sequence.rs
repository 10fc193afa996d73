//! Sequence numbers that a file remembers. The file says up to where they may have been used, before they are: whatever
//! ends the program, none is used twice (RFC 4106 §2).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Sequence numbers that are reserved at a time: a second's worth and more. A receiver's window is found again over a
/// gap of less than 2^31 (RFC 4303 appendix A2).
const AT_A_TIME: u64 = 1 << 24;

/// Bytes of what the file says, which are written at once.
const LEN: usize = 32;

/// The file of one SA.
#[derive(Debug)]
pub(super) struct Sequence {
    path: PathBuf,
    file: File,
    spi: u32,
    /// The last that may have been used.
    reserved: u64,
}

impl Sequence {
    /// Opens the file, or makes it. Nobody else has it as long as we have.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn open(path: &Path, spi: u32) -> Result<Sequence, String> {
        let shown = path.display();
        let cannot = |error: std::io::Error| format!("{shown} cannot be used: {error}");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(cannot)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("{shown} is in use by another SA or another process"))?;
        let len = file.metadata().map_err(cannot)?.len();
        let mut bytes = [0; LEN];
        let reserved = match len {
            0 => 0,
            _ => {
                file.read_exact_at(&mut bytes, 0).map_err(cannot)?;
                let (known, reserved) = parse(&bytes).filter(|_| len == LEN as u64).ok_or_else(|| {
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
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty())
        {
            // A new file's name is to survive a loss of power, too.
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(cannot)?;
        }
        Ok(Sequence { path: path.to_owned(), file, spi, reserved })
    }

    /// Reserves more. Returns the first and how many.
    ///
    /// # Errors
    /// One sentence: they must not be used.
    pub(super) fn more(&mut self) -> Result<(u64, u64), String> {
        let shown = self.path.display();
        let next = self.reserved.checked_add(AT_A_TIME).ok_or_else(|| {
            format!("{shown}: all sequence numbers were used; give the SA another key")
        })?;
        let text = text(self.spi, next);
        let written = self.file.write_all_at(&text, 0).and_then(|()| self.file.sync_data());
        written.map_err(|error| format!("{shown} cannot be written: {error}"))?;
        let first = self.reserved + 1;
        self.reserved = next;
        Ok((first, AT_A_TIME))
    }
}

fn text(spi: u32, reserved: u64) -> [u8; LEN] {
    let mut out = [b' '; LEN];
    let text = format!("{spi:08x} {reserved:016x}");
    out[..text.len()].copy_from_slice(text.as_bytes());
    out[LEN - 1] = b'\n';
    out
}

fn parse(bytes: &[u8; LEN]) -> Option<(u32, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (spi, reserved) = text.trim_end().split_once(' ')?;
    Some((u32::from_str_radix(spi, 16).ok()?, u64::from_str_radix(reserved, 16).ok()?))
}

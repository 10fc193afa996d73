//! Detects the end of a file. The length in its metadata may be outdated or wrong (0 in `/proc`, 4096 in `/sys`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Message for a file to which another process appends while it is sent. The file's name precedes the message.
pub const GREW_MESSAGE: &str = "became longer while it was sent: send it again, or through a pipe, with cat FILE | ddpctl put - URL";

/// Returns true if `file` has exactly `len` bytes. The file's position is unchanged.
///
/// # Errors
/// The file cannot be read at an offset.
pub fn ends_at(file: &File, len: u64) -> io::Result<bool> {
    Ok((len == 0 || has_byte_at(file, len - 1)?) && !has_byte_at(file, len)?)
}

/// Returns true if `file` has a byte at offset `at`.
fn has_byte_at(file: &File, at: u64) -> io::Result<bool> {
    loop {
        match file.read_at(&mut [0], at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return Ok(read? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_ends_only_at_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"abc").unwrap();
        let file = File::open(&path).unwrap();
        for len in 0..6 {
            assert_eq!(ends_at(&file, len).unwrap(), len == 3, "{len}");
        }
        std::fs::write(&path, b"").unwrap();
        assert!(ends_at(&file, 0).unwrap());
        // The length in the metadata of a file in /proc is 0.
        assert!(!ends_at(&File::open("/proc/self/status").unwrap(), 0).unwrap());
    }
}

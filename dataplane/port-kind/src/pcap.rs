//! Checks the capture files of a `pcap` port before DPDK's `net_pcap` opens them.
//!
//! The driver reports only that a device cannot be created, so these checks find the reason. Each error is a clause
//! that ends the caller's message.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Magic numbers of pcap in the file's own byte order: timestamps in microseconds and in nanoseconds.
const MAGIC: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];
/// Block type of pcapng's section header, the same in both byte orders.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Link type of Ethernet frames (`LINKTYPE_ETHERNET`).
const ETHERNET: u32 = 1;
/// Length of pcap's file header, bytes.
const HEADER: usize = 24;

/// Checks that frames can be read from `path`.
///
/// # Errors
/// The reason why no frames can be read.
pub fn check_input(path: &Path) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("it cannot be read: {error}");
    // Checked before the file is opened, because the open of a FIFO waits for a writer.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("it is no ordinary file".to_owned());
    }
    let file = File::open(path).map_err(unreadable)?;
    let mut header = Vec::with_capacity(HEADER);
    file.take(HEADER as u64).read_to_end(&mut header).map_err(unreadable)?;
    check_header(&header)
}

fn check_header(header: &[u8]) -> Result<(), String> {
    if header.starts_with(&PCAPNG) {
        return Ok(());
    }
    let word = |at: usize| header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    let (Some(magic), Some(link_type)) = (word(0), word(HEADER - 4)) else {
        return Err(format!(
            "its {} bytes are too few for a capture: write one with tcpdump -w",
            header.len()
        ));
    };
    let read = [u32::from_le_bytes, u32::from_be_bytes]
        .into_iter()
        .find(|read| MAGIC.contains(&read(magic)))
        .ok_or("it is neither pcap nor pcapng: write one with tcpdump -w")?;
    // The lower 16 bits are the link type. The upper 16 bits describe the frame check sequence.
    match read(link_type) & 0xffff {
        ETHERNET => Ok(()),
        other => Err(format!(
            "its frames are of link type {other}, not Ethernet ({ETHERNET}): capture on an Ethernet interface"
        )),
    }
}

/// Checks that frames can be written to `path`, which is created or truncated when the port opens.
///
/// # Errors
/// The reason why no frames can be written.
pub fn check_output(path: &Path) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => Err("it is no ordinary file".to_owned()),
        Ok(_) => match OpenOptions::new().append(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("it cannot be written: {error}")),
        },
        Err(_) => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            match fs::metadata(parent.unwrap_or(Path::new("."))) {
                Ok(meta) if meta.is_dir() => Ok(()),
                Ok(_) => Err("its parent is not a directory".to_owned()),
                Err(error) => Err(format!("its directory cannot be used: {error}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn header(magic: [u8; 4], link_type: [u8; 4]) -> Vec<u8> {
        let mut header = vec![0; HEADER];
        header[..4].copy_from_slice(&magic);
        header[HEADER - 4..].copy_from_slice(&link_type);
        header
    }

    #[test]
    fn ethernet_captures_of_both_byte_orders_are_accepted() {
        let good = [
            header([0xd4, 0xc3, 0xb2, 0xa1], [1, 0, 0, 0]),
            header([0xa1, 0xb2, 0xc3, 0xd4], [0, 0, 0, 1]),
            header([0x4d, 0x3c, 0xb2, 0xa1], [1, 0, 0, 0]),
            // A link type whose upper bits give the length of the frame check sequence.
            header([0xd4, 0xc3, 0xb2, 0xa1], [1, 0, 0, 0x24]),
            PCAPNG.to_vec(),
        ];
        good.iter().for_each(|header| assert_eq!(check_header(header), Ok(())));
    }

    #[test]
    fn file_without_ethernet_capture_is_refused() {
        let refused = |header: &[u8]| check_header(header).expect_err("it is refused");
        assert!(refused(&[]).contains("its 0 bytes are too few"));
        assert!(refused(b"#!/bin/sh, which is a program").contains("neither pcap nor pcapng"));
        assert!(
            refused(&header([0xd4, 0xc3, 0xb2, 0xa1], [113, 0, 0, 0])).contains("link type 113")
        );
    }

    #[test]
    fn checks_leave_files_unchanged() {
        let directory = std::env::temp_dir().join(format!("port-kind-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let file = directory.join("a.pcap");
        fs::write(&file, header([0xd4, 0xc3, 0xb2, 0xa1], [1, 0, 0, 0])).expect("a file");
        assert_eq!((check_input(&file), check_output(&file)), (Ok(()), Ok(())));
        assert_eq!(fs::read(&file).expect("it is there").len(), HEADER);
        let absent = directory.join("absent.pcap");
        assert!(check_input(&absent).expect_err("there is none").contains("cannot be read"));
        assert_eq!(check_output(&absent), Ok(()));
        assert!(!absent.exists());
        assert!(check_output(&directory).expect_err("a directory").contains("no ordinary file"));
        // Special files are refused before they are opened: opening a socket fails, and opening a FIFO may block.
        let socket = directory.join("socket");
        let _listening = UnixListener::bind(&socket).expect("a socket");
        for special in [&socket, &directory] {
            assert!(check_input(special).expect_err("no file").contains("no ordinary file"));
        }
        assert!(
            check_output(&absent.join("b.pcap")).expect_err("no directory").contains("directory")
        );
        fs::remove_dir_all(&directory).expect("it is ours");
    }
}

//! Capture files of Ethernet frames without FCS, in the classic pcap format, which Pktgen-DPDK reads.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};

/// Writes `frames` to a file at `path`, with timestamps one microsecond apart.
pub fn write(path: &Path, frames: &[Vec<u8>]) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut writer = PcapWriter::new(BufWriter::new(file))?;
    for (micros, frame) in frames.iter().enumerate() {
        writer.write_packet(&PcapPacket::new(
            Duration::from_micros(micros as u64),
            frame.len() as u32,
            frame,
        ))?;
    }
    writer.into_writer().flush().with_context(|| format!("cannot write {}", path.display()))
}

/// Reads the frames of the capture file at `path`. Fails as [`parse`] does.
pub fn read(path: &Path) -> Result<Vec<Vec<u8>>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    parse(BufReader::new(file))
        .with_context(|| format!("{} is not a capture of Ethernet frames", path.display()))
}

/// Parses the frames of a capture. Fails if the link type is not Ethernet or a frame is truncated.
pub fn parse(bytes: impl Read) -> Result<Vec<Vec<u8>>> {
    let mut reader = PcapReader::new(bytes)?;
    ensure!(
        reader.header().datalink == DataLink::ETHERNET,
        "its link type is {:?}",
        reader.header().datalink
    );
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        ensure!(
            packet.orig_len as usize == packet.data.len(),
            "frame {} was cut when captured",
            frames.len() + 1
        );
        frames.push(packet.data.into_owned());
    }
    Ok(frames)
}

//! `iwarp-captures write DIRECTORY` writes the generated captures. `iwarp-captures list FILE` prints the messages of a
//! capture, one line each: number of the frame, then names and values of the fields.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use captures::generate::Capture;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", directory] => captures::generate::all().iter().try_for_each(|capture| {
            write(&Path::new(directory).join(format!("{}.pcap", capture.name)), capture)
        }),
        ["list", file] => list(Path::new(file)),
        _ => bail!("usage: iwarp-captures write DIRECTORY | list FILE"),
    }
}

fn write(path: &Path, capture: &Capture) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut writer = PcapWriter::new(BufWriter::new(file))?;
    for (millis, frame) in (0..).zip(&capture.frames) {
        let captured = &frame[..frame.len().min(capture.snap)];
        let at = Duration::from_millis(millis);
        writer.write_packet(&PcapPacket::new(at, frame.len() as u32, captured))?;
    }
    writer.into_writer().flush().with_context(|| format!("cannot write {}", path.display()))
}

fn list(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut reader = PcapReader::new(BufReader::new(file))?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet?.data.into_owned());
    }
    let mut out = std::io::stdout().lock();
    for (frame, fields) in captures::listing::list(&frames) {
        writeln!(out, "{frame} {fields}")?;
    }
    Ok(())
}

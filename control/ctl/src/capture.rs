//! `ddpctl capture`: writes a port's frames to a file or a pipe.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::{CaptureSpec, Client, Done, StreamId};
use clap::Args as ClapArgs;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::exit::{Exit, Failure};
use super::{Output, path_segment};
use crate::values::size;

/// Arguments of `ddpctl capture`.
#[derive(Debug, ClapArgs)]
pub struct Capture {
    /// Name of the port
    pub port: String,
    /// Only frames of this stream, or of its association over SCTP
    #[arg(long, value_name = "ID")]
    pub stream: Option<StreamId>,
    /// Only frames that match this expression: host, net, port (each also after src or dst), tcp, udp, sctp, icmp,
    /// icmp6, arp, ip, ip6, proto N, vlan N, in, out, dropped, combined with and, or, not and parentheses
    #[arg(long, value_name = "EXPR", default_value = "")]
    pub filter: String,
    /// Maximum bytes recorded per frame
    #[arg(long, value_name = "N", default_value = "65535", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub snap: u32,
    /// Record IPsec packets decrypted instead of as on the wire
    #[arg(long)]
    pub inside: bool,
    /// Maximum size of the file; the capture ends before it is exceeded
    #[arg(long, value_name = "BYTES", default_value = "100MiB", value_parser = size)]
    pub limit: u64,
    /// Output file; - for standard output
    #[arg(long, short, value_name = "FILE", required_unless_present = "stop")]
    pub write: Option<PathBuf>,
    /// Stop the running capture; the client of that capture receives the remaining frames
    #[arg(long, conflicts_with_all = ["stream", "filter", "snap", "inside", "limit", "write"])]
    pub stop: bool,
}

pub(super) fn capture(
    command: &Capture,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let path = format!("/v1/ports/{}/capture", path_segment(&command.port));
    let Some(file) = &command.write else {
        client.delete::<Done>(&path)?;
        return output.print_done(format!("port {} is not captured any more", command.port));
    };
    let limits = CaptureSpec::LIMIT_RANGE;
    if !limits.contains(&command.limit) {
        let (least, most) = limits.into_inner();
        let message = format!("--limit is {}, and must be {least} to {most} bytes", command.limit);
        return Err(Failure::new(Exit::Usage, message));
    }
    let mut query = format!("snap={}&limit={}", command.snap, command.limit);
    if !command.filter.is_empty() {
        query += &format!("&filter={}", path_segment(&command.filter));
    }
    if command.inside {
        query += "&inside=true";
    }
    if let Some(stream) = command.stream {
        query += &format!("&stream={stream}");
    }
    let to_pipe = file.as_os_str() == "-";
    let failed =
        |error: &io::Error| Failure::new(Exit::Failed, format!("{}: {error}", file.display()));
    // The file is opened when the first bytes arrive, so that a refused capture does not truncate an existing file.
    let mut sink: Option<Box<dyn Write + '_>> = None;
    let (mut error, mut tail) = (None, FileTail::default());
    if to_pipe {
        standard::exit_when_reader_closes()?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let handlers =
        [SIGINT, SIGTERM].map(|signal| signal_hook::flag::register(signal, stop.clone()));
    let ended = {
        let out = &mut *output.out;
        let mut out = Some(out);
        client.capture(&path, &query, &stop, |part| {
            let mut write = || -> io::Result<()> {
                let sink = match &mut sink {
                    Some(sink) => sink,
                    none => none.insert(match out.take() {
                        Some(out) if to_pipe => Box::new(out),
                        _ => Box::new(File::create(file)?),
                    }),
                };
                tail.push_part(part);
                sink.write_all(part)?;
                sink.flush()
            };
            error = write().err();
            error.is_none()
        })
    };
    for handler in handlers.into_iter().flatten() {
        signal_hook::low_level::unregister(handler);
    }
    drop(sink);
    ended?;
    match error {
        Some(error) if to_pipe => return Err(error.into()),
        Some(error) => return Err(failed(&error)),
        None => {}
    }
    let Some(statistics) = tail.parse_statistics() else {
        let message = "the capture ended before its statistics: is the appliance still there?";
        return Err(Failure::new(Exit::Failed, message));
    };
    report_statistics(&statistics, file, to_pipe, output)
}

/// Frame counters from the last block of the capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
struct Statistics {
    /// Frames that the port received or sent.
    seen: u64,
    /// Frames in the file.
    captured: u64,
    /// Frames that matched the filter but were dropped because the client read too slowly.
    lost: u64,
}

fn report_statistics(
    statistics: &Statistics,
    file: &std::path::Path,
    to_pipe: bool,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let Statistics { seen, captured, lost } = *statistics;
    let sentence = format!("{captured} of {seen} frames captured, {lost} lost");
    if to_pipe {
        // The capture file is written to standard output, so the summary is written to standard error.
        let line = match output.json {
            true => serde_json::to_string(statistics)?,
            false => format!("ddpctl: {sentence}"),
        };
        return Ok(writeln!(output.err, "{line}")?);
    }
    output.print_answer(statistics, |_| format!("{sentence}; {}", file.display()))
}

/// The last bytes of a file that is received in parts.
#[derive(Default)]
struct FileTail(Vec<u8>);

impl FileTail {
    /// Maximum length of a statistics block, bytes; longer blocks are not parsed.
    const MAX_BLOCK_LEN: usize = 512;

    fn push_part(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&part[part.len().saturating_sub(Self::MAX_BLOCK_LEN)..]);
        self.0.drain(..self.0.len().saturating_sub(Self::MAX_BLOCK_LEN));
    }

    /// Returns the counters of the last block; `None` unless it is a big-endian statistics block.
    fn parse_statistics(&self) -> Option<Statistics> {
        let word = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?) as usize);
        let (rest, len) = self.0.split_at_checked(self.0.len().checked_sub(4)?)?;
        let block = rest.get(rest.len().checked_sub(word(len)?.checked_sub(4)?)?..)?;
        // Type 5: Interface Statistics Block.
        if word(block.get(..4)?)? != 5 {
            return None;
        }
        let (mut statistics, mut options) = (Statistics::default(), block.get(20..)?);
        while let [a, b, c, d, rest @ ..] = options {
            let (code, len) =
                (u16::from_be_bytes([*a, *b]), usize::from(u16::from_be_bytes([*c, *d])));
            let value = rest.get(..len)?;
            let number = || Some(u64::from_be_bytes(value.try_into().ok()?));
            match code {
                4 => statistics.seen = number()?,
                7 => statistics.lost = number()?,
                8 => statistics.captured = number()?,
                _ => {}
            }
            options = rest.get(len.next_multiple_of(4)..)?;
        }
        Some(statistics)
    }
}

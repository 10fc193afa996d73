//! `ddp-load-frames`: writes the frames of a profile to a capture file.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use ipnet::IpNet;
use load::capture;
use load::frames::{self, Mac, Plan, Profile, Stream};

/// Default capture of the profile `pcap-replay`, recorded from a siw client.
const SIW_CAPTURE: &[u8] = include_bytes!("../../captures/siw-write.pcap");

/// Write the frames of a load profile to a capture file, for generators that replay captures (pktgen -s 0:FILE,
/// dpdk-testpmd with --vdev net_pcap0,rx_pcap=FILE,infinite_rx=1).
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Profile of the frames.
    profile: Profile,
    /// Capture file to write.
    #[arg(long)]
    out: PathBuf,
    /// Number of frames in the file.
    #[arg(long, default_value_t = 8192)]
    count: usize,
    /// Seed of the random values; the same seed gives the same file.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Send all frames from the address of --source; ports stay random.
    #[arg(long)]
    one_source: bool,
    /// MAC address of the frames' sender.
    #[arg(long, value_parser = parse_mac)]
    source_mac: Mac,
    /// MAC address of the appliance.
    #[arg(long, value_parser = parse_mac)]
    destination_mac: Mac,
    /// Address or prefix of the frames' sources. The in-window profiles use the stream's REMOTE instead.
    #[arg(long, value_parser = parse_source, required_unless_present = "stream")]
    source: Option<IpNet>,
    /// Address of the appliance and port of its listener.
    #[arg(long, required_unless_present = "stream")]
    destination: Option<SocketAddr>,
    /// Live stream for the in-window profiles: LOCAL:PORT,REMOTE:PORT,NEXT-SEQ,ACK[,TSVAL,TSECR]. LOCAL is the
    /// appliance's end, NEXT-SEQ its RCV.NXT, and ACK the acknowledgement number to send, its SND.UNA.
    #[arg(long, value_parser = parse_stream)]
    stream: Option<Stream>,
    /// Bytes from NEXT-SEQ to the stream's next MPA marker, if the peer sends markers.
    #[arg(long, requires = "stream", value_parser = clap::value_parser!(u16).range(..512))]
    marker: Option<u16>,
    /// For pcap-replay: capture to use instead of the built-in one of a siw client.
    #[arg(long)]
    capture: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let replayed = match (&args.capture, args.profile) {
        (Some(path), Profile::PcapReplay) => capture::read(path)?,
        (None, Profile::PcapReplay) => capture::parse(SIW_CAPTURE)?,
        (Some(_), other) => bail!("--capture is for pcap-replay, not for {}", other.name()),
        (None, _) => Vec::new(),
    };
    let stream = args.stream.map(|stream| Stream { marker: args.marker, ..stream });
    ensure!(
        stream.is_some() == args.profile.needs_stream(),
        "--stream is for the in-window profiles, and they need it"
    );
    let plan = Plan {
        source_mac: args.source_mac,
        destination_mac: args.destination_mac,
        sources: args
            .source
            .or(stream.map(|stream| stream.remote.ip().into()))
            .context("--source is missing")?,
        one_source: args.one_source,
        destination: args
            .destination
            .or(stream.map(|stream| stream.local))
            .context("--destination is missing")?,
        stream,
        capture: replayed,
    };
    capture::write(&args.out, &frames::frames(args.profile, &plan, args.count, args.seed)?)
}

fn parse_mac(text: &str) -> Result<Mac> {
    let bytes: Vec<u8> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()
        .context("no MAC address")?;
    bytes.try_into().ok().context("a MAC address has six bytes")
}

fn parse_source(text: &str) -> Result<IpNet> {
    text.parse::<IpNet>().or_else(|_| Ok(text.parse::<std::net::IpAddr>()?.into()))
}

fn parse_stream(text: &str) -> Result<Stream> {
    let fields: Vec<&str> = text.split(',').collect();
    let (ends, timestamps) = match fields[..] {
        [local, remote, seq, ack] => ((local, remote, seq, ack), None),
        [local, remote, seq, ack, value, echo] => {
            ((local, remote, seq, ack), Some((value.parse()?, echo.parse()?)))
        }
        _ => bail!("four or six fields: LOCAL:PORT,REMOTE:PORT,NEXT-SEQ,ACK[,TSVAL,TSECR]"),
    };
    let (local, remote, seq, ack) = ends;
    Ok(Stream {
        local: local.parse()?,
        remote: remote.parse()?,
        next_seq: seq.parse()?,
        ack: ack.parse()?,
        timestamps,
        marker: None,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn ddp_load_frames_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn addresses_and_streams_are_parsed_or_refused() {
        assert_eq!(parse_mac("02:00:00:00:00:0a").unwrap(), [2, 0, 0, 0, 0, 10]);
        assert!(parse_mac("02:00:00:00:00").is_err());
        assert_eq!(parse_source("198.19.0.1").unwrap().to_string(), "198.19.0.1/32");
        assert_eq!(parse_source("2001:2:1::/64").unwrap().prefix_len(), 64);
        assert!(parse_source("198.19.0.1/33").is_err());
        let with = parse_stream("198.18.0.1:1,198.18.0.2:2,3,4,5,6").unwrap();
        assert_eq!((with.next_seq, with.ack, with.timestamps), (3, 4, Some((5, 6))));
        assert_eq!(parse_stream("[2001:2::1]:1,[2001:2::2]:2,3,4").unwrap().timestamps, None);
        assert!(parse_stream("198.18.0.1:1,198.18.0.2:2,3").is_err());
    }
}

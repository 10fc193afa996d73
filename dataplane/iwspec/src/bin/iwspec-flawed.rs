//! `iwspec-flawed`: a reference peer that is correct or has chosen flaws. For tests of `iwspec` only.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use iwspec::case::Transport;
use iwspec::device::Service;
use iwspec::peer::flaws::{BEHAVIOURS, CHECKS, Flaws};
use iwspec::peer::{Config, initiate, sctp, serve};

/// SCTP port to which an initiator opens associations. A responder accepts them at every port.
const SCTP_PORT: u16 = 7471;

/// A peer with chosen flaws, for tests of iwspec only.
#[derive(Debug, Parser)]
#[command(name = "iwspec-flawed", version)]
struct Cli {
    /// Accepts connections at this address
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect")]
    listen: Option<SocketAddr>,
    /// Connects to this address repeatedly
    #[arg(long, value_name = "ADDRESS:PORT")]
    connect: Option<SocketAddr>,
    /// Lower layer of DDP. With sctp, --listen and --connect name the UDP address, and the SCTP port is 7471
    #[arg(long, value_enum, default_value = "tcp")]
    transport: Transport,
    /// Service
    #[arg(long, value_enum, default_value = "region")]
    service: Service,
    /// Requires markers
    #[arg(long)]
    markers: bool,
    /// Does not request CRCs
    #[arg(long)]
    no_crc: bool,
    /// MPA revision of the initiator's Request; 0: Start Key of the first draft
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u8).range(0..=2))]
    revision: u8,
    /// Flags A, B, C, D (8, 4, 2, 1) of the initiator's Request with revision 2
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u8).range(0..=15))]
    ready: u8,
    /// Flaw, as in the `flaw` lines of cases
    #[arg(long)]
    flaw: Vec<String>,
    /// Lists the checks and behaviours that a flaw can name, and ends
    #[arg(long)]
    words: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.words {
        println!("checks: {}\nbehaviours:", CHECKS.join(", "));
        BEHAVIOURS.iter().for_each(|(word, what)| println!("  {word:<26} {what}"));
        return ExitCode::SUCCESS;
    }
    let flaws = match Flaws::parse(&cli.flaw.join("\n")) {
        Ok(flaws) => flaws,
        Err(e) => {
            eprintln!("iwspec-flawed: {e}");
            return ExitCode::from(2);
        }
    };
    let config = Config {
        service: cli.service,
        markers: cli.markers,
        crc: !cli.no_crc,
        revision: cli.revision,
        ready: cli.ready,
        flaws,
    };
    let peer = match (cli.listen, cli.connect) {
        (Some(address), _) => match cli.transport {
            Transport::Tcp => serve(config, address),
            Transport::Sctp => sctp::serve(config, address),
        },
        (None, Some(address)) if cli.transport == Transport::Sctp => {
            Ok(sctp::initiate(config, address, SCTP_PORT))
        }
        (None, Some(address)) => Ok(initiate(config, address)),
        (None, None) => {
            eprintln!("iwspec-flawed: give --listen or --connect");
            return ExitCode::from(2);
        }
    };
    match peer {
        Ok(peer) => {
            println!("ready at {}", peer.address);
            loop {
                std::thread::park();
            }
        }
        Err(e) => {
            eprintln!("iwspec-flawed: {e}");
            ExitCode::FAILURE
        }
    }
}

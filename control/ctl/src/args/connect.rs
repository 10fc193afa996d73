//! Arguments for opening a stream.

use clap::{ArgAction, Args as ClapArgs, ValueEnum};

use crate::url::Peer;
use crate::values::on_off;

/// MPA parameters to request.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct MpaArgs {
    /// MPA revision; by default 1, for rdmap:// 2. start-key is the start-up of the first MPA draft (revision 0): no
    /// request frames, no region names
    #[arg(long, value_enum)]
    pub mpa_rev: Option<MpaRev>,
    /// Request markers from the peer; by default on, for rdmap:// off
    #[arg(long, value_name = "on|off", value_parser = on_off, action = ArgAction::Set)]
    pub markers: Option<bool>,
    /// Request CRCs; off takes effect only if the peer does not request them either
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off, action = ArgAction::Set)]
    pub crc: bool,
}

/// MPA revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MpaRev {
    /// Revision 0 with request frames
    #[value(name = "0")]
    Zero,
    /// RFC 5044
    #[value(name = "1")]
    One,
    /// RFC 6581, for RDMAP
    #[value(name = "2")]
    Two,
    /// Start Key of the first MPA draft: carries no region names, so it requires --stag and --to
    #[value(name = "start-key")]
    StartKey,
}

/// Options for opening a stream.
#[derive(Clone, Debug, ClapArgs)]
pub struct ConnectOptions {
    /// Interface of the appliance; by default the interface with a route to the peer
    #[arg(long)]
    pub interface: Option<String>,
    /// With sctp://: UDP port of the peer for SCTP in UDP (RFC 6951), such as 9899
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub udp_port: Option<u16>,
    /// Differentiated services codepoint (DSCP), 0 to 63; by default the interface's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub dscp: Option<u8>,
    /// IPv4 TTL or IPv6 hop limit, 1 to 255; by default the interface's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub ttl: Option<u8>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub mpa: MpaArgs,
    /// With rdmap://: maximum number of the peer's outstanding RDMA Reads and atomics (IRD)
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub ird: u16,
    /// With rdmap://: maximum number of our outstanding RDMA Reads and atomics (ORD)
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub ord: u16,
    /// With rdmap://: kind of peer: standard, siw, cxgb4, irdma or smb-direct
    #[arg(long, value_name = "KIND", default_value = "standard")]
    pub peer_kind: String,
    /// With rdmap://: allow the peer to send first (peer-to-peer model of RFC 6581)
    #[arg(long)]
    pub peer_to_peer: bool,
    /// With rdmap://: retry with MPA revision 1 if the peer closes the connection upon revision 2
    #[arg(long)]
    pub retry_rev1: bool,
}

/// Arguments of `ddpctl connect`.
#[derive(Debug, ClapArgs)]
pub struct Connect {
    /// Peer: [tcp://|rdmap://|sctp://|rdmap+sctp://]HOST:PORT, an IPv6 address in brackets
    pub peer: Peer,
    /// Region that the peer may access; may be repeated
    #[arg(long = "region", value_name = "NAME")]
    pub regions: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: ConnectOptions,
}

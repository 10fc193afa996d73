//! How a stream is opened.

use clap::{ArgAction, Args as ClapArgs, ValueEnum};

use crate::url::Peer;
use crate::values::on_off;

/// MPA as we ask for it.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct MpaArgs {
    /// MPA revision, by default 1, for rdmap:// 2; start-key is the form of revision 0 without request
    /// frames and region names
    #[arg(long, value_enum)]
    pub mpa_rev: Option<MpaRev>,
    /// Ask the peer for markers; by default on, for rdmap:// off
    #[arg(long, value_name = "on|off", value_parser = on_off, action = ArgAction::Set)]
    pub markers: Option<bool>,
    /// Ask for CRCs; off only if the peer does not ask for them either
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off, action = ArgAction::Set)]
    pub crc: bool,
}

/// MPA's revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MpaRev {
    /// Request frames with revision 0
    #[value(name = "0")]
    Zero,
    /// RFC 5044
    #[value(name = "1")]
    One,
    /// RFC 6581, for RDMAP
    #[value(name = "2")]
    Two,
    /// The first draft's Start Key: no region names, needs --stag and --to
    #[value(name = "start-key")]
    StartKey,
}

/// How a stream is opened.
#[derive(Clone, Debug, ClapArgs)]
pub struct ConnectOptions {
    /// Interface of the appliance; by default the one with a route
    #[arg(long)]
    pub interface: Option<String>,
    /// With sctp://: SCTP in UDP (RFC 6951), to this UDP port of the peer, such as 9899
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub udp_port: Option<u16>,
    /// Differentiated services codepoint; by default the interface's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub dscp: Option<u8>,
    /// Time to live, or hop limit; by default the interface's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub ttl: Option<u8>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub mpa: MpaArgs,
    /// With rdmap://: Reads of the peer that we take at one time
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub ird: u16,
    /// With rdmap://: Reads and atomics that we issue at one time
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub ord: u16,
    /// With rdmap://: the kind of peer: standard, siw, cxgb4, irdma or smb-direct
    #[arg(long, value_name = "KIND", default_value = "standard")]
    pub peer_kind: String,
    /// With rdmap://: the peer may send first (RFC 6581's peer-to-peer model)
    #[arg(long)]
    pub peer_to_peer: bool,
    /// With rdmap://: try MPA revision 1 when the peer closes the connection upon revision 2
    #[arg(long)]
    pub retry_rev1: bool,
}

/// `ddpctl connect`.
#[derive(Debug, ClapArgs)]
pub struct Connect {
    /// [tcp://|rdmap://|sctp://|rdmap+sctp://]HOST:PORT, an IPv6 address in brackets
    pub peer: Peer,
    /// A region that the peer may reach; may be repeated
    #[arg(long = "region", value_name = "NAME")]
    pub regions: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: ConnectOptions,
}

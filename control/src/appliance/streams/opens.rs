//! How streams are opened from here: those that are opened in the same way share a configuration, as those of
//! a listener do.

use std::sync::Arc;
use std::time::Duration;

use dataplane::{EndpointConfig, SctpConfig};
use tcp_lite::mpa;

use crate::appliance::endpoints::{connect_endpoint, connect_sctp, heartbeat_for, serve_one};
use api::ConnectSpec;
use config::Transport;
use config::{Config, IpFields};

/// Ways to open streams that are remembered, and as many to open associations.
const KINDS: usize = 16;

/// The configurations of the ways that were asked for.
#[derive(Default)]
pub(super) struct Opens {
    tcp: Vec<(TcpKind, Arc<tcp_lite::endpoint::EndpointConfig>)>,
    sctp: Vec<(SctpKind, Arc<SctpConfig>)>,
}

impl Opens {
    /// How a stream is opened. Over SCTP the same object for the same wishes, so that streams to one peer share
    /// associations.
    pub(super) fn endpoint(
        &mut self,
        config: &Config,
        spec: &ConnectSpec,
        start_key: bool,
    ) -> EndpointConfig {
        match spec.transport {
            Transport::Tcp => {
                let peer = mpa::Peer::from_name(&spec.rdmap.peer).unwrap_or_default();
                let kind = TcpKind::of(config, spec, peer, start_key);
                let make = || connect_endpoint(config, spec, peer, start_key);
                EndpointConfig::Tcp(shared(&mut self.tcp, kind, make))
            }
            Transport::Sctp => {
                let make = || connect_sctp(config, spec);
                EndpointConfig::Sctp(shared(&mut self.sctp, SctpKind::of(config, spec), make))
            }
        }
    }
}

/// The configuration of this kind; the oldest one makes room for a new one.
fn shared<K: PartialEq, C>(
    known: &mut Vec<(K, Arc<C>)>,
    kind: K,
    make: impl FnOnce() -> C,
) -> Arc<C> {
    if let Some((_, config)) = known.iter().find(|(other, _)| *other == kind) {
        return Arc::clone(config);
    }
    let config = Arc::new(make());
    if known.len() >= KINDS {
        known.remove(0);
    }
    known.push((kind, Arc::clone(&config)));
    config
}

/// What ways to open an association differ in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SctpKind {
    /// The peer's UDP port; `None` without encapsulation.
    udp_port: Option<u16>,
    /// The peer-to-peer model of RFC 6581.
    peer_to_peer: bool,
    /// Fields of the IP headers: streams that share an association have the same.
    ip: IpFields,
    /// Time between heartbeats: less where the peer has a region for itself.
    heartbeat: Option<Duration>,
}

impl SctpKind {
    fn of(config: &Config, spec: &ConnectSpec) -> SctpKind {
        // Where the heartbeats are the same, streams with and without such a region share associations.
        let heartbeat = heartbeat_for(config, &spec.regions);
        let (udp_port, peer_to_peer) = (spec.udp_port, spec.rdmap.peer_to_peer);
        SctpKind { udp_port, peer_to_peer, ip: spec.ip_fields(), heartbeat }
    }
}

/// What ways to open a connection differ in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TcpKind {
    /// MPA's revision that is asked for first.
    revision: u8,
    /// Start Keys of the draft instead of frames.
    start_key: bool,
    /// Markers are asked for.
    markers: bool,
    /// CRC is asked for.
    crc: bool,
    /// What kind of peer it is.
    peer: mpa::Peer,
    /// The peer-to-peer model of RFC 6581.
    peer_to_peer: bool,
    /// A second attempt with revision 1.
    retry_revision_1: bool,
    /// A silent peer is probed because it has a region for itself.
    serves_one: bool,
}

impl TcpKind {
    fn of(config: &Config, spec: &ConnectSpec, peer: mpa::Peer, start_key: bool) -> TcpKind {
        TcpKind {
            revision: spec.revision(),
            start_key,
            markers: spec.markers(),
            crc: spec.mpa.crc,
            peer,
            peer_to_peer: spec.rdmap.peer_to_peer,
            retry_revision_1: spec.rdmap.retry_revision_1,
            serves_one: serve_one(config, &spec.regions),
        }
    }
}

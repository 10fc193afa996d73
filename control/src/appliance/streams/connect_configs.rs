//! Endpoint configurations of active opens. Streams opened with the same options share a configuration, as the streams
//! of a listener do.

use std::sync::Arc;
use std::time::Duration;

use api::{ConnectSpec, MpaChoice, RdmapChoice};
use config::{Config, IpFields, Transport};
use dataplane::{EndpointConfig, SctpConfig};
use tcp_lite::mpa;

use crate::appliance::endpoints::{connect_endpoint, connect_sctp, heartbeat_for, is_exclusive};

/// Maximum number of cached configurations, for TCP and SCTP each.
const MAX_CONFIGS: usize = 16;

/// Cached configurations of active opens, by their options.
#[derive(Default)]
pub(super) struct ConnectConfigs {
    tcp: Vec<(TcpKind, Arc<tcp_lite::endpoint::EndpointConfig>)>,
    sctp: Vec<(SctpKind, Arc<SctpConfig>)>,
}

impl ConnectConfigs {
    /// Returns the configuration for an active open. Over SCTP, equal options return the same object, so that streams
    /// to one peer can share an association.
    pub(super) fn endpoint(
        &mut self,
        config: &Config,
        spec: &ConnectSpec,
        start_key: bool,
    ) -> EndpointConfig {
        match spec.transport {
            Transport::Tcp => {
                let peer = mpa::Peer::from_name(&spec.rdmap.peer).unwrap_or_default();
                let kind = TcpKind::from_spec(config, spec, peer, start_key);
                let make = || connect_endpoint(config, spec, peer, start_key);
                EndpointConfig::Tcp(get_or_insert(&mut self.tcp, kind, make))
            }
            Transport::Sctp => {
                let make = || connect_sctp(config, spec);
                EndpointConfig::Sctp(get_or_insert(
                    &mut self.sctp,
                    SctpKind::from_spec(config, spec),
                    make,
                ))
            }
        }
    }
}

/// Returns the cached configuration for `kind`, or creates and caches it. A full cache drops its oldest entry.
fn get_or_insert<K: PartialEq, C>(
    cache: &mut Vec<(K, Arc<C>)>,
    kind: K,
    make: impl FnOnce() -> C,
) -> Arc<C> {
    if let Some((_, config)) = cache.iter().find(|(other, _)| *other == kind) {
        return Arc::clone(config);
    }
    let config = Arc::new(make());
    if cache.len() >= MAX_CONFIGS {
        cache.remove(0);
    }
    cache.push((kind, Arc::clone(&config)));
    config
}

/// Options by which configurations for SCTP differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SctpKind {
    /// The peer's UDP port; `None` without encapsulation.
    udp_port: Option<u16>,
    /// True for the peer-to-peer model of RFC 6581.
    peer_to_peer: bool,
    /// IP header fields, equal for all streams of one association.
    ip: IpFields,
    /// Heartbeat interval, shorter if the peer may hold an exclusive region. `None` without heartbeats.
    heartbeat: Option<Duration>,
}

impl SctpKind {
    fn from_spec(config: &Config, spec: &ConnectSpec) -> SctpKind {
        // Streams with and without an exclusive region share associations if their heartbeats are equal.
        let heartbeat = heartbeat_for(config, &spec.regions);
        let (udp_port, peer_to_peer) = (spec.udp_port, spec.rdmap.peer_to_peer);
        SctpKind { udp_port, peer_to_peer, ip: spec.ip_fields(), heartbeat }
    }
}

/// Options by which configurations for TCP differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TcpKind {
    /// MPA revision of the first attempt.
    revision: u8,
    /// True if the Start Keys of MPA's first draft replace the MPA Request and Reply Frames.
    start_key: bool,
    /// True if markers are requested.
    markers: bool,
    /// True if CRCs are requested.
    crc: bool,
    /// Kind of the peer's RDMA implementation, by its known deviations from the specifications.
    peer: mpa::Peer,
    /// True for the peer-to-peer model of RFC 6581.
    peer_to_peer: bool,
    /// True if an attempt with revision 2 that fails is repeated with revision 1.
    retry_revision_1: bool,
    /// True if a silent peer is probed, because it may hold an exclusive region.
    is_exclusive: bool,
}

impl TcpKind {
    fn from_spec(config: &Config, spec: &ConnectSpec, peer: mpa::Peer, start_key: bool) -> TcpKind {
        // The patterns have no `..`: a new option does not compile until it is added to the key or ignored here.
        let MpaChoice { revision: _, start_key: _, markers: _, crc } = spec.mpa;
        let &RdmapChoice { ird: _, ord: _, peer: _, peer_to_peer, retry_revision_1 } = &spec.rdmap;
        TcpKind {
            revision: spec.revision(),
            start_key,
            markers: spec.markers(),
            crc,
            peer,
            peer_to_peer,
            retry_revision_1,
            is_exclusive: is_exclusive(config, &spec.regions),
        }
    }
}

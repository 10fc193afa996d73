//! Endpoint configurations for the layers below, derived from the configuration file and from connect requests.
//!
//! The functions are pure and do not fail, because file and requests are checked before. A listener's streams share one
//! configuration; `streams::connect_configs` shares those of active opens.

use std::sync::Arc;
use std::time::Duration;

use api::{ConnectSpec, UlpChoice};
use config::{
    Config, Delivery, ListenerLimits, ListenerSection, MpaReceiveSection, MpaSection, PeerSection,
    QueueSection, SctpSection, TcpSection, Transport, Ulp,
};
use dataplane::{
    InterfaceId, ListenerConfig, ListenerId, PeerFilter, PeerLists, SctpConfig, Service,
};
use ddp::{EndpointPolicy, MESSAGE_QUEUE, Qn, QueueConfig, StreamConfig, VersionPolicy, rdmap};
use sctp_lite::sctp;
use tcp_lite::endpoint::{EndpointConfig, UlpConfig};
use tcp_lite::mpa::{self, Revision, Revisions};
use tcp_lite::tcp;

use crate::service;

/// Message queue of active opens: number of receive buffers, and length of each in bytes.
const ACTIVE_OPEN_QUEUE: (u32, u32) = (32, 64 << 10);

/// Returns a listener's configuration for one of `workers` workers.
pub fn listener_config(
    config: &Config,
    section: &ListenerSection,
    id: ListenerId,
    interface: Option<InterfaceId>,
    workers: u32,
) -> ListenerConfig {
    let pending = section.limits.pending.div_ceil(workers.max(1)).max(1);
    ListenerConfig {
        ip: section.ip,
        id,
        interface,
        address: section.address,
        port: section.port,
        endpoint: listener_endpoint(config, section),
        require: section.require,
        peers: Arc::new(peer_filter(config, section)),
        backlog: pending,
        credits: pending,
    }
}

/// Returns the peers that a listener admits, by its own and its interface's lists.
pub(super) fn peer_filter(config: &Config, section: &ListenerSection) -> PeerFilter {
    let lists = |peers: &PeerSection| PeerLists::new(&peers.allow, &peers.deny);
    let interface = config.interfaces.iter().find(|i| i.name == section.interface);
    PeerFilter {
        interface: interface.map_or_else(PeerLists::default, |i| lists(&i.peers)),
        listener: lists(&section.peers),
    }
}

/// Returns the peers that an interface's own lists admit, for the listener of a local program.
pub(super) fn interface_peers(config: &Config, interface: InterfaceId) -> PeerFilter {
    let lists = |peers: &PeerSection| PeerLists::new(&peers.allow, &peers.deny);
    let interface = config.interfaces.get(usize::from(interface.0));
    PeerFilter {
        interface: interface.map_or_else(PeerLists::default, |i| lists(&i.peers)),
        listener: PeerLists::default(),
    }
}

/// Returns the ULP of a listener's streams, and the worker's service for their messages.
pub fn accepted_ulp(
    ulp: Option<&Ulp>,
    queues: &[QueueSection],
    version: VersionPolicy,
) -> (UlpConfig, Service) {
    match ulp.and_then(Ulp::rdmap) {
        None => (stream_config(queues, version).into(), Service::Control),
        Some(section) => {
            let config = rdmap_config(section.ird, section.ord, queues, version);
            (config.into(), service::worker_service(section.service))
        }
    }
}

/// Returns the ULP of an active open.
pub fn opened_ulp(spec: &ConnectSpec, version: VersionPolicy) -> UlpConfig {
    match spec.ulp {
        UlpChoice::Ddp => stream_config(&active_open_queues(), version).into(),
        UlpChoice::Rdmap => {
            rdmap_config(spec.rdmap.ird, spec.rdmap.ord, &active_open_queues(), version).into()
        }
    }
}

/// Returns the ULP of a local program's stream with this IRD and ORD, and at most `max_sends` outstanding operations.
/// The configuration has no receive buffers, because the worker posts the receives of the program.
pub(super) fn program_ulp(ird: u16, ord: u16, max_sends: u32) -> UlpConfig {
    let rdmap = rdmap::Config {
        ird,
        ord,
        recv_buffers: 0,
        recv_size: 0,
        max_operations: max_sends as usize,
        ..rdmap::Config::default()
    };
    rdmap.into()
}

/// Returns the endpoint configuration of a listener's streams.
pub fn listener_endpoint(config: &Config, section: &ListenerSection) -> dataplane::EndpointConfig {
    match section.transport {
        Transport::Tcp => tcp_listener(config, section).into(),
        Transport::Sctp => sctp_listener(config, section).into(),
    }
}

fn sctp_listener(config: &Config, section: &ListenerSection) -> SctpConfig {
    let limits = &section.limits;
    let sessions = sctp_lite::session::Config {
        answer_timeout: limits.startup_timeout,
        max_pending: u16::try_from(limits.pending).unwrap_or(u16::MAX),
        max_sessions: config.sctp.streams,
        ..Default::default()
    };
    let endpoint = sctp_lite::endpoint::EndpointConfig {
        session: sessions,
        policy: policy(limits),
        linger: config.sctp.linger,
    };
    SctpConfig {
        sctp: Arc::new(sctp_config_with_heartbeat(config, has_exclusive_region(config, section))),
        endpoint: Arc::new(endpoint),
        udp: None,
    }
}

/// Returns the configuration of an active open over SCTP, with the UDP port of `spec` if given.
pub fn connect_sctp(config: &Config, spec: &ConnectSpec) -> SctpConfig {
    let defaults = sctp_lite::session::Config::default();
    let peer_to_peer = spec.rdmap.peer_to_peer;
    let sessions = sctp_lite::session::Config {
        enhanced: mpa::Enhanced { peer_to_peer, ..defaults.enhanced },
        max_sessions: config.sctp.streams,
        ..defaults
    };
    let endpoint = sctp_lite::endpoint::EndpointConfig {
        session: sessions,
        linger: config.sctp.linger,
        ..Default::default()
    };
    let sctp = Arc::new(sctp_config_with_heartbeat(config, is_exclusive(config, &spec.regions)));
    SctpConfig { sctp, endpoint: Arc::new(endpoint), udp: spec.udp_port }
}

fn policy(limits: &ListenerLimits) -> EndpointPolicy {
    EndpointPolicy { idle_timeout: limits.idle_timeout, ..EndpointPolicy::default() }
}

fn sctp_config(section: &SctpSection, recorder: bool) -> sctp::Config {
    // Pattern without `..`: a new key that is missing here is a compile error.
    let &SctpSection {
        congestion,
        initial_rto,
        min_rto,
        max_rto,
        max_init_retransmits,
        max_retransmits,
        heartbeat,
        sack_delay,
        cookie_life,
        streams,
        receive_window,
        receive_window_limit,
        send_window,
        pacing,
        tail_loss_probe,
        path_mtu_probing,
        min_path_mtu,
        path_mtu_raise,
        linger: _,
        udp_encapsulation: _,
    } = section;
    sctp::Config {
        streams,
        cookie_life,
        max_init_retransmits,
        max_retransmits,
        heartbeat_interval: heartbeat,
        path_mtu_probing,
        min_path_mtu,
        path_mtu_raise,
        receive: Arc::new(sctp::receive::ReceiveConfig {
            window: receive_window,
            window_limit: receive_window_limit,
            sack_delay,
            ..sctp::receive::ReceiveConfig::default()
        }),
        send: Arc::new(sctp::send::SendConfig {
            initial_rto,
            min_rto,
            max_rto,
            congestion,
            send_window: u64::from(send_window),
            pacing,
            tail_loss_probe,
            recorder,
            ..sctp::send::SendConfig::default()
        }),
        ..sctp::Config::default()
    }
}

fn tcp_listener(config: &Config, section: &ListenerSection) -> EndpointConfig {
    // Pattern without `..`: a new key that is missing here is a compile error.
    let MpaSection { revision_0, revision_1, revision_2, markers, crc, private_data_limit: _ } =
        section.mpa;
    EndpointConfig {
        tcp: Arc::new(tcp_config_with_keepalive(config, has_exclusive_region(config, section))),
        mpa: mpa::Config {
            revisions: Revisions {
                draft: revision_0,
                zero: revision_0,
                one: revision_1,
                // A bare DDP listener parses revision 2, which only RDMAP peers use, to reject them with a reason.
                two: revision_2 || section.ulp == Ulp::Ddp && revision_1,
            },
            peer: section.ulp.rdmap().map_or(mpa::Peer::Standard, |rdmap| rdmap.peer),
            markers,
            crc,
            startup_timeout: section.limits.startup_timeout,
            ..mpa_config(config)
        },
        policy: policy(&section.limits),
    }
}

/// Returns the configuration of an active open over TCP. `start_key`: MPA revision 0 with Start Keys, as in the first
/// draft.
pub fn connect_endpoint(
    config: &Config,
    spec: &ConnectSpec,
    peer: mpa::Peer,
    start_key: bool,
) -> EndpointConfig {
    let (initiate, revisions) = match (spec.revision(), start_key) {
        (0, true) => (Revision::Draft, Revisions { draft: true, ..Revisions::NONE }),
        (0, false) => (Revision::Zero, Revisions { zero: true, ..Revisions::NONE }),
        (1, _) => (Revision::One, Revisions { zero: true, one: true, ..Revisions::NONE }),
        _ => (Revision::Two, Revisions { one: true, two: true, ..Revisions::NONE }),
    };
    let enhanced =
        mpa::Enhanced { peer_to_peer: spec.rdmap.peer_to_peer, ..mpa::Enhanced::default() };
    EndpointConfig {
        tcp: Arc::new(tcp_config_with_keepalive(config, is_exclusive(config, &spec.regions))),
        mpa: mpa::Config {
            revisions,
            initiate,
            markers: spec.markers(),
            crc: spec.mpa.crc,
            peer,
            enhanced,
            retry_rev1: spec.rdmap.retry_revision_1,
            ..mpa_config(config)
        },
        ..EndpointConfig::default()
    }
}

/// Keepalive probes to a silent peer with an exclusive region if `tcp.keepalive` is off: maximum interval, and number.
const KEEPALIVE_PROBES: (Duration, u8) = (Duration::from_secs(10), 5);

/// Returns true if one of these regions may be exclusive to one stream. Regions that the file does not declare are
/// assumed to be exclusive.
pub(super) fn is_exclusive(config: &Config, regions: &[String]) -> bool {
    let is_shared = |name: &String| {
        let region = config.regions.iter().find(|region| region.name == *name);
        region.is_some_and(|region| region.shared || !region.remote_write)
    };
    !regions.iter().all(is_shared)
}

/// Returns true if the listener's streams use an exclusive region. Slots of a region, one per stream, do not count,
/// because no other stream waits for them.
fn has_exclusive_region(config: &Config, section: &ListenerSection) -> bool {
    !section.has_slots() && is_exclusive(config, &section.regions)
}

/// Returns TCP's configuration. The peer of a stream with an exclusive region is probed after at most
/// `limits.exclusive_keepalive` of silence, unless that key is off. `is_exclusive`: true if the stream
/// has an exclusive region.
fn tcp_config_with_keepalive(config: &Config, is_exclusive: bool) -> tcp::Config {
    let recorder = config.management.recorder;
    let tcp = tcp::Config { recorder, ..tcp_config(&config.tcp) };
    let Some(idle) = config.limits.exclusive_keepalive.filter(|_| is_exclusive) else { return tcp };
    let keepalive = match tcp.keepalive {
        Some(own) => tcp::Keepalive { idle: own.idle.min(idle), ..own },
        None => tcp::Keepalive {
            idle,
            interval: KEEPALIVE_PROBES.0.min(idle),
            probes: KEEPALIVE_PROBES.1,
        },
    };
    tcp::Config { keepalive: Some(keepalive), ..tcp }
}

/// Returns SCTP's configuration. Heartbeats serve as keepalive. `is_exclusive`: true if a stream of the association may
/// have an exclusive region.
fn sctp_config_with_heartbeat(config: &Config, is_exclusive: bool) -> sctp::Config {
    let heartbeat_interval = heartbeat(config, is_exclusive);
    sctp::Config { heartbeat_interval, ..sctp_config(&config.sctp, config.management.recorder) }
}

/// Returns the shorter of SCTP's heartbeat interval and the keepalive interval of exclusive regions; `None` if both are
/// off. `is_exclusive`: true if a stream of the association may have an exclusive region.
fn heartbeat(config: &Config, is_exclusive: bool) -> Option<Duration> {
    let of_region = config.limits.exclusive_keepalive.filter(|_| is_exclusive);
    config.sctp.heartbeat.into_iter().chain(of_region).min()
}

/// Returns the heartbeat interval of an association whose stream uses these regions. `None` without heartbeats.
pub(super) fn heartbeat_for(config: &Config, regions: &[String]) -> Option<Duration> {
    heartbeat(config, is_exclusive(config, regions))
}

/// Returns MPA's receive parameters, for accepted and opened streams.
fn mpa_config(config: &Config) -> mpa::Config {
    let MpaReceiveSection { on_bad_crc, max_fpdu, bad_crc_tries } = config.mpa;
    mpa::Config {
        max_fpdu,
        hold_limit: u32::try_from(config.limits.held_per_stream).unwrap_or(u32::MAX),
        on_bad_crc,
        bad_crc_tries,
        ..mpa::Config::default()
    }
}

/// Returns the TCP parameters that all streams share.
pub(super) fn tcp_config(section: &TcpSection) -> tcp::Config {
    // Pattern without `..`: a new key that is missing here is a compile error.
    let &TcpSection {
        congestion,
        initial_rto,
        min_rto,
        user_timeout,
        time_wait,
        delayed_ack,
        receive_window,
        receive_window_limit,
        send_window,
        sack,
        path_mtu_probing,
        min_path_mtu,
        path_mtu_raise,
        timestamps,
        pacing,
        tail_loss_probe,
        ecn,
        zero_window_timeout,
        syn_cookies: _,
        keepalive,
    } = section;
    tcp::Config {
        rto: tcp::Rto { initial: initial_rto, min: min_rto, ..tcp::Rto::default() },
        limits: tcp::Limits {
            retransmission: user_timeout,
            zero_window: zero_window_timeout,
            time_wait,
            ..tcp::Limits::default()
        },
        extensions: tcp::Extensions { sack, timestamps, ecn, ..tcp::Extensions::default() },
        path_mtu: tcp::PathMtuConfig {
            probing: path_mtu_probing,
            min: min_path_mtu,
            raise: path_mtu_raise,
        },
        acks: tcp::AckConfig { pushed: true, delay: delayed_ack },
        congestion,
        send_window: u64::from(send_window),
        receive_window,
        receive_window_limit,
        pacing,
        tail_loss_probe,
        push_segments: true,
        keepalive,
        ..tcp::Config::default()
    }
}

/// Returns RDMAP's configuration for a stream with these queues.
pub(super) fn rdmap_config(
    ird: u16,
    ord: u16,
    queues: &[config::QueueSection],
    version: VersionPolicy,
) -> rdmap::Config {
    let queue = queues.iter().find(|queue| queue.qn == MESSAGE_QUEUE.0);
    rdmap::Config {
        ird,
        ord,
        recv_buffers: queue.map_or(0, |queue| queue.buffers),
        recv_size: queue.map_or(0, |queue| queue.buffer_size),
        version,
        ..rdmap::Config::default()
    }
}

pub(super) fn active_open_queues() -> Vec<QueueSection> {
    let (buffers, buffer_size) = ACTIVE_OPEN_QUEUE;
    let qn = ddp::MESSAGE_QUEUE.0;
    vec![QueueSection { qn, buffers, buffer_size, deliver_to: Delivery::Events }]
}

/// Returns DDP's configuration with these queues. The error queue is added unless it is among them.
pub(super) fn stream_config(queues: &[QueueSection], version: VersionPolicy) -> StreamConfig {
    let mut config = StreamConfig { version, ..StreamConfig::default() };
    for queue in queues {
        config.queues.retain(|other| other.qn.0 != queue.qn);
        config.queues.push(QueueConfig {
            qn: Qn(queue.qn),
            buffers: queue.buffers,
            buffer_size: queue.buffer_size,
        });
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Delivery, Document};

    fn parse(more: &str) -> Config {
        let text = format!(
            "[[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\n[[interface]]\nname = \"i\"\nport = \"p\"\n\
             addresses = [\"10.0.0.1/24\"]\n{more}"
        );
        Document::parse(std::path::Path::new("t.toml"), &text).unwrap().config
    }

    // A crashed peer must not hold an exclusive region forever.
    #[test]
    fn streams_with_an_exclusive_region_are_probed() {
        let minute = Duration::from_secs(60);
        for (shared, more, expected) in [
            (false, "", Some(minute)),
            (true, "", None),
            (false, "[limits]\nexclusive_keepalive = \"off\"\n", None),
            (false, "[limits]\nexclusive_keepalive = \"5 s\"\n", Some(Duration::from_secs(5))),
            (true, "[tcp]\nkeepalive = \"9 s\"\n", Some(Duration::from_secs(9))),
            (false, "[tcp]\nkeepalive = \"9 s\"\n", Some(Duration::from_secs(9))),
            (false, "[tcp]\nkeepalive = \"2 h\"\n", Some(minute)),
            (true, "[tcp]\nkeepalive = \"2 h\"\n", Some(120 * minute)),
        ] {
            let more = format!(
                "{more}[[region]]\nname = \"r\"\nsize = \"4 KiB\"\naccess = \"w\"\nshared = {shared}\n\
                 [[listener]]\nname = \"n\"\ninterface = \"i\"\nport = 1\nregions = [\"r\"]\n"
            );
            let config = parse(&more);
            let endpoint = tcp_listener(&config, &config.listeners[0]);
            assert_eq!(endpoint.tcp.keepalive.map(|probes| probes.idle), expected, "{more}");
        }
        for (more, exclusive, shared) in [
            ("[sctp]\nheartbeat = \"off\"\n", Some(minute), None),
            ("", Some(minute / 2), Some(minute / 2)),
            ("[limits]\nexclusive_keepalive = \"5 s\"\n", Some(minute / 12), Some(minute / 2)),
        ] {
            let config = parse(more);
            assert_eq!(
                sctp_config_with_heartbeat(&config, true).heartbeat_interval,
                exclusive,
                "{more}"
            );
            assert_eq!(
                sctp_config_with_heartbeat(&config, false).heartbeat_interval,
                shared,
                "{more}"
            );
            assert!(
                is_exclusive(&config, &["added by the API".into()]) && !is_exclusive(&config, &[])
            );
        }
    }

    // With an idle time of 1 s, detection must not take five probe intervals of 10 s.
    #[test]
    fn probe_interval_is_at_most_keepalive_idle_time() {
        for (key, interval) in [("1 s", 1), ("10 s", 10), ("1 min", 10)] {
            let config = parse(&format!("[limits]\nexclusive_keepalive = \"{key}\"\n"));
            let keepalive = tcp_config_with_keepalive(&config, true).keepalive.unwrap();
            assert_eq!(keepalive.interval, Duration::from_secs(interval));
        }
    }

    #[test]
    fn error_queue_is_added_unless_configured() {
        let config = stream_config(&active_open_queues(), VersionPolicy::V1);
        assert_eq!(config.queues.len(), 2);
        let own = QueueSection { qn: 2, buffers: 9, buffer_size: 9, deliver_to: Delivery::Discard };
        let config = stream_config(&[own], VersionPolicy::V0);
        assert_eq!(config.queues, [QueueConfig { qn: Qn(2), buffers: 9, buffer_size: 9 }]);
    }
}

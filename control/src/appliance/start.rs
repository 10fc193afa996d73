//! From checked configuration to what the layers below take.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use dataplane::port::{self, ChecksumMode, PortConfig};
use dataplane::{
    DataplaneConfig, Idle, InterfaceConfig, InterfaceId, Limits, ListenerConfig, ListenerId,
    PortAttachment, PortId, Route, SctpConfig, Service, SynCookieMode, WorkerConfig, WorkerId,
};
use ddp::VersionPolicy;
use dpdk::{EalConfig, Hugepages, LogLevel};
use sctp_lite::sctp;
use tcp_lite::endpoint::{EndpointConfig, UlpConfig};
use tcp_lite::mpa::{self, Revision, Revisions};
use tcp_lite::tcp;

use super::connect::own_queues;
use super::services::{rdmap_config, worker_service};
use super::streams::stream_config;
use crate::api::{ConnectSpec, UlpChoice};
use crate::config::{
    self, Checksum, Config, Congestion, HugepagePolicy, Impairment, ListenerSection, MemifRole,
    OnBadCrc, PortKind, PortSection, QueueSection, SctpSection, SynCookies, TcpSection, Ulp,
};
use crate::transport::Transport;

/// How long an adaptive worker polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Memory that DPDK needs besides pools, MiB.
const EAL_EXTRA_MIB: u64 = 64;

/// The EAL's configuration for all appliances of the process; their `[memory]` sections are the same.
///
/// # Errors
/// An impairment that no link can have.
pub fn eal_config(configs: &[&Config]) -> Result<EalConfig, String> {
    let memory = configs.first().map(|config| &config.memory);
    let mut pci = Vec::new();
    let mut pools = 0;
    for config in configs {
        for section in &config.ports {
            if let PortKind::Pci { address, devargs } = &section.kind {
                let separator = if devargs.is_empty() { "" } else { "," };
                pci.push(format!("{address}{separator}{devargs}"));
            }
            pools += port_config(config, section)?.pool_octets();
        }
    }
    let needed = EAL_EXTRA_MIB + pools.div_ceil(1 << 20) * 5 / 4;
    let asked = memory.and_then(|memory| memory.size).map(|size| size >> 20);
    Ok(EalConfig {
        hugepages: match memory.map(|memory| memory.hugepages) {
            Some(HugepagePolicy::Require) => Hugepages::Require,
            Some(HugepagePolicy::Never) => Hugepages::Never,
            Some(HugepagePolicy::Auto) | None => Hugepages::Auto,
        },
        memory_mib: u32::try_from(asked.unwrap_or(needed)).unwrap_or(u32::MAX),
        pci,
        extra: memory.map(|memory| memory.eal_args.clone()).unwrap_or_default(),
        log_level: LogLevel::Warning,
        log: dpdk_log,
    })
}

fn dpdk_log(level: LogLevel, line: &str) {
    match level {
        LogLevel::Warning => tracing::debug!(target: "dpdk", "{line}"),
        LogLevel::Notice | LogLevel::Info | LogLevel::Debug => {
            tracing::trace!(target: "dpdk", "{line}");
        }
        _ => tracing::warn!(target: "dpdk", "{line}"),
    }
}

/// A port's configuration.
///
/// # Errors
/// An impairment that no link can have.
pub fn port_config(config: &Config, section: &PortSection) -> Result<PortConfig, String> {
    let impair = match &section.impair {
        Some(impairment) => Some(
            link_config(impairment)
                .map_err(|error| format!("port {}: impair: {error}", section.name))?,
        ),
        None => None,
    };
    Ok(PortConfig {
        kind: port_kind(&section.kind),
        mtu: section.mtu,
        checksum: match section.checksum {
            Checksum::Offload => ChecksumMode::Offload,
            Checksum::Software => ChecksumMode::Software,
            Checksum::Trusted => ChecksumMode::Trusted,
        },
        mac: section.mac,
        queues: section.workers.len() as u16,
        rx_descriptors: section.rx_descriptors,
        tx_descriptors: section.tx_descriptors,
        buffers: None,
        numa: config.memory.numa_node.map(u32::from),
        impair,
        ..PortConfig::new(section.name.clone(), port_kind(&section.kind))
    })
}

fn port_kind(kind: &PortKind) -> port::PortKind {
    match kind.clone() {
        PortKind::Pci { address, .. } => port::PortKind::Pci { address },
        PortKind::AfXdp { device, first_queue, force_copy } => {
            port::PortKind::AfXdp { device, first_queue, force_copy }
        }
        PortKind::AfPacket { device } => port::PortKind::AfPacket { device },
        PortKind::Tap { device } => port::PortKind::Tap { device },
        PortKind::Memif { socket, role, id, secret } => {
            let role = match role {
                MemifRole::Server => port::MemifRole::Server,
                MemifRole::Client => port::MemifRole::Client,
            };
            port::PortKind::Memif { socket, role, id, secret }
        }
        PortKind::Ring { link } => port::PortKind::Ring { link },
    }
}

fn link_config(impairment: &Impairment) -> Result<link::Config, link::ConfigError> {
    use link::{BurstLoss, Loss, Probability, Rate, Reorder};
    let loss = match impairment.burst_loss {
        // The random loss is that of the good state: it is on top of the bursts.
        Some(burst) => Loss::Burst(BurstLoss {
            good_to_bad: Probability::new(burst.enter)?,
            bad_to_good: Probability::new(burst.leave)?,
            loss_in_good: Probability::new(impairment.loss)?,
            loss_in_bad: Probability::new(burst.loss)?,
        }),
        None if impairment.loss > 0.0 => Loss::Random(Probability::new(impairment.loss)?),
        None => Loss::None,
    };
    let rate = impairment.rate.and_then(NonZeroU64::new);
    let queue = impairment.queue;
    Ok(link::Config {
        seed: impairment.seed,
        loss,
        reorder: Reorder {
            probability: Probability::new(impairment.reorder)?,
            delay: impairment.reorder_delay,
        },
        delay: impairment.delay,
        jitter: impairment.jitter,
        // The configuration counts frames, the link octets: full frames are meant.
        rate: rate.map(|bits_per_second| Rate { bits_per_second, queue_octets: queue * 1518 }),
        mark_octets: None,
        duplicate: Probability::new(impairment.duplicate)?,
        corrupt: Probability::new(impairment.corrupt)?,
        black_holes: Vec::new(),
        max_frames: (impairment.queue as usize).max(1),
    })
}

/// The workers, ports and interfaces of one appliance.
///
/// # Errors
/// The system's random source fails.
pub fn dataplane_config(config: &Config) -> Result<DataplaneConfig, String> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| format!("the system's random source gives nothing: {error}"))?;
    let worker = |(id, section): (usize, &config::WorkerSection)| WorkerConfig {
        id: WorkerId(id as u16),
        core: section.core.map(usize::from),
        idle: match section.idle {
            config::Idle::Poll => Idle::Poll,
            config::Idle::Adaptive => Idle::Adaptive { spin: SPIN },
        },
    };
    let attachment = |section: &PortSection| PortAttachment {
        workers: section.workers.iter().map(|&worker| WorkerId(worker as u16)).collect(),
    };
    let port_of = |name: &str| config.ports.iter().position(|port| port.name == name);
    let interface = |section: &config::InterfaceSection| InterfaceConfig {
        name: section.name.clone(),
        // The configuration has been checked: the port is there.
        port: PortId(port_of(&section.port).unwrap_or(usize::from(u16::MAX)) as u16),
        vlan: section.vlan,
        addresses: section.addresses.iter().map(|prefix| (prefix.address, prefix.len)).collect(),
        routes: section.routes.iter().map(route).collect(),
        mtu: section.mtu,
    };
    Ok(DataplaneConfig {
        workers: config.workers.iter().enumerate().map(worker).collect(),
        ports: config.ports.iter().map(attachment).collect(),
        interfaces: config.interfaces.iter().map(interface).collect(),
        limits: worker_limits(config),
        sctp_udp_port: config.sctp.udp_encapsulation,
        secret,
    })
}

fn route(route: &config::Route) -> Route {
    let destination: IpAddr = route.to.address;
    Route { destination, prefix: route.to.len, gateway: route.via }
}

fn worker_limits(config: &Config) -> Limits {
    let limits = &config.limits;
    let octets = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let pending: u32 =
        config.listeners.iter().fold(0, |sum, l| sum.saturating_add(l.limits.pending));
    let defaults = Limits::default();
    Limits {
        // Streams in TIME-WAIT take a place too.
        streams: limits.streams.saturating_mul(2),
        half_open: pending.max(defaults.half_open),
        streams_per_peer: limits.streams_per_peer.unwrap_or(u32::MAX),
        syn_cookies: match config.tcp.syn_cookies {
            SynCookies::Auto => SynCookieMode::Auto,
            SynCookies::Always => SynCookieMode::Always,
            SynCookies::Never => SynCookieMode::Never,
        },
        neighbours: limits.neighbours as usize,
        untagged_octets: octets(limits.buffers_per_worker),
        hold_octets: octets(limits.held_per_worker),
        keep_bytes: octets(limits.kept_per_worker),
        ..defaults
    }
}

/// A listener as each of `workers` workers has it.
pub fn listener_config(
    config: &Config,
    section: &ListenerSection,
    id: ListenerId,
    interface: Option<InterfaceId>,
    workers: u32,
) -> ListenerConfig {
    let pending = section.limits.pending.div_ceil(workers.max(1)).max(1);
    ListenerConfig {
        id,
        interface,
        address: section.address,
        port: section.port,
        endpoint: listener_endpoint(config, section),
        backlog: pending,
        credits: pending,
    }
}

/// What speaks above DDP on a listener's streams, and who deals with what arrives.
pub fn accepted_ulp(
    ulp: Option<&Ulp>,
    queues: &[QueueSection],
    version: VersionPolicy,
) -> (UlpConfig, Service) {
    match ulp.and_then(Ulp::rdmap) {
        None => (stream_config(queues, version).into(), Service::Control),
        Some(section) => {
            let depths = (section.ird, section.ord);
            (rdmap_config(depths, queues, version).into(), worker_service(section.service))
        }
    }
}

/// What speaks above DDP on a stream that is opened from here.
pub fn opened_ulp(spec: &ConnectSpec, version: VersionPolicy) -> UlpConfig {
    match spec.ulp {
        UlpChoice::Ddp => stream_config(&own_queues(), version).into(),
        UlpChoice::Rdmap => {
            rdmap_config((spec.rdmap.ird, spec.rdmap.ord), &own_queues(), version).into()
        }
    }
}

/// How a listener's streams speak.
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
        idle_timeout: limits.idle_timeout,
        linger: config.sctp.linger,
        ..Default::default()
    };
    SctpConfig {
        sctp: Arc::new(sctp_config(&config.sctp)),
        endpoint: Arc::new(endpoint),
        udp: None,
    }
}

/// How an association that is opened from here speaks, to this UDP port if any.
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
    let sctp = Arc::new(sctp_config(&config.sctp));
    SctpConfig { sctp, endpoint: Arc::new(endpoint), udp: spec.udp_port }
}

fn sctp_config(section: &SctpSection) -> sctp::Config {
    sctp::Config {
        streams: section.streams,
        cookie_life: section.cookie_life,
        max_init_retransmits: section.max_init_retransmits,
        max_retransmits: section.max_retransmits,
        heartbeat_interval: section.heartbeat,
        path_mtu_probing: section.path_mtu_probing,
        min_path_mtu: section.min_path_mtu,
        path_mtu_raise: section.path_mtu_raise,
        receive: Arc::new(sctp::receive::ReceiveConfig {
            window: section.receive_window,
            sack_delay: section.sack_delay,
            ..sctp::receive::ReceiveConfig::default()
        }),
        send: Arc::new(sctp::send::SendConfig {
            initial_rto: section.initial_rto,
            min_rto: section.min_rto,
            max_rto: section.max_rto,
            congestion: match section.congestion {
                Congestion::Cubic => tcp::CongestionControl::Cubic,
                Congestion::NewReno => tcp::CongestionControl::NewReno,
            },
            send_window: u64::from(section.send_window),
            pacing: section.pacing,
            tail_loss_probe: section.tail_loss_probe,
            ..sctp::send::SendConfig::default()
        }),
        ..sctp::Config::default()
    }
}

fn tcp_listener(config: &Config, section: &ListenerSection) -> EndpointConfig {
    let mpa = &section.mpa;
    EndpointConfig {
        tcp: Arc::new(tcp_config(&config.tcp)),
        mpa: mpa::Config {
            revisions: Revisions {
                draft: mpa.revision_0,
                zero: mpa.revision_0,
                one: mpa.revision_1,
                two: mpa.revision_2,
            },
            peer: section.ulp.rdmap().map_or(mpa::Peer::Standard, |rdmap| rdmap.peer),
            markers: mpa.markers,
            crc: mpa.crc,
            startup_timeout: section.limits.startup_timeout,
            ..receiving(config)
        },
        idle_timeout: section.limits.idle_timeout,
        ..EndpointConfig::default()
    }
}

/// How a stream that is opened from here speaks. `start_key`: the draft's revision 0.
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
        tcp: Arc::new(tcp_config(&config.tcp)),
        mpa: mpa::Config {
            revisions,
            initiate,
            markers: spec.markers(),
            crc: spec.mpa.crc,
            peer,
            enhanced,
            retry_rev1: spec.rdmap.retry_revision_1,
            ..receiving(config)
        },
        ..EndpointConfig::default()
    }
}

/// How FPDUs are received, whoever opened the stream.
fn receiving(config: &Config) -> mpa::Config {
    mpa::Config {
        max_fpdu: config.mpa.max_fpdu,
        hold_limit: u32::try_from(config.limits.held_per_stream).unwrap_or(u32::MAX),
        on_bad_crc: match config.mpa.on_bad_crc {
            OnBadCrc::Error => mpa::OnBadCrc::Error,
            OnBadCrc::Retransmit => mpa::OnBadCrc::Retransmit,
        },
        bad_crc_tries: config.mpa.bad_crc_tries,
        ..mpa::Config::default()
    }
}

/// TCP as all streams speak it.
pub fn tcp_config(section: &TcpSection) -> tcp::Config {
    tcp::Config {
        initial_rto: section.initial_rto,
        min_rto: section.min_rto,
        retransmission_limit: section.user_timeout,
        congestion: match section.congestion {
            Congestion::Cubic => tcp::CongestionControl::Cubic,
            Congestion::NewReno => tcp::CongestionControl::NewReno,
        },
        send_window: u64::from(section.send_window),
        receive_window: section.receive_window,
        sack: section.sack,
        path_mtu_probing: section.path_mtu_probing,
        min_path_mtu: section.min_path_mtu,
        path_mtu_raise: section.path_mtu_raise,
        timestamps: section.timestamps,
        pacing: section.pacing,
        tail_loss_probe: section.tail_loss_probe,
        ack_pushed: true,
        push_segments: true,
        ecn: section.ecn,
        zero_window_limit: section.zero_window_timeout,
        delayed_ack: section.delayed_ack,
        keepalive: section.keepalive.map(|keepalive| tcp::Keepalive {
            idle: keepalive.idle,
            interval: keepalive.interval,
            probes: u32::from(keepalive.probes),
        }),
        time_wait: section.time_wait,
        ..tcp::Config::default()
    }
}

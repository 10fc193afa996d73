//! Translates a checked configuration into the configurations of the EAL, the ports and the data plane.

use std::num::NonZeroU64;

use config::{self, Config, Idle, Impairment, PortSection};
use dataplane::eal::{EalConfig, LogLevel};
use dataplane::port::PortConfig;
use dataplane::{
    DataplaneConfig, InterfaceConfig, Limits, PortAttachment, PortId, WorkerConfig, WorkerId,
};

use super::budget::Buffers;

/// Memory that DPDK needs in addition to the packet pools, MiB.
const EAL_EXTRA_MIB: u64 = 64;

/// Returns the EAL's configuration for all appliances of the process, whose `[memory]` sections are equal.
///
/// # Errors
/// The configured impairment of a link is invalid.
pub fn eal_config(configs: &[&Config]) -> Result<EalConfig, String> {
    let memory = configs.first().map(|config| &config.memory);
    let mut pci = Vec::new();
    let mut pools = 0;
    for config in configs {
        for section in &config.ports {
            pci.extend(section.kind.eal_device());
            pools += port_config(config, section)?.pool_bytes();
        }
    }
    let needed = EAL_EXTRA_MIB + pools.div_ceil(1 << 20) * 5 / 4;
    let requested = memory.and_then(|memory| memory.size).map(|size| size >> 20);
    Ok(EalConfig {
        hugepages: memory.map(|memory| memory.hugepages).unwrap_or_default(),
        memory_mib: u32::try_from(requested.unwrap_or(needed)).unwrap_or(u32::MAX),
        pci,
        telemetry: configs.iter().any(|config| config.management.dpdk_telemetry),
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

/// Returns the configuration of a port.
///
/// # Errors
/// The configured impairment of its link is invalid.
pub fn port_config(config: &Config, section: &PortSection) -> Result<PortConfig, String> {
    let impair = match &section.impair {
        Some(impairment) => Some(
            link_config(impairment)
                .map_err(|error| format!("port {}: impair: {error}", section.name))?,
        ),
        None => None,
    };
    Ok(PortConfig {
        mtu: section.mtu,
        checksum: section.checksum,
        segmentation: section.segmentation,
        mac: section.mac,
        queues: section.workers.len() as u16,
        rx_descriptors: section.rx_descriptors,
        tx_descriptors: section.tx_descriptors,
        buffers: None,
        numa: config.memory.numa_node.map(u32::from),
        impair,
        may_sleep: section.workers.iter().any(|&worker| {
            let worker = config.workers.get(worker);
            worker.is_some_and(|worker| worker.idle != Idle::Poll)
        }),
        ..PortConfig::new(section.name.clone(), section.kind.clone())
    })
}

fn link_config(impairment: &Impairment) -> Result<link::Config, link::ConfigError> {
    use link::{BurstLoss, Loss, Probability, Rate, Reorder};
    let loss = match impairment.burst_loss {
        // Gilbert-Elliott model: `loss` applies in the good state, `burst.loss` in the bad state.
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
    let queue_bytes = impairment.queue;
    Ok(link::Config {
        seed: impairment.seed,
        loss,
        reorder: Reorder {
            probability: Probability::new(impairment.reorder)?,
            delay: impairment.reorder_delay,
        },
        delay: impairment.delay,
        jitter: impairment.jitter,
        rate: rate.map(|bits_per_second| Rate { bits_per_second, queue_bytes }),
        mark_bytes: None,
        duplicate: Probability::new(impairment.duplicate)?,
        corrupt: Probability::new(impairment.corrupt)?,
        black_holes: Vec::new(),
        max_frames: link::Config::DEFAULT_MAX_FRAMES,
    })
}

/// Returns the data plane's configuration of one appliance: workers, ports, interfaces, limits.
///
/// # Errors
/// The system's random source cannot be read.
pub fn dataplane_config(config: &Config, buffers: &Buffers) -> Result<DataplaneConfig, String> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| format!("the system's random source cannot be read: {error}"))?;
    let worker = |(id, section): (usize, &config::WorkerSection)| WorkerConfig {
        id: WorkerId(id as u16),
        core: section.core.map(usize::from),
        idle: section.idle,
    };
    let attachment = |section: &PortSection| PortAttachment {
        workers: section.workers.iter().map(|&worker| WorkerId(worker as u16)).collect(),
    };
    let port_of = |name: &str| config.ports.iter().position(|port| port.name == name);
    let interface = |section: &config::InterfaceSection| InterfaceConfig {
        ip: section.ip,
        local_ports: section.local_ports,
        host: section.host.is_some(),
        name: section.name.clone(),
        // The checked configuration guarantees that the port exists.
        port: PortId(port_of(&section.port).unwrap_or(usize::from(u16::MAX)) as u16),
        vlan: section.vlan,
        addresses: section.addresses.clone(),
        routes: section.routes.clone(),
        mtu: section.mtu,
    };
    Ok(DataplaneConfig {
        workers: config.workers.iter().enumerate().map(worker).collect(),
        ports: config.ports.iter().map(attachment).collect(),
        interfaces: config.interfaces.iter().map(interface).collect(),
        limits: worker_limits(config, buffers),
        sctp_udp_port: config.sctp.udp_encapsulation,
        ipsec: None,
        secret: secret.into(),
    })
}

fn worker_limits(config: &Config, buffers: &Buffers) -> Limits {
    let limits = &config.limits;
    let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let pending: u32 =
        config.listeners.iter().fold(0, |sum, l| sum.saturating_add(l.limits.pending));
    let defaults = Limits::default();
    Limits {
        // Twice the limit, because streams in TIME-WAIT also occupy an entry.
        streams: limits.streams.saturating_mul(2),
        half_open: pending.max(defaults.half_open),
        streams_per_peer: limits.streams_per_peer.unwrap_or(u32::MAX),
        syn_cookies: config.tcp.syn_cookies,
        neighbours: limits.neighbours as usize,
        untagged_bytes: bytes(buffers.buffers),
        hold_bytes: bytes(buffers.held),
        keep_bytes: bytes(buffers.kept),
        window_bytes: bytes(limits.windows_per_worker),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_of_the_slow_link_is_in_bytes() {
        let port = "[[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\n\
                    [port.impair]\nrate = \"10 Mbit/s\"\nqueue = \"64 KiB\"\n\
                    [[interface]]\nname = \"i\"\nport = \"p\"\naddresses = [\"10.0.0.1/24\"]\n";
        let document =
            config::Document::parse(std::path::Path::new("t.toml"), port).expect("a valid file");
        let impairment = document.config.ports[0].impair.as_ref().expect("an impaired port");
        let link = link_config(impairment).unwrap();
        assert_eq!(link.rate.map(|rate| rate.queue_bytes), Some(64 << 10));
        assert_eq!(link.max_frames, link::Config::DEFAULT_MAX_FRAMES);
    }
}

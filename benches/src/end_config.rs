//! The appliance's configuration for a measurement. This module generates the text of a configuration file. The
//! functions of `ddpd` read and convert the text.
//!
//! The file has two parts. The *topology* (port, interface, listener) contains the settings that every appliance
//! must have. The *deviations* differ from the defaults, and the row of the measurement lists them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use api::{ConnectSpec, UlpChoice};
use base::Instant;
use config::Transport;
use config::directories::Directories;
use config::{Config, Document, RegionSection, region_from_json};
use control::appliance::budget::Budget;
use control::appliance::loader::{self, LoadTask, Watch};
use control::appliance::{endpoints, start};
use dataplane::io::{PortIo, PortProperties};
use dataplane::memory::Memory;
use dataplane::net::path::TxChecksum;
use dataplane::port::{ChecksumSite, PortConfig};
use dataplane::steering::Steering;
use dataplane::{
    DataplaneConfig, DrivenWorker, EndpointConfig, InterfaceId, ListenerConfig, ListenerId,
    WorkerId,
};
use ddp::VersionPolicy;
use tcp_lite::endpoint::UlpConfig;
use tcp_lite::mpa;

use crate::ipsec;
use crate::rig_config::{Link, RigConfig, Side};

/// Port of the listener.
pub const PORT: u16 = 4791;
/// Number of local addresses of the initiator.
pub const ADDRESSES: u32 = 64;
/// Untagged buffers of each accepted stream; fewer if the buffers are large.
pub const BUFFERS_PER_STREAM: u32 = 256;
/// Maximum total of a stream's untagged buffers, bytes: half of a worker's default budget.
const MAX_BUFFER_BYTES: u32 = 32 << 20;

/// Configuration of one end, converted from its file.
pub struct EndConfig {
    /// The checked file.
    pub config: Config,
    /// Configuration of the port.
    pub port: PortConfig,
    /// Configuration of the worker, its interface and limits.
    pub dataplane: DataplaneConfig,
    /// Configuration of the listener; responder only.
    pub listener: Option<ListenerConfig>,
    /// Configuration of the streams that this end opens.
    pub connect: EndpointConfig,
    /// ULP of accepted streams, then of opened streams.
    pub ulps: [UlpConfig; 2],
}

impl EndConfig {
    /// Creates a worker that its caller drives, with one port, whose link-layer address is `mac`. The port computes no
    /// checksums.
    pub fn driven_worker<Io: PortIo>(
        &self,
        mac: [u8; 6],
        port: Io,
        now: Instant,
    ) -> anyhow::Result<DrivenWorker<Io>> {
        let workers = vec![WorkerId(0)];
        let properties = PortProperties {
            mac,
            tx_checksum: TxChecksum::SOFTWARE,
            rx_checksum: ChecksumSite::Software,
            rx_sctp_checksum: ChecksumSite::Software,
            device_hash: false,
            steering: Steering::software(&workers),
            workers,
        };
        Ok(DrivenWorker::new(&self.dataplane, [(properties, port)], now)?)
    }

    /// Returns the configurations of initiator and responder.
    pub fn for_both_sides(rig: &RigConfig) -> anyhow::Result<[EndConfig; 2]> {
        Ok([EndConfig::new(rig, Side::Initiator)?, EndConfig::new(rig, Side::Responder)?])
    }

    /// Converts the configuration file of one side as `ddpd` does.
    pub fn new(rig: &RigConfig, side: Side) -> anyhow::Result<EndConfig> {
        let config = parse_config(&config_text(rig, side))?;
        let wrong = anyhow::Error::msg;
        let port = start::port_config(&config, &config.ports[0]).map_err(wrong)?;
        let mut dataplane = dataplane_config(&config).map_err(wrong)?;
        dataplane.ipsec = ipsec::ipsec_config(&config)?;
        let (id, interface) = (ListenerId(1), Some(InterfaceId(0)));
        let section = config.listeners.first();
        let listener = section.map(|section| {
            endpoints::listener_config(&config, section, id, interface, config.workers.len() as u32)
        });
        let spec = connect_spec(rig);
        let connect = match spec.transport {
            Transport::Tcp => {
                endpoints::connect_endpoint(&config, &spec, mpa::Peer::Standard, false).into()
            }
            Transport::Sctp => {
                EndpointConfig::Sctp(Arc::new(endpoints::connect_sctp(&config, &spec)))
            }
        };
        let version = VersionPolicy::V1;
        let (ulp, queues) = section.map_or((None, &[][..]), |s| (Some(&s.ulp), &s.queues[..]));
        let (accepted, _) = endpoints::accepted_ulp(ulp, queues, version);
        let ulps = [accepted, endpoints::opened_ulp(&spec, version)];
        Ok(EndConfig { config, port, dataplane, listener, connect, ulps })
    }
}

fn dataplane_config(config: &Config) -> Result<DataplaneConfig, String> {
    let (buffers, _) = Budget::unlimited().buffers(&config.limits, config.workers.len());
    start::dataplane_config(config, &buffers)
}

/// Parses and checks the text of a configuration file.
pub fn parse_config(text: &str) -> anyhow::Result<Config> {
    let document = Document::parse(Path::new("bench.toml"), text);
    Ok(document.map_err(|errors| anyhow::anyhow!("{errors}"))?.config)
}

/// Returns the API request that opens a stream.
fn connect_spec(rig: &RigConfig) -> ConnectSpec {
    let mut spec =
        ConnectSpec::to_remote(SocketAddr::new(side_address(rig, Side::Responder), PORT));
    spec.transport = if rig.sctp { Transport::Sctp } else { Transport::Tcp };
    spec.ulp = if rig.rdmap { UlpChoice::Rdmap } else { UlpChoice::Ddp };
    spec.mpa.markers = Some(rig.markers);
    spec.mpa.crc = rig.crc;
    spec
}

/// Allocates a region as the appliance does: private memory, locked if the limits allow.
pub fn allocate_region(len: u64) -> anyhow::Result<Memory> {
    let json = serde_json::json!({ "name": "bench", "size": len, "access": "rw" });
    let section: RegionSection = region_from_json(&json).map_err(|e| anyhow::anyhow!("{e}"))?;
    let budget = Budget::unlimited();
    let everywhere = Directories::from_key(&["/".into()]);
    let loaded = loader::load(&LoadTask::Region(section), &budget, &everywhere, &Watch::default())
        .map_err(anyhow::Error::msg)?;
    Ok(loaded.memory)
}

/// Returns the configuration file of one end.
pub fn config_text(rig: &RigConfig, side: Side) -> String {
    let mut sections = topology(rig, side);
    for (section, line) in deviations(rig, side) {
        sections.add(section, line);
    }
    sections.to_text()
}

/// Returns the deviations of one end from the defaults: section and line.
pub fn deviations(rig: &RigConfig, side: Side) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let adaptive = rig.adaptive[side as usize];
    if !adaptive {
        all.push(("workers", "idle = \"poll\"".to_owned()));
    }
    if rig.mtu != 1500 {
        all.push(("port", format!("mtu = {}", rig.mtu)));
    }
    if rig.trusted {
        all.push(("port", "checksum = \"trusted\"".to_owned()));
    }
    if let Some(slots) = rig.slots {
        all.push(("port", format!("rx_descriptors = {slots}\ntx_descriptors = {slots}")));
    }
    if let Some(impair) = impairment_section(rig, side) {
        all.push(("port.impair", impair));
    }
    if let Some(vlan) = rig.network.vlan {
        all.push(("interface", format!("vlan = {vlan}")));
    }
    let many = rig.streams > 64;
    if many {
        all.push(("limits", format!("streams = {}", rig.streams.max(4096))));
    }
    if !rig.recorder {
        all.push(("management", "recorder = false".to_owned()));
    }
    if rig.network.protected {
        all.extend(ipsec::ipsec_sections(rig, side));
    }
    if side == Side::Initiator {
        return all;
    }
    // Defaults: bare DDP over TCP has markers, RDMAP has none. SCTP has no MPA.
    if !rig.sctp && rig.markers == rig.rdmap {
        all.push(("listener", format!("markers = {}", rig.markers)));
    }
    if !rig.sctp && !rig.crc {
        all.push(("listener", "crc = false".to_owned()));
    }
    if many {
        let streams = rig.streams.min(1_000_000);
        all.push((
            "listener.limits",
            format!("streams = {streams}\npending = {}", streams.min(512)),
        ));
    }
    all
}

fn impairment_section(rig: &RigConfig, side: Side) -> Option<String> {
    let link = &rig.impairment;
    if link.loss_ppm == 0 && link.delay_us == 0 && link.rate_mbit == 0 {
        return None;
    }
    let mut text = format!("seed = {}", 1 + side as u64);
    let _ = write!(text, "\ndelay = \"{} us\"", link.delay_us);
    if side == Side::Responder {
        if link.loss_ppm > 0 {
            let _ = write!(text, "\nloss = {:.6}", f64::from(link.loss_ppm) * 1e-6);
        }
        if link.rate_mbit > 0 {
            let _ = write!(text, "\nrate = \"{} Mbit/s\"", link.rate_mbit);
            let _ = write!(text, "\nqueue = {}", link.queue.max(9022));
        }
    }
    Some(text)
}

/// Sections of a configuration file, in order.
#[derive(Default)]
struct ConfigSections(Vec<(&'static str, String)>);

impl ConfigSections {
    fn add(&mut self, section: &'static str, lines: impl AsRef<str>) {
        let known = self.0.iter_mut().find(|(name, _)| *name == section);
        match known {
            Some((_, text)) => text.push_str(lines.as_ref()),
            None => {
                // A subsection follows its table.
                let after = |(name, _): &(&str, String)| {
                    section.split_once('.').is_some_and(|(table, _)| table == *name)
                };
                let at = self.0.iter().position(after).map_or(self.0.len(), |at| at + 1);
                self.0.insert(at, (section, lines.as_ref().to_owned()));
            }
        }
        if let Some((_, text)) = self.0.iter_mut().find(|(name, _)| *name == section) {
            text.push('\n');
        }
    }

    fn to_text(&self) -> String {
        let mut out = String::new();
        for (name, lines) in &self.0 {
            let head = match *name {
                "port" | "interface" | "listener" | "listener.queue" | "ipsec.policy"
                | "ipsec.sa" => format!("[[{name}]]"),
                _ => format!("[{name}]"),
            };
            let _ = write!(out, "{head}\n{lines}");
        }
        out
    }
}

fn topology(rig: &RigConfig, side: Side) -> ConfigSections {
    let mut sections = ConfigSections::default();
    sections.add("workers", format!("cores = [{}]", rig.cores[side as usize]));
    let device = &rig.devices[side as usize];
    let kind = match rig.link {
        Link::Ring => "kind = \"ring\"\nlink = \"bench\"".to_owned(),
        Link::Memif => {
            let role = ["client", "server"][side as usize];
            format!("kind = \"memif\"\nsocket = \"{device}\"\nrole = \"{role}\"")
        }
        Link::AfPacket => format!("kind = \"af_packet\"\ndevice = \"{device}\""),
        Link::AfXdp => format!("kind = \"af_xdp\"\ndevice = \"{device}\""),
    };
    sections.add("port", format!("name = \"port{}\"\n{kind}", side as u8));
    let many = if side == Side::Initiator { ADDRESSES } else { 1 };
    let prefix = if rig.network.v6 { 64 } else { 16 };
    let own = |n| match side {
        Side::Initiator => initiator_address(rig, n),
        Side::Responder => side_address(rig, side),
    };
    let own: Vec<String> = (0..many).map(|n| format!("\"{}/{prefix}\"", own(n))).collect();
    let name = format!("name = \"lan\"\nport = \"port{}\"", side as u8);
    sections.add("interface", format!("{name}\naddresses = [{}]", own.join(", ")));
    if side == Side::Responder {
        let mut lines = format!("name = \"l\"\ninterface = \"lan\"\nport = {PORT}");
        if rig.sctp {
            lines.push_str("\ntransport = \"sctp\"");
        }
        if rig.rdmap {
            lines.push_str("\nulp = \"rdmap\"\nservice = \"sink\"");
        }
        sections.add("listener", lines);
        // A listener without a service must have a destination for each queue.
        let deliver = if rig.rdmap { "" } else { "\ndeliver_to = \"discard\"" };
        let size = rig.buffer;
        let buffers = (MAX_BUFFER_BYTES / size.max(1)).clamp(1, BUFFERS_PER_STREAM);
        let queue = format!("qn = 0\nbuffers = {buffers}\nbuffer_size = {size}{deliver}");
        sections.add("listener.queue", queue);
    }
    sections
}

/// Returns the address of one side.
pub fn side_address(rig: &RigConfig, side: Side) -> IpAddr {
    match side {
        Side::Initiator => initiator_address(rig, 0),
        Side::Responder if rig.network.v6 => Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 0x100).into(),
        Side::Responder => Ipv4Addr::new(10, 9, 0, 1).into(),
    }
}

/// Returns the `n`-th address of the initiator, modulo [`ADDRESSES`].
pub fn initiator_address(rig: &RigConfig, n: u32) -> IpAddr {
    let n = 1 + (n % ADDRESSES) as u16;
    match rig.network.v6 {
        true => Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 1, n).into(),
        false => Ipv4Addr::new(10, 9, 1, n as u8).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig_config::{Impairment, Network};

    /// An operator's minimal file of one end: only keys without a default.
    const DDPD: &str = r#"
[workers]
cores = [1]
[[port]]
name = "port1"
kind = "ring"
link = "bench"
[[interface]]
name = "lan"
port = "port1"
addresses = ["10.9.0.1/16"]
[[listener]]
name = "l"
interface = "lan"
port = 4791
[[listener.queue]]
qn = 0
deliver_to = "discard"
buffers = 256
"#;

    /// Returns a rig whose ends have the defaults of the configuration file.
    fn plain() -> RigConfig {
        RigConfig { adaptive: [true; 2], markers: true, ..RigConfig::default() }
    }

    fn debug(what: &impl std::fmt::Debug) -> String {
        format!("{what:#?}")
    }

    #[test]
    fn recorder_is_on_by_default() {
        for recorder in [true, false] {
            let rig = RigConfig { recorder, ..plain() };
            for side in [Side::Initiator, Side::Responder] {
                let product = EndConfig::new(&rig, side).unwrap();
                let EndpointConfig::Tcp(opened) = &product.connect else { panic!("over TCP") };
                assert_eq!(opened.tcp.recorder, recorder);
                if let Some(listener) = &product.listener {
                    let EndpointConfig::Tcp(accepted) = &listener.endpoint else { panic!() };
                    assert_eq!(accepted.tcp.recorder, recorder);
                }
            }
        }
    }

    /// Fails if the benchmark sets anything outside of its file, or if `ddpd` and the benchmark diverge.
    #[test]
    fn benchmark_configuration_equals_ddpd_configuration() {
        let mut ddpd = parse_config(DDPD).unwrap();
        let ours = EndConfig::new(&plain(), Side::Responder).unwrap();
        // `name` and `source` depend on the file and are not compared.
        ddpd.name.clone_from(&ours.config.name);
        ddpd.source.clone_from(&ours.config.source);
        assert_eq!(debug(&ours.config), debug(&ddpd));
        let section = &ddpd.listeners[0];
        let listener = ours.listener.expect("the responder listens");
        let endpoint = endpoints::listener_endpoint(&ddpd, section);
        assert_eq!(debug(&listener.endpoint), debug(&endpoint));
        let spec = ConnectSpec::to_remote("10.9.0.1:4791".parse().unwrap());
        let opened = endpoints::connect_endpoint(&ddpd, &spec, mpa::Peer::Standard, false);
        assert_eq!(debug(&ours.connect), debug(&EndpointConfig::from(opened)));
        assert_eq!(debug(&ours.port), debug(&start::port_config(&ddpd, &ddpd.ports[0]).unwrap()));
        let dataplane = dataplane_config(&ddpd).unwrap();
        assert_eq!(debug(&ours.dataplane.limits), debug(&dataplane.limits));
        assert_eq!(debug(&ours.dataplane.workers), debug(&dataplane.workers));
        let (accepted, _) =
            endpoints::accepted_ulp(Some(&section.ulp), &section.queues, VersionPolicy::V1);
        let opened = endpoints::opened_ulp(&spec, VersionPolicy::V1);
        assert_eq!(debug(&ours.ulps), debug(&[accepted, opened]));
    }

    #[test]
    fn endpoint_has_defaults_of_appliance() {
        let ours = EndConfig::new(&RigConfig::default(), Side::Responder).unwrap();
        let EndpointConfig::Tcp(endpoint) = &ours.connect else { panic!("TCP") };
        assert!(endpoint.tcp.acks.pushed && endpoint.tcp.push_segments);
        assert_eq!(endpoint.tcp.acks.delay.as_millis(), 20);
        assert_eq!(endpoint.tcp.send_window, 128 << 20);
    }

    #[test]
    fn default_rig_lists_its_two_deviations() {
        assert_eq!(deviations(&plain(), Side::Responder), []);
        assert_eq!(deviations(&plain(), Side::Initiator), []);
        let usual = deviations(&RigConfig::default(), Side::Responder);
        let usual: Vec<(&str, &str)> = usual.iter().map(|(s, l)| (*s, l.as_str())).collect();
        assert_eq!(usual, [("workers", "idle = \"poll\""), ("listener", "markers = false")]);
    }

    #[test]
    fn appliance_accepts_configuration_of_every_rig() {
        let plain = RigConfig::default;
        let device = |link| RigConfig { link, devices: ["a".into(), "b".into()], ..plain() };
        let socket = ["/tmp/x.sock".to_owned(), "/tmp/x.sock".to_owned()];
        let impairment =
            Impairment { loss_ppm: 10_000, delay_us: 50, rate_mbit: 5000, ..Impairment::default() };
        let network = Network { v6: true, vlan: Some(7), protected: false };
        for rig in [
            RigConfig { network, mtu: 9000, ..plain() },
            RigConfig { sctp: true, rdmap: true, trusted: true, ..plain() },
            RigConfig { rdmap: true, buffer: 1 << 20, ..plain() },
            RigConfig { streams: 10_000, slots: Some(64), markers: true, ..plain() },
            RigConfig { impairment, ..plain() },
            RigConfig { network: Network { protected: true, ..network }, mtu: 9000, ..plain() },
            RigConfig { network: Network { protected: true, ..Network::default() }, ..plain() },
            RigConfig { link: Link::Memif, devices: socket, ..plain() },
            device(Link::AfPacket),
            device(Link::AfXdp),
        ] {
            for side in [Side::Initiator, Side::Responder] {
                if let Err(error) = EndConfig::new(&rig, side) {
                    panic!("{error}\n{}", config_text(&rig, side));
                }
            }
        }
    }
}

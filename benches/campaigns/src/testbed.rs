//! The appliance under attack and the good peer's appliance, on the two ends of a veth pair.
//!
//! ```text
//!  namespace A                    namespace B, in which this program runs
//!  target: ddpd on one end   ──   peer: ddpd on the other end        10.77.0.3, fd77::3
//!  10.77.0.1, fd77::1             the kernel's TCP                   10.77.0.2 (good), 10.77.0.4 (an attacker's)
//!                                 the attacker's raw frames          all other addresses, and the gateway's
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use api::{Client, RegionInfo};
use load::frames::Mac;
use load::testbed::Appliance;

use crate::guarded_target;
use crate::listener_section::listener_section;

/// The target's IPv4 address.
pub(crate) const TARGET_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The target's IPv6 address.
pub(crate) const TARGET_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The good peer's IPv4 address.
pub(crate) const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
/// IPv4 address of attacks over the kernel's sockets.
pub(crate) const SOCKETS_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 4);

/// TCP port of the good peers' listener for bare DDP with markers.
pub(crate) const FILES_PORT: u16 = 7471;
/// SCTP port of the good peers' listener for bare DDP.
pub(crate) const FILES_SCTP_PORT: u16 = 7472;
/// TCP port of the good peers' listener for RDMAP.
pub(crate) const VERBS_PORT: u16 = 7473;
/// TCP port under attack: bare DDP without markers.
pub(crate) const VICTIM_PORT: u16 = 7481;
/// TCP port under attack: RDMAP.
pub(crate) const VICTIM_VERBS_PORT: u16 = 7482;
/// SCTP port under attack: bare DDP.
pub(crate) const VICTIM_SCTP_PORT: u16 = 7483;
/// TCP port under attack: bare DDP with markers.
pub(crate) const VICTIM_MARKERS_PORT: u16 = 7484;
/// SCTP port under attack: RDMAP.
pub(crate) const VICTIM_VERBS_SCTP_PORT: u16 = 7486;

/// TCP port under attack: RDMAP; the listener discards the payloads of Sends.
pub(crate) const VICTIM_SINK_PORT: u16 = 7487;

/// TCP port of the good program at the target.
pub(crate) const PROGRAM_PORT: u16 = 7495;
/// TCP port of the program at the peer that hostile programs connect to.
pub(crate) const PARTNER_PORT: u16 = 7496;

/// Length of each region, bytes.
pub(crate) const REGION_LEN: usize = 256 << 10;
/// Maximum number of out-of-order bytes that the target's worker holds, for all streams together.
pub(crate) const HELD_LIMIT: u64 = 8 << 20;
/// IRD of the RDMAP listeners under attack.
pub(crate) const IRD: u16 = 4;
/// Untagged buffers of the bare DDP listeners under attack: number, bytes of each.
pub(crate) const UNTAGGED_BUFFERS: (u32, u32) = (4, 4000);

/// Guard regions: no good peer writes them, and no attack may change them.
pub(crate) const GUARD_REGIONS: [&str; 3] = ["readonly", "nobodys", "secret"];

/// Returns true for addresses of the test bed's hosts. The attacker must not answer address resolution for them.
pub(crate) fn is_reserved(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[3] < 16,
        IpAddr::V6(address) => address.segments()[1..7] == [0; 6] && address.segments()[7] < 16,
    }
}

/// Returns the target's IPv4 address with `port`.
pub(crate) fn target_address(port: u16) -> SocketAddr {
    (TARGET_V4, port).into()
}

/// Configuration of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetSetting {
    /// Without IPsec policies, access lists or a port shared with the host's kernel.
    Plain,
    /// With IPsec policies, access lists and a port shared with the host's kernel ([`guarded_target`]).
    Guarded,
}

/// The two running appliances.
pub(crate) struct Testbed {
    /// The good peer's appliance.
    pub(crate) peer: Appliance,
    /// The appliance under attack.
    pub(crate) target: Appliance,
    /// The target's hardware address.
    pub(crate) mac: Mac,
}

/// The programs and the network of a campaign, on its command line.
#[derive(clap::Args, Debug)]
pub(crate) struct LocationArgs {
    /// Path of ddpd
    #[arg(long)]
    ddpd: PathBuf,
    /// Path of ddpctl, the peer on the kernel's TCP
    #[arg(long)]
    pub(crate) ddpctl: PathBuf,
    /// Network namespace of the appliance
    #[arg(long)]
    namespace: String,
    /// Device of the appliance in that namespace
    #[arg(long)]
    target_device: String,
    /// Device of the peer, in this namespace
    #[arg(long)]
    device: String,
}

impl LocationArgs {
    /// Returns the environment, with `directory` for configurations, sockets and logs.
    pub(crate) fn environment<'a>(&'a self, directory: &'a Path) -> Environment<'a> {
        Environment {
            ddpd: &self.ddpd,
            namespace: &self.namespace,
            target_device: &self.target_device,
            device: &self.device,
            directory,
        }
    }
}

/// Programs, devices and directory of the two appliances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Environment<'a> {
    /// Path of `ddpd`.
    pub(crate) ddpd: &'a Path,
    /// Network namespace of the target.
    pub(crate) namespace: &'a str,
    /// The target's device, in `namespace`.
    pub(crate) target_device: &'a str,
    /// The peer's device, in the namespace of this program.
    pub(crate) device: &'a str,
    /// Directory for configurations, sockets and logs.
    pub(crate) directory: &'a Path,
}

impl Testbed {
    /// Starts both appliances and waits until their links are up.
    pub(crate) fn start(place: &Environment<'_>, setting: TargetSetting) -> Result<Testbed> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", place.namespace]).arg(place.ddpd);
        let config = target_config(place, setting)?;
        let target = Appliance::spawn(command, place.directory, "target", &config)?;
        let peer = Appliance::start(place.ddpd, place.directory, "peer", &peer_config(place))?;
        target.wait_for_links()?;
        peer.wait_for_links()?;
        let ports: Vec<serde_json::Value> = target.client.get("/v1/ports")?;
        let text = ports.first().and_then(|port| port["mac"].as_str()).unwrap_or_default();
        let mac = parse_mac(text).with_context(|| format!("the target's MAC address: {text:?}"))?;
        Ok(Testbed { peer, target, mac })
    }
}

/// Returns the path of an appliance's socket for programs.
pub(crate) fn programs_socket(appliance: &Appliance) -> PathBuf {
    appliance.socket.with_extension("programs")
}

/// Returns the section for local programs of the appliance `name`, with low limits.
pub(crate) fn programs_section(directory: &Path, name: &str) -> String {
    format!(
        "[programs]\nsocket = \"{}/{name}.programs\"\nprograms = 8\nqueue_pairs = 128\n\
         completion_queues = 64\nmemory_regions = 64\nmemory = \"16 MiB\"\narena = \"16 MiB\"\n",
        directory.display(),
    )
}

fn parse_mac(text: &str) -> Option<Mac> {
    let bytes: Result<Vec<u8>, _> =
        text.split(':').map(|part| u8::from_str_radix(part, 16)).collect();
    bytes.ok()?.try_into().ok()
}

/// Returns the STag of a region and the TO of its first byte.
pub(crate) fn region_stag(client: &Client, region: &str) -> Result<(u32, u64)> {
    let regions: Vec<RegionInfo> = client.list("/v1/regions")?;
    let region = regions.iter().find(|r| r.name == region).context("no such region")?;
    let stag = u32::from_str_radix(region.stag.trim_start_matches("0x"), 16)?;
    Ok((stag, region.base_to.parse()?))
}

/// Configuration sections of both appliances. The sections disable huge pages, so that the resident set size shows
/// growth of memory.
const COMMON: &str = "[memory]\nhugepages = \"never\"\n[workers]\ncount = 1\nidle = \"adaptive\"\n";

fn target_config(place: &Environment<'_>, setting: TargetSetting) -> Result<String> {
    let (front, sctp, more) = match setting {
        TargetSetting::Plain => ("", String::new(), programs_section(place.directory, "target")),
        TargetSetting::Guarded => {
            ensure!(
                Path::new("/dev/net/tun").exists(),
                "there is no /dev/net/tun for a shared port"
            );
            let sctp = format!("udp_encapsulation = {}\n", guarded_target::SCTP_UDP_PORT);
            (guarded_target::HOST_KERNEL_KEYS, sctp, guarded_target::sections(place.directory)?)
        }
    };
    let mut text = format!(
        "name = \"target\"\n{COMMON}\
         [files]\npaths = [\"{directory}\"]\n\
         [management]\nsocket = \"{directory}/target.sock\"\nlog = \"info\"\n\
         [tcp]\ntime_wait = \"1s\"\ninitial_rto = \"200ms\"\n\
         [sctp]\nreceive_window = \"1 MiB\"\n{sctp}\
         [limits]\nstreams = 256\nheld_per_stream = \"1 MiB\"\nheld_per_worker = \"{} MiB\"\nneighbours = 256\n\
         [[port]]\nname = \"wire\"\nkind = \"af_packet\"\ndevice = \"{}\"\n\
         [[interface]]\nname = \"front\"\nport = \"wire\"\naddresses = [\"{TARGET_V4}/24\", \"{TARGET_V6}/64\"]\n\
         gateway = [\"10.77.0.254\", \"fd77::fe\"]\n{front}",
        HELD_LIMIT >> 20,
        place.target_device,
        directory = place.directory.display(),
    );
    let regions = [
        ("tcp", "w"),
        ("kernel", "w"),
        ("sctp", "w"),
        ("verbs", "rw"),
        ("prey", "w"),
        ("prey-v", "rw"),
        ("prey-s", "w"),
        ("prey-m", "w"),
        ("writeonly", "w"),
        ("readonly", "r"),
        ("nobodys", "rw"),
        ("secret", "rw"),
    ];
    for (name, access) in regions {
        text += &format!(
            "[[region]]\nname = \"{name}\"\nsize = {REGION_LEN}\naccess = \"{access}\"\nshared = true\n"
        );
    }
    text += &listener_section("files", FILES_PORT, "ddp", "regions = [\"tcp\", \"kernel\"]");
    text += &listener_section(
        "files-sctp",
        FILES_SCTP_PORT,
        "ddp",
        "transport = \"sctp\"\nregions = [\"sctp\"]",
    );
    text += &listener_section("verbs", VERBS_PORT, "rdmap", "regions = [\"verbs\"]");
    // No client uses this listener. Its region must be inaccessible to streams of other listeners.
    text += &listener_section("private", 7490, "rdmap", "regions = [\"secret\"]");
    let queue = format!(
        "[[listener.queue]]\nqn = 0\nbuffers = {}\nbuffer_size = {}\ndeliver_to = \"discard\"\n",
        UNTAGGED_BUFFERS.0, UNTAGGED_BUFFERS.1
    );
    let limits =
        "[listener.limits]\nstreams = 48\nstreams_per_peer = 24\nstartup_timeout = \"1s\"\n";
    let prey = |name: &str, port, ulp: &str, keys: &str, queue: &str| {
        listener_section(name, port, ulp, keys) + limits + queue
    };
    text += &prey(
        "prey",
        VICTIM_PORT,
        "ddp",
        "markers = false\nregions = [\"prey\", \"readonly\"]",
        &queue,
    );
    text += &prey("prey-markers", VICTIM_MARKERS_PORT, "ddp", "regions = [\"prey-m\"]", &queue);
    text += &prey(
        "prey-verbs",
        VICTIM_VERBS_PORT,
        "rdmap",
        &format!("ird = {IRD}\nregions = [\"prey-v\", \"writeonly\", \"readonly\"]"),
        "",
    );
    let keys = "service = \"sink\"\nregions = [\"prey-v\"]";
    text += &prey("prey-sink", VICTIM_SINK_PORT, "rdmap", keys, "");
    let keys = "transport = \"sctp\"\nregions = [\"prey-s\"]";
    text += &prey("prey-sctp", VICTIM_SCTP_PORT, "ddp", keys, &queue);
    text += &prey("prey-verbs-sctp", VICTIM_VERBS_SCTP_PORT, "rdmap", keys, "");
    Ok(text + &more)
}

fn peer_config(place: &Environment<'_>) -> String {
    format!(
        "name = \"peer\"\n{COMMON}\
         [files]\npaths = [\"{directory}\"]\n\
         [management]\nsocket = \"{directory}/peer.sock\"\nlog = \"info\"\nbench = true\n\
         [[port]]\nname = \"wire\"\nkind = \"af_packet\"\ndevice = \"{}\"\n\
         [[interface]]\nname = \"lan\"\nport = \"wire\"\naddresses = [\"{PEER_V4}/24\", \"fd77::3/64\"]\n\
         [[region]]\nname = \"back\"\nsize = {REGION_LEN}\naccess = \"none\"\nshared = true\n{programs}",
        place.device,
        directory = place.directory.display(),
        programs = programs_section(place.directory, "peer"),
    )
}

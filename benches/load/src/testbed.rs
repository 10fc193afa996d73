//! The test bed: the appliance under load, its two good peers, and the mixer.
//!
//! ```text
//!  generator ── vhost-user ── mixer ── vhost-user ─┐
//!                               │                  ├ target
//!  peer "flooded" ──── memif ───┘                  │
//!  peer "other" ────── memif ──────────────────────┘
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{Client, Stats};

use crate::mixer::{Macs, Mixer, Sockets};
use crate::router::{ROUTER_V4, ROUTER_V6};

/// Hardware address of the target's flooded port.
pub const TARGET_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// Hardware address of the good peer on the flooded port.
pub const PEER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];
/// Hardware address of the generator, and of the router to its addresses.
pub const ROUTER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x05];

/// TCP port of the listener of the region `files-…` (bare DDP with markers).
pub const FILES_PORT: u16 = 7471;
/// TCP port of the echo listener (RDMAP).
pub const ECHO_PORT: u16 = 7472;
/// SCTP port of the echo listener over SCTP (RDMAP).
pub const SCTP_PORT: u16 = 7473;

/// Time-out of a start, long enough for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running `ddpd`. Dropping the value ends the process.
pub struct Appliance {
    child: Child,
    /// Client of the appliance's API.
    pub client: Client,
    /// Path of the appliance's API socket.
    pub socket: PathBuf,
    log: PathBuf,
}

impl Appliance {
    /// Writes the configuration file into `directory`, starts `ddpd` and waits until it is ready.
    pub fn start(ddpd: &Path, directory: &Path, name: &str, config: &str) -> anyhow::Result<Self> {
        Appliance::spawn(Command::new(ddpd), directory, name, config)
    }

    /// Starts `command`, which runs `ddpd`, for example in another network namespace, and waits until it is ready. The
    /// command must not fork, because the drop of the appliance ends only the started process.
    pub fn spawn(
        mut command: Command,
        directory: &Path,
        name: &str,
        config: &str,
    ) -> anyhow::Result<Self> {
        let file = directory.join(format!("{name}.toml"));
        std::fs::write(&file, config)?;
        let log = directory.join(format!("{name}.log"));
        let mut child = command
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("{} does not start", command.get_program().display()))?;
        let socket = directory.join(format!("{name}.sock"));
        let client = Client::new(&socket)?;
        let output = child.stdout.take().context("no output")?;
        let mut appliance = Appliance { child, client, socket, log };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The receiver is dropped after "ready". The pipe must still be drained.
                let _ = sender.send(line);
            }
        });
        let until = Instant::now() + START_TIMEOUT;
        loop {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("ready") => return Ok(appliance),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => anyhow::bail!("ddpd {name} is not ready in time"),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = appliance.child.wait()?;
                    let log = std::fs::read_to_string(&appliance.log).unwrap_or_default();
                    anyhow::bail!("ddpd {name} ended with {status}: {log}")
                }
            }
        }
    }

    /// Returns the appliance's counters and gauges.
    pub fn stats(&self) -> anyhow::Result<Stats> {
        Ok(self.client.get("/v1/stats")?)
    }

    /// Returns the number of the newest event.
    pub fn last_event(&self) -> anyhow::Result<u64> {
        let page: serde_json::Value =
            self.client.get("/v1/events?limit=1&after=18446744073709551614")?;
        Ok(page["next"].as_u64().unwrap_or(0))
    }

    /// Returns the events after number `after`, at most 1000.
    pub fn events_after(&self, after: u64) -> anyhow::Result<Vec<serde_json::Value>> {
        let path = format!("/v1/events?limit=1000&after={after}");
        let mut page: serde_json::Value = self.client.get(&path)?;
        Ok(page["events"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Returns the length of the appliance's log, bytes.
    pub fn log_bytes(&self) -> anyhow::Result<u64> {
        Ok(std::fs::metadata(&self.log)?.len())
    }

    /// Returns the resident set size, bytes, shared pages included.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = line
            .and_then(|line| line.split_whitespace().next()?.parse().ok())
            .context("no VmRSS in /proc/PID/status")?;
        Ok(kib << 10)
    }

    /// Returns the process identifier of `ddpd`.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills `ddpd`, which simulates a crash.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until all links are up in three consecutive polls. Fails after 30 s.
    pub fn wait_for_links(&self) -> anyhow::Result<()> {
        let until = Instant::now() + START_TIMEOUT;
        let mut up = 0;
        while up < 3 {
            anyhow::ensure!(
                Instant::now() < until,
                "the links of {} stay down",
                self.socket.display()
            );
            let ports: Vec<serde_json::Value> = self.client.get("/v1/ports")?;
            up = if ports.iter().all(|port| port["up"] == true) { up + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        // A failure means that the process has already ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The running test bed.
pub struct Testbed {
    /// Connects the generator and the good peer to the flooded port. Declared first, so that the mixer, the frontend of
    /// the target's vhost-user port, is dropped before the target.
    pub mixer: Mixer,
    /// The good peer on the flooded port.
    pub flooded_peer: Appliance,
    /// The good peer on the other port.
    pub other_peer: Appliance,
    /// The appliance under load.
    pub target: Appliance,
    /// Socket to which the generator connects.
    pub generator_socket: PathBuf,
}

/// Cores of the two parts of the test bed.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Core of generator and mixer.
    pub generator: usize,
    /// Core of the target's worker and of the good peers' workers.
    pub target: usize,
}

impl Testbed {
    /// Starts all processes in `directory` and waits until the links are up.
    pub fn start(
        ddpd: &Path,
        eal: &dpdk::Eal,
        directory: &Path,
        cores: Cores,
    ) -> anyhow::Result<Testbed> {
        let at = |name: &str| directory.join(name);
        let target =
            Appliance::start(ddpd, directory, "target", &target_config(directory, cores.target))?;
        let sockets = Sockets {
            generator: at("generator.sock"),
            good: at("good.sock"),
            appliance: at("flooded-port.sock"),
        };
        let macs = Macs { good: PEER_MAC, router: ROUTER_MAC };
        let mixer = Mixer::start(eal, &sockets, macs, cores.generator)?;
        let good = |name: &str, socket: &str, net: u8, mac: Option<[u8; 6]>| {
            Appliance::start(
                ddpd,
                directory,
                name,
                &peer_config(directory, name, socket, net, mac, cores.target),
            )
        };
        let flooded = good("peer-flooded", "good.sock", FLOODED_NET_OCTET, Some(PEER_MAC))?;
        let other = good("peer-other", "other-port.sock", OTHER_NET_OCTET, None)?;
        let bed = Testbed {
            mixer,
            flooded_peer: flooded,
            other_peer: other,
            target,
            generator_socket: sockets.generator,
        };
        for appliance in [&bed.target, &bed.flooded_peer, &bed.other_peer] {
            appliance.wait_for_links()?;
        }
        Ok(bed)
    }
}

/// Second byte of the flooded network's IPv4 prefix, 10.80.0.0/24. Its decimal digits also form the IPv6 prefix,
/// fd80::/64.
pub const FLOODED_NET_OCTET: u8 = 80;
/// Second byte of the other good peer's IPv4 prefix, 10.81.0.0/24.
pub const OTHER_NET_OCTET: u8 = 81;

/// Returns the target's IPv4 address in network `net`.
pub fn target_address(net: u8) -> std::net::IpAddr {
    [10, net, 0, 1].into()
}

/// Returns the target's IPv6 address in the flooded network.
pub fn target_v6() -> std::net::IpAddr {
    std::net::Ipv6Addr::new(0xfd80, 0, 0, 0, 0, 0, 0, 1).into()
}

/// Formats a MAC address as `02:00:00:00:00:01`.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn target_config(directory: &Path, core: usize) -> String {
    let at = directory.display();
    let mut text = format!(
        "name = \"target\"\n[memory]\nhugepages = \"auto\"\n\
         [workers]\ncores = [{core}]\nidle = \"adaptive\"\n\
         [files]\npaths = [\"{at}\"]\n\
         [management]\nsocket = \"{at}/target.sock\"\nlog = \"info\"\n\
         [[port]]\nname = \"flooded\"\nkind = \"vhost-user\"\nsocket = \"{at}/flooded-port.sock\"\n\
         mac = \"{}\"\n\
         [[port]]\nname = \"other\"\nkind = \"memif\"\nrole = \"server\"\nid = 0\n\
         socket = \"{at}/other-port.sock\"\n\
         [[interface]]\nname = \"flooded\"\nport = \"flooded\"\n\
         addresses = [\"10.{FLOODED_NET_OCTET}.0.1/24\", \"fd{FLOODED_NET_OCTET}::1/64\"]\n\
         gateway = [\"{ROUTER_V4}\", \"{ROUTER_V6}\"]\n\
         [[interface]]\nname = \"other\"\nport = \"other\"\n\
         addresses = [\"10.{OTHER_NET_OCTET}.0.1/24\", \"fd{OTHER_NET_OCTET}::1/64\"]\n",
        mac_text(TARGET_MAC)
    );
    for name in ["flooded", "other"] {
        text += &format!(
            "[[region]]\nname = \"files-{name}\"\nsize = \"4 MiB\"\naccess = \"rw\"\nshared = true\n\
             [[listener]]\nname = \"files-{name}\"\ninterface = \"{name}\"\nport = {FILES_PORT}\n\
             regions = [\"files-{name}\"]\n\
             [[listener]]\nname = \"echo-{name}\"\ninterface = \"{name}\"\nport = {ECHO_PORT}\n\
             ulp = \"rdmap\"\nservice = \"echo\"\n"
        );
    }
    text + &format!(
        "[[listener]]\nname = \"sctp\"\ninterface = \"flooded\"\nport = {SCTP_PORT}\ntransport = \"sctp\"\n\
         ulp = \"rdmap\"\nservice = \"echo\"\n"
    )
}

fn peer_config(
    directory: &Path,
    name: &str,
    socket: &str,
    net: u8,
    mac: Option<[u8; 6]>,
    core: usize,
) -> String {
    let at = directory.display();
    let mac = mac.map_or(String::new(), |mac| format!("mac = \"{}\"\n", mac_text(mac)));
    format!(
        "name = \"{name}\"\n[memory]\nhugepages = \"auto\"\n\
         [workers]\ncores = [{core}]\nidle = \"adaptive\"\n\
         [files]\npaths = [\"{at}\"]\n\
         [management]\nsocket = \"{at}/{name}.sock\"\nlog = \"info\"\nbench = true\n\
         [[port]]\nname = \"link\"\nkind = \"memif\"\nrole = \"client\"\nid = 0\nsocket = \"{at}/{socket}\"\n\
         {mac}\
         [[interface]]\nname = \"lan\"\nport = \"link\"\n\
         addresses = [\"10.{net}.0.2/24\", \"fd{net}::2/64\"]\n"
    )
}

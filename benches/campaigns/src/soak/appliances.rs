//! The two appliances of a soak and their configuration.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use load::testbed::Appliance;

use crate::testbed::{self, Environment, PEER_V4, REGION_LEN, TARGET_V4, TARGET_V6};

/// Port of bare DDP with markers and CRC.
pub(crate) const MARKERS_PORT: u16 = 7471;
/// Port of bare DDP; the listener requests neither markers nor CRC.
pub(crate) const PLAIN_PORT: u16 = 7472;
/// Port of RDMAP.
pub(crate) const VERBS_PORT: u16 = 7473;
/// Port of bare DDP over SCTP.
pub(crate) const SCTP_PORT: u16 = 7474;
/// Port of RDMAP over SCTP.
pub(crate) const VERBS_SCTP_PORT: u16 = 7475;
/// First port of the listeners that are created and removed at run time, one for each thread.
pub(crate) const CHURN_PORT: u16 = 7480;

/// First port of the programs at the target, one for each thread.
pub(crate) const PROGRAM_PORT: u16 = 7490;
/// First port of the peers of killed programs, one for each thread.
pub(crate) const PARTNER_PORT: u16 = 7495;

/// Number of threads that open streams. Each thread has its own region at the target and at the peer.
pub(crate) const THREADS: usize = 4;

/// Region for interrupted streams, whose in-flight segments may arrive late.
pub(crate) const SCRATCH_REGION: &str = "scrap";

/// Returns the name of a thread's region.
pub(crate) fn slot_region(thread: usize) -> String {
    format!("slot{thread}")
}

/// Starts the target in its namespace.
pub(crate) fn start_target(place: &Environment<'_>) -> Result<Appliance> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", place.namespace]).arg(place.ddpd);
    Appliance::spawn(command, place.directory, "target", &target_config(place, 512))
}

/// Starts or restarts the peer, and waits for its links.
pub(crate) fn start_peer(place: &Environment<'_>) -> Result<Appliance> {
    let config = appliance_config("peer", place.device, place.directory, 512)
        + &format!("addresses = [\"{PEER_V4}/24\", \"fd77::3/64\"]\n")
        + &service_sections()
        + &testbed::programs_section(place.directory, "peer");
    let peer = Appliance::start(place.ddpd, place.directory, "peer", &config)?;
    peer.wait_for_links()?;
    Ok(peer)
}

/// Returns the target's configuration file with at most `streams` streams.
pub(crate) fn target_config(place: &Environment<'_>, streams: u32) -> String {
    appliance_config("target", place.target_device, place.directory, streams)
        + &format!("addresses = [\"{TARGET_V4}/24\", \"{TARGET_V6}/64\"]\n")
        + &service_sections()
        + &testbed::programs_section(place.directory, "target")
}

/// Returns a configuration file without services. Its last section is the interface, to which the caller appends the
/// addresses.
///
/// The time-outs exceed every outage that the faults cause. An association ends after 8 retransmissions, whose
/// time-outs double from 20 ms, about 10 s in total. A connection ends after 5 s. A loss burst ends after a number of
/// frames. On a quiet cable only retransmissions are sent, so a burst may last for more than a second.
fn appliance_config(name: &str, device: &str, directory: &Path, streams: u32) -> String {
    format!(
        "name = \"{name}\"\n[memory]\nhugepages = \"never\"\n[workers]\ncount = 1\nidle = \"adaptive\"\n\
         [files]\npaths = [\"{directory}\"]\n\
         [management]\nsocket = \"{directory}/{name}.sock\"\nlog = \"info\"\ndrain_timeout = \"1s\"\n\
         [tcp]\ntime_wait = \"500ms\"\nmin_rto = \"20ms\"\ninitial_rto = \"200ms\"\nuser_timeout = \"5s\"\n\
         [sctp]\nmin_rto = \"20ms\"\ninitial_rto = \"200ms\"\nmax_retransmits = 8\nheartbeat = \"500ms\"\n\
         [limits]\nstreams = {streams}\n\
         [[port]]\nname = \"wire\"\nkind = \"af_packet\"\ndevice = \"{device}\"\n\
         [[interface]]\nname = \"lan\"\nport = \"wire\"\n",
        directory = directory.display(),
    )
}

fn service_sections() -> String {
    let mut text = String::new();
    let mut names: Vec<String> = (0..THREADS).map(slot_region).collect();
    names.push(SCRATCH_REGION.to_owned());
    for name in &names {
        text += &format!(
            "[[region]]\nname = \"{name}\"\nsize = {REGION_LEN}\naccess = \"rw\"\nshared = true\n"
        );
    }
    let slots = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let queue = "[[listener.queue]]\nqn = 0\nbuffers = 8\nbuffer_size = \"16 KiB\"\ndeliver_to = \"echo\"\n";
    let listeners = [
        ("markers", MARKERS_PORT, "ulp = \"ddp\"\n", queue),
        ("plain", PLAIN_PORT, "ulp = \"ddp\"\nmarkers = false\ncrc = false\n", queue),
        ("verbs", VERBS_PORT, "ulp = \"rdmap\"\n", ""),
        ("sctp", SCTP_PORT, "ulp = \"ddp\"\ntransport = \"sctp\"\n", queue),
        ("verbs-sctp", VERBS_SCTP_PORT, "ulp = \"rdmap\"\ntransport = \"sctp\"\n", ""),
    ];
    for (name, port, keys, queue) in listeners {
        text += &format!(
            "[[listener]]\nname = \"{name}\"\ninterface = \"lan\"\nport = {port}\n{keys}regions = [{slots}]\n\
             [listener.limits]\nidle_timeout = \"5s\"\nstartup_timeout = \"5s\"\n{queue}"
        );
    }
    text
}

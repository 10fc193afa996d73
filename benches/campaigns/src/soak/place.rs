//! The two appliances of a soak, and what they have.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use load::bed::Appliance;

use crate::bed::{PEER_V4, Place, REGION, TARGET_V4, TARGET_V6};

/// Bare DDP with markers and CRC, revisions 0 and 1.
pub(crate) const MARKERS: u16 = 7471;
/// Bare DDP; neither is asked for.
pub(crate) const PLAIN: u16 = 7472;
/// RDMAP.
pub(crate) const VERBS: u16 = 7473;
/// Bare DDP over SCTP.
pub(crate) const SCTP: u16 = 7474;
/// RDMAP over SCTP.
pub(crate) const VERBS_SCTP: u16 = 7475;
/// The first one of listeners that are made and removed at run time; each worker of the soak has one.
pub(crate) const CHURN: u16 = 7480;

/// Threads that open streams; each has a region of its own at each end.
pub(crate) const THREADS: usize = 4;

/// The region that interrupted streams write: what of them is still on its way may arrive late.
pub(crate) const SCRAP: &str = "scrap";

/// Name of a thread's region.
pub(crate) fn slot(thread: usize) -> String {
    format!("slot{thread}")
}

/// Starts the target in its namespace.
pub(crate) fn target(place: &Place<'_>) -> Result<Appliance> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", place.namespace]).arg(place.ddpd);
    Appliance::spawn(command, place.directory, "target", &target_config(place, 512))
}

/// Starts the peer, again and again.
pub(crate) fn peer(place: &Place<'_>) -> Result<Appliance> {
    let config = config("peer", place.device, place.directory, 512)
        + &format!("addresses = [\"{PEER_V4}/24\", \"fd77::3/64\"]\n")
        + &services();
    let peer = Appliance::start(place.ddpd, place.directory, "peer", &config)?;
    peer.wait_for_links()?;
    Ok(peer)
}

/// The target's file, with this limit of streams.
pub(crate) fn target_config(place: &Place<'_>, streams: u32) -> String {
    config("target", place.target_device, place.directory, streams)
        + &format!("addresses = [\"{TARGET_V4}/24\", \"{TARGET_V6}/64\"]\n")
        + &services()
}

/// Up to the addresses of its interface. What ends a silent peer is longer than any silence that the faults make: an
/// association stands 20 ms doubled 8 times, 10 s, a connection 5 s. A burst of losses counts frames, and on a quiet cable those
/// are retransmissions, so that it may last for a second and more.
fn config(name: &str, device: &str, directory: &Path, streams: u32) -> String {
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

fn services() -> String {
    let mut text = String::new();
    let mut names: Vec<String> = (0..THREADS).map(slot).collect();
    names.push(SCRAP.to_owned());
    for name in &names {
        text += &format!(
            "[[region]]\nname = \"{name}\"\nsize = {REGION}\naccess = \"rw\"\nshared = true\n"
        );
    }
    let slots = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let queue = "[[listener.queue]]\nqn = 0\nbuffers = 8\nbuffer_size = \"16 KiB\"\ndeliver_to = \"echo\"\n";
    let listeners = [
        ("markers", MARKERS, "ulp = \"ddp\"\n", queue),
        ("plain", PLAIN, "ulp = \"ddp\"\nmarkers = false\ncrc = false\n", queue),
        ("verbs", VERBS, "ulp = \"rdmap\"\n", ""),
        ("sctp", SCTP, "ulp = \"ddp\"\ntransport = \"sctp\"\n", queue),
        ("verbs-sctp", VERBS_SCTP, "ulp = \"rdmap\"\ntransport = \"sctp\"\n", ""),
    ];
    for (name, port, keys, queue) in listeners {
        text += &format!(
            "[[listener]]\nname = \"{name}\"\ninterface = \"lan\"\nport = {port}\n{keys}regions = [{slots}]\n\
             [listener.limits]\nidle_timeout = \"5s\"\nstartup_timeout = \"5s\"\n{queue}"
        );
    }
    text
}

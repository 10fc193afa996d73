//! A listener: its section of the configuration, its numbers at the workers, and its counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use api::{ApiError, ListenerInfo, QueueInfo};
use config::directories::{OpenPurpose, PathError};
use config::{Config, Delivery, Fsync, ListenerSection, QueueSection};
use dataplane::{ListenerConfig, ListenerId};
use ddp::PdId;

use super::slots::Serving;
use super::worker_config;
use crate::appliance::env::{Env, Origin};
use crate::appliance::limits::{Ledger, Limits};
use crate::files::FileId;

pub(in crate::appliance) struct Listener {
    /// Numbers of the listener at the workers. The last number is current; streams may have arrived under earlier
    /// numbers.
    pub(super) ids: Vec<ListenerId>,
    pub(super) section: ListenerSection,
    pub(super) pd: PdId,
    pub(super) ledger: Ledger,
    /// Files of the queues that deliver to files, by queue number.
    pub(super) files: HashMap<u32, FileId>,
    /// Service and slots, if `ulp = "rdmap"`.
    pub(super) serving: Option<Serving>,
    /// Number of streams admitted so far.
    pub(super) accepted: u64,
    /// Number of streams refused so far.
    pub(super) refused: u64,
    pub(super) origin: Origin,
    /// The workers' configuration of the listener.
    pub(super) at_workers: Arc<ListenerConfig>,
}

impl Listener {
    /// Returns the listener's current number at the workers.
    pub(super) fn id(&self) -> ListenerId {
        self.ids.last().copied().unwrap_or(ListenerId(0))
    }

    /// Returns the number that identifies the listener as long as it exists.
    pub(super) fn first_id(&self) -> ListenerId {
        self.ids.first().copied().unwrap_or(ListenerId(0))
    }

    /// Returns the time at which the service's next timer expires. `None` without a service or a timer.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.serving.as_ref()?.service.poll_timeout()
    }

    /// Returns the protection domain of the listener's streams.
    pub(in crate::appliance) fn pd(&self) -> PdId {
        self.pd
    }

    pub(super) fn limits(&self) -> Limits {
        let limits = &self.section.limits;
        Limits { streams: limits.streams, streams_per_peer: limits.streams_per_peer }
    }

    /// Checks that the listener can change to `section`.
    pub(in crate::appliance) fn check_change(
        &self,
        section: &ListenerSection,
    ) -> Result<(), ApiError> {
        let streams = self.ledger.streams();
        if self.changes_service(section) && streams > 0 {
            return Err(ApiError::conflict(format!(
                "listener `{}` cannot change its service while {streams} streams use it: close them first",
                section.name
            )));
        }
        Ok(())
    }

    /// Returns true if the section changes the service or the slots, which live streams use.
    pub(in crate::appliance) fn changes_service(&self, section: &ListenerSection) -> bool {
        service_differs(&self.section, section)
    }

    /// Applies a changed section. Returns the workers' new configuration if they must apply the change.
    pub(in crate::appliance) fn change(
        &mut self,
        env: &mut Env,
        section: ListenerSection,
        changed: PreparedChange,
    ) -> Option<ListenerConfig> {
        let PreparedChange { pd, files, region } = changed;
        let unused = self.files.values().filter(|f| !files.values().any(|k| k == *f));
        unused.for_each(|&file| env.writer.close(file));
        let old = std::mem::replace(&mut self.section, section);
        if service_differs(&old, &self.section) {
            self.serving = Serving::new(&self.section, region);
        }
        self.pd = pd;
        self.files = files;
        let new = worker_config(env, &self.section, self.id());
        // The peers are compared and sent separately (`SetPeers`).
        let peers = Arc::clone(&self.at_workers.peers);
        let is_current = ListenerConfig { peers, ..new.clone() } == *self.at_workers;
        (!is_current).then_some(new)
    }

    /// Describes the listener for the API.
    pub(super) fn info(&self, config: &Config) -> ListenerInfo {
        let section = &self.section;
        let interface = config.interfaces.iter().find(|i| i.name == section.interface);
        let all = interface.map(|i| i.addresses.as_slice()).unwrap_or_default();
        let addresses = match section.address {
            Some(address) => vec![address],
            None => all.iter().map(|net| net.addr()).collect(),
        };
        let socket = |address| std::net::SocketAddr::new(address, section.port).to_string();
        let mpa = &section.mpa;
        let enabled = [(0, mpa.revision_0), (1, mpa.revision_1), (2, mpa.revision_2)];
        ListenerInfo {
            name: section.name.clone(),
            interface: section.interface.clone(),
            addresses: addresses.into_iter().map(socket).collect(),
            transport: section.transport,
            ulp: section.ulp.as_str().into(),
            service: section.ulp.rdmap().map(|rdmap| rdmap.service.as_str().into()),
            sessions: self.serving.as_ref().map_or(0, |s| s.service.sessions() as u64),
            revisions: enabled
                .into_iter()
                .filter(|(_, on)| *on)
                .map(|(number, _)| number)
                .collect(),
            markers: section.mpa.markers,
            crc: section.mpa.crc,
            regions: section.regions.clone(),
            queues: section.queues.iter().map(queue).collect(),
            streams: self.ledger.streams(),
            max_streams: section.limits.streams,
            accepted: self.accepted,
            refused: self.refused,
            configured: self.origin == Origin::Configuration,
            allow: section.peers.allow.iter().map(ToString::to_string).collect(),
            deny: section.peers.deny.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Parts of a changed section that are prepared before the change, because their preparation may fail.
pub(in crate::appliance) struct PreparedChange {
    /// Protection domain of the section's regions.
    pub pd: PdId,
    /// Open files of the queues that deliver to files, by queue number.
    pub files: HashMap<u32, FileId>,
    /// Length of the region that is divided into slots, bytes.
    pub region: u64,
}

/// Opens the files to which the section's queues deliver. Files that `old` has open are reused.
pub(in crate::appliance) fn open_queue_files(
    env: &mut Env,
    section: &ListenerSection,
    old: Option<&Listener>,
) -> Result<HashMap<u32, FileId>, ApiError> {
    let mut files = HashMap::new();
    let mut opened = Vec::new();
    for queue in &section.queues {
        let Delivery::File { path } = &queue.deliver_to else { continue };
        let same = |q: &&QueueSection| q.deliver_to == queue.deliver_to;
        let kept = old.and_then(|old| {
            let was = old.section.queues.iter().find(same)?;
            old.files.get(&was.qn).copied()
        });
        match kept {
            Some(file) => drop(files.insert(queue.qn, file)),
            None => {
                let file = env.files.open(path, OpenPurpose::Append).map_err(|refused| {
                    let message =
                        format!("listener `{}`, queue {}: {refused}", section.name, queue.qn);
                    match refused {
                        PathError::Outside(_) => ApiError::forbidden(message),
                        PathError::Failed(_) => ApiError::bad_request(message),
                    }
                })?;
                opened.push((queue.qn, path.clone(), file));
            }
        }
    }
    for (qn, path, file) in opened {
        files.insert(qn, env.writer.open_log(path, file, Fsync::Close));
    }
    Ok(files)
}

fn queue(queue: &QueueSection) -> QueueInfo {
    let deliver_to = match &queue.deliver_to {
        Delivery::Events => "events",
        Delivery::File { .. } => "file",
        Delivery::Echo => "echo",
        Delivery::Discard => "discard",
    };
    QueueInfo {
        qn: queue.qn,
        buffers: queue.buffers,
        buffer_size: queue.buffer_size,
        deliver_to: deliver_to.into(),
    }
}

/// Returns true if service, message size or slots differ: live streams use these.
fn service_differs(old: &ListenerSection, new: &ListenerSection) -> bool {
    let service = |s: &ListenerSection| s.ulp.rdmap().map(|r| (r.service, r.message_size));
    service(old) != service(new)
        || old.has_slots()
            && (&old.regions, old.limits.streams) != (&new.regions, new.limits.streams)
}

/// Accessors for tests.
#[cfg(test)]
impl Listener {
    pub(in crate::appliance) fn number(&self) -> ListenerId {
        self.id()
    }

    pub(in crate::appliance) fn section(&self) -> &ListenerSection {
        &self.section
    }

    pub(in crate::appliance) fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

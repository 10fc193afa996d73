//! Listeners: on every worker, with credits, limits and protection domains.
//!
//! *Protection domains.* Streams of a listener may use its regions: they have one domain. Listeners that
//! share a region share the domain. A region that no listener names has a domain of its own until
//! one does; then it is registered again, with the listener's domain, in the same step in which the
//! listener starts. A listener whose regions already serve two different domains is refused.
//!
//! *Credits.* Each worker may have its part of `limits.pending` handshakes; a credit goes back to the
//! worker as soon as the control thread has decided about the stream. How many streams there may be in
//! all is decided then, by the [`Ledger`].

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::{Command, InterfaceId, ListenerConfig, ListenerId, Sources, Ticket};
use ddp::PdId;

use super::core::{Core, Then};
use super::endpoints::listener_config;
use super::limits::{Ledger, Limits};
use super::loader::open_log;
use super::services::Serving;
use crate::advert;
use crate::api::{Answer, ApiError, EventKind, ListenerInfo, Reply};
use crate::config::{Delivery, Fsync, ListenerSection};
use crate::files::FileId;

/// A listener.
pub(super) struct Listener {
    /// Its numbers with the workers. The last one is in force; streams may have come by earlier ones.
    pub ids: Vec<ListenerId>,
    pub section: ListenerSection,
    pub pd: PdId,
    pub ledger: Ledger,
    /// Files of its queues with `deliver_to = "file"`, by queue number.
    pub files: HashMap<u32, FileId>,
    /// The service of a listener with `ulp = "rdmap"`.
    pub serving: Option<Serving>,
    pub accepted: u64,
    pub refused: u64,
    pub configured: bool,
}

impl Listener {
    /// The number in force.
    pub(super) fn id(&self) -> ListenerId {
        self.ids.last().copied().unwrap_or(ListenerId(0))
    }

    pub(super) fn limits(&self) -> Limits {
        let limits = &self.section.limits;
        Limits { streams: limits.streams, streams_per_peer: limits.streams_per_peer }
    }
}

/// What a changed section brings.
struct Changed {
    pd: PdId,
    /// Regions whose domain must change.
    moved: Vec<String>,
    files: HashMap<u32, FileId>,
}

/// A refusal, with the answer that was not used.
type Refused = (ApiError, Option<Answer>);

impl Core {
    /// Listens. The answer comes back with a refusal; otherwise it is used when all workers listen.
    pub(super) fn add_listener(
        &mut self,
        section: ListenerSection,
        configured: bool,
        answer: Option<Answer>,
    ) -> Result<(), Refused> {
        match self.make_listener(section, configured) {
            Ok((listener, moved)) => {
                self.start_listener(listener, &moved, None, answer);
                Ok(())
            }
            Err(error) => Err((error, answer)),
        }
    }

    /// Checks everything and opens the files. Besides the listener, regions whose domain must change.
    fn make_listener(
        &mut self,
        section: ListenerSection,
        configured: bool,
    ) -> Result<(Listener, Vec<String>), ApiError> {
        self.may_add_listener(&section)?;
        let (pd, moved) = self.domain_for(&section)?;
        self.check_pieces(&section)?;
        let files = self.open_queue_files(&section, None)?;
        let serving = self.serving(&section);
        let listener = Listener {
            ids: vec![self.new_listener_id()],
            section,
            pd,
            ledger: Ledger::default(),
            files,
            serving,
            accepted: 0,
            refused: 0,
            configured,
        };
        Ok((listener, moved))
    }

    /// Whether a listener can be added, but for domains and files.
    pub(super) fn may_add_listener(&self, section: &ListenerSection) -> Result<(), ApiError> {
        let name = &section.name;
        if !self.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if self.listeners.contains_key(name) {
            return Err(ApiError::conflict(format!("there is already a listener `{name}`")));
        }
        self.check_interface_of(section)?;
        if let Some(other) = self.listener_at(section, |_| true) {
            return Err(ApiError::conflict(format!(
                "listener `{other}` has port {} of interface `{}` already",
                section.port, section.interface
            )));
        }
        let cut = |other: &&Listener| {
            (section.has_slots() || other.section.has_slots())
                && section.regions.iter().any(|name| other.section.regions.contains(name))
        };
        if let Some(other) = self.listeners.values().find(cut) {
            return Err(ApiError::conflict(format!(
                "listeners `{name}` and `{}` name the same region: the pieces of a service's streams need \
                 one of their own",
                other.section.name
            )));
        }
        check_advertisement(section)
    }

    /// A region that is to be cut into pieces has no users: their pieces would be others.
    fn check_pieces(&self, section: &ListenerSection) -> Result<(), ApiError> {
        let used = |name: &&String| self.regions.get(*name).is_some_and(|r| !r.users.is_empty());
        match section.regions.iter().find(used) {
            Some(region) if section.has_slots() => Err(ApiError::conflict(format!(
                "listener `{}`: region `{region}` is used by streams of before: close them first",
                section.name
            ))),
            _ => Ok(()),
        }
    }

    /// The interface is there and has the address.
    pub(super) fn check_interface_of(&self, section: &ListenerSection) -> Result<(), ApiError> {
        let name = &section.interface;
        let interface = self
            .interface_named(name)
            .ok_or_else(|| ApiError::bad_request(format!("there is no interface `{name}`")))?;
        let addresses = &self.config.interfaces[usize::from(interface.0)].addresses;
        match section.address {
            Some(address) if !addresses.iter().any(|prefix| prefix.address == address) => {
                Err(ApiError::bad_request(format!("interface `{name}` has no address {address}")))
            }
            _ => Ok(()),
        }
    }

    /// The listener, of those that `which` takes, that has the section's place.
    pub(super) fn listener_at(
        &self,
        section: &ListenerSection,
        which: impl Fn(&Listener) -> bool,
    ) -> Option<&str> {
        let same = |other: &&Listener| {
            let (theirs, ours) = (other.section.address, section.address);
            which(other)
                && other.section.interface == section.interface
                && other.section.port == section.port
                && other.section.transport == section.transport
                && (theirs.is_none() || ours.is_none() || theirs == ours)
        };
        self.listeners.values().find(same).map(|other| other.section.name.as_str())
    }

    /// The domain of a listener and the regions that must be moved into it.
    fn domain_for(&mut self, section: &ListenerSection) -> Result<(PdId, Vec<String>), ApiError> {
        // Regions that other listeners name come first: their domain is fixed.
        let mut fixed: Option<(PdId, &str)> = None;
        let mut free: Option<PdId> = None;
        for name in &section.regions {
            let region = self.regions.get(name).filter(|region| region.is_live());
            let region = region.ok_or_else(|| {
                let listener = &section.name;
                ApiError::bad_request(format!("listener `{listener}`: there is no region `{name}`"))
            })?;
            let is_fixed = self.is_listed(name) || !region.users.is_empty();
            match fixed {
                Some((pd, other)) if is_fixed && pd != region.pd => {
                    return Err(ApiError::conflict(format!(
                        "listener `{}`: regions `{other}` and `{name}` are in use in different \
                         protection domains",
                        section.name
                    )));
                }
                None if is_fixed => fixed = Some((region.pd, name)),
                _ => free = free.or(Some(region.pd)),
            }
        }
        let pd = match fixed.map(|(pd, _)| pd).or(free) {
            Some(pd) => pd,
            None => self.new_pd(),
        };
        let moved = |name: &&String| self.regions.get(*name).is_some_and(|r| r.pd != pd);
        Ok((pd, section.regions.iter().filter(moved).cloned().collect()))
    }

    /// Some listener names the region.
    fn is_listed(&self, region: &str) -> bool {
        self.listeners.values().any(|l| l.section.regions.iter().any(|name| name == region))
    }

    /// The domain that a new region gets: that of the configured listeners that name it, of a listener
    /// that names it already, or its own.
    pub(super) fn pd_of_region(&mut self, name: &str) -> PdId {
        let lists = |l: &&Listener| l.section.regions.iter().any(|region| region == name);
        let listener = self.listeners.values().find(lists).map(|listener| listener.pd);
        match self.planned.get(name).copied().or(listener) {
            Some(pd) => pd,
            None => self.new_pd(),
        }
    }

    /// Domains of the configured regions: one for listeners that share regions, directly or through
    /// others.
    pub(super) fn plan_domains(&mut self) {
        let sections = self.config.listeners.clone();
        for listener in &sections {
            let known: Vec<PdId> =
                listener.regions.iter().filter_map(|r| self.planned.get(r)).copied().collect();
            let pd = match known.first() {
                Some(&pd) => pd,
                None => self.new_pd(),
            };
            // Groups that this listener joins become one.
            self.planned.values_mut().filter(|p| known.contains(p)).for_each(|p| *p = pd);
            self.planned.extend(listener.regions.iter().map(|region| (region.clone(), pd)));
        }
    }

    /// Opens the files of its queues; those that `old` has open already are taken over.
    fn open_queue_files(
        &mut self,
        section: &ListenerSection,
        old: Option<&Listener>,
    ) -> Result<HashMap<u32, FileId>, ApiError> {
        let mut files = HashMap::new();
        let mut opened = Vec::new();
        for queue in &section.queues {
            let Delivery::File { path } = &queue.deliver_to else { continue };
            let same = |q: &&crate::config::QueueSection| q.deliver_to == queue.deliver_to;
            let kept = old.and_then(|old| {
                let was = old.section.queues.iter().find(same)?;
                old.files.get(&was.qn).copied()
            });
            match kept {
                Some(file) => drop(files.insert(queue.qn, file)),
                None => {
                    let file = open_log(path).map_err(|error| {
                        let (name, qn) = (&section.name, queue.qn);
                        ApiError::bad_request(format!("listener `{name}`, queue {qn}: {error}"))
                    })?;
                    opened.push((queue.qn, path.clone(), file));
                }
            }
        }
        for (qn, path, file) in opened {
            files.insert(qn, self.writer.open_log(path, file, Fsync::Close));
        }
        Ok(files)
    }

    /// Sends what makes the workers listen; first, in the same step, what moves regions and stops the
    /// listener that this one replaces.
    fn start_listener(
        &mut self,
        listener: Listener,
        moved: &[String],
        replaces: Option<ListenerId>,
        answer: Option<Answer>,
    ) {
        let name = listener.section.name.clone();
        let config = Arc::new(self.worker_config(&listener));
        let mut entries = Vec::new();
        for name in moved {
            if let Some(region) = self.regions.get_mut(name) {
                region.pd = listener.pd;
                entries.push(region.entry());
            }
        }
        let mut steps: Vec<Box<dyn Fn(Ticket) -> Command>> = Vec::new();
        if let Some(listener) = replaces {
            steps.push(Box::new(move |ticket| Command::RemoveListener { listener, ticket }));
        }
        for entry in entries {
            let stag = entry.stag;
            let sources = Sources::Wait;
            steps.push(Box::new(move |ticket| Command::RemoveStag { stag, sources, ticket }));
            steps.push(Box::new(move |ticket| Command::AddStag { entry: entry.clone(), ticket }));
        }
        steps.push(Box::new(move |ticket| Command::AddListener {
            listener: Arc::clone(&config),
            ticket,
        }));
        let steps: Vec<&dyn Fn(Ticket) -> Command> = steps.iter().map(AsRef::as_ref).collect();
        self.listeners.insert(name.clone(), listener);
        self.broadcast_all(Then::ListenerAdded { name, answer }, &steps);
    }

    fn worker_config(&self, listener: &Listener) -> ListenerConfig {
        let interface = self.interface_named(&listener.section.interface);
        let workers = self.workers() as u32;
        listener_config(&self.config, &listener.section, listener.id(), interface, workers)
    }

    pub(super) fn on_listener_added(
        &mut self,
        name: &str,
        result: Result<(), String>,
        answer: Option<Answer>,
    ) {
        let reply = match result {
            Ok(()) => {
                self.log.push(EventKind::ListenerAdded { listener: name.to_owned() });
                self.listener_info(name).map(Reply::Listener)
            }
            Err(reason) => {
                self.warn(format!("listener {name} could not be added: {reason}"));
                self.retire_listener(name, None);
                Err(ApiError::conflict(format!("listener `{name}`: {reason}")))
            }
        };
        if let Some(answer) = answer {
            answer.send(reply);
        }
    }

    /// Stops listening; streams stay.
    pub(super) fn remove_listener(&mut self, name: &str, answer: Option<Answer>) {
        if self.listeners.contains_key(name) {
            self.retire_listener(name, answer);
        } else if let Some(answer) = answer {
            answer.send(Err(ApiError::not_found(format!("there is no listener `{name}`"))));
        }
    }

    fn retire_listener(&mut self, name: &str, answer: Option<Answer>) {
        let Some(listener) = self.listeners.remove(name) else { return };
        let id = listener.id();
        self.retired.push(listener);
        let then = Then::ListenerRemoved { id, name: name.to_owned(), answer };
        self.broadcast(then, |ticket| Command::RemoveListener { listener: id, ticket });
    }

    pub(super) fn on_listener_removed(
        &mut self,
        id: ListenerId,
        name: &str,
        answer: Option<Answer>,
    ) {
        self.log.push(EventKind::ListenerRemoved { listener: name.to_owned() });
        self.forget_retired(id);
        if let Some(answer) = answer {
            answer.send(Ok(Reply::DONE));
        }
    }

    /// Forgets a retired listener that has no stream left, and closes its files.
    pub(super) fn forget_retired(&mut self, id: ListenerId) {
        let done = |l: &Listener| l.ids.contains(&id) && l.ledger.streams() == 0;
        if let Some(at) = self.retired.iter().position(done) {
            let listener = self.retired.swap_remove(at);
            listener.files.values().for_each(|&file| self.writer.close(file));
        }
    }

    /// Applies a changed section: limits at once, regions and queues for new streams. What the workers
    /// must know gives the listener a new number with them; half-open streams are reset then.
    pub(super) fn change_listener(&mut self, section: ListenerSection) -> Result<(), ApiError> {
        let name = section.name.clone();
        let Some(mut listener) = self.listeners.remove(&name) else {
            return self.add_listener(section, true, None).map_err(|(error, _)| error);
        };
        if serves_otherwise(&listener.section, &section) && listener.ledger.streams() > 0 {
            let streams = listener.ledger.streams();
            self.listeners.insert(name.clone(), listener);
            return Err(ApiError::conflict(format!(
                "listener `{name}` cannot serve otherwise while {streams} streams use it: close them first"
            )));
        }
        match self.changed_parts(&section, &listener) {
            Ok(Changed { pd, moved, files }) => {
                let gone = listener.files.values().filter(|f| !files.values().any(|k| k == *f));
                gone.for_each(|&file| self.writer.close(file));
                let old = std::mem::replace(&mut listener.section, section);
                if serves_otherwise(&old, &listener.section) {
                    listener.serving = self.serving(&listener.section);
                }
                let replaces = differs_for_workers(&old, &listener.section).then(|| listener.id());
                listener.pd = pd;
                listener.files = files;
                match replaces {
                    Some(_) => {
                        listener.ids.push(self.new_listener_id());
                        self.start_listener(listener, &moved, replaces, None);
                    }
                    None => {
                        self.listeners.insert(name, listener);
                        self.move_regions(&moved, pd);
                    }
                }
                Ok(())
            }
            Err(error) => {
                self.listeners.insert(name, listener);
                Err(error)
            }
        }
    }

    fn changed_parts(
        &mut self,
        section: &ListenerSection,
        old: &Listener,
    ) -> Result<Changed, ApiError> {
        self.may_add_listener(section)?;
        if serves_otherwise(&old.section, section) {
            self.check_pieces(section)?;
        }
        let (pd, moved) = self.domain_for(section)?;
        let files = self.open_queue_files(section, Some(old))?;
        Ok(Changed { pd, moved, files })
    }

    /// Registers regions again, with another domain.
    fn move_regions(&mut self, names: &[String], pd: PdId) {
        for name in names {
            let Some(region) = self.regions.get_mut(name) else { continue };
            region.pd = pd;
            let entry = region.entry();
            let stag = entry.stag;
            let sources = Sources::Wait;
            self.broadcast_all(
                Then::Nothing,
                &[&|ticket| Command::RemoveStag { stag, sources, ticket }, &|ticket| {
                    Command::AddStag { entry: entry.clone(), ticket }
                }],
            );
        }
    }

    pub(super) fn listener_by_id(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let mut all = self.listeners.values_mut().chain(&mut self.retired);
        all.find(|listener| listener.ids.contains(&id))
    }

    pub(super) fn interface_named(&self, name: &str) -> Option<InterfaceId> {
        let at = self.config.interfaces.iter().position(|interface| interface.name == name)?;
        u16::try_from(at).ok().map(InterfaceId)
    }

    pub(super) fn listener_info(&self, name: &str) -> Result<ListenerInfo, ApiError> {
        let listener = self
            .listeners
            .get(name)
            .ok_or_else(|| ApiError::not_found(format!("there is no listener `{name}`")))?;
        Ok(super::render::listener(listener, &self.config))
    }

    pub(super) fn listener_infos(&self) -> Vec<ListenerInfo> {
        self.listeners.keys().filter_map(|name| self.listener_info(name).ok()).collect()
    }
}

/// The advertisement of its regions fits into the private data.
fn check_advertisement(section: &ListenerSection) -> Result<(), ApiError> {
    if section.has_slots() {
        return match section.regions.len() {
            1 => Ok(()),
            _ => Err(ApiError::bad_request(format!(
                "listener `{}` must name one region: its streams have a piece of it each",
                section.name
            ))),
        };
    }
    let len = advert::encoded_len(section.regions.iter().map(String::as_str));
    let limit = usize::from(section.mpa.private_data_limit);
    if len > limit && !section.regions.is_empty() {
        return Err(ApiError::bad_request(format!(
            "listener `{}`: the advertisement of its {} regions takes {len} octets of private data, \
             {limit} are allowed",
            section.name,
            section.regions.len()
        )));
    }
    Ok(())
}

/// What streams of the listener have of it would not hold any more.
fn serves_otherwise(old: &ListenerSection, new: &ListenerSection) -> bool {
    let service = |s: &ListenerSection| s.ulp.rdmap().map(|r| (r.service, r.message_size));
    service(old) != service(new)
        || old.has_slots()
            && (&old.regions, old.limits.streams) != (&new.regions, new.limits.streams)
}

/// The workers must be told of the difference.
fn differs_for_workers(old: &ListenerSection, new: &ListenerSection) -> bool {
    let place = |s: &ListenerSection| (s.interface.clone(), s.address, s.transport, s.port);
    place(old) != place(new)
        || (old.mpa, &old.ulp) != (new.mpa, &new.ulp)
        || old.limits.pending != new.limits.pending
        || old.limits.startup_timeout != new.limits.startup_timeout
}

//! Listeners: their state at all workers, credits, limits and protection domains.
//!
//! *Protection domains.* A listener's streams may use all its regions, so its regions are in one domain. Listeners that
//! share a region share its domain. A region that no listener lists has its own domain. When a listener lists it, the
//! region moves to the listener's domain in the same step that starts the listener. A listener whose regions are in use
//! in two domains is refused.
//!
//! *Numbers.* A changed listener may get a new number at the workers, while streams still exist under its earlier
//! numbers. The first number identifies the listener.
//!
//! *Credits.* Each worker has a share of `limits.pending` as credits for handshakes. A credit returns to the worker
//! when the control thread has admitted the stream, or when a rejected stream has ended. The control thread admits a
//! stream within the listener's limits: streams in total and per peer ([`Ledger`]).

mod admission;
mod index;
mod listener;
mod sections;
mod slots;
mod timers;

use std::collections::HashMap;
use std::sync::Arc;

use api::{ApiError, EventKind, ListenerInfo, NamePage, Reply, Responder, unknown_name};
use config::{ListenerSection, RegionSection, unsaved_writes};
use dataplane::memory::Memory;
use dataplane::{Command, ListenerConfig, ListenerId, SourceRemoval, Ticket};
use ddp::{PdId, StagEntry, advert};

pub(super) use self::admission::{StreamSettings, listener_removed};
use self::index::ListenerIndex;
pub(super) use self::listener::{Listener, PreparedChange, open_queue_files};
use self::slots::Serving;
use self::timers::ServiceTimers;
use super::endpoints::{listener_config, peer_filter};
use super::env::{Context, Env, Origin};
use super::limits::Ledger;
use super::objects::Objects;
use super::pending::Continuation;

pub(super) struct Listeners {
    /// All listeners, including removed listeners whose streams have not all ended. The key is the first number of the
    /// listener.
    all: Objects<ListenerId, Listener>,
    /// The listeners that are not removed.
    index: ListenerIndex,
    /// First number of each listener, by each of its numbers at the workers.
    first_ids: HashMap<ListenerId, ListenerId>,
    timers: ServiceTimers,
    /// Next result of [`allocate_id`](Listeners::allocate_id).
    next: u32,
}

impl Listeners {
    pub(super) fn new() -> Listeners {
        Listeners {
            all: Objects::default(),
            index: ListenerIndex::default(),
            first_ids: HashMap::new(),
            timers: ServiceTimers::default(),
            next: 1,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.index.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the listeners that are not removed, ordered by name.
    fn current(&self) -> impl Iterator<Item = &Listener> {
        self.index.iter().filter_map(|(_, id)| self.all.get(&id))
    }

    fn by_name(&self, name: &str) -> Option<&Listener> {
        self.all.get(&self.index.get(name)?)
    }

    /// Returns the listeners that list the region, ordered by name.
    fn of_region(&self, region: &str) -> impl Iterator<Item = &Listener> {
        self.index.of_region(region).filter_map(|name| self.by_name(name))
    }

    pub(super) fn is_listed(&self, region: &str) -> bool {
        self.of_region(region).next().is_some()
    }

    /// Returns the names of the listeners that list the region.
    pub(super) fn listeners_of_region(&self, region: &str) -> Vec<String> {
        self.index.of_region(region).cloned().collect()
    }

    /// Returns the name of the listener that divides the region into slots, if any.
    pub(super) fn dividing_listener(&self, region: &str) -> Option<String> {
        // The first listener suffices, because no other listener lists a divided region.
        let listener = self.of_region(region).next().filter(|l| l.section.has_slots());
        listener.map(|listener| listener.section.name.clone())
    }

    /// Returns the protection domain of a listener that lists the region. `None` if no listener lists it.
    pub(super) fn pd_for_region(&self, region: &str) -> Option<PdId> {
        self.of_region(region).next().map(|listener| listener.pd)
    }

    /// Returns the name of a listener added by the API that lists the region. `None` if there is none.
    pub(super) fn api_listener_of_region(&self, region: &str) -> Option<&str> {
        let mut of_api = self.of_region(region).filter(|listener| listener.origin == Origin::Api);
        of_api.next().map(|listener| listener.section.name.as_str())
    }

    /// Refuses a file-backed region if a listener added by the API lists it and Writes of the listener's peers would
    /// not be saved to the file.
    pub(super) fn check_file(&self, region: &RegionSection) -> Result<(), ApiError> {
        let of_api = self.of_region(&region.name).filter(|l| l.origin == Origin::Api);
        self.check_stored(of_api, region)
    }

    /// Checks like [`check_file`](Self::check_file), for all listeners.
    pub(super) fn check_file_of_any(&self, region: &RegionSection) -> Result<(), ApiError> {
        self.check_stored(self.of_region(&region.name), region)
    }

    /// Refuses a file-backed region if Writes of the peers of one of these listeners would not be saved to the file.
    fn check_stored<'a>(
        &self,
        mut among: impl Iterator<Item = &'a Listener>,
        region: &RegionSection,
    ) -> Result<(), ApiError> {
        let refusal = among.find_map(|listener| {
            let why = unsaved_writes(&listener.section, region)?;
            Some(format!("region `{}`: listener `{}`: {why}", region.name, listener.section.name))
        });
        refusal.map_or(Ok(()), |refusal| Err(ApiError::conflict(refusal)))
    }

    /// Checks that a listener can be added. Protection domains and files are not checked here.
    pub(super) fn check_addition(
        &self,
        env: &Env,
        section: &ListenerSection,
    ) -> Result<(), ApiError> {
        let name = &section.name;
        if !env.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if self.index.contains(name) {
            return Err(ApiError::conflict(format!("there is already a listener `{name}`")));
        }
        check_interface_of(env, section)?;
        if let Some(other) = self.index.at_endpoint_of(section) {
            return Err(ApiError::conflict(format!(
                "listener `{other}` has port {} of interface `{}` already",
                section.port, section.interface
            )));
        }
        // If several listeners list a region, none of them divides it, so the first listener of each region suffices.
        let sharing = section.regions.iter().filter_map(|region| self.of_region(region).next());
        let mut sharing = sharing.filter(|other| shares_divided_region(section, &other.section));
        if let Some(other) = sharing.next() {
            return Err(ApiError::conflict(shared_region_error(name, &other.section.name)));
        }
        check_advertisement(section)
    }

    /// Returns true if a listener has this transport, interface, address and port. A listener without an address has
    /// all addresses of its interface. A removed listener counts until its streams have ended.
    pub(super) fn is_listening(
        &self,
        transport: config::Transport,
        interface: &str,
        local: std::net::SocketAddr,
    ) -> bool {
        self.all.values().map(|listener| &listener.section).any(|section| {
            section.transport == transport
                && section.interface == interface
                && section.port == local.port()
                && section.address.is_none_or(|address| address == local.ip())
        })
    }

    /// Creates a listener from a checked section and opens its files. `region`: length of the region that is divided
    /// into slots, bytes.
    pub(super) fn make(
        &mut self,
        env: &mut Env,
        section: ListenerSection,
        pd: PdId,
        region: u64,
        origin: Origin,
    ) -> Result<Listener, ApiError> {
        let files = open_queue_files(env, &section, None)?;
        let serving = Serving::new(&section, region);
        let id = self.allocate_id();
        Ok(Listener {
            ids: vec![id],
            at_workers: Arc::new(worker_config(env, &section, id)),
            section,
            pd,
            ledger: Ledger::default(),
            files,
            serving,
            accepted: 0,
            refused: 0,
            origin,
        })
    }

    /// Allocates the next listener number. Numbers are never reused.
    pub(super) fn allocate_id(&mut self) -> ListenerId {
        self.next += 1;
        ListenerId(self.next - 1)
    }

    /// Takes a listener out of the collection, so that it can be changed. `None` for an unknown name.
    pub(super) fn take(&mut self, name: &str) -> Option<Listener> {
        let listener = self.all.remove(&self.index.get(name)?)?;
        self.index.remove(&listener.section);
        self.timers.set(listener.first_id(), None);
        Some(listener)
    }

    /// Reinserts a listener after a change that the workers need not apply.
    pub(super) fn restore(&mut self, listener: Listener) {
        self.insert(listener);
    }

    fn insert(&mut self, listener: Listener) {
        let first = listener.first_id();
        self.first_ids.insert(listener.id(), first);
        self.index.insert(&listener.section, first);
        self.timers.set(first, listener.timeout());
        self.all.insert(first, listener);
    }

    /// Starts a changed listener with the configuration that [`Listener::change`] returned, under a new number.
    pub(super) fn restart(
        &mut self,
        env: &mut Env,
        mut listener: Listener,
        config: ListenerConfig,
        moved: Vec<StagEntry<Memory>>,
    ) {
        let (replaces, id) = (listener.id(), self.allocate_id());
        listener.ids.push(id);
        listener.at_workers = Arc::new(ListenerConfig { id, ..config });
        self.start(env, listener, moved, Some(replaces), None);
    }

    /// Sends the commands that start the listener. In the same step the workers first stop the listener `replaces`, if
    /// any, and move regions to the protection domain of the new listener.
    pub(super) fn start(
        &mut self,
        env: &mut Env,
        listener: Listener,
        moved: Vec<StagEntry<Memory>>,
        replaces: Option<ListenerId>,
        answer: Option<Responder>,
    ) {
        let name = listener.section.name.clone();
        let config = Arc::clone(&listener.at_workers);
        let mut steps: Vec<Box<dyn Fn(Ticket) -> Command>> = Vec::new();
        if let Some(listener) = replaces {
            steps.push(Box::new(move |ticket| Command::RemoveListener { listener, ticket }));
        }
        for entry in moved {
            let stag = entry.stag;
            let sources = SourceRemoval::Wait;
            steps.push(Box::new(move |ticket| Command::RemoveStag {
                stag,
                removal: sources,
                ticket,
            }));
            steps.push(Box::new(move |ticket| Command::AddStag { entry: entry.clone(), ticket }));
        }
        steps.push(Box::new(move |ticket| Command::AddListener {
            listener: Arc::clone(&config),
            ticket,
        }));
        let steps: Vec<&dyn Fn(Ticket) -> Command> = steps.iter().map(AsRef::as_ref).collect();
        self.insert(listener);
        env.broadcast_all(Continuation::ListenerAdded { name, answer }, &steps);
    }

    /// Sends the admitted peers of each listener whose lists have changed. Returns the names of these listeners; the
    /// workers answer with [`Continuation::PeersSet`].
    pub(super) fn send_peers(&mut self, env: &mut Env) -> Vec<String> {
        let mut sent = Vec::new();
        for (name, id) in self.index.iter() {
            let Some(listener) = self.all.get_mut(&id) else { continue };
            let peers = peer_filter(&env.context.config, &listener.section);
            if *listener.at_workers.peers == peers {
                continue;
            }
            let (id, peers) = (listener.id(), Arc::new(peers));
            Arc::make_mut(&mut listener.at_workers).peers = Arc::clone(&peers);
            env.broadcast(Continuation::PeersSet { name: name.clone() }, |ticket| {
                Command::SetPeers { listener: id, peers: Arc::clone(&peers), ticket }
            });
            sent.push(name.clone());
        }
        sent
    }

    /// Handles the workers' answers to a new or restarted listener. If a worker refused, the listener is removed.
    pub(super) fn on_added(
        &mut self,
        env: &mut Env,
        name: &str,
        result: Result<(), String>,
    ) -> Result<ListenerInfo, ApiError> {
        match result {
            Ok(()) => {
                env.log.push(EventKind::ListenerAdded { listener: name.to_owned() });
                self.info(&env.context, name)
            }
            Err(reason) => {
                env.warn(format!("listener {name} could not be added: {reason}"));
                self.retire(env, name, None);
                Err(ApiError::conflict(format!("listener `{name}`: {reason}")))
            }
        }
    }

    /// Stops listening. Existing streams continue.
    pub(super) fn remove(&mut self, env: &mut Env, name: &str, answer: Option<Responder>) {
        if self.index.contains(name) {
            self.retire(env, name, answer);
        } else if let Some(answer) = answer {
            answer.send(Err(self.unknown(name)));
        }
    }

    fn retire(&mut self, env: &mut Env, name: &str, answer: Option<Responder>) {
        let Some(listener) = self.by_name(name) else { return };
        let (id, section) = (listener.id(), listener.section.clone());
        self.index.remove(&section);
        let then = Continuation::ListenerRemoved { id, name: name.to_owned(), answer };
        env.broadcast(then, |ticket| Command::RemoveListener { listener: id, ticket });
    }

    pub(super) fn on_removed(
        &mut self,
        env: &mut Env,
        id: ListenerId,
        name: &str,
        answer: Option<Responder>,
    ) {
        env.log.push(EventKind::ListenerRemoved { listener: name.to_owned() });
        self.forget_retired(env, id);
        if let Some(answer) = answer {
            answer.send(Ok(Reply::EMPTY));
        }
    }

    /// Drops the listener and closes its files, if it was removed and has no streams.
    fn forget_retired(&mut self, env: &mut Env, id: ListenerId) {
        let Some(listener) = self.by_id(id).filter(|l| l.ledger.streams() == 0) else { return };
        let first = listener.first_id();
        if self.index.get(&listener.section.name) == Some(first) {
            return;
        }
        let Some(listener) = self.all.remove(&first) else { return };
        self.timers.set(first, None);
        for id in &listener.ids {
            self.first_ids.remove(id);
        }
        listener.files.values().for_each(|&file| env.writer.close(file));
    }

    fn by_id(&self, id: ListenerId) -> Option<&Listener> {
        self.all.get(self.first_ids.get(&id)?)
    }

    fn by_id_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.all.get_mut(self.first_ids.get(&id)?)
    }

    fn serving(&mut self, id: ListenerId) -> Option<&mut Serving> {
        self.by_id_mut(id)?.serving.as_mut()
    }

    /// Returns the refusal of a name that no listener has.
    fn unknown(&self, name: &str) -> ApiError {
        unknown_name("listener", name, self.index.iter().map(|(name, _)| name.as_str()))
    }

    pub(super) fn info(&self, facts: &Context, name: &str) -> Result<ListenerInfo, ApiError> {
        let listener = self.by_name(name);
        let listener = listener
            .ok_or_else(|| ApiError::not_found(format!("there is no listener `{name}`")))?;
        Ok(listener.info(&facts.config))
    }

    /// Describes a page of the listeners.
    pub(super) fn page(&self, facts: &Context, page: &NamePage) -> Vec<ListenerInfo> {
        let ids = self.index.after(page.after.as_deref()).take(page.limit);
        let listeners = ids.filter_map(|id| self.all.get(&id));
        listeners.map(|listener| listener.info(&facts.config)).collect()
    }

    pub(super) fn infos(&self, facts: &Context) -> Vec<ListenerInfo> {
        self.current().map(|listener| listener.info(&facts.config)).collect()
    }
}

/// Returns the workers' configuration of a listener under the running configuration.
fn worker_config(env: &Env, section: &ListenerSection, id: ListenerId) -> ListenerConfig {
    let facts = &env.context;
    let interface = facts.interface_named(&section.interface);
    let workers = env.workers() as u32;
    listener_config(&facts.config, section, id, interface, workers)
}

/// Checks that the interface exists and has the section's address.
pub(super) fn check_interface_of(env: &Env, section: &ListenerSection) -> Result<(), ApiError> {
    let name = &section.interface;
    let interface = env
        .context
        .interface_named(name)
        .ok_or_else(|| ApiError::bad_request(format!("there is no interface `{name}`")))?;
    let addresses = &env.context.config.interfaces[usize::from(interface.0)].addresses;
    match section.address {
        Some(address) if !addresses.iter().any(|net| net.addr() == address) => {
            Err(ApiError::bad_request(format!("interface `{name}` has no address {address}")))
        }
        _ => Ok(()),
    }
}

/// Returns true if both listeners use the same interface, transport and port, and their addresses overlap.
fn same_endpoint(a: &ListenerSection, b: &ListenerSection) -> bool {
    a.interface == b.interface
        && a.port == b.port
        && a.transport == b.transport
        && (a.address.is_none() || b.address.is_none() || a.address == b.address)
}

/// Returns true if both listeners list a region that one of them divides into slots.
fn shares_divided_region(a: &ListenerSection, b: &ListenerSection) -> bool {
    (a.has_slots() || b.has_slots()) && a.regions.iter().any(|name| b.regions.contains(name))
}

fn shared_region_error(name: &str, other: &str) -> String {
    format!(
        "listeners `{name}` and `{other}` name the same region: the slots of a service's streams need one of their \
         own"
    )
}

/// Returns the reason why two listeners cannot exist at the same time, if any.
pub(super) fn conflict(section: &ListenerSection, other: &ListenerSection) -> Option<String> {
    let (name, port) = (&section.name, section.port);
    if same_endpoint(section, other) {
        let other = &other.name;
        return Some(format!(
            "listener `{name}` cannot have port {port}: listener `{other}` has it"
        ));
    }
    shares_divided_region(section, other).then(|| shared_region_error(name, &other.name))
}

/// Checks that the advertisement of the listener's regions fits into the private data. A listener that divides a region
/// into slots must list exactly one region instead.
pub(super) fn check_advertisement(section: &ListenerSection) -> Result<(), ApiError> {
    if section.has_slots() {
        return match section.regions.len() {
            1 => Ok(()),
            _ => Err(ApiError::bad_request(format!(
                "listener `{}` must name one region: its streams have a slot of it each",
                section.name
            ))),
        };
    }
    let len = advert::encoded_len(section.regions.iter().map(String::as_str));
    let limit = usize::from(section.mpa.private_data_limit);
    if len > limit && !section.regions.is_empty() {
        return Err(ApiError::bad_request(format!(
            "listener `{}`: the advertisement of its {} regions takes {len} bytes of private data, \
             {limit} are allowed",
            section.name,
            section.regions.len()
        )));
    }
    Ok(())
}

/// Accessors for tests.
#[cfg(test)]
impl Listeners {
    pub(super) fn is_empty(&self) -> bool {
        self.index.len() == 0
    }

    pub(super) fn contains_key(&self, name: &str) -> bool {
        self.index.contains(name)
    }

    pub(super) fn retired(&self) -> usize {
        self.all.len() - self.index.len()
    }
}

#[cfg(test)]
impl std::ops::Index<&str> for Listeners {
    type Output = Listener;

    fn index(&self, name: &str) -> &Listener {
        self.by_name(name).expect("the listener exists")
    }
}

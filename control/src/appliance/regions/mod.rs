//! Regions: registration, exclusive use by one stream, deregistration.
//!
//! ```text
//!  (loading) --memory created--> Adding --all workers have it--> Active --RemoveStag sent--> Removing
//!      --all workers have released it--> Closing --file written--> freed
//! ```
//!
//! A region without a file leaves Closing at once. If a worker refuses the registration, the region changes from Adding
//! to Removing.
//!
//! While its memory is being created, a region is listed with the progress. A removal during this time cancels the
//! preparation.
//!
//! Each region has one random STag. Slots of a region and memory of jobs have separate STags, each for one stream
//! (`stream_memory`). A region that peers may write and that is not `shared` is *exclusive*: its STag is always bound
//! to the stream to which it was advertised, or to none. Any other stream gets error 1/02, even if it has the STag (RFC
//! 5041 §8.2). Bytes are placed only if all checks pass on the worker. Memory is freed when all workers have released
//! it.

mod binding;
mod domains;
mod lists;
mod region;
mod resources;
mod sections;
mod stream_memory;

use std::collections::{HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{ApiError, EventKind, Reply, Responder, unknown_name};
use config::{
    Backing, Limits, ListenerSection, RegionSection, access_word, free_hugepage_bytes, region_maps,
};
use dataplane::memory::ring::{Completion, Kind, Producer};
use dataplane::{Command, SourceRemoval};
use ddp::RegionMemory as _;
use ddp::{Access, PdId, Stag, StreamId, advert};

use self::domains::Domains;
pub(super) use self::region::preparing_info;
use self::region::{Region, RegionState};
use self::resources::Resources;
pub(super) use self::sections::DeclaredRegion;
pub(super) use self::stream_memory::Sink;
use super::env::{Env, Origin};
use super::loader::{LARGE_REQUEST, LoadTask, LoadedMemory};
use super::notes::Cause;
use super::objects::Objects;
use super::pending::{Continuation, Loading};
use crate::files::FileId;
use crate::shm;

/// A region added by the API whose memory is being created.
struct Preparing {
    section: RegionSection,
    /// The client that added the region and waits for the answer.
    answer: Responder,
    /// The client that removes the region before it is ready, if any.
    removal: Option<Responder>,
}

/// All regions, and the STags registered for them.
pub(super) struct Regions {
    regions: Objects<String, Region>,
    /// Names of the regions, by STag.
    by_stag: HashMap<Stag, String>,
    /// Length of all regions together, bytes.
    memory: u64,
    /// Shared-memory objects and files of all regions, including regions in preparation.
    resources: Resources,
    domains: Domains,
    /// Regions added by the API whose memory is being created, by the number of the memory request.
    loading: HashMap<u64, Preparing>,
    /// Names of the regions in `loading`, with the number of the memory request.
    loading_names: HashMap<String, u64>,
    /// Files of removed regions that are still being written, with the region's name and the waiting client.
    closing: HashMap<FileId, (String, Option<Responder>)>,
}

impl Regions {
    /// Creates an empty set. Protection domains are planned for the regions that the configured listeners list.
    pub(super) fn new(listeners: &[ListenerSection]) -> Regions {
        Regions {
            regions: Objects::default(),
            by_stag: HashMap::new(),
            memory: 0,
            resources: Resources::default(),
            domains: Domains::new(listeners),
            loading: HashMap::new(),
            loading_names: HashMap::new(),
            closing: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns the length of all regions together, bytes.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    /// Returns the length of a region, bytes; 0 if it does not exist.
    pub(super) fn len_of(&self, name: &str) -> u64 {
        self.regions.get(name).map_or(0, |region| region.len)
    }

    /// Returns the number of streams that use the region.
    pub(super) fn user_count(&self, name: &str) -> usize {
        self.regions.get(name).map_or(0, |region| region.users.len())
    }

    pub(super) fn is_live(&self, name: &str) -> bool {
        self.regions.get(name).is_some_and(Region::is_live)
    }

    fn live(&self, name: &str) -> Result<&Region, ApiError> {
        let region = self.regions.get(name).filter(|region| region.is_live());
        region.ok_or_else(|| self.unknown(name))
    }

    /// Returns the refusal of a name that no live region has.
    fn unknown(&self, name: &str) -> ApiError {
        let live = self.regions.iter().filter(|(_, region)| region.is_live());
        unknown_name("region", name, live.map(|(name, _)| name.as_str()))
    }

    /// Starts the addition of a region for a client: the loader creates its memory.
    pub(super) fn request(&mut self, env: &mut Env, section: RegionSection, answer: Responder) {
        let admitted = match &section.backing {
            Backing::File { path, .. } => env.check_path(path),
            _ => Ok(()),
        };
        match admitted.and_then(|()| self.check_addition(env, &section)) {
            Ok(()) => {
                let number = env.load(LoadTask::Region(section.clone()), Loading::Region);
                self.resources.add(&section);
                self.loading_names.insert(section.name.clone(), number);
                self.loading.insert(number, Preparing { section, answer, removal: None });
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Checks that a region can be added. The creation of its memory may still fail.
    pub(super) fn check_addition(
        &self,
        env: &Env,
        section: &RegionSection,
    ) -> Result<(), ApiError> {
        self.check_addition_with(env, section, &env.context.config.limits)
    }

    /// Checks like [`check_addition`](Self::check_addition), but with the number and the total length of regions that
    /// `limits` allows. The memory ceiling is always the current ceiling.
    pub(super) fn check_addition_with(
        &self,
        env: &Env,
        section: &RegionSection,
        limits: &Limits,
    ) -> Result<(), ApiError> {
        let name = &section.name;
        if !env.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if !advert::is_name(name) {
            return Err(ApiError::bad_request(format!(
                "`{name}` is no region name: 1 to 64 of A-Z a-z 0-9 . _ -"
            )));
        }
        if self.loading_names.contains_key(name) {
            return Err(already_exists(name));
        }
        self.check_unused(section)?;
        if self.regions.len() as u64 >= u64::from(limits.regions) {
            return Err(ApiError::unavailable(format!(
                "there are {} regions, as many as limits.regions allows",
                self.regions.len()
            )));
        }
        self.check_memory(limits, section.size.unwrap_or(0))?;
        let maps = env.budget.maps().check(section.size.unwrap_or(0), region_maps(section));
        maps.map_err(|error| ApiError::unavailable(format!("region `{name}`: {error}")))?;
        let counted = Regions::charged_len(section);
        if counted == 0 {
            return Ok(());
        }
        env.budget
            .check(&format!("region `{name}`"), counted, None)
            .map_err(|over| ApiError::unavailable(over.to_string()))
    }

    /// Checks that no region has the section's name, shared-memory object or file.
    fn check_unused(&self, section: &RegionSection) -> Result<(), ApiError> {
        if self.regions.contains_key(&section.name) {
            return Err(already_exists(&section.name));
        }
        // RFC 5042 §6.3.6: the same bytes must not have a second STag.
        self.resources
            .conflict(section)
            .map_or(Ok(()), |sentence| Err(ApiError::conflict(sentence)))
    }

    /// Returns the bytes of a new region that count against the memory ceiling.
    pub(super) fn charged_len(section: &RegionSection) -> u64 {
        match section.backing {
            Backing::Hugepages if section.size.unwrap_or(0) <= free_hugepage_bytes() => 0,
            _ => section.size.unwrap_or(0),
        }
    }

    fn check_memory(&self, limits: &Limits, requested: u64) -> Result<(), ApiError> {
        let used = self.memory;
        let limit = limits.region_memory;
        if used.saturating_add(requested) > limit {
            return Err(ApiError::unavailable(format!(
                "{requested} bytes more would exceed limits.region_memory: {used} of {limit} are in use"
            )));
        }
        Ok(())
    }

    /// Registers a region, whose memory exists, with the workers. `listener`: protection domain of the listener that
    /// lists the region, if any. `answer`, if given, is always sent, also after an error.
    pub(super) fn register(
        &mut self,
        env: &mut Env,
        section: RegionSection,
        loaded: LoadedMemory,
        origin: Origin,
        listener: Option<PdId>,
        answer: Option<Responder>,
    ) -> Result<(), ApiError> {
        let name = section.name.clone();
        match self.make(env, section, loaded, origin, listener) {
            Ok(region) => {
                let entry = region.entry();
                self.by_stag.insert(region.stag, name.clone());
                self.resources.add(&region.section);
                self.memory += region.len;
                self.regions.insert(name.clone(), region);
                env.broadcast(Continuation::RegionAdded { name, answer }, |ticket| {
                    Command::AddStag { entry: entry.clone(), ticket }
                });
                Ok(())
            }
            Err(error) => {
                if let Some(answer) = answer {
                    answer.send(Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    fn make(
        &mut self,
        env: &mut Env,
        section: RegionSection,
        loaded: LoadedMemory,
        origin: Origin,
        listener: Option<PdId>,
    ) -> Result<Region, ApiError> {
        // Another addition may have taken the name or the file while the memory was created.
        self.check_unused(&section)?;
        self.check_memory(&env.context.config.limits, loaded.len)?;
        if section.base_to.checked_add(loaded.len).is_none() {
            return Err(ApiError::bad_request(format!(
                "region `{}`: base_to and {} bytes do not fit into 64 bits",
                section.name, loaded.len
            )));
        }
        let stag = env.stags.allocate().map_err(|e| ApiError::internal(e.to_string()))?;
        for statement in loaded.memory.statements() {
            let note = format!("region {}: {statement}", section.name);
            tracing::warn!("{note}");
            env.notes.add(Cause::Region(section.name.clone()), note);
        }
        let pd = self.domains.for_region(&section.name, listener);
        let file = match (&section.backing, loaded.file) {
            (Backing::File { path, fsync }, Some(file)) => {
                let memory = loaded.memory.clone();
                Some(env.writer.open_region(path.clone(), file, memory, *fsync))
            }
            _ => None,
        };
        Ok(Region {
            access: Region::max_access(&section),
            slots: 0,
            memory: loaded.memory,
            len: loaded.len,
            stag,
            pd,
            state: RegionState::Adding,
            bound: None,
            held_since: None,
            users: HashSet::new(),
            file,
            written: false,
            placed: 0,
            messages: 0,
            origin,
            section,
        })
    }

    /// Handles the workers' answers to a new region. If a worker refused, the region is removed.
    pub(super) fn on_added(
        &mut self,
        env: &mut Env,
        name: &str,
        result: Result<(), String>,
    ) -> Result<(), String> {
        let outcome = match result {
            Ok(()) => self.activate(env, name),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = &outcome {
            env.warn(format!("region {name} could not be registered: {reason}"));
            self.deregister(env, name, SourceRemoval::Abort, None);
        }
        outcome
    }

    fn activate(&mut self, env: &mut Env, name: &str) -> Result<(), String> {
        let Some(region) = self.regions.get_mut(name) else { return Ok(()) };
        region.state = RegionState::Active;
        if let Some(object) = region.object_name() {
            let ring = Producer::create(object, shm::RING_CAPACITY, region.len)
                .map_err(|error| error.to_string())?;
            let attached = shm::AttachReply {
                region_len: region.len,
                base_to: region.section.base_to,
                stag: region.stag.0,
                remote_write: region.section.remote_write,
                remote_read: region.section.remote_read,
            };
            let memory = region.memory.clone();
            env.shm.export(object, shm::Object { memory, ring, reply: attached });
        }
        env.log.push(EventKind::RegionAdded { region: name.to_owned() });
        Ok(())
    }

    /// Removes and returns a region whose memory request has finished, with the client that added it. If its removal
    /// was requested before that, answers both clients and returns `None`.
    pub(super) fn take_loading(&mut self, number: u64) -> Option<(RegionSection, Responder)> {
        let Preparing { section, answer, removal } = self.loading.remove(&number)?;
        self.loading_names.remove(&section.name);
        self.resources.remove(&section);
        let Some(removal) = removal else { return Some((section, answer)) };
        let name = &section.name;
        answer.send(Err(ApiError::conflict(format!(
            "region `{name}` was removed while its memory was prepared"
        ))));
        removal.send(Ok(Reply::EMPTY));
        None
    }

    /// Cancels the preparation of a region. The removal is answered when the preparation has ended.
    fn cancel(&mut self, env: &Env, name: &str, answer: Responder) {
        let number = self.loading_names.get(name).copied();
        match number.and_then(|number| Some((number, self.loading.get_mut(&number)?))) {
            None => answer.send(Err(ApiError::not_found(format!("there is no region `{name}`")))),
            Some((_, Preparing { removal: Some(_), .. })) => answer
                .send(Err(ApiError::conflict(format!("region `{name}` is being removed already")))),
            Some((number, preparing)) => {
                preparing.removal = Some(answer);
                if let Some(watch) = env.watch(number) {
                    watch.cancel();
                }
            }
        }
    }

    /// Returns bytes of a region. Peers may be writing them at the same time.
    pub(super) fn read(&self, name: &str, offset: u64, length: u64) -> Result<Vec<u8>, ApiError> {
        let region = self.live(name)?;
        if offset.checked_add(length).is_none_or(|end| end > region.len) {
            return Err(ApiError::bad_request(format!(
                "region `{name}` has {} bytes: {length} from {offset} on are not all in it",
                region.len
            )));
        }
        let mut bytes = vec![0; length as usize];
        region.memory.read(offset, &mut bytes);
        Ok(bytes)
    }

    /// Removes a region. With `force` its streams are aborted; otherwise a region in use is not removed.
    pub(super) fn remove(&mut self, env: &mut Env, name: &str, force: bool, answer: Responder) {
        let refused = match self.regions.get(name) {
            None => return self.cancel(env, name, answer),
            Some(region) if !region.is_live() => {
                Some(ApiError::conflict(format!("region `{name}` is being removed already")))
            }
            Some(region) if !force && !region.users.is_empty() => {
                Some(ApiError::conflict(format!(
                    "region `{name}` is used by {} streams; close them, or use force",
                    region.users.len()
                )))
            }
            Some(_) => None,
        };
        match refused {
            Some(error) => answer.send(Err(error)),
            None => self.deregister(
                env,
                name,
                if force { SourceRemoval::Abort } else { SourceRemoval::Wait },
                Some(answer),
            ),
        }
    }

    /// Changes the access of peers. The new access must be part of the registered access, because exclusive use and
    /// copying of sent data depend on the registered access (RFC 5041 §8.3.1 (5)). The client is answered when every
    /// worker has applied the access.
    pub(super) fn set_access(
        &mut self,
        env: &mut Env,
        name: &str,
        access: Access,
        divided_by: Option<String>,
        answer: Responder,
    ) {
        match self.apply_access(name, access, divided_by) {
            Ok(stag) => {
                let then = Continuation::AccessSet { name: name.to_owned(), answer };
                env.broadcast(then, |ticket| Command::SetAccess { stag, access, ticket });
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    fn apply_access(
        &mut self,
        name: &str,
        access: Access,
        divided_by: Option<String>,
    ) -> Result<Stag, ApiError> {
        self.live(name)?;
        let region = self.regions.get_mut(name);
        let region = region.ok_or_else(|| ApiError::internal("the region is gone"))?;
        let max_access = Region::max_access(&region.section);
        if !max_access.contains(access) {
            return Err(ApiError::conflict(format!(
                "region `{name}` was registered with access `{}`, and `{}` is more: remove it and add it anew",
                access_word(max_access),
                access_word(access)
            )));
        }
        if divided_by.is_some() || region.slots > 0 {
            let listener_text =
                divided_by.map_or_else(String::new, |name| format!(" of listener `{name}`"));
            return Err(ApiError::conflict(format!(
                "region `{name}` is divided into slots for the streams{listener_text}: remove the region instead"
            )));
        }
        // Workers execute commands in order, so new advertisements and STag entries may use the access from now on.
        region.access = access;
        Ok(region.stag)
    }

    /// Returns the result for the client: success if every worker has applied the access. Logs the change.
    pub(super) fn on_access_set(
        &self,
        env: &mut Env,
        name: &str,
        result: Result<(), String>,
    ) -> Result<(), ApiError> {
        result.map_err(ApiError::internal)?;
        if let Some(region) = self.regions.get(name) {
            let (region, access) = (name.to_owned(), access_word(region.access).to_owned());
            env.log.push(EventKind::RegionAccess { region, access });
        }
        Ok(())
    }

    /// Starts to remove the region from all workers, and aborts its streams.
    pub(super) fn deregister(
        &mut self,
        env: &mut Env,
        name: &str,
        sources: SourceRemoval,
        answer: Option<Responder>,
    ) {
        let Some(region) = self.regions.get_mut(name) else { return };
        region.state = RegionState::Removing;
        let stag = region.stag;
        let users: Vec<StreamId> = region.users.iter().copied().collect();
        for stream in users {
            env.send_command(stream.worker(), Command::Close { stream, abort: true });
        }
        let then = Continuation::RegionRemoved { name: name.to_owned(), answer };
        env.broadcast(then, |ticket| Command::RemoveStag { stag, removal: sources, ticket });
    }

    /// Continues a removal once no worker places data in the region. Workers without the region (failed registration)
    /// have also answered.
    pub(super) fn on_removed(&mut self, env: &mut Env, name: &str, answer: Option<Responder>) {
        let Some(region) = self.regions.get_mut(name) else { return };
        region.state = RegionState::Closing;
        let object = region.object_name().map(str::to_owned);
        let stag = region.stag;
        self.by_stag.remove(&stag);
        env.stags.release(stag);
        if let Some(object) = object {
            env.shm.publish(&object, &completion(Kind::Removed, stag, StreamId(0), 0, 0, 0));
            env.shm.withdraw(&object);
        }
        env.notes.clear(&Cause::Region(name.to_owned()));
        env.log.push(EventKind::RegionRemoved { region: name.to_owned() });
        match self.regions.get(name).and_then(|region| region.file) {
            Some(file) => {
                self.closing.insert(file, (name.to_owned(), answer));
                env.writer.close(file);
            }
            None => self.forget(env, name, Ok(()), answer),
        }
    }

    /// Handles the closing of a file that the writer has written: warns of an error. If the file belongs to a removed
    /// region, completes the removal. Other files belong to queues of listeners.
    pub(super) fn on_file_closed(
        &mut self,
        env: &mut Env,
        file: FileId,
        result: Result<(), String>,
    ) {
        if let Err(reason) = &result {
            env.warn(reason.clone());
        }
        if let Some((name, answer)) = self.closing.remove(&file) {
            self.forget(env, &name, result, answer);
        }
    }

    /// Drops a region that no worker uses. A large region's removal is answered once its memory is freed, so that
    /// another region of this size can be added next.
    fn forget(
        &mut self,
        env: &mut Env,
        name: &str,
        result: Result<(), String>,
        answer: Option<Responder>,
    ) {
        let region = self.regions.remove(name);
        if let Some(region) = &region {
            self.resources.remove(&region.section);
            self.memory -= region.len;
        }
        let Some(answer) = answer else { return };
        match region.filter(|region| region.len >= LARGE_REQUEST) {
            Some(region) => {
                env.load(LoadTask::Free(region.memory), Loading::Freed { result, answer });
            }
            None => answer.send(result.map(|()| Reply::EMPTY).map_err(ApiError::internal)),
        }
    }
}

fn already_exists(name: &str) -> ApiError {
    ApiError::conflict(format!("there is already a region `{name}`"))
}

fn completion(
    kind: Kind,
    stag: Stag,
    stream: StreamId,
    offset: u64,
    len: u64,
    rsvd_ulp: u8,
) -> Completion {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    Completion { kind, rsvd_ulp, stag: stag.0, offset, len, stream: stream.0, unix_nanos }
}

/// Accessors for tests.
#[cfg(test)]
impl Regions {
    pub(super) fn contains_key(&self, name: &str) -> bool {
        self.regions.contains_key(name)
    }

    pub(super) fn name_of(&self, stag: Stag) -> Option<&str> {
        self.by_stag.get(&stag).map(String::as_str)
    }
}

#[cfg(test)]
impl std::ops::Index<&str> for Regions {
    type Output = Region;

    fn index(&self, name: &str) -> &Region {
        self.regions.get(name).expect("the region exists")
    }
}

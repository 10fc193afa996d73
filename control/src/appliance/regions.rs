//! Regions: registering, binding to one stream, deregistering.
//!
//! ```text
//!             memory made          all workers have it        RemoveStag sent      all workers gone
//!  (loading) ------------> Adding -----------------> Active ----------------> Removing --------------> freed
//!                                                                            (file regions: Closing, until
//!                                                                             the file is written)
//! ```
//!
//! One random STag per region. A region that peers may write and that is not `shared` is *exclusive*: its
//! STag is always bound, to the stream that was told of it or to nobody, so that a stream that was not
//! told gets error 1/02 even if it knows the number (RFC 5041 §8.2). Octets are placed only while
//! every check passes on the worker; memory is freed when all of them have let go.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use dataplane::memory::Memory;
use dataplane::memory::ring::{Completion, Kind, Producer};
use dataplane::{Command, Sources};
use ddp::RegionMemory as _;
use ddp::{Access, PdId, Stag, StagEntry, StreamId, TaggedOffset};

use super::core::{Core, Loading, NOBODY, Then};
use super::loader::{Loaded, Wanted};
use crate::advert::{self, Advertised};
use crate::api::{Answer, ApiError, EventKind, RegionInfo, Reply};
use crate::config::{Backing, RegionSection};
use crate::files::FileId;
use crate::shm;

/// A region that workers know.
pub(super) struct Region {
    pub section: RegionSection,
    pub memory: Memory,
    pub len: u64,
    pub stag: Stag,
    pub pd: PdId,
    pub state: RegionState,
    /// The stream that an exclusive region serves.
    pub bound: Option<StreamId>,
    /// Streams that were told of it.
    pub users: HashSet<StreamId>,
    pub file: Option<FileId>,
    /// A stream may have written to it since it was made or cleared.
    pub written: bool,
    pub placed: u64,
    pub messages: u64,
    pub configured: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RegionState {
    Adding,
    Active,
    Removing,
    Closing,
}

impl Region {
    /// Serves one stream at a time.
    pub(super) fn is_exclusive(&self) -> bool {
        self.section.remote_write && !self.section.shared
    }

    /// May be given to one more stream.
    pub(super) fn is_available(&self) -> bool {
        self.is_live() && !(self.is_exclusive() && self.bound.is_some())
    }

    /// Workers know it or are about to, and it is not going.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, RegionState::Adding | RegionState::Active)
    }

    pub(super) fn advertised(&self) -> Advertised {
        Advertised {
            name: self.section.name.clone(),
            stag: self.stag.0,
            base_to: self.section.base_to,
            len: self.len,
            remote_write: self.section.remote_write,
            remote_read: self.section.remote_read,
            remote_atomic: self.section.remote_atomic,
        }
    }

    pub(super) fn entry(&self) -> StagEntry<Memory> {
        let mut access = Access::NONE;
        if self.section.remote_write {
            access |= Access::REMOTE_WRITE;
        }
        if self.section.remote_read {
            access |= Access::REMOTE_READ;
        }
        if self.section.remote_atomic {
            access |= Access::ATOMIC;
        }
        let stream = self.is_exclusive().then(|| self.bound.unwrap_or(NOBODY));
        StagEntry {
            stag: self.stag,
            pd: self.pd,
            stream,
            base_to: TaggedOffset(self.section.base_to),
            len: self.len,
            access,
            memory: self.memory.clone(),
            memory_offset: 0,
        }
    }

    /// Name of the shared-memory object, if it is one.
    fn object(&self) -> Option<&str> {
        match &self.section.backing {
            Backing::SharedMemory { object } => Some(object),
            _ => None,
        }
    }
}

impl Core {
    /// An API client wants a region: its memory is made first, elsewhere.
    pub(super) fn ask_region(&mut self, section: RegionSection, answer: Answer) {
        match self.may_add_region(&section) {
            Ok(()) => {
                let loading = Loading::Region { section: section.clone(), answer };
                self.load(Wanted::Region(section), loading);
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Whether a region of this name and size can be added, but for the memory itself.
    pub(super) fn may_add_region(&self, section: &RegionSection) -> Result<(), ApiError> {
        let name = &section.name;
        if !self.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if !advert::is_name(name) {
            return Err(ApiError::bad_request(format!(
                "`{name}` is no region name: 1 to 64 of A-Z a-z 0-9 . _ -"
            )));
        }
        if self.regions.contains_key(name) || self.is_loading(name) {
            return Err(ApiError::conflict(format!("there is already a region `{name}`")));
        }
        // RFC 5042 §6.3.6: no second STag over the same octets.
        let known = self.regions.values().map(|region| &region.section).chain(self.being_loaded());
        if let Some((kind, thing, other)) = known.into_iter().find_map(|r| in_common(section, r)) {
            return Err(ApiError::conflict(format!(
                "{kind} `{thing}` belongs to region `{other}`"
            )));
        }
        if self.regions.len() as u64 >= u64::from(self.config.limits.regions) {
            return Err(ApiError::unavailable(format!(
                "there are {} regions, as many as limits.regions allows",
                self.regions.len()
            )));
        }
        let size = section.size.unwrap_or(0);
        self.check_region_memory(size)
    }

    fn check_region_memory(&self, more: u64) -> Result<(), ApiError> {
        let used: u64 = self.regions.values().map(|region| region.len).sum();
        let limit = self.config.limits.region_memory;
        if used.saturating_add(more) > limit {
            return Err(ApiError::unavailable(format!(
                "{more} octets more would exceed limits.region_memory: {used} of {limit} are in use"
            )));
        }
        Ok(())
    }

    /// Gives a region whose memory has been made to the workers. The answer, if there is one, is sent
    /// in every case.
    pub(super) fn register_region(
        &mut self,
        section: RegionSection,
        loaded: Loaded,
        configured: bool,
        answer: Option<Answer>,
    ) -> Result<(), ApiError> {
        let name = section.name.clone();
        match self.make_region(section, loaded, configured) {
            Ok(region) => {
                let entry = region.entry();
                self.by_stag.insert(region.stag, name.clone());
                self.regions.insert(name.clone(), region);
                self.broadcast(Then::RegionAdded { name, answer }, |ticket| Command::AddStag {
                    entry: entry.clone(),
                    ticket,
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

    fn make_region(
        &mut self,
        section: RegionSection,
        loaded: Loaded,
        configured: bool,
    ) -> Result<Region, ApiError> {
        self.check_region_memory(loaded.len)?;
        if section.base_to.checked_add(loaded.len).is_none() {
            return Err(ApiError::bad_request(format!(
                "region `{}`: base_to and {} octets do not fit into 64 bits",
                section.name, loaded.len
            )));
        }
        for statement in loaded.memory.statements() {
            let note = format!("region {}: {statement}", section.name);
            tracing::warn!("{note}");
            self.notes.push(note);
        }
        let stag = self.stags.allocate().map_err(|e| ApiError::internal(e.to_string()))?;
        let pd = self.pd_of_region(&section.name);
        let file = match (&section.backing, loaded.file) {
            (Backing::File { path, fsync }, Some(file)) => {
                let memory = loaded.memory.clone();
                Some(self.writer.open_region(path.clone(), file, memory, *fsync))
            }
            _ => None,
        };
        Ok(Region {
            memory: loaded.memory,
            len: loaded.len,
            stag,
            pd,
            state: RegionState::Adding,
            bound: None,
            users: HashSet::new(),
            file,
            written: false,
            placed: 0,
            messages: 0,
            configured,
            section,
        })
    }

    pub(super) fn on_region_added(
        &mut self,
        name: &str,
        result: Result<(), String>,
        answer: Option<Answer>,
    ) {
        let outcome = match result {
            Ok(()) => self.activate_region(name),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = &outcome {
            self.warn(format!("region {name} could not be registered: {reason}"));
            self.deregister(name, Sources::Abort, None);
        }
        if let Some(answer) = answer {
            answer.send(match outcome {
                Ok(()) => self.region_info(name).map(Reply::Region),
                Err(reason) => Err(ApiError::internal(reason)),
            });
        }
    }

    fn activate_region(&mut self, name: &str) -> Result<(), String> {
        let Some(region) = self.regions.get_mut(name) else { return Ok(()) };
        region.state = RegionState::Active;
        if let Some(object) = region.object() {
            let ring = Producer::create(object, shm::RING_CAPACITY, region.len)
                .map_err(|error| error.to_string())?;
            let attached = shm::Attached {
                region_len: region.len,
                base_to: region.section.base_to,
                stag: region.stag.0,
                remote_write: region.section.remote_write,
                remote_read: region.section.remote_read,
            };
            let memory = region.memory.clone();
            self.shm.export(object, shm::Object { memory, ring, attached });
        }
        self.log.push(EventKind::RegionAdded { region: name.to_owned() });
        Ok(())
    }

    /// Octets of a region as they are now; peers may be writing them.
    pub(super) fn read_region(
        &self,
        name: &str,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, ApiError> {
        let region = self.regions.get(name).filter(|region| region.is_live());
        let region =
            region.ok_or_else(|| ApiError::not_found(format!("there is no region `{name}`")))?;
        if offset.checked_add(length).is_none_or(|end| end > region.len) {
            return Err(ApiError::bad_request(format!(
                "region `{name}` has {} octets: {length} from {offset} on are not all in it",
                region.len
            )));
        }
        let mut octets = vec![0; length as usize];
        region.memory.read(offset, &mut octets);
        Ok(octets)
    }

    /// Removes a region. Its use is a conflict, unless `force`: then its streams are aborted.
    pub(super) fn remove_region(&mut self, name: &str, force: bool, answer: Answer) {
        let refused = match self.regions.get(name) {
            None => Some(ApiError::not_found(format!("there is no region `{name}`"))),
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
                name,
                if force { Sources::Abort } else { Sources::Wait },
                Some(answer),
            ),
        }
    }

    /// Takes the region from all workers; its streams are aborted.
    pub(super) fn deregister(&mut self, name: &str, sources: Sources, answer: Option<Answer>) {
        let Some(region) = self.regions.get_mut(name) else { return };
        region.state = RegionState::Removing;
        let stag = region.stag;
        let users: Vec<StreamId> = region.users.iter().copied().collect();
        for stream in users {
            self.tell(stream.worker(), Command::Close { stream, abort: true });
        }
        let then = Then::RegionRemoved { name: name.to_owned(), answer };
        self.broadcast(then, |ticket| Command::RemoveStag { stag, sources, ticket });
    }

    /// No worker places anything in it any more. A worker that did not know it (a failed registration)
    /// has let go of it as well.
    pub(super) fn on_region_removed(&mut self, name: &str, answer: Option<Answer>) {
        let Some(region) = self.regions.get_mut(name) else { return };
        region.state = RegionState::Closing;
        let object = region.object().map(str::to_owned);
        let stag = region.stag;
        self.by_stag.remove(&stag);
        self.stags.release(stag);
        if let Some(object) = object {
            self.shm.publish(&object, &completion(Kind::Removed, stag, StreamId(0), 0, 0, 0));
            self.shm.withdraw(&object);
        }
        self.log.push(EventKind::RegionRemoved { region: name.to_owned() });
        match self.regions.get(name).and_then(|region| region.file) {
            Some(file) => {
                self.closing.insert(file, (name.to_owned(), answer));
                self.writer.close(file);
            }
            None => {
                self.regions.remove(name);
                if let Some(answer) = answer {
                    answer.send(Ok(Reply::DONE));
                }
            }
        }
    }

    /// A file has been written to its end: of a region that goes, or of a listener that went.
    pub(super) fn on_file_closed(&mut self, file: FileId, result: Result<(), String>) {
        if let Err(reason) = &result {
            self.warn(reason.clone());
        }
        if let Some((name, answer)) = self.closing.remove(&file) {
            self.regions.remove(&name);
            if let Some(answer) = answer {
                answer.send(result.map(|()| Reply::DONE).map_err(ApiError::internal));
            }
        }
    }

    /// The STags of those of the regions that serve one stream at a time.
    pub(super) fn exclusive_stags(&self, names: &[String]) -> Vec<Stag> {
        let regions = names.iter().filter_map(|name| self.regions.get(name));
        regions.filter(|region| region.is_exclusive()).map(|region| region.stag).collect()
    }

    /// Binds exclusive regions to `stream` on all workers; `then` follows when all have done it.
    pub(super) fn bind(&mut self, names: &[String], stream: Option<StreamId>, then: Then) {
        let commands: Vec<_> = self
            .exclusive_stags(names)
            .into_iter()
            .map(|stag| move |ticket| Command::BindStag { stag, stream, ticket })
            .collect();
        let commands: Vec<&dyn Fn(_) -> Command> =
            commands.iter().map(|command| command as &dyn Fn(_) -> Command).collect();
        if !commands.is_empty() {
            self.broadcast_all(then, &commands);
        }
    }

    /// A tagged message has been delivered.
    pub(super) fn on_tagged(
        &mut self,
        stream: StreamId,
        stag: Stag,
        to: TaggedOffset,
        len: u64,
        rsvd_ulp: u8,
    ) {
        self.tally.tagged_messages += 1;
        self.tally.tagged_octets += len;
        let Some(name) = self.by_stag.get(&stag).cloned() else { return };
        let Some(region) = self.regions.get_mut(&name) else { return };
        // A message without octets names its STag unchecked (RFC 5041 §5.2.1): it may be any number,
        // also that of a region of others, whose programs it must not reach.
        if len == 0 && !region.users.contains(&stream) {
            return;
        }
        region.placed += len;
        region.messages += 1;
        let offset = to.0.saturating_sub(region.section.base_to).min(region.len);
        let len_inside = len.min(region.len - offset);
        if let Some(file) = region.file {
            self.writer.dirty(file, offset, len_inside);
        }
        if let Some(object) = region.object().map(str::to_owned) {
            let record = completion(Kind::Data, stag, stream, offset, len_inside, rsvd_ulp);
            self.shm.publish(&object, &record);
        }
        let stream = Core::api_id(stream);
        self.log.push(EventKind::TaggedDelivered { stream, region: name, to: to.0, len });
    }

    /// Tells local programs that a stream begins or ends to write.
    pub(super) fn announce(&mut self, names: &[String], stream: StreamId, kind: Kind) {
        for name in names {
            if let Some(region) = self.regions.get(name)
                && region.section.remote_write
                && let Some(object) = region.object().map(str::to_owned)
            {
                let record = completion(kind, region.stag, stream, 0, 0, 0);
                self.shm.publish(&object, &record);
            }
        }
    }

    /// A stream has ended: its regions serve others.
    pub(super) fn release_regions(&mut self, names: &[String], stream: StreamId) {
        let mut freed = Vec::new();
        for name in names {
            let Some(region) = self.regions.get_mut(name) else { continue };
            region.users.remove(&stream);
            if region.bound == Some(stream) {
                region.bound = None;
                if region.is_live() {
                    freed.push(name.clone());
                }
            }
            if let Some(file) = region.file {
                self.writer.stream_closed(file);
            }
        }
        // Commands are carried out in order: a stream that gets the region next is bound after this.
        self.bind(&freed, Some(NOBODY), Then::Nothing);
    }

    pub(super) fn region_info(&self, name: &str) -> Result<RegionInfo, ApiError> {
        let region = self
            .regions
            .get(name)
            .ok_or_else(|| ApiError::not_found(format!("there is no region `{name}`")))?;
        let lists = |l: &&super::listeners::Listener| l.section.regions.iter().any(|r| r == name);
        let listeners = self.listeners.values().filter(lists);
        Ok(super::render::region(region, listeners.map(|l| l.section.name.clone()).collect()))
    }

    pub(super) fn region_infos(&self) -> Vec<RegionInfo> {
        self.regions.keys().filter_map(|name| self.region_info(name).ok()).collect()
    }
}

/// What two regions would both lie in: its kind, its name, and the name of the second region.
fn in_common<'a>(
    a: &RegionSection,
    b: &'a RegionSection,
) -> Option<(&'static str, String, &'a str)> {
    match (&a.backing, &b.backing) {
        (Backing::SharedMemory { object }, Backing::SharedMemory { object: other })
            if object == other =>
        {
            Some(("shared-memory object", object.clone(), &b.name))
        }
        (Backing::File { path, .. }, Backing::File { path: other, .. }) if path == other => {
            Some(("file", path.display().to_string(), &b.name))
        }
        _ => None,
    }
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

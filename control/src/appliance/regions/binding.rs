//! Use of regions by streams: advertisement, exclusive binding to one stream, and clearing between streams.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use api::{ApiError, EventKind};
use dataplane::Command;
use dataplane::SourceRemoval;
use dataplane::memory::Memory;
use dataplane::memory::ring::Kind;
use ddp::advert::Advertised;
use ddp::{Stag, StagEntry, StreamId, TaggedOffset};

use super::region::Region;
use super::{Regions, completion};
use crate::appliance::env::{Env, api_id};
use crate::appliance::pending::{Continuation, NO_STREAM};

impl Regions {
    pub(in crate::appliance) fn any_has_file(&self, names: &[String]) -> bool {
        let regions = names.iter().filter_map(|name| self.regions.get(name));
        regions.into_iter().any(|region| region.file.is_some())
    }

    pub(in crate::appliance) fn advertised(&self, names: &[String]) -> Vec<Advertised> {
        let regions = names.iter().filter_map(|name| self.regions.get(name));
        regions.map(|region| region.advertised()).collect()
    }

    /// Marks the available regions of a listener as used by `stream`, and binds the exclusive regions. Returns the
    /// names of all marked regions, and the names of the exclusive regions among them.
    pub(in crate::appliance) fn bind_available(
        &mut self,
        listed: &[String],
        stream: StreamId,
        now: Instant,
    ) -> (Vec<String>, Vec<String>) {
        let (mut taken, mut exclusive) = (Vec::new(), Vec::new());
        for name in listed {
            let Some(region) = self.regions.get_mut(name).filter(|r| r.is_available()) else {
                continue;
            };
            region.users.insert(stream);
            taken.push(name.clone());
            if region.is_exclusive() {
                region.bind(stream, now);
                exclusive.push(name.clone());
            }
        }
        (taken, exclusive)
    }

    /// Logs the regions of a listener that are missing in `taken` because another stream uses them. Returns their
    /// names.
    pub(in crate::appliance) fn log_busy(
        &self,
        env: &mut Env,
        listed: &[String],
        taken: &[String],
        remote: SocketAddr,
    ) -> Vec<String> {
        let mut busy = Vec::new();
        for name in listed.iter().filter(|name| !taken.contains(name)) {
            let region = self.regions.get(name).filter(|region| region.is_live());
            let Some((holder, idle)) = region.and_then(|region| region.holder(env.now)) else {
                continue;
            };
            env.log.push(EventKind::RegionBusy {
                region: name.clone(),
                holder: holder.map(api_id),
                idle_for: idle.as_secs(),
                remote: remote.to_string(),
            });
            busy.push(name.clone());
        }
        busy
    }

    /// Returns the advertisements of busy regions: without STag and access.
    pub(in crate::appliance) fn advertised_busy(&self, names: &[String]) -> Vec<Advertised> {
        let regions = names.iter().filter_map(|name| self.regions.get(name));
        let busy = |region: &Region| Advertised {
            name: region.section.name.clone(),
            stag: 0,
            base_to: 0,
            len: region.len,
            remote_write: false,
            remote_read: false,
            remote_atomic: false,
            busy: true,
        };
        regions.map(busy).collect()
    }

    /// Returns the error for an exclusive region that another stream uses.
    pub(in crate::appliance) fn busy(&self, name: &str, now: Instant) -> ApiError {
        let holder = self.regions.get(name).and_then(|region| region.holder(now));
        let sentence = match holder {
            Some((Some(stream), idle)) => {
                let (id, idle) = (api_id(stream), idle.as_secs());
                format!(
                    "region_busy: region `{name}` is taken by stream {id}, idle for {idle} s: wait for its end, or \
                     ddpctl streams close {id}"
                )
            }
            _ => format!(
                "region_busy: region `{name}` is taken by a stream that is being opened: try again"
            ),
        };
        ApiError::conflict(sentence)
    }

    /// Releases the exclusive regions of a stream that a client closes. They become available once all workers have
    /// unbound them, even if the stream's peer never responds.
    pub(in crate::appliance) fn free(&self, env: &mut Env, names: &[String], stream: StreamId) {
        let is_bound = |name: &&String| {
            let region = self.regions.get(*name);
            region.is_some_and(|region| region.bound == Some(stream) && region.is_live())
        };
        let regions: Vec<String> = names.iter().filter(is_bound).cloned().collect();
        self.bind(env, &regions.clone(), Some(NO_STREAM), Continuation::Freed { stream, regions });
    }

    /// Marks the regions as available after all workers have unbound them. Regions that are bound to another stream by
    /// now are skipped.
    pub(in crate::appliance) fn on_freed(&mut self, names: &[String], stream: StreamId) {
        for name in names {
            let region = self.regions.get_mut(name).filter(|region| region.bound == Some(stream));
            if let Some(region) = region {
                (region.bound, region.held_since) = (None, None);
            }
        }
    }

    /// Reserves exclusive regions for a stream whose number is not known yet. Returns their names.
    pub(in crate::appliance) fn reserve(&mut self, names: &[String], now: Instant) -> Vec<String> {
        let mut reserved = Vec::new();
        for name in names {
            if let Some(region) = self.regions.get_mut(name).filter(|r| r.is_exclusive()) {
                region.bind(NO_STREAM, now);
                reserved.push(name.clone());
            }
        }
        reserved
    }

    /// Binds regions to their established stream. The exclusive regions were reserved by [`reserve`](Self::reserve).
    pub(in crate::appliance) fn adopt(
        &mut self,
        env: &mut Env,
        names: &[String],
        stream: StreamId,
    ) {
        let mut exclusive = Vec::new();
        for name in names {
            let Some(region) = self.regions.get_mut(name) else { continue };
            region.users.insert(stream);
            if region.is_exclusive() {
                region.bind(stream, env.now);
                exclusive.push(name.clone());
            }
        }
        self.bind(env, &exclusive, Some(stream), Continuation::Ignore);
    }

    /// Returns the memory to clear before the regions are advertised: its data is from another stream, and the new peer
    /// could read it. `rdmap`: true if the stream's ULP is RDMAP.
    pub(in crate::appliance) fn dirty_ranges(
        &self,
        exclusive: &[String],
        rdmap: bool,
    ) -> Vec<(Memory, Range<u64>)> {
        let dirty = |name: &String| {
            let region = self.regions.get(name)?;
            // A bare DDP peer cannot read.
            let clears = rdmap && region.section.clear_between_peers && region.written;
            clears.then(|| (region.memory.clone(), 0..region.len))
        };
        exclusive.iter().filter_map(dirty).collect()
    }

    /// Returns the first region that was removed or is no longer bound to the stream. `None` if all are bound.
    pub(in crate::appliance) fn first_lost<'a>(
        &self,
        names: &'a [String],
        stream: StreamId,
    ) -> Option<&'a str> {
        let is_bound = |name: &&String| {
            self.regions.get(*name).is_some_and(|r| r.is_live() && r.bound == Some(stream))
        };
        names.iter().find(|name| !is_bound(name)).map(String::as_str)
    }

    /// Binds exclusive regions to a stream, and records that its peer may write to them. `continuation` is resumed when
    /// all workers have bound them.
    pub(in crate::appliance) fn bind_peer_writable(
        &mut self,
        env: &mut Env,
        exclusive: &[String],
        stream: StreamId,
        continuation: Continuation,
    ) {
        for name in exclusive {
            if let Some(region) = self.regions.get_mut(name) {
                region.written = true;
            }
        }
        self.bind(env, exclusive, Some(stream), continuation);
    }

    /// Records that a job of this host has written to a region.
    pub(in crate::appliance) fn on_region_written(
        &mut self,
        env: &mut Env,
        name: String,
        offset: u64,
        bytes: u64,
    ) {
        let Some(region) = self.regions.get_mut(&name) else { return };
        region.written = true;
        if let Some(file) = region.file {
            env.writer.mark_dirty(file, offset, bytes);
        }
        env.log.push(EventKind::RegionFetched { region: name, offset, bytes });
    }

    /// Replaces an STag that the peer has invalidated, so that the region stays usable for other streams.
    pub(in crate::appliance) fn on_invalidated(&mut self, env: &mut Env, stag: Stag) {
        let Some(name) = self.by_stag.get(&stag).cloned() else { return };
        let fresh = match env.stags.allocate() {
            Ok(fresh) => fresh,
            Err(error) => {
                return env.warn(format!("region {name} has no valid STag any more: {error}"));
            }
        };
        let Some(region) = self.regions.get_mut(&name).filter(|region| region.is_live()) else {
            return;
        };
        region.stag = fresh;
        let entry = StagEntry { stream: Some(NO_STREAM), ..region.entry() };
        self.by_stag.remove(&stag);
        self.by_stag.insert(fresh, name.clone());
        env.stags.release(stag);
        let sources = SourceRemoval::Wait;
        env.broadcast_all(
            Continuation::Ignore,
            &[&|ticket| Command::RemoveStag { stag, removal: sources, ticket }, &|ticket| {
                Command::AddStag { entry: entry.clone(), ticket }
            }],
        );
        env.log.push(EventKind::StagInvalidated { region: name });
    }

    pub(in crate::appliance) fn exclusive_stags(&self, names: &[String]) -> Vec<Stag> {
        let regions = names.iter().filter_map(|name| self.regions.get(name));
        regions.filter(|region| region.is_exclusive()).map(|region| region.stag).collect()
    }

    /// Binds exclusive regions to `stream` on all workers. `continuation` is resumed when all workers have answered. If
    /// none of the regions is exclusive, nothing is sent and `continuation` is dropped.
    pub(in crate::appliance) fn bind(
        &self,
        env: &mut Env,
        names: &[String],
        stream: Option<StreamId>,
        continuation: Continuation,
    ) {
        let commands: Vec<_> = self
            .exclusive_stags(names)
            .into_iter()
            .map(|stag| move |ticket| Command::BindStag { stag, stream, ticket })
            .collect();
        let commands: Vec<&dyn Fn(_) -> Command> =
            commands.iter().map(|command| command as &dyn Fn(_) -> Command).collect();
        if !commands.is_empty() {
            env.broadcast_all(continuation, &commands);
        }
    }

    /// Records a delivered tagged message: counts it, marks the bytes as dirty for the region's file, notifies local
    /// programs, and logs it.
    pub(in crate::appliance) fn on_tagged(
        &mut self,
        env: &mut Env,
        stream: StreamId,
        stag: Stag,
        to: TaggedOffset,
        len: u64,
        rsvd_ulp: u8,
    ) {
        env.tally.tagged_messages += 1;
        env.tally.tagged_bytes += len;
        let Some(name) = self.by_stag.get(&stag).cloned() else { return };
        let Some(region) = self.regions.get_mut(&name) else { return };
        // The STag of a message of 0 bytes is not checked (RFC 5041 §5.2). If the STag belongs to another stream, the
        // message must not reach local programs of that region.
        if len == 0 && !region.users.contains(&stream) {
            return;
        }
        if let Some((_, active)) =
            region.held_since.as_mut().filter(|_| region.bound == Some(stream))
        {
            *active = env.now;
        }
        region.placed += len;
        region.messages += 1;
        let offset = to.0.saturating_sub(region.section.base_to).min(region.len);
        let len_inside = len.min(region.len - offset);
        if let Some(file) = region.file {
            env.writer.mark_dirty(file, offset, len_inside);
            env.record_write(stream, file);
        }
        if let Some(object) = region.object_name().map(str::to_owned) {
            let record = completion(Kind::Data, stag, stream, offset, len_inside, rsvd_ulp);
            env.shm.publish(&object, &record);
        }
        let stream = api_id(stream);
        env.log.push(EventKind::TaggedDelivered { stream, region: name, to: to.0, len });
    }

    /// Notifies local programs that a stream starts or stops using the regions.
    pub(in crate::appliance) fn announce(
        &self,
        env: &mut Env,
        names: &[String],
        stream: StreamId,
        kind: Kind,
    ) {
        for name in names {
            if let Some(region) = self.regions.get(name)
                && region.section.remote_write
                && let Some(object) = region.object_name().map(str::to_owned)
            {
                let record = completion(kind, region.stag, stream, 0, 0, 0);
                env.shm.publish(&object, &record);
            }
        }
    }

    /// Releases the regions of a stream that has ended.
    pub(in crate::appliance) fn release(
        &mut self,
        env: &mut Env,
        names: &[String],
        stream: StreamId,
    ) {
        let mut freed = Vec::new();
        for name in names {
            let Some(region) = self.regions.get_mut(name) else { continue };
            region.users.remove(&stream);
            if region.bound == Some(stream) {
                (region.bound, region.held_since) = (None, None);
                if region.is_live() {
                    freed.push(name.clone());
                }
            }
            if let Some(file) = region.file {
                env.writer.on_stream_closed(file);
            }
        }
        // Workers execute commands in order, so the region's next stream is bound after this command.
        self.bind(env, &freed, Some(NO_STREAM), Continuation::Ignore);
    }
}

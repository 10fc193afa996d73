//! Counters and gauges of the control thread and the appliance.

use api::AccessTally;

use super::table::counters;
use crate::shm::ShmCounters;

/// Counters of the control thread.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::appliance) struct Tally {
    pub accepted: u64,
    pub refused: u64,
    pub connected: u64,
    pub connect_failed: u64,
    pub tagged_messages: u64,
    pub tagged_bytes: u64,
    pub untagged_messages: u64,
    pub untagged_bytes: u64,
    pub discarded: u64,
    pub stream_errors: u64,
    pub file_errors: u64,
    pub files_reopened: u64,
    pub streams_not_stored: u64,
    pub unexpected_events: u64,
}

counters! { CONTROL, fn put_control(tally: &Tally, shm: ShmCounters, events: u64, management: &AccessTally) {
    /// Streams accepted.
    streams_accepted: Counter = tally.accepted,
    /// Connections refused by a listener.
    streams_refused: Counter = tally.refused,
    /// Streams opened from here.
    streams_opened: Counter = tally.connected,
    /// Streams that could not be opened from here.
    streams_not_opened: Counter = tally.connect_failed,
    /// Tagged messages delivered.
    tagged_messages: Counter = tally.tagged_messages,
    /// Bytes of tagged messages delivered.
    tagged_bytes: Counter Bytes = tally.tagged_bytes,
    /// Untagged messages delivered.
    untagged_messages: Counter = tally.untagged_messages,
    /// Bytes of untagged messages delivered.
    untagged_bytes: Counter Bytes = tally.untagged_bytes,
    /// Untagged messages that went nowhere.
    untagged_discarded: Counter = tally.discarded,
    /// Streams that ended with an error.
    stream_errors: Counter = tally.stream_errors,
    /// Writes and syncs of files that failed; each is tried again.
    file_errors: Counter = tally.file_errors,
    /// Files that were opened again because their names led to another file or to none.
    files_reopened: Counter = tally.files_reopened,
    /// Streams that failed because a file does not have what their peers sent.
    streams_not_stored: Counter = tally.streams_not_stored,
    /// Events of workers that fit no stream or request.
    unexpected_events: Counter = tally.unexpected_events,
    /// Local programs that attached to a region.
    programs_attached: Counter = shm.attached,
    /// Local programs that were refused.
    programs_refused: Counter = shm.refused,
    /// Completions given to local programs.
    completions: Counter = shm.completions,
    /// Completions lost because a program did not read its ring.
    completions_lost: Counter = shm.lost,
    /// Events in the log so far.
    events: Counter = events,
    /// Lines that were left out of the log because one place wrote too many in a second; of all appliances of the process.
    log_lines_suppressed: Counter = crate::log_limit::suppressed(),
    /// Lines that the API's audit file should have and does not have: it could not be written, or too many waited.
    audit_lines_lost: Counter = management.lines_lost(),
    /// Calls without effect, refused or wrong, that the audit has only the number of: a user made too many.
    audit_lines_left_out: Counter = management.lines_omitted(),
    /// Connections to the API's socket that were closed at once, because all places had requests.
    api_connections_refused: Counter = management.api.counts().refused,
    /// Connections to the API's socket that were closed: no request came in time, the client did not read, or a new one needed the place.
    api_connections_expired: Counter = management.api.counts().expired,
    /// Failures of accept(2) at the API's socket, such as without a free descriptor.
    api_accept_failures: Counter = management.api.counts().accept_failures,
    /// Connections to `management.listen` that were closed at once, because all places had requests.
    listen_connections_refused: Counter = management.observers.counts().refused,
    /// Connections to `management.listen` that were closed: no request came in time, the client did not read, or a new one needed the place.
    listen_connections_expired: Counter = management.observers.counts().expired,
    /// Failures of accept(2) at `management.listen`.
    listen_accept_failures: Counter = management.observers.counts().accept_failures,
    /// Local programs that connected to the attach socket and sent no request in time.
    programs_expired: Counter = shm.expired,
    /// Failures of accept(2) at the attach socket.
    programs_accept_failures: Counter = shm.accept_failures,
}}

counters! { LOSSES, fn put_losses(ports: &[api::PortStats]) {
    /// Frames that impairments of all ports lost.
    frames_lost: Counter =
        ports.iter().filter_map(|port| port.counters.get("link_lost_total")).sum(),
}}

/// Current objects of the appliance.
pub(in crate::appliance) struct ObjectCounts {
    pub sandbox: crate::sandbox::SandboxState,
    pub streams: usize,
    pub draining: bool,
    pub associations: usize,
    pub regions: usize,
    pub region_memory: u64,
    pub listeners: usize,
    pub jobs: usize,
    pub held: super::HeldBytes,
    pub memory: api::MemoryInfo,
}

counters! { GAUGES, fn put_gauges(now: &ObjectCounts) {
    /// 1 while capabilities and new privileges are given up; of the whole process.
    sandbox_privileges_dropped: Gauge = u64::from(now.sandbox.entered),
    /// Version of Landlock by which the process's files are restricted; 0 if they are not.
    sandbox_landlock: Gauge = u64::from(now.sandbox.landlock),
    /// 1 while system calls of all threads are restricted.
    sandbox_seccomp: Gauge = u64::from(now.sandbox.seccomp),
    /// Workers of the process whose system calls are restricted further.
    sandbox_confined_workers: Gauge = u64::from(now.sandbox.workers),
    /// Streams that are established.
    streams: Gauge = now.streams as u64,
    /// 1 while no new streams are taken, because the appliance drains or ends.
    draining: Gauge = u64::from(now.draining),
    /// SCTP associations.
    associations: Gauge = now.associations as u64,
    /// Regions.
    regions: Gauge = now.regions as u64,
    /// Bytes of all regions.
    region_memory: Gauge Bytes = now.region_memory,
    /// Bytes that regions, jobs, workers' buffers and streams may take together.
    memory_ceiling: Gauge Bytes = now.memory.ceiling,
    /// Bytes of it that are in use or set aside.
    memory_in_use: Gauge Bytes = now.memory.in_use,
    /// Bytes that jobs stage.
    memory_jobs: Gauge Bytes = now.memory.jobs,
    /// Bytes set aside for the workers' buffers and for streams.
    memory_workers: Gauge Bytes = now.memory.workers,
    /// Listeners.
    listeners: Gauge = now.listeners as u64,
    /// Jobs that run.
    jobs: Gauge = now.jobs as u64,
    /// Bytes that streams hold beyond a gap.
    held_bytes: Gauge Bytes = now.held.held,
    /// Bytes that streams hold and that cannot be located.
    unlocatable_bytes: Gauge Bytes = now.held.unlocatable,
    /// Bytes that are kept for retransmission.
    kept_bytes: Gauge Bytes = now.held.kept,
}}

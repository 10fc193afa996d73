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
    /// Streams opened by the appliance.
    streams_opened: Counter = tally.connected,
    /// Streams that the appliance failed to open.
    streams_not_opened: Counter = tally.connect_failed,
    /// Tagged messages delivered.
    tagged_messages: Counter = tally.tagged_messages,
    /// Bytes of tagged messages delivered.
    tagged_bytes: Counter Bytes = tally.tagged_bytes,
    /// Untagged messages delivered.
    untagged_messages: Counter = tally.untagged_messages,
    /// Bytes of untagged messages delivered.
    untagged_bytes: Counter Bytes = tally.untagged_bytes,
    /// Untagged messages discarded because their queue is configured so, or because a reload removed the queue's file.
    untagged_discarded: Counter = tally.discarded,
    /// Protocol errors of peers; each ended its stream.
    stream_errors: Counter = tally.stream_errors,
    /// Failed writes and syncs of files. Each is retried.
    file_errors: Counter = tally.file_errors,
    /// Files reopened because their names referred to another file or to no file.
    files_reopened: Counter = tally.files_reopened,
    /// Streams aborted because the data of their peers could not be stored in a file.
    streams_not_stored: Counter = tally.streams_not_stored,
    /// Events of workers without a matching stream or request.
    unexpected_events: Counter = tally.unexpected_events,
    /// Local programs that attached to a region.
    programs_attached: Counter = shm.attached,
    /// Requests of local programs refused, and connections refused because the attach socket had its maximum number of
    /// connections.
    programs_refused: Counter = shm.refused,
    /// Completions published to local programs.
    completions: Counter = shm.completions,
    /// Completions lost because a program read its ring too slowly.
    completions_lost: Counter = shm.lost,
    /// Events logged.
    events: Counter = events,
    /// Log lines suppressed because one call site wrote too many in a second; all appliances of the process.
    log_lines_suppressed: Counter = crate::log_limit::suppressed(),
    /// Lines missing in the API's audit file: the file could not be written, or the queue was full.
    audit_lines_lost: Counter = management.lines_lost(),
    /// Refused or invalid calls without a line in the audit file, because a user made too many calls or the queue was
    /// full. The file contains their number.
    audit_lines_left_out: Counter = management.lines_omitted(),
    /// Connections to the API's socket closed at once, because all connections had requests in progress.
    api_connections_refused: Counter = management.api.counts().refused,
    /// Connections to the API's socket closed because no request arrived in time, the client did not read, or a new
    /// connection needed the slot.
    api_connections_expired: Counter = management.api.counts().expired,
    /// Failures of accept(2) at the API's socket, such as no free file descriptor.
    api_accept_failures: Counter = management.api.counts().accept_failures,
    /// Connections to `management.listen` closed at once, because all connections had requests in progress.
    listen_connections_refused: Counter = management.observers.counts().refused,
    /// Connections to `management.listen` closed because no request arrived in time, the client did not read, or a new
    /// connection needed the slot.
    listen_connections_expired: Counter = management.observers.counts().expired,
    /// Failures of accept(2) at `management.listen`.
    listen_accept_failures: Counter = management.observers.counts().accept_failures,
    /// Connections to the attach socket closed because no complete request arrived in time.
    programs_expired: Counter = shm.expired,
    /// Failures of accept(2) at the attach socket.
    programs_accept_failures: Counter = shm.accept_failures,
}}

counters! { LOSSES, fn put_losses(ports: &[api::PortStats]) {
    /// Frames lost in the impairments of all ports.
    frames_lost: Counter =
        ports.iter().filter_map(|port| port.counters.get("link_lost_total")).sum(),
}}

/// Counts of local programs since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::appliance) struct ProgramTally {
    pub attached: u64,
    pub refused: u64,
    pub ended: u64,
    /// QPs, CQs and SRQs that failed.
    pub failures: u64,
}

/// Present programs and their objects, and counts since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::appliance) struct ProgramCounts {
    pub programs: u64,
    pub queue_pairs: u64,
    pub memory_regions: u64,
    /// Bytes of memory regions and queues.
    pub memory: u64,
    pub tally: ProgramTally,
}

/// Values for the gauges: numbers of objects, memory, sandbox and drain.
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
    pub programs: ProgramCounts,
}

counters! { GAUGES, fn put_gauges(now: &ObjectCounts) {
    /// 1 if the process has dropped unneeded capabilities and can gain no new privileges.
    sandbox_privileges_dropped: Gauge = u64::from(now.sandbox.entered),
    /// Version of the Landlock ABI that restricts the process's file access. 0 if none does.
    sandbox_landlock: Gauge = u64::from(now.sandbox.landlock),
    /// 1 if a seccomp filter restricts the system calls of all threads.
    sandbox_seccomp: Gauge = u64::from(now.sandbox.seccomp),
    /// Threads of the process with the narrower seccomp filter: workers, and pumps of interfaces shared with the host.
    sandbox_confined_workers: Gauge = u64::from(now.sandbox.workers),
    /// Established streams.
    streams: Gauge = now.streams as u64,
    /// 1 while no new streams are accepted, because the appliance drains or stops.
    draining: Gauge = u64::from(now.draining),
    /// SCTP associations.
    associations: Gauge = now.associations as u64,
    /// Regions.
    regions: Gauge = now.regions as u64,
    /// Size of all regions.
    region_memory: Gauge Bytes = now.region_memory,
    /// Limit of the memory of regions, jobs, workers' buffers and streams together.
    memory_ceiling: Gauge Bytes = now.memory.ceiling,
    /// Memory in use or reserved, at most `memory_ceiling`.
    memory_in_use: Gauge Bytes = now.memory.in_use,
    /// Staging memory of jobs.
    memory_jobs: Gauge Bytes = now.memory.jobs,
    /// Memory reserved for the workers' buffers and for streams.
    memory_workers: Gauge Bytes = now.memory.workers,
    /// Listeners.
    listeners: Gauge = now.listeners as u64,
    /// Local programs with a session.
    sessions: Gauge = now.programs.programs,
    /// Queue pairs of programs.
    session_queue_pairs: Gauge = now.programs.queue_pairs,
    /// Memory regions of programs.
    session_memory_regions: Gauge = now.programs.memory_regions,
    /// Memory regions and queues of programs.
    session_memory: Gauge Bytes = now.programs.memory,
    /// Programs that have opened a session.
    sessions_opened: Counter = now.programs.tally.attached,
    /// Programs whose session was refused.
    sessions_refused: Counter = now.programs.tally.refused,
    /// Sessions that have ended.
    sessions_ended: Counter = now.programs.tally.ended,
    /// Queue pairs, completion queues and shared receive queues of programs that failed.
    session_queues_failed: Counter = now.programs.tally.failures,
    /// Unfinished jobs.
    jobs: Gauge = now.jobs as u64,
    /// Received bytes held in buffers, because their FPDU is incomplete or not located.
    held_bytes: Gauge Bytes = now.held.held,
    /// Held bytes whose FPDU boundaries are unknown.
    unlocatable_bytes: Gauge Bytes = now.held.unlocatable,
    /// Sent bytes kept in copies for retransmission.
    kept_bytes: Gauge Bytes = now.held.kept,
}}

//! The kinds of events, each with its meaning, usual cause and remedy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::StreamId;
use crate::spec::bytes;

/// Declares the kinds of events and an [`Explanation`](base::explain::Explanation) of each kind. The doc comment of a
/// kind becomes its `meaning`.
macro_rules! explained_events {
    (
        $(#[$attribute:meta])*
        pub enum $enum:ident {
            $(
                $(#[doc = $doc:literal])+
                #[explain($name:literal, cause = $cause:literal, remedy = $remedy:literal)]
                $variant:ident $({
                    $($(#[$of_field:meta])* $field:ident: $type:ty,)+
                })?,
            )+
        }
    ) => {
        $(#[$attribute])*
        pub enum $enum {
            $($(#[doc = $doc])+ $variant $({ $($(#[$of_field])* $field: $type,)+ })?,)+
        }

        impl $enum {
            /// Explanations of all kinds, in the order of declaration.
            pub const EXPLANATIONS: &'static [base::explain::Explanation] = &[
                $(base::explain::Explanation {
                    name: $name,
                    meaning: concat!($($doc),+).trim_ascii(),
                    cause: $cause,
                    remedy: $remedy,
                },)+
            ];
        }
    };
}

explained_events! {
    /// Kinds of events. In JSON, the member `event` names the kind.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(tag = "event", rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum EventKind {
        /// The appliance is in service.
        #[explain("started",
            cause = "The program started, or the service manager restarted it.",
            remedy = "None. After an unexpected start, the log shows why the previous run ended.")]
        Started {
            /// Name of the appliance.
            appliance: String,
        },
        /// The appliance accepts no new streams and waits for the existing streams to end.
        #[explain("draining",
            cause = "`ddpctl drain`, or the appliance is stopping.",
            remedy = "`ddpctl undrain` accepts new streams again, unless the appliance is stopping.")]
        Draining,
        /// The appliance accepts new streams again.
        #[explain("undrained",
            cause = "`ddpctl undrain`.",
            remedy = "None.")]
        Undrained,
        /// The configuration file was reloaded.
        #[explain("reloaded",
            cause = "SIGHUP, `systemctl reload` or `ddpctl reload`.",
            remedy = "None. `ddpctl reload --dry-run` lists keys that still need a restart.")]
        Reloaded {
            /// Applied changes, one sentence each.
            changes: Vec<String>,
        },
        /// A stream is established: messages can flow.
        #[explain("stream_established",
            cause = "A peer connected, or `ddpctl connect`, `put`, `get` or `bench` opened the stream.",
            remedy = "None.")]
        StreamEstablished {
            /// Number of the stream.
            stream: StreamId,
            /// Listener that accepted the stream. `null` if the appliance opened it.
            listener: Option<String>,
            /// Address and port of the peer.
            remote: String,
        },
        /// A peer connected to an exclusive region that another stream holds. The region is advertised to this peer as
        /// busy.
        #[explain("region_busy",
            cause = "A region without `shared` serves one stream at a time. An earlier peer still holds it, perhaps \
                     one that has crashed.",
            remedy = "`ddpctl streams close HOLDER` frees the region at once. Set `shared = true` if several peers \
                      may write at the same time.")]
        RegionBusy {
            /// Name of the region.
            region: String,
            /// Stream that holds the region. `null` while it is being opened.
            holder: Option<StreamId>,
            /// Time since that stream was bound or last wrote to the region, whole seconds.
            idle_for: u64,
            /// Address and port of the peer that was refused the region.
            remote: String,
        },
        /// An attempt of the appliance to open a stream failed.
        #[explain("stream_refused",
            cause = "The peer has no listener on the port, rejects the connection, or is unreachable.",
            remedy = "`reason` and `hint` have the cause and the remedy. Then check routes, firewalls and the peer's \
                      listener.")]
        StreamRefused {
            /// Always `null`: no listener is involved.
            listener: Option<String>,
            /// Address and port of the peer.
            remote: String,
            /// Reason of the failure, one sentence.
            reason: String,
            /// Remedy for the operator. `null` if none is known.
            #[serde(default)]
            hint: Option<String>,
        },
        /// A peer connected, but no stream was established: the handshake failed, or the appliance refused the stream.
        /// The events are limited in rate; the counters include all failures.
        #[explain("handshake_failed",
            cause = "A client of another protocol, a wrong port or ulp, a limit of the listener, a scanner or a \
                     health check.",
            remedy = "`stage`, `detail` and `hint` have the cause. `ddpctl explain REASON` explains the refusals of \
                      stage `admission`.")]
        HandshakeFailed {
            /// Name of the listener. `null` if none listens on the port.
            listener: Option<String>,
            /// `tcp` or `sctp`.
            transport: String,
            /// Local address and port.
            local: String,
            /// Address and port of the peer.
            remote: String,
            /// Layer of the failure: `tcp`, `mpa`, `sctp`, `session`, `ddp`, `rdmap`, or `admission` if the appliance
            /// refused the stream.
            stage: String,
            /// Stable name of the reason, as in the counter.
            reason: String,
            /// Expected and received values, one sentence.
            detail: String,
            /// Remedy for the operator. `null` if none is known.
            hint: Option<String>,
            /// Number of failures without an event since the last event of this kind.
            unreported: u64,
        },
        /// The peer has violated a protocol. The error names layer, code, field, expected and received value.
        #[explain("stream_error",
            cause = "The peer's program has violated the protocol, usually with a wrong STag, offset or queue number, \
                     or data were corrupted on the path.",
            remedy = "`ddpctl why STREAM` shows the header, the expected value, and the configuration key that \
                      matters.")]
        StreamError {
            /// Number of the stream.
            stream: StreamId,
            /// Layer of the error: `tcp`, `mpa`, `ddp`, `rdmap`, or `service` if the peer's program does not match the
            /// listener's service.
            layer: String,
            /// Error code as in the specification of the layer, such as `1/02`.
            code: String,
            /// Sentence that names the field, the expected and the received value.
            reason: String,
        },
        /// An RDMAP Terminate was sent or received. The stream ends.
        #[explain("terminated",
            cause = "One end has found an error of the other: access outside a region, a removed region, or too few \
                     buffers.",
            remedy = "`ddpctl why STREAM` explains the code. With `by_peer`, see the peer's log, too.")]
        Terminated {
            /// Number of the stream.
            stream: StreamId,
            /// True if the peer sent the Terminate, false if the appliance did.
            by_peer: bool,
            /// Layer, error type and error code in hexadecimal, such as `1/1/00`.
            code: String,
            /// Meaning of the code.
            reason: String,
        },
        /// A peer has invalidated the STag of a region. The region has a new STag.
        #[explain("stag_invalidated",
            cause = "The peer sent Send with Invalidate, which ends its own access.",
            remedy = "None: RDMA programs invalidate after each use. The peer takes the new STag from the next \
                      advertisement.")]
        StagInvalidated {
            /// Name of the region.
            region: String,
        },
        /// A job (`get`) has fetched bytes of a peer into a region.
        #[explain("region_fetched",
            cause = "`ddpctl get --into REGION`.",
            remedy = "None.")]
        RegionFetched {
            /// Name of the region.
            region: String,
            /// Offset of the first byte in the region, bytes.
            offset: u64,
            /// Length in bytes.
            bytes: u64,
        },
        /// A stream makes no progress: ten consecutive time-outs, or the last time-out before a time limit ends the
        /// stream. The event is reported once per stall, which ends when the stream makes progress or ends.
        #[explain("stream_stalled",
            cause = "The peer's host is down or hangs, or the path is broken.",
            remedy = "Follow `hint`. `ddpctl streams show STREAM` has the limiting cause. The stream ends by itself \
                      at `user_timeout` or `zero_window_timeout`.")]
        StreamStalled {
            /// Number of the stream.
            stream: StreamId,
            /// Address and port of the peer.
            remote: String,
            /// Consecutive time-outs.
            timeouts: u32,
            /// Time since the peer last acknowledged new data, seconds.
            seconds: u64,
            /// Description of the stall, one sentence.
            reason: String,
            /// Remedy for the operator.
            hint: String,
        },
        /// A stalled stream makes progress again.
        #[explain("stream_resumed",
            cause = "The path or the peer has recovered.",
            remedy = "None for a single event. If stalls recur, check the switch and the link.")]
        StreamResumed {
            /// Number of the stream.
            stream: StreamId,
            /// Address and port of the peer.
            remote: String,
            /// Duration of the stall, seconds.
            seconds: u64,
        },
        /// A stream has ended.
        #[explain("stream_closed",
            cause = "Either end closed the stream, or an error or a time-out ended it.",
            remedy = "None after a graceful close. Else see `ddpctl why STREAM`.")]
        StreamClosed {
            /// Number of the stream.
            stream: StreamId,
            /// Reason of the end, one sentence.
            reason: String,
            /// Bytes placed in regions and untagged buffers.
            placed: u64,
            /// Bytes sent that the peer's LLP has acknowledged, over SCTP those of the whole association.
            sent: u64,
        },
        /// A tagged message was delivered.
        #[explain("tagged_delivered",
            cause = "A peer's tagged message is complete in its region.",
            remedy = "None.")]
        TaggedDelivered {
            /// Number of the stream.
            stream: StreamId,
            /// Name of the region.
            region: String,
            /// Tagged offset of the message's first byte.
            to: u64,
            /// Length of the message, bytes.
            len: u64,
        },
        /// An untagged message was delivered to a queue with `deliver_to = "events"`.
        #[explain("message",
            cause = "A peer sent the message.",
            remedy = "None. Under load, deliver the queue to a file instead: the event log is bounded.")]
        Message {
            /// Number of the stream.
            stream: StreamId,
            /// Listener that accepted the stream. `null` if the appliance opened it.
            listener: Option<String>,
            /// Queue number.
            queue: u32,
            /// Message sequence number.
            msn: u32,
            /// RsvdULP field of the message, 40 bits, not interpreted. 0 over RDMAP, which uses the field itself.
            #[serde(default)]
            rsvd_ulp: u64,
            /// Content of the message, in base64.
            #[serde(with = "bytes")]
            #[schemars(with = "crate::schema_shapes::Base64")]
            data: Vec<u8>,
        },
        /// The rights of peers on a region were changed. All workers apply the change.
        #[explain("region_access",
            cause = "`ddpctl regions set-access`, or a reload with another `access`.",
            remedy = "None.")]
        RegionAccess {
            /// Name of the region.
            region: String,
            /// New rights: `rw`, `rwa` (with atomics), `r`, `w` or `-` (none).
            access: String,
        },
        /// A region was added.
        #[explain("region_added",
            cause = "`ddpctl regions add`, a reload, or the start.",
            remedy = "None.")]
        RegionAdded {
            /// Name of the region.
            region: String,
        },
        /// A region was removed. No more bytes can be placed in it.
        #[explain("region_removed",
            cause = "`ddpctl regions remove`, or a reload without it.",
            remedy = "None. Peers that still use its STag get an error, and their streams end.")]
        RegionRemoved {
            /// Name of the region.
            region: String,
        },
        /// A local program attached.
        #[explain("program_attached",
            cause = "A program opened a session on the socket of `[programs]`.",
            remedy = "None. `ddpctl programs` lists all programs.")]
        ProgramAttached {
            /// Number of the program.
            program: u32,
            /// Name that the program sent when it attached.
            name: String,
            /// Effective user id.
            uid: u32,
            /// Process id.
            pid: i32,
        },
        /// A local program has ended. Its connections were reset, and its memory was freed.
        #[explain("program_ended",
            cause = "The program closed its session or ended, `ddpctl programs kill`, or the program did not read its \
                     messages.",
            remedy = "None. If the program is still running, the log has the reason.")]
        ProgramEnded {
            /// Number of the program.
            program: u32,
            /// Name that the program sent when it attached.
            name: String,
        },
        /// A local program was refused.
        #[explain("program_refused",
            cause = "The user may not attach, the limit `programs.programs` is reached, the program's library is too \
                     old or too new, memory is missing, or the appliance is draining.",
            remedy = "`reason` has the cause. Add the user or a group to `programs.allow`, raise the limit, or end \
                      other programs with `ddpctl programs kill`.")]
        ProgramRefused {
            /// Effective user id.
            uid: u32,
            /// Process id.
            pid: i32,
            /// Reason, one sentence.
            reason: String,
        },
        /// A queue pair or completion queue of a local program failed.
        #[explain("program_error",
            cause = "The program posted an invalid request, used memory that it has not registered, or did not take \
                     completions in time.",
            remedy = "`reason` has the cause. Correct the program.")]
        ProgramError {
            /// Number of the program.
            program: u32,
            /// Queue and cause, one sentence.
            reason: String,
        },
        /// A listener was added.
        #[explain("listener_added",
            cause = "`ddpctl listeners add`, a reload, or the start.",
            remedy = "None.")]
        ListenerAdded {
            /// Name of the listener.
            listener: String,
        },
        /// A listener was removed.
        #[explain("listener_removed",
            cause = "`ddpctl listeners remove`, or a reload without it.",
            remedy = "None. Its streams stay.")]
        ListenerRemoved {
            /// Name of the listener.
            listener: String,
        },
        /// The link of a port went up or down.
        #[explain("link_changed",
            cause = "A cable, a switch port, or the other end of a memif, vhost-user or veth port went down or came \
                     up.",
            remedy = "With `up=false`: see `ip link` or the other process. `link_down_timeout` in `[[port]]` \
                      determines when streams end.")]
        LinkChanged {
            /// Name of the port.
            port: String,
            /// True if the link is up.
            up: bool,
        },
        /// Another host uses an address of an interface. The event is repeated every ten seconds during the conflict.
        #[explain("address_conflict",
            cause = "Another host, or another appliance, has the same address on this link, or the address is on the \
                     host's interface, too.",
            remedy = "Give one of them another address. `other` is the MAC address to look for in the switch.")]
        AddressConflict {
            /// Name of the interface.
            interface: String,
            /// IP address in conflict.
            address: String,
            /// MAC address of the other host.
            other: String,
        },
        /// IPsec dropped a packet for a reason that RFC 4301 or RFC 4303 defines as auditable. At most 16 events per
        /// second and worker; the counters include all drops.
        #[explain("ipsec_dropped",
            cause = "One end has restarted or lost an SA, the policies of the two ends differ, or packets are \
                     replayed.",
            remedy = "`ddpctl explain ipsec_WHY` or `esp_WHY` explains a `why`; for `too_old` and `duplicate` it is \
                      `esp_replay`. Compare `ddpctl ipsec sas` with the peer's SAs.")]
        IpsecDropped {
            /// Reason: `unprotected`, `wrong_protection`, `policy_discarded`, `no_policy`, `unknown_spi`, `too_old`,
            /// `duplicate`, `integrity`, `fragment`.
            why: String,
            /// SPI of an ESP packet. `null` without ESP.
            spi: Option<u32>,
            /// Sequence number field of an ESP packet. `null` without ESP.
            sequence: Option<u32>,
            /// Destination address, with port if known.
            local: String,
            /// Source address, with port if known.
            remote: String,
        },
        /// A policy requires protection for a packet, but there is no SA. At most one event per second and policy.
        #[explain("ipsec_no_sa",
            cause = "The IKE daemon does not run, cannot reach the peer, or failed to negotiate; with keys from \
                     files, an `[[ipsec.sa]]` is missing.",
            remedy = "See the log of the IKE daemon, and `ddpctl ipsec sas`. Without an SA the policy's packets are \
                      dropped.")]
        IpsecNoSa {
            /// Name of the policy.
            policy: String,
            /// Address of the peer, with port if known.
            remote: String,
        },
        /// The state of an SA has changed.
        #[explain("ipsec_sa",
            cause = "The IKE daemon added, renewed or removed the SA, or a lifetime has ended.",
            remedy = "None for `added`, `removed` and `soft`. After `over` without a successor, see the IKE daemon, \
                      or put new keys in place.")]
        IpsecSa {
            /// SPI of the SA.
            spi: u32,
            /// `in` or `out`.
            direction: String,
            /// Name of the SA in the configuration. Empty if it is not configured.
            name: String,
            /// New state: `added` or `removed` (SAs of the kernel), `soft` (soft lifetime reached, to be rekeyed soon),
            /// `over` (expired: hard lifetime or sequence numbers used up).
            state: String,
        },
        /// A policy or SA of the kernel is not supported. Packets that such a policy protects are dropped.
        #[explain("ipsec_refused",
            cause = "The IKE daemon negotiated an unsupported feature, such as AH, an algorithm, a mark or offload.",
            remedy = "Change the proposal or the policy in the IKE daemon; docs/ipsec.md lists the supported \
                      features.")]
        IpsecRefused {
            /// `policy` or `sa`.
            what: String,
            /// Selector of the policy, or SPI and addresses of the SA.
            name: String,
            /// Reason, one sentence.
            reason: String,
        },
        /// A benchmark has started its load.
        #[explain("bench_started",
            cause = "`ddpctl bench`.",
            remedy = "None. `job_finished` follows with the result.")]
        BenchStarted {
            /// Number of the job.
            job: u64,
            /// Operation: `write`, `read`, `send`, `echo` or `connect`.
            load: String,
            /// Address and port of the peer.
            remote: String,
            /// Number of streams.
            streams: u32,
        },
        /// A job (`put`, `get`, `bench`) has ended.
        #[explain("job_finished",
            cause = "The job is done, failed or was cancelled.",
            remedy = "With `error`: `ddpctl why JOB` has the history. Remove the cause and start the job again.")]
        JobFinished {
            /// Number of the job.
            job: u64,
            /// Reason of a failure, one sentence. `null` if the job has succeeded or was cancelled.
            error: Option<String>,
        },
        /// A condition that needs the operator's attention, such as a file that cannot be written.
        #[explain("warning",
            cause = "A file cannot be written, an interface has changed, a host sends packets without checksums, or a \
                     limit of the machine is reached.",
            remedy = "The sentence has the remedy. A lasting condition is also a note of `ddpctl status`; `ddpctl \
                      explain` explains the notes.")]
        Warning {
            /// The condition, one sentence.
            message: String,
        },
    }
}

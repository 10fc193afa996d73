//! The kinds of events, with their explanations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::StreamId;
use crate::spec::bytes;

/// Declares the kinds of events, each with its [`Explanation`](base::explain::Explanation): the doc comment is the meaning.
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
    /// What can happen. In JSON the member `event` names the kind.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(tag = "event", rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum EventKind {
        /// The appliance serves.
        #[explain("started",
            cause = "The program started, or the service manager restarted it.",
            remedy = "None. If it was not asked for, the log before it says why the last run ended.")]
        Started {
            /// Its name.
            appliance: String,
        },
        /// It takes no new streams and waits for the others to end.
        #[explain("draining",
            cause = "`ddpctl drain`, or the appliance stops.",
            remedy = "`ddpctl undrain` takes new streams again, unless it stops.")]
        Draining,
        /// It takes new streams again.
        #[explain("undrained",
            cause = "`ddpctl undrain`.",
            remedy = "None.")]
        Undrained,
        /// The configuration was applied again.
        #[explain("reloaded",
            cause = "SIGHUP, `systemctl reload` or `ddpctl reload`.",
            remedy = "None. `ddpctl reload --dry-run` names keys that still wait for a restart.")]
        Reloaded {
            /// What changed, one sentence each.
            changes: Vec<String>,
        },
        /// A stream is ready for messages.
        #[explain("stream_established",
            cause = "A peer connected, or `ddpctl connect`, `put`, `get` or `bench` opened it.",
            remedy = "None.")]
        StreamEstablished {
            /// The stream.
            stream: StreamId,
            /// Its listener; none if it was opened from here.
            listener: Option<String>,
            /// Address and port of the peer.
            remote: String,
        },
        /// A peer wanted an exclusive region that another stream has: it is advertised as busy to it.
        #[explain("region_busy",
            cause = "A region without `shared` serves one stream at a time, and an earlier peer still has it, perhaps one \
                     that has crashed.",
            remedy = "`ddpctl streams close HOLDER` frees it at once. Set `shared = true` if several peers may write \
                      together.")]
        RegionBusy {
            /// The region.
            region: String,
            /// The stream that has it; none while one is being opened.
            holder: Option<StreamId>,
            /// Whole seconds since that stream was bound or last wrote.
            idle_for: u64,
            /// Address and port of the peer that wanted it.
            remote: String,
        },
        /// A stream could not be opened from here.
        #[explain("stream_refused",
            cause = "Nothing listens at the peer, it rejects us, or no packet reaches it.",
            remedy = "The members `reason` and `hint` have the cause and what to do; then routes, firewalls and the \
                      peer's listener.")]
        StreamRefused {
            /// None.
            listener: Option<String>,
            /// Address and port of the peer.
            remote: String,
            /// Why, one sentence.
            reason: String,
            /// What the operator can do.
            #[serde(default)]
            hint: Option<String>,
        },
        /// A peer connected and did not become a stream: its handshake failed, or it was refused. Not all of a flood are
        /// here; the counters have all.
        #[explain("handshake_failed",
            cause = "A client of another protocol, a wrong port or ulp, a limit of the listener, a scanner or a health \
                     check.",
            remedy = "The members `stage`, `detail` and `hint` say which. `ddpctl explain REASON` has the refusals of \
                      stage `admission`.")]
        HandshakeFailed {
            /// The listener; none where nothing listens.
            listener: Option<String>,
            /// `tcp` or `sctp`.
            transport: String,
            /// Our address and port.
            local: String,
            /// Address and port of the peer.
            remote: String,
            /// The layer at which it ended: `tcp`, `mpa`, `sctp`, `session`, `ddp`, `rdmap`, or `admission` where this end
            /// refused.
            stage: String,
            /// Why, a word that the counter has too.
            reason: String,
            /// What was expected and seen, one sentence.
            detail: String,
            /// What the operator can do.
            hint: Option<String>,
            /// Failures since the last of these events that have none.
            unreported: u64,
        },
        /// A protocol error: layer, code, field, expected and seen are in the sentence.
        #[explain("stream_error",
            cause = "The peer's program broke the protocol, a wrong STag, offset or queue first of all, or a checksum \
                     failed on the way.",
            remedy = "`ddpctl why STREAM` has the header, what was expected, and the key of the configuration that \
                      matters.")]
        StreamError {
            /// The stream.
            stream: StreamId,
            /// `tcp`, `mpa`, `ddp`, `rdmap`, or `service` where a peer's program is not the one it should be.
            layer: String,
            /// The code as the layer's document writes it, such as `1/02`.
            code: String,
            /// What was expected and what was seen.
            reason: String,
        },
        /// RDMAP's Terminate was sent or received: the stream ends.
        #[explain("terminated",
            cause = "One end found an error of the other: access outside a region, a removed region, or too few buffers.",
            remedy = "`ddpctl why STREAM` explains the code. With `by_peer` look for the cause in the peer's log, too.")]
        Terminated {
            /// The stream.
            stream: StreamId,
            /// It came from the peer.
            by_peer: bool,
            /// Layer, type and code in hexadecimal, such as `1/1/00`.
            code: String,
            /// What it says.
            reason: String,
        },
        /// A peer has invalidated a region's STag; the region has another one from now on.
        #[explain("stag_invalidated",
            cause = "The peer sent Send with Invalidate, which ends its own access.",
            remedy = "None: RDMA programs do so after each use. The peer takes the new STag from the next advertisement.")]
        StagInvalidated {
            /// The region.
            region: String,
        },
        /// A job (`get`) has brought bytes of a peer into a region.
        #[explain("region_fetched",
            cause = "`ddpctl get --into REGION`.",
            remedy = "None.")]
        RegionFetched {
            /// The region.
            region: String,
            /// The first byte, from the region's start.
            offset: u64,
            /// Bytes.
            bytes: u64,
        },
        /// A stream makes no progress: its tenth time-out in a row, or the last one before its limits end it. Once, until it
        /// makes progress again.
        #[explain("stream_stalled",
            cause = "The peer's host is gone, the path is cut, or the peer's program keeps its window closed.",
            remedy = "Do what `hint` says; `ddpctl streams show STREAM` has the limit. The stream ends by itself at \
                      `user_timeout` or `zero_window_timeout`.")]
        StreamStalled {
            /// The stream.
            stream: StreamId,
            /// Address and port of the peer.
            remote: String,
            /// Time-outs in a row.
            timeouts: u32,
            /// Seconds since the peer acknowledged something new.
            seconds: u64,
            /// What is awaited, one sentence.
            reason: String,
            /// What the operator can do.
            hint: String,
        },
        /// A stream that had stalled makes progress again.
        #[explain("stream_resumed",
            cause = "The path or the peer works again.",
            remedy = "None. Often the sign of a short outage: look at the switch and the link.")]
        StreamResumed {
            /// The stream.
            stream: StreamId,
            /// Address and port of the peer.
            remote: String,
            /// Seconds without progress.
            seconds: u64,
        },
        /// A stream has ended.
        #[explain("stream_closed",
            cause = "Either end closed it, or an error or a time-out ended it.",
            remedy = "None if `reason` is a close in order. Else `ddpctl why STREAM`.")]
        StreamClosed {
            /// The stream.
            stream: StreamId,
            /// Why, one sentence.
            reason: String,
            /// Bytes placed in regions and buffers.
            placed: u64,
            /// Bytes sent and acknowledged.
            sent: u64,
        },
        /// A tagged message was delivered.
        #[explain("tagged_delivered",
            cause = "A peer's tagged message is complete in its region.",
            remedy = "None.")]
        TaggedDelivered {
            /// The stream.
            stream: StreamId,
            /// The region.
            region: String,
            /// Tagged offset of its first byte.
            to: u64,
            /// Its bytes.
            len: u64,
        },
        /// An untagged message was delivered to a queue with `deliver_to = "events"`.
        #[explain("message",
            cause = "A peer sent an untagged message to a queue with `deliver_to = \"events\"`.",
            remedy = "None. Under load deliver the queue to a file instead: the log of events is bounded.")]
        Message {
            /// The stream.
            stream: StreamId,
            /// The listener; none if the stream was opened from here.
            listener: Option<String>,
            /// Queue number.
            queue: u32,
            /// Message sequence number.
            msn: u32,
            /// The peer's RsvdULP, 40 bits, not interpreted; 0 over RDMAP, to which it belongs.
            #[serde(default)]
            rsvd_ulp: u64,
            /// The bytes, in base64.
            #[serde(with = "bytes")]
            #[schemars(with = "crate::schema_shapes::Base64")]
            data: Vec<u8>,
        },
        /// What peers may do with a region was changed, on every worker.
        #[explain("region_access",
            cause = "`ddpctl regions set-access`, or a reload with another `access`.",
            remedy = "None.")]
        RegionAccess {
            /// Its name.
            region: String,
            /// What they may do now.
            access: String,
        },
        /// A region was added.
        #[explain("region_added",
            cause = "`ddpctl regions add`, a reload, or the start.",
            remedy = "None.")]
        RegionAdded {
            /// Its name.
            region: String,
        },
        /// A region was removed: no byte can be placed in it any more.
        #[explain("region_removed",
            cause = "`ddpctl regions remove`, or a reload without it.",
            remedy = "None. Peers that go on with its STag get an error and lose their stream.")]
        RegionRemoved {
            /// Its name.
            region: String,
        },
        /// A listener was added.
        #[explain("listener_added",
            cause = "`ddpctl listeners add`, a reload, or the start.",
            remedy = "None.")]
        ListenerAdded {
            /// Its name.
            listener: String,
        },
        /// A listener was removed.
        #[explain("listener_removed",
            cause = "`ddpctl listeners remove`, or a reload without it.",
            remedy = "None. Its streams stay.")]
        ListenerRemoved {
            /// Its name.
            listener: String,
        },
        /// A port's link went up or down.
        #[explain("link_changed",
            cause = "A cable, a switch port or the peer of a memif, vhost-user or veth went away or came back.",
            remedy = "With `up=false`: see `ip link` or the other process. `link_down_timeout` in `[[port]]` decides when \
                      streams end.")]
        LinkChanged {
            /// The port.
            port: String,
            /// The new state.
            up: bool,
        },
        /// Another host uses an address of ours. Told every ten seconds for as long as it does.
        #[explain("address_conflict",
            cause = "Another host, or another appliance, has the same address on this link; or the address is on the \
                     host's interface, too.",
            remedy = "Give one of them another address. `other` is the MAC address to look for in the switch.")]
        AddressConflict {
            /// The interface.
            interface: String,
            /// The address.
            address: String,
            /// The other host's link-layer address.
            other: String,
        },
        /// A packet was dropped by IPsec in a way that RFC 4301 and RFC 4303 call auditable. At most 16 a second of each worker
        /// are told; the counters have all.
        #[explain("ipsec_dropped",
            cause = "One end has restarted or lost an SA, the policies of the two ends differ, or a replay.",
            remedy = "`ddpctl explain` has each `why` as a drop reason: `ipsec_...` and `esp_...`, of which `esp_replay` is \
                      `too_old` and `duplicate`. Compare `ddpctl ipsec sas` with the peer's.")]
        IpsecDropped {
            /// Why: `unprotected`, `wrong_protection`, `policy_discarded`, `no_policy`, `unknown_spi`, `too_old`, `duplicate`,
            /// `integrity`, `fragment`.
            why: String,
            /// The SPI, if it came by ESP.
            spi: Option<u32>,
            /// The sequence number as it stands in the packet, if it came by ESP.
            sequence: Option<u32>,
            /// Where it went; with the port, if there is one.
            local: String,
            /// Where it came from.
            remote: String,
        },
        /// A packet is to be protected, and there is no SA for it. Told once a second at most for each policy.
        #[explain("ipsec_no_sa",
            cause = "The IKE daemon does not run, cannot reach the peer, or failed to agree; with keys from files, an \
                     `[[ipsec.sa]]` is missing.",
            remedy = "See the log of the IKE daemon, and `ddpctl ipsec sas`. Until there is an SA the policy's packets \
                      are dropped.")]
        IpsecNoSa {
            /// The policy.
            policy: String,
            /// The peer.
            remote: String,
        },
        /// The lifetime of an SA.
        #[explain("ipsec_sa",
            cause = "The IKE daemon added, renewed or removed it, or a lifetime has ended.",
            remedy = "None for `added`, `removed` and `soft`. After `over` without a successor, see the IKE daemon, or \
                      put new keys in place.")]
        IpsecSa {
            /// Its SPI.
            spi: u32,
            /// `in` or `out`.
            direction: String,
            /// Its name in the configuration; empty if it does not stand there.
            name: String,
            /// `added` and `removed`, of those of the kernel; `soft`: it is to be replaced soon; `over`: it takes nothing more.
            state: String,
        },
        /// A policy or an SA of the kernel is not served as it stands there. What such a policy protects is dropped.
        #[explain("ipsec_refused",
            cause = "The IKE daemon negotiated what is not served here, such as AH, an algorithm, a mark or offload.",
            remedy = "Change the proposal or the policy in the IKE daemon; docs/ipsec.md lists what is served.")]
        IpsecRefused {
            /// `policy` or `sa`.
            what: String,
            /// Its selector, or its SPI and addresses.
            name: String,
            /// Why.
            reason: String,
        },
        /// A bench has begun to load its streams.
        #[explain("bench_started",
            cause = "`ddpctl bench`.",
            remedy = "None. The result comes with `job_finished`.")]
        BenchStarted {
            /// Its job.
            job: u64,
            /// `write`, `read`, `send`, `echo` or `connect`.
            load: String,
            /// Address and port of the peer.
            remote: String,
            /// Streams.
            streams: u32,
        },
        /// A job (`put`, `get`, `bench`) ended.
        #[explain("job_finished",
            cause = "A `put`, `get` or `bench` has ended.",
            remedy = "With `error`: `ddpctl why JOB` says what happened; then start it again.")]
        JobFinished {
            /// The job.
            job: u64,
            /// What went wrong; none if it succeeded.
            error: Option<String>,
        },
        /// Something the operator should know, such as a file that cannot be written.
        #[explain("warning",
            cause = "A file cannot be written, an interface has changed, a host sends no checksums, or a limit of the \
                     machine.",
            remedy = "The sentence has the remedy. What lasts is also a note of `ddpctl status`: `ddpctl explain` has the \
                      notes.")]
        Warning {
            /// One sentence.
            message: String,
        },
    }
}

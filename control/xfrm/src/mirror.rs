//! The mirror: processes dumps and messages of the monitor, and sends requests for the data plane.
//!
//! ```text
//!   Idle --request_dump--> Defaults -> Policies -> Sas -> Idle
//! ```
//!
//! The kernel allows one dump at a time on a socket, so the steps of a dump are separate requests, one after another. A
//! dump that the kernel marks as interrupted, or that is requested again while it runs, is repeated. *Invariant:* the
//! data plane receives no policies and SAs before the first dump is complete.

use std::collections::VecDeque;

use ipsec::guard::Protection;
use ipsec::policy::Flow;
use netlink_packet_xfrm::{AcquireMessage, XfrmMessage};

use crate::event::{Event, EventQueue, PolicyInfo, ProtectionInfo, SaId, SaInfo};
use crate::message::{self, Body, Message};
use crate::policies::Policies;
use crate::request::{self, Request};
use crate::sa::{SaKey, Usage};
use crate::sas::{SaMessage, Sas};

/// Maximum number of waiting requests for SAs. A lost request is not an error: the data plane repeats it.
const MAX_WANTED: usize = 64;

/// Parameters of the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// Minimum anti-replay window in packets. The larger of this value and the kernel's window is used, clamped to the
    /// range 64 to 4096.
    pub min_window: u16,
    /// Sequence numbers that one reservation requests for an outbound SA; 0 counts as 1.
    pub chunk: u64,
}

impl Default for MirrorConfig {
    fn default() -> MirrorConfig {
        MirrorConfig { min_window: 1024, chunk: 1 << 20 }
    }
}

/// Counters of the mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorCounters {
    /// Messages that could not be parsed.
    pub malformed: u64,
    /// Policies omitted since the last dump began because the mirror was full.
    pub policies_left_out: u64,
    /// SAs omitted since the last dump began because the mirror was full.
    pub sas_left_out: u64,
    /// Requests for SAs dropped because too many were waiting.
    pub acquires_lost: u64,
    /// Warnings dropped because too many were waiting.
    pub warnings_lost: u64,
}

/// Current step of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DumpStep {
    Idle,
    Defaults,
    Policies,
    Sas,
}

/// State of the current dump. The kernel allows one dump at a time on a socket.
#[derive(Debug)]
struct Dump {
    step: DumpStep,
    /// Netlink sequence number of the request, once it is sent.
    request: Option<u32>,
    /// True once the first message of the answer has arrived.
    has_answer: bool,
    /// True if the dump must be repeated after its end.
    repeat: bool,
}

/// Mirror of the kernel's policies and SAs, for the data plane.
pub struct Mirror {
    config: MirrorConfig,
    dump: Dump,
    policies: Policies,
    sas: Sas,
    /// Requests for SAs that are not yet sent, oldest first, at most [`MAX_WANTED`].
    acquires: VecDeque<Box<AcquireMessage>>,
    events: EventQueue,
    /// Netlink sequence number, incremented by each [`Mirror::poll_transmit`].
    sequence: u32,
    /// True once the first dump is complete.
    synced: bool,
    /// True from a refused dump until the next complete dump.
    dump_refused: bool,
    /// True if policies or SAs have changed since events were last generated.
    has_changes: bool,
    counts: MirrorCounters,
}

impl Mirror {
    /// Returns an empty mirror; [`Mirror::request_dump`] fills it.
    pub fn new(config: MirrorConfig) -> Mirror {
        Mirror {
            config,
            dump: Dump { step: DumpStep::Idle, request: None, has_answer: false, repeat: false },
            policies: Policies::new(),
            sas: Sas::new(),
            acquires: VecDeque::new(),
            events: EventQueue::default(),
            sequence: 0,
            synced: false,
            dump_refused: false,
            has_changes: false,
            counts: MirrorCounters::default(),
        }
    }

    /// Requests all policies and SAs of the kernel. The caller calls this at the start, once the socket has joined its
    /// groups, and whenever messages were lost (ENOBUFS). Unchanged entries cause no event; entries that the dump does
    /// not list are removed. Reservations whose acknowledgement may be lost are requested again.
    pub fn request_dump(&mut self) {
        self.sas.retry_reservations();
        self.has_changes = true;
        match self.dump {
            Dump { step: DumpStep::Policies | DumpStep::Sas, request: Some(_), .. } => {
                self.dump.repeat = true;
            }
            _ => self.set_step(DumpStep::Defaults),
        }
    }

    /// Repeats a dump that the kernel refused. The caller calls this periodically.
    pub fn retry(&mut self) {
        if self.dump_refused && self.dump.step == DumpStep::Idle {
            self.request_dump();
        }
    }

    /// Restarts the dump after a request could not be sent.
    pub fn restart(&mut self) {
        self.set_step(DumpStep::Idle);
        self.request_dump();
    }

    /// Processes a datagram of the kernel: answers, acknowledgements, and messages of the monitor. The caller checks
    /// that the sender is the kernel (port 0), and wipes the datagram afterwards because it may contain keys.
    pub fn input(&mut self, datagram: &[u8]) {
        for message in message::messages(datagram) {
            match message {
                Ok(message) => self.handle_message(message),
                Err(message::Malformed { kind }) => {
                    self.counts.malformed += 1;
                    let what = kind.map_or("is cut off".to_owned(), |kind| {
                        format!("of type {kind:#x} cannot be read")
                    });
                    self.events.warn(format!("a message of the kernel's XFRM {what}"));
                }
            }
        }
        self.push_events();
    }

    /// Returns the next request to send to the kernel (port 0). `None` if there is none.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        if self.dump.request.is_none() {
            let request = match self.dump.step {
                DumpStep::Idle => None,
                DumpStep::Defaults => Some(request::get_defaults()),
                DumpStep::Policies => Some(request::dump_policies()),
                DumpStep::Sas => Some(request::dump_sas()),
            };
            if let Some(request) = request {
                self.dump.request = Some(self.sequence);
                return Some(request::serialize(request, self.sequence, false));
            }
        }
        if let Some((request, acknowledged)) = self.sas.poll_transmit(self.sequence) {
            return Some(request::serialize(request, self.sequence, acknowledged));
        }
        let acquire = self.acquires.pop_front()?;
        let request = Request { message: XfrmMessage::Acquire(*acquire), flags: 0 };
        Some(request::serialize(request, self.sequence, false))
    }

    /// Returns the oldest event. `None` if there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Returns true once the first dump is complete.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Requests an SA for a flow; the kernel passes the request to the IKE daemons.
    pub fn acquire(&mut self, protection: Protection, flow: &Flow) {
        let Some((policy, wants)) = self.policies.outbound_policy(protection, flow) else { return };
        if self.acquires.len() < MAX_WANTED {
            self.acquires.push_back(Box::new(request::acquire(policy, &wants, flow)));
        } else {
            self.counts.acquires_lost += 1;
        }
    }

    /// Reports that an SA has expired, in bytes or packets or because its sequence numbers run out. `hard` is false for
    /// a soft expiry (a limit is near). The kernel notifies the daemons, and on a hard expiry deletes the SA
    /// ([`Event::RemoveSa`]).
    pub fn expire(&mut self, id: SaId, hard: bool) {
        self.sas.expire(id, hard);
    }

    /// Reports the use of an SA in the data plane since [`Event::AddSa`]: packets, bytes, and the highest sequence
    /// number. For an outbound SA `sequence` is ignored, because the kernel already has the last reserved number. `now`
    /// is Unix time in seconds. A report replaces earlier unsent reports of the same SA.
    pub fn report_usage(&mut self, id: SaId, packets: u64, bytes: u64, sequence: u64, now: u64) {
        self.sas.report_usage(id, Usage { bytes, packets }, sequence, now);
    }

    /// Reserves the next sequence numbers of an outbound SA: [`Event::Reserved`] follows, or a warning. No effect while
    /// a reservation of the SA is pending, or if all its sequence numbers are reserved.
    pub fn reserve_sequence(&mut self, id: SaId) {
        self.sas.reserve_sequence(id, self.config.chunk);
    }

    /// Returns the mirrored policies in the kernel's order.
    pub fn policies(&self) -> impl Iterator<Item = PolicyInfo> {
        self.policies.infos()
    }

    /// Returns the mirrored SAs, the oldest first.
    pub fn sas(&self) -> impl Iterator<Item = SaInfo> {
        self.sas.infos()
    }

    /// Returns the protections that policies require, ordered by number.
    pub fn protections(&self) -> Vec<ProtectionInfo> {
        self.policies.protections.list()
    }

    /// Returns a snapshot of the counters.
    pub fn counters(&self) -> MirrorCounters {
        MirrorCounters {
            policies_left_out: self.policies.left_out,
            sas_left_out: self.sas.left_out,
            warnings_lost: self.events.lost_warnings,
            ..self.counts
        }
    }

    fn set_step(&mut self, step: DumpStep) {
        self.dump = Dump { step, request: None, has_answer: false, repeat: false };
    }

    fn handle_message(&mut self, message: Message) {
        let of_dump = message.is_dump && self.dump.request == Some(message.sequence);
        if of_dump {
            self.mark_answered();
            self.dump.repeat |= message.interrupted;
        } else {
            self.has_changes |= !matches!(
                message.body,
                Body::Acknowledged(_) | Body::Done(_) | Body::Defaults(_) | Body::Other
            );
        }
        let events = &mut self.events;
        let room = match message.body {
            Body::Policy(info, attributes) => {
                self.policies.insert(*info, attributes, of_dump, events);
                false
            }
            Body::PolicyDeleted(id, attributes) => self.policies.delete(&id, &attributes),
            Body::PolicyExpired(expire, attributes) => {
                expire.hard != 0 && self.policies.remove_expired(&expire.pol, &attributes)
            }
            Body::PoliciesFlushed(attributes) => {
                if attributes.policy_type == 0 {
                    self.policies.flush();
                }
                false
            }
            Body::Defaults(defaults) => {
                self.policies.set_defaults(defaults);
                self.has_changes = true;
                if self.dump.step == DumpStep::Defaults
                    && self.dump.request == Some(message.sequence)
                {
                    self.set_step(DumpStep::Policies);
                }
                false
            }
            Body::Sa { info, update, attributes } => {
                let origin = SaMessage { is_update: update, of_dump };
                self.sas.insert(*info, attributes, origin, events);
                false
            }
            Body::SaDeleted(id, of) => {
                self.sas.remove(&SaKey::new(id.family, &id.daddr, id.spi, id.proto, &of), events)
            }
            Body::SaExpired(expire, of) => {
                let (info, hard) = (&expire.state, expire.hard != 0);
                let (id, family) = (&info.id, info.family);
                let key = SaKey::new(family, &id.daddr, id.spi, id.proto, &of);
                hard && self.sas.remove(&key, events)
            }
            Body::SasFlushed(protocol) => self.sas.flush(protocol, events),
            // Neither message contains the changed policies and SAs, so a new dump is needed.
            Body::Migrated | Body::Overrun => true,
            Body::Acknowledged(code) => {
                self.handle_ack(message.sequence, code);
                false
            }
            Body::Done(code) => {
                if of_dump || self.dump.request == Some(message.sequence) {
                    self.handle_done(code);
                }
                false
            }
            Body::Other => false,
        };
        if room {
            self.request_dump();
        }
    }

    /// Records that the kernel has begun to answer the dump.
    fn mark_answered(&mut self) {
        if std::mem::replace(&mut self.dump.has_answer, true) {
            return;
        }
        match self.dump.step {
            DumpStep::Policies => self.policies.begin_dump(),
            DumpStep::Sas => self.sas.begin_dump(),
            DumpStep::Idle | DumpStep::Defaults => {}
        }
    }

    fn handle_ack(&mut self, request: u32, code: i32) {
        if self.dump.request != Some(request) {
            self.sas.handle_ack(request, code, &mut self.events);
        } else if self.dump.step == DumpStep::Defaults {
            // Kernels before Linux 5.15 refuse the request for default policies. The dump continues with the next step.
            self.set_step(DumpStep::Policies);
        } else if code != 0 {
            self.handle_failure(code);
        }
    }

    fn handle_done(&mut self, code: i32) {
        if code < 0 {
            return self.handle_failure(code);
        }
        self.mark_answered();
        let again = self.dump.repeat;
        match self.dump.step {
            DumpStep::Idle | DumpStep::Defaults => {}
            _ if again => self.set_step(DumpStep::Defaults),
            DumpStep::Policies => {
                self.policies.end_dump();
                self.set_step(DumpStep::Sas);
            }
            DumpStep::Sas => {
                self.sas.end_dump(&mut self.events);
                self.set_step(DumpStep::Idle);
                self.synced = true;
                self.dump_refused = false;
                self.has_changes = true;
            }
        }
    }

    fn handle_failure(&mut self, code: i32) {
        // The failure is reported once, not for each retry.
        if !std::mem::replace(&mut self.dump_refused, true) {
            let error = std::io::Error::from_raw_os_error(code.wrapping_neg());
            self.events.warn(format!("the kernel does not list its policies and SAs: {error}"));
        }
        let again = self.dump.repeat;
        self.set_step(if again { DumpStep::Defaults } else { DumpStep::Idle });
    }

    /// Turns the changes since the last call into events.
    fn push_events(&mut self) {
        if !self.synced || !std::mem::take(&mut self.has_changes) {
            return;
        }
        let policies = self.policies.refresh_list(&mut self.events);
        let begin = self.sas.assign_services(&self.policies.protections, &mut self.events);
        policies.into_iter().for_each(|event| self.events.push(event));
        let MirrorConfig { min_window, chunk } = self.config;
        self.sas.add_to_dataplane(begin, min_window, chunk, &mut self.events);
        if self.sas.needs_dump && self.dump.step == DumpStep::Idle {
            self.request_dump();
        }
    }
}

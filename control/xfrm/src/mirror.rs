//! The mirror: dumps, messages of the monitor, and requests of the data plane.

use std::collections::VecDeque;

use ipsec::guard::Protection;
use ipsec::policy::Flow;
use netlink_packet_xfrm::{AcquireMessage, XfrmMessage};

use crate::event::{Event, Events, PolicyInfo, ProtectionInfo, SaId, SaInfo};
use crate::message::{self, Body, Message};
use crate::policies::Policies;
use crate::request;
use crate::sa::{Key, Used};
use crate::sas::Sas;

/// Most waiting requests for SAs; the data plane repeats its own.
const WANTED: usize = 64;

/// Parameters of the mirror for the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// Least anti-replay window in packets. A larger window of the kernel is used instead, always within 64 to
    /// 4096.
    pub min_window: u16,
    /// Sequence numbers of an outbound SA reserved at a time; at least 1.
    pub chunk: u64,
}

impl Default for MirrorConfig {
    fn default() -> MirrorConfig {
        MirrorConfig { min_window: 1024, chunk: 1 << 20 }
    }
}

/// Counters of the mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that could not be parsed.
    pub malformed: u64,
    /// Policies left out since the last dump, because there are too many.
    pub policies_left_out: u64,
    /// SAs left out since the last dump, because there are too many.
    pub sas_left_out: u64,
    /// Requests for SAs dropped because too many waited.
    pub wanted_lost: u64,
    /// Warnings dropped because too many waited.
    pub warnings_lost: u64,
}

/// Current step of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle,
    Defaults,
    Policies,
    Sas,
}

/// State of the current dump. The kernel allows one dump at a time on a socket.
#[derive(Debug)]
struct Dump {
    step: Step,
    /// Sequence number of the request, once it is sent.
    request: Option<u32>,
    /// True once the first answer has arrived.
    answered: bool,
    /// The dump must be repeated when it is complete.
    again: bool,
}

/// Mirror of the kernel's policies and SAs for the data plane.
pub struct Mirror {
    config: MirrorConfig,
    dump: Dump,
    policies: Policies,
    sas: Sas,
    wanted: VecDeque<Box<AcquireMessage>>,
    events: Events,
    /// Sequence number of the last request.
    sequence: u32,
    synced: bool,
    /// The kernel has refused the last dump.
    refused: bool,
    /// Policies or SAs have changed since the last events.
    changed: bool,
    counts: Counts,
}

impl Mirror {
    /// Returns an empty mirror: see [`Mirror::begin`].
    pub fn new(config: MirrorConfig) -> Mirror {
        Mirror {
            config,
            dump: Dump { step: Step::Idle, request: None, answered: false, again: false },
            policies: Policies::new(),
            sas: Sas::new(),
            wanted: VecDeque::new(),
            events: Events::default(),
            sequence: 0,
            synced: false,
            refused: false,
            changed: false,
            counts: Counts::default(),
        }
    }

    /// Requests all policies and SAs of the kernel. Call it at the start, once the socket has joined its
    /// groups, and whenever messages were lost (ENOBUFS). Unchanged entries cause no event, and entries that
    /// are not listed are removed. Reservations whose acknowledgement may be lost are requested again.
    pub fn begin(&mut self) {
        self.sas.retry();
        self.changed = true;
        match self.dump {
            Dump { step: Step::Policies | Step::Sas, request: Some(_), .. } => {
                self.dump.again = true;
            }
            _ => self.step(Step::Defaults),
        }
    }

    /// Requests a dump again that the kernel has refused. Call it from time to time.
    pub fn retry(&mut self) {
        if self.refused && self.dump.step == Step::Idle {
            self.begin();
        }
    }

    /// Restarts the dump after a request could not be sent.
    pub fn restart(&mut self) {
        self.step(Step::Idle);
        self.begin();
    }

    /// Processes a datagram of the kernel: answers, acknowledgements, and messages of the monitor. The caller
    /// has checked that it comes from the kernel (port 0), and wipes it afterwards: it may hold keys.
    pub fn input(&mut self, datagram: &[u8]) {
        for message in message::messages(datagram) {
            match message {
                Ok(message) => self.take(message),
                Err(message::Malformed { kind }) => {
                    self.counts.malformed += 1;
                    let what = kind.map_or("is cut off".to_owned(), |kind| {
                        format!("of type {kind:#x} cannot be read")
                    });
                    self.events.warn(format!("a message of the kernel's XFRM {what}"));
                }
            }
        }
        self.refresh();
    }

    /// Returns the next request to send to the kernel (port 0).
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        if self.dump.request.is_none() {
            let request = match self.dump.step {
                Step::Idle => None,
                Step::Defaults => Some(request::get_defaults()),
                Step::Policies => Some(request::dump_policies()),
                Step::Sas => Some(request::dump_sas()),
            };
            if let Some(request) = request {
                self.dump.request = Some(self.sequence);
                return Some(request::bytes(request, self.sequence, false));
            }
        }
        if let Some((request, acknowledged)) = self.sas.transmit(self.sequence) {
            return Some(request::bytes(request, self.sequence, acknowledged));
        }
        let acquire = self.wanted.pop_front()?;
        Some(request::bytes((XfrmMessage::Acquire(*acquire), 0), self.sequence, false))
    }

    /// Returns the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// True once the first dump is complete.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Requests an SA for a flow from the IKE daemons.
    pub fn wanted(&mut self, protection: Protection, flow: &Flow) {
        let Some((policy, wants)) = self.policies.outbound(protection, flow) else { return };
        if self.wanted.len() < WANTED {
            self.wanted.push_back(Box::new(request::acquire(policy, &wants, flow)));
        } else {
            self.counts.wanted_lost += 1;
        }
    }

    /// Reports the end of an SA's lifetime of bytes or packets, or (with `hard`) that its sequence numbers are
    /// used up. The kernel notifies the daemons. At a hard end it deletes the SA: [`Event::RemoveSa`] follows.
    pub fn over(&mut self, id: SaId, hard: bool) {
        self.sas.over(id, hard);
    }

    /// Reports the use of an SA in the data plane since [`Event::AddSa`]: packets, their bytes, and the highest
    /// sequence number. For an outbound SA the number is not sent: the kernel has the reserved one. `now` is in
    /// seconds of Unix time. Of several calls before the next [`Mirror::poll_transmit`] only the last one
    /// counts.
    pub fn used(&mut self, id: SaId, packets: u64, bytes: u64, sequence: u64, now: u64) {
        self.sas.report(id, Used { bytes, packets }, sequence, now);
    }

    /// Reserves the next sequence numbers of an outbound SA: [`Event::Reserved`] follows, or a warning. No
    /// effect if all sequence numbers are reserved.
    pub fn reserve(&mut self, id: SaId) {
        self.sas.reserve(id, self.config.chunk);
    }

    /// Returns the mirrored policies, in the kernel's order.
    pub fn policies(&self) -> impl Iterator<Item = PolicyInfo> {
        self.policies.infos()
    }

    /// Returns the mirrored SAs, the oldest first.
    pub fn sas(&self) -> impl Iterator<Item = SaInfo> {
        self.sas.infos()
    }

    /// Returns the protections that policies require, by number.
    pub fn protections(&self) -> Vec<ProtectionInfo> {
        self.policies.protections.list()
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        Counts {
            policies_left_out: self.policies.left_out,
            sas_left_out: self.sas.left_out,
            warnings_lost: self.events.lost,
            ..self.counts
        }
    }

    fn step(&mut self, step: Step) {
        self.dump = Dump { step, request: None, answered: false, again: false };
    }

    fn take(&mut self, message: Message) {
        let of_dump = message.of_dump && self.dump.request == Some(message.sequence);
        if of_dump {
            self.answered();
            self.dump.again |= message.interrupted;
        } else {
            self.changed |= !matches!(
                message.body,
                Body::Acknowledged(_) | Body::Done(_) | Body::Defaults(_) | Body::Other
            );
        }
        let events = &mut self.events;
        let room = match message.body {
            Body::Policy(info, attributes) => {
                self.policies.take(*info, attributes, of_dump, events);
                false
            }
            Body::PolicyDeleted(id, attributes) => self.policies.delete(&id, &attributes),
            Body::PolicyExpired(expire, attributes) => {
                expire.hard != 0 && self.policies.remove(&expire.pol, &attributes)
            }
            Body::PoliciesFlushed(attributes) => {
                if attributes.policy_type == 0 {
                    self.policies.flush();
                }
                false
            }
            Body::Defaults(defaults) => {
                self.policies.set_defaults(defaults);
                self.changed = true;
                if self.dump.step == Step::Defaults && self.dump.request == Some(message.sequence) {
                    self.step(Step::Policies);
                }
                false
            }
            Body::Sa { info, update, attributes } => {
                self.sas.take(*info, attributes, update, of_dump, events);
                false
            }
            Body::SaDeleted(id, of) => {
                self.sas.remove(&Key::new(id.family, &id.daddr, id.spi, id.proto, &of), events)
            }
            Body::SaExpired(expire, of) => {
                let (info, hard) = (&expire.state, expire.hard != 0);
                let (id, family) = (&info.id, info.family);
                let key = Key::new(family, &id.daddr, id.spi, id.proto, &of);
                hard && self.sas.remove(&key, events)
            }
            Body::SasFlushed(protocol) => self.sas.flush(protocol, events),
            // The kernel does not send the changed policies and SAs.
            Body::Migrated | Body::Overrun => true,
            Body::Acknowledged(code) => {
                self.acknowledged(message.sequence, code);
                false
            }
            Body::Done(code) => {
                if of_dump || self.dump.request == Some(message.sequence) {
                    self.done(code);
                }
                false
            }
            Body::Other => false,
        };
        if room {
            self.begin();
        }
    }

    /// Notes that the kernel has begun to list.
    fn answered(&mut self) {
        if std::mem::replace(&mut self.dump.answered, true) {
            return;
        }
        match self.dump.step {
            Step::Policies => self.policies.begin_dump(),
            Step::Sas => self.sas.begin_dump(),
            Step::Idle | Step::Defaults => {}
        }
    }

    fn acknowledged(&mut self, request: u32, code: i32) {
        if self.dump.request != Some(request) {
            self.sas.acknowledged(request, code, &mut self.events);
        } else if self.dump.step == Step::Defaults {
            // Kernels before 5.14 do not support defaults.
            self.step(Step::Policies);
        } else if code != 0 {
            self.failed(code);
        }
    }

    fn done(&mut self, code: i32) {
        if code < 0 {
            return self.failed(code);
        }
        self.answered();
        let again = self.dump.again;
        match self.dump.step {
            Step::Idle | Step::Defaults => {}
            _ if again => self.step(Step::Defaults),
            Step::Policies => {
                self.policies.end_dump();
                self.step(Step::Sas);
            }
            Step::Sas => {
                self.sas.end_dump(&mut self.events);
                self.step(Step::Idle);
                self.synced = true;
                self.refused = false;
                self.changed = true;
            }
        }
    }

    fn failed(&mut self, code: i32) {
        // Reported once for all retries.
        if !std::mem::replace(&mut self.refused, true) {
            let error = std::io::Error::from_raw_os_error(code.wrapping_neg());
            self.events.warn(format!("the kernel does not list its policies and SAs: {error}"));
        }
        let again = self.dump.again;
        self.step(if again { Step::Defaults } else { Step::Idle });
    }

    /// Turns the changes into events.
    fn refresh(&mut self) {
        if !self.synced || !std::mem::take(&mut self.changed) {
            return;
        }
        let policies = self.policies.refresh(&mut self.events);
        let begin = self.sas.settle(&self.policies.protections, &mut self.events);
        policies.into_iter().for_each(|event| self.events.push(event));
        let MirrorConfig { min_window, chunk } = self.config;
        self.sas.start(begin, min_window, chunk, &mut self.events);
        if self.sas.distrusted && self.dump.step == Step::Idle {
            self.begin();
        }
    }
}

//! IPsec policies and SAs of the kernel, which IKE daemons install. They are passed to the workers, and the workers'
//! use of the SAs is reported to the kernel.
//!
//! ```text
//!   IKE daemon <── XFRM ──> kernel <── netlink ──> [`Kernel`] <── commands, events ──> workers
//!
//!   to the workers: policies, SAs, first sequence numbers of outbound SAs
//!   to the kernel:  requests for missing SAs, use and expiries of SAs, reservations of sequence numbers
//! ```

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dataplane::{Protection, SaDirection, SaId, SaInfo};
use ipsec::policy::{Action, Flow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xfrm::{Event, Mirror, MirrorConfig, PolicyInfo, ProtectionInfo};

use super::socket::{ReceiveOutcome, Socket};

/// Maximum number of datagrams received before other inputs are handled.
const BATCH: usize = 256;
/// Time-out of the kernel's first answer: a bug must not block the start forever.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between checks of the time while the kernel's first answer is awaited.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Interval between usage reports of the SAs to the kernel.
const USAGE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of sequence numbers per reservation, enough for more than a second of packets.
const RESERVATION: u64 = 1 << 24;

/// The mirror of the kernel's state, and its netlink socket.
pub(in crate::appliance) struct Kernel {
    socket: Socket,
    mirror: Mirror,
    sas: HashMap<SaId, Sa>,
    protections: Vec<ProtectionInfo>,
    /// Events of the kernel's first answer, until `poll_changes` returns them.
    first_events: Vec<Event>,
    /// Time of the next request to the workers for their use of the SAs. `None` before the first request.
    usage_report_at: Option<Instant>,
    /// True while the workers' answers about the use of SAs are outstanding.
    usage_requested: bool,
    /// True after a failure of the socket was logged. Further failures are not logged.
    broken: bool,
}

/// An SA that the workers use.
#[derive(Clone, Copy, Debug)]
pub(in crate::appliance) struct Sa {
    pub(in crate::appliance) spi: u32,
    pub(in crate::appliance) direction: SaDirection,
    pub(in crate::appliance) protection: Protection,
    /// Number of packets last reported to the kernel.
    reported_packets: u64,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("sas", &self.sas).finish_non_exhaustive()
    }
}

impl Kernel {
    /// Opens the socket and requests the kernel's current state.
    ///
    /// # Errors
    /// Returns one sentence if the socket cannot be opened or the kernel does not answer.
    pub(super) fn open(window: u16) -> Result<Kernel, String> {
        let mirror = Mirror::new(MirrorConfig { min_window: window, chunk: RESERVATION });
        let mut kernel = Kernel {
            socket: Socket::open()?,
            mirror,
            sas: HashMap::new(),
            protections: Vec::new(),
            first_events: Vec::new(),
            usage_report_at: None,
            usage_requested: false,
            broken: false,
        };
        kernel.mirror.request_dump();
        kernel.first_answer()?;
        Ok(kernel)
    }

    /// Waits for the kernel's first answer. The next call of `poll_changes` returns the events of this answer.
    fn first_answer(&mut self) -> Result<(), String> {
        let (mut events, deadline) = (Vec::new(), Instant::now() + FIRST_ANSWER_TIMEOUT);
        while !self.mirror.is_synced() {
            events.extend(self.poll_changes().0);
            if self.broken || Instant::now() >= deadline {
                let last = events.iter().rev().find_map(|event| match event {
                    Event::Warning(warning) => Some(warning.as_str()),
                    _ => None,
                });
                let reason = last.unwrap_or("it does not answer");
                return Err(format!(
                    "[ipsec] keys = \"kernel\": the kernel's XFRM cannot be read: {reason}"
                ));
            }
            if !self.mirror.is_synced() {
                self.mirror.retry();
                let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
                // Signals and time-outs only cause another check of the time.
                let _ = poll(&mut fds, Some(&CHECK_INTERVAL));
            }
        }
        self.first_events = events;
        Ok(())
    }

    /// Returns the socket to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns true if `poll_changes` has returned the events of the first answer.
    pub(super) fn is_ready(&self) -> bool {
        self.first_events.is_empty()
    }

    /// Handles the kernel's datagrams and sends pending requests. Returns the changes, and true if more datagrams may
    /// be pending.
    pub(in crate::appliance) fn poll_changes(&mut self) -> (Vec<Event>, bool) {
        let mut more = true;
        for _ in 0..BATCH {
            self.transmit();
            let mirror = &mut self.mirror;
            let received = self.socket.receive(|received| match received {
                ReceiveOutcome::Datagram(datagram) => {
                    mirror.input(datagram);
                    true
                }
                ReceiveOutcome::Lost => {
                    mirror.request_dump();
                    true
                }
                ReceiveOutcome::Empty => false,
            });
            more = self.check_io(received).unwrap_or_default();
            if !more {
                break;
            }
        }
        let mut events = std::mem::take(&mut self.first_events);
        while let Some(event) = self.mirror.poll_event() {
            self.track_event(&event);
            events.push(event);
        }
        (events, more)
    }

    fn transmit(&mut self) {
        while let Some(request) = self.mirror.poll_transmit() {
            let sent = self.socket.send(&request);
            if self.check_io(sent).is_none() {
                // The mirror assumes that the request was sent, so its synchronization starts again.
                return self.mirror.restart();
            }
        }
    }

    fn check_io<T>(&mut self, result: std::io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.broken = false;
                Some(value)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.broken, true) {
                    tracing::error!("ipsec: the kernel's XFRM cannot be used: {error}");
                }
                None
            }
        }
    }

    fn track_event(&mut self, event: &Event) {
        match event {
            Event::Policies { protections, .. } => self.protections.clone_from(protections),
            Event::AddSa { id, direction, protection, parameters, .. } => {
                let (direction, protection) = (*direction, *protection);
                let sa = Sa { spi: parameters.spi, direction, protection, reported_packets: 0 };
                self.sas.insert(*id, sa);
            }
            _ => {}
        }
    }

    /// Returns an SA that the workers have, also while its deletion is in progress. `None` for any other SA.
    pub(in crate::appliance) fn sa(&self, id: SaId) -> Option<&Sa> {
        self.sas.get(&id)
    }

    /// Drops an SA after its deletion. Returns it; `None` for an unknown SA.
    pub(in crate::appliance) fn remove_sa(&mut self, id: SaId) -> Option<Sa> {
        self.sas.remove(&id)
    }

    /// Requests that the IKE daemons negotiate an SA for a packet of this flow.
    pub(in crate::appliance) fn request_sa(&mut self, protection: Protection, flow: &Flow) {
        self.mirror.acquire(protection, flow);
    }

    /// Reports the soft or hard expiry of an SA to the kernel. `hard`: true for the hard expiry.
    pub(in crate::appliance) fn report_expiry(&mut self, id: SaId, hard: bool) {
        self.mirror.expire(id, hard);
    }

    pub(in crate::appliance) fn reserve(&mut self, id: SaId) {
        self.mirror.reserve_sequence(id);
    }

    /// Returns the time at which the workers' use of the SAs is requested next. `None` before the first request.
    pub(in crate::appliance) fn poll_timeout(&self) -> Option<Instant> {
        self.usage_report_at
    }

    /// Returns true, at most once per `USAGE_INTERVAL`, if the workers must report their use of the SAs now. When due,
    /// also repeats a dump request that the kernel has refused.
    pub(in crate::appliance) fn is_usage_due(&mut self, now: Instant) -> bool {
        let due = self.usage_report_at.is_none_or(|at| now >= at);
        if due {
            self.usage_report_at = Some(now + USAGE_INTERVAL);
            self.mirror.retry();
            self.transmit();
        }
        // At most one request is outstanding.
        let is_requested = due && !self.usage_requested && !self.sas.is_empty();
        self.usage_requested |= is_requested;
        is_requested
    }

    /// Reports the workers' use of the SAs to the kernel.
    pub(in crate::appliance) fn report_usage(&mut self, all: &[SaInfo]) {
        self.usage_requested = false;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for info in all {
            if let Some(sa) = self.sas.get_mut(&info.id)
                && sa.reported_packets != info.used.packets
            {
                sa.reported_packets = info.used.packets;
                let (packets, bytes) = (info.used.packets, info.used.bytes);
                self.mirror.report_usage(info.id, packets, bytes, info.sequence, now);
            }
        }
        // Transmitted at once: at the end of the process, the control thread's loop does not run again.
        self.transmit();
    }

    /// Returns the requirements of the policies with this protection. `None` if no policy has it.
    pub(in crate::appliance) fn protection(
        &self,
        protection: Protection,
    ) -> Option<&ProtectionInfo> {
        self.protections.iter().find(|known| known.protection == protection)
    }

    pub(in crate::appliance) fn name(&self, protection: Protection) -> Option<String> {
        self.protection(protection).map(ToString::to_string)
    }

    /// Returns the kernel's policies for the API.
    pub(in crate::appliance) fn policies(&self) -> impl Iterator<Item = PolicyInfo> {
        self.mirror.policies()
    }

    /// Returns the kernel's SAs that the workers do not use, with the reason.
    pub(in crate::appliance) fn unused_sas(&self) -> impl Iterator<Item = xfrm::SaInfo> {
        self.mirror.sas().filter(|sa| sa.id.is_none())
    }
}

/// Returns the required length of a table of protections that is indexed by the numbers in the policies: the highest
/// number plus 1.
pub(in crate::appliance) fn protections(list: &[ipsec::policy::Policy<Protection>]) -> usize {
    let numbers = list.iter().filter_map(|policy| match policy.action {
        Action::Protect(protection) => Some(usize::from(protection.0) + 1),
        Action::Bypass | Action::Discard => None,
    });
    numbers.max().unwrap_or_default()
}

//! Link states of ports: reports changes, and ends the streams of a port whose link stays down too long.
//!
//! Some drivers do not report changes, so links are polled at [`POLL_INTERVAL`]. TCP alone would detect a lost link
//! late: a sender after `tcp.user_timeout`, a receiver never (RFC 9293 §3.8.4: keepalives are off by default). The
//! receiver's region would stay bound to an unreachable peer. Therefore streams end after the port's
//! `link_down_timeout`.
//!
//! The same poll detects faults of a port's Linux interface; see [`device_faults`](super::device_faults).

use std::time::{Duration, Instant};

use api::{ApiError, EventKind};
use config::InterfaceSection;
use dataplane::port::DeviceFault;
use dataplane::{Command, InterfaceId, PortId};

use super::device_faults::{self, Rebinding};
use super::env::{Context, Env};
use super::notes::Cause;

/// Interval between polls of the links.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Interval of attempts to bind a port again.
const REBIND_INTERVAL: Duration = Duration::from_secs(1);

/// Link states, in the order of the ports.
pub(super) struct Links {
    /// Time of the next poll.
    poll_at: Instant,
    links: Vec<Link>,
}

#[derive(Clone, Default)]
struct Link {
    /// Time at which the link went down; `None` if it is up or was not polled yet.
    down_since: Option<Instant>,
    /// True if the link has been down for at least the port's `link_down_timeout`.
    lost: bool,
    /// Fault of the port's Linux interface, and the sentence about it.
    fault: Option<(DeviceFault, String)>,
    /// Earliest time of the next attempt to bind the port again.
    rebind_at: Option<Instant>,
}

impl Links {
    /// Creates the link states. All links are considered up until they are polled.
    pub(super) fn new(ports: usize, now: Instant) -> Links {
        Links { poll_at: now, links: vec![Link::default(); ports] }
    }

    /// Returns the time at which [`poll`](Self::poll) is due; `None` without ports.
    pub(super) fn poll_timeout(&self, facts: &Context) -> Option<Instant> {
        (!facts.ports.is_empty()).then_some(self.poll_at)
    }

    /// Polls the ports, if due. Returns the indices of ports whose streams must end.
    pub(super) fn poll(&mut self, env: &mut Env, now: Instant) -> Vec<usize> {
        let mut lost = Vec::new();
        if now < self.poll_at {
            return lost;
        }
        self.poll_at = now + POLL_INTERVAL;
        for port in 0..env.context.ports.len() {
            if self.poll_port(env, port, now) {
                lost.push(port);
            }
        }
        lost
    }

    /// Polls a port. Binds the port again if its Linux interface was recreated. If the port was bound again, its MAC
    /// address changed, or its link came up, the workers announce its addresses, because neighbours may have outdated
    /// entries. Returns true if the port's streams must end.
    fn poll_port(&mut self, env: &mut Env, port_index: usize, now: Instant) -> bool {
        let view = &env.context.ports[port_index];
        let mut seen = view.port.view();
        let (mut is_new, mut refused) = (false, None);
        let of_port = |i: &InterfaceSection| i.port == view.section.name;
        let is_shared =
            env.context.config.interfaces.iter().any(|i| of_port(i) && i.host.is_some());
        let lasting = device_faults::unrebindable_kind(
            &view.section,
            Rebinding { is_supported: view.port.can_rebind(), is_shared },
        );
        let link = &mut self.links[port_index];
        if seen.fault == Some(DeviceFault::Replaced)
            && lasting.is_none()
            && link.rebind_at.is_none_or(|at| at <= now)
        {
            link.rebind_at = Some(now + REBIND_INTERVAL);
            match view.port.rebind() {
                Ok(()) => {
                    tracing::info!("port {}: bound to its interface again", view.section.name);
                    is_new = true;
                    seen = view.port.view();
                }
                Err(error) => refused = Some(error.to_string()),
            }
        }
        if seen.mac != view.port.mac() && !is_shared {
            view.port.set_mac(seen.mac);
            is_new = true;
        }
        let mac = view.port.mac();
        let fault = seen.fault.map(|fault| {
            let sentence = device_faults::fault_sentence(&view.section, &fault, lasting.as_deref());
            let why = refused.map(|why| format!(" ({why})")).unwrap_or_default();
            (fault, format!("{sentence}{why}"))
        });
        let was_down = link.down_since.is_some();
        self.on_fault(env, port_index, fault);
        let lost = self.on_link(env, port_index, seen.link.up, now);
        if is_new || was_down && seen.link.up {
            env.send_to_all(|| Command::PortChanged { port: PortId(port_index as u16), mac });
        }
        lost
    }

    /// Records a fault of a port's Linux interface, or the end of a fault.
    pub(super) fn on_fault(
        &mut self,
        env: &mut Env,
        port: usize,
        fault: Option<(DeviceFault, String)>,
    ) {
        let link = &mut self.links[port];
        let kind = |fault: &Option<(DeviceFault, String)>| fault.as_ref().map(|f| f.0.clone());
        if kind(&link.fault) == kind(&fault) && (fault.is_none() || link.fault == fault) {
            return;
        }
        let cause = Cause::Device(env.context.config.ports[port].name.clone());
        match &fault {
            None => env.notes.clear(&cause),
            Some((fault, sentence)) => {
                tracing::warn!("{sentence}");
                env.notes.set(cause, sentence.clone(), None);
                if link.fault.as_ref().map(|link| &link.0) != Some(fault) {
                    env.log.push(EventKind::Warning { message: sentence.clone() });
                }
            }
        }
        self.links[port].fault = fault;
    }

    /// Returns the faults that stop configured ports from receiving and sending, one sentence each.
    pub(super) fn fault_sentences(&self) -> Vec<String> {
        let faults = self.links.iter().filter_map(|link| link.fault.as_ref());
        faults.filter(|(fault, _)| fault.is_fatal()).map(|(_, sentence)| sentence.clone()).collect()
    }

    /// Records the link state of a port. Returns true if its streams must end.
    pub(super) fn on_link(&mut self, env: &mut Env, port: usize, up: bool, now: Instant) -> bool {
        let link = &mut self.links[port];
        let was_up = link.down_since.is_none();
        if up {
            (link.down_since, link.lost) = (None, false);
        } else {
            let since = *link.down_since.get_or_insert(now);
            let timeout = env.context.config.ports[port].link_down_timeout;
            link.lost = timeout.is_some_and(|patience| now.duration_since(since) >= patience);
        }
        if was_up != up {
            let port = env.context.config.ports[port].name.clone();
            tracing::info!("port {port}: the link is {}", if up { "up" } else { "down" });
            let cause = Cause::Link(port.clone());
            match up {
                true => env.notes.clear(&cause),
                false => env.notes.set(cause, format!("port {port}: the link is down"), None),
            }
            env.log.push(EventKind::LinkChanged { port, up });
        }
        link.lost
    }

    /// Returns the refusal of a stream if the link of the interface's port is down.
    pub(super) fn refusal(
        &self,
        facts: &Context,
        InterfaceId(at): InterfaceId,
    ) -> Option<ApiError> {
        let interface = facts.config.interfaces.get(usize::from(at))?;
        let at = facts.config.ports.iter().position(|port| port.name == interface.port)?;
        let link = self.links.get(at)?;
        // The last poll may be outdated, so the current state of an open port is read.
        let is_up =
            facts.ports.get(at).map_or(link.down_since.is_none(), |view| view.port.link().up);
        if is_up {
            return None;
        }
        let sentence =
            format!("{} (interface `{}`)", link_down_sentence(&interface.port), interface.name);
        let fault = link.fault.as_ref().map(|(_, sentence)| sentence.clone());
        let hint = fault.unwrap_or_else(|| device_faults::remedy(&facts.config.ports[at]));
        Some(ApiError::unavailable(sentence).with_hint(Some(&hint)))
    }
}

/// Returns the sentence that the link of a port is down.
pub(super) fn link_down_sentence(port: &str) -> String {
    format!("the link of port `{port}` is down")
}

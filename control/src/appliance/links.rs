//! Links of ports: their changes are reported, and streams end when one stays down for too long.
//!
//! Not every driver reports changes, so links are polled [ten times a second](LOOK). TCP alone would
//! wait: a sender for `tcp.user_timeout`, a receiver for ever, with its region bound to a peer that is gone
//! (RFC 9293 §3.8.4 has keepalives off by default). How long to wait is the port's `link_down_timeout`.

use std::time::{Duration, Instant};

use dataplane::InterfaceId;

use super::env::{Env, Facts};
use super::notes::Cause;
use crate::api::{ApiError, EventKind};

/// How often links are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What is known of the links, in the ports' order.
pub(super) struct Links {
    next: Instant,
    links: Vec<Link>,
}

#[derive(Clone, Default)]
struct Link {
    /// Since when it is down; `None` for up, and before the first look.
    down: Option<Instant>,
    /// It has been up.
    used: bool,
    /// It has been down for longer than its port's streams survive.
    lost: bool,
}

impl Links {
    /// All are taken to be up until they are looked at.
    pub(super) fn new(ports: usize, now: Instant) -> Links {
        Links { next: now, links: vec![Link::default(); ports] }
    }

    /// When [`look`](Self::look) is due; `None` without ports.
    pub(super) fn poll_timeout(&self, facts: &Facts) -> Option<Instant> {
        (!facts.ports.is_empty()).then_some(self.next)
    }

    /// Asks the ports, if it is time to. Those whose streams end, as [`on_link`](Self::on_link) says.
    pub(super) fn look(&mut self, env: &mut Env, now: Instant) -> Vec<usize> {
        let mut lost = Vec::new();
        if now < self.next {
            return lost;
        }
        self.next = now + LOOK;
        for port in 0..env.facts.ports.len() {
            let up = env.facts.ports[port].port.link().up;
            if self.on_link(env, port, up, now) {
                lost.push(port);
            }
        }
        lost
    }

    /// A port's link, by its place in the configuration, was found like this. True when its streams end.
    pub(super) fn on_link(&mut self, env: &mut Env, port: usize, up: bool, now: Instant) -> bool {
        let link = &mut self.links[port];
        let was_up = link.down.is_none();
        if up {
            *link = Link { used: true, ..Link::default() };
        } else {
            let since = *link.down.get_or_insert(now);
            let patience = env.facts.config.ports[port].link_down_timeout;
            link.lost = patience.is_some_and(|patience| now.duration_since(since) >= patience);
        }
        if was_up != up {
            let port = env.facts.config.ports[port].name.clone();
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

    /// Why no stream can be opened on an interface: its port's link was lost. One that has not been up yet
    /// may come up while TCP tries.
    pub(super) fn refuse(&self, facts: &Facts, InterfaceId(at): InterfaceId) -> Option<ApiError> {
        let name = &facts.config.interfaces.get(usize::from(at))?.port;
        let port = facts.config.ports.iter().position(|port| port.name == *name)?;
        let link = &self.links[port];
        // What was seen last may be a moment old: a link that has come back since refuses nothing.
        let is_up = || facts.ports.get(port).is_some_and(|port| port.port.link().up);
        (link.used && link.lost && !is_up()).then(|| ApiError::unavailable(is_down(name)))
    }
}

/// Why streams of a port end.
pub(super) fn is_down(port: &str) -> String {
    format!("the link of port `{port}` is down")
}

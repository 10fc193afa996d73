//! Links of ports: their changes are told, and streams end when one stays down for too long.
//!
//! Not every driver tells of changes, so links are looked at [ten times a second](LOOK). TCP alone would
//! wait: a sender for `tcp.user_timeout`, a receiver for ever, with its region bound to a peer that is gone
//! (RFC 9293 §3.8.4 has keepalives off by default). How long to wait is the port's `link_down_timeout`.

use std::time::{Duration, Instant};

use dataplane::{Command, InterfaceId};
use ddp::StreamId;

use super::core::Core;
use super::streams::State;
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
    /// It has been down for longer than its port's streams live without it.
    lost: bool,
}

impl Links {
    /// All are taken to be up until they are looked at.
    pub(super) fn new(ports: usize, now: Instant) -> Links {
        Links { next: now, links: vec![Link::default(); ports] }
    }
}

impl Core {
    /// When [`look_at_links`](Self::look_at_links) is due; `None` without ports.
    pub(super) fn next_look_at_links(&self) -> Option<Instant> {
        (!self.env.facts.ports.is_empty()).then_some(self.links.next)
    }

    /// Asks the ports, if it is time to.
    pub(super) fn look_at_links(&mut self, now: Instant) {
        if now < self.links.next {
            return;
        }
        self.links.next = now + LOOK;
        for port in 0..self.env.facts.ports.len() {
            let up = self.env.facts.ports[port].port.link().up;
            self.link_is(port, up, now);
        }
    }

    /// A port's link, by its place in the configuration, was found like this.
    pub(super) fn link_is(&mut self, port: usize, up: bool, now: Instant) {
        let link = &mut self.links.links[port];
        let was_up = link.down.is_none();
        if up {
            *link = Link { used: true, ..Link::default() };
        } else {
            let since = *link.down.get_or_insert(now);
            let patience = self.env.facts.config.ports[port].link_down_timeout;
            link.lost = patience.is_some_and(|patience| now.duration_since(since) >= patience);
        }
        let lost = link.lost;
        if was_up != up {
            self.link_changed(port, up);
        }
        if lost {
            self.end_streams_of(port);
        }
    }

    /// Why no stream can be opened on an interface: its port's link was lost. One that has not been up yet
    /// may come up while TCP tries.
    pub(super) fn refused_by_link(&self, InterfaceId(at): InterfaceId) -> Option<ApiError> {
        let name = &self.env.facts.config.interfaces.get(usize::from(at))?.port;
        let port = self.env.facts.config.ports.iter().position(|port| port.name == *name)?;
        let link = &self.links.links[port];
        // What was seen last may be a moment old: a link that has come back since refuses nothing.
        let is_up = || self.env.facts.ports.get(port).is_some_and(|port| port.port.link().up);
        (link.used && link.lost && !is_up()).then(|| ApiError::unavailable(is_down(name)))
    }

    fn link_changed(&mut self, port: usize, up: bool) {
        let port = self.env.facts.config.ports[port].name.clone();
        tracing::info!("port {port}: the link is {}", if up { "up" } else { "down" });
        self.env.log.push(EventKind::LinkChanged { port, up });
    }

    /// Aborts the streams of a port, except those for which that was done.
    fn end_streams_of(&mut self, port: usize) {
        let name = &self.env.facts.config.ports[port].name;
        let sentence = is_down(name);
        let on_port = |InterfaceId(at): InterfaceId| {
            self.env.facts.config.interfaces.get(usize::from(at)).is_some_and(|i| i.port == *name)
        };
        let mut ids: Vec<StreamId> = Vec::new();
        for (&id, stream) in &mut self.streams {
            if stream.doom.is_none() && on_port(stream.interface) {
                stream.doom = Some(sentence.clone());
                if stream.state != State::Rejecting {
                    stream.state = State::Closing;
                }
                ids.push(id);
            }
        }
        for id in ids {
            self.env.tell(id.worker(), Command::Close { stream: id, abort: true });
        }
    }
}

fn is_down(port: &str) -> String {
    format!("the link of port `{port}` is down")
}

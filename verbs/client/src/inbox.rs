//! Queues the appliance's events until the program takes them. Each QP, listener, CQ and SRQ has a mailbox of bounded
//! length. An event is taken once: by a call on its object, or by a call on the session in order of arrival.
//!
//! The inbox has an eventfd. It is readable while an event can be taken through the session, and after the session's
//! end.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use verbs_session::message::Event;

use crate::error::Error;
use crate::lock::lock;

/// The object that an event concerns, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    Pair(u32),
    Listener(u32),
    Queue(u32),
    SharedQueue(u32),
}

/// All mailboxes of a session.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Notified at each event that [`take_any`](Inbox::take_any) can take, and at the session's end.
    any: Condvar,
    ready: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<Arc<str>>,
    /// Number of the next event. Numbers increase in order of arrival.
    next: u64,
    /// Objects of all queued events, by the events' numbers.
    order: BTreeMap<u64, Key>,
    mailboxes: HashMap<Key, Mailbox>,
    /// Numbers of the connection requests that the program has taken and not answered.
    requests: HashSet<u64>,
    /// Number of received events whose object did not exist.
    unmatched: u64,
}

#[derive(Debug)]
struct Mailbox {
    events: VecDeque<(u64, Event)>,
    /// Maximum length of `events`.
    limit: usize,
    /// True while a `connect` or `accept` waits for its event. The next event is then stored in `outcome`, where only
    /// that call can take it.
    claimed: bool,
    outcome: Option<Event>,
    changed: Arc<Condvar>,
}

impl Inbox {
    pub(crate) fn new() -> Result<Inbox, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ready = eventfd(0, flags).map_err(Error::system("making an event descriptor"))?;
        Ok(Inbox { state: Mutex::default(), any: Condvar::new(), ready })
    }

    /// Creates the mailbox of an object. Returns false if the object has one already.
    pub(crate) fn open(&self, key: Key, limit: usize) -> bool {
        let mut state = lock(&self.state);
        let mailbox = Mailbox {
            events: VecDeque::new(),
            limit,
            claimed: false,
            outcome: None,
            changed: Arc::default(),
        };
        let is_new = !state.mailboxes.contains_key(&key);
        if is_new {
            state.mailboxes.insert(key, mailbox);
        }
        is_new
    }

    /// Removes the mailbox of an object and drops its events.
    pub(crate) fn close(&self, key: Key) {
        let mut state = lock(&self.state);
        if let Some(mailbox) = state.mailboxes.remove(&key) {
            for (number, _) in mailbox.events {
                state.order.remove(&number);
            }
        }
        self.update_eventfd(&state);
    }

    /// Adds an event to the mailbox of its object. [`Event::RequestEnded`] is not queued: it withdraws the connection
    /// request.
    ///
    /// # Errors
    /// The mailbox is full: the appliance broke the protocol.
    pub(crate) fn deliver(&self, event: Event) -> Result<(), &'static str> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if let Event::RequestEnded { request } = event {
            state.withdraw(request);
            self.update_eventfd(state);
            return Ok(());
        }
        let key = key(&event);
        let Some(mailbox) = key.and_then(|key| state.mailboxes.get_mut(&key)) else {
            state.unmatched += 1;
            return Ok(());
        };
        mailbox.changed.notify_all();
        if mailbox.claimed && mailbox.outcome.is_none() {
            mailbox.outcome = Some(event);
            return Ok(());
        }
        // The program may set the limit again before it has taken the previous `Low` event. A second one is dropped.
        let is_low = matches!(event, Event::SharedReceivesLow { .. });
        if is_low && mailbox.events.iter().any(|(_, queued)| *queued == event) {
            return Ok(());
        }
        if mailbox.events.len() == mailbox.limit {
            return Err("more events than an object can have");
        }
        let number = state.next;
        state.next += 1;
        mailbox.events.push_back((number, event));
        state.order.extend(key.map(|key| (number, key)));
        self.any.notify_one();
        self.update_eventfd(state);
        Ok(())
    }

    /// Ends the session and wakes all waiting calls. Queued events can still be taken. Only the first call's `reason`
    /// is kept.
    pub(crate) fn end(&self, reason: &str) {
        let mut state = lock(&self.state);
        if state.ended.is_none() {
            state.ended = Some(reason.into());
        }
        self.any.notify_all();
        state.mailboxes.values().for_each(|mailbox| mailbox.changed.notify_all());
        self.update_eventfd(&state);
    }

    /// Returns the reason of the session's end, or `None` while the session is open.
    pub(crate) fn ended(&self) -> Option<Arc<str>> {
        lock(&self.state).ended.clone()
    }

    /// Returns the number of events whose object did not exist.
    pub(crate) fn unmatched(&self) -> u64 {
        lock(&self.state).unmatched
    }

    /// Waits for the oldest event of an object and takes it. Returns `None` if there is none before `deadline`.
    pub(crate) fn take(&self, key: Key, deadline: Deadline) -> Result<Option<Event>, Error> {
        let mut state = lock(&self.state);
        loop {
            if let Some(event) = state.pop(key) {
                self.update_eventfd(&state);
                return Ok(Some(event));
            }
            let mailbox = state.mailboxes.get(&key);
            let changed = mailbox.ok_or(Error::State("the object was removed"))?.changed.clone();
            match self.wait(state, &changed, deadline)? {
                Some(again) => state = again,
                None => return Ok(None),
            }
        }
    }

    /// Waits for the oldest event of all objects and takes it. Returns `None` if there is none before `deadline`.
    pub(crate) fn take_any(&self, deadline: Deadline) -> Result<Option<Event>, Error> {
        let mut state = lock(&self.state);
        loop {
            while let Some((_, &key)) = state.order.first_key_value() {
                if let Some(event) = state.pop(key) {
                    self.update_eventfd(&state);
                    return Ok(Some(event));
                }
            }
            match self.wait(state, &self.any, deadline)? {
                Some(again) => state = again,
                None => return Ok(None),
            }
        }
    }

    /// Reserves the next event of an object for [`outcome`](Self::outcome): no other call takes it.
    pub(crate) fn claim(&self, key: Key) {
        if let Some(mailbox) = lock(&self.state).mailboxes.get_mut(&key) {
            mailbox.claimed = true;
        }
    }

    /// Ends the reservation of [`claim`](Self::claim). A reserved event that was not taken is dropped.
    pub(crate) fn unclaim(&self, key: Key) {
        if let Some(mailbox) = lock(&self.state).mailboxes.get_mut(&key) {
            mailbox.claimed = false;
            mailbox.outcome = None;
        }
    }

    /// Waits for the reserved event and takes it. Returns `None` if there is none before `deadline`.
    pub(crate) fn outcome(&self, key: Key, deadline: Deadline) -> Result<Option<Event>, Error> {
        let mut state = lock(&self.state);
        loop {
            let mailbox = state.mailboxes.get_mut(&key);
            let mailbox = mailbox.ok_or(Error::State("the object was removed"))?;
            if let Some(event) = mailbox.outcome.take() {
                mailbox.claimed = false;
                return Ok(Some(event));
            }
            let changed = mailbox.changed.clone();
            match self.wait(state, &changed, deadline)? {
                Some(again) => state = again,
                None => return Ok(None),
            }
        }
    }

    /// Removes a connection request that the program has answered.
    pub(crate) fn answer(&self, request: u64) {
        lock(&self.state).requests.remove(&request);
    }

    /// Returns true if the program has taken the connection request and can still answer it: no answer was sent, and
    /// the peer has not withdrawn the request.
    pub(crate) fn is_open(&self, request: u64) -> bool {
        lock(&self.state).requests.contains(&request)
    }

    /// Waits until `changed` is notified. Returns `None` if the deadline has passed, and an error if the session has
    /// ended.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        changed: &Condvar,
        deadline: Deadline,
    ) -> Result<Option<MutexGuard<'a, State>>, Error> {
        if let Some(reason) = &state.ended {
            return Err(Error::Disconnected(reason.clone()));
        }
        let Some(deadline) = deadline else {
            return Ok(Some(changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner())));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let (state, _) =
            changed.wait_timeout(state, left).unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(Some(state))
    }

    /// Makes the eventfd readable if and only if an event can be taken or the session has ended.
    fn update_eventfd(&self, state: &State) {
        // The eventfd is non-blocking and errors are ignored. A write fails only if the counter is at its maximum, and
        // a read only if it is 0: the descriptor already has the right state.
        if state.order.is_empty() && state.ended.is_none() {
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        } else {
            let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
        }
    }
}

/// Time at which a waiting call times out; `None`: never.
pub(crate) type Deadline = Option<Instant>;

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl State {
    /// Removes and returns the oldest event of an object, or `None` if there is none. A connection request counts as
    /// open until it is answered or withdrawn.
    fn pop(&mut self, key: Key) -> Option<Event> {
        let (number, event) = self.mailboxes.get_mut(&key)?.events.pop_front()?;
        self.order.remove(&number);
        if let Event::Incoming { request, .. } = event {
            self.requests.insert(request);
        }
        Some(event)
    }

    /// Removes a connection request that the peer has withdrawn, whether the program has taken it or not.
    fn withdraw(&mut self, request: u64) {
        if self.requests.remove(&request) {
            return;
        }
        let waits =
            |event: &Event| matches!(event, Event::Incoming { request: n, .. } if *n == request);
        for (key, mailbox) in &mut self.mailboxes {
            if !matches!(key, Key::Listener(_)) {
                continue;
            }
            if let Some(at) = mailbox.events.iter().position(|(_, event)| waits(event)) {
                let removed = mailbox.events.remove(at);
                self.order.retain(|number, _| Some(*number) != removed.as_ref().map(|r| r.0));
                return;
            }
        }
        self.unmatched += 1;
    }
}

/// Returns the object of an event, or `None` for [`Event::RequestEnded`], which names no listener.
fn key(event: &Event) -> Option<Key> {
    match *event {
        Event::Incoming { listener, .. } => Some(Key::Listener(listener)),
        Event::RequestEnded { .. } => None,
        Event::Established { pair, .. }
        | Event::Rejected { pair, .. }
        | Event::ConnectFailed { pair, .. }
        | Event::Disconnected { pair, .. }
        | Event::QueuePairFailed { pair, .. } => Some(Key::Pair(pair)),
        Event::CompletionQueueFailed { queue, .. } => Some(Key::Queue(queue)),
        Event::SharedReceivesLow { queue } | Event::SharedReceivesFailed { queue, .. } => {
            Some(Key::SharedQueue(queue))
        }
    }
}

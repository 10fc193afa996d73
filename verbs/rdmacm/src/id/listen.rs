//! Listeners, and the connection requests that they receive.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};

use ibverbs::api::context::shared;
use ibverbs::device::{Device, gid};
use ibverbs::errno::{EADDRINUSE, EADDRNOTAVAIL, EINVAL, Result, errno};
use ibverbs::instance::Instance;
use verbs_client::{ConnectionRequest, Depths, Error, Listener, RefusalKind, Transport};

use crate::address;
use crate::bindings::RDMA_PS_TCP;
use crate::boundary::fields;
use crate::id::environment::transport;
use crate::id::event::NewEvent;
use crate::id::{Id, Phase, State};
use verbs_client::lock::lock;

/// Maximum number of connection requests of a listener that the program has not answered. The backlog of `rdma_listen`
/// is another limit: on requests whose events the program has not taken.
const MAX_BACKLOG: u32 = 1024;
/// Attempts to find one port that is free on all addresses of an id, if the appliance chooses the port.
const PORT_ATTEMPTS: usize = 16;

/// Ids that listen, by the number of their native listener.
static LISTENING: Mutex<Option<HashMap<u32, Entry>>> = Mutex::new(None);

#[derive(Debug)]
struct Entry {
    id: Weak<Id>,
    local: SocketAddr,
    instance: Weak<Instance>,
}

/// Returns the local addresses at which an id with the address `ip` listens. There can be several if `ip` is
/// unspecified and `DDPD_DEVICE` restricts the devices, or if `ip` is `::` and `is_one_family` is false.
fn addresses(instance: &Instance, ip: IpAddr, is_one_family: bool) -> Result<Vec<IpAddr>> {
    if !ip.is_unspecified() {
        return Ok(vec![ip]);
    }
    let has = |own: &IpAddr| own.is_ipv4() == ip.is_ipv4() || ip.is_ipv6() && !is_one_family;
    let devices = Device::all()?;
    let infos = devices.iter().map(|device| device.info());
    let own: Vec<IpAddr> = infos.flat_map(|info| info.addresses).filter(has).collect();
    if devices.len() < instance.session().devices().len() {
        return Ok(own);
    }
    let mut all = Vec::new();
    if own.iter().any(|own| own.is_ipv6() == ip.is_ipv6()) {
        all.push(ip);
    }
    if ip.is_ipv6() && own.iter().any(IpAddr::is_ipv4) {
        all.push(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
    }
    Ok(all)
}

/// Listens for an id at the address `local`, which may be unspecified, and returns the listeners. All have the same
/// port.
///
/// # Errors
/// `EADDRNOTAVAIL`: the appliance does not have the address. `EADDRINUSE`. Other errors of the appliance.
pub(crate) fn start(
    id: &Arc<Id>,
    instance: &Arc<Instance>,
    local: SocketAddr,
    is_one_family: bool,
) -> Result<Vec<Listener>> {
    let (transport, addresses) = (transport()?, addresses(instance, local.ip(), is_one_family)?);
    let attempts = match (local.port(), addresses.len()) {
        (0, 2..) => PORT_ATTEMPTS,
        _ => 1,
    };
    super::receive_events();
    let mut result = Err(EADDRNOTAVAIL);
    for _ in 0..attempts {
        result = listen_at(id, instance, (transport, &addresses, local.port()));
        if !matches!(result, Err(EADDRINUSE)) {
            break;
        }
    }
    result
}

fn listen_at(
    id: &Arc<Id>,
    instance: &Arc<Instance>,
    (transport, addresses, mut port): (Transport, &[IpAddr], u16),
) -> Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for ip in addresses {
        // The lock is held until the listener is in the table: a request may arrive before `listen` has returned.
        let mut all = lock(&LISTENING);
        let listener =
            instance.session().listen(SocketAddr::new(*ip, port), transport, MAX_BACKLOG);
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                drop(all);
                forget(&listeners, id);
                return Err(listen_error(&error));
            }
        };
        port = listener.local().port();
        let (local, instance) = (listener.local(), Arc::downgrade(instance));
        let entry = Entry { id: Arc::downgrade(id), local, instance };
        all.get_or_insert_default().insert(listener.number(), entry);
        listeners.push(listener);
    }
    if listeners.is_empty() { Err(EADDRNOTAVAIL) } else { Ok(listeners) }
}

fn listen_error(error: &Error) -> i32 {
    match error {
        Error::Refused(refusal) => match refusal.kind {
            RefusalKind::InUse => EADDRINUSE,
            RefusalKind::Unreachable => EADDRNOTAVAIL,
            _ => errno(error),
        },
        _ => errno(error),
    }
}

/// Removes an id's listeners from the table. Later requests are rejected.
pub(crate) fn forget(listeners: &[Listener], id: &Id) {
    let mut all = lock(&LISTENING);
    let Some(all) = all.as_mut() else { return };
    for listener in listeners {
        let number = listener.number();
        // The id of a connection request shares the listeners of the id that listens, which alone owns the entries.
        if all.get(&number).is_some_and(|entry| std::ptr::eq(entry.id.as_ptr(), id)) {
            all.remove(&number);
        }
    }
}

/// Removes all listeners of a session that has ended.
pub(super) fn forget_all(instance: &Arc<Instance>) {
    if let Some(all) = lock(&LISTENING).as_mut() {
        all.retain(|_, entry| !std::ptr::eq(entry.instance.as_ptr(), Arc::as_ptr(instance)));
    }
}

/// Returns true if the listeners belong to this session.
pub(crate) fn is_of(listeners: &[Listener], instance: &Arc<Instance>) -> bool {
    let all = lock(&LISTENING);
    let entries = listeners.iter().filter_map(|listener| all.as_ref()?.get(&listener.number()));
    entries.into_iter().any(|entry| std::ptr::eq(entry.instance.as_ptr(), Arc::as_ptr(instance)))
}

/// Returns the id that listens for a request. The port is compared, too: the appliance may have reused the number of a
/// listener that was removed.
pub(super) fn find(request: &ConnectionRequest) -> Option<Arc<Id>> {
    let all = lock(&LISTENING);
    let entry = all.as_ref()?.get(&request.listener())?;
    let is_same = entry.local.port() == request.local().port();
    is_same.then(|| entry.id.upgrade()).flatten()
}

impl Id {
    /// Starts to accept connection requests.
    ///
    /// # Errors
    /// `EINVAL`: the id is connected, or listens already. The errors of a bind.
    pub fn listen(self: &Arc<Self>, backlog: i32) -> Result<()> {
        let mut state = self.lock();
        if state.phase == Phase::Idle {
            self.bind_locked(&mut state, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        if state.phase != Phase::Bound {
            return Err(EINVAL);
        }
        if state.listeners.is_empty() {
            self.reserve(&mut state)?;
        }
        let backlog = usize::try_from(backlog).unwrap_or(0);
        let most = MAX_BACKLOG as usize;
        state.backlog = if backlog == 0 { most } else { backlog.min(most) };
        state.phase = Phase::Listening;
        for request in std::mem::take(&mut state.early) {
            self.accept_later(&state, request);
        }
        Ok(())
    }

    /// Creates the id of a connection request and queues its event. Rejects the request if the id does not listen, its
    /// backlog is full, or the program may not use the device. A request that arrives between `rdma_bind_addr` and
    /// `rdma_listen` waits for `rdma_listen`: the appliance listens from the bind on.
    pub(super) fn incoming(self: &Arc<Self>, request: ConnectionRequest) {
        let mut state = self.lock();
        match state.phase {
            Phase::Bound => {
                // A request that the peer has withdrawn does not count for the backlog of the native listener any more.
                state.early.retain(|request| !request.is_ended());
                if state.early.len() < MAX_BACKLOG as usize {
                    state.early.push(request);
                }
            }
            Phase::Listening => self.accept_later(&state, request),
            _ => {}
        }
    }

    fn accept_later(self: &Arc<Self>, state: &State, request: ConnectionRequest) {
        let local = request.local();
        let device = Device::with_address(local.ip()).ok().flatten();
        let Some(context) = device.and_then(|device| shared(device).ok()) else { return };
        if state.channel.requests(self) >= state.backlog {
            return;
        }
        let channel = (!state.is_synchronous).then(|| state.channel.clone());
        let Ok(child) = Id::create(channel, self.c().read(fields::context), RDMA_PS_TCP) else {
            return;
        };
        let depths = requested_depths(&request, context.session().limits().depths);
        let private_data = request.private_data().to_vec();
        {
            let mut of_child = child.lock();
            child.set_addresses(local, request.remote());
            if child.bind_device(&mut of_child, &context).is_err() {
                drop(of_child);
                return child.discard();
            }
            of_child.phase = Phase::Requested;
            of_child.requested = Some(depths);
            of_child.listeners = state.listeners.clone();
            of_child.request = Some(request);
        }
        let event = NewEvent::request(self, child).with(Some(depths), private_data);
        state.channel.push(event);
    }

    /// Sets the addresses of a connection.
    pub(crate) fn set_addresses(&self, local: SocketAddr, remote: SocketAddr) {
        self.set_source(local);
        self.set_destination(remote);
    }

    pub(crate) fn set_source(&self, local: SocketAddr) {
        self.c().write(fields::source, address::encode(local).0);
        self.c().write(fields::source_gid, gid(local.ip()));
    }

    pub(crate) fn set_destination(&self, remote: SocketAddr) {
        self.c().write(fields::destination, address::encode(remote).0);
        self.c().write(fields::destination_gid, gid(remote.ip()));
    }

    /// Returns the local address; `None` if the id has none.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        address::decode(&self.c().read(fields::source)).ok()
    }

    /// Returns the peer's address; `None` if the id has none.
    pub(crate) fn destination(&self) -> Option<SocketAddr> {
        address::decode(&self.c().read(fields::destination)).ok()
    }

    /// Reserves the local port: listens at the local address without accepting requests.
    pub(crate) fn reserve(self: &Arc<Self>, state: &mut State) -> Result<()> {
        let local = self.source().ok_or(EINVAL)?;
        let instance = state.instance()?;
        state.listeners = start(self, &instance, local, state.is_one_family)?;
        let port = state.listeners.first().map_or(0, |listener| listener.local().port());
        self.set_source(SocketAddr::new(local.ip(), port));
        Ok(())
    }
}

/// Returns this side's depths for a connection request: IRD is the peer's ORD, and ORD is the peer's IRD, both at most
/// those of the device. Without depths in the request, these are the depths of the device.
fn requested_depths(request: &ConnectionRequest, limits: Depths) -> Depths {
    match request.depths() {
        Some(peer) => Depths { ird: peer.ord.min(limits.ird), ord: peer.ird.min(limits.ord) },
        None => limits,
    }
}

//! Local addresses and routes.

use std::net::SocketAddr;
use std::sync::Arc;

use ibverbs::api::context::shared;
use ibverbs::device::Device;
use ibverbs::errno::{EADDRNOTAVAIL, EINVAL, Result, errno};
use ibverbs::instance::Instance;
use libc::{EHOSTUNREACH, ENETUNREACH};
use verbs_client::{Error, RefusalKind};

use crate::bindings::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED,
};
use crate::id::{Id, Phase, State};

impl Id {
    /// Binds the id to a local address, possibly unspecified. Reserves the port; for port 0 the appliance chooses one.
    /// An id at a loopback address has no device, as with the kernel's connection manager, and cannot listen. The bind
    /// succeeds, because libfabric binds an id to `localhost` to find all devices.
    ///
    /// # Errors
    /// `EINVAL`: the id has an address already. `EADDRNOTAVAIL`: the appliance does not have the address. `EADDRINUSE`.
    /// Other errors of the appliance.
    pub fn bind(self: &Arc<Self>, local: SocketAddr) -> Result<()> {
        let mut state = self.lock();
        if state.phase != Phase::Idle {
            return Err(EINVAL);
        }
        self.bind_locked(&mut state, local)
    }

    pub(crate) fn bind_locked(
        self: &Arc<Self>,
        state: &mut State,
        local: SocketAddr,
    ) -> Result<()> {
        let local = canonical(local);
        self.bind_address(state, local)?;
        // With `RDMA_OPTION_ID_REUSEADDR`, only `rdma_listen` reserves a port that the program has chosen.
        let is_reserved = local.port() == 0 || !state.reuses_address;
        if is_reserved && !local.ip().is_loopback() {
            self.reserve(state)?;
        }
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Sets the local address, and binds the id to its device unless it is unspecified or a loopback address.
    fn bind_address(self: &Arc<Self>, state: &mut State, local: SocketAddr) -> Result<()> {
        if !local.ip().is_unspecified() && !local.ip().is_loopback() {
            let device = Device::with_address(local.ip())?.ok_or(EADDRNOTAVAIL)?;
            let context = shared(device)?;
            self.bind_device(state, &context)?;
        }
        self.set_source(local);
        Ok(())
    }

    /// Resolves the address of a peer: chooses a local address and its device. An event reports the outcome.
    ///
    /// # Errors
    /// `EINVAL`: the id has a peer already or listens, or the addresses are of different families. The errors of a bind
    /// to `local`. In synchronous mode the error of the outcome.
    pub fn resolve_address(
        self: &Arc<Self>,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<()> {
        let remote = canonical(remote);
        let local = local.map(canonical).filter(|local| !local.ip().is_unspecified());
        if local.is_some_and(|local| local.is_ipv4() != remote.is_ipv4()) {
            return Err(EINVAL);
        }
        {
            let mut state = self.lock();
            match (state.phase, local) {
                (Phase::Idle, None) | (Phase::Bound, _) => {}
                (Phase::Idle, Some(local)) => self.bind_address(&mut state, local)?,
                _ => return Err(EINVAL),
            }
            match self.find_route(&mut state, remote) {
                Ok(()) => self.push(&state, RDMA_CM_EVENT_ADDR_RESOLVED, 0),
                Err(value) => {
                    state.phase = Phase::Bound;
                    self.push(&state, RDMA_CM_EVENT_ADDR_ERROR, -value);
                }
            }
        }
        self.complete()
    }

    fn find_route(self: &Arc<Self>, state: &mut State, remote: SocketAddr) -> Result<()> {
        let instance = state.instance()?;
        let bound = self.source().filter(|local| !local.ip().is_unspecified());
        let wanted = match bound {
            Some(bound) => Some(bound.ip()),
            None => only_address(&instance, remote)?,
        };
        let remote_ip = match (remote.ip().is_unspecified(), wanted) {
            // As in sockets: the unspecified address means this host.
            (true, Some(own)) => own,
            _ => remote.ip(),
        };
        let local = instance.session().route(remote_ip, wanted).map_err(|error| match error {
            Error::Refused(refusal) if refusal.kind == RefusalKind::Unreachable => ENETUNREACH,
            error => errno(&error),
        })?;
        if state.context.is_none() {
            let device = Device::with_address(local)?.ok_or(EHOSTUNREACH)?;
            let context = shared(device)?;
            self.bind_device(state, &context)?;
        }
        // Releases the port that a bind has reserved: the appliance chooses the local port of a connect.
        state.early.clear();
        let listeners = std::mem::take(&mut state.listeners);
        crate::id::listen::forget(&listeners, self);
        let port = bound.map_or(0, |bound| bound.port());
        self.set_addresses(SocketAddr::new(local, port), SocketAddr::new(remote_ip, remote.port()));
        state.phase = Phase::AddressResolved;
        Ok(())
    }

    /// Resolves the route to the peer, which [`resolve_address`](Self::resolve_address) has found already.
    ///
    /// # Errors
    /// `EINVAL`: the address is not resolved.
    pub fn resolve_route(self: &Arc<Self>) -> Result<()> {
        {
            let mut state = self.lock();
            if state.phase != Phase::AddressResolved {
                return Err(EINVAL);
            }
            state.phase = Phase::RouteResolved;
            self.push(&state, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        }
        self.complete()
    }
}

/// Returns an address of the device that `DDPD_DEVICE` names, of the same family as `remote`; `None` if the variable
/// does not restrict the devices.
fn only_address(instance: &Instance, remote: SocketAddr) -> Result<Option<std::net::IpAddr>> {
    let devices = Device::all()?;
    if devices.len() == instance.session().devices().len() {
        return Ok(None);
    }
    let infos = devices.iter().map(|device| device.info());
    let mut own = infos.flat_map(|info| info.addresses);
    Ok(own.find(|own| own.is_ipv4() == remote.is_ipv4()))
}

/// Converts an IPv4-mapped IPv6 address to IPv4. Returns any other address unchanged.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip == address.ip() => address,
        ip => SocketAddr::new(ip, address.port()),
    }
}

//! SYN cookies of a worker (RFC 4987 §3.6): answers SYNs without state, and opens streams for returned cookies.

use std::sync::Arc;

use base::Instant;
use ipsec::strength::Strength;
use tcp_lite::endpoint::{Endpoint, EndpointConfig};
use tcp_lite::tcp::{FourTuple, Segment, SynAckOffer};

use crate::api::{
    DropReason, EndpointConfig as OverTransport, IpFields, ListenerConfig, SynCookieMode, Transport,
};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::memory::Memory;
use crate::net::neighbour::Mac;
use crate::net::path::Path;
use crate::net::protocol::TCP;
use crate::worker::flows::conn::Origin;
use crate::worker::flows::listeners::AcceptProgress;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::transmit::segment_batch::SegmentBatch;
use crate::worker::{Core, Phase};

impl<Io: PortIo> Core<Io> {
    /// Returns true if every SYN is answered with a cookie, even if there is room for a stream.
    pub(in crate::worker) fn always_sends_cookies(&self) -> bool {
        self.env.admission.cookies().mode() == SynCookieMode::Always
    }

    /// Returns true if a SYN that was refused for `reason` is answered with a cookie: cookies are not disabled, and the
    /// peer can be admitted once its address is proven.
    pub(in crate::worker) fn answers_with_cookie(
        &self,
        listener: &ListenerConfig,
        flow: &FlowKey,
        reason: DropReason,
    ) -> bool {
        self.env.admission.cookies().mode() != SynCookieMode::Never
            && self.env.admission.listeners().can_evict_for(listener.id, flow.remote.ip(), reason)
    }

    /// Answers a SYN with a cookie: one SYN-ACK of ordinary length, sent to the SYN's source MAC address. An attacker
    /// who forges SYNs therefore gains hardly any amplification.
    pub(in crate::worker) fn send_cookie(
        &mut self,
        endpoint: &EndpointConfig,
        ip: IpFields,
        flow: &FlowKey,
        mac: Mac,
        syn: &Segment<'_>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let at = usize::from(flow.interface);
        let interface = self.env.network.interface(at);
        let (local, remote) = (flow.local, flow.remote);
        let path = Path::via(at, interface, local.ip(), remote.ip(), remote.ip());
        let mut path = path.ok_or(DropReason::NoRoute)?.with_fields(ip);
        path.set_mac(mac);
        let mss = self.env.network.mss(&path, (local.port(), remote.port()), now);
        let slot = self.env.ports.get_mut(path.port());
        let slot = slot.ok_or(DropReason::NoRoute)?;
        let checksum = slot.facts.tx_checksum;
        let mut batch =
            SegmentBatch::new(&mut slot.io, &path, checksum, 1, self.env.control.counters());
        let offer = SynAckOffer { mss, room: Endpoint::<Memory>::STARTUP_WINDOW };
        let tuple = FourTuple { local, remote };
        let cookies = self.env.admission.cookies_mut();
        if !cookies.codec().answer(&endpoint.tcp, &tuple, offer, syn, now, &mut batch) {
            return Err(DropReason::TxFull);
        }
        cookies.note_sent(now);
        self.env.control.counters().streams.cookies_sent.add(1);
        Ok(())
    }

    /// Checks an unmatched ACK, received under IPsec protection `strength`, for a cookie. Returns `Ok(true)` if a valid
    /// cookie has opened a stream, `Ok(false)` if there is no valid cookie.
    ///
    /// # Errors
    /// [`DropReason::PeerRefused`] if the listener refuses the peer; the cookie is then not verified. Otherwise the
    /// cookie is valid, but protection, a route or room is missing, or the worker drains. Missing protection is
    /// answered with a reset. In the other cases the peer retransmits.
    pub(in crate::worker) fn accept_cookie(
        &mut self,
        flow: FlowKey,
        strength: Strength,
        segment: &Segment<'_>,
        now: Instant,
    ) -> Result<bool, DropReason> {
        if !self.env.admission.cookies().are_outstanding(now) {
            return Ok(false);
        }
        let interface_index = usize::from(flow.interface);
        let interface = self.env.network.interface(interface_index);
        let listeners = self.env.admission.listeners();
        let listener = listeners.find(Transport::Tcp, interface.id, flow.local).cloned();
        let Some(listener) = listener else { return Ok(false) };
        let OverTransport::Tcp(endpoint) = &listener.endpoint else { return Ok(false) };
        // Checked before the cookie is verified, so that a refused peer costs no cryptography.
        if listener.peers.check(flow.remote.ip()).is_err() {
            return Err(DropReason::PeerRefused);
        }
        let tuple = FourTuple { local: flow.local, remote: flow.remote };
        let cookies = self.env.admission.cookies();
        let Some(cookie) = cookies.codec().check(&endpoint.tcp, &tuple, segment, now) else {
            self.env.control.counters().streams.cookies_failed.add(1);
            return Ok(false);
        };
        if !self.env.network.satisfies_listener(&listener, &flow, None, strength) {
            return Err(DropReason::NotProtected);
        }
        let path = self.env.network.path(interface_index, TCP, flow.local, flow.remote);
        let path = path.ok_or(DropReason::NoRoute)?.with_fields(listener.ip);
        if self.env.phase != Phase::Running {
            return Err(DropReason::StreamLimit);
        }
        let peer = flow.remote.ip();
        let mut stream = self.vacancy(now).ok_or(DropReason::StreamLimit)?;
        let mut taken = self.reserve_place(listener.id, peer, stream, now);
        if let Err(DropReason::Backlog | DropReason::NoCredit) = taken
            && let Some(victim) = self.env.admission.listeners().oldest_unproven(listener.id)
            && let Some(slot) = self.streams.find_stream(victim)
        {
            self.env.control.counters().streams.half_open_evicted.add(1);
            self.remove_stream(slot);
            stream = self.vacancy(now).ok_or(DropReason::StreamLimit)?;
            let listeners = self.env.admission.listeners_mut();
            taken = listeners.reserve(listener.id, peer, stream, AcceptProgress::Starting);
        }
        taken?;
        let ports = (flow.local.port(), flow.remote.port());
        let (config, mss) = (Arc::clone(endpoint), self.env.network.mss(&path, ports, now));
        let endpoint = Endpoint::accept_cookie(config, stream, tuple, mss, &cookie, now);
        let progress = AcceptProgress::Starting;
        let origin = Origin::Accepted { listener: listener.id, progress };
        let slot = self.insert_stream(flow, endpoint, path, origin, stream, now);
        self.require_strength(CarrierKind::Connection, slot, listener.min_strength());
        let slot = slot.ok_or(DropReason::StreamLimit)?;
        self.env.control.counters().streams.cookies_accepted.add(1);
        let conn = self.streams.get_mut(slot).ok_or(DropReason::StreamLimit)?;
        let reserved = self.env.input_segment(slot, conn, segment, now);
        self.finish_segment(slot, reserved, now);
        Ok(true)
    }
}

//! Address conflicts and partial checksums that workers report.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use api::EventKind;
use config::PortKind;
use dataplane::{InterfaceId, PortId};

use super::Core;
use crate::appliance::notes::Cause;
use crate::appliance::ports::mac;

/// Lifetime of a note about an address conflict. Workers repeat the report every 10 s while another host uses the
/// address.
const CONFLICT_LIFETIME: Duration = Duration::from_secs(35);

/// Lifetime of a note about partial checksums. Workers repeat the report every 10 s while a host's packets lack
/// checksums.
const CHECKSUM_FAULT_LIFETIME: Duration = Duration::from_secs(35);

impl Core {
    /// Adds a note and an event: another host uses one of the interface's addresses.
    pub(super) fn on_address_conflict(
        &mut self,
        interface_id: InterfaceId,
        address: IpAddr,
        other_mac: [u8; 6],
        now: Instant,
    ) {
        let interfaces = &self.env.context.config.interfaces;
        let Some(interface) = interfaces.get(usize::from(interface_id.0)).map(|i| i.name.clone())
        else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        let other = mac(&other_mac);
        let sentence = format!(
            "interface {interface}: {address} is also used by the host {other}: peers may reach that one instead; \
             give one of them another address"
        );
        tracing::warn!("{sentence}");
        self.env.notes.set(
            Cause::Conflict(interface_id, address),
            sentence,
            Some(now + CONFLICT_LIFETIME),
        );
        let address = address.to_string();
        self.env.log.push(EventKind::AddressConflict { interface, address, other });
    }
    /// Adds a note about a host whose packets lack checksums, because the host leaves checksums to a device that
    /// computes none. The first report also adds an event.
    pub(super) fn on_unfinished_checksums(
        &mut self,
        PortId(at): PortId,
        source: IpAddr,
        now: Instant,
    ) {
        let Some(section) = self.env.context.config.ports.get(usize::from(at)) else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        let command = base::veth_peer_offloads_off!();
        let remedy = match &section.kind {
            PortKind::AfPacket { device } | PortKind::AfXdp { device, .. } => format!(
                "at the other end of {device}, in the network namespace of {source}, run `{command}`, where PEER is its \
                 interface"
            ),
            PortKind::Pci { .. }
            | PortKind::Tap { .. }
            | PortKind::Memif { .. }
            | PortKind::VhostUser { .. }
            | PortKind::Ring { .. }
            | PortKind::Pcap { .. } => {
                format!(
                    "turn its offloads off: on {source} run `{command}`, where PEER is its interface"
                )
            }
        };
        let sentence = format!(
            "port {}: packets of {source} come without checksums, which it leaves to a device: they are dropped and its \
             connections time out; {remedy}",
            section.name
        );
        let cause = Cause::Checksums(source);
        if !self.env.notes.has(&cause, now) {
            tracing::warn!("{sentence}");
            self.env.log.push(EventKind::Warning { message: sentence.clone() });
        }
        self.env.notes.set_bounded(cause, sentence, now + CHECKSUM_FAULT_LIFETIME);
    }
}

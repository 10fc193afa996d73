//! Other hosts with our addresses, as workers report them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dataplane::InterfaceId;

use super::Core;
use crate::api::EventKind;
use crate::appliance::notes::Cause;
use crate::appliance::ports::mac;

/// Workers look again every 10 s as long as another host has an address: without a sign of it for so long, it is gone.
const CONFLICT: Duration = Duration::from_secs(35);

impl Core {
    /// A worker reports another host with an address of ours.
    pub(super) fn on_address_conflict(
        &mut self,
        at: InterfaceId,
        address: IpAddr,
        other: [u8; 6],
        now: Instant,
    ) {
        let interfaces = &self.env.facts.config.interfaces;
        let Some(interface) = interfaces.get(usize::from(at.0)).map(|i| i.name.clone()) else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        let other = mac(&other);
        let sentence = format!(
            "interface {interface}: {address} is also used by the host {other}: peers may reach that one instead; \
             give one of them another address"
        );
        tracing::warn!("{sentence}");
        self.env.notes.set(Cause::Conflict(at, address), sentence, Some(now + CONFLICT));
        let address = address.to_string();
        self.env.log.push(EventKind::AddressConflict { interface, address, other });
    }
}

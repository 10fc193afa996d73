//! SAs from the peer: added and removed, each with its anti-replay window.

use base::Instant;

use super::windows::{Name, ReplayWindows};
use super::{Drop, Guard, Incoming, Protection, SaId};
use crate::sa::{Inbound, Parameters, SaError};
use crate::strength::Strength;

/// An SA from the peer.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: SaId,
    pub(super) protection: Protection,
    pub(super) strength: Strength,
    /// The SA, if this worker opens its packets. `None`: another worker owns it, or this one waits for its
    /// window.
    pub(super) ours: Option<Box<Inbound>>,
    /// Key of the SA in [`ReplayWindows`], if this worker owns it.
    name: Option<Name>,
    /// The SA while this worker owns it and another one has not left its window yet.
    pub(super) awaits: Option<Box<Awaits>>,
}

/// An SA that awaits its window.
#[derive(Debug)]
pub(super) struct Awaits {
    sa: Inbound,
    /// All sequence numbers up to this count as received.
    top: u64,
}

impl Guard {
    /// Adds an inbound SA with an anti-replay window of `window` packets. All sequence numbers up to `top`
    /// count as received, and so do those that an ended SA with the same SPI and keys has received.
    ///
    /// # Errors
    /// The protection does not exist, or the parameters are invalid.
    pub fn add_inbound(
        &mut self,
        id: SaId,
        protection: Protection,
        parameters: &Parameters,
        (window, top): (u16, u64),
    ) -> Result<(), SaError> {
        let Some(protected) = self.protected.get(usize::from(protection.0)) else {
            return Err(SaError::Protection(protection.0));
        };
        let strength = parameters.algorithm.into();
        let mut known = Known { id, protection, strength, ours: None, name: None, awaits: None };
        if protected.owner == self.worker {
            let mut sa = Inbound::new(parameters, window)?;
            if top > 0 {
                sa.resume(top);
            }
            known.name = Some(Name::from(parameters));
            known.awaits = Some(Box::new(Awaits { sa, top }));
        }
        if let Some(replaced) = self.inbound.remove(&parameters.spi) {
            self.leave(replaced);
        }
        known.take_window(&self.windows);
        self.inbound.insert(parameters.spi, known);
        self.note_weakest();
        Ok(())
    }

    /// Removes an inbound SA. Returns false if this worker does not know it.
    pub(super) fn remove_inbound(&mut self, id: SaId) -> bool {
        let is_it = |(&spi, known): (&u32, &Known)| (known.id == id).then_some(spi);
        let Some(spi) = self.inbound.iter().find_map(is_it) else { return false };
        if let Some(known) = self.inbound.remove(&spi) {
            self.leave(known);
        }
        self.note_weakest();
        true
    }

    /// Leaves the window of an ended SA to the next one with the same SPI and keys.
    fn leave(&self, known: Known) {
        if let (Some(name), Some(sa)) = (known.name, known.ours) {
            self.windows.leave(name, sa.into_window());
        }
    }

    /// Updates the weakest strength of each protection after a change of the inbound SAs.
    fn note_weakest(&mut self) {
        for protected in &mut self.protected {
            protected.weakest = None;
        }
        for known in self.inbound.values() {
            let Some(of) = self.protected.get_mut(usize::from(known.protection.0)) else {
                continue;
            };
            let weakest = of.weakest.map_or(known.strength, |least| least.min(known.strength));
            of.weakest = Some(weakest);
        }
    }

    /// Handles a packet of an SA of ours whose window another worker may have left by now.
    #[cold]
    pub(super) fn await_window(
        &mut self,
        spi: u32,
        packet: &[u8],
        now: Instant,
    ) -> Result<Incoming, Drop> {
        let known = self.inbound.get_mut(&spi);
        if known.is_some_and(|known| known.take_window(&self.windows)) {
            return Ok(Incoming::Protected(spi));
        }
        self.audit(Drop::UnknownSpi, Some(spi), packet, now);
        Err(Drop::UnknownSpi)
    }
}

impl Known {
    /// Takes the window that the SA awaits, if no other guard holds it. Returns whether the SA can open packets now.
    fn take_window(&mut self, windows: &ReplayWindows) -> bool {
        let (Some(awaits), Some(name)) = (&mut self.awaits, &self.name) else { return false };
        let Ok(window) = windows.take(name) else { return false };
        if let Some(window) = window {
            awaits.sa.inherit(&window, awaits.top);
        }
        self.ours = self.awaits.take().map(|awaits| Box::new(awaits.sa));
        true
    }
}

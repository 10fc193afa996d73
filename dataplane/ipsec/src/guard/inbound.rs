//! Inbound SAs: addition and removal, each with its anti-replay window. Only the owner of a protection opens the
//! packets of its SAs. An SA that is added again with the same SPI and keys continues the window of the ended SA, so
//! that no packet is accepted twice.

use base::Instant;

use super::replay_windows::{ReplayWindows, WindowKey};
use super::{Guard, InboundVerdict, IpsecDrop, Protection, SaId};
use crate::sa::{Inbound, Parameters, SaError};
use crate::strength::Strength;

/// An inbound SA of this or another worker.
#[derive(Debug)]
pub(super) struct InboundSa {
    pub(super) id: SaId,
    pub(super) protection: Protection,
    pub(super) strength: Strength,
    /// The SA, if this worker opens its packets. `None` if another worker owns the SA, or while this worker waits for
    /// the SA's anti-replay window.
    pub(super) sa: Option<Box<Inbound>>,
    /// Key of the SA in [`ReplayWindows`], if this worker owns it.
    window_key: Option<WindowKey>,
    /// The SA, while this worker owns it but another worker has not released its anti-replay window yet.
    pub(super) pending: Option<Box<PendingSa>>,
}

/// An SA that waits for its anti-replay window.
#[derive(Debug)]
pub(super) struct PendingSa {
    sa: Inbound,
    /// All sequence numbers up to this number count as received.
    top: u64,
}

impl Guard {
    /// Adds an inbound SA with an anti-replay window of `window` packets. All sequence numbers up to `top` count as
    /// received, and so do the numbers that an ended SA with the same SPI and keys has received.
    ///
    /// # Errors
    /// The protection does not exist, or the parameters are invalid.
    pub fn add_inbound(
        &mut self,
        id: SaId,
        protection: Protection,
        parameters: &Parameters,
        window: u16,
        top: u64,
    ) -> Result<(), SaError> {
        let Some(protected) = self.protections.get(usize::from(protection.0)) else {
            return Err(SaError::Protection(protection.0));
        };
        let strength = parameters.algorithm.into();
        let mut entry =
            InboundSa { id, protection, strength, sa: None, window_key: None, pending: None };
        if protected.owner == self.worker {
            let mut sa = Inbound::new(parameters, window)?;
            if top > 0 {
                sa.resume(top);
            }
            entry.window_key = Some(WindowKey::from(parameters));
            entry.pending = Some(Box::new(PendingSa { sa, top }));
        }
        if let Some(replaced) = self.inbound.remove(&parameters.spi) {
            self.return_window(replaced);
        }
        entry.take_window(&self.windows);
        self.inbound.insert(parameters.spi, entry);
        self.update_weakest();
        Ok(())
    }

    /// Removes an inbound SA. Returns false if this guard has no record of the SA.
    pub(super) fn remove_inbound(&mut self, id: SaId) -> bool {
        let matches_id = |(&spi, known): (&u32, &InboundSa)| (known.id == id).then_some(spi);
        let Some(spi) = self.inbound.iter().find_map(matches_id) else { return false };
        if let Some(known) = self.inbound.remove(&spi) {
            self.return_window(known);
        }
        self.update_weakest();
        true
    }

    /// Releases the anti-replay window of an ended SA, for the next SA with the same SPI and keys.
    fn return_window(&self, entry: InboundSa) {
        if let (Some(name), Some(sa)) = (entry.window_key, entry.sa) {
            self.windows.release(name, sa.into_window());
        }
    }

    /// Updates the weakest strength of each protection after a change of the inbound SAs.
    fn update_weakest(&mut self) {
        for protected in &mut self.protections {
            protected.weakest = None;
        }
        for entry in self.inbound.values() {
            let Some(state) = self.protections.get_mut(usize::from(entry.protection.0)) else {
                continue;
            };
            let weakest = state.weakest.map_or(entry.strength, |least| least.min(entry.strength));
            state.weakest = Some(weakest);
        }
    }

    /// Retries [`InboundSa::take_window`] for a packet of a pending SA, because another worker may have released the
    /// window.
    #[cold]
    pub(super) fn retry_window(
        &mut self,
        spi: u32,
        packet: &[u8],
        now: Instant,
    ) -> Result<InboundVerdict, IpsecDrop> {
        let entry = self.inbound.get_mut(&spi);
        if entry.is_some_and(|known| known.take_window(&self.windows)) {
            return Ok(InboundVerdict::Protected(spi));
        }
        self.audit(IpsecDrop::UnknownSpi, Some(spi), packet, now);
        Err(IpsecDrop::UnknownSpi)
    }
}

impl InboundSa {
    /// Takes the pending SA's window if no other guard holds it. Returns true if the SA can open packets now.
    fn take_window(&mut self, windows: &ReplayWindows) -> bool {
        let (Some(awaits), Some(name)) = (&mut self.pending, &self.window_key) else {
            return false;
        };
        let Ok(window) = windows.take(name) else { return false };
        if let Some(window) = window {
            awaits.sa.inherit(&window, awaits.top);
        }
        self.sa = self.pending.take().map(|awaits| Box::new(awaits.sa));
        true
    }
}

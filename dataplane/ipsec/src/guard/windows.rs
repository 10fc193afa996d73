//! Anti-replay windows of ended inbound SAs. An SA that is added again with the same keys, changed or at
//! another worker, opens no packet twice.
//!
//! ```text
//!   held by a guard --SA ends--> left --SA with the same SPI and keys--> held
//! ```
//!
//! A window has one holder. While one guard holds it, an SA of the same name at another guard opens no packet.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::crypto::Fingerprint;
use crate::replay::Window;
use crate::sa::Parameters;

/// Most windows of ended SAs kept; the oldest is dropped first.
const MOST: usize = 4096;

/// SPI and keys of an SA. Addresses and ports are not part of the name: an update may change them (RFC 4555,
/// RFC 3948 §3.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    spi: u32,
    keys: Fingerprint,
}

impl From<&Parameters> for Name {
    fn from(parameters: &Parameters) -> Name {
        Name { spi: parameters.spi, keys: parameters.keys.fingerprint() }
    }
}

/// The windows of ended SAs, shared by the guards of a data plane. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct ReplayWindows(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    held: HashSet<Name>,
    /// Windows of ended SAs, the oldest first.
    left: VecDeque<(Name, Window)>,
}

/// Another guard holds the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held;

impl ReplayWindows {
    /// Takes the window of an SA: `None` if no SA of that name has ended.
    ///
    /// # Errors
    /// Another guard holds it.
    pub(super) fn take(&self, name: &Name) -> Result<Option<Window>, Held> {
        let mut state = self.state();
        if !state.held.insert(name.clone()) {
            return Err(Held);
        }
        let at = state.left.iter().position(|(known, _)| known == name);
        Ok(at.and_then(|at| state.left.remove(at)).map(|(_, window)| window))
    }

    /// Leaves the window of an SA that ends.
    pub(super) fn leave(&self, name: Name, window: Window) {
        let mut state = self.state();
        state.held.remove(&name);
        state.left.push_back((name, window));
        let excess = state.left.len().saturating_sub(MOST);
        state.left.drain(..excess);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::crypto::Keys;

    fn name(spi: u32, key: u8) -> Name {
        Name { spi, keys: Keys::new(vec![key; 20], Vec::new()).fingerprint() }
    }

    fn window(top: u64) -> Window {
        let mut window = Window::new(NonZeroU16::new(64).unwrap()).unwrap();
        window.update(top);
        window
    }

    #[test]
    fn a_window_has_one_holder_and_returns_to_the_same_spi_and_keys() {
        let windows = ReplayWindows::default();
        assert_eq!(windows.take(&name(1, 1)), Ok(None));
        assert_eq!(windows.clone().take(&name(1, 1)), Err(Held));
        assert_eq!(windows.take(&name(1, 2)), Ok(None));
        windows.leave(name(1, 1), window(7));
        assert_eq!(windows.take(&name(2, 1)), Ok(None));
        assert_eq!(windows.take(&name(1, 1)), Ok(Some(window(7))));
        assert_eq!(windows.take(&name(1, 1)), Err(Held));
    }

    #[test]
    fn windows_are_bounded_and_the_oldest_goes_first() {
        let windows = ReplayWindows::default();
        for spi in 0..MOST as u32 + 1 {
            windows.leave(name(spi, 1), window(7));
        }
        assert_eq!(windows.take(&name(0, 1)), Ok(None));
        assert_eq!(windows.take(&name(1, 1)), Ok(Some(window(7))));
    }
}

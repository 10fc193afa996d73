//! Anti-replay windows of ended inbound SAs. An SA may be added again with the same SPI and keys, with other parameters
//! or at another worker. The SA then continues with its old window, so that no packet is accepted twice.
//!
//! ```text
//!   held by a guard --SA ends--> released --SA with the same SPI and keys--> held
//! ```
//!
//! A window has one holder. While one guard holds it, an SA with the same SPI and keys at another guard opens no
//! packet.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::crypto::Fingerprint;
use crate::replay::Window;
use crate::sa::Parameters;

/// Maximum number of windows kept for ended SAs; the oldest is dropped first.
const MAX_WINDOWS: usize = 4096;

/// Identifies a window by the SA's SPI and keys. Addresses and ports are not included: an update may change them (RFC
/// 4555, RFC 3948 §3.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowKey {
    spi: u32,
    keys: Fingerprint,
}

impl From<&Parameters> for WindowKey {
    fn from(parameters: &Parameters) -> WindowKey {
        WindowKey { spi: parameters.spi, keys: parameters.keys.fingerprint() }
    }
}

/// The windows of ended SAs, shared by the guards of a data plane. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct ReplayWindows(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    held: HashSet<WindowKey>,
    /// Windows of ended SAs, the oldest first.
    released: VecDeque<(WindowKey, Window)>,
}

/// Another guard holds the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowHeld;

impl ReplayWindows {
    /// Marks the window of an SA as held and returns it; `None` if no SA with this key has ended, or its window was
    /// dropped.
    ///
    /// # Errors
    /// Another guard holds the window.
    pub(super) fn take(&self, key: &WindowKey) -> Result<Option<Window>, WindowHeld> {
        let mut state = self.state();
        if !state.held.insert(key.clone()) {
            return Err(WindowHeld);
        }
        let at = state.released.iter().position(|(known, _)| known == key);
        Ok(at.and_then(|at| state.released.remove(at)).map(|(_, window)| window))
    }

    /// Releases the window of an SA that ends.
    pub(super) fn release(&self, key: WindowKey, window: Window) {
        let mut state = self.state();
        state.held.remove(&key);
        state.released.push_back((key, window));
        let excess = state.released.len().saturating_sub(MAX_WINDOWS);
        state.released.drain(..excess);
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

    fn window_key(spi: u32, key: u8) -> WindowKey {
        WindowKey { spi, keys: Keys::new(vec![key; 20], Vec::new()).fingerprint() }
    }

    fn window(top: u64) -> Window {
        let mut window = Window::new(NonZeroU16::new(64).unwrap()).unwrap();
        window.update(top);
        window
    }

    #[test]
    fn window_has_one_holder_and_follows_spi_and_keys() {
        let windows = ReplayWindows::default();
        assert_eq!(windows.take(&window_key(1, 1)), Ok(None));
        assert_eq!(windows.clone().take(&window_key(1, 1)), Err(WindowHeld));
        assert_eq!(windows.take(&window_key(1, 2)), Ok(None));
        windows.release(window_key(1, 1), window(7));
        assert_eq!(windows.take(&window_key(2, 1)), Ok(None));
        assert_eq!(windows.take(&window_key(1, 1)), Ok(Some(window(7))));
        assert_eq!(windows.take(&window_key(1, 1)), Err(WindowHeld));
    }

    #[test]
    fn window_cache_is_bounded_and_drops_oldest() {
        let windows = ReplayWindows::default();
        for spi in 0..MAX_WINDOWS as u32 + 1 {
            windows.release(window_key(spi, 1), window(7));
        }
        assert_eq!(windows.take(&window_key(0, 1)), Ok(None));
        assert_eq!(windows.take(&window_key(1, 1)), Ok(Some(window(7))));
    }
}

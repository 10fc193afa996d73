//! The budget of one worker for growth of receive windows beyond their configured size.
//!
//! The growth itself uses no memory of the worker: data placed at arrival needs none, and data that must be held has
//! its own budget ([`HoldBudget`](crate::HoldBudget)). This budget bounds the additional bytes that all peers together
//! may have in flight.

/// Bytes by which the receive windows of a worker's streams may grow in total.
#[derive(Debug)]
pub struct WindowBudget {
    limit: u64,
    used: u64,
    refused: u64,
}

impl Default for WindowBudget {
    fn default() -> Self {
        WindowBudget::new(1 << 30)
    }
}

impl WindowBudget {
    /// Returns a budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        WindowBudget { limit, used: 0, refused: 0 }
    }

    /// Returns the bytes by which windows have grown in total.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns how often the growth of a window was refused.
    #[inline]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Grants `increase` more bytes to a window that has already grown by `grown` bytes. Returns false if the window's
    /// total growth would exceed the budget that is left afterwards.
    #[must_use]
    pub fn widen(&mut self, grown: u64, increase: u64) -> bool {
        let remaining = self.limit.saturating_sub(self.used);
        let granted = grown.saturating_add(increase) <= remaining.saturating_sub(increase);
        match granted {
            true => self.used += increase,
            false => self.refused += 1,
        }
        granted
    }

    /// Releases the bytes by which a window has grown, when its stream has ended.
    pub fn release(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn first_window_leaves_as_much_as_it_gets() {
        let mut budget = WindowBudget::new(1000);
        assert!(budget.widen(0, 500) && !budget.widen(500, 1));
        assert!(budget.widen(0, 250) && !budget.widen(0, 126));
        budget.release(500);
        assert!(budget.widen(0, 375) && !budget.widen(0, 188));
        assert_eq!((budget.used(), budget.refused()), (625, 3));
    }

    proptest! {
        #[test]
        fn window_growth_never_exceeds_the_limit(steps in prop::collection::vec((0usize..8, 1u64..300, any::<bool>()), 0..300)) {
            let mut budget = WindowBudget::new(1000);
            let mut has = [0; 8];
            for (who, more, ends) in steps {
                if ends {
                    budget.release(core::mem::take(&mut has[who]));
                } else if budget.widen(has[who], more) {
                    has[who] += more;
                }
                prop_assert!(budget.used() <= 1000);
                prop_assert_eq!(budget.used(), has.iter().sum::<u64>());
            }
        }
    }
}

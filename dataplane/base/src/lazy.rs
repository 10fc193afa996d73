//! Containers, allocated on demand, for state that most streams rarely need. They reduce the memory per stream.

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::collections::VecDeque;

/// Rarely used part of a stream's state. All streams without an allocated part share one static blank value.
pub trait Blank: Clone + 'static {
    /// Returns the shared blank value.
    fn blank() -> &'static Self;
}

/// A part of a larger state that occupies eight bytes while it is blank. A blank part reads as [`Blank::blank`]. The
/// first change allocates the part, and [`release`](Self::release) frees its memory.
pub struct Lazy<T>(pub(crate) Option<Box<T>>);

impl<T> Lazy<T> {
    /// Returns a blank part.
    pub const fn new() -> Self {
        Lazy(None)
    }

    /// Returns the part for modification; `None` if it is blank. Unlike [`DerefMut`], never allocates the part.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Makes the part blank, and frees its memory.
    pub fn release(&mut self) {
        self.0 = None;
    }

    /// Returns true if no memory is allocated.
    pub fn is_blank(&self) -> bool {
        self.0.is_none()
    }
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Lazy::new()
    }
}

impl<T: Clone> Clone for Lazy<T> {
    fn clone(&self) -> Self {
        Lazy(self.0.clone())
    }
}

impl<T: Blank + fmt::Debug> fmt::Debug for Lazy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Blank> Deref for Lazy<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.0 {
            Some(there) => there,
            None => T::blank(),
        }
    }
}

impl<T: Blank> DerefMut for Lazy<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        if self.0.is_none() {
            return allocate(&mut self.0);
        }
        // The value is set, so the compiler removes this check and the call of `blank`.
        self.0.get_or_insert_with(blank)
    }
}

/// A queue that occupies eight bytes in its owner. Its `VecDeque` is allocated when it is first borrowed mutably.
#[derive(Clone)]
#[expect(clippy::box_collection, reason = "eight bytes instead of 32")]
pub struct LazyDeque<T>(pub(crate) Option<Box<VecDeque<T>>>);

impl<T> LazyDeque<T> {
    /// Returns an empty queue.
    pub const fn new() -> Self {
        LazyDeque(None)
    }

    /// Returns the item at `index`, counted from the front; `None` past the last item.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.as_mut()?.get_mut(index)
    }

    /// Returns all items; the queue is empty afterwards.
    pub fn take(&mut self) -> VecDeque<T> {
        self.0.take().map(|queue| *queue).unwrap_or_default()
    }

    /// Returns true if no memory is allocated.
    pub fn is_blank(&self) -> bool {
        self.0.is_none()
    }

    /// Empties the queue, and frees its memory.
    pub fn release(&mut self) {
        self.0 = None;
    }

    /// Frees the queue's memory if it is empty.
    pub fn shrink(&mut self) {
        if self.0.as_ref().is_some_and(|queue| queue.is_empty()) {
            self.0 = None;
        }
    }

    /// Removes the item at the front.
    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        self.0.as_mut()?.pop_front()
    }
}

impl<T> Default for LazyDeque<T> {
    fn default() -> Self {
        LazyDeque::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for LazyDeque<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().flat_map(|queue| queue.iter())).finish()
    }
}

impl<T: 'static> Deref for LazyDeque<T> {
    type Target = VecDeque<T>;

    #[inline]
    fn deref(&self) -> &VecDeque<T> {
        match &self.0 {
            Some(there) => there,
            None => const { &VecDeque::new() },
        }
    }
}

impl<T: 'static> DerefMut for LazyDeque<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut VecDeque<T> {
        self.0.get_or_insert_default()
    }
}

#[cold]
#[inline(never)]
fn allocate<T: Blank>(slot: &mut Option<Box<T>>) -> &mut T {
    slot.insert(blank())
}

fn blank<T: Blank>() -> Box<T> {
    Box::new(T::blank().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Part {
        count: u32,
        list: Vec<u8>,
    }

    impl Blank for Part {
        fn blank() -> &'static Self {
            static BLANK: Part = Part { count: 7, list: Vec::new() };
            &BLANK
        }
    }

    #[test]
    fn lazy_reads_blank_before_change_and_after_release() {
        let mut part: Lazy<Part> = Lazy::new();
        assert_eq!(size_of_val(&part), 8);
        assert_eq!(part.count, 7);
        assert!(part.is_blank() && part.get_mut().is_none());
        part.list.push(1);
        part.count += 1;
        assert_eq!(*part, Part { count: 8, list: vec![1] });
        assert!(!part.is_blank() && part.get_mut().is_some());
        part.release();
        assert!(part.is_blank());
        assert_eq!(part.count, 7);
    }

    #[test]
    fn lazy_queue_allocates_only_while_not_empty() {
        let mut queue: LazyDeque<u8> = LazyDeque::new();
        assert_eq!(size_of_val(&queue), 8);
        assert!(queue.is_empty() && queue.pop_front().is_none() && queue.get_mut(0).is_none());
        assert!(queue.is_blank());
        queue.push_back(1);
        assert_eq!((queue.len(), queue.front()), (1, Some(&1)));
        queue.shrink();
        assert_eq!(queue.pop_front(), Some(1));
        assert!(!queue.is_blank());
        queue.shrink();
        assert!(queue.is_blank());
        queue.push_back(2);
        assert_eq!(queue.take(), [2]);
        assert!(queue.is_blank());
    }
}

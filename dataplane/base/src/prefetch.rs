//! Prefetch of state in a chain of allocations. The caller prefetches one level of pointers after the other, and does
//! other work while the CPU loads each level.

use core::mem::size_of;
use std::collections::VecDeque;

use crate::{Lazy, LazyDeque};

/// Maximum number of bytes at the front of a queue that are prefetched.
const MAX_QUEUE_BYTES: usize = 512;

/// A type whose allocations can be prefetched.
pub trait Prefetch {
    /// Calls `hint` with the address and the size in bytes of each allocation that is `steps` pointers away from
    /// `self`. Step 0: the allocations that `self` points to. Step 1: the allocations that those of step 0 point to,
    /// and so on. The call reads the allocations of earlier steps, which the caller has prefetched, but no allocation
    /// that it passes to `hint`.
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize));
}

impl<T: Prefetch> Prefetch for Box<T> {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        match steps {
            0 => hint((&raw const **self).cast(), size_of::<T>()),
            _ => (**self).prefetch(steps - 1, hint),
        }
    }
}

impl<T: Prefetch> Prefetch for Option<T> {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if let Some(there) = self {
            there.prefetch(steps, hint);
        }
    }
}

impl<T: Prefetch> Prefetch for Lazy<T> {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        self.0.prefetch(steps, hint);
    }
}

impl<T> Prefetch for Box<[T]> {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if steps == 0 {
            hint(self.as_ptr().cast(), size_of_val(&**self));
        }
    }
}

/// Prefetches the front of the queue. An empty queue yields no hint, since `VecDeque` does not expose the address of
/// the next item.
impl<T> Prefetch for VecDeque<T> {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        let (front, _) = self.as_slices();
        if steps == 0 && !front.is_empty() {
            hint(front.as_ptr().cast(), size_of_val(front).min(MAX_QUEUE_BYTES));
        }
    }
}

impl<T> Prefetch for LazyDeque<T> {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        self.0.prefetch(steps, hint);
    }
}

/// Implements [`Prefetch`] for a type. The arguments are the type, then each field that points to further allocations,
/// if any: `prefetch!(Kind: field, field)`, or `prefetch!(Kind<T> [T: BoundServer]: field)`.
#[macro_export]
macro_rules! prefetch {
    ($kind:ty $([$($generic:tt)+])?: $($field:ident),*) => {
        impl$(<$($generic)+>)? $crate::Prefetch for $kind {
            #[inline]
            #[allow(unused_variables)]
            fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
                $($crate::Prefetch::prefetch(&self.$field, steps, hint);)*
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blank;

    #[derive(Clone)]
    struct Leaf([u8; 100]);
    prefetch!(Leaf:);

    impl Blank for Leaf {
        fn blank() -> &'static Self {
            static BLANK: Leaf = Leaf([0; 100]);
            &BLANK
        }
    }

    #[derive(Default)]
    struct Branch {
        leaf: Lazy<Leaf>,
        queue: LazyDeque<u32>,
        row: Box<[u16]>,
    }
    prefetch!(Branch: leaf, queue, row);

    struct Tree<T> {
        branch: Box<Branch>,
        other: Option<Box<Branch>>,
        _kind: T,
    }
    prefetch!(Tree<T> [T: Copy]: branch, other);

    fn hints(tree: &Tree<u8>, steps: u32) -> Vec<(*const u8, usize)> {
        let mut hints = Vec::new();
        tree.prefetch(steps, &mut |at, len| hints.push((at, len)));
        hints
    }

    #[test]
    fn prefetch_step_follows_pointers_of_previous_step() {
        let mut branch = Branch { row: vec![1; 3].into(), ..Branch::default() };
        branch.leaf.0 = Some(Box::new(Leaf([7; 100])));
        branch.queue.push_back(5);
        let tree = Tree { branch: Box::new(branch), other: None, _kind: 0 };
        let branch = &*tree.branch;
        let at = |part: *const u8, len: usize| (part, len);
        assert_eq!(hints(&tree, 0), [at((&raw const *branch).cast(), size_of::<Branch>())]);
        let queue: *const VecDeque<u32> = &raw const *branch.queue;
        assert_eq!(
            hints(&tree, 1),
            [
                at(branch.leaf.0.as_ref().map_or(core::ptr::null(), |leaf| leaf.0.as_ptr()), 100),
                at(queue.cast(), size_of::<VecDeque<u32>>()),
                at(branch.row.as_ptr().cast(), 6),
            ]
        );
        assert_eq!(hints(&tree, 2), [at((&raw const branch.queue[0]).cast(), 4)]);
        assert_eq!(hints(&tree, 3), []);
    }

    #[test]
    fn blank_parts_have_nothing_to_prefetch() {
        let branch = Box::new(Branch::default());
        let tree = Tree { branch: Box::default(), other: Some(branch), _kind: 0 };
        assert_eq!(hints(&tree, 0).len(), 2);
        // The only hints are for the empty `row` of each branch.
        assert!(hints(&tree, 1).iter().all(|&(_, len)| len == 0));
        assert_eq!(hints(&tree, 2), []);
    }

    #[test]
    fn the_front_of_a_long_queue_is_prefetched() {
        let mut queue: VecDeque<u64> = (0..1000).collect();
        queue.pop_front();
        let mut hints = Vec::new();
        queue.prefetch(0, &mut |at, len| hints.push((at, len)));
        assert_eq!(hints, [((&raw const queue[0]).cast(), MAX_QUEUE_BYTES)]);
        queue.clear();
        queue.prefetch(0, &mut |_, _| panic!("a hint for an empty queue"));
    }
}

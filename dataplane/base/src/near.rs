//! State that is spread over several allocations, each of which is named in the one before. Whoever will use it
//! soon can have the CPU fetch it meanwhile, one step after the other.

use core::mem::size_of;
use std::collections::VecDeque;

use crate::{Lazy, LazyDeque};

/// The most octets of a queue that are of interest: what is at its front.
const FRONT: usize = 512;

/// What can tell where its state lies.
pub trait Near {
    /// Tells `hint` of allocations, address and octets: with `steps` 0 of those that `self` names, with 1 of those
    /// that these name, and so on. Reads what is nearer, and nothing of what it tells of.
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize));
}

impl<T: Near> Near for Box<T> {
    #[inline]
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        match steps {
            0 => hint((&raw const **self).cast(), size_of::<T>()),
            _ => (**self).near(steps - 1, hint),
        }
    }
}

impl<T: Near> Near for Option<T> {
    #[inline]
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if let Some(there) = self {
            there.near(steps, hint);
        }
    }
}

impl<T: Near> Near for Lazy<T> {
    #[inline]
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        self.0.near(steps, hint);
    }
}

impl<T> Near for Box<[T]> {
    #[inline]
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if steps == 0 {
            hint(self.as_ptr().cast(), size_of_val(&**self));
        }
    }
}

/// What is at its front; of an empty one nothing, because nobody can see where the next one goes.
impl<T> Near for VecDeque<T> {
    #[inline]
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        let (front, _) = self.as_slices();
        if steps == 0 && !front.is_empty() {
            hint(front.as_ptr().cast(), size_of_val(front).min(FRONT));
        }
    }
}

impl<T> Near for LazyDeque<T> {
    #[inline]
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        self.0.near(steps, hint);
    }
}

/// Says which fields of a type name further memory of interest, perhaps none: `near!(Kind: field, field)`, or
/// `near!(Kind<T> [T: Bound]: field)`.
#[macro_export]
macro_rules! near {
    ($kind:ty $([$($generic:tt)+])?: $($field:ident),*) => {
        impl$(<$($generic)+>)? $crate::Near for $kind {
            #[inline]
            #[allow(unused_variables)]
            fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
                $($crate::Near::near(&self.$field, steps, hint);)*
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
    near!(Leaf:);

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
    near!(Branch: leaf, queue, row);

    struct Tree<T> {
        branch: Box<Branch>,
        other: Option<Box<Branch>>,
        _kind: T,
    }
    near!(Tree<T> [T: Copy]: branch, other);

    fn told(tree: &Tree<u8>, steps: u32) -> Vec<(*const u8, usize)> {
        let mut told = Vec::new();
        tree.near(steps, &mut |at, len| told.push((at, len)));
        told
    }

    #[test]
    fn each_step_tells_of_what_the_one_before_names() {
        let mut branch = Branch { row: vec![1; 3].into(), ..Branch::default() };
        branch.leaf.0 = Some(Box::new(Leaf([7; 100])));
        branch.queue.push_back(5);
        let tree = Tree { branch: Box::new(branch), other: None, _kind: 0 };
        let branch = &*tree.branch;
        let at = |part: *const u8, len: usize| (part, len);
        assert_eq!(told(&tree, 0), [at((&raw const *branch).cast(), size_of::<Branch>())]);
        let queue: *const VecDeque<u32> = &raw const *branch.queue;
        assert_eq!(
            told(&tree, 1),
            [
                at(branch.leaf.0.as_ref().map_or(core::ptr::null(), |leaf| leaf.0.as_ptr()), 100),
                at(queue.cast(), size_of::<VecDeque<u32>>()),
                at(branch.row.as_ptr().cast(), 6),
            ]
        );
        assert_eq!(told(&tree, 2), [at((&raw const branch.queue[0]).cast(), 4)]);
        assert_eq!(told(&tree, 3), []);
    }

    #[test]
    fn blank_parts_have_nothing_to_tell_of() {
        let branch = Box::new(Branch::default());
        let tree = Tree { branch: Box::default(), other: Some(branch), _kind: 0 };
        assert_eq!(told(&tree, 0).len(), 2);
        // The rows, of no octets.
        assert!(told(&tree, 1).iter().all(|&(_, len)| len == 0));
        assert_eq!(told(&tree, 2), []);
    }

    #[test]
    fn of_a_long_queue_the_front_is_told() {
        let mut queue: VecDeque<u64> = (0..1000).collect();
        queue.pop_front();
        let mut told = Vec::new();
        queue.near(0, &mut |at, len| told.push((at, len)));
        assert_eq!(told, [((&raw const queue[0]).cast(), FRONT)]);
        queue.clear();
        queue.near(0, &mut |_, _| panic!("of an empty one"));
    }
}

//! All live objects of a type, by the address of their C structure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::errno::{EBUSY, EINVAL, Result};
use verbs_client::lock::lock;

/// Objects by address.
#[derive(Debug)]
pub struct Registry<T>(Mutex<Option<HashMap<usize, Entry<T>>>>);

#[derive(Debug)]
struct Entry<T> {
    object: Arc<T>,
    /// True while the object is being destroyed: only acknowledgements find it.
    is_retired: bool,
}

/// Number of objects that use an object. While it is not 0, the object cannot be destroyed.
#[derive(Debug, Default)]
pub struct Users(AtomicU32);

/// An object with a C structure as its first field.
pub trait Object: Send + Sync + Sized + 'static {
    /// C structure.
    type C;

    /// Returns the registry of the type.
    fn registry() -> &'static Registry<Self>;

    /// Returns the number of objects that use this object.
    fn users(&self) -> &Users;

    /// Returns the address of the C structure.
    fn as_ptr(&self) -> *mut Self::C {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the object of a pointer.
    ///
    /// # Errors
    /// `EINVAL`: there is no such object.
    fn from_ptr(pointer: *mut Self::C) -> Result<Arc<Self>> {
        Self::registry().find(pointer.addr(), false)
    }

    /// Returns the object of a pointer, also if it is being destroyed, for an acknowledgement of its events.
    ///
    /// # Errors
    /// `EINVAL`: there is no such object.
    fn with_events(pointer: *mut Self::C) -> Result<Arc<Self>> {
        Self::registry().find(pointer.addr(), true)
    }

    /// Returns the object of a pointer, or `None` for NULL.
    ///
    /// # Errors
    /// `EINVAL`: there is no such object.
    fn from_nullable(pointer: *mut Self::C) -> Result<Option<Arc<Self>>> {
        if pointer.is_null() { Ok(None) } else { Self::from_ptr(pointer).map(Some) }
    }

    /// Adds an object, and returns it.
    fn register(self) -> Arc<Self> {
        let object = Arc::new(self);
        let address = object.as_ptr().addr();
        let entry = Entry { object: object.clone(), is_retired: false };
        lock(&Self::registry().0).get_or_insert_default().insert(address, entry);
        object
    }

    /// Begins to destroy an object: from now on [`from_ptr`](Self::from_ptr) does not find it. [`unlist`](Self::unlist)
    /// or [`restore`](Self::restore) must follow.
    ///
    /// # Errors
    /// `EINVAL`: there is no such object. `EBUSY`: other objects use it.
    fn retire(pointer: *mut Self::C) -> Result<Arc<Self>> {
        let mut objects = lock(&Self::registry().0);
        let entry = objects.get_or_insert_default().get_mut(&pointer.addr());
        let entry = entry.filter(|entry| !entry.is_retired).ok_or(EINVAL)?;
        if entry.object.users().0.load(Ordering::Acquire) > 0 {
            return Err(EBUSY);
        }
        entry.is_retired = true;
        Ok(entry.object.clone())
    }

    /// Ends a destruction that has failed: the object is found again.
    fn restore(&self) {
        let mut objects = lock(&Self::registry().0);
        if let Some(entry) = objects.get_or_insert_default().get_mut(&self.as_ptr().addr()) {
            entry.is_retired = false;
        }
    }

    /// Removes a retired object from the registry.
    fn unlist(&self) {
        let removed =
            lock(&Self::registry().0).get_or_insert_default().remove(&self.as_ptr().addr());
        // The drop of the last reference takes other locks.
        drop(removed);
    }

    /// Removes an object, which the caller then drops.
    ///
    /// # Errors
    /// `EINVAL`: there is no such object. `EBUSY`: other objects use it.
    fn unregister(pointer: *mut Self::C) -> Result<Arc<Self>> {
        let object = Self::retire(pointer)?;
        object.unlist();
        Ok(object)
    }
}

/// Waits until no other thread refers to an object that [`Object::unlist`] has removed, and returns the object. Once
/// the caller drops it, the objects that it uses may be destroyed. Other threads, such as the dispatcher, refer to it
/// only during a call, so the wait is short. The caller must not have a second reference, and must not be a forked
/// child: the parent's threads do not run there and never release their references.
pub(crate) fn sole<T: Object>(mut object: Arc<T>) -> T {
    loop {
        match Arc::try_unwrap(object) {
            Ok(object) => return object,
            Err(shared) => object = shared,
        }
        std::thread::yield_now();
    }
}

impl<T> Registry<T> {
    /// Creates an empty registry.
    pub const fn new() -> Registry<T> {
        Registry(Mutex::new(None))
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        let objects = lock(&self.0);
        let entries = objects.iter().flat_map(HashMap::values);
        entries.filter(|entry| !entry.is_retired).map(|entry| entry.object.clone()).collect()
    }

    fn find(&self, address: usize, may_be_retired: bool) -> Result<Arc<T>> {
        let objects = lock(&self.0);
        let entry = objects.as_ref().and_then(|objects| objects.get(&address));
        let entry = entry.filter(|entry| may_be_retired || !entry.is_retired);
        entry.map(|entry| entry.object.clone()).ok_or(EINVAL)
    }
}

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry::new()
    }
}

/// Use of an object by another object, counted in its [`Users`].
#[derive(Debug)]
pub struct Use<T: Object>(Arc<T>);

impl<T: Object> Use<T> {
    /// Counts a use of `object`.
    pub fn new(object: &Arc<T>) -> Use<T> {
        object.users().0.fetch_add(1, Ordering::AcqRel);
        Use(object.clone())
    }

    /// Returns the object.
    pub fn object(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: Object> std::ops::Deref for Use<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Object> Drop for Use<T> {
    fn drop(&mut self) {
        self.0.users().0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Implements [`Object`](registry::Object) for a type with the field `users`.
#[macro_export]
macro_rules! object {
    ($type:ty, $c:ty) => {
        impl $crate::registry::Object for $type {
            type C = $c;

            fn registry() -> &'static $crate::registry::Registry<Self> {
                static REGISTRY: $crate::registry::Registry<$type> =
                    $crate::registry::Registry::new();
                &REGISTRY
            }

            fn users(&self) -> &$crate::registry::Users {
                &self.users
            }
        }
    };
}

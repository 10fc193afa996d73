//! All live objects of a type, by the address of their C structure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::errno::{EBUSY, EINVAL, Result};
use verbs_client::lock::lock;

/// Objects by address.
#[derive(Debug)]
pub struct Registry<T>(Mutex<Option<HashMap<usize, Arc<T>>>>);

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
        let objects = lock(&Self::registry().0);
        objects.as_ref().and_then(|objects| objects.get(&pointer.addr())).cloned().ok_or(EINVAL)
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
        lock(&Self::registry().0).get_or_insert_default().insert(address, object.clone());
        object
    }

    /// Removes an object, which the caller then drops.
    ///
    /// # Errors
    /// `EINVAL`: there is no such object. `EBUSY`: other objects use it.
    fn unregister(pointer: *mut Self::C) -> Result<Arc<Self>> {
        let mut objects = lock(&Self::registry().0);
        let objects = objects.get_or_insert_default();
        match objects.get(&pointer.addr()) {
            None => Err(EINVAL),
            Some(object) if object.users().0.load(Ordering::Acquire) > 0 => Err(EBUSY),
            Some(_) => objects.remove(&pointer.addr()).ok_or(EINVAL),
        }
    }
}

/// Waits until no other thread refers to an object that [`Object::unregister`] has removed, and returns the object.
/// Once the caller drops it, the objects that it uses may be destroyed. Other threads, such as the dispatcher, refer to
/// it only during a call, so the wait is short. The caller must not have a second reference.
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
        lock(&self.0).iter().flat_map(|objects| objects.values().cloned()).collect()
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

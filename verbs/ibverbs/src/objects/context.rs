//! Contexts: opened devices.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use crate::bindings::{ibv_context, ibv_qp_ex, verbs_context};
use crate::boundary::Shared;
use crate::errno::Result;
use crate::object;
use crate::objects::device::Device;
use crate::objects::events::Events;
use crate::objects::instance::Instance;
use crate::registry::{Object, Users};
use verbs_client::lock::lock;

/// An opened device. The program's pointer is the address of `ibv_context`, the last field of `verbs_context`.
#[derive(Debug)]
#[repr(C)]
pub struct Context {
    c: Shared<verbs_context>,
    device: &'static Device,
    instance: Arc<Instance>,
    events: Arc<Events>,
    functions: Functions,
    users: Users,
}

/// Shared contexts of the connection manager, one per device.
static SHARED: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

/// Functions that the inline functions of the header call.
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    /// Returns a structure with the functions of contexts.
    pub context: fn() -> verbs_context,
    /// Returns a structure with the functions of QPs.
    pub pair: fn() -> ibv_qp_ex,
}

impl Context {
    /// Opens a device.
    ///
    /// # Errors
    /// The errors of [`Instance::current`], or `EMFILE`.
    pub(crate) fn open(device: &'static Device, functions: Functions) -> Result<Arc<Context>> {
        let instance = Instance::current()?;
        let events = Arc::new(Events::new()?);
        instance.add_context(&events);
        let mut c = (functions.context)();
        c.sz = size_of::<verbs_context>();
        c.context.device = device.as_ptr();
        // No descriptor: there is no kernel driver, and programs do not use this field.
        c.context.cmd_fd = -1;
        c.context.async_fd = events.as_fd().as_raw_fd();
        c.context.num_comp_vectors = 1;
        // The value that marks a `verbs_context` around the structure (`__VERBS_ABI_IS_EXTENDED`).
        c.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        let c = Shared::new(c);
        let users = Users::default();
        Ok(Context { c, device, instance, events, functions, users }.register())
    }

    /// Closes a context. The session stays open: the process keeps it.
    ///
    /// # Errors
    /// `EINVAL`: there is no such context. `EBUSY`: it has objects.
    pub fn close(pointer: *mut ibv_context) -> Result<()> {
        Context::unregister(structure(pointer)).map(drop)
    }

    /// Returns the context of a pointer.
    ///
    /// # Errors
    /// `EINVAL`: there is no such context.
    pub fn from_ptr(pointer: *mut ibv_context) -> Result<Arc<Context>> {
        <Context as Object>::from_ptr(structure(pointer))
    }

    /// Returns the pointer of the program.
    pub fn as_ptr(&self) -> *mut ibv_context {
        self.c.get().wrapping_byte_add(CONTEXT_AT).cast()
    }

    /// Returns the device.
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// Returns the session with its objects.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Returns the native session.
    pub fn session(&self) -> &verbs_client::Session {
        self.instance.session()
    }

    /// Returns a structure with the functions of QPs.
    pub(crate) fn pair_functions(&self) -> ibv_qp_ex {
        (self.functions.pair)()
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    /// Returns the connection manager's shared context of `device`. `open` opens it at the first call, and opens a new
    /// one if its session has ended. The program never closes it.
    pub(crate) fn shared(
        device: &'static Device,
        open: impl FnOnce(&'static Device) -> Result<Arc<Context>>,
    ) -> Result<Arc<Context>> {
        let mut shared = lock(&SHARED);
        let is_usable = |context: &Arc<Context>| context.instance.check().is_ok();
        shared.retain(is_usable);
        let found = shared.iter().find(|context| std::ptr::eq(context.device, device));
        if let Some(context) = found {
            return Ok(context.clone());
        }
        let context = open(device)?;
        shared.push(context.clone());
        Ok(context)
    }
}

object!(Context, verbs_context);

/// Offset of the program's pointer in `verbs_context`.
const CONTEXT_AT: usize = std::mem::offset_of!(verbs_context, context);

fn structure(pointer: *mut ibv_context) -> *mut verbs_context {
    pointer.wrapping_byte_sub(CONTEXT_AT).cast()
}

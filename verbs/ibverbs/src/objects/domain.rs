//! Protection domains: the native PD with its C structure, `ibv_pd`.

use std::sync::Arc;

use crate::bindings::ibv_pd;
use crate::boundary::Shared;
use crate::errno::{OrErrno, Result};
use crate::object;
use crate::objects::context::Context;
use crate::registry::{Object, Use, Users};

/// A protection domain (PD).
#[derive(Debug)]
#[repr(C)]
pub struct Domain {
    c: Shared<ibv_pd>,
    native: verbs_client::ProtectionDomain,
    context: Use<Context>,
    users: Users,
}

object!(Domain, ibv_pd);

impl Domain {
    /// Allocates a PD.
    ///
    /// # Errors
    /// The appliance refuses the PD, or the session has ended.
    pub fn create(context: &Arc<Context>) -> Result<Arc<Domain>> {
        let native = context.session().create_domain().or_errno()?;
        let c = ibv_pd { context: context.as_ptr(), handle: 0 };
        let (c, context) = (Shared::new(c), Use::new(context));
        Ok(Domain { c, native, context, users: Users::default() }.register())
    }

    /// Deallocates a PD.
    ///
    /// # Errors
    /// `EINVAL`: there is no such PD. `EBUSY`: it has objects.
    pub fn destroy(pointer: *mut ibv_pd) -> Result<()> {
        Domain::unregister(pointer).map(drop)
    }

    /// Returns the context.
    pub fn context(&self) -> &Arc<Context> {
        self.context.object()
    }

    /// Returns the native PD.
    pub fn native(&self) -> &verbs_client::ProtectionDomain {
        &self.native
    }

    /// Returns the address of the C structure.
    pub fn pointer(&self) -> *mut ibv_pd {
        self.c.get()
    }
}

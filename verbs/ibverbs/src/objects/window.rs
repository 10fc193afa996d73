//! Memory windows: the native window with its C structure, `ibv_mw`, whose rkey changes with each bind.

use std::sync::Arc;

use verbs_client::WindowKind;

use crate::bindings::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_type};
use crate::boundary::{Shared, fields};
use crate::errno::{EINVAL, OrErrno, Result};
use crate::object;
use crate::objects::domain::Domain;
use crate::registry::{Object, Use, Users};

/// A memory window (MW).
#[derive(Debug)]
#[repr(C)]
pub struct MemoryWindow {
    c: Shared<ibv_mw>,
    native: verbs_client::MemoryWindow,
    domain: Use<Domain>,
    users: Users,
}

object!(MemoryWindow, ibv_mw);

impl MemoryWindow {
    /// Allocates a window.
    ///
    /// # Errors
    /// `EINVAL`: the type is neither 1 nor 2. The appliance refuses the window, or the session has ended.
    pub fn create(domain: &Arc<Domain>, kind: ibv_mw_type) -> Result<Arc<MemoryWindow>> {
        let native = match kind {
            IBV_MW_TYPE_1 => WindowKind::One,
            IBV_MW_TYPE_2 => WindowKind::Two,
            _ => return Err(EINVAL),
        };
        let native = domain.native().allocate_window(native).or_errno()?;
        let c = ibv_mw {
            context: domain.context().as_ptr(),
            pd: domain.pointer(),
            rkey: native.stag(0),
            handle: 0,
            type_: kind,
        };
        let domain = Use::new(domain);
        Ok(MemoryWindow { c: Shared::new(c), native, domain, users: Users::default() }.register())
    }

    /// Deallocates a window, bound or not.
    ///
    /// # Errors
    /// `EINVAL`: there is no such window.
    pub fn destroy(pointer: *mut ibv_mw) -> Result<()> {
        MemoryWindow::unregister(pointer).map(drop)
    }

    /// Returns the type of the window.
    pub fn kind(&self) -> WindowKind {
        self.native.kind()
    }

    /// Returns the PD.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.object()
    }

    /// Returns the STag with the key of the last binding.
    pub(crate) fn rkey(&self) -> u32 {
        self.c.read(fields::rkey)
    }

    /// Sets the STag with the key of a new binding.
    pub(crate) fn set_rkey(&self, rkey: u32) {
        self.c.write(fields::rkey, rkey);
    }
}

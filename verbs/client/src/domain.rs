//! Protection domains: creation, and removal at the appliance once all clones and objects are dropped.

use std::sync::Arc;

use verbs_session::message::Call;

use crate::error::Error;
use crate::session::Session;

/// A protection domain (PD). A queue pair can access only memory regions of its own domain. Clones refer to the same
/// domain, which is removed when the last clone and all of its queue pairs, shared receive queues, memory regions and
/// memory windows are dropped.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Session,
    number: u32,
}

impl Session {
    /// Creates a protection domain.
    ///
    /// # Errors
    /// The appliance refuses the domain, or the session has ended.
    pub fn create_domain(&self) -> Result<ProtectionDomain, Error> {
        let (number, _) = self.link().call_created(Call::CreatePd, 0)?;
        Ok(ProtectionDomain(Arc::new(Inner { session: self.clone(), number })))
    }
}

impl ProtectionDomain {
    /// Returns the session of the domain.
    pub fn session(&self) -> &Session {
        &self.0.session
    }

    /// Returns true if `other` is a clone of this domain.
    pub(crate) fn is_same(&self, other: &ProtectionDomain) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The domain's QPs, SRQs, regions and windows hold clones, so all of them are already removed. Errors after the
        // session's end are ignored: the appliance has then removed the domain.
        let _ = self.session.link().call_done(Call::RemovePd { pd: self.number });
    }
}

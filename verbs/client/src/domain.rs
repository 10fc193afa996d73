//! Protection domains.

use std::sync::Arc;

use verbs_session::message::Call;

use crate::error::Error;
use crate::session::Session;

/// A protection domain (PD). Its queue pairs can access only its own memory regions. Clones refer to the same domain,
/// which is removed when the last clone and all of its queue pairs and memory regions are dropped.
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

    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Each QP and region of the domain holds a clone, so all are already removed. Errors after the session's
        // end are ignored: the appliance has then removed the domain.
        let _ = self.session.link().call_done(Call::RemovePd { pd: self.number });
    }
}

//! Reports to the control thread about calls that a session's thread refused.

use api::AttachedProcess;
use verbs_session::message::{Refusal, RefusalKind};

/// A refusal by a session's thread, of which the control thread is notified.
#[derive(Debug)]
pub(in crate::appliance) struct Refused {
    pub(super) process: AttachedProcess,
    pub(super) refusal: Refusal,
}

impl Refused {
    /// Returns the report to the control thread; `None` if the refusal concerns only the call. `is_open`: true if the
    /// session's hello was accepted.
    pub(in crate::appliance) fn new(
        process: AttachedProcess,
        refusal: &Refusal,
        is_open: bool,
    ) -> Option<Refused> {
        let is_reported =
            !is_open || matches!(refusal.kind, RefusalKind::Limit | RefusalKind::NoMemory);
        is_reported.then(|| Refused { process, refusal: refusal.clone() })
    }
}

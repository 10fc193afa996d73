//! Middleware that checks the caller's role before a handler runs, and records the call in the audit afterwards.

use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::audit::PendingCall;
use super::{Access, Caller, Role};
use crate::ErrorKind;
use crate::error::Failure;

/// The required role of each call, and the roles of callers.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    access: Arc<Access>,
    calls: Arc<[RequiredRole]>,
}

#[derive(Debug)]
pub(crate) struct RequiredRole {
    pub(crate) method: Method,
    /// Pattern of the path, such as `/v1/regions/{name}`.
    pub(crate) path: &'static str,
    pub(crate) role: Role,
}

impl Gate {
    pub(crate) fn new(access: Arc<Access>, calls: impl Iterator<Item = RequiredRole>) -> Gate {
        Gate { access, calls: calls.collect() }
    }

    /// Returns the role that a call requires. Unknown paths and methods require the lowest role, so that callers
    /// without a role cannot find out which paths exist.
    fn role(&self, method: &Method, path: Option<&MatchedPath>) -> Role {
        let Some(path) = path else { return Role::View };
        // The handlers of GET also answer HEAD.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let known =
            self.calls.iter().find(|call| call.method == method && call.path == path.as_str());
        known.map_or(Role::View, |call| call.role)
    }
}

/// Refuses a call that the caller's role does not allow. Records refusals, and all calls that require more than the
/// role `view`.
pub(crate) async fn guard(
    State(gate): State<Gate>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    mut request: Request,
    next: Next,
) -> Response {
    let needed = gate.role(request.method(), request.extensions().get::<MatchedPath>());
    let mut entry = PendingCall::new(&gate.access, caller, request.method(), request.uri().path());
    // If the client disconnects, this future is dropped and the call is recorded without an answer, because the
    // disconnect does not undo the change.
    entry.set_recorded(needed > Role::View);
    let what = format!("{} {}", request.method(), request.uri().path());
    let response = match caller.require_role(needed, &what) {
        Ok(()) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    let error = response.extensions().get::<Failure>().map(|why| why.kind);
    let refused = error == Some(ErrorKind::Forbidden);
    if refused {
        gate.access.tally.count_refusal(caller.role);
    }
    entry.set_recorded(refused || needed > Role::View);
    entry.finish(response.status(), error);
    response
}

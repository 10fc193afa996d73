//! One association as a worker holds it: SCTP, its sessions, and a DDP stream in each of them.
//!
//! ```text
//!  session:  Connecting --association--> Startup -----------------------> Established
//!             (active)                   Deciding (passive) --(Readying)-->   |     |
//!                |                          |                           error |     | shutdown, peer's
//!                v                          v                                 v     v   Terminate
//!              Closed <-- Reject, Terminate, time-out                    Failing  Closing
//!                ^                                                            |     |
//!                +--------------- both Terminates, or time-out ---------------+-----+
//! ```
//!
//! The verbs are those of a stream over TCP, with a [`SessionId`] where they concern one session:
//!
//! ```text
//!  association                                session
//!  connect(.., id, open) -> (Self, SessionId)  open_session(now, id, open) -> Result<SessionId, OpenError>
//!  accept(..)                                  accept_session(now, session, id, pd, private_data, ulp, cx)
//!  input, poll_transmit, poll_timeout,         reject_session(now, session, private_data)
//!    handle_timeout, poll_event                shutdown_session(now, session), abort_session, fail_session
//!  shutdown(now), abort(cx)                    post, post_rdmap, post_buffers (session, ..)
//!  path_mtu, packet_too_big                    session_state, session_stats, params, stream (session)
//!  state, stats, idle_since, is_done           revoked(now, stag, cx): all sessions
//! ```

mod config;
mod event;

pub use config::{EndpointConfig, Open};
pub use ddp::{Context, OnPeerClose, UlpConfig, UlpKind};
pub use event::{CloseReason, Event, Origin, SessionEvent, SessionId, StreamParams};

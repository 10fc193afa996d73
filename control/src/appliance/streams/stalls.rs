//! Streams without progress: an event when a stream stalls and when it resumes, and a note in between.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::{EventKind, StreamId as ApiId};
use base::plural::counted;
use config::Transport;
use dataplane::{InterfaceId, Stall};
use ddp::StreamId;

use super::Streams;
use super::info::transport;
use crate::appliance::env::{Env, api_id};

/// Maximum number of stalled streams with a separate note. One more note counts the others.
pub(in crate::appliance) const MAX_NOTES: usize = 8;

/// Stalled streams, by ID.
#[derive(Default)]
pub(super) struct Stalls(BTreeMap<StreamId, StalledStream>);

struct StalledStream {
    remote: SocketAddr,
    /// Time of the stream's last progress.
    since: Instant,
    hint: String,
}

impl Streams {
    pub(in crate::appliance) fn interface_of(&self, id: StreamId) -> Option<InterfaceId> {
        Some(self.streams.get(&id)?.interface)
    }

    /// Records a stall reported by a worker. `cause`: the state of the stream's port, if that explains the stall.
    pub(in crate::appliance) fn on_stalled(
        &mut self,
        env: &mut Env,
        id: StreamId,
        stall: &Stall,
        cause: Option<String>,
    ) {
        let Some(stream) = self.streams.get(&id) else { return };
        let remote = stream.remote;
        let since = env.now.checked_sub(stall.silent).unwrap_or(env.now);
        let hint = hint(api_id(id), cause);
        let mut reason = format!(
            "nothing was acknowledged for {} s, {} in a row",
            stall.silent.as_secs(),
            counted(stall.timeouts, "time-out"),
        );
        if stall.last {
            let key = match transport(stream.params.as_ref(), None) {
                Transport::Tcp => "[tcp] user_timeout",
                Transport::Sctp => "[sctp] max_retransmits",
            };
            reason += &format!("; the next one ends the stream ({key})");
        }
        env.log.push(EventKind::StreamStalled {
            stream: api_id(id),
            remote: remote.to_string(),
            timeouts: stall.timeouts,
            seconds: stall.silent.as_secs(),
            reason,
            hint: hint.clone(),
        });
        self.stalls.0.insert(id, StalledStream { remote, since, hint });
    }

    /// Ends the stall of a stream that makes progress again.
    pub(in crate::appliance) fn on_resumed(&mut self, env: &mut Env, id: StreamId) {
        let Some(StalledStream { remote, since, .. }) = self.stalls.0.remove(&id) else { return };
        let seconds = env.now.saturating_duration_since(since).as_secs();
        let (stream, remote) = (api_id(id), remote.to_string());
        env.log.push(EventKind::StreamResumed { stream, remote, seconds });
    }

    /// Ends the stall of a stream that has ended. Returns the time without progress, if it was stalled.
    pub(super) fn end_stall(&mut self, id: StreamId, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.stalls.0.remove(&id)?.since))
    }

    /// Returns one note for each stalled stream, at most `MAX_NOTES`, and one more that counts the others.
    pub(in crate::appliance) fn notes(&self, now: Instant) -> Vec<String> {
        let note = |(&id, stalled): (&StreamId, &StalledStream)| {
            let StalledStream { remote, since, hint } = stalled;
            let seconds = now.saturating_duration_since(*since).as_secs();
            format!(
                "stream {} to {remote} makes no progress: nothing was acknowledged for {seconds} s; {hint}",
                api_id(id)
            )
        };
        let mut notes: Vec<String> = self.stalls.0.iter().take(MAX_NOTES).map(note).collect();
        let others = self.stalls.0.len().saturating_sub(MAX_NOTES);
        if others > 0 {
            let streams = counted(others, "more stream");
            notes.push(format!("{streams} without progress: ddpctl events --severity warning"));
        }
        notes
    }
}

fn hint(id: ApiId, cause: Option<String>) -> String {
    let cause = cause.unwrap_or_else(|| {
        "the peer's host is gone or hangs, or the path is cut: check both".to_owned()
    });
    format!(
        "{cause}; ddpctl why {id} shows what was sent, ddpctl streams close {id} --abort ends it"
    )
}

//! File descriptors: the process's limit, and the maximum that its configurations need.
//!
//! Each server bounds its connections. If the limit is below the sum of all bounds, idle clients can use up the
//! descriptors that other users need.

use std::sync::OnceLock;

use api::{MAX_CONNECTIONS, MAX_OBSERVERS};
use config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::shm;

/// Descriptors of the process: program, libraries, log, EAL.
const PER_PROCESS: usize = 64;
/// Descriptors of an appliance: events, listeners, audit and netlink sockets, and open files of its jobs.
const PER_APPLIANCE: usize = 128;
/// Descriptors of a port: its device and control sockets.
const PER_PORT: usize = 16;
/// Descriptors of a port per worker that serves it.
const PER_QUEUE: usize = 8;
/// Event descriptors per worker.
const PER_WORKER: usize = 8;
/// Upper bound of the descriptors per region: its file or memfd, and its completion ring.
const PER_REGION: usize = 3;
/// Descriptors of a program's session, without the descriptors of its workers and channels.
const PER_SESSION: usize = 4;
/// Descriptors per queue that delivers to a file.
const PER_QUEUE_FILE: usize = 1;

/// The warning of [`raise_limit`], one sentence.
static SHORTAGE: OnceLock<String> = OnceLock::new();

/// Returns the maximum number of descriptors that these appliances of one process need.
pub(crate) fn needed_descriptors(configs: &[Config]) -> u64 {
    let per_config = |config: &Config| {
        let ports = config.ports.iter().map(|port| PER_PORT + PER_QUEUE * port.workers.len());
        let queues = config.listeners.iter().map(|listener| PER_QUEUE_FILE * listener.queues.len());
        let observers = config.management.listen.address.map_or(0, |_| MAX_OBSERVERS);
        let servers =
            MAX_CONNECTIONS + observers + shm::MAX_CONNECTIONS * shm::DESCRIPTORS_PER_CONNECTION;
        let workers = PER_WORKER * config.workers.len();
        // `PER_SESSION`: the session's socket, its waker, its arena, and a descriptor that a reply passes to the
        // program. In addition: a wake-up per worker, and the channels.
        let programs = config.programs.as_ref().map_or(0, |programs| {
            let channels = programs.channels() as usize;
            let session = PER_SESSION + config.workers.len() + channels;
            programs.programs as usize * session
        });
        let regions = PER_REGION * config.regions.len();
        PER_APPLIANCE + servers + workers + programs + regions + ports.chain(queues).sum::<usize>()
    };
    (PER_PROCESS + configs.iter().map(per_config).sum::<usize>()) as u64
}

/// Raises the process's soft limit to its hard limit. If the limit is then below [`needed_descriptors`], the log and
/// the appliances' notes report it.
pub fn raise_limit(configs: &[Config]) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            tracing::warn!("the limit of file descriptors cannot be raised: {error}");
            limit.current
        }
    };
    if let Some(sentence) = shortage_sentence(current, needed_descriptors(configs)) {
        tracing::warn!("{sentence}");
        SHORTAGE.get_or_init(|| sentence);
    }
}

/// Returns the warning, if [`raise_limit`] found the limit too low.
pub(crate) fn shortage() -> Option<&'static str> {
    SHORTAGE.get().map(String::as_str)
}

/// Returns a warning if `limit` is below `needed`. Without a `limit`, the number is unlimited.
fn shortage_sentence(limit: Option<u64>, needed: u64) -> Option<String> {
    let limit = limit.filter(|limit| *limit < needed)?;
    Some(format!(
        "the process may have {limit} file descriptors open, and its configurations may need {needed}: idle clients can use up the \
         descriptors of other users; raise the hard limit (LimitNOFILE= of its unit, ulimit -Hn)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_limit_below_need_is_reported_with_both_numbers() {
        assert_eq!(shortage_sentence(None, 1000), None);
        assert_eq!(shortage_sentence(Some(1000), 1000), None);
        let sentence = shortage_sentence(Some(999), 1000).unwrap();
        assert!(sentence.contains("999") && sentence.contains("1000"), "{sentence}");
    }
}

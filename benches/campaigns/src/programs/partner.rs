//! The peer of hostile programs: a program at the peer's appliance that accepts every connection.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use verbs_client::{
    AcceptOptions, CompletionQueue, Listener, MemoryRegion, PairEvent, ProtectionDomain, QueuePair,
    QueuePairConfig, Session, Transport, post,
};

use super::raw::ALL;

/// Maximum number of open connections. Further connections are rejected.
const MAX_PAIRS: usize = 64;
/// Receives posted on each QP.
const MAX_POSTS: u32 = 16;
/// Length of the buffer of all receives, bytes.
const MESSAGE: usize = 4096;

/// The running program. Dropping it ends the program.
pub(crate) struct Partner {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Partner {
    /// Attaches to the socket of the peer's appliance, and accepts connections at `local`.
    pub(crate) fn start(socket: &Path, local: SocketAddr) -> Result<Partner> {
        let session = Session::connect(socket)?;
        let queue = session.create_completion_queue(2 * MAX_PAIRS as u32 * MAX_POSTS, None)?;
        let domain = session.create_domain()?;
        let memory = domain.alloc(MESSAGE, ALL)?;
        let listener = session.listen(local, Transport::Tcp, 16)?;
        let stop = Arc::new(AtomicBool::new(false));
        let objects = Objects { queue, domain, memory, listener };
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || objects.serve(&stop))
        };
        Ok(Partner { stop, thread: Some(thread) })
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, its message has been printed.
            let _ = thread.join();
        }
    }
}

struct Objects {
    queue: CompletionQueue,
    domain: ProtectionDomain,
    memory: MemoryRegion,
    listener: Listener,
}

impl Objects {
    /// Accepts connections and removes QPs whose connection has ended.
    fn serve(&self, stop: &AtomicBool) {
        let mut pairs: Vec<QueuePair> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let ended = |event| {
                matches!(
                    event,
                    Ok(Some(PairEvent::Disconnected { .. } | PairEvent::ConnectFailed { .. }))
                        | Err(_)
                )
            };
            pairs.retain(|pair| !ended(pair.next_event(Some(Duration::ZERO))));
            // Completions are not examined: the peer is hostile.
            while let Ok(Some(_)) = self.queue.poll_one() {}
            match self.listener.next_request(Some(Duration::from_millis(5))) {
                Ok(Some(request)) if pairs.len() < MAX_PAIRS => {
                    if let Ok(pair) = self.pair()
                        && request.start_accept(&pair, &AcceptOptions::default()).is_ok()
                    {
                        pairs.push(pair);
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    fn pair(&self) -> Result<QueuePair> {
        let pair = self.domain.create_queue_pair(&QueuePairConfig {
            send_completions: &self.queue,
            receive_completions: &self.queue,
            max_sends: 1,
            max_receives: MAX_POSTS,
            copy_sources: false,
            shared_receives: None,
        })?;
        for n in 0..MAX_POSTS {
            let sge = self.memory.sge(0..MESSAGE)?;
            pair.post_receive(&post::receive(u64::from(n), &[sge])?)?;
        }
        Ok(pair)
    }
}

//! Tests with appliances in this process: a working appliance (`world`), and scripted appliances that break the
//! protocol (`hostile`).

mod calls;
mod examples;
#[cfg(feature = "tokio")]
mod futures;
mod hostile;
mod operations;
mod registration;
mod stress;
pub(crate) mod world;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{
    AcceptOptions, CompletionChannel, CompletionQueue, ConnectOptions, MemoryAccess, MemoryRegion,
    ProtectionDomain, QueuePair, QueuePairConfig, Session, Transport,
};

/// Time-out of the tests' waits. A test that reaches it fails.
const LONG: Option<Duration> = Some(Duration::from_secs(20));

const ALL: MemoryAccess =
    MemoryAccess { local_write: true, remote_write: true, remote_read: true, remote_atomic: true };

/// A program with a session and one QP, CQ, channel, domain and memory region.
pub(crate) struct Side {
    pub(crate) pair: QueuePair,
    completions: CompletionQueue,
    channel: CompletionChannel,
    memory: MemoryRegion,
    domain: ProtectionDomain,
    session: Session,
}

impl Side {
    pub(crate) fn new(session: Session, posts: u32) -> Side {
        let domain = session.create_domain().unwrap();
        let memory = domain.alloc(8192, ALL).unwrap();
        let channel = session.create_channel().unwrap();
        let completions = session.create_completion_queue(4 * posts, Some(&channel)).unwrap();
        let pair = create_pair(&domain, &completions, posts);
        Side { pair, completions, channel, memory, domain, session }
    }
}

fn create_pair(domain: &ProtectionDomain, cq: &CompletionQueue, posts: u32) -> QueuePair {
    let config = QueuePairConfig {
        send_completions: cq,
        receive_completions: cq,
        max_sends: posts,
        max_receives: posts,
        copy_sources: false,
        shared_receives: None,
    };
    domain.create_queue_pair(&config).unwrap()
}

/// Connects two QPs through a new listener of `listening`, and checks that both sides' private data arrives.
pub(crate) fn connect(from: &QueuePair, to: &QueuePair, listening: &Session) {
    let local = "127.0.0.1:0".parse().unwrap();
    let listener = listening.listen(local, Transport::Tcp, 4).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.next_request(LONG).unwrap().unwrap();
            assert_eq!(request.private_data(), b"ask");
            let private_data = b"answer".to_vec();
            let options = AcceptOptions { private_data, ..AcceptOptions::default() };
            request.accept(to, &options).unwrap();
        });
        let options = ConnectOptions { private_data: b"ask".to_vec(), ..ConnectOptions::default() };
        let connection = from.connect(listener.local(), &options).unwrap();
        assert_eq!(connection.private_data, b"answer");
    });
}

/// A temporary directory, for example for the appliance's socket. It is removed on drop.
pub(crate) struct TempDirectory(PathBuf);

impl TempDirectory {
    pub(crate) fn new(name: &str) -> TempDirectory {
        let directory = std::env::temp_dir().join(format!("ddpd-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        TempDirectory(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("programs.sock")
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

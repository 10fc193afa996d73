//! Tests against a scripted appliance in this process.

mod calls;
mod hostile;
mod operations;
mod stress;
mod world;

use std::time::Duration;

use crate::{
    AcceptOptions, CompletionChannel, CompletionQueue, ConnectOptions, MemoryAccess, MemoryRegion,
    ProtectionDomain, QueuePair, QueuePairConfig, Session, Transport,
};

/// Bound of all waits of the tests: reached only by a failure.
const LONG: Option<Duration> = Some(Duration::from_secs(20));

const ALL: MemoryAccess =
    MemoryAccess { local_write: true, remote_write: true, remote_read: true, remote_atomic: true };

/// A program with one QP.
struct Side {
    pair: QueuePair,
    completions: CompletionQueue,
    channel: CompletionChannel,
    memory: MemoryRegion,
    domain: ProtectionDomain,
    session: Session,
}

impl Side {
    fn new(session: Session, posts: u32) -> Side {
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
    };
    domain.create_queue_pair(&config).unwrap()
}

/// Connects two QPs; private data is that of the request and of the answer.
fn connect(from: &QueuePair, to: &QueuePair, listening: &Session) {
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

//! A small RDMAP peer for tests: a responder or initiator that is correct, or has the given flaws ([`flaws`]).
//!
//! The peer and the tester share only the codec. The peer omits everything that no case needs, such as performance and
//! several streams that share memory.

mod atomics;
mod connection;
pub mod flaws;
mod memory;
mod messages;
pub mod sctp;
mod stream;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::device::Service;
use connection::Connection;
use flaws::Flaws;
use memory::initial_memory;

/// Configuration of the peer.
#[derive(Clone, Debug)]
pub struct Config {
    /// Service that the peer provides.
    pub service: Service,
    /// M flag: requires markers.
    pub markers: bool,
    /// C flag: prefers CRCs.
    pub crc: bool,
    /// Revision of the initiator's Request.
    pub revision: u8,
    /// RFC 6581: flags A to D of the initiator's Request, 8, 4, 2 and 1.
    pub ready: u8,
    /// Deliberate deviations of the peer.
    pub flaws: Flaws,
}

/// A running peer. It stops when it is dropped.
#[derive(Debug)]
pub struct Peer {
    /// Address at which the responder listens.
    pub address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

/// Starts a responder at `address`.
///
/// # Errors
/// The address cannot be bound.
pub fn serve(config: Config, address: SocketAddr) -> std::io::Result<Peer> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok(start(address, move |stopped| {
        let mut connections: Vec<JoinHandle<()>> = vec![];
        let memory = Arc::new(Mutex::new(initial_memory()));
        while !stopped.load(Ordering::Relaxed) {
            let Ok((stream, _)) = listener.accept() else {
                connections.retain(|c| !c.is_finished());
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            if stream.set_nonblocking(false).is_err() {
                continue;
            }
            let (config, stopped, memory) =
                (config.clone(), Arc::clone(&stopped), Arc::clone(&memory));
            connections.push(std::thread::spawn(move || {
                Connection::new(Some(stream), &config, &stopped, &memory).respond()
            }));
        }
        for connection in connections {
            let _ = connection.join();
        }
    }))
}

/// Starts an initiator that connects to `address` again and again.
pub fn initiate(config: Config, address: SocketAddr) -> Peer {
    start(address, move |stopped| {
        let memory = Mutex::new(initial_memory());
        while !stopped.load(Ordering::Relaxed) {
            match TcpStream::connect(address) {
                Ok(stream) => Connection::new(Some(stream), &config, &stopped, &memory).initiate(),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    })
}

fn start(address: SocketAddr, run: impl FnOnce(Arc<AtomicBool>) + Send + 'static) -> Peer {
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    Peer { address, stopped, thread: Some(std::thread::spawn(move || run(flag))) }
}

//! A small RDMAP peer for tests: a responder or initiator that is correct, or has the given flaws ([`flaws`]).
//!
//! The peer and the tester share only the codec. Not included, because no case needs it: high throughput, and isolation
//! of concurrent connections, which share one memory.

mod atomics;
mod connection;
pub mod flaws;
mod memory;
mod messages;
mod numbers;
pub mod sctp;
mod stream;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::device::Service;
use crate::raw::Raw;
use crate::raw::stream::RawStream;
use crate::raw::tcp::Settings;
use crate::stream::Stream;
use connection::Connection;
use flaws::Flaws;
use memory::initial_memory;

/// Configuration of the peer.
#[derive(Clone, Debug)]
pub struct Config {
    /// Service that the peer provides.
    pub service: Service,
    /// M flag: true to request markers.
    pub markers: bool,
    /// C flag: true to request CRCs.
    pub crc: bool,
    /// Revision of the initiator's Request; 0 for the first draft's Start Key.
    pub revision: u8,
    /// Flags A, B, C and D of the initiator's Request (RFC 6581 §9.2), with the values 8, 4, 2 and 1.
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
                Connection::new(Some(Stream::Kernel(stream)), &config, &stopped, &memory).respond();
            }));
        }
        for connection in connections {
            let _ = connection.join();
        }
    }))
}

/// Starts an initiator that connects to `address` repeatedly.
pub fn initiate(config: Config, address: SocketAddr) -> Peer {
    start(address, move |stopped| {
        let memory = Mutex::new(initial_memory());
        while !stopped.load(Ordering::Relaxed) {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    Connection::new(Some(Stream::Kernel(stream)), &config, &stopped, &memory)
                        .initiate();
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    })
}

/// Starts a responder on a raw port, with one connection at a time.
pub fn serve_raw(config: Config, raw: Raw, port: u16) -> Peer {
    start(SocketAddr::new(raw.address, port), move |stopped| {
        let memory = Mutex::new(initial_memory());
        let settings = settings(&config);
        while !stopped.load(Ordering::Relaxed) {
            // The limit lets the loop test the stop flag while no connection arrives.
            let deadline = Instant::now() + Duration::from_millis(50);
            if let Ok(stream) = RawStream::accept(&raw, port, settings, deadline) {
                let stream = Some(Stream::Raw(Box::new(stream)));
                Connection::new(stream, &config, &stopped, &memory).respond();
            }
        }
    })
}

/// Starts an initiator on a raw port that connects to `address` repeatedly.
pub fn initiate_raw(config: Config, raw: Raw, address: SocketAddr) -> Peer {
    start(address, move |stopped| {
        let memory = Mutex::new(initial_memory());
        let settings = settings(&config);
        while !stopped.load(Ordering::Relaxed) {
            let deadline = Instant::now() + Duration::from_millis(200);
            if let Ok(stream) = RawStream::connect(&raw, address, settings, deadline) {
                let stream = Some(Stream::Raw(Box::new(stream)));
                Connection::new(stream, &config, &stopped, &memory).initiate();
            }
        }
    })
}

/// Returns the settings of the peer's TCP, with those of the peer's flaws that concern TCP.
fn settings(config: &Config) -> Settings {
    let flaws = &config.flaws;
    Settings {
        timestamps: true,
        ignores_holes: flaws.behaves("ignore-holes"),
        takes_repeats: flaws.behaves("take-repeats"),
        resegments: flaws.behaves("retransmit-elsewhere").then_some(97),
        ..Settings::default()
    }
}

fn start(address: SocketAddr, run: impl FnOnce(Arc<AtomicBool>) + Send + 'static) -> Peer {
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    Peer { address, stopped, thread: Some(std::thread::spawn(move || run(flag))) }
}

//! A complete connection under load, and the invariants that hold on any path.

use core::time::Duration;
use std::sync::Arc;

use ddp::{Cookie, Message, Source, VecMemory};
use link::Rng;

use crate::end::{End, Setup};
use crate::host::QUEUE;
use crate::pair::{Config, Pair};

/// Messages that one side sends.
#[derive(Clone, Debug)]
pub struct Load {
    /// Seed that determines lengths and contents of the messages.
    pub seed: u64,
    /// Total length of the tagged messages in bytes, at most the length of the peer's region.
    pub bytes: u64,
    /// Maximum length of a tagged message, bytes.
    pub max_message: u64,
    /// Average number of tagged messages per untagged message; 0 for no untagged messages.
    pub untagged_every: u64,
    /// Maximum length of an untagged message, bytes.
    pub max_untagged: u64,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            seed: 0,
            bytes: 1 << 20,
            max_message: 60_000,
            untagged_every: 4,
            max_untagged: 4_000,
        }
    }
}

/// Messages that the receiver must deliver, and content that its region must have.
#[derive(Clone, Debug)]
pub struct Expected {
    bytes: Vec<u8>,
    streams: Vec<Stream>,
}

/// Messages expected on one stream, in order, with the cookies that their sender must see completed.
#[derive(Clone, Debug, Default)]
struct Stream {
    tagged: Vec<(u64, u64)>,
    untagged: Vec<Vec<u8>>,
    cookies: Vec<Cookie>,
}

/// Limits of virtual time for the phases of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Limit of the handshake, and also of the time from establishment until all messages are delivered.
    pub transfer: Duration,
    /// Limit from the close until both ends have freed their state, TIME-WAIT included.
    pub close: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { transfer: Duration::from_secs(120), close: Duration::from_secs(300) }
    }
}

/// Queues the messages of `load` on the streams of `host`, round-robin. Returns the expected messages and region of
/// the receiver. About half of the tagged messages are sent from memory that may change during the transfer.
pub fn load<H: End>(host: &mut H, load: &Load) -> Expected {
    let mut rng = Rng::new(load.seed);
    let bytes = random_bytes(&mut rng, load.bytes);
    let changing = VecMemory::from_vec(bytes.clone());
    let stable = VecMemory::from_vec(bytes.clone()).into_stable();
    let mut streams = vec![Stream::default(); host.stream_count()];
    let (mut at, mut turn, mut untagged) = (0, 0, 0);
    while at < load.bytes {
        let n = turn % streams.len();
        let stream = &mut streams[n];
        let len = rng.next_below(load.max_message + 1).min(load.bytes - at);
        let memory = if rng.next_below(2) == 0 { &stable } else { &changing };
        host.write_to(n, memory, at..at + len, at);
        stream.tagged.push((at, len));
        stream.cookies.push(Cookie::user(at));
        at += len;
        turn += 1;
        if load.untagged_every > 0 && rng.next_below(load.untagged_every) == 0 {
            let len = rng.next_below(load.max_untagged + 1);
            let data = random_bytes(&mut rng, len);
            let source = Source::Bytes(Arc::from(data.as_slice()));
            let cookie = Cookie::user(u64::MAX / 2 + untagged);
            untagged += 1;
            host.send(n, Message::Untagged { qn: QUEUE, rsvd_ulp: [0; 5], source, cookie });
            stream.untagged.push(data);
            stream.cookies.push(cookie);
        }
    }
    Expected { bytes, streams }
}

/// Returns random bytes without zeros, because zero marks untouched memory.
fn random_bytes(rng: &mut Rng, len: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while bytes.len() < len as usize {
        bytes.extend(rng.next_u64().to_ne_bytes().map(|o| o.max(1)));
    }
    bytes.truncate(len as usize);
    bytes
}

impl Expected {
    /// Returns true if `receiver` has delivered at least as many messages as expected.
    pub fn is_delivered<H: End>(&self, receiver: &H) -> bool {
        let (mut tagged, mut untagged) = (0, 0);
        for stream in &self.streams {
            tagged += stream.tagged.len() as u64;
            untagged += stream.untagged.len() as u64;
        }
        let totals = receiver.totals();
        totals.tagged_delivered >= tagged && totals.untagged_delivered >= untagged
    }

    /// Checks the invariants that hold at any time. Each byte of the region is correct or untouched, and memory around
    /// the region is untouched. In each stream, the delivered messages are the first messages of the load, each once,
    /// in order and completely placed. The messages reported as sent are also the first of the load, each once and in
    /// order.
    ///
    /// # Errors
    /// The first violation.
    pub fn verify_so_far<H: End>(&self, sender: &H, receiver: &H) -> Result<(), String> {
        let region = receiver.region();
        self.check_bytes(&region)?;
        if !receiver.is_guard_untouched() {
            return Err("bytes outside the region were written".into());
        }
        for (n, stream) in self.streams.iter().enumerate() {
            let (delivered, received) = (receiver.delivered(n), receiver.received(n));
            if !stream.tagged.starts_with(&delivered) {
                return Err("tagged messages were not delivered once and in order".into());
            }
            let placed = |&(at, len): &(u64, u64)| {
                let range = at as usize..(at + len) as usize;
                region[range.clone()] == self.bytes[range]
            };
            if let Some((at, len)) = delivered.iter().find(|message| !placed(message)) {
                let what =
                    format!("the message of {len} at {at} was delivered before it was complete");
                return Err(what);
            }
            let untagged = stream.untagged.iter().map(Vec::as_slice).take(received.len());
            if !untagged.eq(received.iter().copied()) {
                return Err("untagged messages were not delivered once and in order".into());
            }
            if !stream.cookies.starts_with(&sender.sent(n)) {
                return Err("messages were not reported as sent once and in order".into());
            }
        }
        Ok(())
    }

    fn check_bytes(&self, region: &[u8]) -> Result<(), String> {
        let right = |(at, &byte): (usize, &u8)| byte == 0 || self.bytes.get(at) == Some(&byte);
        match region.iter().enumerate().position(|x| !right(x)) {
            Some(at) => Err(format!("a wrong byte at {at}")),
            None => Ok(()),
        }
    }

    /// Checks that each message was delivered once, in order, with correct bytes, and was reported as sent.
    ///
    /// # Errors
    /// The first difference.
    pub fn verify<H: End>(&self, sender: &H, receiver: &H) -> Result<(), String> {
        if !receiver.is_guard_untouched() {
            return Err("bytes outside the region were written".into());
        }
        let memory = receiver.region();
        let n = self.bytes.len();
        if let Some(at) = memory[..n].iter().zip(&self.bytes).position(|(a, b)| a != b) {
            return Err(format!("the region differs at {at}"));
        }
        if memory[n..].iter().any(|&o| o != 0) {
            return Err("bytes outside the messages were written".into());
        }
        for (n, stream) in self.streams.iter().enumerate() {
            if receiver.delivered(n) != stream.tagged {
                return Err("tagged messages were not delivered once and in order".into());
            }
            let untagged = stream.untagged.iter().map(Vec::as_slice);
            if !untagged.eq(receiver.received(n).iter().copied()) {
                return Err("untagged messages were not delivered once and in order".into());
            }
            if sender.sent(n) != stream.cookies {
                return Err("messages were not reported as sent once and in order".into());
            }
        }
        Ok(())
    }
}

/// Opens a connection, transfers both loads, closes from the client, and checks all invariants. Returns the closed
/// pair.
///
/// # Errors
/// The phase that stalled or the violated invariant, with the state of both ends.
pub fn run<S: Setup>(
    config: Config<S>,
    to_server: &Load,
    to_client: &Load,
    timeouts: Timeouts,
) -> Result<Pair<S>, String> {
    run_timed(config, to_server, to_client, timeouts).map(|(pair, _)| pair)
}

/// Durations of a transfer, in virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Time from establishment at the client until all messages are delivered.
    pub total: Duration,
    /// Time from the server's receipt of half of its bytes until all messages are delivered. Slow start has usually
    /// ended before.
    pub second_half: Duration,
}

/// Does the same as [`run`], and also returns the durations.
///
/// # Errors
/// The phase that stalled or the violated invariant, with the state of both ends.
pub fn run_timed<S: Setup>(
    config: Config<S>,
    to_server: &Load,
    to_client: &Load,
    timeouts: Timeouts,
) -> Result<(Pair<S>, Times), String> {
    let mut pair = Pair::new(config);
    let forward = load(&mut pair.client, to_server);
    let backward = load(&mut pair.server, to_client);
    pair.client.connect(pair.now)?;
    let is_closed =
        |pair: &Pair<S>| pair.client.closed().is_some() || pair.server.closed().is_some();
    pair.run_until(timeouts.transfer, |pair| pair.client.is_established() || is_closed(pair))
        .map_err(|stall| format!("start: {stall}; {}", describe_state(&pair)))?;
    let began = pair.now;
    let mut half = began;
    pair.run_until(timeouts.transfer, |pair| {
        if pair.server.totals().bytes_in < to_server.bytes / 2 {
            half = pair.now;
        }
        forward.is_delivered(&pair.server) && backward.is_delivered(&pair.client) || is_closed(pair)
    })
    .map_err(|stall| format!("transfer: {stall}; {}", describe_state(&pair)))?;
    let times = Times {
        total: pair.now.saturating_since(began),
        second_half: pair.now.saturating_since(half),
    };
    pair.client.shutdown(pair.now);
    pair.run_until(timeouts.close, |pair| pair.client.is_done() && pair.server.is_done())
        .map_err(|stall| format!("close: {stall}; {}", describe_state(&pair)))?;
    forward.verify(&pair.client, &pair.server).map_err(|e| format!("to the server: {e}"))?;
    backward.verify(&pair.server, &pair.client).map_err(|e| format!("to the client: {e}"))?;
    for host in [&pair.client, &pair.server] {
        if host.closed() != Some(true) {
            return Err(format!("not closed gracefully: {}", describe_state(&pair)));
        }
        if host.in_use() != (0, 0) {
            return Err(format!("buffers and held bytes in use: {:?}", host.in_use()));
        }
    }
    Ok((pair, times))
}

/// Formats the state of both hosts, one line each, and the last packets, for a failure report.
pub fn describe_state<S: Setup>(pair: &Pair<S>) -> String {
    let (client, server) = (pair.client.describe_state(), pair.server.describe_state());
    format!("\n  client {client}\n  server {server}\n{}", pair.last_segments())
}

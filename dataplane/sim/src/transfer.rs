//! A whole life of a stream under load, and everything that must be true of it whatever the path did.

use core::time::Duration;
use std::sync::Arc;

use ddp::{Message, Source, VecMemory};
use link::Rng;
use tcp_lite::endpoint::State;

use crate::host::{Host, LAST_COOKIE, QUEUE};
use crate::pair::{Config, Pair};

/// What each side sends.
#[derive(Clone, Debug)]
pub struct Load {
    /// Names the messages.
    pub seed: u64,
    /// Octets into the peer's region, at most its length.
    pub octets: u64,
    /// Longest tagged message, in octets.
    pub max_message: u64,
    /// One untagged message after about this many tagged ones; 0: none.
    pub untagged_every: u64,
    /// Longest untagged message, in octets.
    pub max_untagged: u64,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            seed: 0,
            octets: 1 << 20,
            max_message: 60_000,
            untagged_every: 4,
            max_untagged: 4_000,
        }
    }
}

/// What the other side must get.
#[derive(Clone, Debug)]
pub struct Expected {
    octets: Vec<u8>,
    tagged: Vec<(u64, u64)>,
    untagged: Vec<Vec<u8>>,
    cookies: Vec<u64>,
}

/// How long, in virtual time, each part of a life may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the SYN until everything is delivered.
    pub transfer: Duration,
    /// From the close until both ends are gone, TIME-WAIT included.
    pub close: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { transfer: Duration::from_secs(120), close: Duration::from_secs(300) }
    }
}

/// Gives `host` its messages; half of them come from memory that others may change.
pub fn load(host: &mut Host, load: &Load) -> Expected {
    let mut rng = Rng::new(load.seed);
    let octets = random_octets(&mut rng, load.octets);
    let changing = VecMemory::from_vec(octets.clone());
    let stable = VecMemory::from_vec(octets.clone()).into_stable();
    let mut expected =
        Expected { octets, tagged: Vec::new(), untagged: Vec::new(), cookies: Vec::new() };
    let mut at = 0;
    while at < load.octets {
        let len = rng.below(load.max_message + 1).min(load.octets - at);
        let memory = if rng.below(2) == 0 { &stable } else { &changing };
        host.write(memory, at..at + len, at);
        expected.tagged.push((at, len));
        expected.cookies.push(at);
        at += len;
        if load.untagged_every > 0 && rng.below(load.untagged_every) == 0 {
            let len = rng.below(load.max_untagged + 1);
            let data = random_octets(&mut rng, len);
            let source = Source::Octets(Arc::from(data.as_slice()));
            let cookie = LAST_COOKIE - 1 - expected.untagged.len() as u64;
            host.send(Message::Untagged { qn: QUEUE, rsvd_ulp: [0; 5], source, cookie });
            expected.untagged.push(data);
            expected.cookies.push(cookie);
        }
    }
    expected
}

/// Zero is what untouched memory holds: none of them.
fn random_octets(rng: &mut Rng, len: u64) -> Vec<u8> {
    let mut octets = Vec::with_capacity(len as usize + 8);
    while octets.len() < len as usize {
        octets.extend(rng.next_u64().to_ne_bytes().map(|o| o.max(1)));
    }
    octets.truncate(len as usize);
    octets
}

impl Expected {
    /// True when `receiver` has had as many messages delivered as there are.
    pub fn is_delivered(&self, receiver: &Host) -> bool {
        receiver.stats().ddp.tagged_delivered >= self.tagged.len() as u64
            && receiver.stats().ddp.untagged_delivered >= self.untagged.len() as u64
    }

    /// What must be true at any time, whatever happened: every octet of the region is the right one or
    /// untouched, nothing outside it was written, and the messages that were delivered, and those
    /// reported as sent, are the first ones, each once, in order, with their octets in place.
    ///
    /// # Errors
    /// The first thing that is not so.
    pub fn verify_so_far(&self, sender: &Host, receiver: &Host) -> Result<(), String> {
        self.no_wrong_octet(receiver)?;
        if !receiver.is_guard_untouched() {
            return Err("octets outside the region were written".into());
        }
        let (delivered, received) = (receiver.delivered(), receiver.received());
        if !self.tagged.starts_with(&delivered) {
            return Err("tagged messages were not delivered once and in order".into());
        }
        let region = receiver.region();
        let placed = |&(at, len): &(u64, u64)| {
            let range = at as usize..(at + len) as usize;
            region[range.clone()] == self.octets[range]
        };
        if let Some((at, len)) = delivered.iter().find(|message| !placed(message)) {
            return Err(format!("the message of {len} at {at} was delivered before it was whole"));
        }
        let untagged = self.untagged.iter().map(Vec::as_slice).take(received.len());
        if !untagged.eq(received.iter().copied()) {
            return Err("untagged messages were not delivered once and in order".into());
        }
        if !self.cookies.starts_with(&sender.sent()) {
            return Err("messages were not reported as sent once and in order".into());
        }
        Ok(())
    }

    fn no_wrong_octet(&self, receiver: &Host) -> Result<(), String> {
        let memory = receiver.region();
        let right = |(at, &octet): (usize, &u8)| octet == 0 || self.octets.get(at) == Some(&octet);
        match memory.iter().enumerate().position(|x| !right(x)) {
            Some(at) => Err(format!("a wrong octet at {at}")),
            None => Ok(()),
        }
    }

    /// Every message delivered once, in order, with the right octets; every one reported as sent.
    ///
    /// # Errors
    /// What differs.
    pub fn verify(&self, sender: &Host, receiver: &Host) -> Result<(), String> {
        if !receiver.is_guard_untouched() {
            return Err("octets outside the region were written".into());
        }
        let memory = receiver.region();
        let n = self.octets.len();
        if let Some(at) = memory[..n].iter().zip(&self.octets).position(|(a, b)| a != b) {
            return Err(format!("the region differs at {at}"));
        }
        if memory[n..].iter().any(|&o| o != 0) {
            return Err("octets outside the messages were written".into());
        }
        if receiver.delivered() != self.tagged {
            return Err("tagged messages were not delivered once and in order".into());
        }
        if receiver.received() != self.untagged.iter().map(Vec::as_slice).collect::<Vec<_>>() {
            return Err("untagged messages were not delivered once and in order".into());
        }
        if sender.sent() != self.cookies {
            return Err("messages were not reported as sent once and in order".into());
        }
        Ok(())
    }
}

/// Opens, sends both loads, closes from the client, and checks everything.
///
/// # Errors
/// In words, what was not as it must be.
pub fn run(
    config: Config,
    to_server: &Load,
    to_client: &Load,
    patience: Patience,
) -> Result<Pair, String> {
    run_timed(config, to_server, to_client, patience).map(|(pair, _)| pair)
}

/// How long a transfer took, in virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// From when the client could send until everything was delivered.
    pub all: Duration,
    /// Of this, the second half of the octets to the server: slow start is over by then.
    pub second_half: Duration,
}

/// As [`run`], with times.
///
/// # Errors
/// In words, what was not as it must be.
pub fn run_timed(
    config: Config,
    to_server: &Load,
    to_client: &Load,
    patience: Patience,
) -> Result<(Pair, Times), String> {
    let mut pair = Pair::new(config);
    let forward = load(&mut pair.client, to_server);
    let backward = load(&mut pair.server, to_client);
    pair.client.connect(pair.now).map_err(|e| e.to_string())?;
    let over = |pair: &Pair| pair.client.closed().is_some() || pair.server.closed().is_some();
    pair.run_until(patience.transfer, |pair| {
        pair.client.state() == Some(State::Established) || over(pair)
    })
    .map_err(|stall| format!("start: {stall}; {}", condition(&pair)))?;
    let began = pair.now;
    let mut half = began;
    pair.run_until(patience.transfer, |pair| {
        if pair.server.stats().tcp.octets_in < to_server.octets / 2 {
            half = pair.now;
        }
        forward.is_delivered(&pair.server) && backward.is_delivered(&pair.client) || over(pair)
    })
    .map_err(|stall| format!("transfer: {stall}; {}", condition(&pair)))?;
    let times = Times {
        all: pair.now.saturating_since(began),
        second_half: pair.now.saturating_since(half),
    };
    pair.client.shutdown(pair.now);
    pair.run_until(patience.close, |pair| pair.client.is_done() && pair.server.is_done())
        .map_err(|stall| format!("close: {stall}; {}", condition(&pair)))?;
    forward.verify(&pair.client, &pair.server).map_err(|e| format!("to the server: {e}"))?;
    backward.verify(&pair.server, &pair.client).map_err(|e| format!("to the client: {e}"))?;
    for host in [&pair.client, &pair.server] {
        if !host.closed().is_some_and(|reason| reason.is_graceful()) {
            return Err(format!("not closed gracefully: {}", condition(&pair)));
        }
        if host.in_use() != (0, 0) {
            return Err(format!("buffers and held octets in use: {:?}", host.in_use()));
        }
    }
    Ok((pair, times))
}

/// Both ends in one line each and the last segments, for people who look for a fault.
pub fn condition(pair: &Pair) -> String {
    let side = |host: &Host| {
        let tcp = host.endpoint().map(|e| e.connection().info());
        let stats = host.stats();
        format!(
            "{:?} closed {:?}, delivered {}+{}, TCP {tcp:?} {:?} held {}",
            host.state(),
            host.closed(),
            stats.ddp.tagged_delivered,
            stats.ddp.untagged_delivered,
            stats.tcp,
            stats.mpa_rx.held,
        )
    };
    let (client, server) = (side(&pair.client), side(&pair.server));
    format!("\n  client {client}\n  server {server}\n{}", pair.last_segments())
}

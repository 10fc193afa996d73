//! Random scenarios: a seed determines paths, hosts, load and disturbances.
//!
//! Invariants of every scenario: each byte of a region is correct or untouched, and memory around regions is untouched.
//! Messages are delivered once, whole and in order. No stream is stuck, and no buffer stays in use. All messages
//! arrive, unless a disturbance ends the connection or the path damages data before its checksum is computed.

mod esp;
mod random;
mod random_sctp;
mod tally;

use core::time::Duration;

use link::{Loss, Probability};

use crate::end::{End as Host, Setup};
use crate::host::HostConfig;
use crate::pair::{Config, Pair, Stall};
use crate::transfer::{self, Expected, Load, describe_state};

pub use tally::Tally;

/// Virtual time without progress after which a stream counts as stuck. TCP's limit R2 (RFC 9293 §3.8.3) is shorter, so
/// that TCP detects a dead path first.
const STALL_TIMEOUT: Duration = Duration::from_secs(1000);

/// A random scenario, which can be repeated by its seed.
#[derive(Clone, Debug)]
pub struct Scenario<S: Setup = HostConfig> {
    /// Seed that determines all other fields.
    pub seed: u64,
    /// Configuration of hosts and paths.
    pub config: Config<S>,
    /// Load from the client to the server.
    pub forward: Load,
    /// Load from the server to the client.
    pub backward: Load,
    /// Disturbances, each with its time after the start, in order of time.
    pub disturbances: Vec<(Duration, Disturbance)>,
}

/// A disturbance during the transfer.
#[derive(Clone, PartialEq, Debug)]
pub enum Disturbance {
    /// Reset of the connection by this side.
    Abort(Side),
    /// Graceful close by this side, usually with data still in flight.
    Close(Side),
    /// New MTU of the path to this side, in bytes.
    Mtu(Side, usize),
    /// New configuration of the link to this side.
    Link(Side, Box<link::Config>),
    /// Loss of all packets in both directions, from now on. A later [`Disturbance::Link`] replaces the loss in one
    /// direction.
    BlackHole,
}

/// Side of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Active side, which connects.
    Client,
    /// Passive side, which listens.
    Server,
}

impl<S: Setup> Scenario<S> {
    /// Returns true if all messages must arrive.
    pub fn must_complete(&self) -> bool {
        let harmless =
            |twist: &Disturbance| matches!(twist, Disturbance::Mtu(..) | Disturbance::Link(..));
        let hidden = |path: &crate::path::Config| !path.hidden_damage.is_never();
        self.disturbances.iter().all(|(_, twist)| harmless(twist))
            && !hidden(&self.config.forward)
            && !hidden(&self.config.backward)
    }

    /// Runs the scenario. Returns its counters.
    ///
    /// # Errors
    /// The first violated invariant, with the state of both ends.
    pub fn play(&self) -> Result<Tally, String> {
        let plain = self.must_complete();
        let mut pair = Pair::new(self.config.clone());
        let expected = [
            transfer::load(&mut pair.client, &self.forward),
            transfer::load(&mut pair.server, &self.backward),
        ];
        pair.client.connect(pair.now)?;
        self.apply_disturbances(&mut pair)
            .map_err(|stall| format!("before a disturbance: {stall}"))?;
        let done = pair.run_while_progressing(STALL_TIMEOUT, |pair| {
            expected[0].is_delivered(&pair.server) && expected[1].is_delivered(&pair.client)
                || pair.client.closed().is_some() && pair.server.is_unopened()
                || pair.client.closed().is_some() && pair.server.closed().is_some()
        });
        if plain {
            done.map_err(|stall| format!("transfer: {stall}; {}", describe_state(&pair)))?;
        }
        pair.client.shutdown(pair.now);
        pair.server.shutdown(pair.now);
        pair.run_while_progressing(STALL_TIMEOUT, |pair| {
            let is_ended = |host: &S::Host| host.is_unopened() || host.is_done();
            is_ended(&pair.client) && is_ended(&pair.server)
        })
        .map_err(|stall| format!("close: {stall}; {}", describe_state(&pair)))?;
        self.verify(&pair, &expected, plain)?;
        Ok(Tally::from_pair(&pair, plain))
    }

    fn apply_disturbances(&self, pair: &mut Pair<S>) -> Result<(), Stall> {
        let start = pair.now;
        for (after, twist) in &self.disturbances {
            pair.run_for((start + *after).saturating_since(pair.now))?;
            twist.apply(pair);
        }
        Ok(())
    }

    fn verify(&self, pair: &Pair<S>, expected: &[Expected; 2], plain: bool) -> Result<(), String> {
        let sides = [
            ("server", &pair.client, &pair.server, &expected[0]),
            ("client", &pair.server, &pair.client, &expected[1]),
        ];
        for (name, sender, receiver, expected) in sides {
            let wrong = |error: String| format!("to the {name}: {error}; {}", describe_state(pair));
            expected.verify_so_far(sender, receiver).map_err(wrong)?;
            if plain {
                expected.verify(sender, receiver).map_err(wrong)?;
            }
            if receiver.in_use() != (0, 0) {
                return Err(wrong(format!("in use: {:?}", receiver.in_use())));
            }
            if let Some(what) = receiver.fault() {
                return Err(wrong(what));
            }
        }
        for path in [&pair.forward, &pair.backward] {
            if path.counters().malformed > 0 {
                return Err("malformed segments were sent".into());
            }
        }
        Ok(())
    }
}

impl Disturbance {
    fn apply<S: Setup>(&self, pair: &mut Pair<S>) {
        match self {
            Disturbance::Abort(Side::Client) => pair.client.abort(pair.now),
            Disturbance::Abort(Side::Server) => pair.server.abort(pair.now),
            Disturbance::Close(Side::Client) => pair.client.shutdown(pair.now),
            Disturbance::Close(Side::Server) => pair.server.shutdown(pair.now),
            Disturbance::Mtu(Side::Client, mtu) => pair.backward.set_mtu(*mtu),
            Disturbance::Mtu(Side::Server, mtu) => pair.forward.set_mtu(*mtu),
            Disturbance::Link(Side::Client, config) => pair.backward.set_link((**config).clone()),
            Disturbance::Link(Side::Server, config) => pair.forward.set_link((**config).clone()),
            Disturbance::BlackHole => {
                let loss = Loss::Random(Probability::ALWAYS);
                let dead = link::Config { loss, ..link::Config::default() };
                pair.forward.set_link(dead.clone());
                pair.backward.set_link(dead);
            }
        }
    }
}

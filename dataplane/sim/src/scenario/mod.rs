//! Random scenarios: a seed determines the path, the hosts, the load, the disturbances and the end.
//!
//! Invariants of every scenario: regions hold correct or untouched bytes, and memory around them is untouched.
//! Messages are delivered once, whole and in order. No stream is stuck, and no buffer remains in use.
//! Everything must also arrive if the path only loses, delays, reorders, duplicates, damages visibly, marks,
//! cuts up and changes its MTU.

mod esp;
mod random;
mod random_sctp;
mod tally;

use core::time::Duration;

use link::{Loss, Probability};

use crate::end::{End as Host, Setup};
use crate::host::HostConfig;
use crate::pair::{Config, Pair, Stall};
use crate::transfer::{self, Expected, Load, condition};

pub use tally::Tally;

/// Virtual time without progress after which a stream counts as stuck. Longer than TCP's R2 (RFC 9293 §3.8.3),
/// so that TCP detects a dead path first.
const PATIENCE: Duration = Duration::from_secs(1000);

/// A random scenario.
#[derive(Clone, Debug)]
pub struct Scenario<S: Setup = HostConfig> {
    /// Seed that determines all other fields.
    pub seed: u64,
    /// Configuration of hosts and paths.
    pub config: Config<S>,
    /// Load to the server.
    pub forward: Load,
    /// Load to the client.
    pub backward: Load,
    /// Disturbances, with their time after the start, in order of time.
    pub twists: Vec<(Duration, Twist)>,
}

/// A disturbance during the transfer.
#[derive(Clone, PartialEq, Debug)]
pub enum Twist {
    /// Reset by one side.
    Abort(End),
    /// Close by one side, with data still in flight.
    Close(End),
    /// New MTU of the path to this side, in bytes.
    Mtu(End, usize),
    /// New configuration of the link to this side.
    Link(End, Box<link::Config>),
    /// Loss of all packets in both directions until the end.
    Dead,
}

/// A side of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Active side, which connects.
    Client,
    /// Passive side, which listens.
    Server,
}

impl<S: Setup> Scenario<S> {
    /// True if all messages must arrive.
    pub fn is_plain(&self) -> bool {
        let harmless = |twist: &Twist| matches!(twist, Twist::Mtu(..) | Twist::Link(..));
        let hidden = |path: &crate::path::Config| !path.hidden_damage.is_never();
        self.twists.iter().all(|(_, twist)| harmless(twist))
            && !hidden(&self.config.forward)
            && !hidden(&self.config.backward)
    }

    /// Plays the scenario and returns its counters.
    ///
    /// # Errors
    /// The first violated invariant, with the state of both ends.
    pub fn play(&self) -> Result<Tally, String> {
        let plain = self.is_plain();
        let mut pair = Pair::new(self.config.clone());
        let expected = [
            transfer::load(&mut pair.client, &self.forward),
            transfer::load(&mut pair.server, &self.backward),
        ];
        pair.client.connect(pair.now)?;
        self.live(&mut pair).map_err(|stall| format!("before a twist: {stall}"))?;
        let done = pair.run_while_moving(PATIENCE, |pair| {
            expected[0].is_delivered(&pair.server) && expected[1].is_delivered(&pair.client)
                || pair.client.closed().is_some() && pair.server.is_unborn()
                || pair.client.closed().is_some() && pair.server.closed().is_some()
        });
        if plain {
            done.map_err(|stall| format!("transfer: {stall}; {}", condition(&pair)))?;
        }
        pair.client.shutdown(pair.now);
        pair.server.shutdown(pair.now);
        pair.run_while_moving(PATIENCE, |pair| {
            let over = |host: &S::Host| host.is_unborn() || host.is_done();
            over(&pair.client) && over(&pair.server)
        })
        .map_err(|stall| format!("close: {stall}; {}", condition(&pair)))?;
        self.judge(&pair, &expected, plain)?;
        Ok(Tally::of(&pair, plain))
    }

    fn live(&self, pair: &mut Pair<S>) -> Result<(), Stall> {
        let start = pair.now;
        for (after, twist) in &self.twists {
            pair.run_for((start + *after).saturating_since(pair.now))?;
            twist.happen(pair);
        }
        Ok(())
    }

    fn judge(&self, pair: &Pair<S>, expected: &[Expected; 2], plain: bool) -> Result<(), String> {
        let sides = [
            ("server", &pair.client, &pair.server, &expected[0]),
            ("client", &pair.server, &pair.client, &expected[1]),
        ];
        for (name, sender, receiver, expected) in sides {
            let wrong = |what: String| format!("to the {name}: {what}; {}", condition(pair));
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

impl Twist {
    fn happen<S: Setup>(&self, pair: &mut Pair<S>) {
        match self {
            Twist::Abort(End::Client) => pair.client.abort(pair.now),
            Twist::Abort(End::Server) => pair.server.abort(pair.now),
            Twist::Close(End::Client) => pair.client.shutdown(pair.now),
            Twist::Close(End::Server) => pair.server.shutdown(pair.now),
            Twist::Mtu(End::Client, mtu) => pair.backward.set_mtu(*mtu),
            Twist::Mtu(End::Server, mtu) => pair.forward.set_mtu(*mtu),
            Twist::Link(End::Client, config) => pair.backward.set_link((**config).clone()),
            Twist::Link(End::Server, config) => pair.forward.set_link((**config).clone()),
            Twist::Dead => {
                let loss = Loss::Random(Probability::ALWAYS);
                let dead = link::Config { loss, ..link::Config::default() };
                pair.forward.set_link(dead.clone());
                pair.backward.set_link(dead);
            }
        }
    }
}

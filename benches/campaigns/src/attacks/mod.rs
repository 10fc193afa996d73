//! The attacks, in the order of a run.

mod ddp;
mod denied;
mod icmp;
mod ip;
mod ipsec;
mod mpa;
mod sctp;
mod sessions;
mod tcp;

use anyhow::Result;

use crate::bed::Setting;
use crate::field::Field;
use crate::verdict::Rule;

/// An attack.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    /// Name on the command line and in tables.
    pub(crate) name: &'static str,
    /// Publication or specification that describes the attack.
    pub(crate) source: &'static str,
    /// Runs one round; rounds repeat until the time is over.
    pub(crate) round: fn(&mut Field<'_>) -> Result<()>,
    /// Configuration of the target.
    pub(crate) setting: Setting,
    /// True if one round is enough.
    pub(crate) once: bool,
    /// Expected outcome.
    pub(crate) rule: Rule,
}

/// Returns a flood, or an attack with frames in a good peer's name.
const fn frames(
    name: &'static str,
    source: &'static str,
    round: fn(&mut Field<'_>) -> Result<()>,
    explained_by: &'static [&'static str],
) -> Attack {
    let rule = Rule { explained_by, share: 0.9, most: &[], amplification: 1.0 };
    Attack { name, source, round, setting: Setting::Plain, once: false, rule }
}

/// Returns an attack on the attacker's own streams, one round.
const fn dialogue(
    name: &'static str,
    source: &'static str,
    round: fn(&mut Field<'_>) -> Result<()>,
    explained_by: &'static [&'static str],
) -> Attack {
    let rule = Rule { explained_by, share: 1.0, most: &[], amplification: 3.0 };
    Attack { name, source, round, setting: Setting::Plain, once: true, rule }
}

/// Moves the attack to the target with policies and lists.
const fn guarded(attack: Attack) -> Attack {
    Attack { setting: Setting::Guarded, ..attack }
}

/// Returns all attacks.
pub(crate) fn all() -> Vec<Attack> {
    [
        tcp::ATTACKS,
        icmp::ATTACKS,
        ip::ATTACKS,
        sctp::ATTACKS,
        sessions::ATTACKS,
        mpa::ATTACKS,
        ddp::ATTACKS,
        ipsec::ATTACKS,
        denied::ATTACKS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
}

//! All attacks of the red team, one module per protocol.

mod ddp;
mod denied;
mod icmp;
mod ip;
mod ipsec;
mod mpa;
mod programs;
mod sctp;
mod sessions;
mod tcp;

use anyhow::Result;

use crate::attack_context::AttackContext;
use crate::testbed::TargetSetting;
use crate::verdict::Expectation;

/// An attack and its expected outcome.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    /// Name on the command line and in tables.
    pub(crate) name: &'static str,
    /// Publication or specification that describes the attack.
    pub(crate) source: &'static str,
    /// Runs one round. Rounds repeat until the time is over and each good peer has completed two transfers or stalled.
    pub(crate) round: fn(&mut AttackContext<'_>) -> Result<()>,
    /// Configuration of the target.
    pub(crate) setting: TargetSetting,
    /// True if the round runs once. The rest of the time the attacker only receives answers.
    pub(crate) single_round: bool,
    /// Expected outcome.
    pub(crate) rule: Expectation,
}

/// Returns an attack by raw frames: a flood, or frames spoofed from a good peer.
const fn frames(
    name: &'static str,
    source: &'static str,
    round: fn(&mut AttackContext<'_>) -> Result<()>,
    explained_by: &'static [&'static str],
) -> Attack {
    let rule = Expectation { explained_by, min_share: 0.9, max_growth: &[], amplification: 1.0 };
    Attack { name, source, round, setting: TargetSetting::Plain, single_round: false, rule }
}

/// Returns an attack over the attacker's own streams or associations. The attack has one round.
const fn dialogue(
    name: &'static str,
    source: &'static str,
    round: fn(&mut AttackContext<'_>) -> Result<()>,
    explained_by: &'static [&'static str],
) -> Attack {
    let rule = Expectation { explained_by, min_share: 1.0, max_growth: &[], amplification: 3.0 };
    Attack { name, source, round, setting: TargetSetting::Plain, single_round: true, rule }
}

/// Returns `attack`, run against the target that has IPsec policies and access lists.
const fn guarded(attack: Attack) -> Attack {
    Attack { setting: TargetSetting::Guarded, ..attack }
}

/// Returns all attacks, in the order in which a run executes them.
pub(crate) fn attacks() -> Vec<Attack> {
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
        programs::ATTACKS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
}

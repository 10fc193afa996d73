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

/// One attack.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    /// Its name on the command line and in tables.
    pub(crate) name: &'static str,
    /// Where it is described.
    pub(crate) source: &'static str,
    /// One round of it; rounds follow each other until the time is over.
    pub(crate) round: fn(&mut Field<'_>) -> Result<()>,
    /// The target that it is for.
    pub(crate) setting: Setting,
    /// One round is enough.
    pub(crate) once: bool,
    /// What it is expected to come to.
    pub(crate) rule: Rule,
}

/// A flood, or frames in a good peer's name.
const fn frames(
    name: &'static str,
    source: &'static str,
    round: fn(&mut Field<'_>) -> Result<()>,
    explained_by: &'static [&'static str],
) -> Attack {
    let rule = Rule { explained_by, share: 0.9, most: &[], amplification: 1.0 };
    Attack { name, source, round, setting: Setting::Plain, once: false, rule }
}

/// What a peer does on streams of its own, once.
const fn dialogue(
    name: &'static str,
    source: &'static str,
    round: fn(&mut Field<'_>) -> Result<()>,
    explained_by: &'static [&'static str],
) -> Attack {
    let rule = Rule { explained_by, share: 1.0, most: &[], amplification: 3.0 };
    Attack { name, source, round, setting: Setting::Plain, once: true, rule }
}

/// The same against the target with policies and lists.
const fn guarded(attack: Attack) -> Attack {
    Attack { setting: Setting::Guarded, ..attack }
}

/// All of them.
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

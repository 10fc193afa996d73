//! Attacks by local programs on the appliance that serves them, and on its other programs: RFC 5042 §7.
//!
//! Up to two hostile programs run at a time. Each program is a separate process that connects to a program at the
//! peer's appliance. At the end, none of their objects, memory or file descriptors may remain at the appliance.

use std::io::Read as _;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::ProgramInfo;
use load::testbed::Appliance;

use super::Attack;
use crate::attack_context::AttackContext;
use crate::programs::partner::Partner;
use crate::programs::{Act, start};
use crate::testbed::{self, PARTNER_PORT, PEER_V4, TargetSetting};
use crate::verdict::Expectation;

/// Time-out for the exit of a hostile program, and for its removal by the appliance.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Duration of a hostile program, milliseconds.
const MILLISECONDS: u64 = 300;
/// Maximum number of descriptors that API calls of the good peers may use at the appliance during a sample.
const OTHER_DESCRIPTORS: usize = 16;
/// Counter of the attacks in which each attempt must fail a QP.
const FAILED_PAIRS: &[&str] = &["queue_pairs_failed"];

pub(super) const ATTACKS: &[Attack] = &[
    failing("program-scribbles", "RFC 5042 §7", |c| attack(c, Act::ScribbleQueues)),
    failing("program-names-stags", "RFC 5042 §7.3", |c| attack(c, Act::NameForeignStags)),
    program("program-rings", "RFC 5042 §6.4.1", |c| attack(c, Act::RingDoorbells)),
    program("program-punches-holes", "RFC 5042 §7.3", |c| attack(c, Act::PunchHoles)),
    program("program-stops-reading", "RFC 5042 §6.4.2", |c| attack(c, Act::StopReading)),
    program("program-opens-to-limits", "RFC 5042 §6.4.1", |c| attack(c, Act::OpenToLimits)),
    program("program-sends-garbage", "RFC 5042 §7", |c| attack(c, Act::SendGarbage)),
    program("program-is-killed", "RFC 5042 §6.4.1", |c| attack(c, Act::Transfer)),
];

/// Returns an attack by local programs without a check of counters.
const fn program(
    name: &'static str,
    source: &'static str,
    round: fn(&mut AttackContext<'_>) -> Result<()>,
) -> Attack {
    let rule = Expectation {
        explained_by: &["program_*", "turns"],
        min_share: 0.0,
        max_growth: &[],
        amplification: 0.0,
    };
    Attack { name, source, round, setting: TargetSetting::Plain, single_round: true, rule }
}

/// Returns an attack in which each attempt must fail a QP.
const fn failing(
    name: &'static str,
    source: &'static str,
    round: fn(&mut AttackContext<'_>) -> Result<()>,
) -> Attack {
    let attack = program(name, source, round);
    let rule = Expectation { explained_by: FAILED_PAIRS, min_share: 1.0, ..attack.rule };
    Attack { rule, ..attack }
}

fn attack(context: &mut AttackContext<'_>, act: Act) -> Result<()> {
    let before = descriptors(context.target)?;
    let socket = testbed::programs_socket(context.target);
    let partner = (PEER_V4, PARTNER_PORT).into();
    let peer_socket = socket.with_file_name("peer.programs");
    let peer = Partner::start(&peer_socket, partner).context("the peer of hostile programs")?;
    let mut hostile = Vec::new();
    // One program alone can exhaust the limit of sessions.
    let count = if act == Act::OpenToLimits { 1 } else { 2 };
    for _ in 0..count {
        let seed = context.random.u64(..);
        hostile.push(start(act, &socket, partner, seed, MILLISECONDS)?);
    }
    if act == Act::Transfer {
        std::thread::sleep(Duration::from_millis(context.random.u64(100..MILLISECONDS)));
        for child in &mut hostile {
            child.kill()?;
            child.wait()?;
            context.attempts += 1;
        }
    } else {
        for child in &mut hostile {
            match wait(child) {
                Ok(attempts) => context.attempts += attempts,
                Err(error) => context.report_violation(format!("{error:#}")),
            }
        }
    }
    drop(peer);
    if let Err(error) = check_removed(context.target, before) {
        context.report_violation(format!("{error:#}"));
    }
    Ok(())
}

/// Waits for the end of a hostile program. Returns the number of its attempts.
fn wait(child: &mut Child) -> Result<u64> {
    let until = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("a hostile program waits for the appliance");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let (mut output, mut errors) = (String::new(), String::new());
    child.stdout.take().context("no output")?.read_to_string(&mut output)?;
    child.stderr.take().context("no errors")?.read_to_string(&mut errors)?;
    ensure!(status.success(), "a hostile program: {}", errors.trim());
    let last = output.lines().last().and_then(|line| line.strip_prefix("attempts "));
    Ok(last.context("no number of attempts")?.parse()?)
}

/// Checks that the appliance has removed the hostile programs with their memory and descriptors.
fn check_removed(target: &Appliance, before: usize) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    loop {
        let programs: Vec<ProgramInfo> = target.client.get("/v1/programs")?;
        let others = programs.iter().filter(|program| program.pid != std::process::id() as i32);
        let (others, descriptors) = (others.count(), descriptors(target)?);
        if others == 0 && descriptors <= before + OTHER_DESCRIPTORS {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "{others} programs and {descriptors} descriptors remain, before {before}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn descriptors(target: &Appliance) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", target.pid()))?.count())
}

//! Execution of one case.

use std::time::{Duration, Instant};

use crate::case::{Action, BARE, Case, SEGMENTS, Step};
use crate::device::{Service, Setup};
use crate::link::{Link, Side, Transcript, What};
use crate::message::Kind;
use crate::session::{Failure, Session, Stop};
use crate::startup;
use crate::value::{Arguments, Variables, number};

/// Verdict on a case, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All expectations were met.
    Pass,
    /// An expectation was not met.
    Fail(Failure),
    /// No verdict, with the reason.
    Inconclusive(String),
    /// The case does not apply to this device, with the reason.
    NotApplicable(String),
}

impl Verdict {
    /// Returns the verdict's word in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail(_) => "fail",
            Verdict::Inconclusive(_) => "inconclusive",
            Verdict::NotApplicable(_) => "not applicable",
        }
    }
}

/// Outcome of one execution of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Verdict on the case.
    pub verdict: Verdict,
    /// Text of the line that decided the verdict; `None` if no line did.
    pub step: Option<String>,
    /// Events of this execution.
    pub transcript: Transcript,
    /// Duration of this execution, set-up included.
    pub time: Duration,
}

impl Outcome {
    /// Returns the outcome of a case that the profile excludes.
    pub fn skipped(why: &str) -> Outcome {
        Outcome {
            verdict: Verdict::NotApplicable(format!("the profile excludes the case: {why}")),
            step: None,
            transcript: Link::default().transcript,
            time: Duration::ZERO,
        }
    }
}

/// Executes a case against the device.
pub fn execute(case: &Case, setup: &Setup) -> Outcome {
    let begin = Instant::now();
    let mut session = Session::new(setup);
    let mut verdict = Verdict::Pass;
    let mut decisive = None;
    let transport = setup.target.transport();
    if case.transport.is_some_and(|t| t != transport) {
        verdict = Verdict::NotApplicable(format!("the transport is {}", transport.name()));
    } else if case.role.is_some_and(|role| role != setup.role()) {
        verdict = Verdict::NotApplicable(format!("the device is the {}", setup.role().name()));
    } else if case.needs.iter().any(|n| n.capability == SEGMENTS) && !setup.target.is_raw() {
        let why = "the case needs TCP segments of its own: --raw INTERFACE,ADDRESS".into();
        verdict = Verdict::NotApplicable(why);
    } else if setup.service == Service::Ddp && needs_rdmap(case) {
        verdict = Verdict::NotApplicable("the device uses DDP without RDMAP".into());
    } else {
        for step in &case.steps {
            if let Err(stop) = perform(step, case, &mut session) {
                decisive = Some(step.text.clone());
                verdict = match stop {
                    Stop::Fail(failure) => Verdict::Fail(failure),
                    Stop::Inconclusive(why) => Verdict::Inconclusive(why),
                    Stop::NotApplicable(why) => Verdict::NotApplicable(why),
                };
                break;
            }
        }
    }
    session.end();
    Outcome {
        verdict,
        step: decisive,
        transcript: session.link.transcript.clone(),
        time: begin.elapsed(),
    }
}

/// Returns true for a case whose messages are those of RDMAP: a case of DDP or RDMAP that is not written for bare DDP, or
/// a case that sends or requires a message that only RDMAP has.
fn needs_rdmap(case: &Case) -> bool {
    if case.needs.iter().any(|n| n.capability == BARE) {
        return false;
    }
    let of_rdmap = |kind: Kind| {
        matches!(
            kind,
            Kind::Read
                | Kind::Response
                | Kind::Terminate
                | Kind::Immediate
                | Kind::Atomic
                | Kind::AtomicResponse
        )
    };
    matches!(case.id.split('/').next(), Some("ddp" | "rdmap"))
        || case.steps.iter().any(|step| match &step.action {
            Action::Alive => true,
            Action::Send(kind, _) => of_rdmap(*kind),
            Action::Expect(alternatives) => alternatives.iter().all(|e| of_rdmap(e.kind)),
            _ => false,
        })
}

fn perform(step: &Step, case: &Case, session: &mut Session<'_>) -> Result<(), Stop> {
    match &step.action {
        Action::Open(arguments) => startup::open(session, arguments),
        Action::Start(arguments) => startup::start(session, arguments, &case.needs),
        Action::Require(conditions) => require(conditions, &session.variables),
        Action::Verify(conditions) => verify(conditions, &session.variables),
        Action::Send(kind, arguments) => session.send(*kind, arguments),
        Action::Flush => {
            session.flush();
            Ok(())
        }
        Action::Cut(sizes) => {
            session.flush();
            session.cut(sizes);
            Ok(())
        }
        Action::Order(order) => {
            session.order(order);
            Ok(())
        }
        Action::Release => {
            session.release();
            Ok(())
        }
        Action::Repeat(sizes) => {
            session.repeat(sizes);
            Ok(())
        }
        Action::Lose(segments) => {
            session.link.lose(*segments);
            Ok(())
        }
        Action::Path(mtu) => {
            session.link.limit_path(*mtu);
            Ok(())
        }
        Action::Wait(time) => {
            session.flush();
            session.link.wait(*time);
            Ok(())
        }
        Action::Expect(alternatives) => session.expect(alternatives).map(drop),
        Action::Alive => {
            let service = session.setup().service;
            service.alive(session)
        }
        Action::Finish => session.finish(),
        Action::Shutdown => {
            session.flush();
            session.link.shut_down();
            Ok(())
        }
        Action::Reset => {
            session.flush();
            session.link.transcript.add(Side::Tester, What::Note("reset".into()));
            session.link.reset();
            Ok(())
        }
    }
}

/// Returns "not applicable" unless all conditions hold.
fn require(conditions: &Arguments, variables: &Variables) -> Result<(), Stop> {
    match violated(conditions, variables) {
        Some((condition, seen)) => {
            Err(Stop::NotApplicable(format!("the case requires {condition}; the value is {seen}")))
        }
        None => Ok(()),
    }
}

/// Returns a failure unless all conditions hold.
fn verify(conditions: &Arguments, variables: &Variables) -> Result<(), Stop> {
    match violated(conditions, variables) {
        Some((expected, seen)) => {
            Err(Stop::Fail(Failure { expected, received: seen, bytes: vec![], timed_out: false }))
        }
        None => Ok(()),
    }
}

/// Returns the first condition that does not hold, and the value of its fact.
fn violated(conditions: &Arguments, variables: &Variables) -> Option<(String, String)> {
    for c in &conditions.0 {
        let holds = variables
            .get(&c.key)
            .zip(number(&c.value, variables).ok())
            .is_some_and(|(&fact, value)| c.operator.holds(fact, value));
        if !holds {
            let seen =
                variables.get(&c.key).map_or("unknown".into(), |value| format!("{value:#x}"));
            return Some((format!("{}{}{}", c.key, c.operator.symbol(), c.value), seen));
        }
    }
    None
}

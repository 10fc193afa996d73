//! Services: programs on the device. Defines how a case obtains memory and messages from each.
//!
//! A capability is a resource that a case may use. Memory capabilities set the variables `$NAME.stag`, `$NAME.to` and
//! `$NAME.len`.

pub(crate) mod advertisement;
mod perftest;
mod rping;

use std::time::Duration;

use crate::case::{BARE, CAPABILITIES, Need, Role, SEGMENTS};
use crate::device::Service;
use crate::message::Kind;
use crate::session::{Failure, Session, Stop};
use crate::value::{Arguments, Variables};

impl Service {
    /// Sets the facts that the private data of the device's start frame contain.
    ///
    /// # Errors
    /// [`Stop::Inconclusive`]: the private data are malformed.
    pub fn private_data(self, session: &mut Session<'_>, data: &[u8]) -> Result<(), Stop> {
        match self {
            Service::Region | Service::Peer => advertisement::read(session, data),
            // The advertisement is optional.
            Service::Ddp if data.is_empty() => Ok(()),
            Service::Ddp => advertisement::read(session, data),
            Service::Rping | Service::Echo | Service::Sink | Service::Perftest => Ok(()),
        }
    }

    /// Performs the service's exchange after the start-up, and checks that the device has the needed capabilities.
    ///
    /// # Errors
    /// [`Stop::NotApplicable`]: the service lacks a capability. [`Stop::Inconclusive`]: the device does not perform the
    /// exchange.
    pub fn prepare(self, session: &mut Session<'_>, needs: &[Need]) -> Result<(), Stop> {
        match self {
            Service::Rping => rping::prepare(session, needs)?,
            Service::Perftest => perftest::prepare(session)?,
            Service::Peer if session.role() == Role::Initiator => {
                receive(session, Kind::Write, "the first message of an iwspec-peer client")?;
            }
            Service::Region | Service::Echo | Service::Sink | Service::Peer | Service::Ddp => {}
        }
        for need in needs {
            self.check(need, session)?;
        }
        Ok(())
    }

    fn check(self, need: &Need, session: &Session<'_>) -> Result<(), Stop> {
        let name = need.capability.as_str();
        let variables = &session.variables;
        let has = match name {
            BARE => self == Service::Ddp,
            "alive" if self == Service::Ddp => false,
            "alive" => session.setup().permits.empty_reads,
            SEGMENTS => session.setup().target.is_raw(),
            // With other programs, the bounds of the memory are unknown: they may advertise only a part of a region.
            "exact" | "shared" => matches!(self, Service::Region | Service::Peer | Service::Ddp),
            "send" => matches!(self, Service::Sink | Service::Echo | Service::Peer),
            // An initiator of bare DDP has no echo queue.
            "echo" if self == Service::Ddp => session.role() == Role::Responder,
            "echo" => matches!(self, Service::Echo | Service::Peer),
            "receive" => variables.contains_key("receive.len"),
            _ => variables.contains_key(&format!("{name}.stag")),
        };
        if !has {
            let what = CAPABILITIES.iter().find(|(n, _)| *n == name).map_or("", |(_, what)| what);
            return Err(Stop::NotApplicable(format!("the service does not have \"{what}\"")));
        }
        match variables.get(&format!("{name}.len")) {
            Some(&length) if length < need.bytes => Err(Stop::NotApplicable(format!(
                "the service has {length} bytes of \"{name}\", the case needs {}",
                need.bytes
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that the device answers an RDMA Read of no bytes (RFC 5040 §5.2.1).
    ///
    /// # Errors
    /// [`Stop::Fail`]: the device sends another message, or no message in time. Also the errors of [`Session::send`]
    /// and [`Session::receive`].
    pub fn alive(self, session: &mut Session<'_>) -> Result<(), Stop> {
        const SINK: &str = "sink=0xa11e sink-to=0 stag=0 to=0 len=0";
        let arguments = Arguments::parse(SINK.split(' ')).map_err(Stop::Inconclusive)?;
        session.send(Kind::Read, &arguments)?;
        let expected = "a Read Response of no bytes, to a Read Request of no bytes";
        match session.receive(None)? {
            Some(m)
                if m.kind == Kind::Response
                    && m.data.is_empty()
                    && m.field("stag") == Some(0xa11e) =>
            {
                intact(m).map(drop)
            }
            Some(m) => Err(Stop::Fail(Failure {
                expected: expected.into(),
                received: m.describe(),
                bytes: m.raw,
                timed_out: false,
            })),
            None => Err(Stop::Fail(Failure {
                expected: expected.into(),
                received: "nothing".into(),
                bytes: vec![],
                timed_out: true,
            })),
        }
    }
}

/// Sets the variables of a memory capability: STag, TO and length.
fn set_memory(session: &mut Session<'_>, name: &str, stag: u64, to: u64, length: u64) {
    session.set(&format!("{name}.stag"), stag);
    session.set(&format!("{name}.to"), to);
    session.set(&format!("{name}.len"), length);
}

/// Sets the capabilities `write`, `read` and `both` as far as the device permits them.
fn set_permitted(session: &mut Session<'_>, stag: u64, to: u64, length: u64) {
    let permits = session.setup().permits;
    for (name, permitted) in [
        ("write", permits.writes),
        ("read", permits.reads),
        ("both", permits.reads && permits.writes),
    ] {
        if permitted {
            set_memory(session, name, stag, to, length);
        }
    }
}

/// Performs the first part of perftest's control exchange, on the control connection.
///
/// # Errors
/// [`Stop::Inconclusive`]: the device does not perform the exchange.
pub fn begin_perftest(control: &mut Session<'_>) -> Result<(), Stop> {
    perftest::begin(control)
}

/// Receives a message of the service's exchange.
fn receive(
    session: &mut Session<'_>,
    kind: Kind,
    what: &str,
) -> Result<crate::message::Message, Stop> {
    match session.receive(Some(Duration::from_secs(3)))? {
        Some(m) if m.kind == kind => intact(m),
        Some(m) => {
            Err(Stop::Inconclusive(format!("the service sends {} instead of {what}", m.describe())))
        }
        None => Err(Stop::Inconclusive(format!("the service does not send {what}"))),
    }
}

/// Returns the message, or a failure if its framing is damaged.
fn intact(message: crate::message::Message) -> Result<crate::message::Message, Stop> {
    match message.mismatch(&Arguments::default(), &Variables::new()) {
        Ok(None) => Ok(message),
        Ok(Some(what)) | Err(what) => Err(Stop::Fail(Failure {
            expected: "an intact message".into(),
            received: format!("{} (expected {what})", message.describe()),
            bytes: message.raw,
            timed_out: false,
        })),
    }
}

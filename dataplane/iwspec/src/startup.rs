//! Correct start-ups of both roles, and the exchange of the service after them.

use std::time::{Duration, Instant};

use crate::case::{Need, Role, Transport};
use crate::device::{Permits, Service, Setup};
use crate::message::{Kind, Message};
use crate::service::begin_perftest;
use crate::session::{DRAFT, Session, Stop};
use crate::value::Arguments;

/// Time to wait for the error report of a device that does not permit a Write.
const SILENCE: Duration = Duration::from_millis(500);
/// Pause between two attempts to reach a perftest server, which is started again after each client.
const RETRY: Duration = Duration::from_millis(50);

/// Performs a correct start-up, and prepares the needed capabilities.
///
/// # Errors
/// [`Stop::NotApplicable`]: the device refuses a start-up with these arguments, the arguments do not fit the transport
/// or the role, or the service lacks a capability. [`Stop::Inconclusive`]: the device does not perform the start-up or
/// the exchange of its service.
pub fn start(session: &mut Session<'_>, arguments: &Arguments, needs: &[Need]) -> Result<(), Stop> {
    session.set_exact(needs.iter().any(|n| n.capability == "exact"));
    let service = session.setup().service;
    connect(session, arguments)?;
    std::thread::sleep(session.setup().timing.settle);
    // Number of concurrent Read Requests that the device accepts. Without enhanced data, the number depends on the
    // device's program.
    let depth = match session.variables.get("peer.enhanced") {
        Some(1) => session.variables.get("peer.ird").copied().unwrap_or(0),
        _ => service.read_depth(),
    };
    session.set("depth", depth);
    service.prepare(session, needs)
}

/// Opens the connection of a case, which replaces any previous one. Over SCTP, `arguments` has the adaptation
/// indication and the number of streams.
///
/// # Errors
/// [`Stop::Inconclusive`]: there is no connection, or an argument cannot be computed.
pub fn open(session: &mut Session<'_>, arguments: &Arguments) -> Result<(), Stop> {
    let setup = session.setup();
    if setup.service == Service::Perftest && setup.role() == Role::Responder {
        // A perftest server serves one client, and ends when the client's connections close. The next server answers
        // on a new control connection, and then waits for the data connection.
        session.companion = None;
        session.link.close();
        session.companion = Some(Box::new(perftest_control(setup)?));
    }
    session.open_with(arguments)
}

/// Opens the control connection of a perftest server, and performs the exchange before the second connection. Repeats
/// this until a server completes the exchange: the connection may have reached a server that was ending.
///
/// # Errors
/// [`Stop::Inconclusive`]: no server completes the exchange in time.
fn perftest_control(setup: &Setup) -> Result<Session<'_>, Stop> {
    let deadline = Instant::now() + setup.timing.restart * setup.timing.scale;
    loop {
        let mut control = Session::new(setup);
        let exchange = control.open().and_then(|()| {
            start_responder(&mut control, &Arguments::default())?;
            std::thread::sleep(setup.timing.settle);
            begin_perftest(&mut control)
        });
        let why = match exchange {
            Ok(()) => return Ok(control),
            Err(Stop::Inconclusive(why) | Stop::NotApplicable(why)) => why,
            Err(Stop::Fail(failure)) => {
                format!("{} instead of {}", failure.received, failure.expected)
            }
        };
        if Instant::now() >= deadline {
            return Err(Stop::Inconclusive(format!("no perftest server: {why}")));
        }
        drop(control);
        std::thread::sleep(RETRY);
    }
}

/// Opens a connection and performs a correct start-up.
fn connect(session: &mut Session<'_>, arguments: &Arguments) -> Result<(), Stop> {
    if session.setup().target.transport() == Transport::Sctp {
        return start_session(session, arguments);
    }
    if arguments.get("mss").is_some() {
        if session.role() == Role::Initiator && !session.setup().target.is_raw() {
            return Err(Stop::NotApplicable(
                "the MSS is only set for connections to the device".into(),
            ));
        }
        let mss = session.number(arguments, "mss", 0)?;
        let wrong = |_| Stop::Inconclusive(format!("mss={mss} is above 65535"));
        session.link.mss = Some(u16::try_from(mss).map_err(wrong)?);
    }
    session.link.timestamps = session.number(arguments, "timestamps", 0)? != 0;
    if session.setup().revision == 0 && arguments.get("draft").is_none() {
        return Err(Stop::NotApplicable(DRAFT.into()));
    }
    open(session, &Arguments::default())?;
    if arguments.get("draft").is_some() {
        return start_draft(session, arguments);
    }
    let result = match session.role() {
        Role::Responder => start_responder(session, arguments),
        Role::Initiator => start_initiator(session, arguments),
    };
    match result {
        // Every device must accept a start-up without special parameters.
        Err(Stop::NotApplicable(why)) if arguments.0.is_empty() && why != DRAFT => {
            Err(Stop::Inconclusive(format!("no start-up: {why}")))
        }
        result => result,
    }
}

/// Opens or accepts an association, and then a session on stream 0 (RFC 5043 §6.2).
fn start_session(session: &mut Session<'_>, arguments: &Arguments) -> Result<(), Stop> {
    if let Some(a) =
        arguments.0.iter().find(|a| matches!(a.key.as_str(), "mss" | "draft" | "markers"))
    {
        return Err(Stop::NotApplicable(format!("`{}` is about MPA", a.key)));
    }
    let streams = Arguments(arguments.0.iter().filter(|a| a.key == "streams").cloned().collect());
    session.open_with(&streams)?;
    if session.role() == Role::Initiator {
        return accept_session(session);
    }
    let mut frame = String::new();
    let rev = session.number(arguments, "rev", session.setup().revision)?;
    if session.number(arguments, "enhanced", u64::from(rev >= 2))? != 0 {
        let depth = session.setup().service.read_depth();
        let (ird, ord) =
            (session.number(arguments, "ird", depth)?, session.number(arguments, "ord", depth)?);
        let flags = session.number(arguments, "flags", 0)?;
        frame = format!("enhanced=on ird={ird} ord={ord} flags={flags}");
    }
    session.send_text(Kind::Initiate, &frame)?;
    match session.receive(None)? {
        Some(m) if m.kind == Kind::Accept => {
            session.set("peer.rev", if m.field("enhanced") == Some(1) { 2 } else { 1 });
            session.setup().service.private_data(session, &m.data)
        }
        Some(m) => Err(Stop::NotApplicable(format!(
            "the device does not accept a session {frame}: {}",
            m.describe()
        ))),
        None => Err(Stop::Inconclusive("the device does not answer an Initiate".into())),
    }
}

/// Accepts the device's session (RFC 5043 §6.2).
fn accept_session(session: &mut Session<'_>) -> Result<(), Stop> {
    let initiate = match session.receive(None)? {
        Some(m) if m.kind == Kind::Initiate => m,
        Some(m) => {
            let why = format!("no session: {} instead of an Initiate", m.describe());
            return Err(Stop::Inconclusive(why));
        }
        None => return Err(Stop::Inconclusive("the device does not open a session".into())),
    };
    let mut frame = String::new();
    if initiate.field("enhanced") == Some(1) {
        let (ird, ord) = (initiate.field("ird").unwrap_or(1), initiate.field("ord").unwrap_or(1));
        frame = format!("enhanced=on ird={ord} ord={ird} flags=$peer.flags");
    }
    session.set("peer.rev", if initiate.field("enhanced") == Some(1) { 2 } else { 1 });
    session.send_text(Kind::Accept, &frame)?;
    session.flush();
    if session.variables.get("peer.a") == Some(&1) {
        ready(session)?;
    }
    session.setup().service.private_data(session, &initiate.data)
}

fn start_draft(session: &mut Session<'_>, arguments: &Arguments) -> Result<(), Stop> {
    let (markers, crc) =
        (session.number(arguments, "markers", 0)?, session.number(arguments, "crc", 1)?);
    let frame = format!("markers={markers} crc={crc}");
    if session.role() == Role::Initiator {
        first(session, Kind::StartKey, "the draft's Start Key")?;
    }
    session.send_text(Kind::StartKey, &frame)?;
    if session.role() == Role::Responder {
        first(session, Kind::StartKey, "the draft's Start Key")?;
    }
    Ok(())
}

fn start_responder(session: &mut Session<'_>, arguments: &Arguments) -> Result<(), Stop> {
    let rev = session.number(arguments, "rev", session.setup().revision)?;
    let mut frame = format!(
        "rev={rev} markers={} crc={}",
        session.number(arguments, "markers", 0)?,
        session.number(arguments, "crc", 1)?
    );
    let depth = session.setup().service.read_depth();
    if session.number(arguments, "enhanced", u64::from(rev >= 2))? != 0 {
        let (ird, ord) =
            (session.number(arguments, "ird", depth)?, session.number(arguments, "ord", depth)?);
        let flags = session.number(arguments, "flags", 0)?;
        frame += &format!(" enhanced=on ird={ird} ord={ord} flags={flags}");
    }
    session.send_text(Kind::Request, &frame)?;
    let reply = first(session, Kind::Reply, "a Reply")?;
    if reply.field("reject") == Some(1) {
        let data: String = reply
            .data
            .iter()
            .take(200)
            .map(|&b| if b.is_ascii_graphic() || b == b' ' { b as char } else { '.' })
            .collect();
        return Err(Stop::NotApplicable(format!("the device rejects {frame}: {data}")));
    }
    session.setup().service.private_data(session, &reply.data)
}

fn start_initiator(session: &mut Session<'_>, arguments: &Arguments) -> Result<(), Stop> {
    let request = first(session, Kind::Request, "a Request")?;
    let rev = request.field("rev").unwrap_or(1);
    let mut frame = format!(
        "rev={rev} markers={} crc={}",
        session.number(arguments, "markers", 0)?,
        session.number(arguments, "crc", 1)?
    );
    if request.field("enhanced") == Some(1) && rev >= 2 {
        // RFC 6581 §9.1: the IRD of one side is the ORD of the other.
        let (ird, ord) = (request.field("ird").unwrap_or(1), request.field("ord").unwrap_or(1));
        frame += &format!(" enhanced=on ird={ord} ord={ird} flags=$peer.flags");
    }
    session.send_text(Kind::Reply, &frame)?;
    session.flush();
    if session.variables.get("peer.a") == Some(&1) {
        ready(session)?;
    }
    session.setup().service.private_data(session, &request.data)
}

/// Receives the ready-to-receive message of the peer-to-peer model (RFC 6581 §9.2), and answers it if it is a
/// Read.
fn ready(session: &mut Session<'_>) -> Result<(), Stop> {
    match session.receive(None)? {
        Some(m) if m.kind == Kind::Read && m.field("size") == Some(0) => {
            let (stag, to) = (m.field("sink").unwrap_or(0), m.field("sink-to").unwrap_or(0));
            session.send_text(Kind::Response, &format!("stag={stag} to={to} len=0"))
        }
        Some(m) if matches!(m.kind, Kind::Write | Kind::Send) && m.data.is_empty() => Ok(()),
        Some(m) => {
            Err(Stop::Inconclusive(format!("{} is not a ready-to-receive message", m.describe())))
        }
        None => Err(Stop::Inconclusive("the device sends no ready-to-receive message".into())),
    }
}

/// Receives the device's start frame. Checks only its kind.
fn first(session: &mut Session<'_>, kind: Kind, name: &str) -> Result<Message, Stop> {
    let message = session.receive(None)?;
    match message {
        Some(m) if m.kind == kind => Ok(m),
        Some(m) if m.kind == Kind::StartKey => Err(Stop::NotApplicable(DRAFT.into())),
        Some(m) if kind == Kind::StartKey && m.kind == Kind::Request => Err(Stop::NotApplicable(
            "the device begins with a Request, not with a Start Key".into(),
        )),
        Some(m) if matches!(m.kind, Kind::Fin | Kind::Reset) => {
            Err(Stop::NotApplicable(format!("the device closes the connection instead of {name}")))
        }
        Some(m) => {
            Err(Stop::Inconclusive(format!("no start-up: {} instead of {name}", m.describe())))
        }
        None => Err(Stop::Inconclusive(format!("no start-up: the device does not send {name}"))),
    }
}

/// Determines the operations that an rping or perftest device permits. Other services advertise them.
pub fn probe(setup: &mut Setup) {
    let server = setup.role() == Role::Responder;
    if !matches!((setup.service, server), (Service::Perftest, _) | (Service::Rping, true)) {
        return;
    }
    setup.permits = Permits::default();
    if setup.service == Service::Perftest {
        setup.permits.empty_reads = server && answers(setup, "alive", "sink=1 len=0");
    }
    setup.permits.reads =
        server && answers(setup, "read", "sink=1 stag=$read.stag to=$read.to len=8");
    setup.permits.writes = server && accepts(setup);
}

/// Starts a session that probes the device.
fn ask<'a>(setup: &'a Setup, need: &str) -> Result<Session<'a>, Stop> {
    let mut session = Session::new(setup);
    let need = Need { capability: need.into(), bytes: 0 };
    start(&mut session, &Arguments::default(), &[need])?;
    Ok(session)
}

/// Returns true if the device answers the Read Request with the arguments `read`. `need` is the capability on which the
/// arguments depend.
fn answers(setup: &Setup, need: &str, read: &str) -> bool {
    let answer = ask(setup, need).and_then(|mut session| {
        session.send_text(Kind::Read, read)?;
        session.receive(None)
    });
    matches!(answer, Ok(Some(m)) if m.kind == Kind::Response)
}

/// Returns true if the device accepts a Write to its buffer and keeps the stream open.
fn accepts(setup: &Setup) -> bool {
    let answer = ask(setup, "write").and_then(|mut session| {
        session.send_text(Kind::Write, "stag=$write.stag to=$write.to len=8 data=fill:0x5a")?;
        session.receive(Some(SILENCE))
    });
    matches!(answer, Ok(None))
}

//! Correct start-ups of both roles, and the exchange of the service behind them.

use crate::case::{Need, Role};
use crate::device::{Service, Setup};
use crate::message::{Kind, Message};
use crate::session::{Session, Stop};
use crate::value::Arguments;

/// Does a correct start-up and prepares what the case needs.
///
/// # Errors
/// The device refuses the start-up or does not do its service.
pub fn start(session: &mut Session<'_>, arguments: &Arguments, needs: &[Need]) -> Result<(), Stop> {
    session.set_exact(needs.iter().any(|n| n.capability == "exact"));
    session.open()?;
    if arguments.get("draft").is_some() {
        start_draft(session, arguments)?;
    } else {
        match session.role() {
            Role::Responder => start_responder(session, arguments)?,
            Role::Initiator => start_initiator(session, arguments)?,
        }
    }
    let service = session.setup().service;
    service.prepare(session, needs)
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
    let rev = session.number(arguments, "rev", 1)?;
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
        // RFC 6581 §9.1: the device's ORD is our IRD, and the reverse.
        let (ird, ord) = (request.field("ird").unwrap_or(1), request.field("ord").unwrap_or(1));
        frame += &format!(" enhanced=on ird={ord} ord={ird}");
    }
    session.send_text(Kind::Reply, &frame)?;
    session.flush();
    session.setup().service.private_data(session, &request.data)
}

/// Receives the device's start frame, without judgement beyond its kind.
fn first(session: &mut Session<'_>, kind: Kind, name: &str) -> Result<Message, Stop> {
    let message = session.receive(None)?;
    match message {
        Some(m) if m.kind == kind => Ok(m),
        Some(m) if matches!(m.kind, Kind::Fin | Kind::Reset) => {
            Err(Stop::NotApplicable(format!("the device closes the connection instead of {name}")))
        }
        Some(m) => {
            Err(Stop::Inconclusive(format!("no start-up: {} instead of {name}", m.describe())))
        }
        None => Err(Stop::Inconclusive(format!("no start-up: the device does not send {name}"))),
    }
}

/// Finds out whether the buffer of an rping server is open to Reads and Writes of its peer.
pub fn probe(setup: &mut Setup) {
    setup.open_buffer = true;
    if setup.service == Service::Rping && setup.role() == Role::Responder {
        setup.open_buffer = try_buffer(&mut Session::new(setup)).unwrap_or(false);
    }
}

fn try_buffer(session: &mut Session<'_>) -> Result<bool, Stop> {
    let need = Need { capability: "both".into(), bytes: 8 };
    start(session, &Arguments::default(), &[need])?;
    session.send_text(Kind::Write, "stag=$both.stag to=$both.to len=8 data=fill:0x5a")?;
    session.send_text(Kind::Read, "stag=$both.stag to=$both.to len=8 sink=1")?;
    let answer = session.receive(None)?;
    Ok(answer.is_some_and(|m| m.kind == Kind::Response && m.data == [0x5a; 8]))
}

//! `serve-kernel`: offers one region over kernel sockets, for hosts without an appliance and for tests of an appliance.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::json;
use tcp_lite::mpa::{Config, Revisions};

use super::Output;
use super::args::{MpaRev, ServeKernel};
use super::exit::{Exit, Failure};
use super::put::parameters_json;
use crate::kernel::{ConnectionOutcome, ListenConfig, Listener, RegionSpec, ServeEvent};

/// Serves until SIGINT or SIGTERM arrives or the requested number of connections has ended.
pub(super) fn serve(serve: ServeKernel, output: &mut Output<'_>) -> Result<(), Failure> {
    if serve.base_to.checked_add(serve.size - 1).is_none() {
        let message = "--base-to plus --size is beyond 2^64: lower one of them";
        return Err(Failure::new(Exit::Usage, message));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut listener = Listener::bind(listen_config(&serve))?;
    print_event(
        output,
        &json!({
            "event": "listening",
            "address": listener.address().to_string(),
            "region": serve.region,
            "size": serve.size,
            "stag": format!("{:#010x}", listener.stag()),
            "base_to": serve.base_to.to_string(),
        }),
    )?;
    let mut failure = None;
    let served = listener.serve(&stop, &mut |event| {
        if failure.is_none() {
            failure = print_event(output, &event_json(&event)).err();
        }
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    print_event(
        output,
        &json!({
            "event": "served",
            "connections": served.connections,
            "complete": served.complete,
            "bytes": served.bytes,
        }),
    )
}

fn listen_config(serve: &ServeKernel) -> ListenConfig {
    let speaks = |revision| serve.revisions.is_empty() || serve.revisions.contains(&revision);
    let mpa = Config {
        revisions: Revisions {
            draft: speaks(MpaRev::StartKey),
            zero: speaks(MpaRev::Zero),
            one: speaks(MpaRev::One),
            // Revision 2 (RFC 6581) is for RDMAP; this listener supports only bare DDP.
            two: false,
        },
        markers: serve.markers,
        crc: serve.crc,
        ..Config::default()
    };
    ListenConfig {
        address: serve.address,
        mpa,
        region: RegionSpec {
            name: serve.region.clone(),
            len: serve.size,
            stag: serve.stag,
            base_to: serve.base_to,
            file: serve.file.clone(),
        },
        idle_timeout: serve.idle_timeout,
        connections: serve.connections,
    }
}

fn event_json(event: &ServeEvent) -> serde_json::Value {
    match event {
        ServeEvent::Connected { peer, parameters: agreed } => json!({
            "event": "connected", "peer": peer.to_string(), "mpa": parameters_json(agreed),
        }),
        ServeEvent::Delivered { peer, stag, to, len } => json!({
            "event": "delivered", "peer": peer.to_string(), "stag": format!("{stag:#010x}"),
            "to": to.to_string(), "bytes": len,
        }),
        ServeEvent::Closed { peer, placed, outcome } => json!({
            "event": "closed", "peer": peer.to_string(), "bytes": placed,
            "complete": *outcome == ConnectionOutcome::Complete, "outcome": outcome_sentence(outcome),
        }),
    }
}

fn outcome_sentence(outcome: &ConnectionOutcome) -> String {
    match outcome {
        ConnectionOutcome::Complete => "closed in order".into(),
        ConnectionOutcome::Incomplete => "the peer closed within a message".into(),
        ConnectionOutcome::Startup(error) => format!("MPA start-up: {error}"),
        ConnectionOutcome::Mpa(error) => format!("the peer violated MPA: {error}"),
        ConnectionOutcome::Ddp(error) => format!("the peer violated DDP: {error}"),
        ConnectionOutcome::SocketError(kind) => format!("the connection broke: {kind}"),
        ConnectionOutcome::IdleTimeout => "the peer was silent for too long".into(),
    }
}

/// Prints an event as one line. Flushes the output, because other programs may wait for the line.
fn print_event(output: &mut Output<'_>, event: &serde_json::Value) -> Result<(), Failure> {
    output.print_answer(event, |event| {
        let mut line = event["event"].as_str().unwrap_or("?").to_owned();
        let members = event.as_object().into_iter().flatten();
        for (name, value) in members.filter(|(name, _)| *name != "event") {
            match value.as_str() {
                Some(text) => line += &format!(" {name}={text}"),
                None => line += &format!(" {name}={value}"),
            }
        }
        line
    })?;
    Ok(output.out.flush()?)
}

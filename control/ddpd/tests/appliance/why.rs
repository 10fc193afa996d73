//! Tests of the flight recorder of a running appliance: both ends of a failed stream report the reason.

use api::{ClientError, EventKind, Sent, Why};
use serde_json::json;

use super::REGION;
use super::common::{Ddpd, SINK, Setup, wait_for};

#[test]
fn both_ends_report_wrong_queue_number_as_end_cause() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let spec = json!({ "via": { "connect": { "remote": SINK } }, "queue": 99, "data": "aGVsbG8=" });
    // The peer's TCP may acknowledge the message before its DDP refuses it.
    let sent = ddpd.source.post::<Sent>("/v1/send", &spec);
    assert!(matches!(sent, Ok(_) | Err(ClientError::Refused(_))), "{sent:?}");
    let ended = |kind: &EventKind| matches!(kind, EventKind::StreamClosed { .. });
    wait_for(&ddpd.sink, ended);
    wait_for(&ddpd.source, ended);

    let why: Why = ddpd.sink.get("/v1/why/10.9.0.2").unwrap();
    let [flight] = &why.streams[..] else { panic!("{why:?}") };
    let end = flight.end.as_ref().unwrap();
    assert_eq!((end.by.as_str(), end.code.as_deref()), ("peer", Some("1/2/01")), "{flight:?}");
    assert_eq!(end.key.as_deref(), Some("[[listener.queue]]"));
    assert!(flight.sentences[1].contains("in DDP, 2/01: "), "{flight:?}");
    assert!(flight.sentences[1].contains("99"), "expected and seen: {flight:?}");
    let events: Vec<&str> = flight.events.iter().map(|event| event.event.as_str()).collect();
    // A busy control thread may handle the establishment only after the first message has failed.
    assert_eq!(events[0], "requested", "{events:?}");
    assert!(events.contains(&"established") && events.contains(&"error"), "{events:?}");

    let theirs: Why = ddpd.source.get(&format!("/v1/why/{SINK}")).unwrap();
    let sentences = theirs.streams[0].sentences.join("\n");
    assert!(
        sentences.contains("opened from here") && sentences.contains("bare DDP over TCP"),
        "{sentences}"
    );

    let output = crate::common::ddpctl()
        .arg("--socket")
        .arg(ddpd.path("sink.sock"))
        .args(["why", &flight.stream.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(
        text.contains(&flight.sentences[1]) && text.contains("Key: [[listener.queue]]"),
        "{text}"
    );
}

#[test]
fn why_reports_unrecorded_and_invalid_subjects() {
    let ddpd = Ddpd::start(&Setup { sink: REGION, ..Setup::default() });
    let refusal = |what: &str| {
        let output = crate::common::ddpctl()
            .arg("--socket")
            .arg(ddpd.path("sink.sock"))
            .args(["why", what])
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for (what, code, sentence) in [
        (
            "0000000001000007",
            1,
            "no stream 0000000001000007 was seen since ddpd started\nhint: `ddpctl streams` lists",
        ),
        (
            "192.0.2.1",
            1,
            "no stream with 192.0.2.1 and no attempt of it was seen since ddpd started\nhint: no packet of the peer arrived",
        ),
        ("12", 1, "there is no job 12"),
        (
            "ingest",
            2,
            "`ingest` is not a stream (16 hexadecimal digits), a job (a number), a peer (an address",
        ),
    ] {
        let (exit, text) = refusal(what);
        assert!(exit == code && text.contains(sentence), "{what}: {exit} {text}");
    }
}

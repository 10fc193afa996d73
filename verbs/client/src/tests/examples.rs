//! Tests that run both sides of each Rust example with the test appliance, which listens at a path.

use std::net::SocketAddr;

use verbs_layout::work::Opcode;

use super::TempDirectory;
use super::world::Appliance;

#[path = "../../examples/key_value.rs"]
#[allow(unreachable_pub, reason = "the function is that of a program")]
mod key_value;
#[path = "../../examples/log.rs"]
#[allow(unreachable_pub, reason = "the function is that of a program")]
mod log;
#[path = "../../examples/ping_pong.rs"]
#[allow(unreachable_pub, reason = "the function is that of a program")]
mod ping_pong;
#[path = "../../examples/verbs_peer.rs"]
#[allow(unreachable_pub, reason = "the function is that of a program")]
mod verbs_peer;

/// Runs both sides of an example, and returns the output of the server and of the client.
fn both<E: std::fmt::Debug + Send>(
    name: &str,
    run: impl Fn(&[String], &mut Vec<u8>) -> Result<(), E> + Sync,
    serve: &[&str],
    connect: &[&str],
) -> (String, String) {
    let (server, client) = both_results(&Appliance::start(), name, run, serve, connect);
    (server.unwrap(), client.unwrap())
}

/// Runs both sides of an example, and returns the output or the error of the server and of the client.
fn both_results<E: std::fmt::Debug + Send>(
    appliance: &Appliance,
    name: &str,
    run: impl Fn(&[String], &mut Vec<u8>) -> Result<(), E> + Sync,
    serve: &[&str],
    connect: &[&str],
) -> (Result<String, E>, Result<String, E>) {
    let directory = TempDirectory::new(name);
    let path = directory.socket();
    appliance.listen(&path);
    let address: SocketAddr = "10.0.0.2:4000".parse().unwrap();
    let run = |arguments: &[&str]| {
        let mut words =
            vec![path.to_str().unwrap().into(), arguments[0].into(), address.to_string()];
        words.extend(arguments[1..].iter().map(|word| word.to_string()));
        let mut output = Vec::new();
        run(&words, &mut output).map(|()| String::from_utf8(output).unwrap())
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(|| run(serve));
        while !appliance.with(|world| world.listeners.contains_key(&address)) {
            assert!(!server.is_finished(), "the server ended: {:?}", server.join());
            std::thread::yield_now();
        }
        let client = run(connect);
        (server.join().unwrap(), client)
    })
}

#[test]
fn ping_pong_answers_each_message() {
    let (server, client) = both("ping-pong", ping_pong::run, &["listen"], &["connect", "50"]);
    assert!(server.ends_with("50 messages answered\n"), "{server}");
    assert!(client.contains("50 messages and answers"), "{client}");
}

#[test]
fn key_value_finds_values() {
    let (_, client) = both(
        "key-value",
        key_value::run,
        &["serve", "1", "one=1", "two=zwei", "three="],
        &["get", "two", "four", "one", "three"],
    );
    assert_eq!(client, "two: zwei\nfour: not found\none: 1\nthree: \n");
}

#[test]
fn log_arrives_in_order() {
    let lines: Vec<String> = (0..40).map(|n| format!("line {n}")).collect();
    let mut send = vec!["send"];
    send.extend(lines.iter().map(String::as_str));
    let (server, client) = both("log", log::run, &["receive"], &send);
    let received: Vec<&str> = server.lines().skip(1).collect();
    assert_eq!(received, lines);
    assert_eq!(client, "40 lines sent\n");
}

/// Runs verbs_peer as server of one connection, and as client with `operations`. Returns the client's output or error.
fn verbs_peers(
    appliance: &Appliance,
    name: &str,
    serve: &[&str],
    operations: &[&str],
) -> Result<String, String> {
    let connect = [&["connect", "standard"], operations].concat();
    let (server, client) = both_results(appliance, name, verbs_peer::run, serve, &connect);
    server.unwrap();
    client.map_err(|error| error.to_string())
}

/// Creates a file of `len` bytes in a directory of its own.
fn file(name: &str, len: usize) -> (TempDirectory, String) {
    let directory = TempDirectory::new(name);
    let path = directory.path().join("file");
    std::fs::write(&path, (0..len).map(|at| (at * 13 + at / 251) as u8).collect::<Vec<u8>>())
        .unwrap();
    (directory, path.to_str().unwrap().into())
}

#[test]
fn verbs_peer_performs_each_operation() {
    let (_directory, path) = file("verbs-peer-file", 3_000_001);
    let operations = [
        &format!("write:{path}"),
        "echo:0",
        "echo:65536",
        "echose:77",
        &format!("read:{path}"),
        "stay:1",
    ];
    let output = verbs_peers(&Appliance::start(), "verbs-peer", &["serve", "1"], &operations);
    let done: String = operations.iter().map(|operation| format!("{operation}: done\n")).collect();
    assert_eq!(output.unwrap(), done + "disconnected\n");
}

#[test]
fn verbs_peer_reports_operations_that_place_nothing() {
    let (_directory, path) = file("verbs-peer-lost-file", 5000);
    // Without a Write, the peer's memory is zero, and so is the file's first byte.
    for (lost, at) in [(Opcode::Read, 0), (Opcode::Write, 1)] {
        let appliance = Appliance::start();
        appliance.with(|world| world.lost = Some(lost));
        let operations = [&*format!("write:{path}"), &format!("read:{path}")];
        let error = verbs_peers(&appliance, "verbs-peer-lost", &["serve", "1"], &operations);
        assert_eq!(error.unwrap_err(), format!("the bytes read differ from {path} at offset {at}"));
    }
}

#[test]
fn verbs_peer_refuses_a_file_longer_than_its_buffer() {
    let (_directory, path) = file("verbs-peer-long-file", (4 << 20) + 1);
    for operation in ["write", "read"] {
        let operation = format!("{operation}:{path}");
        let error =
            verbs_peers(&Appliance::start(), "verbs-peer-long", &["serve", "1"], &[&operation]);
        assert_eq!(error.unwrap_err(), format!("{path} is longer than 4194304 bytes"));
    }
}

#[test]
fn verbs_peer_checks_the_private_data_of_a_rejection() {
    let reject = |operation| {
        verbs_peers(&Appliance::start(), "verbs-peer-reject", &["reject", "busy"], &[operation])
    };
    assert_eq!(reject("rejected:busy").unwrap(), "rejected with busy\n");
    assert!(reject("rejected:full").unwrap_err().starts_with("not rejected with full"));
}

//! Tests that run both sides of each Rust example with the test appliance, which listens at a path.

use std::net::SocketAddr;

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

/// Runs both sides of an example, and returns the output of the server and of the client.
fn both<E: std::fmt::Debug + Send>(
    name: &str,
    run: impl Fn(&[String], &mut Vec<u8>) -> Result<(), E> + Sync,
    serve: &[&str],
    connect: &[&str],
) -> (String, String) {
    let (appliance, directory) = (Appliance::start(), TempDirectory::new(name));
    let path = directory.socket();
    appliance.listen(&path);
    let address: SocketAddr = "10.0.0.2:4000".parse().unwrap();
    let run = |arguments: &[&str]| {
        let mut words =
            vec![path.to_str().unwrap().into(), arguments[0].into(), address.to_string()];
        words.extend(arguments[1..].iter().map(|word| word.to_string()));
        let mut output = Vec::new();
        run(&words, &mut output).unwrap();
        String::from_utf8(output).unwrap()
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

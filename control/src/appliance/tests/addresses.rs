//! Active opens to peers with several addresses: attempted addresses, their order, and reported errors.

use api::{
    BenchLoad, BenchPeer, BenchSpec, ConnectSpec, ErrorKind, JobInfo, PingSpec, PutSpec,
    RemotePlace, Via,
};
use dataplane::{Connect, ConnectError};

use super::rdmap::rdmap_spec;
use super::*;

/// Two interfaces with IPv6. The first interface also has a route.
const TWO: &str = r#"
[workers]
count = 2
[[port]]
name = "p"
kind = "ring"
link = "l"
[[port]]
name = "q"
kind = "ring"
link = "m"
[[interface]]
name = "front"
port = "p"
addresses = ["10.0.0.1/24", "fd00::1/64"]
routes = [{ to = "198.51.100.0/24", via = "10.0.0.254" }]
[[interface]]
name = "back"
port = "q"
addresses = ["10.1.0.1/24", "fd01::1/64"]
[[region]]
name = "own"
size = "64 KiB"
access = "w"
[management]
bench = true
"#;

const ON_LINK: &str = "10.0.0.9:7471";
const BACK: &str = "[fd01::9]:7471";
const ROUTED: &str = "198.51.100.9:7471";
const NOWHERE: &str = "[fd09::9]:7471";

fn connect_spec(addresses: &[&str]) -> ConnectSpec {
    let mut addresses = addresses.iter().map(|address| address.parse().unwrap());
    let first = addresses.next().unwrap();
    ConnectSpec { alternatives: addresses.collect(), ..ConnectSpec::to_remote(first) }
}

/// Returns the active open that was sent to the workers since the last call, if any. Panics if there are several.
fn take_connect(bench: &mut Bench) -> Option<Box<Connect>> {
    let all = bench.acknowledge().into_iter().filter_map(|command| match command {
        Command::Connect(connect) => Some(connect),
        _ => None,
    });
    let mut all: Vec<_> = all.collect();
    assert!(all.len() < 2, "{all:?}");
    all.pop()
}

fn fail(bench: &mut Bench, connect: &Connect, reason: ConnectError) {
    bench.event(Event::ConnectFailed { ticket: connect.ticket, reason });
}

fn refused_error() -> ConnectError {
    ConnectError::Closed(CloseReason::ConnectRefused.into())
}

/// Answers every attempt of an active open with a refusal. Returns the attempts (address and interface), and the error.
fn attempts(bench: &mut Bench, spec: ConnectSpec) -> (Vec<(String, u16)>, ApiError) {
    let mut pending = bench.call(Request::Connect(spec));
    let mut tried = Vec::new();
    while let Some(connect) = take_connect(bench) {
        assert!(is_unanswered(&mut pending));
        tried.push((connect.remote.to_string(), connect.interface.0));
        fail(bench, &connect, refused_error());
    }
    (tried, answer(&mut pending).unwrap_err())
}

#[test]
fn on_link_addresses_precede_routed_and_unreachable_are_named() {
    let mut bench = bench_with(TWO);
    let (tried, error) = attempts(&mut bench, connect_spec(&[NOWHERE, ROUTED, BACK, ON_LINK]));
    let in_order = [(BACK, 1), (ON_LINK, 0), (ROUTED, 0)];
    assert_eq!(tried, in_order.map(|(address, at)| (address.to_owned(), at)));
    let refused = |address: &str| format!("{address}: TCP connection refused by the peer");
    let each = [
        format!("{NOWHERE} was not tried: no interface has a route to fd09::9"),
        refused(BACK),
        refused(ON_LINK),
        refused(ROUTED),
    ];
    let sentence = "none of the peer's 4 addresses can be reached: ";
    assert_eq!(error.message, format!("{sentence}{}", each.join("; ")));
    assert_eq!(error.error, ErrorKind::PeerRefused);
    assert!(error.hint.is_some());
    assert_eq!(bench.core.env().tally.connect_failed, 3);
    // The error of a single address is reported unchanged.
    let (tried, error) = attempts(&mut bench, connect_spec(&[ON_LINK]));
    assert_eq!((tried.len(), error.message), (1, refused(ON_LINK)));
    let (tried, error) = attempts(&mut bench, connect_spec(&[NOWHERE]));
    assert_eq!((tried.len(), error.error), (0, ErrorKind::BadRequest));
    assert_eq!(error.message, "no interface has a route to fd09::9");
}

#[test]
fn silent_address_leaves_time_for_the_others() {
    let mut bench = bench_with(TWO);
    let _pending = bench.call(Request::Connect(connect_spec(&[ON_LINK, BACK])));
    let first = take_connect(&mut bench).unwrap();
    assert_eq!(first.timeout, Duration::from_secs(5));
    bench.advance(Duration::from_secs(5));
    fail(&mut bench, &first, ConnectError::Timeout(dataplane::ConnectStage::SynAck));
    let second = take_connect(&mut bench).unwrap();
    assert_eq!((second.remote.to_string().as_str(), second.interface.0), (BACK, 1));
    assert_eq!(second.timeout, Duration::from_secs(25));
    let _pending = bench.call(Request::Connect(connect_spec(&[ON_LINK])));
    assert_eq!(take_connect(&mut bench).unwrap().timeout, Duration::from_secs(30));
}

#[test]
fn second_address_gets_stream_with_regions_of_the_connect() {
    let mut bench = bench_with(TWO);
    let spec = ConnectSpec { regions: vec!["own".into()], ..connect_spec(&[ON_LINK, BACK]) };
    let mut pending = bench.call(Request::Connect(spec.clone()));
    bench.load_all();
    let first = take_connect(&mut bench).unwrap();
    fail(&mut bench, &first, refused_error());
    let busy = answer(&mut bench.call(Request::Connect(spec)));
    assert!(busy.is_err(), "the region is reserved between the attempts");
    let second = take_connect(&mut bench).unwrap();
    assert_eq!(second.private_data, first.private_data);
    bench.event(Event::Established {
        stream: StreamId(5),
        ticket: Some(second.ticket),
        private_data: vec![],
        params: PARAMS,
        local: "[fd01::1]:50000".parse().unwrap(),
        remote: second.remote,
    });
    assert!(is_unanswered(&mut pending), "the worker is commanded to connect");
    assert!(bench.is_logged(|kind| matches!(kind,
        EventKind::StreamEstablished { remote, .. } if remote == BACK)));
    assert!(bench.is_logged(|kind| matches!(kind,
        EventKind::StreamRefused { remote, .. } if remote == ON_LINK)));
}

#[test]
fn peer_reject_and_local_failure_try_no_other_address() {
    let rejected = CloseReason::RejectedByPeer { private_data: vec![], enhanced: None };
    let sctp =
        sctp_lite::endpoint::CloseReason::RejectedByPeer { private_data: vec![], enhanced: None };
    for reason in [
        ConnectError::Closed(rejected.into()),
        ConnectError::Closed(sctp.into()),
        ConnectError::TooManyStreams,
        ConnectError::NoUdpPort,
    ] {
        let mut bench = bench_with(TWO);
        let mut pending = bench.call(Request::Connect(connect_spec(&[ON_LINK, BACK])));
        let first = take_connect(&mut bench).unwrap();
        fail(&mut bench, &first, reason.clone());
        let error = answer(&mut pending).unwrap_err();
        assert!(error.message.starts_with(ON_LINK), "{error}");
        assert!(take_connect(&mut bench).is_none(), "{reason}");
    }
}

#[test]
fn disconnected_client_and_drain_try_no_other_address() {
    let mut bench = bench_with(TWO);
    drop(bench.call(Request::Connect(connect_spec(&[ON_LINK, BACK]))));
    let first = take_connect(&mut bench).unwrap();
    fail(&mut bench, &first, refused_error());
    assert!(take_connect(&mut bench).is_none());
    let mut pending = bench.call(Request::Connect(connect_spec(&[ON_LINK, BACK])));
    let first = take_connect(&mut bench).unwrap();
    bench.call(Request::Drain);
    fail(&mut bench, &first, refused_error());
    assert!(take_connect(&mut bench).is_none());
    assert!(answer(&mut pending).is_err());
}

// RFC 4007 §6: a link-local address is valid on one link only.
#[test]
fn ambiguous_link_local_address_requires_interface() {
    const PEER: &str = "[fe80::9]:7471";
    let mut bench = bench_with(TWO);
    let (tried, error) = attempts(&mut bench, connect_spec(&[PEER]));
    assert!(tried.is_empty());
    assert_eq!(error.error, ErrorKind::BadRequest);
    let sentence = "fe80::9 is a link-local address, and several interfaces have IPv6: name one of front, back as \
                    its zone, such as [fe80::9%25front]";
    assert_eq!(error.message, sentence);
    let of = |name: &str| ConnectSpec { interface: Some(name.into()), ..connect_spec(&[PEER]) };
    assert_eq!(attempts(&mut bench, of("back")).0, [(PEER.to_owned(), 1)]);
    let error = attempts(&mut bench, of("side")).1;
    assert_eq!(error.message, "there is no interface `side`: the interfaces are front, back");
    let mut one = bench_with(&TWO.replace(", \"fd01::1/64\"", ""));
    assert_eq!(attempts(&mut one, connect_spec(&[PEER])).0, [(PEER.to_owned(), 0)]);
    let error = attempts(&mut one, of("back")).1;
    assert_eq!(error.message, "interface `back` has no route to fe80::9");
    // Another address of the same peer can still be tried.
    assert_eq!(attempts(&mut bench, connect_spec(&[PEER, ON_LINK])).0, [(ON_LINK.to_owned(), 0)]);
}

#[test]
fn own_addresses_are_reached_through_their_interface() {
    let mut bench = bench_with(TWO);
    for (address, interface) in [("10.0.0.1:7", 0), ("[fd01::1]:7", 1)] {
        assert_eq!(attempts(&mut bench, connect_spec(&[address])).0, [(address.into(), interface)]);
    }
    // An address of the other end of a ring is reached over the ring, unless the request names that end's interface.
    let peers = TWO.replace("\"m\"", "\"l\"").replace("10.1.0.1/24", "10.0.0.3/24");
    let mut ring = bench_with(&peers);
    let own = "10.0.0.3:7";
    assert_eq!(attempts(&mut ring, connect_spec(&[own])).0, [(own.to_owned(), 0)]);
    let named = ConnectSpec { interface: Some("back".into()), ..connect_spec(&[own]) };
    assert_eq!(attempts(&mut ring, named).0, [(own.to_owned(), 1)]);
    // Ports other than rings lead to other networks, so the appliance's own address is reached through the interface
    // that has it.
    let wire = peers.replace("kind = \"ring\"\nlink = \"l\"", "kind = \"tap\"\ndevice = \"t\"");
    let wire = wire.replacen("\"t\"", "\"u\"", 1);
    let mut wire = bench_with(&wire);
    assert_eq!(attempts(&mut wire, connect_spec(&[own])).0, [(own.to_owned(), 1)]);
}

#[test]
fn addresses_of_no_remote_host_are_refused_with_reason() {
    let mut bench = bench_with(TWO);
    for (address, sentence) in [
        ("127.0.0.1:7", "127.0.0.1 is a loopback address, which no other host has"),
        ("224.0.0.1:7", "224.0.0.1 is a multicast address, not that of one host"),
        ("[::]:7", ":: is the unspecified address, which no host has"),
        (
            "[::ffff:10.0.0.9]:7",
            "::ffff:10.0.0.9 is an IPv4 address in the form of IPv6: write 10.0.0.9",
        ),
        ("255.255.255.255:7", "255.255.255.255 is the broadcast address, not that of one host"),
        ("10.0.0.255:7", "10.0.0.255 is the broadcast address of 10.0.0.0/24, interface `front`"),
        ("10.0.0.9:0", "the peer's port is 0: it is 1 to 65535"),
    ] {
        let (tried, error) = attempts(&mut bench, connect_spec(&[address]));
        assert_eq!((tried.len(), error.error), (0, ErrorKind::BadRequest), "{address}");
        assert_eq!(error.message, sentence);
    }
    // Distributions write 127.0.1.1 for this host's name into /etc/hosts. This address is skipped, and the others are
    // tried.
    let (tried, error) = attempts(&mut bench, connect_spec(&["127.0.1.1:7471", ON_LINK]));
    assert_eq!(tried, [(ON_LINK.to_owned(), 0)]);
    assert!(
        error.message.contains("127.0.1.1:7471 was not tried: 127.0.1.1 is a loopback"),
        "{error}"
    );
    let many = ["10.0.0.9:7"; 33];
    let error = attempts(&mut bench, connect_spec(&many)).1;
    assert_eq!(error.message, "the peer has 33 addresses: at most 32 are taken");
}

/// Establishes the last active open as stream `id`. Returns the address that was tried.
fn establish(bench: &mut Bench, id: u64) -> String {
    let connect = take_connect(bench).unwrap();
    bench.event(Event::Established {
        stream: StreamId(id),
        ticket: Some(connect.ticket),
        private_data: vec![],
        params: PARAMS,
        local: "[fd01::1]:50000".parse().unwrap(),
        remote: connect.remote,
    });
    connect.remote.to_string()
}

fn job(bench: &mut Bench, id: u64) -> JobInfo {
    let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::Job(id))) else { panic!("no job") };
    info
}

#[test]
fn job_shows_the_answering_address() {
    let mut bench = bench_with(TWO);
    let file = bench.dir.path().join("file");
    std::fs::write(&file, [7; 100]).unwrap();
    let via = Via::Connect(connect_spec(&[ON_LINK, BACK]));
    let target = RemotePlace::Tagged { stag: 1, to: 0 };
    let mut pending = bench.call(Request::Put(PutSpec { file: Some(file), via, target }));
    let Ok(Reply::Job(info)) = answer(&mut pending) else { panic!("no job") };
    bench.load_all();
    let first = take_connect(&mut bench).unwrap();
    fail(&mut bench, &first, refused_error());
    assert_eq!(establish(&mut bench, 5), BACK);
    assert_eq!(job(&mut bench, info.id).remote, BACK);
}

#[test]
fn bench_reuses_the_answering_address() {
    let mut bench = bench_with(TWO);
    let spec = BenchSpec {
        load: BenchLoad::Send,
        connect: connect_spec(&[ON_LINK, BACK]),
        target: None,
        peer: BenchPeer::Appliance,
        queue: 0,
        streams: 2,
        size: 100,
        depth: 1,
        time_us: 1_000_000,
        rate: None,
    };
    let Ok(Reply::Job(info)) = answer(&mut bench.call(Request::Bench(spec))) else { panic!() };
    let first = take_connect(&mut bench).unwrap();
    fail(&mut bench, &first, refused_error());
    assert_eq!([establish(&mut bench, 5), establish(&mut bench, 6)], [BACK, BACK]);
    assert_eq!(job(&mut bench, info.id).remote, BACK);
}

#[test]
fn ping_falls_back_to_second_address() {
    let mut bench = bench_with(TWO);
    let connect = ConnectSpec { ulp: rdmap_spec().ulp, ..connect_spec(&[ON_LINK, BACK]) };
    let spec = PingSpec { connect, count: 1, size: 1, timeout_us: 1_000_000 };
    let mut pending = bench.call(Request::Ping(spec));
    let first = take_connect(&mut bench).unwrap();
    fail(&mut bench, &first, ConnectError::Unreachable);
    let second = take_connect(&mut bench).unwrap();
    fail(&mut bench, &second, ConnectError::Timeout(dataplane::ConnectStage::SynAck));
    let error = answer(&mut pending).unwrap_err();
    assert_eq!(error.error, ErrorKind::Timeout);
    let each = format!(
        "{ON_LINK}: no answer to address resolution; {BACK}: no answer to the SYN within 30 s"
    );
    assert!(error.message.ends_with(&each), "{error}");
}

//! Links that go down, address conflicts, and faults of interfaces: reports, and streams that end.

use std::io::Write;

use api::{ConnectSpec, JobState, PutSpec, RemotePlace, Via};
use dataplane::PostFailure;

use super::*;

/// Two ports. Streams of the first port end after two seconds without link.
const TWO_PORTS: &str = r#"
[workers]
count = 2
[[port]]
name = "p"
kind = "ring"
link = "l"
link_down_timeout = "2 s"
[[port]]
name = "q"
kind = "ring"
link = "m"
[[interface]]
name = "i"
port = "p"
addresses = ["10.0.0.1/24"]
[[interface]]
name = "j"
port = "q"
addresses = ["10.1.0.1/24"]
[[region]]
name = "own"
size = "64 KiB"
access = "w"
[[listener]]
name = "in"
interface = "i"
port = 7471
regions = ["own"]
"#;

fn changes(bench: &Bench) -> Vec<(String, bool)> {
    let changes = bench.logged_events(|kind| matches!(kind, EventKind::LinkChanged { .. }));
    let change = |kind| match kind {
        EventKind::LinkChanged { port, up } => Some((port, up)),
        _ => None,
    };
    changes.into_iter().filter_map(change).collect()
}

fn link(bench: &mut Bench, port: usize, up: bool) {
    bench.core.on_link(port, up, bench.now);
}

fn aborts(commands: &[Command]) -> Vec<u64> {
    let abort = |command: &Command| match command {
        Command::Close { stream, abort: true } => Some(stream.0),
        _ => None,
    };
    commands.iter().filter_map(abort).collect()
}

#[test]
fn only_link_changes_are_logged() {
    let mut bench = bench_with(TWO_PORTS);
    link(&mut bench, 0, true);
    assert_eq!(changes(&bench), [], "a link that is up from the start causes no event");
    for up in [false, false, true, true, false] {
        link(&mut bench, 0, up);
    }
    let p = |up| ("p".to_owned(), up);
    assert_eq!(changes(&bench), [p(false), p(true), p(false)]);
}

#[test]
fn lasting_link_down_ends_streams_and_frees_their_region() {
    let mut bench = bench_with(TWO_PORTS);
    bench.accept_stream(1, "10.0.0.2");
    assert_eq!(bench.core.regions()["own"].bound(), Some(StreamId(1)));
    link(&mut bench, 0, false);
    bench.now += Duration::from_millis(1999);
    link(&mut bench, 0, false);
    assert_eq!(bench.all_commands().len(), 0, "the link may come up again");
    bench.now += Duration::from_millis(1);
    link(&mut bench, 0, false);
    assert_eq!(aborts(&bench.all_commands()), [1]);
    link(&mut bench, 0, false);
    assert_eq!(bench.all_commands().len(), 0, "no second abort");
    bench.close_stream(1, CloseReason::LocalAbort);
    bench.acknowledge();
    assert_eq!(bench.core.regions()["own"].bound(), None);
    let logged = |kind: &EventKind| {
        matches!(kind, EventKind::StreamClosed { reason, .. }
            if reason == "the link of port `p` is down")
    };
    assert!(bench.is_logged(logged));
}

#[test]
fn brief_or_other_ports_link_down_ends_no_stream() {
    let mut bench = bench_with(TWO_PORTS);
    bench.accept_stream(1, "10.0.0.2");
    link(&mut bench, 1, false);
    bench.now += Duration::from_secs(3600);
    link(&mut bench, 1, false);
    for up in [false, true, false] {
        link(&mut bench, 0, up);
        bench.now += Duration::from_millis(1500);
    }
    assert_eq!(bench.all_commands().len(), 0, "neither outage was two seconds long");
}

#[test]
fn stream_ended_before_link_down_keeps_its_reason() {
    let mut bench = bench_with(TWO_PORTS);
    bench.accept_stream(1, "10.0.0.2");
    link(&mut bench, 0, false);
    bench.now += Duration::from_secs(2);
    link(&mut bench, 0, false);
    bench.close_stream(1, CloseReason::Lower(TcpReason::PeerReset));
    let logged = |kind: &EventKind| matches!(kind, EventKind::StreamClosed { reason, .. } if reason.contains("reset"));
    assert!(bench.is_logged(logged));
}

/// A connect on a port whose link is down, or was never up, is refused, so that the client does not wait for a
/// time-out.
#[test]
fn connect_on_link_down_is_refused_at_once() {
    let mut bench = bench_with(TWO_PORTS);
    let connects = |bench: &mut Bench| {
        let mut pending = bench.call(Request::Connect(ConnectSpec::to_remote(remote("10.0.0.9"))));
        match bench.all_commands().iter().any(|c| matches!(c, Command::Connect(_))) {
            true => None,
            false => Some(answer(&mut pending).unwrap_err()),
        }
    };
    for (up, wait) in [(false, 0), (false, 3), (true, 0), (false, 1), (false, 1), (true, 0)] {
        link(&mut bench, 0, up);
        bench.now += Duration::from_secs(wait);
        link(&mut bench, 0, up);
        let refused = connects(&mut bench);
        assert_eq!(refused.is_none(), up, "{wait} s");
        if let Some(refused) = refused {
            assert_eq!(refused.message, "the link of port `p` is down (interface `i`)");
            assert!(refused.hint.is_some_and(|hint| hint.contains("ddpctl ports")));
        }
    }
    // The link of another port has no effect.
    link(&mut bench, 1, false);
    assert_eq!(connects(&mut bench), None);
}

/// The link is down before the put over TCP or SCTP starts, or goes down while it connects.
#[test]
fn put_on_link_down_fails_with_that_cause() {
    use dataplane::{ConnectError, ConnectStage};
    let sentence = "the link of port `p` is down (interface `i`)";
    for (transport, reason) in [
        (config::Transport::Tcp, ConnectError::Unreachable),
        (config::Transport::Sctp, ConnectError::Timeout(ConnectStage::InitAck)),
    ] {
        for goes_down in [false, true] {
            let mut bench = bench_with(TWO_PORTS);
            link(&mut bench, 0, goes_down);
            let path = bench.dir.path().join("payload");
            std::fs::File::create(&path).unwrap().write_all(&[7; 10]).unwrap();
            let target = RemotePlace::Tagged { stag: 9, to: 0 };
            let spec = ConnectSpec { transport, ..ConnectSpec::to_remote(remote("10.0.0.9")) };
            let put = PutSpec { file: Some(path), via: Via::Connect(spec), target };
            let mut pending = bench.call(Request::Put(put));
            let Ok(Reply::Job(job)) = answer(&mut pending) else { panic!("no job") };
            bench.load_all();
            let connect = bench.all_commands().into_iter().find_map(|command| match command {
                Command::Connect(connect) => Some(connect.ticket),
                _ => None,
            });
            assert_eq!(connect.is_some(), goes_down);
            if let Some(ticket) = connect {
                // The link goes down while the next hop is resolved, or while the INIT is unanswered.
                link(&mut bench, 0, false);
                bench.event(Event::ConnectFailed { ticket, reason: reason.clone() });
            }
            let info = bench.core.jobs().info(bench.core.env(), job.id, bench.now).unwrap();
            assert_eq!((info.state, info.error.as_deref()), (JobState::Failed, Some(sentence)));
            assert!(info.hint.is_some());
        }
    }
}

/// The remedy depends on the kind of port, and names the port's device.
#[test]
fn remedy_of_a_link_that_is_down_names_the_device() {
    let remedy = |kind: &str| {
        let text = TWO_PORTS.replacen("kind = \"ring\"\nlink = \"l\"", kind, 1);
        let file = std::path::Path::new("t.toml");
        let config = config::Document::parse(file, &text).unwrap().config;
        crate::appliance::device_faults::remedy(&config.ports[0])
    };
    for (kind, want) in [
        ("kind = \"af_packet\"\ndevice = \"eth0\"", "`ip link set eth0 up`"),
        ("kind = \"af_xdp\"\ndevice = \"eth0\"", "`ip link set eth0 up`"),
        ("kind = \"tap\"\ndevice = \"eth0\"", "`ip link set eth0 up`"),
        ("kind = \"memif\"\nsocket = \"/run/m\"\nrole = \"client\"", "the other end of /run/m"),
        ("kind = \"vhost-user\"\nsocket = \"/run/v\"", "the other end of /run/v"),
        ("kind = \"pci\"\naddress = \"0000:03:00.0\"", "the cable of 0000:03:00.0"),
        ("kind = \"ring\"\nlink = \"l\"", "ddpctl ports"),
    ] {
        assert!(remedy(kind).contains(want), "{}", remedy(kind));
    }
}

/// The job fails when its stream has ended. Its error is the cause of that end, not a refusal by the peer.
#[test]
fn job_fails_with_lost_link_as_cause() {
    let mut bench = bench_with(TWO_PORTS);
    let path = bench.dir.path().join("payload");
    std::fs::File::create(&path).unwrap().write_all(&[7; 10]).unwrap();
    let target = RemotePlace::Tagged { stag: 9, to: 0 };
    bench.accept_stream(1, "10.0.0.2");
    let via = Via::Stream(api::StreamId(1));
    let mut pending = bench.call(Request::Put(PutSpec { file: Some(path), via, target }));
    let Ok(Reply::Job(job)) = answer(&mut pending) else { panic!("no job") };
    bench.load_all();
    let ticket = bench.all_commands().into_iter().find_map(|command| match command {
        Command::Post { ticket, .. } => Some(ticket),
        _ => None,
    });
    link(&mut bench, 0, false);
    bench.now += Duration::from_secs(2);
    link(&mut bench, 0, false);
    let (stream, reason) = (StreamId(1), PostFailure::Flushed);
    bench.event(Event::PostFailed { stream, ticket: ticket.expect("a post"), reason });
    assert_eq!(
        bench.core.jobs().info(bench.core.env(), job.id, bench.now).unwrap().state,
        JobState::Running
    );
    bench.close_stream(1, CloseReason::LocalAbort);
    let info = bench.core.jobs().info(bench.core.env(), job.id, bench.now).unwrap();
    let sentence = "the stream has ended: the link of port `p` is down";
    assert_eq!((info.state, info.error.as_deref()), (JobState::Failed, Some(sentence)));
    assert!(!info.refused);
    bench.acknowledge(); // the region is free again
    assert!(bench.core.env().is_answered(), "no ticket is outstanding");
}

/// Another host uses our address: a note exists while workers report the conflict, and each report is an event.
#[test]
fn conflicts_of_addresses_are_noted_while_they_last() {
    let mut bench = bench_with(TWO_PORTS);
    let notes = |bench: &Bench| bench.core.status(bench.now).notes.len();
    let conflict = |interface: u16| Event::AddressConflict {
        interface: InterfaceId(interface),
        address: "10.0.0.1".parse().unwrap(),
        mac: [2, 0, 0, 0, 0, 9],
    };
    for _ in 0..5 {
        bench.event(conflict(0));
        assert_eq!(
            bench.core.status(bench.now).notes,
            [
                "interface i: 10.0.0.1 is also used by the host 02:00:00:00:00:09: peers may reach that one instead; give \
             one of them another address"
            ]
        );
        bench.now += Duration::from_secs(10);
    }
    let logged = bench.logged_events(|kind| matches!(kind, EventKind::AddressConflict { .. }));
    assert_eq!(logged.len(), 5);
    assert_eq!(logged[0].severity(), api::Severity::Warning);
    bench.now += Duration::from_secs(24);
    assert_eq!(notes(&bench), 1);
    bench.now += Duration::from_secs(1);
    assert_eq!(notes(&bench), 0);
    // An unknown interface has no effect.
    bench.event(conflict(9));
    assert_eq!(notes(&bench), 0);
    link(&mut bench, 1, false);
    assert_eq!(bench.core.status(bench.now).notes, ["port q: the link is down"]);
    link(&mut bench, 1, true);
    assert_eq!(notes(&bench), 0);
}

/// A fatal fault of an interface causes an event. While it lasts, there is a note, and the appliance is not ready.
#[test]
fn port_without_its_interface_is_noted_and_not_ready() {
    use dataplane::port::DeviceFault;
    let mut bench = bench_with(TWO_PORTS);
    let status = |bench: &Bench| {
        let status = bench.core.status(bench.now);
        (status.notes, status.unusable)
    };
    let sentence = |text: &str| text.to_owned();
    let missing = sentence("port p: there is no interface eth0 any more");
    for _ in 0..3 {
        bench.core.on_fault(0, Some((DeviceFault::Missing, missing.clone())));
    }
    assert_eq!(status(&bench), (vec![missing.clone()], vec![missing]));
    let low = sentence("port p: the interface eth0 has MTU 1400");
    bench.core.on_fault(0, Some((DeviceFault::Mtu(1400), low.clone())));
    assert_eq!(status(&bench), (vec![low], vec![]));
    bench.core.on_fault(0, None);
    assert_eq!(status(&bench), (vec![], vec![]));
    let logged = bench.logged_events(|kind| matches!(kind, EventKind::Warning { .. }));
    assert_eq!(logged.len(), 2, "once for each fault");
}

/// Each `UnfinishedChecksums` event of a host renews its note, which names the `ethtool` command. At most 8 notes
/// exist, for any number of hosts.
#[test]
fn unfinished_checksums_are_noted_while_they_last_and_bounded() {
    let mut bench = bench_with(TWO_PORTS);
    let report = |host: u8| Event::UnfinishedChecksums {
        port: dataplane::PortId(0),
        source: [10, 0, 0, host].into(),
    };
    for _ in 0..4 {
        bench.event(report(2));
        bench.now += Duration::from_secs(10);
    }
    let notes = bench.core.status(bench.now).notes;
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.starts_with("port p: packets of 10.0.0.2 come without checksums"), "{note}");
    assert!(note.contains("`ethtool -K PEER tx off gso off tso off`"), "{note}");
    assert_eq!(bench.logged_events(|kind| matches!(kind, EventKind::Warning { .. })).len(), 1);
    bench.now += Duration::from_secs(25);
    assert_eq!(bench.core.status(bench.now).notes.len(), 0);
    (0..100).for_each(|host| bench.event(report(host)));
    assert_eq!(bench.core.status(bench.now).notes.len(), 8);
}

/// The sentence contains the remedy for ports that cannot be bound again.
#[test]
fn sentence_of_a_fault_names_the_remedy_of_its_port() {
    use dataplane::port::DeviceFault::{Down, Missing, Mtu, Replaced};

    use crate::appliance::device_faults::{Rebinding, fault_sentence, unrebindable_kind};
    let section = |kind: &str| {
        let text = TWO_PORTS.replacen("kind = \"ring\"\nlink = \"l\"", kind, 1);
        let file = std::path::Path::new("t.toml");
        config::Document::parse(file, &text).unwrap().config.ports[0].clone()
    };
    let packet = section("kind = \"af_packet\"\ndevice = \"eth0\"");
    let xdp = section("kind = \"af_xdp\"\ndevice = \"eth0\"");
    let tap = section("kind = \"tap\"\ndevice = \"eth0\"");
    let unrebindable = |section, is_supported, is_shared| {
        unrebindable_kind(section, Rebinding { is_supported, is_shared })
    };
    for (section, can, shared, fault, want) in [
        (&packet, true, false, Missing, "is bound again when the interface is back"),
        (&packet, true, false, Replaced, "tries again each second"),
        (
            &packet,
            true,
            true,
            Replaced,
            "a port that is shared with the host cannot be bound again",
        ),
        (
            &xdp,
            false,
            false,
            Replaced,
            "a port of kind af_xdp cannot be bound again: the port is down; restart ddpd",
        ),
        (&xdp, false, false, Missing, "make the interface and restart ddpd"),
        (&packet, true, true, Missing, "a port that is shared with the host cannot be bound again"),
        (&packet, true, true, Missing, "make the interface and restart ddpd"),
        (&tap, false, false, Missing, "restart ddpd, which makes it again"),
        (&tap, false, false, Replaced, "delete that one and restart ddpd, which makes its own"),
        (&packet, true, false, Down, "`ip link set eth0 up`"),
        (&packet, true, false, Mtu(1400), "`ip link set eth0 mtu 1500`"),
    ] {
        let sentence =
            fault_sentence(section, &fault, unrebindable(section, can, shared).as_deref());
        assert!(sentence.starts_with("port p: ") && sentence.contains(want), "{sentence}");
    }
}

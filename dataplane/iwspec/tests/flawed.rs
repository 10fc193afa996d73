//! Each case passes against a correct peer, and fails against a peer with any of its flaws.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use iwspec::case::{Case, Role, SEGMENTS, Transport};
use iwspec::catalogue::Catalogue;
use iwspec::device::{Permits, Service, Setup, Timing};
use iwspec::link::Target;
use iwspec::peer::flaws::Flaws;
use iwspec::peer::{Config, Peer, initiate, initiate_raw, sctp, serve, serve_raw};
use iwspec::raw::Raw;
use iwspec::raw::port::{Hub, Medium};
use iwspec::run::{Verdict, execute};

/// Flags M and C, MPA revision of the initiator, and its flags A to D.
const VARIANTS: [(bool, bool, u8, u8); 6] = [
    (false, true, 1, 0),
    (true, true, 1, 0),
    (false, false, 1, 0),
    (false, true, 2, 0),
    (false, true, 2, 10),
    (true, true, 0, 0),
];

const ANY: &str = "127.0.0.1:0";

/// Transport between tester and peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    /// TCP of the kernel
    Tcp,
    /// TCP of the raw port, on a link in memory
    Raw,
    /// SCTP in UDP
    Sctp,
}

impl Path {
    fn transport(self) -> Transport {
        match self {
            Path::Tcp | Path::Raw => Transport::Tcp,
            Path::Sctp => Transport::Sctp,
        }
    }
}

/// Returns the peers to which a case may apply.
fn variants() -> Vec<(Path, Role, Config)> {
    let mut all = vec![];
    for role in [Role::Responder, Role::Initiator] {
        for service in [
            Service::Region,
            Service::Rping,
            Service::Echo,
            Service::Sink,
            Service::Perftest,
            Service::Peer,
            Service::Ddp,
        ] {
            // The other services have no initiator.
            if role == Role::Initiator
                && !matches!(service, Service::Rping | Service::Perftest | Service::Peer)
            {
                continue;
            }
            for (markers, crc, revision, ready) in VARIANTS {
                if role == Role::Responder && revision != 1 {
                    continue;
                }
                let flaws = Flaws::default();
                let config = Config { service, markers, crc, revision, ready, flaws };
                // The raw peer has one connection at a time, perftest two.
                if service != Service::Perftest {
                    all.push((Path::Raw, role, config.clone()));
                }
                all.push((Path::Tcp, role, config));
            }
        }
    }
    for service in [Service::Region, Service::Echo, Service::Sink, Service::Ddp] {
        let flaws = Flaws::default();
        let config = Config { service, markers: false, crc: true, revision: 1, ready: 0, flaws };
        all.push((Path::Sctp, Role::Responder, config));
    }
    for (revision, ready) in [(1, 0), (2, 0), (2, 10)] {
        let (service, flaws) = (Service::Peer, Flaws::default());
        let config = Config { service, markers: false, crc: true, revision, ready, flaws };
        all.push((Path::Sctp, Role::Initiator, config));
    }
    all
}

/// Executes a case against a new peer.
fn verdict(case: &Case, path: Path, role: Role, config: &Config) -> Verdict {
    // Over TCP, cases that do not control segments run with the kernel's TCP only: the raw port is slower, and the
    // result would be the same.
    let needs_segments = case.needs.iter().any(|need| need.capability == SEGMENTS);
    if case.transport.is_some_and(|t| t != path.transport())
        || needs_segments != (path == Path::Raw)
    {
        return Verdict::NotApplicable(String::new());
    }
    let mut timing = Timing::default();
    if config.flaws.is_empty() {
        // A correct peer is never late, but this host may be busy.
        timing.step *= 10;
        timing.connect *= 4;
        timing.case *= 2;
    }
    let (target, peer) = start(path, role, config);
    let setup = Setup {
        target: Arc::new(target),
        service: config.service,
        timing,
        lane: (0, 1),
        revision: 1,
        permits: Permits::default(),
    };
    let outcome = execute(case, &setup);
    drop(peer);
    outcome.verdict
}

/// Starts a peer.
fn start(path: Path, role: Role, config: &Config) -> (Target, Peer) {
    let any: SocketAddr = ANY.parse().expect("an address");
    match (role, path) {
        (_, Path::Raw) => start_raw(role, config),
        (Role::Responder, Path::Sctp) => {
            let peer = sctp::serve(config.clone(), any).expect("a free port");
            let address = SocketAddr::new(peer.address.ip(), 7471);
            (Target::Sctp { address, udp_port: peer.address.port() }, peer)
        }
        (Role::Responder, Path::Tcp) => {
            let peer = serve(config.clone(), any).expect("a free port");
            (Target::Connect(peer.address), peer)
        }
        (Role::Initiator, Path::Sctp) => {
            let socket = UdpSocket::bind(any).expect("a free port");
            let address = socket.local_addr().expect("bound");
            let peer = sctp::initiate(config.clone(), address, 7471);
            (Target::SctpListen { socket, port: 7471 }, peer)
        }
        (Role::Initiator, Path::Tcp) => {
            let listener = TcpListener::bind(any).expect("a free port");
            listener.set_nonblocking(true).expect("a socket");
            let address = listener.local_addr().expect("bound");
            (Target::Listen(Mutex::new(listener)), initiate(config.clone(), address))
        }
    }
}

/// Starts a peer on a link in memory.
fn start_raw(role: Role, config: &Config) -> (Target, Peer) {
    let hub = Hub::default();
    let end = |last: u8| Raw {
        medium: Medium::Memory(hub.clone()),
        address: Ipv4Addr::new(192, 0, 2, last).into(),
        via: None,
        mtu: 1500,
    };
    let (tester, device) = (end(1), end(2));
    let address = SocketAddr::new(tester.address, 7471);
    match role {
        Role::Responder => {
            let peer = serve_raw(config.clone(), device, 7471);
            (Target::Raw(tester, peer.address), peer)
        }
        Role::Initiator => {
            let peer = initiate_raw(config.clone(), device, address);
            (Target::RawListen(tester, address.port()), peer)
        }
    }
}

/// Returns the errors of a case, as sentences.
fn judge(case: &Case) -> Vec<String> {
    let mut wrong = vec![];
    let mut applicable = vec![];
    let verdicts: Vec<(Path, Role, Config, Verdict)> = std::thread::scope(|scope| {
        let run = |(path, role, config): (Path, Role, Config)| {
            scope.spawn(move || {
                let verdict = verdict(case, path, role, &config);
                (path, role, config, verdict)
            })
        };
        let threads: Vec<_> = variants().into_iter().map(run).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    for (path, role, config, verdict) in verdicts {
        match verdict {
            Verdict::NotApplicable(_) => {}
            Verdict::Pass => applicable.push((path, role, config)),
            other => wrong.push(format!(
                "{} {path:?} {role:?} {config:?}: a right peer has {other:?}",
                case.id
            )),
        }
    }
    if applicable.is_empty() && wrong.is_empty() {
        wrong.push(format!("{} applies to no peer", case.id));
    }
    if case.flaws.is_empty() {
        wrong.push(format!("{} has no flaw", case.id));
    }
    for flaw in &case.flaws {
        let flaws = match Flaws::parse(flaw) {
            Ok(flaws) => flaws,
            Err(e) => {
                wrong.push(format!("{}: {e}", case.id));
                continue;
            }
        };
        let detected = applicable.iter().any(|(path, role, config)| {
            let config = Config { flaws: flaws.clone(), ..config.clone() };
            matches!(verdict(case, *path, *role, &config), Verdict::Fail(_))
        });
        if !detected && !applicable.is_empty() {
            wrong.push(format!("{} does not detect `{flaw}`", case.id));
        }
    }
    wrong
}

#[test]
fn every_case_detects_its_flaws_and_passes_a_right_peer() {
    let mut catalogue = Catalogue::built_in().expect("good files");
    // IWSPEC_ADD=FILE,FILE adds cases without a new build.
    for file in std::env::var("IWSPEC_ADD").iter().flat_map(|files| files.split(',')) {
        catalogue.add_file(std::path::Path::new(file)).expect("a good file");
    }
    // IWSPEC_CASES=ID,ID selects cases.
    if let Ok(some) = std::env::var("IWSPEC_CASES") {
        catalogue.select(&some.split(',').map(String::from).collect::<Vec<_>>()).expect("cases");
    }
    let cases = catalogue.cases;
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = judge(case);
                    wrong.lock().expect("no panic").extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

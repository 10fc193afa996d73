//! Each case passes against a correct peer, and fails against a peer with any of its flaws.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use iwspec::case::{Case, Role, Transport};
use iwspec::catalogue::Catalogue;
use iwspec::device::{Permits, Service, Setup, Timing};
use iwspec::link::Target;
use iwspec::peer::flaws::Flaws;
use iwspec::peer::{Config, Peer, initiate, sctp, serve};
use iwspec::run::{Verdict, execute};

/// Flags M and C, MPA revision of the initiator, and its flags A to D.
const VARIANTS: [(bool, bool, u8, u8); 5] = [
    (false, true, 1, 0),
    (true, true, 1, 0),
    (false, false, 1, 0),
    (false, true, 2, 0),
    (false, true, 2, 10),
];

const ANY: &str = "127.0.0.1:0";

/// Returns the peers to which a case may apply.
fn variants() -> Vec<(Transport, Role, Config)> {
    let mut all = vec![];
    for role in [Role::Responder, Role::Initiator] {
        for service in [
            Service::Region,
            Service::Rping,
            Service::Echo,
            Service::Sink,
            Service::Perftest,
            Service::Peer,
        ] {
            // The other services have no initiator.
            if role == Role::Initiator
                && !matches!(service, Service::Rping | Service::Perftest | Service::Peer)
            {
                continue;
            }
            for (markers, crc, revision, ready) in VARIANTS {
                if role == Role::Responder && revision == 2 {
                    continue;
                }
                all.push((
                    Transport::Tcp,
                    role,
                    Config { service, markers, crc, revision, ready, flaws: Flaws::default() },
                ));
            }
        }
    }
    for service in [Service::Region, Service::Echo, Service::Sink] {
        let flaws = Flaws::default();
        let config = Config { service, markers: false, crc: true, revision: 1, ready: 0, flaws };
        all.push((Transport::Sctp, Role::Responder, config));
    }
    all
}

/// Executes a case against a new peer.
fn verdict(case: &Case, transport: Transport, role: Role, config: &Config) -> Verdict {
    if case.transport.is_some_and(|t| t != transport) {
        return Verdict::NotApplicable(String::new());
    }
    let mut timing = Timing::default();
    if config.flaws.is_empty() {
        // A correct peer is never late, but this host may be busy.
        timing.step *= 10;
        timing.connect *= 4;
        timing.case *= 2;
    }
    let any: SocketAddr = ANY.parse().expect("an address");
    let (target, peer): (Target, Peer) = match role {
        Role::Responder if transport == Transport::Sctp => {
            let peer = sctp::serve(config.clone(), any).expect("a free port");
            let address = SocketAddr::new(peer.address.ip(), 7471);
            (Target::Sctp { address, udp_port: peer.address.port() }, peer)
        }
        Role::Responder => {
            let peer = serve(config.clone(), any).expect("a free port");
            (Target::Connect(peer.address), peer)
        }
        Role::Initiator => {
            let listener = TcpListener::bind(any).expect("a free port");
            listener.set_nonblocking(true).expect("a socket");
            let address = listener.local_addr().expect("bound");
            (Target::Listen(Mutex::new(listener)), initiate(config.clone(), address))
        }
    };
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

/// Returns the errors of a case, as sentences.
fn judge(case: &Case) -> Vec<String> {
    let mut wrong = vec![];
    let mut applicable = vec![];
    let verdicts: Vec<(Transport, Role, Config, Verdict)> = std::thread::scope(|scope| {
        let run = |(transport, role, config): (Transport, Role, Config)| {
            scope.spawn(move || {
                let verdict = verdict(case, transport, role, &config);
                (transport, role, config, verdict)
            })
        };
        let threads: Vec<_> = variants().into_iter().map(run).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    for (transport, role, config, verdict) in verdicts {
        match verdict {
            Verdict::NotApplicable(_) => {}
            Verdict::Pass => applicable.push((transport, role, config)),
            other => wrong.push(format!(
                "{} {transport:?} {role:?} {config:?}: a right peer has {other:?}",
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
        let detected = applicable.iter().any(|(transport, role, config)| {
            let config = Config { flaws: flaws.clone(), ..config.clone() };
            matches!(verdict(case, *transport, *role, &config), Verdict::Fail(_))
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

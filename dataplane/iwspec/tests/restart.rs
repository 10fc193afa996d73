//! A perftest server that ends with its client and is started again: a case reaches the next server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use iwspec::case::parse;
use iwspec::device::{Permits, Service, Setup, Timing};
use iwspec::link::Target;
use iwspec::peer::flaws::Flaws;
use iwspec::peer::{Config, serve};
use iwspec::run::{Verdict, execute};

const CASE: &str = "case mpa/0-1 MUST\nsection none\ntext A Request is answered.\nopen\n\
                    send request rev=1\nexpect reply reject=off\n";

/// Copies bytes until the sender closes.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other side may have closed already.
    let _ = to.shutdown(Shutdown::Write);
}

/// Accepts connections: closes the first `ending`, and forwards later ones to `server`.
fn front(ending: usize, server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for (index, client) in listener.incoming().map_while(Result::ok).enumerate() {
            if index < ending {
                continue;
            }
            let Ok(server) = TcpStream::connect(server) else { return };
            let (client_end, server_end) =
                (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
            std::thread::spawn(move || copy(client, server));
            std::thread::spawn(move || copy(server_end, client_end));
        }
    });
    address
}

#[test]
fn case_waits_for_the_next_perftest_server() {
    let config = Config {
        service: Service::Perftest,
        markers: false,
        crc: true,
        revision: 1,
        ready: 0,
        flaws: Flaws::default(),
    };
    let peer = serve(config, "127.0.0.1:0".parse().expect("an address")).expect("a free port");
    for ending in [0, 3] {
        let setup = Setup {
            target: Arc::new(Target::Connect(front(ending, peer.address))),
            service: Service::Perftest,
            timing: Timing { restart: Timing::default().case, ..Timing::default() },
            lane: (0, 1),
            revision: 1,
            permits: Permits::default(),
        };
        let case = parse("mpa/x", CASE).expect("a case").cases.remove(0);
        assert_eq!(execute(&case, &setup).verdict, Verdict::Pass, "{ending} ending servers");
    }
}

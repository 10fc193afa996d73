//! Transfers over kernel sockets on the loopback interface, and faults of the peer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use ddp::{ErrorCode, RegionMemory};
use tcp_lite::mpa::{Config, ForeignProtocol, Revision};

use super::channel::Channel;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const BASE_TO: u64 = 0x1_0000_0000;

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect()
}

fn file(dir: &Path, len: usize) -> PathBuf {
    let path = dir.join("source");
    std::fs::write(&path, bytes(len)).expect("written");
    path
}

fn listen_config(address: SocketAddr, mpa: Config, len: u64) -> ListenConfig {
    ListenConfig {
        address,
        mpa,
        region: RegionSpec { name: "ingest".into(), len, stag: None, base_to: BASE_TO, file: None },
        idle_timeout: TIMEOUT,
        connections: Some(1),
    }
}

fn request(file: PathBuf, address: SocketAddr, target: Target, mpa: MpaOptions) -> PutRequest {
    PutRequest {
        file,
        host: address.ip().to_string(),
        port: address.port(),
        target,
        mpa,
        timeout: TIMEOUT,
        total_timeout: None,
        congestion: None,
    }
}

fn region(offset: u64) -> Target {
    Target::Region { name: "ingest".into(), offset }
}

/// Results of a listener and of its client.
struct ServeResult<T> {
    result: T,
    memory: KernelMemory,
    served: ServeTotals,
    events: Vec<ServeEvent>,
}

/// Runs a listener until its connections have ended, and concurrently `client` with the listener's address and STag.
fn with_listener<T: Send>(
    config: ListenConfig,
    client: impl FnOnce(SocketAddr, u32) -> T + Send,
) -> ServeResult<T> {
    let mut listener = Listener::bind(config).expect("bound");
    let memory = listener.memory().clone();
    let (address, stag) = (listener.address(), listener.stag());
    thread::scope(|scope| {
        let client = scope.spawn(move || client(address, stag));
        let mut events = Vec::new();
        let stop = AtomicBool::new(false);
        let served = listener.serve(&stop, &mut |event| events.push(event)).expect("served");
        let result = client.join().expect("the client's thread");
        ServeResult { result, memory, served, events }
    })
}

fn contents(memory: &KernelMemory) -> Vec<u8> {
    let mut out = vec![0; memory.len() as usize];
    memory.read(0, &mut out);
    out
}

fn outcome(events: &[ServeEvent]) -> &ConnectionOutcome {
    events
        .iter()
        .find_map(|event| match event {
            ServeEvent::Closed { outcome, .. } => Some(outcome),
            _ => None,
        })
        .expect("a closed connection")
}

const V4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

// RFC 5044 §7.1, draft-culley-iwarp-mpa-03 §8.1: every form of start-up, markers in each direction, CRC requested by
// either side.
#[test]
fn file_is_put_with_every_mpa_option() {
    let dir = tempfile::tempdir().expect("a directory");
    let len = 300_001;
    let source = file(dir.path(), len);
    for revision in [Revision::Draft, Revision::Zero, Revision::One] {
        for bits in 0..16u8 {
            let [ours, theirs, crc, their_crc] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 == 1);
            let mpa = Config { markers: theirs, crc: their_crc, ..Config::default() };
            let source = source.clone();
            let run = with_listener(listen_config(V4, mpa, 400_000), |address, stag| {
                let target = match revision {
                    Revision::Draft => Target::Stag { stag, to: BASE_TO + 77 },
                    _ => region(77),
                };
                let options = MpaOptions { revision, markers: ours, crc };
                put(&request(source, address, target, options), None, &mut |_| {})
            });
            let case = format!("{revision:?} {bits:04b}");
            let report = run.result.unwrap_or_else(|e| panic!("{case}: {e}"));
            assert_eq!(report.parameters.revision, revision, "{case}");
            assert_eq!(report.parameters.markers_tx, theirs, "{case}");
            assert_eq!(report.parameters.markers_rx, ours, "{case}");
            assert_eq!(report.parameters.crc, crc || their_crc, "{case}");
            assert_eq!((report.bytes, report.to), (len as u64, BASE_TO + 77), "{case}");
            let memory = contents(&run.memory);
            assert!(memory[77..77 + len] == bytes(len), "{case}: the region differs");
            assert!(memory[..77].iter().chain(&memory[77 + len..]).all(|&o| o == 0), "{case}");
            assert_eq!(*outcome(&run.events), ConnectionOutcome::Complete, "{case}");
            assert_eq!((run.served.complete, run.served.bytes), (1, len as u64), "{case}");
            let delivered = |e: &ServeEvent| {
                matches!(e, ServeEvent::Delivered { to, len: n, .. }
                    if *to == BASE_TO + 77 && *n == len as u64)
            };
            assert_eq!(run.events.iter().filter(|e| delivered(e)).count(), 1, "{case}");
        }
    }
}

#[test]
fn file_is_put_over_ipv6_into_file_region() {
    let dir = tempfile::tempdir().expect("a directory");
    let len = 3_000_000;
    let source = file(dir.path(), len);
    let address = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0);
    let mut config = listen_config(address, Config::default(), len as u64);
    let path = dir.path().join("region");
    config.region.file = Some(path.clone());
    let mut seen = Vec::new();
    let run = with_listener(config, |address, _| {
        let request = request(source, address, region(0), MpaOptions::default());
        put(&request, None, &mut |progress| seen.push(progress)).map(|report| (report, seen))
    });
    let (report, seen) = run.result.expect("sent");
    let (got, wanted) = (std::fs::read(path).expect("readable"), bytes(len));
    let differs = got.iter().zip(&wanted).position(|(a, b)| a != b);
    assert_eq!((got.len(), differs), (len, None));
    assert!(seen.windows(2).all(|w| w[0].sent <= w[1].sent && w[0].total == len as u64));
    assert!(report.fpdus >= (len / report.parameters.mulpdu) as u64);
    assert!(report.stream_bytes > len as u64 && report.gbit_per_s() > 0.0);
}

// RFC 5041 §5.2: a zero-length message is sent and delivered.
#[test]
fn empty_file_is_sent_as_one_empty_message() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file(dir.path(), 0);
    let run = with_listener(listen_config(V4, Config::default(), 10), |address, _| {
        put(&request(source, address, region(10), MpaOptions::default()), None, &mut |_| {})
    });
    assert_eq!(run.result.expect("sent").bytes, 0);
    assert!(run.events.iter().any(|e| matches!(e, ServeEvent::Delivered { len: 0, .. })));
}

// RFC 5041 §7.1: the sender reports the peer's last message as text.
#[test]
fn last_message_of_peer_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file(dir.path(), 5_000_000);
    let run = with_listener(listen_config(V4, Config::default(), 1000), |address, stag| {
        let wrong = Target::Stag { stag: stag ^ 1, to: BASE_TO };
        put(&request(source, address, wrong, MpaOptions::default()), None, &mut |_| {})
    });
    let error = run.result.expect_err("an unknown STag");
    let KernelError::Peer(message) = &error else { panic!("{error}") };
    assert_eq!(message.ddp_error(), Some(ErrorCode::InvalidStag));
    assert!(error.to_string().contains("1/00"), "{error}");
    assert!(
        matches!(outcome(&run.events), ConnectionOutcome::Ddp(e) if e.code == ErrorCode::InvalidStag)
    );
    assert!(contents(&run.memory).iter().all(|&o| o == 0));
}

#[test]
fn impossible_put_is_refused_before_sending() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file(dir.path(), 2000);
    let mpa = MpaOptions::default();
    let config = || listen_config(V4, Config::default(), 1000);
    let name = Target::Region { name: "other".into(), offset: 0 };
    let run = with_listener(config(), |address, _| {
        put(&request(source.clone(), address, name, mpa), None, &mut |_| {})
    });
    let error = run.result.expect_err("no such region").to_string();
    assert!(error.contains("`other`") && error.contains("ingest"), "{error}");

    let run = with_listener(config(), |address, _| {
        put(&request(source.clone(), address, region(0), mpa), None, &mut |_| {})
    });
    assert!(matches!(run.result, Err(KernelError::TooLarge { bytes: 2000, len: 1000, .. })));

    let draft = MpaOptions { revision: Revision::Draft, ..mpa };
    let never = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1);
    let result = put(&request(source, never, region(0), draft), None, &mut |_| {});
    assert!(matches!(result, Err(KernelError::NeedsStag)));

    let missing = request(dir.path().join("missing"), never, region(0), mpa);
    let error = put(&missing, None, &mut |_| {}).expect_err("no such file").to_string();
    assert!(error.contains("missing"), "{error}");
}

#[test]
fn refused_revision_is_startup_error_on_both_sides() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file(dir.path(), 10);
    let revisions = tcp_lite::mpa::Revisions { one: true, ..tcp_lite::mpa::Revisions::NONE };
    let mpa = Config { revisions, ..Config::default() };
    let run = with_listener(listen_config(V4, mpa, 1000), |address, _| {
        let options = MpaOptions { revision: Revision::Zero, ..MpaOptions::default() };
        put(&request(source, address, region(0), options), None, &mut |_| {})
    });
    let closed = matches!(
        run.result,
        Err(KernelError::Startup(StartupError::Closed) | KernelError::Socket { .. })
    );
    assert!(closed, "{:?}", run.result);
    let expected = ConnectionOutcome::Startup(StartupError::Revision { seen: 0 });
    assert_eq!(*outcome(&run.events), expected);
}

/// Like the appliance, the listener resets a connection whose peer does not use MPA.
#[test]
fn failed_startup_resets_connection() {
    let run = with_listener(listen_config(V4, Config::default(), 1000), |address, _| {
        let mut peer = TcpStream::connect(address).expect("connected");
        peer.write_all(b"GET / HTTP/1.1\r\n").expect("written");
        peer.read(&mut [0]).map_err(|error| error.kind())
    });
    assert_eq!(run.result, Err(std::io::ErrorKind::ConnectionReset));
    let expected = ConnectionOutcome::Startup(StartupError::Foreign(ForeignProtocol::Http));
    assert_eq!(*outcome(&run.events), expected);
}

#[test]
fn non_mpa_peer_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file(dir.path(), 10);
    let server = TcpListener::bind(V4).expect("bound");
    let address = server.local_addr().expect("an address");
    let result = thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = server.accept().expect("accepted");
            stream.write_all(b"220 mail.example.com ESMTP\r\n").expect("written");
            // Reads until the client closes.
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        });
        put(&request(source, address, region(0), MpaOptions::default()), None, &mut |_| {})
    });
    assert!(matches!(result, Err(KernelError::Startup(StartupError::BadKey { at: 0 }))));
}

#[test]
fn a_silent_peer_times_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file(dir.path(), 10);
    let server = TcpListener::bind(V4).expect("bound");
    let address = server.local_addr().expect("an address");
    let mut silent = request(source, address, region(0), MpaOptions::default());
    silent.timeout = Duration::from_millis(50);
    let error = put(&silent, None, &mut |_| {}).expect_err("no reply");
    assert!(matches!(error, KernelError::Timeout { .. }), "{error}");
    // The limit of the whole transfer is shorter than the time-out of each phase.
    (silent.timeout, silent.total_timeout) = (TIMEOUT, Some(Duration::from_millis(50)));
    let error = put(&silent, None, &mut |_| {}).expect_err("no reply");
    assert_eq!(error.to_string(), "not done within 0.05 s: waiting for the peer's MPA reply");
}

#[test]
fn garbage_after_startup_ends_only_its_stream() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file(dir.path(), 100_000);
    let mut config = listen_config(V4, Config::default(), 100_000);
    config.connections = Some(2);
    let run = with_listener(config, |address, _| {
        let mut bad = TcpStream::connect(address).expect("connected");
        bad.write_all(b"MPA ID Req Frame\x40\x01\x00\x00").expect("written");
        bad.write_all(&[0xFF; 4096]).expect("written");
        let good =
            put(&request(source, address, region(0), MpaOptions::default()), None, &mut |_| {});
        // A reset follows the reply, because a graceful close would mean success to the peer.
        (good, bad.read_to_end(&mut Vec::new()).map_err(|error| error.kind()))
    });
    let (good, bad) = run.result;
    good.expect("the other stream continues");
    assert_eq!(bad, Err(std::io::ErrorKind::ConnectionReset));
    assert!(contents(&run.memory) == bytes(100_000));
    let bad = run.events.iter().any(|e| {
        matches!(e, ServeEvent::Closed { outcome: ConnectionOutcome::Mpa(_), placed: 0, .. })
    });
    assert!(bad, "{:?}", run.events);
}

/// Returns a client that has completed the MPA start-up and sent no FPDU.
fn start_unfinished(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).expect("connected");
    client.write_all(b"MPA ID Req Frame\x00\x01\x00\x00").expect("written");
    let mut reply = [0; 20];
    client.read_exact(&mut reply).expect("the reply");
    let private_data = usize::from(u16::from_be_bytes([reply[18], reply[19]]));
    client.read_exact(&mut vec![0; private_data]).expect("the advertisement");
    client
}

// docs/protocol.md §6: a graceful close would mean that all data is placed.
#[test]
fn stopped_listener_resets_its_connections() {
    let mut listener = Listener::bind(listen_config(V4, Config::default(), 4096)).expect("bound");
    let (address, stop) = (listener.address(), AtomicBool::new(false));
    let end = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut client = start_unfinished(address);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            client.read(&mut [0]).map_err(|error| error.kind())
        });
        listener.serve(&stop, &mut |_| {}).expect("served");
        client.join().expect("the client's thread")
    });
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn silent_connection_is_reset() {
    let config = ListenConfig {
        idle_timeout: Duration::from_millis(50),
        ..listen_config(V4, Config::default(), 4096)
    };
    let run = with_listener(config, |address, _| {
        start_unfinished(address).read(&mut [0]).map_err(|error| error.kind())
    });
    assert_eq!(run.result, Err(std::io::ErrorKind::ConnectionReset));
    assert_eq!(*outcome(&run.events), ConnectionOutcome::IdleTimeout);
}

// The peer's FIN alone is not a confirmation, because a reset may follow.
#[test]
fn socket_is_closed_after_both_fins_without_reset() {
    let server = TcpListener::bind(V4).expect("bound");
    let address = server.local_addr().expect("an address");
    for resets in [false, true] {
        let client = TcpStream::connect(address).expect("connected");
        let mut client = socket::Socket::new(client).expect("a socket");
        let (peer, _) = server.accept().expect("accepted");
        peer.shutdown(std::net::Shutdown::Write).expect("closed");
        let mut byte = [0];
        while client.receive(&mut byte).expect("no error yet") != socket::ReadResult::Eof {
            thread::yield_now();
        }
        assert!(!client.is_closed().expect("no error yet"), "our direction is open");
        if resets {
            socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).expect("set");
            drop(peer);
            let reset = loop {
                match client.is_closed() {
                    Ok(true) => panic!("closed without a reset"),
                    Ok(false) => thread::yield_now(),
                    Err(error) => break error,
                }
            };
            assert!(reset.raw_os_error().is_some(), "{reset}");
        } else {
            client.shut_down_write().expect("closed");
            while !client.is_closed().expect("no reset") {
                thread::yield_now();
            }
        }
    }
}

/// Accepts a connection and refuses the client's write with the last message, followed in the same segment by the bytes
/// that `behind` returns. `reset`: resets the connection afterwards, else waits for the client's close.
fn refuse(server: &TcpListener, reset: bool, behind: impl FnOnce(&[u8]) -> Vec<u8>) {
    let (mut socket, _) = server.accept().expect("accepted");
    let mut channel = Channel::responder(Config { markers: false, ..Config::default() });
    let mut room = vec![0; 1 << 16];
    let params = loop {
        let n = socket.read(&mut room).expect("the request");
        if channel.startup_input(&room[..n]).expect("a request").1.is_some() {
            break channel.accept(&[]).expect("agreed");
        }
    };
    channel.start_full_operation(ddp::StreamId(1), ddp::PdId(0), params, 1448);
    let mut out = Vec::new();
    channel.poll_transmit(&mut out, 1448);
    socket.write_all(&out).expect("the reply");
    let stags = ddp::StagTable::new();
    let error = loop {
        let n = socket.read(&mut room).expect("a message");
        channel.input(&room[..n], &stags).expect("sound");
        if let Some(ddp::Event::Error(error)) = channel.poll_event() {
            break error;
        }
    };
    channel.post_last_message(&LastMessage::from(&error)).expect("posted");
    channel.poll_transmit(&mut out, 1448);
    out.extend(behind(&out));
    if reset {
        socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).expect("set");
    }
    socket.write_all(&out).expect("the last message");
    if !reset {
        // Reads until the client closes.
        let _ = socket.read_to_end(&mut room);
    }
}

// RFC 5041 §7.1: the last message is reported as the cause, not the data or the reset that follows it.
#[test]
fn last_message_is_reported_despite_trailing_data_or_reset() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = file(dir.path(), 1000);
    for reset in [false, true] {
        let server = TcpListener::bind(V4).expect("bound");
        let address = server.local_addr().expect("an address");
        let behind = move |last: &[u8]| {
            // Without a reset, the same FPDU follows with a wrong CRC.
            let mut wrong = if reset { Vec::new() } else { last.to_vec() };
            if let Some(last) = wrong.last_mut() {
                *last ^= 1;
            }
            wrong
        };
        let result = thread::scope(|scope| {
            scope.spawn(|| refuse(&server, reset, behind));
            let mpa = MpaOptions { markers: false, ..MpaOptions::default() };
            let target = Target::Stag { stag: 7, to: BASE_TO };
            put(&request(source.clone(), address, target, mpa), None, &mut |_| {})
        });
        let error = result.expect_err("refused");
        let KernelError::Peer(message) = &error else { panic!("{reset}: {error}") };
        assert_eq!(message.ddp_error(), Some(ErrorCode::InvalidStag), "{reset}");
    }
}

// The length of a pipe is unknown: it may be shorter than the region, equal, zero, or longer.
#[test]
fn pipe_is_put_to_eof_or_until_region_is_full() {
    let mebi = 1 << 20;
    for (len, fits) in [(0, true), (100, true), (2 * mebi, true), (2 * mebi + 1, false)] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).expect("a pipe");
        let source = bytes(len);
        let run =
            with_listener(listen_config(V4, Config::default(), 2 * mebi as u64), |address, _| {
                let (writer, source) = (path.clone(), source.clone());
                let writer = thread::spawn(move || {
                    let mut pipe = std::fs::File::options().write(true).open(writer)?;
                    pipe.write_all(&source)
                });
                let request = request(path, address, region(0), MpaOptions::default());
                let report = put(&request, None, &mut |_| {});
                (report, writer.join().expect("the writer"))
            });
        let (report, written) = run.result;
        match report {
            Ok(report) => {
                assert!(fits && written.is_ok(), "{len}");
                assert_eq!(report.bytes, len as u64);
                assert!(contents(&run.memory)[..len] == source, "{len}");
            }
            Err(error) => {
                assert!(!fits, "{len}: {error}");
                let sentence = "the region has 2097152 bytes from there on, and the pipe has more: the region is full";
                assert_eq!(error.to_string(), sentence);
            }
        }
    }
}

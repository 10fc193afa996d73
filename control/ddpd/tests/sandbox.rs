//! Test of the sandbox from inside: threads of each kind try operations that must be denied. There is no test harness,
//! because a thread cannot regain the rights that it has dropped.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "there is no test harness, so the output is the report"
)]

use std::fs::{File, Permissions};
use std::io::{Error, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use config::{Config, PortKind};
use control::files::Writer;
use control::notify::{SendOutcome, Socket};
use control::sandbox::{Sandbox, state};
use dataplane::eal::{Eal, EalConfig, Hugepages};
use dataplane::memory::Memory;
use dataplane::{Dataplane, DataplaneConfig, Limits, WorkerConfig, WorkerId};
use port_kind::policy::Idle;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socket_with, socketpair};
use tempfile::TempDir;

/// Names of attempted operations, with their results.
type Attempts = Vec<(&'static str, Result<(), Error>)>;

/// Message to the service manager.
const READY: &str = "READY=1";
/// Mode of the file outside of the configured directories: its owner reads and writes it, others have no access.
const OUTSIDE_MODE: u32 = 0o600;
/// Bits of a mode that chmod(2) changes.
const MODE_BITS: u32 = 0o7777;
/// First version of Landlock's ABI with a scope for abstract names of Unix sockets.
const LANDLOCK_SCOPES: u32 = 6;

fn main() {
    let host = HostSetup::new();
    let notify = Socket::open_named(Some(format!("@{}", socket_name("manager")).as_ref()));
    let sandbox = Sandbox::enter(&[host.config()]).unwrap();
    check_landlock_alone();
    let eal = EalConfig { hugepages: Hugepages::Never, memory_mib: 64, ..EalConfig::default() };
    let eal = Eal::start(&eal).unwrap();
    sandbox.filter_all();
    assert!(state().seccomp, "the kernel has no filters of system calls");
    if state().landlock == 0 {
        eprintln!("LEFT OUT: files and TCP, this kernel has no Landlock");
    }

    assert_all_refused("main", try_denied_to_control(&host.places));
    check_openat2_is_denied(&host.places);
    check_permitted_operations(&host, &notify);

    let places = host.places.clone();
    let attempts = run_on_thread("http", move || try_denied_to_control(&places));
    assert_all_refused("http", attempts);
    let places = host.places.clone();
    let attempts = run_in_writer(&host.region, move || try_denied_to_control(&places));
    assert_all_refused("files", attempts);
    let attempts = run_in_worker(&eal, &sandbox, host.region.clone(), host.places.clone());
    assert_all_refused("worker", attempts);
    assert_eq!(state().workers, 1);
}

/// Files and sockets on the host, created before the process enters its sandbox.
struct HostSetup {
    directory: TempDir,
    places: Places,
    /// A file in a configured directory, which the sandbox permits to create.
    region: PathBuf,
    /// Receives the messages to the service manager.
    manager: UnixDatagram,
    _tcp_server: TcpListener,
    _server: UnixListener,
    _abstract_server: UnixListener,
}

impl HostSetup {
    fn new() -> HostSetup {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own");
        std::fs::create_dir_all(&own).unwrap();
        let outside = directory.path().join("outside");
        std::fs::write(&outside, "x").unwrap();
        std::fs::set_permissions(&outside, Permissions::from_mode(OUTSIDE_MODE)).unwrap();
        let tcp_server = TcpListener::bind("127.0.0.1:0").unwrap();
        let places = Places {
            outside,
            own: own.join("mine"),
            group: rustix::process::getgid(),
            tcp_server: tcp_server.local_addr().unwrap(),
        };
        std::fs::write(&places.own, "x").unwrap();
        let server = UnixListener::bind(places.server()).unwrap();
        let abstract_server = UnixListener::bind_addr(&abstract_name("server")).unwrap();
        let manager = UnixDatagram::bind_addr(&abstract_name("manager")).unwrap();
        HostSetup {
            directory,
            places,
            region: own.join("region"),
            manager,
            _tcp_server: tcp_server,
            _server: server,
            _abstract_server: abstract_server,
        }
    }

    /// Returns a configuration with the sandbox and a `ring` port, loaded from a file in the configured directory.
    fn config(&self) -> Config {
        let own = self.directory.path().join("own");
        let file = own.join("t.toml");
        let text = format!(
            "[memory]\nhugepages = \"never\"\n\
             [[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\n\
             [[interface]]\nname = \"i\"\nport = \"p\"\naddresses = [\"192.0.2.1/24\"]\n\
             [management]\nsocket = \"{}\"\n[management.sandbox]\nmode = \"on\"\n",
            own.join("s").display()
        );
        std::fs::write(&file, text).unwrap();
        Config::load(&file).unwrap()
    }
}

/// Checks that Landlock denies a connection to an abstract name. System calls are not filtered yet, so only Landlock
/// can deny it.
fn check_landlock_alone() {
    if state().landlock < LANDLOCK_SCOPES {
        eprintln!("LEFT OUT: abstract names, this kernel's Landlock has no scope for them");
    } else {
        assert_all_refused("main, by Landlock", vec![connect_abstract_socket()]);
    }
}

/// Checks that openat2(2) is denied. The call passes its mode in memory, which a seccomp filter cannot read. The error
/// ENOSYS makes libraries fall back to openat(2).
fn check_openat2_is_denied(places: &Places) {
    let set_user_id = Mode::from_raw_mode(0o4755);
    let path = places.own.with_extension("hidden");
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let opened = rustix::fs::openat2(CWD, &path, flags, set_user_id, ResolveFlags::empty());
    assert_eq!(opened.unwrap_err(), rustix::io::Errno::NOSYS);
}

/// Checks that the sandbox permits messages to the service manager, metadata of any file, and new files in the
/// configured directories. Creates the region's file.
fn check_permitted_operations(host: &HostSetup, notify: &Socket) {
    assert_eq!(notify.send(READY), SendOutcome::Done);
    let mut message = [0; 16];
    assert_eq!(
        host.manager.recv(&mut message).unwrap(),
        READY.len(),
        "a manager with an abstract name receives messages"
    );
    let metadata = std::fs::metadata(&host.places.outside).unwrap();
    assert_eq!(metadata.permissions().mode() & MODE_BITS, OUTSIDE_MODE);
    let mut file = File::create(&host.region).expect("a file in a directory of the configuration");
    file.write_all(b"x").unwrap();
}

/// Files, group and address used in the attempts.
#[derive(Clone)]
struct Places {
    /// A file outside the configured directories.
    outside: PathBuf,
    /// A file in a configured directory.
    own: PathBuf,
    /// Group of the process.
    group: Gid,
    /// Address of a TCP listener.
    tcp_server: std::net::SocketAddr,
}

impl Places {
    /// Returns the path of a Unix socket on which a server listens.
    fn server(&self) -> PathBuf {
        self.outside.with_extension("server")
    }
}

fn socket_name(what: &str) -> String {
    format!("ddpd-sandbox-{what}-{}", std::process::id())
}

fn abstract_name(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(socket_name(what)).unwrap()
}

fn connect_abstract_socket() -> (&'static str, Result<(), Error>) {
    let connected = UnixStream::connect_addr(&abstract_name("server"));
    ("a connection to an abstract name", connected.map(drop))
}

/// Tries to change modes and groups of files, to create set-ID files, and to use Unix sockets of other programs.
fn try_files_and_unix_sockets(places: &Places) -> Attempts {
    let Places { outside, own, group, .. } = places;
    let open_to_all = |path| std::fs::set_permissions(path, Permissions::from_mode(0o666));
    let by_descriptor = || {
        let read_only = File::open(own)?;
        read_only.set_permissions(Permissions::from_mode(0o4777))
    };
    let create_with_mode = |mode| {
        let mut options = File::options();
        options.write(true).create(true).mode(mode).open(own.with_extension("new"))
    };
    let directory = || std::fs::DirBuilder::new().mode(0o2755).create(own.with_extension("dir"));
    // This chown needs no capability: the owner of a file may change its group to a group of the process.
    let group = Some(*group);
    let owner = |path| rustix::fs::chownat(CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW);
    let datagrams = |flags| socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
    let pair =
        || socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map(drop);
    vec![
        ("chmod of a file elsewhere", open_to_all(outside.as_path())),
        ("chmod of an own file", open_to_all(own.as_path())),
        ("fchmod", by_descriptor()),
        ("chown", owner(outside.as_path()).map_err(Error::from)),
        ("a set-user-ID file", create_with_mode(0o4755).map(drop)),
        ("a set-group-ID file", create_with_mode(0o2755).map(drop)),
        ("a set-group-ID directory", directory()),
        ("a connection to a Unix socket", UnixStream::connect(places.server()).map(drop)),
        connect_abstract_socket(),
        (
            "a Unix socket of datagrams",
            datagrams(SocketFlags::CLOEXEC).map(drop).map_err(Error::from),
        ),
        ("a pair of them", pair().map_err(Error::from)),
    ]
}

/// Tries operations that are denied to all threads.
fn try_denied_to_all(places: &Places) -> Attempts {
    let raw = |family, protocol| {
        let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, protocol);
        socket.map(drop).map_err(Error::from)
    };
    let own = rustix::process::getpid();
    let unlimited = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
    let set = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: set, permitted: set, inheritable: set };
    let mut tried = try_files_and_unix_sockets(places);
    tried.extend([
        ("a program", std::process::Command::new("/bin/true").status().map(drop)),
        ("a packet socket", raw(AddressFamily::PACKET, None)),
        ("a raw socket", raw(AddressFamily::INET, Some(rustix::net::ipproto::ICMP))),
        ("a signal", rustix::process::test_kill_process(own).map_err(Error::from)),
        (
            "a limit",
            rustix::process::setrlimit(rustix::process::Resource::Core, unlimited)
                .map_err(Error::from),
        ),
        ("capabilities", rustix::thread::set_capabilities(None, sets).map_err(Error::from)),
    ]);
    tried
}

/// Tries operations that are denied to the control thread and its helpers: those that are denied to all threads, and
/// with Landlock also files outside of the configured directories, and TCP.
fn try_denied_to_control(places: &Places) -> Attempts {
    let Places { outside, tcp_server, .. } = places;
    let mut tried = try_denied_to_all(places);
    if state().landlock != 0 {
        tried.extend([
            ("a file of another", File::open(outside).map(drop)),
            ("a file of the host", File::open("/etc/shadow").map(drop)),
            ("a new file elsewhere", File::create(outside.with_extension("new")).map(drop)),
            ("a file taken away", std::fs::remove_file(outside)),
            ("a directory elsewhere", std::fs::read_dir("/root").map(drop)),
            ("memory of another process", File::open("/proc/1/mem").map(drop)),
            ("a connection by TCP", TcpStream::connect(tcp_server).map(drop)),
            ("a port of TCP", TcpListener::bind("127.0.0.1:0").map(drop)),
        ]);
    }
    tried
}

fn assert_all_refused(thread: &str, tried: Attempts) {
    assert!(!tried.is_empty());
    for (what, result) in tried {
        let error = result.expect_err(&format!("{thread}: {what} was allowed"));
        let kind = error.kind();
        assert_eq!(kind, std::io::ErrorKind::PermissionDenied, "{thread}: {what}: {error}");
    }
    println!("{thread}: all refused");
}

fn run_on_thread(name: &str, try_it: impl FnOnce() -> Attempts + Send + 'static) -> Attempts {
    std::thread::Builder::new().name(name.into()).spawn(try_it).unwrap().join().unwrap()
}

/// Performs the attempts on the file writer's thread.
fn run_in_writer(own: &Path, try_it: impl Fn() -> Attempts + Send + 'static) -> Attempts {
    let (sender, tried) = channel();
    // The file writer calls `wake` after each report, on its own thread.
    let wake = move || sender.send(try_it()).unwrap_or_default();
    let mut writer = Writer::<Memory>::start("files", wake).unwrap();
    let file = File::options().append(true).open(own).unwrap();
    let id = writer.open_log(own.to_owned(), file, config::Fsync::Never);
    assert!(writer.append(id, b"record".to_vec(), 1));
    tried.recv().unwrap()
}

/// Performs the attempts on a worker, whose filter denies more operations than the filter of the other threads.
fn run_in_worker(eal: &Eal, sandbox: &Sandbox, own: PathBuf, places: Places) -> Attempts {
    let config = DataplaneConfig {
        workers: vec![WorkerConfig { id: WorkerId(0), core: None, idle: Idle::Poll }],
        ports: Vec::new(),
        interfaces: Vec::new(),
        limits: Limits::default(),
        sctp_udp_port: None,
        ipsec: None,
        secret: [0; 32].into(),
    };
    let (sender, tried): (Sender<Attempts>, _) = channel();
    let sandbox = sandbox.clone();
    let (handler, _signals) = UnixStream::pair().unwrap();
    let handler = Arc::new(handler);
    let confine = move |_: WorkerId| {
        sandbox.filter_worker(&[PortKind::Ring { link: "l".into() }]);
        // A signal handler may run on a worker, so its message to the signal thread must be allowed.
        rustix::net::send(&*handler, b"X", SendFlags::DONTWAIT).expect("signals are not lost");
        let mut all = try_denied_to_all(&places);
        let unix = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let memfd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC);
        all.extend([
            ("a file that is allowed", File::open(&own).map(drop)),
            ("the removal of this file", std::fs::remove_file(&own)),
            ("a Unix socket", unix.map(drop).map_err(Error::from)),
            ("a memory file", memfd.map(drop).map_err(Error::from)),
            ("a thread", std::thread::Builder::new().spawn(|| ()).map(drop)),
        ]);
        sender.send(all).unwrap();
    };
    let dataplane = Dataplane::start_confined(&config, &mut [], eal, confine).unwrap();
    let tried = tried.recv().unwrap();
    dataplane.stop(|_, _| ());
    tried
}

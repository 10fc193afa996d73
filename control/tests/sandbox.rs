//! The sandbox from inside: what each kind of thread may not do, tried in it. A program of its own without test harness,
//! because what a thread gives up does not come back.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it has no test harness: what it prints is its report"
)]

use std::fs::File;
use std::io::{Error, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use control::config::{Config, PortKind};
use control::files::Writer;
use control::sandbox::{Sandbox, state};
use dataplane::eal::{Eal, EalConfig, Hugepages};
use dataplane::memory::Memory;
use dataplane::{Dataplane, DataplaneConfig, Limits, WorkerConfig, WorkerId};
use port_kind::policy::Idle;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// What was tried, and whether the kernel refused.
type Tried = Vec<(&'static str, Result<(), Error>)>;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("own").join("t.toml");
    std::fs::create_dir_all(dir.path().join("own")).unwrap();
    let outside = dir.path().join("outside");
    std::fs::write(&outside, "x").unwrap();
    let text = format!(
        "[memory]\nhugepages = \"never\"\n[[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\n[[interface]]\nname = \
         \"i\"\nport = \"p\"\naddresses = [\"192.0.2.1/24\"]\n[management]\nsocket = \"{}\"\n[management.sandbox]\nmode = \"on\"\n",
        dir.path().join("own/s").display()
    );
    std::fs::write(&file, text).unwrap();
    let config = Config::load(&file).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();

    let sandbox = Sandbox::enter(&[config]).unwrap();
    let eal = EalConfig { hugepages: Hugepages::Never, memory_mib: 64, ..EalConfig::default() };
    let eal = Eal::start(&eal).unwrap();
    sandbox.filter_all();
    let has_landlock = state().landlock != 0;
    assert!(state().seccomp, "the kernel has no filters of system calls");
    if !has_landlock {
        eprintln!("LEFT OUT: files and TCP, this kernel has no Landlock");
    }

    let control = move |outside: &Path| {
        let mut tried = of_all();
        if has_landlock {
            tried.extend([
                ("a file of another", File::open(outside).map(drop)),
                ("a file of the host", File::open("/etc/shadow").map(drop)),
                ("a new file elsewhere", File::create(outside.with_extension("new")).map(drop)),
                ("a file taken away", std::fs::remove_file(outside)),
                ("a directory elsewhere", std::fs::read_dir("/root").map(drop)),
                ("memory of another process", File::open("/proc/1/mem").map(drop)),
                ("a connection by TCP", TcpStream::connect(at).map(drop)),
                ("a port of TCP", TcpListener::bind("127.0.0.1:0").map(drop)),
            ]);
        }
        tried
    };
    all_refused("main", control(&outside));
    let own = dir.path().join("own/region");
    let mut made = File::create(&own).expect("a file in a directory of the configuration");
    made.write_all(b"x").unwrap();

    let elsewhere = outside.clone();
    all_refused("http", on_thread("http", move || control(&elsewhere)));
    all_refused("files", of_the_writer(&own, move || control(&outside)));
    all_refused("worker", of_a_worker(&eal, &sandbox, own));
    assert_eq!(state().workers, 1);
}

/// What no thread may do.
fn of_all() -> Tried {
    let raw = |family, protocol| {
        let made = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, protocol);
        made.map(drop).map_err(Error::from)
    };
    let own = rustix::process::getpid();
    let unlimited = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
    let set = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: set, permitted: set, inheritable: set };
    vec![
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
    ]
}

fn all_refused(thread: &str, tried: Tried) {
    assert!(!tried.is_empty());
    for (what, result) in tried {
        let error = result.expect_err(&format!("{thread}: {what} was allowed"));
        let kind = error.kind();
        assert_eq!(kind, std::io::ErrorKind::PermissionDenied, "{thread}: {what}: {error}");
    }
    println!("{thread}: all refused");
}

fn on_thread(name: &str, try_it: impl FnOnce() -> Tried + Send + 'static) -> Tried {
    std::thread::Builder::new().name(name.into()).spawn(try_it).unwrap().join().unwrap()
}

/// In the thread that writes regions to files.
fn of_the_writer(own: &Path, try_it: impl Fn() -> Tried + Send + 'static) -> Tried {
    let (sender, tried) = channel();
    // The thread calls this after each report.
    let wake = move || sender.send(try_it()).unwrap_or_default();
    let mut writer = Writer::<Memory>::start("files", wake).unwrap();
    let file = File::options().append(true).open(own).unwrap();
    let id = writer.open_log(own.to_owned(), file, control::config::Fsync::Never);
    assert!(writer.append(id, b"record".to_vec(), 1));
    tried.recv().unwrap()
}

/// In a worker, with its own filter; there also what the other threads may do.
fn of_a_worker(eal: &Eal, sandbox: &Sandbox, own: std::path::PathBuf) -> Tried {
    let config = DataplaneConfig {
        workers: vec![WorkerConfig { id: WorkerId(0), core: None, idle: Idle::Poll }],
        ports: Vec::new(),
        interfaces: Vec::new(),
        limits: Limits::default(),
        sctp_udp_port: None,
        ipsec: None,
        secret: [0; 32].into(),
    };
    let (sender, tried): (Sender<Tried>, _) = channel();
    let sandbox = sandbox.clone();
    let confine = move |_: WorkerId| {
        sandbox.filter_worker(&[PortKind::Ring { link: "l".into() }]);
        let mut all = of_all();
        let unix = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let memfd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC);
        all.extend([
            ("a file that is allowed", File::open(&own).map(drop)),
            ("the removal of it", std::fs::remove_file(&own)),
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

//! Tests of the C interface: header, sizes of structures, and errors. `scripts/client-library --test` also runs the
//! tests that use the built library: fork, and the examples in C and Python.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};

use verbs_layout::work::{Carried, Completed, Completion, Opcode, Operation, Payload, Status};

use super::connection::*;
use super::memory::*;
use super::queue::*;
use super::session::*;
use super::types::*;
use super::*;
use crate::tests::world::Appliance;
use crate::tests::{Side, TempDirectory, connect};

const HEADER: &str = include_str!("../../include/ddpd.h");
const EINVAL: c_int = -22;

fn names(text: &str, before: &str) -> BTreeSet<String> {
    let parts = text.split(before).skip(1);
    let names = parts.map(|part| part.split('(').next().unwrap_or_default());
    names
        .filter(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        .map(|name| format!("ddpd_{name}"))
        .collect()
}

#[test]
fn header_declares_exactly_the_functions() {
    let code = [
        include_str!("mod.rs"),
        include_str!("connection.rs"),
        include_str!("memory.rs"),
        include_str!("queue.rs"),
        include_str!("session.rs"),
    ];
    let defined = names(&code.concat(), "extern \"C\" fn ddpd_");
    let without_comments: String =
        HEADER.split("/*").map(|part| part.split("*/").last().unwrap()).collect();
    let declared: BTreeSet<String> = names(&without_comments, "ddpd_")
        .into_iter()
        .filter(|name| HEADER.contains(&format!("{name}(")))
        .collect();
    assert_eq!(declared, defined);
    assert!(declared.len() > 35);
}

/// Returns one line per structure: name, size, and offsets of its fields. The second value is C code that prints the
/// same lines.
macro_rules! layouts {
    ($($name:literal $type:ty { $($field:ident)* })*) => {{
        let rust = [$(format!(
            concat!($name, " {}", $(" ", stringify!($field), "={}"),*),
            size_of::<$type>(), $(offset_of!($type, $field)),*
        )),*];
        let c = [$(format!(
            "printf(\"{} %zu{}\\n\", sizeof(struct {0}){});",
            $name,
            [$(concat!(" ", stringify!($field), "=%zu")),*].concat(),
            [$(concat!(", offsetof(struct ", $name, ", ", stringify!($field), ")")),*].concat(),
        )),*];
        (rust.join("\n") + "\n", c.concat())
    }};
}

fn compile(compiler: &str, standard: &str, file: &Path, extra: &[&str]) {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let arguments = [standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", include];
    let status = Command::new(compiler).args(arguments).arg(file).args(extra).status().unwrap();
    assert!(status.success(), "{compiler} {}", file.display());
}

#[test]
fn header_compiles_with_the_sizes_of_the_library() {
    let (rust, c) = layouts! {
        "ddpd_limits" CLimits { memory_bytes arena_bytes queue_pairs completion_queues memory_regions posts completions ird ord }
        "ddpd_completion" CCompletion { wr_id status opcode byte_len qp_number flags invalidated immediate }
        "ddpd_sge" CSge { address length lkey }
        "ddpd_send" CSend { wr_id opcode flags sges sge_count rkey remote_address compare_add swap immediate invalidate reserved }
        "ddpd_receive" CReceive { wr_id sges sge_count reserved }
        "ddpd_bind" CBind { wr_id flags access window region address length }
        "ddpd_connect_options" CConnectOptions { local_address private_data private_data_len timeout_ms transport ird ord peer peer_to_peer }
        "ddpd_connection" CConnection { local remote ird ord worker private_data_len private_data }
        "ddpd_event" CEvent { kind number flag reserved request connection message }
    };
    let directory = TempDirectory::new("header");
    let source = directory.path().join("sizes.c");
    let program = directory.path().join("sizes");
    let text =
        format!("#include <ddpd.h>\n#include <stdio.h>\nint main(void) {{ {c} return 0; }}\n");
    std::fs::File::create(&source).unwrap().write_all(text.as_bytes()).unwrap();
    compile("cc", "-std=c99", &source, &["-o", program.to_str().unwrap()]);
    let output = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), rust);
    let object = directory.path().join("header.o");
    let header = directory.path().join("header.cpp");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/include/ddpd.h"), &header).unwrap();
    compile("c++", "-std=c++11", &header, &["-c", "-o", object.to_str().unwrap()]);
}

fn last_error() -> String {
    // SAFETY: the text ends with a NUL and is valid until this thread's next call of the library.
    unsafe { CStr::from_ptr(ddpd_last_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn null_handles_and_impossible_values_are_errors() {
    // SAFETY: each handle and pointer is NULL or valid.
    unsafe {
        assert_eq!(ddpd_post_send(null(), null()), EINVAL);
        assert_eq!(last_error(), "a pointer is NULL");
        assert_eq!(ddpd_cq_poll(null(), null_mut(), 4), EINVAL);
        assert_eq!(ddpd_session_fd(null()), EINVAL);
        assert_eq!(ddpd_accept(null_mut(), null(), null(), null_mut()), EINVAL);
        assert!(ddpd_region_address(null()).is_null());
        ddpd_close(null_mut());
        ddpd_qp_destroy(null_mut());
        let path = CString::new("/nonexistent/programs.sock").unwrap();
        let mut session = null_mut();
        assert_eq!(ddpd_open(path.as_ptr(), &raw mut session), -Errno::NOENT.raw_os_error());
        assert!(session.is_null() && last_error().contains("/nonexistent"));
        assert_eq!(ddpd_open(path.as_ptr(), null_mut()), EINVAL);
    }
}

fn send(opcode: u32, flags: u32, sges: &[CSge]) -> CSend {
    CSend {
        wr_id: 1,
        opcode,
        flags,
        sges: sges.as_ptr(),
        sge_count: sges.len() as u32,
        rkey: 2,
        remote_address: 3,
        compare_add: 4,
        swap: 5,
        immediate: *b"immediat",
        invalidate: 6,
        reserved: 0,
    }
}

#[test]
fn operations_are_those_of_the_header_and_others_are_refused() {
    let bytes = [7u8; 300];
    let sge = |length| CSge { address: bytes.as_ptr().expose_provenance() as u64, length, lkey: 9 };
    let work = |send: &CSend| {
        // SAFETY: the SGEs of this test describe its own memory.
        unsafe { send.work() }
    };
    for opcode in [1, 2, 3, 4, 7, 8] {
        let sges = [sge(8)];
        let decoded = work(&send(opcode, 1 | 4, &sges)).unwrap();
        assert_eq!(decoded.operation.opcode() as u32, opcode);
        assert!(decoded.signalled && decoded.fence && decoded.wr_id == 1);
    }
    for opcode in [5, 9] {
        assert_eq!(work(&send(opcode, 0, &[])).unwrap().operation.opcode() as u32, opcode);
        assert!(work(&send(opcode, 0, &[sge(1)])).is_err());
    }
    let inline = work(&send(3, 8, &[sge(100), sge(156)])).unwrap();
    let Operation::Write { payload: Payload::Inline(inline), remote } = inline.operation else {
        panic!()
    };
    assert_eq!((inline.bytes(), remote.stag, remote.to), (&bytes[..256], 2, 3));
    assert!(work(&send(1, 8, &[sge(256), sge(1)])).is_err());
    assert!(work(&send(1, 0, &[const { CSge { address: 0, length: 1, lkey: 0 } }; 7])).is_err());
    for (opcode, flags) in [(0, 0), (6, 0), (10, 0), (128, 0), (1, 16), (4, 8), (4, 2), (7, 8)] {
        assert!(work(&send(opcode, flags, &[sge(8)])).is_err(), "{opcode} {flags}");
    }
    assert!(work(&send(7, 0, &[sge(4)])).is_err());
    assert!(work(&CSend { sges: null(), ..send(1, 0, &[sge(1)]) }).is_err());
}

#[test]
fn completions_have_the_numbers_of_the_header() {
    let completion = |completed| {
        let (wr_id, byte_len, qp_number) = (1, 2, 3);
        CCompletion::new(&Completion {
            wr_id,
            status: Status::Flushed,
            completed,
            byte_len,
            qp_number,
        })
    };
    let sent = completion(Completed::Sent(Opcode::Read));
    assert_eq!((sent.status, sent.opcode, sent.flags), (5, 4, 0));
    let carried = Carried::Immediate(*b"12345678");
    let received = completion(Completed::Received { solicited: true, carried });
    assert_eq!((received.opcode, received.flags, &received.immediate), (128, 5, b"12345678"));
    let carried = Carried::Invalidated(77);
    let received = completion(Completed::Received { solicited: false, carried });
    assert_eq!((received.flags, received.invalidated), (2, 77));
}

#[test]
fn session_of_c_connects_posts_and_reports_events() {
    let appliance = Appliance::start();
    let mut server = appliance.session();
    let (mut domain, mut region, mut queue, mut pair) =
        (null_mut(), null_mut(), null_mut(), null_mut());
    let mut listener = null_mut();
    // SAFETY: `server` is a valid session, and the other handles come from the library and are open. All other pointers
    // are to variables of the right types.
    unsafe {
        assert_eq!(ddpd_domain_create(&raw const server, &raw mut domain), 0);
        assert_eq!(ddpd_region_alloc(domain, 64, 16, &raw mut region), EINVAL);
        assert_eq!(ddpd_region_alloc(domain, 64, 1, &raw mut region), 0);
        assert_eq!(ddpd_cq_create(&raw const server, 8, null(), &raw mut queue), 0);
        assert_eq!(ddpd_qp_create(domain, queue, queue, 2, 2, 0, &raw mut pair), 0);
        let sge = CSge {
            address: ddpd_region_address(region) as u64,
            length: 64,
            lkey: ddpd_region_stag(region),
        };
        let receive = CReceive { wr_id: 5, sges: &raw const sge, sge_count: 1, reserved: 0 };
        assert_eq!(ddpd_post_receive(pair, &raw const receive), 0);
        let address = CString::new("10.0.0.2:4000").unwrap();
        assert_eq!(ddpd_listen(&raw const server, address.as_ptr(), 0, 2, &raw mut listener), 0);
        let mut text = [0; 64];
        assert_eq!(ddpd_listener_address(listener, text.as_mut_ptr(), 13), EINVAL);
        assert_eq!(ddpd_listener_address(listener, text.as_mut_ptr(), 14), 0);
        assert_eq!(CStr::from_ptr(text.as_ptr()), &*address);

        let client = Side::new(appliance.session(), 4);
        let options = crate::ConnectOptions { private_data: b"ask".to_vec(), ..Default::default() };
        client.pair.start_connect("10.0.0.2:4000".parse().unwrap(), &options).unwrap();
        let mut event = std::mem::MaybeUninit::<CEvent>::uninit();
        assert_eq!(ddpd_next_event(&raw const server, 20_000, event.as_mut_ptr()), 1);
        let incoming = event.assume_init_read();
        assert_eq!((incoming.kind, incoming.number), (1, ddpd_listener_number(listener)));
        assert_eq!(&incoming.connection.private_data[..3], b"ask");
        assert_eq!(ddpd_start_accept(incoming.request.cast(), pair, null()), 0);
        assert_eq!(ddpd_next_event(&raw const server, 20_000, event.as_mut_ptr()), 1);
        let established = event.assume_init_read();
        assert_eq!((established.kind, established.number), (2, ddpd_qp_number(pair)));
        let work = crate::post::send(crate::post::inline(b"from Rust").unwrap());
        client.pair.post_send(&work).unwrap();
        let mut completion = std::mem::MaybeUninit::<CCompletion>::uninit();
        while ddpd_cq_poll(queue, completion.as_mut_ptr(), 1) == 0 {
            std::thread::yield_now();
        }
        let completion = completion.assume_init();
        assert_eq!((completion.wr_id, completion.status, completion.byte_len), (5, 0, 9));
        assert_eq!(ddpd_next_event(&raw const server, 0, event.as_mut_ptr()), 0);
        let mut window = null_mut();
        assert_eq!(ddpd_window_alloc(domain, 3, &raw mut window), EINVAL);
        assert_eq!(ddpd_window_alloc(domain, 2, &raw mut window), 0);
        assert_eq!(ddpd_window_stag(window, 9) & 0xff, 9);
        let mut bind = CBind {
            wr_id: 6,
            flags: 1,
            access: 4 | 16,
            window: ddpd_window_stag(window, 9),
            region: ddpd_region_stag(region),
            address: ddpd_region_address(region) as u64,
            length: 64,
        };
        assert_eq!(ddpd_post_bind(pair, &raw const bind), 0);
        let mut completion = std::mem::MaybeUninit::<CCompletion>::uninit();
        while ddpd_cq_poll(queue, completion.as_mut_ptr(), 1) == 0 {
            std::thread::yield_now();
        }
        let completion = completion.assume_init();
        assert_eq!((completion.wr_id, completion.status, completion.opcode), (6, 0, 6));
        for (flags, access) in [(2, 4), (1, 1), (1, 32)] {
            (bind.flags, bind.access) = (flags, access);
            assert_eq!(ddpd_post_bind(pair, &raw const bind), EINVAL);
        }
        ddpd_window_destroy(window);
        // Closes the handles in an order that differs from that of their creation.
        ddpd_domain_destroy(domain);
        ddpd_cq_destroy(queue);
        ddpd_listener_destroy(listener);
        ddpd_qp_destroy(pair);
        ddpd_region_destroy(region);
    }
    server = appliance.session();
    let ends = [0, 1].map(|_| Side::new(server.clone(), 4));
    connect(&ends[0].pair, &ends[1].pair, &server);
}

/// Returns the directory of the library that `scripts/client-library` has built.
fn library() -> PathBuf {
    let variable = std::env::var_os("DDPD_CLIENT_LIBRARY");
    variable.expect("DDPD_CLIENT_LIBRARY: run scripts/client-library --test").into()
}

fn start(command: &[&str], socket: &Path, arguments: &[&str]) -> Child {
    let mut start = Command::new(command[0]);
    start.args(&command[1..]).arg(socket).args(arguments);
    start.env("LD_LIBRARY_PATH", library().join("lib")).stdout(Stdio::piped());
    start.spawn().unwrap()
}

const FORK: &str = r#"
import ctypes, os, sys
library = ctypes.CDLL("libddpd.so.0")
session, domain = ctypes.c_void_p(), ctypes.c_void_p()
assert library.ddpd_open(sys.argv[1].encode(), ctypes.byref(session)) == 0
child = os.fork()
if child == 0:
    result = library.ddpd_domain_create(session, ctypes.byref(domain))
    library.ddpd_close(session)
    os._exit(0 if result == -1 else 1)
assert os.waitpid(child, 0)[1] == 0
assert library.ddpd_domain_create(session, ctypes.byref(domain)) == 0
library.ddpd_domain_destroy(domain)
library.ddpd_close(session)
"#;

#[test]
#[ignore = "scripts/client-library --test runs it"]
fn child_of_fork_is_refused_and_does_no_harm_with_the_library() {
    let (appliance, directory) = (Appliance::start(), TempDirectory::new("fork"));
    appliance.listen(&directory.socket());
    let child = start(&["python3", "-c", FORK], &directory.socket(), &[]);
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
#[ignore = "scripts/client-library --test runs it"]
fn examples_in_c_and_python_talk_to_each_other_with_the_library() {
    let (appliance, directory) = (Appliance::start(), TempDirectory::new("examples"));
    let socket = directory.socket();
    appliance.listen(&socket);
    let library = library();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ping_pong.c");
    let program = directory.path().join("ping_pong");
    let folder = format!("-L{}", library.join("lib").display());
    compile(
        "cc",
        "-std=c99",
        Path::new(source),
        &["-o", program.to_str().unwrap(), &folder, "-lddpd"],
    );
    let c: &[&str] = &[program.to_str().unwrap()];
    let python: &[&str] =
        &["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ping_pong.py")];
    for (server, client, address) in
        [(c, python, "10.0.0.2:4001"), (python, c, "10.0.0.2:4002"), (c, c, "10.0.0.2:4003")]
    {
        let mut listening = start(server, &socket, &["listen", address]);
        let mut lines = BufReader::new(listening.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), format!("listening at {address}"));
        let connected = start(client, &socket, &["connect", address, "50"]);
        let output = connected.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "50 messages and answers\n");
        assert_eq!(lines.next().unwrap().unwrap(), "50 messages answered");
        assert!(listening.wait().unwrap().success());
    }
}

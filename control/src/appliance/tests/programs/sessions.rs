//! Sessions over the real socket, with their threads.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::SendFlags;

use super::super::super::programs::server::BoundSocket;
use super::*;

/// A core with a running server, to whose socket the test connects.
struct Served {
    bench: Bench,
    waker: Waker,
    path: PathBuf,
}

fn serve() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("programs.sock");
    let text = PROGRAMS.replace("[programs]", &format!("[programs]\nsocket = {path:?}"));
    let mut bench = bench_with(&text);
    let waker = Waker::new().unwrap();
    let config = bench.core.env().context.config.clone();
    let settings = config.programs.clone().unwrap();
    let socket = BoundSocket::open(&config).unwrap().unwrap();
    let inbox =
        socket.serve(settings, bench.budget.clone(), WORKERS as u16, waker.clone()).unwrap();
    let log = bench.log.clone();
    let setup = Setup { programs: Some(inbox), ..setup(config, &dir, &log) };
    bench.core = Core::new(setup, Vec::new(), bench.now).unwrap();
    bench.dir = dir;
    Served { bench, waker, path }
}

impl Served {
    fn connect(&self) -> SessionSocket {
        SessionSocket::connect(&self.path).unwrap()
    }

    /// Runs the control thread until a message arrives or the session is closed.
    fn receive(&mut self, socket: &SessionSocket) -> Option<Message> {
        loop {
            match socket.receive::<Message>() {
                Ok((message, _)) => return Some(message),
                Err(SocketError::WouldBlock) => {}
                Err(_) => return None,
            }
            let mut fds = [
                PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
            ];
            poll(&mut fds, None).unwrap();
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.waker.reset();
        while self.bench.core.handle_programs(self.bench.now) {}
        self.bench.acknowledge();
    }

    fn send(&self, socket: &SessionSocket, id: u32, call: Call) {
        socket.send(&ProgramRequest { id, call }, &[]).unwrap();
    }
}

#[test]
fn real_session_attaches_calls_and_ends() {
    let mut served = serve();
    let program = served.connect();
    served.send(&program, 5, hello());
    let Some(Message::Reply(Reply { id: 5, result: Ok(Answer::Welcome(welcome)) })) =
        served.receive(&program)
    else {
        panic!()
    };
    assert_eq!(welcome.program, 1);
    served.send(&program, 6, Call::CreatePd);
    served.send(&program, 7, register(0, LOCAL_ACCESS));
    for id in [6, 7] {
        let Some(Message::Reply(reply)) = served.receive(&program) else { panic!() };
        assert_eq!((reply.id, reply.result.is_ok()), (id, true));
    }
    drop(program);
    let before = served.bench.core.programs().tally().ended;
    while served.bench.core.programs().tally().ended == before {
        poll(&mut [PollFd::from_borrowed_fd(served.waker.as_fd(), PollFlags::IN)], None).unwrap();
        served.turn();
    }
    served.bench.core.programs().assert_empty();
}

#[test]
fn packets_that_are_not_calls_and_calls_before_hello_end_the_session() {
    let mut served = serve();
    let program = served.connect();
    rustix::net::send(program.as_fd(), b"{", SendFlags::empty()).unwrap();
    assert_eq!(served.receive(&program), None);
    let program = served.connect();
    served.send(&program, 1, Call::CreatePd);
    let Some(Message::Reply(Reply { id: 1, result: Err(refusal) })) = served.receive(&program)
    else {
        panic!()
    };
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert_eq!(served.receive(&program), None);
}

#[test]
fn end_of_the_appliance_closes_the_sessions_and_removes_the_socket() {
    let mut served = serve();
    let program = served.connect();
    served.send(&program, 1, hello());
    assert!(served.receive(&program).is_some());
    // A connection over which no message was sent.
    let silent = served.connect();
    let Served { bench, path, .. } = served;
    drop(bench);
    for socket in [program, silent] {
        assert!(matches!(socket.receive::<Message>(), Err(SocketError::Closed)));
    }
    assert!(!path.exists());
}

//! Local programs that attach to a shared region: normal, faulty and hostile programs.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use dataplane::memory::ring::{Consumer, Kind};
use dataplane::memory::{Backing, MemoryConfig};
use ddp::memory::RegionMemory;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage};

use super::*;

struct Fixture {
    server: Server,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("attach");
    Fixture { server: Server::bind(&path).unwrap(), path, _dir: dir }
}

fn object(len: u64) -> Object {
    let config = MemoryConfig {
        backing: Backing::Shared { name: "test".into() },
        len,
        remote_write: true,
        lock: false,
    };
    Object {
        memory: Memory::new(&config).unwrap(),
        ring: Producer::create("test", 4, len).unwrap(),
        reply: AttachReply {
            region_len: len,
            base_to: 0,
            stag: 7,
            remote_write: true,
            remote_read: false,
        },
    }
}

fn record(offset: u64, len: u64) -> Completion {
    Completion { kind: Kind::Data, rsvd_ulp: 0, stag: 7, offset, len, stream: 1, unix_nanos: 5 }
}

/// Requests `name`. Returns the connection, the reply and its descriptors.
fn attach(fixture: &mut Fixture, name: &str) -> (UnixStream, Vec<u8>, Vec<OwnedFd>) {
    let mut stream = UnixStream::connect(&fixture.path).unwrap();
    stream.write_all(name.as_bytes()).unwrap();
    fixture.server.poll(Instant::now());
    let mut reply = vec![0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        &stream,
        &mut [io::IoSliceMut::new(&mut reply)],
        &mut control,
        RecvFlags::empty(),
    );
    reply.truncate(received.unwrap().bytes);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    (stream, reply, fds)
}

#[test]
fn program_sees_data_before_its_completion() {
    let mut fixture = fixture();
    let object = object(8192);
    let memory = object.memory.clone();
    fixture.server.export("in", object);
    let (_stream, reply, fds) = attach(&mut fixture, "in\n");
    assert_eq!((reply.len(), &reply[..8]), (REPLY_LEN, &b"DDPM\0\0\0\0"[..]));
    let [region, ring, event] = &fds[..] else { panic!("{} descriptors", fds.len()) };
    let mut ring = Consumer::open(ring.as_fd()).unwrap();
    assert_eq!(ring.poll(), None);

    memory.write(100, b"delivered");
    fixture.server.publish("in", &record(100, 9));
    fixture.server.publish("in", &record(0, 0));
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(event, &mut count), Err(Errno::AGAIN), "not signalled yet");
    fixture.server.signal();
    fixture.server.signal();
    assert_eq!(rustix::io::read(event, &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), 1, "one wake-up for a burst");
    assert_eq!(ring.poll(), Some((0, record(100, 9))));
    let mut bytes = [0; 9];
    rustix::io::pread(region, &mut bytes, 100).unwrap();
    assert_eq!(&bytes, b"delivered");
}

#[test]
fn each_program_has_its_own_wake_ups_and_both_see_every_record() {
    let mut fixture = fixture();
    fixture.server.export("in", object(4096));
    let (_a, _, a) = attach(&mut fixture, "in\n");
    let (_b, _, b) = attach(&mut fixture, "in\n");
    assert_eq!(fixture.server.attached_count("in"), 2);
    fixture.server.publish("in", &record(1, 1));
    fixture.server.signal();
    for fds in [a, b] {
        assert_eq!(rustix::io::read(&fds[2], &mut [0; 8]), Ok(8));
        assert!(Consumer::open(fds[1].as_fd()).unwrap().poll().is_some());
    }
}

#[test]
fn attached_region_cannot_be_resized() {
    let mut fixture = fixture();
    fixture.server.export("in", object(4096));
    let (_stream, _, fds) = attach(&mut fixture, "in\n");
    assert_eq!(rustix::fs::ftruncate(&fds[0], 1), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&fds[0], 1 << 20), Err(Errno::PERM));
}

#[test]
fn unknown_names_and_endless_requests_are_refused_with_a_sentence() {
    let mut fixture = fixture();
    let (mut stream, reply, fds) = attach(&mut fixture, "nothing\n");
    assert_eq!(reply[4], Status::NoSuchObject as u8);
    assert_eq!(&reply[REPLY_LEN..], b"there is no shared-memory object \"nothing\"");
    assert!(fds.is_empty());
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "closed");
    let (_stream, reply, _) = attach(&mut fixture, &"x".repeat(MAX_REQUEST));
    assert_eq!(reply[4], Status::BadRequest as u8);
    assert_eq!(fixture.server.counters().refused, 2);
}

#[test]
fn fragmented_attach_request_is_accepted() {
    let mut fixture = fixture();
    fixture.server.export("in", object(4096));
    let mut stream = UnixStream::connect(&fixture.path).unwrap();
    for piece in ["i", "n", "\n"] {
        assert_eq!(fixture.server.attached_count("in"), 0);
        stream.write_all(piece.as_bytes()).unwrap();
        fixture.server.poll(Instant::now());
    }
    assert_eq!(fixture.server.attached_count("in"), 1);
}

#[test]
fn withdrawing_ends_the_attachment_after_the_last_record() {
    let mut fixture = fixture();
    fixture.server.export("in", object(4096));
    let (mut stream, _, fds) = attach(&mut fixture, "in\n");
    let removed = Completion { kind: Kind::Removed, ..record(0, 0) };
    fixture.server.publish("in", &removed);
    fixture.server.withdraw("in");
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(rustix::io::read(&fds[2], &mut [0; 8]), Ok(8), "woken for the last record");
    let mut ring = Consumer::open(fds[1].as_fd()).unwrap();
    assert_eq!(ring.poll(), Some((0, removed)));
    fixture.server.publish("in", &removed);
    assert_eq!(fixture.server.counters().completions, 1);
}

#[test]
fn hung_up_program_is_removed_and_loss_reports_are_counted() {
    let mut fixture = fixture();
    fixture.server.export("in", object(4096));
    let (mut stream, _, _) = attach(&mut fixture, "in\n");
    stream.write_all(&[5u64.to_le_bytes(), 6u64.to_le_bytes()].concat()).unwrap();
    fixture.server.poll(Instant::now());
    assert_eq!(fixture.server.counters().lost, 11);
    drop(stream);
    fixture.server.poll(Instant::now());
    assert_eq!(fixture.server.attached_count("in"), 0);
}

#[test]
fn silent_connections_are_evicted_and_attached_connections_stay() {
    let mut fixture = fixture();
    fixture.server.export("in", object(4096));
    let attached = attach(&mut fixture, "in\n");
    let silent: Vec<UnixStream> =
        (0..MAX_CONNECTIONS - 1).map(|_| UnixStream::connect(&fixture.path).unwrap()).collect();
    fixture.server.poll(Instant::now());
    let (_late, reply, _) = attach(&mut fixture, "in\n");
    assert_eq!(reply[4], Status::Attached as u8);
    assert_eq!(fixture.server.attached_count("in"), 2);
    assert_eq!(
        (&silent[0]).read(&mut [0; 1]).unwrap(),
        0,
        "the oldest silent connection was closed"
    );
    drop(attached);
}

#[test]
fn unattached_connection_times_out_and_attached_connection_stays() {
    let mut fixture = fixture();
    fixture.server.export("in", object(4096));
    let _attached = attach(&mut fixture, "in\n");
    assert_eq!(fixture.server.poll_timeout(), None);
    let mut silent = UnixStream::connect(&fixture.path).unwrap();
    silent.write_all(b"half a nam").unwrap();
    let now = Instant::now();
    fixture.server.poll(now);
    assert_eq!(fixture.server.poll_timeout(), Some(now + REQUEST_TIMEOUT));
    fixture.server.poll(now + REQUEST_TIMEOUT - Duration::from_millis(1));
    assert_eq!(fixture.server.counters().expired, 0);
    fixture.server.poll(now + REQUEST_TIMEOUT);
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!((fixture.server.counters().expired, fixture.server.attached_count("in")), (1, 1));
    assert_eq!(fixture.server.poll_timeout(), None);
}

/// When the process has no free descriptor, the listener stays readable: it must not be polled until the back-off ends.
#[test]
fn failed_accept_suspends_polling_until_back_off_ends() {
    let mut fixture = fixture();
    fixture.server.export("in", object(4096));
    let now = Instant::now();
    let mut stream = UnixStream::connect(&fixture.path).unwrap();
    stream.write_all(b"in\n").unwrap();
    fixture.server.backoff.record_failure(&Errno::MFILE.into(), now);
    assert_eq!(fixture.server.fds().count(), 0);
    fixture.server.poll(now);
    assert_eq!(
        (fixture.server.attached_count("in"), fixture.server.counters().accept_failures),
        (0, 1)
    );
    let again = fixture.server.poll_timeout().unwrap();
    assert!(again > now && again <= now + Duration::from_secs(1));
    fixture.server.poll(again);
    assert_eq!((fixture.server.attached_count("in"), fixture.server.fds().count()), (1, 2));
}

#[test]
fn attach_socket_is_private_and_replaces_only_stale_ones() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("attach");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::bind(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = Server::bind(&path).unwrap_err();
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    drop(server);
    assert!(!path.exists());
}

// RFC 5042 §6.4.6, §7.1: each region has its own ring; an overflow of one does not affect the others.
#[test]
fn overflowing_ring_does_not_affect_others() {
    let mut fixture = fixture();
    fixture.server.export("busy", object(4096));
    fixture.server.export("quiet", object(4096));
    let (_a, _, busy) = attach(&mut fixture, "busy\n");
    let (_b, _, quiet) = attach(&mut fixture, "quiet\n");
    let open = |fds: &[OwnedFd]| Consumer::open(fds[1].as_fd()).unwrap();
    let (mut busy, mut quiet) = (open(&busy), open(&quiet));
    fixture.server.publish("quiet", &record(1, 1));
    (0..11).for_each(|n| fixture.server.publish("busy", &record(n, 1)));
    fixture.server.publish("quiet", &record(2, 1));
    let offsets = |ring: &mut Consumer| -> Vec<u64> {
        std::iter::from_fn(|| ring.poll()).map(|(_, record)| record.offset).collect()
    };
    assert_eq!((offsets(&mut busy), busy.lost()), (vec![7, 8, 9, 10], 7));
    assert_eq!((offsets(&mut quiet), quiet.lost()), (vec![1, 2], 0));
}

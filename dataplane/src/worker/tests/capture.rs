//! A capture of a worker's port records every frame once, with its outcome, and does not change the worker's behaviour.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ddp::{Access, RegionMemory, Stag};
use tcp_lite::tcp::Flags;

use super::floods::forged_segment;
use super::test_host::*;
use crate::api::{Command, CommandError, DropReason, PortId};
use crate::capture::{Direction, Fate, Filter, Reader, Record, Tap, pair};
use crate::io::BURST;

const PORT: u16 = 4791;
const SINK: Stag = Stag(0x1234);
const SOURCE: Stag = Stag(0x77);

fn two_hosts() -> Net {
    Net::new(&[Plan::new(1), Plan::new(2)])
}

fn tap(filter: &str) -> (Option<Box<Tap>>, Reader) {
    let filter = Arc::new(Filter::parse(filter).unwrap());
    let (tap, reader) = pair(filter, 65_535, 4 << 20, || 0);
    (Some(Box::new(tap)), reader)
}

/// Sets or removes the tap of a port at a host's first worker.
fn set_tap(
    net: &mut Net,
    host: usize,
    port: u16,
    tap: Option<Box<Tap>>,
) -> Result<(), CommandError> {
    let port = PortId(port);
    let ticket = net.hosts[host].command(0, |ticket| Command::Capture { port, tap, ticket });
    net.wait_done(host, ticket)
}

fn capture(net: &mut Net, host: usize, filter: &str) -> Reader {
    let (tap, reader) = tap(filter);
    set_tap(net, host, 0, tap).unwrap();
    reader
}

fn records(reader: &mut Reader) -> Vec<Record> {
    std::iter::from_fn(|| reader.next_record()).collect()
}

/// Returns the drop reason of each frame, as the name of its counter; `None` if not dropped.
fn drop_reasons(net: &Net, records: &[Record]) -> Vec<Option<&'static str>> {
    let name = |fate| match fate {
        Fate::Dropped(reason) => {
            let drops = &net.hosts[1].handles[0].counters().drops;
            Some(drops.iter().nth(reason.into()).unwrap().reason)
        }
        _ => None,
    };
    records.iter().map(|record| name(record.fate)).collect()
}

#[test]
fn capture_records_each_frame_once_and_end_frees_the_ring() {
    let mut net = two_hosts();
    let wire = Rc::new(RefCell::new([Vec::new(), Vec::new()]));
    let seen = wire.clone();
    net.is_lost = Box::new(move |from, frame| {
        seen.borrow_mut()[from].push(frame.to_vec());
        false
    });
    net.run_until_idle();
    let mut reader = capture(&mut net, 1, "");
    *wire.borrow_mut() = Default::default();
    net.hosts[1].listen(PORT);
    let sink = net.hosts[1].region(SINK.0, 300_000, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, 300_000, Access::NONE);
    source.write(0, &pattern(300_000));
    let (here, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    let ticket = net.hosts[0].write(here, (SOURCE, &source), SINK, 300_000);
    net.wait_sent(0, ticket);
    net.run_until_idle();
    assert!(read_memory(&sink) == pattern(300_000));
    let records = records(&mut reader);
    for (from, direction) in [(0, Direction::In), (1, Direction::Out)] {
        let mut captured: Vec<_> =
            records.iter().filter(|r| r.direction == direction).map(|r| r.bytes.clone()).collect();
        let mut sent = std::mem::take(&mut wire.borrow_mut()[from]);
        captured.sort();
        sent.sort();
        assert!(captured.len() > 10);
        assert!(captured == sent, "{direction:?}: {} of {}", captured.len(), sent.len());
    }
    assert!(records.iter().all(|r| r.fate == Fate::Passed && r.len as usize == r.bytes.len()));
    assert_eq!(reader.counters().seen(), records.len() as u64);
    assert!(!reader.is_finished());
    set_tap(&mut net, 1, 0, None).unwrap();
    assert!(reader.is_finished());
    let bursts = net.hosts[1].handles[0].counters().burst_frames.counts();
    assert_eq!(
        bursts.sum,
        net.hosts[1].count("rx_frames"),
        "bursts are counted during a capture too"
    );
}

#[test]
fn captured_drop_carries_its_reason() {
    let mut net = two_hosts();
    net.run_until_idle();
    let drops = |net: &Net| -> Vec<_> { net.hosts[1].handles[0].counters().drops.iter().collect() };
    let before = drops(&net);
    let mut reader = capture(&mut net, 1, "dropped");
    let mut corrupt = forged_segment((7, 1000), PORT, Flags::SYN);
    *corrupt.0.last_mut().unwrap() ^= 1;
    let stray = forged_segment((7, 1000), PORT, Flags::RST);
    let answered = forged_segment((7, 1000), PORT, Flags::SYN);
    let mut strange = forged_segment((7, 1000), PORT, Flags::SYN);
    strange.0[12..14].copy_from_slice(&[0x12, 0x34]);
    for frame in [corrupt, stray, answered, strange] {
        net.hosts[1].deliver(frame);
    }
    net.run_until_idle();
    let mut records = records(&mut reader);
    records.sort_by_key(|record| record.fate != Fate::Dropped(DropReason::L4Checksum as u16));
    assert_eq!(drop_reasons(&net, &records)[0], Some("l4_checksum"));
    let mut all: Vec<_> = drop_reasons(&net, &records).into_iter().map(Option::unwrap).collect();
    all.sort_unstable();
    let mut counted: Vec<&str> = Vec::new();
    for (before, after) in before.iter().zip(drops(&net)) {
        counted.extend(std::iter::repeat_n(after.reason, (after.count - before.count) as usize));
    }
    counted.sort_unstable();
    assert_eq!(all, counted);
    assert!(all.len() >= 3, "{all:?}");
}

#[test]
fn capture_does_not_change_overload_drops_in_a_flood() {
    let dropped = |filter: Option<&str>| {
        let mut net = two_hosts();
        net.hosts[1].listen(PORT);
        net.open(0, 0, 1, (v4(2), PORT).into());
        net.run_until_idle();
        let reader = filter.map(|filter| capture(&mut net, 1, filter));
        net.hosts[1].exhaust_budgets();
        for n in 0..BURST as u16 {
            net.hosts[1].deliver(forged_segment((7, 1000 + n), PORT, Flags::SYN));
        }
        net.turn();
        assert_eq!(reader.is_some(), filter.is_some());
        net.hosts[1].count("overload")
    };
    let without = dropped(None);
    assert!(without > 0);
    assert_eq!(dropped(Some("")), without);
}

#[test]
fn captured_frame_of_another_worker_is_marked_forwarded() {
    let mut net = Net::new(&[Plan::new(1), Plan { workers: 2, rss: Rss::None, ..Plan::new(2) }]);
    net.run_until_idle();
    let mut reader = capture(&mut net, 1, "tcp");
    for n in 0..20 {
        net.hosts[1].deliver(forged_segment((7, 1000 + n), PORT, Flags::RST));
    }
    net.run_until_idle();
    let records = records(&mut reader);
    let forwarded = records.iter().filter(|record| record.fate == Fate::Forwarded).count();
    assert_eq!(records.len(), 20);
    assert_eq!(forwarded as u64, net.hosts[1].handles[0].counters().frames.mesh_out.get());
    assert!(forwarded > 0);
}

#[test]
fn capture_of_unknown_port_is_refused() {
    let mut net = two_hosts();
    let (tap, reader) = tap("");
    assert_eq!(set_tap(&mut net, 1, 5, tap), Err(CommandError::NoPort));
    assert!(reader.is_finished());
}

/// A capture of an IPsec flow contains either the sealed frames or their plaintext.
#[test]
fn ipsec_capture_has_sealed_or_inner_frames() {
    use super::ipsec;
    for inside in [false, true] {
        let mut net = ipsec::net(ipsec::PLAIN, |_| {});
        let stream = ipsec::open(&mut net, false, false);
        let mut readers = [0, 1].map(|host| {
            let filter = Arc::new(Filter::parse("not arp").unwrap());
            let (tap, reader) = pair(filter, 65_535, 4 << 20, || 0);
            let tap = if inside { tap.with_plaintext() } else { tap };
            set_tap(&mut net, host, 0, Some(Box::new(tap))).unwrap();
            reader
        });
        ipsec::write(&mut net, stream, 10, 50_000);
        let [sent, received] = [0, 1].map(|host| {
            let all = records(&mut readers[host]);
            let wanted = if host == 0 { Direction::Out } else { Direction::In };
            let selected = all.into_iter().filter(|record| record.direction == wanted);
            selected.map(|record| record.bytes).collect::<Vec<_>>()
        });
        assert!(sent.len() > 30);
        assert!(sent == received, "the received frames differ from the sent frames");
        for frame in &sent {
            let (_, protocol) = ipsec::protocol(frame).unwrap();
            assert_eq!(protocol, if inside { 6 } else { 50 });
        }
    }
}

//! The flight recorder of streams over TCP and over SCTP: each test causes an abnormal event, such as a loss, a
//! time-out or a protocol error, and checks its record. A stream without such events has no records.

use std::sync::Arc;
use std::time::Duration;

use ddp::rdmap::WorkRequest;
use ddp::{Access, Cookie, RegionMemory, Stag, StreamId, TaggedOffset};
use tcp_lite::tcp::MAX_RECORDS;

use super::test_host::*;
use crate::api::{
    AwaitedEvent, Command, EndpointConfig, Event, IpFields, Record, RecordKind as Kind, Recording,
    SctpConfig,
};
use crate::memory::Memory;

const PORT: u16 = 4791;
const SINK: Stag = Stag(100);
const SOURCE: Stag = Stag(8);

/// Length in bytes of the Ethernet and IPv4 headers in front of TCP or SCTP, without a VLAN tag.
const HEADERS_LEN: usize = 34;

/// Transport of the stream under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TestTransport {
    Tcp,
    Sctp,
}

const TRANSPORTS: [TestTransport; 2] = [TestTransport::Tcp, TestTransport::Sctp];

impl TestTransport {
    /// Returns an endpoint configuration with the default [`Settings`], changed by `change`. SCTP's
    /// limit of consecutive retransmissions is 3.
    fn endpoint(self, change: impl Fn(&mut Settings)) -> EndpointConfig {
        let mut settings = Settings::default();
        change(&mut settings);
        let Settings { recorder, user_timeout, probes, ecn } = settings;
        match self {
            TestTransport::Tcp => {
                let mut tcp = tcp_lite::tcp::Config { recorder, ..Default::default() };
                tcp.limits.retransmission = user_timeout;
                tcp.extensions.ecn = ecn;
                let idle = Duration::from_secs(1);
                let keepalive = tcp_lite::tcp::Keepalive { idle, interval: idle, probes: 3 };
                tcp.keepalive = probes.then_some(keepalive);
                let tcp = Arc::new(tcp);
                tcp_lite::endpoint::EndpointConfig { tcp, ..Default::default() }.into()
            }
            TestTransport::Sctp => {
                let send = sctp_lite::sctp::send::SendConfig { recorder, ..Default::default() };
                let mut sctp = sctp_lite::sctp::Config {
                    send: Arc::new(send),
                    max_retransmits: 3,
                    ..Default::default()
                };
                sctp.heartbeat_interval = probes.then_some(Duration::from_secs(1));
                SctpConfig { sctp: Arc::new(sctp), endpoint: Arc::default(), udp: None }.into()
            }
        }
    }

    /// Returns true if the frame contains a large part of a message: more than 300 bytes, and for SCTP a DATA chunk
    /// first.
    fn is_data(self, frame: &[u8]) -> bool {
        match self {
            TestTransport::Tcp => frame.len() > 300,
            TestTransport::Sctp => frame.len() > 300 && frame[HEADERS_LEN + 12] == 0,
        }
    }
}

/// Settings in which the tests differ.
struct Settings {
    /// True if events are recorded.
    recorder: bool,
    /// Time without an acknowledgement of retransmitted data after which TCP ends the stream.
    user_timeout: Duration,
    /// True for a probe of an idle peer each second: a keepalive of TCP or a HEARTBEAT of SCTP.
    probes: bool,
    /// True to use ECN over TCP.
    ecn: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let user_timeout = Duration::from_secs(5);
        Settings { recorder: true, user_timeout, probes: false, ecn: false }
    }
}

/// Creates two hosts with a stream. Returns the stream's id at each host.
fn open_pair(endpoint: EndpointConfig) -> (Net, StreamId, StreamId) {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen_as(PORT, 100, 100, endpoint.clone());
    net.run_until_idle();
    let (here, there) = net.open_as(0, 0, 1, (v4(2), PORT).into(), endpoint);
    net.run_until_idle();
    (net, here, there)
}

/// Begins a write of `len` bytes from host 0 to a region of host 1. Returns the ticket and the region.
fn begin_write(net: &mut Net, stream: StreamId, len: usize) -> (crate::api::Ticket, Memory) {
    let sink = net.hosts[1].region(SINK.0, len, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, len, Access::NONE);
    source.write(0, &pattern(len));
    (net.hosts[0].write(stream, (SOURCE, &source), SINK, len as u32), sink)
}

/// Writes `len` bytes from host 0 to host 1, and compares the content.
fn write(net: &mut Net, stream: StreamId, len: usize) {
    let (ticket, sink) = begin_write(net, stream, len);
    net.wait_sent(0, ticket);
    assert!(read_memory(&sink) == pattern(len));
}

/// Requests a stream's recording from the first worker of a host.
fn request_recording(net: &mut Net, host: usize, stream: StreamId) -> Recording {
    let streams = vec![stream, StreamId(0xdead)];
    let ticket = net.hosts[host].command(0, |ticket| Command::ListRecordings { streams, ticket });
    let mut recordings = net.run_until("an answer", |net| {
        net.hosts[host].take_event(|event| match event {
            Event::Recordings { ticket: t, recordings } if *t == Some(ticket) => {
                Some(recordings.clone())
            }
            _ => None,
        })
    });
    assert_eq!(recordings.len(), 1, "ended streams have no recording");
    recordings.remove(0)
}

/// Waits for the recording that is reported at the end of a stream.
fn recording_at_end(net: &mut Net, host: usize) -> Recording {
    net.run_until("the end", |net| {
        net.hosts[host].take_event(|event| match event {
            Event::Closed { reason, .. } => panic!("no recording before the end: {reason}"),
            Event::Recordings { ticket: None, recordings } => Some(recordings[0].clone()),
            _ => None,
        })
    })
}

/// Returns the kinds of all records, oldest first.
fn kinds(recording: &Recording) -> Vec<Kind> {
    recording.records.iter().map(Record::kind).collect()
}

/// Returns the first record of this kind.
#[track_caller]
fn find_record(recording: &Recording, kind: Kind) -> Record {
    let found = recording.records.iter().find(|record| record.kind() == kind);
    *found.unwrap_or_else(|| panic!("no {kind:?} in {:?}", kinds(recording)))
}

#[test]
fn undisturbed_stream_has_no_records() {
    for transport in TRANSPORTS {
        let (mut net, here, there) = open_pair(transport.endpoint(|_| {}));
        write(&mut net, here, 300_000);
        for (host, stream) in [(0, here), (1, there)] {
            let recording = request_recording(&mut net, host, stream);
            assert_eq!((kinds(&recording), recording.left_out), (vec![], 0), "{transport:?}");
        }
        net.hosts[0].command(0, |_| Command::Close { stream: here, abort: false });
        net.advance(Duration::from_secs(1));
        let recorded = |e: &Event| matches!(e, Event::Recordings { .. }).then_some(());
        assert_eq!(
            net.hosts[0].take_event(recorded),
            None,
            "{transport:?}: the stream ended gracefully"
        );
    }
}

#[test]
fn lost_segment_records_recovery_and_retransmission() {
    for transport in TRANSPORTS {
        for recorder in [true, false] {
            let (mut net, here, _) = open_pair(transport.endpoint(|s| s.recorder = recorder));
            let mut data = 0;
            net.is_lost = Box::new(move |from, frame| {
                data += u32::from(from == 0 && transport.is_data(frame));
                data == 3 && from == 0 && transport.is_data(frame)
            });
            write(&mut net, here, 100_000);
            let recording = request_recording(&mut net, 0, here);
            if !recorder {
                assert_eq!(kinds(&recording), [], "{transport:?}: the recorder is off");
                continue;
            }
            let recovery = find_record(&recording, Kind::Recovery);
            assert!(recovery.number > 0 && recovery.answer > 0, "{transport:?}: {recovery:?}");
            let resent = find_record(&recording, Kind::Resent);
            assert!(resent.len > 1000 && resent.count >= 1, "{transport:?}: {resent:?}");
            assert!(recovery.at() <= resent.at() && resent.at() <= recording.now);
            // The record has the TCP flags of the segment: PSH and ACK.
            assert_eq!(resent.flags(), if transport == TestTransport::Tcp { 0x18 } else { 0 });
            let infos = super::sctp::list_streams(&mut net, 0);
            if transport == TestTransport::Tcp {
                let crate::api::StreamStats::Tcp(stats) = &infos[0].stats else { panic!() };
                let counted: u32 = recording
                    .records
                    .iter()
                    .filter(|record| record.kind() == Kind::Resent)
                    .map(|record| record.count)
                    .sum();
                assert_eq!(u64::from(counted), stats.tcp.loss.segments_retransmitted);
            }
        }
    }
}

#[test]
fn unreachable_peer_records_timeouts_reported_at_the_end() {
    for transport in TRANSPORTS {
        let (mut net, here, _) = open_pair(transport.endpoint(|_| {}));
        begin_write(&mut net, here, 100);
        net.is_lost = Box::new(|_, _| true);
        let recording = recording_at_end(&mut net, 0);
        let timeouts: Vec<u32> = recording
            .records
            .iter()
            .filter(|record| record.kind() == Kind::Timeout)
            .map(|record| record.count)
            .collect();
        let expected: Vec<u32> = (1..=timeouts.len() as u32).collect();
        assert_eq!(timeouts, expected, "{transport:?}");
        assert!(timeouts.len() >= 3, "{transport:?}: {timeouts:?}");
        find_record(&recording, Kind::Resent);
        let last = recording.records.iter().map(Record::kind).rev();
        assert_eq!(last.take(1).collect::<Vec<_>>(), [Kind::GaveUp], "{transport:?}");
        let awaited = find_record(&recording, Kind::GaveUp).awaited_event();
        assert_eq!(awaited, Some(AwaitedEvent::Acknowledgement), "{transport:?}");
    }
}

#[test]
fn timeout_record_carries_the_next_timeout() {
    let transport = TestTransport::Tcp;
    let (mut net, here, _) =
        open_pair(transport.endpoint(|s| s.user_timeout = Duration::from_secs(20)));
    begin_write(&mut net, here, 20_000);
    net.is_lost = Box::new(|_, _| true);
    let recording = recording_at_end(&mut net, 0);
    let timeouts = recording.records.iter().filter(|record| record.kind() == Kind::Timeout);
    let seen: Vec<(Duration, u32)> =
        timeouts.map(|record| (record.at().saturating_since(START), record.answer)).collect();
    // Only the first three intervals are compared: later, retransmissions in smaller packets restart the timer.
    for pair in seen.windows(2).take(3) {
        let [(before, next), (at, _)] = pair else { panic!() };
        let waited = (*at - *before).as_millis() as u32;
        assert!(waited.abs_diff(*next) <= 5, "{transport:?}: {waited} in {seen:?}");
    }
    // The path MTU was reduced, which has reset the back-off.
    assert!(!seen.is_sorted_by(|a, b| a.1 < b.1), "{transport:?}: {seen:?}");
}

#[test]
fn lost_tail_records_a_tail_loss_probe() {
    for transport in TRANSPORTS {
        let (mut net, here, _) = open_pair(transport.endpoint(|_| {}));
        write(&mut net, here, 10_000);
        let mut lost = false;
        net.is_lost = Box::new(move |from, frame| {
            let is_tail = !lost && from == 0 && transport.is_data(frame);
            lost |= is_tail;
            is_tail
        });
        let ticket = net.hosts[0].send(here, &[7; 500]);
        net.wait_sent(0, ticket);
        let probe = find_record(&request_recording(&mut net, 0, here), Kind::TailProbe);
        assert!(probe.len >= 500 && probe.count == 1, "{transport:?}: {probe:?}");
    }
}

// The same test for SCTP is in `sctp-lite`.
#[test]
fn closed_window_records_probes_and_reopening() {
    let (mut net, here, _) = open_pair(TestTransport::Tcp.endpoint(|_| {}));
    let (_, sink) = begin_write(&mut net, here, 100_000);
    let mut closed_count = 0;
    carry_frames(&mut net, Duration::from_millis(1), 2000, |from, frame| {
        closed_count += u32::from(from == 1 && close_window(frame));
    });
    assert!(closed_count >= 3, "{closed_count} frames with a closed window");
    assert!(read_memory(&sink) != pattern(100_000));
    let recording = request_recording(&mut net, 0, here);
    let closed = find_record(&recording, Kind::WindowClosed);
    assert_eq!((closed.window, closed.flags() & 0x10), (0, 0x10));
    let probe = find_record(&recording, Kind::WindowProbe);
    assert!(probe.count >= 2 && probe.at() > closed.at(), "{probe:?}");
    assert!(!kinds(&recording).contains(&Kind::WindowOpened));
    carry_frames(&mut net, Duration::from_millis(1), 5000, |_, _| {});
    assert!(read_memory(&sink) == pattern(100_000));
    let opened = find_record(&request_recording(&mut net, 0, here), Kind::WindowOpened);
    assert!(opened.window > 0 && opened.at() > probe.at());
}

/// Advances time by `step` and delivers the frames of both hosts to each other, `steps` times. Calls `change` with the
/// sender's index and each frame before its delivery.
fn carry_frames(
    net: &mut Net,
    step: Duration,
    steps: u32,
    mut change: impl FnMut(usize, &mut [u8]),
) {
    for _ in 0..steps {
        net.now += step;
        for from in 0..2 {
            net.hosts[from].cores[0].turn(net.now);
            for mut frame in net.hosts[from].take_sent() {
                change(from, &mut frame.0);
                net.hosts[1 - from].deliver(frame);
            }
        }
    }
}

/// Sets the window in a TCP header to 0 and updates the checksum (RFC 1624 §3). Returns false if the frame is not TCP
/// over IPv4.
fn close_window(frame: &mut [u8]) -> bool {
    if frame[12..14] != [8, 0] || frame[23] != 6 {
        return false;
    }
    let [window, sum] = [HEADERS_LEN + 14, HEADERS_LEN + 16];
    let read_u16 = |frame: &[u8], at| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let mut total = (!read_u16(frame, sum) & 0xffff) + (!read_u16(frame, window) & 0xffff);
    total = (total & 0xffff) + (total >> 16);
    frame[window..window + 2].fill(0);
    frame[sum..sum + 2].copy_from_slice(&(!(total as u16)).to_be_bytes());
    true
}

#[test]
fn unreachable_idle_peer_records_unanswered_probes() {
    for transport in TRANSPORTS {
        let (mut net, _, _) = open_pair(transport.endpoint(|s| s.probes = true));
        net.is_lost = Box::new(|_, _| true);
        let recording = recording_at_end(&mut net, 0);
        let unanswered = find_record(&recording, Kind::Unanswered);
        assert_eq!(unanswered.count, 1, "{transport:?}");
        let kinds = kinds(&recording);
        let awaited = find_record(&recording, Kind::GaveUp).awaited_event();
        assert_eq!(awaited, Some(AwaitedEvent::ProbeAnswer), "{transport:?}");
        assert!(!kinds.contains(&Kind::Timeout), "{transport:?}: {kinds:?}");
    }
}

#[test]
fn reset_is_recorded_by_sender_and_receiver() {
    // Only TCP sends a reset. Over SCTP, the end of the only stream shuts down its association gracefully.
    let (mut net, here, _) = open_pair(TestTransport::Tcp.endpoint(|_| {}));
    net.hosts[0].command(0, |_| Command::Close { stream: here, abort: true });
    let sent = find_record(&recording_at_end(&mut net, 0), Kind::ResetSent);
    let received = find_record(&recording_at_end(&mut net, 1), Kind::ResetReceived);
    assert_eq!(received.flags() & 4, 4, "RST is set: {received:?}");
    let header = |r: &Record| (r.number, r.answer, r.flags(), r.window, r.len);
    assert_eq!(header(&sent), header(&received), "both ends record the same header");
}

#[test]
fn ddp_error_and_terminate_are_recorded() {
    for transport in TRANSPORTS {
        let (mut net, here, _) = open_pair(transport.endpoint(|_| {}));
        // STag 0x999 has no region.
        let source = net.hosts[0].region(SOURCE.0, 100, Access::NONE);
        net.run_until_idle();
        net.hosts[0].write(here, (SOURCE, &source), Stag(0x999), 100);
        let recording = recording_at_end(&mut net, 1);
        let found = find_record(&recording, Kind::ErrorFound);
        // Layer DDP, error type tagged buffer, code invalid STag.
        assert_eq!(found.answer, 0x0001_0100, "{transport:?}: {found:?}");
        let sent = find_record(&recording, Kind::TerminateSent);
        assert_eq!((sent.answer, sent.number), (found.answer, found.number), "{transport:?}");
        if transport == TestTransport::Tcp {
            // Recording continues after the first error.
            find_record(&recording, Kind::FinSent);
            find_record(&recording, Kind::State);
        }
    }
}

#[test]
fn rdmap_error_is_recorded_with_terminates_at_both_ends() {
    for transport in TRANSPORTS {
        let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
        let endpoint = transport.endpoint(|_| {});
        net.hosts[1].listen_as(PORT, 100, 100, endpoint.clone());
        let here = open_rdmap(&mut net, endpoint);
        net.hosts[0].region(SOURCE.0, 100, Access::REMOTE_WRITE);
        net.run_until_idle();
        let request = WorkRequest::Read {
            sink_stag: SOURCE,
            sink_to: TaggedOffset(0),
            // STag 0x999 has no region.
            source_stag: Stag(0x999),
            source_to: TaggedOffset(0),
            len: 100,
            cookie: Cookie::user(0),
        };
        let region = Some(SOURCE);
        net.hosts[0].command(0, |ticket| Command::PostRdmap {
            stream: here,
            request,
            region,
            ticket,
        });
        let recording = recording_at_end(&mut net, 1);
        // Layer RDMAP, error type remote protection, code invalid STag.
        for kind in [Kind::ErrorFound, Kind::TerminateSent] {
            assert_eq!(find_record(&recording, kind).answer, 0x0000_0100, "{transport:?}");
        }
        let received = find_record(&recording_at_end(&mut net, 0), Kind::TerminateReceived);
        assert_eq!(received.answer, 0x0000_0100, "{transport:?}");
    }
}

/// Opens an RDMAP stream from host 0 to host 1. Returns its id at host 0.
fn open_rdmap(net: &mut Net, endpoint: EndpointConfig) -> StreamId {
    let ulp = ddp::rdmap::Config { ird: 4, ord: 4, recv_buffers: 8, ..Default::default() };
    net.open_ulp((0, 0), 1, (v4(2), PORT).into(), endpoint, ulp.into()).0
}

#[test]
fn path_mtu_reduction_records_old_and_new_size() {
    let (mut net, here, _) = open_pair(TestTransport::Tcp.endpoint(|_| {}));
    // Frames of more than 1300 bytes are lost without an ICMP report.
    net.is_lost = Box::new(|_, frame| frame.len() > 1300);
    write(&mut net, here, 50_000);
    let change = find_record(&request_recording(&mut net, 0, here), Kind::PathMtu);
    assert!(change.answer < change.number && change.answer > 500, "{change:?}");
}

#[test]
fn full_recorder_keeps_newest_records_and_counts_the_rest() {
    for transport in TRANSPORTS {
        let (mut net, here, _) =
            open_pair(transport.endpoint(|s| s.user_timeout = Duration::from_secs(100_000)));
        // One of 23 data frames is lost, so that there are more events than records.
        let mut data = 0;
        net.is_lost = Box::new(move |from, frame| {
            data += u32::from(from == 0 && transport.is_data(frame));
            from == 0 && transport.is_data(frame) && data % 23 == 5
        });
        write(&mut net, here, 1 << 20);
        let recording = request_recording(&mut net, 0, here);
        assert_eq!(recording.records.len(), MAX_RECORDS, "{transport:?}");
        assert!(recording.left_out > 0, "{transport:?}");
        let times: Vec<_> = recording.records.iter().map(Record::at).collect();
        assert!(times.is_sorted(), "{transport:?}: {times:?}");
    }
}

#[test]
fn echoed_ecn_marks_are_recorded() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    for host in &mut net.hosts {
        host.ip = IpFields::default();
    }
    let endpoint = TestTransport::Tcp.endpoint(|s| s.ecn = true);
    net.hosts[1].listen_as(PORT, 100, 100, endpoint.clone());
    net.run_until_idle();
    let (here, _) = net.open_as(0, 0, 1, (v4(2), PORT).into(), endpoint);
    net.run_until_idle();
    begin_write(&mut net, here, 1 << 18);
    carry_frames(&mut net, Duration::from_micros(50), 2000, |_, frame| {
        super::ecn::mark_data(frame)
    });
    let marked = find_record(&request_recording(&mut net, 0, here), Kind::Marked);
    assert!(marked.answer > 0, "{marked:?}");
}

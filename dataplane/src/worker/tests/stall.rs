//! A peer that stops answering: the reports about its streams, their times, and the limits.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, Stag, StreamId};
use sctp_lite::sctp;
use tcp_lite::tcp;

use super::sctp::{config, list_streams, wait_connect_failure};
use super::test_host::{Net, Plan, v4, v6};
use crate::api::{ConnectError, ConnectStage, EndpointConfig, Event, Limit, SctpConfig, Stall};

const PORT: u16 = 7471;

/// Configures TCP without path MTU probing, which would shorten the first time-outs.
fn over_tcp(user_timeout: Duration) -> EndpointConfig {
    let limits = tcp::Limits { retransmission: user_timeout, ..tcp::Limits::default() };
    let path_mtu = tcp::PathMtuConfig { probing: false, ..tcp::PathMtuConfig::default() };
    let tcp = tcp::Config { limits, path_mtu, ..tcp::Config::default() };
    let startup_timeout = Duration::from_secs(60);
    EndpointConfig::Tcp(Arc::new(tcp_lite::endpoint::EndpointConfig {
        tcp: Arc::new(tcp),
        mpa: tcp_lite::mpa::Config { startup_timeout, ..tcp_lite::mpa::Config::default() },
        ..tcp_lite::endpoint::EndpointConfig::default()
    }))
}

fn over_sctp(max_retransmits: u32) -> EndpointConfig {
    let sctp = sctp::Config { max_retransmits, path_mtu_probing: false, ..sctp::Config::default() };
    EndpointConfig::Sctp(Arc::new(SctpConfig { sctp: Arc::new(sctp), ..config() }))
}

/// Creates two hosts with a stream on which 1 MiB is being written. From now on the peer is silent, until the returned
/// cell is set to true.
fn net_with_silent_peer(endpoint: &EndpointConfig, is_v6: bool) -> (Net, StreamId, Rc<Cell<bool>>) {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    match endpoint {
        EndpointConfig::Tcp(_) => net.hosts[1].listen(PORT),
        EndpointConfig::Sctp(_) => net.hosts[1].listen_as(PORT, 200, 200, config()),
    }
    let to = if is_v6 { v6(2) } else { v4(2) };
    let (here, _) = net.open_as(0, 0, 1, (to, PORT).into(), endpoint.clone());
    let from = net.hosts[0].region(1, 1 << 20, Access::NONE);
    net.hosts[1].region(2, 1 << 20, Access::REMOTE_WRITE);
    let answers = Rc::new(Cell::new(false));
    let on = Rc::clone(&answers);
    net.is_lost = Box::new(move |from, _| from == 1 && !on.get());
    net.hosts[0].write(here, (Stag(1), &from), Stag(2), 1 << 20);
    (net, here, answers)
}

fn take_stalls(net: &mut Net) -> Vec<(StreamId, Stall)> {
    let mut all = Vec::new();
    while let Some(stall_event) = net.hosts[0].take_event(|event| match event {
        Event::Stalled { stream, stall } => Some((*stream, *stall)),
        _ => None,
    }) {
        all.push(stall_event);
    }
    all
}

fn take_resumed(net: &mut Net) -> Option<StreamId> {
    net.hosts[0].take_event(|event| match event {
        Event::Resumed { stream } => Some(*stream),
        _ => None,
    })
}

fn current_limit(net: &mut Net) -> Limit {
    list_streams(net, 0)[0].flow.limits.limit
}

fn all_variants() -> impl Iterator<Item = (EndpointConfig, bool)> {
    let hour = Duration::from_secs(3600);
    let each = move |is_v6| [(over_tcp(hour), is_v6), (over_sctp(50), is_v6)];
    [false, true].into_iter().flat_map(each)
}

#[test]
fn tenth_timeout_and_later_progress_are_each_reported_once() {
    for (endpoint, is_v6) in all_variants() {
        let (mut net, here, answers) = net_with_silent_peer(&endpoint, is_v6);
        net.advance(Duration::from_secs(60));
        assert_eq!(take_stalls(&mut net), [], "fewer than ten time-outs");
        net.advance(Duration::from_secs(400));
        let reported = take_stalls(&mut net);
        let [(stream, stall)] = reported[..] else { panic!("{reported:?}") };
        assert_eq!((stream, stall.timeouts, stall.last), (here, 10, false));
        let silent = stall.silent.as_secs();
        assert!((90..300).contains(&silent), "{silent} s");
        assert_eq!(take_resumed(&mut net), None);
        answers.set(true);
        net.advance(Duration::from_secs(70));
        assert_eq!(take_resumed(&mut net), Some(here));
        assert_eq!((take_resumed(&mut net), take_stalls(&mut net)), (None, vec![]));
        assert_ne!(current_limit(&mut net), Limit::Path);
    }
}

/// With its default user time-out, TCP can end a stream at its tenth time-out. The report precedes the end by one
/// time-out.
#[test]
fn last_allowed_timeout_is_reported_before_the_end() {
    for (endpoint, timeouts) in [(over_tcp(Duration::from_secs(120)), 9), (over_sctp(4), 4)] {
        let (mut net, here, _) = net_with_silent_peer(&endpoint, false);
        let stall = net.run_until("a stall", |net| {
            net.hosts[0].take_event(|event| match event {
                Event::Stalled { stall, .. } => Some(*stall),
                Event::Closed { .. } => panic!("ended without a report"),
                _ => None,
            })
        });
        assert_eq!((stall.timeouts, stall.last), (timeouts, true));
        net.run_until("the end", |net| {
            net.hosts[0].take_event(|event| match event {
                Event::Closed { stream, .. } if *stream == here => Some(()),
                _ => None,
            })
        });
        assert_eq!((take_resumed(&mut net), take_stalls(&mut net)), (None, vec![]));
    }
}

#[test]
fn path_is_the_limit_while_time_outs_are_in_progress() {
    for (endpoint, is_v6) in all_variants() {
        let (mut net, ..) = net_with_silent_peer(&endpoint, is_v6);
        net.advance(Duration::from_secs(5));
        assert_eq!(current_limit(&mut net), Limit::Path, "{endpoint:?}");
    }
}

/// The error of an expired connect names the awaited step of the handshake.
#[test]
fn connect_timeout_names_the_awaited_step() {
    let sctp = EndpointConfig::Sctp(Arc::new(config()));
    let tcp = || over_tcp(Duration::from_secs(120));
    // Configuration, number of the peer's packets that arrive, and awaited step.
    let cases = [
        (tcp(), 0, ConnectStage::SynAck),
        (tcp(), 1, ConnectStage::MpaReply),
        (sctp.clone(), 0, ConnectStage::InitAck),
        (sctp, 1, ConnectStage::CookieAck),
    ];
    for ((endpoint, arrive, awaited), is_v6) in
        cases.into_iter().flat_map(|case| [(case.clone(), false), (case, true)])
    {
        let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
        match endpoint {
            EndpointConfig::Tcp(_) => net.hosts[1].listen(PORT),
            EndpointConfig::Sctp(_) => net.hosts[1].listen_as(PORT, 200, 200, config()),
        }
        let of_transport = |frame: &[u8]| match frame[12..14] {
            [8, 0] => true,
            _ => frame[12..14] == [0x86, 0xdd] && matches!(frame[20], 6 | 132),
        };
        let mut answers = 0;
        net.is_lost = Box::new(move |from, frame| {
            answers += usize::from(from == 1 && of_transport(frame));
            from == 1 && of_transport(frame) && answers > arrive
        });
        let (to, begin) = (if is_v6 { v6(2) } else { v4(2) }, net.now);
        let ticket = net.hosts[0].connect_as(0, (to, PORT).into(), endpoint);
        assert_eq!(wait_connect_failure(&mut net, ticket), ConnectError::Timeout(awaited));
        assert_eq!((net.now - begin).as_secs(), 20, "the time-out of the command");
    }
}

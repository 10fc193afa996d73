//! Streams whose peer has closed its direction: earlier messages are still answered (RFC 5041 §6.2.1). Tested with the
//! default policy, which `ddpd` uses, over both transports.

use std::sync::Arc;

use ddp::{EndpointPolicy, HALF_CLOSED_TIMEOUT, MESSAGE_QUEUE, StreamConfig, StreamId};

use super::test_host::*;
use crate::api::{CloseReason, Command, EndpointConfig, Event, SctpConfig, Service};

const PORT: u16 = 4791;
const MESSAGES: u8 = 20;

fn transports() -> [EndpointConfig; 2] {
    with_policy(EndpointPolicy::default())
}

fn with_policy(policy: EndpointPolicy) -> [EndpointConfig; 2] {
    let endpoint = sctp_lite::endpoint::EndpointConfig { policy, ..Default::default() };
    let sctp = SctpConfig { endpoint: Arc::new(endpoint), ..super::sctp::config() };
    let tcp = tcp_lite::endpoint::EndpointConfig { policy, ..Default::default() };
    [tcp.into(), sctp.into()]
}

/// Opens a stream that the second host serves with `service`; at most `posts` answers can be posted at a time.
fn open(config: &EndpointConfig, service: Service, posts: usize) -> (Net, StreamId, StreamId) {
    open_with(config, config, service, posts)
}

/// Opens a stream like [`open`], with the configuration `client` at the first host and `config` at the second.
fn open_with(
    config: &EndpointConfig,
    client: &EndpointConfig,
    service: Service,
    posts: usize,
) -> (Net, StreamId, StreamId) {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen_as(PORT, 9, 9, config.clone());
    net.run_until_idle();
    net.hosts[0].connect_as(0, (v4(2), PORT).into(), client.clone());
    let there = net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, .. } => Some(*stream),
            _ => None,
        })
    });
    let ulp = StreamConfig { max_posts: posts, ..stream_config() }.into();
    let accept = Command::Accept { stream: there, pd: PD, private_data: Vec::new(), ulp, service };
    net.hosts[1].command(0, |_| accept);
    let here = net.run_until("the stream", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Established { stream, .. } => Some(*stream),
            Event::ConnectFailed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    });
    (net, here, there)
}

/// Sends all messages from the first host and closes at once.
fn send_all_and_close(net: &mut Net, here: StreamId) {
    for n in 0..MESSAGES {
        net.hosts[0].send(here, &[n; 10]);
    }
    net.hosts[0].command(0, |_| Command::Close { stream: here, abort: false });
}

fn take_messages(net: &mut Net, host: usize) -> Vec<u8> {
    let next = |e: &Event| match e {
        Event::Untagged { qn, data, .. } if *qn == MESSAGE_QUEUE => Some(data[0]),
        _ => None,
    };
    core::iter::from_fn(|| net.hosts[host].take_event(next)).collect()
}

fn wait_end(net: &mut Net, host: usize) -> CloseReason {
    net.run_until("the end", |net| {
        net.hosts[host].take_event(|e| match e {
            Event::Closed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    })
}

#[test]
fn echo_answers_messages_received_before_peer_close() {
    for config in transports() {
        // The stream has room for all answers, or for a single answer.
        for posts in [1024, 1] {
            let (mut net, here, _) = open(&config, Service::Echo, posts);
            // The worker's service closes the stream, not the control thread.
            net.hosts[1].closes_after_peer = false;
            send_all_and_close(&mut net, here);
            let ends = [wait_end(&mut net, 0).name(), wait_end(&mut net, 1).name()];
            assert_eq!(ends, ["local_shutdown", "peer_shutdown"], "{config:?}");
            assert_eq!(take_messages(&mut net, 0), (0..MESSAGES).collect::<Vec<_>>(), "{config:?}");
        }
    }
}

#[test]
fn sink_closes_after_its_peer() {
    for config in transports() {
        let (mut net, here, _) = open(&config, Service::Sink, 1024);
        net.hosts[1].closes_after_peer = false;
        send_all_and_close(&mut net, here);
        assert_eq!(wait_end(&mut net, 0).name(), "local_shutdown", "{config:?}");
    }
}

#[test]
fn control_thread_answers_after_the_peers_close() {
    for config in transports() {
        let (mut net, here, there) = open(&config, Service::Control, 1024);
        net.hosts[1].closes_after_peer = false;
        send_all_and_close(&mut net, here);
        net.run_until("the peer's close", |net| {
            net.hosts[1].take_event(|e| matches!(e, Event::PeerClosed { .. }).then_some(()))
        });
        assert_eq!(take_messages(&mut net, 1).len(), usize::from(MESSAGES));
        net.hosts[1].send(there, b"answer");
        net.hosts[1].command(0, |_| Command::Close { stream: there, abort: false });
        let ends = [wait_end(&mut net, 0).name(), wait_end(&mut net, 1).name()];
        assert_eq!(ends, ["local_shutdown", "peer_shutdown"], "{config:?}");
        assert_eq!(take_messages(&mut net, 0), [b'a']);
    }
}

/// A control thread that never closes delays the end for a bounded time. The peer sees a failure.
#[test]
fn service_that_does_not_close_ends_in_a_failure() {
    let teardown_timeout = 2 * HALF_CLOSED_TIMEOUT;
    let patient = with_policy(EndpointPolicy { teardown_timeout, ..EndpointPolicy::default() });
    for (config, client) in transports().into_iter().zip(patient) {
        let (mut net, here, _) = open_with(&config, &client, Service::Control, 1024);
        net.hosts[1].closes_after_peer = false;
        send_all_and_close(&mut net, here);
        assert_eq!(wait_end(&mut net, 1).name(), "ulp_timeout", "{config:?}");
        let (reason, reported) = (wait_end(&mut net, 0), |e: &Event| match e {
            Event::Untagged { qn, data, .. } if *qn == ddp::ERROR_QUEUE => Some(data.clone()),
            _ => None,
        });
        let last_message = net.hosts[0].take_event(reported);
        assert!(!reason.is_graceful() || last_message.is_some(), "{config:?}: {reason}");
    }
}

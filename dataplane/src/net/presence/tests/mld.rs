//! Tests of a host that receives MLD queries of versions 1 and 2.

use std::net::Ipv6Addr;

use smoltcp::wire::Icmpv6Message;

use super::*;
use crate::checksum;
use crate::net::path::{self, IpHeader};
use crate::net::protocol::ICMPV6;

/// A hop-by-hop options header with a router alert for MLD. Its next header is ICMPv6.
const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
const MLDV2_ROUTERS: &str = "ff02::16";
/// Bytes of a version 1 query, and of a version 2 query without sources.
const V1_QUERY_LEN: usize = 24;
const V2_QUERY_LEN: usize = 28;
/// Group field of a general query, which asks for all groups.
const ALL: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
/// The groups of a host with [`TWO_ADDRESSES`]. The group of its link-local address equals the first.
const GROUPS: [&str; 2] = ["ff02::1:ff00:1", "ff02::1:ff00:aa"];
const TWO_ADDRESSES: [&str; 2] = ["2001:db8::1", "2001:db8::aa"];
/// Duration of version 1 mode after a query with a delay of 2 s: two times 125 s, plus the delay (RFC 3810 §9.12).
const V1_MODE_TIME: Duration = Duration::from_secs(252);
const MOMENT: Duration = Duration::from_millis(1);

/// Returns a frame with an MLD query (type 130) of `len` bytes. `delay` is the maximum response delay in milliseconds.
fn query(hop_limit: u8, source: Ipv6Addr, delay: u16, group: Ipv6Addr, len: usize) -> Vec<u8> {
    let other = Interface::with_addresses(None, OTHER_MAC, ["10.0.0.9", "2001:db8::9"]);
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let mut message = [[0; 8].as_slice(), &group.octets(), &[0; 32]].concat();
    message.truncate(len);
    message[0] = 130;
    message[4..6].copy_from_slice(&delay.to_be_bytes());
    let (source, destination) = (IpAddr::V6(source), IpAddr::V6(all));
    let sum = checksum::segment(source, destination, ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::new();
    let header = IpHeader { source, destination, protocol: IpProtocol::HopByHop, hop_limit };
    let len = ROUTER_ALERT.len() + len;
    path::write_ip_frame(&mut frame, &other, group_mac(all), header, len, |p| {
        p[..8].copy_from_slice(&ROUTER_ALERT);
        p[8..].copy_from_slice(&message);
    });
    frame
}

/// Delivers a valid query of `len` bytes from a router to the host. `delay` is the maximum delay in milliseconds.
fn send_query(
    host: &mut Host,
    delay: u16,
    group: Ipv6Addr,
    len: usize,
) -> Result<Notice, DropReason> {
    host.input(&query(1, link_local(OTHER_MAC), delay, group, len))
}

/// Returns a host one minute after its start, when no packet is due.
fn settled(addresses: [&str; 2]) -> Host {
    let mut host = Host::with_addresses(OWN_MAC, addresses);
    host.run_until(START + Duration::from_secs(60));
    assert_eq!(host.stack.poll_timeout(), None);
    host
}

/// Advances the host by `time`. Returns the reports that it sends, each with its delay and the group of a version 1
/// report (`None` for version 2).
fn drain_reports(host: &mut Host, time: Duration) -> Vec<(Duration, Option<Ipv6Addr>)> {
    let began = host.now.saturating_since(START);
    let frames = host.run_until(host.now + time);
    frames.iter().map(|(at, frame)| (*at - began, v1_report_group(frame))).collect()
}

/// Verifies the headers of a report. Returns the group of a version 1 report, `None` for version 2.
fn v1_report_group(frame: &[u8]) -> Option<Ipv6Addr> {
    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
    assert_eq!((ip.hop_limit(), ip.src_addr()), (1, link_local(OWN_MAC)));
    assert_eq!(ip.next_header(), IpProtocol::HopByHop);
    assert_eq!(frame[..6], group_mac(ip.dst_addr()));
    let (alert, message) = ip.payload().split_at(8);
    assert_eq!(alert, ROUTER_ALERT);
    let ends = (ip.src_addr().into(), ip.dst_addr().into());
    assert_eq!(checksum::segment(ends.0, ends.1, ICMPV6, message), 0);
    if message[0] == 143 {
        assert_eq!(ip.dst_addr(), MLDV2_ROUTERS.parse::<Ipv6Addr>().unwrap());
        return None;
    }
    // RFC 2710 §3: type 131, code and delay are zero, and the destination is the group itself.
    assert_eq!((message.len(), &message[..2], &message[4..8]), (24, &[131, 0][..], &[0; 4][..]));
    assert_eq!(message[8..], ip.dst_addr().octets());
    Some(ip.dst_addr())
}

fn groups() -> Vec<Option<Ipv6Addr>> {
    GROUPS.map(|group| Some(group.parse().unwrap())).to_vec()
}

/// Returns the groups of the reports, sorted.
fn sorted(reports: &[(Duration, Option<Ipv6Addr>)]) -> Vec<Option<Ipv6Addr>> {
    let mut groups: Vec<_> = reports.iter().map(|(_, group)| *group).collect();
    groups.sort_unstable();
    groups
}

// RFC 3810 §5, §6.2: two queries are answered by one report.
#[test]
fn query_is_answered_with_groups_within_its_delay() {
    let mut host = settled([V4, V6]);
    let began = host.now;
    let router = link_local(OTHER_MAC);
    assert_eq!(send_query(&mut host, 2000, ALL, V2_QUERY_LEN), Ok(Notice::Query));
    assert_eq!(send_query(&mut host, 2000, ALL, V2_QUERY_LEN), Ok(Notice::Query));
    let frames = host.run_until(began + Duration::from_secs(2));
    let [(_, frame)] = &frames[..] else { panic!("{} reports", frames.len()) };
    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
    assert_eq!((ip.hop_limit(), ip.src_addr()), (1, link_local(OWN_MAC)));
    assert_eq!(ip.dst_addr(), MLDV2_ROUTERS.parse::<Ipv6Addr>().unwrap());
    let (alert, message) = ip.payload().split_at(8);
    assert_eq!(alert, ROUTER_ALERT);
    let icmp = Icmpv6Packet::new_checked(message).unwrap();
    assert!(icmp.verify_checksum(&ip.src_addr(), &ip.dst_addr()));
    assert_eq!(icmp.msg_type(), Icmpv6Message::MldReport);
    // 2001:db8::1 and the link-local fe80::ff:fe00:1 share their last 24 bits, and so their group.
    let group: Ipv6Addr = "ff02::1:ff00:1".parse().unwrap();
    assert_eq!(message[6..8], [0, 1]);
    assert_eq!(message[8..12], [2, 0, 0, 0], "MODE_IS_EXCLUDE");
    assert_eq!(message[12..], group.octets());
    // RFC 3810 §8.1: queries from off-link senders, or with a length of neither version, are ignored.
    let elsewhere = "2001:db8::9".parse().unwrap();
    for bad in [query(2, router, 1, ALL, V2_QUERY_LEN), query(1, elsewhere, 1, ALL, V2_QUERY_LEN)] {
        assert_eq!(host.input(&bad), Err(DropReason::IcmpIgnored));
    }
    for len in [20, 23, 25, 27] {
        assert_eq!(send_query(&mut host, 1, ALL, len), Err(DropReason::IcmpIgnored), "{len}");
    }
    assert_eq!(host.stack.poll_timeout(), None);
}

// RFC 3810 §6.2 (1): the earlier of two due times applies.
#[test]
fn short_query_delay_is_met() {
    for len in [V2_QUERY_LEN, V1_QUERY_LEN] {
        let mut host = settled(TWO_ADDRESSES);
        send_query(&mut host, 10_000, ALL, len).unwrap();
        send_query(&mut host, 10, ALL, len).unwrap();
        let reports = drain_reports(&mut host, Duration::from_secs(10));
        assert_eq!(reports.len(), if len == V1_QUERY_LEN { 2 } else { 1 }, "{reports:?}");
        assert!(reports.iter().all(|(at, _)| *at <= Duration::from_millis(10)), "{reports:?}");
    }
}

// RFC 3810 §8.2.1, RFC 2710 §4: each group's report has its own random delay.
#[test]
fn mldv1_query_is_answered_in_version_1_within_delay() {
    let mut host = settled(TWO_ADDRESSES);
    let mut delays = Vec::new();
    for _ in 0..10 {
        assert_eq!(send_query(&mut host, 2000, ALL, V1_QUERY_LEN), Ok(Notice::Query));
        // A second query has no effect, because the pending reports are due within its delay.
        assert_eq!(send_query(&mut host, 2000, ALL, V1_QUERY_LEN), Ok(Notice::Query));
        let reports = drain_reports(&mut host, Duration::from_secs(2));
        assert_eq!(sorted(&reports), groups());
        delays.extend(reports.iter().map(|(at, _)| *at));
        assert_eq!(host.stack.poll_timeout(), None);
    }
    delays.sort_unstable();
    delays.dedup();
    assert_eq!(delays.len(), 20);
    assert!(delays[0] < Duration::from_millis(500) && delays[19] > Duration::from_millis(1500));
    // A delay of 0 is answered at once.
    send_query(&mut host, 0, ALL, V1_QUERY_LEN).unwrap();
    assert_eq!(sorted(&drain_reports(&mut host, Duration::ZERO)), groups());
}

// RFC 2710 §4, RFC 3810 §6.2: only members of a group answer a query for that group.
#[test]
fn group_specific_query_reports_only_that_group() {
    for len in [V1_QUERY_LEN, V2_QUERY_LEN] {
        let mut host = settled(TWO_ADDRESSES);
        let ours: Ipv6Addr = GROUPS[1].parse().unwrap();
        send_query(&mut host, 1000, ours, len).unwrap();
        let reports = drain_reports(&mut host, Duration::from_secs(1));
        assert_eq!(sorted(&reports), [Some(ours).filter(|_| len == V1_QUERY_LEN)]);
        let other = "ff02::1:ff00:bb".parse().unwrap();
        assert_eq!(send_query(&mut host, 1000, other, len), Err(DropReason::IcmpIgnored));
        assert_eq!(host.stack.poll_timeout(), None);
    }
}

// RFC 3810 §8.2.1, §9.12: duration of version 1 mode.
#[test]
fn mldv1_mode_lasts_until_time_out() {
    let mut host = settled(TWO_ADDRESSES);
    send_query(&mut host, 2000, ALL, V1_QUERY_LEN).unwrap();
    assert_eq!(drain_reports(&mut host, V1_MODE_TIME - MOMENT).len(), 2);
    // A version 2 query is answered in version 1 and does not prolong the mode.
    send_query(&mut host, 0, ALL, V2_QUERY_LEN).unwrap();
    assert_eq!(sorted(&drain_reports(&mut host, MOMENT)), groups());
    send_query(&mut host, 0, ALL, V2_QUERY_LEN).unwrap();
    assert_eq!(sorted(&drain_reports(&mut host, Duration::from_secs(60))), [None]);
    // A version 1 query in version 1 mode prolongs the mode.
    send_query(&mut host, 2000, ALL, V1_QUERY_LEN).unwrap();
    drain_reports(&mut host, V1_MODE_TIME - MOMENT);
    send_query(&mut host, 2000, ALL, V1_QUERY_LEN).unwrap();
    drain_reports(&mut host, V1_MODE_TIME - MOMENT);
    send_query(&mut host, 0, ALL, V2_QUERY_LEN).unwrap();
    assert_eq!(sorted(&drain_reports(&mut host, Duration::ZERO)), groups());
}

// RFC 3810 §8.2.1: pending responses and retransmissions are cancelled when the version changes.
#[test]
fn mode_change_discards_pending_reports() {
    let mut host = settled(TWO_ADDRESSES);
    send_query(&mut host, 10_000, ALL, V2_QUERY_LEN).unwrap();
    send_query(&mut host, 2000, ALL, V1_QUERY_LEN).unwrap();
    assert_eq!(sorted(&drain_reports(&mut host, V1_MODE_TIME - MOMENT)), groups());
    // Version 1 reports that are due after the end of version 1 mode are discarded. Delays are random, so the attempt
    // is repeated until both reports are due too late.
    let mut late = 0;
    while late < 2 {
        send_query(&mut host, 2000, ALL, V1_QUERY_LEN).unwrap();
        drain_reports(&mut host, V1_MODE_TIME - MOMENT);
        send_query(&mut host, 10_000, ALL, V2_QUERY_LEN).unwrap();
        late = 2 - drain_reports(&mut host, 2 * MOMENT).len();
        assert!(drain_reports(&mut host, Duration::from_secs(10)).is_empty());
    }
    // The second unsolicited report after the start is discarded.
    let mut host = Host::with_addresses(OWN_MAC, TWO_ADDRESSES);
    host.run_until(START);
    send_query(&mut host, 100, ALL, V1_QUERY_LEN).unwrap();
    let frames = host.run_until(START + Duration::from_secs(60));
    let is_report = |frame: &&(Duration, Vec<u8>)| {
        frame.1[12..14] == [0x86, 0xdd] && frame.1[20] == u8::from(IpProtocol::HopByHop)
    };
    let reports: Vec<_> =
        frames.iter().filter(is_report).map(|(_, f)| v1_report_group(f)).collect();
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(reports.iter().all(Option::is_some), "{reports:?}");
    // Version 1 mode continues when an interface comes up again.
    host.stack.bring_up(0, host.now);
    let frames = host.run_until(host.now + Duration::from_secs(60));
    let reports: Vec<_> =
        frames.iter().filter(is_report).map(|(_, f)| v1_report_group(f)).collect();
    assert_eq!(reports, [groups(), groups()].concat());
}

#[test]
fn query_flood_does_not_multiply_reports() {
    let mut host = settled(TWO_ADDRESSES);
    let mut refused = 0;
    for _ in 0..20_000 {
        match send_query(&mut host, 1, ALL, V1_QUERY_LEN) {
            Ok(_) => {}
            Err(reason) => {
                assert_eq!(reason, DropReason::RateLimited);
                refused += 1;
            }
        }
    }
    assert!(refused > 5000, "{refused}");
    // One timer per group, regardless of the number of queries.
    assert_eq!(drain_reports(&mut host, Duration::from_secs(1)).len(), 2);
}

//! Interaction of IPsec with other functions: frames that wait for an SA, NAT ports, path MTUs, listeners that require
//! protection, and the host's kernel on a shared port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ddp::{Access, RegionMemory as _, Stag};
use ipsec::crypto::Algorithm;
use ipsec::policy::{Spd, Unmatched};

use super::ipsec::*;
use super::paths::icmp_quoting_frame;
use super::sctp::config as sctp;
use super::test_host::*;
use crate::api::{
    Command, ConnectError, Event, HandshakeFailure, IpsecConfig, Protection, ReplayWindows,
    SaChange, SaConfig, SaDirection, SaDirectionConfig, SaId, WorkerId,
};
use crate::checksum;

pub(super) fn change_sa(net: &mut Net, host: usize, change: SaChange) {
    net.hosts[host].command_all(|ticket| Command::Sa { change: change.clone(), ticket });
    net.run_until_idle();
}

fn remove_out(net: &mut Net, host: usize, n: u32) {
    let id = SaId(spi(host as u8 + 1, false, n).into());
    change_sa(net, host, SaChange::Remove(id, SaDirection::Out));
}

fn add_out(net: &mut Net, n: u32) {
    let [inbound, _] = sas(PLAIN, 2, 1, false, n);
    change_sa(net, 1, SaChange::Add(inbound));
    let [_, outbound] = sas(PLAIN, 1, 2, false, n);
    change_sa(net, 0, SaChange::Add(outbound));
}

// An IKE daemon should add a new SA before it deletes the old one. If the daemon deletes the old SA first, no data are
// lost either.
#[test]
fn frames_wait_for_the_next_sa_for_a_bounded_time() {
    let mut net = net(PLAIN, |_| {});
    let stream = open(&mut net, false, false);
    write(&mut net, stream, 10, 50_000);
    let from = net.hosts[0].region(20, 8000, Access::NONE);
    let to = net.hosts[1].region(21, 8000, Access::REMOTE_WRITE);
    from.write(0, &pattern(8000));
    remove_out(&mut net, 0, 1);
    let ticket = net.hosts[0].write(stream, (Stag(20), &from), Stag(21), 8000);
    net.run_until_idle();
    let retransmitted = net.hosts[0].count("retransmitted_segments");
    add_out(&mut net, 2);
    net.wait_sent(0, ticket);
    assert!(read_memory(&to) == pattern(8000));
    // The waiting frames were sent with the new SA: TCP had nothing to retransmit.
    assert_eq!(net.hosts[0].count("retransmitted_segments"), retransmitted);
    assert_eq!(net.hosts[0].count("unsent_no_sa"), 0);
    // The wait is bounded. TCP retransmits the frames that were dropped.
    remove_out(&mut net, 0, 2);
    let to = net.hosts[1].region(22, 8000, Access::REMOTE_WRITE);
    let ticket = net.hosts[0].write(stream, (Stag(20), &from), Stag(22), 8000);
    net.advance(Duration::from_secs(8));
    assert!(net.hosts[0].count("unsent_no_sa") >= 6);
    add_out(&mut net, 3);
    net.wait_sent(0, ticket);
    assert!(read_memory(&to) == pattern(8000));
}

// RFC 3948 §4: a NAT drops the mapping of a port without traffic.
#[test]
fn nat_keepalives_are_sent_on_idle_sas() {
    for v6 in [false, true] {
        let mut net = net(Suite { udp: true, ..PLAIN }, |_| {});
        net.advance(Duration::from_secs(60));
        assert_eq!(
            net.hosts[0].count("nat_keepalives_out"),
            0,
            "no frame has created a NAT mapping yet"
        );
        let stream = open(&mut net, false, v6);
        write(&mut net, stream, 10, 50_000);
        let seen = std::rc::Rc::new(std::cell::Cell::new(0));
        let count = seen.clone();
        net.is_lost = Box::new(move |_, frame| {
            let Some((at, protocol)) = protocol(frame) else { return false };
            let header = if v6 { 40 } else { 20 };
            if protocol == 17 && frame.len() == at + header + 9 {
                assert_eq!(frame[at + header..][..6], [0x11, 0x94, 0x11, 0x94, 0, 9]);
                assert_eq!(frame[at + header + 8], 0xff);
                if !v6 {
                    assert_eq!(checksum::sum(&frame[at..at + 20]), 0xffff);
                }
                count.set(count.get() + 1);
            }
            false
        });
        net.advance(Duration::from_secs(90));
        let sent: Vec<u64> = net.hosts.iter().map(|h| h.count("nat_keepalives_out")).collect();
        assert!(sent.iter().all(|sent| (3..=4).contains(sent)), "{sent:?}");
        assert_eq!(seen.get(), sent[0] + sent[1]);
        for (host, sent) in [(1, sent[0]), (0, sent[1])] {
            assert_eq!(net.hosts[host].count("nat_keepalives_in"), sent);
            assert_eq!(net.hosts[host].count("drops"), 0);
        }
        // Frames of the stream keep the NAT mapping alive, as keepalives do.
        write(&mut net, stream, 20, 50_000);
    }
}

// RFC 4301 §8.2.1: a router's ICMP error quotes only the ESP packet, without the ports inside.
#[test]
fn packet_too_big_about_esp_shortens_packets() {
    for workers in [1, 2] {
        let mut net = net(PLAIN, |plan| plan.workers = workers);
        let (stream, _) = net.open(0, usize::from(workers) - 1, 1, (v4(2), PORT).into());
        write(&mut net, stream, 10, 100_000);
        let long = std::rc::Rc::new(std::cell::RefCell::new(None));
        let recorder = long.clone();
        net.is_lost = Box::new(move |from, frame| {
            let is_long = from == 0 && frame.len() > 14 + 1300;
            if is_long {
                recorder.borrow_mut().get_or_insert_with(|| frame.to_vec());
            }
            is_long
        });
        let from = net.hosts[0].region(20, 100_000, Access::NONE);
        let to = net.hosts[1].region(21, 100_000, Access::REMOTE_WRITE);
        from.write(0, &pattern(100_000));
        let ticket = net.hosts[0].write(stream, (Stag(20), &from), Stag(21), 100_000);
        net.advance(Duration::from_millis(50));
        let quoted = long.borrow_mut().take().expect("a long frame");
        let mut forged = quoted.clone();
        forged[34] ^= 1;
        net.hosts[0].deliver(icmp_quoting_frame(3, 4, 1000, &forged));
        net.hosts[0].deliver(icmp_quoting_frame(3, 4, 1300, &quoted));
        net.wait_sent(0, ticket);
        assert!(read_memory(&to) == pattern(100_000));
        assert_eq!(net.hosts[0].count("ipsec_path_mtu_updates"), 1);
        // Subsequent packets have the right length from the beginning.
        *long.borrow_mut() = None;
        write(&mut net, stream, 30, 100_000);
        assert!(long.borrow().is_none());
    }
}

pub(super) fn listen_requiring(net: &mut Net, port: u16, over_sctp: bool, bits: u16) {
    net.hosts[1].require = Some(bits);
    match over_sctp {
        false => net.hosts[1].listen(port),
        true => net.hosts[1].listen_as(port, 100, 100, sctp()),
    }
    net.run_until_idle();
}

#[test]
fn listener_requiring_protection_refuses_weaker_streams() {
    for (over_sctp, port) in [(false, 5000), (true, 5001)] {
        let remote = SocketAddr::new(v4(2), port);
        let name = if over_sctp { "sctp" } else { "tcp" };
        for (algorithm, bits, good) in [
            (Algorithm::AesGcm128, 0, true),
            (Algorithm::AesGcm128, 128, true),
            (Algorithm::AesGcm128, 256, false),
            (Algorithm::AesGcm256, 256, true),
            (Algorithm::NullHmacSha256, 0, true),
            (Algorithm::NullHmacSha256, 128, false),
        ] {
            let mut net = net(Suite { algorithm, ..PLAIN }, |_| {});
            listen_requiring(&mut net, port, over_sctp, bits);
            if good {
                match over_sctp {
                    false => drop(net.open(0, 0, 1, remote)),
                    true => drop(net.open_as(0, 0, 1, remote, sctp())),
                }
                continue;
            }
            assert_refused(&mut net, remote, over_sctp, name);
        }
        // The listener's requirement also applies on a host without IPsec policies.
        let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
        listen_requiring(&mut net, port, over_sctp, 0);
        assert_refused(&mut net, remote, over_sctp, name);
    }
}

fn assert_refused(net: &mut Net, remote: SocketAddr, over_sctp: bool, name: &'static str) {
    match over_sctp {
        false => net.hosts[0].connect(0, remote),
        true => net.hosts[0].connect_as(0, remote, sctp()),
    };
    let report = net.run_until("a refusal", |net| {
        net.hosts[1].take_event(|event| match event {
            Event::HandshakeFailed(failed) => Some((**failed).clone()),
            _ => None,
        })
    });
    assert_eq!(report.failure, HandshakeFailure::new(name, "not_protected"));
    assert!(report.listener.is_some());
    let failed = net.run_until("the end", |net| {
        net.hosts[0].take_event(|event| match event {
            Event::ConnectFailed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    });
    assert!(!matches!(failed, ConnectError::Timeout(_)), "{failed}");
}

// With an IKE daemon there are no policies at first. Until they are added, no packet passes in clear.
#[test]
fn policy_and_sa_changes_keep_streams_running() {
    let empty = |_: u8| {
        Arc::new(IpsecConfig {
            policies: Spd::from_checked(Vec::new(), Unmatched::DROP),
            owners: Vec::new(),
            sas: Vec::new(),
            sole_sealer: false,
            windows: ReplayWindows::default(),
        })
    };
    let mut plans = [Plan::new(1), Plan::new(2)];
    for plan in &mut plans {
        plan.workers = 2;
        plan.ipsec = Some(empty(plan.number));
    }
    let mut net = Net::new(&plans);
    net.hosts[1].listen(PORT);
    net.run_until_idle();
    assert_no_clear_packets(&mut net, false);
    net.hosts[0].connect(1, (v4(2), PORT).into());
    net.advance(Duration::from_millis(100));
    assert!(net.hosts[0].count("unsent_policy") > 0);
    for host in 0..2 {
        let ipsec = config(PLAIN, host as u8 + 1, 2);
        let owners: Arc<[WorkerId]> = ipsec.owners.clone().into();
        let policies = Arc::new(ipsec.policies.clone());
        change_sa(&mut net, host, SaChange::Policies { policies, owners });
        for sa in &ipsec.sas {
            change_sa(&mut net, host, SaChange::Add(sa.clone()));
        }
    }
    let (stream, _) = net.open(0, 0, 1, (v4(2), PORT).into());
    write(&mut net, stream, 10, 50_000);
    // The new SA of a rekey is redundant and removed (RFC 7296 §2.8.1). The older SA is selected again.
    let [inbound, outbound] =
        [sas(PLAIN, 2, 1, false, 2)[0].clone(), sas(PLAIN, 1, 2, false, 2)[1].clone()];
    change_sa(&mut net, 1, SaChange::Add(inbound));
    let newest = outbound.id;
    change_sa(&mut net, 0, SaChange::Add(outbound));
    write(&mut net, stream, 20, 50_000);
    let first = SaId(spi(1, false, 1).into());
    change_sa(&mut net, 0, SaChange::Select(first));
    change_sa(&mut net, 0, SaChange::Remove(newest, SaDirection::Out));
    change_sa(&mut net, 1, SaChange::Remove(newest, SaDirection::In));
    write(&mut net, stream, 30, 50_000);
    assert_eq!(net.hosts[1].count("esp_unknown_spi"), 0);
}

/// Packets of the host's kernel on a shared port are sealed, or their rejection is reported to the kernel.
#[test]
fn host_kernel_packets_of_a_shared_port_are_sealed() {
    let mut net = net(PLAIN, |plan| plan.shared = plan.number == 1);
    let stream = open(&mut net, false, false);
    write(&mut net, stream, 10, 50_000);
    let kernel_frames = |net: &mut Net| {
        let end = net.hosts[0].kernel.as_mut().unwrap();
        std::iter::from_fn(|| end.pop()).collect::<Vec<_>>()
    };
    kernel_frames(&mut net);
    let udp = |len: usize| {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let total = (28 + len) as u16;
        frame.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        let sum = !checksum::sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend([0, 7, 0, 9]);
        frame.extend((8 + len as u16).to_be_bytes());
        frame.resize(42 + len, 0);
        frame
    };
    let sealed = net.hosts[0].count("ipsec_sealed");
    net.hosts[0].kernel.as_mut().unwrap().push(&udp(100));
    net.run_until_idle();
    assert_eq!(net.hosts[0].count("ipsec_sealed"), sealed + 1);
    assert!(kernel_frames(&mut net).is_empty());
    // A packet that becomes too long when sealed is reported to the kernel as a router would report it.
    net.hosts[0].kernel.as_mut().unwrap().push(&udp(1472));
    net.run_until_idle();
    assert_eq!(net.hosts[0].count("unsent_too_long"), 1);
    let [report] = &kernel_frames(&mut net)[..] else { panic!() };
    assert_eq!((report[23], report[34], report[35]), (1, 3, 4));
    assert_eq!(report[26..34], [10, 0, 0, 2, 10, 0, 0, 1]);
    let mtu = u16::from_be_bytes([report[40], report[41]]);
    assert!((1440..1500).contains(&mtu), "{mtu}");
    assert_eq!(checksum::sum(&report[34..]), 0xffff);
    net.hosts[0].kernel.as_mut().unwrap().push(&udp(usize::from(mtu) - 28));
    net.run_until_idle();
    assert_eq!(net.hosts[0].count("ipsec_sealed"), sealed + 2);
    // An ESP packet of the kernel with the SPI of one of the worker's SAs is not sent.
    let mut esp = udp(100);
    esp[23] = 50;
    esp[34..38].copy_from_slice(&spi(1, false, 1).to_be_bytes());
    esp[24..26].fill(0);
    let sum = !checksum::sum(&esp[14..34]);
    esp[24..26].copy_from_slice(&sum.to_be_bytes());
    net.hosts[0].kernel.as_mut().unwrap().push(&esp);
    net.run_until_idle();
    assert_eq!(net.hosts[0].count("unsent_twice"), 1);
}

/// Policies do not apply to traffic between other hosts.
#[test]
fn frames_for_other_hosts_are_neither_opened_nor_audited() {
    let mut net = net(PLAIN, |_| {});
    let mut clear = super::floods::forged_segment((1, 4000), PORT, tcp_lite::tcp::Flags::SYN);
    clear.0[5] = 77;
    let before = net.hosts[1].count("not_our_mac");
    net.hosts[1].deliver(clear.clone());
    net.run_until_idle();
    assert_eq!(net.hosts[1].count("ipsec_unprotected"), 0);
    assert_eq!(net.hosts[1].count("not_our_mac"), before + 1);
    // A packet with a wrong IP header checksum is dropped before the policies are checked. Decryption, which writes a
    // new header checksum, would hide the damage.
    let mut damaged = super::floods::forged_segment((1, 4000), PORT, tcp_lite::tcp::Flags::SYN);
    damaged.0[22] ^= 1;
    net.hosts[1].deliver(damaged);
    net.run_until_idle();
    assert_eq!(net.hosts[1].count("ip_checksum"), 1);
}

#[test]
fn sa_with_unknown_protection_is_refused() {
    let mut net = net(PLAIN, |_| {});
    let [inbound, _] = sas(PLAIN, 1, 2, false, 3);
    let wrong = SaConfig { protection: Protection(9), ..inbound };
    assert!(matches!(wrong.direction_config, SaDirectionConfig::In { .. }));
    let ticket =
        net.hosts[0].command(0, |ticket| Command::Sa { change: SaChange::Add(wrong), ticket });
    let result = net.run_until("an answer", |net| {
        net.hosts[0].take_event(|event| match event {
            Event::Done { ticket: of, result } if *of == ticket => Some(result.clone()),
            _ => None,
        })
    });
    assert!(result.is_err());
}

/// An update of the SA with an older reported sequence number does not let replayed packets pass.
#[test]
fn updated_sa_rejects_replayed_packets() {
    // The second SA replaces the first. The new SA belongs to the same worker, to another worker, or uses UDP
    // encapsulation.
    for (workers, changes_owner, udp) in [(1, false, false), (2, true, false), (1, false, true)] {
        let mut net = net(Suite { udp, ..PLAIN }, |plan| plan.workers = workers);
        let stream = open(&mut net, false, false);
        write(&mut net, stream, 10, 30_000);
        let kept = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let recorder = kept.clone();
        net.is_lost = Box::new(move |from, frame| {
            let esp = if udp { 17 } else { 50 };
            if from == 0 && protocol(frame).is_some_and(|(_, protocol)| protocol == esp) {
                recorder.borrow_mut().push(TestFrame::new(frame.to_vec()));
            }
            false
        });
        write(&mut net, stream, 20, 30_000);
        net.is_lost = Box::new(|_, _| false);
        if changes_owner {
            // From now on the protected flows belong to another worker.
            let ipsec = config(PLAIN, 2, workers);
            let policies = Arc::new(Spd::from_checked(
                vec![ipsec::policy::Policy {
                    direction: None,
                    selector: selector(false),
                    action: ipsec::policy::Action::Protect(Protection(1)),
                }],
                Unmatched::DROP,
            ));
            let owners: Arc<[WorkerId]> = ipsec.owners.clone().into();
            change_sa(&mut net, 1, SaChange::Policies { policies, owners });
        }
        let id = SaId(spi(1, false, 1).into());
        change_sa(&mut net, 1, SaChange::Remove(id, SaDirection::In));
        let [mut inbound, _] = sas(Suite { udp, ..PLAIN }, 2, 1, false, 1);
        (inbound.id, inbound.direction_config) =
            (SaId(1 << 40), SaDirectionConfig::In { window: 1024, top: 3 });
        if changes_owner {
            inbound.protection = Protection(1);
        }
        change_sa(&mut net, 1, SaChange::Add(inbound));
        let before = net.hosts[1].count("ipsec_opened");
        let frames = kept.borrow().clone();
        assert!(frames.len() > 20);
        for frame in &frames {
            net.hosts[1].deliver(frame.clone());
            net.run_until_idle();
        }
        let opened_twice = net.hosts[1].count("ipsec_opened") - before;
        assert_eq!(opened_twice, 0, "of {} frames that were opened before", frames.len());
        assert_eq!(net.hosts[1].count("esp_replay"), frames.len() as u64);
        if !changes_owner {
            write(&mut net, stream, 30, 30_000);
        }
    }
}

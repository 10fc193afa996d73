//! Test of the mirror with this host's kernel, in a separate network namespace. Needs root, `ip` (iproute2) and a
//! kernel with XFRM; otherwise the test is skipped with a message.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)]

#[path = "../examples/dump/socket.rs"]
mod socket;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use ipsec::guard::Protection;
use ipsec::policy::{Action, Direction, Flow, Policy, Unmatched};
use netlink_packet_core::{NetlinkBuffer, Parseable as _};
use netlink_packet_xfrm::constants::XFRM_MSG_ACQUIRE;
use netlink_packet_xfrm::{AcquireMessage, XfrmAttrs};
use socket::{Groups, Received, Socket};
use xfrm::{Event, Mirror, MirrorConfig, ProtectionInfo, SaId, SequenceState};

/// Environment variable that marks the process inside the network namespace.
const NAMESPACE_VARIABLE: &str = "XFRM_TEST_NAMESPACE";
const RECEIVE_TIMEOUT: Option<Duration> = Some(Duration::from_millis(500));

/// Policies, treatment of unmatched packets, and protections of an [`Event::Policies`].
type List = (Vec<Policy<Protection>>, Unmatched, Vec<ProtectionInfo>);

fn ip(arguments: &str) -> Output {
    Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2's ip")
}

fn configure(arguments: &str) {
    let output = ip(arguments);
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// A network namespace, deleted with its contents on drop.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("netns delete {}", self.0));
    }
}

#[test]
fn kernel_policies_are_mirrored() {
    if std::env::var_os(NAMESPACE_VARIABLE).is_some() {
        return run_in_namespace();
    }
    let has_ip = Command::new("ip").arg("-V").output().is_ok();
    if !rustix::process::geteuid().is_root()
        || !has_ip
        || !Path::new("/proc/net/xfrm_stat").exists()
    {
        eprintln!("LEFT OUT: this test needs root, iproute2's `ip`, and a kernel with XFRM");
        return;
    }
    let namespace = Namespace(format!("xfrm-test-{}", std::process::id()));
    let made = ip(&format!("netns add {}", namespace.0));
    if !made.status.success() {
        eprintln!("LEFT OUT: no network namespace can be made here: {made:?}");
        return;
    }
    let this = std::env::current_exe().unwrap();
    let output = Command::new("ip")
        .args(["netns", "exec", &namespace.0])
        .arg(this)
        .args(["--exact", "kernel_policies_are_mirrored", "--nocapture"])
        .env(NAMESPACE_VARIABLE, &namespace.0)
        .output()
        .unwrap();
    let (out, error) = (&output.stdout, &output.stderr);
    let text = format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(error));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    for line in text.lines().filter(|line| line.contains("LEFT OUT") || line.contains("mirrored")) {
        eprintln!("{line}");
    }
}

struct MirrorWithSocket {
    socket: Socket,
    mirror: Mirror,
}

impl MirrorWithSocket {
    fn new() -> MirrorWithSocket {
        let socket = Socket::open(Groups::MIRROR, RECEIVE_TIMEOUT).unwrap();
        let mut mirror = Mirror::new(MirrorConfig::default());
        mirror.request_dump();
        MirrorWithSocket { socket, mirror }
    }

    /// Exchanges messages until the kernel is silent for [`RECEIVE_TIMEOUT`]. Returns the events.
    fn run(&mut self) -> Vec<Event> {
        loop {
            while let Some(request) = self.mirror.poll_transmit() {
                self.socket.send(&request).unwrap();
            }
            match self.socket.receive().unwrap() {
                Received::Datagram(datagram) => self.mirror.input(&datagram),
                Received::Overrun => panic!("messages were lost"),
                Received::Timeout => break,
            }
        }
        assert!(self.mirror.is_synced());
        assert_eq!(self.mirror.counters(), Default::default());
        std::iter::from_fn(|| self.mirror.poll_event()).collect()
    }

    fn list(&mut self) -> List {
        let events = self.run();
        let list = events.into_iter().rev().find_map(|event| match event {
            Event::Policies { list, unselected, protections } => {
                Some((list, unselected, protections))
            }
            _ => None,
        });
        list.expect("a list of policies")
    }
}

fn local_selectors(list: &List) -> Vec<String> {
    list.0.iter().map(|policy| policy.selector.local.to_string()).collect()
}

fn run_in_namespace() {
    // A socket in the group of acquire messages, as IKE daemons open it.
    let daemon = Socket::open(Groups(1), RECEIVE_TIMEOUT).unwrap();
    let tunnel = "tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 7 mode tunnel";
    let back = "tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 7 mode tunnel";
    let remote = "dst 10.9.0.0/16 dir out priority 5";
    configure(&format!("xfrm policy add src 10.1.0.0/16 {remote} {tunnel}"));
    configure(&format!("xfrm policy add src 10.2.0.0/16 {remote} action block"));
    configure(&format!("xfrm policy add src 10.9.0.0/16 dst 10.1.0.0/16 dir in priority 9 {back}"));
    configure(&format!(
        "xfrm policy add src 10.9.0.0/16 dst 10.1.0.0/16 dir fwd priority 1 {back}"
    ));
    let mut mirrored = MirrorWithSocket::new();
    let list = mirrored.list();
    assert_eq!(local_selectors(&list), ["10.1.0.0/16", "10.2.0.0/16", "10.1.0.0/16"]);
    let [protection] = &list.2[..] else { panic!("{list:?}") };
    let actions: Vec<_> = list.0.iter().map(|policy| policy.action.clone()).collect();
    let protect = Action::Protect(protection.protection);
    assert_eq!(actions, [protect.clone(), Action::Discard, protect]);
    assert_eq!(protection.to_string(), "tunnel 192.0.2.1 - 192.0.2.2, reqid 7");
    assert_eq!(list.1, Unmatched::PASS);

    check_changes(&mut mirrored, remote, tunnel);
    check_acquire(&mut mirrored, &daemon);
    check_larval_sa(&mut mirrored);
    check_sas(&mut mirrored);
    check_defaults(&mut mirrored);

    configure("xfrm policy flush");
    let list = mirrored.list();
    assert!(list.0.is_empty() && list.2.is_empty());
    eprintln!("the policies of a real kernel were mirrored");
}

fn check_changes(mirrored: &mut MirrorWithSocket, remote: &str, tunnel: &str) {
    let selector = "src 10.3.0.7/32 dst 10.9.0.0/16 proto 6 sport 4420 dir out";
    configure(&format!("xfrm policy add {selector} priority 5"));
    let list = mirrored.list();
    let added = list.0.iter().find(|policy| policy.action == Action::Bypass);
    let added = added.expect("the added policy");
    assert_eq!(added.direction, Some(Direction::Out));
    assert_eq!(added.selector.local.to_string(), "10.3.0.7/32");
    assert_eq!((added.selector.protocol, &added.selector.local_ports), (Some(6), &(4420..=4420)));
    assert_eq!(added.selector.remote_ports, 0..=65535);
    // A replaced policy becomes the newest of its priority.
    configure(&format!("xfrm policy update src 10.1.0.0/16 {remote} {tunnel} level required"));
    let list = mirrored.list();
    assert_eq!(local_selectors(&list)[..3], ["10.2.0.0/16", "10.3.0.7/32", "10.1.0.0/16"]);
    // A repeated dump causes no event, and a new mirror has the same list.
    mirrored.mirror.request_dump();
    assert!(mirrored.run().is_empty());
    assert_eq!(local_selectors(&MirrorWithSocket::new().list()), local_selectors(&list));
    configure(&format!("xfrm policy delete {selector}"));
    assert_eq!(mirrored.list().0.len(), 3);
    // A BEET policy is refused, with an event.
    configure("xfrm policy add src 10.4.0.0/16 dst 10.9.0.0/16 dir out tmpl proto esp mode beet");
    let events = mirrored.run();
    assert!(events.iter().any(|event| matches!(event, Event::Refused { .. })), "{events:?}");
    // The mark is part of a policy's identity.
    configure("xfrm policy add src 10.4.0.0/16 dst 10.9.0.0/16 dir out mark 1 mask 1");
    mirrored.run();
    assert_eq!(mirrored.mirror.policies().count(), 5);
    configure("xfrm policy delete src 10.4.0.0/16 dst 10.9.0.0/16 dir out mark 1 mask 1");
    configure("xfrm policy delete src 10.4.0.0/16 dst 10.9.0.0/16 dir out");
    assert_eq!(mirrored.list().0.len(), 3);
}

/// The kernel accepts the mirror's acquire message, and daemons receive it.
fn check_acquire(mirrored: &mut MirrorWithSocket, daemon: &Socket) {
    let protection = mirrored.mirror.protections()[0].protection;
    let [local, remote] = ["10.1.2.3", "10.9.8.7"].map(|ip| ip.parse().unwrap());
    let flow =
        Flow { local, remote, protocol: 6, ports: Some((1000, 4420)), icmp: None, ike: false };
    mirrored.mirror.acquire(protection, &flow);
    mirrored.run();
    let Received::Datagram(datagram) = daemon.receive().unwrap() else { panic!("no request") };
    let buffer = NetlinkBuffer::new_checked(&datagram[..]).unwrap();
    assert_eq!(buffer.message_type(), XFRM_MSG_ACQUIRE);
    let message = AcquireMessage::parse(buffer.payload()).unwrap();
    let selector = &message.acquire.selector;
    assert_eq!(
        (selector.saddr.to_ipv4().to_string(), selector.prefixlen_s),
        ("10.1.2.3".into(), 32)
    );
    assert_eq!(
        (selector.daddr.to_ipv4().to_string(), selector.prefixlen_d),
        ("10.9.8.7".into(), 32)
    );
    assert_eq!((selector.sport, selector.dport, selector.proto), (1000, 4420, 6));
    assert_eq!(message.acquire.id.daddr.to_ipv4().to_string(), "192.0.2.2");
    assert_eq!(message.acquire.policy.selector.prefixlen_s, 16);
    let Some(XfrmAttrs::Template(templates)) =
        message.nlas.iter().find(|nla| matches!(nla, XfrmAttrs::Template(_)))
    else {
        panic!("{message:?}")
    };
    assert_eq!((templates[0].reqid, templates[0].mode), (7, 1));
}

/// Adds, changes and expires SAs. Skipped if the kernel lacks ESP or AES-GCM.
fn check_sas(mirrored: &mut MirrorWithSocket) {
    let key = "a5".repeat(20);
    let gcm = format!("reqid 7 mode tunnel aead rfc4106(gcm(aes)) 0x{key} 128");
    let out = "src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001";
    let back = "src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1002";
    let udp = |port| format!("encap espinudp 4500 {port} 0.0.0.0");
    let added = ip(&format!("xfrm state add {out} {gcm} replay-window 32 {}", udp(61000)));
    if !added.status.success() {
        eprintln!("LEFT OUT: SAs, as this kernel has no ESP or no AES-GCM: {added:?}");
        return;
    }
    configure(&format!("xfrm state add {back} {gcm} flag esn replay-window 128"));
    const CHUNK: u64 = 1 << 20;
    let events = mirrored.run();
    let both = [sequence(&events, 0x1001), sequence(&events, 0x1002)];
    let [(first, outbound), (second, inbound)] = both;
    assert_eq!(outbound, SequenceState::Outbound { first: 1, numbers: CHUNK });
    assert_eq!(inbound, SequenceState::Inbound { highest: 0, window: 1024 });
    // The mirror reports use and reserves more sequence numbers.
    mirrored.mirror.report_usage(first, 3, 333, 3, 1_700_000_000);
    mirrored.mirror.report_usage(second, 4, 444, 5 << 32 | 9, 1_700_000_000);
    mirrored.mirror.reserve_sequence(first);
    let events = mirrored.run();
    assert!(
        matches!(events[..], [Event::Reserved { last, .. }] if last == 2 * CHUNK),
        "{events:?}"
    );
    let shown = String::from_utf8(ip("-s xfrm state").stdout).unwrap();
    for words in
        ["oseq 0x200000", "333(bytes), 3(packets)", "444(bytes), 4(packets)", "use 2023-11-14"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    mirrored.mirror.request_dump();
    assert!(mirrored.run().is_empty());
    // A new mirror, as after a crash of ddpd, continues with the numbers in the kernel.
    let events = MirrorWithSocket::new().run();
    assert_eq!(
        sequence(&events, 0x1001).1,
        SequenceState::Outbound { first: 2 * CHUNK + 1, numbers: CHUNK }
    );
    assert_eq!(
        sequence(&events, 0x1002).1,
        SequenceState::Inbound { highest: 5 << 32 | 9, window: 1024 }
    );
    // A change of the peer's UDP port replaces the SA.
    configure(&format!("xfrm state update {out} {gcm} replay-window 32 {}", udp(61001)));
    let events = mirrored.run();
    assert!(matches!(events[0], Event::RemoveSa { id } if id == first), "{events:?}");
    let (third, outbound) = sequence(&events, 0x1001);
    assert!(
        matches!(outbound, SequenceState::Outbound { first, .. } if first > 2 * CHUNK),
        "{outbound:?}"
    );
    let shown = String::from_utf8(ip("xfrm state").stdout).unwrap();
    assert!(shown.contains("dport 61001"), "{shown}");
    // The kernel deletes an SA when it receives the report of the SA's hard expiry.
    mirrored.mirror.expire(third, false);
    assert!(mirrored.run().is_empty());
    mirrored.mirror.expire(third, true);
    let events = mirrored.run();
    assert!(matches!(events[..], [Event::RemoveSa { id }] if id == third), "{events:?}");
    assert!(!String::from_utf8(ip("xfrm state").stdout).unwrap().contains("0x00001001"));
    configure(&format!("xfrm state delete {back}"));
    let events = mirrored.run();
    assert!(matches!(events[..], [Event::RemoveSa { id }] if id == second), "{events:?}");
    eprintln!("the SAs of a real kernel were mirrored");
}

fn sequence(events: &[Event], spi: u32) -> (SaId, SequenceState) {
    let found = events.iter().find_map(|event| match event {
        Event::AddSa { id, parameters, sequence, .. } if parameters.spi == spi => {
            Some((*id, *sequence))
        }
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no SA {spi:#x}: {events:?}"))
}

/// An SPI that a daemon has only allocated (a larval SA) is not mirrored.
fn check_larval_sa(mirrored: &mut MirrorWithSocket) {
    configure(
        "xfrm state allocspi src 192.0.2.2 dst 192.0.2.1 proto esp reqid 7 mode tunnel min 0x1000 max 0x2000",
    );
    mirrored.mirror.request_dump();
    assert!(mirrored.run().is_empty());
    assert_eq!(mirrored.mirror.sas().count(), 0);
    configure("xfrm state flush");
    assert!(mirrored.run().is_empty());
}

fn check_defaults(mirrored: &mut MirrorWithSocket) {
    let set = ip("xfrm policy setdefault in block out accept");
    if !set.status.success() {
        eprintln!("LEFT OUT: the default policies of this kernel or `ip` cannot be set: {set:?}");
        return;
    }
    assert_eq!(mirrored.list().1, Unmatched { inbound: false, outbound: true });
    assert_eq!(MirrorWithSocket::new().list().1, Unmatched { inbound: false, outbound: true });
    configure("xfrm policy setdefault in accept");
    assert_eq!(mirrored.list().1, Unmatched::PASS);
}

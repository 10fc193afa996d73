//! The policy database: the first matching policy decides, in both directions, and no protected packet passes in clear.
use ipsec::policy::{
    Action, Decision, Denial, Direction, Flow, MAX_POLICIES, Policy, PolicyError, Selector, Spd,
    Unmatched,
};
use proptest::prelude::*;

const TCP: u8 = 6;
const UDP: u8 = 17;

fn selector(remote: &str, protocol: Option<u8>, port: Option<u16>) -> Selector {
    let local = if remote.contains(':') { "::/0" } else { "0.0.0.0/0" };
    Selector {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
        protocol,
        local_ports: port.map_or(0..=u16::MAX, |port| port..=port),
        remote_ports: 0..=u16::MAX,
    }
}

fn policy(
    remote: &str,
    protocol: Option<u8>,
    port: Option<u16>,
    action: Action<&'static str>,
) -> Policy<&'static str> {
    Policy { direction: None, selector: selector(remote, protocol, port), action }
}

fn flow(remote: &str, protocol: u8, ports: Option<(u16, u16)>) -> Flow {
    let local = if remote.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
    Flow {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
        protocol,
        ports,
        icmp: None,
        ike: false,
    }
}

fn outbound<'a, T: PartialEq>(spd: &'a Spd<T>, flow: &Flow) -> Result<Option<&'a T>, Denial> {
    match spd.decide(flow, Direction::Out) {
        Decision::Protect(protection) => Ok(Some(protection)),
        Decision::Bypass => Ok(None),
        Decision::Denied(denied) => Err(denied),
    }
}

fn inbound<T: PartialEq>(spd: &Spd<T>, flow: &Flow, protection: Option<&T>) -> Result<(), Denial> {
    match (spd.decide(flow, Direction::In), protection) {
        (Decision::Protect(asked), Some(by)) if asked == by => Ok(()),
        (Decision::Protect(_), None) => Err(Denial::Unprotected),
        (Decision::Bypass, None) => Ok(()),
        (Decision::Denied(denied), _) => Err(denied),
        (_, Some(_)) => Err(Denial::WrongProtection),
    }
}

fn spd() -> Spd<&'static str> {
    Spd::new(vec![
        policy("10.0.0.0/24", Some(TCP), Some(22), Action::Bypass),
        policy("10.0.0.0/8", Some(TCP), None, Action::Protect("strong")),
        policy("10.0.0.0/8", None, None, Action::Discard),
        policy("2001:db8::/32", None, None, Action::Protect("other")),
    ])
    .unwrap()
}

#[test]
fn first_matching_policy_decides() {
    let spd = spd();
    let tcp = |remote, port| flow(remote, TCP, Some((port, 4000)));
    assert_eq!(outbound(&spd, &tcp("10.0.0.9", 22)), Ok(None));
    assert_eq!(outbound(&spd, &tcp("10.0.0.9", 23)), Ok(Some(&"strong")));
    assert_eq!(outbound(&spd, &tcp("10.9.0.9", 22)), Ok(Some(&"strong")));
    assert_eq!(outbound(&spd, &flow("10.0.0.9", 47, None)), Err(Denial::Discarded));
    assert_eq!(outbound(&spd, &tcp("2001:db8::9", 22)), Ok(Some(&"other")));
    assert_eq!(outbound(&spd, &tcp("192.0.2.9", 22)), Err(Denial::NoPolicy));
}

// RFC 4301 §5.2: a packet must arrive with the protection that its policy requires.
#[test]
fn inbound_packet_needs_protection_of_its_policy() {
    let spd = spd();
    let protected = flow("10.0.0.9", TCP, Some((23, 4000)));
    assert_eq!(inbound(&spd, &protected, Some(&"strong")), Ok(()));
    assert_eq!(inbound(&spd, &protected, None), Err(Denial::Unprotected));
    assert_eq!(inbound(&spd, &protected, Some(&"other")), Err(Denial::WrongProtection));
    let clear = flow("10.0.0.9", TCP, Some((22, 4000)));
    assert_eq!(inbound(&spd, &clear, None), Ok(()));
    assert_eq!(inbound(&spd, &clear, Some(&"strong")), Err(Denial::WrongProtection));
    assert_eq!(inbound(&spd, &flow("10.0.0.9", 47, None), Some(&"strong")), Err(Denial::Discarded));
    assert_eq!(inbound(&spd, &flow("192.0.2.9", TCP, None), None), Err(Denial::NoPolicy));
}

#[test]
fn ike_and_neighbour_discovery_always_pass_in_clear() {
    let spd = Spd::new(vec![
        policy("0.0.0.0/0", None, None, Action::Protect("all")),
        policy("::/0", None, None, Action::Discard),
    ])
    .unwrap();
    for ports in [(500, 500), (4500, 61_000)] {
        let ike = Flow { ike: ports.0 == 4500, ..flow("10.0.0.9", UDP, Some(ports)) };
        assert_eq!((outbound(&spd, &ike), inbound(&spd, &ike, None)), (Ok(None), Ok(())));
    }
    // RFC 3948 §2.2: port 4500 also carries ESP, and any program may send from this port.
    let data = flow("10.0.0.9", UDP, Some((4500, 4500)));
    assert_eq!(inbound(&spd, &data, None), Err(Denial::Unprotected));
    assert_eq!(outbound(&spd, &data), Ok(Some(&"all")));
    // The peer's port 4500 or 500 alone does not identify IKE.
    for ports in [(61_000, 4500), (9899, 500)] {
        let strange = flow("10.0.0.9", UDP, Some(ports));
        assert_eq!(inbound(&spd, &strange, None), Err(Denial::Unprotected));
        assert_eq!(outbound(&spd, &strange), Ok(Some(&"all")));
    }
    let other = flow("10.0.0.9", UDP, Some((501, 501)));
    assert_eq!(inbound(&spd, &other, None), Err(Denial::Unprotected));
    assert_eq!(
        inbound(&spd, &flow("10.0.0.9", TCP, Some((500, 500))), None),
        Err(Denial::Unprotected)
    );
    for (kind, expected) in [(133, Ok(())), (137, Ok(())), (128, Err(Denial::Discarded))] {
        let message = Flow { icmp: Some(kind), ..flow("fe80::9", 58, None) };
        assert_eq!(inbound(&spd, &message, None), expected, "type {kind}");
    }
}

#[test]
fn empty_policy_list_passes_in_clear() {
    let spd = Spd::<&str>::new(Vec::new()).unwrap();
    let any = flow("10.0.0.9", TCP, Some((1, 2)));
    assert_eq!((outbound(&spd, &any), inbound(&spd, &any, None)), (Ok(None), Ok(())));
    // A packet that arrives with an SA of a removed protection is not accepted.
    assert_eq!(inbound(&spd, &any, Some(&"old")), Err(Denial::WrongProtection));
}

// RFC 4301 §4.4.1: the policies of both directions may differ, as the kernel's do.
#[test]
fn one_direction_policy_ignores_other_direction() {
    let policy_of = |direction, action| Policy {
        direction: Some(direction),
        ..policy("10.0.0.0/8", None, None, action)
    };
    let list = vec![
        policy_of(Direction::In, Action::Discard),
        policy_of(Direction::Out, Action::Protect("strong")),
        policy_of(Direction::In, Action::Bypass),
    ];
    let (known, strange) =
        (flow("10.0.0.9", TCP, Some((1, 2))), flow("11.0.0.9", TCP, Some((1, 2))));
    for (unselected, rest) in [(Unmatched::PASS, Ok(())), (Unmatched::DROP, Err(Denial::NoPolicy))]
    {
        let spd = Spd::from_checked(list.clone(), unselected);
        assert_eq!(outbound(&spd, &known), Ok(Some(&"strong")));
        assert_eq!(inbound(&spd, &known, None), Err(Denial::Discarded));
        assert_eq!(outbound(&spd, &strange).map(|_| ()), rest);
        assert_eq!(inbound(&spd, &strange, None), rest);
    }
    // In a checked list, only a policy of the same direction shadows another.
    let errors = Spd::new(list).unwrap_err();
    assert_eq!(errors, [PolicyError::Shadowed { earlier: 0, later: 2 }]);
    let many = vec![policy_of(Direction::Out, Action::Bypass); MAX_POLICIES + 1];
    let spd = Spd::from_checked(many, Unmatched::PASS);
    assert_eq!(
        outbound(&spd, &strange),
        Err(Denial::NoPolicy),
        "an omitted policy might require protection"
    );
}

// RFC 4301 §4.4.1.1: a packet without readable ports, such as a later fragment, matches no policy with ports.
#[test]
fn unreadable_port_matches_no_port_policy() {
    let spd = Spd::new(vec![policy("10.0.0.0/8", Some(TCP), Some(22), Action::Bypass)]).unwrap();
    assert_eq!(outbound(&spd, &flow("10.0.0.9", TCP, None)), Err(Denial::NoPolicy));
}

#[test]
fn policy_list_reports_all_errors() {
    let all = || policy("10.0.0.0/8", None, None, Action::Discard);
    let mut mixed = all();
    mixed.selector.remote = "::/0".parse().unwrap();
    let mut empty = policy("11.0.0.0/8", Some(TCP), None, Action::Bypass);
    #[allow(clippy::reversed_empty_ranges)]
    {
        empty.selector.local_ports = 9..=8;
    }
    let list = vec![
        policy("10.0.0.0/8", Some(TCP), None, Action::Bypass),
        policy("10.1.0.0/16", Some(TCP), Some(22), Action::Protect("x")),
        mixed,
        empty,
        policy("12.0.0.0/8", Some(47), Some(1), Action::Bypass),
    ];
    let wrong = Spd::new(list).unwrap_err();
    let expected = [
        PolicyError::Shadowed { earlier: 0, later: 1 },
        PolicyError::Families(2),
        PolicyError::Ports(3),
        PolicyError::PortsWithoutProtocol(4),
    ];
    assert_eq!(wrong, expected);
    let many = vec![all(); MAX_POLICIES + 1];
    assert_eq!(Spd::new(many).unwrap_err(), [PolicyError::TooMany(MAX_POLICIES + 1)]);
}

fn any_selector() -> impl Strategy<Value = Selector> {
    let net = (0u8..4, 8u8..=16).prop_map(|(n, len)| format!("10.{n}.0.0/{len}").parse().unwrap());
    let ports = (0u16..4, 0u16..4).prop_map(|(a, b)| a.min(b)..=a.max(b));
    let ports = prop_oneof![Just(0..=u16::MAX), ports];
    (net.clone(), net, Just(Some(TCP)), ports.clone(), ports).prop_map(
        |(local, remote, protocol, local_ports, remote_ports)| Selector {
            local,
            remote,
            protocol,
            local_ports,
            remote_ports,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    // If a policy is refused as shadowed, the earlier policy matches every packet that the later one matches.
    #[test]
    fn shadowed_policy_matches_no_packet(
        selectors in prop::collection::vec(any_selector(), 2..5),
        ends in (0u8..4, 0u8..4, 0u16..4, 0u16..4),
    ) {
        let policies = |selectors: &[Selector]| -> Vec<Policy<usize>> {
            let list = selectors.iter().enumerate();
            list.map(|(at, s)| Policy { direction: None, selector: s.clone(), action: Action::Protect(at) }).collect()
        };
        let Err(wrong) = Spd::new(policies(&selectors)) else { return Ok(()) };
        let (a, b, local, remote) = ends;
        let flow = Flow {
            local: [10, a, 0, 1].into(),
            remote: [10, b, 0, 1].into(),
            protocol: TCP,
            ports: Some((local, remote)),
            icmp: None,
            ike: false,
        };
        for error in wrong {
            let PolicyError::Shadowed { earlier, later } = error else { panic!("{error}") };
            let two = [selectors[later].clone()];
            let alone = Spd::new(policies(&two)).unwrap();
            if outbound(&alone, &flow).is_ok() {
                let first = Spd::new(policies(&[selectors[earlier].clone()])).unwrap();
                prop_assert_eq!(outbound(&first, &flow), Ok(Some(&0)));
            }
        }
    }
}

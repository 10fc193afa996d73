//! Tests of URLs: valid forms, and the specific error of each invalid form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::address::{AddressError, check_host};
use proptest::prelude::*;

use super::*;

fn host(text: &str) -> Host {
    match text.parse() {
        Ok(address) => Host::Address(address),
        Err(_) => Host::Name(text.to_owned()),
    }
}

fn expected_url(name: &str, port: u16, region: Option<(&str, u64)>) -> Url {
    let region = region.map(|(name, offset)| RegionOffset { name: name.into(), offset });
    let (transport, ulp) = (Transport::Tcp, UlpChoice::Ddp);
    Url { peer: Peer { host: host(name), port, transport, ulp }, region }
}

fn refusal(text: &str) -> String {
    text.parse::<Url>().expect_err(text).to_string()
}

#[test]
fn urls_are_parsed() {
    let cases = [
        ("tcp://10.0.0.1:7471/in", expected_url("10.0.0.1", 7471, Some(("in", 0)))),
        ("tcp://[fd00::1]:1/in@4096", expected_url("fd00::1", 1, Some(("in", 4096)))),
        ("tcp://[FD00:0:0::1]:1", expected_url("fd00::1", 1, None)),
        ("tcp://[64:ff9b::10.0.0.1]:1", expected_url("64:ff9b::a00:1", 1, None)),
        ("tcp://host.example:9/a@0x10", expected_url("host.example", 9, Some(("a", 16)))),
        ("tcp://host.example.:9", expected_url("host.example.", 9, None)),
        ("tcp://host:9", expected_url("host", 9, None)),
        ("tcp://host:9/", expected_url("host", 9, None)),
        ("tcp://host:0009", expected_url("host", 9, None)),
        ("tcp://7up:9", expected_url("7up", 9, None)),
        ("tcp://127.0.0.1:9", expected_url("127.0.0.1", 9, None)),
        ("tcp://[::1]:9", expected_url("::1", 9, None)),
        ("tcp://10.0.0.1.example:9", expected_url("10.0.0.1.example", 9, None)),
    ];
    for (text, url) in cases {
        assert_eq!(text.parse(), Ok(url), "{text}");
    }
}

// RFC 3986 §3.1: upper and lower case are equivalent in a scheme.
#[test]
fn schemes_are_case_insensitive() {
    for (text, ulp, transport) in [
        ("tcp://a:5", UlpChoice::Ddp, Transport::Tcp),
        ("TCP://a:5", UlpChoice::Ddp, Transport::Tcp),
        ("rdmap://a:5", UlpChoice::Rdmap, Transport::Tcp),
        ("RDMAP://a:5", UlpChoice::Rdmap, Transport::Tcp),
        ("Sctp://a:5", UlpChoice::Ddp, Transport::Sctp),
        ("RDMAP+sctp://a:5", UlpChoice::Rdmap, Transport::Sctp),
        ("a:5", UlpChoice::Ddp, Transport::Tcp),
        ("a:5/", UlpChoice::Ddp, Transport::Tcp),
    ] {
        let peer = Peer { host: host("a"), port: 5, transport, ulp };
        assert_eq!(text.parse(), Ok(peer.clone()), "{text}");
        if text.contains("://") {
            let url: Url = format!("{text}/in@7").parse().unwrap();
            assert_eq!(url.peer, peer);
            assert_eq!(url.to_string(), format!("{}a:5/in@7", peer.scheme()));
        }
    }
    assert!(refusal("tcp://rdmap://a:5/in").contains("`tcp://rdmap://a:5/in` has two schemes"));
    assert!(refusal("sctp://TCP://a:5/in").contains("has two schemes"));
    assert_eq!(
        "tcp://tcp://a:5".parse::<Peer>(),
        Err(UrlError::TwoSchemes("tcp://tcp://a:5".into()))
    );
    assert_eq!("http://a:5".parse::<Peer>(), Err(UrlError::Scheme("http://a:5".into())));
    assert_eq!("ä://a:5".parse::<Url>(), Err(UrlError::Scheme("ä://a:5".into())));
}

#[test]
fn invalid_urls_are_refused_with_specific_error() {
    for (text, sentence) in [
        ("10.0.0.1:7471/in", "`10.0.0.1:7471/in` does not begin with tcp://"),
        ("tcp://10.0.0.1/in", "`10.0.0.1` has no port, and none is the default"),
        ("tcp://h:/in", "`h:` has no port"),
        ("tcp://[fd00::1]/in", "`[fd00::1]` has no port"),
        ("tcp://h:0/in", "`0` is no port: write a decimal number from 1 to 65535"),
        ("tcp://h:+1/in", "`+1` is no port"),
        ("tcp://h:65536/in", "`65536` is no port"),
        ("tcp://h:0x1d2f/in", "`0x1d2f` is no port"),
        ("tcp://me@h:7/in", "`me@h:7` names a user"),
        ("tcp://me:pw@h:7/in@5", "`me:pw@h:7` names a user"),
        ("tcp://h:7/in?a=1", "has a query"),
        ("tcp://h:7?a#b", "has a query"),
        ("tcp://h:7/in#top", "has a fragment"),
        ("tcp://h:7/a/b", "`a/b` is no region's name"),
        ("tcp://h:7//a", "`/a` is no region's name"),
        ("tcp://h:7/@5", "`` is no region's name"),
        ("tcp://h:7/in%62ox", "`in%62ox` is no region's name"),
        ("tcp://h:7/a@", "`` is no offset"),
        ("tcp://h:7/a@-1", "`-1` is no offset"),
        ("tcp://h:7/a@0x", "`0x` is no offset"),
        ("tcp://h:7/a@1@2", "`1@2` is no offset"),
    ] {
        let refused = refusal(text);
        assert!(refused.contains(sentence), "{text}: {refused}");
    }
    let path = "tcp://h:7/in".parse::<Peer>();
    assert_eq!(path, Err(UrlError::Path("tcp://h:7/in".into())));
}

#[test]
fn invalid_hosts_are_refused_with_specific_error() {
    for (host, sentence) in [
        ("", "`` is no host"),
        ("-a", "`-a` is no host"),
        ("a..b", "`a..b` is no host"),
        ("a!b", "`a!b` is no host"),
        ("fd00::1", "write an IPv6 address in brackets"),
        ("[fd00::1", "write an IPv6 address in brackets"),
        ("[10.0.0.1]", "`[10.0.0.1]` is no host"),
        ("[fd00::1]x", "has no port"),
        ("x[fd00::1]", "write an IPv6 address in brackets"),
        ("[]", "`[]` is no host"),
        ("[v1.fe80::a+en1]", "an address of a later version of IP"),
        ("h%6fst", "percent-encoding is not decoded"),
        ("%31%30.0.0.1", "percent-encoding is not decoded"),
        ("höst", "begins with xn--"),
    ] {
        let refused = refusal(&format!("tcp://{host}:7471/in"));
        assert!(refused.contains(sentence), "{host}: {refused}");
    }
    assert!(refusal(&format!("tcp://{}:1", "a".repeat(64))).contains("is no host"));
}

// RFC 3986 §7.4: `inet_aton` accepts the forms of the first list, some as a different address than a reader expects.
#[test]
fn unsupported_address_forms_are_refused_with_specific_error() {
    for host in ["10.1", "10.0.1", "0x0a000001", "010.0.0.1", "167772161", "10.0.0.1.", "0xa.1"] {
        let old = HostError::Address(host.into(), AddressError::OldForm);
        assert_eq!(format!("tcp://{host}:7").parse::<Url>(), Err(UrlError::Host(old)), "{host}");
    }
    for (host, sentence) in [
        ("[::ffff:10.0.0.1]", "an IPv4 address in the form of IPv6: write 10.0.0.1"),
        ("[::ffff:a00:1]", "an IPv4 address in the form of IPv6: write 10.0.0.1"),
        ("[::10.0.0.1]", "an IPv4-compatible address"),
        ("0.0.0.0", "the unspecified address"),
        ("[::]", "the unspecified address"),
        ("0.0.0.7", "an address of 0.0.0.0/8"),
        ("224.0.0.1", "a multicast address"),
        ("[ff02::1]", "a multicast address"),
        ("255.255.255.255", "the broadcast address"),
    ] {
        let refused = refusal(&format!("tcp://{host}:7471/in"));
        assert!(refused.contains(sentence), "{host}: {refused}");
    }
}

// RFC 4007 §11, RFC 6874: a zone follows the address after `%`, in URLs after `%25`.
#[test]
fn zones_require_link_local_addresses() {
    let zoned = |zone: &str| Host::Zoned("fe80::1".parse().unwrap(), zone.to_owned());
    for (host, read) in [
        ("[fe80::1%25front]", "front"),
        ("[fe80::1%front]", "front"),
        ("[FE80::1%2525]", "25"),
        ("[fe80::1%25eth0.100]", "eth0.100"),
    ] {
        let url: Url = format!("tcp://{host}:7471/in").parse().unwrap();
        assert_eq!(url.peer.host, zoned(read), "{host}");
        assert_eq!(url.to_string().parse(), Ok(url), "{host}");
    }
    assert_eq!(zoned("front").node(), "fe80::1%front");
    for (host, sentence) in [
        ("[fe80::1%]", "has no zone behind its `%`"),
        ("[fe80::1%25]", "has no zone behind its `%`"),
        ("[fe80::1%25a%2f]", "has no zone behind its `%`"),
        ("[fd00::1%25front]", "is not a link-local address"),
        ("[::1%25front]", "is not a link-local address"),
        ("fe80::1%front", "write an IPv6 address in brackets"),
    ] {
        let refused = refusal(&format!("tcp://{host}:7471/in"));
        assert!(refused.contains(sentence), "{host}: {refused}");
    }
}

proptest! {
    #[test]
    fn url_display_round_trips(
        host in prop_oneof![
            "[a-z][a-z0-9]{0,30}(\\.[a-z][a-z0-9-]{0,30}){0,3}".prop_map(Host::Name),
            any::<[u8; 4]>().prop_map(|a| Host::Address(Ipv4Addr::from(a).into())),
            any::<[u16; 8]>().prop_map(|a| Host::Address(Ipv6Addr::from(a).into())),
            ("[0-9A-Za-z._~-]{1,15}", any::<u64>()).prop_map(|(zone, id)| {
                Host::Zoned(Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(id)), zone)
            }),
        ],
        port in 1u16..,
        region in prop::option::of(("[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", any::<u64>())),
    ) {
        let is_host = |a: &IpAddr| matches!(check_host(*a), Ok(()) | Err(AddressError::Loopback));
        prop_assume!(!matches!(&host, Host::Address(address) if !is_host(address)));
        let region = region.map(|(name, offset)| RegionOffset { name, offset });
        let ulp = if port % 2 == 0 { UlpChoice::Ddp } else { UlpChoice::Rdmap };
        let transport = if port % 3 == 0 { Transport::Sctp } else { Transport::Tcp };
        let url = Url { peer: Peer { host, port, transport, ulp }, region };
        prop_assert_eq!(url.to_string().parse(), Ok(url));
    }

    #[test]
    fn arbitrary_url_text_never_panics(text in ".{0,80}") {
        // The displayed form of an accepted URL parses to the same URL.
        if let Ok(url) = format!("tcp://{text}").parse::<Url>() {
            prop_assert_eq!(url.to_string().parse(), Ok(url));
        }
    }
}

//! Tests of valid files and the values read from them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::{MINIMAL, parse, with};

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs")
}

#[test]
fn every_example_configuration_is_valid() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(configs())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        if let Err(errors) = Document::read(&file) {
            panic!("{errors}");
        }
    }
}

#[test]
fn packaged_configuration_is_valid_and_has_ring_ports_only() {
    let documents = load_all(&[configs().join("packaging/ddpd.toml")]).unwrap();
    assert_eq!(check_one_ended_links(&documents), []);
    let kinds: Vec<&str> = documents[0].config.ports.iter().map(|port| port.kind.name()).collect();
    assert_eq!(kinds, ["ring", "ring"]);
}

#[test]
fn demo_configures_two_appliances_on_one_link() {
    let both = load_all(&[configs().join("demo.toml"), configs().join("demo-peer.toml")]).unwrap();
    assert_eq!(check_one_ended_links(&both), []);
    let impair = both[0].config.ports[0].impair.unwrap();
    assert_eq!((impair.loss, impair.seed), (0.01, 7));
    assert!(impair.reorder > 0.0);
    let listener = &both[0].config.listeners[0];
    assert!(listener.mpa.markers && listener.mpa.crc);
    assert_eq!(both[0].config.regions[0].size, Some(256 << 20));
}

/// The commands in README.md and docs/guide.md need these listeners, and the key `bench` in the file that generates
/// load.
#[test]
fn load_example_has_the_listeners_of_the_documented_commands() {
    let both = load_all(&[configs().join("load.toml"), configs().join("load-peer.toml")]).unwrap();
    assert_eq!(check_one_ended_links(&both), []);
    let (load, peer) = (&both[0].config, &both[1].config);
    assert!(load.management.bench && peer.regions[0].shared);
    assert_eq!(peer.interfaces[0].addresses[0].addr().to_string(), "10.9.0.1");
    for (port, service) in [(7472, ServiceKind::Sink), (7473, ServiceKind::Echo)] {
        for transport in [Transport::Tcp, Transport::Sctp] {
            let serves = |listener: &&ListenerSection| {
                (listener.port, listener.transport) == (port, transport)
                    && listener.ulp.rdmap().is_some_and(|rdmap| rdmap.service == service)
            };
            assert_eq!(peer.listeners.iter().filter(serves).count(), 1, "{port} {transport:?}");
        }
    }
}

#[test]
fn default_link_down_timeout_depends_on_port_kind() {
    for (file, timeout) in [
        ("memif-a.toml", Some(Duration::ZERO)),
        ("vhost-user.toml", Some(Duration::ZERO)),
        ("af_packet.toml", None),
    ] {
        let config = Config::load(&configs().join(file)).unwrap();
        assert_eq!(config.ports[0].link_down_timeout, timeout, "{file}");
    }
    let off = "kind = \"memif\"\nsocket = \"m\"\nrole = \"client\"\nlink_down_timeout = \"off\"";
    let text = MINIMAL.replace("kind = \"ring\"\nlink = \"l\"", off);
    assert_ne!(text, MINIMAL);
    assert_eq!(parse(&text).unwrap().config.ports[0].link_down_timeout, None);
}

// RFC 9293 §3.9.1.9 MUST-48, §3.9.2 MUST-49
#[test]
fn dscp_and_ttl_are_read_per_interface_and_listener() {
    let listener = "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 7471\n";
    let text = |interface: &str, more: &str| {
        let addresses = "addresses = ";
        let text = MINIMAL.replacen(addresses, &format!("{interface}\n{addresses}"), 1);
        format!("{text}\n{listener}{more}\n")
    };
    let fields = |interface, more| {
        let text = text(interface, more);
        let config = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")).config;
        (config.interfaces[0].ip, config.listeners[0].ip)
    };
    let of = |dscp, ttl| IpFields { dscp, ttl };
    assert_eq!(fields("", ""), (of(None, None), of(None, None)));
    let seen = fields("dscp = 63\nttl = 1", "dscp = 0\nttl = 255");
    assert_eq!(seen, (of(Some(63), Some(1)), of(Some(0), Some(255))));
    assert_eq!(fields("ttl = 8", "dscp = 46"), (of(None, Some(8)), of(Some(46), None)));
    for (interface, more) in
        [("dscp = 64", ""), ("ttl = 0", ""), ("", "dscp = 64"), ("", "ttl = 0")]
    {
        assert!(parse(&text(interface, more)).is_err(), "{interface}{more}");
    }
}

#[test]
fn local_port_range_is_read() {
    let ports = |value: &str| {
        let text =
            MINIMAL.replacen("addresses = ", &format!("local_ports = {value}\naddresses = "), 1);
        parse(&text).map(|parsed| parsed.config.interfaces[0].local_ports.to_string())
    };
    let default = parse(MINIMAL).unwrap().config.interfaces[0].local_ports;
    assert_eq!(default.to_string(), "32768-60999");
    for good in ["1-65535", "2000-2063"] {
        assert_eq!(ports(&format!("\"{good}\"")).unwrap(), good);
    }
    for bad in [
        "\"2000-2062\"",
        "\"2063-2000\"",
        "\"0-100\"",
        "\"1-65536\"",
        "\"2000\"",
        "\"a-b\"",
        "\"\"",
        "2000",
    ] {
        let error = ports(bad).expect_err(bad).to_string();
        assert!(error.contains("local_ports"), "{bad}: {error}");
    }
}

#[test]
fn interface_shares_port_with_host_through_tap() {
    let packet = MINIMAL.replacen(
        "kind = \"ring\"\nlink = \"l\"",
        "kind = \"af_packet\"\ndevice = \"e1\"",
        1,
    );
    assert_ne!(packet, MINIMAL);
    let tap = |keys: &str, minimal: &str| {
        let text = minimal.replacen("addresses = ", &format!("{keys}\naddresses = "), 1);
        parse(&text).map(|parsed| parsed.config.interfaces[0].host.clone())
    };
    let ports = "local_ports = \"20000-29999\"";
    assert_eq!(tap("host = \"off\"", MINIMAL).unwrap(), None);
    let shared = format!("host = \"tap\"\n{ports}");
    let name = parse(&packet).unwrap().config.interfaces[0].name.clone();
    assert_eq!(tap(&shared, &packet).unwrap(), Some(format!("tap-{name}")));
    let named = format!("{shared}\nhost_name = \"front\"");
    assert_eq!(tap(&named, &packet).unwrap().as_deref(), Some("front"));
    let long = packet.replace(&format!("name = \"{name}\""), "name = \"a-long-name-1\"");
    let trusted = packet.replacen("kind = ", "checksum = \"trusted\"\nkind = ", 1);
    for (keys, text, says) in [
        ("host = \"tap\"", packet.as_str(), "give streams local_ports"),
        (&shared, MINIMAL, "no host is behind a port of kind \"ring\""),
        (&shared, &trusted, "the port's checksum is \"trusted\""),
        (&shared, &long, "give it a host_name"),
        ("host_name = \"front\"", &packet, "names the TAP of host = \"tap\""),
        ("host = \"yes\"", &packet, "host"),
        (
            &format!("{shared}\nhost_name = \"a name\""),
            &packet,
            "no network interface can be called",
        ),
    ] {
        let error = tap(keys, text).expect_err(keys).to_string();
        assert!(error.contains(says), "{keys}: {error}");
    }
}

#[test]
fn a_pcap_port_belongs_to_one_worker() {
    let pcap = "kind = \"pcap\"\nrx_file = \"in.pcap\"";
    let text = MINIMAL.replace("kind = \"ring\"\nlink = \"l\"", pcap) + "[workers]\ncount = 2\n";
    let config = parse(&text).unwrap().config;
    assert_eq!(config.ports[0].workers, [0]);
    assert_eq!(config.ports[0].kind, PortKind::Pcap { rx_file: "in.pcap".into(), tx_file: None });
}

#[test]
fn rdmap_example_has_every_service() {
    let config = Config::load(&configs().join("rdmap.toml")).unwrap();
    let mut shown: Vec<ServiceKind> = config
        .listeners
        .iter()
        .filter_map(|listener| listener.ulp.rdmap())
        .map(|rdmap| rdmap.service)
        .collect();
    assert_eq!(shown.len(), config.listeners.len());
    let mut all = ServiceKind::WORDS.map(|(_, kind)| kind).to_vec();
    shown.sort_by_key(|kind| kind.as_str());
    all.sort_by_key(|kind| kind.as_str());
    assert_eq!(shown, all);
    assert_eq!(config.regions[0].access_word(), "rwa");
}

#[test]
fn pci_example_has_every_section() {
    let config = Config::load(&configs().join("pci.toml")).unwrap();
    assert_eq!(config.name, "rack12");
    assert_eq!(config.memory.hugepages, Hugepages::Require);
    assert_eq!(config.workers[3], WorkerSection { core: Some(5), idle: Idle::Poll });
    assert_eq!(
        config.ports[0].kind,
        PortKind::Pci { address: "0000:03:00.0".into(), devargs: String::new() }
    );
    assert_eq!(config.ports[0].workers, [0, 1, 2, 3]);
    assert_eq!((config.interfaces[0].mtu, config.interfaces[1].mtu), (9000, 1500));
    assert_eq!(config.interfaces[0].routes[0].to.to_string(), "0.0.0.0/0");
    assert_eq!(config.interfaces[0].routes[1].to.to_string(), "::/0");
    assert_eq!(config.regions[0].base_to, 1 << 32);
    assert_eq!(config.regions[0].access_word(), "w");
    assert_eq!(config.listeners[0].mpa.private_data_limit, 252);
    assert_eq!(config.listeners[0].limits.idle_timeout, Some(Duration::from_secs(600)));
    assert_eq!(config.tcp.keepalive.unwrap().idle, Duration::from_secs(120));
    assert!(config.tcp.path_mtu_probing && config.tcp.min_path_mtu == 576);
    let on_bad_crc = BadCrcPolicy::Retransmit;
    assert_eq!(config.mpa, MpaReceiveSection { max_fpdu: 65536, on_bad_crc, bad_crc_tries: 5 });
    assert_eq!(config.limits.streams_per_peer, Some(1024));
    assert_eq!(config.management.drain_timeout, Duration::from_secs(30));
}

#[test]
fn omitted_keys_have_defaults() {
    let config = parse(MINIMAL).unwrap().config;
    assert_eq!(config.name, "t");
    assert_eq!(config.workers, [WorkerSection { core: None, idle: Idle::ADAPTIVE }]);
    assert_eq!(config.ports[0].mtu, 1500);
    assert_eq!(config.ports[0].workers, [0]);
    assert_eq!(config.ports[0].checksum, ChecksumMode::Offload);
    assert_eq!(config.management.socket, Path::new(DEFAULT_SOCKET));
    assert_eq!(config.tcp.congestion, Congestion::Cubic);
    assert_eq!(config.tcp.keepalive, None);
    let on_bad_crc = BadCrcPolicy::Error;
    assert_eq!(config.mpa, MpaReceiveSection { max_fpdu: 65536, on_bad_crc, bad_crc_tries: 5 });
    assert!(config.limits.held_per_stream >= u64::from(config.tcp.receive_window));
    // The tests of `dataplane/sim` use the same initial windows.
    let (tcp, sctp) = (&config.tcp, &config.sctp);
    assert_eq!((tcp.receive_window, sctp.receive_window), (4 << 20, 4 << 20));
    assert_eq!((tcp.receive_window_limit, sctp.receive_window_limit), (128 << 20, 128 << 20));
    assert_eq!((tcp.send_window, sctp.send_window), (128 << 20, 128 << 20));
    assert_eq!(config.limits.windows_per_worker, 1 << 30);
    assert!(config.tcp.ecn);
    assert_eq!(config.tcp.syn_cookies, SynCookieMode::Auto);
    assert_eq!(config.tcp.zero_window_timeout, Some(Duration::from_secs(600)));
    assert_eq!(config.limits.streams_per_peer, None);
}

// Segmentation offload is the default for `vhost-user`. For a PCI device the key must request it.
#[test]
fn default_segmentation_depends_on_port_kind() {
    let ring = "kind = \"ring\"\nlink = \"l\"";
    let of = |kind: &str, keys: &str| {
        assert!(MINIMAL.contains(ring));
        let text = MINIMAL.replace(ring, &format!("{kind}\n{keys}"));
        parse(&text).unwrap().config.ports[0].segmentation
    };
    let vhost = "kind = \"vhost-user\"\nsocket = \"/run/v.sock\"";
    let pci = "kind = \"pci\"\naddress = \"0000:01:00.0\"";
    assert_eq!(of(vhost, ""), SegmentationMode::Offload);
    assert_eq!(of(vhost, "segmentation = \"software\""), SegmentationMode::Software);
    assert_eq!(of(pci, ""), SegmentationMode::Software);
    assert_eq!(of(pci, "segmentation = \"offload\""), SegmentationMode::Offload);
    assert_eq!(of(ring, "segmentation = \"software\""), SegmentationMode::Software);
    let text = MINIMAL.replace(ring, &format!("{ring}\nsegmentation = \"offload\""));
    let error = parse(&text).expect_err("a ring cuts nothing").to_string();
    assert!(error.contains("segmentation") && error.contains("only the kinds"), "{error}");
}

// A `receive_window` above the default of `receive_window_limit` raises the limit to the same size.
#[test]
fn a_large_receive_window_raises_its_limit() {
    let text = with("[tcp]\nreceive_window = \"256 MiB\"\n[sctp]\nreceive_window = \"512 MiB\"");
    let config = parse(&text).unwrap().config;
    assert_eq!(config.tcp.receive_window_limit, 256 << 20);
    assert_eq!(config.sctp.receive_window_limit, 512 << 20);
}

#[test]
fn ecn_cookies_and_stream_limits_are_configurable() {
    let text = with(
        "[tcp]\necn = false\nsyn_cookies = \"always\"\nzero_window_timeout = \"off\"\n[limits]\n\
         streams = 10\nstreams_per_peer = 3",
    );
    let config = parse(&text).unwrap().config;
    assert!(!config.tcp.ecn);
    assert_eq!(config.tcp.syn_cookies, SynCookieMode::Always);
    assert_eq!(config.tcp.zero_window_timeout, None);
    assert_eq!(config.limits.streams_per_peer, Some(3));
}

#[test]
fn values_have_alternative_notations() {
    let text = with(
        r#"
        region = [
            { name = "a", size = 4096, access = "rw", base_to = "0xffffffffffff0000" },
            { name = "b", size = "1.5 KiB", access = "none", path = "/tmp/b", fsync = "5 s" },
            { name = "c", size = "2MB", access = "r", backing = "hugepages" },
            { name = "d", access = "r", path = "/tmp/d" },
        ]
        "#,
    );
    let regions = parse(&text).unwrap().config.regions;
    assert_eq!(regions[0].base_to, 0xffff_ffff_ffff_0000);
    assert_eq!(regions[1].size, Some(1536));
    assert_eq!(
        regions[1].backing,
        Backing::File { path: "/tmp/b".into(), fsync: Fsync::Interval(Duration::from_secs(5)) }
    );
    assert_eq!(regions[2].size, Some(2_000_000));
    assert_eq!(regions[3].size, None);
}

#[test]
fn a_region_may_end_at_the_last_tagged_offset() {
    let text = with(
        r#"region = [{ name = "a", size = 1, access = "w", base_to = "0xffffffffffffffff" }]"#,
    );
    assert_eq!(parse(&text).unwrap().config.regions[0].base_to, u64::MAX);
}

#[test]
fn api_requests_use_the_same_keys() {
    let json = serde_json::json!({
        "name": "x", "size": "64 KiB", "access": "w", "shared": true, "path": null
    });
    let region = region_from_json(&json).unwrap();
    assert_eq!((region.size, region.shared), (Some(65536), true));
    let json = serde_json::json!({
        "name": "l", "interface": "lan", "port": 7471,
        "limits": { "streams": 3 }, "queue": [{ "qn": 0, "deliver_to": "echo" }]
    });
    let listener = listener_from_json(&json).unwrap();
    assert_eq!(listener.limits.streams, 3);
    assert_eq!(listener.queues[0].deliver_to, Delivery::Echo);
}

#[test]
fn api_requests_get_the_same_errors() {
    let errors = region_from_json(&serde_json::json!({ "name": "x", "sice": 1 })).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "region.access: is missing: write what peers may do: \"r\", \"w\", \"rw\", \"rwa\" (with atomics) \
             or \"none\"\n\
         region.sice: is not a known key: did you mean `size`?\n\
         region.size: is missing: write the region's size, such as size = \"64 MiB\""
    );
    assert_eq!(
        listener_from_json(&serde_json::json!([1])).unwrap_err().to_string(),
        "the body must be a JSON object with the keys of [[listener]]"
    );
}

#[test]
fn prefixes_are_parsed_or_refused() {
    let prefix = |address: &str, len| ipnet::IpNet::new(address.parse().unwrap(), len).unwrap();
    let address = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    assert_eq!(prefix("10.1.2.3", 8).trunc(), prefix("10.0.0.0", 8));
    assert_eq!(prefix("10.1.2.3", 0).trunc(), prefix("0.0.0.0", 0));
    assert_eq!(prefix("fd00::1", 64).trunc(), prefix("fd00::", 64));
    assert_eq!(prefix("fd00::1", 0).trunc(), prefix("::", 0));
    assert!(prefix("10.1.2.3", 8).contains(&address("10.255.0.1")));
    assert!(!prefix("10.1.2.3", 8).contains(&address("11.0.0.1")));
    assert!(!prefix("0.0.0.0", 0).contains(&address("::1")));
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "[a-z\\[\\]={}\"., \\n0-9#-]{0,200}") {
        prop_assert!(parse(&text).is_err());
    }

    #[test]
    fn size_display_round_trips(bytes in 1u64..1 << 46) {
        let shown = show_size(bytes).replace(" bytes", " B");
        let text = with(&format!("[limits]\nregion_memory = \"64 TiB\"\n[[region]]\n\
            name = \"a\"\naccess = \"w\"\nsize = \"{shown}\""));
        let config = parse(&text).unwrap().config;
        prop_assert_eq!(config.regions[0].size, Some(bytes));
    }
}

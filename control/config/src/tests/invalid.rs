//! Tests of invalid snippets and their errors: file, line, key, remedy.

mod ports;

use std::path::Path;

use super::super::*;
use super::{MINIMAL, parse, with};

/// Asserts that parsing `text` reports exactly these error lines.
#[track_caller]
fn assert_errors(text: &str, expected: &[&str]) {
    match parse(text) {
        Ok(_) => panic!("nothing was found wrong with\n{text}"),
        Err(errors) => assert_eq!(errors.lines().collect::<Vec<_>>(), expected, "for\n{text}"),
    }
}

/// Adds each snippet separately to a valid file. Asserts that parsing reports exactly the expected error line.
#[track_caller]
fn assert_each_error(cases: &[(&str, &str)]) {
    for (snippet, expected) in cases {
        assert_errors(&with(snippet), &[expected]);
    }
}

/// Adds each snippet separately to the `[[port]]` of a valid file. Asserts that parsing reports exactly the expected
/// error line.
#[track_caller]
fn assert_each_port_error(cases: &[(&str, &str)]) {
    for (snippet, expected) in cases {
        let text = format!(
            "[[interface]]\nname = \"lan\"\nport = \"p\"\naddresses = [\"10.0.0.1/24\"]\n[[port]]\n\
             name = \"p\"\n{snippet}\n"
        );
        assert_errors(&text, &[expected]);
    }
}

#[test]
fn empty_file_is_refused() {
    assert_errors(
        "",
        &[
            "t.toml:1: interface: is missing: an appliance needs at least one: add an [[interface]] section",
            "t.toml:1: port: is missing: an appliance needs at least one: add a [[port]] section",
        ],
    );
}

/// An error does not hide later errors, whatever its kind.
#[test]
fn all_errors_are_reported_after_a_number_out_of_range_or_an_unknown_key() {
    let text = "colour = 3\n[limits]\nstreams = 99999999999\nneighbours = 99999999999999999999999\nfrobs = 2\n[tcp]\n\
                min_rto = \"1us\"\nsack = 3\n[[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\nmtu = 100000\n\
                [[listener]]\nport = 70000\ncolour = 1\n";
    let errors = parse(text).unwrap_err();
    let keys = [
        "1: colour: ",
        "1: interface: ",
        "3: limits.streams: ",
        "4: limits.neighbours: ",
        "5: limits.frobs: ",
        "7: tcp.min_rto: ",
        "8: tcp.sack: ",
        "13: port.mtu: ",
        "15: listener.port: ",
        "16: listener.colour: ",
    ];
    for key in keys {
        assert!(errors.contains(&format!("t.toml:{key}")), "{key}: {errors}");
    }
}

#[test]
fn missing_file_is_refused() {
    let errors = Document::read(Path::new("/none/x.toml")).unwrap_err();
    let sentence = "/none/x.toml: cannot be read: No such file or directory (os error 2); check the \
                    path and its permissions";
    assert_eq!(errors.to_string(), sentence);
}

#[test]
fn invalid_toml_is_refused() {
    let errors = parse("name = \"x\"\n[workers\ncount = = 3\n").unwrap_err();
    let lines: Vec<&str> = errors.lines().collect();
    assert!(lines[0].starts_with("t.toml:2: is not TOML here: "), "{errors}");
    assert!(lines.iter().any(|line| line.starts_with("t.toml:3: is not TOML here: ")), "{errors}");
    let twice = parse("name = \"a\"\nname = \"b\"\n").unwrap_err();
    assert!(twice.starts_with("t.toml:2: is not TOML here: duplicate key"), "{twice}");
}

#[test]
fn booleans_of_other_formats_are_refused_with_a_remedy() {
    for (word, boolean) in [("yes", "true"), ("off", "false"), ("True", "true"), ("No", "false")] {
        let errors = parse(&format!("[mpa]\ncrc = {word} # comment\n")).unwrap_err();
        assert!(errors.starts_with("t.toml:2: is not TOML here: "), "{errors}");
        assert!(errors.contains(&format!(": instead of {word} write {boolean}, or ")), "{errors}");
    }
    for value in ["maybe", "yes-sir", "online"] {
        let errors = parse(&format!("[mpa]\ncrc = {value}\n")).unwrap_err();
        assert!(!errors.contains("instead of"), "{errors}");
    }
}

#[test]
fn all_errors_are_reported_together() {
    let text = "\
name = \"-x\"
[memory]
hugepages = true
[workers]
cores = [0, 0]
idel = \"poll\"
[[port]]
name = \"p\"
kind = \"af_xdp\"
device = \"eth0\"
mtu = 9000
[[interface]]
name = \"lan\"
port = \"q\"
addresses = [\"10.0.0.1\"]
[[listener]]
name = \"l\"
interface = \"lan\"
port = 70000
ulp = \"rdap\"
";
    assert_errors(
        text,
        &[
            "t.toml:1: name: is \"-x\", which is not a valid name: use 1 to 64 of A-Z a-z 0-9 . _ - and begin with \
         a letter or digit",
            "t.toml:3: memory.hugepages: is a boolean, but must be one of \"auto\", \"require\", \"never\"",
            "t.toml:5: workers.cores: lists core 0 twice: remove one",
            "t.toml:6: workers.idel: is not a known key: did you mean `idle`?",
            "t.toml:11: port.mtu: is 9000, but an af_xdp port carries at most 3498 (one page per frame): \
         lower it, or use kind = \"af_packet\"",
            "t.toml:14: interface.port: \"q\" does not exist: add a [[port]] with this name, or use \"p\"",
            "t.toml:15: interface.addresses: is \"10.0.0.1\", but must be an address with its prefix \
         length, such as \"192.0.2.1/24\" or \"2001:db8::1/64\"",
            "t.toml:19: listener.port: is 70000, but must be from 1 to 65535",
            "t.toml:20: listener.ulp: is \"rdap\", but must be one of \"ddp\", \"rdmap\"",
        ],
    );
}

#[test]
fn unknown_keys_and_wrong_types_are_refused() {
    assert_each_error(&[
        (
            "colour = 1",
            "t.toml:1: colour: is not a known key: remove it; the sections are name, memory, workers, \
             port, interface, region, listener, tcp, mpa, sctp, ipsec, limits, programs, files, management",
        ),
        ("limit = 1", "t.toml:1: limit: is not a known key: did you mean `limits`?"),
        ("name = 5", "t.toml:1: name: is an integer, but must be a name in quotes"),
        ("memory = 5", "t.toml:1: memory: is an integer, but must be a table: write [memory]"),
        (
            "[region]\nname = \"r\"",
            "t.toml:1: region: is a table, but must be tables: begin each with [[region]]",
        ),
        (
            "region = [5]",
            "t.toml:1: region: is an integer, but must be tables: begin each with [[region]]",
        ),
        (
            "[workers]\ncores = 2",
            "t.toml:2: workers.cores: is an integer, but must be a list: write it in [ ]",
        ),
        (
            "[workers]\ncores = [0,\n  \"1\"]",
            "t.toml:3: workers.cores: is a string, but must be a number from 0 to 1023, without quotes",
        ),
        (
            "[workers]\ncores = []",
            "t.toml:2: workers.cores: names no core: list at least one, or write count = 1",
        ),
        (
            "[workers]\ncores = [1]\ncount = 2",
            "t.toml:3: workers.count: and `cores` exclude each other: remove one of them",
        ),
        ("[tcp]\nsack = \"yes\"", "t.toml:2: tcp.sack: is a string, but must be true or false"),
    ]);
}

#[test]
fn out_of_range_values_are_refused() {
    assert_each_error(&[
        (
            "[memory]\nsize = \"1 MiB\"",
            "t.toml:2: memory.size: is 1 MiB, but must be from 16 MiB to 1 TiB",
        ),
        (
            "[memory]\nsize = -1",
            "t.toml:2: memory.size: is negative or too large, but must be bytes or a size such as \
             \"64 MiB\"",
        ),
        (
            "[memory]\nsize = 1.5",
            "t.toml:2: memory.size: is a float, but must be bytes or a size such as \"64 MiB\"",
        ),
        (
            "[tcp]\ntime_wait = 10",
            "t.toml:2: tcp.time_wait: is an integer, but must be a time with a unit in quotes, such as \
             \"5 s\" or \"200 ms\"",
        ),
        (
            "[tcp]\ndelayed_ack = \"1 s\"",
            "t.toml:2: tcp.delayed_ack: is 1s, but must be from 0s to 500ms",
        ),
        (
            "[tcp]\nkeepalive = \"never\"",
            "t.toml:2: tcp.keepalive: is \"never\", but must be a time with a unit in quotes, such as \
             \"5 s\" or \"200 ms\", or \"off\"",
        ),
        (
            "[tcp]\nkeepalive_probes = 3",
            "t.toml:2: tcp.keepalive_probes: has no meaning without `keepalive`: remove it",
        ),
        (
            "[tcp]\npath_mtu_raise = \"1 min\"",
            "t.toml:2: tcp.path_mtu_raise: is 1m, but must be from 5m to 1day",
        ),
        (
            "[tcp]\nmin_path_mtu = 60",
            "t.toml:2: tcp.min_path_mtu: is 60, but must be from 68 to 1280",
        ),
        (
            "[sctp]\nmax_rto = \"10 s\"",
            "t.toml:2: sctp.max_rto: is 10s, but must be from 1m to 10m",
        ),
        (
            "[sctp]\nmin_rto = \"2 s\"",
            "t.toml:2: sctp.min_rto: is longer than `initial_rto`: lower it, or raise `initial_rto`",
        ),
        (
            "[sctp]\nsack_delay = \"600 ms\"",
            "t.toml:2: sctp.sack_delay: is 600ms, but must be from 0s to 500ms",
        ),
        ("[sctp]\nstreams = 0", "t.toml:2: sctp.streams: is 0, but must be from 1 to 65535"),
        (
            "[sctp]\nudp_encapsulation = 0",
            "t.toml:2: sctp.udp_encapsulation: is 0, but must be from 1 to 65535, or \"off\"",
        ),
        (
            "[sctp]\nudp_encapsulation = \"9899\"",
            "t.toml:2: sctp.udp_encapsulation: must be a UDP port without quotes, such as 9899, or \"off\"",
        ),
        (
            "[sctp]\nheartbeat = \"1 ms\"",
            "t.toml:2: sctp.heartbeat: is 1ms, but must be from 100ms to 1day, or \"off\"",
        ),
        (
            "[tcp]\nmin_rto = \"2 s\"",
            "t.toml:2: tcp.min_rto: is longer than `initial_rto`: lower it, or raise `initial_rto`",
        ),
        (
            "[tcp]\ncongestion = \"bbr\"",
            "t.toml:2: tcp.congestion: is \"bbr\", but must be one of \"cubic\", \"newreno\", \
             \"dctcp\"",
        ),
        (
            "[tcp]\ncongestion = \"dctcp\"\necn = false",
            "t.toml:2: tcp.congestion: works only with ECN: set `ecn = true`, or choose another one",
        ),
        (
            "[sctp]\ncongestion = \"dctcp\"",
            "t.toml:2: sctp.congestion: works only with ECN, which is not there over SCTP: choose another one",
        ),
        (
            "[tcp]\nsyn_cookies = \"sometimes\"",
            "t.toml:2: tcp.syn_cookies: is \"sometimes\", but must be one of \"auto\", \"always\", \"never\"",
        ),
        (
            "[limits]\nstreams = 5\nstreams_per_peer = 6",
            "t.toml:3: limits.streams_per_peer: is 6, more than `streams` (5): lower it",
        ),
        (
            "[tcp]\nreceive_window_limit = \"2 MiB\"",
            "t.toml:2: tcp.receive_window_limit: is less than `receive_window`: raise it, or lower the other",
        ),
        (
            "[sctp]\nreceive_window = \"8 MiB\"\nreceive_window_limit = \"4 MiB\"",
            "t.toml:3: sctp.receive_window_limit: is less than `receive_window`: raise it, or lower the other",
        ),
        (
            "[limits]\nheld_per_stream = \"1 GiB\"",
            "t.toml:2: limits.held_per_stream: is more than `held_per_worker`: lower it, or raise the \
             other",
        ),
        (
            "[mpa]\non_bad_crc = \"drop\"",
            "t.toml:2: mpa.on_bad_crc: is \"drop\", but must be one of \"error\", \"retransmit\"",
        ),
        (
            "[mpa]\nbad_crc_tries = 3",
            "t.toml:2: mpa.bad_crc_tries: has no meaning without `on_bad_crc = \"retransmit\"`: remove it",
        ),
        (
            "[mpa]\non_bad_crc = \"retransmit\"\nbad_crc_tries = 0",
            "t.toml:3: mpa.bad_crc_tries: is 0, but must be from 1 to 100",
        ),
        (
            "[mpa]\nmax_fpdu = 1400",
            "t.toml:2: mpa.max_fpdu: is 1400, less than the MTU of interface \"lan\" (1500): raise it",
        ),
        (
            "[management]\nlog = \"a=b=c\"",
            "t.toml:2: management.log: is \"a=b=c\", but must be a log filter such as \"info\" or \
             \"info,control=debug\"",
        ),
    ]);
    let long = format!("[management]\nsocket = \"/{}\"", "x".repeat(107));
    let sentence = "t.toml:2: management.socket: has 108 bytes, but a socket's path has at most 107: \
                    choose a shorter one";
    assert_each_error(&[(&long, sentence)]);
}

#[test]
fn invalid_regions_are_refused() {
    let cases = [
        (
            "access = \"w\"",
            "1: region.size: is missing: write the region's size, such as size = \"64 MiB\"",
        ),
        (
            "size = 0\naccess = \"w\"",
            "3: region.size: is 0 bytes, but must be from 1 bytes to 64 TiB",
        ),
        (
            "size = 1",
            "1: region.access: is missing: write what peers may do: \"r\", \"w\", \"rw\", \"rwa\" (with atomics) \
             or \"none\"",
        ),
        (
            "size = 2\naccess = \"w\"\nbase_to = \"0xffffffffffffffff\"",
            "5: region.base_to: plus `size` is beyond 2^64: lower one of them",
        ),
        (
            "size = 1\naccess = \"w\"\nbacking = \"disk\"",
            "5: region.backing: is \"disk\", but must be one of \"anonymous\", \"hugepages\", \
             \"shared-memory\", \"file\"",
        ),
        (
            "size = 1\naccess = \"w\"\nbacking = \"shared-memory\"",
            "1: region.object: is missing: name the object that local programs open",
        ),
        (
            "size = 1\naccess = \"w\"\nfsync = \"close\"",
            "5: region.fsync: has no meaning for backing \"anonymous\": remove it",
        ),
        (
            "size = 1\naccess = \"w\"\npath = \"f\"\nfsync = \"often\"",
            "6: region.fsync: must be \"never\", \"message\", \"close\" or an interval such as \"5 s\"",
        ),
    ];
    for (keys, expected) in cases {
        let expected = format!("t.toml:{expected}");
        assert_errors(&with(&format!("[[region]]\nname = \"r\"\n{keys}")), &[&expected]);
    }
    assert_each_error(&[
        (
            "[limits]\nregions = 1\n[[region]]\nname = \"a\"\nsize = 1\naccess = \"r\"\n[[region]]\nname = \
             \"b\"\nsize = 1\naccess = \"r\"",
            "t.toml:2: limits.regions: is 1, but the file has 2 regions: raise it or remove some",
        ),
        (
            "[[region]]\nname = \"a\"\nsize = \"32 GiB\"\naccess = \"r\"\n[limits]",
            "t.toml:3: region.size: region \"a\" has 32 GiB, more than limits.region_memory (16 GiB): make it smaller, \
             or raise limits.region_memory",
        ),
    ]);
}

#[test]
fn invalid_listeners_are_refused() {
    let cases = [
        (
            "transport = \"udp\"",
            "5: listener.transport: is \"udp\", but must be one of \"tcp\", \"sctp\"",
        ),
        (
            "transport = \"sctp\"\nmarkers = true",
            "6: listener.markers: has no meaning for transport \"sctp\": remove it",
        ),
        (
            "transport = \"sctp\"\nrevisions = [1]",
            "6: listener.revisions: has no meaning for transport \"sctp\": remove it",
        ),
        (
            "transport = \"sctp\"\nulp = \"rdmap\"\npeer = \"siw\"",
            "7: listener.peer: has no meaning for transport \"sctp\": remove it",
        ),
        (
            "revisions = []",
            "5: listener.revisions: is empty, so no peer could connect: write 0, 1 or both",
        ),
        (
            "revisions = [1, 2]",
            "5: listener.revisions: 2 is for ulp \"rdmap\" (it negotiates Reads): write 0, 1 or both",
        ),
        ("revisions = [3]", "5: listener.revisions: 3 is no revision of MPA: write 0, 1 or both"),
        (
            "regions = [\"r\"]",
            "5: listener.regions: \"r\" does not exist: add a [[region]] with this name",
        ),
        (
            "address = \"10.0.0.9\"",
            "5: listener.address: 10.0.0.9 is not an address of interface \"lan\": use one, or remove \
             the key",
        ),
        (
            "private_data_limit = 513",
            "5: listener.private_data_limit: is 513, but must be from 0 to 512",
        ),
        (
            "[listener.limits]\nstreams = 5000",
            "5: listener.limits: streams is 5000, more than limits.streams (4096): lower it or raise that",
        ),
        (
            "[listener.limits]\nstreams = 5\npending = 6",
            "7: listener.limits.pending: is 6, more than `streams` (5): lower it",
        ),
        (
            "[[listener.queue]]\nqn = 0\ndeliver_to = \"echo\"\n[[listener.queue]]\nqn = 0\ndeliver_to = \
             \"echo\"",
            "9: listener.queue.qn: 0 is there twice in this listener: remove one",
        ),
        (
            "[[listener.queue]]\nqn = 0\ndeliver_to = \"file\"",
            "5: listener.queue.path: is missing: name the file that messages are appended to",
        ),
        (
            "[[listener.queue]]\nqn = 0\ndeliver_to = \"echo\"\npath = \"f\"",
            "8: listener.queue.path: has no meaning for deliver_to \"echo\": remove it",
        ),
        (
            "[[listener.queue]]\nqn = 0\ndeliver_to = \"echo\"\nbuffers = 65536\nbuffer_size = \"16 MiB\"",
            "5: listener.queue: one stream's buffers need 1 TiB, more than limits.buffers_per_worker (64 \
             MiB): post fewer or smaller ones, or raise that",
        ),
    ];
    for (keys, expected) in cases {
        let expected = format!("t.toml:{expected}");
        let head = "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 7471\n";
        assert_errors(&with(&format!("{head}{keys}")), &[&expected]);
    }
}

#[test]
fn advertisement_beyond_private_data_is_refused() {
    let name = |n: usize| format!("{}{n}", "x".repeat(40));
    let text = |count: usize, limit: &str| {
        let names: Vec<String> = (0..count).map(|n| format!("\"{}\"", name(n))).collect();
        let mut text = format!(
            "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 7471\nregions = [{}]\n{limit}\n",
            names.join(", ")
        );
        for n in 0..count {
            text += &format!("[[region]]\nname = \"{}\"\nsize = 1\naccess = \"w\"\n", name(n));
        }
        with(&text)
    };
    // Length of the advertisement: 8 bytes, and 24 + 41 bytes per region.
    assert!(parse(&text(7, "")).is_ok());
    assert_errors(
        &text(8, ""),
        &[
            "t.toml:5: listener.regions: need 528 bytes of private data, but `private_data_limit` is 512: \
         list fewer regions or give them shorter names",
        ],
    );
    assert!(parse(&text(3, "private_data_limit = 252")).is_ok());
    assert_errors(
        &text(4, "private_data_limit = 252"),
        &[
            "t.toml:5: listener.regions: need 268 bytes of private data, but `private_data_limit` is 252: \
         list fewer regions or give them shorter names, or raise it",
        ],
    );
    // With revision 0 only, the length is not checked: a Start Key has no private data.
    assert!(parse(&text(8, "revisions = [0]")).is_ok());
}

#[test]
fn section_with_errors_can_be_referenced() {
    assert_errors(
        "[[port]]\nname = \"p\"\nkind = \"ring\"\nlinc = \"l\"\n[[interface]]\nname = \"lan\"\nport = \
         \"p\"\naddresses = [\"10.0.0.1/24\"]\n",
        &[
            "t.toml:1: port.link: is missing: name the link; the port at its other end names the same one",
            "t.toml:4: port.linc: is not a known key: did you mean `link`?",
        ],
    );
}

#[test]
fn conflicts_between_files_of_one_process_are_refused() {
    let first = format!("name = \"a\"\n[workers]\ncores = [0]\n{MINIMAL}");
    let second = format!(
        "[memory]\nhugepages = \"never\"\n[workers]\ncores = [1, 0]\n[[port]]\nname = \"q\"\nkind = \
         \"ring\"\nlink = \"l\"\nmtu = 9000\n[[port]]\nname = \"r\"\nkind = \"ring\"\nlink = \"l\"\n{}",
        "[[interface]]\nname = \"lan\"\nport = \"q\"\naddresses = [\"10.0.0.2/24\"]"
    );
    let documents = [
        Document::parse(Path::new("a.toml"), &first).unwrap(),
        Document::parse(Path::new("a.toml"), &second).unwrap(),
    ];
    let lines: Vec<String> = check_together(&documents).iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "a.toml:13: port.link: \"l\" has two ends already: name another link",
            "a.toml:9: port.mtu: is 9000, but the port at the other end of \"l\" has 1500: write the same",
            "a.toml:1: name: \"a\" is the name of a.toml too: give each a name of its own",
            "a.toml:1: management.socket: /run/ddpd/ddpd.sock is the socket of a.toml too: give each a \
         socket of its own",
            "a.toml:1: memory: differs from [memory] in a.toml: one process has one, write the same",
            "a.toml:4: workers.cores: core 0 belongs to a worker of a.toml already: use another",
        ]
    );
    let alone = Document::parse(Path::new("a.toml"), &first).unwrap();
    assert_eq!(
        check_one_ended_links(&[alone])[0].to_string(),
        "a.toml:8: port.link: \"l\" has one end only: start ddpd with the file of the other end too \
         (--config twice)"
    );
}

#[test]
fn invalid_ipsec_sections_are_refused() {
    let policy =
        |rest: &str| format!("[[ipsec.policy]]\nname = \"p\"\nremote = \"192.0.2.0/24\"\n{rest}\n");
    let sa = |name: &str, direction: &str, rest: &str| {
        format!(
            "[[ipsec.sa]]\nname = \"{name}\"\npolicy = \"p\"\ndirection = \"{direction}\"\nspi = 999\nalgorithm = \
             \"null-sha256\"\nkey_file = \"/k\"\n{rest}\n"
        )
    };
    let protect = policy("action = \"protect\"");
    let good = format!(
        "[ipsec]\nlaboratory = true\n{protect}{}{}",
        sa("a", "in", ""),
        sa("b", "out", "sequence_file = \"/s\"")
    );
    for (text, sentence) in [
        (protect.clone(), "there is no [[ipsec.sa]] with policy = \"p\" and direction = \"in\""),
        (good.replace("laboratory = true", ""), "RFC 7146 §3 forbids outside of laboratories"),
        (good.replace("sequence_file = \"/s\"", ""), "ipsec.sa.sequence_file: is missing"),
        (format!("{good}{}", sa("a", "out", "")), "\"a\" is there twice"),
        (format!("{good}{}", sa("c", "out", "")), "is that of \"b\", too"),
        (
            good.replacen("direction = \"in\"", "direction = \"in\"\nsequence_file = \"/s\"", 1),
            "of no use",
        ),
        (good.replace("policy = \"p\"", "policy = \"q\""), "\"q\" does not exist"),
        (good.replace("protect", "bypass"), "does not protect"),
        (good.replace("spi = 999", "spi = 255"), "must be from 256"),
        (format!("{good}{}", policy("action = \"bypass\"")), "\"p\" is there twice"),
        (
            format!("{good}{}", policy("action = \"bypass\"").replace("\"p\"", "\"q\"")),
            "\"q\" gets no packet: \"p\" before it takes all of its packets",
        ),
        (policy("action = \"bypass\"\nlocal_ports = 5"), "has no ports, but"),
        (
            policy("action = \"bypass\"\nprotocol = \"tcp\"\nlocal_ports = \"9-5\""),
            "its last port before",
        ),
        (policy("action = \"bypass\"\nlocal = \"::/0\""), "another address family"),
        (policy("action = \"bypass\"\nprotocol = \"dccp\""), "write \"any\""),
        (policy("action = \"bypass\"\nmode = \"tunnel\""), "has no meaning for action \"bypass\""),
        (
            policy("action = \"protect\"\nmode = \"tunnel\""),
            "ipsec.policy.tunnel_local: is missing",
        ),
        (
            policy(
                "action = \"protect\"\nmode = \"tunnel\"\ntunnel_local = \"fd01::1\"\ntunnel_remote = \"192.0.2.9\"",
            ),
            "of another address family than what it carries",
        ),
    ] {
        let text = format!("{MINIMAL}\n{text}");
        let errors = parse(&text).expect_err(sentence).to_string();
        assert!(errors.contains(sentence), "{errors}\n{text}");
    }
    parse(&format!("{MINIMAL}\n{good}")).unwrap();
}

#[test]
fn invalid_sections_for_kernel_keys_are_refused() {
    let kernel = "[ipsec]\nkeys = \"kernel\"\n";
    let policy =
        "[[ipsec.policy]]\nname = \"p\"\nremote = \"192.0.2.0/24\"\naction = \"protect\"\n";
    let sa = "[[ipsec.sa]]\nname = \"a\"\npolicy = \"p\"\ndirection = \"in\"\nspi = 999\nalgorithm = \
              \"null-sha256\"\nkey_file = \"/k\"\n";
    let listener =
        "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 7\nrequire = \"ipsec-128\"\n";
    for (text, sentence) in [
        (format!("{kernel}{policy}{sa}"), "takes all SAs from the kernel: remove it"),
        (
            format!("{kernel}{policy}mode = \"transport\"\n"),
            "ipsec.policy.mode: has no meaning for keys = \"kernel\"",
        ),
        (listener.to_owned(), "listener.require: asks for IPsec, but there is no [[ipsec.policy]]"),
        (
            format!("{kernel}{}", listener.replace("ipsec-128", "ipsec-64")),
            "\"ipsec-64\", but must be",
        ),
        ("[ipsec]\nkeys = \"vault\"\n".to_owned(), "ipsec.keys: is \"vault\""),
        ("[ipsec]\nnat_keepalive = \"1ms\"\n".to_owned(), "ipsec.nat_keepalive"),
    ] {
        let errors = parse(&format!("{MINIMAL}\n{text}")).expect_err(sentence).to_string();
        assert!(errors.contains(sentence), "{errors}\n{text}");
    }
    // With the kernel's keys, policies of the file need no SAs.
    parse(&format!("{MINIMAL}\n{kernel}{policy}{listener}")).unwrap();
}

#[test]
fn invalid_peer_lists_are_refused() {
    let listener = "[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 7\n";
    let many: Vec<String> =
        (0..=1024).map(|n| format!("\"10.1.{}.{}/32\"", n / 256, n % 256)).collect();
    let many = format!("[{}]", many.join(", "));
    for key in ["allow", "deny"] {
        for (value, sentence) in [
            ("[\"192.0.2.1/24\"]", "has host bits set: write 192.0.2.0/24"),
            ("[\"192.0.2.1\"]", "is \"192.0.2.1\", but must be an address with its prefix length"),
            ("[\"::ffff:192.0.2.0/120\"]", "an IPv4-mapped prefix: write 192.0.2.0/24"),
            (
                "[\"192.0.2.0/24\", \"::/0\", \"192.0.2.0/24\"]",
                "has 192.0.2.0/24 twice: remove one",
            ),
            (many.as_str(), "has 1025 entries, more than 1024"),
            ("\"192.0.2.0/24\"", "must be"),
        ] {
            let text = format!("{MINIMAL}\n{listener}{key} = {value}\n");
            let errors = parse(&text).expect_err(sentence).to_string();
            assert!(errors.contains(&format!("listener.{key}")), "{errors}");
            assert!(errors.contains(sentence), "{errors}");
            let text =
                MINIMAL.replace("[[interface]]\n", &format!("[[interface]]\n{key} = {value}\n"));
            let errors = parse(&text).expect_err(sentence).to_string();
            assert!(errors.contains(&format!("interface.{key}")), "{errors}");
            assert!(errors.contains(sentence), "{errors}");
        }
    }
    let good = "allow = [\"0.0.0.0/0\", \"::/0\"]\ndeny = [\"192.0.2.7/32\"]\n";
    parse(&format!("{MINIMAL}\n{listener}{good}")).unwrap();
}

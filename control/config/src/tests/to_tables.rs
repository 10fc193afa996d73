//! Tests: reading a written configuration gives the same configuration.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::super::*;
use super::{MINIMAL, parse};

/// Returns files that together contain every key of every section.
fn rich() -> Vec<String> {
    let listeners = r#"
name = "rich"
[memory]
hugepages = "never"
size = "64 MiB"
numa_node = 1
eal_args = ["--log-level", "a\"b\\c"]
[workers]
cores = [3, 1]
idle = "poll"
[programs]
socket = "/run/p.sock"
allow = ["user:a", "group:7"]
socket_group = "b"
programs = 3
queue_pairs = 4
completion_queues = 5
memory_regions = 6
memory = "1 MiB"
arena = "2 MiB"
posts = 7
completions = 8
listeners = 9
budget = 10
[[port]]
name = "p"
kind = "ring"
link = "l"
mac = "02:00:00:00:00:0a"
checksum = "trusted"
mtu = 9000
link_down_timeout = "90 s"
workers = [1]
rx_descriptors = 64
tx_descriptors = 128
[port.impair]
loss = "0.5 %"
reorder = 0.25
reorder_delay = "300 us"
delay = "1500 us"
jitter = "1 ms"
duplicate = 0.00001
corrupt = 1
rate = "10 Gbit/s"
queue = 9999
seed = "0xffffffffffffffff"
[port.impair.burst_loss]
enter = 0.001
leave = 0.25
[[port]]
name = "m"
kind = "memif"
socket = "/run/a'b\"c"
role = "client"
id = 7
secret = "hush"
[[port]]
name = "nic"
kind = "pci"
address = "0000:03:00.0"
devargs = "a=1,b=2"
[[port]]
name = "t"
kind = "tap"
device = "t0"
[[interface]]
name = "lan"
port = "p"
vlan = 7
addresses = ["10.0.0.1/24", "fd00::1/64"]
gateway = ["10.0.0.254", "fd00::fe"]
mtu = 1400
dscp = 46
ttl = 3
local_ports = "2000-2063"
allow = ["10.0.0.0/8", "fd00::/16"]
deny = ["10.9.0.0/16"]
[[interface.routes]]
to = "192.0.2.0/24"
via = "10.0.0.9"
[[interface]]
name = "shared"
port = "nic"
addresses = ["10.0.9.1/24"]
local_ports = "2000-2063"
host = "tap"
host_name = "front"
[[interface]]
name = "other"
port = "m"
addresses = ["10.1.0.1/24"]
[[interface.routes]]
to = "0.0.0.0/0"
via = "10.1.0.9"
[[interface]]
name = "tap"
port = "t"
addresses = ["10.2.0.1/24"]
[[region]]
name = "plain"
size = 4097
access = []
[[region]]
name = "huge"
backing = "hugepages"
size = "2 MiB"
base_to = "0xffff000000000000"
access = "rwa"
clear_between_peers = false
[[region]]
name = "shm"
backing = "shared-memory"
object = "o"
size = "1 MiB"
access = ["remote-read", "remote-write"]
shared = true
[[region]]
name = "file"
path = "/tmp/x y"
fsync = "1500 ms"
access = "w"
[[listener]]
name = "ddp"
interface = "lan"
address = "10.0.0.1"
port = 1
require = "ipsec-256"
allow = ["10.0.0.0/24"]
deny = ["10.0.0.7/32", "fd00::bad/128"]
dscp = 1
ttl = 2
revisions = [0]
markers = false
crc = false
private_data_limit = 100
regions = ["plain", "huge"]
[listener.limits]
streams = 9
streams_per_peer = 8
pending = 7
startup_timeout = "1 s"
idle_timeout = "1 day"
[[listener.queue]]
qn = 4
buffers = 3
buffer_size = 5000
deliver_to = "file"
path = "log"
[[listener.queue]]
qn = 2
deliver_to = "echo"
[[listener]]
name = "sctp"
interface = "lan"
port = 1
transport = "sctp"
ulp = "rdmap"
service = "sink"
ird = 0
[[listener]]
name = "perf"
interface = "lan"
port = 3
ulp = "rdmap"
service = "perftest"
peer = "siw"
ord = 1024
message_size = "1 MiB"
regions = ["shm"]
[listener.limits]
streams = 2
[[listener]]
name = "region"
interface = "lan"
port = 4
ulp = "rdmap"
markers = true
[tcp]
congestion = "newreno"
keepalive = "5 s"
keepalive_interval = "1 s"
keepalive_probes = 9
zero_window_timeout = "off"
receive_window = "256 MiB"
[mpa]
on_bad_crc = "retransmit"
bad_crc_tries = 3
[sctp]
heartbeat = "off"
udp_encapsulation = 9899
[ipsec]
laboratory = true
window = 64
[[ipsec.policy]]
name = "ssh"
local = "192.0.2.1/32"
remote = "192.0.2.0/24"
protocol = "tcp"
local_ports = 22
action = "bypass"
[[ipsec.policy]]
name = "streams"
remote = "192.0.2.0/24"
protocol = 6
remote_ports = "4000-5000"
action = "protect"
[[ipsec.policy]]
name = "all"
remote = "2001:db8::/32"
action = "protect"
mode = "tunnel"
tunnel_local = "2001:db8::1"
tunnel_remote = "2001:db8::2"
[[ipsec.policy]]
name = "rest"
remote = "192.0.2.0/24"
protocol = "250"
action = "discard"
[[ipsec.sa]]
name = "to"
policy = "streams"
direction = "out"
spi = 4097
algorithm = "aes128gcm16"
key_file = "/etc/ddpd/to.key"
sequence_file = "/var/lib/ddpd/to.sequence"
[[ipsec.sa]]
name = "from"
policy = "streams"
direction = "in"
spi = 4098
algorithm = "aes256-sha256"
esn = false
udp = true
key_file = "/etc/ddpd/from.key"
[[ipsec.sa]]
name = "to-6"
policy = "all"
direction = "out"
spi = 4099
algorithm = "null-sha1"
key_file = "/etc/ddpd/to6.key"
sequence_file = "/var/lib/ddpd/to6.sequence"
[[ipsec.sa]]
name = "from-6"
policy = "all"
direction = "in"
spi = 4099
algorithm = "null-sha1"
key_file = "/etc/ddpd/from6.key"
[limits]
streams_per_peer = 5
memory = "2 GiB"
[management]
socket = "/run/x.sock"
log = "info,control=debug"
[management.listen]
address = "127.0.0.1:9471"
[management.access]
view = ["group:monitoring", "user:7"]
operate = ["group:8"]
admin = ["user:alice"]
socket_group = "ddpd"
[management.audit]
file = "/var/log/ddpd/audit.jsonl"
max_size = "64 KiB"
keep = 7
"#;
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let files = std::fs::read_dir(configs).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|e| e == "toml"));
    let texts = files.map(|path| std::fs::read_to_string(path).unwrap());
    texts.chain([listeners.to_owned(), MINIMAL.to_owned()]).collect()
}

#[test]
fn written_configuration_round_trips() {
    for text in rich() {
        let config = parse(&text).unwrap_or_else(|errors| panic!("{errors}\n{text}")).config;
        let whole = render(&config.to_tables(Secrets::InClear));
        let again = parse(&whole).unwrap_or_else(|errors| panic!("{errors}\n{whole}")).config;
        assert_eq!(again, config, "{whole}");
    }
}

/// Every key that has a descriptor is written for at least one of the files of [`rich`].
#[test]
fn every_key_is_written() {
    let mut written: Vec<(String, &str)> = Vec::new();
    for text in rich() {
        let tables = parse(&text).unwrap().config.to_tables(Secrets::InClear);
        for table in tables {
            written.extend(table.keys.iter().map(|(key, _)| (table.section.to_owned(), *key)));
        }
    }
    let missing: Vec<String> = keys()
        .iter()
        .filter(|key| !written.contains(&(key.section.to_owned(), key.name)))
        .map(|key| format!("{}.{}", key.section, key.name))
        .collect();
    assert_eq!(missing, [""; 0]);
}

/// Every kind of port occurs in the files of [`rich`] and is written.
#[test]
fn every_port_kind_is_written() {
    let configs = rich().into_iter().map(|text| parse(&text).unwrap().config);
    let tables: Vec<_> = configs.flat_map(|config| config.to_tables(Secrets::InClear)).collect();
    for kind in PortKind::NAMES {
        let port = |table: &WrittenTable| table.keys.contains(&("kind", json!(kind)));
        assert!(tables.iter().any(port), "{kind}");
    }
}

#[test]
fn secrets_are_redacted() {
    let config = parse(&rich()[rich().len() - 2]).unwrap().config;
    let shown = render(&config.to_tables(Secrets::Hidden));
    assert!(shown.contains("secret = \"\u{2026}\"") && !shown.contains("hush"), "{shown}");
}

#[test]
fn edited_file_keeps_comments_and_has_running_values() {
    let text = format!(
        "# ours\n{MINIMAL}\n[[region]] # first\nname = \"a\"\nsize = 4096 # small\naccess = \"rw\"\n\
         [[region]]\nname = \"b\"\nsize = 4096\naccess = \"r\"\n[tcp]\n# above\nsack = false # why\n"
    );
    let file = PathBuf::from("t.toml");
    let mut config = parse(&text).unwrap().config;
    config.regions.remove(1);
    config.regions[0].remote_write = false;
    config.regions[0].clear_between_peers = false;
    config
        .regions
        .push(region_from_json(&json!({"name": "api", "size": "8 KiB", "access": "w"})).unwrap());
    config.listeners.push(
        listener_from_json(&json!({
            "name": "l", "interface": "lan", "port": 7, "regions": ["api"],
            "limits": {"streams": 5}, "queue": [{"qn": 3, "deliver_to": "echo"}],
        }))
        .unwrap(),
    );
    config.tcp.sack = true;
    config.limits.streams = 77;
    let edited = file_text(&config, &file, &text).unwrap();
    assert_eq!(
        edited,
        format!(
            "# ours\n{MINIMAL}\n[[region]] # first\nname = \"a\"\nsize = 4096 # small\naccess = \"r\"\n\
             \n[[region]]\nname = \"api\"\nsize = \"8 KiB\"\naccess = \"w\"\n\
             [tcp]\n# above\nsack = true # why\n\n[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 7\n\
             regions = [\"api\"]\n\n[listener.limits]\nstreams = 5\n\n[[listener.queue]]\nqn = 3\n\
             deliver_to = \"echo\"\n\n[limits]\nstreams = 77\n"
        )
    );
    assert_eq!(parse(&edited).unwrap().config, config);
    // In a file with another name the default for `name` differs, so the key is written.
    let elsewhere = file_text(&config, Path::new("other.toml"), &text).unwrap();
    assert!(elsewhere.contains("name = \"t\"\n"), "{elsewhere}");
    // A text that cannot be edited, here because of an inline table, is replaced by a generated text.
    let inline = MINIMAL.to_owned() + "tcp = { sack = false }\n";
    let anew = file_text(&config, &file, &inline).unwrap();
    assert_eq!(parse(&anew).unwrap().config, config, "{anew}");
}

#[test]
fn source_gives_line_of_each_key() {
    let text = format!(
        "name = \"n\"\n{MINIMAL}\n[[interface.routes]]\nto = \"0.0.0.0/0\"\nvia = \"10.0.0.2\"\n[tcp]\n\
         sack = false\n[[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 7\n[[listener.queue]]\nqn = 3\n\
         deliver_to = \"echo\"\n"
    );
    let source = parse(&text).unwrap().config.source;
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let line = |number: Option<u32>| number.and_then(|n| text.lines().nth(n as usize - 1));
    assert_eq!(source.line("", &[], "name"), Some(1));
    assert_eq!(line(source.line("tcp", &[], "sack")), Some("sack = false"));
    assert_eq!(line(source.line("listener.queue", &of(&["l", "3"]), "qn")), Some("qn = 3"));
    assert_eq!(line(source.line("listener", &of(&["l"]), "")), Some("[[listener]]"));
    assert_eq!(
        line(source.line("interface", &of(&["lan"]), "gateway")),
        Some("to = \"0.0.0.0/0\"")
    );
    assert_eq!(source.line("tcp", &[], "ecn"), None);
}

//! A worker reads an ARP request and an echo request of a neighbour from a capture file, and writes its answers to
//! another file. Requires no privileges and no hugepages.

mod port_common;

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use dataplane::port::{ChecksumMode, PortConfig, PortFactory, PortKind};
use dataplane::{
    Dataplane, DataplaneConfig, Idle, InterfaceConfig, Limits, PortAttachment, PortId,
    WorkerConfig, WorkerId,
};

const OURS: ([u8; 6], [u8; 4]) = ([2, 0, 0, 0, 0, 1], [10, 78, 0, 1]);
const PEER: ([u8; 6], [u8; 4]) = ([2, 0, 0, 0, 0, 2], [10, 78, 0, 2]);

#[test]
fn worker_answers_frames_of_pcap_file() {
    let directory = std::env::temp_dir().join(format!("ddpd-pcap-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory");
    let (input, output) = (directory.join("in.pcap"), directory.join("out.pcap"));
    std::fs::write(&input, capture_file(&[arp_request(), echo_request()])).expect("a file");
    let ports = port_common::ports();
    unusable_files_are_refused(&ports, &directory);

    let kind = PortKind::Pcap { rx_file: input, tx_file: Some(output.clone()) };
    let port = PortConfig {
        mac: Some(OURS.0),
        checksum: ChecksumMode::Software,
        ..PortConfig::new("capture", kind)
    };
    let two = PortConfig { queues: 2, ..port.clone() };
    let error = ports.open(&two).expect_err("it has one queue");
    assert_eq!(error.key(), "workers", "{error}");
    let mut opened = vec![ports.open(&port).expect("both files are good")];
    assert_eq!(opened[0].info().driver, "net_pcap");
    assert!(opened[0].link().up);
    let dataplane =
        Dataplane::start(&stack(), &mut opened, ports.eal()).expect("one worker starts");
    port_common::wait_until("both answers are written", || frames(&output).len() >= 2);
    let answers = frames(&output);
    let is_arp_reply = |frame: &[u8]| {
        frame[..6] == PEER.0
            && frame[12..14] == [8, 6]
            && frame[20..22] == [0, 2]
            && frame[22..28] == OURS.0
    };
    let is_echo_reply = |frame: &[u8]| {
        frame[..6] == PEER.0 && frame[12..14] == [8, 0] && frame[30..34] == PEER.1 && frame[34] == 0
    };
    assert!(answers.iter().any(|frame| is_arp_reply(frame)), "{answers:x?}");
    assert!(answers.iter().any(|frame| is_echo_reply(frame)), "{answers:x?}");
    let (queue, _) = opened[0].queue_counters()[0];
    assert_eq!(queue.rx_frames, 2);
    drop(dataplane);
    drop(opened);
    std::fs::remove_dir_all(&directory).expect("the directory is removed");
}

/// Unusable files are refused with the configuration key and the reason.
fn unusable_files_are_refused(ports: &PortFactory, directory: &Path) {
    let text = directory.join("notes.txt");
    std::fs::write(&text, "this is not a capture file at all").expect("a file");
    for (rx_file, why) in [
        (text.clone(), "neither pcap nor pcapng"),
        (directory.join("absent.pcap"), "cannot be read"),
        (directory.join("a,b.pcap"), "are not allowed in it"),
    ] {
        let config = PortConfig::new("p", PortKind::Pcap { rx_file, tx_file: None });
        let error = ports.open(&config).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(error.key(), "rx_file");
    }
}

fn stack() -> DataplaneConfig {
    let id = WorkerId(0);
    DataplaneConfig {
        workers: vec![WorkerConfig {
            id,
            core: None,
            idle: Idle::Adaptive { spin: Duration::from_micros(50) },
        }],
        ports: vec![PortAttachment { workers: vec![id] }],
        interfaces: vec![InterfaceConfig {
            ip: Default::default(),
            local_ports: Default::default(),
            host: false,
            name: "capture".into(),
            port: PortId(0),
            vlan: None,
            addresses: vec![format!("{}/24", Ipv4Addr::from(OURS.1)).parse().unwrap()],
            routes: Vec::new(),
            mtu: 1500,
        }],
        limits: Limits::default(),
        sctp_udp_port: None,
        ipsec: None,
        secret: [7; 32].into(),
    }
}

fn arp_request() -> Vec<u8> {
    let header = [&[0xff; 6][..], &PEER.0, &[8, 6]].concat();
    let request = [0, 1, 8, 0, 6, 4, 0, 1];
    pad([&header[..], &request, &PEER.0, &PEER.1, &[0; 6], &OURS.1].concat())
}

fn echo_request() -> Vec<u8> {
    let header = [&OURS.0[..], &PEER.0, &[8, 0]].concat();
    let mut ip = [0x45, 0, 0, 36, 0, 1, 0, 0, 64, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[12..16].copy_from_slice(&PEER.1);
    ip[16..20].copy_from_slice(&OURS.1);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let mut icmp = [8, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    pad([&header[..], &ip, &icmp].concat())
}

fn pad(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(60), 0);
    frame
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// Returns a pcap file of Ethernet frames.
fn capture_file(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (at, frame) in frames.iter().enumerate() {
        let len = frame.len() as u32;
        let record = [at as u32, 0, len, len];
        file.extend(record.iter().flat_map(|word| word.to_le_bytes()));
        file.extend(frame);
    }
    file
}

/// Returns the complete frames in a capture file, which the port may still be writing.
fn frames(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap_or_default();
    let mut rest = file.get(24..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some(len) = rest.get(8..12) {
        let len = u32::from_le_bytes(len.try_into().expect("four bytes")) as usize;
        let Some(frame) = rest.get(16..16 + len) else { break };
        frames.push(frame.to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

//! The port merges segments into large packets, and the TAP driver splits them in software (librte_gso). A packet
//! socket on the interface receives the segments as they were before the merge, with checksums.

mod port_common;

use std::time::{Duration, Instant};

use dataplane::checksum;
use dataplane::port::{
    PortConfig, PortKind, PortQueue, RxBatch, SegmentationMode, Segmenter, TxChecksums, TxL4,
};
use port_common::Netns;

/// Payload bytes of a segment. With all headers the segment fits the driver's MTU.
const LEN: usize = 1400;
/// Offset of the TCP header in a frame.
const L4: usize = 34;

/// Returns segments with the checksum fields that offload requires: IPv4 0, TCP the pseudo-header's sum.
fn segments(count: usize, last: usize) -> Vec<Vec<u8>> {
    let segment = |i: usize| {
        let len = if i + 1 == count { last } else { LEN };
        let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0, 0x45, 0];
        frame.extend((52 + len as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 79, 0, 2, 10, 79, 0, 1]);
        frame.extend([12, 188, 17, 68]);
        frame.extend((u32::MAX - 5000).wrapping_add((i * LEN) as u32).to_be_bytes());
        frame.extend([0, 0, 0, 9, 0x80, if i + 1 == count { 0x18 } else { 0x10 }, 1, 0]);
        let sum = checksum::sum(&[10, 79, 0, 2, 10, 79, 0, 1]);
        frame.extend(checksum::pseudo_header_with_addresses(sum, 6, 32 + len).to_be_bytes());
        frame.extend([0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        frame.extend(port_common::pattern(LEN + i).split_off(LEN + i - len));
        frame
    };
    (0..count).map(segment).collect()
}

/// Returns the frame with the TCP checksum that the device computes.
fn complete_checksum(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let sum = !checksum::sum(&frame[L4..]);
    frame[L4 + 16..L4 + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Verifies the IPv4 header checksum. Returns the frame with identification and checksum zeroed.
fn without_id_and_checksum(frame: &[u8]) -> Vec<u8> {
    assert_eq!(checksum::sum(&frame[14..L4]), 0xffff);
    let mut frame = frame.to_vec();
    frame[18..20].fill(0);
    frame[24..26].fill(0);
    frame
}

fn send(queue: &mut PortQueue, frames: &[Vec<u8>]) {
    for bytes in frames {
        let mut frame = queue.alloc().expect("a free buffer");
        frame.append(bytes.len()).expect("it fits").copy_from_slice(bytes);
        frame.set_tx_checksums(TxChecksums {
            ipv6: false,
            ip: true,
            l4: TxL4::Tcp,
            l2_len: 14,
            l3_len: 20,
        });
        queue.tx(frame);
    }
    queue.flush();
}

#[test]
fn librte_gso_restores_original_segments() {
    if !port_common::has_privileges("port_tap_large") {
        return;
    }
    let _netns = Netns::enter("tap-large");
    let ports = port_common::ports();
    let kind = PortKind::Tap { device: "tap".into() };
    let usual = PortConfig::new("t", kind);
    assert_eq!(usual.segmentation, SegmentationMode::Software);
    let config = PortConfig { segmentation: SegmentationMode::Offload, ..usual };
    let mut port = ports.open(&config).unwrap();
    assert_eq!(port.info().segmenter, Some(Segmenter::Device), "{:?}", port.info());
    let mut queue = port_common::only_queue(&mut port);
    port_common::run(&["ip", "link", "set", "tap", "up"]);
    port_common::wait_until("the link is up", || port.link().up);
    let kind = PortKind::AfPacket { device: "tap".into() };
    let mut socket = ports.open(&PortConfig::new("s", kind)).unwrap();
    let mut socket_queue = port_common::only_queue(&mut socket);
    let free = port.free_buffers();
    for (count, last, large) in [(1, LEN, 0), (2, 1, 1), (45, LEN, 1), (60, 700, 2)] {
        let frames = segments(count, last);
        let before = *queue.counters();
        send(&mut queue, &frames);
        let (mut got, start) = (Vec::new(), Instant::now());
        while got.len() < count && start.elapsed() < Duration::from_secs(10) {
            queue.flush();
            let mut batch = RxBatch::new();
            socket_queue.rx_burst(port_common::now(), &mut batch);
            let ours =
                batch.iter().filter(|f| f.data().len() > L4 && f.data()[..6] == [2, 0, 0, 0, 0, 9]);
            got.extend(ours.map(|frame| without_id_and_checksum(frame.data())));
        }
        let sent: Vec<_> = frames.iter().map(|frame| complete_checksum(frame)).collect();
        assert_eq!(got.len(), count);
        for (got, sent) in got.iter().zip(&sent) {
            // The device fills in the IPv4 checksum, so the comparison excludes it.
            let mut sent = sent.clone();
            sent[24..26].fill(0);
            assert_eq!(*got, sent);
        }
        let after = *queue.counters();
        let bytes: usize = frames.iter().map(Vec::len).sum();
        assert_eq!(after.tx_frames - before.tx_frames, count as u64);
        assert_eq!(after.tx_bytes - before.tx_bytes, bytes as u64);
        assert_eq!(after.tx_large - before.tx_large, large);
    }
    port_common::assert_no_leak(&port, free);
}

//! A hand-written frontend of a vhost-user port (crate `vhost`): its memory, rings and descriptors.

#![allow(dead_code, reason = "each test uses a part")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use vhost::vhost_user::{Frontend, VhostUserFrontend, message::VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// Length of the shared memory in bytes. Guest addresses begin at 0.
pub(crate) const MEMORY: u64 = 16 << 20;
/// The frontend's virtual address of the memory. Ring addresses are given in this address space.
pub(crate) const USERSPACE_BASE: u64 = 0x10_0000_0000;
/// Number of entries of a ring.
pub(crate) const RING_SIZE: u16 = 256;
/// Indices of the rings: from the port to the frontend, and from the frontend to the port.
pub(crate) const TO_FRONTEND: u64 = 0;
pub(crate) const FROM_FRONTEND: u64 = 1;
/// Length of virtio's header before a frame, in bytes.
pub(crate) const HEADER: usize = 12;

/// Descriptor flags VIRTQ_DESC_F_NEXT, _WRITE and _INDIRECT.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Offsets of the available and the used ring in a ring's memory.
pub(crate) const AVAIL: u64 = 0x1000;
pub(crate) const USED: u64 = 0x2000;

/// Guest address of the first buffer.
pub(crate) const BUFFERS: u64 = 0x10_0000;

pub(crate) fn ring_at(ring: u64) -> u64 {
    ring * 0x4000
}

/// A frontend that is connected to the port's vhost-user socket.
pub(crate) struct Raw {
    pub(crate) memory: File,
    pub(crate) frontend: Frontend,
    pub(crate) avail: [u16; 2],
    /// Number of used-ring entries that [`packets`](Self::packets) has read.
    taken: u16,
    _events: Vec<EventFd>,
}

#[derive(Clone, Copy)]
pub(crate) struct Desc {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

impl Raw {
    pub(crate) fn connect(socket: &Path) -> Raw {
        Raw::connect_with(socket, 0)
    }

    /// Connects with the network device feature bits `net` in addition to the required bits.
    pub(crate) fn connect_with(socket: &Path, net: u64) -> Raw {
        let memory = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let memory = File::from(memory);
        memory.set_len(MEMORY).unwrap();
        let mut frontend = Frontend::connect(socket, 2).unwrap();
        // VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_RING_F_INDIRECT_DESC.
        let features = 1 << 32 | 1 << 30 | 1 << 28 | net;
        frontend.set_owner().unwrap();
        assert_eq!(frontend.get_features().unwrap() & features, features);
        frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(VhostUserProtocolFeatures::empty()).unwrap();
        frontend.set_features(features).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USERSPACE_BASE,
            mmap_offset: 0,
            mmap_handle: memory.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).unwrap();
        let mut events = Vec::new();
        for ring in [TO_FRONTEND, FROM_FRONTEND] {
            let base = USERSPACE_BASE + ring_at(ring);
            let index = ring as usize;
            frontend.set_vring_num(index, RING_SIZE).unwrap();
            frontend.set_vring_base(index, 0).unwrap();
            let addresses = VringConfigData {
                queue_max_size: RING_SIZE,
                queue_size: RING_SIZE,
                flags: 0,
                desc_table_addr: base,
                avail_ring_addr: base + AVAIL,
                used_ring_addr: base + USED,
                log_addr: None,
            };
            frontend.set_vring_addr(index, &addresses).unwrap();
            let [kick, call] = [(); 2].map(|()| EventFd::new(libc_nonblock()).unwrap());
            frontend.set_vring_call(index, &call).unwrap();
            frontend.set_vring_kick(index, &kick).unwrap();
            frontend.set_vring_enable(index, true).unwrap();
            events.extend([kick, call]);
        }
        Raw { memory, frontend, avail: [0; 2], taken: 0, _events: events }
    }

    /// Waits until the port has processed all previous requests.
    pub(crate) fn settle(&self) {
        self.frontend.get_features().unwrap();
    }

    pub(crate) fn describe(&self, table: u64, index: u16, desc: Desc) {
        let at = table + u64::from(index) * 16;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&desc.at.to_le_bytes());
        bytes[8..12].copy_from_slice(&desc.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&desc.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&desc.next.to_le_bytes());
        self.memory.write_all_at(&bytes, at).unwrap();
    }

    /// Makes the chains that begin at these descriptors available.
    pub(crate) fn publish(&mut self, ring: u64, heads: &[u16]) {
        let base = ring_at(ring) + AVAIL;
        let avail = &mut self.avail[ring as usize];
        for head in heads {
            let at = base + 4 + u64::from(*avail % RING_SIZE) * 2;
            self.memory.write_all_at(&head.to_le_bytes(), at).unwrap();
            *avail = avail.wrapping_add(1);
        }
        self.memory.write_all_at(&avail.to_le_bytes(), base + 2).unwrap();
    }

    /// Sends frames from the frontend, one per descriptor from `first` on, all made available together.
    pub(crate) fn send(&mut self, first: u16, frames: &[&[u8]]) {
        let heads: Vec<u16> = (first..).take(frames.len()).collect();
        for (&head, frame) in heads.iter().zip(frames) {
            let at = BUFFERS + u64::from(head) * 0x1000;
            self.memory.write_all_at(&[0; HEADER], at).unwrap();
            self.memory.write_all_at(frame, at + HEADER as u64).unwrap();
            let len = (HEADER + frame.len()) as u32;
            self.describe(ring_at(FROM_FRONTEND), head, Desc { at, len, flags: 0, next: 0 });
        }
        self.publish(FROM_FRONTEND, &heads);
    }

    /// Offers buffers for the frames that the port sends.
    pub(crate) fn offer(&mut self, count: u16) {
        self.offer_from(0, count);
    }

    /// Offers buffers, with the descriptors from `first` on.
    pub(crate) fn offer_from(&mut self, first: u16, count: u16) {
        self.offer_sized(4096, first, count);
    }

    /// Offers buffers of `len` bytes, with the descriptors from `first` on.
    pub(crate) fn offer_sized(&mut self, len: u32, first: u16, count: u16) {
        let heads: Vec<u16> = (first..first + count).collect();
        for &head in &heads {
            let at = BUFFERS + 0x40_0000 + u64::from(head) * 0x1000;
            self.describe(ring_at(TO_FRONTEND), head, Desc { at, len, flags: WRITE, next: 0 });
        }
        self.publish(TO_FRONTEND, &heads);
    }

    /// Returns virtio's header and the bytes of each packet that the port has written into buffers since the last call.
    /// Packets that the port spread over several buffers are merged.
    pub(crate) fn packets(&mut self) -> Vec<([u8; HEADER], Vec<u8>)> {
        let end = self.used(TO_FRONTEND);
        let mut packets = Vec::new();
        while self.taken != end {
            let (mut header, mut bytes, mut left) = ([0; HEADER], Vec::new(), 1);
            while left > 0 {
                let mut entry = [0; 8];
                let at = ring_at(TO_FRONTEND) + USED + 4 + u64::from(self.taken % RING_SIZE) * 8;
                self.memory.read_exact_at(&mut entry, at).unwrap();
                let [id, len] =
                    [0, 4].map(|i| u32::from_le_bytes(entry[i..i + 4].try_into().unwrap()));
                let mut part = vec![0; len as usize];
                let at = BUFFERS + 0x40_0000 + u64::from(id) * 0x1000;
                self.memory.read_exact_at(&mut part, at).unwrap();
                if bytes.is_empty() {
                    header.copy_from_slice(&part[..HEADER]);
                    // DPDK sets `num_buffers` only for frontends with VIRTIO_NET_F_MRG_RXBUF.
                    left = u16::from_le_bytes([header[10], header[11]]).max(1);
                    part.drain(..HEADER);
                }
                bytes.extend(part);
                self.taken = self.taken.wrapping_add(1);
                left -= 1;
            }
            packets.push((header, bytes));
        }
        packets
    }

    /// Returns the index of the used ring: the number of chains that the port has used, modulo 2^16.
    pub(crate) fn used(&self, ring: u64) -> u16 {
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, ring_at(ring) + USED + 2).unwrap();
        u16::from_le_bytes(index)
    }
}

/// Returns EFD_NONBLOCK, which equals O_NONBLOCK on Linux.
pub(crate) fn libc_nonblock() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits() as i32
}

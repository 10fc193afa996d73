//! A packet buffer.
//!
//! ```text
//!  buf_addr                data_off                                   buf_len
//!  |<------ headroom ------>|<-------- data, data_len ------->|<-- tailroom -->|
//! ```
//!
//! One segment is all that the data path uses: pools are sized so that a frame fits, and a chain that a
//! driver makes all the same is made one by [`Mbuf::linearize`].

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;

use dpdk_sys as sys;

use crate::prefetch;
use crate::types::{LargePacket, Segmentation};

/// Bytes in front of the data of a fresh buffer.
pub const HEADROOM: usize = sys::DDPD_HEADROOM as usize;

/// A packet buffer of one segment or more; goes back to its pool when dropped, from any thread.
///
/// All bytes of its room are initialised, fresh ones with what the last user left.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: a buffer has one owner and is not tied to a thread; pools are multi-producer, so freeing is
// allowed from every thread.
unsafe impl Send for Mbuf {}

/// A device's verdict on a checksum of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RxChecksum {
    /// It has not looked.
    Unknown,
    /// Right.
    Good,
    /// Wrong.
    Bad,
}

/// Which checksums the device is to fill in, and where the headers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxChecksums {
    /// IPv6, else IPv4.
    pub ipv6: bool,
    /// Fill in the IPv4 header checksum (ignored for IPv6).
    pub ip: bool,
    /// Fill in the checksum of the packet in it.
    pub l4: TxL4,
    /// Bytes of the link header, tags included.
    pub l2_len: u16,
    /// Bytes of the IP header and its options or extensions.
    pub l3_len: u16,
}

/// Of which protocol above IP a checksum is filled in. A buffer has room for one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxL4 {
    /// None.
    None,
    /// TCP. The field must hold the sum of the pseudo header, not complemented.
    Tcp,
    /// SCTP. The field must be zero.
    Sctp,
}

impl Mbuf {
    /// Takes over a buffer from C.
    ///
    /// # Safety
    /// `raw` is a valid packet buffer that no other code will use or free.
    pub(crate) unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Mbuf {
        Mbuf(raw)
    }

    /// Bytes of the whole frame.
    pub fn len(&self) -> usize {
        // SAFETY: the offset is that of the u32 field `pkt_len` in the installed headers.
        unsafe { self.field::<u32>(sys::DDPD_MBUF_PKT_LEN) as usize }
    }

    /// True when the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Segments in the chain, 1 for all that this crate makes.
    pub fn segments(&self) -> u16 {
        // SAFETY: the offset is that of the u16 field `nb_segs`.
        unsafe { self.field(sys::DDPD_MBUF_NB_SEGS) }
    }

    /// The bytes of the first segment.
    pub fn data(&self) -> &[u8] {
        // SAFETY: `start` and `data_len` describe initialised bytes inside the buffer's room, which is
        // ours alone while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(), self.data_len() as usize) }
    }

    /// The bytes of the first segment, to be changed.
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.data_len() as usize) }
    }

    /// Free bytes before the data.
    pub fn headroom(&self) -> usize {
        self.data_off() as usize
    }

    /// Free bytes after the data of the first segment.
    pub fn tailroom(&self) -> usize {
        // SAFETY: the offset is that of the u16 field `buf_len`.
        let room = unsafe { self.field::<u16>(sys::DDPD_MBUF_BUF_LEN) } as usize;
        room.saturating_sub(self.headroom() + self.data_len() as usize)
    }

    /// Adds `len` bytes at the end and returns them; their content is arbitrary. `None` when there is
    /// not so much tailroom, or the frame is a chain.
    pub fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.tailroom() || self.segments() != 1 {
            return None;
        }
        let at = self.data_len() as usize;
        self.set_len(at + len);
        Some(&mut self.data_mut()[at..])
    }

    /// Adds `len` bytes in front and returns them; their content is arbitrary. `None` when there is
    /// not so much headroom.
    pub fn prepend(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.headroom() || self.segments() != 1 {
            return None;
        }
        self.set_data_off(self.data_off() - len as u16);
        self.set_len(self.data_len() as usize + len);
        Some(&mut self.data_mut()[..len])
    }

    /// Takes `len` bytes away at the front; false, and nothing done, when the first segment has fewer.
    #[must_use]
    pub fn trim_front(&mut self, len: usize) -> bool {
        if len > self.data_len() as usize || self.segments() != 1 {
            return false;
        }
        self.set_data_off(self.data_off() + len as u16);
        self.set_len(self.data_len() as usize - len);
        true
    }

    /// Keeps the first `len` bytes; does nothing when there are fewer.
    pub fn truncate(&mut self, len: usize) {
        if len < self.data_len() as usize && self.segments() == 1 {
            self.set_len(len);
        }
    }

    /// Makes a chain one segment; false when the first one has not the room.
    #[must_use]
    pub fn linearize(&mut self) -> bool {
        // SAFETY: the buffer is valid and ours.
        self.segments() == 1 || unsafe { sys::ddpd_mbuf_linearize(self.raw()) } == 0
    }

    /// The device's RSS hash of the frame, if it computed one.
    pub fn rss_hash(&self) -> Option<u32> {
        let mut hash = 0;
        // SAFETY: the buffer is valid; the function only reads it.
        let has = unsafe { sys::ddpd_mbuf_rss_hash(self.raw(), &mut hash) };
        (has != 0).then_some(hash)
    }

    /// The device's verdict on the IPv4 header checksum.
    pub fn rx_ip_checksum(&self) -> RxChecksum {
        // SAFETY: the buffer is valid; the function only reads it.
        rx_checksum(unsafe { sys::ddpd_mbuf_rx_ip_checksum(self.raw()) })
    }

    /// The device's verdict on the checksum of TCP, UDP or SCTP: of what a frame carries, if the device was asked to verify
    /// that. Of other protocols it may say anything.
    pub fn rx_l4_checksum(&self) -> RxChecksum {
        // SAFETY: the buffer is valid; the function only reads it.
        rx_checksum(unsafe { sys::ddpd_mbuf_rx_l4_checksum(self.raw()) })
    }

    /// Gives the verdict as a driver does. For tests.
    pub fn set_rx_l4_checksum(&mut self, verdict: RxChecksum) {
        let verdict = match verdict {
            RxChecksum::Unknown => 0,
            RxChecksum::Good => 1,
            RxChecksum::Bad => 2,
        };
        // SAFETY: the buffer is valid and ours.
        unsafe { sys::ddpd_mbuf_set_rx_l4_checksum(self.raw(), verdict) }
    }

    /// Prefetches the first cache line of the `rte_mbuf`, which holds the address of its data.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::line(self.raw().cast(), 0);
    }

    /// Prefetches the rest of the `rte_mbuf`, which is read when it is freed, and `len` bytes from where the data begin in most
    /// buffers: behind it and the headroom. That does not wait for the line that says where they do begin.
    #[inline]
    pub fn prefetch_usual(&self, len: usize) {
        let usual = sys::DDPD_MBUF_SIZE as usize + HEADROOM;
        prefetch::line(self.raw().cast(), sys::DDPD_MBUF_SIZE as usize - 1);
        prefetch::read(self.raw().cast::<u8>().wrapping_add(usual), len);
    }

    /// Prefetches its data, at most `most` bytes.
    #[inline]
    pub fn prefetch_data(&self, most: usize) {
        prefetch::read(self.start(), most.min(self.data_len() as usize));
    }

    /// Prefetches `len` bytes of room behind the data for writing.
    #[inline]
    pub fn prefetch_room(&self, len: usize) {
        let at = self.start().wrapping_add(self.data_len() as usize);
        prefetch::write(at, len.min(self.tailroom()));
    }

    /// Asks the device to fill in checksums. Only for a device that was opened with these offloads.
    pub fn set_tx_checksums(&mut self, sums: TxChecksums) {
        let l4 = match sums.l4 {
            TxL4::None => sys::DDPD_L4_NONE,
            TxL4::Tcp => sys::DDPD_L4_TCP,
            TxL4::Sctp => sys::DDPD_L4_SCTP,
        };
        // SAFETY: the buffer is valid and ours.
        unsafe {
            sys::ddpd_mbuf_set_tx_checksums(
                self.raw(),
                c_int::from(sums.ipv6),
                c_int::from(sums.ip),
                l4,
                sums.l2_len,
                sums.l3_len,
            );
        }
    }

    /// The protocol above IP of which the device is asked to fill in the checksum.
    pub fn tx_l4(&self) -> TxL4 {
        // SAFETY: the buffer is valid; the function only reads it.
        match unsafe { sys::ddpd_mbuf_tx_l4(self.raw()) } {
            sys::DDPD_L4_TCP => TxL4::Tcp,
            sys::DDPD_L4_SCTP => TxL4::Sctp,
            _ => TxL4::None,
        }
    }

    /// A new buffer of the same pool with the headers of `packet`, which is to be cut; `None` when the pool is empty, or the
    /// lengths in `packet` are not those of its headers.
    pub(crate) fn head_of(&self, packet: &LargePacket, how: Segmentation) -> Option<Mbuf> {
        let l4_len = packet.l4_len()?;
        // SAFETY: the buffer is valid, and so is its pool, which outlives its buffers.
        let raw = NonNull::new(unsafe { sys::ddpd_mbuf_alloc_like(self.raw()) })?;
        // SAFETY: freshly allocated, so it is ours alone.
        let mut head = unsafe { Mbuf::from_raw(raw) };
        head.append(packet.headers.len())?.copy_from_slice(&packet.headers);
        let v6 = if packet.ipv6 { sys::DDPD_CUT_IPV6 } else { 0 };
        let virtio = if how.virtio { sys::DDPD_CUT_VIRTIO } else { 0 };
        // SAFETY: the buffer is valid and ours; its data are so many bytes of headers.
        unsafe {
            sys::ddpd_mbuf_set_tx_cut(
                head.raw(),
                (v6 | virtio) as c_int,
                packet.l2_len,
                packet.l3_len,
                l4_len,
                packet.segment,
            );
        }
        Some(head)
    }

    /// A new buffer of the same pool with the same bytes; `None` when the pool is empty or the frame
    /// is a chain.
    pub fn copy(&self) -> Option<Mbuf> {
        if self.segments() != 1 {
            return None;
        }
        // SAFETY: the buffer is valid, and so is its pool, which outlives its buffers.
        let raw = NonNull::new(unsafe { sys::ddpd_mbuf_alloc_like(self.raw()) })?;
        // SAFETY: freshly allocated, so it is ours alone.
        let mut copy = unsafe { Mbuf::from_raw(raw) };
        copy.append(self.len())?.copy_from_slice(self.data());
        Some(copy)
    }

    pub(crate) fn into_raw(self) -> *mut sys::rte_mbuf {
        std::mem::ManuallyDrop::new(self).raw()
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the offset is that of the pointer field `buf_addr`; `data_off` lies inside the room.
        unsafe { self.field::<*mut u8>(sys::DDPD_MBUF_BUF_ADDR).add(self.data_off() as usize) }
    }

    fn data_off(&self) -> u16 {
        // SAFETY: the offset is that of the u16 field `data_off`.
        unsafe { self.field(sys::DDPD_MBUF_DATA_OFF) }
    }

    fn data_len(&self) -> u16 {
        // SAFETY: the offset is that of the u16 field `data_len`.
        unsafe { self.field(sys::DDPD_MBUF_DATA_LEN) }
    }

    fn set_data_off(&mut self, off: u16) {
        // SAFETY: the offset is that of the u16 field `data_off`; callers keep it inside the room.
        unsafe { self.set_field(sys::DDPD_MBUF_DATA_OFF, off) }
    }

    /// Sets the length of a frame of one segment. Callers keep it inside the room, which is below 64 Ki.
    fn set_len(&mut self, len: usize) {
        // SAFETY: the offsets are those of the u16 field `data_len` and the u32 field `pkt_len`.
        unsafe {
            self.set_field(sys::DDPD_MBUF_DATA_LEN, len as u16);
            self.set_field(sys::DDPD_MBUF_PKT_LEN, len as u32);
        }
    }

    /// # Safety
    /// `offset` is that of a field of type `T`.
    unsafe fn field<T: Copy>(&self, offset: sys::ddpd_offsets) -> T {
        // SAFETY: the buffer is valid, and the caller names a field of it.
        unsafe { self.raw().byte_add(offset as usize).cast::<T>().read() }
    }

    /// # Safety
    /// `offset` is that of a field of type `T`, and `value` keeps the buffer valid.
    unsafe fn set_field<T: Copy>(&mut self, offset: sys::ddpd_offsets, value: T) {
        // SAFETY: the buffer is valid and ours, and the caller names a field of it.
        unsafe { self.raw().byte_add(offset as usize).cast::<T>().write(value) }
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the buffer is ours and is not used again; its pool lives as long as any of its buffers.
        unsafe { sys::ddpd_mbuf_free(self.raw()) }
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mbuf({} bytes)", self.len())
    }
}

fn rx_checksum(code: c_int) -> RxChecksum {
    match code {
        1 => RxChecksum::Good,
        2 => RxChecksum::Bad,
        _ => RxChecksum::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Eal, EalConfig, Hugepages, Mempool, MempoolConfig, Room};

    /// The only test of this program that starts the environment, which starts once.
    #[test]
    fn lengths_that_contradict_the_headers_never_reach_the_fields_of_a_buffer() {
        let eal = EalConfig { hugepages: Hugepages::Never, memory_mib: 64, ..EalConfig::default() };
        let eal = Eal::start(&eal).unwrap();
        let config = MempoolConfig { buffers: 63, room: Room::Bytes(2048), numa: None };
        let pool = Mempool::new(&eal, config).unwrap();
        let frame = pool.alloc().unwrap();
        let good = LargePacket {
            headers: [7; 66].into_iter().collect(),
            ipv6: false,
            l2_len: 14,
            l3_len: 20,
            segment: 1000,
            frames: 2,
        };
        let head = frame.head_of(&good, Segmentation::NONE).unwrap();
        assert_eq!(head.data(), [7; 66]);
        drop(head);
        let before = pool.available();
        for (l2_len, l3_len, segment) in
            [(14, 53, 1000), (u16::MAX, 20, 1000), (14, u16::MAX, 1000), (14, 20, 0)]
        {
            let wrong = LargePacket { l2_len, l3_len, segment, ..good.clone() };
            let head = frame.head_of(&wrong, Segmentation::NONE);
            assert!(head.is_none(), "{l2_len} {l3_len} {segment}");
        }
        assert_eq!(pool.available(), before);
    }
}

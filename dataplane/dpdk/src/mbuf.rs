//! Owned packet buffers (`rte_mbuf`): their data, checksum offloads, RSS hash, prefetching and copies.
//!
//! ```text
//!  buf_addr                data_off                                   buf_len
//!  |<------ headroom ------>|<-------- data, data_len ------->|<-- tailroom -->|
//! ```
//!
//! The data path uses buffers of one segment: pools are sized so that a frame fits. [`Mbuf::linearize`] joins the
//! segments of a chain, which some drivers deliver.

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;

use dpdk_sys as sys;

use crate::prefetch;
use crate::types::{LargePacket, Segmentation};

/// Bytes of headroom in a fresh buffer.
pub const HEADROOM: usize = sys::DDPD_HEADROOM as usize;

/// A packet buffer of one or more segments. When it is dropped, on any thread, it returns to its pool.
///
/// All bytes of the data room are initialised: zero at first, later the bytes of the buffer's previous use.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: a buffer has one owner and is not tied to a thread; pools are multi-producer, so freeing is
// allowed from every thread.
unsafe impl Send for Mbuf {}

/// A device's verdict on a checksum of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RxChecksum {
    /// Not verified.
    Unknown,
    /// Correct.
    Good,
    /// Wrong.
    Bad,
}

/// Checksum offloads requested for a sent frame, with the lengths of its headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxChecksums {
    /// True for IPv6, false for IPv4.
    pub ipv6: bool,
    /// True to fill in the IPv4 header checksum (ignored for IPv6).
    pub ip: bool,
    /// Protocol above IP whose checksum is filled in.
    pub l4: TxL4,
    /// Bytes of the link header, tags included.
    pub l2_len: u16,
    /// Bytes of the IP header and its options or extensions.
    pub l3_len: u16,
}

/// The protocol above IP whose checksum the device fills in: at most one per buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxL4 {
    /// No checksum above IP.
    None,
    /// TCP. The checksum field must hold the pseudo-header's sum, not complemented.
    Tcp,
    /// SCTP. The checksum field must be zero.
    Sctp,
}

impl Mbuf {
    /// Takes ownership of a buffer from C.
    ///
    /// # Safety
    /// `raw` is a valid packet buffer that no other code will use or free.
    pub(crate) unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Mbuf {
        Mbuf(raw)
    }

    /// Returns the length of the whole frame, bytes.
    pub fn len(&self) -> usize {
        // SAFETY: the constant is the offset of the u32 field `pkt_len` in the installed headers.
        unsafe { self.field::<u32>(sys::DDPD_MBUF_PKT_LEN) as usize }
    }

    /// Returns true if the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of segments in the chain: 1 for buffers allocated by this crate.
    pub fn segments(&self) -> u16 {
        // SAFETY: the constant is the offset of the u16 field `nb_segs`.
        unsafe { self.field(sys::DDPD_MBUF_NB_SEGS) }
    }

    /// Returns the bytes of the first segment.
    pub fn data(&self) -> &[u8] {
        // SAFETY: `start` and `data_len` describe initialised bytes inside the data room (`buf_len` bytes from
        // `buf_addr`), which is ours alone while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(), self.data_len() as usize) }
    }

    /// Returns the bytes of the first segment, mutably.
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.data_len() as usize) }
    }

    /// Returns the number of free bytes before the data.
    pub fn headroom(&self) -> usize {
        self.data_off() as usize
    }

    /// Returns the number of free bytes after the data of the first segment.
    pub fn tailroom(&self) -> usize {
        // SAFETY: the constant is the offset of the u16 field `buf_len`.
        let room = unsafe { self.field::<u16>(sys::DDPD_MBUF_BUF_LEN) } as usize;
        room.saturating_sub(self.headroom() + self.data_len() as usize)
    }

    /// Appends `len` bytes of arbitrary content and returns them. Returns `None` if the tailroom is too small or the
    /// frame is a chain.
    pub fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.tailroom() || self.segments() != 1 {
            return None;
        }
        let at = self.data_len() as usize;
        self.set_len(at + len);
        Some(&mut self.data_mut()[at..])
    }

    /// Prepends `len` bytes of arbitrary content and returns them. Returns `None` if the headroom is too small or the
    /// frame is a chain.
    pub fn prepend(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.headroom() || self.segments() != 1 {
            return None;
        }
        self.set_data_off(self.data_off() - len as u16);
        self.set_len(self.data_len() as usize + len);
        Some(&mut self.data_mut()[..len])
    }

    /// Removes `len` bytes at the front. Returns false and changes nothing if the first segment is shorter or the
    /// frame is a chain.
    #[must_use]
    pub fn trim_front(&mut self, len: usize) -> bool {
        if len > self.data_len() as usize || self.segments() != 1 {
            return false;
        }
        self.set_data_off(self.data_off() + len as u16);
        self.set_len(self.data_len() as usize - len);
        true
    }

    /// Keeps the first `len` bytes. Does nothing if the frame is shorter or a chain.
    pub fn truncate(&mut self, len: usize) {
        if len < self.data_len() as usize && self.segments() == 1 {
            self.set_len(len);
        }
    }

    /// Joins a chain into its first segment. Returns true if the frame has one segment afterwards, and false if the
    /// first segment has too little room.
    #[must_use]
    pub fn linearize(&mut self) -> bool {
        // SAFETY: the buffer is valid and ours.
        self.segments() == 1 || unsafe { sys::ddpd_mbuf_linearize(self.raw()) } == 0
    }

    /// Returns the device's RSS hash of the frame, if it computed one.
    pub fn rss_hash(&self) -> Option<u32> {
        let mut hash = 0;
        // SAFETY: the buffer is valid; the function only reads it.
        let is_present = unsafe { sys::ddpd_mbuf_rss_hash(self.raw(), &mut hash) };
        (is_present != 0).then_some(hash)
    }

    /// Returns the device's verdict on the checksum of TCP, UDP or SCTP. The verdict is meaningful only for protocols
    /// that the device was configured to verify.
    pub fn rx_l4_checksum(&self) -> RxChecksum {
        // SAFETY: the buffer is valid; the function only reads it.
        rx_checksum(unsafe { sys::ddpd_mbuf_rx_l4_checksum(self.raw()) })
    }

    /// Sets the verdict on the TCP, UDP or SCTP checksum as a driver does. For tests.
    pub fn set_rx_l4_checksum(&mut self, verdict: RxChecksum) {
        let verdict = match verdict {
            RxChecksum::Unknown => 0,
            RxChecksum::Good => 1,
            RxChecksum::Bad => 2,
        };
        // SAFETY: the buffer is valid and ours.
        unsafe { sys::ddpd_mbuf_set_rx_l4_checksum(self.raw(), verdict) }
    }

    /// Prefetches the first cache line of the `rte_mbuf`, which holds the address of the frame's data.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::line(self.raw().cast(), 0);
    }

    /// Prefetches the last cache line of the `rte_mbuf`, which is read when the buffer is freed. Also prefetches `len`
    /// bytes from the default start of the data, after the `rte_mbuf` and the headroom. The actual start is in the
    /// first cache line of the `rte_mbuf`, which this call does not read.
    #[inline]
    pub fn prefetch_default_data(&self, len: usize) {
        let usual = sys::DDPD_MBUF_SIZE as usize + HEADROOM;
        prefetch::line(self.raw().cast(), sys::DDPD_MBUF_SIZE as usize - 1);
        prefetch::read(self.raw().cast::<u8>().wrapping_add(usual), len);
    }

    /// Prefetches at most `max_len` bytes of the first segment's data.
    #[inline]
    pub fn prefetch_data(&self, max_len: usize) {
        prefetch::read(self.start(), max_len.min(self.data_len() as usize));
    }

    /// Prefetches at most `len` bytes of the tailroom for writing.
    #[inline]
    pub fn prefetch_tailroom(&self, len: usize) {
        let at = self.start().wrapping_add(self.data_len() as usize);
        prefetch::write(at, len.min(self.tailroom()));
    }

    /// Requests that the device fill in checksums. The device must be configured with these offloads.
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

    /// Returns the protocol above IP whose checksum the device is to fill in.
    pub fn tx_l4(&self) -> TxL4 {
        // SAFETY: the buffer is valid; the function only reads it.
        match unsafe { sys::ddpd_mbuf_tx_l4(self.raw()) } {
            sys::DDPD_L4_TCP => TxL4::Tcp,
            sys::DDPD_L4_SCTP => TxL4::Sctp,
            _ => TxL4::None,
        }
    }

    /// Allocates a buffer from the same pool and copies the headers of `packet` into it. Returns `None` if the pool is
    /// empty, the headers do not fit, or [`LargePacket::l4_len`] rejects `packet`.
    pub(crate) fn alloc_head(
        &self,
        packet: &LargePacket,
        segmentation: Segmentation,
    ) -> Option<Mbuf> {
        let l4_len = packet.l4_len()?;
        // SAFETY: the buffer is valid, and so is its pool, which outlives its buffers.
        let raw = NonNull::new(unsafe { sys::ddpd_mbuf_alloc_like(self.raw()) })?;
        // SAFETY: the buffer was just allocated, so it is ours alone.
        let mut head = unsafe { Mbuf::from_raw(raw) };
        head.append(packet.headers.len())?.copy_from_slice(&packet.headers);
        let v6 = if packet.ipv6 { sys::DDPD_CUT_IPV6 } else { 0 };
        let virtio = if segmentation.virtio { sys::DDPD_CUT_VIRTIO } else { 0 };
        // SAFETY: the buffer is valid and ours; its data are headers with these lengths.
        unsafe {
            sys::ddpd_mbuf_set_tx_cut(
                head.raw(),
                (v6 | virtio) as c_int,
                packet.l2_len,
                packet.l3_len,
                l4_len,
                packet.segment_len,
            );
        }
        Some(head)
    }

    /// Copies the frame's bytes to a new buffer of the same pool, without checksum requests and verdicts. Returns
    /// `None` if the pool is empty or the frame is a chain.
    pub fn copy(&self) -> Option<Mbuf> {
        if self.segments() != 1 {
            return None;
        }
        // SAFETY: the buffer is valid, and so is its pool, which outlives its buffers.
        let raw = NonNull::new(unsafe { sys::ddpd_mbuf_alloc_like(self.raw()) })?;
        // SAFETY: the buffer was just allocated, so it is ours alone.
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
        // SAFETY: the constant is the offset of the pointer field `buf_addr`; `data_off` is at most `buf_len`, so the
        // result is inside the data room or at its end.
        unsafe { self.field::<*mut u8>(sys::DDPD_MBUF_BUF_ADDR).add(self.data_off() as usize) }
    }

    fn data_off(&self) -> u16 {
        // SAFETY: the constant is the offset of the u16 field `data_off`.
        unsafe { self.field(sys::DDPD_MBUF_DATA_OFF) }
    }

    fn data_len(&self) -> u16 {
        // SAFETY: the constant is the offset of the u16 field `data_len`.
        unsafe { self.field(sys::DDPD_MBUF_DATA_LEN) }
    }

    fn set_data_off(&mut self, off: u16) {
        // SAFETY: the constant is the offset of the u16 field `data_off`; callers keep `off` at most `buf_len`.
        unsafe { self.set_field(sys::DDPD_MBUF_DATA_OFF, off) }
    }

    /// Sets the length of a frame of one segment. The caller ensures that `data_off + len` is at most `buf_len`, which
    /// is below 64 KiB.
    fn set_len(&mut self, len: usize) {
        // SAFETY: the constants are the offsets of the u16 field `data_len` and the u32 field `pkt_len`.
        unsafe {
            self.set_field(sys::DDPD_MBUF_DATA_LEN, len as u16);
            self.set_field(sys::DDPD_MBUF_PKT_LEN, len as u32);
        }
    }

    /// Reads the field at `offset` of the `rte_mbuf`.
    ///
    /// # Safety
    /// `offset` is the offset in `rte_mbuf` of a field of type `T`.
    unsafe fn field<T: Copy>(&self, offset: sys::ddpd_offsets) -> T {
        // SAFETY: the buffer is valid, and the caller guarantees a field of type `T` at `offset`.
        unsafe { self.raw().byte_add(offset as usize).cast::<T>().read() }
    }

    /// Writes the field at `offset` of the `rte_mbuf`.
    ///
    /// # Safety
    /// `offset` is the offset in `rte_mbuf` of a field of type `T`, and `value` keeps the buffer valid.
    unsafe fn set_field<T: Copy>(&mut self, offset: sys::ddpd_offsets, value: T) {
        // SAFETY: the buffer is valid and ours, and the caller guarantees a field of type `T` at `offset`.
        unsafe { self.raw().byte_add(offset as usize).cast::<T>().write(value) }
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the buffer is ours and is not used again; its pool outlives its buffers.
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
    use crate::{DataRoom, Eal, EalConfig, Hugepages, Mempool, MempoolConfig};

    /// DPDK's environment (EAL) can be started only once per process. No other test of this binary starts it.
    #[test]
    fn contradictory_large_packet_lengths_never_reach_mbuf() {
        let eal = EalConfig { hugepages: Hugepages::Never, memory_mib: 64, ..EalConfig::default() };
        let eal = Eal::start(&eal).unwrap();
        let config = MempoolConfig { buffers: 63, data_room: DataRoom::Bytes(2048), numa: None };
        let pool = Mempool::new(&eal, config).unwrap();
        let frame = pool.alloc().unwrap();
        let good = LargePacket {
            headers: [7; 66].into_iter().collect(),
            ipv6: false,
            l2_len: 14,
            l3_len: 20,
            segment_len: 1000,
            frames: 2,
        };
        let head = frame.alloc_head(&good, Segmentation::NONE).unwrap();
        assert_eq!(head.data(), [7; 66]);
        drop(head);
        let before = pool.available();
        for (l2_len, l3_len, segment) in
            [(14, 53, 1000), (u16::MAX, 20, 1000), (14, u16::MAX, 1000), (14, 20, 0)]
        {
            let wrong = LargePacket { l2_len, l3_len, segment_len: segment, ..good.clone() };
            let head = frame.alloc_head(&wrong, Segmentation::NONE);
            assert!(head.is_none(), "{l2_len} {l3_len} {segment}");
        }
        assert_eq!(pool.available(), before);
    }
}

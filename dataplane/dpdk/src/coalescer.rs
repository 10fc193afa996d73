//! Transmission of TCP frames merged into large packets, which the device segments into the same frames again (TSO).
//!
//! ```text
//!  frames         | headers | payload |  | headers | payload |  | headers | payl |
//!  large packet   | headers' |----------> payload |-----------> payload |------> payl |
//! ```
//!
//! A large packet consists of a header buffer, followed by the payloads of the frames. Frames are merged when they are
//! offered to the device. If the device does not accept the packet, it is split into the frames again. Frames that wait
//! for a device are therefore never merged.

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use crate::mbuf::Mbuf;
use crate::types::{LargePacket, Segmentation};

/// Maximum number of packets per call of `ddpd_tx_burst`.
const MAX_PACKETS: usize = 32;

/// Consecutive offers without an accepted packet after which a frame is offered unmerged. Some devices never have room
/// for a large packet, such as a vhost-user frontend with small buffers.
const MAX_EMPTY_BURSTS: u32 = 64;

/// Result of one transmit burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BurstResult {
    /// Frames accepted by the driver, including frames in large packets.
    pub frames: usize,
    /// Large packets accepted by the driver.
    pub large: usize,
}

/// State of one transmit queue for merging frames into large packets.
#[derive(Debug)]
pub(crate) struct Coalescer {
    /// Segmentation that the device performs. On a vhost-user port, the frontend's negotiated segmentation is used
    /// instead.
    pub(crate) device_segmentation: Segmentation,
    /// True once the driver refused to prepare a large packet. No more large packets are offered to it.
    refused: bool,
    /// Consecutive offers without an accepted packet. While above 0, one packet is offered first, and others only after
    /// the driver has accepted it.
    empty_bursts: u32,
}

/// Packet to be offered to the driver: a large packet or a single frame.
#[derive(Clone, Copy)]
struct Offer {
    /// Number of merged frames; 1 for a single frame.
    frames: u16,
    /// Header bytes of a large packet; 0 for a single frame.
    headers: u16,
}

impl Coalescer {
    pub(crate) fn new(by_device: Segmentation) -> Coalescer {
        Coalescer { device_segmentation: by_device, refused: false, empty_bursts: 0 }
    }

    /// Offers the `count` frames at `frames` to the driver. `plan` receives the frames not offered yet, and returns the
    /// large packet that merges the first of them, or `None`. The driver owns the first `BurstResult::frames` frames
    /// afterwards; the others are unchanged.
    ///
    /// # Safety
    /// The caller owns the `count` frames, which are valid. The queue of the port is set up, and no other thread uses
    /// the queue.
    pub(crate) unsafe fn burst(
        &mut self,
        port: u16,
        queue: u16,
        frames: *mut Mbuf,
        count: usize,
        segmentation: Segmentation,
        plan: &mut impl FnMut(&[Mbuf], Segmentation) -> Option<LargePacket>,
    ) -> BurstResult {
        let abort_guard = AbortOnPanic;
        let mut sent = BurstResult::default();
        let mut limit = if self.empty_bursts > 0 { 1 } else { MAX_PACKETS };
        let mut unmerged = self.empty_bursts >= MAX_EMPTY_BURSTS;
        while sent.frames < count {
            let mut heads = ArrayVec::<*mut sys::rte_mbuf, MAX_PACKETS>::new();
            let mut offers = ArrayVec::<Offer, MAX_PACKETS>::new();
            let mut next = sent.frames;
            while next < count && heads.len() < limit {
                // SAFETY: the caller guarantees `count` valid frames. The frames from `next` on are not part of a large
                // packet.
                let (head, offer) = unsafe {
                    let rest = std::slice::from_raw_parts(frames.add(next), count - next);
                    match unmerged {
                        true => single_frame(rest),
                        false => self.packet(port, queue, rest, segmentation, plan),
                    }
                };
                heads.push(head);
                offers.push(offer);
                next += usize::from(offer.frames);
            }
            // SAFETY: the packets are valid. The driver owns the first `taken` of them afterwards, with their frames.
            let taken =
                unsafe { sys::ddpd_tx_burst(port, queue, heads.as_mut_ptr(), heads.len() as u16) };
            let (accepted, rejected) = offers.split_at(usize::from(taken));
            sent.frames += accepted.iter().map(|offer| usize::from(offer.frames)).sum::<usize>();
            sent.large += accepted.iter().filter(|offer| offer.frames > 1).count();
            let mut at = sent.frames;
            for (head, offer) in heads[usize::from(taken)..].iter().zip(rejected) {
                if offer.frames > 1 {
                    // SAFETY: the packet consists of the frames from `at` on, and the driver did not accept it.
                    unsafe { split(*head, frames.add(at), *offer) };
                }
                at += usize::from(offer.frames);
            }
            if !rejected.is_empty() {
                break;
            }
            (limit, unmerged) = (MAX_PACKETS, false);
        }
        self.empty_bursts = if sent.frames == 0 { self.empty_bursts.saturating_add(1) } else { 0 };
        std::mem::forget(abort_guard);
        sent
    }

    /// Merges the first of `frames` into a large packet if possible, otherwise returns the first frame alone.
    ///
    /// # Safety
    /// The caller owns the frames, and does not use them before the packet is sent or [`split`].
    unsafe fn packet(
        &mut self,
        port: u16,
        queue: u16,
        frames: &[Mbuf],
        segmentation: Segmentation,
        plan: &mut impl FnMut(&[Mbuf], Segmentation) -> Option<LargePacket>,
    ) -> (*mut sys::rte_mbuf, Offer) {
        let plain = single_frame(frames);
        if self.refused {
            return plain;
        }
        let Some(packet) = plan(frames, segmentation) else { return plain };
        // No large packet if the pool is empty or the plan's lengths are contradictory.
        let Some(head) = frames[0].alloc_head(&packet, segmentation) else { return plain };
        let offer = Offer { frames: packet.frames, headers: packet.headers.len() as u16 };
        let whole = (frames.get(..usize::from(offer.frames)))
            .is_some_and(|all| all.iter().all(|frame| is_mergeable(frame, &packet)));
        debug_assert!(whole, "the plan has more frames than were offered");
        if !whole {
            return plain;
        }
        let head = head.into_raw();
        let first = frames.as_ptr().cast_mut();
        // SAFETY: the caller owns the frames. `is_mergeable` has checked that each is a single segment with at least
        // `offer.headers` bytes. `Mbuf` is a transparent pointer.
        unsafe { sys::ddpd_mbuf_join(head, first.cast(), offer.frames, offer.headers) };
        // SAFETY: `head` is a valid packet, joined above, and the caller guarantees the queue.
        if !segmentation.virtio && unsafe { sys::ddpd_tx_prepare(port, queue, head) } == 0 {
            // SAFETY: the packet consists of these frames, and was not offered to the driver.
            unsafe { split(head, first, offer) };
            self.refused = true;
            return plain;
        }
        (head, offer)
    }
}

/// Guard that aborts the process on a panic, because unwinding would free the frames of a large packet twice.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Returns an offer of the first frame alone.
fn single_frame(frames: &[Mbuf]) -> (*mut sys::rte_mbuf, Offer) {
    (frames[0].raw(), Offer { frames: 1, headers: 0 })
}

fn is_mergeable(frame: &Mbuf, packet: &LargePacket) -> bool {
    frame.segments() == 1 && frame.data().len() >= packet.headers.len()
}

/// Separates a large packet into its frames again, and frees its header buffer.
///
/// # Safety
/// The packet consists of the frames from `first` on, and the driver does not own it.
unsafe fn split(head: *mut sys::rte_mbuf, first: *mut Mbuf, offer: Offer) {
    // SAFETY: the caller guarantees the packet and its frames; `Mbuf` is a transparent pointer.
    unsafe { sys::ddpd_mbuf_part(head, first.cast(), offer.frames, offer.headers) }
}

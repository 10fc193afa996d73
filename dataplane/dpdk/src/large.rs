//! Frames that are sent as parts of large packets, which the device cuts into the same frames again.
//!
//! ```text
//!  frames         | headers | payload |  | headers | payload |  | headers | payl |
//!  large packet   | headers' |----------> payload |-----------> payload |------> payl |
//! ```
//!
//! A large packet has a buffer of its own for its headers, and what the frames have behind theirs. It is made when the
//! device is asked to take it, and taken apart when it does not: what waits for a device are always frames.

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use crate::mbuf::Mbuf;
use crate::types::{LargePacket, Segmentation};

/// Most packets that are offered at a time.
const PACKETS: usize = 32;

/// After so many offers of which the device took nothing it gets a frame as it is: it may have room for no large packet
/// ever, as a frontend with small buffers.
const PATIENCE: u32 = 64;

/// What a device took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames.
    pub frames: usize,
    /// Large packets that some of them went in.
    pub large: usize,
}

/// How a queue makes large packets.
#[derive(Debug)]
pub(crate) struct Maker {
    /// For a device; a frontend of a vhost-user port says so itself.
    pub(crate) by_device: Segmentation,
    /// The device refused one that should have been right: it gets no more.
    refused: bool,
    /// Offers of which the device took nothing, one after the other. Then it is offered one packet before others are made.
    vain: u32,
}

/// A packet on its way to the driver.
#[derive(Clone, Copy)]
struct Offer {
    /// Its frames.
    frames: u16,
    /// Bytes of headers of a large one.
    headers: u16,
}

impl Maker {
    pub(crate) fn new(by_device: Segmentation) -> Maker {
        Maker { by_device, refused: false, vain: 0 }
    }

    /// Offers the `count` frames at `frames`; the first of them are the driver's afterwards, as many as are returned, and the
    /// others as they were.
    ///
    /// # Safety
    /// The frames are valid and the caller's, and the queue is.
    pub(crate) unsafe fn burst(
        &mut self,
        (port, queue): (u16, u16),
        frames: *mut Mbuf,
        count: usize,
        how: Segmentation,
        plan: &mut impl FnMut(&[Mbuf], Segmentation) -> Option<LargePacket>,
    ) -> Sent {
        let whole = Whole;
        let mut sent = Sent::default();
        let mut most = if self.vain > 0 { 1 } else { PACKETS };
        let mut plain = self.vain >= PATIENCE;
        while sent.frames < count {
            let mut heads = ArrayVec::<*mut sys::rte_mbuf, PACKETS>::new();
            let mut offers = ArrayVec::<Offer, PACKETS>::new();
            let mut next = sent.frames;
            while next < count && heads.len() < most {
                // SAFETY: by the caller's promise; the frames from `next` on are not part of a packet.
                let (head, offer) = unsafe {
                    let rest = std::slice::from_raw_parts(frames.add(next), count - next);
                    match plain {
                        true => as_it_is(rest),
                        false => self.packet((port, queue), rest, how, plan),
                    }
                };
                heads.push(head);
                offers.push(offer);
                next += usize::from(offer.frames);
            }
            // SAFETY: the packets are valid; the driver owns the first `taken` afterwards, with their frames.
            let taken =
                unsafe { sys::ddpd_tx_burst(port, queue, heads.as_mut_ptr(), heads.len() as u16) };
            let (gone, back) = offers.split_at(usize::from(taken));
            sent.frames += gone.iter().map(|offer| usize::from(offer.frames)).sum::<usize>();
            sent.large += gone.iter().filter(|offer| offer.frames > 1).count();
            let mut at = sent.frames;
            for (head, offer) in heads[usize::from(taken)..].iter().zip(back) {
                if offer.frames > 1 {
                    // SAFETY: the packet was made of these frames, and the driver did not take it.
                    unsafe { part(*head, frames.add(at), *offer) };
                }
                at += usize::from(offer.frames);
            }
            if !back.is_empty() {
                break;
            }
            (most, plain) = (PACKETS, false);
        }
        self.vain = if sent.frames == 0 { self.vain.saturating_add(1) } else { 0 };
        std::mem::forget(whole);
        sent
    }

    /// The packet that is made of the first of `frames`.
    ///
    /// # Safety
    /// The frames are the caller's, and are not used before the packet is taken apart.
    unsafe fn packet(
        &mut self,
        (port, queue): (u16, u16),
        frames: &[Mbuf],
        how: Segmentation,
        plan: &mut impl FnMut(&[Mbuf], Segmentation) -> Option<LargePacket>,
    ) -> (*mut sys::rte_mbuf, Offer) {
        let plain = as_it_is(frames);
        if self.refused {
            return plain;
        }
        let Some(packet) = plan(frames, how) else { return plain };
        // An empty pool makes no large packets, nor does a plan whose lengths contradict each other.
        let Some(head) = frames[0].head_of(&packet, how) else { return plain };
        let offer = Offer { frames: packet.frames, headers: packet.headers.len() as u16 };
        let whole = (frames.get(..usize::from(offer.frames)))
            .is_some_and(|all| all.iter().all(|frame| is_part(frame, &packet)));
        debug_assert!(whole, "a plan for more than there is");
        if !whole {
            return plain;
        }
        let head = head.into_raw();
        let first = frames.as_ptr().cast_mut();
        // SAFETY: each of the frames is one buffer with so many headers, and the caller's; `Mbuf` is a transparent pointer.
        unsafe { sys::ddpd_mbuf_join(head, first.cast(), offer.frames, offer.headers) };
        // SAFETY: the packet is valid.
        if !how.virtio && unsafe { sys::ddpd_tx_prepare(port, queue, head) } == 0 {
            // SAFETY: it was just made of them.
            unsafe { part(head, first, offer) };
            self.refused = true;
            return plain;
        }
        (head, offer)
    }
}

/// Dropped by a panic only: frames that are parts of packets would be freed twice.
struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// The first frame alone.
fn as_it_is(frames: &[Mbuf]) -> (*mut sys::rte_mbuf, Offer) {
    (frames[0].raw(), Offer { frames: 1, headers: 0 })
}

fn is_part(frame: &Mbuf, packet: &LargePacket) -> bool {
    frame.segments() == 1 && frame.data().len() >= packet.headers.len()
}

/// Takes a packet apart.
///
/// # Safety
/// It was made of the frames from `first` on, and is not the driver's.
unsafe fn part(head: *mut sys::rte_mbuf, first: *mut Mbuf, offer: Offer) {
    // SAFETY: by the caller's promise; `Mbuf` is a transparent pointer.
    unsafe { sys::ddpd_mbuf_part(head, first.cast(), offer.frames, offer.headers) }
}

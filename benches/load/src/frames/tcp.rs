//! Segments without data: SYN, ACK, RST and FIN.

use anyhow::Result;
use etherparse::{TcpHeader, TcpOptionElement};
use fastrand::Rng;

use super::Plan;
use super::build::{FrameAddresses, client_port, frame_addresses, tcp_frame};

/// Returns addresses and header of an ACK to the listener's port, with random source port, sequence number and
/// acknowledgement number.
pub(super) fn listener_segment(plan: &Plan, rng: &mut Rng) -> (FrameAddresses, TcpHeader) {
    let ends = frame_addresses(plan, plan.random_source(rng), plan.destination);
    let mut header = TcpHeader::new(client_port(rng), plan.destination.port(), rng.u32(..), 64240);
    header.acknowledgment_number = rng.u32(..);
    header.ack = true;
    (ends, header)
}

/// Returns a SYN with Linux's options.
pub(super) fn syn(plan: &Plan, rng: &mut Rng) -> Result<Vec<u8>> {
    let (ends, mut header) = listener_segment(plan, rng);
    header.syn = true;
    header.ack = false;
    header.acknowledgment_number = 0;
    header.set_options(&[
        TcpOptionElement::MaximumSegmentSize(if plan.is_v6() { 1440 } else { 1460 }),
        TcpOptionElement::SelectiveAcknowledgementPermitted,
        TcpOptionElement::Timestamp(rng.u32(..), 0),
        TcpOptionElement::Noop,
        TcpOptionElement::WindowScale(7),
    ])?;
    tcp_frame(&ends, header, &[])
}

/// Returns an ACK without data.
pub(super) fn ack(plan: &Plan, rng: &mut Rng) -> Result<Vec<u8>> {
    let (ends, header) = listener_segment(plan, rng);
    tcp_frame(&ends, header, &[])
}

/// Returns a RST, with ACK for odd `index`.
pub(super) fn rst(plan: &Plan, index: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    let (ends, mut header) = listener_segment(plan, rng);
    header.rst = true;
    if index.is_multiple_of(2) {
        header.ack = false;
        header.acknowledgment_number = 0;
    }
    header.window_size = 0;
    tcp_frame(&ends, header, &[])
}

/// Returns a FIN with ACK.
pub(super) fn fin(plan: &Plan, rng: &mut Rng) -> Result<Vec<u8>> {
    let (ends, mut header) = listener_segment(plan, rng);
    header.fin = true;
    tcp_frame(&ends, header, &[])
}

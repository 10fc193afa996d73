//! An ESP peer with the keys of the target's SAs. Seals (encrypts and authenticates) a raw client's packets, and opens
//! (verifies and decrypts) the answers.

use std::net::IpAddr;

use anyhow::{Context as _, Result, anyhow};
use base::Instant;
use etherparse::IpNumber;
use ipsec::sa::{Inbound, Outbound};
use load::frames::build;

use crate::attack_context::AttackContext;
use crate::attacker_port::Answer;
use crate::guarded_target::{RETURN_SA, Sa};
use crate::raw_tcp::{ANSWER_TIMEOUT, RawTcp, Segment, parse};
use crate::testbed;

/// Headroom and tailroom for ESP, bytes.
const HEADROOM: usize = 128;
/// Anti-replay window of [`Opener`], packets.
const REPLAY_WINDOW: u16 = 4096;
/// Offset of the field Protocol in an IPv4 header.
const IPV4_PROTOCOL: usize = 9;
/// Length of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Time that is passed to the ESP code. The SAs have no lifetime, so a constant suffices.
const TIME: Instant = Instant::from_nanos(0);

/// Sealer of packets to the target under one SA. Sequence numbers begin at 1.
pub(crate) struct Sealer(Outbound);

impl Sealer {
    pub(crate) fn new(sa: Sa) -> Result<Sealer> {
        Ok(Sealer(Outbound::new(&sa.parameters()).context("an SA to the target")?))
    }

    /// Sets the last used sequence number, so that the next packet has `sequence + 1`.
    pub(crate) fn resume(&mut self, sequence: u64) {
        self.0.resume(sequence);
    }

    /// Returns the frame with its IP packet sealed.
    pub(crate) fn seal_frame(&mut self, frame: &[u8]) -> Result<Vec<u8>> {
        let (link, packet) = frame.split_at(build::ETHERNET_LEN);
        let mut buffer = vec![0; HEADROOM];
        buffer.extend(packet);
        buffer.resize(buffer.len() + HEADROOM, 0);
        let at = HEADROOM..HEADROOM + packet.len();
        let sealed = self.0.seal(&mut buffer, at, TIME);
        let sealed = sealed.map_err(|refused| anyhow!("a packet is not sealed: {refused:?}"))?;
        Ok([link, &buffer[sealed.packet]].concat())
    }

    /// Seals a frame and sends it.
    pub(crate) fn seal_and_send(
        &mut self,
        context: &mut AttackContext<'_>,
        frame: &[u8],
    ) -> Result<()> {
        let sealed = self.seal_frame(frame)?;
        context.station.send_frame(&sealed)
    }
}

/// Opener of the target's ESP packets under [`RETURN_SA`].
pub(crate) struct Opener(Inbound);

impl Opener {
    pub(crate) fn new() -> Result<Opener> {
        let inbound = Inbound::new(&RETURN_SA.parameters(), REPLAY_WINDOW);
        Ok(Opener(inbound.context("an SA from the target")?))
    }

    /// Waits for the next in-order segment that arrives inside ESP; see [`RawTcp::next_segment`]. `None` if none
    /// arrives in time.
    pub(crate) fn next_segment(
        &mut self,
        context: &mut AttackContext<'_>,
        client: &mut RawTcp,
    ) -> Option<Segment> {
        client.next_segment_by(context, ANSWER_TIMEOUT, |answer, local, remote| {
            let opened = self.open(answer)?;
            parse(&opened, local, remote)
        })
    }

    /// Verifies and decrypts an answer. Returns `None` if the answer is not ESP or fails verification.
    fn open(&mut self, answer: &Answer) -> Option<Answer> {
        if answer.protocol != IpNumber::ENCAPSULATING_SECURITY_PAYLOAD {
            return None;
        }
        let from = IpAddr::from(testbed::TARGET_V4);
        let packet =
            build::packet(from, answer.destination, answer.protocol, 64, None, &answer.payload)
                .ok()?;
        let (len, mut buffer) = (packet.len(), packet);
        let opened = self.0.open(&mut buffer, 0..len, TIME).ok()?;
        let packet = buffer.get(opened.packet)?;
        Some(Answer {
            destination: answer.destination,
            protocol: IpNumber(*packet.get(IPV4_PROTOCOL)?),
            payload: packet.get(IPV4_LEN..)?.to_vec(),
        })
    }
}

/// Builds the frame of an ICMPv4 echo request from `from`, an IPv4 address, to the target, with 32 bytes of data.
pub(crate) fn echo(context: &AttackContext<'_>, from: IpAddr, number: u16) -> Result<Vec<u8>> {
    let header = etherparse::IcmpEchoHeader { id: 0x5a5a, seq: number };
    let kind = etherparse::Icmpv4Type::EchoRequest(header);
    let data = [0x5a; 32];
    let mut bytes = etherparse::Icmpv4Header::with_checksum(kind, &data).to_bytes().to_vec();
    bytes.extend(data);
    let ends = context.station.frame_ends(from, testbed::TARGET_V4.into());
    build::ip_frame(&ends, IpNumber::ICMP, &bytes)
}

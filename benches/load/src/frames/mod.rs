//! Frames of the profiles of `scripts/load`. Plan, profile, count and seed determine the frames.
//!
//! All checksums and CRCs are correct unless the profile says otherwise. Frames are Ethernet without FCS, 60 to 1514
//! bytes.

pub mod build;
mod control;
mod line_rate;
mod replay;
mod stream;
mod tcp;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use fastrand::Rng;
use ipnet::IpNet;

/// Length of the shortest frame without FCS, bytes (IEEE 802.3).
pub const MIN_FRAME: usize = 60;
/// Length of the longest frame without FCS and VLAN tag, bytes.
pub const MAX_FRAME: usize = 1514;

/// MAC address, in transmission order.
pub type Mac = [u8; 6];

/// Profile of the frames of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Profile {
    /// UDP datagrams and TCP segments to ports without a listener, 64 bytes with FCS (IPv6: 66 and 78).
    #[value(name = "line-64")]
    Line64,
    /// As line-64, but frames have 64, 594 and 1518 bytes, FCS included, in the ratio 7 : 4 : 1.
    #[value(name = "line-imix")]
    LineImix,
    /// As line-64, but each frame has 1518 bytes, FCS included.
    #[value(name = "line-1518")]
    Line1518,
    /// SYNs to the listener from random ports.
    SynFlood,
    /// Segments with whole FPDUs to the listener's port that belong to no stream.
    UnknownFlow,
    /// Segments of a live stream with random sequence numbers.
    InWindow,
    /// Segments of a live stream with the right sequence numbers and a wrong TCP checksum.
    InWindowChecksum,
    /// Segments of a live stream with the right sequence numbers and checksum and a wrong MPA CRC.
    InWindowCrc,
    /// Segments of a live stream with a wrong MPA marker and the right CRC.
    InWindowMarker,
    /// ACKs without data to the listener's port.
    AckFlood,
    /// RSTs to the listener's port.
    RstFlood,
    /// FINs to the listener's port.
    FinFlood,
    /// Echo requests, and errors that quote segments of random flows.
    IcmpFlood,
    /// ARP requests for the destination's address, and unsolicited replies.
    ArpFlood,
    /// Neighbour solicitations for the destination's address, and unsolicited advertisements.
    NdFlood,
    /// First and middle fragments of datagrams that are never complete.
    FragmentFlood,
    /// SCTP INITs to the listener's port.
    InitFlood,
    /// Client frames of a capture, repeated; each repetition has new flows.
    PcapReplay,
}

impl Profile {
    /// Returns the name on the command line, in `scripts/load.d` and in results.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns true if the profile needs [`Plan::stream`].
    pub fn needs_stream(self) -> bool {
        matches!(
            self,
            Profile::InWindow
                | Profile::InWindowChecksum
                | Profile::InWindowCrc
                | Profile::InWindowMarker
        )
    }

    /// Returns true if the profile has frames of this IP version. ARP is IPv4 only, neighbour discovery IPv6 only.
    pub fn supports_ip(self, v6: bool) -> bool {
        match self {
            Profile::ArpFlood => !v6,
            Profile::NdFlood => v6,
            _ => true,
        }
    }
}

/// A live TCP stream of the appliance. Profiles forge segments of its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// The appliance's end.
    pub local: SocketAddr,
    /// The peer's end, the source of the forged frames.
    pub remote: SocketAddr,
    /// RCV.NXT of the appliance.
    pub next_seq: u32,
    /// Acknowledgement number of the forged segments: the appliance's SND.UNA.
    pub ack: u32,
    /// TSval and TSecr of the forged segments (RFC 7323); `None` for a stream without timestamps.
    pub timestamps: Option<(u32, u32)>,
    /// Bytes from `next_seq` to the stream's next marker (RFC 5044 §4.3), 0 to 511; `None` if the
    /// peer sends no markers.
    pub marker: Option<u16>,
}

/// Addresses and inputs of the frames.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Ethernet source address, except for ARP and neighbour discovery from random sources.
    pub source_mac: Mac,
    /// The appliance's MAC address.
    pub destination_mac: Mac,
    /// Network of the random source addresses.
    pub sources: IpNet,
    /// True if all frames have the address part of `sources` as source. Ports are random in either case.
    pub one_source: bool,
    /// The appliance's address and the listener's port.
    pub destination: SocketAddr,
    /// Live stream for the profiles that need one. The frames have the addresses of its ends.
    pub stream: Option<Stream>,
    /// Captured frames, for [`Profile::PcapReplay`].
    pub capture: Vec<Vec<u8>>,
}

impl Plan {
    /// Returns true if the destination is an IPv6 address.
    pub fn is_v6(&self) -> bool {
        self.destination.is_ipv6()
    }

    fn validate(&self, profile: Profile) -> Result<()> {
        let version = if self.is_v6() { "IPv6" } else { "IPv4" };
        ensure!(
            profile.supports_ip(self.is_v6()),
            "{} has no frames over {version}",
            profile.name()
        );
        ensure!(
            self.sources.addr().is_ipv6() == self.is_v6(),
            "the destination is {version}, the source {} is not",
            self.sources
        );
        if profile.needs_stream() {
            let Some(stream) = self.stream else { bail!("{} needs a stream", profile.name()) };
            ensure!(
                stream.local == self.destination && stream.remote.is_ipv6() == self.is_v6(),
                "the stream's local end {} is not the destination {}, or its ends are of two versions of IP",
                stream.local,
                self.destination
            );
            ensure!(
                stream.marker.is_none_or(|at| at < 512),
                "a marker is never more than 511 bytes away"
            );
        }
        Ok(())
    }

    /// Returns a source address: a random host of `sources`, or with `one_source` the address part of `sources`.
    fn random_source(&self, rng: &mut Rng) -> IpAddr {
        if self.one_source {
            return self.sources.addr();
        }
        let bits = u32::from(self.sources.max_prefix_len() - self.sources.prefix_len());
        // An IPv4 network's all-zeros and all-ones addresses are not hosts, except in a network of one or two
        // addresses.
        let (first, last) = match bits {
            0 => (0, 0),
            1 => (0, 1),
            128 => (1, u128::MAX - 1),
            _ => (1, (1 << bits) - 2),
        };
        let host = rng.u128(first..=last);
        match self.sources.network() {
            IpAddr::V4(network) => IpAddr::from((network.to_bits() | host as u32).to_be_bytes()),
            IpAddr::V6(network) => IpAddr::from((network.to_bits() | host).to_be_bytes()),
        }
    }
}

/// Returns `count` frames of a profile.
///
/// # Errors
/// The plan does not fit the profile. The message names the mismatch.
pub fn frames(profile: Profile, plan: &Plan, count: usize, seed: u64) -> Result<Vec<Vec<u8>>> {
    plan.validate(profile)?;
    let mut rng = Rng::with_seed(seed);
    if profile == Profile::PcapReplay {
        return replay::frames(plan, count, &mut rng);
    }
    let frames: Vec<_> =
        (0..count).map(|index| frame(profile, plan, index, &mut rng)).collect::<Result<_>>()?;
    Ok(frames)
}

fn frame(profile: Profile, plan: &Plan, index: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    match profile {
        Profile::Line64 => line_rate::frame(plan, index, MIN_FRAME, rng),
        // Simple IMIX: 40, 576 and 1500 bytes of IP in the ratio 7 : 4 : 1.
        Profile::LineImix => line_rate::frame(
            plan,
            index,
            [60, 590, 60, 590, 60, 60, 1514, 60, 590, 60, 590, 60][index % 12],
            rng,
        ),
        Profile::Line1518 => line_rate::frame(plan, index, MAX_FRAME, rng),
        Profile::SynFlood => tcp::syn(plan, rng),
        Profile::AckFlood => tcp::ack(plan, rng),
        Profile::RstFlood => tcp::rst(plan, index, rng),
        Profile::FinFlood => tcp::fin(plan, rng),
        Profile::UnknownFlow => stream::unmatched_segment(plan, rng),
        Profile::InWindow => stream::random_seq_segment(plan, rng),
        Profile::InWindowChecksum => stream::bad_checksum_segment(plan, index, rng),
        Profile::InWindowCrc => stream::bad_crc_segment(plan, index, rng),
        Profile::InWindowMarker => stream::bad_marker_segment(plan, rng),
        Profile::IcmpFlood => control::icmp(plan, index, rng),
        Profile::ArpFlood => control::arp(plan, index, rng),
        Profile::NdFlood => control::neighbour(plan, index, rng),
        Profile::FragmentFlood => control::fragment(plan, index, rng),
        Profile::InitFlood => control::init(plan, rng),
        Profile::PcapReplay => bail!("a replay is not a single frame"),
    }
}

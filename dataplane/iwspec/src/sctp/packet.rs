//! Independent parser of SCTP packets (RFC 9260 §3) for INIT and INIT ACK, and edits of packets to send.

/// Length of the common header, bytes.
const HEADER: usize = 12;
/// Length of an INIT chunk without its parameters, bytes.
const INIT: usize = 20;
/// Length of a DATA chunk without its user data, bytes.
const DATA: usize = 16;
/// Parameter type of the adaptation layer indication (RFC 5061 §4.2.6).
const ADAPTATION: u16 = 0xc006;
/// Length of the adaptation layer indication parameter, bytes.
const ADAPTATION_LENGTH: usize = 8;
/// Type of an ABORT chunk.
const ABORT: u8 = 6;
/// U flag of a DATA chunk.
const UNORDERED: u8 = 4;

/// Parameters of an INIT or INIT ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Greeting {
    /// Adaptation indication; `None` if the chunk has none.
    pub adaptation: Option<u32>,
    /// Number of outbound streams.
    pub outbound: u16,
    /// Maximum number of inbound streams.
    pub inbound: u16,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

/// Returns the offset and length of each chunk before the first malformed chunk.
fn chunks(packet: &[u8]) -> Vec<(usize, usize)> {
    let mut found = vec![];
    let mut at = HEADER;
    while let Some(length) = word(packet, at + 2).map(usize::from) {
        if length < 4 || at + length > packet.len() {
            break;
        }
        found.push((at, length));
        at += length.next_multiple_of(4);
    }
    found
}

/// Returns offset and length of the INIT or INIT ACK.
fn init(packet: &[u8]) -> Option<(usize, usize)> {
    chunks(packet).into_iter().find(|&(at, length)| matches!(packet[at], 1 | 2) && length >= INIT)
}

/// Returns the offset of the adaptation indication in the INIT or INIT ACK.
fn adaptation(packet: &[u8], (at, length): (usize, usize)) -> Option<usize> {
    let end = at + length;
    let mut at = at + INIT;
    while at + 4 <= end {
        let length = usize::from(word(packet, at + 2)?);
        if word(packet, at)? == ADAPTATION && length == ADAPTATION_LENGTH && at + length <= end {
            return Some(at);
        }
        at += length.max(4).next_multiple_of(4);
    }
    None
}

/// Returns the parameters of an INIT or INIT ACK; `None` for other packets.
pub fn greeting(packet: &[u8]) -> Option<Greeting> {
    let chunk = init(packet)?;
    let value = adaptation(packet, chunk)
        .and_then(|at| packet.get(at + 4..at + 8))
        .map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    Some(Greeting {
        adaptation: value,
        outbound: word(packet, chunk.0 + 12)?,
        inbound: word(packet, chunk.0 + 14)?,
    })
}

/// Returns the destination port and the source port.
pub fn ports(packet: &[u8]) -> Option<(u16, u16)> {
    Some((word(packet, 2)?, word(packet, 0)?))
}

/// Returns true if the packet has an ABORT.
pub fn is_abort(packet: &[u8]) -> bool {
    chunks(packet).into_iter().any(|(at, _)| packet[at] == ABORT)
}

/// Replaces the adaptation indication of an INIT or INIT ACK; `None` removes it.
pub fn set_adaptation(packet: &mut Vec<u8>, value: Option<u32>) {
    let Some(chunk) = init(packet) else { return };
    let mut length = chunk.1;
    if let Some(at) = adaptation(packet, chunk) {
        packet.drain(at..at + ADAPTATION_LENGTH);
        length -= ADAPTATION_LENGTH;
    }
    if let Some(value) = value {
        let mut parameter = ADAPTATION.to_be_bytes().to_vec();
        parameter.extend((ADAPTATION_LENGTH as u16).to_be_bytes());
        parameter.extend(value.to_be_bytes());
        let at = chunk.0 + INIT;
        packet.splice(at..at, parameter);
        length += ADAPTATION_LENGTH;
    }
    packet[chunk.0 + 2..chunk.0 + 4].copy_from_slice(&(length as u16).to_be_bytes());
    set_checksum(packet);
}

/// Sets the numbers of streams of an INIT or INIT ACK.
pub fn set_streams(packet: &mut [u8], outbound: u16, inbound: u16) {
    let Some((at, _)) = init(packet) else { return };
    packet[at + 12..at + 14].copy_from_slice(&outbound.to_be_bytes());
    packet[at + 14..at + 16].copy_from_slice(&inbound.to_be_bytes());
    set_checksum(packet);
}

/// Clears the U flag of DATA chunks whose user data satisfies `which`. Sets their SSN to the DDP-SSN.
pub fn set_ordered(packet: &mut [u8], which: impl Fn(&[u8]) -> bool) {
    let mut changed = false;
    for (at, length) in chunks(packet) {
        if packet[at] == 0 && length >= DATA + 2 && which(&packet[at + DATA..at + length]) {
            packet[at + 1] &= !UNORDERED;
            packet.copy_within(at + DATA..at + DATA + 2, at + 10);
            changed = true;
        }
    }
    if changed {
        set_checksum(packet);
    }
}

/// Computes the checksum (RFC 9260 §6.8).
fn set_checksum(packet: &mut [u8]) {
    packet[8..12].fill(0);
    let crc = oracle::crc32c(packet).to_le_bytes();
    packet[8..12].copy_from_slice(&crc);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns an INIT with 5 outbound and 7 inbound streams, and a parameter of another type.
    fn example() -> Vec<u8> {
        let mut packet = vec![0; HEADER];
        packet.extend([1, 0, 0, 28, 0, 0, 0, 1, 0, 0, 16, 0, 0, 5, 0, 7, 0, 0, 0, 1]);
        packet.extend([0x80, 0x08, 0, 5, 0xc1, 0, 0, 0]);
        packet
    }

    #[test]
    fn adaptation_is_set_replaced_and_removed() {
        let mut packet = example();
        let none = Greeting { adaptation: None, outbound: 5, inbound: 7 };
        assert_eq!(greeting(&packet), Some(none));
        set_adaptation(&mut packet, Some(1));
        assert_eq!(greeting(&packet), Some(Greeting { adaptation: Some(1), ..none }));
        set_adaptation(&mut packet, Some(2));
        assert_eq!(greeting(&packet), Some(Greeting { adaptation: Some(2), ..none }));
        assert!(wire::sctp::Packet::new(&packet).expect("a header").checksum_ok());
        set_adaptation(&mut packet, None);
        assert_eq!(packet.len(), example().len());
        assert_eq!(greeting(&packet), Some(none));
        set_streams(&mut packet, 1, 2);
        assert_eq!(greeting(&packet), Some(Greeting { outbound: 1, inbound: 2, ..none }));
    }

    #[test]
    fn chosen_data_chunks_become_ordered() {
        let data = |last: u8| [0, 7, 0, 18, 0, 0, 0, 1, 0, 3, 0, 0, 0, 0, 0, 16, 9, last, 0, 0];
        let mut packet = [&[0; HEADER][..], &data(1), &data(2)].concat();
        set_ordered(&mut packet, |user| user == [9, 2]);
        assert_eq!(packet[HEADER..HEADER + 20], data(1));
        assert_eq!(packet[HEADER + 20 + 1], 3);
        assert_eq!(packet[HEADER + 20 + 10..HEADER + 20 + 12], [9, 2]);
    }

    proptest! {
        #[test]
        fn any_packet_is_read_and_changed_without_panic(
            head in prop_oneof![Just(vec![]), Just(example())],
            tail in proptest::collection::vec(any::<u8>(), 0..120),
            at in 0usize..40,
            byte: u8,
        ) {
            let mut packet = [head, tail].concat();
            if let Some(b) = packet.get_mut(at) {
                *b = byte;
            }
            let _ = greeting(&packet);
            set_ordered(&mut packet, |_| true);
            set_adaptation(&mut packet, Some(2));
            set_adaptation(&mut packet, None);
            set_streams(&mut packet, 1, 1);
        }
    }
}

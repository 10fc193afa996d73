//! ESP encapsulation: a sealed packet opens to the original, and no other packet opens.
use std::net::IpAddr;

use base::Instant;
use ipsec::crypto::{Algorithm, Keys};
use ipsec::esp::{EspOutput, EspPacket, Refusal, find_esp};
use ipsec::ip;
use ipsec::sa::{
    Encapsulation, Fragments, Inbound, Lifetime, Mode, Outbound, Parameters, Remaining, SaError,
    Tunnel,
};
use proptest::prelude::*;

const NOW: Instant = Instant::from_millis(1000);
const SPI: u32 = 0x1122_3344;
/// Free space before and after a packet, bytes.
const HEADROOM: usize = 128;

fn tunnel(v6: bool) -> Tunnel {
    let ends: [IpAddr; 2] = match v6 {
        false => [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
        true => ["2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()],
    };
    Tunnel {
        source: ends[0],
        destination: ends[1],
        ttl: 64,
        dscp: None,
        ecn: true,
        fragments: Fragments::Copy,
    }
}

fn parameters(algorithm: Algorithm, mode: Mode) -> Parameters {
    let keys = Keys::new(vec![0x5a; algorithm.key_len()], vec![0xa5; algorithm.auth_key_len()]);
    Parameters {
        spi: SPI,
        algorithm,
        keys,
        mode,
        esn: true,
        encapsulation: None,
        soft: Lifetime::default(),
        hard: Lifetime::default(),
    }
}

fn pair(parameters: &Parameters) -> (Outbound, Inbound) {
    (Outbound::new(parameters).unwrap(), Inbound::new(parameters, 64).unwrap())
}

/// Returns a UDP packet without a UDP checksum and with traffic class `class`. The packet has `options` units of
/// options: 4-byte words in IPv4, 8-byte units of hop-by-hop options in IPv6.
fn packet(v6: bool, options: usize, class: u8, payload: &[u8]) -> Vec<u8> {
    let mut udp = vec![0x12, 0x34, 0x56, 0x78];
    udp.extend(((8 + payload.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let mut out;
    if v6 {
        out = vec![0x60 | class >> 4, class << 4, 0, 0, 0, 0, if options > 0 { 0 } else { 17 }, 64];
        out.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        out.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        if options > 0 {
            out.extend([17, (options - 1) as u8, 1, (8 * options - 4) as u8]);
            out.resize(40 + 8 * options, 0);
        }
        out.extend(udp);
        let len = (out.len() - 40) as u16;
        out[4..6].copy_from_slice(&len.to_be_bytes());
    } else {
        let header = 20 + 4 * options;
        out = vec![
            0x40 | (header / 4) as u8,
            class,
            0,
            0,
            0,
            9,
            0x40,
            0,
            64,
            17,
            0,
            0,
            10,
            0,
            0,
            1,
            10,
            0,
            0,
            2,
        ];
        out.resize(header, 1);
        out.extend(udp);
        let len = out.len() as u16;
        out[2..4].copy_from_slice(&len.to_be_bytes());
        ip::write_checksum(&mut out[..header]);
    }
    out
}

/// Returns a buffer that contains the packet with free space on both sides, and the packet's range.
fn with_headroom(packet: &[u8]) -> (Vec<u8>, std::ops::Range<usize>) {
    let mut buffer = vec![0xcc; HEADROOM];
    buffer.extend(packet);
    buffer.resize(packet.len() + 2 * HEADROOM, 0xcc);
    (buffer, HEADROOM..HEADROOM + packet.len())
}

fn sealed(out: &mut Outbound, packet: &[u8]) -> Vec<u8> {
    let (mut buffer, at) = with_headroom(packet);
    let done = out.seal(&mut buffer, at, NOW).unwrap();
    buffer[done.packet].to_vec()
}

fn open(inbound: &mut Inbound, packet: &[u8]) -> Result<Vec<u8>, Refusal> {
    let (mut buffer, at) = with_headroom(packet);
    let EspOutput { packet, .. } = inbound.open(&mut buffer, at, NOW)?;
    Ok(buffer[packet].to_vec())
}

fn modes() -> [Mode; 3] {
    [Mode::Transport, Mode::Tunnel(tunnel(false)), Mode::Tunnel(tunnel(true))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sealed_packet_opens_to_original(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        mode in prop::sample::select(modes().to_vec()),
        (v6, options, class) in (any::<bool>(), 0usize..4, any::<u8>()),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        (esn, udp, before) in (any::<bool>(), any::<bool>(), 0u64..u32::MAX.into()),
    ) {
        let encapsulation = udp.then_some(Encapsulation { source: 4500, destination: 4500 });
        let parameters = Parameters { esn, encapsulation, ..parameters(algorithm, mode) };
        let (mut out, mut inbound) = pair(&parameters);
        out.resume(before);
        let clear = packet(v6, options, class, &payload);
        let header = ip::Header::read(&clear).unwrap();
        let wire = sealed(&mut out, &clear);
        prop_assert_eq!(wire.len(), out.shape().sealed_len(clear.len(), header.len));
        if wire[0] >> 4 == 4 {
            let mut header = wire[..ip::Header::read(&wire).unwrap().len].to_vec();
            ip::write_checksum(&mut header);
            prop_assert!(wire.starts_with(&header), "the checksum is right");
        }
        let found = find_esp(&wire, Some(4500)).unwrap();
        prop_assert_eq!(found, EspPacket { spi: SPI, ports: udp.then_some((4500, 4500)) });
        prop_assert_eq!(open(&mut inbound, &wire).unwrap(), clear);
        prop_assert_eq!((out.sequence(), inbound.top()), (before + 1, before + 1));
        prop_assert_eq!(open(&mut inbound, &wire), Err(Refusal::Duplicate));
    }

    #[test]
    fn largest_packet_fits_mtu_and_one_byte_more_does_not(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        mode in prop::sample::select(modes().to_vec()),
        (udp, header, mtu) in (any::<bool>(), prop::sample::select(vec![20usize, 40, 60]), 100usize..9100),
    ) {
        let encapsulation = udp.then_some(Encapsulation { source: 4500, destination: 4500 });
        let (out, _) = pair(&Parameters { encapsulation, ..parameters(algorithm, mode) });
        let Some(most) = out.shape().max_packet_len(mtu, header) else {
            prop_assert!(out.shape().sealed_len(header, header) > mtu);
            return Ok(());
        };
        prop_assert!(out.shape().sealed_len(most, header) <= mtu);
        prop_assert!(out.shape().sealed_len(most + 1, header) > mtu);
    }

    #[test]
    fn modified_packet_is_refused_without_state_change(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        mode in prop::sample::select(modes().to_vec()),
        (at, bit, cut) in (any::<prop::sample::Index>(), 0u8..8, any::<bool>()),
    ) {
        let (mut out, mut inbound) = pair(&parameters(algorithm, mode));
        let clear = packet(false, 0, 0, &[7; 40]);
        let good = sealed(&mut out, &clear);
        let outer = ip::Header::read(&good).unwrap().len;
        let mut bad = good.clone();
        let at = outer + at.index(bad.len() - outer);
        if cut {
            bad.truncate(at);
            let header = ip::Header::read(&good).unwrap();
            ip::rewrite(&mut bad, &header, ip::ESP, at);
        } else {
            bad[at] ^= 1 << bit;
        }
        let refused = open(&mut inbound, &bad).unwrap_err();
        prop_assert!(
            matches!(refused, Refusal::NotOfSa | Refusal::Integrity | Refusal::Malformed | Refusal::ImpossibleSequence),
            "{refused:?}"
        );
        prop_assert_eq!((inbound.top(), inbound.used().packets), (0, 0));
        prop_assert_eq!(open(&mut inbound, &good).unwrap(), clear);
    }

    #[test]
    fn random_bytes_are_refused_as_esp(bytes in prop::collection::vec(any::<u8>(), 0..200), v6 in any::<bool>()) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = if v6 { 0x60 } else { 0x45 };
        }
        for mode in modes() {
            let (mut out, mut inbound) = pair(&parameters(Algorithm::NullHmacSha256, mode));
            find_esp(&bytes, Some(4500));
            prop_assert!(open(&mut inbound, &bytes).is_err());
            let (mut buffer, at) = with_headroom(&bytes);
            // Random bytes may form an IP packet. In that case the sealed packet is also an IP packet.
            if let Ok(done) = out.seal(&mut buffer, at, NOW) {
                prop_assert!(ip::Header::read(&buffer[done.packet]).is_ok());
            }
        }
    }
}

#[test]
fn sequence_numbers_exhaust_and_never_repeat() {
    for (esn, last) in [(false, u64::from(u32::MAX)), (true, u64::MAX)] {
        let parameters = Parameters { esn, ..parameters(Algorithm::AesGcm128, Mode::Transport) };
        let (mut out, _) = pair(&parameters);
        out.resume(last - 1);
        let clear = packet(false, 0, 0, &[1; 9]);
        sealed(&mut out, &clear);
        let (mut buffer, at) = with_headroom(&clear);
        let before = buffer.clone();
        assert_eq!(out.seal(&mut buffer, at, NOW), Err(Refusal::SequenceExhausted));
        assert!(buffer == before && out.sequence() == last);
    }
}

#[test]
fn the_high_half_of_the_sequence_number_is_inferred() {
    let (mut out, mut inbound) = pair(&parameters(Algorithm::ChaCha20Poly1305, Mode::Transport));
    let clear = packet(true, 0, 0, &[3; 33]);
    let border = 1u64 << 32;
    // Each step is at most half of the range of the low 32 bits.
    for from in [border / 2 - 2, border - 3, border + 1, border * 3 / 2, border * 2 - 1] {
        out.resume(from);
        let first = sealed(&mut out, &clear);
        let second = sealed(&mut out, &clear);
        assert_eq!(open(&mut inbound, &second).unwrap(), clear);
        assert_eq!(open(&mut inbound, &first).unwrap(), clear, "a late packet opens");
        assert_eq!(inbound.top(), from + 2);
    }
}

#[test]
fn soft_expiry_is_reported_once_before_hard_expiry() {
    let clear = packet(false, 0, 0, &[1; 72]);
    let len = clear.len() as u64;
    let soft = |lifetime| Lifetime { packets: Some(2), ..lifetime };
    for hard in [
        Lifetime { packets: Some(4), ..Lifetime::default() },
        Lifetime { bytes: Some(4 * len), ..Lifetime::default() },
    ] {
        let parameters = Parameters {
            soft: soft(Lifetime::default()),
            hard,
            ..parameters(Algorithm::AesGcm256, Mode::Transport)
        };
        let (mut out, mut inbound) = pair(&parameters);
        let mut remaining = Vec::new();
        for _ in 0..4 {
            let (mut buffer, at) = with_headroom(&clear);
            let done = out.seal(&mut buffer, at, NOW).unwrap();
            remaining.push(done.remaining);
            inbound.open(&mut buffer, done.packet, NOW).unwrap();
        }
        assert_eq!(
            remaining,
            [
                Remaining::Sufficient,
                Remaining::SoftExpired,
                Remaining::Sufficient,
                Remaining::Sufficient
            ]
        );
        let (mut buffer, at) = with_headroom(&clear);
        assert_eq!(out.seal(&mut buffer, at, NOW), Err(Refusal::Expired));
        assert!(out.is_expired(NOW) && inbound.is_expired(NOW));
    }
    let until = Some(NOW);
    let hard = Lifetime { until, ..Lifetime::default() };
    let (mut out, _) =
        pair(&Parameters { hard, ..parameters(Algorithm::AesGcm256, Mode::Transport) });
    let (mut buffer, at) = with_headroom(&clear);
    assert_eq!(out.seal(&mut buffer, at, NOW), Err(Refusal::Expired));
}

// RFC 6040 §4.2, figure 4: rows are the inner packet's ECN field, columns the outer's.
#[test]
fn tunnel_exit_copies_outer_ecn_mark() {
    let not = Err(Refusal::NotEct);
    let table = [
        [Ok(0), Ok(0), Ok(0), not],
        [Ok(1), Ok(1), Ok(1), Ok(3)],
        [Ok(2), Ok(1), Ok(2), Ok(3)],
        [Ok(3), Ok(3), Ok(3), Ok(3)],
    ];
    for v6 in [false, true] {
        for (inner, row) in table.iter().enumerate() {
            for (outer, expected) in row.iter().enumerate() {
                let mode = Mode::Tunnel(tunnel(v6));
                let (mut out, mut inbound) = pair(&parameters(Algorithm::AesGcm128, mode));
                let clear = packet(!v6, 0, 0b1011_1000 | inner as u8, b"marked");
                let mut wire = sealed(&mut out, &clear);
                assert_eq!(ip::traffic_class(&wire), 0b1011_1000 | inner as u8, "copied outwards");
                ip::set_traffic_class(&mut wire, outer as u8);
                let class = open(&mut inbound, &wire).map(|packet| {
                    // Except for the traffic class, the packet is unchanged.
                    let mut same = packet.clone();
                    ip::set_traffic_class(&mut same, ip::traffic_class(&clear));
                    assert_eq!(same, clear);
                    ip::traffic_class(&packet) & 3
                });
                assert_eq!(class, *expected, "inner {inner}, outer {outer}");
            }
        }
    }
}

#[test]
fn tunnel_header_has_configured_dscp_and_df() {
    for (fragments, flags) in
        [(Fragments::Copy, 0x40), (Fragments::Never, 0x40), (Fragments::Allowed, 0)]
    {
        let mode =
            Mode::Tunnel(Tunnel { dscp: Some(46), ecn: false, fragments, ttl: 7, ..tunnel(false) });
        let (mut out, _) = pair(&parameters(Algorithm::AesGcm128, mode));
        let wire = sealed(&mut out, &packet(false, 0, 1, b"x"));
        assert_eq!((wire[1], wire[6], wire[8]), (46 << 2, flags, 7));
        assert_eq!(
            wire[4..6] == [0, 0],
            flags != 0,
            "packets that may be fragmented have an identification"
        );
    }
}

#[test]
fn fragment_dummy_and_unknown_next_header_are_refused() {
    for v6 in [false, true] {
        let mut cut = packet(v6, 0, 0, &[0; 30]);
        if v6 {
            cut[6] = 44;
        } else {
            cut[6] = 0x20;
            ip::write_checksum(&mut cut[..20]);
        }
        let (mut out, mut inbound) = pair(&parameters(Algorithm::AesGcm128, Mode::Transport));
        let (mut buffer, at) = with_headroom(&cut);
        assert_eq!(out.seal(&mut buffer, at, NOW), Err(Refusal::Fragment));
        assert_eq!(open(&mut inbound, &cut), Err(Refusal::Fragment));
    }
    // `seal` copies the IP protocol to the ESP next header. `open` refuses the values below.
    for (mode, protocol, refused) in [
        (Mode::Transport, 59, Refusal::Dummy),
        (Mode::Transport, 4, Refusal::NextHeader),
        (Mode::Transport, 41, Refusal::NextHeader),
        (Mode::Tunnel(tunnel(false)), 17, Refusal::NextHeader),
    ] {
        let (mut out, _) = pair(&parameters(Algorithm::AesGcm128, Mode::Transport));
        let (_, mut inbound) = pair(&parameters(Algorithm::AesGcm128, mode));
        let mut clear = packet(false, 0, 0, &[0; 30]);
        clear[9] = protocol;
        ip::write_checksum(&mut clear[..20]);
        let wire = sealed(&mut out, &clear);
        assert_eq!(open(&mut inbound, &wire), Err(refused), "{mode:?} {protocol}");
        assert_eq!(inbound.top(), 1, "the last packet was authentic");
    }
}

#[test]
fn packet_without_headroom_is_left_unchanged() {
    let (mut out, _) =
        pair(&parameters(Algorithm::AesCbc256HmacSha256, Mode::Tunnel(tunnel(true))));
    let clear = packet(false, 0, 0, &[9; 50]);
    let len = out.shape().sealed_len(clear.len(), 20);
    for (before, behind) in [(0, 100), (63, 100), (64, 0)] {
        let mut buffer = vec![0; before];
        buffer.extend(&clear);
        buffer.resize(before + clear.len() + behind, 0);
        let kept = buffer.clone();
        let at = before..before + clear.len();
        assert_eq!(out.seal(&mut buffer, at, NOW), Err(Refusal::NoRoom), "{before} {behind}");
        assert!(buffer == kept);
    }
    // The smallest sufficient headroom, 64 bytes: 40 of IPv6 header, 8 of ESP header, 16 of IV.
    let mut buffer = [&[0; 64][..], &clear, &[0; 100]].concat();
    buffer.truncate(len);
    assert_eq!(out.seal(&mut buffer, 64..64 + clear.len(), NOW).unwrap().packet, 0..len);
}

#[test]
fn tunnel_padding_behind_packet_is_removed() {
    let mode = Mode::Tunnel(tunnel(false));
    let (mut out, mut inbound) = pair(&parameters(Algorithm::AesGcm128, mode));
    let clear = packet(false, 0, 0, b"short");
    // With the same keys, a packet sealed in transport mode is valid in tunnel mode. Its content is an inner packet
    // followed by other bytes.
    let (mut transport, _) = pair(&parameters(Algorithm::AesGcm128, Mode::Transport));
    let mut hidden = packet(true, 0, 0, &[]);
    hidden.truncate(40);
    hidden[6] = 4;
    hidden.extend(&clear);
    hidden.extend([0xaa; 37]);
    let len = (hidden.len() - 40) as u16;
    hidden[4..6].copy_from_slice(&len.to_be_bytes());
    let wire = sealed(&mut transport, &hidden);
    assert_eq!(open(&mut inbound, &wire).unwrap(), clear);
    sealed(&mut out, &clear);
}

#[test]
fn invalid_sa_parameters_name_their_error() {
    let good = || parameters(Algorithm::AesGcm128, Mode::Transport);
    assert_eq!(Outbound::new(&Parameters { spi: 255, ..good() }).unwrap_err(), SaError::Spi(255));
    let mixed = Tunnel { destination: tunnel(true).destination, ..tunnel(false) };
    let mixed = Parameters { mode: Mode::Tunnel(mixed), ..good() };
    assert_eq!(Outbound::new(&mixed).unwrap_err(), SaError::Families);
    for window in [0, 63, 4097] {
        assert_eq!(Inbound::new(&good(), window).unwrap_err(), SaError::Window(window));
    }
    let text = format!("{:?}", Outbound::new(&good()).unwrap());
    assert!(!text.contains("90, 90"), "no keys: {text}");
}

#[test]
fn refusal_names_are_unique() {
    let names: std::collections::BTreeSet<_> = Refusal::ALL.iter().map(|r| r.name()).collect();
    assert_eq!(names.len(), Refusal::ALL.len());
    assert_eq!(Refusal::ALL.iter().filter(|r| r.is_auditable()).count(), 5);
}

// RFC 791 §3.1, RFC 8200 §3: the outermost header's length field sets the limit.
#[test]
fn outer_header_bounds_tunnel_packet_length() {
    for (inner_v6, outer_v6) in [(false, false), (false, true), (true, false), (true, true)] {
        let mode = Mode::Tunnel(tunnel(outer_v6));
        let (mut out, mut inbound) = pair(&parameters(Algorithm::AesGcm128, mode));
        let most = 65_535 + if outer_v6 { 40 } else { 0 };
        let header = if inner_v6 { 40 } else { 20 };
        // Maximum length of the inner packet. The length field of IPv6 does not count the IPv6 header.
        let inner = 65_535 + if inner_v6 { 40 } else { 0 };
        let longest = out.shape().max_packet_len(most, header).unwrap().min(inner);
        let clear = packet(inner_v6, 0, 0, &vec![7; longest - header - 8]);
        let wire = sealed(&mut out, &clear);
        assert_eq!(ip::Header::read(&wire).unwrap().total, wire.len());
        assert!(open(&mut inbound, &wire).unwrap() == clear, "{inner_v6} in {outer_v6}");
        let beyond = (clear.len() + 4).min(inner);
        if out.shape().sealed_len(beyond, header) > most {
            let (mut buffer, at) =
                with_headroom(&packet(inner_v6, 0, 0, &vec![7; beyond - header - 8]));
            let before = buffer.clone();
            assert_eq!(out.seal(&mut buffer, at, NOW), Err(Refusal::TooLong));
            assert!(buffer == before && out.sequence() == 1);
        }
    }
}

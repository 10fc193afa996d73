//! Packets of other implementations: those printed in RFCs and drafts, and those of `vectors.py`.
//!
//! Published packets are only opened, because their IVs differ from those that sealing generates. Those of `vectors.py`
//! have the same IVs, and are compared bit for bit in both directions.
use std::net::IpAddr;
use std::ops::Range;

use base::Instant;
use ipsec::crypto::{Algorithm, Keys, Transform};
use ipsec::esp::{Refusal, find_esp};
use ipsec::ip::{self, Header};
use ipsec::sa::{Encapsulation, Fragments, Inbound, Lifetime, Mode, Outbound, Parameters, Tunnel};

const NOW: Instant = Instant::from_millis(1000);
/// Free space before and behind a packet, bytes.
const HEADROOM: usize = 128;

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    if text == "-" { Vec::new() } else { (0..text.len()).step_by(2).map(byte).collect() }
}

fn algorithm(name: &str) -> Algorithm {
    *Algorithm::ALL.iter().find(|a| format!("{a:?}") == name).unwrap()
}

/// Returns the lines of a file without comments, split into words.
fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect())
}

fn mode(name: &str) -> Mode {
    let ends: [IpAddr; 2] = match name {
        "transport" => return Mode::Transport,
        "tunnel4" => [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
        "tunnel6" => ["2001:db8:1::1".parse().unwrap(), "2001:db8:2::2".parse().unwrap()],
        _ => panic!("{name}"),
    };
    let [source, destination] = ends;
    let fragments = Fragments::Copy;
    Mode::Tunnel(Tunnel { source, destination, ttl: 64, dscp: None, ecn: true, fragments })
}

fn parameters(
    spi: u32,
    algorithm: Algorithm,
    (key, auth): (&str, &str),
    mode: Mode,
    esn: bool,
) -> Parameters {
    Parameters {
        spi,
        algorithm,
        keys: Keys::new(unhex(key), unhex(auth)),
        mode,
        esn,
        encapsulation: None,
        soft: Lifetime::default(),
        hard: Lifetime::default(),
    }
}

fn with_headroom(packet: &[u8]) -> (Vec<u8>, Range<usize>) {
    let mut buffer = vec![0xcc; HEADROOM];
    buffer.extend(packet);
    buffer.resize(packet.len() + 2 * HEADROOM, 0xcc);
    (buffer, HEADROOM..HEADROOM + packet.len())
}

fn open(inbound: &mut Inbound, packet: &[u8]) -> Result<Vec<u8>, Refusal> {
    let (mut buffer, at) = with_headroom(packet);
    let done = inbound.open(&mut buffer, at, NOW)?;
    Ok(buffer[done.packet].to_vec())
}

/// Asserts that the packet opens once, and that a second copy and packets with a changed bit are refused.
fn assert_opens(mut inbound: Inbound, wire: &[u8], clear: &[u8], case: &str) {
    let outer = Header::read(wire).unwrap().len;
    for bit in [8 * (outer + 16), 8 * wire.len() - 1] {
        let mut bad = wire.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(open(&mut inbound, &bad), Err(Refusal::Integrity), "{case}");
    }
    assert_eq!(open(&mut inbound, wire).as_deref(), Ok(clear), "{case}");
    assert_eq!(open(&mut inbound, wire), Err(Refusal::Duplicate), "{case}");
}

// Sources: draft-mcgrew-gcm-test-01 (RFC 4106 §9, RFC 4543 §6), RFC 3602 §4, RFC 7634 appendix A.
#[test]
fn published_packets_open() {
    let mut packets = 0;
    for line in lines(include_str!("published.txt")) {
        let [document, name, how, esn, seq, key, auth, header, clear, esp] = line[..] else {
            panic!("{line:?}")
        };
        let (seq, esn) = (seq.parse::<u64>().unwrap(), esn == "1");
        let (mut clear, esp) = (unhex(clear), unhex(esp));
        // Outer header for packets that are published without one.
        let header =
            if header == "-" { "450000000000400040320000c0000201c0000202" } else { header };
        let mut wire = [unhex(header), esp].concat();
        let total = wire.len() as u16;
        wire[2..4].copy_from_slice(&total.to_be_bytes());
        ip::write_checksum(&mut wire[..20]);
        if how == "transport" {
            // All published packets have ICMP as the next header.
            let mut inner = wire[..20].to_vec();
            inner[9] = 1;
            inner[2..4].copy_from_slice(&(20 + clear.len() as u16).to_be_bytes());
            ip::write_checksum(&mut inner);
            clear = [inner, clear].concat();
        }
        let spi = find_esp(&wire, None).unwrap().spi;
        let parameters = parameters(spi, algorithm(name), (key, auth), mode(how), esn);
        let mut inbound = Inbound::new(&parameters, 64).unwrap();
        inbound.resume(seq - 1);
        assert_opens(inbound, &wire, &clear, &format!("{document}, {seq}"));
        packets += 1;
    }
    assert_eq!(packets, 18);
}

// RFC 3602 §4, cases 5 and 6: the opened packet has the header and the first bytes of the original.
#[test]
fn rfc_3602_pings_decrypt_to_originals() {
    let original = [
        "4500005408f200004001f9fec0a87b03c0a87b6408000ebda70a0000",
        "4500003008fe00004001fa16c0a87b03c0a87b640800b5e8a80a0500",
    ];
    let vectors = lines(include_str!("published.txt")).filter(|line| line[0] == "rfc3602");
    for (line, original) in vectors.zip(original) {
        let keys = (line[5], line[6]);
        let parameters = parameters(0x4321, algorithm(line[1]), keys, Mode::Transport, false);
        let mut wire = unhex(&[line[7], line[9]].concat());
        // The published packets have no ICV, so their length field is too small for `wire`.
        let total = wire.len() as u16;
        wire[2..4].copy_from_slice(&total.to_be_bytes());
        ip::write_checksum(&mut wire[..20]);
        let opened = open(&mut Inbound::new(&parameters, 64).unwrap(), &wire).unwrap();
        assert_eq!(opened[..28], unhex(original));
    }
}

#[test]
fn second_implementation_seals_same_packets() {
    let mut packets = 0;
    for line in lines(include_str!("vectors.txt")) {
        let [name, how, esn, udp, spi, seq, key, auth, clear, wire] = line[..] else {
            panic!("{line:?}")
        };
        let case = line[..6].join(" ");
        let (spi, seq) = (spi.parse().unwrap(), seq.parse::<u64>().unwrap());
        let encapsulation =
            (udp == "1").then_some(Encapsulation { source: 4500, destination: 4500 });
        let parameters = parameters(spi, algorithm(name), (key, auth), mode(how), esn == "1");
        let parameters = Parameters { encapsulation, ..parameters };
        let (clear, wire) = (unhex(clear), unhex(wire));
        let mut out = Outbound::new(&parameters).unwrap();
        out.resume(seq - 1);
        let (mut buffer, at) = with_headroom(&clear);
        let done = out.seal(&mut buffer, at, NOW).unwrap();
        assert_eq!((done.sequence, &buffer[done.packet]), (seq, &wire[..]), "{case}");
        let mut inbound = Inbound::new(&parameters, 64).unwrap();
        inbound.resume(seq - 1);
        assert_opens(inbound, &wire, &clear, &case);
        packets += 1;
    }
    assert_eq!(packets, 66);
}

/// Returns the ICV of `data`, whose first eight bytes take the place of SPI and sequence number.
fn icv(algorithm: Algorithm, key: &str, data: &[u8], seq: u64, esn: bool) -> Vec<u8> {
    let sa = Transform::new(algorithm, &Keys::new(Vec::new(), unhex(key))).unwrap();
    let mut buffer = [&[0; 4], data, &[0; 16]].concat();
    let end = 4 + data.len();
    sa.seal(&mut buffer, 4, end, seq, esn).unwrap();
    assert_eq!(buffer[4..end], *data);
    let icv = buffer[end..end + algorithm.icv_len()].to_vec();
    sa.open(&mut buffer, 4, end, seq, esn).unwrap();
    buffer[4] ^= 1;
    sa.open(&mut buffer, 4, end, seq, esn).unwrap_err();
    icv
}

// RFC 4868 §2.7.2.1, AUTH256-1 to -4; RFC 2202 §3 (by RFC 2404), cases 1, 3 and 4. With ESN the last four bytes are the
// high half of the sequence number, which is not sent (RFC 4303 §2.2.1).
#[test]
fn published_hmac_vectors_match() {
    let jefe = "4a656665".repeat(8);
    let counted = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20";
    let (sha256, sha1) = (Algorithm::NullHmacSha256, Algorithm::NullHmacSha1);
    for (algorithm, key, data, expected) in [
        (sha256, &*"0b".repeat(32), &b"Hi There"[..], "198a607eb44bfbc69903a0f1cf2bbdc5"),
        (sha256, &jefe, b"what do ya want for nothing?", "167f928588c5cc2eef8e3093caa0e87c"),
        (sha256, &"aa".repeat(32), &[0xdd; 50], "cdcb1220d1ecccea91e53aba3092f962"),
        (sha256, counted, &[0xcd; 50], "372efcf9b40b35c2115b1346903d2ef4"),
        (sha1, &"0b".repeat(20), b"Hi There", "b617318655057264e28bc0b6"),
        (sha1, &"aa".repeat(20), &[0xdd; 50], "125d7342b9ac11cd91a39af4"),
    ] {
        assert_eq!(icv(algorithm, key, data, 1, false), unhex(expected));
        if let Some((rest, high)) = data.split_last_chunk::<4>().filter(|(rest, _)| rest.len() >= 8)
        {
            let seq = u64::from(u32::from_be_bytes(*high)) << 32 | 1;
            assert_eq!(icv(algorithm, key, rest, seq, true), unhex(expected), "ESN");
        }
    }
}

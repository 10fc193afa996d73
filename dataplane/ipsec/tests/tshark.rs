//! Interoperability with tshark, which receives the keys and decrypts and verifies sealed packets, in each mode
//! and with each algorithm that tshark supports.
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use base::Instant;
use ipsec::crypto::{Algorithm, Keys};
use ipsec::ip;
use ipsec::sa::{Fragments, Lifetime, Mode, Outbound, Parameters, Tunnel};

const ADDRESSES: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];
/// Payload of the packets.
const TEXT: &[u8] = b"placed where it belongs";

/// Returns tshark's names of encryption and authentication. `None` for GMAC, which tshark lacks, and for
/// ChaCha20-Poly1305, which older versions lack.
fn tshark_algorithms(algorithm: Algorithm) -> Option<[&'static str; 2]> {
    let gcm = "AES-GCM with 16 octet ICV [RFC4106]";
    Some(match algorithm {
        Algorithm::AesGcm128 | Algorithm::AesGcm256 => [gcm, "NULL"],
        Algorithm::AesCbc128HmacSha256 | Algorithm::AesCbc256HmacSha256 => {
            ["AES-CBC [RFC3602]", "HMAC-SHA-256-128 [RFC4868]"]
        }
        Algorithm::AesCbc128HmacSha1 | Algorithm::AesCbc256HmacSha1 => {
            ["AES-CBC [RFC3602]", "HMAC-SHA-1-96 [RFC2404]"]
        }
        Algorithm::NullHmacSha256 => ["NULL", "HMAC-SHA-256-128 [RFC4868]"],
        Algorithm::NullHmacSha1 => ["NULL", "HMAC-SHA-1-96 [RFC2404]"],
        // `vectors.rs` tests ChaCha20-Poly1305 with the packet of RFC 7634.
        Algorithm::ChaCha20Poly1305 | Algorithm::AesGmac128 | Algorithm::AesGmac256 => return None,
    })
}

/// Returns a UDP packet between two of [`ADDRESSES`], over IPv4 without a UDP checksum.
fn packet(v6: bool) -> Vec<u8> {
    let address = |text: &str| match text.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let [source, destination] = ADDRESSES[usize::from(v6)].map(address);
    let len = (8 + TEXT.len()) as u16;
    let mut out = match v6 {
        true => {
            [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[17, 64], &source, &destination].concat()
        }
        false => {
            let total = (20 + len).to_be_bytes();
            let begin = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17, 0, 0];
            [&begin[..], &source, &destination].concat()
        }
    };
    if !v6 {
        ip::write_checksum(&mut out);
    }
    let header = out.len();
    out.extend([0x12, 0x34, 0x56, 0x78]);
    out.extend(len.to_be_bytes());
    out.extend([0, 0]);
    out.extend(TEXT);
    if v6 {
        ip::write_udp_checksum(&mut out, header);
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn tshark_decrypts_sealed_packets() {
    // A capture file of raw IP packets (link type 101).
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101u32] {
        file.extend(word.to_ne_bytes());
    }
    let (mut keys, mut count) = (Vec::new(), 0u32);
    for (number, algorithm) in (0x1000u32..).zip(Algorithm::ALL) {
        let Some([encryption, authentication]) = tshark_algorithms(algorithm) else { continue };
        for (v6, ends) in [(false, ADDRESSES[0]), (true, ADDRESSES[1])] {
            let [source, destination] = ends.map(|end| end.parse().unwrap());
            let tunnel = Tunnel {
                source,
                destination,
                ttl: 64,
                dscp: None,
                ecn: true,
                fragments: Fragments::Copy,
            };
            for (mode, spi) in [(Mode::Transport, number), (Mode::Tunnel(tunnel), number + 0x100)] {
                let key: Vec<u8> = (0..algorithm.key_len() as u8).map(|n| n * 7 + 1).collect();
                let mac: Vec<u8> = (0..algorithm.auth_key_len() as u8).map(|n| n * 5 + 2).collect();
                let family = if v6 { "IPv6" } else { "IPv4" };
                let secret = |key: &[u8]| {
                    if key.is_empty() { String::new() } else { format!("0x{}", hex(key)) }
                };
                let line = [
                    family,
                    ends[0],
                    ends[1],
                    &format!("0x{spi:08x}"),
                    encryption,
                    &secret(&key),
                    authentication,
                    &secret(&mac),
                ];
                keys.push(format!("uat:esp_sa:\"{}\"", line.join("\",\"")));
                let parameters = Parameters {
                    spi,
                    algorithm,
                    keys: Keys::new(key, mac),
                    mode,
                    esn: false,
                    encapsulation: None,
                    soft: Lifetime::default(),
                    hard: Lifetime::default(),
                };
                let mut sa = Outbound::new(&parameters).unwrap();
                let clear = packet(v6);
                let mut buffer = [&[0; 100][..], &clear, &[0; 100]].concat();
                let at = 100..100 + clear.len();
                let done = sa.seal(&mut buffer, at, Instant::from_millis(1)).unwrap();
                let wire = &buffer[done.packet];
                for word in [count, 0, wire.len() as u32, wire.len() as u32] {
                    file.extend(word.to_ne_bytes());
                }
                file.extend(wire);
                count += 1;
            }
        }
    }
    let mut tshark = Command::new("tshark");
    tshark.args(["-r", "-", "-T", "fields", "-e", "esp.spi", "-e", "udp.payload"]);
    tshark.args(["-e", "esp.icv_good", "-E", "occurrence=l"]);
    tshark.args(["-o", "esp.enable_encryption_decode:TRUE"]);
    tshark.args(["-o", "esp.enable_authentication_check:TRUE"]);
    keys.iter().for_each(|line| {
        tshark.args(["-o", line]);
    });
    let child = tshark.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("cannot run: tshark is missing (scripts/setup installs it)");
    child.stdin.take().unwrap().write_all(&file).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.lines().count(), count as usize, "{text}{errors}");
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[1], hex(TEXT), "{line}: not decrypted");
        assert!(["1", "True"].contains(&fields[2]), "{line}: the ICV is wrong");
    }
    assert_eq!(count, 32);
}

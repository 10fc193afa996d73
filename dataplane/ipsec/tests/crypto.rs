//! Every algorithm round-trips, and a change of any byte is refused.
use ipsec::crypto::{Algorithm, CryptoFailure, ESP_HEADER, KeyError, Keys, Transform};

const ESP: usize = 20;

fn transform(algorithm: Algorithm) -> Transform {
    let keys = Keys::new(vec![0x5a; algorithm.key_len()], vec![0xa5; algorithm.auth_key_len()]);
    Transform::new(algorithm, &keys).expect("keys of the right length")
}

/// Returns a packet with SPI, sequence number, `blocks` 16-byte blocks of body and space for the ICV. Also returns the
/// offset of the body's end.
fn packet(algorithm: Algorithm, seq: u64, blocks: usize) -> (Vec<u8>, usize) {
    let body = ESP + ESP_HEADER + algorithm.iv_len();
    let end = body + 16 * blocks;
    let mut buf: Vec<u8> = (0..end + algorithm.icv_len()).map(|i| i as u8).collect();
    buf[ESP..ESP + 4].copy_from_slice(&0x1122_3344u32.to_be_bytes());
    buf[ESP + 4..ESP + 8].copy_from_slice(&(seq as u32).to_be_bytes());
    (buf, end)
}

#[test]
fn every_algorithm_round_trips_and_hides_payload() {
    for algorithm in Algorithm::ALL {
        for (seq, esn) in [(1, false), (1, true), (0x1_0000_0001, true)] {
            let sa = transform(algorithm);
            let (mut buf, end) = packet(algorithm, seq, 4);
            let clear = buf.clone();
            let body = ESP + ESP_HEADER + algorithm.iv_len();
            sa.seal(&mut buf, ESP, end, seq, esn).expect("seal");
            assert_eq!(
                buf[..ESP + 8],
                clear[..ESP + 8],
                "{algorithm:?}: header bytes are unchanged"
            );
            assert_eq!(
                buf[body..end] == clear[body..end],
                algorithm.confidentiality_bits() == 0,
                "{algorithm:?}"
            );
            sa.open(&mut buf, ESP, end, seq, esn).expect("open");
            assert_eq!(buf[body..end], clear[body..end], "{algorithm:?}");
            assert_eq!(buf[..ESP + 8], clear[..ESP + 8], "{algorithm:?}");
        }
    }
}

#[test]
fn each_flipped_byte_is_refused() {
    for algorithm in Algorithm::ALL {
        let sa = transform(algorithm);
        let (mut sealed, end) = packet(algorithm, 7, 2);
        sa.seal(&mut sealed, ESP, end, 7, true).expect("seal");
        for at in ESP..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 0x10;
            let low = u32::from_be_bytes(bad[ESP + 4..ESP + 8].try_into().expect("four bytes"));
            assert_eq!(
                sa.open(&mut bad, ESP, end, low.into(), true),
                Err(CryptoFailure),
                "{algorithm:?} at {at}"
            );
        }
    }
}

// RFC 4303 §2.2.1: the high half of ESN is authenticated, although it is not sent.
#[test]
fn a_wrong_high_half_is_refused() {
    for algorithm in Algorithm::ALL {
        let sa = transform(algorithm);
        let (mut sealed, end) = packet(algorithm, 7, 2);
        sa.seal(&mut sealed, ESP, end, 7, true).expect("seal");
        assert_eq!(
            sa.open(&mut sealed, ESP, end, 7 | 1 << 32, true),
            Err(CryptoFailure),
            "{algorithm:?}"
        );
    }
}

#[test]
fn short_buffers_are_refused() {
    for algorithm in Algorithm::ALL {
        let sa = transform(algorithm);
        let (mut buf, end) = packet(algorithm, 1, 1);
        buf.pop();
        assert_eq!(sa.seal(&mut buf, ESP, end, 1, false), Err(CryptoFailure), "{algorithm:?}");
        assert_eq!(sa.open(&mut buf, ESP, end, 1, false), Err(CryptoFailure), "{algorithm:?}");
        assert_eq!(sa.open(&mut buf, ESP, ESP + 4, 1, false), Err(CryptoFailure), "{algorithm:?}");
    }
}

#[test]
fn keys_of_a_wrong_length_are_refused_and_never_shown() {
    let keys = Keys::new(vec![0xee; 16], Vec::new());
    let error = Transform::new(Algorithm::AesGcm128, &keys).expect_err("no salt");
    assert_eq!(error, KeyError::Encryption { want: 20, have: 16 });
    assert_eq!(format!("{keys:?}"), "Keys(..)");
    assert_eq!(format!("{:?}", transform(Algorithm::AesGcm128)), "Transform(AesGcm128)");
}

//! An AEAD and its salt. AES-GCM uses libIPSec_MB if the build includes it and the CPU supports it: a short packet
//! takes about a third of the time of aws-lc-rs. All other AEADs use aws-lc-rs.

use aws_lc_rs::aead::{Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::{CryptoFailure, KeyError};

/// Bytes of the salt, the last bytes of the key (RFC 4106 §8.1, RFC 7634 §2).
const SALT: usize = 4;
/// Bytes of the ICV.
pub(super) const TAG: usize = 16;

enum Engine {
    AwsLc(LessSafeKey),
    #[cfg(all(feature = "multi-buffer", target_arch = "x86_64"))]
    MultiBuffer(ipsec_mb::AesGcm),
}

impl Engine {
    /// Returns the engine for AES-GCM: libIPSec_MB if the CPU supports it, otherwise aws-lc-rs.
    #[cfg(all(feature = "multi-buffer", target_arch = "x86_64"))]
    fn gcm(kind: &'static Algorithm, key: &[u8]) -> Result<Engine, KeyError> {
        match ipsec_mb::AesGcm::new(key) {
            Some(key) => Ok(Engine::MultiBuffer(key)),
            None => Engine::aws_lc(kind, key),
        }
    }

    #[cfg(not(all(feature = "multi-buffer", target_arch = "x86_64")))]
    fn gcm(kind: &'static Algorithm, key: &[u8]) -> Result<Engine, KeyError> {
        Engine::aws_lc(kind, key)
    }

    fn aws_lc(kind: &'static Algorithm, key: &[u8]) -> Result<Engine, KeyError> {
        let key = UnboundKey::new(kind, key).map_err(|_| KeyError::Library)?;
        Ok(Engine::AwsLc(LessSafeKey::new(key)))
    }
}

/// Returns the name of the library that implements AES-GCM on this CPU, with its version if known.
pub fn gcm_library() -> String {
    #[cfg(all(feature = "multi-buffer", target_arch = "x86_64"))]
    if let Some(version) = ipsec_mb::version() {
        return format!("libIPSec_MB {version}");
    }
    "aws-lc-rs".to_owned()
}

/// The key of an AEAD, with its salt.
pub(super) struct Aead {
    engine: Engine,
    salt: Zeroizing<[u8; SALT]>,
}

impl Aead {
    /// Returns AES-GCM with `key`: the AES key, then the salt.
    pub(super) fn gcm(kind: &'static Algorithm, key: &[u8]) -> Result<Aead, KeyError> {
        Aead::with_engine(key, |key| Engine::gcm(kind, key))
    }

    /// Returns an AEAD of aws-lc-rs with `key`: the AEAD's key, then the salt.
    pub(super) fn aws_lc(kind: &'static Algorithm, key: &[u8]) -> Result<Aead, KeyError> {
        Aead::with_engine(key, |key| Engine::aws_lc(kind, key))
    }

    fn with_engine(
        key: &[u8],
        engine: impl FnOnce(&[u8]) -> Result<Engine, KeyError>,
    ) -> Result<Aead, KeyError> {
        let (key, salt) = key.split_last_chunk::<SALT>().ok_or(KeyError::Library)?;
        Ok(Aead { engine: engine(key)?, salt: Zeroizing::new(*salt) })
    }

    /// Returns the nonce (RFC 4106 §4): salt, then the IV of the packet.
    #[inline]
    fn nonce(&self, iv: [u8; 8]) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..SALT].copy_from_slice(&*self.salt);
        nonce[SALT..].copy_from_slice(&iv);
        nonce
    }

    /// Encrypts in place and returns the ICV.
    #[inline]
    pub(super) fn seal(
        &self,
        iv: [u8; 8],
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; TAG], CryptoFailure> {
        let nonce = self.nonce(iv);
        match &self.engine {
            #[cfg(all(feature = "multi-buffer", target_arch = "x86_64"))]
            Engine::MultiBuffer(key) => Ok(key.seal(&nonce, aad, data)),
            Engine::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key
                    .seal_in_place_separate_tag(nonce, Aad::from(aad), data)
                    .map_err(|_| CryptoFailure)?;
                tag.as_ref().try_into().map_err(|_| CryptoFailure)
            }
        }
    }

    /// Verifies the ICV at the end of `data`, and decrypts the bytes before it. After a failure `data` contains no
    /// plaintext.
    #[inline]
    pub(super) fn open(
        &self,
        iv: [u8; 8],
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<(), CryptoFailure> {
        let nonce = self.nonce(iv);
        match &self.engine {
            #[cfg(all(feature = "multi-buffer", target_arch = "x86_64"))]
            Engine::MultiBuffer(key) => {
                let (data, tag) = data.split_last_chunk_mut::<TAG>().ok_or(CryptoFailure)?;
                let wanted = key.open(&nonce, aad, data);
                aws_lc_rs::constant_time::verify_slices_are_equal(&wanted, tag).map_err(|_| {
                    data.fill(0);
                    CryptoFailure
                })
            }
            Engine::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, Aad::from(aad), data)
                    .map(|_| ())
                    .map_err(|_| CryptoFailure)
            }
        }
    }
}

#[cfg(all(test, feature = "multi-buffer", target_arch = "x86_64"))]
mod tests {
    use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Both libraries seal every packet identically. Each opens packets sealed by the other, and refuses them
        /// if a bit differs.
        #[test]
        fn both_gcm_libraries_agree(
            long in any::<bool>(),
            key in any::<[u8; 36]>(),
            iv in any::<[u8; 8]>(),
            aad in prop::collection::vec(any::<u8>(), 0..=2100),
            data in prop::collection::vec(any::<u8>(), 0..=2100),
            flip in any::<prop::sample::Index>(),
        ) {
            let (kind, key) = match long {
                true => (&AES_256_GCM, &key[..]),
                false => (&AES_128_GCM, &key[..20]),
            };
            let (fast, plain) = (Aead::gcm(kind, key).unwrap(), Aead::aws_lc(kind, key).unwrap());
            prop_assert!(matches!(fast.engine, Engine::MultiBuffer(_)), "this CPU has no AES");
            prop_assert!(gcm_library().starts_with("libIPSec_MB "), "{}", gcm_library());
            let [one, other] = [&fast, &plain].map(|aead| {
                let mut sealed = data.clone();
                let tag = aead.seal(iv, &aad, &mut sealed).unwrap();
                sealed.extend(tag);
                sealed
            });
            prop_assert_eq!(&one, &other);
            for aead in [&fast, &plain] {
                let mut opened = one.clone();
                prop_assert_eq!(aead.open(iv, &aad, &mut opened), Ok(()));
                prop_assert_eq!(&opened[..data.len()], &data[..]);
                let mut bad = one.clone();
                let bit = flip.index(8 * bad.len());
                bad[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(aead.open(iv, &aad, &mut bad), Err(CryptoFailure));
            }
            let mut bad = one.clone();
            *bad.last_mut().unwrap() ^= 1;
            prop_assert_eq!(fast.open(iv, &aad, &mut bad), Err(CryptoFailure));
            prop_assert!(bad[..data.len()].iter().all(|&byte| byte == 0), "plaintext of a forged packet remains");
        }
    }
}

//! Algorithms by their kernel names, and their keys.

use ipsec::crypto::{Algorithm, Keys};
use zeroize::Zeroizing;

use crate::message::{Algo, Attributes};

/// Keys of an SA, kept longer than a [`Keys`] because the data plane needs them again when the SA is replaced. Wiped
/// when they are freed.
#[derive(PartialEq, Eq)]
pub(crate) struct Secret {
    encryption: Zeroizing<Vec<u8>>,
    authentication: Zeroizing<Vec<u8>>,
}

impl Secret {
    pub(crate) fn keys(&self) -> Keys {
        Keys::new(self.encryption.to_vec(), self.authentication.to_vec())
    }
}

/// Algorithm and keys of an SA.
#[derive(PartialEq, Eq)]
pub(crate) struct Suite {
    pub(crate) algorithm: Algorithm,
    pub(crate) secret: Secret,
}

/// Returns the algorithms' names for operators, supported or not, such as `rfc4106(gcm(aes))` and
/// `cbc(aes)+hmac(sha256)`.
pub(crate) fn algorithm_name(attributes: &Attributes) -> String {
    let Attributes { aead, encryption, authentication, .. } = attributes;
    let names = [aead, encryption, authentication].into_iter().flatten().map(|a| a.name.as_str());
    names.collect::<Vec<_>>().join("+")
}

/// Returns true for an SA without any algorithm: its negotiation is in progress.
pub(crate) fn has_no_algorithm(attributes: &Attributes) -> bool {
    let Attributes { aead, encryption, authentication, .. } = attributes;
    aead.is_none() && encryption.is_none() && authentication.is_none()
}

/// Returns the algorithm and the keys of an SA. Moves the keys out of `attributes`.
///
/// # Errors
/// The reason why the SA is refused.
pub(crate) fn read_suite(attributes: &mut Attributes) -> Result<Suite, String> {
    let Attributes { aead, encryption, authentication, .. } = attributes;
    let (algorithm, secret) = match (aead.take(), encryption.take(), authentication.take()) {
        (Some(aead), None, None) => (
            aead_algorithm(&aead)?,
            Secret { encryption: aead.key, authentication: Vec::new().into() },
        ),
        (None, Some(cipher), Some(mac)) => (
            cipher_mac_algorithm(&cipher, &mac)?,
            Secret { encryption: cipher.key, authentication: mac.key },
        ),
        _ => return Err("encryption needs authentication (RFC 8221 §4)".into()),
    };
    // A locked-down kernel (lockdown=confidentiality) shows zeros instead of keys to everyone.
    let Secret { encryption, authentication } = &secret;
    let is_zero = |key: &[u8]| !key.is_empty() && key.iter().all(|byte| *byte == 0);
    if is_zero(encryption) || is_zero(authentication) {
        return Err("its key is all zero: a kernel in lockdown does not show keys".into());
    }
    Ok(Suite { algorithm, secret })
}

fn aead_algorithm(aead: &Algo) -> Result<Algorithm, String> {
    let algorithm = match (aead.name.as_str(), aead.key.len()) {
        ("rfc4106(gcm(aes))", 20) => Algorithm::AesGcm128,
        ("rfc4106(gcm(aes))", 36) => Algorithm::AesGcm256,
        ("rfc4543(gcm(aes))", 20) => Algorithm::AesGmac128,
        ("rfc4543(gcm(aes))", 36) => Algorithm::AesGmac256,
        ("rfc7539esp(chacha20,poly1305)", 36) => Algorithm::ChaCha20Poly1305,
        (name, bytes) => {
            return Err(format!("algorithm {name} with a key of {bytes} bytes is not supported"));
        }
    };
    match aead.icv_bits {
        128 => Ok(algorithm),
        bits => Err(format!("{} with an ICV of {bits} bits is not supported, only 128", aead.name)),
    }
}

fn cipher_mac_algorithm(cipher: &Algo, mac: &Algo) -> Result<Algorithm, String> {
    let sha256 = match (mac.name.as_str(), mac.icv_bits, mac.key.len()) {
        ("hmac(sha256)" | "sha256", 128, 32) => true,
        ("hmac(sha1)" | "sha1", 96, 20) => false,
        (name, bits, bytes) => {
            let what = format!("{name} with {bits} bits and a key of {bytes} bytes");
            return Err(format!("authentication {what} is not supported"));
        }
    };
    Ok(match (cipher.name.as_str(), cipher.key.len(), sha256) {
        ("cbc(aes)" | "aes", 16, true) => Algorithm::AesCbc128HmacSha256,
        ("cbc(aes)" | "aes", 16, false) => Algorithm::AesCbc128HmacSha1,
        ("cbc(aes)" | "aes", 32, true) => Algorithm::AesCbc256HmacSha256,
        ("cbc(aes)" | "aes", 32, false) => Algorithm::AesCbc256HmacSha1,
        ("ecb(cipher_null)" | "cipher_null", 0, true) => Algorithm::NullHmacSha256,
        ("ecb(cipher_null)" | "cipher_null", 0, false) => Algorithm::NullHmacSha1,
        (name, bytes, _) => {
            return Err(format!("encryption {name} with a key of {bytes} bytes is not supported"));
        }
    })
}

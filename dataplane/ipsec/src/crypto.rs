//! Interface to cryptography: a [`Transform`] encrypts and authenticates one ESP packet in place, or verifies and
//! decrypts it.
//!
//! AES-GCM uses libIPSec_MB if the build includes it and the CPU supports it, otherwise aws-lc-rs. The other AEADs and
//! HMAC use aws-lc-rs. CBC uses RustCrypto, because aws-lc-rs has no in-place CBC without its own padding. Keys are
//! wiped on drop with all three libraries. No memory is allocated after [`Transform::new`].
//!
//! Layout of a packet (RFC 4303 §2). `esp` and `end` are offsets in the buffer that a call receives:
//!
//! ```text
//!   before  | SPI | seq | IV | payload, padding, pad length, next header | ICV
//!           ^esp                                                         ^end
//! ```
//!
//! At least four bytes, usually of an IP header, must precede `esp`. GMAC with ESN overwrites them temporarily.

mod aead;

use aes::cipher::{
    BlockDecryptMut as _, BlockEncrypt as _, BlockEncryptMut as _, InnerIvInit as _, KeyInit as _,
};
use aes::{Aes128, Aes256, Block};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305};
use aws_lc_rs::{constant_time, digest, hmac};
use zeroize::Zeroizing;

use self::aead::Aead;
pub use self::aead::gcm_library;

/// Bytes of SPI and sequence number.
pub const ESP_HEADER: usize = 8;

/// Cipher and integrity algorithm of an SA: the algorithms of RFC 8221 that this crate implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// AES-GCM with a 16-byte ICV, 128-bit key (RFC 4106).
    AesGcm128,
    /// AES-GCM with a 16-byte ICV, 256-bit key (RFC 4106).
    AesGcm256,
    /// ChaCha20-Poly1305 (RFC 7634).
    ChaCha20Poly1305,
    /// AES-GMAC, 128-bit key: integrity without confidentiality (RFC 4543).
    AesGmac128,
    /// AES-GMAC, 256-bit key (RFC 4543).
    AesGmac256,
    /// AES-CBC, 128-bit key (RFC 3602), with HMAC-SHA-256-128 (RFC 4868).
    AesCbc128HmacSha256,
    /// AES-CBC, 256-bit key (RFC 3602), with HMAC-SHA-256-128 (RFC 4868).
    AesCbc256HmacSha256,
    /// AES-CBC, 128-bit key, with HMAC-SHA-1-96 (RFC 2404). Legacy; mandatory in RFC 7146.
    AesCbc128HmacSha1,
    /// AES-CBC, 256-bit key, with HMAC-SHA-1-96 (RFC 2404). Legacy.
    AesCbc256HmacSha1,
    /// NULL (RFC 2410) with HMAC-SHA-256-128.
    NullHmacSha256,
    /// NULL (RFC 2410) with HMAC-SHA-1-96. Legacy.
    NullHmacSha1,
}

impl Algorithm {
    /// Every algorithm, for tables and tests.
    pub const ALL: [Self; 11] = [
        Self::AesGcm128,
        Self::AesGcm256,
        Self::ChaCha20Poly1305,
        Self::AesGmac128,
        Self::AesGmac256,
        Self::AesCbc128HmacSha256,
        Self::AesCbc256HmacSha256,
        Self::AesCbc128HmacSha1,
        Self::AesCbc256HmacSha1,
        Self::NullHmacSha256,
        Self::NullHmacSha1,
    ];

    /// Returns the length of the IV in each packet, bytes.
    pub const fn iv_len(self) -> usize {
        match self {
            Self::NullHmacSha256 | Self::NullHmacSha1 => 0,
            _ if self.is_cbc() => 16, // RFC 3602 §3
            _ => 8,                   // RFC 4106 §3.1, RFC 4543 §3.1, RFC 7634 §2
        }
    }

    /// Returns the length of the ICV, bytes.
    pub const fn icv_len(self) -> usize {
        match self {
            Self::AesCbc128HmacSha1 | Self::AesCbc256HmacSha1 | Self::NullHmacSha1 => 12, // RFC 2404 §2
            _ => 16,
        }
    }

    /// Returns the alignment of payload and trailer in bytes: 4 (RFC 4303 §2.4) or the cipher's block size.
    pub const fn block(self) -> usize {
        if self.is_cbc() { 16 } else { 4 }
    }

    /// Returns the length of the encryption key in bytes. For AEADs and GMAC the length includes the 4-byte salt
    /// after the key (RFC 4106 §8.1), as in XFRM.
    pub const fn key_len(self) -> usize {
        match self {
            Self::AesGcm128 | Self::AesGmac128 => 20,
            Self::AesGcm256 | Self::AesGmac256 | Self::ChaCha20Poly1305 => 36,
            Self::AesCbc128HmacSha256 | Self::AesCbc128HmacSha1 => 16,
            Self::AesCbc256HmacSha256 | Self::AesCbc256HmacSha1 => 32,
            Self::NullHmacSha256 | Self::NullHmacSha1 => 0,
        }
    }

    /// Returns the length of the HMAC key, bytes (RFC 4868 §2.1.1, RFC 2404 §3); 0 without HMAC.
    pub const fn auth_key_len(self) -> usize {
        match self {
            Self::AesCbc128HmacSha256 | Self::AesCbc256HmacSha256 | Self::NullHmacSha256 => 32,
            Self::AesCbc128HmacSha1 | Self::AesCbc256HmacSha1 | Self::NullHmacSha1 => 20,
            _ => 0,
        }
    }

    /// Returns the key length of the encryption in bits; 0 if the payload is sent in clear.
    pub const fn confidentiality_bits(self) -> u16 {
        match self {
            Self::AesGmac128 | Self::AesGmac256 | Self::NullHmacSha256 | Self::NullHmacSha1 => 0,
            Self::AesGcm128 | Self::AesCbc128HmacSha256 | Self::AesCbc128HmacSha1 => 128,
            _ => 256,
        }
    }

    /// Returns true for HMAC-SHA-1, which RFC 8221 §6 retains only for compatibility.
    pub const fn is_legacy(self) -> bool {
        self.icv_len() == 12
    }

    /// Returns true if a repeated sequence number under one key breaks the cipher (RFC 4106 §2).
    pub const fn nonce_is_sequence(self) -> bool {
        self.auth_key_len() == 0
    }

    const fn is_cbc(self) -> bool {
        matches!(
            self,
            Self::AesCbc128HmacSha256
                | Self::AesCbc256HmacSha256
                | Self::AesCbc128HmacSha1
                | Self::AesCbc256HmacSha1
        )
    }
}

/// The keys of one SA. Wiped on drop; `Debug` does not show them.
pub struct Keys {
    encryption: Zeroizing<Vec<u8>>,
    authentication: Zeroizing<Vec<u8>>,
}

impl Keys {
    /// Stores both keys. [`Transform::new`] checks their lengths. `authentication` is empty for AEADs and GMAC,
    /// `encryption` for NULL.
    pub fn new(encryption: Vec<u8>, authentication: Vec<u8>) -> Self {
        Self {
            encryption: Zeroizing::new(encryption),
            authentication: Zeroizing::new(authentication),
        }
    }
}

impl Keys {
    /// Returns a digest by which equal keys can be recognized after they are wiped. The digest discloses nothing else
    /// about them.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut context = digest::Context::new(&digest::SHA256);
        for key in [&self.encryption, &self.authentication] {
            context.update(&(key.len() as u64).to_be_bytes());
            context.update(key);
        }
        let mut out = [0; digest::SHA256_OUTPUT_LEN];
        out.copy_from_slice(context.finish().as_ref());
        Fingerprint(out)
    }
}

/// SHA-256 digest that identifies keys: see [`Keys::fingerprint`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; digest::SHA256_OUTPUT_LEN]);

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// A key of the wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Encryption key: bytes required and given.
    #[error("the encryption key (with its salt) must be {want} bytes long, it has {have}")]
    Encryption {
        /// Bytes that the algorithm requires.
        want: usize,
        /// Bytes of the given key.
        have: usize,
    },
    /// HMAC key: bytes required and given.
    #[error("the authentication key must be {want} bytes long, it has {have}")]
    Authentication {
        /// Bytes that the algorithm requires.
        want: usize,
        /// Bytes of the given key.
        have: usize,
    },
    /// The library refused the key.
    #[error("the cryptographic library refused the key")]
    Library,
}

/// The ICV is wrong, the offsets exceed the buffer, or the library refused the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CryptoFailure;

enum CbcKey {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
}

enum Cipher {
    Aead(Aead),
    Gmac(Aead),
    Cbc { key: CbcKey, iv_key: Box<Aes128>, mac: hmac::Key },
    Null { mac: hmac::Key },
}

/// The keyed algorithm of one SA.
pub struct Transform {
    algorithm: Algorithm,
    cipher: Cipher,
}

impl std::fmt::Debug for Transform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transform({:?})", self.algorithm)
    }
}

impl Transform {
    /// Expands the keys. Fails if a key has the wrong length or the library refuses it.
    pub fn new(algorithm: Algorithm, keys: &Keys) -> Result<Self, KeyError> {
        let (want, have) = (algorithm.key_len(), keys.encryption.len());
        if want != have {
            return Err(KeyError::Encryption { want, have });
        }
        let (want, have) = (algorithm.auth_key_len(), keys.authentication.len());
        if want != have {
            return Err(KeyError::Authentication { want, have });
        }
        let mac = |keys: &Keys| {
            let kind = if algorithm.is_legacy() {
                hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY
            } else {
                hmac::HMAC_SHA256
            };
            hmac::Key::new(kind, &keys.authentication)
        };
        let key = &keys.encryption;
        let cipher = match algorithm {
            Algorithm::AesGcm128 => Cipher::Aead(Aead::gcm(&AES_128_GCM, key)?),
            Algorithm::AesGcm256 => Cipher::Aead(Aead::gcm(&AES_256_GCM, key)?),
            Algorithm::ChaCha20Poly1305 => Cipher::Aead(Aead::aws_lc(&CHACHA20_POLY1305, key)?),
            Algorithm::AesGmac128 => Cipher::Gmac(Aead::gcm(&AES_128_GCM, key)?),
            Algorithm::AesGmac256 => Cipher::Gmac(Aead::gcm(&AES_256_GCM, key)?),
            Algorithm::NullHmacSha256 | Algorithm::NullHmacSha1 => Cipher::Null { mac: mac(keys) },
            _ => Cipher::Cbc {
                key: CbcKey::new(&keys.encryption)?,
                iv_key: iv_key(keys)?,
                mac: mac(keys),
            },
        };
        Ok(Self { algorithm, cipher })
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Writes the IV, encrypts the packet and writes the ICV. SPI, low half of the sequence number, payload and trailer
    /// must be in the buffer already.
    pub fn seal(
        &self,
        buf: &mut [u8],
        esp: usize,
        end: usize,
        seq: u64,
        esn: bool,
    ) -> Result<(), CryptoFailure> {
        let body = esp + ESP_HEADER + self.algorithm.iv_len();
        let icv = self.algorithm.icv_len();
        if esp < 4 || body > end || end + icv > buf.len() {
            return Err(CryptoFailure);
        }
        match &self.cipher {
            Cipher::Aead(aead) => {
                // RFC 4106 §3.1: the IV must not repeat under a key. The 64-bit sequence number never repeats.
                let iv = seq.to_be_bytes();
                buf[esp + ESP_HEADER..body].copy_from_slice(&iv);
                let (aad, len) = header_aad(buf, esp, seq, esn);
                let tag = aead.seal(iv, &aad[..len], &mut buf[body..end])?;
                buf[end..end + icv].copy_from_slice(&tag);
            }
            Cipher::Gmac(aead) => {
                let iv = seq.to_be_bytes();
                buf[esp + ESP_HEADER..body].copy_from_slice(&iv);
                let tag =
                    call_with_gmac_aad(buf, esp, end, seq, esn, |aad| aead.seal(iv, aad, &mut []))?;
                buf[end..end + icv].copy_from_slice(&tag);
            }
            Cipher::Cbc { key, iv_key, mac } => {
                // RFC 3602 §3: the IV must be unpredictable. The IV is the sequence number, encrypted with a separate
                // key.
                let mut iv = Block::default();
                iv[8..].copy_from_slice(&seq.to_be_bytes());
                iv_key.encrypt_block(&mut iv);
                buf[esp + 8..body].copy_from_slice(&iv);
                key.encrypt(&iv, &mut buf[body..end])?;
                let tag = compute_hmac(mac, &buf[esp..end], seq, esn);
                buf[end..end + icv].copy_from_slice(&tag.as_ref()[..icv]);
            }
            Cipher::Null { mac } => {
                let tag = compute_hmac(mac, &buf[esp..end], seq, esn);
                buf[end..end + icv].copy_from_slice(&tag.as_ref()[..icv]);
            }
        }
        Ok(())
    }

    /// Verifies the ICV, then decrypts the packet (an AEAD does both in one call). After a failure the payload's bytes
    /// are undefined.
    pub fn open(
        &self,
        buf: &mut [u8],
        esp: usize,
        end: usize,
        seq: u64,
        esn: bool,
    ) -> Result<(), CryptoFailure> {
        let body = esp + ESP_HEADER + self.algorithm.iv_len();
        let icv = self.algorithm.icv_len();
        if esp < 4 || body > end || end + icv > buf.len() {
            return Err(CryptoFailure);
        }
        match &self.cipher {
            Cipher::Aead(aead) => {
                let iv = iv(buf, esp)?;
                let (aad, len) = header_aad(buf, esp, seq, esn);
                aead.open(iv, &aad[..len], &mut buf[body..end + icv])
            }
            Cipher::Gmac(aead) => {
                let iv = iv(buf, esp)?;
                let mut tag = [0; aead::TAG];
                tag.copy_from_slice(&buf[end..end + icv]);
                call_with_gmac_aad(buf, esp, end, seq, esn, |aad| aead.open(iv, aad, &mut tag))
            }
            Cipher::Cbc { key, mac, .. } => {
                verify(mac, buf, esp, end, icv, seq, esn)?;
                let iv = *Block::from_slice(&buf[esp + 8..body]);
                key.decrypt(&iv, &mut buf[body..end])
            }
            Cipher::Null { mac } => verify(mac, buf, esp, end, icv, seq, esn),
        }
    }
}

impl CbcKey {
    fn new(key: &[u8]) -> Result<Self, KeyError> {
        Ok(if key.len() == 16 {
            Self::Aes128(Box::new(Aes128::new_from_slice(key).map_err(|_| KeyError::Library)?))
        } else {
            Self::Aes256(Box::new(Aes256::new_from_slice(key).map_err(|_| KeyError::Library)?))
        })
    }

    fn encrypt(&self, iv: &Block, data: &mut [u8]) -> Result<(), CryptoFailure> {
        use aes::cipher::block_padding::NoPadding;
        let len = data.len();
        match self {
            Self::Aes128(key) => {
                cbc::Encryptor::inner_iv_init(&**key, iv).encrypt_padded_mut::<NoPadding>(data, len)
            }
            Self::Aes256(key) => {
                cbc::Encryptor::inner_iv_init(&**key, iv).encrypt_padded_mut::<NoPadding>(data, len)
            }
        }
        .map(|_| ())
        .map_err(|_| CryptoFailure)
    }

    fn decrypt(&self, iv: &Block, data: &mut [u8]) -> Result<(), CryptoFailure> {
        use aes::cipher::block_padding::NoPadding;
        match self {
            Self::Aes128(key) => cbc::Decryptor::inner_iv_init(&**key, iv)
                .decrypt_padded_mut::<NoPadding>(data)
                .is_ok(),
            Self::Aes256(key) => cbc::Decryptor::inner_iv_init(&**key, iv)
                .decrypt_padded_mut::<NoPadding>(data)
                .is_ok(),
        }
        .then_some(())
        .ok_or(CryptoFailure)
    }
}

/// Derives a key that encrypts only IVs. No chosen plaintext is ever encrypted with this key.
fn iv_key(keys: &Keys) -> Result<Box<Aes128>, KeyError> {
    let prf = hmac::Key::new(hmac::HMAC_SHA256, &keys.encryption);
    let tag = hmac::sign(&prf, b"esp cbc iv");
    let mut key = Zeroizing::new([0; 16]);
    key.copy_from_slice(&tag.as_ref()[..16]);
    Ok(Box::new(Aes128::new_from_slice(&*key).map_err(|_| KeyError::Library)?))
}

/// Returns the 8-byte IV of an AEAD or GMAC packet.
fn iv(buf: &[u8], esp: usize) -> Result<[u8; 8], CryptoFailure> {
    buf.get(esp + ESP_HEADER..).and_then(|rest| rest.first_chunk()).copied().ok_or(CryptoFailure)
}

/// Returns the AAD (RFC 4106 §5) and its length: SPI and sequence number, 8 bytes, or 12 with ESN.
fn header_aad(buf: &[u8], esp: usize, seq: u64, esn: bool) -> ([u8; 12], usize) {
    let mut aad = [0; 12];
    aad[..4].copy_from_slice(&buf[esp..esp + 4]);
    if esn {
        aad[4..].copy_from_slice(&seq.to_be_bytes());
        (aad, 12)
    } else {
        aad[4..8].copy_from_slice(&buf[esp + 4..esp + 8]);
        (aad, 8)
    }
}

/// Calls `call` with the AAD of GMAC (RFC 4543 §3.3): SPI, sequence number, IV and payload. With ESN, the high half of
/// the sequence number must be between the SPI and the low half. During the call the SPI is therefore four bytes before
/// its place, which holds the high half. Afterwards all eight bytes are restored.
fn call_with_gmac_aad<T>(
    buf: &mut [u8],
    esp: usize,
    end: usize,
    seq: u64,
    esn: bool,
    call: impl FnOnce(&[u8]) -> T,
) -> T {
    if !esn {
        return call(&buf[esp..end]);
    }
    let mut saved = [0; 8];
    saved.copy_from_slice(&buf[esp - 4..esp + 4]);
    buf.copy_within(esp..esp + 4, esp - 4);
    buf[esp..esp + 4].copy_from_slice(&((seq >> 32) as u32).to_be_bytes());
    let out = call(&buf[esp - 4..end]);
    buf[esp - 4..esp + 4].copy_from_slice(&saved);
    out
}

/// Computes the HMAC. With ESN, the sequence number's high half follows the sent bytes (RFC 4303 §2.2.1, §3.3.2.1).
fn compute_hmac(mac: &hmac::Key, data: &[u8], seq: u64, esn: bool) -> hmac::Tag {
    let mut context = hmac::Context::with_key(mac);
    context.update(data);
    if esn {
        context.update(&((seq >> 32) as u32).to_be_bytes());
    }
    context.sign()
}

fn verify(
    mac: &hmac::Key,
    buf: &[u8],
    esp: usize,
    end: usize,
    icv: usize,
    seq: u64,
    esn: bool,
) -> Result<(), CryptoFailure> {
    let tag = compute_hmac(mac, &buf[esp..end], seq, esn);
    constant_time::verify_slices_are_equal(&tag.as_ref()[..icv], &buf[end..end + icv])
        .map_err(|_| CryptoFailure)
}

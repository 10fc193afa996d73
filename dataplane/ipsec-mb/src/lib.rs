//! AES-GCM by libIPSec_MB (Intel's Multi-Buffer Crypto for IPsec library), on which libdpdk depends on x86-64. This
//! crate uses the library's direct interface: each call processes one packet, synchronously.
//!
//! For a short packet the library takes about a third of the time of other libraries (docs/performance.md). No memory
//! is allocated after [`AesGcm::new`].

#![cfg(target_arch = "x86_64")]

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(dead_code, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::OnceLock;

use zeroize::Zeroize as _;

use self::bindings::{IMB_MGR, aes_gcm_enc_dec_t, aes_gcm_pre_t, gcm_context_data, gcm_key_data};

/// Length of a nonce, bytes.
pub const NONCE: usize = 12;
/// Length of a tag, bytes.
pub const TAG: usize = 16;

/// The library's function that expands a key: `(key, expanded key)`.
type PrepareFn = unsafe extern "C" fn(*const std::ffi::c_void, *mut gcm_key_data);
/// The library's function that encrypts or decrypts a packet: `(key, context, output, input, length, nonce, AAD, AAD
/// length, tag, tag length)`, lengths in bytes.
type CryptFn = unsafe extern "C" fn(
    *const gcm_key_data,
    *mut gcm_context_data,
    *mut u8,
    *const u8,
    u64,
    *const u8,
    *const u8,
    u64,
    *mut u8,
    u64,
);

/// Functions that the library selected for this CPU, for one key length.
#[derive(Clone, Copy)]
struct Functions {
    prepare: PrepareFn,
    seal: CryptFn,
    open: CryptFn,
}

impl Functions {
    fn new(
        prepare: aes_gcm_pre_t,
        seal: aes_gcm_enc_dec_t,
        open: aes_gcm_enc_dec_t,
    ) -> Option<Self> {
        Some(Functions { prepare: prepare?, seal: seal?, open: open? })
    }
}

/// Returns the functions for keys of 128 and of 256 bits; `None` if the CPU lacks AES-NI or carry-less
/// multiplication.
fn library() -> Option<&'static [Functions; 2]> {
    static LIBRARY: OnceLock<Option<[Functions; 2]>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref()
}

fn load() -> Option<[Functions; 2]> {
    // SAFETY: the argument is a set of flags, and none is set.
    let manager = NonNull::new(unsafe { bindings::alloc_mb_mgr(0) })?;
    // SAFETY: the manager was allocated by the library; the second argument may be null.
    unsafe { bindings::init_mb_mgr_auto(manager.as_ptr(), std::ptr::null_mut()) };
    // SAFETY: the manager is initialised, and no other reference to it exists.
    let functions = functions(unsafe { manager.as_ref() });
    // SAFETY: the manager was allocated by the library and is not used any more. The function pointers refer to
    // the library's code, not to the manager.
    unsafe { bindings::free_mb_mgr(manager.as_ptr()) };
    functions
}

fn functions(manager: &IMB_MGR) -> Option<[Functions; 2]> {
    let needed = u64::from(bindings::IMB_FEATURE_AESNI | bindings::IMB_FEATURE_PCLMULQDQ);
    if manager.features & needed != needed {
        return None;
    }
    Some([
        Functions::new(manager.gcm128_pre, manager.gcm128_enc, manager.gcm128_dec)?,
        Functions::new(manager.gcm256_pre, manager.gcm256_enc, manager.gcm256_dec)?,
    ])
}

/// Returns the library's version string; `None` if the CPU lacks AES-NI or carry-less multiplication.
pub fn version() -> Option<String> {
    library()?;
    // SAFETY: the function has no arguments and returns a static string.
    let text = unsafe { CStr::from_ptr(bindings::imb_get_version_str()) };
    Some(text.to_string_lossy().into_owned())
}

/// An expanded key of AES-GCM. Wiped on drop.
pub struct AesGcm {
    key: Box<gcm_key_data>,
    seal: CryptFn,
    open: CryptFn,
}

impl std::fmt::Debug for AesGcm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AesGcm(..)")
    }
}

impl AesGcm {
    /// Expands a key of 16 or 32 bytes. Returns `None` for other lengths, and if the CPU lacks AES-NI or carry-less
    /// multiplication.
    pub fn new(key: &[u8]) -> Option<AesGcm> {
        let [short, long] = *library()?;
        let Functions { prepare, seal, open } = match key.len() {
            16 => short,
            32 => long,
            _ => return None,
        };
        // SAFETY: the type consists of byte arrays, for which zero is valid.
        let mut data: Box<gcm_key_data> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: the key has the length that the function reads, and `data` has the library's type, so it is aligned.
        unsafe { prepare(key.as_ptr().cast(), &mut *data) };
        Some(AesGcm { key: data, seal, open })
    }

    /// Encrypts `data` in place and returns the tag. A nonce must not be used twice with one key (RFC 5116 §3.1).
    #[inline]
    pub fn seal(&self, nonce: &[u8; NONCE], aad: &[u8], data: &mut [u8]) -> [u8; TAG] {
        self.run(self.seal, nonce, aad, data)
    }

    /// Decrypts `data` in place and returns the computed tag. The caller compares it in constant time and
    /// discards `data` if the tags differ.
    #[inline]
    #[must_use]
    pub fn open(&self, nonce: &[u8; NONCE], aad: &[u8], data: &mut [u8]) -> [u8; TAG] {
        self.run(self.open, nonce, aad, data)
    }

    #[inline]
    fn run(&self, call: CryptFn, nonce: &[u8; NONCE], aad: &[u8], data: &mut [u8]) -> [u8; TAG] {
        let mut context = Context([0; 16]);
        let mut tag = [0; TAG];
        let (bytes, len) = (data.as_mut_ptr(), data.len() as u64);
        // SAFETY: every pointer is valid for its length. The context is at least as large and aligned as the library's
        // type. The library permits output and input to be the same buffer.
        unsafe {
            call(
                &*self.key,
                (&raw mut context).cast(),
                bytes,
                bytes,
                len,
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len() as u64,
                tag.as_mut_ptr(),
                TAG as u64,
            );
        }
        // The context still holds key stream of the last block.
        context.0.zeroize();
        tag
    }
}

impl Drop for AesGcm {
    fn drop(&mut self) {
        let len = size_of::<gcm_key_data>();
        let data: *mut gcm_key_data = &mut *self.key;
        // SAFETY: the expanded key is ours and consists of bytes.
        unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), len) }.zeroize();
    }
}

/// Memory for the library's `gcm_context_data`. An array of `u64`, because `zeroize` wipes words faster than bytes.
#[repr(C, align(64))]
struct Context([u64; 16]);

const _: () = assert!(size_of::<gcm_context_data>() <= size_of::<Context>());
const _: () = assert!(align_of::<gcm_context_data>() <= align_of::<Context>());

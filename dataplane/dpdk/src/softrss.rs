//! Toeplitz's hash in software, as DPDK's library for devices has it.

use dpdk_sys as sys;

/// The hash that a device computes of an input of so many 32-bit words, each read in network byte order. `key`: 4 bytes more than
/// they have, at least.
///
/// # Panics
/// When the key is too short.
pub fn softrss(words: &[u32], key: &[u8]) -> u32 {
    assert!(key.len() >= 4 * (words.len() + 1), "a key of {} bytes is too short", key.len());
    // It reads whole words.
    let (mut words, mut aligned) = (words.to_vec(), vec![0u32; key.len().div_ceil(4)]);
    for (word, bytes) in aligned.iter_mut().zip(key.chunks(4)) {
        let mut whole = [0; 4];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u32::from_ne_bytes(whole);
    }
    // SAFETY: as many words as are passed; the key has a word more than they, and is aligned.
    unsafe { sys::ddpd_softrss(words.as_mut_ptr(), words.len() as u32, aligned.as_ptr().cast()) }
}

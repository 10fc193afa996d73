//! Toeplitz hash (RSS) in software, by DPDK's library. A reference for tests; workers use `dataplane::steering`.

use dpdk_sys as sys;

/// Returns the RSS hash that a device computes for a sequence of 32-bit words. `words` are in host byte order. `key`
/// must be at least 4 bytes longer than the words.
///
/// # Panics
/// If the key is too short.
pub fn softrss(words: &[u32], key: &[u8]) -> u32 {
    assert!(key.len() >= 4 * (words.len() + 1), "a key of {} bytes is too short", key.len());
    // The library reads the key as 32-bit words.
    let (mut words, mut aligned) = (words.to_vec(), vec![0u32; key.len().div_ceil(4)]);
    for (word, bytes) in aligned.iter_mut().zip(key.chunks(4)) {
        let mut whole = [0; 4];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u32::from_ne_bytes(whole);
    }
    // SAFETY: the count is the number of words, and the aligned key has at least one word more.
    unsafe { sys::ddpd_softrss(words.as_mut_ptr(), words.len() as u32, aligned.as_ptr().cast()) }
}

//! The exported C functions, by topic.
//!
//! Contract of C callers, for all functions: a pointer is NULL, or valid as the manual page of the function requires.
//! Pointers to ids, channels and events may also be freed or wrong: the functions look them up.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the contract of C callers is the manual page")]

pub mod addresses;
pub mod connections;
pub mod devices;
pub mod endpoints;
pub mod events;
pub mod ids;
pub mod queues;
pub mod rsockets;
pub mod unsupported;

use std::net::SocketAddr;

use ibverbs::errno::Result;

use crate::address::{self, LEN};
use crate::bindings::sockaddr;

/// Returns a socket address of the caller; `None` for NULL.
///
/// # Errors
/// `EAFNOSUPPORT`: neither IPv4 nor IPv6.
///
/// # Safety
/// The pointer is NULL, or valid for the size of its family's structure.
unsafe fn socket_address(from: *const sockaddr) -> Result<Option<SocketAddr>> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and at least as long as a family, as this function's `# Safety` section requires.
    let family = unsafe { from.cast::<u16>().read_unaligned() };
    let len = address::len_of(family)?;
    let mut raw = [0; LEN];
    // SAFETY: valid for the size of the family's structure, which is at most `LEN`.
    raw[..len].copy_from_slice(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) });
    address::decode(&raw).map(Some)
}

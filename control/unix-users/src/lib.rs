//! Unix users and groups: lookup of IDs by name through the system's name service (NSS: files, LDAP, ...), and
//! the supplementary groups of a Unix socket's peer (`SO_PEERGROUPS`). [`streams`] reports the standard streams
//! that were closed at the start.
//!
//! Contains all `unsafe` code of the control side, because the standard library and rustix lack these calls.
//! Callers decide on access rights.

pub mod streams;

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_char, c_int, c_void, gid_t, group, passwd, socklen_t, uid_t};

/// Maximum number of supplementary groups of a peer: the kernel's `NGROUPS_MAX`.
pub const MAX_GROUPS: usize = 65_536;

/// First buffer size, in groups: sufficient for most processes.
const INITIAL_GROUPS: usize = 32;

/// First and largest buffer size for an entry of the user or group database, in bytes. The entry of a group
/// can be long, because it lists the members.
const ENTRY_BUFFER: std::ops::RangeInclusive<usize> = 4096..=4 << 20;

/// The process at the other end of a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerProcess {
    /// Process ID in the PID namespace of this process; 0 if the process has none there, which rustix's type cannot
    /// represent.
    pub pid: i32,
    /// Effective user ID.
    pub uid: u32,
    /// Effective group ID.
    pub gid: u32,
}

/// Returns the process that connected a Unix socket (`SO_PEERCRED`).
///
/// # Errors
/// The errors of `getsockopt(SO_PEERCRED)`.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<PeerProcess> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as socklen_t;
    // SAFETY: `peer` and `len` are valid and borrowed only by this call. The kernel writes at most `len` bytes, the
    // size of `peer`. Any bytes are a valid `ucred`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast::<c_void>(),
            &mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerProcess { pid: peer.pid, uid: peer.uid, gid: peer.gid })
}

/// Returns the supplementary groups that the peer of a connected Unix socket had when it connected.
///
/// # Errors
/// The errors of `getsockopt(SO_PEERGROUPS)`; `InvalidData` for a peer with more than [`MAX_GROUPS`] groups.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<gid_t> = vec![0; INITIAL_GROUPS];
    loop {
        let capacity = size_of_val(groups.as_slice());
        let mut len = capacity as socklen_t;
        // SAFETY: `groups` and `len` are valid and borrowed only by this call. The kernel writes at most `len` bytes,
        // the size of `groups`. Any bytes are valid group IDs.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast::<c_void>(),
                &mut len,
            )
        };
        let len = len as usize;
        if done == 0 {
            groups.truncate(len / size_of::<gid_t>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The buffer is too small: the kernel reports the bytes needed.
        if error.raw_os_error() != Some(libc::ERANGE) || len <= capacity {
            return Err(error);
        }
        let count = len.div_ceil(size_of::<gid_t>());
        if count > MAX_GROUPS {
            let message = format!("the peer is in {count} groups, more than {MAX_GROUPS}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        groups.resize(count, 0);
    }
}

/// Returns the ID of a user, `None` if the user does not exist.
///
/// # Errors
/// The database cannot be read, or the name contains a NUL.
pub fn user_id(name: &str) -> io::Result<Option<uid_t>> {
    let name = CString::new(name)?;
    look_up_entry(|buffer| {
        let (mut user, mut found) = (MaybeUninit::<passwd>::uninit(), ptr::null_mut());
        let (at, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: `name` ends with NUL, `buffer` has `len` bytes, and all pointers are valid and not otherwise used
        // during the call.
        let code =
            unsafe { libc::getpwnam_r(name.as_ptr(), user.as_mut_ptr(), at, len, &mut found) };
        // SAFETY: a non-null `found` points to `user`, which the call has initialised and which outlives this access.
        (code, (!found.is_null()).then(|| unsafe { (*found).pw_uid }))
    })
}

/// Returns the ID of a group, `None` if the group does not exist.
///
/// # Errors
/// The database cannot be read, or the name contains a NUL.
pub fn group_id(name: &str) -> io::Result<Option<gid_t>> {
    let name = CString::new(name)?;
    look_up_entry(|buffer| {
        let (mut entry, mut found) = (MaybeUninit::<group>::uninit(), ptr::null_mut());
        let (at, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: `name` ends with NUL, `buffer` has `len` bytes, and all pointers are valid and not otherwise used
        // during the call.
        let code =
            unsafe { libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), at, len, &mut found) };
        // SAFETY: a non-null `found` points to `entry`, which the call has initialised and which outlives this access.
        (code, (!found.is_null()).then(|| unsafe { (*found).gr_gid }))
    })
}

/// Calls `look_up` with increasing buffers until the entry fits. Returns `None` if the name is unknown.
fn look_up_entry<T>(
    mut look_up: impl FnMut(&mut [c_char]) -> (c_int, Option<T>),
) -> io::Result<Option<T>> {
    let mut buffer: Vec<c_char> = vec![0; *ENTRY_BUFFER.start()];
    loop {
        match look_up(&mut buffer) {
            (0, found) => return Ok(found),
            (libc::EINTR, _) => {}
            (libc::ERANGE, _) if buffer.len() < *ENTRY_BUFFER.end() => {
                buffer.resize(buffer.len() * 4, 0)
            }
            // Some name services return these codes for unknown names (getpwnam_r(3), NOTES).
            (libc::ENOENT | libc::ESRCH, _) => return Ok(None),
            (code, _) => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn user_and_group_names_resolve_to_ids() {
        assert_eq!((user_id("root").unwrap(), group_id("root").unwrap()), (Some(0), Some(0)));
        assert_eq!((user_id("no such user").unwrap(), group_id("no such").unwrap()), (None, None));
        assert!(user_id("a\0b").is_err() && group_id("a\0b").is_err());
    }

    #[test]
    fn entry_buffer_grows_up_to_its_bound() {
        let mut sizes = Vec::new();
        let failed = look_up_entry(|buffer| {
            sizes.push(buffer.len());
            (libc::ERANGE, None::<()>)
        });
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ERANGE));
        assert_eq!(sizes, [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]);
    }

    #[test]
    fn peer_groups_match_its_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut own: Vec<u32> = line.split_whitespace().map(|gid| gid.parse().unwrap()).collect();
        let mut groups = peer_groups(one.as_fd()).unwrap();
        own.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, own);
        assert!(peer_groups(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}

//! C functions for connects, listeners and connection requests.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use verbs_session::message::Depths;

use super::types::{CConnectOptions, CConnection, transport};
use super::{borrow, close, copy_text, elements, give, guard, take, text, timeout};
use crate::error::Error;
use crate::listener::{AcceptOptions, ConnectionRequest, Listener};
use crate::queue_pair::{ConnectOptions, Connection, QueuePair};
use crate::session::Session;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_connect(
    pair: *const QueuePair,
    remote: *const c_char,
    options: *const CConnectOptions,
    connection: *mut CConnection,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe {
            let result = borrow(pair)?.connect(address(remote)?, &connect_options(options)?)?;
            store(connection, &result);
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_start_connect(
    pair: *const QueuePair,
    remote: *const c_char,
    options: *const CConnectOptions,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe { borrow(pair)?.start_connect(address(remote)?, &connect_options(options)?)? };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_disconnect(
    pair: *const QueuePair,
    timeout_ms: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe { borrow(pair) }?.disconnect(timeout(timeout_ms).unwrap_or(Duration::MAX))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_start_disconnect(pair: *const QueuePair) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe { borrow(pair) }?.start_disconnect()?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_listen(
    session: *const Session,
    local: *const c_char,
    transport_number: u32,
    backlog: u32,
    listener: *mut *mut Listener,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe {
        give(listener, || {
            borrow(session)?.listen(address(local)?, transport(transport_number)?, backlog)
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_listener_destroy(listener: *mut Listener) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(listener) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_listener_number(listener: *const Listener) -> u32 {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { borrow(listener) }.map_or(u32::MAX, Listener::number)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_listener_address(
    listener: *const Listener,
    to: *mut c_char,
    size: usize,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let local = unsafe { borrow(listener) }?.local().to_string();
        if to.is_null() || size <= local.len() {
            return Err(Error::Argument("the room for the address is too small"));
        }
        // SAFETY: `to` has `size` bytes by the contract of C callers in `ffi/mod.rs`, and `local.len() < size`.
        copy_text(&local, unsafe { std::slice::from_raw_parts_mut(to, local.len() + 1) });
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_listener_next(
    listener: *const Listener,
    timeout_ms: c_int,
    request: *mut *mut ConnectionRequest,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let next = unsafe { borrow(listener) }?.next_request(timeout(timeout_ms))?;
        let Some(next) = next else { return Ok(0) };
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe { give(request, || Ok(next)) }?;
        Ok(1)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_request_info(
    request: *const ConnectionRequest,
    info: *mut CConnection,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let request = unsafe { borrow(request) }?;
        let result = Connection {
            worker: 0,
            local: request.local(),
            remote: request.remote(),
            depths: request.depths().unwrap_or(Depths { ird: 0, ord: 0 }),
            private_data: request.private_data().to_vec(),
        };
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe { store(info, &result) };
        Ok(0)
    })
}

/// Consumes the request, even if an error is returned.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_accept(
    request: *mut ConnectionRequest,
    pair: *const QueuePair,
    options: *const CConnectOptions,
    connection: *mut CConnection,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe {
            let request = take(request)?;
            let result = request.accept(borrow(pair)?, &accept_options(options)?)?;
            store(connection, &result);
        }
        Ok(0)
    })
}

/// Consumes the request, even if an error is returned.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_start_accept(
    request: *mut ConnectionRequest,
    pair: *const QueuePair,
    options: *const CConnectOptions,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe { take(request)?.start_accept(borrow(pair)?, &accept_options(options)?)? };
        Ok(0)
    })
}

/// Consumes the request, even if an error is returned.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_reject(
    request: *mut ConnectionRequest,
    private_data: *const c_void,
    private_data_len: u32,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe {
            let request = take(request)?;
            request.reject(elements(private_data.cast(), private_data_len)?)?;
        }
        Ok(0)
    })
}

/// Parses an address and port such as `10.0.0.1:4000`.
///
/// # Safety
/// `from` is NULL or a text that ends with a NUL.
unsafe fn address(from: *const c_char) -> Result<std::net::SocketAddr, Error> {
    // SAFETY: the argument is NULL or valid, as this function's `# Safety` section requires.
    let text = unsafe { text(from) }?;
    text.parse()
        .map_err(|_| Error::Argument("an address is written 10.0.0.1:4000 or [fe80::1]:4000"))
}

/// Converts the options of a connect. NULL means the defaults.
///
/// # Safety
/// All pointers are as the contract of C callers in `ffi/mod.rs` requires.
unsafe fn connect_options(options: *const CConnectOptions) -> Result<ConnectOptions, Error> {
    // SAFETY: the argument is NULL or valid, as this function's `# Safety` section requires.
    let Some(options) = (unsafe { options.as_ref() }) else { return Ok(ConnectOptions::default()) };
    let local = match options.local_address.is_null() {
        true => None,
        // SAFETY: not NULL, and ends with a NUL as this function's `# Safety` section requires.
        false => Some(unsafe { text(options.local_address) }?),
    };
    let local = local.map(str::parse).transpose();
    Ok(ConnectOptions {
        local: local.map_err(|_| Error::Argument("the local address is not an IP address"))?,
        transport: transport(options.transport)?,
        start_up: options.start_up()?,
        depths: Depths { ird: options.ird, ord: options.ord },
        // SAFETY: the structure comes from the C caller, whose contract covers its pointers.
        private_data: unsafe { private_data(options) }?,
        timeout: Duration::from_millis(options.timeout_ms.into()),
    })
}

/// Converts the options of an accept. NULL means the defaults.
///
/// # Safety
/// All pointers are as the contract of C callers in `ffi/mod.rs` requires.
unsafe fn accept_options(options: *const CConnectOptions) -> Result<AcceptOptions, Error> {
    // SAFETY: the argument is NULL or valid, as this function's `# Safety` section requires.
    let Some(options) = (unsafe { options.as_ref() }) else { return Ok(AcceptOptions::default()) };
    Ok(AcceptOptions {
        depths: Depths { ird: options.ird, ord: options.ord },
        // SAFETY: the structure comes from the C caller, whose contract covers its pointers.
        private_data: unsafe { private_data(options) }?,
        timeout: Duration::from_millis(options.timeout_ms.into()),
    })
}

/// # Safety
/// All pointers are as the contract of C callers in `ffi/mod.rs` requires.
unsafe fn private_data(options: &CConnectOptions) -> Result<Vec<u8>, Error> {
    // SAFETY: `private_data` is NULL or points to `private_data_len` bytes, by the contract of C callers.
    let bytes = unsafe { elements(options.private_data.cast(), options.private_data_len) };
    bytes.map(<[u8]>::to_vec)
}

/// Stores a connection at `to`, unless `to` is NULL.
///
/// # Safety
/// All pointers are as the contract of C callers in `ffi/mod.rs` requires.
unsafe fn store(to: *mut CConnection, connection: &Connection) {
    if !to.is_null() {
        // SAFETY: not NULL, and writable as this function's `# Safety` section requires.
        unsafe { to.write(CConnection::new(connection)) };
    }
}

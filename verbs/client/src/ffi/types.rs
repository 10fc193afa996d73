//! Structures of `ddpd.h`. A test compares their sizes and offsets with those of a C compiler.

use std::ffi::{c_char, c_void};

use verbs_layout::work::{
    AtomicResult, Carried, Completed, Completion, Inline, Operation, Payload, ReceiveWork, Remote,
    SendWork, Sge, SgeList, WindowAccess, WindowBind,
};
use verbs_session::message::{
    Depths, MAX_PRIVATE_DATA, MemoryAccess, PeerKind, StartUp, Transport, WindowKind,
};

use super::{copy_text, elements};
use crate::error::Error;
use crate::queue_pair::Connection;

/// Size in bytes of a text with address and port, including the NUL.
pub(super) const ADDRESS_TEXT: usize = 64;
/// Size in bytes of an event's message, including the NUL.
pub(super) const MESSAGE_TEXT: usize = 256;

const SIGNALLED: u32 = 1;
const SOLICITED: u32 = 2;
const FENCE: u32 = 4;
const INLINE: u32 = 8;

/// Bit of `enum ddpd_access` that only windows have.
const ZERO_BASED: u32 = 16;

const SOLICITED_COMPLETION: u32 = 1;
const INVALIDATED: u32 = 2;
const IMMEDIATE: u32 = 4;

#[repr(C)]
pub(super) struct CSge {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
pub(super) struct CSend {
    pub(super) wr_id: u64,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) sges: *const CSge,
    pub(super) sge_count: u32,
    pub(super) rkey: u32,
    pub(super) remote_address: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) immediate: [u8; 8],
    pub(super) invalidate: u32,
    pub(super) reserved: u32,
}

#[repr(C)]
pub(super) struct CReceive {
    pub(super) wr_id: u64,
    pub(super) sges: *const CSge,
    pub(super) sge_count: u32,
    pub(super) reserved: u32,
}

#[repr(C)]
pub(super) struct CBind {
    pub(super) wr_id: u64,
    pub(super) flags: u32,
    pub(super) access: u32,
    pub(super) window: u32,
    pub(super) region: u32,
    pub(super) address: u64,
    pub(super) length: u64,
}

#[repr(C)]
pub(super) struct CCompletion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) byte_len: u32,
    pub(super) qp_number: u32,
    pub(super) flags: u32,
    pub(super) invalidated: u32,
    pub(super) immediate: [u8; 8],
}

#[repr(C)]
pub(super) struct CConnectOptions {
    pub(super) local_address: *const c_char,
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u32,
    pub(super) timeout_ms: u32,
    pub(super) transport: u32,
    pub(super) ird: u16,
    pub(super) ord: u16,
    pub(super) peer: u32,
    pub(super) peer_to_peer: u32,
}

#[repr(C)]
pub(super) struct CConnection {
    pub(super) local: [c_char; ADDRESS_TEXT],
    pub(super) remote: [c_char; ADDRESS_TEXT],
    pub(super) ird: u16,
    pub(super) ord: u16,
    pub(super) worker: u16,
    pub(super) private_data_len: u16,
    pub(super) private_data: [u8; MAX_PRIVATE_DATA],
}

#[repr(C)]
pub(super) struct CLimits {
    pub(super) memory_bytes: u64,
    pub(super) arena_bytes: u64,
    pub(super) queue_pairs: u32,
    pub(super) completion_queues: u32,
    pub(super) memory_regions: u32,
    pub(super) posts: u32,
    pub(super) completions: u32,
    pub(super) ird: u16,
    pub(super) ord: u16,
}

#[repr(C)]
pub(super) struct CEvent {
    pub(super) kind: u32,
    pub(super) number: u32,
    pub(super) flag: u32,
    pub(super) reserved: u32,
    pub(super) request: *mut c_void,
    pub(super) connection: CConnection,
    pub(super) message: [c_char; MESSAGE_TEXT],
}

/// Converts bits of `enum ddpd_access`. Undefined bits are an error.
pub(super) fn access(bits: u32) -> Result<MemoryAccess, Error> {
    if bits >> 4 != 0 {
        return Err(Error::Argument("a right is not defined"));
    }
    Ok(MemoryAccess {
        local_write: bits & 1 != 0,
        remote_write: bits & 2 != 0,
        remote_read: bits & 4 != 0,
        remote_atomic: bits & 8 != 0,
    })
}

/// Converts the type of a memory window: 1 or 2.
pub(super) fn window_kind(number: u32) -> Result<WindowKind, Error> {
    match number {
        1 => Ok(WindowKind::One),
        2 => Ok(WindowKind::Two),
        _ => Err(Error::Argument("a window has type 1 or 2")),
    }
}

pub(super) fn transport(number: u32) -> Result<Transport, Error> {
    match number {
        0 => Ok(Transport::Tcp),
        1 => Ok(Transport::Sctp),
        _ => Err(Error::Argument("a transport is not defined")),
    }
}

impl CConnectOptions {
    pub(super) fn start_up(&self) -> Result<StartUp, Error> {
        let peer = match self.peer {
            0 => PeerKind::Standard,
            1 => PeerKind::Siw,
            2 => PeerKind::Cxgb4,
            3 => PeerKind::Irdma,
            4 => PeerKind::SmbDirect,
            _ => return Err(Error::Argument("a kind of peer is not defined")),
        };
        match self.peer_to_peer {
            0 | 1 => Ok(StartUp { peer, peer_to_peer: self.peer_to_peer == 1 }),
            _ => Err(Error::Argument("peer_to_peer is 0 or 1")),
        }
    }
}

impl CSend {
    /// Converts the structure to an operation. Undefined flags and opcodes, a `reserved` other than 0, and flags and
    /// SGEs that do not fit the opcode are errors. Other fields that the opcode does not have are ignored.
    ///
    /// # Safety
    /// `sges` points to `sge_count` SGEs. With the flag `INLINE`, they describe readable memory of the caller.
    pub(super) unsafe fn work(&self) -> Result<SendWork, Error> {
        if self.flags >> 4 != 0 || self.reserved != 0 {
            return Err(Error::Argument("a flag is not defined"));
        }
        // SAFETY: `sges` points to `sge_count` SGEs as this function's `# Safety` section requires.
        let sges = unsafe { elements(self.sges, self.sge_count) }?;
        let is_inline = self.flags & INLINE != 0;
        let payload = || -> Result<Payload, Error> {
            if is_inline {
                // SAFETY: the flag is set, so the SGEs describe readable memory as this function's `# Safety`
                // section requires.
                return Ok(Payload::Inline(unsafe { gather_inline(sges) }?));
            }
            Ok(Payload::Gather(list(sges)?))
        };
        let solicited = self.flags & SOLICITED != 0;
        let remote = Remote { stag: self.rkey, to: self.remote_address };
        let stag = self.invalidate;
        let operation = match self.opcode {
            1 => Operation::Send { payload: payload()?, solicited },
            2 => Operation::SendInvalidate { payload: payload()?, solicited, stag },
            3 => Operation::Write { remote, payload: payload()? },
            4 => Operation::Read { remote, sinks: list(sges)? },
            5 => Operation::LocalInvalidate { stag },
            7 => Operation::CompareSwap {
                remote,
                compare: self.compare_add,
                swap: self.swap,
                result: atomic_result(sges)?,
            },
            8 => {
                Operation::FetchAdd { remote, add: self.compare_add, result: atomic_result(sges)? }
            }
            9 => Operation::Immediate { data: self.immediate, solicited },
            _ => return Err(Error::Argument("an opcode is not defined")),
        };
        let has = |opcodes: &[u32]| opcodes.contains(&self.opcode);
        if is_inline && !has(&[1, 2, 3]) || solicited && !has(&[1, 2, 9]) {
            return Err(Error::Argument("a flag does not apply to the opcode"));
        }
        if has(&[5, 9]) && !sges.is_empty() {
            return Err(Error::Argument("the opcode has no SGEs"));
        }
        Ok(SendWork {
            wr_id: self.wr_id,
            signalled: self.flags & SIGNALLED != 0,
            fence: self.flags & FENCE != 0,
            operation,
        })
    }
}

impl CReceive {
    /// Converts the structure to a receive.
    ///
    /// # Safety
    /// `sges` points to `sge_count` SGEs.
    pub(super) unsafe fn work(&self) -> Result<ReceiveWork, Error> {
        // SAFETY: `sges` points to `sge_count` SGEs as this function's `# Safety` section requires.
        let sges = unsafe { elements(self.sges, self.sge_count) }?;
        Ok(ReceiveWork { wr_id: self.wr_id, buffers: list(sges)? })
    }
}

impl CBind {
    /// Converts the structure to an operation. Undefined flags and rights are errors.
    pub(super) fn work(&self) -> Result<SendWork, Error> {
        if self.flags & !(SIGNALLED | FENCE) != 0 {
            return Err(Error::Argument("a flag does not apply to a bind"));
        }
        let rights = access(self.access & !ZERO_BASED)?;
        if rights.local_write {
            return Err(Error::Argument("a window has remote rights only"));
        }
        let access = WindowAccess {
            remote_write: rights.remote_write,
            remote_read: rights.remote_read,
            remote_atomic: rights.remote_atomic,
            zero_based: self.access & ZERO_BASED != 0,
        };
        let &CBind { wr_id, window, region, address, length: len, .. } = self;
        let bind = WindowBind { window, region, address, len, access };
        Ok(SendWork {
            wr_id,
            signalled: self.flags & SIGNALLED != 0,
            fence: self.flags & FENCE != 0,
            operation: Operation::BindWindow(bind),
        })
    }
}

/// Converts SGEs of C. More than `MAX_SGES`, or 2³² bytes or more in all, are an error.
fn list(sges: &[CSge]) -> Result<SgeList, Error> {
    let sges: Vec<Sge> = sges
        .iter()
        .map(|sge| Sge { address: sge.address, len: sge.length, lkey: sge.lkey })
        .collect();
    Ok(SgeList::new(&sges)?)
}

/// Copies the bytes of the SGEs for an inline payload. More than `MAX_INLINE` bytes are an error.
///
/// # Safety
/// The SGEs describe readable memory of the caller.
unsafe fn gather_inline(sges: &[CSge]) -> Result<Inline, Error> {
    let mut bytes = Vec::new();
    for sge in sges {
        // Copies at most `MAX_INLINE + 1` bytes in all, however long the SGEs are: `Inline::new` refuses more than
        // `MAX_INLINE`.
        let room = (verbs_layout::work::MAX_INLINE + 1 - bytes.len()) as u32;
        let first = std::ptr::with_exposed_provenance(sge.address as usize);
        // SAFETY: the SGE describes readable memory as this function's `# Safety` section requires.
        bytes.extend_from_slice(unsafe { elements(first, sge.length.min(room)) }?);
    }
    Ok(Inline::new(&bytes)?)
}

fn atomic_result(sges: &[CSge]) -> Result<AtomicResult, Error> {
    match sges {
        [sge] if sge.length == 8 => Ok(AtomicResult { address: sge.address, lkey: sge.lkey }),
        _ => Err(Error::Argument("an atomic has one SGE of 8 bytes")),
    }
}

impl CCompletion {
    pub(super) fn new(completion: &Completion) -> CCompletion {
        let (mut opcode, mut flags, mut invalidated, mut immediate) = (128, 0, 0, [0; 8]);
        match completion.completed {
            Completed::Sent(sent) => opcode = sent as u32,
            Completed::Received { solicited, carried } => {
                flags |= if solicited { SOLICITED_COMPLETION } else { 0 };
                match carried {
                    Carried::Nothing => {}
                    Carried::Invalidated(stag) => {
                        (flags, invalidated) = (flags | INVALIDATED, stag)
                    }
                    Carried::Immediate(data) => (flags, immediate) = (flags | IMMEDIATE, data),
                }
            }
        }
        CCompletion {
            wr_id: completion.wr_id,
            status: completion.status as u32,
            opcode,
            byte_len: completion.byte_len,
            qp_number: completion.qp_number,
            flags,
            invalidated,
            immediate,
        }
    }
}

impl CConnection {
    pub(super) const EMPTY: CConnection = CConnection {
        local: [0; ADDRESS_TEXT],
        remote: [0; ADDRESS_TEXT],
        ird: 0,
        ord: 0,
        worker: 0,
        private_data_len: 0,
        private_data: [0; MAX_PRIVATE_DATA],
    };

    pub(super) fn new(connection: &Connection) -> CConnection {
        let Depths { ird, ord } = connection.depths;
        let mut to = CConnection { ird, ord, worker: connection.worker, ..CConnection::EMPTY };
        copy_text(&connection.local.to_string(), &mut to.local);
        copy_text(&connection.remote.to_string(), &mut to.remote);
        to.set_private_data(&connection.private_data);
        to
    }

    /// Stores private data, cut to `MAX_PRIVATE_DATA` bytes. The appliance sends no more in a valid message.
    pub(super) fn set_private_data(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(MAX_PRIVATE_DATA);
        self.private_data[..len].copy_from_slice(&bytes[..len]);
        self.private_data_len = len as u16;
    }
}

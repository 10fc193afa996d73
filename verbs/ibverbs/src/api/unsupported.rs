//! Functions for features that iWARP lacks: address handles, multicast, and options of InfiniBand's connection
//! establishment.

use std::ffi::{c_int, c_void};

use crate::bindings::*;
use crate::boundary;
use crate::errno::EOPNOTSUPP;

/// Defines functions that fail with `EOPNOTSUPP`.
macro_rules! unsupported {
    ($($(#[$doc:meta])* $name:ident($($argument:ty),*) -> $result:ident $($type:ty)?;)*) => {
        $($(#[$doc])* #[unsafe(no_mangle)]
        pub extern "C" fn $name($(_: $argument),*) -> unsupported!(@type $result $($type)?) {
            unsupported!(@body $result)
        })*
    };
    (@type code) => { c_int };
    (@type minus_one) => { c_int };
    (@type null $type:ty) => { *mut $type };
    (@body code) => { boundary::code(|| Err(EOPNOTSUPP)) };
    (@body minus_one) => { boundary::minus_one(|| Err(EOPNOTSUPP)) };
    (@body null) => { boundary::pointer(|| Err(EOPNOTSUPP)) };
}

unsupported! {
    /// Refused: RC needs no address handles.
    ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> null ibv_ah;
    /// Refused: RC needs no address handles.
    ibv_create_ah_from_wc(*mut ibv_pd, *mut ibv_wc, *mut ibv_grh, u8) -> null ibv_ah;
    /// Refused: RC needs no address handles.
    ibv_init_ah_from_wc(*mut ibv_context, u8, *mut ibv_wc, *mut ibv_grh, *mut ibv_ah_attr) -> minus_one;
    /// Refused: there are no address handles.
    ibv_destroy_ah(*mut ibv_ah) -> code;
    /// Refused: iWARP has no multicast.
    ibv_attach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> code;
    /// Refused: iWARP has no multicast.
    ibv_detach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> code;
    /// Refused: the appliance resolves addresses.
    ibv_resolve_eth_l2_from_gid(*mut ibv_context, *mut ibv_ah_attr, *mut u8, *mut u16) -> code;
    /// Refused: there are no enhanced connection options.
    ibv_set_ece(*mut ibv_qp, *mut ibv_ece) -> code;
    /// Refused: there are no enhanced connection options.
    ibv_query_ece(*mut ibv_qp, *mut ibv_ece) -> code;
}

/// Does nothing: there is no kernel driver whose structure could be converted.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_copy_ah_attr_from_kern(_to: *mut c_void, _from: *mut c_void) {}

/// Does nothing: there is no kernel driver whose structure could be converted.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_copy_qp_attr_from_kern(_to: *mut c_void, _from: *mut c_void) {}

/// Does nothing: there is no kernel driver whose structure could be converted.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_copy_path_rec_from_kern(_to: *mut c_void, _from: *mut c_void) {}

/// Does nothing: there is no kernel driver whose structure could be converted.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_copy_path_rec_to_kern(_to: *mut c_void, _from: *mut c_void) {}

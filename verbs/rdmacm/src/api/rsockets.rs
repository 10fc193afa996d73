//! rsockets, which are not implemented: each function fails with `EOPNOTSUPP`.

use ibverbs::errno::{EOPNOTSUPP, fail};
use ibverbs::report;

/// Defines functions that fail. They ignore their arguments. The result is -1 for each result type of rsockets: `int`,
/// `ssize_t`, `size_t` and `off_t`.
macro_rules! rsockets {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of `rsocket(7)`: not supported.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                refuse()
            }
        )*
    };
}

rsockets! {
    raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite rlisten rpoll
    rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev
}

fn refuse() -> isize {
    report::once("rsockets", format_args!("rsockets are not supported"));
    fail(EOPNOTSUPP) as isize
}

//! All code of `libibverbs.so.1` and `librdmacm.so.1` as one static library, which `scripts/verbs-library` links with
//! the version script `libibverbs.map`. A `cdylib` with that script would export unversioned symbols.
#![forbid(unsafe_code)]

extern crate ibverbs as _;
extern crate rdmacm as _;

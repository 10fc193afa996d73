//! The advertisement of regions in MPA private data, under the name by which this crate knows it.

pub use ddp::advert::{
    AdvertError, Advertised, ENTRY_LEN, HEADER_LEN, MAX_NAME, MAX_PRIVATE_DATA, decode, encode,
    encode_for, encoded_len, is_name, ulp,
};

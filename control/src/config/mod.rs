//! The configuration file: TOML, read raw, then checked into types that cannot be wrong.
//!
//! Every error of a file is reported, not only the first one; each is one sentence that names the
//! file, the line, the key and the remedy. What depends on the machine (devices, hugepages, the
//! socket's directory) is not part of reading it but of `ddpd check`.

mod types;

pub use types::*;

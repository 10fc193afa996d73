//! Direct Data Placement (RFC 5041): segmentation, placement, delivery, STags, untagged queues and
//! errors, above any reliable lower layer ([`llp`]).
//!
//! Sans-IO: octets and time come in, octets and events go out. No lower layer is named here.
#![forbid(unsafe_code)]

pub mod llp;
pub mod memory;

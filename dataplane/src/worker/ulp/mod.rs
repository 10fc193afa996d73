//! What runs above streams within the worker: RDMAP services and generated load.

pub(super) mod echo;
pub(super) mod load;
pub(super) mod loads;
pub(super) mod rdmap;

//! Operations of the ULPs within the worker: RDMAP services and generated load.

pub(super) mod loads;
pub(super) mod rdmap;

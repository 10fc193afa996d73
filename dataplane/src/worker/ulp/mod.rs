//! Operations of the ULPs within the worker: RDMAP services and generated load.

pub(super) mod load_control;
pub(super) mod rdmap;

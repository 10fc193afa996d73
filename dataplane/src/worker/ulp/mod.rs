//! Operations of the ULPs in the worker: the services, and generated load.

pub(super) mod load_control;
pub(super) mod rdmap;

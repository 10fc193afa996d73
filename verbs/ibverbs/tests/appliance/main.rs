//! Tests of the C functions against a running appliance, whose socket is in `DDPD_PROGRAMS_SOCKET`. Both ends of each
//! connection are in this process. `scripts/verbs-library --test` starts the appliance and runs them.

mod data;
mod events;
mod extended;
mod misuse;
mod world;

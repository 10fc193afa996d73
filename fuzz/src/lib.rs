//! Fuzz targets, one function for each parser of peer bytes. Each target accepts arbitrary bytes; a panic, a hang or a
//! violated property is a finding. `targets/main.rs` runs the targets under libFuzzer. `tests/replay.rs` replays their
//! corpora as ordinary tests.
#![forbid(unsafe_code)]

mod esp;
#[cfg(feature = "frames")]
mod frame;
#[cfg(feature = "frames")]
mod hostile_program;
#[cfg(feature = "services")]
mod program_session;
mod protocol;
mod rdmap;
mod sctp;
mod sctp_endpoint;
#[cfg(feature = "services")]
mod service;
mod stream;
mod tcp_endpoint;
mod verbs;

/// A fuzz target: a function and its name.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its corpus folder.
    pub name: &'static str,
    /// Runs the target on one input; panics if a checked property is violated.
    pub run: fn(&[u8]),
}

/// All targets that this build supports.
pub const TARGETS: &[Target] = &[
    Target { name: "mpa_frame", run: protocol::mpa_frame },
    Target { name: "ddp_header", run: protocol::ddp_header },
    Target { name: "advert", run: protocol::advert },
    Target { name: "last_message", run: protocol::last_message },
    Target { name: "esp", run: esp::esp },
    Target { name: "tcp_segment", run: protocol::tcp_segment },
    Target { name: "mpa_startup", run: stream::mpa_startup },
    Target { name: "mpa_stream", run: stream::mpa_stream },
    Target { name: "tcp_endpoint", run: tcp_endpoint::tcp_endpoint },
    Target { name: "rdmap", run: rdmap::rdmap },
    Target { name: "sctp_packet", run: sctp::sctp_packet },
    Target { name: "sctp_association", run: sctp::sctp_association },
    Target { name: "sctp_endpoint", run: sctp_endpoint::sctp_endpoint },
    Target { name: "program_queue", run: verbs::program_queue },
    #[cfg(feature = "frames")]
    Target { name: "frame", run: frame::frame },
    #[cfg(feature = "frames")]
    Target { name: "reassembly", run: frame::reassembly },
    #[cfg(feature = "frames")]
    Target { name: "control_message", run: frame::control_message },
    #[cfg(feature = "frames")]
    Target { name: "hostile_program", run: hostile_program::hostile_program },
    #[cfg(feature = "services")]
    Target { name: "service", run: service::service },
    #[cfg(feature = "services")]
    Target { name: "program_session", run: program_session::program_session },
];

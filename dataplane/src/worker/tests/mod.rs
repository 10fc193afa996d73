//! Workers joined in memory, in virtual time: whole streams from ARP to placed bytes, and what floods
//! and faults do to them.

mod accounting;
mod attacks;
mod attempts;
mod capture;
mod confirmations;
mod cookies;
mod devices;
mod ecn;
mod events;
mod floods;
mod half_closed;
mod host;
mod ipsec;
mod ipsec_attacks;
mod ipsec_clear;
mod ipsec_paths;
mod ipsec_requirements;
mod keep;
mod load;
mod mesh;
mod paths;
mod peers;
mod pressure;
mod rdmap;
mod recorder;
mod sctp;
mod sctp_attacks;
mod sctp_offload;
mod sctp_paths;
mod sctp_runs;
mod slow_control;
mod stall;
mod streams;
mod windows;
mod wire_pair;

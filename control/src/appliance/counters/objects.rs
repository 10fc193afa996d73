//! Counters of listeners and regions.

use api::{ListenerInfo, RegionInfo};

use super::table::counters;

counters! { LISTENER, fn put_listener(info: &ListenerInfo) {
    /// Streams now.
    streams: Gauge = info.streams.into(),
    /// Streams at most.
    max_streams: Gauge = info.max_streams.into(),
    /// Streams accepted.
    accepted: Counter = info.accepted,
    /// Streams refused.
    refused: Counter = info.refused,
}}

counters! { REGION, fn put_region(info: &RegionInfo) {
    /// Size.
    size_bytes: Gauge Bytes = info.size,
    /// Bytes that peers have placed in it.
    placed_bytes: Counter Bytes = info.placed,
    /// Tagged messages delivered to it.
    messages: Counter = info.messages,
    /// One while a stream has it for itself, else zero.
    bound: Gauge = info.bound_to.is_some().into(),
}}

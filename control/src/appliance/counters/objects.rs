//! Counters of listeners and regions.

use api::{ListenerInfo, RegionInfo};

use super::table::counters;

counters! { LISTENER, fn put_listener(info: &ListenerInfo) {
    /// Present number of streams.
    streams: Gauge = info.streams.into(),
    /// Configured limit of the number of streams.
    max_streams: Gauge = info.max_streams.into(),
    /// Streams accepted.
    accepted: Counter = info.accepted,
    /// Streams refused.
    refused: Counter = info.refused,
}}

counters! { REGION, fn put_region(info: &RegionInfo) {
    /// Size of the region.
    size_bytes: Gauge Bytes = info.size,
    /// Bytes that peers have placed in the region.
    placed_bytes: Counter Bytes = info.placed,
    /// Tagged messages delivered to the region.
    messages: Counter = info.messages,
    /// 1 while a stream holds the region exclusively, else 0.
    bound: Gauge = info.bound_to.is_some().into(),
}}

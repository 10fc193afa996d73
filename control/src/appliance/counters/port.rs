//! Counters of ports: of queues, link impairments, device and pool.

use api::Counters;
use dataplane::port::{DeviceStats, Port, QueueCounters};

use super::table::{MergeSink, counters};

/// Returns the counters of a port. The counters of its queues are summed.
pub(in crate::appliance) fn port_counters(port: &Port) -> Counters {
    let mut counters = Counters::new();
    for (queue, link) in port.queue_counters() {
        let mut all = MergeSink(&mut counters);
        put_queue(&mut all, &queue);
        if let Some(link) = &link {
            put_link(&mut all, link);
        }
    }
    // Some devices have no counters.
    if let Ok(device) = port.device_stats() {
        put_device(&mut counters, &device);
    }
    put_pool(&mut counters, port);
    counters
}

counters! { QUEUE, fn put_queue(queue: &QueueCounters) {
    /// Frames received.
    rx_frames: Counter = queue.rx_frames,
    /// Bytes received.
    rx_bytes: Counter Bytes = queue.rx_bytes,
    /// Frames received in several buffers and dropped because they do not fit into one buffer.
    rx_too_long: Counter = queue.rx_too_long,
    /// Frames that the device accepted for sending.
    tx_frames: Counter = queue.tx_frames,
    /// Bytes that the device accepted for sending.
    tx_bytes: Counter Bytes = queue.tx_bytes,
    /// Frames dropped because the device accepted none and the queue was full or the link down.
    tx_dropped: Counter = queue.tx_dropped,
    /// Failed allocations of packet buffers.
    no_buffer: Counter = queue.no_buffer,
    /// Packets of several frames each, which the device or the virtual machine segments. Their frames and bytes are
    /// counted in `tx_frames` and `tx_bytes` as on the wire.
    tx_large: Counter = queue.tx_large,
}}

counters! { LINK, fn put_link(link: &link::Counters) {
    /// Frames offered to the impairment.
    link_offered: Counter = link.offered,
    /// Frames delivered by the impairment.
    link_delivered: Counter = link.delivered,
    /// Frames lost by the loss model.
    link_lost: Counter = link.lost,
    /// Frames lost in the impairment by any cause: loss model, black holes, full queue.
    link_lost_total: Counter = link.total_lost(),
    /// Frames delayed so that later frames may overtake them.
    link_reordered: Counter = link.reordered,
    /// Duplicates made by the impairment.
    link_duplicated: Counter = link.duplicated,
    /// Frames with one flipped bit.
    link_corrupted: Counter = link.corrupted,
    /// Frames dropped because the impairment's queue was full.
    link_queue_dropped: Counter = link.tail_dropped + link.overflowed,
}}

counters! { DEVICE, fn put_device(device: &DeviceStats) {
    /// Frames received by the device.
    device_rx_frames: Counter = device.rx_frames,
    /// Frames sent by the device.
    device_tx_frames: Counter = device.tx_frames,
    /// Received frames lost because no descriptor was free.
    device_rx_missed: Counter = device.rx_missed,
    /// Damaged frames received.
    device_rx_errors: Counter = device.rx_errors,
    /// Frames that the device failed to send.
    device_tx_errors: Counter = device.tx_errors,
    /// Failed buffer allocations of the device on receive.
    device_rx_no_buffer: Counter = device.rx_no_buffer,
}}

counters! { POOL, fn put_pool(port: &Port) {
    /// Free packet buffers, approximately.
    buffers_free: Gauge = u64::from(port.free_buffers()),
}}

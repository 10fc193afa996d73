//! Helpers of the tests that start DPDK's environment (EAL). The environment can be started only once per process, so
//! each such test has a separate file and process.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::print_stderr, reason = "shown with a test that fails")]

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use dpdk::{
    DataRoom, DeviceConfig, Eal, EalConfig, Hugepages, IdleFd, LogLevel, Mbuf, Mempool,
    MempoolConfig, RxOffloads, RxQueue, TxOffloads,
};

/// Starts DPDK's environment in ordinary memory, which requires no privilege.
pub(crate) fn eal() -> Eal {
    let config = EalConfig {
        hugepages: Hugepages::Never,
        memory_mib: 64,
        log_level: LogLevel::Warning,
        log: |level, line| eprintln!("dpdk {level:?}: {line}"),
        ..EalConfig::default()
    };
    Eal::start(&config).expect("the environment starts without privileges")
}

pub(crate) fn pool(eal: &Eal, buffers: u32, data_room: u16) -> Mempool {
    Mempool::new(eal, pool_config(buffers, data_room)).expect("it fits")
}

pub(crate) fn pool_config(buffers: u32, data_room: u16) -> MempoolConfig {
    MempoolConfig { buffers, data_room: DataRoom::Bytes(data_room), numa: None }
}

pub(crate) fn device_config(queues: u16) -> DeviceConfig {
    DeviceConfig {
        queues,
        rx_descriptors: 256,
        tx_descriptors: 256,
        mtu: 1500,
        set_mtu: false,
        rx: RxOffloads::default(),
        tx: TxOffloads::default(),
        rss: None,
        promiscuous: false,
        all_multicast: false,
        idle: IdleFd::None,
        reconnect: false,
        private_files: false,
    }
}

/// Returns a buffer with these bytes.
pub(crate) fn frame(pool: &Mempool, bytes: &[u8]) -> Mbuf {
    let mut frame = pool.alloc().expect("a free buffer");
    frame.append(bytes.len()).expect("it fits").copy_from_slice(bytes);
    frame
}

/// Polls until a frame arrives; panics after ten seconds.
pub(crate) fn receive(queue: &mut RxQueue) -> Mbuf {
    let mut frames = ArrayVec::<Mbuf, 1>::new();
    wait_until("a frame arrives", || queue.burst(&mut frames) == 1);
    frames.pop().expect("one frame")
}

/// Calls `done` until it returns true; panics after ten seconds.
pub(crate) fn wait_until(condition: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "ten seconds are over before {condition}"
        );
        std::thread::yield_now();
    }
}

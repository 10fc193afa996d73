//! RSS key and redirection table of a device. DPDK's null device stands in for hardware: it keeps the settings,
//! receives empty frames, and has neither flow rules nor checksum offloads.

mod common;

use arrayvec::ArrayVec;
use dpdk::{Device, DeviceConfig, Mbuf, Rss, SctpRules};

#[test]
fn null_device_accepts_rss_settings_and_refuses_a_short_table() {
    let eal = common::eal();
    let pool = common::pool_config(2047, 2048);
    let device = Device::virtual_device(&eal, "net_null0", "size=100").unwrap();
    let info = device.info().unwrap();
    assert_eq!(info.driver, "net_null");
    assert_eq!(info.reta_size, 128);
    assert!(!info.tx.tcp_checksum);
    assert_ne!(device.mac().unwrap(), [0; 6]);
    let key: Vec<u8> = [0x6d, 0x5a].into_iter().cycle().take(40).collect();
    let table: Vec<u16> = (0..2).cycle().take(128).collect();
    let config = DeviceConfig {
        rss: Some(Rss { key: key.clone(), table: table.clone(), sctp_rules: true }),
        promiscuous: true,
        all_multicast: true,
        ..common::device_config(2)
    };
    let (started, mut rx, mut tx) = device.start(&config, pool.clone()).unwrap();
    assert!(started.link().up);
    // The null device supports no flow rules. The device starts without them.
    assert_eq!(started.sctp_rules(), SctpRules::default());
    for (rx, tx) in rx.iter_mut().zip(&mut tx) {
        let mut frames = ArrayVec::<Mbuf, 8>::new();
        assert_eq!(rx.burst(&mut frames), 8);
        assert!(frames.iter().all(|frame| frame.len() == 100 && frame.segments() == 1));
        assert_eq!(tx.burst(&mut frames), 8);
        assert!(frames.is_empty());
    }
    let stats = started.stats().unwrap();
    assert_eq!((stats.rx_frames, stats.tx_frames), (16, 16));
    drop((started, rx, tx));

    // A refused set-up is an error that contains DPDK's message, and leaves no device or pool behind.
    let short = Rss { key, table: table[..64].to_vec(), sctp_rules: false };
    let device = Device::virtual_device(&eal, "net_null0", "").unwrap();
    let config = DeviceConfig { rss: Some(short), ..config };
    let error = device.start(&config, pool.clone()).expect_err("the table is too short");
    assert!(error.to_string().contains("refuses the RSS table"), "{error}");
    let error = Device::virtual_device(&eal, "net_nothing0", "").expect_err("no such driver");
    assert!(error.to_string().contains("net_nothing0"), "{error}");
    assert!(!error.logged.is_empty());
    drop(Device::virtual_device(&eal, "net_null0", "").unwrap());
    assert_eq!(eal.retired_pools(), 0);
}

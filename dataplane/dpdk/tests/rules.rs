//! Flow rules for SCTP packets: the requests to a device, and the reaction to a refusal. No virtual device of DPDK
//! 22.11 accepts such rules. This file therefore defines its own `rte_flow_*` functions, which act as a hardware
//! driver; the test in `rss.rs` uses the library's functions.

#![allow(unsafe_code, reason = "the functions read a driver's arguments")]

mod common;

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;
use std::slice::from_raw_parts;
use std::sync::Mutex;

use arrayvec::ArrayVec;
use dpdk::{Device, DeviceConfig, Mbuf, Rss, SctpRules};
use dpdk_sys as sys;

/// `RTE_ETH_RSS_L3_DST_ONLY`.
const DESTINATION_ONLY: u64 = 1 << 62;

/// Layout of `struct rte_flow_item`.
#[repr(C)]
struct Item {
    kind: u32,
    spec: *const c_void,
    last: *const c_void,
    mask: *const c_void,
}

/// Layout of `struct rte_flow_action`.
#[repr(C)]
struct Action {
    kind: u32,
    conf: *const ActionRss,
}

/// Layout of `struct rte_flow_action_rss`.
#[repr(C)]
struct ActionRss {
    func: u32,
    level: u32,
    types: u64,
    key_len: u32,
    queue_num: u32,
    key: *const u8,
    queue: *const u16,
}

/// A rule requested from a driver.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RequestedRule {
    ipv6: bool,
    types: u64,
    key: Vec<u8>,
    queues: Vec<u16>,
}

/// Behaviour of a driver when a rule is validated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValidateAnswer {
    /// The driver accepts exactly the rules that it can create.
    Truthful,
    Accept,
    Reject,
}

/// A driver: the rules that it accepts, and the requests that it received.
struct Driver {
    accepts: fn(&RequestedRule) -> bool,
    answer: ValidateAnswer,
    validated: Vec<RequestedRule>,
    created: Vec<RequestedRule>,
    flushed: usize,
}

static DRIVER: Mutex<Driver> = Mutex::new(Driver {
    accepts: |_| false,
    answer: ValidateAnswer::Truthful,
    validated: Vec::new(),
    created: Vec::new(),
    flushed: 0,
});

/// Reads a rule, and asserts the properties that all requested rules share.
///
/// # Safety
/// `attr` has three words, `pattern` four items and `actions` two actions; pointers in them are valid or null.
unsafe fn read(attr: *const u32, pattern: *const Item, actions: *const Action) -> RequestedRule {
    // SAFETY: guaranteed by the caller.
    let (attr, items, actions) = unsafe {
        (from_raw_parts(attr, 3), from_raw_parts(pattern, 4), from_raw_parts(actions, 2))
    };
    assert_eq!(attr, [0, 0, 1], "the rule applies to received packets");
    let all = |item: &Item| [item.spec, item.last, item.mask] == [null(); 3];
    assert!(items.iter().all(all), "the pattern matches all header values");
    let kinds: Vec<u32> = items.iter().map(|item| item.kind).collect();
    let ipv6 = kinds[1] == sys::DDPD_ITEM_IPV6;
    let ip = if ipv6 { sys::DDPD_ITEM_IPV6 } else { sys::DDPD_ITEM_IPV4 };
    assert_eq!(kinds, [sys::DDPD_ITEM_ETH, ip, sys::DDPD_ITEM_SCTP, sys::DDPD_ITEM_END]);
    assert_eq!((actions[0].kind, actions[1].kind), (sys::DDPD_ACTION_RSS, sys::DDPD_ACTION_END));
    // SAFETY: `conf` of an RSS action points to this structure, as DPDK's interface specifies.
    let rss = unsafe { &*actions[0].conf };
    assert_eq!((rss.func, rss.level), (0, 0));
    assert_eq!((rss.key_len == 0, rss.queue_num == 0), (rss.key.is_null(), rss.queue.is_null()));
    // SAFETY: `key` and `queue` have the lengths `key_len` and `queue_num`.
    let (key, queues) = unsafe {
        let list = |len: u32| len as usize;
        (
            if rss.key.is_null() { &[][..] } else { from_raw_parts(rss.key, list(rss.key_len)) },
            if rss.queue.is_null() {
                &[][..]
            } else {
                from_raw_parts(rss.queue, list(rss.queue_num))
            },
        )
    };
    RequestedRule { ipv6, types: rss.types, key: key.to_vec(), queues: queues.to_vec() }
}

// SAFETY: no other code of this program defines the name. The definition takes precedence over the library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn rte_flow_validate(
    _: u16,
    attr: *const u32,
    pattern: *const Item,
    actions: *const Action,
    _: *mut c_char,
) -> c_int {
    let mut driver = DRIVER.lock().expect("no panic");
    // SAFETY: the C shim passes an attribute, four items and two actions, each list with END as its last element.
    let rule = unsafe { read(attr, pattern, actions) };
    driver.validated.push(rule.clone());
    let takes = match driver.answer {
        ValidateAnswer::Truthful => (driver.accepts)(&rule),
        ValidateAnswer::Accept => true,
        ValidateAnswer::Reject => false,
    };
    if takes { 0 } else { -95 }
}

// SAFETY: as for `rte_flow_validate`.
#[unsafe(no_mangle)]
unsafe extern "C" fn rte_flow_create(
    _: u16,
    attr: *const u32,
    pattern: *const Item,
    actions: *const Action,
    _: *mut c_char,
) -> *mut c_void {
    let mut driver = DRIVER.lock().expect("no panic");
    // SAFETY: the C shim passes an attribute, four items and two actions, each list with END as its last element.
    let rule = unsafe { read(attr, pattern, actions) };
    if !(driver.accepts)(&rule) {
        return std::ptr::null_mut();
    }
    driver.created.push(rule);
    std::ptr::dangling_mut::<u64>().cast()
}

// SAFETY: as for `rte_flow_validate`.
#[unsafe(no_mangle)]
extern "C" fn rte_flow_flush(_: u16, _: *mut c_char) -> c_int {
    let mut driver = DRIVER.lock().expect("no panic");
    driver.flushed += 1;
    driver.created.clear();
    0
}

#[test]
fn sctp_rules_are_requested_and_may_be_refused() {
    let eal = common::eal();
    let key: Vec<u8> = [0x6d, 0x5a].into_iter().cycle().take(40).collect();
    let table: Vec<u16> = (0..2).cycle().take(128).collect();
    let run = |takes: fn(&RequestedRule) -> bool, says: ValidateAnswer, asks: bool| {
        *DRIVER.lock().unwrap() = Driver {
            accepts: takes,
            answer: says,
            validated: Vec::new(),
            created: Vec::new(),
            flushed: 0,
        };
        let device = Device::virtual_device(&eal, "net_null0", "size=100").unwrap();
        let rss = Rss { key: key.clone(), table: table.clone(), sctp_rules: asks };
        let config = DeviceConfig { rss: Some(rss), ..common::device_config(2) };
        let started = device.start(&config, common::pool_config(2047, 2048));
        let (started, mut rx, tx) = started.expect("the device starts whatever the driver answers");
        let rules = started.sctp_rules();
        let created = DRIVER.lock().unwrap().created.clone();
        assert_eq!(DRIVER.lock().unwrap().flushed, 0);
        // The port receives frames, whatever the driver answers.
        let mut frames = ArrayVec::<Mbuf, 8>::new();
        assert!(rx.iter_mut().all(|rx| {
            frames.clear();
            rx.burst(&mut frames) == 8
        }));
        drop((frames, started, rx, tx));
        let driver = DRIVER.lock().unwrap();
        // Rules are destroyed with the device.
        assert_eq!(driver.flushed, usize::from(!created.is_empty()));
        assert_eq!(created.len(), usize::from(rules.v4) + usize::from(rules.v6));
        (rules, created, driver.validated.len())
    };

    // A driver that accepts no rule receives all eight forms of requests. The driver rejects every rule in validation,
    // or fails to create a validated rule. A rejected rule is not created.
    let nothing: fn(&RequestedRule) -> bool = |_| false;
    for (takes, says) in [
        (nothing, ValidateAnswer::Truthful),
        (nothing, ValidateAnswer::Accept),
        (|_| true, ValidateAnswer::Reject),
    ] {
        assert_eq!(run(takes, says, true), (SctpRules::default(), vec![], 8));
    }
    // Without `sctp_rules` no rule is requested.
    assert_eq!(run(|_| true, ValidateAnswer::Truthful, false), (SctpRules::default(), vec![], 0));

    let fields = |ipv6, by_ports| match (ipv6, by_ports) {
        (false, true) => sys::DDPD_RSS_IPV4 | sys::DDPD_RSS_PORT,
        (true, true) => sys::DDPD_RSS_IPV6 | sys::DDPD_RSS_PORT,
        (false, false) => sys::DDPD_RSS_SCTP4,
        (true, false) => sys::DDPD_RSS_SCTP6,
    };
    let expected_rule = |ipv6, by_ports, whole: bool| RequestedRule {
        ipv6,
        types: DESTINATION_ONLY | u64::from(fields(ipv6, by_ports)),
        key: if whole { rss_key() } else { Vec::new() },
        queues: if whole { redirection_table() } else { Vec::new() },
    };
    let both = SctpRules { v4: true, v6: true };
    let (rules, created, _) = run(|_| true, ValidateAnswer::Truthful, true);
    assert_eq!(
        (rules, created),
        (both, vec![expected_rule(false, true, true), expected_rule(true, true, true)])
    );
    // Simulates a driver such as i40e, which accepts only rules without a key and queues. These rules use the port's
    // key and queues.
    let (rules, created, _) = run(|asked| asked.queues.is_empty(), ValidateAnswer::Truthful, true);
    assert_eq!(
        (rules, created),
        (both, vec![expected_rule(false, true, false), expected_rule(true, true, false)])
    );
    // Simulates a driver that supports only the RSS type SCTP, and only over IPv4.
    let port = u64::from(sys::DDPD_RSS_PORT);
    assert_eq!(port, 1 << 18);
    let (rules, created, _) =
        run(|asked| asked.types & 1 << 18 == 0 && !asked.ipv6, ValidateAnswer::Truthful, true);
    assert_eq!(rules, SctpRules { v4: true, v6: false });
    assert_eq!(created, vec![expected_rule(false, false, true)]);
}

fn rss_key() -> Vec<u8> {
    [0x6d, 0x5a].into_iter().cycle().take(40).collect()
}

fn redirection_table() -> Vec<u16> {
    (0..2).cycle().take(128).collect()
}

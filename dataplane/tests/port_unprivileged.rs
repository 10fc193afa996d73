//! Ports of an unprivileged user: ring and memif ports work, ports on Linux interfaces report the missing capability.
//! If the test runs as root, it runs itself again as user nobody.

mod port_common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use dataplane::port::{MemifRole, PortConfig, PortKind, PortQueue, RxBatch};

#[test]
fn ring_and_memif_need_no_privileges() {
    if port_common::role().is_some() || !rustix::process::geteuid().is_root() {
        check_ports_without_privileges();
        return;
    }
    // The build directory may be inaccessible to other users.
    let directory = std::env::temp_dir().join(format!("ddpd-nobody-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let program = directory.join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let nobody = 65_534;
    let output = Command::new(&program)
        .args(["ring_and_memif_need_no_privileges", "--exact", "--nocapture"])
        .env("DDPD_TEST_ROLE", "nobody")
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/")
        .uid(nobody)
        .gid(nobody)
        .stderr(Stdio::inherit())
        .output()
        .expect("root may become nobody");
    std::fs::remove_dir_all(&directory).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("all as expected"), "{text}");
}

fn check_ports_without_privileges() {
    assert!(!dpdk::has_capability(dpdk::CAP_NET_RAW), "the user has no capabilities");
    let ports = port_common::ports();
    let ring = |name: &str| PortConfig::new(name, PortKind::Ring { link: "r".to_owned() });
    let mut a = ports.open(&ring("a")).unwrap();
    let mut b = ports.open(&ring("b")).unwrap();
    pass_frame(&mut port_common::only_queue(&mut a), &mut port_common::only_queue(&mut b));

    let socket = std::env::temp_dir().join(format!("ddpd-user-{}.sock", std::process::id()));
    let memif = |role| {
        let kind = PortKind::Memif { socket: socket.clone(), role, id: 0, secret: None };
        PortConfig::new("m", kind)
    };
    let mut server = ports.open(&memif(MemifRole::Server)).unwrap();
    let mut client = ports.open(&memif(MemifRole::Client)).unwrap();
    port_common::wait_until("both are connected", || server.link().up && client.link().up);
    let mut queues = (port_common::only_queue(&mut server), port_common::only_queue(&mut client));
    pass_frame(&mut queues.0, &mut queues.1);
    pass_frame(&mut queues.1, &mut queues.0);

    let refused =
        |kind: PortKind| ports.open(&PortConfig::new("p", kind)).expect_err("it is refused");
    let device = || "lo".to_owned();
    let error = refused(PortKind::AfPacket { device: device() });
    assert!(error.to_string().contains("a packet socket needs CAP_NET_RAW"), "{error}");
    let error = refused(PortKind::Tap { device: "ddpdtap".to_owned() });
    assert!(error.to_string().contains("making a tap interface needs CAP_NET_ADMIN"), "{error}");
    let error = refused(PortKind::AfXdp { device: device(), first_queue: 0, force_copy: true });
    assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    assert_eq!(error.key(), "kind");
    let (address, devargs) = ("0000:ff:1f.7".to_owned(), String::new());
    let error = refused(PortKind::Pci { address, devargs });
    assert!(error.to_string().contains("must exist and be bound to vfio-pci"), "{error}");
    port_common::print_line("all as expected");
}

fn pass_frame(from: &mut PortQueue, to: &mut PortQueue) {
    for len in [60, 1514] {
        let bytes = port_common::pattern(len);
        port_common::send(from, &bytes);
        // A memif server can send once its client has polled: the client provides the buffers.
        let mut batch = RxBatch::new();
        port_common::wait_until("the frame arrives", || {
            from.flush();
            to.rx_burst(port_common::now(), &mut batch) > 0
        });
        assert_eq!(batch[0].data(), bytes);
    }
}

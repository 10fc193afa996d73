//! Tests of invalid ports and interfaces.

use super::*;

#[test]
fn invalid_ports_are_refused() {
    assert_each_port_error(&[
        (
            "",
            "t.toml:5: port.kind: is missing: write one of \"pci\", \"af_xdp\", \"af_packet\", \"tap\", \
             \"memif\", \"vhost-user\", \"ring\", \"pcap\"",
        ),
        (
            "kind = \"vhost\"",
            "t.toml:7: port.kind: is \"vhost\", but must be one of \"pci\", \"af_xdp\", \"af_packet\", \
             \"tap\", \"memif\", \"vhost-user\", \"ring\", \"pcap\"",
        ),
        (
            "kind = \"pci\"\naddress = \"03:00.0\"",
            "t.toml:8: port.address: is \"03:00.0\", but must be a PCI address as lspci -D prints it, \
             such as \"0000:03:00.0\"",
        ),
        (
            "kind = \"pci\"\naddress = \"0000.03.00.0\"",
            "t.toml:8: port.address: is \"0000.03.00.0\", but must be a PCI address as lspci -D prints it, \
             such as \"0000:03:00.0\"",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\nmac = \"+2:00:00:00:00:01\"",
            "t.toml:9: port.mac: is \"+2:00:00:00:00:01\", but must be a hardware address such as \
             \"02:00:00:00:00:01\"",
        ),
        (
            "kind = \"af_packet\"\ndevice = \"a/b\"",
            "t.toml:8: port.device: is \"a/b\", which no network interface can be called: see ip link",
        ),
        (
            "kind = \"af_packet\"",
            "t.toml:5: port.device: is missing: name the Linux interface, such as device = \"eth1\"",
        ),
        (
            "kind = \"tap\"\ndevice = \"ddp0\"\nlink = \"x\"",
            "t.toml:9: port.link: has no meaning for kind \"tap\": remove it",
        ),
        (
            "kind = \"memif\"\nsocket = \"m\"\nrole = \"master\"",
            "t.toml:9: port.role: is \"master\", but must be one of \"server\", \"client\"",
        ),
        (
            "kind = \"memif\"\nsocket = \"m\"\nrole = \"client\"\nsecret = \"0123456789012345678901234\"",
            "t.toml:10: port.secret: must have at most 24 bytes and no comma: choose another",
        ),
        (
            "kind = \"vhost-user\"",
            "t.toml:5: port.socket: is missing: write the path at which the frontend, such as QEMU, connects",
        ),
        (
            "kind = \"vhost-user\"\nsocket = \"v\"\nrole = \"server\"",
            "t.toml:9: port.role: has no meaning for kind \"vhost-user\": remove it",
        ),
        (
            "kind = \"pcap\"",
            "t.toml:5: port.rx_file: is missing: name the capture file to read frames from",
        ),
        (
            "kind = \"pcap\"\nrx_file = \"a\"\ntx_file = \"a\"",
            "t.toml:9: port.tx_file: is `rx_file` too, and would be emptied before it is read: name another",
        ),
        (
            "kind = \"pcap\"\nrx_file = \"a,b\"",
            "t.toml:8: port.rx_file: has a character that DPDK reserves: use none of , = [ ] \" ' \
             and space",
        ),
        (
            "kind = \"pcap\"\nrx_file = \"a\"\nworkers = [0, 1]\n[workers]\ncount = 2",
            "t.toml:9: port.workers: names several, but a pcap port has one queue: name one",
        ),
        (
            "kind = \"pcap\"\nrx_file = \"a\"\nlink = \"l\"",
            "t.toml:9: port.link: has no meaning for kind \"pcap\": remove it",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\nmtu = 65281",
            "t.toml:9: port.mtu: is 65281, but must be from 576 to 65280",
        ),
        (
            "kind = \"memif\"\nsocket = \"s\"\nrole = \"client\"\ntx_descriptors = 16384\nworkers = [0, 1, 2]\n[workers]\ncount = 3",
            "t.toml:10: port.tx_descriptors: makes 98304 buffers with these `workers`, but a memif shares at most 65536: lower \
             it, or name fewer workers",
        ),
        (
            "kind = \"tap\"\ndevice = \"t\"\nmtu = 9001",
            "t.toml:9: port.mtu: is 9001, but a port of kind \"tap\" carries at most 9000: lower it; only ring, memif \
             and vhost-user carry more",
        ),
        (
            "kind = \"af_packet\"\ndevice = \"e\"\nchecksum = \"trusted\"",
            "t.toml:9: port.checksum: cannot be \"trusted\" on a port that leaves the host: write \
             \"offload\" or \"software\"",
        ),
        (
            "kind = \"af_packet\"\ndevice = \"e\"\nimpair = { loss = 0.1 }",
            "t.toml:9: port.impair: has no meaning for kind \"af_packet\": remove it",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\nmac = \"01:00:00:00:00:00\"",
            "t.toml:9: port.mac: is 01:00:00:00:00:00, which no device can have: choose a unicast \
             address",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\nrx_descriptors = 1000",
            "t.toml:9: port.rx_descriptors: is 1000, but must be a power of two: write 1024",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\nworkers = [1]",
            "t.toml:9: port.workers: names worker 1, but the workers are 0 to 0: add a core to \
             [workers] or name another",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\nworkers = []",
            "t.toml:9: port.workers: is empty: name at least one worker, or remove it for all of them",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\n[port.impair]\nloss = \"101 %\"",
            "t.toml:10: port.impair.loss: must be a probability from 0 to 1 such as 0.01, or \"1 %\"",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\n[port.impair]\nrate = \"10 Gbps\"",
            "t.toml:10: port.impair.rate: is \"10 Gbps\", but must be a rate such as \"10 Gbit/s\" or \
             \"100 Mbit/s\"",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\n[port.impair]\nburst_loss = { enter = 0.1, leave = 0 }",
            "t.toml:10: port.impair.burst_loss.leave: is 0, so the first burst would never end: write \
             such as 0.25",
        ),
        (
            "kind = \"ring\"\nlink = \"l\"\n[port.impair]\nreorder = 0.1\nreorder_delay = \"0 s\"",
            "t.toml:11: port.impair.reorder_delay: is 0, so nothing would be reordered: write such as \
             \"200 us\"",
        ),
    ]);
}

#[test]
fn duplicate_names_and_devices_are_refused() {
    assert_each_error(&[
        (
            "[[port]]\nname = \"x\"\nkind = \"tap\"\ndevice = \"d\"\n[[port]]\nname = \"y\"\nkind = \
             \"af_packet\"\ndevice = \"d\"",
            "t.toml:8: port.device: d belongs to port \"x\" already: name another",
        ),
        (
            "[[port]]\nname = \"p\"\nkind = \"tap\"\ndevice = \"d\"",
            "t.toml:7: port.name: \"p\" is the name of an earlier port too: choose another",
        ),
        (
            "[[interface]]\nname = \"x\"\nport = \"p\"\nvlan = 5\naddresses = [\"10.0.0.1/24\"]",
            "t.toml:15: interface.addresses: 10.0.0.1 is there twice: remove one",
        ),
        (
            "[[interface]]\nname = \"x\"\nport = \"p\"\naddresses = [\"10.1.0.1/24\"]",
            "t.toml:13: interface.port: interface \"x\" is on the same port and VLAN: add the addresses \
             there, or write another vlan",
        ),
        (
            "[[region]]\nname = \"a\"\nsize = 1\naccess = \"r\"\npath = \"f\"\n\
             [[region]]\nname = \"b\"\nsize = 1\naccess = \"r\"\npath = \"f\"",
            "t.toml:10: region.path: belongs to region \"a\" already: name another",
        ),
        (
            "[[listener]]\nname = \"a\"\ninterface = \"lan\"\nport = 5\naddress = \"10.0.0.1\"\n\
             [[listener]]\nname = \"b\"\ninterface = \"lan\"\nport = 5",
            "t.toml:9: listener.port: 5 is taken by listener \"a\" on the same address: use another",
        ),
    ]);
}

#[test]
fn invalid_interfaces_are_refused() {
    let interface = |keys: &str| {
        format!(
            "[[port]]\nname = \"p\"\nkind = \"ring\"\nlink = \"l\"\nmtu = 1400\n\
                 [[interface]]\nname = \"lan\"\nport = \"p\"\n{keys}"
        )
    };
    let cases = [
        (
            "",
            "t.toml:6: interface.addresses: is missing: list at least one, such as [\"192.0.2.1/24\"]",
        ),
        (
            "addresses = [\"10.0.0.0/24\"]",
            "t.toml:9: interface.addresses: is 10.0.0.0/24, the network's own address or its broadcast: \
             choose another",
        ),
        (
            "addresses = [\"224.0.0.1/24\"]",
            "t.toml:9: interface.addresses: is 224.0.0.1, a multicast address, not that of one host: \
             choose another",
        ),
        (
            "addresses = [\"010.0.0.1/24\"]",
            "t.toml:9: interface.addresses: is \"010.0.0.1/24\", an old form of an IPv4 address, which programs read \
             differently: write four decimal numbers without leading zeros, such as 192.0.2.1",
        ),
        (
            "addresses = [\"::ffff:10.0.0.1/120\"]",
            "t.toml:9: interface.addresses: is \"::ffff:10.0.0.1/120\", an IPv4-mapped prefix: write 10.0.0.1/24",
        ),
        (
            "addresses = [\"fe80::1%lan/64\"]",
            "t.toml:9: interface.addresses: is \"fe80::1%lan/64\", an address with a zone, which is the name of an \
             interface: leave out `%` and what follows it",
        ),
        (
            "addresses = [\"2001:db8::/64\"]",
            "t.toml:9: interface.addresses: is 2001:db8::/64, the address of any router of the network: choose another",
        ),
        (
            "addresses = [\"10.0.0.1/24\"]\nvlan = 4095",
            "t.toml:10: interface.vlan: is 4095, but must be from 1 to 4094",
        ),
        (
            "addresses = [\"10.0.0.1/24\"]\nmtu = 1500",
            "t.toml:10: interface.mtu: is 1500, but its port has 1400: raise the port's mtu, or lower this one",
        ),
        (
            "addresses = [\"fd00::1/64\"]\nmtu = 1000",
            "t.toml:10: interface.mtu: mtu is 1000, but IPv6 needs 1280 or more: raise the mtu of \
             interface and port, or remove fd00::1",
        ),
        (
            "addresses = [\"10.0.0.1/24\"]\ngateway = \"10.0.1.1\"",
            "t.toml:10: interface.gateway: is 10.0.1.1, which is in no network of `addresses`: correct \
             one of the two",
        ),
        (
            "addresses = [\"10.0.0.1/24\"]\ngateway = [\"10.0.0.2\", \"10.0.0.3\"]",
            "t.toml:10: interface.gateway: is a second route to 0.0.0.0/0: remove one",
        ),
        (
            "addresses = [\"10.0.0.1/24\"]\nroutes = [{ to = \"10.1.0.1/16\", via = \"10.0.0.2\" }]",
            "t.toml:10: interface.routes.to: is 10.1.0.1/16, which has host bits set: write 10.1.0.0/16",
        ),
        (
            "addresses = [\"10.0.0.1/24\"]\nroutes = [{ to = \"fd00::/64\", via = \"10.0.0.2\" }]",
            "t.toml:10: interface.routes.via: is 10.0.0.2, of another family than fd00::/64: use the same",
        ),
        (
            "addresses = [\"10.0.0.1/24\"]\ngateway = \"10.0.0.1\"",
            "t.toml:10: interface.gateway: is 10.0.0.1, this interface's own address: name the router",
        ),
    ];
    for (keys, expected) in cases {
        assert_errors(&interface(keys), &[expected]);
    }
}

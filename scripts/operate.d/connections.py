"""Streams that are not established, or end; hosts that use other protocols."""

import contextlib
import os
import shutil
import subprocess
import sys

from operate import TIMEOUT, LeftOut, expect, situation, until
from own import Ddpd, events, text

LISTENER = """
[[region]]
name = "inbox"
size = "64 KiB"
access = "{access}"
shared = true
[[listener]]
name = "in"
interface = "lan"
port = 7471
regions = ["inbox"]
[listener.limits]
streams = {streams}
streams_per_peer = {streams}
pending = {streams}
"""


def pair(on, name, access="w", streams=4, more=""):
    """Starts two appliances joined by a ring: `a` with a listener, `b` without."""
    listens = LISTENER.format(access=access, streams=streams)
    return Ddpd(on, on.directory / name, {"a": text("a", 1, more=more + listens), "b": text("b", 2)})


def failed(on, of, reason):
    """Waits for an event handshake_failed with this reason, and returns the last one."""
    def seen():
        found = [event for event in events(on, of, "handshake_failed") if event["reason"] == reason]
        return found and found[-1]
    return until(seen, f"no handshake_failed with the reason {reason}")


@situation("connect to a port without a listener: exit 4 and a hint; at the other end handshake_failed with a hint")
def nobody_listens(on):
    code, _, err = on.ctl("connect", "tcp://10.77.0.1:7")
    expect(code == 4 and "refused by the peer" in err and "hint: nothing listens there" in err, f"exit {code}: {err.strip()}")
    event = failed(on, "demo", "no_listener")
    expect(event["local"].endswith(":7") and event["hint"], str(event))
    return err.splitlines()[0]


@situation("connect to an address without a host: exit 1 and a hint, within the time-out")
def no_such_host(on):
    code, _, err = on.ctl("connect", "tcp://10.77.0.99:7471")
    expect(code == 1 and "no answer to address resolution" in err and "hint: " in err, f"exit {code}: {err.strip()}")
    return err.splitlines()[0]


@situation("the wrong ULP: both ends name it, with the remedy")
def wrong_ulp(on):
    code, _, err = on.ctl("get", "rdmap://10.77.0.1:7471/inbox", "got.bin")
    expect(code == 4 and "wrong_ulp" in err and "hint: the listener has ulp" in err, f"exit {code}: {err.strip()}")
    event = failed(on, "demo", "wrong_ulp")
    expect(event["stage"] == "admission" and event["listener"] == "ingest", str(event))
    return event["detail"]


@situation("put to a region that the peer does not offer: exit 4, and the offered regions")
def no_such_region(on):
    (on.directory / "small.bin").write_bytes(bytes(1000))
    code, _, err = on.ctl("put", "small.bin", "tcp://10.77.0.1:7471/outbox")
    expect(code == 4 and "no region `outbox` (it offers: inbox)" in err, f"exit {code}: {err.strip()}")
    return err.strip()


@situation("put to a region that peers may only read: exit 4, and the missing right")
def not_writable(on):
    with pair(on, "readable", access="r") as ddpd:
        (on.directory / "small.bin").write_bytes(bytes(1000))
        code, _, err = ddpd.ctl("b", "put", str(on.directory / "small.bin"), "tcp://10.79.0.1:7471/inbox")
        expect(code == 4 and "not open to writes" in err, f"exit {code}: {err.strip()}")
        return err.strip()


@situation("a listener at its limit of streams: exit 4 with listener_full, an event and a counter")
def full_listener(on):
    with pair(on, "full", streams=1) as ddpd:
        ddpd.json("b", "connect", "tcp://10.79.0.1:7471")
        code, _, err = ddpd.ctl("b", "connect", "tcp://10.79.0.1:7471")
        expect(code == 4 and ("listener_full" in err or "peer_full" in err), f"exit {code}: {err.strip()}")
        reason = "listener_full" if "listener_full" in err else "peer_full"
        failed(on, ddpd.directory / "a", reason)
        counted = ddpd.json("a", "stats")["handshakes"]
        expect(any(one["reason"] == reason and one["count"] > 0 for one in counted), str(counted))
        return err.splitlines()[0]


@situation("a removed listener accepts no streams; its open streams continue")
def removed_listener(on):
    with pair(on, "removed") as ddpd:
        stream = ddpd.json("b", "connect", "tcp://10.79.0.1:7471")["id"]
        code, _, err = ddpd.ctl("a", "listeners", "remove", "in")
        expect(code == 0, err)
        code, _, err = ddpd.ctl("b", "connect", "tcp://10.79.0.1:7471")
        expect(code == 4 and "refused by the peer" in err, f"exit {code}: {err.strip()}")
        expect(ddpd.json("b", "streams", "show", stream)["state"] == "established", "its stream is gone")
        return err.splitlines()[0]


@situation("send to a queue that the peer does not have: exit 4 with DDP's error")
def unknown_queue(on):
    code, _, err = on.ctl("send", "--queue", "99", "tcp://10.77.0.1:7471", "hello")
    expect(code == 4 and "error 2/01" in err, f"exit {code}: {err.strip()}")
    return err.splitlines()[0]


@situation("send on an open stream of bare DDP: exit 5, acknowledged and not confirmed; send on a stream of its own: confirmed")
def unconfirmed(on):
    stream = on.json("connect", "tcp://10.77.0.1:7471")["id"]
    code, _, err = on.ctl("send", stream, "hello")
    expect(code == 5 and "not confirmed" in err, f"exit {code}: {err.strip()}")
    on.ctl("streams", "close", stream)
    code, out, err = on.ctl("send", "tcp://10.77.0.1:7471", "hello")
    expect(code == 0 and "confirmed" in out, f"exit {code}: {out} {err}")
    return out.strip()


@situation("seventy deliveries evict no warning: events keeps warnings in a separate ring")
def kept_events(on):
    on.ctl("connect", "tcp://10.77.0.1:9")
    stream = on.json("connect", "tcp://10.77.0.1:7471")["id"]
    for _ in range(70):
        on.ctl("send", stream, "hello", "--wait-reply", "5s")
    on.ctl("streams", "close", stream)
    warnings = on.ctl("events", "--severity", "warning", of="demo")[1]
    expect("10.77.0.1:9 " in warnings, warnings[-500:])
    return f"{len(warnings.splitlines())} warnings"


@contextlib.contextmanager
def beside_kernel(on, name):
    """Runs an appliance on a tap interface in a network namespace. Yields the appliance, the command prefix that runs a
    program in the namespace, and the interface. The kernel's address is 10.79.0.2."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise LeftOut("needs root and ip(8), for a network namespace with a tap interface")
    space, device = f"ddpd-operate-{os.getpid()}", f"dop{os.getpid() % 100000}"
    inside = ["ip", "netns", "exec", space]
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        port = f'kind = "tap"\ndevice = "{device}"\n'
        of = text("a", 1, port=port, more=LISTENER.format(access="w", streams=4))
        with Ddpd(on, on.directory / name, {"a": of}, wrap=inside) as ddpd:
            for command in (["addr", "add", "10.79.0.2/24", "dev", device], ["link", "set", device, "up"]):
                subprocess.run([*inside, "ip", *command], check=True)
            yield ddpd, inside, device
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)


CLIENT = """
import socket, ssl, sys
peer = socket.create_connection(("10.79.0.1", 7471), 20)
kind = sys.argv[1]
if kind == "http":
    peer.sendall(b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
elif kind == "tls":
    try:
        ssl._create_unverified_context().wrap_socket(peer)
    except (OSError, ssl.SSLError):
        sys.exit()
if kind != "scan":
    try:
        peer.settimeout(20)
        peer.recv(1)
    except OSError:
        pass
"""


def client(on, name, kind, reason):
    with beside_kernel(on, name) as (ddpd, inside, _):
        subprocess.run([*inside, sys.executable, "-c", CLIENT, kind], check=True, timeout=TIMEOUT)
        event = failed(on, ddpd.directory / "a", reason)
        expect(event["stage"] == "mpa" and event["remote"].startswith("10.79.0.2:"), str(event))
        expect(not ddpd.json("a", "stats")["workers"][0]["errors"], "it counts as a protocol error")
        return f"{event['detail']}; {event['hint']}"


@situation("an HTTP client on the port: handshake_failed names HTTP and the remedy")
def http_client(on):
    return client(on, "http", "http", "http")


@situation("a TLS client on the port: handshake_failed names TLS")
def tls_client(on):
    return client(on, "tls", "tls", "tls")


@situation("a port scanner: handshake_failed says that it closed before its request; no protocol error is counted")
def scanner(on):
    return client(on, "scan", "scan", "closed")


@situation("another host with the appliance's address: a note and an event name its link-layer address; the note ends with the conflict")
def duplicate_address(on):
    with beside_kernel(on, "duplicate") as (ddpd, inside, device):
        subprocess.run([*inside, "ip", "addr", "add", "10.79.0.1/24", "dev", device], check=True)
        # The kernel answers ARP requests for the address, but does not announce it.
        subprocess.run([*inside, sys.executable, "-c", ARP, device], check=True, timeout=TIMEOUT)
        def notes():
            return [note for note in ddpd.json("a", "status")["notes"] if "10.79.0.1 is also used by the host" in note]
        note = until(notes, "no note")[0]
        expect(events(on, ddpd.directory / "a", "address_conflict"), "no event")
        subprocess.run([*inside, "ip", "addr", "del", "10.79.0.1/24", "dev", device], check=True)
        until(lambda: not notes(), "the note stays", timeout=120)
        return note


# Sends a gratuitous ARP request for 10.79.0.1 on the interface.
ARP = """
import socket, sys
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((sys.argv[1], 0x0806))
mac, address = raw.getsockname()[4], bytes([10, 79, 0, 1])
raw.send(b"\\xff" * 6 + mac + bytes.fromhex("08060001080006040001") + mac + address + bytes(6) + address)
"""


@situation("a second process on the same interface: exit 2, and the process that uses it")
def taken_interface(on):
    with beside_kernel(on, "interface") as (_, inside, device):
        port = f'kind = "af_packet"\ndevice = "{device}"\n'
        first, second = ({name: text(name, host, port=port)} for name, host in (("c", 3), ("d", 4)))
        with Ddpd(on, on.directory / "interface", first, wrap=inside) as holder:
            (on.directory / "interface" / "d.toml").write_text(second["d"])
            command = [*inside, on.programs / "ddpd", "--config", "d.toml"]
            ran = subprocess.run(command, cwd=on.directory / "interface", capture_output=True, text=True, timeout=TIMEOUT)
            sentence = ran.stderr.strip().splitlines()[-1]
            named = f"interface {device} is used by process {holder.process.pid}" in sentence
            expect(ran.returncode == 2 and named, f"exit {ran.returncode}: {sentence}")
            return sentence


# An unprivileged user that holds abstract names and tries to open the sockets by which ddpd claims: packet sockets and XFRM groups.
SQUATTER = """
import os, socket, sys
os.setgroups([]); os.setgid(12345); os.setuid(12345)
stream, datagrams = (socket.socket(socket.AF_UNIX, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))
stream.bind("\\0ddpd/interface/" + sys.argv[1]); stream.listen(1)
datagrams.bind("\\0ddpd-xfrm")
refused = 0
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
except PermissionError:
    refused += 1
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6).bind((0, 0x6e))
except PermissionError:
    refused += 1
print(refused, flush=True)
sys.stdin.read()
"""


@situation("an unprivileged user cannot claim an interface or the kernel's SAs; a second ddpd that claims them: exit 2, and the process that holds them")
def names_held_by_a_user(on):
    with beside_kernel(on, "squatted") as (_, inside, device):
        command = [*inside, sys.executable, "-c", SQUATTER, device]
        squatter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            refused = squatter.stdout.readline().strip()
            expect(refused == "2", f"the user has sockets that take a capability: {refused}")
            port = f'kind = "af_packet"\ndevice = "{device}"\n'
            first = text("c", 3, port=port, more='[ipsec]\nkeys = "kernel"\n')
            with Ddpd(on, on.directory / "squatted", {"c": first}, wrap=inside) as holder:
                # A second ddpd on another device, which claims the same SAs.
                second = text("d", 4, port='kind = "ring"\nlink = "x"\n', more='[ipsec]\nkeys = "kernel"\n')
                third = text("e", 5, port='kind = "ring"\nlink = "x"\n')
                for name, of in (("d", second), ("e", third)):
                    (on.directory / "squatted" / f"{name}.toml").write_text(of)
                command = [*inside, on.programs / "ddpd", "--config", "d.toml", "--config", "e.toml"]
                ran = subprocess.run(command, cwd=on.directory / "squatted", capture_output=True, text=True, timeout=TIMEOUT)
                sentence = (ran.stderr.strip().splitlines() or [""])[-1]
                named = "has the kernel's SAs" in sentence and f"is {holder.process.pid})" in sentence
                expect(ran.returncode == 2 and named, f"exit {ran.returncode}: {sentence}")
                return sentence
        finally:
            squatter.kill()
            squatter.wait()


@situation("a peer in `deny` gets no answer, and an event names the list; after a reload that allows the peer it connects")
def peers_that_may_connect(on):
    directory = on.directory / "peers"
    listens = LISTENER.format(access="w", streams=4).replace("port = 7471", 'port = 7471\ndeny = ["10.79.0.2/32"]')
    with Ddpd(on, directory, {"a": text("a", 1, more=listens), "b": text("b", 2)}) as ddpd:
        code, _, err = ddpd.ctl("b", "connect", "tcp://10.79.0.1:7471", "--timeout", "2s")
        expect(code not in (0, 2) and "refused" not in err, f"exit {code}: {err.strip()}")
        refused = failed(on, directory / "a", "peer_refused")
        expect(refused["stage"] == "admission" and "deny" in refused["detail"], str(refused))
        file = directory / "a.toml"
        file.write_text(file.read_text().replace("deny =", "allow ="))
        code, _, err = ddpd.ctl("a", "reload")
        expect(code == 0, f"reload exits with {code}: {err.strip()}")
        code, _, err = ddpd.ctl("b", "connect", "tcp://10.79.0.1:7471")
        expect(code == 0, f"the allowed peer: exit {code}: {err.strip()}")
    return refused["detail"]


@situation("a name with a reachable and an unreachable address: the stream opens; if no address is reachable, the error names each")
def name_with_two_addresses(on):
    hosts = on.directory / "two-addresses.hosts"
    hosts.write_text("fd09::2 dual\n10.79.0.1 dual\n")
    bound = ["unshare", "-m", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
    if subprocess.run([*bound, "true"], capture_output=True).returncode != 0:
        raise LeftOut("/etc/hosts cannot be replaced: unshare is not allowed here")
    (on.directory / "small.bin").write_bytes(bytes(1000))
    with pair(on, "names") as ddpd:
        def ctl(*arguments):
            command = [*bound, on.programs / "ddpctl", "--socket", ddpd.directory / "b.sock", *arguments]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
            return ran.returncode, ran.stdout, ran.stderr
        code, out, err = ctl("put", str(on.directory / "small.bin"), "TCP://dual:7471/inbox")
        expect(code == 0 and "to 10.79.0.1:7471" in out, f"exit {code}: {out} {err}")
        code, out, err = ctl("--json", "connect", "dual:7471")
        expect(code == 0 and '"10.79.0.1:7471"' in out, f"exit {code}: {out} {err}")
        code, _, err = ctl("connect", "dual:9")
        each = ("[fd09::2]:9 was not tried: no interface has a route to fd09::2", "10.79.0.1:9: TCP connection refused")
        expect(code == 4 and all(one in err for one in each), f"exit {code}: {err.strip()}")
        return err.splitlines()[0]


@situation("a link-local address: the zone selects the interface; without a zone, the only interface is used, or the error names each")
def zones(on):
    two = """
[[port]]
name = "q"
kind = "ring"
link = "other"
[[interface]]
name = "side"
port = "q"
addresses = ["fd79:1::{host}/64"]
"""
    listens = LISTENER.format(access="w", streams=4)
    def configured(name, host, more):
        port = f'kind = "ring"\nlink = "own"\nmac = "02:00:00:00:79:0{host}"\n'
        v6 = f'addresses = ["10.79.0.{host}/24", "fd79::{host}/64"]'
        return text(name, host, port=port, more=more).replace(f'addresses = ["10.79.0.{host}/24"]', v6)
    peer = "fe80::ff:fe00:7901"
    texts = {"a": configured("a", 1, two.format(host=1) + listens), "b": configured("b", 2, two.format(host=2))}
    with Ddpd(on, on.directory / "zones", texts) as ddpd:
        for zone in ("%25lan", "%lan"):
            opened = ddpd.json("b", "connect", f"tcp://[{peer}{zone}]:7471")
            expect(opened["remote"] == f"[{peer}]:7471", str(opened))
        for host, sentence in [
            (f"[{peer}]", "name one of lan, side as its zone"),
            (f"[{peer}%25back]", "there is no interface `back`: the interfaces are lan, side"),
            ("[fd79::1%25lan]", "is not a link-local address"),
            ("[::ffff:10.79.0.1]", "write 10.79.0.1"),
            ("0x0a4f0001", "an old form of an IPv4 address"),
        ]:
            code, _, err = ddpd.ctl("b", "connect", f"tcp://{host}:7471")
            expect(code == 2 and sentence in err, f"{host}: exit {code}: {err.strip()}")
    with Ddpd(on, on.directory / "zone", {"a": configured("a", 1, listens), "b": configured("b", 2, "")}) as ddpd:
        opened = ddpd.json("b", "connect", f"tcp://[{peer}]:7471")
        expect(opened["remote"] == f"[{peer}]:7471", str(opened))
        return f"{opened['local']} to {opened['remote']}"

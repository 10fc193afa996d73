#!/usr/bin/env python3
"""Part of scripts/interop: compares the appliance's TCP with the kernel's under equal losses.

    namespace a: ddpd (10.78.1.2)  ----+
    namespace s: kernel sender     ----+---- namespace m: router, drops 1 frame in N ---- (each other)
       (10.78.2.2)                     |
    namespace r: kernel receiver   ----+
       (10.78.3.2)                     |
    namespace c: kernel sender     ----+
       (10.78.4.2), for --control

Every role transfers the same file in the same way: MPA with CRC over one stream. The roles differ in the TCP of sender and
receiver:

    kernel     s -> r    kernel sockets on both sides (CUBIC): the reference
    sender     a -> r    the appliance sends, the kernel receives
    receiver   s -> a    the kernel sends, the appliance receives

The router drops every N-th data frame of the sender (nftables `numgen inc`), so that the pattern repeats. Segmentation
offloads are off everywhere. The roles alternate; medians and spreads are over the rounds. Then a stream of the appliance
and one of the kernel share a link of a fixed rate (tbf) to r.

On the shared link, every packet takes about --distance-us to the queue, with jitter. Without this delay the kernel's sender
responds to an acknowledgement in the interrupt in which the queue released the acknowledged frame, and fills the free place
in the queue before any sender that must be woken. A kernel's flow through a program that only forwards its frames then has
only 0.28 to 0.49 of the link when it competes with another kernel's flow.

Also, each device passes its frames to one CPU (RPS). Otherwise a veth passes them to the CPU of the sender, and a flow whose
sender moves to another CPU is reordered. A round in which the kernel counts reordering fails. With --control a kernel's flow
replaces the appliance's.

Prints tables, or JSON with --json. Fails if a transfer fails or its bytes differ, not for a low rate.
"""

import argparse
import ctypes
import fcntl
import hashlib
import heapq
import json
import os
import random
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOSSES = {"none": None, "1 in 1009": 1009, "1 in 101": 101}
ROLES = ("kernel", "sender", "receiver")
HOSTS = {"a": 1, "s": 2, "r": 3, "c": 4}
STALL = 30.0
CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0001, 0x1000
# Counters of reordering in the kernel's sender.
REORDERED = ("TCPSACKReorder", "TCPRenoReorder", "TCPTSReorder")


def address(host):
    return f"10.78.{HOSTS[host]}.2"


def gateway(host):
    return f"10.78.{HOSTS[host]}.1"


class Failed(Exception):
    """A transfer or a comparison failed."""


class Net:
    """The namespaces of router and hosts. close() removes them."""

    def __init__(self, mtu):
        self.tag = f"ddl{os.getpid()}"
        self.mtu = mtu
        self.names = []

    def name(self, host):
        return self.tag + host

    def run(self, host, *command, text=None):
        done = subprocess.run(
            ["ip", "netns", "exec", self.name(host), *command],
            input=text, capture_output=True, text=True, check=False,
        )
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def open(self):
        for host in ("m", *HOSTS):
            subprocess.run(["ip", "netns", "add", self.name(host)], check=True)
            self.names.append(self.name(host))
        for host in HOSTS:
            subprocess.run(
                ["ip", "link", "add", "wire0", "netns", self.name(host), "type", "veth",
                 "peer", "name", f"to-{host}", "netns", self.name("m")], check=True)
            for where, device in ((host, "wire0"), ("m", f"to-{host}")):
                self.run(where, "ethtool", "-K", device, "tx", "off", "rx", "off", "gso", "off", "tso", "off", "gro", "off")
                self.run(where, "ip", "link", "set", "dev", device, "mtu", str(self.mtu), "up")
            self.run("m", "ip", "address", "add", f"{gateway(host)}/24", "dev", f"to-{host}")
        for host in ("s", "r", "c"):
            self.run(host, "ip", "address", "add", f"{address(host)}/24", "dev", "wire0")
            self.run(host, "ip", "route", "add", "default", "via", gateway(host))
            self.run(host, "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1")
        # The kernel of the appliance's namespace has no addresses.
        self.run("a", "sysctl", "-qw", "net.ipv6.conf.wire0.disable_ipv6=1")
        self.run("m", "sysctl", "-qw", "net.ipv4.ip_forward=1")

    def loss(self, host, one_in):
        """Makes the router drop and count every `one_in`-th data frame from `host`; None: no frame."""
        self.run("m", "nft", "flush", "ruleset")
        if one_in is None:
            return
        self.run("m", "nft", "-f", "-", text=f"""
            table netdev loss {{
                chain drops {{
                    type filter hook ingress device "to-{host}" priority 0;
                    ip protocol tcp ip length > 200 numgen inc mod {one_in} == 0 counter drop
                }}
            }}""")

    def dropped(self):
        rules = json.loads(self.run("m", "nft", "-j", "list", "ruleset"))["nftables"]
        counters = [e["counter"] for r in rules if "rule" in r for e in r["rule"]["expr"] if "counter" in e]
        return sum(c["packets"] for c in counters)

    def bottleneck(self, mbit, latency_ms):
        """Limits the link to r to a fixed rate, with one queue."""
        self.run("m", "tc", "qdisc", "replace", "dev", "to-r", "root", "tbf", "rate", f"{mbit}mbit",
                 "burst", "32kb", "latency", f"{latency_ms}ms")

    def in_order(self, host, device):
        """Passes all frames that the device receives to one CPU."""
        self.run(host, "sh", "-c", f"echo 1 >/sys/class/net/{device}/queues/rx-0/rps_cpus")

    def kernel_sender(self, host):
        """Returns the TCP counters of the host's kernel."""
        lines = self.run(host, "cat", "/proc/net/netstat").splitlines()
        rows = zip(lines[::2], lines[1::2])
        return {name: int(n) for names, values in rows for name, n in zip(names.split()[1:], values.split()[1:])}

    def count_arrivals(self, ours):
        self.run("r", "nft", "-f", "-", text=f"""
            table netdev arrivals {{
                counter ours {{ }}
                counter kernels {{ }}
                chain count {{
                    type filter hook ingress device "wire0" priority 0;
                    ip saddr {address(ours)} counter name "ours"
                    ip saddr {address("s")} counter name "kernels"
                }}
            }}""")

    def arrivals(self):
        listed = json.loads(self.run("r", "nft", "-j", "list", "counters"))["nftables"]
        return {c["counter"]["name"]: c["counter"]["bytes"] for c in listed if "counter" in c}

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Distance:
    """Delay between the senders and the queue: `micros` for each packet, plus or minus up to half at random, without reordering
    within a flow. A process of the router forwards the packets from one tun device to another."""

    def __init__(self, net, micros):
        self.net, self.micros = net, micros
        ends = []
        for name in ("far0", "far1"):
            ends.append(self.device(name))
            net.run("m", "ip", "link", "set", "dev", name, "mtu", str(net.mtu), "txqueuelen", str(self.BOUND), "up")
            net.in_order("m", name)
        net.run("m", "ip", "route", "replace", address("r"), "dev", "to-r", "table", "7")
        net.run("m", "ip", "rule", "add", "iif", "far1", "lookup", "7")
        net.run("m", "ip", "route", "add", address("r"), "dev", "far0")
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                self.carry(*ends)
            finally:
                os._exit(1)
        for end in ends:
            os.close(end)

    BOUND = 10000

    def device(self, name):
        """Creates a tun device in the router's namespace. Returns its descriptor."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/self/ns/net", "rb") as here, open(f"/run/netns/{self.net.name('m')}", "rb") as there:
            if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
                raise Failed(f"setns: {os.strerror(ctypes.get_errno())}")
            try:
                end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
            finally:
                libc.setns(here.fileno(), CLONE_NEWNET)
        return end

    def carry(self, source, sink):
        rng = random.Random(1)
        waiting, last, count = [], {}, 0
        while True:
            rest = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
            select.select([source], [], [], rest)
            now = time.monotonic()
            try:
                while len(waiting) < self.BOUND:
                    packet = os.read(source, 2048)
                    flow = packet[12:16]  # the sender's address
                    due = max(last.get(flow, 0.0), now + self.micros * 1e-6 * rng.uniform(0.5, 1.5))
                    last[flow] = due
                    count += 1
                    heapq.heappush(waiting, (due, count, packet))
            except BlockingIOError:
                pass
            while waiting and waiting[0][0] <= now:
                os.write(sink, heapq.heappop(waiting)[2])

    def close(self):
        """Ends the process, and with it the devices and the routes over them."""
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        self.net.run("m", "ip", "rule", "del", "iif", "far1", "lookup", "7")


class Bench:
    def __init__(self, args, net, work):
        self.args, self.net, self.work = args, net, work
        self.ctl = [args.ddpctl, "--socket", str(work / "a.sock"), "--json"]
        self.children = []
        # Two different files alternate, so that a transfer that places nothing is detected.
        self.files = [self.make_file(n, args.mib) for n in (0, 1)]
        self.turn = 0

    def make_file(self, n, mib):
        path = self.work / f"file{n}.bin"
        chunk = hashlib.shake_256(bytes([n])).digest(1 << 20)
        with path.open("wb") as out:
            for index in range(mib):
                out.write(bytes([index & 0xFF]) + chunk[1:])
        return path

    def spawn(self, host, command, name):
        out = (self.work / f"{name}.out").open("w")
        err = (self.work / f"{name}.err").open("w")
        child = subprocess.Popen(["ip", "netns", "exec", self.net.name(host), *command], stdout=out, stderr=err)
        self.children.append(child)
        return child

    def said(self, name):
        return "".join((self.work / f"{name}.{end}").read_text() for end in ("out", "err")).strip()

    def until(self, what, test, child=None, seconds=STALL):
        deadline = time.monotonic() + seconds
        while not test():
            if child is not None and child.poll() is not None and not test():
                raise Failed(f"{what}: the program has ended with {child.returncode}")
            if time.monotonic() > deadline:
                raise Failed(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.02)

    def end(self, child):
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.children.remove(child)

    def start_appliance(self):
        (self.work / "a.toml").write_text(f"""
name = "loss"
[workers]
count = 1
idle = "adaptive"
[[port]]
name = "wire"
kind = "{self.args.port}"
device = "wire0"
mtu = {self.net.mtu}
[[interface]]
name = "front"
port = "wire"
addresses = ["{address('a')}/24"]
gateway = ["{gateway('a')}"]
[[region]]
name = "sink"
size = "{self.args.mib} MiB"
access = "w"
[[listener]]
name = "ingest"
interface = "front"
port = 7471
regions = ["sink"]
markers = {str(self.args.markers == 'on').lower()}
[files]
paths = ["{self.work}"]
[management]
socket = "{self.work}/a.sock"
""")
        child = self.spawn("a", [self.args.ddpd, "--config", str(self.work / "a.toml")], "ddpd")
        self.until("ddpd", lambda: "ready" in self.said("ddpd"), child)

    def control(self, *command):
        done = subprocess.run([*self.ctl, *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"ddpctl {' '.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def serve(self, name, port, mib, file=None):
        kept = [] if file is None else ["--file", str(file)]
        child = self.spawn("r", [
            self.args.ddpctl, "--json", "serve-kernel", f"{address('r')}:{port}", "--size", f"{mib}MiB",
            *kept, "--markers", self.args.markers, "--connections", "1"], name)
        self.until("the kernel's receiver", lambda: self.said(name) != "", child)
        return child

    def put(self, host, file, url):
        """Returns the command that sends `file`, through the appliance (host a) or over kernel sockets."""
        kernel = [] if host == "a" else ["--kernel", "--congestion", "cubic", "--timeout", "300s"]
        return [*self.ctl, "put", *kernel, "--markers", self.args.markers, str(file), url]

    def compare(self, file, arrived, what):
        done = subprocess.run(["cmp", str(file), str(arrived)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{what}: {done.stdout.strip() or done.stderr.strip()}")

    def transfer(self, role, one_in):
        """Transfers a file in one role and compares it. Returns the rate measured by the sender, Gbit/s."""
        self.turn ^= 1
        file = self.files[self.turn]
        source = "a" if role == "sender" else "s"
        self.net.loss(source, one_in)
        if role == "receiver":
            url, served = f"tcp://{address('a')}:7471/sink", None
        else:
            url = f"tcp://{address('r')}:7475/inbox"
            served = self.serve("served", 7475, self.args.mib, self.work / "arrived.bin")
        done = subprocess.run(["ip", "netns", "exec", self.net.name(source), *self.put(source, file, url)],
                              capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise Failed(f"{role}: {done.stderr.strip()}")
        if served is not None:
            if served.wait(STALL) != 0:
                raise Failed(f"{role}: {self.said('served')}")
            self.children.remove(served)
        else:
            self.control("regions", "read", "sink", "--output", str(self.work / "arrived.bin"))
        self.compare(file, self.work / "arrived.bin", role)
        if one_in is not None and self.net.dropped() == 0:
            raise Failed(f"{role}: the router has dropped nothing")
        return json.loads(done.stdout)["gbit_per_s"]

    def losses(self):
        results = {loss: {role: [] for role in ROLES} for loss in LOSSES}
        for number in range(self.args.rounds):
            for loss, one_in in LOSSES.items():
                for role in ROLES:
                    results[loss][role].append(self.transfer(role, one_in))
            print(f"round {number + 1} of {self.args.rounds}", file=sys.stderr)
        return results

    def share(self, ours="a"):
        """Runs a stream of the appliance and one of the kernel through one queue. Returns the bytes of each that reached r.
        With `ours` = "c", a stream of another kernel replaces the appliance's."""
        self.net.loss("a", None)
        self.net.run("r", "nft", "flush", "ruleset")
        self.net.bottleneck(self.args.mbit, 10)
        for host in HOSTS:
            self.net.in_order(host, "wire0")
            self.net.in_order("m", f"to-{host}")
        self.net.count_arrivals(ours)
        # A sparse file, longer than either can send in the time.
        mib = int(self.args.mbit * self.args.share_seconds / 8) + 1
        file = self.work / "long.bin"
        with file.open("wb") as out:
            out.truncate(mib << 20)
        distance = Distance(self.net, self.args.distance_us) if self.args.distance_us else None
        try:
            return self.race(ours, mib, file)
        finally:
            if distance is not None:
                distance.close()

    def race(self, ours, mib, file):
        servers = [self.serve("shared-ours", 7476, mib), self.serve("shared-kernels", 7477, mib)]
        senders = []
        before = self.net.kernel_sender("s")
        for host, port, name in ((ours, 7476, "put-ours"), ("s", 7477, "put-kernels")):
            senders.append(self.spawn(host, self.put(host, file, f"tcp://{address('r')}:{port}/inbox"), name))
        began = self.net.arrivals()
        deadline = time.monotonic() + self.args.share_seconds
        while time.monotonic() < deadline and all(s.poll() is None for s in senders):
            time.sleep(0.1)
        if any(s.poll() is not None for s in senders):
            raise Failed(f"sharing: {self.said('put-ours')} {self.said('put-kernels')}")
        now = self.net.arrivals()
        after = self.net.kernel_sender("s")
        for child in (*senders, *servers):
            self.end(child)
        for job in self.control("jobs", "list"):
            if job.get("state") in ("running", "connecting"):
                self.control("jobs", "cancel", str(job["id"]))
        reordered = {name: after[name] - before[name] for name in REORDERED if after.get(name, 0) != before.get(name, 0)}
        if reordered:
            raise Failed(f"sharing: the rig has reordered the kernel's flow: {reordered}")
        arrived = {name: now[name] - began[name] for name in now}
        total = sum(arrived.values())
        recoveries = after["TCPSackRecovery"] - before["TCPSackRecovery"]
        return {"mbit": self.args.mbit, "bytes": arrived, "ours": arrived["ours"] / total, "kernel_recoveries": recoveries}

    def close(self):
        for child in list(self.children):
            self.end(child)


def summary(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "values": values}


def report(args, results, shared):
    rows = []
    for loss, roles in results.items() if args.rounds else ():
        base = statistics.median(roles["kernel"])
        for role, values in roles.items():
            rows.append({"loss": loss, "role": role, **summary(values), "ratio": statistics.median(values) / base})
    answer = {"port": args.port, "mtu": args.mtu, "mib": args.mib, "markers": args.markers, "rounds": args.rounds,
              "distance_us": args.distance_us, "control": args.control, "rows": rows, "shared_link": shared}
    if args.json:
        json.dump(answer, sys.stdout)
        print()
        return
    shares = sorted(run["ours"] for run in shared)
    print(f"{args.port}, MTU {args.mtu}, {args.mib} MiB, markers {args.markers}, {args.rounds} rounds; Gbit/s")
    print(f"{'LOSS':<10} {'ROLE':<9} {'MEDIAN':>7} {'LEAST':>7} {'MOST':>7}  OF KERNEL TO KERNEL")
    for row in rows:
        print(f"{row['loss']:<10} {row['role']:<9} {row['median']:7.2f} {row['least']:7.2f} {row['most']:7.2f}  {row['ratio']:.2f}")
    for run in shared:
        ours = run["bytes"]["ours"] / 1e6
        kernels = run["bytes"]["kernels"] / 1e6
        print(f"one link of {run['mbit']} Mbit/s: ours {ours:.0f} MB, the kernel's {kernels:.0f} MB: our share {run['ours']:.2f}")
    if len(shares) > 1:
        print(f"our share of the link, median of {len(shares)}: {statistics.median(shares):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ddpd", required=True)
    parser.add_argument("--ddpctl", required=True)
    parser.add_argument("--rounds", type=int, default=7, help="0: only the shared link")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--markers", choices=("on", "off"), default="off")
    parser.add_argument("--port", choices=("af_packet", "af_xdp"), default="af_packet")
    parser.add_argument("--mbit", type=int, default=200, help="rate of the shared link")
    parser.add_argument("--share-seconds", type=float, default=20, help="time on the shared link")
    parser.add_argument("--share-rounds", type=int, default=3)
    parser.add_argument("--distance-us", type=int, default=1000, help="from the senders to the shared link; 0: none")
    parser.add_argument("--control", action="store_true", help="another kernel's flow instead of ours on the shared link")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("loss: needs root, to make network namespaces")
    # Other programs would take cores from the appliance and from Distance, but not from the kernel's interrupts.
    os.nice(-15)
    # SIGTERM also removes the namespaces.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="ddpd-loss."))
    net = Net(args.mtu)
    bench = None
    try:
        net.open()
        bench = Bench(args, net, work)
        bench.start_appliance()
        results = bench.losses()
        shared = [bench.share("c" if args.control else "a") for _ in range(args.share_rounds)]
        report(args, results, shared)
    except Failed as what:
        said = bench.said("ddpd") if bench is not None and (work / "ddpd.out").exists() else ""
        sys.exit(f"loss: {what}\n{said[-2000:]}")
    finally:
        if bench is not None:
            bench.close()
        net.close()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()

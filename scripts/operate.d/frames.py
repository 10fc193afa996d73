"""Captures on kinds of ports other than rings, and DPDK's telemetry."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

from connections import CLIENT, LISTENER, beside_kernel
from memory import MEMIF
from operate import TIMEOUT, LeftOut, expect, situation, until
from own import Ddpd, text

FIELDS = ["-T", "fields", "-e", "frame.interface_name", "-e", "ip.src", "-e", "ip.dst", "-e", "tcp.flags.syn", "-e", "tcp.len"]


@contextlib.contextmanager
def captured(ddpd, of):
    """Captures TCP at an appliance's port. Yields a list, which has the fields of each frame after the capture."""
    file, lines = ddpd.directory / "port.pcapng", []
    command = [ddpd.on.programs / "ddpctl", "--socket", f"{of}.sock", "capture", "p", "--filter", "tcp", "-w", file]
    with subprocess.Popen(command, cwd=ddpd.directory, stdout=subprocess.PIPE, text=True) as capture:
        until(file.exists, "the capture has not begun")
        yield lines
        capture.send_signal(signal.SIGINT)
        said = capture.communicate(timeout=TIMEOUT)[0].strip()
    expect(capture.returncode == 0 and ", 0 lost" in said, f"exit {capture.returncode}: {said}")
    shark = subprocess.run(["tshark", "-n", "-r", file, *FIELDS], capture_output=True, text=True, timeout=TIMEOUT)
    expect(shark.returncode == 0, shark.stderr[-300:])
    lines += [line.split("\t") for line in shark.stdout.splitlines()]


def both_ways(lines, peer):
    """Checks that the capture at port `p` has the SYN of each end, and data of the peer."""
    here = "10.79.0.1"
    expect(["p", peer, here] in [line[:3] for line in lines if line[3] in ("1", "True")], f"no SYN of the peer: {lines}")
    expect(["p", here, peer] in [line[:3] for line in lines if line[3] in ("1", "True")], f"no SYN of ours: {lines}")
    expect(any(line[1] == peer and int(line[4]) > 0 for line in lines), f"no data of the peer: {lines}")
    return f"{len(lines)} frames, both directions"


@situation("a capture on a tap port has both directions, for tshark")
def captured_tap(on):
    with beside_kernel(on, "capture-tap") as (ddpd, inside, _):
        with captured(ddpd, "a") as lines:
            subprocess.run([*inside, sys.executable, "-c", CLIENT, "http"], check=True, timeout=TIMEOUT)
        return both_ways(lines, "10.79.0.2")


@situation("a capture on an af_packet port has both directions, for tshark")
def captured_af_packet(on):
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("ethtool"):
        raise LeftOut("needs root, ip(8) and ethtool(8), for a network namespace with a veth pair")
    space, device = f"ddpd-capture-{os.getpid()}", f"dcp{os.getpid() % 100000}"
    inside = ["ip", "netns", "exec", space]
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        for command in (["link", "add", device, "type", "veth", "peer", "name", "kernel"],
                        ["addr", "add", "10.79.0.2/24", "dev", "kernel"],
                        ["link", "set", device, "up"], ["link", "set", "kernel", "up"]):
            subprocess.run([*inside, "ip", *command], check=True)
        # Without checksum offload: a veth pair computes no checksums.
        subprocess.run([*inside, "ethtool", "-K", "kernel", "tx", "off"], check=True, stdout=subprocess.DEVNULL)
        port = f'kind = "af_packet"\ndevice = "{device}"\n'
        of = text("a", 1, port=port, more=LISTENER.format(access="w", streams=4))
        with Ddpd(on, on.directory / "capture-af-packet", {"a": of}, wrap=inside) as ddpd:
            with captured(ddpd, "a") as lines:
                subprocess.run([*inside, sys.executable, "-c", CLIENT, "http"], check=True, timeout=TIMEOUT)
            return both_ways(lines, "10.79.0.2")
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)


@situation("a capture on a memif port has both directions, for tshark")
def captured_memif(on):
    port = {role: MEMIF.format(role=role, timeout="off") for role in ("server", "client")}
    more = LISTENER.format(access="w", streams=4)
    with Ddpd(on, on.directory / "capture-memif", {"server": text("server", 1, port["server"], more)}) as ddpd:
        with Ddpd(on, ddpd.directory, {"client": text("client", 2, port["client"])}) as peer:
            with captured(ddpd, "server") as lines:
                (ddpd.directory / "file.bin").write_bytes(os.urandom(50_000))
                code, _, err = peer.ctl("client", "put", str(ddpd.directory / "file.bin"), "tcp://10.79.0.1:7471/inbox")
                expect(code == 0, f"exit {code}: {err.strip()}")
            return both_ways(lines, "10.79.0.2")


@situation("with management.dpdk_telemetry DPDK's socket returns the device's counters; without it there is no socket")
def telemetry(on):
    def places(ddpd):
        runtime = pathlib.Path("/var/run/dpdk" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "/tmp") + "/dpdk")
        held = subprocess.run(["ss", "-xlpH"], capture_output=True, text=True, check=True).stdout.splitlines()
        mine = [line.split()[4] for line in held if f"pid={ddpd.process.pid}," in line]
        return [place for place in mine if place.startswith(str(runtime))]

    with Ddpd(on, on.directory / "silent", {"a": text("a", 1), "b": text("b", 2)}) as ddpd:
        expect(not places(ddpd), f"there is telemetry: {places(ddpd)}")
    with Ddpd(on, on.directory / "telemetry", {"a": text("a", 1, more="dpdk_telemetry = true"), "b": text("b", 2)}) as ddpd:
        sockets = places(ddpd)
        expect(len(sockets) == 1, f"sockets of telemetry: {sockets}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
            asked.settimeout(TIMEOUT)
            asked.connect(sockets[0])
            hello = json.loads(asked.recv(4096))
            asked.send(b"/ethdev/xstats,0")
            counters = json.loads(asked.recv(hello["max_output_len"]))["/ethdev/xstats"]
        expect("rx_good_packets" in counters, str(counters)[:300])
        return f"{hello['version']}: {len(counters)} counters of port 0 at {sockets[0]}"

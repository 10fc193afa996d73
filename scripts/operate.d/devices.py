"""Changes of Linux interfaces of a port while the appliance runs, and a veth peer with checksum offload."""

import contextlib
import os
import shutil
import subprocess
import sys

from connections import LISTENER
from operate import TIMEOUT, LeftOut, expect, free_port, situation, until
from own import Ddpd, text

CONNECT = 'import socket; socket.create_connection(("10.79.0.1", 7471), {timeout}).close()'


class Cable:
    """A network namespace with a veth pair: `device` of the appliance, and `kernel` of its peer."""

    def __init__(self, name):
        self.space, self.device = f"ddpd-{name}-{os.getpid()}", f"dvc{os.getpid() % 100000}"
        self.inside = ["ip", "netns", "exec", self.space]

    def run(self, *command):
        return subprocess.run([*self.inside, *command], check=True, stdout=subprocess.DEVNULL)

    def plug(self, offload=False):
        self.run("ip", "link", "add", self.device, "type", "veth", "peer", "name", "kernel")
        self.run("ip", "addr", "add", "10.79.0.2/24", "dev", "kernel")
        if not offload:
            self.run("ethtool", "-K", "kernel", "tx", "off", "gso", "off", "tso", "off")
        self.run("ip", "link", "set", self.device, "up")
        self.run("ip", "link", "set", "kernel", "up")

    def connects(self, timeout=10):
        command = [*self.inside, sys.executable, "-c", CONNECT.format(timeout=timeout)]
        return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


@contextlib.contextmanager
def appliance(on, name, offload=False, more=""):
    """Runs an appliance on a veth pair. Yields the appliance and the pair."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("ethtool"):
        raise LeftOut("needs root, ip(8) and ethtool(8), for a network namespace with a veth pair")
    cable = Cable(name)
    subprocess.run(["ip", "netns", "add", cable.space], check=True)
    try:
        cable.plug(offload)
        port = f'kind = "af_packet"\ndevice = "{cable.device}"\n'
        of = text("a", 1, port=port, more=more + LISTENER.format(access="w", streams=4))
        with Ddpd(on, on.directory / name, {"a": of}, wrap=cable.inside) as ddpd:
            yield ddpd, cable
    finally:
        subprocess.run(["ip", "netns", "del", cable.space], check=True)


def note(ddpd, part):
    """Returns the note that contains `part`, or None."""
    return next((note for note in ddpd.json("a", "status")["notes"] if part in note), None)


@situation("a deleted interface takes the port down, with a note; with a recreated interface the port works, with its new address")
def device_made_again(on):
    with appliance(on, "again") as (ddpd, cable):
        expect(cable.connects(), "no connection at the start")
        before = ddpd.json("a", "ports")[0]
        cable.run("ip", "link", "del", cable.device)
        gone = f"no interface {cable.device} any more"
        until(lambda: note(ddpd, gone), "no note on the interface that was deleted")
        expect(not ddpd.json("a", "ports")[0]["up"], "the port is shown as up without its interface")
        expect(ddpd.json("a", "status")["unusable"], "the appliance is ready without the interface of its port")
        cable.plug()
        until(lambda: ddpd.json("a", "ports")[0]["up"], "the port stays down")
        expect(cable.connects(), "no connection on the interface that was made again")
        after, status = ddpd.json("a", "ports")[0], ddpd.json("a", "status")
        expect(not status["unusable"] and not note(ddpd, cable.device), f"notes that stay: {status['notes']}")
        expect(before["mac"] != after["mac"], "the port has the address of the interface before")
        return f"{before['mac']} is {after['mac']} now, and peers connect"


READY = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/readyz", timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
# Kind of port, keys of its interface, text of the notes for a deleted and for a recreated interface.
LASTING = {
    "af_xdp": ("af_xdp", "", "a port of kind af_xdp cannot be bound again", "was made again"),
    "tap": ("tap", "", "restart ddpd, which makes it again", "delete that one and restart ddpd, which makes its own"),
    "shared": ("af_packet", 'host = "tap"\nlocal_ports = "20000-29999"\n', "a port that is shared with the host cannot be bound again",
               "was made again"),
}


def made_again(on, which):
    """Recreates the interface of a port and restarts ddpd. Returns the note before the restart."""
    kind, keys, gone, again = LASTING[which]
    cable, port = Cable(which), free_port()
    subprocess.run(["ip", "netns", "add", cable.space], check=True)
    try:
        cable.run("ip", "link", "set", "lo", "up")
        if kind != "tap":
            cable.plug()
        of = text("a", 1, port=f'kind = "{kind}"\ndevice = "{cable.device}"\n',
                  more=LISTENER.format(access="w", streams=4) + f'[management.listen]\naddress = "127.0.0.1:{port}"\n')
        of = of.replace('addresses = ["10.79.0.1/24"]\n', f'addresses = ["10.79.0.1/24"]\n{keys}')

        def readiness():
            command = [*cable.inside, sys.executable, "-c", READY, str(port)]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

        def started():
            ddpd = Ddpd(on, on.directory / f"lost-{which}", {"a": of}, wrap=cable.inside)
            cable.run("ip", "link", "set", cable.device, "up")
            until(lambda: readiness() == "200", f"{which}: it is not ready")
            return ddpd

        with started() as ddpd:
            cable.run("ip", "link", "del", cable.device)
            until(lambda: note(ddpd, gone), f"{which}: no note on the interface that was deleted")
            cable.plug()
            sentence = until(lambda: note(ddpd, again), f"{which}: no note on the interface that was made again")
            until(lambda: sentence in readiness(), f"{which}: /readyz does not say it: {readiness()}")
            expect(readiness().startswith("503") and not ddpd.json("a", "ports")[0]["up"], readiness())
            ddpd.process.terminate()
            ddpd.process.wait(timeout=TIMEOUT)
        if kind == "tap":
            cable.run("ip", "link", "del", cable.device)
        with started() as ddpd:
            expect(not note(ddpd, cable.device), str(ddpd.json("a", "status")["notes"]))
        return sentence
    finally:
        subprocess.run(["ip", "netns", "del", cable.space], check=True)


@situation("a recreated interface of an af_xdp, tap or shared port: the port stays down; a note and /readyz say so, with the remedy, which works")
def device_lost(on):
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("ethtool"):
        raise LeftOut("needs root, ip(8) and ethtool(8), for a network namespace with a veth pair")
    return "; ".join(made_again(on, which) for which in LASTING)


@situation("a veth peer with checksum offload: a note names it and the command that fixes it")
def unfinished_checksums(on):
    with appliance(on, "checksums", offload=True) as (ddpd, cable):
        expect(not cable.connects(5), "a connection without checksums")
        remedy = "ethtool -K PEER tx off gso off tso off"
        until(lambda: note(ddpd, remedy), "no note on the checksums")
        found = note(ddpd, remedy)
        expect("10.79.0.2" in found, found)
        cable.run("ethtool", "-K", "kernel", "tx", "off", "gso", "off", "tso", "off")
        expect(cable.connects(), "no connection after the remedy")
        return found


# Sends UDP datagrams whose checksum the kernel leaves to the device. Their payload is irrelevant.
DATAGRAM = """
import socket
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(3):
    peer.sendto(bytes(64), ("10.79.0.1", 9899))
"""


@situation("SCTP over UDP from a veth peer with checksum offload: the same note")
def unfinished_checksums_in_udp(on):
    with appliance(on, "udp-checksums", offload=True, more="[sctp]\nudp_encapsulation = 9899\n") as (ddpd, cable):
        cable.run(sys.executable, "-c", DATAGRAM)
        found = until(lambda: note(ddpd, "ethtool -K PEER tx off gso off tso off"), "no note on the checksums")
        expect("10.79.0.2" in found, found)
        return found

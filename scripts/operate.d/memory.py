"""Regions in use, killed peers, and memory limits."""

import contextlib
import json
import os
import pathlib
import subprocess
import time

from operate import TIMEOUT, Bad, LeftOut, expect, situation, until
from own import Ddpd, events, text

SHORT = """
[limits]
exclusive_keepalive = "1 s"
memory = "256 MiB"
buffers_per_worker = "8 MiB"
held_per_worker = "8 MiB"
kept_per_worker = "8 MiB"
"""
INBOX = """
[[region]]
name = "inbox"
size = "1 MiB"
access = "w"
[[listener]]
name = "ingest"
interface = "lan"
port = 7471
regions = ["inbox"]
"""
BOX = """
[[region]]
name = "box"
size = "4 MiB"
access = "r"
[[listener]]
name = "serve"
interface = "lan"
port = 7471
ulp = "rdmap"
regions = ["box"]
"""
# A memif port of two processes on one host.
MEMIF = """
kind = "memif"
socket = "memif.sock"
role = "{role}"
link_down_timeout = "{timeout}"
"""


def region(on, name, of):
    """Returns the region's entry of `regions list`."""
    return next(region for region in on.json("regions", "list", of=of) if region["name"] == name)


@situation("a region in use by another stream: exit 4 and region_busy; regions list and the event name the holder; closing the holder frees the region")
def taken_region(on):
    on.json("connect", "tcp://10.77.0.1:7471")
    (on.directory / "small.bin").write_bytes(bytes(1000))
    code, _, err = on.ctl("put", "small.bin", "tcp://10.77.0.1:7471/inbox")
    expect(code == 4 and "region_busy" in err and "`inbox`" in err, f"exit {code}: {err.strip()}")
    taken = region(on, "inbox", "demo")
    holder = taken["bound_to"]
    expect(holder and taken["held_for"] >= taken["idle_for"] >= 0, str(taken))
    named = events(on, "demo", "region_busy")[-1]
    expect((named["region"], named["holder"]) == ("inbox", holder) and "idle_for" in named, str(named))
    code, _, closing = on.ctl("streams", "close", holder, of="demo")
    expect(code == 0, closing)
    on.put(1)
    return err.strip()


@situation("a killed peer holds its region until the keepalive detects the loss; then another stream can use it")
def killed_peer(on):
    return killed(on, "off", "no answer")


@situation("a killed peer on a memif frees its region at once, because the link is lost")
def killed_peer_memif(on):
    return killed(on, "0 s", "the link of port `p` is down")


def killed(on, timeout, reason):
    directory = on.directory / f"killed-{timeout[0]}"
    port = {role: MEMIF.format(role=role, timeout=timeout) for role in ("server", "client")}
    server, client = ({name: text(name, host, port[name], more)}
                      for name, host, more in (("server", 1, INBOX + SHORT), ("client", 2, "")))
    with Ddpd(on, directory, server) as holder:
        with Ddpd(on, directory, client) as peer:
            peer.json("client", "connect", "tcp://10.79.0.1:7471")
            of = directory / "server"
            expect(region(on, "inbox", of)["bound_to"], "no stream has the region")
            peer.kill()
            began = time.monotonic()
        until(lambda: region(on, "inbox", of)["bound_to"] is None, "the region is not free")
        took = time.monotonic() - began
        closed = events(on, of, "stream_closed")[-1]
        expect(reason in closed["reason"], str(closed))
        code, told, err = on.ctl("why", closed["stream"], of=of)
        expect(code == 0, f"why: exit {code}: {err.strip()}")
        if timeout == "off":
            expect("probe of the idle peer was unanswered, the 5th in a row" in told and "gave_up" in told, told)
            expect("Key: [tcp] keepalive" in told, told)
        expect(timeout != "off" or took > 4, f"free after {took:.1f} s: there was no time for five probes")
        (directory / "file.bin").write_bytes(os.urandom(1000))
        with Ddpd(on, directory, client) as peer:
            code, _, err = peer.ctl("client", "put", str(directory / "file.bin"), "tcp://10.79.0.1:7471/inbox")
            expect(code == 0, f"exit {code}: {err.strip()}")
        expect(holder.lives(), "the appliance ended")
        return f"free after {took:.1f} s: {closed['reason']}"


def beyond(ddpd, of, size):
    """Adds a region that must be refused. Returns the error."""
    code, _, err = ddpd.ctl(of, "regions", "add", "big", "--size", size)
    expect(code == 1 and ddpd.lives(), f"exit {code}, the appliance {'lives' if ddpd.lives() else 'ended'}: {err.strip()}")
    return err.strip()


@situation("regions add --size 12GiB above limits.memory: exit 1 with the numbers, nothing is allocated, and a region that fits is added")
def oversized_region(on):
    with Ddpd(on, on.directory / "small", {"small": text("small", 1, more=SHORT), "other": text("other", 2)}) as ddpd:
        sentence = beyond(ddpd, "small", "12GiB")
        wanted = "12 GiB asked for, 40 MiB of 256 MiB in use (regions 0 bytes, jobs 0 bytes, buffers and streams 40 MiB)"
        expect(wanted in sentence and "limits.memory" in sentence, sentence)
        code, _, err = ddpd.ctl("small", "regions", "add", "most", "--size", "200MiB")
        expect(code == 0, err)
        expect("240.0 MiB of 256.0 MiB" in (status := ddpd.ctl("small", "status")[1]), status)
        expect("40 MiB asked for, 240 MiB of 256 MiB in use" in (more := beyond(ddpd, "small", "40MiB")), more)
        return sentence


@contextlib.contextmanager
def cgroup(limit):
    """Creates a control group (version 2 or 1) with a memory limit. Yields its directory and the file of the limit."""
    own = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= {name: path.strip("/") for name in controllers.split(",")}
    root = pathlib.Path("/sys/fs/cgroup")
    places = []
    controllers = root / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text().split():
        places.append((root, "memory.max"))
    if "memory" in own:
        places += [(root / "memory" / own["memory"], "memory.limit_in_bytes"), (root / "memory", "memory.limit_in_bytes")]
    why = "no memory controller of version 1 or 2"
    for parent, file in places:
        group = parent / f"ddpd-operate-{os.getpid()}"
        try:
            if file == "memory.max":
                (root / "cgroup.subtree_control").write_text("+memory")
            group.mkdir()
        except OSError as error:
            why = str(error)
            continue
        try:
            (group / file).write_text(str(limit))
            yield group, file
        finally:
            until(lambda group=group: not (group / "cgroup.procs").read_text(), "the group is not empty")
            group.rmdir()
        return
    raise LeftOut(f"no control group can be made: {why}")


@situation("under a cgroup of 1 GiB regions add --size 12GiB: exit 1, the cgroup is named, and the process continues and adds a region that fits")
def oversized_region_cgroup(on):
    with cgroup(1 << 30) as (group, file):
        wrap = ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]
        texts = {"grouped": text("grouped", 1), "other": text("other", 2)}
        with Ddpd(on, on.directory / "grouped", texts, wrap) as ddpd:
            sentence = beyond(ddpd, "grouped", "12GiB")
            expect(f"75 % of {file} of the cgroup /" in sentence and "(1 GiB)" in sentence, sentence)
            memory = ddpd.json("grouped", "status")["memory"]
            free = memory["ceiling"] - memory["in_use"]
            code, _, err = ddpd.ctl("grouped", "regions", "add", "most", "--size", str(free))
            expect(code == 0 and ddpd.lives(), f"exit {code}: {err}")
            beyond(ddpd, "grouped", "4KiB")
            return sentence


@situation("put of a file that is larger than the region: exit 1 with both sizes, before a byte is read or sent")
def put_too_large(on):
    with open(on.directory / "large.bin", "wb") as file:
        file.truncate((256 << 20) + 1)
    before = region(on, "inbox", "demo")["placed"]
    code, _, err = on.ctl("put", "large.bin", "tcp://10.77.0.1:7471/inbox")
    expect(code == 1 and "268435457 bytes" in err and "do not fit" in err, f"exit {code}: {err.strip()}")
    expect(region(on, "inbox", "demo")["placed"] == before, "bytes were written")
    return err.strip()


@situation("put of a pipe sends all its bytes; with more bytes than the region holds, it fails and says that the region is full")
def put_pipe(on):
    content = os.urandom(3_000_001)

    def put(target):
        command = [on.programs / "ddpctl", "--socket", "demo-peer.sock", "put", "-", f"tcp://10.77.0.1:7471/{target}"]
        ran = subprocess.run(command, cwd=on.directory, input=content, capture_output=True, timeout=TIMEOUT)
        return ran.returncode, ran.stderr.decode().strip()

    code, err = put("inbox")
    expect(code == 0, f"exit {code}: {err}")
    code, _, err = on.ctl("regions", "read", "inbox", "--output", "read.bin", "--length", str(len(content)), of="demo")
    expect(code == 0, err)
    expect((on.directory / "read.bin").read_bytes() == content, "other bytes arrived")
    code, err = put(f"inbox@{(256 << 20) - 1000}")
    expect(code == 1 and "1000 bytes from offset" in err and "the region is full" in err, f"exit {code}: {err}")
    left = [path.name for path in on.directory.iterdir() if path.name.endswith(".fifo")]
    expect(not left, f"left: {left}")
    return err


@situation("get to a full disk: exit 1, the file and the reason; the appliance continues")
def disk_full(on):
    directory = on.directory / "disk"
    (directory / "mnt").mkdir(parents=True, exist_ok=True)
    flags = "-m" if os.geteuid() == 0 else "-Urm"
    if subprocess.run(["unshare", flags, "mount", "-t", "tmpfs", "none", directory / "mnt"], capture_output=True).returncode != 0:
        raise LeftOut("no file system of a mebibyte can be mounted: unshare is not allowed here")
    wrap = ["unshare", flags, "sh", "-c", 'mount -t tmpfs -o size=1m none mnt && exec "$@"', "sh"]
    texts = {"disk": text("disk", 1), "server": text("server", 2, more=BOX)}
    with Ddpd(on, directory, texts, wrap) as ddpd:
        def get(*arguments):
            return ddpd.ctl("disk", "get", "rdmap://10.79.0.2:7471/box", str(directory / "mnt/file"), *arguments)
        code, _, err = get()
        expect(code == 1 and "mnt/file" in err and "No space left on device" in err, f"exit {code}: {err.strip()}")
        code, _, again = get("--length", "4096")
        expect(code == 0 and ddpd.lives(), f"exit {code}: {again.strip()}")
        return err.strip()

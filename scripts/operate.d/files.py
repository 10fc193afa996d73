"""Files of queues and regions that are rotated, removed or full, and large regions."""

import json
import os
import subprocess

from operate import LeftOut, expect, situation, until
from own import Ddpd, events, text

SERVES = """
[[region]]
name = "filed"
path = "{directory}/region"
size = "3 MiB"
access = "rw"
shared = true
"""
LISTENS = """
[[listener]]
name = "{transport}-{ulp}"
interface = "lan"
port = {port}
transport = "{transport}"
ulp = "{ulp}"
regions = ["filed"]
[[listener.queue]]
qn = 0
buffers = 4
buffer_size = "64 KiB"
deliver_to = "file"
path = "{directory}/{transport}-{ulp}.log"
"""
WAYS = {("tcp", "ddp"): ("tcp", 7471), ("tcp", "rdmap"): ("rdmap", 7472),
        ("sctp", "ddp"): ("sctp", 7473), ("sctp", "rdmap"): ("rdmap+sctp", 7474)}


def server(directory):
    listeners = (LISTENS.format(transport=transport, ulp=ulp, port=port, directory=directory)
                 for (transport, ulp), (_, port) in WAYS.items())
    return text("server", 1, more=SERVES.format(directory=directory) + "".join(listeners))


@situation("a queue's file that is rotated or removed: the next message or a reload creates it again; a counter and an event report it")
def rotated(on):
    directory = on.directory / "rotated"
    directory.mkdir(exist_ok=True)
    with Ddpd(on, directory, {"server": server(directory), "client": text("client", 2)}) as ddpd:
        log, moved = directory / "tcp-ddp.log", directory / "tcp-ddp.log.1"

        def send(message):
            code, out, err = ddpd.ctl("client", "send", "10.79.0.1:7471", message)
            expect(code == 0 and "confirmed" in out, f"exit {code}: {out} {err}")

        send("one")
        log.rename(moved)
        send("two")
        expect((moved.read_bytes()[4:], log.read_bytes()[4:]) == (b"one", b"two"), "the message is elsewhere")
        log.unlink()
        send("three")
        expect(log.read_bytes()[4:] == b"three", "the message is nowhere")
        log.unlink()
        expect(ddpd.ctl("server", "reload")[0] == 0, "no reload")
        until(log.exists, "the reload does not make it again")
        expect(ddpd.json("server", "stats")["control"]["files_reopened"] == 3, "it is not counted")
        return events(on, directory / "server", "warning")[-1]["message"]


@situation("a full disk: only stored messages are confirmed, over TCP and SCTP, with DDP and RDMAP; note, event and counters")
def full_disk(on):
    directory = on.directory / "full"
    (directory / "mnt").mkdir(parents=True, exist_ok=True)
    flags = "-m" if os.geteuid() == 0 else "-Urm"
    if subprocess.run(["unshare", flags, "mount", "-t", "tmpfs", "none", directory / "mnt"], capture_output=True).returncode != 0:
        raise LeftOut("no file system of a mebibyte can be mounted: unshare is not allowed here")
    fill = 'mount -t tmpfs -o size=1m none mnt && dd if=/dev/zero of=mnt/fill bs=1k count=1000 2>/dev/null; exec "$@"'
    wrap = ["unshare", flags, "sh", "-c", fill, "sh"]
    texts = {"server": server(directory / "mnt"), "client": text("client", 2)}
    (directory / "two.bin").write_bytes(os.urandom(2 << 20))
    with Ddpd(on, directory, texts, wrap) as ddpd:
        told = []
        for (transport, ulp), (scheme, port) in WAYS.items():
            for command in (["put", str(directory / "two.bin"), f"{scheme}://10.79.0.1:{port}/filed"],
                            ["send", f"{scheme}://10.79.0.1:{port}", "x" * 60000]):
                code, out, err = ddpd.ctl("client", *command)
                expect(code != 0 and "confirmed," not in out, f"{transport} {ulp} {command[0]}: exit {code}: {out} {err}")
                told.append(err.strip().splitlines()[0])
        control = ddpd.json("server", "stats")["control"]
        expect(control["file_errors"] > 0 and control["streams_not_stored"] >= len(told), str(control))
        notes = ddpd.json("server", "status")["notes"]
        expect(any("cannot write" in note and "No space left" in note for note in notes), str(notes))
        failed = [event for event in events(on, directory / "server", "stream_error") if event["layer"] == "file"]
        expect(len(failed) >= len(told), f"{len(failed)} events")
        return told[0]


@situation("an operator closes a stream before its peer does: all its messages are stored, over TCP and SCTP, with DDP and RDMAP")
def closed_first(on):
    directory = on.directory / "closed-first"
    directory.mkdir(exist_ok=True)
    with Ddpd(on, directory, {"server": server(directory), "client": text("client", 2)}) as ddpd:
        for (transport, ulp), (scheme, port) in WAYS.items():
            code, _, err = ddpd.ctl("client", "connect", f"{scheme}://10.79.0.1:{port}")
            expect(code == 0, err)
            stream = ddpd.json("client", "streams", "list")[-1]["id"]
            for number in range(3):
                # Bare DDP confirms messages only by the end of the stream.
                _, _, err = ddpd.ctl("client", "send", str(stream), f"message {number}")
                expect(err == "" or "are acknowledged" in err, err)
            code, _, err = ddpd.ctl("server", "streams", "close", str(ddpd.json("server", "streams", "list")[-1]["id"]))
            expect(code == 0, err)
            stored = (directory / f"{transport}-{ulp}.log").read_bytes()
            expect(stored.count(b"message") == 3, f"{transport} {ulp}: {stored}")
            closed = events(on, directory / "server", "stream_closed")[-1]["reason"]
            expect(closed == "closed by this end", f"{transport} {ulp}: {closed}")
        return "three messages in each file, and streams closed in order"


@situation("a large region: its preparation is listed, status answers meanwhile, and the region's removal ends the preparation")
def large_region(on):
    directory = on.directory / "large"
    with Ddpd(on, directory, {"large": text("large", 1), "client": text("client", 2)}) as ddpd:
        command = [on.programs / "ddpctl", "--socket", str(directory / "large.sock"), "--json", "regions", "add", "late", "--size", "1GiB"]
        adding = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def listed():
            return [region for region in ddpd.json("large", "regions", "list") if region["name"] == "late"]

        seen = until(listed, "it is not listed")[0]
        expect(ddpd.ctl("large", "--timeout", "5s", "status")[0] == 0, "status does not answer")
        code, _, err = ddpd.ctl("large", "regions", "remove", "late")
        expect(code == 0, err)
        out, err = adding.communicate(timeout=60)
        # The region may have been ready before its removal.
        expect(adding.returncode == 0 or "was removed while its memory was prepared" in json.loads(err)["message"], err)
        expect(not listed(), "it is still listed")
        expect(ddpd.json("large", "status")["memory"]["regions"] == 0, "its memory is still charged")
        return f"removed at {seen['preparing']} %" if adding.returncode else "it was ready before it was removed"

"""Peers and links that do not answer: messages, the time until they appear, and time-outs of commands."""

import os
import signal
import subprocess
import time

from devices import appliance, note
from operate import expect, situation, until
from own import events

# Short retransmission time-outs, so that the tenth expires soon.
SOON = '[tcp]\nmin_rto = "20 ms"\n'
SILENT = """
import socket, time
server = socket.create_server(("10.79.0.2", 7471))
print("ready", flush=True)
kept = [server.accept() for _ in range(100)]
"""


def payload(on, size):
    file = on.directory / f"payload-{size}"
    if not file.exists():
        file.write_bytes(os.urandom(size))
    return str(file)


def timed(ddpd, *arguments):
    began = time.monotonic()
    code, _, err = ddpd.ctl("a", *arguments)
    return code, err, time.monotonic() - began


@situation("put while the link is down, also before it was ever up: refused at once, with the remedy")
def link_down_at_a_put(on):
    with appliance(on, "linkless") as (ddpd, cable):
        cable.run("ip", "link", "set", "kernel", "down")
        until(lambda: not ddpd.json("a", "ports")[0]["up"], "the port stays up")
        seen = []
        for url in ("tcp://10.79.0.2:7471/inbox", "sctp://10.79.0.2:7471/inbox"):
            code, err, took = timed(ddpd, "put", payload(on, 1000), url)
            said = "the link of port `p` is down (interface `lan`)" in err and "hint: " in err
            expect(code == 1 and said and took < 3, f"exit {code} after {took:.1f} s: {err.strip()}")
            seen.append(err.strip().replace("\n", "; "))
        cable.run("ip", "link", "set", "kernel", "up")
        until(lambda: ddpd.json("a", "ports")[0]["up"], "the port stays down")
        return seen[0]


@situation("--timeout without a host at the address, or without an MPA Reply: exit 7 in time; with a stopped ddpd: exit 6 in time")
def timeouts_of_commands(on):
    with appliance(on, "silent") as (ddpd, cable):
        server = subprocess.Popen([*cable.inside, "python3", "-c", SILENT], stdout=subprocess.PIPE, text=True)
        try:
            server.stdout.readline()
            seen = []
            file = payload(on, 1000)
            for command, words in (
                (("connect", "tcp://10.79.0.99:7471"), "no answer to address resolution within"),
                (("put", file, "tcp://10.79.0.2:7471/inbox"), "no answer to the MPA request within"),
                (("get", "rdmap://10.79.0.2:7471/inbox", "got"), "no answer to the MPA request within"),
                (("send", "10.79.0.2:7471", "text"), "no answer to the MPA request within"),
                (("ping", "10.79.0.2:7471"), "no answer to the MPA request within"),
                (("fetch-add", "rdmap://10.79.0.2:7471/inbox", "1"), "no answer to the MPA request within"),
            ):
                code, err, took = timed(ddpd, *command, "--timeout", "2s")
                expect(code == 7 and words in err and took < 5, f"{command}: exit {code} after {took:.1f} s: {err.strip()}")
                seen.append(err.splitlines()[0])
        finally:
            server.kill()
            server.wait()
        ddpd.process.send_signal(signal.SIGSTOP)
        try:
            code, err, took = timed(ddpd, "status", "--timeout", "1s")
        finally:
            ddpd.process.send_signal(signal.SIGCONT)
        expect(code == 6 and "does not answer" in err and took < 5, f"exit {code} after {took:.1f} s: {err.strip()}")
        return seen[1]


@situation("a peer that vanishes during a transfer: stream_stalled, a note, limited by path; after its return stream_resumed, and no note")
def peer_gone_in_a_transfer(on):
    with appliance(on, "gone", more=SOON) as (ddpd, cable):
        kernel = [*cable.inside, on.programs / "ddpctl", "serve-kernel", "10.79.0.2:7472", "--size", "1GiB"]
        server = subprocess.Popen(kernel, stdout=subprocess.PIPE, text=True, cwd=ddpd.directory)
        try:
            server.stdout.readline()
            ddpd.ctl("a", "put", payload(on, 400 << 20), "tcp://10.79.0.2:7472/inbox", "--detach")
            until(lambda: ddpd.json("a", "streams", "list"), "no stream")
            cable.run("ip", "addr", "del", "10.79.0.2/24", "dev", "kernel")
            of = ddpd.directory / "a"
            stalled = until(lambda: events(on, of, "stream_stalled"), "no stream_stalled")[0]
            expect(stalled["remote"] == "10.79.0.2:7472" and stalled["hint"], str(stalled))
            said = note(ddpd, f"stream {stalled['stream']} to 10.79.0.2:7472 makes no progress")
            expect(said, f"no note: {ddpd.json('a', 'status')['notes']}")
            limit = ddpd.json("a", "streams", "list")[0]["flow"]["limited_by"]
            expect(limit == "path", f"limited by {limit}")
            cable.run("ip", "addr", "add", "10.79.0.2/24", "dev", "kernel")
            until(lambda: events(on, of, "stream_resumed"), "no stream_resumed")
            expect(not note(ddpd, "makes no progress"), "the note stays")
            return said
        finally:
            server.kill()
            server.wait()

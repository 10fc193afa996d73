"""Clients that exhaust shared resources: connections, descriptors, lines of the audit file."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

from operate import TIMEOUT, LeftOut, expect, free_port, situation, until
from own import Ddpd, text

# Unused user number, other than that of the overflow user (65534).
VIEWER = 61235
HALF = b"GET /metrics HTTP/1.1\r\nhost:"


def connected(family, address, sent=b""):
    client = socket.socket(family)
    # The time-out is set after connect. With it the socket is non-blocking, and connect fails on a full backlog.
    client.connect(address)
    client.settimeout(TIMEOUT)
    client.sendall(sent)
    return client


def counters(address):
    with urllib.request.urlopen(f"http://127.0.0.1:{address}/metrics", timeout=TIMEOUT) as answer:
        return dict(re.findall(r"^ddpd_control_(\w+)_total ([0-9]+)$", answer.read().decode(), re.M))


@situation("hundreds of idle clients of the metrics, the API and the attach socket: other clients are served; idle ones are closed or refused, and counted")
def idle_clients(on):
    port, directory = free_port(), on.directory / "idle"
    more = f'[management.listen]\naddress = "127.0.0.1:{port}"\n'
    with Ddpd(on, directory, {"a": text("a", 1, more=more), "b": text("b", 2)}) as ddpd:
        idle = [connected(socket.AF_INET, ("127.0.0.1", port), HALF) for _ in range(400)]
        for name in ("a.sock", "a.sock.attach"):
            idle += [connected(socket.AF_UNIX, str(directory / name)) for _ in range(300)]
        expect(ddpd.json("a", "status")["state"] == "running", "it does not run")
        seen = counters(port)
        # Limits of connections: 16 per address for metrics, 256 for the owner of the API, 64 for the attach socket.
        for name, least in (("listen_connections_expired", 380), ("api_connections_expired", 40), ("programs_refused", 230)):
            expect(int(seen.get(name, 0)) >= least, f"{name}: {seen.get(name)}")
        for client in idle:
            client.close()
        return f"{seen['listen_connections_expired']} of 400 metrics clients, {seen['api_connections_expired']} of 300 API clients closed"


@situation("a limit of descriptors that is too low for the configuration: a note; without a free descriptor no thread spins, and the appliance recovers")
def no_descriptors(on):
    if not shutil.which("prlimit"):
        raise LeftOut("prlimit is not installed")
    directory = on.directory / "descriptors"
    with Ddpd(on, directory, {"a": text("a", 1), "b": text("b", 2)}, wrap=("prlimit", "--nofile=100:150")) as ddpd:
        notes = ddpd.json("a", "status")["notes"]
        note = next((note for note in notes if "150 file descriptors" in note), None)
        expect(note, str(notes))
        of = ddpd.process.pid
        idle = []
        for name in ("a.sock", "a.sock.attach"):
            idle += [connected(socket.AF_UNIX, str(directory / name)) for _ in range(60)]
        until(lambda: len(os.listdir(f"/proc/{of}/fd")) >= 150, "descriptors are left")
        one = connected(socket.AF_UNIX, str(directory / "a.sock.attach"))
        def spent():
            times = open(f"/proc/{of}/stat").read().rsplit(")", 1)[1].split()
            return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        before, log = spent(), ddpd.log.stat().st_size
        time.sleep(2)
        share, log = (spent() - before) / 2, ddpd.log.stat().st_size - log
        expect(share < 0.3, f"{share:.2f} of a core")
        expect(log < 4096, f"{log} bytes of log in 2 s")
        expect("all file descriptors of the process are in use" in ddpd.log.read_text(), "no line in the log")
        for client in [*idle, one]:
            client.close()
        until(lambda: ddpd.ctl("a", "status")[0] == 0, "it does not answer again")
        stats = ddpd.json("a", "stats")["control"]
        expect(stats["api_accept_failures"] + stats["programs_accept_failures"] > 0, str(stats))
        return f"{note.split(':')[0]}; {share:.2f} of a core"


FLOOD = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
request = b"POST /v1/drain HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: 0\\r\\n\\r\\n"
for _ in range(200):
    connection.sendall(request * 50)
    answers = 0
    while answers < 50:
        answers += connection.recv(1 << 20).count(b"HTTP/1.1 403")
"""


@situation("ten thousand refused calls: the audit file keeps every change; FILE.refused has the refusals and the number of omitted ones")
def refusals_and_changes(on):
    if os.geteuid() != 0:
        raise LeftOut("only root can be another user")
    directory = on.directory / "refusals"
    roles = f'''
[management.access]
view = ["user:{VIEWER}"]
socket_group = "{VIEWER}"
[management.audit]
file = "{directory}/audit.jsonl"
max_size = "64 KiB"
keep = 1
'''
    with Ddpd(on, directory, {"a": text("a", 1, more=roles), "b": text("b", 2)}) as ddpd:
        on.directory.chmod(0o711)
        directory.chmod(0o711)
        ids = [f"--reuid={VIEWER}", f"--regid={VIEWER}", "--clear-groups"]
        try:
            flood = subprocess.Popen(["setpriv", *ids, sys.executable, "-c", FLOOD, directory / "a.sock"])
            changes = 0
            while flood.poll() is None:
                code, _, err = ddpd.ctl("a", "drain" if changes % 2 == 0 else "undrain")
                expect(code == 0, err)
                changes += 1
        finally:
            on.directory.chmod(0o700)
        expect(flood.returncode == 0, "the flood broke")
        ddpd.process.terminate()
        ddpd.process.wait(timeout=TIMEOUT)
        def lines(name):
            return [json.loads(line) for line in (directory / name).read_text().splitlines()]
        recorded = [line["path"] for line in lines("audit.jsonl")]
        expect(recorded == ["/v1/drain", "/v1/undrain"] * (changes // 2) + ["/v1/drain"] * (changes % 2), str(recorded))
        refused = lines("audit.jsonl.refused")
        calls = sum(line.get("left_out", 1) for line in refused)
        expect(calls == 10000, f"{calls} calls in {len(refused)} lines")
        return f"{changes} changes recorded, {calls} refusals in {len(refused)} lines"

"""Running configuration and file; a process that does not answer; the log; files that cannot be written."""

import json
import os
import signal
import subprocess

from operate import TIMEOUT, expect, situation, until
from own import Ddpd, text

REGION = """
[[region]]
name = "box"
size = "64 KiB"
access = "w"
"""
# Files in the configuration may be devices, also without files.paths.
QUEUE = """
[files]
[[listener]]
name = "in"
interface = "lan"
port = 7471
[[listener.queue]]
qn = 0
buffers = 4
buffer_size = "1 KiB"
deliver_to = "file"
path = "/dev/full"
"""


def alone(on, name, more=REGION):
    """Starts two appliances. The situation is that of the first, `a`."""
    return Ddpd(on, on.directory / name, {"a": text("a", 1, more=more), "b": text("b", 2)})


@situation("a changed configuration file: config diff names the key and exits with 1; after a reload it exits with 0")
def changed_file(on):
    with alone(on, "changed") as ddpd:
        file = ddpd.directory / "a.toml"
        file.write_text(file.read_text().replace('access = "w"', 'access = "rw"').replace('name = "box"', 'name = "crate"'))
        code, out, _ = ddpd.ctl("a", "config", "diff")
        expect(code == 1 and "crate" in out, f"exit {code}: {out}")
        code, would, err = ddpd.ctl("a", "reload", "--dry-run")
        expect(code == 0 and "`crate`" in would, f"exit {code}: {would} {err}")
        expect([region["name"] for region in ddpd.json("a", "regions", "list")] == ["box"], "a dry run has changed something")
        code, _, err = ddpd.ctl("a", "reload")
        expect(code == 0, err)
        code, rest, _ = ddpd.ctl("a", "config", "diff")
        expect(code == 0, f"exit {code}: {rest}")
        return out.splitlines()[0]


@situation("a wrong configuration file: the reload is refused with file, line and key, and the running configuration is unchanged")
def wrong_file(on):
    with alone(on, "wrong") as ddpd:
        file = ddpd.directory / "a.toml"
        file.write_text(file.read_text().replace('size = "64 KiB"', 'size = "64 KeB"'))
        code, _, err = ddpd.ctl("a", "reload")
        expect(code != 0 and "a.toml:" in err and "region.size" in err, f"exit {code}: {err.strip()}")
        expect(ddpd.json("a", "status")["state"] == "running", "it does not run any more")
        return err.strip()


@situation("a change that needs a restart: the reload says so, and so does a note in the status until the change is reverted")
def needs_restart(on):
    with alone(on, "restart") as ddpd:
        file = ddpd.directory / "a.toml"
        before = file.read_text()
        file.write_text(before + "[tcp]\nsack = false\n")
        code, out, err = ddpd.ctl("a", "reload")
        expect(code == 0 and "restart" in out, f"exit {code}: {out} {err}")
        def notes():
            return [note for note in ddpd.json("a", "status")["notes"] if "wait for a restart: 1;" in note]
        note = until(notes, "no note")[0]
        file.write_text(before)
        expect(ddpd.ctl("a", "reload")[0] == 0 and not notes(), "the note stays")
        return note


@situation("a misspelt key: ddpd check exits with 2 and names file, line and the valid keys")
def misspelt_key(on):
    file = on.directory / "misspelt.toml"
    file.write_text(text("a", 1, more=REGION.replace("size =", "sise =")))
    ran = subprocess.run([on.programs / "ddpd", "check", "--no-machine", file], capture_output=True, text=True, timeout=TIMEOUT)
    said = ran.stdout + ran.stderr
    expect(ran.returncode == 2 and "misspelt.toml:" in said and "sise" in said and "size" in said, f"exit {ran.returncode}: {said}")
    return said.strip().splitlines()[0]


@situation("the running configuration is saved to a file that ddpd check accepts")
def saved(on):
    with alone(on, "saved") as ddpd:
        expect(ddpd.ctl("a", "regions", "add", "more", "--size", "4KiB")[0] == 0, "the region is not added")
        code, out, err = ddpd.ctl("a", "config", "save", str(ddpd.directory / "saved.toml"))
        expect(code == 0 and '"more"' in (ddpd.directory / "saved.toml").read_text(), f"exit {code}: {err}")
        check = [on.programs / "ddpd", "check", "--no-machine", "saved.toml", "b.toml"]
        ran = subprocess.run(check, cwd=ddpd.directory, capture_output=True, text=True, timeout=TIMEOUT)
        expect(ran.returncode == 0, ran.stdout + ran.stderr)
        return out.strip()


@situation("a ddpd stopped by SIGSTOP: exit 6 after --timeout, with possible causes; after SIGCONT ddpd answers")
def stopped_daemon(on):
    with alone(on, "stopped") as ddpd:
        ddpd.process.send_signal(signal.SIGSTOP)
        # Waits until all threads have stopped.
        os.waitpid(ddpd.process.pid, os.WUNTRACED)
        code, _, err = ddpd.ctl("a", "--timeout", "1s", "status")
        ddpd.process.send_signal(signal.SIGCONT)
        expect(code == 6 and "does not answer" in err, f"exit {code}: {err.strip()}")
        expect(ddpd.ctl("a", "--timeout", "60s", "status")[0] == 0, "it does not answer any more")
        return err.strip()


@situation("every error with --json is JSON on standard error, also errors of the command line")
def json_errors(on):
    seen = []
    for arguments in (["regions", "remove", "absent"], ["streams", "show", "nonsense"], ["nonsense"]):
        code, _, err = on.ctl("--json", *arguments)
        error = json.loads(err)
        expect(code != 0 and error["error"] and error["message"], f"exit {code}: {err}")
        seen.append(error["error"])
    return ", ".join(seen)


@situation("the log filter is changed at run time; a refused request is logged with the reason")
def log_filter(on):
    with alone(on, "log") as ddpd:
        expect(ddpd.ctl("a", "regions", "remove", "absent")[0] != 0, "it was removed")
        def refused():
            return [line for line in ddpd.log.read_text().splitlines() if "/v1/regions/absent refused" in line]
        line = until(refused, "the refusal is not in the log")[0]
        code, out, err = ddpd.ctl("a", "log", "debug")
        expect(code == 0 and "debug" in out, f"exit {code}: {err}")
        ddpd.ctl("a", "status")
        until(lambda: "API: GET /v1/status" in ddpd.log.read_text(), "the question is not in the log")
        return line.split("INFO ", 1)[-1]


@situation("a queue's file on a full disk: a note, a counter, and the end of the stream whose message is not stored")
def unwritable_file(on):
    with alone(on, "unwritable", more=QUEUE) as ddpd:
        stream = ddpd.json("b", "connect", "tcp://10.79.0.1:7471")["id"]
        # The message may have been acknowledged before the write to the disk (exit 5).
        code, _, err = ddpd.ctl("b", "send", stream, "to be kept")
        expect(code in (4, 5), f"exit {code}: {err.strip()}")
        until(lambda: ddpd.ctl("b", "streams", "show", stream)[0] != 0, "the stream stands")
        def notes():
            return [note for note in ddpd.json("a", "status")["notes"] if note.startswith("cannot write /dev/full: ")]
        note = until(notes, "no note")[0]
        expect(ddpd.json("a", "stats")["control"]["file_errors"] > 0, "it is not counted")
        return note


@situation("SIGTERM: ddpd drains, and exits with 0")
def drained(on):
    with alone(on, "drained") as ddpd:
        ddpd.process.send_signal(signal.SIGTERM)
        code = ddpd.process.wait(timeout=TIMEOUT)
        expect(code == 0, f"exit {code}: {ddpd.log.read_text()[-300:]}")
        return "exit 0"

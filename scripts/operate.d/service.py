"""Roles, permitted files, and drain."""

import os
import shutil
import subprocess

from connections import LISTENER
from operate import TIMEOUT, LeftOut, expect, situation
from own import Ddpd, text

# Unused user number, other than that of the overflow user (65534).
VIEWER = 61234
ROLES = f"""
[management.access]
view = ["user:{VIEWER}"]
socket_group = "{VIEWER}"
"""


@situation("a call without the required role: exit 1, the role and the key that grants it; permitted calls succeed")
def role_refused(on):
    if os.geteuid() != 0:
        raise LeftOut("only root can be another user")
    directory = on.directory / "roles"
    with Ddpd(on, directory, {"a": text("a", 1, more=ROLES), "b": text("b", 2)}) as ddpd:
        # The other user may traverse the directory to the socket and the program, but not list it.
        on.directory.chmod(0o711)
        program = directory / "ddpctl"
        shutil.copy(on.programs / "ddpctl", program)
        ids = [f"--reuid={VIEWER}", f"--regid={VIEWER}", "--clear-groups"]
        def as_viewer(*arguments):
            command = ["setpriv", *ids, program, "--socket", directory / "a.sock", *arguments]
            return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT)
        try:
            seen = as_viewer("status")
            expect(seen.returncode == 0, f"status: exit {seen.returncode}: {seen.stderr.strip()}")
            refused = as_viewer("drain")
        finally:
            on.directory.chmod(0o700)
        said = refused.stderr.strip()
        expect(refused.returncode == 1, f"exit {refused.returncode}: {said}")
        expect("takes the role operate" in said and "management.access.operate" in said, said)
        expect(ddpd.json("a", "status")["state"] == "running", "it drains")
        return said.splitlines()[0]


@situation("a path outside files.paths: put and get name the permitted paths, and no file is opened or created; put - reads standard input")
def file_outside(on):
    listens = LISTENER.format(access="rw", streams=4).replace("regions =", 'ulp = "rdmap"\nregions =')
    directory = on.directory / "outside"
    (directory / "in").mkdir(parents=True, exist_ok=True)
    only = f'[files]\npaths = ["{directory}/in"]\n'
    with Ddpd(on, directory, {"a": text("a", 1, more=listens), "b": text("b", 2, more=only)}) as ddpd:
        to = "rdmap://10.79.0.1:7471/inbox"
        (directory / "in/link").symlink_to("/etc/hostname")
        (directory / "secret").write_bytes(b"secret")
        for path in ("/etc/passwd", directory / "secret", directory / "in/../secret", directory / "in/link"):
            code, _, said = ddpd.ctl("b", "put", str(path), to)
            expect(code == 1 and f"{directory}/in (files.paths)" in said, f"{path}: exit {code}: {said.strip()}")
        code, _, said = ddpd.ctl("b", "get", to, str(directory / "new"), "--length", "6")
        expect(code == 1 and "(files.paths)" in said and not (directory / "new").exists(), f"exit {code}: {said.strip()}")
        code, _, other = ddpd.ctl("b", "config", "save", str(directory / "b.new.toml"))
        expect(code == 1 and "(files.paths)" in other and not (directory / "b.new.toml").exists(), f"exit {code}: {other.strip()}")
        (directory / "in/file").write_bytes(b"inside")
        code, _, other = ddpd.ctl("b", "put", str(directory / "in/file"), to)
        expect(code == 0, f"a file below: exit {code}: {other.strip()}")
        code, _, other = ddpd.ctl("b", "get", to, str(directory / "in/got"), "--length", "6")
        expect(code == 0 and (directory / "in/got").read_bytes() == b"inside", f"exit {code}: {other.strip()}")
        command = [on.programs / "ddpctl", "--socket", "b.sock", "put", "-", to]
        ran = subprocess.run(command, cwd=directory, input=b"a pipe", capture_output=True, timeout=TIMEOUT)
        expect(ran.returncode == 0, f"put -: exit {ran.returncode}: {ran.stderr.decode()}")
        return said.strip().splitlines()[0]


@situation("drain refuses new streams and jobs, keeps the existing ones and reports their number; undrain accepts new ones again")
def drain_and_undrain(on):
    listens = LISTENER.format(access="w", streams=4)
    with Ddpd(on, on.directory / "drain", {"a": text("a", 1, more=listens), "b": text("b", 2)}) as ddpd:
        there = ddpd.json("b", "connect", "tcp://10.79.0.1:7471")["id"]
        code, out, err = ddpd.ctl("a", "drain")
        expect(code == 0 and "1 stream is left" in out, f"exit {code}: {out}{err.strip()}")
        code, _, refused = ddpd.ctl("b", "connect", "tcp://10.79.0.1:7471")
        expect(code == 4 and "draining" in refused, f"exit {code}: {refused.strip()}")
        status = ddpd.json("a", "status")
        expect(status["state"] == "draining" and status["streams_left"] == 1, str(status))
        code, _, err = ddpd.ctl("a", "drain", "--wait", "1")
        expect(code == 1 and "left after 1 s" in err, f"exit {code}: {err.strip()}")
        expect(ddpd.ctl("b", "streams", "show", there)[0] == 0, "the stream that was there is gone")
        expect(ddpd.ctl("b", "streams", "close", there)[0] == 0, "it cannot be closed")
        code, _, err = ddpd.ctl("a", "drain", "--wait", "30")
        expect(code == 0, f"exit {code}: {err.strip()}")
        code, _, err = ddpd.ctl("a", "undrain")
        expect(code == 0 and ddpd.json("a", "status")["state"] == "running", err)
        ddpd.json("b", "connect", "tcp://10.79.0.1:7471")
        return refused.strip().splitlines()[0]

"""Standard streams of ddpctl: input that ddpctl reads itself, for users who may not name files; pipes whose reader has closed."""

import os
import shutil
import signal
import subprocess

from connections import LISTENER
from operate import TIMEOUT, LeftOut, expect, situation, until
from own import Ddpd, text

# Unused user number, other than that of the overflow user (65534).
OPERATOR = 61235
ROLES = f"""
[management.access]
operate = ["user:{OPERATOR}"]
socket_group = "{OPERATOR}"
[management.audit]
file = "{{directory}}/audit.jsonl"
"""
TO = "tcp://10.79.0.1:7471/inbox"


class Operator:
    """A user other than ddpd's, who has access to its socket only."""

    def __init__(self, on, directory):
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, OPERATOR, OPERATOR)
        # This user may traverse the directories to the socket and the program, but not list them.
        on.directory.chmod(0o711)
        directory.chmod(0o711)
        self.program = directory / "ddpctl"
        shutil.copy(on.programs / "ddpctl", self.program)

    def command(self, *arguments):
        ids = [f"--reuid={OPERATOR}", f"--regid={OPERATOR}", "--clear-groups"]
        return ["setpriv", *ids, self.program, "--socket", self.directory / "b.sock", *arguments]

    def run(self, *arguments, **options):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=TIMEOUT, **options)


@situation("put - by a user with the role operate: sends a file that ddpd may not open, creates no FIFO, is \"standard input\" in the jobs, and fails if ddpctl is killed")
def standard_input(on):
    if os.geteuid() != 0:
        raise LeftOut("only root can be another user")
    directory = on.directory / "standard"
    directory.mkdir()
    listens = LISTENER.format(access="rw", streams=4)
    roles = ROLES.format(directory=directory)
    with Ddpd(on, directory, {"a": text("a", 1, more=listens), "b": text("b", 2, more=roles)}) as ddpd:
        operator = Operator(on, directory)
        try:
            return as_operator(ddpd, operator)
        finally:
            on.directory.chmod(0o700)


def as_operator(ddpd, operator):
    own = operator.home / "own"
    own.write_bytes(os.urandom(50_000))
    os.chown(own, OPERATOR, OPERATOR)
    own.chmod(0o600)
    before = {path.name for path in operator.directory.iterdir()}
    named = operator.run("put", own, TO)
    expect(named.returncode == 1 and "ddpctl put - <FILE" in named.stderr, f"exit {named.returncode}: {named.stderr}")
    with open(own, "rb") as file:
        put = operator.run("put", "-", TO, stdin=file)
    expect(put.returncode == 0 and put.stdout.startswith("standard input to "), f"exit {put.returncode}: {put.stdout}{put.stderr}")
    with subprocess.Popen(operator.command("put", "-", TO), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as killed:
        killed.stdin.write(b"half")
        killed.stdin.flush()
        until(lambda: any(job["acknowledged"] == 4 for job in ddpd.json("b", "jobs")), "its bytes do not come")
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    until(lambda: ddpd.json("b", "jobs")[-1]["state"] == "failed", "the job of a killed client has not failed")
    code, jobs, said = ddpd.ctl("b", "jobs")
    expect(code == 0 and jobs.count("  standard input  ") == 2 and "ended early" in jobs, jobs + said)
    made = {path.name for path in operator.directory.iterdir()} - before
    expect(not made, f"left behind: {made}")
    shown = (operator.directory / "audit.jsonl").read_text() + jobs + ddpd.ctl("b", "events")[1]
    expect("fifo" not in shown and "/input" in shown, shown)
    return put.stdout.strip()


@situation("a closed reader ends ddpctl and ddpd by SIGPIPE without a message; a full device: a message and exit 1")
def reader_gone(on):
    commands = (["ddpctl", "metrics"], ["ddpctl", "--json", "stats", "--all"], ["ddpctl", "events", "--follow"], ["ddpd", "openapi"])
    for program, *arguments in commands:
        options = {"cwd": on.directory, "stderr": subprocess.PIPE, "text": True, "env": {**os.environ, "DDPD_SOCKET": "demo.sock"}}
        ran = subprocess.Popen([on.programs / program, *arguments], stdout=subprocess.PIPE, **options)
        # Reads one byte and closes the pipe, as `head -c 1` does.
        os.read(ran.stdout.fileno(), 1)
        ran.stdout.close()
        said = ran.stderr.read()
        expect((ran.wait(timeout=TIMEOUT), said) in ((-signal.SIGPIPE, ""), (0, "")), f"{arguments}: {ran.returncode} {said}")
        if arguments[-1] == "--follow":
            expect(ran.returncode == -signal.SIGPIPE, f"it ended otherwise: {ran.returncode}")
            continue
        with open("/dev/full", "w") as full:
            ran = subprocess.run([on.programs / program, *arguments], stdout=full, timeout=TIMEOUT, **options)
        expect(ran.returncode == 1 and "No space left on device" in ran.stderr, f"{arguments}: {ran.returncode} {ran.stderr}")
    return ran.stderr.strip()

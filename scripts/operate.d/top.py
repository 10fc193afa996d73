"""ddpctl top in a terminal of tmux with 80 columns and 24 lines."""

import contextlib
import itertools
import os
import pathlib
import re
import shlex
import signal
import subprocess
import threading

from operate import TIMEOUT, Bad, expect, situation, until
from own import Ddpd, text

PROMPT = "shell>"
NUMBERS = itertools.count()


def child_of(process):
    with open(f"/proc/{process}/task/{process}/children") as children:
        return int(children.read().split()[0])


class Terminal:
    """A shell in a tmux server of its own."""

    def __init__(self, on, directory):
        self.socket = f"operate-{os.getpid()}-{next(NUMBERS)}"
        # The directory of the socket must be short, because paths of Unix sockets are limited.
        self.environment = {**os.environ, "TMUX_TMPDIR": str(on.directory), "LC_ALL": "C.UTF-8"}
        self.environment.pop("TMUX", None)
        self.gone = False
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", directory, "env", f"PS1={PROMPT} ", "sh")
        until(lambda: PROMPT in self.lines()[0], "the shell does not start")
        self.before = self.modes()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.gone:
            self.kill()

    def kill(self):
        """Ends the terminal, as if its window were closed."""
        self.tmux("kill-server")
        self.gone = True

    def tmux(self, *arguments):
        command = ["tmux", "-u", "-L", self.socket, *arguments]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT)
        expect(ran.returncode == 0, f"tmux {arguments[0]}: {ran.stderr.strip()}")
        return ran.stdout

    def lines(self):
        return self.tmux("capture-pane", "-p").split("\n")[:24]

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def run(self, *command):
        self.keys("-l", " ".join(shlex.quote(str(word)) for word in command))
        self.keys("Enter")

    def modes(self):
        """Returns the terminal modes, which raw mode changes."""
        tty = self.tmux("display-message", "-p", "#{pane_tty}").strip()
        return subprocess.run(["stty", "-F", tty, "-a"], capture_output=True, text=True, timeout=TIMEOUT).stdout

    def child(self):
        """Returns the pid of the process that the shell runs."""
        return child_of(self.tmux("display-message", "-p", "#{pane_pid}").strip())

    def threads(self):
        """Returns name and wait state of each thread of the process that the shell runs, if there is one."""
        try:
            tasks = pathlib.Path(f"/proc/{self.child()}/task").iterdir()
            return [[(task / name).read_text().strip() for name in ("comm", "wchan", "syscall")] for task in tasks]
        except (OSError, IndexError) as error:
            return f"no process: {error}"

    def shows(self, pattern, what):
        """Waits until the screen matches the pattern. Returns the screen."""
        def seen():
            lines = self.lines()
            return re.search(pattern, "\n".join(lines), re.M) and lines
        try:
            return until(seen, what, 20)
        except Bad as error:
            raise Bad("\n".join([str(error), *self.lines()])) from error

    def is_as_before(self, after):
        """Checks that the shell has its earlier screen and terminal modes again."""
        # Waits for the next prompt, because earlier input would be echoed before it.
        self.shows(rf"\A{PROMPT} .*ddpctl(?s:.*)^{PROMPT}$", f"{after}: the screen of the shell is not back")
        self.keys("-l", "echo rc=$?")
        self.keys("Enter")
        try:
            self.shows(r"^rc=0$", f"{after}: no exit code 0")
        except Bad as error:
            raise Bad(f"{error}\n{self.threads()}") from error
        expect(self.modes() == self.before, f"{after}: the terminal's modes are other ones: {self.modes()}")


@contextlib.contextmanager
def traffic(on):
    """Runs consecutive puts, each long enough for two samples of top."""
    stop = threading.Event()

    def put():
        while not stop.is_set():
            # A put that exceeds the time-out is ignored.
            with contextlib.suppress(subprocess.TimeoutExpired):
                on.ctl("put", "top.bin", "tcp://10.77.0.1:7471/inbox")
    with open(on.directory / "top.bin", "wb") as file:
        file.truncate(240 << 20)
    thread = threading.Thread(target=put)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(TIMEOUT)


def details(terminal):
    """Returns true if Enter shows the details of a stream, false if the stream has ended."""
    terminal.keys("Enter")
    lines = terminal.shows(r"^limited_by |there is no stream|^none$", "Enter shows nothing")
    if any(line.startswith("limited_by ") for line in lines):
        return True
    terminal.keys("Escape")
    terminal.shows(r"^q quit", "no way back")
    return False


@situation("top shows streams with their rates at 80x24, keys change the display, and the terminal is restored at the end")
def top(on):
    with traffic(on), Terminal(on, on.directory) as terminal:
        terminal.run(on.programs / "ddpctl", "--socket", "demo-peer.sock", "top", "--interval", "500ms")
        lines = terminal.shows(r"^[0-9a-f]{16} 10\.77\.0\.1:7471 .* \d+\.\d+ [MG] ", "no stream with a rate")
        row = next(line for line in lines if "10.77.0.1:7471" in line)
        expect(re.match(r"demo-peer  ddpd \S+  running  up .* every 500ms$", lines[0]), lines[0])
        expect(re.match(r"rx .*bit/s .*tx .*bit/s .*[▁▂▃▄▅▆▇█]", lines[1]), lines[1])
        expect(re.match(r"drops \d+/s ", lines[2]), lines[2])
        expect(lines[4].split()[:2] == ["STREAM", "REMOTE"] and "LIMITED BY" in lines[4], lines[4])
        expect(lines[23].startswith("q quit"), lines[23])
        for key, found in (("2", r"^ +0 +- +\d+ %"), ("3", r"^REGION .*\nnone$"), ("4", r"^10\.77\.0\.1 +1 "), ("5", r"^link +ring +up ")):
            terminal.keys(key)
            terminal.shows(found, f"view {key}")
        terminal.keys("s")
        terminal.shows(r"^PORT▼", "no order by the first column")
        terminal.keys("Tab")
        terminal.shows(r"^ *PROGRAM .*\nnone$", "no programs after ports")
        terminal.keys("Tab")
        terminal.shows(r"^[0-9a-f]{16} ", "no streams again")
        # Each put has its own stream, so the selected one may have ended.
        until(lambda: details(terminal), "no details of a stream")
        terminal.keys("Escape")
        # Waits before the next key, because Escape directly followed by a key is read as another key.
        terminal.shows(r"^q quit", "no way back")
        terminal.keys("/", "n", "o", "n", "e", "Enter")
        terminal.shows(r'  0.*, with "none"', "no filter")
        terminal.keys("Escape")
        terminal.shows(r"  [01], busiest first$", "the filter is kept")
        terminal.keys("Space")
        terminal.shows(r"PAUSED$", "no pause")
        terminal.keys("q")
        terminal.is_as_before("after q")
        terminal.keys("clear", "Enter")
        terminal.shows(rf"\A{PROMPT}\s*\Z", "the screen is not clear")
        terminal.run(on.programs / "ddpctl", "--socket", "demo-peer.sock", "top")
        terminal.shows(r"^drops ", "no second screen")
        terminal.keys("C-c")
        terminal.is_as_before("after Ctrl-C")
    return " ".join(row.split())


@situation("top shows for how long an appliance has not answered, continues when it answers, and restores the terminal on SIGTERM")
def top_silence(on):
    directory = on.directory / "silent"
    link = 'kind = "ring"\nlink = "silent"\n'
    texts = {"s": text("s", 9, link), "other": text("other", 8, link)}
    with Ddpd(on, directory, texts) as ddpd, Terminal(on, directory) as terminal:
        terminal.run(on.programs / "ddpctl", "--socket", "s.sock", "--timeout", "1s", "top", "--interval", "200ms")
        terminal.shows(r"^s  ddpd .*\n.*\ndrops ", "no screen")
        ddpd.process.send_signal(signal.SIGSTOP)
        try:
            terminal.shows(r"^no answer for [0-9]+s", "a stopped appliance is not noticed")
            terminal.keys("5")
            terminal.shows(r"^PORT ", "no key is heard while the appliance is silent")
            terminal.shows(r"^no answer for [0-9]+s: the appliance at s.sock does not answer", "no reason")
        finally:
            ddpd.process.send_signal(signal.SIGCONT)
        terminal.shows(r"^drops ", "it does not go on")
        ddpd.kill()
        lines = terminal.shows(r"^no answer for .*cannot reach the appliance", "a dead appliance is not noticed")
        os.kill(terminal.child(), signal.SIGTERM)
        terminal.is_as_before("after SIGTERM")
    return lines[2]


@situation("top ends when its terminal is closed, with and without a SIGHUP")
def top_gone(on):
    # With setsid top receives no SIGHUP, only the end of its input.
    for session in ([], ["setsid", "--wait"]):
        with Terminal(on, on.directory) as terminal:
            terminal.run(*session, on.programs / "ddpctl", "--socket", "demo-peer.sock", "top")
            terminal.shows(r"^drops ", "no screen")
            process = terminal.child()
            if session:
                process = child_of(process)
            terminal.kill()
            until(lambda: not os.path.exists(f"/proc/{process}"), f"top goes on without a terminal: {process}", 20)
    return "no process is left"


@situation("top --once prints tables without escape codes, or JSON; without a terminal top refuses and names --once")
def top_once(on):
    with traffic(on):
        def moving():
            code, out, err = on.ctl("top", "--once", "--interval", "200ms")
            expect(code == 0 and "\x1b" not in out, f"exit {code}: {err.strip()}")
            return re.search(r"^[0-9a-f]{16}  10\.77\.0\.1:7471 .* \d+\.\d+ [MG] ", out, re.M) and out
        out = until(moving, "no stream with a rate")
        for view in ("streams", "workers", "regions", "peers", "ports"):
            expect(re.search(rf"^{view}: \d+$", out, re.M), f"{view} is not in {out}")
        seen = on.json("top", "--once", "--view", "ports")
    expect(seen["ports"][0]["port"] == "link" and seen["tx_rate"] is not None, str(seen))
    code, _, err = on.ctl("top")
    expect(code == 2 and "top needs a terminal" in err and "hint: ddpctl top --once" in err, f"exit {code}: {err.strip()}")
    return err.splitlines()[0]

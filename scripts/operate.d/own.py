"""Appliances of single situations, and common functions of the situations."""

import json
import subprocess

from operate import Bad, until


def text(name, host, port='kind = "ring"\nlink = "own"\n', more=""):
    """Returns a configuration."""
    return f"""
name = "{name}"
[memory]
hugepages = "never"
[workers]
count = 1
[[port]]
name = "p"
{port}
[[interface]]
name = "lan"
port = "p"
addresses = ["10.79.0.{host}/24"]
[management]
socket = "{name}.sock"
{more}
"""


class Ddpd:
    """A ddpd process of one situation. `wrap`: command that starts it. Files below the situations' directory are permitted."""

    def __init__(self, on, directory, texts, wrap=()):
        self.on, self.directory = on, directory
        directory.mkdir(exist_ok=True)
        command = [*wrap, on.programs / "ddpd"]
        for name, of in texts.items():
            files = "" if "[files]" in of else f'[files]\npaths = ["{on.directory}"]\n'
            (directory / f"{name}.toml").write_text(of + files)
            command += ["--config", f"{name}.toml"]
        name = next(iter(texts))
        self.log = directory / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
        until(lambda: self.process.poll() is not None or "ready" in self.log.read_text().split(), f"{name} is not ready")
        if self.process.poll() is not None:
            raise Bad(f"{name} did not start: {self.log.read_text()[-1000:]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """Kills ddpd as a crash does: it sends nothing more."""
        self.process.kill()
        self.process.wait()

    def lives(self):
        return self.process.poll() is None

    def ctl(self, of, *arguments, **options):
        return self.on.ctl(*arguments, of=self.directory / of, **options)

    def json(self, of, *arguments):
        return self.on.json(*arguments, of=self.directory / of)


def events(on, of, kind):
    _, out, _ = on.ctl("--json", "events", of=of)
    return [event for event in map(json.loads, out.splitlines()) if event["event"] == kind]

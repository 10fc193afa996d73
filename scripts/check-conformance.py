#!/usr/bin/env python3
"""Checks docs/conformance.md: every test it names exists, and every row has a test or a reason.

A row is a table line; its last cell holds tests as `crate: path::to::test` (several, separated by
commas), a script as `scripts/NAME ...`, or a reason that starts with "Not met:", "Not ours:" or "ULP:".

usage: check-conformance.py docs/conformance.md
"""

import pathlib
import re
import sys

CRATES = {
    "wire": "dataplane/wire",
    "ddp": "dataplane/ddp",
    "link": "dataplane/link",
    "port-kind": "dataplane/port-kind",
    "transport": "dataplane/transport",
    "sim": "dataplane/sim",
    "dpdk": "dataplane/dpdk",
    "dataplane": "dataplane",
    "tcp-lite": "tcp-lite",
    "sctp-lite": "dataplane/sctp-lite",
    "control": "control",
}
REASONS = ("Not met:", "Not ours:", "ULP:", "Out of scope:")


def functions(root, cache={}):
    """Names of all functions in the Rust files of one crate, and of its dialogue files."""
    if root not in cache:
        names = set()
        for path in pathlib.Path(root).rglob("*.rs"):
            names.update(re.findall(r"\bfn\s+([a-z0-9_]+)", path.read_text()))
        names.update(p.stem for p in pathlib.Path(root).rglob("*.script"))
        cache[root] = names
    return cache[root]


def main():
    problems, rows, tests = [], 0, 0
    for number, line in enumerate(open(sys.argv[1]), 1):
        if not line.startswith("|") or re.match(r"^\|[\s|:-]+$", line) or line.startswith("| §"):
            continue
        rows += 1
        last = line.strip().strip("|").split("|")[-1].strip()
        names = re.findall(r"`([^`]+)`", last)
        if not names and not last.startswith(REASONS):
            problems.append(f"{number}: neither a test nor a reason: {last!r}")
        if last.startswith(REASONS):
            continue
        for name in names:
            if name.startswith("scripts/"):
                if not pathlib.Path(name.split()[0]).exists():
                    problems.append(f"{number}: {name} does not exist")
                continue
            crate, _, path = name.partition(":")
            test = path.strip().split("::")[-1]
            if crate not in CRATES or not test:
                problems.append(f"{number}: cannot read {name!r}")
            elif test not in functions(CRATES[crate]):
                problems.append(f"{number}: no test {test} in {crate}")
            tests += 1
    if rows < 50:
        problems.append(f"only {rows} rows: the table is not there")
    for problem in problems:
        print(f"{sys.argv[1]}:{problem}", file=sys.stderr)
    print(f"check-conformance: {rows} requirements, {tests} tests named, {len(problems)} problems", file=sys.stderr)
    sys.exit(1 if problems else 0)


main()

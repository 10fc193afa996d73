#!/usr/bin/env python3
"""Part of scripts/interop: writes the tables of a full run of `scripts/interop siw` or `sctp` into docs/interop.md.

usage: interop.d/publish.py siw|sctp RESULTS.json DOCUMENT.md

Replaces the text between the two marks of the document. Refuses a run that lacks parts or MTUs or has bad rows, because the
document shows one whole run.
"""

import json
import re
import sys

END = "<!-- end of what is made -->"
MTUS = [1500, 9000]
# Parts of a full run, and the sections of the document with the parts of their rows.
RUNS = {
    "siw": (
        {"server", "perf", "client", "programs", "vhost", "wrong", "cycle", "dctcp"},
        [
            ("Programs of the guest, served by the appliance", {"server", "cycle"}),
            ("perftest with -R, served by the appliance", {"perf"}),
            ("The appliance as client of servers in the guest", {"client"}),
            ("Local programs, with programs of the guest as peers", {"programs"}),
            ("Both directions over a vhost-user port, without bridge and kernel", {"vhost"}),
            ("Protocol errors (layer/type/code of the Terminate on the wire)", {"wrong"}),
            ("DCTCP at both ends, with ECN marks by the bridge", {"dctcp"}),
        ],
    ),
    "sctp": (
        {"peers", "kernel", "usrsctp"},
        [
            ("Linux's SCTP and the appliance", {"kernel"}),
            ("usrsctp and the appliance", {"usrsctp"}),
            ("Without the appliance: usrsctp connects to Linux's SCTP", {"usrsctp-kernel"}),
            ("Without the appliance: Linux's SCTP connects to usrsctp", {"kernel-usrsctp"}),
        ],
    ),
}


def begin(kind):
    return f"<!-- made by scripts/interop {kind} --publish -->"


def refuse(sentence):
    sys.exit(f"interop --publish: {sentence}")


def check(kind, run):
    """Exits if the run is not full or has bad rows."""
    for key in ("date", "commit", "parts", "mtus"):
        if key not in run:
            refuse(f"the results have no `{key}`: run scripts/interop {kind} again")
    if set(run["parts"]) != RUNS[kind][0] or sorted(run["mtus"]) != MTUS:
        refuse(f"the results are not of a full run: run scripts/interop {kind} without ..._PARTS and ..._MTUS")
    bad = [row["case"] for row in run["rows"] if not row["good"]]
    if bad:
        refuse(f"{len(bad)} rows are bad, the first one is `{bad[0]}`")


def readable(case, seen):
    """Returns the output of a program, with the columns of a result of perftest named."""
    seen = re.sub(r"\b1 (session|stream)s\b", r"1 \1", seen)
    if done := re.fullmatch(r"\w+: (done)", seen):
        return done.group(1)
    numbers = seen.split()
    if len(numbers) < 5 or not all(re.fullmatch(r"[\d.]+", number) for number in numbers):
        return seen
    # Columns of a bandwidth test: bytes, iterations, peak, average (MB/s), rate (million messages/s). Columns of a latency
    # test: bytes, iterations, minimum, maximum, typical (us), and more.
    if "_lat" in case:
        return f"typical {numbers[4]} us ({numbers[2]} to {numbers[3]})"
    return f"{numbers[3]} MB/s, {float(numbers[4]) * 1e6:.0f} messages/s"


def table(rows):
    """Returns a table with one line per case and one column per MTU; cases in the order of the run."""
    cases, times = {}, {}
    for row in rows:
        # A repeated case has a line of its own.
        again = (row["case"], row["mtu"])
        times[again] = times.get(again, 0) + 1
        key = (row["case"], times[again])
        cases.setdefault(key, {"expected": row["expected"]})[row["mtu"]] = readable(row["case"], str(row["seen"]))
    lines = ["| case | expected | " + " | ".join(f"seen, MTU {mtu}" for mtu in MTUS) + " |"]
    lines.append("|---" * (2 + len(MTUS)) + "|")
    for (case, _), row in cases.items():
        cells = [case, row["expected"], *(row.get(mtu, "not run") for mtu in MTUS)]
        lines.append("| " + " | ".join(str(cell).strip().replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def render(kind, run):
    versions = ", ".join(line.strip() for line in run["versions"] if line.strip())
    versions = versions[:1].upper() + versions[1:]
    out = [begin(kind), "", f"All rows are of one run, {run['date']}, of commit {run['commit']}. {versions}."]
    for title, parts in RUNS[kind][1]:
        out += ["", f"## {title}", "", table(row for row in run["rows"] if row["part"] in parts)]
    return "\n".join([*out, "", END])


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in RUNS:
        sys.exit(__doc__.strip())
    kind, results, document = sys.argv[1:]
    try:
        with open(results, encoding="utf-8") as file:
            run = json.load(file)
    except FileNotFoundError:
        refuse(f"there is no {results}: run scripts/interop {kind} first")
    check(kind, run)
    with open(document, encoding="utf-8") as file:
        text = file.read()
    before, mark, rest = text.partition(begin(kind))
    _, end, after = rest.partition(END)
    if not mark or not end:
        refuse(f"{document} does not have its two marks: {begin(kind)} and {END}")
    with open(document, "w", encoding="utf-8") as file:
        file.write(before + render(kind, run) + after)
    print(f"{document} has the {len(run['rows'])} rows of {run['date']}")


main()

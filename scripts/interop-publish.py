#!/usr/bin/env python3
"""Part of scripts/interop: writes the tables of a full run of `scripts/interop siw` into docs/interop.md.

usage: interop-publish.py RESULTS.json DOCUMENT.md

What is between the two marks of the document is made anew; the rest stays. A run that left parts or MTUs out,
or that has bad rows, is refused: the document shows one whole run.
"""

import json
import sys

BEGIN, END = "<!-- made by scripts/interop siw --publish -->", "<!-- end of what is made -->"
PARTS = {"server", "perf", "client", "wrong", "cycle"}
MTUS = [1500, 9000]
SECTIONS = [
    ("Programs of the guest, served by the appliance", {"server", "cycle"}),
    ("perftest with -R, served by the appliance (the client's line of results)", {"perf"}),
    ("The appliance as client of servers in the guest", {"client"}),
    ("Wrong uses (layer/type/code of the Terminate on the wire)", {"wrong"}),
]


def refuse(sentence):
    sys.exit(f"interop siw --publish: {sentence}")


def check(run):
    """Refuses what is no full run with good rows only."""
    for key in ("date", "commit", "parts", "mtus"):
        if key not in run:
            refuse(f"the results have no `{key}`: run scripts/interop siw again")
    if set(run["parts"]) != PARTS or sorted(run["mtus"]) != MTUS:
        refuse("the results are not of a full run: run scripts/interop siw without SIW_PARTS and SIW_MTUS")
    bad = [row["case"] for row in run["rows"] if not row["good"]]
    if bad:
        refuse(f"{len(bad)} rows are bad, the first one is `{bad[0]}`")


def table(rows):
    """One line per case, a column per MTU; cases in the order in which they were run."""
    cases = {}
    for row in rows:
        cases.setdefault(row["case"], {"expected": row["expected"]})[row["mtu"]] = row["seen"]
    lines = ["| case | expected | " + " | ".join(f"seen, MTU {mtu}" for mtu in MTUS) + " |"]
    lines.append("|---" * (2 + len(MTUS)) + "|")
    for case, row in cases.items():
        cells = [case, row["expected"], *(row.get(mtu, "once is enough") for mtu in MTUS)]
        lines.append("| " + " | ".join(str(cell).strip().replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def render(run):
    versions = ", ".join(line.strip() for line in run["versions"] if line.strip())
    versions = versions[:1].upper() + versions[1:]
    out = [BEGIN, "", f"All rows are of one run, {run['date']}, of commit {run['commit']}. {versions}."]
    for title, parts in SECTIONS:
        out += ["", f"## {title}", "", table(row for row in run["rows"] if row["part"] in parts)]
    return "\n".join([*out, "", END])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    results, document = sys.argv[1:]
    try:
        with open(results, encoding="utf-8") as file:
            run = json.load(file)
    except FileNotFoundError:
        refuse(f"there is no {results}: run scripts/interop siw first")
    check(run)
    with open(document, encoding="utf-8") as file:
        text = file.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        refuse(f"{document} does not have its two marks: {BEGIN} and {END}")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    with open(document, "w", encoding="utf-8") as file:
        file.write(before + render(run) + after)
    print(f"{document} has the {len(run['rows'])} rows of {run['date']}")


main()

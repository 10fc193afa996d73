#!/usr/bin/env python3
"""Writes the table of verbs programs into a document, between the lines <!-- programs --> and <!-- end of programs -->.

usage: verbs-table.py target/interop-verbs.tsv docs/verbs.md
"""

import re
import sys


def rows(path):
    """Yields (program, version, case, result, note) with the results of both places joined."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            program, version, case, place, result, detail = line.rstrip("\n").split("\t", 5)
            # Ports differ from run to run.
            case = re.sub(r" -p [0-9]+", "", case)
            entry = found.setdefault((program, version, case), {})
            entry[place] = (result, detail)
    for (program, version, case), places in found.items():
        cells = [places.get(place, ("-", ""))[0] for place in ("memif", "lab")]
        notes = {" ".join(detail.split()) for result, detail in places.values() if result not in ("ok", "-")}
        yield program, version, case, *cells, "; ".join(sorted(notes))


def main():
    source, document = sys.argv[1:]
    lines = ["| program | version | case | memif | lab | message |", "|---|---|---|---|---|---|"]
    for row in rows(source):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") or " " for cell in row) + " |")
    with open(document, encoding="utf-8") as file:
        text = file.read()
    begin, end = "<!-- programs -->\n", "<!-- end of programs -->\n"
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    with open(document, "w", encoding="utf-8") as file:
        file.write(head + begin + "\n".join(lines) + "\n" + end + tail)


main()

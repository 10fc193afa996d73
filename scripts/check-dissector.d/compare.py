"""Part of scripts/check-dissector: compares the dissector's fields with the listing of the reference codec.

usage: check-dissector.d/compare.py IWARP-CAPTURES GENERATED PEERS...

GENERATED and PEERS are directories of captures. `NAME.after-N.pcap` has the frames of `NAME.pcap` after the first N.
The directory `together` in GENERATED gets captures that consist of several.
"""

import concurrent.futures
import pathlib
import random
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

REPO = pathlib.Path(__file__).resolve().parents[2]
LUA = REPO / "configs/wireshark/iwarp.lua"
REORDER = ["-o", "tcp.reassemble_out_of_order:TRUE"]
TIMEOUT = 120


def shark(capture, *options):
    """Returns the frames of tshark's PDML, each as its number and its element."""
    command = ["tshark", "-n", "-X", f"lua_script:{LUA}", "-r", capture, "-T", "pdml", *options]
    ran = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
    said = ran.stderr.decode(errors="replace")
    if ran.returncode != 0 or "Lua" in said or b"Lua Error" in ran.stdout:
        line = next((line for line in ran.stdout.decode(errors="replace").splitlines() if "Lua Error" in line), said)
        raise AssertionError(f"tshark exits with {ran.returncode}: {line[:400]}")
    for packet in ElementTree.fromstring(ran.stdout).iter("packet"):
        yield int(packet.find("proto[@name='geninfo']/field[@name='num']").get("show")), packet


def value(element):
    """Returns a field's value as the listing prints it."""
    show, raw = element.get("show"), element.get("value")
    if re.fullmatch(r"0x[0-9a-f]+|[0-9]+", show):
        return str(int(show, 0))
    if ":" in show and re.fullmatch(r"[0-9a-f:]+", show) or raw is not None and show == raw:
        return raw
    return show.replace(" ", "_")


BYTES = {"mpa.private_data", "mpa.marker", "mpa.pad", "mpa.undecoded", "ddp.rsvd_ulp", "ddp.payload"}


def fields(element):
    """Yields the fields below a message in document order, without expert information."""
    for child in element:
        name = child.get("name", "")
        if name.startswith("iwarp."):
            name = name.removeprefix("iwarp.")
            yield f"{name}={child.get('value') if name in BYTES else value(child)}"
        if name != "_ws.expert":
            yield from fields(child)


def messages(capture, *options, assumed=True):
    """Returns the messages of a capture as the dissector shows them, in the form of the listing.

    assumed: also those of streams whose start-up is not captured.
    """
    lines = []
    for number, packet in shark(capture, *options):
        for proto in packet.findall("proto[@name='iwarp']"):
            if assumed or proto.find("field/field[@name='iwarp.no_startup']") is None:
                lines.append(" ".join([str(number), *fields(proto)]))
    return lines


def experts(capture, *options):
    """Returns the number of each expert item of the dissector."""
    counts = {}
    for _, packet in shark(capture, *options):
        for item in packet.iter("field"):
            if item.get("name") == "_ws.expert":
                name = next((child.get("name") for child in item if child.get("name", "").startswith("iwarp.")), None)
                if name:
                    counts[name] = counts.get(name, 0) + 1
    return counts


def listing(program, capture):
    ran = subprocess.run([program, "list", capture], capture_output=True, text=True, check=True, timeout=TIMEOUT)
    return ran.stdout.splitlines()


def expected_messages(program, capture):
    """Returns the listing of a capture; of one without its start-up, the part of the whole capture's listing."""
    cut = re.fullmatch(r"(.*)\.after-(\d+)\.pcap", capture.name)
    if not cut:
        return listing(program, capture)
    skipped = int(cut[2])
    split = (line.split(" ", 1) for line in listing(program, capture.with_name(cut[1] + ".pcap")))
    return [f"{int(number) - skipped} {rest}" for number, rest in split if int(number) > skipped]


def difference(expected, got, what):
    """Raises an error with the first difference of two lists of messages."""
    for one, two in zip(expected, got):
        if one != two:
            pairs = zip(one.split(" "), two.split(" "))
            place = next(((a, b) for a, b in pairs if a != b), (f"{len(one)} bytes", f"{len(two)} bytes"))
            raise AssertionError(f"{what}: codec `{place[0][:200]}`, dissector `{place[1][:200]}`\n  {one[:600]}\n  {two[:600]}")
    if len(expected) != len(got):
        first = (expected[len(got):] + got[len(expected):])[0]
        raise AssertionError(f"{what}: codec has {len(expected)} messages, dissector {len(got)}; first: {first[:400]}")


def frames(capture):
    """Returns the records of a capture, header included."""
    data, at, records = capture.read_bytes(), 24, []
    while at < len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        records.append(data[at:at + 16 + length])
        at += 16 + length
    return records


def write_capture(target, records):
    target.write_bytes(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 262144, 1) + b"".join(records))


def compare(program, captures, target, *options, assumed=True):
    """Compares captures in one and in two passes; returns the number of messages.

    All captures go into one file: a start of tshark takes longer than a small capture.
    """
    records, expected = [], []
    for capture in captures:
        split = (line.split(" ", 1) for line in expected_messages(program, capture))
        expected += [f"{len(records) + int(number)} {rest}" for number, rest in split]
        records += frames(capture)
    write_capture(target, records)
    for passes in ([], ["-2"]):
        what = " ".join([target.name, *options, *passes])
        difference(expected, messages(target, *options, *passes, assumed=assumed), what)
    return len(expected)


def compare_unordered(program, directory):
    """Reordered segments without Wireshark's option to sort them: what is decoded is right, and most of it is."""
    capture = directory / "reordered.pcap"
    expected = {line.split(" ", 1)[1] for line in listing(program, capture)}
    got = [line.split(" ", 1)[1] for line in messages(capture) if "mpa.undecoded" not in line]
    wrong = [line for line in got if line not in expected]
    assert not wrong, f"{len(wrong)} of {len(got)} messages are wrong: {wrong[0][:600]}"
    assert len(set(got)) > 0.6 * len(expected), f"{len(set(got))} of {len(expected)} messages"
    return len(got)


def compare_snapped(directory):
    """Truncated frames: the headers in the captured bytes are decoded, and no CRC is reported as bad."""
    capture = directory / "snapped.pcap"
    got = messages(capture)
    assert len(got) == 82 and sum("ddp.to=" in line for line in got) == 80, f"snapped: {len(got)} messages"
    counts = experts(capture)
    assert counts.get("iwarp.partial") == 80 and "iwarp.crc_bad" not in counts, f"snapped: {counts}"
    return len(got)


def damage(capture, rng, seed):
    """Yields the records of a capture with random bytes of their payloads changed, and some of them shortened."""
    for record in frames(capture):
        frame = bytearray(record[16:])
        frame[28] = frame[32] = seed  # addresses of this seed's connections
        for _ in range(rng.choice([0, 0, 1, 1, 4])):
            if len(frame) > 54:
                end = min(len(frame), 54 + rng.choice([8, 40, 2000]))
                frame[rng.randrange(54, end)] = rng.choice([0, 1, 0x7f, 0x80, 0xff, rng.randrange(256)])
        if rng.random() < 0.05 and len(frame) > 55:
            frame = frame[:rng.randrange(54, len(frame))]
        yield record[:8] + struct.pack("<I", len(frame)) + record[12:16] + bytes(frame)


def compare_damaged(directory, names, target):
    """Both passes over damaged captures show the same, without an error in Lua."""
    records = []
    for seed in range(2):
        rng = random.Random(seed)
        for name in names:
            records += damage(directory / f"{name}.pcap", rng, seed)
    write_capture(target, records)
    for options in ([], REORDER):
        difference(messages(target, *options), messages(target, "-2", *options), "damaged captures in one and two passes")
    return len(records)


def check_experts(directory):
    """Expert items of captures whose flaws are known."""
    wanted = {
        "markers": {},
        "flaws": {"iwarp.crc_bad": 8, "iwarp.marker_bad": 3},
        "unmarked.after-5": {"iwarp.no_startup": 80},
        "marked.after-5": {"iwarp.no_startup": 80},
    }
    for name, counts in wanted.items():
        got = experts(directory / f"{name}.pcap")
        assert got == counts, f"{name}: {got}, expected {counts}"
    return len(wanted)


def check_preferences(directory):
    """Each preference changes what is shown."""
    def values(name, preference, key):
        found = [field for line in messages(directory / f"{name}.pcap", "-o", preference) for field in line.split(" ")]
        return {field for field in found if field.startswith(key + "=")}

    cases = [
        ("marked.after-5", "iwarp.markers:no markers", "mpa.ulpdu_length", set()),
        ("unmarked.after-5", "iwarp.crc:not used", "mpa.crc.status", {"mpa.crc.status=2"}),
        ("marked", "iwarp.verify:FALSE", "mpa.crc.status", {"mpa.crc.status=3"}),
        ("marked", "iwarp.upper:bare DDP", "ddp.rsvd_ulp", {"ddp.rsvd_ulp=40"}),
    ]
    for name, preference, key, wanted in cases:
        got = values(name, preference, key)
        assert got == wanted, f"{preference}: {got}, expected {wanted}"
    return len(cases)


def main():
    program, generated = sys.argv[1], pathlib.Path(sys.argv[2])
    peers = sorted(path for directory in sys.argv[3:] for path in pathlib.Path(directory).glob("*.pcap"))
    files = {path.stem: path for path in generated.glob("*.pcap")}
    # Captures checked separately: those with their own options, and those without start-up, which must not follow the
    # whole stream.
    apart = {"snapped", "reordered", *(name for name in files if ".after-" in name)}
    large = ["markers", "segments"]
    others = sorted(files.keys() - apart - set(large))
    together = generated / "together"
    together.mkdir()
    jobs = {"peers": (compare, program, peers, together / "peers.pcap")}
    for name, names in (("large", large), ("others", others)):
        jobs[name] = (compare, program, [files[name] for name in names], together / f"{name}.pcap")
    jobs["reordered"] = (compare, program, [files["reordered"]], together / "reordered.pcap", *REORDER)
    for name in sorted(name for name in files if ".after-" in name):
        # Without start-up and CRC, only its port identifies the stream.
        options = ["-d", "tcp.port==7471,iwarp"] if name.startswith("unchecked") else []
        jobs[name] = (compare, program, [files[name]], together / f"{name}.pcap", *options)
    jobs["unordered"] = (compare_unordered, program, generated)
    jobs["snapped"] = (compare_snapped, generated)
    jobs["expert items"] = (check_experts, generated)
    jobs["preferences"] = (check_preferences, generated)
    damaged = ("startup", "messages", "sctp", "bare", "flaws", "unmarked")
    jobs["damaged"] = (compare_damaged, generated, damaged, together / "damaged.pcap")
    failed, total = 0, 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        running = {pool.submit(*call, **({"assumed": False} if name == "peers" else {})): name for name, call in jobs.items()}
        for future in concurrent.futures.as_completed(running):
            try:
                total += future.result()
            except AssertionError as error:
                failed += 1
                print(f"check-dissector: {running[future]}: {error}", file=sys.stderr)
    print(f"check-dissector: {len(jobs) - failed} of {len(jobs)} checks passed, {total} messages", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

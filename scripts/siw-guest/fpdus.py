#!/usr/bin/env python3
"""Lists the MPA frames and FPDUs in a capture of iWARP over TCP, with details that dissectors do not show: whether
each FPDU begins a TCP segment, whether its CRC is right, and the contents of a Terminate (RFC 5040 section 4.8).

usage: fpdus.py FILE.pcap [PORT] [--terminates]

--terminates prints only Terminates, one per line: source port, destination port, layer/type/code in hexadecimal.
Only for streams without markers; retransmissions are skipped.
"""

import argparse
import struct

NAMES = ["Write", "ReadRequest", "ReadResponse", "Send", "SendInvalidate", "SendSE", "SendSEInvalidate",
         "Terminate", "Immediate", "ImmediateSE", "AtomicRequest", "AtomicResponse"]
TERMINATE = 7


def crc_table():
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        yield value


TABLE = list(crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 255]
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def segments(path, port):
    """Yields time, (address, port) of both ends, sequence number, flags and payload of TCP segments over IPv4."""
    with open(path, "rb") as capture:
        raw = capture.read()
    order = "<" if raw[:4] == b"\xd4\xc3\xb2\xa1" else ">"
    at, first = 24, None
    while at + 16 <= len(raw):
        seconds, micros, kept, _ = struct.unpack_from(order + "IIII", raw, at)
        frame, at = raw[at + 16:at + 16 + kept], at + 16 + kept
        if frame[12:14] != b"\x08\x00" or frame[23] != 6:
            continue
        header, total = (frame[14] & 15) * 4, struct.unpack_from(">H", frame, 16)[0]
        tcp = 14 + header
        source, destination, seq = struct.unpack_from(">HHI", frame, tcp)
        if port and port not in (source, destination):
            continue
        now = seconds + micros / 1e6
        first = now if first is None else first
        ends = ((".".join(map(str, frame[26:30])), source), (".".join(map(str, frame[30:34])), destination))
        yield now - first, ends, seq, frame[tcp + 13], frame[tcp + (frame[tcp + 12] >> 4) * 4:14 + total]


def describe(ulpdu):
    control, opcode = ulpdu[0], ulpdu[1] & 15
    name = NAMES[opcode] if opcode < len(NAMES) else str(opcode)
    text = f"{'T' if control & 128 else 'U'}{'L' if control & 64 else '-'} {name}"
    if control & 128:
        stag, offset = struct.unpack_from(">IQ", ulpdu, 2)
        return f"{text} stag {stag:08x} to {offset:016x} bytes {len(ulpdu) - 14}"
    invalidate, queue, number, offset = struct.unpack_from(">IIII", ulpdu, 2)
    text += f" qn {queue} msn {number} mo {offset}" + (f" invalidates {invalidate:08x}" if invalidate else "")
    if opcode == 1 and len(ulpdu) >= 46:
        sink, sink_to, size, source, source_to = struct.unpack_from(">IQIIQ", ulpdu, 18)
        return f"{text} sink {sink:08x}:{sink_to:x} size {size} source {source:08x}:{source_to:x}"
    if opcode == TERMINATE:
        return f"{text} {terminate(ulpdu)} rest {ulpdu[22:].hex()}"
    return f"{text} bytes {len(ulpdu) - 18}"


def terminate(ulpdu):
    return f"{ulpdu[18] >> 4:x}/{ulpdu[18] & 15:x}/{ulpdu[19]:02x}"


class Direction:
    """Bytes of one direction of a connection, in order."""

    def __init__(self, ends, seq):
        self.ends, self.next, self.data, self.begins = ends, seq, b"", {}
        self.at, self.started, self.later = 0, False, {}

    def feed(self, seq, data):
        if not data:
            return
        self.later[seq] = data
        while self.later:
            ready = [s for s in self.later if (self.next - s) & 0xFFFFFFFF < 1 << 31]
            if not ready:
                return
            seq = min(ready, key=lambda s: (s - self.next) & 0xFFFFFFFF)
            data = self.later.pop(seq)[(self.next - seq) & 0xFFFFFFFF:]
            if data:
                self.begins[self.at + len(self.data)] = len(data)
                self.data += data
                self.next = (self.next + len(data)) & 0xFFFFFFFF

    def take(self, count):
        taken, self.data = self.data[:count], self.data[count:]
        self.at += count
        return taken

    def messages(self):
        """Yields the position of each MPA frame or FPDU, and its bytes."""
        while True:
            start, have = self.at, len(self.data)
            if self.started:
                size = (struct.unpack_from(">H", self.data)[0] + 5) // 4 * 4 + 4 if have >= 2 else None
            else:
                size = 20 + struct.unpack_from(">H", self.data, 18)[0] if have >= 20 else None
            if size is None or have < size:
                return
            yield start, self.take(size)
            self.started = True


def show(direction, now, start, frame, terminates):
    (source, sport), (destination, dport) = direction.ends
    ends = f"{now:9.6f} {source}:{sport} > {destination}:{dport}"
    if frame[:4] == b"MPA " and start == 0:
        if not terminates:
            flags = "".join(name for bit, name in ((128, "M"), (64, "C"), (32, "R"), (16, "S")) if frame[16] & bit)
            print(f"{ends} MPA {frame[7:10].decode()} flags {flags or '-'} rev {frame[17]} private {frame[20:].hex()}")
        return
    length = struct.unpack_from(">H", frame)[0]
    ulpdu = frame[2:2 + length]
    if terminates:
        if length >= 22 and not ulpdu[0] & 128 and ulpdu[1] & 15 == TERMINATE:
            print(sport, dport, terminate(ulpdu))
        return
    crc = "0" if frame[-4:] == bytes(4) else "good" if frame[-4:] == crc32c(frame[:-4]) else "BAD"
    where = "begins a segment" if start in direction.begins else "WITHIN a segment"
    text = describe(ulpdu) if length >= 18 or (length >= 14 and ulpdu[0] & 128) else "shorter than its header"
    print(f"{ends} FPDU {len(frame)} ({where}, crc {crc}) {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("port", nargs="?", type=int, default=0)
    parser.add_argument("--terminates", action="store_true")
    args = parser.parse_args()
    directions = {}
    for now, ends, seq, flags, data in segments(args.file, args.port):
        if flags & 2 or ends not in directions:
            directions[ends] = Direction(ends, (seq + (flags >> 1 & 1)) & 0xFFFFFFFF)
        direction = directions[ends]
        direction.feed(seq, data)
        for start, frame in direction.messages():
            show(direction, now, start, frame, args.terminates)
        if flags & 7 and not args.terminates:
            names = ((2, "SYN"), (1, "FIN"), (4, "RST"))
            print(f"{now:9.6f} {ends[0][0]}:{ends[0][1]} " + "+".join(name for bit, name in names if flags & bit))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Opens streams over kernel sockets and sends the last message and the FIN in one segment (RFC 5041 §6.2.1).

    interop.d/close.py HOST PORT KIND COUNT

KIND `ddp` or `rdmap`: each of COUNT streams must receive the echo of its message, then a FIN. KIND `bad-crc`: each must
receive a reset (docs/protocol.md §6). Prints one line, and exits with 1 if a stream ends otherwise.
"""

import socket
import sys

MESSAGE = b"question" * 4


def fpdu(ulpdu, crc):
    padding = -(2 + len(ulpdu)) % 4
    return len(ulpdu).to_bytes(2, "big") + ulpdu + bytes(padding) + crc


def untagged(rsvd_ulp):
    """Returns an untagged segment with MESSAGE: T 0, L 1, DV 1, QN 0, MSN 1, MO 0."""
    return b"\x41" + rsvd_ulp + bytes(4) + (1).to_bytes(4, "big") + bytes(4) + MESSAGE


def exactly(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise EOFError(f"{len(data)} of {count} bytes")
        data += more
    return data


def one(host, port, kind):
    """Runs one stream. Returns a description of its end."""
    with socket.create_connection((host, port), timeout=20) as stream:
        crc = kind == "bad-crc"
        stream.sendall(b"MPA ID Req Frame" + bytes([0x40 if crc else 0, 1, 0, 0]))
        reply = exactly(stream, 20)
        exactly(stream, int.from_bytes(reply[18:], "big"))
        if reply[16] & 0x20:
            return "the request is rejected"
        # TCP_CORK holds the message back, so that it is sent in one segment with the FIN.
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        rsvd_ulp = b"\x43" + bytes(4) if kind == "rdmap" else bytes(5)
        stream.sendall(fpdu(untagged(rsvd_ulp), b"\xde\xad\xbe\xef" if crc else bytes(4)))
        stream.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while more := stream.recv(65536):
                got += more
        except ConnectionResetError:
            return "a reset"
        if not got:
            return "a FIN without an echo"
        return "the echo" if MESSAGE in got else f"other bytes: {got.hex()}"


def main():
    host, port, kind, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    expected = "a reset" if kind == "bad-crc" else "the echo"
    ends = [one(host, port, kind) for _ in range(count)]
    others = sorted({end for end in ends if end != expected})
    print(f"{ends.count(expected)} of {count}: {expected}" + "".join(f"; {end}" for end in others))
    sys.exit(bool(others))


main()

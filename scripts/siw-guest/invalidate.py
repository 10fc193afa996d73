#!/usr/bin/env python3
"""Invalidates the STag of a region and then writes to the region, over plain TCP. Verbs programs of the guest cannot do
this, because rdma-core 44 does not pass the STag of a Send with Invalidate to siw.

usage: invalidate.py ADDRESS PORT

Prints layer/type/code of the received Terminate, or a description of another outcome.
"""

import socket
import struct
import sys

from fpdus import crc32c, terminate


def fpdu(ulpdu):
    framed = struct.pack(">H", len(ulpdu)) + ulpdu
    framed += bytes(-len(framed) % 4)
    return framed + crc32c(framed)


def receive(sock, length):
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def main():
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as sock:
        sock.sendall(b"MPA ID Req Frame" + bytes([0x40, 1, 0, 0]))
        reply = receive(sock, 20)
        private = receive(sock, struct.unpack(">H", reply[18:])[0])
        stag, = struct.unpack_from(">I", private, 8)
        base, = struct.unpack_from(">Q", private, 16)
        write = struct.pack(">BBIQ", 0xC1, 0x40, stag, base) + b"before"
        invalidate = struct.pack(">BBIIII", 0x41, 0x44, stag, 0, 1, 0) + b"end"
        late = struct.pack(">BBIQ", 0xC1, 0x40, stag, base) + b"behind"
        sock.sendall(fpdu(write) + fpdu(invalidate) + fpdu(late))
        try:
            while True:
                length, = struct.unpack(">H", receive(sock, 2))
                ulpdu = receive(sock, (length + 5) // 4 * 4 + 2)[:length]
                if ulpdu[1] & 15 == 7:
                    print(terminate(ulpdu))
                    return
        except EOFError:
            print("no Terminate")


main()

#!/usr/bin/env python3
"""Part of scripts/interop ipsec-ike: keys for tshark, and a check of ESP's sequence numbers.

usage: interop.d/esp.py keys FILE      converts the SAs in the output of `ip xfrm monitor` to options (-o) of tshark
       interop.d/esp.py numbers FILE   fails if a capture (pcap, Ethernet) has two different ESP packets with the same
                                     SPI and sequence number
"""
import re
import struct
import sys

# The kernel's names of algorithms, with tshark's names.
ENCRYPTION = {"rfc4106(gcm(aes))": "AES-GCM with 16 octet ICV [RFC4106]", "cbc(aes)": "AES-CBC [RFC3602]", "ecb(cipher_null)": "NULL"}
INTEGRITY = {"hmac(sha256)": "HMAC-SHA-256-128 [RFC4868]", "hmac(sha1)": "HMAC-SHA-1-96 [RFC2404]"}


def keys(text):
    """Returns one option for each SA that was added or updated."""
    seen = {}
    for block in re.split(r"\n(?=\S)", text):
        head = re.search(r"(?:^|\s)src (\S+) dst (\S+)\s+proto esp spi (0x[0-9a-f]+)", block)
        if not head or block.startswith(("Deleted", "Expired")):
            continue
        source, destination, spi = head.groups()
        cipher = re.search(r"(?:aead|enc) (\S+) (0x[0-9a-f]+)", block)
        auth = re.search(r"auth-trunc (\S+) (0x[0-9a-f]+)", block)
        if not cipher:
            continue
        fields = ["IPv6" if ":" in source else "IPv4", source, destination, "0x%08x" % int(spi, 16), ENCRYPTION[cipher[1]], cipher[2],
                  INTEGRITY[auth[1]] if auth else "NULL", auth[2] if auth else ""]
        seen[spi, destination] = "uat:esp_sa:" + ",".join('"%s"' % field for field in fields)
    return list(seen.values())


def frames(data):
    """Yields the frames of a pcap file."""
    order = {0xA1B2C3D4: "<", 0xD4C3B2A1: ">", 0xA1B23C4D: "<", 0x4D3CB2A1: ">"}[struct.unpack_from("<I", data)[0]]
    at = 24
    while at + 16 <= len(data):
        length = struct.unpack_from(order + "I", data, at + 8)[0]
        yield data[at + 16:at + 16 + length]
        at += 16 + length


def esp(frame):
    """Returns (destination, ESP packet) for an unfragmented ESP packet, otherwise None."""
    kind = frame[12:14]
    if kind == b"\x08\x00":
        header, total = (frame[14] & 15) * 4, struct.unpack_from(">H", frame, 16)[0]
        protocol, destination = frame[23], frame[30:34]
        payload = frame[14 + header:14 + total]
        if struct.unpack_from(">H", frame, 20)[0] & 0x3FFF:
            return None
    elif kind == b"\x86\xdd":
        protocol, destination = frame[20], frame[38:54]
        payload = frame[54:54 + struct.unpack_from(">H", frame, 18)[0]]
    else:
        return None
    if protocol == 17 and len(payload) > 16 and b"\x11\x94" in (payload[0:2], payload[2:4]) and payload[8:12] != bytes(4):
        return destination, payload[8:]
    return (destination, payload) if protocol == 50 else None


def numbers(data):
    seen, flows = {}, set()
    for frame in frames(data):
        found = esp(frame)
        if not found:
            continue
        destination, packet = found
        name = (destination, packet[:8])
        if seen.setdefault(name, packet) != packet:
            sys.exit("SPI 0x%08x sequence number %d twice" % struct.unpack(">II", packet[:8]))
        flows.add((destination, packet[:4]))
    print("%d packets, %d SAs" % (len(seen), len(flows)))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("keys", "numbers"):
        sys.exit(__doc__)
    if sys.argv[1] == "keys":
        for line in keys(open(sys.argv[2]).read()):
            print(line)
    else:
        numbers(open(sys.argv[2], "rb").read())

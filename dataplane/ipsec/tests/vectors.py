#!/usr/bin/env python3
"""ESP in a second implementation (RFC 4303, with the ciphers of Python's `cryptography`), to compare ours with.

usage: vectors.py >vectors.txt

First it checks itself against packets that are printed in documents: draft-mcgrew-gcm-test-01 (the vectors to which RFC 4106 §9
and RFC 4543 §6 lead) and RFC 3602 §4. Each line has an algorithm, mode, 1 for ESN, 1 for UDP, SPI, sequence number, encryption
key with salt, HMAC key, a packet in clear, and the packet that it becomes.
"""

import hashlib
import hmac
import struct
from ipaddress import ip_address

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

# Name: encryption key with salt, HMAC key, IV, ICV, block.
ALGORITHMS = {
    "AesGcm128": (20, 0, 8, 16, 4),
    "AesGcm256": (36, 0, 8, 16, 4),
    "ChaCha20Poly1305": (36, 0, 8, 16, 4),
    "AesGmac128": (20, 0, 8, 16, 4),
    "AesGmac256": (36, 0, 8, 16, 4),
    "AesCbc128HmacSha256": (16, 32, 16, 16, 16),
    "AesCbc256HmacSha256": (32, 32, 16, 16, 16),
    "AesCbc128HmacSha1": (16, 20, 16, 12, 16),
    "AesCbc256HmacSha1": (32, 20, 16, 12, 16),
    "NullHmacSha256": (0, 32, 0, 16, 4),
    "NullHmacSha1": (0, 20, 0, 12, 4),
}


def aead_of(name, key):
    return ChaCha20Poly1305(key[:-4]) if name.startswith("ChaCha") else AESGCM(key[:-4])


def cbc(key, iv, plain):
    encryptor = Cipher(algorithms.AES(key), modes.CBC(iv)).encryptor()
    return encryptor.update(plain) + encryptor.finalize()


def our_iv(name, key, seq):
    """The sequence number; of CBC (RFC 3602 §3: unpredictable) encrypted under a key of its own."""
    if ALGORITHMS[name][2] == 8:
        return struct.pack(">Q", seq)
    if "Cbc" not in name:
        return b""
    own = hmac.new(key, b"esp cbc iv", hashlib.sha256).digest()[:16]
    encryptor = Cipher(algorithms.AES(own), modes.ECB()).encryptor()
    return encryptor.update(struct.pack(">QQ", 0, seq)) + encryptor.finalize()


def esp(name, key, auth, spi, seq, esn, iv, plain):
    """The ESP part, from the SPI to the ICV; `plain` has its trailer."""
    head = struct.pack(">II", spi, seq & 0xFFFFFFFF)
    high = struct.pack(">I", seq >> 32) if esn else b""
    if "Gcm" in name or "ChaCha" in name:
        # RFC 4106 §5, RFC 7634 §2.1
        return head + iv + aead_of(name, key).encrypt(key[-4:] + iv, plain, head[:4] + high + head[4:])
    if "Gmac" in name:
        # RFC 4543 §3.3
        tag = aead_of(name, key).encrypt(key[-4:] + iv, b"", head[:4] + high + head[4:] + iv + plain)
        return head + iv + plain + tag
    body = head + iv + (cbc(key, iv, plain) if "Cbc" in name else plain)
    digest = hashlib.sha1 if name.endswith("Sha1") else hashlib.sha256
    return body + hmac.new(auth, body + high, digest).digest()[: ALGORITHMS[name][3]]


def trailer(block, length, following):
    padding = -(length + 2) % block
    return bytes(range(1, padding + 1)) + bytes([padding, following])


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) & ~1])) + (data[-1] << 8 if len(data) % 2 else 0)
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ip(source, destination, protocol, tos, body, whole=True):
    source, destination = ip_address(source), ip_address(destination)
    if source.version == 6:
        head = struct.pack(">IHBB", 6 << 28 | tos << 20, len(body), protocol, 64)
        return head + source.packed + destination.packed + body
    head = struct.pack(">BBHHHBBH", 0x45, tos, 20 + len(body), 0, 0x4000 if whole else 0, 64, protocol, 0)
    head += source.packed + destination.packed
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body


def sealed(name, key, auth, spi, seq, esn, udp, tunnel, clear):
    """The packet that `clear` becomes; `tunnel` has the ends of one, or is None."""
    v6 = clear[0] >> 4 == 6
    header, at = (40, 6) if v6 else (20, 9)
    block = ALGORITHMS[name][4]
    if tunnel:
        plain = clear + trailer(block, len(clear), 41 if v6 else 4)
    else:
        plain = clear[header:] + trailer(block, len(clear) - header, clear[at])
    body = esp(name, key, auth, spi, seq, esn, our_iv(name, key, seq), plain)
    ends = tunnel or ends_of(clear)
    if udp:
        head = struct.pack(">HHHH", 4500, 4500, 8 + len(body), 0)
        if ip_address(ends[0]).version == 6:
            # RFC 8200 §8.1
            packed = [ip_address(end).packed for end in ends]
            pseudo = packed[0] + packed[1] + struct.pack(">II", 8 + len(body), 17)
            head = head[:6] + struct.pack(">H", checksum(pseudo + head + body) or 0xFFFF)
        body = head + body
    tos = (struct.unpack(">H", clear[:2])[0] >> 4 & 0xFF) if v6 else clear[1]
    return ip(*ends, 17 if udp else 50, tos, body)


def ends_of(packet):
    at, size = (8, 16) if packet[0] >> 4 == 6 else (12, 4)
    return [str(ip_address(packet[from_ : from_ + size])) for from_ in (at, at + size)]


def check_itself():
    unhex = bytes.fromhex
    # draft-mcgrew-gcm-test-01
    got = esp(
        "AesGcm128", unhex("4c80cdefbb5d10da906ac73c3613a6342e443b68"), b"", 0x4321, 0x8765432100000000, True,
        unhex("4956ed7e3b244cfe"),
        unhex("45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f756470037369700963796265"
              "726369747902646b000021000101020201"),
    )
    assert got[16:] == unhex(
        "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247"
        "aeabb786b93bce61bc17d768fd9732459018148f6cbe722fd04796562dfdb4")
    got = esp(
        "AesGmac128", unhex("4c80cdefbb5d10da906ac73c3613a63422433c64"), b"", 0x4321, 7, False, bytes(8),
        unhex("45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201"),
    )
    assert got[-16:] == unhex("f2a9a836e155106aa8dcd618e4099aaa")
    # RFC 3602 §4, case 6
    got = esp(
        "AesCbc128HmacSha256", unhex("90d382b410eeba7ad938c46cec1a82bf"), bytes(32), 0x4321, 8, False,
        unhex("69d08df7d203329db093fc4924e5bd80"),
        unhex("0800b5e8a80a0500a69c083d0b660e0077777777777777777777777701020201"),
    )
    assert got[24:-16] == unhex("f51995881ec4e0c4488987ce742e8109689bb379d2d750c0d915dca346a89f75")


def main():
    check_itself()
    print("# Made by vectors.py.")
    four, six = ["10.0.0.1", "10.0.0.2"], ["2001:db8::1", "2001:db8::2"]
    outer = {"tunnel4": ["192.0.2.1", "192.0.2.2"], "tunnel6": ["2001:db8:1::1", "2001:db8:2::2"], "transport": None}
    cases = [
        ("transport", four, True, False), ("transport", six, False, True), ("tunnel4", four, False, False),
        ("tunnel4", six, True, True), ("tunnel6", six, True, False), ("tunnel6", four, False, True),
    ]
    for n, (name, (key_len, auth_len, *_)) in enumerate(ALGORITHMS.items()):
        for at, (mode, ends, esn, udp) in enumerate(cases):
            stream = hashlib.shake_256(f"{name} {at}".encode()).digest(200)
            key, auth, data = stream[:key_len], stream[40 : 40 + auth_len], stream[100 : 100 + 7 * at + n]
            spi = 0x1000 + 16 * n + at
            seq = [1, 0xFFFFFFFF, 0x80000000, 1 << 32, 0x123456789ABCDEF0, 77][at]
            clear = ip(*ends, 132, 0xB8 | at % 4, data)
            wire = sealed(name, key, auth, spi, seq, esn, udp, outer[mode], clear)
            hexed = [part.hex() or "-" for part in (key, auth, clear, wire)]
            print(name, mode, int(esn), int(udp), spi, seq, *hexed)


main()

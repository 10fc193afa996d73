#!/usr/bin/env python3
"""Two programs that send a message back and forth. Calls libddpd.so.0 by ctypes.

The other program can also be ping_pong.rs or ping_pong.c.

usage: ping_pong.py SOCKET listen ADDRESS:PORT
       ping_pong.py SOCKET connect ADDRESS:PORT [COUNT]
"""

import ctypes
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

ROOM = 64
TIMEOUT_MS = 10_000
LOCAL_WRITE, SEND, INLINE, SUCCESS, FLUSHED = 1, 1, 8, 0, 5


class Sge(ctypes.Structure):
    _fields_ = [("address", c_uint64), ("length", c_uint32), ("lkey", c_uint32)]


class Send(ctypes.Structure):
    _fields_ = [
        ("wr_id", c_uint64), ("opcode", c_uint32), ("flags", c_uint32), ("sges", POINTER(Sge)),
        ("sge_count", c_uint32), ("rkey", c_uint32), ("remote_address", c_uint64), ("compare_add", c_uint64),
        ("swap", c_uint64), ("immediate", c_uint8 * 8), ("invalidate", c_uint32), ("reserved", c_uint32),
    ]


class Receive(ctypes.Structure):
    _fields_ = [("wr_id", c_uint64), ("sges", POINTER(Sge)), ("sge_count", c_uint32), ("reserved", c_uint32)]


class Completion(ctypes.Structure):
    _fields_ = [
        ("wr_id", c_uint64), ("status", c_uint32), ("opcode", c_uint32), ("byte_len", c_uint32),
        ("qp_number", c_uint32), ("flags", c_uint32), ("invalidated", c_uint32), ("immediate", c_uint8 * 8),
    ]


library = ctypes.CDLL("libddpd.so.0")
library.ddpd_last_error.restype = c_char_p
library.ddpd_region_address.restype = c_void_p
library.ddpd_region_stag.restype = c_uint32


def check(result):
    """Returns the result of a call, or raises the library's error."""
    if result < 0:
        raise OSError(-result, library.ddpd_last_error().decode())
    return result


def create(function, *arguments):
    """Calls a function whose last argument receives a handle."""
    handle = c_void_p()
    check(function(*arguments, byref(handle)))
    return handle


class Side:
    def __init__(self, socket):
        self.session = create(library.ddpd_open, socket.encode())
        self.domain = create(library.ddpd_domain_create, self.session)
        self.memory = create(library.ddpd_region_alloc, self.domain, c_size_t(ROOM), LOCAL_WRITE)
        self.channel = create(library.ddpd_channel_create, self.session)
        self.completions = create(library.ddpd_cq_create, self.session, 16, self.channel)
        self.qp = create(library.ddpd_qp_create, self.domain, self.completions, self.completions, 4, 4, 0)
        self.address = library.ddpd_region_address(self.memory)

    def post_receive(self):
        sge = Sge(self.address, ROOM, library.ddpd_region_stag(self.memory))
        check(library.ddpd_post_receive(self.qp, byref(Receive(sges=ctypes.pointer(sge), sge_count=1))))

    def send(self, message):
        buffer = ctypes.create_string_buffer(message, len(message))
        sge = Sge(ctypes.addressof(buffer), len(message), 0)
        send = Send(opcode=SEND, flags=INLINE, sges=ctypes.pointer(sge), sge_count=1)
        check(library.ddpd_post_send(self.qp, byref(send)))

    def message(self):
        """Waits for a message. None: the connection has ended."""
        completion = Completion()
        if not check(library.ddpd_cq_next(self.completions, TIMEOUT_MS, byref(completion))):
            raise TimeoutError("no message came")
        if completion.status == FLUSHED:
            return None
        if completion.status != SUCCESS:
            raise OSError(f"the message failed: status {completion.status}")
        return ctypes.string_at(self.address, completion.byte_len)

    def answer(self, address):
        listener = create(library.ddpd_listen, self.session, address.encode(), 0, 1)
        text = ctypes.create_string_buffer(64)
        check(library.ddpd_listener_address(listener, text, c_size_t(64)))
        print("listening at", text.value.decode(), flush=True)
        request = create(library.ddpd_listener_next, listener, -1)
        self.post_receive()  # before the peer can send
        check(library.ddpd_accept(request, self.qp, None, None))
        count = 0
        while (message := self.message()) is not None:
            self.post_receive()
            self.send(message)
            count += 1
        print(count, "messages answered")
        library.ddpd_listener_destroy(listener)

    def ask(self, address, count):
        self.post_receive()
        check(library.ddpd_connect(self.qp, address.encode(), None, None))
        for round in range(count):
            self.send(b"ping")
            answer = self.message()
            if answer != b"ping":
                raise OSError(f"another message came back: {answer}")
            if round + 1 < count:
                self.post_receive()
        check(library.ddpd_disconnect(self.qp, TIMEOUT_MS))
        print(count, "messages and answers")

    def close(self):
        library.ddpd_qp_destroy(self.qp)
        library.ddpd_cq_destroy(self.completions)
        library.ddpd_channel_destroy(self.channel)
        library.ddpd_region_destroy(self.memory)
        library.ddpd_domain_destroy(self.domain)
        library.ddpd_close(self.session)


def main():
    if len(sys.argv) < 4 or sys.argv[2] not in ("listen", "connect"):
        sys.exit(__doc__)
    side = Side(sys.argv[1])
    if sys.argv[2] == "listen":
        side.answer(sys.argv[3])
    else:
        side.ask(sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 1000)
    side.close()


main()

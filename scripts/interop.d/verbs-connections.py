#!/usr/bin/env python3
"""Error paths of librdmacm between two appliances: asserts the events of both sides.

usage: verbs-connections.py server ADDRESS | client ADDRESS
       verbs-connections.py early ADDRESS      one program, both sides at its own ADDRESS: a connect before rdma_listen, and
                                               an id at a loopback address

ADDRESS is the server's; its ports 5000 and 5999 are used, and a neighbour ADDRESS + 75 must not exist. Both sides run with
DDPD_PROGRAMS_SOCKET and the libraries of scripts/verbs-library, for example by `ddpctl run`. Start the server first.
"""

import ctypes
import errno
import ipaddress
import os
import select
import socket
import struct
import sys
import threading
import time

PORT, CLOSED_PORT = 5000, 5999
PS_TCP, QPT_RC = 0x106, 2
ADDR_RESOLVED, ADDR_ERROR, ROUTE_RESOLVED, CONNECT_REQUEST = 0, 1, 2, 4
UNREACHABLE, REJECTED, ESTABLISHED, DISCONNECTED = 7, 8, 9, 10

library = ctypes.CDLL("librdmacm.so.1", use_errno=True)
library.rdma_create_event_channel.restype = ctypes.c_void_p
library.rdma_get_src_port.restype = ctypes.c_uint16


class ConnParam(ctypes.Structure):
    _fields_ = [("private_data", ctypes.c_void_p)] + [
        (name, ctypes.c_uint8)
        for name in ("private_data_len", "responder_resources", "initiator_depth", "flow_control", "retry_count", "rnr_retry_count", "srq")
    ] + [("qp_num", ctypes.c_uint32)]


class Event(ctypes.Structure):
    _fields_ = [("id", ctypes.c_void_p), ("listen_id", ctypes.c_void_p), ("event", ctypes.c_int), ("status", ctypes.c_int), ("conn", ConnParam)]


class QpInitAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("qp_context", "send_cq", "recv_cq", "srq")] + [
        (name, ctypes.c_uint32)
        for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data", "qp_type", "sq_sig_all")
    ]


def call(name, *arguments):
    """Calls a function that must succeed."""
    if getattr(library, name)(*arguments) != 0:
        sys.exit(f"{name}: {os.strerror(ctypes.get_errno())}")


def fails(expected, name, *arguments):
    """Calls a function that must fail with -1 and this errno."""
    result = getattr(library, name)(*arguments)
    assert (result, ctypes.get_errno()) == (-1, expected), (name, result, ctypes.get_errno())


def sockaddr(address, port):
    family, packed = socket.AF_INET, socket.inet_aton(address)
    return ctypes.create_string_buffer(struct.pack("=H", family) + struct.pack("!H", port) + packed + bytes(8))


def parameters(data, responder_resources, initiator_depth):
    text = ctypes.create_string_buffer(data)
    made = ConnParam(ctypes.addressof(text), len(data), responder_resources, initiator_depth)
    made.text = text  # keeps the private data
    return ctypes.byref(made), made


class Side:
    """An event channel."""

    def __init__(self):
        self.channel = ctypes.c_void_p(library.rdma_create_event_channel())

    def create(self):
        made = ctypes.c_void_p()
        call("rdma_create_id", self.channel, ctypes.byref(made), None, PS_TCP)
        return made

    def take(self, kind, status=0):
        """Takes an event without acknowledging it."""
        event = ctypes.POINTER(Event)()
        call("rdma_get_cm_event", self.channel, ctypes.byref(event))
        seen = (event.contents.event, event.contents.status)
        assert seen == (kind, status), f"event and status {seen}, expected {(kind, status)}"
        return event

    def expect(self, kind, status=0):
        """Takes and acknowledges an event. Returns its id and private data."""
        event = self.take(kind, status)
        conn = event.contents.conn
        data = ctypes.string_at(conn.private_data, conn.private_data_len) if conn.private_data else b""
        result = ctypes.c_void_p(event.contents.id), data
        call("rdma_ack_cm_event", event)
        return result

    def resolve(self, address, port):
        """Returns an id with a QP that may connect."""
        made = self.create()
        call("rdma_resolve_addr", made, None, sockaddr(address, port), 2000)
        self.expect(ADDR_RESOLVED)
        call("rdma_resolve_route", made, 2000)
        self.expect(ROUTE_RESOLVED)
        create_qp(made)
        return made

    def connect(self, address, port, kind, status):
        """Connects and returns the private data of an event that ends the attempt."""
        made = self.resolve(address, port)
        call("rdma_connect", made, parameters(b"hello", 4, 4)[0])
        data = self.expect(kind, status)[1]
        library.rdma_destroy_qp(made)
        call("rdma_destroy_id", made)
        return data


def create_qp(made):
    attributes = QpInitAttr(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1, qp_type=QPT_RC)
    call("rdma_create_qp", made, None, ctypes.byref(attributes))


def serve(address):
    side = Side()
    listener, other = side.create(), side.create()
    call("rdma_bind_addr", listener, sockaddr("0.0.0.0", PORT))
    fails(errno.EADDRINUSE, "rdma_bind_addr", other, sockaddr(address, PORT))
    fails(errno.EADDRNOTAVAIL, "rdma_bind_addr", other, sockaddr("192.0.2.7", 0))
    call("rdma_destroy_id", other)
    ephemeral = side.create()
    call("rdma_bind_addr", ephemeral, sockaddr(address, 0))
    assert library.rdma_get_src_port(ephemeral) != 0
    call("rdma_destroy_id", ephemeral)
    call("rdma_listen", listener, 0)
    print("ready", flush=True)

    request, data = side.expect(CONNECT_REQUEST)
    assert data == b"hello"
    call("rdma_reject", request, b"no room", 7)
    call("rdma_destroy_id", request)

    request, _ = side.expect(CONNECT_REQUEST)
    call("rdma_destroy_id", request)  # without an answer: rejects it

    request, _ = side.expect(CONNECT_REQUEST)
    create_qp(request)
    call("rdma_accept", request, parameters(b"welcome", 2, 1)[0])
    side.expect(ESTABLISHED)
    event, acknowledged = side.take(DISCONNECTED), threading.Event()

    def acknowledge():
        acknowledged.set()
        call("rdma_ack_cm_event", event)

    threading.Timer(0.5, acknowledge).start()
    library.rdma_destroy_qp(request)
    call("rdma_destroy_id", request)
    assert acknowledged.is_set(), "rdma_destroy_id did not wait for the acknowledgement"

    call("rdma_destroy_id", listener)
    library.rdma_destroy_event_channel(side.channel)


def use(address):
    side = Side()
    made = side.create()
    call("rdma_resolve_addr", made, None, sockaddr("192.0.2.1", PORT), 100)
    side.expect(ADDR_ERROR, -errno.ENETUNREACH)
    call("rdma_destroy_id", made)
    side.connect(address, CLOSED_PORT, REJECTED, -errno.ECONNREFUSED)
    missing = str(ipaddress.ip_address(address) + 75)
    side.connect(missing, PORT, UNREACHABLE, -errno.ETIMEDOUT)
    assert side.connect(address, PORT, REJECTED, -errno.ECONNREFUSED) == b"no room"
    assert side.connect(address, PORT, REJECTED, -errno.ECONNREFUSED) == b""
    made = side.resolve(address, PORT)
    call("rdma_connect", made, parameters(b"", 4, 4)[0])
    event = side.take(ESTABLISHED)
    conn = event.contents.conn
    assert ctypes.string_at(conn.private_data, conn.private_data_len) == b"welcome"
    assert conn.initiator_depth == 2, "the ORD is at most the peer's IRD"
    call("rdma_ack_cm_event", event)
    library.rdma_destroy_qp(made)
    side.expect(DISCONNECTED)  # also after the QP is destroyed
    call("rdma_destroy_id", made)
    library.rdma_destroy_event_channel(side.channel)


def connect_early(address):
    """A request between rdma_bind_addr and rdma_listen waits for the latter."""
    passive, active = Side(), Side()
    loopback = passive.create()
    call("rdma_bind_addr", loopback, sockaddr("127.0.0.1", 0))
    # The first member of an id is its device.
    assert ctypes.cast(loopback, ctypes.POINTER(ctypes.c_void_p)).contents.value is None
    fails(errno.EADDRNOTAVAIL, "rdma_listen", loopback, 1)
    call("rdma_destroy_id", loopback)
    listener = passive.create()
    call("rdma_bind_addr", listener, sockaddr(address, 0))
    made = active.resolve(address, source_port(listener))
    call("rdma_connect", made, parameters(b"", 4, 4)[0])
    # The descriptor of the channel is its first member. A rejection would arrive at once.
    descriptor = ctypes.cast(active.channel, ctypes.POINTER(ctypes.c_int)).contents.value
    assert select.select([descriptor], [], [], 0.5)[0] == [], "the connect has ended before rdma_listen"
    call("rdma_listen", listener, 1)
    request, _ = passive.expect(CONNECT_REQUEST)
    create_qp(request)
    call("rdma_accept", request, parameters(b"", 2, 1)[0])
    passive.expect(ESTABLISHED)
    active.expect(ESTABLISHED)
    library.rdma_destroy_qp(made)
    passive.expect(DISCONNECTED)
    library.rdma_destroy_qp(request)
    for each in (made, request, listener):
        call("rdma_destroy_id", each)


def source_port(made):
    return socket.ntohs(library.rdma_get_src_port(made))


modes = {"server": serve, "client": use, "early": connect_early}
if len(sys.argv) != 3 or sys.argv[1] not in modes:
    sys.exit(__doc__)
modes[sys.argv[1]](sys.argv[2])
print("done")

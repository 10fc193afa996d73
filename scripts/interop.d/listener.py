#!/usr/bin/env python3
"""Accepts connections, discards received bytes, and never closes a connection; for scripts/interop.

usage: interop.d/listener.py ADDRESS PORT     prints "ready"; ends with SIGTERM
"""

import selectors
import socket
import sys


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(128)
    print("ready", flush=True)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    half_closed = []  # peers that have sent a FIN; held open until the program ends
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                ready.register(connection, selectors.EVENT_READ)
                continue
            try:
                if key.fileobj.recv(65536):
                    continue
                half_closed.append(key.fileobj)
            except OSError:
                pass
            ready.unregister(key.fileobj)


main()

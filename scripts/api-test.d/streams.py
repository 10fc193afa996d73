"""Tests the calls with endless responses: events with follow=true, and a capture. scripts/api-test runs this script in the
environment of schemathesis.

usage: streams.py DESCRIPTION SOCKET PEER-SOCKET
"""

import http.client
import json
import socket
import sys

import jsonschema_rs


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("ddpd", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def call(path, method, url, body=None):
    connection = Unix(path)
    connection.request(method, url, body=None if body is None else json.dumps(body))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def main():
    description = json.load(open(sys.argv[1], encoding="utf-8"))
    own, peer = sys.argv[2:]

    follow = Unix(own)
    follow.request("GET", "/v1/events?follow=true")
    lines = follow.getresponse()
    assert lines.headers["content-type"] == "application/x-ndjson", lines.headers["content-type"]
    line = jsonschema_rs.Draft202012Validator({"$ref": "#/components/schemas/EventLine", "components": description["components"]})
    status, region = call(own, "POST", "/v1/regions", {"name": "followed", "size": 4096, "access": "w"})
    assert status == 201, region
    seen = []
    while "region_added" not in seen:
        text = lines.fp.readline().strip()
        # Raw chunked encoding: lengths of chunks are on lines of their own.
        if text.startswith(b"{"):
            event = json.loads(text)
            line.validate(event)
            seen.append(event.get("event"))
    follow.close()
    assert call(own, "DELETE", "/v1/regions/followed")[0] == 200

    capture = Unix(own)
    capture.request("GET", "/v1/ports/link/capture?limit=4096")
    frames = capture.getresponse()
    assert (frames.status, frames.headers["content-type"]) == (200, "application/x-pcapng"), frames.status
    for _ in range(4):
        status, stream = call(peer, "POST", "/v1/connect", {"remote": "10.77.0.1:7471"})
        assert status == 201, stream
        assert call(peer, "DELETE", f"/v1/streams/{stream['id']}?abort=true")[0] == 200
    # Ends the capture, unless it has reached its limit (404).
    status, answer = call(own, "DELETE", "/v1/ports/link/capture")
    assert status in (200, 404), answer
    content = frames.read()
    assert content[:4] == b"\x0a\x0d\x0d\x0a" and len(content) <= 4096 + 128, content[:16]
    print(f"followed {len(seen)} events, captured {len(content)} bytes")


main()

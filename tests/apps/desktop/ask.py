#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Asks the browser by its debugging protocol, and the web server, from inside the container.
    ask.py state                what the server knows of the pages, as JSON
    ask.py eval PAGE EXPRESSION its value, as JSON, in the page whose address has PAGE in it
    ask.py open ADDRESS         a new tab
    ask.py close PAGE           the tabs whose address has PAGE in it
"""
import base64
import json
import os
import socket
import struct
import sys
import urllib.request

SERVER, BROWSER = "http://127.0.0.1:8000", "http://127.0.0.1:9222"


def get(address, method="GET"):
    """The body."""
    request = urllib.request.Request(address, method=method, headers={"Connection": "close"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


class WebSocket:
    """As much of a client as the debugging protocol takes."""

    def __init__(self, address):
        host, _, path = address.partition("://")[2].partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), 60)
        self.file = self.socket.makefile("rb")
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
                             "Connection: Upgrade\r\nSec-WebSocket-Key: "
                             f"{base64.b64encode(os.urandom(16)).decode()}\r\n"
                             "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        if b"101" not in self.file.readline():
            raise SystemExit("no WebSocket")
        while self.file.readline().strip():
            pass

    def send(self, text):
        """One message."""
        data, mask = text.encode(), os.urandom(4)
        length = bytes([128 | len(data)]) if len(data) < 126 else bytes([254]) + struct.pack(">H", len(data))
        self.socket.sendall(b"\x81" + length + mask + bytes(b ^ mask[i & 3] for i, b in enumerate(data)))

    def receive(self):
        """One message."""
        whole = b""
        while True:
            first, second = self.file.read(2)
            length = second & 127
            if length > 125:
                length = int.from_bytes(self.file.read(2 if length == 126 else 8), "big")
            whole += self.file.read(length)
            if first & 128:
                return whole.decode()

    def evaluate(self, expression):
        """Its value."""
        self.send(json.dumps({"id": 1, "method": "Runtime.evaluate",
                              "params": {"expression": expression, "returnByValue": True}}))
        while True:
            reply = json.loads(self.receive())
            if reply.get("id") == 1:
                return reply.get("result", {}).get("result", {}).get("value")


def pages(part):
    """Tabs whose address has that in it."""
    return [tab for tab in json.loads(get(BROWSER + "/json")) if tab["type"] == "page" and part in tab["url"]]


def main(what, *words):
    """See above."""
    if what == "state":
        print(get(SERVER + "/state"))
    elif what == "open":
        get(BROWSER + "/json/new?" + words[0], "PUT")
    elif what == "close":
        for tab in pages(words[0]):
            get(BROWSER + "/json/close/" + tab["id"])
    else:
        found = pages(words[0])
        print(json.dumps(WebSocket(found[0]["webSocketDebuggerUrl"]).evaluate(words[1]) if found else None))


main(*sys.argv[1:])

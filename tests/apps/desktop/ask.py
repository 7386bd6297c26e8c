#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Asks the browser by its debugging protocol, and the web server, from inside the container's network.
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

SERVER, BROWSER = 8000, 9222
# whoever asks has patience: what is opened twice since nobody waited is one too many
SECONDS = 180


def connected(port):
    """A connection to one of them."""
    return socket.create_connection(("127.0.0.1", port), SECONDS)


def get(port, path, method="GET"):
    """The body."""
    # not urllib: it takes longer to be loaded than to ask
    with connected(port) as to, to.makefile("rb") as reply:
        to.sendall(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                   "Connection: close\r\n\r\n".encode())
        if reply.readline().split()[1:2] != [b"200"]:
            raise OSError(f"{path}: no such page")
        length = -1
        while line := reply.readline().strip():
            name, _, value = line.lower().partition(b":")
            if name == b"content-length":
                length = int(value)
        return reply.read(length).decode()


class WebSocket:
    """As much of a client as the debugging protocol takes."""

    def __init__(self, address):
        host, _, path = address.partition("://")[2].partition("/")
        self.socket = connected(BROWSER)
        self.file = self.socket.makefile("rb")
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
                             "Connection: Upgrade\r\nSec-WebSocket-Key: "
                             f"{base64.b64encode(os.urandom(16)).decode()}\r\n"
                             "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        if b"101" not in self.file.readline():
            raise OSError("no WebSocket")
        while self.file.readline().strip():
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

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
    return [tab for tab in json.loads(get(BROWSER, "/json")) if tab["type"] == "page" and part in tab["url"]]


def answer(what, *words):
    """See above; None: there is no such page."""
    if what == "state":
        return json.loads(get(SERVER, "/state"))
    if what == "open":
        return json.loads(get(BROWSER, "/json/new?" + words[0], "PUT"))["id"]
    found = pages(words[0])
    if what == "close":
        return [get(BROWSER, "/json/close/" + tab["id"]) for tab in found]
    if not found:
        return None
    with WebSocket(found[0]["webSocketDebuggerUrl"]) as browser:
        return browser.evaluate(words[1])


if __name__ == "__main__":
    print(json.dumps(answer(*sys.argv[1:])))

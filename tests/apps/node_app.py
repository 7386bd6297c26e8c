# SPDX-License-Identifier: MIT
"""A node HTTP server: V8's reservations and threads, libuv's epoll, eventfds and pipes."""
import hashlib
import json
import time
from pathlib import Path

from apps.server import Server


class Node(Server):
    """Asks it for all that it knows and compares."""

    def __init__(self, test):
        super().__init__(test, "node")
        # no later than the moment of the last answer's counts
        self.since, self.asked = time.monotonic(), time.monotonic()
        self.counts = {"ticks": 0, "beats": 0}
        self.start("/usr/bin/node", Path(__file__).with_name("node_server.js"), self.dir, self.port)
        self.wait_ready(self.ask)
        self.quiet()

    def ask(self, local=False):
        """One answer."""
        self.asked = time.monotonic()
        status, body = self.get_local() if local else self.get()
        self.checks += 1
        assert status == 200, f"status {status}: {body}"
        return json.loads(body)

    def judge(self, found, when):
        """An answer has all that was counted, and time has gone on."""
        number = self.checks
        key = hashlib.pbkdf2_hmac("sha256", b"secret", str(number).encode(), 10, 16).hex()
        wanted = {"hits": number, "square": number * number, "answered": number,
                  "echo": f"line {number}", "hash": key, "child": number, "ended": 0, "wrong": 0,
                  "seen": number}
        for name, value in wanted.items():
            assert found[name] == value, f"{when}: {name} is {found[name]!r}, not {value!r}"
        now = time.monotonic()
        for name, period in (("ticks", 0.02), ("beats", 0.01)):
            passed, most = found[name] - self.counts[name], (now - self.since) / period + 3
            assert 0 < passed <= most, f"{when}: {name} went {passed} on, {most:.0f} at most were due"
            self.counts[name] = found[name]
        self.since = self.asked

    def check(self, when):
        """Over TCP and over its unix socket."""
        self.judge(self.ask(), when)
        self.judge(self.ask(local=True), when)
        self.quiet()

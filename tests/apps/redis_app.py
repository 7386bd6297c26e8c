# SPDX-License-Identifier: MIT
"""redis with 200,000 keys and an append-only file, seen as a victim."""
import random
import socket
import subprocess
import time

from apps.server import Server
from lib import proc

KEYS = 200_000


def value(number):
    """What key number N holds."""
    return f"value-{number * 2654435761 % 2**32:010d}-" * 4


class Client:
    """As much of the protocol as the test needs; closed after each use, since connections are not saved."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(proc.PATIENCE)
        self.sock.connect(str(path))
        self.file = self.sock.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.sock.close()

    @staticmethod
    def encode(*words):
        """A command as bytes."""
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            data = str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        return b"".join(parts)

    def answer(self):
        """One reply: a number, a text, or None."""
        line = self.file.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:].decode()
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.file.read(length + 2)[:-2].decode()
        if kind == b":":
            return int(rest)
        return rest

    def ask(self, *words):
        """Sends one command and waits for its reply."""
        self.sock.sendall(self.encode(*words))
        return self.answer()

    def fill(self):
        """All keys, in batches."""
        for first in range(0, KEYS, 1000):
            self.sock.sendall(b"".join(self.encode("SET", f"key:{number}", value(number))
                                       for number in range(first, first + 1000)))
            for _ in range(1000):
                self.answer()


class Redis(Server):
    """Its unix socket is what we fill and ask it through."""

    def __init__(self, test):
        super().__init__(test, "redis")
        self.log_size = 0
        self.start("/usr/bin/redis-server", "--port", self.port, "--bind", "127.0.0.1", "--unixsocket",
                   self.dir / "socket", "--dir", self.dir, "--appendonly", "yes", "--appendfsync",
                   "everysec", "--auto-aof-rewrite-percentage", "0", "--save", "", "--daemonize", "no",
                   "--logfile", self.dir / "log")
        self.wait_ready(self.answers)
        with Client(self.dir / "socket") as client:
            client.fill()
        self.quiet()

    def answers(self):
        """Is it up?"""
        with Client(self.dir / "socket") as client:
            return client.ask("PING") == "PONG"

    def check(self, when):
        """Contents, a counter that only memory knows, and an append-only file that is whole and grows."""
        self.checks += 1
        chance = random.Random(self.checks)
        with Client(self.dir / "socket") as client:
            found = client.ask("INCR", "hits")
            assert found == self.checks, f"{when}: the counter is {found}, not {self.checks}"
            size = client.ask("DBSIZE")
            assert size == KEYS + 1, f"{when}: {size} keys"
            for number in chance.sample(range(KEYS), 1000):
                found = client.ask("GET", f"key:{number}")
                assert found == value(number), f"{when}: key:{number} is {found!r}"
        over_tcp = subprocess.run(["redis-cli", "-p", str(self.port), "PING"], capture_output=True,
                                  text=True, timeout=proc.PATIENCE, check=False).stdout.strip()
        assert over_tcp == "PONG", f"{when}: over TCP it says {over_tcp!r}"
        self.check_log(when)
        self.quiet()

    def check_log(self, when):
        """The append-only file. While a disk is busy redis answers first and writes a little later."""
        where = self.dir / "appendonlydir"

        def size():
            return sum(part.stat().st_size for part in where.glob("*.incr.aof"))
        proc.wait_until(f"{when}: the append-only file does not grow", lambda: size() > self.log_size)
        self.log_size = size()
        for left in (2, 1, 0):
            done = subprocess.run(["redis-check-aof", str(next(where.glob("*.manifest")))],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=proc.PATIENCE, check=False)
            if not done.returncode:
                break
            assert left, f"{when}: {done.stdout[-300:]}"
            # a command that is half written is whole in a moment
            time.sleep(3)

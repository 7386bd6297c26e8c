# SPDX-License-Identifier: MIT
"""The loads: programs of bench/load.c, redis and python3, plain or in containers."""
import os
import random
import subprocess
from pathlib import Path

from apps.redis_app import Client
from lib import proc
from lib.report import Failure
from lib.victim import Victim



class Built(Victim):
    """A kind of bench/load.c; in a container, whoever answers is its innermost process."""

    dump_options = restore_options = ()

    def __init__(self, test, command, kind):
        self.test = test
        super().__init__(test, command[0], args=[str(word) for word in (*command[1:], *kind)])

    def ask(self, seconds=60):
        root, self.pid = self.pid, proc.tree(self.pid)[-1] if self.nested else self.pid
        try:
            return super().ask(seconds)
        finally:
            self.pid = root

    nested = False


class Nested(Built):
    """The same in containers."""

    nested = True


class Started:
    """A real program."""

    dump_options = restore_options = ()

    def __init__(self, test, command):
        self.test = test
        self.dir = Path(test.dir / "program")
        self.dir.mkdir()
        self.checks = 0
        with open(self.dir / "stderr", "wb") as stderr:
            child = subprocess.Popen([str(word).replace("DIR", str(self.dir)) for word in command],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
                                     start_new_session=True, cwd="/")
        # from here on the pid is reaped by lib.proc
        child.returncode = 0
        self.pid = child.pid
        test.cleanup(self.kill)

    def kill(self):
        """Ends it."""
        proc.kill_tree(self.pid)


class Redis(Started):
    """482 MB in 460,000 keys, reached through a unix socket, so that it may have any network."""

    KEYS = 460_000
    DATA = random.Random(8).randbytes(1 << 20)

    def __init__(self, test, container=()):
        super().__init__(test, [*container, "/usr/bin/redis-server", "--port", "7379", "--bind", "127.0.0.1",
                                "--unixsocket", "DIR/socket", "--dir", "DIR", "--save", "", "--appendonly",
                                "no", "--daemonize", "no", "--logfile", "DIR/log"])
        proc.wait_until("redis does not answer", self.answers, 60)
        with Client(self.dir / "socket") as client:
            for first in range(0, self.KEYS, 1000):
                client.sock.sendall(b"".join(
                    b"*3\r\n$3\r\nSET\r\n$12\r\nkey:%08d\r\n$1000\r\n%s\r\n" % (number, self.value(number))
                    for number in range(first, first + 1000)))
                for _ in range(1000):
                    client.answer()
        self.quiet()

    @classmethod
    def value(cls, number):
        """What a key holds: incompressible, and its own."""
        at = number * 7919 % (len(cls.DATA) - 1000)
        return b"%08d" % number + cls.DATA[at:at + 992]

    def answers(self):
        """Is it up?"""
        try:
            with Client(self.dir / "socket") as client:
                return client.ask("PING") == "PONG"
        except OSError:
            return False

    def quiet(self):
        """Waits until it has seen that we are gone."""
        def alone():
            with Client(self.dir / "socket") as client:
                return client.ask("CLIENT", "LIST").count("\n") <= 1
        proc.wait_until("redis keeps a client", alone)
        sockets = f"/proc/{proc.tree(self.pid)[-1]}/fd"
        proc.wait_until("redis keeps a connection", lambda: sum(
            os.readlink(f"{sockets}/{fd}").startswith("socket:") for fd in os.listdir(sockets)) <= 2)

    def check(self, when):
        """Some of the keys, and all of them by number."""
        self.checks += 1
        with Client(self.dir / "socket") as client:
            found = client.ask("INCR", "hits")
            if found != self.checks or client.ask("DBSIZE") != self.KEYS + 1:
                raise Failure(f"{when}: redis counts {found} hits, not {self.checks}")
            for number in random.Random(self.checks).sample(range(self.KEYS), 1000):
                client.sock.sendall(client.encode("GET", f"key:{number:08d}"))
                client.file.readline()
                if client.file.read(1002)[:-2] != self.value(number):
                    raise Failure(f"{when}: key {number} has another value")
        self.quiet()


class Load:
    """A row of the table. `usual`: part of a run that does not name its loads."""

    def __init__(self, name, what, make, usual=True):
        self.name, self.what, self.make, self.usual = name, what, make, usual

    def start(self, test, build):
        """The running load."""
        return self.make(test, build)


def built(kind):
    """One of bench/load.c."""
    return lambda test, build: Built(test, [build / "tests/bench/load"], [kind])


def contain(build):
    """What runs a program as pid 1 of a container in a container, with namespaces of all eight types."""
    return [build / "tests/bench/load", "contain", "2"]


def nested(kind):
    """One of bench/load.c in there."""
    return lambda test, build: Nested(test, [*contain(build), build / "tests/bench/load"], [kind])


def python(test, _build):
    """tests/../bench/interpreter.py: it speaks the protocol of the victims."""
    return Built(test, ["/usr/bin/python3", "-B", Path(__file__).parent / "interpreter.py"], [])


LOADS = (
    Load("empty", "process", built("empty")),
    Load("w1", "16 MiB", built("16M")),
    Load("w2", "1 GiB", built("1G")),
    Load("w3", "1 GiB, half zeros", built("half")),
    Load("w4", "100 processes", built("tree")),
    Load("w5", "200 threads", built("threads")),
    Load("w6", "2,000 descriptors", built("descriptors")),
    Load("w7", "10,000 mappings", built("mappings")),
    Load("w8", "redis, 482 MB", lambda test, build: Redis(test)),
    Load("w9", "python3", python),
    Load("forked", "128 MiB among 4", built("forked")),
    Load("reservation", "1 TiB", built("reservation")),
    Load("nest", "2 x 8 namespaces", nested("empty")),
    Load("nest-redis", "the same with w8", lambda test, build: Redis(test, contain(build))),
    Load("containers", "50 with 3 each", built("containers"), usual=False),
    Load("mounts", "200 in a namespace", built("mounts"), usual=False),
    Load("sockets", "1,000 unix, 500 TCP", built("sockets"), usual=False),
)

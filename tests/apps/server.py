# SPDX-License-Identifier: MIT
"""What servers of the tests have in common: a directory and a port of their own, and HTTP to ask them."""
import http.client
import os
import socket
import subprocess
from pathlib import Path

from lib import inventory, proc

TCP_LISTEN, SO_ACCEPTCON = "0A", 1 << 16  # as /proc/net/tcp and /proc/net/unix say it


def free_port():
    """A TCP port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def sockets_of(root):
    """The inodes, as texts, of all sockets that a tree has open."""
    found = set()
    for pid in proc.tree(root):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        links = (inventory.link(f"/proc/{pid}/fd/{number}") or "" for number in numbers)
        found |= {link[len("socket:["):-1] for link in links if link.startswith("socket:[")}
    return found


def connections(pid):
    """The inodes of the sockets with a name that do not listen, where a process is."""
    lines = [line.split() for name in ("tcp", "tcp6")
             for line in proc.read(f"/proc/{pid}/net/{name}").splitlines()[1:]]
    unix = [line.split() for line in proc.read(f"/proc/{pid}/net/unix").splitlines()[1:]]
    return ({words[9] for words in lines if words[3] != TCP_LISTEN}
            | {words[6] for words in unix if len(words) > 7 and not int(words[3], 16) & SO_ACCEPTCON})


class Local(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def request(connection, path):
    """(status, body) of a GET; the connection ends with it."""
    connection.request("GET", path, headers={"Host": "localhost", "Connection": "close"})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


class Server:
    """A server of our own: its own session, nothing of ours but /dev/null."""

    def __init__(self, test, name):
        self.dir = Path(test.dir / name)
        self.dir.mkdir()
        self.port = free_port()
        self.pid = 0
        self.checks = 0
        test.cleanup(self.kill)

    def start(self, *command, env=None):
        """Starts it; whoever is its parent later reaps it (lib.proc)."""
        with open(self.dir / "stderr", "wb") as stderr:
            child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
                                     cwd="/", env=env)
        child.returncode = 0
        self.pid = child.pid

    def wait_ready(self, answers):
        """Waits until answers() is true, whatever a server that is not up yet does."""
        def up():
            try:
                return answers()
            except (OSError, http.client.HTTPException):
                return False
        proc.wait_until(f"{self.dir.name} does not answer: {proc.read(self.dir / 'stderr')[-300:]}", up)

    def get(self, path="/"):
        """(status, body) over TCP."""
        return request(http.client.HTTPConnection("127.0.0.1", self.port, timeout=proc.PATIENCE), path)

    def get_local(self, path="/"):
        """(status, body) over DIR/socket."""
        return request(Local(str(self.dir / "socket"), timeout=proc.PATIENCE), path)

    def quiet(self):
        """Waits until it has noticed that its clients are gone: connections are not saved. Those that
        the tree has with itself have no name."""
        proc.wait_until(f"{self.dir.name} keeps a connection",
                        lambda: not sockets_of(self.pid) & connections(self.pid))

    def kill(self):
        """Ends it."""
        if self.pid:
            proc.kill_tree(self.pid)

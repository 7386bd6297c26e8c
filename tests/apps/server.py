# SPDX-License-Identifier: MIT
"""What servers of the tests have in common: a directory and a port of their own, and HTTP to ask them."""
import http.client
import socket
import subprocess
from pathlib import Path

from lib import inventory, proc


def free_port():
    """A TCP port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


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
        proc.wait_until(f"{self.dir.name} does not answer: {proc.read(self.dir / 'stderr')[-300:]}", up, 30)

    def get(self, path="/"):
        """(status, body) over TCP."""
        return request(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20), path)

    def get_local(self, path="/"):
        """(status, body) over DIR/socket."""
        return request(Local(str(self.dir / "socket"), timeout=20), path)

    def quiet(self):
        """Waits until it has noticed that its clients are gone: connections are not saved. Those that
        the tree has with itself have no name."""
        def connected():
            return [fd for process in inventory.take(self.pid).values()
                    for fd in process.get("fds", {}).values()
                    if not fd.get("socket", {"acceptconn": 1})["acceptconn"] and fd["socket"]["name"]]
        proc.wait_until(f"{self.dir.name} keeps a connection", lambda: not connected())

    def kill(self):
        """Ends it."""
        if self.pid:
            proc.kill_tree(self.pid)

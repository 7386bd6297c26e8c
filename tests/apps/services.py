# SPDX-License-Identifier: MIT
"""Services in a container of all eight types of namespaces (nest.c), asked through nsenter(1) as an
administrator would: tests/apps/services/NAME.sh."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lib import proc
from lib.report import Failure, Skip
from lib.victim import removed

HERE = Path(__file__).resolve().parent / "services"
# of /proc/net/tcp: established, waiting for the last packets to vanish, listening
AT_REST = ("01", "06", "0A")


def hierarchy():
    """Where control groups of version 2 are mounted, or None."""
    for line in proc.read("/proc/self/mounts").splitlines():
        words = line.split()
        if words[2] == "cgroup2":
            return words[1]
    return None


class Service:
    """Seen as a victim."""

    def __init__(self, context, test, name):
        self.name, self.pid, self.group = name, 0, ""
        # the container has a /tmp of its own, in which nothing of ours can be seen
        self.dir = Path(tempfile.mkdtemp(prefix="ckpt-test-", dir="/var/tmp"))
        test.cleanup(self.kill)
        self.nest = shutil.copy(context.app("nest"), self.dir)
        self.make_group()
        self.start()

    def make_group(self):
        """A control group that becomes the container's root."""
        top = hierarchy()
        if top:
            self.group = f"{top}/{self.dir.name}"
            os.mkdir(self.group)

    def text(self, function):
        """The script, as it is given to a shell: its file cannot be seen from inside."""
        parts = [(HERE / f"{name}.sh").read_text() for name in ("common", self.name)]
        return "".join(parts) + f"\nmkdir -p $RUN\ncd $RUN\n{function}\n"

    def start(self):
        """The container, until the service is up."""
        command = [self.nest, self.dir / "pid", self.dir / "log", self.name, self.group, "/bin/sh", "-c",
                   self.text("inside")]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=proc.PATIENCE,
                              check=False, cwd="/")
        if done.returncode:
            raise Skip(f"no container of all namespaces: {done.stderr.strip()}")
        self.pid = int((self.dir / "pid").read_text())
        proc.wait_until(f"{self.name} is not up: {proc.read(self.dir / 'log')[-500:]}",
                        lambda: not self.run("ready").returncode, 120, 0.1)
        self.quiet()

    def run(self, function):
        """One of its functions, inside."""
        command = ["nsenter", "-t", str(self.pid), "-a", "/bin/sh", "-c", self.text(function)]
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=240, check=False)
        except subprocess.TimeoutExpired as late:
            raise Failure(f"{self.name}: no end of {function}") from late

    def check(self, when):
        """The service works, and remembers how often it was asked."""
        done = self.run("probe")
        if done.returncode:
            raise Failure(f"{when}: {self.name}: {(done.stderr or done.stdout).strip()[-300:]}: "
                          f"{proc.read(self.dir / 'log')[-300:]}")
        self.quiet()

    def quiet(self):
        """Waits until our connections are gone: those that end are not saved."""
        def closing():
            lines = proc.read(f"/proc/{self.pid}/net/tcp").splitlines()[1:]
            return [line for line in lines if line.split()[3] not in AT_REST]
        proc.wait_until(f"{self.name} keeps a connection", lambda: not closing())

    def kill(self):
        """All of it."""
        if self.pid:
            proc.kill_tree(self.pid)
        if self.group:
            proc.wait_until(f"{self.group} is in use", lambda: removed(self.group))
        shutil.rmtree(self.dir, ignore_errors=True)

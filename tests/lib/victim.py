# SPDX-License-Identifier: MIT
"""Starting and asking victims: programs that build state and judge it (tests/scenario/victim.h)."""
import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

from lib import proc
from lib.report import Failure, Skip


def removed(path):
    """Removes a control group; True if it is gone."""
    try:
        os.rmdir(path)
    except OSError:
        pass
    return not os.path.exists(path)


class Victim:
    """A running scenario program, before and after its restores."""

    def __init__(self, test, program, directory=None, args=(), hold=False):
        self.hold = hold
        self.excusable = 0  # so many kills of ckpt may have shown an EINTR (docs/compatibility.md)
        self.dir = Path(directory or test.dir / "victim")
        self.dir.mkdir(parents=True, exist_ok=True)
        self.checks = 0
        with open(self.dir / "stderr", "wb") as stderr:
            child = subprocess.Popen([str(program), *args, str(self.dir)], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=stderr,
                                     start_new_session=True, cwd="/")
        # from here on the pid is reaped by lib.proc, whoever's child it is by then
        child.returncode = 0
        self.pid = child.pid
        test.cleanup(self.kill)
        self.wait_ready()

    def said(self, name):
        """The text of DIR/name, or None."""
        text = proc.read(self.dir / name, None)
        return text.strip() if text is not None else None

    def wait_ready(self):
        """Waits until the state stands."""
        def settled():
            return (any((self.dir / name).exists() for name in ("ready", "failed", "skipped"))
                    or not proc.exists(self.pid))
        proc.wait_until("the victim is not ready", settled)
        if self.said("skipped") is not None:
            raise Skip(self.said("skipped"))
        if self.said("ready") is None:
            why = self.said("failed") or self.said("stderr") or "it died"
            raise Failure(f"the victim cannot build its state: {why}")

    def asked(self):
        """Which process of the tree answers."""
        return self.pid

    def ask(self, seconds=proc.PATIENCE):
        """Lets the victim check itself and returns its answer."""
        result = self.dir / "result"
        result.unlink(missing_ok=True)
        self.checks += 1
        try:
            os.kill(self.asked(), signal.SIGUSR1)
        except ProcessLookupError:
            return "it is gone"
        try:
            proc.wait_until("no answer", lambda: result.exists() or not proc.exists(self.pid), seconds)
        except proc.Timeout:
            return f"no answer to SIGUSR1 after {seconds} s"
        return self.said("result") or "it died while checking"

    def check(self, when):
        """Fails the test unless the victim finds its state as it should be."""
        answer = self.ask()
        if answer != f"ok {self.checks}" and not self.excused(answer):
            raise Failure(f"{when}: the victim says: {answer} (expected: ok {self.checks})")

    def excused(self, answer):
        """Is that what kills of ckpt in the one moment that shows can do, once each?"""
        found = re.fullmatch(rf"bad {self.checks}: (?:sigwaitinfo|epoll_wait) was interrupted (\d+) times",
                             answer)
        if not found or int(found[1]) > self.excusable:
            return False
        self.excusable -= int(found[1])
        return True

    @contextlib.contextmanager
    def parked(self, when):
        """A busy victim (`test: hold=yes`) stands still meanwhile: it can be compared from outside."""
        if not self.hold:
            yield
            return
        (self.dir / "hold").touch()
        self.check(when)
        yield
        (self.dir / "hold").unlink()
        self.check(when)

    def kill(self):
        """Ends the victim, all of its tree, and what it said in DIR/groups that it made outside."""
        if self.pid:
            proc.kill_tree(self.pid)
        self.remove_groups()

    def remove_groups(self):
        """Removes the victim's control groups, once they are empty."""
        for path in reversed((self.said("groups") or "").splitlines()):
            proc.wait_until(f"{path} is in use", lambda path=path: removed(path))

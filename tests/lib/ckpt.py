# SPDX-License-Identifier: MIT
"""Running the ckpt command of a build."""
import json
import os
import signal
import subprocess
import time

from lib import proc
from lib.report import Failure

OK, FAILED, USAGE, REFUSED, IMAGE, PRIVILEGE, LOST, DIFFERENT = range(8)
TIMEOUT = 600


class Run:
    """How one command ended."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def json(self):
        """The machine-readable output."""
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise Failure(f"{' '.join(self.command)}: no JSON: {error}: {self.out[:200]!r}") from error

    def __str__(self):
        return f"$ {' '.join(self.command)}\n{self.out}{self.err}[exit {self.code}]"


def wait(child, seconds):
    """The output of a child, while we do an init's duty: a pid namespace does not end before the dead
    that have come to us are reaped."""
    end = time.monotonic() + seconds
    while True:
        try:
            return child.communicate(timeout=0.2)
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                raise
            proc.reap(keep=(child.pid,))


class Ckpt:
    """The command of a build tree or of an installation; `prefix`: what runs it, as nsenter(1)."""

    def __init__(self, binary, env=None, prefix=()):
        self.binary = str(binary)
        self.prefix = [*map(str, prefix)]
        self.env = {**os.environ, **(env or {})}

    def run(self, test, *args, code=OK, timeout=TIMEOUT, pass_fds=()):
        """Runs `ckpt ARGS`; fails the test unless it ends with `code` (None: any)."""
        command = [*self.prefix, self.binary, *map(str, args)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace",
                              start_new_session=True, env=self.env, cwd="/",
                              pass_fds=pass_fds) as child:
            try:
                out, err = wait(child, timeout)
            except subprocess.TimeoutExpired as expired:
                os.killpg(child.pid, signal.SIGKILL)
                out, err = child.communicate()
                test.log(f"$ {' '.join(command)}\n{out}{err}[killed]")
                raise Failure(f"{' '.join(map(str, args))}: hangs") from expired
        result = Run(command, child.returncode, out, err)
        test.log(str(result))
        if code is not None and result.code != code:
            last = (err.strip().splitlines() or ["no message"])[-1]
            raise Failure(f"ckpt {args[0]} ended with {result.code}, not {code}: {last}")
        return result

    def dump(self, test, pid, image, *args, **kwargs):
        """ckpt dump"""
        return self.run(test, "dump", "-t", pid, "-D", image, "-vv", *args, **kwargs)

    def restore(self, test, image, *args, **kwargs):
        """ckpt restore -d; returns the root's pid."""
        pidfile = f"{image}.pid"
        if os.path.exists(pidfile):
            os.unlink(pidfile)
        result = self.run(test, "restore", "-D", image, "-d", "--pidfile", pidfile, "-v", *args,
                          **kwargs)
        if result.code:
            return None
        with open(pidfile, encoding="ascii") as file:
            return int(file.read())

    def verify(self, test, image, *args, **kwargs):
        """ckpt verify"""
        return self.run(test, "verify", "-D", image, *args, **kwargs)

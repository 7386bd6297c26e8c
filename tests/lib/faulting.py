# SPDX-License-Identifier: MIT
"""System calls of ckpt are made to fail one by one (tests/tools/fault): whatever a dump or a restore makes
of it, the victim is unharmed, or nothing is left."""
import errno
import os
import shutil
import subprocess

from lib import ckpt as codes
from lib import inventory, killing, proc
from lib.report import Failure, expect
from lib.victim import Victim

ERRORS = (errno.EIO, errno.ENOMEM, errno.EINTR, errno.EPERM)
LOADER = 127  # how the dynamic loader ends a program that it cannot start
# all but "the original could not be resumed"; a configuration that cannot be read is a usage error
ALLOWED = {codes.OK, codes.FAILED, codes.USAGE, codes.REFUSED, codes.IMAGE, codes.PRIVILEGE, LOADER}


def inject(context, test, position, error, *args):
    """Runs ckpt with one failing call; (exit code, the names of all calls or of the failed one, stderr)."""
    report, names = test.dir / "fault", test.dir / "calls"
    command = [str(context.tool("fault")), "-n", str(position), "-e", str(error), "-o", str(report)]
    command += [] if position else ["-l", str(names)]
    command += ["--", context.ckpt().binary, *map(str, args)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=120, check=False, cwd="/")
    except subprocess.TimeoutExpired as expired:
        raise Failure(f"call {position} ({report.read_text().split()[-1]}) failing with "
                      f"{errno.errorcode[error]}: ckpt hangs") from expired
    found = report.read_text().split()[1] if position else names.read_text().split()
    return done.returncode, found, done.stderr


def positions(calls, wanted):
    """At most `wanted` positions, evenly over the run."""
    step = max(1.0, calls / wanted)
    return sorted({int(1 + index * step) for index in range(min(calls, wanted))})


def files_of(victim):
    """The names below the victim's directory."""
    return {os.path.join(where, name) for where, directories, files in os.walk(victim.dir)
            for name in directories + files}


class Faults:
    """One victim, and runs of ckpt in each of which one call fails."""

    def __init__(self, context, test, scenario):
        self.context, self.test = context, test
        self.victim = Victim(test, context.scenario(scenario))
        self.image = test.dir / "image"
        shutil.rmtree(self.image, ignore_errors=True)
        self.victim.check("built")
        self.before, self.pids = inventory.take(self.victim.pid), proc.tree(self.victim.pid)
        self.stopped = killing.unsettled(self.victim.pid)
        self.outside = killing.Outside()
        self.calls, self.failed, self.runs = [], 0, 0

    def undisturbed(self, *args):
        """The names of the calls that a run makes."""
        code, self.calls, err = inject(self.context, self.test, 0, 0, *args)
        expect(code == 0, f"without a fault it ended with {code}: {err}")

    def disturbed(self, position, error, *args):
        """One run; its exit code, and what was done."""
        code, name, err = inject(self.context, self.test, position, error, *args)
        what = f"call {position} of {len(self.calls)} ({name}) failing with {errno.errorcode[error]}"
        self.test.log(f"{what}: exit {code} {err.strip()[-300:]}")
        expect(code in ALLOWED, f"{what}: ckpt ended with {code}: {err[-200:]}")
        self.runs += 1
        self.failed += code != 0
        return code, what

    def end(self):
        """Kills the victim, whoever it is by now."""
        self.victim.kill()

    def __str__(self):
        return f"{self.runs} of {len(self.calls)} calls, {self.failed} runs failed"


class Dump(Faults):
    """ckpt dump --leave-running"""

    def __init__(self, context, test, scenario):
        super().__init__(context, test, scenario)
        self.args = ("dump", "-t", self.victim.pid, "-D", self.image, "--leave-running")
        self.undisturbed(*self.args)
        self.unharmed("without a fault")

    def unharmed(self, what):
        """The victim, from outside and inside, is as it was."""
        try:
            proc.wait_until("tasks are still stopped or traced",
                            lambda: killing.unsettled(self.victim.pid) == self.stopped)
        except proc.Timeout as timeout:
            raise Failure(f"{what}: {timeout}") from timeout
        differences = inventory.differences(self.before, self.victim.pid)
        expect(not differences, f"{what}: the victim has changed: {differences[:1]}")
        self.victim.check(what)
        self.outside.expect_nothing(what)
        self.before = inventory.take(self.victim.pid)

    def fault(self, position, error):
        """Makes one call fail."""
        shutil.rmtree(self.image, ignore_errors=True)
        _, what = self.disturbed(position, error, *self.args)
        self.unharmed(what)


class Restore(Faults):
    """ckpt restore: nothing is left of a failed one. A copy is looked at from outside only: a check may
    change files, and the next copy comes from the same image."""

    def __init__(self, context, test, scenario):
        super().__init__(context, test, scenario)
        self.args = ("restore", "-D", self.image, "-d")
        context.ckpt().dump(test, self.victim.pid, self.image)
        proc.wait_gone(self.pids)
        self.files, self.outside = files_of(self.victim), killing.Outside()
        self.undisturbed(*self.args)
        proc.kill_tree(self.victim.pid)

    def fault(self, position, error):
        """Makes one call fail."""
        code, what = self.disturbed(position, error, *self.args)
        if code:
            try:
                proc.wait_gone(self.pids)
            except proc.Timeout as timeout:
                raise Failure(f"{what}: {timeout}") from timeout
        else:
            differences = inventory.differences(self.before, self.victim.pid)
            expect(not differences, f"{what}: the copy differs: {differences[:1]}")
            proc.kill_tree(self.victim.pid)
        new = files_of(self.victim) - self.files
        expect(not new, f"{what}: files are left: {sorted(new)[:3]}")
        self.outside.expect_nothing(what)


def sample(kind, context, test, scenario, wanted):
    """Some calls, evenly over the run, with one error after the other."""
    faults = kind(context, test, scenario)
    for index, position in enumerate(positions(len(faults.calls), wanted)):
        faults.fault(position, ERRORS[index % len(ERRORS)])
    return str(faults)

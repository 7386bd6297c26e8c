# SPDX-License-Identifier: MIT
"""Runs tests one by one, counts them, and says what failed with the end of its log."""
import fnmatch
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

LOG_TAIL = 40


class Failure(Exception):
    """A test's verdict, in a sentence."""


class Skip(Exception):
    """The test cannot be run on this machine, and why."""


def expect(condition, message):
    """Fails the test unless the condition holds."""
    if not condition:
        raise Failure(message)


class Test:
    """What a running test gets: a directory of its own, a log, and things to clean up."""

    def __init__(self, name):
        self.name = name
        self.dir = Path(tempfile.mkdtemp(prefix="ckpt-test-", dir="/tmp"))
        self.log_path = self.dir / "log"
        self.log_file = open(self.log_path, "a", encoding="utf-8", errors="replace")
        self.cleanups = []

    def log(self, text):
        """A line, or a program's output, for whoever looks into a failure."""
        self.log_file.write(text if text.endswith("\n") else text + "\n")
        self.log_file.flush()

    def cleanup(self, function, *args):
        """Calls function(*args) at the end, last registered first."""
        self.cleanups.append((function, args))

    def finish(self):
        """Cleans up; the errors of it are returned as texts."""
        errors = []
        for function, args in reversed(self.cleanups):
            try:
                function(*args)
            except Exception as error:  # pylint: disable=broad-except
                errors.append(f"cleaning up: {error}")
        self.log_file.close()
        return errors

    def tail(self):
        """The last lines of the log."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return lines[-LOG_TAIL:]


class Report:
    """The whole run."""

    def __init__(self, only=None, repeat=1):
        self.only, self.repeat = only, repeat
        self.notes = {}  # {name: what a test that passed said}
        self.counts = {}  # {name: [runs, passes]}
        self.passed = 0
        self.failed = []
        self.skipped = []

    def wanted(self, name):
        """Is the test named by --only (a shell pattern or a part of the name)?"""
        return not self.only or self.only in name or fnmatch.fnmatch(name, self.only)

    def run(self, name, function, quiet=False, always=False):
        """Runs function(test) and records how it ends; `quiet` says nothing about what went well,
        `always` does not ask whether it is wanted."""
        if not always and not self.wanted(name):
            return
        for _ in range(1 if always else self.repeat):
            self.run_once(name, function, quiet)

    def run_once(self, name, function, quiet):
        """Runs it and records how it ends."""
        test = Test(name)
        begin = time.monotonic()
        verdict, why = "ok", ""
        try:
            note = function(test)
            why = note or ""
        except Skip as skip:
            verdict, why = "skip", str(skip)
        except Failure as failure:
            verdict, why = "FAIL", str(failure)
        except Exception as error:  # pylint: disable=broad-except
            verdict, why = "FAIL", f"{type(error).__name__}: {error}"
            test.log(traceback.format_exc())
        errors = test.finish()
        if errors and verdict == "ok":
            verdict, why = "FAIL", "; ".join(errors)
        self.record(test, verdict, why, time.monotonic() - begin, quiet)

    def record(self, test, verdict, why, seconds, quiet):
        """Prints one line a test, more if it failed."""
        count = self.counts.setdefault(test.name, [0, 0])
        count[0] += verdict != "skip"
        count[1] += verdict == "ok"
        self.notes[test.name] = why
        if not quiet or verdict != "ok":
            print(f"{verdict:4} {test.name} ({seconds:.1f} s){': ' + why if why else ''}",
                  flush=True)
        if verdict == "FAIL":
            self.failed.append(test.name)
            for line in test.tail():
                print(f"     | {line}")
            print(f"     kept: {test.dir}", flush=True)
            return
        if verdict == "skip":
            self.skipped.append(test.name)
        else:
            self.passed += 1
        shutil.rmtree(test.dir, ignore_errors=True)

    def summary(self):
        """The closing lines; returns the exit code."""
        if self.skipped:
            print(f"skipped: {', '.join(self.skipped)}")
        for name in self.failed:
            print(f"failed: {name}")
        sys.stdout.flush()
        print(f"{self.passed} passed, {len(self.failed)} failed", flush=True)
        return 1 if self.failed or not self.passed else 0

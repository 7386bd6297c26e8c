# SPDX-License-Identifier: MIT
"""Where things are, and how long the run may take."""
import os
import subprocess
from pathlib import Path

from lib import proc
from lib.ckpt import Ckpt
from lib.report import Failure

SOURCE = Path(__file__).resolve().parents[2]


class Context:
    """What the stages know of the run."""

    def __init__(self, build_root, quick, seed, apps=False, fault_most=None, kills=None):
        self.source = SOURCE
        self.build_root = Path(build_root)
        self.quick = quick
        self.seed = seed
        self.apps = apps
        self.fault_most = fault_most  # positions of each call, None: all
        self.kills = kills  # of each victim, None: few

    def build(self, preset="release"):
        """The build directory of a preset."""
        return self.build_root / preset

    def ckpt(self, preset="release", prefix=()):
        """The command as built by a preset."""
        # what the engine leaks by exiting is not worth a word; what it overruns is
        return Ckpt(self.build(preset) / "ckpt", {"ASAN_OPTIONS": "detect_leaks=0",
                                                  "UBSAN_OPTIONS": "print_stacktrace=1"}, prefix)

    def scenario(self, name):
        """The program of a scenario."""
        return self.build() / "tests" / "scenario" / name

    def app(self, name):
        """A compiled program that stands for many."""
        return self.build() / "tests" / "apps" / name

    def tool(self, name, preset="release"):
        """A compiled test tool."""
        return self.build(preset) / "tests" / "tools" / name


def command(test, *args, cwd=SOURCE, timeout=proc.HANGS, env=None):
    """Runs a program; its output goes to the test's log; fails the test if it fails."""
    words = [str(arg) for arg in args]
    done = subprocess.run(words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout,
                          check=False, env={**os.environ, **(env or {})})
    test.log(f"$ {' '.join(words)}\n{done.stdout}[exit {done.returncode}]")
    if done.returncode:
        raise Failure(f"{' '.join(words[:3])} ... ended with {done.returncode}")
    return done.stdout

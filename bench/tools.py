# SPDX-License-Identifier: MIT
"""What is measured: ckpt, and criu beside it; and how it is printed."""
import json
import os
import shutil
import subprocess
import tempfile
import time

from lib import proc
from lib.report import Failure


def timed(test, command):
    """(milliseconds, output) of a command. Whoever dies meanwhile is reaped at once: both tools wait
    until the tree that they kill is gone."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        begin = time.monotonic()
        pid = os.posix_spawnp(command[0], command, os.environ,
                              file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1),
                                            (os.POSIX_SPAWN_DUP2, out.fileno(), 2)])
        ended = None
        while ended != pid:
            ended, status = os.waitpid(-1, 0)
        took = (time.monotonic() - begin) * 1000
        out.seek(0)
        text = out.read()
    test.log(f"$ {' '.join(command)}\n{text}")
    if status:
        raise Failure(f"{' '.join(command[:2])} ended with {os.waitstatus_to_exitcode(status)}: "
                      f"{text.strip()[-200:]}")
    return took, text


def describe_machine():
    """In one line, with what else it does."""
    uname = os.uname()
    model = next((line.split(":")[1].strip() for line in proc.read("/proc/cpuinfo").splitlines()
                  if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (f"{uname.sysname} {uname.release}, {os.cpu_count()} x {model}, {memory:.0f} GiB, load average "
            f"{os.getloadavg()[0]:.1f}")


def directory_size(directory):
    """Bytes of all files, in MiB."""
    return sum(path.stat().st_size for path in directory.iterdir()) / 2**20


class Table:
    """Rows as they come, as text or Markdown."""

    def __init__(self, markdown):
        self.markdown = markdown
        self.widths = []

    def row(self, cells):
        """One row; the first one is the head."""
        head = not self.widths
        if head:
            self.widths = [28] + [max(len(text), 7) for text in cells[1:]]
        line = [f"{text:{'<' if i == 0 else '>'}{self.widths[i]}}" for i, text in enumerate(cells)]
        print(("| " + " | ".join(line) + " |" if self.markdown else "  ".join(line)).rstrip(), flush=True)
        if head and self.markdown:
            print("|" + "|".join(["---"] + ["---:"] * (len(cells) - 1)) + "|")


class Ckpt:
    """ckpt as built."""

    def __init__(self, binary):
        self.binary = str(binary)

    def dump(self, victim, image, leave):
        """{column: value}"""
        more = ["--leave-running"] if leave else []
        took, text = timed(victim.test, [self.binary, "dump", "-t", str(victim.pid), "-D", str(image),
                                         "--json", *victim.dump_options, *more])
        return {"dump": took, "frozen": json.loads(text[text.index("{"):])["frozen_us"] / 1000}

    def restore(self, victim, image, *more):
        """Milliseconds."""
        return timed(victim.test, [self.binary, "restore", "-D", str(image), "-d",
                                   *victim.restore_options, *more])[0]


class Criu:
    """The peer."""

    @staticmethod
    def dump(victim, image, leave):
        """{column: value}"""
        image.mkdir()
        more = ["--leave-running"] if leave else []
        took, _ = timed(victim.test, ["criu", "dump", "-t", str(victim.pid), "-D", str(image), "-v1",
                                      "-o", "dump.log", "--tcp-established", *more])
        return {"dump": took, "frozen": frozen((image / "stats-dump").read_bytes())}

    @staticmethod
    def restore(victim, image):
        """Milliseconds."""
        return timed(victim.test, ["criu", "restore", "-D", str(image), "-d", "-v1", "-o", "restore.log",
                                   "--tcp-established"])[0]


def numbers(data):
    """{field: value} of a protobuf message: integers and bytes."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        value = varint()
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        found[key >> 3] = value
    return found


def frozen(stats):
    """Milliseconds, from criu's stats-dump: two magic numbers, a length, StatsEntry.dump.frozen_time."""
    return numbers(numbers(stats[12:])[1])[2] / 1000


def criu_refuses():
    """Why there is no comparison, or None."""
    if not shutil.which("criu"):
        return "it is not installed (Debian's package criu)"
    version = subprocess.run(["criu", "--version"], capture_output=True, text=True, check=False)
    check = subprocess.run(["criu", "check"], capture_output=True, text=True, check=False)
    if check.returncode == 0:
        return None
    lines = [line for line in check.stderr.splitlines() if line.startswith("Error")]
    said = next((line for line in lines if "exited" not in line), "criu check failed")
    return f"{version.stdout.split()[-1]} says \"{said}\" (criu check)"

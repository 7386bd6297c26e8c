# SPDX-License-Identifier: MIT
"""Copies of one image: how long they take to come to life, and what memory they have."""
import os
import shutil
import signal
import tempfile
from pathlib import Path

from lib import proc
from tools import timed

NUMBERS = (1, 2, 4, 8)
# a row: times of so many copies, and of the last without sharing; memory of one, of the last, and without
HEADS = ["load"] + [f"{number}" for number in NUMBERS] + ["apart", "MiB of 1", f"of {NUMBERS[-1]}", "apart"]
APART = ("-o", "mem.share-copies=no")


def branched(tool, victim, image, number, *more):
    """(milliseconds, MiB of all copies); they are ended."""
    prefix = image.parent / "pid"
    took, _ = timed(victim.test, [tool.binary, "branch", "-D", str(image), "--copies", str(number), "--layer",
                                  str(victim.dir), "--pidfiles", str(prefix), *more])
    firsts = [int(proc.stat_fields(int(Path(f"{prefix}.{i}").read_text(encoding="ascii")))[1][1])
              for i in range(1, number + 1)]
    trees = [pid for first in firsts for pid in proc.tree(first)]
    used = proc.pss(trees) / 1024
    for first in firsts:
        os.kill(first, signal.SIGKILL)
    proc.wait_gone(trees)
    return took, used


def measure(test, tool, load, args, place):
    """The cells of a row, the least of all rounds."""
    victim = load.start(test, args.build)
    images = Path(tempfile.mkdtemp(prefix="ckpt-bench-", dir=place))
    try:
        tool.dump(victim, images / "image", leave=True)
        one = proc.pss(proc.tree(victim.pid)) / 1024
        rows = [[branched(tool, victim, images / "image", number) for number in NUMBERS]
                + [branched(tool, victim, images / "image", NUMBERS[-1], *APART)]
                for _ in range(args.rounds)]
    finally:
        shutil.rmtree(images, ignore_errors=True)
    victim.kill()
    best = [[min(cells) for cells in zip(*column)] for column in zip(*rows)]
    return [took for took, _ in best] + [one] + [used for _, used in best[-2:]]

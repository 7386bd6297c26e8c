# SPDX-License-Identifier: MIT
"""Clocks of tasks that had no time namespace: they go on where they stopped if the restore is told so."""
import os

from lib import proc
from lib.report import expect
from lib.victim import Victim


def offsets(pid):
    """{clock: seconds}"""
    return {line.split()[0]: float(line.split()[1])
            for line in proc.read(f"/proc/{pid}/timens_offsets").splitlines()}


def goes_on(context, test):
    """The root gets a namespace whose clocks are behind those of the machine, and is saved again from it."""
    victim = Victim(test, context.scenario("uts"))
    for number in range(2):
        image, pids = test.dir / f"image{number}", proc.tree(victim.pid)
        context.ckpt().dump(test, victim.pid, image)
        proc.wait_gone(pids)
        victim.pid = context.ckpt().restore(test, image, "-o", "time.continue=yes")
        ours, theirs = (os.readlink(f"/proc/{pid}/ns/time") for pid in ("self", victim.pid))
        expect(ours != theirs, "it has no time namespace")
        behind = offsets(victim.pid)
        expect(behind["monotonic"] < 0 and behind["boottime"] < 0, f"its offsets are {behind}")
        victim.check("restored")
    context.ckpt().verify(test, image)


def tests(context):
    """One."""
    yield "clocks/continue", lambda test: goes_on(context, test)

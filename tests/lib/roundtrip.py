# SPDX-License-Identifier: MIT
"""The main experiment: save, kill, restore, and nobody inside or outside can tell."""
import contextlib
import shutil
import subprocess

from lib import inventory, proc
from lib.report import Failure


def expect_equal(test, differences, when):
    """Fails the test if there are differences."""
    for text in differences:
        test.log(f"{when}: {text[:600]}")
    if differences:
        more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
        raise Failure(f"{when}: {differences[0][:300]}{more}")


def parked(victim, when):
    """Within this the victim stands still, if it is one that can."""
    return victim.parked(when) if hasattr(victim, "parked") else contextlib.nullcontext()


def meanwhile(between):
    """What happens on the machine while there is no tree: commands."""
    for command in between:
        subprocess.run(command, shell=True, check=True)


def once(ckpt, test, victim, image, ignore=(), options=(), verify=True, between=()):
    """One round: dump, gone, restore, equal from outside, equal for ckpt verify, equal from inside."""
    with parked(victim, "before"):
        before = inventory.take(victim.pid)
    pids = proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, image, *options)
    proc.wait_gone(pids)
    meanwhile(between)
    victim.pid = ckpt.restore(test, image, *options)
    with parked(victim, "restored"):
        expect_equal(test, inventory.differences(before, victim.pid, ignore), "restored")
    if verify:
        ckpt.verify(test, image, *options)
    victim.check("restored")


def rounds(ckpt, test, victim, count=2, between=(), **kwargs):
    """Several rounds with one victim: what was restored can be saved again."""
    victim.check("built")
    for number in range(count):
        image = test.dir / f"image{number}"
        once(ckpt, test, victim, image, between=between if number % 2 else (), **kwargs)
        shutil.rmtree(image, ignore_errors=True)
    victim.check("at the end")


def leave_running(ckpt, test, victim, ignore=(), options=()):
    """The original goes on, unharmed."""
    victim.check("built")
    with parked(victim, "before"):
        before = inventory.take(victim.pid)
    image = test.dir / "image-of-running"
    ckpt.dump(test, victim.pid, image, "--leave-running", *options)
    with parked(victim, "left running"):
        expect_equal(test, inventory.differences(before, victim.pid, ignore), "left running")
    victim.check("left running")
    shutil.rmtree(image, ignore_errors=True)

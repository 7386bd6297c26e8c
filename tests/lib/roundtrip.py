# SPDX-License-Identifier: MIT
"""The main experiment: save, kill, restore, and nobody inside or outside can tell."""
import re
import shutil

from lib import inventory, proc
from lib.report import Failure


def compare(test, before, after, when, ignore=()):
    """Fails the test if the inventories differ in more than what `ignore` (patterns) allows."""
    differences = [text for text in inventory.compare(before, after)
                   if not any(re.search(pattern, text) for pattern in ignore)]
    for text in differences:
        test.log(f"{when}: {text[:600]}")
    if differences:
        more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
        raise Failure(f"{when}: {differences[0][:300]}{more}")


def once(ckpt, test, victim, image, ignore=(), options=(), verify=True):
    """One round: dump, gone, restore, equal from outside, equal for ckpt verify, equal from inside."""
    before = inventory.take(victim.pid)
    pids = proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, image, *options)
    proc.wait_gone(pids)
    victim.pid = ckpt.restore(test, image, *options)
    compare(test, before, inventory.take(victim.pid), "restored", ignore)
    if verify:
        ckpt.verify(test, image, *options)
    victim.check("restored")


def rounds(ckpt, test, victim, count=2, **kwargs):
    """Several rounds with one victim: what was restored can be saved again."""
    victim.check("built")
    for number in range(count):
        image = test.dir / f"image{number}"
        once(ckpt, test, victim, image, **kwargs)
        shutil.rmtree(image, ignore_errors=True)
    victim.check("at the end")


def leave_running(ckpt, test, victim, ignore=(), options=()):
    """The original goes on, unharmed."""
    victim.check("built")
    before = inventory.take(victim.pid)
    image = test.dir / "image-of-running"
    ckpt.dump(test, victim.pid, image, "--leave-running", *options)
    compare(test, before, inventory.take(victim.pid), "left running", ignore)
    victim.check("left running")
    shutil.rmtree(image, ignore_errors=True)

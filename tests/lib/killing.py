# SPDX-License-Identifier: MIT
"""ckpt is killed by SIGKILL at random moments: nobody must be harmed, and nothing be left."""
import os
import random
import shutil
import signal
import subprocess
import time

from lib import inventory, proc
from lib.report import Failure, expect
from lib.victim import Victim


def leftovers():
    """What a dead ckpt might leave outside of any process."""
    shm = sorted(line.split()[1] for line in proc.read("/proc/sysvipc/shm").splitlines()[1:])
    mounts = len(proc.read("/proc/self/mountinfo").splitlines())
    return {"System V segments": shm, "files in /dev/shm": sorted(os.listdir("/dev/shm")),
            "mounts": mounts}


def our_children():
    """The processes that have ended up with us."""
    proc.reap()
    me = os.getpid()
    return {pid for pid, ppid in proc.parents().items() if ppid == me}


def start(ckpt, *args):
    """Starts ckpt in a group of its own."""
    return subprocess.Popen([ckpt.binary, *map(str, args)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True, env=ckpt.env, cwd="/")


def typical(action, count=3):
    """The longest of a few undisturbed runs, in seconds."""
    times = []
    for _ in range(count):
        begin = time.monotonic()
        action()
        times.append(time.monotonic() - begin)
    return max(times)


def kill_after(child, delay):
    """Kills ckpt, all of its group, after a while; True if it was still at work."""
    time.sleep(delay)
    alive = child.poll() is None
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()
    return alive


class Held:
    """The busy victim parked, for comparing it from outside (see busy.c)."""

    def __init__(self, victim):
        self.victim, self.file = victim, victim.dir / "hold"

    def inventory(self, when):
        """Checks, takes an inventory of the parked victim, and lets it go on."""
        self.file.touch()
        self.victim.check(when)
        found = inventory.take(self.victim.pid)
        self.file.unlink()
        self.victim.check(when)
        return found


def settled(root):
    """No task is stopped or has a tracer."""
    return all(state not in "tT" and not tracer for state, tracer in proc.states(root).values())


def dumps(ckpt, test, program, kills, seed):
    """Kills `ckpt dump --leave-running` of a busy victim `kills` times."""
    chance = random.Random(seed)
    victim = Victim(test, program)
    held, image = Held(victim), test.dir / "image"
    before, outside, children = held.inventory("built"), leftovers(), our_children()

    def dump(*args):
        shutil.rmtree(image, ignore_errors=True)
        return ckpt.dump(test, victim.pid, image, "--leave-running", *args)

    duration, interrupted = typical(dump), 0
    for number in range(kills):
        shutil.rmtree(image, ignore_errors=True)
        delay = chance.uniform(0, duration * 1.1)
        child = start(ckpt, "dump", "-t", victim.pid, "-D", image, "--leave-running")
        interrupted += kill_after(child, delay)
        when = f"kill {number} after {delay * 1000:.2f} ms (seed {seed})"
        try:
            proc.wait_until("tasks are still stopped or traced", lambda: settled(victim.pid), 5)
        except proc.Timeout as timeout:
            test.log(str(proc.states(victim.pid)))
            raise Failure(f"{when}: {timeout}") from timeout
        differences = inventory.compare(before, held.inventory(when))
        expect(not differences, f"{when}: the victim has changed: {differences[:2]}")
        expect(leftovers() == outside, f"{when}: left behind: {leftovers()}, was {outside}")
        expect(our_children() == children, f"{when}: new processes: {our_children() - children}")
    dump()
    victim.check("after a last, undisturbed dump")
    return f"{kills} kills, {interrupted} of them at work, within {duration * 1000:.0f} ms"


def restores(ckpt, test, program, kills, seed):
    """Kills `ckpt restore` `kills` times: the tree is there whole, or not at all."""
    chance = random.Random(seed)
    victim = Victim(test, program)
    held, image = Held(victim), test.dir / "image"
    before, checks = held.inventory("built"), victim.checks
    pids = proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, image)
    proc.wait_gone(pids)
    outside, children = leftovers(), our_children()

    def whole(when):
        victim.checks = checks
        differences = inventory.compare(before, held.inventory(when))
        expect(not differences, f"{when}: the copy differs: {differences[:2]}")
        proc.kill_tree(victim.pid)

    def restore():
        ckpt.restore(test, image)
        whole("restored")

    duration, completed = typical(restore), 0
    for number in range(kills):
        delay = chance.uniform(0, duration)
        kill_after(start(ckpt, "restore", "-D", image, "-d"), delay)
        when = f"kill {number} after {delay * 1000:.2f} ms (seed {seed})"
        try:
            proc.wait_gone(pids, 2)
        except proc.Timeout as timeout:
            if not settled(victim.pid) or set(proc.tree(victim.pid)) != set(pids):
                raise Failure(f"{when}: a part is left: {proc.states(victim.pid)}") from timeout
            whole(when)
            completed += 1
        expect(leftovers() == outside, f"{when}: left behind: {leftovers()}, was {outside}")
        expect(our_children() == children, f"{when}: new processes: {our_children() - children}")
    return f"{kills} kills, {completed} came too late, within {duration * 1000:.0f} ms"

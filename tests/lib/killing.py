# SPDX-License-Identifier: MIT
"""ckpt is killed by SIGKILL at random moments: nobody must be harmed, and nothing be left."""
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

from lib import inventory, proc
from lib.report import Failure, expect
from lib.victim import Victim


class Outside:
    """What a dead ckpt might leave outside of any process. What is there a moment only does not count:
    others may be at work on the machine, and ckpt's keeper goes away a little after it."""

    def __init__(self):
        self.before, self.children = self.look(), our_children()

    @staticmethod
    def look():
        """Everything that has a name: files in memory, our mounts, segments of our ipc namespace, directories
        of ckpt's, and what it lets hold packets back. A namespace is held by one of these, or by a
        process. Control groups and links would be those of others, too."""
        mounts = {f"mount {line.split()[4]}" for line in proc.read("/proc/self/mountinfo").splitlines()}
        segments = {f"System V segment {line.split()[1]}"
                    for line in proc.read("/proc/sysvipc/shm").splitlines()[1:]}
        rules = subprocess.run(["/usr/sbin/nft", "list", "tables"], capture_output=True, text=True,
                               check=False)
        tables = {line for line in rules.stdout.splitlines() if " ckpt-" in line}
        ours = {str(path) for path in Path("/tmp").glob("ckpt-sock-*")}
        # directories there are somebody's work
        files = {entry.path for entry in os.scandir("/dev/shm") if entry.is_file(follow_symlinks=False)}
        return mounts | segments | tables | ours | files

    def left(self):
        """What is new since the beginning, processes that ended up with us included."""
        return (sorted(self.look() - self.before)
                + [f"process {pid}" for pid in our_children() - self.children])

    def expect_nothing(self, when):
        """Fails the test if something stays."""
        try:
            proc.wait_until("", lambda: not self.left())
        except proc.Timeout as timeout:
            raise Failure(f"{when}: left behind: {', '.join(self.left())}") from timeout


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


def keepers_of(pid):
    """ckpt's child that outlives it."""
    children = proc.read(f"/proc/{pid}/task/{pid}/children").split()
    return [int(child) for child in children if proc.read(f"/proc/{child}/comm") == "ckpt-keeper\n"]


def kill_after(child, delay, both=False):
    """Kills ckpt, all of its group, after a while, and its keeper too; True if it was still at work."""
    time.sleep(delay)
    alive = child.poll() is None
    for keeper in keepers_of(child.pid) if both and alive else []:
        os.kill(keeper, signal.SIGKILL)
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()
    return alive


def expect_unchanged(victim, before, when, what):
    """Fails the test unless the parked victim is as it was."""
    with victim.parked(when):
        differences = inventory.differences(before, victim.pid)
    expect(not differences, f"{when}: {what}: {differences[:2]}")


def start_victim(test, program):
    """The busy victim, and what it is like when it is parked (see busy.c)."""
    victim = Victim(test, program, hold=True)
    with victim.parked("built"):
        return victim, inventory.take(victim.pid)


PF_EXITING, PF_KTHREAD = 0x4, 0x200000  # field 9 of /proc/PID/stat, include/linux/sched.h


def flags_of(pid):
    """Its flags, or 0."""
    stat = proc.stat_fields(pid)
    return int(stat[1][6]) if stat else 0


def asleep(pid):
    """Does it sleep, neither woken by a SIGKILL nor on its way out?"""
    status = inventory.status_of(f"/proc/{pid}/status", ("State", "SigPnd"))
    return (status.get("State", "")[:1] == "S" and not flags_of(pid) & PF_EXITING
            and not int(status["SigPnd"], 16) & 1 << signal.SIGKILL - 1)


def helpers():
    """ckpt's children that have outlived it and may still kill."""
    return [pid for pid in our_children()
            if proc.read(f"/proc/{pid}/comm").startswith(("ckpt-keeper", "ckpt-guard"))]


def unsettled(root):
    """Who is stopped, or has a tracer."""
    return {tid: state for tid, state in proc.states(root).items() if state[0] in "tT" or state[1]}


def is_ours(victim, pid):
    """Is the number not somebody else's by now? Skeletons have no arguments, as threads of the kernel."""
    words = proc.read(f"/proc/{pid}/cmdline")
    return (proc.exists(pid) and not flags_of(pid) & PF_KTHREAD
            and (not words or str(victim.dir) in words or "ckpt" in words))


def whole_or_gone(victim, pids, when):
    """After a death of ckpt the tree is there whole (True), or not at all. Who was let go by that death may
    be about to die of it: all must have been seen asleep, not at once, when nobody is left to kill them."""
    alive = set()

    def decided():
        if helpers():
            alive.clear()
            return False
        there = [pid for pid in pids if is_ours(victim, pid)]
        alive.update(pid for pid in there if asleep(pid))
        return not there or (len(there) == len(pids) and not unsettled(victim.pid) and alive >= set(pids))

    try:
        proc.wait_until("a part of the tree is left", decided)
    except proc.Timeout as timeout:
        raise Failure(f"{when}: {timeout}: {proc.states(victim.pid)}") from timeout
    return is_ours(victim, victim.pid)


def dumps(ckpt, test, program, kills, seed, both=False):
    """Kills `ckpt dump --leave-running` of a busy victim `kills` times, `both`: together with its keeper."""
    chance = random.Random(seed)
    victim, before = start_victim(test, program)
    image, outside = test.dir / "image", Outside()

    def dump(*args):
        shutil.rmtree(image, ignore_errors=True)
        return ckpt.dump(test, victim.pid, image, "--leave-running", *args)

    stopped, duration, interrupted = unsettled(victim.pid), typical(dump), 0
    for number in range(kills):
        shutil.rmtree(image, ignore_errors=True)
        delay = chance.uniform(0, duration * 1.1)
        child = start(ckpt, "dump", "-t", victim.pid, "-D", image, "--leave-running")
        at_work = kill_after(child, delay, both)
        interrupted, victim.excusable = interrupted + at_work, victim.excusable + at_work
        when = f"kill {number} after {delay * 1000:.2f} ms (seed {seed})"
        try:
            proc.wait_until("tasks are still stopped or traced",
                            lambda: unsettled(victim.pid) == stopped)
        except proc.Timeout as timeout:
            test.log(str(proc.states(victim.pid)))
            raise Failure(f"{when}: {timeout}") from timeout
        expect_unchanged(victim, before, when, "the victim has changed")
        outside.expect_nothing(when)
    dump()
    victim.check("after a last, undisturbed dump")
    return f"{kills} kills, {interrupted} of them at work, within {duration * 1000:.0f} ms"


def restores(ckpt, test, program, kills, seed):
    """Kills `ckpt restore` `kills` times: the tree is there whole, or not at all."""
    chance = random.Random(seed)
    victim, before = start_victim(test, program)
    image, checks = test.dir / "image", victim.checks
    pids = proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, image)
    proc.wait_gone(pids)
    outside = Outside()

    def whole(when):
        victim.checks = checks
        expect_unchanged(victim, before, when, "the copy differs")
        proc.kill_tree(victim.pid)

    def restore():
        begin = time.monotonic()
        ckpt.restore(test, image)
        took = time.monotonic() - begin
        whole("restored")
        return took

    duration, completed = max(restore() for _ in range(3)), 0
    for number in range(kills):
        delay = chance.uniform(0, duration)
        child = start(ckpt, "restore", "-D", image, "-d")
        kill_after(child, delay)
        when = f"kill {number} after {delay * 1000:.2f} ms (seed {seed})"
        if whole_or_gone(victim, pids, when):
            whole(when)
            completed += 1
        outside.expect_nothing(when)
    return f"{kills} kills, {completed} came too late, within {duration * 1000:.0f} ms"

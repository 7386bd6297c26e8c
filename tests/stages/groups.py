# SPDX-License-Identifier: MIT
"""Control groups that are not there when a tree is restored: made again, with their limits; and gone again if
the restore fails."""
import os
import pathlib
import subprocess
import time

from lib import ckpt as codes
from lib import inventory, proc, roundtrip
from lib.report import expect
from lib.victim import Victim

ATTRIBUTES = ("-o", "cgroup.attributes=yes")


def saved(context, test):
    """A victim that is saved and dead, and its groups removed: (victim, image, inventory, groups, limits)."""
    victim = Victim(test, context.scenario("cgroup"))
    victim.check("built")
    before = inventory.take(victim.pid)
    groups, pids = victim.said("groups").splitlines(), proc.tree(victim.pid)
    context.ckpt().dump(test, victim.pid, test.dir / "image", *ATTRIBUTES)
    proc.wait_gone(pids)
    limits = {path: proc.read(path + "/pids.max", None) for path in groups}
    victim.remove_groups()
    return victim, test.dir / "image", before, groups, limits


def made_again(context, test):
    """The restore makes them."""
    victim, image, before, groups, limits = saved(context, test)
    victim.pid = context.ckpt().restore(test, image)
    roundtrip.expect_equal(test, inventory.differences(before, victim.pid), "restored")
    victim.check("restored")
    for path in groups:
        now = proc.read(path + "/pids.max", None)
        # a group that nobody is in, nor below, is nobody's
        expect(not os.path.exists(path) or now == limits[path], f"{path}: pids.max is {now}")
    context.ckpt().verify(test, image, *ATTRIBUTES)


def failed(context, test):
    """A restore that fails later leaves none."""
    victim, image, _, groups, _ = saved(context, test)
    victim.pid = 0
    command = [str(context.tool("fault")), "-n", "1", "-e", "12", "-s", "process_vm_writev", "-o",
               str(test.dir / "fault"), "--", context.ckpt().binary, "restore", "-D", str(image), "-d"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=codes.TIMEOUT, check=False, cwd="/")
    test.log(done.stdout + done.stderr)
    expect(done.returncode == 1, f"the restore ended with {done.returncode}")
    left = [path for path in groups if os.path.exists(path)]
    expect(not left, f"left behind: {left}")


def killed(context, test):
    """A frozen group is frozen again if ckpt is killed while it is not, and if a dump fails."""
    victim = Victim(test, context.scenario("cgroup-frozen"))
    victim.check("built")
    above = pathlib.Path(victim.said("groups").splitlines()[0])

    def frozen():
        return ((above / "cgroup.freeze").read_text() == "1\n"
                and "frozen 1" in (above / "cgroup.events").read_text())

    caught = 0
    for number in range(20):
        ckpt = subprocess.Popen([context.ckpt().binary, "dump", "-t", str(victim.pid), "-R", "-D",
                                 str(test.dir / f"image{number}")], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
        while ckpt.poll() is None and (above / "cgroup.freeze").read_text() != "0\n":
            pass
        time.sleep(number * 0.003)
        caught += ckpt.poll() is None
        ckpt.kill()
        ckpt.wait()
        proc.wait_until("the group is not frozen again", frozen)
    victim.excusable = caught
    victim.check("killed")
    context.ckpt().dump(test, victim.pid, "/proc/nowhere", code=codes.FAILED)
    proc.wait_until("the group is not frozen again", frozen)
    victim.check("failed")
    return f"{caught} kills"


def tests(context):
    """One for each."""
    yield "groups/frozen-killed", lambda test: killed(context, test)
    yield "groups/made-again", lambda test: made_again(context, test)
    yield "groups/failed", lambda test: failed(context, test)

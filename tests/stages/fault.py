# SPDX-License-Identifier: MIT
"""System calls of ckpt are made to fail one by one (tests/tools/fault): whatever a dump or a restore makes
of it, the victim is unharmed, or nothing is left."""
import errno
import shutil
import subprocess

from lib import ckpt as codes
from lib import inventory, proc
from lib.report import Failure, expect
from lib.victim import Victim

ERRORS = (errno.EIO, errno.ENOMEM, errno.EINTR, errno.EPERM)
LOADER = 127  # how the dynamic loader ends a program that it cannot start
# all but "the original could not be resumed"; a configuration that cannot be read is a usage error
ALLOWED = {codes.OK, codes.FAILED, codes.USAGE, codes.REFUSED, codes.IMAGE, codes.PRIVILEGE, LOADER}


def inject(context, test, position, error, *args):
    """Runs ckpt with one failing call; (exit code, calls seen, the failed call's name, stderr)."""
    report = test.dir / "fault"
    command = [str(context.tool("fault")), "-n", str(position), "-e", str(error), "-o", str(report),
               "--", context.ckpt().binary, *map(str, args)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=120, check=False, cwd="/")
    except subprocess.TimeoutExpired as expired:
        raise Failure(f"call {position} ({report.read_text().split()[-1]}) failing with "
                      f"{errno.errorcode[error]}: ckpt hangs") from expired
    calls, name = report.read_text().split()
    return done.returncode, int(calls), name, done.stderr


def positions(calls, wanted):
    """At most `wanted` positions, evenly over the run."""
    step = max(1.0, calls / wanted)
    return sorted({int(1 + index * step) for index in range(min(calls, wanted))})


def settled(root):
    """No task is stopped, or has a tracer."""
    return all(state not in "tT" and not tracer for state, tracer in proc.states(root).values())


def unharmed(victim, before, what):
    """The victim, from outside and inside, is as it was; returns what it is after the check."""
    try:
        proc.wait_until("tasks are still stopped or traced", lambda: settled(victim.pid))
    except proc.Timeout as timeout:
        raise Failure(f"{what}: {timeout}") from timeout
    differences = inventory.differences(before, victim.pid)
    expect(not differences, f"{what}: the victim has changed: {differences[:1]}")
    victim.check(what)
    return inventory.take(victim.pid)


def dump(context, test, scenario, wanted):
    """ckpt dump --leave-running"""
    victim = Victim(test, context.scenario(scenario))
    image = test.dir / "image"
    args = ("dump", "-t", victim.pid, "-D", image, "--leave-running")
    victim.check("built")
    before = inventory.take(victim.pid)
    code, calls, _, err = inject(context, test, 0, 0, *args)
    expect(code == 0, f"without a fault it ended with {code}: {err}")
    before = unharmed(victim, before, "without a fault")
    failed = 0
    for index, position in enumerate(positions(calls, wanted)):
        shutil.rmtree(image, ignore_errors=True)
        error = ERRORS[index % len(ERRORS)]
        code, _, name, err = inject(context, test, position, error, *args)
        what = f"call {position} of {calls} ({name}) failing with {errno.errorcode[error]}"
        test.log(f"{what}: exit {code} {err.strip()[-300:]}")
        expect(code in ALLOWED, f"{what}: ckpt ended with {code}: {err[-200:]}")
        before = unharmed(victim, before, what)
        failed += code != 0
    return f"{len(positions(calls, wanted))} of {calls} calls, {failed} failed dumps"


def restore(context, test, scenario, wanted):
    """ckpt restore: nothing is left of a failed one. A copy is looked at from outside only: a check may
    change files, and the next copy comes from the same image."""
    victim = Victim(test, context.scenario(scenario))
    image = test.dir / "image"
    victim.check("built")
    before, pids = inventory.take(victim.pid), proc.tree(victim.pid)
    context.ckpt().dump(test, victim.pid, image)
    proc.wait_gone(pids)
    args = ("restore", "-D", image, "-d")
    code, calls, _, err = inject(context, test, 0, 0, *args)
    expect(code == 0, f"without a fault it ended with {code}: {err}")
    proc.kill_tree(victim.pid)
    failed = 0
    for index, position in enumerate(positions(calls, wanted)):
        error = ERRORS[index % len(ERRORS)]
        code, _, name, err = inject(context, test, position, error, *args)
        what = f"call {position} of {calls} ({name}) failing with {errno.errorcode[error]}"
        test.log(f"{what}: exit {code} {err.strip()[-300:]}")
        expect(code in ALLOWED, f"{what}: ckpt ended with {code}: {err[-200:]}")
        if code:
            failed += 1
            try:
                proc.wait_gone(pids)
            except proc.Timeout as timeout:
                raise Failure(f"{what}: {timeout}") from timeout
        else:
            differences = inventory.differences(before, victim.pid)
            expect(not differences, f"{what}: the copy differs: {differences[:1]}")
            proc.kill_tree(victim.pid)
    return f"{len(positions(calls, wanted))} of {calls} calls, {failed} failed restores"


def tests(context):
    """A simple victim and one with children and descriptors."""
    wanted = 20 if context.quick else 40
    for scenario in ("mem-basic", "fd-basic", "pid-basic"):
        if (context.source / f"tests/scenario/{scenario}.c").exists():
            for function in (dump, restore):
                yield (f"fault/{function.__name__}/{scenario}",
                       lambda test, function=function, scenario=scenario:
                       function(context, test, scenario, wanted))

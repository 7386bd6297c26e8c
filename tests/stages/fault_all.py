# SPDX-License-Identifier: MIT
"""Every system call of ckpt is made to fail (`--fault-all`; an hour and more, so no part of every run)."""
from lib import faulting, tables
from lib.report import expect

LOADS = ("mem-basic", "fd-basic", "task-basic", "pty", "nested", "sock-stream", "user-pid", "mnt-user")
KINDS = {"dump": faulting.Dump, "restore": faulting.Restore, "verify": faulting.Verify}


def run(context, test, name, load):
    """One load, one command."""
    counts, harms = faulting.complete(KINDS[name], context, test, load, context.fault_most)
    tables.faults(context, name, load, counts)
    expect(not harms, f"{len(harms)} harms, the first: {harms[:1]}")
    made, failed, _ = (sum(column) for column in zip(*counts.values()))
    return f"{made} calls, {failed} of them made to fail"


def tests(context):
    """Each load, each command."""
    for load in LOADS:
        for name in KINDS:
            yield (f"fault-all/{load}/{name}",
                   lambda test, name=name, load=load: run(context, test, name, load))

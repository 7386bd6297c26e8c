# SPDX-License-Identifier: MIT
"""Some of the system calls of ckpt are made to fail (lib/faulting.py; all: tests/tools/fault-runner.py)."""
import errno

from lib import faulting


def tests(context):
    """A simple victim, one with children and descriptors, one with namespaces."""
    wanted = 20 if context.quick else 40
    for scenario in ("mem-basic", "fd-basic", "pid-basic"):
        for name, kind in (("dump", faulting.Dump), ("restore", faulting.Restore)):
            yield (f"fault/{name}/{scenario}",
                   lambda test, kind=kind, scenario=scenario:
                   faulting.sample(kind, context, test, scenario, wanted))
    yield "fault/verify/mem-basic", lambda test: faulting.sample(faulting.Verify, context, test,
                                                                 "mem-basic", 20)
    # helpers in namespaces, and the keeper
    few = 4 if context.quick else 8
    for name, kind in (("dump", faulting.Dump), ("restore", faulting.Restore)):
        yield (f"fault/{name}/mnt-user/children",
               lambda test, kind=kind: faulting.sample(kind, context, test, "mnt-user", few,
                                                       faulting.CHILDREN))
    yield "fault/orphan/mem-basic", lambda test: faulting.named(
        faulting.Orphaned, context, test, "mem-basic", "recvfrom", 0, few)
    # what it lets tasks do: a debug build
    for name, kind in (("dump", faulting.Dump), ("restore", faulting.Restore)):
        yield (f"fault/{name}/fd-basic/agents",
               lambda test, kind=kind: faulting.sample(kind, context, test, "fd-basic", few, faulting.AGENTS))
    # a thread that is said to be dead, and is not, is half-way through a system call of ckpt's
    yield "fault/dead/mem-basic", lambda test: faulting.named(faulting.Dump, context, test, "mem-basic",
                                                              "ptrace", errno.ESRCH, wanted)
    # ckpt waits for a child that it could not kill
    yield "fault/keeper", lambda test: faulting.named(faulting.Dump, context, test, "mem-basic", "kill",
                                                      errno.EPERM)

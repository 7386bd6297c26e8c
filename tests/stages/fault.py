# SPDX-License-Identifier: MIT
"""Some of the system calls of ckpt are made to fail (lib/faulting.py; all: tests/tools/fault-runner.py)."""
import errno

from lib import faulting


def tests(context):
    """A simple victim and one with children and descriptors."""
    wanted = 20 if context.quick else 40
    for scenario in ("mem-basic", "fd-basic", "pid-basic"):
        for name, kind in (("dump", faulting.Dump), ("restore", faulting.Restore)):
            yield (f"fault/{name}/{scenario}",
                   lambda test, kind=kind, scenario=scenario:
                   faulting.sample(kind, context, test, scenario, wanted))
    yield "fault/verify/mem-basic", lambda test: faulting.sample(faulting.Verify, context, test,
                                                                 "mem-basic", 20)
    # ckpt waits for a child that it could not kill
    yield "fault/keeper", lambda test: faulting.named(faulting.Dump, context, test, "mem-basic", "kill",
                                                      errno.EPERM)

# SPDX-License-Identifier: MIT
"""The SIGKILL runs (lib/killing.py, lib/faulting.py)."""
from lib import faulting, killing
from stages import branch


def tests(context):
    """Dumps and restores."""
    dumps, restores, branches = (40, 10, 10) if context.quick else (200, 60, 25)
    more_dumps, more_restores = dumps // 10, restores // 5
    if context.kills:
        dumps = restores = branches = more_dumps = more_restores = context.kills
    yield "kill/dump/busy", lambda test: killing.dumps(context.ckpt(), test, context.scenario("busy"), dumps,
                                                       context.seed)
    yield "kill/restore/busy", lambda test: killing.restores(context.ckpt(), test, context.scenario("busy"),
                                                             restores, context.seed)
    yield "kill/branch/pid-basic", lambda test: branch.killed(context, test, branches)
    # tasks that do not survive a call too many: at given places, and at random ones
    wanted = 8 if context.quick else 24
    yield "kill/calls/filtered", lambda test: faulting.sample(faulting.Killed, context, test, "filtered",
                                                              wanted)
    yield "kill/sendto/filtered", lambda test: faulting.named(faulting.Killed, context, test, "filtered",
                                                              "sendto", 0, wanted)
    # while options of a socket are set for a look at what waits in it
    for victim in ("sock-udp", "sock-dgram"):
        yield f"kill/setsockopt/{victim}", lambda test, victim=victim: faulting.named(
            faulting.Killed, context, test, victim, "setsockopt", 0, wanted)
        yield f"kill/recvmsg/{victim}", lambda test, victim=victim: faulting.named(
            faulting.Killed, context, test, victim, "recvmsg", 0, wanted)
    # while the tasks are let go, or killed, one after the other
    yield "kill/last/restore", lambda test: faulting.named(faulting.EndedRestore, context, test, "mnt-user",
                                                           "ptrace", 0, where=slice(-16, None))
    # and before the first has a tracer
    yield "kill/first/restore", lambda test: faulting.named(faulting.EndedRestore, context, test, "mnt-user",
                                                            "ptrace", 0, where=slice(4))
    yield "kill/last/dump", lambda test: faulting.named(faulting.EndedDump, context, test, "mnt-user",
                                                        "pidfd_send_signal", 0)
    # namespaces and mounts of the tree; a terminal whose bytes are taken out and put back
    for victim in ("filtered", "user-pid", "mnt-user", "pty-flood"):
        yield f"kill/dump/{victim}", lambda test, victim=victim: killing.dumps(
            context.ckpt(), test, context.scenario(victim), more_dumps, context.seed)
    for victim in ("user-pid", "mnt-user"):
        yield f"kill/restore/{victim}", lambda test, victim=victim: killing.restores(
            context.ckpt(), test, context.scenario(victim), more_restores, context.seed)

# SPDX-License-Identifier: MIT
"""A pid namespace of one's own: a tree comes back with the numbers that it had, and on a busy machine others
take them meanwhile."""
import ctypes
import os
import pickle
import signal
import traceback

from lib.report import Failure, Skip

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x08000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def must(result, what):
    """Of a call of libc's."""
    if result:
        raise OSError(ctypes.get_errno(), what)


def verdict(test, function):
    """(kind, value) of function(test), cleaned up after."""
    try:
        kind, value = "ok", function(test)
    except Skip as skip:
        kind, value = "skip", str(skip)
    except Failure as failure:
        kind, value = "failure", str(failure)
    except Exception as error:  # pylint: disable=broad-except
        test.log(traceback.format_exc())
        kind, value = "failure", f"{type(error).__name__}: {error}"
    errors = test.finish()
    return ("failure", "; ".join(errors)) if errors and kind == "ok" else (kind, value)


def child(function):
    """The pid of a child that calls that and ends with us."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # 0: in another pid namespace
        if os.getppid() in (0, parent):
            function()
            os._exit(0)
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    os._exit(1)


def run(test, function, pipe):
    """As the first process of the namespace; whoever is left in it ends with us."""
    must(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mounts of our own")
    must(LIBC.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None), "/proc")
    test.cleanups = []
    answer = pickle.dumps(verdict(test, function))
    with os.fdopen(pipe, "wb") as out:
        out.write(answer)


def apart(test, function):
    """What function(test) returns or raises, called in pid, mount and ipc namespaces of its own."""
    ours, theirs = os.pipe()

    def go_in():
        must(LIBC.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID), "namespaces of our own")
        os.waitpid(child(lambda: run(test, function, theirs)), 0)
    outer = child(go_in)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        told = answer.read()
    os.waitpid(outer, 0)
    kind, value = pickle.loads(told) if told else ("failure", "the first process of its namespace has ended")
    if kind == "skip":
        raise Skip(value)
    if kind == "failure":
        raise Failure(value)
    return value

# SPDX-License-Identifier: MIT
"""Processes seen from outside: waiting, reaping, killing."""
import ctypes
import os
import signal
import time

PR_SET_CHILD_SUBREAPER = 36
# seconds until what takes moments on a quiet machine is taken not to happen; a machine may be a hundred times
# slower, and how long a test that passes takes does not depend on it
PATIENCE = 120.0
# the same for a whole program
HANGS = 3600


def start_afresh():
    """What we were started with (by nohup, a supervisor, a shell with a umask of its own) is not what
    programs under test are started with."""
    for number in signal.valid_signals():
        # python ignores two for itself, and gives them back to its children
        if signal.getsignal(number) == signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)


FEWEST_LOOKS = 10


class Timeout(Exception):
    """Something did not happen in time."""


def own_ipc_namespace():
    """Segments and queues in here are those of our tests, and nobody else's."""
    clone_newipc = 0x08000000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(clone_newipc):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWIPC)")


def become_subreaper():
    """Orphans of the tests become our children: nobody else reaps them in time."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def read(path, default=""):
    """The text of a file, or the default if it is gone."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return default


def stat_fields(pid):
    """(comm, the fields of /proc/PID/stat from the state on), or None."""
    text = read(f"/proc/{pid}/stat")
    if not text:
        return None
    head, _, tail = text.rpartition(")")
    return head.partition("(")[2], tail.split()


def parents():
    """{pid: ppid} of everything that is visible."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = stat_fields(name)
            if stat:
                found[int(name)] = int(stat[1][1])
    return found


def pss(pids):
    """KiB of memory that they have, swapped out or not, each page divided among all that have it."""
    return sum(int(line.split()[1]) for pid in pids
               for line in read(f"/proc/{pid}/smaps_rollup").splitlines()
               if line.startswith(("Pss:", "SwapPss:")))


def tree(root):
    """The pids of a tree, parents first."""
    children = {}
    for pid, ppid in sorted(parents().items()):
        children.setdefault(ppid, []).append(pid)
    found, todo = [], [root]
    while todo:
        pid = todo.pop(0)
        found.append(pid)
        todo += children.get(pid, [])
    return found


def reap(keep=()):
    """Collects dead children, those of `keep` excepted (someone else waits for them)."""
    me = os.getpid()
    for pid, ppid in parents().items():
        if ppid == me and pid not in keep:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


def wait_until(what, condition, seconds=PATIENCE, step=0.005):
    """Polls until condition() is true and returns its value. On a busy machine one look may take
    long: there are a few, whatever the clock says."""
    end, looks = time.monotonic() + seconds, 0
    while True:
        value = condition()
        if value:
            return value
        looks += 1
        if time.monotonic() > end and looks >= FEWEST_LOOKS:
            raise Timeout(f"after {seconds:g} s: {what}")
        time.sleep(step)


def exists(pid):
    """Is there a process, dead ones waiting to be reaped excepted?"""
    stat = stat_fields(pid)
    if stat and stat[1][0] == "Z" and int(stat[1][1]) == os.getpid():
        reap()
        stat = stat_fields(pid)
    return stat is not None


def wait_gone(pids, seconds=PATIENCE):
    """Waits until none of the pids exists. The first process of a pid namespace goes when all are gone
    that were in it: those that ended up with us, too."""
    def gone():
        reap()
        return not any(exists(pid) for pid in pids)
    try:
        wait_until("", gone, seconds)
    except Timeout as late:
        left = {pid: stat_fields(pid) for pid in pids}
        states = [f"{pid} ({stat[0]}, {stat[1][0]}, child of {stat[1][1]})"
                  for pid, stat in left.items() if stat]
        raise Timeout(f"after {seconds:g} s still there: {', '.join(states)}") from late


def is_below(pid):
    """Is it a descendant of ours?"""
    for _ in range(FEWEST_LOOKS):
        at = pid
        while at not in (0, os.getpid()):
            stat = stat_fields(at)
            if not stat:
                # it has just died: its children have another parent
                break
            at = int(stat[1][1])
        else:
            return at != 0
    return False


def kill_tree(root):
    """SIGKILLs a tree of ours and waits until it is gone. Its number may be somebody else's by now."""
    pids = tree(root) if exists(root) and is_below(root) else []
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    wait_gone(pids)


def states(root):
    """{tid: (state, tracer)} of every thread of a tree."""
    found = {}
    for pid in tree(root):
        try:
            tids = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for tid in tids:
            status = dict(line.split(":\t", 1)
                          for line in read(f"/proc/{pid}/task/{tid}/status").splitlines()
                          if ":\t" in line)
            if status:
                found[int(tid)] = (status["State"][0], int(status["TracerPid"]))
    return found

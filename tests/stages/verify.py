# SPDX-License-Identifier: MIT
"""`ckpt verify` sees nothing in a tree that nobody has touched, and each of a list of changes: those that
scenario/restless.c makes to itself, and those made from outside to a container."""
import ctypes
import os
import re
import resource
import subprocess

from lib import ckpt as codes
from lib import inventory, mounts, proc
from lib.report import Failure, expect
from lib.victim import Victim
from stages import boxes

LIBC = ctypes.CDLL(None, use_errno=True)


def found(context, test, image, code):
    """The differences, as "record field: before -> after"."""
    run = context.ckpt().verify(test, image, "--json", code=code)
    return [f"{item.get('where')} {item.get('field')}: {item.get('before')} -> {item.get('after')}"
            for item in run.json().get("differences", [])]


def dumped(context, test, victim, number):
    """An image of the victim, which goes on; verify agrees with it."""
    image = test.dir / f"image{number}"
    inventory.settle(victim.pid)
    context.ckpt().dump(test, victim.pid, image, "-R")
    expect(not found(context, test, image, codes.OK), "differences without a cause")
    return image


def restless(context, test):
    """Each change of the program that the inventory is calibrated with. That it counts its checks is seen
    too, in its memory; that alone is not enough."""
    program = context.scenario("restless")
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    names = [line.split("\t")[0] for line in listed.splitlines()]
    victim = Victim(test, program)
    for number, name in enumerate(names):
        image = dumped(context, test, victim, number)
        victim.check(name)
        inventory.settle(victim.pid)
        differences = found(context, test, image, codes.DIFFERENT)
        test.log(f"{name}: {differences}")
        if all(re.match(r"mem\.(page|private)", text) for text in differences):
            raise Failure(f"{name} was not noticed: {differences}")
    return f"{len(names)} kinds of change"


class Box:
    """The container's innermost process, and how it is changed from outside."""

    def __init__(self, pid):
        self.pid = pid

    def inside(self, kinds, *command):
        """A command in some of its namespaces."""
        done = subprocess.run(["nsenter", "-t", str(self.pid), *kinds, "--", *map(str, command)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=codes.TIMEOUT,
                              check=False)
        expect(not done.returncode, f"{command}: {done.stderr}")

    def shell(self, kind, text):
        """The same, for a shell."""
        self.inside([kind], "sh", "-c", text)

    def call(self, kind, function, *args):
        """A function of libc in one of its namespaces."""
        fd = os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY)
        answer = mounts.in_namespaces([fd], lambda: getattr(LIBC, function)(*args))
        os.close(fd)
        expect(isinstance(answer, int) and answer >= 0, f"{function}: {answer}")
        return answer

    def path(self, name):
        """A file of its own."""
        return f"/proc/{self.pid}/root{name}"

    def write(self, name, text):
        """A file of its /proc/PID."""
        with open(f"/proc/{self.pid}/{name}", "w", encoding="ascii") as file:
            file.write(text)


KEY, SETVAL, IPC_NOWAIT, RMID = 0x4B0, 16, 0o4000, 0


def semaphore(box):
    """Its value is one more."""
    number = box.call("ipc", "semget", KEY, 2, 0)
    box.call("ipc", "semctl", number, 1, SETVAL, 99)


def message(box):
    """One less is queued."""
    queue, room = box.call("ipc", "msgget", KEY, 0), ctypes.create_string_buffer(64)
    box.call("ipc", "msgrcv", queue, room, ctypes.c_size_t(16), ctypes.c_long(0), IPC_NOWAIT)


def nicer(box):
    """Another one, whatever the suite has itself."""
    now = os.getpriority(os.PRIO_PROCESS, box.pid)
    os.setpriority(os.PRIO_PROCESS, box.pid, now + 1 if now < 19 else 18)


def rewritten(box):
    """As long as before, and at the same time."""
    before = os.stat(box.path("/srv/file"))
    with open(box.path("/srv/file"), "r+", encoding="ascii") as file:
        file.write("OF")
    os.utime(box.path("/srv/file"), ns=(before.st_atime_ns, before.st_mtime_ns))


# {what is changed: (how, what verify must say)}; none is taken back, each image has those before it
CHANGES = {
    "host name": (lambda box: box.shell("-u", "echo other >/proc/sys/kernel/hostname"), r"^uts\."),
    "semaphore": (semaphore, r"^ipc\.sem"),
    "message": (message, r"^ipc\."),
    "new mount": (lambda box: box.inside(["-m"], "mount", "-t", "tmpfs", "new", "/srv/in"), r"^mnt\."),
    "mount flag": (lambda box: box.inside(["-m"], "mount", "-o", "remount,bind,noexec", "/srv/own"),
                   r"^mnt\."),
    "mount gone": (lambda box: box.inside(["-m"], "umount", "/srv/locked"), r"^mnt\."),
    "propagation": (lambda box: box.inside(["-m"], "mount", "--make-shared", "/srv/own"), r"^mnt\."),
    "file's owner": (lambda box: os.chown(box.path("/srv/file"), 1, 2), r"^mnt\."),
    "file's mode": (lambda box: os.chmod(box.path("/srv/file"), 0o600), r"^mnt\."),
    "file's content": (rewritten, r"^mnt\.inode .* extents"),
    "new file": (lambda box: box.inside(["-U", "-m"], "mkdir", "/srv/own/new"), r"^mnt\."),
    "route": (lambda box: box.inside(["-n"], "ip", "route", "add", "10.9.0.0/16", "dev", "lo"), r"^net\."),
    "address": (lambda box: box.inside(["-n"], "ip", "address", "add", "10.8.0.1/24", "dev", "lo"),
                r"^net\."),
    "mtu": (lambda box: box.inside(["-n"], "ip", "link", "set", "lo", "mtu", "9000"), r"^net\."),
    "setting": (lambda box: box.shell("-n", "echo 1 >/proc/sys/net/ipv4/ip_forward"), r"^net\."),
    "niceness": (nicer, r"^task\."),
    "limit": (lambda box: resource.prlimit(box.pid, resource.RLIMIT_NOFILE, (99, 999)), r"^task\."),
    "oom score": (lambda box: box.write("oom_score_adj", "77"), r"^task\."),
    "stopped": (lambda box: os.kill(box.pid, 19), r"^(task|pid)\."),
}


def container(context, test):
    """Each change of a container with all namespaces."""
    victim = boxes.start(context, test, "all")
    inner = max(pid for pid in proc.tree(victim.pid)
                if len(proc.read(f"/proc/{pid}/status").partition("NSpid:")[2].splitlines()[0].split()) > 1
                and proc.read(f"/proc/{pid}/status").partition("\nNSpid:")[2].split()[1] == "1")
    box = Box(inner)
    for number, (name, (change, pattern)) in enumerate(CHANGES.items()):
        image = dumped(context, test, victim, number)
        change(box)
        differences = found(context, test, image, codes.DIFFERENT)
        test.log(f"{name}: {differences}")
        if not any(re.search(pattern, text) for text in differences):
            raise Failure(f"{name} was not noticed: {differences}")
    os.kill(inner, 18)
    return f"{len(CHANGES)} kinds of change"


# its child dies, and another one gets the number after it
OTHER_CHILD = """
import os, pathlib, signal, sys
def child():
    pid = os.fork()
    if not pid:
        signal.pause()
    return pid
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
first = child()
for name in sys.argv[1:]:
    pathlib.Path(name).touch()
    signal.sigwait([signal.SIGUSR1])
    if first:
        os.kill(first, 9)
        os.waitpid(first, 0)
        pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(first))
        first = child() * 0
"""


def number(context, test):
    """A process whose number is one more."""
    ready, done = test.dir / "ready", test.dir / "done"
    child = subprocess.Popen(["unshare", "-p", "-f", "--mount-proc", "python3", "-B", "-c", OTHER_CHILD,
                              ready, done], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    proc.wait_until("not built", ready.exists)
    image = test.dir / "image"
    inventory.settle(child.pid)
    context.ckpt().dump(test, child.pid, image, "-R")
    expect(not found(context, test, image, codes.OK), "differences without a cause")
    os.kill(proc.tree(child.pid)[1], 10)
    proc.wait_until("the child is not another", done.exists)
    inventory.settle(child.pid)
    differences = found(context, test, image, codes.DIFFERENT)
    expect(any(re.search(r"^pid\.task .*tids", text) for text in differences),
           f"not noticed: {differences}")


def unlocked(context, test):
    """Mounts that were locked: the same tree as it comes back without the feature."""
    victim = boxes.start(context, test, boxes.BOXES["all-in-all"])
    image, without = dumped(context, test, victim, 0), test.dir / "without"
    pids = proc.tree(victim.pid)
    context.ckpt().dump(test, victim.pid, without, "--without", "mnt.locked", "--allow-loss", "mnt.locked")
    proc.wait_gone(pids)
    victim.pid = context.ckpt().restore(test, without)
    differences = found(context, test, image, codes.DIFFERENT)
    expect(any(re.search(r"^mnt\.mount .*locked", text) for text in differences),
           f"not noticed: {differences}")


def tests(context):
    """All of them."""
    yield "verify/number", lambda test: number(context, test)
    yield "verify/unlocked", lambda test: unlocked(context, test)
    yield "verify/restless", lambda test: restless(context, test)
    yield "verify/container", lambda test: container(context, test)

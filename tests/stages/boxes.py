# SPDX-License-Identifier: MIT
"""Namespaces alone, in pairs, as brothers, in chains and all at once: scenario/boxes.c builds what a text
says, and each of its processes judges itself. Each is saved and left running, then saved, killed and
restored, twice over."""
import subprocess

from lib import proc, roundtrip
from lib.report import expect
from lib.victim import Victim

# {name: what is in what}; see scenario/support/box.h
BOXES = {
    "pid": "pid",
    "mnt": "mnt",
    "net": "net",
    "ipc+uts": "ipc,uts",
    "cgroup+time": "cgroup,time",
    "user+pid": "user+pid",
    "user+mnt": "user+mnt",
    "user+net": "user+net",
    "user+ipc": "user+ipc",
    "user+uts": "user+uts",
    "user+cgroup": "user+cgroup",
    "user+time": "user+time",
    "brothers": "user+pid+uts,user+pid+uts,user+net,user+net,user+ipc,user+ipc",
    "pid-chain": "user+pid{user+pid{user+pid}}",
    "mnt-chain": "user+mnt{user+mnt{user+mnt}}",
    "net-chain": "user+net{user+net{user+net}}",
    "ipc-uts-chain": "user+ipc+uts{user+ipc{user+uts}}",
    "time-cgroup-chain": "user+time{user+cgroup{user+time}}",
    "cousins": "user{ipc+uts+net:a,pid{user@a},mnt{user+pid@a}}",
    "filters": "filter{user+filter+pid{filter,user+filter+pid{filter}}}",
    "renderers": "user+pid+net{user{user+pid+filter,user+pid+filter,user+pid+filter}}",
    "all": "all",
    "all-in-all": "all+filter{all+filter}",
}


def start(context, test, spec):
    """A victim of these boxes."""
    directory = test.dir / "victim"
    directory.mkdir()
    (directory / "spec").write_text(spec)
    return Victim(test, context.scenario("boxes"))


def saved(context, test, spec, preset="release"):
    """Left running, then twice over."""
    victim, ckpt = start(context, test, spec), context.ckpt(preset)
    roundtrip.leave_running(ckpt, test, victim)
    roundtrip.rounds(ckpt, test, victim, 2)


# each level hides what the one before had there; of /sys there is more below on every machine
HIDING = """
mount -t tmpfs one /sys; mkdir /sys/in; exec unshare -Urm sh -c '
mount -t tmpfs two /sys/in; mkdir /sys/in/in; exec unshare -Urm sh -c "
mount -t tmpfs three /sys/in/in; exec sleep 99999"'
"""


def mounts_of(pid):
    """Its mounts but for their numbers and those of their devices."""
    return [line.split()[3:] for line in proc.read(f"/proc/{pid}/mountinfo").splitlines()]


def hidden(context, test):
    """Locked mounts that no path leads to any more, as other locked ones lie on top of them."""
    ckpt, image = context.ckpt(), test.dir / "image"
    child = subprocess.Popen(["/usr/bin/unshare", "-Urm", "/bin/sh", "-c", HIDING], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                             cwd="/")
    child.returncode = 0
    pid = child.pid
    test.cleanup(lambda: proc.kill_tree(pid))
    proc.wait_until("not built", lambda: proc.read(f"/proc/{pid}/comm") == "sleep\n", 60)
    before = mounts_of(pid)
    ckpt.dump(test, pid, image)
    proc.wait_gone([pid])
    pid = ckpt.restore(test, image)
    expect(mounts_of(pid) == before, f"{mounts_of(pid)} was {before}")
    ckpt.verify(test, image)


def tests(context):
    """One for each; what has everything runs with a ckpt under sanitizers too."""
    for name, spec in BOXES.items():
        yield f"boxes/{name}", lambda test, spec=spec: saved(context, test, spec)
    yield "boxes/hidden", lambda test: hidden(context, test)
    if not context.quick:
        yield "boxes/sanitize/all-in-all", lambda test: saved(context, test, BOXES["all-in-all"],
                                                              "sanitize")

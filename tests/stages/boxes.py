# SPDX-License-Identifier: MIT
"""Namespaces alone, in pairs, as brothers, in chains and all at once: scenario/boxes.c builds what a text
says, and each of its processes judges itself. Each is saved and left running, then saved, killed and
restored, twice over."""
from lib import roundtrip
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


def tests(context):
    """One for each; what has everything runs with a ckpt under sanitizers too."""
    for name, spec in BOXES.items():
        yield f"boxes/{name}", lambda test, spec=spec: saved(context, test, spec)
    if not context.quick:
        yield "boxes/sanitize/all-in-all", lambda test: saved(context, test, BOXES["all-in-all"],
                                                              "sanitize")

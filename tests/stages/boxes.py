# SPDX-License-Identifier: MIT
"""Namespaces alone, in pairs, as brothers, in chains and all at once: scenario/boxes.c builds what a text
says, and each of its processes judges itself. Each is saved and left running, then saved, killed and
restored, twice over."""
import os
import re
import subprocess

from lib import ckpt as codes
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


# {name: locked mounts that others hide, as a shell makes them}
HIDING = {
    # each level hides what the one before had there; of /sys there is more below on every machine
    "levels": """exec unshare -Urm sh -c '
mount -t tmpfs one /sys; mkdir /sys/in; exec unshare -Urm sh -c "
mount -t tmpfs two /sys/in; mkdir /sys/in/in; exec unshare -Urm sh -c \\"
mount -t tmpfs three /sys/in/in; exec sleep 99999\\""'""",
    # what is hidden receives, and so do those that are seen
    "slave": """mount --make-rshared /; unshare -Urm --propagation slave sh -c '
mount -t tmpfs one /sys; mkdir /sys/in; exec unshare -Urm --propagation slave sh -c "
mount -t tmpfs two /sys/in; exec sleep 99999"' & wait""",
    # the same twice at one place, of which the lower one receives
    "twice": """mount --bind /usr /usr; mount --make-shared /usr; mount --bind /usr /usr
mount --make-private /usr; unshare -Urm --propagation unchanged sleep 99999 & wait""",
    # and the upper one
    "twice-above": """mount --bind /usr /usr; mount --bind /usr /usr; mount --make-shared /usr
unshare -Urm --propagation unchanged sleep 99999 & wait""",
    # a hidden one receives from a group that has hidden ones only
    "group": """mount -t tmpfs one /sys; mkdir /sys/in; mount --bind /usr /sys/in; mount --bind /usr /sys/in
unshare -Urm sh -c 'mount --make-rshared /sys; mount --make-private /sys
unshare -Urm --propagation unchanged sleep 99999 & wait' & wait""",
    # nothing lies on it, but its owner may not go there
    "closed": """mount -t tmpfs one /sys; mkdir -p /sys/closed/in; mount --bind /usr /sys/closed/in
chown 1000 /sys/closed; chmod 700 /sys/closed; exec unshare -Urm sleep 99999""",
}

# ckpt verify names them: what they receive nobody can tell them again
PRIVATE = ("slave", "twice", "group")

# {name: (place, script)}: hidden ones of which nobody can tell what is in them any more, or whose they were
LOST = {
    # a part of a filesystem over the whole of it, for which it must not be taken
    "part": ("/sys", "mount -t tmpfs one /sys; mkdir /sys/sub; mount --bind /sys/sub /sys"),
    "deleted": ("/sys/kernel", """mount -t tmpfs one /srv; mkdir /srv/gone; mount --bind /srv/gone /sys/kernel
rmdir /srv/gone; mount --bind /usr /sys"""),
    # nobody else is left who could see it
    "proc": ("/sys", """unshare -pf unshare -m sh -c 'mount -t proc proc /sys; mount --bind /usr /sys
exec unshare -Urm sleep 99999' & wait; exit"""),
}


def mounts_of(pid):
    """Its mounts but for numbers. What others hide is there, but nobody can tell what it receives."""
    lines = [line.split() for line in proc.read(f"/proc/{pid}/mountinfo").splitlines()]
    parents = {line[1] for line in lines if line[4] != "/"}
    found = []
    for line in lines:
        at = line.index("-")
        groups = [word.split(":")[0] for word in line[6:at]]
        found.append(line[3:6] + ([] if line[4].startswith("/sys") or line[0] in parents else groups)
                     + line[at:])
    return found


def sleeper(root):
    """The process of the tree that sleeps; None: there is none yet."""
    return next((pid for pid in proc.tree(root) if proc.read(f"/proc/{pid}/comm") == "sleep\n"), None)


def hide(test, script):
    """A tree with mounts that that script has made."""
    child = subprocess.Popen(["/usr/bin/unshare", "-m", "/bin/sh", "-c", script], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                             cwd="/")
    child.returncode = 0
    test.cleanup(lambda: proc.kill_tree(child.pid))
    proc.wait_until("not built", lambda: sleeper(child.pid))
    return child.pid


def hidden(context, test, name):
    """Locked mounts that no path leads to any more, as other locked ones lie on top of them."""
    ckpt, image = context.ckpt(), test.dir / "image"
    pid = hide(test, HIDING[name])
    before = mounts_of(sleeper(pid))
    pids = proc.tree(pid)
    ckpt.dump(test, pid, image)
    proc.wait_gone(pids)
    pid = ckpt.restore(test, image)
    after = mounts_of(sleeper(pid))
    expect(after == before, f"{after} was {before}")
    run = ckpt.verify(test, image, code=codes.DIFFERENT if name in PRIVATE else codes.OK)
    differences = [line for line in run.out.splitlines() if line.startswith("mnt.")]
    expect(bool(differences) == (name in PRIVATE), f"differences of mounts: {differences}")
    expect(all(re.search(r": (peers|master): \d+ -> 0$", line) for line in differences), f"{differences}")


def hidden_lost(context, test, where, script):
    """Refused by name."""
    pid = hide(test, f"{script}; exec unshare -Urm sleep 99999")
    run = context.ckpt().dump(test, pid, test.dir / "image", "--json", code=codes.REFUSED)
    blockers = [(item["object"], item["reason"]) for item in run.json()["blockers"]]
    expect(blockers == [(where, "another mount hides it for good")], f"{blockers}")


# {name: (how many, script)}: they stand in the directory of a process that has ended, whose number is in use
GONE = {
    "reused": (2, """unshare -pf --mount-proc sh -c 'sleep 99999 & n=$!; cd /proc/$n/fdinfo; kill $n; wait $n
echo $((n - 1)) >/proc/sys/kernel/ns_last_pid; sleep 99999 & [ $! = $n ] && exec sleep 99999' & wait"""),
    "leader": (1, """unshare -pf --mount-proc sh -c '
setsid sh -c "cd /proc/\\$\\$/fdinfo; sleep 99999 &"; exec sleep 99999' & wait"""),
}


def standing(root):
    """The sleepers of the tree in a directory whose process has ended."""
    return [pid for pid in proc.tree(root) if proc.read(f"/proc/{pid}/comm") == "sleep\n"
            and os.readlink(f"/proc/{pid}/cwd").endswith("/fdinfo") and ended(f"/proc/{pid}/cwd/")]


def ended(path):
    """Nothing can be looked up there."""
    try:
        os.listdir(path)
    except ProcessLookupError:
        return True
    return False


def gone(context, test, many, script):
    """Nobody can be of that number for a moment: the directory comes back as that of another."""
    ckpt, image = context.ckpt(), test.dir / "image"
    pid = hide(test, script)
    proc.wait_until("not built", lambda: len(standing(pid)) == many)
    pids = proc.tree(pid)
    ckpt.dump(test, pid, image)
    proc.wait_gone(pids)
    pid = ckpt.restore(test, image)
    expect(len(standing(pid)) == many, "a working directory is another")


def tests(context):
    """One for each; what has everything runs with a ckpt under sanitizers too."""
    for name, spec in BOXES.items():
        yield f"boxes/{name}", lambda test, spec=spec: saved(context, test, spec)
    for name in HIDING:
        yield f"boxes/hidden/{name}", lambda test, name=name: hidden(context, test, name)
    for name, lost in LOST.items():
        yield f"boxes/hidden/{name}", lambda test, lost=lost: hidden_lost(context, test, *lost)
    for name, tree in GONE.items():
        yield f"boxes/gone/{name}", lambda test, tree=tree: gone(context, test, *tree)
    if not context.quick:
        yield "boxes/sanitize/all-in-all", lambda test: saved(context, test, BOXES["all-in-all"],
                                                              "sanitize")

# SPDX-License-Identifier: MIT
"""The mounts of a process' namespace, and which of them and of their flags are locked: tried out in a
copy of the namespace that is thrown away, by a child that joins its owner."""
import ctypes
import errno
import fcntl
import json
import os
import re

from lib.proc import read

LIBC = ctypes.CDLL(None, use_errno=True)
NS_GET_USERNS = 0xB701
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_NOATIME, MS_REC, MS_PRIVATE, MS_RELATIME, MS_STRICTATIME = 1024, 16384, 1 << 18, 1 << 21, 1 << 24
MNT_DETACH = 2
FLAGS = {"ro": MS_RDONLY, "nosuid": MS_NOSUID, "nodev": MS_NODEV, "noexec": MS_NOEXEC}


def unmangle(text):
    """\\040 and its kin."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def parse(text):
    """The lines of a mountinfo file as dictionaries, in their order: that in which the mounts were made."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        head, tail = left.split(" "), right.split(" ")
        found.append({"id": int(head[0]), "parent": int(head[1]), "dev": head[2],
                      "root": unmangle(head[3]), "point": unmangle(head[4]), "flags": head[5],
                      "propagation": head[6:], "type": tail[0], "source": unmangle(tail[1]),
                      "options": tail[2]})
    return found


def upwards(mounts):
    """What others are mounted on comes after them."""
    parents = {mount["id"]: mount["parent"] for mount in mounts}

    def depth(number):
        seen = set()
        while number in parents and number not in seen:
            seen.add(number)
            number = parents[number]
        return len(seen)

    return sorted(reversed(mounts), key=lambda mount: -depth(mount["id"]))


def try_flags(mount):
    """The flags that cannot be taken away from this mount."""
    words = mount["flags"].split(",")
    have = sum(bit for word, bit in FLAGS.items() if word in words)
    time = (MS_RELATIME if "relatime" in words else
            MS_NOATIME if "noatime" in words else MS_STRICTATIME)
    locked = []
    for word, bit in FLAGS.items():
        if word not in words:
            continue
        if LIBC.mount(None, mount["point"].encode(), None,
                      MS_REMOUNT | MS_BIND | time | (have & ~bit), None):
            if ctypes.get_errno() == errno.EPERM:
                locked.append(word)
        else:
            LIBC.mount(None, mount["point"].encode(), None, MS_REMOUNT | MS_BIND | time | have, None)
    other = MS_RELATIME if time == MS_NOATIME else MS_NOATIME
    if LIBC.mount(None, mount["point"].encode(), None, MS_REMOUNT | MS_BIND | other | have, None):
        if ctypes.get_errno() == errno.EPERM:
            locked.append("atime")
    else:
        LIBC.mount(None, mount["point"].encode(), None, MS_REMOUNT | MS_BIND | time | have, None)
    return locked


def try_locks(info):
    """[(point, what)] of a namespace that the caller is in and may take apart."""
    if LIBC.unshare(CLONE_NEWNS) or LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "a copy of the namespace")
    found = []
    for mount in upwards(parse(os.pread(info, 1 << 20, 0).decode())):
        if mount["point"] == "/":
            continue
        found += [(mount["point"], word) for word in try_flags(mount)]
        if LIBC.umount2(mount["point"].encode(), MNT_DETACH):
            found.append((mount["point"], errno.errorcode[ctypes.get_errno()]))
    return found


def in_namespaces(fds, func):
    """func() in a child that joins these one after the other; its result goes through JSON."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        try:
            for fd in fds:
                if LIBC.setns(fd, 0):
                    raise OSError(ctypes.get_errno(), "setns")
            answer = func()
        except OSError as error:
            answer = [["?", repr(error)]]
        with os.fdopen(theirs, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        answer = json.load(pipe)
    os.waitpid(child, 0)
    return answer


def locks(pid):
    """What is locked in the namespace of a process; nothing if the namespace is of our own owner."""
    ours = os.open("/proc/self/ns/user", os.O_RDONLY)
    mnt = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    owner = fcntl.ioctl(mnt, NS_GET_USERNS)
    info = os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY)
    try:
        if os.fstat(owner).st_ino == os.fstat(ours).st_ino:
            return []
        return in_namespaces([mnt, owner], lambda: try_locks(info))
    finally:
        for fd in (ours, mnt, owner, info):
            os.close(fd)


# ckpt mounts a devpts with open terminals before, and an overlay after all others
LATE = ("devpts", "overlay")


def take(pid, names):
    """All of a namespace: its mounts by their places, their order, and its locks."""
    mounts = parse(read(f"/proc/{pid}/mountinfo"))
    places, found = {}, {}
    # from below: the second one at a place lies on the first
    for mount in reversed(upwards(mounts)):
        many = sum(mount["point"] == place[0] for place in places.values())
        places[mount["id"]] = (mount["point"], many)
    named = {number: point + f" ({many})" * bool(many) for number, (point, many) in places.items()}
    for mount in sorted(mounts, key=lambda mount: named[mount["id"]]):
        groups = [re.sub(r":(\d+)$", lambda match: ":" + names.of("group", match.group(1)), word)
                  for word in mount["propagation"] if not word.startswith("propagate_from")]
        mount["root"] = re.sub(r"^(\w+):\[(\d+)\]$",
                               lambda match: f"{match[1]}:[{names.of('namespace', match[2])}]", mount["root"])
        found[named[mount["id"]]] = {
            "on": named.get(mount["parent"]), "filesystem": names.of("filesystem", mount["dev"]),
            "propagation": groups,
            **{key: mount[key] for key in ("root", "flags", "type", "source", "options")}}
    order = [named[mount["id"]] for mount in mounts]
    late = {named[mount["id"]] for mount in mounts if mount["type"] in LATE}
    return {"mounts": found, "locks": sorted(map(tuple, locks(pid))),
            "order": [name for name in order if name not in late],
            **({"order of all": order} if late else {})}

# SPDX-License-Identifier: MIT
"""Who owns the namespaces of a process, up to our own user namespace, and what its user namespace maps:
by nsfs ioctls and /proc, seen from outside."""
import contextlib
import ctypes
import fcntl
import os
import struct

from lib.proc import read

NS_GET_USERNS, NS_GET_PARENT, NS_GET_OWNER_UID = 0xB701, 0xB702, 0xB704
CLONE_NEWNET = 0x40000000
MAPS = ("uid_map", "gid_map", "projid_map", "setgroups")


def relative(fd, request):
    """A descriptor of the owner or parent, or None if that is out of sight."""
    try:
        return fcntl.ioctl(fd, request)
    except OSError:
        return None


def name_of(fd, names):
    """The name of a user namespace by its descriptor."""
    target = os.readlink(f"/proc/self/fd/{fd}")
    return "ours" if target == os.readlink("/proc/self/ns/user") else names.of("user-namespace", target)


def lineage(fd, names):
    """The user namespaces from this one upwards, below ours, each with its owner's uid. Takes the fd."""
    found = []
    while fd is not None:
        name = name_of(fd, names)
        owner = bytearray(4)
        if name != "ours":
            fcntl.ioctl(fd, NS_GET_OWNER_UID, owner)
            found.append(f"{name} of {struct.unpack('I', owner)[0]}")
        above = relative(fd, NS_GET_PARENT) if name != "ours" else None
        os.close(fd)
        fd = above
    return found


def owners(pid, kinds, names):
    """{kind: lineage of its owner} of the namespaces of a process; empty ones are left out."""
    found = {}
    for kind in kinds:
        try:
            fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        if kind == "user":
            line = lineage(fd, names)
        else:
            owner = relative(fd, NS_GET_USERNS)
            os.close(fd)
            line = lineage(owner, names) if owner is not None else ["out of sight"]
        if line:
            found[kind] = line
    return found


def maps(pid):
    """The ids that the process' user namespace has, as numbers of ours."""
    return {name: [" ".join(line.split()) for line in read(f"/proc/{pid}/{name}").splitlines()]
            for name in MAPS}


@contextlib.contextmanager
def network_of(pid):
    """What the calling thread connects in here, it connects in the network namespace of that process."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(namespace):
        if libc.setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns(2)")
    own, other = (os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                  for path in ("/proc/thread-self/ns/net", f"/proc/{pid}/ns/net"))
    try:
        enter(other)
        try:
            yield
        finally:
            enter(own)
    finally:
        os.close(own)
        os.close(other)

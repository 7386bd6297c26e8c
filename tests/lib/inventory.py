# SPDX-License-Identifier: MIT
"""What the kernel holds for a process tree, read without any of ckpt's code, in a form in which two
equal trees are equal: numbers that only name an object (inodes, epoll keys) become its order of
appearance, and what only measures time is left out."""
import ctypes
import fcntl
import hashlib
import os
import re
import socket
import stat
import struct
import time

from lib import mounts, namespaces, proc
from lib.proc import read

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
SYS = {"pidfd_open": 434, "pidfd_getfd": 438, "kcmp": 312, "get_robust_list": 274, "ioprio_get": 252}
KCMP_FILE, KCMP_VM, KCMP_FILES, KCMP_FS = 0, 1, 2, 3
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children",
              "user", "uts")
THREAD_STATUS = ("Uid", "Gid", "Groups", "NSpid", "SigPnd", "SigBlk", "CapInh", "CapPrm", "CapEff",
                 "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters",
                 "Speculation_Store_Bypass", "SpeculationIndirectBranch", "TracerPid")
PROCESS_STATUS = ("Umask", "Tgid", "NSpgid", "NSsid", "ShdPnd", "SigIgn", "SigCgt", "THP_enabled",
                  "VmLck", "CoreDumping")
# fields of /proc/PID/stat, counted as in proc(5), that are state and not statistics
STAT_FIELDS = {"ppid": 4, "pgrp": 5, "session": 6, "tty": 7, "tpgid": 8, "nice": 19,
               "start_code": 26, "end_code": 27, "start_stack": 28, "exit_signal": 38,
               "rt_priority": 40, "policy": 41, "start_data": 45, "end_data": 46, "start_brk": 47,
               "arg_start": 48, "arg_end": 49, "env_start": 50, "env_end": 51}


def syscall(name, *args):
    """A system call that Python has no name for; negative errno on failure."""
    result = LIBC.syscall(SYS[name], *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return result if result >= 0 else -ctypes.get_errno()


def link(path):
    """Where a magic link leads, or None."""
    try:
        return os.readlink(path)
    except OSError:
        return None


class Names:
    """Gives objects names by order of appearance: "pipe#2"."""

    def __init__(self):
        self.seen = {}

    def first(self, kind, key):
        """Is it the first time that this object is met?"""
        new = key not in self.seen.get(kind, {})
        self.of(kind, key)
        return new

    def of(self, kind, key):
        """The name of the object with this key, the same for the same key."""
        group = self.seen.setdefault(kind, {})
        return f"{kind}#{group.setdefault(key, len(group))}"


class Descriptions:
    """Tells which descriptors share an open file description, by kcmp within equal files."""

    def __init__(self):
        self.groups = {}
        self.count = 0

    def of(self, pid, fd, key):
        """The name of the description behind the descriptor."""
        group = self.groups.setdefault(key, [])
        for other_pid, other_fd, name in group:
            if syscall("kcmp", pid, other_pid, KCMP_FILE, fd, other_fd) == 0:
                return name
        name = f"description#{self.count}"
        self.count += 1
        group.append((pid, fd, name))
        return name


def status_of(path, keys):
    """The wanted lines of a status file."""
    found = {}
    for line in read(path).splitlines():
        key, _, value = line.partition(":")
        if key in keys:
            found[key] = value.strip()
    return found


def state_of(letter):
    """Running and sleeping are the same to a checkpoint; stopped and dead are not."""
    return "alive" if letter in "RSDI" else letter


def threads_of(pid):
    """{tid: state} of a process' threads."""
    found = {}
    try:
        tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return found
    for tid in tids:
        base = f"/proc/{pid}/task/{tid}"
        stat_text = read(f"{base}/stat")
        if not stat_text:
            continue
        fields = stat_text.rpartition(")")[2].split()
        try:
            affinity = sorted(os.sched_getaffinity(tid)) if fields[0] not in "ZX" else None
        except ProcessLookupError:
            continue
        head, length = ctypes.c_ulong(0), ctypes.c_ulong(0)
        syscall("get_robust_list", tid, ctypes.byref(head), ctypes.byref(length))
        found[tid] = {
            "comm": read(f"{base}/comm").rstrip("\n"), "state": state_of(fields[0]),
            "nice": fields[16], "policy": fields[38], "rt_priority": fields[37],
            "affinity": affinity, "ioprio": syscall("ioprio_get", 1, tid), "robust_list": head.value,
            "cwd": link(f"{base}/cwd"), "umask": status_of(f"{base}/status", ("Umask",)),
            "timerslack": read(f"/proc/{tid}/timerslack_ns").strip(),
            **status_of(f"{base}/status", THREAD_STATUS)}
        if found[tid].get("Seccomp") == "2":
            found[tid]["filters"] = filters_of(tid)
    return found


PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
PTRACE_SECCOMP_GET_FILTER, PTRACE_SECCOMP_GET_METADATA = 0x420C, 0x420D


def ptrace(request, tid, addr=0, data=None):
    """ptrace(2); -1 if it fails."""
    LIBC.ptrace.restype = ctypes.c_long
    return LIBC.ptrace(request, tid, ctypes.c_void_p(addr), data)


def filters_of(tid):
    """The seccomp filters of a thread, oldest first, as "N instructions HASH flags F"."""
    if ptrace(PTRACE_SEIZE, tid) < 0 or ptrace(PTRACE_INTERRUPT, tid) < 0:
        return None
    os.waitpid(tid, 0x40000000)
    found = []
    while True:
        program = ctypes.create_string_buffer(8 * 4096)
        length = ptrace(PTRACE_SECCOMP_GET_FILTER, tid, len(found), program)
        if length < 0:
            break
        metadata = (ctypes.c_uint64 * 2)(len(found), 0)
        ptrace(PTRACE_SECCOMP_GET_METADATA, tid, ctypes.sizeof(metadata), metadata)
        digest_ = hashlib.sha256(program.raw[:8 * length]).hexdigest()[:16]
        found.append(f"{length} instructions {digest_} flags {metadata[1]}")
    ptrace(PTRACE_DETACH, tid)
    return found


def mappings_of(pid, names):
    """The mappings as a list, neighbours that differ in nothing joined (the kernel may or may not)."""
    found = []
    header = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) (\S+) (\d+)\s*(.*)$")
    for line in read(f"/proc/{pid}/smaps").splitlines():
        match = header.match(line)
        if match:
            low, high, perms, offset, dev, inode, path = match.groups()
            anonymous = inode == "0"
            shmem = dev == "00:01" or path.startswith(("/dev/zero", "/SYSV", "/memfd:"))
            what = path if not shmem else names.of(path or "shmem", (dev, inode))
            found.append({"low": int(low, 16), "high": int(high, 16), "perms": perms,
                          "offset": None if anonymous else int(offset, 16), "what": what})
        elif line.startswith("VmFlags:"):
            found[-1]["flags"] = sorted(set(line.split()[1:]) - {"sd"})
        elif line.startswith("ProtectionKey:"):
            found[-1]["pkey"] = line.split()[1]
    joined = []
    for mapping in found:
        last = joined[-1] if joined else None
        if last and last["high"] == mapping["low"] and "gd" not in mapping["flags"] and all(
                last.get(key) == mapping.get(key) for key in ("perms", "what", "flags", "pkey")) and (
                    mapping["offset"] is None
                    or mapping["offset"] == last["offset"] + last["high"] - last["low"]):
            last["high"] = mapping["high"]
        else:
            joined.append(mapping)
    return {f"{m['low']:x}-{m['high']:x}": {k: v for k, v in m.items() if k not in ("low", "high")}
            for m in joined}


SOCKET_OPTIONS = {"reuseaddr": 2, "type": 3, "broadcast": 6, "sndbuf": 7, "rcvbuf": 8, "keepalive": 9,
                  "oobinline": 10, "priority": 12, "linger": 13, "reuseport": 15, "passcred": 16,
                  "rcvlowat": 18, "acceptconn": 30, "mark": 36, "protocol": 38, "domain": 39}


def socket_details(fd):
    """Options, names and queue length of a socket, through a copy of the descriptor."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        found = {}
        for name, number in SOCKET_OPTIONS.items():
            try:
                found[name] = sock.getsockopt(socket.SOL_SOCKET, number)
            except OSError:
                pass
        for name, call in (("name", sock.getsockname), ("peer", sock.getpeername)):
            try:
                found[name] = str(call())
            except OSError as error:
                found[name] = error.errno
        try:
            found["queued"] = queue_length(fd)
        except OSError:
            pass
        return found


def queue_length(fd):
    """FIONREAD"""
    return struct.unpack("i", fcntl.ioctl(fd, 0x541B, b"\0" * 4))[0]


def fdinfo_details(text):
    """The lines of an fdinfo that are state."""
    drop = ("mnt_id", "ino", "eventfd-id", "it_value", "ticks", "scm_fds", "NSpid")
    lines = []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in drop:
            continue
        if key == "tfd":
            line = re.sub(r"\s+pos:.*", "", line)
        if key == "lock":
            line = re.sub(r"[0-9a-f]+:[0-9a-f]+:\d+", "FILE", line)
        if key.startswith("inotify"):
            line = re.sub(r" (ino|sdev|fhandle-bytes|fhandle-type|f_handle):\S+", "", line)
        if key == "Pid":
            value = "dead" if value.strip() == "-1" else "alive"
            line = f"Pid: {value}"
        lines.append(" ".join(line.split()))
    return sorted(lines)


def namespace(target, kind, names):
    """"ours", or the order of appearance among the tree's."""
    if target == link(f"/proc/self/ns/{kind}"):
        return "ours"
    return names.of(f"{kind}-namespace", target) if target else None


def descriptor(pid, number, pidfd, names, descriptions):
    """One descriptor, or None if it has just gone."""
    path = f"/proc/{pid}/fd/{number}"
    target, info = link(path), read(f"/proc/{pid}/fdinfo/{number}")
    try:
        found = os.stat(path)
    except OSError:
        return None
    kind = re.match(r"^(pipe|socket|anon_inode|net|mnt|pid|user|uts|ipc|cgroup|time):", target or "")
    key = (found.st_dev, found.st_ino)
    entry = {"info": fdinfo_details(info)}
    # the length of the last packet
    if target == "/dev/net/tun":
        entry["info"] = [line for line in entry["info"] if not line.startswith("pos:")]
    if kind and kind.group(1) in ("pipe", "socket"):
        entry["what"] = names.of(kind.group(1), key)
    elif kind and kind.group(1) != "anon_inode":
        entry["what"] = namespace(target, kind.group(1), names)
    else:
        entry["what"] = target
    if not stat.S_ISSOCK(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
        entry["mode"] = oct(found.st_mode)
    entry["description"] = descriptions.of(pid, number, key)
    copy = syscall("pidfd_getfd", pidfd, number, 0)
    if copy >= 0:
        try:
            if stat.S_ISSOCK(found.st_mode):
                entry["socket"] = socket_details(copy)
            elif stat.S_ISFIFO(found.st_mode):
                entry["pipe"] = {"size": fcntl.fcntl(copy, 1032), "queued": queue_length(copy)}
            elif target.startswith("/memfd:"):
                entry["seals"] = fcntl.fcntl(copy, 1034)
            entry["owner"] = fcntl.fcntl(copy, fcntl.F_GETOWN)
            entry["signal"] = fcntl.fcntl(copy, 11)
        except OSError:
            pass
        os.close(copy)
    return entry


PIDFD_THREAD = 0o200


def descriptors_of(pid, names, descriptions, flags=0):
    """{number: descriptor} of a process, or of a thread (PIDFD_THREAD)."""
    try:
        numbers = sorted(map(int, os.listdir(f"/proc/{pid}/fd")))
    except OSError:
        return {}
    pidfd = syscall("pidfd_open", pid, flags)
    found = {}
    for number in numbers:
        entry = descriptor(pid, number, pidfd, names, descriptions)
        if entry:
            found[number] = entry
    if pidfd >= 0:
        os.close(pidfd)
    return found


def digest(path):
    """A hash of a file's content, for what is too long to print."""
    return hashlib.sha256(read(path).encode()).hexdigest()[:16]


def namespace_of(pid, name, names):
    """The one that a process is in."""
    return namespace(link(f"/proc/{pid}/ns/{name}"), name.replace("_for_children", ""), names)


def zombie(pid, found, fields):
    """A dead process holds no more than what wait(2) and kill(2) can tell."""
    keep = ("comm", "state", "ppid", "pgrp", "session", "exit_signal")
    return {**{key: found[key] for key in keep}, "exit_code": fields[52 - 3],
            **status_of(f"/proc/{pid}/status", ("Uid", "Gid", "NSpid", "NSpgid", "NSsid"))}


def alive_in(pid):
    """The process itself, or its first thread that is alive if the main one has ended: /proc/TID is there."""
    try:
        tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return pid
    states = {tid: (proc.stat_fields(tid) or ("", ["X"]))[1][0] for tid in [pid] + tids}
    living = [tid for tid in tids if states[tid] not in "ZX"]
    return living[0] if states[pid] == "Z" and living else pid


def process(leader, names, descriptions, others):
    """All of one process."""
    stat_read, pid = proc.stat_fields(leader), alive_in(leader)
    if not stat_read:
        return None
    comm, fields = stat_read
    base = f"/proc/{pid}"
    found = {"comm": comm, "state": state_of(fields[0])}
    for name, index in STAT_FIELDS.items():
        found[name] = fields[index - 3]
    if fields[0] == "Z" and pid == leader:
        return zombie(pid, found, fields)
    if pid != leader:
        own = read(f"/proc/{leader}/task/{leader}/stat").rpartition(")")[2].split()
        found["main"] = zombie(leader, found, own)
    found["namespaces"] = {name: namespace_of(pid, name, names) for name in NAMESPACES}
    found["owners"] = namespaces.owners(pid, NAMESPACES, names)
    found["maps of ids"] = namespaces.maps(pid)
    view = found["namespaces"]["mnt"]
    if view and view != "ours" and names.first("view", (view, link(f"{base}/root"))):
        found["mounts"] = mounts.take(pid, names)
    found.update(status_of(f"{base}/status", PROCESS_STATUS))
    found["threads"] = threads_of(pid)
    for name in ("exe", "cwd", "root"):
        found[name] = link(f"{base}/{name}")
    for name in ("cmdline", "environ", "auxv"):
        found[name] = digest(f"{base}/{name}")
    for name in ("oom_score_adj", "personality", "coredump_filter", "loginuid", "setgroups", "cgroup"):
        found[name] = read(f"{base}/{name}").strip()
    found["autogroup"] = read(f"{base}/autogroup").strip().rpartition(" ")[2]
    found["limits"] = {line[:26].strip(): " ".join(line[26:68].split())
                       for line in read(f"{base}/limits").splitlines()[1:]}
    found["timers"] = re.sub(r"\d+/\d+$", "", read(f"{base}/timers"), flags=re.M).splitlines()
    found["shares"] = {
        name: [other for other in others if syscall("kcmp", pid, other, number, 0, 0) == 0]
        for name, number in (("memory", KCMP_VM), ("files", KCMP_FILES), ("fs", KCMP_FS))}
    found["maps"] = mappings_of(pid, names)
    found["fds"] = descriptors_of(pid, names, descriptions)
    for tid, thread in found["threads"].items():
        if tid != pid and syscall("kcmp", pid, tid, KCMP_FILES, 0, 0) > 0:
            thread["fds"] = descriptors_of(tid, names, descriptions, PIDFD_THREAD)
    return found


def living(pid, *args):
    """The same, or None if it dies while it is looked at: the next look finds what is left of it."""
    try:
        return process(pid, *args)
    except OSError:
        fields = proc.stat_fields(pid)
        if fields and fields[1][0] not in "ZX":
            raise
        return None


def ran(tid):
    """The nanoseconds that a thread has been running."""
    return int((read(f"/proc/{tid}/schedstat") or "0").split()[0])


class Rest:
    """Tells when every thread of a tree sleeps, stands still, lies dead, or computes without an end. One on
    its way to sleep is between two states: sigwaitinfo(2), for one, has a signal mask of its own."""

    ON_ITS_WAY = 20_000_000  # ns; whoever runs longer does nothing but run

    def __init__(self, root):
        self.root, self.begun = root, {}

    def reached(self):
        """Is it so now?"""
        return not any(state in "RD" and self.may_sleep(tid)
                       for tid, (state, _) in proc.states(self.root).items())

    def may_sleep(self, tid):
        """Has it not run long enough to be taken for a computing one?"""
        now = ran(tid)
        return now - self.begun.setdefault(tid, now) < self.ON_ITS_WAY


RESTLESS = set()  # the roots of trees that did not come to rest when there was time


def settle(root, patience=60.0):
    """Waits until a tree is at rest. It ends by itself: a thread that does not sleep is soon one that
    computes, unless the machine is so busy that it does not get there. Then it is not waited for that long
    again: a look waits often, and a test would seem to hang."""
    try:
        proc.wait_until("", Rest(root).reached, 5.0 if root in RESTLESS else patience)
        RESTLESS.discard(root)
    except proc.Timeout:
        RESTLESS.add(root)


def look(root):
    """{pid: process} of the tree below root, at rest; the root's parent is not part of it."""
    settle(root)
    names, descriptions = Names(), Descriptions()
    pids = sorted(proc.tree(root))
    found = {}
    for index, pid in enumerate(pids):
        entry = living(pid, names, descriptions, [alive_in(other) for other in pids[:index]])
        if entry:
            found[pid] = entry
    if root in found:
        del found[root]["ppid"]
    return found


def turns(root):
    """{tid: text} that changes with each turn on a processor."""
    return {tid: read(f"/proc/{tid}/schedstat") for tid in proc.states(root)}


def take(root, most=5):
    """A look while nobody ran, or one that is like the one before it: a state that a thread is only passing
    through is not how it is. Of a tree that is never the same twice the last of a few."""
    last = None
    for _ in range(most):
        settle(root)
        before, found = turns(root), look(root)
        if turns(root) == before or found == last:
            break
        last = found
    return found


def compare(before, after, where=""):
    """The differences as texts: "3071 fds 5 info: [...] -> [...]"."""
    if isinstance(before, dict) and isinstance(after, dict):
        differences = []
        for key in list(before) + [key for key in after if key not in before]:
            place = f"{where} {key}".strip()
            if key not in after:
                differences.append(f"{place}: {before[key]} -> gone")
            elif key not in before:
                differences.append(f"{place}: new: {after[key]}")
            else:
                differences += compare(before[key], after[key], place)
        return differences
    return [] if before == after else [f"{where}: {before} -> {after}"]


FEWEST_LOOKS = 5


def differences(before, root, ignore=(), seconds=20.0):
    """How a tree differs from what it was, but for what `ignore` (patterns) allows. Only what stays counts:
    a thread at work, or on its way back to where it slept, is like before in a moment. On a busy machine one
    look may take all of the time; with no time at all one is enough."""
    end, looks = time.monotonic() + seconds, 0
    while True:
        found = [text for text in compare(before, look(root))
                 if not any(re.search(pattern, text) for pattern in ignore)]
        looks += 1
        if not found or (time.monotonic() > end and looks >= FEWEST_LOOKS) or not seconds:
            return found
        time.sleep(0.01 * looks)

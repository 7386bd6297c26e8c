# SPDX-License-Identifier: MIT
"""Single mounts: of filesystems that are asked by a look already, in a mount namespace that the test has
made for ckpt, and such as the machine around the tree has changed by the time of the restore."""
import fcntl
import os
import pathlib
import signal
import struct
import subprocess

from lib import ckpt as codes
from lib import mounts, proc
from lib.context import command
from lib.report import Skip, expect

# ckpt is where this runs, and so is the tree that it starts if nothing takes that elsewhere
WORLD = """
import ctypes, fcntl, os, pathlib, struct, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
here = pathlib.Path(sys.argv[1])

def mount(point, kind, data=None, flags=0):
    point.mkdir(exist_ok=True)
    if libc.mount(kind.encode(), str(point).encode(), kind.encode(), flags, data and data.encode()):
        raise OSError(ctypes.get_errno(), f"mount(2) of {kind}")

def outside():
    {outside}

try:
    outside()
except OSError as error:
    (here / "skip").write_text(str(error))
    sys.exit()
child = subprocess.Popen([*sys.argv[3:], "sh", "-ec", sys.argv[2], "sh", here], start_new_session=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
(here / "pid.new").write_text(str(child.pid))
(here / "pid.new").rename(here / "pid")
child.wait()
threading.Event().wait()
"""
TREE = 'exec sleep 99999'


def build(context, test, outside="pass", tree=TREE, begin=("unshare", "-m")):
    """The tree's root, and the ckpt that is where it was begun."""
    program = WORLD.replace("{outside}", "\n    ".join(outside.strip().splitlines()))
    with open(test.log_path, "a", encoding="utf-8") as log:
        world = subprocess.Popen(["unshare", "-m", "python3", "-B", "-c", program, test.dir, tree,
                                  *begin], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, world.pid)
    skip, number = test.dir / "skip", test.dir / "pid"
    proc.wait_until("not built", lambda: number.exists() or world.poll() is not None, 60)
    if skip.exists():
        raise Skip(skip.read_text())
    pid = int(number.read_text())
    proc.wait_until("not built", lambda: proc.read(f"/proc/{pid}/comm") in ("", "sleep\n"), 60)
    return pid, context.ckpt(prefix=("nsenter", "-t", world.pid, "-m", "--"))


def seen(pid):
    """Its mounts but for numbers."""
    return [{key: mount[key] for key in ("root", "point", "flags", "type", "source", "options")}
            for mount in mounts.parse(proc.read(f"/proc/{pid}/mountinfo"))]


def again(test, pid, ckpt):
    """Saved, gone, and back with the same mounts."""
    before, pids = seen(pid), proc.tree(pid)
    ckpt.dump(test, pid, test.dir / "image")
    proc.wait_gone(pids)
    pid = ckpt.restore(test, test.dir / "image")
    after = seen(pid)
    expect(after == before, f"{after} was {before}")
    return pid


# whoever asks for what is to be mounted there gets it denied
AUTOMOUNT = """
ours, theirs = os.pipe()
mount(here / "auto", "autofs", f"fd={theirs},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct")
top = os.open(here / "auto", os.O_RDONLY)
def deny():
    while True:
        request = os.read(ours, 4096)
        (here / "asked").touch()
        fcntl.ioctl(top, 0x9361, struct.unpack_from("I", request, 8)[0])
threading.Thread(target=deny, daemon=True).start()
"""


def automount(context, test):
    """An automount of ckpt's own namespace is cloned, and not asked for."""
    again(test, *build(context, test, AUTOMOUNT))
    expect(not (test.dir / "asked").exists(), "what is behind an automount was asked for")


# one that hides another, and has a third on it
HIDING = """
for name in ("top", "top", "top/on"):
    mount(here / name, "tmpfs")
"""


def hiding(context, test):
    """What has to be taken off, so that what it hides can be mounted, goes with what is on it."""
    again(test, *build(context, test, HIDING))


# a file of a mount whose namespace ckpt does not see: its path has the way to that mount
ELSEWHERE = """
mount(here / "own", "tmpfs")
os.dup2(os.open(here / "own" / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
subprocess.Popen(["sleep", "99999"])
if libc.unshare(0x20000):
    raise OSError(ctypes.get_errno(), "unshare(2)")
"""


def elsewhere(context, test):
    """It comes back by what ckpt sees of the mount."""
    pid = again(test, *build(context, test, ELSEWHERE, tree="cd /; exec sleep 99999"))
    with open(f"/proc/{pid}/fd/2", "a", encoding="ascii") as log:
        log.write("text")
    expect(proc.read(f"/proc/{pid}/root{test.dir}/own/log") == "text", "it is another file")


# nobody but that user may look at more than its top, which is not told by stat(2) either: as of a desktop
# in /run/user. It has a directory `part`.
FUSE = """
device = os.open("/dev/fuse", os.O_RDWR)
directory = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 1000, 1000, 0, 4096, 0)
def serve():
    while True:
        request = os.read(device, 1 << 20)
        _, code, unique = struct.unpack_from("<IIQ", request)
        answer = {26: struct.pack("<IIIIHHI", 7, 31, 4096, 0, 9, 9, 4096) + bytes(40),
                  1: struct.pack("<4Q2I", 2, 0, 3600, 3600, 0, 0) + directory,
                  3: struct.pack("<Q2I", 3600, 0, 0) + directory}.get(code)
        os.write(device, struct.pack("<IiQ", 16 + len(answer or b""), 0 if answer else -38, unique) +
                 (answer or b""))
mount(here / "fuse", "fuse", f"fd={device},rootmode=40000,user_id=1000,group_id=1000")
threading.Thread(target=serve, daemon=True).start()
"""
PART = """mkdir $1/part
setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps +sys_admin,+dac_override \\
    --ambient-caps +sys_admin,+dac_override python3 -B -c '
import ctypes, sys
source, point = (f"{sys.argv[1]}/{name}".encode() for name in ("fuse/part", "part"))
sys.exit(ctypes.CDLL(None).mount(source, point, None, 4096, None))' $1
exec sleep 99999"""


def fuse(context, test):
    """Root mounts what it may not look at."""
    again(test, *build(context, test, FUSE))


def fuse_part(context, test):
    """What only that user may look up is refused by name."""
    pid, ckpt = build(context, test, FUSE, PART)
    run = ckpt.dump(test, pid, test.dir / "image", "--json", code=codes.REFUSED)
    listed = [(item["object"], item["reason"]) for item in run.json()["blockers"]]
    expect(listed == [(f"{test.dir}/part", f"it comes from {test.dir}/fuse/part, where ckpt may not look: "
                                           "EACCES")], f"{listed}")


# layers of two filesystems: what is no directory has another device number than its directory
LAYERS = """
for name in ("low", "top"):
    mount(here / name, "tmpfs")
for name in ("upper", "work"):
    (here / "top" / name).mkdir()
mount(here / "over", "overlay",
      f"lowerdir={here}/low,upperdir={here}/top/upper,workdir={here}/top/work,xino=off")
"""
BOUND = """exec python3 -B -c '
import socket, sys, time
name = socket.socket(socket.AF_UNIX)
name.bind(sys.argv[1] + "/over/name")
name.listen()
open("/proc/self/comm", "w").write("sleep")
time.sleep(99999)' $1"""


def bound(context, test):
    """A socket on an overlay that is alive keeps its name."""
    pid, ckpt = build(context, test, LAYERS, BOUND, ())
    ckpt.dump(test, pid, test.dir / "image", "--leave-running")
    within = context.ckpt(prefix=(*ckpt.prefix, "unshare", "-pf", "--mount-proc"))
    told = within.run(test, "restore", "-D", test.dir / "image", "-d", code=codes.FAILED).err
    expect(f"{test.dir}/over/name is in use" in told, told)


BIND = "mkdir -p $1/from/in $1/at/in; mount --bind $1/from/in $1/at/in; exec sleep 99999"
JAIL = """mkdir -p $1/jail/in; exec python3 -B -c '
import os, sys, time
name = open("/proc/self/comm", "w")
os.chroot(sys.argv[1] + "/jail/in"); os.chdir("/")
name.write("sleep"); name.close()
time.sleep(99999)' $1"""

# {name: (a directory that becomes a link, the tree, how that begins)}
LINKS = {
    "place": ("at/in", BIND, ("unshare", "-m")),
    "place-above": ("at", BIND, ("unshare", "-m")),
    "source": ("from/in", BIND, ("unshare", "-m")),
    "source-above": ("from", BIND, ("unshare", "-m")),
    "root": ("jail/in", JAIL, ()),
    "root-above": ("jail", JAIL, ()),
}


def links(context, test, name, tree, begin):
    """The kernel's paths have no symbolic links: one that is there by now leads to what is not the tree's."""
    pid, ckpt = build(context, test, tree=tree, begin=begin)
    pids = proc.tree(pid)
    ckpt.dump(test, pid, test.dir / "image")
    proc.wait_gone(pids)
    (test.dir / name).rename(test.dir / "other")
    (test.dir / name).symlink_to(test.dir / "other")
    run = ckpt.run(test, "restore", "-D", test.dir / "image", "-d", code=codes.FAILED)
    expect("cannot be restored" in run.err and "a symbolic link leads" in run.err, f"it says {run.err}")


TMPFS = "mount -t tmpfs test /srv; exec sleep 99999"
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
ACL = struct.pack("<IHHIHHIHHIHHIHHI", 2, 1, 7, 0xffffffff, 2, 7, 1000, 4, 5, 0xffffffff, 16, 7, 0xffffffff,
                  32, 5, 0xffffffff)
GETFLAGS, SETFLAGS, IMMUTABLE, APPEND, NODUMP, NOATIME = 0x80086601, 0x40086602, 16, 32, 64, 128


def flags(path, value=None):
    """What chattr(1) sets."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if value is not None:
            fcntl.ioctl(fd, SETFLAGS, struct.pack("I", value))
        return struct.unpack("I", fcntl.ioctl(fd, GETFLAGS, bytes(4)))[0]
    finally:
        os.close(fd)


def described(top):
    """What an ordinary look at files does not show."""
    return [(str(path.relative_to(top)), path.is_symlink() or path.is_fifo() or flags(path),
             {name: os.getxattr(path, name, follow_symlinks=False)
              for name in os.listxattr(path, follow_symlinks=False)})
            for path in (top, *sorted(top.rglob("*")))]


def attributes(context, test, read_only):
    """Capabilities, access lists, attributes of links, and flags of files in a tmpfs."""
    pid, ckpt = build(context, test, tree=TMPFS)
    top = pathlib.Path(f"/proc/{pid}/root/srv")
    for name in ("capable", "fixed", "other"):
        (top / name).write_text("text")
    os.link(top / "fixed", top / "hard")
    for name in ("dir", "dir/closed"):
        (top / name).mkdir()
    (top / "dir/closed/plain").touch()
    os.mkfifo(top / "dir/closed/fifo")
    os.symlink("fixed", top / "link")
    os.setxattr(top / "capable", "security.capability", CAPABILITY)
    os.setxattr(top / "link", "trusted.test", b"of a link", follow_symlinks=False)
    # inherited by what is made in it from then on
    os.setxattr(top / "dir", "system.posix_acl_default", ACL)
    (top / "dir/later").touch()
    try:
        for name, value in (("fixed", IMMUTABLE), ("other", NODUMP | NOATIME), ("dir/closed", IMMUTABLE),
                            ("dir", APPEND | NODUMP)):
            flags(top / name, value)
    except OSError as error:
        raise Skip(f"no flags in a tmpfs: {error}") from error
    if read_only:
        command(test, "nsenter", "-t", pid, "-m", "mount", "-o", "remount,ro", "/srv")
    before = described(top)
    pid = again(test, pid, ckpt)
    top = pathlib.Path(f"/proc/{pid}/root/srv")
    expect(described(top) == before, f"{described(top)} was {before}")
    ckpt.verify(test, test.dir / "image")


OVERLAY = """mkdir -p {top}/lower {top}/upper {top}/work $1/over
mount -t overlay -o lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work,{option} test $1/over
exec sleep 99999"""

# {name: (what is outside, a directory, the option, what is said)}
OVERLAYS = {
    "volatile": ('mount(here / "layers", "tmpfs")', "$1/layers", "volatile",
                 "an overlay that is volatile cannot be mounted again with what it has"),
    "index": ("pass", "/srv", "index=on",
              "an overlay with an index has a directory in a filesystem in memory"),
}


def overlay(context, test, outside, top, option, reason):
    """The kernel would not mount it again."""
    tree = OVERLAY.format(top=top, option=option)
    if top == "/srv":
        tree = "mount -t tmpfs test /srv\n" + tree
    pid, ckpt = build(context, test, outside, tree)
    run = ckpt.dump(test, pid, test.dir / "image", "--json", code=codes.REFUSED)
    listed = [(item["object"], item["reason"]) for item in run.json()["blockers"]]
    expect(listed == [(f"{test.dir}/over", reason)], f"{listed}")


# what a container shows in /proc under the names of what its pid namespace counts with
NUMBERS = """mount -t tmpfs test /proc; mkdir /proc/sys /proc/sys/kernel /proc/sys/vm
for name in kernel/pid_max kernel/ns_last_pid vm/memfd_noexec; do {make}; done
unshare -pf sleep 99999 &
exec sleep 99999"""
NUMBER_MAKERS = {"text": "echo 5 >/proc/sys/$name", "fifo": "mkfifo /proc/sys/$name",
                 "link": "ln -s /srv/number /proc/sys/$name"}


def numbers(context, test, make):
    """They are asked of the kernel, not of what is there."""
    pid, ckpt = build(context, test, tree=NUMBERS.format(make=make))
    proc.wait_until("not built", lambda: len(proc.tree(pid)) == 3)
    again(test, pid, ckpt)


# the root is an overlay, and its directories are out of the tree's sight
ROOTED = """mount --make-rprivate /
mkdir -p $1/layers/lower $1/layers/upper $1/layers/work $1/root
{hide}
mkdir -p $1/layers/lower/old $1/layers/lower/usr $1/layers/lower/proc $1/layers/upper $1/layers/work
cd $1/layers/lower; ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64
mount -t overlay -o lowerdir=$1/layers/lower,upperdir=$1/layers/upper,workdir=$1/layers/work test $1/root
mount --bind /usr $1/root/usr
mount -t proc proc $1/root/proc
cd $1/root; pivot_root . old; cd /; umount -l old
exec sleep 99999"""


def layers_hidden(context, test):
    """What is to be seen by the paths of its layers is not what they are."""
    pid, ckpt = build(context, test, tree=ROOTED.format(hide="mount -t tmpfs test $1/layers"))
    run = ckpt.dump(test, pid, test.dir / "image", "--json", code=codes.REFUSED)
    listed = [(item["object"], item["reason"]) for item in run.json()["blockers"]]
    expect(len(listed) == 1 and listed[0][0] == "/" and "directories that ckpt sees" in listed[0][1],
           f"{listed}")


def layers_gone(context, test):
    """A layer that is missing is named, and nothing made; it comes back, and so does the tree."""
    pid, ckpt = build(context, test, tree=ROOTED.format(hide=""))
    ckpt.dump(test, pid, test.dir / "image")
    upper = test.dir / "layers" / "upper"
    upper.rename(test.dir / "elsewhere")
    run = ckpt.run(test, "restore", "-D", test.dir / "image", "-d", code=codes.FAILED)
    expect(f"the directory {upper} of an overlay" in run.err, run.err)
    (test.dir / "elsewhere").rename(upper)
    pid = ckpt.restore(test, test.dir / "image")
    test.cleanup(proc.kill_tree, pid)
    pathlib.Path(f"/proc/{pid}/root/written").write_text("text")
    expect(proc.read(upper / "written") == "text", "what is written does not come to the upper one")


# in an order that is not that of their numbers, with gaps
INODES = """mount -t tmpfs test /srv; cd /srv
for i in 1 2 3 4 5 6 7 8 9; do echo $i >$i; done
mkdir a; mkdir b; mv a b/; ln 7 b/a/seven; mv 9 b/a/; ln -s 4 b/link; mkfifo 0; rm 2 5 8; mv b 1b
echo .ckpt-0-3 >.ckpt-0-3; i=0; while [ $i -lt 3000 ]; do : >x; rm x; i=$((i + 1)); done; echo late >0late
cd /; exec sleep 99999"""


def inodes(context, test):
    """Files of a tmpfs keep their inode numbers."""
    def numbers(pid):
        top = pathlib.Path(f"/proc/{pid}/root/srv")
        return {str(path.relative_to(top)): path.lstat().st_ino for path in [top, *top.rglob("*")]}

    pid, ckpt = build(context, test, tree=INODES)
    before = numbers(pid)
    after = numbers(again(test, pid, ckpt))
    expect(after == before, f"{after} was {before}")


# which says whether its database may still be written, by the signal's number
DATABASE = """mount -t tmpfs test /srv; for i in 1 2 3; do : >/srv/$i; rm /srv/$i; done
exec /usr/bin/python3 -B -c '
import pathlib, signal, sqlite3
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
base = sqlite3.connect("/srv/base", isolation_level=None)
base.execute("pragma journal_mode=wal"); base.execute("create table numbers (n)")
pathlib.Path("/proc/self/comm").write_text("sleep")
while True:
    number = signal.sigwait([signal.SIGUSR1])
    base.execute("insert into numbers values (?)", (number,))
    pathlib.Path("/srv/said").write_text(str(base.execute("select count(*) from numbers").fetchone()[0]))
'"""


def database(context, test):
    """SQLite goes on writing to its database: it would not if the file's number were another."""
    pid, ckpt = build(context, test, tree=DATABASE)
    for count in ("1", "2"):
        os.kill(pid, signal.SIGUSR1)
        said = pathlib.Path(f"/proc/{pid}/root/srv/said")
        proc.wait_until("it does not write", lambda: proc.read(said, "") == count)
        pid = again(test, pid, ckpt) if count == "1" else pid


def options(context, test):
    """Of a tmpfs that was made read-only after it was filled, one that it takes once only."""
    tree = ("mount -t tmpfs -o noswap,size=1m test /srv; echo text >/srv/file; mount -o remount,ro /srv; "
            "exec sleep 99999")
    pid = again(test, *build(context, test, tree=tree))
    expect(proc.read(f"/proc/{pid}/root/srv/file") == "text\n", "its file is another")


# as below /var/run, which is a link to /run
SOCKET = """mount -t tmpfs test /srv; mkdir /srv/run; ln -s run /srv/link
python3 -c 'import socket, time
s = socket.socket(socket.AF_UNIX)
s.bind("/srv/link/socket")
s.listen()
while True:
    s.accept()[0].send(s.getsockname().encode())' &
until [ -S /srv/run/socket ]; do sleep 0.1; done
exec sleep 99999"""
ASK = """import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
sys.stdout.write(s.recv(100).decode())"""


def socket_by_link(context, test):
    """Its file is where the link leads, and its path the one it was bound to."""
    pid = again(test, *build(context, test, tree=SOCKET))
    for name in ("run", "link"):
        said = command(test, "nsenter", "-t", pid, "-m", "python3", "-c", ASK, f"/srv/{name}/socket")
        expect(said == "/srv/link/socket", f"its path is {said}")


def tests(context):
    """One for each."""
    yield "mounts/socket-by-link", lambda test: socket_by_link(context, test)
    yield "mounts/automount", lambda test: automount(context, test)
    yield "mounts/hiding", lambda test: hiding(context, test)
    yield "mounts/elsewhere", lambda test: elsewhere(context, test)
    yield "mounts/fuse", lambda test: fuse(context, test)
    yield "mounts/fuse-part", lambda test: fuse_part(context, test)
    for name, item in LINKS.items():
        yield f"mounts/link/{name}", lambda test, item=item: links(context, test, *item)
    for name, read_only in (("written", False), ("read-only", True)):
        yield (f"mounts/attributes/{name}",
               lambda test, read_only=read_only: attributes(context, test, read_only))
    for name, item in OVERLAYS.items():
        yield f"mounts/overlay/{name}", lambda test, item=item: overlay(context, test, *item)
    for name, make in NUMBER_MAKERS.items():
        yield f"mounts/numbers/{name}", lambda test, make=make: numbers(context, test, make)
    yield "mounts/socket-on-overlay", lambda test: bound(context, test)
    yield "mounts/overlay/hidden", lambda test: layers_hidden(context, test)
    yield "mounts/overlay/gone", lambda test: layers_gone(context, test)
    yield "mounts/inodes", lambda test: inodes(context, test)
    yield "mounts/database", lambda test: database(context, test)
    yield "mounts/noswap", lambda test: options(context, test)

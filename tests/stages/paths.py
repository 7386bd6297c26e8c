# SPDX-License-Identifier: MIT
"""Saved paths that lead elsewhere by the time of the restore, because an unprivileged user has put a symbolic
link or another file there: ckpt, which is root, goes nowhere where he could not. A link of root's is fine."""
import os
import shutil
import stat
import subprocess
import tempfile

from lib import ckpt as codes
from lib import proc
from lib.report import expect

USER = 1000
SECRET = "nobody but root may read this"

# argv: its directory, in which `d` is; says `ready`, and on `go` what it has, in `out`
COMMON = """
import ctypes, os, socket, sys, time
here = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
def path(name):
    return f"{here}/d/{name}"
def open_at(name, flags):
    return os.open(path(name), flags)
def ready():
    open(f"{here}/ready", "w").close()
    while not os.path.exists(f"{here}/go"):
        time.sleep(0.02)
def say(text):
    with open(f"{here}/out.new", "w") as out:
        out.write(text)
    os.rename(f"{here}/out.new", f"{here}/out")
    time.sleep(99999)
"""

# what it does, and what it says where all is well
KINDS = {
    "mapped": ("""
fd = open_at("data", os.O_RDWR)
libc.mmap.restype = ctypes.c_void_p
# not by the module mmap, which keeps the file open
m = ctypes.c_char.from_address(libc.mmap(None, ctypes.c_size_t(4096), 3, 1, fd, ctypes.c_long(0)))
os.close(fd)
ready()
text = ctypes.string_at(ctypes.addressof(m), 4)
ctypes.memmove(ctypes.addressof(m), b"mine!", 5)
say(text.decode())""", "mine"),
    "file": ("""
fd = open_at("data", os.O_RDWR)
ready()
text = os.pread(fd, 4, 0)
os.pwrite(fd, b"mine!", 0)
say(text.decode())""", "mine"),
    "place": ("""
fd = open_at("sub", os.O_PATH)
ready()
say(open(f"/proc/self/fd/{fd}/file").read())""", "mine"),
    "fifo": ("""
fd = open_at("fifo", os.O_RDWR)
os.write(fd, b"mine")
ready()
text = os.read(fd, 100)
os.write(fd, b"reboot")
say(text.decode())""", "mine"),
    "socket": ("""
s = socket.socket(socket.AF_UNIX)
s.bind(path("socket"))
s.listen()
ready()
c = socket.socket(socket.AF_UNIX)
c.connect(path("socket"))
say(s.getsockname().removeprefix(here))""", "/d/socket"),
    "socket-by-link": ("""
os.symlink("d", f"{here}/link")
s = socket.socket(socket.AF_UNIX)
s.bind(f"{here}/link//.//socket")
s.listen()
ready()
c = socket.socket(socket.AF_UNIX)
c.connect(path("socket"))
say(s.getsockname().removeprefix(here))""", "/link//.//socket"),
    "watch": ("""
fd = libc.inotify_init1(os.O_NONBLOCK)
if libc.inotify_add_watch(fd, path("sub").encode(), 0x100) != 1:
    sys.exit(1)
ready()
open(path("sub/new"), "w").close()
say(os.read(fd, 4096)[16:].rstrip(b"\\0").decode())""", "new"),
    "cwd": ("""
os.chdir(path("sub"))
ready()
say(open("file").read())""", "mine"),
    "cwd-removed": ("""
os.mkdir(path("gone"))
os.chdir(path("gone"))
os.rmdir(path("gone"))
ready()
say(str(os.listdir(".")))""", "[]"),
    "directory-removed": ("""
os.mkdir(path("gone"))
fd = open_at("gone", os.O_RDONLY)
os.rmdir(path("gone"))
ready()
say(str(os.listdir(fd)))""", "[]"),
    "deleted": ("""
fd = os.open(path("gone"), os.O_RDWR | os.O_CREAT)
os.write(fd, b"mine")
os.unlink(path("gone"))
ready()
say(os.pread(fd, 100, 0).decode())""", "mine"),
}


def as_user(test, *words):
    """Something that the user may do."""
    done = subprocess.run([*map(str, words)], user=USER, group=USER, extra_groups=[], check=False,
                          capture_output=True, text=True, cwd="/")
    test.log(f"$ {' '.join(map(str, words))}: {done.returncode} {done.stderr}")
    expect(not done.returncode, f"{words[0]}: {done.stderr}")


def fill(path, text, uid, file_mode):
    """All that a victim has, with that text in it."""
    (path / "sub").mkdir()
    for file in (path / "data", path / "sub" / "file"):
        file.write_text(text if file.name == "file" else text.ljust(4096, "\0"))
    os.mkfifo(path / "fifo")
    for file in (path, path / "sub", path / "data", path / "sub" / "file", path / "fifo"):
        os.chown(file, uid, uid)
        if not file.is_dir():
            file.chmod(file_mode)


LIVE = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX, getattr(socket, "SOCK_" + sys.argv[2]))
s.bind(sys.argv[1])
if sys.argv[2] == "STREAM":
    s.listen()
time.sleep(99999)"""


class Tree:
    """A program of the user's in a directory of his, and one of root's that he would like to have."""

    def __init__(self, context, test, kind):
        self.context, self.test, (program, self.answer) = context, test, KINDS[kind]
        # not in /tmp: everybody may write there, so that no link in it is root's alone
        self.top = test.dir.__class__(tempfile.mkdtemp(prefix="ckpt-paths-", dir="/run"))
        test.cleanup(shutil.rmtree, self.top, True)
        self.top.chmod(0o755)
        self.home, self.secret, self.image = self.top / "home", self.top / "secret", test.dir / "image"
        (self.home / "d").mkdir(parents=True)
        os.chown(self.home, USER, USER)
        fill(self.home / "d", "mine", USER, 0o600)
        self.secret.mkdir(mode=0o700)
        fill(self.secret, SECRET, 0, 0o600)
        # one that a daemon has left
        subprocess.run(["/usr/bin/python3", "-c", "import socket, sys; "
                        "socket.socket(socket.AF_UNIX).bind(sys.argv[1])", self.secret / "socket"],
                       check=True)
        with open(test.log_path, "a", encoding="utf-8") as log:
            child = subprocess.Popen(["/usr/bin/python3", "-ISc", COMMON + program, self.home],
                                     user=USER, group=USER, extra_groups=[], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
                                     cwd="/")
        child.returncode = 0
        self.pid = child.pid
        test.cleanup(lambda: proc.kill_tree(self.pid))
        proc.wait_until("not built", (self.home / "ready").exists)
        self.before = self.look()

    def look(self):
        """What root has, and when it was changed."""
        seen = {}
        for path in (self.secret, *sorted(self.secret.rglob("*"))):
            status = path.lstat()
            seen[str(path)] = (status.st_ino, status.st_mode, status.st_uid, status.st_size,
                               status.st_mtime_ns, status.st_ctime_ns,
                               path.read_text() if stat.S_ISREG(status.st_mode) else None)
        return seen

    def unharmed(self, fifo):
        """Nothing of root's was touched or told."""
        now = self.look()
        expect(now == self.before, f"root's files: {now} were {self.before}")
        try:
            got = os.read(fifo, 100)
        except BlockingIOError:
            got = b""
        expect(not got, f"root's FIFO got {got!r}")

    def dump(self):
        """Saved and gone."""
        self.context.ckpt().dump(self.test, self.pid, self.image)
        proc.wait_gone([self.pid])

    def said(self):
        """What it says when it goes on; "" if it never does."""
        (self.home / "go").touch()
        if not proc.exists(self.pid):
            return ""
        try:
            proc.wait_until("no answer", lambda: (self.home / "out").exists()
                            or not proc.exists(self.pid))
        except proc.Timeout:
            return ""
        return proc.read(self.home / "out", "")

    def restored(self):
        """It goes on with what it had."""
        expect(self.context.ckpt().restore(self.test, self.image) == self.pid, "another pid")
        said = self.said()
        expect(said == self.answer, f"it says {said!r}, not {self.answer!r}")


def before(context, test, kind):
    """A link while the tree is away: told by name, nothing made; restored when it is gone."""
    tree = Tree(context, test, kind)
    tree.dump()
    as_user(test, "mv", tree.home / "d", tree.home / "d2")
    as_user(test, "ln", "-s", tree.secret, tree.home / "d")
    fifo = os.open(tree.secret / "fifo", os.O_RDWR | os.O_NONBLOCK)
    try:
        run = context.ckpt().run(test, "restore", "-D", tree.image, "-d", code=codes.FAILED)
        expect("symbolic link" in run.err and str(tree.home / "d") in run.err, f"it says: {run.err}")
        tree.unharmed(fifo)
    finally:
        os.close(fifo)
    as_user(test, "rm", tree.home / "d")
    as_user(test, "mv", tree.home / "d2", tree.home / "d")
    tree.restored()


def meanwhile(context, test, kind):
    """The plan has found all well when the link comes: the first process is about to be made."""
    tree = Tree(context, test, kind)
    tree.dump()
    swap = (f"cd {tree.home} && mv d d2 && ln -s {tree.secret} d")
    fifo = os.open(tree.secret / "fifo", os.O_RDWR | os.O_NONBLOCK)
    try:
        report = test.dir / "fault"
        done = subprocess.run([context.tool("fault"), "-o", report, "-s", "clone3", "-n", "1", "-x",
                               f"setpriv --reuid {USER} --regid {USER} --clear-groups sh -c '{swap}'",
                               "--", context.ckpt().binary, "restore", "-D", tree.image, "-d"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              errors="replace", cwd="/", timeout=codes.TIMEOUT)
        test.log(f"restore: {done.returncode} {done.stderr}")
        expect((tree.home / "d").is_symlink(), "the place was not reached")
        # what was removed may have been made again before
        said = tree.said()
        expect(done.returncode == codes.FAILED or said == tree.answer,
               f"exit {done.returncode}, it says {said!r}")
        tree.unharmed(fifo)
    finally:
        os.close(fifo)


def replaced(context, test, kind, name):
    """Root has left something in the user's directory, who gives it the name of what he had."""
    tree = Tree(context, test, kind)
    roots = tree.home / "d" / "roots"
    if name == "fifo":
        os.mkfifo(roots, 0o600)
    else:
        roots.mkdir(mode=0o700)
    tree.dump()
    as_user(test, "mv", tree.home / "d" / name, tree.home / "d" / "old")
    as_user(test, "mv", roots, tree.home / "d" / name)
    run = context.ckpt().run(test, "restore", "-D", tree.image, "-d", code=codes.FAILED)
    expect("another" in run.err and f"/d/{name}" in run.err, f"it says: {run.err}")


def moved(context, test, kind):
    """Root has moved the user's directory and left a link, as administrators do."""
    tree = Tree(context, test, kind)
    tree.dump()
    tree.home.rename(tree.top / "elsewhere")
    (tree.top / "way").symlink_to(tree.top)
    tree.home.symlink_to("way/./sub/../elsewhere")
    (tree.top / "sub").mkdir()
    tree.restored()


def others(context, test):
    """A link of root's in a directory of the user's, who may have moved it: not followed."""
    tree = Tree(context, test, "file")
    tree.dump()
    (tree.home / "d").rename(tree.home / "d2")
    (tree.home / "d").symlink_to("d2")
    run = context.ckpt().run(test, "restore", "-D", tree.image, "-d", code=codes.FAILED)
    expect("symbolic link" in run.err, f"it says: {run.err}")


def taken(context, test):
    """Somebody else's dead socket has the name by now, where only its owner may remove it."""
    tree = Tree(context, test, "socket")
    tree.dump()
    socket = tree.home / "d" / "socket"
    socket.unlink(missing_ok=True)
    (tree.home / "d").chmod(0o1777)
    os.link(tree.secret / "socket", socket)
    run = context.ckpt().run(test, "restore", "-D", tree.image, "-d", code=codes.FAILED)
    expect("of another user" in run.err, f"it says: {run.err}")
    socket.unlink()
    tree.restored()


def live(context, test, kind):
    """A program in another network namespace has the socket by now: it keeps it."""
    tree, ckpt = Tree(context, test, "socket"), context.ckpt()
    tree.dump()
    path = tree.home / "d" / "socket"
    path.unlink()
    service = subprocess.Popen(["unshare", "-n", "setpriv", "--reuid", str(USER), "--clear-groups",
                                "/usr/bin/python3", "-ISc", LIVE, path, kind], stdin=subprocess.DEVNULL,
                               start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, service.pid)
    proc.wait_until("it does not listen", path.exists)
    inode = path.stat().st_ino
    run = ckpt.run(test, "restore", "-D", tree.image, "-d", code=codes.FAILED)
    expect(f"{path} is in use" in run.err, f"it says: {run.err}")
    expect(path.stat().st_ino == inode, "it was replaced")
    proc.kill_tree(service.pid)
    tree.restored()


def tests(context):
    """For each kind of what is found by its path."""
    for kind in KINDS:
        yield f"paths/before/{kind}", lambda test, kind=kind: before(context, test, kind)
        yield f"paths/meanwhile/{kind}", lambda test, kind=kind: meanwhile(context, test, kind)
        yield f"paths/moved/{kind}", lambda test, kind=kind: moved(context, test, kind)
    yield "paths/replaced/fifo", lambda test: replaced(context, test, "fifo", "fifo")
    yield "paths/replaced/watch", lambda test: replaced(context, test, "watch", "sub")
    yield "paths/others", lambda test: others(context, test)
    for kind in ("STREAM", "DGRAM"):
        yield f"paths/live/{kind.lower()}", lambda test, kind=kind: live(context, test, kind)
    yield "paths/taken", lambda test: taken(context, test)

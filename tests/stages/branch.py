# SPDX-License-Identifier: MIT
"""Several copies of one image, beside each other and beside the original, which is left running."""
import json
import os
import random
import re
import resource
import signal
import stat
import struct
import subprocess
import sys

from lib import ckpt as codes
from lib import files as listing
from lib import killing, proc
from lib.context import command
from lib.report import Failure, Skip, expect
from lib.victim import Victim

SCENARIOS = ("fd-basic", "fd-locks", "mem-cow", "pid-basic", "threads", "sock-stream", "sock-dgram",
             "sock-tcp", "task-basic", "pty")


def first(root):
    """Its parent: of a copy's root the first process of the copy, whose end is that of all in it."""
    fields = proc.stat_fields(root)
    return int(fields[1][1]) if fields else 0


class Copy:
    """One of them."""

    def __init__(self, victim, root, number):
        self.victim, self.root, self.number, self.first = victim, root, number, first(root)
        expect(proc.stat_fields(self.first)[0] == "ckpt-init", f"copy {number}: its root has another parent")

    def path(self, name):
        """A file of the victim's directory, as the copy has it."""
        return f"/proc/{self.root}/root{self.victim.dir}/{name}"

    def check(self, when, checks):
        """Lets it check itself."""
        os.kill(self.root, signal.SIGUSR1)
        proc.wait_until(f"{when}: no answer of copy {self.number}",
                        lambda: proc.read(self.path("result")) or not proc.exists(self.root))
        answer = proc.read(self.path("result"), "it died").strip()
        os.unlink(self.path("result"))
        expect(answer == f"ok {checks}", f"{when}: copy {self.number} says: {answer}")

    def end(self):
        """Ends all of it."""
        if self.first and proc.exists(self.first):
            pids = proc.tree(self.first)
            os.kill(self.first, signal.SIGKILL)
            proc.wait_gone(pids)


def saved(context, test, name):
    """(victim, image); the victim goes on."""
    victim = Victim(test, context.scenario(name))
    victim.check("built")
    context.ckpt().dump(test, victim.pid, test.dir / "image", "--leave-running")
    os.unlink(victim.dir / "result")
    return victim, test.dir / "image"


def branched(context, test, victim, image, number, *args, layer=True):
    """[Copy]"""
    prefix = test.dir / "pid"
    context.ckpt().run(test, "branch", "-D", image, "--copies", number, "--pidfiles", prefix, *args,
                       *(["--layer", victim.dir] if layer else []))
    copies = [Copy(victim, int(proc.read(f"{prefix}.{i}")), i) for i in range(1, number + 1)]
    for copy in copies:
        test.cleanup(copy.end)
    return copies


def all_at_once(context, test, name, number):
    """Each finds what the original had; what one writes, no other sees."""
    victim, image = saved(context, test, name)
    index = victim.dir / "CKPT_BRANCH"
    copies = branched(context, test, victim, image, number, "--index-file", index, "--host-suffix", "-")
    for copy in copies:
        copy.check("branched", 2)
        said = proc.read(copy.path("CKPT_BRANCH"))
        expect(said == f"{copy.number}\n", f"copy {copy.number} is told {said!r}")
        with open(copy.path("written"), "w", encoding="ascii") as file:
            file.write(str(copy.number))
    expect(not index.exists() and not (victim.dir / "written").exists(), "a copy wrote outside")
    expect([proc.read(copy.path("written")) for copy in copies] == [str(copy.number) for copy in copies],
           "one copy has another's file")
    kinds = ("pid", "mnt", "ipc", "uts", "net", "cgroup", "time")
    for kind in kinds:
        links = {os.readlink(f"/proc/{pid}/ns/{kind}")
                 for pid in [victim.pid] + [copy.root for copy in copies]}
        expect(len(links) == number + 1, f"{kind} namespaces: {links}")
    copies[0].end()
    for copy in copies[1:]:
        copy.check("one has ended", 3)
    victim.check("branched")


def again(context, test):
    """The image stays as it was: after the copies a restore, and copies of the same image once more."""
    victim, image = saved(context, test, "fd-basic")
    before = {path.name: path.read_bytes() for path in image.iterdir() if path.is_file()}
    for copy in branched(context, test, victim, image, 2):
        copy.check("branched", 2)
        copy.end()
    expect(before == {path.name: path.read_bytes() for path in image.iterdir() if path.is_file()},
           "the image was changed")
    for copy in branched(context, test, victim, image, 2):
        copy.check("branched again", 2)
    victim.check("branched twice")


def pidfds_have_attributes():
    """Since Linux 6.17."""
    with open(os.pidfd_open(os.getpid()), "rb") as pidfd:
        try:
            os.setxattr(pidfd.fileno(), "trusted.ckpt-test", b"")
            os.removexattr(pidfd.fileno(), "trusted.ckpt-test")
        except OSError:
            return False
    return True


def lineage(context, test):
    """`ckpt show` tells which images a tree comes from: what it was left running by, restored from, or
    is a copy of."""
    if not pidfds_have_attributes():
        raise Skip("pidfds have no extended attributes (Linux 6.17)")
    ckpt = context.ckpt()

    def told(image):
        return ckpt.run(test, "show", image, "--json").json()["image"]

    def forebears(image):
        return [(one["uuid"], one["copy"], bool(one["restored_ns"])) for one in told(image)["ancestors"]]

    victim, first = saved(context, test, "fd-basic")
    second, of_copy, killed_by, last = (test.dir / name for name in ("second", "copy", "killed", "last"))
    ckpt.dump(test, victim.pid, second, "--leave-running")
    running = [(told(first)["uuid"], 0, False)]
    expect(forebears(first) == [] and forebears(second) == running, f"second: {forebears(second)}")
    copy = branched(context, test, victim, first, 2)[1]
    words = [proc.read(f"/proc/{copy.first}/{name}") for name in ("environ", "cmdline")]
    expect(words == ["", "ckpt-init\0"], f"the copy's first process shows {words}")
    command(test, "nsenter", "-a", "-t", copy.root, "--", ckpt.binary, "dump", "-t", victim.pid,
            "-D", of_copy, "--leave-running")
    expect(forebears(of_copy) == [(told(first)["uuid"], 2, True)], f"of a copy: {forebears(of_copy)}")
    # the copy ends with its tree, and not before the ckpt that kills it
    command(test, "nsenter", "-a", "-t", copy.root, "--", ckpt.binary, "dump", "-t", victim.pid,
            "-D", of_copy, "--force")
    proc.wait_gone([copy.first])
    expect(len(forebears(of_copy)) == 2, f"of a killed copy: {forebears(of_copy)}")
    pids = proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, killed_by)
    proc.wait_gone(pids)
    victim.pid = ckpt.restore(test, killed_by)
    ckpt.dump(test, victim.pid, last, "--leave-running")
    expected = [(told(killed_by)["uuid"], 0, True), (told(second)["uuid"], 0, False), *running]
    expect(forebears(last) == expected, f"restored: {forebears(last)}")
    text = ckpt.run(test, "show", last).out
    expect(f"  from {told(killed_by)['uuid']}, made " in text, f"show: {text[:500]}")


def generations(context, test, name):
    """A copy that is saved by a ckpt in its namespaces and brought back beside its layer, twice; then two
    copies of that, with a layer on the layer."""
    victim, image = saved(context, test, name)
    copy = branched(context, test, victim, image, 1)[0]
    copy.check("branched", 2)

    def again(image, *words):
        """Saved, and brought back by that."""
        pids = proc.tree(copy.root)
        # the copy ends with its tree, but not before whoever is in its namespaces
        command(test, "nsenter", "-a", "-t", copy.first, "--", "sh", "-ec",
                '"$1" dump -t "$2" -D "$3"; ckpt=$1; shift 3; "$ckpt" "$@"', "sh", context.ckpt().binary,
                victim.pid, image, *words)
        proc.wait_gone(pids)

    for generation in (1, 2):
        image = test.dir / f"generation{generation}"
        again(image, "restore", "-D", image, "-d")
        copy.root = proc.tree(copy.first)[1]
        copy.check(f"generation {generation}", 2 + generation)
    image = test.dir / "last"
    again(image, "branch", "-D", image, "--copies", 2, "--layer", victim.dir)
    of_copy = [Copy(victim, proc.tree(pid)[1], number) for number, (pid, parent) in enumerate(
        sorted(proc.parents().items()), 1) if parent == copy.first]
    expect(len(of_copy) == 2, f"a copy has {len(of_copy)} copies")
    for one in of_copy:
        one.check("a copy of the copy", 5)


def saved_copy(context, test, copy, image, *args, code=0):
    """Saved by a ckpt in its namespaces."""
    pids = proc.tree(copy.first)
    done = subprocess.run(["nsenter", "-a", "-t", str(copy.root), "--", context.ckpt().binary, "dump", "-t",
                           str(copy.victim.pid), "-D", image, *args], stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=codes.TIMEOUT, check=False)
    expect(done.returncode == code, f"dump of a copy: exit {done.returncode}: {done.stderr}")
    if not code and "--leave-running" not in args:
        proc.wait_gone(pids)
    return done.stderr


# what a copy does in a directory that has these files of the machine's, and what it makes
GIVEN = ("kept", "removed", "changed", "moved", "gone/in", "again/in")
MADE = ("fifo", "new", "linked", "link")
CHANGES = """
import os, shutil, sys
os.chdir(sys.argv[1])
os.unlink("removed")
with open("changed", "a") as file: file.write("more")
os.mkfifo("fifo", 0o600)
with open("new", "w") as file:
    file.write("new")
    file.truncate(1 << 20)
os.setxattr("new", "trusted.mark", b"here")
os.chown("new", 7, 8)
os.chmod("new", 0o4711)
os.link("new", "linked")
os.mkdir("made", 0o1770)
os.symlink("../new", "made/link")
os.rename("moved", "made/moved")
shutil.rmtree("gone")
shutil.rmtree("again")
os.mkdir("again")
os.utime("again", (5, 5))
"""


def layers(context, test, tops):
    """What a copy has written is in its image: new, changed and removed files and directories. Copies of
    that have it, and copies of those; the machine has not. `tops`: in directories, not in memory."""
    victim, image = saved(context, test, "fd-basic")
    given = victim.dir / "given"
    for name in GIVEN:
        (given / name).parent.mkdir(parents=True, exist_ok=True)
        (given / name).write_text(f"the machine's {name}", encoding="ascii")

    def upper(name):
        if not tops:
            return ()
        (test.dir / name).mkdir()
        return ("--upper", test.dir / name)

    def taken(copy):
        # on a disk, numbers are the disk's; and an overlay does not know files of the machine's again if
        # the filesystem has no UUID
        return listing.below(given if copy is None else copy.path("given"), () if tops else MADE)

    before = taken(None)
    copy = branched(context, test, victim, image, 1, *upper("top"))[0]
    copy.check("branched", 2)
    command(test, "nsenter", "-a", "-t", copy.root, "--", sys.executable, "-c", CHANGES, given)
    seen = taken(copy)
    expect(seen["changed"][-1] != before["changed"][-1] and "gone" not in seen, "nothing has changed")
    elsewhere = test.dir / "elsewhere"
    elsewhere.mkdir()
    for words, code in ((("mount", "--bind", given, elsewhere), codes.REFUSED), (("umount", elsewhere), 0)):
        command(test, "nsenter", "-a", "-t", copy.root, "--", *words)
        told = saved_copy(context, test, copy, test.dir / "bound", "--leave-running", code=code)
        expect(not code or f"the layer of {victim.dir}, mounted here" in told, f"a bind of it: {told}")
    for checks, name in enumerate(("second", "third"), 3):
        saved_copy(context, test, copy, victim.dir / "image", code=codes.REFUSED)
        image = test.dir / name
        told = context.ckpt().run(test, "dump", "-t", copy.root, "-D", image, code=codes.REFUSED).err
        expect(f"nsenter -a -t {copy.first} ckpt dump" in told, f"dump of a copy from outside: {told}")
        saved_copy(context, test, copy, image)
        told = context.ckpt().run(test, "restore", "-D", image, code=codes.REFUSED).err
        expect("ckpt branch --copies 1" in told, f"restored without its layer: {told}")
        other, copy = branched(context, test, victim, image, 2, *upper(f"top-{name}"), layer=False)
        for one in (other, copy):
            found = listing.differences(seen, taken(one))
            expect(not found, f"{name}, copy {one.number}: {found[:3]}")
            one.check(name, checks)
        with open(other.path("given/other"), "w", encoding="ascii") as file:
            file.write("of one copy")
        expect(not os.path.exists(copy.path("given/other")), "a copy sees what another has written")
    found = listing.differences(before, taken(None))
    expect(not found, f"the machine's files: {found[:3]}")


def without_layers(context, test):
    """Left where it is, what a copy has written is not in the image."""
    victim, image = saved(context, test, "mem-basic")
    copy = branched(context, test, victim, image, 1)[0]
    with open(copy.path("written"), "w", encoding="ascii") as file:
        file.write("by the copy")
    saved_copy(context, test, copy, test.dir / "second", "-o", "mnt.layers=no", "--leave-running")
    again = branched(context, test, victim, test.dir / "second", 1)[0]
    expect(not os.path.exists(again.path("written")), "it is there")
    expect(proc.read(copy.path("written")), "it is gone from the copy")


def refused(context, test):
    """Files that all copies would write to are listed, and nothing stays."""
    victim, image = saved(context, test, "fd-basic")
    args, tree = ("branch", "-D", image, "--copies", 2, "--pidfiles", test.dir / "pid"), left(victim)
    told = context.ckpt().run(test, *args, code=codes.REFUSED).err
    for name in ("data", "log"):
        expect(f"{victim.dir}/{name} is open for writing" in told, f"{name} is not listed: {told}")
    expect(left(victim) == tree, "a copy was left")
    expect(not list(test.dir.glob("pid*")), "pid files were left")
    context.ckpt().run(test, *args, "--index-file", "/run/ckpt-test-branch", code=codes.USAGE)
    context.ckpt().run(test, *args, "--layer", victim.dir / "stderr", code=codes.USAGE)
    victim.check("refused")


def shared(context, test):
    """What is said to be meant passes: the copies have the very files of the original."""
    victim, image = saved(context, test, "mem-basic")
    prefix, args = test.dir / "pid", ("branch", "-D", image, "--copies", 2)
    context.ckpt().run(test, *args, code=codes.REFUSED)
    context.ckpt().run(test, *args, "--pidfiles", prefix, "--shared", victim.dir)
    copies = [Copy(victim, int(proc.read(f"{prefix}.{i}")), i) for i in (1, 2)]
    for copy in copies:
        test.cleanup(copy.end)
    for copy in copies:
        ours, theirs = (os.stat(f"{root}{victim.dir}") for root in ("", f"/proc/{copy.root}/root"))
        expect((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino), "it is another directory")


def names(context, test):
    """A socket's name outside of all layers is not taken from the original, which uses it."""
    victim, image = saved(context, test, "sock-stream")
    sockets = {path: path.lstat().st_ino for path in victim.dir.iterdir() if path.is_socket()}
    expect(sockets, "the victim has no socket in its directory")
    told = context.ckpt().run(test, "branch", "-D", image, "--copies", 2, code=codes.REFUSED).err
    expect("would take the name of the socket" in told, f"no socket is listed: {told}")
    expect(sockets == {path: path.lstat().st_ino for path in sockets}, "a socket was bound anew")
    victim.check("refused")


def upper(context, test):
    """What copies write is in a directory of the user's, and stays there; what was there is not touched."""
    victim, image = saved(context, test, "fd-basic")
    top, layer = test.dir / "upper", ("--layer", victim.dir)
    top.mkdir()
    args = ("branch", "-D", image, "--copies", 2, "--upper")
    context.ckpt().run(test, *args, top, "--layer", image, code=codes.REFUSED)
    expect(not list(top.iterdir()), "a branch that was refused has left directories")
    for path in (victim.dir, test.dir, victim.dir / "stderr"):
        context.ckpt().run(test, *args, path, *layer, code=codes.USAGE)
    copies = branched(context, test, victim, image, 2, "--upper", top)
    for copy in copies:
        copy.check("branched", 2)
        with open(copy.path("written"), "w", encoding="ascii") as file:
            file.write(str(copy.number))
        copy.end()
    found = [(path, proc.read(path)) for path in sorted(top.glob("*/1/upper/written"))]
    expect(found == [(top / str(i) / "1" / "upper" / "written", str(i)) for i in (1, 2)], f"written: {found}")
    context.ckpt().run(test, *args, top, *layer, code=codes.USAGE)
    expect(found == [(path, proc.read(path)) for path in sorted(top.glob("*/1/upper/written"))], "it is gone")
    victim.check("branched")


def without_room(context, test, victim, image):
    """ckpt may not have the memory of all tasks, only that of each: copies fill their own."""
    prefix = test.dir / "pid"

    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (48 << 20, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    # pylint: disable-next=subprocess-popen-preexec-fn
    done = subprocess.run([context.ckpt().binary, "branch", "-D", image, "--copies", "2", "--layer",
                           victim.dir, "--pidfiles", prefix, "-v"], preexec_fn=limit,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=codes.TIMEOUT, check=False)
    expect(done.returncode == 0, f"exit code {done.returncode}: {done.stderr}")
    expect("copies share no memory" in done.stderr, done.stderr)
    copies = [Copy(victim, int(proc.read(f"{prefix}.{i}")), i) for i in (1, 2)]
    for copy in copies:
        test.cleanup(copy.end)
    return copies


def memory(context, test):
    """What no copy has written to is there once; what one writes or gives back, no other sees."""
    victim, image = saved(context, test, "mem-copies")
    one = proc.pss(proc.tree(victim.pid))
    expect(one > 64 << 10, f"the victim has {one} KiB only")

    def used(copies):
        return sum(proc.pss(proc.tree(copy.first)) for copy in copies)
    copies = branched(context, test, victim, image, 4)
    expect(used(copies) < 2 * one, f"4 copies have {used(copies)} KiB, one has {one}")
    told = context.ckpt().run(test, "verify", "-t", copies[0].root, "-D", image, code=codes.DIFFERENT).out
    expect(not [line for line in told.splitlines() if re.match("mem[.](mm|vmas|pages|shared)", line)],
           f"verify: {told}")
    for number in (2, 3):
        for copy in copies:
            copy.check("branched", number)
    for copy in copies:
        copy.end()
    for copy in without_room(context, test, victim, image):
        copy.check("branched without room", 2)
        copy.end()
    apart = branched(context, test, victim, image, 4, "-o", "mem.share-copies=no")
    expect(used(apart) > 3 * one, f"without sharing 4 copies have {used(apart)} KiB, one has {one}")
    victim.check("branched")


def frames(pid, path):
    """{page: frame} of a process's own pages of a file that it has mapped."""
    line = next(line for line in proc.read(f"/proc/{pid}/maps").splitlines() if line.endswith(f" {path}"))
    start, end = (int(number, 16) // 4096 for number in line.split()[0].split("-"))
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        entries = struct.unpack(f"{end - start}Q", os.pread(file.fileno(), 8 * (end - start), 8 * start))
    # in memory, and not the file's
    return {page: entry & (1 << 55) - 1 for page, entry in enumerate(entries) if entry >> 61 == 4}


def files(context, test):
    """Private pages of a file are there once too, though each copy has mounts of its own. Without the option
    they are not even within a copy."""
    if os.stat("/").st_dev != os.stat("/usr/bin/bash").st_dev:
        raise Skip("/usr is not on the mount at /")
    victim, image = saved(context, test, "mem-forked-file")
    copies = branched(context, test, victim, image, 3)

    def shared():
        """Pages that all have; the kernel may be moving some."""
        return set.intersection(*(set(frames(copy.root, "/usr/bin/bash").items()) for copy in copies))
    proc.wait_until("copies have no pages of a file in common", lambda: len(shared()) > 60, 60)
    for copy in copies:
        copy.check("branched", 2)
    for copy in copies:
        copy.end()
    for copy in branched(context, test, victim, image, 2, "-o", "mem.share-files=no"):
        os.kill(copy.root, signal.SIGUSR1)
        told = proc.wait_until("no answer", lambda copy=copy: proc.read(copy.path("result")), 60)
        expect("is not shared" in told, f"without mem.share-files: {told}")
    victim.check("branched")


def program(test, *command, **streams):
    """Starts a program that ends with the test."""
    child = subprocess.Popen(command, cwd="/", start_new_session=True,
                             **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
                                "stderr": subprocess.DEVNULL, **streams})

    def end():
        child.kill()
        child.wait()
    test.cleanup(end)
    return child


def dumped(context, test, pid):
    """Its image; it goes on."""
    context.ckpt().dump(test, pid, test.dir / "image", "--leave-running")
    return test.dir / "image"


def kernel(context, test):
    """FIFOs, and what sets something of the machine's, are open for all copies alike."""
    fifo, setting = test.dir / "fifo", "/proc/sys/kernel/printk_ratelimit"
    os.mkfifo(fifo)
    streams = [os.open(path, flags) for path, flags in ((fifo, os.O_RDWR), (setting, os.O_WRONLY),
                                                        ("/sys/kernel/profiling", os.O_RDWR))]
    try:
        child = program(test, "sleep", "1000", **dict(zip(("stdin", "stdout", "stderr"), streams)))
    finally:
        for fd in streams:
            os.close(fd)
    proc.wait_until("no sleep", lambda: proc.read(f"/proc/{child.pid}/comm").strip() == "sleep")
    image = dumped(context, test, child.pid)
    told = context.ckpt().run(test, "branch", "-D", image, "--copies", 2, "--json", code=codes.REFUSED).out
    reasons = " ".join(blocker["reason"] for blocker in json.loads(told)["blockers"])
    for path in (fifo, setting, "/sys/kernel/profiling"):
        expect(str(path) in reasons, f"{path} is not listed: {reasons}")


def groups(context, test):
    """A group that is not ckpt's own."""
    _, image = saved(context, test, "cgroup")
    told = context.ckpt().run(test, "branch", "-D", image, "--copies", 2, "--layer", test.dir,
                              code=codes.REFUSED).err
    expect("would be the same for all copies" in told and "control group" in told, told)


OWN_ROOT = """set -e
mount -t tmpfs root "$1"
cd "$1"
mkdir usr proc old
for name in bin lib lib64; do ln -s usr/$name $name; done
mount --rbind /usr usr
mount -o remount,bind,ro usr
mount -t proc proc proc
pivot_root . old
umount -l old
cd /
"""


def mounts(context, test, script, shared_root):
    """A namespace that shows the machine's files shows them to all copies; one with its own root none."""
    root = test.dir / "root"
    root.mkdir()
    child = program(test, "unshare", "--mount", "sh", "-c", f"{script}exec sleep 1000", "sh", str(root))
    proc.wait_until("no sleep", lambda: proc.read(f"/proc/{child.pid}/comm").strip() == "sleep")
    args = ("branch", "-D", dumped(context, test, child.pid), "--copies", 2)
    if shared_root:
        for more, word in (((), "shows the machine's /,"),
                           (("--shared", "/", "--layer", test.dir), "without the layer")):
            told = context.ckpt().run(test, *args, *more, code=codes.REFUSED).err
            expect(word in told, f"{word!r} is not said: {told}")
        args += ("--shared", "/")
    prefix = test.dir / "pid"
    context.ckpt().run(test, *args, "--pidfiles", prefix)
    for number in (1, 2):
        copy = Copy(None, int(proc.read(f"{prefix}.{number}")), number)
        test.cleanup(copy.end)


def bound_ptmx(context, test):
    """Where /dev/ptmx is bound from the machine's devpts, that of a copy makes the copy's terminals."""
    victim, image = saved(context, test, "pty")
    prefix = test.dir / "pid"
    command(test, "unshare", "--mount", "sh", "-ec", 'mount --bind /dev/pts/ptmx /dev/ptmx; exec "$@"', "sh",
            context.ckpt().binary, "branch", "-D", image, "--copies", 2, "--layer", victim.dir,
            "--pidfiles", prefix)
    for number in (1, 2):
        copy = Copy(victim, int(proc.read(f"{prefix}.{number}")), number)
        test.cleanup(copy.end)
        copy.check("branched", 2)


def index(context, test):
    """What lies where the index file is to be is not opened: a FIFO would block."""
    victim, image = saved(context, test, "fd-basic")
    path = victim.dir / "CKPT_BRANCH"
    os.mkfifo(path, 0o600)
    os.chown(path, 1, 1)
    for copy in branched(context, test, victim, image, 2, "--index-file", path):
        with open(copy.path("CKPT_BRANCH"), encoding="ascii") as file:
            st = os.fstat(file.fileno())
            expect((st.st_mode, st.st_uid, file.read()) == (stat.S_IFREG | 0o444, 0, f"{copy.number}\n"),
                   f"{st}")
    expect(path.is_fifo(), "the one outside was replaced")


def short(context, test):
    """Roots that end as soon as they run are no failure, and all of the copies ends with them."""
    child = program(test, "sh", "-c", f"while [ ! -e {test.dir}/go ]; do :; done")
    proc.wait_until("no shell", lambda: proc.read(f"/proc/{child.pid}/comm").strip() == "sh")
    image = dumped(context, test, child.pid)
    (test.dir / "go").touch()
    mark = f"CKPT_TEST_BRANCH={test.dir}"
    done = subprocess.run(["env", "--ignore-signal=CHLD", mark, context.ckpt().binary, "branch", "-D", image,
                           "--copies", "2"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=codes.TIMEOUT, check=False)
    expect(done.returncode == 0, f"exit code {done.returncode}: {done.stderr}")
    proc.wait_until("a copy does not end", lambda: not marked(mark))


def marked(mark):
    """Processes that have this in their environment, and first processes of copies, which show none: of the
    latter those that ckpt has left to us, or that are its children. Others may be at work on the machine."""
    numbers = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    ours = [pid for pid in numbers if mark in proc.read(f"/proc/{pid}/environ")]
    return ours + [pid for pid in numbers if proc.read(f"/proc/{pid}/cmdline").rstrip("\0") == "ckpt-init"
                   and first(pid) in (os.getpid(), *ours)]


def left(victim):
    """Processes that run the victim's program on its directory."""
    word = f"\0{victim.dir}\0"
    return [int(pid) for pid in os.listdir("/proc")
            if pid.isdigit() and word in proc.read(f"/proc/{pid}/cmdline")]


def killed(context, test, kills):
    """ckpt dies at some moment: either all copies run or none is there, nor anything of ckpt's."""
    victim, image = saved(context, test, "pid-basic")
    tasks, mark = len(left(victim)), f"CKPT_TEST_BRANCH={test.dir}"
    pick, interrupted, outside = random.Random(context.seed), 0, killing.Outside()
    env = {**os.environ, "CKPT_TEST_BRANCH": str(test.dir)}

    def settled():
        proc.reap()
        ours = marked(mark)
        theirs = len(set(left(victim)) - set(ours)) - tasks
        return (not ours and not theirs) or (len(ours) == 2 and theirs == 2 * tasks)

    for _ in range(kills):
        with subprocess.Popen([context.ckpt().binary, "branch", "-D", str(image), "--copies", "2", "--layer",
                               str(victim.dir)], env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            dead = False
            try:
                child.wait(pick.uniform(0, 0.4))
            except subprocess.TimeoutExpired:
                child.kill()
                dead = child.wait() == -signal.SIGKILL
            interrupted += dead
        try:
            proc.wait_until("something is left", settled)
        except proc.Timeout as late:
            raise Failure(f"left: {marked(mark)}, of the tree {left(victim)}") from late
        stay = marked(mark)
        expect(dead or (child.returncode == 0 and len(stay) == 2),
               f"not killed, exit code {child.returncode}, {len(stay)} copies")
        for pid in stay:
            os.kill(pid, signal.SIGKILL)
        proc.wait_gone(stay)
        outside.expect_nothing("killed")
    victim.check("killed")
    return f"{kills} kills, {interrupted} of them at work, within 400 ms"


def tests(context):
    """Four copies of some scenarios, eight of one; what is refused."""
    for name in SCENARIOS:
        yield f"branch/{name}", lambda test, name=name: all_at_once(context, test, name, 4)
    for name in ("fd-ghost", "mem-nameless", "fd-basic", "sock-stream"):
        yield f"branch/{name}-generations", lambda test, name=name: generations(context, test, name)
    yield "branch/eight", lambda test: all_at_once(context, test, "fd-basic", 8)
    yield "branch/memory", lambda test: memory(context, test)
    yield "branch/files", lambda test: files(context, test)
    yield "branch/upper", lambda test: upper(context, test)
    yield "branch/layers", lambda test: layers(context, test, False)
    yield "branch/layers-upper", lambda test: layers(context, test, True)
    yield "branch/without-layers", lambda test: without_layers(context, test)
    yield "branch/again", lambda test: again(context, test)
    yield "branch/lineage", lambda test: lineage(context, test)
    yield "branch/refused", lambda test: refused(context, test)
    yield "branch/shared", lambda test: shared(context, test)
    yield "branch/names", lambda test: names(context, test)
    yield "branch/kernel", lambda test: kernel(context, test)
    yield "branch/groups", lambda test: groups(context, test)
    yield "branch/mounts", lambda test: mounts(context, test, "", True)
    yield "branch/own-root", lambda test: mounts(context, test, OWN_ROOT, False)
    yield "branch/bound-ptmx", lambda test: bound_ptmx(context, test)
    yield "branch/index", lambda test: index(context, test)
    yield "branch/short", lambda test: short(context, test)

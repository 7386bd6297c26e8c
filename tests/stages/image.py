# SPDX-License-Identifier: MIT
"""Images as untrusted input: damaged, mixed up and foreign ones end with exit 4 and one sentence."""
import fcntl
import os
import shutil
import subprocess

from lib import ckpt as codes
from lib import inventory, proc
from lib.context import command
from lib.killing import start
from lib.report import Failure, expect
from lib.victim import Victim


def image_of(context, test, scenario, name="image", preset="release"):
    """(victim, a new image of it); the victim goes on."""
    victim = Victim(test, context.scenario(scenario), test.dir / name / "victim")
    image = test.dir / name / "image"
    inventory.settle(victim.pid)
    context.ckpt(preset).dump(test, victim.pid, image, "-R")
    return victim, image


def fuzz(context, test, scenario):
    """Every message of a real image truncated and bit-flipped, under sanitizers."""
    victim, image = image_of(context, test, scenario)
    proc.kill_tree(victim.pid)
    out = command(test, context.tool("image-fuzz", "sanitize"), "-n", "2000", "-p",
                  context.build("sanitize") / "plugins", image)
    return (out.strip().splitlines() or [""])[-1]


# scenario, edit, what the image is refused with: number of the type, id, encoded fields
FORGED = (
    # a second record that no open file has: it would be used by those that refer to it, unplanned
    ("sock-stream", "+sock.img:3:0=08e0d403", "open file 60000 is no socket of a record sock.unix-end"),
    ("sock-stream", "+sock.img:2:0=08e0d403", "open file 60000 is no socket of a record sock.unix-listen"),
    ("sock-tcp", "+sock.img:1:0=08e0d403", "open file 60000 is no socket of a record sock.inet"),
    # the table of nftables that a restore deletes: "firewalld"
    ("sock-tcp", "sock.img:4:0=f201096669726577616c6c64", "not held by a table of ckpt's"),
    # an attachment that is not as long as the place that is kept for it
    ("ipc", "ipc.img:3:0=18808001", "mapping of segment"),
    # a call gate; a command that registers with nothing
    ("task-space", "task.img:3:2=9a010b0801110000080000ec0000", "segment 1"),
    ("task-space", "task.img:3:1=900101", "registration 0x1 for membarrier(2)"),
    # memory of nodes that no machine has, at a place where there is none
    ("numa", "task.img:2:1=a20106080212028008", "memory policy: node 1024"),
    ("numa", "mem.img:3:1=22080880201080401804", "memory policy of 1000: nothing is mapped"),
)


def forged(context, test, scenario):
    """Records that are well formed, but not what a dump writes."""
    victim, image = image_of(context, test, scenario)
    proc.kill_tree(victim.pid)
    for edit, sentence in [row[1:] for row in FORGED if row[0] == scenario]:
        run = subprocess.run([context.tool("image-fuzz"), "-e", edit, "-p",
                              context.build("release") / "plugins", image],
                             capture_output=True, text=True, timeout=codes.TIMEOUT, check=False)
        expect(run.returncode == codes.IMAGE and sentence in run.stderr,
               f"{edit}: {run.returncode}: {run.stderr[-300:]}")


def one_sentence(ckpt, test, image, what):
    """Exit 4, one line, nothing restored."""
    for args in (("restore", "-D", image, "-d"), ("restore", "-D", image, "--dry-run"),
                 ("verify", "-D", image)):
        run = ckpt.run(test, *args, code=None)
        if run.code != codes.IMAGE:
            raise Failure(f"{what}: {args[0]} ended with {run.code}: {run.err[-200:]}")
        expect(0 < len(run.err.strip().splitlines()) <= 2, f"{what}: it says: {run.err}")


def damaged(context, test):
    """Each file truncated, emptied, missing, and with one byte changed."""
    ckpt = context.ckpt("sanitize")
    _, image = image_of(context, test, "fd-basic")
    copy = test.dir / "copy"
    names = sorted(os.listdir(image))
    expect(len(names) >= 5, f"an image of {names}")

    def flip(path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)

    ways = {"missing": lambda path: path.unlink(), "empty": lambda path: path.write_bytes(b""),
            "half": lambda path: os.truncate(path, path.stat().st_size // 2), "flipped": flip}
    for name in names:
        for way, damage in ways.items():
            if not (image / name).stat().st_size:
                continue
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(image, copy)
            damage(copy / name)
            one_sentence(ckpt, test, copy, f"{name} {way}")
    return f"{len(names)} files"


def mixed_up(context, test):
    """A file of another image, and things that are no images."""
    ckpt = context.ckpt("sanitize")
    _, first = image_of(context, test, "fd-basic", "first")
    _, second = image_of(context, test, "fd-basic", "second")
    for name in sorted(os.listdir(first)):
        if (first / name).read_bytes() != (second / name).read_bytes():
            copy = test.dir / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(first, copy)
            shutil.copy(second / name, copy / name)
            one_sentence(ckpt, test, copy, f"{name} of another image")
    empty = test.dir / "empty"
    empty.mkdir()
    one_sentence(ckpt, test, empty, "an empty directory")
    one_sentence(ckpt, test, test.dir / "missing", "no directory")


def permissions(context, test):
    """0600 in 0700; not overwritten without --force; no image after a refusal."""
    victim, image = image_of(context, test, "mem-basic")
    expect(image.stat().st_mode & 0o777 == 0o700, f"the directory is {image.stat().st_mode:o}")
    for path in image.iterdir():
        expect(path.stat().st_mode & 0o777 == 0o600, f"{path.name} is {path.stat().st_mode:o}")
    ckpt = context.ckpt()
    again = ckpt.dump(test, victim.pid, image, "-R", code=None)
    expect(again.code != codes.OK, "an image was overwritten")
    expect("force" in again.err, f"it does not say how: {again.err}")
    victim.check("not overwritten")
    ckpt.dump(test, victim.pid, image, "-R", "--force")
    ckpt.verify(test, image, code=None)


def in_use(context, test):
    """An image is not replaced while it is read, nor read while it is replaced."""
    victim, image = image_of(context, test, "mem-basic")
    holder = os.open(image / "manifest.img", os.O_RDONLY)
    test.cleanup(lambda: os.close(holder))
    for kind, args in ((fcntl.LOCK_SH, ("dump", "-t", victim.pid, "-D", image, "-R", "--force")),
                       (fcntl.LOCK_EX, ("verify", "-D", image)),
                       (fcntl.LOCK_EX, ("restore", "-D", image, "-d"))):
        fcntl.flock(holder, kind)
        run = context.ckpt().run(test, *args, code=None)
        expect(run.code == codes.FAILED and "another ckpt" in run.err, f"{args[0]}: {run.code}: {run.err}")
    fcntl.flock(holder, fcntl.LOCK_UN)
    context.ckpt().verify(test, image)
    victim.check("whose image was in use")


def pid_taken(context, test):
    """A restore beside the running original: refused by name, and the original goes on."""
    victim, image = image_of(context, test, "mem-basic")
    run = context.ckpt().run(test, "restore", "-D", image, "-d", code=None)
    expect(run.code in (codes.FAILED, codes.REFUSED), f"it ended with {run.code}")
    expect(str(victim.pid) in run.err, f"the pid is not named: {run.err}")
    victim.check("beside a refused restore")


def same_twice(context, test):
    """Two dumps of one tree at rest give equal images for `ckpt diff`."""
    victim, first = image_of(context, test, "fd-basic")
    second = test.dir / "second"
    context.ckpt().dump(test, victim.pid, second, "-R")
    context.ckpt().run(test, "diff", first, second)
    shown = context.ckpt().run(test, "show", first, "--json").json()
    expect(shown, "show prints nothing")


def pages_of(image):
    """Bytes of memory in it; records have times of different lengths."""
    return sum(path.stat().st_size for path in image.glob("pages-*.raw"))


def ten_rounds(context, test, scenario):
    """Saved and restored ten times: ten equal images, and none grows once memory has been restored."""
    ckpt, victim, last = context.ckpt(), Victim(test, context.scenario(scenario)), None
    victim.check("built")
    sizes = []
    for number in range(10):
        image = test.dir / f"image{number}"
        inventory.settle(victim.pid)
        pids = proc.tree(victim.pid)
        ckpt.dump(test, victim.pid, image)
        proc.wait_gone(pids)
        sizes.append(pages_of(image))
        if last:
            ckpt.run(test, "diff", last, image)
            shutil.rmtree(last)
        victim.pid, last = ckpt.restore(test, image), image
    # how far a process has gone on is a matter of time, and may be a page or two
    expect(max(sizes[1:]) <= sizes[1] * 1.02, f"the image grows: {sizes}")
    victim.check("after ten rounds")


def start_holder(test, path):
    """A process that has the file open for appending."""
    with open(path, "a", encoding="ascii") as file:
        child = subprocess.Popen(["setsid", "sleep", "99999"], stdin=subprocess.DEVNULL, stdout=file,
                                 stderr=subprocess.DEVNULL, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    proc.wait_until("no sleep", lambda: proc.read(f"/proc/{child.pid}/comm").strip() == "sleep")
    return child


def foreground(context, test):
    """`ckpt restore` without -d ends as the root does."""
    victim, image = image_of(context, test, "mem-basic")
    proc.kill_tree(victim.pid)
    pidfile = test.dir / "pid"
    child = start(context.ckpt(), "restore", "-D", image, "--pidfile", pidfile)
    proc.wait_until("no pid file", lambda: proc.read(pidfile).strip())
    proc.wait_until("the root does not run", lambda: proc.exists(victim.pid))
    victim.check("restored in the foreground")
    for pid in proc.tree(victim.pid)[1:]:
        test.cleanup(proc.kill_tree, pid)
    os.kill(victim.pid, 15)
    code = child.wait(proc.PATIENCE)
    expect(code == 128 + 15, f"the root was killed by SIGTERM, ckpt ended with {code}")


def led_elsewhere(context, test):
    """What a symbolic link leads to by now is not opened for a program: the restore is refused."""
    place, secret = test.dir / "place", test.dir / "secret"
    place.mkdir()
    for path in (place / "log", secret):
        path.write_text("text\n")
    child = start_holder(test, place / "log")
    pids = proc.tree(child.pid)
    context.ckpt().dump(test, child.pid, test.dir / "image")
    proc.wait_gone(pids)
    for name, target in (("log", secret), ("", test.dir / "other")):
        link = place / name if name else place
        os.rename(link, test.dir / "other")
        os.symlink(target, link)
        run = context.ckpt().run(test, "restore", "-D", test.dir / "image", "-d", code=codes.FAILED)
        expect("symbolic link" in run.err or "no longer a regular file" in run.err, f"it says: {run.err}")
        link.unlink()
        os.rename(test.dir / "other", link)
    proc.kill_tree(context.ckpt().restore(test, test.dir / "image"))


def tests(context):
    """See the functions."""
    for scenario in ("fd-basic", "nested"):
        yield f"image/fuzz/{scenario}", lambda test, scenario=scenario: fuzz(context, test, scenario)
    for scenario in sorted({row[0] for row in FORGED}):
        yield f"image/forged/{scenario}", lambda test, scenario=scenario: forged(context, test, scenario)
    for scenario in ("pid-basic", "nested", "pty", "sock-stream", "mnt-user"):
        yield (f"image/ten-rounds/{scenario}",
               lambda test, scenario=scenario: ten_rounds(context, test, scenario))
    for function in (damaged, mixed_up, permissions, in_use, pid_taken, same_twice, foreground,
                     led_elsewhere):
        name = function.__name__.replace("_", "-")
        yield f"image/{name}", lambda test, function=function: function(context, test)

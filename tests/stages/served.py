# SPDX-License-Identifier: MIT
"""Files that a process answers for: of FUSE, and below a mark of fanotify. In the tree it is refused before
anything waits for it; outside it may hang, before the tree stands or while it does, and never holds it."""
import os
import signal
import stat
import subprocess
import time

from lib import ckpt as codes
from lib import proc
from lib.report import Failure, expect
from lib.victim import Victim

USES = ("file", "mapped", "cwd")
# a dump that waits for what does not come
HANGS = 30
# a filesystem is asked for 5 s, and while the tree stands given up after 10
SILENT, STANDING = 5, 10
SERVER, LISTENER, SILENCE = "fuse-server", "fanotify-permission", "silent-server"


def unharmed(victim, when):
    """It goes on, and nobody traces it."""
    proc.wait_until(f"{when}: it is traced", lambda: not any(tracer for _, tracer in
                                                             proc.states(victim.pid).values()))
    victim.check(when)


def refused(run, word):
    """By that word alone, which no loss can be allowed for."""
    listed = [(item["plugin"], item["feature"], item["allowable"]) for item in run.json()["blockers"]]
    expect(listed and set(listed) == {("engine", word, False)}, f"refused for {listed}")


def inside(context, test, mode, word):
    """All that looks at a tree refuses it, and does not look."""
    ckpt, other = context.ckpt(), Victim(test, context.scenario("mem-basic"), test.dir / "other")
    ckpt.dump(test, other.pid, test.dir / "other-image", "-R")
    victim = Victim(test, context.scenario("served"), args=[mode])
    victim.check("built")
    image = test.dir / "image"
    for words in (("dump", "-t", victim.pid, "-D", image), ("dump", "-t", victim.pid, "-D", image, "-R"),
                  ("dump", "-t", victim.pid, "--dry-run"),
                  ("verify", "-t", victim.pid, "-D", test.dir / "other-image")):
        refused(ckpt.run(test, *words, "--json", code=codes.REFUSED, timeout=HANGS), word)
        unharmed(victim, words[0])


def by_number(context, test, serves):
    """A server has the device, whatever that is called; a file may be called as the device is."""
    path = test.dir / "dev" / ("other" if serves else "fuse")
    path.parent.mkdir()
    if serves:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(10, 229))
    with open(path, "w+b" if not serves else "r+b", buffering=0) as file:
        child = subprocess.Popen(["sleep", "99999"], stdin=file, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    if serves:
        path.unlink()
    run = context.ckpt().run(test, "dump", "-t", child.pid, "-D", test.dir / "image", "-R", "--json",
                             code=codes.REFUSED if serves else 0, timeout=HANGS)
    if serves:
        refused(run, SERVER)


class Outside:
    """A server and a victim that uses its file, in a mount namespace of their own."""

    def __init__(self, context, test, use, how="answers"):
        program, self.test, self.dir = context.scenario("served"), test, test.dir / "victim"
        self.dir.mkdir()
        with open(test.log_path, "a", encoding="utf-8") as log:
            self.server = subprocess.Popen(["unshare", "-m", program, "serve", how, self.dir], stdout=log,
                                           stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        test.cleanup(self.end)
        proc.wait_until("no server", lambda: (self.dir / "serving").exists() or
                        self.server.poll() is not None)
        inside = ("nsenter", "-t", str(self.server.pid), "-m", "--")
        self.ckpt = context.ckpt(prefix=inside)
        self.victim = Victim(test, inside[0], self.dir, args=(*inside[1:], str(program), f"uses-{use}"))
        self.victim.check("built")

    def end(self):
        """Whoever still waits for it does not any more."""
        self.server.kill()
        self.server.wait()

    def hang(self, until_traced):
        """From now on, or from when the victim is traced."""
        (self.dir / "hang").write_text(str(self.victim.pid) if until_traced else "")
        # what the kernel remembers of the file
        time.sleep(0.1)

    def start(self, *args, groups=0):
        """ckpt, of which nobody knows when it ends: not while it waits for the server."""
        with (open(self.test.dir / "out", "w", encoding="utf-8") as out,
              open(self.test.dir / "err", "w", encoding="utf-8") as err):
            child = subprocess.Popen([*self.ckpt.prefix, self.ckpt.binary, *map(str, args)], stdout=out,
                                     stderr=err, stdin=subprocess.DEVNULL, cwd="/",
                                     extra_groups=range(100000, 100000 + groups))
        self.test.cleanup(child.wait)
        self.test.cleanup(child.kill)
        self.test.cleanup(self.end)
        return child

    def ended(self, child, seconds):
        """How; it does not hang."""
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired as expired:
            raise Failure("ckpt hangs") from expired
        out, err = [(self.test.dir / name).read_text(encoding="utf-8") for name in ("out", "err")]
        self.test.log(f"{child.args}\n{out}{err}[exit {code}]")
        return codes.Run(child.args, code, out, err)


def answers(context, test, use):
    """What is outside and alive is in nobody's way."""
    it = Outside(context, test, use)
    image = test.dir / "image"
    it.ckpt.dump(test, it.victim.pid, image, "-R")
    it.victim.check("still running")
    it.ckpt.verify(test, image)
    pids = proc.tree(it.victim.pid)
    it.ckpt.dump(test, it.victim.pid, image, "--force")
    proc.wait_gone(pids)
    it.victim.pid = it.ckpt.restore(test, image)
    it.victim.check("restored")


def silent(context, test, use, how):
    """It hangs already: that is known before the tree is stopped."""
    it = Outside(context, test, use, how)
    it.hang(False)
    run = it.ended(it.start("dump", "-t", it.victim.pid, "-D", test.dir / "image", "--json"), HANGS)
    expect(run.code == codes.REFUSED, f"it ended with {run.code}")
    refused(run, SILENCE)
    expect(not run.json()["frozen_us"], "the tree was stopped")
    unharmed(it.victim, "refused")
    child = it.start("dump", "-t", it.victim.pid, "--dry-run")
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    code = it.ended(child, SILENT - 2).code
    expect(code == codes.FAILED, f"interrupted, it ended with {code}")


def standing(context, test, use, how, sig, groups=0):
    """It hangs as soon as the tree stands: the tree goes on a moment after a signal, or ten seconds later;
    ckpt with it, unless the request was taken, which no signal ends."""
    it = Outside(context, test, use, how)
    it.hang(True)
    child = it.start("dump", "-t", it.victim.pid, "-D", test.dir / "image", "-R", groups=groups)
    # the server has noticed
    proc.wait_until("it was not asked", lambda: proc.read(it.dir / "hang") == "")
    time.sleep(0.5)
    expect(all(tracer for _, tracer in proc.states(it.victim.pid).values()), "the tree does not stand")
    if sig:
        child.send_signal(sig)
    begun = time.monotonic()
    proc.wait_until("it is not let go", lambda: not any(tracer for _, tracer in
                                                        proc.states(it.victim.pid).values()), HANGS)
    took = time.monotonic() - begun
    expect(took < (2.5 if sig else STANDING + 3), f"it was let go after {took:.1f} s")
    unharmed(it.victim, "let go")
    if how == "unanswered":
        it.end()
    run = it.ended(child, HANGS)
    expect(run.code == (-sig if sig == signal.SIGKILL else codes.FAILED), f"ckpt ended with {run.code}")
    expect(sig == signal.SIGKILL or "a filesystem has not answered for" in run.err, f"it says {run.err}")


def tests(context):
    """In the tree, outside and alive, and outside and not."""
    for use in (*USES, "idle"):
        yield f"served/inside-{use}", lambda test, use=use: inside(context, test, f"inside-{use}", SERVER)
    yield "served/other-name", lambda test: by_number(context, test, True)
    yield "served/like-a-device", lambda test: by_number(context, test, False)
    yield "served/decides", lambda test: inside(context, test, "decides", LISTENER)
    for use in USES:
        yield f"served/answers-{use}", lambda test, use=use: answers(context, test, use)
        for how in ("unread", "unanswered"):
            yield (f"served/silent-{use}-{how}",
                   lambda test, use=use, how=how: silent(context, test, use, how))
            yield (f"served/standing-{use}-{how}",
                   lambda test, use=use, how=how: standing(context, test, use, how, signal.SIGINT))
    for sig in (None, signal.SIGKILL):
        for how in ("unread", "unanswered"):
            yield (f"served/standing-{sig.name if sig else 'patience'}-{how}",
                   lambda test, how=how, sig=sig: standing(context, test, "file", how, sig))
        # they are in a file of /proc that tells how it is with a thread, before what matters
        yield (f"served/standing-{sig.name if sig else 'patience'}-groups",
               lambda test, sig=sig: standing(context, test, "file", "unanswered", sig, 3000))

# SPDX-License-Identifier: MIT
"""Signals for ckpt: too late, ignored by whoever started it, from a terminal, of a limit; unread messages."""
import fcntl
import os
import re
import resource
import signal
import subprocess

from lib import ckpt as codes
from lib import proc
from lib.report import expect
from lib.victim import Victim

PATIENCE = 120


def start(context, *args, **kwargs):
    """ckpt in a process group of its own, beside ours: stop signals of a terminal reach it."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return subprocess.Popen([context.ckpt().binary, *map(str, args)], process_group=0, cwd="/",
                            **(streams | kwargs))


def disturbed(context, test, call, position, command, *args):
    """ckpt, with a shell command in front of one of its calls; (exit code, how many of these calls)"""
    words = [str(context.tool("fault")), "-s", call, "-n", str(position), "-x", command, "-o",
             str(test.dir / "fault"), "-l", str(test.dir / "calls"), "--", context.ckpt().binary]
    done = subprocess.run([*words, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, process_group=0, timeout=PATIENCE, check=False, cwd="/")
    return done.returncode, (test.dir / "calls").read_text().split().count(call)


def saved(context, test, load="mem-basic"):
    """A victim and its image; it is dead."""
    victim, image = Victim(test, context.scenario(load)), test.dir / "image"
    victim.check("built")
    pids = proc.tree(victim.pid)
    # a root that ends leaves the others
    test.cleanup(lambda: [proc.kill_tree(pid) for pid in pids])
    context.ckpt().dump(test, victim.pid, image)
    proc.wait_gone(pids)
    return victim, image


def late(context, test):
    """A SIGTERM that comes when a restore cannot be called off any more is the tree's."""
    victim, image = saved(context, test)
    code, calls = disturbed(context, test, "ptrace", 0, "", "restore", "-D", image, "-d")
    expect(code == 0, f"undisturbed: {code}")
    proc.kill_tree(victim.pid)
    code, _ = disturbed(context, test, "ptrace", calls, "kill -TERM $FAULT_PID", "restore", "-D", image)
    expect(code == 128 + signal.SIGTERM, f"ckpt ended with {code}")


def ignored(context, test):
    """nohup(1): the restored tree is not ended by what ckpt was started to ignore."""
    victim, image = saved(context, test)
    with start(context, "restore", "-D", image,
               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as child:
        def waiting():
            caught = re.search(r"^SigCgt:\s+(\w+)$", proc.read(f"/proc/{child.pid}/status"), re.MULTILINE)
            return caught and int(caught[1], 16) & 1 << signal.SIGUSR1 - 1

        proc.wait_until("ckpt does not wait for the tree", waiting)
        child.send_signal(signal.SIGHUP)
        victim.check("after SIGHUP")
        os.kill(victim.pid, signal.SIGKILL)
        expect(child.wait(PATIENCE) == 128 + signal.SIGKILL, f"ckpt ended with {child.returncode}")


def stopped(context, test):
    """A terminal's stop key does not stop ckpt while it has a tree in its hands."""
    victim = Victim(test, context.scenario("mem-basic"))
    victim.check("built")
    code, _ = disturbed(context, test, "ptrace", 10, "kill -TSTP $FAULT_PID", "dump", "-t", victim.pid, "-D",
                        test.dir / "image", "-R")
    expect(code == 0, f"ckpt ended with {code}")
    victim.check("after SIGTSTP")


def no_children(context, test):
    """A parent that ignores SIGCHLD does not keep ckpt from waiting for its helpers."""
    victim, image = Victim(test, context.scenario("mnt-user")), test.dir / "image"
    victim.check("built")
    with start(context, "dump", "-t", victim.pid, "-D", image, "-R",
               preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)) as child:
        expect(child.wait(PATIENCE) == 0, f"ckpt ended with {child.returncode}")
    victim.check("saved")


def file_size(context, test):
    """A limit of file sizes is an error of the dump's, not its death."""
    victim = Victim(test, context.scenario("mem-basic"))
    victim.check("built")
    with start(context, "dump", "-t", victim.pid, "-D", test.dir / "image", "-R",
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))) as child:
        expect(child.wait(PATIENCE) == codes.FAILED, f"ckpt ended with {child.returncode}")
    victim.check("not saved")
    expect(not list((test.dir / "image").glob("*")), "files were left")


def small_stack(context, test):
    """A limit of stacks that is enough for small programs does not end ckpt in the middle."""
    victim, image = Victim(test, context.scenario("mem-basic")), test.dir / "image"
    victim.check("built")
    for args in (("dump", "-t", victim.pid, "-D", image), ("restore", "-D", image, "-d")):
        with start(context, *args, preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_STACK, (65536, resource.RLIM_INFINITY))) as child:
            expect(child.wait(PATIENCE) == 0, f"{args[0]} ended with {child.returncode}")
        if args[0] == "dump":
            proc.wait_gone([victim.pid])
    victim.check("restored")


def unread(context, test):
    """Nobody reads the messages while the tree stands still: it does not wait for that."""
    victim, image = Victim(test, context.scenario("mem-basic")), test.dir / "image"
    victim.check("built")
    ours, theirs = os.pipe()
    filler = b"." * fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    os.write(theirs, filler)
    with start(context, "dump", "-t", victim.pid, "-D", image, "-R", "-vvv", stderr=theirs) as child, \
            os.fdopen(ours, "rb") as messages:
        os.close(theirs)
        test.cleanup(lambda: proc.kill_tree(child.pid))
        proc.wait_until("no image while nobody reads", (image / "manifest.img").exists)
        victim.check("while nobody reads")
        text = messages.read()[len(filler):].decode()
        expect(child.wait(PATIENCE) == 0, f"ckpt ended with {child.returncode}")
    lines = text.splitlines()
    expect(len(text) > len(filler), f"{len(text)} bytes of messages")
    expect(all(line.startswith("ckpt: ") for line in lines), "messages are torn")


def tests(context):
    """See the functions."""
    for function in (late, ignored, stopped, no_children, file_size, small_stack, unread):
        name = function.__name__.replace("_", "-")
        yield f"signals/{name}", lambda test, function=function: function(context, test)

# SPDX-License-Identifier: MIT
"""Trees that cannot be saved (yet): refused by name, all reasons in one list, and nothing touched."""
import re
import subprocess
from concurrent import futures

from lib import ckpt as codes
from lib import hugepages, inventory, proc
from lib.report import Failure, expect
from lib.victim import Victim

# what a tree may hold all at once without getting in each other's way
COMBINED = ("inotify-queue", "netlink", "huge-shared", "pty-outside", "pidfd-outside", "userfaultfd",
            "net-details", "pipe-outside")

# what only the task itself can tell, or a trial that sends something: a dry run does not see it
INSIDE = ("semaphore-undo", "tcp-filtered")


def modes(context):
    """{mode: pattern of its blocker}"""
    out = subprocess.run([context.scenario("refuse"), "--list"], capture_output=True, text=True,
                         check=True).stdout
    return dict(line.split("\t") for line in out.splitlines())


def blockers(run):
    """The blockers of a refused dump as texts."""
    found = run.json().get("blockers", [])
    return [" ".join(str(item.get(key) or "") for key in
                     ("plugin", "feature", "task", "object", "reason")) for item in found]


def refused(context, test, names, patterns):
    """Dry run and dump say the same; the victim, looked at from inside and outside, is as before."""
    hugepages.lend(test, 4 if "memfd-huge" in names else 0)
    victim = Victim(test, context.scenario("refuse"), args=[",".join(names)])
    starter, victim.pid = victim.pid, int(victim.said("ready"))
    test.cleanup(proc.kill_tree, starter)
    ckpt, image = context.ckpt(), test.dir / "image"
    victim.check("built")
    before = inventory.take(victim.pid)
    inside = any(name in INSIDE for name in names)
    dry = ckpt.dump(test, victim.pid, image, "--dry-run", "--json",
                    code=0 if inside else codes.REFUSED)
    # what passes by itself elsewhere does not do so here
    at_once = ("--patience", "0")
    real = ckpt.dump(test, victim.pid, image, "--json", *at_once, code=codes.REFUSED)
    human = ckpt.dump(test, victim.pid, image, *at_once, code=codes.REFUSED)
    differences = inventory.differences(before, victim.pid)
    expect(not differences, f"the victim has changed: {differences[:1]}")
    victim.check("refused")
    listed = blockers(real)
    for name, pattern in zip(names, patterns):
        if not any(re.search(pattern, text) for text in listed):
            raise Failure(f"no blocker matches {pattern!r} ({name}): {listed}")
    expect(inside or sorted(blockers(dry)) == sorted(listed),
           f"--dry-run lists {blockers(dry)}, the dump {listed}")
    for item in real.json()["blockers"]:
        expect(item.get("object") and item["object"] in human.out + human.err,
               f"the text does not name {item.get('object')!r}")
        expect(item.get("reason"), f"no reason: {item}")
    expect(not (image / "manifest").exists(), "there is an image")


def all_at_once(context, test, patterns):
    """The list is complete."""
    refused(context, test, COMBINED, [patterns[name] for name in COMBINED])


def passing(context, test, what):
    """What passes by itself is waited for: the dump is refused until it has."""
    victim = Victim(test, context.scenario("passing"), args=[what])
    victim.check("built")
    ckpt, log, image = context.ckpt(), test.dir / "log", test.dir / "image"
    ckpt.dump(test, victim.pid, image, "--patience", "0", code=codes.REFUSED)
    with futures.ThreadPoolExecutor(1) as pool:
        dump = pool.submit(ckpt.dump, test, victim.pid, image, "--leave-running", "--patience", "100",
                           "--log-file", log)
        proc.wait_until("the dump does not try again",
                        lambda: "try again" in proc.read(log) or dump.done(), 60)
        victim.check("while it is tried")
        dump.result()
        expect("try again" in proc.read(log), "it was saved at once")
    victim.check("saved")


def tests(context):
    """One for each mode, and one with many."""
    try:
        patterns = modes(context)
    except OSError:
        return
    for name, pattern in patterns.items():
        yield (f"refuse/{name}",
               lambda test, name=name, pattern=pattern: refused(context, test, [name], [pattern]))
    for what in ("event", "connection", "creator"):
        yield f"refuse/passing-{what}", lambda test, what=what: passing(context, test, what)
    yield "refuse/all-at-once", lambda test: all_at_once(context, test, patterns)

# SPDX-License-Identifier: MIT
"""Real programs: each saved, killed, restored and checked five times in a row, and each left running."""
import os
import re
import shutil
from concurrent import futures

from apps.desktop_app import DESKTOPS
from apps.nginx_app import Nginx
from apps.node_app import Node
from apps.redis_app import Redis
from apps.services import Service
from apps.tmux_app import Tmux
from lib import proc, roundtrip
from lib.apart import apart
from lib.context import command
from lib.report import expect
from lib.victim import Victim
from stages.branch import first as first_process
from stages.scenario import directives, settings

# between two looks these change nothing of what ckpt verify compares; for programs at work see below
AT_REST = ("nested",)
# programs at work change these from one moment to the next
AT_WORK = (r"fds \d+ info: .*'pos: ", r"fds \d+ pipe queued")
# and these more: node's garbage collector maps and unmaps when it likes
MORE = {"node": (r"^\d+ maps ",)}

# desktops that are not too large for every run
ALWAYS = ("terminals", "chromium")
# how many copies of each at last, if not four
COPIES = {"working": 2}

# each in a container of its own
SERVICES = ("redis", "postgres", "nginx", "node", "tmux")


def service(context, test, name, rounds):
    """Left running once, then several rounds. What its processes do from one moment to the next is not
    compared: the service is asked."""
    victim, ckpt = Service(context, test, name), context.ckpt()
    victim.check("built")
    ckpt.dump(test, victim.pid, test.dir / "image", "--leave-running")
    victim.check("left running")
    for number in range(rounds):
        image, pids = test.dir / f"image{number}", proc.tree(victim.pid)
        ckpt.dump(test, victim.pid, image)
        proc.wait_gone(pids)
        victim.pid = ckpt.restore(test, image)
        victim.check(f"round {number}")
        shutil.rmtree(image)


def programs(context):
    """{name: function(test) that starts it}"""
    apps = context.source / "tests" / "apps"
    return {"redis": Redis,
            "tmux": Tmux,
            "nginx": Nginx,
            "node": Node,
            "python": lambda test: Victim(test, apps / "python_app.py"),
            "bash": lambda test: Victim(test, apps / "bash_app.py"),
            "asyncio": lambda test: Victim(test, apps / "asyncio_app.py"),
            "threads": lambda test: Victim(test, context.app("threads")),
            "nested": lambda test: Victim(test, context.scenario("nested")),
            "busy": lambda test: Victim(test, context.scenario("busy"), hold=True)}


def ignored(context, name):
    """Differences from outside that are the program's own doing."""
    source = context.source / f"tests/scenario/{name}.c"
    marked = settings(directives(source))["ignore"] if source.exists() else ()
    return [*AT_WORK, *MORE.get(name, ()), *marked]


def desktop(context, test, start, rounds, copies):
    """A whole desktop: never the same twice, so it is judged by what it can do. What passes by itself
    (a connection that is being made) is waited for. At last several copies of it."""
    victim = start(test, context.source)
    victim.check("built")
    for number in range(rounds):
        image = ended(context, test, victim, f"image{number}")
        victim.pid = context.ckpt().restore(test, image)
        victim.check(f"restored {number}")
        shutil.rmtree(image, ignore_errors=True)
    image = ended(context, test, victim, "image")
    all_at_once(test, copies_of(context, test, victim, image, copies, *home_of(victim)))
    return measured(test)


def weigh(test, roots):
    """For measured()."""
    test.log(f"memory {sum(proc.pss(proc.tree(root)) for root in roots) / 1024:.0f} MiB, "
             f"load average {os.getloadavg()[0]:.1f}")


def measured(test):
    """What the runs of a test took, least and most, for the table in docs/compatibility.md."""
    text = test.log_path.read_text(errors="replace")
    said = []
    for what, pattern, unit, scale in (
            ("stood still", r"the tree stood still for ([\d.]+) ms", "s", 1000),
            ("restored in", r"^restored: .*; ([\d.]+) ms", "s", 1000),
            ("branched in", r"^branched: .*; ([\d.]+) ms", "s", 1000),
            ("memory", r"^memory (\d+) MiB", "MiB", 1),
            ("load average", r", load average ([\d.]+)$", "", 1)):
        found = [float(value) / scale for value in re.findall(pattern, text, re.MULTILINE)]
        if found:
            said.append(f"{what} {min(found):.3g} to {max(found):.3g} {unit}".strip())
    return ", ".join(said)


def ended(context, test, victim, name):
    """The image of a desktop that is no more."""
    image, pids = test.dir / name, proc.tree(victim.pid)
    weigh(test, [victim.pid])
    context.ckpt().dump(test, victim.pid, image, *victim.dump_options)
    proc.wait_gone(pids)
    return image


def copies_of(context, test, victim, image, number, *args):
    """As many, by that."""
    prefix = test.dir / "pid"
    context.ckpt().run(test, "branch", "-D", image, "--copies", number, "--pidfiles", prefix, *args)
    return [victim.copied(int(proc.read(f"{prefix}.{i}")), i) for i in range(1, number + 1)]


def home_of(victim):
    """Of which each copy is to have its own."""
    return "--layer", victim.dir / "home"


def all_at_once(test, copies):
    """All that works is checked in all copies at once; what one is told, no other knows."""
    weigh(test, [one.pid for one in copies])
    with futures.ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(lambda one: one.check(f"copy {one.number}"), copies))
    for one in copies:
        one.tell()
    told = [one.told() for one in copies]
    expect(told == [str(one.number) for one in copies], f"the copies were told {told}")


def one_copy(context, test, start):
    """Of a desktop that is no more."""
    victim = start(test, context.source)
    victim.check("built")
    victim = copies_of(context, test, victim, ended(context, test, victim, "image"), 1, *home_of(victim))[0]
    test.cleanup(proc.kill_tree, first_process(victim.pid))
    victim.check("copy")
    return victim


def saved_inside(context, test, victim, image, *then):
    """By a ckpt in the copy's namespaces; `then`: what another one does there before they end, which they do
    when nobody is left."""
    # as the copy's first process knows it
    pid = re.search(r"^NSpid:.*\t(\d+)\t\d+$", proc.read(f"/proc/{victim.pid}/status"),
                    re.MULTILINE).group(1)
    pids = proc.tree(victim.pid)
    command(test, "/usr/bin/nsenter", "-a", "-t", first_process(victim.pid), "--", "/bin/sh", "-ec",
            'ckpt=$1; "$ckpt" dump -t "$2" -D "$3" $4; shift 4; [ $# = 0 ] || "$ckpt" "$@"', "sh",
            context.ckpt().binary, pid, image, " ".join(victim.dump_options), *then)
    proc.wait_gone(pids, 60)


def generations(context, test, start, number):
    """A copy that is saved in its namespaces and brought back beside its layer, again and again."""
    victim = one_copy(context, test, start)
    first = first_process(victim.pid)
    for generation in range(number):
        image = test.dir / f"generation{generation}"
        saved_inside(context, test, victim, image, "restore", "-D", image, "-d")
        victim.pid = proc.tree(first)[1]
        victim.check(f"generation {generation}")
        weigh(test, [victim.pid])
    return measured(test)


def descendants(context, test, start, number):
    """Copies of a copy that is no more, with what that has written into its home directory."""
    victim = one_copy(context, test, start)
    victim.inside("/bin/sh", "-c", "echo by the copy > /home/written")
    expect(not (victim.dir / "home" / "written").exists(), "a copy has written outside")
    saved_inside(context, test, victim, test.dir / "of-copy")
    copies = copies_of(context, test, victim, test.dir / "of-copy", number)
    all_at_once(test, copies)
    found = [one.home("written") for one in copies]
    expect(found == ["by the copy\n"] * number, f"the copies have {found}")
    return measured(test)


def tests(context):
    """Two for each program."""
    rounds = 2 if context.quick else 5
    for name, start in programs(context).items():
        ignore = ignored(context, name)
        yield (f"apps/{name}/{rounds}-rounds",
               lambda test, name=name, start=start, ignore=ignore: roundtrip.rounds(
                   context.ckpt(), test, start(test), rounds, ignore=ignore, verify=name in AT_REST))
        yield (f"apps/{name}/leave-running",
               lambda test, start=start, ignore=ignore: roundtrip.leave_running(
                   context.ckpt(), test, start(test), ignore=ignore))
    for name, start in DESKTOPS.items():
        if context.apps or name in ALWAYS:
            count = 10 if context.apps and not context.quick else 1
            copies = COPIES.get(name, 4)
            yield (f"apps/{name}/{count}-rounds-{copies}-copies",
                   lambda test, start=start, count=count, copies=copies: apart(
                       test, lambda test: desktop(context, test, start, count, copies)))
    if context.apps:
        for name in ALWAYS:
            yield (f"apps/{name}/8-copies",
                   lambda test, name=name: apart(
                       test, lambda test: desktop(context, test, DESKTOPS[name], 0, 8)))
            yield (f"apps/{name}/3-generations",
                   lambda test, name=name: apart(
                       test, lambda test: generations(context, test, DESKTOPS[name], 3)))
        for name in (*ALWAYS, "code"):
            yield (f"apps/{name}/4-copies-of-a-copy",
                   lambda test, name=name: apart(
                       test, lambda test: descendants(context, test, DESKTOPS[name], 4)))
    for name in SERVICES:
        yield (f"apps/{name}-in-a-container/{rounds}-rounds",
               lambda test, name=name: service(context, test, name, rounds))

# SPDX-License-Identifier: MIT
"""Real programs: each saved, killed, restored and checked five times in a row, and each left running."""
import shutil

from apps.desktop_app import Chromium, Terminals
from apps.nginx_app import Nginx
from apps.node_app import Node
from apps.redis_app import Redis
from apps.services import Service
from apps.tmux_app import Tmux
from lib import proc, roundtrip
from lib.victim import Victim
from stages.scenario import directives, settings

# between two looks these change nothing of what ckpt verify compares; for programs at work see below
AT_REST = ("nested",)
# programs at work change these from one moment to the next
AT_WORK = (r"fds \d+ info: .*'pos: ", r"fds \d+ pipe queued")
# and these more: node's garbage collector maps and unmaps when it likes
MORE = {"node": (r"^\d+ maps ",)}


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


def desktop(context, test, start, rounds):
    """A whole desktop: never the same twice, so it is judged by what it can do. What passes by itself
    (a connection that is being made) is waited for."""
    victim = start(test, context.source)
    victim.check("built")
    for number in range(rounds):
        image, pids = test.dir / f"image{number}", proc.tree(victim.pid)
        context.ckpt().dump(test, victim.pid, image, "--patience", "60", *victim.options)
        proc.wait_gone(pids, 60)
        victim.pid = context.ckpt().restore(test, image)
        victim.check(f"restored {number}")
        shutil.rmtree(image, ignore_errors=True)


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
    desktops = {"terminals": Terminals, **({"chromium": Chromium} if context.apps else {})}
    count = 10 if context.apps else 1
    for name, start in desktops.items():
        yield (f"apps/{name}/{count}-rounds",
               lambda test, start=start: desktop(context, test, start, count))
    for name in SERVICES:
        yield (f"apps/{name}-in-a-container/{rounds}-rounds",
               lambda test, name=name: service(context, test, name, rounds))

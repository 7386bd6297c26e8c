# SPDX-License-Identifier: MIT
"""ckpt in namespaces of its own: what it and its tree see there is not what the machine has."""
import subprocess

from lib import proc
from lib.report import expect

# the first process of a pid namespace: VICTIM, CKPT, DIR; whoever has ended is reaped while it waits
SAVED_WITHIN = """set -e; cd /
mkdir "$3/victim"
setsid "$1" "$3/victim" < /dev/null > /dev/null 2>&1 &
until test -e "$3/victim/ready" -o -e "$3/victim/failed"; do sleep 0.05; done
"$2" dump -t $! -D "$3/image"
"$2" restore -D "$3/image" -d --pidfile "$3/pid"
kill -USR1 $(cat "$3/pid")
until test -e "$3/victim/result"; do sleep 0.05; done
"""


def saved_within(context, test, scenario):
    """In a pid namespace whose pid_max is the one that new ones start with, as with systemd."""
    child = subprocess.Popen(["unshare", "-pf", "--mount-proc", "sh", "-c", SAVED_WITHIN, "sh",
                              context.scenario(scenario), context.ckpt().binary, test.dir],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             text=True, start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    _, errors = child.communicate(timeout=120)
    expect(not child.returncode, f"it ended with {child.returncode}: {errors}")
    answer = proc.read(test.dir / "victim" / "result").strip()
    expect(answer == "ok 1", f"the victim says: {answer}")


def tests(context):
    """One for each."""
    yield "within/pid-max", lambda test: saved_within(context, test, "pid-counters")

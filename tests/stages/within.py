# SPDX-License-Identifier: MIT
"""ckpt in namespaces of its own: what it and its tree see there is not what the machine has."""
import re
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


# CKPT, DIR: a program is shown to ckpt with a label, then ckpt to itself with the same
LABELLED = """cd /
label="$2/label"; echo "docker-default (enforce)" > "$label"
as() { sh -c 'mount --bind "$0" /proc/$$/attr/current && exec "$@"' "$label" "$@"; }
expect() { test $? = $1 || { echo "exit $?, not $1"; exit 1; }; }
setsid sh -c ': > "$0"; exec sleep 99999' "$2/ready" < /dev/null > /dev/null 2>&1 &
until test -e "$2/ready"; do sleep 0.05; done
mount --bind "$label" /proc/$!/task/$!/attr/current; expect 0
"$1" dump -t $! -D "$2/image"; expect 3
as "$1" dump -t $! -D "$2/image"; expect 0
"$1" restore -D "$2/image" -d; expect 5
as "$1" restore -D "$2/image" -d --pidfile "$2/pid"; expect 0
kill -9 $(cat "$2/pid")
"""


def labelled(context, test):
    """A label of a security module that ckpt has not got itself: refused, at the dump and at the restore."""
    child = subprocess.Popen(["unshare", "-m", "sh", "-c", LABELLED, "sh", context.ckpt().binary, test.dir],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    said, _ = child.communicate(timeout=120)
    test.log(said)
    expect(not child.returncode, said)
    for text in (r'attr/current: "docker-default \(enforce\)"', 'the tasks had the label "docker-default'):
        expect(re.search(text, said), f"nothing says {text!r}: {said}")


def tests(context):
    """One for each."""
    yield "within/pid-max", lambda test: saved_within(context, test, "pid-counters")
    yield "within/label", lambda test: labelled(context, test)

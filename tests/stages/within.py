# SPDX-License-Identifier: MIT
"""ckpt in namespaces of its own: what it and its tree see there is not what the machine has."""
import re
import subprocess

from lib import proc
from lib.report import Skip, expect

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
label="$2/label"; echo "docker-default (enforce)" > "$label"; echo unconfined > "$2/none"
as() { sh -c 'mount --bind "$0" /proc/$$/attr/current && exec "$@"' "$@"; }
expect() { r=$?; test $r = $1 || { echo "exit $r, not $1"; exit 1; }; }
setsid sh -c ': > "$0"; exec sleep 99999' "$2/ready" < /dev/null > /dev/null 2>&1 &
until test -e "$2/ready"; do sleep 0.05; done
mount --bind "$label" /proc/$!/task/$!/attr/current; expect 0
as "$2/none" "$1" dump -t $! -D "$2/image"; expect 3
as "$label" "$1" dump -t $! -D "$2/image"; expect 0
as "$2/none" "$1" restore -D "$2/image" -d; expect 5
as "$label" "$1" restore -D "$2/image" -d --pidfile "$2/pid"; expect 0
kill -9 $(cat "$2/pid")
"""


# CKPT, DIR: two filesystems of "the machine", and what a tree has of them
OUTSIDE = """cd /
one="$2/one"; two="$2/two"; mkdir "$one" "$two" "$2/shm"
mount -t tmpfs one "$one"; mount --make-shared "$one"; mount -t tmpfs two "$two"; mount --make-shared "$two"
expect() { r=$?; test $r = $1 || { echo "exit $r, not $1"; exit 1; }; }
start() {
    rm -f "$one/ready"
    setsid unshare -m --propagation slave sh -c "$1; : > $one/ready; exec sleep 99999" \\
        < /dev/null > /dev/null 2>&1 &
    until test -e "$one/ready"; do sleep 0.05; done
}
end() { pid=$(cat "$dir/pid"); kill -9 $pid; until test ! -e /proc/$pid; do sleep 0.05; done; }
restore() { "$ckpt" restore -D "$dir/image" -d --pidfile "$dir/pid" "$@"; }
ckpt=$1 dir=$2
start :
"$ckpt" dump -t $! -D "$dir/image"; expect 0
# another filesystem, one that is private by now, none
restore -o "mnt.external=$one:$two"; expect 0
end
mount --make-private "$one"
restore; expect 0
end
umount "$one"
restore; expect 1
mount -t tmpfs one "$one"; mount --make-shared "$one"
# as runtimes do: all of it, elsewhere
start "mount --make-rprivate /; mount --bind $two $dir/shm; echo content > $dir/shm/file"
"$ckpt" dump -t $! -D "$dir/image" --force; expect 3
"$ckpt" dump -t $! -D "$dir/image" --force -o "mnt.own=$dir/shm"; expect 0
rm "$two/file"; umount "$two"; mount -t tmpfs two "$two"
restore; expect 0
test "$(cat /proc/$(cat "$dir/pid")/root$dir/shm/file)" = content; expect 0
end
"""


# CKPT, DIR: systemd in a container: its group is the root of a namespace and has controllers for those below;
# then all of it goes, and the machine has no need of the controller any more
GROUPS = """cd /
ckpt=$1 dir=$2
root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
group="$root/ckpt-${dir##*/}"
mkdir -p "$group/init" "$dir/mnt" || exit 77
expect() { r=$?; test $r = $1 || { echo "exit $r, not $1"; gone; exit 1; }; }
gone() { rmdir "$group/init" "$group"; test -z "$was" || echo -hugetlb > "$root/cgroup.subtree_control"; }
grep -qw hugetlb "$root/cgroup.controllers" || { echo "no hugetlb"; gone; exit 77; }
grep -qw hugetlb "$root/cgroup.subtree_control" || was=off
echo +hugetlb > "$root/cgroup.subtree_control" || { gone; exit 77; }
setsid sh -c 'echo $$ > "$0/cgroup.procs"; exec unshare -Cm sh -c "echo \$\$ > $0/init/cgroup.procs
    echo +hugetlb > $0/cgroup.subtree_control; mount -t cgroup2 c $1/mnt; : > $1/ready; exec sleep 99999"
' "$group" "$dir" < /dev/null > /dev/null 2>&1 &
until test -e "$dir/ready"; do sleep 0.05; done
"$ckpt" dump -t $! -D "$dir/image"; expect 0
"$ckpt" restore -D "$dir/image" -d; expect 1
until gone; do sleep 0.05; done
"$ckpt" restore -D "$dir/image" -d --pidfile "$dir/pid"; expect 0
pid=$(cat "$dir/pid")
grep -qw hugetlb "$group/cgroup.subtree_control"; expect 0
grep -q "/init$" /proc/$pid/cgroup; expect 0
test $(stat -c %i "$group") = $(stat -c %i /proc/$pid/root$dir/mnt); expect 0
kill -9 $pid; until test ! -e /proc/$pid; do sleep 0.05; done
until gone; do sleep 0.05; done
"""


# CKPT, DIR: what a tree has of filesystems and namespaces that others had, have, or do not know any more
BORDERS = """cd /
ckpt=$1 dir=$2
for name in a ended named new one over two; do mkdir "$dir/$name"; done
mount -t tmpfs one "$dir/one"; mkdir "$dir/one/a" "$dir/one/lower"; : > "$dir/one/lower/file"
mount --bind "$dir/one/a" "$dir/a"
mount -t tmpfs two "$dir/two"; mkdir "$dir/two/upper" "$dir/two/work"
mount -t overlay over -o "lowerdir=$dir/one/lower,upperdir=$dir/two/upper,workdir=$dir/two/work,xino=off" \\
    "$dir/over" || exit 77
expect() { r=$?; test $r = $1 || { echo "exit $r, not $1"; exit 1; }; }
start() {
    rm -f "$dir/ready"
    setsid unshare $1 sh -c "$2; : > $dir/ready; exec sleep 99999" < /dev/null > /dev/null 2>&1 &
    until test -e "$dir/ready"; do sleep 0.05; done
}
dump() { "$ckpt" dump -t $! -D "$dir/image" --force "$@"; }
restore() { "$ckpt" restore -D "$dir/image" -d --pidfile "$dir/pid"; expect 0; pid=$(cat "$dir/pid"); }
end() { kill -9 $pid; until test ! -e /proc/$pid; do sleep 0.05; done; }
# a file of a lower layer has the device of no mount; its owner may take it off
start -Urm ": > $dir/file; mount --bind $dir/over/file $dir/file"
dump; expect 0; restore
nsenter -t $pid -U -m umount "$dir/file"; expect 0
end
# a namespace that is left out, with a filesystem that shows it
start -nm "mount -t sysfs new $dir/new"
dump --no-plugin net --allow-loss net --allow-loss ns.net; expect 0; restore; end
# one with a name
start -n :
: > "$dir/named/net"; mount --bind /proc/$!/ns/net "$dir/named/net"
dump; expect 3
# what ckpt does not see, and what nobody tells of
start -m "unshare -pf mount -t proc ended $dir/ended"
umount "$dir/over" "$dir/one"
dump; expect 3
"""


# CKPT, DIR: how many instances are left for root, and for another user, who has many
WATCHERS = """cd /
as() { setpriv --reuid 65533 "$@"; }
left='import ctypes, itertools
libc = ctypes.CDLL(None)
print(next(n for n in itertools.count() if libc.inotify_init1(0) < 0))'
many='import ctypes, pathlib, sys, time
libc = ctypes.CDLL(None)
for i in range(100):
    libc.inotify_add_watch(libc.inotify_init1(0), b"/etc", 2)
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)'
chmod 755 "$2"; mkdir -m 777 "$2/open"
test "$(as /usr/bin/python3 -c "$left")" -ge 110 || exit 77
setsid setpriv --reuid 65533 /usr/bin/python3 -c "$many" "$2/open/ready" < /dev/null > /dev/null 2>&1 &
until test -e "$2/open/ready"; do sleep 0.05; done
of_root=$(/usr/bin/python3 -c "$left"); of_user=$(as /usr/bin/python3 -c "$left")
"$1" dump -t $! -D "$2/image" && "$1" restore -D "$2/image" -d --pidfile "$2/pid" || exit
test "$(/usr/bin/python3 -c "$left")" -gt $((of_root - 50)) || { echo "they are root's"; exit 1; }
test "$(as /usr/bin/python3 -c "$left")" -lt $((of_user + 50)) || { echo "not his"; exit 1; }
kill -9 $(cat "$2/pid")
"""


# CKPT, DIR: started by something that has set what children and programs inherit
INHERITED = """cd /
odd='import ctypes, os, sys
libc = ctypes.CDLL(None)
for number in (41, 67):
    libc.prctl(number, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])'
setsid sh -c ': > "$0"; exec sleep 99999' "$2/ready" < /dev/null > /dev/null 2>&1 &
until test -e "$2/ready"; do sleep 0.05; done
grep -q "^THP_enabled:.1" /proc/$!/status || exit 77
"$1" dump -t $! -D "$2/image" || exit
/usr/bin/python3 -c "$odd" "$1" restore -D "$2/image" -d --pidfile "$2/pid" || exit
pid=$(cat "$2/pid")
grep -q "^THP_enabled:.1" /proc/$pid/status || { echo "it has PR_SET_THP_DISABLE of ckpt's"; exit 1; }
"$1" dump -t $pid -D "$2/again" || exit
"""


def script(context, test, text, *said):
    """In a pid and a mount namespace; what it is to say is given as expressions."""
    child = subprocess.Popen(["unshare", "-pfm", "--mount-proc", "sh", "-c", text, "sh",
                              context.ckpt().binary, test.dir],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    output, _ = child.communicate(timeout=120)
    test.log(output)
    if child.returncode == 77:
        raise Skip(f"not on this machine: {output}")
    expect(not child.returncode, output)
    for pattern in said:
        expect(re.search(pattern, output), f"nothing says {pattern!r}: {output}")


def labelled(context, test):
    """A label of a security module that ckpt has not got itself: refused, at the dump and at the restore."""
    script(context, test, LABELLED, r'attr/current: "docker-default \(enforce\)"',
           'the tasks had the label "docker-default')


def outside(context, test):
    """Places that lead elsewhere by now: groups that are none any more, filesystems that have gone."""
    script(context, test, OUTSIDE, "was in a group with a mount of ckpt's",
           "where a tmpfs was mounted, and nothing", "its files are in memory and not saved")


def inherited(context, test):
    """What ckpt was started with is not what a restored tree has."""
    script(context, test, INHERITED)


def watchers(context, test):
    """Instances of inotify count for the user who had them."""
    script(context, test, WATCHERS)


def groups(context, test):
    """Groups with controllers, and a mount of them, that come back from nothing."""
    script(context, test, GROUPS, "is here and has controllers")


def borders(context, test):
    """What is named, and comes back, of things that are not the tree's alone."""
    script(context, test, BORDERS, "named/net, which is outside the tree, is a name of it",
           "tmpfs is not made again, and no mount that ckpt sees itself shows it",
           "the namespace that it shows has ended")


def tests(context):
    """One for each."""
    yield "within/pid-max", lambda test: saved_within(context, test, "pid-counters")
    yield "within/label", lambda test: labelled(context, test)
    yield "within/outside", lambda test: outside(context, test)
    yield "within/groups", lambda test: groups(context, test)
    yield "within/borders", lambda test: borders(context, test)
    yield "within/watchers", lambda test: watchers(context, test)
    yield "within/inherited", lambda test: inherited(context, test)

# SPDX-License-Identifier: MIT
"""Trees that cannot be saved (yet): refused by name, all reasons in one list, and nothing touched."""
import os
import pathlib
import re
import socket
import struct
import subprocess
from concurrent import futures

from lib import ckpt as codes
from lib import hugepages, inventory, killing, proc
from lib.report import Failure, Skip, expect
from lib.victim import Victim, removed

# what a tree may hold all at once without getting in each other's way
COMBINED = ("inotify-queue", "netlink", "huge-shared", "pty-outside", "pidfd-outside", "userfaultfd",
            "net-details", "pipe-outside")

# what only the task itself or ptrace(2) can tell, or a trial that sends something: a dry run does not see it
INSIDE = ("semaphore-undo", "tcp-filtered", "keyring", "default-keyring", "no-execute-gain", "tls",
          "breakpoint", "32-bit-code", "ring-registered", "ring-second")


def modes(context, program):
    """{mode: pattern of its blocker}"""
    out = subprocess.run([context.scenario(program), "--list"], capture_output=True, text=True,
                         check=True).stdout
    return dict(line.split("\t") for line in out.splitlines())


def blockers(run):
    """The blockers of a refused dump as texts."""
    found = run.json().get("blockers", [])
    return [" ".join(str(item.get(key) or "") for key in
                     ("plugin", "feature", "task", "object", "reason")) for item in found]


def refused(context, test, names, patterns, program="refuse"):
    """Dry run and dump say the same; the victim, looked at from inside and outside, is as before."""
    hugepages.lend(test, 4 if "memfd-huge" in names else 0)
    victim = Victim(test, context.scenario(program), args=[",".join(names)])
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


# a connection through address translation, a router of multicast, a tap with a filter; then a file is made
NETWORK_PROGRAM = """
import ctypes, fcntl, os, pathlib, socket, struct, sys, time
server = socket.create_server(("127.0.0.1", 5300))
client = socket.create_connection(("10.0.0.1", 80))
accepted, _ = server.accept()
client.send(b"x"); accepted.recv(1); accepted.send(b"y"); client.recv(1)
router = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)
router.setsockopt(socket.IPPROTO_IP, 200, 1)
router.setsockopt(socket.IPPROTO_IP, 202, struct.pack("HBBI4s4s", 0, 0, 1, 0, b"\\x7f\\0\\0\\1", b"\\0" * 4))
tap = os.open("/dev/net/tun", os.O_RDWR)
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 65535))
fcntl.ioctl(tap, 0x400454ca, struct.pack("16sH22x", b"tap0", 0x1002))
fcntl.ioctl(tap, 0x401054d5, struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
other = os.open("/dev/net/tun", os.O_RDWR | os.O_APPEND)
fcntl.ioctl(other, 0x400454ca, struct.pack("16sH22x", b"tap1", 0x1002))
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)
"""
NETWORK = """set -e
ip link set lo up; ip addr add 10.0.0.2/32 dev lo; ip route add 10.0.0.1 dev lo
ip link add vx0 type vxlan id 5 dstport 4789
ip link add br0 type bridge; ip link add v0 numtxqueues 2 type veth peer name v1; ip link set v0 master br0
ip link set br0 up; ip link set v0 up; bridge mdb add dev br0 port v0 grp 239.1.2.3 permanent
tc qdisc add dev v0 root handle 5: mq
ip nexthop add id 5 blackhole
tc qdisc add dev v1 root handle 1: htb; tc class add dev v1 parent 1: classid 1:1 htb rate 1mbit
tc filter add dev v1 parent 1: protocol ip u32 match ip dst 1.2.3.4 flowid 1:1
nft 'add table ip n; add chain ip n o { type nat hook output priority 0; };
add rule ip n o ip daddr 10.0.0.1 tcp dport 80 dnat to 127.0.0.1:5300'
exec python3 -B -c "$1" "$2"
"""
# the other end of a device is open outside of the tree
NETWORK_HOLDER = """
import fcntl, os, pathlib, struct, sys, time
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", b"held0", 0x1002))
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)
"""
NETWORK_BLOCKERS = ("net tun-outside .*link held0", 'net link-kind .*"vxlan"', "net bridge-groups",
                    "net qdisc-kind .* mq 5: of link v0", "net tc-filter .*filters of .* htb 1: of link v1",
                    "net conntrack .*1 connections", "net multicast-routing",
                    "net nexthop .*next hop objects", "net tun-details .*filters",
                    r"open-flags .*fd \d+ .*/dev/net/tun")


def started(test, *command):
    """A process; its last argument is a file that it makes when it is ready."""
    ready = test.dir / f"ready-{command[0]}"
    child = subprocess.Popen([*map(str, command), ready], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    proc.wait_until("not built", lambda: ready.exists() or child.poll() is not None)
    expect(ready.exists(), f"not built: {child.poll() is not None and child.stderr.read()}")
    return child


def network(context, test):
    """What of a network namespace is not saved: refused by name, all at once."""
    child = started(test, "unshare", "-n", "sh", "-c", NETWORK, "sh", NETWORK_PROGRAM)
    started(test, "nsenter", "-t", child.pid, "-n", "python3", "-B", "-c", NETWORK_HOLDER)
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    listed = blockers(run)
    missing = [text for text in NETWORK_BLOCKERS if not any(re.search(text, item) for item in listed)]
    expect(not missing, f"no blockers {missing}: {listed}")


# {name: (what makes a time namespace for children only, what is said of it)}
CHILDREN = {
    "thread": ("""threading.Thread(target=lambda: (libc.unshare(0x80), made.set(), time.sleep(99999))).start()
made.wait()""", "one of its threads alone has made it"),
    "held": ("libc.unshare(0x10000000); libc.unshare(0x80); held = open('/proc/self/ns/time_for_children')",
             "a time namespace that a task in a user or time namespace has for its children"),
}


def children(context, test, program, reason):
    """Time namespaces for children only that cannot be made again."""
    child = started(test, "python3", "-B", "-c", f"""
import ctypes, pathlib, sys, threading, time
libc, made = ctypes.CDLL(None), threading.Event()
{program}
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)
""")
    # its messages go to the test
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--allow-loss", "fd.external",
                              code=codes.REFUSED)
    expect(reason in run.out + run.err, f"nothing says {reason!r}")


# the main thread alone goes to a namespace, and the other one stays in that of the machine
LEFT_PROGRAM = """
import ctypes, pathlib, sys, threading, time
libc = ctypes.CDLL(None)
libc.unshare(0x10000000)
threading.Thread(target=lambda: time.sleep(99999)).start()
libc.unshare(0x40000000)
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)
"""


def left(context, test):
    """A thread in a namespace that its user namespace has no say over, and that its main thread has left."""
    child = started(test, "python3", "-B", "-c", LEFT_PROGRAM)
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--allow-loss", "fd.external",
                              code=codes.REFUSED)
    expect("a net namespace that its main thread has left" in run.out + run.err, "nothing says it")


# a domain of execution, and a policy, that are not saved
ODD_PROGRAM = """
import ctypes, pathlib, struct, sys, time
libc = ctypes.CDLL(None)
libc.personality(8)
libc.syscall(314, 0, struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 1000000, 10000000, 100000000), 0)
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)
"""


def allowed(context, test):
    """Whoever allows a loss gets an image without what is lost, not one that nobody can restore."""
    child = started(test, "python3", "-B", "-c", ODD_PROGRAM)
    # its messages go to the test
    allow = ["--allow-loss", "fd.external"]
    # the one is seen from outside, and not for everyone to have; the other only the task can tell
    for feature in ("deadline", "personality")[os.sched_getscheduler(child.pid) != 6:]:
        run = context.ckpt().dump(test, child.pid, test.dir / "image", *allow, code=codes.REFUSED)
        expect(f"task.{feature}" in run.out + run.err, f"task.{feature} was not refused")
        allow += ["--allow-loss", f"task.{feature}"]
    context.ckpt().dump(test, child.pid, test.dir / "image", *allow)
    child.wait()
    # nobody could take that off again
    command = ["setpriv", "--no-new-privs", context.ckpt().binary, "restore", "-D", test.dir / "image"]
    run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    expect(run.returncode == codes.PRIVILEGE and "(no_new_privs), and ckpt has" in run.stderr,
           f"with no_new_privs: exit {run.returncode}, {run.stderr}")
    pid = context.ckpt().restore(test, test.dir / "image")
    test.cleanup(proc.kill_tree, pid)
    expect(int(proc.read(f"/proc/{pid}/personality"), 16) == 0 and os.sched_getscheduler(pid) == 0,
           "it is as odd as before")


# a filter that asks whoever has taken its listener
SUPERVISED_PROGRAM = """
import ctypes, os, pathlib, struct, sys, time
libc, ready = ctypes.CDLL(None), sys.argv[1]
libc.prctl(38, 1, 0, 0, 0)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 152), (6, 0, 0, 0x7fc00000), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *insn) for insn in code))
fd = libc.syscall(317, 1, 8, struct.pack("H6xQ", 4, ctypes.addressof(code)))
pathlib.Path(ready + "-fd").write_text(str(fd))
pathlib.Path(ready).touch()
while not os.path.exists(ready + "-taken"):
    time.sleep(0.01)
os.close(fd)
pathlib.Path(ready + "-closed").touch()
time.sleep(99999)
"""
# by a thread with descriptors of its own
SUPERVISOR_PROGRAM = """
import ctypes, os, pathlib, sys, threading, time
libc, task = ctypes.CDLL(None), os.pidfd_open(int(sys.argv[1]))
def hold():
    libc.unshare(0x400)
    if libc.syscall(438, task, int(sys.argv[2]), 0) >= 0:
        pathlib.Path(sys.argv[3]).touch()
    time.sleep(99999)
threading.Thread(target=hold).start()
"""


def supervised(context, test):
    """Whoever answers for a filter is outside, and only one of his threads shows it."""
    child = started(test, "python3", "-B", "-c", SUPERVISED_PROGRAM)
    ready = test.dir / "ready-python3"
    number = pathlib.Path(f"{ready}-fd").read_text(encoding="ascii")
    started(test, "env", "python3", "-B", "-c", SUPERVISOR_PROGRAM, child.pid, number)
    pathlib.Path(f"{ready}-taken").touch()
    proc.wait_until("the listener is open", pathlib.Path(f"{ready}-closed").exists, 60)
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    listed = blockers(run)
    expect(any("may be its supervisor" in item for item in listed), f"blockers: {listed}")


def frozen(context, test):
    """A group above is frozen, and somebody else with the tree."""
    mounts = [line.split() for line in proc.read("/proc/mounts").splitlines()]
    roots = [words[1] for words in mounts if words[2] == "cgroup2"]
    if not roots:
        raise Skip("no control groups of version 2")
    child = started(test, "python3", "-B", "-c",
                    "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(99999)")
    lines = proc.read("/proc/self/cgroup").splitlines()
    own = next(line[3:] for line in lines if line.startswith("0::"))
    above = pathlib.Path(roots[0] + own) / f"ckpt-test-frozen-{child.pid}"
    group = above / "below"
    try:
        group.mkdir(parents=True)
    except OSError as error:
        raise Skip(f"no control group can be made: {error}") from error
    test.cleanup(lambda: (proc.kill_tree(child.pid), [proc.wait_until(
        f"{path} is in use", lambda path=path: removed(path)) for path in (group, above)]))
    other = subprocess.Popen(["sleep", "99999"])
    test.cleanup(lambda: (other.kill(), other.wait()))
    (group / "cgroup.procs").write_text(str(child.pid))
    (above / "cgroup.procs").write_text(str(other.pid))
    (above / "cgroup.freeze").write_text("1")
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    listed = blockers(run)
    expect(any(re.search(f"cgroup frozen .*it is frozen, and process {other.pid}", item)
               for item in listed), f"{listed}")
    # who has just been let go is on its way back for a moment
    proc.wait_until("the group is thawed", lambda: "frozen 1" in (above / "cgroup.events").read_text())
    expect((above / "cgroup.freeze").read_text().strip() == "1", "the group was thawed")


# a connection whose other end has closed, at an address that is of this host no more
NONLOCAL = """set -e
ip link set lo up; ip addr add 10.9.0.1/32 dev lo; ip addr add 10.9.0.2/32 dev lo
echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind
exec python3 -B -c "$1" "$2"
"""
NONLOCAL_PROGRAM = """
import pathlib, socket, subprocess, sys, time
server = socket.create_server(("10.9.0.2", 5300))
client = socket.create_connection(("10.9.0.2", 5300), source_address=("10.9.0.1", 0))
server.accept()[0].close(); server.close()
assert client.recv(1) == b""
subprocess.run(["ip", "addr", "del", "10.9.0.2/32", "dev", "lo"], check=True)
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)
"""


def nonlocal_bind(context, test):
    """What bind(2) takes is not what belongs to the host."""
    child = started(test, "unshare", "-n", "sh", "-c", NONLOCAL, "sh", NONLOCAL_PROGRAM)
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    listed = blockers(run)
    expect(any("10.9.0.2 port 5300, is outside the tree" in item for item in listed), f"blockers: {listed}")


# keys of TCP_MD5SIG, for one address, at a socket that listens
SIGNED_PROGRAM = """
import pathlib, socket, struct, sys, time
server = socket.create_server(("127.0.0.1", 0))
server.setsockopt(socket.IPPROTO_TCP, 14, struct.pack("=HH4s120xBBHi80s", socket.AF_INET, 0,
                  socket.inet_aton("127.0.0.1"), 0, 0, 3, 0, b"key"))
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)
"""


def signed(context, test):
    """A socket whose segments are signed does not go on without the keys."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, 14, struct.pack(
                "=HH4s120xBBHi80s", socket.AF_INET, 0, socket.inet_aton("127.0.0.1"), 0, 0, 3, 0, b"key"))
        except OSError as error:
            raise Skip("a kernel without TCP_MD5SIG") from error
    child = started(test, "python3", "-B", "-c", SIGNED_PROGRAM)
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    expect(any("sock tcp-keys " in item for item in blockers(run)), f"blockers: {blockers(run)}")


URGENT_PROGRAM = """
import pathlib, socket, sys, time
one, other = socket.socketpair()
one.send(b"ab")
one.send(b"c", socket.MSG_OOB)
pathlib.Path(sys.argv[1]).touch()
time.sleep(99999)
"""


def urgent(context, test):
    """A look would take a stream's urgent byte for an ordinary one."""
    child = started(test, "python3", "-B", "-c", URGENT_PROGRAM)
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    expect(any("sock unix-urgent " in item for item in blockers(run)), f"blockers: {blockers(run)}")


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
                        lambda: "try again" in proc.read(log) or dump.done())
        victim.check("while it is tried")
        dump.result()
        expect("try again" in proc.read(log), "it was saved at once")
    victim.check("saved")


# one child reads what the next one, which is stopped later, makes without a pause
WATCHING = """
import ctypes, os, pathlib, sys, time
libc, ready = ctypes.CDLL(None), pathlib.Path(sys.argv[1])
os.dup2(1, 2)
place = ready.with_name("watched")
place.mkdir()
if not os.fork():
    watcher = libc.inotify_init1(0)
    libc.inotify_add_watch(watcher, bytes(place), 0x2)
    (place / "file").touch()
    while True:
        os.read(watcher, 65536)
while not (place / "file").exists():
    time.sleep(0.01)
if not os.fork():
    file = os.open(place / "file", os.O_RDWR)
    while True:
        os.pwrite(file, b"x", 0)
ready.touch()
os.wait()
"""


def watching(context, test):
    """Whoever has what passes by itself sees to it when all others stand."""
    child = started(test, "python3", "-B", "-c", WATCHING)
    context.ckpt().dump(test, child.pid, test.dir / "image")


def due(context, test, what):
    """Timers that go off meanwhile: each is to go off in the image, or its signal is pending."""
    victim, ckpt = Victim(test, context.scenario("passing"), args=[what]), context.ckpt()
    for number in range(4):
        last = number == 3
        image = test.dir / f"image-{number}"
        victim.check("armed")
        ckpt.dump(test, victim.pid, image, *(() if last else ("--leave-running",)))
        shown = ckpt.run(test, "show", image, "--plugin", "task").out
        # a periodic one that has gone off is to do so again in a day
        armed = sum(int(left) < 10 ** 13 for left in re.findall(r"value_ns: (\d+)", shown))
        gone_off = shown.count("pending[")
        test.log(f"round {number}: {armed} armed, {gone_off} gone off")
        expect(armed + gone_off == 400, f"round {number}: {armed} timers are armed, {gone_off} have gone off")
        if last:
            proc.wait_gone([victim.pid])
            victim.pid = ckpt.restore(test, image)
        victim.check("gone off")


def opener(context, test):
    """A file of /proc that tells more to who opened it with more privileges: ckpt would be that."""
    with open("/proc/kallsyms", encoding="ascii") as file:
        child = subprocess.Popen(["setpriv", "--reuid", "65534", "sleep", "99999"], stdin=file,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    proc.wait_until("no sleep", lambda: proc.read(f"/proc/{child.pid}/comm").strip() == "sleep")
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    expect(any("privileged opener" in item for item in blockers(run)), f"it is not named: {blockers(run)}")


OUTLIVED = ("mem", "maps", "smaps", "environ")
OUTLIVED_PROGRAM = """
import os, pathlib, sys
pathlib.Path(sys.argv[1]).touch()
for name in sys.argv[2:]:
    os.set_inheritable(os.open(f"/proc/self/{name}", os.O_RDONLY), True)
os.execlp("sleep", "sleep", "99999")
"""


def outlived(context, test):
    """Files of memory that an execve(2) has ended: by name they are those of another memory."""
    child = subprocess.Popen(["python3", "-B", "-c", OUTLIVED_PROGRAM, test.dir / "ready", *OUTLIVED],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             start_new_session=True, cwd="/")
    test.cleanup(proc.kill_tree, child.pid)
    proc.wait_until("no sleep", lambda: proc.read(f"/proc/{child.pid}/comm") == "sleep\n")
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    for name in OUTLIVED:
        expect(any(f"/proc/{child.pid}/{name})" in item and "before an execve(2)" in item
                   for item in blockers(run)), f"{name} is not named: {blockers(run)}")


def fixed(context, test):
    """Files that chattr(1) has closed to whoever would open them again."""
    names = [test.dir / "a", test.dir / "i"]
    with open(names[0], "w", encoding="ascii") as one, open(names[1], "w", encoding="ascii") as two:
        child = subprocess.Popen(["sleep", "99999"], stdin=subprocess.DEVNULL, stdout=one, stderr=two,
                                 start_new_session=True, cwd="/")
    test.cleanup(lambda: subprocess.run(["chattr", "-ai", *names], check=False))
    test.cleanup(proc.kill_tree, child.pid)
    for name in names:
        if subprocess.run(["chattr", f"+{name.name}", name], check=False).returncode:
            raise Skip("no such attributes here")
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--json", code=codes.REFUSED)
    for name, word in zip(names, ("append-only", "immutable")):
        expect(any(str(name) in item and word in item for item in blockers(run)), f"{blockers(run)}")


def segments(context, test):
    """More processes than segments of shared memory may be: it says what to raise."""
    child = started(test, "unshare", "-i", "sh", "-c",
                    "echo 2 > /proc/sys/kernel/shmmni; sleep 99999 & sleep 99999 & touch $0; wait")
    proc.wait_until("touch(1) stays", lambda: len(proc.tree(child.pid)) == 3)
    tree = proc.tree(child.pid)
    run = context.ckpt().dump(test, child.pid, test.dir / "image", "--allow-loss", "fd.external",
                              code=codes.REFUSED)
    expect("kernel.shmmni" in run.err, f"nothing says what to raise: {run.err}")
    proc.wait_until("it is still stopped", lambda: not killing.unsettled(child.pid))
    expect(proc.tree(child.pid) == tree, "the tree has changed")


def landlocked(context, test, kind):
    """Whoever is in a Landlock domain is refused, whoever could be is not; the domain is what is lost."""
    ckpt, tree = context.ckpt(), test.dir / "tree"
    victim = Victim(test, context.scenario("landlocked"), tree, args=[kind])
    victim.check("built")
    run = ckpt.dump(test, victim.pid, test.dir / "image", "-R", "--json", code=codes.REFUSED)
    expect(re.search("task landlock .*Landlock domain", " ".join(blockers(run))), f"{blockers(run)}")
    victim.check("refused")
    pids = proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, test.dir / "image", "--allow-loss", "task.landlock")
    proc.wait_gone(pids)
    ckpt.restore(test, test.dir / "image")
    expect("its sandbox is gone" in victim.ask(), "nothing was lost")
    free = Victim(test, context.scenario("landlocked"), test.dir / "free", args=[f"free-{kind}"])
    ckpt.dump(test, free.pid, test.dir / "free-image", "-R")
    free.check("not restricted")


def tests(context):
    """One for each mode, and one with many."""
    try:
        patterns, of_tasks = modes(context, "refuse"), modes(context, "refuse-task")
    except OSError:
        return
    for name, pattern in of_tasks.items():
        yield (f"refuse/{name}", lambda test, name=name, pattern=pattern:
               refused(context, test, [name], [pattern], "refuse-task"))
    for name, pattern in patterns.items():
        yield (f"refuse/{name}",
               lambda test, name=name, pattern=pattern: refused(context, test, [name], [pattern]))
    for what in ("event", "connection", "creator", "helper"):
        yield f"refuse/passing-{what}", lambda test, what=what: passing(context, test, what)
    yield "refuse/passing-watched", lambda test: watching(context, test)
    for what in ("timer", "periodic"):
        yield f"refuse/{what}-due", lambda test, what=what: due(context, test, what)
    for name, tree in CHILDREN.items():
        yield f"refuse/time-children-{name}", lambda test, tree=tree: children(context, test, *tree)
    yield "refuse/thread-left", lambda test: left(context, test)
    yield "refuse/allowed", lambda test: allowed(context, test)
    yield "refuse/supervised", lambda test: supervised(context, test)
    yield "refuse/frozen", lambda test: frozen(context, test)
    yield "refuse/unix-urgent", lambda test: urgent(context, test)
    yield "refuse/tcp-signed", lambda test: signed(context, test)
    yield "refuse/nonlocal-bind", lambda test: nonlocal_bind(context, test)
    yield "refuse/proc-opener", lambda test: opener(context, test)
    for kind in ("self", "root", "user", "container", "thread"):
        yield f"refuse/landlock-{kind}", lambda test, kind=kind: landlocked(context, test, kind)
    yield "refuse/outlived-memory", lambda test: outlived(context, test)
    yield "refuse/fixed-since", lambda test: fixed(context, test)
    yield "refuse/segments", lambda test: segments(context, test)
    yield "refuse/network", lambda test: network(context, test)
    yield "refuse/all-at-once", lambda test: all_at_once(context, test, patterns)

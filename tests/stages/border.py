# SPDX-License-Identifier: MIT
"""What leaves the tree: refused by name, or handled by an explicit option."""
import os
import pty
import re
import select
import socket
import subprocess
import threading

from lib import ckpt as codes
from lib import proc
from lib.report import Failure, expect
from lib.victim import Victim

# answers each line on its own, with what it has counted so far
ANSWERS = "n=0; while read -r line <&{0}; do n=$((n+1)); echo \"$n $line\" >&{1}; done"


class Outside:
    """A program that talks to us through two pipes."""

    def __init__(self, test):
        (ask, self.to), (self.answers, tell) = os.pipe(), os.pipe()
        child = subprocess.Popen(["/bin/bash", "-c", ANSWERS.format(ask, tell)],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, pass_fds=(ask, tell),
                                 start_new_session=True, cwd="/")
        child.returncode = 0
        self.pid = child.pid
        self.keys = [f"pipe:[{os.fstat(fd).st_ino}]" for fd in (ask, tell)]
        self.ends = (ask, tell)
        for fd in (ask, tell):
            os.close(fd)
        self.rounds = 0
        test.cleanup(lambda: proc.kill_tree(self.pid))

    def check(self):
        """One line there, one line back."""
        self.rounds += 1
        os.write(self.to, b"hello\n")
        answer = b""
        while not answer.endswith(b"\n"):
            expect(select.select([self.answers], [], [], proc.PATIENCE)[0], f"no answer but {answer!r}")
            answer += os.read(self.answers, 1)
        expect(answer == b"%d hello\n" % self.rounds, f"the answer is {answer!r}")

    def new_pipes(self):
        """Other pipes in place of the old ones; returns the ends for the tree."""
        os.close(self.to)
        os.close(self.answers)
        (ask, self.to), (self.answers, tell) = os.pipe(), os.pipe()
        return ask, tell


def pipes(context, test):
    """Refused; saved by -o fd.external; connected anew by -o fd.inherit, or all that is missing is listed."""
    ckpt, image, victim = context.ckpt(), test.dir / "image", Outside(test)
    victim.check()
    refused = ckpt.dump(test, victim.pid, image, code=codes.REFUSED)
    expect(all(key in refused.out + refused.err for key in victim.keys), "the pipes are not named")
    expect(f"process {os.getpid()} " in refused.out + refused.err, "we are not named")
    victim.check()
    external = [f"--option=fd.external={key}" for key in victim.keys]
    pids = proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, image, *external)
    proc.wait_gone(pids)
    missing = ckpt.run(test, "restore", "-D", image, "-d", code=codes.FAILED)
    expect(all(key in missing.err for key in victim.keys), f"not all is listed: {missing.err}")
    ends = victim.new_pipes()
    inherit = [f"--option=fd.inherit={key}:{fd}" for key, fd in zip(victim.keys, ends)]
    wrong = [f"--option=fd.inherit={key}:{fd}" for key, fd in zip(victim.keys, reversed(ends))]
    unfit = ckpt.run(test, "restore", "-D", image, "-d", *wrong, code=codes.FAILED, pass_fds=ends)
    expect(all(key in unfit.err for key in victim.keys), f"not all is listed: {unfit.err}")
    victim.pid = ckpt.restore(test, image, *inherit, pass_fds=ends)
    for fd in ends:
        os.close(fd)
    victim.check()
    victim.check()


JOB = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted\\n"))
with open(sys.argv[1], "w") as file:
    print(os.getpid(), file=file)
count = 0
for line in iter(sys.stdin.readline, "end\\n"):
    count += 1
    os.write(1, b"%d %s" % (count, line.encode()))
sys.exit(7)
"""


class Shell:
    """Somebody at a terminal with a shell; ckpt and its tree are jobs there."""

    def __init__(self, test):
        self.test = test
        self.pid, self.master = pty.fork()
        if not self.pid:
            os.closerange(3, 1024)
            os.execve("/bin/bash", ["bash", "--norc", "--noediting", "-i"],
                      {"PATH": os.environ["PATH"], "TERM": "dumb", "HISTFILE": "", "HOME": "/"})
        test.cleanup(proc.kill_tree, self.pid)
        self.type("stty -echo; PS1='ready> '")
        self.expect("ready> $")

    def type(self, line, end="\n"):
        """Presses keys."""
        os.write(self.master, (line + end).encode())

    def expect(self, pattern):
        """Reads until the screen shows that."""
        seen = ""
        while not re.search(pattern, seen):
            if not select.select([self.master], [], [], proc.PATIENCE)[0]:
                raise Failure(f"no {pattern!r} but {seen!r}")
            seen += os.read(self.master, 4096).decode()
        self.test.log(seen)


def shell_job(context, test):
    """A job, saved and restored in another shell's terminal: lines, Ctrl-C, Ctrl-Z, fg, end."""
    ckpt, image = context.ckpt(), test.dir / "image"
    (test.dir / "job.py").write_text(JOB)
    shell = Shell(test)
    shell.type(f"cd /; /usr/bin/python3 {test.dir}/job.py {test.dir}/pid")
    shell.type("one")
    shell.expect("1 one\r\n")
    pid = int((test.dir / "pid").read_text())
    refused = ckpt.dump(test, pid, image, code=codes.REFUSED)
    expect("--shell-job" in refused.out + refused.err, "the way out is not named")
    shell.type("two")
    shell.expect("2 two\r\n")
    ckpt.dump(test, pid, image, "--shell-job")
    shell.expect("Killed(.*\n)*ready> $")
    for options in ((), ("--shell-job",)):
        missing = ckpt.run(test, "restore", "-D", image, "-d", *options, code=codes.FAILED)
        expect("job of a shell" in missing.err, f"it is not said what is missing: {missing.err}")
    shell = Shell(test)
    shell.type(f"{ckpt.binary} restore --shell-job -D {image}")
    shell.expect("restored")
    shell.type("three")
    shell.expect("3 three\r\n")
    # python notices a signal that comes just before its read(2) only after it
    proc.wait_until("the job does not read", lambda: proc.read(f"/proc/{pid}/syscall").startswith("0 "))
    shell.type("\x03", "")
    shell.expect("interrupted\r\n")
    shell.type("\x1a", "")
    shell.expect("Stopped(.*\n)*.*ready> $")
    shell.type("fg")
    shell.expect("restore --shell-job.*\r\n")
    shell.type("four")
    shell.expect("4 four\r\n")
    shell.type("end")
    shell.expect("ready> $")
    shell.type("echo status $?")
    shell.expect("status 7\r\n")


def keep_connecting(path, stop):
    """Connects to a unix socket again and again, until `stop` is set; holds on to what it gets."""
    held = []
    while not stop.is_set():
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            client.connect(str(path))
        except OSError:
            client.close()
        else:
            held = [*held[-100:], client]
    for client in held:
        client.close()


def strangers(context, test):
    """Who connects to a socket while it is being restored gets nobody else's connection."""
    victim, image, stop = Victim(test, context.scenario("sock-stream")), test.dir / "image", threading.Event()
    ckpt, pids = context.ckpt(), proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, image)
    proc.wait_gone(pids)
    pests = [threading.Thread(target=keep_connecting, args=(victim.dir / "sub" / "relative", stop))
             for _ in range(2)]
    try:
        for pest in pests:
            pest.start()
        victim.pid = ckpt.restore(test, image)
    finally:
        stop.set()
        for pest in pests:
            pest.join()
    victim.check("restored with strangers at the door")


def listening_port(pid):
    """A TCP port that the process listens to."""
    open_there = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
    for line in proc.read(f"/proc/{pid}/net/tcp").splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in open_there:
            return int(fields[1].split(":")[1], 16)
    raise Failure("it does not listen")


def port_taken(context, test):
    """A port that somebody else listens to by now: refused before anything is touched, theirs too."""
    victim, image, ckpt = Victim(test, context.scenario("sock-tcp")), test.dir / "image", context.ckpt()
    port, pids = listening_port(victim.pid), proc.tree(victim.pid)
    ckpt.dump(test, victim.pid, image)
    proc.wait_gone(pids)
    with socket.create_server(("127.0.0.1", port)) as other:
        with socket.create_connection(("127.0.0.1", port)) as client:
            run = ckpt.run(test, "restore", "-D", image, "-d", code=codes.FAILED)
            expect(f"port {port} " in run.err and "in use" in run.err, f"it says: {run.err}")
            with other.accept()[0] as accepted:
                client.send(b"x")
                expect(accepted.recv(1) == b"x", "a connection of somebody else is gone")
    victim.pid = ckpt.restore(test, image)
    victim.check("restored when the port was free")


def tests(context):
    """One for each kind of border."""
    yield "border/pipes", lambda test: pipes(context, test)
    yield "border/strangers", lambda test: strangers(context, test)
    yield "border/port-taken", lambda test: port_taken(context, test)
    yield "border/shell-job", lambda test: shell_job(context, test)

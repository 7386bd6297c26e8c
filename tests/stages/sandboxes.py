# SPDX-License-Identifier: MIT
"""Programs that make namespaces for others: bubblewrap as an ordinary user, alone and as flatpak uses it;
unshare(1) in unshare(1). A scenario's victim runs in them."""
import os
import shutil
import subprocess

from lib import ckpt as codes
from lib import proc, roundtrip
from lib.report import Failure, Skip, expect
from lib.victim import Victim

USER = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
SANDBOX = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
           "--tmpfs", "/var/tmp", "--bind", "DIR", "DIR")
BUBBLEWRAP = USER + SANDBOX
EVERYTHING = ("unshare", "--map-root-user", "--mount-proc", "--fork", "-m", "-u", "-i", "-n", "-p", "-C",
              "-T")

# {name: (scenario, the words before the program; DIR is the victim's directory)}
SANDBOXES = {
    "bwrap": ("fd-basic", BUBBLEWRAP),
    # nobody in it may make a user namespace
    "bwrap-closed": ("fd-basic", BUBBLEWRAP + ("--unshare-user", "--disable-userns", "--cap-drop", "ALL",
                                               "--hostname", "closed", "--chdir", "/", "--new-session")),
    # binds of what is locked: flags of them are locked, they are not
    "bwrap-in-bwrap": ("fd-basic", BUBBLEWRAP + SANDBOX),
    # its loopback is down: not fd-basic
    "unshare-in-unshare": ("sock-stream", EVERYTHING + EVERYTHING),
}


class Inside(Victim):
    """A victim that others have started: it is asked, and they are its tree."""

    def __init__(self, test, program, words):
        directory = test.dir / "victim"
        directory.mkdir()
        directory.chmod(0o777)
        # where an ordinary user may go
        self.program = shutil.copy(program, directory)
        words = [str(directory) if word == "DIR" else word for word in words]
        super().__init__(test, words[0], directory, [*words[1:], self.program])

    def asked(self):
        """The program itself is further down."""
        for pid in proc.tree(self.pid):
            if proc.read(f"/proc/{pid}/cmdline").split("\0")[0] == self.program:
                return pid
        return self.pid


def sandboxed(context, test, scenario, words):
    """Left running, then twice over."""
    os.chmod(test.dir, 0o755)
    made = subprocess.run([str(test.dir) if word == "DIR" else word for word in words] + ["true"],
                          capture_output=True, text=True, timeout=codes.TIMEOUT, check=False, cwd="/")
    if made.returncode:
        allowed = subprocess.run([*USER, "unshare", "--user", "true"], check=False, cwd="/").returncode == 0
        raise (Failure if allowed else Skip)(f"no such sandbox on this machine: {made.stderr.strip()}")
    victim, ckpt = Inside(test, context.scenario(scenario), words), context.ckpt()
    roundtrip.leave_running(ckpt, test, victim)
    roundtrip.rounds(ckpt, test, victim, 2)


# a program that is saved and restored, in front of a machine that forbids to execute files in memory
HARDENED = """set -e
echo 2 > /proc/sys/vm/memfd_noexec
setsid sleep 99999 < /dev/null > /dev/null 2>&1 &
pid=$!
until grep -q sleep /proc/$pid/comm; do :; done
"$1" dump -t $pid -D "$2"
"$1" restore -d -D "$2"
kill -9 $pid
"""


def hardened(context, test):
    """vm.memfd_noexec=2, which a pid namespace may have for itself."""
    if proc.read("/proc/sys/vm/memfd_noexec", None) is None:
        raise Skip("a kernel without vm.memfd_noexec")
    done = subprocess.run(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", HARDENED,
                           "sh", context.ckpt().binary, str(test.dir / "image")], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120, check=False, cwd="/",
                          env=context.ckpt().env)
    test.log(done.stdout + done.stderr)
    expect(not done.returncode, f"it ended with {done.returncode}: {done.stderr}")


def tests(context):
    """One for each."""
    for name, (scenario, words) in SANDBOXES.items():
        def run(test, scenario=scenario, words=words):
            sandboxed(context, test, scenario, words)
        yield f"sandboxes/{name}", run
    yield "sandboxes/memfd-noexec", lambda test: hardened(context, test)

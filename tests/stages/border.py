# SPDX-License-Identifier: MIT
"""What leaves the tree: refused by name, or handled by an explicit option."""
import os
import select
import subprocess

from lib import ckpt as codes
from lib import proc
from lib.report import expect

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
            expect(select.select([self.answers], [], [], 10)[0], f"no answer but {answer!r}")
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


def tests(context):
    """One for each kind of border."""
    yield "border/pipes", lambda test: pipes(context, test)

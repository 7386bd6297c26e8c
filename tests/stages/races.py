# SPDX-License-Identifier: MIT
"""What a tree does while it is being stopped: in front of a given request of ckpt's (`fault -x`)."""
import re
import shutil
import subprocess

from lib import ckpt as codes
from lib import faulting, killing, proc
from lib.report import Failure, expect
from lib.victim import Victim

# for each of four threads some three requests in front of its stop, and as many after it; the first is for
# the leader, and not yet in front of a stop
SEIZING = {"tsync": (3, 6, 9, 12), "exec": (3, 6, 9, 12, 24), "filtered-exec": (3, 9, 15, 21, 24)}

# until it is done, or stands still, or hangs in execve(2): there is nothing more to come
GO = """touch {dir}/go
n=0
until [ -e {dir}/done ] || grep -qE '^State:.t' {task}/status || grep -q '^59 ' {task}/syscall ||
      [ $((n += 1)) -gt 3000 ]
do sleep 0.01; done"""


class Race:
    """A dump of a victim that goes on, disturbed at one place."""

    def __init__(self, context, test, victim):
        self.context, self.test, self.victim = context, test, victim
        self.image, self.outside = test.dir / "image", killing.Outside()

    def dump(self, *disturbance, after="--leave-running"):
        """(exit code, stderr, was the place reached)"""
        shutil.rmtree(self.image, ignore_errors=True)
        report = self.test.dir / "fault"
        command = [str(self.context.tool("fault")), "-o", str(report), *map(str, disturbance), "--",
                   self.context.ckpt().binary, "dump", "-t", str(self.victim.pid), "-D", str(self.image),
                   after]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="replace", timeout=faulting.PATIENCE, check=False, cwd="/")
        except subprocess.TimeoutExpired as expired:
            raise Failure(f"{disturbance}: ckpt hangs") from expired
        self.test.log(f"{' '.join(command)}: exit {done.returncode} {done.stderr}")
        return done.returncode, done.stderr, report.read_text().split()[1] != "-"

    def unharmed(self, what):
        """Nobody is stopped, and nothing of ckpt's is left."""
        try:
            proc.wait_until("tasks are still stopped or traced",
                            lambda: not killing.unsettled(self.victim.pid))
        except proc.Timeout as timeout:
            raise Failure(f"{what}: {timeout}") from timeout
        self.victim.check(what)
        self.outside.expect_nothing(what)


def raced(context, test, mode, position):
    """A victim whose last thread does something while the others are being stopped."""
    shutil.rmtree(test.dir / "victim", ignore_errors=True)
    victim = Victim(test, context.scenario("races"), args=[mode])
    victim.check("built")
    race = Race(context, test, victim)
    task = f"/proc/{victim.pid}/task/{victim.said('tid')}"
    # who shows a filter is the keeper's from the first request on
    of_whom = ["-c"] if mode == "filtered-exec" else []
    code, err, reached = race.dump(*of_whom, "-s", "ptrace", "-n", position, "-x",
                                   GO.format(dir=victim.dir, task=task))
    expect(reached, f"request {position}: there were not as many")
    return race, code, err


def tsync(context, test):
    """Threads that stand get a filter from one that does not yet: nobody calls what it kills for."""
    for position in SEIZING["tsync"]:
        race, code, err = raced(context, test, "tsync", position)
        expect(code == codes.OK, f"request {position}: exit {code}: {err}")
        expect((race.victim.dir / "done").exists(), f"request {position}: too late for a filter")
        race.unharmed(f"a filter at request {position}")
        race.victim.kill()


def execve(context, test, mode):
    """A thread executes a program while others of its task stand: saved, or refused for the moment."""
    for position in SEIZING[mode]:
        race, code, err = raced(context, test, mode, position)
        expect(code in (codes.OK, codes.REFUSED), f"request {position}: exit {code}: {err}")
        expect(code == codes.OK or "execve" in err, f"request {position}: it does not say why: {err}")
        proc.wait_until("it does not execute", (race.victim.dir / "done").exists)
        race.victim.checks = 0
        race.unharmed(f"execve(2) at request {position}")
        race.victim.kill()


def family(context, test, replaced):
    """A child dies after the list of children that has it was read, and before it is stopped: its own child
    is not missed, and a process that has got its number is no member of the tree."""
    looks = None
    # in front of the looks whether the root is there, and whether the child is: nobody is stopped, or only
    # the root; the last look is for the grandchild
    for before in (2, 1):
        shutil.rmtree(test.dir / "victim", ignore_errors=True)
        victim = Victim(test, context.scenario("races"), args=["family"])
        child = victim.said("child")
        command = f"kill -9 {child}; while [ -e /proc/{child} ]; do sleep 0.01; done"
        if replaced:
            command += f"; {context.scenario('races')} number {child} {victim.dir}"
        race = Race(context, test, victim)
        if looks is None:
            race.dump("-s", "access", "-n", 10 ** 6, after="--dry-run")
            looks = int((test.dir / "fault").read_text().split()[0])
        position = looks - before
        code, err, reached = race.dump("-s", "access", "-n", position, "-x", command)
        expect(reached and code == codes.OK, f"access {position}: exit {code}: {err}")
        shown = context.ckpt().run(test, "show", race.image, "--json").out
        pids = re.findall(r'"tids":\[(\d+)\]', shown)
        expect(victim.said("grandchild") in pids, f"access {position}: {pids} without the grandchild")
        expect(child not in pids, f"access {position}: {pids} with a stranger")
        if replaced:
            expect(proc.exists(int(child)), f"access {position}: the stranger is gone: {err}")
            (victim.dir / "stop").touch()
            proc.wait_until("the stranger stays", lambda child=child: not proc.exists(int(child)))
        race.unharmed(f"access {position}")
        victim.kill()


def ignored(context, test):
    """Signals that nobody would hear of come while a thread stands: it does not hear of them either."""
    victim = Victim(test, context.scenario("races"), args=["ignoring"])
    victim.check("built")
    race = Race(context, test, victim)
    # eight requests for the main thread; the other one is seized, then interrupted and looked at
    for position in (10, 11, 12):
        code, err, reached = race.dump("-s", "ptrace", "-n", position, "-x",
                                       f"kill -WINCH {victim.pid}; kill -USR2 {victim.pid}")
        expect(reached and code == codes.OK, f"request {position}: exit {code}: {err}")
        race.unharmed(f"signals at request {position}")


def tests(context):
    """See the functions."""
    yield "races/family", lambda test: family(context, test, False)
    yield "races/number", lambda test: family(context, test, True)
    yield "races/ignored", lambda test: ignored(context, test)
    yield "races/tsync", lambda test: tsync(context, test)
    for mode in ("exec", "filtered-exec"):
        yield f"races/{mode}", lambda test, mode=mode: execve(context, test, mode)

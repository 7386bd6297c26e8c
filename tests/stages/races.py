# SPDX-License-Identifier: MIT
"""What a tree does while it is being stopped: in front of a given request of ckpt's (`fault -x`)."""
import shutil
import subprocess

from lib import ckpt as codes
from lib import faulting, killing, proc
from lib.report import Failure, expect
from lib.victim import Victim

# some three requests for each of four threads, more if these are handed over; the first is for the
# leader, and not yet in front of a stop
SEIZING = {"tsync": (3, 6, 9, 12), "exec": (3, 6, 9, 12), "filtered-exec": (8, 16, 20, 24)}

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

    def dump(self, *disturbance):
        """(exit code, stderr, was the place reached)"""
        shutil.rmtree(self.image, ignore_errors=True)
        report = self.test.dir / "fault"
        command = [str(self.context.tool("fault")), "-o", str(report), *map(str, disturbance), "--",
                   self.context.ckpt().binary, "dump", "-t", str(self.victim.pid), "-D", str(self.image),
                   "--leave-running"]
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
    code, err, reached = race.dump("-s", "ptrace", "-n", position, "-x",
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


def tests(context):
    """See the functions."""
    yield "races/tsync", lambda test: tsync(context, test)
    for mode in ("exec", "filtered-exec"):
        yield f"races/{mode}", lambda test, mode=mode: execve(context, test, mode)

# SPDX-License-Identifier: MIT
"""System calls of ckpt are made to fail one by one (tests/tools/fault): whatever a dump or a restore makes
of it, the victim is unharmed, or nothing is left."""
import collections
import errno
import os
import re
import shutil
import signal
import subprocess

from lib import ckpt as codes
from lib import inventory, killing, proc
from lib.report import Failure, expect
from lib.victim import Victim

ERRORS = (errno.EIO, errno.ENOMEM, errno.EINTR, errno.EPERM)
# what calls give that give none of these, or more than these; no error that asks for another try alone:
# a call that is tried until it succeeds would do so with the next
OWN_ERRORS = {
    "clone3": (errno.EAGAIN, errno.ENOMEM), "clone": (errno.EAGAIN, errno.ENOMEM),
    "close": (errno.EIO, errno.ENOSPC), "fsync": (errno.EIO, errno.ENOSPC),
    "ftruncate": (errno.ENOSPC, errno.EFBIG), "kcmp": (errno.EPERM, errno.ESRCH),
    "kill": (errno.EPERM, errno.ESRCH), "lseek": (errno.EINVAL, errno.ENXIO),
    "mkdirat": (errno.ENOSPC, errno.EROFS), "mmap": (errno.ENOMEM, errno.EPERM),
    "mount": (errno.EPERM, errno.ENOMEM), "munmap": (errno.ENOMEM,), "mprotect": (errno.ENOMEM,),
    "openat": (errno.EMFILE, errno.EACCES, errno.ENOMEM, errno.EINTR),
    "pidfd_open": (errno.EMFILE, errno.ESRCH), "pipe2": (errno.EMFILE,),
    "ptrace": (errno.EPERM, errno.ESRCH, errno.EIO), "pwrite64": (errno.ENOSPC, errno.EIO, errno.EINTR),
    "renameat2": (errno.ENOSPC, errno.EXDEV), "setns": (errno.EPERM, errno.ENOMEM),
    "shmat": (errno.ENOMEM, errno.EACCES), "socketpair": (errno.EMFILE, errno.ENFILE),
    "write": (errno.ENOSPC, errno.EIO, errno.EINTR), "writev": (errno.ENOSPC, errno.EIO, errno.EINTR),
}
PATIENCE = 600  # seconds; each call of a traced program waits twice for a processor
# whose calls: the main thread's, the other threads', those of the processes that ckpt forks
MAIN, THREADS, CHILDREN = "main", "threads", "children"
PARTS = {MAIN: [], THREADS: ["-t"], CHILDREN: ["-c"]}
# and those that it lets tasks make: by a debug build (core/process/execute.c), always with ENOSYS
AGENTS = "agents"
# before this call the dynamic loader has neither a thread pointer nor a way to say what it lacks: without
# memory for its own tables it ends by SIGSEGV
LOADER_READY = "set_robust_list"
LOADER = 127  # how the dynamic loader ends a program that it cannot start
# all but "the original could not be resumed"; a configuration that cannot be read is a usage error
ALLOWED = {codes.OK, codes.FAILED, codes.USAGE, codes.REFUSED, codes.IMAGE, codes.PRIVILEGE, LOADER}


def inject(context, test, position, error, *args, part=MAIN, call=None, kill=False):
    """Runs ckpt with one failing call (of that name); (exit code, the names of all calls or of the failed
    one, stderr)."""
    report, names = test.dir / "fault", test.dir / "calls"
    command = [str(context.tool("fault")), "-n", str(position), "-e", str(error), "-o", str(report)]
    command += PARTS[part] + (["-k"] if kill else []) + (["-s", call] if call else [])
    command += [] if position else ["-l", str(names)]
    command += ["--", context.ckpt().binary, *map(str, args)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=PATIENCE, check=False, cwd="/")
    except subprocess.TimeoutExpired as expired:
        reached = (proc.read(report).split() or ["not reached"])[-1]
        raise Failure(f"call {position} ({reached}) failing with "
                      f"{errno.errorcode.get(error, 'SIGKILL')}: ckpt hangs") from expired
    found = report.read_text().split()[1] if position else names.read_text().split()
    return done.returncode, found, done.stderr


def scripted(context, test, position, *args):
    """The same for a call in a task."""
    ckpt = context.ckpt("sanitize")
    ckpt.env["CKPT_FAULT_CALL"] = str(position)
    done = ckpt.run(test, *args, *([] if position else ["-vv"]), code=None, timeout=PATIENCE)
    calls = re.findall(r"^.*\[\d+\] [^:]+: (\w+)\(", done.err, re.MULTILINE)
    expect(position or calls, f"no script is told of: {done.err[-300:]}")
    return done.code, "an agent's" if position else calls, done.err


def positions(calls, wanted):
    """At most `wanted` positions, evenly over the run."""
    step = max(1.0, calls / wanted)
    return sorted({int(1 + index * step) for index in range(min(calls, wanted))})


def files_of(victim):
    """The names below the victim's directory."""
    return {os.path.join(where, name) for where, directories, files in os.walk(victim.dir)
            for name in directories + files}


def says_why(err):
    """Does a message say what failed, and why?"""
    return any(re.match(r"ckpt: \S.*\w\S*$", line) for line in err.splitlines())


class Faults:
    """One victim, and runs of ckpt in each of which one call fails, of one part of it."""

    allowed = ALLOWED

    def __init__(self, context, test, scenario, part=MAIN):
        self.context, self.test, self.part = context, test, part
        # what the victim before has said is not this one's answer
        shutil.rmtree(test.dir / "victim", ignore_errors=True)
        self.victim = Victim(test, context.scenario(scenario))
        self.image = test.dir / "image"
        shutil.rmtree(self.image, ignore_errors=True)
        self.victim.check("built")
        self.before, self.pids = inventory.take(self.victim.pid), proc.tree(self.victim.pid)
        self.stopped = killing.unsettled(self.victim.pid)
        self.outside = killing.Outside()
        # did a call fail in the last run? Another run may make fewer
        self.calls, self.failed, self.runs, self.injected, self.said = [], 0, 0, True, ""

    def inject(self, position, error, *args, call=None):
        """One run of ckpt."""
        if self.part == AGENTS:
            same = [place for place, name in enumerate(self.calls, 1) if name == call]
            return scripted(self.context, self.test, same[position - 1] if call else position, *args)
        return inject(self.context, self.test, position, error, *args, part=self.part, call=call)

    def undisturbed(self, *args):
        """The names of the calls that a run makes."""
        code, self.calls, err = self.inject(0, 0, *args)
        expect(code == 0, f"without a fault it ended with {code}: {err}")

    def loading(self, position, call):
        """Is it a call of the dynamic loader's, before it is ready?"""
        if self.part != MAIN:
            return False
        of_loader = self.calls[:self.calls.index(LOADER_READY)]
        return position <= (of_loader.count(call) if call else len(of_loader))

    def disturbed(self, position, error, call, *args):
        """One run; its exit code, and what was done."""
        code, name, err = self.inject(position, error, *args, call=call)
        error = errno.ENOSYS if self.part == AGENTS else error
        what = f"call {position} of {len(self.calls)} ({name}) failing with {errno.errorcode[error]}"
        self.test.log(f"{what}: exit {code} {err.strip()[-300:]}")
        self.said = err
        self.runs += 1
        self.injected = name != "-"
        self.failed += code != 0
        if code == -signal.SIGSEGV and self.loading(position, call):
            return code, what
        expect(code in self.allowed, f"{what}: ckpt ended with {code}: {err[-200:]}")
        expect(code in (codes.OK, codes.DIFFERENT, LOADER) or says_why(err),
               f"{what}: ckpt ended with {code} and does not say why: {err[-200:]!r}")
        return code, what

    def end(self):
        """Kills the victim, whoever it is by now."""
        self.victim.kill()

    def __str__(self):
        return f"{self.runs} of {len(self.calls)} calls, {self.failed} runs failed"


class Dump(Faults):
    """ckpt dump --leave-running"""

    def __init__(self, context, test, scenario, part=MAIN):
        super().__init__(context, test, scenario, part)
        self.args = ("dump", "-t", self.victim.pid, "-D", self.image, "--leave-running")
        self.undisturbed(*self.args)
        self.unharmed("without a fault")
        self.records = self.saved()

    def saved(self):
        """The kinds and numbers of the records of the image."""
        shown = self.context.ckpt().run(self.test, "show", self.image).out
        return set(re.findall(r"^\w+\.[\w-]+ \d+$", shown, re.MULTILINE))

    def unharmed(self, what):
        """The victim, from outside and inside, is as it was."""
        try:
            proc.wait_until("tasks are still stopped or traced",
                            lambda: killing.unsettled(self.victim.pid) == self.stopped)
        except proc.Timeout as timeout:
            raise Failure(f"{what}: {timeout}") from timeout
        differences = inventory.differences(self.before, self.victim.pid)
        expect(not differences, f"{what}: the victim has changed: {differences[:1]}")
        self.victim.check(what)
        self.outside.expect_nothing(what)
        self.before = inventory.take(self.victim.pid)

    def fault(self, position, error, call=None):
        """Makes one call fail."""
        shutil.rmtree(self.image, ignore_errors=True)
        code, what = self.disturbed(position, error, call, *self.args)
        self.unharmed(what)
        if not code:
            # a plugin that could not be loaded is warned of, and what needs it would have been refused
            missing = {record for record in self.records - self.saved()
                       if f"plugin {record.partition('.')[0]} not loaded" not in self.said}
            expect(not missing, f"{what}: not in the image: {sorted(missing)[:3]}")


class Verify(Dump):
    """ckpt verify, of a tree that goes on"""

    # the victim's check of itself changes its memory
    allowed = ALLOWED | {codes.DIFFERENT}

    def __init__(self, context, test, scenario, part=MAIN):
        super().__init__(context, test, scenario, part)
        self.args = ("verify", "-D", self.image)
        context.ckpt().run(test, *self.args, code=None)
        self.answer, self.calls, err = self.inject(0, 0, *self.args)
        expect(self.answer in (codes.OK, codes.DIFFERENT),
               f"without a fault it ended with {self.answer}: {err}")

    def fault(self, position, error, call=None):
        """Makes one call fail."""
        code, what = self.disturbed(position, error, call, *self.args)
        expect(code not in {codes.OK, codes.DIFFERENT} - {self.answer} or "not loaded" in self.said,
               f"{what}: ckpt ended with {code}, and with {self.answer} without a fault")
        self.unharmed(what)


class Restore(Faults):
    """ckpt restore: nothing is left of a failed one. A copy is looked at from outside only: a check may
    change files, and the next copy comes from the same image."""

    def __init__(self, context, test, scenario, part=MAIN):
        super().__init__(context, test, scenario, part)
        self.args = ("restore", "-D", self.image, "-d")
        context.ckpt().dump(test, self.victim.pid, self.image)
        proc.wait_gone(self.pids)
        self.files, self.outside = files_of(self.victim), killing.Outside()
        self.undisturbed(*self.args)
        proc.kill_tree(self.victim.pid)

    def fault(self, position, error, call=None):
        """Makes one call fail."""
        code, what = self.disturbed(position, error, call, *self.args)
        if code:
            try:
                proc.wait_gone(self.pids)
            except proc.Timeout as timeout:
                raise Failure(f"{what}: {timeout}") from timeout
        else:
            differences = inventory.differences(self.before, self.victim.pid)
            expect(not differences, f"{what}: the copy differs: {differences[:1]}")
            proc.kill_tree(self.victim.pid)
        new = files_of(self.victim) - self.files
        expect(not new, f"{what}: files are left: {sorted(new)[:3]}")
        self.outside.expect_nothing(what)


class Killed(Dump):
    """ckpt dump, killed by SIGKILL in front of one of its calls"""

    def fault(self, position, error, call=None):
        """Kills one run; `error` is of no use here."""
        shutil.rmtree(self.image, ignore_errors=True)
        code, name, err = inject(self.context, self.test, position, 0, *self.args, call=call, kill=True)
        what = f"killed at call {position} of {len(self.calls)} ({call or name})"
        self.test.log(f"{what}: exit {code}")
        self.victim.excusable += code == -signal.SIGKILL
        self.runs += 1
        self.failed += code != 0
        # it can have ended before that call
        expect(code == -signal.SIGKILL or (code, name) == (codes.OK, "-"),
               f"{what}: ckpt ended with {code}: {err[-200:]}")
        self.unharmed(what)


class Ended:
    """ckpt killed by SIGKILL in front of one of its calls while it lets a tree go, or ends it: the tree is
    there whole, or not at all"""

    def killed(self, position, call):
        """Kills one run; is the tree there?"""
        code, _, err = inject(self.context, self.test, position, 0, *self.args, call=call, kill=True)
        what = f"killed at call {position} of {self.calls.count(call)} times {call}"
        self.test.log(f"{what}: exit {code}")
        self.runs += 1
        self.failed += code != 0
        expect(code in (-signal.SIGKILL, codes.OK), f"{what}: ckpt ended with {code}: {err[-200:]}")
        there = killing.whole_or_gone(self.victim, self.pids, what)
        if there:
            differences = inventory.differences(self.before, self.victim.pid)
            expect(not differences, f"{what}: the tree differs: {differences[:1]}")
        return there


class EndedRestore(Ended, Restore):
    """ckpt restore"""

    def fault(self, position, error, call=None):
        """Kills one run; `error` is of no use here."""
        if self.killed(position, call):
            proc.kill_tree(self.victim.pid)
        self.outside.expect_nothing("after that")


class EndedDump(Ended, Faults):
    """ckpt dump that kills the tree: it comes back from the image, so that there is one for the next run"""

    def __init__(self, context, test, scenario, part=MAIN):
        super().__init__(context, test, scenario, part)
        self.args = ("dump", "-t", self.victim.pid, "-D", self.image)
        self.undisturbed(*self.args)
        self.come_back()

    def come_back(self):
        """The image is whole."""
        proc.wait_gone(self.pids)
        self.context.ckpt().restore(self.test, self.image)
        shutil.rmtree(self.image)

    def fault(self, position, error, call=None):
        """Kills one run; `error` is of no use here."""
        if self.killed(position, call):
            shutil.rmtree(self.image, ignore_errors=True)
        else:
            self.come_back()


class Orphaned(Dump):
    """ckpt dump of which a child is killed by SIGKILL in front of one of its calls"""

    def __init__(self, context, test, scenario):
        super().__init__(context, test, scenario, CHILDREN)

    def fault(self, position, error, call=None):
        """Kills one; `error` is of no use here."""
        shutil.rmtree(self.image, ignore_errors=True)
        code, name, err = inject(self.context, self.test, position, 0, *self.args, part=self.part, call=call,
                                 kill=True)
        what = f"a child killed at call {position} of {len(self.calls)} ({call or name})"
        self.victim.excusable += name != "-"
        self.test.log(f"{what}: exit {code} {err.strip()[-300:]}")
        self.runs += 1
        self.failed += code != 0
        expect(code in self.allowed and (not code or says_why(err)), f"{what}: ckpt ended with {code}: {err}")
        self.unharmed(what)


def sample(kind, context, test, scenario, wanted, *part):
    """Some calls, evenly over the run, with one error after the other."""
    faults = kind(context, test, scenario, *part)
    for index, position in enumerate(positions(len(faults.calls), wanted)):
        faults.fault(position, ERRORS[index % len(ERRORS)])
    return str(faults)


def spread(calls, most):
    """Which of the calls of each name to fail: at most `most` of them, evenly over the run; all with None."""
    made = collections.Counter(name for name in calls if name != "-")
    return {name: positions(number, most or number) for name, number in made.items()}


def complete(kind, context, test, scenario, most):
    """Each call of a run (spread()), each with the next of its errors; what came of it: {call: [made, failed,
    passes]}, and the harms. Not all runs make as many: a call that a run did not make did not fail."""
    counts, harms = {}, []
    for part in (*PARTS, AGENTS):
        faults = kind(context, test, scenario, part)
        made = collections.Counter(faults.calls)
        for name, numbers in sorted(spread(faults.calls, most).items()):
            errors, count = OWN_ERRORS.get(name, ERRORS), counts.setdefault(name, [0, 0, 0])
            count[0] += made[name]
            for index, number in enumerate(numbers):
                try:
                    faults.fault(number, errors[index % len(errors)], name)
                    count[1] += faults.injected
                    count[2] += faults.injected
                except Failure as failure:
                    count[1] += 1
                    harms.append(str(failure))
                    print(f"     harm: {failure}", flush=True)
                    faults.end()
                    faults = kind(context, test, scenario, part)
        faults.end()
    return counts, harms


def named(kind, context, test, scenario, call, error, most=None, where=slice(None)):
    """Every call of one name, one after the other; or `most` of them, evenly over the run; or some."""
    faults = kind(context, test, scenario)
    made = faults.calls.count(call)
    expect(made, f"nothing calls {call}")
    numbers = positions(made, most or made)[where]
    for number in numbers:
        faults.fault(number, error, call)
    return f"{len(numbers)} of {made} times {call}"

# SPDX-License-Identifier: MIT
"""The command line as a contract: exit codes, JSON with a schema, suggestions, configuration, profiles."""
import os
import re
import subprocess
import sys

from lib import ckpt as codes
from lib import inventory, proc
from lib.context import command
from lib.report import expect
from lib.victim import Victim

COMMANDS = ("dump", "restore", "branch", "verify", "show", "diff", "check", "plugins", "graph")


def usage(context, test):
    """Bad command lines end with 2, say what is wrong, and suggest what was probably meant."""
    ckpt = context.ckpt()
    wrong = {
        ("dmup",): "dump", ("dump", "--leave-runing"): "leave-running",
        ("dump", "-t", "1"): "-D", ("dump", "-t", "one", "-D", "x"): "one", ("restore",): "-D",
        ("branch", "-D", "x"): "--copies",
        ("plugins", "--without", "fd.pipse"): "'pipe'", ("plugins", "--no-plugin", "taks"): "task",
        ("plugins", "--without", "nothing.at"): "nothing", ("plugins", "-o", "fd.nothing=1"): "nothing",
        ("plugins", "--allow-loss", "fdd"): "fd", ("plugins", "--profile", "strct"): "strict",
        ("plugins", "--plugin-path", "/nowhere"): "/nowhere", ("plugins", "--plugin", "nowhere"): "nowhere",
        ("plugins", "--config", "/nowhere.conf"): "/nowhere.conf", ("graph", "dmup"): "dump",
        (): "ckpt"}
    for args, word in wrong.items():
        run = ckpt.run(test, *args, code=None)
        expect(run.code == codes.USAGE, f"{args} ended with {run.code}")
        expect(word in run.err, f"{args}: no word of {word!r}: {run.err}")


def helps(context, test):
    """Help and version go to stdout and end with 0."""
    ckpt = context.ckpt()
    expect(ckpt.run(test, "--version").out.startswith("ckpt "), "--version")
    expect(all(command in ckpt.run(test, "--help").out for command in COMMANDS), "--help lacks commands")
    for command in COMMANDS:
        run = ckpt.run(test, command, "--help")
        expect("--json" in run.out and not run.err, f"{command} --help: {run.out[:200]}")


def machine_readable(context, test):
    """--json prints one JSON object with a schema number, whatever happens."""
    ckpt = context.ckpt()
    for args in (("check",), ("plugins",), ("graph", "dump"), ("graph", "restore"), ("graph", "verify")):
        expect("schema" in ckpt.run(test, *args, "--json").json(), f"{args}: no schema")
    missing = ckpt.run(test, "verify", "-D", test.dir / "missing", "--json", code=codes.IMAGE)
    expect(missing.json()["schema"] == 1 and missing.json()["error"], "an error without JSON")
    for args in (("show", test.dir / "missing"), ("graph", "dump", "--plugin", "nowhere")):
        run = ckpt.run(test, *args, "--json", code=None)
        expect(run.code != codes.OK and run.json()["error"], f"{args}: an error without JSON")
    gone = ckpt.run(test, "dump", "-t", 2**22 - 1, "-D", test.dir / "x", "--json", code=None)
    expect(gone.code != codes.OK and gone.json()["error"], "no JSON for a process that does not exist")


def graphs(context, test):
    """Milestones in their order; --dot is a graph; the same every time."""
    ckpt = context.ckpt()
    for run, milestones in (("dump", ("seized", "surveyed", "collected", "committed", "released")),
                            ("restore", ("loaded", "planned", "tasks-made", "sealed", "running")),
                            ("verify", ("loaded", "collected", "compared"))):
        out = ckpt.run(test, "graph", run).out
        places = [out.find(name) for name in milestones]
        expect(-1 not in places, f"{run}: a milestone is missing: {places}")
        expect(ckpt.run(test, "graph", run).out == out, f"{run} is in another order the second time")
        expect("digraph" in ckpt.run(test, "graph", run, "--dot").out, f"{run} --dot")


def configuration(context, test):
    """What ckpt.conf says counts, the command line more, and `ckpt plugins` says which it was."""
    ckpt, config = context.ckpt(), test.dir / "ckpt.conf"
    listed = ckpt.run(test, "plugins", "--json").json()["plugins"]
    names = [feature["name"] for plugin in listed if plugin["name"] == "fd"
             for feature in plugin["features"]]
    expect(names, "the fd plugin has no features")
    config.write_text(f"[ckpt]\nwithout = fd.{names[0]}\n")
    listed = ckpt.run(test, "plugins", "--json", "--config", config).json()["plugins"]
    [feature] = [feature for plugin in listed if plugin["name"] == "fd"
                 for feature in plugin["features"] if feature["name"] == names[0]]
    expect(not feature["on"] and str(config) in feature["origin"], f"{feature}")
    config.write_text("[ckpt]\nwithuot = x\n")
    bad = ckpt.run(test, "plugins", "--config", config, code=codes.USAGE)
    expect("without" in bad.err and f"{config}:2" in bad.err, f"it says: {bad.err}")
    for profile in ("strict", "process", "container", "branch"):
        out = ckpt.run(test, "plugins", "--profile", profile).out
        expect(profile in out, f"profile {profile}")


def strict(context, test):
    """The profile `strict` allows no loss, whatever else is said."""
    run = context.ckpt().run(test, "plugins", "--profile", "strict", "--allow-loss", "fd", code=None)
    expect(run.code == codes.USAGE, f"a loss is allowed: {run.code}")


def log_file(context, test):
    """Messages go where --log-file says, and traces show what was done in the tasks."""
    victim, log = Victim(test, context.scenario("mem-basic")), test.dir / "messages"
    context.ckpt().run(test, "dump", "-t", victim.pid, "-D", test.dir / "image", "-R", "-vvv", "--log-file",
                       log)
    text = log.read_text()
    expect(" = " in text and "(" in text, f"no system calls in the log: {text[:300]}")
    expect(not context.ckpt().run(test, "dump", "-t", victim.pid, "-D", test.dir / "second", "-R").err,
           "a dump without -v is not silent on stderr")


def leave_stopped(context, test):
    """--leave-stopped: all tasks are stopped; after SIGCONT they go on."""
    victim = Victim(test, context.scenario("nested"))
    victim.check("built")
    before = inventory.take(victim.pid)
    context.ckpt().dump(test, victim.pid, test.dir / "image", "--leave-stopped")
    pids = proc.tree(victim.pid)
    # a stop that is queued takes effect when the task is scheduled
    proc.wait_until("not all are stopped",
                    lambda: all(s in "TZ" for s, _ in proc.states(victim.pid).values()))
    for pid in pids:
        os.kill(pid, 18)
    proc.wait_until("tasks stay stopped",
                    lambda: all(s != "T" for s, _ in proc.states(victim.pid).values()))
    differences = inventory.differences(before, victim.pid)
    expect(not differences, f"the victim has changed: {differences[:1]}")


def dry_runs(context, test):
    """--dry-run touches nothing and leaves nothing."""
    victim, image = Victim(test, context.scenario("nested")), test.dir / "image"
    victim.check("built")
    context.ckpt().dump(test, victim.pid, image, "--dry-run")
    expect(not image.exists(), "the dry run of a dump left a directory")
    victim.check("dry run")
    context.ckpt().dump(test, victim.pid, test.dir / "running", "--leave-running")
    done = context.ckpt().run(test, "restore", "-D", test.dir / "running", "--dry-run", code=1)
    expect("is taken" in done.err, "the dry run of a restore does not see that the tree is there")
    pids = proc.tree(victim.pid)
    context.ckpt().dump(test, victim.pid, image)
    proc.wait_gone(pids)
    context.ckpt().run(test, "restore", "-D", image, "--dry-run")
    expect(not proc.exists(victim.pid), "the dry run of a restore made a process")


def stats(context, test):
    """--stats: a line for each step that JSON has, and their sum."""
    victim, image = Victim(test, context.scenario("mem-basic")), test.dir / "image"
    table = context.ckpt().dump(test, victim.pid, image, "-R", "--stats").out.splitlines()
    pids = proc.tree(victim.pid)
    run = context.ckpt().dump(test, victim.pid, image, "--force", "--json").json()
    names = [line.split()[0] for line in table]
    for step in run["steps"]:
        expect(step["name"] in names, f"{step['name']} is not in the table")
        expect(step["us"] >= 0 and step["cpu_us"] >= 0, f"{step} has no times")
    for what in ("records", "scripts", "calls"):
        expect(sum(step[what] for step in run["steps"]) > 0, f"no step has any {what}")
    proc.wait_gone(pids)
    table = context.ckpt().run(test, "restore", "-D", image, "-d", "--stats").out
    expect("pid.make" in table and "all steps" in table, "a restore prints no table")
    victim.check("restored")
    prefix, args = test.dir / "pid", ("branch", "-D", image, "--copies", 2, "--layer", victim.dir)
    table = context.ckpt().run(test, *args, "--pidfiles", prefix, "--stats").out
    for number in (1, 2):
        test.cleanup(proc.kill_tree, int(proc.stat_fields(int(proc.read(f"{prefix}.{number}")))[1][1]))
    for name in ("ancestor", "pid.make", "all steps"):
        expect(len(re.findall(f"^{name} ", table, re.MULTILINE)) == 1, f"a branch prints no table: {table}")


def unprivileged(context, test):
    """Without privileges ckpt ends with 5 and says what is missing."""
    victim = Victim(test, context.scenario("mem-basic"))
    image = test.dir / "image"
    context.ckpt().dump(test, victim.pid, image, "-R")
    # the checkout may be where only root can look
    command(test, "cmake", "--install", context.build(), "--prefix", test.dir / "usr")
    test.dir.chmod(0o755)
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
              str(test.dir / "usr" / "sbin" / "ckpt")]
    for args in (("dump", "-t", str(victim.pid), "-D", "/tmp/ckpt-nobody"), ("check",)):
        code, out, err = run_command([*nobody, *args])
        test.log(f"{args}: {code} {out} {err}")
        if args[0] == "dump":
            expect(code == codes.PRIVILEGE, f"{args} ended with {code}: {err}")
            expect(err.strip(), "it does not say why")
    victim.check("at the end")


def run_command(words):
    """(exit code, stdout, stderr)"""
    done = subprocess.run(words, capture_output=True, text=True, timeout=codes.TIMEOUT, check=False, cwd="/")
    return done.returncode, done.stdout, done.stderr


def unwritten(context, test):
    """What cannot be written to stdout is said, and is no success: but for a tree that is saved by then."""
    victim, image = Victim(test, context.scenario("mem-basic")), test.dir / "image"
    saved = ("dump", "-t", victim.pid, "-D", image)
    pids = proc.tree(victim.pid)
    for args in (("plugins",), ("plugins", "--json"), ("check", "--json"), saved):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([context.ckpt().binary, *map(str, args)], stdin=subprocess.DEVNULL,
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=codes.TIMEOUT,
                                  check=False, cwd="/")
        test.log(f"{args}: {done.returncode} {done.stderr}")
        expect(done.returncode == (codes.OK if args == saved else codes.FAILED)
               and "standard output" in done.stderr, f"{args} ended with {done.returncode}: {done.stderr}")
    proc.wait_gone(pids)
    victim.pid = context.ckpt().restore(test, image)
    victim.check("saved with no output")


def no_room(context, test):
    """A thread with a stack that is full cannot be entered: that is seen before any is."""
    victim = Victim(test, context.scenario("cramped"))
    victim.check("built")
    before = inventory.take(victim.pid)
    run = context.ckpt().dump(test, victim.pid, test.dir / "image", code=codes.REFUSED)
    expect("bytes left on its stack" in run.err, f"it does not say why: {run.err}")
    differences = inventory.differences(before, victim.pid)
    expect(not differences, f"the victim has changed: {differences[:1]}")
    victim.check("refused")


def wrong_roots(context, test):
    """An ancestor up to pid 1, a thread, an init that cannot be killed: named before anything is stopped."""
    binary, image = context.ckpt().binary, test.dir / "image"
    inside = ["unshare", "-pf", "--mount-proc", "--"]
    code, _, err = run_command([*inside, "sh", "-c", f"{binary} dump -t 1 -D {image} -R; exit $?"])
    expect(code == codes.REFUSED and "ancestors" in err, f"pid 1 is taken: {code} {err}")
    with subprocess.Popen(["unshare", "-pfm", "--mount-proc", "--kill-child", "sleep", "inf"]) as container:
        test.cleanup(container.kill)
        def init():
            return proc.read(f"/proc/{container.pid}/task/{container.pid}/children").strip()

        proc.wait_until("no container", lambda: proc.read(f"/proc/{init()}/comm") == "sleep\n")
        # a child of nobody's in there, as of docker exec
        code, _, err = run_command(["nsenter", "-p", "-m", "-t", init(), binary, "dump", "-t", "1", "-D",
                                    str(image)])
        container.kill()
    expect(code == codes.REFUSED and "cannot be killed" in err, f"an init: {code} {err}")
    victim = Victim(test, context.scenario("threads"))
    [thread, *_] = [tid for tid in os.listdir(f"/proc/{victim.pid}/task") if int(tid) != victim.pid]
    run = context.ckpt().run(test, "dump", "-t", thread, "-D", image, code=codes.USAGE)
    expect(f"-t {victim.pid}" in run.err, f"a thread: {run.err}")
    expect(not image.exists(), "a directory was made")


def host_name(context, test):
    """Whatever bytes the machine's name has, the image can be read."""
    victim, image = Victim(test, context.scenario("mem-basic")), test.dir / "image"
    script = r"import os, socket, sys; socket.sethostname(b'caf\xe9\7'); os.execv(sys.argv[1], sys.argv[1:])"
    code, _, err = run_command(["unshare", "-u", "--", sys.executable, "-c", script, context.ckpt().binary,
                                "dump", "-t", str(victim.pid), "-D", str(image), "-R", "--allow-loss",
                                "ns.shared-outside"])
    expect(code == codes.OK, f"it ended with {code}: {err}")
    expect("caf??" in context.ckpt().run(test, "show", image).out, "the name is not shown")


def names(context, test):
    """What a tree calls itself is no command for the terminal that reads of it, nor a line of ckpt's."""
    name = "\x1b[2J\nckpt: x"
    with subprocess.Popen([sys.executable, "-c", "import ctypes, sys, time; ctypes.CDLL(None).prctl(15, "
                           f"{name.encode()!r}); print(flush=True); time.sleep(600)"],
                          stdout=subprocess.PIPE) as odd:
        test.cleanup(odd.kill)
        odd.stdout.readline()
        run = context.ckpt().run(test, "dump", "-t", odd.pid, "-D", test.dir / "image", code=codes.REFUSED)
        odd.kill()
    expect("?[2J?ckpt: x" in run.err and "\x1b" not in run.err, f"it says {run.err!r}")


def tests(context):
    """See the functions."""
    for function in (usage, helps, machine_readable, graphs, configuration, strict, log_file, leave_stopped,
                     dry_runs, stats, unwritten, no_room, wrong_roots, host_name, names, unprivileged):
        name = function.__name__.replace("_", "-")
        yield f"cli/{name}", lambda test, function=function: function(context, test)

# SPDX-License-Identifier: MIT
"""Every program of tests/scenario is saved, killed, restored and left running. A comment in its source
tells the runner what is special about it:

    /* test: ignore=REGEX     a difference of the inventories that is meant to be
       test: option=--X       an option for every ckpt command
       test: verify=no        never the same twice: ckpt verify is not asked
       test: hold=yes         a busy one that parks while DIR/hold exists (see busy.c)
       test: between=COMMAND  done while there is no tree, in every other round, and without a feature
       test: huge-pages=N     so many free pages of the pool are needed: what is missing is lent to it
       test: only=STAGE       not a scenario of its own; used by that stage */
"""
import re

from lib import hugepages, roundtrip
from lib.victim import Victim


def directives(source):
    """{key: [values]} of the `test:` lines."""
    found = {}
    for key, value in re.findall(r"^[ /*]*test: ([\w-]+)=(.*?)(?: *\*/)?$", source.read_text(), re.M):
        found.setdefault(key, []).append(value)
    return found


def scenarios(context):
    """[(name, directives)] of the scenarios, sorted."""
    found = []
    for source in sorted((context.source / "tests" / "scenario").glob("*.c")):
        marks = directives(source)
        if "only" not in marks:
            found.append((source.stem, marks))
    return found


def settings(marks):
    """The directives as arguments of a round trip."""
    return {"ignore": marks.get("ignore", []), "options": marks.get("option", [])}


def start(context, test, name, marks):
    """The victim of a scenario, with what it needs of the machine."""
    hugepages.lend(test, int(marks.get("huge-pages", ["0"])[0]))
    return Victim(test, context.scenario(name), hold="hold" in marks)


def restored(context, test, name, marks):
    """Saved, killed, restored, twice over."""
    victim = start(context, test, name, marks)
    roundtrip.rounds(context.ckpt(), test, victim, 2, **settings(marks), verify="verify" not in marks,
                     between=marks.get("between", []))


def left_running(context, test, name, marks):
    """Saved and left alone."""
    victim = start(context, test, name, marks)
    roundtrip.leave_running(context.ckpt(), test, victim, **settings(marks))


def sanitized(context, test, name, marks):
    """The same with the sanitizer build of ckpt."""
    victim = start(context, test, name, marks)
    roundtrip.rounds(context.ckpt("sanitize"), test, victim, 1, **settings(marks),
                     verify="verify" not in marks)


def tests(context):
    """Two or three tests for each scenario."""
    kinds = [("restore", restored), ("leave-running", left_running)]
    if not context.quick:
        kinds.append(("sanitize", sanitized))
    for name, marks in scenarios(context):
        for kind, function in kinds:
            yield (f"scenario/{name}/{kind}",
                   lambda test, function=function, name=name, marks=marks:
                   function(context, test, name, marks))

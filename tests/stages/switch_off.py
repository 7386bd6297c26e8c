# SPDX-License-Identifier: MIT
"""Every feature proves that it is needed: with it switched off a tree that uses it is refused, and if the
loss is allowed, what comes back must fail its check or differ from outside. A feature without a row in
tests/switch-off/matrix is a failed test, and so is a row without its feature, or one that some other
difference would satisfy."""
import re

from lib import ckpt as codes
from lib import inventory, proc, roundtrip, tables
from lib.report import Failure, expect
from stages.scenario import directives, start


def matrix(context):
    """[(feature, scenario, how or what gives a copy away)]"""
    rows = []
    path = context.source / "tests" / "switch-off" / "matrix"
    for line in path.read_text().splitlines():
        words = line.split("\t")
        if line and line[0] != "#":
            rows.append((words[0], words[1], words[2] if len(words) > 2 else ""))
    return rows


def features(context, test):
    """The features of all plugins that are loaded, as "plugin.feature"."""
    plugins = context.ckpt().run(test, "plugins", "--json").json()["plugins"]
    return {f"{plugin['name']}.{feature['name']}"
            for plugin in plugins for feature in plugin.get("features", [])}


def covered(context, test):
    """Plugins and matrix have the same features."""
    there, listed = features(context, test), {row[0] for row in matrix(context)}
    expect(not there - listed, f"no row for {', '.join(sorted(there - listed))}")
    expect(not listed - there, f"no such feature: {', '.join(sorted(listed - there))}")
    return f"{len(there)} features"


def documented(context):
    """docs/switch-off.md has the rows of the matrix."""
    there, listed = set(tables.switch_off_rows(context)), {row[:2] for row in matrix(context)}
    missing = sorted({key[0] for key in listed ^ there})
    expect(not missing, "docs/switch-off.md is not up to date: "
           + "; ".join(f"scripts/test --switch-off --only {name}" for name in missing))


def refused(context, test, victim, feature, options):
    """Without the feature the dump is refused, naming it, and the victim goes on."""
    run = context.ckpt().dump(test, victim.pid, test.dir / "refused", "--without", feature, "--json",
                              *options, code=codes.REFUSED)
    plugin, _, name = feature.partition(".")
    named = [item for item in run.json().get("blockers", [])
             if item.get("plugin") == plugin and item.get("feature") == name]
    expect(named, f"no blocker names {feature}: {run.json().get('blockers')}")
    victim.check("refused")


def dumped(context, test, victim, feature, options):
    """Saves and kills the victim without the feature; (pids, image, options)."""
    options = ("--without", feature, "--allow-loss", feature, *options)
    image, pids = test.dir / "image", proc.tree(victim.pid)
    context.ckpt().dump(test, victim.pid, image, *options)
    proc.wait_gone(pids)
    return pids, image, options


def unrestorable(context, test, victim, feature, options):
    """The restore fails and leaves nothing."""
    pids, image, options = dumped(context, test, victim, feature, options)
    context.ckpt().restore(test, image, *options, code=codes.FAILED)
    proc.wait_gone(pids)
    return "unrestorable"


def looks(victim, before, ignore):
    """What may give a copy away: what differs from outside; if that is not it, what the victim says. That it
    says nothing proves nothing: that may be for any reason."""
    yield inventory.differences(before, victim.pid, ignore, 0)
    answer = victim.ask(30)
    yield [f"check: {answer}" if answer.startswith(("bad ", "ok ")) else answer]


def lost(context, test, victim, feature, marks, options, pattern):
    """With the loss allowed, the copy must not pass for the original, and what gives it away must be what the
    feature is about, not whatever else is different; returns that."""
    before = inventory.take(victim.pid)
    _, image, options = dumped(context, test, victim, feature, options)
    roundtrip.meanwhile(marks.get("between", []))
    victim.pid = context.ckpt().restore(test, image, *options)
    others = []
    for texts in looks(victim, before, marks.get("ignore", [])):
        for text in texts:
            if re.search(pattern, text, re.S):
                return text
        others += texts
    for text in others:
        test.log(f"restored: {text[:600]}")
    raise Failure(f"without {feature} nothing that is like '{pattern}' gives the copy away, but "
                  f"{len(others)} other differences: {others[-1][:300]}")


def row(context, test, feature, scenario, how):
    """One row: what gives the copy away, "unrestorable", or "required" where going on is impossible
    whatever one allows. A restore that fails proves nothing unless the row says so: it might fail for
    another reason."""
    expect(how, f"the row of {feature} does not say what is to be missing, see tests/README.md")
    special = directives(context.source / "tests" / "scenario" / f"{scenario}.c")
    options = special.get("option", [])
    victim = start(context, test, scenario, special)
    victim.check("built")
    refused(context, test, victim, feature, options)
    if how == "required":
        context.ckpt().dump(test, victim.pid, test.dir / "image", "--without", feature, "--allow-loss",
                            feature, *options, code=codes.REFUSED)
        victim.check("refused")
        return "required"
    if how == "unrestorable":
        return unrestorable(context, test, victim, feature, options)
    return lost(context, test, victim, feature, special, options, how)[:400]


def tests(context):
    """The coverage, and each row."""
    yield "switch-off/every-feature", lambda test: covered(context, test)
    yield "switch-off/documented", lambda test: documented(context)
    for feature, scenario, how in matrix(context):
        yield (f"switch-off/{feature}/{scenario}",
               lambda test, feature=feature, scenario=scenario, how=how:
               row(context, test, feature, scenario, how))

# SPDX-License-Identifier: MIT
"""Tables of a run that are kept in docs/: they are written by the run itself, never by hand."""
import datetime
import platform
import re

from lib.context import SOURCE

KILLS = ("<!-- kills: written by scripts/test --kills -->\n", "<!-- end of kills -->\n")
REPEATS = ("<!-- repeats: written by scripts/test --repeat -->", "<!-- end of repeats -->")


def without_numbers(text):
    """What noticed, but for pids, addresses and places of tests, which are others in each run."""
    gone = re.match(r"\d+ fds \d+: \{.*?'what': '([^']*)'", text)
    if gone:
        text = f"a descriptor of {gone[1]} -> gone"
    text = re.sub(r"/tmp/ckpt-test-\w+", "DIR", text)
    text = re.sub(r"/\S+(?=/tests/scenario/)", "BUILD", text)
    text = re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{8,}(-[0-9a-f]{8,})?\b|\d+", "N", text)
    sides = [re.sub(r"\s+", " ", side).replace("|", "/") for side in text.split(" -> ", 1)]
    return " -> ".join(side if len(side) <= size else side[:size - 3] + "..."
                       for side, size in zip(sides, (90, 30))).strip().replace("`", "'")


def put(path, text):
    """Writes a file if it changes."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def switch_off_rows(context):
    """{(feature, scenario): the row of docs/switch-off.md}"""
    path = context.source / "docs" / "switch-off.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {match.groups(): match.string
            for match in (re.match(r"\| `(\S+)` \| (\S+) \|", line) for line in text.splitlines()) if match}


def switch_off(context, results, matrix):
    """docs/switch-off.md: a row for each of the matrix; those that were not tried stay."""
    rows = switch_off_rows(context)
    for name, note in results.notes.items():
        words = name.split("/")
        if words[0] != "switch-off" or len(words) != 3 or name in results.failed:
            continue
        if name not in results.skipped:
            rows[tuple(words[1:])] = f"| `{words[1]}` | {words[2]} | {without_numbers(note)} |"
        rows.setdefault(tuple(words[1:]),
                        f"| `{words[1]}` | {words[2]} | not tried: {without_numbers(note)} |")
    wanted = {row[:2] for row in matrix}
    table = ["| feature | scenario | what noticed |", "| --- | --- | --- |",
             *(rows[key] for key in sorted(rows) if key in wanted)]
    print("\n".join(table))
    put(context.source / "docs" / "switch-off.md",
        "<!-- SPDX-License-Identifier: MIT -->\n# What notices that a feature is off\n\n"
        "Written by `sudo scripts/test --switch-off`; with `--only FEATURE` only those rows. Each feature\n"
        "is switched off, and its loss allowed, in the scenario that is named; a dump without permission\n"
        "was refused before. `check` is what the restored program said of itself, all else the inventory\n"
        "saw from outside: what it was, and what it was without the feature. `required`: the dump knows\n"
        "that nothing could be restored. `unrestorable`: the restore finds out, and leaves nothing. N\n"
        "stands for a number, DIR for the directory of the test.\n\n"
        + "\n".join(table) + "\n")


def faults(context, command, load, counts):
    """The section of docs/faults.md that tells of one command over one load."""
    path = context.source / "docs" / "faults.md"
    title = f"### {load}, {command}"
    total = [sum(column) for column in zip(*counts.values())]
    rows = [f"| {call} | {' | '.join(map(str, count))} |"
            for call, count in (("**all**", total), *sorted(counts.items()))]
    most = f"at most {context.fault_most} of each call" if context.fault_most else "all calls"
    section = "\n".join([title, "", f"{datetime.date.today()}, Linux {platform.release()}: {most}.", "",
                         "| call | made | failed | passes |", "| --- | --- | --- | --- |", *rows, ""])
    print(section, flush=True)
    head, *sections = path.read_text(encoding="utf-8").split("\n### ")
    found = {f"### {text.splitlines()[0]}": f"### {text}".rstrip("\n") + "\n" for text in sections}
    found[title] = section
    put(path, head.rstrip("\n") + "\n\n" + "\n".join(found[key] for key in sorted(found)))


def kills(results):
    """The rows of docs/faults.md that tell of SIGKILLs; those of tests that were not run stay."""
    path = SOURCE / "docs" / "faults.md"
    head, _, rest = path.read_text(encoding="utf-8").partition(KILLS[0])
    old, _, tail = rest.partition(KILLS[1])
    rows = {line.split("|")[1].strip(): line for line in old.splitlines()[2:]}
    for name, note in results.notes.items():
        if name.startswith("kill/") and "kills" in note and name not in results.failed:
            rows[name] = f"| {name} | {datetime.date.today()} | {platform.release()} | {note} |"
    table = ["| test | date | Linux | no harm in |", "| --- | --- | --- | --- |",
             *(rows[name] for name in sorted(rows))]
    print("\n".join(table))
    put(path, head + KILLS[0] + "\n".join(table) + "\n" + KILLS[1] + tail)


def repeats(results):
    """The section of docs/compatibility.md; rows of what was not run stay, what failed is counted."""
    path = SOURCE / "docs" / "compatibility.md"
    text = path.read_text(encoding="utf-8")
    if REPEATS[0] not in text:
        text = text.replace("\n## Times\n", f"\n## Repeats\n\n{REPEATS[0]}\n{REPEATS[1]}\n\n## Times\n")
    head, _, rest = text.partition(REPEATS[0])
    old, _, tail = rest.partition(REPEATS[1])
    rows = {line.split("|")[1].strip(): line for line in old.splitlines() if line.startswith("| ")}
    for name, (runs, passes) in results.counts.items():
        if not name.startswith("build/"):
            rows[name] = f"| {name} | {datetime.date.today()} | {runs} | {passes} |"
    table = ["| scenario | date | runs | passes |", "| --- | --- | --- | --- |",
             *(rows[name] for name in sorted(rows) if name not in ("scenario", "---"))]
    print("\n".join(table))
    put(path, "\n".join([head + REPEATS[0], "", *table, "", REPEATS[1]]) + tail)

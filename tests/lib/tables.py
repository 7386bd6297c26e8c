# SPDX-License-Identifier: MIT
"""Tables of a run that are kept in docs/: they are written by the run itself, never by hand."""
import datetime
import platform
import re

from lib.context import SOURCE

KILLS = ("<!-- kills: written by scripts/test --kills -->\n", "<!-- end of kills -->\n")
REPEATS = ("<!-- repeats: written by scripts/test --repeat -->", "<!-- end of repeats -->")


def without_numbers(text):
    """What noticed, but for pids and addresses, which are others in each run."""
    text = re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{8,}(-[0-9a-f]{8,})?\b|\d+", "N", text)
    text = re.sub(r"\s+", " ", text.partition(" -> ")[0]).replace("|", "/")
    return text[:90].strip()


def put(path, text):
    """Writes a file if it changes."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def switch_off(context, results, chosen):
    """docs/switch-off.md, if every feature was tried."""
    rows = []
    for name, note in sorted(results.notes.items()):
        words = name.split("/")
        if words[0] == "switch-off" and len(words) == 3 and name not in results.failed + results.skipped:
            rows.append(f"| `{words[1]}` | {words[2]} | {without_numbers(note)} |")
    table = ["| feature | scenario | what noticed |", "| --- | --- | --- |", *rows]
    print("\n".join(table))
    if results.failed or results.only or chosen:
        print("not written to docs/switch-off.md: it is for complete runs in which nothing failed")
        return
    put(context.source / "docs" / "switch-off.md",
        "<!-- SPDX-License-Identifier: MIT -->\n# What notices that a feature is off\n\n"
        "Written by `sudo scripts/test --switch-off`. Each feature is switched off, and its loss allowed,\n"
        "in the scenario that is named; a dump without permission was refused before. `restored` is what\n"
        "the inventory saw from outside, `check` what the restored program said of itself. N stands for a\n"
        "number.\n\n"
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
            rows[name] = f"| {name} | {datetime.date.today()} | {note} |"
    table = ["| test | date | no harm in |", "| --- | --- | --- |", *(rows[name] for name in sorted(rows))]
    print("\n".join(table))
    put(path, head + KILLS[0] + "\n".join(table) + "\n" + KILLS[1] + tail)


def repeats(results, chosen):
    """The section of docs/compatibility.md, if nothing was left out; what failed is counted there."""
    rows = [f"| {name} | {runs} | {passes} |" for name, (runs, passes) in sorted(results.counts.items())
            if not name.startswith("build/")]
    table = ["| scenario | runs | passes |", "| --- | --- | --- |", *rows]
    print("\n".join(table))
    if results.only or chosen:
        print("not written to docs/compatibility.md: it is for complete runs")
        return
    path = SOURCE / "docs" / "compatibility.md"
    text = path.read_text(encoding="utf-8")
    if REPEATS[0] not in text:
        text = text.replace("\n## Times\n", f"\n## Repeats\n\n{REPEATS[0]}\n{REPEATS[1]}\n\n## Times\n")
    head, _, tail = text.partition(REPEATS[0])
    put(path, "\n".join([head + REPEATS[0], "", *table, "", REPEATS[1]]) + tail.partition(REPEATS[1])[2])

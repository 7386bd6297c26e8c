# SPDX-License-Identifier: MIT
"""Builds with both compilers and with sanitizers, and the unit tests of the builds."""
import re

from lib.context import command
from lib.report import Failure, expect

# what is writable though nobody writes to it: protobuf-c's tables
GENERATED = re.compile(r"\.pb-c\.|__descriptor|__field_|__init")


def build(context, test, preset):
    """Configures and builds a preset."""
    where = context.build(preset)
    command(test, "cmake", "--preset", preset, "-B", where)
    command(test, "cmake", "--build", where)


def exports(context, test):
    """The library exports what the headers declare and nothing else."""
    out = command(test, "nm", "-D", "--defined-only", context.build() / "libckpt.so")
    names = [line.split()[-1].split("@")[0] for line in out.splitlines() if " T " in line]
    strange = [name for name in names if not name.startswith("ckpt_")]
    if strange or not names:
        raise Failure(f"exported: {', '.join(strange) or 'nothing'}")


def no_globals(context, test):
    """Everything hangs off a context: the library has no mutable data of its own."""
    out = command(test, "nm", "-A", "-f", "sysv", context.build() / "core" / "libckpt-core.a")
    own = []
    for line in out.splitlines():
        fields = [field.strip() for field in line.split("|")]
        # tables of pointers are relocated once and then read-only; threads have their own .tbss
        if (len(fields) == 7 and fields[2] in "bBdDC" and not GENERATED.search(line)
                and not fields[6].startswith((".data.rel.ro", ".tbss"))):
            own.append(fields[0].split(":")[-1])
    expect(not own, f"mutable globals: {', '.join(sorted(own))}")


def tests(context):
    """The release build is what all later stages run."""
    presets = ["release", "sanitize"] if context.quick else ["release", "clang", "sanitize"]
    for preset in presets:
        yield f"build/{preset}", lambda test, preset=preset: build(context, test, preset)
    yield "build/exports", lambda test: exports(context, test)
    yield "build/no-globals", lambda test: no_globals(context, test)

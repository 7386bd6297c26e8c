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
    out = command(test, "nm", "-A", context.build() / "core" / "libckpt-core.a")
    writable = [line for line in out.splitlines() if re.search(r" [bBdDC] ", line)]
    own = sorted(line.split()[-1] for line in writable if not GENERATED.search(line))
    expect(not own, f"mutable globals: {', '.join(own)}")


def tests(context):
    """The release build is what all later stages run."""
    presets = ["release", "sanitize"] if context.quick else ["release", "clang", "sanitize"]
    for preset in presets:
        yield f"build/{preset}", lambda test, preset=preset: build(context, test, preset)
    yield "build/exports", lambda test: exports(context, test)
    yield "build/no-globals", lambda test: no_globals(context, test)

# SPDX-License-Identifier: MIT
"""Builds with both compilers and with sanitizers, and the unit tests of the builds."""
from lib.context import command
from lib.report import Failure


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


def tests(context):
    """The release build is what all later stages run."""
    presets = ["release", "sanitize"] if context.quick else ["release", "clang", "sanitize"]
    for preset in presets:
        yield f"build/{preset}", lambda test, preset=preset: build(context, test, preset)
    yield "build/exports", lambda test: exports(context, test)

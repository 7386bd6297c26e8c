# SPDX-License-Identifier: MIT
"""The unit tests (tests/unit), each one counted, in the release and the sanitizer build."""
import re
import subprocess

from lib.context import command


def names(build):
    """The tests that ctest knows."""
    done = subprocess.run(["ctest", "--test-dir", str(build), "-N"], capture_output=True, text=True,
                          check=False)
    return re.findall(r"Test +#\d+: (\S+)", done.stdout)


def tests(context):
    """One test for each test of ctest."""
    for preset in ("release", "sanitize"):
        build = context.build(preset)
        for name in names(build):
            yield f"unit/{preset}/{name}", lambda test, build=build, name=name: command(
                test, "ctest", "--test-dir", build, "--output-on-failure", "-R", f"^{name}$",
                env={"ASAN_OPTIONS": "detect_leaks=1"}) and None

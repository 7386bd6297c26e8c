# SPDX-License-Identifier: MIT
"""The measuring instrument is calibrated first: the inventory sees no difference where there is none, and
every one that scenario/restless.c makes."""
import re
import subprocess

from lib import inventory
from lib.report import Failure, expect
from lib.victim import Victim


def notices(context, test):
    """One change after the other."""
    program = context.scenario("restless")
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    victim = Victim(test, program)
    before = inventory.take(victim.pid)
    changes = [line.split("\t") for line in listed.splitlines()]
    for name, pattern in changes:
        differences = inventory.differences(before, victim.pid)
        expect(not differences, f"before {name}: {differences} without a cause")
        victim.check(name)
        after = inventory.take(victim.pid)
        differences = inventory.compare(before, after)
        test.log(f"{name}: {differences}")
        if not any(re.search(pattern, text) for text in differences):
            raise Failure(f"{name} was not noticed: {differences}")
        before = after
    return f"{len(changes)} kinds of change"


def tests(context):
    """The only one."""
    yield "inventory/notices", lambda test: notices(context, test)

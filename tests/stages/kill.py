# SPDX-License-Identifier: MIT
"""The SIGKILL runs (lib/killing.py)."""
from lib import killing


def tests(context):
    """Dumps and restores."""
    dumps, restores = (40, 10) if context.quick else (200, 60)
    yield "kill/dump", lambda test: killing.dumps(context.ckpt(), test, context.scenario("busy"), dumps,
                                                  context.seed)
    yield "kill/restore", lambda test: killing.restores(context.ckpt(), test, context.scenario("busy"),
                                                        restores, context.seed)

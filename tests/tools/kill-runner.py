#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Kills ckpt at random moments, as scripts/test does, with a number and a seed of your choice."""
import argparse
import functools
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from lib import context, killing, proc, report  # pylint: disable=wrong-import-position


def main():
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=("dump", "restore"))
    parser.add_argument("--build", default=TESTS.parent / "build", help="directory of the builds")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--victim", default="busy")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--both", action="store_true", help="ckpt-keeper too, at once: it may do harm")
    args = parser.parse_args()
    proc.become_subreaper()
    proc.own_ipc_namespace()
    run = context.Context(args.build, False, args.seed)
    function = functools.partial(killing.dumps, both=args.both) if args.run == "dump" else killing.restores
    results = report.Report()
    results.run(f"kill/{args.run}", lambda test: function(
        run.ckpt(args.preset), test, run.scenario(args.victim), args.kills, args.seed))
    return results.summary()


if __name__ == "__main__":
    sys.exit(main())

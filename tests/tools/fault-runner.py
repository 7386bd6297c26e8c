#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Makes the system calls of a dump or a restore fail (or kills a dump there), each in turn and however many
there are, where scripts/test does so with some. It goes on after a harm, and says at its end what was
harmed."""
import argparse
import fnmatch
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from lib import context, faulting, proc, report  # pylint: disable=wrong-import-position

KINDS = {"dump": faulting.Dump, "restore": faulting.Restore, "verify": faulting.Verify,
         "kill": faulting.Killed, "orphan": faulting.Orphaned}


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=KINDS)
    parser.add_argument("victim", help="name of a scenario")
    parser.add_argument("--build", default=TESTS.parent / "build", help="directory of the builds")
    parser.add_argument("--calls", default="*", help="patterns of system calls, separated by commas")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="only each N-th of them")
    parser.add_argument("--first", type=int, default=1, help="begin with this one; to resume a run")
    parser.add_argument("--last", type=int, default=1 << 31)
    parser.add_argument("--part", choices=(*faulting.PARTS, faulting.AGENTS), default=faulting.MAIN,
                        help="whose calls")
    parser.add_argument("--all-errors", action="store_true", help="each call with each error")
    return parser.parse_args()


def chosen(args, names):
    """(position, error): the calls to fail, in order."""
    patterns = args.calls.split(",")
    for position in range(args.first, min(len(names), args.last) + 1, args.each):
        name = names[position - 1]
        if name == "-" or not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            continue
        errors = faulting.ERRORS
        # with each pass through the names, another error for the same call
        yield from ((position, error) for error in
                    (errors if args.all_errors else (errors[position // args.each % len(errors)],)))


def run(args, test):
    """All of them."""
    kind, setup = KINDS[args.run], context.Context(args.build, False, 0)
    where = () if kind in (faulting.Killed, faulting.Orphaned) else (args.part,)
    faults, harms, begin = kind(setup, test, args.victim, *where), [], time.monotonic()
    todo = list(chosen(args, faults.calls))
    print(f"{len(todo)} faults, in {len(faults.calls)} calls", flush=True)
    for number, (position, error) in enumerate(todo, 1):
        try:
            faults.fault(position, error)
        except report.Failure as failure:
            harms.append(str(failure))
            print(f"HARM {failure}", flush=True)
            faults.end()
            faults = kind(setup, test, args.victim, *where)
        if not number % 100:
            print(f"{number} of {len(todo)}, call {position}, {time.monotonic() - begin:.0f} s", flush=True)
    report.expect(not harms, f"{len(harms)} of {len(todo)} faults did harm")
    return f"{len(todo)} faults did no harm"


def main():
    """See above."""
    args = arguments()
    proc.start_afresh()
    proc.become_subreaper()
    proc.own_ipc_namespace()
    results = report.Report()
    results.run(f"fault/{args.run}/{args.victim}", lambda test: run(args, test))
    return results.summary()


if __name__ == "__main__":
    sys.exit(main())

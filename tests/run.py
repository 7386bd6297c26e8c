#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Runs the tests, stage by stage; see tests/README.md. scripts/test is the way to call it."""
import argparse
import importlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lib import context, proc, report, tables  # pylint: disable=wrong-import-position

STAGES = ("lint", "build", "unit", "cli", "signals", "inventory", "scenario", "boxes", "mounts", "served",
          "sandboxes", "within", "verify", "switch_off", "groups", "clocks", "branch", "refuse", "border",
          "paths", "image", "plugin", "fault", "races", "kill", "apps")
# whatever is chosen, it is run on what the sources say now
BUILDS = ("build/release", "build/sanitize")


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, fewer builds")
    parser.add_argument("--only", metavar="PATTERN", help="tests whose name has (or matches) PATTERN")
    parser.add_argument("--stage", action="append", choices=(*STAGES, "fault_all"), help="only these stages")
    parser.add_argument("--build", default=context.SOURCE / "build", help="directory of the builds")
    parser.add_argument("--apps", action="store_true",
                        help="programs that are too large for every run, too: more rounds, a browser")
    parser.add_argument("--seed", type=int, default=1,
                        help="for random choices; another one looks elsewhere")
    parser.add_argument("--repeat", type=int, metavar="N",
                        help="each N times, counted in docs/compatibility.md; all nested namespaces "
                        "unless --stage says more")
    parser.add_argument("--switch-off", action="store_true",
                        help="what notices that a feature is off: printed, and written to docs/switch-off.md")
    parser.add_argument("--fault-all", action="store_true",
                        help="each system call of ckpt fails in turn: printed, and written to docs/faults.md")
    parser.add_argument("--fault-most", type=int, metavar="N",
                        help="with --fault-all: of each system call only N, evenly over the run")
    parser.add_argument("--kills", type=int, metavar="N",
                        help="kill N dumps and N restores of each victim: counted in docs/faults.md")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    return parser.parse_args()


def chosen(args):
    """The stages to run."""
    if args.stage:
        return args.stage
    if args.switch_off:
        return ("build", "switch_off")
    if args.fault_all:
        return ("build", "fault_all")
    if args.kills:
        return ("build", "kill")
    return ("build", "boxes", "sandboxes") if args.repeat else STAGES


def main():
    """See above."""
    args = arguments()
    if os.geteuid():
        sys.exit("the tests need root")
    proc.start_afresh()
    proc.become_subreaper()
    proc.own_ipc_namespace()
    run = context.Context(args.build, args.quick, args.seed, args.apps, args.fault_most, args.kills)
    results = report.Report(args.only, args.repeat or 1)
    print(f"seed {args.seed}", flush=True)
    for stage in chosen(args):
        module = importlib.import_module(f"stages.{stage}")
        for name, function in module.tests(run):
            if args.list:
                print(name)
                continue
            results.run(name, function, always=name in BUILDS)
        if stage == "build" and any(name == "build/release" for name in results.failed):
            print("without a build there is nothing to test")
            break
    if args.list:
        return 0
    if args.repeat:
        tables.repeats(results)
    if args.kills:
        tables.kills(results)
    if args.switch_off:
        tables.switch_off(run, results, importlib.import_module("stages.switch_off").matrix(run))
    return results.summary()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""inventory.py PID: what the kernel holds for the tree below PID, as JSON.
inventory.py BEFORE.json AFTER.json: the differences between two of them; exit 1 if there are any."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib import inventory  # pylint: disable=wrong-import-position


def load(path):
    """An inventory from a file."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    """See above."""
    arguments = sys.argv[1:]
    if len(arguments) == 1 and arguments[0].isdigit():
        json.dump(inventory.take(int(arguments[0])), sys.stdout, indent=1)
        print()
        return 0
    if len(arguments) == 2:
        differences = inventory.compare(load(arguments[0]), load(arguments[1]))
        print("\n".join(differences) or "equal")
        return 1 if differences else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

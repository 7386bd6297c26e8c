# SPDX-License-Identifier: MIT
"""The machine's pool of huge pages: tests that need some lend them to it."""
from pathlib import Path

from lib import proc

POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")


def number(name):
    """One of the pool's numbers."""
    return int((POOL / name).read_text())


def grow(pages):
    """Makes the pool larger by so many pages, or smaller; returns by how many it is."""
    before = number("nr_hugepages")
    (POOL / "nr_hugepages").write_text(str(before + pages))
    return number("nr_hugepages") - before


def lend(test, pages):
    """Lets that many be free until the test ends, if the machine has memory for them."""
    if not pages or not POOL.exists():
        return
    missing = pages - (number("free_hugepages") - number("resv_hugepages"))
    if missing > 0:
        lent = grow(missing)
        test.cleanup(take_back, lent)


def take_back(pages):
    """Puts the pool back to what it was, when the victims have given back theirs."""
    proc.wait_until("huge pages are in use", lambda: number("free_hugepages") >= pages)
    grow(-pages)

#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""interpreter.py DIR: w9, an interpreter with a good part of its library loaded and some state; a victim
that speaks the protocol of tests/scenario/victim.h."""
import hashlib
import itertools
import os
import random
import signal
import sqlite3
import sys
import threading
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "apps"))
from judged import serve  # pylint: disable=wrong-import-position

MODULES = ("argparse asyncio bz2 collections concurrent.futures csv ctypes datetime decimal difflib "
           "email.mime.multipart functools hashlib http.server itertools json logging lzma multiprocessing "
           "random re sqlite3 ssl subprocess tarfile threading unittest urllib.request uuid "
           "xml.etree.ElementTree zipfile zlib").split()


class Interpreter:
    """20,000 lists, a database in memory, a generator that was used, a thread that waits."""

    def __init__(self):
        self.modules = [import_module(name) for name in MODULES]
        chance = random.Random(1)
        self.table = {i: [chance.random() for _ in range(8)] for i in range(20000)}
        self.rows = sqlite3.connect(":memory:")
        self.rows.execute("create table t(a integer primary key, b text)")
        self.rows.executemany("insert into t values(?, ?)", [(i, self.digest(i)) for i in range(5000)])
        self.squares = (i * i for i in itertools.count())
        self.rounds = 0
        self.asked, self.done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self.work, daemon=True).start()

    @staticmethod
    def digest(number):
        """A row's text."""
        return hashlib.sha1(b"%d" % number).hexdigest()

    def work(self):
        """Answers whoever asks."""
        while self.asked.acquire():  # pylint: disable=consider-using-with
            self.done.release()

    def judge(self):
        """The first thing that is wrong, or None."""
        self.rounds += 1
        chance = random.Random(1)
        if any(self.table[i] != [chance.random() for _ in range(8)] for i in range(20000)):
            return "the table has changed"
        if any(text != self.digest(number) for number, text in self.rows.execute("select a, b from t")):
            return "a row has changed"
        if next(self.squares) != (self.rounds - 1) ** 2:
            return "the generator is elsewhere"
        self.asked.release()
        if not self.done.acquire(timeout=20):  # pylint: disable=consider-using-with
            return "the thread does not answer"
        return None


def main():
    """Builds the state and answers SIGUSR1."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.chdir("/")
    serve(Interpreter())


main()

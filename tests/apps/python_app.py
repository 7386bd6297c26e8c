#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""python_app.py DIR: a Python program with threads, subprocesses behind pipes and half-used state; a
victim that speaks the protocol of tests/scenario/victim.h."""
import hashlib
import itertools
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time

from judged import PATIENCE, serve

ECHO = "import sys\nn = 0\nfor line in sys.stdin:\n    n += 1\n    print(n, line.strip(), flush=True)\n"


class App:
    """State that only survives if memory, threads, children and pipes do."""

    def __init__(self):
        random.seed(1)
        self.table = {i: [random.random() for _ in range(8)] for i in range(20000)}
        self.squares = (i * i for i in itertools.count())
        self.rounds = 0
        self.jobs, self.results = queue.Queue(), queue.Queue()
        self.beats = 0
        for target in (self.hash_jobs, self.hash_jobs, self.beat):
            threading.Thread(target=target, daemon=True).start()
        self.cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.echo = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)
        self.dead = subprocess.Popen(["false"])
        os.waitid(os.P_PID, self.dead.pid, os.WEXITED | os.WNOWAIT)

    def hash_jobs(self):
        """Two threads wait for work on a queue."""
        while True:
            job = self.jobs.get()
            self.results.put(hashlib.sha256(job).hexdigest())

    def beat(self):
        """One sleeps and counts."""
        while True:
            begin = time.monotonic()
            time.sleep(0.01)
            assert time.monotonic() - begin >= 0.01
            self.beats += 1

    def judge(self):
        """The first thing that is wrong, or None."""
        self.rounds += 1
        random.seed(1)
        if any(self.table[i] != [random.random() for _ in range(8)] for i in range(20000)):
            return "the table has changed"
        if next(self.squares) != (self.rounds - 1) ** 2:
            return "the generator is elsewhere"
        job = b"job %d" % self.rounds
        self.jobs.put(job)
        if self.results.get(timeout=PATIENCE) != hashlib.sha256(job).hexdigest():
            return "a thread hashed something else"
        beats, begin = self.beats, time.monotonic()
        while self.beats <= beats:
            time.sleep(0.1)
            if time.monotonic() > begin + PATIENCE:
                return "the sleeping thread has stopped"
        self.cat.stdin.write(b"line %d\n" % self.rounds)
        self.cat.stdin.flush()
        if self.cat.stdout.readline() != b"line %d\n" % self.rounds:
            return "cat answers something else"
        print("hello", file=self.echo.stdin, flush=True)
        answer = self.echo.stdout.readline()
        if answer != f"{self.rounds} hello\n":
            return f"the child answers {answer!r} in round {self.rounds}"
        status = os.waitid(os.P_PID, self.dead.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if status is None or status.si_status != 1:
            return f"the dead child: {status}"
        return None


def main():
    """Builds the state and answers SIGUSR1."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.chdir("/")
    serve(App())


main()

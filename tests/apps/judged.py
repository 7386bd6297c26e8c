# SPDX-License-Identifier: MIT
"""Victims in Python: the protocol of tests/scenario/victim.h."""
import os
import signal
import sys

PATIENCE = 100  # seconds for what takes moments; whoever asks us waits a little longer
DIRECTORY = os.path.abspath(sys.argv[1])


def publish(name, text):
    """All of the text or nothing."""
    path = os.path.join(DIRECTORY, name)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)


def ready():
    """The state stands."""
    publish("ready", f"{os.getpid()}\n")


def verdict(number, complaint):
    """The answer to SIGUSR1: the first thing that is wrong, or None."""
    publish("result", f"bad {number}: {complaint}\n" if complaint else f"ok {number}\n")


def serve(app):
    """Answers each SIGUSR1, which the app has blocked before it began threads and children."""
    ready()
    while True:
        signal.sigwait({signal.SIGUSR1})
        try:
            complaint = app.judge()
        except Exception as error:  # pylint: disable=broad-except
            complaint = repr(error)
        verdict(app.rounds, complaint)

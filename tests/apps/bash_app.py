#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""bash_app.py DIR: an interactive bash in a terminal of its own, with a pipeline in the foreground, jobs
in the background, a stopped one, and a trap. This program holds the terminal's other side and types; it is
a victim that speaks the protocol of tests/scenario/victim.h."""
import fcntl
import os
import re
import select
import signal
import struct
import termios

from judged import PATIENCE, serve

SETUP = ["bind 'set enable-bracketed-paste off'", "PS1='ready> '", "stty -echo",
         "trap 'echo trapped $((++traps))' USR2",
         "sleep 10001 | cat &", "sleep 10002 &", "kill -STOP %2",
         "PS1='prompt> '"]
PIPELINE = "while read -r line; do echo \"$((++n)) $line\"; done | sed -u 's/^/out /'"


class App:
    """The user at the terminal."""

    def __init__(self):
        self.master, slave = os.openpty()
        os.set_inheritable(slave, True)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
        self.bash = os.fork()
        if not self.bash:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for fd in range(3):
                os.dup2(slave, fd)
            os.closerange(3, 100)
            os.execve("/bin/bash", ["bash", "--norc", "-i"],
                      {"PATH": os.environ["PATH"], "TERM": "dumb", "HISTFILE": "", "HOME": "/"})
        os.close(slave)
        self.rounds = 0
        for line in SETUP:
            self.type(line + "\n")
        self.expect("prompt> $")
        self.type(PIPELINE + "\n")
        self.rows = 33

    def type(self, text):
        """Presses keys."""
        os.write(self.master, text.encode())

    def expect(self, pattern):
        """Reads until the screen shows that; returns the match."""
        seen = ""
        while not (match := re.search(pattern, seen)):
            if not select.select([self.master], [], [], PATIENCE)[0]:
                raise RuntimeError(f"no {pattern!r} but {seen!r}")
            seen += os.read(self.master, 4096).decode()
        return match

    def judge(self):
        """The pipeline answers, can be stopped, looked at and continued, and the trap works."""
        self.rounds += 1
        self.type(f"first {self.rounds}\n")
        self.expect(f"out {2 * self.rounds - 1} first {self.rounds}\r\n$")
        self.type("\x1a")
        self.expect("Stopped(.*\n)*prompt> $")
        self.type("jobs; echo end-of-jobs\n")
        listed = self.expect(r"((.*\n)*)end-of-jobs\r\nprompt> $").group(1)
        states = re.findall(r"\[\d\][-+ ] *(\w+) ", listed)
        if states != ["Running", "Stopped", "Stopped"]:
            return f"the jobs are {listed!r}"
        self.type("kill -USR2 $$\n")
        # before its prompt readline reads the window's size and sets it again: not at the same time as we
        self.expect(f"trapped {self.rounds}\r\nprompt> $")
        self.rows += 1
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, 99, 0, 0))
        self.type("stty size; echo $LINES end-of-size\n")
        self.expect(rf"{self.rows} 99\r\n{self.rows} end-of-size\r\nprompt> $")
        self.type("fg %3\n")
        self.expect("sed -u .*\r\n")
        self.type(f"second {self.rounds}\n")
        self.expect(f"out {2 * self.rounds} second {self.rounds}\r\n$")
        return None


def main():
    """Builds the state and answers SIGUSR1."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.chdir("/")
    serve(App())


main()

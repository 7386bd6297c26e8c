# SPDX-License-Identifier: MIT
"""tmux with two panes: an interactive bash and vim with a file that is not written yet."""
import os
import subprocess

from lib import proc
from lib.report import expect


class Tmux:
    """A server of our own, asked through its socket."""

    def __init__(self, test):
        self.socket, self.file = test.dir / "tmux", test.dir / "file"
        self.env = {"PATH": os.environ["PATH"], "TERM": "xterm", "HOME": "/", "HISTFILE": ""}
        self.rounds = 0
        self.ask("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "bash --norc")
        self.pid = int(self.ask("display-message", "-p", "#{pid}"))
        test.cleanup(lambda: proc.kill_tree(self.pid))
        self.ask("split-window", "-h", f"vim -N -u NONE -i NONE -n {self.file}")
        self.shows(1, "~\n")
        self.type(0, "PS1='ready> '", "Enter")
        self.shows(0, "ready> ")
        self.type(0, "clear", "Enter")
        self.type(1, "i")

    def ask(self, *words):
        """One command of tmux's; what it prints."""
        done = subprocess.run(["/usr/bin/tmux", "-S", str(self.socket), *words], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=proc.PATIENCE, check=False, cwd="/",
                              env=self.env)
        expect(done.returncode == 0, f"tmux {words[0]}: {done.stderr}")
        return done.stdout

    def type(self, pane, *keys):
        """Presses keys."""
        self.ask("send-keys", "-t", str(pane), *keys)

    def shows(self, pane, text):
        """Waits until a pane has that on its screen."""
        proc.wait_until(f"pane {pane} does not show {text!r}",
                        lambda: text in self.ask("capture-pane", "-p", "-t", str(pane)))

    def check(self, when):
        """The shell counts on, the editor has all the lines and writes them."""
        self.rounds += 1
        self.type(0, "echo round $((++rounds)) of $$", "Enter")
        self.shows(0, f"round {self.rounds} of ")
        self.type(1, f"line {self.rounds}", "Enter")
        self.shows(1, f"line {self.rounds}\n")
        self.type(1, "Escape", ":w", "Enter")
        wanted = "".join(f"line {number}\n" for number in range(1, self.rounds + 1))
        proc.wait_until(f"{when}: the file is not written",
                        lambda: proc.read(self.file).startswith(wanted))
        self.type(1, "i")
        expect(self.ask("list-panes", "-F", "#{pane_width}") == "50\n49\n", f"{when}: the panes' widths")

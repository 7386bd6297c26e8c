# SPDX-License-Identifier: MIT
"""A desktop in a container (desktop/): X server, window manager, bus, and terminals or a browser with its
sandbox on. All processes are one tree; nothing of it leaves it."""
import contextlib
import copy
import os
import re
import subprocess
import time

from apps.desktop import ask
from lib import namespaces, proc
from lib.report import Failure, Skip, expect

# desktop/get-vscode.sh puts it there
CODE = "/opt/ckpt-vscode/node_modules/code-server"
# an ordinary user that every machine has
UID, GID = 5, 60
PATIENCE = 180


class Desktop:
    """A container with a session; asked from outside by programs that go in for a moment."""

    # for bench/desktop
    dump_options, restore_options = ("--patience", "60"), ()
    # of session.sh
    program = "x"

    def __init__(self, test, source):
        self.dir, self.checks, self.test = test.dir / "desktop", 0, test
        self.number = 0  # of the copy
        for name in ("home", "root"):
            (self.dir / name).mkdir(parents=True)
        os.chown(self.dir / "home", UID, GID)
        kit = source / "tests" / "apps" / "desktop"
        with open(self.dir / "log", "wb") as log:
            outer = subprocess.Popen(
                ["/usr/bin/unshare", "--pid", "--fork",
                 # the one that waits must not be in these
                 "/usr/bin/unshare", "--mount", "--ipc", "--uts", "--net",
                 "/bin/bash", kit / "container.sh", kit, self.dir, str(UID), str(GID), self.program],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/")
        outer.returncode = 0
        test.cleanup(lambda: proc.kill_tree(outer.pid))
        self.pid = 0
        test.cleanup(lambda: self.pid and proc.kill_tree(self.pid))
        self.pid = proc.wait_until("no container", lambda: self.first_process(outer.pid), PATIENCE)
        self.settle()

    def settle(self):
        """Waits until everything is there."""
        self.until("no X server", lambda: self.inside("xdpyinfo"))

    def answers(self):
        """Does it react at all?"""
        return self.inside("xdpyinfo")

    def check(self, when):
        """A client comes and goes."""
        self.checks += 1
        self.until(f"{when}: no X server", self.answers)

    def tell(self):
        """Gives the X server something that only this copy knows."""
        self.inside("xprop", "-root", "-f", "CKPT_COPY", "8s", "-set", "CKPT_COPY", str(self.number))

    def told(self):
        """What it was given."""
        return self.inside("xprop", "-root", "CKPT_COPY").rpartition("= ")[2].strip('"\n')

    @staticmethod
    def first_process(outer):
        """Whoever is number 1 in there, once it has moved into its root."""
        for child in proc.read(f"/proc/{outer}/task/{outer}/children").split():
            if b"\0inside\0" in proc.read(f"/proc/{child}/cmdline").encode():
                return int(child)
        return 0

    def inside(self, *words):
        """What a program in the container prints, run as its user."""
        command = ["/usr/bin/nsenter", "-t", str(self.pid), "-m", "-p", "-i", "-u", "-n", "--",
                   "/usr/bin/setpriv", "--reuid", str(UID), "--regid", str(GID), "--clear-groups",
                   "/usr/bin/env", "-i", "HOME=/home", "PATH=/usr/bin:/bin", "LANG=C.UTF-8", "DISPLAY=:7",
                   *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=PATIENCE, check=False, cwd="/")
        self.test.log(f"$ {' '.join(words)}\n{done.stdout[:2000]}{done.stderr[-500:]}"
                      f"[exit {done.returncode}]")
        return done.stdout if done.returncode == 0 else ""

    def until(self, what, condition, patience=PATIENCE):
        """Waits for something that the container's programs do in their own time."""
        try:
            return proc.wait_until(what, condition, patience, 0.2)
        except proc.Timeout as late:
            raise Failure(f"{late}; {self.home('session.log')[-300:]}") from late

    def home(self, name):
        """The text of a file of the user's, of whom each copy has its own."""
        return proc.read(f"/proc/{self.pid}/root/home/{name}")

    def copied(self, root, number):
        """One of the copies of its image (`ckpt branch`)."""
        other = copy.copy(self)
        other.pid, other.number = root, number
        self.test.cleanup(other.end)
        return other

    def end(self):
        """Of a copy: the first process of its namespace ends, and with it all in it."""
        if proc.exists(self.pid):
            proc.kill_tree(int(proc.stat_fields(self.pid)[1][1]))

    def window(self, name):
        """Its number, as soon as it is there."""
        return self.until(f"no window {name}", lambda: self.inside(
            "xdotool", "search", "--onlyvisible", "--name", name).split())[-1]

    def activate(self, window):
        """The window manager gives it the keyboard."""
        self.inside("xdotool", "windowactivate", "--sync", self.window(window))

    def keys(self, window, text):
        """Types into a window as the X server's keyboard."""
        number = self.window(window)
        self.inside("xdotool", "windowactivate", "--sync", number, "type", "--delay", "20", text)


class Terminals(Desktop):
    """xterms with bash and tmux, an editor, two prompts that count, jobs."""

    program = "term"

    def settle(self):
        self.until("the loop does not run", lambda: self.home("jobs"))
        for window in ("^shell$", "^tmux$"):
            self.window(window)

    def answers(self):
        return self.shown("sh")

    def tmux(self, *words):
        """One command of tmux's."""
        return self.inside("tmux", "-L", "desk", *words)

    def type(self, window, *keys):
        """Presses keys in a window of tmux's."""
        self.tmux("send-keys", "-t", f"main:{window}", *keys)

    def shown(self, window):
        """What is on its screen."""
        return self.tmux("capture-pane", "-p", "-t", f"main:{window}")

    def prompt(self, window, question, mark):
        """The number that a prompt answers with."""
        self.type(window, question.replace("@", mark), "Enter")
        answer = rf"^{mark} (\d+)$"
        return int(self.until(f"{window} does not answer",
                              lambda: re.search(answer, self.shown(window), re.MULTILINE)).group(1))

    def counts(self, window, question):
        """A prompt's counter goes on."""
        first = self.prompt(window, question, f"a{self.checks}")
        proc.wait_until(f"{window} does not count",
                        lambda: self.prompt(window, question, f"b{self.checks}") > first, PATIENCE, 0.2)

    def check(self, when):
        """Everything goes on, and takes keys."""
        self.checks += 1
        number = self.checks
        self.keys("^shell$", f"echo {number}$((number += 1)) >typed; tty >tty\n")
        self.until(f"{when}: the keyboard does not reach the shell",
                   lambda: self.home("typed") == f"{number}{number}\n" and
                   self.home("tty").startswith("/dev/pts/"))
        self.counts("py", "print('@', n)")
        self.counts("node", "console.log('@', n)")
        before = self.home("jobs")
        self.until(f"{when}: the loop stands", lambda: self.home("jobs") not in ("", before))
        self.jobs(when)
        self.type("vim", f"oline {number}", "Escape", ":w", "Enter")
        self.until(f"{when}: the editor does not write", lambda: f"line {number}\n" in self.home("note"))
        self.tmux("new-window", "-t", "main", f"echo {number} >/home/window")
        self.until(f"{when}: no new terminal", lambda: self.home("window") == f"{number}\n")

    def tell(self):
        """Gives the shell something that only this copy knows."""
        self.keys("^shell$", f"mine={self.number}\n")

    def told(self):
        """What it was given."""
        self.keys("^shell$", "echo $mine >mine\n")
        return self.until("the shell does not say what it was given", lambda: self.home("mine")).strip()

    def jobs(self, when):
        """Ctrl-Z stops the loop, the shell knows its jobs, `fg` lets it go on."""
        self.type("jobs", "C-z")
        self.until(f"{when}: not stopped", lambda: "Stopped" in self.shown("jobs"))
        self.type("jobs", "clear; jobs", "Enter")
        self.until(f"{when}: a job is not known",
                   lambda: re.search(r"Running +sleep 99999", self.shown("jobs")))
        before = self.home("jobs")
        self.type("jobs", "clear; fg", "Enter")
        self.until(f"{when}: the loop does not go on", lambda: self.home("jobs") not in ("", before))


class Chromium(Desktop):
    """Three tabs at work, in their sandbox."""

    program = "chromium"
    loaded = 0  # when pages were asked for again
    typed = ""  # the page whose form has what was typed

    def __init__(self, test, source):
        if not os.path.exists("/usr/lib/chromium/chromium"):
            raise Skip("chromium is not installed")
        super().__init__(test, source)

    def settle(self):
        self.loaded = time.monotonic()
        self.until("the pages are not there", self.are_at_work, 2 * PATIENCE)

    def are_at_work(self):
        """All that a page does has been seen once. On a crowded machine chromium's network service may end
        while it starts; what was being loaded then is not loaded again unless somebody asks."""
        pages = self.pages()
        lost = [name for name in "abc" if not self.is_at_work(pages.get(name))]
        if lost and time.monotonic() > self.loaded + PATIENCE / 4:
            self.loaded = time.monotonic()
            for name in lost:
                self.evaluate(f"p={name}", f"location = 'http://127.0.0.1:8000/page.html?p={name}'")
        return not lost

    @staticmethod
    def is_at_work(page):
        """That page; its first connection is the one that it has."""
        return (page and page["beats"] and page["stats"]["worker"] and page["stats"]["fetch"] and
                not page.get("reopened"))

    def answers(self):
        return self.evaluate("p=a", "stats.frames")

    def ask(self, *words):
        """One question of ask.py's; None: there was no answer."""
        try:
            with namespaces.network_of(self.pid):
                answer = ask.answer(*words)
        except (OSError, ValueError) as error:
            answer = None
            self.test.log(f"{' '.join(words)}: {error}")
        return answer

    def pages(self):
        """What the server knows of them."""
        known = (self.ask("state") or {}).get("pages", {})
        return {name: page for name, page in known.items() if name in "abc"}

    def evaluate(self, page, expression):
        """In a page."""
        return self.ask("eval", page, expression)

    def goes_on(self, when):
        """WebSocket, fetch, worker and timer of all pages; no connection was lost."""
        before = self.pages()

        def more():
            now = self.pages()
            return len(now) == len(before) == 3 and all(
                now[name]["beats"] > page["beats"] + 1 and
                all(now[name]["stats"][key] > page["stats"][key] for key in ("worker", "fetch")) and
                now[name]["counter"] > page["counter"] for name, page in before.items())
        self.until(f"{when}: a page stands: {before}", more)
        expect(all(not page.get("reopened") for page in self.pages().values()),
               f"{when}: a WebSocket was cut")

    def form(self, when):
        """What is typed at the X server's keyboard comes to the visible page, which draws."""
        shown = self.until(f"{when}: no page is visible", lambda: [
            name for name in "abc" if self.evaluate(f"p={name}", "document.visibilityState") == "visible"])[0]
        page, text = f"p={shown}", f"typed {self.checks} into {self.number}"
        self.typed = page
        frames = self.evaluate(page, "stats.frames")
        self.until(f"{when}: no frames", lambda: self.evaluate(page, "stats.frames") > frames)
        self.evaluate(page, 'i2.value = ""; i2.focus(); 1')
        self.activate("lab page")
        self.until(f"{when}: the form has no focus", lambda: self.evaluate(
            page, "document.hasFocus() && document.activeElement === i2"))
        self.keys("lab page", text)
        self.until(f"{when}: the keyboard does not reach the form",
                   lambda: self.evaluate(page, 'i2.value') == text)

    def tell(self):
        """The form has what a check has typed."""

    def told(self):
        """Into which copy that was."""
        return self.evaluate(self.typed, "i2.value").rpartition(" ")[2]

    def sandbox(self, when):
        """A new renderer starts in it."""
        self.ask("open", "chrome://sandbox")
        self.until(f"{when}: no adequate sandbox", lambda: "You are adequately sandboxed" in (
            self.evaluate("chrome://sandbox", "document.body.innerText") or ""))
        self.ask("close", "chrome://sandbox")

    def check(self, when):
        """All of that, and the database takes what is put into it."""
        self.checks += 1
        self.goes_on(when)
        self.form(when)
        self.evaluate("p=a", 'window.stored = 0; db.transaction("s", "readwrite").objectStore("s")'
                      f'.put({self.checks}, "check").onsuccess = () => {{ stored = {self.checks} }}; 1')
        self.until(f"{when}: the database is stuck", lambda: self.evaluate("p=a", "stored") == self.checks)
        self.sandbox(when)


class Busy:
    """A desktop with more to do while nobody looks: session.sh does it while there is no file `quiet`."""

    def settle(self):
        super().settle()
        self.inside("rm", "/home/quiet")

    @contextlib.contextmanager
    def at_rest(self, mark):
        """Nothing is done for a while; how much was done before. `mark` is one that was not used before."""
        self.inside("sh", "-c", f"echo {mark} >/home/quiet")
        yield int(self.until(f"{mark}: it does not come to rest",
                             lambda: re.match(rf"{mark}: (\d+)", self.home("rests"))).group(1))
        self.inside("rm", "/home/quiet")

    def check(self, when):
        """At rest everything is as it is without, and more was done than at the last rest."""
        with self.at_rest(f"check {self.checks}") as before:
            super().check(when)
        self.until(f"{when}: nothing is done", lambda: int(self.home("count") or 0) > before)

    def tell(self):
        """Nobody else is at the keyboard."""
        with self.at_rest("tell"):
            super().tell()

    def told(self):
        with self.at_rest("told"):
            return super().told()


class Code(Chromium):
    """VS Code: its server, extension host, language servers and a terminal, in a window of Chromium's."""

    program = "code"
    # what its terminal's loop does
    work = "sleep 0.2"

    def __init__(self, test, source):
        if not os.path.exists(CODE):
            raise Skip("VS Code is not there (tests/apps/desktop/get-vscode.sh)")
        super().__init__(test, source)

    def shows(self, selector):
        """Is there such an element?"""
        return self.evaluate(":8080", f"document.querySelectorAll('{selector}').length")

    def press(self, *keys):
        """In its window."""
        number = self.window("code-server")
        self.inside("xdotool", "windowactivate", "--sync", number, "key", *keys)

    def focus(self, name):
        """Does what is typed go to such an element? It is there before it gets that."""
        return name in (self.evaluate(":8080", "document.activeElement.className") or "")

    def write(self, text):
        """Where its cursor is."""
        self.keys("code-server", text)

    def settle(self):
        self.loaded = time.monotonic()
        self.until("no workbench", self.is_open, 3 * PATIENCE)
        # the project has one file
        self.press("ctrl+shift+e", "Home", "Return")
        self.until("no editor", lambda: self.shows('[data-uri$="a.js"] .view-line'))
        self.terminal(f"n=0; while {self.work}; do n=$((n+1)); echo $n >~/loop; done")
        self.until("no terminal", lambda: self.home("loop"))

    def is_open(self):
        """The project shows. As with other pages, what was not loaded is asked for again."""
        there = self.shows(".explorer-folders-view .monaco-list-row")
        if not there and time.monotonic() > self.loaded + PATIENCE:
            self.loaded = time.monotonic()
            self.evaluate(":8080", "location = 'http://127.0.0.1:8080/?folder=/home/project'")
        return there

    def terminal(self, command):
        """A new one, in which a command runs."""
        self.evaluate(":8080", "document.querySelectorAll('.terminal-wrapper').forEach(e => e.known = 1); 1")
        self.press("ctrl+shift+grave")
        # another one may have the keyboard for a moment
        self.until("no new terminal", lambda: self.focus("xterm") and self.evaluate(
            ":8080", "(e => e && !e.known)(document.activeElement.closest('.terminal-wrapper'))"))
        self.write(command + "\n")

    def answers(self):
        return self.evaluate(":8080", "document.title")

    def loops(self, when):
        """What the first terminal does goes on."""
        before = self.home("loop")
        self.until(f"{when}: the loop stands", lambda: self.home("loop") not in ("", before))

    def check(self, when):
        """The terminal's loop goes on, what is typed comes to the file, a new terminal opens."""
        self.checks += 1
        text = f"check {self.checks} of {self.number}"
        self.loops(when)
        self.press("ctrl+1")
        self.until(f"{when}: the editor has no focus", lambda: self.shows(".monaco-editor.focused"))
        self.press("ctrl+End")
        self.write(f"// {text}\n")
        self.press("ctrl+s")
        self.until(f"{when}: the editor does not save", lambda: text in self.home("project/a.js"))
        there = self.shows(".terminal-wrapper")
        self.terminal(f"echo {text} >~/terminal; exit")
        self.until(f"{when}: no new terminal", lambda: self.home("terminal") == text + "\n")
        # the one that ends gives the keyboard to another, which a next check would lose then
        self.until(f"{when}: the terminal does not end", lambda: self.shows(".terminal-wrapper") == there)
        self.loops(f"{when}, at last")
        expect(not self.shows(".monaco-dialog-box"), f"{when}: a connection was lost")

    def tell(self):
        """The file has what a check has typed."""

    def told(self):
        return re.findall(r"// check \d+ of (\d+)", self.home("project/a.js"))[-1]


class Session(Terminals, Code):
    """Terminals, a browser, and VS Code in another window of that."""

    program = "session"
    parts = (Terminals, Chromium, Code)

    def settle(self):
        for part in self.parts:
            part.settle(self)

    def answers(self):
        return all(part.answers(self) for part in self.parts)

    def check(self, when):
        before = self.checks
        for part in self.parts:
            # one number for all of them: the shell counts too
            self.checks = before
            part.check(self, when)

    def tell(self):
        for part in self.parts:
            part.tell(self)

    def told(self):
        told = {part.told(self) for part in self.parts}
        return told.pop() if len(told) == 1 else str(told)


class Opening(Busy, Desktop):
    """Windows come and go."""

    program = "opening"


class Building(Busy, Terminals):
    """A compiler is called again and again."""

    program = "building"


class Browsing(Busy, Chromium):
    """Tabs come and go, and somebody types."""

    program = "browsing"


class Coding(Busy, Code):
    """A build without end in its terminal, and somebody types into the editor."""

    program = "coding"
    work = "cc -o hello ../hello.c"


class Working(Busy, Session):
    """All of that at the same time."""

    program = "working"
    work = Coding.work


DESKTOPS = {"x": Desktop, "opening": Opening, "terminals": Terminals, "building": Building,
            "chromium": Chromium, "browsing": Browsing, "code": Code, "coding": Coding,
            "session": Session, "working": Working}

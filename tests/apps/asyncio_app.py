#!/usr/bin/python3 -B
# SPDX-License-Identifier: MIT
"""asyncio_app.py DIR: an event loop with a unix socket server and clients that stay connected, timers,
subprocesses, a thread pool and signals; a victim that speaks the protocol of tests/scenario/victim.h."""
import asyncio
import hashlib
import os
import signal
import time

from judged import DIRECTORY, PATIENCE, ready, verdict

CLIENTS = 8
PERIOD = 0.01


class App:
    """What the loop waits for is spread over epoll, pipes, sockets, threads and its own heap of timers."""

    def __init__(self):
        self.rounds = 0
        self.ticks, self.ticks_seen, self.seen_at = 0, 0, time.monotonic()
        self.path = os.path.join(DIRECTORY, "socket")
        self.server, self.cat, self.clients, self.tasks = None, None, [], []
        self.asked, self.called = asyncio.Event(), asyncio.Queue()

    async def serve(self, reader, writer):
        """Each connection has a count of its own."""
        lines = 0
        while line := await reader.readline():
            lines += 1
            writer.write(b"%d %s" % (lines, line))
            await writer.drain()
        writer.close()

    async def tick(self):
        """A timer that must be neither early nor lost."""
        while True:
            begin = time.monotonic()
            await asyncio.sleep(PERIOD)
            assert time.monotonic() - begin >= PERIOD * 0.9
            self.ticks += 1

    async def start(self):
        """Builds the state."""
        loop = asyncio.get_running_loop()
        self.server = await asyncio.start_unix_server(self.serve, self.path)
        for _ in range(CLIENTS):
            self.clients.append(await asyncio.open_unix_connection(self.path))
        self.cat = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE,
                                                        stdout=asyncio.subprocess.PIPE)
        self.tasks.append(asyncio.create_task(self.tick()))
        loop.add_signal_handler(signal.SIGUSR1, self.asked.set)
        loop.add_signal_handler(signal.SIGUSR2, lambda: self.called.put_nowait("SIGUSR2"))
        await loop.run_in_executor(None, time.sleep, 0)

    async def talk(self, reader, writer, text):
        """A line over a connection, and the answer to it."""
        writer.write(text + b"\n")
        await writer.drain()
        return (await reader.readline()).rstrip(b"\n")

    async def judge(self):
        """The first thing that is wrong, or None."""
        return (await self.judge_sockets() or await self.judge_children() or await self.judge_threads()
                or await self.judge_time())

    async def judge_sockets(self):
        """All connections at once, and a new one."""
        text = b"round %d" % self.rounds
        answers = await asyncio.gather(*(self.talk(*client, text) for client in self.clients))
        for number, answer in enumerate(answers):
            if answer != b"%d %s" % (self.rounds, text):
                return f"connection {number} answers {answer!r} in round {self.rounds}"
        reader, writer = await asyncio.open_unix_connection(self.path)
        answer = await self.talk(reader, writer, text)
        writer.close()
        await writer.wait_closed()
        return None if answer == b"1 " + text else f"a new connection answers {answer!r}"

    async def judge_children(self):
        """The child that was there, and one that comes and goes."""
        text = b"line %d" % self.rounds
        answer = await self.talk(self.cat.stdout, self.cat.stdin, text)
        if answer != text:
            return f"cat answers {answer!r}"
        late = await asyncio.create_subprocess_exec("sh", "-c", f"echo {self.rounds}; exit 3",
                                                    stdout=asyncio.subprocess.PIPE)
        said, _ = await late.communicate()
        if int(said) != self.rounds or late.returncode != 3:
            return f"a new child says {said!r} and ends with {late.returncode}"
        return None

    async def judge_threads(self):
        """The executor's threads, and a signal."""
        loop = asyncio.get_running_loop()
        jobs = [b"job %d.%d" % (self.rounds, i) for i in range(4)]
        found = await asyncio.gather(*(loop.run_in_executor(None, lambda job=job:
                                                            hashlib.sha256(job).hexdigest())
                                       for job in jobs))
        if found != [hashlib.sha256(job).hexdigest() for job in jobs]:
            return "a thread hashed something else"
        os.kill(os.getpid(), signal.SIGUSR2)
        return None if await self.called.get() == "SIGUSR2" else "another signal came"

    async def judge_time(self):
        """Ticks: some, and not more than there was time for."""
        await asyncio.sleep(5 * PERIOD)
        for task in self.tasks:
            if task.done():
                return f"the timer has ended: {task.exception()!r}"
        now, passed = time.monotonic(), self.ticks - self.ticks_seen
        if not 0 < passed <= (now - self.seen_at) / PERIOD + 2:
            return f"{passed} ticks in {now - self.seen_at:.3f} s"
        self.ticks_seen, self.seen_at = self.ticks, now
        return None


async def main():
    """Builds the state and answers SIGUSR1."""
    app = App()
    await app.start()
    ready()
    while True:
        await app.asked.wait()
        app.asked.clear()
        app.rounds += 1
        try:
            complaint = await asyncio.wait_for(app.judge(), PATIENCE)
        except Exception as error:  # pylint: disable=broad-except
            complaint = repr(error)
        verdict(app.rounds, complaint)


os.chdir("/")
asyncio.run(main())

# SPDX-License-Identifier: MIT
"""nginx with a master, two workers under another user, shared memory, a thread pool and a log."""
import os
import re
import signal
import time

from apps.server import Server
from lib import proc

WORKERS = 2
BIG = 300_000
MINUTE = 50  # seconds, of 60, in which a second request for a key is refused for certain
CONFIG = """
user www-data;
daemon off;
worker_processes {workers};
pid {dir}/pid;
error_log {dir}/error.log;
thread_pool default threads=4;
events {{ worker_connections 64; use epoll; }}
http {{
    access_log {dir}/access.log;
    aio threads;
    sendfile on;
    client_body_temp_path {dir}/tmp-body;
    proxy_temp_path {dir}/tmp-proxy;
    fastcgi_temp_path {dir}/tmp-fastcgi;
    uwsgi_temp_path {dir}/tmp-uwsgi;
    scgi_temp_path {dir}/tmp-scgi;
    limit_req_zone $arg_key zone=once:1m rate=1r/m;
    server {{
        # with a queue for each worker, connections reach them all
        listen 127.0.0.1:{port} reuseport;
        listen unix:{dir}/socket;
        root {dir}/www;
        location = /worker {{ return 200 $pid; }}
        location = /status {{ stub_status; }}
        location = /once {{ limit_req zone=once; limit_req_status 429; try_files /small =404; }}
    }}
}}
"""


class Nginx(Server):
    """Counts what it has asked: the server must have counted the same."""

    def __init__(self, test):
        super().__init__(test, "nginx")
        # the workers are somebody else and must get here
        test.dir.chmod(0o755)
        (self.dir / "www").mkdir()
        (self.dir / "www/big").write_text("x" * BIG)
        (self.dir / "www/small").write_text("hello")
        self.config = self.dir / "nginx.conf"
        self.config.write_text(CONFIG.format(workers=WORKERS, dir=self.dir, port=self.port))
        self.asked, self.first = 0, {}
        self.start("/usr/sbin/nginx", "-e", self.dir / "error.log", "-c", self.config)
        self.wait_ready(lambda: self.ask("/worker"))
        self.quiet()

    def answer(self, path, local=False):
        """(status, body) of one counted request."""
        answer = self.get_local(path) if local else self.get(path)
        self.asked += 1
        return answer

    def ask(self, path, local=False):
        """The body of one that must succeed."""
        status, body = self.answer(path, local)
        assert status == 200, f"{path}: status {status}"
        return body

    def ask_again(self, key):
        """A second request for a key within a minute is refused; whether a busy machine is that fast is not
        nginx's fault."""
        status, _ = self.answer(f"/once?key={key}")
        passed = time.monotonic() - self.first[key]
        assert status == 429 or passed > MINUTE, f"key {key}: status {status} after {passed:.1f} s"

    def answering(self):
        """The pids of the workers that answer."""
        return {int(self.ask("/worker")) for _ in range(40)}

    def check(self, when):
        """Both workers answer, from both sockets, files too; all that was ever asked is counted and
        logged; and the master can still replace its workers."""
        self.checks += 1
        workers = self.answering()
        assert len(workers) == WORKERS, f"{when}: only {workers} answer"
        assert workers <= set(proc.tree(self.pid)), f"{when}: {workers} are not our workers"
        assert self.ask("/big") == "x" * BIG, f"{when}: a file is not what it was"
        assert self.ask("/small", local=True) == "hello", f"{when}: the unix socket answers something else"
        self.check_memory(when)
        self.reload(workers)
        self.quiet()

    def check_memory(self, when):
        """What only shared memory knows: once a minute is once a minute; and the sum of all requests."""
        self.first[self.checks] = time.monotonic()
        self.ask(f"/once?key={self.checks}")
        self.ask_again(self.checks)
        if self.checks > 1:
            self.ask_again(self.checks - 1)
        status = self.ask("/status")
        counted = int(re.search(r"\n (\d+) (\d+) (\d+) \n", status).group(3))
        assert counted == self.asked, f"{when}: {counted} requests are counted, not {self.asked}"
        log = self.dir / "access.log"
        # a request is logged when it is over, which may be after its answer has come
        proc.wait_until(f"{when}: the log has not {self.asked} requests",
                        lambda: len(log.read_text().splitlines()) == self.asked)

    def reload(self, before):
        """New workers take the place of the old ones, with all their queues."""
        os.kill(self.pid, signal.SIGHUP)
        proc.wait_until("the old workers stay", lambda: not before & set(proc.tree(self.pid)))
        proc.wait_until("new workers do not come", lambda: len(self.answering()) == WORKERS)

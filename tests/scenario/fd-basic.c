/* SPDX-License-Identifier: MIT */
/*
 * Files, pipes, eventfds, timers, epolls, listening sockets and socketpairs; some
 * of them shared with a child, which stays in the tree and holds its own ends.
 */
#include "victim.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/kcmp.h>

#define PIPE_BYTES 70000

static pid_t child;
static int ro, rw, append, dup_rw, dir, high, null, zero;
static int pr, pw, packets[2], mixed[2], reopened, full[2];
static int counter, semaphore, shared_counter;
static bool eventfds;
static int periodic, oneshot, fired, off;
static int ep, ep_outer;
static int tcp4, tcp6, tcp_port, tcp6_port;
static int named, abstract;
static int stream[2], dgram[2], seq[2], lone, reset_end, child_pair[2];
static int fds_before;

static void fill(unsigned char *buf, size_t n, unsigned long seed)
{
	for (size_t i = 0; i < n; i++)
		buf[i] = (unsigned char)victim_word(seed, i);
}

static void build_files(void)
{
	char *data = victim_path("data"), *log = victim_path("log");
	unsigned char buf[5000];

	fill(buf, sizeof(buf), 1);
	rw = MUST(open(data, O_RDWR | O_CREAT | O_TRUNC, 0640));
	MUST(write(rw, buf, sizeof(buf)));
	MUST(lseek(rw, 1234, SEEK_SET));
	dup_rw = MUST(dup(rw));
	ro = MUST(open(data, O_RDONLY | O_CLOEXEC));
	MUST(lseek(ro, 77, SEEK_SET));
	append = MUST(open(log, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0600));
	MUST(write(append, "one\n", 4));
	dir = MUST(open(victim_dir(), O_RDONLY | O_DIRECTORY));
	high = MUST(fcntl(ro, F_DUPFD, 900));
	null = MUST(open("/dev/null", O_WRONLY));
	zero = MUST(open("/dev/zero", O_RDWR | O_CLOEXEC));
}

/*
 * Plain data and packets in one pipe. The first page was full, so that the packet is in one of its
 * own: what is left of it would have room for it.
 */
static const struct {
	size_t len;
	bool packet;
} parts[] = { { 4096, false }, { 100, true }, { 1, true }, { 1, false } };

static void set_packets(int fd, bool on)
{
	MUST(fcntl(fd, F_SETFL, O_NONBLOCK | (on ? O_DIRECT : 0)));
}

static void fill_mixed(void)
{
	char page[4096];

	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		memset(page, 'a' + (int)i, parts[i].len);
		set_packets(mixed[1], parts[i].packet);
		MUST(write(mixed[1], page, parts[i].len));
	}
	set_packets(mixed[1], false);
	MUST(read(mixed[0], page, 4000));
}

static void build_pipes(void)
{
	unsigned char *buf = malloc(PIPE_BYTES);
	char path[64];
	int p[2];

	fill(buf, PIPE_BYTES, 2);
	MUST(pipe2(p, O_NONBLOCK));
	pr = p[0];
	pw = p[1];
	MUST(fcntl(pw, F_SETPIPE_SZ, 256 * 1024));
	for (int at = 0; at < PIPE_BYTES;) {
		int n = at + 3001 < PIPE_BYTES ? 3001 : PIPE_BYTES - at;

		at += (int)MUST(write(pw, buf + at, (size_t)n));
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", pw);
	reopened = MUST(open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC));
	MUST(pipe2(packets, O_DIRECT | O_CLOEXEC));
	MUST(write(packets[1], "first", 5));
	MUST(write(packets[1], "second one", 10));
	MUST(write(packets[1], "3", 1));
	MUST(pipe2(mixed, O_NONBLOCK));
	fill_mixed();
	MUST(pipe2(full, O_NONBLOCK));
	while (write(full[1], buf, 4096) > 0)
		;
	free(buf);
}

/* Where the kernel does not tell a semaphore from a counter they are refused: a pipe is there
 * instead. */
static void build_eventfds(void)
{
	char path[64], *info;
	int ends[2];

	counter = MUST(eventfd(7, EFD_NONBLOCK | EFD_CLOEXEC));
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", counter);
	info = victim_read(path);
	eventfds = info && strstr(info, "eventfd-semaphore:");
	free(info);
	if (eventfds) {
		semaphore = MUST(eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK));
		shared_counter = MUST(eventfd(0, EFD_NONBLOCK));
		return;
	}
	close(counter);
	MUST(pipe(ends));
	MUST(write(ends[1], "?", 1));
	counter = ends[0];
}

static void build_events(void)
{
	struct itimerspec tick = { { 0, 50 * 1000 * 1000 }, { 0, 50 * 1000 * 1000 } };
	struct itimerspec far = { { 0, 0 }, { 100000, 5 } }, soon = { { 0, 0 }, { 0, 1 } };
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 0x1122334455667788 };

	build_eventfds();
	periodic = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
	MUST(timerfd_settime(periodic, 0, &tick, NULL));
	oneshot = MUST(timerfd_create(CLOCK_BOOTTIME, 0));
	MUST(timerfd_settime(oneshot, 0, &far, NULL));
	fired = MUST(timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK));
	MUST(timerfd_settime(fired, TFD_TIMER_ABSTIME, &soon, NULL));
	off = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));

	ep = MUST(epoll_create1(EPOLL_CLOEXEC));
	MUST(epoll_ctl(ep, EPOLL_CTL_ADD, counter, &ev));
	ev = (struct epoll_event){ .events = EPOLLIN | EPOLLET, .data.u64 = 99 };
	MUST(epoll_ctl(ep, EPOLL_CTL_ADD, oneshot, &ev));
	ev = (struct epoll_event){ .events = EPOLLOUT, .data.u64 = 100 };
	MUST(epoll_ctl(ep, EPOLL_CTL_ADD, full[1], &ev));
	ep_outer = MUST(epoll_create1(0));
	ev = (struct epoll_event){ .events = EPOLLIN, .data.fd = ep };
	MUST(epoll_ctl(ep_outer, EPOLL_CTL_ADD, ep, &ev));
}

static int tcp_listener(int family, int backlog, int *port)
{
	struct sockaddr_in a4 = { .sin_family = AF_INET };
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6 };
	struct sockaddr *a = family == AF_INET ? (struct sockaddr *)&a4 : (struct sockaddr *)&a6;
	socklen_t len = family == AF_INET ? sizeof(a4) : sizeof(a6);
	int fd = MUST(socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0)), on = 1, idle = 33;

	a4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	a6.sin6_addr = in6addr_loopback;
	if (family == AF_INET6)
		MUST(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)));
	MUST(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)));
	MUST(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)));
	MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	MUST(bind(fd, a, len));
	MUST(listen(fd, backlog));
	MUST(getsockname(fd, a, &len));
	*port = ntohs(a4.sin_port ? a4.sin_port : a6.sin6_port);
	return fd;
}

static socklen_t unix_address(struct sockaddr_un *a, bool is_abstract)
{
	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	if (is_abstract) {
		snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "ckpt-fd-basic-%s",
			 victim_dir());
		return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
				   strlen(a->sun_path + 1));
	}
	snprintf(a->sun_path, sizeof(a->sun_path), "%s/sock", victim_dir());
	return sizeof(*a);
}

static void build_sockets(void)
{
	struct sockaddr_un a;
	unsigned char buf[3000];
	int sv[2], on = 1, size = 50000;

	tcp4 = tcp_listener(AF_INET, 17, &tcp_port);
	tcp6 = tcp_listener(AF_INET6, 5, &tcp6_port);
	named = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	MUST(bind(named, (struct sockaddr *)&a, unix_address(&a, false)));
	MUST(chmod(a.sun_path, 0620));
	MUST(listen(named, 9));
	abstract = MUST(socket(AF_UNIX, SOCK_SEQPACKET, 0));
	MUST(bind(abstract, (struct sockaddr *)&a, unix_address(&a, true)));
	MUST(listen(abstract, 3));

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, stream));
	fill(buf, sizeof(buf), 3);
	MUST(write(stream[0], buf, sizeof(buf)));
	MUST(write(stream[1], "back", 4));
	MUST(setsockopt(stream[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
	MUST(shutdown(stream[1], SHUT_WR));
	MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, dgram));
	MUST(setsockopt(dgram[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)));
	MUST(send(dgram[0], "a", 1, 0));
	MUST(send(dgram[0], "bcd", 3, 0));
	MUST(send(dgram[0], buf, sizeof(buf), 0));
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, seq));
	MUST(send(seq[1], "packet", 6, 0));
	MUST(send(seq[1], "next", 4, 0));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	lone = sv[0];
	MUST(write(sv[1], "last words", 10));
	close(sv[1]);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	reset_end = sv[0];
	MUST(write(sv[0], "never read", 10));
	close(sv[1]);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, child_pair));
}

/* Echoes over its end of the pair, moves shared positions on request. */
static void child_main(void)
{
	uint64_t one = 1;
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(child_pair[0]);
	for (;;) {
		ssize_t n = read(child_pair[1], &c, 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n != 1)
			_exit(0);
		if (c == 's')
			lseek(rw, 4321, SEEK_SET);
		if (c == 'e' && write(shared_counter, &one, sizeof(one)) < 0)
			c = '!';
		if (write(child_pair[1], &c, 1) != 1)
			_exit(1);
	}
}

static void ask_child(char c)
{
	char got = 0;

	CHECK(write(child_pair[0], &c, 1) == 1, "writing to the child: %s", strerror(errno));
	CHECK(read(child_pair[0], &got, 1) == 1 && got == c, "the child answers %d to %d", got, c);
}

/* ---- checks ------------------------------------------------------------------------- */

static void check_flags(int fd, int flags, int cloexec, const char *what)
{
	int got = fcntl(fd, F_GETFL), fdflags = fcntl(fd, F_GETFD);

	CHECK(got == flags, "%s: flags %#o, not %#o", what, got, flags);
	CHECK(fdflags == cloexec, "%s: descriptor flags %d, not %d", what, fdflags, cloexec);
}

/* A read goes on behind plain data, and ends with a packet. */
static void check_mixed(void)
{
	char buf[4096];
	ssize_t n;

	check_flags(mixed[1], O_WRONLY | O_NONBLOCK, 0, "pipe with packets in it");
	CHECK(read(mixed[0], buf, 50) == 50 && read(mixed[0], buf, 50) == 50 && *buf == 'a' &&
		      buf[45] == 'a' && buf[46] == 'b',
	      "plain data, and a packet behind it");
	n = read(mixed[0], buf, sizeof(buf));
	CHECK(n == 1 && *buf == 'c', "a packet of one byte has %zd", n);
	n = read(mixed[0], buf, 3);
	CHECK(n == 1 && *buf == 'd', "the last byte is %zd", n);
	fill_mixed();
}

static void check_position(int fd, off_t pos, const char *what)
{
	off_t got = lseek(fd, 0, SEEK_CUR);

	CHECK(got == pos, "%s: position %ld, not %ld", what, (long)got, (long)pos);
}

static void check_files(void)
{
	unsigned char buf[16], want[2000];
	struct stat st;

	check_flags(rw, O_RDWR | 0100000, 0, "data");
	check_flags(ro, O_RDONLY | 0100000, FD_CLOEXEC, "data, read-only");
	check_flags(append, O_WRONLY | O_APPEND | O_NONBLOCK | 0100000, 0, "log");
	check_flags(dir, O_RDONLY | O_DIRECTORY | 0100000, 0, "directory");
	check_flags(high, O_RDONLY | 0100000, 0, "number 900");
	check_flags(null, O_WRONLY | 0100000, 0, "null");
	check_flags(zero, O_RDWR | 0100000, FD_CLOEXEC, "zero");
	check_position(rw, 1234, "data");
	check_position(ro, 77, "data, read-only");
	check_position(high, 77, "number 900");
	fill(want, sizeof(want), 1);
	CHECK(read(ro, buf, 16) == 16 && !memcmp(buf, want + 77, 16), "content at 77 is wrong");
	check_position(high, 93, "number 900, shared with read-only data");
	lseek(ro, 77, SEEK_SET);
	CHECK(lseek(dup_rw, 99, SEEK_SET) == 99, "lseek: %s", strerror(errno));
	check_position(rw, 99, "data after lseek of its duplicate");
	ask_child('s');
	check_position(rw, 4321, "data after lseek in the child");
	lseek(rw, 1234, SEEK_SET);
	CHECK(write(append, "more\n", 5) == 5, "append: %s", strerror(errno));
	CHECK(!fstat(append, &st) && lseek(append, 0, SEEK_CUR) == st.st_size,
	      "append went to %ld of %ld", (long)lseek(append, 0, SEEK_CUR), (long)st.st_size);
	CHECK(!fstat(null, &st) && st.st_rdev == makedev(1, 3), "null is %lx", (long)st.st_rdev);
	CHECK(read(zero, buf, 1) == 1 && !buf[0], "zero reads %d", buf[0]);
}

static void check_pipes(void)
{
	unsigned char *want = malloc(PIPE_BYTES), *got = malloc(PIPE_BYTES);
	char buf[64];
	ssize_t n, left;
	int avail;

	fill(want, PIPE_BYTES, 2);
	check_flags(pr, O_RDONLY | O_NONBLOCK, 0, "pipe, reading end");
	check_flags(pw, O_WRONLY | O_NONBLOCK, 0, "pipe, writing end");
	check_flags(reopened, O_WRONLY | O_NONBLOCK | 0100000, FD_CLOEXEC, "pipe, reopened");
	check_flags(packets[1], O_WRONLY | O_DIRECT, FD_CLOEXEC, "packet pipe");
	CHECK(fcntl(pr, F_GETPIPE_SZ) == 256 * 1024, "pipe size %d", fcntl(pr, F_GETPIPE_SZ));
	for (left = 0; left < PIPE_BYTES && (n = read(pr, got + left, PIPE_BYTES - left)) > 0;)
		left += n;
	CHECK(left == PIPE_BYTES && !memcmp(want, got, PIPE_BYTES), "pipe held %zd bytes", left);
	CHECK(read(pr, buf, 1) == -1 && errno == EAGAIN, "the pipe holds more, or has ended");
	CHECK(write(reopened, "x", 1) == 1 && read(pr, buf, 1) == 1 && *buf == 'x',
	      "the reopened end is another pipe's");
	for (left = 0; left < PIPE_BYTES; left += n)
		if ((n = write(pw, want + left, PIPE_BYTES - left)) <= 0)
			break;
	for (int i = 0; i < 3; i++) {
		static const char *const p[] = { "first", "second one", "3" };

		n = read(packets[0], buf, sizeof(buf));
		CHECK(n == (ssize_t)strlen(p[i]) && !memcmp(buf, p[i], strlen(p[i])),
		      "packet %d has %zd bytes", i, n);
		CHECK(write(packets[1], p[i], strlen(p[i])) > 0, "write: %s", strerror(errno));
	}
	check_mixed();
	CHECK(!ioctl(full[0], FIONREAD, &avail) && avail == 65536, "full pipe holds %d", avail);
	CHECK(write(full[1], "x", 1) == -1 && errno == EAGAIN, "the full pipe takes more");
	free(want);
	free(got);
}

static void check_eventfds(void)
{
	uint64_t v = 0;

	check_flags(counter, O_RDWR | O_NONBLOCK, FD_CLOEXEC, "eventfd");
	CHECK(read(counter, &v, 8) == 8 && v == 7, "eventfd counts %lu", (unsigned long)v);
	CHECK(write(counter, &v, 8) == 8, "eventfd: %s", strerror(errno));
	CHECK(read(semaphore, &v, 8) == 8 && v == 1, "semaphore gives %lu", (unsigned long)v);
	v = 1;
	CHECK(write(semaphore, &v, 8) == 8, "semaphore: %s", strerror(errno));
	ask_child('e');
	CHECK(read(shared_counter, &v, 8) == 8 && v == 1, "shared eventfd gives %lu",
	      (unsigned long)v);
}

static void check_events(void)
{
	struct epoll_event ev[8];
	struct itimerspec its;
	uint64_t v = 0;
	int n;

	if (eventfds)
		check_eventfds();
	n = epoll_wait(ep, ev, 8, 0);
	CHECK(n == 1 && ev[0].events == EPOLLIN && ev[0].data.u64 == 0x1122334455667788,
	      "epoll reports %d events, %#x %#lx", n, ev[0].events, (long)ev[0].data.u64);
	n = epoll_wait(ep_outer, ev, 8, 0);
	CHECK(n == 1 && ev[0].data.fd == ep, "the outer epoll reports %d events", n);
	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, oneshot, ev) == -1 && errno == EEXIST,
	      "the epoll has lost a target");

	CHECK(!timerfd_gettime(periodic, &its) && its.it_interval.tv_nsec == 50 * 1000 * 1000,
	      "periodic timer: interval %ld", its.it_interval.tv_nsec);
	/* nothing is left of the interval in the moment it is over; that it goes on is seen when it
	 * fires again after what was there is read */
	for (int i = 0; i < 2; i++) {
		CHECK(poll(&(struct pollfd){ .fd = periodic, .events = POLLIN }, 1, 30000) == 1,
		      "the periodic timer does not fire");
		CHECK(read(periodic, &v, 8) == 8 && v > 0, "periodic timer: %lu", (unsigned long)v);
	}
	CHECK(!timerfd_gettime(oneshot, &its) && its.it_value.tv_sec > 90000 &&
		      its.it_value.tv_sec <= 100000,
	      "one-shot timer has %ld s left", (long)its.it_value.tv_sec);
	CHECK(poll(&(struct pollfd){ .fd = fired, .events = POLLIN }, 1, 0) == 1,
	      "the expiration that was not read is gone");
	CHECK(!timerfd_gettime(off, &its) && !its.it_value.tv_sec && !its.it_value.tv_nsec,
	      "a disarmed timer runs");
	CHECK(read(off, &v, 8) == -1 && errno == EAGAIN, "a disarmed timer has fired");
}

static int option(int fd, int level, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	getsockopt(fd, level, name, &v, &len);
	return v;
}

static void check_tcp(int fd, int family, int port, int backlog, int reuse)
{
	struct sockaddr_in a4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);
	int c = socket(family, SOCK_STREAM, 0), r, got;

	a4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	a6.sin6_addr = in6addr_loopback;
	r = family == AF_INET ? connect(c, (struct sockaddr *)&a4, sizeof(a4))
			      : connect(c, (struct sockaddr *)&a6, sizeof(a6));
	CHECK(!r, "connecting to port %d: %s", port, strerror(errno));
	/* the last packet of the handshake may still be under way */
	poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 10000);
	got = accept(fd, NULL, NULL);
	CHECK(got >= 0, "accepting on port %d: %s", port, strerror(errno));
	/* the client's side must not stay in TIME_WAIT: reset it */
	setsockopt(c, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
	close(c);
	close(got);
	CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) &&
		      ti.tcpi_sacked == (unsigned)backlog,
	      "backlog %u, not %d", ti.tcpi_sacked, backlog);
	CHECK(option(fd, SOL_SOCKET, SO_REUSEADDR) == reuse, "SO_REUSEADDR is %d",
	      option(fd, SOL_SOCKET, SO_REUSEADDR));
	CHECK(option(fd, SOL_SOCKET, SO_KEEPALIVE) == 1, "SO_KEEPALIVE is lost");
	CHECK(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 33, "TCP_KEEPIDLE is lost");
	CHECK(option(fd, IPPROTO_TCP, TCP_NODELAY) == 1, "TCP_NODELAY is lost");
	check_flags(fd, O_RDWR | O_NONBLOCK, 0, "TCP socket");
}

static void check_unix_listen(int fd, int type, bool is_abstract)
{
	struct sockaddr_un a, mine = { 0 };
	socklen_t len = unix_address(&a, is_abstract), got_len = sizeof(mine), cred_len;
	int c = socket(AF_UNIX, type, 0), got;
	struct ucred cred = { 0 };
	struct stat st;

	CHECK(!getsockname(fd, (struct sockaddr *)&mine, &got_len) &&
		      !strncmp(mine.sun_path + is_abstract, a.sun_path + is_abstract, 100),
	      "unix socket is bound to %s", mine.sun_path + is_abstract);
	CHECK(!connect(c, (struct sockaddr *)&a, len), "connecting: %s", strerror(errno));
	/* the last packet of the handshake may still be under way */
	poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 10000);
	got = accept(fd, NULL, NULL);
	CHECK(got >= 0, "accepting: %s", strerror(errno));
	cred_len = sizeof(cred);
	CHECK(!getsockopt(c, SOL_SOCKET, SO_PEERCRED, &cred, &cred_len) && cred.pid == getpid(),
	      "the listener is called %d, not %d", cred.pid, getpid());
	close(c);
	close(got);
	if (!is_abstract)
		CHECK(!stat(a.sun_path, &st) && S_ISSOCK(st.st_mode) &&
			      (st.st_mode & 07777) == 0620,
		      "the socket's file has mode %o", st.st_mode);
}

static void check_cred(int fd, const char *what)
{
	struct ucred cred = { 0 };
	socklen_t len = sizeof(cred);

	CHECK(!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) && cred.pid == getpid() &&
		      cred.uid == geteuid() && cred.gid == getegid(),
	      "%s: peer is %d:%u:%u", what, cred.pid, cred.uid, cred.gid);
}

static void check_stream(void)
{
	unsigned char want[3000], got[3001];
	char buf[16];

	fill(want, sizeof(want), 3);
	check_cred(stream[0], "stream pair");
	CHECK(recv(stream[1], got, sizeof(got), MSG_PEEK | MSG_DONTWAIT) == 3000 &&
		      !memcmp(got, want, 3000),
	      "the stream's content is wrong");
	CHECK(recv(stream[0], buf, sizeof(buf), MSG_PEEK) == 4 && !memcmp(buf, "back", 4),
	      "the way back is wrong");
	CHECK(option(stream[0], SOL_SOCKET, SO_SNDBUF) == 100000, "SO_SNDBUF is %d",
	      option(stream[0], SOL_SOCKET, SO_SNDBUF));
	CHECK(send(stream[1], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE,
	      "the shutdown is lost");
	CHECK(recv(lone, buf, sizeof(buf), MSG_PEEK) == 10 && !memcmp(buf, "last words", 10),
	      "what a closed end had sent is lost");
	CHECK(send(lone, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "a closed end is open");
	CHECK(poll(&(struct pollfd){ .fd = reset_end }, 1, 0) == 1, "no hang-up");
	check_cred(child_pair[0], "pair with the child");
	ask_child('x');
}

/* The queue is put back as it was, so that the next check finds the same. */
static void check_messages(void)
{
	static const char *const p[] = { "packet", "next" };
	unsigned char want[3000], got[3001];
	static const ssize_t len[] = { 1, 3, 3000 };

	fill(want, sizeof(want), 3);
	for (int i = 0; i < 3; i++) {
		_Alignas(struct cmsghdr) char control[64];
		struct iovec iov = { got, sizeof(got) };
		struct msghdr m = { .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control,
				    .msg_controllen = sizeof(control) };
		ssize_t n = recvmsg(dgram[1], &m, 0);
		struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
		struct ucred cred = { 0 };

		CHECK(n == len[i], "datagram %d has %zd bytes", i, n);
		CHECK(i < 2 || !memcmp(got, want, sizeof(want)), "the datagram's content is wrong");
		if (c)
			memcpy(&cred, CMSG_DATA(c), sizeof(cred));
		CHECK(cred.pid == getpid() && cred.uid == getuid(), "datagram %d is from %d", i,
		      cred.pid);
		CHECK(n < 0 || send(dgram[0], got, (size_t)n, 0) == n, "send: %s", strerror(errno));
	}
	for (int i = 0; i < 2; i++) {
		ssize_t n = recv(seq[0], got, sizeof(got), 0);

		CHECK(n == (ssize_t)strlen(p[i]) && !memcmp(got, p[i], (size_t)n),
		      "packet %d has %zd bytes", i, n);
		CHECK(send(seq[1], p[i], strlen(p[i]), 0) > 0, "send: %s", strerror(errno));
	}
	CHECK(option(dgram[1], SOL_SOCKET, SO_PASSCRED) == 1, "SO_PASSCRED is lost");
	CHECK(option(dgram[0], SOL_SOCKET, SO_PASSCRED) == 0, "SO_PASSCRED is at the wrong end");
	CHECK(option(seq[0], SOL_SOCKET, SO_PEEK_OFF) == -1, "SO_PEEK_OFF is %d",
	      option(seq[0], SOL_SOCKET, SO_PEEK_OFF));
}

static void check_sharing(void)
{
	CHECK(!syscall(SYS_kcmp, getpid(), child, KCMP_FILE, rw, rw), "data is not shared");
	CHECK(!syscall(SYS_kcmp, getpid(), child, KCMP_FILE, pr, pr), "the pipe is not shared");
	CHECK(!syscall(SYS_kcmp, getpid(), child, KCMP_FILE, ep, ep), "the epoll is not shared");
	CHECK(!syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, ro, high),
	      "900 is not read-only data");
	CHECK(syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, ro, rw) > 0, "ro and rw are one");
	CHECK(victim_count_fds() == fds_before, "%d descriptors, not %d", victim_count_fds(),
	      fds_before);
}

static void check(void)
{
	check_files();
	check_pipes();
	check_events();
	check_tcp(tcp4, AF_INET, tcp_port, 17, 0);
	check_tcp(tcp6, AF_INET6, tcp6_port, 5, 0);
	check_unix_listen(named, SOCK_STREAM, false);
	check_unix_listen(abstract, SOCK_SEQPACKET, true);
	check_stream();
	check_messages();
	check_sharing();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	build_files();
	build_pipes();
	build_events();
	build_sockets();
	child = MUST(fork());
	if (!child)
		child_main();
	close(child_pair[1]);
	fds_before = victim_count_fds();
	victim_ready();
	victim_serve(check);
}

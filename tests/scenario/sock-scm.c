/* SPDX-License-Identifier: MIT */
/*
 * Descriptors in flight: in streams with plain bytes around them, in packets, in named
 * dgram sockets, a socket's own end; held by us or by the child alone.
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static pid_t child;
static int file, pipe_ends[2], event; /* what is sent */
static int childs;		      /* its number in the child, which alone has it */
static int stream[2], packets[2], big[2], named, sender, ready[2];

#define BIG 100000

static void send_with(int fd, const char *text, size_t len, const int *fds, size_t n)
{
	_Alignas(struct cmsghdr) char control[128] = { 0 };
	struct iovec iov = { (void *)(size_t)text, len };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = n ? control : NULL,
			    .msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0 };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	if (n) {
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	CHECK(sendmsg(fd, &m, MSG_DONTWAIT) == (ssize_t)len, "sendmsg: %s", strerror(errno));
}

/* Receive up to `size` bytes; n must be the number of descriptors, each of them that of pid. */
static void receive(int fd, size_t size, const char *want, size_t want_len, pid_t pid,
		    const int *fds, size_t n)
{
	_Alignas(struct cmsghdr) char control[128];
	char *buf = calloc(1, size + 1);
	struct iovec iov = { buf, size };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	ssize_t len = recvmsg(fd, &m, MSG_DONTWAIT);
	struct cmsghdr *c = len >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
	size_t got = c ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

	CHECK(len == (ssize_t)want_len && !memcmp(buf, want, want_len),
	      "received %zd bytes (%.20s), not %zu (%.20s)", len, buf, want_len, want);
	CHECK(got == n, "%.20s brings %zu descriptors, not %zu", want, got, n);
	for (size_t i = 0; i < got && i < n; i++) {
		int num;

		memcpy(&num, CMSG_DATA(c) + i * sizeof(int), sizeof(num));
		CHECK(!syscall(SYS_kcmp, getpid(), pid, KCMP_FILE, num, fds[i]),
		      "%.20s brings another file", want);
		close(num);
	}
	free(buf);
}

static char *big_text(void)
{
	char *text = malloc(BIG);

	for (size_t i = 0; i < BIG; i++)
		text[i] = (char)('a' + victim_word(1, i) % 26);
	return text;
}

static void fill(void)
{
	int two[] = { pipe_ends[0], pipe_ends[1] }, own = stream[1];
	char *text = big_text();

	send_with(stream[0], "abc", 3, NULL, 0);
	send_with(stream[0], "File", 4, &file, 1);
	send_with(stream[0], "xyz", 3, NULL, 0);
	send_with(stream[0], "Pipe", 4, two, 2);
	send_with(stream[0], "Own", 3, &own, 1);
	send_with(packets[0], "event", 5, &event, 1);
	send_with(packets[0], "", 0, &file, 1);
	send_with(packets[0], "none", 4, NULL, 0);
	send_with(big[0], text, BIG, &event, 1);
	send_with(big[0], "end", 3, two, 1);
	send_with(sender, "dgram", 5, two, 2);
	free(text);
}

static void check(void)
{
	int two[] = { pipe_ends[0], pipe_ends[1] }, own = stream[1];
	char *text = big_text();
	size_t at = 0;

	/* byte by byte: each comes with what was sent with it */
	receive(stream[1], 1, "a", 1, 0, NULL, 0);
	receive(stream[1], 1, "b", 1, 0, NULL, 0);
	receive(stream[1], 1, "c", 1, 0, NULL, 0);
	receive(stream[1], 1, "F", 1, getpid(), &file, 1);
	receive(stream[1], 3, "ile", 3, 0, NULL, 0);
	receive(stream[1], 3, "xyz", 3, 0, NULL, 0);
	receive(stream[1], 100, "Pipe", 4, getpid(), two, 2);
	receive(stream[1], 100, "Own", 3, getpid(), &own, 1);
	receive(packets[1], 100, "event", 5, getpid(), &event, 1);
	receive(packets[1], 100, "", 0, getpid(), &file, 1);
	receive(packets[1], 100, "none", 4, 0, NULL, 0);
	receive(big[1], 1, text, 1, getpid(), &event, 1);
	for (at = 1; at < BIG;) {
		char buf[BIG];
		ssize_t n = recv(big[1], buf, BIG - at, MSG_DONTWAIT);

		CHECK(n > 0 && !memcmp(buf, text + at, (size_t)n), "%zd bytes at %zu", n, at);
		if (n <= 0)
			break;
		at += (size_t)n;
	}
	receive(big[1], 100, "end", 3, getpid(), two, 1);
	receive(named, 100, "dgram", 5, getpid(), two, 2);
	receive(packets[0], 100, "child", 5, child, &childs, 1);
	CHECK(recv(stream[1], text, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "there is more");
	free(text);
	CHECK(write(ready[0], "c", 1) == 1 && read(ready[0], &(char){ 0 }, 1) == 1, "the child");
	fill();
}

static void child_main(void)
{
	char c = 'r';

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(ready[0]);
	for (;;) {
		send_with(packets[1], "child", 5, &childs, 1);
		if (write(ready[1], &c, 1) != 1)
			_exit(1);
		while (read(ready[1], &c, 1) != 1)
			if (errno != EINTR)
				_exit(0);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char c;

	victim_init(argc, argv);
	file = MUST(open(victim_path("file"), O_RDWR | O_CREAT, 0600));
	MUST(pipe(pipe_ends));
	event = MUST(eventfd(0, 0));
	childs = 900;
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, stream));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, big));
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ready));
	named = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
	snprintf(a.sun_path, sizeof(a.sun_path), "%s/named", victim_dir());
	MUST(bind(named, (struct sockaddr *)&a, sizeof(a)));
	sender = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
	MUST(connect(sender, (struct sockaddr *)&a, sizeof(a)));
	child = MUST(fork());
	if (!child) {
		MUST(dup2(eventfd(3, 0), childs));
		child_main();
	}
	close(ready[1]);
	MUST(read(ready[0], &c, 1));
	fill();
	victim_ready();
	victim_serve(check);
}

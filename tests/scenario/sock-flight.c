/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that are open nowhere but in messages on their way: files, pipes, counters,
 * an epoll with a target beside it, a socket within a socket within a socket, a listening
 * one, the other end of a pair; sent by a child that has none of them either.
 */
#include "victim.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FILE_LOCKED, PIPE_END, COUNTER, EPOLL, WATCHED, FAR_END, NEST, LISTENER, N };

static int carrier[2], near_end, pipe_end, to_child;
static unsigned round_of;

static void send_fds(int to, const char *text, const int *fds, size_t n)
{
	_Alignas(struct cmsghdr) char control[128] = { 0 };
	struct iovec iov = { (void *)(size_t)text, strlen(text) };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	CHECK(sendmsg(to, &m, 0) == (ssize_t)iov.iov_len, "sendmsg: %s", strerror(errno));
}

static size_t receive_fds(int from, const char *text, int *fds, size_t max)
{
	_Alignas(struct cmsghdr) char control[128];
	char buf[32] = "";
	struct iovec iov = { buf, sizeof(buf) - 1 };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	size_t n;

	memset(fds, -1, max * sizeof(int));
	if (recvmsg(from, &m, MSG_DONTWAIT) < 0 || strcmp(buf, text) != 0) {
		CHECK(false, "received %s, not %s: %s", buf, text, strerror(errno));
		return 0;
	}
	c = CMSG_FIRSTHDR(&m);
	n = c ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
	memcpy(fds, c ? CMSG_DATA(c) : (void *)fds, (n < max ? n : max) * sizeof(int));
	return n;
}

static socklen_t listen_address(struct sockaddr_un *a)
{
	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "flight%s", victim_dir());
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(a->sun_path + 1));
}

/* A socket in whose queue is a socket in whose queue is a file. */
static int make_nest(void)
{
	int outer[2], inner[2], file = MUST(open(victim_path("inner"), O_RDWR | O_CREAT, 0600));

	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, outer));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, inner));
	MUST(lseek(file, 77 + round_of, SEEK_SET));
	send_fds(inner[0], "deep", &file, 1);
	send_fds(outer[0], "nest", &inner[1], 1);
	close(file);
	close(inner[0]);
	close(inner[1]);
	close(outer[0]);
	return outer[1];
}

static void make(void)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 4711 };
	struct sockaddr_un a;
	int fds[N], ends[2];
	char c = 'm';

	round_of++;
	fds[FILE_LOCKED] = MUST(open(victim_path("locked"), O_RDWR | O_CREAT, 0600));
	MUST(flock(fds[FILE_LOCKED], LOCK_EX | LOCK_NB));
	MUST(lseek(fds[FILE_LOCKED], round_of, SEEK_SET));
	MUST(pipe(ends));
	fds[PIPE_END] = ends[0];
	pipe_end = ends[1];
	MUST(write(pipe_end, "through", 7));
	fds[COUNTER] = MUST(eventfd(round_of, EFD_NONBLOCK));
	fds[EPOLL] = MUST(epoll_create1(0));
	fds[WATCHED] = MUST(eventfd(1, 0));
	MUST(epoll_ctl(fds[EPOLL], EPOLL_CTL_ADD, fds[WATCHED], &ev));
	MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
	near_end = ends[0];
	fds[FAR_END] = ends[1];
	MUST(send(near_end, "queued", 6, 0));
	fds[NEST] = make_nest();
	fds[LISTENER] = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(bind(fds[LISTENER], (struct sockaddr *)&a, listen_address(&a)));
	MUST(listen(fds[LISTENER], 3));
	send_fds(carrier[0], "all", fds, N);
	for (int i = 0; i < N; i++)
		close(fds[i]);
	/* the child sends what it alone has had */
	MUST(write(to_child, &c, 1));
	MUST(read(to_child, &c, 1));
}

static void check_nest(int outer)
{
	int inner = -1, file = -1;

	CHECK(receive_fds(outer, "nest", &inner, 1) == 1, "no socket in the socket");
	CHECK(receive_fds(inner, "deep", &file, 1) == 1, "no file in the inner socket");
	CHECK(lseek(file, 0, SEEK_CUR) == 77 + (off_t)round_of, "the file is at %ld",
	      (long)lseek(file, 0, SEEK_CUR));
	close(file);
	close(inner);
	close(outer);
}

static void check_listener(int fd)
{
	int client = socket(AF_UNIX, SOCK_STREAM, 0), accepted;
	struct sockaddr_un a;

	CHECK(!connect(client, (struct sockaddr *)&a, listen_address(&a)), "connect: %s",
	      strerror(errno));
	accepted = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
	CHECK(accepted >= 0, "accept: %s", strerror(errno));
	close(accepted);
	close(client);
	close(fd);
}

static void check(void)
{
	struct epoll_event ev = { 0 };
	int fds[N], other, childs = -1;
	unsigned long long count = 0;
	char buf[16] = "";

	CHECK(receive_fds(carrier[1], "all", fds, N) == N, "not all have come");
	CHECK(lseek(fds[FILE_LOCKED], 0, SEEK_CUR) == round_of, "the file's position");
	other = open(victim_path("locked"), O_RDWR);
	CHECK(flock(other, LOCK_EX | LOCK_NB) == -1, "the lock is gone");
	close(fds[FILE_LOCKED]);
	CHECK(flock(other, LOCK_EX | LOCK_NB) == 0, "the lock stays");
	close(other);
	CHECK(read(fds[PIPE_END], buf, sizeof(buf)) == 7 && !strcmp(buf, "through"), "pipe: %s",
	      buf);
	close(fds[PIPE_END]);
	CHECK(write(pipe_end, "x", 1) == -1 && errno == EPIPE, "somebody else reads the pipe");
	close(pipe_end);
	CHECK(read(fds[COUNTER], &count, 8) == 8 && count == round_of, "counter: %llu", count);
	close(fds[COUNTER]);
	CHECK(epoll_wait(fds[EPOLL], &ev, 1, 0) == 1 && ev.data.u64 == 4711, "epoll: %llu",
	      (unsigned long long)ev.data.u64);
	CHECK(read(fds[WATCHED], &count, 8) == 8 && epoll_wait(fds[EPOLL], &ev, 1, 0) == 0,
	      "the epoll watches another");
	close(fds[WATCHED]);
	close(fds[EPOLL]);
	memset(buf, 0, sizeof(buf));
	CHECK(recv(fds[FAR_END], buf, sizeof(buf), MSG_DONTWAIT) == 6 && !strcmp(buf, "queued"),
	      "pair: %s", buf);
	CHECK(send(fds[FAR_END], "y", 1, 0) == 1 && recv(near_end, buf, 1, MSG_DONTWAIT) == 1,
	      "the pair's other way");
	close(fds[FAR_END]);
	close(near_end);
	check_nest(fds[NEST]);
	check_listener(fds[LISTENER]);
	CHECK(receive_fds(carrier[1], "child", &childs, 1) == 1 && read(childs, &count, 8) == 8 &&
		      count == 99,
	      "what the child sent: %llu", count);
	close(childs);
	make();
}

static void child_main(int end)
{
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		int fd;

		while (read(end, &c, 1) != 1)
			if (errno != EINTR)
				_exit(0);
		fd = eventfd(99, 0);
		send_fds(carrier[0], "child", &fd, 1);
		close(fd);
		if (write(end, &c, 1) != 1)
			_exit(1);
	}
}

int main(int argc, char **argv)
{
	int ends[2];

	victim_init(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, carrier));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	to_child = ends[0];
	if (!MUST(fork())) {
		close(ends[0]);
		child_main(ends[1]);
	}
	close(ends[1]);
	make();
	victim_ready();
	victim_serve(check);
}

/* SPDX-License-Identifier: MIT */
/*
 * Unix dgram sockets: bound by path and by abstract name, connected to each other, in
 * chains, to closed ones; queues with senders of all sorts, also from a child.
 */
#include "victim.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MANY 20

static pid_t child;
static int go[2];
static int server, named_client, child_client; /* the last one's number is the child's */
static int left, right;			       /* connected to each other */
static int first, second, third;	       /* first to second to third */
static int orphan;			       /* to a closed one */
static int fresh, bound, shut, shared_peer[2];

static socklen_t address_of(struct sockaddr_un *a, const char *name)
{
	size_t len = strlen(name);

	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	memcpy(a->sun_path, name, len);
	if (name[0] == '@')
		a->sun_path[0] = '\0';
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static int dgram(const char *name)
{
	int fd = MUST(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0));
	struct sockaddr_un a;

	if (name)
		MUST(bind(fd, (struct sockaddr *)&a, address_of(&a, name)));
	return fd;
}

static void connect_to(int fd, const char *name)
{
	struct sockaddr_un a;

	MUST(connect(fd, (struct sockaddr *)&a, address_of(&a, name)));
}

static void send_to(int fd, const char *text, const char *name)
{
	struct sockaddr_un a;

	MUST(sendto(fd, text, strlen(text), 0, (struct sockaddr *)&a, address_of(&a, name)));
}

static char *path(const char *name)
{
	return victim_path(name);
}

static void check_name(int fd, bool peer, const char *want, const char *what)
{
	struct sockaddr_un a = { 0 }, b;
	socklen_t len = sizeof(a), b_len = address_of(&b, want);
	int r = peer ? getpeername(fd, (struct sockaddr *)&a, &len)
		     : getsockname(fd, (struct sockaddr *)&a, &len);

	if (want[0] && want[0] != '@')
		b_len++;
	CHECK(!r && len == b_len && !memcmp(&a, &b, len), "%s: %s name %s, not %s (%s)", what,
	      peer ? "peer's" : "own", a.sun_path[0] ? a.sun_path : a.sun_path + 1, want,
	      r ? strerror(errno) : "");
}

/* Takes the next message; `from` NULL: of a socket without a name. */
static void check_message(int fd, const char *text, const char *from, pid_t pid)
{
	_Alignas(struct cmsghdr) char control[64];
	struct sockaddr_un a = { 0 }, b;
	char buf[64] = "";
	struct iovec iov = { buf, sizeof(buf) - 1 };
	struct msghdr m = { .msg_name = &a,
			    .msg_namelen = sizeof(a),
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(fd, &m, 0);
	socklen_t len = from ? address_of(&b, from) : 0;
	struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
	struct ucred cred = { 0 };

	CHECK(n >= 0, "receiving %s: %s", text, strerror(errno));
	CHECK(!strcmp(buf, text), "received %s, not %s", buf, text);
	if (from && from[0] != '@')
		len++;
	CHECK(m.msg_namelen == len && (!len || !memcmp(&a, &b, len)), "%s is from %s, not %s", text,
	      a.sun_path[0] ? a.sun_path : a.sun_path + 1, from ? from : "nobody");
	if (!pid)
		return;
	if (c)
		memcpy(&cred, CMSG_DATA(c), sizeof(cred));
	CHECK(cred.pid == pid, "%s is from process %d, not %d", text, cred.pid, pid);
}

/* ---- building -------------------------------------------------------------------- */

static void child_main(void)
{
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(go[0]);
	child_client = dgram(NULL);
	connect_to(child_client, path("server"));
	MUST(send(child_client, "from the child", 14, 0));
	MUST(write(go[1], "r", 1));
	for (;;) {
		ssize_t n = read(go[1], &c, 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n != 1)
			_exit(0);
		c = send(child_client, "from the child", 14, 0) == 14 ? 'y' : 'n';
		if (write(go[1], &c, 1) != 1)
			_exit(1);
	}
}

/* What waits in the server's queue, in this order; the check puts it back. */
static void fill_server(void)
{
	int one;

	one = dgram(NULL);
	send_to(one, "from nobody", path("server"));
	close(one);
	MUST(send(named_client, "from a client", 13, 0));
	one = dgram(path("closed"));
	send_to(one, "from a closed one", path("server"));
	close(one);
	MUST(unlink(path("closed")));
	one = dgram("@ckpt-sock-dgram-closed");
	send_to(one, "from an abstract one", path("server"));
	close(one);
}

static void build_server(void)
{
	int on = 1;
	char c;

	server = dgram(path("server"));
	MUST(chmod(path("server"), 0622));
	MUST(setsockopt(server, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)));
	named_client = dgram(path("client"));
	connect_to(named_client, path("server"));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, go));
	child = MUST(fork());
	if (!child)
		child_main();
	close(go[1]);
	MUST(read(go[0], &c, 1));
	fill_server();
}

static void build_others(void)
{
	char text[16];
	int one;

	left = dgram("@ckpt-sock-dgram-left");
	right = dgram(path("right"));
	send_to(right, "early", "@ckpt-sock-dgram-left");
	connect_to(left, path("right"));
	connect_to(right, "@ckpt-sock-dgram-left");
	for (int i = 0; i < MANY; i++) {
		snprintf(text, sizeof(text), "right %d", i);
		MUST(send(right, text, strlen(text), 0));
	}
	MUST(send(left, "left", 4, 0));

	third = dgram("@ckpt-sock-dgram-third");
	second = dgram("@ckpt-sock-dgram-second");
	first = dgram(NULL);
	connect_to(first, "@ckpt-sock-dgram-second");
	MUST(send(first, "along", 5, 0));
	connect_to(second, "@ckpt-sock-dgram-third");
	MUST(send(second, "the chain", 9, 0));

	one = dgram(path("gone"));
	orphan = dgram(NULL);
	connect_to(orphan, path("gone"));
	close(one);
	MUST(unlink(path("gone")));

	fresh = dgram(NULL);
	bound = dgram(path("bound"));
	shut = dgram(NULL);
	connect_to(shut, path("bound"));
	MUST(shutdown(shut, SHUT_WR));
	MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, shared_peer));
}

/* ---- checks ---------------------------------------------------------------------- */

static void check_server(void)
{
	struct stat st;
	char c = 'c';

	check_name(server, false, path("server"), "server");
	check_name(named_client, false, path("client"), "client");
	check_name(named_client, true, path("server"), "client");
	CHECK(!stat(path("server"), &st) && (st.st_mode & 07777) == 0622, "mode %o", st.st_mode);
	CHECK(stat(path("closed"), &st) == -1, "a removed name is there");
	check_message(server, "from the child", NULL, child);
	check_message(server, "from nobody", NULL, getpid());
	check_message(server, "from a client", path("client"), getpid());
	check_message(server, "from a closed one", path("closed"), getpid());
	check_message(server, "from an abstract one", "@ckpt-sock-dgram-closed", getpid());
	CHECK(recv(server, &c, 1, 0) == -1 && errno == EAGAIN, "the server has got more");
	CHECK(write(go[0], "c", 1) == 1 && read(go[0], &c, 1) == 1 && c == 'y',
	      "the child could not send");
	fill_server();
}

static void check_others(void)
{
	char text[16], c;

	check_name(left, false, "@ckpt-sock-dgram-left", "left");
	check_name(left, true, path("right"), "left");
	check_name(right, true, "@ckpt-sock-dgram-left", "right");
	check_message(left, "early", path("right"), 0);
	MUST(send(right, "early", 5, 0));
	for (int i = 0; i < MANY; i++) {
		snprintf(text, sizeof(text), "right %d", i);
		check_message(left, text, path("right"), 0);
		CHECK(send(right, text, strlen(text), 0) > 0, "send: %s", strerror(errno));
	}
	check_message(right, "left", "@ckpt-sock-dgram-left", 0);
	CHECK(send(left, "left", 4, 0) == 4, "send: %s", strerror(errno));

	check_name(first, true, "@ckpt-sock-dgram-second", "first");
	check_name(second, true, "@ckpt-sock-dgram-third", "second");
	CHECK(recv(second, text, sizeof(text), MSG_PEEK) == 5, "the chain's middle is empty");
	check_message(third, "the chain", "@ckpt-sock-dgram-second", 0);
	CHECK(send(second, "the chain", 9, 0) == 9, "send: %s", strerror(errno));
	CHECK(send(first, "x", 1, 0) == -1 && errno == EPERM, "first may send to second");

	check_name(orphan, true, path("gone"), "orphan");
	check_name(fresh, false, "", "fresh");
	check_name(bound, false, path("bound"), "bound");
	CHECK(fcntl(bound, F_GETFL) == (O_RDWR | O_NONBLOCK), "O_NONBLOCK is lost");
	check_name(shut, true, path("bound"), "shut");
	CHECK(send(shut, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "the shutdown is lost");
	CHECK(send(shared_peer[0], "x", 1, 0) == 1 && recv(shared_peer[1], &c, 1, 0) == 1,
	      "the pair is broken");
}

/* A look from outside sets it, and has to put it back however it ends. */
static void check_peek_off(void)
{
	const int looked_at[] = { server, left, right, second, third };

	for (size_t i = 0; i < sizeof(looked_at) / sizeof(*looked_at); i++) {
		int off = 0;
		socklen_t len = sizeof(off);

		MUST(getsockopt(looked_at[i], SOL_SOCKET, SO_PEEK_OFF, &off, &len));
		CHECK(off == -1, "SO_PEEK_OFF of socket %zu is %d", i, off);
	}
}

static void check(void)
{
	check_peek_off();
	check_server();
	check_others();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	build_server();
	build_others();
	victim_ready();
	victim_serve(check);
}

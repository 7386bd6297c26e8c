/* SPDX-License-Identifier: MIT */
/*
 * Connections that wait to be accepted: to listening stream and seqpacket sockets with a
 * path and an abstract name, of two processes, in order; shut down, bound, beside accepted ones.
 */
#include "victim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define N 3 /* of ours that wait at each; the child's is the second */

static pid_t child;
static struct place {
	int type, listener, client[N], accepted, connected;
	struct sockaddr_un a;
	socklen_t len;
} places[] = { { .type = SOCK_STREAM }, { .type = SOCK_SEQPACKET }, { .type = SOCK_STREAM } };
#define PLACES (sizeof(places) / sizeof(*places))
static int child_end, our_end;

static int connect_to(const struct place *p, const char *bound)
{
	int fd = MUST(socket(AF_UNIX, p->type, 0));
	struct sockaddr_un own = { .sun_family = AF_UNIX };

	if (bound) {
		snprintf(own.sun_path + 1, sizeof(own.sun_path) - 1, "%s-%d", bound, getpid());
		MUST(bind(fd, (struct sockaddr *)&own,
			  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
				      strlen(own.sun_path + 1))));
	}
	MUST(connect(fd, (const struct sockaddr *)&p->a, p->len));
	return fd;
}

static void listen_at(struct place *p, size_t i)
{
	p->a.sun_family = AF_UNIX;
	snprintf(p->a.sun_path + (i == 1), sizeof(p->a.sun_path) - 1, "%s/waiting-%zu",
		 victim_dir(), i);
	p->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (i == 1) +
			     strlen(p->a.sun_path + (i == 1)));
	p->listener = MUST(socket(AF_UNIX, p->type, 0));
	MUST(bind(p->listener, (struct sockaddr *)&p->a, p->len));
	MUST(listen(p->listener, N - 1));
}

/* The child connects when it is told to, and says who it is when it is accepted. */
static void child_main(void)
{
	int fds[PLACES];
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		while (read(child_end, &c, 1) != 1)
			if (errno != EINTR)
				_exit(0);
		for (size_t i = 0; i < PLACES; i++) {
			if (c == 'c')
				fds[i] = connect_to(&places[i], NULL);
			else if (send(fds[i], "child", 5, 0) != 5 || close(fds[i]))
				_exit(1);
		}
		if (write(child_end, &c, 1) != 1)
			_exit(1);
	}
}

static void tell_child(char c)
{
	MUST(write(our_end, &c, 1));
	MUST(read(our_end, &c, 1));
}

static void make(void)
{
	for (size_t i = 0; i < PLACES; i++)
		places[i].client[0] = connect_to(&places[i], i == 2 ? "bound" : NULL);
	tell_child('c');
	for (size_t i = 0; i < PLACES; i++) {
		places[i].client[2] = connect_to(&places[i], NULL);
		MUST(shutdown(places[i].client[2], SHUT_WR));
	}
}

static void check_accepted(struct place *p, int at)
{
	struct sockaddr_un a = { 0 };
	socklen_t len = sizeof(a);
	struct ucred cred = { 0 };
	char buf[16] = "";
	int fd = accept4(p->listener, (struct sockaddr *)&a, &len, SOCK_NONBLOCK);

	CHECK(fd >= 0, "connection %d: %s", at, strerror(errno));
	CHECK((len > offsetof(struct sockaddr_un, sun_path)) == (at == 0 && p == &places[2]),
	      "connection %d: its name has %u bytes", at, len);
	len = sizeof(cred);
	CHECK(!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) &&
		      cred.pid == (at == 1 ? child : getpid()),
	      "connection %d is of %d", at, cred.pid);
	if (at == 0) {
		CHECK(send(p->client[0], "first", 5, 0) == 5, "send: %s", strerror(errno));
		CHECK(recv(fd, buf, sizeof(buf), 0) == 5 && !strcmp(buf, "first"), "got %s", buf);
		CHECK(send(fd, "back", 4, 0) == 4 &&
			      recv(p->client[0], buf, sizeof(buf), MSG_DONTWAIT) == 4,
		      "nothing comes back");
	} else if (at == 1) {
		struct pollfd readable = { .fd = fd, .events = POLLIN };

		CHECK(poll(&readable, 1, 30000) == 1 && recv(fd, buf, sizeof(buf), 0) == 5 &&
			      !strcmp(buf, "child"),
		      "of the child: %s", buf);
	} else {
		CHECK(recv(fd, buf, sizeof(buf), 0) == 0, "it is not shut down");
		CHECK(send(p->client[2], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE,
		      "the client is not shut down");
	}
	close(fd);
}

static void check(void)
{
	char c = 0;

	tell_child('s');
	for (size_t i = 0; i < PLACES; i++) {
		struct place *p = &places[i];
		struct ucred cred = { 0 };
		socklen_t len = sizeof(cred);

		CHECK(!getsockopt(p->client[0], SOL_SOCKET, SO_PEERCRED, &cred, &len) &&
			      cred.pid == getpid(),
		      "the listener is %d", cred.pid);
		for (int at = 0; at < N; at++)
			check_accepted(p, at);
		CHECK(accept4(p->listener, NULL, NULL, 0) == -1 && errno == EAGAIN,
		      "one more waits: %s", strerror(errno));
		close(p->client[0]);
		close(p->client[2]);
		CHECK(send(p->connected, "c", 1, 0) == 1 && recv(p->accepted, &c, 1, 0) == 1 &&
			      c == 'c',
		      "the accepted connection");
	}
	make();
}

int main(int argc, char **argv)
{
	int ends[2];

	victim_init(argc, argv);
	for (size_t i = 0; i < PLACES; i++) {
		struct place *p = &places[i];

		listen_at(p, i);
		p->connected = connect_to(p, NULL);
		p->accepted = MUST(accept(p->listener, NULL, NULL));
		MUST(fcntl(p->listener, F_SETFL, O_NONBLOCK));
	}
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	our_end = ends[0];
	child_end = ends[1];
	child = MUST(fork());
	if (!child) {
		close(our_end);
		child_main();
	}
	close(child_end);
	make();
	victim_ready();
	victim_serve(check);
}

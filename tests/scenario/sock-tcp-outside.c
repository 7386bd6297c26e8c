/* SPDX-License-Identifier: MIT */
/*
 * TCP connections with a process outside the tree, which goes on talking while the tree is
 * saved, gone and made again: one that answers, one that never stops sending, one with a
 * full window, and two that are half-closed.
 *
 * test: option=--option=net.tcp=established
 * What is where in a stream is up to the kernel:
 * test: ignore=fds [0-9]+ socket queued: [0-9]+ -> [0-9]+
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif
#define WORDS 20000
#define FULL  (1 << 20)

/* What a connection is for; the first byte that the outside gets on it. */
enum { ECHO = 'e', STREAM = 's', HALF = 'h', CLOSING = 'c', WINDOW = 'w' };

static struct sockaddr_in server;
static int echo, stream, half, closing, window;
static unsigned long next;
static size_t full;

static char byte_at(size_t i)
{
	return (char)victim_word(7, i / 8);
}

/* ---- outside ------------------------------------------------------------------------ */

#define CONNECTIONS 64

static struct outside {
	int fd, what;
	unsigned long sent;
	size_t got;
} conn[CONNECTIONS];
static int n_conn;

static struct outside *last_of(int what)
{
	for (int i = n_conn; i-- > 0;)
		if (conn[i].what == what)
			return &conn[i];
	_exit(1);
}

/* In the order that the tree asks for. */
static void answer(int fd, char what)
{
	static char buf[65536];
	struct outside *c;
	uint32_t count;

	switch (what) {
	case HALF:
		c = last_of(HALF);
		send(c->fd, "bye", 3, MSG_NOSIGNAL);
		shutdown(c->fd, SHUT_RDWR);
		break;
	case CLOSING:
		c = last_of(CLOSING);
		count = (uint32_t)recv(c->fd, buf, 5, MSG_WAITALL);
		send(fd, &count, sizeof(count), MSG_NOSIGNAL);
		break;
	case WINDOW:
		c = last_of(WINDOW);
		if (recv(fd, &count, sizeof(count), MSG_WAITALL) != sizeof(count))
			_exit(1);
		for (uint32_t at = 0; at < count;) {
			ssize_t n = recv(c->fd, buf, sizeof(buf), 0);

			for (ssize_t i = 0; i < n; i++)
				if (buf[i] != byte_at(at + (size_t)i))
					_exit(1);
			if (n <= 0)
				_exit(1);
			at += (uint32_t)n;
		}
		send(fd, "k", 1, MSG_NOSIGNAL);
		break;
	default:
		send(fd, &what, 1, MSG_NOSIGNAL);
	}
}

static void greet(struct outside *c)
{
	char what = 0;
	int small = 20000, slow = 3000;

	if (recv(c->fd, &what, 1, 0) != 1)
		what = 0;
	c->what = what;
	/* it need not wait long after the connection is back */
	setsockopt(c->fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &slow, sizeof(slow));
	if (what == CLOSING) {
		send(c->fd, "gone", 4, MSG_NOSIGNAL);
		shutdown(c->fd, SHUT_WR);
	}
	if (what == WINDOW)
		setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
}

static void go_on(struct outside *c)
{
	unsigned long words[512];
	ssize_t n;

	for (size_t i = 0; i < 512; i++)
		words[i] = (c->sent + 8 * i) / 8;
	n = send(c->fd, (char *)words + c->sent % 8, sizeof(words) - c->sent % 8,
		 MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n > 0)
		c->sent += (unsigned long)n;
}

/* Until the test is over, which takes its directory with it. */
static void outside(int listener)
{
	alarm(900);
	while (access(victim_dir(), F_OK) == 0) {
		struct pollfd p[CONNECTIONS + 1] = { { .fd = listener, .events = POLLIN } };

		for (int i = 0; i < n_conn; i++)
			p[i + 1] = (struct pollfd){ .fd = conn[i].fd,
						    .events = conn[i].what == STREAM ? POLLOUT
							      : conn[i].what == ECHO ? POLLIN
										     : 0 };
		poll(p, (nfds_t)n_conn + 1, 200);
		for (int i = 0; i < n_conn; i++) {
			char what;

			if (p[i + 1].revents & POLLOUT)
				go_on(&conn[i]);
			if (p[i + 1].revents & POLLIN && recv(conn[i].fd, &what, 1, 0) == 1)
				answer(conn[i].fd, what);
		}
		if (p[0].revents & POLLIN && n_conn < CONNECTIONS) {
			conn[n_conn].fd = accept(listener, NULL, NULL);
			if (conn[n_conn].fd >= 0)
				greet(&conn[n_conn++]);
		}
	}
	_exit(0);
}

static void start_outside(void)
{
	socklen_t len = sizeof(server);
	int listener = MUST(socket(AF_INET, SOCK_STREAM, 0)), status;
	pid_t between;

	server.sin_family = AF_INET;
	server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	MUST(bind(listener, (struct sockaddr *)&server, len));
	MUST(listen(listener, 16));
	MUST(getsockname(listener, (struct sockaddr *)&server, &len));
	between = MUST(fork());
	if (between == 0) {
		MUST(setsid());
		if (MUST(fork()) == 0)
			outside(listener);
		_exit(0);
	}
	MUST(waitpid(between, &status, 0));
	close(listener);
}

/* ---- the tree ------------------------------------------------------------------------- */

static int state_of(int fd)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) ? -1 : ti.tcpi_state;
}

static void await_state(int fd, int state)
{
	while (state_of(fd) != state)
		usleep(1000);
}

static int connect_as(char what)
{
	int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));

	MUST(connect(fd, (struct sockaddr *)&server, sizeof(server)));
	MUST(send(fd, &what, 1, MSG_NOSIGNAL));
	return fd;
}

static void get(int fd, const void *want, size_t len, const char *what)
{
	char buf[64] = "";
	size_t at = 0;

	while (at < len) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t n = poll(&p, 1, 50000) == 1 ? recv(fd, buf + at, len - at, 0) : -1;

		if (n <= 0)
			break;
		at += (size_t)n;
	}
	CHECK(at == len && !memcmp(buf, want, len), "%s: %zu bytes of %zu: %s", what, at, len, buf);
}

static void tell(char what)
{
	CHECK(send(echo, &what, 1, MSG_NOSIGNAL) == 1, "asking for %c: %s", what, strerror(errno));
}

static void fill_window(void)
{
	char *text = malloc(FULL);
	ssize_t n;

	for (size_t i = 0; i < FULL; i++)
		text[i] = byte_at(i);
	for (full = 0; full < FULL; full += (size_t)n) {
		n = send(window, text + full, FULL - full, MSG_DONTWAIT);
		if (n <= 0)
			break;
	}
	free(text);
}

static void make(void)
{
	int large = 200000;

	half = connect_as(HALF);
	MUST(shutdown(half, SHUT_WR));
	await_state(half, TCP_FIN_WAIT2);
	closing = connect_as(CLOSING);
	await_state(closing, TCP_CLOSE_WAIT);
	window = connect_as(WINDOW);
	MUST(setsockopt(window, SOL_SOCKET, SO_SNDBUF, &large, sizeof(large)));
	fill_window();
}

static void check_stream(void)
{
	for (unsigned i = 0; i < WORDS; i++) {
		unsigned long word = 0;

		if (recv(stream, &word, sizeof(word), MSG_WAITALL) != sizeof(word) ||
		    word != next) {
			CHECK(false, "stream: word %lu is %lu: %s", next, word, strerror(errno));
			return;
		}
		next++;
	}
}

static void check(void)
{
	uint32_t five = 5, count = (uint32_t)full;

	tell('1');
	get(echo, "1", 1, "echo");
	check_stream();
	CHECK(state_of(half) == TCP_FIN_WAIT2, "half-closed: state %d", state_of(half));
	tell(HALF);
	get(half, "bye", 3, "half-closed");
	victim_get_end(half, "half-closed");
	close(half);
	CHECK(state_of(closing) == TCP_CLOSE_WAIT, "closed there: state %d", state_of(closing));
	get(closing, "gone", 4, "closed there");
	victim_get_end(closing, "closed there");
	CHECK(send(closing, "still", 5, MSG_NOSIGNAL) == 5, "closed there: %s", strerror(errno));
	tell(CLOSING);
	get(echo, &five, sizeof(five), "closed there");
	close(closing);
	tell(WINDOW);
	CHECK(send(echo, &count, sizeof(count), MSG_NOSIGNAL) == sizeof(count), "count");
	get(echo, "k", 1, "window");
	close(window);
	make();
}

int main(int argc, char **argv)
{
	struct timeval limit = { .tv_sec = 50 };

	victim_init(argc, argv);
	start_outside();
	echo = connect_as(ECHO);
	stream = connect_as(STREAM);
	MUST(setsockopt(stream, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	make();
	victim_ready();
	victim_serve(check);
}

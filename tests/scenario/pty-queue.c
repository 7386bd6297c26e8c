/* SPDX-License-Identifier: MIT
 *
 * Pseudo terminals with bytes under way, in both directions: lines, one of them not ended; raw
 * bytes; more than fits into the reader's buffer; output that a key or tcflow(3) has stopped; what
 * a program that has closed its terminal has said last. Each check reads all of it and builds it
 * again.
 */
#include "victim.h"

#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define STOP_KEY  "\023"
#define START_KEY "\021"
/* no longer than any machine needs to move some bytes */
#define PATIENCE 15000

struct pair {
	int master, slave;
};

static struct pair lines, raw, by_key, by_call, full, full_stopped, packet, closed;
static size_t full_bytes, full_stopped_bytes;
static unsigned long rounds;
static bool missing; /* what has not come: nothing else is waited for */

static struct pair open_pair(void)
{
	struct pair p = { .master = MUST(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) };
	MUST(unlockpt(p.master));
	p.slave = MUST(open(ptsname(p.master), O_RDWR | O_NOCTTY | O_NONBLOCK));
	return p;
}

static void set(int slave, tcflag_t local, tcflag_t output)
{
	struct termios t;
	MUST(tcgetattr(slave, &t));
	t.c_lflag = local;
	t.c_oflag = output;
	if (!(local & ICANON))
		t.c_iflag = 0;
	t.c_cc[VMIN] = 5;
	MUST(tcsetattr(slave, TCSANOW, &t));
}

static void put(int fd, const void *bytes, size_t n)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	poll(&p, 1, PATIENCE);
	CHECK(write(fd, bytes, n) == (ssize_t)n, "write of %zu bytes: %s", n, strerror(errno));
}

static bool comes(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	missing |= poll(&p, 1, missing ? 0 : PATIENCE) != 1;
	return !missing;
}

/* Exactly these bytes, in pieces as they come. */
static void expect(int fd, const void *bytes, size_t n, const char *what)
{
	static uint8_t got[65536];
	size_t at = 0;
	while (at < n) {
		ssize_t r = comes(fd) ? read(fd, got + at, n - at) : 0;
		if (r <= 0)
			break;
		at += (size_t)r;
	}
	CHECK(at == n, "%s: %zu of %zu bytes", what, at, n);
	CHECK(!memcmp(got, bytes, at), "%s: other bytes: %.60s", what, (char *)got);
}

/* One read(2) gives one line. */
static void expect_line(int fd, const void *line, size_t n, const char *what)
{
	char got[256];
	CHECK(comes(fd), "%s: nothing to read", what);
	ssize_t r = read(fd, got, sizeof(got));
	CHECK(r == (ssize_t)n && !memcmp(got, line, n), "%s: %zd bytes, not %zu", what, r, n);
}

static void expect_nothing(int fd, const char *what)
{
	char byte;
	CHECK(read(fd, &byte, 1) < 0 && errno == EAGAIN, "%s: something is left", what);
}

/* ---- lines ---------------------------------------------------------------------------- */

/* quoted: the end of file, a new line, what stops output, a zero */
#define TYPED  "one\nt\026\004w\026\no\nend\004\004ha\026\003lf\026\023"
#define ECHOED "one\r\nt^\b^Dw^\b^Jo\r\nendha^\b^Clf^\b^Sn^@l"

static void type_lines(void)
{
	char zero[] = { 'n', 0, 'l' };
	put(lines.master, TYPED, sizeof(TYPED) - 1);
	put(lines.master, zero, sizeof(zero));
}

static void check_lines(void)
{
	expect_line(lines.slave, "one\n", 4, "the first line");
	expect_line(lines.slave, "t\004w\no\n", 6, "the second line");
	expect_line(lines.slave, "end", 3, "what the end of file ended");
	expect_line(lines.slave, "", 0, "the end of file");
	expect_nothing(lines.slave, "after the lines");
	put(lines.master, " \177\n", 3);
	expect_line(lines.slave, "ha\003lf\023n\0l\n", 10, "the line that was begun");
	expect_nothing(lines.slave, "after the last line");
}

/* ---- raw ------------------------------------------------------------------------------ */

static uint8_t every[256];

static void fill_raw(void)
{
	put(raw.master, every, sizeof(every));
	put(raw.slave, every, sizeof(every));
}

static void check_raw(void)
{
	expect(raw.slave, every, sizeof(every), "raw input");
	expect(raw.master, every, sizeof(every), "raw output");
	put(raw.master, "1234", 4);
	struct pollfd p = { .fd = raw.slave, .events = POLLIN };
	CHECK(poll(&p, 1, 0) == 0, "four bytes are enough");
	put(raw.master, "5", 1);
	expect(raw.slave, "12345", 5, "five bytes");
}

/* ---- stopped -------------------------------------------------------------------------- */

static bool is_stopped(const struct pair *p)
{
	return write(p->slave, "x", 1) < 0 && errno == EAGAIN;
}

/* The key takes effect when the kernel's worker gets to it. */
static void press(const struct pair *p, const char *key, bool stops)
{
	put(p->master, key, 1);
	for (int i = 0; i < PATIENCE; i++) {
		struct pollfd ready = { .fd = p->slave, .events = POLLOUT };
		if (poll(&ready, 1, stops ? 0 : PATIENCE) == !stops)
			return;
		usleep(1000);
	}
	victim_fail("a key has no effect");
}

static void stop(void)
{
	put(by_key.slave, "before", 6);
	press(&by_key, STOP_KEY, true);
	put(by_call.slave, "before", 6);
	CHECK(tcflow(by_call.slave, TCOOFF) == 0, "tcflow: %s", strerror(errno));
}

static void check_stopped(void)
{
	CHECK(is_stopped(&by_key) && is_stopped(&by_call), "output is not stopped");
	expect(by_key.master, "before", 6, "output before the key");
	expect(by_call.master, "before", 6, "output before tcflow");
	put(by_call.master, START_KEY, 1);
	press(&by_key, START_KEY, false);
	CHECK(!is_stopped(&by_key), "the key does not start output");
	expect(by_key.master, "x", 1, "after the key");
	CHECK(is_stopped(&by_call), "the key starts what tcflow has stopped");
	CHECK(tcflow(by_call.slave, TCOON) == 0 && !is_stopped(&by_call), "tcflow does not start");
	expect(by_call.master, "x", 1, "after tcflow");
}

/* ---- full ----------------------------------------------------------------------------- */

static uint8_t pattern[65536];

/* As much as there is room for, in small pieces, as programs write. */
static size_t fill(int slave)
{
	size_t n = 0;
	for (size_t piece = 1; n + piece <= sizeof(pattern); piece = piece % 300 + 1) {
		ssize_t r = write(slave, pattern + n, piece);
		if (r > 0)
			n += (size_t)r;
		if (r != (ssize_t)piece)
			break;
	}
	return n;
}

static void fill_both(void)
{
	full_bytes = fill(full.slave);
	full_stopped_bytes = fill(full_stopped.slave);
	CHECK(full_bytes > 5000 && full_stopped_bytes > 5000, "no more than %zu bytes", full_bytes);
	put(full_stopped.master, STOP_KEY, 1);
}

static void check_full(void)
{
	expect(full.master, pattern, full_bytes, "the full one");
	expect_nothing(full.master, "the full one");
	expect(full_stopped.master, pattern, full_stopped_bytes, "the full and stopped one");
	expect_nothing(full_stopped.master, "the full and stopped one");
	CHECK(is_stopped(&full_stopped), "the full one is not stopped");
	press(&full_stopped, START_KEY, false);
	CHECK(!is_stopped(&full_stopped), "the full one does not go on");
	expect(full_stopped.master, "x", 1, "the one that was full and stopped");
}

/* ---- others --------------------------------------------------------------------------- */

static void fill_others(void)
{
	put(packet.slave, "packet\n", 7);
	closed.slave = MUST(open(ptsname(closed.master), O_RDWR | O_NOCTTY | O_NONBLOCK));
	put(closed.slave, "bye\n", 4);
	close(closed.slave);
}

static void check_others(void)
{
	char byte;
	expect(packet.master, "\0packet\r\n", 9, "packet mode");
	expect(closed.master, "bye\r\n", 5, "the last words");
	CHECK(read(closed.master, &byte, 1) < 0 && errno == EIO, "the slave is not closed");
}

static void build(void)
{
	type_lines();
	fill_raw();
	stop();
	fill_both();
	fill_others();
}

static void check(void)
{
	rounds++;
	check_lines();
	if (missing)
		return;
	expect(lines.master, ECHOED " \b \b\r\n", sizeof(ECHOED) - 1 + 6, "echo");
	expect_nothing(lines.master, "after the echo");
	check_raw();
	check_stopped();
	check_full();
	check_others();
	build();
}

int main(int argc, char **argv)
{
	int on = 1;
	victim_init(argc, argv);
	for (size_t i = 0; i < sizeof(pattern); i++)
		pattern[i] = (uint8_t)victim_word(7, i);
	for (size_t i = 0; i < sizeof(every); i++)
		every[i] = (uint8_t)i;
	struct pair *const all[] = { &lines, &raw,	    &by_key, &by_call,
				     &full,  &full_stopped, &packet, &closed };
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		*all[i] = open_pair();
	close(closed.slave);
	set(lines.slave, ICANON | ECHO | ECHOE | ECHOCTL | IEXTEN | ISIG, OPOST | ONLCR);
	set(raw.slave, 0, 0);
	set(full.slave, 0, 0);
	set(packet.slave, 0, OPOST | ONLCR);
	set(full_stopped.slave, ICANON, 0);
	MUST(ioctl(packet.master, TIOCPKT, &on));
	build();
	victim_ready();
	victim_serve(check);
}

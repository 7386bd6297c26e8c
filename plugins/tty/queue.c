/* SPDX-License-Identifier: MIT */
/*
 * What waits to be read from a pair, taken out and put in. Bytes go back behind the
 * line discipline's back: into the master's buffer by TIOCSTI, which knows no output
 * processing, into the slave's by TIOCSTI under settings that let every byte through.
 * A dump does both in a child of its own, so nothing here may allocate or print.
 */
#include <asm/termbits.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>

#include "tty.h"

/* They end a line and quote a byte while lines are put in. */
#define EOF_KEY	  4
#define QUOTE_KEY 026
/* What the kernel's buffer between the two ends holds in pieces of this size, and its limit. */
#define PIECE	    256
#define PIECES_HOLD 8192
#define RETRIES	    100

bool tty_writable(int slave)
{
	struct pollfd p = { .fd = slave, .events = POLLOUT };

	return poll(&p, 1, 0) > 0 && p.revents & POLLOUT;
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) > 0 && p.revents & POLLIN;
}

/* ---- taking --------------------------------------------------------------------------- */

static bool ends_line(const struct termios2 *t, uint8_t c)
{
	return c == '\n' || (c && (c == t->c_cc[VEOL] || c == t->c_cc[VEOL2]));
}

/* A read(2) gives one line, without what stands for the end of the file. */
static int take_lines(int slave, const struct termios2 *t, struct tty_waiting *w)
{
	while (w->n_lines < TTY_INPUT_MAX && readable(slave)) {
		uint8_t *at = w->input + w->n_input;
		ssize_t n = read(slave, at, TTY_INPUT_MAX - w->n_input);

		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		w->lines[w->n_lines].len = (uint16_t)n;
		w->lines[w->n_lines++].eof = !n || !ends_line(t, at[n - 1]);
		w->n_input += (uint32_t)n;
	}
	return 0;
}

static int take_bytes(int slave, struct tty_waiting *w)
{
	int n;

	while (!ioctl(slave, FIONREAD, &n) && n > 0 && w->n_input < TTY_INPUT_MAX) {
		ssize_t got = read(slave, w->input + w->n_input, TTY_INPUT_MAX - w->n_input);

		if (got <= 0)
			return got && errno != EAGAIN ? -errno : 0;
		w->n_input += (uint32_t)got;
	}
	return 0;
}

/* Without ICANON the line that was begun can be read too. */
static int take_input(int slave, struct tty_waiting *w)
{
	struct termios2 t, open;
	int r;

	if (ioctl(slave, TCGETS2, &t))
		return -errno;
	w->canonical = t.c_lflag & ICANON && !(t.c_lflag & EXTPROC);
	if (!w->canonical)
		return take_bytes(slave, w);
	r = take_lines(slave, &t, w);
	if (r)
		return r;
	open = t;
	open.c_lflag &= ~(tcflag_t)ICANON;
	if (ioctl(slave, TCSETS2, &open))
		return -errno;
	r = take_bytes(slave, w);
	return ioctl(slave, TCSETS2, &t) ? -errno : r;
}

/* In packet mode a byte that says "data" precedes each piece. */
static int take_output(int master, struct tty_waiting *w)
{
	int packet = 0, n;

	if (ioctl(master, TIOCGPKT, &packet))
		packet = 0;
	while (readable(master) && !ioctl(master, FIONREAD, &n) && n > 0 &&
	       w->n_output < TTY_OUTPUT_MAX) {
		uint8_t *at = w->output + w->n_output;
		ssize_t got = read(master, at, TTY_OUTPUT_MAX - w->n_output);

		if (got < 0)
			return -errno;
		if (packet && got)
			memmove(at, at + 1, (size_t)--got);
		w->n_output += (uint32_t)got;
	}
	return 0;
}

/* By whom was it stopped? Going on and stopping again tells, and moves no byte. */
static void take_stop(int master, int slave, struct tty_waiting *w)
{
	struct termios2 t;
	int packet = 0;

	if (tty_writable(slave))
		return;
	w->stopped = TTY_STOPPED_BY_KEY;
	/* there the reader of the master would be told */
	if (!ioctl(master, TIOCGPKT, &packet) && packet) {
		if (!ioctl(slave, TCGETS2, &t) && !(t.c_iflag & IXON))
			w->stopped = TTY_STOPPED_BY_CALL;
		return;
	}
	ioctl(slave, TCXONC, TCOON);
	if (!tty_writable(slave))
		return;
	w->stopped = TTY_STOPPED_BY_CALL;
	ioctl(slave, TCXONC, TCOOFF);
}

int tty_take(int master, int slave, struct tty_waiting *w)
{
	int r = slave < 0 ? 0 : take_input(slave, w);

	if (!r)
		r = take_output(master, w);
	if (!r && slave >= 0)
		take_stop(master, slave, w);
	return r;
}

/* ---- putting ---------------------------------------------------------------------------- */

struct putter {
	const struct tty_waiting *w;
	bool stands; /* its output is stopped at the moment */
};

static int put_bytes(int fd, const uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ioctl(fd, TIOCSTI, &bytes[i]))
			return -errno;
	return 0;
}

static int start(int slave, struct putter *p)
{
	if (!p->stands)
		return 0;
	p->stands = false;
	/* the call starts only what it has stopped */
	if (p->w->stopped == TTY_STOPPED_BY_KEY && ioctl(slave, TCXONC, TCOOFF))
		return -errno;
	return ioctl(slave, TCXONC, TCOON) ? -errno : 0;
}

/* What does not fit into the master's buffer waits before it, as the slave has written it. */
static int write_rest(int slave, const uint8_t *bytes, size_t n)
{
	size_t at = 0;

	for (int tries = 0; at < n;) {
		size_t piece = at < PIECES_HOLD && n - at > PIECE ? PIECE : n - at;
		ssize_t put = write(slave, bytes + at, piece);
		struct pollfd p = { .fd = slave, .events = POLLOUT };

		if (put > 0) {
			at += (size_t)put;
			continue;
		}
		if (put < 0 && errno != EAGAIN)
			return -errno;
		/* the kernel's worker has still to give back room */
		if (tries++ == RETRIES)
			return -ENOBUFS;
		poll(&p, 1, 20);
	}
	return 0;
}

static int put_output(int master, int slave, struct putter *p)
{
	const struct tty_waiting *w = p->w;
	size_t first = w->n_output < TTY_BUFFER ? w->n_output : TTY_BUFFER;
	int r = put_bytes(master, w->output, first);
	struct termios2 t, plain;

	if (r || first == w->n_output)
		return r;
	r = start(slave, p);
	if (r)
		return r;
	if (ioctl(slave, TCGETS2, &t))
		return -errno;
	plain = t;
	plain.c_oflag &= ~(tcflag_t)OPOST;
	if (ioctl(slave, TCSETS2, &plain))
		return -errno;
	r = write_rest(slave, w->output + first, w->n_output - first);
	return ioctl(slave, TCSETS2, &t) ? -errno : r;
}

static int put_quoted(int slave, const struct termios2 *t, const uint8_t *bytes, size_t n)
{
	static const uint8_t quote = QUOTE_KEY;
	int r = 0;

	for (size_t i = 0; i < n && !r; i++) {
		uint8_t c = bytes[i];

		if (c == '\n' || c == EOF_KEY || c == QUOTE_KEY || (c && c == t->c_cc[VEOL]) ||
		    c == t->c_cc[VSTART] || c == t->c_cc[VSTOP])
			r = put_bytes(slave, &quote, 1);
		if (!r)
			r = put_bytes(slave, &c, 1);
	}
	return r;
}

static int put_line(int slave, struct termios2 *t, const uint8_t *text, size_t n, bool eof)
{
	static const uint8_t end = EOF_KEY;
	uint8_t last = n ? text[n - 1] : 0;
	int r;

	t->c_cc[VEOL] = eof || last == '\n' ? 0 : last;
	if (ioctl(slave, TCSETS2, t))
		return -errno;
	r = put_quoted(slave, t, text, eof ? n : n - 1);
	return r ? r : put_bytes(slave, eof ? &end : &last, 1);
}

static int put_lines(int slave, struct termios2 *t, const struct tty_waiting *w)
{
	size_t at = 0;
	int r = 0;

	for (size_t i = 0; i < w->n_lines && !r; i++) {
		r = put_line(slave, t, w->input + at, w->lines[i].len, w->lines[i].eof);
		at += w->lines[i].len;
	}
	t->c_cc[VEOL] = 0;
	if (!r && ioctl(slave, TCSETS2, t))
		r = -errno;
	return r ? r : put_quoted(slave, t, w->input + at, w->n_input - at);
}

static bool holds(const struct tty_waiting *w, uint8_t c)
{
	return memchr(w->input, c, w->n_input);
}

/*
 * Nothing is echoed, nothing is a key but those of ours. IXON stays where it can:
 * without it output that was stopped by a key would go on.
 */
static int put_input(int slave, struct putter *p)
{
	const struct tty_waiting *w = p->w;
	struct termios2 t, plain;
	int r;

	if (!w->n_input && !w->n_lines)
		return 0;
	if (ioctl(slave, TCGETS2, &t))
		return -errno;
	plain = t;
	plain.c_iflag &= IXON;
	plain.c_lflag = w->canonical ? ICANON | IEXTEN : 0;
	for (size_t i = 0; i < NCCS; i++)
		if (i != VSTART && i != VSTOP)
			plain.c_cc[i] = 0;
	if (w->canonical) {
		plain.c_cc[VEOF] = EOF_KEY;
		plain.c_cc[VLNEXT] = QUOTE_KEY;
	} else if (holds(w, t.c_cc[VSTART]) || holds(w, t.c_cc[VSTOP])) {
		plain.c_iflag = 0;
		r = start(slave, p);
		if (r)
			return r;
	}
	if (ioctl(slave, TCSETS2, &plain))
		return -errno;
	r = w->canonical ? put_lines(slave, &plain, w) : put_bytes(slave, w->input, w->n_input);
	return ioctl(slave, TCSETS2, &t) ? -errno : r;
}

static int put_stop(int slave, const struct putter *p)
{
	static const uint8_t key = 'S' & 037;
	struct termios2 t, plain;
	int r;

	if (p->w->stopped == TTY_GOES_ON || p->stands)
		return 0;
	if (p->w->stopped == TTY_STOPPED_BY_CALL)
		return ioctl(slave, TCXONC, TCOOFF) ? -errno : 0;
	if (ioctl(slave, TCGETS2, &t))
		return -errno;
	plain = t;
	plain.c_iflag |= IXON;
	plain.c_cc[VSTOP] = key;
	if (ioctl(slave, TCSETS2, &plain))
		return -errno;
	r = put_bytes(slave, &key, 1);
	return ioctl(slave, TCSETS2, &t) ? -errno : r;
}

int tty_put(int master, int slave, const struct tty_waiting *w, bool stands)
{
	struct putter p = { .w = w, .stands = stands };
	int r = put_output(master, slave, &p);

	if (!r && slave >= 0)
		r = put_input(slave, &p);
	return r || slave < 0 ? r : put_stop(slave, &p);
}

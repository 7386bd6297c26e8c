/* SPDX-License-Identifier: MIT */
/*
 * What waits to be read, in a dump and in a restore. The kernel has no way to look
 * at it: it is read and put back at once, while all that could read or write it
 * stands still. A child does so, that goes on if ckpt is killed, and keeps the tree
 * from going on meanwhile: the tree's bytes are never in ckpt's hands alone.
 */
#include <asm/termbits.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "tty.h"

/* More than this in the slave's buffer, and more may be on its way there. */
#define INPUT_SAFE 3500

#define AGAIN "dump again in a moment: it is there until somebody reads it"

static int in_buffer(int fd)
{
	int n = 0;

	return fd < 0 || ioctl(fd, FIONREAD, &n) ? 0 : n;
}

static bool ready(int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };

	return fd >= 0 && poll(&p, 1, 0) > 0 && p.revents & events;
}

static bool is_set(int fd, unsigned long request)
{
	int v = 0;

	return !ioctl(fd, request, &v) && v;
}

static bool is_canonical(int fd)
{
	struct termios2 t;

	return !ioctl(fd, TCGETS2, &t) && t.c_lflag & ICANON;
}

/* ---- survey --------------------------------------------------------------------------- */

/* Why this queue cannot be taken out and put back; NULL: it can. */
static const char *out_of_reach(int master, int slave)
{
	bool full = in_buffer(master) >= TTY_BUFFER;

	if (ready(master, POLLPRI))
		return "a change of state waits to be read from the master (packet mode)";
	if (in_buffer(slave) > INPUT_SAFE)
		return "the slave's buffer is full";
	if (is_set(master, TIOCGPTLCK) && (full || ready(slave, POLLIN)))
		return "bytes wait to be read, and the slave is locked (TIOCSPTLCK)";
	if (full && slave < 0)
		return "the master's buffer is full, and the slave is closed";
	if (full && is_set(master, TIOCGPKT) && !tty_writable(slave))
		return "the master's buffer is full (packet mode)";
	return NULL;
}

int tty_waiting_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, int slave)
{
	/* this lets what is on its way arrive first */
	bool any = ready(f->fd, POLLIN) || ready(slave, POLLIN) || in_buffer(slave);
	const char *why = out_of_reach(f->fd, slave);
	int r = 0;

	if (why)
		return tty_refuse(run, f, "queue", why, AGAIN);
	if (any && in_buffer(f->fd) + in_buffer(slave) + ready(slave, POLLIN))
		r = tty_need(run, f, "queue");
	if (!r && slave >= 0 && in_buffer(f->fd) < TTY_BUFFER && !tty_writable(slave))
		r = tty_need(run, f, "flow");
	return r;
}

/* ---- collect -------------------------------------------------------------------------- */

struct both {
	int master, slave;
	struct tty_waiting *w;
};

static int both(void *arg)
{
	struct both *b = arg;
	int r = tty_take(b->master, b->slave, b->w);
	int put = tty_put(b->master, b->slave, b->w, b->w->stopped != TTY_GOES_ON);

	return r ? r : put;
}

/*
 * A description of our own: it does not block, and the tree's stay as they are. Not of
 * a locked one: the attempt alone would let all its calls fail from then on.
 */
static int open_slave(int master, int slave)
{
	char path[32];
	int locked = 1;

	if (slave < 0 || ioctl(master, TIOCGPTLCK, &locked) || locked)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", slave);
	return open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

static int fill(Ckpt__Tty__Pty *rec, const struct tty_waiting *w)
{
	const uint8_t *at = w->input;
	Ckpt__Tty__Line *lines;
	uint8_t *bytes;

	bytes = malloc((size_t)w->n_output + w->n_input + 1);
	lines = calloc(w->n_lines + 1, sizeof(*lines));
	rec->lines = calloc(w->n_lines + 1, sizeof(*rec->lines));
	if (!bytes || !lines || !rec->lines) {
		free(bytes);
		free(lines);
		return -ENOMEM;
	}
	rec->output.data = memcpy(bytes, w->output, w->n_output);
	rec->output.len = w->n_output;
	memcpy(bytes + w->n_output, w->input, w->n_input);
	at = bytes + w->n_output;
	for (; rec->n_lines < w->n_lines; rec->n_lines++) {
		Ckpt__Tty__Line *l = &lines[rec->n_lines];

		ckpt__tty__line__init(l);
		l->text.data = (uint8_t *)(uintptr_t)at;
		l->text.len = w->lines[rec->n_lines].len;
		l->eof = w->lines[rec->n_lines].eof;
		at += l->text.len;
		rec->lines[rec->n_lines] = l;
	}
	/* where there are no lines the array is still there, to be freed by its first element */
	rec->lines[w->n_lines] = lines;
	rec->input.data = (uint8_t *)(uintptr_t)at;
	rec->input.len = w->n_input - (size_t)(at - bytes - w->n_output);
	return 0;
}

void tty_waiting_free(Ckpt__Tty__Pty *rec)
{
	if (!rec->lines)
		return;
	free(rec->n_lines ? rec->lines[0] : rec->lines[rec->n_lines]);
	free(rec->lines);
	free(rec->output.data);
}

/* Input that is in no line yet. */
static size_t rest_of(const struct tty_waiting *w)
{
	size_t n = w->n_input;

	for (size_t i = 0; i < w->n_lines; i++)
		n -= w->lines[i].len;
	return n;
}

int tty_waiting_collect(struct ckpt_run *run, int master, int slave, Ckpt__Tty__Pty *rec,
			struct ckpt_error *err)
{
	CKPT_AUTO_FD int own = open_slave(master, slave);
	bool queue = ckpt_feature_on(run, "queue");
	struct tty_waiting *w;
	char object[64];
	int r;

	if (!queue && !ckpt_feature_on(run, "flow"))
		return 0;
	if (!ready(master, POLLIN) && !ready(own, POLLIN) && !in_buffer(own) &&
	    (own < 0 || (!is_canonical(own) && tty_writable(own))))
		return 0;
	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (w == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap(2)");
	r = ckpt_run_holding(run, both, &(struct both){ master, own, w }, "a terminal's queues",
			     err);
	/* a line that was only begun does not show in the survey */
	snprintf(object, sizeof(object), "pts/%u: a line that was begun", rec->id);
	if (!r && !queue && rest_of(w))
		ckpt_refuse_off(run, "queue", NULL, object);
	if (!r && queue && fill(rec, w))
		r = ckpt_fail(err, ENOMEM, "out of memory");
	if (ckpt_feature_on(run, "flow"))
		rec->stopped = w->stopped;
	munmap(w, sizeof(*w));
	return r;
}

/* ---- restore -------------------------------------------------------------------------- */

int tty_waiting_plan(const Ckpt__Tty__Pty *rec, bool has_slave, struct ckpt_error *err)
{
	size_t input = rec->input.len;

	for (size_t i = 0; i < rec->n_lines; i++)
		input += rec->lines[i]->text.len + rec->lines[i]->eof;
	if (rec->output.len > TTY_OUTPUT_MAX || input > TTY_BUFFER ||
	    rec->n_lines > TTY_INPUT_MAX || rec->stopped > TTY_STOPPED_BY_KEY)
		return ckpt_fail_image(err, "pty %u: more waits than fits", rec->id);
	for (size_t i = 0; i < rec->n_lines; i++)
		if (!rec->lines[i]->text.len && !rec->lines[i]->eof)
			return ckpt_fail_image(err, "pty %u: a line without an end", rec->id);
	if (!has_slave && (rec->output.len > TTY_BUFFER || input || rec->stopped))
		return ckpt_fail_image(err, "pty %u: more waits than without a slave", rec->id);
	if (rec->hung_up && rec->output.len)
		return ckpt_fail_image(err, "pty %u: hung up, and output waits", rec->id);
	return 0;
}

static void unpack(const Ckpt__Tty__Pty *rec, struct tty_waiting *w)
{
	w->n_output = (uint32_t)rec->output.len;
	if (w->n_output)
		memcpy(w->output, rec->output.data, rec->output.len);
	w->stopped = (enum tty_stop)rec->stopped;
	for (size_t i = 0; i < rec->n_lines; i++) {
		const ProtobufCBinaryData *text = &rec->lines[i]->text;

		if (text->len)
			memcpy(w->input + w->n_input, text->data, text->len);
		w->n_input += (uint32_t)text->len;
		w->lines[i].len = (uint16_t)text->len;
		w->lines[i].eof = rec->lines[i]->eof;
	}
	w->n_lines = (uint32_t)rec->n_lines;
	if (rec->input.len)
		memcpy(w->input + w->n_input, rec->input.data, rec->input.len);
	w->n_input += (uint32_t)rec->input.len;
}

int tty_waiting_restore(const struct tty_pair *pair, struct ckpt_error *err)
{
	const Ckpt__Tty__Pty *rec = pair->rec;
	CKPT_AUTO_FREE struct tty_waiting *w = NULL;
	int r;

	if (!rec->output.len && !rec->input.len && !rec->n_lines && !rec->stopped)
		return 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return ckpt_fail(err, ENOMEM, "out of memory");
	unpack(rec, w);
	/* a description of our own */
	if (pair->slave >= 0 && fcntl(pair->slave, F_SETFL, O_NONBLOCK))
		return ckpt_fail_sys(err, errno, "F_SETFL");
	w->canonical = pair->slave >= 0 && is_canonical(pair->slave);
	r = tty_put(pair->master, pair->slave, w, false);
	return r ? ckpt_fail_sys(err, r, "filling a terminal's queues") : 0;
}

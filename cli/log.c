/* SPDX-License-Identifier: MIT */
/*
 * Messages of a run. Whoever reads them, or has stopped the terminal, may be in the tree that
 * stands still: what is not taken at once is held until the run is over.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ckpt/cleanup.h>

#include "cli.h"

/* Pipes and terminals let a writer wait; O_NONBLOCK is for a description of our own. */
static int open_eager(int fd)
{
	char path[32];
	struct stat st;

	if (fstat(fd, &st) < 0 || !(S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)))
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void cli_log_to(struct cli *c, FILE *to)
{
	c->log = to;
	c->eager = open_eager(fileno(to));
}

static void hold(struct cli *c, const char *s)
{
	const size_t len = strlen(s);
	char *text = realloc(c->held, c->n_held + len);

	if (!text)
		return;
	memcpy(text + c->n_held, s, len);
	c->held = text;
	c->n_held += len;
}

static void write_eagerly(struct cli *c)
{
	ssize_t n;

	while (c->n_held && (n = write(c->eager, c->held, c->n_held)) > 0) {
		c->n_held -= (size_t)n;
		memmove(c->held, c->held + n, c->n_held);
	}
}

void cli_log(struct cli *c, const char *prefix, const char *text)
{
	CKPT_AUTO_FREE char *line = cli_clean("ckpt: %s%s", prefix, text);

	if (!line)
		return;
	/* plugins have threads */
	flockfile(c->log);
	if (c->eager >= 0) {
		hold(c, line);
		write_eagerly(c);
	} else {
		fputs(line, c->log);
	}
	funlockfile(c->log);
}

void cli_log_all(struct cli *c)
{
	if (c->n_held)
		fwrite(c->held, 1, c->n_held, c->log);
	c->n_held = 0;
}

void cli_log_end(struct cli *c)
{
	cli_log_all(c);
	free(c->held);
	c->held = NULL;
	if (c->eager >= 0)
		close(c->eager);
	if (c->log != stderr)
		fclose(c->log);
}

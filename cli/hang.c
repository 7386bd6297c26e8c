/* SPDX-License-Identifier: MIT */
/* The last words of a run that can only be ended with its process. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "cli.h"

/* The tree still stands: what nobody takes is left out. */
static void write_at_once(int fd, const char *text, size_t len)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	while (len && poll(&p, 1, 0) == 1 && p.revents & POLLOUT) {
		/* a pipe that can be written to has room for that much */
		ssize_t n = write(fd, text, len < 4096 ? len : 4096);

		if (n <= 0)
			return;
		text += n;
		len -= (size_t)n;
	}
}

static void print_json(const struct cli *c, const struct ckpt_error *err)
{
	const struct ckpt_result r = { .exit = err->exit };
	CKPT_AUTO_FREE char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return;
	ckpt_print_result(&r, c->cmd->name, err, out);
	fputc('\n', out);
	if (!fclose(out))
		write_at_once(STDOUT_FILENO, text, len);
}

/* The streams may be another thread's, which is the one that hangs. */
static int on_hang(void *arg, const char *text)
{
	const struct cli *c = arg;
	struct ckpt_error err = { 0 };
	CKPT_AUTO_FREE char *line = NULL;

	ckpt_fail_as(&err, CKPT_EXIT_FAILED, ETIMEDOUT, "%s: %s; the tree goes on", c->cmd->name,
		     text);
	line = cli_clean("ckpt: %s", err.text);
	if (line)
		write_at_once(c->eager >= 0 ? c->eager : fileno(c->log), line, strlen(line));
	if (c->json)
		print_json(c, &err);
	return CKPT_EXIT_FAILED;
}

void cli_watch(struct cli *c)
{
	ckpt_on_hang(c->ckpt, on_hang, c);
}

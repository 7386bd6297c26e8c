/* SPDX-License-Identifier: MIT */
/* The ckpt command: settings in order, plugins loaded, a subcommand run. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli.h"

static int (*const commands[CLI_N_COMMANDS])(struct cli *) = {
	[CLI_DUMP] = cli_dump,	   [CLI_RESTORE] = cli_restore, [CLI_VERIFY] = cli_verify,
	[CLI_BRANCH] = cli_branch, [CLI_SHOW] = cli_show,	[CLI_DIFF] = cli_diff,
	[CLI_CHECK] = cli_check,   [CLI_PLUGINS] = cli_plugins, [CLI_GRAPH] = cli_graph,
};

static void on_log(void *arg, enum ckpt_log_level level, const char *line)
{
	cli_log(arg, level == CKPT_LOG_WARN ? "warning: " : "", line);
}

static int open_log(struct cli *c, const char *path, struct ckpt_error *err)
{
	FILE *log = fopen(path, "ae");

	if (!log) {
		ckpt_fail_sys(err, errno, "--log-file %s", path);
		err->exit = CKPT_EXIT_USAGE;
		return -err->err;
	}
	/* whole lines, also when the next thing is a crash */
	setvbuf(log, NULL, _IOLBF, 0);
	cli_log_end(c);
	cli_log_to(c, log);
	return 0;
}

/* ckpt.conf first: it says less than the command line, but may say where messages go. */
static int set_up(struct cli *c, struct ckpt_error *err)
{
	char verbose[2] = { (char)('0' + c->verbose), '\0' };
	const char *s;
	int r = ckpt_read_config(c->ckpt, c->config, err);

	if (!r && c->verbose)
		r = ckpt_set(c->ckpt, "verbose", verbose, "command line", err);
	if (r < 0)
		return r;
	s = ckpt_setting(c->ckpt, "json");
	c->json = s && !strcmp(s, "yes");
	s = ckpt_setting(c->ckpt, "verbose");
	if (s)
		ckpt_set_log_level(c->ckpt, (enum ckpt_log_level)(*s - '0'));
	s = ckpt_setting(c->ckpt, "log-file");
	if (s)
		r = open_log(c, s, err);
	return r < 0 ? r : ckpt_load(c->ckpt, err);
}

static int run(struct cli *c, int argc, char **argv)
{
	struct ckpt_error err = { 0 };

	if (ckpt_new(&c->ckpt, on_log, c, &err) < 0 || cli_parse(c, argc, argv, &err) < 0)
		return cli_error(c, &err);
	if (c->version) {
		puts("ckpt " CKPT_VERSION);
		return CKPT_EXIT_OK;
	}
	if (c->help) {
		cli_help(c->cmd, stdout);
		return CKPT_EXIT_OK;
	}
	if (set_up(c, &err) < 0)
		return cli_error(c, &err);
	return commands[c->id](c);
}

/*
 * Memory that was touched once is kept, and touched in huge pages if there are any: where a
 * hypervisor shadows page tables the first touch of a page costs more than what is done with it.
 * The first page of the heap comes before a huge one, since malloc() has touched it when it can be
 * told. All of this is a matter of time only.
 */
static void prepare_heap(void)
{
	const uintptr_t page = 4096, huge = 2 << 20, room = 16 << 20;
	uintptr_t end = (uintptr_t)sbrk(0), begin = (end + page + huge - 1) & ~(huge - 1);
	void *first;

	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TOP_PAD, (int)room);
	if (sbrk((intptr_t)(begin - page - end)) == (void *)-1)
		return;
	first = malloc(1);
	if (begin - (uintptr_t)first < page)
		madvise((void *)begin, room - huge, MADV_HUGEPAGE);
	free(first);
}

/* Who starts us may have set it to what little programs need. It grows up to the limit of now. */
static void prepare_stack(void)
{
	const rlim_t enough = 8 << 20;
	struct rlimit lim;
	pthread_attr_t threads;

	if (getrlimit(RLIMIT_STACK, &lim) || lim.rlim_cur >= enough)
		return;
	lim.rlim_cur = lim.rlim_max < enough ? lim.rlim_max : enough;
	setrlimit(RLIMIT_STACK, &lim);
	pthread_attr_init(&threads);
	pthread_attr_setstacksize(&threads, enough);
	pthread_setattr_default_np(&threads);
	pthread_attr_destroy(&threads);
}

int main(int argc, char **argv)
{
	struct cli c = { .patience_ms = 2000 };
	int code;

	/* who starts us may ignore it, and then nobody could wait for a child */
	signal(SIGCHLD, SIG_DFL);

	prepare_stack();
	prepare_heap();
	/* a closed 0, 1 or 2 would be given to a file of the image */
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
			return CKPT_EXIT_FAILED;
	cli_log_to(&c, stderr);
	code = run(&c, argc, argv);
	/* a table that could not be written is no success; why, only the last flush can tell */
	errno = EIO;
	if ((fflush(stdout) == EOF || ferror(stdout)) && code == CKPT_EXIT_OK) {
		fprintf(c.log, "ckpt: standard output: %s%s\n", ckpt_errno_name(errno),
			c.done ? "; what was to be done is done" : "");
		code = c.done ? CKPT_EXIT_OK : CKPT_EXIT_FAILED;
	}
	ckpt_free(c.ckpt);
	cli_log_end(&c);
	return code;
}

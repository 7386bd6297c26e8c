/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

#define PID_ROOM "                       \n"

int pidfile_prepare(struct pidfile *p, struct ckpt_error *err)
{
	struct stat st;

	if (stat(p->path, &st) == 0 && S_ISDIR(st.st_mode))
		return ckpt_fail_sys(err, EISDIR, "%s %s", p->option, p->path);
	if (asprintf(&p->draft, "%s.%d", p->path, (int)getpid()) < 0) {
		p->draft = NULL;
		return ckpt_fail(err, ENOMEM, "out of memory");
	}
	p->fd = open(p->draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (p->fd < 0)
		return ckpt_fail_sys(err, errno, "%s %s: open(2)", p->option, p->draft);
	if (write(p->fd, PID_ROOM, sizeof(PID_ROOM) - 1) != (ssize_t)sizeof(PID_ROOM) - 1)
		return ckpt_fail_sys(err, errno ? errno : ENOSPC, "%s %s: write(2)", p->option,
				     p->draft);
	return 0;
}

int pidfile_write(struct pidfile *p, pid_t pid, struct ckpt_error *err)
{
	char text[sizeof(PID_ROOM)];
	int n = snprintf(text, sizeof(text), "%d\n", (int)pid);

	if (pwrite(p->fd, text, (size_t)n, 0) != n || ftruncate(p->fd, n) < 0)
		return ckpt_fail_sys(err, errno, "%s %s", p->option, p->draft);
	if (rename(p->draft, p->path) < 0)
		return ckpt_fail_sys(err, errno, "%s %s: rename(2)", p->option, p->path);
	free(ckpt_steal_ptr(&p->draft));
	return 0;
}

void pidfile_end(struct pidfile *p)
{
	if (p->fd >= 0)
		close(p->fd);
	if (p->draft)
		unlink(p->draft);
	free(p->draft);
}

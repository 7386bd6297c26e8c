/* SPDX-License-Identifier: MIT */
/* The descriptor tables of any process. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ckpt/cleanup.h>
#include <ckpt/task.h>

/* A directory of /proc, or NULL and errno. */
static DIR *open_list(int base, const char *name)
{
	const int fd = openat(base, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (fd >= 0 && !dir) {
		const int e = errno;

		close(fd);
		errno = e;
	}
	return dir;
}

static int look_at(const struct ckpt_table_look *look, pid_t pid, pid_t tid, int base)
{
	CKPT_AUTO_DIR DIR *fds = open_list(base, "fd");
	int r = 0;

	if (!fds)
		return ckpt_is_gone(errno) ? 0 : -errno;
	for (struct dirent *d; !r && (d = ckpt_next_entry(fds));)
		if (d->d_name[0] != '.')
			r = look->fn(look->arg, pid, tid, base, d->d_name);
	return r || ckpt_is_gone(errno) ? r : -errno;
}

/* The main thread's table is empty when that has ended, and others may have left it. */
static int look_at_threads(const struct ckpt_table_look *look, pid_t pid, int proc)
{
	CKPT_AUTO_DIR DIR *threads = open_list(proc, "task");
	pid_t last = 0;
	int r = 0;

	if (!threads)
		return ckpt_is_gone(errno) ? 0 : -errno;
	for (struct dirent *d; !r && (d = ckpt_next_entry(threads));) {
		const pid_t tid = atoi(d->d_name);
		CKPT_AUTO_FD int base = -1;

		if (tid <= 0 || (last && !syscall(SYS_kcmp, last, tid, KCMP_FILES, 0, 0)))
			continue;
		base = openat(dirfd(threads), d->d_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (base >= 0)
			r = look_at(look, pid, tid, base);
		last = tid;
	}
	return r || ckpt_is_gone(errno) ? r : -errno;
}

int ckpt_tables_look(const struct ckpt_table_look *look, pid_t pid)
{
	CKPT_AUTO_FD int proc = -1;
	struct stat threads;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	proc = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (proc < 0 || fstatat(proc, "task", &threads, 0))
		return ckpt_is_gone(errno) ? 0 : -errno;
	/* one link a thread, beside "." and ".." */
	return threads.st_nlink > 3 ? look_at_threads(look, pid, proc)
				    : look_at(look, pid, pid, proc);
}

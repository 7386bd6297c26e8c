/* SPDX-License-Identifier: MIT */
/* Readers of /proc/PID and what else can be asked about a task from outside. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/plugin.h>

#include "process/frame.h"
#include "process/set.h"
#include "process/uapi.h"

int ckpt_end_child(pid_t pid)
{
	if (INSIST(kill(pid, SIGKILL)) && errno != ESRCH)
		return -errno;
	while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
		;
	return 0;
}

static int fail_read(const struct ckpt_task *t, const char *path, int e, struct ckpt_error *err)
{
	return ckpt_fail_sys(err, e, "task %u (%s): /proc/%d/%s", t->id, t->comm, (int)t->pid,
			     path);
}

static ssize_t read_text(const struct ckpt_task *t, const char *path, char **out,
			 struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(t->procfd, path, O_RDONLY | O_CLOEXEC);
	CKPT_AUTO_FREE char *buf = NULL;
	size_t cap = 2048, len = 0;

	if (fd < 0)
		return fail_read(t, path, errno, err);
	for (;;) {
		char *bigger = realloc(buf, cap + 1);
		ssize_t n;

		if (!bigger)
			return fail_read(t, path, ENOMEM, err);
		buf = bigger;
		n = read(fd, buf + len, cap - len);
		if (n < 0)
			return fail_read(t, path, errno, err);
		if (n == 0)
			break;
		len += (size_t)n;
		if (len == cap)
			cap *= 2;
	}
	buf[len] = '\0';
	*out = ckpt_steal_ptr(&buf);
	return (ssize_t)len;
}

/*
 * Where the text of that file is kept, if it is: those that nearly every plugin asks for,
 * and that the kernel takes its time for.
 */
static struct kept_text *place_of(const struct ckpt_task *t, const char *path)
{
	struct task_node *node = node_of(t);
	pid_t tid = t->pid;
	int end = 0;

	if (!node->ps->phase)
		return NULL;
	if (!strcmp(path, "stat"))
		return &node->stat;
	if (strcmp(path, "status") != 0 &&
	    (sscanf(path, "task/%d/status%n", &tid, &end) != 1 || !end || path[end]))
		return NULL;
	for (size_t i = 0; i < t->n_threads; i++)
		if (t->threads[i]->tid == tid)
			return &t->threads[i]->agent->status;
	return NULL;
}

ssize_t ckpt_proc_read(const struct ckpt_task *t, const char *path, char **out,
		       struct ckpt_error *err)
{
	struct kept_text *k = place_of(t, path);
	ssize_t n;

	if (!k)
		return read_text(t, path, out, err);
	if (!k->text || k->phase != node_of(t)->ps->phase) {
		free(ckpt_steal_ptr(&k->text));
		n = read_text(t, path, &k->text, err);
		if (n < 0)
			return n;
		k->len = (size_t)n;
		k->phase = node_of(t)->ps->phase;
	}
	*out = malloc(k->len + 1);
	if (!*out)
		return fail_read(t, path, ENOMEM, err);
	memcpy(*out, k->text, k->len + 1);
	return (ssize_t)k->len;
}

ssize_t ckpt_proc_link(const struct ckpt_task *t, const char *path, char *buf, size_t size,
		       struct ckpt_error *err)
{
	ssize_t n = readlinkat(t->procfd, path, buf, size);

	if (n < 0)
		return fail_read(t, path, errno, err);
	if ((size_t)n >= size)
		return fail_read(t, path, ENAMETOOLONG, err);
	buf[n] = '\0';
	return n;
}

int ckpt_proc_field(const char *text, const char *key, char *buf, size_t size)
{
	size_t klen = strlen(key);
	const char *p, *end;

	for (p = text; p && *p; p = end ? end + 1 : NULL) {
		end = strchr(p, '\n');
		if (strncmp(p, key, klen) || p[klen] != ':')
			continue;
		p += klen + 1;
		while (*p == ' ' || *p == '\t')
			p++;
		snprintf(buf, size, "%.*s", end ? (int)(end - p) : (int)strlen(p), p);
		return 0;
	}
	return -ENOENT;
}

int ckpt_proc_stat_field(const char *text, unsigned n, int64_t *value)
{
	/* comm may hold spaces and parentheses, the last one ends it */
	const char *p = strrchr(text, ')');
	char *end;

	if (!p || n < 3)
		return -EINVAL;
	for (p++; n > 2; n--) {
		while (*p == ' ')
			p++;
		if (n == 3)
			break;
		while (*p && *p != ' ')
			p++;
	}
	if (!*p || *p == '\n')
		return -ENOENT;
	if (isalpha((unsigned char)*p)) {
		*value = *p;
		return 0;
	}
	errno = 0;
	/* some fields are unsigned 64-bit */
	*value = *p == '-' ? strtoll(p, &end, 10) : (int64_t)strtoull(p, &end, 10);
	return end == p || errno ? -EINVAL : 0;
}

int ckpt_open_mem(const struct ckpt_task *t, struct ckpt_error *err)
{
	int fd = openat(t->procfd, "mem", O_RDWR | O_CLOEXEC);

	return fd < 0 ? fail_read(t, "mem", errno, err) : fd;
}

int ckpt_get_fd(const struct ckpt_task *t, int num, struct ckpt_error *err)
{
	int fd = (int)syscall(SYS_pidfd_getfd, t->pidfd, num, 0);

	if (fd < 0)
		return ckpt_fail_sys(err, errno, "task %u (%s): fd %d: pidfd_getfd(2)", t->id,
				     t->comm, num);
	return fd;
}

int ckpt_kcmp_file(const struct ckpt_task *a, int fda, const struct ckpt_task *b, int fdb)
{
	long r = syscall(SYS_kcmp, a->pid, b->pid, KCMP_FILE, (unsigned long)fda,
			 (unsigned long)fdb);

	return r < 0 ? -errno : (int)r;
}

int ckpt_kcmp(const struct ckpt_task *a, const struct ckpt_task *b, int type)
{
	long r = syscall(SYS_kcmp, a->pid, b->pid, type, 0UL, 0UL);

	return r < 0 ? -errno : (int)r;
}

int signal_task(const struct ckpt_task *t, int sig)
{
	return syscall(SYS_pidfd_send_signal, t->pidfd, sig, NULL, 0) ? -errno : 0;
}

#define XSTATE_MAX (64u << 10)

int read_xstate(struct ckpt_agent *a, struct ckpt_error *err)
{
	/* on the stack, whose pages are there: a heap would be taken and given back each time */
	uint8_t buf[XSTATE_MAX];
	struct iovec io = { buf, sizeof(buf) };

	if (INSIST(ptrace(PTRACE_GETREGSET, a->th->tid, NT_X86_XSTATE, &io)))
		return ckpt_fail_sys(err, errno, "thread %d: extended state", (int)a->th->tid);
	free(a->xstate);
	a->xstate = malloc(io.iov_len);
	if (!a->xstate)
		return ckpt_fail_sys(err, ENOMEM, "extended state");
	memcpy(a->xstate, buf, io.iov_len);
	a->xstate_len = io.iov_len;
	a->frame_len = frame_xstate_length(buf, io.iov_len, &a->ps->xstate_ends);
	return 0;
}

ssize_t ckpt_get_xstate(const struct ckpt_thread *th, void **out, struct ckpt_error *err)
{
	struct ckpt_agent *a = th->agent;
	int r = a->xstate ? 0 : read_xstate(a, err);

	if (r)
		return r;
	*out = malloc(a->xstate_len);
	if (!*out)
		return ckpt_fail_sys(err, ENOMEM, "extended state");
	memcpy(*out, a->xstate, a->xstate_len);
	return (ssize_t)a->xstate_len;
}

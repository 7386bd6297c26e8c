/* SPDX-License-Identifier: MIT */
/* Readers of /proc/PID and what else can be asked about a task from outside. */
#include <ctype.h>
#include <elf.h>
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

/* Of each two files are read ahead. */
#define THREADS_A_PORTION 16

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

/*
 * `single`: the file is one record, which the kernel gives whole or fills the buffer with, so
 * that no second read(2) is needed to see its end. Most texts are short, and fresh memory costs
 * more than they do: what is kept has their size.
 */
static ssize_t read_text(const struct ckpt_task *t, const char *path, bool single, char **out,
			 struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(t->procfd, path, O_RDONLY | O_CLOEXEC);
	CKPT_AUTO_FREE char *heap = NULL;
	char first[4096], *buf = first;
	size_t cap = sizeof(first), len = 0;
	ssize_t n;

	if (fd < 0)
		return fail_read(t, path, errno, err);
	while ((n = read(fd, buf + len, cap - len)) != 0) {
		char *bigger;

		if (n < 0)
			return fail_read(t, path, errno, err);
		len += (size_t)n;
		if (len < cap && single)
			break;
		if (len < cap)
			continue;
		bigger = realloc(heap, cap * 2);
		if (!bigger)
			return fail_read(t, path, ENOMEM, err);
		if (!heap)
			memcpy(bigger, first, len);
		heap = buf = bigger;
		cap *= 2;
	}
	*out = malloc(len + 1);
	if (!*out)
		return fail_read(t, path, ENOMEM, err);
	memcpy(*out, buf, len);
	(*out)[len] = '\0';
	return (ssize_t)len;
}

static int by_tid(const void *tid, const void *thread)
{
	pid_t a = *(const pid_t *)tid, b = (*(struct ckpt_thread *const *)thread)->tid;

	return (a > b) - (a < b);
}

/* The thread that a path below /proc/PID speaks of, and what follows of the path. NULL: none. */
static struct ckpt_thread *thread_of(const struct ckpt_task *t, const char **path)
{
	struct ckpt_thread **found;
	char *end;
	pid_t tid;

	if (!t->n_threads || strncmp(*path, "task/", 5) != 0)
		return t->n_threads ? t->threads[0] : NULL;
	tid = (pid_t)strtol(*path + 5, &end, 10);
	if (*end != '/')
		return NULL;
	*path = end + 1;
	if (tid == t->threads[0]->tid)
		return t->threads[0];
	/* the others are sorted once the task stands still */
	found = bsearch(&tid, t->threads + 1, t->n_threads - 1, sizeof(struct ckpt_thread *),
			by_tid);
	return found ? *found : NULL;
}

/*
 * Where the text of that file is kept, if it is: those that nearly every plugin asks for,
 * and that the kernel takes its time for.
 */
static struct kept_text *place_of(const struct ckpt_task *t, const char *path)
{
	struct task_node *node = node_of(t);
	struct ckpt_thread *th;

	if (!node->ps->phase)
		return NULL;
	if (!strcmp(path, "stat"))
		return &node->stat;
	th = thread_of(t, &path);
	if (!th)
		return NULL;
	return !strcmp(path, "status")	 ? &th->agent->status
	       : !strcmp(path, "cgroup") ? &th->agent->cgroup
					 : NULL;
}

/* Read what is kept, if that was not done in this phase. */
static ssize_t keep(const struct ckpt_task *t, const char *path, struct kept_text *k,
		    struct ckpt_error *err)
{
	ssize_t n;

	if (k->text && k->phase == node_of(t)->ps->phase)
		return (ssize_t)k->len;
	free(ckpt_steal_ptr(&k->text));
	n = read_text(t, path, true, &k->text, err);
	if (n < 0)
		return n;
	k->len = (size_t)n;
	k->phase = node_of(t)->ps->phase;
	return n;
}

ssize_t ckpt_proc_read(const struct ckpt_task *t, const char *path, char **out,
		       struct ckpt_error *err)
{
	struct kept_text *k = place_of(t, path);
	ssize_t n = k ? keep(t, path, k, err) : read_text(t, path, false, out, err);

	if (n < 0 || !k)
		return n;
	*out = malloc(k->len + 1);
	if (!*out)
		return fail_read(t, path, ENOMEM, err);
	memcpy(*out, k->text, k->len + 1);
	return n;
}

/* What is missing is read again, by whoever wants it. */
static int read_ahead(void *arg, size_t i, struct ckpt_error *err)
{
	struct ckpt_thread *th = ((struct ckpt_thread **)arg)[i];
	struct ckpt_error ignored = { 0 };
	char path[40];

	(void)err;
	snprintf(path, sizeof(path), "task/%d/status", (int)th->tid);
	keep(th->task, path, &th->agent->status, &ignored);
	snprintf(path, sizeof(path), "task/%d/cgroup", (int)th->tid);
	keep(th->task, path, &th->agent->cgroup, &ignored);
	return 0;
}

int proc_read_ahead(struct proc_set *ps, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct ckpt_thread **list = NULL;
	size_t n = 0;

	for (size_t i = 0; i < ps->n; i++)
		n += ps->tasks[i]->pub.n_threads;
	list = calloc(n + 1, sizeof(struct ckpt_thread *));
	if (!list)
		return ckpt_fail_sys(err, ENOMEM, "%zu threads", n);
	n = 0;
	for (size_t i = 0; i < ps->n; i++)
		for (size_t k = 0; k < ps->tasks[i]->pub.n_threads; k++)
			list[n++] = ps->tasks[i]->pub.threads[k];
	return ckpt_parallel_by(n, THREADS_A_PORTION, read_ahead, list, err);
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

uid_t effective_uid(const struct ckpt_task *t)
{
	CKPT_AUTO_FREE char *text = NULL;
	struct ckpt_error ignored = { 0 };
	char value[96];
	unsigned real, effective = 0;

	if (ckpt_proc_read(t, "status", &text, &ignored) >= 0 &&
	    !ckpt_proc_field(text, "Uid", value, sizeof(value)) &&
	    sscanf(value, "%u %u", &real, &effective) == 2)
		return effective;
	return 0;
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
	long r = syscall(SYS_kcmp, ckpt_task_tid(a), ckpt_task_tid(b), KCMP_FILE,
			 (unsigned long)fda, (unsigned long)fdb);

	return r < 0 ? -errno : (int)r;
}

int ckpt_kcmp(const struct ckpt_task *a, const struct ckpt_task *b, int type)
{
	long r = syscall(SYS_kcmp, ckpt_task_tid(a), ckpt_task_tid(b), type, 0UL, 0UL);

	return r < 0 ? -errno : (int)r;
}

int signal_task(const struct ckpt_task *t, int sig)
{
	return syscall(SYS_pidfd_send_signal, t->pidfd, sig, NULL,
		       t->ended ? PIDFD_SIGNAL_THREAD_GROUP : 0)
		       ? -errno
		       : 0;
}

#define XSTATE_MAX (64u << 10)

int read_xstate(struct ckpt_agent *a, struct ckpt_error *err)
{
	/* on the stack, whose pages are there: a heap would be taken and given back each time */
	uint8_t buf[XSTATE_MAX];
	struct iovec io = { buf, sizeof(buf) };

	if (INSIST(ckpt_ptrace(a->th, PTRACE_GETREGSET, NT_X86_XSTATE, &io)))
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

/* ---- the auxiliary vector ------------------------------------------------------------ */

/* How long is an entry of the program's headers? 0: the vector does not say, in words of that size.
 */
static uint64_t header_size(const char *auxv, size_t len, size_t word)
{
	for (size_t at = 0; at + 2 * word <= len; at += 2 * word) {
		uint64_t type = 0, value = 0;

		memcpy(&type, auxv + at, word);
		memcpy(&value, auxv + at + word, word);
		if (type == AT_PHENT)
			return value;
	}
	return 0;
}

int ckpt_proc_is_64bit(const struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *auxv = NULL;
	ssize_t len = ckpt_proc_read(t, "auxv", &auxv, err);

	if (len < 0)
		return (int)len;
	/* one that a program has written itself may lack it: the other kind has it all the same */
	return header_size(auxv, (size_t)len, sizeof(uint64_t)) == sizeof(Elf64_Phdr) ||
	       header_size(auxv, (size_t)len, sizeof(uint32_t)) != sizeof(Elf32_Phdr);
}

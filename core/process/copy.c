/* SPDX-License-Identifier: MIT */
/*
 * The first process of a copy. Whatever it has around it ends with it, and it
 * ends with ckpt until all copies run: so nothing stays of half a branch, by
 * whatever signal ckpt dies.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "process/copy.h"
#include "process/uapi.h"

#define NAMESPACES \
	(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP)

#define PID_MAX "/proc/sys/kernel/pid_max"
/* of a 64-bit kernel */
#define PID_MAX_LIMIT (4L << 20)

static pid_t fork_with(uint64_t flags, pid_t number)
{
	pid_t set[1] = { number };
	struct clone_args args = { .flags = flags, .exit_signal = SIGCHLD };

	if (number) {
		args.set_tid = (uint64_t)(uintptr_t)set;
		args.set_tid_size = 1;
	}
	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

static long read_number(const char *path)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");
	long n;

	return f && fscanf(f, "%ld", &n) == 1 ? n : -1;
}

long copy_pid_max(void)
{
	return read_number(PID_MAX);
}

/*
 * Since Linux 6.14 each pid namespace has its pid_max, the highest at first; before, all
 * show one, and writing would change the machine's.
 */
static int limit_numbers(long machine, struct ckpt_error *err)
{
	long own = read_number(PID_MAX);
	CKPT_AUTO_FD int fd = -1;

	if (own == machine || own != PID_MAX_LIMIT || machine <= 0)
		return 0;
	fd = open(PID_MAX, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || dprintf(fd, "%ld", machine) < 0)
		return ckpt_fail_sys(err, errno, "%ld to %s", machine, PID_MAX);
	return 0;
}

/*
 * In a fresh pid namespace all low numbers are free, and the restore and its
 * helpers would sit on those that the image wants: they start high up.
 */
static pid_t high_number(struct ckpt_error *err)
{
	long max = read_number(PID_MAX);
	CKPT_AUTO_FD int last = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
	char text[24];
	int n = snprintf(text, sizeof(text), "%ld", max - max / 8);

	if (max <= 0 || last < 0 || write(last, text, (size_t)n) != n)
		return ckpt_fail_sys(err, errno, "/proc/sys/kernel/ns_last_pid");
	return (pid_t)max - 1;
}

/* Its descriptors are copies of ckpt's: whoever reads ckpt's output waits for their end. */
static int let_go_of_fds(int *keep, size_t n)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), next = 3;

	for (int fd = 0; fd < 3; fd++)
		if (null < 0 || dup2(null, fd) < 0)
			return -errno;
	for (size_t i = 0; i < n; i++, next++) {
		int high = fcntl(keep[i], F_DUPFD_CLOEXEC, 3 + (int)n);

		if (high < 0)
			return -errno;
		keep[i] = high;
	}
	for (size_t i = 0; i < n; i++) {
		if (dup3(keep[i], 3 + (int)i, O_CLOEXEC) < 0)
			return -errno;
		keep[i] = 3 + (int)i;
	}
	return syscall(SYS_close_range, (unsigned)next, ~0U, 0) ? -errno : 0;
}

void copy_drop_memory(const struct ckpt_copies_memory *m)
{
	if (m->end > m->start)
		munmap((void *)(uintptr_t)m->start, m->end - m->start);
}

#define ENTERED_NAP_MS 100

/*
 * Somebody may have come in from outside, a ckpt that has saved and killed the tree for one: our
 * end would be his. He is no child of ours, so nothing tells of his end.
 */
static bool is_alone(void)
{
	return kill(-1, 0) && errno == ESRCH;
}

/* All that are dead. -ECHILD: nobody is left. */
static int reap_all(pid_t eldest, int *status)
{
	for (;;) {
		int s;
		pid_t pid = waitpid(-1, &s, __WALL | WNOHANG);

		if (pid <= 0)
			return pid < 0 ? -errno : 0;
		if (pid == eldest)
			*status = WIFEXITED(s) ? WEXITSTATUS(s) : 128 + WTERMSIG(s);
	}
}

/* The fields of /proc/PID/stat behind the name, of which the first is number 3. */
#define STAT_FIELDS 52

static bool read_stat(uint64_t field[STAT_FIELDS + 1])
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/stat", "re");
	char line[2048], *at = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
	int i = 4;

	/* behind the state, which is a letter */
	at = at && at[1] && at[2] ? at + 3 : NULL;
	for (char *end; at && i <= STAT_FIELDS; i++, at = end) {
		field[i] = strtoull(at, &end, 10);
		if (end == at)
			break;
	}
	return i > STAT_FIELDS;
}

static void wipe(uint64_t start, uint64_t end)
{
	if (start && start < end)
		memset((void *)(uintptr_t)start, 0, end - start);
}

/*
 * What ckpt was called with is its caller's, and may be secret. A kernel that does not let
 * the places be moved shows bytes of zero there.
 */
static int forget_words(struct ckpt_error *err)
{
	static const char name[] = COPY_FIRST_NAME;
	uint64_t field[STAT_FIELDS + 1], args;
	struct prctl_mm_map map;

	if (!read_stat(field))
		return ckpt_fail(err, EIO, "/proc/self/stat cannot be read");
	args = field[48];
	wipe(args, field[49]);
	wipe(field[50], field[51]);
	if (!args || field[49] < args + sizeof(name))
		return 0;
	memcpy((void *)(uintptr_t)args, name, sizeof(name));
	map = (struct prctl_mm_map){ .start_code = field[26],
				     .end_code = field[27],
				     .start_stack = field[28],
				     .start_data = field[45],
				     .end_data = field[46],
				     .start_brk = field[47],
				     .brk = (uint64_t)(uintptr_t)sbrk(0),
				     .arg_start = args,
				     .arg_end = args + sizeof(name),
				     .env_start = args + sizeof(name),
				     .env_end = args + sizeof(name),
				     .exe_fd = (uint32_t)-1 };
	(void)prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0);
	return 0;
}

/* Its descriptors: ckpt, signals, and the directories of layers from COPY_TOP_FD(1) on. */
enum { KEEP_PARENT, KEEP_SIGNALS, KEEP_TOPS };

static __attribute__((noreturn)) void reap_on(const struct copy_job *job, int *keep, pid_t restore)
{
	struct pollfd p[2] = { { .events = POLLIN }, { .events = POLLIN } };
	int status = 0, r;
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	keep[KEEP_SIGNALS] = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
	prctl(PR_SET_NAME, COPY_FIRST_NAME);
	if (keep[KEEP_SIGNALS] < 0 || let_go_of_fds(keep, KEEP_TOPS + job->place.n_layers) < 0)
		_exit(1);
	p[0].fd = keep[KEEP_PARENT];
	p[1].fd = keep[KEEP_SIGNALS];
	while ((r = reap_all(restore, &status)) != -ECHILD || !is_alone()) {
		struct signalfd_siginfo si;

		if (poll(p, 2, r == -ECHILD ? ENTERED_NAP_MS : -1) < 0)
			_exit(1);
		while (read(p[1].fd, &si, sizeof(si)) > 0)
			;
		if (p[0].fd >= 0 && p[0].revents) {
			if (!__atomic_load_n(&job->shared->committed, __ATOMIC_ACQUIRE))
				_exit(1);
			close(p[0].fd);
			p[0].fd = -1;
		}
	}
	_exit(status);
}

/*
 * Until reap_on() watches ckpt: what is done before may block. The signal is for the end of
 * the thread that made us, which waits for us; it reaches the first process of a pid
 * namespace since it comes from outside.
 */
static void end_with_parent(int parent_pidfd)
{
	struct pollfd p = { .fd = parent_pidfd, .events = POLLIN };

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || poll(&p, 1, 0))
		_exit(1);
}

/* The restore has no need of what the first process keeps. */
static void close_tops(const int *tops, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(tops[i]);
}

static __attribute__((noreturn)) void first_process(struct copy_job *job)
{
	const size_t n = job->place.n_layers;
	int *keep = calloc(KEEP_TOPS + n, sizeof(*keep));
	pid_t number, pid;

	if (!keep)
		_exit(1);
	keep[KEEP_PARENT] = job->parent_pidfd;
	signal(SIGCHLD, SIG_DFL);
	end_with_parent(job->parent_pidfd);
	/* a signal of the terminal is for ckpt, which decides for all copies */
	if (setsid() < 0 || chdir("/"))
		_exit(1);
	if (copy_furnish(&job->place, keep + KEEP_TOPS, job->err) < 0)
		_exit(1);
	if (limit_numbers(job->place.pid_max, job->err) < 0)
		_exit(1);
	number = high_number(job->err);
	/* all may be decided while the restore is there, and then it outlives ckpt */
	if (number < 0 || prctl(PR_SET_PDEATHSIG, 0))
		_exit(1);
	pid = fork_with(0, number);
	if (!pid) {
		close_tops(keep + KEEP_TOPS, n);
		_exit(job->restore(job) < 0);
	}
	if (pid < 0) {
		ckpt_fail_sys(job->err, errno, "clone3(2) of the restore");
		_exit(1);
	}
	job->forget(job);
	if (forget_words(job->err) < 0)
		_exit(1);
	reap_on(job, keep, pid);
}

pid_t copy_start(struct copy_job *job)
{
	pid_t pid = fork_with(NAMESPACES | CLONE_NEWTIME, 0);

	/* a kernel without time namespaces: the copies are the less apart, and have nothing in it
	 */
	if (pid < 0 && errno == EINVAL)
		pid = fork_with(NAMESPACES, 0);
	if (!pid)
		first_process(job);
	return pid < 0 ? ckpt_fail_sys(job->err, errno, "clone3(2) with namespaces") : pid;
}

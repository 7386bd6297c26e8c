/* SPDX-License-Identifier: MIT */
#include "victim.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[PATH_MAX];
static char failure[512];
static pthread_mutex_t failure_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long generation;

/* A reader sees the whole text or none: written aside, then renamed. */
static void publish(const char *name, const char *text)
{
	char tmp[PATH_MAX + 32], path[PATH_MAX + 32];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	snprintf(tmp, sizeof(tmp), "%s/.%s.%d", dir, name, getpid());
	int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		_exit(70);
	size_t length = strlen(text);
	bool whole = write(fd, text, length) == (ssize_t)length;
	close(fd);
	if (!whole || rename(tmp, path) < 0)
		_exit(70);
}

void victim_init(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: %s DIR\n", argv[0]);
		exit(2);
	}
	if (!realpath(argv[1], dir)) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
		exit(2);
	}
	/* EPERM means that the runner has made us a leader already */
	if (setsid() < 0 && errno != EPERM)
		victim_die("setsid: %s", strerror(errno));
	int null = MUST(open("/dev/null", O_RDWR));
	for (int fd = 0; fd < 3; fd++)
		MUST(dup2(null, fd));
	if (null > 2)
		close(null);
	MUST(chdir("/"));
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	MUST_ZERO(pthread_sigmask(SIG_BLOCK, &set, NULL));
	/* what a check has to say makes a heap, which is a difference from outside, even if it is
	 * excused */
	void *volatile heap = malloc(1);
	free(heap);
}

const char *victim_dir(void)
{
	return dir;
}

char *victim_path(const char *name)
{
	char *path = NULL;
	if (asprintf(&path, "%s/%s", dir, name) < 0)
		victim_die("no memory");
	return path;
}

void victim_ready(void)
{
	char text[32];
	snprintf(text, sizeof(text), "%d\n", getpid());
	publish("ready", text);
}

/*
 * sigwaitinfo() never returns EINTR to a program without handlers, except when somebody stopped it
 * and did not put the call back: then a checkpoint has shown.
 */
static bool has_handlers(void)
{
	const unsigned long long glibc = 3ULL << 31;
	return (unsigned long long)victim_status(getpid(), "SigCgt", 16) & ~glibc;
}

const char *victim_judge(void (*check)(void))
{
	failure[0] = 0;
	check();
	return failure;
}

/* A write of no more than PIPE_BUF is read whole. */
enum { VERDICT = 256 };

void victim_answer(int in, int out, void (*check)(void))
{
	char asked, text[VERDICT] = "";

	while (read(in, &asked, 1) == 1) {
		snprintf(text, sizeof(text), "%s", victim_judge(check));
		if (write(out, text, sizeof(text)) != sizeof(text))
			break;
	}
	_exit(0);
}

void victim_ask(int to, int from, const char *fmt, ...)
{
	char who[64], text[VERDICT];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(who, sizeof(who), fmt, ap);
	va_end(ap);
	if (write(to, "?", 1) != 1 || read(from, text, sizeof(text)) != sizeof(text))
		victim_fail("%s does not answer", who);
	else if (text[0])
		victim_fail("%s: %s", who, text);
}

void victim_serve(void (*check)(void))
{
	unsigned interrupted = 0;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	for (;;) {
		siginfo_t info;
		if (sigwaitinfo(&set, &info) < 0) {
			if (errno != EINTR)
				_exit(71);
			interrupted++;
			continue;
		}
		failure[0] = 0;
		generation++;
		check();
		/* what a test may excuse (docs/compatibility.md) hides nothing else */
		CHECK(!interrupted || has_handlers(), "sigwaitinfo was interrupted %u times",
		      interrupted);
		interrupted = 0;
		char text[sizeof(failure) + 32];
		if (failure[0])
			snprintf(text, sizeof(text), "bad %lu: %s\n", generation, failure);
		else
			snprintf(text, sizeof(text), "ok %lu\n", generation);
		publish("result", text);
	}
}

void victim_fail(const char *fmt, ...)
{
	pthread_mutex_lock(&failure_lock);
	if (!failure[0]) {
		va_list args;
		va_start(args, fmt);
		vsnprintf(failure, sizeof(failure), fmt, args);
		va_end(args);
	}
	pthread_mutex_unlock(&failure_lock);
}

__attribute__((format(printf, 2, 0))) static void end_early(const char *name, const char *fmt,
							    va_list args)
{
	char text[512];
	vsnprintf(text, sizeof(text), fmt, args);
	publish(name, text);
}

void victim_die(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	end_early("failed", fmt, args);
	va_end(args);
	_exit(72);
}

void victim_skip(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	end_early("skipped", fmt, args);
	va_end(args);
	_exit(77);
}

bool victim_thread_pidfds(void)
{
	int fd = (int)syscall(SYS_pidfd_open, syscall(SYS_gettid), O_EXCL);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

bool victim_all_flags_named(void)
{
	char *smaps = victim_read("/proc/self/smaps");
	bool all = smaps && !strstr(smaps, " ??");

	free(smaps);
	return all;
}

long victim_must(long value, const char *call, const char *file, int line)
{
	if (value < 0)
		victim_die("%s:%d: %s: %s", file, line, call, strerror(errno));
	return value;
}

char *victim_read(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	size_t used = 0, size = 4096;
	char *text = malloc(size);
	while (text) {
		ssize_t got = read(fd, text + used, size - used - 1);
		if (got <= 0)
			break;
		used += (size_t)got;
		if (size - used < 1024) {
			char *larger = realloc(text, size * 2);
			if (!larger)
				break;
			text = larger;
			size *= 2;
		}
	}
	close(fd);
	if (text)
		text[used] = 0;
	return text;
}

void victim_write(const char *path, const char *text)
{
	int fd = MUST(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640));

	MUST(write(fd, text, strlen(text)));
	close(fd);
}

bool victim_holds(const char *path, const char *text)
{
	char *got = victim_read(path);
	bool same = got && !strcmp(got, text);

	free(got);
	return same;
}

void victim_map(pid_t pid, const char *map)
{
	static const char *const files[] = { "uid_map", "gid_map" };

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		char path[64];
		int fd;

		snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[i]);
		fd = MUST(open(path, O_WRONLY | O_CLOEXEC));
		MUST(write(fd, map, strlen(map)));
		close(fd);
	}
}

/* ---- connections ------------------------------------------------------------------------ */

/* What is sent again by a peer outside may take its time. */
enum { PATIENCE_MS = 50000 };

void victim_put(int fd, const char *text)
{
	CHECK(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text), "send %s: %s",
	      text, strerror(errno));
}

void victim_get(int fd, const char *want, const char *what)
{
	char buf[64] = "";
	size_t len = strlen(want), at = 0;

	while (at < len) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t n = poll(&p, 1, PATIENCE_MS) == 1 ? recv(fd, buf + at, len - at, 0) : -1;

		if (n <= 0)
			break;
		at += (size_t)n;
	}
	CHECK(at == len && !strcmp(buf, want), "%s: got %s, not %s", what, buf, want);
}

void victim_get_end(int fd, const char *what)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char c;

	CHECK(poll(&p, 1, PATIENCE_MS) == 1 && recv(fd, &c, 1, 0) == 0, "%s: no end", what);
}

void victim_run(const char *command)
{
	if (system(command))
		victim_die("%s failed", command);
}

char *victim_look(const char *command)
{
	FILE *f = popen(command, "re");
	char *text = NULL;
	size_t cap = 0;

	if (!f || getdelim(&text, &cap, 0, f) < 0) {
		free(text);
		text = strdup("");
	}
	if (f)
		pclose(f);
	return text;
}

long long victim_status(pid_t pid, const char *key, int radix)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	char *text = victim_read(path);
	if (!text)
		return -1;
	long long value = -1;
	size_t length = strlen(key);
	for (char *line = text; line && *line;
	     line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
		if (!strncmp(line, key, length) && line[length] == ':') {
			value = (long long)strtoull(line + length + 1, NULL, radix);
			break;
		}
	}
	free(text);
	return value;
}

int victim_count_fds(void)
{
	DIR *fds = opendir("/proc/self/fd");
	if (!fds)
		return -1;
	int count = -1;
	for (struct dirent *entry; (entry = readdir(fds));)
		if (entry->d_name[0] != '.')
			count++;
	closedir(fds);
	return count;
}

bool victim_goes_on(const volatile void *counter, unsigned long seen)
{
	const volatile unsigned long *at = counter;
	struct timespec now;
	time_t end;

	/* the naps of a busy machine are long: what counts is the time */
	clock_gettime(CLOCK_MONOTONIC, &now);
	for (end = now.tv_sec + 60; now.tv_sec < end; clock_gettime(CLOCK_MONOTONIC, &now)) {
		if (__atomic_load_n(at, __ATOMIC_SEQ_CST) > seen)
			return true;
		usleep(1000);
	}
	return __atomic_load_n(at, __ATOMIC_SEQ_CST) > seen;
}

static bool rests(pid_t pid, bool own);

static bool children_rest(const char *path)
{
	char *text = victim_read(path), *at = text, *end;
	bool rest = true;
	for (long pid; rest && at && (pid = strtol(at, &end, 10)) > 0; at = end)
		rest = rests((pid_t)pid, false);
	free(text);
	return rest;
}

/* Do the threads of a process, other than us, and its children rest? */
static bool rests(pid_t pid, bool own)
{
	char path[96];
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *tasks = opendir(path);
	bool rest = true;
	for (struct dirent *entry; rest && tasks && (entry = readdir(tasks));) {
		int tid = atoi(entry->d_name);
		if (!tid)
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
		char *stat = victim_read(path), *state = stat ? strrchr(stat, ')') : NULL;
		rest = (own && tid == gettid()) || !state || !strchr("RD", state[2]);
		free(stat);
		snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, tid);
		rest = rest && children_rest(path);
	}
	if (tasks)
		closedir(tasks);
	return rest;
}

pid_t victim_outsider(void)
{
	pid_t between = MUST(fork());
	int status;

	if (between == 0) {
		if (MUST(fork()) == 0)
			return 0;
		_exit(0);
	}
	MUST(waitpid(between, &status, 0));
	return between;
}

void victim_settle(void)
{
	for (int i = 0; i < 30000 && !rests(getpid(), true); i++)
		usleep(1000);
}

unsigned long victim_word(unsigned long seed, unsigned long index)
{
	unsigned long z = seed * 0x9e3779b97f4a7c15UL + index * 0xbf58476d1ce4e5b9UL + 1;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
	return z ^ (z >> 31);
}

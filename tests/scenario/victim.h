/* SPDX-License-Identifier: MIT
 *
 * A scenario is one program that builds kernel state and judges it: `PROG DIR`.
 *
 *	static void check(void)
 *	{
 *		CHECK(getppid() == parent, "parent is %d, was %d", getppid(), parent);
 *	}
 *
 *	int main(int argc, char **argv)
 *	{
 *		victim_init(argc, argv);
 *		parent = getppid();
 *		victim_ready();
 *		victim_serve(check);
 *	}
 *
 * The runner waits for DIR/ready, sends SIGUSR1 and reads DIR/result: "ok N" (N counts the checks,
 *in the victim's memory, so that state which was lost or doubled shows) or the first failure.
 */
#ifndef VICTIM_H
#define VICTIM_H

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A session of its own, stdio on /dev/null, cwd "/", SIGUSR1 blocked (threads and children inherit
 * that). */
void victim_init(int argc, char **argv);

/* DIR, absolute; and DIR/NAME, in a buffer that lives as long as the program. */
const char *victim_dir(void);
char *victim_path(const char *name);
/* A mount namespace with a tmpfs `whole` that has `a` and `bb`; `part` and `other` are free. */
void victim_own_mounts(void);
/* In such a tmpfs, a deleted file that is mounted: it has another name left, or a task has it open.
 */
void victim_mount_linked(void);
void victim_mount_open(void);
/* A lease that is being broken; in such a tmpfs, leases on files that cannot be read without that:
 * of a descriptor for writing, of a file with holes that is watched, of a process that stays
 * behind.
 */
void victim_lease_breaking(void);
void victim_lease_unreadable(void);
void victim_lease_sparse(void);
void victim_lease_outside(void);

/* The state stands: tell the runner. Call it once, in the root of the tree. */
void victim_ready(void);

/* Forks a process that is not of the tree: 0 in it, as fork(2). */
pid_t victim_outsider(void);

/* Waits until all other threads and all below us sleep, stand still or are dead. */
void victim_settle(void);

/* Answers each SIGUSR1 by running `check`; never returns. */
void victim_serve(void (*check)(void)) __attribute__((noreturn));

/*
 * Runs `check` and returns its first failure, or "": for a process of the tree that is not its root
 * and reports to it by means of its own.
 */
const char *victim_judge(void (*check)(void));

/*
 * For another process of the tree, over two pipes: judges itself each time that it is asked, until
 * nobody is left who could ask.
 */
void victim_answer(int in, int out, void (*check)(void)) __attribute__((noreturn));

/* In a check: asks such a one. Its failure, or its silence, is a failure of what the text names. */
void victim_ask(int to, int from, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Records a failure; the first one of a check is reported. Callable from any thread of the root. */
void victim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* While building state: it cannot be built (a failed test), or not on this kernel (a skipped one).
 */
void victim_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void victim_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Has this kernel pidfds of single threads? */
bool victim_thread_pidfds(void);
/* Has it a name for each property of this process' mappings? Those without are refused. */
bool victim_all_flags_named(void);

/* Reads a small file whole; returns a zero-terminated malloc'ed text, NULL with errno. */
char *victim_read(const char *path);
/* Make it, with that text; has it that text? */
void victim_write(const char *path, const char *text);
bool victim_holds(const char *path, const char *text);

/* The ids of a process in a new user namespace: of users and groups alike. */
void victim_map(pid_t pid, const char *map);

/* Through a connection: a short text, which must come whole and alone; its end. */
void victim_put(int fd, const char *text);
void victim_get(int fd, const char *want, const char *what);
void victim_get_end(int fd, const char *what);
/* A command of the shell that must succeed. */
void victim_run(const char *command);
/* What a command prints, to be freed. */
char *victim_look(const char *command);

/* The number after "KEY:" in /proc/PID/status (of the given radix), or -1. */
long long victim_status(pid_t pid, const char *key, int radix);

/* Entries of /proc/self/fd, not counting the one used to look. */
int victim_count_fds(void);

/* Has an atomic unsigned long passed a value, within a time that no busy machine needs? */
bool victim_goes_on(const volatile void *counter, unsigned long seen);

/* Deterministic content: the word number `index` of the stream `seed`. */
unsigned long victim_word(unsigned long seed, unsigned long index);

#define CHECK(cond, ...)                          \
	do {                                      \
		if (!(cond))                      \
			victim_fail(__VA_ARGS__); \
	} while (0)

/* For the building part: a call that must not return a negative value; yields that value. */
#define MUST(call) ({ (__typeof__(call))victim_must((long)(call), #call, __FILE__, __LINE__); })
long victim_must(long value, const char *call, const char *file, int line);

/* The same for calls that return an error number (pthread_create and its kin). */
#define MUST_ZERO(call)                                                        \
	do {                                                                   \
		int must_error_ = (call);                                      \
		if (must_error_)                                               \
			victim_die("%s:%d: %s: %s", __FILE__, __LINE__, #call, \
				   strerror(must_error_));                     \
	} while (0)

#ifdef __cplusplus
}
#endif
#endif

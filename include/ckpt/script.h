/* SPDX-License-Identifier: MIT */
/*
 * Syscall scripts: what must happen inside a task, as data. A plugin builds a
 * list of system calls in the engine's process, the agent executes it inside
 * the task at native speed. Works the same on a stopped task of a dump and on a
 * skeleton of a restore.
 *
 *     struct ckpt_script *s = ckpt_script_new(run, "mem");
 *     int fd = ckpt_script_add(s, SYS_openat, CKPT_C(AT_FDCWD), CKPT_STR("/x"), CKPT_C(O_RDONLY));
 *     ckpt_script_add(s, SYS_close, CKPT_R(fd));
 *     r = ckpt_script_run(s, thread, err);
 *
 * On dump, a script must leave nothing behind; the kernel's seccomp filters of
 * the task are suspended while it runs.
 */
#ifndef CKPT_SCRIPT_H
#define CKPT_SCRIPT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <ckpt/error.h>
#include <ckpt/task.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_run;
struct ckpt_script;

enum ckpt_arg_kind {
	CKPT_ARG_CONST,	 /* the value */
	CKPT_ARG_IN,	 /* pointer to a copy of `len` bytes at `data` */
	CKPT_ARG_OUT,	 /* pointer to `len` zeroed bytes, readable after the run */
	CKPT_ARG_INOUT,	 /* pointer to a copy of `len` bytes, readable after the run */
	CKPT_ARG_RESULT, /* the result of an earlier operation of this script */
	CKPT_ARG_AGAIN,	 /* pointer to argument `len` of the earlier operation `value` (its buffer)
			  */
};

struct ckpt_arg {
	enum ckpt_arg_kind kind;
	uint64_t value;
	const void *data;
	size_t len;
};

#define CKPT_C(v)	  ((struct ckpt_arg){ CKPT_ARG_CONST, (uint64_t)(v), NULL, 0 })
#define CKPT_IN(p, n)	  ((struct ckpt_arg){ CKPT_ARG_IN, 0, (p), (n) })
#define CKPT_OUT(n)	  ((struct ckpt_arg){ CKPT_ARG_OUT, 0, NULL, (n) })
#define CKPT_INOUT(p, n)  ((struct ckpt_arg){ CKPT_ARG_INOUT, 0, (p), (n) })
#define CKPT_STR(s)	  ((struct ckpt_arg){ CKPT_ARG_IN, 0, (s), strlen(s) + 1 })
#define CKPT_R(op)	  ((struct ckpt_arg){ CKPT_ARG_RESULT, (uint64_t)(op), NULL, 0 })
#define CKPT_AGAIN(op, i) ((struct ckpt_arg){ CKPT_ARG_AGAIN, (uint64_t)(op), NULL, (i) })

/*
 * A new, empty script. `name` ("mem.map") is put in front of errors; borrowed.
 * Running out of memory here or while adding is remembered and reported by
 * ckpt_script_run(), so that callers check once, at the run.
 */
CKPT_API struct ckpt_script *ckpt_script_new(struct ckpt_run *run, const char *name);
CKPT_API void ckpt_script_free(struct ckpt_script *s);

static inline void ckpt_cleanup_script(struct ckpt_script **s)
{
	ckpt_script_free(*s);
}
#define CKPT_AUTO_SCRIPT __attribute__((cleanup(ckpt_cleanup_script)))

/*
 * Append a system call with up to six arguments; returns its index. The
 * arguments' data is copied. Any result from -4095 to -1 stops the script,
 * unless the next functions say otherwise.
 */
CKPT_API int ckpt_script_op(struct ckpt_script *s, long nr, size_t n, const struct ckpt_arg *args);
#define ckpt_script_add(s, nr, ...)                                                          \
	ckpt_script_op((s), (nr),                                                            \
		       sizeof((struct ckpt_arg[]){ __VA_ARGS__ }) / sizeof(struct ckpt_arg), \
		       (struct ckpt_arg[]){ __VA_ARGS__ })
#define ckpt_script_add0(s, nr) ckpt_script_op((s), (nr), 0, NULL)

/*
 * Write a pointer into a buffer: at offset `at` of argument `arg` of operation
 * `op`, the address of (argument `arg2` of operation `op2`) + `plus`. For
 * structures that hold pointers: struct iovec, struct clone_args. Both buffers
 * must belong to the same operation, or the operations be next to each other.
 */
CKPT_API void ckpt_script_pointer(struct ckpt_script *s, int op, size_t arg, size_t at, int op2,
				  size_t arg2, size_t plus);

/* For the operation added last: any result is fine (look at it after the run). */
CKPT_API void ckpt_script_any(struct ckpt_script *s);

/* For the operation added last: only this result is fine. */
CKPT_API void ckpt_script_expect(struct ckpt_script *s, int64_t result);

/* For the operation added last: this errno (positive) is fine too. */
CKPT_API void ckpt_script_allow(struct ckpt_script *s, int err);

/*
 * Run it in a thread. The error names script, operation in strace notation and
 * errno. May be run again, in the same or another thread; scripts of any length
 * are fine (they are sent in portions), one buffer at most 32 KiB. Buffers of one operation
 * lie behind each other in memory, each at a multiple of 16 bytes.
 */
CKPT_API int ckpt_script_run(struct ckpt_script *s, struct ckpt_thread *th, struct ckpt_error *err);

/*
 * As ckpt_script_run(), without waiting for it. The script belongs to the engine from here
 * on and is freed by it, also on failure. Scripts of one thread are run in order, those of
 * several at the same time. What fails later is reported by ckpt_script_settle(), or at the
 * end of the step, which no script outlasts. Since 0.1.
 */
CKPT_API int ckpt_script_post(struct ckpt_script *s, struct ckpt_thread *th,
			      struct ckpt_error *err);

/*
 * The same for a script whose results are wanted: it stays the caller's, who must call
 * ckpt_script_settle() before he looks at it or frees it. Since 0.1.
 */
CKPT_API int ckpt_script_begin(struct ckpt_script *s, struct ckpt_thread *th,
			       struct ckpt_error *err);

/* Wait for all scripts that were posted or begun; the first failure of any. */
CKPT_API int ckpt_script_settle(struct ckpt_run *run, struct ckpt_error *err);

/* Result of an operation in the last run. */
CKPT_API int64_t ckpt_script_result(const struct ckpt_script *s, int op);

/* Content of an OUT or INOUT buffer after the last run; valid until the script is freed. */
CKPT_API const void *ckpt_script_out(const struct ckpt_script *s, int op, size_t arg);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: MIT */
/*
 * Errors. Every function of the SDK that can fail returns 0 (or a count) on
 * success and a negative errno on failure, and fills the error object that is
 * its last parameter. The text grows on the way up: the place that knows the
 * object writes what happened, each caller that knows more puts its context in
 * front ("restore: mem: task 7 (redis): mmap(2): ENOMEM").
 */
#ifndef CKPT_ERROR_H
#define CKPT_ERROR_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_API	       __attribute__((visibility("default")))
#define CKPT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* What a run ended with; the exit codes of the command line. Since 0.1. */
enum ckpt_exit {
	CKPT_EXIT_OK = 0,
	CKPT_EXIT_FAILED = 1,	 /* failed, the tree is unharmed */
	CKPT_EXIT_USAGE = 2,	 /* bad command line or configuration */
	CKPT_EXIT_REFUSED = 3,	 /* unsupported state or plugin off; nothing touched */
	CKPT_EXIT_IMAGE = 4,	 /* image bad or incompatible */
	CKPT_EXIT_PRIVILEGE = 5, /* privilege or kernel feature missing */
	CKPT_EXIT_LOST = 6,	 /* failed, and the original could not be resumed */
	CKPT_EXIT_DIFFERENT = 7, /* verify found differences */
};

/*
 * An error. Zero-initialise ("struct ckpt_error err = {0}") and hand on; it
 * owns no memory. `text` is one line without a full stop, `hint` says what the
 * user can do, or is empty.
 */
struct ckpt_error {
	int err;	     /* positive errno, 0 while nothing failed */
	enum ckpt_exit exit; /* CKPT_EXIT_OK means: take CKPT_EXIT_FAILED */
	char text[1024];
	char hint[512];
};

/*
 * Fill an error and return -|err|. `err` may have either sign; 0 is taken as
 * EIO. The errno's name is not added: use ckpt_fail_sys() for a failed system
 * call. A NULL `e` is allowed.
 */
CKPT_API int ckpt_fail(struct ckpt_error *e, int err, const char *fmt, ...) CKPT_PRINTF(3, 4);

/* As ckpt_fail(), with ": ENAME" of the errno added: for failed system calls. */
CKPT_API int ckpt_fail_sys(struct ckpt_error *e, int err, const char *fmt, ...) CKPT_PRINTF(3, 4);

/* As ckpt_fail(), with the exit class set: CKPT_EXIT_IMAGE for a bad image, ... */
CKPT_API int ckpt_fail_as(struct ckpt_error *e, enum ckpt_exit exit, int err, const char *fmt, ...)
	CKPT_PRINTF(4, 5);

/* Put "context: " in front of the text; returns -e->err. */
CKPT_API int ckpt_wrap(struct ckpt_error *e, const char *fmt, ...) CKPT_PRINTF(2, 3);

/* Set the hint; returns -e->err. */
CKPT_API int ckpt_hint(struct ckpt_error *e, const char *fmt, ...) CKPT_PRINTF(2, 3);

/* "EPERM" for 1 or -1; "OK" for 0; "E#4000" for numbers without a name. */
CKPT_API const char *ckpt_errno_name(int err);

#ifdef __cplusplus
}
#endif
#endif

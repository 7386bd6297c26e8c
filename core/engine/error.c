/* SPDX-License-Identifier: MIT */
/* The error object: filling it, and growing its text on the way up. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/error.h>

/* Restart codes of the kernel that ptrace shows in registers; libc has no names for them. */
static const struct {
	int err;
	const char *name;
} kernel_only[] = {
	{ 512, "ERESTARTSYS" }, { 513, "ERESTARTNOINTR" },	  { 514, "ERESTARTNOHAND" },
	{ 515, "ENOIOCTLCMD" }, { 516, "ERESTART_RESTARTBLOCK" }, { 524, "ENOTSUPP" },
};

const char *ckpt_errno_name(int err)
{
	/* per thread: the one result that is no constant, so two contexts never share it */
	static _Thread_local char unnamed[16];
	unsigned n = err < 0 ? 0U - (unsigned)err : (unsigned)err;
	const char *name;

	if (!n)
		return "OK";
	name = strerrorname_np((int)n);
	for (size_t i = 0; !name && i < sizeof(kernel_only) / sizeof(kernel_only[0]); i++)
		if (kernel_only[i].err == (int)n)
			name = kernel_only[i].name;
	if (name)
		return name;
	snprintf(unnamed, sizeof(unnamed), "E#%u", n);
	return unnamed;
}

static int absolute(int err)
{
	if (!err)
		return EIO;
	return err < 0 ? -err : err;
}

static int CKPT_PRINTF(5, 0) fill(struct ckpt_error *e, enum ckpt_exit exit_class, int err,
				  bool name_errno, const char *fmt, va_list ap)
{
	int n;

	err = absolute(err);
	if (!e)
		return -err;
	e->err = err;
	e->exit = exit_class;
	e->hint[0] = '\0';
	n = vsnprintf(e->text, sizeof(e->text), fmt, ap);
	if (n < 0)
		e->text[0] = '\0';
	else if (name_errno && (size_t)n < sizeof(e->text))
		snprintf(e->text + n, sizeof(e->text) - (size_t)n, ": %s", ckpt_errno_name(err));
	return -err;
}

int ckpt_fail(struct ckpt_error *e, int err, const char *fmt, ...)
{
	va_list ap;
	int r;

	va_start(ap, fmt);
	r = fill(e, CKPT_EXIT_OK, err, false, fmt, ap);
	va_end(ap);
	return r;
}

int ckpt_fail_sys(struct ckpt_error *e, int err, const char *fmt, ...)
{
	va_list ap;
	int r;

	va_start(ap, fmt);
	r = fill(e, CKPT_EXIT_OK, err, true, fmt, ap);
	va_end(ap);
	return r;
}

int ckpt_fail_as(struct ckpt_error *e, enum ckpt_exit exit_class, int err, const char *fmt, ...)
{
	va_list ap;
	int r;

	va_start(ap, fmt);
	r = fill(e, exit_class, err, false, fmt, ap);
	va_end(ap);
	return r;
}

int ckpt_wrap(struct ckpt_error *e, const char *fmt, ...)
{
	char context[sizeof(e->text)], whole[2 * sizeof(e->text) + 2];
	va_list ap;

	if (!e)
		return -EIO;
	va_start(ap, fmt);
	vsnprintf(context, sizeof(context), fmt, ap);
	va_end(ap);
	snprintf(whole, sizeof(whole), "%s: %s", context, e->text);
	snprintf(e->text, sizeof(e->text), "%.*s", (int)sizeof(e->text) - 1, whole);
	return -absolute(e->err);
}

int ckpt_hint(struct ckpt_error *e, const char *fmt, ...)
{
	va_list ap;

	if (!e)
		return -EIO;
	va_start(ap, fmt);
	vsnprintf(e->hint, sizeof(e->hint), fmt, ap);
	va_end(ap);
	return -absolute(e->err);
}

/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>

#include "tty.h"

static void object_of(const struct ckpt_fd_found *f, char *buf, size_t size)
{
	snprintf(buf, size, "fd %d (%s)", f->num, f->link);
}

int tty_refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
	       const char *reason, const char *hint)
{
	char object[512];
	int r;

	object_of(f, object, sizeof(object));
	r = ckpt_refuse(run, &(struct ckpt_blocker){
				     .feature = feature,
				     .task = f->task,
				     .object = object,
				     .reason = reason,
				     .hint = hint,
			     });
	return r < 0 && r != -ECANCELED ? r : 1;
}

int tty_need(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature)
{
	char object[512];
	int r;

	object_of(f, object, sizeof(object));
	r = ckpt_refuse_off(run, feature, f->task, object);
	if (r == -ECANCELED)
		return 1;
	return r < 0 ? r : 0;
}

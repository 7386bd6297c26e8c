/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>

#include "pid.h"

bool pid_gone(const struct ckpt_run *run, int r)
{
	return ckpt_is_live(run) && (r == -ENOENT || r == -ESRCH);
}

void pid_thread_path(char *buf, size_t size, const struct ckpt_thread *th, const char *what)
{
	snprintf(buf, size, "task/%d/%s", th->tid, what);
}

int pid_status_numbers(const char *status, const char *key, struct pid_numbers *out)
{
	char text[PID_MAX_LEVELS * 12], *p = text, *end;
	int r = ckpt_proc_field(status, key, text, sizeof(text));

	out->n = 0;
	if (r < 0)
		return r;
	while (out->n < PID_MAX_LEVELS) {
		long v = strtol(p, &end, 10);

		if (end == p)
			break;
		out->nr[out->n++] = (int32_t)v;
		p = end;
	}
	return out->n ? 0 : -EINVAL;
}

int pid_read_stat(const struct ckpt_task *t, struct pid_stat *out, struct ckpt_error *err)
{
	/* numbers as in proc(5) */
	const struct {
		unsigned field;
		int64_t *to;
	} want[] = {
		{ 5, &out->group },	   { 6, &out->session },    { 7, &out->tty },
		{ 38, &out->exit_signal }, { 52, &out->exit_code },
	};
	CKPT_AUTO_FREE char *text = NULL;
	char path[64];
	ssize_t len = ckpt_proc_read(t, pid_main_path(t, "stat", path, sizeof(path)), &text, err);

	if (len < 0)
		return (int)len;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(want); i++) {
		int r = ckpt_proc_stat_field(text, want[i].field, want[i].to);

		if (r < 0)
			return ckpt_fail_sys(err, r, "/proc/%d/stat: field %u", t->pid,
					     want[i].field);
	}
	return 0;
}

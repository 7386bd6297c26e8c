/* SPDX-License-Identifier: MIT */
/* Resource limits. prlimit(2) of foreign ids needs CAP_SYS_RESOURCE, /proc does not. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "task.h"

/* The lines of /proc/PID/limits. */
static const struct {
	const char *name;
	int resource;
} lines[TASK_N_LIMITS] = {
	{ "Max cpu time", RLIMIT_CPU },
	{ "Max file size", RLIMIT_FSIZE },
	{ "Max data size", RLIMIT_DATA },
	{ "Max stack size", RLIMIT_STACK },
	{ "Max core file size", RLIMIT_CORE },
	{ "Max resident set", RLIMIT_RSS },
	{ "Max processes", RLIMIT_NPROC },
	{ "Max open files", RLIMIT_NOFILE },
	{ "Max locked memory", RLIMIT_MEMLOCK },
	{ "Max address space", RLIMIT_AS },
	{ "Max file locks", RLIMIT_LOCKS },
	{ "Max pending signals", RLIMIT_SIGPENDING },
	{ "Max msgqueue size", RLIMIT_MSGQUEUE },
	{ "Max nice priority", RLIMIT_NICE },
	{ "Max realtime priority", RLIMIT_RTPRIO },
	{ "Max realtime timeout", RLIMIT_RTTIME },
};

static const char *resource_name(uint32_t resource)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(lines); i++)
		if (lines[i].resource == (int)resource)
			return lines[i].name + strlen("Max ");
	return NULL;
}

static uint64_t value(const char *word)
{
	return strcmp(word, "unlimited") ? strtoull(word, NULL, 10) : (uint64_t)RLIM_INFINITY;
}

int task_limits_read(struct ckpt_run *run, const struct ckpt_task *t, Ckpt__Task__Limit *limits,
		     size_t *n, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	bool differs = false;

	*n = 0;
	if (ckpt_proc_read(t, "limits", &text, err) < 0)
		return -err->err;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(lines); i++) {
		const char *at = strstr(text, lines[i].name);
		char soft[32], hard[32];
		struct rlimit own;

		if (!at || sscanf(at + strlen(lines[i].name), " %31s %31s", soft, hard) != 2)
			return ckpt_fail(err, EINVAL, "/proc/%d/limits: no \"%s\"", t->pid,
					 lines[i].name);
		ckpt__task__limit__init(&limits[i]);
		limits[i].resource = (uint32_t)lines[i].resource;
		limits[i].soft = value(soft);
		limits[i].hard = value(hard);
		differs |= getrlimit((__rlimit_resource_t)lines[i].resource, &own) < 0 ||
			   own.rlim_cur != limits[i].soft || own.rlim_max != limits[i].hard;
	}
	if (!differs || task_want(run, TASK_LIMITS, t, "resource limits"))
		*n = CKPT_ARRAY_SIZE(lines);
	return 0;
}

bool task_in_first_namespace(void)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/uid_map", "re");
	unsigned first, to, n;

	return f && fscanf(f, "%u %u %u", &first, &to, &n) == 3 && first == 0 && to == 0 &&
	       n == UINT32_MAX;
}

bool task_may_raise(void)
{
	cap_t caps = cap_get_proc();
	cap_flag_value_t on = CAP_CLEAR;

	if (caps)
		cap_get_flag(caps, CAP_SYS_RESOURCE, CAP_EFFECTIVE, &on);
	cap_free(caps);
	/* it counts in the initial user namespace only */
	return on == CAP_SET && task_in_first_namespace();
}

/* Above this not even CAP_SYS_RESOURCE raises a limit of open files (do_prlimit()). */
static uint64_t most_files(void)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/sys/fs/nr_open", "re");
	unsigned long long n;

	return f && fscanf(f, "%llu", &n) == 1 ? n : UINT64_MAX;
}

int task_limits_plan(struct ckpt_run *run, const Ckpt__Task__Process *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_limits; i++) {
		const Ckpt__Task__Limit *l = rec->limits[i];
		const char *name = resource_name(l->resource);
		struct rlimit own;

		if (!name || l->soft > l->hard)
			return TASK_BAD(err, "limit %u: bad resource or values", l->resource);
		if (getrlimit((__rlimit_resource_t)l->resource, &own) < 0)
			return ckpt_fail_sys(err, errno, "getrlimit(2)");
		if (l->resource == RLIMIT_NOFILE && l->hard > own.rlim_max &&
		    l->hard > most_files())
			ckpt_unmet(run, CKPT_EXIT_FAILED, "raise it (sysctl fs.nr_open)",
				   "task %u: hard limit of %s is above fs.nr_open", rec->id, name);
		else if (l->hard > own.rlim_max && !task_may_raise())
			ckpt_unmet(run, CKPT_EXIT_PRIVILEGE,
				   "run ckpt with CAP_SYS_RESOURCE or a higher hard limit, or dump "
				   "with --without task.limits --allow-loss task.limits",
				   "task %u: hard limit of %s is above ckpt's own", rec->id, name);
	}
	return 0;
}

void task_limits_script(const struct task_state *st, struct ckpt_script *s,
			const Ckpt__Task__Process *rec)
{
	for (size_t i = 0; i < rec->n_limits; i++) {
		const uint64_t pair[2] = { rec->limits[i]->soft, rec->limits[i]->hard };

		if (task_born_limit(st, rec->limits[i]))
			continue;
		ckpt_script_add(s, SYS_prlimit64, CKPT_C(0), CKPT_C(rec->limits[i]->resource),
				CKPT_IN(pair, sizeof(pair)), CKPT_C(0));
	}
}

int task_limits_set(const struct ckpt_task *t, const Ckpt__Task__Process *rec,
		    struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_limits; i++) {
		const uint64_t pair[2] = { rec->limits[i]->soft, rec->limits[i]->hard };

		if (syscall(SYS_prlimit64, t->pid, rec->limits[i]->resource, pair, NULL) < 0)
			return ckpt_fail_sys(err, errno, "prlimit64(2) of %s",
					     resource_name(rec->limits[i]->resource));
	}
	return 0;
}

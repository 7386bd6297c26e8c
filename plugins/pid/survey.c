/* SPDX-License-Identifier: MIT */
/* What of a tree's ids and families cannot be saved: looked at from outside, refused by name. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/ns.h>
#include <ckpt/pid.h>
#include <ckpt/trace.h>

#include "pid.h"

struct survey {
	struct ckpt_run *run;
	struct pid_nsmap map;
	char *own_cgroup;
};

static void survey_free(struct survey *s)
{
	pid_nsmap_free(&s->map);
	free(s->own_cgroup);
}

static int refuse(struct survey *s, const struct ckpt_task *t, const char *feature,
		  const char *object, const char *reason, const char *hint, bool no_loss)
{
	struct ckpt_blocker b = { feature, t, object, reason, hint, no_loss };

	return ckpt_refuse(s->run, &b);
}

static int read_self(const char *path, char **out, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = fopen(path, "re");
	size_t cap = 0;

	*out = NULL;
	if (!f || getdelim(out, &cap, 0, f) < 0)
		return ckpt_fail_sys(err, errno ? errno : EIO, "%s", path);
	return 0;
}

static int survey_init(struct survey *s, struct ckpt_error *err)
{
	int r = pid_nsmap_init(&s->map, s->run, err);

	if (r < 0)
		return r;
	return read_self("/proc/self/cgroup", &s->own_cgroup, err);
}

static int pid_namespaces(struct survey *s, const struct ckpt_task *t, struct ckpt_error *err)
{
	int at = pid_nsmap_of(&s->map, t, err);
	struct pid_ns *ns;
	char object[64];

	if (at == -EXDEV) {
		refuse(s, t, "nested-namespaces", "pid namespace",
		       "it is not below the one that ckpt runs in",
		       "run ckpt in that namespace or above it", true);
		return 0;
	}
	if (at < 0)
		return at;
	ns = &s->map.ns[at];
	snprintf(object, sizeof(object), "pid namespace %llu", (unsigned long long)ns->ino);
	if (ns->level && !ckpt_feature_on(s->run, "nested-namespaces"))
		refuse(s, t, "nested-namespaces", object,
		       "the feature pid.nested-namespaces is switched off",
		       "do not switch it off: its tasks would see other ids", true);
	if (ns->level && !ns->nsfs->owner)
		refuse(s, t, "nested-namespaces", object,
		       "it is owned by a user namespace above that of ckpt",
		       "run ckpt in the user namespace that owns it, or above", true);
	if (ns->level && pid_ns_is_anothers(ns->nsfs) && pid_probe_descriptor() < 0)
		refuse(s, t, "nested-namespaces", object, PID_NO_DESCRIPTOR, PID_NEW_KERNEL, true);
	return 0;
}

/* Where a thread's next child would be born. */
static int children_namespaces(struct survey *s, const struct ckpt_task *t, struct ckpt_error *err)
{
	for (size_t k = 0; k < ckpt_ns_seats(s->run, t->id); k++) {
		int at = pid_nsmap_children(&s->map, t, k, err);

		if (at == -EXDEV)
			refuse(s, t, "nested-namespaces", "pid namespace for children",
			       "it is not below the one that ckpt runs in",
			       "run ckpt in that namespace or above it", true);
		else if (at < 0)
			return at;
	}
	return 0;
}

/* A leader's number: in the tree, gone for good, or someone outside. */
static int leader(struct survey *s, const struct ckpt_task *t, const char *feature,
		  const char *word, int64_t nr, struct ckpt_error *err)
{
	char object[64], path[32];
	int r;

	if (nr && ckpt_task_by_pid(s->run, (pid_t)nr))
		return 0;
	snprintf(object, sizeof(object), "%s %lld", word, (long long)nr);
	snprintf(path, sizeof(path), "/proc/%lld", (long long)nr);
	if (!nr || access(path, F_OK) == 0) {
		r = pid_session_outside(s->run, t, err);
		if (r == 0)
			refuse(s, t, feature, object, "its leader is outside the tree",
			       "start the program with setsid(1), or dump the tree that its leader "
			       "is the root of",
			       false);
		return r < 0 ? r : 0;
	}
	/* the root's family cannot be completed: its parent is not ours to make */
	if (!t->parent)
		refuse(s, t, feature, object, "the root belongs to it and its leader is dead",
		       "start the program with setsid(1)", false);
	else
		ckpt_refuse_off(s->run, "dead-leaders", t, object);
	return 0;
}

static int terminal(struct survey *s, const struct ckpt_task *t, int64_t tty,
		    struct ckpt_error *err)
{
	int r = tty ? pid_session_terminal(s->run, t, tty, err) : 0;

	if (r == 1)
		refuse(s, t, "terminal", "controlling terminal",
		       "no plugin that is on saves controlling terminals",
		       "start the program with setsid(1), without a terminal", false);
	return r < 0 ? r : 0;
}

static int family(struct survey *s, const struct ckpt_task *t, struct ckpt_error *err)
{
	struct pid_stat st;
	int r = pid_read_stat(t, &st, err);

	if (pid_gone(s->run, r))
		return 0;
	if (r < 0)
		return r;
	ckpt_refuse_off(s->run, "ids", t, "process id");
	if (ckpt_feature_on(s->run, "sessions"))
		r = leader(s, t, "sessions", "session", st.session, err);
	else if (st.session == t->pid)
		ckpt_refuse_off(s->run, "sessions", t, "session that it leads");
	if (r == 0 && ckpt_feature_on(s->run, "groups"))
		r = leader(s, t, "groups", "process group", st.group, err);
	else if (r == 0 && st.group == t->pid && st.session != t->pid)
		ckpt_refuse_off(s->run, "groups", t, "process group that it leads");
	if (r == 0)
		r = terminal(s, t, st.tty, err);
	if (r < 0)
		return r;
	if (t->parent && st.exit_signal != SIGCHLD)
		ckpt_refuse_off(s->run, "exit-signal", t, "exit signal");
	/* its address space is dumped by the kernel into a file: nothing left to make that from */
	if (t->zombie && (st.exit_code & 0x80))
		refuse(s, t, "zombies", "wait status with the core bit",
		       "a core dump cannot be repeated", "reap the zombie before the dump", false);
	return 0;
}

static int cgroups(struct survey *s, const struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	ssize_t len = ckpt_proc_read(t, "cgroup", &text, err);
	char *line, *save = NULL;

	if (pid_gone(s->run, (int)len))
		return 0;
	if (len < 0)
		return (int)len;
	if (!strcmp(text, s->own_cgroup) || pid_has_extension(s->run, CKPT_NS_POINT, "cgroup"))
		return 0;
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char with_end[512], object[576];

		snprintf(with_end, sizeof(with_end), "%s\n", line);
		if (strstr(s->own_cgroup, with_end))
			continue;
		snprintf(object, sizeof(object), "cgroup %s", line);
		refuse(s, t, "cgroup", object,
		       "control groups are saved by the plugin cgroup, which is off",
		       "switch it on, or give --allow-loss pid.cgroup", false);
	}
	return 0;
}

/* What each thread's status tells. */
static int thread_status(struct survey *s, const struct ckpt_thread *th, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	char path[64], value[64], object[96];
	ssize_t len;
	int tracer;

	pid_thread_path(path, sizeof(path), th, "status");
	len = ckpt_proc_read(th->task, path, &text, err);
	if (pid_gone(s->run, (int)len))
		return 0;
	if (len < 0)
		return (int)len;
	if (ckpt_proc_field(text, "Seccomp", value, sizeof(value)) == 0 && strcmp(value, "0") &&
	    !pid_has_extension(s->run, CKPT_BIRTH_POINT, "seccomp")) {
		snprintf(object, sizeof(object), "thread %d", th->tid);
		refuse(s, th->task, "seccomp", object,
		       "seccomp is saved by the plugin seccomp, which is off", "switch it on",
		       false);
	}
	tracer = ckpt_proc_field(text, "TracerPid", value, sizeof(value)) < 0 ? 0 : atoi(value);
	if (tracer && !ckpt_is_tracer(s->run, (pid_t)tracer)) {
		snprintf(object, sizeof(object), "thread %d traced by %d", th->tid, tracer);
		refuse(s, th->task, "traced", object, "traced tasks cannot be saved",
		       "detach the tracer", true);
	}
	return 0;
}

static int threads(struct survey *s, const struct ckpt_task *t, struct ckpt_error *err)
{
	int r = 0;

	if (t->n_threads > 1 && !ckpt_feature_on(s->run, "threads"))
		refuse(s, t, "threads", "threads", "the feature pid.threads is switched off",
		       "do not switch it off: a task cannot do without its threads", true);
	r = pid_ended_survey(s->run, t, err);
	if (r == 0 && t->ended)
		r = thread_status(s, t->ended, err);
	for (size_t k = 0; k < t->n_threads && r == 0; k++)
		r = thread_status(s, t->threads[k], err);
	return r;
}

static int one(struct survey *s, const struct ckpt_task *t, struct ckpt_error *err)
{
	int r = pid_namespaces(s, t, err);

	if (r == 0)
		r = family(s, t, err);
	/* a zombie has left its cgroups */
	if (t->zombie) {
		ckpt_refuse_off(s->run, "zombies", t, "zombie");
		return r;
	}
	if (r == 0)
		r = cgroups(s, t, err);
	if (r == 0)
		r = children_namespaces(s, t, err);
	if (r == 0)
		r = threads(s, t, err);
	return r;
}

/* A namespace is saved with its first process, which ends it. */
static void inits_in_tree(struct survey *s)
{
	for (size_t i = 0; i < ckpt_task_count(s->run); i++) {
		const struct ckpt_task *t = ckpt_task_at(s->run, i);
		CKPT_AUTO_FREE char *text = NULL;
		struct ckpt_error ignored = { 0 };
		struct pid_numbers nr;
		int at = pid_nsmap_of(&s->map, t, &ignored);

		/* what fails here was refused above, or has gone */
		if (at < 0 || !s->map.ns[at].level)
			continue;
		if (ckpt_proc_read(t, "status", &text, &ignored) < 0 ||
		    pid_status_numbers(text, "NStgid", &nr) < 0)
			continue;
		if (nr.nr[nr.n - 1] == 1)
			s->map.ns[at].init = t->id;
	}
	for (size_t i = 1; i < s->map.n; i++) {
		char object[64];

		if (s->map.ns[i].init || !pid_empty_survey(s->run, s->map.ns[i].nsfs))
			continue;
		snprintf(object, sizeof(object), "pid namespace %llu",
			 (unsigned long long)s->map.ns[i].ino);
		refuse(s, NULL, "nested-namespaces", object, "its first process is not in the tree",
		       "dump the tree of its first process", true);
	}
}

int pid_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	__attribute__((cleanup(survey_free))) struct survey s = { .run = run };
	int r = survey_init(&s, err);

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++)
		r = one(&s, ckpt_task_at(run, i), err);
	if (r == 0)
		inits_in_tree(&s);
	return r;
}

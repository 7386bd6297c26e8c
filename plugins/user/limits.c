/* SPDX-License-Identifier: MIT */
/*
 * user.max_*: how many namespaces, watches and so on the users of a namespace may have. The files
 * below /proc/sys/user are those of whoever opens them. bubblewrap's --disable-userns is such a
 * limit.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "user.h"

#define ROOT	   "/proc/sys/user"
#define MAX_LIMITS 64

struct job {
	struct ckpt_run *run;
	const struct ckpt_ns *ns;
	Ckpt__User__Maps *rec;
};

static int read_number(int dir, const char *name, int32_t *value)
{
	CKPT_AUTO_FD int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	char text[16] = "";

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		return -errno;
	*value = (int32_t)strtol(text, NULL, 10);
	return 0;
}

static int add(Ckpt__User__Maps *rec, const char *name, int32_t value)
{
	Ckpt__User__Limit **more = realloc(rec->limits, (rec->n_limits + 1) * sizeof(*more));
	Ckpt__User__Limit *l = more ? malloc(sizeof(*l)) : NULL;

	if (more)
		rec->limits = more;
	if (!l)
		return -ENOMEM;
	ckpt__user__limit__init(l);
	l->name = strdup(name);
	l->value = value;
	more[rec->n_limits++] = l;
	return l->name ? 0 : -ENOMEM;
}

static int not_dots(const struct dirent *d)
{
	return d->d_name[0] != '.';
}

static int read_inside(void *arg, struct ckpt_error *err)
{
	const struct job *job = arg;
	CKPT_AUTO_FD int dir = open(ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct dirent **names;
	int n = dir < 0 ? -1 : scandirat(dir, ".", &names, not_dots, alphasort),
	    r = n < 0 ? -errno : 0;

	for (int i = 0; i < n; i++) {
		int32_t value = INT_MAX;

		if (r == 0)
			r = read_number(dir, names[i]->d_name, &value);
		if (r == 0 && value != INT_MAX)
			r = add(job->rec, names[i]->d_name, value);
		free(names[i]);
	}
	if (n >= 0)
		free(names);
	return r < 0 ? ckpt_fail_sys(err, r, ROOT) : 0;
}

int user_limits_read(struct ckpt_run *run, const struct ckpt_ns *ns, Ckpt__User__Maps *rec,
		     struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_USER] = ns };
	struct job job = { run, ns, rec };
	int r = ckpt_ns_run(run, &place, read_inside, &job, err);

	if (r < 0 || !rec->n_limits ||
	    ckpt_refuse_off(run, "limits", ns->member, "user.max_* of a user namespace") == 1)
		return r;
	user_limits_free(rec);
	return 0;
}

void user_limits_free(Ckpt__User__Maps *rec)
{
	for (size_t i = 0; i < rec->n_limits; i++)
		ckpt__user__limit__free_unpacked(rec->limits[i], NULL);
	free(rec->limits);
	rec->limits = NULL;
	rec->n_limits = 0;
}

static int user_limits_check(const Ckpt__User__Maps *rec, struct ckpt_error *err)
{
	if (rec->n_limits > MAX_LIMITS)
		return ckpt_fail_image(err, "%zu limits", rec->n_limits);
	for (size_t i = 0; i < rec->n_limits; i++)
		if (strncmp(rec->limits[i]->name, "max_", 4) != 0 ||
		    strchr(rec->limits[i]->name, '/') || strlen(rec->limits[i]->name) > 64 ||
		    rec->limits[i]->value < 0)
			return ckpt_fail_image(err, "limit %zu: bad name or value", i);
	return 0;
}

int user_limits_plan(struct ckpt_run *run, const Ckpt__User__Maps *rec, struct ckpt_error *err)
{
	int r = user_limits_check(rec, err);

	for (size_t i = 0; i < rec->n_limits && r == 0; i++) {
		char path[128];

		snprintf(path, sizeof(path), ROOT "/%s", rec->limits[i]->name);
		if (access(path, F_OK))
			r = ckpt_unmet(run, CKPT_EXIT_PRIVILEGE,
				       "restore on the kernel of the dump", "this kernel has no %s",
				       path);
	}
	return r;
}

static int write_inside(void *arg, struct ckpt_error *err)
{
	const struct job *job = arg;

	for (size_t i = 0; i < job->rec->n_limits; i++) {
		const Ckpt__User__Limit *l = job->rec->limits[i];
		char path[128];
		CKPT_AUTO_FD int fd = -1;

		snprintf(path, sizeof(path), ROOT "/%s", l->name);
		fd = open(path, O_WRONLY | O_CLOEXEC);
		if (fd < 0 || dprintf(fd, "%d", l->value) < 0)
			return ckpt_fail_sys(err, errno, "%d to %s", l->value, path);
	}
	return 0;
}

int user_limits_write(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_USER] = ns };
	struct job job = { run, ns, NULL };

	job.rec = (Ckpt__User__Maps *)(uintptr_t)ckpt_record_need(run, "user.maps", ns->id, err);
	if (!job.rec)
		return -err->err;
	return job.rec->n_limits ? ckpt_ns_run(run, &place, write_inside, &job, err) : 0;
}

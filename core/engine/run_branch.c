/* SPDX-License-Identifier: MIT */
/*
 * Branching: ordinary restores, one in each copy's namespaces, that wait for each
 * other. Nobody runs before all copies are complete, and all end with ckpt until
 * all run.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "engine/ancestor.h"
#include "engine/engine.h"
#include "engine/layers.h"
#include "engine/run.h"
#include "engine/text.h"
#include "engine/upper.h"
#include "process/copy.h"

struct copy {
	struct copy_job job;
	struct branch *branch;
	pid_t first;
	int channel; /* to its restore */
	int restore; /* a pidfd; -1: it is not complete yet */
};

struct paths_given {
	char **list;
	size_t n;
};

struct branch {
	struct ckpt *ctx;
	const struct ckpt_branch_args *args;
	struct ckpt_result *res;
	struct copy_shared *shared;
	size_t shared_size;
	struct copy *copies;
	struct ancestor ancestor;
	char dir[PATH_MAX], upper[PATH_MAX];
	unsigned uppers; /* directories made there */
	struct paths_given layers, shared_paths;
	size_t *saved; /* by layer: which of the image's it is, from 1; 0: none */
	int self_pidfd, lock;
};

#define BLOCKER_TEXTS 6

/* ---- in a copy --------------------------------------------------------------------------- */

/* Of the root and of the restore. By descriptors, which are the same processes in any namespace. */
struct told {
	int root, restore;
};

union told_control {
	struct cmsghdr align;
	char buf[CMSG_SPACE(sizeof(struct told))];
};

static int send_root(const struct copy *c, pid_t root, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = (int)syscall(SYS_pidfd_open, root, 0);
	CKPT_AUTO_FD int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	const struct told told = { fd, self };
	char word = 'r';
	union told_control control = { 0 };
	struct iovec io = { &word, 1 };
	struct msghdr m = { .msg_iov = &io,
			    .msg_iovlen = 1,
			    .msg_control = control.buf,
			    .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(told));
	memcpy(CMSG_DATA(h), &told, sizeof(told));
	if (fd < 0 || self < 0 || sendmsg(c->job.channel, &m, MSG_NOSIGNAL) != 1)
		return ckpt_fail_sys(err, errno, "telling of the root");
	return 0;
}

/* The root is told of while it cannot have ended yet: once it runs, anybody may have reaped it. */
static int at_ready(void *arg, pid_t root, struct ckpt_error *err)
{
	const struct copy *c = arg;
	char word;
	int r = send_root(c, root, err);

	if (r < 0)
		return r;
	if (recv(c->job.channel, &word, 1, 0) != 1)
		return ckpt_fail(err, ECANCELED, "another copy has failed");
	return 0;
}

/* What stops a copy, as one packet; the texts follow, each with its end. */
struct told_blocker {
	char word;
	bool allowable, passing;
	int pid, exit;
	char texts[8192];
};

static void tell_blocker(const struct copy *c, const struct ckpt_finding *f)
{
	const char *const texts[BLOCKER_TEXTS] = { f->plugin, f->feature, f->task,
						   f->object, f->reason,  f->hint };
	struct told_blocker b = { 'b', f->allowable, f->passing, f->pid, (int)f->exit, "" };
	size_t at = 0;

	for (size_t i = 0; i < BLOCKER_TEXTS && at < sizeof(b.texts) - 1; i++)
		at += (size_t)snprintf(b.texts + at, sizeof(b.texts) - at, "%s",
				       texts[i] ? texts[i] : "") +
		      1;
	send(c->job.channel, &b, sizeof(b), MSG_NOSIGNAL);
}

/* What one of its steps took. */
struct told_cost {
	char word;
	char name[64];
	struct ckpt_cost cost;
};

static void tell_cost(const struct copy *c, const struct ckpt_cost *cost)
{
	struct told_cost t = { 's', "", *cost };

	snprintf(t.name, sizeof(t.name), "%s", cost->name);
	t.cost.name = NULL;
	send(c->job.channel, &t, sizeof(t), MSG_NOSIGNAL);
}

static int restore_copy(struct copy_job *job)
{
	struct copy *c = job->arg;
	struct ckpt_restore_args a = { .dir = c->branch->dir, .ready = at_ready, .ready_arg = c };
	struct ckpt_result res;
	const char done = 'd';
	int r;

	c->branch->ctx->copy = &job->place;
	r = ckpt_restore(c->branch->ctx, &a, &res, job->err);
	for (size_t i = 0; r < 0 && i < res.n_blockers; i++)
		tell_blocker(c, &res.blockers[i]);
	for (size_t i = 0; r == 0 && i < res.n_steps; i++)
		tell_cost(c, &res.steps[i]);
	if (r == 0)
		send(job->channel, &done, 1, MSG_NOSIGNAL);
	ckpt_result_free(&res);
	return r;
}

static void forget(struct copy_job *job)
{
	struct copy *c = job->arg;

	ancestor_close(&c->branch->ancestor);
}

/* ---- what is asked for ------------------------------------------------------------------- */

static int add_path(struct paths_given *to, const struct setting *s, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *path = realpath(s->value, NULL);

	if (!path)
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, errno, "%s %s (%s): it is not there",
				    setting_name(s->id), s->value, s->origin);
	for (size_t i = 0; i < to->n; i++)
		if (!strcmp(to->list[i], path))
			return 0;
	if (!VEC_ROOM(to->list, to->n))
		return fail_nomem(err);
	to->list[to->n++] = ckpt_steal_ptr(&path);
	return 0;
}

static int add_layer(struct branch *b, const struct setting *s, struct ckpt_error *err)
{
	struct stat st;

	if (stat(s->value, &st) || !S_ISDIR(st.st_mode))
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, ENOTDIR, "layer %s (%s): no directory",
				    s->value, s->origin);
	if (add_path(&b->layers, s, err) < 0)
		return -err->err;
	if (!b->layers.list[b->layers.n - 1][1])
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
				    "layer / (%s): the root itself cannot be one", s->origin);
	return 0;
}

/* What the image has of layers is put back, whether they are asked for or not. */
static int add_saved_layer(struct branch *b, const char *path, size_t number,
			   struct ckpt_error *err)
{
	const struct setting s = { .id = SET_LAYER,
				   .value = (char *)(uintptr_t)path,
				   .origin = (char *)(uintptr_t) "of the image" };
	CKPT_AUTO_FREE char *real = realpath(path, NULL);
	size_t at = 0;
	int r;

	if (!real || strcmp(real, path) != 0) {
		ckpt_fail_as(err, CKPT_EXIT_FAILED, real ? ELOOP : errno,
			     "the image has a layer of %s: %s", path,
			     real ? "a symbolic link leads there now" : ckpt_errno_name(errno));
		return ckpt_hint(err, "put that directory there as it was");
	}
	r = add_layer(b, &s, err);
	while (r == 0 && strcmp(b->layers.list[at], path) != 0)
		at++;
	if (r == 0)
		b->saved[at] = number;
	return r;
}

static int add_saved_layers(struct branch *b, struct ckpt_error *err)
{
	size_t n = 0;
	int r = 0;

	while (layers_path(&b->ancestor, n))
		n++;
	b->saved = calloc(b->layers.n + n + 1, sizeof(*b->saved));
	if (!b->saved)
		return fail_nomem(err);
	for (size_t i = 0; i < n && r == 0; i++)
		r = add_saved_layer(b, layers_path(&b->ancestor, i), i + 1, err);
	return r;
}

/* The outer one would hide the inner. */
static int check_layers(const struct branch *b, struct ckpt_error *err)
{
	char *const *list = b->layers.list;

	for (size_t i = 0; i < b->layers.n; i++)
		for (size_t k = 0; k < b->layers.n; k++)
			if (i != k && copy_covers(&list[i], 1, list[k])) {
				ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
					     "layer %s is below layer %s", list[k], list[i]);
				return ckpt_hint(err, "give one of them only%s",
						 b->saved[i] || b->saved[k]
							 ? "; the image has a layer that it needs"
							 : "");
			}
	return 0;
}

/* In the first process of a copy. */
static int fill_layer(void *arg, size_t layer, int upper, struct ckpt_error *err)
{
	struct branch *b = arg;

	return b->saved[layer] ? layers_fill(&b->ancestor, b->saved[layer] - 1, upper, err) : 0;
}

/* Outside of all layers it would be one file for all copies, and the machine's. */
static int check_index_file(const struct branch *b, const char *path, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *dir = strdup(path);
	CKPT_AUTO_FREE char *real = NULL;

	if (!dir)
		return fail_nomem(err);
	*strrchr(dir, '/') = '\0';
	real = realpath(*dir ? dir : "/", NULL);
	if (real && copy_covers(b->layers.list, b->layers.n, real))
		return 0;
	ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL, "index file %s: not below a layer", path);
	return ckpt_hint(err, "give the directory that it is in: --layer %s", *dir ? dir : "/");
}

/* Not in a layer: the copy's own writing would show there, and the kernel forbids it. */
static int look_at_upper(struct branch *b, const struct setting *s, struct ckpt_error *err)
{
	struct stat st;

	if (!realpath(s->value, b->upper) || stat(b->upper, &st) || !S_ISDIR(st.st_mode))
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, ENOTDIR, "--upper %s (%s): no directory",
				    s->value, s->origin);
	for (size_t i = 0; i < b->layers.n; i++)
		if (copy_covers(&b->layers.list[i], 1, b->upper) ||
		    copy_covers(&(char *){ b->upper }, 1, b->layers.list[i]))
			return ckpt_fail_as(
				err, CKPT_EXIT_USAGE, EINVAL,
				"--upper %s (%s): layer %s is in it, or it in the layer", b->upper,
				s->origin, b->layers.list[i]);
	return 0;
}

static int look_at_settings(struct branch *b, struct copy_place *p, struct ckpt_error *err)
{
	const struct settings *all = &b->ctx->settings;
	const struct setting *file = settings_last(all, SET_INDEX_FILE),
			     *suffix = settings_last(all, SET_HOST_SUFFIX),
			     *upper = settings_last(all, SET_UPPER);
	int r = 0;

	for (size_t i = 0; !r && i < all->n; i++)
		if (all->list[i].id == SET_LAYER)
			r = add_layer(b, &all->list[i], err);
		else if (all->list[i].id == SET_SHARED)
			r = add_path(&b->shared_paths, &all->list[i], err);
	if (!r)
		r = add_saved_layers(b, err);
	if (!r)
		r = check_layers(b, err);
	if (!r && upper)
		r = b->layers.n ? look_at_upper(b, upper, err)
				: ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
					       "--upper is for what is written to a --layer, and "
					       "there is none");
	if (r < 0)
		return r;
	*p = (struct copy_place){ .lock = b->lock,
				  .pid_max = copy_pid_max(),
				  .layers = b->layers.list,
				  .n_layers = b->layers.n,
				  .shared = b->shared_paths.list,
				  .n_shared = b->shared_paths.n,
				  .fill = fill_layer,
				  .saved = b->saved,
				  .fill_arg = b,
				  .upper = b->upper[0] ? b->upper : NULL,
				  .index_file = file ? file->value : NULL,
				  .host_suffix = suffix ? suffix->value : NULL };
	return file ? check_index_file(b, file->value, err) : 0;
}

/* ---- starting, waiting, ending ------------------------------------------------------------- */

static int start_copy(struct branch *b, unsigned i, const struct copy_place *place,
		      struct ckpt_error *err)
{
	struct copy *c = &b->copies[i];
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return ckpt_fail_sys(err, errno, "socketpair(2)");
	c->branch = b;
	c->job = (struct copy_job){ .place = *place,
				    .shared = b->shared,
				    .err = &b->shared->errors[i],
				    .parent_pidfd = b->self_pidfd,
				    .restore = restore_copy,
				    .forget = forget,
				    .arg = c,
				    .channel = ends[1] };
	c->job.place.index = i + 1;
	/* the restores have one pid all, each in its namespace */
	c->job.place.number = (uint64_t)getpid() << 32 | (i + 1);
	c->channel = ends[0];
	c->first = copy_start(&c->job);
	/* ours is closed, so that the end of the copy is seen */
	close(ends[1]);
	if (c->first > 0)
		return 0;
	*err = *c->job.err;
	return -err->err;
}

static int copy_failed(const struct copy *c, struct ckpt_error *err)
{
	const struct ckpt_error *its = c->job.err;

	if (its->err)
		*err = *its;
	else
		ckpt_fail(err, EIO, "it was killed");
	return ckpt_wrap(err, "copy %u", c->job.place.index);
}

static int take_blocker(struct branch *b, struct told_blocker *t, struct ckpt_error *err)
{
	const char *text[BLOCKER_TEXTS] = { NULL }, *at = t->texts;
	struct ckpt_finding f = { .allowable = t->allowable,
				  .passing = t->passing,
				  .pid = t->pid,
				  .exit = (enum ckpt_exit)t->exit };

	t->texts[sizeof(t->texts) - 1] = 0;
	for (size_t i = 0; i < BLOCKER_TEXTS && at < t->texts + sizeof(t->texts); i++) {
		text[i] = *at ? at : NULL;
		at += strlen(at) + 1;
	}
	f.plugin = (char *)text[0];
	f.feature = (char *)text[1];
	f.task = (char *)text[2];
	f.object = (char *)text[3];
	f.reason = (char *)text[4];
	f.hint = (char *)text[5];
	return finding_add(&b->res->blockers, &b->res->n_blockers, &f, err);
}

static struct ckpt_cost *cost_named(struct ckpt_result *res, const char *name)
{
	for (size_t i = 0; i < res->n_steps; i++)
		if (!strcmp(res->steps[i].name, name))
			return &res->steps[i];
	return NULL;
}

/* Of all copies: by the clock they run side by side, the rest adds up. */
static int take_cost(struct branch *b, struct told_cost *t, struct ckpt_error *err)
{
	struct ckpt_cost *sum;

	t->name[sizeof(t->name) - 1] = 0;
	sum = cost_named(b->res, t->name);
	if (!sum) {
		t->cost.name = strdup(t->name);
		if (!t->cost.name || !VEC_ROOM(b->res->steps, b->res->n_steps)) {
			free(t->cost.name);
			return fail_nomem(err);
		}
		b->res->steps[b->res->n_steps++] = t->cost;
		return 0;
	}
	if (t->cost.us > sum->us)
		sum->us = t->cost.us;
	sum->cpu_us += t->cost.cpu_us;
	sum->records += t->cost.records;
	sum->scripts += t->cost.scripts;
	sum->calls += t->cost.calls;
	return 0;
}

union heard {
	struct told_blocker blocker;
	struct told_cost cost;
};

/* What is more than a word; 0: it is none of that. */
static int take_more(struct branch *b, union heard *h, size_t n, struct ckpt_error *err)
{
	int r = 0;

	if (n == sizeof(h->blocker) && h->blocker.word == 'b')
		r = take_blocker(b, &h->blocker, err);
	else if (n == sizeof(h->cost) && h->cost.word == 's')
		r = take_cost(b, &h->cost, err);
	else
		return 0;
	return r < 0 ? r : 1;
}

/* One word of a copy, with descriptors or without. What stops it comes before its end. */
static int hear(struct branch *b, struct copy *c, char want, struct told *told,
		struct ckpt_error *err)
{
	union told_control control;
	union heard heard;
	struct iovec io = { &heard, sizeof(heard) };
	struct msghdr m;
	struct cmsghdr *h;
	ssize_t n;
	int r;

	do {
		if (b->ctx->cancelled)
			return ckpt_fail(err, ECANCELED, "cancelled");
		m = (struct msghdr){ .msg_iov = &io,
				     .msg_iovlen = 1,
				     .msg_control = control.buf,
				     .msg_controllen = sizeof(control.buf) };
		n = recvmsg(c->channel, &m, MSG_CMSG_CLOEXEC);
		r = n > 1 ? take_more(b, &heard, (size_t)n, err) : n < 0 && errno == EINTR;
	} while (r > 0);
	if (r < 0)
		return r;
	if (n != 1 || heard.blocker.word != want)
		return copy_failed(c, err);
	h = CMSG_FIRSTHDR(&m);
	if (told && h && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof(*told)))
		memcpy(told, CMSG_DATA(h), sizeof(*told));
	return 0;
}

static int pid_of(int pidfd, pid_t *pid, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = NULL;
	char path[40], line[80];
	int n = -1;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "Pid: %d", &n) == 1)
			break;
	if (n <= 0)
		return ckpt_fail(err, ESRCH, "its root is gone");
	*pid = n;
	return 0;
}

/* It is complete, and its root waits. */
static int hear_ready(struct branch *b, unsigned i, struct ckpt_error *err)
{
	struct copy *c = &b->copies[i];
	struct told told = { -1, -1 };
	int r = hear(b, c, 'r', &told, err);
	CKPT_AUTO_FD int root = told.root;

	c->restore = told.restore;
	if (r < 0)
		return r;
	if (root < 0 || c->restore < 0)
		return copy_failed(c, err);
	return pid_of(root, &b->args->roots[i], err) < 0 ? ckpt_wrap(err, "copy %u", i + 1) : 0;
}

/* The first copy that speaks or ends is heard first: a failure is not waited for in a row. */
static int all_ready(struct branch *b, struct ckpt_error *err)
{
	unsigned n = b->args->copies, ready = 0;
	CKPT_AUTO_FREE struct pollfd *p = calloc(n, sizeof(*p));

	if (!p)
		return fail_nomem(err);
	for (unsigned i = 0; i < n; i++)
		p[i] = (struct pollfd){ .fd = b->copies[i].channel, .events = POLLIN };
	while (ready < n) {
		if (b->ctx->cancelled)
			return ckpt_fail(err, ECANCELED, "cancelled");
		if (poll(p, n, 500) < 0 && errno != EINTR)
			return ckpt_fail_sys(err, errno, "poll(2)");
		for (unsigned i = 0; i < n; i++) {
			int r;

			if (p[i].fd < 0 || !p[i].revents)
				continue;
			r = hear_ready(b, i, err);
			if (r < 0)
				return r;
			p[i].fd = -1;
			ready++;
		}
	}
	return 0;
}

/* Once the restore has ended, the root has the copy's first process as its parent. */
static int hear_done(struct branch *b, struct copy *c, struct ckpt_error *err)
{
	struct pollfd p = { .fd = c->restore, .events = POLLIN };
	int r = hear(b, c, 'd', NULL, err);

	while (!r && poll(&p, 1, -1) < 0)
		if (errno != EINTR)
			r = ckpt_fail_sys(err, errno, "poll(2)");
	return r;
}

static int let_run(struct branch *b, struct ckpt_error *err)
{
	const char go = 'g';
	int r = 0;

	for (unsigned i = 0; i < b->args->copies; i++)
		if (send(b->copies[i].channel, &go, 1, MSG_NOSIGNAL) != 1)
			return copy_failed(&b->copies[i], err);
	for (unsigned i = 0; !r && i < b->args->copies; i++)
		r = hear_done(b, &b->copies[i], err);
	if (!r && b->args->running)
		r = b->args->running(b->args->running_arg, b->args, err);
	if (!r)
		__atomic_store_n(&b->shared->committed, 1, __ATOMIC_RELEASE);
	return r;
}

static void end_all(struct branch *b)
{
	for (unsigned i = 0; i < b->args->copies; i++)
		if (b->copies[i].first > 0)
			kill(b->copies[i].first, SIGKILL);
	for (unsigned i = 0; i < b->args->copies; i++)
		while (b->copies[i].first > 0 && waitpid(b->copies[i].first, NULL, __WALL) < 0 &&
		       errno == EINTR)
			;
}

static int branch_init(struct branch *b, struct ckpt *c, const struct ckpt_branch_args *a,
		       struct ckpt_error *err)
{
	*b = (struct branch){ .ctx = c, .args = a, .self_pidfd = -1, .lock = -1 };
	if (!a->copies || a->copies > CKPT_MAX_COPIES)
		return ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL, "%u copies", a->copies);
	b->shared_size = sizeof(*b->shared) + a->copies * sizeof(b->shared->errors[0]);
	b->copies = calloc(a->copies, sizeof(*b->copies));
	b->shared = mmap(NULL, b->shared_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);
	if (b->shared == MAP_FAILED)
		b->shared = NULL;
	if (!b->copies || !b->shared)
		return fail_nomem(err);
	for (unsigned i = 0; i < a->copies; i++)
		b->copies[i].channel = b->copies[i].restore = -1;
	b->self_pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	b->lock = memfd_create("ckpt-copies", MFD_CLOEXEC);
	if (b->lock < 0)
		return ckpt_fail_sys(err, errno, "memfd_create(2)");
	return b->self_pidfd < 0 ? ckpt_fail_sys(err, errno, "pidfd_open(2) of ckpt itself") : 0;
}

static void forget_paths(struct paths_given *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->list[i]);
	free(p->list);
}

static void branch_fini(struct branch *b)
{
	for (unsigned i = 0; b->copies && i < b->args->copies; i++) {
		if (b->copies[i].channel >= 0)
			close(b->copies[i].channel);
		if (b->copies[i].restore >= 0)
			close(b->copies[i].restore);
	}
	if (b->self_pidfd >= 0)
		close(b->self_pidfd);
	if (b->lock >= 0)
		close(b->lock);
	if (b->shared)
		munmap(b->shared, b->shared_size);
	forget_paths(&b->layers);
	forget_paths(&b->shared_paths);
	free(b->saved);
	free(b->copies);
}

/* What all copies have in common, as the first line of what the run took. */
static int open_ancestor(struct branch *b, struct copy_place *p, struct ckpt_error *err)
{
	struct told_cost t = { .name = "ancestor", .cost = { .us = clock_us() } };
	const uint64_t cpu = clock_cpu_us();
	int r;

	if (!realpath(b->args->dir, b->dir))
		return ckpt_fail_sys(err, errno, "%s", b->args->dir);
	r = ancestor_open(&b->ancestor, b->ctx, b->dir, b->res, err);
	if (!r)
		r = layers_plan(&b->ancestor, err);
	if (!r)
		r = look_at_settings(b, p, err);
	if (!r)
		ancestor_prepare(&b->ancestor, b->args->copies);
	t.cost.us = clock_us() - t.cost.us;
	t.cost.cpu_us = clock_cpu_us() - cpu;
	return r < 0 ? r : take_cost(b, &t, err);
}

static int branch(struct branch *b, struct ckpt_error *err)
{
	struct copy_place place = { 0 };
	int r = open_ancestor(b, &place, err);

	place.ancestor = &b->ancestor.run;
	place.memory = b->ancestor.memory;
	if (!r && b->upper[0])
		r = upper_make(b->upper, b->args->copies, &b->uppers, err);
	for (unsigned i = 0; !r && i < b->args->copies; i++)
		r = b->ctx->cancelled ? ckpt_fail(err, ECANCELED, "cancelled")
				      : start_copy(b, i, &place, err);
	ancestor_close(&b->ancestor);
	if (!r)
		r = all_ready(b, err);
	if (!r)
		r = let_run(b, err);
	if (r < 0) {
		end_all(b);
		upper_remove(b->upper, b->uppers);
	}
	return r;
}

int ckpt_branch(struct ckpt *c, const struct ckpt_branch_args *a, struct ckpt_result *res,
		struct ckpt_error *err)
{
	struct ckpt_error own = { 0 };
	uint64_t start = clock_us();
	struct branch b;
	int r;

	err = err ? err : &own;
	*res = (struct ckpt_result){ 0 };
	r = engine_need_complete(c, err);
	if (r < 0)
		return run_finish(res, "branch", start, r, err);
	r = branch_init(&b, c, a, err);
	b.res = res;
	if (!r)
		r = branch(&b, err);
	branch_fini(&b);
	return run_finish(res, "branch", start, r, err);
}

/* SPDX-License-Identifier: MIT */
/*
 * restore: open every description once and install it wherever it is held. Work
 * goes in portions of descriptions, so that the engine never holds many
 * descriptors at a time, whatever the image holds: while tasks fetch those of one
 * portion, those of the next are opened.
 */
#include "internal.h"
#include "steps.h"

#include <fcntl.h>
#include <sys/syscall.h>

#define PORTION 128

/* One (task, number) that has a description of the portion. */
struct place {
	uint32_t task;
	uint32_t file;
	int num;
	bool cloexec;
};

struct call {
	const struct ckpt_fd_kind *kind;
	const struct ckpt_fd_slot *slot;
	struct ckpt_task *holder;
	int num;
};

static int call_open(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->open(run, c->slot, err);
}

static int call_reopen(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->reopen(run, c->slot, err);
}

static int call_finish(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct call *c = arg;

	return c->kind->finish(run, c->slot->file, c->holder, c->num, err);
}

static int by_file(const void *va, const void *vb)
{
	const struct place *a = va, *b = vb;

	if (a->file != b->file)
		return a->file > b->file ? 1 : -1;
	if (a->task != b->task)
		return a->task > b->task ? 1 : -1;
	return (a->num > b->num) - (a->num < b->num);
}

static int by_task(const void *va, const void *vb)
{
	const struct place *a = va, *b = vb;

	if (a->task != b->task)
		return a->task > b->task ? 1 : -1;
	return (a->num > b->num) - (a->num < b->num);
}

/* Every number of every task, in order of description. */
static int list_places(struct ckpt_run *run, struct place **out, size_t *n, struct ckpt_error *err)
{
	size_t count = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "fd.table"); i++)
		count += ((const Ckpt__Fd__Table *)ckpt_record_at(run, "fd.table", i))->n_entries;
	*out = calloc(count + 1, sizeof(**out));
	if (!*out)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < ckpt_record_count(run, "fd.table"); i++) {
		const Ckpt__Fd__Table *t = ckpt_record_at(run, "fd.table", i);

		for (size_t j = 0; j < t->n_entries; j++)
			(*out)[(*n)++] =
				(struct place){ t->id, t->entries[j]->file, (int)t->entries[j]->num,
						t->entries[j]->cloexec };
	}
	if (*n)
		qsort(*out, *n, sizeof(**out), by_file);
	return 0;
}

static int set_state(int fd, const Ckpt__Fd__File *file, const struct ckpt_fd_kind *kind,
		     struct ckpt_error *err)
{
	int settable = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
	int now = kind->own_flags ? 0 : fcntl(fd, F_GETFL);

	if (now < 0)
		return ckpt_fail_sys(err, errno, "F_GETFL");
	if (!kind->own_flags && ((now ^ (int)file->flags) & settable) &&
	    fcntl(fd, F_SETFL, (int)file->flags & settable))
		return ckpt_fail_sys(err, errno, "F_SETFL %#o", file->flags);
	if (!kind->own_pos && file->pos && lseek(fd, file->pos, SEEK_SET) != file->pos)
		return ckpt_fail_sys(err, errno, "lseek(2) to %lld", (long long)file->pos);
	return 0;
}

static int open_file(struct ckpt_run *run, const struct place *first, struct ckpt_error *err)
{
	const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", first->file);
	const struct ckpt_extension *e = file ? fd_kind_find(run, file) : NULL;
	struct ckpt_fd_slot slot;
	struct call c = { .slot = &slot };
	CKPT_AUTO_FD int fd = -1;
	int r;

	if (!e)
		return ckpt_fail_image(err, "open file %u has no kind", first->file);
	c.kind = e->ops;
	slot = (struct ckpt_fd_slot){ .tree = &fd_tree,
				      .file = file->id,
				      .flags = (int)file->flags,
				      .pos = file->pos,
				      .owner = ckpt_task_by_id(run, first->task) };
	if (!slot.owner)
		return ckpt_fail_image(err, "task %u of the descriptor tables was not made",
				       first->task);
	fd = ckpt_call_as(run, file->plugin, call_open, &c, err);
	r = fd < 0 ? fd : set_state(fd, file, c.kind, err);
	if (r)
		return ckpt_wrap(err, "open file %u (%s)", file->id, file->kind);
	return ckpt_steal_fd(&fd);
}

/* The places of one portion, grouped by task, with the engine's descriptor of each. */
static int install_tasks(struct ckpt_run *run, const struct place *p, size_t n, uint32_t first,
			 const int *fds, struct ckpt_error *err)
{
	CKPT_AUTO_FREE int *list = calloc(n + 1, sizeof(int)),
			   *targets = calloc(n + 1, sizeof(int));
	CKPT_AUTO_FREE bool *cloexec = calloc(n + 1, sizeof(bool));

	if (!list || !targets || !cloexec)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0, j; i < n; i = j) {
		struct ckpt_task *task = ckpt_task_by_id(run, p[i].task);
		int r;

		if (!task)
			return ckpt_fail_image(err, "task %u of the descriptor tables was not made",
					       p[i].task);
		for (j = i; j < n && p[j].task == p[i].task; j++) {
			list[j - i] = fds[p[j].file - first];
			targets[j - i] = p[j].num;
			cloexec[j - i] = p[j].cloexec;
		}
		r = ckpt_install_fds(run, task, list, targets, cloexec, j - i, err);
		/* it knows which numbers are free: nobody else may take one meanwhile */
		if (!r && ckpt_table_users(task) > 1)
			r = ckpt_script_settle(run, err);
		if (r)
			return r;
	}
	return 0;
}

/* The files of a portion of places; fds[id - first] is the engine's descriptor. */
struct portion {
	struct place *p;
	size_t n;
	uint32_t first;
	int fds[PORTION];
};

/* From the first place on; ids of one portion span at most PORTION numbers. */
static void portion_cut(struct portion *po, struct place *p, size_t n)
{
	po->p = p;
	po->first = p[0].file;
	for (po->n = 1; po->n < n && p[po->n].file - po->first < PORTION; po->n++)
		;
	for (size_t k = 0; k < PORTION; k++)
		po->fds[k] = -1;
}

static int portion_open(struct ckpt_run *run, struct portion *po, struct ckpt_error *err)
{
	for (size_t i = 0; i < po->n; i++) {
		int *fd = &po->fds[po->p[i].file - po->first];

		if (*fd >= 0)
			continue;
		*fd = open_file(run, &po->p[i], err);
		if (*fd < 0)
			return *fd;
	}
	return 0;
}

static void portion_close(struct portion *po)
{
	for (size_t k = 0; po->n && k < PORTION; k++)
		if (po->fds[k] >= 0)
			close(po->fds[k]);
	po->n = 0;
}

static int install_all(struct ckpt_run *run, struct place *p, size_t n, struct ckpt_error *err)
{
	struct portion two[2] = { { .n = 0 }, { .n = 0 } };
	int r = 0;

	for (size_t i = 0, turn = 0; i < n && !r; turn++) {
		struct portion *po = &two[turn % 2];

		portion_cut(po, p + i, n - i);
		i += po->n;
		r = portion_open(run, po, err);
		/* what is fetched is */
		if (!r)
			r = ckpt_script_settle(run, err);
		portion_close(&two[(turn + 1) % 2]);
		if (r)
			break;
		qsort(po->p, po->n, sizeof(*po->p), by_task);
		r = install_tasks(run, po->p, po->n, po->first, po->fds, err);
	}
	if (!r)
		r = ckpt_script_settle(run, err);
	portion_close(&two[0]);
	portion_close(&two[1]);
	return r;
}

int fd_install(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct place *places = NULL;
	struct fd_state *st = fd_state(run);
	size_t n = 0;
	int r = st ? list_places(run, &places, &n, err) : ckpt_fail(err, ENOMEM, "out of memory");

	if (!r)
		r = install_all(run, places, n, err);
	if (!r)
		ckpt_count(run, "descriptors", n);
	return r;
}

/* What the task has under that number makes room. */
static int replace(struct ckpt_run *run, const struct place *p, int fd, struct ckpt_error *err)
{
	struct ckpt_task *task = ckpt_task_by_id(run, p->task);
	CKPT_AUTO_SCRIPT struct ckpt_script *s = NULL;
	int lent;

	if (!task)
		return ckpt_fail_image(err, "task %u of the descriptor tables was not made",
				       p->task);
	lent = ckpt_lend_fd(run, task, fd, err);
	if (lent < 0)
		return lent;
	s = ckpt_script_new(run, "fd.reopen");
	ckpt_script_add(s, SYS_dup3, CKPT_C(lent), CKPT_C(p->num),
			CKPT_C(p->cloexec ? O_CLOEXEC : 0));
	ckpt_script_add(s, SYS_close, CKPT_C(lent));
	return ckpt_script_run(s, task->threads[0], err);
}

/* All `n` places of one description. */
static int reopen_file(struct ckpt_run *run, const struct place *p, size_t n,
		       const Ckpt__Fd__File *file, struct ckpt_error *err)
{
	const struct ckpt_extension *e = fd_kind_find(run, file);
	struct ckpt_fd_slot slot = { .file = file->id, .flags = (int)file->flags };
	struct call c = { .slot = &slot, .kind = e ? e->ops : NULL };
	struct ckpt_error none = { 0 };
	CKPT_AUTO_FD int fd = -1;
	int r;

	if (!c.kind || c.kind->size <= offsetof(struct ckpt_fd_kind, reopen) || !c.kind->reopen)
		return 0;
	fd = ckpt_call_as(run, file->plugin, call_reopen, &c, err);
	if (fd == -ENOENT) {
		*err = none;
		return 0;
	}
	r = fd < 0 ? fd : set_state(fd, file, c.kind, err);
	for (size_t i = 0; i < n && !r; i++)
		r = replace(run, &p[i], fd, err);
	return r;
}

int fd_reopen(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct place *places = NULL;
	size_t n = 0;
	int r = list_places(run, &places, &n, err);

	for (size_t i = 0, j; i < n && !r; i = j) {
		const Ckpt__Fd__File *file = ckpt_record_by_id(run, "fd.file", places[i].file);

		for (j = i + 1; j < n && places[j].file == places[i].file; j++)
			;
		r = file ? reopen_file(run, places + i, j - i, file, err)
			 : ckpt_fail_image(err, "open file %u is not there", places[i].file);
		if (r)
			ckpt_wrap(err, "open file %u", places[i].file);
	}
	return r;
}

int fd_finish(struct ckpt_run *run, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct place *places = NULL;
	size_t n = 0;
	int r = list_places(run, &places, &n, err);

	for (size_t i = 0; i < n && !r; i++) {
		const Ckpt__Fd__File *file;
		const struct ckpt_extension *e;
		struct ckpt_fd_slot slot = { .file = places[i].file };
		struct call c = { .slot = &slot, .num = places[i].num };

		if (i && places[i - 1].file == places[i].file)
			continue;
		file = ckpt_record_by_id(run, "fd.file", places[i].file);
		e = file ? fd_kind_find(run, file) : NULL;
		if (!e)
			return ckpt_fail_image(err, "open file %u has no kind", places[i].file);
		c.kind = e->ops;
		c.holder = ckpt_task_by_id(run, places[i].task);
		if (c.kind->finish)
			r = ckpt_call_as(run, file->plugin, call_finish, &c, err);
		if (!r)
			r = fd_async_apply(run, file->id, c.holder, c.num, err);
		if (r)
			ckpt_wrap(err, "open file %u (%s)", file->id, file->kind);
	}
	/* the last number of a description may go; a POSIX lock goes with any number of its file */
	if (!r)
		r = fd_locks_take(run, false, err);
	if (!r)
		r = fd_flights_land(run, err);
	return r ? r : fd_locks_take(run, true, err);
}

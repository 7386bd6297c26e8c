/* SPDX-License-Identifier: MIT */
/* dump and verify: look at all descriptors, refuse what cannot be saved, put the records. */
#include "internal.h"
#include "steps.h"

#include <fcntl.h>
#include <sys/syscall.h>

struct look {
	struct fd_file *file;
	struct ckpt_fd_found *found;
	const struct ckpt_fd_kind *kind;
};

/* Kinds that list the flags they may have are those without one (<ckpt/fd.h>). */
static bool has_position(const struct ckpt_fd_kind *kind)
{
	return kind->size <= offsetof(struct ckpt_fd_kind, flags_ok) || !kind->flags_ok;
}

static int call_survey(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct look *l = arg;
	char object[512];
	int r;

	snprintf(object, sizeof(object), "fd %d (%s)", l->found->num, l->found->link);
	r = ckpt_refuse_off(run, l->file->kind->name, l->found->task, object);
	if (r <= 0)
		return r < 0 && r != -ECANCELED ? r : 1;
	r = l->kind->survey ? l->kind->survey(run, l->found, err) : 0;
	if (r == 0 && !has_position(l->kind) && (uint32_t)l->found->flags & ~l->kind->flags_ok)
		r = fd_refuse(
			run, l->found, "open-flags", "it has flags unknown to ckpt",
			"let the program take them off (fcntl(2), F_SETFL), or allow the loss");
	return r;
}

static int call_collect(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	const struct look *l = arg;

	return l->kind->collect(run, l->found, err);
}

/* Kinds built before there was that word in the structure do not want them. */
static bool wants_o_path(const struct ckpt_fd_kind *kind)
{
	return kind->size > offsetof(struct ckpt_fd_kind, o_path) && kind->o_path;
}

int fd_kind_of(struct ckpt_run *run, struct fd_file *file, const struct ckpt_fd_found *f,
	       struct ckpt_error *err)
{
	const struct fd_state *st = fd_state(run);

	for (size_t i = 0; i < st->n_kinds; i++) {
		const struct ckpt_extension *e = st->kinds[i].ext;
		const struct ckpt_fd_kind *kind = e->ops;
		const char *plugin = st->kinds[i].plugin;

		if (f->flags & O_PATH && !wants_o_path(kind))
			continue;
		if (!kind->match(f))
			continue;
		if (file->kind)
			return ckpt_fail(
				err, EEXIST, "fd %d (%s) is claimed by two kinds: %s.%s and %s.%s",
				f->num, f->link, file->plugin, file->kind->name, plugin, e->name);
		file->kind = e;
		file->plugin = plugin;
	}
	return 0;
}

static int survey_found(struct ckpt_run *run, struct fd_file *file, struct ckpt_fd_found *f,
			struct ckpt_error *err)
{
	struct look l = { .file = file, .found = f };
	int r = 0;

	/* what the user lists is not looked at further: locks and owners are the outside's */
	file->kind = fd_external(run, f);
	file->plugin = "fd";
	file->out_async = file->out_locks = file->kind != NULL;
	if (!file->kind)
		r = fd_kind_of(run, file, f, err);
	if (!r && !file->kind)
		r = fd_refuse_unknown(run, f);
	if (!r && !file->out_async)
		r = fd_async_survey(run, file, f);
	if (!r && !file->out_locks)
		r = fd_locks_survey(run, file, f);
	if (r)
		return r;
	l.kind = file->kind->ops;
	return ckpt_call_as(run, file->plugin, call_survey, &l, err);
}

static int survey_file(struct ckpt_run *run, struct fd_file *file, struct ckpt_error *err)
{
	struct ckpt_fd_found f;
	int r = fd_describe(run, file, &f, err);

	if (!r)
		r = survey_found(run, file, &f, err);
	fd_described(fd_state(run), file);
	file->out = r > 0;
	return r < 0 ? ckpt_wrap(err, "task %u (%s): fd %d", file->first->task->id,
				 file->first->task->comm, file->first->num)
		     : 0;
}

int fd_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	int r;

	if (!st || fd_kinds_list(run, st))
		return ckpt_fail(err, ENOMEM, "out of memory");
	fd_found_clear(st);
	r = fd_find_tables(run, st, err);
	if (!r)
		r = fd_scan(run, st, err);
	if (!r)
		r = fd_threads_scan(run, st, err);
	/* a running tree would notice */
	if (!r && !ckpt_is_live(run))
		r = fd_flights_find(run, st, err);
	if (!r)
		r = fd_identify(run, st, err);
	if (!r)
		fd_threads_identify(st);
	if (!r)
		r = fd_dups_open(st, err);
	if (!r)
		r = fd_notices_tell(run, st, err);
	for (size_t i = 0; i < st->n_files && !r; i++)
		r = survey_file(run, &st->files[i], err);
	/* a tree that runs should not find its files held open by us */
	if (ckpt_is_live(run)) {
		fd_flights_close(st);
		fd_dups_close(st);
	}
	return r;
}

/* ---- collect ------------------------------------------------------------------ */

static void add_entry(Ckpt__Fd__Table *table, Ckpt__Fd__Entry *list, const struct fd_entry *found)
{
	Ckpt__Fd__Entry *e = &list[table->n_entries];

	if (found->file->out)
		return;
	ckpt__fd__entry__init(e);
	e->num = (uint32_t)found->num;
	e->file = found->file->id;
	e->cloexec = found->cloexec;
	e->in_flight = found->in_flight;
	table->entries[table->n_entries++] = e;
}

static int put_table(struct ckpt_run *run, const struct fd_state *st, const struct ckpt_task *task,
		     struct ckpt_error *err)
{
	const struct ckpt_task *holder = st->holders[task->id - 1];
	bool shares = holder != task && ckpt_feature_on(run, "shared-tables");
	const struct fd_entry *entries = NULL;
	size_t n = shares ? 0 : fd_entries_of(st, holder, &entries);
	CKPT_AUTO_FREE Ckpt__Fd__Entry *list = calloc(n + st->n - st->n_held + 1, sizeof(*list));
	CKPT_AUTO_FREE Ckpt__Fd__Entry **ptr = calloc(n + st->n - st->n_held + 1, sizeof(*ptr));
	Ckpt__Fd__Table table = CKPT__FD__TABLE__INIT;

	if (!list || !ptr)
		return ckpt_fail(err, ENOMEM, "out of memory");
	table.id = task->id;
	table.entries = ptr;
	table.shares = shares ? holder->id : 0;
	for (size_t i = 0; i < n; i++)
		add_entry(&table, list, &entries[i]);
	for (size_t i = st->n_held; i < st->n && !shares; i++)
		if (st->entries[i].task == holder)
			add_entry(&table, list, &st->entries[i]);
	return ckpt_record_put(run, FD_TABLE, &table.base, err);
}

/*
 * FD_CLOEXEC is the one thing that a table has for itself: the task is asked about
 * the descriptors of which all else was known from its parent.
 */
static int ask_cloexec(struct ckpt_run *run, struct fd_state *st, struct ckpt_task *holder,
		       struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "fd.cloexec");
	const struct fd_entry *found;
	size_t n = fd_entries_of(st, holder, &found);
	struct fd_entry *entries = st->entries + (found - st->entries);
	int asked = 0, r;

	for (size_t i = 0; i < n; i++) {
		if (!entries[i].same)
			continue;
		ckpt_script_add(s, SYS_fcntl, CKPT_C(entries[i].num), CKPT_C(F_GETFD));
		asked++;
	}
	if (!asked)
		return 0;
	r = ckpt_script_run(s, holder->threads[0], err);
	asked = 0;
	for (size_t i = 0; i < n && !r; i++)
		if (entries[i].same)
			entries[i].cloexec = ckpt_script_result(s, asked++) & FD_CLOEXEC;
	return r;
}

static int put_tables(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_task_count(run) && !r; i++) {
		const struct ckpt_task *task = ckpt_task_at(run, i);

		if (!task->zombie && st->holders[task->id - 1] == task)
			r = ask_cloexec(run, st, ckpt_task_at(run, i), err);
		if (!r && !task->zombie)
			r = put_table(run, st, task, err);
	}
	return r;
}

static int collect_file(struct ckpt_run *run, struct fd_file *file, struct ckpt_error *err)
{
	Ckpt__Fd__File rec = CKPT__FD__FILE__INIT;
	struct ckpt_fd_found f;
	struct look l = { .file = file, .found = &f, .kind = file->kind->ops };
	int r = fd_describe(run, file, &f, err);

	if (r)
		return r < 0 ? r : ckpt_fail(err, ENOENT, "the descriptor is gone");
	rec.id = file->id;
	rec.kind = (char *)(uintptr_t)file->kind->name;
	rec.plugin = (char *)(uintptr_t)file->plugin;
	rec.flags = (uint32_t)f.flags;
	/* some drivers leave a number of theirs there (tun: the length of the last packet) */
	rec.pos = has_position(l.kind) ? f.pos : 0;
	r = ckpt_record_put(run, FD_FILE, &rec.base, err);
	if (!r)
		r = fd_async_collect(run, file, &f, err);
	if (!r)
		r = ckpt_call_as(run, file->plugin, call_collect, &l, err);
	fd_described(fd_state(run), file);
	return r;
}

/* Files that are asked about ahead of their turn: more would only hold memory. */
#define AHEAD 256

int fd_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	struct fd_state *st = fd_state(run);
	size_t saved = 0;
	int r;

	if (!st)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = put_tables(run, st, err);
	if (!r)
		r = fd_threads_collect(run, st, err);
	for (size_t i = 0; i < st->n_files && !r; i++) {
		struct fd_file *file = &st->files[i];

		if (i % AHEAD == 0)
			r = fd_look_ahead(file, st->n_files - i < AHEAD ? st->n_files - i : AHEAD,
					  err);
		if (r || file->out)
			continue;
		saved++;
		r = collect_file(run, file, err);
		free(ckpt_steal_ptr(&file->ahead));
		if (r)
			ckpt_wrap(err, "task %u (%s): fd %d (%s)", file->first->task->id,
				  file->first->task->comm, file->first->num, file->first->link);
	}
	if (!r)
		r = fd_locks_collect(run, st, err);
	fd_flights_close(st);
	fd_dups_close(st);
	ckpt_notices_clear(run);
	ckpt_count(run, "descriptors", st->n);
	ckpt_count(run, "open files", saved);
	return r;
}

/* SPDX-License-Identifier: MIT */
/* Sets of semaphores. */
#include <stdio.h>
#include <sys/sem.h>

#include "ipc.h"

#ifndef SEM_STAT_ANY
#define SEM_STAT_ANY 20
#endif

union semun {
	int val;
	struct semid_ds *buf;
	unsigned short *array;
	struct seminfo *info;
};

/* Call fn for each set of the namespace that the caller is in. */
static int each(int (*fn)(void *arg, int number, const struct semid_ds *ds, struct ckpt_error *),
		void *arg, struct ckpt_error *err)
{
	struct seminfo info;
	int last = semctl(0, 0, SEM_INFO, (union semun){ .info = &info }), r = 0;

	for (int i = 0; i <= last && r == 0; i++) {
		struct semid_ds ds;
		int number = semctl(i, 0, SEM_STAT_ANY, (union semun){ .buf = &ds });

		if (number >= 0)
			r = fn(arg, number, &ds, err);
	}
	return r;
}

/* ---- dump ------------------------------------------------------------------------------- */

static int count_set(void *arg, int number, const struct semid_ds *ds, struct ckpt_error *err)
{
	(void)number;
	(void)ds;
	(void)err;
	++*(size_t *)arg;
	return 0;
}

static int count_sets(void *arg, struct ckpt_error *err)
{
	return each(count_set, arg, err);
}

int ipc_count_semaphores(struct ckpt_run *run, const struct ckpt_ns *ns, size_t *n,
			 struct ckpt_error *err)
{
	return ipc_in(run, ns, count_sets, n, err);
}

struct put {
	struct ckpt_run *run;
	struct ipc_state *st;
	const struct ckpt_ns *ns;
};

/* Tasks are asked about it later (undo.c). */
static int remember(struct put *p, int number, size_t n, uint32_t id, struct ckpt_error *err)
{
	struct ipc_state *st = p->st;
	struct ipc_set *more = realloc(st->sets, (st->n_sets + 1) * sizeof(*more));

	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "sets of semaphores");
	st->sets = more;
	more[st->n_sets++] = (struct ipc_set){ p->ns, number, id, n };
	return 0;
}

static int put(void *arg, int number, const struct semid_ds *ds, struct ckpt_error *err)
{
	struct put *p = arg;
	Ckpt__Ipc__Semaphores rec = CKPT__IPC__SEMAPHORES__INIT;
	Ckpt__Ipc__Object o = CKPT__IPC__OBJECT__INIT;
	CKPT_AUTO_FREE unsigned short *values = calloc(ds->sem_nsems, sizeof(*values));
	CKPT_AUTO_FREE uint32_t *wide = calloc(ds->sem_nsems, sizeof(*wide));
	CKPT_AUTO_FREE uint32_t *users = calloc(ds->sem_nsems, sizeof(*users));
	int r;

	if (!ipc_is_saved(p->st, p->ns, false, number))
		return 0;
	if (!values || !wide || !users)
		return ckpt_fail_sys(err, ENOMEM, "%lu semaphores", ds->sem_nsems);
	if (semctl(number, 0, GETALL, (union semun){ .array = values }) < 0)
		return ckpt_fail_sys(err, errno, "semctl(2) of set %d", number);
	for (size_t i = 0; i < ds->sem_nsems; i++) {
		wide[i] = values[i];
		users[i] = ipc_user(p->run, semctl(number, (int)i, GETPID));
	}
	ipc_fill_object(&o, p->ns, number, &ds->sem_perm);
	rec.id = ++p->st->n_records;
	rec.object = &o;
	rec.values = wide;
	rec.n_values = ds->sem_nsems;
	rec.users = users;
	rec.n_users = ds->sem_nsems;
	rec.used = ds->sem_otime != 0;
	ckpt_count(p->run, "semaphore sets", 1);
	r = ckpt_record_put(p->run, IPC_REC_SEMAPHORES, &rec.base, err);
	return r < 0 ? r : remember(p, number, ds->sem_nsems, rec.id, err);
}

static int put_all(void *arg, struct ckpt_error *err)
{
	return each(put, arg, err);
}

int ipc_put_semaphores(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct put p = { run, ipc_state(run, err), ns };

	return p.st ? ipc_in(run, ns, put_all, &p, err) : -ENOMEM;
}

static int judge(void *arg, int number, const struct semid_ds *ds, struct ckpt_error *err)
{
	struct ipc_users u = { 0 };

	for (size_t i = 0; i < ds->sem_nsems; i++)
		ipc_note_user(arg, &u, semctl(number, (int)i, GETPID));
	return ipc_judge(arg, &u, false, number, err);
}

int ipc_survey_own_sets(struct ckpt_run *run, struct ckpt_error *err)
{
	return each(judge, run, err);
}

/* Those that are not the tree's. */
static int list(void *arg, int number, const struct semid_ds *ds, struct ckpt_error *err)
{
	const struct put *p = arg;

	return ipc_find_own(p->st, false, number) ? 0
						  : remember(arg, number, ds->sem_nsems, 0, err);
}

int ipc_list_own_sets(struct ckpt_run *run, struct ckpt_error *err)
{
	struct put p = { run, ipc_state(run, err), ckpt_ns_own(run, CKPT_NS_IPC) };

	return p.st ? each(list, &p, err) : -ENOMEM;
}

struct reading {
	const struct ipc_set *set;
	unsigned short *values;
};

/* Others may have made another one of it meanwhile, if it is in ckpt's own namespace. */
static int read_values(void *arg, struct ckpt_error *err)
{
	const struct reading *r = arg;
	struct semid_ds ds;

	if (semctl(r->set->number, 0, IPC_STAT, (union semun){ .buf = &ds }) < 0 ||
	    semctl(r->set->number, 0, GETALL, (union semun){ .array = r->values }) < 0)
		return ckpt_fail_sys(err, errno, "semctl(2) of set %d", r->set->number);
	return ds.sem_nsems == r->set->n ? 0 : ckpt_fail_sys(err, EIDRM, "set %d", r->set->number);
}

int ipc_read_set(struct ckpt_run *run, const struct ipc_set *set, unsigned short *values,
		 struct ckpt_error *err)
{
	struct reading r = { set, values };

	return set->ns->own ? read_values(&r, err) : ipc_in(run, set->ns, read_values, &r, err);
}

/* ---- restore --------------------------------------------------------------------------------- */

/* Programs tell a set that is ready from one that is being made by sem_otime. */
static int use(int number)
{
	struct sembuf nothing[] = { { 0, 1, IPC_NOWAIT }, { 0, -1, IPC_NOWAIT } };
	struct sembuf full[] = { { 0, -1, IPC_NOWAIT }, { 0, 1, IPC_NOWAIT } };

	return semop(number, nothing, 2) && semop(number, full, 2);
}

static int create(void *arg, struct ckpt_error *err)
{
	const Ckpt__Ipc__Semaphores *rec = arg;
	const Ckpt__Ipc__Object *o = rec->object;
	int number, r = ipc_begin("sem", o, err);

	if (r < 0)
		return r;
	number = semget((key_t)o->key, (int)rec->n_values, IPC_CREAT | IPC_EXCL | (int)o->mode);
	return ipc_end("sem", o, number, err);
}

static int fill(const Ckpt__Ipc__Semaphores *rec, struct ckpt_error *err)
{
	const Ckpt__Ipc__Object *o = rec->object;
	CKPT_AUTO_FREE unsigned short *values = calloc(rec->n_values, sizeof(*values));
	const int number = (int)o->number;
	struct semid_ds ds;

	if (!values)
		return ckpt_fail_sys(err, ENOMEM, "%zu semaphores", rec->n_values);
	for (size_t i = 0; i < rec->n_values; i++)
		values[i] = (unsigned short)rec->values[i];
	if (semctl(number, 0, IPC_STAT, (union semun){ .buf = &ds }) ||
	    semctl(number, 0, SETALL, (union semun){ .array = values }))
		return ckpt_fail_sys(err, errno, "semctl(2) of set %d", number);
	if (rec->used && !ds.sem_otime && use(number))
		return ckpt_fail_sys(err, errno, "semop(2) on set %d", number);
	ds.sem_perm.uid = o->uid;
	ds.sem_perm.gid = o->gid;
	ds.sem_perm.mode = (unsigned short)o->mode;
	return semctl(number, 0, IPC_SET, (union semun){ .buf = &ds })
		       ? ckpt_fail_sys(err, errno, "semctl(2) of set %d", number)
		       : 0;
}

static int make(void *arg, struct ckpt_error *err)
{
	int r = create(arg, err);

	return r < 0 ? r : fill(arg, err);
}

int ipc_make_semaphores(struct ckpt_run *run, const Ckpt__Ipc__Semaphores *rec,
			struct ckpt_error *err)
{
	return ipc_in(run, ckpt_ns_by_id(run, rec->object->ns), make, (void *)(uintptr_t)rec, err);
}

/* ---- restore, in ckpt's own namespace ----------------------------------------------------------
 */

static struct ipc_found find(const Ckpt__Ipc__Semaphores *rec)
{
	const Ckpt__Ipc__Object *o = rec->object;
	const int number = (int)o->number;
	struct ipc_found f = { 0 };
	struct semid_ds ds;

	if (semctl(number, 0, IPC_STAT, (union semun){ .buf = &ds }) == 0) {
		f.there = true;
		f.same = (uint32_t)ds.sem_perm.__key == o->key && ds.sem_nsems == rec->n_values &&
			 ds.sem_perm.cuid == o->cuid;
		for (size_t i = 0; f.same && i < rec->n_values && !f.user; i++) {
			int pid = semctl(number, (int)i, GETPID);

			f.user = ipc_lives(pid) ? pid : 0;
		}
		return f;
	}
	f.key_taken = o->key && semget((key_t)o->key, 0, 0) >= 0;
	f.place_taken = semctl(number & 0x7fff, 0, SEM_STAT_ANY, (union semun){ .buf = &ds }) >= 0;
	return f;
}

int ipc_plan_own_set(struct ckpt_run *run, const Ckpt__Ipc__Semaphores *rec)
{
	const struct ipc_found f = find(rec);

	return ipc_plan_object(run, rec->object, "the set of semaphores", &f);
}

int ipc_make_own_set(struct ckpt_run *run, const Ckpt__Ipc__Semaphores *rec, bool *made,
		     struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_own(run, CKPT_NS_IPC);
	const struct ipc_found f = find(rec);
	int r = 0;

	if (f.there && (!f.same || f.user))
		return ckpt_fail(err, EBUSY, "semaphores %u are in use by now",
				 rec->object->number);
	if (!f.there)
		r = ipc_in(run, ns, create, (void *)(uintptr_t)rec, err);
	*made = !f.there && r == 0;
	return r < 0 ? r : fill(rec, err);
}

/* SPDX-License-Identifier: MIT */
/* Sets of semaphores. */
#include <linux/kcmp.h>
#include <stdio.h>
#include <sys/sem.h>
#include <sys/syscall.h>

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

/* ---- dump: SEM_UNDO ------------------------------------------------------------------- */

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

struct undo {
	struct ckpt_run *run;
	const struct ckpt_ns *ns;
	size_t sets;
	uint32_t users[64]; /* tasks with a list of adjustments, as many as are named */
	size_t n;
};

/* This child of ckpt has no list: whoever is not equal to it has one. */
static int look(void *arg, struct ckpt_error *err)
{
	struct undo *u = arg;
	pid_t self = (pid_t)syscall(SYS_getpid);
	int r = each(count_set, &u->sets, err);

	for (size_t i = 0; i < ckpt_task_count(u->run) && u->sets && r == 0; i++) {
		const struct ckpt_task *t = ckpt_task_at(u->run, i);

		if (t->zombie || ckpt_ns_of_task(u->run, t, CKPT_NS_IPC) != u->ns)
			continue;
		if (syscall(SYS_kcmp, self, t->pid, KCMP_SYSVSEM, 0, 0) > 0 &&
		    u->n < CKPT_ARRAY_SIZE(u->users))
			u->users[u->n++] = t->id;
	}
	return r;
}

/* The adjustments themselves are nowhere to be read. */
int ipc_survey_undo(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct undo u = { .run = run, .ns = ns };
	int r = ipc_in(run, ns, look, &u, err);

	for (size_t i = 0; i < u.n && r == 0; i++) {
		const struct ckpt_task *t = ckpt_task_by_id(run, u.users[i]);

		ckpt_refuse(run,
			    &(struct ckpt_blocker){
				    .feature = "undo",
				    .task = t,
				    .object = "adjustments of semaphores",
				    .reason = t->n_threads > 1
						      ? "whether it has used SEM_UNDO cannot be "
							"told of a program with threads"
						      : "it has used SEM_UNDO",
				    .hint = "remove the sets, or allow the loss if the program "
					    "holds no semaphore",
			    });
	}
	return r;
}

/* ---- dump: values -------------------------------------------------------------------------- */

struct put {
	struct ckpt_run *run;
	struct ipc_state *st;
	const struct ckpt_ns *ns;
};

static int put(void *arg, int number, const struct semid_ds *ds, struct ckpt_error *err)
{
	struct put *p = arg;
	Ckpt__Ipc__Semaphores rec = CKPT__IPC__SEMAPHORES__INIT;
	Ckpt__Ipc__Object o = CKPT__IPC__OBJECT__INIT;
	CKPT_AUTO_FREE unsigned short *values = calloc(ds->sem_nsems, sizeof(*values));
	CKPT_AUTO_FREE uint32_t *wide = calloc(ds->sem_nsems, sizeof(*wide));

	if (!values || !wide)
		return ckpt_fail_sys(err, ENOMEM, "%lu semaphores", ds->sem_nsems);
	if (semctl(number, 0, GETALL, (union semun){ .array = values }) < 0)
		return ckpt_fail_sys(err, errno, "semctl(2) of set %d", number);
	for (size_t i = 0; i < ds->sem_nsems; i++)
		wide[i] = values[i];
	ipc_fill_object(&o, p->ns, number, &ds->sem_perm);
	rec.id = ++p->st->n_records;
	rec.object = &o;
	rec.values = wide;
	rec.n_values = ds->sem_nsems;
	rec.used = ds->sem_otime != 0;
	ckpt_count(p->run, "semaphore sets", 1);
	return ckpt_record_put(p->run, IPC_REC_SEMAPHORES, &rec.base, err);
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

/* ---- restore --------------------------------------------------------------------------------- */

/* Programs tell a set that is ready from one that is being made by sem_otime. */
static int use(int number)
{
	struct sembuf nothing[] = { { 0, 1, IPC_NOWAIT }, { 0, -1, IPC_NOWAIT } };
	struct sembuf full[] = { { 0, -1, IPC_NOWAIT }, { 0, 1, IPC_NOWAIT } };

	return semop(number, nothing, 2) && semop(number, full, 2);
}

static int make(void *arg, struct ckpt_error *err)
{
	const Ckpt__Ipc__Semaphores *rec = arg;
	const Ckpt__Ipc__Object *o = rec->object;
	CKPT_AUTO_FREE unsigned short *values = calloc(rec->n_values, sizeof(*values));
	struct semid_ds ds;
	int number, r;

	if (!values)
		return ckpt_fail_sys(err, ENOMEM, "%zu semaphores", rec->n_values);
	for (size_t i = 0; i < rec->n_values; i++)
		values[i] = (unsigned short)rec->values[i];
	r = ipc_begin("sem", o, err);
	if (r < 0)
		return r;
	number = semget((key_t)o->key, (int)rec->n_values, IPC_CREAT | IPC_EXCL | (int)o->mode);
	r = ipc_end("sem", o, number, err);
	if (r < 0)
		return r;
	if (semctl(number, 0, IPC_STAT, (union semun){ .buf = &ds }) ||
	    semctl(number, 0, SETALL, (union semun){ .array = values }))
		return ckpt_fail_sys(err, errno, "semctl(2) of set %d", number);
	if (rec->used && use(number))
		return ckpt_fail_sys(err, errno, "semop(2) on set %d", number);
	ds.sem_perm.uid = o->uid;
	ds.sem_perm.gid = o->gid;
	ds.sem_perm.mode = (unsigned short)o->mode;
	return semctl(number, 0, IPC_SET, (union semun){ .buf = &ds })
		       ? ckpt_fail_sys(err, errno, "semctl(2) of set %d", number)
		       : 0;
}

int ipc_make_semaphores(struct ckpt_run *run, const Ckpt__Ipc__Semaphores *rec,
			struct ckpt_error *err)
{
	return ipc_in(run, ckpt_ns_by_id(run, rec->object->ns), make, (void *)(uintptr_t)rec, err);
}

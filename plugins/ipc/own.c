/* SPDX-License-Identifier: MIT */
/*
 * Who used semaphores and queues last; and those in ckpt's own ipc namespace, which others use
 * too: an object is the tree's if processes of the tree are the last users, and nobody else who
 * lives is.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#include "ipc.h"

/* ---- dump ------------------------------------------------------------------------------- */

uint32_t ipc_user(struct ckpt_run *run, int pid)
{
	const struct ckpt_task *t = pid > 0 ? ckpt_task_by_pid(run, pid) : NULL;

	return t && !t->zombie ? t->id : 0;
}

bool ipc_lives(int pid)
{
	return pid > 0 && !ckpt_is_engine(pid) && (!kill(pid, 0) || errno == EPERM);
}

void ipc_note_user(struct ckpt_run *run, struct ipc_users *u, int pid)
{
	const struct ckpt_task *t = pid > 0 ? ckpt_task_by_pid(run, pid) : NULL;

	if (t && !u->inside)
		u->inside = t;
	else if (!t && ipc_lives(pid))
		u->outside = pid;
}

static void refuse_shared(struct ckpt_run *run, const struct ipc_users *u, const char *object)
{
	char reason[96];

	snprintf(reason, sizeof(reason), "process %d outside the tree has used it too", u->outside);
	ckpt_refuse(run, &(struct ckpt_blocker){
				 .feature = "outside",
				 .task = u->inside,
				 .object = object,
				 .reason = reason,
				 .hint = "dump the tree that has all its users in it",
			 });
}

/* Whether the object is the tree's, and if so remember it. */
int ipc_judge(struct ckpt_run *run, const struct ipc_users *u, bool queue, int number,
	      struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	struct ipc_own *more;
	char object[48];
	bool kept = false;

	if (!st || !u->inside)
		return st ? 0 : -ENOMEM;
	more = realloc(st->own, (st->n_own + 1) * sizeof(*more));
	if (!more)
		return ckpt_fail_sys(err, ENOMEM, "objects");
	st->own = more;
	snprintf(object, sizeof(object), "%s %d", queue ? "message queue" : "semaphores", number);
	if (u->outside)
		refuse_shared(run, u, object);
	else
		kept = ckpt_refuse_off(run, "own", u->inside, object) == 1;
	more[st->n_own++] = (struct ipc_own){ queue, !kept, number };
	return 0;
}

const struct ipc_own *ipc_find_own(const struct ipc_state *st, bool queue, int number)
{
	for (size_t i = 0; i < st->n_own; i++)
		if (st->own[i].queue == queue && st->own[i].number == number)
			return &st->own[i];
	return NULL;
}

bool ipc_is_saved(const struct ipc_state *st, const struct ckpt_ns *ns, bool queue, int number)
{
	const struct ipc_own *o = ns->own ? ipc_find_own(st, queue, number) : NULL;

	return !ns->own || (o && !o->lost);
}

int ipc_survey_own(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ipc_survey_own_sets(run, err);

	return r < 0 ? r : ipc_survey_own_queues(run, err);
}

int ipc_put_own(struct ckpt_run *run, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_own(run, CKPT_NS_IPC);
	struct ipc_state *st = ipc_state(run, err);
	int r = st ? 0 : -ENOMEM;

	if (r < 0 || !st->n_own)
		return r;
	r = ipc_put_semaphores(run, ns, err);
	return r < 0 ? r : ipc_put_queues(run, ns, err);
}

/* ---- restore: the objects themselves ----------------------------------------------------------
 */

int ipc_plan_object(struct ckpt_run *run, const Ckpt__Ipc__Object *o, const char *what,
		    const struct ipc_found *f)
{
	static const char hint[] = "remove it if nobody needs it (ipcrm), or restore in another "
				   "ipc namespace (unshare -i)";

	if (f->there && !f->same)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, hint, "%s %u is another one by now", what,
				  o->number);
	if (f->there && f->user)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, hint, "%s %u is in use by process %d",
				  what, o->number, f->user);
	if (!f->there && f->key_taken)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, hint, "the key %#x of %s %u is taken",
				  o->key, what, o->number);
	if (!f->there && f->place_taken)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, hint, "the place of %s %u is taken", what,
				  o->number);
	return 0;
}

static bool is_own(struct ckpt_run *run, const Ckpt__Ipc__Object *o)
{
	return o->ns == ckpt_ns_own(run, CKPT_NS_IPC)->id;
}

int ipc_make_own_objects(struct ckpt_run *run, struct ckpt_error *err)
{
	const size_t sets = ckpt_record_count(run, "ipc.semaphores");
	const size_t queues = ckpt_record_count(run, "ipc.queue");
	struct ipc_state *st = ipc_state(run, err);
	int r = 0;

	if (!st)
		return -ENOMEM;
	st->made_objects = calloc(sets + queues + 1, sizeof(*st->made_objects));
	if (!st->made_objects)
		return ckpt_fail_sys(err, ENOMEM, "objects");
	for (size_t i = 0; i < sets && r == 0; i++) {
		const Ckpt__Ipc__Semaphores *rec = ckpt_record_at(run, "ipc.semaphores", i);

		if (is_own(run, rec->object))
			r = ipc_make_own_set(run, rec, &st->made_objects[i], err);
	}
	for (size_t i = 0; i < queues && r == 0; i++) {
		const Ckpt__Ipc__Queue *rec = ckpt_record_at(run, "ipc.queue", i);

		if (is_own(run, rec->object))
			r = ipc_make_own_queue(run, rec, &st->made_objects[sets + i], err);
	}
	if (r < 0)
		ipc_unmake_own_objects(run);
	return r;
}

void ipc_unmake_own_objects(struct ckpt_run *run)
{
	const size_t sets = ckpt_record_count(run, "ipc.semaphores");
	struct ipc_state *st = ckpt_state(run);

	if (!st || !st->made_objects)
		return;
	for (size_t i = 0; i < sets; i++) {
		const Ckpt__Ipc__Semaphores *rec = ckpt_record_at(run, "ipc.semaphores", i);

		if (st->made_objects[i])
			semctl((int)rec->object->number, 0, IPC_RMID);
	}
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.queue"); i++) {
		const Ckpt__Ipc__Queue *rec = ckpt_record_at(run, "ipc.queue", i);

		if (st->made_objects[sets + i])
			msgctl((int)rec->object->number, IPC_RMID, NULL);
	}
	free(st->made_objects);
	st->made_objects = NULL;
}

/* ---- restore: their last users -------------------------------------------------------------- */

/* Who sets a value, be it to what it is, is the last user. Returns how many operations these are.
 */
static size_t use_sets(struct ckpt_run *run, struct ckpt_script *s, uint32_t task)
{
	size_t n = 0;

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.semaphores"); i++) {
		const Ckpt__Ipc__Semaphores *rec = ckpt_record_at(run, "ipc.semaphores", i);

		for (size_t k = 0; k < rec->n_users; k++) {
			if (rec->users[k] != task)
				continue;
			ckpt_script_add(s, SYS_semctl, CKPT_C(rec->object->number), CKPT_C(k),
					CKPT_C(SETVAL), CKPT_C(rec->values[k]));
			n++;
		}
	}
	return n;
}

/* Of none of the queue's messages. */
static long free_type(const Ckpt__Ipc__Queue *rec)
{
	long type = INT32_MAX;

	for (size_t i = 0; i < rec->n_messages; i++)
		if (rec->messages[i]->type == type) {
			type--;
			i = (size_t)-1;
		}
	return type;
}

/* An empty message, which finds room in a full queue, goes through it. */
static int use_queue(struct ckpt_run *run, const Ckpt__Ipc__Queue *rec, struct ckpt_error *err)
{
	const uint32_t sender = rec->sender ? rec->sender : rec->receiver;
	const uint32_t receiver = rec->receiver ? rec->receiver : rec->sender;
	const struct ckpt_task *from = ckpt_task_by_id(run, sender);
	const struct ckpt_task *to = ckpt_task_by_id(run, receiver);
	CKPT_AUTO_SCRIPT struct ckpt_script *send = ckpt_script_new(run, "ipc.sender");
	CKPT_AUTO_SCRIPT struct ckpt_script *receive = ckpt_script_new(run, "ipc.receiver");
	const long type = free_type(rec);
	int r;

	if (!from || !to || from->zombie || to->zombie)
		return ckpt_fail_image(err, "queue %u: no tasks %u and %u", rec->id, sender,
				       receiver);
	ckpt_script_add(send, SYS_msgsnd, CKPT_C(rec->object->number), CKPT_IN(&type, sizeof(type)),
			CKPT_C(0), CKPT_C(IPC_NOWAIT));
	ckpt_script_allow(send, EAGAIN);
	ckpt_script_add(receive, SYS_msgrcv, CKPT_C(rec->object->number), CKPT_OUT(sizeof(type)),
			CKPT_C(0), CKPT_C(type), CKPT_C(IPC_NOWAIT));
	r = ckpt_script_run(send, from->threads[0], err);
	/* it holds more than its limit allows by now */
	if (r < 0 || ckpt_script_result(send, 0) == -EAGAIN)
		return r;
	return ckpt_script_run(receive, to->threads[0], err);
}

int ipc_make_users(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_task_count(run) && r == 0; i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "ipc.users");

		if (use_sets(run, s, t->id))
			r = t->zombie ? ckpt_fail_image(err, "task %u uses semaphores", t->id)
				      : ckpt_script_run(s, t->threads[0], err);
	}
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.queue") && r == 0; i++) {
		const Ckpt__Ipc__Queue *rec = ckpt_record_at(run, "ipc.queue", i);

		if (rec->sender || rec->receiver)
			r = use_queue(run, rec, err);
	}
	return r;
}

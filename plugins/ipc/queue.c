/* SPDX-License-Identifier: MIT */
/* Message queues of System V. */
#include <sys/msg.h>

#include "ipc.h"

#ifndef MSG_STAT_ANY
#define MSG_STAT_ANY 13
#endif
#ifndef MSG_COPY
#define MSG_COPY 040000
#endif

/* ---- dump ------------------------------------------------------- */

struct put {
	struct ckpt_run *run;
	struct ipc_state *st;
	const struct ckpt_ns *ns;
};

struct messages {
	Ckpt__Ipc__Message *items, **list;
	size_t n;
};

static void messages_free(struct messages *m)
{
	for (size_t i = 0; i < m->n; i++)
		free(m->items[i].text.data);
	free(m->items);
	free(m->list);
}

struct message {
	long type;
	char text[];
};

/* MSG_COPY takes nothing out: the i-th message is given each time. */
static int copy_all(int number, size_t n, struct messages *out, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct message *buf = malloc(sizeof(*buf) + IPC_MAX_MESSAGE);

	out->items = calloc(n + 1, sizeof(*out->items));
	out->list = calloc(n + 1, sizeof(*out->list));
	if (!buf || !out->items || !out->list)
		return ckpt_fail_sys(err, ENOMEM, "%zu messages", n);
	for (size_t i = 0; i < n; i++) {
		Ckpt__Ipc__Message *m = &out->items[i];
		ssize_t len = msgrcv(number, buf, IPC_MAX_MESSAGE, (long)i, MSG_COPY | IPC_NOWAIT);

		if (len < 0)
			return ckpt_fail_sys(err, errno, "message %zu of queue %d", i, number);
		ckpt__ipc__message__init(m);
		m->type = buf->type;
		m->text.data = malloc((size_t)len + 1);
		if (!m->text.data)
			return ckpt_fail_sys(err, ENOMEM, "message of %zd bytes", len);
		memcpy(m->text.data, buf->text, (size_t)len);
		m->text.len = (size_t)len;
		out->list[i] = m;
		out->n++;
	}
	return 0;
}

static int put_one(void *arg, int number, const struct msqid_ds *ds, struct ckpt_error *err)
{
	struct put *p = arg;
	__attribute__((cleanup(messages_free))) struct messages m = { 0 };
	Ckpt__Ipc__Queue rec = CKPT__IPC__QUEUE__INIT;
	Ckpt__Ipc__Object o = CKPT__IPC__OBJECT__INIT;
	int r;

	if (!ipc_is_saved(p->st, p->ns, true, number))
		return 0;
	r = copy_all(number, ds->msg_qnum, &m, err);
	if (r < 0)
		return r;
	ipc_fill_object(&o, p->ns, number, &ds->msg_perm);
	rec.id = ++p->st->n_records;
	rec.object = &o;
	rec.limit = ds->msg_qbytes;
	rec.messages = m.list;
	rec.n_messages = m.n;
	rec.sender = ipc_user(p->run, ds->msg_lspid);
	rec.receiver = ipc_user(p->run, ds->msg_lrpid);
	ckpt_count(p->run, "message queues", 1);
	return ckpt_record_put(p->run, IPC_REC_QUEUE, &rec.base, err);
}

/* Call fn for each queue of the namespace that the caller is in. */
static int each(int (*fn)(void *arg, int number, const struct msqid_ds *ds, struct ckpt_error *),
		void *arg, struct ckpt_error *err)
{
	struct msginfo info;
	int last = msgctl(0, MSG_INFO, (struct msqid_ds *)(void *)&info), r = 0;

	for (int i = 0; i <= last && r == 0; i++) {
		struct msqid_ds ds;
		int number = msgctl(i, MSG_STAT_ANY, &ds);

		if (number >= 0)
			r = fn(arg, number, &ds, err);
	}
	return r;
}

static int put_all(void *arg, struct ckpt_error *err)
{
	return each(put_one, arg, err);
}

static int count_one(void *arg, int number, const struct msqid_ds *ds, struct ckpt_error *err)
{
	(void)number;
	(void)ds;
	(void)err;
	++*(size_t *)arg;
	return 0;
}

static int count(void *arg, struct ckpt_error *err)
{
	return each(count_one, arg, err);
}

static int judge(void *arg, int number, const struct msqid_ds *ds, struct ckpt_error *err)
{
	struct ipc_users u = { 0 };

	ipc_note_user(arg, &u, ds->msg_lspid);
	ipc_note_user(arg, &u, ds->msg_lrpid);
	return ipc_judge(arg, &u, true, number, err);
}

int ipc_survey_own_queues(struct ckpt_run *run, struct ckpt_error *err)
{
	return each(judge, run, err);
}

int ipc_count_queues(struct ckpt_run *run, const struct ckpt_ns *ns, size_t *n,
		     struct ckpt_error *err)
{
	return ipc_in(run, ns, count, n, err);
}

int ipc_put_queues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct put p = { run, ipc_state(run, err), ns };

	return p.st ? ipc_in(run, ns, put_all, &p, err) : -ENOMEM;
}

/* ---- restore ------------------------------------------------------ */

static int send_all(int number, const Ckpt__Ipc__Queue *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_messages; i++) {
		const Ckpt__Ipc__Message *m = rec->messages[i];
		CKPT_AUTO_FREE struct message *buf = malloc(sizeof(*buf) + m->text.len);

		if (!buf)
			return ckpt_fail_sys(err, ENOMEM, "message of %zu bytes", m->text.len);
		buf->type = m->type;
		memcpy(buf->text, m->text.data, m->text.len);
		if (msgsnd(number, buf, m->text.len, IPC_NOWAIT))
			return ckpt_fail_sys(err, errno, "message %zu of queue %d", i, number);
	}
	return 0;
}

static int create(void *arg, struct ckpt_error *err)
{
	const Ckpt__Ipc__Queue *rec = arg;
	const Ckpt__Ipc__Object *o = rec->object;
	int number, r = ipc_begin("msg", o, err);

	if (r < 0)
		return r;
	number = msgget((key_t)o->key, IPC_CREAT | IPC_EXCL | (int)o->mode);
	return ipc_end("msg", o, number, err);
}

/* The limit of a queue may be below what it holds. */
static int fill(const Ckpt__Ipc__Queue *rec, struct ckpt_error *err)
{
	const Ckpt__Ipc__Object *o = rec->object;
	const int number = (int)o->number;
	struct msqid_ds ds;
	uint64_t held = 0;
	int r;

	for (size_t i = 0; i < rec->n_messages; i++)
		held += rec->messages[i]->text.len;
	if (msgctl(number, IPC_STAT, &ds))
		return ckpt_fail_sys(err, errno, "msgctl(2) of queue %d", number);
	ds.msg_qbytes = held > rec->limit ? held : rec->limit;
	if (msgctl(number, IPC_SET, &ds))
		return ckpt_fail_sys(err, errno, "msgctl(2) of queue %d: %llu bytes", number,
				     (unsigned long long)ds.msg_qbytes);
	r = send_all(number, rec, err);
	if (r < 0)
		return r;
	ds.msg_qbytes = rec->limit;
	ds.msg_perm.uid = o->uid;
	ds.msg_perm.gid = o->gid;
	ds.msg_perm.mode = (unsigned short)o->mode;
	return msgctl(number, IPC_SET, &ds)
		       ? ckpt_fail_sys(err, errno, "msgctl(2) of queue %d", number)
		       : 0;
}

static int make(void *arg, struct ckpt_error *err)
{
	int r = create(arg, err);

	return r < 0 ? r : fill(arg, err);
}

int ipc_make_queue(struct ckpt_run *run, const Ckpt__Ipc__Queue *rec, struct ckpt_error *err)
{
	return ipc_in(run, ckpt_ns_by_id(run, rec->object->ns), make, (void *)(uintptr_t)rec, err);
}

/* ---- restore, in ckpt's own namespace ---------------------------- */

static struct ipc_found find(const Ckpt__Ipc__Queue *rec)
{
	const Ckpt__Ipc__Object *o = rec->object;
	const int number = (int)o->number;
	struct ipc_found f = { 0 };
	struct msqid_ds ds;

	if (msgctl(number, IPC_STAT, &ds) == 0) {
		f.there = true;
		f.same = (uint32_t)ds.msg_perm.__key == o->key && ds.msg_perm.cuid == o->cuid;
		f.user = ipc_lives(ds.msg_lspid)   ? ds.msg_lspid
			 : ipc_lives(ds.msg_lrpid) ? ds.msg_lrpid
						   : 0;
		return f;
	}
	f.key_taken = o->key && msgget((key_t)o->key, 0) >= 0;
	f.place_taken = msgctl(number & 0x7fff, MSG_STAT_ANY, &ds) >= 0;
	return f;
}

int ipc_plan_own_queue(struct ckpt_run *run, const Ckpt__Ipc__Queue *rec)
{
	const struct ipc_found f = find(rec);

	return ipc_plan_object(run, rec->object, "the message queue", &f);
}

/* What it holds by now is of a later time than the image. */
static int drain(int number, struct ckpt_error *err)
{
	char nothing[sizeof(struct message)];

	while (msgrcv(number, nothing, 0, 0, IPC_NOWAIT | MSG_NOERROR) >= 0)
		;
	return errno == ENOMSG ? 0 : ckpt_fail_sys(err, errno, "msgrcv(2) from queue %d", number);
}

int ipc_make_own_queue(struct ckpt_run *run, const Ckpt__Ipc__Queue *rec, bool *made,
		       struct ckpt_error *err)
{
	const struct ipc_found f = find(rec);
	int r;

	if (f.there && (!f.same || f.user))
		return ckpt_fail(err, EBUSY, "queue %u is in use by now", rec->object->number);
	if (f.there)
		r = drain((int)rec->object->number, err);
	else
		r = ipc_in(run, ckpt_ns_own(run, CKPT_NS_IPC), create, (void *)(uintptr_t)rec, err);
	*made = !f.there && r == 0;
	return r < 0 ? r : fill(rec, err);
}
